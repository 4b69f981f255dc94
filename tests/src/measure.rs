//! A process under limits: how it ended, how long it took, and the most memory that it held.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes of what a process says that are kept.
const MAX_WORDS: u64 = 64 << 10;
/// Address space beyond the memory a process may use: stacks and arenas of threads reserve more than they touch.
const RESERVE: u64 = 4 << 30;
/// Stack of the main thread, that of other threads by default: the compiler must do with it.
const STACK: u64 = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Exit(i32),
    Signal(i32),
    /// By this module, after its time.
    Killed,
}

#[derive(Clone, Debug)]
pub struct Usage {
    pub ending: Ending,
    pub time: Duration,
    /// Time of all its processors.
    pub busy: Duration,
    /// Most bytes resident at once.
    pub peak: u64,
    /// Standard output and standard error.
    pub words: String,
}

impl Usage {
    /// The time that it would take on a machine with nothing else to do, at most: others may have had the processors.
    pub fn alone(&self) -> Duration {
        self.time.min(self.busy)
    }
}

/// Runs a process for at most `time`, with little more address space than `memory` bytes.
pub fn measure(mut command: Command, time: Duration, memory: u64) -> io::Result<Usage> {
    let mut words = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(words.try_clone()?).stderr(words.try_clone()?);
    let limit = |bytes| libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    let limits = [(libc::RLIMIT_AS, limit(memory + RESERVE)), (libc::RLIMIT_STACK, limit(STACK))];
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
                (true, ..) => Ending::Killed,
                (_, Some(code), _) => Ending::Exit(code),
                (_, None, signal) => Ending::Signal(signal.unwrap_or(0)),
            };
            let words = read(&mut words)?;
            return Ok(Usage { ending, time: start.elapsed(), busy, peak, words });
        }
        if !killed && start.elapsed() > time {
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
