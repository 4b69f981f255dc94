//! Products of f32 as products of bf16, where [`Options::precision`] asks for them.
//!
//! Both operands are rounded to bf16, to nearest with ties to even, and the sums stay f32: of f32 with bf16 weights where these are
//! constant. The left-hand side stays an f32 that is made of a bf16, behind the views and paddings that the product reads it
//! through, so that what computes it rounds it once. Where kernels multiply pairs of bf16, `pack` lets products read the bf16.
//! Everything between products stays f32: norms, softmax, activations, sums over axes, results.
//!
//! Pairs are of neighbours along the last inner axis. Where its extent is odd, a zero is added to both operands: three channels
//! of an image become four. Long sums of products of two computed values, as of attention, get zeros up to whole steps of the processor's
//! tiles, whether their length is known or open.
//!
//! Products that stand for moving and filtering, as of Resize and DFT, do not belong to the model: they stay f32. So do short sums,
//! products with few columns, and those of few rows with a large computed value, such as a cache of keys: to round that would take longer
//! than to multiply it.

use std::collections::HashMap;

use crate::rewrite::{bodies, producer, rewrite, splat};
use crate::weights::Weights;
use crate::{Options, Precision};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::{product, volume};
use onnxc_ir::graph::panels::missing_steps;
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Node, NodeId, Op, PAIR_DEPTH, RhsLayout, ValueId};

/// Terms of a sum, and columns of a product, from which on it is one of bf16.
const LEAST_TERMS: i64 = 16;
const LEAST_COLUMNS: i64 = 8;

/// Rows of a product of two computed values from which on these are rounded at any size.
const MANY_ROWS: i64 = 8;

/// Bytes as f32 of the left-hand side and of the result, at most, of products of two computed values with fewer rows.
const NEAR_BYTES: i64 = 4 << 20;

/// Steps of a product on the processor's tiles, and those from which on a sum is filled up to a multiple.
const WHOLE_STEPS: usize = 32;
const LEAST_STEPS: i64 = 64;

/// Operators of ONNX whose products are not layers of a network.
const OTHERS: &[&str] = &["Resize", "Upsample", "DFT", "STFT", "MelWeightMatrix", "GridSample", "AffineGrid"];

/// What values are as another type, by value: what is behind views, and the views.
pub(crate) type Known = HashMap<ValueId, ValueId>;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    if options.precision != Precision::Bf16 {
        return Ok(());
    }
    let (pairs, exact) = (options.pack.bf16_pairs, options.exact);
    let mut rounding = Rounding { pairs, exact, ..Rounding::default() };
    rewrite(graph, |b, id| rounding.product(b, id))?;
    bodies(graph, options, run)
}

#[derive(Default)]
struct Rounding {
    /// Whether products read pairs of bf16.
    pairs: bool,
    exact: bool,
    /// Values rounded to bf16, in that type and as f32.
    narrow: Known,
    wide: Known,
}

impl Rounding {
    fn product(&mut self, b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
        let Node { op: op @ Op::Contract { batch, m, rhs: RhsLayout::Plain, .. }, inputs, origin, .. } =
            &b.graph.nodes[id]
        else {
            return Ok(None);
        };
        let &[lhs, rhs] = &inputs[..] else { return Ok(None) };
        let (op, batch, m) = (op.clone(), *batch, *m);
        let floats =
            b.dtype(lhs) == DType::F32 && matches!(b.dtype(rhs), DType::F32 | DType::BF16 | DType::F16);
        let named = b.graph.origins.get(*origin).map_or("", |origin| &origin.op_type);
        if !floats || OTHERS.contains(&named) || b.graph.is_constant(lhs) {
            return Ok(None);
        }
        // Weights of few bits keep their type.
        if Weights::of(b.graph, rhs, self.exact).is_some() {
            return Ok(None);
        }
        let inner = b.shape(lhs)[batch + m..].to_vec();
        let Some(last) = inner.last().cloned() else { return Ok(None) };
        let is_computed = !b.graph.is_constant(rhs);
        let long = volume(&inner).is_none_or(|terms| terms >= LEAST_TERMS);
        let Some(missing) = self.missing(&last, is_computed) else { return Ok(None) };
        let columns = b.shape(rhs).last().cloned().unwrap_or(Dim::ONE);
        let wide = columns.as_const().is_none_or(|n| n >= LEAST_COLUMNS);
        let size =
            |shape: &[Dim]| volume(shape).and_then(|elements| elements.checked_mul(DType::F32.size() as i64));
        let near = |shape: &[Dim]| size(shape).is_some_and(|bytes| bytes <= NEAR_BYTES);
        let result = b.graph.nodes[id].outputs[0];
        let near = near(&b.shape(lhs)) && near(&b.shape(result));
        // Of open sizes, a sequence that attends to itself.
        let rows = product(&b.shape(lhs)[batch..batch + m]);
        let many = rows.as_const().map_or(rows == last || rows == columns, |rows| rows >= MANY_ROWS);
        if !(long && wide && (near || many || !is_computed)) {
            return Ok(None);
        }
        if self.pairs && missing != Dim::ZERO {
            let lhs = self.narrowed(b, lhs)?;
            let lhs = padded(b, lhs, &missing)?;
            let lhs = behind_views(b, lhs, &mut self.wide, &mut |b, base| b.cast(base, DType::F32))?;
            let (rhs, mut hi) = (self.narrowed(b, rhs)?, vec![Dim::ZERO; b.rank(rhs)]);
            hi[batch + inner.len() - 1] = missing;
            let fill = b.scalar(DType::BF16, 0.0);
            let rhs = b.pad(rhs, fill, vec![Dim::ZERO; hi.len()], hi)?;
            return b.emit1(op, &[lhs, rhs]).map(Some);
        }
        let lhs = self.widened(b, lhs)?;
        let rhs = match self.pairs || b.graph.is_constant(rhs) {
            true => self.narrowed(b, rhs)?,
            false => self.widened(b, rhs)?,
        };
        b.emit1(op, &[lhs, rhs]).map(Some)
    }

    /// Steps that a last inner axis of this size lacks; `None` where such sums stay f32.
    fn missing(&self, last: &Dim, is_computed: bool) -> Option<Dim> {
        match last.as_const() {
            Some(known) if !is_computed || known < LEAST_STEPS => missing_steps(last, PAIR_DEPTH),
            None if !is_computed => None,
            _ => missing_steps(last, WHOLE_STEPS),
        }
    }

    /// A value as bf16, rounded behind the views of it.
    fn narrowed(&mut self, b: &mut Builder, value: ValueId) -> Result<ValueId> {
        behind_views(b, value, &mut self.narrow, &mut |b, base| match narrow(b.graph, base) {
            Some(own) => Ok(own),
            None if b.dtype(base) == DType::BF16 => Ok(base),
            None => b.emit1(Op::Map(MapFn::Cast { to: DType::BF16, saturate: false }), &[base]),
        })
    }

    /// The same as f32.
    fn widened(&mut self, b: &mut Builder, value: ValueId) -> Result<ValueId> {
        let Rounding { narrow: known, wide, .. } = self;
        behind_views(b, value, wide, &mut |b, base| {
            if narrow(b.graph, base).is_some() {
                return Ok(base);
            }
            let own = match known.get(&base) {
                Some(&own) => own,
                None => b.emit1(Op::Map(MapFn::Cast { to: DType::BF16, saturate: false }), &[base])?,
            };
            known.insert(base, own);
            b.cast(own, DType::F32)
        })
    }
}

/// A value with `count` zeros behind its last axis, added to the image that it has windows of.
fn padded(b: &mut Builder, value: ValueId, count: &Dim) -> Result<ValueId> {
    let last = b.rank(value) - 1;
    match producer(b.graph, value).cloned() {
        Some(Node { op: op @ Op::Window { .. }, inputs, .. }) if has_tail(&op, b.rank(value)) => {
            let image = padded(b, inputs[0], count)?;
            b.emit1(op, &[image])
        }
        Some(Node { op: Op::Pad { lo, mut hi }, inputs, .. })
            if lo[last] == Dim::ZERO && hi[last] == Dim::ZERO =>
        {
            hi[last] = count.clone();
            b.pad(inputs[0], inputs[1], lo, hi)
        }
        _ => {
            let (lo, mut hi) = (vec![Dim::ZERO; last + 1], vec![Dim::ZERO; last + 1]);
            hi[last] = count.clone();
            let fill = b.scalar(b.dtype(value), 0.0);
            b.pad(value, fill, lo, hi)
        }
    }
}

/// Whether windows have the last axis of what they are of as their last one.
fn has_tail(window: &Op, rank: usize) -> bool {
    matches!(window, Op::Window { first, kernel, .. } if first + 2 * kernel.len() < rank)
}

/// The bf16 that an f32 is made of.
pub(crate) fn narrow(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let Node { op: Op::Map(MapFn::Cast { to: DType::F32, .. }), inputs, .. } = producer(graph, value)? else {
        return None;
    };
    (graph.ty(inputs[0]).dtype == DType::BF16).then_some(inputs[0])
}

/// The value that `make` gives for what is behind the views and paddings with zeros of `value`, seen through the same.
fn behind_views(
    b: &mut Builder,
    value: ValueId,
    known: &mut Known,
    make: &mut dyn FnMut(&mut Builder, ValueId) -> Result<ValueId>,
) -> Result<ValueId> {
    let (mut base, mut seen) = (value, vec![]);
    while !known.contains_key(&base)
        && let Some(node) = producer(b.graph, base)
    {
        let pads = matches!(node.op, Op::Pad { .. }) && splat(b.graph, node.inputs[1]) == Some(0.0);
        if !pads && !node.op.is_view() {
            break;
        }
        seen.push((node.op.clone(), base));
        base = node.inputs[0];
    }
    let mut made = match known.get(&base) {
        Some(&made) => made,
        None => make(b, base)?,
    };
    if made == base {
        return Ok(value);
    }
    known.insert(base, made);
    for (op, own) in seen.into_iter().rev() {
        made = match op {
            Op::Pad { .. } => {
                let fill = b.scalar(b.dtype(made), 0.0);
                b.emit1(op, &[made, fill])?
            }
            op => b.emit1(op, &[made])?,
        };
        known.insert(own, made);
    }
    Ok(made)
}

/// The bf16 that the left-hand side of a product is made of, if its rows are to be read in that type: through the same views.
pub(crate) fn bf16_of(b: &mut Builder, lhs: ValueId, known: &mut Known) -> Result<Option<ValueId>> {
    if b.dtype(lhs) != DType::F32 || !is_rounded(b.graph, lhs) {
        return Ok(None);
    }
    let own = behind_views(b, lhs, known, &mut |b, base| Ok(narrow(b.graph, base).unwrap_or(base)))?;
    Ok((own != lhs).then_some(own))
}

/// Whether a value is one that was rounded to bf16, seen through views.
pub(crate) fn is_rounded(graph: &Graph, mut value: ValueId) -> bool {
    while let Some(node) = producer(graph, value) {
        if !node.op.is_view() && !matches!(node.op, Op::Pad { .. }) {
            break;
        }
        value = node.inputs[0];
    }
    narrow(graph, value).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PackPolicy, dce, pack};
    use onnxc_ir::graph::{Origin, Tensor, TensorType};
    use onnxc_ir::interp;

    fn dims(sizes: &[usize]) -> Vec<Dim> {
        sizes.iter().map(|&size| Dim::from(size)).collect()
    }

    fn drawn(random: &mut fastrand::Rng, sizes: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..sizes.iter().product()).map(|_| random.f32() * 4.0 - 2.0).collect();
        Tensor::from_slice(sizes, &values)
    }

    /// A product with constant weights, a convolution of an image in a border and a product of two computed values, of operands that
    /// are rounded by the graph or not; the product's operator is `op_type`.
    fn graph(inner: usize, op_type: &str, round: bool, random: &mut fastrand::Rng) -> Graph {
        let mut graph = Graph::default();
        let origin = graph.origins.push(Origin::new("product", op_type, 0));
        let mut b = Builder::new(&mut graph, origin);
        let weights = drawn(random, &[inner, 10]);
        let taps = drawn(random, &[3, 3, inner, 9]);
        let x = b.input("x", TensorType::new(DType::F32, dims(&[4, inner])), None);
        let image = b.input("image", TensorType::new(DType::F32, dims(&[1, 5, 6, inner])), None);
        let keys = b.input("keys", TensorType::new(DType::F32, dims(&[8, inner])), None);
        let rounded = |b: &mut Builder, value: ValueId| match round {
            true => b.cast(value, DType::BF16).and_then(|value| b.cast(value, DType::F32)).unwrap(),
            false => value,
        };
        let (weights, taps) = (b.constant(weights), b.constant(taps));
        let [weights, taps, left, right, image] =
            [weights, taps, x, keys, image].map(|value| rounded(&mut b, value));
        let (border, fill) = (dims(&[0, 1, 1, 0]), b.scalar(DType::F32, 0.0));
        let padded = b.pad(image, fill, border.clone(), border).unwrap();
        let (kernel, strides, dilations) = (vec![3; 2], vec![1, 2], vec![1; 2]);
        let windows = b.emit1(Op::Window { first: 1, kernel, strides, dilations }, &[padded]).unwrap();
        let keys = b.transpose(right, &[1, 0]).unwrap();
        let contract = |m, k| Op::Contract { batch: 0, m, k, rhs: RhsLayout::Plain };
        let results = [
            b.emit1(contract(1, 1), &[left, weights]).unwrap(),
            b.emit1(contract(3, 3), &[windows, taps]).unwrap(),
            b.emit1(contract(1, 1), &[left, keys]).unwrap(),
        ];
        graph.outputs = results.into_iter().enumerate().map(|(at, y)| (format!("y{at}"), y)).collect();
        graph
    }

    /// Instructions for pairs of bf16 take subnormals for zeros: with `exact`, products of a model of bf16 are those of f32.
    #[test]
    fn exact_products_of_bf16_keep_subnormals() {
        for (exact, precision, depth) in
            [(false, Precision::F32, 2), (true, Precision::F32, 1), (true, Precision::Bf16, 2)]
        {
            let mut graph = Graph::default();
            let origin = graph.origins.push(Origin::new("product", "MatMul", 0));
            let mut b = Builder::new(&mut graph, origin);
            let x = b.input("x", TensorType::new(DType::BF16, dims(&[4, 16])), None);
            let weights = b.input("w", TensorType::new(DType::BF16, dims(&[16, 10])), None);
            let x = b.cast(x, DType::F32).unwrap();
            let product = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
            let y = b.emit1(product, &[x, weights]).unwrap();
            graph.outputs.push(("y".into(), y));
            let pack = PackPolicy { bf16_pairs: true, ..PackPolicy::WIDEST };
            let options = Options { exact, precision, pack, ..Options::default() };
            pack::run(&mut graph, &options).unwrap();
            let depths = graph.order.iter().filter_map(|&node| match &graph.nodes[node].op {
                Op::Contract { rhs, .. } => rhs.columns().map(|_| rhs.depth()),
                _ => None,
            });
            assert_eq!(depths.collect::<Vec<_>>(), [depth], "{exact} {precision}\n{graph}");
        }
    }

    /// As the graph with its operands rounded: whether kernels multiply pairs or not, with even and odd numbers of terms.
    #[test]
    fn operands_are_rounded_once() {
        for (inner, policy) in [16, 17, 32, 3, 19].into_iter().flat_map(|inner| {
            let pairs = PackPolicy { bf16_pairs: true, ..PackPolicy::WIDEST };
            [(inner, PackPolicy::WIDEST), (inner, pairs)]
        }) {
            let seeded = || fastrand::Rng::with_seed(inner as u64);
            let (plain, wanted) =
                (graph(inner, "MatMul", false, &mut seeded()), graph(inner, "MatMul", true, &mut seeded()));
            let mut random = fastrand::Rng::with_seed(99);
            let inputs = [vec![4, inner], vec![1, 5, 6, inner], vec![8, inner]]
                .map(|sizes| drawn(&mut random, &sizes));
            let wanted = interp::run(&wanted, &inputs).unwrap();
            let unrounded = interp::run(&plain, &inputs).unwrap();
            let mut after = plain.clone();
            let options = Options { precision: Precision::Bf16, pack: policy, ..Options::default() };
            run(&mut after, &options).unwrap();
            let rounded = interp::run(&after, &inputs).unwrap();
            pack::run(&mut after, &options).unwrap();
            dce::run(&mut after, &options).unwrap();
            onnxc_ir::verify::verify(&after).unwrap();
            let packed = interp::run(&after, &inputs).unwrap();
            let depths = after.order.iter().filter_map(|&node| match &after.nodes[node].op {
                Op::Contract { rhs, .. } => rhs.columns().map(|_| rhs.depth()),
                _ => None,
            });
            // Sums of three terms stay f32.
            let pairs = [2, 2, 2].map(|depth| if policy.bf16_pairs { depth } else { 1 });
            let few = [1, if policy.bf16_pairs { 2 } else { 1 }, 1];
            assert_eq!(depths.collect::<Vec<_>>(), if inner == 3 { few } else { pairs }, "{after}");
            for at in 0..3 {
                let wanted = if inner == 3 && at != 1 { &unrounded[at] } else { &wanted[at] };
                let numbers = |tensor: &Tensor| tensor.to_f64s().unwrap();
                for found in [&rounded[at], &packed[at]] {
                    assert_eq!((found.dtype, &found.shape), (DType::F32, &wanted.shape));
                    for (found, wanted) in numbers(found).into_iter().zip(numbers(wanted)) {
                        assert!(
                            (found - wanted).abs() <= 1e-5,
                            "{found} for {wanted}, {inner} terms\n{after}"
                        );
                    }
                }
                if inner != 3 {
                    assert_ne!(unrounded[at].data, packed[at].data);
                }
            }
        }
    }

    /// Without the option, and of operators that only filter.
    #[test]
    fn others_stay() {
        for (op_type, precision) in [("MatMul", Precision::F32), ("Resize", Precision::Bf16)] {
            let before = graph(16, op_type, false, &mut fastrand::Rng::with_seed(1));
            let mut after = before.clone();
            run(&mut after, &Options { precision, ..Options::default() }).unwrap();
            assert_eq!(before.to_string(), after.to_string());
        }
    }

    #[test]
    fn precisions_are_read_by_name() {
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
        assert_eq!("auto".parse(), Ok(Precision::Auto));
        assert!("f16".parse::<Precision>().unwrap_err().contains("f16 are not supported"));
        assert!("tf32".parse::<Precision>().is_err());
    }
}
