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
use onnxc_tests::compile::Code;
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Outcomes, Runner, link_batch_with};
use onnxc_tests::object::must;
use onnxc_tests::suite::{self, Batch, Case, Checks, KINDS};
use onnxc_tests::variant::Variant;
use rayon::prelude::*;

const BATCH: usize = 64;

#[test]
fn official_tests() {
    run_suite(Run::all());
}

/// Without optimization every operator runs as it is lowered, in kernels of its own.
#[test]
fn official_tests_without_optimization() {
    run_small(Code { target: Target::host().unwrap(), opt_level: 0 });
}

/// Where leaf kernels serve, the suite would hardly see Cranelift's vector code. Its loops of real sizes run on the least processor.
#[test]
fn official_tests_without_leaf_kernels() {
    run_small(Target::host().unwrap().without_leaf_kernels());
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

/// The node tests of the release before, where they are others than today's.
#[test]
fn node_tests_of_1_22() {
    let cases = suite::changed_since_1_22().unwrap();
    run_cases(cases, &Target::host().unwrap().into(), "expected_failures_1.22.txt");
}

/// Every input dim is a symbol of its own: sizes are known only when the model runs.
#[test]
fn official_tests_with_symbolic_dims() {
    run_variant(Variant::Symbolic, &Run::all(), "expected_failures_symbolic.txt");
}

/// Constant folding agrees with generated code: inputs are constants of the model.
#[test]
fn official_tests_with_constant_inputs() {
    run_variant(Variant::Constant, &Target::host().unwrap().into(), "expected_failures_constant.txt");
}

/// How cases run.
struct Run {
    code: Code,
    /// With all that the C ABI promises, and in the interpreter of host programs, too, but for the real architectures, which it takes
    /// minutes.
    around_kernels: bool,
}

/// Kernels alone differ: what is around them is as in [`Run::all`].
impl<C: Into<Code>> From<C> for Run {
    fn from(code: C) -> Run {
        Run { code: code.into(), around_kernels: false }
    }
}

impl Run {
    /// For this machine, with what a model does around its kernels.
    fn all() -> Run {
        Run { code: Target::host().unwrap().into(), around_kernels: true }
    }
}

fn run_variant(variant: Variant, run: &Run, list: &str) {
    let folder = tempfile::tempdir().unwrap();
    run_cases(variants(variant, folder.path()), run, list);
}

fn variants(variant: Variant, folder: &Path) -> Vec<Case> {
    small_cases().iter().filter_map(|case| variant.apply(case, folder).unwrap()).collect()
}

/// All but the real architectures, which take as long as the rest: they run where loops of their sizes have other code than those of
/// small tests, and folding one takes the reference evaluator minutes.
fn small_cases() -> Vec<Case> {
    let mut cases = suite::cases().unwrap();
    cases.retain(is_small);
    cases
}

fn is_small(case: &Case) -> bool {
    !case.id.starts_with("light/")
}

fn run_small(run: impl Into<Run>) {
    run_cases(small_cases(), &run.into(), "expected_failures.txt");
}

fn run_suite(run: impl Into<Run>) {
    run_cases(suite::cases().unwrap(), &run.into(), "expected_failures.txt");
}

fn run_cases(cases: Vec<Case>, run: &Run, list: &str) {
    let wanted = std::env::var("ONNXC_CASES").unwrap_or_default();
    let partial = !wanted.is_empty();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.id.contains(&wanted)).collect();
    let folder = tempfile::tempdir().unwrap();
    let batches: Vec<[Outcomes; 2]> = cases
        .par_chunks(BATCH)
        .enumerate()
        .map(|(at, batch)| run_batch(batch, run, &folder.path().join(at.to_string())))
        .collect();
    let (mut outcomes, mut interpreted) = (BTreeMap::new(), BTreeMap::new());
    for [run, by_interpreter] in batches {
        outcomes.extend(run);
        interpreted.extend(by_interpreter);
    }
    report(&outcomes);
    if partial {
        // A part of the suite, to look at: nothing is held against the list.
        outcomes.iter().chain(&interpreted).for_each(|(id, outcome)| println!("{id}: {outcome:?}"));
        return;
    }
    hold_against(&outcomes, list);
    if run.around_kernels {
        hold_against(&interpreted, list);
    }
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
    let batch = Batch { library, cases: (0..3).map(case).collect(), checks: Checks::Abi };
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

/// Outcomes of the compiled cases, and of those that the interpreter ran.
fn run_batch(cases: &[Case], run: &Run, folder: &Path) -> [Outcomes; 2] {
    fs::create_dir(folder).unwrap();
    let mut interpreted = Outcomes::new();
    let (batch, mut outcomes) = link_batch_with(cases, &run.code, folder, &mut |case, compiled| {
        if run.around_kernels && is_small(case) {
            interpreted.push((case.id.clone(), case.interpret(compiled).into()));
        }
    });
    // What has no object is not interpreted.
    interpreted.extend(outcomes.iter().cloned());
    let checks = if run.around_kernels { Checks::Abi } else { Checks::Bounds };
    let batch = Batch { checks, ..batch };
    if !batch.cases.is_empty() {
        outcomes.extend(runner().run(&batch, folder));
        fs::remove_file(&batch.library).unwrap();
    }
    [outcomes, interpreted]
}

fn runner() -> Runner {
    Runner::native(env!("CARGO_BIN_EXE_run_cases"))
}
