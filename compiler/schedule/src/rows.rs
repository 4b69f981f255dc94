//! Rows groups: reductions over the trailing axes and the elementwise nodes around them, computed row by row
//! while the row is in cache: softmax, layer normalization, RMS normalization, logsumexp. Statistics of the rows of an image that lies
//! channels-last are such groups, too: each channel of a row of pixels has its own, and all results have the size of those.

use cranelift_entity::EntitySet;

use crate::grouper::{Grouper, MAX_INPUTS, MAX_NODES, is_expensive};
use crate::inline::{Tree, is_cheap};
use crate::{Group, GroupKind};
use onnxc_ir::graph::{DType, Dim, Graph, MOST_DIGITS, Node, NodeId, Op, ValueId};
use onnxc_tuning::chain::MOST_KEPT_ROWS;

/// Values a rows group may write: what left-hand sides as digits consist of.
const MAX_OUTPUTS: usize = 3 + MOST_DIGITS;
/// Size of an expression as a tree (reduced values count 1).
const MAX_TREE: u32 = 128;

/// A row that a rows group keeps in its scratch: it is costly, read by a reduction and once more, and no result has a
/// place for it until then. There is a row for each iteration of the kernel's outermost loop.
pub struct KeptRow {
    pub value: ValueId,
    /// The leading axis that the outermost loop is over.
    pub axis: usize,
    /// Its size, and that of a row.
    pub rows: i64,
    pub elements: i64,
    element_bytes: i64,
}

impl KeptRow {
    pub fn of(graph: &Graph, group: &Group) -> Option<KeptRow> {
        let Op::Reduce { axes, .. } = &graph.nodes[group.anchor].op else { return None };
        let full = &graph.ty(graph.nodes[group.anchor].inputs[0]).shape;
        let (elements, lead) = full.split_last()?;
        if group.kind != GroupKind::Rows || lead.is_empty() || axes.as_slice() != [lead.len()] {
            return None;
        }
        let axis = lead.iter().position(|dim| *dim != Dim::ONE).unwrap_or(0);
        let rows = lead.get(axis).map_or(Some(1), Dim::as_const)?;
        let elements = elements.as_const()?;
        let costly = |value: ValueId| {
            let node = &graph.nodes[graph.producer(value).filter(|node| group.nodes.contains(node))?];
            let again = group.nodes.iter().map(|&node| &graph.nodes[node]);
            let readers: Vec<&Node> = again.filter(|node| node.inputs.contains(&value)).collect();
            let ty = graph.ty(value);
            let keeps = matches!(node.op, Op::Map(function) if is_expensive(function))
                && ty.shape == *full
                && readers.len() > 1
                && readers.iter().all(|node| matches!(node.op, Op::Map(_) | Op::Reduce { .. }))
                && group.outputs.iter().all(|&output| graph.ty(output) != ty);
            let element_bytes = ty.dtype.size() as i64;
            let bytes = rows.checked_mul(elements)?.checked_mul(element_bytes)?;
            (keeps && (1..=MOST_KEPT_ROWS).contains(&bytes)).then_some(KeptRow {
                value,
                axis,
                rows,
                elements,
                element_bytes,
            })
        };
        let reduced = group.nodes.iter().filter_map(|&node| match &graph.nodes[node] {
            Node { op: Op::Reduce { .. }, inputs, .. } => Some(inputs[0]),
            _ => None,
        });
        reduced.into_iter().find_map(costly)
    }

    pub fn bytes(&self) -> Dim {
        Dim::from(self.rows * self.elements * self.element_bytes)
    }
}

/// What all nodes of a rows group have in common.
struct RowsForm<'a> {
    full: &'a [Dim],
    reduced: &'a [Dim],
    axes: &'a [usize],
    /// The type of all values, where the last axis stays: its vectors are of one width then.
    columns: Option<DType>,
}

/// Whether a reduction over these axes combines the rows of columns that lie side by side.
pub fn keeps_columns(full: &[Dim], axes: &[usize]) -> bool {
    match full {
        [.., rows, columns] => axes == [full.len() - 2] && *rows != Dim::ONE && *columns != Dim::ONE,
        _ => false,
    }
}

impl Grouper<'_> {
    pub(super) fn claim_rows(&mut self) {
        let trees = self.trees();
        for at in 0..self.live.len() {
            let node = self.live[at];
            if self.unit_of[node].is_none()
                && let Some(nodes) = self.rows(node, &trees)
            {
                self.add_rows_span(&nodes);
                self.claim(Some(GroupKind::Rows), node, nodes);
            }
        }
    }

    /// Notes the span of a rows group, whose nodes are in topological order.
    fn add_rows_span(&mut self, nodes: &[NodeId]) {
        let [first, .., last] = nodes else { return };
        let (mut start, mut end) = (self.position[*first], self.position[*last]);
        while let Some((&other, &other_end)) = self.rows_spans.range(..=end).next_back()
            && other_end >= start
        {
            self.rows_spans.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.rows_spans.insert(start, end);
    }

    /// The last position that what is at `position` may depend on: its own, or the end of the rows groups around it.
    fn reach(&self, position: u32) -> u32 {
        let before = self.rows_spans.range(..=position).next_back();
        before.map_or(position, |(_, &end)| end.max(position))
    }

    /// The rows group that grows from a reduction, in topological order, if there is one.
    fn rows(
        &self,
        seed: NodeId,
        trees: &cranelift_entity::SecondaryMap<ValueId, Tree>,
    ) -> Option<Vec<NodeId>> {
        let Op::Reduce { axes, .. } = self.op(seed) else { return None };
        let full = &self.graph.ty(self.inputs(seed)[0]).shape;
        let reduced = &self.graph.ty(self.out(seed)).shape;
        let trailing = axes.iter().rev().enumerate().all(|(at, &axis)| axis + at + 1 == full.len());
        let columns = keeps_columns(full, axes).then(|| self.graph.ty(self.out(seed)).dtype);
        if !(trailing || columns.is_some()) || axes.is_empty() || full == reduced {
            return None;
        }
        let form = RowsForm { full, reduced, axes, columns };
        let mut nodes = vec![seed];
        self.grow_forward(&form, &mut nodes);
        if !self.uses_row_after_reduction(&form, &nodes) {
            return None;
        }
        self.grow_backward(&form, &mut nodes, trees);
        nodes.sort_by_key(|&node| self.position[node]);
        Some(nodes)
    }

    fn fits(&self, form: &RowsForm, node: NodeId) -> bool {
        if self.unit_of[node].is_some() {
            return false;
        }
        if form.columns.is_some_and(|dtype| self.graph.ty(self.out(node)).dtype != dtype) {
            return false;
        }
        match self.op(node) {
            Op::Map(_) => {
                let shape = &self.graph.ty(self.out(node)).shape;
                shape == form.full || shape == form.reduced
            }
            Op::Reduce { axes, .. } => {
                axes == form.axes && self.graph.ty(self.inputs(node)[0]).shape == form.full
            }
            _ => false,
        }
    }

    /// Readers of the group's values, in topological order.
    fn grow_forward(&self, form: &RowsForm, nodes: &mut Vec<NodeId>) {
        let mut rejected: EntitySet<NodeId> = EntitySet::new();
        let mut kept = nodes.len();
        while nodes.len() < MAX_NODES {
            let next = nodes
                .iter()
                .flat_map(|&node| &self.users[self.out(node)])
                .filter(|&&user| !nodes.contains(&user) && !rejected.contains(user))
                .min_by_key(|&&user| self.position[user]);
            let Some(&next) = next else { break };
            nodes.push(next);
            let accepted = self.fits(form, next)
                && self.external(nodes).len() <= MAX_INPUTS
                && self.tree_size(nodes, next) <= MAX_TREE
                && !self.depends(
                    &self.operands_outside(&nodes[..nodes.len() - 1], next),
                    &nodes[..nodes.len() - 1],
                );
            if !accepted {
                nodes.pop();
                rejected.insert(next);
            } else if self.outputs(nodes) <= MAX_OUTPUTS && !self.gives_columns(form, nodes) {
                kept = nodes.len();
            }
        }
        nodes.truncate(kept);
    }

    /// Producers of what the group reads: those that nothing else reads, and those of full rows that would
    /// else be a kernel of their own.
    fn grow_backward(
        &self,
        form: &RowsForm,
        nodes: &mut Vec<NodeId>,
        trees: &cranelift_entity::SecondaryMap<ValueId, Tree>,
    ) {
        let mut at = 0;
        while at < nodes.len() {
            for &value in self.inputs(nodes[at]) {
                let Some(from) = self.graph.producer(value) else { continue };
                if nodes.contains(&from) || !self.fits(form, from) || nodes.len() >= MAX_NODES {
                    continue;
                }
                let private = !self.escapes(value, &|user| nodes.contains(&user));
                let worthwhile = private
                    || (form.columns.is_none()
                        && self.graph.ty(value).shape == form.full
                        && matches!(self.op(from), Op::Map(_))
                        && !is_cheap(self, value, &trees[value])
                        && self.outputs(nodes) < MAX_OUTPUTS);
                nodes.push(from);
                let external = self.external(nodes);
                let accepted = worthwhile
                    && external.len() <= MAX_INPUTS
                    && nodes.iter().all(|&node| self.tree_size(nodes, node) <= MAX_TREE)
                    && (private || !self.depends(&external, &[from]));
                if !accepted {
                    nodes.pop();
                }
            }
            at += 1;
        }
    }

    /// Whether others read whole columns of a group that is to give statistics of them only.
    fn gives_columns(&self, form: &RowsForm, nodes: &[NodeId]) -> bool {
        let is_full = |node: NodeId| self.graph.ty(self.out(node)).shape == form.full;
        form.columns.is_some()
            && nodes
                .iter()
                .any(|&node| is_full(node) && self.escapes(self.out(node), &|user| nodes.contains(&user)))
    }

    /// Whether a node of full row shape depends on a reduction inside: else one pass over the operand does.
    fn uses_row_after_reduction(&self, form: &RowsForm, nodes: &[NodeId]) -> bool {
        // All nodes grew forward from the first reduction, so any elementwise one depends on it.
        nodes.iter().any(|&node| {
            matches!(self.op(node), Op::Map(_)) && self.graph.ty(self.out(node)).shape == form.full
        })
    }

    /// Values that the nodes read, or take sizes from, and do not compute.
    fn external(&self, nodes: &[NodeId]) -> Vec<ValueId> {
        let mut values: Vec<ValueId> =
            nodes.iter().flat_map(|&node| self.operands_outside(nodes, node)).collect();
        values.sort();
        values.dedup();
        values
    }

    fn operands_outside(&self, nodes: &[NodeId], node: NodeId) -> Vec<ValueId> {
        let inside = |value: &ValueId| self.graph.producer(*value).is_some_and(|from| nodes.contains(&from));
        let operands = self.inputs(node).iter().copied().filter(|value| !inside(value));
        // A size is needed before the kernel starts, also one that it would compute itself.
        operands.chain(self.needs[node].iter().copied()).collect()
    }

    /// Number of values that others read.
    fn outputs(&self, nodes: &[NodeId]) -> usize {
        nodes.iter().filter(|&&node| self.escapes(self.out(node), &|user| nodes.contains(&user))).count()
    }

    /// Nodes of the expression of `node` as a tree down to reductions and values from outside.
    fn tree_size(&self, nodes: &[NodeId], node: NodeId) -> u32 {
        let mut order = nodes.to_vec();
        order.sort_by_key(|&node| self.position[node]);
        let mut sizes: Vec<(ValueId, u32)> = Vec::new();
        for &member in &order {
            let of =
                |value: &ValueId| sizes.iter().find(|(own, _)| own == value).map_or(0, |(_, size)| *size);
            let total = self.inputs(member).iter().map(of).fold(1u32, u32::saturating_add);
            if member == node {
                return total;
            }
            let reduces = matches!(self.op(member), Op::Reduce { .. });
            sizes.push((self.out(member), if reduces { 1 } else { total }));
        }
        1
    }

    /// Whether one of `values` depends on one of `nodes`, each rows group taken as a whole.
    fn depends(&self, values: &[ValueId], nodes: &[NodeId]) -> bool {
        let first = nodes.iter().map(|&node| self.position[node]).min().unwrap_or(0);
        let mut seen: EntitySet<NodeId> = EntitySet::new();
        let mut stack: Vec<NodeId> = values.iter().filter_map(|&value| self.graph.producer(value)).collect();
        while let Some(node) = stack.pop() {
            if nodes.contains(&node) {
                return true;
            }
            // Only through groups of several outputs does a node depend on what comes after it.
            if self.reach(self.position[node]) < first || !seen.insert(node) {
                continue;
            }
            let before = self.inputs(node).iter().chain(&self.needs[node]);
            stack.extend(before.filter_map(|&value| self.graph.producer(value)));
            if let Some(unit) = self.unit_of[node] {
                stack.extend(self.units[unit].claimed.iter().filter(|&&member| !seen.contains(member)));
            }
        }
        false
    }
}
