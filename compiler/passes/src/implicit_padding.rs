//! Zeros around the images of dilated convolutions that are never stored.
//!
//! A window with wide gaps between its taps reaches far over the border: images of 16 x 16 with gaps of 36 would be copied into borders of
//! 88 x 88, mostly zeros that are multiplied with weights in vain. The kernels of such contractions compute the positions
//! whose taps read the image alike in tiles of their own, and leave out the taps that do not. Then no zero is read, and there is no need
//! to have any. With narrow gaps the tiles would be small, and most taps read the image.

use crate::Options;
use crate::rewrite::{bodies, operation, rewrite};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::taps::PaddedWindows;
use onnxc_ir::graph::{DType, Dim, Graph, Node, NodeId, Op, RhsLayout, ValueId};

/// The least gap: about half of the rows of a tile.
const LEAST_DILATION: usize = 6;

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    rewrite(graph, unpadded)?;
    bodies(graph, options, run)
}

/// The contraction over windows of an image whose padding has no memory.
fn unpadded(b: &mut Builder, id: NodeId) -> Result<Option<ValueId>> {
    let Node { op, inputs, .. } = &b.graph.nodes[id];
    let (Op::Contract { batch, m, rhs: RhsLayout::Panels { depth: 1, .. }, .. }, &[windows, rhs]) =
        (op, &inputs[..])
    else {
        return Ok(None);
    };
    let (op, rows) = (op.clone(), batch + m);
    let floats = [windows, rhs].iter().all(|&value| b.dtype(value) == DType::F32);
    let Some(padded) = PaddedWindows::of(b.graph, windows).filter(|_| floats) else { return Ok(None) };
    let leaves_out = !padded.is_implicit && is_left_out(b.graph, &padded, rows);
    if !leaves_out || !b.graph.is_finite(rhs) {
        return Ok(None);
    }
    let (image, padding) = (padded.image, Op::ImplicitPad { lo: padded.lo.to_vec(), hi: padded.hi.to_vec() });
    let Some(window) = operation(b.graph, windows).map(|(op, _)| op.clone()) else { return Ok(None) };
    let padded = b.emit1(padding, &[image])?;
    let windows = b.emit1(window, &[padded])?;
    b.emit1(op, &[windows, rhs]).map(Some)
}

/// Whether a contraction can leave out all zeros, and with large tiles: those along windows with wide gaps. `rows` is the number of axes
/// of its rows.
fn is_left_out(graph: &Graph, padded: &PaddedWindows, rows: usize) -> bool {
    // The innermost loop is that over the channels.
    let channels = padded.lo.len().checked_sub(rows + 1).and_then(|_| graph.ty(padded.image).shape.last());
    if padded.taps.last().is_none_or(|last| last.axis + 1 != rows)
        || channels.is_none_or(|count| *count == Dim::ONE)
    {
        return false;
    }
    let is_padded = |axis: usize| (&padded.lo[axis], &padded.hi[axis]) != (&Dim::ZERO, &Dim::ZERO);
    let has_wide_taps = |axis: usize| {
        let own = padded.taps.iter().find(|taps| taps.axis == axis);
        own.is_some_and(|taps| taps.kernel > 1 && taps.dilation >= LEAST_DILATION && taps.breaks().is_some())
    };
    let mut axes = (0..padded.lo.len()).filter(|&axis| is_padded(axis)).peekable();
    axes.peek().is_some() && axes.all(has_wide_taps)
}
