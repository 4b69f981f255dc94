//! Affine views: a value as a strided window onto the buffer of a materialised value.

use crate::graph::axes::Source;
use crate::graph::{Dim, Graph, NodeId, Op, TensorType, ValueId, dim::row_major_strides};

/// `element(i0, i1, ..) = base[offset + i0*strides[0] + i1*strides[1] + ..]`, all in elements of `base`, which
/// is contiguous in row-major order. One stride per axis of the viewed value; an axis whose size is the
/// constant 1 may have any stride.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    pub base: ValueId,
    pub offset: Dim,
    pub strides: Vec<Dim>,
}

/// The view that `value` is of a materialised value, when its chain of views ends at one and every
/// address on the way is affine in the index.
pub fn affine_view(graph: &Graph, value: ValueId, is_materialised: &dyn Fn(ValueId) -> bool) -> Option<View> {
    compose(graph, value, is_materialised).ok()
}

/// [`affine_view`], or the value that has to be materialised to get nearer to one.
pub fn compose(
    graph: &Graph,
    value: ValueId,
    is_materialised: &dyn Fn(ValueId) -> bool,
) -> Result<View, ValueId> {
    let mut chain: Vec<NodeId> = Vec::new();
    let mut base = value;
    while !is_materialised(base) {
        match graph.producer(base) {
            Some(node) if graph.nodes[node].op.is_view() => {
                chain.push(node);
                base = graph.nodes[node].inputs[0];
            }
            _ => return Err(base),
        }
    }
    let mut view = View { base, offset: Dim::ZERO, strides: row_major_strides(&graph.ty(base).shape) };
    for &node in chain.iter().rev() {
        let data = &graph.nodes[node];
        let operand = data.inputs[0];
        // A broadcast that is not a view of a buffer gets a buffer itself.
        let needed = if matches!(data.op, Op::Expand { .. }) { data.outputs[0] } else { operand };
        view = step(&data.op, graph.ty(operand), graph.ty(data.outputs[0]), view).ok_or(needed)?;
    }
    Ok(view)
}

/// The view after one more operation, from a value of type `from` to one of type `to`.
fn step(op: &Op, from: &TensorType, to: &TensorType, view: View) -> Option<View> {
    let View { base, mut offset, strides } = view;
    let strides = match op {
        Op::Reshape { shape } => reshape(&from.shape, shape, &strides)?,
        _ => {
            let mut out = vec![Dim::ZERO; to.rank()];
            for (source, stride) in op.sources(0, &[from], to).into_iter().zip(strides) {
                // Where only the run shows whether a size is 1, and so repeats, there is no view.
                let Source::Along { offset: first, terms } = source else { return None };
                offset = offset + first * stride.clone();
                for (axis, by) in terms {
                    out[axis] = out[axis].clone() + stride.clone() * Dim::from(by);
                }
            }
            out
        }
    };
    let known = !offset.is_overgrown() && !strides.iter().any(Dim::is_overgrown);
    known.then_some(View { base, offset, strides })
}

/// Strides of a reshape: maximal runs of axes that are contiguous among themselves are merged, then
/// split again from the innermost axis.
fn reshape(from: &[Dim], to: &[Dim], strides: &[Dim]) -> Option<Vec<Dim>> {
    if from.iter().chain(to).any(|dim| *dim == Dim::ZERO) {
        return Some(vec![Dim::ZERO; to.len()]);
    }
    let mut runs: Vec<(Dim, Dim)> = Vec::new();
    for (size, stride) in from.iter().zip(strides).filter(|(size, _)| **size != Dim::ONE) {
        match runs.last_mut() {
            Some((total, inner)) if *inner == size.clone() * stride.clone() => {
                *total = total.clone() * size.clone();
                *inner = stride.clone();
            }
            _ => runs.push((size.clone(), stride.clone())),
        }
    }
    let mut out = vec![Dim::ZERO; to.len()];
    let Some(mut run) = runs.pop() else {
        // One element: the symbolic axes have size 1.
        return Some(out);
    };
    for axis in (0..to.len()).rev().filter(|&axis| to[axis] != Dim::ONE) {
        let (rest, stride) = &run;
        out[axis] = stride.clone();
        let inner = stride.clone() * to[axis].clone();
        // The outermost run holds all that is left, however the symbols of the two shapes relate.
        let next = if runs.is_empty() { rest.clone() } else { rest.exact_div(&to[axis])? };
        run = if next == Dim::ONE { runs.pop()? } else { (next, inner) };
    }
    runs.is_empty().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Builder;
    use crate::graph::{DType, OriginId, Sym, Symbol};
    use cranelift_entity::EntityRef;

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|&size| Dim::from(size)).collect()
    }

    fn view_of(shape: Vec<Dim>, ops: &[Op]) -> Option<View> {
        let mut graph = Graph::default();
        for name in ["a", "b"] {
            graph.symbols.push(Symbol { name: name.into() });
        }
        let mut b = Builder::new(&mut graph, OriginId::new(0));
        let input = b.input("x", TensorType::new(DType::F32, shape), None);
        let value = ops.iter().fold(input, |x, op| b.emit1(op.clone(), &[x]).unwrap());
        affine_view(&graph, value, &|v| v == input)
    }

    fn strides(shape: &[i64], ops: &[Op]) -> Option<(i64, Vec<i64>)> {
        let view = view_of(dims(shape), ops)?;
        Some((view.offset.as_const()?, view.strides.iter().map(|s| s.as_const().unwrap()).collect()))
    }

    #[test]
    fn composes_transpose_slice_and_window() {
        let transpose = Op::Transpose { perm: vec![0, 2, 1] };
        let slice = Op::Slice { starts: dims(&[1, 4, 0]), steps: vec![1, -2, 1], sizes: dims(&[1, 3, 3]) };
        assert_eq!(strides(&[2, 3, 5], &[transpose.clone(), slice]), Some((15 + 4, vec![15, -2, 5])));
        let window = Op::Window { first: 1, kernel: vec![3], strides: vec![2], dilations: vec![2] };
        assert_eq!(strides(&[2, 9, 4], &[window]), Some((0, vec![36, 8, 8, 1])));
    }

    #[test]
    fn reshape_splits_and_merges_while_strides_stay_affine() {
        let reshape = |shape: &[i64]| Op::Reshape { shape: dims(shape) };
        // Split heads, then swap them in front; merging them back there is not affine.
        let heads = [reshape(&[2, 7, 4, 16]), Op::Transpose { perm: vec![0, 2, 1, 3] }];
        assert_eq!(strides(&[2, 7, 64], &heads), Some((0, vec![448, 16, 64, 1])));
        let mut merged = heads.to_vec();
        merged.push(reshape(&[2, 28, 16]));
        assert_eq!(strides(&[2, 7, 64], &merged), None);
        // Merging axes the transposition kept together is.
        let ops = [Op::Transpose { perm: vec![2, 0, 1] }, reshape(&[4, 6, 1])];
        assert_eq!(strides(&[2, 3, 4], &ops).unwrap().1[..2], [1, 4]);
        // Axes of size 1 never break a run.
        let ops = [reshape(&[2, 1, 12]), Op::Transpose { perm: vec![1, 0, 2] }, reshape(&[24])];
        assert_eq!(strides(&[2, 3, 4], &ops), Some((0, vec![1])));
    }

    #[test]
    fn broadcasts_have_stride_zero_and_do_not_merge_with_others() {
        let expand = Op::Expand { shape: dims(&[5, 3, 4]) };
        assert_eq!(strides(&[3, 1], std::slice::from_ref(&expand)), Some((0, vec![0, 1, 0])));
        let merge = Op::Reshape { shape: dims(&[15, 4]) };
        assert_eq!(strides(&[3, 4], &[expand, merge]), None);
    }

    #[test]
    fn symbolic_sizes_split_exactly() {
        let (a, b) = (Dim::sym(Sym::new(0)), Dim::sym(Sym::new(1)));
        let c = Dim::from;
        let split = Op::Reshape { shape: vec![a.clone(), b.clone(), c(12i64), c(64i64)] };
        let swap = Op::Transpose { perm: vec![0, 2, 1, 3] };
        let view = view_of(vec![a.clone() * b.clone(), c(768i64)], &[split, swap]).unwrap();
        assert_eq!(view.strides, [b * c(768i64), c(64i64), c(768i64), c(1i64)]);
        // The outermost axis takes what is left, for any symbol.
        let split = Op::Reshape { shape: vec![Dim::sym(Sym::new(1)), c(2i64)] };
        assert_eq!(view_of(vec![a], &[split]).unwrap().strides, [c(2i64), c(1i64)]);
    }
}
