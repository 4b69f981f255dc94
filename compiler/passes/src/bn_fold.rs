//! Folds constant scales and shifts behind a linear operation into its weights and bias.
//!
//! Patterns, for floats: a contraction with constant weights, or a depthwise one (a map multiplication by constant
//! weights under a sum), or integers times a scale, then any chain of reshapes, transposes and additions of constants, then a
//! multiplication, division, addition or subtraction by a constant. Scales must not vary along the rows. Batch
//! normalisation, layer scale and the scale of attention queries are such constants.
//!
//! The product is distributed over the sum and rounds differently, within a few units in the last place of the weights; with `exact`
//! nothing is folded. A sum that is 0 is +0, as sums begin with that: times a scale below zero it is -0, and with the scale in the
//! weights it would be +0. Such scales are folded only where a constant is added to the product, which makes 0 of both. Nothing is
//! folded that would be out of the range of its type.

use std::collections::HashSet;

use crate::rewrite::{Uses, bodies, finite, fixpoint, is_one, producer, reshaped, rewrite, with_rank};
use crate::steps::Spans;
use crate::{Options, dce};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::signs::{all_elements, is_without_minus_zero};
use onnxc_ir::graph::{
    Constant, DType, Def, Dim, Graph, MapFn, Node, NodeId, Op, RhsLayout, Tensor, ValueId, inverse,
};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, ReduceFn, UnaryFn};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.exact {
        return Ok(());
    }
    fixpoint(8, || {
        let mut uses = graph.use_counts();
        let (shifted, quantized) = (shifted(graph, &uses), quantized(graph));
        let changed = rewrite(graph, |b, id| match quantized.contains(&id) {
            true => Ok(None),
            false => fold(b, id, &mut uses, &shifted),
        })?;
        dce::sweep(graph);
        Ok(changed)
    })?;
    bodies(graph, options, run)
}

/// Values that only a sum with a constant reads, where no element of the constant is -0: the sum is the same for either zero.
fn shifted(graph: &Graph, uses: &Uses) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    for node in graph.order.iter().map(|&id| &graph.nodes[id]) {
        let Op::Map(MapFn::Binary(function @ (BinaryFn::Add | BinaryFn::Sub))) = node.op else { continue };
        let Some((mut value, constant)) = operands(graph, function, &node.inputs) else { continue };
        let negated = function == BinaryFn::Sub;
        let keeps_zeros = match negated {
            true => all_elements(graph, constant, &|c| c != 0.0 || c.is_sign_negative()),
            false => is_without_minus_zero(graph, constant),
        };
        if !keeps_zeros {
            continue;
        }
        while uses[value] <= 1 {
            found.insert(value);
            match producer(graph, value) {
                Some(Node { op: Op::Reshape { .. } | Op::Transpose { .. }, inputs, .. }) => value = inputs[0],
                _ => break,
            }
        }
    }
    found
}

/// The divisions by a scale whose results are rounded, and which stay as they are: a joined scale is not accurate enough for their
/// number of steps.
fn quantized(graph: &Graph) -> HashSet<NodeId> {
    let spans = Spans::of(graph);
    let kept =
        |id: &NodeId| graph.nodes[*id].op == Op::Map(MapFn::Unary(UnaryFn::Round)) && !spans.may_join(*id);
    let nodes = graph.order.iter().copied().filter(kept);
    nodes.filter_map(|id| graph.producer(graph.nodes[id].inputs[0])).collect()
}

/// Longest chain between the linear operation and the constant.
const MAX_CHAIN: usize = 16;

/// What a step of the chain does to the value, from the linear operation outwards.
enum ChainStep {
    View(Op),
    Add(ValueId),
}

/// The linear operation at the start of a chain.
enum Root {
    /// `contract(lhs, weights)`, and the number of its batch, row and inner axes.
    Contract { lhs: ValueId, weights: ValueId, batch: usize, m: usize, k: usize },
    /// `reduce sum over axes (x * weights)`.
    Depthwise { x: ValueId, weights: ValueId, axes: Vec<usize> },
    /// `float(x) * factor`: sums of integers that are given their scale.
    Integers { x: ValueId, factor: ValueId },
}

fn fold(b: &mut Builder, id: NodeId, uses: &mut Uses, shifted: &HashSet<ValueId>) -> Result<Option<ValueId>> {
    let node = &b.graph.nodes[id];
    let (Op::Map(MapFn::Binary(function)), output) = (&node.op, node.outputs[0]) else { return Ok(None) };
    let (function, inputs) = (*function, node.inputs.clone());
    if !b.dtype(output).is_float() {
        return Ok(None);
    }
    let Some((x, constant)) = operands(b.graph, function, &inputs) else { return Ok(None) };
    if b.ty(x) != b.ty(output) || !finite(b.graph, constant) || uses[x] > 1 {
        return Ok(None);
    }
    let Some((root, steps, value)) = chain(b.graph, x, uses) else { return Ok(None) };
    let is_sum = !matches!(root, Root::Integers { .. }) || !steps.is_empty();
    let scales = is_sum && matches!(function, BinaryFn::Mul | BinaryFn::Div);
    if scales && !shifted.contains(&output) && !all_elements(b.graph, constant, &|scale| scale > 0.0) {
        return Ok(None);
    }
    let folded = match function {
        BinaryFn::Mul => scale(b, &root, &steps, value, constant)?,
        BinaryFn::Div => {
            let reciprocal = b.unary(UnaryFn::Recip, constant)?;
            if finite(b.graph, reciprocal) { scale(b, &root, &steps, value, reciprocal)? } else { None }
        }
        BinaryFn::Add => shift(b, &steps, value, constant)?,
        _ => {
            let negative = b.unary(UnaryFn::Neg, constant)?;
            match shift(b, &steps, value, negative)? {
                Some(folded) => Some(folded),
                // As an addition it merges with the next one.
                None => Some(b.binary(BinaryFn::Add, x, negative)?),
            }
        }
    };
    if let Some(folded) = folded {
        uses[folded] = uses[output];
    }
    Ok(folded)
}

/// The operand that is computed and the one that is constant.
fn operands(graph: &Graph, function: BinaryFn, inputs: &[ValueId]) -> Option<(ValueId, ValueId)> {
    let (x, y) = (inputs[0], inputs[1]);
    match function {
        BinaryFn::Mul | BinaryFn::Add if graph.is_constant(x) => Some((y, x)),
        BinaryFn::Mul | BinaryFn::Add | BinaryFn::Div | BinaryFn::Sub if graph.is_constant(y) => Some((x, y)),
        _ => None,
    }
}

/// Walks from `x` back to a linear operation whose every later value is used once. Gives the root, the steps
/// outwards and the root's result.
fn chain(graph: &Graph, mut x: ValueId, uses: &Uses) -> Option<(Root, Vec<ChainStep>, ValueId)> {
    let mut steps = Vec::new();
    for _ in 0..MAX_CHAIN {
        if uses[x] > 1 {
            return None;
        }
        let node = producer(graph, x)?;
        match &node.op {
            Op::Reshape { .. } | Op::Transpose { .. } => {
                steps.push(ChainStep::View(node.op.clone()));
                x = node.inputs[0];
            }
            Op::Map(MapFn::Binary(BinaryFn::Add)) => {
                let (inner, constant) = operands(graph, BinaryFn::Add, &node.inputs)?;
                if graph.ty(inner) != graph.ty(x) {
                    return None;
                }
                steps.push(ChainStep::Add(constant));
                x = inner;
            }
            _ => {
                steps.reverse();
                return Some((root(graph, node, uses)?, steps, x));
            }
        }
    }
    None
}

fn root(graph: &Graph, node: &Node, uses: &Uses) -> Option<Root> {
    match &node.op {
        Op::Contract { batch, m, k, rhs: RhsLayout::Plain } => {
            let (lhs, weights) = (node.inputs[0], node.inputs[1]);
            // Weights of 16 bits keep their type.
            let scales = graph.is_constant(weights) && graph.ty(weights).dtype == graph.ty(lhs).dtype;
            scales.then_some(Root::Contract { lhs, weights, batch: *batch, m: *m, k: *k })
        }
        Op::Reduce { op: ReduceFn::Sum, axes } if uses[node.inputs[0]] <= 1 => {
            let product = producer(graph, node.inputs[0])?;
            if product.op != Op::Map(MapFn::Binary(BinaryFn::Mul)) {
                return None;
            }
            let (x, weights) = operands(graph, BinaryFn::Mul, &product.inputs)?;
            Some(Root::Depthwise { x, weights, axes: axes.clone() })
        }
        Op::Map(MapFn::Binary(BinaryFn::Mul)) => {
            let (x, factor) = operands(graph, BinaryFn::Mul, &node.inputs)?;
            let Node { op: Op::Map(MapFn::Cast { .. }), inputs, .. } = producer(graph, x)? else {
                return None;
            };
            // Those of 16 bits are not sums, and likely to be quantized to 16 bits again.
            let dtype = graph.ty(inputs[0]).dtype;
            (dtype.is_int() && dtype.bits() != 16).then_some(Root::Integers { x, factor })
        }
        _ => None,
    }
}

/// The constant as it applies before a view, given how it applies to the view's result of type `after`.
fn pull_back(
    b: &mut Builder,
    constant: ValueId,
    view: &Op,
    before: &[Dim],
    after: &[Dim],
) -> Result<Option<ValueId>> {
    let constant = with_rank(b, constant, after.len())?;
    match view {
        Op::Transpose { perm } => b.transpose(constant, &inverse(perm)).map(Some),
        _ => reshaped(b, constant, after, before),
    }
}

/// The constant as it applies to the value before `steps`, and as it applies after each of them.
fn pull_through(
    b: &mut Builder,
    steps: &[ChainStep],
    start: &[Dim],
    constant: ValueId,
) -> Result<Option<Vec<ValueId>>> {
    let mut shapes = vec![start.to_vec()];
    for step in steps {
        let shape = shapes.last().expect("starts with one");
        shapes.push(match step {
            ChainStep::View(Op::Reshape { shape }) => shape.clone(),
            ChainStep::View(Op::Transpose { perm }) => perm.iter().map(|&axis| shape[axis].clone()).collect(),
            _ => shape.clone(),
        });
    }
    let mut constants = vec![constant];
    for (at, step) in steps.iter().enumerate().rev() {
        let after = *constants.last().expect("starts with one");
        constants.push(match step {
            ChainStep::View(view) => match pull_back(b, after, view, &shapes[at], &shapes[at + 1])? {
                Some(before) => before,
                None => return Ok(None),
            },
            ChainStep::Add(_) => after,
        });
    }
    constants.reverse();
    Ok(Some(constants))
}

/// Rebuilds the chain with the scale in the weights and in each added constant.
fn scale(
    b: &mut Builder,
    root: &Root,
    steps: &[ChainStep],
    value: ValueId,
    constant: ValueId,
) -> Result<Option<ValueId>> {
    let start = b.shape(value);
    let Some(constants) = pull_through(b, steps, &start, constant)? else { return Ok(None) };
    let Some(mut x) = scale_root(b, root, constants[0], start.len())? else { return Ok(None) };
    for (step, &constant) in steps.iter().zip(&constants[1..]) {
        x = match step {
            ChainStep::View(view) => b.emit1(view.clone(), &[x])?,
            ChainStep::Add(bias) => {
                let Some(bias) = in_range(b, BinaryFn::Mul, *bias, constant)? else { return Ok(None) };
                b.binary(BinaryFn::Add, x, bias)?
            }
        };
    }
    Ok(Some(x))
}

fn scale_root(b: &mut Builder, root: &Root, constant: ValueId, rank: usize) -> Result<Option<ValueId>> {
    let constant = with_rank(b, constant, rank)?;
    let shape = b.shape(constant);
    match root {
        Root::Contract { lhs, weights, batch, m, k } => {
            let (lhs, weights, batch, m, k) = (*lhs, *weights, *batch, *m, *k);
            if !shape[batch..batch + m].iter().all(is_one) {
                return Ok(None);
            }
            let mut aligned = shape[..batch].to_vec();
            aligned.extend(std::iter::repeat_n(Dim::ONE, k));
            aligned.push(shape[batch + m].clone());
            let Some(weights) = scale_weights(b, weights, constant, aligned)? else { return Ok(None) };
            let op = Op::Contract { batch, m, k, rhs: RhsLayout::Plain };
            b.emit1(op, &[lhs, weights]).map(Some)
        }
        Root::Depthwise { x, weights, axes } => {
            let Some(weights) = scale_weights(b, *weights, constant, shape)? else { return Ok(None) };
            let product = b.binary(BinaryFn::Mul, *x, weights)?;
            b.reduce(ReduceFn::Sum, product, axes).map(Some)
        }
        Root::Integers { x, factor } => match in_range(b, BinaryFn::Mul, *factor, constant)? {
            Some(factor) if b.graph.is_constant(factor) => b.binary(BinaryFn::Mul, *x, factor).map(Some),
            _ => Ok(None),
        },
    }
}

/// `weights * constant` with the constant in shape `aligned`; `None` where that would need more weights.
fn scale_weights(
    b: &mut Builder,
    weights: ValueId,
    constant: ValueId,
    aligned: Vec<Dim>,
) -> Result<Option<ValueId>> {
    let shape = b.shape(weights);
    let lead = aligned.len().saturating_sub(shape.len());
    let (extra, matching) = aligned.split_at(lead);
    let own = &shape[shape.len() - matching.len()..];
    let fits = matching.iter().zip(own).all(|(scale, own)| is_one(scale) || scale == own);
    if !fits || !extra.iter().all(is_one) {
        return Ok(None);
    }
    let constant = b.reshape(constant, matching.to_vec())?;
    in_range(b, BinaryFn::Mul, weights, constant)
}

/// `function` of two constants, if finite operands have finite results of it, by their magnitudes.
fn in_range(b: &mut Builder, function: BinaryFn, x: ValueId, y: ValueId) -> Result<Option<ValueId>> {
    let limit = match b.dtype(x) {
        DType::F16 => half::f16::MAX.into(),
        DType::F32 | DType::BF16 => f32::MAX.into(),
        DType::F64 => f64::MAX,
        _ => return Ok(None),
    };
    let size = |value: ValueId| magnitude(b.graph, value);
    let most = match (function, size(y)?) {
        // Nothing grows; weights are many.
        (BinaryFn::Mul, scale) if scale <= 1.0 => scale,
        (BinaryFn::Mul, scale) => scale * size(x)?,
        (_, shift) => shift + size(x)?,
    };
    if most > limit { Ok(None) } else { b.binary(function, x, y).map(Some) }
}

/// The greatest magnitude of the elements of a constant, or a number above it.
fn magnitude(graph: &Graph, value: ValueId) -> Result<f64> {
    let (op, inputs) = match &graph.values[value].def {
        Def::Const(Constant::Deferred { op, inputs }) => (op, inputs),
        _ => return Ok(largest(&interp::constant(graph, value)?)),
    };
    match **op {
        Op::Map(MapFn::Binary(BinaryFn::Mul)) => {
            Ok(magnitude(graph, inputs[0])? * magnitude(graph, inputs[1])?)
        }
        ref op if op.is_view() => magnitude(graph, inputs[0]),
        _ => Ok(largest(&interp::constant(graph, value)?)),
    }
}

fn largest(tensor: &Tensor) -> f64 {
    let elements = tensor.to_f64s().unwrap_or_default();
    elements.into_iter().fold(0.0, |most, element| element.abs().max(most))
}

/// Adds the constant to the innermost bias of the chain that it reaches; `None` when there is none.
fn shift(b: &mut Builder, steps: &[ChainStep], value: ValueId, constant: ValueId) -> Result<Option<ValueId>> {
    let Some(at) = steps.iter().rposition(|step| matches!(step, ChainStep::Add(_))) else { return Ok(None) };
    let start = b.shape(value);
    // Steps before the bias stay as they are; only the constant's way down to it matters.
    let Some(constants) = pull_through(b, steps, &start, constant)? else { return Ok(None) };
    let mut x = value;
    for (index, step) in steps.iter().enumerate() {
        x = match step {
            ChainStep::View(view) => b.emit1(view.clone(), &[x])?,
            ChainStep::Add(bias) if index == at => {
                match in_range(b, BinaryFn::Add, *bias, constants[at + 1])? {
                    Some(bias) if b.graph.is_constant(bias) => b.binary(BinaryFn::Add, x, bias)?,
                    _ => return Ok(None),
                }
            }
            ChainStep::Add(bias) => b.binary(BinaryFn::Add, x, *bias)?,
        };
    }
    Ok(Some(x))
}
