//! What processes take, and what they may take. No verdict depends on the clock: machines differ, and other programs run
//! beside a test. Time is that of the processor; where a limit is given for one machine, [`slowness`] says how many times as long
//! this one takes, by a loop that runs beside what is judged. The clock only ends what hangs, see [`HANG`].

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes of what a process says that are kept.
const MAX_WORDS: u64 = 64 << 10;
/// Address space beyond the memory a process may use: stacks and arenas of threads reserve more than they touch.
const RESERVE: u64 = 4 << 30;
/// Stack of the main thread, that of other threads by default: the compiler must do with it.
const STACK: u64 = 2 << 20;

/// Time by the clock after which a process that neither ends nor says anything is taken to hang.
pub const HANG: Duration = Duration::from_secs(45 * 60);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Exit(i32),
    Signal(i32),
    /// For the time of the processor that it took, or because it hung.
    Killed,
}

#[derive(Clone, Debug)]
pub struct Usage {
    pub ending: Ending,
    /// Time of all its processors.
    pub busy: Duration,
    /// Most bytes resident at once.
    pub peak: u64,
    /// Standard output and standard error.
    pub words: String,
}

/// Runs a process that may take at most `busy` of the processors' time, rounded up to a second, and little more address space
/// than `memory` bytes.
pub fn measure(mut command: Command, busy: Duration, memory: u64) -> io::Result<Usage> {
    let mut words = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words.try_clone()?);
    let limit = |most| libc::rlimit { rlim_cur: most, rlim_max: most };
    let seconds = busy.as_secs() + 1;
    let limits = [
        (libc::RLIMIT_AS, limit(memory + RESERVE)),
        (libc::RLIMIT_STACK, limit(STACK)),
        // Between the two the process gets the signal that its time is up, and ends by it.
        (libc::RLIMIT_CPU, libc::rlimit { rlim_cur: seconds, rlim_max: seconds + 5 }),
    ];
    // SAFETY: between fork and exec only `setrlimit` is called, which is safe there, with limits copied into the closure.
    unsafe {
        command.pre_exec(move || {
            let failed = limits.iter().any(|(resource, limit)| libc::setrlimit(*resource, limit) != 0);
            if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    let start = Instant::now();
    let mut child = command.spawn()?;
    let pid = child.id() as libc::pid_t;
    let mut killed = false;
    loop {
        if let Some((status, busy, peak)) = wait(pid)? {
            let ending = match (killed, status.code(), status.signal()) {
                (true, ..) | (_, _, Some(libc::SIGXCPU)) => Ending::Killed,
                (_, Some(code), _) => Ending::Exit(code),
                (_, None, signal) => Ending::Signal(signal.unwrap_or(0)),
            };
            return Ok(Usage { ending, busy, peak, words: read(&mut words)? });
        }
        if !killed && start.elapsed() > HANG {
            child.kill()?;
            killed = true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How a child ended, the time of its processors and the most bytes it held, if it has ended.
fn wait(pid: libc::pid_t) -> io::Result<Option<(ExitStatus, Duration, u64)>> {
    let mut status = 0;
    // SAFETY: `rusage` is plain numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals that live through the call.
    match unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) } {
        0 => Ok(None),
        -1 => Err(io::Error::last_os_error()),
        _ => {
            let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
            let busy = time(usage.ru_utime) + time(usage.ru_stime);
            Ok(Some((ExitStatus::from_raw(status), busy, usage.ru_maxrss as u64 * 1024)))
        }
    }
}

fn read(words: &mut File) -> io::Result<String> {
    words.rewind()?;
    let mut bytes = Vec::new();
    words.take(MAX_WORDS).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A process that reports now and then. One that computes for long without a report hangs, and so does one that rests for
/// [`HANG`].
pub struct Watch {
    process: u32,
    /// The last report: by the clock, and by the time that the process had computed.
    clock: Instant,
    busy: Duration,
}

impl Watch {
    pub fn new(child: &Child) -> Watch {
        let process = child.id();
        Watch { process, clock: Instant::now(), busy: processor_time(process) }
    }

    /// The process has reported.
    pub fn reported(&mut self) {
        (self.clock, self.busy) = (Instant::now(), processor_time(self.process));
    }

    /// Whether it hangs; `patience` is the time of the processor that it may take between two reports on the machine that
    /// [`slowness`] compares with.
    pub fn hangs(&self, patience: Duration) -> bool {
        if self.clock.elapsed() > HANG {
            return true;
        }
        let busy = processor_time(self.process).saturating_sub(self.busy);
        busy > patience && busy > patience.mul_f64(slowness())
    }
}

/// What a process and those that it started have computed so far; zero where the system does not report it.
#[cfg(not(target_os = "linux"))]
fn processor_time(_: u32) -> Duration {
    Duration::ZERO
}

/// As above.
#[cfg(target_os = "linux")]
fn processor_time(process: u32) -> Duration {
    let mut known: Vec<Stat> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| Stat::read(entry.ok()?.file_name().to_str()?.parse().ok()?))
        .collect();
    let (mut open, mut ticks) = (vec![process], 0);
    while let Some(process) = open.pop() {
        known.retain(|stat| {
            ticks += if stat.process == process { stat.ticks } else { 0 };
            open.extend((stat.parent == process).then_some(stat.process));
            stat.process != process
        });
    }
    // SAFETY: `sysconf` reads a number.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    Duration::from_millis(ticks * 1000 / per_second)
}

/// A process, as the system describes it.
#[cfg(target_os = "linux")]
struct Stat {
    process: u32,
    parent: u32,
    /// Time of the processor, its own and that of children that have ended.
    ticks: u64,
}

#[cfg(target_os = "linux")]
impl Stat {
    fn read(process: u32) -> Option<Stat> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Behind the program's name, which may hold anything: state, parent, ..
        let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        Some(Stat { process, parent: fields.get(1)?.parse().ok()?, ticks })
    }
}

/// Time of the processor that [`calibration`] takes on the machine that limits are given for: a Xeon of 2 GHz.
const REFERENCE: Duration = Duration::from_millis(40);

/// How many times as long as on the machine that limits are given for a computation takes now: at least 1. What is judged is
/// judged beside it, so that what other programs take from caches and clock rates counts for both.
pub fn slowness() -> f64 {
    let slowest = (0..3).map(|_| calibration()).max().unwrap_or(REFERENCE);
    (slowest.as_secs_f64() / REFERENCE.as_secs_f64()).max(1.0)
}

/// Time of the processor for a fixed piece of work: arithmetic that depends on itself, and reads all over a few megabytes.
fn calibration() -> Duration {
    const WORDS: usize = 1 << 20;
    let mut table: Vec<u32> = (0..WORDS as u32).map(|at| at.wrapping_mul(0x9e37_79b1)).collect();
    let start = thread_time();
    let (mut state, mut at) = (1u64, 0usize);
    for _ in 0..STEPS {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(17) ^ u64::from(table[at]);
        at = (state >> 40) as usize % WORDS;
        table[at] ^= state as u32;
    }
    std::hint::black_box(state);
    thread_time().saturating_sub(start)
}

/// Steps of the calibration, of some nanoseconds each.
const STEPS: usize = 1 << 20;

/// Time that this thread has had of a processor.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the local that it is given.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } {
        0 => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_computes_without_end_is_ended() {
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let usage = measure(command, Duration::from_millis(10), 1 << 30).unwrap();
        assert_eq!(usage.ending, Ending::Killed);
        assert!(usage.busy >= Duration::from_millis(900), "{:?}", usage.busy);
    }

    /// The loops of a child of the process that is watched count.
    #[test]
    fn a_process_that_rests_does_not_hang_and_one_that_computes_does() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
        };
        let mut rests = start("read line");
        let mut computes = start("(while :; do :; done) & read line; kill $!");
        let [watch, mut other] = [Watch::new(&rests), Watch::new(&computes)];
        let patience = Duration::from_millis(50);
        while !other.hangs(patience) {
            assert!(!watch.hangs(patience));
            std::thread::sleep(Duration::from_millis(10));
        }
        other.reported();
        assert!(!other.hangs(Duration::from_secs(60)));
        for child in [&mut rests, &mut computes] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }
}
