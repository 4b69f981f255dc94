//! What a rank holds and exchanges, for people.

use std::collections::{BTreeMap, HashMap, HashSet};

use onnxc_ir::graph::{Dim, Graph, Op, ValueId};

/// The exchanges of one kind in a run of a rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Exchanged {
    pub name: &'static str,
    pub count: usize,
    /// Bytes that the rank sends.
    pub bytes: Dim,
}

/// The weights that several ranks of a stage have as a whole, the largest first: a line for people.
pub(crate) fn replicated(graph: &Graph, ranks: &[Graph]) -> Option<String> {
    const NAMED: usize = 4;
    let constants = |graph: &Graph| -> HashMap<String, i64> {
        let used: HashSet<ValueId> =
            graph.order.iter().flat_map(|&id| graph.nodes[id].inputs.iter().copied()).collect();
        let own = used.into_iter().filter(|&value| graph.is_constant(value));
        let of = |value: ValueId| {
            (graph.values[value].name.clone(), graph.ty(value).bytes().as_const().unwrap_or(0))
        };
        own.map(of).filter(|(name, bytes)| !name.is_empty() && *bytes > 0).collect()
    };
    let all = constants(graph);
    let mut holders: HashMap<&str, usize> = HashMap::new();
    for own in ranks {
        for (name, bytes) in constants(own) {
            if let Some((name, _)) = all.get_key_value(&name).filter(|(_, whole)| **whole == bytes) {
                *holders.entry(name).or_default() += 1;
            }
        }
    }
    let mut found: Vec<(i64, &str)> =
        holders.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| (all[name], name)).collect();
    found.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    let sum: i64 = found.iter().map(|(bytes, _)| bytes).sum();
    let named: Vec<String> =
        found.iter().take(NAMED).map(|(bytes, name)| format!("`{name}` ({bytes})")).collect();
    let more = match found.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!found.is_empty())
        .then(|| format!("whole on several ranks: {sum} bytes of weights: {}{more}", named.join(", ")))
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
                let entry = exchanged.entry(exchange.name()).or_insert((0, Dim::ZERO));
                *entry = (entry.0 + 1, entry.1.clone() + exchange.sent(&node.inputs, graph, own.rank));
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
