//! What ONNX Runtime has in the domain `ai.onnx` beyond the standard: operators that were experimental in its first versions,
//! or that exporters used before a version had them, and element types that it does not check. Files with them exist.
//! Importing one gives a warning.

use super::activation::{softplus_of, thresholded_relu};
use super::norm::{layer_normalization, moments, rms_normalization};
use super::row::*;
use super::slicing::slice;

/// A row that holds for the versions of `ai.onnx` from its `since` to `until`.
pub struct Tolerated {
    pub row: OpDef,
    pub until: u32,
}

pub const ROWS: &[Tolerated] = &[
    before(
        10,
        op("Affine", 1, affine)
            .inputs(&[req("X", "T")])
            .outputs(&[req("Y", "T")])
            .attributes(&[float("alpha", 1.0), float("beta", 0.0)])
            .types(&[("T", FLOATS_F16)])
            .doc("alpha * x + beta"),
    ),
    before(
        9,
        op("Constant", 1, super::generate::constant)
            .outputs(&[req("output", "T")])
            .attributes(&[required("value", Tensor)])
            .types(&[("T", ALL_BF16)])
            .doc("A constant"),
    ),
    before(
        10,
        op("Crop", 1, crop)
            .inputs(&[req("input", "T")])
            .outputs(&[req("output", "T")])
            .attributes(&[optional("border", Ints), optional("scale", Ints)])
            .types(&[("T", FLOATS_F16)])
            .shapes(&["input[_, _, _, _]"])
            .doc("An image without its borders, or of a given size from the left and top border on"),
    ),
    before(
        10,
        op("DynamicSlice", 1, slice)
            .inputs(&[req("data", "T"), req("starts", "Tind"), req("ends", "Tind"), opt("axes", "Tind")])
            .outputs(&[req("output", "T")])
            .types(&[("T", ALL), ("Tind", INDICES)])
            .shapes(&["starts[K]", "ends[K]", "axes[K]", "K <= rank(data)"])
            .doc("A range of each axis"),
    ),
    before(
        10,
        op("ImageScaler", 1, image_scaler)
            .inputs(&[req("input", "T")])
            .outputs(&[req("output", "T")])
            .attributes(&[optional("bias", Floats), float("scale", 1.0)])
            .types(&[("T", FLOATS_F16)])
            .shapes(&["input[_, C, _, _]", "C = len(bias)"])
            .doc("scale * x + bias per channel"),
    ),
    before(
        17,
        op("LayerNormalization", 1, layer_normalization)
            .inputs(&[req("X", "T"), req("Scale", "V"), opt("B", "V")])
            .outputs(&[req("Y", "V"), opt("Mean", "U"), opt("InvStdDev", "U")])
            .attributes(&[int("axis", -1), float("epsilon", 1e-05), int("stash_type", 1)])
            .types(&[("T", FLOATS), ("U", F32_F64), ("V", FLOATS)])
            .shapes(&["X[..axis, _, ..]", "broadcast(Scale -> X)", "broadcast(B -> X)"])
            .doc("normalization over the trailing axes"),
    ),
    before(
        9,
        op("MeanVarianceNormalization", 1, mean_variance_normalization)
            .inputs(&[req("input", "T")])
            .outputs(&[req("output", "T")])
            .attributes(&[int("across_channels", 0), int("normalize_variance", 1)])
            .types(&[("T", FLOATS_F16)])
            .shapes(&["input[_, _, ..]"])
            .doc("(x - mean) / standard deviation"),
    ),
    before(
        10,
        op("ParametricSoftplus", 1, parametric_softplus)
            .inputs(&[req("X", "T")])
            .outputs(&[req("Y", "T")])
            .attributes(&[optional("alpha", Float), optional("beta", Float)])
            .types(&[("T", FLOATS_F16)])
            .doc("alpha * log(1 + exp(beta * x))"),
    ),
    before(
        10,
        op("Scale", 1, scale)
            .inputs(&[req("input", "T")])
            .outputs(&[req("output", "T")])
            .attributes(&[float("scale", 1.0)])
            .types(&[("T", FLOATS_F16)])
            .doc("scale * x"),
    ),
    before(
        10,
        op("ScaledTanh", 1, scaled_tanh)
            .inputs(&[req("input", "T")])
            .outputs(&[req("output", "T")])
            .attributes(&[optional("alpha", Float), optional("beta", Float)])
            .types(&[("T", FLOATS_F16)])
            .doc("alpha * tanh(beta * x)"),
    ),
    before(
        u32::MAX,
        op("SimplifiedLayerNormalization", 1, rms_normalization)
            .inputs(&[req("X", "T"), req("scale", "V")])
            .outputs(&[req("Y", "V"), opt("inv_std_var", "U")])
            .attributes(&[int("axis", -1), float("epsilon", 1e-05), int("stash_type", 1)])
            .types(&[("T", FLOATS), ("U", F32_F64), ("V", FLOATS)])
            .shapes(&["X[..axis, _, ..]", "broadcast(scale -> X)"])
            .doc("division by the root mean square over the trailing axes"),
    ),
    before(
        10,
        op("ThresholdedRelu", 1, thresholded_relu)
            .inputs(&[req("X", "T")])
            .outputs(&[req("Y", "T")])
            .attributes(&[float("alpha", 1.0)])
            .types(&[("T", FLOATS_F16)])
            .doc("x above alpha, else 0"),
    ),
];

const fn before(version: u32, row: OpDef) -> Tolerated {
    Tolerated { row, until: version - 1 }
}

fn affine(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let y = cx.b.binary_scalar(BinaryFn::Mul, x, f64::from(cx.float("alpha")?))?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Add, y, f64::from(cx.float("beta")?))?])
}

fn scale(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Mul, x, f64::from(cx.float("scale")?))?])
}

fn image_scaler(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let y = scale(cx)?[0];
    let Some(bias) = cx.floats("bias")? else { return malformed("attribute bias is missing") };
    let bias = cx.b.constant(onnxc_ir::graph::Tensor::from_slice(&[bias.len(), 1, 1], &bias));
    let bias = cx.b.cast(bias, cx.b.dtype(y))?;
    Ok(vec![cx.b.binary(BinaryFn::Add, y, bias)?])
}

/// `border` is left, top, right, bottom; `scale` is height, width, and makes the last two of `border` mean nothing.
fn crop(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut y = cx.input("input")?;
    let border = cx.ints("border")?.unwrap_or_default();
    let [left, top, right, bottom] = border[..] else {
        return malformed(format!(
            "border has {} elements; it has 4: left, top, right, bottom",
            border.len()
        ));
    };
    let scale = match cx.ints("scale")? {
        None => [None; 2],
        Some(scale) => match scale[..] {
            [height, width] => [Some(height), Some(width)],
            _ => return malformed(format!("scale has {} elements; it has 2: height, width", scale.len())),
        },
    };
    for (axis, start, end, size) in [(2, top, bottom, scale[0]), (3, left, right, scale[1])] {
        let whole = cx.b.shape(y)[axis].clone();
        let size = size.map_or_else(|| whole.clone() - Dim::from(start) - Dim::from(end), Dim::from);
        let rest = whole.clone() - Dim::from(start) - size.clone();
        if start < 0 || [&size, &rest].iter().any(|dim| dim.as_const().is_some_and(|dim| dim < 0)) {
            return malformed(format!("{size} elements from {start} on of axis {axis}, which has {whole}"));
        }
        y = cx.b.slice_axis(y, axis, Dim::from(start), size)?;
    }
    Ok(vec![y])
}

fn mean_variance_normalization(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let across = cx.int("across_channels")? != 0;
    let axes: Vec<usize> = (0..cx.b.rank(x)).filter(|&axis| across || axis != 1).collect();
    let dtype = cx.b.dtype(x);
    let x = cx.b.widened(x)?;
    let found = moments(cx.b, x, &axes)?;
    let y = match cx.int("normalize_variance")? {
        0 => found.centred,
        _ => {
            let deviation = cx.b.unary(UnaryFn::Sqrt, found.variance)?;
            cx.b.binary(BinaryFn::Div, found.centred, deviation)?
        }
    };
    Ok(vec![cx.b.cast(y, dtype)?])
}

/// The factors `alpha` and `beta`: ONNX Runtime's schema calls them optional, and its kernels ask for them.
fn factors(cx: &NodeCx<'_, '_>) -> Result<(f64, f64)> {
    match (cx.optional_float("alpha")?, cx.optional_float("beta")?) {
        (Some(alpha), Some(beta)) => Ok((f64::from(alpha), f64::from(beta))),
        _ => malformed("attributes alpha and beta are both needed"),
    }
}

fn parametric_softplus(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (alpha, beta) = factors(cx)?;
    let x = cx.input("X")?;
    let x = cx.b.binary_scalar(BinaryFn::Mul, x, beta)?;
    let y = softplus_of(cx.b, x)?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Mul, y, alpha)?])
}

fn scaled_tanh(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (alpha, beta) = factors(cx)?;
    let x = cx.input("input")?;
    let x = cx.b.binary_scalar(BinaryFn::Mul, x, beta)?;
    let y = cx.b.unary(UnaryFn::Tanh, x)?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Mul, y, alpha)?])
}
