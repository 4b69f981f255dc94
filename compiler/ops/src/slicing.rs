//! Operators that cut and extend: strided ranges, padding, centring.

use super::dynamic::{axis_mask, spread};
use super::row::*;
use onnxc_ir::graph::{Op, Tensor};

pub const ROWS: &[OpDef] = &[
    SLICE,
    SLICE_10,
    SLICE_10.since(11),
    SLICE_10.since(13).types(&[("T", ALL_BF16), ("Tind", INDICES)]),
    PAD,
    PAD.since(2)
        .attributes(&[string("mode", "constant"), required("pads", Ints), float("value", 0.0)])
        .shapes(PAD_SHAPES_2),
    PAD_11,
    PAD_11.since(13).types(&[("T", ALL_BF16)]),
    PAD_11
        .since(18)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_BF16), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    PAD_11
        .since(19)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_BF16), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    PAD_11
        .since(21)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_21), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    PAD_11
        .since(23)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_23), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    PAD_11
        .since(24)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_24), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    PAD_11
        .since(25)
        .inputs(&[
            req("data", "T"),
            req("pads", "tensor(int64)"),
            opt("constant_value", "T"),
            opt("axes", "Tind"),
        ])
        .types(&[("T", ALL_25), ("Tind", INDICES)])
        .shapes(PAD_SHAPES_18),
    op("CenterCropPad", 18, center_crop_pad)
        .inputs(&[req("input_data", "T"), req("shape", "Tind")])
        .outputs(&[req("output_data", "T")])
        .attributes(&[optional("axes", Ints)])
        .types(&[("T", ALL_BF16), ("Tind", INDICES)])
        .shapes(CENTER_CROP_PAD_SHAPES)
        .doc("Cropped or padded about the centre to a shape"),
];

const SLICE: OpDef = op("Slice", 1, slice)
    .inputs(&[req("data", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[optional("axes", Ints), required("ends", Ints), required("starts", Ints)])
    .types(&[("T", ALL)])
    .shapes(SLICE_SHAPES_1)
    .doc("A strided range of each axis");

const SLICE_10: OpDef = op("Slice", 10, slice)
    .inputs(&[
        req("data", "T"),
        req("starts", "Tind"),
        req("ends", "Tind"),
        opt("axes", "Tind"),
        opt("steps", "Tind"),
    ])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL), ("Tind", INDICES)])
    .shapes(SLICE_SHAPES_10)
    .doc("A strided range of each axis");

const PAD: OpDef = op("Pad", 1, pad)
    .inputs(&[req("data", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[string("mode", "constant"), required("paddings", Ints), float("value", 0.0)])
    .types(&[("T", FLOATS_F16)])
    .shapes(PAD_SHAPES_1)
    .doc("Elements added around or, with negative counts, removed");

const PAD_11: OpDef = op("Pad", 11, pad)
    .inputs(&[req("data", "T"), req("pads", "tensor(int64)"), opt("constant_value", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[string("mode", "constant")])
    .types(&[("T", NUMERIC_NO_BF16)])
    .shapes(PAD_SHAPES_11)
    .doc("Elements added around or, with negative counts, removed");

const SLICE_SHAPES_1: &[&str] = &["len(starts) = len(ends)", "len(axes) = len(starts)"];

const SLICE_SHAPES_10: &[&str] = &["starts[K]", "ends[K]", "axes[K]", "steps[K]", "K <= rank(data)"];

const PAD_SHAPES_1: &[&str] = &["len(paddings) = 2 * rank(data)"];

const PAD_SHAPES_2: &[&str] = &["len(pads) = 2 * rank(data)"];

const PAD_SHAPES_11: &[&str] = &["count(pads) = 2 * rank(data)", "count(constant_value) = 1"];

const PAD_SHAPES_18: &[&str] = &[
    "axes[K]",
    "if axes: K <= rank(data)",
    "if axes: count(pads) = 2 * K",
    "if !axes: count(pads) = 2 * rank(data)",
    "count(constant_value) = 1",
];

const CENTER_CROP_PAD_SHAPES: &[&str] = &["shape[len(axes) else rank(input_data)]"];

/// Exporters write "to the end" as any number at least this large, and "before the start" as its negative.
const FAR: i64 = i32::MAX as i64;

/// An index with negative values counted from the end of an axis of `size`.
fn wrap_index(index: &Dim, size: &Dim) -> Dim {
    let (low, high) = index.bounds();
    if low.is_some_and(|low| low >= 0) {
        return index.clone();
    }
    if high.is_some_and(|high| high < 0) {
        return index.clone() + size.clone();
    }
    // `size - 1` and `size - 2` are negative only for sizes so small that counting from the end leads
    // before the start too: clamping gives 0 either way.
    if matches!((size.clone() - index.clone()).as_const(), Some(1 | 2)) {
        return index.clone();
    }
    // size * (index < 0), as a polynomial.
    let negative = (-index.clone()).max_dim(&Dim::ZERO).min_dim(&Dim::ONE);
    index.clone() + size.clone() * negative
}

/// First index and number of elements of `start..end` by `step` along an axis of `size`. Where no
/// element remains the start may lie outside the axis.
fn range_of(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Result<(Dim, Dim)> {
    let stride = match step.checked_abs() {
        Some(stride @ 1..) => Dim::from(stride),
        _ => return malformed(format!("slice with step {step}")),
    };
    if *size == Dim::ZERO {
        // A slice of nothing is empty for any data.
        return Ok((Dim::ZERO, Dim::ZERO));
    }
    let above = |bound: &Dim| bound.as_const().is_some_and(|value| value >= FAR);
    let below = |bound: &Dim| bound.as_const().is_some_and(|value| value <= -FAR);
    let last = size.clone() - Dim::ONE;
    let (start, span) = if step > 0 {
        let end = match () {
            _ if above(end) => size.clone(),
            _ if below(end) => Dim::ZERO,
            _ => wrap_index(end, size).min_dim(size).max_dim(&Dim::ZERO),
        };
        let from_end = start.as_const().filter(|value| (-FAR + 1..0).contains(value));
        match from_end {
            // The last `-start` elements: at most all.
            Some(start) if end == *size && !size.is_const() => {
                let count = size.min_dim(&Dim::from(-start));
                (size.clone() - count.clone(), count)
            }
            _ => {
                let start = match () {
                    _ if above(start) => size.clone(),
                    _ if below(start) => Dim::ZERO,
                    _ => wrap_index(start, size).max_dim(&Dim::ZERO),
                };
                (start.clone(), (end - start).max_dim(&Dim::ZERO))
            }
        }
    } else {
        // Clamped to the axis: before the start means at its first element.
        let start = match wrap_index(start, size) {
            _ if above(start) => last,
            _ if below(start) => Dim::ZERO.min_dim(&last),
            at if at == last => last,
            at => at.max_dim(&Dim::ZERO).min_dim(&last),
        };
        let end = match () {
            _ if above(end) => size.clone(),
            _ if below(end) => Dim::from(-1i64),
            _ => wrap_index(end, size).max_dim(&Dim::from(-1i64)),
        };
        (start.clone(), (start - end).max_dim(&Dim::ZERO))
    };
    let count = span.ceil_div(&stride).expect("the stride is positive");
    Ok((if count == Dim::ZERO { Dim::ZERO } else { start }, count))
}

/// Whether a run may have no element left of an axis of `size`, and `first` behind it.
fn may_lie_behind(first: &Dim, count: &Dim, size: &Dim) -> bool {
    let least = |dim: &Dim| dim.bounds().0;
    least(count).is_none_or(|least| least <= 0)
        && least(&(size.clone() - first.clone())).is_none_or(|least| least < 0)
}

/// Opset 1 gives the bounds as attributes, later ones as inputs.
pub(super) fn slice(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let shape = cx.b.shape(x);
    if !cx.has("starts") {
        if late_axes(cx, 3).is_some() || is_late(cx, 4) {
            return slice_late(cx);
        }
        equal_counts(cx, shape.len())?;
    }
    let dims = |values: Option<Vec<i64>>| values.unwrap_or_default().into_iter().map(Dim::from).collect();
    let (starts, ends): (Vec<Dim>, Vec<Dim>) = match cx.has("starts") {
        true => (dims(cx.ints("starts")?), dims(cx.ints("ends")?)),
        false => (cx.integers_input(1)?, cx.integers_input(2)?),
    };
    let axes = axes(cx, 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let given = if cx.has("starts") { None } else { cx.optional(4) };
    let steps = match given {
        Some(_) => cx.const_input(4)?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return malformed(format!(
            "{} starts, {} ends, {} axes and {} steps",
            starts.len(),
            ends.len(),
            axes.len(),
            steps.len()
        ));
    }
    normalize_axes(&axes, shape.len())?;
    let (mut firsts, mut strides, mut sizes) =
        (vec![Dim::ZERO; shape.len()], vec![1; shape.len()], shape.clone());
    for at in 0..axes.len() {
        let axis = normalize_axis(axes[at], shape.len())?;
        (firsts[axis], sizes[axis]) = range_of(&starts[at], &ends[at], steps[at], &shape[axis])?;
        strides[axis] = steps[at];
    }
    // What data decide lies within the axis by construction, which the symbols then say.
    let bound = |at: usize| Some(shape[at].clone());
    for (at, first) in firsts.iter_mut().enumerate() {
        // Where no element remains, the start may be anywhere.
        if cx.b.graph.is_data_dim(first) || cx.b.graph.is_data_dim(&sizes[at]) {
            *first = first.max_dim(&Dim::ZERO).min_dim(&shape[at]);
        } else if may_lie_behind(first, &sizes[at], &shape[at]) {
            *first = first.min_dim(&shape[at]);
        }
    }
    firsts = cx.b.named(&firsts, &bound)?;
    sizes = cx.b.named(&sizes, &bound)?;
    if firsts.iter().all(|first| *first == Dim::ZERO)
        && strides.iter().all(|&step| step == 1)
        && sizes == shape
    {
        return Ok(vec![x]);
    }
    Ok(vec![cx.b.emit1(Op::Slice { starts: firsts, steps: strides, sizes }, &[x])?])
}

/// Lets starts and ends have known numbers of elements: that of the axes or steps, or else the rank, with the whole of
/// each axis that they do not reach.
fn equal_counts(cx: &mut NodeCx<'_, '_>, rank: usize) -> Result<()> {
    let counts: Vec<Dim> = [1, 2, 3, 4]
        .into_iter()
        .filter_map(|at| cx.optional(at).map(|value| cx.b.ty(value).elements()))
        .collect();
    if let Some(count) = counts.iter().find_map(Dim::as_const) {
        let count = usize::try_from(count).ok();
        return [1, 2].into_iter().try_for_each(|at| cx.with_count(at, count));
    }
    for (at, default) in [(1, 0), (2, i64::MAX)] {
        let value = cx.input(at)?;
        let [length] = &cx.b.shape(value)[..] else {
            return malformed(format!("{} is not a vector", cx.b.ty(value)));
        };
        let name = format!("the number of elements of {}", cx.operand_name(at));
        let equal = Requirement::equal(length.clone(), counts[0].clone());
        cx.b.assume(equal.says(&name, format!("that of {}", cx.operand_name(1))));
        let at_most = Requirement::at_most(length.clone(), Dim::from(rank));
        cx.b.assume(at_most.says(name, "the rank of data"));
        let (value, fill) = (cx.b.cast(value, DType::I64)?, cx.b.constant(Tensor::scalar(default)));
        let rest = Dim::from(rank) - length.clone();
        cx.inputs[at] = Some(cx.b.pad(value, fill, vec![Dim::ZERO], vec![rest])?);
    }
    Ok(())
}

/// Whether an optional input is known only at run time.
fn is_late(cx: &NodeCx<'_, '_>, at: usize) -> bool {
    cx.optional(at).is_some_and(|value| cx.b.known(value).is_none())
}

/// A slice whose axes or steps data decide: ranges of all axes, each read by computed index.
fn slice_late(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let mut y = cx.input(0)?;
    let shape = cx.b.shape(y);
    let rank = shape.len();
    let count = cx.b.ty(cx.input(1)?).elements();
    let axes = match cx.optional(3) {
        Some(axes) => axes,
        None => cx.b.iota(vec![count.clone()], 0)?,
    };
    let steps = match cx.optional(4) {
        Some(steps) => steps,
        None => {
            let one = cx.b.scalar(DType::I64, 1.0);
            cx.b.expand(one, vec![count])?
        }
    };
    axis_mask(cx, axes, rank)?.require_valid(cx)?;
    let name = format!("an element of {}", cx.operand_name(4));
    let mut ranges = Vec::new();
    for (values, default) in [(cx.input(1)?, 0), (cx.input(2)?, i64::MAX), (steps, 1)] {
        let default = cx.b.i64s(&vec![default; rank]);
        let all = spread(cx, axes, values, default, rank)?;
        ranges.push(cx.b.integers(all)?);
    }
    for (axis, size) in shape.iter().enumerate() {
        let (start, end, step) = (&ranges[0][axis], &ranges[1][axis], &ranges[2][axis]);
        let (first, count) = late_range(start, end, step, size);
        let moves = step.max_dim(&-step.clone()).min_dim(&Dim::ONE);
        let text = format!("{name}, along axis {axis}, is {V}; it must not be 0");
        cx.b.require(Requirement::equal(moves.clone(), Dim::ONE).stated(text.clone(), &[step]))?;
        // Without a direction there is no size.
        let says = Says::Text(format!("{name}, along axis {axis}, is 0; it must not be 0").into());
        let count = [count + moves - Dim::ONE];
        let count = cx.b.saying(says, |b| b.named(&count, &|_| Some(size.clone())))?.remove(0);
        let place = cx.b.iota(vec![count], 0)?;
        let (first, step) = (dim(cx, &first)?, dim(cx, step)?);
        let walked = cx.b.binary(BinaryFn::Mul, place, step)?;
        let index = cx.b.binary(BinaryFn::Add, walked, first)?;
        y = cx.b.emit1(Op::Gather { axis }, &[y, index])?;
    }
    Ok(vec![y])
}

/// As [`range_of`], for a step of unknown sign: both directions; one of them counts.
fn late_range(start: &Dim, end: &Dim, step: &Dim, size: &Dim) -> (Dim, Dim) {
    let (up, down) = (step.max_dim(&Dim::ZERO), (-step.clone()).max_dim(&Dim::ZERO));
    let last = size.clone() - Dim::ONE;
    let (start, end) = (wrap_index(start, size), wrap_index(end, size));
    let steps = |span: Dim, by: &Dim| {
        let by = by.max_dim(&Dim::ONE);
        let span = span.max_dim(&Dim::ZERO) + by.clone() - Dim::ONE;
        span.floor_div(&by).unwrap_or(Dim::ZERO)
    };
    let low = start.max_dim(&Dim::ZERO);
    let forward = steps(end.min_dim(size).max_dim(&Dim::ZERO) - low.clone(), &up);
    let high = low.min_dim(&last);
    let backward = steps(high.clone() - end.max_dim(&Dim::from(-1i64)), &down);
    let (is_up, is_down) = (up.min_dim(&Dim::ONE), down.min_dim(&Dim::ONE));
    (low * is_up.clone() + high * is_down.clone(), forward * is_up + backward * is_down)
}

/// Pads per axis, (before, after), negative where elements are removed.
fn pads(cx: &mut NodeCx<'_, '_>, rank: usize) -> Result<Vec<(Dim, Dim)>> {
    let attribute = ["paddings", "pads"].into_iter().find(|name| cx.has(name));
    if attribute.is_none() && late_axes(cx, 3).is_some() {
        return late_pads(cx, rank);
    }
    if attribute.is_none() {
        let axes = cx.optional(3).and_then(|axes| cx.b.ty(axes).elements().as_const());
        cx.with_count(1, Some(2 * axes.map_or(rank, |axes| axes as usize)))?;
    }
    let pads: Vec<Dim> = match attribute {
        Some(name) => cx.ints(name)?.unwrap_or_default().into_iter().map(Dim::from).collect(),
        None => cx.integers_input(1)?,
    };
    let axes = match cx.optional(3) {
        Some(_) => cx.const_input(3)?,
        None => (0..rank as i64).collect(),
    };
    normalize_axes(&axes, rank)?;
    if pads.len() != 2 * axes.len() {
        return malformed(format!("{} pads for {} axes", pads.len(), axes.len()));
    }
    let mut result = vec![(Dim::ZERO, Dim::ZERO); rank];
    for (at, &axis) in axes.iter().enumerate() {
        result[normalize_axis(axis, rank)?] = (pads[at].clone(), pads[axes.len() + at].clone());
    }
    Ok(result)
}

/// Pads of axes that data decide.
fn late_pads(cx: &mut NodeCx<'_, '_>, rank: usize) -> Result<Vec<(Dim, Dim)>> {
    let (pads, axes) = (cx.input(1)?, cx.input(3)?);
    let count = cx.b.ty(axes).elements();
    axis_mask(cx, axes, rank)?.require_valid(cx)?;
    let none = cx.b.i64s(&vec![0; rank]);
    let mut sides = Vec::new();
    for start in [Dim::ZERO, count.clone()] {
        let side = cx.b.slice_axis(pads, 0, start, count.clone())?;
        let all = spread(cx, axes, side, none, rank)?;
        sides.push(cx.b.integers(all)?);
    }
    let [low, high] = &sides[..] else { return malformed("pads have two sides") };
    Ok(low.iter().cloned().zip(high.iter().cloned()).collect())
}

pub fn pad(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let pads = pads(cx, cx.b.rank(x))?;
    match cx.str("mode")?.as_str() {
        "constant" => {
            let fill = fill_value(cx, x)?;
            Ok(vec![pad_constant(cx, x, fill, &pads)?])
        }
        mode @ ("edge" | "reflect" | "wrap") => {
            let mut y = x;
            for (axis, (low, high)) in pads.iter().enumerate() {
                y = pad_by_index(cx, y, axis, low, high, mode)?;
            }
            Ok(vec![y])
        }
        other => not_one_of("mode", other, "constant, edge, reflect, wrap"),
    }
}

fn fill_value(cx: &mut NodeCx<'_, '_>, x: ValueId) -> Result<ValueId> {
    let dtype = cx.b.dtype(x);
    if cx.has("value") {
        let value = f64::from(cx.float("value")?);
        return Ok(cx.b.scalar(dtype, value));
    }
    match cx.optional(2) {
        Some(fill) => to_scalar(cx, fill),
        None => Ok(cx.b.scalar(dtype, 0.0)),
    }
}

/// Removes what negative pads take, then adds what positive ones give.
fn pad_constant(cx: &mut NodeCx<'_, '_>, x: ValueId, fill: ValueId, pads: &[(Dim, Dim)]) -> Result<ValueId> {
    let removed = |pad: &Dim| (-pad.clone()).max_dim(&Dim::ZERO);
    let added = |pad: &Dim| pad.max_dim(&Dim::ZERO);
    let mut y = x;
    let mut added_pads = Vec::with_capacity(pads.len());
    for (axis, (low, high)) in pads.iter().enumerate() {
        let own = cx.b.ty(y).shape[axis].clone();
        let cut = own.clone() - removed(low) - removed(high);
        let text = format!(
            "pads {V} and {V} of axis {axis} take away more than the {V} elements of {}",
            cx.b.operand_text(x).unwrap_or("data".into())
        );
        cx.b.require(Requirement::at_most(Dim::ZERO, cut.clone()).stated(text, &[low, high, &own]))?;
        let dims = [removed(low), cut, added(low), added(high)];
        let name = format!("the number of elements that pads of axis {axis} leave");
        let dims =
            cx.b.saying(Says::Name(name.into()), |b| b.named(&dims, &|at| (at < 2).then(|| own.clone())))?;
        let [first, size, low_added, high_added] = &dims[..] else { return malformed("four dims") };
        added_pads.push((low_added.clone(), high_added.clone()));
        y = cx.b.slice_axis(y, axis, first.clone(), size.clone())?;
    }
    let (low, high) = added_pads.into_iter().unzip();
    cx.b.pad(y, fill, low, high)
}

/// One axis picked by computed index: clamped (`edge`), mirrored without repeating the border
/// (`reflect`), or periodic (`wrap`).
fn pad_by_index(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    axis: usize,
    low: &Dim,
    high: &Dim,
    mode: &str,
) -> Result<ValueId> {
    if *low == Dim::ZERO && *high == Dim::ZERO {
        return Ok(x);
    }
    let size = cx.b.ty(x).shape[axis].clone();
    let extent = size.clone() + low.clone() + high.clone();
    let name = format!("the size of axis {axis} with pads");
    let extent = cx.b.saying(Says::Name(name.into()), |b| b.named(&[extent], &|_| None))?.remove(0);
    if size == Dim::ZERO || extent.as_const().is_some_and(|extent| extent < 0) {
        return malformed(format!("pads {low} and {high} of axis {axis} of {}", cx.b.ty(x)));
    }
    if !size.is_const() {
        // Nothing can be repeated of nothing.
        let text = format!("{} has no element along axis {axis} to repeat", cx.operand_name(0));
        cx.b.assume(Requirement::at_most(extent.min_dim(&Dim::ONE), size.clone()).stated(text, &[]));
    }
    let place = cx.b.iota(vec![extent], 0)?;
    let low = dim(cx, low)?;
    let place = cx.b.binary(BinaryFn::Sub, place, low)?;
    let last = dim(cx, &(size.clone() - Dim::ONE))?;
    let index = match mode {
        "edge" => {
            let index = cx.b.binary_scalar(BinaryFn::Max, place, 0.0)?;
            cx.b.binary(BinaryFn::Min, index, last)?
        }
        "wrap" => {
            let size = dim(cx, &size)?;
            cx.b.binary(BinaryFn::Mod, place, size)?
        }
        // last - |place mod (2 * last) - last|, which is 0 for a single element: its modulus is 0.
        _ => {
            let period = dim(cx, &((size - Dim::ONE) * Dim::from(2i64)))?;
            let phase = cx.b.binary(BinaryFn::Mod, place, period)?;
            let distance = cx.b.binary(BinaryFn::Sub, phase, last)?;
            let distance = cx.b.unary(UnaryFn::Abs, distance)?;
            cx.b.binary(BinaryFn::Sub, last, distance)?
        }
    };
    cx.b.emit1(Op::Gather { axis }, &[x, index])
}

/// Odd differences put the window half an element to the left, and the extra padding to the right.
fn center_crop_pad(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input_data")?;
    let rank = cx.b.rank(x);
    let axes = cx.ints("axes")?.unwrap_or_else(|| (0..rank as i64).collect());
    cx.with_count("shape", Some(axes.len()))?;
    let sizes = cx.sizes_input("shape")?;
    normalize_axes(&axes, rank)?;
    if sizes.len() != axes.len() {
        return malformed(format!("shape {sizes:?} for {} axes", axes.len()));
    }
    let two = Dim::from(2i64);
    let half = |dim: Dim| dim.floor_div(&two).expect("two is not zero");
    let mut y = x;
    let (mut low, mut high) = (vec![Dim::ZERO; rank], vec![Dim::ZERO; rank]);
    for (axis, wanted) in axes.iter().zip(&sizes) {
        let axis = normalize_axis(*axis, rank)?;
        if wanted.as_const().is_some_and(|size| size < 0) {
            return malformed(format!("shape {sizes:?} has a negative size"));
        }
        let size = cx.b.ty(x).shape[axis].clone();
        let kept = size.min_dim(wanted);
        y = cx.b.slice_axis(y, axis, half(size - kept.clone()), kept.clone())?;
        let missing = wanted.clone() - kept;
        low[axis] = half(missing.clone());
        high[axis] = missing - low[axis].clone();
    }
    let fill = cx.b.scalar(cx.b.dtype(x), 0.0);
    Ok(vec![cx.b.pad(y, fill, low, high)?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;
    use super::*;
    use cranelift_entity::EntityRef;
    use onnxc_ir::graph::Sym;

    fn s0() -> Dim {
        Dim::sym(Sym::new(0))
    }

    fn text(start: Dim, end: Dim, step: i64, size: &Dim) -> (String, String) {
        let (start, count) = range_of(&start, &end, step, size).unwrap();
        (start.to_string(), count.to_string())
    }

    /// What the specification says: as Python's `slice.indices`, but a negative step starts within the axis.
    fn specified(start: i64, end: i64, step: i64, size: i64) -> Vec<i64> {
        let wrap = |index: i64| if index < 0 { index + size } else { index };
        let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
        let (mut at, end) = (wrap(start).max(0).min(high), wrap(end).clamp(low, high));
        let mut indices = vec![];
        while (step > 0 && at < end) || (step < 0 && at > end) {
            indices.push(at);
            at += step;
        }
        indices
    }

    #[test]
    fn ranges_are_as_specified() {
        for size in 0..5 {
            for (start, end) in (-7..8).flat_map(|start| (-7..8).map(move |end| (start, end))) {
                for step in [-3, -1, 1, 2] {
                    let wanted = specified(start, end, step, size);
                    let dim = |value: i64| Dim::from(value);
                    let constant = range_of(&dim(start), &dim(end), step, &dim(size)).unwrap();
                    let (first, count) = range_of(&dim(start), &dim(end), step, &s0()).unwrap();
                    let at = |dim: &Dim| dim.eval(&|_| Some(size)).unwrap();
                    for (first, count) in [(at(&constant.0), at(&constant.1)), (at(&first), at(&count))] {
                        let found: Vec<i64> = (0..count).map(|index| first + index * step).collect();
                        assert_eq!(found, wanted, "{start}..{end} by {step} of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn symbolic_bounds_wrap_as_constants_do() {
        for size in 0..6 {
            for (start, end) in (-6..7).flat_map(|start| (-6..7).map(move |end| (start, end))) {
                let value = |sym: Sym| Some(if sym.index() == 0 { size } else { 6 });
                // `s1 + c - 6` has the value of `c`, and no known sign.
                let hidden = |value: i64| Dim::sym(Sym::new(1)) + Dim::from(value - 6);
                let (first, count) = range_of(&hidden(start), &hidden(end), 1, &s0()).unwrap();
                let (first, count) = (first.eval(&value).unwrap(), count.eval(&value).unwrap());
                let found: Vec<i64> = (first..first + count).collect();
                assert_eq!(found, specified(start, end, 1, size), "{start}..{end} of {size}");
            }
        }
    }

    #[test]
    fn common_symbolic_ranges_are_neat() {
        let dim = |value: i64| Dim::from(value);
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(text(dim(0), dim(i64::MAX), 1, &s0()), pair("0", "s0"));
        assert_eq!(text(dim(0), dim(i64::from(i32::MAX)), 1, &s0()), pair("0", "s0"));
        assert_eq!(text(dim(0), s0(), 1, &s0()), pair("0", "s0"));
        assert_eq!(text(dim(-1), dim(i64::MAX), 1, &s0()).1, "min(s0, 1)");
        assert_eq!(text(dim(-1), dim(i64::MIN), -1, &s0()), pair("-1 + s0", "s0"));
        assert_eq!(text(dim(0), dim(i64::MAX), 2, &s0()).1, "floordiv(1 + s0, 2)");
        assert_eq!(text(dim(0), s0(), 1, &dim(512)), pair("0", "min(s0, 512)"));
    }

    #[test]
    fn slices_by_attribute_and_by_input() {
        let values: Vec<f32> = (0..12).map(|at| at as f32).collect();
        let old = Case::new("Slice", 1).input(&[3, 4], &values).ints("starts", &[1]).ints("ends", &[-1]);
        old.gives(0, &[1, 4], &[4., 5., 6., 7.]);
        let new = || Case::new("Slice", 13).symbolic(&["n", ""], &[3, 4], &values);
        let case = new().constant(&[2], &[2i64, -1]).constant(&[2], &[-99i64, 0]);
        let case = case.constant(&[2], &[0i64, 1]).constant(&[2], &[-1i64, -2]);
        case.gives(0, &[3, 2], &[11., 9., 7., 5., 3., 1.]);
        let zero = new().constant(&[1], &[0i64]).constant(&[1], &[1i64]).constant(&[1], &[0i64]);
        assert!(zero.constant(&[1], &[0i64]).run().unwrap_err().message.contains("step 0"));
        assert!(new().constant(&[1], &[0i64]).constant(&[2], &[1i64, 2]).run().is_err());
    }

    #[test]
    fn padding_modes() {
        let x = |opset| Case::new("Pad", opset).symbolic(&["n"], &[3], &[1f32, 2., 3.]);
        let by = |opset, mode, low: i64, high: i64| x(opset).str("mode", mode).constant(&[2], &[low, high]);
        by(13, "constant", 1, -1).gives(0, &[3], &[0., 1., 2.]);
        by(13, "constant", 1, 1).input(&[], &[7f32]).gives(0, &[5], &[7., 1., 2., 3., 7.]);
        by(13, "edge", 2, 1).gives(0, &[6], &[1., 1., 1., 2., 3., 3.]);
        by(13, "reflect", 2, 3).gives(0, &[8], &[3., 2., 1., 2., 3., 2., 1., 2.]);
        by(19, "wrap", 1, 4).gives(0, &[8], &[3., 1., 2., 3., 1., 2., 3., 1.]);
        x(2).ints("pads", &[1, 0]).float("value", 5.0).gives(0, &[4], &[5., 1., 2., 3.]);
        x(1).ints("paddings", &[0, 1]).gives(0, &[4], &[1., 2., 3., 0.]);
        let single =
            Case::new("Pad", 13).str("mode", "reflect").input(&[1], &[4f32]).constant(&[2], &[1i64, 2]);
        single.gives(0, &[4], &[4.; 4]);
        for mode in ["edge", "reflect", "wrap"] {
            let nothing = || Case::new("Pad", 19).str("mode", mode).symbolic::<f32>(&["n"], &[0], &[]);
            assert!(nothing().input(&[2], &[0i64, 2]).run().is_err(), "{mode}");
            nothing().input(&[2], &[0i64, 0]).gives(0, &[0], &[]);
            let error = nothing().constant(&[2], &[0i64, 2]).run().unwrap_err();
            assert!(error.message.contains("no element along axis 0 to repeat"), "{error}");
        }
        assert!(by(13, "mirror", 1, 1).run().unwrap_err().message.contains("mirror"));
        let negative = Case::new("Pad", 13).input(&[2], &[1f32, 2.]).constant(&[2], &[-2i64, -1]).run();
        assert!(negative.unwrap_err().message.contains("pads"));
    }

    #[test]
    fn slices_that_data_decide() {
        let values: Vec<f32> = (0..5).map(|at| at as f32).collect();
        for (start, end) in (-6..7).flat_map(|start| (-6..7).map(move |end| (start, end))) {
            for step in [-3, -1, 1, 2] {
                let wanted: Vec<f64> = specified(start, end, step, 5).iter().map(|&at| at as f64).collect();
                let case = || {
                    let x = Case::new("Slice", 13).symbolic(&["n"], &[5], &values);
                    x.input(&[1], &[start]).input(&[1], &[end])
                };
                case().constant(&[1], &[0i64]).constant(&[1], &[step]).gives(0, &[wanted.len()], &wanted);
                case().input(&[1], &[0i64]).input(&[1], &[step]).gives(0, &[wanted.len()], &wanted);
            }
        }
        // Of no elements none are left.
        for (start, step) in [(-2i64, -2i64), (-2, 1), (3, -1), (3, 1)] {
            let nothing = Case::new("Slice", 13).input::<f32>(&[0], &[]).constant(&[1], &[start]);
            nothing.input(&[1], &[0i64]).constant(&[1], &[0i64]).constant(&[1], &[step]).gives(0, &[0], &[]);
        }
        // Neither of an axis that a run makes empty, forwards or backwards.
        for (start, end, step) in
            [(0i64, 2i64, -1i64), (-2, i64::MIN, -2), (0, -1, -1), (0, 2, 1), (-2, 9, 2)]
        {
            let nothing = Case::new("Slice", 13).symbolic::<f32>(&["n"], &[0], &[]).constant(&[1], &[start]);
            let nothing = nothing.constant(&[1], &[end]).constant(&[1], &[0i64]).constant(&[1], &[step]);
            nothing.gives(0, &[0], &[]);
        }
        // A constant start behind the axis, whose size is constant or not.
        for start in [1i64, 5, 9] {
            let wanted: Vec<f64> = specified(start, -1, 1, 5).iter().map(|&at| at as f64).collect();
            let fixed = Case::new("Slice", 13).input(&[5], &values).constant(&[1], &[start]);
            fixed.input(&[1], &[-1i64]).gives(0, &[wanted.len()], &wanted);
            let sized = Case::new("Slice", 13).symbolic(&["n"], &[5], &values).constant(&[1], &[start]);
            sized.constant(&[1], &[-1i64]).gives(0, &[wanted.len()], &wanted);
        }
        let matrix = || Case::new("Slice", 13).input(&[2, 2], &[1f32, 2., 3., 4.]);
        let far = || matrix().input(&[1], &[-1i64]).input(&[1], &[i64::MIN]);
        far().input(&[1], &[-1i64]).input(&[1], &[-1i64]).gives(0, &[2, 2], &[2., 1., 4., 3.]);
        matrix().input(&[1], &[1i64]).input(&[1], &[i64::MAX]).gives(0, &[1, 2], &[3., 4.]);
        assert!(far().missing().input(&[1], &[0i64]).run().is_err());
        for axes in [&[2][..], &[-3]] {
            assert!(far().input(&[1], axes).input(&[1], &[-1i64]).run().is_err(), "{axes:?}");
        }
        let twice = matrix().input(&[2], &[0i64, 0]).input(&[2], &[1i64, 1]);
        assert!(twice.input(&[2], &[1i64, -1]).run().is_err());
    }

    #[test]
    fn bounds_whose_number_the_run_tells() {
        let case = |starts: &[i64], ends: &[i64]| {
            Case::new("Slice", 13)
                .symbolic(&["n", ""], &[2, 3], &[0f32, 1., 2., 3., 4., 5.])
                .symbolic(&["s"], &[starts.len()], starts)
                .symbolic(&["e"], &[ends.len()], ends)
        };
        case(&[], &[]).gives(0, &[2, 3], &[0., 1., 2., 3., 4., 5.]);
        case(&[-1], &[9]).gives(0, &[1, 3], &[3., 4., 5.]);
        case(&[0, 1], &[1, i64::MAX]).gives(0, &[1, 2], &[1., 2.]);
        case(&[0, 1], &[-1, -1]).gives(0, &[1, 1], &[1.]);
        for (starts, ends) in [(&[0][..], &[1, 1][..]), (&[0, 0, 0], &[1, 1, 1])] {
            assert!(case(starts, ends).run().is_err(), "{starts:?} {ends:?}");
        }
        let axes = |starts: &[i64]| case(starts, &vec![1; starts.len()]).constant(&[1], &[1i64]);
        axes(&[0]).gives(0, &[2, 1], &[0., 3.]);
        assert!(axes(&[0, 0]).run().is_err());
    }

    #[test]
    fn pads_that_data_decide() {
        let by = |mode, low: i64, high: i64| {
            let x = Case::new("Pad", 18).symbolic(&["n"], &[3], &[1f32, 2., 3.]).str("mode", mode);
            x.input(&[2], &[low, high])
        };
        by("constant", 1, -1).gives(0, &[3], &[0., 1., 2.]);
        by("constant", -2, -1).gives(0, &[0], &[]);
        by("edge", 2, 1).gives(0, &[6], &[1., 1., 1., 2., 3., 3.]);
        by("reflect", 2, 0).gives(0, &[5], &[3., 2., 1., 2., 3.]);
        assert!(by("constant", -2, -2).run().is_err());
        let axes = Case::new("Pad", 18).input(&[1, 2], &[1i32, 2]).input(&[2], &[1i64, 0]).missing();
        axes.input(&[1], &[-1i64]).gives(0, &[1, 3], &[0., 1., 2.]);
        // Axes out of range, and one that is named twice.
        for wrong in [[0, 2], [-3, 0], [1, -1], [0, 0]] {
            let x = Case::new("Pad", 18).input(&[1, 2], &[1i32, 2]).input(&[4], &[1i64, 0, 0, 2]).missing();
            let error = x.input(&[2], &wrong).run().unwrap_err().to_string();
            assert!(error.contains("axes must be between -2 and 1, each of them once"), "{wrong:?}: {error}");
        }
        let crop = Case::new("CenterCropPad", 18).input(&[3, 2], &[1f32, 2., 3., 4., 5., 6.]);
        crop.input(&[2], &[2i64, 3]).gives(0, &[2, 3], &[1., 2., 0., 3., 4., 0.]);
    }

    #[test]
    fn padding_of_some_axes() {
        let case = Case::new("Pad", 18).input(&[1, 2], &[1i32, 2]).constant(&[2], &[1i64, 0]).missing();
        case.constant(&[1], &[-1i64]).gives(0, &[1, 3], &[0., 1., 2.]);
    }

    #[test]
    fn centred_crops_and_pads() {
        let case = |wanted: &[i64]| {
            let x = Case::new("CenterCropPad", 18).symbolic(&["n", ""], &[3, 2], &[1f32, 2., 3., 4., 5., 6.]);
            x.constant(&[2], wanted)
        };
        case(&[2, 3]).gives(0, &[2, 3], &[1., 2., 0., 3., 4., 0.]);
        case(&[4, 1]).gives(0, &[4, 1], &[1., 3., 5., 0.]);
        // The sizes of the result are the ones that are wanted, however many axes of the operand have symbols.
        let x = Case::new("CenterCropPad", 18).symbolic(&["n", "n", "m", "m"], &[1, 1, 3, 3], &[1f32; 9]);
        let crop = x.constant(&[4], &[2i64, 1, 1, 4]);
        crop.gives(0, &[2, 1, 1, 4], &[1., 1., 1., 0., 0., 0., 0., 0.]);
        let (graph, _) = crop.lower().unwrap();
        assert_eq!(graph.ty(graph.outputs[0].1).shape, [2i64, 1, 1, 4].map(Dim::from));
    }
}
