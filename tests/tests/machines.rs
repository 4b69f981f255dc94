//! Objects for other architectures, run by QEMU: samples of what `--bin conformance` runs in full, and what the linkers and
//! other tools of these architectures say of the objects.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::run_on;
use onnxc_tests::machine::{MACHINES, Machine};
use onnxc_tests::object::{include_dir, must};
use onnxc_tests::suite::{self, Case};
use rayon::prelude::*;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// Every so many tests of the official suite, and all whose name holds one of these.
const EVERY: usize = 48;
const ALSO: [&str; 8] = [
    "lstm_with",
    "conv_with_strides_p",
    "softmax_axis_1",
    "qlinearmatmul_2D_u",
    "round",
    "matmul_4d",
    "cast_FLOAT_to_FLOAT16",
    "col2im_5d",
];

/// Small real models: of floats, of bytes, and of a recurrent net.
const MODELS: [&str; 3] = ["acasxu_1_1", "kws_m_qdq", "point_history_lstm"];

fn machines() -> Vec<&'static Machine> {
    MACHINES.iter().filter(|machine| machine.is_there()).collect()
}

/// Runs cases on a machine; gives how many passed, and fails with those that are wrong.
fn passed(machine: &'static Machine, cases: &[Case]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let outcomes: BTreeMap<String, Outcome> =
        run_on(machine, cases, &machine.target().into(), folder.path()).into_iter().collect();
    assert_eq!(outcomes.len(), cases.len());
    for (id, outcome) in &outcomes {
        assert!(!matches!(outcome, Outcome::Failed(_)), "{id} on {}: {outcome:?}", machine.name);
    }
    outcomes.values().filter(|outcome| matches!(outcome, Outcome::Passed)).count()
}

#[test]
fn official_tests_on_other_machines() {
    let machines = machines();
    if machines.is_empty() {
        return;
    }
    let cases: Vec<Case> = suite::cases()
        .unwrap()
        .into_iter()
        .filter(|case| !case.id.starts_with("light/"))
        .enumerate()
        .filter(|(at, case)| {
            let also = case.id.starts_with("node/") && ALSO.iter().any(|part| case.id.contains(part));
            at % EVERY == 0 || also
        })
        .map(|(_, case)| case)
        .collect();
    assert!(cases.len() > 50, "{}", cases.len());
    machines.par_iter().for_each(|machine| {
        let passed = passed(machine, &cases);
        assert!(passed > cases.len() * 9 / 10, "{passed} of {} on {}", cases.len(), machine.name);
    });
}

/// As the zoo: where the folder with real models exists.
#[test]
fn real_models_on_other_machines() {
    let machines = machines();
    let Some(root) = suite::models_folder().filter(|_| !machines.is_empty()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let cases = MODELS.map(|name| suite::zoo_case(&root.join(name), dir.path()).unwrap());
    machines.par_iter().for_each(|machine| {
        // One by one: all have the same symbols.
        let passed = cases.iter().map(|case| passed(machine, std::slice::from_ref(case))).sum::<usize>();
        assert_eq!(passed, MODELS.len(), "{}", machine.name);
    });
}

/// An object that the command makes links with the program of the example, statically and as part of a position-independent
/// executable, without a word from the linker.
#[test]
fn the_example_predicts_on_other_machines() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for machine in machines() {
        let dir = tempfile::tempdir().unwrap();
        let (object, program) = (dir.path().join("digits.o"), dir.path().join("digits"));
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(examples.join("digits/digits.onnx")).args(["--target", machine.triple]);
        onnxc.args(machine.cpu.map(|cpu| ["--mcpu", cpu]).iter().flatten()).arg("-o").arg(&object);
        must(&mut onnxc);
        for pie in ["-static", "-static-pie"] {
            let mut cc = Command::new(machine.compiler[0]);
            cc.args(&machine.compiler[1..])
                .args([pie, "-std=c99", "-Wl,--fatal-warnings", "-I"])
                .arg(dir.path());
            cc.arg("-I").arg(include_dir()).arg("-I").arg(examples.join("digits"));
            let output = must(cc.arg(examples.join("c/main.c")).arg(&object).arg("-o").arg(&program));
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            let mut run = Command::new(machine.emulator[0]);
            let text = must(run.args(&machine.emulator[1..]).arg(&program)).stdout;
            let text = String::from_utf8(text).unwrap();
            assert!(text.starts_with("predicted 9 (probability "), "{} {pie}: {text}", machine.name);
        }
    }
}
