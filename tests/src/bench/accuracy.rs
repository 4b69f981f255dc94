//! The accuracy table: outputs of onnxc and ONNX Runtime against the model evaluated in f64 by
//! `tests/python/reference.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use onnxc::cli::args::Cli;
use onnxc::cli::files;
use onnxc_ir::graph::Tensor;
use serde::{Deserialize, Serialize};

use super::Result;
use super::algorithm::{self, Algorithm};
use super::engine::{Compiled, Engine, InputFile, RunTask, Starter, compile_plan};
use super::plan::{Case, Plan, plan};
use super::running::{Failure, Settings};
use super::table::{NONE, markdown, ratio};

/// How far outputs are from the reference.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Errors {
    /// The largest error relative to the reference's largest element.
    pub max: f64,
    /// The root of the mean squared error relative to that of the reference.
    pub rms: f64,
}

/// One of the errors.
pub type Measure = fn(&Errors) -> f64;

/// How much more than ONNX Runtime's error is too much, and the error that even a correctly rounded f32 may have.
const FACTOR: f64 = 4.0;
pub const ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// Columns of engines, in this order.
pub const COLUMNS: [&str; 3] = ["onnxc", "onnxc --exact", "ONNX Runtime"];

/// A line of the table: the worst of some outputs.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub what: String,
    /// What onnxc does by default and not with `--exact`.
    pub algorithm: Option<Algorithm>,
    /// By column; what did not run has none.
    pub errors: BTreeMap<&'static str, Errors>,
}

impl Line {
    /// By how much onnxc's error exceeds ONNX Runtime's.
    fn ratio(&self, of: Measure) -> Option<f64> {
        Some(of(self.errors.get(COLUMNS[0])?) / of(self.errors.get(COLUMNS[2])?))
            .filter(|ratio| !ratio.is_nan())
    }

    /// Whether one of onnxc's errors exceeds four times that of ONNX Runtime, or of rounding.
    pub fn is_worse(&self) -> bool {
        let (Some(ours), Some(theirs)) = (self.errors.get(COLUMNS[0]), self.errors.get(COLUMNS[2])) else {
            return false;
        };
        // An error of NaN is worse than any.
        let within = |ours: f64, theirs: f64| ours <= FACTOR * theirs.max(ROUNDING);
        !within(ours.max, theirs.max) || !within(ours.rms, theirs.rms)
    }
}

/// The accuracy of all models.
#[derive(Debug, Default, Serialize)]
pub struct Accuracy {
    pub lines: Vec<Line>,
    /// What has no figures, and why.
    pub failures: Vec<Failure>,
}

/// Errors of `found` against `wanted`, one being as long as the other. Where the reference is not finite the result must
/// be the same.
pub fn errors(found: &[f64], wanted: &[f64]) -> Errors {
    let (mut worst, mut largest, mut squares, mut wanted_squares) = (0f64, 0f64, 0f64, 0f64);
    for (&found, &wanted) in found.iter().zip(wanted) {
        if !wanted.is_finite() {
            if found.to_bits() != wanted.to_bits() && !(found.is_nan() && wanted.is_nan()) {
                worst = f64::INFINITY;
            }
            continue;
        }
        let error = if found.is_finite() { (found - wanted).abs() } else { f64::INFINITY };
        worst = worst.max(error);
        largest = largest.max(wanted.abs());
        squares += error * error;
        wanted_squares += wanted * wanted;
    }
    if worst == f64::INFINITY {
        return Errors { max: worst, rms: worst };
    }
    // Nothing is relative to zeros: they are met, or not at all.
    let relative = |error: f64, size: f64| if error == 0.0 { 0.0 } else { error / size };
    Errors { max: relative(worst, largest), rms: relative(squares, wanted_squares).sqrt() }
}

/// What `reference.py` prints.
#[derive(Deserialize)]
struct Reference {
    names: Vec<String>,
    /// Whether the last output is the operand of the last product.
    extended: bool,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a Path,
    inputs: &'a [InputFile],
    extended: &'a Path,
    outputs: &'a Path,
}

/// Whether this onnxc has the flag `--exact`.
fn has_exact() -> bool {
    let command = Cli::command();
    let bench = command.find_subcommand("bench");
    bench.is_some_and(|bench| bench.get_arguments().any(|argument| argument.get_long() == Some("exact")))
}

/// Holds every model against its reference.
pub fn run(settings: &Settings, models: &[PathBuf], progress: &dyn Fn(&str)) -> Result<Accuracy> {
    let folder = tempfile::tempdir().map_err(|error| format!("temporary folder: {error}"))?;
    let starter = settings.starter(folder.path());
    let mut accuracy = Accuracy::default();
    for (at, model) in models.iter().enumerate() {
        let place = folder.path().join(at.to_string());
        if let Err(message) = measure(&starter, settings, model, &place, &mut accuracy, progress) {
            let what = model.display().to_string();
            accuracy.failures.push(Failure { what, engine: None, message });
        }
        let _ = std::fs::remove_dir_all(&place);
    }
    Ok(accuracy)
}

fn measure(
    starter: &Starter,
    settings: &Settings,
    model: &Path,
    folder: &Path,
    accuracy: &mut Accuracy,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let plan = plan(model, &settings.flags, &settings.sizes, folder)?;
    let algorithm = Some(Algorithm::of(&plan)?);
    for (at, case) in plan.cases.iter().enumerate() {
        let what = match &case.sizes {
            Some(sizes) => format!("{} {sizes}", plan.name),
            None => plan.name.clone(),
        };
        let folder = make(&folder.join(format!("case{at}")))?;
        progress(&format!("{what}: reference"));
        let (reference, wanted, extended) = reference(starter, model, case, &folder)?;
        let mut columns = BTreeMap::new();
        for column in COLUMNS {
            let is_peer = column == COLUMNS[2];
            let skipped = match column {
                "onnxc --exact" => !has_exact(),
                _ => is_peer && !settings.peers.contains(&Engine::OnnxRuntime),
            };
            if skipped {
                continue;
            }
            progress(&format!("{what}: {column}"));
            let outputs = if is_peer {
                run_peer(starter, &extended, &plan, case, &folder)
            } else {
                run_ours(starter, &extended, &plan, case, column, &folder)
            };
            let errors = outputs
                .and_then(|outputs| load(&outputs, wanted.len()))
                .and_then(|found| all_errors(&reference.names, &found, &wanted));
            match errors {
                Ok(errors) => drop(columns.insert(column, errors)),
                Err(message) => {
                    let engine = Some(if is_peer { Engine::OnnxRuntime } else { Engine::Onnxc });
                    accuracy.failures.push(Failure { what: what.clone(), engine, message });
                }
            }
        }
        let own = wanted.len() - usize::from(reference.extended);
        accuracy.lines.push(Line { algorithm, ..line(what.clone(), &columns, 0..own) });
        if reference.extended {
            let last = line(format!("{what}, last product"), &columns, own..wanted.len());
            accuracy.lines.push(Line { algorithm, ..last });
        }
    }
    Ok(())
}

fn make(folder: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder.to_path_buf())
}

/// The worst errors of a range of the outputs.
fn line(what: String, columns: &BTreeMap<&'static str, Vec<Errors>>, range: std::ops::Range<usize>) -> Line {
    let worst = |errors: &[Errors]| {
        let worst = |of: Measure| errors.iter().map(of).fold(0.0, f64::max);
        Errors { max: worst(|errors| errors.max), rms: worst(|errors| errors.rms) }
    };
    let errors = columns.iter().map(|(column, errors)| (*column, worst(&errors[range.clone()])));
    Line { what, algorithm: None, errors: errors.collect() }
}

/// What the reference is, its outputs, and the model with the last product's operand as an output.
fn reference(
    starter: &Starter,
    model: &Path,
    case: &Case,
    folder: &Path,
) -> Result<(Reference, Vec<Tensor>, PathBuf)> {
    let (outputs, extended) = (make(&folder.join("reference"))?, folder.join("extended.onnx"));
    let request = folder.join("reference.json");
    let task = Request { model, inputs: &case.inputs, extended: &extended, outputs: &outputs };
    let text = serde_json::to_vec(&task).map_err(|error| error.to_string())?;
    std::fs::write(&request, text).map_err(|error| format!("{}: {error}", request.display()))?;
    let script = crate::onnx_env::script("reference.py");
    let text = starter
        .finish(starter.python()?.arg(script).arg(&request))
        .map_err(|failure| format!("reference: {failure}"))?;
    let reference: Reference = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let wanted = load(&outputs, reference.names.len())?;
    Ok((reference, wanted, extended))
}

fn load(folder: &Path, count: usize) -> Result<Vec<Tensor>> {
    let read = |at: usize| {
        let path = folder.join(format!("{at}.npy"));
        files::read_tensor(&path, None).map_err(|error| error.to_string())
    };
    (0..count).map(read).collect()
}

fn task(plan: &Plan, case: &Case, outputs: &Path) -> RunTask {
    RunTask {
        engine: String::new(),
        model: PathBuf::new(),
        inputs: case.inputs.clone(),
        output_shapes: vec![],
        dims: plan.pins.clone(),
        threads: 1,
        seconds: 0.0,
        least_runs: 1,
        outputs: Some(outputs.to_path_buf()),
    }
}

/// The folder of the outputs; likewise below.
fn run_ours(
    starter: &Starter,
    extended: &Path,
    plan: &Plan,
    case: &Case,
    column: &str,
    folder: &Path,
) -> Result<PathBuf> {
    let folder = make(&folder.join(column.replace(' ', "")))?;
    let mut flags = plan.flags.clone();
    flags.extend(column.split(' ').skip(1).map(str::to_string));
    let case_alone = Case { sizes: None, inputs: case.inputs.clone() };
    let extended = Plan {
        name: plan.name.clone(),
        model: extended.to_path_buf(),
        flags,
        pins: plan.pins.clone(),
        cases: vec![case_alone],
    };
    let (library, Compiled { mut output_shapes, .. }) = compile_plan(starter, &extended, &folder)?;
    let output_shapes = output_shapes.pop().unwrap_or_default();
    starter.run(Engine::Onnxc, &RunTask { model: library, output_shapes, ..task(plan, case, &folder) })?;
    Ok(folder)
}

fn run_peer(starter: &Starter, extended: &Path, plan: &Plan, case: &Case, folder: &Path) -> Result<PathBuf> {
    let folder = make(&folder.join("peer"))?;
    let engine = Engine::OnnxRuntime.key().to_string();
    let task = RunTask { engine, model: extended.to_path_buf(), ..task(plan, case, &folder) };
    starter.run(Engine::OnnxRuntime, &task)?;
    Ok(folder)
}

fn all_errors(names: &[String], found: &[Tensor], wanted: &[Tensor]) -> Result<Vec<Errors>> {
    let numbers = |tensor: &Tensor| {
        let integers = || Some(tensor.to_i64s()?.into_iter().map(|value| value as f64).collect());
        tensor.to_f64s().or_else(integers)
    };
    let mut all = Vec::new();
    for ((name, found), wanted) in names.iter().zip(found).zip(wanted) {
        if found.shape != wanted.shape {
            return Err(format!("`{name}` has shape {:?}, not {:?}", found.shape, wanted.shape));
        }
        let (Some(found), Some(wanted)) = (numbers(found), numbers(wanted)) else {
            return Err(format!("`{name}` of type {} has no error", found.dtype));
        };
        all.push(errors(&found, &wanted));
    }
    Ok(all)
}

/// The table, and what is worse than it may be.
pub fn table(accuracy: &Accuracy) -> String {
    let shown = |errors: Option<f64>| match errors {
        None => NONE.to_string(),
        Some(0.0) => "0".to_string(),
        Some(error) => format!("{error:.1e}"),
    };
    let used = |column: &&&str| accuracy.lines.iter().any(|line| line.errors.contains_key(**column));
    let columns: Vec<&str> = COLUMNS.iter().filter(used).copied().collect();
    let kinds: [(&str, Measure); 2] = [("max", |errors| errors.max), ("RMS", |errors| errors.rms)];
    let mut head = vec!["model".to_string()];
    for (kind, _) in kinds {
        head.extend(columns.iter().map(|column| format!("{column} {kind}")));
        head.push("ratio".to_string());
    }
    head.push(String::new());
    let rows = accuracy.lines.iter().map(|line| {
        let mut cells = vec![line.what.clone()];
        for (_, of) in kinds {
            cells.extend(columns.iter().map(|column| shown(line.errors.get(column).map(of))));
            cells.push(ratio(line.ratio(of)));
        }
        let marks = [(line.is_worse(), "WORSE"), (algorithm::exceeds(line), "ABOVE")];
        let marks: Vec<&str> = marks.iter().filter(|(holds, _)| *holds).map(|(_, mark)| *mark).collect();
        cells.push(marks.join(" "));
        cells
    });
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    markdown(&head, &rows.collect::<Vec<_>>())
}

/// The table with what it says, as `accuracy.md`.
pub fn document(accuracy: &Accuracy) -> String {
    let failures: Vec<String> = accuracy.failures.iter().map(|failure| format!("- {failure}\n")).collect();
    let failures = match failures.as_slice() {
        [] => String::new(),
        lines => format!("\n## Without figures\n\n{}", lines.concat()),
    };
    let (models, algorithms) = (table(accuracy), algorithm::table(&accuracy.lines));
    format!("# Accuracy\n\n{models}\n{NOTE}\n\n{algorithms}\n{}\n{failures}", algorithm::NOTE)
}

const NOTE: &str = "\
Errors of the outputs against the model evaluated in f64, with the same f32 weights and inputs: max is the largest error
divided by the reference's largest element, RMS the root of the mean squared error divided by that of the reference;
each the worst of all outputs. `last product` is the tensor that the model's last Gemm, MatMul or Conv takes. The ratio is
onnxc's error to that of ONNX Runtime without its graph optimizations. WORSE is what exceeds four times ONNX Runtime's error, or four times 2^-24 (the rounding
of one f32) if that is more.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_whole_output() {
        let found = errors(&[1.0, 2.0, -3.7], &[1.0, 2.3, -4.0]);
        assert!((found.max - 0.3 / 4.0).abs() < 1e-12);
        assert!((found.rms - (0.18f64 / (1.0 + 5.29 + 16.0)).sqrt()).abs() < 1e-12);
        assert_eq!(errors(&[1e-9, -2e-9], &[1e-9, -2e-9]), Errors { max: 0.0, rms: 0.0 });
        assert_eq!(errors(&[], &[]), Errors { max: 0.0, rms: 0.0 });
    }

    #[test]
    fn what_is_no_number_has_to_be_the_same() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        assert_eq!(errors(&[inf, nan, 1.0], &[inf, nan, 1.0]).max, 0.0);
        for (found, wanted) in [(inf, -inf), (nan, inf), (1.0, nan), (inf, 1.0), (nan, 1.0)] {
            assert_eq!(errors(&[found], &[wanted]), Errors { max: inf, rms: inf }, "{found} {wanted}");
        }
        // Not zero, where zero is wanted.
        assert_eq!(errors(&[0.5], &[0.0]), Errors { max: inf, rms: inf });
    }

    fn line(ours: f64, theirs: f64) -> Line {
        let both = |error| Errors { max: error, rms: error };
        Line {
            what: "m".into(),
            algorithm: None,
            errors: BTreeMap::from([("onnxc", both(ours)), ("ONNX Runtime", both(theirs))]),
        }
    }

    #[test]
    fn four_times_the_error_is_flagged_unless_it_is_rounding() {
        assert!(!line(3.9e-6, 1e-6).is_worse());
        assert!(line(4.1e-6, 1e-6).is_worse());
        assert!(!line(2e-7, 0.0).is_worse());
        assert!(line(f64::INFINITY, 1.0).is_worse() && line(f64::NAN, 1.0).is_worse());
        let text = table(&Accuracy { lines: vec![line(4.1e-6, 1e-6), line(1e-7, 2e-7)], failures: vec![] });
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[2].contains("4.1e-6") && lines[2].contains("4.10") && lines[2].contains("WORSE"),
            "{text}"
        );
        assert!(
            lines[3].contains("0.50") && !lines[3].contains("WORSE") && !text.contains("exact"),
            "{text}"
        );
    }
}
