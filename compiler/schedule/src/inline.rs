//! Which values that no anchor claims are inlined, settled from the outputs backwards.
//!
//! A value is inlined where that computes none of its elements twice: all its readers, followed to the
//! kernels they end in, evaluate it at one index. Views are inlined; short cheap expressions may
//! be computed again.
//!
//! Inlined views make the indices of what they view longer: one that merges axes divides, and each of its operand's
//! indices then holds all of its own. A view whose operand would be read at indices of more than [`MAX_INDEX`] parts, or
//! that ends a chain of [`MAX_VIEWS`], gets a buffer, and chains of views cost no more than their length.

use std::collections::HashMap;

use cranelift_entity::SecondaryMap;

use crate::GroupKind;
use crate::estimate;
use crate::grouper::{Grouper, MAX_INPUTS, MAX_NODES, UnitId, is_expensive};
use onnxc_ir::graph::op::{Expense, KernelForm, Readings};
use onnxc_ir::graph::{Dim, NodeId, Op, ValueId};

/// The expression of a value down to buffers, were everything between inlined.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tree {
    /// Elementwise nodes.
    ops: u32,
    expensive: bool,
    /// Bytes of the buffers it reads.
    leaf_bytes: i64,
}

/// Nodes of an expression that may be computed more than once per element.
const CHEAP_OPS: u32 = 2;
/// Nodes of an expression that an epilogue computes rather than loads.
pub(super) const EPILOGUE_OPS: u32 = 4;
/// How often one kernel's expression may mention a value, and at how many indices.
const MAX_MENTIONS: u32 = 16;
const MAX_SITES: usize = 64;
/// Views between a kernel and a value, and parts of the indices at which the value is then read.
const MAX_VIEWS: u32 = 64;
const MAX_INDEX: u32 = 1024;

/// Whether computing a value again costs no more than storing and loading it.
pub(super) fn is_cheap(grouper: &Grouper, value: ValueId, tree: &Tree) -> bool {
    let bytes = estimate(&grouper.graph.ty(value).bytes());
    !tree.expensive
        && tree.ops <= CHEAP_OPS
        && tree.leaf_bytes <= bytes.saturating_add(bytes / 4).saturating_add(256)
}

/// Whether computing a value where an epilogue reads it takes few operations on the same number of elements, and reads less than the value,
/// as dequantizing bytes does. A value made of smaller tensors, such as a mask of indices, has many readers.
fn is_light(grouper: &Grouper, node: NodeId, tree: &Tree) -> bool {
    let ty = grouper.graph.ty(grouper.out(node));
    let one_or_all = |input: &ValueId| {
        let own = grouper.graph.ty(*input);
        own.shape == ty.shape || own.elements() == Dim::ONE
    };
    !tree.expensive
        && tree.ops <= EPILOGUE_OPS
        && tree.leaf_bytes <= estimate(&ty.bytes()) / 2
        && matches!(grouper.op(node), Op::Map(_))
        && grouper.inputs(node).iter().all(one_or_all)
}

/// One place where a kernel evaluates a value: two sites of one kernel and path have the same index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Site {
    unit: UnitId,
    path: u32,
    /// Whether elements are evaluated more than once there.
    repeated: bool,
    /// Mentions in the expression.
    count: u32,
    /// Views on the way.
    views: u32,
    /// Parts that the indices have there, at most.
    index: u32,
    /// Whether it is an operand of a contraction or packing, which address theirs as strided buffers.
    strided: bool,
}

/// How a node's index becomes its operand's.
#[derive(Clone, PartialEq, Eq, Hash)]
enum IndexStep {
    Unit(UnitId),
    /// Broadcast to a shape.
    Broadcast(Vec<Dim>),
    Operand(NodeId, usize),
}

#[derive(Default)]
struct Sites {
    of: SecondaryMap<ValueId, Vec<Site>>,
    paths: HashMap<(u32, IndexStep), u32>,
}

impl Sites {
    /// Number of the path that continues `from` by `step`; 0 is the empty path.
    fn path(&mut self, from: u32, step: IndexStep) -> u32 {
        let next = self.paths.len() as u32 + 1;
        *self.paths.entry((from, step)).or_insert(next)
    }

    fn add(&mut self, value: ValueId, site: Site) {
        let sites = &mut self.of[value];
        match sites.iter().position(|own| own.unit == site.unit && own.path == site.path) {
            Some(at) => {
                sites[at].count = sites[at].count.saturating_add(site.count);
                sites[at].repeated |= site.repeated;
                sites[at].views = sites[at].views.max(site.views);
                sites[at].index = sites[at].index.max(site.index);
            }
            None if sites.len() < MAX_SITES => sites.push(site),
            None => {
                sites[0].repeated = true;
                sites[0].views = sites[0].views.max(site.views);
                sites[0].index = sites[0].index.max(site.index);
            }
        }
    }
}

impl Grouper<'_> {
    /// The tree of every value, with the nodes claimed so far as leaves.
    pub(super) fn trees(&self) -> SecondaryMap<ValueId, Tree> {
        let mut trees: SecondaryMap<ValueId, Tree> = SecondaryMap::new();
        let leaf = |value| Tree { leaf_bytes: estimate(&self.graph.ty(value).bytes()), ..Tree::default() };
        for (value, data) in self.graph.values.iter() {
            if !matches!(data.def, onnxc_ir::graph::Def::Node(..)) {
                trees[value] = leaf(value);
            }
        }
        for &node in &self.live {
            let out = self.out(node);
            let mut tree = Tree::default();
            for &input in self.inputs(node) {
                tree.ops = tree.ops.saturating_add(trees[input].ops);
                tree.expensive |= trees[input].expensive;
                tree.leaf_bytes = tree.leaf_bytes.saturating_add(trees[input].leaf_bytes);
            }
            match self.op(node).expense() {
                _ if self.forced[out] || self.unit_of[node].is_some() => tree = leaf(out),
                Expense::Function(function) => {
                    tree.ops = tree.ops.saturating_add(1);
                    tree.expensive |= is_expensive(function);
                }
                Expense::Test => tree.ops = tree.ops.saturating_add(1),
                Expense::View => tree.leaf_bytes = tree.leaf_bytes.min(leaf(out).leaf_bytes),
                Expense::Search => tree.expensive = true,
                Expense::None => {}
                Expense::Kernel => tree = leaf(out),
            }
            trees[out] = tree;
            for &other in &self.graph.nodes[node].outputs[1..] {
                trees[other] = leaf(other);
            }
        }
        trees
    }

    /// Settles every node that no unit claims: roots become units of their own, the others stay inlined. Gives
    /// the reshapes that are aliases.
    pub(super) fn settle(&mut self) -> SecondaryMap<ValueId, Option<ValueId>> {
        let trees = self.trees();
        let mut alias: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::new();
        let mut sites = Sites::default();
        for at in (0..self.live.len()).rev() {
            let node = self.live[at];
            let own = match self.unit_of[node] {
                Some(unit) => vec![self.anchored(&mut sites, node, unit)],
                None => {
                    let out = self.out(node);
                    if self.forced[out] && matches!(self.op(node), Op::Reshape { .. }) {
                        let source = self.inputs(node)[0];
                        self.forced[source] = true;
                        alias[out] = Some(source);
                        continue;
                    }
                    if self.inlines(node, &sites.of[out], &trees[out]) {
                        let own = sites.of[out].clone();
                        self.join(node, &own);
                        own
                    } else {
                        self.forced[out] = true;
                        let kind = match self.op(node).form() {
                            KernelForm::Padded | KernelForm::Joined => GroupKind::Single,
                            _ => GroupKind::Map,
                        };
                        let unit = self.claim(Some(kind), node, vec![node]);
                        vec![self.anchored(&mut sites, node, unit)]
                    }
                }
            };
            for (operand, &value) in self.inputs(node).iter().enumerate() {
                for site in &own {
                    let site = self.through(&mut sites, node, operand, value, *site);
                    sites.add(value, site);
                }
            }
        }
        alias
    }

    /// Where a unit evaluates one of its claimed nodes.
    fn anchored(&self, sites: &mut Sites, node: NodeId, unit: UnitId) -> Site {
        let mut path = sites.path(0, IndexStep::Unit(unit));
        if self.units[unit].kind == Some(GroupKind::Rows) {
            // Each node may run in a pass of its own over the row.
            path = sites.path(path, IndexStep::Operand(node, 0));
        }
        let index = self.graph.ty(self.out(node)).rank() as u32;
        Site { unit, path, repeated: false, count: 1, views: 0, index, strided: false }
    }

    /// Where operand number `operand` is evaluated when its reader is at `site`. This compares whole indices, where the ways of
    /// [`axes`](onnxc_ir::graph::axes) are of one axis each.
    fn through(&self, sites: &mut Sites, node: NodeId, operand: usize, value: ValueId, site: Site) -> Site {
        let out = self.out(node);
        let repeated = match self.op(node).readings(operand) {
            Readings::Once => false,
            Readings::Spread => self.elements(out) > self.elements(value),
            Readings::Again => true,
        };
        let step = match self.op(node) {
            Op::Map(_) if self.graph.ty(value).shape == self.graph.ty(out).shape => return site,
            Op::Map(_) => IndexStep::Broadcast(self.graph.ty(out).shape.clone()),
            _ => IndexStep::Operand(node, operand),
        };
        let path = sites.path(site.path, step);
        let views = site.views + u32::from(self.op(node).is_view());
        let index = self.index_through(node, value, site.index);
        let strided = match self.op(node) {
            Op::Pack { .. } => true,
            Op::Contract { .. } => self.units[site.unit].kind == Some(GroupKind::Contract),
            _ => site.strided,
        };
        Site { path, repeated: site.repeated || repeated, views, index, strided, ..site }
    }

    /// Parts of the indices of an operand whose reader's indices have `index` parts.
    fn index_through(&self, node: NodeId, value: ValueId, index: u32) -> u32 {
        let size = |dims: &[Dim]| dims.iter().map(Dim::weight).fold(0, u32::saturating_add);
        match self.op(node) {
            Op::Reshape { shape } => {
                let from = &self.graph.ty(value).shape;
                let long = |dims: &[Dim]| dims.iter().filter(|dim| **dim != Dim::ONE).count() as u32;
                // What only adds or removes axes of size 1, or splits axes, divides nothing.
                match long(from) > 1 && !splits(from, shape) {
                    true => long(from).saturating_mul(index).saturating_add(size(from)),
                    false => index,
                }
            }
            Op::Slice { starts, .. } => index.saturating_add(size(starts)),
            _ => index,
        }
    }

    fn inlines(&self, node: NodeId, sites: &[Site], tree: &Tree) -> bool {
        let out = self.out(node);
        let op = self.op(node);
        if self.forced[out] {
            return false;
        }
        if op.is_view() {
            let value = self.inputs(node)[0];
            let deep = |site: &Site| {
                site.views >= MAX_VIEWS || self.index_through(node, value, site.index) > MAX_INDEX
            };
            return !sites.iter().any(deep);
        }
        let kind = |site: &Site| self.units[site.unit].kind;
        if matches!(op, Op::Dequantize { .. }) {
            return sites.iter().all(|site| kind(site) == Some(GroupKind::Contract));
        }
        if sites.iter().any(|site| site.strided || site.count > MAX_MENTIONS) {
            return false;
        }
        // An epilogue has the registers of a tile beside its own.
        let epilogue = |site: &Site| kind(site) == Some(GroupKind::Contract);
        if sites.iter().any(epilogue) && !is_light(self, node, tree) {
            return false;
        }
        if matches!(op, Op::Iota { .. } | Op::DimValues { .. }) {
            return true;
        }
        let fits = |site: &Site| {
            let unit = &self.units[site.unit];
            let new = self.inputs(node).iter().filter(|&&input| !unit.reads.contains(input)).count();
            let leaves = usize::from(unit.reads.contains(out));
            unit.size < MAX_NODES && (new <= leaves || unit.read_count + new - leaves <= MAX_INPUTS)
        };
        if !sites.iter().all(fits) {
            return false;
        }
        matches!(sites, [only] if !only.repeated) || is_cheap(self, out, tree)
    }

    /// Counts an inlined node in the units that evaluate it.
    fn join(&mut self, node: NodeId, sites: &[Site]) {
        let (out, inputs) = (self.out(node), self.inputs(node));
        for (at, site) in sites.iter().enumerate() {
            if sites[..at].iter().any(|earlier| earlier.unit == site.unit) {
                continue;
            }
            let unit = &mut self.units[site.unit];
            unit.size += 1;
            if unit.reads.remove(out) {
                unit.read_count -= 1;
            }
            for &input in inputs {
                if unit.reads.insert(input) {
                    unit.read_count += 1;
                }
            }
        }
    }
}

/// Whether a reshape only splits axes, but for those of size 1: each axis is a product of neighbours of the result.
fn splits(from: &[Dim], to: &[Dim]) -> bool {
    let mut to = to.iter().filter(|dim| **dim != Dim::ONE);
    let covered = |dim: &Dim| {
        let mut product = Dim::ONE;
        while product != *dim {
            match to.next() {
                Some(next) => product = product.clone() * next.clone(),
                None => return false,
            }
        }
        true
    };
    from.iter().filter(|dim| **dim != Dim::ONE).all(covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    #[test]
    fn paths_are_numbered_by_how_they_are_reached() {
        let mut sites = Sites::default();
        let a = sites.path(0, IndexStep::Unit(0));
        let b = sites.path(a, IndexStep::Operand(NodeId::new(3), 0));
        assert_eq!(sites.path(a, IndexStep::Operand(NodeId::new(3), 0)), b);
        assert_ne!(sites.path(a, IndexStep::Operand(NodeId::new(3), 1)), b);
        assert_ne!(sites.path(0, IndexStep::Unit(1)), a);
    }
}
