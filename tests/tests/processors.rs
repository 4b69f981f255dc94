//! Objects for no processor in particular, on processors with and without AVX2: the version that each can run is the one
//! that it runs, and all give the right results. An instruction that the emulated processor lacks ends the program.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onnxc_machine::target::Target;
use onnxc_tests::emulator::{self, INCOMPLETE, WITH_AVX2, WITHOUT_AVX2};
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::{Runner, link_batch};
use onnxc_tests::object::{include_dir, must};
use onnxc_tests::suite::{self, Batch, Case, Checks};
use rayon::prelude::*;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// One in `EVERY` tests of the official suite, and all whose name holds one of these.
const EVERY: usize = 24;
const ALSO: [&str; 9] =
    ["lstm", "gru_", "conv_with", "softmax_axis", "qlinear", "round", "floor", "attention_3d", "matmul"];

/// Small real models.
const MODELS: [&str; 7] = [
    "acasxu_1_1",
    "dtln_model_1",
    "kws_m_static_fp32",
    "mnist_pytorch",
    "point_history_lstm",
    "tfl_helloworld_sine",
    "tinybert_tribuo",
];

/// What an object is compiled for when no processor is named.
fn portable() -> Target {
    Target::new(Target::host().unwrap().triple, None).unwrap()
}

/// Local functions of a linked object that are made for a level above the baseline.
fn upgrades(object: &Path) -> usize {
    let symbols = String::from_utf8(must(Command::new("nm").arg(object)).stdout).unwrap();
    symbols.lines().filter(|line| line.ends_with(".x86_64_v3")).count()
}

#[test]
fn the_example_predicts_on_every_processor() {
    let Some(qemu) = emulator::qemu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let object = dir.path().join("digits.o");
    must(Command::new(ONNXC).arg(examples.join("digits/digits.onnx")).arg("-o").arg(&object));
    assert!(upgrades(&object) >= 2, "{}", upgrades(&object));
    let program = dir.path().join("digits");
    let mut cc = Command::new("cc");
    cc.arg("-std=c99").arg("-I").arg(dir.path()).arg("-I").arg(include_dir());
    cc.arg("-I").arg(examples.join("digits")).arg(examples.join("c/main.c")).arg(&object);
    must(cc.arg("-o").arg(&program));
    for cpu in WITHOUT_AVX2.iter().chain(&WITH_AVX2).chain(&INCOMPLETE) {
        let output = must(&mut emulator::command(qemu, cpu, &program));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("predicted 9 (probability "), "{cpu}: {text}");
    }
}

/// An object for AVX2 alone ends with an illegal instruction where there is none: that the others do not is a choice of
/// theirs.
#[test]
fn a_processor_without_avx2_refuses_its_instructions() {
    let Some(qemu) = emulator::qemu() else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = Target::new(Target::host().unwrap().triple, Some("x86-64-v3")).unwrap();
    let cases: Vec<Case> =
        suite::cases().unwrap().into_iter().filter(|case| case.id == "node/test_softmax_axis_1").collect();
    assert_eq!(cases.len(), 1);
    let (batch, failed) = link_batch(&cases, &target.into(), dir.path());
    assert!(failed.is_empty(), "{failed:?}");
    let run = |cpu| runner(qemu, cpu).run(&batch, dir.path()).remove(0).1;
    assert!(matches!(run("Haswell"), Outcome::Passed), "{:?}", run("Haswell"));
    assert!(matches!(run("Nehalem"), Outcome::Failed(text) if text.contains("signal")));
}

#[test]
fn official_tests_on_every_processor() {
    let Some(qemu) = emulator::qemu() else { return };
    let cases: Vec<Case> = suite::cases()
        .unwrap()
        .into_iter()
        .enumerate()
        .filter(|(at, case)| {
            at % EVERY == 0 || case.id.starts_with("node/") && ALSO.iter().any(|part| case.id.contains(part))
        })
        .map(|(_, case)| case)
        .collect();
    assert!(cases.len() > 150, "{}", cases.len());
    let dir = tempfile::tempdir().unwrap();
    let batches: Vec<&[Case]> = cases.chunks(32).collect();
    let passed: usize = batches
        .par_iter()
        .enumerate()
        .map(|(at, cases)| run_everywhere(qemu, cases, &dir.path().join(at.to_string())))
        .sum();
    assert!(passed > 300, "{passed}");
}

/// Code for a named processor runs on it: what Cranelift and the leaf kernels emit is what the name promises.
#[test]
fn code_for_a_processor_runs_on_it() {
    let Some(qemu) = emulator::qemu() else { return };
    let wanted = [
        "softmax_axis_1",
        "test_round",
        "test_floor",
        "test_ceil",
        "conv_with_strides",
        "test_lstm",
        "qlinear",
    ];
    let cases: Vec<Case> = suite::cases()
        .unwrap()
        .into_iter()
        .filter(|case| case.id.starts_with("node/") && wanted.iter().any(|part| case.id.contains(part)))
        .collect();
    assert!(cases.len() > 10, "{}", cases.len());
    let dir = tempfile::tempdir().unwrap();
    let pairs = [
        ("x86-64", "qemu64,-sse3"),
        ("amdfam10", "phenom"),
        ("x86-64-v2", "Nehalem"),
        ("sandybridge", "SandyBridge"),
        ("bdver2", "Opteron_G5"),
        ("haswell", "Haswell"),
        ("znver1", "EPYC"),
    ];
    pairs.par_iter().for_each(|(name, cpu)| {
        let target = Target::new(Target::host().unwrap().triple, Some(name)).unwrap();
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        // The emulator reads 16 bytes for an operand in memory of a scalar fused multiply-add, which has 4.
        let checks = if target.narrow.has_fma { Checks::None } else { Checks::Abi };
        let (batch, failed) = link_batch(&cases, &target.into(), &folder);
        let batch = Batch { checks, ..batch };
        assert!(failed.is_empty(), "{name}: {failed:?}");
        for (id, outcome) in runner(qemu, cpu).run(&batch, &folder) {
            assert!(matches!(outcome, Outcome::Passed), "{id} for {name} on {cpu}: {outcome:?}");
        }
    });
}

/// As the zoo: where the folder with real models exists.
#[test]
fn real_models_on_every_processor() {
    let Some(qemu) = emulator::qemu() else { return };
    let Some(root) = suite::models_folder() else { return };
    let dir = tempfile::tempdir().unwrap();
    let cases: Vec<Case> =
        MODELS.iter().map(|name| suite::zoo_case(&root.join(name), dir.path()).unwrap()).collect();
    let passed = run_everywhere(qemu, &cases, &dir.path().join("batch"));
    assert_eq!(passed, 2 * MODELS.len());
}

fn runner(qemu: &str, cpu: &str) -> Runner {
    let mut command = emulator::prefix(qemu, cpu);
    command.push(env!("CARGO_BIN_EXE_run_cases").to_string());
    Runner { command }
}

/// Compiles cases once and runs them on a processor without AVX2 and on one with it; gives how many runs passed.
fn run_everywhere(qemu: &str, cases: &[Case], folder: &PathBuf) -> usize {
    fs::create_dir(folder).unwrap();
    let (batch, failed) = link_batch(cases, &portable().into(), folder);
    let mut outcomes: BTreeMap<String, Outcome> = failed.into_iter().collect();
    let mut passed = 0;
    if !batch.cases.is_empty() {
        for cpu in ["Nehalem", "max"] {
            for (id, outcome) in runner(qemu, cpu).run(&batch, folder) {
                passed += usize::from(matches!(outcome, Outcome::Passed));
                outcomes.insert(format!("{id} on {cpu}"), outcome);
            }
        }
        assert!(upgrades(&batch.library) > 0, "no kernel is made for more than the baseline");
    }
    for (id, outcome) in outcomes {
        assert!(!matches!(outcome, Outcome::Failed(_)), "{id}: {outcome:?}");
    }
    passed
}
