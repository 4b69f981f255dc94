//! What a rank holds and exchanges, for people.

use std::collections::{BTreeMap, HashSet};

use onnxc_ir::graph::{Dim, Graph, Op, ValueId};

/// The exchanges of one kind in a run of a rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchanged {
    pub name: &'static str,
    pub count: usize,
    /// Bytes that the rank sends.
    pub bytes: Dim,
}

/// What a rank holds and sends.
#[derive(Clone, PartialEq, Debug)]
pub struct Holding {
    pub rank: i64,
    /// Bytes of constants.
    pub weights: Dim,
    /// Bytes of states.
    pub states: Dim,
    pub exchanged: Vec<Exchanged>,
}

impl Holding {
    /// Of the graph of a rank; `None` for one of a whole model.
    pub fn of(graph: &Graph) -> Option<Holding> {
        let own = graph.rank?;
        let mut seen: HashSet<ValueId> = HashSet::new();
        let mut weights = Dim::ZERO;
        let mut exchanged: BTreeMap<&'static str, (usize, Dim)> = BTreeMap::new();
        for &id in &graph.order {
            let node = &graph.nodes[id];
            for &input in &node.inputs {
                if graph.is_constant(input) && seen.insert(input) {
                    weights = weights + graph.ty(input).bytes();
                }
            }
            if let Op::Exchange(exchange) = &node.op {
                let given =
                    exchange.given(&node.inputs, graph).map_or(Dim::ZERO, |value| graph.ty(value).bytes());
                let entry = exchanged.entry(exchange.name()).or_insert((0, Dim::ZERO));
                *entry = (entry.0 + 1, entry.1.clone() + exchange.sent(&given, own.rank));
            }
        }
        let states = graph.states.iter().fold(Dim::ZERO, |sum, state| {
            let mut ty = state.ty.clone();
            if let Some(growth) = &state.growth {
                ty.shape[growth.axis] = growth.capacity.clone();
            }
            sum + ty.bytes()
        });
        let exchanged =
            exchanged.into_iter().map(|(name, (count, bytes))| Exchanged { name, count, bytes }).collect();
        Some(Holding { rank: own.rank, weights, states, exchanged })
    }

    /// A line for people.
    pub fn text(&self, graph: &Graph) -> String {
        let dim = |dim: &Dim| graph.dim_text(dim);
        let mut text = format!("rank {}: {} bytes of weights", self.rank, dim(&self.weights));
        if self.states != Dim::ZERO {
            text += &format!(", {} of states", dim(&self.states));
        }
        let mut sum = Dim::ZERO;
        let mut parts = vec![];
        for Exchanged { name, count, bytes } in &self.exchanged {
            sum = sum + bytes.clone();
            parts.push(format!("{count} {name} ({})", dim(bytes)));
        }
        match parts.is_empty() {
            true => text + "; sends nothing",
            false => text + &format!("; sends {} bytes a run: {}", dim(&sum), parts.join(", ")),
        }
    }
}
