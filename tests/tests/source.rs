//! C source of models: the official tests through gcc with sanitizers, a sample of them here; all of them with `ONNXC_EMIT=c`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_machine::target::Target;
use onnxc_tests::compile::{Code, Failure, catch_panic, compile_for};
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Runner, run_on};
use onnxc_tests::source::{self, Compiler, MACHINES, Module, link_batch};
use onnxc_tests::suite::{self, Case};
use rayon::prelude::*;

/// Tests of one library.
const BATCH: usize = 32;

/// Which of the official tests are taken where not all are: one of these many.
const EVERY: usize = 181;

/// The tests that are asked for, and whether these are all.
fn cases() -> (Vec<Case>, bool) {
    let cases = suite::cases().unwrap();
    let all = std::env::var("ONNXC_EMIT").is_ok_and(|value| value == "c");
    let wanted = std::env::var("ONNXC_CASES").unwrap_or_default();
    if !all && wanted.is_empty() {
        let cases = cases.into_iter().filter(|case| !case.id.starts_with("light/"));
        return (cases.step_by(EVERY).collect(), false);
    }
    let is_all = wanted.is_empty();
    (cases.into_iter().filter(|case| case.id.contains(&wanted)).collect(), is_all)
}

/// Holds all outcomes against the list of objects, and those of a part against each other kind of failure.
fn check(outcomes: &BTreeMap<String, Outcome>, is_all: bool) {
    let passed = outcomes.values().filter(|outcome| matches!(outcome, Outcome::Passed)).count();
    println!("{passed}/{}", outcomes.len());
    if is_all {
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/expected_failures.txt");
        if let Err(problems) = expected::check(&list, outcomes) {
            panic!("{problems}");
        }
        return;
    }
    let failed = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let texts: Vec<String> = failed.map(|(id, outcome)| format!("{id}: {outcome:?}")).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
}

fn outcomes(cases: &[Case], code: &Code, compiler: &Compiler) -> BTreeMap<String, Outcome> {
    let folder = tempfile::tempdir().unwrap();
    let mut runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    runner.command.splice(0..0, compiler.environment());
    let batches = cases.chunks(BATCH).enumerate().par_bridge();
    let all = batches.flat_map_iter(|(at, cases)| {
        let folder = folder.path().join(at.to_string());
        fs::create_dir(&folder).unwrap();
        let (batch, mut outcomes) = link_batch(cases, code, compiler, &folder);
        if !batch.cases.is_empty() {
            outcomes.extend(runner.run(&batch, &folder));
        }
        fs::remove_dir_all(&folder).unwrap();
        outcomes
    });
    all.collect()
}

/// With undefined behaviour and accesses beyond memory as failures. `ONNXC_EMIT=c` runs all, `ONNXC_CASES` those whose names have a text.
#[test]
fn official_tests_as_c() {
    let compiler = Compiler::of_environment();
    if !compiler.is_installed() {
        eprintln!("NOT TESTED: there is no {}", compiler.program);
        return;
    }
    let code: Code = Target::host().unwrap().for_source().into();
    let (cases, is_all) = cases();
    check(&outcomes(&cases, &code, &compiler), is_all);
}

/// Sizes and pointers of 32 bits.
#[test]
fn official_tests_as_c_of_32_bits() {
    let machine = &MACHINES[0];
    let probe = tempfile::tempdir().unwrap();
    let (source, program) = (probe.path().join("probe.c"), probe.path().join("probe"));
    fs::write(&source, "#include <stdint.h>\nint main(void) { return (int)sizeof(void *) - 4; }\n").unwrap();
    let mut compiler = Command::new(machine.compiler[0]);
    compiler.args(&machine.compiler[1..]).arg(&source).arg("-o").arg(&program);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        eprintln!(
            "NOT TESTED: {} is not installed (Debian: {})",
            machine.compiler.join(" "),
            machine.packages
        );
        return;
    }
    let code: Code = machine.target().for_source().into();
    let (cases, is_all) = cases();
    let folder = tempfile::tempdir().unwrap();
    let batches = cases.chunks(BATCH).enumerate().par_bridge();
    let all: BTreeMap<String, Outcome> = batches
        .flat_map_iter(|(at, cases)| {
            let folder = folder.path().join(at.to_string());
            fs::create_dir(&folder).unwrap();
            let outcomes = run_on(machine, cases, &code, &folder);
            fs::remove_dir_all(&folder).unwrap();
            outcomes
        })
        // Strings and images are not for these machines.
        .filter(|(_, outcome)| !matches!(outcome, Outcome::Failed(text) if text.contains("needs pointers of 64 bits")))
        .collect();
    // What the list has is not for these machines.
    let _ = is_all;
    check(&all, false);
}

/// Through `onnxc -o model.wasm`, in Node. `ONNXC_EMIT=c` runs all.
#[test]
fn official_tests_as_webassembly() {
    let is_there = |program| Command::new(program).arg("--version").output().is_ok();
    if !["clang", "wasm-ld", "node"].iter().all(is_there) {
        eprintln!("NOT TESTED: Debian has clang, lld and nodejs");
        return;
    }
    let code: Code = Target::parse("wasm32-unknown-unknown", None).unwrap().for_source().into();
    let cases = cases().0;
    let outcome = |case: &Case| {
        let compiled = match catch_panic(|| compile_for(&case.model(), "model", &code)) {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(errors)) => {
                let failure = Failure::Errors(errors);
                let text = failure.to_string();
                return Some(failure.reason().map_or(Outcome::Failed(text), Outcome::Unsupported));
            }
            Err(text) => return Some(Outcome::Failed(text)),
        };
        let folder = tempfile::tempdir().unwrap();
        let onnxc = env!("CARGO_BIN_EXE_onnxc_driver");
        match Module::new(onnxc, &case.model(), &compiled, folder.path()) {
            // Strings and images are not for modules, and are refused.
            Err(text) if text.contains("needs pointers of 64 bits") => None,
            Err(text) => Some(Outcome::Failed(text)),
            Ok(module) => Some(case.run_by(&compiled, |inputs| Ok(module.run(inputs)?)).into()),
        }
    };
    let all = cases.par_iter().filter_map(|case| Some((case.id.clone(), outcome(case)?)));
    check(&all.collect(), false);
}

/// What calls the digits model on its sample.
const DIGITS: &str = r#"
#include "digits.h"
#include "sample.h"
static float probabilities[10];
static _Alignas(64) unsigned char workspace[DIGITS_WORKSPACE_BYTES];
int32_t status(void) { return digits_predict(sample_image, probabilities, workspace); }
float probability(int digit) { return probabilities[digit]; }
int label(void) { return sample_label; }
"#;

/// Prints the probability of the sample's label.
const SCRIPT: &str = r#"
const fs = require("fs");
WebAssembly.instantiate(fs.readFileSync(process.argv[2]), {}).then(({ instance: { exports } }) => {
    exports._initialize();
    const status = exports.status();
    console.log(status === 0 ? exports.probability(exports.label()) : `status ${status}`);
});
"#;

/// Whether there is what compiles and runs modules.
fn has_webassembly(folder: &Path) -> bool {
    let probe = folder.join("probe.c");
    fs::write(&probe, "#include <string.h>\nint probe;\n").unwrap();
    let mut clang = clang();
    clang.arg(&probe).arg("-o").arg(folder.join("probe.wasm"));
    let mut node = Command::new("node");
    node.arg("--version");
    [clang, node].iter_mut().all(|command| command.output().is_ok_and(|output| output.status.success()))
}

fn clang() -> Command {
    let mut clang = Command::new("clang");
    clang.args(["--target=wasm32-wasi", "-mexec-model=reactor", "-O1", "-Werror"]);
    clang
}

/// With vectors of 128 bits and without.
#[test]
fn webassembly_predicts_the_digit() {
    let folder = tempfile::tempdir().unwrap();
    if !has_webassembly(folder.path()) {
        eprintln!("NOT TESTED: Debian has clang, lld, wasi-libc, libclang-rt-dev-wasm32 and nodejs");
        return;
    }
    let at = |name: &str| folder.path().join(name);
    fs::write(at("main.c"), DIGITS).unwrap();
    fs::write(at("main.js"), SCRIPT).unwrap();
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (examples, include) = (project.join("examples/digits"), project.join("runtime-support/include"));
    for (cpu, flags) in [("simd128", &["-msimd128"][..]), ("mvp", &[])] {
        let target = Target::parse("wasm32-wasip1", Some(cpu)).unwrap();
        let model = compile_for(&examples.join("digits.onnx"), "digits", &target.into()).unwrap();
        source::write(&model, folder.path()).unwrap();
        let mut clang = clang();
        clang.args(flags).args(["status", "probability", "label"].map(|name| format!("-Wl,--export={name}")));
        for include in [include.as_path(), &examples, folder.path()] {
            clang.arg("-I").arg(include);
        }
        let output =
            clang.args([at("main.c"), at("digits.c")]).arg("-o").arg(at("digits.wasm")).output().unwrap();
        assert!(output.status.success(), "{cpu}: {}", String::from_utf8_lossy(&output.stderr));
        let output = Command::new("node").arg(at("main.js")).arg(at("digits.wasm")).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let wrong = || format!("{cpu}: {printed} {}", String::from_utf8_lossy(&output.stderr));
        let probability: f64 = printed.parse().unwrap_or_else(|_| panic!("{}", wrong()));
        assert!((probability - 0.9995).abs() < 1e-3, "{}", wrong());
    }
}
