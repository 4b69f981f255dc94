//! Random numbers through the C ABI: the same bits for every number of threads, in the interpreter of host programs and in the
//! reference evaluator; other bits for other seeds, nodes and elements.

use std::collections::HashSet;
use std::path::Path;
use std::time::Instant;

use onnxc::cli::session::Loaded;
use onnxc::native::{self, Call};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_machine::target::Target;
use onnxc_object::host::abi::{options, status};
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{self, int, ints, node, untyped, value};
use onnxc_proto::{AttributeProto, NodeProto};
use onnxc_runtime_support::Pool;
use onnxc_tests::compile::{Code, compile_for};
use onnxc_tests::interpreted::Interpreted;
use prost::Message;
use tempfile::TempDir;

/// Elements of each tensor: enough for several threads.
const COUNT: i64 = 200_000;

fn drawn(name: &str, output: &str, attributes: Vec<AttributeProto>) -> NodeProto {
    NodeProto { attribute: attributes, ..node(name, &[], &[output]) }
}

/// Iterations of the loops of the model, and elements that each draws.
const ITERATIONS: i64 = 3;
const EACH: i64 = 1000;

/// A Loop that gathers in `parts` what its body draws, and what a Loop inside it does.
fn nested_loops(parts: [&str; 2]) -> NodeProto {
    let condition = || node("Identity", &["k"], &["go"]);
    let body = |nodes: Vec<NodeProto>, outputs: &[&str]| {
        let inputs = vec![
            value("i", DType::I64.to_onnx(), &[] as &[&str]),
            value("k", DType::Bool.to_onnx(), &[] as &[&str]),
        ];
        let outputs = ["go"].iter().chain(outputs).map(|name| untyped(name)).collect();
        build::graph(inputs, [vec![condition()], nodes].concat(), outputs)
    };
    let shape = || vec![ints("shape", &[EACH])];
    let inner = body(vec![drawn("RandomUniform", "p", shape())], &["p"]);
    let inner = node("Loop", &["count", ""], &["ps"]).with(build::subgraph("body", inner));
    let outer = body(vec![drawn("RandomUniform", "q", shape()), inner], &["q", "ps"]);
    node("Loop", &["count", ""], &parts).with(build::subgraph("body", outer))
}

/// A Scan whose body draws by the attribute `seed`.
fn seeded_scan(parts: &str) -> NodeProto {
    let seed = AttributeProto { f: Some(7.0), ..build::attribute("seed", AttributeType::Float) };
    let drawn = drawn("RandomUniform", "t", vec![ints("shape", &[EACH]), seed]);
    let element = value("e", DType::I64.to_onnx(), &[] as &[&str]);
    let body = build::graph(vec![element], vec![drawn], vec![untyped("t")]);
    node("Scan", &["elements"], &[parts]).with(int("num_scan_inputs", 1)).with(build::subgraph("body", body))
}

/// A model of two uniform tensors, one of each other type, those that loops draw, and normal ones.
fn model() -> (TempDir, std::path::PathBuf) {
    let shape = || ints("shape", &[COUNT]);
    let of = |name: &str, output: &str, dtype: DType| {
        drawn(name, output, vec![shape(), int("dtype", dtype.to_onnx().into())])
    };
    let nodes = vec![
        of("RandomUniform", "a", DType::F32),
        of("RandomUniform", "b", DType::F32),
        of("RandomUniform", "c", DType::F64),
        of("RandomUniform", "d", DType::F16),
        of("RandomUniform", "e", DType::BF16),
        nested_loops(["h", "i"]),
        seeded_scan("j"),
        of("RandomNormal", "f", DType::F32),
        of("RandomNormal", "g", DType::F64),
    ];
    let outputs = ["a", "b", "c", "d", "e", "h", "i", "j", "f", "g"].map(untyped).into();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let mut graph = build::graph(vec![], nodes, outputs);
    let elements = build::i64_tensor("elements", &[ITERATIONS], (0..ITERATIONS).collect());
    graph.initializer = vec![build::i64_tensor("count", &[], vec![ITERATIONS]), elements];
    let model = build::model(22, graph);
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    (folder, path)
}

fn codes() -> [Code; 3] {
    let host = Target::host().unwrap();
    let plain = host.clone().without_leaf_kernels();
    let least = if cfg!(target_arch = "x86_64") {
        Target::new(host.triple.clone(), Some("x86-64")).unwrap()
    } else {
        plain.clone()
    };
    [host.into(), Code { target: plain, opt_level: 0 }, least.into()]
}

fn run(path: &Path, code: &Code, seed: u64, pool: Option<&Pool>) -> Vec<Tensor> {
    let loaded = Loaded::new(compile_for(path, "model", code).unwrap(), Instant::now()).unwrap();
    let shapes = native::output_shapes(&loaded.graph, &[]).unwrap();
    loaded.model().unwrap().run_with(&[], &shapes, &Call { seed, pool, ..Call::default() }).unwrap()
}

/// Bits that are computed without rounding: those of uniform numbers.
const EXACT: std::ops::Range<usize> = 0..8;
/// What loops draw, and the one of these whose node has a seed of its own.
const LOOPS: std::ops::Range<usize> = 5..8;
const SEEDED: usize = 7;

/// Holds normal numbers to a few units in the last place, and all others to their bits.
fn same(found: &[Tensor], wanted: &[Tensor]) {
    assert!(found[EXACT] == wanted[EXACT]);
    for (found, wanted) in found.iter().zip(wanted).skip(EXACT.end) {
        let tolerance = if wanted.dtype == DType::F64 { 1e-13 } else { 4e-6 };
        let (found, wanted) = (found.to_f64s().unwrap(), wanted.to_f64s().unwrap());
        let far = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < tolerance, "{far}");
    }
}

#[test]
fn bits_are_those_of_the_seed_whatever_runs_the_model() {
    let (_folder, path) = model();
    let [best, ..] = codes();
    let compiled = compile_for(&path, "model", &best).unwrap();
    let seed = 0x1234_5678_9abc;
    let wanted = interp::run_seeded(&compiled.graph, &[], seed, &mut |_, _| {}).unwrap();
    for code in codes() {
        let alone = run(&path, &code, seed, None);
        same(&alone, &wanted);
        for threads in [2, 3, 7] {
            let pool = Pool::new(threads).unwrap();
            assert!(run(&path, &code, seed, Some(&pool)) == alone, "{threads} threads");
        }
    }
}

#[test]
fn seeds_nodes_and_elements_draw_other_numbers() {
    let (_folder, path) = model();
    let [best, ..] = codes();
    let (one, two) = (run(&path, &best, 1, None), run(&path, &best, 2, None));
    for (at, (one, two)) in one.iter().zip(&two).enumerate() {
        assert_eq!(one != two, at != SEEDED, "output {at} and the seed of the run");
    }
    let bytes = EACH as usize * DType::F32.size();
    let iterations = one[LOOPS].iter().flat_map(|tensor| tensor.data.chunks(bytes));
    let distinct: HashSet<&[u8]> = iterations.clone().collect();
    assert_eq!((iterations.count(), distinct.len()), (3 + 9 + 3, 3 + 9 + 3), "two iterations draw the same");
    assert!(one[0] != one[1], "two nodes draw the same");
    let distinct: HashSet<u64> = one[2].to_f64s().unwrap().into_iter().map(f64::to_bits).collect();
    assert!(distinct.len() > COUNT as usize - 2, "elements repeat");
    assert!(run(&path, &best, 0, None) == run(&path, &best, 1 << 63, None), "the topmost bit counts");
}

/// In the interpreter of host programs, which shows what the entry point reads.
#[test]
fn options_that_end_before_the_seed_have_seed_0() {
    let shape = ints("shape", &[8]);
    let nodes = vec![drawn("RandomUniform", "y", vec![shape])];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.onnx");
    let model = build::model(22, build::graph(vec![], nodes, vec![untyped("y")]));
    std::fs::write(&path, model.encode_to_vec()).unwrap();
    let [best, ..] = codes();
    let compiled = compile_for(&path, "model", &best).unwrap();
    let interpreted = Interpreted::new(&compiled).unwrap();
    let shapes = native::output_shapes(&compiled.graph, &[]).unwrap();
    let with = |size: i64, seed: i64| {
        let mut arguments = interpreted.model.arguments(&[], &shapes).unwrap();
        let fields = arguments.options.as_mut().unwrap();
        fields.extend([(options::STRUCT_SIZE, size), (options::SEED, seed)]);
        interpreted.call(arguments).unwrap()
    };
    let reference = |seed: u64| interp::run_seeded(&compiled.graph, &[], seed, &mut |_, _| {}).unwrap();
    assert!(with(options::SIZE, 77).outputs == reference(77));
    assert!(with(options::SIZE, -1).outputs == reference(u64::MAX));
    assert!(with(options::SIZE + 8, 77).outputs == reference(77));
    assert!(with(options::SECOND_SIZE, 77).outputs == reference(77));
    assert!(with(options::FIRST_SIZE, 77).outputs == reference(0));
    for size in
        [options::FIRST_SIZE - 1, options::FIRST_SIZE + 1, options::SECOND_SIZE + 1, options::SIZE - 1]
    {
        assert_eq!(with(size, 77).status, status::BAD_OPTIONS, "{size} bytes");
    }
}
