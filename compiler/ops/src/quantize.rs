//! Quantization: conversions between integers and reals, and products of quantized operands, as maps around
//! i32 contractions.

use super::AttrDefault::Int;
use super::conv::{self, convolve, plan};
use super::matmul::product;
use super::spatial::channels_first;
use super::{NodeCx, OpDef, attr, normalize_axis, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{
    BF16, F4E2M1, F6E2M3, F6E3M2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, I2, I4, I8,
    I16, I32, U2, U4, U8, U16,
};
use onnxc_ir::graph::{DType, Dim, MapFn, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    DEQUANTIZE_LINEAR,
    DEQUANTIZE_LINEAR_13,
    DEQUANTIZE_LINEAR_19,
    DEQUANTIZE_LINEAR_21,
    DEQUANTIZE_LINEAR_23,
    DEQUANTIZE_LINEAR_24,
    DEQUANTIZE_LINEAR_25,
    DEQUANTIZE_LINEAR_28,
    QUANTIZE_LINEAR,
    QUANTIZE_LINEAR_13,
    QUANTIZE_LINEAR_19,
    QUANTIZE_LINEAR_21,
    QUANTIZE_LINEAR_23,
    QUANTIZE_LINEAR_24,
    QUANTIZE_LINEAR_25,
    QUANTIZE_LINEAR_28,
    DYNAMIC_QUANTIZE_LINEAR,
    MAT_MUL_INTEGER,
    CONV_INTEGER,
    QLINEAR_MAT_MUL,
    QLINEAR_MAT_MUL
        .since(21)
        .inputs(&[
            req("a", "T1"),
            req("a_scale", "TS"),
            req("a_zero_point", "T1"),
            req("b", "T2"),
            req("b_scale", "TS"),
            req("b_zero_point", "T2"),
            req("y_scale", "TS"),
            req("y_zero_point", "T3"),
        ])
        .types(&[
            ("TS", &[F32, F16, BF16]),
            ("T1", &[I8, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ]),
            ("T2", &[I8, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ]),
            ("T3", &[I8, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ]),
        ]),
    QLINEAR_CONV,
];

const DEQUANTIZE_LINEAR: OpDef = op("DequantizeLinear", 10, dequantize_linear)
    .inputs(&[req("x", "T"), req("x_scale", "tensor(float)"), opt("x_zero_point", "T")])
    .outputs(&[req("y", "tensor(float)")])
    .types(&[("T", &[I8, I32, U8])])
    .shapes(&["count(x_scale) = 1", "count(x_zero_point) = 1"])
    .doc("(x - zero_point) * scale");

const DEQUANTIZE_LINEAR_13: OpDef = DEQUANTIZE_LINEAR
    .since(13)
    .attributes(&[attr("axis", Int(1))])
    .shapes(&["x[..axis, N, ..] | [..]", "x_scale[] | [N|1]", "x_zero_point[] | [N|1]"]);

const DEQUANTIZE_LINEAR_19: OpDef = DEQUANTIZE_LINEAR_13
    .since(19)
    .inputs(&[req("x", "T1"), req("x_scale", "T2"), opt("x_zero_point", "T1")])
    .outputs(&[req("y", "T2")])
    .types(&[("T1", &[I8, I32, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ]), ("T2", &[F32, F16, BF16])]);

const DEQUANTIZE_LINEAR_21: OpDef = DEQUANTIZE_LINEAR_19
    .since(21)
    .attributes(&[attr("axis", Int(1)), attr("block_size", Int(0))])
    .types(&[
        ("T1", &[I8, I16, I32, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, I4, U4]),
        ("T2", &[F32, F16, BF16]),
    ])
    .shapes(&[
        "if block_size = 0: x[..axis, N, ..] | [..]",
        "if block_size = 0: x_scale[] | [N|1]",
        "if block_size = 0: x_zero_point[] | [N|1]",
        "if block_size != 0: x[A..axis, N, D..]",
        "if block_size != 0: x_scale[A..axis, ceil(N / block_size), D..]",
        "if block_size != 0: x_zero_point[A..axis, ceil(N / block_size), D..]",
    ]);

const DEQUANTIZE_LINEAR_23: OpDef = DEQUANTIZE_LINEAR_21
    .since(23)
    .outputs(&[req("y", "T3")])
    .attributes(&[attr("axis", Int(1)), attr("block_size", Int(0)), attr("output_dtype", Int(0))])
    .types(&[
        ("T1", &[I8, I16, I32, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4]),
        ("T2", &[F32, F16, BF16]),
        ("T3", &[F32, F16, BF16]),
    ]);

const DEQUANTIZE_LINEAR_24: OpDef = DEQUANTIZE_LINEAR_23.since(24).types(&[
    ("T1", &[I8, I16, I32, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4]),
    ("T2", &[F32, F16, BF16, F8E8M0]),
    ("T3", &[F32, F16, BF16]),
]);

const DEQUANTIZE_LINEAR_25: OpDef = DEQUANTIZE_LINEAR_24.since(25).types(&[
    ("T1", &[I8, I16, I32, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4, I2, U2]),
    ("T2", &[F32, F16, BF16, F8E8M0]),
    ("T3", &[F32, F16, BF16]),
]);

const DEQUANTIZE_LINEAR_28: OpDef = DEQUANTIZE_LINEAR_25.since(28).types(&[
    (
        "T1",
        &[
            I8, I16, I32, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4, I2, U2, F6E2M3,
            F6E3M2,
        ],
    ),
    ("T2", &[F32, F16, BF16, F8E8M0]),
    ("T3", &[F32, F16, BF16]),
]);

const QUANTIZE_LINEAR: OpDef = op("QuantizeLinear", 10, quantize_linear)
    .inputs(&[req("x", "T1"), req("y_scale", "tensor(float)"), opt("y_zero_point", "T2")])
    .outputs(&[req("y", "T2")])
    .types(&[("T1", &[F32, I32]), ("T2", &[I8, U8])])
    .shapes(&["count(y_scale) = 1", "count(y_zero_point) = 1"])
    .doc("saturate(round(x / scale) + zero_point)");

const QUANTIZE_LINEAR_13: OpDef = QUANTIZE_LINEAR.since(13).attributes(&[attr("axis", Int(1))]).shapes(&[
    "x[..axis, N, ..] | [..]",
    "y_scale[] | [N|1]",
    "y_zero_point[] | [N|1]",
]);

const QUANTIZE_LINEAR_19: OpDef = QUANTIZE_LINEAR_13
    .since(19)
    .inputs(&[req("x", "T1"), req("y_scale", "T1"), opt("y_zero_point", "T2")])
    .attributes(&[attr("axis", Int(1)), attr("saturate", Int(1))])
    .types(&[("T1", &[F32, F16, BF16, I32]), ("T2", &[I8, U8, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ])]);

const QUANTIZE_LINEAR_21: OpDef = QUANTIZE_LINEAR_19
    .since(21)
    .attributes(&[
        attr("axis", Int(1)),
        attr("block_size", Int(0)),
        attr("output_dtype", Int(0)),
        attr("saturate", Int(1)),
    ])
    .types(&[
        ("T1", &[F32, F16, BF16, I32]),
        ("T2", &[I8, I16, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, I4, U4]),
    ])
    .shapes(&[
        "if block_size = 0: x[..axis, N, ..] | [..]",
        "if block_size = 0: y_scale[] | [N|1]",
        "if block_size = 0: y_zero_point[] | [N|1]",
        "if block_size != 0: x[A..axis, N, D..]",
        "if block_size != 0: y_scale[A..axis, ceil(N / block_size), D..]",
        "if block_size != 0: y_zero_point[A..axis, ceil(N / block_size), D..]",
    ]);

const QUANTIZE_LINEAR_23: OpDef = QUANTIZE_LINEAR_21
    .since(23)
    .inputs(&[req("x", "T1"), req("y_scale", "T2"), opt("y_zero_point", "T3")])
    .outputs(&[req("y", "T3")])
    .attributes(&[
        attr("axis", Int(1)),
        attr("block_size", Int(0)),
        attr("output_dtype", Int(0)),
        attr("precision", Int(0)),
        attr("saturate", Int(1)),
    ])
    .types(&[
        ("T1", &[F32, F16, BF16, I32]),
        ("T2", &[F32, F16, BF16, I32]),
        ("T3", &[I8, I16, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4]),
    ]);

const QUANTIZE_LINEAR_24: OpDef = QUANTIZE_LINEAR_23.since(24).types(&[
    ("T1", &[F32, F16, BF16, I32]),
    ("T2", &[F32, F16, BF16, I32, F8E8M0]),
    ("T3", &[I8, I16, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4]),
]);

const QUANTIZE_LINEAR_25: OpDef = QUANTIZE_LINEAR_24.since(25).types(&[
    ("T1", &[F32, F16, BF16, I32]),
    ("T2", &[F32, F16, BF16, I32, F8E8M0]),
    ("T3", &[I8, I16, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4, I2, U2]),
]);

const QUANTIZE_LINEAR_28: OpDef = QUANTIZE_LINEAR_25.since(28).types(&[
    ("T1", &[F32, F16, BF16, I32]),
    ("T2", &[F32, F16, BF16, I32, F8E8M0]),
    (
        "T3",
        &[I8, I16, U8, U16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1, I4, U4, I2, U2, F6E2M3, F6E3M2],
    ),
]);

const DYNAMIC_QUANTIZE_LINEAR: OpDef = op("DynamicQuantizeLinear", 11, dynamic_quantize_linear)
    .inputs(&[req("x", "T1")])
    .outputs(&[req("y", "T2"), req("y_scale", "tensor(float)"), req("y_zero_point", "T2")])
    .types(&[("T1", &[F32]), ("T2", &[U8])])
    .doc("8-bit quantization with scale and zero point from the data");

const MAT_MUL_INTEGER: OpDef = op("MatMulInteger", 10, mat_mul_integer)
    .inputs(&[req("A", "T1"), req("B", "T2"), opt("a_zero_point", "T1"), opt("b_zero_point", "T2")])
    .outputs(&[req("Y", "T3")])
    .types(&[("T1", &[I8, U8]), ("T2", &[I8, U8]), ("T3", &[I32])])
    .shapes(&[
        "A[K] | [P.., M, K]",
        "B[K] | [Q.., K, N]",
        "broadcast(P, Q)",
        "a_zero_point[] | [M|1] | [.., M|1, 1]",
        "b_zero_point[] | [N|1] | [.., 1, N|1]",
    ])
    .doc("i32 matrix product of 8-bit operands");

const CONV_INTEGER: OpDef = op("ConvInteger", 10, conv_integer)
    .inputs(&[req("x", "T1"), req("w", "T2"), opt("x_zero_point", "T1"), opt("w_zero_point", "T2")])
    .outputs(&[req("y", "T3")])
    .attributes(conv::ATTRIBUTES)
    .types(&[("T1", &[I8, U8]), ("T2", &[I8, U8]), ("T3", &[I32])])
    .shapes(&[
        "x[N, C, D..]",
        "w[M, G, K..]",
        "w[_, _, kernel_shape..]",
        "len(K) = len(D)",
        "C = G * group",
        "M % group = 0",
        "count(x_zero_point) = 1",
        "w_zero_point[] | [M|1]",
    ])
    .doc("i32 convolution of 8-bit operands");

const QLINEAR_MAT_MUL: OpDef = op("QLinearMatMul", 10, qlinear_mat_mul)
    .inputs(&[
        req("a", "T1"),
        req("a_scale", "tensor(float)"),
        req("a_zero_point", "T1"),
        req("b", "T2"),
        req("b_scale", "tensor(float)"),
        req("b_zero_point", "T2"),
        req("y_scale", "tensor(float)"),
        req("y_zero_point", "T3"),
    ])
    .outputs(&[req("y", "T3")])
    .types(&[("T1", &[I8, U8]), ("T2", &[I8, U8]), ("T3", &[I8, U8])])
    .shapes(&[
        "a[K] | [P.., M, K]",
        "b[K] | [Q.., K, N]",
        "broadcast(P, Q)",
        "a_scale[] | [M|1] | [.., M|1, 1]",
        "a_zero_point[] | [M|1] | [.., M|1, 1]",
        "b_scale[] | [N|1] | [.., 1, N|1]",
        "b_zero_point[] | [N|1] | [.., 1, N|1]",
        "y_scale[] | [M|1] | [.., M|1, 1]",
        "y_zero_point[] | [M|1] | [.., M|1, 1]",
    ])
    .doc("quantized matrix product");

pub const QLINEAR_CONV: OpDef = op("QLinearConv", 10, qlinear_conv)
    .inputs(&[
        req("x", "T1"),
        req("x_scale", "tensor(float)"),
        req("x_zero_point", "T1"),
        req("w", "T2"),
        req("w_scale", "tensor(float)"),
        req("w_zero_point", "T2"),
        req("y_scale", "tensor(float)"),
        req("y_zero_point", "T3"),
        opt("B", "T4"),
    ])
    .outputs(&[req("y", "T3")])
    .attributes(conv::ATTRIBUTES)
    .types(&[("T1", &[I8, U8]), ("T2", &[I8, U8]), ("T3", &[I8, U8]), ("T4", &[I32])])
    .shapes(&[
        "x[N, C, D..]",
        "w[M, G, K..]",
        "w[_, _, kernel_shape..]",
        "len(K) = len(D)",
        "C = G * group",
        "M % group = 0",
        "B[M]",
        "count(x_scale) = 1",
        "count(x_zero_point) = 1",
        "w_scale[] | [M|1]",
        "w_zero_point[] | [M|1]",
        "count(y_scale) = 1",
        "count(y_zero_point) = 1",
    ])
    .doc("quantized convolution plus bias");

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// Where a scale and zero point apply: along one axis, in blocks of it, or everywhere.
pub struct Granularity {
    pub axis: i64,
    pub block: i64,
}

fn granularity(cx: &NodeCx<'_, '_>) -> Result<Granularity> {
    let axis = if cx.has("axis") { cx.optional_int("axis")?.unwrap_or(1) } else { 1 };
    let block = if cx.has("block_size") { cx.int("block_size")? } else { 0 };
    if block < 0 { malformed(format!("block_size {block}")) } else { Ok(Granularity { axis, block }) }
}

impl Granularity {
    /// `parameter` in a shape that broadcasts against `shape`.
    pub fn aligned(&self, b: &mut Builder<'_>, parameter: ValueId, shape: &[Dim]) -> Result<ValueId> {
        let own = b.shape(parameter);
        if own.is_empty() || (self.block == 0 && own == [Dim::ONE]) {
            return b.reshape(parameter, vec![]);
        }
        if self.block == 0 && own.len() == 1 && !own[0].is_const() && self.axis >= shape.len() as i64 {
            // One of the default axis, which the tensor does not have, has one element.
            return b.reshape(parameter, vec![]);
        }
        let axis = normalize_axis(self.axis, shape.len())?;
        if self.block == 0 {
            if own.len() != 1 {
                return malformed(format!("{} as a parameter along axis {axis}", b.ty(parameter)));
            }
            let mut wanted = vec![Dim::ONE; shape.len()];
            wanted[axis] = own[0].clone();
            return b.reshape(parameter, wanted);
        }
        if own.len() != shape.len() {
            return malformed(format!("{} as a parameter of blocks of {shape:?}", b.ty(parameter)));
        }
        let wide = b.unsqueeze(parameter, &[axis + 1])?;
        let mut repeated = b.shape(wide);
        repeated[axis + 1] = Dim::from(self.block);
        let wide = b.expand(wide, repeated)?;
        let mut joined = own.clone();
        joined[axis] = own[axis].clone() * Dim::from(self.block);
        let wide = b.reshape(wide, joined)?;
        b.slice_axis(wide, axis, Dim::ZERO, shape[axis].clone())
    }
}

/// Whether a constant holds zeros only.
pub fn is_zero(b: &Builder<'_>, value: ValueId) -> bool {
    b.graph.constant_data(value).is_some_and(|tensor| tensor.data.iter().all(|&byte| byte == 0))
}

/// Least and greatest value of an integer type that quantization can give.
fn range(dtype: DType) -> Option<(f64, f64)> {
    Some(match dtype {
        U2 => (0.0, 3.0),
        I2 => (-2.0, 1.0),
        U4 => (0.0, 15.0),
        I4 => (-8.0, 7.0),
        U8 => (0.0, 255.0),
        I8 => (-128.0, 127.0),
        U16 => (0.0, 65535.0),
        I16 => (-32768.0, 32767.0),
        _ => return None,
    })
}

/// The type of the attribute `output_dtype`, where it is stated.
fn output_dtype(cx: &NodeCx<'_, '_>) -> Result<Option<DType>> {
    let number = if cx.has("output_dtype") { cx.int("output_dtype")? } else { 0 };
    if number == 0 {
        return Ok(None);
    }
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(dtype) => Ok(Some(dtype)),
        None => malformed(format!("output_dtype {number}")),
    }
}

pub fn dequantize_linear(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, zero_point) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let granularity = granularity(cx)?;
    let to = output_dtype(cx)?;
    let b = &mut *cx.b;
    let to = to.unwrap_or(match b.dtype(scale) {
        F8E8M0 => F32,
        dtype => dtype,
    });
    let shape = b.shape(x);
    let integer = if b.dtype(x) == I32 { I32 } else { F32 };
    let mut y = b.cast(x, integer)?;
    if let Some(zero_point) = zero_point.filter(|&value| !is_zero(b, value)) {
        let zero_point = b.cast(zero_point, integer)?;
        let zero_point = granularity.aligned(b, zero_point, &shape)?;
        y = b.binary(BinaryFn::Sub, y, zero_point)?;
    }
    let y = b.cast(y, F32)?;
    let scale = b.cast(scale, F32)?;
    let scale = granularity.aligned(b, scale, &shape)?;
    let y = b.binary(BinaryFn::Mul, y, scale)?;
    Ok(vec![b.cast(y, to)?])
}

/// `saturate(round(x) + zero_point)` of an f32 `x`; the zero point has the result's type.
pub fn saturated(
    b: &mut Builder<'_>,
    x: ValueId,
    zero_point: Option<ValueId>,
    to: DType,
    saturate: bool,
) -> Result<ValueId> {
    let Some((low, high)) = range(to) else {
        if !to.is_float() {
            return malformed(format!("quantization to {to}"));
        }
        return b.emit1(Op::Map(MapFn::Cast { to, saturate }), &[x]);
    };
    let mut y = b.unary(UnaryFn::Round, x)?;
    if let Some(zero_point) = zero_point.filter(|&value| !is_zero(b, value)) {
        let zero_point = b.cast(zero_point, F32)?;
        y = b.binary(BinaryFn::Add, y, zero_point)?;
    }
    let y = b.binary_scalar(BinaryFn::Max, y, low)?;
    let y = b.binary_scalar(BinaryFn::Min, y, high)?;
    b.cast(y, to)
}

pub fn quantize_linear(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, scale, zero_point) = (cx.input(0)?, cx.input(1)?, cx.optional(2));
    let granularity = granularity(cx)?;
    let stated = output_dtype(cx)?;
    let saturate = !cx.has("saturate") || cx.int("saturate")? != 0;
    let precision = if cx.has("precision") { cx.int("precision")? } else { 0 };
    // Of the vendor's own operator the division is that of f32.
    let precision = match (precision, cx.b.dtype(scale)) {
        (0, _) if !cx.def.domain.is_empty() => F32,
        (0, F16) => F16,
        (0, BF16) => BF16,
        (0, _) => F32,
        (number, _) => match i32::try_from(number).ok().and_then(DType::from_onnx) {
            Some(dtype) if dtype.is_float() => dtype,
            _ => return malformed(format!("precision {number}")),
        },
    };
    let b = &mut *cx.b;
    let given = zero_point.map(|value| b.dtype(value));
    if let (Some(given), Some(stated)) = (given, stated)
        && given != stated
    {
        return malformed(format!(
            "output_dtype is {stated}, and the zero point is {given}: both are the type of y and must be the same"
        ));
    }
    let to = given.or(stated).unwrap_or(U8);
    let shape = b.shape(x);
    let (x, scale) = (b.cast(x, precision)?, b.cast(scale, precision)?);
    let scale = granularity.aligned(b, scale, &shape)?;
    let quotient = b.binary(BinaryFn::Div, x, scale)?;
    let quotient = b.cast(quotient, F32)?;
    let zero_point = match zero_point {
        Some(value) => Some(granularity.aligned(b, value, &shape)?),
        None => None,
    };
    Ok(vec![saturated(b, quotient, zero_point, to, saturate)?])
}

fn dynamic_quantize_linear(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("x")?;
    Ok(dynamically_quantized(cx.b, x)?.to_vec())
}

/// An f32 `x` as u8, its scale and its zero point, by the range of its elements.
pub fn dynamically_quantized(b: &mut Builder<'_>, x: ValueId) -> Result<[ValueId; 3]> {
    let axes: Vec<usize> = (0..b.rank(x)).collect();
    let max = b.reduce(ReduceFn::Max, x, &axes)?;
    let min = b.reduce(ReduceFn::Min, x, &axes)?;
    let (max, min) = (b.reshape(max, vec![])?, b.reshape(min, vec![])?);
    // The range holds zero, so that zero is exact.
    let max = b.binary_scalar(BinaryFn::Max, max, 0.0)?;
    let min = b.binary_scalar(BinaryFn::Min, min, 0.0)?;
    let extent = b.binary(BinaryFn::Sub, max, min)?;
    let step = b.binary_scalar(BinaryFn::Div, extent, 255.0)?;
    let (zero, one) = (b.scalar(F32, 0.0), b.scalar(F32, 1.0));
    let flat = b.compare(CompareFn::Eq, extent, zero)?;
    let scale = b.select(flat, one, step)?;
    let lowest = b.unary(UnaryFn::Neg, min)?;
    let zero_point = b.binary(BinaryFn::Div, lowest, scale)?;
    let zero_point = saturated(b, zero_point, None, U8, true)?;
    let quotient = b.binary(BinaryFn::Div, x, scale)?;
    let y = saturated(b, quotient, Some(zero_point), U8, true)?;
    Ok([y, scale, zero_point])
}

/// Which axis of a matrix operand its parameters run along.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Rows,
    Columns,
}

/// A parameter of a matrix operand of rank `rank`, in a shape that broadcasts against it.
pub fn beside(b: &mut Builder<'_>, parameter: ValueId, rank: usize, side: Side) -> Result<ValueId> {
    let shape = b.shape(parameter);
    match shape.as_slice() {
        [] => Ok(parameter),
        [one] if *one == Dim::ONE => b.reshape(parameter, vec![]),
        [count] if side == Side::Rows && rank >= 2 => b.reshape(parameter, vec![count.clone(), Dim::ONE]),
        _ => Ok(parameter),
    }
}

/// A matrix operand minus its zero point, as `dtype`.
pub fn centred(
    b: &mut Builder<'_>,
    x: ValueId,
    zero_point: Option<ValueId>,
    side: Side,
    dtype: DType,
) -> Result<ValueId> {
    let rank = b.rank(x);
    let x = b.cast(x, dtype)?;
    match zero_point.filter(|&value| !is_zero(b, value)) {
        None => Ok(x),
        Some(zero_point) => {
            let zero_point = b.cast(zero_point, dtype)?;
            let zero_point = beside(b, zero_point, rank, side)?;
            b.binary(BinaryFn::Sub, x, zero_point)
        }
    }
}

/// A sum of products of integers, in reals: times the scales of the operands, in units of the result's scale.
pub fn rescaled(
    b: &mut Builder<'_>,
    sum: ValueId,
    scales: &[ValueId],
    result: Option<ValueId>,
) -> Result<ValueId> {
    let sum = b.cast(sum, F32)?;
    let Some((&first, rest)) = scales.split_first() else { return Ok(sum) };
    let mut factor = first;
    for &scale in rest {
        factor = b.binary(BinaryFn::Mul, factor, scale)?;
    }
    if let Some(result) = result {
        factor = b.binary(BinaryFn::Div, factor, result)?;
    }
    b.binary(BinaryFn::Mul, sum, factor)
}

fn mat_mul_integer(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("A")?, cx.input("B")?);
    let (x_zero, y_zero) = (cx.optional("a_zero_point"), cx.optional("b_zero_point"));
    let b = &mut *cx.b;
    let x = centred(b, x, x_zero, Side::Rows, I32)?;
    let y = centred(b, y, y_zero, Side::Columns, I32)?;
    Ok(vec![product(b, x, y)?])
}

fn qlinear_mat_mul(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut inputs = [cx.input("a")?; 8];
    for (at, slot) in inputs.iter_mut().enumerate() {
        *slot = cx.input(at)?;
    }
    let [x, x_scale, x_zero, y, y_scale, y_zero, out_scale, out_zero] = inputs;
    let b = &mut *cx.b;
    // Products of 8-bit floats, and of those and integers, are reals.
    let inner = if b.dtype(x).is_float() || b.dtype(y).is_float() { F32 } else { I32 };
    let lhs = centred(b, x, Some(x_zero), Side::Rows, inner)?;
    let rhs = centred(b, y, Some(y_zero), Side::Columns, inner)?;
    let sum = product(b, lhs, rhs)?;
    let rank = b.rank(sum);
    let mut scales = [x_scale; 3];
    for (slot, (scale, side)) in
        scales.iter_mut().zip([(x_scale, Side::Rows), (y_scale, Side::Columns), (out_scale, Side::Rows)])
    {
        let scale = b.cast(scale, F32)?;
        *slot = beside(b, scale, rank, side)?;
    }
    let real = rescaled(b, sum, &scales[..2], Some(scales[2]))?;
    let to = b.dtype(out_zero);
    let out_zero = beside(b, out_zero, rank, Side::Rows)?;
    Ok(vec![saturated(b, real, Some(out_zero), to, true)?])
}

/// The i32 convolution of quantized operands, channels-last. Pads are zeros of the reals: they are added
/// after the zero point is gone.
fn integer_convolution(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    x_zero: Option<ValueId>,
    w: ValueId,
    w_zero: Option<ValueId>,
) -> Result<ValueId> {
    let plan = plan(cx, x, w)?;
    let b = &mut *cx.b;
    let everywhere = Granularity { axis: 0, block: 0 };
    let mut operands = [(x, x_zero), (w, w_zero)];
    for (value, zero_point) in &mut operands {
        let shape = b.shape(*value);
        *value = b.cast(*value, I32)?;
        if let Some(zero_point) = zero_point.filter(|&value| !is_zero(b, value)) {
            let zero_point = b.cast(zero_point, I32)?;
            let zero_point = everywhere.aligned(b, zero_point, &shape)?;
            *value = b.binary(BinaryFn::Sub, *value, zero_point)?;
        }
    }
    convolve(b, operands[0].0, operands[1].0, &plan)
}

fn conv_integer(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, w, x_zero, w_zero) =
        (cx.input("x")?, cx.input("w")?, cx.optional("x_zero_point"), cx.optional("w_zero_point"));
    let y = integer_convolution(cx, x, x_zero, w, w_zero)?;
    Ok(vec![channels_first(cx.b, y)?])
}

fn qlinear_conv(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut inputs = [cx.input("x")?; 8];
    for (at, slot) in inputs.iter_mut().enumerate() {
        *slot = cx.input(at)?;
    }
    let [x, x_scale, x_zero, w, w_scale, w_zero, out_scale, out_zero] = inputs;
    let bias = cx.optional("B");
    let is_last = cx.has("channels_last") && cx.int("channels_last")? != 0;
    let x = if is_last { channels_first(cx.b, x)? } else { x };
    let mut sum = integer_convolution(cx, x, Some(x_zero), w, Some(w_zero))?;
    let b = &mut *cx.b;
    if let Some(bias) = bias {
        sum = b.binary(BinaryFn::Add, sum, bias)?;
    }
    let mut scales = [x_scale; 3];
    for (slot, scale) in scales.iter_mut().zip([x_scale, w_scale, out_scale]) {
        // A scale per output channel runs along the last axis.
        *slot = beside(b, scale, 1, Side::Columns)?;
    }
    let real = rescaled(b, sum, &scales[..2], Some(scales[2]))?;
    let to = b.dtype(out_zero);
    let out_zero = beside(b, out_zero, 1, Side::Columns)?;
    let y = saturated(b, real, Some(out_zero), to, true)?;
    Ok(vec![if is_last { y } else { channels_first(b, y)? }])
}

/// A quantised matrix operand: elements, scale and zero point.
pub type Operand = (ValueId, ValueId, Option<ValueId>);

/// The product of two quantised operands as f32, plus bias.
pub fn scaled_product(
    b: &mut Builder<'_>,
    lhs: Operand,
    rhs: Operand,
    bias: Option<ValueId>,
) -> Result<ValueId> {
    let x = centred(b, lhs.0, lhs.2, Side::Rows, I32)?;
    let y = centred(b, rhs.0, rhs.2, Side::Columns, I32)?;
    let sum = product(b, x, y)?;
    let rank = b.rank(sum);
    let mut scales = [lhs.1, rhs.1];
    for (scale, side) in scales.iter_mut().zip([Side::Rows, Side::Columns]) {
        *scale = b.cast(*scale, F32)?;
        *scale = beside(b, *scale, rank, side)?;
    }
    let reals = rescaled(b, sum, &scales, None)?;
    match bias {
        Some(bias) => {
            let bias = b.cast(bias, F32)?;
            b.binary(BinaryFn::Add, reals, bias)
        }
        None => Ok(reals),
    }
}

#[cfg(test)]
mod tests {
    use crate::node_case::Case;
    use onnxc_ir::graph::DType;

    #[test]
    fn linear_both_ways_per_axis() {
        let case = Case::new("QuantizeLinear", 13)
            .ramp(&[2, 3], 1)
            .constant::<f32>(&[3], &[0.1, 0.02, 0.5])
            .constant::<u8>(&[3], &[3, 128, 250]);
        case.gives(0, &[2, 3], &[0.0, 190.0, 250.0, 0.0, 178.0, 250.0]);
        let case = Case::new("DequantizeLinear", 13)
            .input::<i8>(&[2, 3], &[3, -128, 100, 7, 0, -5])
            .constant::<f32>(&[2], &[0.1, 0.02])
            .constant::<i8>(&[2], &[1, -3])
            .int("axis", 0);
        case.gives(0, &[2, 3], &[0.2, -12.900001, 9.900001, 0.2, 0.06, -0.04]);
    }

    /// 7 / 2.0007 is 3.4988; in f16 the scale is 2, and 3.5 is rounded to even.
    #[test]
    fn the_division_is_of_the_stated_precision() {
        let case = || {
            let case = Case::new("QuantizeLinear", 23).input::<f32>(&[1], &[7.0]);
            case.constant::<f32>(&[], &[2.0007]).constant::<u8>(&[], &[0])
        };
        case().gives(0, &[1], &[3.0]);
        case().int("precision", DType::F32.to_onnx().into()).gives(0, &[1], &[3.0]);
        case().int("precision", DType::F16.to_onnx().into()).gives(0, &[1], &[4.0]);
        let error = case().int("precision", DType::I64.to_onnx().into()).run().unwrap_err();
        assert!(error.message.contains("precision 7"), "{error}");
    }

    #[test]
    fn dynamic_range_holds_zero() {
        let case = Case::new("DynamicQuantizeLinear", 11).input::<f32>(&[3], &[0.5, 1.0, 2.5]).outputs(3);
        case.gives(0, &[3], &[51.0, 102.0, 255.0]);
        case.gives(1, &[], &[0.009804]);
        case.gives(2, &[], &[0.0]);
        let case = Case::new("DynamicQuantizeLinear", 11).ramp(&[2, 3], 1).outputs(3);
        case.gives(0, &[2, 3], &[32.0, 255.0, 128.0, 0.0, 223.0, 96.0]);
        case.gives(1, &[], &[0.007843]);
        case.gives(2, &[], &[96.0]);
    }

    #[test]
    fn integer_products() {
        let case = Case::new("MatMulInteger", 10)
            .input::<u8>(&[2, 2], &[1, 200, 7, 9])
            .constant::<i8>(&[2, 2], &[-3, 4, 5, -128])
            .input::<u8>(&[], &[5])
            .constant::<i8>(&[], &[2]);
        case.gives(0, &[2, 2], &[605.0, -25358.0, 2.0, -516.0]);
        let case = Case::new("QLinearMatMul", 10)
            .input::<u8>(&[2, 2], &[1, 200, 7, 9])
            .constant::<f32>(&[], &[0.1])
            .constant::<u8>(&[], &[5])
            .constant::<u8>(&[2, 2], &[3, 4, 5, 128])
            .constant::<f32>(&[], &[0.2])
            .constant::<u8>(&[], &[2])
            .constant::<f32>(&[], &[1.5])
            .constant::<u8>(&[], &[9]);
        case.gives(0, &[2, 2], &[17.0, 255.0, 9.0, 16.0]);
    }

    #[test]
    fn integer_convolutions_pad_with_the_zero_point() {
        let case = Case::new("ConvInteger", 10)
            .input::<u8>(&[1, 1, 3, 3], &[0, 20, 40, 60, 80, 100, 120, 140, 160])
            .constant::<u8>(&[1, 1, 2, 2], &[1, 2, 3, 4])
            .constant::<u8>(&[], &[60])
            .constant::<u8>(&[], &[2])
            .ints("pads", &[1, 0, 0, 1]);
        case.gives(0, &[1, 1, 3, 3], &[-140.0, -80.0, -20.0, 100.0, 140.0, 60.0, 220.0, 260.0, 60.0]);
        let case = Case::new("QLinearConv", 10)
            .input::<u8>(&[1, 1, 3, 3], &[0, 20, 40, 60, 80, 100, 120, 140, 160])
            .constant::<f32>(&[], &[0.1])
            .constant::<u8>(&[], &[60])
            .constant::<i8>(&[2, 1, 2, 2], &[1, 2, -3, 4, 5, 6, 7, -8])
            .constant::<f32>(&[2], &[0.1, 0.3])
            .constant::<i8>(&[2], &[0, 0])
            .constant::<f32>(&[], &[0.6])
            .constant::<u8>(&[], &[100])
            .constant::<i32>(&[2], &[100, -200])
            .ints("pads", &[1, 0, 0, 1]);
        case.gives(
            0,
            &[1, 2, 3, 3],
            &[
                102.0, 102.0, 103.0, 101.0, 102.0, 99.0, 105.0, 106.0, 97.0, 85.0, 84.0, 83.0, 55.0, 65.0,
                99.0, 85.0, 95.0, 135.0,
            ],
        );
    }
}
