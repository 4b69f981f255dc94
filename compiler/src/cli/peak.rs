//! What this processor reaches: fused multiply-adds in registers, and bytes read from memory.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Rates of all threads together.
#[derive(Clone, Serialize)]
pub(super) struct Peak {
    /// 10^9 operations on f32 a second, two to a multiply-add.
    pub gflops: f64,
    /// 10^9 bytes a second, read from memory.
    pub gbytes: f64,
    /// The same from the second-level cache, for up to `cached_bytes` bytes.
    pub cached_gbytes: f64,
    pub cached_bytes: usize,
    /// How they were measured.
    pub how: String,
}

/// Bytes that are read: more than caches hold.
const BYTES: usize = 256 << 20;

/// Rounds, and multiply-adds of each accumulator in one. The fastest round counts.
const ROUNDS: usize = 24;
const STEPS: u64 = 200_000;
const PASSES: usize = 4;

/// Rounds over what a cache holds.
const CACHED_PASSES: usize = 400;

impl Peak {
    /// Bytes a millisecond for a kernel that reads and writes `bytes`.
    pub(super) fn bytes_a_ms(&self, bytes: f64) -> f64 {
        let cached = bytes <= self.cached_bytes as f64;
        1e6 * if cached { self.cached_gbytes } else { self.gbytes }
    }

    /// On `threads` threads of a processor whose cores have second-level caches of `l2_bytes`. Takes some tenths of a second.
    pub(super) fn measure(threads: usize, l2_bytes: usize) -> Peak {
        let (kernel, what) = kernel();
        let gflops = on_threads(threads, |_| {
            let rate = |_| {
                let start = Instant::now();
                let operations = kernel(black_box(STEPS));
                operations as f64 / seconds(start.elapsed())
            };
            (0..ROUNDS).map(rate).fold(0.0, f64::max)
        });
        let mut words = vec![0u64; BYTES / 8];
        // Pages that are not written are one page of zeros.
        words.iter_mut().step_by(512).for_each(|word| *word = 1);
        let part = words.len().div_ceil(threads);
        let read = |bytes: usize, passes: usize| {
            on_threads(threads, |thread| {
                let own = words.chunks(part).nth(thread).unwrap_or(&[]);
                let own = &own[..own.len().min(bytes / 8)];
                let rate = |_| {
                    let start = Instant::now();
                    black_box(sum(black_box(own)));
                    (8 * own.len()) as f64 / seconds(start.elapsed())
                };
                (0..passes).map(rate).fold(0.0, f64::max)
            })
        };
        // A part of the cache, because all of it is rarely the program's.
        let (gbytes, cached) = (read(BYTES, PASSES), read(l2_bytes / 2, CACHED_PASSES));
        let plural = if threads == 1 { "" } else { "s" };
        let how = format!(
            "{what}; sums over {} MiB and, for kernels whose tensors the second-level caches hold, over {} KiB; on {threads} thread{plural}",
            BYTES >> 20,
            l2_bytes >> 11
        );
        let cached_bytes = threads * l2_bytes;
        Peak {
            gflops: gflops / 1e9,
            gbytes: gbytes / 1e9,
            cached_gbytes: cached.max(gbytes) / 1e9,
            cached_bytes,
            how,
        }
    }
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64().max(1e-9)
}

/// The sum of what `work` gives on each of several threads that begin together.
fn on_threads(threads: usize, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        let spawn = |thread| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let handles: Vec<_> = (0..threads).map(spawn).collect();
        handles.into_iter().map(|handle| handle.join().unwrap_or(0.0)).sum()
    })
}

fn sum(words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { x86::sum(words) };
    }
    plain_sum(words)
}

#[inline(always)]
fn plain_sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let chunks = words.chunks_exact(sums.len());
    chunks
        .for_each(|chunk| sums.iter_mut().zip(chunk).for_each(|(sum, word)| *sum = sum.wrapping_add(*word)));
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Does this number of multiply-adds with each accumulator; returns the number of operations.
type Kernel = fn(u64) -> u64;

#[cfg(target_arch = "x86_64")]
fn kernel() -> (Kernel, &'static str) {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has it.
        (|steps| unsafe { x86::wide(steps) }, "fused multiply-adds of 512 bits in registers")
    } else if is_x86_feature_detected!("avx") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both.
        (|steps| unsafe { x86::fused(steps) }, "fused multiply-adds of 256 bits in registers")
    } else {
        (plain, "multiplications and additions of f32 in registers")
    }
}

#[cfg(target_arch = "aarch64")]
fn kernel() -> (Kernel, &'static str) {
    (neon, "fused multiply-adds of 128 bits in registers")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn kernel() -> (Kernel, &'static str) {
    (plain, "multiplications and additions of f32 in registers")
}

#[cfg(not(target_arch = "aarch64"))]
fn plain(steps: u64) -> u64 {
    let mut sums = black_box([1.0f32; 32]);
    let factor = black_box(0.5f32);
    for _ in 0..steps {
        sums.iter_mut().for_each(|sum| *sum = *sum * factor + factor);
    }
    black_box(sums);
    2 * steps * sums.len() as u64
}

#[cfg(target_arch = "aarch64")]
fn neon(steps: u64) -> u64 {
    use std::arch::aarch64::{vdupq_n_f32, vfmaq_f32};
    // SAFETY: every processor of the architecture has these vectors.
    unsafe {
        let factor = vdupq_n_f32(black_box(0.5));
        let mut sums = [factor; 16];
        for _ in 0..steps {
            sums.iter_mut().for_each(|sum| *sum = vfmaq_f32(factor, *sum, factor));
        }
        black_box(sums);
        2 * 4 * steps * sums.len() as u64
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps, _mm512_fmadd_ps, _mm512_set1_ps};
    use std::hint::black_box;

    #[target_feature(enable = "avx2")]
    pub(super) fn sum(words: &[u64]) -> u64 {
        super::plain_sum(words)
    }

    #[target_feature(enable = "avx,fma")]
    pub(super) fn fused(steps: u64) -> u64 {
        let factor = _mm256_set1_ps(black_box(0.5));
        let mut sums = [factor; 12];
        for _ in 0..steps {
            sums.iter_mut().for_each(|sum| *sum = _mm256_fmadd_ps(*sum, factor, factor));
        }
        black_box(sums);
        2 * 8 * steps * sums.len() as u64
    }

    #[target_feature(enable = "avx512f")]
    pub(super) fn wide(steps: u64) -> u64 {
        let factor = _mm512_set1_ps(black_box(0.5));
        let mut sums = [factor; 24];
        for _ in 0..steps {
            sums.iter_mut().for_each(|sum| *sum = _mm512_fmadd_ps(*sum, factor, factor));
        }
        black_box(sums);
        2 * 16 * steps * sums.len() as u64
    }
}
