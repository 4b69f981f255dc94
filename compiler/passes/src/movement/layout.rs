//! The axis order in which each operation runs.
//!
//! A forward walk keeps every transpose pending: the transpose of a value is the same base in another layout.
//! An operation that can run in several layouts takes the one that moves the least data, counting
//! what its consumers want of the result (found by a backward walk before). A pending transpose becomes a
//! node only where an operation or an output needs that layout, once per value and layout.

use std::collections::HashMap;

use super::plan::{Layout, base_shape, extended, identity, propagate, relayout};
use crate::rewrite::{inherit, is_one, moves_only_ones};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, NodeId, Op, TensorType, ValueId, inverse};

/// Layouts that consumers want of a value; more than this number are not distinguished.
const MAX_WANTS: usize = 4;

/// What symbols count as in costs.
const TYPICAL_DIM: i64 = 32;

/// A tensor that holds a value in some layout.
#[derive(Clone)]
struct Moved {
    layout: Layout,
    base: ValueId,
}

/// Estimated bytes of a type.
fn bytes(ty: &TensorType) -> i64 {
    ty.bytes().eval(&|_| Some(TYPICAL_DIM)).unwrap_or(1 << 20).max(1)
}

/// Cost of transposing a tensor: more when its innermost axis moves, nothing when no element does.
fn transpose_weight(shape: &[Dim], perm: &[usize], bytes: i64) -> i64 {
    if moves_only_ones(shape, perm) {
        return 0;
    }
    let innermost = perm.iter().rev().find(|&&axis| !is_one(&shape[axis]));
    let stays = innermost.is_some_and(|&axis| shape[axis + 1..].iter().all(is_one));
    if stays { bytes } else { bytes.saturating_mul(4) }
}

/// Cost of all transposes of a graph.
pub(super) fn transpose_cost(graph: &Graph) -> i64 {
    let cost = |&id: &NodeId| match &graph.nodes[id].op {
        Op::Transpose { perm } => {
            let ty = graph.ty(graph.nodes[id].inputs[0]);
            transpose_weight(&ty.shape, perm, bytes(ty))
        }
        _ => 0,
    };
    graph.order.iter().map(cost).fold(0, i64::saturating_add)
}

/// Permutation that turns a base in layout `from` into one in layout `to`.
fn between(from: &[usize], to: &[usize]) -> Vec<usize> {
    inverse(to).iter().map(|&axis| from[axis]).collect()
}

type Wants = HashMap<ValueId, Vec<Layout>>;

fn want(wants: &mut Wants, value: ValueId, layout: Layout) {
    let entry = wants.entry(value).or_default();
    if entry.len() < MAX_WANTS && !entry.contains(&layout) {
        entry.push(layout);
    }
}

/// Layouts that the consumers of each value want it in; none where they do not care.
fn demands(graph: &Graph) -> Wants {
    let mut wants = Wants::new();
    for (_, value) in &graph.outputs {
        want(&mut wants, *value, identity(graph.ty(*value).rank()));
    }
    for &id in graph.order.iter().rev() {
        let node = &graph.nodes[id];
        let wanted: Vec<Layout> =
            node.outputs.first().and_then(|output| wants.get(output)).cloned().unwrap_or_default();
        let plain = |graph: &Graph, value: ValueId| identity(graph.ty(value).rank());
        match &node.op {
            Op::Transpose { perm } => {
                for layout in wanted {
                    let mut through = vec![0; perm.len()];
                    perm.iter().zip(layout).for_each(|(&axis, at)| through[axis] = at);
                    want(&mut wants, node.inputs[0], through);
                }
            }
            // The right-hand side is packed in any order.
            Op::Contract { .. } => want(&mut wants, node.inputs[0], plain(graph, node.inputs[0])),
            op if is_flexible(op) => {
                let result = graph.ty(node.outputs[0]);
                let types: Vec<&TensorType> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
                for layout in wanted {
                    let Some((_, layouts)) = relayout(op, &types, result, &layout) else { continue };
                    for (&input, layout) in node.inputs.iter().zip(layouts) {
                        // Where the result is much smaller, it is what would be transposed.
                        let shrinks = bytes(result).saturating_mul(4) <= bytes(graph.ty(input));
                        if layout.len() == graph.ty(input).rank() && !shrinks {
                            want(&mut wants, input, layout);
                        }
                    }
                }
            }
            _ => {
                for &input in &node.inputs {
                    want(&mut wants, input, plain(graph, input));
                }
            }
        }
    }
    wants
}

/// Whether an operation runs in other axis orders at all.
fn is_flexible(op: &Op) -> bool {
    matches!(
        op,
        Op::Map(_)
            | Op::Reduce { .. }
            | Op::ArgReduce { .. }
            | Op::Cumulate { .. }
            | Op::Concat { .. }
            | Op::Expand { .. }
            | Op::Slice { .. }
            | Op::Pad { .. }
            | Op::Window { .. }
            | Op::Gather { .. }
            | Op::Reshape { .. }
            | Op::Contract { .. }
    )
}

/// Chooses layouts for the whole graph and rebuilds it accordingly.
pub(super) fn assign(graph: &mut Graph) -> Result<()> {
    let wants = demands(graph);
    let old = std::mem::take(&mut graph.order);
    let mut walk = Walk { graph, forms: HashMap::new(), wants };
    for id in old {
        walk.node(id)?;
    }
    for at in 0..walk.graph.outputs.len() {
        let value = walk.graph.outputs[at].1;
        let plain = walk.plain(value)?;
        if plain != value {
            inherit(walk.graph, value, plain);
        }
        walk.graph.outputs[at].1 = plain;
    }
    Ok(())
}

struct Walk<'g> {
    graph: &'g mut Graph,
    /// Tensors that hold each value that does not (only) hold itself; the first is how it was computed.
    forms: HashMap<ValueId, Vec<Moved>>,
    wants: Wants,
}

impl Walk<'_> {
    fn forms(&self, value: ValueId) -> Vec<Moved> {
        let own = || vec![Moved { layout: identity(self.graph.ty(value).rank()), base: value }];
        self.forms.get(&value).cloned().unwrap_or_else(own)
    }

    /// The forms of a value with leading axes of size 1 up to `layout.len()`, and its shape then.
    fn extended(&self, value: ValueId, layout: &[usize]) -> (Vec<Moved>, Vec<Dim>) {
        let ty = self.graph.ty(value);
        let mut shape = vec![Dim::ONE; layout.len() - ty.rank()];
        shape.extend_from_slice(&ty.shape);
        let mut forms = self.forms(value);
        forms.iter_mut().for_each(|form| form.layout = extended(&form.layout, layout.len()));
        (forms, shape)
    }

    /// Cost of bringing a value into a layout.
    fn cost(&self, value: ValueId, layout: &[usize]) -> i64 {
        if self.graph.is_constant(value) {
            return 0;
        }
        let (forms, shape) = self.extended(value, layout);
        let bytes = bytes(self.graph.ty(value));
        let cost = |form: &Moved| {
            let perm = between(&form.layout, layout);
            transpose_weight(&base_shape(&shape, &form.layout), &perm, bytes)
        };
        forms.iter().map(cost).min().unwrap_or(0)
    }

    /// The tensor that holds a value in a layout, made now if there is none. Leading axes of size 1 that
    /// the layout adds are left out again where they lead the base.
    fn fetch(&mut self, value: ValueId, layout: &[usize], id: NodeId) -> Result<ValueId> {
        let rank = self.graph.ty(value).rank();
        let (forms, shape) = self.extended(value, layout);
        if shape.iter().all(is_one) && rank < layout.len() {
            return self.fetch(value, &identity(rank), id);
        }
        if let Some(form) = forms.iter().find(|form| form.layout == layout && rank == layout.len()) {
            return Ok(form.base);
        }
        let cheapest = forms
            .iter()
            .min_by_key(|form| {
                let perm = between(&form.layout, layout);
                transpose_weight(&base_shape(&shape, &form.layout), &perm, 1)
            })
            .expect("every value has a form");
        let from = base_shape(&shape, &cheapest.layout);
        let perm = between(&cheapest.layout, layout);
        let mut wanted = base_shape(&shape, layout);
        let origin = self.graph.nodes[id].origin;
        let mut b = Builder::new(self.graph, origin);
        let mut base = cheapest.base;
        if !moves_only_ones(&from, &perm) {
            base = b.reshape(base, from)?;
            base = b.transpose(base, &perm)?;
        }
        if rank < layout.len() {
            let lead = wanted.iter().take_while(|dim| is_one(dim)).count();
            wanted.drain(..lead.min(layout.len() - 1));
            return b.reshape(base, wanted);
        }
        let base = b.reshape(base, wanted)?;
        self.forms.insert(value, forms);
        let form = Moved { layout: layout.to_vec(), base };
        self.forms.get_mut(&value).expect("just inserted").push(form);
        Ok(base)
    }

    fn plain(&mut self, value: ValueId) -> Result<ValueId> {
        let layout = identity(self.graph.ty(value).rank());
        match self.graph.producer(value).or(self.graph.order.last().copied()) {
            Some(id) => self.fetch(value, &layout, id),
            None => Ok(value),
        }
    }

    fn node(&mut self, id: NodeId) -> Result<()> {
        let node = &self.graph.nodes[id];
        if let Op::Transpose { perm } = &node.op {
            let (x, result) = (node.inputs[0], node.outputs[0]);
            let perm = perm.clone();
            let mut forms = self.forms(x);
            forms.iter_mut().for_each(|form| {
                form.layout = perm.iter().map(|&axis| form.layout[axis]).collect();
            });
            self.forms.insert(result, forms);
            return Ok(());
        }
        if is_flexible(&node.op) {
            for layout in self.candidates(id) {
                if self.run_in(id, &layout)? {
                    return Ok(());
                }
            }
        }
        for at in 0..self.graph.nodes[id].inputs.len() {
            let input = self.graph.nodes[id].inputs[at];
            let plain = self.fetch(input, &identity(self.graph.ty(input).rank()), id)?;
            self.graph.nodes[id].inputs[at] = plain;
        }
        self.graph.order.push(id);
        Ok(())
    }

    /// Result layouts other than the plain one that cost no more than it, best first.
    fn candidates(&self, id: NodeId) -> Vec<Layout> {
        let node = &self.graph.nodes[id];
        let result = self.graph.ty(node.outputs[0]);
        let types: Vec<&TensorType> = node.inputs.iter().map(|&input| self.graph.ty(input)).collect();
        let plain = identity(result.rank());
        let wants = self.wants.get(&node.outputs[0]).map_or(&[][..], Vec::as_slice);
        let mut layouts: Vec<Layout> = Vec::new();
        for (at, &input) in node.inputs.iter().enumerate() {
            for form in self.forms(input) {
                layouts.extend(propagate(&node.op, &types, result, at, &form.layout));
            }
        }
        // A layout that an operand has already wins over one that only consumers want.
        let suggested = layouts.len();
        layouts.extend_from_slice(wants);
        let price = |layout: &Layout| -> Option<i64> {
            let (_, operands) = relayout(&node.op, &types, result, layout)?;
            let mut cost = 0i64;
            for (&input, layout) in node.inputs.iter().zip(&operands) {
                cost = cost.saturating_add(self.cost(input, layout));
            }
            for wanted in wants {
                let perm = between(layout, wanted);
                let weight = transpose_weight(&base_shape(&result.shape, layout), &perm, bytes(result));
                cost = cost.saturating_add(weight);
            }
            Some(cost)
        };
        let Some(plain_cost) = price(&plain) else { return vec![] };
        let mut priced: Vec<(i64, usize, Layout)> = Vec::new();
        for (at, layout) in layouts.into_iter().enumerate() {
            if layout == plain || priced.iter().any(|other| other.2 == layout) {
                continue;
            }
            match price(&layout) {
                Some(cost) if cost < plain_cost || (cost == plain_cost && at < suggested) => {
                    priced.push((cost, at, layout));
                }
                _ => {}
            }
        }
        priced.sort();
        priced.into_iter().map(|(_, _, layout)| layout).collect()
    }

    /// Builds the node in a layout; gives false when the result is not of the expected type.
    fn run_in(&mut self, id: NodeId, layout: &[usize]) -> Result<bool> {
        let node = &self.graph.nodes[id];
        let (inputs, output, origin) = (node.inputs.clone(), node.outputs[0], node.origin);
        let result = self.graph.ty(output).clone();
        let types: Vec<&TensorType> = inputs.iter().map(|&input| self.graph.ty(input)).collect();
        let Some((op, layouts)) = relayout(&node.op, &types, &result, layout) else { return Ok(false) };
        let mut operands = Vec::with_capacity(inputs.len());
        for (&input, layout) in inputs.iter().zip(&layouts) {
            operands.push(self.fetch(input, layout, id)?);
        }
        let mark = self.graph.order.len();
        let base = Builder::new(self.graph, origin).emit1(op, &operands)?;
        if self.graph.ty(base).shape != base_shape(&result.shape, layout) {
            self.graph.order.truncate(mark);
            return Ok(false);
        }
        if self.graph.values[base].name.is_empty() {
            self.graph.values[base].name = self.graph.values[output].name.clone();
        }
        self.forms.insert(output, vec![Moved { layout: layout.to_vec(), base }]);
        Ok(true)
    }
}
