//! Graphs with states. The evaluator takes the tensors that a run finds and gives those that it leaves, however much room a
//! caller has for more: [`before`] puts the former where there is room, [`after`] takes the latter out.

use super::Symbols;
use crate::error::Result;
use crate::graph::dim::{dims, sizes};
use crate::graph::{Dim, Graph, Growth, PanelLayout, Tensor};
use crate::primitives::eval::movement;
use crate::primitives::eval::run::usage;

fn growths(graph: &Graph) -> impl Iterator<Item = (usize, &Growth)> {
    graph.states.iter().enumerate().filter_map(|(at, state)| Some((at, state.growth.as_ref()?)))
}

/// Gives every capacity that nothing fixes the least value that will do.
pub(super) fn bind(graph: &Graph, symbols: &mut Symbols) -> Result<()> {
    for (at, growth) in growths(graph) {
        if let Some(capacity) = growth.capacity.as_sym() {
            symbols[capacity] = growth.next.eval(&|sym| symbols[sym]);
        }
        let sizes = [&growth.next, &growth.capacity].map(|dim| dim.eval(&|sym| symbols[sym]));
        if let [Some(next), Some(most)] = sizes
            && next > most
        {
            let name = &graph.inputs[graph.given_inputs() + at].name;
            return usage(format!(
                "state `{name}` is full: it would grow to {next}, and there is room for {most}"
            ));
        }
    }
    Ok(())
}

fn size(dim: &Dim, symbols: &Symbols) -> usize {
    dim.eval(&|sym| symbols[sym]).and_then(|size| usize::try_from(size).ok()).unwrap_or(0)
}

/// Tensors of states, with room behind them, as they lie in a graph.
pub(super) fn before(graph: &Graph, inputs: &mut [Tensor], symbols: &Symbols) -> Result<()> {
    for (at, state) in graph.states.iter().enumerate() {
        let Some(axis) = state.axis() else { continue };
        let tensor = &mut inputs[graph.given_inputs() + at];
        let mut shape = tensor.shape.clone();
        if let Some(growth) = &state.growth {
            shape[axis] = size(&growth.capacity, symbols);
        }
        let panel = state.panels.as_ref().map(|panels| panels.width);
        if let Some(panels) = &state.panels {
            let columns = Dim::from(shape[axis]);
            let layout = panels.layout(&dims(&shape)).map(|layout| layout.with_columns(columns));
            shape = layout.and_then(|layout| sizes(&layout.packed()?)).unwrap_or(shape);
        }
        let room = Tensor::new(tensor.dtype, shape.clone(), movement::zeroed(tensor.dtype, &shape)?.into());
        *tensor = movement::append(&room, tensor, (axis, 0), panel)?;
    }
    Ok(())
}

/// Tensors of states as callers know them, without what is behind them.
pub(super) fn after(graph: &Graph, outputs: &mut [Tensor], symbols: &Symbols) -> Result<()> {
    for (at, state) in graph.states.iter().enumerate() {
        let Some(axis) = state.axis() else { continue };
        let tensor = &mut outputs[graph.given_outputs() + at];
        let mut held = &state.ty.shape[axis];
        if let Some(panels) = &state.panels
            && let Some(layout) = PanelLayout::of_room(&tensor.shape, axis, panels.width)
        {
            *tensor = movement::from_panels(tensor, &layout)?;
        }
        if let Some(growth) = &state.growth {
            held = &growth.next;
        }
        let mut shape = tensor.shape.clone();
        shape[axis] = size(held, symbols);
        let (starts, steps) = (vec![0; shape.len()], vec![1; shape.len()]);
        *tensor = movement::slice(tensor, &starts, &steps, &shape)?;
    }
    Ok(())
}
