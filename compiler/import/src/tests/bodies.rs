//! Bodies of control flow.

use super::*;
use onnxc_ir::graph::Def;

fn body(nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let outputs = outputs.iter().map(|name| untyped(name));
    graph(vec![], nodes, outputs.collect())
}

fn with_inputs(mut graph: GraphProto, inputs: &[&str]) -> GraphProto {
    graph.input = inputs.iter().map(|name| untyped(name)).collect();
    graph
}

/// A model over `c: bool[]`, `x: f32[N, 4]` and the constant `w: f32[4]`.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let model = model_of(graph(
        vec![value("c", DType::Bool, &[]), f32v("x", &["N", "4"])],
        nodes,
        vec![f32v("y", &["N", "4"])],
    ));
    with_initializers(model, vec![f32s("w", &[4], &[1.0; 4])])
}

fn choose(then: GraphProto, otherwise: GraphProto) -> NodeProto {
    with(node("Choose", &["c"], &["y"]), vec![a_graph("then", then), a_graph("else", otherwise)])
}

fn repeat(inputs: &[&str], output: &str, body: GraphProto) -> NodeProto {
    with(node("Repeat", inputs, &[output]), vec![a_graph("body", body)])
}

fn scan_body(graph: &Graph) -> (&Graph, &[ValueId]) {
    let node = &graph.nodes[*graph.order.last().unwrap()];
    match &node.op {
        Op::Scan { body, .. } => (body, &node.inputs),
        other => panic!("{} is not a scan", other.name()),
    }
}

#[test]
fn inlined_bodies_see_the_names_around() {
    let then = body(vec![node("Add", &["x", "w"], &["t"])], &["t"]);
    let otherwise = body(vec![node("Same", &["x"], &["t"])], &["t"]);
    assert_eq!(ops(&graph_of(&model(vec![choose(then, otherwise)]))), ["add", "select"]);
    // A body may give an outer value itself, and its initializers may hide outer names; its nodes may not.
    let own = body(vec![node("Neg", &["x"], &["v"])], &["v"]);
    assert_eq!(ops(&graph_of(&model(vec![choose(body(vec![], &["x"]), own)]))), ["neg", "abs", "select"]);
    let mut hiding = body(vec![node("Add", &["x", "w"], &["v"])], &["v"]);
    hiding.initializer = vec![f32s("w", &[], &[2.0])];
    let text =
        "initializer `w` of body `g` has the name of a value of the graph around; the body sees its own";
    warns(&model(vec![choose(body(vec![], &["x"]), hiding)]), Rule::ShadowedName, text);
    let hiding = body(vec![node("Neg", &["x"], &["w"])], &["w"]);
    let text = "output `w` has the name of a value that a graph around the body defines before";
    warns(&model(vec![choose(body(vec![], &["x"]), hiding)]), Rule::ShadowedByNode, text);
    let outer = choose(body(vec![], &["x"]), body(vec![node("Neg", &["x"], &["v"])], &["v"]));
    let text = "output `x` of body `g` is a value of the graph around";
    warns(&model(vec![outer]), Rule::BodyOutput, text);
}

#[test]
fn inlined_bodies_have_initializers() {
    let mut then = body(vec![node("Add", &["x", "k"], &["t"])], &["t"]);
    then.initializer = vec![f32s("k", &[4], &[2.0; 4])];
    let graph = graph_of(&model(vec![choose(then, body(vec![], &["x"]))]));
    assert!(graph.values.values().any(|value| value.name == "k" && matches!(value.def, Def::Const(_))));
}

#[test]
fn a_body_of_its_own_gets_captures_as_inputs_and_constants_as_constants() {
    let nodes = vec![
        node("Neg", &["x"], &["t"]),
        repeat(
            &["x"],
            "y",
            with_inputs(
                body(vec![node("AddN", &["s", "t", "w"], &["r"]), node("Neg", &["c2"], &["dead"])], &["r"]),
                &["s"],
            ),
        ),
    ];
    let mut proto = model(nodes);
    proto.graph.as_mut().unwrap().input.push(f32v("c2", &["N"]));
    let graph = graph_of(&proto);
    let (body, inputs) = scan_body(&graph);
    assert_eq!(input_types(body), ["s: f32[s0, 4]", "t: f32[s0, 4]"], "c2 feeds only dead nodes");
    assert_eq!(inputs.len(), 2);
    assert_eq!(graph.values[inputs[1]].name, "t");
    assert_eq!(ops(body), ["add", "add"]);
    let last = &body.nodes[*body.order.last().unwrap()];
    assert!(body.is_constant(last.inputs[1]));
    for (at, input) in body.inputs.iter().enumerate() {
        assert_eq!(body.values[input.value].def, Def::Input(at));
    }
    assert_eq!(body.symbols.get(onnxc_ir::graph::Sym::from_u32(0)).unwrap().name, "N");
}

#[test]
fn bodies_nest_and_capture_through() {
    let inner = with_inputs(body(vec![node("Add", &["s", "x"], &["r"])], &["r"]), &["s"]);
    let outer = with_inputs(body(vec![repeat(&["s"], "q", inner)], &["q"]), &["s"]);
    let graph = graph_of(&model(vec![repeat(&["x"], "y", outer)]));
    let (outer, inputs) = scan_body(&graph);
    assert_eq!(inputs, [graph.inputs[1].value, graph.inputs[1].value]);
    assert_eq!(input_types(outer), ["s: f32[s0, 4]", "x: f32[s0, 4]"]);
    let (inner, inputs) = scan_body(outer);
    assert_eq!(inputs, [outer.inputs[0].value, outer.inputs[1].value]);
    assert_eq!(ops(inner), ["add"]);
}

#[test]
fn bodies_in_functions_refer_to_the_functions_attributes() {
    let perm = a_ref("perm", "p", AttributeType::Ints);
    let then = body(vec![with(node("Transpose", &["a"], &["t"]), vec![perm])], &["t"]);
    let function = FunctionProto {
        name: Some("F".into()),
        domain: Some("local".into()),
        input: strings(&["c", "a"]),
        output: strings(&["y"]),
        attribute: strings(&["p"]),
        node: vec![choose(then, body(vec![], &["a"]))],
        opset_import: vec![opset("", 13)],
        ..Default::default()
    };
    let call = NodeProto { domain: Some("local".into()), ..node("F", &["c", "s"], &["y"]) };
    let mut model = model_of(graph(
        vec![value("c", DType::Bool, &[]), f32v("s", &["3", "3"])],
        vec![with(call, vec![a_ints("p", &[1, 0])])],
        vec![f32v("y", &["3", "3"])],
    ));
    model.functions = vec![function];
    model.opset_import.push(opset("local", 1));
    let graph = graph_of(&model);
    assert_eq!(ops(&graph), ["transpose", "select"]);
    assert_eq!(graph.origins[graph.nodes[graph.order[0]].origin].name, "F_0/Transpose_0");
}

#[test]
fn all_problems_of_all_bodies_are_reported_once() {
    let then = body(vec![node("Nope", &["x"], &["t"])], &["t"]);
    let otherwise = body(vec![node("Nada", &["x"], &["t"])], &["t"]);
    let names = |model: &ModelProto| -> Vec<String> {
        errors_of(model).iter().map(|error| error.node.as_ref().unwrap().op_type.clone()).collect()
    };
    assert_eq!(names(&model(vec![choose(then.clone(), otherwise.clone())])), ["Nope", "Nada"]);
    // The same where types are not known, or the operator itself is not.
    let poisoned = NodeProto { input: strings(&["p"]), ..choose(then, otherwise) };
    let unknown = NodeProto { op_type: Some("Unknown".into()), ..poisoned.clone() };
    let first = node("Gone", &["x"], &["p"]);
    assert_eq!(names(&model(vec![first.clone(), poisoned])), ["Gone", "Nope", "Nada"]);
    assert_eq!(names(&model(vec![first, unknown])), ["Gone", "Nope", "Nada", "Unknown"]);
    // Functions that are called there have operators of their own opsets.
    let inner = FunctionProto {
        name: Some("F".into()),
        domain: Some("local".into()),
        input: strings(&["a"]),
        output: strings(&["r"]),
        node: vec![node("Neg", &["a"], &["s"]), node("None", &["s"], &["r"])],
        opset_import: vec![opset("", 9)],
        ..Default::default()
    };
    let call = NodeProto { domain: Some("local".into()), ..node("F", &["x"], &["t"]) };
    let unknown = NodeProto {
        op_type: Some("Unknown".into()),
        ..choose(body(vec![call], &["t"]), body(vec![], &["x"]))
    };
    let mut calling = ModelProto { functions: vec![inner], ..model(vec![unknown]) };
    calling.opset_import.push(opset("local", 1));
    assert_eq!(names(&calling), ["None", "Unknown"]);
    // Values that depend on shapes alone.
    let sum = |result| node("Add", &["x", "k"], &[result]);
    let mut then = body(vec![sum("s"), sum("t")], &["t"]);
    then.initializer = vec![f32s("k", &[3], &[2.0; 3])];
    let errors = errors_of(&model(vec![choose(then, body(vec![], &["x"]))]));
    let nodes: Vec<usize> = errors.iter().map(|error| error.node.as_ref().unwrap().index).collect();
    assert_eq!(nodes, [0, 1], "{errors:?}");
}

#[test]
fn poison_reaches_bodies() {
    let captured = body(vec![node("Same", &["p"], &["t"])], &["t"]);
    let model = model(vec![node("Gone", &["x"], &["p"]), choose(captured, body(vec![], &["x"]))]);
    assert_eq!(error_of(&model).node.unwrap().op_type, "Gone");
}

#[test]
fn a_row_may_do_without_a_body_that_fails() {
    let bad = body(vec![node("Nope", &["x"], &["t"])], &["t"]);
    let model = model(vec![with(node("Try", &["x"], &["y"]), vec![a_graph("body", bad)])]);
    assert_eq!(ops(&graph_of(&model)), [""; 0]);
}

#[test]
fn bodies_are_checked() {
    let refused = |graph: GraphProto, text: &str| {
        refuses(&model(vec![repeat(&["x"], "y", graph)]), Kind::Malformed, text);
    };
    refused(body(vec![], &["x"]), "takes 0 inputs where 1 are given");
    refused(with_inputs(body(vec![], &["q"]), &["s"]), "body output `q` is not defined");
    refused(
        with_inputs(body(vec![node("Same", &["q"], &["t"])], &["t"]), &["s"]),
        "input `q` is not defined",
    );
    refused(with_inputs(body(vec![node("Same", &["s"], &["s"])], &["s"]), &["s"]), "`s` is defined twice");
}

#[test]
fn nesting_is_bounded() {
    let nested = (0..5).fold(body(vec![node("Neg", &["x"], &["y"])], &["y"]), |inner, _| {
        body(vec![choose(inner, body(vec![], &["x"]))], &["y"])
    });
    let model = model(vec![choose(nested, body(vec![], &["x"]))]);
    graph_of(&model);
    let options = ImportOptions { limits: Limits { nesting: 3, ..Default::default() }, ..Default::default() };
    let errors = run_with(&model, &options).unwrap_err();
    assert!(errors.len() == 1 && errors[0].kind == Kind::Budget, "{errors:?}");
}
