//! Workers of a fuzz run, watched: a process per piece of the cases, begun again behind a case that ends or stalls it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Outcome;

/// What a worker tells, one JSON object per line.
#[derive(Serialize, Deserialize)]
pub enum Report {
    Start(u64),
    /// How the case ended, and the most bytes of the heap that were in use meanwhile.
    Done(Outcome, u64),
}

/// Which cases to run, and how.
pub struct Plan {
    pub cases: Range<u64>,
    pub workers: usize,
    /// Longest time of a case.
    pub patience: Duration,
    /// No case is begun after this time, if one is given.
    pub time: Option<Duration>,
}

/// What no model may bring about.
#[derive(Clone, PartialEq, Eq, Debug)]
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
    pub cases: u64,
    pub compiled: u64,
    /// Models refused, by stage.
    pub refused: BTreeMap<String, u64>,
    pub faults: Vec<(u64, Fault)>,
    /// Longest time of a case that ended, and the case.
    pub slowest: (Duration, u64),
    /// Most heap bytes of a case that ended, and the case.
    pub largest: (u64, u64),
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
        let Summary { cases, compiled, slowest, largest, .. } = self;
        let refused: u64 = self.refused.values().sum();
        let stages: Vec<String> =
            self.refused.iter().map(|(stage, count)| format!("{count} by {stage}")).collect();
        writeln!(
            f,
            "{cases} models in {:.1} s: {compiled} compiled, {refused} refused",
            self.elapsed.as_secs_f64()
        )?;
        writeln!(f, "refused: {}", stages.join(", "))?;
        writeln!(f, "slowest: {:.3} s (case {})", slowest.0.as_secs_f64(), slowest.1)?;
        writeln!(f, "largest heap: {:.1} MiB (case {})", largest.0 as f64 / (1 << 20) as f64, largest.1)?;
        write!(f, "faults: {}", self.faults.len())
    }
}

/// Cases that one process runs unless one of them ends it. The corpus is read anew by every process.
const PIECE: u64 = 2000;

/// Runs all cases; `worker` makes the command of a process that runs the cases it is given.
pub fn supervise(plan: &Plan, worker: &(dyn Fn(Range<u64>) -> Command + Sync)) -> std::io::Result<Summary> {
    let start = Instant::now();
    let summary = Mutex::new(Summary::default());
    let next = Mutex::new(plan.cases.start);
    let over = || plan.time.is_some_and(|time| start.elapsed() > time);
    let take = || {
        let mut next = lock(&next);
        let piece = *next..plan.cases.end.min(*next + PIECE);
        *next = piece.end;
        piece
    };
    let work = || -> std::io::Result<()> {
        let mut piece = take();
        while !piece.is_empty() && !over() {
            let mut child = worker(piece.clone())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            let last = watch(&mut child, plan.patience, &over, &summary)?;
            piece = match last {
                Some(case) => case + 1..piece.end,
                None => 0..0,
            };
            if piece.is_empty() {
                piece = take();
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("supervisors do not panic"))
    })?;
    let mut summary = summary.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    summary.faults.sort_by_key(|fault| fault.0);
    summary.elapsed = start.elapsed();
    Ok(summary)
}

/// Follows a process to its end; gives the case that ended it, if one did.
fn watch(
    child: &mut Child,
    patience: Duration,
    over: &dyn Fn() -> bool,
    summary: &Mutex<Summary>,
) -> std::io::Result<Option<u64>> {
    let reports = reports(child);
    let mut words = child.stderr.take().expect("the worker's standard error is a pipe");
    let words = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = words.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut running = None;
    let fault = loop {
        // A worker that has not begun yet reads the corpus, which may be cold.
        let patience = if running.is_some() { patience } else { Duration::from_secs(60) };
        match reports.recv_timeout(patience) {
            Ok(Report::Start(case)) => running = Some((case, Instant::now())),
            Ok(Report::Done(outcome, heap)) => {
                let Some((case, start)) = running.take() else { continue };
                lock(summary).add(case, outcome, heap, start.elapsed());
                if over() {
                    break None;
                }
            }
            Err(RecvTimeoutError::Timeout) => break Some(Fault::Hang),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    if fault.is_some() || over() {
        child.kill()?;
    }
    let status = child.wait()?;
    let words = words.join().unwrap_or_default();
    let Some((case, _)) = running else {
        let killed = over();
        if !status.success() && !killed {
            return Err(std::io::Error::other(format!("a worker failed: {status}: {words}")));
        }
        return Ok(None);
    };
    let last: Vec<&str> = words.lines().rev().take(3).collect();
    let fault = fault.unwrap_or_else(|| Fault::Death(format!("{status}: {}", last.join(" / "))));
    let mut summary = lock(summary);
    summary.cases += 1;
    summary.faults.push((case, fault));
    Ok(Some(case))
}

/// The reports of a process, read by a thread of their own.
fn reports(child: &mut Child) -> Receiver<Report> {
    let output = child.stdout.take().expect("the worker's standard output is a pipe");
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // A line that is cut short is the last of a process that died.
            let Ok(report) = serde_json::from_str(&line) else { break };
            if send.send(report).is_err() {
                break;
            }
        }
    });
    receive
}

impl Summary {
    fn add(&mut self, case: u64, outcome: Outcome, heap: u64, time: Duration) {
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
