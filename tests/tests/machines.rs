//! Objects for other architectures, run by QEMU: samples of what `--bin conformance` runs in full, and what the linkers and
//! other tools of these architectures say of the objects.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use onnxc_ir::graph::{DType, Tensor};
use onnxc_machine::target::Target;
use onnxc_proto::build;
use onnxc_tests::compile::compile_to;
use onnxc_tests::expected::Outcome;
use onnxc_tests::harness::run_on;
use onnxc_tests::machine::{MACHINES, Machine};
use onnxc_tests::object::{include_dir, must};
use onnxc_tests::remote;
use onnxc_tests::suite::{self, Case};
use prost::Message;
use rayon::prelude::*;

const ONNXC: &str = env!("CARGO_BIN_EXE_onnxc_driver");

/// One in `EVERY` tests of the official suite, and all whose name holds one of these.
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

/// A complex number of two f64 is one element, also where there are no vectors of 16 bytes.
#[test]
fn complex_numbers_are_moved_and_summed_on_other_machines() {
    const COMPLEX128: i32 = 15;
    let inputs = vec![
        build::value("c", 9, &["n", "1"]),
        build::value("x", COMPLEX128, &["n", "2"]),
        build::value("y", COMPLEX128, &["n", "2"]),
    ];
    let nodes = vec![
        build::node("Where", &["c", "x", "y"], &["chosen"]),
        build::node("Transpose", &["chosen"], &["z"]),
        build::node("NonZero", &["x"], &["places"]),
    ];
    let outputs = vec![build::value("z", COMPLEX128, &["2", "n"]), build::value("places", 7, &["2", "k"])];
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model.onnx");
    fs::write(&model, build::model(18, build::graph(inputs, nodes, outputs)).encode_to_vec()).unwrap();
    let numbers = |values: [[f64; 2]; 6]| {
        let parts = Tensor::from_slice(&[12], values.as_flattened());
        Tensor::new(DType::C128, vec![3, 2], parts.data)
    };
    let x = numbers([[0.0, 0.0], [1.0, -2.0], [0.0, 3.0], [-0.0, 0.0], [5.0, 6.0], [7.0, -8.0]]);
    let y = numbers([[9.0, 1.5], [9.0, 2.5], [9.0, 3.5], [9.0, 4.5], [9.0, 5.5], [9.0, 6.5]]);
    let chosen = numbers([[0.0, 0.0], [9.0, 3.5], [5.0, 6.0], [1.0, -2.0], [9.0, 4.5], [7.0, -8.0]]);
    let condition = Tensor::new(DType::Bool, vec![3, 1], vec![1u8, 0, 1].into());
    for machine in machines() {
        let object = dir.path().join(format!("{}.o", machine.name));
        compile_to(&model, "m", &machine.target().into(), &object).unwrap_or_else(|why| panic!("{why}"));
        let program = dir.path().join(machine.name);
        let mut program = remote::link(machine, &[("m", &object)], None, &program).unwrap();
        let [_, outputs] = program.describe(0).unwrap();
        let inputs = [&condition, &x, &y].map(|tensor| Some(tensor.clone()));
        let shapes = [Some(vec![2, 3]), None];
        let found = program.run(0, remote::ALL_RUNS, &outputs, &inputs, &shapes).unwrap();
        assert_eq!(found[0].data, chosen.data, "{}", machine.name);
        assert_eq!(found[1], Tensor::from_slice(&[2, 4], &[0i64, 1, 2, 2, 1, 0, 0, 1]), "{}", machine.name);
    }
}

/// A level that only adds to narrow types has the kernels that these serve, and no others: products of bytes the one, roundings to
/// bf16 the other.
#[test]
fn levels_have_the_kernels_that_they_serve() {
    const F64: i32 = 11;
    const U8: i32 = 2;
    const I8: i32 = 3;
    const I32: i32 = 6;
    const BF16: i32 = 16;
    let inputs = vec![
        build::value("a", F64, &["64", "256"]),
        build::value("b", BF16, &["64", "256"]),
        build::value("c", U8, &["64", "256"]),
        build::value("d", I8, &["256", "64"]),
    ];
    let nodes = vec![
        build::node("Softmax", &["a"], &["x"]),
        build::node("Tanh", &["b"], &["y"]),
        build::node("MatMulInteger", &["c", "d"], &["z"]),
    ];
    let outputs = vec![
        build::value("x", F64, &["64", "256"]),
        build::value("y", BF16, &["64", "256"]),
        build::value("z", I32, &["64", "64"]),
    ];
    let dir = tempfile::tempdir().unwrap();
    let (model, object) = (dir.path().join("model.onnx"), dir.path().join("model.o"));
    fs::write(&model, build::model(21, build::graph(inputs, nodes, outputs)).encode_to_vec()).unwrap();
    let target = Target::new("aarch64-unknown-linux-gnu".parse().unwrap(), None).unwrap();
    compile_to(&model, "m", &target.into(), &object).unwrap_or_else(|why| panic!("{why}"));
    let bytes = fs::read(&object).unwrap();
    let names = bytes.split(|byte| *byte == 0).filter_map(|name| str::from_utf8(name).ok());
    let mut upgraded: Vec<&str> = names
        .filter_map(|name| name.split_once(".g")?.1.split_once('_')?.1.into())
        .filter(|name| name.contains('.'))
        .collect();
    upgraded.sort();
    assert_eq!(upgraded, ["MatMulInteger.armv8_2_a_dotprod", "Tanh.armv8_2_a_dotprod_bf16"]);
}

/// An object that the command makes links with the program of the example, statically and as part of a position-independent
/// executable without relocations in its text, without a word from the linker.
#[test]
fn the_example_predicts_on_other_machines() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    for machine in machines() {
        let dir = tempfile::tempdir().unwrap();
        let (object, program) = (dir.path().join("digits.o"), dir.path().join("digits.exe"));
        let mut onnxc = Command::new(ONNXC);
        onnxc.arg(examples.join("digits/digits.onnx")).args(["--target", machine.triple]);
        onnxc.args(machine.cpu.map(|cpu| ["--mcpu", cpu]).iter().flatten()).arg("-o").arg(&object);
        must(&mut onnxc);
        let link = |flags: &[&str]| {
            let mut cc = Command::new(machine.compiler[0]);
            cc.args(flags).args(["-std=c99", "-Wl,--fatal-warnings", "-I"]).arg(dir.path());
            cc.arg("-I").arg(include_dir()).arg("-I").arg(examples.join("digits"));
            let output = must(cc.arg(examples.join("c/main.c")).arg(&object).arg("-o").arg(&program));
            assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        if machine.target().triple.binary_format == target_lexicon::BinaryFormat::Elf {
            link(&["-pie", "-Wl,-z,text"]);
        }
        link(&machine.compiler[1..]);
        let text = must(&mut machine.command(&program)).stdout;
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("predicted 9 (probability "), "{}: {text}", machine.name);
    }
}

/// A float's registers pass its arguments, and instructions may be compressed: what the linker must know of RISC-V.
#[test]
fn objects_for_riscv_have_their_flags() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let dir = tempfile::tempdir().unwrap();
    for triple in ["riscv64gc-unknown-linux-gnu", "riscv64gc-unknown-none-elf"] {
        let object = dir.path().join("digits.o");
        must(
            Command::new(ONNXC)
                .arg(examples.join("digits/digits.onnx"))
                .args(["--target", triple, "-Os", "-o"])
                .arg(&object),
        );
        let elf = fs::read(&object).unwrap();
        // EM_RISCV; EF_RISCV_RVC and EF_RISCV_FLOAT_ABI_DOUBLE.
        assert_eq!((elf[18], elf[48..52].to_vec()), (243, vec![5, 0, 0, 0]), "{triple}");
        if triple.ends_with("none-elf") {
            let names = String::from_utf8(must(Command::new("nm").arg("-u").arg(&object)).stdout).unwrap();
            assert_eq!(names.trim(), "", "what a program without a C library has not");
        }
    }
}
