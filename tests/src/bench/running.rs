//! The rounds of a benchmark: all engines in turn, again and again, so that a drift of the machine's speed meets all.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::Result;
use super::engine::{Compiled, Engine, RunTask, Starter, Timing, compile_plan};
use super::machine::Machine;
use super::plan::{Case, Plan, Sizes, plan};
use crate::onnx_env;

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Settings {
    pub threads: Vec<usize>,
    pub rounds: usize,
    /// Of repeating a model, in each process.
    pub seconds: f64,
    pub peers: Vec<Engine>,
    pub sizes: Sizes,
    /// Of onnxc.
    pub flags: Vec<String>,
    pub python: Option<PathBuf>,
    /// Longest time of a process.
    pub timeout: Duration,
}

impl Settings {
    /// What starts the processes of engines, with a folder for what they are asked.
    pub fn starter(&self, folder: &Path) -> Starter {
        Starter { python: self.python.clone(), timeout: self.timeout, folder: folder.to_path_buf() }
    }
}

/// A benchmark's figures.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Versions by engine.
    pub versions: Vec<(String, String)>,
    pub rounds: usize,
    pub seconds: f64,
    pub flags: Vec<String>,
    pub rows: Vec<Row>,
    /// What has no figures, and why.
    pub failures: Vec<Failure>,
}

/// Something without figures.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub what: String,
    /// None: no engine was tried.
    pub engine: Option<Engine>,
    pub message: String,
}

impl Failure {
    /// Whether it is a peer's; onnxc has its figures.
    pub fn is_of_peer(&self) -> bool {
        self.engine.is_some_and(|engine| engine != Engine::Onnxc)
    }
}

impl fmt::Display for Failure {
    /// In one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = self.engine.map_or(String::new(), |engine| format!("{}: ", engine.title()));
        write!(f, "{}: {engine}{}", self.what, self.message.replace('\n', " "))
    }
}

/// A model with a number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub model: String,
    /// Sizes of symbolic dims where there are several rows for them.
    pub sizes: Option<String>,
    pub threads: usize,
    pub compiled: Option<Compiled>,
    pub engines: Vec<Measured>,
}

/// All rounds of an engine.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub engine: Engine,
    pub rounds: Vec<Timing>,
}

impl Measured {
    /// The least time of all rounds.
    pub fn min_ms(&self) -> Option<f64> {
        self.rounds.iter().map(|round| round.min_ms).min_by(f64::total_cmp)
    }

    /// The median of the rounds' medians.
    pub fn median_ms(&self) -> Option<f64> {
        let mut medians: Vec<f64> = self.rounds.iter().map(|round| round.median_ms).collect();
        medians.sort_by(f64::total_cmp);
        medians.get(medians.len() / 2).copied()
    }

    /// The least time to the first result.
    pub fn first_ms(&self) -> Option<f64> {
        self.rounds.iter().map(|round| round.first_ms).min_by(f64::total_cmp)
    }

    /// The greatest peak of memory.
    pub fn bytes(&self) -> Option<u64> {
        self.rounds.iter().filter_map(|round| round.bytes).max()
    }
}

impl Row {
    pub fn engine(&self, engine: Engine) -> Option<&Measured> {
        self.engines.iter().find(|measured| measured.engine == engine)
    }

    pub fn label(&self) -> String {
        match &self.sizes {
            Some(sizes) => format!("{} {sizes}", self.model),
            None => self.model.clone(),
        }
    }

    /// The label with the number of threads.
    fn title(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        format!("{}, {} thread{plural}", self.label(), self.threads)
    }

    /// The better peer's minimum divided by ours: above 1 onnxc is faster.
    pub fn ratio(&self) -> Option<f64> {
        let peers = self.engines.iter().filter(|measured| measured.engine != Engine::Onnxc);
        let best = peers.filter_map(Measured::min_ms).min_by(f64::total_cmp)?;
        Some(best / self.engine(Engine::Onnxc)?.min_ms()?)
    }
}

/// The geometric mean; `None` of nothing.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logarithms / values.len() as f64).exp())
}

/// Measures every model. What cannot be measured has no figures, and a line in `failures`.
pub fn run(settings: &Settings, models: &[PathBuf], progress: &dyn Fn(&str)) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let starter = settings.starter(folder.path());
    let mut report = Report {
        machine: Machine::this(),
        versions: versions(&starter, settings)?,
        rounds: settings.rounds,
        seconds: settings.seconds,
        flags: settings.flags.clone(),
        rows: vec![],
        failures: vec![],
    };
    for (at, model) in models.iter().enumerate() {
        // Weights may be large: only one model's files are there at a time.
        let place = folder.path().join(at.to_string());
        if let Err(message) = measure_model(&starter, settings, model, &place, &mut report, progress) {
            let what = model.display().to_string();
            report.failures.push(Failure { what, engine: None, message });
        }
        let _ = std::fs::remove_dir_all(&place);
    }
    Ok(report)
}

fn versions(starter: &Starter, settings: &Settings) -> Result<Vec<(String, String)>> {
    let mut versions = vec![(Engine::Onnxc.title().to_string(), env!("CARGO_PKG_VERSION").to_string())];
    if settings.peers.is_empty() {
        return Ok(versions);
    }
    let script = onnx_env::script("bench_peer.py");
    let mut command = starter.python()?;
    let text = onnx_env::run(command.arg(script).arg("--versions")).map_err(|error| error.to_string())?;
    let found: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for peer in &settings.peers {
        let version = found.get(peer.key()).and_then(serde_json::Value::as_str);
        versions.push((peer.title().to_string(), version.unwrap_or("?").to_string()));
    }
    Ok(versions)
}

fn measure_model(
    starter: &Starter,
    settings: &Settings,
    model: &Path,
    folder: &Path,
    report: &mut Report,
    progress: &dyn Fn(&str),
) -> Result<()> {
    for (mut row, mut tasks) in prepare(starter, settings, model, folder, &mut report.failures, progress)? {
        for round in 0..settings.rounds {
            progress(&format!("{}: round {} of {}", row.title(), round + 1, settings.rounds));
            take_round(starter, &mut row, &mut tasks, &mut report.failures);
        }
        report.rows.push(row);
    }
    Ok(())
}

/// What the engines of a row are asked.
pub type Tasks = Vec<(Engine, RunTask)>;

/// Compiles a model into `folder`: its rows, without figures, and what is asked for them.
pub fn prepare(
    starter: &Starter,
    settings: &Settings,
    model: &Path,
    folder: &Path,
    failures: &mut Vec<Failure>,
    progress: &dyn Fn(&str),
) -> Result<Vec<(Row, Tasks)>> {
    let plan = plan(model, &settings.flags, &settings.sizes, folder)?;
    progress(&format!("{}: compiling", plan.name));
    let compiled = match compile_plan(starter, &plan, folder) {
        Ok(compiled) => Some(compiled),
        Err(message) => {
            let what = plan.name.clone();
            failures.push(Failure { what, engine: Some(Engine::Onnxc), message });
            None
        }
    };
    let mut prepared = Vec::new();
    for (at, case) in plan.cases.iter().enumerate() {
        for &threads in &settings.threads {
            let tasks = tasks(settings, &plan, case, compiled.as_ref(), at, threads);
            let row = Row {
                model: plan.name.clone(),
                sizes: case.sizes.clone(),
                threads,
                compiled: compiled.as_ref().map(|(_, compiled)| compiled.clone()),
                engines: tasks
                    .iter()
                    .map(|(engine, _)| Measured { engine: *engine, rounds: vec![] })
                    .collect(),
            };
            prepared.push((row, tasks));
        }
    }
    Ok(prepared)
}

/// What each engine is asked for a row.
fn tasks(
    settings: &Settings,
    plan: &Plan,
    case: &Case,
    compiled: Option<&(PathBuf, Compiled)>,
    at: usize,
    threads: usize,
) -> Tasks {
    let task = |engine: Engine| RunTask {
        engine: engine.key().to_string(),
        model: plan.model.clone(),
        inputs: case.inputs.clone(),
        output_shapes: vec![],
        dims: plan.pins.clone(),
        threads,
        seconds: settings.seconds,
        least_runs: 5,
        outputs: None,
    };
    let ours = compiled.map(|(library, compiled)| {
        let output_shapes = compiled.output_shapes[at].clone();
        (Engine::Onnxc, RunTask { model: library.clone(), output_shapes, ..task(Engine::Onnxc) })
    });
    ours.into_iter().chain(settings.peers.iter().map(|&peer| (peer, task(peer)))).collect()
}

/// All engines of a row in turn. One that failed once is not tried again, and has no figures.
pub fn take_round(starter: &Starter, row: &mut Row, tasks: &mut Tasks, failures: &mut Vec<Failure>) {
    tasks.retain(|(engine, task)| match starter.run(*engine, task) {
        Ok(timing) => {
            if let Some(measured) = row.engines.iter_mut().find(|known| known.engine == *engine) {
                measured.rounds.push(timing);
            }
            true
        }
        Err(message) => {
            failures.push(Failure { what: row.title(), engine: Some(*engine), message });
            row.engines.retain(|known| known.engine != *engine);
            false
        }
    });
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row with these minima, in ms, of onnxc, ONNX Runtime and OpenVINO.
    pub fn row(model: &str, threads: usize, minima: [Option<f64>; 3]) -> Row {
        let measured = |(engine, min): (Engine, Option<f64>)| {
            let min_ms = min?;
            let timing = Timing {
                first_ms: 2.0 * min_ms,
                min_ms,
                median_ms: 1.5 * min_ms,
                runs: 5,
                bytes: Some(3 << 20),
            };
            Some(Measured { engine, rounds: vec![timing] })
        };
        let engines = [Engine::Onnxc, Engine::OnnxRuntime, Engine::OpenVino];
        Row {
            model: model.to_string(),
            sizes: None,
            threads,
            compiled: None,
            engines: engines.into_iter().zip(minima).filter_map(measured).collect(),
        }
    }

    #[test]
    fn ratios_are_to_the_better_peer() {
        assert_eq!(row("m", 1, [Some(2.0), Some(3.0), Some(4.0)]).ratio(), Some(1.5));
        assert_eq!(row("m", 1, [Some(2.0), Some(3.0), None]).ratio(), Some(1.5));
        assert_eq!(row("m", 1, [Some(2.0), None, Some(1.0)]).ratio(), Some(0.5));
        assert_eq!(row("m", 1, [Some(2.0), None, None]).ratio(), None);
        assert_eq!(row("m", 1, [None, Some(1.0), Some(1.0)]).ratio(), None);
    }

    #[test]
    fn geometric_means() {
        assert_eq!(geometric_mean(&[]), None);
        assert!((geometric_mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert!((geometric_mean(&[1.0, 2.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
    }

    #[test]
    fn rounds_are_summed_up() {
        let timing =
            |min_ms, bytes| Timing { first_ms: min_ms + 1.0, min_ms, median_ms: min_ms, runs: 5, bytes };
        let rounds = vec![timing(3.0, Some(10)), timing(1.0, None), timing(2.0, Some(20))];
        let measured = Measured { engine: Engine::Onnxc, rounds };
        assert_eq!(measured.min_ms(), Some(1.0));
        assert_eq!(measured.median_ms(), Some(2.0));
        assert_eq!(measured.first_ms(), Some(2.0));
        assert_eq!(measured.bytes(), Some(20));
    }
}
