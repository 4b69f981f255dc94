//! Nodes: signatures, types, shapes, attributes.

use onnxc_proto::attribute_proto::AttributeType;
use onnxc_proto::{AttributeProto, SparseTensorProto, build};

use super::*;

const SOFTMAX: &str = "(float[2, 2] x) => (float[2, 2] y) { [n1] y = Softmax<axis = 0>(x) }";

/// Replaces the attribute of the first node.
fn attribute(attribute: AttributeProto) -> impl FnOnce(&mut ModelProto) {
    |model| node(model, 0).attribute = vec![attribute]
}

/// An attribute `axis` of INT, with these changes.
fn axis(edit: impl FnOnce(&mut AttributeProto)) -> impl FnOnce(&mut ModelProto) {
    let mut axis = build::attribute("axis", AttributeType::Int);
    edit(&mut axis);
    attribute(axis)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = signature_rows();
    rows.extend(attribute_rows());
    rows.extend(constant_rows());
    rows
}

fn signature_rows() -> Vec<Row> {
    let names: Vec<String> = vec!["x".to_string(); 40];
    let many = format!("(float[2] x) => (float[2] y) {{ y = Sum({}) }}", names.join(", "));
    vec![
        row(
            113,
            "Signature",
            "too many inputs",
            "(float[2] x) => (float[2] y) { y = Relu(x, x) }",
            Refused("2 inputs where at most 1 are taken"),
        ),
        row(
            114,
            "Signature",
            "too few inputs",
            "(float[2] x) => (float[2] y) { y = Add(x) }",
            Refused("input 1 (B) is missing"),
        ),
        row(
            115,
            "Signature",
            "a required input without a name",
            "(float[2] x) => (float[2] y) { y = Add(\"\", x) }",
            Refused("input 0 (A) is missing"),
        ),
        row(
            116,
            "Signature",
            "too many outputs",
            "(float[2] x) => (float[2] y, float[2] z) { y, z = Relu(x) }",
            Refused("2 outputs where at most 1 are taken"),
        ),
        row(
            117,
            "Signature",
            "a required output without a name",
            "(float[2] x) => (float[2] y) { y = Relu(x) \"\" = Neg(x) }",
            Accepted,
        ),
        row(
            118,
            "Optional inputs",
            "left out in the middle",
            "(float[2] x) => (float[2] y) <float m = {1}> { y = Clip(x, \"\", m) }",
            Accepted,
        ),
        row(
            119,
            "Optional inputs",
            "left out at the end",
            "(float[2] x) => (float[2] y) { y = Clip(x) }",
            Accepted,
        ),
        row(
            120,
            "Optional inputs",
            "empty names at the end",
            "(float[2] x) => (float[2] y) { y = Clip(x, \"\", \"\") }",
            Accepted,
        ),
        row(
            121,
            "Optional outputs",
            "left out at the end",
            "(float[1, 1, 4] x) => (float[1, 1, 3] y) { y = MaxPool<kernel_shape = [2]>(x) }",
            Accepted,
        ),
        row(
            122,
            "Optional outputs",
            "the first without a name",
            "(float[4] x) => (int64[2] y) <int64[1] k = {2}> { \"\", y = TopK(x, k) }",
            Accepted,
        ),
        row(
            123,
            "Optional outputs",
            "LSTM without Y",
            "(float[3, 1, 2] x) => (float[1, 1, 2] h, float[1, 1, 2] c) <float[1, 8, 2] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}, float[1, 8, 2] r = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> { \"\", h, c = LSTM<hidden_size = 2>(x, w, r) }",
            Accepted,
        ),
        row(124, "Variadic", "one", "(float[2] x) => (float[2] y) { y = Max(x) }", Accepted),
        row(
            125,
            "Variadic",
            "none",
            "() => (float[0] y) { y = Concat<axis = 0>() }",
            Refused("input 0 (inputs) is missing"),
        ),
        row(126, "Variadic", "forty", &many, Accepted),
        row(
            127,
            "Variadic",
            "an empty name among them",
            "(float[2] x) => (float[2] y) { y = Max(x, \"\") }",
            Accepted,
        ),
        row(
            128,
            "Variadic outputs",
            "Split without outputs",
            "(float[2] x) => (float[2] y) { y = Relu(x) = Split<num_outputs = 2>(x) }",
            Refused("the node has no outputs"),
        ),
        row(
            129,
            "Type constraints",
            "Relu of strings",
            "(string[2] x) => (string[2] y) { y = Relu(x) }",
            Refused("input 0 (X) is str"),
        ),
        row(
            130,
            "Type constraints",
            "T is one type",
            "(float[2] x, int64[2] z) => (float[2] y) { y = Add(x, z) }",
            Refused("both are T"),
        ),
        row(
            131,
            "Shape constraints",
            "2 and 3 do not broadcast",
            "(float[2] x, float[3] z) => (float[3] y) { y = Add(x, z) }",
            Refused("do not broadcast"),
        ),
        row(
            132,
            "Shape constraints",
            "MatMul",
            "(float[2, 3] x, float[4, 2] z) => (float[2, 2] y) { y = MatMul(x, z) }",
            Refused("which is 3"),
        ),
    ]
}

fn attribute_rows() -> Vec<Row> {
    let tensors = AttributeProto {
        tensors: vec![build::f32_tensor("", &[1], vec![1.0])],
        ..build::attribute("tensors", AttributeType::Tensors)
    };
    vec![
        row(
            133,
            "Attributes",
            "an unknown one",
            "(float[2] x) => (float[2] y) { y = Relu<bogus = 1>(x) }",
            Warned("attribute_unknown"),
        ),
        edited(
            134,
            "Attributes",
            "names are unique",
            SOFTMAX,
            |m| node(m, 0).attribute.push(build::int("axis", 1)),
            Refused("attribute axis is given twice"),
        ),
        row(
            135,
            "Attributes",
            "another type than the operator's",
            "(float[2] x) => (float[2] y) { y = Softmax<axis = 1.0>(x) }",
            Refused("attribute axis is a float"),
        ),
        row(
            136,
            "Attributes",
            "a required one is missing",
            "(float[2] x) => (float[4] y) { y = Concat(x, x) }",
            Refused("the required attribute axis is missing"),
        ),
        row(
            137,
            "Attributes",
            "a default",
            "(float[2, 2] x) => (float[2, 2] y) { y = Softmax(x) }",
            Accepted,
        ),
        edited(
            138,
            "Attribute.type",
            "must be there",
            SOFTMAX,
            axis(|axis| {
                axis.i = Some(0);
                axis.r#type = None;
            }),
            Refused("attribute axis has an int and no type"),
        ),
        edited(
            139,
            "Attribute.type",
            "IR 1 has none",
            SOFTMAX,
            |m| {
                axis(|axis| {
                    axis.i = Some(0);
                    axis.r#type = None;
                })(m);
                (m.ir_version, m.opset_import) = (Some(1), vec![]);
            },
            Accepted,
        ),
        edited(
            140,
            "Attribute.type",
            "the value is in another field",
            SOFTMAX,
            axis(|axis| axis.f = Some(1.0)),
            Refused("attribute axis is of type INT, and what it has is a float"),
        ),
        edited(
            140,
            "Attribute.type",
            "a number where a list is stated",
            SOFTMAX,
            axis(|axis| axis.ints = vec![1]),
            Refused("attribute axis is of type INT, and what it has is a list of ints"),
        ),
        edited(
            141,
            "Attribute",
            "one value only",
            SOFTMAX,
            axis(|axis| {
                axis.i = Some(0);
                axis.f = Some(1.0);
            }),
            Refused("attribute axis has a float and an int"),
        ),
        edited(142, "Attribute", "no value", SOFTMAX, axis(|_| {}), Warned("attribute_value")),
        edited(
            142,
            "Attribute",
            "no value, and a graph is stated",
            "(bool c, float[2] x) => (float[2] y) { y = If(c) }",
            |m| {
                node(m, 0).attribute = vec![
                    build::attribute("then_branch", AttributeType::Graph),
                    build::attribute("else_branch", AttributeType::Graph),
                ]
            },
            Refused("has no value"),
        ),
        edited(
            143,
            "Attribute.name",
            "required",
            SOFTMAX,
            |m| node(m, 0).attribute[0].name = None,
            Warned("attribute_unknown"),
        ),
        row(
            144,
            "Attribute.ref_attr_name",
            "outside of a function",
            "(float[2] x) => (float[2] y) { y = Softmax<axis: int = @ax>(x) }",
            Refused("outside a function"),
        ),
        edited(
            145,
            "Attribute.s",
            "UTF-8",
            "(float[2] x) => (float[4] y) <int64[2] p = {1, 1}> { y = Pad<mode = \"edge\">(x, p) }",
            |m| node(m, 0).attribute[0].s = Some(vec![0xff, 0xfe].into()),
            Refused("attribute mode is not UTF-8"),
        ),
        row(
            146,
            "Attribute.s",
            "a text that the operator does not know",
            "(float[2] x) => (float[4] y) <int64[2] p = {1, 1}> { y = Pad<mode = \"foo\">(x, p) }",
            Refused("mode is `foo`"),
        ),
        edited(
            147,
            "Attribute.doc_string",
            "ignored",
            SOFTMAX,
            |m| node(m, 0).attribute[0].doc_string = Some("d".into()),
            Accepted,
        ),
        edited(
            157,
            "Attribute",
            "lists that no operator takes",
            RELU,
            attribute(tensors),
            Warned("attribute_unknown"),
        ),
    ]
}

fn constant_rows() -> Vec<Row> {
    let sparse = AttributeProto {
        sparse_tensor: Some(Box::new(SparseTensorProto {
            values: Some(build::f32_tensor("v", &[1], vec![5.0])),
            indices: Some(build::i64_tensor("", &[1], vec![0])),
            dims: vec![4],
        })),
        ..build::attribute("sparse_value", AttributeType::SparseTensor)
    };
    let constant = |number, attribute: &str, ty: &str| {
        let text = format!("() => ({ty} y) {{ y = Constant<{attribute}>() }}");
        row(number, "Attribute kinds", attribute, &text, Accepted)
    };
    vec![
        constant(148, "value_float = 1.5", "float[]"),
        constant(149, "value_int = 3", "int64[]"),
        constant(150, "value_string = \"a\"", "string[]"),
        constant(151, "value_floats = [1.5, 2.5]", "float[2]"),
        constant(152, "value_ints = [1, 2]", "int64[2]"),
        constant(153, "value_strings = [\"a\", \"b\"]", "string[2]"),
        constant(154, "value = float[2] {1, 2}", "float[2]"),
        edited(
            155,
            "Attribute.sparse_tensor",
            "Constant by sparse_value",
            "() => (float[4] y) { y = Constant() }",
            attribute(sparse),
            Accepted,
        ),
        row(
            156,
            "Attribute.tp",
            "Optional without input",
            "() => (bool[] y) { o = Optional<type = float[2]>() y = OptionalHasElement(o) }",
            Accepted,
        ),
    ]
}
