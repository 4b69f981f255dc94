//! What the figures depend on: the machine, and the memory of the current process.

use std::fs;

use serde::Serialize;

/// The machine of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name, or its architecture where the system does not report it.
    pub cpu: String,
    pub cores: usize,
    pub system: String,
}

impl Machine {
    pub fn this() -> Machine {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name =
            info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
        Machine {
            cpu: name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_string(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

/// Memory that a process took since some moment, where the system reports it.
pub struct Meter {
    before: Option<u64>,
}

impl Meter {
    /// Counts from what is resident now.
    pub fn start() -> Meter {
        // Sets the peak to what is resident (proc(5)). If it cannot, an earlier peak stays and the figure is too large.
        let _ = fs::write("/proc/self/clear_refs", "5");
        Meter { before: status("VmRSS") }
    }

    /// Peak of resident memory less what was resident at the start, in bytes.
    pub fn peak(&self) -> Option<u64> {
        Some(status("VmHWM")?.saturating_sub(self.before?))
    }
}

/// Bytes of a field of `/proc/self/status`.
fn status(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.split(':').next() == Some(field))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_meter_sees_memory_that_is_given_back() {
        let meter = Meter::start();
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        drop(block);
        let peak = meter.peak().unwrap();
        // The kernel counts per processor first, and so is some pages off.
        assert!((30 << 20..256 << 20).contains(&peak), "{peak}");
    }
}
