//! C source of models: samples of the official tests through gcc with sanitizers, of 32 bits and as WebAssembly. All of them run by
//! `--bin conformance -- --machine c`, `i686` and `wasm32`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_machine::target::Target;
use onnxc_tests::compile::{Code, Failure, catch_panic, compile_for};
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Place, Runner};
use onnxc_tests::object::must;
use onnxc_tests::source::{self, Compiler, Module};
use onnxc_tests::suite::{self, Case};
use rayon::prelude::*;

/// Which of the official tests are taken: one of these many.
const EVERY: usize = 181;

/// The tests that are asked for: a sample, or those whose names have the text of `ONNXC_CASES`.
fn cases() -> Vec<Case> {
    let cases = suite::cases().unwrap();
    match std::env::var("ONNXC_CASES") {
        Ok(wanted) => cases.into_iter().filter(|case| case.id.contains(&wanted)).collect(),
        Err(_) => {
            let cases = cases.into_iter().filter(|case| !case.id.starts_with("light/"));
            // Where a slice ends may be 2^63 - 1, which is more than a size of 32 bits.
            let is_wanted = |(at, case): &(usize, Case)| at % EVERY == 0 || case.id.contains("/test_slice");
            cases.enumerate().filter(is_wanted).map(|(_, case)| case).collect()
        }
    }
}

fn check(outcomes: &BTreeMap<String, Outcome>) {
    let passed = outcomes.values().filter(|outcome| matches!(outcome, Outcome::Passed)).count();
    println!("{passed}/{}", outcomes.len());
    let failed = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
    let texts: Vec<String> = failed.map(|(id, outcome)| format!("{id}: {outcome:?}")).collect();
    assert!(texts.is_empty(), "{}", texts.join("\n"));
    assert!(passed > 0, "none passed");
}

/// Runs the tests in a place, two halves at a time.
fn run(place: &Place, code: &Code) {
    let cases = cases();
    let halves: Vec<&[Case]> = cases.chunks(cases.len().div_ceil(2).max(1)).collect();
    let all = halves.par_iter().flat_map_iter(|cases| {
        let folder = tempfile::tempdir().unwrap();
        place.outcomes(cases, code, folder.path())
    });
    check(&all.collect());
}

/// With undefined behaviour and accesses beyond memory as failures.
#[test]
fn official_tests_as_c() {
    let compiler = Compiler::of_environment();
    if !compiler.is_installed() {
        eprintln!("NOT TESTED: there is no {}", compiler.program);
        return;
    }
    let runner = Runner::sanitized(env!("CARGO_BIN_EXE_run_cases"), &compiler);
    run(&Place::InC(runner, compiler), &source::plain_target().into());
}

/// `examples/train` with the model as C, compiled with sanitizers: it learns as it does with the object, up to rounding.
#[test]
fn training_as_c() {
    const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");
    // What takes long is to optimize a step.
    let mut flags = source::SANITIZED.to_vec();
    flags[0] = "-O0";
    let compiler = Compiler::new("gcc", &flags);
    if !compiler.is_installed() {
        eprintln!("NOT TESTED: there is no gcc");
        return;
    }
    let (folder, train) =
        (tempfile::tempdir().unwrap(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/train"));
    let at = |name: &str| folder.path().join(name);
    let learned = |model: &str, flags: &[&str]| -> Vec<f64> {
        must(Command::new(ONNXC).arg("--training").arg(train.join("digits.onnx")).arg("-o").arg(at(model)));
        let mut linked = at(model);
        if model.ends_with(".c") {
            linked = at("source.o");
            compiler.compile(&at(model), &linked).unwrap();
        }
        let mut command = Command::new("gcc");
        command.args(["-std=c99", "-Wall", "-Wextra", "-Werror"]).args(flags).arg("-I").arg(folder.path());
        command.arg("-I").arg(train.join("../../runtime-support/include")).arg(train.join("main.c"));
        must(command.arg(linked).arg("-o").arg(at("learn")).arg("-lm"));
        let mut run = Command::new(at("learn"));
        // The program keeps its memory until it ends.
        run.env("ASAN_OPTIONS", "detect_leaks=0").arg(train.join("digits.bin")).args(["2", "7"]);
        let output = String::from_utf8(must(run.current_dir(folder.path())).stdout).unwrap();
        let numbers = output.lines().filter(|line| line.contains("accuracy"));
        let numbers: Vec<f64> = numbers
            .flat_map(|line| line.split_whitespace().map(|word| word.trim_end_matches('%').to_string()))
            .filter_map(|word| word.parse().ok())
            .collect();
        assert!(numbers.len() > 6 && output.contains("saved and restored"), "{output}");
        numbers
    };
    let (wanted, found) = (learned("digits.o", &[]), learned("digits.c", &flags));
    assert_eq!(found.len(), wanted.len());
    // Losses, and accuracies in percent.
    for (found, wanted) in found.iter().zip(&wanted) {
        assert!((found - wanted).abs() <= 1e-3 + 0.02 * wanted.abs(), "{found}, must be {wanted}");
    }
}

/// Sizes and pointers of 32 bits, in programs of Linux and of WASI.
#[test]
fn official_tests_as_c_of_32_bits() {
    for machine in source::machines() {
        if !source::makes_programs(machine) {
            eprintln!("NOT TESTED: {} is not installed (Debian: {})", machine.name, machine.packages);
            continue;
        }
        run(&Place::On(machine), &machine.target().for_source().into());
    }
}

/// What static analysis of C says of models: a program with its flags, and those that stand behind the source.
const ANALYZERS: &[(&[&str], &[&str])] = &[
    (&["gcc", "-O1", "-fanalyzer", "-S", "-o", "/dev/null"], &[]),
    (&["clang", "--analyze", "-o", "/dev/null"], &[]),
    // Names that C reserves are those of the header's guard; buffers, sizes, begin and end are of like types.
    (
        &[
            "clang-tidy",
            "--quiet",
            "--warnings-as-errors=*",
            "--checks=-*,bugprone-*,-bugprone-reserved-identifier,-bugprone-easily-swappable-parameters",
        ],
        &["--"],
    ),
];

/// The digits model, and some official tests: with checks that fail, with loops, with bytes.
#[test]
fn static_analysis_is_quiet() {
    const NAMES: &[&str] = &["compress_1", "loop11", "qlinearconv"];
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir().unwrap();
    let of_suite = suite::cases().unwrap().into_iter().filter_map(|case| {
        let name = case.id.strip_prefix("node/test_")?;
        NAMES.contains(&name).then(|| (name.to_string(), case.model()))
    });
    let models: Vec<_> =
        of_suite.chain([("digits".to_string(), project.join("examples/digits/digits.onnx"))]).collect();
    assert_eq!(models.len(), NAMES.len() + 1);
    for (name, model) in &models {
        let compiled = compile_for(model, name, &source::plain_target().into()).unwrap();
        source::write(&compiled, folder.path()).unwrap();
    }
    for (analyzer, behind) in ANALYZERS {
        if Command::new(analyzer[0]).arg("--version").output().is_err() {
            eprintln!("NOT TESTED: there is no {}", analyzer[0]);
            continue;
        }
        models.par_iter().for_each(|(name, _)| {
            let mut command = Command::new(analyzer[0]);
            command.args(&analyzer[1..]).arg(folder.path().join(format!("{name}.c"))).args(*behind);
            command.args(["-std=gnu99", "-I"]).arg(project.join("runtime-support/include"));
            let output = command.output().unwrap();
            let texts =
                [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            let says = texts.concat();
            let is_quiet = !["warning:", "error:"].iter().any(|word| says.contains(word));
            assert!(output.status.success() && is_quiet, "{command:?}: {says}");
        });
    }
}

/// Through `onnxc -o model.wasm`, in Node.
#[test]
fn official_tests_as_webassembly() {
    let is_there = |program| Command::new(program).arg("--version").output().is_ok();
    if !["clang", "wasm-ld", "node"].iter().all(is_there) {
        eprintln!("NOT TESTED: Debian has clang, lld and nodejs");
        return;
    }
    let code: Code = Target::parse("wasm32-unknown-unknown", None).unwrap().for_source().into();
    let cases = cases();
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
    check(&all.collect());
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
