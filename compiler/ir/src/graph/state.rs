//! State: an input and an output that are one tensor, which stays in the caller's memory from one run to the next.
//!
//! A caller that feeds outputs back as inputs, as of a cache of keys or of the hidden state of a recurrent network, need not: it
//! gives every run one block of memory, and the tensors lie in there. A tensor of a fixed shape is replaced at the end of a
//! run. One that grows has room for more than it holds, and a run appends to it in place ([`Op::Append`](super::Op::Append)):
//! what it held is neither copied nor moved. One that is given back as it came, or is an input alone, runs only read: the caller
//! sets it, such as to the keys that an encoder made.
//!
//! In the graph, states are the last inputs and the last outputs, in the same order. The importer finds and makes them.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Def, Dim, Graph, PanelLayout, Sym, TensorType};

/// An input that is state, and the output of the same number.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// Numbers of the input and of the output in the ONNX model. An input alone has an output of its own behind those of the model.
    pub ports: (usize, usize),
    /// The tensor as callers know it, with room for what is appended; in a graph it may lie in panels.
    pub ty: TensorType,
    /// Of a tensor that grows; else a run replaces it, or leaves it as it is ([`Graph::is_kept`]).
    pub growth: Option<Growth>,
    /// Of one that lies in panels in the graph and in the block: along the axis that grows, or of one that is kept.
    pub panels: Option<Panels>,
}

impl State {
    /// The type that the tensor has in a graph.
    pub fn stored(&self) -> TensorType {
        self.panels.as_ref().map_or_else(|| self.ty.clone(), |panels| panels.stored(&self.ty))
    }

    /// The axis along which the tensor grows or lies in panels.
    pub fn axis(&self) -> Option<usize> {
        let panels = self.panels.as_ref().map(|panels| panels.axis);
        self.growth.as_ref().map(|growth| growth.axis).or(panels)
    }
}

/// A tensor `[before.., size, behind..]` that lies as [`Op::Pack`](super::Op::Pack) lays out the right-hand side of a product whose
/// columns are along the axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Panels {
    pub axis: usize,
    pub width: usize,
    pub size: Dim,
}

impl Panels {
    /// Where a tensor of this shape, or of another size along the axis, has its elements; `None` if it has no such axis.
    pub fn layout(&self, whole: &[Dim]) -> Option<PanelLayout> {
        let layout = PanelLayout::of_plain(whole, self.axis, self.axis, self.width.max(1))?;
        Some(layout.with_columns(self.size.clone()))
    }

    pub fn stored(&self, whole: &TensorType) -> TensorType {
        let layout = self.layout(&whole.shape).and_then(|layout| layout.packed());
        TensorType { shape: layout.unwrap_or_else(|| whole.shape.clone()), ..whole.clone() }
    }

    pub fn whole(&self, stored: &TensorType) -> TensorType {
        let layout = PanelLayout::of_packed(&stored.shape, self.axis, (self.width, 1), self.size.clone());
        let shape = layout.map_or_else(|| stored.shape.clone(), |layout| layout.plain(self.axis));
        TensorType { shape, ..stored.clone() }
    }
}

/// How a state grows.
#[derive(Clone, PartialEq, Debug)]
pub struct Growth {
    pub axis: usize,
    /// The number of elements along the axis before a run, which is not a dim of an input.
    pub size: Sym,
    /// How many there are after it.
    pub next: Dim,
    /// How many there is room for.
    pub capacity: Dim,
}

/// Makes these inputs and outputs the last ones, in this order.
pub fn move_to_end(graph: &mut Graph, ports: &[(usize, usize)]) {
    let inputs = numbers(graph.inputs.len(), ports.iter().map(|ports| ports.0).collect());
    let outputs = numbers(graph.outputs.len(), ports.iter().map(|ports| ports.1).collect());
    select(graph, &inputs, &outputs);
}

/// Leaves these inputs and outputs, in this order.
pub fn select(graph: &mut Graph, inputs: &[usize], outputs: &[usize]) {
    graph.inputs = inputs.iter().map(|&at| graph.inputs[at].clone()).collect();
    graph.outputs = outputs.iter().map(|&at| graph.outputs[at].clone()).collect();
    for (at, input) in graph.inputs.iter().enumerate() {
        graph.values[input.value].def = Def::Input(at);
    }
    graph.input_parts = renumbered(&mut graph.input_parts, inputs);
    graph.output_parts = renumbered(&mut graph.output_parts, outputs);
    graph.any_rank = renumbered(&mut graph.any_rank, outputs);
}

/// A table by the numbers of ports, where these ports are left in this order.
fn renumbered<T>(table: &mut BTreeMap<usize, T>, order: &[usize]) -> BTreeMap<usize, T> {
    let entries = std::mem::take(table).into_iter();
    entries.filter_map(|(old, entry)| Some((order.iter().position(|&at| at == old)?, entry))).collect()
}

/// All numbers but the last ones, in order, then these.
fn numbers(count: usize, last: Vec<usize>) -> Vec<usize> {
    let own = (0..count).filter(|at| !last.contains(at));
    own.chain(last.iter().copied()).collect()
}

impl Graph {
    /// Inputs that callers give tensors for: those before the first state.
    pub fn given_inputs(&self) -> usize {
        self.inputs.len() - self.states.len()
    }

    /// Outputs that callers give tensors for.
    pub fn given_outputs(&self) -> usize {
        self.outputs.len() - self.states.len()
    }

    /// The state that an output is.
    pub fn state_of_output(&self, output: usize) -> Option<&State> {
        self.states.get(output.checked_sub(self.given_outputs())?)
    }

    /// The state that an input is.
    pub fn state_of_input(&self, input: usize) -> Option<&State> {
        self.states.get(input.checked_sub(self.given_inputs())?)
    }

    /// Whether runs only read a state: the output is the input.
    pub fn is_kept(&self, state: usize) -> bool {
        let input = self.inputs.get(self.given_inputs() + state).map(|input| input.value);
        self.outputs.get(self.given_outputs() + state).map(|output| output.1) == input
    }

    /// Whether other graphs have a state in common with this one; see `state::shared` of the importer.
    pub fn is_shared(&self, state: usize) -> bool {
        self.inputs.get(self.given_inputs() + state).is_some_and(|input| input.default.is_some())
    }

    /// Whether a state is an input alone, without an output.
    pub fn is_alone(&self, state: usize) -> bool {
        let input = self.inputs.get(self.given_inputs() + state).map(|input| &input.name);
        self.is_kept(state) && self.outputs.get(self.given_outputs() + state).map(|(name, _)| name) == input
    }

    /// For each input, its number in the ONNX model, where states are among the others.
    pub fn input_numbers(&self) -> Vec<usize> {
        numbers(self.inputs.len(), self.states.iter().map(|state| state.ports.0).collect())
    }

    /// For each output, its number in the ONNX model.
    pub fn output_numbers(&self) -> Vec<usize> {
        numbers(self.outputs.len(), self.states.iter().map(|state| state.ports.1).collect())
    }

    /// The dim that the tensor of an input has along an axis when a run begins: of a state that grows, not the room for it.
    pub fn found_dim(&self, input: usize, axis: usize) -> Dim {
        match self.state_of_input(input).and_then(|state| state.growth.as_ref()) {
            Some(growth) if growth.axis == axis => Dim::sym(growth.size),
            _ => self.input_ty(input).shape[axis].clone(),
        }
    }

    /// The dims that the tensor of an input has when a run begins; see [`Graph::found_dim`].
    pub fn found_shape(&self, input: usize) -> Vec<Dim> {
        (0..self.input_ty(input).rank()).map(|axis| self.found_dim(input, axis)).collect()
    }

    /// The symbols that a state determines: its tensors' dims and its sizes, by number.
    pub fn state_symbols(&self) -> Vec<Sym> {
        let mut symbols: BTreeSet<Sym> = BTreeSet::new();
        for (at, state) in (self.given_inputs()..).zip(&self.states) {
            for dim in &self.input_ty(at).shape {
                dim.visit_symbols(&mut |sym| symbols.extend([sym]));
            }
            symbols.extend(state.growth.iter().map(|growth| growth.size));
        }
        symbols.into_iter().collect()
    }
}
