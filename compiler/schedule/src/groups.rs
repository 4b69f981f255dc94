//! Fusion: which values have buffers, and which nodes each kernel computes.
//!
//! Groups start from *anchors*: contractions, reductions, and the primitives with a loop nest of their own.
//! Contractions and reductions claim the elementwise nodes after them (`regions`), normalisations claim
//! theirs (`rows`). What no anchor claims is settled from the outputs backwards (`inline`): an expression inside
//! the groups that read it, or the root of a `Map` group.
//!
//! Nearly all groups have one output, computed from everything they read, so they cannot form a cycle;
//! `rows` checks reachability for the others. At the end, `chain` makes one group of the three of an attention.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};

use crate::scratch;
use crate::{Group, GroupId, GroupKind, Options, chain, estimate};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::view::compose;
use onnxc_ir::graph::{Dim, Graph, MapFn, NodeId, Op, Sym, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// Nodes in one kernel, and buffers it reads, beyond which no more is inlined.
pub(super) const MAX_NODES: usize = 64;
pub(super) const MAX_INPUTS: usize = 24;
/// Elements of a concatenation up to which it is a chain of selects in its reader.
const SMALL_CONCAT: i64 = 1024;

/// The result of the schedule's first step.
pub(super) struct Grouping {
    pub groups: PrimaryMap<GroupId, Group>,
    pub controls: Vec<NodeId>,
    /// Data symbols that live nodes and outputs mention.
    pub symbols: Vec<Sym>,
    pub materialised: SecondaryMap<ValueId, bool>,
    /// `alias[r] = s`: `r` is a reshape of the materialised `s`.
    pub alias: SecondaryMap<ValueId, Option<ValueId>>,
}

impl Grouping {
    /// The value that owns a value's bytes.
    pub fn storage(&self, mut value: ValueId) -> ValueId {
        while let Some(of) = self.alias[value] {
            value = of;
        }
        value
    }

    /// Data symbols of the values between some and the storages that they are views of: what is assumed of these sizes is what
    /// a view has the bytes of its storage by.
    pub fn view_symbols(&self, graph: &Graph, values: &[ValueId]) -> BTreeSet<Sym> {
        let mut found = BTreeSet::new();
        for &value in values {
            let mut value = value;
            while let Some(of) = self.alias[value] {
                found.extend(graph.producer(value).into_iter().flat_map(|node| graph.data_symbols(node)));
                value = of;
            }
        }
        found
    }
}

/// Nodes that will be one kernel (or one scan): `claimed` are its own, in topological order; inlined ones join
/// when groups are closed.
pub(super) struct Unit {
    /// `None`: control flow or a call, which the host program carries out.
    pub kind: Option<GroupKind>,
    pub anchor: NodeId,
    pub claimed: Vec<NodeId>,
    /// Nodes so far, inlined ones included.
    pub size: usize,
    /// Operands that no node of the unit computes so far.
    pub reads: EntitySet<ValueId>,
    pub read_count: usize,
}

pub(super) type UnitId = usize;

/// Facts about a graph, and the decisions made so far.
pub(super) struct Grouper<'g> {
    pub graph: &'g Graph,
    /// Nodes that the outputs need, in topological order, and each one's place in it.
    pub live: Vec<NodeId>,
    pub position: SecondaryMap<NodeId, u32>,
    /// Live nodes that read a value, each once, in topological order.
    pub users: SecondaryMap<ValueId, Vec<NodeId>>,
    /// Values that define the data symbols of a node: they must be there before its kernel starts.
    pub needs: SecondaryMap<NodeId, Vec<ValueId>>,
    pub defines_sizes: SecondaryMap<ValueId, bool>,
    pub is_output: SecondaryMap<ValueId, bool>,
    /// Values that must have a buffer regardless of their readers.
    pub forced: SecondaryMap<ValueId, bool>,
    pub unit_of: SecondaryMap<NodeId, Option<UnitId>>,
    pub units: Vec<Unit>,
    /// First and last position of each rows unit; those that overlap as one.
    pub rows_spans: BTreeMap<u32, u32>,
}

/// Groups of a graph.
pub(super) fn group(graph: &Graph, options: Options) -> Result<Grouping> {
    let mut grouper = Grouper::new(graph);
    grouper.force_operands();
    if options.fuse {
        grouper.claim_contractions();
        grouper.claim_rows();
        grouper.claim_reductions();
    } else {
        grouper.force_everything();
    }
    grouper.claim_rest();
    let alias = grouper.settle();
    let mut grouping = grouper.close(alias)?;
    if let Some(above) = options.chain_above {
        chain::merge(graph, &mut grouping, above);
    }
    for group in grouping.groups.values_mut() {
        if group.kind != GroupKind::Chain {
            group.scratch = scratch::bytes(graph, group);
        }
    }
    Ok(grouping)
}

impl<'g> Grouper<'g> {
    fn new(graph: &'g Graph) -> Grouper<'g> {
        let mut needed: EntitySet<NodeId> = EntitySet::new();
        let mut stack: Vec<ValueId> = graph.outputs.iter().map(|(_, value)| *value).collect();
        stack.extend(graph.output_needs());
        while let Some(value) = stack.pop() {
            if let Some(node) = graph.producer(value)
                && needed.insert(node)
            {
                stack.extend(&graph.nodes[node].inputs);
                stack.extend(graph.needs(node));
            }
        }
        let live: Vec<NodeId> = graph.order.iter().copied().filter(|&node| needed.contains(node)).collect();
        let mut grouper = Grouper {
            graph,
            position: SecondaryMap::new(),
            users: SecondaryMap::new(),
            needs: SecondaryMap::new(),
            defines_sizes: SecondaryMap::new(),
            is_output: SecondaryMap::new(),
            forced: SecondaryMap::new(),
            unit_of: SecondaryMap::new(),
            units: Vec::new(),
            rows_spans: BTreeMap::new(),
            live,
        };
        for (at, &node) in grouper.live.iter().enumerate() {
            grouper.position[node] = at as u32;
            for &input in &graph.nodes[node].inputs {
                if grouper.users[input].last() != Some(&node) {
                    grouper.users[input].push(node);
                }
            }
            grouper.needs[node] = graph.needs(node);
        }
        for value in graph.data_sources() {
            grouper.defines_sizes[value] = true;
            grouper.forced[value] = true;
        }
        for (_, value) in &graph.outputs {
            grouper.is_output[*value] = true;
            grouper.forced[*value] = true;
        }
        grouper
    }

    pub fn op(&self, node: NodeId) -> &'g Op {
        &self.graph.nodes[node].op
    }

    pub fn inputs(&self, node: NodeId) -> &'g [ValueId] {
        &self.graph.nodes[node].inputs
    }

    /// The first result of a node; all nodes but controls and sorts have one.
    pub fn out(&self, node: NodeId) -> ValueId {
        self.graph.nodes[node].outputs[0]
    }

    /// Elements of a value, symbols at their typical size.
    pub fn elements(&self, value: ValueId) -> i64 {
        estimate(&self.graph.ty(value).elements())
    }

    /// Whether the decisions so far give a value a buffer for certain.
    pub fn has_buffer(&self, value: ValueId) -> bool {
        self.forced[value] || self.graph.producer(value).is_none()
    }

    /// Materialises the panels of a right-hand side: what is beneath the views that repeat them for a batch, that cut a
    /// matrix into them, or that take the first ones.
    fn force_panels(&mut self, mut value: ValueId) {
        let mut source = value;
        let mut viewed = false;
        while let Some(node) = self.graph.producer(source)
            && match self.op(node) {
                Op::Reshape { .. } | Op::Expand { .. } | Op::Transpose { .. } => true,
                Op::Slice { steps, sizes, .. } => {
                    let from = &self.graph.ty(self.inputs(node)[0]).shape;
                    sizes.last() == from.last() && steps.iter().all(|&step| step == 1)
                }
                _ => false,
            }
        {
            viewed |= !matches!(self.op(node), Op::Reshape { .. });
            source = self.inputs(node)[0];
        }
        if viewed && compose(self.graph, value, &|other| other == source).is_ok() {
            value = source;
        }
        self.forced[value] |= !self.is_dequantized(value);
    }

    /// Whether the last axis of a value is one along which elements lie side by side in the buffer that it is a view of.
    fn has_steps_side_by_side(&self, mut value: ValueId) -> bool {
        while !self.has_buffer(value)
            && let Some(node) = self.graph.producer(value)
        {
            let rank = self.graph.ty(value).rank();
            let stays = match self.op(node) {
                Op::Transpose { perm } => perm.last() == Some(&(rank - 1)),
                Op::Window { first, kernel, dilations, .. } => {
                    rank > first + 2 * kernel.len() || dilations.last() == Some(&1)
                }
                Op::Slice { steps, .. } => steps.last() == Some(&1),
                Op::Reshape { shape } => shape.last() == self.graph.ty(self.inputs(node)[0]).shape.last(),
                op => !op.is_view(),
            };
            if !stays {
                return false;
            }
            if !self.op(node).is_view() {
                break;
            }
            value = self.inputs(node)[0];
        }
        true
    }

    /// Whether a value is weights as few bits, which contractions widen as they read them.
    fn is_dequantized(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_some_and(|node| matches!(self.op(node), Op::Dequantize { .. }))
    }

    /// Buffers that operations demand of their operands.
    fn force_operands(&mut self) {
        for at in 0..self.live.len() {
            let node = self.live[at];
            let inputs = self.inputs(node);
            match self.op(node) {
                Op::Contract { rhs, .. } => {
                    inputs[2..].iter().for_each(|&other| self.forced[other] = true);
                    self.force_affine(inputs[0]);
                    match rhs.panels() {
                        Some((_, depth, _)) => {
                            self.force_panels(inputs[1]);
                            // Several steps are read at once.
                            if depth > 1 && !self.has_steps_side_by_side(inputs[0]) {
                                self.forced[inputs[0]] = true;
                            }
                        }
                        None => self.force_affine(inputs[1]),
                    }
                }
                Op::Pack { .. } => self.force_affine(inputs[0]),
                Op::Dequantize { .. } => inputs.iter().for_each(|&input| self.forced[input] = true),
                Op::WinogradInput { .. } | Op::WinogradOutput { .. } => {
                    self.force_pad(inputs[0]);
                    self.force_affine(inputs[0]);
                }
                Op::Scan { .. } | Op::If { .. } | Op::Call(_) | Op::External(_) | Op::Exchange(_) => {
                    for &value in inputs.iter().chain(&self.graph.nodes[node].outputs) {
                        self.forced[value] = true;
                    }
                }
                // Both results are where the elements taken so far are kept.
                Op::Sort { .. } => {
                    for &value in &self.graph.nodes[node].outputs {
                        self.forced[value] = true;
                    }
                }
                Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. } => {
                    self.force_pad(inputs[0]);
                }
                Op::Window { kernel, .. } if kernel.iter().any(|&size| size > 1) => {
                    self.force_pad(inputs[0]);
                }
                // In an expression, each element of the result reads an element of every operand.
                Op::Pad { .. } | Op::Concat { .. } if self.may_lack_elements(node) => {
                    let joined = self.out(node);
                    self.forced[joined] = true;
                }
                _ => {}
            }
        }
    }

    /// Whether a padding or a concatenation of elements may have an operand without any.
    fn may_lack_elements(&self, node: NodeId) -> bool {
        let may_be_empty = |value: ValueId, axis: usize| {
            self.graph.ty(value).shape[axis].bounds().0.is_none_or(|least| least < 1)
        };
        let inputs = self.inputs(node);
        match self.op(node) {
            Op::Pad { lo, hi } => (0..lo.len()).any(|axis| {
                (&lo[axis], &hi[axis]) != (&Dim::ZERO, &Dim::ZERO) && may_be_empty(inputs[0], axis)
            }),
            Op::Concat { axis } => inputs.iter().any(|&input| may_be_empty(input, *axis)),
            _ => false,
        }
    }

    /// Materialises what makes `value` an affine view of a buffer.
    fn force_affine(&mut self, value: ValueId) {
        while let Err(needed) = compose(self.graph, value, &|v| self.has_buffer(v)) {
            self.forced[needed] = true;
        }
    }

    /// Materialises the padding under a window or a gather: it would test the border for each element it reads.
    fn force_pad(&mut self, mut value: ValueId) {
        while let Some(node) = self.graph.producer(value) {
            match self.op(node) {
                Op::Pad { .. } => {
                    self.forced[value] = true;
                    return;
                }
                op if op.is_view() && !self.forced[value] => value = self.inputs(node)[0],
                _ => return,
            }
        }
    }

    fn force_everything(&mut self) {
        for &node in &self.live {
            if !self.op(node).is_view() {
                let value = self.graph.nodes[node].outputs[0];
                self.forced[value] = true;
            }
        }
    }

    /// Makes a unit of nodes (in topological order).
    pub fn claim(&mut self, kind: Option<GroupKind>, anchor: NodeId, claimed: Vec<NodeId>) -> UnitId {
        let id = self.units.len();
        let mut unit = Unit { kind, anchor, size: 0, claimed, reads: EntitySet::new(), read_count: 0 };
        for &node in &unit.claimed {
            self.unit_of[node] = Some(id);
        }
        for at in 0..unit.claimed.len() {
            let node = unit.claimed[at];
            for &input in &self.graph.nodes[node].inputs {
                let inside = self.graph.producer(input).is_some_and(|from| self.unit_of[from] == Some(id));
                if !inside && unit.reads.insert(input) {
                    unit.read_count += 1;
                }
            }
        }
        unit.size = unit.claimed.len();
        self.units.push(unit);
        id
    }

    /// Units of the primitives that are alone.
    fn claim_rest(&mut self) {
        for at in 0..self.live.len() {
            let node = self.live[at];
            if self.unit_of[node].is_some() {
                continue;
            }
            let kind = match self.op(node) {
                Op::Scan { .. } | Op::If { .. } | Op::Call(_) | Op::External(_) | Op::Exchange(_) => None,
                Op::Contract { .. } => Some(GroupKind::Contract),
                Op::WinogradOutput { .. } => Some(GroupKind::Winograd),
                Op::Reduce { .. } => Some(GroupKind::Reduce),
                Op::ArgReduce { .. }
                | Op::Cumulate { .. }
                | Op::Pack { .. }
                | Op::WinogradInput { .. }
                | Op::Sort { .. }
                | Op::Suppress { .. }
                | Op::Append { .. }
                | Op::Leaves(_)
                | Op::ScatterElements { .. }
                | Op::ScatterNd { .. } => Some(GroupKind::Single),
                Op::Concat { .. } if !self.inlines_concat(node) => Some(GroupKind::Single),
                _ => continue,
            };
            self.claim(kind, node, vec![node]);
        }
    }

    fn inlines_concat(&self, node: NodeId) -> bool {
        let out = self.out(node);
        !self.forced[out]
            && self.inputs(node).len() <= 4
            && self.elements(out) <= SMALL_CONCAT
            && self.users[out].len() == 1
            && matches!(self.op(self.users[out][0]), Op::Map(_))
    }

    /// Whether a value leaves a set of nodes: something else reads it, or it must have a buffer.
    pub fn escapes(&self, value: ValueId, inside: &dyn Fn(NodeId) -> bool) -> bool {
        self.forced[value] || self.users[value].iter().any(|&user| !inside(user))
    }

    /// Adds to each unit the inlined nodes behind it.
    fn close(self, alias: SecondaryMap<ValueId, Option<ValueId>>) -> Result<Grouping> {
        let mut materialised: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        let graph = self.graph;
        for (value, data) in graph.values.iter() {
            materialised[value] = !matches!(data.def, onnxc_ir::graph::Def::Node(..))
                || (self.forced[value] && self.is_live(value));
        }
        for (id, unit) in self.units.iter().enumerate() {
            for &value in unit.claimed.iter().flat_map(|&node| &graph.nodes[node].outputs) {
                let works_in_it = matches!(self.op(unit.anchor), Op::Sort { .. });
                if works_in_it || self.escapes(value, &|node| self.unit_of[node] == Some(id)) {
                    materialised[value] = true;
                }
            }
        }
        let mut groups = PrimaryMap::new();
        let mut controls = Vec::new();
        for unit in &self.units {
            match unit.kind {
                None => controls.push(unit.anchor),
                Some(kind) => {
                    groups.push(self.close_unit(unit, kind, &materialised)?);
                }
            }
        }
        let symbols = graph.data_symbols_with(&self.live).into_iter().collect();
        Ok(Grouping { groups, controls, symbols, materialised, alias })
    }

    fn is_live(&self, value: ValueId) -> bool {
        self.is_output[value] || self.defines_sizes[value] || !self.users[value].is_empty()
    }

    fn close_unit(
        &self,
        unit: &Unit,
        kind: GroupKind,
        materialised: &SecondaryMap<ValueId, bool>,
    ) -> Result<Group> {
        let graph = self.graph;
        let mut seen: EntitySet<NodeId> = EntitySet::new();
        for &node in &unit.claimed {
            seen.insert(node);
        }
        let mut nodes = unit.claimed.clone();
        let (mut read, mut inputs) = (EntitySet::new(), Vec::new());
        let mut at = 0;
        while at < nodes.len() {
            for &input in &graph.nodes[nodes[at]].inputs {
                match graph.producer(input) {
                    Some(node) if seen.contains(node) => {}
                    Some(node) if !materialised[input] => {
                        if self.unit_of[node].is_some() {
                            return Err(Error::internal(
                                Stage::Schedule,
                                format!("{input} is read by {} but has no buffer", unit.anchor),
                            ));
                        }
                        seen.insert(node);
                        nodes.push(node);
                    }
                    _ => {
                        if read.insert(input) {
                            inputs.push(input);
                        }
                    }
                }
            }
            at += 1;
        }
        nodes.sort_by_key(|&node| self.position[node]);
        inputs.sort();
        let outputs = unit
            .claimed
            .iter()
            .flat_map(|&node| &graph.nodes[node].outputs)
            .copied()
            .filter(|&value| materialised[value])
            .collect();
        let (stages, scratch, settings) = (vec![], Dim::ZERO, Default::default());
        Ok(Group { kind, nodes, anchor: unit.anchor, inputs, outputs, stages, scratch, settings })
    }
}

/// Whether a function costs far more than the load and store of an element.
pub(super) fn is_expensive(function: MapFn) -> bool {
    match function {
        MapFn::Unary(function) => !matches!(
            function,
            UnaryFn::Neg
                | UnaryFn::Abs
                | UnaryFn::Sign
                | UnaryFn::Ceil
                | UnaryFn::Floor
                | UnaryFn::Round
                | UnaryFn::Trunc
                | UnaryFn::Not
                | UnaryFn::BitNot
                | UnaryFn::IsNan
                | UnaryFn::IsPosInf
                | UnaryFn::IsNegInf
        ),
        MapFn::Binary(function) => matches!(
            function,
            BinaryFn::Div | BinaryFn::Mod | BinaryFn::Rem | BinaryFn::Pow | BinaryFn::Atan2
        ),
        MapFn::Compare(_) | MapFn::Select | MapFn::MulAdd | MapFn::Cast { .. } | MapFn::Bitcast { .. } => {
            false
        }
    }
}
