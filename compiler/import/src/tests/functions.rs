//! Functions of the model.

use super::*;

fn function(name: &str, inputs: &[&str], outputs: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: Some(name.into()),
        domain: Some("local".into()),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: vec![opset("", 13), opset("local", 1)],
        ..Default::default()
    }
}

fn call(name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto { domain: Some("local".into()), ..node(name, inputs, outputs) }
}

fn model_with(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    let mut model = ModelProto { functions, ..model(nodes) };
    model.opset_import.push(opset("local", 1));
    model
}

fn transpose(perm: AttributeProto) -> NodeProto {
    with(node("Transpose", &["a"], &["r"]), vec![perm])
}

#[test]
fn derivatives_nest_as_deep_as_the_limit() {
    let gradient = |y: &str, dy: &str| {
        let names = |name: &str, strings: &[&str]| AttributeProto {
            strings: strings.iter().map(|text| text.to_string().into()).collect(),
            ..attribute(name, AttributeType::Strings)
        };
        let text = AttributeProto { s: Some(y.to_string().into()), ..attribute("y", AttributeType::String) };
        let node = with(node("Gradient", &["x"], &[dy]), vec![names("xs", &["x"]), text]);
        NodeProto { domain: Some("ai.onnx.preview.training".into()), ..node }
    };
    let nodes = vec![node("Mul", &["x", "x"], &["s"]), gradient("s", "ds"), gradient("ds", "dds")];
    let mut model = model_of(graph(vec![f32v("x", &[])], nodes, vec![f32v("dds", &[])]));
    model.opset_import.push(opset("ai.onnx.preview.training", 1));
    let import = |nesting| {
        let limits = Limits { nesting, ..Limits::default() };
        import(
            &model,
            &ImportOptions { limits, ..ImportOptions::default() },
            &NoExternalData,
            &Table::standard(),
        )
    };
    import(2).unwrap();
    let errors = import(1).unwrap_err();
    assert!(errors[0].message.contains("derivatives of derivatives nest deeper than 1"), "{errors:?}");
}

#[test]
fn calls_are_inlined_with_names_of_their_own() {
    let twice =
        function("Twice", &["a"], &["r"], vec![node("Neg", &["a"], &["t"]), node("Neg", &["t"], &["r"])]);
    let nodes = vec![call("Twice", &["x"], &["t"]), call("Twice", &["t"], &["y"])];
    let graph = graph_of(&model_with(nodes, vec![twice]));
    assert_eq!(ops(&graph), ["neg", "abs"].repeat(4));
    let origins: Vec<&str> = graph
        .order
        .iter()
        .step_by(2)
        .map(|&node| graph.origins[graph.nodes[node].origin].name.as_str())
        .collect();
    assert_eq!(origins, ["Twice_0/Neg_0", "Twice_0/Neg_1", "Twice_1/Neg_0", "Twice_1/Neg_1"]);
    assert!(graph.values.values().any(|value| value.name == "Twice_1/t"));
}

#[test]
fn functions_use_their_own_opsets() {
    let mut old = function("Old", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])]);
    old.opset_import = vec![opset("", 9)];
    let calls = || vec![call("Old", &["x"], &["y"])];
    assert_eq!(ops(&graph_of(&model_with(calls(), vec![old.clone()]))), ["neg"]);
    old.opset_import.clear();
    refuses(
        &model_with(calls(), vec![old]),
        Kind::Malformed,
        "no version of `ai.onnx` is imported; imported: nothing",
    );
}

#[test]
fn overloads_tell_functions_apart_and_functions_hide_operators() {
    let plain = function("F", &["a"], &["r"], vec![node("Same", &["a"], &["r"])]);
    let overloaded = FunctionProto {
        overload: Some("neg".into()),
        ..function("F", &["a"], &["r"], vec![node("Neg", &["a"], &["r"])])
    };
    let hiding = FunctionProto { name: Some("Same".into()), domain: None, ..overloaded.clone() };
    let hiding = FunctionProto { overload: None, ..hiding };
    let nodes = |overload: &str| {
        let node = NodeProto { overload: Some(overload.into()), ..call("F", &["x"], &["y"]) };
        model_with(vec![node], vec![plain.clone(), overloaded.clone()])
    };
    assert_eq!(ops(&graph_of(&nodes(""))), [""; 0]);
    assert_eq!(ops(&graph_of(&nodes("neg"))), ["neg", "abs"]);
    refuses(&nodes("other"), Kind::Unsupported, "no function with overload `other`");
    let model = model_with(vec![node("Same", &["x"], &["y"])], vec![hiding]);
    assert_eq!(ops(&graph_of(&model)), ["neg", "abs"]);
    refuses(
        &model_with(vec![call("F", &["x"], &["y"])], vec![plain.clone(), plain.clone()]),
        Kind::Malformed,
        "function local.F `` is defined twice",
    );
}

#[test]
fn attributes_come_from_the_call_or_the_default() {
    let shape = |attributes: Vec<AttributeProto>, defaults: Vec<AttributeProto>| {
        let mut function =
            function("F", &["a"], &["r"], vec![transpose(a_ref("perm", "p", AttributeType::Ints))]);
        function.attribute = if defaults.is_empty() { strings(&["p"]) } else { vec![] };
        function.attribute_proto = defaults;
        let mut model = model_with(vec![with(call("F", &["x"], &["y"]), attributes)], vec![function]);
        model.graph.as_mut().unwrap().output[0].r#type = None;
        model
    };
    let types = |model: &ModelProto| {
        let graph = graph_of(model);
        graph.ty(graph.outputs[0].1).to_string()
    };
    assert_eq!(types(&shape(vec![a_ints("p", &[1, 0])], vec![])), "f32[4, s0]");
    assert_eq!(types(&shape(vec![], vec![a_ints("p", &[1, 0])])), "f32[4, s0]");
    assert_eq!(types(&shape(vec![a_ints("p", &[0, 1])], vec![a_ints("p", &[1, 0])])), "f32[s0, 4]");
    refuses(&shape(vec![], vec![]), Kind::Malformed, "required attribute perm is missing");
    refuses(
        &shape(vec![a_int("p", 1)], vec![]),
        Kind::Malformed,
        "perm is an int, and must be a list of ints",
    );
    let default = || vec![a_ints("p", &[1, 0])];
    warns(&shape(vec![a_int("q", 1)], default()), Rule::CallAttribute, "function F has no attribute `q`");
}

#[test]
fn references_pass_through_nested_calls() {
    let mut inner =
        function("Inner", &["a"], &["r"], vec![transpose(a_ref("perm", "p", AttributeType::Ints))]);
    inner.attribute = strings(&["p"]);
    let nested = with(call("Inner", &["a"], &["r"]), vec![a_ref("p", "q", AttributeType::Ints)]);
    let mut outer = function("Outer", &["a"], &["r"], vec![nested]);
    outer.attribute = strings(&["q"]);
    let nodes = vec![with(call("Outer", &["x"], &["y"]), vec![a_ints("q", &[1, 0])])];
    let mut model = model_with(nodes, vec![inner, outer]);
    model.graph.as_mut().unwrap().output[0] = f32v("y", &["4", "N"]);
    let graph = graph_of(&model);
    let origin = graph.nodes[graph.order[0]].origin;
    assert_eq!(graph.origins[origin].name, "Outer_0/Inner_0/Transpose_0");
}

#[test]
fn omitted_inputs_stay_omitted() {
    let inner = function("F", &["a", "lo"], &["r"], vec![node("Clamp", &["a", "lo"], &["r"])]);
    for inputs in [&["x"][..], &["x", ""]] {
        let model = model_with(vec![call("F", inputs, &["y"])], vec![inner.clone()]);
        assert_eq!(ops(&graph_of(&model)), [""; 0]);
    }
    let model = model_with(vec![call("F", &["x", "x"], &["y"])], vec![inner.clone()]);
    assert_eq!(ops(&graph_of(&model)), ["max"]);
    let model = model_with(vec![call("F", &["x", "x", "x"], &["y"])], vec![inner]);
    refuses(&model, Kind::Malformed, "3 inputs where function F has 2");
}

#[test]
fn problems_inside_are_reported_with_the_path() {
    let inner = function(
        "F",
        &["a"],
        &["r"],
        vec![node("Nope", &["a"], &["t"]), node("Nada", &["a"], &["u"]), node("Add", &["t", "u"], &["r"])],
    );
    let errors = errors_of(&model_with(vec![call("F", &["x"], &["y"])], vec![inner]));
    let names: Vec<&str> = errors.iter().map(|error| error.node.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["F_0/Nope_0", "F_0/Nada_1"]);
    let missing = function("F", &["a"], &["r"], vec![]);
    let model = model_with(vec![call("F", &["x"], &["y"])], vec![missing]);
    refuses(&model, Kind::Malformed, "output `r` of function F is not defined");
}

#[test]
fn recursion_and_explosion_are_bounded() {
    let f = function("F", &["a"], &["r"], vec![call("G", &["a"], &["r"])]);
    let g = function("G", &["a"], &["r"], vec![call("F", &["a"], &["r"])]);
    refuses(&model_with(vec![call("F", &["x"], &["y"])], vec![f, g]), Kind::Malformed, "calls itself");

    let level = |at: usize, nodes: usize| {
        let next = format!("F{}", at + 1);
        let chain = |step: usize| {
            let names: Vec<String> = (0..=nodes)
                .map(|name| match name {
                    0 => "a".to_string(),
                    _ if name == nodes => "r".to_string(),
                    _ => format!("t{name}"),
                })
                .collect();
            call(&next, &[&names[step]], &[&names[step + 1]])
        };
        function(&format!("F{at}"), &["a"], &["r"], (0..nodes).map(chain).collect())
    };
    let leaf = |at: usize| {
        let name = format!("F{at}");
        function(&name, &["a"], &["r"], vec![node("Same", &["a"], &["r"])])
    };
    let wide: Vec<_> = (0..30).map(|at| level(at, 10)).chain([leaf(30)]).collect();
    let options =
        ImportOptions { limits: Limits { primitives: 1000, ..Default::default() }, ..Default::default() };
    let errors = run_with(&model_with(vec![call("F0", &["x"], &["y"])], wide), &options).unwrap_err();
    assert!(errors.len() == 1 && errors[0].kind == Kind::Budget, "{errors:?}");

    let deep: Vec<_> = (0..64).map(|at| level(at, 1)).chain([leaf(64)]).collect();
    let model = model_with(vec![call("F0", &["x"], &["y"])], deep);
    let error = error_of(&model);
    assert!(error.kind == Kind::Budget && error.message.contains("nest deeper than 64"), "{error}");
}

/// A call may leave out outputs, also behind the last one that it names, and inputs.
#[test]
fn calls_need_not_name_every_output() {
    let both = function(
        "Both",
        &["x", "unused"],
        &["p", "q"],
        vec![node("Neg", &["x"], &["p"]), node("Same", &["x"], &["q"])],
    );
    for (outputs, negates) in [(&["y", ""][..], true), (&["", "y"], false), (&["", "y", ""], false)] {
        let graph = graph_of(&model_with(vec![call("Both", &["x", "", ""], outputs)], vec![both.clone()]));
        assert_eq!(!ops(&graph).is_empty(), negates, "{outputs:?}");
    }
}
