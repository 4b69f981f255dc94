//! Whole models whose weights are computed from constants: no kernel is left that computes them.

use onnxc_proto::build::{self, int};
use onnxc_proto::{GraphProto, NodeProto, TensorProto};

use super::*;
use crate::run_all;
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{DType, Dim, Tensor};
use onnxc_ir::scalar::BinaryFn;
use onnxc_ir::verify::verify;
use onnxc_schedule as schedule;
use onnxc_schedule::{Program, Step, schedule};

/// `y = Op(a, b)` as a node.
fn node(text: &str) -> NodeProto {
    let (outputs, call) = text.split_once(" = ").unwrap();
    let (op, inputs) = call.strip_suffix(')').unwrap().split_once('(').unwrap();
    let inputs: Vec<&str> = inputs.split(", ").filter(|name| *name != "-").collect();
    build::node(op, &inputs, &outputs.split(' ').collect::<Vec<_>>())
}

/// A tensor of a type by the bytes of its elements as ONNX stores them.
fn raw(name: &str, dtype: DType, dims: &[i64], bytes: impl IntoIterator<Item = u8>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(dtype.to_onnx()),
        dims: dims.to_vec(),
        raw_data: Some(bytes.into_iter().collect::<Vec<u8>>().into()),
        ..Default::default()
    }
}

/// Small steps, so that results differ from element to element.
fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    build::f32_tensor(name, dims, (0..count).map(|at| (at * 7 % 23) as f32 * 0.125 - 1.0).collect())
}

fn halves(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    let values = (0..count).map(|at| half::f16::from_f32((at * 5 % 17) as f32 * 0.25 - 1.0));
    raw(name, DType::F16, dims, values.flat_map(half::f16::to_le_bytes))
}

fn bytes_of(name: &str, dtype: DType, dims: &[i64]) -> TensorProto {
    let bits: i64 = dims.iter().product::<i64>() * i64::from(dtype.bits());
    raw(name, dtype, dims, (0..bits / 8).map(|at| (at * 37 % 251) as u8))
}

fn bools(name: &str, dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    raw(name, DType::Bool, dims, (0..count).map(|at| u8::from(at % 3 == 0)))
}

/// `y = x w` with `w: [64, columns]` made by `nodes` of `tensors`.
fn product(nodes: Vec<NodeProto>, tensors: Vec<TensorProto>) -> GraphProto {
    let nodes = nodes.into_iter().chain([node("y = MatMul(x, w)")]).collect();
    let mut graph = build::graph(vec![build::f32_value("x", &["3", "64"])], nodes, vec![build::untyped("y")]);
    graph.initializer = tensors;
    graph
}

/// The model after all passes, its program, and how many kernels of it read constants only; results are the same.
fn compiled(graph: GraphProto) -> (Graph, Program, usize) {
    compiled_within(graph, 1e-5)
}

fn compiled_within(graph: GraphProto, tolerance: f64) -> (Graph, Program, usize) {
    let model = build::model(25, graph);
    let before = import(&model, &ImportOptions::default(), &NoExternalData, &onnxc_ops::Table::standard())
        .unwrap()
        .graph;
    let mut after = before.clone();
    run_all(&mut after, &Options::default(), &mut |_, _, _| {}).unwrap();
    assert_eq!(verify(&after), Ok(()));
    let values: Vec<f32> = (0..3 * 64).map(|at| (at % 13) as f32 * 0.5 - 3.0).collect();
    let x = Tensor::from_slice(&[3, 64], &values);
    let [wanted, found] =
        [&before, &after].map(|graph| interp::run(graph, std::slice::from_ref(&x)).unwrap());
    for (wanted, found) in wanted[0].to_f64s().unwrap().into_iter().zip(found[0].to_f64s().unwrap()) {
        assert!((wanted - found).abs() <= tolerance * wanted.abs().max(1.0), "{found} is not {wanted}");
    }
    let program = schedule(&after, schedule::Options::default()).unwrap();
    let count = constant_groups(&after, &program);
    (after, program, count)
}

fn constant_groups(graph: &Graph, program: &Program) -> usize {
    let bodies = program.steps.iter().flat_map(|step| match step {
        Step::Control { node, bodies, .. } => graph.nodes[*node].op.bodies().iter().zip(bodies).collect(),
        _ => vec![],
    });
    program.constant_groups(graph).len()
        + bodies.map(|(graph, program)| constant_groups(graph, program)).sum::<usize>()
}

/// Bits of the codes of weights that the product reads.
fn bits_of_weights(graph: &Graph) -> Option<usize> {
    graph.order.iter().find_map(|&node| match graph.nodes[node].op {
        Op::Dequantize { bits, .. } => Some(bits),
        _ => None,
    })
}

/// A table of biases is picked from when compiling, also where indices are computed; an index beyond the table is left to the run.
#[test]
fn biases_are_picked_from_tables() {
    // The result has more than twice the elements of the table: the builder does not fold it.
    let of = |nodes: Vec<NodeProto>, most: i64| {
        let rows = build::i64_tensor("rows", &[64, 1], (0..64).map(|at| (at * 5 + 3) % most).collect());
        product(nodes, vec![floats("table", &[20, 128]), rows])
    };
    let picks = |graph: &Graph| {
        graph.order.iter().filter(|&&id| matches!(graph.nodes[id].op, Op::GatherNd { .. })).count()
    };
    let picked = || vec![node("w = GatherND(table, rows)")];
    let (graph, _, constant) = compiled(of(picked(), 20));
    assert_eq!((picks(&graph), constant), (0, 0));
    // Of negative numbers -20 is the first.
    let (graph, _, constant) = compiled(of(vec![node("n = Neg(rows)"), node("w = GatherND(table, n)")], 21));
    assert_eq!((picks(&graph), constant), (0, 0));
    let mut beyond = import(
        &build::model(25, of(picked(), 21)),
        &ImportOptions::default(),
        &NoExternalData,
        &onnxc_ops::Table::standard(),
    );
    let beyond = &mut beyond.as_mut().unwrap().graph;
    run_all(beyond, &Options::default(), &mut |_, _, _| {}).unwrap();
    assert_eq!(picks(beyond), 1);
    let x = Tensor::from_slice(&[3, 64], &[0f32; 192]);
    assert!(interp::run(beyond, &[x]).unwrap_err().message.contains("20"));
}

/// Weights keep their few bits when they are scaled in any order and through any views, where parts of the inner axis
/// share the scales; else they become reals.
#[test]
fn weights_keep_their_bits() {
    let blocks =
        |block: i64| node("w = DequantizeLinear(q, s)").with(int("axis", 0)).with(int("block_size", block));
    let q = |dtype, dims: &[i64]| bytes_of("q", dtype, dims);
    let transposed = || {
        let mut turned = node("w = DequantizeLinear(q, s)").with(int("axis", 1)).with(int("block_size", 16));
        turned.output = vec!["t".into()];
        vec![turned, node("w = Transpose(t)")]
    };
    let column = || vec![node("w = DequantizeLinear(q, s)").with(int("axis", 1))];
    for (what, nodes, tensors, bits) in [
        ("blocks", vec![blocks(16)], vec![q(DType::U4, &[64, 128]), floats("s", &[4, 128])], Some(4)),
        ("signed", vec![blocks(8)], vec![q(DType::I4, &[64, 128]), floats("s", &[8, 128])], Some(4)),
        ("two bits", vec![blocks(32)], vec![q(DType::U2, &[64, 128]), floats("s", &[2, 128])], Some(2)),
        ("not whole words", vec![blocks(8)], vec![q(DType::I2, &[64, 128]), floats("s", &[8, 128])], Some(8)),
        ("bytes", vec![blocks(64)], vec![q(DType::I8, &[64, 128]), floats("s", &[1, 128])], Some(8)),
        ("columns", column(), vec![q(DType::I4, &[64, 128]), floats("s", &[128])], Some(4)),
        ("transposed", transposed(), vec![q(DType::I4, &[128, 64]), floats("s", &[128, 4])], Some(4)),
        ("small blocks", vec![blocks(4)], vec![q(DType::U4, &[64, 128]), floats("s", &[16, 128])], None),
        ("a rest", vec![blocks(24)], vec![q(DType::U4, &[64, 128]), floats("s", &[3, 128])], None),
    ] {
        let (graph, _, constant) = compiled(product(nodes, tensors));
        assert_eq!((bits_of_weights(&graph), constant), (bits, 0), "{what}: {graph}");
    }
}

/// Nothing but the product is left to run.
fn folds(what: &str, nodes: Vec<NodeProto>, tensors: Vec<TensorProto>) {
    folds_within(what, nodes, tensors, 1e-5);
}

fn folds_within(what: &str, nodes: Vec<NodeProto>, tensors: Vec<TensorProto>, tolerance: f64) {
    let (graph, program, constant) = compiled_within(product(nodes, tensors), tolerance);
    assert_eq!(constant, 0, "{what}: {}", program.text(&graph));
    assert_eq!(program.groups.len(), 1, "{what}: {}", program.text(&graph));
}

fn dequantize(axis: i64, block: i64) -> NodeProto {
    node("w = DequantizeLinear(q, s, z)").with(int("axis", axis)).with(int("block_size", block))
}

#[test]
fn weights_in_blocks_are_dequantized_by_the_compiler() {
    for dtype in [DType::U4, DType::I4, DType::U8] {
        let q = || bytes_of("q", dtype, &[64, 128]);
        folds(
            "axis 0",
            vec![dequantize(0, 32)],
            vec![q(), floats("s", &[2, 128]), bytes_of("z", dtype, &[2, 128])],
        );
        folds(
            "axis 1",
            vec![dequantize(1, 32)],
            vec![q(), floats("s", &[64, 4]), bytes_of("z", dtype, &[64, 4])],
        );
        let to_f32 = node("w = Cast(h)").with(int("to", 1));
        let mut halved = dequantize(0, 32);
        halved.output = vec!["h".into()];
        // The weights are not rounded to f16.
        folds_within(
            "f16",
            vec![halved, to_f32],
            vec![q(), halves("s", &[2, 128]), bytes_of("z", dtype, &[2, 128])],
            2e-3,
        );
        let mut turned = dequantize(1, 32);
        turned.output = vec!["t".into()];
        folds(
            "transposed",
            vec![turned, node("w = Transpose(t)")],
            vec![bytes_of("q", dtype, &[128, 64]), floats("s", &[128, 2]), bytes_of("z", dtype, &[128, 2])],
        );
    }
}

#[test]
fn weights_by_other_roads_are_computed_by_the_compiler() {
    let w = || floats("a", &[64, 128]);
    let cast = |text: &str, to: i64| node(text).with(int("to", to));
    folds(
        "round trip",
        vec![node("q = QuantizeLinear(a, s)"), node("w = DequantizeLinear(q, s)")],
        vec![w(), build::f32_tensor("s", &[], vec![0.05])],
    );
    folds("cast", vec![cast("w = Cast(a)", 1)], vec![halves("a", &[64, 128])]);
    folds(
        "where",
        vec![node("w = Where(c, a, b)")],
        vec![bools("c", &[1, 128]), w(), build::f32_tensor("b", &[], vec![0.5])],
    );
    folds(
        "joined",
        vec![node("j = Concat(a, b)").with(int("axis", 0)), node("w = Slice(j, from, to)")],
        vec![
            w(),
            floats("b", &[8, 128]),
            build::i64_tensor("from", &[1], vec![8]),
            build::i64_tensor("to", &[1], vec![72]),
        ],
    );
    folds(
        "padded",
        vec![node("p = Pad(a, pads)"), node("w = Gather(p, rows)")],
        vec![
            floats("a", &[60, 128]),
            build::i64_tensor("pads", &[4], vec![2, 0, 2, 0]),
            build::i64_tensor("rows", &[64], (0..64).rev().collect()),
        ],
    );
    folds(
        "scaled",
        vec![node("e = Expand(s, shape)"), node("w = Mul(a, e)")],
        vec![w(), floats("s", &[64, 1]), build::i64_tensor("shape", &[2], vec![64, 128])],
    );
    folds(
        "range",
        vec![node("r = Range(zero, end, one)"), cast("f = Cast(r)", 1), node("w = Reshape(f, shape)")],
        vec![
            build::i64_tensor("zero", &[], vec![0]),
            build::i64_tensor("end", &[], vec![512]),
            build::i64_tensor("one", &[], vec![1]),
            build::i64_tensor("shape", &[2], vec![64, 8]),
        ],
    );
    folds(
        "filled",
        vec![node("f = ConstantOfShape(shape)"), node("w = Add(f, a)")],
        vec![build::i64_tensor("shape", &[2], vec![64, 128]), w()],
    );
}

#[test]
fn control_flow_on_constants_runs_in_the_compiler() {
    let then = build::graph(vec![], vec![node("t = Neg(a)")], vec![build::untyped("t")]);
    let otherwise = build::graph(vec![], vec![node("e = Abs(a)")], vec![build::untyped("e")]);
    let choice = node("w = If(c)")
        .with(build::subgraph("then_branch", then))
        .with(build::subgraph("else_branch", otherwise));
    folds("choice", vec![choice], vec![bools("c", &[]), floats("a", &[64, 128])]);
    let inputs = [("i", DType::I64, &[][..]), ("c", DType::Bool, &[]), ("s", DType::F32, &["64", "4"])];
    let step = build::graph(
        inputs.map(|(name, dtype, dims)| build::value(name, dtype.to_onnx(), dims)).into(),
        vec![node("g = Identity(c)"), node("n = Mul(s, s)")],
        vec![build::untyped("g"), build::untyped("n")],
    );
    let repeat = node("w = Loop(trips, c, a)").with(build::subgraph("body", step));
    let tensors = vec![build::i64_tensor("trips", &[], vec![3]), bools("c", &[]), floats("a", &[64, 4])];
    folds("loop", vec![repeat], tensors);
}

#[test]
fn broadcasts_stay_expressions() {
    let tensors = vec![floats("r", &[64, 1]), floats("c", &[1, 1024])];
    let (graph, _, constant) = compiled(product(vec![node("w = Mul(r, c)")], tensors));
    assert_eq!(constant, 1);
    let largest =
        graph.order.iter().flat_map(|&id| &graph.nodes[id].inputs).filter(|&&value| graph.is_constant(value));
    assert!(largest.map(|&value| bytes(graph.ty(value)).unwrap()).max().unwrap() <= 4096);
}

fn empty() -> (Graph, OriginId) {
    let mut graph = Graph::default();
    let origin = onnxc_ir::graph::Origin::new("o", "Op", 0);
    let origin = graph.origins.push(origin);
    (graph, origin)
}

#[test]
fn what_fails_does_so_when_it_runs() {
    let (mut graph, origin) = empty();
    let mut b = Builder::new(&mut graph, origin);
    let table = b.constant(Tensor::from_slice(&[2, 3000, 1], &[1f32; 6000]));
    // A broadcast keeps the gather from being folded while the graph is built.
    let wide = b.expand(table, [2usize, 3000, 4].map(Dim::from).to_vec()).unwrap();
    let index = b.constant(Tensor::from_slice(&[1], &[7i64]));
    let row = b.emit1(Op::Gather { axis: 0 }, &[wide, index]).unwrap();
    let x = b.input("x", TensorType::new(DType::F32, vec![Dim::from(4usize)]), None);
    let y = b.binary(BinaryFn::Add, row, x).unwrap();
    graph.outputs = vec![("y".into(), y)];
    run(&mut graph, &Options::default()).unwrap();
    assert_eq!(verify(&graph), Ok(()));
    assert!(graph.order.iter().any(|&id| matches!(graph.nodes[id].op, Op::Gather { .. })));
    let x = Tensor::from_slice(&[4], &[0f32; 4]);
    assert!(interp::run(&graph, &[x]).unwrap_err().message.contains('7'));
}
