//! Statements on tiles, and memory of the frame.

use super::{Refusal, Select, Selected, refuse};
use cranelift_entity::EntityRef;
use onnxc_ir::graph::{DType, Dim};
use onnxc_loops::tiles::{Tile, TileDecl, TileStmt};
use onnxc_loops::{Access, Buf, Index, Kernel};
use onnxc_machine::vector::ir::{Inst, Mem, Op, Signs, TileShape};

/// Where the frame's buffers are in it, so that vectors in them do not cross cache lines.
const FRAME_ALIGN: usize = 64;

impl Select<'_> {
    /// Gives the function the frame and the tiles of a kernel; the addresses of buffers in the frame.
    pub(super) fn frame(&mut self) -> Selected<()> {
        let kernel = self.kernel;
        self.func.tiles = shapes(kernel)?;
        for (buf, buffer) in kernel.buffers.iter().filter(|(_, buffer)| buffer.access == Access::Frame) {
            let bytes = buffer
                .len
                .as_const()
                .and_then(|len| usize::try_from(len).ok()?.checked_mul(buffer.dtype.size()));
            let (Some(bytes), Ok(offset)) = (bytes, i32::try_from(self.func.frame)) else {
                return refuse("a frame of unknown size");
            };
            let base = self.int(Op::Frame(offset), vec![]);
            self.bases.insert(buf, base);
            self.func.frame += bytes.next_multiple_of(FRAME_ALIGN);
        }
        Ok(())
    }

    pub(super) fn tile_stmt(&mut self, stmt: &TileStmt) -> Selected<()> {
        if !self.isa.has(Op::TileZero(0)) {
            return refuse("tiles");
        }
        let (op, place) = match stmt {
            TileStmt::Zero { tile } => (Op::TileZero(number(*tile)), None),
            TileStmt::Load { tile, buf, index, stride } => {
                (Op::TileLoad(number(*tile)), Some((*buf, index, *stride)))
            }
            TileStmt::Store { tile, buf, index, stride } => {
                (Op::TileStore(number(*tile)), Some((*buf, index, *stride)))
            }
            TileStmt::Dot { acc, a, b } if self.kernel.tiles[*acc].dtype == DType::F32 => {
                (Op::TileDotBf16([acc, a, b].map(|tile| number(*tile))), None)
            }
            TileStmt::Dot { acc, a, b } => {
                let signed = |tile: &Tile| self.kernel.tiles[*tile].dtype == DType::I8;
                let signs = Signs { a: signed(a), b: signed(b) };
                (Op::TileDot(signs, [acc, a, b].map(|tile| number(*tile))), None)
            }
        };
        let (uses, mem) = match place {
            None => (vec![], None),
            Some((buf, index, stride)) => {
                let mem = self.tile_place(buf, index)?;
                let bytes = self.kernel.buffers[buf].dtype.size() as i64;
                let stride = self.dim(&Dim::from(stride * bytes))?;
                (vec![stride], Some(mem))
            }
        };
        self.push(Inst { op, dst: None, uses, mem });
        Ok(())
    }

    fn tile_place(&mut self, buf: Buf, index: &Index) -> Selected<Mem> {
        let index = self.resolve(index)?;
        self.mem(buf, &index)
    }
}

fn number(tile: Tile) -> u8 {
    tile.index() as u8
}

fn shapes(kernel: &Kernel) -> Result<Vec<TileShape>, Refusal> {
    let shape = |decl: &TileDecl| match decl.fault() {
        Some(fault) => refuse(fault),
        None => Ok(TileShape { rows: decl.rows as u8, bytes: decl.row_bytes() as u8 }),
    };
    kernel.tiles.values().map(shape).collect()
}
