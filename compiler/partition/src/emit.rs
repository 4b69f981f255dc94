//! The graph of a rank: its share of every node of its stage, and the exchanges with the others.
//!
//! All ranks walk the same nodes in the same order and find the same exchanges on the way, each with its own part in them.

use std::collections::{HashMap, HashSet};

use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::axes::{Share, Way, ways};
use onnxc_ir::graph::exchange::{Exchange, Rank, RankGroup, Transfer};
use onnxc_ir::graph::{
    Assumptions, Constant, DType, Def, Dim, Graph, NodeId, Op, State as Kept, Sym, Tensor, TensorType, Value,
    ValueId, dim::product,
};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn};
use onnxc_ir::verify::verify;

use crate::decide::{Given, RankPlan};
use crate::layout::{Layout, State, cuts, equal, local, range, whole};
use crate::mesh::Mesh;
use crate::{internal, unsupported};

pub(crate) fn emit(graph: &Graph, mesh: &Mesh, plan: &RankPlan, own: Rank) -> Result<Graph> {
    let Some((stage, digits)) = mesh.place(own.rank) else {
        return Err(internal(format!("rank {} has no place", own.rank)));
    };
    let mut new = Graph {
        name: graph.name.clone(),
        symbols: graph.symbols.clone(),
        seed: graph.seed,
        origins: graph.origins.clone(),
        assumptions: graph.assumptions.clone(),
        metadata: graph.metadata.clone(),
        packed_inputs: graph.packed_inputs.clone(),
        packed_outputs: graph.packed_outputs.clone(),
        input_parts: graph.input_parts.clone(),
        output_parts: graph.output_parts.clone(),
        any_rank: graph.any_rank.clone(),
        strings: graph.strings.clone(),
        rank: Some(own),
        ..Graph::default()
    };
    for (key, value) in [("onnxc.rank", own.rank), ("onnxc.ranks", own.ranks)] {
        new.metadata.push((key.to_string(), value.to_string()));
    }
    let origin =
        graph.order.first().map_or(cranelift_entity::EntityRef::new(0), |&id| graph.nodes[id].origin);
    let mut homes: HashMap<ValueId, usize> = HashMap::new();
    let (first, last) = (graph.given_inputs(), graph.given_outputs());
    for at in 0..graph.states.len() {
        let producer = graph.producer(graph.outputs[last + at].1);
        let home = producer.and_then(|node| plan.stage.get(&node).copied()).unwrap_or(0);
        homes.insert(graph.inputs[first + at].value, home);
    }
    let mut emitter = Emitter {
        graph,
        mesh,
        plan,
        stage,
        digits,
        b: Builder::new(&mut new, origin),
        homes,
        values: HashMap::new(),
        sent: HashMap::new(),
        token: None,
    };
    let states = emitter.inputs()?;
    for &id in &graph.order {
        emitter.node(id)?;
    }
    emitter.outputs(&states)?;
    emitter.symbols()?;
    new.keep_reachable();
    new.states = states.into_iter().map(|(_, state)| state).collect();
    let bound = bound(&new);
    let is_bound = |dim: &Dim| {
        let mut all = true;
        dim.visit_symbols(&mut |sym| all &= bound.contains(&sym));
        all
    };
    // What is known of the sizes of states is checked where they are.
    let mut assumptions = Assumptions::default();
    for own in new.assumptions.iter() {
        let mut checks = true;
        own.visit_dims(&mut |dim| checks &= is_bound(dim));
        if checks {
            assumptions.insert(own.clone());
        }
    }
    new.assumptions = assumptions;
    for &id in &new.order {
        let node = &new.nodes[id];
        let types = node.inputs.iter().chain(&node.outputs).flat_map(|&value| &new.ty(value).shape);
        if let Some(dim) = node.op.dims().into_iter().chain(types).find(|dim| !is_bound(dim)) {
            let message = format!(
                "rank {}: node `{}` needs the size {}, which a state of another stage has",
                own.rank,
                new.node_ref(id).name,
                new.dim_text(dim)
            );
            return Err(unsupported(message));
        }
    }
    if let Err(errors) = verify(&new) {
        let text: Vec<String> = errors.iter().map(|error| error.message.clone()).collect();
        return Err(internal(format!("the graph of rank {}: {}", own.rank, text.join("; "))));
    }
    Ok(new)
}

/// Constants that are computed from each other whose shares are made of shares.
const MOST_DEFERRED: usize = 64;

/// Stands for all stages among those that have got a value.
const EVERYWHERE: usize = usize::MAX;

struct Emitter<'g> {
    graph: &'g Graph,
    mesh: &'g Mesh,
    plan: &'g RankPlan,
    stage: usize,
    digits: Vec<usize>,
    b: Builder<'g>,
    /// The stages of states.
    homes: HashMap<ValueId, usize>,
    /// This rank's values.
    values: HashMap<(ValueId, Layout), ValueId>,
    /// The stages that have got a value from its own, for all ranks.
    sent: HashMap<ValueId, Vec<usize>>,
    token: Option<ValueId>,
}

impl Emitter<'_> {
    /// The inputs; of the states those of this rank, with their numbers.
    fn inputs(&mut self) -> Result<Vec<(usize, Kept)>> {
        let graph = self.graph;
        let given = graph.given_inputs();
        let mut states = vec![];
        for (at, input) in graph.inputs.iter().enumerate() {
            let ty = graph.ty(input.value);
            if at < given {
                let value = self.b.input(&input.name, ty.clone(), input.default.clone());
                self.rename(value, input.value);
                self.b.graph.values[value].known = graph.values[input.value].known.clone();
                self.values.insert((input.value, whole(self.mesh)), value);
                continue;
            }
            if self.homes.get(&input.value) != Some(&self.stage) {
                continue;
            }
            let layout = self.plan.layout(input.value, self.mesh);
            let mut state = graph.states[at - given].clone();
            state.ty = self.local(&layout, &state.ty);
            let default = match &input.default {
                Some(initial) => Some(self.cut_tensor(initial, &layout, ty)?),
                None => None,
            };
            let value = self.b.input(&input.name, self.local(&layout, ty), default);
            self.rename(value, input.value);
            self.values.insert((input.value, layout), value);
            states.push((at - given, state));
        }
        Ok(states)
    }

    /// This rank's share of the initial value of a state.
    fn cut_tensor(&self, initial: &Tensor, layout: &Layout, ty: &TensorType) -> Result<Tensor> {
        let mut own = initial.clone();
        for axis in 0..ty.rank() {
            let (start, size) = range(self.mesh, layout, &self.digits, axis, &ty.shape[axis]);
            let (Some(start), Some(size)) = (start.as_const(), size.as_const()) else {
                return Err(internal(format!("an initial value of {ty} is cut at {start}")));
            };
            let (start, size) = (start as usize, size as usize);
            if size == own.shape[axis] {
                continue;
            }
            let outer: usize = own.shape[..axis].iter().product();
            let inner = own.shape[axis + 1..].iter().product::<usize>() * own.dtype.size();
            let row = own.shape[axis] * inner;
            let mut data = Vec::with_capacity(outer * size * inner);
            for at in 0..outer {
                let first = at * row + start * inner;
                data.extend_from_slice(&own.data[first..first + size * inner]);
            }
            own.shape[axis] = size;
            own = Tensor::new(own.dtype, own.shape, data.into());
        }
        Ok(own)
    }

    fn rename(&mut self, own: ValueId, value: ValueId) {
        let name = &self.graph.values[value].name;
        if self.b.graph.values[own].name.is_empty() {
            self.b.graph.values[own].name.clone_from(name);
        }
    }

    fn local(&self, layout: &Layout, ty: &TensorType) -> TensorType {
        local(self.mesh, layout, &self.digits, ty)
    }

    /// The stage of a value that is not everywhere.
    fn home(&self, value: ValueId) -> Option<usize> {
        match self.graph.values[value].def {
            Def::Node(node, _) => Some(self.plan.stage.get(&node).copied().unwrap_or(0)),
            Def::Input(_) => self.homes.get(&value).copied(),
            Def::Const(_) => None,
        }
    }

    /// The layout in which a value is where it comes from.
    fn stored(&self, value: ValueId) -> Layout {
        match self.graph.values[value].def {
            Def::Node(..) => self.plan.layout(value, self.mesh),
            Def::Input(_) if self.homes.contains_key(&value) => self.plan.layout(value, self.mesh),
            _ => whole(self.mesh),
        }
    }

    /// A constant of the model, in this graph.
    fn constant(&mut self, value: ValueId) -> Result<ValueId> {
        let key = |value| (value, whole(self.mesh));
        let mut open = vec![(value, false)];
        while let Some((at, ready)) = open.pop() {
            if self.values.contains_key(&key(at)) {
                continue;
            }
            let old = &self.graph.values[at];
            let def = match &old.def {
                Def::Const(Constant::Data(tensor)) => Def::Const(Constant::Data(tensor.clone())),
                Def::Const(Constant::Deferred { inputs, .. }) if !ready => {
                    open.push((at, true));
                    open.extend(inputs.iter().map(|&input| (input, false)));
                    continue;
                }
                Def::Const(Constant::Deferred { op, inputs }) => {
                    let of = |input: &ValueId| self.values.get(&key(*input)).copied();
                    let inputs = inputs.iter().map(of).collect::<Option<Vec<_>>>();
                    let inputs = inputs.ok_or_else(|| internal(format!("constant {at} lacks an operand")))?;
                    Def::Const(Constant::Deferred { op: op.clone(), inputs })
                }
                _ => return Err(internal(format!("{at} is not a constant"))),
            };
            let new = Value { name: old.name.clone(), ty: old.ty.clone(), def, known: old.known.clone() };
            let new = self.b.graph.values.push(new);
            self.values.insert(key(at), new);
        }
        Ok(self.values[&key(value)])
    }

    /// A share of a constant. Of one that is computed from others, it is computed from their shares where that goes, so that what makes
    /// numbers of codes is still seen.
    fn cut_constant(&mut self, value: ValueId, layout: &Layout, depth: usize) -> Result<ValueId> {
        if layout.iter().all(|state| *state == State::Whole) {
            return self.constant(value);
        }
        if let Some(&own) = self.values.get(&(value, layout.clone())) {
            return Ok(own);
        }
        let graph = self.graph;
        let ty = graph.ty(value);
        if let Def::Const(Constant::Deferred { op, inputs }) = &graph.values[value].def
            && depth < MOST_DEFERRED
            && let Some(layouts) = shares(graph, op, inputs, ty, layout)
        {
            let mut operands = vec![];
            for (&input, layout) in inputs.iter().zip(&layouts) {
                operands.push(self.cut_constant(input, layout, depth + 1)?);
            }
            let wanted = self.local(layout, ty);
            let own = self.b.emit(localized(op, &wanted), &operands)?[0];
            if *self.b.ty(own) == wanted && self.b.graph.is_constant(own) {
                self.values.insert((value, layout.clone()), own);
                return Ok(own);
            }
        }
        let all = self.constant(value)?;
        let own = self.convert(all, ty, whole(self.mesh), layout)?;
        self.values.insert((value, layout.clone()), own);
        Ok(own)
    }

    /// Hands a value over to another stage, where it has the layout that it is stored in.
    fn hand_over(&mut self, value: ValueId, to: usize) -> Result<()> {
        let Some(from) = self.home(value).filter(|&from| from != to) else { return Ok(()) };
        let sent = self.sent.entry(value).or_default();
        if sent.contains(&to) || sent.contains(&EVERYWHERE) {
            return Ok(());
        }
        sent.push(to);
        let layout = self.stored(value);
        let ty = self.local(&layout, self.graph.ty(value));
        if self.stage == from {
            let own = self.present(value, &layout)?;
            let peer = self.mesh.peer(to, &self.digits);
            self.exchange(Transfer::Send { to: peer }, self.pair(peer), ty, &[own])?;
        } else if self.stage == to {
            let peer = self.mesh.peer(from, &self.digits);
            let own = self.exchange(Transfer::Receive { from: peer }, self.pair(peer), ty, &[])?;
            let own = own.ok_or_else(|| internal("nothing is received".to_string()))?;
            self.rename(own, value);
            self.values.insert((value, layout), own);
        }
        Ok(())
    }

    /// This rank and another one.
    fn pair(&self, peer: i64) -> RankGroup {
        let own = self.mesh.peer(self.stage, &self.digits);
        RankGroup { first: own.min(peer), stride: (own - peer).abs(), count: 2 }
    }

    fn present(&self, value: ValueId, layout: &Layout) -> Result<ValueId> {
        let own = self.values.get(&(value, layout.clone()));
        own.copied().ok_or_else(|| internal(format!("{value} is not there as {layout:?}")))
    }

    /// A value in a layout, on the ranks of a stage; `None` on others.
    fn value(&mut self, value: ValueId, layout: &Layout, stage: usize) -> Result<Option<ValueId>> {
        self.hand_over(value, stage)?;
        if stage != self.stage {
            return Ok(None);
        }
        if let Some(&own) = self.values.get(&(value, layout.clone())) {
            return Ok(Some(own));
        }
        let ty = self.graph.ty(value).clone();
        let stored = self.stored(value);
        let all = whole(self.mesh);
        let (own, from) = match self.graph.values[value].def {
            Def::Const(_) => (self.cut_constant(value, layout, 0)?, layout.clone()),
            // Of another stage, and given to all ranks.
            _ if !self.values.contains_key(&(value, stored.clone())) => (self.present(value, &all)?, all),
            _ => (self.present(value, &stored)?, stored),
        };
        let own = self.convert(own, &ty, from, layout)?;
        self.values.insert((value, layout.clone()), own);
        Ok(Some(own))
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = &self.graph.nodes[id];
        self.b.origin = node.origin;
        let stage = self.plan.stage.get(&id).copied().unwrap_or(0);
        let chosen = self.plan.chosen.get(&id).map_or(&[][..], |chosen| &chosen[..]);
        let mut inputs = vec![];
        for (at, &input) in node.inputs.iter().enumerate() {
            let layout = chosen.iter().map(|way| way.operands[at]).collect();
            let layout = self.same_as_there(input, layout);
            inputs.extend(self.value(input, &layout, stage)?);
        }
        if stage == self.stage {
            let results: Vec<Vec<Given>> = (0..node.outputs.len())
                .map(|at| chosen.iter().map(|way| way.results[at]).collect())
                .collect();
            self.results(id, &inputs, &results)?;
        }
        for &output in &node.outputs {
            if self.plan.everywhere.contains(&output) {
                self.everywhere(output)?;
            }
        }
        Ok(())
    }

    /// A layout that is there already, if one has the same ranges.
    fn same_as_there(&self, value: ValueId, layout: Layout) -> Layout {
        let ty = self.graph.ty(value);
        let stored = self.stored(value);
        if equal(self.mesh, &stored, &layout, ty) { stored } else { layout }
    }

    /// Computes this rank's share of a node, and lays out the results as they are to be stored.
    fn results(&mut self, id: NodeId, inputs: &[ValueId], given: &[Vec<Given>]) -> Result<()> {
        let node = &self.graph.nodes[id];
        let layouts: Vec<Layout> = given
            .iter()
            .map(|given| {
                let state = |given: &Given| match *given {
                    Given::State(state) => state,
                    Given::Partial(_) => State::Whole,
                };
                given.iter().map(state).collect()
            })
            .collect();
        let types: Vec<TensorType> = node
            .outputs
            .iter()
            .zip(&layouts)
            .map(|(&value, layout)| self.local(layout, self.graph.ty(value)))
            .collect();
        let op = types.first().map_or_else(|| node.op.clone(), |ty| localized(&node.op, ty));
        let results = match self.picked_rows(id)? {
            Some((axis, layout)) => vec![self.gather_rows(id, inputs, axis, &layout)?],
            None => self.b.emit(op, inputs)?,
        };
        for (at, (&own, &value)) in results.iter().zip(&node.outputs).enumerate() {
            if *self.b.ty(own) != types[at] {
                let (found, ty, name) = (self.b.ty(own), &types[at], node.op.name());
                return Err(internal(format!("{id} ({name}) gives {found} on a rank, and was to give {ty}")));
            }
            let is_result = matches!(self.b.graph.values[own].def, Def::Node(..));
            let mut layout = layouts[at].clone();
            let stored = self.plan.layout(value, self.mesh);
            let mut own = own;
            for (dim, given) in given[at].iter().enumerate() {
                if let Given::Partial(function) = *given {
                    own = self.combine(own, value, dim, function, &mut layout, &stored)?;
                }
            }
            let own = self.convert(own, &self.graph.ty(value).clone(), layout, &stored)?;
            if is_result {
                self.rename(own, value);
            }
            self.values.insert((value, stored), own);
        }
        Ok(())
    }

    /// Of what is gathered from an axis that is cut: the axis, and how the operand lies.
    fn picked_rows(&self, id: NodeId) -> Result<Option<(usize, Layout)>> {
        let node = &self.graph.nodes[id];
        let Op::Gather { axis } = node.op else { return Ok(None) };
        let chosen = self.plan.chosen.get(&id).map_or(&[][..], |chosen| &chosen[..]);
        let layout: Layout = chosen.iter().map(|way| way.operands[0]).collect();
        let cut = cuts(&layout, axis).count();
        match cut {
            0 => Ok(None),
            1 => Ok(Some((axis, self.same_as_there(node.inputs[0], layout)))),
            cut => Err(internal(format!("{id} gathers from an axis that is cut {cut} times"))),
        }
    }

    /// What indices pick of the rows of this rank. In place of rows of others it has what changes no sum.
    fn gather_rows(
        &mut self,
        id: NodeId,
        inputs: &[ValueId],
        axis: usize,
        layout: &Layout,
    ) -> Result<ValueId> {
        let data = self.graph.ty(self.graph.nodes[id].inputs[0]).clone();
        let (start, size) = range(self.mesh, layout, &self.digits, axis, &data.shape[axis]);
        let b = &mut self.b;
        let indices = b.cast(inputs[1], DType::I64)?;
        let [all, start, size] = [&data.shape[axis], &start, &size].map(|dim| b.dim_scalar(dim));
        let (all, start, size) = (all?, start?, size?);
        let (zero, one) = (b.scalar(DType::I64, 0.0), b.scalar(DType::I64, 1.0));
        let is_negative = b.compare(CompareFn::Lt, indices, zero)?;
        let behind = b.binary(BinaryFn::Add, indices, all)?;
        let row = b.select(is_negative, behind, indices)?;
        let within = |b: &mut Builder<'_>, row: ValueId, count: ValueId| -> Result<ValueId> {
            let low = b.compare(CompareFn::Ge, row, zero)?;
            let high = b.compare(CompareFn::Lt, row, count)?;
            b.binary(BinaryFn::And, low, high)
        };
        let is_valid = within(b, row, all)?;
        let own = b.binary(BinaryFn::Sub, row, start)?;
        let is_own = within(b, own, size)?;
        let last = b.binary(BinaryFn::Sub, size, one)?;
        let own = b.binary(BinaryFn::Max, own, zero)?;
        let own = b.binary(BinaryFn::Min, own, last)?;
        // One that no rank has stays as it is, and is found by all of them.
        let own = b.select(is_valid, own, indices)?;
        let picked = b.emit1(Op::Gather { axis }, &[inputs[0], own])?;
        let mut shape = b.shape(is_own);
        shape.extend(std::iter::repeat_n(Dim::ONE, data.rank() - axis - 1));
        let is_own = b.reshape(is_own, shape)?;
        // Zeros keep their signs.
        let none = b.scalar(data.dtype, if data.dtype.is_float() { -0.0 } else { 0.0 });
        b.select(is_own, picked, none)
    }

    /// Adds up what the ranks along an axis have of a value.
    fn combine(
        &mut self,
        own: ValueId,
        value: ValueId,
        dim: usize,
        function: ReduceFn,
        layout: &mut Layout,
        stored: &Layout,
    ) -> Result<ValueId> {
        let group = self.mesh.along(self.stage, &self.digits, dim);
        let whole = self.graph.ty(value).clone();
        if let State::Cut { axis, .. } = stored[dim]
            && cuts(layout, axis).all(|(other, _)| other < dim)
        {
            let before = layout.clone();
            layout[dim] = stored[dim];
            let shapes = self.shapes(layout, &whole, dim);
            let mut pieces = vec![];
            for (member, _) in shapes.iter().enumerate() {
                let (start, size) = self.piece(&before, layout, &whole, dim, axis, member);
                let piece = self.b.slice_axis(own, axis, start, size)?;
                pieces.push(self.flat(piece)?);
            }
            let flat = self.b.concat(&pieces, 0)?;
            let counts = self.counts(&shapes)?;
            let ty = self.local(layout, &whole);
            let result = TensorType::new(ty.dtype, vec![ty.elements()]);
            let scattered =
                self.exchange(Transfer::ReduceScatter(function), group, result, &[flat, counts])?;
            let scattered = scattered.ok_or_else(|| internal("nothing is scattered".to_string()))?;
            return self.b.reshape(scattered, ty.shape);
        }
        let ty = self.b.ty(own).clone();
        let sum = self.exchange(Transfer::AllReduce(function), group, ty, &[own])?;
        sum.ok_or_else(|| internal("nothing is reduced".to_string()))
    }

    /// The shares of all members along an axis of the mesh.
    fn shapes(&self, layout: &Layout, ty: &TensorType, dim: usize) -> Vec<Vec<Dim>> {
        let of = |member: usize| {
            let mut digits = self.digits.clone();
            digits[dim] = member;
            local(self.mesh, layout, &digits, ty).shape
        };
        (0..self.mesh.radices[dim]).map(of).collect()
    }

    /// Where the share of a member begins in what `outer` leaves, and how long it is.
    fn piece(
        &self,
        outer: &Layout,
        inner: &Layout,
        ty: &TensorType,
        dim: usize,
        axis: usize,
        member: usize,
    ) -> (Dim, Dim) {
        let mut digits = self.digits.clone();
        digits[dim] = member;
        let size = &ty.shape[axis];
        let (base, _) = range(self.mesh, outer, &self.digits, axis, size);
        let (start, size) = range(self.mesh, inner, &digits, axis, size);
        (start - base, size)
    }

    fn flat(&mut self, value: ValueId) -> Result<ValueId> {
        let elements = self.b.ty(value).elements();
        self.b.reshape(value, vec![elements])
    }

    /// How many elements members have.
    fn counts(&mut self, shapes: &[Vec<Dim>]) -> Result<ValueId> {
        let dims: Vec<Dim> = shapes.iter().map(|shape| product(shape)).collect();
        self.b.emit1(Op::DimValues { dims }, &[])
    }

    fn exchange(
        &mut self,
        transfer: Transfer,
        group: RankGroup,
        ty: TensorType,
        operands: &[ValueId],
    ) -> Result<Option<ValueId>> {
        if ty.dtype == DType::Str {
            let message =
                "texts are not exchanged between ranks: keep what works on them in one stage".to_string();
            return Err(unsupported(message));
        }
        let exchange = Exchange { transfer, group, ty };
        let has_result = exchange.has_result();
        let inputs: Vec<ValueId> = operands.iter().copied().chain(self.token).collect();
        let results = self.b.emit(Op::Exchange(Box::new(exchange)), &inputs)?;
        self.token = results.last().copied();
        Ok(if has_result { results.first().copied() } else { None })
    }

    /// A value in another layout.
    fn convert(&mut self, value: ValueId, ty: &TensorType, from: Layout, to: &Layout) -> Result<ValueId> {
        if equal(self.mesh, &from, to, ty) {
            return Ok(value);
        }
        let (mut value, mut layout) = (value, from);
        if let Some(dim) = moves(&layout, to) {
            return self.redistribute(value, ty, layout, to, dim);
        }
        // An axis of the mesh leaves where it is another one, or lies inside one on the same axis that leaves or comes.
        let axis_of = |state: &State| match state {
            State::Cut { axis, .. } => Some(*axis),
            State::Whole => None,
        };
        let mut leaves: Vec<bool> = layout.iter().zip(to).map(|(from, to)| from != to).collect();
        for dim in 0..leaves.len() {
            let own = axis_of(&layout[dim]);
            let outer_changes = (0..dim).any(|outer| {
                leaves[outer]
                    && own.is_some()
                    && (axis_of(&layout[outer]) == own || axis_of(&to[outer]) == own)
            });
            leaves[dim] |= outer_changes;
        }
        for dim in (0..leaves.len()).rev().filter(|&dim| leaves[dim]) {
            if let State::Cut { axis, .. } = layout[dim] {
                value = self.gather(value, ty, &mut layout, dim, axis)?;
            }
        }
        for dim in (0..leaves.len()).filter(|&dim| leaves[dim]) {
            if let State::Cut { axis, .. } = to[dim] {
                let before = layout.clone();
                layout[dim] = to[dim];
                let (start, size) = self.piece(&before, &layout, ty, dim, axis, self.digits[dim]);
                value = self.b.slice_axis(value, axis, start, size)?;
            }
        }
        Ok(value)
    }

    /// Joins the ranges of the ranks along an axis of the mesh.
    fn gather(
        &mut self,
        value: ValueId,
        ty: &TensorType,
        layout: &mut Layout,
        dim: usize,
        axis: usize,
    ) -> Result<ValueId> {
        let shapes = self.shapes(layout, ty, dim);
        layout[dim] = State::Whole;
        let to = self.local(layout, ty);
        let flat = self.flat(value)?;
        let counts = self.counts(&shapes)?;
        let group = self.mesh.along(self.stage, &self.digits, dim);
        let all = shapes.iter().fold(Dim::ZERO, |sum, shape| sum + product(shape));
        let result = TensorType::new(ty.dtype, vec![all]);
        let flat = self.exchange(Transfer::AllGather, group, result, &[flat, counts])?;
        let flat = flat.ok_or_else(|| internal("nothing is gathered".to_string()))?;
        self.joined(flat, &shapes, axis, &to)
    }

    /// Pieces that lie one after the other, joined along an axis.
    fn joined(
        &mut self,
        flat: ValueId,
        shapes: &[Vec<Dim>],
        axis: usize,
        to: &TensorType,
    ) -> Result<ValueId> {
        if to.shape[..axis].iter().all(|size| *size == Dim::ONE) {
            return self.b.reshape(flat, to.shape.clone());
        }
        let (mut at, mut pieces) = (Dim::ZERO, vec![]);
        for shape in shapes {
            let count = product(shape);
            let piece = self.b.slice_axis(flat, 0, at.clone(), count.clone())?;
            pieces.push(self.b.reshape(piece, shape.clone())?);
            at = at + count;
        }
        self.b.concat(&pieces, axis)
    }

    /// A value that is cut along one axis, cut along another one.
    fn redistribute(
        &mut self,
        value: ValueId,
        ty: &TensorType,
        from: Layout,
        to: &Layout,
        dim: usize,
    ) -> Result<ValueId> {
        let (State::Cut { axis: old, .. }, State::Cut { axis: new, .. }) = (from[dim], to[dim]) else {
            return Err(internal("what is redistributed is not cut".to_string()));
        };
        let mut between = from.clone();
        between[dim] = State::Whole;
        let (mut pieces, mut sent, mut received) = (vec![], vec![], vec![]);
        for member in 0..self.mesh.radices[dim] {
            // What this rank has of the range that the member is to have.
            let (start, size) = self.piece(&between, to, ty, dim, new, member);
            let piece = self.b.slice_axis(value, new, start, size)?;
            sent.push(self.b.shape(piece));
            pieces.push(self.flat(piece)?);
            // What the member has of the range that this rank is to have.
            let mut digits = self.digits.clone();
            digits[dim] = member;
            let mut shape = local(self.mesh, to, &self.digits, ty).shape;
            shape[old] = range(self.mesh, &from, &digits, old, &ty.shape[old]).1;
            received.push(shape);
        }
        let flat = self.b.concat(&pieces, 0)?;
        let (given, got) = (self.counts(&sent)?, self.counts(&received)?);
        let all = received.iter().fold(Dim::ZERO, |sum, shape| sum + product(shape));
        let group = self.mesh.along(self.stage, &self.digits, dim);
        let result = TensorType::new(ty.dtype, vec![all]);
        let flat = self.exchange(Transfer::AllToAll, group, result, &[flat, given, got])?;
        let flat = flat.ok_or_else(|| internal("nothing is exchanged".to_string()))?;
        let to_ty = self.local(to, ty);
        self.joined(flat, &received, old, &to_ty)
    }

    /// Gives a value to all ranks, whole.
    fn everywhere(&mut self, value: ValueId) -> Result<ValueId> {
        let layout = whole(self.mesh);
        let stages = self.mesh.stages.len();
        let home = self.home(value).filter(|_| stages > 1);
        let sent =
            |emitter: &Self, stage: usize| emitter.sent.get(&value).is_some_and(|sent| sent.contains(&stage));
        let Some(home) = home.filter(|_| !sent(self, EVERYWHERE)) else {
            let own = self.value(value, &layout, self.stage)?;
            return own.ok_or_else(|| internal(format!("{value} is not there")));
        };
        let own = self.value(value, &layout, home)?;
        self.sent.entry(value).or_default().push(EVERYWHERE);
        let ty = self.graph.ty(value).clone();
        let mut result = own;
        if let Some(group) = self.mesh.across(&self.digits) {
            let given: Vec<ValueId> = own.into_iter().collect();
            let got = self.exchange(Transfer::Broadcast { root: home as i64 }, group, ty, &given)?;
            result = own.or(got);
        } else {
            for to in (0..stages).filter(|&to| to != home) {
                if let Some(own) = own {
                    let peer = self.mesh.peer(to, &self.digits);
                    self.exchange(Transfer::Send { to: peer }, self.pair(peer), ty.clone(), &[own])?;
                } else if self.stage == to {
                    let peer = self.mesh.peer(home, &self.digits);
                    result =
                        self.exchange(Transfer::Receive { from: peer }, self.pair(peer), ty.clone(), &[])?;
                }
            }
        }
        let result = result.ok_or_else(|| internal("nothing is received".to_string()))?;
        self.rename(result, value);
        self.values.insert((value, layout), result);
        Ok(result)
    }

    fn outputs(&mut self, states: &[(usize, Kept)]) -> Result<()> {
        let given = self.graph.given_outputs();
        for (at, (name, value)) in self.graph.outputs.iter().enumerate() {
            if let Some(producer) = self.graph.producer(*value) {
                self.b.origin = self.graph.nodes[producer].origin;
            }
            if at < given {
                let own = self.everywhere(*value)?;
                self.b.graph.outputs.push((name.clone(), own));
                continue;
            }
            let input = self.graph.inputs[self.graph.given_inputs() + at - given].value;
            let home = self.homes.get(&input).copied().unwrap_or(0);
            let layout = self.plan.layout(input, self.mesh);
            let layout = self.same_as_there(*value, layout);
            let own = self.value(*value, &layout, home)?;
            if states.iter().any(|(state, _)| *state == at - given) {
                let own = own.ok_or_else(|| internal(format!("state `{name}` is not there")))?;
                self.b.graph.outputs.push((name.clone(), own));
            }
        }
        Ok(())
    }

    /// Lets data define the symbols that they define in the model.
    fn symbols(&mut self) -> Result<()> {
        for sym in self.graph.live_data_symbols() {
            let data = &self.graph.data[&sym];
            let layout = whole(self.mesh);
            let value = self.value(data.value, &layout, self.stage)?;
            let value = value.ok_or_else(|| internal(format!("what defines {sym} is not there")))?;
            let mut own = data.clone();
            own.value = value;
            self.b.graph.data.insert(sym, own);
        }
        Ok(())
    }
}

/// The symbols that have values in a run of a graph.
fn bound(graph: &Graph) -> HashSet<Sym> {
    let mut bound: HashSet<Sym> = graph.data.keys().copied().chain(graph.seed).collect();
    let mut note = |dim: &Dim| {
        dim.visit_symbols(&mut |sym| {
            bound.insert(sym);
        })
    };
    graph.inputs.iter().flat_map(|input| &graph.ty(input.value).shape).for_each(&mut note);
    for growth in graph.states.iter().filter_map(|state| state.growth.as_ref()) {
        [&Dim::sym(growth.size), &growth.next, &growth.capacity].into_iter().for_each(&mut note);
    }
    bound
}

/// The operation where its result is a share of this type.
fn localized(op: &Op, ty: &TensorType) -> Op {
    match op {
        Op::Reshape { .. } => Op::Reshape { shape: ty.shape.clone() },
        Op::Expand { .. } => Op::Expand { shape: ty.shape.clone() },
        Op::Iota { axis, .. } => Op::Iota { shape: ty.shape.clone(), axis: *axis },
        Op::Slice { starts, steps, .. } => {
            Op::Slice { starts: starts.clone(), steps: steps.clone(), sizes: ty.shape.clone() }
        }
        op => op.clone(),
    }
}

/// The layouts of operands that make a result in this layout; `None` where no way gives it.
fn shares(
    graph: &Graph,
    op: &Op,
    inputs: &[ValueId],
    ty: &TensorType,
    layout: &Layout,
) -> Option<Vec<Layout>> {
    let types: Vec<&TensorType> = inputs.iter().map(|&input| graph.ty(input)).collect();
    let all = ways(op, &types, &[ty]);
    let mut layouts = vec![vec![]; inputs.len()];
    for state in layout {
        let State::Cut { axis, unit } = *state else {
            layouts.iter_mut().for_each(|own| own.push(State::Whole));
            continue;
        };
        let gives = |way: &&Way| match way.results[0] {
            Share::Range { axis: own, scale } => own == axis && unit % scale == 0,
            _ => false,
        };
        let way = all.iter().find(gives)?;
        let Share::Range { scale, .. } = way.results[0] else { return None };
        for (own, share) in layouts.iter_mut().zip(&way.operands) {
            own.push(match *share {
                Share::Range { axis, scale: other } => State::Cut { axis, unit: unit / scale * other },
                _ => State::Whole,
            });
        }
    }
    Some(layouts)
}

/// The axis of the mesh that alone moves from one axis of the value to another one, both cut by no other.
fn moves(from: &Layout, to: &Layout) -> Option<usize> {
    let mut differing = (0..from.len()).filter(|&dim| from[dim] != to[dim]);
    let (dim, None) = (differing.next()?, differing.next()) else { return None };
    match (from[dim], to[dim]) {
        (State::Cut { axis: old, .. }, State::Cut { axis: new, .. }) => {
            let alone = cuts(from, old).count() == 1 && cuts(to, new).count() == 1;
            (old != new && alone && cuts(to, old).count() == 0 && cuts(from, new).count() == 0).then_some(dim)
        }
        _ => None,
    }
}
