//! Convolutions with 3x3 kernels by Winograd's minimal filtering, where that is faster.
//!
//! A window of 3x3 with stride 1, contracted with constant weights, becomes a transform of the input in squares, one
//! product for each element of a square, batched, and a transform of the results; the weights are transformed when
//! the object is written. The sums round differently: with tiles of 4 the error is about twice that of the
//! direct sum.

use crate::error::Result;
use crate::graph::dim::product;
use crate::graph::{Builder, DType, Dim, Graph, Node, NodeId, Op, RhsLayout, Tensor, ValueId};
use crate::pass::rewrite::{bodies, producer, rewrite};
use crate::pass::{Options, dce};
use crate::tuning::Goal;
use crate::winograd::{KERNEL, matrices, tiles};

pub fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    // Transformed weights are 1.8 to 4 times as large.
    if options.exact || options.goal == Goal::Size {
        return Ok(());
    }
    rewrite(graph, |b, id| {
        let Some(conv) = Conv::of(b.graph, id) else { return Ok(None) };
        let best = tiles().map(|tile| (conv.cost(tile), tile)).min_by(|a, b| a.0.total_cmp(&b.0));
        match best {
            Some((cost, tile)) if cost < WORTH * conv.direct_cost() => conv.transformed(b, tile).map(Some),
            _ => Ok(None),
        }
    })?;
    dce::sweep(graph);
    bodies(graph, options, run)
}

/// What the transformed form may cost of the direct one: the estimate is not that good.
const WORTH: f64 = 0.9;

// The costs of a convolution, counted in fused multiply-adds of a core. Measured on cores with 256-bit vectors; what
// matters is their relation, which is much the same on others.

/// Of a byte that goes through the second-level cache, or the third.
const CACHED_BYTE: f64 = 1.5;
/// Of a byte of weights, which come from memory.
const MEMORY_BYTE: f64 = 3.5;
/// Of storing a result, in steps of its inner sum.
const STORE_STEPS: f64 = 7.0;

/// A convolution that could be transformed.
struct Conv {
    x: ValueId,
    weights: ValueId,
    images: usize,
    /// Of the result.
    height: usize,
    width: usize,
    channels: usize,
    filters: usize,
}

impl Conv {
    fn of(graph: &Graph, id: NodeId) -> Option<Conv> {
        let Node {
            op: Op::Contract { batch: 0, m: 3, k: 3, rhs: RhsLayout::Plain }, inputs, outputs, ..
        } = &graph.nodes[id]
        else {
            return None;
        };
        let window = producer(graph, inputs[0])?;
        let Op::Window { first: 1, kernel, strides, dilations } = &window.op else { return None };
        let simple = kernel[..] == [KERNEL; 2] && strides[..] == [1; 2] && dilations[..] == [1; 2];
        let f32 = graph.ty(outputs[0]).dtype == DType::F32;
        if !simple || !f32 || !graph.is_constant(inputs[1]) {
            return None;
        }
        let shape = graph.ty(outputs[0]).static_shape()?;
        let channels = graph.ty(window.inputs[0]).shape[3].as_const()?;
        let [images, height, width, filters] = shape[..] else { return None };
        let channels = usize::try_from(channels).ok()?;
        let parts = [images, height, width, channels, filters];
        // The product of all parts, with room for the squares and bytes, is a number that can be counted with.
        let size = parts.iter().try_fold(256usize, |size, &part| size.checked_mul(part))?;
        (size > 0 && size < 1 << 50).then_some(Conv {
            x: window.inputs[0],
            weights: inputs[1],
            images,
            height,
            width,
            channels,
            filters,
        })
    }

    /// Of products over `rows` rows, or of the weights they read: one hides the other.
    fn products(&self, count: f64, rows: f64, inner: f64) -> f64 {
        let filters = self.filters as f64;
        let steps = count * rows * filters * (inner + STORE_STEPS);
        steps.max(MEMORY_BYTE * 4.0 * count * inner * filters)
    }

    fn direct_cost(&self) -> f64 {
        let rows = (self.images * self.height * self.width) as f64;
        self.products(1.0, rows, (KERNEL * KERNEL * self.channels) as f64)
    }

    fn cost(&self, tile: usize) -> f64 {
        let (th, tw) = (self.height.div_ceil(tile), self.width.div_ceil(tile));
        let squares = ((tile + KERNEL - 1) * (tile + KERNEL - 1)) as f64;
        let count = (self.images * th * tw) as f64;
        let moved = 2.0 * squares * count * (self.channels + self.filters) as f64;
        self.products(squares, count, self.channels as f64) + CACHED_BYTE * 4.0 * moved
    }

    fn transformed(&self, b: &mut Builder<'_>, tile: usize) -> Result<ValueId> {
        let (th, tw) = (self.height.div_ceil(tile), self.width.div_ceil(tile));
        let x = self.whole_tiles(b, [th * tile, tw * tile])?;
        let input = b.emit1(Op::WinogradInput { tile }, &[x])?;
        let input = b.transpose(input, &[3, 0, 1, 2, 4])?;
        let weights = self.filters(b, tile)?;
        let op = Op::Contract { batch: 1, m: 3, k: 1, rhs: RhsLayout::Plain };
        let products = b.emit1(op, &[input, weights])?;
        b.emit1(Op::WinogradOutput { tile, height: self.height, width: self.width }, &[products])
    }

    /// The padded input with zeros behind it, as far as the tiles reach that the result is cut from.
    fn whole_tiles(&self, b: &mut Builder<'_>, results: [usize; 2]) -> Result<ValueId> {
        let more: Vec<Dim> = results
            .iter()
            .zip(&b.ty(self.x).shape[1..3])
            .map(|(&results, have)| Dim::from(results + KERNEL - 1) - have.clone())
            .collect();
        if more.iter().all(|dim| *dim == Dim::ZERO) {
            return Ok(self.x);
        }
        let mut hi = vec![Dim::ZERO, more[0].clone(), more[1].clone(), Dim::ZERO];
        let mut lo = vec![Dim::ZERO; 4];
        let mut x = self.x;
        let mut fill = b.scalar(DType::F32, 0.0);
        if let Some(Node { op: Op::Pad { lo: before, hi: after }, inputs, .. }) = producer(b.graph, x)
            && b.graph.constant_data(inputs[1]).is_some_and(|fill| fill.data.iter().all(|&byte| byte == 0))
        {
            lo = before.clone();
            hi = hi.into_iter().zip(after).map(|(more, after)| more + after.clone()).collect();
            (x, fill) = (inputs[0], inputs[1]);
        }
        b.emit1(Op::Pad { lo, hi }, &[x, fill])
    }

    /// `G g G^T` of every kernel: `[3, 3, c, f] -> [(tile+2)^2, c, f]`, computed in f64 and rounded once.
    fn filters(&self, b: &mut Builder<'_>, tile: usize) -> Result<ValueId> {
        let filter = matrices(tile).map(|matrices| matrices.filter).unwrap_or_default();
        let mut squared = Vec::new();
        for left in &filter {
            for right in &filter {
                squared.extend(left.iter().flat_map(|a| right.iter().map(move |b| a * b)));
            }
        }
        let squares = filter.len() * filter.len();
        let taps = Dim::from(KERNEL * KERNEL);
        let matrix = b.constant(Tensor::from_slice(&[squares, KERNEL * KERNEL], &squared));
        let shape = b.shape(self.weights);
        let weights = b.cast(self.weights, DType::F64)?;
        let weights = b.reshape(weights, vec![taps, product(&shape[2..])])?;
        let op = Op::Contract { batch: 0, m: 1, k: 1, rhs: RhsLayout::Plain };
        let filters = b.emit1(op, &[matrix, weights])?;
        let filters = b.cast(filters, DType::F32)?;
        b.reshape(filters, vec![Dim::from(squares), shape[2].clone(), shape[3].clone()])
    }
}
