//! How operations run in another axis order.
//!
//! A value in layout `p` is held as a base tensor with `value.shape[i] == base.shape[p[i]]`, that is
//! `value == transpose(base, p)`. [`relayout`] gives the operation and the operand layouts for a result in a wanted layout; [`propagate`]
//! gives the result layout that an operand's layout suggests.

use std::ops::Range;

use crate::rewrite::{is_one, reshape_groups};
use onnxc_ir::graph::axes::Source;
use onnxc_ir::graph::{Dim, Op, TensorType, inverse};

/// A permutation of a value's axes: axis `i` of the value is axis `layout[i]` of the base.
pub(super) type Layout = Vec<usize>;

/// The shape of the base of a value of `shape`.
pub(super) fn base_shape(shape: &[Dim], layout: &[usize]) -> Vec<Dim> {
    inverse(layout).iter().map(|&axis| shape[axis].clone()).collect()
}

/// A per-axis attribute, moved to the base's axes.
fn permuted<T: Clone>(values: &[T], layout: &[usize]) -> Vec<T> {
    inverse(layout).iter().map(|&axis| values[axis].clone()).collect()
}

pub(super) fn identity(rank: usize) -> Layout {
    (0..rank).collect()
}

/// The layout of a value of rank `layout.len()` with leading axes of size 1 added up to `rank`.
pub(super) fn extended(layout: &[usize], rank: usize) -> Layout {
    let lead = rank - layout.len();
    (0..lead).chain(layout.iter().map(|&axis| axis + lead)).collect()
}

/// The operation and the operand layouts that give the result in layout `to`. An operand layout of
/// greater rank than the operand is that of the operand with leading axes of size 1.
pub(super) fn relayout(
    op: &Op,
    inputs: &[&TensorType],
    result: &TensorType,
    to: &[usize],
) -> Option<(Op, Vec<Layout>)> {
    let moved_axes = |axes: &[usize]| {
        let mut axes: Vec<usize> = axes.iter().map(|&axis| to[axis]).collect();
        axes.sort_unstable();
        axes
    };
    let all = |op: Op| Some((op, vec![to.to_vec(); inputs.len()]));
    match op {
        Op::Map(_) => all(op.clone()),
        Op::Reduce { op: function, axes } => all(Op::Reduce { op: *function, axes: moved_axes(axes) }),
        Op::ArgReduce { max, axis, last } => all(Op::ArgReduce { max: *max, axis: to[*axis], last: *last }),
        Op::Cumulate { op: function, axis, exclusive, reverse } => {
            all(Op::Cumulate { op: *function, axis: to[*axis], exclusive: *exclusive, reverse: *reverse })
        }
        Op::Concat { axis } => all(Op::Concat { axis: to[*axis] }),
        Op::Expand { .. } => all(Op::Expand { shape: base_shape(&result.shape, to) }),
        Op::Slice { starts, steps, sizes } => all(Op::Slice {
            starts: permuted(starts, to),
            steps: permuted(steps, to),
            sizes: permuted(sizes, to),
        }),
        Op::Pad { lo, hi } => {
            Some((Op::Pad { lo: permuted(lo, to), hi: permuted(hi, to) }, vec![to.to_vec(), vec![]]))
        }
        Op::Window { first, kernel, strides, dilations } => {
            // The window axes and the kernel axes must each stay together, in order.
            let base = together(to, *first, 2 * kernel.len())?;
            let (kernel, strides, dilations) = (kernel.clone(), strides.clone(), dilations.clone());
            let base = Op::Window { first: base, kernel, strides, dilations };
            let layout = operand_layout((op, &base), inputs, result, to)?;
            Some((base, vec![layout]))
        }
        Op::Gather { axis } => {
            // The axes of the indices stay together. A scalar index has none; its axis goes to the front of the base.
            let base = match inputs[1].rank() {
                0 => 0,
                rank => together(to, *axis, rank)?,
            };
            let base = Op::Gather { axis: base };
            let layout = operand_layout((op, &base), inputs, result, to)?;
            Some((base, vec![layout, identity(inputs[1].rank())]))
        }
        Op::Reshape { .. } => {
            let groups = reshape_groups(&inputs[0].shape, &result.shape)?;
            let (from, onto): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
            let layout = map_groups(&onto, &from, &result.shape, inputs[0].rank(), to)?;
            Some((Op::Reshape { shape: base_shape(&result.shape, to) }, vec![layout]))
        }
        Op::Contract { batch, m, k, .. } => {
            // Rows may come in any order.
            let rows = *batch..batch + m;
            let in_rows =
                |(at, &axis): (usize, &usize)| at == axis || (rows.contains(&at) && rows.contains(&axis));
            if !to.iter().enumerate().all(in_rows) {
                return None;
            }
            let lhs = to[..batch + m].iter().copied().chain(batch + m..batch + m + k).collect();
            Some((op.clone(), vec![lhs, identity(inputs[1].rank())]))
        }
        _ => None,
    }
}

/// The result layout that operand `which` in layout `from` suggests: the one in which the operation runs on
/// the operand's base, where there is one, or at least needs less to be moved.
pub(super) fn propagate(
    op: &Op,
    inputs: &[&TensorType],
    result: &TensorType,
    which: usize,
    from: &[usize],
) -> Option<Layout> {
    let rank = result.rank();
    match op {
        Op::Map(_) | Op::Expand { .. } if from.len() <= rank => Some(extended(from, rank)),
        Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Cumulate { .. }
        | Op::Concat { .. }
        | Op::Slice { .. } => Some(from.to_vec()),
        Op::Pad { .. } if which == 0 => Some(from.to_vec()),
        Op::Window { first, kernel, strides, dilations } => {
            let first = together(from, *first, kernel.len())?;
            let (kernel, strides, dilations) = (kernel.clone(), strides.clone(), dilations.clone());
            let base = Op::Window { first, kernel, strides, dilations };
            Some(result_layout((op, &base), inputs, result, from))
        }
        Op::Gather { axis } if which == 0 => {
            Some(result_layout((op, &Op::Gather { axis: from[*axis] }), inputs, result, from))
        }
        Op::Reshape { .. } => {
            let groups = reshape_groups(&inputs[0].shape, &result.shape)?;
            let (left, right): (Vec<_>, Vec<_>) = groups.into_iter().unzip();
            map_groups(&left, &right, &inputs[0].shape, rank, from)
                .or_else(|| Some(gathered_groups(&left, &right, &inputs[0].shape, rank, from)))
        }
        Op::Contract { batch, m, k, .. } if which == 0 => {
            let outside = (batch + m..batch + m + k).chain(0..*batch);
            if outside.into_iter().any(|axis| from[axis] != axis) {
                return None;
            }
            Some(from[..batch + m].iter().copied().chain([batch + m]).collect())
        }
        _ => None,
    }
}

/// The first place of `count` axes from `first` on, if they lie together in the base, in order.
fn together(layout: &[usize], first: usize, count: usize) -> Option<usize> {
    let base = *layout.get(first)?;
    (0..count).all(|at| layout[first + at] == base + at).then_some(base)
}

/// The result's layout where an operation runs as `base` on an operand in layout `from`: an axis of it is where that of the base is which
/// follows the same axis of the operand. Other operands stay.
fn result_layout(
    (op, base): (&Op, &Op),
    inputs: &[&TensorType],
    result: &TensorType,
    from: &[usize],
) -> Layout {
    let mut to = identity(result.rank());
    for operand in 0..inputs.len() {
        let moved = base.sources(operand, inputs, result);
        for (axis, source) in op.sources(operand, inputs, result).iter().enumerate() {
            let place = if operand == 0 { from[axis] } else { axis };
            source.axes().into_iter().zip(moved[place].axes()).for_each(|(own, place)| to[own] = place);
        }
    }
    to
}

/// The layout of the first operand for a result in layout `to` that `base` gives.
fn operand_layout(
    (op, base): (&Op, &Op),
    inputs: &[&TensorType],
    result: &TensorType,
    to: &[usize],
) -> Option<Layout> {
    let moved = base.sources(0, inputs, result);
    let place = |source: &Source| {
        // What follows no axis is picked, and there is one such axis.
        let wanted = source.axes().first().map(|&axis| to[axis]);
        moved.iter().position(|other| other.axes().first().copied() == wanted)
    };
    op.sources(0, inputs, result).iter().map(place).collect()
}

/// For each group of axes of a shape in `layout`, the base positions of its axes, counted without axes
/// of size 1.
fn positions(groups: &[Range<usize>], shape: &[Dim], layout: &[usize]) -> Vec<Vec<usize>> {
    let compact = |axis: usize| {
        (0..shape.len()).filter(|&other| !is_one(&shape[other]) && layout[other] < layout[axis]).count()
    };
    let of_group =
        |group: &Range<usize>| group.clone().filter(|&axis| !is_one(&shape[axis])).map(compact).collect();
    groups.iter().map(of_group).collect()
}

/// Axes of the groups of one side, numbered group by group in ascending order of `keys`. A group without a key
/// (all its axes have size 1) follows the group before it.
fn numbered(groups: &[Range<usize>], rank: usize, keys: &[Option<usize>]) -> Layout {
    let mut last = 0;
    let filled: Vec<usize> =
        keys.iter().map(|key| *key.as_ref().inspect(|&&key| last = key).unwrap_or(&last)).collect();
    let mut order: Vec<usize> = (0..groups.len()).collect();
    order.sort_by_key(|&group| filled[group]);
    let mut layout = vec![0; rank];
    for (at, axis) in order.into_iter().flat_map(|group| groups[group].clone()).enumerate() {
        layout[axis] = at;
    }
    layout
}

/// Carries a layout across a reshape, from the axes of `these` groups to those of the `other` side: the
/// axes of each group must lie together in the base, in order.
fn map_groups(
    these: &[Range<usize>],
    others: &[Range<usize>],
    shape: &[Dim],
    other_rank: usize,
    layout: &[usize],
) -> Option<Layout> {
    let positions = positions(these, shape, layout);
    if positions.iter().any(|group| group.windows(2).any(|pair| pair[1] != pair[0] + 1)) {
        return None;
    }
    let keys: Vec<Option<usize>> = positions.iter().map(|group| group.first().copied()).collect();
    Some(numbered(others, other_rank, &keys))
}

/// The layout of the other side when the axes of each group are first brought together, at the place of the
/// innermost of them.
fn gathered_groups(
    these: &[Range<usize>],
    others: &[Range<usize>],
    shape: &[Dim],
    other_rank: usize,
    layout: &[usize],
) -> Layout {
    let keys: Vec<Option<usize>> =
        positions(these, shape, layout).iter().map(|group| group.iter().max().copied()).collect();
    numbered(others, other_rank, &keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::DType;

    fn ty(sizes: &[i64]) -> TensorType {
        TensorType::new(DType::F32, sizes.iter().map(|&size| Dim::from(size)).collect())
    }

    /// A channels-first value on a channels-last base.
    const NCHW: [usize; 4] = [0, 3, 1, 2];

    #[test]
    fn window_layouts_are_inverse() {
        let (kernel, ones) = (vec![3, 3], vec![1, 1]);
        let op = Op::Window { first: 2, kernel, strides: ones.clone(), dilations: ones };
        let (x, y) = (ty(&[2, 8, 5, 6]), ty(&[2, 8, 3, 4, 3, 3]));
        let to = propagate(&op, &[&x], &y, 0, &NCHW).unwrap();
        assert_eq!(to, [0, 5, 1, 2, 3, 4]);
        let (base, layouts) = relayout(&op, &[&x], &y, &to).unwrap();
        assert!(matches!(base, Op::Window { first: 1, .. }), "{base:?}");
        assert_eq!(layouts, [NCHW.to_vec()]);
        assert_eq!(propagate(&op, &[&x], &y, 0, &[0, 1, 3, 2]), None);
    }

    #[test]
    fn gather_layouts_are_inverse() {
        let (op, x) = (Op::Gather { axis: 1 }, ty(&[2, 8, 5, 6]));
        for rank in 0..3 {
            let index = ty(&[3, 4][..rank]);
            let y = ty(&[&[2], &[3, 4][..rank], &[5, 6]].concat());
            let to = propagate(&op, &[&x, &index], &y, 0, &NCHW).unwrap();
            assert_eq!(to[..], [&[0, 1, 2][..], &[0, 3, 1, 2], &[0, 3, 4, 1, 2]][rank][..]);
            let (base, layouts) = relayout(&op, &[&x, &index], &y, &to).unwrap();
            // The axis of a scalar index goes to the front.
            let (axis, layout) = if rank == 0 { (0, [1, 0, 2, 3]) } else { (3, NCHW) };
            assert_eq!((base, &layouts[0][..]), (Op::Gather { axis }, &layout[..]));
        }
    }

    #[test]
    fn flatten_of_a_pooled_map_keeps_the_base() {
        let op = Op::Reshape { shape: ty(&[8, 64]).shape };
        let (from, to) = (ty(&[8, 64, 1, 1]), ty(&[8, 64]));
        assert_eq!(propagate(&op, &[&from], &to, 0, &NCHW), Some(vec![0, 1]));
    }

    #[test]
    fn splitting_channels_keeps_them_innermost() {
        let (from, to) = (ty(&[2, 12, 5, 6]), ty(&[2, 3, 4, 5, 6]));
        let op = Op::Reshape { shape: to.shape.clone() };
        let layout = propagate(&op, &[&from], &to, 0, &NCHW).unwrap();
        assert_eq!(layout, [0, 3, 4, 1, 2]);
        let (_, operands) = relayout(&op, &[&from], &to, &layout).unwrap();
        assert_eq!(operands, [NCHW.to_vec()]);
    }

    #[test]
    fn rows_of_a_contraction_may_be_permuted() {
        let op = Op::Contract { batch: 0, m: 2, k: 1, rhs: onnxc_ir::graph::RhsLayout::Plain };
        let (a, b, out) = (ty(&[4, 5, 6]), ty(&[6, 7]), ty(&[4, 5, 7]));
        assert_eq!(propagate(&op, &[&a, &b], &out, 0, &[1, 0, 2]), Some(vec![1, 0, 2]));
        assert_eq!(propagate(&op, &[&a, &b], &out, 0, &[0, 2, 1]), None);
        assert_eq!(relayout(&op, &[&a, &b], &out, &[2, 1, 0]), None);
    }
}
