//! The peak of one core: the most floating-point operations per second that its fused multiply-adds reach when nothing
//! but registers is used.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Result;

/// What a process is asked.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeakTask {
    /// Milliseconds of a measurement: a longer one meets more interruptions.
    pub window_ms: f64,
    /// Of repeating measurements.
    pub seconds: f64,
}

/// The most f32 operations per second, in 10^9; a multiplication and an addition are two.
pub fn measure(task: &PeakTask) -> Result<f64> {
    let (kernel, each) = kernel()?;
    let mut turns = 1000;
    let timed = |turns: u64| {
        let start = Instant::now();
        kernel(turns);
        start.elapsed().as_secs_f64()
    };
    while timed(turns) < 1e-3 {
        turns *= 2;
    }
    let least = (0..10).map(|_| timed(turns)).fold(f64::INFINITY, f64::min);
    let turns = (turns as f64 * task.window_ms / 1e3 / least).ceil().max(1.0) as u64;
    let start = Instant::now();
    let mut best = timed(turns);
    while start.elapsed().as_secs_f64() < task.seconds {
        best = best.min(timed(turns));
    }
    Ok(turns as f64 * each / best / 1e9)
}

/// A function of a number of turns, and the operations of a turn.
#[cfg(target_arch = "x86_64")]
fn kernel() -> Result<(fn(u64), f64)> {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the features that the function is compiled for; likewise below.
        return Ok((|turns| unsafe { x86_64::wide(turns) }, x86_64::SUMS as f64 * 32.0));
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: as above.
        return Ok((|turns| unsafe { x86_64::narrow(turns) }, x86_64::SUMS as f64 * 16.0));
    }
    Err("the peak of a processor without FMA is not measured".to_string())
}

#[cfg(not(target_arch = "x86_64"))]
fn kernel() -> Result<(fn(u64), f64)> {
    Err(format!("the peak of {} is not measured", std::env::consts::ARCH))
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Sums, one register each: two multiply-adds a cycle for the four or five cycles that each takes, and to spare.
    pub(super) const SUMS: usize = 12;

    /// # Safety
    /// The processor has AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn narrow(turns: u64) {
        let (a, b) = (black_box(_mm256_set1_ps(0.5)), black_box(_mm256_set1_ps(1.0)));
        let mut sums = [_mm256_setzero_ps(); SUMS];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(a, b, *sum);
            }
        }
        black_box(sums);
    }

    /// # Safety
    /// The processor has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn wide(turns: u64) {
        let (a, b) = (black_box(_mm512_set1_ps(0.5)), black_box(_mm512_set1_ps(1.0)));
        let mut sums = [_mm512_setzero_ps(); SUMS];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(a, b, *sum);
            }
        }
        black_box(sums);
    }
}
