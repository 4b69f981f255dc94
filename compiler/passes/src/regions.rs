//! Computes only the region of a value that is read.
//!
//! A classifier looks at a single token of what its last layer computes for all, and a decoder at the logits of the last one. Each
//! value has a region that its readers need of it, which is found from the outputs backwards: through maps and products axis by axis,
//! along one that is summed or moved elsewhere all is needed. So the token is not only taken from the last product but from all that
//! leads to it, over residual sums and normalizations, as far as the keys and values of the attention, which need all tokens.
//!
//! Where no product has less to do, nothing changes: a slice of a map costs nothing.

use std::collections::{HashMap, HashSet};

use crate::rewrite::{bodies, inherit, is_one, producer, replace_operands, replace_results, reshape_groups};
use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::axes::Source;
use onnxc_ir::graph::{Dim, Graph, Node, NodeId, Op, OriginId, TensorType, ValueId};

/// Of a region with more than this share of an axis, in eighths, all is computed: sizes stay as even as they are.
const MOST_EIGHTHS: i64 = 7;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    // Nodes that no output needs would need all of their operands.
    dce::sweep(graph);
    let regions = regions(graph);
    let is_product =
        |value: &ValueId| producer(graph, *value).is_some_and(|node| matches!(node.op, Op::Contract { .. }));
    if regions.keys().any(is_product) {
        Narrowing { graph, regions: &regions, new: HashMap::new() }.run()?;
        dce::sweep(graph);
    }
    bodies(graph, options, run)
}

/// What is needed along an axis.
#[derive(Clone, Debug)]
enum Span {
    All,
    Range {
        start: Dim,
        size: Dim,
    },
    /// The element that an index, the operand of a gather of this origin, selects during a run.
    At {
        index: ValueId,
        gather: OriginId,
    },
}

/// What is needed of a value, along each axis.
type Region = Vec<Span>;

impl Span {
    fn is_all(&self) -> bool {
        matches!(self, Span::All)
    }

    fn is_same(&self, other: &Span) -> bool {
        match (self, other) {
            (Span::All, Span::All) => true,
            (Span::Range { start: a, size: b }, Span::Range { start: c, size: d }) => (a, b) == (c, d),
            (Span::At { index: a, .. }, Span::At { index: b, .. }) => a == b,
            _ => false,
        }
    }

    /// Elements along an axis of `extent`.
    fn size(&self, extent: &Dim) -> Dim {
        match self {
            Span::All => extent.clone(),
            Span::Range { size, .. } => size.clone(),
            Span::At { .. } => Dim::ONE,
        }
    }

    /// What is needed where both are.
    fn or(&self, other: &Span, extent: &Dim) -> Span {
        if self.is_same(other) {
            return self.clone();
        }
        let ends = |span: &Span| match span {
            Span::Range { start, size } => start.as_const().zip((start.clone() + size.clone()).as_const()),
            _ => None,
        };
        match (ends(self), ends(other)) {
            (Some(a), Some(b)) => {
                let (start, end) = (a.0.min(b.0), a.1.max(b.1));
                Span::Range { start: Dim::from(start), size: Dim::from(end - start) }.of(extent)
            }
            _ => Span::All,
        }
    }

    /// Widens a range of more than 7/8 of the axis to the whole axis.
    fn of(self, extent: &Dim) -> Span {
        let is_most = |size: i64, extent: i64| size.saturating_mul(8) > extent.saturating_mul(MOST_EIGHTHS);
        let may_be_all = match &self {
            Span::All => true,
            Span::At { .. } => is_one(extent),
            Span::Range { size, .. } => match (size.as_const(), extent.as_const()) {
                (Some(size), Some(extent)) => size < 1 || is_most(size, extent),
                _ => size == extent,
            },
        };
        if may_be_all { Span::All } else { self }
    }
}

fn is_whole(region: &[Span]) -> bool {
    region.iter().all(Span::is_all)
}

/// The region of every value that is not needed as a whole.
fn regions(graph: &Graph) -> HashMap<ValueId, Region> {
    let mut needed: HashMap<ValueId, Region> = HashMap::new();
    let whole = |value: ValueId| vec![Span::All; graph.ty(value).rank()];
    let read = graph.outputs.iter().map(|output| output.1).chain(graph.data.values().map(|own| own.value));
    needed.extend(read.map(|value| (value, whole(value))));
    for &id in graph.order.iter().rev() {
        let node = &graph.nodes[id];
        let region = match node.outputs[..] {
            [result] => {
                let axes = Axes::of(graph, node);
                let mut own = needed.remove(&result).unwrap_or_else(|| whole(result));
                for (axis, span) in own.iter_mut().enumerate() {
                    if !axes.may_narrow(axis, span) {
                        *span = Span::All;
                    }
                }
                needed.insert(result, own.clone());
                Some((axes, own))
            }
            // Nodes of several results compute all of them.
            _ => {
                node.outputs.iter().for_each(|result| drop(needed.remove(result)));
                None
            }
        };
        for (number, &operand) in node.inputs.iter().enumerate() {
            let own = match &region {
                Some((axes, region)) => axes.needed(graph, node, number, region),
                None => whole(operand),
            };
            let shape = &graph.ty(operand).shape;
            let joined = match needed.get(&operand) {
                Some(before) => {
                    let spans = before.iter().zip(&own).zip(shape);
                    spans.map(|((before, own), extent)| before.or(own, extent)).collect()
                }
                None => own.into_iter().zip(shape).map(|(span, extent)| span.of(extent)).collect(),
            };
            needed.insert(operand, joined);
        }
    }
    needed.retain(|&value, region| graph.producer(value).is_some() && !is_whole(region));
    needed
}

/// Which axis of the result each axis of the operands follows, one for one: a region of the one is a region of the other.
struct Axes {
    operands: Vec<Vec<Option<usize>>>,
    /// Axes of the result along which a gather's index may pass: those that a slice takes as a whole.
    indexed: Vec<bool>,
}

impl Axes {
    fn of(graph: &Graph, node: &Node) -> Axes {
        let inputs: Vec<&TensorType> = node.inputs.iter().map(|&input| graph.ty(input)).collect();
        let result = graph.ty(node.outputs[0]);
        let none = inputs.iter().map(|ty| vec![None; ty.rank()]).collect();
        let mut axes = Axes { operands: none, indexed: vec![true; result.rank()] };
        match &node.op {
            Op::Map(_) | Op::Reduce { .. } | Op::Transpose { .. } | Op::Slice { .. } => {
                axes.follow(&node.op, &inputs, result);
            }
            Op::Gather { .. } if index_of(graph, node).is_some() => axes.follow(&node.op, &inputs, result),
            // Windows are put together by the product that reads them.
            Op::Contract { .. }
                if node.inputs.len() == 2
                    && !producer(graph, node.inputs[0])
                        .is_some_and(|node| matches!(node.op, Op::Window { .. })) =>
            {
                axes.follow(&node.op, &inputs, result);
            }
            Op::Reshape { .. } => {
                let groups = reshape_groups(&inputs[0].shape, &result.shape).unwrap_or_default();
                for (from, to) in groups {
                    let only = |dims: &[Dim], mut axes: std::ops::Range<usize>| {
                        let found = axes.find(|&axis| !is_one(&dims[axis]))?;
                        axes.all(|axis| is_one(&dims[axis])).then_some(found)
                    };
                    if let (Some(from), Some(to)) = (only(&inputs[0].shape, from), only(&result.shape, to)) {
                        axes.operands[0][from] = Some(to);
                    }
                }
            }
            _ => {}
        }
        axes
    }

    fn follow(&mut self, op: &Op, inputs: &[&TensorType], result: &TensorType) {
        let mut unknown = HashSet::new();
        for (operand, ty) in inputs.iter().enumerate() {
            for (at, source) in op.sources(operand, inputs, result).into_iter().enumerate() {
                match source {
                    Source::Along { offset, terms } => {
                        let &[(axis, by)] = &terms[..] else { continue };
                        let is_whole = offset == Dim::ZERO && ty.shape[at] == result.shape[axis];
                        if !is_whole && !matches!(op, Op::Slice { .. }) {
                            unknown.insert(axis);
                        }
                        if by == 1 || is_one(&result.shape[axis]) {
                            self.operands[operand][at] = Some(axis);
                        }
                        self.indexed[axis] &= is_whole;
                    }
                    Source::Repeated(axis) => drop(unknown.insert(axis)),
                    Source::Picked | Source::All => {}
                }
            }
        }
        // Where only the run knows whether an axis repeats, none is narrowed.
        for at in self.operands.iter_mut().flatten() {
            *at = at.filter(|axis| !unknown.contains(axis));
        }
    }

    /// Whether so much of an axis of the result can be computed.
    fn may_narrow(&self, axis: usize, span: &Span) -> bool {
        let followed = self.operands.iter().flatten().any(|at| *at == Some(axis));
        followed && (self.indexed[axis] || !matches!(span, Span::At { .. }))
    }

    /// What a node needs of an operand for a region of its result.
    fn needed(&self, graph: &Graph, node: &Node, number: usize, region: &[Span]) -> Region {
        let follow = |at: &Option<usize>| at.map_or(Span::All, |axis| region[axis].clone());
        let mut needed: Region = self.operands[number].iter().map(follow).collect();
        match &node.op {
            Op::Slice { starts, sizes, .. } => {
                for (axis, span) in
                    needed.iter_mut().enumerate().filter(|(at, _)| self.operands[0][*at].is_some())
                {
                    *span = match span {
                        Span::All => Span::Range { start: starts[axis].clone(), size: sizes[axis].clone() },
                        Span::Range { start, size } => {
                            Span::Range { start: starts[axis].clone() + start.clone(), size: size.clone() }
                        }
                        Span::At { .. } => continue,
                    };
                }
            }
            Op::Gather { axis } if number == 0 => {
                if let Some(index) = index_of(graph, node) {
                    needed[*axis] = index;
                }
            }
            _ => {}
        }
        needed
    }
}

/// The element that a gather takes along its axis, if it is a single one: of several, some may be the same.
fn index_of(graph: &Graph, node: &Node) -> Option<Span> {
    let Op::Gather { axis } = node.op else { return None };
    let &[data, index] = &node.inputs[..] else { return None };
    let ty = graph.ty(index);
    if ty.rank() > 1 || !ty.shape.iter().all(is_one) {
        return None;
    }
    let known = || {
        let extent = graph.ty(data).shape[axis].as_const()?;
        let &[at] = &graph.constant_data(index)?.to_i64s()?[..] else { return None };
        let start = Dim::from(if at < 0 { at + extent } else { at });
        (-extent..extent).contains(&at).then_some(Span::Range { start, size: Dim::ONE })
    };
    Some(known().unwrap_or(Span::At { index, gather: node.origin }))
}

/// The rewrite: nodes whose results have regions are built anew behind the first node that reads them as a whole, where what the region
/// depends on is known.
struct Narrowing<'g> {
    graph: &'g mut Graph,
    regions: &'g HashMap<ValueId, Region>,
    /// What stands for values of the graph as it was: their regions, or all of them.
    new: HashMap<ValueId, ValueId>,
}

impl Narrowing<'_> {
    fn run(&mut self) -> Result<()> {
        let old = std::mem::take(&mut self.graph.order);
        let is_narrowed = |value: &ValueId| self.regions.contains_key(value);
        let mut waiting: Vec<NodeId> = Vec::new();
        for id in old {
            let Node { inputs, outputs, .. } = &self.graph.nodes[id];
            if outputs.iter().any(is_narrowed) {
                waiting.push(id);
            } else if inputs.iter().any(is_narrowed) {
                for node in self.before(&mut waiting, id) {
                    self.build(node)?;
                }
                self.build(id)?;
            } else {
                replace_operands(&mut self.graph.nodes[id], &self.new);
                self.graph.order.push(id);
            }
        }
        replace_results(self.graph, &self.new);
        Ok(())
    }

    /// Takes out of those that wait, in their order, the ones that a node depends on.
    fn before(&self, waiting: &mut Vec<NodeId>, id: NodeId) -> Vec<NodeId> {
        let mut read: HashSet<ValueId> = self.graph.nodes[id].inputs.iter().copied().collect();
        let mut found = Vec::new();
        for at in (0..waiting.len()).rev() {
            let node = &self.graph.nodes[waiting[at]];
            if node.outputs.iter().any(|output| read.contains(output)) {
                read.extend(&node.inputs);
                found.push(waiting.remove(at));
            }
        }
        found.reverse();
        found
    }

    /// The node anew, of what is there of its operands.
    fn build(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.nodes[id].clone();
        let [result] = node.outputs[..] else {
            return Err(Error::internal(Stage::Pass, "a node of several results reads a region"));
        };
        let shape = self.graph.ty(result).shape.clone();
        let region = self.regions.get(&result).cloned().unwrap_or_else(|| vec![Span::All; shape.len()]);
        let axes = Axes::of(self.graph, &node);
        let mut operands = Vec::with_capacity(node.inputs.len());
        for (number, &operand) in node.inputs.iter().enumerate() {
            let needed = axes.needed(self.graph, &node, number, &region);
            operands.push(self.part(operand, &needed, node.origin)?);
        }
        let sizes =
            || region.iter().zip(&shape).map(|(span, extent)| span.size(extent)).collect::<Vec<Dim>>();
        let b = &mut Builder::new(self.graph, node.origin);
        let value = match &node.op {
            Op::Reshape { .. } => b.reshape(operands[0], sizes())?,
            Op::Slice { starts, steps, .. } => {
                let (mut starts, mut steps) = (starts.clone(), steps.clone());
                for axis in (0..shape.len()).filter(|&axis| axes.operands[0][axis].is_some()) {
                    (starts[axis], steps[axis]) = (Dim::ZERO, 1);
                }
                let sizes = sizes();
                match steps.iter().all(|step| *step == 1) {
                    true => operands[0],
                    false => b.emit1(Op::Slice { starts, steps, sizes }, &operands)?,
                }
            }
            Op::Gather { .. } if index_of(b.graph, &node).is_some() => b.reshape(operands[0], sizes())?,
            op => b.emit1(op.clone(), &operands)?,
        };
        if is_whole(&region) {
            inherit(self.graph, result, value);
        }
        self.new.insert(result, value);
        Ok(())
    }

    /// What a node of this origin needs of a value, of what there is of it.
    fn part(&mut self, value: ValueId, needed: &[Span], origin: OriginId) -> Result<ValueId> {
        let whole = vec![Span::All; needed.len()];
        let there = self.regions.get(&value).unwrap_or(&whole);
        let mut part = self.new.get(&value).copied().unwrap_or(value);
        let mut sizes = self.graph.ty(part).shape.clone();
        let mut starts = vec![Dim::ZERO; sizes.len()];
        let mut picks = Vec::new();
        for (axis, (needed, there)) in needed.iter().zip(there).enumerate() {
            match (needed, there) {
                (needed, there) if needed.is_same(there) => {}
                (Span::Range { start, size }, there) => {
                    let first = match there {
                        Span::Range { start, .. } => start.clone(),
                        _ => Dim::ZERO,
                    };
                    (starts[axis], sizes[axis]) = (start.clone() - first, size.clone());
                }
                (Span::At { index, gather }, _) => picks.push((axis, *index, *gather)),
                (Span::All, _) => {}
            }
        }
        if sizes != self.graph.ty(part).shape {
            let steps = vec![1; sizes.len()];
            let b = &mut Builder::new(self.graph, origin);
            part = b.emit1(Op::Slice { starts, steps, sizes }, &[part])?;
        }
        for (axis, index, gather) in picks {
            let index = self.new.get(&index).copied().unwrap_or(index);
            let b = &mut Builder::new(self.graph, gather);
            part = b.emit1(Op::Gather { axis }, &[part, index])?;
            if b.rank(index) == 0 {
                part = b.unsqueeze(part, &[axis])?;
            }
        }
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, run_all};
    use onnxc_ir::graph::{DType, Origin, RhsLayout, Tensor};
    use onnxc_ir::interp;
    use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

    fn tensor(shape: &[usize], from: usize) -> Tensor {
        let count = shape.iter().product::<usize>();
        let values: Vec<f32> = (from..from + count).map(|at| ((at * 37) % 23) as f32 - 11.0).collect();
        Tensor::from_slice(shape, &values)
    }

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|&size| Dim::from(size)).collect()
    }

    /// A graph of one origin, whose results `build` makes.
    fn graph_of(build: impl FnOnce(&mut Builder) -> Vec<ValueId>) -> Graph {
        let mut graph = Graph { name: "net".into(), ..Graph::default() };
        let origin = graph.origins.push(Origin::new("net", "Net", 0));
        let results = build(&mut Builder::new(&mut graph, origin));
        graph.outputs =
            results.into_iter().enumerate().map(|(at, value)| (format!("y{at}"), value)).collect();
        graph
    }

    fn input(b: &mut Builder, name: &str, shape: Vec<Dim>) -> ValueId {
        b.input(name, TensorType::new(DType::F32, shape), None)
    }

    /// `x . w` with the last axis of `x` of size `inner`, and `columns` columns, each time of other weights.
    fn product(b: &mut Builder, x: ValueId, inner: usize, columns: usize) -> ValueId {
        let weights = b.constant(tensor(&[inner, columns], b.graph.values.len()));
        let op = Op::Contract { batch: 0, m: b.rank(x) - 1, k: 1, rhs: RhsLayout::Plain };
        b.emit1(op, &[x, weights]).unwrap()
    }

    fn row(b: &mut Builder, x: ValueId, axis: usize, at: impl Into<Dim>) -> ValueId {
        b.slice_axis(x, axis, at.into(), Dim::ONE).unwrap()
    }

    fn products(graph: &Graph) -> Vec<Vec<Dim>> {
        let nodes = graph.order.iter().map(|&id| &graph.nodes[id]);
        let products = nodes.filter(|node| matches!(node.op, Op::Contract { .. }));
        products.map(|node| graph.ty(node.outputs[0]).shape.clone()).collect()
    }

    /// The shapes of products behind the pass; results are as before.
    fn narrowed_alone(before: &Graph, inputs: &[Tensor]) -> (Graph, Vec<Vec<Dim>>) {
        let mut after = before.clone();
        run(&mut after, &Options::default()).unwrap();
        dce::sweep(&mut after);
        let wanted = interp::run(before, inputs).unwrap();
        assert_eq!(interp::run(&after, inputs).unwrap(), wanted, "{after}");
        let shapes = products(&after);
        (after, shapes)
    }

    /// The same when all passes have run.
    fn narrowed(before: &Graph, inputs: &[Tensor]) -> Vec<Vec<Dim>> {
        let wanted = interp::run(before, inputs).unwrap();
        let (mut after, _) = narrowed_alone(before, inputs);
        run_all(&mut after, &Options::default(), &mut |_, _, _| {}).unwrap();
        assert_eq!(interp::run(&after, inputs).unwrap(), wanted, "{after}");
        products(&after)
    }

    type Select<'s> = &'s dyn Fn(&mut Builder, ValueId) -> ValueId;

    /// `select` of `abs(x . w + bias + more)`, with a symbolic number of rows.
    fn last_of(select: Select<'_>, read_on: bool) -> Graph {
        graph_of(|b| {
            let rows = Dim::sym(b.fresh_symbol());
            let shape = |columns: i64| vec![Dim::from(2i64), rows.clone(), Dim::from(columns)];
            let (x, more) = (input(b, "x", shape(4)), input(b, "more", shape(6)));
            let bias = b.constant(tensor(&[6], 5));
            let product = product(b, x, 4, 6);
            let sum = b.binary(BinaryFn::Add, product, bias).unwrap();
            let sum = b.binary(BinaryFn::Add, sum, more).unwrap();
            let y = b.unary(UnaryFn::Abs, sum).unwrap();
            let part = select(b, y);
            if read_on { vec![part, y] } else { vec![part] }
        })
    }

    #[test]
    fn only_the_rows_that_are_read_are_computed() {
        let last = |b: &mut Builder, y: ValueId| {
            let last = b.shape(y)[1].clone() - Dim::ONE;
            row(b, y, 1, last)
        };
        let gathered = |index: Tensor| {
            move |b: &mut Builder, y: ValueId| {
                let index = b.constant(index.clone());
                b.emit1(Op::Gather { axis: 1 }, &[y, index]).unwrap()
            }
        };
        let (one, list) = (gathered(Tensor::scalar(-1i64)), gathered(Tensor::from_slice(&[1], &[-1i64])));
        for select in [&last as Select<'_>, &one, &list] {
            for read_on in [false, true] {
                let inputs = [tensor(&[2, 3, 4], 0), tensor(&[2, 3, 6], 9)];
                let [rows] = narrowed(&last_of(select, read_on), &inputs).try_into().unwrap();
                assert_eq!(rows.iter().all(|dim| dim.is_const()), !read_on, "{rows:?}");
            }
        }
    }

    /// A gather of several rows may take one twice: it stays behind the product.
    #[test]
    fn several_rows_are_gathered_from_the_product() {
        let twice = |b: &mut Builder, y: ValueId| {
            let index = b.constant(Tensor::from_slice(&[4], &[0i64, 1, 1, 0]));
            b.emit1(Op::Gather { axis: 1 }, &[y, index]).unwrap()
        };
        let inputs = [tensor(&[2, 3, 4], 0), tensor(&[2, 3, 6], 9)];
        let [rows] = narrowed(&last_of(&twice, false), &inputs).try_into().unwrap();
        assert!(!rows[1].is_const(), "{rows:?}");
    }

    /// Of a batch whose left operand is the same for all.
    #[test]
    fn rows_of_a_repeated_left_operand() {
        let graph = graph_of(|b| {
            let (x, y) = (input(b, "x", dims(&[1, 3, 4])), input(b, "y", dims(&[2, 4, 5])));
            let op = Op::Contract { batch: 1, m: 1, k: 1, rhs: RhsLayout::Plain };
            let product = b.emit1(op, &[x, y]).unwrap();
            let (starts, sizes) = (dims(&[0, 1, 0]), dims(&[2, 1, 5]));
            vec![b.emit1(Op::Slice { starts, steps: vec![1, 2, 1], sizes }, &[product]).unwrap()]
        });
        assert_eq!(narrowed(&graph, &[tensor(&[1, 3, 4], 1), tensor(&[2, 4, 5], 9)]), [dims(&[2, 1, 5])]);
    }

    /// `x + (x less its mean) . w . w`, with readers of `x` on both sides.
    fn residual(b: &mut Builder, x: ValueId) -> ValueId {
        let last = b.rank(x) - 1;
        let mean = b.mean(x, &[last]).unwrap();
        let centred = b.binary(BinaryFn::Sub, x, mean).unwrap();
        let wide = product(b, centred, 8, 16);
        let wide = b.unary(UnaryFn::Abs, wide).unwrap();
        let narrow = product(b, wide, 16, 8);
        b.binary(BinaryFn::Add, x, narrow).unwrap()
    }

    /// Attention of `x` `[1, 8, 8]` with two heads, and its output projection, added to `x`.
    fn attention(b: &mut Builder, x: ValueId) -> ValueId {
        let heads = |b: &mut Builder, perm: &[usize]| {
            let of = product(b, x, 8, 8);
            let split = b.reshape(of, dims(&[1, 8, 2, 4])).unwrap();
            b.transpose(split, perm).unwrap()
        };
        let (q, k, v) = (heads(b, &[0, 2, 1, 3]), heads(b, &[0, 2, 3, 1]), heads(b, &[0, 2, 1, 3]));
        let op = Op::Contract { batch: 2, m: 1, k: 1, rhs: RhsLayout::Plain };
        let scores = b.emit1(op.clone(), &[q, k]).unwrap();
        let most = b.reduce(ReduceFn::Max, scores, &[3]).unwrap();
        let scores = b.binary(BinaryFn::Sub, scores, most).unwrap();
        let mixed = b.emit1(op, &[scores, v]).unwrap();
        let mixed = b.transpose(mixed, &[0, 2, 1, 3]).unwrap();
        let joined = b.reshape(mixed, dims(&[8, 8])).unwrap();
        let projected = product(b, joined, 8, 8);
        let projected = b.reshape(projected, dims(&[1, 8, 8])).unwrap();
        b.binary(BinaryFn::Add, x, projected).unwrap()
    }

    /// Of the last layer of a classifier only keys and values are computed for all tokens, of the one before all is.
    #[test]
    fn a_classifier_computes_one_token() {
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[1, 8, 8]));
            let mut x = residual(b, x);
            for _ in 0..2 {
                x = attention(b, x);
                x = residual(b, x);
            }
            let token = row(b, x, 1, 0i64);
            let token = b.reshape(token, dims(&[1, 8])).unwrap();
            vec![product(b, token, 8, 3)]
        });
        let found = narrowed(&graph, &[tensor(&[1, 8, 8], 3)]);
        // Of the products of all tokens: the first layer has two in its residual and six in the attention, then two, then keys and
        // values.
        let tokens = |shape: &[Dim]| shape.contains(&Dim::from(8i64)) && product_of(shape) >= 8 * 8;
        let all = found.iter().filter(|shape| tokens(shape)).count();
        assert_eq!((found.len(), all), (19, 12), "{found:?}");
    }

    fn product_of(shape: &[Dim]) -> i64 {
        shape.iter().filter_map(Dim::as_const).product()
    }

    /// Two readers, of rows 2 and 4: rows 2 to 4 are computed. Two of different parts of an open axis: all is.
    #[test]
    fn regions_of_several_readers() {
        let known = graph_of(|b| {
            let x = input(b, "x", dims(&[12, 4]));
            let y = product(b, x, 4, 6);
            let y = b.unary(UnaryFn::Abs, y).unwrap();
            vec![row(b, y, 0, 4i64), row(b, y, 0, 2i64)]
        });
        assert_eq!(narrowed(&known, &[tensor(&[12, 4], 1)]), [dims(&[3, 6])]);
        let most = graph_of(|b| {
            let x = input(b, "x", dims(&[12, 4]));
            let y = product(b, x, 4, 6);
            vec![row(b, y, 0, 0i64), row(b, y, 0, 10i64)]
        });
        assert_eq!(narrowed(&most, &[tensor(&[12, 4], 1)]), [dims(&[12, 6])]);
        let open = graph_of(|b| {
            let rows = Dim::sym(b.fresh_symbol());
            let x = input(b, "x", vec![rows.clone(), Dim::from(4i64)]);
            let y = product(b, x, 4, 6);
            vec![row(b, y, 0, 0i64), row(b, y, 0, rows - Dim::ONE)]
        });
        assert!(!narrowed(&open, &[tensor(&[5, 4], 1)])[0][0].is_const());
    }

    /// Columns of constant weights that nothing reads are left out.
    #[test]
    fn columns_that_nothing_reads() {
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[5, 4]));
            let y = product(b, x, 4, 12);
            vec![b.slice_axis(y, 1, Dim::from(3i64), Dim::from(4i64)).unwrap()]
        });
        assert_eq!(narrowed(&graph, &[tensor(&[5, 4], 1)]), [dims(&[5, 4])]);
    }

    /// Of weights in panels the rows of the left operand are left out, and no columns.
    #[test]
    fn products_with_panels() {
        let graph = |axis: usize| {
            graph_of(|b| {
                let x = input(b, "x", dims(&[5, 4]));
                let panels = b.constant(tensor(&[2, 4, 8], 3));
                let rhs = RhsLayout::Panels { nr: 8, depth: 1, n: Dim::from(12i64) };
                let y = b.emit1(Op::Contract { batch: 0, m: 1, k: 1, rhs }, &[x, panels]).unwrap();
                vec![b.slice_axis(y, axis, Dim::from(1i64), Dim::from(2i64)).unwrap()]
            })
        };
        let x = tensor(&[5, 4], 1);
        assert_eq!(narrowed_alone(&graph(0), std::slice::from_ref(&x)).1, [dims(&[2, 12])]);
        assert_eq!(narrowed_alone(&graph(1), &[x]).1, [dims(&[5, 12])]);
    }

    /// A row whose number a run computes, from what comes behind the product in the order of the nodes.
    #[test]
    fn a_row_that_the_data_tells() {
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[6, 4]));
            let y = product(b, x, 4, 6);
            let shifted = b.unary(UnaryFn::Abs, y).unwrap();
            let z = b.unary(UnaryFn::Neg, x).unwrap();
            let index = b.reduce(ReduceFn::Max, z, &[0, 1]).unwrap();
            let index = b.reshape(index, vec![]).unwrap();
            let index = b.binary_scalar(BinaryFn::Mul, index, 0.25).unwrap();
            let index = b.cast(index, DType::I64).unwrap();
            vec![b.emit1(Op::Gather { axis: 0 }, &[shifted, index]).unwrap()]
        });
        assert_eq!(narrowed(&graph, &[tensor(&[6, 4], 1)]), [dims(&[1, 6])]);
    }

    /// A node of several results computes all of each, from all of its operand.
    #[test]
    fn nodes_of_several_results_stay() {
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[6, 4]));
            let y = product(b, x, 4, 6);
            let (sorted, places) = b.sort(y, 1, false, Dim::from(6i64)).unwrap();
            let part = row(b, sorted, 0, 2i64);
            vec![product(b, part, 6, 3), row(b, places, 0, 1i64)]
        });
        assert_eq!(narrowed(&graph, &[tensor(&[6, 4], 1)]), [dims(&[6, 6]), dims(&[1, 3])]);
        // Beside a product that has less to do.
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[6, 4]));
            let (sorted, _) = b.sort(x, 1, false, Dim::from(4i64)).unwrap();
            let y = product(b, sorted, 4, 6);
            vec![row(b, y, 0, 2i64), row(b, sorted, 0, 1i64)]
        });
        assert_eq!(narrowed(&graph, &[tensor(&[6, 4], 1)]), [dims(&[1, 6])]);
    }

    /// A part of a value that a number draws.
    fn drawn_part(
        b: &mut Builder,
        x: ValueId,
        draw: &mut dyn FnMut(usize) -> usize,
        index: ValueId,
    ) -> ValueId {
        let shape = b.shape(x);
        let axis = draw(shape.len());
        let extent = shape[axis].as_const().unwrap();
        match draw(6) {
            // Of a single row: known, at the end, or known only at run time.
            0 if extent > 3 => b.emit1(Op::Gather { axis }, &[x, index]).unwrap(),
            0 | 1 => {
                let at = -1 - draw(extent as usize) as i64;
                let at = b.constant(Tensor::from_slice(&[1], &[at]));
                b.emit1(Op::Gather { axis }, &[x, at]).unwrap()
            }
            2 => {
                let (mut starts, mut steps, mut sizes) =
                    (dims(&vec![0; shape.len()]), vec![1; shape.len()], shape);
                (starts[axis], steps[axis]) = (Dim::from(extent - 1), -1);
                sizes[axis] = Dim::from(1 + draw(extent as usize));
                b.emit1(Op::Slice { starts, steps, sizes }, &[x]).unwrap()
            }
            _ => {
                let start = draw(extent as usize);
                let size = 1 + draw(extent as usize - start);
                b.slice_axis(x, axis, Dim::from(start), Dim::from(size)).unwrap()
            }
        }
    }

    /// A value made of those before it.
    fn drawn_value(
        b: &mut Builder,
        values: &[ValueId],
        draw: &mut dyn FnMut(usize) -> usize,
        index: ValueId,
    ) -> ValueId {
        // The last ones more often: long chains.
        let from = values.len().saturating_sub(3 + draw(values.len()));
        let x = values[from + draw(values.len() - from)];
        let shape = b.shape(x);
        let last = shape.len() - 1;
        match draw(9) {
            0 | 1 if last > 0 => product(b, x, shape[last].as_const().unwrap() as usize, 2 + draw(6)),
            2 => {
                let same =
                    values.iter().copied().filter(|&other| b.shape(other) == shape).collect::<Vec<_>>();
                b.binary(BinaryFn::Add, x, same[draw(same.len())]).unwrap()
            }
            3 => {
                let most = b.reduce(ReduceFn::Max, x, &[draw(shape.len())]).unwrap();
                b.binary(BinaryFn::Sub, x, most).unwrap()
            }
            4 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.rotate_left(draw(shape.len()));
                b.transpose(x, &perm).unwrap()
            }
            5 => {
                let mut shape = shape;
                match draw(3) {
                    0 => shape.insert(draw(last + 2), Dim::ONE),
                    1 if last > 0 => {
                        let joined = shape[0].clone() * shape.remove(1);
                        shape[0] = joined;
                    }
                    _ => shape.retain(|dim| !is_one(dim)),
                }
                if shape.is_empty() { x } else { b.reshape(x, shape).unwrap() }
            }
            6 if last > 1 => {
                let mut perm: Vec<usize> = (0..=last).collect();
                perm.swap(last - 1, last);
                let turned = b.transpose(x, &perm).unwrap();
                let op = Op::Contract { batch: last - 1, m: 1, k: 1, rhs: RhsLayout::Plain };
                b.emit1(op, &[x, turned]).unwrap()
            }
            7 => drawn_part(b, x, draw, index),
            _ => b.unary(UnaryFn::Abs, x).unwrap(),
        }
    }

    /// Drawn graphs of all that regions pass through, whose results are parts.
    #[test]
    fn drawn_graphs_compute_the_same() {
        let mut fewer = 0;
        for seed in 0..600u64 {
            let mut state = seed;
            let draw = &mut |count: usize| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as usize % count
            };
            let graph = graph_of(|b| {
                let index = b.input("index", TensorType::new(DType::I64, vec![]), None);
                let mut values = vec![input(b, "x", dims(&[2, 5, 4])), input(b, "z", dims(&[6, 4]))];
                for _ in 0..4 + draw(10) {
                    let value = drawn_value(b, &values, draw, index);
                    // What has no axes has no parts.
                    if b.rank(value) > 0 && b.rank(value) < 5 {
                        values.push(value);
                    }
                }
                let count = 1 + draw(2);
                let results = values.len() - count.min(values.len() - 2)..values.len();
                let results = results.map(|at| {
                    let x = values[at];
                    drawn_part(b, x, draw, index)
                });
                results.collect()
            });
            let inputs = [Tensor::scalar(2i64), tensor(&[2, 5, 4], 1), tensor(&[6, 4], 8)];
            let mut after = graph.clone();
            run(&mut after, &Options::default()).unwrap();
            let work = |graph: &Graph| products(graph).iter().map(|shape| product_of(shape)).sum::<i64>();
            let mut swept = graph.clone();
            dce::sweep(&mut swept);
            fewer += usize::from(work(&after) < work(&swept));
            assert!(work(&after) <= work(&swept), "seed {seed}:\n{graph}\n{after}");
            let wanted = interp::run(&graph, &inputs).unwrap();
            assert_eq!(interp::run(&after, &inputs).unwrap(), wanted, "seed {seed}:\n{graph}\n{after}");
        }
        assert!(fewer > 100, "only {fewer} have less to do");
    }

    /// A tensor without rows, and a slice that takes none.
    #[test]
    fn regions_without_elements() {
        let graph = graph_of(|b| {
            let x = input(b, "x", dims(&[6, 4]));
            let y = product(b, x, 4, 6);
            vec![b.slice_axis(y, 0, Dim::from(2i64), Dim::ZERO).unwrap()]
        });
        narrowed(&graph, &[tensor(&[6, 4], 1)]);
    }
}
