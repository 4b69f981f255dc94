//! The differential run: models drawn from the schemas of the ONNX package, compiled, run, and held against what the
//! package's reference (or ONNX Runtime) computes. See `python/differential/generate.py` for what is drawn.
//!
//! A case is named by its seed and number, and does not depend on the other cases of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Error};
use std::path::{Path, PathBuf};
use std::process::Command;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::compile::Code;
use crate::expected::Outcome;
use crate::harness::Place;
use crate::onnx_env;
use crate::suite::Case;

/// Cases that one Python process draws, and that are linked into one library.
const BATCH: u64 = 128;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Number of the first case.
    pub first: u64,
    pub count: u64,
    /// Only cases of this operator; their numbers then are not those of a run of all. `com.microsoft` is all operators of
    /// that domain, `com.microsoft.QGemm` one of them.
    pub operator: Option<String>,
    /// Interpreter that has `onnx`, and perhaps `onnxruntime`; the pinned environment's if there is none.
    pub python: Option<PathBuf>,
    /// Where models and their data stay, to look at; else they are removed.
    pub keep: Option<PathBuf>,
}

impl Plan {
    /// Whether the cases are of operators of com.microsoft.
    pub fn is_of_microsoft(&self) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.starts_with("com.microsoft"))
    }
}

/// A case as the generator describes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Drawn {
    pub number: u64,
    /// Folder beneath the batch's; none if nothing could be drawn.
    pub folder: Option<String>,
    /// What it is about: operators, versions, types.
    pub subject: String,
    /// `operator-version variable=type` of each node.
    pub pairs: Vec<String>,
    /// Whose results are expected: `reference`, `runtime`, `definition`.
    #[serde(default)]
    pub oracle: String,
    /// What ONNX Runtime says where it is installed: `agrees`, `refuses`, or how it differs, and after a semicolon why,
    /// where that is known.
    #[serde(default)]
    pub peer: String,
    /// Why there is no case.
    #[serde(default)]
    pub reason: String,
}

/// A case and how it went; `None` if there was nothing to run.
pub type Result = (Drawn, Option<Outcome>);

/// Runs a plan, in one thread per processor.
pub fn run(plan: &Plan, code: &Code, place: &Place) -> io::Result<Vec<Result>> {
    let python = match &plan.python {
        Some(path) => path.clone(),
        // Schemas of that domain are ONNX Runtime's.
        None if plan.is_of_microsoft() => onnx_env::PEERS.interpreter()?,
        None => onnx_env::ONNX.interpreter()?,
    };
    let root = tempfile::tempdir()?;
    let root = plan.keep.clone().unwrap_or(root.path().to_path_buf());
    let starts: Vec<u64> = (plan.first..plan.first + plan.count).step_by(BATCH as usize).collect();
    let batches: Vec<io::Result<Vec<Result>>> = starts
        .par_iter()
        .with_max_len(1)
        .map(|&start| {
            let count = BATCH.min(plan.first + plan.count - start);
            let folder = root.join(start.to_string());
            let numbers: Vec<u64> = (start..start + count).collect();
            let results = run_batch(plan, &python, &numbers, code, place, &folder)?;
            if plan.keep.is_none() {
                fs::remove_dir_all(&folder)?;
            }
            Ok(results)
        })
        .collect();
    Ok(batches.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Numbers of cases, from `first` on, that are about each of these pairs; `each` per pair.
pub fn numbers_for(plan: &Plan, pairs: &[String], first: u64, each: usize) -> io::Result<Vec<u64>> {
    #[derive(Deserialize)]
    struct Order {
        pairs: Vec<String>,
        chain_every: u64,
    }
    let mut command = Command::new(onnx_env::ONNX.interpreter()?);
    command.arg(onnx_env::script("differential/generate.py")).arg(".");
    let text = onnx_env::run(command.args(["--order", "--seed", &plan.seed.to_string()]))?;
    let order: Order = serde_json::from_str(&text).map_err(Error::other)?;
    let singles = order.chain_every - 1;
    let mut numbers = BTreeSet::new();
    for at in (0..order.pairs.len()).filter(|&at| pairs.contains(&order.pairs[at])) {
        // Single node number k is case number k / singles * chain_every + k % singles.
        let cases = (0..).map(|round| at as u64 + round * order.pairs.len() as u64);
        let cases = cases.map(|k| k / singles * order.chain_every + k % singles);
        numbers.extend(cases.filter(|&number| number >= first).take(each));
    }
    Ok(numbers.into_iter().collect())
}

/// Runs cases of these numbers; those of a plan do not matter.
pub fn run_numbers(plan: &Plan, numbers: &[u64], code: &Code, place: &Place) -> io::Result<Vec<Result>> {
    let python = onnx_env::ONNX.interpreter()?;
    let root = tempfile::tempdir()?;
    let batches: Vec<io::Result<Vec<Result>>> = numbers
        .chunks(BATCH as usize)
        .enumerate()
        .par_bridge()
        .map(|(at, numbers)| {
            run_batch(plan, &python, numbers, code, place, &root.path().join(at.to_string()))
        })
        .collect();
    Ok(batches.into_iter().collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

fn run_batch(
    plan: &Plan,
    python: &Path,
    numbers: &[u64],
    code: &Code,
    place: &Place,
    folder: &Path,
) -> io::Result<Vec<Result>> {
    fs::create_dir_all(folder)?;
    let drawn = draw(plan, python, numbers, folder)?;
    let case = |at: usize, drawn: &Drawn| {
        let inside = drawn.folder.as_ref()?;
        Some(Case { id: drawn.number.to_string(), symbol: format!("t{at}"), folder: folder.join(inside) })
    };
    let cases: Vec<Case> = drawn.iter().enumerate().filter_map(|(at, drawn)| case(at, drawn)).collect();
    let mut by_id: BTreeMap<String, Outcome> = place.outcomes(&cases, code, folder).into_iter().collect();
    Ok(drawn
        .into_iter()
        .map(|drawn| {
            let outcome = by_id.remove(&drawn.number.to_string());
            (drawn, outcome)
        })
        .collect())
}

/// Has cases written beneath `folder`.
pub fn draw(plan: &Plan, python: &Path, numbers: &[u64], folder: &Path) -> io::Result<Vec<Drawn>> {
    let mut command = Command::new(python);
    command.arg(onnx_env::script("differential/generate.py")).arg(folder);
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    command.args(["--seed", &plan.seed.to_string(), "--numbers", &numbers.join(",")]);
    if let Some(operator) = &plan.operator {
        command.args(["--operator", operator]);
    }
    // One thread: the batches run side by side.
    command.env("OMP_NUM_THREADS", "1").env("OPENBLAS_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
    onnx_env::run(&mut command)?;
    serde_json::from_slice(&fs::read(folder.join("index.json"))?).map_err(Error::other)
}

/// Figures of a run.
#[derive(Default)]
pub struct Summary {
    pub passed: usize,
    pub rounding: Vec<String>,
    pub disagreements: Vec<String>,
    /// Cases by the feature that the compiler does not support.
    pub unsupported: BTreeMap<String, usize>,
    /// Cases by why nothing was drawn.
    pub empty: BTreeMap<String, usize>,
    /// Where ONNX Runtime differs from what is expected and nothing is known that explains it.
    pub peers: Vec<String>,
    /// Cases in which it differs, by their explanation.
    pub explained: BTreeMap<String, usize>,
    pub by_oracle: BTreeMap<String, usize>,
    pub peer_agrees: usize,
    /// Pairs of operator version and type with a case that passed.
    pub covered: BTreeSet<String>,
}

impl Summary {
    pub fn new(results: &[Result]) -> Summary {
        let mut summary = Summary::default();
        for (drawn, outcome) in results {
            let line = |what: &str| format!("{} {}: {what}", drawn.number, drawn.subject);
            match outcome {
                None => *summary.empty.entry(drawn.reason.clone()).or_default() += 1,
                Some(Outcome::Passed) => {
                    summary.passed += 1;
                    summary.covered.extend(drawn.pairs.iter().cloned());
                }
                Some(Outcome::Unsupported(reason) | Outcome::LeftOut(reason)) => {
                    *summary.unsupported.entry(reason.clone()).or_default() += 1
                }
                Some(Outcome::Differs(what)) => summary.rounding.push(line(what)),
                Some(Outcome::Failed(what)) => summary.disagreements.push(line(what)),
            }
            if outcome.is_some() {
                *summary.by_oracle.entry(drawn.oracle.clone()).or_default() += 1;
            }
            match drawn.peer.as_str() {
                "agrees" => summary.peer_agrees += 1,
                "" | "refuses" => {}
                what => match what.split_once("; ") {
                    Some((_, cause)) => *summary.explained.entry(cause.to_string()).or_default() += 1,
                    None => summary.peers.push(line(what)),
                },
            }
        }
        summary
    }

    /// Results that are not as expected.
    pub fn failures(&self) -> usize {
        self.rounding.len() + self.disagreements.len()
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (title, lines) in [
            ("ONNX Runtime differs, unexplained", &self.peers),
            ("rounding", &self.rounding),
            ("disagreements", &self.disagreements),
        ] {
            if !lines.is_empty() {
                writeln!(f, "{title}:\n  {}", lines.join("\n  "))?;
            }
        }
        for (title, counts) in [
            ("ONNX Runtime differs", &self.explained),
            ("not drawn", &self.empty),
            ("not supported yet", &self.unsupported),
        ] {
            if !counts.is_empty() {
                writeln!(f, "{title}:")?;
                counts.iter().try_for_each(|(reason, count)| writeln!(f, "  {count:5}  {reason}"))?;
            }
        }
        let sum = |counts: &BTreeMap<String, usize>| counts.values().sum::<usize>();
        let (unsupported, empty) = (sum(&self.unsupported), sum(&self.empty));
        write!(
            f,
            "{} agree, {} disagree, {} differ by rounding, {unsupported} not supported yet, {empty} not drawn; \
             ONNX Runtime agrees with {} expected results, differs from {}; expected by {:?}; {} pairs covered",
            self.passed,
            self.disagreements.len(),
            self.rounding.len(),
            self.peer_agrees,
            self.peers.len() + sum(&self.explained),
            self.by_oracle,
            self.covered.len()
        )
    }
}
