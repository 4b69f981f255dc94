//! Reductions over axes that a reshape has merged, over the axes themselves.
//!
//! Exporters write a normalization of groups of channels as a reshape to `[batch, groups, all else]`, a normalization along the last
//! axis, and a reshape back. Channels and pixels are one axis between the two: an image that lies channels-last would be transposed
//! before, and back. What is between runs as well on the axes apart, `[batch, groups, channels of a group, height, width]`, and the
//! layout of the image passes through.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use crate::rewrite::{Readers, bodies, is_one, producer, readers, reshape_groups, rewrite};
use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, NodeId, Op, ValueId};

/// Nodes between the reshapes, at most.
const MOST: usize = 64;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let readers = readers(graph);
    let found: Vec<Region> =
        (0..graph.order.len()).filter_map(|place| Region::of(graph, &readers, place)).collect();
    let mut exits: HashMap<NodeId, usize> = HashMap::new();
    for (number, region) in found.iter().enumerate() {
        exits.extend(region.exits.iter().map(|&exit| (exit, number)));
    }
    if !found.is_empty() {
        let mut done = vec![HashMap::new(); found.len()];
        rewrite(graph, |b, id| {
            let Some(&number) = exits.get(&id) else { return Ok(None) };
            let node = &b.graph.nodes[id];
            let (Op::Reshape { shape }, x) = (node.op.clone(), node.inputs[0]) else { return Ok(None) };
            let x = found[number].build(b, x, &mut done[number])?;
            b.reshape(x, shape).map(Some)
        })?;
        dce::sweep(graph);
    }
    bodies(graph, options, run)
}

/// What is computed of a value whose axes were merged, up to the reshapes that split them again.
struct Region {
    /// What is reshaped, the result, and its shape.
    source: ValueId,
    merged: ValueId,
    shape: Vec<Dim>,
    axes: Axes,
    values: HashSet<ValueId>,
    exits: Vec<NodeId>,
}

/// The axes apart, and those of each merged one.
struct Axes {
    apart: Vec<Dim>,
    of: Vec<Range<usize>>,
}

impl Axes {
    /// Of a reshape from one shape to another; `None` where it merges nothing.
    fn of(from: &[Dim], to: &[Dim]) -> Option<Axes> {
        let mut axes = Axes { apart: vec![], of: vec![] };
        let mut merges = false;
        for (from_axes, to_axes) in reshape_groups(from, to)? {
            let (from, to) = (&from[from_axes], &to[to_axes]);
            match (from, to) {
                (_, [_]) => axes.push(from),
                ([_], _) => to.iter().for_each(|dim| axes.push(std::slice::from_ref(dim))),
                // The first axis is split, the rest of it merged with those behind.
                ([first, behind @ ..], [whole, _]) => {
                    let rest = first.exact_div(whole)?;
                    axes.push(std::slice::from_ref(whole));
                    axes.push(&[&[rest], behind].concat());
                }
                _ => return None,
            }
            merges |= axes
                .of
                .iter()
                .any(|own| axes.apart[own.clone()].iter().filter(|dim| !is_one(dim)).count() > 1);
        }
        (merges && axes.of.len() == to.len()).then_some(axes)
    }

    /// The axes of one more merged axis.
    fn push(&mut self, dims: &[Dim]) {
        let first = self.apart.len();
        self.apart.extend_from_slice(dims);
        self.of.push(first..self.apart.len());
    }

    fn are_merged(&self, axis: usize) -> bool {
        self.of[axis].len() > 1
    }

    /// The shape, with its axes apart, of a value that has the axes of `shape`, some of them of size 1.
    fn apart(&self, shape: &[Dim], merged: &[Dim]) -> Option<Vec<Dim>> {
        let lead = merged.len().checked_sub(shape.len())?;
        let own = |axis: usize| axis.checked_sub(lead).map_or(&Dim::ONE, |axis| &shape[axis]);
        let mut dims = Vec::with_capacity(self.apart.len());
        for (axis, range) in self.of.iter().enumerate() {
            match own(axis) {
                dim if *dim == merged[axis] => dims.extend_from_slice(&self.apart[range.clone()]),
                dim if is_one(dim) => dims.extend(range.clone().map(|_| Dim::ONE)),
                _ => return None,
            }
        }
        Some(dims)
    }

    /// Whether a shape has the axes apart, or neighbours of them merged.
    fn lead_to(&self, shape: &[Dim]) -> bool {
        let groups = reshape_groups(&self.apart, shape);
        groups.is_some_and(|groups| {
            groups.iter().all(|(apart, own)| {
                own.len() <= 1 || self.apart[apart.clone()].iter().filter(|dim| !is_one(dim)).count() <= 1
            }) && shape.len() > self.of.len()
        })
    }
}

impl Region {
    fn of(graph: &Graph, readers: &Readers, place: usize) -> Option<Region> {
        let node = &graph.nodes[graph.order[place]];
        let (Op::Reshape { shape }, &[source], &[merged]) = (&node.op, &node.inputs[..], &node.outputs[..])
        else {
            return None;
        };
        let axes = Axes::of(&graph.ty(source).shape, shape)?;
        let (values, exits) = (HashSet::from([merged]), vec![]);
        let mut region = Region { source, merged, shape: shape.clone(), axes, values, exits };
        let mut reduces = false;
        let mut next = BTreeSet::from_iter(readers[merged].iter().copied());
        while let Some(place) = next.pop_first() {
            let id = graph.order[place];
            let node = &graph.nodes[id];
            match &node.op {
                Op::Reshape { shape } => {
                    // Where the axes stay merged there is nothing to win.
                    let whole = graph.ty(node.inputs[0]).shape == region.shape;
                    if whole && !region.axes.lead_to(shape) {
                        return None;
                    }
                    region.exits.push(id);
                }
                Op::Map(_) | Op::Reduce { .. } => {
                    let fits =
                        |value: &ValueId| region.axes.apart(&graph.ty(*value).shape, &region.shape).is_some();
                    let &[result] = &node.outputs[..] else { return None };
                    if region.values.len() > MOST || !node.inputs.iter().all(fits) || !fits(&result) {
                        return None;
                    }
                    if graph.ty(result).rank() != region.shape.len() {
                        return None;
                    }
                    if let Op::Reduce { axes, .. } = &node.op {
                        reduces |= axes.iter().any(|&axis| region.axes.are_merged(axis));
                    }
                    region.values.insert(result);
                    next.extend(&readers[result]);
                }
                _ => return None,
            }
        }
        let is_read = |value: &ValueId| region.values.contains(value);
        let outside =
            graph.outputs.iter().map(|output| output.1).chain(graph.data.values().map(|own| own.value));
        (reduces && !region.exits.is_empty() && !outside.into_iter().any(|value| is_read(&value)))
            .then_some(region)
    }

    /// A value of the region, with its axes apart.
    fn build(
        &self,
        b: &mut Builder,
        value: ValueId,
        done: &mut HashMap<ValueId, ValueId>,
    ) -> Result<ValueId> {
        if let Some(&found) = done.get(&value) {
            return Ok(found);
        }
        let built = if value == self.merged {
            let source = producer(b.graph, value).map_or(self.source, |node| node.inputs[0]);
            b.reshape(source, self.axes.apart.clone())?
        } else if self.values.contains(&value)
            && let Some(node) = producer(b.graph, value).cloned()
        {
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for &input in &node.inputs {
                inputs.push(self.build(b, input, done)?);
            }
            let op = match node.op {
                Op::Reduce { op, axes } => Op::Reduce {
                    op,
                    axes: axes.into_iter().flat_map(|axis| self.axes.of[axis].clone()).collect(),
                },
                op => op,
            };
            let exit = std::mem::replace(&mut b.origin, node.origin);
            let built = b.emit1(op, &inputs);
            b.origin = exit;
            built?
        } else {
            let shape = self.axes.apart(&b.shape(value), &self.shape).unwrap_or_default();
            if b.rank(value) == 0 { value } else { b.reshape(value, shape)? }
        };
        done.insert(value, built);
        Ok(built)
    }
}
