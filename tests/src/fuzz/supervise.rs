//! Workers of a fuzz run, watched: a process per piece of the cases, begun again behind a case that ends or stalls it.
//!
//! A worker says which case it is at in a file, which costs it one system call, and what became of its cases in one
//! line for many of them. Cases whose outcomes are lost with a process are run again.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Outcome;
use crate::measure::Watch;

/// What became of consecutive cases: a line of a worker, as JSON.
#[derive(Default, Serialize, Deserialize)]
pub struct Tally {
    /// The case after the last of them.
    pub next: u64,
    pub cases: u64,
    pub compiled: u64,
    /// Models refused, by stage.
    pub refused: BTreeMap<String, u64>,
    pub faults: Vec<(u64, Fault)>,
    /// Longest time of a case that ended, and the case.
    pub slowest: (Duration, u64),
    /// Most heap bytes of a case that ended, and the case.
    pub largest: (u64, u64),
}

/// Which cases to run, and how.
pub struct Plan {
    pub cases: Range<u64>,
    pub workers: usize,
    /// Time of the processors that a case may take.
    pub patience: Duration,
    /// No case is begun after this time, if one is given.
    pub time: Option<Duration>,
}

/// What no model may bring about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Fault {
    Panic(String),
    Internal(String),
    /// Longer than the plan's patience.
    Hang,
    /// How the process ended, and its last words.
    Death(String),
}

#[derive(Default)]
pub struct Summary {
    pub tally: Tally,
    pub elapsed: Duration,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Panic(text) => write!(f, "panic: {text}"),
            Fault::Internal(text) => write!(f, "internal error: {text}"),
            Fault::Hang => f.write_str("takes too long"),
            Fault::Death(text) => write!(f, "the process died: {text}"),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { cases, compiled, slowest, largest, .. } = &self.tally;
        let refused: u64 = self.tally.refused.values().sum();
        let stages: Vec<String> =
            self.tally.refused.iter().map(|(stage, count)| format!("{count} by {stage}")).collect();
        let seconds = self.elapsed.as_secs_f64();
        writeln!(
            f,
            "{cases} models in {seconds:.1} s, {:.0} per second: {compiled} handled to the end, {refused} refused",
            *cases as f64 / seconds.max(1e-9)
        )?;
        writeln!(f, "refused: {}", stages.join(", "))?;
        writeln!(f, "slowest: {:.3} s (case {})", slowest.0.as_secs_f64(), slowest.1)?;
        writeln!(f, "largest heap: {:.1} MiB (case {})", largest.0 as f64 / (1 << 20) as f64, largest.1)?;
        write!(f, "faults: {}", self.tally.faults.len())
    }
}

impl Tally {
    /// Counts a case with the most bytes of the heap that were in use meanwhile, and its time.
    pub fn add(&mut self, case: u64, outcome: Outcome, heap: u64, time: Duration) {
        self.next = case + 1;
        self.cases += 1;
        self.slowest = self.slowest.max((time, case));
        self.largest = self.largest.max((heap, case));
        match outcome {
            Outcome::Compiled => self.compiled += 1,
            Outcome::Refused(stage) => *self.refused.entry(stage).or_default() += 1,
            Outcome::Internal(text) => self.faults.push((case, Fault::Internal(text))),
            Outcome::Panic(text) => self.faults.push((case, Fault::Panic(text))),
        }
    }

    fn merge(&mut self, other: Tally) {
        self.cases += other.cases;
        self.compiled += other.compiled;
        for (stage, count) in other.refused {
            *self.refused.entry(stage).or_default() += count;
        }
        self.faults.extend(other.faults);
        self.slowest = self.slowest.max(other.slowest);
        self.largest = self.largest.max(other.largest);
    }
}

/// The case that a worker is at, in a file.
pub struct Position(File);

impl Position {
    pub fn open(path: &Path) -> std::io::Result<Position> {
        Ok(Position(File::options().read(true).write(true).create(true).truncate(false).open(path)?))
    }

    /// Says that a case begins.
    pub fn set(&self, case: u64) -> std::io::Result<()> {
        self.0.write_all_at(&(case + 1).to_le_bytes(), 0)
    }

    fn get(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        u64::from_le_bytes(bytes).checked_sub(1)
    }
}

/// Cases that one process runs unless one of them ends it. The corpus is read anew by every process.
const PIECE: u64 = 20_000;

/// How often a worker's position is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Time of the processors that a worker may take before its first case.
const BEGIN: Duration = Duration::from_secs(60);

/// Runs all cases; `worker` makes the command of a process that runs the cases it is given and keeps its position in a
/// file.
pub fn supervise(
    plan: &Plan,
    worker: &(dyn Fn(Range<u64>, &Path) -> Command + Sync),
) -> std::io::Result<Summary> {
    let start = Instant::now();
    let total = Mutex::new(Tally::default());
    let next = Mutex::new(plan.cases.start);
    let over = || plan.time.is_some_and(|time| start.elapsed() > time);
    let take = || {
        let mut next = lock(&next);
        let piece = *next..plan.cases.end.min(*next + PIECE);
        *next = piece.end;
        piece
    };
    let folder = tempfile::tempdir()?;
    let work = |number: usize| -> std::io::Result<()> {
        let path = folder.path().join(number.to_string());
        let mut open = vec![take()];
        while let Some(piece) = open.pop() {
            if piece.is_empty() {
                continue;
            }
            if over() {
                break;
            }
            std::fs::write(&path, [])?;
            let mut child = worker(piece.clone(), &path)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            let end = watch(&mut child, plan.patience, piece.start, &Position::open(&path)?, &over, &total)?;
            if let Some((counted, fatal)) = end {
                open.extend([fatal + 1..piece.end, counted..fatal]);
            }
            if open.iter().all(Range::is_empty) {
                open = vec![take()];
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.workers).map(|number| scope.spawn(move || work(number))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("supervisors do not panic"))
    })?;
    let mut tally = total.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    tally.faults.sort_by_key(|fault| fault.0);
    Ok(Summary { tally, elapsed: start.elapsed() })
}

/// Follows a process to its end. Where a case ended it: the first case that is not counted, and that case.
fn watch(
    child: &mut Child,
    patience: Duration,
    first: u64,
    position: &Position,
    over: &dyn Fn() -> bool,
    total: &Mutex<Tally>,
) -> std::io::Result<Option<(u64, u64)>> {
    let tallies = tallies(child);
    let mut words = child.stderr.take().expect("the worker's standard error is a pipe");
    let words = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = words.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let (mut counted, mut at, mut watch) = (first, None, Watch::new(child));
    let fault = loop {
        match tallies.recv_timeout(LOOK) {
            Ok(tally) => {
                counted = tally.next;
                lock(total).merge(tally);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break None,
        }
        if over() {
            break None;
        }
        let now = position.get();
        if now != at {
            at = now;
            watch.reported();
        }
        // A worker that has not begun yet reads the corpus.
        if watch.hangs(now.map_or(BEGIN, |_| patience)) {
            break Some(Fault::Hang);
        }
    };
    let killed = fault.is_some() || over();
    if killed {
        child.kill()?;
    }
    let status = child.wait()?;
    let words = words.join().unwrap_or_default();
    if status.success() || over() {
        return Ok(None);
    }
    let Some(case) = position.get() else {
        return Err(std::io::Error::other(format!("a worker failed: {status}: {words}")));
    };
    let last: Vec<&str> = words.lines().rev().take(3).collect();
    let fault = fault.unwrap_or_else(|| Fault::Death(format!("{status}: {}", last.join(" / "))));
    let mut total = lock(total);
    total.cases += 1;
    total.faults.push((case, fault));
    Ok(Some((counted, case)))
}

/// The tallies of a process, read by a thread of their own.
fn tallies(child: &mut Child) -> Receiver<Tally> {
    let output = child.stdout.take().expect("the worker's standard output is a pipe");
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A line that is cut short is the last of a process that died.
            let Ok(tally) = serde_json::from_str(&line) else { break };
            if send.send(tally).is_err() {
                break;
            }
        }
    });
    receive
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
