//! Rewrites of one node that moves data, with the nodes that feed it.

use crate::rewrite::{Uses, is_identity, is_one, joined, moves_only_ones, producer, reshape_groups, splat};
use onnxc_ir::build::Builder;
use onnxc_ir::build::MAX_JOINED;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Node, NodeId, Op, RhsLayout, ValueId, inverse};
use onnxc_ir::infer::{broadcast_shapes, infer};

/// What the node should be, if something simpler.
pub(super) fn node(b: &mut Builder, id: NodeId, uses: &Uses) -> Result<Option<ValueId>> {
    if b.graph.nodes[id].op.is_hosted() {
        return Ok(None);
    }
    let node = b.graph.nodes[id].clone();
    let x = node.inputs.first().copied();
    match (&node.op, x) {
        (Op::Reshape { shape }, Some(x)) => reshape(b, x, shape),
        (Op::Transpose { perm }, Some(x)) => transpose(b, x, perm),
        (Op::Expand { shape }, Some(x)) => expand(b, x, shape),
        (Op::Slice { starts, steps, sizes }, Some(x)) => slice(b, x, starts, steps, sizes),
        (Op::Pad { lo, hi }, Some(x)) => pad(b, x, node.inputs[1], lo, hi, uses),
        (Op::Concat { axis }, Some(_)) => concat(b, &node.inputs, *axis, uses),
        (Op::Window { first, kernel, strides, .. }, Some(x)) => {
            unit_window(b, x, *first, kernel, strides, node.outputs[0])
        }
        (Op::Gather { axis }, Some(x)) => gather(b, x, node.inputs[1], *axis),
        (Op::Map(_), Some(_)) => map_of_expands(b, &node),
        (Op::Contract { batch: 0, m, rhs: RhsLayout::Plain, .. }, Some(x)) => permute_rows(b, &node, x, *m),
        _ => Ok(None),
    }
}

fn reshape(b: &mut Builder, x: ValueId, shape: &[Dim]) -> Result<Option<ValueId>> {
    if b.ty(x).shape == shape {
        return Ok(Some(x));
    }
    match producer(b.graph, x) {
        Some(Node { op: Op::Reshape { .. }, inputs, .. }) => {
            let source = inputs[0];
            composed(b, Op::Reshape { shape: shape.to_vec() }, source)
        }
        _ => Ok(None),
    }
}

/// One operation in place of two. Not where the sizes between were taken to fit both and cannot: the run says so.
fn composed(b: &mut Builder, op: Op, source: ValueId) -> Result<Option<ValueId>> {
    match infer(&op, &[b.ty(source)]) {
        Ok(_) => b.emit1(op, &[source]).map(Some),
        Err(_) => Ok(None),
    }
}

fn transpose(b: &mut Builder, x: ValueId, perm: &[usize]) -> Result<Option<ValueId>> {
    if is_identity(perm) {
        return Ok(Some(x));
    }
    if let Some(Node { op: Op::Transpose { perm: inner }, inputs, .. }) = producer(b.graph, x) {
        let (source, perm) = (inputs[0], joined(inner, perm));
        return b.transpose(source, &perm).map(Some);
    }
    Ok(None)
}

/// A transpose that moves only axes of size 1 is a reshape. Done last: a transpose cancels another one
/// across what lies between, a reshape does not.
pub(super) fn unit_transpose(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { op: Op::Transpose { perm }, inputs, .. } = &b.graph.nodes[id] else { return Ok(None) };
    let (x, perm) = (inputs[0], perm.clone());
    if !moves_only_ones(&b.ty(x).shape, &perm) {
        return Ok(None);
    }
    let shape = perm.iter().map(|&axis| b.ty(x).shape[axis].clone()).collect();
    b.reshape(x, shape).map(Some)
}

fn expand(b: &mut Builder, x: ValueId, shape: &[Dim]) -> Result<Option<ValueId>> {
    let from = b.shape(x);
    if from == shape {
        return Ok(Some(x));
    }
    let lead = shape.len() - from.len();
    if shape[..lead].iter().all(is_one) && shape[lead..] == from[..] {
        return b.reshape(x, shape.to_vec()).map(Some);
    }
    match producer(b.graph, x) {
        Some(Node { op: Op::Expand { .. }, inputs, .. }) => {
            let source = inputs[0];
            composed(b, Op::Expand { shape: shape.to_vec() }, source)
        }
        _ => Ok(None),
    }
}

fn slice(
    b: &mut Builder,
    x: ValueId,
    starts: &[Dim],
    steps: &[i64],
    sizes: &[Dim],
) -> Result<Option<ValueId>> {
    let unit = steps.iter().all(|&step| step == 1);
    if unit && starts.iter().all(|start| *start == Dim::ZERO) && b.ty(x).shape == sizes {
        return Ok(Some(x));
    }
    let Some(inner) = producer(b.graph, x).cloned() else { return Ok(None) };
    match &inner.op {
        Op::Slice { starts: inner_starts, steps: inner_steps, .. } => {
            let starts = (0..starts.len())
                .map(|a| inner_starts[a].clone() + starts[a].clone() * Dim::from(inner_steps[a]))
                .collect();
            let product = steps.iter().zip(inner_steps).map(|(a, b)| a.checked_mul(*b));
            let Some(steps) = product.collect() else { return Ok(None) };
            composed(b, Op::Slice { starts, steps, sizes: sizes.to_vec() }, inner.inputs[0])
        }
        // A slice that takes the padding off again.
        Op::Pad { lo, .. } if unit && starts == lo && b.ty(inner.inputs[0]).shape == sizes => {
            Ok(Some(inner.inputs[0]))
        }
        Op::Concat { axis } => slice_of_concat(b, &inner.inputs, *axis, starts, steps, sizes),
        _ => Ok(None),
    }
}

/// A slice that stays within one operand of a concatenation reads that operand.
fn slice_of_concat(
    b: &mut Builder,
    operands: &[ValueId],
    axis: usize,
    starts: &[Dim],
    steps: &[i64],
    sizes: &[Dim],
) -> Result<Option<ValueId>> {
    let at_least = |a: &Dim, b: &Dim| (a.clone() - b.clone()).bounds().0.is_some_and(|low| low >= 0);
    if steps[axis] < 1 {
        return Ok(None);
    }
    let reach = (sizes[axis].clone() - Dim::ONE) * Dim::from(steps[axis]) + Dim::ONE;
    let end = starts[axis].clone() + reach;
    let mut from = Dim::ZERO;
    for &operand in operands {
        let to = from.clone() + b.ty(operand).shape[axis].clone();
        if at_least(&starts[axis], &from) && at_least(&to, &end) {
            let mut starts = starts.to_vec();
            starts[axis] = starts[axis].clone() - from;
            let op = Op::Slice { starts, steps: steps.to_vec(), sizes: sizes.to_vec() };
            let sliced = b.emit1(op, &[operand])?;
            return Ok(Some(sliced));
        }
        from = to;
    }
    Ok(None)
}

fn pad(
    b: &mut Builder,
    x: ValueId,
    fill: ValueId,
    lo: &[Dim],
    hi: &[Dim],
    uses: &Uses,
) -> Result<Option<ValueId>> {
    if lo.iter().chain(hi).all(|pad| *pad == Dim::ZERO) {
        return Ok(Some(x));
    }
    let Some(Node { op: Op::Pad { lo: inner_lo, hi: inner_hi }, inputs, .. }) = producer(b.graph, x) else {
        return Ok(None);
    };
    let (source, inner_fill) = (inputs[0], inputs[1]);
    let same_fill = fill == inner_fill
        || splat(b.graph, fill)
            .zip(splat(b.graph, inner_fill))
            .is_some_and(|(a, b)| a.to_bits() == b.to_bits());
    if !same_fill || uses[x] > 1 {
        return Ok(None);
    }
    let sum = |a: &[Dim], b: &[Dim]| a.iter().zip(b).map(|(a, b)| a.clone() + b.clone()).collect();
    let (lo, hi) = (sum(lo, inner_lo), sum(hi, inner_hi));
    b.pad(source, fill, lo, hi).map(Some)
}

fn concat(b: &mut Builder, operands: &[ValueId], axis: usize, uses: &Uses) -> Result<Option<ValueId>> {
    let mut flat = Vec::with_capacity(operands.len());
    for &operand in operands {
        if b.ty(operand).shape[axis] == Dim::ZERO {
            continue;
        }
        match producer(b.graph, operand) {
            Some(Node { op: Op::Concat { axis: inner }, inputs, .. })
                if *inner == axis && uses[operand] <= 1 && operands.len() + inputs.len() <= MAX_JOINED =>
            {
                flat.extend_from_slice(inputs);
            }
            _ => flat.push(operand),
        }
    }
    if let Some(whole) = reassembled(b, &flat, axis) {
        return Ok(Some(whole));
    }
    if flat.is_empty() || flat == operands && flat.len() > 1 {
        return Ok(None);
    }
    b.concat(&flat, axis).map(Some)
}

/// The tensor whose consecutive slices along `axis` are `parts`, all of it.
fn reassembled(b: &Builder, parts: &[ValueId], axis: usize) -> Option<ValueId> {
    let mut whole = None;
    let mut at = Dim::ZERO;
    for &part in parts {
        let node = producer(b.graph, part)?;
        let Op::Slice { starts, steps, sizes } = &node.op else { return None };
        let (source, mut expected) = (node.inputs[0], b.ty(node.inputs[0]).shape.clone());
        expected[axis] = sizes[axis].clone();
        let others = starts.iter().enumerate().all(|(a, start)| a == axis || *start == Dim::ZERO);
        if *whole.get_or_insert(source) != source
            || starts[axis] != at
            || !others
            || steps.iter().any(|&step| step != 1)
            || *sizes != expected
        {
            return None;
        }
        at = at + sizes[axis].clone();
    }
    whole.filter(|&whole| b.ty(whole).shape[axis] == at)
}

/// A window of one element per axis is a strided slice with new axes of size 1.
fn unit_window(
    b: &mut Builder,
    x: ValueId,
    first: usize,
    kernel: &[usize],
    strides: &[usize],
    result: ValueId,
) -> Result<Option<ValueId>> {
    if kernel.iter().any(|&size| size != 1) {
        return Ok(None);
    }
    let shape = b.shape(result);
    let mut sizes = b.shape(x);
    let mut steps = vec![1; sizes.len()];
    for (at, &stride) in strides.iter().enumerate() {
        sizes[first + at] = shape[first + at].clone();
        let Ok(stride) = i64::try_from(stride) else { return Ok(None) };
        steps[first + at] = stride;
    }
    let sliced = if steps.iter().all(|&step| step == 1) && b.ty(x).shape == sizes {
        x
    } else {
        b.emit1(Op::Slice { starts: vec![Dim::ZERO; steps.len()], steps, sizes }, &[x])?
    };
    b.reshape(sliced, shape).map(Some)
}

/// A gather of constant, evenly spaced, in-range indices is a slice. The range must be provable: a gather
/// checks its indices at run time, a slice does not.
fn gather(b: &mut Builder, x: ValueId, indices: ValueId, axis: usize) -> Result<Option<ValueId>> {
    if b.rank(indices) > 1 {
        return Ok(None);
    }
    let (Some(extent), Some(tensor)) = (b.ty(x).shape[axis].as_const(), b.graph.constant_data(indices))
    else {
        return Ok(None);
    };
    if tensor.is_empty() || tensor.len() > 1 << 16 {
        return Ok(None);
    }
    let Some(picks) = tensor.to_i64s() else { return Ok(None) };
    if picks.iter().any(|pick| !(-extent..extent).contains(pick)) {
        return Ok(None);
    }
    let picks: Vec<i64> = picks.into_iter().map(|pick| if pick < 0 { pick + extent } else { pick }).collect();
    let step = picks.get(1).map_or(1, |second| second - picks[0]);
    if step == 0 || picks.windows(2).any(|pair| pair[1] - pair[0] != step) {
        return Ok(None);
    }
    let scalar = b.rank(indices) == 0;
    let mut sizes = b.shape(x);
    let (mut starts, mut steps) = (vec![Dim::ZERO; sizes.len()], vec![1; sizes.len()]);
    (starts[axis], steps[axis], sizes[axis]) = (Dim::from(picks[0]), step, Dim::from(picks.len()));
    let sliced = b.emit1(Op::Slice { starts, steps, sizes }, &[x])?;
    if scalar { b.squeeze(sliced, &[axis]).map(Some) } else { Ok(Some(sliced)) }
}

/// Maps broadcast by themselves. An expand among the operands goes where the others alone give the shape, and
/// after the map where all operands were expanded, so that the map computes less.
fn map_of_expands(b: &mut Builder, node: &Node) -> Result<Option<ValueId>> {
    let result = b.shape(node.outputs[0]);
    let mut operands = node.inputs.clone();
    for operand in &mut operands {
        if let Some(Node { op: Op::Expand { .. }, inputs, .. }) = producer(b.graph, *operand) {
            *operand = inputs[0];
        }
    }
    if operands == node.inputs {
        return Ok(None);
    }
    let shapes: Vec<&[Dim]> = operands.iter().map(|&value| b.ty(value).shape.as_slice()).collect();
    // Symbolic dims that only the expand equated do not broadcast.
    let Ok(shape) = broadcast_shapes(&shapes) else { return Ok(None) };
    let mapped = b.emit1(node.op.clone(), &operands)?;
    if shape == result {
        return Ok(Some(mapped));
    }
    if product(&shape) == product(&result) {
        return Ok(None);
    }
    b.expand(mapped, result).map(Some)
}

/// A contraction over axes that were transposed among themselves and flattened (a feature map before a dense
/// layer) takes them as they were; the rows of its constant weights are permuted instead.
fn permute_rows(b: &mut Builder, node: &Node, x: ValueId, m: usize) -> Result<Option<ValueId>> {
    let weights = node.inputs[1];
    let Some(Node { op: Op::Reshape { shape }, inputs, .. }) =
        producer(b.graph, x).filter(|_| b.graph.is_constant(weights))
    else {
        return Ok(None);
    };
    let (shape, flattened) = (shape.clone(), inputs[0]);
    let Some(Node { op: Op::Transpose { perm }, inputs, .. }) = producer(b.graph, flattened) else {
        return Ok(None);
    };
    let (perm, source, from) = (perm.clone(), inputs[0], b.shape(flattened));
    let inner = reshape_groups(&from, &shape)
        .and_then(|groups| groups.into_iter().find(|group| group.1.start == m))
        .map(|group| group.0.start);
    let Some(first) = inner.filter(|&first| is_identity(&perm[..first])) else { return Ok(None) };
    let mut undo: Vec<usize> = perm[first..].iter().map(|axis| axis - first).collect();
    undo = inverse(&undo);
    undo.push(undo.len());
    let whole = b.shape(weights);
    let mut split = from[first..].to_vec();
    split.extend(whole.last().cloned());
    let rows = b.reshape(weights, split)?;
    let rows = b.transpose(rows, &undo)?;
    let rows = b.reshape(rows, whole)?;
    let x = b.reshape(source, shape)?;
    b.emit1(node.op.clone(), &[x, rows]).map(Some)
}
