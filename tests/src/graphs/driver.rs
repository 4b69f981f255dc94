//! Has graphs drawn and examined by processes of `python/graphs/main.py`, and sums up what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead, BufReader, Error};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::measure;
use crate::onnx_env;

/// What is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Graphs of all operators.
    #[default]
    Any,
    /// Models of QuantizeLinear and DequantizeLinear around operators of f32.
    Quantized,
    /// Graphs of f32, whose exact results are to have the same bits at the lowest level and at the highest.
    Exact,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub kind: Kind,
    pub seed: u64,
    /// Number of the first graph.
    pub first: u64,
    pub count: u64,
    /// Interpreter that has `onnx` and `onnxruntime`; the pinned environment's if there is none.
    pub python: Option<PathBuf>,
    /// Folder for the smallest models that fail as drawn ones did.
    pub keep: Option<PathBuf>,
    /// The program that serves requests.
    pub worker: PathBuf,
    /// Processes side by side.
    pub jobs: u64,
    /// Whether failing graphs are made small.
    pub shrink: bool,
}

/// How a run of one graph failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub way: String,
    pub set: i64,
    pub kind: String,
    pub text: String,
}

/// What is said about one graph.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    pub number: u64,
    /// Why nothing was drawn.
    pub empty: String,
    pub nodes: usize,
    pub negative: bool,
    pub symbolic: bool,
    pub blocks: Vec<String>,
    pub operators: Vec<String>,
    pub types: Vec<String>,
    pub pairs: Vec<String>,
    pub compiled: usize,
    pub refused: Vec<String>,
    /// Nodes of the largest fusion group that are not views.
    pub group: usize,
    pub runs: usize,
    /// Runs that end with a status.
    pub statuses: usize,
    /// Why the oracle does not know all values.
    pub oracle: String,
    pub peer: String,
    pub peer_text: String,
    /// Operators that explain why exact results have other bits at another level.
    pub explained: Vec<String>,
    pub failures: Vec<Failure>,
    /// Operators of the smallest graph that fails so, and how.
    pub small: String,
    pub small_text: String,
}

impl Line {
    /// How the graph failed, if it did: its number, the kind of the first failure, the ways that fail, and the text.
    pub fn failure(&self) -> Option<String> {
        let first = self.failures.first()?;
        let ways: Vec<&str> = self.failures.iter().map(|failure| failure.way.as_str()).collect();
        let text = if self.small_text.is_empty() { &first.text } else { &self.small_text };
        Some(format!("{} {} [{}] {}: {text}", self.number, first.kind, ways.join(" "), self.small))
    }
}

/// Is called for each graph as it is done, from several threads; decides whether the run goes on.
pub type Watch<'w> = &'w (dyn Fn(&Line) -> ControlFlow<()> + Sync);

/// Watches nothing: all graphs run.
pub const UNWATCHED: Watch<'static> = &|_| ControlFlow::Continue(());

/// Time of the processors that a graph may take, and a failing one until it is small: the oracle can hang, as `numpy.choose` does
/// for indices far below zero.
const PATIENCE: Duration = Duration::from_secs(180);

/// How often the time is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Graphs that one process of Python runs at most, so that all processes are busy to the end.
const CHUNK: u64 = 1000;

/// Runs a plan, or what `watch` lets run of it, but for the graphs of `done`, which have been run before. Gives all lines by
/// number.
pub fn run(plan: &Plan, done: Vec<Line>, watch: Watch<'_>) -> io::Result<Vec<Line>> {
    let python = python(plan)?;
    let stopped = AtomicBool::new(false);
    let watch = |line: &Line| {
        if watch(line).is_break() {
            stopped.store(true, Ordering::Relaxed);
        }
        match stopped.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let chunk = plan.count.div_ceil(plan.jobs.max(1)).clamp(1, CHUNK);
    let chunks = chunks(plan.first..plan.first + plan.count, &done, chunk);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(plan.jobs.max(1) as usize).build();
    let parts: Vec<io::Result<Vec<Line>>> = pool.map_err(Error::other)?.install(|| {
        let part = |chunk: &Range<u64>| match stopped.load(Ordering::Relaxed) {
            true => Ok(Vec::new()),
            false => run_part(plan, &python, chunk.clone(), &watch),
        };
        chunks.par_iter().with_max_len(1).map(part).collect()
    });
    let mut lines = done;
    for part in parts {
        lines.extend(part?);
    }
    lines.sort_by_key(|line| line.number);
    Ok(lines)
}

/// The numbers of `range` that are not `done`, in ranges of at most `most`.
fn chunks(range: Range<u64>, done: &[Line], most: u64) -> Vec<Range<u64>> {
    let done: BTreeSet<u64> = done.iter().map(|line| line.number).collect();
    let mut chunks: Vec<Range<u64>> = Vec::new();
    for number in range.filter(|number| !done.contains(number)) {
        match chunks.last_mut() {
            Some(last) if last.end == number && number - last.start < most => last.end += 1,
            _ => chunks.push(number..number + 1),
        }
    }
    chunks
}

/// Runs the graphs that are stored in `folder`.
pub fn replay(plan: &Plan, folder: &Path) -> io::Result<Vec<Line>> {
    let mut lines = Vec::new();
    let what = |command: &mut Command| {
        command.arg("--replay").arg(folder);
    };
    match examine(plan, &python(plan)?, what, UNWATCHED, &mut lines)? {
        ControlFlow::Continue(status) if !status.success() => {
            Err(Error::other(format!("Python ended with {status}")))
        }
        _ => Ok(lines),
    }
}

fn python(plan: &Plan) -> io::Result<PathBuf> {
    match &plan.python {
        Some(path) => Ok(path.clone()),
        None => onnx_env::PEERS.interpreter(),
    }
}

/// Runs the Python side, and gathers what it says; gives how it ended, unless `watch` had it ended.
fn examine(
    plan: &Plan,
    python: &Path,
    what: impl FnOnce(&mut Command),
    watch: Watch<'_>,
    lines: &mut Vec<Line>,
) -> io::Result<ControlFlow<(), ExitStatus>> {
    let mut command = Command::new(python);
    command.arg(onnx_env::script("graphs/main.py")).arg("--worker").arg(&plan.worker);
    what(&mut command);
    if let Some(keep) = &plan.keep {
        command.arg("--keep").arg(keep);
    }
    if !plan.shrink {
        command.arg("--no-shrink");
    }
    command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or_else(|| Error::other("no output of Python"))?;
    let (send, told) = mpsc::channel();
    // Ends with the process.
    let reader = thread::spawn(move || {
        BufReader::new(output)
            .lines()
            .take_while(|line| send.send(line.as_deref().ok().map(str::to_string)).is_ok())
            .for_each(drop);
    });
    let mut watched = measure::Watch::new(&child);
    let stopped = loop {
        let text = match told.recv_timeout(LOOK) {
            Ok(Some(text)) => text,
            Ok(None) | Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) if !watched.hangs(PATIENCE) => continue,
            // NumPy's loops hear no signal of Python.
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                break false;
            }
        };
        watched.reported();
        let line: Line = serde_json::from_str(&text).map_err(Error::other)?;
        let goes_on = watch(&line).is_continue();
        lines.push(line);
        if !goes_on {
            // The worker ends with its standard input.
            child.kill()?;
            break true;
        }
    };
    let status = child.wait()?;
    drop(told);
    let _ = reader.join();
    Ok(if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(status) })
}

/// Graphs one after the other. Where a process of Python ends early, as ONNX Runtime crashes at times, or says nothing any
/// more, one without ONNX Runtime as a peer runs the graph it was at, and another goes on behind it.
fn run_part(plan: &Plan, python: &Path, part: Range<u64>, watch: Watch<'_>) -> io::Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    let mut next = part.start;
    while next < part.end {
        let what = |command: &mut Command, graphs: Range<u64>| {
            command.args(["--seed", &plan.seed.to_string(), "--first", &graphs.start.to_string()]);
            command.args(["--count", &(graphs.end - graphs.start).to_string()]);
            match plan.kind {
                Kind::Any => {}
                Kind::Quantized => drop(command.arg("--quantized")),
                Kind::Exact => drop(command.arg("--exact")),
            }
        };
        let ControlFlow::Continue(status) =
            examine(plan, python, |command| what(command, next..part.end), watch, &mut lines)?
        else {
            break;
        };
        let before = std::mem::replace(&mut next, part.start + lines.len() as u64);
        if next < part.end {
            if next == before && status.code().is_some() {
                return Err(Error::other(format!("Python ended with {status} at graph {next}")));
            }
            eprintln!("graph {next}: Python, in which ONNX Runtime runs, ended or was silent: {status}");
            let own = |command: &mut Command| {
                what(command, next..next + 1);
                command.arg("--no-peer");
            };
            let mut alone = Vec::new();
            let _ = examine(plan, python, own, UNWATCHED, &mut alone)?;
            let peer = "crashes or hangs".to_string();
            let line = Line { number: next, peer, ..alone.pop().unwrap_or_default() };
            let goes_on = watch(&line).is_continue();
            lines.push(line);
            next += 1;
            if !goes_on {
                break;
            }
        }
    }
    Ok(lines)
}

/// Figures of a run.
#[derive(Default)]
pub struct Summary {
    pub graphs: usize,
    pub empty: BTreeMap<String, usize>,
    pub negative: usize,
    /// Graphs with strings, with sequences or optionals, and with operators of com.microsoft.
    pub texts: usize,
    pub items: usize,
    pub vendor: usize,
    /// Graphs that every way compiled, and those that some way refused, by its message.
    pub compiled: usize,
    pub refused: BTreeMap<String, usize>,
    pub runs: usize,
    pub statuses: usize,
    pub symbolic: usize,
    pub blocks: BTreeMap<String, usize>,
    /// Graphs that should compile and are not programs of control flow alone; of these, those with a fusion group of
    /// three nodes or more.
    pub drawn: usize,
    pub fused: usize,
    pub nodes: usize,
    pub operators: BTreeSet<String>,
    pub types: BTreeSet<String>,
    pub pairs: BTreeSet<String>,
    pub peers: BTreeMap<String, usize>,
    pub without_oracle: BTreeMap<String, usize>,
    /// Graphs whose exact results differ between levels, by the operators that explain it.
    pub explained: BTreeMap<String, usize>,
    pub failures: Vec<String>,
    /// Graphs by how they failed.
    pub kinds: BTreeMap<String, usize>,
}

impl Summary {
    pub fn new(lines: &[Line]) -> Summary {
        let mut summary = Summary::default();
        lines.iter().for_each(|line| summary.add(line));
        summary
    }

    fn add(&mut self, line: &Line) {
        self.graphs += 1;
        if !line.empty.is_empty() {
            *self.empty.entry(line.empty.clone()).or_default() += 1;
            return;
        }
        self.negative += usize::from(line.negative);
        let has = |types: &[String], test: fn(&str) -> bool| usize::from(types.iter().any(|name| test(name)));
        self.texts += has(&line.types, |name| name.contains("string"));
        self.items += has(&line.types, |name| name.starts_with("seq") || name.starts_with("optional"));
        self.vendor += has(&line.operators, |name| name.starts_with("com.microsoft."));
        self.symbolic += usize::from(line.symbolic);
        self.runs += line.runs;
        self.statuses += line.statuses;
        self.nodes += line.nodes;
        for kind in &line.blocks {
            *self.blocks.entry(kind.clone()).or_default() += 1;
        }
        if !line.negative {
            match line.refused.first() {
                Some(reason) => *self.refused.entry(reason.clone()).or_default() += 1,
                None => self.compiled += 1,
            }
            if !line.blocks.iter().any(|kind| kind == "program") {
                self.drawn += 1;
                self.fused += usize::from(line.group >= 3);
            }
        }
        self.operators.extend(line.operators.iter().cloned());
        self.types.extend(line.types.iter().cloned());
        self.pairs.extend(line.pairs.iter().cloned());
        if !line.peer.is_empty() {
            *self.peers.entry(line.peer.clone()).or_default() += 1;
        }
        if let Some((operator, _)) = line.oracle.split_once(':') {
            *self.without_oracle.entry(operator.to_string()).or_default() += 1;
        }
        for operator in &line.explained {
            *self.explained.entry(operator.clone()).or_default() += 1;
        }
        if let (Some(failure), Some(text)) = (line.failures.first(), line.failure()) {
            *self.kinds.entry(failure.kind.clone()).or_default() += 1;
            self.failures.push(text);
        }
    }

    /// Share of the drawn graphs with a fusion group of three nodes or more.
    pub fn share_fused(&self) -> f64 {
        self.fused as f64 / self.drawn.max(1) as f64
    }

    /// A table of the figures.
    pub fn markdown(&self, plan: &Plan) -> String {
        let list = |counts: &BTreeMap<String, usize>| {
            counts.iter().map(|(key, count)| format!("{key} {count}")).collect::<Vec<_>>().join(", ")
        };
        let refused: usize = self.refused.values().sum();
        let rows = [
            ("seed, numbers", format!("{}, {} to {}", plan.seed, plan.first, plan.first + plan.count - 1)),
            ("graphs", self.graphs.to_string()),
            ("of these nothing drawn", self.empty.values().sum::<usize>().to_string()),
            ("of these with shapes that contradict each other", self.negative.to_string()),
            ("of these with symbolic dims", self.symbolic.to_string()),
            ("of these with strings", self.texts.to_string()),
            ("of these with sequences or optionals", self.items.to_string()),
            ("of these with operators of com.microsoft", self.vendor.to_string()),
            ("nodes", self.nodes.to_string()),
            ("nodes inside bodies and functions: blocks", list(&self.blocks)),
            ("compiled in every way", self.compiled.to_string()),
            ("refused in some way", refused.to_string()),
            ("runs, each twice", self.runs.to_string()),
            ("runs that end with a status", self.statuses.to_string()),
            ("graphs with a fusion group of 3 nodes or more", format!("{:.1}%", 100.0 * self.share_fused())),
            ("operators reached", self.operators.len().to_string()),
            ("types reached", self.types.len().to_string()),
            ("pairs of neighbouring operators reached", self.pairs.len().to_string()),
            ("ONNX Runtime", list(&self.peers)),
            ("graphs that fail", if self.failures.is_empty() { "0".to_string() } else { list(&self.kinds) }),
        ];
        let lines: Vec<String> = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n")).collect();
        format!("| | |\n|---|---|\n{}", lines.concat())
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (title, counts) in [
            ("nothing drawn", &self.empty),
            ("refused", &self.refused),
            ("the oracle fails at", &self.without_oracle),
            ("exact results with other bits at another level depend on", &self.explained),
        ] {
            if !counts.is_empty() {
                writeln!(f, "{title}:")?;
                counts.iter().try_for_each(|(reason, count)| writeln!(f, "  {count:5}  {reason}"))?;
            }
        }
        if !self.failures.is_empty() {
            writeln!(f, "failures:\n  {}", self.failures.join("\n  "))?;
        }
        Ok(())
    }
}
