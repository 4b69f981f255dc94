//! The official tests of the ONNX package, through the C ABI.
//!
//! Every model is compiled here; the objects of a batch are linked into one shared library, which another process
//! (`run_cases`) loads and runs, so that a crash or a hang of generated code is one test's failure.
//! `UPDATE_EXPECT=1` rewrites the list of what is not supported yet.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc::native;
use onnxc_machine::target::Target;
use onnxc_tests::compile::{Code, Failure, compile_for};
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::object::must;
use onnxc_tests::suite::{self, Batch, Case, KINDS};
use onnxc_tests::variant::Variant;
use rayon::prelude::*;

const BATCH: usize = 64;

#[test]
fn official_tests() {
    run_suite(Target::host().unwrap());
}

/// Without optimization every operator runs as it is lowered, in kernels of its own.
#[test]
fn official_tests_without_optimization() {
    run_small(Code { target: Target::host().unwrap(), opt_level: 0 });
}

/// Where leaf kernels serve, the suite would hardly see Cranelift's vector code.
#[test]
fn official_tests_without_leaf_kernels() {
    run_suite(Target::host().unwrap().without_leaf_kernels());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn official_tests_in_vectors_of_128_bits() {
    run_small(Target::host().unwrap().with_vector_width(128).unwrap());
}

/// On x86-64 the least processor lacks instructions for rounding, for picking bytes and for fused multiply-adds.
#[cfg(target_arch = "x86_64")]
#[test]
fn official_tests_on_the_least_processor() {
    run_suite(Target::new(Target::host().unwrap().triple, Some("x86-64")).unwrap());
}

/// What a model does around its kernels, in the interpreter of host programs.
#[test]
fn official_tests_in_the_interpreter() {
    interpret(small_cases(), "expected_failures.txt");
}

/// The same where sizes are known only when the model runs.
#[test]
fn official_tests_with_symbolic_dims_in_the_interpreter() {
    let folder = tempfile::tempdir().unwrap();
    interpret(variants(Variant::Symbolic, folder.path()), "expected_failures_symbolic.txt");
}

fn interpret(cases: Vec<Case>, list: &str) {
    let code: Code = Target::host().unwrap().into();
    let outcome = |case: &Case| match compile_for(&case.model(), &case.symbol, &code) {
        Ok(compiled) => case.interpret(&compiled).into(),
        Err(errors) => match Failure::Errors(errors).reason() {
            Some(reason) => Outcome::Unsupported(reason),
            None => Outcome::Failed("it does not compile".to_string()),
        },
    };
    let outcomes: BTreeMap<String, Outcome> =
        cases.par_iter().map(|case| (case.id.clone(), outcome(case))).collect();
    hold_against(&outcomes, list);
}

/// The node tests of the release before, where they are others than today's.
#[test]
fn node_tests_of_1_22() {
    let cases = suite::changed_since_1_22().unwrap();
    run_cases(cases, &Target::host().unwrap().into(), "expected_failures_1.22.txt");
}

/// Every input dim is a symbol of its own.
#[test]
fn official_tests_with_symbolic_dims() {
    run_variant(Variant::Symbolic, "expected_failures_symbolic.txt");
}

/// Constant folding agrees with generated code: inputs are constants of the model.
#[test]
fn official_tests_with_constant_inputs() {
    run_variant(Variant::Constant, "expected_failures_constant.txt");
}

fn run_variant(variant: Variant, list: &str) {
    let folder = tempfile::tempdir().unwrap();
    run_cases(variants(variant, folder.path()), &Target::host().unwrap().into(), list);
}

fn variants(variant: Variant, folder: &Path) -> Vec<Case> {
    small_cases().iter().filter_map(|case| variant.apply(case, folder).unwrap()).collect()
}

/// All but the real architectures, which take as long as the rest: they run where loops of their sizes have other code than those of
/// small tests, and folding one takes the reference evaluator minutes.
fn small_cases() -> Vec<Case> {
    let mut cases = suite::cases().unwrap();
    cases.retain(|case| !case.id.starts_with("light/"));
    cases
}

fn run_small(code: impl Into<Code>) {
    run_cases(small_cases(), &code.into(), "expected_failures.txt");
}

fn run_suite(code: impl Into<Code>) {
    run_cases(suite::cases().unwrap(), &code.into(), "expected_failures.txt");
}

fn run_cases(cases: Vec<Case>, code: &Code, list: &str) {
    let wanted = std::env::var("ONNXC_CASES").unwrap_or_default();
    let partial = !wanted.is_empty();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.id.contains(&wanted)).collect();
    let folder = tempfile::tempdir().unwrap();
    let outcomes: BTreeMap<String, Outcome> = cases
        .chunks(BATCH)
        .enumerate()
        .par_bridge()
        .flat_map_iter(|(at, batch)| run_batch(batch, code, &folder.path().join(at.to_string())))
        .collect();
    report(&outcomes);
    if partial {
        // A part of the suite, to look at: nothing is held against the list.
        outcomes.iter().for_each(|(id, outcome)| println!("{id}: {outcome:?}"));
        return;
    }
    hold_against(&outcomes, list);
}

fn hold_against(outcomes: &BTreeMap<String, Outcome>, list: &str) {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(list);
    if let Err(problems) = expected::check(&list, outcomes) {
        panic!("{problems}");
    }
}

/// A model that crashes is that test's failure, and the tests after it run.
#[test]
fn crashes_are_failures_of_one_test() {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("models.c"), folder.path().join("models.o"));
    let text = "const void *t0_model(void) { return 0; }\n\
                const void *t1_model(void) { *(volatile int *)0 = 1; return 0; }\n\
                const void *t2_model(void) { return 0; }\n";
    fs::write(&source, text).unwrap();
    must(Command::new("cc").args(["-c", "-fPIC", "-o"]).args([&object, &source]));
    let library = folder.path().join("models.so");
    native::link(&[object], &library).unwrap();
    let case = |at: usize| Case { id: at.to_string(), symbol: format!("t{at}"), folder: PathBuf::new() };
    let batch = Batch { library, cases: (0..3).map(case).collect(), guarded: true };
    let outcomes = runner().run(&batch, folder.path());
    let texts: Vec<String> = outcomes.iter().map(|outcome| format!("{outcome:?}")).collect();
    assert_eq!(texts.len(), 3);
    for (text, part) in texts.iter().zip(["no descriptor", "the run ended with signal", "no descriptor"]) {
        assert!(text.contains(part), "{text}");
    }
}

/// Passes by folder, past the capture of the test's output.
fn report(outcomes: &BTreeMap<String, Outcome>) {
    for kind in KINDS {
        let of_kind = || outcomes.iter().filter(|(id, _)| id.split('/').next() == Some(kind));
        let passed = of_kind().filter(|(_, outcome)| matches!(outcome, Outcome::Passed)).count();
        println!("{kind} {passed}/{}", of_kind().count());
    }
}

fn run_batch(cases: &[Case], code: &Code, folder: &Path) -> Vec<(String, Outcome)> {
    fs::create_dir(folder).unwrap();
    let (batch, mut outcomes) = link_batch(cases, code, folder);
    if !batch.cases.is_empty() {
        outcomes.extend(runner().run(&batch, folder));
        fs::remove_file(&batch.library).unwrap();
    }
    outcomes
}

fn runner() -> Runner {
    Runner::native(env!("CARGO_BIN_EXE_run_cases"))
}
