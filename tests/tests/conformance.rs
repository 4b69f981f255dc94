//! The official tests of the ONNX package, through the C ABI.
//!
//! Every model is compiled here; the objects of a batch are linked into one shared library, which another process
//! (`run_cases`) loads and runs, so that a crash or a hang of generated code is one test's failure.
//! `UPDATE_EXPECT=1` rewrites the list of what is not supported yet.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use onnxc::native;
use onnxc::target::Target;
use onnxc_tests::compile::compile_to;
use onnxc_tests::expected::{self, Outcome};
use onnxc_tests::object::must;
use onnxc_tests::suite::{self, Batch, Case, KINDS, Report};
use rayon::prelude::*;

const BATCH: usize = 64;

/// Longest run of one test.
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn official_tests() {
    run_suite(&Target::host().unwrap());
}

/// Where leaf kernels serve, the suite would hardly see Cranelift's vector code.
#[test]
fn official_tests_without_leaf_kernels() {
    run_suite(&Target::host().unwrap().with_vector_width(128).unwrap());
}

fn run_suite(target: &Target) {
    let cases = suite::cases().unwrap();
    let wanted = std::env::var("ONNXC_CASES").unwrap_or_default();
    let partial = !wanted.is_empty();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.id.contains(&wanted)).collect();
    let folder = tempfile::tempdir().unwrap();
    let outcomes: BTreeMap<String, Outcome> = cases
        .chunks(BATCH)
        .enumerate()
        .par_bridge()
        .flat_map_iter(|(at, batch)| run_batch(batch, target, &folder.path().join(at.to_string())))
        .collect();
    report(&outcomes);
    if partial {
        // A part of the suite, to look at: nothing is held against the list.
        outcomes.iter().for_each(|(id, outcome)| println!("{id}: {outcome:?}"));
        return;
    }
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/expected_failures.txt");
    if let Err(problems) = expected::check(&list, &outcomes) {
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
    let outcomes = run_cases(&Batch { library, cases: (0..3).map(case).collect() }, folder.path());
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

fn run_batch(cases: &[Case], target: &Target, folder: &Path) -> Vec<(String, Outcome)> {
    fs::create_dir(folder).unwrap();
    let mut outcomes = Vec::new();
    let mut linked: Vec<(Case, PathBuf)> = Vec::new();
    for case in cases {
        let object = folder.join(format!("{}.o", case.symbol));
        match compile_to(&case.model(), &case.symbol, target, &object) {
            Ok(()) => linked.push((case.clone(), object)),
            Err(failure) => outcomes.push((
                case.id.clone(),
                match failure.reason() {
                    Some(reason) => Outcome::Unsupported(reason),
                    None => Outcome::Failed(failure.to_string()),
                },
            )),
        }
    }
    let library = folder.join("batch.so");
    let objects: Vec<PathBuf> = linked.iter().map(|(_, object)| object.clone()).collect();
    if objects.is_empty() {
        return outcomes;
    }
    if native::link(&objects, &library).is_err() {
        // Whose fault it is shows one by one.
        linked.retain(|(case, object)| match native::link(std::slice::from_ref(object), &library) {
            Ok(()) => true,
            Err(error) => {
                outcomes.push((case.id.clone(), Outcome::Failed(error.to_string())));
                false
            }
        });
        let objects: Vec<PathBuf> = linked.iter().map(|(_, object)| object.clone()).collect();
        native::link(&objects, &library).unwrap();
    }
    objects.iter().for_each(|object| fs::remove_file(object).unwrap());
    let batch = Batch { library, cases: linked.into_iter().map(|(case, _)| case).collect() };
    outcomes.extend(run_cases(&batch, folder));
    fs::remove_file(&batch.library).unwrap();
    outcomes
}

/// Runs a batch in as many processes as it has crashes, and one.
fn run_cases(batch: &Batch, folder: &Path) -> Vec<(String, Outcome)> {
    let (input, report) = (folder.join("batch.json"), folder.join("report.txt"));
    fs::write(&input, serde_json::to_vec(batch).unwrap()).unwrap();
    let mut outcomes: Vec<(String, Outcome)> = Vec::new();
    while outcomes.len() < batch.cases.len() {
        let first = outcomes.len();
        fs::write(&report, "").unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_run_cases"))
            .args([&input, &report])
            .arg(first.to_string())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let end = wait(child, &report);
        for line in fs::read_to_string(&report).unwrap().lines() {
            if let Report::Done(at, failure) = serde_json::from_str(line).unwrap() {
                assert_eq!(at, outcomes.len());
                let outcome = match failure {
                    None => Outcome::Passed,
                    Some(miss) if miss.rounding => Outcome::Differs(miss.text),
                    Some(miss) => Outcome::Failed(miss.text),
                };
                outcomes.push((batch.cases[at].id.clone(), outcome));
            }
        }
        if outcomes.len() < batch.cases.len() {
            let case = &batch.cases[outcomes.len()];
            outcomes.push((case.id.clone(), Outcome::Failed(end)));
        }
    }
    outcomes
}

/// Waits for the end of a process, as long as it keeps reporting; tells how it ended.
fn wait(mut child: Child, report: &Path) -> String {
    let mut reported = 0;
    let mut since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            return format!("the run ended with {status} {}", text.trim());
        }
        let length = fs::metadata(report).unwrap().len();
        if length != reported {
            (reported, since) = (length, Instant::now());
        }
        if since.elapsed() > TIME_LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            return format!("the run took more than {TIME_LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
