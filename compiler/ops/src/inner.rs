//! Graphs inside another one, while they are written.

use std::collections::{HashMap, HashSet};

use super::Body;
use super::item::Item;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Constant, Def, Dim, Graph, OriginId, ValueId};

/// A body while it is written. What it takes of the graph around becomes an input behind all others.
#[derive(Debug)]
pub struct Inner {
    pub graph: Graph,
    origin: OriginId,
    /// Values of the graph around, each with the input that stands for it.
    captures: Vec<(ValueId, ValueId)>,
    /// Values of the graph around, and what they are here.
    known: HashMap<ValueId, ValueId>,
}

impl Inner {
    /// A body of the node of a builder, with the symbols around it.
    pub fn new(b: &Builder<'_>) -> Inner {
        let (graph, origin) = b.body();
        Inner { graph, origin, captures: vec![], known: HashMap::new() }
    }

    pub fn builder(&mut self) -> Builder<'_> {
        Builder::new(&mut self.graph, self.origin)
    }

    /// What a value of the graph around is in the body: a constant of its own, or one more input.
    pub fn take(&mut self, outer: &Graph, value: ValueId) -> ValueId {
        if let Some(&known) = self.known.get(&value) {
            return known;
        }
        let source = &outer.values[value];
        let taken = if let Def::Const(Constant::Data(tensor)) = &source.def {
            let copy = self.builder().constant(tensor.clone());
            self.graph.values[copy].name = source.name.clone();
            copy
        } else {
            let input = self.builder().input(&source.name, source.ty.clone(), None);
            self.graph.values[input].known =
                source.known.as_ref().map(|known| known.iter().map(Dim::clone).collect());
            self.captures.push((value, input));
            input
        };
        self.known.insert(value, taken);
        taken
    }

    /// The body with `inputs` before what it takes of the graph around. Its results are those that the graph has as outputs.
    pub fn finish(mut self, inputs: &[ValueId], results: &[Item]) -> Body {
        self.graph.keep_reachable();
        let used = used_values(&self.graph);
        self.captures.retain(|(_, input)| used.contains(input));
        let inputs: Vec<ValueId> =
            inputs.iter().copied().chain(self.captures.iter().map(|capture| capture.1)).collect();
        self.graph.set_inputs(&inputs);
        let results = results.iter().map(Item::layout).collect();
        let captures = self.captures.into_iter().map(|capture| capture.0).collect();
        Body { graph: self.graph, results, captures, iteration: None }
    }
}

/// What something in a graph uses, be it to read a size.
pub(crate) fn used_values(graph: &Graph) -> HashSet<ValueId> {
    let operands = graph.order.iter().flat_map(|&node| graph.nodes[node].inputs.iter().copied());
    let deferred = graph.values.values().filter_map(|value| match &value.def {
        Def::Const(Constant::Deferred { inputs, .. }) => Some(inputs.clone()),
        _ => None,
    });
    operands
        .chain(graph.outputs.iter().map(|output| output.1))
        .chain(graph.data_sources())
        .chain(deferred.flatten())
        .collect()
}
