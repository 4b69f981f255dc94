//! What the steps of fusion share: facts about a graph, and the decisions made so far.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};

use crate::{Group, GroupId, GroupKind, estimate};
use onnxc_ir::graph::{DType, Graph, MapFn, NodeId, Op, Sym, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

/// Nodes in one kernel, and buffers it reads, beyond which no more is inlined.
pub(super) const MAX_NODES: usize = 64;
pub(super) const MAX_INPUTS: usize = 24;

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
    pub(crate) fn storage(&self, mut value: ValueId) -> ValueId {
        while let Some(of) = self.alias[value] {
            value = of;
        }
        value
    }

    /// Data symbols of the values between some and the storages that they are views of: what is assumed of these sizes is what
    /// a view has the bytes of its storage by.
    pub(crate) fn view_symbols(&self, graph: &Graph, values: &[ValueId]) -> BTreeSet<Sym> {
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

/// The part of a graph that its outputs need, which no decision changes.
pub(super) struct LiveGraph<'g> {
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
}

/// The decisions made so far about a graph, whose facts are read as if they were its own.
pub(super) struct Grouper<'g> {
    facts: LiveGraph<'g>,
    /// Values that must have a buffer regardless of their readers.
    pub forced: SecondaryMap<ValueId, bool>,
    pub unit_of: SecondaryMap<NodeId, Option<UnitId>>,
    pub units: Vec<Unit>,
    /// First and last position of each rows unit; those that overlap as one.
    pub rows_spans: BTreeMap<u32, u32>,
}

impl<'g> Deref for Grouper<'g> {
    type Target = LiveGraph<'g>;

    fn deref(&self) -> &LiveGraph<'g> {
        &self.facts
    }
}

impl<'g> LiveGraph<'g> {
    fn new(graph: &'g Graph) -> LiveGraph<'g> {
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
        let mut facts = LiveGraph {
            graph,
            position: SecondaryMap::new(),
            users: SecondaryMap::new(),
            needs: SecondaryMap::new(),
            defines_sizes: SecondaryMap::new(),
            is_output: SecondaryMap::new(),
            live,
        };
        for (at, &node) in facts.live.iter().enumerate() {
            facts.position[node] = at as u32;
            for &input in &graph.nodes[node].inputs {
                if facts.users[input].last() != Some(&node) {
                    facts.users[input].push(node);
                }
            }
            facts.needs[node] = graph.needs(node);
        }
        graph.data_sources().into_iter().for_each(|value| facts.defines_sizes[value] = true);
        graph.outputs.iter().for_each(|(_, value)| facts.is_output[*value] = true);
        facts
    }

    pub(crate) fn op(&self, node: NodeId) -> &'g Op {
        &self.graph.nodes[node].op
    }

    pub(crate) fn inputs(&self, node: NodeId) -> &'g [ValueId] {
        &self.graph.nodes[node].inputs
    }

    /// The first result of a node; all nodes but controls and sorts have one.
    pub(crate) fn out(&self, node: NodeId) -> ValueId {
        self.graph.nodes[node].outputs[0]
    }

    /// The operation that computes a value.
    pub(crate) fn producing(&self, value: ValueId) -> Option<&'g Op> {
        self.graph.producer(value).map(|node| self.op(node))
    }

    /// Whether a node makes an f32 of a bf16, which is a shift where it is read.
    pub(crate) fn widens(&self, node: NodeId) -> bool {
        let narrow = |value: &ValueId| self.graph.ty(*value).dtype == DType::BF16;
        matches!(self.op(node), Op::Map(MapFn::Cast { to: DType::F32, .. }))
            && self.inputs(node).iter().all(narrow)
    }

    /// Elements of a value, symbols at their typical size.
    pub(crate) fn elements(&self, value: ValueId) -> i64 {
        estimate(&self.graph.ty(value).elements())
    }
}

impl<'g> Grouper<'g> {
    /// Before any decision: sizes that the run computes, and outputs, have buffers.
    pub(crate) fn new(graph: &'g Graph) -> Grouper<'g> {
        let mut forced = SecondaryMap::new();
        let given = graph.outputs.iter().map(|(_, value)| *value);
        graph.data_sources().into_iter().chain(given).for_each(|value| forced[value] = true);
        Grouper {
            facts: LiveGraph::new(graph),
            forced,
            unit_of: SecondaryMap::new(),
            units: Vec::new(),
            rows_spans: BTreeMap::new(),
        }
    }

    /// Whether the decisions so far give a value a buffer for certain.
    pub(crate) fn has_buffer(&self, value: ValueId) -> bool {
        self.forced[value] || self.graph.producer(value).is_none()
    }

    /// Makes a unit of nodes (in topological order).
    pub(crate) fn claim(&mut self, kind: Option<GroupKind>, anchor: NodeId, claimed: Vec<NodeId>) -> UnitId {
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

    /// Whether a value leaves a set of nodes: something else reads it, or it must have a buffer.
    pub(crate) fn escapes(&self, value: ValueId, inside: &dyn Fn(NodeId) -> bool) -> bool {
        self.forced[value] || self.users[value].iter().any(|&user| !inside(user))
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
        MapFn::Compare(_)
        | MapFn::Select
        | MapFn::MulAdd
        | MapFn::Requantize { .. }
        | MapFn::Cast { .. }
        | MapFn::Bitcast { .. } => false,
    }
}
