//! Resampling: Resize and Upsample. Each axis is resampled alone: coordinates, tap indices and tap weights
//! are vectors over the output positions, which fold to constants where the sizes are static.

use super::AttrDefault::{Float, Int, Optional, Required, Str};
use super::types::*;
use super::{AttrKind, NodeCx, OpDef, attr, normalize_axis, opt, req};
use crate::error::{Error, Result, Stage};
use crate::graph::DType::{Bool, F16, F32, F64, I32, I64};
use crate::graph::{Builder, Dim, Op, RhsLayout, Tensor, ValueId};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    RESIZE,
    RESIZE_11,
    RESIZE_13,
    RESIZE_18,
    OpDef { since: 19, ..RESIZE_18 },
    UPSAMPLE,
    UPSAMPLE_7,
    UPSAMPLE_9,
    OpDef { since: 10, ..UPSAMPLE_9 },
];

const RESIZE: OpDef = OpDef {
    domain: "",
    name: "Resize",
    since: 10,
    inputs: &[req("X", "T"), req("scales", "tensor(float)")],
    outputs: &[req("Y", "T")],
    attributes: &[attr("mode", Str("nearest"))],
    types: &[("T", ALL)],
    lower: resize,
    doc: "resampling by interpolation",
};

const RESIZE_11: OpDef = OpDef {
    since: 11,
    inputs: &[
        req("X", "T1"),
        req("roi", "T2"),
        req("scales", "tensor(float)"),
        opt("sizes", "tensor(int64)"),
    ],
    outputs: &[req("Y", "T1")],
    attributes: &[
        attr("coordinate_transformation_mode", Str("half_pixel")),
        attr("cubic_coeff_a", Float(-0.75)),
        attr("exclude_outside", Int(0)),
        attr("extrapolation_value", Float(0.0)),
        attr("mode", Str("nearest")),
        attr("nearest_mode", Str("round_prefer_floor")),
    ],
    types: &[("T1", ALL), ("T2", FLOATS_F16)],
    ..RESIZE
};

const RESIZE_13: OpDef = OpDef {
    since: 13,
    inputs: &[
        req("X", "T1"),
        opt("roi", "T2"),
        opt("scales", "tensor(float)"),
        opt("sizes", "tensor(int64)"),
    ],
    types: &[("T1", ALL_BF16), ("T2", FLOATS_F16)],
    ..RESIZE_11
};

const RESIZE_18: OpDef = OpDef {
    since: 18,
    attributes: &[
        attr("antialias", Int(0)),
        attr("axes", Optional(AttrKind::Ints)),
        attr("coordinate_transformation_mode", Str("half_pixel")),
        attr("cubic_coeff_a", Float(-0.75)),
        attr("exclude_outside", Int(0)),
        attr("extrapolation_value", Float(0.0)),
        attr("keep_aspect_ratio_policy", Str("stretch")),
        attr("mode", Str("nearest")),
        attr("nearest_mode", Str("round_prefer_floor")),
    ],
    ..RESIZE_13
};

const UPSAMPLE: OpDef = OpDef {
    domain: "",
    name: "Upsample",
    since: 1,
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    attributes: &[
        attr("height_scale", Required(AttrKind::Float)),
        attr("mode", Str("nearest")),
        attr("width_scale", Required(AttrKind::Float)),
    ],
    types: &[("T", &[F32, F64, F16, I32, I64, Bool])],
    lower: upsample,
    doc: "resampling by scales",
};

const UPSAMPLE_7: OpDef = OpDef {
    since: 7,
    attributes: &[attr("mode", Str("nearest")), attr("scales", Required(AttrKind::Floats))],
    types: &[("T", ALL)],
    ..UPSAMPLE
};

const UPSAMPLE_9: OpDef = OpDef {
    since: 9,
    inputs: &[req("X", "T"), req("scales", "tensor(float)")],
    attributes: &[attr("mode", Str("nearest"))],
    types: &[("T", ALL)],
    ..UPSAMPLE_7
};

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

macro_rules! modes {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        enum $name { $($variant),* }
        impl $name {
            fn parse(text: &str) -> Result<$name> {
                match text {
                    $($text => Ok($name::$variant),)*
                    other => malformed(format!("{} `{other}`", stringify!($name))),
                }
            }
        }
    };
}

modes! {
    Mode { Nearest = "nearest", Linear = "linear", Bilinear = "bilinear", Cubic = "cubic" }
}
modes! {
    /// Where an output position lies in the input.
    Coordinates {
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
    Nearest {
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
        let Some(roi) = roi else { return malformed("tf_crop_and_resize without roi".to_string()) };
        regions(cx.b, &mut resampled, &axes, roi)?;
    }
    Ok(vec![resample(cx.b, x, resampled, &method)?])
}

/// Axes of `axes` resampled by the scales of input `at`, which are constant, or else decided by data.
fn scaled_by_input(cx: &mut NodeCx<'_, '_>, x: ValueId, axes: &[usize], at: usize) -> Result<Vec<Axis>> {
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
    if b.ty(scales).shape != [Dim::from(axes.len())] {
        return malformed(format!("scales {} of axes {axes:?} of {}", b.ty(scales), b.ty(x)));
    }
    let (shape, scales) = (b.shape(x), b.cast(scales, F32)?);
    let (mut resampled, mut sizes) = (Vec::with_capacity(axes.len()), Vec::with_capacity(axes.len()));
    for (at, &axis) in axes.iter().enumerate() {
        let size = shape[axis].clone();
        let scale = b.slice_axis(scales, 0, Dim::from(at), Dim::ONE)?;
        let scale_value = b.reshape(scale, vec![])?;
        let from = float_dim(b, &size)?;
        let scaled = b.binary(BinaryFn::Mul, from, scale_value)?;
        let scaled = b.unary(UnaryFn::Floor, scaled)?;
        sizes.push(b.cast(scaled, I64)?);
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
        let out = scaled_size(&size, scale)?;
        let scale_value = b.constant(Tensor::scalar(scale));
        resampled.push(Axis { axis, size, out, scale: Some(scale), late: false, scale_value, roi: None });
    }
    Ok(resampled)
}

fn scaled_size(size: &Dim, scale: f32) -> Result<Dim> {
    if let Some(size) = size.as_const() {
        return Ok(Dim::from((size as f32 * scale).floor() as i64));
    }
    for denominator in 1..=64i64 {
        let numerator = scale * denominator as f32;
        if numerator.fract() == 0.0 {
            let product = size.clone() * Dim::from(numerator as i64);
            return Ok(product.floor_div(&Dim::from(denominator)).unwrap_or(Dim::ZERO));
        }
    }
    Err(Error::unsupported(Stage::Infer, format!("scale {scale} of the symbolic size {size}")))
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
        other => return malformed(format!("keep_aspect_ratio_policy `{other}`")),
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

/// Resamples axis after axis. Interpolation of integers and half precision is computed in f32.
fn resample(b: &mut Builder<'_>, x: ValueId, axes: Vec<Axis>, method: &Method) -> Result<ValueId> {
    let dtype = b.dtype(x);
    if axes.iter().any(|axis| axis.size.as_const() == Some(0)) {
        return malformed(format!("resampling of the empty {}", b.ty(x)));
    }
    let crops = method.coordinates == Coordinates::TfCropAndResize;
    let interpolates = method.mode != Mode::Nearest;
    let moved: Vec<&Axis> =
        axes.iter().filter(|axis| crops || axis.scale != Some(1.0) || axis.out != axis.size).collect();
    let mut y = x;
    if interpolates && dtype != F64 {
        y = b.cast(y, F32)?;
    }
    let mut outside = Vec::new();
    for axis in moved {
        if let Some(repeats) = repeats(axis, method) {
            y = repeat(b, y, axis, repeats)?;
            continue;
        }
        let position = coordinates(b, axis, method)?;
        if crops {
            outside.push((axis.axis, beyond(b, axis, position)?));
        }
        y = match interpolates {
            false => {
                let index = nearest(b, axis, method, position)?;
                b.emit1(Op::Gather { axis: axis.axis }, &[y, index])?
            }
            true if method.antialias && axis.scale.is_none() => filtered(b, y, axis, method, position)?,
            true => interpolate(b, y, axis, method, position)?,
        };
    }
    for (axis, mask) in outside {
        let mut shape = vec![Dim::ONE; b.rank(y)];
        shape[axis] = b.shape(mask)[0].clone();
        let mask = b.reshape(mask, shape)?;
        let fill = b.scalar(b.dtype(y), method.extrapolation);
        y = b.select(mask, fill, y)?;
    }
    b.cast(y, dtype)
}

/// The factor, where every element is just repeated: enlarging by an integer, to the nearest.
fn repeats(axis: &Axis, method: &Method) -> Option<usize> {
    let scale = axis.scale.filter(|scale| method.mode == Mode::Nearest && scale.fract() == 0.0)?;
    if axis.out != axis.size.clone() * Dim::from(scale as i64) {
        return None;
    }
    let shift = match method.coordinates {
        Coordinates::HalfPixel | Coordinates::HalfPixelSymmetric => 0.5 / scale - 0.5,
        // A result of one element is a special case of this mode.
        Coordinates::PytorchHalfPixel if scale > 1.0 => 0.5 / scale - 0.5,
        Coordinates::TfHalfPixelForNn => 0.5 / scale,
        Coordinates::Asymmetric => 0.0,
        _ => return None,
    };
    // Positions ascend: what holds for the first and the last repetition holds between.
    let all_first = [0.0, scale - 1.0].into_iter().all(|at| {
        let position = at / scale + shift;
        let index = match method.nearest {
            None | Some(Nearest::Floor) => position.floor(),
            Some(Nearest::Ceil) => position.ceil(),
            Some(Nearest::RoundPreferFloor) => (position - 0.5).ceil(),
            Some(Nearest::RoundPreferCeil) => (position + 0.5).floor(),
        };
        index == 0.0
    });
    all_first.then_some(scale as usize)
}

fn repeat(b: &mut Builder<'_>, x: ValueId, axis: &Axis, count: usize) -> Result<ValueId> {
    let mut shape = b.shape(x);
    let at = axis.axis;
    let wide = b.unsqueeze(x, &[at + 1])?;
    let mut expanded = b.shape(wide);
    expanded[at + 1] = Dim::from(count);
    let wide = b.expand(wide, expanded)?;
    shape[at] = axis.out.clone();
    b.reshape(wide, shape)
}

/// Largest output extent whose positions are tabulated.
const MAX_TABLE: i64 = 1 << 20;

/// The output positions `0, 1, ..` as f32.
fn positions(b: &mut Builder<'_>, out: &Dim) -> Result<ValueId> {
    if let Some(count) = out.as_const().filter(|count| (0..=MAX_TABLE).contains(count)) {
        let values: Vec<f32> = (0..count).map(|at| at as f32).collect();
        return Ok(b.constant(Tensor::from_slice(&[values.len()], &values)));
    }
    let index = b.iota(vec![out.clone()], 0)?;
    b.cast(index, F32)
}

/// Input coordinate of every output position, f32 `[out]`.
fn coordinates(b: &mut Builder<'_>, axis: &Axis, method: &Method) -> Result<ValueId> {
    let at = positions(b, &axis.out)?;
    let half_pixel = |b: &mut Builder<'_>| {
        let centre = b.binary_scalar(BinaryFn::Add, at, 0.5)?;
        let scaled = b.binary(BinaryFn::Div, centre, axis.scale_value)?;
        b.binary_scalar(BinaryFn::Sub, scaled, 0.5)
    };
    match method.coordinates {
        Coordinates::HalfPixel => half_pixel(b),
        Coordinates::PytorchHalfPixel => {
            let position = half_pixel(b)?;
            alone_at(b, axis, position, None)
        }
        Coordinates::HalfPixelSymmetric => {
            let position = half_pixel(b)?;
            // The result's true extent against the scaled one, spread evenly on both sides.
            let (out, size) = (float_dim(b, &axis.out)?, float_dim(b, &axis.size)?);
            let ideal = b.binary(BinaryFn::Mul, size, axis.scale_value)?;
            let ratio = b.binary(BinaryFn::Div, out, ideal)?;
            let one = b.scalar(F32, 1.0);
            let rest = b.binary(BinaryFn::Sub, one, ratio)?;
            let centre = b.binary_scalar(BinaryFn::Mul, size, 0.5)?;
            let offset = b.binary(BinaryFn::Mul, centre, rest)?;
            b.binary(BinaryFn::Add, position, offset)
        }
        Coordinates::Asymmetric => b.binary(BinaryFn::Div, at, axis.scale_value),
        Coordinates::TfHalfPixelForNn => {
            let centre = b.binary_scalar(BinaryFn::Add, at, 0.5)?;
            b.binary(BinaryFn::Div, centre, axis.scale_value)
        }
        Coordinates::AlignCorners => {
            let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
            let steps = if scales_exactly(axis) {
                float_dim(b, &(axis.out.clone() - Dim::ONE))?
            } else {
                // The extent that the scale asks for, not rounded to whole elements: so ONNX's own tests.
                let size = float_dim(b, &axis.size)?;
                let extent = b.binary(BinaryFn::Mul, size, axis.scale_value)?;
                b.binary_scalar(BinaryFn::Sub, extent, 1.0)?
            };
            let scaled = b.binary(BinaryFn::Mul, at, last)?;
            let position = b.binary(BinaryFn::Div, scaled, steps)?;
            alone_at(b, axis, position, None)
        }
        Coordinates::TfCropAndResize => {
            let Some((start, end)) = axis.roi else { return malformed("roi is missing".to_string()) };
            let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
            let steps = float_dim(b, &(axis.out.clone() - Dim::ONE))?;
            let extent = b.binary(BinaryFn::Sub, end, start)?;
            let extent = b.binary(BinaryFn::Mul, extent, last)?;
            let step = b.binary(BinaryFn::Div, extent, steps)?;
            let first = b.binary(BinaryFn::Mul, start, last)?;
            let walked = b.binary(BinaryFn::Mul, at, step)?;
            let position = b.binary(BinaryFn::Add, first, walked)?;
            let both = b.binary(BinaryFn::Add, start, end)?;
            let middle = b.binary_scalar(BinaryFn::Mul, both, 0.5)?;
            let middle = b.binary(BinaryFn::Mul, middle, last)?;
            alone_at(b, axis, position, Some(middle))
        }
    }
}

/// Whether `size * scale` is a whole number of elements.
fn scales_exactly(axis: &Axis) -> bool {
    match (axis.scale, axis.size.as_const(), axis.out.as_const()) {
        (None, _, _) => !axis.late,
        (Some(scale), Some(size), Some(out)) => (size as f32 * scale - out as f32).abs() < 1e-3,
        (Some(scale), _, _) => scale.fract() == 0.0,
    }
}

/// `position`, or for a result of one element `alone` (absent: 0).
fn alone_at(b: &mut Builder<'_>, axis: &Axis, position: ValueId, alone: Option<ValueId>) -> Result<ValueId> {
    let alone = alone.unwrap_or_else(|| b.scalar(F32, 0.0));
    match axis.out.as_const() {
        Some(1) => b.expand(alone, vec![Dim::ONE]),
        Some(_) => Ok(position),
        None => {
            let (out, one) = (b.dim_scalar(&axis.out)?, b.scalar(I64, 1.0));
            let is_alone = b.compare(CompareFn::Eq, out, one)?;
            b.select(is_alone, alone, position)
        }
    }
}

/// Whether a position is outside the input.
fn beyond(b: &mut Builder<'_>, axis: &Axis, position: ValueId) -> Result<ValueId> {
    let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
    let zero = b.scalar(F32, 0.0);
    let below = b.compare(CompareFn::Lt, position, zero)?;
    let above = b.compare(CompareFn::Gt, position, last)?;
    b.binary(BinaryFn::Or, below, above)
}

/// `x` held within `[0, size - 1]`.
fn clamped(b: &mut Builder<'_>, axis: &Axis, x: ValueId) -> Result<ValueId> {
    let last = float_dim(b, &(axis.size.clone() - Dim::ONE))?;
    let low = b.binary_scalar(BinaryFn::Max, x, 0.0)?;
    b.binary(BinaryFn::Min, low, last)
}

fn nearest(b: &mut Builder<'_>, axis: &Axis, method: &Method, position: ValueId) -> Result<ValueId> {
    if method.nearest.is_none() && axis.late {
        // Only the run shows which of the two it is.
        let one = b.scalar(F32, 1.0);
        let shrinks = b.compare(CompareFn::Lt, axis.scale_value, one)?;
        let (up, down) = (b.unary(UnaryFn::Ceil, position)?, b.unary(UnaryFn::Floor, position)?);
        let rounded = b.select(shrinks, up, down)?;
        let inside = clamped(b, axis, rounded)?;
        return b.cast(inside, I64);
    }
    let shrinks = axis.scale.is_some_and(|scale| scale < 1.0);
    let rounding = method.nearest.unwrap_or(if shrinks { Nearest::Ceil } else { Nearest::Floor });
    let rounded = match rounding {
        Nearest::Floor => b.unary(UnaryFn::Floor, position)?,
        Nearest::Ceil => b.unary(UnaryFn::Ceil, position)?,
        Nearest::RoundPreferFloor => {
            let shifted = b.binary_scalar(BinaryFn::Sub, position, 0.5)?;
            b.unary(UnaryFn::Ceil, shifted)?
        }
        Nearest::RoundPreferCeil => {
            let shifted = b.binary_scalar(BinaryFn::Add, position, 0.5)?;
            b.unary(UnaryFn::Floor, shifted)?
        }
    };
    let inside = clamped(b, axis, rounded)?;
    b.cast(inside, I64)
}

/// The sum over taps of gathered elements times weights, along one axis.
fn interpolate(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let mut sum = None;
    let mut shape = vec![Dim::ONE; b.rank(x)];
    shape[axis.axis] = axis.out.clone();
    for (index, weight) in taps(b, axis, method, position)? {
        let taken = b.emit1(Op::Gather { axis: axis.axis }, &[x, index])?;
        let weight = b.cast(weight, dtype)?;
        let weight = b.reshape(weight, shape.clone())?;
        let product = b.binary(BinaryFn::Mul, taken, weight)?;
        sum = Some(match sum {
            None => product,
            Some(sum) => b.binary(BinaryFn::Add, sum, product)?,
        });
    }
    sum.ok_or_else(|| Error::internal(Stage::Infer, "interpolation without taps"))
}

/// Antialiasing along an axis whose scale only the run shows, and with it the number of taps: a product with a matrix
/// of weights over the axis and what the filter reaches beyond its ends.
fn filtered(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<ValueId> {
    let (dtype, rank, at) = (b.dtype(x), b.rank(x), axis.axis);
    let cubic = method.mode == Mode::Cubic;
    let filter_scale = b.binary_scalar(BinaryFn::Min, axis.scale_value, 1.0)?;
    let support = b.scalar(F32, if cubic { 2.0 } else { 1.0 });
    let reach = b.binary(BinaryFn::Div, support, filter_scale)?;
    let reach = b.unary(UnaryFn::Ceil, reach)?;
    // An axis that shrinks to nothing has no taps to speak of.
    let reach = b.binary_scalar(BinaryFn::Min, reach, MAX_TAPS)?;
    let reach = b.cast(reach, I64)?;
    let reach = b.scalar_sizes(&[reach], &|_| None)?.remove(0);
    let extent = axis.size.clone() + reach.clone() * Dim::from(2i64);
    let (index, before) = (b.iota(vec![extent.clone()], 0)?, b.dim_scalar(&reach)?);
    let index = b.binary(BinaryFn::Sub, index, before)?;
    let place = b.cast(index, F32)?;
    let place = b.reshape(place, vec![extent, Dim::ONE])?;
    let position = b.reshape(position, vec![Dim::ONE, axis.out.clone()])?;
    let distance = b.binary(BinaryFn::Sub, place, position)?;
    let distance = b.unary(UnaryFn::Abs, distance)?;
    let distance = b.binary(BinaryFn::Mul, distance, filter_scale)?;
    let mut weight = if cubic { cubic_kernel(b, distance, method.cubic)? } else { tent(b, distance)? };
    if method.exclude_outside {
        let outside = beyond(b, axis, place)?;
        let zero = b.scalar(F32, 0.0);
        weight = b.select(outside, zero, weight)?;
    }
    let total = b.reduce(ReduceFn::Sum, weight, &[0])?;
    let weight = b.binary(BinaryFn::Div, weight, total)?;
    let weight = b.cast(weight, dtype)?;
    let last = b.dim_scalar(&(axis.size.clone() - Dim::ONE))?;
    let inside = b.binary_scalar(BinaryFn::Max, index, 0.0)?;
    let inside = b.binary(BinaryFn::Min, inside, last)?;
    let wide = b.emit1(Op::Gather { axis: at }, &[x, inside])?;
    let mut perm: Vec<usize> = (0..rank).filter(|&axis| axis != at).collect();
    perm.push(at);
    let rows = b.transpose(wide, &perm)?;
    let op = Op::Contract { batch: 0, m: rank - 1, k: 1, rhs: RhsLayout::Plain };
    let product = b.emit1(op, &[rows, weight])?;
    let back: Vec<usize> =
        (0..rank).map(|axis| perm.iter().position(|&own| own == axis).unwrap_or(0)).collect();
    b.transpose(product, &back)
}

/// Most taps of an antialiasing filter.
const MAX_TAPS: f64 = 4096.0;

/// Indices (i64) and weights (f32) of the elements around each position, both `[out]`.
fn taps(
    b: &mut Builder<'_>,
    axis: &Axis,
    method: &Method,
    position: ValueId,
) -> Result<Vec<(ValueId, ValueId)>> {
    let cubic = method.mode == Mode::Cubic;
    let filter_scale = match axis.scale.filter(|_| method.antialias) {
        Some(scale) => f64::from(scale).min(1.0),
        None => 1.0,
    };
    let support = if cubic { 2.0 } else { 1.0 };
    // Infinite for an axis that shrinks to nothing.
    let reach = (support / filter_scale).ceil();
    if 2.0 * reach > MAX_TAPS {
        return Err(Error::unsupported(Stage::Infer, format!("a filter of {} taps", 2.0 * reach)));
    }
    let (first, last) = (1 - reach as i64, reach as i64);
    let floor = b.unary(UnaryFn::Floor, position)?;
    let ratio = b.binary(BinaryFn::Sub, position, floor)?;
    let mut found = Vec::new();
    let mut total: Option<ValueId> = None;
    for offset in first..=last {
        let index = b.binary_scalar(BinaryFn::Add, floor, offset as f64)?;
        let distance = b.binary_scalar(BinaryFn::Sub, ratio, offset as f64)?;
        let distance = b.unary(UnaryFn::Abs, distance)?;
        let distance = b.binary_scalar(BinaryFn::Mul, distance, filter_scale)?;
        let mut weight = if cubic { cubic_kernel(b, distance, method.cubic)? } else { tent(b, distance)? };
        if method.exclude_outside {
            let outside = beyond(b, axis, index)?;
            let zero = b.scalar(F32, 0.0);
            weight = b.select(outside, zero, weight)?;
        }
        total = Some(match total {
            None => weight,
            Some(total) => b.binary(BinaryFn::Add, total, weight)?,
        });
        let inside = clamped(b, axis, index)?;
        found.push((b.cast(inside, I64)?, weight));
    }
    if let (true, Some(total)) = (method.exclude_outside || method.antialias, total) {
        for (_, weight) in &mut found {
            *weight = b.binary(BinaryFn::Div, *weight, total)?;
        }
    }
    Ok(found)
}

/// `max(1 - d, 0)`
fn tent(b: &mut Builder<'_>, distance: ValueId) -> Result<ValueId> {
    let one = b.scalar(F32, 1.0);
    let rest = b.binary(BinaryFn::Sub, one, distance)?;
    b.binary_scalar(BinaryFn::Max, rest, 0.0)
}

/// Keys' cubic convolution kernel at distance `d >= 0`:
/// `(a+2)d^3 - (a+3)d^2 + 1` up to 1, `a d^3 - 5a d^2 + 8a d - 4a` up to 2, 0 beyond.
fn cubic_kernel(b: &mut Builder<'_>, d: ValueId, a: f64) -> Result<ValueId> {
    let polynomial = |b: &mut Builder<'_>, coefficients: [f64; 4]| {
        let mut sum = b.scalar(F32, coefficients[0]);
        for coefficient in &coefficients[1..] {
            sum = b.binary(BinaryFn::Mul, sum, d)?;
            sum = b.binary_scalar(BinaryFn::Add, sum, *coefficient)?;
        }
        Ok::<ValueId, Error>(sum)
    };
    let near = polynomial(b, [a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = polynomial(b, [a, -5.0 * a, 8.0 * a, -4.0 * a])?;
    let (zero, one, two) = (b.scalar(F32, 0.0), b.scalar(F32, 1.0), b.scalar(F32, 2.0));
    let is_near = b.compare(CompareFn::Le, d, one)?;
    let is_far = b.compare(CompareFn::Lt, d, two)?;
    let far = b.select(is_far, far, zero)?;
    b.select(is_near, near, far)
}

#[cfg(test)]
mod tests {
    use crate::graph::Dim;
    use crate::op::node_case::{Case, ramp};

    #[test]
    fn nearest_in_all_roundings() {
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 1, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
            .str("coordinate_transformation_mode", "half_pixel")
            .str("mode", "nearest")
            .str("nearest_mode", "round_prefer_floor");
        case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 0.25, 0.25, -0.75]);
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 1, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
            .str("coordinate_transformation_mode", "half_pixel")
            .str("mode", "nearest")
            .str("nearest_mode", "round_prefer_ceil");
        case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 0.25, 0.25, -0.75]);
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 1, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
            .str("coordinate_transformation_mode", "half_pixel")
            .str("mode", "nearest")
            .str("nearest_mode", "floor");
        case.gives(0, &[1, 1, 1, 6], &[-0.5, -0.5, 1.25, 1.25, 0.25, 0.25]);
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 1, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.0, 1.6])
            .str("coordinate_transformation_mode", "half_pixel")
            .str("mode", "nearest")
            .str("nearest_mode", "ceil");
        case.gives(0, &[1, 1, 1, 6], &[-0.5, 1.25, 0.25, 0.25, -0.75, -0.75]);
    }

    #[test]
    fn nearest_by_an_integer_of_symbolic_extents() {
        let case = Case::new("Resize", 11)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 2, 2], &ramp(4, 1))
            .constant::<f32>(&[0], &[])
            .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 3.0])
            .str("coordinate_transformation_mode", "asymmetric")
            .str("mode", "nearest")
            .str("nearest_mode", "floor");
        case.gives(
            0,
            &[1, 1, 4, 6],
            &[
                -0.5, -0.5, -0.5, 1.25, 1.25, 1.25, -0.5, -0.5, -0.5, 1.25, 1.25, 1.25, 0.25, 0.25, 0.25,
                -0.75, -0.75, -0.75, 0.25, 0.25, 0.25, -0.75, -0.75, -0.75,
            ],
        );
        let case = Case::new("Upsample", 9)
            .symbolic(&["n", "", "h", "w"], &[1, 1, 2, 2], &ramp(4, 1))
            .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 2.0])
            .str("mode", "nearest");
        case.gives(
            0,
            &[1, 1, 4, 4],
            &[
                -0.5, -0.5, 1.25, 1.25, -0.5, -0.5, 1.25, 1.25, 0.25, 0.25, -0.75, -0.75, 0.25, 0.25, -0.75,
                -0.75,
            ],
        );
    }

    #[test]
    fn linear_in_all_coordinate_modes() {
        let case = Case::new("Resize", 19)
            .ramp(&[1, 1, 2, 3], 1)
            .missing()
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 5])
            .str("coordinate_transformation_mode", "half_pixel")
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 5],
            &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
        );
        let case = Case::new("Resize", 19)
            .ramp(&[1, 1, 2, 3], 1)
            .missing()
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 5])
            .str("coordinate_transformation_mode", "half_pixel_symmetric")
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 5],
            &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
        );
        let case = Case::new("Resize", 19)
            .ramp(&[1, 1, 2, 3], 1)
            .missing()
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 5])
            .str("coordinate_transformation_mode", "pytorch_half_pixel")
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 5],
            &[-0.5, 0.2, 1.25, 0.65, 0.25, -0.625, 0.075, 1.125, 0.525, 0.125, -0.75, -0.05, 1.0, 0.4, 0.0],
        );
        let case = Case::new("Resize", 19)
            .ramp(&[1, 1, 2, 3], 1)
            .missing()
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 5])
            .str("coordinate_transformation_mode", "align_corners")
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 5],
            &[-0.5, 0.375, 1.25, 0.75, 0.25, -0.625, 0.25, 1.125, 0.625, 0.125, -0.75, 0.125, 1.0, 0.5, 0.0],
        );
        let case = Case::new("Resize", 19)
            .ramp(&[1, 1, 2, 3], 1)
            .missing()
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 5])
            .str("coordinate_transformation_mode", "asymmetric")
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 5],
            &[
                -0.5, 0.55, 1.05, 0.45, 0.25, -0.666667, 0.383333, 0.883333, 0.283333, 0.083333, -0.75, 0.3,
                0.8, 0.2, 0.0,
            ],
        );
        let case = Case::new("Resize", 11)
            .symbolic(&["", "", "h", "w"], &[1, 1, 2, 3], &ramp(6, 1))
            .constant::<f32>(&[0], &[])
            .constant::<f32>(&[4], &[1.0, 1.0, 2.0, 2.0])
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 4, 6],
            &[
                -0.5, -0.0625, 0.8125, 1.0, 0.5, 0.25, -0.5625, -0.125, 0.75, 0.9375, 0.4375, 0.1875,
                -0.6875, -0.25, 0.625, 0.8125, 0.3125, 0.0625, -0.75, -0.3125, 0.5625, 0.75, 0.25, 0.0,
            ],
        );
    }

    #[test]
    fn cubic_with_and_without_the_outside() {
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 3, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.5])
            .float("cubic_coeff_a", -0.5)
            .int("exclude_outside", 0)
            .str("mode", "cubic");
        case.gives(
            0,
            &[1, 1, 4, 2],
            &[0.430266, -0.319734, 0.588867, -0.268555, 0.398583, -0.144531, -0.686777, 0.075087],
        );
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 3, 4], 1)
            .missing()
            .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.5])
            .float("cubic_coeff_a", -0.5)
            .int("exclude_outside", 1)
            .str("mode", "cubic");
        case.gives(
            0,
            &[1, 1, 4, 2],
            &[0.368808, -0.35178, 0.562284, -0.25346, 0.41587, -0.093721, -0.660639, 0.052356],
        );
    }

    #[test]
    fn crop_extrapolates() {
        let case = Case::new("Resize", 13)
            .ramp(&[1, 1, 4, 4], 1)
            .constant::<f32>(&[8], &[0.0, 0.0, 0.2, -0.1, 1.0, 1.0, 0.8, 1.1])
            .missing()
            .constant::<i64>(&[4], &[1, 1, 3, 3])
            .str("coordinate_transformation_mode", "tf_crop_and_resize")
            .float("extrapolation_value", 7.0)
            .str("mode", "linear");
        case.gives(0, &[1, 1, 3, 3], &[7.0, -0.0, 7.0, 7.0, -0.4375, 7.0, 7.0, -0.325, 7.0]);
    }

    #[test]
    fn antialias_and_axes_and_aspect_ratio() {
        let case = Case::new("Resize", 18)
            .ramp(&[1, 1, 4, 6], 1)
            .missing()
            .constant::<f32>(&[2], &[0.5, 0.5])
            .int("antialias", 1)
            .ints("axes", &[2, 3])
            .str("mode", "linear");
        case.gives(0, &[1, 1, 2, 3], &[0.109375, -0.089844, 0.011719, 0.265625, -0.191406, 0.082031]);
        let case = Case::new("Resize", 18)
            .ramp(&[1, 1, 2, 4], 1)
            .missing()
            .missing()
            .constant::<i64>(&[2], &[5, 6])
            .ints("axes", &[2, 3])
            .str("keep_aspect_ratio_policy", "not_larger")
            .str("mode", "nearest");
        case.gives(
            0,
            &[1, 1, 3, 6],
            &[
                -0.5, -0.5, 1.25, 0.25, 0.25, -0.75, -0.5, -0.5, 1.25, 0.25, 0.25, -0.75, 1.0, 1.0, 0.0,
                -1.0, -1.0, 0.75,
            ],
        );
    }

    #[test]
    fn enormous_factors_take_no_time() {
        let case = Case::new("Resize", 19)
            .ramp(&[1, 4], 1)
            .missing()
            .missing()
            .constant::<i64>(&[2], &[1 << 40, 0])
            .str("coordinate_transformation_mode", "asymmetric")
            .str("mode", "nearest")
            .str("nearest_mode", "round_prefer_ceil");
        let start = std::time::Instant::now();
        let (graph, _) = case.lower().unwrap();
        assert_eq!(graph.ty(graph.outputs[0].1).shape, [Dim::from(1i64 << 40), Dim::ZERO]);
        assert!(start.elapsed().as_secs() < 10);
    }

    /// What data decide gives what constants do.
    #[test]
    fn scales_and_sizes_that_data_decide() {
        let run = |build: &dyn Fn(Case) -> Case, late: bool, at: usize, values: &[f32]| {
            let mut case = build(Case::new("Resize", 19).ramp(&[1, 2, 4, 5], 3));
            for missing in 1..4 {
                case = match (missing == at, at, late) {
                    (false, ..) => case.missing(),
                    (_, 2, true) => case.input(&[4], values),
                    (_, 2, false) => case.constant(&[4], values),
                    (_, _, true) => case.input(&[4], &values.iter().map(|&v| v as i64).collect::<Vec<_>>()),
                    _ => case.constant(&[4], &values.iter().map(|&v| v as i64).collect::<Vec<_>>()),
                };
            }
            case.run().unwrap().remove(0)
        };
        let builds: &[&dyn Fn(Case) -> Case] = &[
            &|case| case.str("mode", "nearest"),
            &|case| case.str("mode", "linear"),
            &|case| case.str("mode", "cubic").int("exclude_outside", 1),
            &|case| case.str("mode", "linear").str("coordinate_transformation_mode", "align_corners"),
            &|case| case.str("mode", "linear").str("coordinate_transformation_mode", "half_pixel_symmetric"),
            &|case| case.str("mode", "linear").int("antialias", 1),
            &|case| case.str("mode", "cubic").int("antialias", 1),
            &|case| case.str("mode", "cubic").int("antialias", 1).int("exclude_outside", 1),
        ];
        for (number, build) in builds.iter().enumerate() {
            for (at, values) in [(2, [1., 1., 0.6, 1.5]), (2, [1., 1., 2., 0.5]), (3, [1., 2., 3., 8.])] {
                let (wanted, found) = (run(build, false, at, &values), run(build, true, at, &values));
                assert_eq!(found.shape, wanted.shape, "{number}: {values:?}");
                let pairs = crate::op::node_case::elements(&found);
                let wanted = crate::op::node_case::elements(&wanted);
                for (found, wanted) in pairs.iter().zip(&wanted) {
                    assert!(
                        crate::op::node_case::close(*found, *wanted, 1e-4),
                        "{number}, {values:?}: {found} is not {wanted}"
                    );
                }
            }
        }
        for policy in ["not_larger", "not_smaller"] {
            let build = |case: Case| {
                let case = case.str("mode", "nearest").str("keep_aspect_ratio_policy", policy);
                case.ints("axes", &[0, 1, 2, 3])
            };
            let shape = |late| run(&build, late, 3, &[1., 2., 3., 8.]).shape;
            assert_eq!(shape(true), shape(false), "{policy}");
        }
    }

    #[test]
    fn antialias_down_to_nothing_is_refused() {
        let case = Case::new("Resize", 19)
            .ramp(&[1, 4], 1)
            .missing()
            .missing()
            .constant::<i64>(&[2], &[1, 0])
            .int("antialias", 1)
            .str("mode", "cubic");
        assert_eq!(case.lower().unwrap_err().message, "a filter of inf taps");
    }

    #[test]
    fn old_versions_are_asymmetric() {
        let case = Case::new("Resize", 10)
            .ramp(&[1, 1, 2, 4], 1)
            .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.6])
            .str("mode", "nearest");
        case.gives(0, &[1, 1, 3, 2], &[-0.5, 0.25, -0.5, 0.25, 1.0, -1.0]);
        let case = Case::new("Resize", 10)
            .ramp(&[1, 1, 2, 4], 1)
            .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 0.6])
            .str("mode", "linear");
        case.gives(0, &[1, 1, 3, 2], &[-0.5, 0.583333, 0.5, -0.25, 1.0, -0.666667]);
        let case = Case::new("Upsample", 9)
            .ramp(&[1, 1, 2, 2], 1)
            .constant::<f32>(&[4], &[1.0, 1.0, 1.5, 2.0])
            .str("mode", "linear");
        case.gives(
            0,
            &[1, 1, 3, 4],
            &[-0.5, 0.375, 1.25, 1.25, 0.0, -0.041667, -0.083333, -0.083333, 0.25, -0.25, -0.75, -0.75],
        );
    }
}
