//! Versions of operators, what MLIR's verifier and TVM's importer ask for, and padding.

use onnxc_proto::build;

use super::*;

fn importing(domain: &'static str, version: i64) -> impl FnOnce(&mut ModelProto) {
    move |model| {
        model.opset_import.retain(|import| import.domain() != domain);
        model.opset_import.push(build::opset(domain, version));
    }
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = version_rows();
    rows.extend(verifier_rows());
    rows.extend(importer_rows());
    rows.extend(padding_rows());
    rows.extend(beyond_rows());
    rows
}

fn version_rows() -> Vec<Row> {
    let at = |number, version, statement: &str, text: &str, verdict| {
        edited(number, "Versioning", statement, text, importing("", version), verdict)
    };
    const REDUCED: &str = "(float[2, 2] x) => (float[2] y) { y = ReduceSum<axes = [0], keepdims = 0>(x) }";
    const SOFTMAX: &str = "(float[2, 2] x) => (float[2, 2] y) { y = Softmax(x) }";
    const INTS: &str = "(int32[2] x) => (int32[2] y) { y = Relu(x) }";
    const UPSAMPLE: &str =
        "(float[1, 1, 2] x) => (float[1, 1, 4] y) <float[3] s = {1, 1, 2}> { y = Upsample(x, s) }";
    const SCATTER: &str =
        "(float[3] x, float[1] u) => (float[3] y) <int64[1] i = {1}> { y = Scatter(x, i, u) }";
    const ADD: &str =
        "(float[2, 2] x, float[2] b) => (float[2, 2] y) { y = Add<broadcast = 1, axis = 1>(x, b) }";
    const NORM: &str = "(float[2, 2] x, float[2] s) => (float[2, 2] y) { y = LayerNormalization(x, s) }";
    const GROUPS: &str = "(float[1, 4, 2] x) => (float[1, 4, 2] y) <float[2] s = {1, 1}, float[2] b = {0, 0}> { y = GroupNormalization<num_groups = 2>(x, s, b) }";
    let mut rows = vec![
        at(405, 12, "ReduceSum takes axes as an attribute", REDUCED, Accepted),
        at(
            406,
            13,
            "ReduceSum takes axes as an input",
            "(float[2, 2] x) => (float[2] y) <int64[1] a = {0}> { y = ReduceSum<keepdims = 0>(x, a) }",
            Accepted,
        ),
        at(
            407,
            13,
            "ReduceSum with the attribute of another version",
            REDUCED,
            Refused(
                "attribute `axes` is not one of keepdims, noop_with_empty_axes; it is one at version 1, 11",
            ),
        ),
        at(408, 12, "Softmax flattens", SOFTMAX, Accepted),
        at(409, 13, "Softmax is along one axis", SOFTMAX, Accepted),
        at(410, 6, "Add with broadcast and axis", ADD, Accepted),
        at(
            411,
            6,
            "Add of unlike shapes without broadcast",
            "(float[2, 2] x, float[2] b) => (float[2, 2] y) { y = Add(x, b) }",
            Refused("the rank of A is 2; it must be the rank of B, which is 1"),
        ),
        at(
            412,
            6,
            "Dropout with is_test",
            "(float[2] x) => (float[2] y) { y = Dropout<is_test = 1>(x) }",
            Accepted,
        ),
        at(
            413,
            6,
            "BatchNormalization with is_test",
            "(float[1, 1, 2] x) => (float[1, 1, 2] y) <float[1] s = {1}, float[1] b = {0}, float[1] m = {0}, float[1] v = {1}> { y = BatchNormalization<is_test = 1>(x, s, b, m, v) }",
            Accepted,
        ),
        at(414, 10, "Upsample is deprecated", UPSAMPLE, Warned("deprecated_operator")),
        at(415, 9, "Upsample", UPSAMPLE, Accepted),
        at(416, 11, "Scatter is deprecated", SCATTER, Warned("deprecated_operator")),
        at(416, 10, "Scatter", SCATTER, Accepted),
        at(416, 20, "GroupNormalization is deprecated", GROUPS, Warned("deprecated_operator")),
        at(
            417,
            19,
            "an operator that is newer",
            "(float[2] x) => (float[2] y) { y = Gelu(x) }",
            Refused("operator Gelu of ai.onnx opset 19"),
        ),
        at(418, 12, "LayerNormalization before 17", NORM, Warned("operator")),
        at(419, 13, "a type that came later", INTS, Refused("input 0 (X) is i32")),
        at(420, 14, "a type that came", INTS, Accepted),
    ];
    for opset in 1..=25 {
        let statement = format!("opset {opset} of ai.onnx");
        // With the IR version that came with it.
        let ir = [3, 3, 3, 3, 3, 3, 3, 3, 4, 5, 6, 7, 7, 7, 8, 8, 8, 8, 9, 9, 10, 10, 11, 12, 13]
            [opset as usize - 1];
        let edit = |m: &mut ModelProto| {
            importing("", opset)(m);
            m.ir_version = Some(ir);
        };
        rows.push(edited(420 + opset as u32, "Versioning", &statement, RELU, edit, Accepted));
    }
    for opset in [1, 2, 3, 4, 5, 99] {
        let statement = format!("opset {opset} of ai.onnx.ml");
        let (number, verdict) = match opset {
            99 => (451, Noted("opset 99 of ai.onnx.ml is newer than 5")),
            _ => (445 + opset as u32, Accepted),
        };
        let text =
            "(float[1, 2] x) => (float[1, 2] y) { y = ai.onnx.ml.Scaler<offset = [0.0], scale = [2.0]>(x) }";
        rows.push(edited(number, "Versioning", &statement, text, importing("ai.onnx.ml", opset), verdict));
    }
    rows.push(edited(
        452,
        "Versioning",
        "fields that are missing",
        RELU,
        |m| node(m, 0).name = None,
        Accepted,
    ));
    rows
}

fn verifier_rows() -> Vec<Row> {
    let is =
        |number, statement: &str, text: &str, verdict| row(number, "MLIR verify", statement, text, verdict);
    let conv = |weights: &str, attributes: &str| {
        format!(
            "(float[1, 4, 5, 5] x, float[{weights}] w) => (float[1, 4, ?, ?] y) {{ y = Conv{attributes}(x, w) }}"
        )
    };
    vec![
        is(
            453,
            "Conv: groups divide the channels",
            &conv("4, 4, 3, 3", "<group = 3>"),
            Refused("which is 12"),
        ),
        is(454, "Conv: channels of the weights", &conv("4, 3, 3, 3", ""), Refused("which is 3")),
        is(
            455,
            "Conv: kernel_shape is the weights'",
            &conv("4, 4, 3, 3", "<kernel_shape = [5, 5]>"),
            Refused("as kernel_shape says"),
        ),
        is(
            456,
            "Conv: strides of another rank",
            &conv("4, 4, 3, 3", "<strides = [1]>"),
            Refused("strides is [1]"),
        ),
        is(
            457,
            "Conv: a stride of 0",
            &conv("4, 4, 3, 3", "<strides = [0, 1]>"),
            Refused("strides is [0, 1]"),
        ),
        is(
            458,
            "Conv: rank of the weights",
            &conv("4, 4, 3", ""),
            Refused("the number of dims of K is 1; it must be the number of dims of D, which is 2"),
        ),
        is(
            459,
            "AveragePool: kernel_shape is missing",
            "(float[1, 1, 4] x) => (float[1, 1, ?] y) { y = AveragePool(x) }",
            Refused("the required attribute kernel_shape is missing"),
        ),
        is(
            460,
            "AveragePool: kernel_shape of another rank",
            "(float[1, 1, 4] x) => (float[1, 1, ?] y) { y = AveragePool<kernel_shape = [2, 2]>(x) }",
            Refused("the number of dims of kernel_shape"),
        ),
        is(
            461,
            "AveragePool: pads as large as the kernel",
            "(float[1, 1, 4] x) => (float[1, 1, ?] y) { y = AveragePool<kernel_shape = [2], pads = [2, 2]>(x) }",
            Accepted,
        ),
        is(
            462,
            "InstanceNormalization: size of the scale",
            "(float[1, 2, 4] x, float[3] s, float[2] b) => (float[1, 2, 4] y) { y = InstanceNormalization(x, s, b) }",
            Refused("which is 2"),
        ),
        is(
            463,
            "Mod: fmod is 1 for floats",
            "(float[2] x, float[2] z) => (float[2] y) { y = Mod(x, z) }",
            Warned("attribute"),
        ),
        is(
            463,
            "Mod: fmod is 1",
            "(float[2] x, float[2] z) => (float[2] y) { y = Mod<fmod = 1>(x, z) }",
            Accepted,
        ),
        is(
            464,
            "an axis out of range",
            "(float[2, 2] x) => (float[2, 2] y) { y = Softmax<axis = 5>(x) }",
            Refused("axis 5 of a tensor with 2 axes"),
        ),
        is(
            465,
            "Reshape to another count",
            "(float[2, 2] x) => (float[3] y) <int64[1] s = {3}> { y = Reshape(x, s) }",
            Refused("which is not a shape of the 4 elements"),
        ),
        is(
            466,
            "Transpose: no permutation",
            "(float[2, 2] x) => (float[2, 2] y) { y = Transpose<perm = [0, 0]>(x) }",
            Refused("permutation [0, 0]"),
        ),
        is(
            467,
            "Gather: a constant index out of range",
            "(float[2] x) => (float[1] y) <int64[1] i = {9}> { y = Gather(x, i) }",
            Refused("element [0] of indices `i` is 9; it must be between -2 and 1"),
        ),
        is(
            468,
            "types are inferred",
            "(float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) y = Relu(b) }",
            Accepted,
        ),
        is(
            469,
            "a shape of known length",
            "(float[4] x, int64[2] s) => (float[?, ?] y) { y = Reshape(x, s) }",
            Accepted,
        ),
        is(
            470,
            "a shape of unknown length",
            "(float[4] x, int64[n] s) => (float[*] y) { y = Reshape(x, s) }",
            Refused("decides a shape")
                .since("a compiled model has the ranks of its values; an option gives the length"),
        ),
        is(
            471,
            "two versions of an operator",
            "(float[2, 2] x) => (float[2] y) <int64[1] a = {0}> { y = ReduceSum<keepdims = 0>(x, a) }",
            Accepted,
        ),
    ]
}

fn importer_rows() -> Vec<Row> {
    let pin = |target: &str, size| {
        let pin = onnxc_import::DimPin { target: target.into(), size };
        move |options: &mut ImportOptions| options.input_dims = vec![pin]
    };
    let is = |number, statement: &str, text: &str, verdict| row(number, "TVM", statement, text, verdict);
    const NAMED: &str = "(float[N] x) => (float[N] y) { y = Relu(x) }";
    const NOPES: &str = "(bool c, float[2] x) => (float[2] y) { y = If<then_branch = () => (float[2] t) { t = NopeT(x) }, else_branch = () => (float[2] e) { e = NopeE(x) }>(c) }";
    vec![
        is(
            472,
            "all operators that are not known",
            "(float[2] x) => (float[2] y) { a = Nope1(x) y = Nope2(a) }",
            Refused("operator Nope1"),
        ),
        is(
            472,
            "all operators that are not known",
            "(float[2] x) => (float[2] y) { a = Nope1(x) y = Nope2(a) }",
            Refused("operator Nope2"),
        ),
        is(473, "also in bodies", NOPES, Refused("operator NopeT")),
        is(473, "also in bodies", NOPES, Refused("operator NopeE")),
        is(474, "a symbol is pinned", NAMED, Accepted).options(pin("N", 2)),
        is(475, "an axis is pinned", "(float[?] x) => (float[?] y) { y = Relu(x) }", Accepted)
            .options(pin("x:0", 2)),
        is(
            476,
            "a size is pinned to another",
            "(float[3] x) => (float[3] y) { y = Relu(x) }",
            Refused("is 3, not 2").since("the model's word holds, unless an option for its shape is given"),
        )
        .options(pin("x:0", 2)),
        is(
            477,
            "an axis of an unknown rank is pinned",
            "(float[*] x) => (float[?] y) { y = Relu(x) }",
            Refused("its rank is unknown").since("the option for the rank gives it"),
        )
        .options(pin("x:0", 2)),
        is(478, "a name that is not there is pinned", NAMED, Refused("neither a symbol"))
            .options(pin("Q", 2)),
        is(
            479,
            "an initializer without a name",
            "(float[2] x) => (float[2] y) { y = Add(x, \"\") }",
            Refused("input 1 (B) is missing"),
        ),
        is(
            480,
            "outputs without a name count",
            "(float[2] x) => (float[1] y) { y, \"\" = Split<num_outputs = 2>(x) }",
            Accepted,
        ),
        is(481, "numbers as names", "(float[2] 1) => (float[2] 2) { 2 = Relu(1) }", Accepted),
    ]
}

fn padding_rows() -> Vec<Row> {
    let mut rows = vec![];
    let operators = ["Conv", "MaxPool", "AveragePool", "LpPool", "ConvTranspose"];
    for (kind, number) in [("SAME_UPPER", 482), ("SAME_LOWER", 487), ("VALID", 492), ("NOTSET", 497)] {
        for (at, operator) in operators.into_iter().enumerate() {
            let (weights, taken) =
                if operator.starts_with("Conv") { (", float[1, 1, 2, 2] w", ", w") } else { ("", "") };
            let text = format!(
                "(float[1, 1, 5, 5] x{weights}) => (float[1, 1, ?, ?] y) {{ y = {operator}<kernel_shape = [2, 2], auto_pad = \"{kind}\">(x{taken}) }}"
            );
            rows.push(row(number + at as u32, "auto_pad", &format!("{operator} {kind}"), &text, Accepted));
            let padded = text.replace("auto_pad", "pads = [1, 1, 1, 1], auto_pad");
            let verdict = if kind == "NOTSET" { Accepted } else { Warned("auto_pad_with_pads") };
            rows.push(row(503, "auto_pad", &format!("{operator} {kind} with pads"), &padded, verdict));
        }
    }
    rows.push(row(502, "auto_pad", "an unknown word", "(float[1, 1, 5, 5] x) => (float[1, 1, ?, ?] y) { y = MaxPool<kernel_shape = [2, 2], auto_pad = \"FOO\">(x) }", Refused("auto_pad is `FOO`")));
    rows.push(row(504, "auto_pad", "SAME of a dynamic size", "(float[1, 1, H, W] x) => (float[1, 1, ?, ?] y) { y = MaxPool<kernel_shape = [2, 2], auto_pad = \"SAME_UPPER\">(x) }", Accepted));
    rows
}

/// Combinations that operators forbid; row 0 is not from the review.
fn beyond_rows() -> Vec<Row> {
    let quantized = |dtype: u32, zero: &str| {
        let text = format!(
            "(float[3] x, float[] s, {zero}[] z) => ({zero}[3] y) {{ y = QuantizeLinear<output_dtype = {dtype}>(x, s, z) }}"
        );
        text
    };
    let attention = |version, inputs: &str, outputs: &str, attributes: &str, verdict| {
        let text = format!(
            "(float[2, 4, 3, 8] q, float[2, 2, 5, 8] k, float[2, 2, 5, 6] v, float[2, 2, 4, 8] p, float[2, 2, 4, 6] r, int64[2] n) => \
             (float[2, 4, 3, 6] y) {{ y{outputs} = Attention{attributes}(q, k, v{inputs}) }}"
        );
        edited(
            0,
            "Attention",
            &format!("{version} with {inputs} {outputs} {attributes}"),
            &text,
            importing("", version),
            verdict,
        )
    };
    let ml = |text: &str, verdict| {
        edited(0, "ai.onnx.ml", "lists that come together or not", text, importing("ai.onnx.ml", 1), verdict)
    };
    vec![
        row(0, "QuantizeLinear", "output_dtype is the zero point's type", &quantized(3, "int8"), Accepted),
        row(
            0,
            "QuantizeLinear",
            "output_dtype is another one",
            &quantized(3, "uint8"),
            Refused("output_dtype is i8, and the zero point is u8"),
        ),
        row(
            0,
            "QuantizeLinear",
            "output_dtype is another one",
            &quantized(22, "uint16"),
            Refused("output_dtype is i4, and the zero point is u16"),
        ),
        attention(25, "", ", a, b", "", Accepted),
        attention(25, "", ", a", "", Refused("output present_key is named and present_value is not")),
        attention(25, "", ", \"\", a", "", Refused("output present_value is named and present_key is not")),
        attention(23, "", ", a", "", Warned("attribute")),
        attention(25, ", \"\", p", "", "", Refused("past_key and past_value come together")),
        attention(
            25,
            ", \"\", p, r, n",
            "",
            "",
            Refused("nonpad_kv_seqlen is given with past_key and past_value"),
        ),
        attention(
            25,
            ", \"\", \"\", \"\", n",
            ", a, b",
            "",
            Refused("nonpad_kv_seqlen is given with present_key"),
        ),
        attention(24, ", \"\", \"\", \"\", n", ", a, b", "", Warned("attribute")),
        attention(25, ", \"\", \"\", \"\", n", "", "", Accepted),
        attention(
            25,
            "",
            "",
            "<q_num_heads = 4, kv_num_heads = 2>",
            Refused("q_num_heads 4 and kv_num_heads 2 with Q of 4 axes"),
        ),
        attention(24, "", "", "<q_num_heads = 4, kv_num_heads = 2>", Accepted),
        ml(
            "(int64[2] x) => (string[2] y) { y = ai.onnx.ml.CategoryMapper(x) }",
            Refused("0 cats_strings and 0 cats_int64s"),
        ),
        ml(
            "(int64[2] x) => (string[2] y) { y = ai.onnx.ml.CategoryMapper<cats_int64s = [1]>(x) }",
            Refused("0 cats_strings and 1 cats_int64s"),
        ),
        ml(
            "(int64[2] x) => (string[2] y) { y = ai.onnx.ml.CategoryMapper<cats_int64s = [1], cats_strings = [\"a\"]>(x) }",
            Accepted,
        ),
        ml(
            "(int64[2] x) => (float[2, ?] y) { y = ai.onnx.ml.OneHotEncoder(x) }",
            Refused("no categories are given"),
        ),
        ml(
            "(int64[2] x) => (float[2, ?] y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1], cats_strings = [\"a\"]>(x) }",
            Refused("only one list may be given"),
        ),
        ml(
            "(int64[2] x) => (float[2, 1] y) { y = ai.onnx.ml.OneHotEncoder<cats_int64s = [1]>(x) }",
            Accepted,
        ),
    ]
}
