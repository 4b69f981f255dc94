//! The rule of loops: a loop that runs back over values that the loop itself has kept.
//!
//! The way back needs values of each iteration. The loop stacks its states as an iteration finds them, and what is expensive
//! to compute again; the rest is computed again from these. What the run back adds up for a captured value is a state of
//! it, or a product of stacked operands behind it.

use std::collections::BTreeSet;
use std::sync::Arc;

use cranelift_entity::EntitySet;

use super::sums_behind::Behind;
use super::{Rule, adjoints, dependent, is_continuous, zeros};
use crate::control::iterate::as_type;
use crate::inner::used_values;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{
    DType, Def, Dim, Graph, MapFn, Node, NodeId, Op, Tensor, TensorType, Value, ValueId, inverse,
};
use onnxc_ir::scalar::{BinaryFn, ReduceFn};

/// Iterations beyond which memory for what all of them keep is not set aside.
const FEW: i64 = 1024;

/// The graph of an iteration back, and what it takes and gives.
struct Back {
    graph: Graph,
    /// States of the loop that have an adjoint, each with the input that is that of its next value.
    carried: Vec<(usize, ValueId)>,
    /// Results of the loop, stacked ones, with the inputs that are adjoints of their parts.
    stacked: Vec<(usize, ValueId)>,
    /// Adjoints of the inputs of the body; `None` is 0.
    of_inputs: Vec<Option<ValueId>>,
}

impl Rule<'_, '_> {
    pub(super) fn repeated(&mut self) -> Result<Vec<Option<ValueId>>> {
        let Op::Scan { body, trip, conditional, states, scans, reverse, .. } = &self.node.op else {
            return self.unknown();
        };
        let (body, states, scans) = (body.clone(), *states, *scans);
        let mut back = self.iteration_back(&body, states)?;
        let carried = |at: usize| back.carried.iter().any(|&(state, _)| state == at);
        if !(0..body.inputs.len()).any(|at| carried(at) || back.of_inputs[at].is_some()) {
            return Ok(vec![None; self.node.inputs.len()]);
        }
        let primal = Graph { assumptions: body.assumptions.clone(), ..back.graph.clone() };

        // What it gives: adjoints of states before the iteration, sums for what is captured, parts for what is scanned.
        let (mut next, mut sums, mut behind, mut parts) = (vec![], vec![], vec![], vec![]);
        let own: Vec<ValueId> = body.inputs.iter().map(|input| input.value).collect();
        let mut scanned: Vec<(ValueId, usize)> = vec![];
        let origin = back.graph.origins.push(self.b.source());
        let mut b = Builder::new(&mut back.graph, origin);
        for &(state, _) in &back.carried {
            next.push(match back.of_inputs[state] {
                Some(adjoint) => adjoint,
                None => {
                    let (dtype, shape) = (b.dtype(own[state]), b.shape(own[state]));
                    zeros(&mut b, dtype, shape)?
                }
            });
        }
        for (at, scan) in (states..states + scans).enumerate() {
            if let Some(part) = back.of_inputs[scan] {
                scanned.push((part, at));
            }
        }
        for (at, adjoint) in back.of_inputs.iter().enumerate().skip(states + scans) {
            let Some(adjoint) = *adjoint else { continue };
            if let Some(found) = Behind::of(b.graph, adjoint, body.nodes.len()) {
                behind.push((at, found));
                continue;
            }
            let wide = b.widened(adjoint)?;
            let sum = b.input("", b.ty(wide).clone(), None);
            sums.push((at, sum, b.binary(BinaryFn::Add, sum, wide)?));
        }
        for (_, found) in &behind {
            found.operands(&mut parts);
        }
        parts.sort_unstable();
        parts.dedup();
        let results = next.iter().copied().chain(sums.iter().map(|sum| sum.2));
        let results = results.chain(scanned.iter().map(|part| part.0)).chain(parts.iter().copied());
        back.graph.outputs = results.map(|value| (String::new(), value)).collect();
        back.graph.keep_reachable();

        let kept = kept(&back.graph, &body, states + scans);
        let (needed, symbol_free) = {
            // The kept ones are inputs from here on.
            let inputs: Vec<ValueId> = back.graph.inputs.iter().map(|input| input.value).collect();
            back.graph.set_inputs(&[inputs, kept.clone()].concat());
            back.graph.keep_reachable();
            let used = used_values(&back.graph);
            let needed: Vec<usize> = (0..own.len()).filter(|&at| used.contains(&own[at])).collect();
            let free = |value: ValueId| is_stackable(&back.graph, value);
            let symbol_free = needed.iter().filter(|&&at| at < states).all(|&at| free(own[at]));
            (needed, symbol_free)
        };
        if !symbol_free || back.carried.iter().any(|&(state, _)| !is_stackable(&back.graph, own[state])) {
            return self.refused("its iterations hand on values of other sizes than they are given");
        }
        let of_states: Vec<usize> = needed.iter().copied().filter(|&at| at < states).collect();
        let saved: Vec<ValueId> = of_states.iter().map(|&at| own[at]).chain(kept.iter().copied()).collect();
        let (length, stacks) = self.keep(primal, &body, (trip, *conditional), states, &saved)?;

        // The run back.
        let mut taken: Vec<ValueId> = back.carried.iter().map(|carried| carried.1).collect();
        taken.extend(sums.iter().map(|sum| sum.1));
        let mut operands = vec![];
        for &(state, _) in &back.carried {
            let initial = match self.of_results[state] {
                Some(adjoint) => adjoint,
                None => zeros(self.b, self.b.dtype(self.operand(state)), self.b.shape(self.operand(state)))?,
            };
            operands.push(initial);
        }
        for &(_, sum, _) in &sums {
            let ty = back.graph.ty(sum).clone();
            operands.push(zeros(self.b, ty.dtype, ty.shape)?);
        }
        let carries = operands.len();
        let mut directions = vec![];
        let mut outside: Vec<(ValueId, ValueId)> = vec![];
        for &at in needed.iter().filter(|&&at| (states..states + scans).contains(&at)) {
            taken.push(own[at]);
            operands.push(self.operand(at));
            directions.push(!reverse[at - states]);
            if !reverse[at - states] {
                outside.push((own[at], self.operand(at)));
            }
        }
        for (&value, &stack) in saved.iter().zip(&stacks) {
            taken.push(value);
            operands.push(stack);
            directions.push(true);
            outside.push((value, stack));
        }
        for &(result, input) in &back.stacked {
            taken.push(input);
            operands.extend(self.of_results[result]);
            let flipped = reverse[scans + result - states];
            directions.push(!flipped);
        }
        let slices = directions.len();
        for &at in needed.iter().filter(|&&at| at >= states + scans) {
            taken.push(own[at]);
            operands.push(self.operand(at));
        }
        directions.extend(scanned.iter().map(|&(_, scan)| !reverse[scan]));
        directions.extend(parts.iter().map(|_| true));
        back.graph.set_inputs(&taken);
        back.graph.adopt_symbols(self.b.graph);
        let graph = back.graph;
        let results = self.b.emit(Op::scan(graph, length, carries, slices, directions), &operands)?;

        let mut found = vec![None; self.node.inputs.len()];
        let mut results = results.into_iter();
        for ((state, _), result) in back.carried.iter().zip(results.by_ref().take(back.carried.len())) {
            found[*state] = Some(result);
        }
        for ((at, ..), result) in sums.iter().zip(results.by_ref().take(sums.len())) {
            found[*at] = Some(self.b.cast(result, self.b.dtype(self.operand(*at)))?);
        }
        for ((_, scan), result) in scanned.iter().zip(results.by_ref().take(scanned.len())) {
            found[states + scan] = Some(result);
        }
        outside.extend(parts.into_iter().zip(results));
        for (at, sum) in behind {
            let sum = sum.emit(self.b, &outside)?;
            found[at] = Some(self.b.reshape(sum, self.b.shape(self.operand(at)))?);
        }
        Ok(found)
    }

    /// A running combination as a loop along its axis.
    pub(super) fn cumulated(
        &mut self,
        op: ReduceFn,
        axis: usize,
        (exclusive, reverse): (bool, bool),
        g: ValueId,
    ) -> Result<Vec<Option<ValueId>>> {
        let start = match op {
            ReduceFn::Prod => 1.0,
            ReduceFn::Max => f64::NEG_INFINITY,
            ReduceFn::Min => f64::INFINITY,
            _ => return self.unknown(),
        };
        let (x, first) = (self.operand(0), self.b.graph.order.len());
        let front: Vec<usize> =
            [axis].into_iter().chain((0..self.b.rank(x)).filter(|&at| at != axis)).collect();
        let lines = self.b.transpose(x, &front)?;
        let TensorType { dtype, mut shape } = self.b.ty(lines).clone();
        let trip = shape.remove(0);
        let start = self.b.scalar(dtype, start);
        let start = self.b.expand(start, shape.clone())?;
        let (mut body, origin) = self.b.body();
        let mut b = Builder::new(&mut body, origin);
        let [before, own] = [(); 2].map(|()| b.input("", TensorType::new(dtype, shape.clone()), None));
        let next = b.binary(op.combine(), before, own)?;
        body.outputs =
            [next, if exclusive { before } else { next }].map(|value| (String::new(), value)).into();
        let results = self.b.emit(Op::scan(body, trip, 1, 1, vec![reverse; 2]), &[start, lines])?;
        let y = self.b.transpose(results[1], &inverse(&front))?;
        self.by_way_of(first, y, g)
    }

    /// The nodes of an iteration and those of its adjoints.
    fn iteration_back(&mut self, body: &Graph, states: usize) -> Result<Back> {
        let mut active: Vec<bool> = self.wanted.to_vec();
        loop {
            let xs: Vec<ValueId> =
                (0..active.len()).filter(|&at| active[at]).map(|at| body.inputs[at].value).collect();
            let depends = dependent(body, &body.order, &xs);
            let before = active.clone();
            for (at, slot) in active.iter_mut().enumerate().take(states) {
                let next = body.outputs[at].1;
                *slot |= depends.contains(next) && is_continuous(body, next);
            }
            if active == before {
                break;
            }
        }
        // States whose adjoint can be other than 0.
        let mut seeded: Vec<bool> = self.of_results.iter().map(Option::is_some).collect();
        loop {
            let seeds = body.outputs.iter().zip(&seeded).filter(|(_, seeded)| **seeded);
            let reach = reaching(body, seeds.map(|(output, _)| output.1));
            let before = seeded.clone();
            for (at, slot) in seeded.iter_mut().enumerate().take(states) {
                *slot |= active[at] && reach.contains(body.inputs[at].value);
            }
            if seeded == before {
                break;
            }
        }
        let mut graph = Graph { outputs: vec![], ..body.clone() };
        graph.adopt_symbols(self.b.graph);
        let nodes = graph.order.clone();
        let origin = graph.origins.push(self.b.source());
        let mut b = Builder::new(&mut graph, origin);
        let (mut carried, mut stacked, mut seeds) = (vec![], vec![], vec![]);
        for at in (0..body.outputs.len()).filter(|&at| seeded[at]) {
            let value = body.outputs[at].1;
            if at < states {
                if active[at] {
                    let input = b.input("", b.ty(value).clone(), None);
                    carried.push((at, input));
                    seeds.push((value, input));
                }
                continue;
            }
            let TensorType { dtype, mut shape } = self.b.ty(self.node.outputs[at]).clone();
            shape.remove(0);
            let input = b.input("", TensorType::new(dtype, shape), None);
            stacked.push((at, input));
            seeds.push((value, as_type(&mut b, input, &body.ty(value).shape)?));
        }
        let is_wanted = |at: usize| active[at] && (at >= states || seeded[at]);
        let xs: Vec<usize> = (0..body.inputs.len()).filter(|&at| is_wanted(at)).collect();
        let values: Vec<ValueId> = xs.iter().map(|&at| body.inputs[at].value).collect();
        let found = adjoints(&mut b, &nodes, &seeds, &values, &mut |_| Ok(()))?;
        let mut of_inputs = vec![None; body.inputs.len()];
        for (at, adjoint) in xs.into_iter().zip(found) {
            of_inputs[at] = adjoint;
        }
        self.b.graph.adopt_symbols(&graph);
        Ok(Back { graph, carried, stacked, of_inputs })
    }

    /// Lets the loop stack `saved` values of its body, which is now `primal`. Gives the number of iterations, and what is
    /// stacked.
    fn keep(
        &mut self,
        mut primal: Graph,
        body: &Graph,
        (trip, conditional): (&Dim, bool),
        states: usize,
        saved: &[ValueId],
    ) -> Result<(Dim, Vec<ValueId>)> {
        primal.outputs.clone_from(&body.outputs);
        primal.outputs.extend(saved.iter().map(|&value| (String::new(), value)));
        primal.order.retain(|node| body.nodes.is_valid(*node));
        let mut inputs: Vec<ValueId> = body.inputs.iter().map(|input| input.value).collect();
        let (mut operands, mut results) = (self.node.inputs.clone(), self.node.outputs.clone());
        let Op::Scan { scans, reverse, shapes, .. } = &self.node.op else { return self.unknown() };
        let (mut carried, mut shapes) = (states, shapes.clone());
        let mut length = trip.clone();
        if conditional && let Some(known) = shapes.get(&states).filter(|_| results.len() > states) {
            length = known[0].clone();
        } else if conditional {
            // The iterations are counted by one more state.
            let origin = primal.origins.push(self.b.source());
            let mut b = Builder::new(&mut primal, origin);
            let count = b.input("", TensorType::new(DType::I64, vec![]), None);
            let next = b.binary_scalar(BinaryFn::Add, count, 1.0)?;
            inputs.insert(states, count);
            primal.outputs.insert(states, (String::new(), next));
            operands.insert(states, self.b.constant(Tensor::scalar(0i64)));
            let total = self.new_value(TensorType::new(DType::I64, vec![]));
            results.insert(states, total);
            let sym = self.b.fresh_symbol();
            let bounded = !self.b.graph.is_data_dim(trip) && trip.as_const().is_none_or(|trip| trip <= FEW);
            self.b.graph.define_symbol(sym, total, 0, bounded.then(|| trip.clone()));
            length = Dim::sym(sym);
            carried += 1;
            primal.adopt_symbols(self.b.graph);
        }
        let stacks: Vec<ValueId> = saved
            .iter()
            .map(|&value| {
                let TensorType { dtype, mut shape } = primal.ty(value).clone();
                shape.insert(0, length.clone());
                if conditional {
                    shapes.insert(results.len(), shape.clone());
                }
                let stack = self.new_value(TensorType::new(dtype, shape));
                results.push(stack);
                stack
            })
            .collect();
        primal.set_inputs(&inputs);
        primal.keep_reachable();
        self.b.graph.adopt_symbols(&primal);
        let mut reverse = reverse.clone();
        reverse.extend(saved.iter().map(|_| false));
        for (at, &result) in results.iter().enumerate() {
            self.b.graph.values[result].def = Def::Node(self.id, at);
        }
        let op = Op::Scan {
            body: Arc::new(primal),
            trip: trip.clone(),
            conditional,
            states: carried,
            scans: *scans,
            reverse,
            shapes,
        };
        let origin = self.node.origin;
        self.b.graph.nodes[self.id] = Node { op, inputs: operands, outputs: results, origin };
        Ok((length, stacks))
    }

    fn new_value(&mut self, ty: TensorType) -> ValueId {
        let def = Def::Node(self.id, 0);
        self.b.graph.values.push(Value { name: String::new(), ty, def, known: None })
    }

    pub(super) fn refused<T>(&self, reason: &str) -> Result<T> {
        let Error { message, .. } = match self.unknown::<T>() {
            Err(error) => error,
            found => return found,
        };
        Err(Error::unsupported(Stage::Import, format!("{message}: {reason}")))
    }
}

/// The values that some of `to` are computed from, and these.
fn reaching(graph: &Graph, to: impl Iterator<Item = ValueId>) -> EntitySet<ValueId> {
    let mut found = EntitySet::new();
    to.for_each(|value| {
        found.insert(value);
    });
    for node in graph.order.iter().rev().map(|&node| &graph.nodes[node]) {
        if node.outputs.iter().any(|&value| found.contains(value)) {
            node.inputs.iter().for_each(|&value| {
                found.insert(value);
            });
        }
    }
    found
}

/// Whether the parts that iterations give have a size that is known outside.
fn is_stackable(graph: &Graph, value: ValueId) -> bool {
    graph.ty(value).dtype != DType::Str && !graph.ty(value).shape.iter().any(|dim| graph.is_data_dim(dim))
}

/// Whether computing something again costs more than keeping it.
fn is_expensive(op: &Op) -> bool {
    match op {
        Op::Map(MapFn::Unary(_) | MapFn::Binary(_)) => false,
        Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Contract { .. }
        | Op::Cumulate { .. }
        | Op::Sort { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::Suppress { .. }
        | Op::Leaves(_) => true,
        op => op.is_hosted(),
    }
}

/// Values of an iteration that are kept for the way back: of nodes of `body` in the graph, those that are expensive and
/// that nodes behind need. What is the same in each iteration is computed outside of both loops.
fn kept(graph: &Graph, body: &Graph, fed: usize) -> Vec<ValueId> {
    let is_forward = |node: NodeId| body.nodes.is_valid(node);
    let mut varies = EntitySet::new();
    for input in &body.inputs[..fed] {
        varies.insert(input.value);
    }
    for &id in graph.order.iter().filter(|&&id| is_forward(id)) {
        let node = &graph.nodes[id];
        if node.inputs.iter().any(|&value| varies.contains(value)) || !graph.data_symbols(id).is_empty() {
            node.outputs.iter().for_each(|&value| {
                varies.insert(value);
            });
        }
    }
    let mut open: Vec<ValueId> = graph.outputs.iter().map(|output| output.1).collect();
    open.extend(graph.data_sources());
    for &id in graph.order.iter().filter(|&&id| !is_forward(id)) {
        open.extend(&graph.nodes[id].inputs);
    }
    let (mut seen, mut found, mut again) = (EntitySet::new(), BTreeSet::new(), EntitySet::new());
    while let Some(value) = open.pop() {
        let Some(id) = graph.producer(value).filter(|&id| is_forward(id) && seen.insert(value)) else {
            continue;
        };
        let node = &graph.nodes[id];
        if varies.contains(value) && is_expensive(&node.op) && is_stackable(graph, value) {
            found.insert(value);
        } else {
            again.insert(id);
            open.extend(&node.inputs);
            open.extend(graph.needs(id));
        }
    }
    // What computes one of its results again computes all of them.
    let is_once = |value: &ValueId| graph.producer(*value).is_none_or(|id| !again.contains(id));
    found.into_iter().filter(is_once).collect()
}
