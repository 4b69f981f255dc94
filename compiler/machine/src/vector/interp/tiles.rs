//! Operations on tiles and the memory of the frame.

use super::{FuncRun, Ran};
use crate::vector::ir::{Inst, Op, Signs, TileShape};
use onnxc_ir::scalar::add_tile_products;

/// Rows of a tile, and bytes of a row.
const ROWS: usize = 16;
const ROW: usize = 64;

/// The bytes of each row; those beyond a tile's shape are zero.
pub(super) type TileData = [[u8; ROW]; ROWS];

impl FuncRun<'_> {
    fn shape(&self, tile: u8) -> Ran<TileShape> {
        self.func.tiles.get(usize::from(tile)).copied().ok_or_else(|| format!("there is no tile {tile}"))
    }

    pub(super) fn tile_op(&mut self, inst: &Inst) -> Ran<()> {
        match inst.op {
            Op::TileZero(tile) => self.tiles[usize::from(tile)] = [[0; ROW]; ROWS],
            Op::TileLoad(tile) => {
                let shape = self.shape(tile)?;
                let (start, stride) = (self.address(inst.mem)?, self.int(inst.uses[0])? as u64);
                let mut data = [[0; ROW]; ROWS];
                for (row, bytes) in data.iter_mut().enumerate().take(shape.rows.into()) {
                    for (at, byte) in bytes.iter_mut().enumerate().take(shape.bytes.into()) {
                        let place = start.wrapping_add(stride.wrapping_mul(row as u64)) + at as u64;
                        *byte = self.read(place, 1)? as u8;
                    }
                }
                self.tiles[usize::from(tile)] = data;
            }
            Op::TileStore(tile) => {
                let shape = self.shape(tile)?;
                let (start, stride) = (self.address(inst.mem)?, self.int(inst.uses[0])? as u64);
                let data = self.tiles[usize::from(tile)];
                for (row, bytes) in data.iter().enumerate().take(shape.rows.into()) {
                    let place = start.wrapping_add(stride.wrapping_mul(row as u64));
                    self.write(place, &bytes[..shape.bytes.into()])?;
                }
            }
            Op::TileDot(signs, [acc, a, b]) => {
                let (rows, columns, steps) =
                    (self.shape(acc)?.rows, self.shape(acc)?.bytes / 4, self.shape(a)?.bytes / 4);
                let [mut sums, x, y] = [acc, a, b].map(|tile| self.tiles[usize::from(tile)]);
                for (row, column) in (0..usize::from(rows))
                    .flat_map(|row| (0..usize::from(columns)).map(move |column| (row, column)))
                {
                    let place = 4 * column..4 * column + 4;
                    let mut sum = i32::from_le_bytes(sums[row][place.clone()].try_into().unwrap_or_default());
                    for step in 0..usize::from(steps) {
                        for byte in 0..4 {
                            let product = signs.product(x[row][4 * step + byte], y[step][4 * column + byte]);
                            sum = sum.wrapping_add(product);
                        }
                    }
                    sums[row][place].copy_from_slice(&sum.to_le_bytes());
                }
                self.tiles[usize::from(acc)] = sums;
            }
            Op::TileDotBf16([acc, a, b]) => {
                let (rows, columns, steps) =
                    (self.shape(acc)?.rows, self.shape(acc)?.bytes / 4, self.shape(a)?.bytes / 4);
                let [mut sums, x, y] = [acc, a, b].map(|tile| self.tiles[usize::from(tile)]);
                let word = |row: &[u8; ROW], at: usize| {
                    row[4 * at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
                };
                for (row, column) in (0..usize::from(rows))
                    .flat_map(|row| (0..usize::from(columns)).map(move |column| (row, column)))
                {
                    let pairs =
                        (0..usize::from(steps)).map(|step| [word(&x[row], step), word(&y[step], column)]);
                    let sum = add_tile_products(f32::from_bits(word(&sums[row], column)), pairs);
                    sums[row][4 * column..4 * column + 4].copy_from_slice(&sum.to_le_bytes());
                }
                self.tiles[usize::from(acc)] = sums;
            }
            _ => return Err("no operation on tiles".into()),
        }
        Ok(())
    }
}

impl Signs {
    /// The product of two bytes.
    pub fn product(self, a: u8, b: u8) -> i32 {
        let value = |byte: u8, signed| if signed { i32::from(byte as i8) } else { i32::from(byte) };
        value(a, self.a) * value(b, self.b)
    }

    /// A sum of 32 bits and the products of four bytes each; it wraps.
    pub fn dot(self, sum: u64, a: u64, b: u64) -> u64 {
        let bytes = (a as u32).to_le_bytes().into_iter().zip((b as u32).to_le_bytes());
        let products = bytes.map(|(a, b)| self.product(a, b));
        u64::from(products.fold(sum as i32, i32::wrapping_add) as u32)
    }
}
