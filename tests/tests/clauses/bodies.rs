//! Bodies of control flow.

use onnxc_proto::{SparseTensorProto, build};

use super::*;

/// An If whose branches are these.
fn choice(then: &str, otherwise: &str) -> String {
    format!(
        "(bool c, float[2] x) => (float[2] y) {{ a = Abs(x) [sel] y = If<then_branch = {then}, else_branch = {otherwise}>(c) }}"
    )
}

const NEG: &str = "() => (float[2] e) { e = Neg(x) }";

/// A Loop over `s` with this body.
fn repeat(body: &str) -> String {
    format!("(float[2] x) => (float[2] y) <int64 m = {{2}}> {{ [lp] y = Loop<body = {body}>(m, \"\", x) }}")
}

const CARRY: &str =
    "(int64 i, bool k, float[2] s) => (bool k2, float[2] t) { k2 = Identity(k) t = Add(s, x) }";

/// The body of attribute 0 of node `at`.
fn body(model: &mut ModelProto, at: usize) -> &mut GraphProto {
    node(model, at).attribute[0].g.as_mut().unwrap()
}

pub(crate) fn rows() -> Vec<Row> {
    let is = |then: &str| choice(then, NEG);
    let sparse = SparseTensorProto {
        values: Some(build::f32_tensor("k", &[1], vec![5.0])),
        indices: Some(build::i64_tensor("", &[1], vec![0])),
        dims: vec![2],
    };
    let ir_3 = "(int64 i, bool k, float[2] s, float[] q) => (bool k2, float[2] t) <float q = {3}> { k2 = Identity(k) t = Add(s, q) }";
    vec![
        row(158, "Subgraph", "sees the names around", &is("() => (float[2] t) { t = Relu(a) }"), Accepted),
        row(159, "Subgraph", "outputs may have no types", &is("() => (t) { t = Relu(a) }"), Accepted),
        row(
            160,
            "Subgraph",
            "no shadowing by a node",
            &is("() => (float[2] t) { a = Relu(x) t = Abs(a) }"),
            Warned("shadowed_by_node"),
        ),
        row(
            160,
            "Subgraph",
            "no shadowing of an input by a node",
            &is("() => (float[2] t) { x = Relu(a) t = Abs(x) }"),
            Warned("shadowed_by_node"),
        ),
        row(
            160,
            "Subgraph",
            "a name that is defined later is not shadowed",
            "(bool c, float[2] x) => (float[2] y, float[2] a) { y = If<then_branch = () => (float[2] t) { a = Relu(x) t = Abs(a) }, else_branch = () => (float[2] e) { e = Neg(x) }>(c) a = Neg(x) }",
            Accepted,
        ),
        row(
            161,
            "Subgraph",
            "no shadowing by an initializer",
            &is("() => (float[2] t) <float[2] a = {1, 2}> { t = Add(a, x) }"),
            Warned("shadowed_name"),
        ),
        row(162, "Subgraph", "a Loop", &repeat(CARRY), Accepted),
        row(
            163,
            "Subgraph",
            "no shadowing by an input",
            &repeat("(int64 i, bool k, float[2] x) => (bool k2, float[2] t) { k2 = Identity(k) t = Neg(x) }"),
            Warned("shadowed_name"),
        ),
        row(
            164,
            "Subgraph",
            "one name in two siblings",
            &choice("() => (float[2] t) { t = Relu(x) }", "() => (float[2] t) { t = Neg(x) }"),
            Accepted,
        ),
        row(
            165,
            "Subgraph",
            "names are not visible outside",
            "(bool c, float[2] x) => (float[2] y, float[2] z) { y = If<then_branch = () => (float[2] t) { q = Relu(x) t = Neg(q) }, else_branch = () => (float[2] e) { e = Neg(x) }>(c) z = Neg(q) }",
            Refused("input `q` is not defined"),
        ),
        row(
            166,
            "Subgraph",
            "IR 4: an initializer is not an input",
            &repeat(
                "(int64 i, bool k, float[2] s) => (bool k2, float[2] t) <float[2] s = {1, 2}> { k2 = Identity(k) t = Add(s, x) }",
            ),
            Refused("`s` is defined twice"),
        ),
        edited(
            166,
            "Subgraph",
            "IR 3: an initializer is an input",
            &repeat(ir_3),
            |m| {
                m.ir_version = Some(3);
                graph(m).input.push(build::value("m", 7, &[] as &[&str]));
            },
            Accepted,
        ),
        edited(
            167,
            "Subgraph.name",
            "must be there",
            &is("() => (float[2] t) { t = Relu(a) }"),
            |m| body(m, 1).name = None,
            Warned("graph_name"),
        ),
        row(
            168,
            "Subgraph",
            "an initializer of its own",
            &is("() => (float[2] t) <float[2] k = {1, 2}> { t = Add(a, k) }"),
            Accepted,
        ),
        edited(
            169,
            "Subgraph",
            "a sparse initializer of its own",
            &is("() => (float[2] t) { t = Add(a, k) }"),
            |m| body(m, 1).sparse_initializer.push(sparse),
            Accepted,
        ),
        row(
            170,
            "Subgraph",
            "branches of unlike types",
            &is("() => (int64[2] t) { t = Cast<to = 7>(x) }"),
            Refused("output 0 is i64[2] in one branch and f32[2] in the other"),
        ),
        row(
            171,
            "Subgraph",
            "branches of unlike numbers of outputs",
            &is("() => (float[2] t, float[2] a) { t = Relu(x) }"),
            Refused("2 outputs"),
        ),
        row(
            172,
            "Subgraph",
            "a branch with inputs",
            &is("(float[2] q) => (float[2] t) { t = Relu(q) }"),
            Refused("a branch with 1 inputs"),
        ),
        row(
            173,
            "Subgraph",
            "a body with too few outputs",
            &repeat("(int64 i, bool k, float[2] s) => (bool k2) { k2 = Identity(k) }"),
            Refused("a body of 1 outputs"),
        ),
        row(
            174,
            "Subgraph",
            "a carried value changes its type",
            &repeat(
                "(int64 i, bool k, float[2] s) => (bool k2, int64[2] t) { k2 = Identity(k) t = Cast<to = 7>(s) }",
            ),
            Refused("loop-carried value 0: the body takes"),
        ),
        row(
            175,
            "Subgraph",
            "an output of a value around",
            &is("() => (float[2] a) { }"),
            Warned("body_output"),
        ),
        row(
            176,
            "Subgraph",
            "nodes are in order",
            &is("() => (float[2] t) { t = Identity(q) q = Relu(x) }"),
            Warned("node_order"),
        ),
        row(
            177,
            "Subgraph",
            "a problem names the inner node",
            &is("() => (float[2] t) { [in1] t = Nope(x) }"),
            Refused("`in1`"),
        ),
        row(
            178,
            "Subgraph",
            "two levels",
            &is(
                "() => (float[2] t) { t = If<then_branch = () => (float[2] u) { u = Relu(a) }, else_branch = () => (float[2] v) { v = Neg(a) }>(c) }",
            ),
            Accepted,
        ),
    ]
}
