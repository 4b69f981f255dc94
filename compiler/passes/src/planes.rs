//! Windows of images with few channels, read from the planes that the images come in.
//!
//! Convolutions take the channels innermost, for which an image that comes in planes, as photographs do, is transposed element
//! by element. Of few channels the planes serve as well: a kernel broadcasts single elements of its left-hand side, and rows of
//! planes are padded and converted in vectors. The sums of floats take their terms channel by channel, so they round differently.

use crate::rewrite::{bodies, joined, producer, rewrite};
use crate::{Options, dce, products};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Graph, Node, NodeId, Op, RhsLayout, ValueId, inverse};

/// Most channels of an image that is read in planes: each has its own rows in the first-level cache.
const FEW: i64 = 4;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    // Pairs of bf16 are of neighbouring channels.
    let pairs = options.pack.bf16_pairs;
    rewrite(graph, |b, id| of_floats(b, id, pairs))?;
    dce::sweep(graph);
    bodies(graph, options, run)
}

/// A product of floats whose image comes in planes, with constant weights.
fn of_floats(b: &mut Builder, id: NodeId, pairs: bool) -> Result<Option<ValueId>> {
    let Node { op: Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, inputs, .. } = &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, lhs, rhs) = (*batch, *m, *k, inputs[0], inputs[1]);
    if !b.dtype(lhs).is_float() || !b.graph.is_constant(rhs) || pairs && products::is_rounded(b.graph, lhs) {
        return Ok(None);
    }
    let Some(windows) = Windows::of(b.graph, lhs, [batch, m, k], FEW) else { return Ok(None) };
    if !comes_as(b.graph, windows.image, &windows.to_planes()) {
        return Ok(None);
    }
    let (lhs, rhs) = windows.of_planes(b, rhs)?;
    b.emit1(Op::Contract { batch, m, k, rhs: RhsLayout::Plain }, &[lhs, rhs]).map(Some)
}

/// The windows `[lead.., out.., kernel.., c]` of an image `[lead.., spatial.., c]`, all of whose inner axes a product sums over.
pub(crate) struct Windows {
    image: ValueId,
    first: usize,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
}

impl Windows {
    /// Of an image with at most `most` channels, as the left-hand side of a product.
    pub(crate) fn of(graph: &Graph, lhs: ValueId, [batch, m, k]: [usize; 3], most: i64) -> Option<Windows> {
        let Node { op: Op::Window { first, kernel, strides, dilations }, inputs, .. } = producer(graph, lhs)?
        else {
            return None;
        };
        let (image, spatial) = (inputs[0], kernel.len());
        let channels = graph.ty(image).shape.last()?.as_const()?;
        let whole = batch == 0 && k == spatial + 1 && m == first + spatial && channels <= most;
        let (kernel, strides, dilations) = (kernel.clone(), strides.clone(), dilations.clone());
        whole.then_some(Windows { image, first: *first, kernel, strides, dilations })
    }

    /// Whether the elements along the last axis of a window are neighbours in a plane.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.dilations.last() == Some(&1)
    }

    /// `[lead.., spatial.., c]` to `[lead.., c, spatial..]`
    fn to_planes(&self) -> Vec<usize> {
        let channels = self.first + self.kernel.len();
        (0..self.first).chain([channels]).chain(self.first..channels).collect()
    }

    /// The same product of windows `[lead.., out.., c, kernel..]`, and of weights `[kernel.., c, n]` as `[c, kernel.., n]`.
    pub(crate) fn of_planes(self, b: &mut Builder, weights: ValueId) -> Result<(ValueId, ValueId)> {
        let (first, spatial) = (self.first, self.kernel.len());
        let planes = turned(b, self.image, &self.to_planes())?;
        let Windows { kernel, strides, dilations, .. } = self;
        let windows = b.emit1(Op::Window { first: first + 1, kernel, strides, dilations }, &[planes])?;
        // From [lead.., c, out.., kernel..].
        let (out, inner) = (first + 1..first + 1 + spatial, first + 1 + spatial..first + 1 + 2 * spatial);
        let perm: Vec<usize> = (0..first).chain(out).chain([first]).chain(inner).collect();
        let windows = b.transpose(windows, &perm)?;
        let perm: Vec<usize> = [spatial].into_iter().chain(0..spatial).chain([spatial + 1]).collect();
        Ok((windows, b.transpose(weights, &perm)?))
    }
}

/// Whether an operation can follow a transposition that follows it: it is of one tensor, and of scalars beside it.
fn commutes(graph: &Graph, node: &Node) -> bool {
    match &node.op {
        Op::Pad { .. } => true,
        Op::Map(_) => node.inputs[1..].iter().all(|&input| graph.ty(input).rank() == 0),
        _ => false,
    }
}

/// Whether a transposition of `value` is undone by one that made it.
fn comes_as(graph: &Graph, value: ValueId, perm: &[usize]) -> bool {
    match producer(graph, value) {
        Some(Node { op: Op::Transpose { perm: own }, .. }) => *own == inverse(perm),
        Some(node) if commutes(graph, node) => comes_as(graph, node.inputs[0], perm),
        _ => false,
    }
}

/// A transposition, in front of paddings and joined with another one; in front of maps, too, where that one undoes it.
fn turned(b: &mut Builder, value: ValueId, perm: &[usize]) -> Result<ValueId> {
    let Some(node) = producer(b.graph, value).cloned() else { return b.transpose(value, perm) };
    let undone = commutes(b.graph, &node) && comes_as(b.graph, node.inputs[0], perm);
    let Node { op, mut inputs, .. } = node;
    match op {
        Op::Pad { lo, hi } => {
            let inner = turned(b, inputs[0], perm)?;
            let along = |sizes: &[Dim]| perm.iter().map(|&axis| sizes[axis].clone()).collect();
            b.pad(inner, inputs[1], along(&lo), along(&hi))
        }
        Op::Transpose { perm: own } => b.transpose(inputs[0], &joined(&own, perm)),
        op if undone => {
            inputs[0] = turned(b, inputs[0], perm)?;
            b.emit1(op, &inputs)
        }
        _ => b.transpose(value, perm),
    }
}
