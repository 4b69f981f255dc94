//! Arithmetic on f16 and bf16 as arithmetic on f32 whose results are rounded.
//!
//! Kernels compute these types in f32 anyway. Said in the graph, the conversions are computed where they are cheap: a
//! value that products read is rounded once, where it is made, and kept as f32; what follows a product is its epilogue;
//! and the rewrites for f32 (minimal filtering, attention as one kernel) serve these types, too. Constant weights stay as they
//! are, and so do keys and values from a cache: contractions widen them as they are read.
//!
//! What one operation hands to the next is not rounded in between, as in other engines: results are closer to those of the
//! model in f32, and a sum that is out of range for f16 is not infinite. Values are rounded where they are kept in 16 bits,
//! as outputs are, and where the model says so by Cast. With `exact` every result of a node of the model is.
//!
//! Values are also kept in 16 bits where they are larger than caches and windows read them, as of depthwise convolutions and
//! pools: their kernels take whole vectors, which conversions cost less than reading twice the bytes. Those that products
//! read are not: an element is widened for each panel of columns.
//!
//! Quotients of f16 whose divisors are fewer are products with reciprocals, which processors compute ten times as fast: the error, a
//! unit in the last place of f32, is a 4096th of what rounding to f16 costs.

use std::collections::{HashMap, HashSet};

use crate::Options;
use crate::rewrite::{bodies, operation, producer, rewrite, softmax};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, Graph, MapFn, Node, NodeId, Op, OriginId, RhsLayout, ValueId};
use onnxc_ir::scalar::{BinaryFn, UnaryFn};

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let (exact, kept_above) = (options.exact, options.pack.kept_above);
    let mut halves = Halves { exact, kept_above, ..Halves::default() };
    rewrite(graph, |b, id| halves.node(b, id))?;
    bodies(graph, options, run)
}

pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Values of 16 bits, and what they are as f32.
#[derive(Default)]
struct Halves {
    /// Results are rounded between nodes of the model.
    exact: bool,
    /// Bytes as f32 above which values that windows read stay in 16 bits.
    kept_above: i64,
    /// What was rounded to a value, and the node of the model that it belongs to.
    rounded: HashMap<ValueId, (ValueId, OriginId)>,
    /// Values converted to f32.
    widened: HashMap<ValueId, ValueId>,
    /// Values computed from constants alone: the compiler does that, as the model says.
    fixed: HashSet<ValueId>,
}

impl Halves {
    fn node(&mut self, b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
        let Node { op, inputs, outputs, origin, .. } = &b.graph.nodes[id];
        let ([result], origin) = (&outputs[..], *origin) else { return Ok(None) };
        if inputs.iter().all(|input| b.graph.is_constant(*input) || self.fixed.contains(input)) {
            self.fixed.insert(*result);
            return Ok(None);
        }
        let (op, inputs, dtype) = (op.clone(), inputs.clone(), b.dtype(*result));
        let halves = inputs.iter().any(|&input| is_half(b.dtype(input)));
        match &op {
            Op::Map(MapFn::Cast { to: DType::F32, .. }) if halves && self.is_computed(inputs[0]) => {
                let wide = self.wide(b, inputs[0], origin)?;
                self.windows_of_kept(b, wide, b.dtype(inputs[0])).map(|kept| kept.or(Some(wide)))
            }
            Op::Map(MapFn::Cast { .. }) if is_half(dtype) && b.dtype(inputs[0]) == DType::F32 => {
                if let Some((exp, sum)) = softmax(b.graph, inputs[0]).filter(|_| !self.exact) {
                    let value = quotient(b, exp, sum)?;
                    return self.round(b, value, dtype, origin);
                }
                self.rounded.insert(*result, (inputs[0], origin));
                Ok(None)
            }
            Op::Map(MapFn::Unary(_) | MapFn::Binary(_) | MapFn::Compare(_)) | Op::Reduce { .. } if halves => {
                let mut wide = self.all_wide(b, &inputs, origin)?;
                if let (Op::Reduce { .. }, [wide]) = (&op, &mut wide[..]) {
                    *wide = self.windows_of_kept(b, *wide, dtype)?.unwrap_or(*wide);
                }
                let value = match (&op, &wide[..]) {
                    (Op::Map(MapFn::Binary(BinaryFn::Div)), &[x, y])
                        if self.divides_freely(b.graph, dtype, origin) && is_repeated(b, y, x) =>
                    {
                        quotient(b, x, y)?
                    }
                    _ => b.emit1(op, &wide)?,
                };
                self.round(b, value, dtype, origin)
            }
            Op::Contract { rhs: RhsLayout::Plain, .. } if halves && is_half(dtype) => {
                let lhs = self.wide(b, inputs[0], origin)?;
                let rhs = match self.is_computed(inputs[1]) {
                    true => self.wide(b, inputs[1], origin)?,
                    false => inputs[1],
                };
                let sum = b.emit1(op, &[lhs, rhs])?;
                self.round(b, sum, dtype, origin)
            }
            op if moves(op) && halves && self.moves_computed(op, &inputs) => {
                let moves_unrounded = inputs.iter().any(|&x| self.unrounded(b.graph, x, origin).is_some());
                let wide = self.all_wide(b, &inputs, origin)?;
                let wide = b.emit1(op.clone(), &wide)?;
                if moves_unrounded {
                    return self.round(b, wide, dtype, origin);
                }
                let result = b.cast(wide, dtype)?;
                self.widened.insert(result, wide);
                Ok(Some(result))
            }
            _ => Ok(None),
        }
    }

    fn round(
        &mut self,
        b: &mut Builder,
        value: ValueId,
        to: DType,
        origin: OriginId,
    ) -> Result<Option<ValueId>> {
        let result = b.cast(value, to)?;
        if result != value {
            self.rounded.insert(result, (value, origin));
        }
        Ok(Some(result))
    }

    /// A value as f32, for a node of the model.
    fn wide(&mut self, b: &mut Builder, value: ValueId, origin: OriginId) -> Result<ValueId> {
        if !is_half(b.dtype(value)) {
            return Ok(value);
        }
        if let Some(exact) = self.unrounded(b.graph, value, origin) {
            return Ok(exact);
        }
        if let Some(&wide) = self.widened.get(&value) {
            return Ok(wide);
        }
        let wide = match producer(b.graph, value) {
            // They repeat elements, which would be converted several times; a padding has loops of its own for its
            // border only where it is the last operation of a group.
            Some(Node {
                op: op @ (Op::Window { .. } | Op::Expand { .. } | Op::Pad { .. }), inputs, ..
            }) => {
                let (op, inputs) = (op.clone(), inputs.clone());
                let inputs = self.all_wide(b, &inputs, origin)?;
                b.emit1(op, &inputs)?
            }
            _ => b.cast(value, DType::F32)?,
        };
        self.widened.insert(value, wide);
        Ok(wide)
    }

    /// Windows of a large padded value of type `half`, if `wide` is those as f32: widened behind the windows, so that what they
    /// are of is kept in 16 bits.
    fn windows_of_kept(&self, b: &mut Builder, wide: ValueId, half: DType) -> Result<Option<ValueId>> {
        let Some((window @ Op::Window { .. }, &[padded])) = operation(b.graph, wide) else { return Ok(None) };
        let Some((pad @ Op::Pad { .. }, &[x, fill])) = operation(b.graph, padded) else { return Ok(None) };
        // Sizes known only at run time count as 1.
        let bytes = b.graph.ty(padded).bytes().eval(&|_| Some(1));
        if !is_half(half) || bytes.is_none_or(|bytes| bytes <= self.kept_above) {
            return Ok(None);
        }
        let (window, pad) = (window.clone(), pad.clone());
        let x = match operation(b.graph, x) {
            Some((Op::Map(MapFn::Cast { .. }), &[own])) if b.dtype(own) == half => own,
            _ => b.cast(x, half)?,
        };
        let fill = b.cast(fill, half)?;
        let padded = b.emit1(pad, &[x, fill])?;
        let windows = b.emit1(window, &[padded])?;
        b.emit1(Op::Map(MapFn::Cast { to: DType::F32, saturate: true }), &[windows]).map(Some)
    }

    /// What was rounded to a value, if a node of the model may read that instead.
    fn unrounded(&self, graph: &Graph, value: ValueId, origin: OriginId) -> Option<ValueId> {
        let &(exact, own) = self.rounded.get(&value)?;
        ((own == origin || !self.exact) && !is_defined_by_rounding(graph, own)).then_some(exact)
    }

    /// Whether a node's quotients of type `dtype` may be products with reciprocals.
    fn divides_freely(&self, graph: &Graph, dtype: DType, origin: OriginId) -> bool {
        !self.exact && dtype == DType::F16 && !is_defined_by_rounding(graph, origin)
    }

    fn all_wide(&mut self, b: &mut Builder, values: &[ValueId], origin: OriginId) -> Result<Vec<ValueId>> {
        values.iter().map(|&value| self.wide(b, value, origin)).collect()
    }

    /// Whether a value is a rounded result, or consists of rounded results.
    fn is_computed(&self, value: ValueId) -> bool {
        self.rounded.contains_key(&value) || self.widened.contains_key(&value)
    }

    fn moves_computed(&self, op: &Op, inputs: &[ValueId]) -> bool {
        match op {
            Op::Concat { .. } => inputs.iter().all(|&part| self.is_computed(part)),
            _ => self.is_computed(inputs[0]),
        }
    }
}

/// Whether the type in which a node of the model computes is part of what it means: conversions, and quantization, whose
/// division has the precision of the scale.
fn is_defined_by_rounding(graph: &Graph, origin: OriginId) -> bool {
    let defined = |name: &str| matches!(name, "Cast" | "CastLike" | "QuantizeLinear");
    graph.origins.get(origin).is_some_and(|origin| defined(&origin.op_type))
}

/// `x / y` by the reciprocals of `y`.
fn quotient(b: &mut Builder, x: ValueId, y: ValueId) -> Result<ValueId> {
    let reciprocal = b.unary(UnaryFn::Recip, y)?;
    b.binary(BinaryFn::Mul, x, reciprocal)
}

/// Whether elements of `y` belong to several ones of `x` each, or are constants.
fn is_repeated(b: &Builder, y: ValueId, x: ValueId) -> bool {
    let (y_shape, x_shape) = (b.shape(y), b.shape(x));
    let leading = x_shape.len().saturating_sub(y_shape.len());
    let repeats = |(y, x): (&Dim, &Dim)| *y == Dim::ONE && *x != Dim::ONE;
    b.graph.is_constant(y)
        || x_shape[..leading].iter().any(|dim| *dim != Dim::ONE)
        || y_shape.iter().zip(&x_shape[leading..]).any(repeats)
}

/// Whether an operation only moves elements of its operands.
fn moves(op: &Op) -> bool {
    op.is_view() || matches!(op, Op::Pad { .. } | Op::Concat { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PackPolicy, dce};
    use onnxc_ir::graph::{Origin, Tensor, TensorType};
    use onnxc_ir::interp;
    use onnxc_ir::scalar::ReduceFn;
    use onnxc_ops::softmax::softmax_along;

    /// The elements of a value of 3 x 4 in another order.
    fn turned(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
        let shape = b.shape(x).to_vec();
        b.transpose(x, &[1, 0]).and_then(|x| b.reshape(x, shape))
    }

    /// Ten nodes of the model on values of 3 x 4, each with one operation that rounds.
    fn drawn(random: &mut fastrand::Rng, dtype: DType) -> Graph {
        let mut graph = Graph::default();
        let shape = || vec![Dim::from(3usize), Dim::from(4usize)];
        let x =
            Builder::new(&mut graph, OriginId::from_u32(0)).input("x", TensorType::new(dtype, shape()), None);
        let mut values = vec![x];
        for index in 0..10 {
            let name = format!("n{index}");
            let origin = graph.origins.push(Origin::new(name, "Node", index));
            let mut b = Builder::new(&mut graph, origin);
            let [x, y] = [(); 2].map(|()| values[random.usize(..values.len())]);
            let function = [BinaryFn::Add, BinaryFn::Mul, BinaryFn::Sub, BinaryFn::Max][random.usize(..4)];
            let value = match random.usize(..7) {
                0 => b.unary(UnaryFn::Neg, x),
                1 => turned(&mut b, x),
                // As of a convolution, which moves its channels behind its sums.
                3 => b.binary(BinaryFn::Mul, x, y).and_then(|product| turned(&mut b, product)),
                2 => b.reduce(ReduceFn::Max, x, &[1]).and_then(|max| b.binary(BinaryFn::Sub, y, max)),
                _ => b.binary(function, x, y),
            };
            values.push(value.unwrap());
        }
        for at in [4, 7, 10] {
            graph.outputs.push((format!("y{at}"), values[at]));
        }
        graph
    }

    /// With `exact` every bit is as before.
    #[test]
    fn exact_results_are_rounded_as_before() {
        let mut random = fastrand::Rng::with_seed(5);
        for seed in 0..200 {
            let dtype = if seed % 2 == 0 { DType::F16 } else { DType::BF16 };
            let before = drawn(&mut random, dtype);
            let numbers: Vec<f32> = (0..12).map(|_| random.f32() * 4.0 - 2.0).collect();
            let x = interp::cast(&Tensor::from_slice(&[3, 4], &numbers), dtype, true);
            let mut after = before.clone();
            let options = Options { exact: true, ..Options::default() };
            run(&mut after, &options).unwrap();
            dce::run(&mut after, &options).unwrap();
            let computed = |node: &NodeId| match &after.nodes[*node].op {
                Op::Map(MapFn::Binary(_)) => is_half(after.ty(after.nodes[*node].outputs[0]).dtype),
                _ => false,
            };
            assert!(!after.order.iter().any(computed), "{after}");
            let run = |graph: &Graph| interp::run(graph, std::slice::from_ref(&x)).unwrap();
            for (wanted, found) in run(&before).iter().zip(run(&after)) {
                assert_eq!(wanted.data, found.data, "{before}\n{after}");
            }
        }
    }

    /// Of a softmax and of rows by their scales; with `exact` they are divisions, and so are those of elements by elements.
    #[test]
    fn quotients_by_few_divisors_are_products() {
        let mut graph = Graph::default();
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let ty = |columns: i64| TensorType::new(DType::F16, vec![Dim::from(4i64), Dim::from(columns)]);
        let inputs = [("x", 8), ("scale", 1), ("y", 8)];
        let [x, scale, y] = inputs.map(|(name, columns)| b.input(name, ty(columns), None));
        let weights = softmax_along(&mut b, x, 1).unwrap();
        let scaled = b.binary(BinaryFn::Div, weights, scale).unwrap();
        let thirds = b.binary_scalar(BinaryFn::Div, scaled, 3.0).unwrap();
        let result = b.binary(BinaryFn::Div, thirds, y).unwrap();
        graph.outputs = vec![("weights".into(), weights), ("result".into(), result)];
        let mut random = fastrand::Rng::with_seed(7);
        let inputs = inputs.map(|(_, columns)| {
            let numbers: Vec<f32> = (0..4 * columns).map(|_| random.f32() * 4.0 + 0.5).collect();
            interp::cast(&Tensor::from_slice(&[4, columns as usize], &numbers), DType::F16, true)
        });
        let wanted = interp::run(&graph, &inputs).unwrap();
        for (exact, divisions) in [(false, 1), (true, 4)] {
            let mut after = graph.clone();
            run(&mut after, &Options { exact, ..Options::default() }).unwrap();
            dce::run(&mut after, &Options::default()).unwrap();
            let is_division =
                |node: &&NodeId| after.nodes[**node].op == Op::Map(MapFn::Binary(BinaryFn::Div));
            assert_eq!(after.order.iter().filter(is_division).count(), divisions, "{after}");
            for (wanted, found) in wanted.iter().zip(interp::run(&after, &inputs).unwrap()) {
                // What the graph rounds on the way, each by half a unit of 11 bits.
                let allowed = 3.0 / 2048.0;
                for (wanted, found) in wanted.to_f64s().unwrap().iter().zip(found.to_f64s().unwrap()) {
                    assert!((found - wanted).abs() <= allowed * wanted, "{found} for {wanted}\n{after}");
                }
            }
        }
    }

    /// Those of a large value that is kept in 16 bits: as the model says with or without `exact`.
    #[test]
    fn windows_of_kept_values_are_rounded_as_before() {
        let mut graph = Graph::default();
        let shape = [1i64, 4, 4, 3].map(Dim::from).to_vec();
        let mut b = Builder::new(&mut graph, OriginId::from_u32(0));
        let x = b.input("x", TensorType::new(DType::F16, shape), None);
        let y = b.unary(UnaryFn::Exp, x).unwrap();
        let fill = b.scalar(DType::F16, 0.0);
        let one = || vec![Dim::ZERO, Dim::ONE, Dim::ONE, Dim::ZERO];
        let padded = b.emit1(Op::Pad { lo: one(), hi: one() }, &[y, fill]).unwrap();
        let (kernel, strides, dilations) = (vec![3; 2], vec![2; 2], vec![1; 2]);
        let windows = b.emit1(Op::Window { first: 1, kernel, strides, dilations }, &[padded]).unwrap();
        let most = b.reduce(ReduceFn::Max, windows, &[3, 4]).unwrap();
        let wide = b.cast(windows, DType::F32).unwrap();
        let sum = b.reduce(ReduceFn::Sum, wide, &[3, 4]).unwrap();
        graph.outputs = vec![("most".into(), most), ("sum".into(), sum)];
        let x: Vec<f32> = (0..48).map(|i| i as f32 * 0.173 - 4.0).collect();
        let x = interp::cast(&Tensor::from_slice(&[1, 4, 4, 3], &x), DType::F16, true);
        let wanted = interp::run(&graph, std::slice::from_ref(&x)).unwrap();
        for exact in [false, true] {
            let mut after = graph.clone();
            let pack = PackPolicy { kept_above: 4 * 6 * 6 * 3 - 1, ..PackPolicy::WIDE };
            let options = Options { exact, pack, ..Options::default() };
            run(&mut after, &options).unwrap();
            dce::run(&mut after, &options).unwrap();
            let pads = after.order.iter().map(|&node| &after.nodes[node]);
            let pads = pads.filter(|node| matches!(node.op, Op::Pad { .. }));
            assert!(pads.clone().count() > 0);
            assert!(pads.clone().all(|pad| after.ty(pad.outputs[0]).dtype == DType::F16), "{after}");
            let found = interp::run(&after, std::slice::from_ref(&x)).unwrap();
            for (wanted, found) in wanted.iter().zip(found) {
                assert_eq!(wanted.data, found.data, "exact: {exact}\n{after}");
            }
        }
    }

    /// Without, what overflows in 16 bits on the way does not.
    #[test]
    fn sums_beyond_the_type_are_finite() {
        let mut graph = Graph::default();
        let [sum, half] =
            ["sum", "half"].map(|name| Origin::new(name, "Node", 0)).map(|origin| graph.origins.push(origin));
        let mut b = Builder::new(&mut graph, sum);
        let x = b.input("x", TensorType::new(DType::F16, vec![Dim::ONE]), None);
        let twice = b.binary(BinaryFn::Add, x, x).unwrap();
        let mut b = Builder::new(&mut graph, half);
        let y = b.binary_scalar(BinaryFn::Mul, twice, 0.5).unwrap();
        graph.outputs = vec![("y".into(), y)];
        let x = interp::cast(&Tensor::from_slice(&[1], &[60000f32]), DType::F16, true);
        for (exact, wanted) in [(true, f64::INFINITY), (false, 60000.0)] {
            let mut after = graph.clone();
            run(&mut after, &Options { exact, ..Options::default() }).unwrap();
            let found = interp::run(&after, std::slice::from_ref(&x)).unwrap();
            assert_eq!(found[0].to_f64s().unwrap(), [wanted], "exact: {exact}");
        }
    }
}
