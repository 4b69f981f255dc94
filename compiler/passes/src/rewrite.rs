//! What passes share: the forward walk that replaces nodes, and questions about values and shapes.

use std::collections::HashMap;
use std::ops::Range;

use cranelift_entity::SecondaryMap;

use crate::{Options, Pass};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Constant, Def, Dim, Graph, MapFn, Node, NodeId, Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

/// Uses of each value by live nodes and outputs.
pub(crate) type Uses = SecondaryMap<ValueId, u32>;

/// Of each value the places in the order where it is read.
pub(crate) type Readers = SecondaryMap<ValueId, Vec<usize>>;

/// The readers of each value.
pub(crate) fn readers(graph: &Graph) -> Readers {
    let mut readers = Readers::default();
    for (place, &id) in graph.order.iter().enumerate() {
        for &input in &graph.nodes[id].inputs {
            readers[input].push(place);
        }
    }
    readers
}

/// Walks the live nodes in order. For each node with one result, whose operands are already replaced,
/// `rule` may build something else and give the value that takes the result's place. A value of another type
/// is refused and the node stays. Gives whether anything was replaced.
pub(crate) fn rewrite(
    graph: &mut Graph,
    mut rule: impl FnMut(&mut Builder, NodeId) -> Result<Option<ValueId>>,
) -> Result<bool> {
    let old = std::mem::take(&mut graph.order);
    let mut replaced: HashMap<ValueId, ValueId> = HashMap::new();
    for id in old {
        replace_operands(&mut graph.nodes[id], &replaced);
        let mark = graph.order.len();
        if let [result] = graph.nodes[id].outputs[..] {
            let origin = graph.nodes[id].origin;
            if let Some(new) = rule(&mut Builder::new(graph, origin), id)?
                && new != result
                && graph.ty(new) == graph.ty(result)
            {
                inherit(graph, result, new);
                replaced.insert(result, new);
                continue;
            }
        }
        graph.order.truncate(mark);
        graph.order.push(id);
    }
    replace_results(graph, &replaced);
    Ok(!replaced.is_empty())
}

/// Lets a node read what replaced its operands.
pub(crate) fn replace_operands(node: &mut Node, replaced: &HashMap<ValueId, ValueId>) {
    for input in &mut node.inputs {
        if let Some(&new) = replaced.get(input) {
            *input = new;
        }
    }
}

/// Lets the outputs, and what defines symbols, be what replaced them.
pub(crate) fn replace_results(graph: &mut Graph, replaced: &HashMap<ValueId, ValueId>) {
    for (_, value) in &mut graph.outputs {
        if let Some(&new) = replaced.get(value) {
            *value = new;
        }
    }
    graph.replace_data_sources(|value| replaced.get(&value).copied());
}

/// Runs `step` until it changes nothing, at most `limit` times.
pub(crate) fn fixpoint(limit: usize, mut step: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..limit {
        if !step()? {
            break;
        }
    }
    Ok(())
}

/// Gives `new` the name and the known elements of the value it replaces, where it has none.
pub(crate) fn inherit(graph: &mut Graph, old: ValueId, new: ValueId) {
    let (name, known) = (graph.values[old].name.clone(), graph.values[old].known.clone());
    let value = &mut graph.values[new];
    if value.name.is_empty() {
        value.name = name;
    }
    if value.known.is_none() {
        value.known = known;
    }
}

/// Runs a pass on the bodies of every live node.
pub(crate) fn bodies(graph: &mut Graph, options: &Options, pass: Pass) -> Result<()> {
    for id in graph.order.clone() {
        for body in graph.nodes[id].op.bodies_mut() {
            pass(body, options)?;
        }
    }
    Ok(())
}

/// The node that computes `value`, unless it has bodies.
pub(crate) fn producer(graph: &Graph, value: ValueId) -> Option<&Node> {
    let node = &graph.nodes[graph.producer(value)?];
    (!node.op.is_control()).then_some(node)
}

/// The operation that computes a value, of a node or of a constant that is computed when the object is written.
pub(crate) fn operation(graph: &Graph, value: ValueId) -> Option<(&Op, &[ValueId])> {
    match &graph.values[value].def {
        Def::Node(..) => producer(graph, value).map(|node| (&node.op, node.inputs.as_slice())),
        Def::Const(Constant::Deferred { op, inputs }) => Some((op, inputs)),
        Def::Const(Constant::Data(_) | Constant::Apart(_)) | Def::Input(_) => None,
    }
}

/// A sum over a map multiplication, as a depthwise convolution is: the factors and the axes.
pub(crate) fn sum_of_products<'g>(graph: &'g Graph, node: &'g Node) -> Option<([ValueId; 2], &'g [usize])> {
    let Op::Reduce { op: ReduceFn::Sum, axes } = &node.op else { return None };
    let product = producer(graph, node.inputs[0])?;
    let [a, b] = product.inputs[..] else { return None };
    (product.op == Op::Map(MapFn::Binary(BinaryFn::Mul))).then_some(([a, b], axes))
}

/// The exponentials and their sums of a softmax, whose result this is. One of the exponentials of a sum is 1.
pub(crate) fn softmax(graph: &Graph, result: ValueId) -> Option<(ValueId, ValueId)> {
    let (Op::Map(MapFn::Binary(BinaryFn::Div)), &[exp, sum]) = operation(graph, result)? else { return None };
    let (Op::Reduce { op: ReduceFn::Sum, axes }, &[summed]) = operation(graph, sum)? else { return None };
    let (Op::Map(MapFn::Unary(UnaryFn::Exp)), &[shifted]) = operation(graph, exp)? else { return None };
    let (Op::Map(MapFn::Binary(BinaryFn::Sub)), &[x, most]) = operation(graph, shifted)? else { return None };
    let (Op::Reduce { op: ReduceFn::Max, axes: known }, &[all]) = operation(graph, most)? else {
        return None;
    };
    (summed == exp && all == x && known == axes).then_some((exp, sum))
}

/// Constants with at most this many elements are looked at.
const MAX_SPLAT: usize = 1 << 16;

/// The number that every element of a constant is, also of one seen through views. Never NaN.
pub(crate) fn splat(graph: &Graph, mut value: ValueId) -> Option<f64> {
    for _ in 0..8 {
        match producer(graph, value) {
            Some(node) if node.op.is_view() => value = node.inputs[0],
            _ => break,
        }
    }
    let tensor = graph.constant_data(value).filter(|tensor| tensor.len() <= MAX_SPLAT)?;
    let (first, rest) = match tensor.to_i64s() {
        Some(values) => {
            let (first, rest) = values.split_first()?;
            (*first as f64, rest.iter().all(|value| value == first))
        }
        None => {
            let values = tensor.to_f64s()?;
            let (first, rest) = values.split_first()?;
            (*first, rest.iter().all(|value| value.to_bits() == first.to_bits()))
        }
    };
    (rest && !first.is_nan()).then_some(first)
}

/// Whether every element of a small enough constant is a finite float.
pub(crate) fn finite(graph: &Graph, value: ValueId) -> bool {
    if let Def::Const(Constant::Apart(weight)) = &graph.values[value].def {
        return weight.is_finite() && weight.tensor.len() <= MAX_SPLAT;
    }
    let Some(tensor) = graph.constant_data(value).filter(|tensor| tensor.len() <= MAX_SPLAT) else {
        return false;
    };
    tensor.to_f64s().is_some_and(|values| values.iter().all(|value| value.is_finite()))
}

pub(crate) fn is_one(dim: &Dim) -> bool {
    *dim == Dim::ONE
}

/// A transposition by `first`, then by `second`, as one.
pub(crate) fn joined(first: &[usize], second: &[usize]) -> Vec<usize> {
    second.iter().map(|&axis| first[axis]).collect()
}

pub(crate) fn is_identity(perm: &[usize]) -> bool {
    perm.iter().enumerate().all(|(at, &axis)| at == axis)
}

/// Whether transposing a tensor of `shape` by `perm` leaves its elements where they are: only axes of
/// size 1 move.
pub(crate) fn moves_only_ones(shape: &[Dim], perm: &[usize]) -> bool {
    let mut last = None;
    perm.iter()
        .filter(|&&axis| !is_one(&shape[axis]))
        .all(|&axis| last.replace(axis).is_none_or(|l| l < axis))
}

/// The constant with leading axes of size 1 up to `rank`.
pub(crate) fn with_rank(b: &mut Builder, constant: ValueId, rank: usize) -> Result<ValueId> {
    let mut shape = b.shape(constant);
    let lead = rank.saturating_sub(shape.len());
    shape.splice(0..0, std::iter::repeat_n(Dim::ONE, lead));
    b.reshape(constant, shape)
}

/// A constant that applies to a value of shape `from`, along some of its axes, as it applies to the value reshaped to `to`;
/// `None` where it would vary within an axis.
pub(crate) fn reshaped(
    b: &mut Builder,
    constant: ValueId,
    from: &[Dim],
    to: &[Dim],
) -> Result<Option<ValueId>> {
    let Some(groups) = reshape_groups(to, from) else { return Ok(None) };
    let shape = b.shape(constant);
    let mut aligned = Vec::with_capacity(to.len());
    for (new, old) in groups {
        if shape[old.clone()] == from[old.clone()] {
            aligned.extend_from_slice(&to[new]);
        } else if shape[old].iter().all(is_one) {
            aligned.extend(new.map(|_| Dim::ONE));
        } else {
            return Ok(None);
        }
    }
    b.reshape(constant, aligned).map(Some)
}

/// Axis ranges of two shapes with the same number of elements, paired so that each pair has equal products, as fine as
/// possible. `None` where a dim is 0 or symbolic products cannot be compared.
pub(crate) fn reshape_groups(from: &[Dim], to: &[Dim]) -> Option<Vec<(Range<usize>, Range<usize>)>> {
    if from.iter().chain(to).any(|dim| *dim == Dim::ZERO) {
        return None;
    }
    let mut groups: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() && j < to.len() {
        let (first, second) = (i, j);
        let (mut a, mut b) = (from[i].clone(), to[j].clone());
        (i, j) = (i + 1, j + 1);
        while a != b {
            // The side that divides the other is the shorter one.
            if i < from.len() && b.exact_div(&a).is_some() {
                a = a * from[i].clone();
                i += 1;
            } else if j < to.len() && a.exact_div(&b).is_some() {
                b = b * to[j].clone();
                j += 1;
            } else {
                // Constant factors without a common divisor still meet further on.
                match (a.as_const(), b.as_const()) {
                    (Some(x), Some(y)) if x < y && i < from.len() => {
                        a = a * from[i].clone();
                        i += 1;
                    }
                    (Some(x), Some(y)) if x > y && j < to.len() => {
                        b = b * to[j].clone();
                        j += 1;
                    }
                    _ => return None,
                }
            }
        }
        groups.push((first..i, second..j));
    }
    if from[i..].iter().chain(&to[j..]).any(|dim| !is_one(dim)) {
        return None;
    }
    match groups.last_mut() {
        Some(last) => (last.0.end, last.1.end) = (from.len(), to.len()),
        None => groups.push((0..from.len(), 0..to.len())),
    }
    Some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|&size| Dim::from(size)).collect()
    }

    #[test]
    fn groups_of_a_reshape() {
        let groups = |a: &[i64], b: &[i64]| reshape_groups(&dims(a), &dims(b));
        assert_eq!(groups(&[2, 12, 5], &[2, 3, 4, 5]), Some(vec![(0..1, 0..1), (1..2, 1..3), (2..3, 3..4)]));
        assert_eq!(groups(&[4, 6, 1, 1], &[4, 6]), Some(vec![(0..1, 0..1), (1..4, 1..2)]));
        assert_eq!(groups(&[6, 4], &[4, 6]), Some(vec![(0..2, 0..2)]));
        assert_eq!(groups(&[], &[1, 1]), Some(vec![(0..0, 0..2)]));
        assert_eq!(groups(&[0, 3], &[3, 0]), None);
        assert_eq!(groups(&[0, 3], &[0, 3]), None);
        // Sizes that a run would refuse.
        assert_eq!(groups(&[3], &[2]), None);
        assert_eq!(groups(&[2], &[3]), None);
        assert_eq!(groups(&[2, 3], &[2]), None);
    }

    /// No identity is found by a NaN.
    #[test]
    fn a_splat_is_a_number() {
        use onnxc_ir::graph::Tensor;
        let mut graph = Graph::default();
        let mut b = Builder::new(&mut graph, onnxc_ir::graph::OriginId::from_u32(0));
        let mut found = |values: &[f32]| {
            let value = b.constant(Tensor::from_slice(&[values.len()], values));
            splat(b.graph, value)
        };
        assert_eq!((found(&[2.5, 2.5]), found(&[2.5, 1.0]), found(&[0.0, -0.0])), (Some(2.5), None, None));
        assert_eq!((found(&[f32::NAN]), found(&[f32::NAN, f32::NAN])), (None, None));
    }

    #[test]
    fn replacements_keep_what_they_have() {
        use onnxc_ir::graph::{DType, Origin, TensorType};
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("net", "Net", 0));
        let mut b = Builder::new(&mut graph, origin);
        let ty = TensorType::new(DType::I64, dims(&[1]));
        let [old, bare, own] = ["old", "", "own"].map(|name| b.input(name, ty.clone(), None));
        graph.values[old].known = Some(dims(&[3]).into());
        graph.values[own].known = Some(dims(&[4]).into());
        for (new, name, size) in [(bare, "old", 3), (own, "own", 4)] {
            inherit(&mut graph, old, new);
            let value = &graph.values[new];
            assert_eq!((value.name.as_str(), value.known.as_deref()), (name, Some(&dims(&[size])[..])));
        }
    }

    #[test]
    fn groups_of_symbolic_dims() {
        use cranelift_entity::EntityRef;
        let s = Dim::sym(onnxc_ir::graph::Sym::new(0));
        let from = [s.clone(), Dim::from(64i64)];
        let to = [s.clone(), Dim::from(8i64), Dim::from(8i64)];
        assert_eq!(reshape_groups(&from, &to), Some(vec![(0..1, 0..1), (1..2, 1..3)]));
        let merged = [s * Dim::from(64i64)];
        assert_eq!(reshape_groups(&from, &merged), Some(vec![(0..2, 0..1)]));
        assert_eq!(reshape_groups(&merged, &from), Some(vec![(0..1, 0..2)]));
    }

    #[test]
    fn moving_axes_of_size_one_moves_nothing() {
        assert!(moves_only_ones(&dims(&[2, 1, 1, 7]), &[0, 3, 1, 2]));
        assert!(!moves_only_ones(&dims(&[2, 3, 1, 7]), &[0, 3, 1, 2]));
    }
}
