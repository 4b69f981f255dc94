//! Functions of the model.

use onnxc_proto::{FunctionProto, build};

use super::*;

const CALL: &str = "(float[2] x) => (float[2] y) { [call] y = loc.F(x) }";

/// A call of `loc.F`, and its text.
fn f(function: &str) -> String {
    format!("{CALL} loc.F{function}")
}

/// A call with attributes.
fn with(attributes: &str, function: &str) -> String {
    format!("(float[2] x) => (float[2] y) {{ [call] y = loc.F<{attributes}>(x) }} loc.F{function}")
}

fn first(model: &mut ModelProto) -> &mut FunctionProto {
    &mut model.functions[0]
}

const BODY: &str = "(a) => (b) { b = Relu(a) }";
const LEAKY: &str = "<alpha>(a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }";
const DEFAULT: &str = "<alpha: float = 0.5>(a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }";

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = call_rows();
    rows.extend(attribute_rows());
    rows.extend(body_rows());
    rows
}

fn call_rows() -> Vec<Row> {
    let overloads = |call: &str| {
        format!(
            "(float[2] x) => (float[2] y) {{ y = loc.F{call}(x) }} loc.F:one(a) => (b) {{ b = Relu(a) }} loc.F:two(a) => (b) {{ b = Neg(a) }}"
        )
    };
    vec![
        row(179, "Function", "of the model", &f(BODY), Accepted),
        edited(180, "Function", "IR 8", &f(BODY), |m| m.ir_version = Some(8), Accepted),
        edited(181, "Function", "before IR 8", &f(BODY), |m| m.ir_version = Some(7), Accepted),
        row(
            182,
            "Function.id",
            "unique",
            &format!("{} loc.F{BODY}", f(BODY)),
            Refused("function loc.F `` is defined twice"),
        ),
        row(183, "Function.overload", "chooses the body", &overloads(":two"), Accepted),
        row(
            184,
            "Function.overload",
            "none of the call's",
            &overloads(":zz"),
            Refused("no function with overload `zz`"),
        ),
        row(185, "Function.overload", "a call without one", &overloads(""), Refused("operator F of loc")),
        row(
            186,
            "Function.overload",
            "of a standard operator",
            "(float[2] x) => (float[2] y) { y = Relu:zz(x) }",
            Accepted,
        ),
        row(
            187,
            "Function",
            "no recursion",
            &f("(a) => (b) { b = loc.F(a) }"),
            Refused("function F calls itself"),
        )
        .importing_locally(),
        row(
            188,
            "Function",
            "no mutual recursion",
            &f("(a) => (b) { b = loc.H(a) } loc.H(a) => (b) { b = loc.F(a) }"),
            Refused("function F calls itself"),
        )
        .importing_locally(),
        row(
            189,
            "Function",
            "one calls another",
            &f("(a) => (b) { b = loc.H(a) } loc.H(a) => (b) { b = Relu(a) }"),
            Accepted,
        )
        .importing_locally(),
        row(213, "Function.input", "fewer at the call", &f("(a, q) => (b) { b = Clip(a, q) }"), Accepted),
        row(
            214,
            "Function.input",
            "an empty name at the call",
            "(float[2] x) => (float[2] y) { y = loc.F(x, \"\") } loc.F(a, q) => (b) { b = Clip(a, q) }",
            Accepted,
        ),
        row(
            215,
            "Function.input",
            "more at the call",
            "(float[2] x) => (float[2] y) { y = loc.F(x, x) } loc.F(a) => (b) { b = Relu(a) }",
            Refused("2 inputs where function F has 1"),
        ),
        row(
            216,
            "Function.output",
            "more at the call",
            "(float[2] x) => (float[2] y, float[2] z) { y, z = loc.F(x) } loc.F(a) => (b) { b = Relu(a) }",
            Refused("2 outputs where function F has 1"),
        ),
        row(
            217,
            "Function.output",
            "fewer at the call",
            &f("(a) => (b, c) { b = Relu(a) c = Neg(a) }"),
            Accepted,
        ),
        row(
            218,
            "Function",
            "called with two types",
            "(float[2] x, double[2] z) => (float[2] y, double[2] w) { y = loc.F(x) w = loc.F(z) } loc.F(a) => (b) { b = Relu(a) }",
            Accepted,
        ),
        edited(
            219,
            "Function",
            "replaces a standard operator",
            &f(BODY),
            |m| {
                (first(m).domain, first(m).name) = (Some(String::new()), Some("Softplus".into()));
                (node(m, 0).domain, node(m, 0).op_type) = (None, Some("Softplus".into()));
            },
            Accepted,
        ),
    ]
}

fn attribute_rows() -> Vec<Row> {
    vec![
        row(190, "Function.attribute", "the call's value", &with("alpha = 0.5", LEAKY), Accepted),
        row(191, "Function.attribute", "neither value nor default", &f(LEAKY), Accepted),
        row(192, "Function.attribute_proto", "a default", &f(DEFAULT), Accepted),
        row(
            193,
            "Function.attribute_proto",
            "the call overrides it",
            &with("alpha = 0.25", DEFAULT),
            Accepted,
        ),
        edited(
            194,
            "Function.attribute",
            "distinct from attribute_proto",
            &f(DEFAULT),
            |m| first(m).attribute = vec!["alpha".into()],
            Warned("function_attribute_twice"),
        ),
        edited(
            195,
            "Function.attribute",
            "distinct",
            &f(LEAKY),
            |m| first(m).attribute.push("alpha".into()),
            Warned("function_attribute_twice"),
        ),
        row(
            196,
            "Function.attribute",
            "a reference to nothing",
            &f("(a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }"),
            Warned("reference_nowhere"),
        ),
        row(
            197,
            "Function.attribute",
            "a call gives what the function lacks",
            &with("zeta = 1", BODY),
            Warned("call_attribute"),
        ),
        row(
            198,
            "Function.attribute",
            "a call gives another type",
            &with("alpha = \"a\"", LEAKY),
            Refused("attribute alpha is a string"),
        ),
        row(
            199,
            "Function.attribute",
            "a reference inside a body",
            "(bool c, float[2] x) => (float[2] y) { y = loc.F<alpha = 0.5>(c, x) } loc.F<alpha>(c, a) => (b) { b = If<then_branch = () => (t) { t = LeakyRelu<alpha: float = @alpha>(a) }, else_branch = () => (e) { e = Neg(a) }>(c) }",
            Accepted,
        ),
        row(
            200,
            "Function.attribute",
            "tensors and lists",
            "(float[2] x) => (float[2] y) { y = loc.F<k = float[2] {1, 2}, perm = [0]>(x) } loc.F<k, perm>(a) => (b) { c = Constant<value: tensor = @k>() d = Add(a, c) b = Transpose<perm: ints = @perm>(d) }",
            Accepted,
        ),
        edited(
            200,
            "Attribute.ref_attr_name",
            "a reference with a value",
            &with("alpha = 0.5", LEAKY),
            |m| first(m).node[0].attribute[0].f = Some(1.0),
            Warned("reference_with_value"),
        ),
    ]
}

fn body_rows() -> Vec<Row> {
    let unused = |function: &str| format!("{RELU} loc.F{function}");
    vec![
        edited(
            201,
            "Function.opset_import",
            "of its own",
            "(float[1, 2] x) => (float[2] y) { y = loc.F(x) } loc.F(a) => (b) { b = Squeeze<axes = [0]>(a) }",
            |m| first(m).opset_import = vec![build::opset("", 11)],
            Accepted,
        ),
        row(
            202,
            "Function.opset_import",
            "has the domains of its nodes",
            "(float[1, 2] x) => (float[1, 2] y) { y = loc.F(x) } loc.F(a) => (b) { b = ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(a) }",
            Refused("no version of `ai.onnx.ml` is imported"),
        ),
        edited(
            203,
            "Function.domain",
            "imported by the model",
            &f(BODY),
            |m| m.opset_import = vec![build::opset("", 22)],
            Refused("the model calls function F of `loc` and imports no version"),
        ),
        row(
            203,
            "Function.domain",
            "imported by a function that calls",
            &f("(a) => (b) { b = loc.H(a) } loc.H(a) => (b) { b = Relu(a) }"),
            Refused("function F calls function H of `loc`"),
        ),
        edited(
            204,
            "Function.value_info",
            "types of values inside",
            &f("(a) => (b) { c = Neg(a) b = Relu(c) }"),
            |m| first(m).value_info.push(build::f32_value("c", &["2"])),
            Accepted,
        ),
        edited(
            205,
            "Function.value_info",
            "a wrong type",
            &f("(a) => (b) { c = Neg(a) b = Relu(c) }"),
            |m| first(m).value_info.push(build::value("c", 7, &["2"])),
            Warned("declared_type"),
        ),
        edited(
            206,
            "Function",
            "metadata and doc_string",
            &f(BODY),
            |m| first(m).doc_string = Some("d".into()),
            Accepted,
        ),
        row(
            207,
            "Function.node",
            "in order",
            &f("(a) => (b) { b = Neg(q) q = Relu(a) }"),
            Warned("node_order"),
        ),
        row(
            208,
            "Function",
            "names are unique inside",
            &f("(a) => (b) { b = Neg(a) b = Relu(a) }"),
            Refused("value `b` is defined twice"),
        ),
        row(
            209,
            "Function.input",
            "duplicates",
            "(float[2] x) => (float[2] y) { y = loc.F(x, x) } loc.F(a, a) => (b) { b = Relu(a) }",
            Refused("function F has two inputs `a`"),
        ),
        row(
            210,
            "Function.output",
            "duplicates",
            "(float[2] x) => (float[2] y, float[2] z) { y, z = loc.F(x) } loc.F(a) => (b, b) { b = Relu(a) }",
            Refused("function F lists output `b` twice"),
        ),
        row(
            211,
            "Function.output",
            "not made by the body",
            &f("(a) => (zz) { b = Relu(a) }"),
            Refused("output `zz` of function F is not defined"),
        ),
        row(
            212,
            "Function",
            "does not see the caller's names",
            &f("(a) => (b) { b = Add(a, x) }"),
            Refused("input `x` is not defined"),
        ),
        row(
            220,
            "Function",
            "never called, with an unknown operator",
            &unused("(a) => (b) { b = Nope(a) }"),
            Warned("unused_function"),
        ),
        row(
            220,
            "Function",
            "never called, with a signature broken",
            &unused("(a) => (b) { b = Relu(a, a) }"),
            Warned("unused_function"),
        ),
        edited(
            221,
            "Function.name",
            "must be there",
            &unused(BODY),
            |m| first(m).name = None,
            Warned("graph_name"),
        ),
        row(
            222,
            "Function",
            "operators that functions define",
            "(float[2] x) => (float[2] y) { a = Celu(x) y = Mish(a) }",
            Accepted,
        ),
    ]
}
