//! Memory that a kernel has to itself while it runs, beside its operands and results.

use crate::rows::KeptRow;
use crate::{Group, GroupKind};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{DType, Dim, Graph, NodeId, Op};

/// Bytes of scratch of a group that is not a chain.
pub(super) fn bytes(graph: &Graph, group: &Group) -> Dim {
    match (group.kind, &graph.nodes[group.anchor].op) {
        (GroupKind::Single, Op::Sort { .. }) => {
            RadixSort::of(graph, group.anchor).map_or(Dim::ZERO, |sort| sort.elements() * Dim::from(8i64))
        }
        (GroupKind::Single, Op::Suppress { .. }) => {
            KeptBoxes::of(graph, group.anchor).elements() * Dim::from(4i64)
        }
        _ => KeptRow::of(graph, group).map_or(Dim::ZERO, |kept| kept.bytes()),
    }
}

/// A sort by counting digits of the keys, where a heap would be slower: where not few of the elements are kept.
///
/// Each part of the rows has room for two lists of a row's elements, i64 each, and for a counter of each value of each
/// digit.
pub struct RadixSort {
    /// Parts that the rows are dealt out to; threads share them.
    pub parts: Dim,
    /// Elements of a row.
    pub extent: Dim,
    /// Whether [`RadixSort::SHARE`] and [`RadixSort::LEAST`] hold for certain; otherwise it depends on the sizes of a run.
    pub certain: bool,
}

impl RadixSort {
    /// Digits of a key of 32 bits, and values of a digit.
    pub const DIGITS: i64 = 4;
    pub const VALUES: i64 = 256;
    /// Elements for each one that is kept, at most.
    pub const SHARE: i64 = 16;
    /// Elements of a row that are worth clearing and summing the counters, at least.
    pub const LEAST: i64 = 512;
    const PARTS: i64 = 8;

    pub fn of(graph: &Graph, node: NodeId) -> Option<RadixSort> {
        let Op::Sort { axis, take, .. } = &graph.nodes[node].op else { return None };
        let ty = graph.ty(graph.nodes[node].inputs[0]);
        if !has_short_keys(ty.dtype) {
            return None;
        }
        let extent = ty.shape[*axis].clone();
        let kept = take.as_const().zip(extent.as_const()).map(|(take, extent)| is_worth(take, extent));
        let short = extent.bounds().1.is_some_and(|most| most < RadixSort::LEAST);
        if short || kept == Some(false) {
            return None;
        }
        let mut rows = ty.shape.clone();
        rows[*axis] = Dim::ONE;
        let parts =
            product(&rows).as_const().map_or(RadixSort::PARTS, |rows| rows.clamp(1, RadixSort::PARTS));
        Some(RadixSort { parts: Dim::from(parts), extent, certain: kept.is_some() })
    }

    /// Elements of the scratch of one part.
    pub fn slot(&self) -> Dim {
        self.extent.clone() * Dim::from(2i64) + Dim::from(RadixSort::DIGITS * RadixSort::VALUES)
    }

    pub fn elements(&self) -> Dim {
        self.parts.clone() * self.slot()
    }
}

fn is_worth(take: i64, extent: i64) -> bool {
    extent >= RadixSort::LEAST && take.saturating_mul(RadixSort::SHARE) >= extent
}

/// Whether the order of a type's values is that of integers of 32 bits.
fn has_short_keys(dtype: DType) -> bool {
    use DType::*;
    matches!(dtype, F32 | F16 | BF16 | I8 | U8 | I16 | U16 | I32 | U32)
}

/// The boxes that a suppression has kept so far, of each row: their least and greatest coordinates along both axes and
/// their areas, each in an array of its own, f32. Boxes of a chunk are near to each other along the first axis; the ends of what
/// each chunk holds follow, four arrays as well.
pub struct KeptBoxes {
    pub rows: Dim,
    /// Chunks of a row: whole groups.
    pub chunks: Dim,
    /// Parts of the first axis; the boxes that begin in one have chunks of their own.
    pub bands: Dim,
}

impl KeptBoxes {
    /// Arrays of a row's boxes.
    pub const ARRAYS: i64 = 5;
    /// Arrays of a row's chunks.
    pub const ENDS: i64 = 4;
    /// Boxes that a candidate is compared with before it is known whether one overlaps it.
    pub const CHUNK: i64 = 16;
    /// Chunks whose ends are compared at once.
    pub const GROUP: i64 = 4;
    /// Most bands, and kept boxes that are worth one.
    pub const BANDS: i64 = 64;
    const BAND: i64 = 64;

    pub fn of(graph: &Graph, node: NodeId) -> KeptBoxes {
        let shape = &graph.ty(graph.nodes[node].outputs[0]).shape;
        let (take, rows) = shape.split_last().expect("picks have an axis");
        let bands = take.ceil_div(&Dim::from(KeptBoxes::BAND)).expect("bands are not empty");
        let bands = bands.min_dim(&Dim::from(KeptBoxes::BANDS));
        // The last chunk of each band may hold a single box.
        let boxes = take.clone() + bands.clone() * Dim::from(KeptBoxes::CHUNK);
        let group = Dim::from(KeptBoxes::GROUP);
        let groups = boxes.ceil_div(&(Dim::from(KeptBoxes::CHUNK) * group.clone()));
        KeptBoxes { rows: product(rows), chunks: groups.expect("groups are not empty") * group, bands }
    }

    /// Elements of each array of boxes.
    pub fn room(&self) -> Dim {
        self.chunks.clone() * Dim::from(KeptBoxes::CHUNK)
    }

    /// Elements of one row.
    pub fn slot(&self) -> Dim {
        self.room() * Dim::from(KeptBoxes::ARRAYS) + self.chunks.clone() * Dim::from(KeptBoxes::ENDS)
    }

    pub fn elements(&self) -> Dim {
        self.rows.clone() * self.slot()
    }
}
