//! What is computed from constants alone is computed by the compiler. The builder folds operation by operation, and
//! stops where a result is larger than its operands; here whole expressions are judged, by the value that would be
//! stored in the end: a scale that is repeated for each block of a weight grows, the weight it is multiplied with does
//! not.
//!
//! An expression stays a part of the program where its value would take much more of the object than its operands: a
//! broadcast or a mask made of indices is cheaper to read through its expression. [`unfold`](crate::unfold) gives back to the
//! program what would take the compiler too long.

use std::collections::{HashMap, HashSet};

use cranelift_entity::{EntitySet, SecondaryMap};

use crate::Options;
use crate::dce::sweep;
use crate::rewrite::{replace_operands, replace_results};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::op::Picks;
use onnxc_ir::graph::{Constant, Def, Dim, Graph, Node, NodeId, Op, OriginId, TensorType, ValueId, Weight};
use onnxc_ir::interp::{self, Budget};

/// Maximum ratio of a stored value's bytes to those of the constants that it is computed from. A weight of four bits,
/// which has a byte here, becomes f32 or f64.
const GROWTH: u64 = 8;

/// A value that needs a buffer anyway is stored up to this number of bytes, regardless of that ratio.
const SMALL: u64 = 1 << 14;

/// Beyond that, such values may add one byte to the object per this number of bytes of the model's constants.
const SPARE: u64 = 64;

/// Intermediate results may be this large, in bytes, or [`GROWTH`] times what they are computed from or lead to.
const INTERMEDIATE: u64 = 16 << 20;

/// Expressions of more operations are left alone.
const MAX_OPERATIONS: usize = 1024;

pub(crate) fn run(graph: &mut Graph, _: &Options) -> Result<()> {
    let bytes = data_bytes(graph);
    fold(graph, &mut Limits { work: Budget::for_data(bytes), growth: bytes / SPARE })
}

/// What may be spent on a model.
struct Limits {
    work: Budget,
    /// Bytes by which the object may grow.
    growth: u64,
}

impl Limits {
    fn grow(&mut self, bytes: u64) -> bool {
        let left = self.growth.checked_sub(bytes);
        self.growth = left.unwrap_or(self.growth);
        left.is_some()
    }
}

/// Bytes of the constants of a graph and of the bodies in it.
pub(crate) fn data_bytes(graph: &Graph) -> u64 {
    let own = graph.values.values().map(|value| match &value.def {
        Def::Const(Constant::Data(tensor) | Constant::Apart(Weight { tensor, .. })) => {
            tensor.data.len() as u64
        }
        _ => 0,
    });
    let bodies = graph.order.iter().flat_map(|&id| graph.nodes[id].op.bodies()).map(data_bytes);
    own.chain(bodies).sum()
}

fn fold(graph: &mut Graph, limits: &mut Limits) -> Result<()> {
    for at in 0..graph.order.len() {
        let id = graph.order[at];
        for body in graph.nodes[id].op.bodies_mut() {
            fold(body, limits)?;
        }
    }
    let (members, made) = (EntitySet::new(), HashMap::new());
    let mut folder = Folder { graph, limits, members, made, replaced: HashMap::new() };
    folder.find()?;
    folder.store();
    folder.replace();
    // Nothing is built: no node gets this origin.
    Builder::new(graph, OriginId::from_u32(0)).settle()
}

/// What reads a value that could be a constant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
enum Demand {
    #[default]
    None,
    /// Nodes that can compute it where they read it.
    Inline,
    /// Something that reads it from a buffer.
    Buffer,
}

/// What a value that reads constants only is computed from.
#[derive(Default, Debug)]
struct Expression {
    /// Bytes of its constants.
    constants: u64,
    /// Bytes of the largest intermediate result.
    largest: u64,
    /// What evaluating it costs, that of its deferred constants included.
    work: u64,
}

struct Folder<'a> {
    graph: &'a mut Graph,
    limits: &'a mut Limits,
    /// Results of nodes that read constants only, directly or through others of the kind.
    members: EntitySet<ValueId>,
    /// Members as constants.
    made: HashMap<ValueId, ValueId>,
    /// Constants that take the place of results.
    replaced: HashMap<ValueId, ValueId>,
}

impl Folder<'_> {
    /// Finds the members. Operations with several results, which no deferred constant can be, are evaluated now where
    /// that is little.
    fn find(&mut self) -> Result<()> {
        for at in 0..self.graph.order.len() {
            let id = self.graph.order[at];
            for input in &mut self.graph.nodes[id].inputs {
                *input = *self.replaced.get(input).unwrap_or(input);
            }
            let node = &self.graph.nodes[id];
            let reads_constants = node.inputs.iter().all(|&input| self.is_constant(input));
            let is_static = node.op.dims().iter().all(|dim| dim.is_const())
                && node.outputs.iter().all(|&output| bytes(self.graph.ty(output)).is_some());
            // What they are computed from is smaller, which is why the run computes them.
            let grows = matches!(node.op, Op::Dequantize { .. } | Op::WinogradFilter { .. });
            if !reads_constants || !is_static || grows || self.may_fail(id)? {
                continue;
            }
            let node = &self.graph.nodes[id];
            match node.outputs[..] {
                [output] if !node.op.is_hosted() => drop(self.members.insert(output)),
                _ => self.evaluate(id)?,
            }
        }
        Ok(())
    }

    fn is_constant(&self, value: ValueId) -> bool {
        self.members.contains(value) || self.graph.is_constant(value)
    }

    /// Whether an index may be out of range, as far as a cheap test can show: the run must say so, if the node runs at all.
    fn may_fail(&mut self, id: NodeId) -> Result<bool> {
        let Node { op, inputs, .. } = &self.graph.nodes[id];
        // The axes that an index picks from.
        let axes = match op.picks() {
            None => return Ok(false),
            Some(Picks::Index { axis }) => axis..axis + 1,
            Some(Picks::Tuple { first }) => first..first + self.coordinates(inputs[1]),
        };
        let sizes = self.graph.ty(inputs[0]).shape.get(axes).unwrap_or_default();
        let sizes: Option<Vec<i64>> = sizes.iter().map(Dim::as_const).collect();
        let Some(sizes) = sizes.filter(|sizes| !sizes.is_empty()) else { return Ok(true) };
        let Some(indices) = self.elements(inputs[1])? else { return Ok(true) };
        let fits = |index: &[i64]| index.iter().zip(&sizes).all(|(at, size)| (-size..*size).contains(at));
        Ok(!indices.chunks(sizes.len()).all(fits))
    }

    /// Numbers in an index of several axes: the size of the last.
    fn coordinates(&self, indices: ValueId) -> usize {
        self.graph.ty(indices).shape.last().and_then(Dim::as_const).map_or(0, |count| count as usize)
    }

    /// The elements of indices that are known, or that little work makes so.
    fn elements(&mut self, indices: ValueId) -> Result<Option<Vec<i64>>> {
        if let Some(tensor) = self.graph.constant_data(indices) {
            return Ok(tensor.to_i64s());
        }
        let Expression { largest, work, .. } = self.expression(indices);
        if largest > INTERMEDIATE || !self.limits.work.spend(work) {
            return Ok(None);
        }
        match self.constant(indices).filter(|&constant| !self.graph.is_apart(constant)) {
            Some(constant) => Ok(interp::constant(self.graph, constant)?.to_i64s()),
            None => Ok(None),
        }
    }

    /// Replaces the results of a node on constants by their values, unless that costs too much.
    fn evaluate(&mut self, id: NodeId) -> Result<()> {
        let Node { op, inputs, outputs, .. } = &self.graph.nodes[id];
        let types = |values: &[ValueId]| values.iter().map(|&value| self.graph.ty(value)).collect::<Vec<_>>();
        let Some(mut work) = interp::work(op, &types(inputs), &types(outputs)) else { return Ok(()) };
        let (inputs, outputs) = (inputs.clone(), outputs.clone());
        let mut largest: u64 =
            outputs.iter().map(|&output| bytes(self.graph.ty(output)).unwrap_or(u64::MAX)).sum();
        for &input in &inputs {
            let expression = self.expression(input);
            work = work.saturating_add(expression.work);
            largest = expression.largest.max(largest);
        }
        if largest > SMALL || !self.limits.work.spend(work) {
            return Ok(());
        }
        let mut operands = Vec::with_capacity(inputs.len());
        for input in inputs {
            let Some(constant) = self.constant(input).filter(|&constant| !self.graph.is_apart(constant))
            else {
                return Ok(());
            };
            operands.push(interp::constant(self.graph, constant)?);
        }
        // What fails does so when the model runs, if this node does.
        let operands: Vec<_> = operands.iter().collect();
        let Ok(results) = interp::eval(&self.graph.nodes[id].op, &operands) else { return Ok(()) };
        for (output, tensor) in outputs.into_iter().zip(results) {
            let constant = Builder::new(self.graph, OriginId::from_u32(0)).constant(tensor);
            if self.graph.ty(constant) == self.graph.ty(output) {
                self.take_place(output, constant);
            }
        }
        Ok(())
    }

    /// From the last node to the first: decides which members that something reads become constants. Of those that do
    /// not, the operands are read.
    fn store(&mut self) {
        let mut demands: SecondaryMap<ValueId, Demand> = SecondaryMap::new();
        for value in self.graph.outputs.iter().map(|output| output.1).chain(self.graph.data_sources()) {
            demands[value] = Demand::Buffer;
        }
        for at in (0..self.graph.order.len()).rev() {
            let id = self.graph.order[at];
            if let [output] = self.graph.nodes[id].outputs[..]
                && self.members.contains(output)
                && (demands[output] == Demand::None || self.stored(id, output, demands[output]))
            {
                continue;
            }
            let node = &self.graph.nodes[id];
            if node.outputs.iter().all(|output| self.replaced.contains_key(output)) {
                continue;
            }
            let demand = if reads_buffers(&node.op) { Demand::Buffer } else { Demand::Inline };
            for &input in &node.inputs {
                demands[input] = demands[input].max(demand);
            }
        }
    }

    /// Makes a member a constant, if it is worth its bytes and the work.
    fn stored(&mut self, id: NodeId, value: ValueId, demand: Demand) -> bool {
        let node = &self.graph.nodes[id];
        let size = |value: ValueId| bytes(self.graph.ty(value)).unwrap_or(u64::MAX);
        let own = size(value);
        let grows = |op: &Op| op.is_view() && own > size(node.inputs[0]);
        if demand == Demand::Inline && grows(&node.op) {
            return false;
        }
        let demand = if has_a_kernel(&node.op) { Demand::Buffer } else { demand };
        let expression = self.expression(value);
        let related = expression.constants.saturating_mul(GROWTH);
        let largest = INTERMEDIATE.max(related).max(own.saturating_mul(GROWTH));
        let has_room = own <= related || demand == Demand::Buffer && (own <= SMALL || self.limits.grow(own));
        if !has_room || expression.largest > largest || !self.limits.work.spend(expression.work) {
            return false;
        }
        match self.constant(value) {
            Some(constant) => {
                self.take_place(value, constant);
                true
            }
            None => false,
        }
    }

    /// Lets a constant, under the name of a result, be read in its place.
    fn take_place(&mut self, value: ValueId, constant: ValueId) {
        let name = self.graph.values[value].name.clone();
        let own = &mut self.graph.values[constant].name;
        if own.is_empty() {
            *own = name;
        }
        self.replaced.insert(value, constant);
    }

    fn expression(&self, value: ValueId) -> Expression {
        let mut found = Expression::default();
        let mut seen = HashSet::from([value]);
        // (value, whether an expression that is not constant reads it)
        let mut open = vec![(value, true)];
        while let Some((value, direct)) = open.pop() {
            if seen.len() > MAX_OPERATIONS {
                return Expression { work: u64::MAX, ..found };
            }
            let (op, inputs) = match definition(self.graph, value) {
                Some(definition) => definition,
                None => {
                    found.constants += if direct { bytes(self.graph.ty(value)).unwrap_or(0) } else { 0 };
                    continue;
                }
            };
            let direct_inputs = direct && !self.graph.is_constant(value);
            if direct && !direct_inputs {
                found.constants += bytes(self.graph.ty(value)).unwrap_or(0);
            }
            let types: Vec<&TensorType> = inputs.iter().map(|&input| self.graph.ty(input)).collect();
            let work = interp::work(op, &types, &[self.graph.ty(value)]).unwrap_or(u64::MAX);
            found.work = found.work.saturating_add(work).saturating_add(1);
            found.largest = found.largest.max(bytes(self.graph.ty(value)).unwrap_or(u64::MAX));
            open.extend(
                inputs.iter().filter(|&&input| seen.insert(input)).map(|&input| (input, direct_inputs)),
            );
        }
        found
    }

    /// A member, or what is a constant already, as a constant. `None` where evaluation fails: then the run shall fail, if
    /// it comes to that.
    fn constant(&mut self, value: ValueId) -> Option<ValueId> {
        let mut open = vec![value];
        while let Some(&top) = open.last() {
            if self.graph.is_constant(top) || self.made.contains_key(&top) {
                open.pop();
                continue;
            }
            let (op, inputs) = definition(self.graph, top)?;
            let missing =
                |input: &&ValueId| !self.graph.is_constant(**input) && !self.made.contains_key(*input);
            let before = open.len();
            open.extend(inputs.iter().filter(missing));
            if open.len() > before {
                continue;
            }
            open.pop();
            let inputs: Vec<ValueId> =
                inputs.iter().map(|input| *self.made.get(input).unwrap_or(input)).collect();
            let (op, ty) = (op.clone(), self.graph.ty(top).clone());
            let constant = Builder::new(self.graph, OriginId::from_u32(0)).folded(&op, &inputs, &ty).ok()?;
            self.made.insert(top, constant);
        }
        Some(*self.made.get(&value).unwrap_or(&value))
    }

    /// Lets everything read the constants, and drops the nodes that nothing reads any more.
    fn replace(self) {
        let Folder { graph, replaced, .. } = self;
        if replaced.is_empty() {
            return;
        }
        for &id in &graph.order {
            replace_operands(&mut graph.nodes[id], &replaced);
        }
        replace_results(graph, &replaced);
        sweep(graph);
    }
}

/// Operation and operands of a node with one result, or of a deferred constant.
pub(super) fn definition(graph: &Graph, value: ValueId) -> Option<(&Op, &[ValueId])> {
    match &graph.values[value].def {
        Def::Const(Constant::Deferred { op, inputs }) => Some((op, inputs)),
        Def::Node(id, _) => Some((&graph.nodes[*id].op, &graph.nodes[*id].inputs)),
        _ => None,
    }
}

/// Bytes of a tensor, where its shape is static.
fn bytes(ty: &TensorType) -> Option<u64> {
    let sizes = ty.static_shape()?.into_iter().map(|size| size as u64);
    Some(sizes.fold(ty.dtype.size() as u64, u64::saturating_mul))
}

/// Whether no kernel computes the operation where it reads the result.
fn has_a_kernel(op: &Op) -> bool {
    let gathers = matches!(op, Op::Gather { .. } | Op::GatherElements { .. } | Op::GatherNd { .. });
    !op.is_view() && !gathers && !matches!(op, Op::Map(_) | Op::Iota { .. } | Op::DimValues { .. })
}

/// Whether the operation's operands always need buffers.
fn reads_buffers(op: &Op) -> bool {
    op.is_hosted()
        || matches!(op, Op::Pack { .. } | Op::Contract { .. } | Op::Dequantize { .. })
        || matches!(op, Op::Sort { .. } | Op::Suppress { .. } | Op::Leaves(_))
}

#[cfg(test)]
mod tests;
