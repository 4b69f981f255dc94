//! Makes pairs of inputs and outputs state of the caller's memory; see [`onnxc_ir::graph::state`].
//!
//! [`pairs_of`] finds such pairs by the names that exporters give them, [`keep`] makes them state.

pub mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;

use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Kind, Result, Stage};
use onnxc_ir::graph::claim::{Stated, printable};
use onnxc_ir::graph::state::move_to_end;
use onnxc_ir::graph::{
    Assumption, DType, Def, Dim, Graph, Growth, NodeId, Op, Requirement, State, Sym, Symbol, ValueId,
};
use onnxc_ir::words::did_you_mean;

/// An input and an output that are to be one tensor: `INPUT=OUTPUT`, or `INPUT=OUTPUT:AXIS` with the axis along which the output
/// is longer. Without it the axis is the one in which the shapes differ. `INPUT`, whose output has the same name, is an input alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    pub input: String,
    pub output: String,
    pub axis: Option<usize>,
}

/// What of a model is state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// The pairs that [`pairs_of`] finds.
    pub found: bool,
    pub pairs: Vec<Pair>,
    /// Capacity along an axis that grows, in elements; without it, it is chosen when a state is made.
    pub capacity: Option<usize>,
}

impl Choice {
    /// From texts as the command line takes them: pairs, and `auto` for those that are found.
    pub fn parse(texts: &[String], capacity: Option<usize>) -> Result<Choice> {
        let (found, pairs): (Vec<&String>, Vec<&String>) = texts.iter().partition(|text| *text == "auto");
        let pairs = pairs.into_iter().map(|text| Pair::from_str(text)).collect::<Result<_>>()?;
        Ok(Choice { found: !found.is_empty(), pairs, capacity })
    }
}

fn usage<T>(message: String) -> Result<T> {
    Err(Error::new(Stage::Import, Kind::Usage, message))
}

impl FromStr for Pair {
    type Err = Error;

    fn from_str(text: &str) -> Result<Pair> {
        let (input, output) = text.split_once('=').unwrap_or((text, text));
        if input.is_empty() || output.is_empty() {
            return usage(format!(
                "state `{text}`: must be INPUT=OUTPUT, INPUT=OUTPUT:AXIS, INPUT, or `auto`"
            ));
        }
        let (output, axis) = match output.rsplit_once(':') {
            Some((name, axis)) if axis.parse::<usize>().is_ok() => (name, axis.parse().ok()),
            _ => (output, None),
        };
        Ok(Pair { input: input.to_string(), output: output.to_string(), axis })
    }
}

/// Text form: as it is read.
impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.input)?;
        if self.input != self.output {
            write!(f, "={}", self.output)?;
        }
        self.axis.map_or(Ok(()), |axis| write!(f, ":{axis}"))
    }
}

/// Parts of the names of inputs, and what stands in their place in the name of the output, as exporters write them.
const CONVENTIONS: [(&str, &str); 7] = [
    ("past_key_values", "present"),
    ("past_key_values", "present_key_values"),
    ("past", "present"),
    ("prev", "next"),
    ("cache_in", "cache_out"),
    ("state_in", "state_out"),
    ("in_cache", "out_cache"),
];

/// Names that an output of the same tensor may have.
fn names_after(input: &str) -> Vec<String> {
    let replaced = CONVENTIONS.iter().filter(|(from, _)| input.contains(from));
    let mut names: Vec<String> = replaced.map(|(from, to)| input.replacen(from, to, 1)).collect();
    names.extend([format!("new_{input}"), format!("{input}N"), format!("{input}n")]);
    names
}

/// Inputs with the names of paired inputs, of the same rank, but without an output: caches that another model makes, such as those of
/// cross-attention.
fn alone(graph: &Graph, pairs: &[Pair]) -> Vec<Pair> {
    let of = |name: &str| graph.inputs.iter().position(|input| input.name == name);
    let is_like = |input: usize, (from, to): (&str, &str)| {
        let mut named = pairs.iter().filter(|pair| pair.output == pair.input.replacen(from, to, 1));
        let (ty, name) = (graph.input_ty(input), &graph.inputs[input].name);
        let gone = graph.outputs.iter().all(|(output, _)| *output != name.replacen(from, to, 1));
        let same = |pair: &Pair| {
            let other = of(&pair.input).map(|other| graph.input_ty(other));
            pair.input.contains(from)
                && other.is_some_and(|other| other.dtype == ty.dtype && other.rank() == ty.rank())
        };
        name.contains(from) && gone && named.any(same)
    };
    let names = graph.inputs.iter().enumerate().filter(|(at, input)| {
        input.default.is_none()
            && pairs.iter().all(|pair| pair.input != input.name)
            && CONVENTIONS.iter().any(|&convention| is_like(*at, convention))
    });
    let pair = |name: &String| Pair { input: name.clone(), output: name.clone(), axis: None };
    names.map(|(_, input)| pair(&input.name)).collect()
}

/// Pairs of inputs and outputs that are state by their names, or as they are the first and last states of the same loop over
/// time; and inputs alone that belong to them.
pub fn pairs_of(graph: &Graph) -> Vec<Pair> {
    let mut taken: HashSet<usize> = HashSet::new();
    let mut pairs = vec![];
    for (at, input) in graph.inputs.iter().enumerate().filter(|(_, input)| input.default.is_none()) {
        let fits = |output: usize| {
            let (from, to) = (graph.input_ty(at), graph.output_ty(output));
            from.dtype == to.dtype && from.rank() == to.rank() && !from.dtype.is_packed()
        };
        let named = names_after(&input.name).into_iter().find_map(|wanted| {
            graph.outputs.iter().position(|(name, _)| *name == wanted).filter(|&output| fits(output))
        });
        let found = named.or_else(|| {
            let carried = |output: &usize| {
                graph.input_ty(at).shape == graph.output_ty(*output).shape
                    && fits(*output)
                    && is_carried(graph, graph.outputs[*output].1, input.value)
            };
            (0..graph.outputs.len()).filter(|output| !taken.contains(output)).find(carried)
        });
        if let Some(output) = found
            && taken.insert(output)
        {
            let (input, output) = (input.name.clone(), graph.outputs[output].0.clone());
            pairs.push(Pair { input, output, axis: None });
        }
    }
    pairs.extend(alone(graph, &pairs));
    pairs
}

/// Whether an output is made of nothing but the last states of loops whose first ones are made of the input.
fn is_carried(graph: &Graph, output: ValueId, input: ValueId) -> bool {
    let moves = |op: &Op| op.is_view() || matches!(op, Op::Concat { .. });
    let (mut open, mut firsts, mut seen) = (vec![output], vec![], HashSet::new());
    while let Some(value) = open.pop() {
        if !seen.insert(value) {
            continue;
        }
        let Def::Node(node, result) = graph.values[value].def else { return false };
        let node = &graph.nodes[node];
        match &node.op {
            Op::Scan { states, .. } if result < *states => firsts.push(node.inputs[result]),
            op if moves(op) => open.extend(&node.inputs),
            _ => return false,
        }
    }
    !firsts.is_empty()
        && firsts.into_iter().all(|mut value| {
            while let Some(node) = graph.producer(value)
                && graph.nodes[node].op.is_view()
            {
                value = graph.nodes[node].inputs[0];
            }
            value == input
        })
}

/// The pairs that are chosen.
fn chosen(graph: &Graph, choice: &Choice) -> Result<Vec<Pair>> {
    let mut pairs = choice.pairs.clone();
    if choice.found {
        let found = pairs_of(graph);
        if found.is_empty() && pairs.is_empty() {
            return usage(
                "no input and output are state by their names; name them: --state INPUT=OUTPUT".into(),
            );
        }
        let is_named =
            |pair: &Pair| pairs.iter().any(|named| named.input == pair.input || named.output == pair.output);
        let more: Vec<Pair> = found.into_iter().filter(|pair| !is_named(pair)).collect();
        pairs.extend(more);
    }
    Ok(pairs)
}

/// Makes pairs of inputs and outputs state. Errors: names that are none, types that do not fit, a growing output that is not its
/// input with more behind it.
pub fn keep(graph: &mut Graph, choice: &Choice) -> Result<()> {
    let pairs = chosen(graph, choice)?;
    give_back(graph, &pairs);
    let mut ports = vec![];
    for pair in &pairs {
        ports.push(find(graph, pair)?);
    }
    for (at, pair) in pairs.iter().enumerate() {
        let (input, output) = ports[at];
        for (name, twice) in [
            (&pair.input, ports[..at].iter().any(|other| other.0 == input)),
            (&pair.output, ports[..at].iter().any(|other| other.1 == output)),
        ] {
            if twice {
                return usage(format!("state {pair}: `{name}` is in more than one pair"));
            }
        }
    }
    let mut grown: BTreeMap<Sym, (Dim, Dim)> = BTreeMap::new();
    let mut states = vec![];
    for (pair, &(input, output)) in pairs.iter().zip(&ports) {
        let growth = match growing_axis(graph, pair, input, output)? {
            None => {
                same_sizes(graph, pair, input, output);
                None
            }
            Some((axis, size)) => {
                let next = graph.ty(graph.outputs[output].1).shape[axis].clone();
                let (most, shared) = grown.entry(size).or_insert_with(|| {
                    let name = format!("{}.capacity", graph.symbols[size].name);
                    let symbol = || Dim::sym(graph.symbols.push(Symbol { name }));
                    (choice.capacity.map_or_else(symbol, Dim::from), next.clone())
                });
                if *shared != next {
                    let text = |dim: &Dim| graph.dim_text(dim);
                    return usage(format!(
                        "state {pair}: it grows to {}, another one of the same size to {}",
                        text(&next),
                        text(shared)
                    ));
                }
                Some(Growth { axis, size, next, capacity: most.clone() })
            }
        };
        if let Some(growth) = &growth {
            append(graph, pair, (input, output), growth)?;
        }
        let ty = graph.ty(graph.inputs[input].value).clone();
        states.push(State { ports: (input, output), ty, growth, panels: None });
    }
    move_to_end(graph, &ports);
    graph.states = states;
    Ok(())
}

/// The outputs that become state.
pub fn outputs(graph: &Graph, choice: &Choice) -> Result<Vec<String>> {
    let own = |pair: &Pair| graph.outputs.iter().any(|(name, _)| *name == pair.output);
    Ok(chosen(graph, choice)?.into_iter().filter(own).map(|pair| pair.output).collect())
}

/// Gives inputs alone an output.
fn give_back(graph: &mut Graph, pairs: &[Pair]) {
    for pair in pairs.iter().filter(|pair| pair.input == pair.output) {
        let input = graph.inputs.iter().find(|input| input.name == pair.input).map(|input| input.value);
        if let Some(value) = input
            && graph.outputs.iter().all(|(name, _)| *name != pair.output)
        {
            graph.outputs.push((pair.output.clone(), value));
        }
    }
}

fn find(graph: &Graph, pair: &Pair) -> Result<(usize, usize)> {
    let input = graph.inputs.iter().position(|input| input.name == pair.input);
    let output = graph.outputs.iter().position(|(name, _)| *name == pair.output);
    let (Some(input), Some(output)) = (input, output) else {
        let (kind, name, all): (_, _, Vec<&str>) = match input {
            None => ("input", &pair.input, graph.inputs.iter().map(|input| input.name.as_str()).collect()),
            Some(_) => {
                ("output", &pair.output, graph.outputs.iter().map(|(name, _)| name.as_str()).collect())
            }
        };
        let hint = did_you_mean(name, all.iter().copied());
        return usage(format!("state {pair}: no {kind} is `{name}`{hint}; there are {}", all.join(", ")));
    };
    let (from, to) = (graph.input_ty(input), graph.output_ty(output));
    let parts = graph.input_parts.contains_key(&input) || graph.output_parts.contains_key(&output);
    if let Some(own) = graph.any_rank.get(&output) {
        return usage(format!("state {pair}: the output has no rank of its own: {}", own.text(to.rank())));
    }
    if from.dtype != to.dtype || from.rank() != to.rank() {
        return usage(format!("state {pair}: the input is {from}, the output {to}"));
    }
    if parts || from.dtype.is_packed() || from.dtype == DType::Str {
        return usage(format!("state {pair}: only dense tensors of whole bytes can be state, not {from}"));
    }
    if from.shape.iter().chain(&to.shape).any(|dim| graph.is_data_dim(dim)) {
        return usage(format!("state {pair}: only the data decides its size, {to}"));
    }
    if graph.inputs[input].default.is_some() {
        return usage(format!("state {pair}: the input has a default"));
    }
    Ok((input, output))
}

/// The axis along which the output is longer than the input, whose size there is a symbol; `None` if the shapes are the same.
fn growing_axis(graph: &Graph, pair: &Pair, input: usize, output: usize) -> Result<Option<(usize, Sym)>> {
    let (from, to) = (&graph.input_ty(input).shape, &graph.output_ty(output).shape);
    let text = |shape: &[Dim]| {
        let dims: Vec<String> = shape.iter().map(|dim| graph.dim_text(dim)).collect();
        format!("[{}]", dims.join(", "))
    };
    let grows = |axis: &usize| {
        let mut mentioned = false;
        to[*axis].visit_symbols(&mut |sym| mentioned |= from[*axis].as_sym() == Some(sym));
        from[*axis] != to[*axis] && mentioned
    };
    let axis = match (pair.axis, &(0..from.len()).filter(grows).collect::<Vec<_>>()[..]) {
        (Some(axis), _) if axis < from.len() => axis,
        (Some(_), _) => return usage(format!("state {pair}: the input has rank {}", from.len())),
        // Sizes that must be the same, under any names.
        (None, []) if from.iter().zip(to).all(|(a, b)| a == b || !a.is_const() || !b.is_const()) => {
            return Ok(None);
        }
        (None, &[axis]) => axis,
        (None, found) => {
            let (from, to) = (text(from), text(to));
            return usage(format!(
                "state {pair}: the shapes {from} and {to} differ, and {} axis of the input is a symbol to which the output \
                 adds; INPUT=OUTPUT:AXIS selects the one that grows",
                if found.is_empty() { "no" } else { "more than one" }
            ));
        }
    };
    match from[axis].as_sym() {
        Some(size) if !graph.data.contains_key(&size) => Ok(Some((axis, size))),
        _ => usage(format!(
            "state {pair}: axis {axis} of the input, which is to grow, is {}, and must be a symbol of its own",
            graph.dim_text(&from[axis])
        )),
    }
}

/// A run checks that the tensor that replaces a state has its dims.
fn same_sizes(graph: &mut Graph, pair: &Pair, input: usize, output: usize) {
    let (from, to) = (graph.input_ty(input).shape.clone(), graph.output_ty(output).shape.clone());
    for (axis, (left, right)) in
        to.into_iter().zip(from).enumerate().filter(|(_, (left, right))| left != right)
    {
        let node = format!("state `{}`", printable(&pair.to_string()));
        let name = format!("dimension {axis} of what a run leaves");
        let Stated { requirement, claim } =
            Requirement::equal(left, right).says(name, "that of what it finds");
        graph.assumptions.insert(Assumption { requirement, node: node.into(), claim });
    }
}

/// Sizes that symbols of the inputs of pairs must have, as those of the outputs are numbers: by name. The model is to be
/// imported with them.
pub fn fixed_dims(graph: &Graph, choice: &Choice) -> Result<BTreeMap<String, i64>> {
    let mut fixed = BTreeMap::new();
    for pair in chosen(graph, choice)?.into_iter().filter(|pair| pair.input != pair.output) {
        let (input, output) = find(graph, &pair)?;
        for (from, to) in graph.input_ty(input).shape.iter().zip(&graph.output_ty(output).shape) {
            if let (Some(symbol), Some(size)) = (from.as_sym(), to.as_const()) {
                let axis = graph.input_ty(input).shape.iter().position(|dim| dim == from).unwrap_or(0);
                let target = match graph.symbols[symbol].name.as_str() {
                    name if name.starts_with('?') => format!("{}:{axis}", pair.input),
                    name => name.to_string(),
                };
                fixed.insert(target, size);
            }
        }
    }
    Ok(fixed)
}

/// Turns the concatenation that makes a growing output into an append to the input, which all readers of both read.
fn append(graph: &mut Graph, pair: &Pair, (input, output): (usize, usize), growth: &Growth) -> Result<()> {
    let (past, present) = (graph.inputs[input].value, graph.outputs[output].1);
    let axis = growth.axis;
    let joined = graph.producer(present).filter(|&node| {
        let node = &graph.nodes[node];
        matches!(node.op, Op::Concat { axis: own } if own == axis) && node.inputs[0] == past
    });
    let Some(joined) = joined else {
        let message = format!(
            "state {pair}: the output is not the input with more behind it along axis {axis} (a concatenation of the two); rows of \
             a batch that may have caches of unlike length are not: pin the batch to 1"
        );
        let error = Error::new(Stage::Import, Kind::Usage, message);
        return Err(match graph.producer(present) {
            Some(node) => error.at(graph.node_ref(node)),
            None => error,
        });
    };
    let shapes = (graph.ty(past).shape.clone(), graph.ty(present).shape.clone());
    let (origin, added) = (graph.nodes[joined].origin, graph.nodes[joined].inputs[1..].to_vec());
    let at = graph.order.iter().position(|&node| node == joined).unwrap_or(graph.order.len());
    let mut others = graph.order.iter().filter(|&&node| node != joined);
    let is_read = others.any(|&node| graph.nodes[node].inputs.contains(&past))
        || graph.outputs.iter().any(|&(_, value)| value == past);
    let rest = graph.order.split_off(at);
    let mut shape = shapes.0.clone();
    shape[axis] = growth.capacity.clone();
    graph.values[past].ty.shape = shape;
    let before = graph.order.len();
    let mut b = Builder::new(graph, origin);
    let new = if added.len() == 1 { added[0] } else { b.concat(&added, axis)? };
    let op = Op::Append { axis, at: Dim::sym(growth.size), panel: None };
    let whole = b.emit1(op, &[past, new])?;
    let mut first = |sizes: Vec<Dim>| {
        let (starts, steps) = (vec![Dim::ZERO; sizes.len()], vec![1; sizes.len()]);
        b.emit1(Op::Slice { starts, steps, sizes }, &[whole])
    };
    let then = first(shapes.1)?;
    let earlier = if is_read { first(shapes.0)? } else { past };
    graph.values[whole].name = std::mem::take(&mut graph.values[present].name);
    let made: HashSet<NodeId> = graph.order[before..].iter().copied().collect();
    graph.order.extend(rest.into_iter().filter(|&node| node != joined));
    for &node in graph.order.iter().filter(|node| !made.contains(node)) {
        for value in &mut graph.nodes[node].inputs {
            *value = match *value {
                own if own == past => earlier,
                own if own == present => then,
                other => other,
            };
        }
    }
    for (at, (_, value)) in graph.outputs.iter_mut().enumerate() {
        *value = match *value {
            own if own == present && at == output => whole,
            own if own == present => then,
            own if own == past => earlier,
            other => other,
        };
    }
    match graph.sort() {
        true => Ok(()),
        false => usage(format!("state {pair}: what is appended depends on what is there")),
    }
}
