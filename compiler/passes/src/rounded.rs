//! Values that only products of bf16 read, rounded where they are computed.
//!
//! [`products`](crate::products) rounds the operand of a product behind the views that it is read through. Between what computes it and
//! these there may be concatenations and maxima over windows, as of a pooling: they move and choose elements, and what is rounded before is
//! what is rounded after, as a greater number never rounds to a smaller one. So an f32 that leads to nothing but roundings to bf16 is
//! rounded at once, and its concatenations and borders are of bf16: half of the bytes are stored and moved. Maxima read what is stored as
//! f32 again.

use std::collections::{HashMap, HashSet};

use crate::products::narrow;
use crate::rewrite::{bodies, producer, replace_operands, replace_results, splat};
use crate::{Options, Precision, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Graph, MapFn, Node, NodeId, Op, ValueId};
use onnxc_ir::scalar::ReduceFn;

const ROUND: Op = Op::Map(MapFn::Cast { to: DType::BF16, saturate: false });

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.precision != Precision::Bf16 || !options.pack.bf16_pairs {
        return Ok(());
    }
    // Views of what products read before it was rounded are dead.
    dce::sweep(graph);
    let leads = lead_to_roundings(graph);
    // Roundings of what is computed as f32 are at the right place, unless something moves it in between.
    let moved = |id: &NodeId| match &graph.nodes[*id] {
        Node { op: Op::Concat { .. } | Op::Pad { .. } | Op::Reduce { .. }, outputs, .. } => {
            leads.contains(&outputs[0])
        }
        _ => false,
    };
    if graph.order.iter().any(moved) {
        round(graph, &leads)?;
        dce::sweep(graph);
    }
    bodies(graph, options, run)
}

/// Whether rounding the operands of a node is rounding its result.
fn keeps_order(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Reduce { op: ReduceFn::Max | ReduceFn::Min, .. } | Op::Concat { .. } => true,
        Op::Pad { .. } => splat(graph, node.inputs[1]).is_some_and(|fill| fill == 0.0 || fill.is_infinite()),
        op => op.is_view(),
    }
}

/// The f32 values that only roundings to bf16 read, or operations that move and choose elements for them.
fn lead_to_roundings(graph: &Graph) -> HashSet<ValueId> {
    let mut read: HashSet<ValueId> = HashSet::new();
    let mut otherwise: HashSet<ValueId> = graph.outputs.iter().map(|(_, value)| *value).collect();
    otherwise.extend(graph.output_needs());
    otherwise.extend(graph.data_sources());
    for &id in graph.order.iter().rev() {
        let node = &graph.nodes[id];
        let rounds = node.op == ROUND;
        let leads = |value: &ValueId| read.contains(value) && !otherwise.contains(value);
        let passes = rounds || keeps_order(graph, node) && node.outputs.iter().all(leads);
        let (own, rest) = match passes {
            // A padding's fill is not moved.
            true if matches!(node.op, Op::Pad { .. }) => node.inputs.split_at(1),
            true => node.inputs.split_at(node.inputs.len()),
            false => node.inputs.split_at(0),
        };
        read.extend(own);
        otherwise.extend(rest);
        otherwise.extend(graph.needs(id));
    }
    let is_f32 = |value: &ValueId| graph.ty(*value).dtype == DType::F32;
    read.into_iter().filter(|value| !otherwise.contains(value) && is_f32(value)).collect()
}

/// Rounds the values of a set where they are computed; views of them stay views.
fn round(graph: &mut Graph, leads: &HashSet<ValueId>) -> Result<()> {
    let old = std::mem::take(&mut graph.order);
    let (mut replaced, mut known) = (HashMap::new(), HashMap::new());
    for id in old {
        replace_operands(&mut graph.nodes[id], &replaced);
        let node = &graph.nodes[id];
        let (op, inputs, origin) = (node.op.clone(), node.inputs.clone(), node.origin);
        let &[result] = &node.outputs[..] else {
            graph.order.push(id);
            continue;
        };
        let mark = graph.order.len();
        let mut b = Builder::new(graph, origin);
        if op == ROUND && b.dtype(inputs[0]) == DType::F32 {
            let own = narrowed(&mut b, inputs[0], &mut known)?;
            replaced.insert(result, own);
            continue;
        }
        if leads.contains(&result) && matches!(op, Op::Concat { .. } | Op::Pad { .. }) {
            let parts = match op {
                // The fill is rounded to what it is.
                Op::Pad { .. } => {
                    vec![narrowed(&mut b, inputs[0], &mut known)?, b.emit1(ROUND, &inputs[1..])?]
                }
                _ => inputs.iter().map(|&part| narrowed(&mut b, part, &mut known)).collect::<Result<_>>()?,
            };
            let own = b.emit1(op, &parts)?;
            replaced.insert(result, b.cast(own, DType::F32)?);
            continue;
        }
        graph.order.truncate(mark);
        graph.order.push(id);
        if leads.contains(&result) && !op.is_view() {
            let mut b = Builder::new(graph, origin);
            let own = b.emit1(ROUND, &[result])?;
            replaced.insert(result, b.cast(own, DType::F32)?);
        }
    }
    replace_results(graph, &replaced);
    Ok(())
}

/// An f32 as bf16, rounded behind views and concatenations of it.
fn narrowed(b: &mut Builder, value: ValueId, known: &mut HashMap<ValueId, ValueId>) -> Result<ValueId> {
    if let Some(&own) = known.get(&value) {
        return Ok(own);
    }
    let own = match (narrow(b.graph, value), producer(b.graph, value).cloned()) {
        (Some(own), _) => own,
        (None, Some(Node { op, inputs, .. })) if op.is_view() => {
            let base = narrowed(b, inputs[0], known)?;
            b.emit1(op, &[base])?
        }
        (None, Some(node @ Node { op: Op::Pad { .. }, .. })) if keeps_order(b.graph, &node) => {
            let base = narrowed(b, node.inputs[0], known)?;
            let fill = b.emit1(ROUND, &node.inputs[1..])?;
            b.emit1(node.op, &[base, fill])?
        }
        _ => b.emit1(ROUND, &[value])?,
    };
    known.insert(value, own);
    Ok(own)
}
