//! C source of models: the official tests through gcc with sanitizers, a sample of them here; all of them with `ONNXC_EMIT=c`.

use std::collections::BTreeMap;
use std::fs;

use onnxc_machine::target::Target;
use onnxc_tests::compile::Code;
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::source::Compiler;
use onnxc_tests::suite::{self, Case};
use rayon::prelude::*;

/// Tests of one library.
const BATCH: usize = 32;

/// Which of the official tests are taken where not all are: one of these many.
const EVERY: usize = 61;

fn outcomes(cases: &[Case], code: &Code, compiler: &Compiler) -> BTreeMap<String, Outcome> {
    let folder = tempfile::tempdir().unwrap();
    let mut runner = Runner::native(env!("CARGO_BIN_EXE_run_cases"));
    runner.command.splice(0..0, compiler.environment());
    let batches = cases.chunks(BATCH).enumerate().par_bridge();
    let all = batches.flat_map_iter(|(at, cases)| {
        let folder = folder.path().join(at.to_string());
        fs::create_dir(&folder).unwrap();
        let (mut batch, mut outcomes) = link_batch(cases, code, &folder);
        // Sanitizers watch the heap, and take stack for themselves.
        batch.guarded = !compiler.is_sanitized();
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
    let cases = suite::cases().unwrap();
    let all = std::env::var("ONNXC_EMIT").is_ok_and(|value| value == "c");
    let wanted = std::env::var("ONNXC_CASES").unwrap_or_default();
    if !all && wanted.is_empty() {
        let cases: Vec<Case> = cases.into_iter().filter(|case| !case.id.starts_with("light/")).step_by(EVERY).collect();
        for (id, outcome) in outcomes(&cases, &code, &compiler) {
            assert!(!matches!(outcome, Outcome::Failed(_)), "{id}: {outcome:?}");
        }
        return;
    }
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.id.contains(&wanted)).collect();
    let outcomes = outcomes(&cases, &code, &compiler);
    if !wanted.is_empty() {
        outcomes.iter().for_each(|(id, outcome)| println!("{id}: {outcome:?}"));
        return;
    }
    let passed = outcomes.values().filter(|outcome| matches!(outcome, Outcome::Passed)).count();
    println!("{passed}/{}", outcomes.len());
    let list = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/expected_failures.txt");
    if let Err(problems) = expected::check(&list, &outcomes) {
        panic!("{problems}");
    }
}
