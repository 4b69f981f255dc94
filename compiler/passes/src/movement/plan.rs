//! How operations run in another axis order.
//!
//! A value in layout `p` is held as a base tensor with `value.shape[i] == base.shape[p[i]]`, that is
//! `value == transpose(base, p)`. [`relayout`] gives the operation and the operand layouts for a result in a wanted layout; [`propagate`]
//! gives the result layout that an operand's layout suggests.

use std::ops::Range;

use crate::rewrite::{is_one, reshape_groups};
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
///
/// Not [`ways`](onnxc_ir::graph::axes::ways), which says that an axis follows another, not what becomes of the operation's own axes,
/// sizes and borders when all of them move.
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
            let (first, layout) = window_operand(to, *first, kernel.len())?;
            let (kernel, strides, dilations) = (kernel.clone(), strides.clone(), dilations.clone());
            Some((Op::Window { first, kernel, strides, dilations }, vec![layout]))
        }
        Op::Gather { axis } => {
            let (axis, layout) = gather_operand(to, *axis, inputs[1].rank())?;
            Some((Op::Gather { axis }, vec![layout, identity(inputs[1].rank())]))
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
        Op::Window { first, kernel, .. } => window_result(from, *first, kernel.len()),
        Op::Gather { axis } if which == 0 => Some(gather_result(from, *axis, inputs[1].rank())),
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

/// Operand side of a window whose result is wanted in layout `to`: the base's first window axis and the
/// operand's layout. The window axes and the kernel axes must each stay together, in order.
fn window_operand(to: &[usize], first: usize, count: usize) -> Option<(usize, Layout)> {
    let base_first = *to.get(first)?;
    let together = (0..2 * count).all(|at| to[first + at] == base_first + at);
    if !together {
        return None;
    }
    let kernel = base_first + count;
    let narrow = |axis: usize| if axis < kernel { axis } else { axis - count };
    let outside = |at: &usize| !(first + count..first + 2 * count).contains(at);
    Some((base_first, (0..to.len()).filter(outside).map(|at| narrow(to[at])).collect()))
}

fn window_result(from: &[usize], first: usize, count: usize) -> Option<Layout> {
    let base_first = *from.get(first)?;
    if (0..count).any(|at| from[first + at] != base_first + at) {
        return None;
    }
    let end = base_first + count;
    let widen = |axis: usize| if axis < end { axis } else { axis + count };
    let mut to: Layout = from[..first + count].iter().map(|&axis| widen(axis)).collect();
    to.extend((0..count).map(|at| end + at));
    to.extend(from[first + count..].iter().map(|&axis| widen(axis)));
    Some(to)
}

/// Data side of a gather: the base's axis and the data's layout. The axes of the indices stay together.
fn gather_operand(to: &[usize], axis: usize, rank: usize) -> Option<(usize, Layout)> {
    if (1..rank).any(|at| to[axis + at] != to[axis] + at) {
        return None;
    }
    // A scalar index has no axis in the result; its axis goes to the front of the base.
    let base_axis = if rank == 0 { 0 } else { to[axis] };
    let data_axis = |at: usize| if at < base_axis { at } else { at + 1 - rank };
    let mut layout: Layout = to[..axis].iter().map(|&at| data_axis(at)).collect();
    layout.push(base_axis);
    layout.extend(to[axis + rank..].iter().map(|&at| data_axis(at)));
    Some((base_axis, layout))
}

fn gather_result(from: &[usize], axis: usize, rank: usize) -> Layout {
    let base_axis = from[axis];
    let result_axis = |at: usize| if at < base_axis { at } else { at + rank - 1 };
    let mut to: Layout = from[..axis].iter().map(|&at| result_axis(at)).collect();
    to.extend(base_axis..base_axis + rank);
    to.extend(from[axis + 1..].iter().map(|&at| result_axis(at)));
    to
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
        let from = [0, 3, 1, 2];
        let to = window_result(&from, 2, 2).unwrap();
        assert_eq!(to, [0, 5, 1, 2, 3, 4]);
        assert_eq!(window_operand(&to, 2, 2), Some((1, from.to_vec())));
        assert_eq!(window_result(&[0, 1, 3, 2], 2, 2), None);
    }

    #[test]
    fn gather_layouts_are_inverse() {
        for rank in 1..3 {
            let to = gather_result(&NCHW, 1, rank);
            assert_eq!(gather_operand(&to, 1, rank), Some((3, NCHW.to_vec())));
        }
        assert_eq!(gather_result(&NCHW, 1, 0), [0, 1, 2]);
        assert_eq!(gather_operand(&[0, 1, 2], 1, 0), Some((0, vec![1, 0, 2, 3])));
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
