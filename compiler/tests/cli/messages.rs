//! What errors say: for people, of a node, without the notation of the program's own language.

use onnxc_import::{ImportOptions, NoExternalData, import};
use onnxc_ir::error::{Error, Kind};
use onnxc_ir::graph::DType;
use onnxc_ops::{Arity, AttrDefault, AttrKind, OpDef, Param};
use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, GraphProto, ModelProto, build};

/// What Rust prints of options, enums, structs and paths.
const RUST: &[&str] = &["Some(", "None", "Ok(", "Err(", "::", "{ ", " }", "Const(", "Sym(", "Letter", "NaN)"];

fn errors_of(model: &ModelProto) -> Vec<Error> {
    import(model, &ImportOptions::default(), &NoExternalData, onnxc::operators()).err().unwrap_or_default()
}

/// Every operator, with inputs of several ranks and each attribute in turn left out, of another kind or of another value.
#[test]
fn errors_of_broken_nodes_name_the_node_and_are_in_plain_words() {
    let (mut faults, mut errors, mut models) = (Vec::new(), 0, 0);
    for row in onnxc::operators().rows() {
        for shape in [&[][..], &["4"], &["2", "n"], &["1", "2", "5", "5"]] {
            for attributes in variants(row) {
                let model = model(row, shape, attributes.clone());
                models += 1;
                for error in errors_of(&model) {
                    errors += 1;
                    let text = error.to_string();
                    let leak = RUST.iter().find(|part| text.contains(*part));
                    if let Some(part) = leak {
                        faults.push(format!("`{part}` in: {text}"));
                    }
                    if error.node.is_none() {
                        faults.push(format!("no node in: {text}"));
                    }
                    if error.kind == Kind::Internal {
                        faults.push(format!("{text}\n    attributes {attributes:?}"));
                    }
                }
            }
        }
    }
    faults.sort();
    faults.dedup();
    assert!(faults.is_empty(), "{} faults, of {errors} errors:\n{}", faults.len(), faults.join("\n"));
    assert!(models > 5_000 && errors > 5_000, "{models} models, {errors} errors");
}

/// A text that an attribute does not allow is answered with the allowed ones, its default among them.
#[test]
fn wrong_choices_are_answered_with_the_right_ones() {
    let wrong = |name: &str| AttributeProto {
        s: Some(b"nonesuch".to_vec().into()),
        ..build::attribute(name, AttributeType::String)
    };
    let (mut faults, mut answered) = (Vec::new(), 0);
    for row in onnxc::operators().rows() {
        for attribute in row.attributes {
            let AttrDefault::Str(default) = attribute.default else { continue };
            // The schema of GRU's first version misspells its default.
            let default = if default == "foward" { "forward" } else { default };
            for shape in [&["4"][..], &["1", "2", "4"], &["1", "2", "4", "4"]] {
                let texts = errors_of(&model(row, shape, vec![wrong(attribute.name)]));
                for text in texts.iter().map(ToString::to_string).filter(|text| text.contains("nonesuch")) {
                    answered += 1;
                    if !(text.contains(attribute.name) && text.contains(default)) {
                        faults.push(text);
                    }
                }
            }
        }
    }
    assert!(faults.is_empty() && answered > 30, "{answered} answered; not so: {}", faults.join("\n"));
}

/// A model of one node.
fn model(row: &OpDef, shape: &[&str], attributes: Vec<AttributeProto>) -> ModelProto {
    let (mut inputs, mut values) = (Vec::new(), Vec::new());
    for (at, param) in row.inputs.iter().enumerate().filter(|(_, param)| param.arity != Arity::Optional) {
        let Some(dtype) = dtype(row, param) else { continue };
        inputs.push(format!("x{at}"));
        values.push(build::value(&inputs[inputs.len() - 1], dtype.to_onnx(), shape));
    }
    let outputs: Vec<String> = (0..row.outputs.len()).map(|at| format!("y{at}")).collect();
    let names = |names: &[String]| names.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
    let (inputs, outputs) = (names(&inputs), names(&outputs));
    let split = |text: &str| -> Vec<String> { text.lines().map(str::to_string).collect() };
    let mut node = build::node(row.name, &[], &[]);
    (node.input, node.output) = (split(&inputs), split(&outputs));
    node.domain = Some(row.domain.into());
    node.attribute = attributes;
    let outputs = node.output.iter().map(|name| build::untyped(name)).collect();
    let mut model = build::model(i64::from(row.since), build::graph(values, vec![node], outputs));
    if !row.domain.is_empty() {
        model.opset_import = vec![build::opset("", 17), build::opset(row.domain, i64::from(row.since))];
    }
    model
}

/// A type that the parameter may have.
fn dtype(row: &OpDef, param: &Param) -> Option<DType> {
    let types = row.types.iter().find(|(name, _)| *name == param.ty)?.1;
    let mut numbers = types.iter().copied().filter(|&dtype| dtype != DType::Str);
    numbers.clone().find(|&dtype| dtype == DType::F32).or(numbers.next())
}

/// Attributes that are plausible, and then for each one in turn: without it, of every other kind, and of odd values.
fn variants(row: &OpDef) -> Vec<Vec<AttributeProto>> {
    let plain: Vec<AttributeProto> = row
        .attributes
        .iter()
        .filter(|attribute| matches!(attribute.default, AttrDefault::Required(_)))
        .filter_map(|attribute| values(attribute.name, attribute.default.kind()).into_iter().next())
        .collect();
    let mut variants = vec![plain.clone()];
    for attribute in row.attributes {
        let others: Vec<AttributeProto> =
            plain.iter().filter(|other| other.name() != attribute.name).cloned().collect();
        variants.push(others.clone());
        let kinds =
            [AttrKind::Int, AttrKind::Float, AttrKind::Str, AttrKind::Ints, AttrKind::Strs, AttrKind::Graph];
        let wrong = kinds.iter().filter(|&&kind| kind != attribute.default.kind());
        let wrong = wrong.filter_map(|&kind| values(attribute.name, kind).into_iter().next());
        for odd in wrong.chain(values(attribute.name, attribute.default.kind())) {
            variants.push([&others[..], &[odd]].concat());
        }
    }
    variants
}

/// Values of a kind, the most plausible first.
fn values(name: &str, kind: AttrKind) -> Vec<AttributeProto> {
    let text = |values: &[&str]| AttributeProto {
        strings: values.iter().map(|text| text.as_bytes().to_vec().into()).collect(),
        ..build::attribute(name, AttributeType::Strings)
    };
    match kind {
        AttrKind::Int => [1, 0, -7, 9].map(|value| build::int(name, value)).into(),
        AttrKind::Float => [1.0, 0.0, f32::NAN, -1e30]
            .map(|value| AttributeProto { f: Some(value), ..build::attribute(name, AttributeType::Float) })
            .into(),
        AttrKind::Str => ["linear", "", "ij,jk->xyz"]
            .map(|value| AttributeProto {
                s: Some(value.as_bytes().to_vec().into()),
                ..build::attribute(name, AttributeType::String)
            })
            .into(),
        AttrKind::Ints => {
            [&[1][..], &[], &[-7], &[0, 0], &[9, 9, 9, 9, 9]].map(|values| build::ints(name, values)).into()
        }
        AttrKind::Floats => [&[1.0][..], &[], &[f32::NAN, 2.0, 3.0]]
            .map(|values| AttributeProto {
                floats: values.to_vec(),
                ..build::attribute(name, AttributeType::Floats)
            })
            .into(),
        AttrKind::Strs => vec![text(&["a"]), text(&[]), text(&["Tanh", "Nope", ""])],
        AttrKind::Tensor => vec![
            AttributeProto {
                t: Some(Box::new(build::f32_tensor("", &[2], vec![1.0, 2.0]))),
                ..build::attribute(name, AttributeType::Tensor)
            },
            build::attribute(name, AttributeType::Tensor),
        ],
        AttrKind::Graph => {
            let y = build::f32_value("body_y", &["3"]);
            let body = build::graph(vec![], vec![build::node("Nope", &["outside"], &["body_y"])], vec![y]);
            vec![build::subgraph(name, GraphProto::default()), build::subgraph(name, body)]
        }
        _ => vec![],
    }
}

/// Texts of the errors of a graph.
fn texts(version: i64, graph: GraphProto) -> Vec<String> {
    let options = ImportOptions { strict: true, ..ImportOptions::default() };
    let errors = import(&build::model(version, graph), &options, &NoExternalData, onnxc::operators())
        .err()
        .unwrap_or_default();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn messages_say_where_with_which_values_and_what_is_allowed() {
    let x = || build::f32_value("x", &["2", "3"]);
    let one = |node, output| texts(18, build::graph(vec![x()], vec![node], vec![output])).join("\n");
    let y = || build::untyped("y");
    for (text, parts) in [
        (
            one(build::node("Split", &["x"], &["y"]), y()),
            &["node 0 `Split_0`", "neither the input `split` nor the attribute num_outputs is given"][..],
        ),
        (
            one(build::node("Split", &["x"], &["y"]).with(build::int("num_outputs", 4)), y()),
            &["num_outputs is 4, and the node has 1 outputs"],
        ),
        (
            one(build::node("Relu", &["x"], &["y"]), build::value("y", 7, &["2", "3"])),
            &["node 0 `Relu_0` (ai.onnx.Relu", "`y` is declared as i64[2, 3], and its type is f32[2, 3]"],
        ),
        (
            one(build::node("Softmax", &["x"], &["y"]).with(build::ints("axis", &[1])), y()),
            &["attribute axis is a list of ints, and must be an int"],
        ),
    ] {
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let mut node = build::node("LongformerAttention", &["x", "x"], &["y"]);
    node.domain = Some("com.microsoft".into());
    let text = one(node, y());
    assert!(text.contains("not supported yet: operator LongformerAttention of com.microsoft"), "{text}");
    assert!(text.contains("no version of `com.microsoft` is imported; version 1"), "{text}");
}
