//! One tensor as a sequence of its parts along an axis, and back.
//!
//! Around an axis a tensor is `[before, size, after]`; a row is `after` elements that stay together.

use super::{MAX_LISTED, Packed, malformed, require_true, shape_rows, stacked};
use crate::item::{Elements, Item};
use crate::normalize_axis;
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::claim::V;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Op, Requirement, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

/// Parts of a list whose sizes only the run knows: where each begins is a sum of sizes.
const MAX_LATE: usize = 16;

/// The parts of `x` along an axis: of the given sizes; of one given size, a scalar, where the last may be smaller; or of size
/// 1, without the axis unless it is kept.
pub fn split(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: usize,
    keep: bool,
    sizes: Option<ValueId>,
) -> Result<Item> {
    match sizes {
        None => singles(b, x, axis, keep),
        Some(size) if b.rank(size) == 0 => equal_parts(b, x, axis, size),
        Some(sizes) => given_parts(b, x, axis, sizes),
    }
}

fn singles(b: &mut Builder<'_>, x: ValueId, axis: usize, keep: bool) -> Result<Item> {
    let shape = b.shape(x);
    if let Some(count) = shape[axis].as_const().filter(|&count| count <= MAX_LISTED as i64) {
        let sizes = vec![Dim::ONE; count as usize];
        let mut list = listed(b, x, axis, &sizes)?;
        if !keep {
            list = list.into_iter().map(|part| b.squeeze(part, &[axis])).collect::<Result<_>>()?;
        }
        return Ok(Item::list(b.dtype(x), list));
    }
    let perm: Vec<usize> = std::iter::once(axis).chain((0..shape.len()).filter(|&at| at != axis)).collect();
    let mut parts = b.transpose(x, &perm)?;
    if keep {
        parts = b.unsqueeze(parts, &[1 + axis])?;
    }
    stacked(b, parts)
}

/// Parts of these sizes, one behind the other.
fn listed(b: &mut Builder<'_>, x: ValueId, axis: usize, sizes: &[Dim]) -> Result<Vec<ValueId>> {
    let mut start = Dim::ZERO;
    let mut list = vec![];
    for size in sizes {
        list.push(b.slice_axis(x, axis, start.clone(), size.clone())?);
        start = start + size.clone();
    }
    Ok(list)
}

fn equal_parts(b: &mut Builder<'_>, x: ValueId, axis: usize, size: ValueId) -> Result<Item> {
    let shape = b.shape(x);
    let whole = shape[axis].clone();
    let size = b.sizes(size, &|_| None)?.remove(0);
    b.require(Requirement::at_most(Dim::ONE, size.clone()).says_at_least("the size of a part", 1))?;
    if let (Some(whole), Some(size)) = (whole.as_const(), size.as_const())
        && (whole - 1) / size < MAX_LISTED as i64
    {
        let starts = (0..whole).step_by(size as usize);
        let sizes: Vec<Dim> = starts.map(|start| Dim::from(size.min(whole - start))).collect();
        let list = listed(b, x, axis, &sizes)?;
        return Ok(Item::list(b.dtype(x), list));
    }
    let full = quotient(b, &whole, &size)?;
    let count = quotient(b, &(whole.clone() + size.clone() - Dim::ONE), &size)?;
    let [before, _, after] = about(&shape, axis);
    let cut = full.clone() * size.clone();
    let rest = whole.clone() - cut.clone();
    let cube = b.reshape(x, vec![before.clone(), whole.clone(), after.clone()])?;
    let front = b.slice_axis(cube, 1, Dim::ZERO, cut.clone())?;
    let front = b.reshape(front, vec![before.clone(), full, size.clone(), after.clone()])?;
    let front = b.transpose(front, &[1, 0, 2, 3])?;
    let back = b.slice_axis(cube, 1, cut.clone(), rest.clone())?;
    let mut flat = vec![];
    for (part, length) in [(front, cut), (back, rest)] {
        flat.push(b.reshape(part, vec![before.clone() * length * after.clone()])?);
    }
    let data = b.concat(&flat, 0)?;
    // Part `i` has what is left behind those before, and no more than `size`.
    let number = b.iota(vec![count.clone()], 0)?;
    let (whole, size) = (b.dim_scalar(&whole)?, b.dim_scalar(&size)?);
    let start = b.binary(BinaryFn::Mul, number, size)?;
    let left = b.binary(BinaryFn::Sub, whole, start)?;
    let sizes = b.binary(BinaryFn::Min, left, size)?;
    with_sizes(b, &shape, axis, sizes, data)
}

fn given_parts(b: &mut Builder<'_>, x: ValueId, axis: usize, sizes: ValueId) -> Result<Item> {
    let (name, rule) = ("the sum of the sizes of the parts", format!("dimension {axis} of input"));
    let shape = b.shape(x);
    let whole = shape[axis].clone();
    let count = b.ty(sizes).elements();
    let most = if b.known(sizes).is_some() { MAX_LISTED } else { MAX_LATE };
    if count.as_const().is_some_and(|count| count <= most as i64) {
        let sizes = b.sizes(sizes, &|_| Some(whole.clone()))?;
        let sum = sizes.iter().cloned().fold(Dim::ZERO, |sum, size| sum + size);
        b.require(Requirement::equal(sum, whole).says(name, rule))?;
        let list = listed(b, x, axis, &sizes)?;
        return Ok(Item::list(b.dtype(x), list));
    }
    let sizes = b.cast(sizes, DType::I64)?;
    let zero = b.scalar(DType::I64, 0.0);
    // How far the least is below 0.
    let least = b.reduce(ReduceFn::Min, sizes, &[0])?;
    let least = b.binary_scalar(BinaryFn::Min, least, 0.0)?;
    let below = b.unary(UnaryFn::Neg, least)?;
    let below = b.sizes(below, &|_| None)?.remove(0);
    let text = format!("the least size of a part is {V}; it must be 0 or more");
    b.require(Requirement::equal(below.clone(), Dim::ZERO).stated(text, &[&-below]))?;
    let sum = b.reduce(ReduceFn::Sum, sizes, &[0])?;
    let sum = b.sizes(sum, &|_| None)?.remove(0);
    b.require(Requirement::equal(sum, whole.clone()).says(name, rule))?;
    let [before, _, after] = about(&shape, axis);
    let mut data = x;
    if before != Dim::ONE {
        let rows = before.clone() * whole.clone();
        let places = places(b, sizes, &before, &whole)?;
        let places = b.reshape(places, vec![rows.clone()])?;
        let number = b.iota(vec![rows.clone()], 0)?;
        let none = b.expand(zero, vec![rows.clone()])?;
        let scatter = Op::ScatterElements { axis: 0, combine: None };
        let sources = b.emit1(scatter, &[none, places, number])?;
        let table = b.reshape(x, vec![rows, after])?;
        data = b.emit1(Op::Gather { axis: 0 }, &[table, sources])?;
    }
    let data = b.reshape(data, vec![product(&shape)])?;
    with_sizes(b, &shape, axis, sizes, data)
}

/// A sequence of parts with these sizes, a vector, along an axis, and with the other dims of `shape`.
fn with_sizes(
    b: &mut Builder<'_>,
    shape: &[Dim],
    axis: usize,
    sizes: ValueId,
    data: ValueId,
) -> Result<Item> {
    let count = b.shape(sizes)[0].clone();
    let mut columns = vec![];
    for dims in [&shape[..axis], &shape[axis + 1..]].map(<[Dim]>::to_vec) {
        let row = shape_rows(b, std::slice::from_ref(&dims))?;
        columns.push(b.expand(row, vec![count.clone(), Dim::from(dims.len())])?);
    }
    columns.insert(1, b.reshape(sizes, vec![count, Dim::ONE])?);
    columns.retain(|&column| b.shape(column)[1] != Dim::ZERO);
    let shapes = b.concat(&columns, 1)?;
    let mut dims: Vec<Option<Dim>> = shape.iter().cloned().map(Some).collect();
    dims[axis] = None;
    Ok(Packed { elements: Elements::Ranked(dims), shapes, data }.item())
}

/// `[before, size, after]` of a shape about an axis.
fn about(shape: &[Dim], axis: usize) -> [Dim; 3] {
    [product(&shape[..axis]), shape[axis].clone(), product(&shape[axis + 1..])]
}

/// The whole number of times that `by`, above 0, goes into `dim`.
fn quotient(b: &mut Builder<'_>, dim: &Dim, by: &Dim) -> Result<Dim> {
    if let Some(quotient) = dim.floor_div(by).filter(|_| by.is_const()) {
        return Ok(quotient);
    }
    let (whole, by) = (b.dim_scalar(dim)?, b.dim_scalar(by)?);
    let by = b.binary_scalar(BinaryFn::Max, by, 1.0)?;
    let quotient = b.binary(BinaryFn::Div, whole, by)?;
    Ok(b.sizes(quotient, &|_| Some(dim.clone()))?.remove(0))
}

/// Where the rows of a tensor `[before, total, ..]` stand among those of its parts, of these sizes along axis 1, one part
/// behind the other: i64 `[before, total]`.
fn places(b: &mut Builder<'_>, sizes: ValueId, before: &Dim, total: &Dim) -> Result<ValueId> {
    let count = b.shape(sizes)[0].clone();
    let sum = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false };
    let ends = b.emit1(sum, &[sizes])?;
    let starts = b.binary(BinaryFn::Sub, ends, sizes)?;
    // The index of a row's part is the number of parts that end before it.
    let place = b.iota(vec![total.clone(), Dim::ONE], 0)?;
    let row = b.reshape(ends, vec![Dim::ONE, count])?;
    let ended = b.compare(CompareFn::Le, row, place)?;
    let ended = b.cast(ended, DType::I64)?;
    let part = b.reduce(ReduceFn::Sum, ended, &[1])?;
    let part = b.reshape(part, vec![total.clone()])?;
    let start = b.emit1(Op::Gather { axis: 0 }, &[starts, part])?;
    let size = b.emit1(Op::Gather { axis: 0 }, &[sizes, part])?;
    let place = b.reshape(place, vec![total.clone()])?;
    let inside = b.binary(BinaryFn::Sub, place, start)?;
    let lead = b.dim_scalar(before)?;
    let first = b.binary(BinaryFn::Mul, start, lead)?;
    let first = b.binary(BinaryFn::Add, first, inside)?;
    let line = b.iota(vec![before.clone(), Dim::ONE], 0)?;
    let lines = b.binary(BinaryFn::Mul, line, size)?;
    b.binary(BinaryFn::Add, first, lines)
}

/// The elements of a sequence joined along an axis, which may be a new one. `rank` is the declared one of the result, for a sequence that
/// does not have the rank of its elements.
pub fn concat(
    b: &mut Builder<'_>,
    item: &Item,
    axis: i64,
    new_axis: bool,
    rank: Option<usize>,
) -> Result<ValueId> {
    if let Some(list) = item.listed().filter(|list| !list.is_empty()) {
        let rank = b.rank(list[0]);
        if let Some(&other) = list.iter().find(|&&element| b.rank(element) != rank) {
            return malformed(format!("elements {} and {} are joined", b.ty(list[0]), b.ty(other)));
        }
        let axis = normalize_axis(axis, rank + usize::from(new_axis))?;
        let mut list = list.to_vec();
        if new_axis {
            list = list.into_iter().map(|part| b.unsqueeze(part, &[axis])).collect::<Result<_>>()?;
        }
        return b.concat(&list, axis);
    }
    let Some(packed) = Packed::of(b, item)? else {
        return malformed("the elements of a sequence that has none are joined");
    };
    let (shapes, dims) = ranked(b, &packed, rank.and_then(|rank| rank.checked_sub(usize::from(new_axis))))?;
    let axis = normalize_axis(axis, dims.len() + usize::from(new_axis))?;
    let joined = Some(axis).filter(|_| !new_axis);
    let count = packed.count(b);
    let mut sizes: Vec<Dim> = vec![];
    for (at, dim) in dims.iter().enumerate() {
        sizes.push(match dim {
            Some(dim) => dim.clone(),
            None if joined == Some(at) => Dim::ZERO,
            None => common_size(b, shapes, at)?,
        });
    }
    let Some(axis) = joined else {
        let whole: Vec<Dim> = std::iter::once(&count).chain(&sizes).cloned().collect();
        let whole = b.reshape(packed.data, whole)?;
        let mut perm: Vec<usize> = (1..=dims.len()).collect();
        perm.insert(axis, 0);
        return b.transpose(whole, &perm);
    };
    let [before, _, after] = about(&sizes, axis);
    if let Some(size) = &dims[axis] {
        let parts = vec![count.clone(), before, size.clone(), after];
        let parts = b.reshape(packed.data, parts)?;
        let parts = b.transpose(parts, &[1, 0, 2, 3])?;
        sizes[axis] = count * size.clone();
        return b.reshape(parts, sizes);
    }
    let column = b.slice_axis(shapes, 1, Dim::from(axis), Dim::ONE)?;
    let column = b.reshape(column, vec![count])?;
    let sum = b.reduce(ReduceFn::Sum, column, &[0])?;
    let most = packed.total(b);
    let total = b.sizes(sum, &|_| Some(most.clone()).filter(|_| sizes.len() == 1))?.remove(0);
    sizes[axis] = total.clone();
    let mut data = packed.data;
    if before != Dim::ONE {
        let table = b.reshape(data, vec![before.clone() * total.clone(), after])?;
        let places = places(b, column, &before, &total)?;
        data = b.emit1(Op::Gather { axis: 0 }, &[table, places])?;
    }
    b.reshape(data, sizes)
}

/// The shapes and known dims of elements of one rank, which must be `rank` where the sequence does not have it.
fn ranked(b: &mut Builder<'_>, packed: &Packed, rank: Option<usize>) -> Result<(ValueId, Vec<Option<Dim>>)> {
    let axes = match &packed.elements {
        Elements::Ranked(dims) => return Ok((packed.shapes, dims.clone())),
        Elements::Mixed(axes) => axes.clone(),
    };
    let Some(rank) = rank else { return super::unknown_rank() };
    let (zero, none) = (b.scalar(DType::I64, 0.0), b.scalar(DType::I64, -1.0));
    let there = b.compare(CompareFn::Ge, packed.shapes, zero)?;
    let there = b.cast(there, DType::I64)?;
    let ranks = b.reduce(ReduceFn::Sum, there, &[1])?;
    let wanted = b.scalar(DType::I64, rank as f64);
    let fits = b.compare(CompareFn::Eq, ranks, wanted)?;
    let fits = b.reduce(ReduceFn::And, fits, &[0, 1])?;
    let fits = b.reshape(fits, vec![])?;
    let text = format!("an element has another rank than the one that is declared, which is {rank}");
    require_true(b, fits, &text, &[])?;
    let rank_dim = Dim::from(rank);
    let more = axes.max_dim(&rank_dim) - axes;
    let shapes = b.pad(packed.shapes, none, vec![Dim::ZERO; 2], vec![Dim::ZERO, more])?;
    Ok((b.slice_axis(shapes, 1, Dim::ZERO, rank_dim)?, vec![None; rank]))
}

/// The size that all elements have along an axis, which is that of the first; a run in which another differs fails.
fn common_size(b: &mut Builder<'_>, shapes: ValueId, axis: usize) -> Result<Dim> {
    let column = b.slice_axis(shapes, 1, Dim::from(axis), Dim::ONE)?;
    let first = b.slice_axis(column, 0, Dim::ZERO, Dim::ONE)?;
    let equal = b.compare(CompareFn::Eq, column, first)?;
    let equal = b.reduce(ReduceFn::And, equal, &[0, 1])?;
    let equal = b.reshape(equal, vec![])?;
    let first = b.sizes(first, &|_| None)?.remove(0);
    let text = format!(
        "dimension {axis} of the first element is {V}, and that of another one is not; they must be equal"
    );
    require_true(b, equal, &text, &[&first])?;
    Ok(first)
}
