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

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;

use crate::Options;
use crate::rewrite::{bodies, rewrite};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::panels::rows_of;
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
    let mut found = short_sums(graph)?;
    let mut done = HashMap::new();
    rewrite(graph, |b, id| contraction(b, id, !moves, &mut found, &mut done))?;
    bodies(graph, options, run)
}

/// The rows with short sums of all panels: what takes time is to evaluate these, several at a time.
fn short_sums(graph: &Graph) -> Result<HashMap<ValueId, Option<Short>>> {
    let all: BTreeSet<ValueId> = graph.order.iter().filter_map(|&id| panels(graph, id)).collect();
    let all: Vec<ValueId> = all.into_iter().collect();
    let bytes = |value: &ValueId| graph.ty(*value).bytes().as_const().map_or(u64::MAX, |bytes| bytes as u64);
    let mut found = HashMap::new();
    for batch in interp::side_by_side(&all, bytes) {
        let short: Vec<Result<Option<Short>>> =
            batch.par_iter().map(|&panels| Short::of(graph, panels)).collect();
        for (&panels, short) in batch.iter().zip(short) {
            found.insert(panels, short?);
        }
    }
    Ok(found)
}

/// The constant panels that a contraction multiplies bytes of u8 with.
fn panels(graph: &Graph, id: NodeId) -> Option<ValueId> {
    let Node { op: Op::Contract { rhs: RhsLayout::Panels { depth: DOT_DEPTH, .. }, .. }, inputs, .. } =
        &graph.nodes[id]
    else {
        return None;
    };
    let (lhs, panels) = (inputs[0], inputs[1]);
    // An order follows from the values.
    let is_known = graph.is_constant(panels) && !graph.is_apart(panels);
    (graph.ty(lhs).dtype == DType::U8 && is_known).then_some(panels)
}

fn contraction(
    b: &mut Builder,
    id: NodeId,
    stays: bool,
    found: &mut HashMap<ValueId, Option<Short>>,
    done: &mut HashMap<ValueId, Option<Ordered>>,
) -> Result<Option<ValueId>> {
    let (Some(panels), Op::Contract { batch, m, k, rhs: RhsLayout::Panels { nr, n, .. } }) =
        (panels(b.graph, id), &b.graph.nodes[id].op)
    else {
        return Ok(None);
    };
    let (batch, m, k, nr, n, lhs) = (*batch, *m, *k, *nr, n.clone(), b.graph.nodes[id].inputs[0]);
    let ordered = match (done.get(&panels), found.remove(&panels).flatten()) {
        (Some(known), _) => known.clone(),
        (None, short) => {
            let ordered = short.map(|short| ordered(b, panels, stays, short)).transpose()?;
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

/// Rows with short sums of some panels.
struct Short {
    /// Whether each row has them, panel by panel.
    rows: Vec<bool>,
    /// Rows of a panel.
    panel: usize,
    /// Those that come first in every panel.
    least: usize,
    /// The shape of the panels but for their columns.
    lead: Vec<usize>,
}

impl Short {
    /// Those that an order is worth reading for.
    fn of(graph: &Graph, panels: ValueId) -> Result<Option<Short>> {
        let tensor = interp::constant(graph, panels)?;
        let lead = rows_of(&tensor.shape);
        let (Some(&width), Some(&panel), DType::I8) = (tensor.shape.last(), lead.last(), tensor.dtype) else {
            return Ok(None);
        };
        if panel == 0 || width == 0 || tensor.data.is_empty() || panel > usize::from(u16::MAX) {
            return Ok(None);
        }
        let rows: Vec<bool> = tensor.data.chunks_exact(width).map(has_short_sums).collect();
        let least = rows.chunks_exact(panel).map(|rows| rows.iter().filter(|short| **short).count()).min();
        let least = least.filter(|least| *least < panel).map_or(panel, |least| least - least % STEPS);
        let worth = least * LEAST_SHARE >= panel;
        Ok(worth.then(|| Short { rows, panel, least, lead: lead.to_vec() }))
    }
}

/// `stays`: the rows do, and have an order all the same.
fn ordered(b: &mut Builder, panels: ValueId, stays: bool, short: Short) -> Result<Ordered> {
    let Short { rows, panel, least, lead } = short;
    if least == panel {
        return Ok(Ordered { panels, order: None, short: panel });
    }
    let places = rows.chunks_exact(panel).flat_map(|short| places(short, least));
    let data: Vec<u8> = places.flat_map(|place| (place as u16).to_ne_bytes()).collect();
    let order = b.constant(Tensor::new(DType::U16, lead, data.into()));
    if stays {
        return Ok(Ordered { panels, order: Some(order), short: least });
    }
    let index = b.cast(order, DType::I64)?;
    let mut shape = b.shape(index);
    let batch = shape.len() - 1;
    shape.push(Dim::ONE);
    let index = b.reshape(index, shape)?;
    let panels = b.emit1(Op::GatherNd { batch }, &[panels, index])?;
    Ok(Ordered { panels, order: Some(order), short: least })
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
