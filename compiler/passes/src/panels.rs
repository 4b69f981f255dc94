//! States that grow or that runs only read, such as a cache of keys, and are right-hand sides of products: they stay in the panels
//! that the products read ([`RhsLayout::Panels`](onnxc_ir::graph::RhsLayout)), and a run puts what it appends there. Else every run would
//! pack the whole of them.

use std::collections::HashMap;

use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::view::affine_view;
use onnxc_ir::graph::{Dim, Graph, Growth, NodeId, Op, Panels, ValueId};

pub(crate) fn run(graph: &mut Graph, _: &Options) -> Result<()> {
    if graph.states.is_empty() {
        return Ok(());
    }
    // Readers that nothing needs are none.
    dce::sweep(graph);
    for state in 0..graph.states.len() {
        let value = graph.outputs[graph.given_outputs() + state].1;
        if let Some(columns) = Columns::of(graph, state)
            && graph.states[state].panels.is_none()
            && let Some((packs, panel)) = packs_of(graph, value, &columns)
        {
            lay_out(graph, state, (value, columns), (&packs, panel))?;
        }
    }
    Ok(())
}

/// What of a state can be the columns of a right-hand side.
struct Columns {
    axis: usize,
    /// How many there are when products read the state, and how many there is room for.
    count: Dim,
    room: Dim,
}

impl Columns {
    /// Along the axis that grows; of a state that runs only read along the last axis but one, where caches have keys one behind the other.
    fn of(graph: &Graph, state: usize) -> Option<Columns> {
        let shape = &graph.states[state].ty.shape;
        match &graph.states[state].growth {
            Some(Growth { axis, next, capacity, .. }) => {
                Some(Columns { axis: *axis, count: next.clone(), room: capacity.clone() })
            }
            // What other graphs write has no panels; see `state::shared` of the importer.
            None if graph.is_kept(state) && !graph.is_shared(state) => {
                let axis = shape.len().checked_sub(2)?;
                Some(Columns { axis, count: shape[axis].clone(), room: shape[axis].clone() })
            }
            None => None,
        }
    }
}

/// The nodes that pack the state for products, and the columns of their panels, if nothing else reads it.
fn packs_of(graph: &Graph, state: ValueId, columns: &Columns) -> Option<(Vec<NodeId>, usize)> {
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
                    if !are_columns(graph, graph.nodes[node].inputs[0], *batch, (state, columns)) {
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

/// Whether the columns of a right-hand side `[batch.., k, n]` are these of a state, one row for each element behind them.
fn are_columns(graph: &Graph, rhs: ValueId, batch: usize, (state, columns): (ValueId, &Columns)) -> bool {
    let (shape, whole) = (&graph.ty(rhs).shape, &graph.ty(state).shape);
    let [rows] = &whole[columns.axis + 1..] else { return false };
    let Some(view) = affine_view(graph, rhs, &|value| value == state) else { return false };
    if view.base != state
        || view.offset != Dim::ZERO
        || shape[batch..] != [rows.clone(), columns.count.clone()]
    {
        return false;
    }
    let follows = |axis: usize, stride: &Dim| shape[axis] == Dim::ONE || view.strides[axis] == *stride;
    let mut stride = columns.room.clone() * rows.clone();
    for axis in (0..batch).rev() {
        if !follows(axis, &stride) {
            return false;
        }
        stride = stride * shape[axis].clone();
    }
    follows(batch, &Dim::ONE)
        && follows(batch + 1, rows)
        && product(&shape[..batch]) == product(&whole[..columns.axis])
}

fn lay_out(
    graph: &mut Graph,
    at: usize,
    (value, columns): (ValueId, Columns),
    (packs, width): (&[NodeId], usize),
) -> Result<()> {
    let Columns { axis, count, room } = columns;
    let panels = Panels { axis, width, size: room };
    let ty = panels.stored(&graph.states[at].ty);
    graph.values[value].ty = ty.clone();
    if let (Some(append), Some(growth)) = (graph.producer(value), &graph.states[at].growth) {
        let input = graph.nodes[append].inputs[0];
        graph.values[input].ty = ty.clone();
        graph.nodes[append].op = Op::Append { axis, at: Dim::sym(growth.size), panel: Some(width) };
    }
    let taken = panels.layout(&graph.states[at].ty.shape).map(|layout| layout.with_columns(count));
    let sizes = taken.and_then(|taken| taken.packed()).unwrap_or(ty.shape);
    graph.states[at].panels = Some(panels);
    for &pack in packs {
        let (origin, packed) = (graph.nodes[pack].origin, graph.nodes[pack].outputs[0]);
        let shape = graph.ty(packed).shape.clone();
        let place = graph.order.iter().position(|&node| node == pack).unwrap_or(graph.order.len());
        let rest = graph.order.split_off(place);
        let mut b = Builder::new(graph, origin);
        let (starts, steps) = (vec![Dim::ZERO; sizes.len()], vec![1; sizes.len()]);
        let taken = match b.ty(value).shape == sizes {
            true => value,
            false => b.emit1(Op::Slice { starts, steps, sizes: sizes.clone() }, &[value])?,
        };
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
    // The packs read views that are not of panels.
    dce::sweep(graph);
    Ok(())
}
