//! Tables of codes, selected from in each way: the object has the codes, results are the same bits.

use onnxc_proto::build::{self, int};
use onnxc_proto::{GraphProto, NodeProto, TensorProto};

use crate::{Options, PackPolicy, run_all};
use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::graph::{Constant, DType, Def, Graph, Tensor};
use onnxc_ir::interp;

const ROWS: i64 = 600;
const COLUMNS: i64 = 64;

fn raw(name: &str, dtype: DType, dims: &[i64], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(dtype.to_onnx()),
        dims: dims.to_vec(),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

/// Codes, or zero points.
fn codes(name: &str, dtype: DType, dims: &[i64]) -> TensorProto {
    let bits = dims.iter().product::<i64>() * i64::from(dtype.bits());
    raw(name, dtype, dims, (0..bits / 8).map(|at| (at * 37 % 251) as u8).collect())
}

fn scales(dims: &[i64]) -> TensorProto {
    let count: i64 = dims.iter().product();
    build::f32_tensor("s", dims, (0..count).map(|at| 0.003 + (at * 7 % 23) as f32 * 0.001).collect())
}

/// `w = ...` from codes `q`: by DequantizeLinear with a scale of these dims along an axis or in blocks, or written out.
fn table(dtype: DType, kind: &str) -> (Vec<NodeProto>, Vec<TensorProto>) {
    let q = codes("q", dtype, &[ROWS, COLUMNS]);
    let dq = |inputs: &[&str]| build::node("DequantizeLinear", inputs, &["w"]);
    let written = |dims: &[i64]| {
        let cast = build::node("Cast", &["q"], &["f"]).with(int("to", 1));
        (vec![cast, build::node("Mul", &["f", "s"], &["w"])], vec![q.clone(), scales(dims)])
    };
    match kind {
        "tensor" => (vec![dq(&["q", "s"])], vec![q, scales(&[])]),
        "rows" => (vec![dq(&["q", "s"]).with(int("axis", 0))], vec![q, scales(&[ROWS])]),
        "columns" => (
            vec![dq(&["q", "s", "z"]).with(int("axis", 1))],
            vec![q, scales(&[COLUMNS]), codes("z", dtype, &[COLUMNS])],
        ),
        "blocks" => (
            vec![dq(&["q", "s"]).with(int("axis", 1)).with(int("block_size", 16))],
            vec![q, scales(&[ROWS, COLUMNS / 16])],
        ),
        "blocks of rows" => (
            vec![dq(&["q", "s"]).with(int("axis", 0)).with(int("block_size", 100))],
            vec![q, scales(&[ROWS / 100, COLUMNS])],
        ),
        "written rows" => written(&[ROWS, 1]),
        "written columns" => written(&[1, COLUMNS]),
        _ => written(&[]),
    }
}

/// Reads `w` with the indices `i`.
fn reader(kind: &str) -> (NodeProto, Vec<i64>) {
    match kind {
        "rows" => (build::node("Gather", &["w", "i"], &["y"]).with(int("axis", 0)), vec![2, 5]),
        "columns" => (build::node("Gather", &["w", "i"], &["y"]).with(int("axis", 1)), vec![3]),
        "one" => (build::node("Gather", &["w", "i"], &["y"]).with(int("axis", 0)), vec![]),
        "elements" => {
            (build::node("GatherElements", &["w", "i"], &["y"]).with(int("axis", 0)), vec![2, COLUMNS])
        }
        _ => (build::node("GatherND", &["w", "i"], &["y"]), vec![7, 2]),
    }
}

fn model(dtype: DType, kind: &str, reads: &str) -> (GraphProto, Tensor) {
    let (mut nodes, tensors) = table(dtype, kind);
    let (node, dims) = reader(reads);
    nodes.push(node);
    let count: i64 = dims.iter().product();
    let names: Vec<String> = dims.iter().map(i64::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sizes: Vec<usize> = dims.iter().map(|&size| size as usize).collect();
    let values: Vec<i64> = (0..count).map(|at| (at * 11 % COLUMNS) - 5).collect();
    let indices = build::value("i", DType::I64.to_onnx(), &names);
    let mut graph = build::graph(vec![indices], nodes, vec![build::untyped("y")]);
    graph.initializer = tensors;
    (graph, Tensor::from_slice(&sizes, &values))
}

/// Bytes of the constants that the object has.
fn stored(graph: &Graph) -> usize {
    let read = graph.order.iter().flat_map(|&id| graph.nodes[id].inputs.iter());
    let mut values: Vec<_> = read.chain(graph.outputs.iter().map(|(_, value)| value)).collect();
    values.sort();
    values.dedup();
    let bytes = values.into_iter().filter_map(|&value| match &graph.values[value].def {
        Def::Const(Constant::Data(tensor)) => Some(tensor.data.len()),
        Def::Const(Constant::Deferred { .. }) => {
            let shape = graph.ty(value).static_shape()?;
            Some(shape.iter().product::<usize>() * graph.ty(value).dtype.size())
        }
        _ => None,
    });
    bytes.sum()
}

#[test]
fn codes_stay_codes() {
    for dtype in [DType::I8, DType::U8, DType::I4, DType::U4] {
        let kinds = [
            "tensor",
            "rows",
            "columns",
            "blocks",
            "blocks of rows",
            "written rows",
            "written columns",
            "written",
        ];
        for kind in kinds {
            for reads in ["rows", "columns", "one", "elements", "points"] {
                let (graph, input) = model(dtype, kind, reads);
                let before = import(
                    &build::model(25, graph),
                    &ImportOptions::default(),
                    &NoExternalData,
                    &onnxc_ops::Table::standard(),
                )
                .unwrap()
                .graph;
                let wanted = interp::run(&before, std::slice::from_ref(&input)).unwrap();
                for (exact, pack) in [(false, PackPolicy::NARROW), (true, PackPolicy::WIDE)] {
                    let mut after = before.clone();
                    let options = Options { exact, pack, ..Options::default() };
                    run_all(&mut after, &options, &mut |_, _, _| {}).unwrap();
                    let found = interp::run(&after, std::slice::from_ref(&input)).unwrap();
                    assert!(found == wanted, "{dtype} {kind} {reads}");
                    let codes = (ROWS * COLUMNS) as usize;
                    let (bytes, most) = (stored(&after), codes + codes / 2);
                    assert!(bytes <= most, "{dtype} {kind} {reads}: {bytes} bytes, not {most}\n{after}");
                }
            }
        }
    }
}

/// A weight of a product is laid out for it, even if it could be stored in another way.
#[test]
fn weights_of_products_are_not_tables() {
    let (mut nodes, tensors) = table(DType::I8, "tensor");
    nodes.push(build::node("MatMul", &["x", "w"], &["y"]));
    let mut graph =
        build::graph(vec![build::f32_value("x", &["8", "600"])], nodes, vec![build::untyped("y")]);
    graph.initializer = tensors;
    let before = import(
        &build::model(25, graph),
        &ImportOptions::default(),
        &NoExternalData,
        &onnxc_ops::Table::standard(),
    )
    .unwrap()
    .graph;
    let mut after = before.clone();
    super::run(&mut after, &Options::default()).unwrap();
    assert_eq!(after.to_string(), before.to_string());
}
