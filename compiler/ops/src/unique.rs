//! Unique: elements, or slices along an axis, without repetitions.
//!
//! A stable sort brings equal ones together; the first of each run is where the element occurs first. Slices sort by
//! one element after the other, from the last to the first.

use super::dynamic::true_positions;
use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Graph, Op, TensorType};

pub const ROWS: &[OpDef] = &[UNIQUE, UNIQUE.since(28).types(&[("T", ALL_BF16)])];

const UNIQUE: OpDef = op("Unique", 11, unique)
    .inputs(&[req("X", "T")])
    .outputs(OUTPUTS)
    .attributes(&[optional("axis", Int), int("sorted", 1)])
    .types(&[("T", ALL)])
    .doc("Elements or slices without repetitions, where they occur and how often");

const OUTPUTS: &[Param] = &[
    req("Y", "T"),
    opt("indices", "tensor(int64)"),
    opt("inverse_indices", "tensor(int64)"),
    opt("counts", "tensor(int64)"),
];

/// Items that are compared, in sorted order.
struct Sorted {
    /// Where each comes from: i64 `[n]`.
    from: ValueId,
    /// Whether each differs from the one before it: bool `[n]`.
    first: ValueId,
}

/// NaNs are equal to each other, as in NumPy.
fn unique(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let in_order = cx.int("sorted")? != 0;
    let axis = match cx.optional_int("axis")? {
        Some(axis) => Some(normalize_axis(axis, cx.b.rank(cx.input("X")?))?),
        None => None,
    };
    unique_along(cx, axis, in_order)
}

/// The distinct slices of the first input along an axis, or its elements; in their order, or else as they come.
pub fn unique_along(cx: &mut NodeCx<'_, '_>, axis: Option<usize>, in_order: bool) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    let b = &mut *cx.b;
    let (items, count) = match axis {
        Some(axis) => (x, b.shape(x)[axis].clone()),
        None => {
            let count = b.ty(x).elements();
            (b.reshape(x, vec![count.clone()])?, count)
        }
    };
    let axis = axis.unwrap_or(0);
    let keys = comparable(b, items)?;
    let sorted = if b.rank(keys) == 1 { sorted_elements(b, keys)? } else { sorted_slices(b, keys, axis)? };

    // Each distinct item, in sorted order: its first occurrence, and how often there is one.
    let starts = true_positions(cx, sorted.first)?;
    let distinct = cx.b.shape(starts)[0].clone();
    let mut indices = cx.b.emit1(Op::Gather { axis: 0 }, &[sorted.from, starts])?;
    let mut counts = run_lengths(cx, starts, &count, &distinct)?;
    let ones = cx.b.cast(sorted.first, DType::I64)?;
    let running = Op::Cumulate { op: ReduceFn::Sum, axis: 0, exclusive: false, reverse: false };
    let mut number = cx.b.emit1(running, &[ones])?;
    number = cx.b.binary_scalar(BinaryFn::Sub, number, 1.0)?;
    if !in_order {
        let (_, by_place) = cx.b.sort(indices, 0, false, distinct.clone())?;
        indices = cx.b.emit1(Op::Gather { axis: 0 }, &[indices, by_place])?;
        counts = cx.b.emit1(Op::Gather { axis: 0 }, &[counts, by_place])?;
        let rank = inverse(cx.b, by_place)?;
        number = cx.b.emit1(Op::Gather { axis: 0 }, &[rank, number])?;
    }
    let zero = cx.b.scalar(DType::I64, 0.0);
    let empty = cx.b.expand(zero, vec![count])?;
    let scatter = Op::ScatterElements { axis: 0, combine: None };
    let inverse_indices = cx.b.emit1(scatter, &[empty, sorted.from, number])?;
    let y = cx.b.emit1(Op::Gather { axis }, &[items, indices])?;
    Ok(vec![y, indices, inverse_indices, counts])
}

/// Lengths of the runs that start at `starts`, of `count` items in all.
fn run_lengths(cx: &mut NodeCx<'_, '_>, starts: ValueId, count: &Dim, distinct: &Dim) -> Result<ValueId> {
    let end = dim(cx, count)?;
    let end = cx.b.reshape(end, vec![Dim::ONE])?;
    let all = cx.b.concat(&[starts, end], 0)?;
    let next = cx.b.slice_axis(all, 0, Dim::ONE, distinct.clone())?;
    cx.b.binary(BinaryFn::Sub, next, starts)
}

/// The inverse of a permutation.
fn inverse(b: &mut Builder<'_>, permutation: ValueId) -> Result<ValueId> {
    let shape = b.shape(permutation);
    let index = b.iota(shape.clone(), 0)?;
    let zero = b.scalar(DType::I64, 0.0);
    let empty = b.expand(zero, shape)?;
    b.emit1(Op::ScatterElements { axis: 0, combine: None }, &[empty, permutation, index])
}

/// What can be compared: bools as bytes, and complex numbers as their parts, `[.., 2]`, the real one first.
fn comparable(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    if let Some((real, imaginary)) = b.parts(x)? {
        let last = b.rank(x);
        let (real, imaginary) = (b.unsqueeze(real, &[last])?, b.unsqueeze(imaginary, &[last])?);
        return b.concat(&[real, imaginary], last);
    }
    match b.dtype(x) {
        DType::Str => super::strings::ranks(b, x),
        DType::Bool => b.cast(x, DType::U8),
        _ => Ok(x),
    }
}

/// Whether `a` is not `c`; NaNs are all one.
fn differs(b: &mut Builder<'_>, a: ValueId, c: ValueId) -> Result<ValueId> {
    let other = b.compare(CompareFn::Ne, a, c)?;
    if !b.dtype(a).is_float() {
        return Ok(other);
    }
    let (left, right) = (b.unary(UnaryFn::IsNan, a)?, b.unary(UnaryFn::IsNan, c)?);
    let both = b.binary(BinaryFn::And, left, right)?;
    let not_both = b.unary(UnaryFn::Not, both)?;
    b.binary(BinaryFn::And, other, not_both)
}

/// `x: [n, ..]`, and `x` with each item replaced by the one before it, the first by itself.
fn with_previous(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let count = b.shape(x)[0].clone();
    let index = b.iota(vec![count], 0)?;
    let before = b.binary_scalar(BinaryFn::Sub, index, 1.0)?;
    let before = b.binary_scalar(BinaryFn::Max, before, 0.0)?;
    b.emit1(Op::Gather { axis: 0 }, &[x, before])
}

/// bool `[n]`: `changed`, or the first of all.
fn or_first(b: &mut Builder<'_>, changed: ValueId) -> Result<ValueId> {
    let count = b.shape(changed)[0].clone();
    let index = b.iota(vec![count], 0)?;
    let zero = b.scalar(DType::I64, 0.0);
    let first = b.compare(CompareFn::Eq, index, zero)?;
    b.binary(BinaryFn::Or, changed, first)
}

fn sorted_elements(b: &mut Builder<'_>, x: ValueId) -> Result<Sorted> {
    let count = b.shape(x)[0].clone();
    let (keys, from) = b.sort(x, 0, false, count)?;
    let before = with_previous(b, keys)?;
    let changed = differs(b, keys, before)?;
    Ok(Sorted { from, first: or_first(b, changed)? })
}

/// Slices along `axis` in the order of their elements.
fn sorted_slices(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<Sorted> {
    let count = b.shape(x)[axis].clone();
    let mut perm: Vec<usize> = (0..b.rank(x)).filter(|&at| at != axis).collect();
    perm.push(axis);
    // [elements of a slice, slices]
    let columns = b.transpose(x, &perm)?;
    let shape = b.shape(columns);
    let size = onnxc_ir::graph::dim::product(&shape[..shape.len() - 1]);
    let columns = b.reshape(columns, vec![size.clone(), count.clone()])?;
    let start = b.iota(vec![count.clone()], 0)?;
    let body = sort_by_column(b, columns, &count)?;
    let op = Op::scan(body, size, 1, 1, vec![true]);
    let from = b.emit(op, &[start, columns])?[0];
    let sorted = b.emit1(Op::Gather { axis: 1 }, &[columns, from])?;
    let sorted = b.transpose(sorted, &[1, 0])?;
    let before = with_previous(b, sorted)?;
    let changed = differs(b, sorted, before)?;
    let changed = b.reduce(ReduceFn::Or, changed, &[1])?;
    let changed = b.squeeze(changed, &[1])?;
    Ok(Sorted { from, first: or_first(b, changed)? })
}

/// State: an order of the slices; scanned: one element of each. Gives the order sorted by it, stably.
fn sort_by_column(outer: &Builder<'_>, columns: ValueId, count: &Dim) -> Result<Graph> {
    let (mut body, origin) = outer.body();
    let mut b = Builder::new(&mut body, origin);
    let vector = |dtype: DType| TensorType::new(dtype, vec![count.clone()]);
    let order = b.input("order", vector(DType::I64), None);
    let column = b.input("column", vector(outer.dtype(columns)), None);
    let keys = b.emit1(Op::Gather { axis: 0 }, &[column, order])?;
    let (_, places) = b.sort(keys, 0, false, count.clone())?;
    let next = b.emit1(Op::Gather { axis: 0 }, &[order, places])?;
    body.outputs = vec![(String::new(), next)];
    Ok(body)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, parts};

    #[test]
    fn elements_in_order_or_as_they_come() {
        let case = |sorted| {
            Case::new("Unique", 11)
                .input::<f32>(&[2, 3], &[2.0, 1.0, 1.0, 3.0, 4.0, 3.0])
                .int("sorted", sorted)
                .outputs(4)
        };
        case(1).gives(0, &[4], &[1.0, 2.0, 3.0, 4.0]);
        case(1).gives(1, &[4], &[1.0, 0.0, 3.0, 4.0]);
        case(1).gives(2, &[6], &[1.0, 0.0, 0.0, 2.0, 3.0, 2.0]);
        case(1).gives(3, &[4], &[2.0, 1.0, 2.0, 1.0]);
        case(0).gives(0, &[4], &[2.0, 1.0, 3.0, 4.0]);
        case(0).gives(1, &[4], &[0.0, 1.0, 3.0, 4.0]);
        case(0).gives(2, &[6], &[0.0, 1.0, 1.0, 2.0, 3.0, 2.0]);
        case(0).gives(3, &[4], &[1.0, 2.0, 2.0, 1.0]);
    }

    #[test]
    fn slices_along_an_axis() {
        let rows = Case::new("Unique", 28)
            .symbolic::<i64>(&["n", "m"], &[4, 2], &[2, 3, 1, 0, 2, 3, 1, -1])
            .int("axis", 0)
            .outputs(4);
        rows.gives(0, &[3, 2], &[1.0, -1.0, 1.0, 0.0, 2.0, 3.0]);
        rows.gives(1, &[3], &[3.0, 1.0, 0.0]);
        rows.gives(2, &[4], &[2.0, 1.0, 2.0, 0.0]);
        rows.gives(3, &[3], &[1.0, 1.0, 2.0]);
        let planes = Case::new("Unique", 11)
            .input::<f32>(&[2, 4, 2], &[1., 1., 0., 1., 2., 1., 0., 1., 1., 1., 0., 1., 2., 1., 0., 1.])
            .int("axis", -2)
            .outputs(3);
        planes.gives(0, &[2, 3, 2], &[0., 1., 1., 1., 2., 1., 0., 1., 1., 1., 2., 1.]);
        planes.gives(2, &[4], &[1.0, 0.0, 2.0, 0.0]);
    }

    #[test]
    fn complex_numbers_by_real_and_then_imaginary_part() {
        let values = [2.0, 1.0, 1.0, 5.0, 2.0, -1.0, 1.0, 5.0, -0.0, 3.0];
        let case = Case::new("Unique", 11).complex(&[5], &values).outputs(4);
        let found = case.run().unwrap();
        assert_eq!(parts(&found[0]), [-0.0, 3.0, 1.0, 5.0, 2.0, -1.0, 2.0, 1.0]);
        case.gives(1, &[4], &[4.0, 1.0, 2.0, 0.0]);
        case.gives(2, &[5], &[3.0, 1.0, 2.0, 1.0, 0.0]);
        case.gives(3, &[4], &[1.0, 2.0, 1.0, 1.0]);
        let rows = Case::new("Unique", 11).complex(&[3, 1], &[1.0, 2.0, 1.0, -2.0, 1.0, 2.0]).int("axis", 0);
        assert_eq!(parts(&rows.run().unwrap()[0]), [1.0, -2.0, 1.0, 2.0]);
    }

    #[test]
    fn bools_nan_and_nothing() {
        Case::new("Unique", 11).input::<bool>(&[3], &[true, false, true]).gives(0, &[2], &[0.0, 1.0]);
        let nan = f32::NAN;
        let case = Case::new("Unique", 11).input::<f32>(&[4], &[nan, 1.0, nan, -0.0]).outputs(4);
        case.gives(0, &[3], &[0.0, 1.0, nan as f64]);
        case.gives(3, &[3], &[1.0, 1.0, 2.0]);
        Case::new("Unique", 11).symbolic::<f32>(&["n"], &[0], &[]).outputs(4).gives(2, &[0], &[]);
    }
}
