//! Models that ONNX Runtime is the oracle of: what it takes beyond the standard, with the compiler's warnings of it, and the
//! operators of ai.onnx.ml; and the optimizers of ai.onnx.preview.training against the reference.

use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_import::{Import, ImportOptions, NoExternalData, import};
use onnxc_ir::error::Error;
use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::onnx_env;
use onnxc_tests::suite::Case;
use serde::Deserialize;

#[derive(Deserialize)]
struct Entry {
    name: String,
    /// Part of the only warning.
    warning: Option<String>,
}

/// Writes the cases of a group beneath a folder.
fn cases(group: &str, folder: &Path) -> (Vec<Entry>, Vec<Case>) {
    let mut command = Command::new(onnx_env::PEERS.interpreter().unwrap());
    command.arg(onnx_env::script("runtime_cases.py")).arg(folder).arg(group);
    onnx_env::run(command.env("OMP_NUM_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1")).unwrap();
    let entries: Vec<Entry> = serde_json::from_slice(&fs::read(folder.join("index.json")).unwrap()).unwrap();
    let case = |(at, entry): (usize, &Entry)| Case {
        id: entry.name.clone(),
        symbol: format!("t{at}"),
        folder: folder.join(&entry.name),
    };
    let cases = entries.iter().enumerate().map(case).collect();
    (entries, cases)
}

/// Compiles and runs cases; fails with all that differ from the oracle.
fn check(cases: &[Case], code: &Code, folder: &Path) {
    let (batch, mut outcomes) = link_batch(cases, code, folder);
    outcomes.extend(Runner::native(env!("CARGO_BIN_EXE_run_cases")).run(&batch, folder));
    let failed: Vec<String> = outcomes
        .iter()
        .filter(|(_, outcome)| !matches!(outcome, Outcome::Passed))
        .map(|(name, outcome)| format!("{name}: {outcome:?}"))
        .collect();
    assert!(failed.is_empty(), "{} of {} cases:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Optimized for this machine, and as lowered, for every processor.
fn check_both(cases: &[Case], folder: &Path) {
    let target = Target::host().unwrap();
    for (name, code) in [
        ("best", target.clone().into()),
        ("least", Code { target: target.without_leaf_kernels(), opt_level: 0 }),
    ] {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        check(cases, &code, &folder);
    }
}

fn import_of(case: &Case, strict: bool) -> Result<Import, Vec<Error>> {
    let bytes = fs::read(case.model()).unwrap();
    let model = onnxc_proto::decode(bytes.into(), &Default::default()).unwrap();
    import(&model, &ImportOptions { strict, ..Default::default() }, &NoExternalData, onnxc::operators())
}

#[test]
fn what_onnx_runtime_takes_is_taken_with_a_warning_and_refused_where_strict() {
    let folder = tempfile::tempdir().unwrap();
    let (entries, cases) = cases("tolerances", folder.path());
    let mut wrong = Vec::new();
    for (entry, case) in entries.iter().zip(&cases) {
        let text = entry.warning.as_deref().expect("every case has a warning");
        let warnings = import_of(case, false).map(|import| import.warnings).unwrap_or_default();
        let texts: Vec<String> = warnings.iter().map(|warning| warning.problem.to_string()).collect();
        if !texts.iter().any(|found| found.contains(text)) {
            wrong.push(format!("{}: none of the warnings {texts:?} has `{text}`", entry.name));
        }
        let errors = import_of(case, true).err().unwrap_or_default();
        if errors.iter().map(ToString::to_string).ne(texts.iter().cloned()) {
            wrong.push(format!("{}: strict gives {errors:?}, not {texts:?}", entry.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() > 50);
    check_both(&cases, folder.path());
}

#[test]
fn machine_learning_operators_agree_with_onnx_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let (_, cases) = cases("ml", folder.path());
    assert!(cases.len() > 150);
    check_both(&cases, folder.path());
}

#[test]
fn optimizers_agree_with_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let (_, cases) = cases("training", folder.path());
    assert!(cases.len() > 40);
    check_both(&cases, folder.path());
}
