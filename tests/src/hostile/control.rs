//! Functions and bodies that multiply, chains of operators whose sizes only data decide, sequences.

use onnxc_proto::build::{graph, int, ints, node, subgraph, untyped, value};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{GraphProto, ModelProto, NodeProto};

use super::sketch::{Sketch, call, function, refs};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "functions_whose_branches_both_call_on", &[6, 14, 30], both_branches);
    family(cases, "functions_whose_loops_call_on_twice", &[4, 8, 16], loops_call_on);
    family(cases, "loops_in_ifs_in_loops", &[4, 12, 40], loops_in_ifs);
    family(cases, "chain_of_compress", &[50, 200, 1000], compress);
    family(cases, "chain_of_non_max_suppression", &[10, 100], suppression);
    family(cases, "chain_of_loops", &[20, 100, 500], loops);
    family(cases, "chain_of_loops_that_grow", &[10, 200], growing_loops);
    family(cases, "chain_of_scans", &[20, 100, 500], scans);
    family(cases, "chain_of_ifs_of_unlike_sizes", &[20, 100, 500], unlike_sizes);
    family(cases, "concat_of_nonzeros", &[50, 150, 1000], nonzeros);
    family(cases, "split_by_sizes_of_the_run", &[50, 100, 1000], split);
    family(cases, "outputs_of_symbolic_size", &[500, 1000, 4000], outputs);
    family(cases, "inputs_of_symbolic_size", &[500, 1000, 4000], inputs);
    family(cases, "inputs_of_many_symbols", &[300, 3000], many_symbols);
    family(cases, "sequence_of_many", &[100, 3000], sequence_of_many);
    family(cases, "sequence_of_sequences_in_a_loop", &[1, 100], sequences_of_sequences);
    family(cases, "sequence_map", &[10, 300], sequence_map);
    family(cases, "gathers_that_depend_on_data", &[30, 300], gathers);
}

fn body(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let values = |names: &[&str]| names.iter().map(|name| untyped(name)).collect();
    graph(values(inputs), nodes, values(outputs))
}

/// A loop over `x` with this body, whose condition is passed on.
fn loop_node(trips: &str, from: &str, to: &str, nodes: Vec<NodeProto>, result: &str) -> NodeProto {
    let mut step = body(&[], nodes, &["c", result]);
    step.input = vec![
        value("i", DataType::Int64 as i32, &[] as &[&str]),
        value("c", DataType::Bool as i32, &[] as &[&str]),
        untyped("x"),
    ];
    node("Loop", &[trips, "", from], &[to]).with(subgraph("body", step))
}

fn choice(condition: &str, to: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    node("If", &[condition], &[to])
        .with(subgraph("then_branch", then))
        .with(subgraph("else_branch", otherwise))
}

fn both_branches(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["2"]);
    for at in 0..n {
        let next = |to: &str| match at + 1 == n {
            true => node("Relu", &["x"], &[to]),
            false => call(&format!("f{}", at + 1), &["x"], &[to]),
        };
        let nodes = vec![
            node("ReduceSum", &["x"], &["s"]).with(int("keepdims", 0)),
            node("Cast", &["s"], &["c"]).with(int("to", DataType::Bool as i64)),
            choice("c", "y", body(&[], vec![next("a")], &["a"]), body(&[], vec![next("b")], &["b"])),
        ];
        s.function(function(&format!("f{at}"), &["x"], &["y"], nodes));
    }
    s.node(call("f0", &[&x], &["y"]));
    s.giving("y")
}

fn loops_call_on(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["2"]), s.input_of(DataType::Int64, &[] as &[&str]));
    for at in 0..n {
        let nodes = match at + 1 == n {
            true => vec![node("Relu", &["x"], &["y"])],
            false => {
                let next = format!("f{}", at + 1);
                let inner = vec![call(&next, &["x", "t"], &["z"]), call(&next, &["z", "t"], &["w"])];
                vec![loop_node("t", "x", "y", inner, "w")]
            }
        };
        s.function(function(&format!("f{at}"), &["x", "t"], &["y"], nodes));
    }
    s.node(call("f0", &[&x, &trips], &["y"]));
    s.giving("y")
}

fn loops_in_ifs(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    let condition = s.input_of(DataType::Bool, &[] as &[&str]);
    let mut nodes = vec![node("Relu", &["x"], &["y0"])];
    for at in 0..n {
        let (last, next) = (format!("y{at}"), format!("y{}", at + 1));
        let inner = match at % 2 {
            0 => loop_node(&trips, "x", &next, nodes, &last),
            _ => {
                let otherwise = body(&[], vec![node("Neg", &["x"], &["z"])], &["z"]);
                choice(&condition, &next, body(&[], nodes, &[&last]), otherwise)
            }
        };
        nodes = vec![inner];
    }
    s.node(node("Identity", &[&x], &["x"]));
    nodes.into_iter().for_each(|node| s.node(node));
    s.giving(&format!("y{n}"))
}

fn compress(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n"]);
    let zero = s.f32s(&[], vec![0.0]);
    for _ in 0..n {
        let positive = s.op("Greater", &[&x, &zero]);
        x = s.op_with("Compress", &[&x, &positive], vec![int("axis", 0)]);
    }
    s.giving(&x)
}

/// Boxes that a suppression leaves are the next one's.
fn suppression(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut boxes = s.input(&["1", "n", "4"]);
    let (most, two, axes) = (s.i64s(&[100]), s.i64(2), s.i64s(&[2]));
    for _ in 0..n {
        let sums = s.op_with("ReduceSum", &[&boxes, &axes], vec![int("keepdims", 1)]);
        let scores = s.op_with("Transpose", &[&sums], vec![ints("perm", &[0, 2, 1])]);
        let kept = s.op("NonMaxSuppression", &[&boxes, &scores, &most]);
        let kept = s.op_with("Gather", &[&kept, &two], vec![int("axis", 1)]);
        boxes = s.op_with("Gather", &[&boxes, &kept], vec![int("axis", 1)]);
    }
    s.giving(&boxes)
}

fn loops(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (mut x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    for at in 0..n {
        let y = format!("r{at}");
        s.node(loop_node(&trips, &x, &y, vec![node("Sin", &["x"], &["y"])], "y"));
        x = y;
    }
    s.giving(&x)
}

fn growing_loops(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (mut x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    for at in 0..n {
        let y = format!("r{at}");
        let grow = node("Concat", &["x", "x"], &["y"]).with(int("axis", 0));
        s.node(loop_node(&trips, &x, &y, vec![grow], "y"));
        x = y;
    }
    s.giving(&x)
}

fn scans(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "4"]);
    for at in 0..n {
        let y = format!("r{at}");
        let step = body(&["x"], vec![node("Tanh", &["x"], &["y"])], &["y"]);
        s.node(node("Scan", &[&x], &[&y]).with(int("num_scan_inputs", 1)).with(subgraph("body", step)));
        x = y;
    }
    s.giving(&x)
}

/// The branches' results have unlike sizes, so that only the run knows which there is.
fn unlike_sizes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (mut x, condition) = (s.input(&["n"]), s.input_of(DataType::Bool, &[] as &[&str]));
    for at in 0..n {
        let (y, twice) = (format!("r{at}"), node("Concat", &[&x, &x], &["a"]).with(int("axis", 0)));
        let once = node("Exp", &[&x], &["b"]);
        s.node(choice(&condition, &y, body(&[], vec![twice], &["a"]), body(&[], vec![once], &["b"])));
        x = y;
    }
    s.giving(&x)
}

fn nonzeros(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n"]);
    let mut parts = Vec::new();
    for at in 0..n {
        let by = s.f32s(&[], vec![at as f32]);
        let less = s.op("Less", &[&x, &by]);
        parts.push(s.op("NonZero", &[&less]));
    }
    let y = s.op_with("Concat", &refs(&parts), vec![int("axis", 1)]);
    s.giving(&y)
}

fn split(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, sizes) = (s.input(&["n"]), s.input_of(DataType::Int64, &[n]));
    let parts = s.ops("Split", &[&x, &sizes], vec![int("axis", 0)], n);
    let parts: Vec<String> = parts.iter().map(|part| s.op("Exp", &[part])).collect();
    let y = s.op_with("Concat", &refs(&parts), vec![int("axis", 0)]);
    s.giving(&y)
}

fn outputs(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n"]);
    for at in 0..n {
        let by = s.f32s(&[], vec![at as f32]);
        let y = s.op("Add", &[&x, &by]);
        s.output(&y);
    }
    s.model()
}

fn inputs(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    for _ in 0..n {
        let x = s.input(&["n", "m"]);
        let y = s.op("Exp", &[&x]);
        s.output(&y);
    }
    s.model()
}

/// Each input has three symbols of its own, and all are put together.
fn many_symbols(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let rest = s.i64s(&[-1]);
    let mut parts = Vec::new();
    for at in 0..n {
        let x = s.input(&[format!("a{at}"), format!("b{at}"), format!("c{at}")]);
        parts.push(s.op("Reshape", &[&x, &rest]));
    }
    let y = s.op_with("Concat", &refs(&parts), vec![int("axis", 0)]);
    s.giving(&y)
}

fn sequence_of_many(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let inputs: Vec<String> = (0..n).map(|at| s.input(&[format!("n{at}")])).collect();
    let sequence = s.op("SequenceConstruct", &refs(&inputs));
    let place = s.input_of(DataType::Int64, &[] as &[&str]);
    let y = s.op("SequenceAt", &[&sequence, &place]);
    s.giving(&y)
}

fn sequences_of_sequences(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    let mut sequence = s.op("SequenceConstruct", &[&x]);
    for at in 0..n {
        let nodes = vec![node("SequenceConstruct", &["x", "x"], &["y"])];
        let y = format!("r{at}");
        s.node(loop_node(&trips, &sequence, &y, nodes, "y"));
        sequence = y;
    }
    let y = s.op("SequenceLength", &[&sequence]);
    s.giving(&y)
}

fn sequence_map(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n"]);
    let mut sequence = s.op("SequenceConstruct", &[&x, &x]);
    for at in 0..n {
        let step = body(&["e"], vec![node("Sin", &["e"], &["f"])], &["f"]);
        let y = format!("r{at}");
        s.node(node("SequenceMap", &[&sequence], &[&y]).with(subgraph("body", step)));
        sequence = y;
    }
    let place = s.i64(0);
    let y = s.op("SequenceAt", &[&sequence, &place]);
    s.giving(&y)
}

/// Each vector of places is as long as the one before says.
fn gathers(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut places = s.input_of(DataType::Int64, &["n"]);
    let (zero, one) = (s.i64(0), s.i64(1));
    for _ in 0..n {
        let most = s.op_with("ReduceMax", &[&places], vec![int("keepdims", 0)]);
        let range = s.op("Range", &[&zero, &most, &one]);
        places = s.op("Gather", &[&range, &places]);
    }
    s.giving(&places)
}
