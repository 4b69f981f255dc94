//! Derivatives by reverse-mode differentiation (Griewank and Walther, "Evaluating Derivatives", 2008, chapter 3).
//!
//! Nodes of the graph, all primitives, are passed from a result back to the values of
//! interest. The *adjoint* of a value is the derivative of the sum of the result's elements by each of its elements, a tensor of
//! its type. Each primitive has a rule in the files of this folder: from the adjoints of its results those of its operands. A
//! value with several readers has the sum of what these give.
//!
//! Where a function has a derivative from each side and these differ, as `max(a, b)` where both are equal, the rules give the
//! mean of the two. What is constant between its steps, such as `floor` and comparisons, has derivative 0, and so has what goes
//! through integers. Quantization is the exception: it passes as if it did not round ("straight-through", Bengio et al.,
//! "Estimating or Propagating Gradients Through Stochastic Neurons", 2013), with derivative 0 beyond its range.
//!
//! Bodies of loops and choices are passed in the same way, inside a body of a loop that runs back, or of a choice by the same condition.

mod choices;
mod elementwise;
mod indexing;
mod loops;
mod movement;
mod pieces;
mod sums;
mod sums_behind;
#[cfg(test)]
mod tests;

use cranelift_entity::{EntitySet, SecondaryMap};

use crate::NodeCx;
use onnxc_ir::build::Builder;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Node, NodeId, Op, Requirement, RhsLayout, ValueId};
use onnxc_ir::scalar::ReduceFn;
use pieces::total;

/// The derivatives of the sum of `y`'s elements by each of `xs`, of the type of that one. They are computed along the nodes of the
/// builder's graph from number `first` of its order on, which compute `y`, and none of `xs`. `charge` hears how many primitives
/// are added: a derivative of a derivative is larger by a factor each time.
///
/// Errors: a primitive between them that has no rule, and those of `charge`.
pub fn gradients(
    b: &mut Builder<'_>,
    y: ValueId,
    xs: &[ValueId],
    first: usize,
    charge: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<ValueId>> {
    let nodes: Vec<NodeId> = b.graph.order[first..].to_vec();
    charge(nodes.len() as u64)?;
    let one = b.scalar(b.dtype(y), 1.0);
    let ones = b.expand(one, b.shape(y))?;
    let found = adjoints(b, &nodes, &[(y, ones)], xs, charge)?;
    let gradient = |(&x, adjoint): (&ValueId, Option<ValueId>)| match adjoint {
        Some(adjoint) => Ok(adjoint),
        None => zeros(b, b.dtype(x), b.shape(x)),
    };
    xs.iter().zip(found).map(gradient).collect()
}

/// The derivatives by `xs` of what `compute` makes of them, times `g`, the adjoint of that: for operators that are derivatives of others.
pub fn pulled_back<'g>(
    cx: &mut NodeCx<'_, 'g>,
    g: ValueId,
    xs: &[ValueId],
    compute: impl FnOnce(&mut NodeCx<'_, 'g>, &[ValueId]) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    // Values of their own, also where they are constants.
    let own = |&x: &ValueId| cx.b.unfolded(Op::Reshape { shape: cx.b.shape(x) }, &[x]);
    let xs = xs.iter().map(own).collect::<Result<Vec<_>>>()?;
    let first = cx.b.graph.order.len();
    let y = compute(cx, &xs)?;
    let nodes = cx.b.graph.order[first..].to_vec();
    let (given, wanted) = (cx.b.shape(g), cx.b.shape(y));
    if given.len() != wanted.len() {
        let (given, wanted) = (cx.b.ty(g), cx.b.ty(y));
        return Err(Error::malformed(Stage::Infer, format!("dY is {given}, and the result is {wanted}")));
    }
    for (axis, (size, own)) in given.iter().zip(&wanted).enumerate() {
        let requirement = Requirement::equal(size.clone(), own.clone());
        cx.b.require(requirement.says(format!("dimension {axis} of dY"), "that of the result"))?;
    }
    let g = cx.b.reshape(g, wanted)?;
    let found = adjoints(cx.b, &nodes, &[(y, g)], &xs, &mut |_| Ok(()))?;
    let gradient = |(&x, adjoint): (&ValueId, Option<ValueId>)| match adjoint {
        Some(adjoint) => Ok(adjoint),
        None => zeros(cx.b, cx.b.dtype(x), cx.b.shape(x)),
    };
    xs.iter().zip(found).map(gradient).collect()
}

/// Adjoints of `xs` along `nodes`, from those of the values that `seeds` pairs with them; `None` is 0.
fn adjoints(
    b: &mut Builder<'_>,
    nodes: &[NodeId],
    seeds: &[(ValueId, ValueId)],
    xs: &[ValueId],
    charge: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Vec<Option<ValueId>>> {
    let depends = dependent(b.graph, nodes, xs);
    // What the readers of each value give; all of them come before the node that makes it.
    let mut found: SecondaryMap<ValueId, Vec<ValueId>> = SecondaryMap::new();
    for &(value, adjoint) in seeds.iter().filter(|(value, _)| depends.contains(*value)) {
        found[value].push(adjoint);
    }
    for &id in nodes.iter().rev() {
        let before = b.graph.nodes.len();
        let node = mathematical(b, id);
        let of_results = node.outputs.iter().map(|&value| total(b, &found[value]));
        let of_results: Vec<Option<ValueId>> = of_results.collect::<Result<_>>()?;
        if of_results.iter().all(Option::is_none) {
            continue;
        }
        let wanted: Vec<bool> = node.inputs.iter().map(|&value| depends.contains(value)).collect();
        let rule = Rule { b: &mut *b, id, node: &node, wanted: &wanted, of_results: &of_results };
        for (&operand, adjoint) in node.inputs.iter().zip(rule.apply()?) {
            let Some(adjoint) = adjoint.filter(|_| depends.contains(operand)) else { continue };
            found[operand].push(adjoint);
        }
        charge(b.graph.primitives_from(before))?;
    }
    xs.iter().map(|&x| total(b, &found[x])).collect()
}

/// The node to differentiate: a function that is known where a choice computes it.
fn mathematical(b: &Builder<'_>, node: NodeId) -> Node {
    let mut node = b.graph.nodes[node].clone();
    if let [y] = node.outputs[..]
        && let Some(&(function, x)) = b.graph.functions.get(&y)
    {
        (node.op, node.inputs) = (Op::Map(MapFn::Unary(function)), [x].into_iter().collect());
    }
    node
}

/// The values that are of `xs`, or computed from them by way of numbers other than integers.
fn dependent(graph: &Graph, nodes: &[NodeId], xs: &[ValueId]) -> EntitySet<ValueId> {
    let mut found = EntitySet::new();
    xs.iter().for_each(|&x| {
        found.insert(x);
    });
    for node in nodes.iter().map(|&node| &graph.nodes[node]) {
        if node.inputs.iter().any(|&value| found.contains(value)) {
            let numbers = keeps_numbers(graph, node);
            node.outputs.iter().filter(|&&value| numbers || is_continuous(graph, value)).for_each(|&value| {
                found.insert(value);
            });
        }
    }
    found
}

fn is_continuous(graph: &Graph, value: ValueId) -> bool {
    let dtype = graph.ty(value).dtype;
    dtype.is_float() || dtype.part().is_some()
}

/// Operators that derivatives pass as if they did not round.
const STRAIGHT: &[&str] = &["DynamicQuantizeLinear", "QuantizeLinear"];

/// Whether a node is of an operator whose rounding is passed straight through.
fn is_straight(graph: &Graph, node: &Node) -> bool {
    graph.origins.get(node.origin).is_some_and(|origin| STRAIGHT.contains(&origin.op_type.as_str()))
}

/// Whether the integers that a node gives stand for numbers that were rounded to them, where those that it takes do.
fn keeps_numbers(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Map(MapFn::Cast { .. }) => is_continuous(graph, node.inputs[0]) && is_straight(graph, node),
        Op::Concat { .. } | Op::Gather { .. } | Op::Pad { .. } => true,
        op => op.is_view(),
    }
}

/// The type of adjoints of values of a type: integers that stand for numbers, and floats of a byte, have those of wider ones.
fn of_adjoints(dtype: DType) -> DType {
    match dtype.is_float() && dtype.size() > 1 || dtype.part().is_some() {
        true => dtype,
        false => DType::F32,
    }
}

/// One node that is passed.
struct Rule<'a, 'g> {
    b: &'a mut Builder<'g>,
    id: NodeId,
    node: &'a Node,
    /// Which operands are to have an adjoint.
    wanted: &'a [bool],
    /// Adjoints of the results, of at least one.
    of_results: &'a [Option<ValueId>],
}

impl Rule<'_, '_> {
    /// Adjoints of the operands, of those that are wanted at least; `None` is 0.
    fn apply(mut self) -> Result<Vec<Option<ValueId>>> {
        let node = self.node;
        match &node.op {
            Op::Scan { .. } => return self.repeated(),
            Op::If { bodies, .. } => return self.chosen(bodies),
            _ => {}
        }
        // The other results are integers.
        let Some(g) = self.of_results[0] else { return self.unknown() };
        let first = |adjoint: Result<ValueId>| Ok(vec![Some(adjoint?)]);
        match &node.op {
            Op::Map(function) => self.map(*function, g),
            Op::Reduce { op, axes } => first(self.reduce(*op, axes, g)),
            Op::Contract { batch, m, k, rhs: RhsLayout::Plain } if node.inputs.len() == 2 => {
                self.contract((*batch, *m, *k), g)
            }
            Op::Cumulate { op: ReduceFn::Sum, axis, exclusive, reverse } => {
                let (axis, exclusive, reverse) = (*axis, *exclusive, !reverse);
                first(self.b.emit1(Op::Cumulate { op: ReduceFn::Sum, axis, exclusive, reverse }, &[g]))
            }
            Op::Cumulate { op, axis, exclusive, reverse } => {
                self.cumulated(*op, *axis, (*exclusive, *reverse), g)
            }
            // Which leaf a row reaches changes in steps only.
            Op::Leaves(_) => Ok(vec![None; node.inputs.len()]),
            Op::Reshape { .. } => first(self.b.reshape(g, self.b.shape(node.inputs[0]))),
            Op::Transpose { perm } => first(self.transpose(perm, g)),
            Op::Expand { .. } => first(self.summed(g, node.inputs[0])),
            Op::Slice { starts, steps, .. } => first(self.slice(starts, steps, g)),
            Op::Pad { lo, .. } => self.pad(lo, g),
            Op::Concat { axis } => self.concat(*axis, g),
            Op::Window { first: axis, kernel, strides, dilations } => {
                first(self.window(*axis, kernel, strides, dilations, g))
            }
            Op::Gather { axis } => first(self.gather(*axis, g)),
            Op::GatherElements { axis } => first(self.gather_elements(*axis, g)),
            Op::GatherNd { batch } => first(self.gather_nd(*batch, g)),
            Op::ScatterElements { axis, combine } => {
                self.scatter(Op::GatherElements { axis: *axis }, &node.op, *combine, g)
            }
            Op::ScatterNd { combine } => self.scatter(Op::GatherNd { batch: 0 }, &node.op, *combine, g),
            Op::Sort { axis, .. } => first(self.sort(*axis, g)),
            _ => self.unknown(),
        }
    }

    fn operand(&self, at: usize) -> ValueId {
        self.node.inputs[at]
    }

    /// A scalar of the type of `like`.
    fn number(&mut self, value: f64, like: ValueId) -> ValueId {
        self.b.scalar(self.b.dtype(like), value)
    }

    /// Adjoints of the operands by way of other nodes that compute `y`, the result, from them: those from number `first` on.
    fn by_way_of(&mut self, first: usize, y: ValueId, g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let nodes = self.b.graph.order[first..].to_vec();
        adjoints(self.b, &nodes, &[(y, g)], &self.node.inputs, &mut |_| Ok(()))
    }

    fn unknown<T>(&self) -> Result<T> {
        let origin = self.b.graph.origins.get(self.node.origin);
        let of = origin
            .map_or_else(String::new, |origin| format!(", of node `{}` ({})", origin.name, origin.op_type));
        let results: Vec<String> =
            self.node.outputs.iter().map(|&value| self.b.ty(value).to_string()).collect();
        let (name, results) = (self.node.op.name(), results.join(", "));
        Err(Error::unsupported(
            Stage::Import,
            format!("the derivative of `{name}` with result {results}{of}"),
        ))
    }

    /// The sum of an adjoint over the axes along which `operand` was broadcast, of the shape of that one.
    fn summed(&mut self, g: ValueId, operand: ValueId) -> Result<ValueId> {
        let shape = self.b.shape(operand);
        let lead = self.b.rank(g) - shape.len();
        let from = self.b.shape(g);
        let is_one = |axis: usize| axis < lead || shape[axis - lead] == Dim::ONE && from[axis] != Dim::ONE;
        let axes: Vec<usize> = (0..from.len()).filter(|&axis| is_one(axis)).collect();
        let mut sum = self.b.reduce(ReduceFn::Sum, g, &axes)?;
        // Only the run knows whether it was broadcast along a symbolic axis: `[n]` is `[n / size, size]`, where one of both is 1.
        for axis in lead..from.len() {
            let (size, mut parts) = (&shape[axis - lead], self.b.shape(sum));
            if parts[axis] == *size {
                continue;
            }
            let Some(count) = parts[axis].floor_div(&size.max_dim(&Dim::ONE)) else { return self.unknown() };
            parts.splice(axis..=axis, [count, size.clone()]);
            sum = self.b.reshape(sum, parts)?;
            sum = self.b.reduce(ReduceFn::Sum, sum, &[axis])?;
            sum = self.b.squeeze(sum, &[axis])?;
        }
        self.b.reshape(sum, shape)
    }
}

fn zeros(b: &mut Builder<'_>, dtype: DType, shape: Vec<Dim>) -> Result<ValueId> {
    let zero = b.scalar(dtype, 0.0);
    b.expand(zero, shape)
}
