//! Resampling: Resize and Upsample. Each axis is resampled alone: coordinates, tap indices and tap weights
//! are vectors over the output positions, which fold to constants where the sizes are static.

mod resample;
#[cfg(test)]
mod tests;

use self::resample::resample;
use super::AttrDefault::{Float, Int, Optional, Required, Str};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, normalize_axis, op, opt, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::DType::{Bool, F16, F32, F64, I32, I64};
use onnxc_ir::graph::{Dim, Tensor, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    RESIZE,
    RESIZE_11,
    RESIZE_13,
    RESIZE_18,
    RESIZE_18.since(19),
    UPSAMPLE,
    UPSAMPLE_7,
    UPSAMPLE_9,
    UPSAMPLE_9.since(10),
];

const RESIZE: OpDef = op("Resize", 10, resize)
    .inputs(&[req("X", "T"), req("scales", "tensor(float)")])
    .outputs(&[req("Y", "T")])
    .attributes(&[attr("mode", Str("nearest"))])
    .types(&[("T", ALL)])
    .shapes(&["scales[rank(X)]"])
    .doc("resampling by interpolation");

const RESIZE_11: OpDef = RESIZE
    .since(11)
    .inputs(&[
        req("X", "T1"),
        req("roi", "T2"),
        req("scales", "tensor(float)"),
        opt("sizes", "tensor(int64)"),
    ])
    .outputs(&[req("Y", "T1")])
    .attributes(&[
        attr("coordinate_transformation_mode", Str("half_pixel")),
        attr("cubic_coeff_a", Float(-0.75)),
        attr("exclude_outside", Int(0)),
        attr("extrapolation_value", Float(0.0)),
        attr("mode", Str("nearest")),
        attr("nearest_mode", Str("round_prefer_floor")),
    ])
    .types(&[("T1", ALL), ("T2", FLOATS_F16)])
    .shapes(&[
        "if coordinate_transformation_mode = tf_crop_and_resize: roi[2 * rank(X)]",
        "scales[rank(X)|0]",
        "sizes[rank(X)|0]",
    ]);

const RESIZE_13: OpDef = RESIZE_11
    .since(13)
    .inputs(&[
        req("X", "T1"),
        opt("roi", "T2"),
        opt("scales", "tensor(float)"),
        opt("sizes", "tensor(int64)"),
    ])
    .types(&[("T1", ALL_BF16), ("T2", FLOATS_F16)]);

const RESIZE_18: OpDef = RESIZE_13
    .since(18)
    .attributes(&[
        attr("antialias", Int(0)),
        attr("axes", Optional(AttrKind::Ints)),
        attr("coordinate_transformation_mode", Str("half_pixel")),
        attr("cubic_coeff_a", Float(-0.75)),
        attr("exclude_outside", Int(0)),
        attr("extrapolation_value", Float(0.0)),
        attr("keep_aspect_ratio_policy", Str("stretch")),
        attr("mode", Str("nearest")),
        attr("nearest_mode", Str("round_prefer_floor")),
    ])
    .shapes(&[
        "if coordinate_transformation_mode = tf_crop_and_resize: roi[2 * (len(axes) else rank(X))]",
        "scales[len(axes) else rank(X)|0]",
        "sizes[len(axes) else rank(X)|0]",
    ]);

const UPSAMPLE: OpDef = op("Upsample", 1, upsample)
    .inputs(&[req("X", "T")])
    .outputs(&[req("Y", "T")])
    .attributes(&[
        attr("height_scale", Required(AttrKind::Float)),
        attr("mode", Str("nearest")),
        attr("width_scale", Required(AttrKind::Float)),
    ])
    .types(&[("T", &[F32, F64, F16, I32, I64, Bool])])
    .shapes(&["X[_, _, _, _]"])
    .doc("resampling by scales");

const UPSAMPLE_7: OpDef = UPSAMPLE
    .since(7)
    .attributes(&[attr("mode", Str("nearest")), attr("scales", Required(AttrKind::Floats))])
    .types(&[("T", ALL)])
    .shapes(&["len(scales) = rank(X)"]);

const UPSAMPLE_9: OpDef = UPSAMPLE_7
    .since(9)
    .inputs(&[req("X", "T"), req("scales", "tensor(float)")])
    .attributes(&[attr("mode", Str("nearest"))])
    .types(&[("T", ALL)])
    .shapes(&["scales[rank(X)]"]);

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

macro_rules! modes {
    ($(#[$doc:meta])* $name:ident of $attribute:literal { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum $name { $($variant),* }
        impl $name {
            fn parse(text: &str) -> Result<$name> {
                match text {
                    $($text => Ok($name::$variant),)*
                    other => super::not_one_of($attribute, other, [$($text),*].join(", ").as_str()),
                }
            }
        }
    };
}

modes! {
    Mode of "mode" { Nearest = "nearest", Linear = "linear", Bilinear = "bilinear", Cubic = "cubic" }
}
modes! {
    /// Where an output position lies in the input.
    Coordinates of "coordinate_transformation_mode" {
        HalfPixel = "half_pixel",
        HalfPixelSymmetric = "half_pixel_symmetric",
        PytorchHalfPixel = "pytorch_half_pixel",
        AlignCorners = "align_corners",
        Asymmetric = "asymmetric",
        TfHalfPixelForNn = "tf_half_pixel_for_nn",
        TfCropAndResize = "tf_crop_and_resize",
    }
}
modes! {
    Nearest of "nearest_mode" {
        RoundPreferFloor = "round_prefer_floor",
        RoundPreferCeil = "round_prefer_ceil",
        Floor = "floor",
        Ceil = "ceil",
    }
}

/// How to resample, for all axes.
struct Method {
    mode: Mode,
    coordinates: Coordinates,
    /// `None`: floor when enlarging, ceil when shrinking, as before version 11.
    nearest: Option<Nearest>,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

/// One resampled axis.
struct Axis {
    axis: usize,
    size: Dim,
    out: Dim,
    /// The scale, where it is known.
    scale: Option<f32>,
    /// Data give the scale, which need not make a whole number of elements.
    late: bool,
    /// The scale as an f32 scalar.
    scale_value: ValueId,
    /// Start and end of the region of interest, f32 scalars.
    roi: Option<(ValueId, ValueId)>,
}

fn upsample(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let rank = cx.b.rank(x);
    let scales = if cx.has("height_scale") {
        if rank != 4 {
            return malformed(format!("height and width scales of {}", cx.b.ty(x)));
        }
        vec![1.0, 1.0, cx.float("height_scale")?, cx.float("width_scale")?]
    } else if cx.has("scales") {
        cx.floats("scales")?.unwrap_or_default()
    } else {
        vec![]
    };
    let mode = Mode::parse(&cx.str("mode")?)?;
    let method = Method { nearest: Some(Nearest::Floor), ..legacy(mode) };
    let axes: Vec<usize> = (0..rank).collect();
    let axes = match cx.has("height_scale") || cx.has("scales") {
        true => scaled_axes(cx.b, x, &axes, &scales)?,
        false => scaled_by_input(cx, x, &axes, 1)?,
    };
    Ok(vec![resample(cx.b, x, axes, &method)?])
}

/// `x` enlarged along each axis by a whole number.
pub fn enlarged(cx: &mut NodeCx<'_, '_>, x: ValueId, scales: &[i64]) -> Result<ValueId> {
    let axes: Vec<usize> = (0..cx.b.rank(x)).collect();
    let scales: Vec<f32> = scales.iter().map(|&scale| scale as f32).collect();
    let mode = Mode::parse(&cx.str("mode")?)?;
    let coordinates = match mode {
        Mode::Nearest => Coordinates::Asymmetric,
        _ => Coordinates::parse(&cx.str("coordinate_transformation_mode")?)?,
    };
    let method = Method { coordinates, nearest: Some(Nearest::Floor), ..legacy(mode) };
    let axes = scaled_axes(cx.b, x, &axes, &scales)?;
    resample(cx.b, x, axes, &method)
}

/// The only method there was before version 11.
fn legacy(mode: Mode) -> Method {
    Method {
        mode,
        coordinates: Coordinates::Asymmetric,
        nearest: None,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    }
}

fn resize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let rank = cx.b.rank(x);
    let mode = Mode::parse(&cx.str("mode")?)?;
    if cx.def.since < 11 {
        let axes: Vec<usize> = (0..rank).collect();
        let axes = scaled_by_input(cx, x, &axes, 1)?;
        return Ok(vec![resample(cx.b, x, axes, &legacy(mode))?]);
    }
    let method = Method {
        mode,
        coordinates: Coordinates::parse(&cx.str("coordinate_transformation_mode")?)?,
        nearest: Some(Nearest::parse(&cx.str("nearest_mode")?)?),
        cubic: f64::from(cx.float("cubic_coeff_a")?),
        exclude_outside: cx.int("exclude_outside")? != 0,
        antialias: cx.has("antialias") && cx.int("antialias")? != 0,
        extrapolation: f64::from(cx.float("extrapolation_value")?),
    };
    let named = if cx.has("axes") { cx.ints("axes")? } else { None };
    let axes = match named {
        Some(axes) => axes.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    let is_given = |at: usize| cx.optional(at).filter(|&value| cx.b.ty(value).shape != [Dim::ZERO]);
    let (scales, sizes, roi) = (is_given(2), is_given(3), is_given(1));
    let mut resampled = match (scales, sizes) {
        (Some(_), None) => scaled_by_input(cx, x, &axes, 2)?,
        (_, Some(_)) => {
            cx.with_count(3, Some(axes.len()))?;
            let sizes = cx.sizes_input(3)?;
            let policy = if cx.has("keep_aspect_ratio_policy") {
                cx.str("keep_aspect_ratio_policy")?
            } else {
                "stretch".to_string()
            };
            sized_axes(cx.b, x, &axes, &sizes, &policy)?
        }
        (None, None) => return malformed("neither scales nor sizes are given".to_string()),
    };
    if method.coordinates == Coordinates::TfCropAndResize {
        if roi.is_none() {
            return malformed("tf_crop_and_resize without roi".to_string());
        }
        cx.with_count(1, Some(2 * axes.len()))?;
        let roi = cx.input(1)?;
        regions(cx.b, &mut resampled, &axes, roi)?;
    }
    Ok(vec![resample(cx.b, x, resampled, &method)?])
}

/// Axes of `axes` resampled by the scales of input `at`, which are constant, or else decided by data.
fn scaled_by_input(cx: &mut NodeCx<'_, '_>, x: ValueId, axes: &[usize], at: usize) -> Result<Vec<Axis>> {
    cx.with_count(at, Some(axes.len()))?;
    let value = cx.input(at)?;
    if let Some(values) = cx.b.graph.constant_data(value).and_then(Tensor::to_f64s) {
        let scales: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        return scaled_axes(cx.b, x, axes, &scales);
    }
    if cx.b.known(value).is_some() {
        let scales: Vec<f32> = cx.const_input(at)?.into_iter().map(|value| value as f32).collect();
        return scaled_axes(cx.b, x, axes, &scales);
    }
    late_scaled_axes(cx.b, x, axes, value)
}

/// As [`scaled_axes`], computed when the model runs.
fn late_scaled_axes(b: &mut Builder<'_>, x: ValueId, axes: &[usize], scales: ValueId) -> Result<Vec<Axis>> {
    if b.shape(scales) != [Dim::from(axes.len())] {
        return malformed(format!("scales {} of axes {axes:?} of {}", b.ty(scales), b.ty(x)));
    }
    let (shape, scales) = (b.shape(x), b.cast(scales, F32)?);
    let (mut resampled, mut sizes) = (Vec::with_capacity(axes.len()), Vec::with_capacity(axes.len()));
    for (at, &axis) in axes.iter().enumerate() {
        let size = shape[axis].clone();
        let scale = b.slice_axis(scales, 0, Dim::from(at), Dim::ONE)?;
        let scale_value = b.reshape(scale, vec![])?;
        sizes.push(floor_of_product(b, &size, scale_value)?);
        resampled.push(Axis { axis, size, out: Dim::ZERO, scale: None, late: true, scale_value, roi: None });
    }
    for (axis, out) in resampled.iter_mut().zip(b.scalar_sizes(&sizes, &|_| None)?) {
        axis.out = out;
    }
    Ok(resampled)
}

/// Axes of `axes` resampled by `scales`: `out = floor(size * scale)`.
fn scaled_axes(b: &mut Builder<'_>, x: ValueId, axes: &[usize], scales: &[f32]) -> Result<Vec<Axis>> {
    if axes.len() != scales.len() || scales.iter().any(|&scale| !(scale > 0.0 && scale < 1e6)) {
        return malformed(format!("scales {scales:?} of axes {axes:?} of {}", b.ty(x)));
    }
    let shape = b.shape(x);
    let mut resampled = Vec::with_capacity(axes.len());
    for (&axis, &scale) in axes.iter().zip(scales) {
        let size = shape[axis].clone();
        let scale_value = b.constant(Tensor::scalar(scale));
        let out = scaled_size(b, &size, scale, scale_value)?;
        resampled.push(Axis { axis, size, out, scale: Some(scale), late: false, scale_value, roi: None });
    }
    Ok(resampled)
}

/// `floor(size * scale)`, the product in f32: so ONNX's reference and ONNX Runtime. Of a symbolic size it is a formula where it
/// follows from a small fraction, otherwise the run computes it.
fn scaled_size(b: &mut Builder<'_>, size: &Dim, scale: f32, scale_value: ValueId) -> Result<Dim> {
    if let Some(size) = size.as_const() {
        return Ok(Dim::from((size as f32 * scale).floor() as i64));
    }
    if let Some((numerator, denominator)) = small_fraction(scale) {
        let product = size.clone() * Dim::from(numerator);
        return Ok(product.floor_div(&Dim::from(denominator)).unwrap_or(Dim::ZERO));
    }
    let scaled = floor_of_product(b, size, scale_value)?;
    let most = size.clone() * Dim::from(scale.ceil() as i64);
    Ok(b.scalar_sizes(&[scaled], &|_| Some(most.clone()))?.remove(0))
}

/// The fraction with a denominator up to 64 that gives the same sizes as a scale. Multiples `k` of its numerator are products of
/// whole sizes, and must not be rounded below `k`: the scale is short of the fraction by at most half the relative distance of
/// two f32, 2^-25. Other products are 1/64 or more from whole numbers, and are not rounded to them up to a size of 2^17.
fn small_fraction(scale: f32) -> Option<(i64, i64)> {
    (1..=64i64).find_map(|denominator| {
        let numerator = scale * denominator as f32;
        let fraction = f64::from(numerator) / denominator as f64;
        let same = numerator.fract() == 0.0 && f64::from(scale) >= fraction * (1.0 - f64::powi(2.0, -25));
        same.then_some((numerator as i64, denominator))
    })
}

/// `floor(size * scale)` as an i64 scalar, the product in f32.
fn floor_of_product(b: &mut Builder<'_>, size: &Dim, scale: ValueId) -> Result<ValueId> {
    let size = float_dim(b, size)?;
    let scaled = b.binary(BinaryFn::Mul, size, scale)?;
    let scaled = b.unary(UnaryFn::Floor, scaled)?;
    b.cast(scaled, I64)
}

/// Axes of `axes` resampled to `sizes`, under the aspect ratio policy.
fn sized_axes(
    b: &mut Builder<'_>,
    x: ValueId,
    axes: &[usize],
    sizes: &[Dim],
    policy: &str,
) -> Result<Vec<Axis>> {
    let shape = b.shape(x);
    if axes.len() != sizes.len() || sizes.iter().any(|size| size.as_const().is_some_and(|size| size < 0)) {
        return malformed(format!("sizes {sizes:?} of axes {axes:?} of {}", b.ty(x)));
    }
    let known = axes.iter().all(|&axis| shape[axis].is_const()) && sizes.iter().all(Dim::is_const);
    let common = match policy {
        "stretch" => None,
        "not_larger" | "not_smaller" if !known => {
            return late_common_axes(b, &shape, axes, sizes, policy == "not_larger");
        }
        "not_larger" | "not_smaller" => Some(common_scale(&shape, axes, sizes, policy == "not_larger")?),
        other => {
            return super::not_one_of("keep_aspect_ratio_policy", other, "stretch, not_larger, not_smaller");
        }
    };
    let mut resampled = Vec::with_capacity(axes.len());
    for (&axis, size) in axes.iter().zip(sizes) {
        let from = shape[axis].clone();
        let (out, scale) = match (common, from.as_const(), size.as_const()) {
            (Some(scale), Some(from), _) => {
                (Dim::from((scale * from as f64 + 0.5) as i64), Some(scale as f32))
            }
            (_, Some(from), Some(to)) => (size.clone(), Some(to as f32 / from as f32)),
            _ => {
                let exact = size.exact_div(&from).and_then(|scale| scale.as_const());
                (size.clone(), exact.map(|scale| scale as f32))
            }
        };
        let scale_value = match scale {
            Some(scale) => b.constant(Tensor::scalar(scale)),
            None => {
                let (to, from) = (float_dim(b, &out)?, float_dim(b, &from)?);
                b.binary(BinaryFn::Div, to, from)?
            }
        };
        resampled.push(Axis { axis, size: from, out, scale, late: false, scale_value, roi: None });
    }
    Ok(resampled)
}

/// The one scale that keeps the aspect ratio.
fn common_scale(shape: &[Dim], axes: &[usize], sizes: &[Dim], least: bool) -> Result<f64> {
    let mut found: Option<f64> = None;
    for (&axis, size) in axes.iter().zip(sizes) {
        let (Some(from), Some(to)) = (shape[axis].as_const(), size.as_const()) else {
            return Err(Error::unsupported(
                Stage::Infer,
                format!("keep_aspect_ratio_policy with the symbolic sizes {} and {size}", shape[axis]),
            ));
        };
        let scale = to as f64 / from as f64;
        found = Some(match found {
            None => scale,
            Some(other) if least => other.min(scale),
            Some(other) => other.max(scale),
        });
    }
    Ok(found.unwrap_or(1.0))
}

/// As [`common_scale`], computed when the model runs, and the axes of that scale.
fn late_common_axes(
    b: &mut Builder<'_>,
    shape: &[Dim],
    axes: &[usize],
    sizes: &[Dim],
    least: bool,
) -> Result<Vec<Axis>> {
    let number = |b: &mut Builder<'_>, dim: &Dim| -> Result<ValueId> {
        let value = b.dim_scalar(dim)?;
        b.cast(value, F64)
    };
    let mut common = b.scalar(F64, 1.0);
    for (at, (&axis, size)) in axes.iter().zip(sizes).enumerate() {
        let (to, from) = (number(b, size)?, number(b, &shape[axis])?);
        let scale = b.binary(BinaryFn::Div, to, from)?;
        common = match at {
            0 => scale,
            _ => b.binary(if least { BinaryFn::Min } else { BinaryFn::Max }, common, scale)?,
        };
    }
    let scale_value = b.cast(common, F32)?;
    let mut outs = Vec::with_capacity(axes.len());
    for &axis in axes {
        let from = number(b, &shape[axis])?;
        let scaled = b.binary(BinaryFn::Mul, common, from)?;
        let rounded = b.binary_scalar(BinaryFn::Add, scaled, 0.5)?;
        outs.push(b.cast(rounded, I64)?);
    }
    let outs = b.scalar_sizes(&outs, &|_| None)?;
    let axis = |(&axis, out): (&usize, Dim)| Axis {
        axis,
        size: shape[axis].clone(),
        out,
        scale: None,
        late: true,
        scale_value,
        roi: None,
    };
    Ok(axes.iter().zip(outs).map(axis).collect())
}

fn float_dim(b: &mut Builder<'_>, dim: &Dim) -> Result<ValueId> {
    if let Some(value) = dim.as_const() {
        return Ok(b.constant(Tensor::scalar(value as f32)));
    }
    let value = b.dim_scalar(dim)?;
    b.cast(value, F32)
}

/// Gives each axis its start and end from `roi`: all starts, then all ends.
fn regions(b: &mut Builder<'_>, resampled: &mut [Axis], axes: &[usize], roi: ValueId) -> Result<()> {
    if b.ty(roi).shape != [Dim::from(2 * axes.len())] {
        return malformed(format!("roi {} of axes {axes:?}", b.ty(roi)));
    }
    let roi = b.cast(roi, F32)?;
    for (at, axis) in resampled.iter_mut().enumerate() {
        let mut pick = |position: usize| {
            let one = b.slice_axis(roi, 0, Dim::from(position), Dim::ONE)?;
            b.reshape(one, vec![])
        };
        axis.roi = Some((pick(at)?, pick(axes.len() + at)?));
    }
    Ok(())
}
