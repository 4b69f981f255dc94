//! Tiles: registers of rows, as matrix extensions of processors have them, and what is done with them.
//!
//! A tile of products of bytes holds rows of bytes or of i32. A `dot` adds to an accumulator `acc[m, n]` the products of `a` and
//! `b`: `acc[i, j] += sum over s of a[i, s] * b[s / 4, 4 * j + s % 4]`, where `a` has rows of a left-hand side and `b` rows of a
//! panel ([`onnxc_ir::graph::DOT_DEPTH`] steps of a column beside each other). Sums wrap. Of bf16 the sums are f32, and
//! [`onnxc_ir::graph::PAIR_DEPTH`] steps of a column are beside each other.

use cranelift_entity::entity_impl;

use crate::{Buf, Index};
use onnxc_ir::graph::{DOT_DEPTH, DType, PAIR_DEPTH};

/// Tiles that a kernel may have.
pub const MAX_TILES: usize = 8;

pub use onnxc_machine::vector::isa::{MAX_ROW_BYTES, MAX_ROWS};

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tile(u32);
entity_impl!(Tile, "t");

/// A tile of `rows` rows with `columns` elements of i32, i8 or u8, or of f32 or bf16.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileDecl {
    pub name: String,
    pub dtype: DType,
    pub rows: usize,
    pub columns: usize,
}

impl TileDecl {
    pub fn row_bytes(&self) -> usize {
        self.columns * self.dtype.size()
    }

    /// Why there is no such tile.
    pub fn fault(&self) -> Option<String> {
        let known = matches!(self.dtype, DType::I32 | DType::I8 | DType::U8 | DType::F32 | DType::BF16);
        let fits = (1..=MAX_ROWS).contains(&self.rows) && (4..=MAX_ROW_BYTES).contains(&self.row_bytes());
        let TileDecl { dtype, rows, columns, .. } = self;
        let whole = self.row_bytes().is_multiple_of(4);
        (!known || !fits || !whole).then(|| format!("a tile of {dtype}[{rows}, {columns}]"))
    }

    /// Steps of a column of `b` that are beside each other, where this holds the sums.
    pub fn depth(&self) -> usize {
        if self.dtype == DType::F32 { PAIR_DEPTH } else { DOT_DEPTH }
    }

    /// Why `self += a * b` is not a supported product.
    pub fn dot_fault(&self, a: &TileDecl, b: &TileDecl) -> Option<String> {
        let bytes = |tile: &TileDecl| matches!(tile.dtype, DType::I8 | DType::U8);
        let types = match self.dtype {
            DType::F32 => [a, b].iter().all(|tile| tile.dtype == DType::BF16),
            sum => sum == DType::I32 && bytes(a) && bytes(b),
        };
        let depth = self.depth();
        let sizes = self.rows == a.rows && a.columns == depth * b.rows && b.columns == depth * self.columns;
        let text = |tile: &TileDecl| format!("{}[{}, {}]", tile.dtype, tile.rows, tile.columns);
        (!types || !sizes).then(|| format!("{} of {} and {}", text(self), text(a), text(b)))
    }
}

/// What is done with tiles. `stride` is the distance of the rows in memory, in elements.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TileStmt {
    Zero { tile: Tile },
    Load { tile: Tile, buf: Buf, index: Index, stride: i64 },
    Store { tile: Tile, buf: Buf, index: Index, stride: i64 },
    Dot { acc: Tile, a: Tile, b: Tile },
}

impl TileStmt {
    /// Where the first row is in memory.
    pub fn place(&self) -> Option<(Buf, &Index)> {
        match self {
            TileStmt::Load { buf, index, .. } | TileStmt::Store { buf, index, .. } => Some((*buf, index)),
            TileStmt::Zero { .. } | TileStmt::Dot { .. } => None,
        }
    }

    pub fn index_mut(&mut self) -> Option<&mut Index> {
        match self {
            TileStmt::Load { index, .. } | TileStmt::Store { index, .. } => Some(index),
            TileStmt::Zero { .. } | TileStmt::Dot { .. } => None,
        }
    }

    /// The buffer that is written to.
    pub fn stored(&self) -> Option<Buf> {
        match self {
            TileStmt::Store { buf, .. } => Some(*buf),
            _ => None,
        }
    }
}
