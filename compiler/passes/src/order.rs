//! Orders the rows of constant panels of bytes, where kernels add up products of bytes by several instructions each.
//!
//! Of four products of a byte of u8 with one of i8, two have a sum that fits 16 bits, for any byte of u8, where the
//! positive ones of the two weights have a sum of at most 128, and so have the negative ones (255 * 128 < 2^15). The sums of both
//! pairs are then one instruction (`vpmaddubsw`), which otherwise would saturate: without it, bytes are widened to 16 bits first. It
//! is enough that one of the columns of a panel's row has a greater sum. Such rows are many where weights are scaled by channel,
//! so each panel has its rows in an order of its own, which the kernel reads: those with short sums first, the same number in all panels.
//!
//! Kernels with products of bytes by an instruction each, and tiles, read rows as they come. Where an object has such kernels too, the rows
//! stay, and the others read them by the order.

use std::collections::HashMap;

use crate::Options;
use crate::rewrite::{bodies, rewrite};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, Node, NodeId, Op, RhsLayout, Tensor, ValueId};
use onnxc_ir::interp;

/// Largest sum of the weights of one sign of a pair: products with 255 fit 16 bits.
const MOST: i32 = i16::MAX as i32 / u8::MAX as i32;

/// Rows with short sums are counted in these: the inner loop writes out some steps.
const STEPS: usize = 4;

/// The least share of rows with short sums for which an order is worth reading.
const LEAST_SHARE: usize = 4;

/// Panels of the least number of rows with short sums, with their order where they have one.
#[derive(Clone)]
struct Ordered {
    panels: ValueId,
    order: Option<ValueId>,
    short: usize,
}

pub(crate) fn run(graph: &mut Graph, options: &Options) -> Result<()> {
    let (moves, stays) = (options.pack.short_sums, options.pack.short_sums_in_place);
    if !moves && !stays {
        return Ok(());
    }
    let mut done = HashMap::new();
    rewrite(graph, |b, id| contraction(b, id, !moves, &mut done))?;
    bodies(graph, options, run)
}

fn contraction(
    b: &mut Builder,
    id: NodeId,
    stays: bool,
    done: &mut HashMap<ValueId, Option<Ordered>>,
) -> Result<Option<ValueId>> {
    let Node {
        op: Op::Contract { batch, m, k, rhs: RhsLayout::Panels { nr, depth: DOT_DEPTH, n } },
        inputs,
        ..
    } = &b.graph.nodes[id]
    else {
        return Ok(None);
    };
    let (batch, m, k, nr, n, lhs, panels) = (*batch, *m, *k, *nr, n.clone(), inputs[0], inputs[1]);
    if b.dtype(lhs) != DType::U8 || !b.graph.is_constant(panels) {
        return Ok(None);
    }
    let ordered = match done.get(&panels) {
        Some(known) => known.clone(),
        None => {
            let ordered = ordered(b, panels, stays)?;
            done.insert(panels, ordered.clone());
            ordered
        }
    };
    let Some(Ordered { panels, order, short }) = ordered else { return Ok(None) };
    let stays = stays && order.is_some();
    let operands: Vec<ValueId> = [lhs, panels].into_iter().chain(order).collect();
    b.emit1(Op::Contract { batch, m, k, rhs: RhsLayout::Ordered { nr, n, short, stays } }, &operands)
        .map(Some)
}

/// `stays`: the rows do, and have an order all the same.
fn ordered(b: &mut Builder, panels: ValueId, stays: bool) -> Result<Option<Ordered>> {
    // The order follows from the values.
    if b.graph.is_apart(panels) {
        return Ok(None);
    }
    let tensor = interp::constant(b.graph, panels)?;
    let (&[.., rows, width], true) = (&tensor.shape[..], tensor.dtype == DType::I8) else { return Ok(None) };
    if rows == 0 || width == 0 || tensor.data.is_empty() || rows > usize::from(u16::MAX) {
        return Ok(None);
    }
    let short: Vec<bool> = tensor.data.chunks_exact(width).map(has_short_sums).collect();
    let least = short.chunks_exact(rows).map(|rows| rows.iter().filter(|short| **short).count()).min();
    let least = least.unwrap_or(0);
    if least == rows {
        return Ok(Some(Ordered { panels, order: None, short: rows }));
    }
    let least = least - least % STEPS;
    if least * LEAST_SHARE < rows {
        return Ok(None);
    }
    let places = short.chunks_exact(rows).flat_map(|short| places(short, least));
    let data: Vec<u8> = places.flat_map(|place| (place as u16).to_ne_bytes()).collect();
    let lead = &tensor.shape[..tensor.shape.len() - 1];
    let order = b.constant(Tensor::new(DType::U16, lead.to_vec(), data.into()));
    if stays {
        return Ok(Some(Ordered { panels, order: Some(order), short: least }));
    }
    let index = b.cast(order, DType::I64)?;
    let mut shape = b.shape(index);
    let batch = shape.len() - 1;
    shape.push(Dim::ONE);
    let index = b.reshape(index, shape)?;
    let panels = b.emit1(Op::GatherNd { batch }, &[panels, index])?;
    Ok(Some(Ordered { panels, order: Some(order), short: least }))
}

/// Whether this holds for all columns of a row of a panel.
fn has_short_sums(row: &[u8]) -> bool {
    row.as_chunks::<2>().0.iter().all(|pair| {
        let [a, b] = pair.map(|weight| i32::from(weight as i8));
        a.max(0) + b.max(0) <= MOST && a.min(0) + b.min(0) >= -MOST
    })
}

/// The first `least` rows that have short sums, then all others.
fn places(short: &[bool], least: usize) -> Vec<usize> {
    let mut left = least;
    let (mut first, others): (Vec<usize>, Vec<usize>) = (0..short.len()).partition(|&row| {
        let taken = short[row] && left > 0;
        left -= usize::from(taken);
        taken
    });
    first.extend(others);
    first
}
