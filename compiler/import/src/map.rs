//! SequenceMap as a loop: `out = SequenceMap(xs, y){body}` is the same as
//! `out = Loop(SequenceLength(xs), , []){x = SequenceAt(xs, i); body; next = SequenceInsert(out, result)}`.

use onnxc_proto::type_proto::Value as TypeValue;
use onnxc_proto::{AttributeProto, GraphProto, NodeProto, ValueInfoProto, build};

use super::tensor::dtype;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType;

/// Put before names that the loop adds.
const OWN: &str = "onnxc.map.";

/// A body that takes sequences where `sequences` says so for each input, runs this one for each of their positions and gives the
/// sequences of its results.
pub(super) fn mapped(body: &GraphProto, sequences: &[bool]) -> Result<GraphProto> {
    let name = |what: &str, at: usize| format!("{OWN}{what}{at}");
    let (turn, more) = (format!("{OWN}turn"), format!("{OWN}more"));
    let given: Vec<String> = (0..sequences.len()).map(|at| name("in", at)).collect();
    let mut taken: Vec<NodeProto> = vec![];
    for ((info, is_sequence), given) in body.input.iter().zip(sequences).zip(&given) {
        taken.push(match is_sequence {
            true => build::node("SequenceAt", &[given, &turn], &[info.name()]),
            false => build::node("Identity", &[given], &[info.name()]),
        });
    }
    let mut inner = GraphProto { input: vec![], output: vec![], ..body.clone() };
    inner.node = [taken, body.node.clone()].concat();
    inner.input = [&turn, &more].map(|name| build::untyped(name)).into();
    inner.output = vec![build::untyped(&more)];
    // What is known of the elements is still known of them.
    inner.value_info.extend(body.input.iter().chain(&body.output).cloned());
    let mut outer = GraphProto { name: body.name.clone(), ..Default::default() };
    let count = format!("{OWN}count");
    outer.node.push(build::node("SequenceLength", &[&given[0]], &[&count]));
    let mut repeat = build::node("Loop", &[&count, ""], &[]);
    for (at, info) in body.output.iter().enumerate() {
        let [empty, before, after, result] = ["empty", "before", "after", "out"].map(|what| name(what, at));
        let dtype = build::int("dtype", i64::from(element_type(info)?.to_onnx()));
        outer.node.push(build::node("SequenceEmpty", &[], &[&empty]).with(dtype));
        inner.node.push(build::node("SequenceInsert", &[&before, info.name()], &[&after]));
        inner.input.push(build::untyped(&before));
        inner.output.push(build::untyped(&after));
        outer.output.push(build::untyped(&result));
        repeat.input.push(empty);
        repeat.output.push(result);
    }
    let attribute: AttributeProto = build::subgraph("body", inner);
    outer.node.push(repeat.with(attribute));
    outer.input = given.iter().map(|name| build::untyped(name)).collect();
    Ok(outer)
}

/// The declared element type of a result.
pub(super) fn element_type(info: &ValueInfoProto) -> Result<DType> {
    match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) if tensor.elem_type() != 0 => dtype(tensor.elem_type()),
        _ => {
            let message =
                format!("the body does not declare the element type of its result `{}`", info.name());
            Err(Error::unsupported(Stage::Import, message))
        }
    }
}
