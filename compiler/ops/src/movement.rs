//! Operators that give the same elements another shape or order.

use super::Fork;
use super::dynamic::{axis_mask, resolved_shape, squeezed_dims, unsqueezed_dims, valid_or_negative};
use super::row::*;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Bounds, Requirement};
use onnxc_ir::infer::broadcast_shapes;

pub const ROWS: &[OpDef] = &[
    RESHAPE,
    RESHAPE_5,
    RESHAPE_5.since(13).types(&[("T", ALL_BF16)]),
    RESHAPE_5.since(14).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_BF16)]),
    RESHAPE_5.since(19).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_19)]),
    RESHAPE_5.since(21).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_21)]),
    RESHAPE_5.since(23).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_23)]),
    RESHAPE_5.since(24).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_24)]),
    RESHAPE_5.since(25).attributes(&[int("allowzero", 0)]).types(&[("T", ALL_25)]),
    FLATTEN,
    FLATTEN.since(9).types(&[("T", ALL)]),
    FLATTEN.since(11).types(&[("T", ALL)]),
    FLATTEN.since(13).types(&[("T", ALL_BF16)]),
    FLATTEN.since(21).types(&[("T", ALL_21)]),
    FLATTEN.since(23).types(&[("T", ALL_23)]),
    FLATTEN.since(24).types(&[("T", ALL_24)]),
    FLATTEN.since(25).types(&[("T", ALL_25)]),
    SQUEEZE,
    SQUEEZE.since(11),
    SQUEEZE_13,
    SQUEEZE_13.since(21).types(&[("T", ALL_21)]),
    SQUEEZE_13.since(23).types(&[("T", ALL_23)]),
    SQUEEZE_13.since(24).types(&[("T", ALL_24)]),
    SQUEEZE_13.since(25).types(&[("T", ALL_25)]),
    UNSQUEEZE,
    UNSQUEEZE.since(11),
    UNSQUEEZE_13,
    UNSQUEEZE_13.since(21).types(&[("T", ALL_21)]),
    UNSQUEEZE_13.since(23).types(&[("T", ALL_23)]),
    UNSQUEEZE_13.since(24).types(&[("T", ALL_24)]),
    UNSQUEEZE_13.since(25).types(&[("T", ALL_25)]),
    TRANSPOSE,
    TRANSPOSE.since(13).types(&[("T", ALL_BF16)]),
    TRANSPOSE.since(21).types(&[("T", ALL_21)]),
    TRANSPOSE.since(23).types(&[("T", ALL_23)]),
    TRANSPOSE.since(24).types(&[("T", ALL_24)]),
    TRANSPOSE.since(25).types(&[("T", ALL_25)]),
    CONCAT,
    CONCAT.since(4).attributes(&[required("axis", Int)]).types(&[("T", ALL)]),
    CONCAT.since(11).attributes(&[required("axis", Int)]).types(&[("T", ALL)]),
    CONCAT.since(13).attributes(&[required("axis", Int)]).types(&[("T", ALL_BF16)]),
    SPLIT,
    SPLIT_2,
    SPLIT_2.since(11),
    SPLIT_13,
    SPLIT_13.since(18).attributes(&[int("axis", 0), optional("num_outputs", Int)]),
    EXPAND,
    EXPAND.since(13).types(&[("T", ALL_BF16)]),
    TILE,
    TILE_6,
    TILE_6.since(13).types(&[("T", ALL_BF16), ("T1", I64S)]),
];

const RESHAPE: OpDef = op("Reshape", 1, reshape)
    .inputs(&[req("data", "T")])
    .outputs(&[req("reshaped", "T")])
    .attributes(&[CONSUMED, optional("shape", Ints)])
    .types(&[("T", FLOATS_F16)])
    .doc("The same elements under another shape");

const RESHAPE_5: OpDef = op("Reshape", 5, reshape)
    .inputs(&[req("data", "T"), req("shape", "tensor(int64)")])
    .outputs(&[req("reshaped", "T")])
    .types(&[("T", ALL)])
    .shapes(RESHAPE_SHAPES)
    .doc("The same elements under another shape");

const FLATTEN: OpDef = op("Flatten", 1, flatten)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[int("axis", 1)])
    .types(&[("T", FLOATS_F16)])
    .doc("A matrix of the axes before and from an axis");

const SQUEEZE: OpDef = op("Squeeze", 1, squeeze)
    .inputs(&[req("data", "T")])
    .outputs(&[req("squeezed", "T")])
    .attributes(&[optional("axes", Ints)])
    .types(&[("T", ALL)])
    .doc("Axes of size 1 removed");

const SQUEEZE_13: OpDef = op("Squeeze", 13, squeeze)
    .inputs(&[req("data", "T"), opt("axes", "tensor(int64)")])
    .outputs(&[req("squeezed", "T")])
    .types(&[("T", ALL_BF16)])
    .shapes(SQUEEZE_SHAPES)
    .doc("Axes of size 1 removed");

const UNSQUEEZE: OpDef = op("Unsqueeze", 1, unsqueeze)
    .inputs(&[req("data", "T")])
    .outputs(&[req("expanded", "T")])
    .attributes(&[required("axes", Ints)])
    .types(&[("T", ALL)])
    .doc("Axes of size 1 inserted");

const UNSQUEEZE_13: OpDef = op("Unsqueeze", 13, unsqueeze)
    .inputs(&[req("data", "T"), req("axes", "tensor(int64)")])
    .outputs(&[req("expanded", "T")])
    .types(&[("T", ALL_BF16)])
    .shapes(SQUEEZE_SHAPES)
    .doc("Axes of size 1 inserted");

const TRANSPOSE: OpDef = op("Transpose", 1, transpose)
    .inputs(&[req("data", "T")])
    .outputs(&[req("transposed", "T")])
    .attributes(&[optional("perm", Ints)])
    .types(&[("T", ALL)])
    .shapes(TRANSPOSE_SHAPES)
    .doc("Axes permuted");

const CONCAT: OpDef = op("Concat", 1, concat)
    .inputs(&[var("inputs", "T")])
    .outputs(&[req("concat_result", "T")])
    .attributes(&[optional("axis", Int)])
    .types(&[("T", FLOATS_F16)])
    .shapes(CONCAT_SHAPES)
    .doc("Inputs joined along an axis");

const SPLIT: OpDef = op("Split", 1, split)
    .inputs(&[req("input", "T"), opt("split", "T")])
    .outputs(&[var("outputs...", "T")])
    .attributes(&[optional("axis", Int), optional("split", Ints)])
    .types(&[("T", FLOATS_F16)])
    .shapes(SPLIT_SHAPES_1)
    .doc("Parts along an axis");

const SPLIT_2: OpDef = op("Split", 2, split)
    .inputs(&[req("input", "T")])
    .outputs(&[var("outputs", "T")])
    .attributes(&[int("axis", 0), optional("split", Ints)])
    .types(&[("T", ALL)])
    .shapes(SPLIT_SHAPES_2)
    .doc("Parts along an axis");

const SPLIT_13: OpDef = op("Split", 13, split)
    .inputs(&[req("input", "T"), opt("split", "tensor(int64)")])
    .outputs(&[var("outputs", "T")])
    .attributes(&[int("axis", 0)])
    .types(&[("T", ALL_BF16)])
    .shapes(SPLIT_SHAPES_1)
    .doc("Parts along an axis");

const EXPAND: OpDef = op("Expand", 8, expand)
    .inputs(&[req("input", "T"), req("shape", "tensor(int64)")])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL)])
    .shapes(RESHAPE_SHAPES)
    .doc("Broadcast to a shape");

const TILE: OpDef = op("Tile", 1, tile_axis)
    .inputs(&[req("input", "T"), req("tiles", "T"), req("axis", "T")])
    .outputs(&[req("output", "T")])
    .types(&[("T", FLOATS_F16), ("T1", I64S)])
    .shapes(TILE_SHAPES_1)
    .doc("Repeated along axes");

const TILE_6: OpDef = op("Tile", 6, tile)
    .inputs(&[req("input", "T"), req("repeats", "T1")])
    .outputs(&[req("output", "T")])
    .types(&[("T", ALL), ("T1", I64S)])
    .shapes(TILE_SHAPES_6)
    .doc("Repeated along axes");

const RESHAPE_SHAPES: &[&str] = &["shape[_]"];

const SQUEEZE_SHAPES: &[&str] = &["axes[] | [_]"];

const TRANSPOSE_SHAPES: &[&str] = &["len(perm) = rank(data)"];

const CONCAT_SHAPES: &[&str] = &["inputs[A..axis, _, B..]"];

const SPLIT_SHAPES_1: &[&str] = &["input[..axis, _, ..]", "split[_]"];

const SPLIT_SHAPES_2: &[&str] = &["input[..axis, _, ..]"];

const TILE_SHAPES_1: &[&str] = &["count(tiles) = 1", "count(axis) = 1"];

const TILE_SHAPES_6: &[&str] = &["repeats[rank(input)]"];

/// The shape that a Reshape asks for: 0 copies a dim of the input (unless `allow_zero`), -1 takes what
/// remains. Copied dims cancel on both sides, so they may be symbolic or 0.
fn resolve_shape(from: &[Dim], wanted: &[Dim], allow_zero: bool) -> Result<Vec<Dim>> {
    let minus_one = Dim::from(-1i64);
    let mut shape = wanted.to_vec();
    let mut left: Vec<Option<&Dim>> = from.iter().map(Some).collect();
    let mut explicit = Dim::ONE;
    let mut free = None;
    for (axis, size) in wanted.iter().enumerate() {
        if *size == Dim::ZERO && !allow_zero {
            match left.get_mut(axis).and_then(Option::take) {
                Some(dim) => shape[axis] = dim.clone(),
                None => return malformed(format!("shape {wanted:?} copies axis {axis} of {from:?}")),
            }
        } else if *size == minus_one {
            if free.replace(axis).is_some() {
                return malformed(format!("shape {wanted:?} has more than one -1"));
            }
        } else if size.as_const().is_some_and(|value| value < 0) {
            return malformed(format!("shape {wanted:?} has a negative size; only one -1 may be in it"));
        } else {
            explicit = explicit * size.clone();
        }
    }
    if let Some(axis) = free {
        let rest = product(&left.into_iter().flatten().cloned().collect::<Vec<_>>());
        let whole = match (rest.as_const(), explicit.as_const()) {
            (Some(rest), Some(explicit)) => explicit != 0 && rest % explicit == 0,
            _ => true,
        };
        match rest.floor_div(&explicit).filter(|_| whole) {
            Some(size) => shape[axis] = size,
            None => return malformed(format!("shape {from:?} does not fit into {wanted:?}")),
        }
    }
    Ok(shape)
}

/// A symbolic size that is 0 in a run would copy the input's dim; the shape holds for sizes alone. Where that dim is 0, too,
/// both are the same.
fn no_copies_at_run_time(cx: &mut NodeCx<'_, '_>, from: &[Dim], wanted: &[Dim]) -> Result<()> {
    for (axis, (size, copied)) in wanted.iter().zip(from).enumerate() {
        if size.is_const() || size == copied || size.bounds().0.is_some_and(|low| low > 0) {
            continue;
        }
        let is_zero = Dim::ONE - size.min_dim(&Dim::ONE);
        let text = format!(
            "element {axis} of shape is 0, which stands for dimension {axis} of {}, {V}; a size that follows from \
             those of inputs must be 1 or more here",
            cx.operand_name(0)
        );
        let requirement = Requirement::equal(is_zero * copied.clone(), Dim::ZERO);
        cx.b.require(requirement.stated(text, &[copied]))?;
    }
    Ok(())
}

/// Where data decide dims, those that the model declares serve: a run in which data give others fails.
fn reshape(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let from = cx.b.shape(x);
    let wanted = if cx.has("shape") {
        Ok(cx.ints("shape")?.unwrap_or_default().into_iter().map(Dim::from).collect())
    } else {
        cx.known_input(1)
    };
    let shape = match wanted {
        Ok(wanted) => {
            let allow_zero = cx.has("allowzero") && cx.int("allowzero")? != 0;
            if !allow_zero {
                no_copies_at_run_time(cx, &from, &wanted)?;
            }
            resolve_shape(&from, &wanted, allow_zero)?
        }
        Err(_) => {
            let allow_zero = cx.has("allowzero") && cx.int("allowzero")? != 0;
            cx.with_count(1, cx.declared_rank(0))?;
            let wanted = cx.input(1)?;
            let found = resolved_shape(cx, &from, wanted, allow_zero)?;
            declared_dims(cx, &from, found)?
        }
    };
    let name = if cx.has("shape") { "shape".to_string() } else { cx.operand_name(1) };
    let total = product(&from);
    let text = format!(
        "{name} gives {}, which is not a shape of the {V} elements of {}",
        claim::list(shape.len()),
        cx.operand_name(0)
    );
    let values: Vec<&Dim> = shape.iter().chain([&total]).collect();
    cx.b.require(Requirement::equal(total.clone(), product(&shape)).stated(text, &values))?;
    Ok(vec![cx.b.reshape(x, shape)?])
}

/// Dims that data decide as the model declares them for the output, if it declares constants with the number of elements of `from`; the
/// data must then agree.
fn declared_dims(cx: &mut NodeCx<'_, '_>, from: &[Dim], found: Vec<Dim>) -> Result<Vec<Dim>> {
    let Some(Some(ty)) = cx.declared.first() else { return Ok(found) };
    let fits = ty.rank() == found.len() && product(&ty.shape) == product(from) && ty.static_shape().is_some();
    if !fits {
        return Ok(found);
    }
    for (axis, (found, declared)) in found.iter().zip(&ty.shape).enumerate() {
        let requirement = Requirement::equal(found.clone(), declared.clone());
        cx.b.require(
            requirement.says(format!("dimension {axis} of the result"), "the one that the model declares"),
        )?;
    }
    Ok(ty.shape.clone())
}

fn flatten(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let shape = cx.b.shape(x);
    let axis = match cx.int("axis")? {
        axis if axis == shape.len() as i64 => shape.len(),
        axis => normalize_axis(axis, shape.len())?,
    };
    let matrix = vec![product(&shape[..axis]), product(&shape[axis..])];
    Ok(vec![cx.b.reshape(x, matrix)?])
}

/// The axes of size 1, and those of no more than that. Another symbolic dim may be 1 when the model runs, which changes the
/// rank: where the model declares no rank, which would decide it, the rest is imported once per case.
fn unit_axes(cx: &mut NodeCx<'_, '_>, shape: &[Dim]) -> Result<Vec<usize>> {
    let (mut ones, mut open) = (vec![], vec![]);
    // Of all symbols: only where a size asks for it.
    let bounds = std::cell::OnceCell::new();
    for (axis, dim) in shape.iter().enumerate() {
        let most =
            || bounds.get_or_init(|| Bounds::new(cx.b.graph)).upper(dim).and_then(|most| most.bounds().1);
        let may_be = match dim.bounds().0 {
            _ if dim.is_const() => Some(*dim == Dim::ONE),
            Some(2..) => Some(false),
            // No more than 1, as the part of an axis that a slice or TopK takes: the run refuses none at all.
            _ if most().is_some_and(|most| most <= 1) => Some(true),
            _ => cx.bodies.is_unit(dim),
        };
        match may_be {
            Some(true) => ones.push(axis),
            Some(false) => {}
            None => open.push(axis),
        }
    }
    let removed = cx.declared_rank(0).and_then(|rank| shape.len().checked_sub(rank));
    match open.first() {
        Some(_) if removed == Some(ones.len()) => {}
        Some(_) if removed == Some(ones.len() + open.len()) => ones.append(&mut open),
        Some(&axis) => {
            cx.bodies.fork(Fork::Unit(shape[axis].clone()));
            return unsupported(format!("squeeze of shape {shape:?} without axes: a symbolic dim may be 1"));
        }
        None => {}
    }
    Ok(ones)
}

/// Without axes, those of size 1 go.
fn squeeze(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let shape = cx.b.shape(x);
    let count = cx.declared_rank(0).and_then(|rank| shape.len().checked_sub(rank));
    cx.with_count(1, count)?;
    if let Some(axes) = late_axes(cx, 1) {
        let count = cx.input_count(1)?;
        let mask = axis_mask(cx, axes, shape.len())?.of_units(cx, &shape)?;
        let dims = squeezed_dims(cx, &shape, &mask, count)?;
        return Ok(vec![cx.b.reshape(x, dims)?]);
    }
    let axes = match axes(cx, 1)? {
        Some(axes) => normalize_axes(&axes, shape.len())?,
        None => unit_axes(cx, &shape)?,
    };
    Ok(vec![cx.b.squeeze(x, &axes)?])
}

fn unsqueeze(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("data")?;
    let count = cx.declared_rank(0).and_then(|rank| rank.checked_sub(cx.b.rank(x)));
    cx.with_count(1, count)?;
    if let Some(axes) = late_axes(cx, 1) {
        let (shape, count) = (cx.b.shape(x), cx.input_count(1)?);
        let dims = unsqueezed_dims(cx, &shape, axes, count)?;
        return Ok(vec![cx.b.reshape(x, dims)?]);
    }
    let Some(axes) = axes(cx, 1)? else { return malformed("axes are missing") };
    let axes = normalize_axes(&axes, cx.b.rank(x) + axes.len())?;
    Ok(vec![cx.b.unsqueeze(x, &axes)?])
}

fn transpose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("data")?;
    let rank = cx.b.rank(x);
    let perm = match cx.ints("perm")? {
        Some(perm) if perm.len() == rank => {
            perm.iter().map(|&axis| normalize_axis(axis, rank)).collect::<Result<Vec<_>>>()?
        }
        Some(perm) => {
            return malformed(format!(
                "perm is {perm:?}; for {} it must be a permutation of {rank} axes",
                cx.b.ty(x)
            ));
        }
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.b.transpose(x, &perm)?])
}

fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let inputs = cx.all_inputs()?;
    let Some(&first) = inputs.first() else { return malformed("no input") };
    // The first version has 1 for a missing axis; later ones require it.
    let axis = normalize_axis(cx.optional_int("axis")?.unwrap_or(1), cx.b.rank(first))?;
    Ok(vec![cx.b.concat(&inputs, axis)?])
}

/// Sizes of the parts: given as attribute or input, or equal. From opset 18 on `num_outputs` allows a
/// smaller last part; before, the number of parts that the node names must divide the axis.
fn split_sizes(cx: &mut NodeCx<'_, '_>, size: &Dim) -> Result<Vec<Dim>> {
    if cx.has("split")
        && let Some(sizes) = cx.ints("split")?
    {
        return Ok(sizes.into_iter().map(Dim::from).collect());
    }
    if cx.optional(1).is_some() {
        cx.with_count(1, Some(cx.outputs))?;
        return cx.sizes_within(1, &|_| Some(size.clone()));
    }
    let uneven = cx.has("num_outputs");
    let count = if uneven { cx.optional_int("num_outputs")? } else { Some(cx.outputs as i64) };
    let Some(count) = count else {
        return malformed("neither the input `split` nor the attribute num_outputs is given");
    };
    if uneven && usize::try_from(count) != Ok(cx.outputs) {
        return malformed(format!("num_outputs is {count}, and the node has {} outputs", cx.outputs));
    }
    let parts = Dim::from(count);
    if !uneven && size.as_const().is_some_and(|size| size % count != 0) {
        return malformed(format!("an axis of {size} does not split into {count} equal parts"));
    }
    let chunk = if uneven { size.ceil_div(&parts) } else { size.floor_div(&parts) };
    let chunk = chunk.expect("the count is not zero");
    if size.exact_div(&parts).is_some() || !uneven {
        return Ok(vec![chunk; count as usize]);
    }
    let bound = |at: i64| (chunk.clone() * Dim::from(at)).min_dim(size);
    Ok((0..count).map(|at| bound(at + 1) - bound(at)).collect())
}

/// Parts of sizes that the run determines: where each starts is a sum of the sizes before it.
pub const MAX_OPEN_PARTS: usize = 200;

fn split(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let axis = normalize_axis(cx.optional_int("axis")?.unwrap_or(0), cx.b.rank(x))?;
    let size = cx.b.ty(x).shape[axis].clone();
    let sizes = split_sizes(cx, &size)?;
    let total = sizes.iter().fold(Dim::ZERO, |sum, size| sum + size.clone());
    if sizes.len() != cx.outputs {
        return malformed(format!(
            "split of an axis of {size} into {sizes:?} by a node with {} outputs",
            cx.outputs
        ));
    }
    if cx.optional(1).is_some() && sizes.len() > MAX_OPEN_PARTS && !sizes.iter().all(Dim::is_const) {
        return unsupported(format!(
            "{} parts of sizes that the run determines; at most {MAX_OPEN_PARTS} are compiled",
            sizes.len()
        ));
    }
    // With a number of parts the last one takes what is left.
    if cx.optional(1).is_some() || !cx.has("num_outputs") {
        let data = format!("dimension {axis} of {}", cx.operand_name(0));
        let requirement = Requirement::equal(total.clone(), size.clone());
        let name = if cx.optional(1).is_some() { cx.operand_name(1) } else { "split".to_string() };
        let values: Vec<&Dim> = sizes.iter().chain([&total, &size]).collect();
        cx.b.require(match cx.optional(1).is_some() || cx.has("split") {
            true => {
                let list = claim::list(sizes.len());
                let text = format!("{name} is {list}, whose sum is {V}; it must be {data}, which is {V}");
                requirement.stated(text, &values)
            }
            false => {
                let text = format!("{data} is {V}; it must be a multiple of the {} parts", sizes.len());
                requirement.stated(text, &[&size])
            }
        })?;
    }
    let mut start = Dim::ZERO;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        if size.as_const().is_some_and(|size| size < 0) {
            return malformed(format!("a part of size {size}"));
        }
        parts.push(cx.b.slice_axis(x, axis, start.clone(), size.clone())?);
        start = start + size;
    }
    Ok(parts)
}

/// A shape of unknown length gets ones at its front up to the declared rank of the result.
fn shape_of_declared_rank(cx: &mut NodeCx<'_, '_>) -> Result<()> {
    let (wanted, Some(rank)) = (cx.input(1)?, cx.declared_rank(0)) else { return Ok(()) };
    let rank = Dim::from(rank);
    if let [length] = cx.b.shape(wanted).as_slice()
        && !length.is_const()
    {
        let name = format!("the number of elements of {}", cx.operand_name(1));
        let requirement = Requirement::at_most(length.clone(), rank.clone());
        cx.b.assume(requirement.says(name, "the declared rank of the result"));
        let wanted = cx.b.cast(wanted, DType::I64)?;
        let one = cx.b.scalar(DType::I64, 1.0);
        cx.inputs[1] = Some(cx.b.pad(wanted, one, vec![rank - length.clone()], vec![Dim::ZERO])?);
    }
    Ok(())
}

/// Both the input and the wanted shape broadcast.
fn expand(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    shape_of_declared_rank(cx)?;
    let wanted = cx.sizes_input(1)?;
    if wanted.iter().any(|dim| dim.as_const().is_some_and(|size| size < 0)) {
        return malformed(format!("shape {wanted:?} has a negative size"));
    }
    let shape = expanded_shape(cx, x, &wanted)?;
    Ok(vec![cx.b.expand(x, shape)?])
}

/// The broadcast of a value's shape and a wanted one. A size that data decide is not an operand of the broadcast, so that
/// it fits is an assumption of its own.
fn expanded_shape(cx: &mut NodeCx<'_, '_>, x: ValueId, wanted: &[Dim]) -> Result<Vec<Dim>> {
    let from = cx.b.shape(x);
    let mut shape = broadcast_shapes(&[&from, wanted])?;
    let (lead, skip) = (shape.len() - wanted.len(), shape.len() - from.len());
    for (at, size) in wanted.iter().enumerate() {
        if !cx.b.graph.is_data_dim(size) {
            continue;
        }
        let axis = lead + at;
        let own = axis.checked_sub(skip).map_or(Dim::ONE, |at| from[at].clone());
        if !own.is_const() && own != *size {
            // One of both is 1, or they are equal; a size of 0 wins over 1.
            let some = own.min_dim(size).min_dim(&Dim::ONE);
            shape[axis] = cx.b.named(&[own.max_dim(size) * some], &|_| None)?.remove(0);
        }
        let both = (shape[axis].clone() - size.clone()) * (size.clone() - Dim::ONE);
        let rule = match axis.checked_sub(skip) {
            Some(at) => {
                format!("1 or dimension {at} of {}, which is {V}", cx.b.operand_text(x).unwrap_or("x".into()))
            }
            None => format!("{V} or more"),
        };
        let (name, own) =
            (cx.operand_name(1), axis.checked_sub(skip).map_or(Dim::ZERO, |at| from[at].clone()));
        let text = format!("element {at} of {name} is {V}; it must be {rule}");
        cx.b.assume(Requirement::equal(both, Dim::ZERO).stated(text, &[size, &own]));
    }
    Ok(shape)
}

fn tile(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    cx.with_count("repeats", Some(cx.b.rank(x)))?;
    let repeats = cx.sizes_input("repeats")?;
    tile_by(cx, x, &repeats)
}

/// Opset 1: `tiles` copies along one `axis`.
fn tile_axis(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, axis) = (cx.input("input")?, cx.input("axis")?);
    let rank = cx.b.rank(x);
    let axis = cx.b.cast(axis, DType::I64)?;
    let known = cx.b.known(axis).and_then(|known| known.first().and_then(Dim::as_const));
    let repeats = match known {
        Some(axis) => {
            let mut repeats = vec![Dim::ONE; rank];
            repeats[normalize_axis(axis, rank)?] = size_scalar(cx, 1)?;
            repeats
        }
        None => repeats_along(cx, axis, rank)?,
    };
    tile_by(cx, x, &repeats)
}

/// Repeats are 1 on every axis but one, which data select; the run fails otherwise.
fn repeats_along(cx: &mut NodeCx<'_, '_>, axis: ValueId, rank: usize) -> Result<Vec<Dim>> {
    let count = cx.input(1)?;
    let count = cx.b.cast(count, DType::I64)?;
    let (axis, count) = (to_scalar(cx, axis)?, to_scalar(cx, count)?);
    let (zero, one) = (cx.b.scalar(DType::I64, 0.0), cx.b.scalar(DType::I64, 1.0));
    let from_end = cx.b.compare(CompareFn::Lt, axis, zero)?;
    let wrapped = cx.b.binary_scalar(BinaryFn::Add, axis, rank as f64)?;
    let axis = cx.b.select(from_end, wrapped, axis)?;
    let place = cx.b.iota(vec![Dim::from(rank)], 0)?;
    let here = cx.b.compare(CompareFn::Eq, place, axis)?;
    let repeats = cx.b.select(here, count, one)?;
    let some = cx.b.reduce(ReduceFn::Or, here, &[0])?;
    let repeats = valid_or_negative(cx, some, repeats)?;
    let text = format!(
        "{} is negative, or {} is out of range; that must be between {} and {}",
        cx.operand_name(1),
        cx.operand_name(2),
        -(rank as i64),
        rank as i64 - 1
    );
    cx.b.saying(Says::Text(text.into()), |b| b.sizes(repeats, &|_| None))
}

/// Each repeated axis gains an axis before it, which broadcasts and is merged into it.
fn tile_by(cx: &mut NodeCx<'_, '_>, x: ValueId, repeats: &[Dim]) -> Result<Vec<ValueId>> {
    let shape = cx.b.shape(x);
    if repeats.len() != shape.len() || repeats.iter().any(|r| r.as_const().is_some_and(|count| count < 0)) {
        return malformed(format!("repeats {repeats:?} of shape {shape:?}"));
    }
    let (mut split, mut wide, mut merged) = (vec![], vec![], vec![]);
    for (size, count) in shape.iter().zip(repeats) {
        if *count != Dim::ONE {
            split.push(Dim::ONE);
            wide.push(count.clone());
        }
        split.push(size.clone());
        wide.push(size.clone());
        merged.push(size.clone() * count.clone());
    }
    let y = cx.b.reshape(x, split)?;
    let y = cx.b.expand(y, wide)?;
    Ok(vec![cx.b.reshape(y, merged)?])
}

#[cfg(test)]
mod tests {
    use super::super::node_case::Case;
    use super::*;
    use cranelift_entity::EntityRef;
    use onnxc_ir::graph::Sym;

    fn dims(values: &[i64]) -> Vec<Dim> {
        values.iter().map(|&value| Dim::from(value)).collect()
    }

    #[test]
    fn repeats_are_not_negative() {
        let case = Case::new("Tile", 13).ramp(&[2, 3], 1).constant::<i64>(&[2], &[1, -2]);
        let message = case.run().unwrap_err().message;
        assert!(message.contains("repeats [1, -2]"), "{message}");
    }

    #[test]
    fn shapes_copy_and_infer() {
        assert_eq!(resolve_shape(&dims(&[2, 3, 4]), &dims(&[0, -1]), false).unwrap(), dims(&[2, 12]));
        assert_eq!(resolve_shape(&dims(&[0, 3]), &dims(&[0, -1]), false).unwrap(), dims(&[0, 3]));
        assert_eq!(resolve_shape(&dims(&[0, 3]), &dims(&[3, 0]), true).unwrap(), dims(&[3, 0]));
        let (n, s) = (Dim::sym(Sym::new(0)), Dim::sym(Sym::new(1)));
        let from = [n.clone(), s.clone(), Dim::from(64i64)];
        let split = resolve_shape(&from, &dims(&[0, -1, 8, 8]), false).unwrap();
        assert_eq!(split, [n.clone(), s.clone(), Dim::from(8i64), Dim::from(8i64)]);
        let merged = resolve_shape(&from, &dims(&[-1, 64]), false).unwrap();
        assert_eq!(merged, [n * s, Dim::from(64i64)]);
        for wanted in [&[-1, -1][..], &[5, -1], &[-2], &[1, 1, 1, 0], &[0, 0, -1, 3]] {
            assert!(resolve_shape(&dims(&[2, 3, 4]), &dims(wanted), false).is_err(), "{wanted:?}");
        }
    }

    #[test]
    fn reshape_by_attribute_and_by_input() {
        let values: Vec<f32> = (0..6).map(|at| at as f32).collect();
        let wanted: Vec<f64> = (0..6).map(f64::from).collect();
        Case::new("Reshape", 1).ints("shape", &[3, -1]).input(&[2, 3], &values).gives(0, &[3, 2], &wanted);
        let case = Case::new("Reshape", 14).symbolic(&["n", ""], &[2, 3], &values);
        case.constant(&[2], &[-1i64, 1]).gives(0, &[6, 1], &wanted);
        Case::new("Flatten", 13).int("axis", -1).input(&[1, 2, 3], &values).gives(0, &[2, 3], &wanted);
        Case::new("Flatten", 1).int("axis", 0).input(&[2, 3], &values).gives(0, &[1, 6], &wanted);
        Case::new("Flatten", 9).int("axis", 2).input(&[2, 3], &values).gives(0, &[6, 1], &wanted);
    }

    #[test]
    fn shapes_that_data_decide() {
        let values: Vec<f32> = (0..6).map(|at| at as f32).collect();
        let wanted: Vec<f64> = (0..6).map(f64::from).collect();
        let late = |shape: &[i64]| {
            let case = Case::new("Reshape", 14).symbolic(&["n", ""], &[2, 3], &values);
            case.input(&[shape.len()], shape)
        };
        late(&[6]).gives(0, &[6], &wanted);
        late(&[0, -1]).gives(0, &[2, 3], &wanted);
        late(&[-1, 1, 2]).gives(0, &[3, 1, 2], &wanted);
        for wrong in [&[4][..], &[-1, -1], &[-2, 3], &[2, 3, 0], &[4, -1]] {
            assert!(late(wrong).run().is_err(), "{wrong:?}");
        }
        let empty = |shape: &[i64]| {
            Case::new("Reshape", 14).int("allowzero", 1).input(&[0, 3], &[0f32; 0]).input(&[2], shape)
        };
        empty(&[3, 0]).gives(0, &[3, 0], &[]);
        let expand = |shape: &[i64]| {
            let case = Case::new("Expand", 13).symbolic(&["n", ""], &[2, 1], &[1f32, 2.]);
            case.input(&[shape.len()], shape)
        };
        expand(&[2, 2]).gives(0, &[2, 2], &[1., 1., 2., 2.]);
        expand(&[2, 1, 1]).gives(0, &[2, 2, 1], &[1., 2., 1., 2.]);
        expand(&[1, 0]).gives(0, &[2, 0], &[]);
        assert!(expand(&[3, 1]).run().is_err());
        let tile = Case::new("Tile", 13).input(&[1, 2], &[1f32, 2.]).input(&[2], &[2i64, 2]);
        tile.gives(0, &[2, 4], &[1., 2., 1., 2., 1., 2., 1., 2.]);
        let split = |sizes: &[i64]| {
            Case::new("Split", 13).input(&[5], &[0f32, 1., 2., 3., 4.]).input(&[2], sizes).outputs(2)
        };
        split(&[4, 1]).gives(1, &[1], &[4.]);
        split(&[0, 5]).gives(0, &[0], &[]);
        for wrong in [[4, 2], [-1, 6], [2, 2]] {
            assert!(split(&wrong).run().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn axes_that_data_decide() {
        let x = |name| Case::new(name, 13).symbolic(&["", "n", ""], &[1, 2, 1], &[1i64, 2]);
        x("Squeeze").input(&[1], &[-1i64]).gives(0, &[1, 2], &[1., 2.]);
        x("Squeeze").input(&[2], &[2i64, 0]).gives(0, &[2], &[1., 2.]);
        x("Unsqueeze").input(&[2], &[-1i64, 0]).gives(0, &[1, 1, 2, 1, 1], &[1., 2.]);
        x("Unsqueeze").input(&[1], &[1i64]).gives(0, &[1, 1, 2, 1], &[1., 2.]);
        for wrong in [1, 3, -4] {
            assert!(x("Squeeze").input(&[1], &[wrong]).run().is_err(), "{wrong}");
        }
        assert!(x("Squeeze").input(&[2], &[0i64, 0]).run().is_err());
        // Without elements, too.
        let none = || Case::new("Squeeze", 13).symbolic(&["m", "n"], &[0, 3], &[0f32; 0]);
        for axis in [0i64, 1] {
            let error = none().constant(&[1], &[axis]).run().unwrap_err();
            assert!(error.message.contains("it must have size 1"), "{axis}: {error}");
            assert!(none().input(&[1], &[axis]).run().is_err(), "{axis}");
        }
        // Where nothing is left, too.
        let one = |axes: [i64; 2]| Case::new("Squeeze", 13).input(&[1, 1], &[5f32]).input(&[2], &axes);
        one([0, -1]).gives(0, &[], &[5.]);
        assert!(one([0, 0]).run().is_err());
        assert!(x("Unsqueeze").input(&[1], &[4i64]).run().is_err());
        let scalar = |axes: &[i64]| Case::new("Unsqueeze", 13).input(&[], &[7i64]).input(&[axes.len()], axes);
        scalar(&[1, -2]).gives(0, &[1, 1], &[7.]);
        for wrong in [[0, 0], [0, 2], [-3, 1]] {
            assert!(scalar(&wrong).run().is_err(), "{wrong:?}");
        }
        let ranks = x("Squeeze").symbolic(&["k"], &[1], &[0i64]).run();
        assert!(ranks.unwrap_err().message.contains("rank"));
    }

    #[test]
    fn axes_of_size_one_come_and_go() {
        let x = |name, opset| Case::new(name, opset).input(&[1, 2, 1], &[1i64, 2]);
        x("Squeeze", 11).gives(0, &[2], &[1., 2.]);
        x("Squeeze", 13).constant(&[1], &[-1i64]).gives(0, &[1, 2], &[1., 2.]);
        assert!(x("Squeeze", 1).ints("axes", &[1]).run().unwrap_err().message.contains("axis 1"));
        let symbolic = Case::new("Squeeze", 13).symbolic(&["", "n"], &[1, 2], &[1i64, 2]);
        assert!(symbolic.run().unwrap_err().message.contains("may be 1"));
        symbolic.of_rank(1).gives(0, &[2], &[1., 2.]);
        let both = |sizes: &[usize]| {
            let case =
                Case::new("Squeeze", 13).symbolic(&["m", "n"], sizes, &[1i64, 2][..sizes[0] * sizes[1]]);
            case.of_rank(0)
        };
        both(&[1, 1]).gives(0, &[], &[1.]);
        assert!(both(&[1, 2]).run().is_err());
        x("Unsqueeze", 11).ints("axes", &[0, -1]).gives(0, &[1, 1, 2, 1, 1], &[1., 2.]);
        x("Unsqueeze", 13).constant(&[1], &[1i64]).gives(0, &[1, 1, 2, 1], &[1., 2.]);
    }

    #[test]
    fn axes_permute_and_join() {
        let x = |name, opset| Case::new(name, opset).input(&[2, 2], &[1f32, 2., 3., 4.]);
        x("Transpose", 1).gives(0, &[2, 2], &[1., 3., 2., 4.]);
        assert!(x("Transpose", 13).ints("perm", &[0]).run().is_err());
        let joined = x("Concat", 1).input(&[2, 1], &[8f32, 9.]);
        joined.gives(0, &[2, 3], &[1., 2., 8., 3., 4., 9.]);
        let stacked = x("Concat", 13).int("axis", -2).input(&[1, 2], &[8f32, 9.]);
        stacked.gives(0, &[3, 2], &[1., 2., 3., 4., 8., 9.]);
    }

    #[test]
    fn parts_are_equal_given_or_nearly_equal() {
        let x = |opset| Case::new("Split", opset).input(&[5], &[0f32, 1., 2., 3., 4.]);
        let uneven = x(18).int("num_outputs", 2).outputs(2);
        uneven.gives(0, &[3], &[0., 1., 2.]);
        uneven.gives(1, &[2], &[3., 4.]);
        x(2).ints("split", &[1, 4]).outputs(2).gives(1, &[4], &[1., 2., 3., 4.]);
        x(13).constant(&[2], &[4i64, 1]).outputs(2).gives(1, &[1], &[4.]);
        assert!(x(11).outputs(2).run().unwrap_err().message.contains("equal parts"));
        assert!(x(13).constant(&[2], &[4i64, 2]).outputs(2).run().is_err());
        assert!(x(18).outputs(2).run().is_err());
        // Nothing is left over, which for a symbolic axis is known when the model runs.
        let rows = |opset, n: usize| {
            let values: Vec<f32> = (0..n).map(|at| at as f32).collect();
            Case::new("Split", opset).symbolic(&["n"], &[n], &values).outputs(2)
        };
        for opset in [2, 11, 13] {
            assert!(rows(opset, 5).run().is_err(), "{opset}");
            rows(opset, 6).gives(1, &[3], &[3., 4., 5.]);
        }
        rows(11, 5).ints("split", &[2, 3]).gives(1, &[3], &[2., 3., 4.]);
        for sizes in [[2, 2], [3, 3], [0, 4]] {
            assert!(rows(11, 5).ints("split", &sizes).run().is_err(), "{sizes:?}");
            assert!(rows(13, 5).constant(&[2], &sizes.map(i64::from)).run().is_err(), "{sizes:?}");
        }
        let case = Case::new("Split", 11).symbolic(&["n"], &[4], &[0f32, 1., 2., 3.]).outputs(2);
        case.gives(1, &[2], &[2., 3.]);
        let case = Case::new("Split", 18).symbolic(&["n"], &[5], &[0f32, 1., 2., 3., 4.]).outputs(2);
        case.int("num_outputs", 2).gives(1, &[2], &[3., 4.]);
    }

    #[test]
    fn expansion_and_repetition() {
        let case = Case::new("Expand", 13).input(&[2, 1], &[1f32, 2.]).constant(&[3], &[2i64, 1, 2]);
        case.gives(0, &[2, 2, 2], &[1., 1., 2., 2., 1., 1., 2., 2.]);
        let case =
            Case::new("Tile", 13).symbolic(&["n", ""], &[1, 2], &[1f32, 2.]).constant(&[2], &[2i64, 2]);
        case.gives(0, &[2, 4], &[1., 2., 1., 2., 1., 2., 1., 2.]);
        let case =
            Case::new("Tile", 1).input(&[2], &[1f32, 2.]).constant(&[], &[2f32]).constant(&[], &[0f32]);
        case.gives(0, &[4], &[1., 2., 1., 2.]);
        let halves = [1.0, 2.0].map(half::f16::from_f32);
        let half = |value: f32| [half::f16::from_f32(value)];
        let case = Case::new("Tile", 1).input(&[1, 2], &halves);
        case.constant(&[1], &half(2.)).constant(&[1], &half(0.)).gives(0, &[2, 2], &[1., 2., 1., 2.]);
        let case = |axis: f32| {
            Case::new("Tile", 1).input(&[1, 2], &halves).input(&[1], &half(2.)).input(&[1], &half(axis))
        };
        case(-1.).gives(0, &[1, 4], &[1., 2., 1., 2.]);
        assert!(case(2.).run().is_err());
        let wrong = Case::new("Tile", 13).input(&[2], &[1f32, 2.]).constant(&[2], &[1i64, 1]);
        assert!(wrong.run().unwrap_err().message.contains("repeats"));
    }
}
