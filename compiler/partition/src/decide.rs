//! Which ranks compute what: the stage of each node, the layout of each value, the way of each operation.
//!
//! The axes of the mesh are decided one after the other. What the arrangement says of values is spread as wishes, forward and
//! backward, along the ways of operations. Then each node in order takes the way that costs least: what its operands must be exchanged for,
//! its work, and what it takes to give the result the layout that is asked or wished for.

use std::collections::{HashMap, HashSet};

use onnxc_ir::error::Result;
use onnxc_ir::graph::arrangement::Arrangement;
use onnxc_ir::graph::axes::{Share, Way, ways};
use onnxc_ir::graph::{Graph, NodeId, Op, TensorType, ValueId};
use onnxc_ir::scalar::ReduceFn;

use crate::cost;
use crate::layout::{Layout, State, asked as asked_for, whole};
use crate::mesh::Mesh;
use crate::unsupported;

/// What a node does along an axis of the mesh.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Chosen {
    pub operands: Vec<State>,
    pub results: Vec<Given>,
}

/// What a way gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    State(State),
    Partial(ReduceFn),
}

#[derive(Debug)]
pub(crate) struct RankPlan {
    /// The stage of each node, by its place in the mesh.
    pub stage: HashMap<NodeId, usize>,
    /// Layouts of results of nodes, and of states.
    pub layout: HashMap<ValueId, Layout>,
    /// For each axis of the mesh.
    pub chosen: HashMap<NodeId, Vec<Chosen>>,
    /// Values that all stages need whole.
    pub everywhere: HashSet<ValueId>,
}

impl RankPlan {
    /// The layout of a value that has one of its own.
    pub(crate) fn layout(&self, value: ValueId, mesh: &Mesh) -> Layout {
        self.layout.get(&value).cloned().unwrap_or_else(|| whole(mesh))
    }

    /// All decisions.
    pub(crate) fn text(&self, graph: &Graph) -> String {
        let of = |node: &NodeId| {
            let layouts: Vec<_> =
                graph.nodes[*node].outputs.iter().map(|value| self.layout.get(value)).collect();
            format!("{node} {:?} {layouts:?} {:?}\n", self.stage.get(node), self.chosen.get(node))
        };
        graph.order.iter().map(of).collect()
    }
}

pub(crate) fn decide(graph: &Graph, arrangement: &Arrangement, mesh: &Mesh) -> Result<RankPlan> {
    let mut asked: HashMap<ValueId, Layout> = HashMap::new();
    for (value, sharding) in &arrangement.shardings {
        let layout = asked_for(mesh, sharding, graph.ty(*value))?;
        match asked.get(value) {
            Some(other) if *other != layout && mesh.stages.len() == 1 => {
                let message = format!("{}: another node has another sharding of it", sharding.place);
                return Err(unsupported(message));
            }
            _ => drop(asked.insert(*value, layout)),
        }
    }
    let stage = stages(graph, arrangement, mesh);
    let mut plan = RankPlan {
        stage,
        layout: HashMap::new(),
        chosen: HashMap::new(),
        everywhere: graph.data_sources().into_iter().collect(),
    };
    for dim in 0..mesh.radices.len() {
        let asked = asked.iter().map(|(&value, layout)| (value, layout[dim])).collect();
        Axis {
            graph,
            ranks: mesh.radices[dim],
            asked,
            wishes: HashMap::new(),
            states: HashMap::new(),
            plan: &mut plan,
        }
        .decide()?;
    }
    Ok(plan)
}

/// The stage of each node: as it says, or that of its latest operand, or else of its first reader.
fn stages(graph: &Graph, arrangement: &Arrangement, mesh: &Mesh) -> HashMap<NodeId, usize> {
    let mut stage: HashMap<NodeId, usize> = HashMap::new();
    let number = |number: i64| mesh.stages.iter().position(|stage| stage.number == number);
    for &id in &graph.order {
        let node = &graph.nodes[id];
        let own = arrangement.stage(cranelift_entity::EntityRef::index(id)).and_then(number);
        let operands = node.inputs.iter().filter_map(|&input| stage.get(&graph.producer(input)?).copied());
        if let Some(own) = own.or(operands.max()) {
            stage.insert(id, own);
        }
    }
    for &id in graph.order.iter().rev() {
        let readers = stage.get(&id).copied();
        let own = readers.unwrap_or(0);
        stage.insert(id, own);
        for &input in &graph.nodes[id].inputs {
            if let Some(producer) = graph.producer(input)
                && !stage.contains_key(&producer)
            {
                stage.insert(producer, own);
            }
        }
    }
    stage
}

/// Decides one axis of the mesh.
struct Axis<'g, 'p> {
    graph: &'g Graph,
    ranks: usize,
    asked: HashMap<ValueId, State>,
    wishes: HashMap<ValueId, State>,
    /// What each value is computed in, and what it was converted to.
    states: HashMap<ValueId, Vec<State>>,
    plan: &'p mut RankPlan,
}

impl Axis<'_, '_> {
    fn decide(mut self) -> Result<()> {
        self.spread();
        self.keep_states()?;
        for id in self.graph.order.clone() {
            self.node(id);
        }
        Ok(())
    }

    fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    fn types(&self, values: &[ValueId]) -> Vec<&TensorType> {
        values.iter().map(|&value| self.graph.ty(value)).collect()
    }

    fn ways(&self, id: NodeId) -> Vec<Way> {
        let node = &self.graph.nodes[id];
        ways(&node.op, &self.types(&node.inputs), &self.types(&node.outputs))
    }

    /// What is asked for or wished.
    fn wish(&self, value: ValueId) -> Option<State> {
        self.asked.get(&value).or_else(|| self.wishes.get(&value)).copied()
    }

    /// The unit of a way along which a value is cut so; `None` where the way does not cut it there.
    fn unit(&self, share: &Share, value: ValueId) -> Option<i64> {
        match (self.wish(value), share) {
            (Some(State::Cut { axis, unit }), Share::Range { axis: own, scale }) if axis == *own => {
                Some(if unit % scale == 0 { unit / scale } else { 1 })
            }
            _ => None,
        }
    }

    /// Whether a way goes against what is known of a value.
    fn opposes(&self, share: &Share, value: ValueId) -> bool {
        match (self.wish(value), share) {
            (Some(State::Cut { axis, .. }), Share::Range { axis: own, .. }) => axis != *own,
            (Some(State::Cut { .. }), Share::Whole) => true,
            _ => false,
        }
    }

    fn spread(&mut self) {
        // Each round carries wishes through all nodes in both directions; what meets after a few is found by cost.
        const ROUNDS: usize = 4;
        for _ in 0..ROUNDS {
            let before = self.wishes.len();
            for id in self.graph.order.clone() {
                self.spread_from(id, true);
            }
            for id in self.graph.order.iter().rev().copied().collect::<Vec<_>>() {
                self.spread_from(id, false);
            }
            self.spread_states();
            if self.wishes.len() == before {
                return;
            }
        }
    }

    /// What an input and an output that are one tensor wish is one.
    fn spread_states(&mut self) {
        let (first, last) = (self.graph.given_inputs(), self.graph.given_outputs());
        for at in 0..self.graph.states.len() {
            let pair = [self.graph.inputs[first + at].value, self.graph.outputs[last + at].1];
            if let Some(state) = pair.iter().find_map(|&value| self.wish(value)) {
                for value in pair {
                    if self.wish(value).is_none() {
                        self.wishes.insert(value, state);
                    }
                }
            }
        }
    }

    fn spread_from(&mut self, id: NodeId, forward: bool) {
        let node = &self.graph.nodes[id];
        let pairs = |way: &Way| {
            let operands = way.operands.iter().copied().zip(node.inputs.iter().copied());
            let results = way.results.iter().copied().zip(node.outputs.iter().copied());
            (operands.collect::<Vec<_>>(), results.collect::<Vec<_>>())
        };
        for way in self.ways(id) {
            let (operands, results) = pairs(&way);
            let sources = if forward { &operands } else { &results };
            let Some(unit) = sources.iter().find_map(|(share, value)| self.unit(share, *value)) else {
                continue;
            };
            if operands.iter().any(|(share, value)| self.opposes(share, *value)) {
                continue;
            }
            for (share, value) in operands.into_iter().chain(results) {
                if let Share::Range { axis, scale } = share
                    && self.wish(value).is_none()
                {
                    self.wishes.insert(value, State::Cut { axis, unit: unit * scale });
                }
            }
            return;
        }
    }

    /// Settles the states: an input and an output that are one tensor lie in one way.
    fn keep_states(&mut self) -> Result<()> {
        let (first, last) = (self.graph.given_inputs(), self.graph.given_outputs());
        for (at, own) in self.graph.states.iter().enumerate() {
            let pair = [self.graph.inputs[first + at].value, self.graph.outputs[last + at].1];
            let state = pair.iter().find_map(|&value| self.wish(value)).unwrap_or(State::Whole);
            let grows = |axis| own.growth.as_ref().is_some_and(|growth| growth.axis == axis);
            let state = match state {
                State::Cut { axis, .. } if grows(axis) => State::Whole,
                state => state,
            };
            for value in pair {
                self.asked.insert(value, state);
            }
            self.set(pair[0], state);
            self.states.insert(pair[0], vec![state]);
        }
        Ok(())
    }

    fn set(&mut self, value: ValueId, state: State) {
        self.plan.layout.entry(value).or_default().push(state);
    }

    /// What it costs to read a value in a state.
    fn reading(&self, value: ValueId, state: State) -> f64 {
        let ty = self.ty(value);
        if self.graph.is_constant(value) {
            // It is cut when it is compiled. One that is to be cut is not to be held as a whole.
            return match self.asked.get(&value) {
                Some(&asked) if !cost::same(ty, asked, state, self.ranks) => cost::held(ty),
                _ => 0.0,
            };
        }
        let known = self.states.get(&value).map_or(&[State::Whole][..], |states| &states[..]);
        known.iter().map(|&own| cost::conversion(ty, own, state, self.ranks)).fold(f64::INFINITY, f64::min)
    }

    /// A way, with the states that it has for these values.
    fn chosen(&self, id: NodeId, way: &Way) -> Option<(Chosen, f64)> {
        let node = &self.graph.nodes[id];
        let known = |value: ValueId| {
            let of = |states: &Vec<State>| states.iter().find(|state| **state != State::Whole).copied();
            self.states.get(&value).and_then(of).or_else(|| self.wish(value))
        };
        let all = way.operands.iter().zip(&node.inputs).chain(way.results.iter().zip(&node.outputs));
        let unit = |(share, &value): (&Share, &ValueId)| match (known(value), share) {
            (Some(State::Cut { axis, unit }), Share::Range { axis: own, scale })
                if axis == *own && unit % scale == 0 =>
            {
                Some(unit / scale)
            }
            _ => None,
        };
        let mut units: Vec<i64> = all.clone().filter_map(unit).collect();
        units.sort_unstable();
        let mut blocks = None;
        let unit = units.last().copied().unwrap_or(1);
        // Every axis must be a multiple of what is not cut.
        let fits = all.clone().all(|(share, &value)| match share {
            Share::Range { axis, scale } => {
                let size = self.ty(value).shape[*axis].exact_div(&(unit * scale).into());
                let fits = size.is_some();
                blocks = blocks.take().or(size);
                fits
            }
            _ => true,
        });
        let state = |share: &Share| match *share {
            Share::Range { axis, scale } => State::Cut { axis, unit: unit * scale },
            _ => State::Whole,
        };
        let given = |share: &Share| match *share {
            Share::Partial(function) => Given::Partial(function),
            _ => Given::State(state(share)),
        };
        let chosen = Chosen {
            operands: way.operands.iter().map(state).collect(),
            results: way.results.iter().map(given).collect(),
        };
        let sound = |(share, &value): (&Share, &ValueId)| {
            !matches!(share, Share::Partial(_)) || onnxc_ir::graph::exchange::combines(self.ty(value).dtype)
        };
        let fits = fits && self.has_rows(id, way);
        let sound = fits && way.results.iter().zip(&node.outputs).all(sound);
        sound.then(|| (chosen, blocks.map_or(1.0, |blocks| cost::share(&blocks, self.ranks))))
    }

    /// Of what is gathered from parts of an axis: whether every rank has a row, and no other axis of the mesh cuts these rows.
    fn has_rows(&self, id: NodeId, way: &Way) -> bool {
        let node = &self.graph.nodes[id];
        let (Op::Gather { axis: own }, [Share::Partial(_)]) = (&node.op, &way.results[..]) else {
            return true;
        };
        let rows = self.ty(node.inputs[0]).shape[*own].bounds().0.unwrap_or(0);
        let is_cut = |chosen: &Chosen| matches!(chosen.operands[0], State::Cut { axis, .. } if axis == *own);
        let before = self.plan.chosen.get(&id).map_or(&[][..], |chosen| &chosen[..]);
        rows >= self.ranks as i64 && !before.iter().any(is_cut)
    }

    /// Whether a way goes on with a cut that is there, or asked or wished for. None is made up: which sizes symbols will have, such as that
    /// of a batch, is not known here.
    fn is_followed(&self, id: NodeId, way: &Way) -> bool {
        let node = &self.graph.nodes[id];
        let is_cut = |state: &State, own: usize| matches!(state, State::Cut { axis, .. } if *axis == own);
        let mut pairs = way.operands.iter().zip(&node.inputs).chain(way.results.iter().zip(&node.outputs));
        pairs.any(|(share, value)| match *share {
            Share::Range { axis, .. } => {
                let there =
                    self.states.get(value).is_some_and(|states| states.iter().any(|own| is_cut(own, axis)));
                there || self.wish(*value).is_some_and(|wish| is_cut(&wish, axis))
            }
            _ => false,
        })
    }

    fn node(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let all = Chosen {
            operands: vec![State::Whole; node.inputs.len()],
            results: vec![Given::State(State::Whole); node.outputs.len()],
        };
        let mut candidates = vec![(all, 1.0)];
        let ways = self.ways(id);
        let followed = ways.iter().filter(|way| self.is_followed(id, way));
        candidates.extend(followed.filter_map(|way| self.chosen(id, way)));
        // What a state is appended to is read as it lies.
        if let Op::Append { .. } = node.op {
            let own = self.states.get(&node.inputs[0]).and_then(|states| states.first()).copied();
            let own = own.unwrap_or(State::Whole);
            let ty = self.ty(node.inputs[0]);
            candidates.retain(|(chosen, _)| cost::same(ty, chosen.operands[0], own, self.ranks));
        }
        let work = cost::work(&node.op, &self.types(&node.inputs), &self.types(&node.outputs));
        let price = |(chosen, share): &(Chosen, f64)| {
            let operands: f64 = node
                .inputs
                .iter()
                .zip(&chosen.operands)
                .map(|(&value, &state)| self.reading(value, state))
                .sum();
            let results: f64 = node
                .outputs
                .iter()
                .zip(&chosen.results)
                .map(|(&value, &given)| self.giving(value, given))
                .sum();
            operands + results + work * share
        };
        let best = candidates.into_iter().map(|candidate| (price(&candidate), candidate.0));
        let Some((_, best)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        for (&value, &state) in node.inputs.iter().zip(&best.operands) {
            if !self.graph.is_constant(value) {
                let known = self.states.entry(value).or_insert_with(|| vec![State::Whole]);
                if !known.contains(&state) {
                    known.push(state);
                }
            }
        }
        for (&value, &given) in node.outputs.iter().zip(&best.results) {
            let state = self.settled(value, given);
            self.set(value, state);
            self.states.insert(value, vec![state]);
        }
        self.plan.chosen.entry(id).or_default().push(best);
    }

    /// The state in which a result is kept.
    fn settled(&self, value: ValueId, given: Given) -> State {
        match (self.asked.get(&value), given) {
            (Some(&asked), Given::State(state)) if cost::same(self.ty(value), asked, state, self.ranks) => {
                state
            }
            (Some(&asked), _) => asked,
            (None, Given::State(state)) => state,
            (None, Given::Partial(_)) => self.wish(value).unwrap_or(State::Whole),
        }
    }

    /// What it costs to have a result as it is asked for, or wished.
    fn giving(&self, value: ValueId, given: Given) -> f64 {
        let ty = self.ty(value);
        let is_output = self.graph.outputs[..self.graph.given_outputs()].iter().any(|(_, own)| *own == value);
        let needed =
            if is_output || self.plan.everywhere.contains(&value) { Some(State::Whole) } else { None };
        let target = self.asked.get(&value).copied().or(needed);
        match given {
            Given::Partial(_) => cost::combination(ty, self.settled(value, given), self.ranks),
            Given::State(state) => {
                let wished = target.or_else(|| self.wishes.get(&value).copied()).unwrap_or(State::Whole);
                match (state, wished) {
                    // What is whole may be cut for nothing, and then was computed as a whole for nothing.
                    (State::Whole, _) => 0.0,
                    (state, wished) if target.is_none() && wished == State::Whole => {
                        // Nothing is known of its readers: as if one of them needed all.
                        cost::conversion(ty, state, State::Whole, self.ranks)
                    }
                    (state, wished) => cost::conversion(ty, state, wished, self.ranks),
                }
            }
        }
    }
}
