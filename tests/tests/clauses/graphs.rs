//! Graphs: names, order, initializers, interface, dims.

use onnxc_proto::{SparseTensorProto, StringStringEntryProto, build};

use super::*;

const TWO: &str = "(float[2] x) => (float[2] y) { [n1] a = Relu(x) [n2] y = Neg(a) }";
const ADD_W: &str = "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }";
const DEFAULT: &str = "(float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }";

fn declares(name: &'static str, data_type: i32, dims: &'static [&str]) -> impl FnOnce(&mut ModelProto) {
    move |model| graph(model).value_info.push(build::value(name, data_type, dims))
}

fn sparse(name: &str) -> SparseTensorProto {
    SparseTensorProto {
        values: Some(build::f32_tensor(name, &[1], vec![5.0])),
        indices: Some(build::i64_tensor("", &[1], vec![0])),
        dims: vec![2],
    }
}

fn twice() -> Vec<StringStringEntryProto> {
    let entry = StringStringEntryProto { key: Some("k".into()), value: Some("v".into()) };
    vec![entry.clone(), entry]
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = graph_rows();
    rows.extend(interface_rows());
    rows.extend(name_rows());
    rows
}

fn graph_rows() -> Vec<Row> {
    vec![
        row(44, "Graph", "no nodes", "(float[2] x) => (float[2] x) { }", Accepted),
        edited(45, "Graph.name", "must be there", RELU, |m| graph(m).name = None, Warned("graph_name")),
        edited(46, "Graph.doc_string", "Markdown", RELU, |m| graph(m).doc_string = Some("# a".into()), Accepted),
        row(47, "Graph", "no cycles", "(float[2] x) => (float[2] y) { a = Add(x, y) y = Relu(a) }", Refused("form a cycle")),
        row(48, "Graph", "topological order", "(float[2] x) => (float[2] y) { y = Neg(a) a = Relu(x) }", Warned("node_order")),
        row(49, "Graph", "names of results are unique", "(float[2] x) => (float[2] y) { a = Relu(x) a = Neg(x) y = Abs(a) }", Refused("value `a` is defined twice")),
        row(49, "Graph", "two Constants of one name: the last one counts",
            "(float[2] x) => (float[2] y) { c = Constant<value = float[1] {1}>() y = Add(x, c) c = Constant<value = float[1] {5}>() }", Warned("constant_twice"))
            .allows("node_order"),
        row(50, "Graph", "one node with a name twice", "(float[2] x) => (float[1] y) { y, y = Split<num_outputs = 2>(x) }", Refused("value `y` is defined twice")),
        row(51, "Graph", "a result named as an input", "(float[2] x) => (float[2] y) { x = Relu(x) y = Neg(x) }", Refused("`x`")),
        row(52, "Graph", "a result named as an initializer", "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { w = Relu(x) y = Neg(w) }", Refused("value `w` is defined twice")),
        row(52, "Graph", "a Constant named as an initializer counts",
            "(float[2] x) => (float[2] y) <float[2] w = {1, 2}> { w = Constant<value = float[1] {5}>() y = Add(x, w) }", Warned("constant_twice")),
        row(53, "Graph.input", "names are unique", "(float[2] x, float[2] x) => (float[2] y) { y = Relu(x) }", Refused("input `x` is defined twice")),
        row(54, "Graph.initializer", "names are unique", "(float[2] x) => (float[2] y) <float[2] w = {1, 2}, float[2] w = {3, 4}> { y = Add(x, w) }", Warned("initializer_twice")),
        row(54, "Graph.initializer", "names are unique", "(float[2] x) => (float[2] y) <float[1] w = {1}, float[2] w = {3, 4}> { y = Add(x, w) }", Refused("as f32[1] and as f32[2]")),
        edited(55, "Graph.sparse_initializer", "names are unique", ADD_W, |m| graph(m).sparse_initializer.push(sparse("w")), Warned("initializer_twice")),
        row(56, "Graph.output", "names are unique", "(float[2] x) => (float[2] y, float[2] y) { y = Relu(x) }", Warned("output_twice")),
        row(57, "Graph.output", "is defined", "(float[2] x) => (float[2] y, float[2] zz) { y = Relu(x) }", Refused("output `zz` is not defined")),
        row(58, "Graph.output", "an initializer", "(float[2] x) => (float[2] y, float[2] w) <float[2] w = {1, 2}> { y = Add(x, w) }", Accepted),
        row(59, "Graph.output", "an input", "(float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }", Accepted),
        row(60, "Graph.output", "a graph without outputs", "(float[2] x) => () { y = Relu(x) }", Refused("no outputs").since("an object without results has no use")),
        edited(61, "Graph.value_info", "names are distinct", TWO, |m| {
            declares("a", 1, &["2"])(m);
            declares("a", 1, &["2"])(m);
        }, Warned("value_info_twice")),
        edited(62, "Graph.value_info", "of no value", TWO, declares("q", 1, &["2"]), Accepted),
        edited(63, "Graph.value_info", "another type", TWO, declares("a", 7, &["2"]), Warned("declared_type")),
        edited(64, "Graph.value_info", "another shape", TWO, declares("a", 1, &["3"]), Warned("declared_shape")),
        edited(65, "Graph.value_info", "gives a shape", "(float[2] x) => (int64[1, n] y) { a = NonZero(x) y = Identity(a) }", declares("a", 7, &["1", "n"]), Accepted),
        edited(66, "Node", "no inputs and no outputs", RELU, |m| graph(m).node.push(build::node("Relu", &[], &[])), Refused("input 0 (X) is missing")),
        edited(67, "Node", "one or more outputs", RELU, |m| graph(m).node.push(build::node("Relu", &["x"], &[])), Refused("the node has no outputs")),
        row(68, "Graph", "what nobody reads is checked, too", "(float[2] x) => (float[2] y) { y = Relu(x) z = Nope(x) }", Refused("operator Nope")),
        row(69, "Graph.initializer", "nobody reads it", "(float[2] x) => (float[2] y) <float[1] w = {1}> { y = Relu(x) }", Accepted),
        edited(70, "Graph.initializer", "must have a name", ADD_W, |m| graph(m).initializer.push(build::f32_tensor("", &[1], vec![1.0])), Refused("an initializer has no name")),
    ]
}

fn interface_rows() -> Vec<Row> {
    let overridable = |options: &mut ImportOptions| options.overridable_defaults = true;
    vec![
        row(71, "Graph.initializer", "a default", DEFAULT, Noted("are constants: w")),
        row(72, "Graph.initializer", "the caller may override a default", DEFAULT, Accepted)
            .options(overridable),
        row(73, "Graph.initializer", "the caller may leave a default", DEFAULT, Accepted)
            .options(overridable),
        row(
            74,
            "Graph.initializer",
            "a default of another type",
            "(float[2] x, float[2] w) => (float[2] y) <int64[2] w = {1, 2}> { y = Add(x, w) }",
            Refused("both are T"),
        ),
        row(
            75,
            "Graph.initializer",
            "a default of another shape",
            "(float[2] x, float[2] w) => (float[2] y) <float[1] w = {1}> { y = Add(x, w) }",
            Warned("declared_shape"),
        ),
        edited(
            76,
            "Graph.initializer",
            "IR 3: they are inputs, too",
            ADD_W,
            |m| m.ir_version = Some(3),
            Warned("ir_3_initializer"),
        ),
        edited(
            77,
            "Graph.initializer",
            "IR 3 with weights among the inputs",
            DEFAULT,
            |m| m.ir_version = Some(3),
            Accepted,
        ),
        row(
            78,
            "Graph.initializer",
            "in any order",
            "(float[2] x) => (float[2] y) <float[2] v = {1, 2}, float[2] w = {1, 2}> { a = Add(x, w) y = Add(a, v) }",
            Accepted,
        ),
        row(
            79,
            "ValueInfo",
            "inputs have types",
            "(x) => (float[2] y) { y = Relu(x) }",
            Refused("the type is missing"),
        ),
        row(
            80,
            "ValueInfo",
            "inputs have shapes",
            "(float[*] x) => (float[?] y) { y = Relu(x) }",
            Noted("has rank 1").since("of the ranks one alone gives the output its declared one"),
        ),
        row(
            81,
            "ValueInfo",
            "outputs have types",
            "(float[2] x) => (y) { y = Relu(x) }",
            Warned("output_type"),
        ),
        row(
            82,
            "ValueInfo",
            "outputs have shapes",
            "(float[2] x) => (float[*] y) { y = Relu(x) }",
            Warned("output_type"),
        ),
        row(
            83,
            "ValueInfo",
            "a wrong type of an output",
            "(float[2] x) => (int64[2] y) { y = Relu(x) }",
            Warned("declared_type"),
        ),
        row(
            84,
            "ValueInfo",
            "a wrong shape of an output",
            "(float[2] x) => (float[5] y) { y = Relu(x) }",
            Warned("declared_shape"),
        ),
        row(
            85,
            "ValueInfo",
            "a wrong rank of an output",
            "(float[2] x) => (float[2, 1] y) { y = Relu(x) }",
            Warned("declared_shape"),
        ),
        edited(
            86,
            "ValueInfo.name",
            "must be there",
            RELU,
            |m| graph(m).input.push(build::f32_value("", &["2"])),
            Refused("a graph input has no name"),
        ),
        edited(
            87,
            "ValueInfo",
            "doc_string and metadata",
            RELU,
            |m| graph(m).input[0].doc_string = Some("d".into()),
            Accepted,
        ),
    ]
}

fn name_rows() -> Vec<Row> {
    const NAMES: &str = "exporters write such names everywhere; the header numbers them";
    let denoted = |m: &mut ModelProto| {
        use onnxc_proto::type_proto::Value;
        let Some(Value::TensorType(tensor)) = graph(m).input[0].r#type.as_mut().unwrap().value.as_mut()
        else {
            panic!()
        };
        tensor.shape.as_mut().unwrap().dim[0].denotation = Some("DATA_BATCH".into());
    };
    vec![
        row(
            88,
            "Names",
            "C identifiers",
            "(float[2] \"1/x:0\") => (float[2] y) { y = Relu(\"1/x:0\") }",
            Accepted.since(NAMES),
        ),
        row(
            89,
            "Names",
            "two that make one identifier",
            "(float[2] \"a.b\", float[2] a_b) => (float[2] y) { y = Add(\"a.b\", a_b) }",
            Accepted.since(NAMES),
        ),
        row(90, "Names", "a C keyword", "(float[2] int) => (float[2] y) { y = Relu(int) }", Accepted),
        row(
            91,
            "Names",
            "not ASCII",
            "(float[2] \"\u{e9}\") => (float[2] y) { y = Relu(\"\u{e9}\") }",
            Accepted.since(NAMES),
        ),
        row(
            92,
            "Names",
            "of nodes are unique",
            "(float[2] x) => (float[2] y) { [n] a = Relu(x) [n] y = Neg(a) }",
            Warned("node_name"),
        ),
        row(
            93,
            "Names",
            "a node and a value of one name",
            "(float[2] x) => (float[2] y) { [x] y = Relu(x) }",
            Accepted,
        ),
        row(94, "Dim", "dim_param", "(float[N] x) => (float[N] y) { y = Relu(x) }", Accepted),
        row(95, "Dim", "neither", "(float[?] x) => (float[?] y) { y = Relu(x) }", Accepted),
        row(
            96,
            "Dim",
            "two unknown dims",
            "(float[?] x, float[?] z) => (float[?] y, float[?] w) { y = Relu(x) w = Relu(z) }",
            Accepted,
        ),
        row(
            97,
            "Dim",
            "a name means one size",
            "(float[N] x, float[N] z) => (float[N] y) { y = Add(x, z) }",
            Accepted,
        ),
        row(98, "Dim", "the empty text", "(float[\"\"] x) => (float[?] y) { y = Relu(x) }", Accepted),
        row(99, "Dim", "`*` is one dim", "(float[\"*\"] x) => (float[\"*\"] y) { y = Relu(x) }", Accepted),
        row(
            100,
            "Dim",
            "names are C identifiers",
            "(float[\"batch-size\"] x) => (float[\"batch-size\"] y) { y = Relu(x) }",
            Accepted.since(NAMES),
        ),
        row(101, "Dim", "negative", "(float[-1] x) => (float[?] y) { y = Relu(x) }", Warned("negative_dim")),
        row(102, "Dim", "zero", "(float[0] x) => (float[0] y) { y = Relu(x) }", Accepted),
        row(103, "Dim", "a scalar", "(float[] x) => (float[] y) { y = Relu(x) }", Accepted),
        row(
            104,
            "Dim",
            "two names for one size",
            "(float[N] x) => (float[M] y, float[K] z) { y = Relu(x) z = Neg(x) }",
            Accepted,
        ),
        edited(105, "Dim.denotation", "DATA_BATCH", RELU, denoted, Accepted),
        row(
            106,
            "Dim",
            "bodies share the scope",
            "(bool c, float[N] x) => (float[N] y) { y = If<then_branch = () => (float[N] t) { t = Relu(x) }, else_branch = () => (float[N] e) { e = Neg(x) }>(c) }",
            Accepted,
        ),
        edited(
            107,
            "Node.op_type",
            "must be there",
            RELU,
            |m| node(m, 0).op_type = None,
            Refused("operator "),
        ),
        row(
            108,
            "Node.input",
            "is defined",
            "(float[2] x) => (float[2] y) { y = Relu(nope) }",
            Refused("input `nope` is not defined"),
        ),
        row(109, "Node.name", "optional", "(float[2] x) => (float[2] y) { y = Relu(x) }", Accepted),
        edited(
            110,
            "Node.doc_string",
            "ignored",
            RELU,
            |m| node(m, 0).doc_string = Some("d".into()),
            Accepted,
        ),
        edited(
            111,
            "Graph.metadata_props",
            "ignored",
            RELU,
            |m| graph(m).metadata_props = twice()[..1].to_vec(),
            Accepted,
        ),
        edited(
            112,
            "metadata_props",
            "keys are distinct",
            RELU,
            |m| node(m, 0).metadata_props = twice(),
            Warned("metadata_keys"),
        ),
        edited(
            112,
            "metadata_props",
            "keys are distinct",
            RELU,
            |m| graph(m).metadata_props = twice(),
            Warned("metadata_keys"),
        ),
    ]
}
