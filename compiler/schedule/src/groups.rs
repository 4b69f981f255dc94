//! Fusion: which values have buffers, and which nodes each kernel computes.
//!
//! Groups start from *anchors*: contractions, reductions, and the primitives with a loop nest of their own.
//! Contractions and reductions claim the elementwise nodes after them (`regions`), normalisations claim
//! theirs (`rows`). What no anchor claims is settled from the outputs backwards (`inline`): an expression inside
//! the groups that read it, or the root of a `Map` group.
//!
//! Nearly all groups have one output, computed from everything they read, so they cannot form a cycle;
//! `rows` checks reachability for the others. At the end, `chain` makes one group of the three of an attention.

use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap};

use crate::grouper::{Grouper, Grouping, Unit};
use crate::{Group, GroupKind, Options, chain, estimate, scratch, updates};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::op::{KernelForm, Need};
use onnxc_ir::graph::view::compose;
use onnxc_ir::graph::{Dim, Graph, NodeId, Op, ValueId};

/// Elements of a concatenation up to which it is a chain of selects in its reader.
const SMALL_CONCAT: i64 = 1024;

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
    if options.fuse {
        updates::merge(graph, &mut grouping);
    }
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

impl Grouper<'_> {
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

    /// Whether a contraction would go down the columns of its left operand so often that a copy costs less. The gradient of a weight is
    /// such a one: its left operand is transposed, and its inner steps are the rows of a batch.
    fn reads_columns(&self, node: NodeId) -> bool {
        let Op::Contract { batch, m, .. } = self.op(node) else { return false };
        let lhs = self.inputs(node)[0];
        let (ty, columns) = (self.graph.ty(lhs), self.graph.ty(self.out(node)).shape.last());
        let steps = estimate(&product(&ty.shape[batch + m..]));
        let columns = columns.map_or(0, estimate);
        let mut source = lhs;
        while !self.has_buffer(source)
            && let Some(node) = self.graph.producer(source)
            && matches!(self.op(node), Op::Transpose { .. } | Op::Reshape { .. })
        {
            source = self.inputs(node)[0];
        }
        onnxc_tuning::pays_to_transpose(steps, columns)
            && source != lhs
            && matches!(self.producing(lhs), Some(Op::Transpose { .. }))
            && !self.has_steps_side_by_side(lhs)
    }

    /// Whether a value is weights as few bits, which contractions widen as they read them.
    fn is_dequantized(&self, value: ValueId) -> bool {
        self.graph.producer(value).is_some_and(|node| matches!(self.op(node), Op::Dequantize { .. }))
    }

    /// Buffers that operations demand of their operands.
    fn force_operands(&mut self) {
        for at in 0..self.live.len() {
            let node = self.live[at];
            let (op, inputs) = (self.op(node), self.inputs(node));
            for (operand, &value) in inputs.iter().enumerate() {
                self.forced[value] |= op.need(operand) == Need::Buffer;
            }
            for (operand, &value) in inputs.iter().enumerate() {
                match op.need(operand) {
                    Need::Expression | Need::Buffer => {}
                    Need::Unpadded => self.force_pad(value),
                    Need::Strided => self.force_affine(value),
                    Need::StridedUnpadded => {
                        self.force_pad(value);
                        self.force_affine(value);
                    }
                    Need::Panels { depth } => {
                        self.force_panels(value);
                        // Several steps are read at once.
                        if depth > 1 && !self.has_steps_side_by_side(inputs[0]) || self.reads_columns(node) {
                            self.forced[inputs[0]] = true;
                        }
                    }
                }
            }
            // What is stored in 16 bits is widened where it is read, also by windows.
            if self.widens(node)
                && matches!(self.producing(inputs[0]), Some(Op::Concat { .. } | Op::Pad { .. }))
            {
                self.forced[inputs[0]] = true;
            }
            if op.fills_buffers() {
                for &value in &self.graph.nodes[node].outputs {
                    self.forced[value] = true;
                }
            }
            // In an expression, each element of the result reads an element of every operand.
            if self.may_lack_elements(node) {
                let joined = self.out(node);
                self.forced[joined] = true;
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
        for at in 0..self.live.len() {
            let node = self.live[at];
            if !self.op(node).is_view() {
                let value = self.out(node);
                self.forced[value] = true;
            }
        }
    }

    /// Units of the primitives that are alone.
    fn claim_rest(&mut self) {
        for at in 0..self.live.len() {
            let node = self.live[at];
            if self.unit_of[node].is_some() {
                continue;
            }
            let kind = match self.op(node).form() {
                KernelForm::Hosted => None,
                KernelForm::Contract => Some(GroupKind::Contract),
                KernelForm::Winograd => Some(GroupKind::Winograd),
                KernelForm::Reduce => Some(GroupKind::Reduce),
                KernelForm::Nest => Some(GroupKind::Single),
                KernelForm::Joined if !self.inlines_concat(node) => Some(GroupKind::Single),
                KernelForm::Joined | KernelForm::Padded | KernelForm::Expression => continue,
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
