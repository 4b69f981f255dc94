//! States that grow, such as a cache of keys, and are right-hand sides of products: they stay in the panels that the products
//! read ([`RhsLayout::Panels`](crate::graph::RhsLayout)), and a run puts what it appends there. Else every run would pack the whole of
//! them.

use std::collections::HashMap;

use crate::error::Result;
use crate::graph::dim::product;
use crate::graph::{Builder, Dim, Graph, Growth, NodeId, Op, ValueId};
use crate::pass::{Options, dce};
use crate::schedule::affine_view;

pub fn run(graph: &mut Graph, _: &Options) -> Result<()> {
    if graph.states.is_empty() {
        return Ok(());
    }
    // Readers that nothing needs are none.
    dce::sweep(graph);
    for state in 0..graph.states.len() {
        let Some(growth) = graph.states[state].growth.clone() else { continue };
        let value = graph.outputs[graph.given_outputs() + state].1;
        if growth.panel.is_none()
            && let Some((packs, panel)) = packs_of(graph, value, &growth)
        {
            lay_out(graph, state, (value, &growth), (&packs, panel))?;
        }
    }
    Ok(())
}

/// The nodes that pack the state for products, and the columns of their panels, if nothing else reads it.
fn packs_of(graph: &Graph, state: ValueId, growth: &Growth) -> Option<(Vec<NodeId>, usize)> {
    let mut readers: HashMap<ValueId, Vec<NodeId>> = HashMap::new();
    for &node in &graph.order {
        for &input in &graph.nodes[node].inputs {
            readers.entry(input).or_default().push(node);
        }
    }
    let is_output = |value| graph.outputs.iter().filter(|(_, output)| *output == value).count();
    if is_output(state) > 1 {
        return None;
    }
    let (mut open, mut packs, mut panel) = (vec![state], vec![], None);
    while let Some(value) = open.pop() {
        for &node in readers.get(&value).into_iter().flatten() {
            match &graph.nodes[node].op {
                Op::Pack { batch, k: 1, nr } if panel.is_none_or(|panel| panel == *nr) => {
                    if !are_columns(graph, graph.nodes[node].inputs[0], *batch, (state, growth)) {
                        return None;
                    }
                    panel = Some(*nr);
                    if !packs.contains(&node) {
                        packs.push(node);
                    }
                }
                op if op.is_view() && is_output(graph.nodes[node].outputs[0]) == 0 => {
                    open.extend(&graph.nodes[node].outputs);
                }
                _ => return None,
            }
        }
    }
    Some((packs, panel?))
}

/// Whether the columns of a right-hand side `[batch.., k, n]` are all elements that a state has along the axis that grows, one
/// row for each of those behind them.
fn are_columns(graph: &Graph, rhs: ValueId, batch: usize, (state, growth): (ValueId, &Growth)) -> bool {
    let (shape, whole) = (&graph.ty(rhs).shape, &graph.ty(state).shape);
    let [rows] = &whole[growth.axis + 1..] else { return false };
    let Some(view) = affine_view(graph, rhs, &|value| value == state) else { return false };
    if view.base != state || view.offset != Dim::ZERO || shape[batch..] != [rows.clone(), growth.next.clone()]
    {
        return false;
    }
    let follows = |axis: usize, stride: &Dim| shape[axis] == Dim::ONE || view.strides[axis] == *stride;
    let mut stride = growth.capacity.clone() * rows.clone();
    for axis in (0..batch).rev() {
        if !follows(axis, &stride) {
            return false;
        }
        stride = stride * shape[axis].clone();
    }
    follows(batch, &Dim::ONE)
        && follows(batch + 1, rows)
        && product(&shape[..batch]) == product(&whole[..growth.axis])
}

fn lay_out(
    graph: &mut Graph,
    at: usize,
    (value, growth): (ValueId, &Growth),
    (packs, panel): (&[NodeId], usize),
) -> Result<()> {
    let Some(append) = graph.producer(value) else { return Ok(()) };
    let growth = Growth { panel: Some(panel), ..growth.clone() };
    let ty = growth.stored(&graph.states[at].ty);
    let input = graph.nodes[append].inputs[0];
    graph.values[input].ty = ty.clone();
    graph.values[value].ty = ty.clone();
    let place = Dim::sym(growth.size);
    graph.nodes[append].op = Op::Append { axis: growth.axis, at: place, panel: Some(panel) };
    let mut sizes = ty.shape;
    sizes[growth.axis] = growth.next.ceil_div(&Dim::from(panel.max(1))).unwrap_or(Dim::ZERO);
    graph.states[at].growth = Some(growth);
    for &pack in packs {
        let (origin, packed) = (graph.nodes[pack].origin, graph.nodes[pack].outputs[0]);
        let shape = graph.ty(packed).shape.clone();
        let place = graph.order.iter().position(|&node| node == pack).unwrap_or(graph.order.len());
        let rest = graph.order.split_off(place);
        let mut b = Builder::new(graph, origin);
        let (starts, steps) = (vec![Dim::ZERO; sizes.len()], vec![1; sizes.len()]);
        let taken = b.emit1(Op::Slice { starts, steps, sizes: sizes.clone() }, &[value])?;
        let panels = b.reshape(taken, shape)?;
        graph.order.extend(rest.into_iter().filter(|&node| node != pack));
        for &node in &graph.order {
            graph.nodes[node]
                .inputs
                .iter_mut()
                .filter(|input| **input == packed)
                .for_each(|input| *input = panels);
        }
    }
    // The views that the packs read are none of panels.
    dce::sweep(graph);
    Ok(())
}
