//! Statements on tiles, one element at a time: integers by their values, floats by their bits as f32.

use super::{NestRun, fail};
use crate::tiles::{Tile, TileStmt};
use crate::{Access, Buf, Index};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DOT_DEPTH, DType, PAIR_DEPTH};
use onnxc_ir::scalar;

impl NestRun<'_> {
    pub(super) fn tile_stmt(&mut self, stmt: &TileStmt) -> Result<()> {
        match stmt {
            TileStmt::Zero { tile } => {
                let decl = &self.kernel.tiles[*tile];
                self.tiles[*tile] = Some(vec![0; decl.rows * decl.columns]);
            }
            TileStmt::Load { tile, buf, index, stride } => {
                let dtype = self.kernel.buffers[*buf].dtype;
                let values = self.tile_elements(*tile, *buf, index, *stride)?.into_iter().map(|at| {
                    let bytes = &self.bytes(*buf)[at..at + dtype.size()];
                    match dtype {
                        DType::U8 => i32::from(bytes[0]),
                        DType::I8 => i32::from(bytes[0] as i8),
                        DType::BF16 => i32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16,
                        _ => i32::from_le_bytes(bytes.try_into().expect("a lane has four bytes")),
                    }
                });
                self.tiles[*tile] = Some(values.collect());
            }
            TileStmt::Store { tile, buf, index, stride } => {
                let decl = &self.kernel.buffers[*buf];
                if decl.access == Access::Read {
                    return fail(format!("store of {tile} to the buffer {} ({buf})", decl.name));
                }
                let size = decl.dtype.size();
                let places = self.tile_elements(*tile, *buf, index, *stride)?;
                let values = self.tile(*tile)?.clone();
                for (at, value) in places.into_iter().zip(values) {
                    self.bytes_mut(*buf)[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
                }
            }
            TileStmt::Dot { acc, a, b } => {
                let (rows, columns) = (self.kernel.tiles[*acc].rows, self.kernel.tiles[*acc].columns);
                let steps = self.kernel.tiles[*a].columns;
                let is_float = self.kernel.tiles[*acc].dtype == DType::F32;
                // Both of a pair are the higher halves of their lanes.
                let pair = |halves: &[i32]| halves[0] as u32 >> 16 | halves[1] as u32;
                let (mut sums, x, y) = (self.tile(*acc)?.clone(), self.tile(*a)?, self.tile(*b)?);
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                    let sum = &mut sums[row * columns + column];
                    if is_float {
                        let words = (0..steps).step_by(PAIR_DEPTH).map(|step| {
                            [pair(&x[row * steps + step..]), pair(&y[step * columns + column * PAIR_DEPTH..])]
                        });
                        *sum = scalar::add_tile_products(f32::from_bits(*sum as u32), words).to_bits() as i32;
                        continue;
                    }
                    for step in 0..steps {
                        let at =
                            step / DOT_DEPTH * columns * DOT_DEPTH + column * DOT_DEPTH + step % DOT_DEPTH;
                        *sum = sum.wrapping_add(x[row * steps + step] * y[at]);
                    }
                }
                self.tiles[*acc] = Some(sums);
            }
        }
        Ok(())
    }

    fn tile(&self, tile: Tile) -> Result<&Vec<i32>> {
        match &self.tiles[tile] {
            Some(values) => Ok(values),
            None => fail(format!("{tile} is read before it is set")),
        }
    }

    /// Byte offsets of a tile's elements in a buffer.
    fn tile_elements(&self, tile: Tile, buf: Buf, index: &Index, stride: i64) -> Result<Vec<usize>> {
        let decl = &self.kernel.tiles[tile];
        if decl.dtype != self.kernel.buffers[buf].dtype {
            return fail(format!("{tile} of {} in {buf} of {}", decl.dtype, self.kernel.buffers[buf].dtype));
        }
        let element = |row: usize, column: usize| {
            self.element(buf, &index.add(&Index::int(row as i64 * stride + column as i64)))
        };
        (0..decl.rows).flat_map(|row| (0..decl.columns).map(move |column| element(row, column))).collect()
    }
}
