//! Nesting, functions, control flow, counts, names and cycles.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::build::{attribute, graph, int, model, node, opset, subgraph, untyped, value};
use onnxc_proto::tensor_proto::DataType;
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, NodeProto, StringStringEntryProto};

use super::sketch::{Sketch, call, function, refs};
use super::{Case, family};

pub(super) fn add(cases: &mut Vec<Case>) {
    family(cases, "ifs_nested", &[10, 30, 60, 300], ifs_nested);
    family(cases, "ifs_nested_around_many_nodes", &[30], ifs_around);
    family(cases, "ifs_nested_by_functions", &[30, 200, 2000], ifs_by_functions);
    family(cases, "ifs_in_a_row", &[100, 1000], ifs_in_a_row);
    family(cases, "ifs_of_unlike_ranks", &[3, 10, 40], unlike_ranks);
    family(cases, "ifs_of_constant_unlike_ranks", &[10, 100], constant_unlike_ranks);
    family(cases, "squeezes_of_unknown_axes", &[4, 10, 40], squeezes);
    family(cases, "loops_nested", &[3, 10, 30], loops_nested);
    family(cases, "loop_of_constants", &[1000, 1_000_000_000, i64::MAX as usize], loop_of_constants);
    family(cases, "loop_that_grows", &[10, 1 << 40], loop_that_grows);
    family(cases, "loop_with_many_values", &[100, 300, 1000], loop_values);
    family(cases, "scan_with_many_values", &[100, 300, 1000], scan_values);
    family(cases, "functions_that_double", &[10, 16, 30, 60], |n| functions_double(n, "Relu"));
    family(cases, "functions_that_double_dear_nodes", &[7, 10, 16, 30], |n| functions_double(n, "Sin"));
    family(cases, "derivatives_of_derivatives", &[3, 12, 60, 2000], derivatives);
    family(cases, "derivatives_of_a_chain", &[300, 2000], derivatives_of_chain);
    family(cases, "functions_in_a_chain", &[60, 1000], functions_chain);
    family(cases, "functions_that_call_themselves", &[1, 2, 100], functions_cycle);
    family(cases, "function_called_often", &[1000, 3000, 10_000], function_often);
    family(cases, "functions_unused", &[10_000], functions_unused);
    family(cases, "concat_of_inputs", &[1000, 3000, 10_000], concat_wide);
    family(cases, "sum_of_inputs", &[1000, 3000], |n| variadic("Sum", n));
    family(cases, "max_of_inputs", &[3000], |n| variadic("Max", n));
    family(cases, "mean_of_inputs", &[3000], |n| variadic("Mean", n));
    family(cases, "chain_of_nodes", &[1000, 20_000], |n| chain(n, "Relu"));
    family(cases, "chain_of_identities", &[100_000], |n| chain(n, "Identity"));
    family(cases, "chain_of_softmax", &[300, 1000, 5000], |n| chain(n, "Softmax"));
    family(cases, "chain_of_sines", &[100, 300, 3000, 20_000], |n| chain(n, "Sin"));
    family(cases, "chain_of_tangents", &[100, 300, 3000], |n| chain(n, "Tan"));
    family(cases, "chain_of_random_numbers", &[100, 300, 3000], |n| chain(n, "RandomNormalLike"));
    family(cases, "chain_of_bernoullis", &[100, 300, 3000], |n| chain(n, "Bernoulli"));
    family(cases, "chain_of_nonzeros", &[100, 300, 1000], |n| chain(n, "NonZero"));
    family(cases, "chain_of_uniques", &[60, 200, 600], |n| chain(n, "Unique"));
    family(cases, "chain_of_shapes", &[5000], shapes);
    family(cases, "equal_nodes", &[10_000], equal_nodes);
    family(cases, "outputs_of_one_value", &[3000, 10_000], outputs_of_one);
    family(cases, "inputs_unused", &[3000, 10_000], inputs_unused);
    family(cases, "initializers", &[10_000], initializers);
    family(cases, "initializers_unused", &[100_000], initializers_unused);
    family(cases, "initializers_twice", &[10_000], initializers_twice);
    family(cases, "nodes_unknown", &[100_000], |n| chain(n, "NoSuchOperator"));
    family(cases, "nodes_without_outputs", &[100_000], without_outputs);
    family(cases, "nodes_out_of_order", &[100, 10_000], out_of_order);
    family(cases, "nodes_in_a_cycle", &[1, 2, 10_000], cycle);
    family(cases, "nodes_define_one_name", &[10_000], one_name);
    family(cases, "names_long", &[1 << 10, 1 << 22], names_long);
    family(cases, "names_alike_in_c", &[1000, 3000], names_alike);
    family(cases, "names_with_control_characters", &[1000], names_control);
    family(cases, "symbols_with_long_names", &[1 << 20], long_symbol);
    family(cases, "symbols_with_odd_names", &[1000], odd_symbols);
    family(cases, "metadata", &[100_000], metadata);
    family(cases, "opset_imports", &[100_000], opset_imports);
}

/// A body that gives `x` of the graph around, or what `inner` makes of it.
fn body(output: &str, nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto { name: Some("body".into()), node: nodes, output: vec![untyped(output)], ..Default::default() }
}

fn if_node(condition: &str, output: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    node("If", &[condition], &[output])
        .with(subgraph("then_branch", then))
        .with(subgraph("else_branch", otherwise))
}

fn ifs_nested(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, condition) = (s.input(&["n"]), s.input_of(DataType::Bool, &[] as &[&str]));
    let mut inner = node("Relu", &[&x], &["y0"]);
    for at in 1..=n {
        let otherwise = body("z", vec![node("Neg", &[&x], &["z"])]);
        inner = if_node(&condition, &format!("y{at}"), body(&format!("y{}", at - 1), vec![inner]), otherwise);
    }
    s.node(inner);
    s.giving(&format!("y{n}"))
}

/// Bodies inside each other, the innermost of 20,000 nodes.
fn ifs_around(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, condition) = (s.input(&["n"]), s.input_of(DataType::Bool, &[] as &[&str]));
    let relu = |at: usize| {
        node("Relu", &[&if at == 0 { x.clone() } else { format!("r{at}") }], &[&format!("r{}", at + 1)])
    };
    let mut nodes: Vec<NodeProto> = (0..20_000).map(relu).collect();
    let mut result = "r20000".to_string();
    for at in 0..n {
        let (y, otherwise) = (format!("y{at}"), body("z", vec![node("Neg", &[&x], &["z"])]));
        nodes = vec![if_node(&condition, &y, body(&result, nodes), otherwise)];
        result = y;
    }
    nodes.into_iter().for_each(|node| s.node(node));
    s.giving(&result)
}

/// Functions whose body is an If that calls the next one.
fn ifs_by_functions(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, condition) = (s.input(&["n"]), s.input_of(DataType::Bool, &[] as &[&str]));
    for at in 0..n {
        let next = match at + 1 == n {
            true => node("Relu", &["x"], &["a"]),
            false => call(&format!("f{}", at + 1), &["x", "c"], &["a"]),
        };
        let choice = if_node("c", "y", body("a", vec![next]), body("b", vec![node("Neg", &["x"], &["b"])]));
        s.function(function(&format!("f{at}"), &["x", "c"], &["y"], vec![choice]));
    }
    s.node(call("f0", &[&x, &condition], &["y"]));
    s.giving("y")
}

fn ifs_in_a_row(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (mut x, condition) = (s.input(&["n"]), s.input_of(DataType::Bool, &[] as &[&str]));
    for at in 0..n {
        let (then, otherwise) = (node("Relu", &[&x], &["a"]), node("Neg", &[&x], &["b"]));
        let y = format!("y{at}");
        s.node(if_node(&condition, &y, body("a", vec![then]), body("b", vec![otherwise])));
        x = y;
    }
    s.giving(&x)
}

/// What follows an If whose branches have unlike ranks is compiled in both.
fn unlike_ranks(n: usize) -> ModelProto {
    let condition = |s: &mut Sketch, _| s.input_of(DataType::Bool, &[] as &[&str]);
    ranks(n, condition)
}

fn constant_unlike_ranks(n: usize) -> ModelProto {
    let condition = |s: &mut Sketch, at: usize| {
        let (number, zero) = (s.i64(at as i64 % 2), s.i64(0));
        s.op("Greater", &[&number, &zero])
    };
    ranks(n, condition)
}

fn ranks(n: usize, condition: fn(&mut Sketch, usize) -> String) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n"]);
    let axis = s.i64s(&[0]);
    for at in 0..n {
        let condition = condition(&mut s, at);
        let (then, otherwise) = (node("Unsqueeze", &[&x, &axis], &["a"]), node("Neg", &[&x], &["b"]));
        let y = format!("y{at}");
        s.node(if_node(&condition, &y, body("a", vec![then]), body("b", vec![otherwise])));
        x = s.op("Exp", &[&y]);
    }
    s.giving(&x)
}

fn squeezes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&(0..n).map(|at| format!("n{at}")).collect::<Vec<_>>());
    for _ in 0..n {
        let y = s.op("Squeeze", &[&x]);
        x = s.op("Exp", &[&y]);
    }
    s.giving(&x)
}

/// A body of a Loop: `i, c, x -> c, nodes(x)`.
fn loop_body(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto {
        name: Some("body".into()),
        input: vec![
            value("i", DataType::Int64 as i32, &[] as &[&str]),
            value("c", DataType::Bool as i32, &[] as &[&str]),
            untyped("x"),
        ],
        node: nodes,
        output: vec![untyped("c"), untyped("y")],
        ..Default::default()
    }
}

fn loops_nested(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    let mut nodes = vec![node("Relu", &["x"], &["y"])];
    for _ in 0..n {
        nodes = vec![node("Loop", &[&trips, "", "x"], &["y"]).with(subgraph("body", loop_body(nodes)))];
    }
    let [mut outer] = <[NodeProto; 1]>::try_from(nodes).expect("one loop is left");
    outer.input[2] = x;
    outer.output[0] = "result".into();
    s.node(outer);
    s.giving("result")
}

fn loop_of_constants(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (start, trips) = (s.f32s(&[4], vec![1.0; 4]), s.i64(n as i64));
    let step = loop_body(vec![node("Sin", &["x"], &["y"])]);
    s.node(node("Loop", &[&trips, "", &start], &["result"]).with(subgraph("body", step)));
    s.giving("result")
}

fn loop_that_grows(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["n"]), s.i64(n as i64));
    let grow = loop_body(vec![node("Concat", &["x", "x"], &["y"]).with(int("axis", 0))]);
    s.node(node("Loop", &[&trips, "", &x], &["result"]).with(subgraph("body", grow)));
    s.giving("result")
}

fn carried(prefix: &str, n: usize) -> Vec<String> {
    (0..n).map(|at| format!("{prefix}{at}")).collect()
}

fn loop_values(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let (x, trips) = (s.input(&["n"]), s.input_of(DataType::Int64, &[] as &[&str]));
    let (inside, after, results) = (carried("x", n), carried("y", n), carried("r", n));
    let mut step = loop_body(vec![]);
    step.input.truncate(2);
    step.output.truncate(1);
    for (from, to) in inside.iter().zip(&after) {
        step.input.push(untyped(from));
        step.output.push(untyped(to));
        step.node.push(node("Relu", &[from], &[to]));
    }
    let mut inputs = vec![trips.as_str(), ""];
    inputs.resize(n + 2, &x);
    s.node(node("Loop", &inputs, &refs(&results)).with(subgraph("body", step)));
    for result in &results {
        s.output(result);
    }
    s.model()
}

fn scan_values(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n", "4"]);
    let (inside, after, results) = (carried("x", n), carried("y", n), carried("r", n));
    let mut step = body("y0", vec![]);
    step.output.clear();
    for (from, to) in inside.iter().zip(&after) {
        step.input.push(untyped(from));
        step.output.push(untyped(to));
        step.node.push(node("Relu", &[from], &[to]));
    }
    let scan = node("Scan", &vec![x.as_str(); n], &refs(&results));
    s.node(scan.with(int("num_scan_inputs", n as i64)).with(subgraph("body", step)));
    for result in &results {
        s.output(result);
    }
    s.model()
}

fn functions_double(n: usize, operator: &str) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        let nodes = match at + 1 == n {
            true => vec![node(operator, &["x"], &["y"])],
            false => {
                let next = format!("f{}", at + 1);
                vec![call(&next, &["x"], &["z"]), call(&next, &["z"], &["y"])]
            }
        };
        s.function(function(&format!("f{at}"), &["x"], &["y"], nodes));
    }
    s.node(call("f0", &[&x], &["y"]));
    s.giving("y")
}

/// A Gradient of a value by `x`.
fn gradient(y: &str, dy: &str) -> NodeProto {
    let xs = AttributeProto { strings: vec!["x".into()], ..attribute("xs", AttributeType::Strings) };
    let y = AttributeProto { s: Some(y.to_string().into()), ..attribute("y", AttributeType::String) };
    NodeProto { domain: Some(TRAINING.into()), ..node("Gradient", &["x"], &[dy]) }.with(xs).with(y)
}

/// The derivative number `n` of a function; each is larger than the one before by a factor.
fn derivatives(n: usize) -> ModelProto {
    let nodes = (0..n).map(|at| gradient(&format!("y{at}"), &format!("y{}", at + 1)));
    let nodes = [node("Tanh", &["x"], &["y0"])].into_iter().chain(nodes).collect();
    training(nodes, &format!("y{n}"))
}

/// A derivative of each value of a chain.
fn derivatives_of_chain(n: usize) -> ModelProto {
    let name = |at: usize| if at == 0 { "x".to_string() } else { format!("y{at}") };
    let steps = (0..n).map(|at| node("Sin", &[&name(at)], &[&name(at + 1)]));
    let derivatives = (1..=n).map(|at| gradient(&name(at), &format!("d{at}")));
    let terms: Vec<String> = (1..=n).map(|at| format!("d{at}")).collect();
    let terms: Vec<&str> = terms.iter().map(String::as_str).collect();
    training(steps.chain(derivatives).chain([node("Sum", &terms, &["sum"])]).collect(), "sum")
}

const TRAINING: &str = "ai.onnx.preview.training";

fn training(nodes: Vec<NodeProto>, output: &str) -> ModelProto {
    let input = value("x", DataType::Float as i32, &["4"]);
    let mut model = model(20, graph(vec![input], nodes, vec![untyped(output)]));
    model.opset_import.push(opset(TRAINING, 1));
    model
}

fn functions_chain(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        let inner = match at + 1 == n {
            true => node("Relu", &["x"], &["y"]),
            false => call(&format!("f{}", at + 1), &["x"], &["y"]),
        };
        s.function(function(&format!("f{at}"), &["x"], &["y"], vec![inner]));
    }
    s.node(call("f0", &[&x], &["y"]));
    s.giving("y")
}

fn functions_cycle(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        let next = format!("f{}", (at + 1) % n);
        s.function(function(&format!("f{at}"), &["x"], &["y"], vec![call(&next, &["x"], &["y"])]));
    }
    s.node(call("f0", &[&x], &["y"]));
    s.giving("y")
}

fn function_often(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["4"]);
    let nodes = vec![node("Relu", &["x"], &["z"]), node("Softmax", &["z"], &["y"])];
    s.function(function("f", &["x"], &["y"], nodes));
    for at in 0..n {
        let y = format!("y{at}");
        s.node(call("f", &[&x], &[&y]));
        x = y;
    }
    s.giving(&x)
}

fn functions_unused(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        s.function(function(&format!("f{at}"), &["x"], &["y"], vec![node("Relu", &["x"], &["y"])]));
    }
    let y = s.op("Relu", &[&x]);
    s.giving(&y)
}

fn concat_wide(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let inputs: Vec<String> = (0..n).map(|_| s.input(&[2])).collect();
    let y = s.op_with("Concat", &refs(&inputs), vec![int("axis", 0)]);
    s.giving(&y)
}

fn variadic(op_type: &str, n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let inputs: Vec<String> = (0..n).map(|_| s.input(&[8])).collect();
    let y = s.op(op_type, &refs(&inputs));
    s.giving(&y)
}

fn chain(n: usize, op_type: &str) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["4", "8"]);
    for _ in 0..n {
        x = s.op(op_type, &[&x]);
    }
    s.giving(&x)
}

fn shapes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["n", "8"]);
    for _ in 0..n {
        let shape = s.op("Shape", &[&x]);
        x = s.op("Reshape", &[&x, &shape]);
    }
    let y = s.op("Exp", &[&x]);
    s.giving(&y)
}

fn equal_nodes(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n", "8"]);
    let mut sum = s.op("Exp", &[&x]);
    for _ in 0..n {
        let same = s.op("Exp", &[&x]);
        sum = s.op("Max", &[&sum, &same]);
    }
    s.giving(&sum)
}

fn outputs_of_one(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for _ in 0..n {
        let y = s.op("Relu", &[&x]);
        s.output(&y);
    }
    s.model()
}

fn inputs_unused(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for _ in 0..n {
        s.input(&["4"]);
    }
    let y = s.op("Relu", &[&x]);
    s.giving(&y)
}

fn initializers(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut x = s.input(&["4"]);
    for at in 0..n {
        let w = s.f32s(&[4], vec![at as f32; 4]);
        x = s.op(if at % 2 == 0 { "Add" } else { "Max" }, &[&x, &w]);
    }
    s.giving(&x)
}

fn initializers_unused(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for _ in 0..n {
        s.f32s(&[1], vec![1.0]);
    }
    let y = s.op("Relu", &[&x]);
    s.giving(&y)
}

fn initializers_twice(n: usize) -> ModelProto {
    let mut graph = chain(1, "Relu");
    let tensors = (0..n).map(|_| onnxc_proto::build::f32_tensor("w", &[1], vec![1.0]));
    if let Some(graph) = &mut graph.graph {
        graph.initializer.extend(tensors);
    }
    graph
}

fn without_outputs(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for _ in 0..n {
        s.node(node("Relu", &[&x], &[]));
    }
    let y = s.op("Relu", &[&x]);
    s.giving(&y)
}

fn out_of_order(n: usize) -> ModelProto {
    let mut model = chain(n, "Relu");
    if let Some(graph) = &mut model.graph {
        graph.node.reverse();
    }
    model
}

fn cycle(n: usize) -> ModelProto {
    let mut model = chain(n, "Relu");
    if let Some(graph) = &mut model.graph {
        let last = graph.output[0].name().to_string();
        graph.node[0].input[0] = last;
    }
    model
}

fn one_name(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for _ in 0..n {
        s.node(node("Relu", &[&x], &["y"]));
    }
    s.giving("y")
}

fn names_long(n: usize) -> ModelProto {
    let long = "n".repeat(n);
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    s.node(NodeProto { name: Some(long.clone()), ..node("Relu", &[&x], &[&long]) });
    s.giving(&long)
}

fn names_alike(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        // Distinct names that are one and the same where only letters, digits and underscores are kept.
        let name: String = (0..12).map(|bit| if at >> bit & 1 == 0 { '.' } else { '/' }).collect();
        s.node(node("Relu", &[&x], &[&name]));
        s.output(&name);
    }
    s.model()
}

fn names_control(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["4"]);
    for at in 0..n {
        let name = format!("\0\n*/\"\\{}{}", char::from_u32(at as u32 + 1).unwrap_or('x'), "é".repeat(3));
        s.node(node("Relu", &[&x], &[&name]));
        s.output(&name);
    }
    s.model()
}

fn long_symbol(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let x = s.input(&["n".repeat(n)]);
    let y = s.op_with("Concat", &[&x, &x], vec![int("axis", 0)]);
    s.giving(&y)
}

fn odd_symbols(n: usize) -> ModelProto {
    let mut s = Sketch::new();
    let mut inputs = Vec::new();
    for at in 0..n {
        let name = format!("{}+ s0*/\n", char::from_u32(at as u32 + 1).unwrap_or('x'));
        let x = s.input(&[name]);
        inputs.push(s.op("Relu", &[&x]));
    }
    for y in &inputs {
        s.output(y);
    }
    s.model()
}

fn metadata(n: usize) -> ModelProto {
    let entry = |at: usize| StringStringEntryProto { key: Some(at.to_string()), value: Some("v".into()) };
    ModelProto { metadata_props: (0..n).map(entry).collect(), ..chain(1, "Relu") }
}

fn opset_imports(n: usize) -> ModelProto {
    let mut model = chain(1, "Relu");
    model.opset_import.extend((0..n).map(|at| onnxc_proto::build::opset(&format!("d{at}"), 1)));
    model
}
