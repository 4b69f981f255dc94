//! Small models that wrappers of several languages are tried on.

use onnxc_proto::{ModelProto, NodeProto, build};
use prost::Message;

/// `twice = concat(x, -x)` along the first axis, `x` f32[batch, 3].
pub fn symbolic() -> Vec<u8> {
    let nodes = vec![
        build::node("Neg", &["x"], &["minus"]),
        build::node("Concat", &["x", "minus"], &["twice"]).with(build::int("axis", 0)),
    ];
    let value = build::f32_value;
    let graph = build::graph(vec![value("x", &["batch", "3"])], nodes, vec![value("twice", &["rows", "3"])]);
    build::model(17, graph).encode_to_vec()
}

/// Texts in and out, sizes that data decide, packed elements, a sequence.
pub fn all_kinds() -> Vec<u8> {
    let string = 8;
    let nodes = vec![
        build::node("StringConcat", &["words", "ending"], &["joined"]),
        build::node("StringSplit", &["line"], &["parts", "count"]),
        build::node("NonZero", &["x"], &["places"]),
        build::node("Cast", &["x"], &["small"]).with(build::int("to", 21)),
        build::node("SplitToSequence", &["x", "lengths"], &["pieces"]),
    ];
    let value = |name: &str, dtype, dims: &[&str]| build::value(name, dtype, dims);
    let inputs = vec![
        value("words", string, &["n"]),
        value("ending", string, &[]),
        value("line", string, &["1"]),
        value("x", 1, &["m"]),
        value("lengths", 7, &["k"]),
    ];
    let outputs = vec![
        value("joined", string, &["n"]),
        value("parts", string, &["1", "p"]),
        value("places", 7, &["1", "q"]),
        value("small", 21, &["m"]),
        build::untyped("pieces"),
    ];
    build::model(21, build::graph(inputs, nodes, outputs)).encode_to_vec()
}

/// `y` is `x`, i64[2, n, 3], without the axis of size `n` where that is 1; `z` is the sum of `x` where `whole` holds, otherwise its sums
/// over the first two axes.
pub fn any_rank() -> ModelProto {
    let choose = |condition: &str, output: &str, [then, otherwise]: [NodeProto; 2]| {
        let body = |node: NodeProto| {
            let output = build::untyped(&node.output[0]);
            build::graph(vec![], vec![node], vec![output])
        };
        let then = build::subgraph("then_branch", body(then));
        build::node("If", &[condition], &[output])
            .with(then)
            .with(build::subgraph("else_branch", body(otherwise)))
    };
    let node = build::node;
    let sum =
        |output: &str, inputs: &[&str]| node("ReduceSum", inputs, &[output]).with(build::int("keepdims", 0));
    let nodes = vec![
        node("Shape", &["x"], &["sizes"]),
        node("Gather", &["sizes", "one"], &["size"]),
        node("Equal", &["size", "one"], &["is_one"]),
        choose("is_one", "y", [node("Squeeze", &["x", "one"], &["t"]), node("Identity", &["x"], &["e"])]),
        choose("whole", "z", [sum("all", &["x"]), sum("columns", &["x", "axes"])]),
    ];
    let no_dims: [i64; 0] = [];
    let inputs = vec![build::value("x", 7, &["2", "n", "3"]), build::value("whole", 9, &no_dims)];
    let mut graph = build::graph(inputs, nodes, vec![build::untyped("y"), build::untyped("z")]);
    graph.initializer =
        vec![build::i64_tensor("one", &[1], vec![1]), build::i64_tensor("axes", &[2], vec![0, 1])];
    build::model(17, graph)
}

/// `more = concat(rows, x)`, which is a state, and `y` its sum.
pub fn sums() -> Vec<u8> {
    let value = build::f32_value;
    let nodes = vec![
        build::node("Concat", &["rows", "x"], &["more"]).with(build::int("axis", 0)),
        build::node("ReduceSum", &["more"], &["y"])
            .with(build::ints("axes", &[0]))
            .with(build::int("keepdims", 0)),
    ];
    let inputs = vec![value("x", &["new", "3"]), value("rows", &["past", "3"])];
    let outputs = vec![value("more", &["all", "3"]), value("y", &["3"])];
    build::model(12, build::graph(inputs, nodes, outputs)).encode_to_vec()
}

/// `h = ids * mask * weights`: what the model of the book takes and gives.
pub fn embedding() -> Vec<u8> {
    let weights: Vec<f32> = (0..384).map(|at| at as f32 / 384.0).collect();
    let value = |name: &str, dtype, dims: &[&str]| build::value(name, dtype, dims);
    let nodes = vec![
        build::node("Mul", &["ids", "mask"], &["kept"]),
        build::node("Cast", &["kept"], &["numbers"]).with(build::int("to", 1)),
        build::node("Unsqueeze", &["numbers"], &["columns"]).with(build::ints("axes", &[2])),
        build::node("Mul", &["columns", "weights"], &["words"]),
        // A position each, of a table that may be too short: the broadcasting of the sum decides the length.
        build::node("Shape", &["ids"], &["sizes"]),
        build::node("Gather", &["sizes", "second"], &["length"]),
        build::node("Slice", &["positions", "zero", "length", "zero"], &["places"]),
        build::node("Add", &["words", "places"], &["h"]),
    ];
    let mut graph = build::graph(
        vec![value("ids", 7, &["batch", "seq"]), value("mask", 7, &["batch", "seq"])],
        nodes,
        vec![value("h", 1, &["batch", "seq", "384"])],
    );
    graph.initializer.extend([
        build::f32_tensor("weights", &[384], weights),
        build::f32_tensor("positions", &[512, 384], vec![0.0; 512 * 384]),
        build::i64_tensor("zero", &[1], vec![0]),
        build::i64_tensor("second", &[1], vec![1]),
    ]);
    build::model(11, graph).encode_to_vec()
}
