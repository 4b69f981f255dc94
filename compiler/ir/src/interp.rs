//! The interpreter: runs whole graphs, as callers know their inputs and outputs. It binds symbols from the inputs' shapes, converts
//! what is packed at the borders, and has [`eval`](crate::primitives::eval) evaluate node after node.

mod ranks;
mod state;

pub use crate::primitives::eval::{
    Budget, Symbols, call, call_external, cast, constant, erf, eval, eval_named, invoke, run_bodies,
    run_nodes, side_by_side, work,
};
pub use ranks::run_ranks;

use crate::borders;
use crate::error::{Error, Result, Stage};
use crate::graph::exchange::{Alone, Ranks};
use crate::graph::{Dim, Graph, NodeId, Tensor, TensorType, seed_value, strings};
use crate::primitives::eval::run::{check_assumptions, describe, run_graph, usage};
use crate::primitives::eval::type_of;

/// Runs a graph on concrete inputs (one per graph input, defaults filled in by the caller); gives its outputs.
pub fn run(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    run_with(graph, inputs, &mut |_, _| {})
}

/// As [`run`]; `observe` sees the results of every node of the outermost graph as it is computed.
pub fn run_with(
    graph: &Graph,
    inputs: &[Tensor],
    observe: &mut dyn FnMut(NodeId, &[Tensor]),
) -> Result<Vec<Tensor>> {
    run_seeded(graph, inputs, 0, observe)
}

/// As [`run_with`], with a seed for random numbers.
pub fn run_seeded(
    graph: &Graph,
    inputs: &[Tensor],
    seed: u64,
    observe: &mut dyn FnMut(NodeId, &[Tensor]),
) -> Result<Vec<Tensor>> {
    run_among(graph, inputs, seed, &mut Alone, observe)
}

/// Runs the graph of a rank among the others.
pub(crate) fn run_as(
    graph: &Graph,
    inputs: &[Tensor],
    seed: u64,
    ranks: &mut dyn Ranks,
) -> Result<Vec<Tensor>> {
    run_among(graph, inputs, seed, ranks, &mut |_, _| {})
}

fn run_among(
    graph: &Graph,
    inputs: &[Tensor],
    seed: u64,
    ranks: &mut dyn Ranks,
    observe: &mut dyn FnMut(NodeId, &[Tensor]),
) -> Result<Vec<Tensor>> {
    if strings::has_strings(graph) {
        let mut numbered = graph.clone();
        borders::pack_borders(&mut numbered)?;
        return run_among(&numbered, inputs, seed, ranks, observe);
    }
    let mut symbols = bind(graph, inputs)?;
    if let Some(symbol) = graph.seed {
        symbols[symbol] = Some(seed_value(seed));
    }
    state::bind(graph, &mut symbols)?;
    check_assumptions(graph, &symbols, &|_| true)?;
    let stored = inputs.iter().enumerate().map(|(at, tensor)| match graph.packed_inputs.contains_key(&at) {
        true => borders::stored(tensor),
        false => tensor.clone(),
    });
    let mut stored: Vec<Tensor> = stored.collect();
    state::before(graph, &mut stored, &symbols)?;
    let mut results = run_graph(graph, stored, &mut symbols, (None, ranks), 0, observe)?;
    state::after(graph, &mut results, &symbols)?;
    let unpacked = results.into_iter().enumerate().map(|(at, tensor)| {
        let whole = match graph.packed_outputs.get(&at) {
            Some(ty) => unpacked(tensor, ty, &symbols)?,
            None => tensor,
        };
        ranked(graph, at, whole, &symbols)
    });
    unpacked.collect()
}

/// An output without the axes that a run of its rank has not.
fn ranked(graph: &Graph, at: usize, tensor: Tensor, symbols: &Symbols) -> Result<Tensor> {
    let Some(own) = graph.any_rank.get(&at) else { return Ok(tensor) };
    own.trimmed(&tensor, &|sym| symbols[sym]).ok_or_else(|| {
        let (name, shape) = (&graph.outputs[at].0, &tensor.shape);
        Error::internal(
            Stage::Run,
            format!("output `{name}` of shape {shape:?} cannot have rank {}", own.rank),
        )
    })
}

/// A packed result as the tensor that it is.
fn unpacked(tensor: Tensor, ty: &TensorType, symbols: &Symbols) -> Result<Tensor> {
    let size = |dim: &Dim| dim.eval(&|sym| symbols[sym]).and_then(|size| usize::try_from(size).ok());
    let Some(shape) = ty.shape.iter().map(size).collect::<Option<Vec<usize>>>() else {
        return usage(format!("the inputs do not give the dims of {ty} a size"));
    };
    Ok(borders::unstored(ty.dtype, shape, &tensor.data))
}

/// The symbols that are the whole of an input's dim, after a check of all inputs against their types.
fn bind(graph: &Graph, inputs: &[Tensor]) -> Result<Symbols> {
    if graph.inputs.len() != inputs.len() {
        return usage(format!("{} inputs, where the graph takes {}", inputs.len(), graph.inputs.len()));
    }
    let mut symbols = Symbols::new();
    for (at, (input, tensor)) in graph.inputs.iter().zip(inputs).enumerate() {
        let ty = graph.input_ty(at);
        if ty.dtype != tensor.dtype || ty.rank() != tensor.shape.len() {
            return usage(format!("input {} is {}, not {ty}", input.name, type_of(tensor)));
        }
        for (axis, &size) in tensor.shape.iter().enumerate() {
            if let Some(sym) = graph.found_dim(at, axis).as_sym() {
                symbols[sym].get_or_insert(size as i64);
            }
        }
    }
    for (at, (input, tensor)) in graph.inputs.iter().zip(inputs).enumerate() {
        let ty = graph.input_ty(at);
        for (axis, &size) in tensor.shape.iter().enumerate() {
            let dim = graph.found_dim(at, axis);
            let wanted = dim.eval(&|sym| symbols[sym]);
            if wanted.is_some_and(|wanted| wanted != size as i64) {
                return usage(format!(
                    "axis {axis} of input {} is {size}, where {ty} makes it {}{}",
                    input.name,
                    wanted.unwrap_or_default(),
                    describe(graph, &dim, &symbols),
                ));
            }
        }
    }
    Ok(symbols)
}
