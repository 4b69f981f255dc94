//! The model and its interface: versions, inputs, initializers, symbols, pins, outputs.

use onnxc_proto::{DeviceConfigurationProto, StringStringEntryProto, TensorAnnotation, TrainingInfoProto};

use super::*;

fn pinned(model: &ModelProto, pins: &[&str]) -> Outcome {
    let input_dims = pins.iter().map(|pin| pin.parse().unwrap()).collect();
    run_with(model, &ImportOptions { input_dims, ..Default::default() })
}

fn pin_error(model: &ModelProto, pins: &[&str]) -> String {
    let errors = pinned(model, pins).unwrap_err();
    assert!(errors.len() == 1 && errors[0].kind == Kind::Usage, "{errors:#?}");
    errors[0].message.clone()
}

#[test]
fn imports_a_graph_with_names_origins_and_metadata() {
    let mut model = model(vec![node("Neg", &["x"], &["t"]), node("Neg", &["t"], &["y"])]);
    model.metadata_props =
        vec![StringStringEntryProto { key: Some("author".into()), value: Some("me".into()) }];
    model.graph.as_mut().unwrap().node[1].name = Some("second".into());
    let graph = graph_of(&model);
    assert_eq!(graph.name, "g");
    assert_eq!(graph.metadata, [("author".to_string(), "me".to_string())]);
    assert_eq!(input_types(&graph), ["x: f32[s0, 4]"]);
    assert_eq!(ops(&graph), ["neg", "abs", "neg", "abs"]);
    let origin = |at: usize| graph.origins[graph.nodes[graph.order[at]].origin].clone();
    assert_eq!((origin(0).name.as_str(), origin(0).index), ("Neg_0", 0));
    assert_eq!((origin(3).name.as_str(), origin(3).index), ("second", 1));
    let (name, value) = &graph.outputs[0];
    assert_eq!((name.as_str(), graph.values[*value].name.as_str()), ("y", "y"));
    assert!(graph.values.values().any(|value| value.name == "t"));
}

#[test]
fn a_declared_size_of_zero_is_a_size() {
    let none = |name: &str| f32v(name, &["0", "4"]);
    let graph =
        graph_of(&model_of(graph(vec![none("x")], vec![node("Neg", &["x"], &["y"])], vec![none("y")])));
    assert_eq!(input_types(&graph), ["x: f32[0, 4]"]);
}

#[test]
fn dead_nodes_leave_the_order() {
    let graph = graph_of(&model(vec![node("Neg", &["x"], &["dead"]), node("Same", &["x"], &["y"])]));
    assert!(graph.order.is_empty());
    assert_eq!(graph.outputs[0].1, graph.inputs[0].value);
}

/// Of three outputs the first and the last, and what these need.
#[test]
fn some_of_the_outputs() {
    let nodes = vec![node("Neg", &["x"], &["a"]), node("Neg", &["a"], &["b"]), node("Neg", &["x"], &["c"])];
    let types = |name: &str| f32v(name, &["s0", "4"]);
    let model = model_of(graph(vec![types("x")], nodes, vec![types("a"), types("b"), types("c")]));
    let some = |names: &[&str]| {
        let outputs = names.iter().map(|name| name.to_string()).collect();
        run_with(&model, &ImportOptions { outputs, ..Default::default() }).map(|import| import.graph)
    };
    let names = |graph: &Graph| graph.outputs.iter().map(|output| output.0.clone()).collect::<Vec<_>>();
    let whole = graph_of(&model);
    assert_eq!(names(&whole), ["a", "b", "c"]);
    let kept = some(&["c", "a"]).unwrap();
    assert_eq!(names(&kept), ["a", "c"]);
    assert!(!kept.order.is_empty() && kept.order.len() < whole.order.len());
    assert_eq!(some(&["b"]).unwrap().inputs.len(), 1);
    let error = some(&["a", "d"]).err().unwrap().remove(0);
    assert_eq!(
        (error.kind, error.message.as_str()),
        (Kind::Usage, "the model has no output `d`; there are `a`, `b`, `c`")
    );
}

#[test]
fn versions_are_checked() {
    let good = model(vec![node("Neg", &["x"], &["y"])]);
    let future = ModelProto { ir_version: Some(15), ..good.clone() };
    refuses(&future, Kind::Unsupported, "IR version 15; the newest known is 14");
    let newest = ModelProto { ir_version: Some(14), ..good.clone() };
    assert!(!ops(&graph_of(&newest)).is_empty());
    let missing = ModelProto { opset_import: vec![], ..good.clone() };
    refuses(&missing, Kind::Malformed, "no version of `ai.onnx` is imported; imported: nothing");
    let old = ModelProto { opset_import: vec![], ir_version: Some(1), ..good.clone() };
    assert_eq!(ops(&graph_of(&old)), ["neg"], "before IR version 3 the opset is 1");
    let spelt = ModelProto { opset_import: vec![opset("ai.onnx", 13)], ..good.clone() };
    assert_eq!(ops(&graph_of(&spelt)), ["neg", "abs"]);
    let twice = ModelProto { opset_import: vec![opset("", 12), opset("ai.onnx", 13)], ..good.clone() };
    warns(&twice, Rule::DomainTwice, "versions 12 and 13 of `ai.onnx`: 13 is taken");
    let negative = ModelProto { opset_import: vec![opset("", 13), opset("a", -1)], ..good.clone() };
    refuses(&negative, Kind::Malformed, "version -1 of `a`");
    refuses(&ModelProto { graph: None, ..good }, Kind::Malformed, "no graph");
}

#[test]
fn what_is_ignored_is_noted() {
    let mut model = model(vec![node("Neg", &["x"], &["y"])]);
    model.opset_import = vec![opset("", 99)];
    model.training_info = vec![TrainingInfoProto::default()];
    model.configuration = vec![DeviceConfigurationProto { name: Some("two".into()), ..Default::default() }];
    model.graph.as_mut().unwrap().quantization_annotation =
        vec![TensorAnnotation { tensor_name: Some("x".into()), ..Default::default() }];
    let notes = run(&model).unwrap().notes;
    for (note, text) in notes.iter().zip(["opset 99", "training_info", "`two`", "annotation of `x`"]) {
        assert!(note.contains(text), "{note}");
    }
    assert_eq!(notes.len(), 4);
}

#[test]
fn initializers_are_constants_or_defaults_by_ir_version() {
    let mut model = with_initializers(
        model(vec![node("Add", &["x", "w"], &["y"])]),
        vec![f32s("w", &[4], &[1.0, 2.0, 3.0, 4.0])],
    );
    assert_eq!(input_types(&graph_of(&model)), ["x: f32[s0, 4]"]);
    model.graph.as_mut().unwrap().input.push(f32v("w", &["4"]));
    let options = ImportOptions { overridable_defaults: true, ..Default::default() };
    let overridable = run_with(&model, &options).unwrap().graph;
    assert_eq!(input_types(&overridable), ["x: f32[s0, 4]", "w: f32[4]"]);
    assert_eq!(overridable.inputs[1].default, Some(Tensor::from_slice(&[4], &[1.0f32, 2.0, 3.0, 4.0])));
    let frozen = run_with(&model, &ImportOptions::default()).unwrap();
    assert_eq!(frozen.graph.inputs.len(), 1);
    assert_eq!(frozen.notes, ["initializers that are also inputs are constants: w"]);
    model.ir_version = Some(3);
    let old = graph_of(&model);
    assert_eq!(input_types(&old), ["x: f32[s0, 4]"]);
    assert!(old.values.values().any(|value| value.name == "w" && value.ty.to_string() == "f32[4]"));
    model.graph.as_mut().unwrap().input[1] = f32v("w", &["5"]);
    let warning = "`w` is declared as f32[5], and its type is f32[4], which holds";
    warns(&model, Rule::DeclaredShape, warning);
    model.ir_version = Some(8);
    let errors = run_with(&model, &options).unwrap_err();
    assert!(errors.len() == 1 && errors[0].message.contains("`w` is declared as f32[5]"), "{errors:?}");
}

#[test]
fn symbols_are_shared_by_name_and_fresh_without_one() {
    let inputs = vec![f32v("x", &["N", "?", "M"]), f32v("z", &["M", "N", "-1"])];
    let graph = graph_of(&model_of(graph(
        inputs,
        vec![node("Same", &["x"], &["y"])],
        vec![f32v("y", &["N", "?", "M"])],
    )));
    assert_eq!(input_types(&graph), ["x: f32[s0, s1, s2]", "z: f32[s2, s0, s3]"]);
    let names: Vec<&str> = graph.symbols.values().take(4).map(|symbol| symbol.name.as_str()).collect();
    assert_eq!(names, ["N", "?1", "M", "?3"]);
}

#[test]
fn pins_fix_symbols_and_axes() {
    let inputs = vec![f32v("x:0", &["N", "?", "4"]), f32v("z", &["N"])];
    let model = model_of(graph(inputs, vec![node("Same", &["z"], &["y"])], vec![f32v("y", &["N"])]));
    let types = |pins: &[&str]| input_types(&pinned(&model, pins).unwrap().graph);
    assert_eq!(types(&["N=2"]), ["x:0: f32[2, s0, 4]", "z: f32[2]"]);
    assert_eq!(types(&["x:0:1=7", "x:0:0=2"]), ["x:0: f32[2, 7, 4]", "z: f32[2]"]);
    assert_eq!(types(&["x:0:2=4"]), ["x:0: f32[s0, s1, 4]", "z: f32[s0]"]);
    assert!(pin_error(&model, &["x:0:2=5"]).contains("is 4, not 5"));
    assert!(pin_error(&model, &["x:0:3=5"]).contains("no axis 3"));
    assert!(pin_error(&model, &["Q=5"]).contains("neither a symbol (N)"));
    assert!(pin_error(&model, &["N=5", "z:0=6"]).contains("both 5 and 6"));
    for text in ["N", "N=", "=3", "N=-1", "N=x"] {
        assert_eq!(text.parse::<DimPin>().unwrap_err().kind, Kind::Usage, "{text}");
    }
}

#[test]
fn values_that_are_no_tensors_are_named() {
    let boxed = |ty: type_proto::Value| Some(Box::new(TypeProto { value: Some(ty), denotation: None }));
    let sequence = |inner: Option<Box<TypeProto>>| {
        type_proto::Value::SequenceType(Box::new(type_proto::Sequence { elem_type: inner }))
    };
    let tensor = || f32v("", &["2"]).r#type.map(Box::new);
    let nested = sequence(boxed(sequence(tensor())));
    let map = type_proto::Map { key_type: Some(7), value_type: boxed(sequence(tensor())) };
    let sparse = type_proto::SparseTensor { elem_type: Some(1), shape: None };
    let cases = [
        (
            typed("v", nested),
            "`v` of type seq(seq(f32[2])): an element of the sequence is a sequence; it may be a tensor or a map",
        ),
        (
            typed("v", type_proto::Value::MapType(Box::new(map))),
            "`v` of type map(i64, seq(f32[2])): a value of the map is a sequence; it may be a tensor",
        ),
        (typed("v", type_proto::Value::SparseTensorType(sparse)), "`v` of type sparse(f32)"),
    ];
    for (info, text) in cases {
        let mut model = model(vec![node("Same", &["x"], &["y"])]);
        model.graph.as_mut().unwrap().input.push(info.clone());
        refuses(&model, Kind::Unsupported, text);
        model.graph.as_mut().unwrap().input.pop();
        model.graph.as_mut().unwrap().output.push(info);
        refuses(&model, Kind::Unsupported, &format!("output {text}"));
    }
    // An output that some node gives is refused with that.
    let mut sparse = model(vec![node("Same", &["x"], &["y"])]);
    let shape = TensorShapeProto::default();
    let ty = type_proto::SparseTensor { elem_type: Some(1), shape: Some(shape) };
    sparse.graph.as_mut().unwrap().output = vec![typed("y", type_proto::Value::SparseTensorType(ty))];
    let text = error_of(&sparse).to_string();
    assert!(text.contains("Same_0") && text.contains("output `y` of type sparse(f32[])"), "{text}");
    assert!(text.contains("a sparse tensor may be an input or a constant, and no output"), "{text}");
}

#[test]
fn inputs_need_a_type_a_rank_and_a_sane_size() {
    let broken = |info: ValueInfoProto| {
        let mut model = model(vec![node("Same", &["x"], &["y"])]);
        model.graph.as_mut().unwrap().input.push(info);
        error_of(&model)
    };
    assert!(broken(untyped("v")).message.contains("the type is missing"));
    let no_rank = type_proto::Tensor { elem_type: Some(1), shape: None };
    let error = broken(typed("v", type_proto::Value::TensorType(no_rank)));
    assert!(error.kind == Kind::Unsupported && error.message.contains("rank is unknown"), "{error}");
    let unknown = type_proto::Tensor { elem_type: Some(99), shape: Some(TensorShapeProto::default()) };
    assert!(broken(typed("v", type_proto::Value::TensorType(unknown))).message.contains("number 99"));
    assert_eq!(broken(f32v("v", &["9223372036854775807", "N"])).kind, Kind::Budget);
    assert!(broken(f32v("x", &["2"])).message.contains("`x` is defined twice"));
    let inner = f32v("", &["9223372036854775807", "N"]).r#type.map(Box::new);
    let optional = type_proto::Value::OptionalType(Box::new(type_proto::Optional { elem_type: inner }));
    let error = broken(typed("v", optional));
    assert!(error.kind == Kind::Budget && error.message.contains("input `v`"), "{error}");
}

#[test]
fn inputs_have_names() {
    let mut model = model(vec![node("Same", &["x"], &["y"])]);
    model.graph.as_mut().unwrap().input.push(f32v("", &["2"]));
    refuses(&model, Kind::Malformed, "a graph input has no name");
}

/// A second input of a name is reported as its only problem.
#[test]
fn a_second_input_of_a_name_is_looked_at_no_further() {
    let mut model = model(vec![node("Same", &["x"], &["y"])]);
    model.graph.as_mut().unwrap().input.push(untyped("x"));
    refuses(&model, Kind::Malformed, "input `x` is defined twice");
}

#[test]
fn outputs_are_checked_against_what_is_declared() {
    let declared = |info: ValueInfoProto| {
        model_of(graph(vec![f32v("x", &["N", "4"])], vec![node("Same", &["x"], &["y"])], vec![info]))
    };
    for info in [f32v("y", &["3", "4"]), f32v("y", &["M", "?"]), f32v("y", &["N", "4"])] {
        graph_of(&declared(info));
    }
    for (info, text) in [
        (f32v("y", &["N", "5"]), "`y` is declared as f32[N, 5], and its type is f32[s0, 4], which holds"),
        (f32v("y", &["N"]), "`y` is declared as f32[N], and its type is f32[s0, 4], which holds"),
    ] {
        warns(&declared(info), Rule::DeclaredShape, text);
    }
    let integers = declared(value("y", DType::I64, &["N", "4"]));
    let text = "`y` is declared as i64[N, 4], and its type is f32[s0, 4], which holds";
    warns(&integers, Rule::DeclaredType, text);
    assert_eq!(graph_of(&integers).ty(graph_of(&integers).outputs[0].1).dtype, DType::F32);
    let input = model_of(graph(vec![f32v("x", &["N", "4"])], vec![], vec![f32v("x", &["N", "5"])]));
    warns(&input, Rule::DeclaredShape, "`x` is declared as f32[N, 5]");
    refuses(&declared(f32v("q", &["N"])), Kind::Malformed, "output `q` is not defined");
    let untyped = untyped("y");
    graph_of(&declared(untyped));
    refuses(&model_of(graph(vec![], vec![], vec![])), Kind::Malformed, "no outputs");
    let mut twice = declared(f32v("y", &["N", "4"]));
    twice.graph.as_mut().unwrap().output.push(f32v("y", &["N", "4"]));
    warns(&twice, Rule::OutputTwice, "listed twice");
    assert_eq!(graph_of(&twice).outputs.len(), 1);
}

#[test]
fn declared_output_dims_reach_the_row_and_name_symbols() {
    let model = model_of(graph(
        vec![f32v("x", &["N", "4"])],
        vec![node("Free", &["x"], &["y"])],
        vec![f32v("y", &["N", "rows", "2"])],
    ));
    let graph = graph_of(&model);
    let ty = graph.ty(graph.outputs[0].1);
    assert_eq!(ty.shape[0], graph.ty(graph.inputs[0].value).shape[0]);
    assert_eq!(graph.symbols[ty.shape[1].as_sym().unwrap()].name, "rows");
}

#[test]
fn names_are_defined_once_and_before_use() {
    let nodes = |nodes: Vec<NodeProto>| model(nodes);
    refuses(
        &nodes(vec![node("Same", &["x"], &["y"]), node("Same", &["x"], &["y"])]),
        Kind::Malformed,
        "value `y` is defined twice",
    );
    refuses(&nodes(vec![node("Same", &["x"], &["x"]), node("Same", &["x"], &["y"])]), Kind::Malformed, "`x`");
    refuses(&nodes(vec![node("Same", &["q"], &["y"])]), Kind::Malformed, "input `q` is not defined");
    refuses(&nodes(vec![node("Same", &["y"], &["y"])]), Kind::Malformed, "depends on the node itself");
    let twice = vec![f32s("w", &[], &[1.0]), f32s("w", &[], &[2.0])];
    let model = with_initializers(nodes(vec![node("Same", &["x"], &["y"])]), twice);
    warns(&model, Rule::InitializerTwice, "initializer `w` is defined twice; the last one counts");
    let unlike = vec![f32s("w", &[], &[1.0]), f32s("w", &[1], &[2.0])];
    let model = with_initializers(nodes(vec![node("Same", &["x"], &["y"])]), unlike);
    refuses(&model, Kind::Malformed, "initializer `w` is defined twice, as f32[] and as f32[1]");
}

/// Every problem of the real models is something that is not supported yet.
#[test]
fn real_models_fail_only_for_what_is_not_supported() {
    let Some(folder) = std::env::var_os("ONNXC_MODELS") else { return };
    let mut models = 0;
    for entry in std::path::Path::new(&folder).read_dir().unwrap() {
        let path = entry.unwrap().path().join("model.onnx");
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let model = onnxc_proto::decode(Bytes::from(bytes), &Default::default()).unwrap();
        for error in import(&model, &ImportOptions::default(), &NoExternalData, &Table::standard())
            .err()
            .unwrap_or_default()
        {
            assert_eq!(error.kind, Kind::Unsupported, "{}: {error}", path.display());
        }
        models += 1;
    }
    assert!(models > 0, "ONNXC_MODELS holds no model");
}
