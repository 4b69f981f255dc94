//! Nodes: rows, arity, attributes, types, and how problems are collected.

use super::*;

#[test]
fn the_row_is_the_greatest_version_up_to_the_opset() {
    let mut model = model(vec![node("Neg", &["x"], &["y"])]);
    assert_eq!(ops(&graph_of(&model)), ["neg", "abs"]);
    model.opset_import = vec![opset("", 12)];
    assert_eq!(ops(&graph_of(&model)), ["neg"]);
}

#[test]
fn every_problem_is_reported_and_named() {
    let model = model(vec![
        NodeProto { name: Some("first".into()), ..node("Nope", &["x"], &["a"]) },
        node("Same", &["a"], &["b"]),
        node("Never", &["b"], &["c"]),
        NodeProto { domain: Some("com.example".into()), ..node("Custom", &["x"], &["d"]) },
        node("Late", &["x"], &["e"]),
        node("Transpose", &["c"], &["f"]),
        node("Neg", &["x"], &["y"]),
    ]);
    let text: Vec<String> = errors_of(&model).iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "node 0 `first` (ai.onnx.Nope) with x: f32[s0, 4]: operator Nope of ai.onnx opset 13: there is no operator of this name; a function of \
             the model can define it",
            "node 2 `Never_2` (ai.onnx.Never) with b: ?: operator Never of ai.onnx opset 13: there is no operator of this name; a function of the \
             model can define it",
            "node 3 `Custom_3` (com.example.Custom) with x: f32[s0, 4]: not supported yet: operator Custom of com.example \
             (no version of it is imported; imported: ai.onnx 13); a function of the model can define it, or one of your \
             program compute it: --custom-op com.example.Custom=FUNCTION",
            "node 4 `Late_4` (ai.onnx.Late) with x: f32[s0, 4]: not supported yet: operator Late of ai.onnx opset 13 \
             (known from version 18 or earlier on)",
            "node 5 `Transpose_5` (ai.onnx.Transpose since 1) with c: ?: the required attribute perm is missing",
        ]
    );
}

#[test]
fn the_real_table_is_used() {
    let mut model = model(vec![node("NoSuchOperator", &["x"], &["y"])]);
    model.opset_import = vec![opset("", 20)];
    let errors = import(&model, &ImportOptions::default(), &NoExternalData, &Table::standard()).unwrap_err();
    assert!(errors[0].message.contains("operator NoSuchOperator of ai.onnx opset 20"), "{errors:?}");
    model.graph.as_mut().unwrap().node[0].op_type = Some("Relu".into());
    let graph = import(&model, &ImportOptions::default(), &NoExternalData, &Table::standard()).unwrap().graph;
    assert_eq!(ops(&graph), ["max"]);
}

#[test]
fn optional_inputs_may_be_left_out() {
    let clamp = |inputs: &[&str], outputs: &[&str]| {
        with_initializers(model(vec![node("Clamp", inputs, outputs)]), vec![f32s("c", &[], &[1.0])])
    };
    assert_eq!(ops(&graph_of(&clamp(&["x", "", "c"], &["y"]))), ["min"]);
    assert_eq!(ops(&graph_of(&clamp(&["x", "c", ""], &["", "y"]))), ["max"]);
    assert_eq!(ops(&graph_of(&clamp(&["x", "", ""], &["y"]))), [""; 0]);
    refuses(&clamp(&["", "c"], &["y"]), Kind::Malformed, "input 0 (X) is missing");
    refuses(&clamp(&["x", "c", "c", "c"], &["y"]), Kind::Malformed, "4 inputs where at most 3 are taken");
    refuses(&clamp(&["x"], &["y", "z", "w"]), Kind::Malformed, "3 outputs where at most 2 are taken");
    graph_of(&clamp(&["x", "", "", ""], &["y", "", ""]));
}

#[test]
fn outputs_that_the_attributes_do_not_give_may_not_be_named() {
    let same = |outputs: &[&str]| model(vec![node("Same", &["x"], outputs)]);
    graph_of(&same(&["y", ""]));
    refuses(
        &same(&["y", "z"]),
        Kind::Malformed,
        "output 1 (Z) is named, and is not given with these attributes",
    );
}

#[test]
fn there_are_no_more_outputs_than_the_inputs_give() {
    let each = |outputs: &[&str]| model(vec![node("Each", &["x", "x"], outputs)]);
    graph_of(&each(&["y", "z"]));
    graph_of(&each(&["y"]));
    refuses(&each(&["y", "z", "w"]), Kind::Malformed, "3 outputs are named, and the inputs give 2");
}

#[test]
fn variadic_inputs_take_any_number_but_none() {
    let sum = |inputs: &[&str]| model(vec![node("AddN", inputs, &["y"])]);
    assert_eq!(ops(&graph_of(&sum(&["x", "x", "x"]))), ["add", "add"]);
    refuses(&sum(&[]), Kind::Malformed, "input 0 (X) is missing");
}

#[test]
fn input_types_must_fit_the_row() {
    let typed = |a: DType, b: DType| {
        model_of(graph(
            vec![value("a", a, &["4"]), value("b", b, &["4"])],
            vec![node("Add", &["a", "b"], &["y"])],
            vec![value("y", a, &["4"])],
        ))
    };
    graph_of(&typed(DType::I64, DType::I64));
    refuses(
        &typed(DType::F32, DType::F64),
        Kind::Malformed,
        "input 1 (B) is f64 and input 0 is f32; both are T",
    );
    refuses(&typed(DType::Bool, DType::Bool), Kind::Unsupported, "input 0 (A) is bool; T is one of u8");
    let error = error_of(&typed(DType::F32, DType::F64));
    let node = error.node.unwrap();
    assert_eq!(
        (node.version, node.inputs),
        (Some(1), vec!["a: f32[4]".to_string(), "b: f64[4]".to_string()])
    );
}

#[test]
fn a_row_may_fix_a_type() {
    let pick = |dtype: DType| {
        model_of(graph(
            vec![f32v("x", &["4"]), value("at", dtype, &["2"])],
            vec![node("Pick", &["x", "at"], &["y"])],
            vec![f32v("y", &["2"])],
        ))
    };
    assert_eq!(ops(&graph_of(&pick(DType::I64))), ["gather"]);
    refuses(&pick(DType::I32), Kind::Unsupported, "input 1 (at) is i32; tensor(int64) is one of i64");
}

#[test]
fn output_types_must_fit_the_row() {
    let mut cast = model(vec![node("Cast", &["x"], &["y"])]);
    cast.opset_import = vec![opset("", 13)];
    cast.graph.as_mut().unwrap().node[0].attribute =
        vec![AttributeProto { i: Some(24), ..attribute("to", AttributeType::Int) }];
    let errors = import(&cast, &ImportOptions::default(), &NoExternalData, &Table::standard()).unwrap_err();
    assert!(errors[0].message.starts_with("output 0 (output) is f8e8m0; T2 is one of "), "{errors:?}");
}

#[test]
fn results_must_have_elements_and_sizes_that_a_machine_computes_with() {
    let transpose = |dtype: DType, dims: &[&str]| {
        let perm = AttributeProto { ints: vec![1, 0], ..attribute("perm", AttributeType::Ints) };
        let node = NodeProto { attribute: vec![perm], ..node("Transpose", &["x"], &["y"]) };
        model_of(graph(vec![value("x", dtype, dims)], vec![node], vec![value("y", dtype, &[])]))
    };
    refuses(&transpose(DType::C64, &["2", "3"]), Kind::Unsupported, "c64");
    let outer = model_of(graph(
        vec![f32v("x", &["8388608", "1"]), f32v("z", &["1", "8388608"])],
        vec![node("Add", &["x", "z"], &["y"])],
        vec![f32v("y", &[])],
    ));
    refuses(&outer, Kind::Budget, "f32[8388608, 8388608] is larger than 140737488355328 bytes");
}

#[test]
fn attributes_are_checked() {
    let transpose = |attributes: Vec<AttributeProto>| {
        model_of(graph(
            vec![f32v("x", &["2", "3"])],
            vec![with(node("Transpose", &["x"], &["y"]), attributes)],
            vec![untyped("y")],
        ))
    };
    let perm = || a_ints("perm", &[1, 0]);
    assert_eq!(ops(&graph_of(&transpose(vec![perm()]))), ["transpose"]);
    assert_eq!(ops(&graph_of(&transpose(vec![perm(), a_int("times", 2)]))), ["transpose", "transpose"]);
    refuses(&transpose(vec![]), Kind::Malformed, "required attribute perm is missing");
    warns(
        &transpose(vec![perm(), a_int("axis", 1)]),
        Rule::AttributeUnknown,
        "attribute `axis` is not one of perm, times, scale; it is not read",
    );
    refuses(&transpose(vec![perm(), perm()]), Kind::Malformed, "attribute perm is given twice");
    refuses(
        &transpose(vec![a_int("perm", 1)]),
        Kind::Malformed,
        "perm is an int, and must be a list of ints",
    );
    let reference = a_ref("perm", "p", AttributeType::Ints);
    refuses(&transpose(vec![reference]), Kind::Malformed, "outside a function");
    let unknown = AttributeProto { r#type: Some(77), ..perm() };
    refuses(&transpose(vec![unknown]), Kind::Malformed, "unknown kind 77");
}

#[test]
fn old_attributes_without_a_kind_show_it_by_their_field() {
    let untyped = AttributeProto { r#type: None, ..a_ints("perm", &[1, 0]) };
    let model = |attribute: AttributeProto| {
        model_of(graph(
            vec![f32v("x", &["2", "3"])],
            vec![with(node("Transpose", &["x"], &["y"]), vec![attribute])],
            vec![f32v("y", &["3", "2"])],
        ))
    };
    let mut old = model(untyped.clone());
    (old.ir_version, old.opset_import) = (Some(1), vec![]);
    assert_eq!(ops(&graph_of(&old)), ["transpose"]);
    refuses(&model(untyped.clone()), Kind::Malformed, "attribute perm has a list of ints and no type");
    let empty = AttributeProto { ints: vec![], ..untyped };
    refuses(&model(empty), Kind::Malformed, "attribute perm has no value");
}

#[test]
fn an_error_of_a_row_names_the_node() {
    let model = model_of(graph(
        vec![f32v("a", &["2"]), f32v("b", &["3"])],
        vec![node("Add", &["a", "b"], &["y"])],
        vec![f32v("y", &["3"])],
    ));
    let error = error_of(&model);
    assert_eq!(error.stage, Stage::Infer);
    assert_eq!(error.node.unwrap().op_type, "Add");
}
