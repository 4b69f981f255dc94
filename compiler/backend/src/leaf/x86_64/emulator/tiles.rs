//! Tiles: AMX.

use super::{Processor, general};
use iced_x86::{Instruction, Mnemonic, Register};
use onnxc_ir::scalar::add_tile_products;
use onnxc_machine::vector::ir::Signs;

const ROWS: usize = 16;
const ROW: usize = 64;

/// The tiles of a processor; without shapes until they are configured.
pub(super) struct Tiles {
    /// Rows, and bytes of a row, of each.
    shapes: Option<[(usize, usize); 8]>,
    data: [[[u8; ROW]; ROWS]; 8],
}

impl Default for Tiles {
    fn default() -> Tiles {
        Tiles { shapes: None, data: [[[0; ROW]; ROWS]; 8] }
    }
}

fn number(reg: Register) -> usize {
    (reg as usize).checked_sub(Register::TMM0 as usize).filter(|&n| n < 8).expect("a tile")
}

impl Tiles {
    /// What code has to leave behind: the system saves tiles that are in use.
    pub(super) fn are_released(&self) -> bool {
        self.shapes.is_none()
    }

    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.shapes.expect("the tiles are configured")[tile];
        assert!(shape.0 > 0 && shape.1 > 0, "tile {tile} has no shape");
        shape
    }
}

impl Processor<'_> {
    /// Whether an instruction is one on tiles; it has been executed then.
    pub(super) fn tile_step(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        match inst.mnemonic() {
            Ldtilecfg => self.configure(&self.read::<64>(inst)),
            Tilerelease => self.tiles = Tiles::default(),
            Tilezero => {
                let tile = number(inst.op0_register());
                self.tiles.shape(tile);
                self.tiles.data[tile] = [[0; ROW]; ROWS];
            }
            Tileloadd => {
                let tile = number(inst.op0_register());
                let (rows, bytes) = self.tiles.shape(tile);
                let mut data = [[0; ROW]; ROWS];
                for (row, to) in data.iter_mut().enumerate().take(rows) {
                    let from = self.row(inst, row, bytes);
                    // SAFETY: inside of a region, or where the test promises that kernels stay inside of their buffers.
                    unsafe { from.copy_to(to.as_mut_ptr(), bytes) }
                }
                self.tiles.data[tile] = data;
            }
            Tilestored => {
                let tile = number(inst.op1_register());
                let (rows, bytes) = self.tiles.shape(tile);
                for row in 0..rows {
                    let to = self.row(inst, row, bytes);
                    // SAFETY: as above.
                    unsafe { to.copy_from(self.tiles.data[tile][row].as_ptr(), bytes) }
                }
            }
            Tdpbuud => self.tile_dot(inst, Signs { a: false, b: false }),
            Tdpbusd => self.tile_dot(inst, Signs { a: false, b: true }),
            Tdpbsud => self.tile_dot(inst, Signs { a: true, b: false }),
            Tdpbssd => self.tile_dot(inst, Signs { a: true, b: true }),
            Tdpbf16ps => self.tile_dot_bf16(inst),
            _ => return false,
        }
        true
    }

    fn configure(&mut self, config: &[u8; 64]) {
        assert_eq!((config[0], config[1]), (1, 0), "palette 1, from row 0 on");
        assert!(config[2..16].iter().chain(&config[32..48]).chain(&config[56..]).all(|&byte| byte == 0));
        let shape = |at: usize| {
            let bytes = u16::from_le_bytes([config[16 + 2 * at], config[17 + 2 * at]]).into();
            let rows = config[48 + at].into();
            assert!(
                rows <= ROWS && bytes <= ROW && (rows == 0) == (bytes == 0),
                "tile {at}: {rows} of {bytes}"
            );
            (rows, bytes)
        };
        self.tiles = Tiles { shapes: Some(std::array::from_fn(shape)), ..Tiles::default() };
    }

    /// A row of a tile in memory: the index register has the distance of rows.
    fn row(&self, inst: &Instruction, row: usize, bytes: usize) -> *mut u8 {
        let stride = general(inst.memory_index()).map_or(0, |(n, _)| self.general[n]);
        let base = general(inst.memory_base()).map_or(0, |(n, _)| self.general[n]);
        let at = base
            .wrapping_add(inst.memory_displacement64())
            .wrapping_add(stride.wrapping_mul(row as u64 * u64::from(inst.memory_index_scale())));
        self.reachable_at(inst, at, bytes)
    }

    /// Rows and bytes of a row of the sums of a product, and the bytes that a row has of the first operand.
    fn product_shape(&self, [acc, a, b]: [usize; 3]) -> (usize, usize, usize) {
        assert!(acc != a && acc != b && a != b, "the tiles of a product differ");
        let ((rows, bytes), (a_rows, steps), (b_rows, columns)) =
            (self.tiles.shape(acc), self.tiles.shape(a), self.tiles.shape(b));
        assert_eq!((rows, bytes, steps), (a_rows, columns, 4 * b_rows), "the shapes of a product match");
        (rows, bytes, steps)
    }

    fn tile_dot_bf16(&mut self, inst: &Instruction) {
        let tiles = [0, 1, 2].map(|operand| number(inst.op_register(operand)));
        let ([acc, a, b], (rows, bytes, steps)) = (tiles, self.product_shape(tiles));
        let word =
            |row: &[u8; ROW], at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("a word"));
        for row in 0..rows {
            for column in (0..bytes).step_by(4) {
                let data = &self.tiles.data;
                let pairs = (0..steps)
                    .step_by(4)
                    .map(|step| [word(&data[a][row], step), word(&data[b][step / 4], column)]);
                let sum = add_tile_products(f32::from_bits(word(&data[acc][row], column)), pairs);
                self.tiles.data[acc][row][column..column + 4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }

    fn tile_dot(&mut self, inst: &Instruction, signs: Signs) {
        let tiles = [0, 1, 2].map(|operand| number(inst.op_register(operand)));
        let ([acc, a, b], (rows, bytes, steps)) = (tiles, self.product_shape(tiles));
        for row in 0..rows {
            for column in (0..bytes).step_by(4) {
                let mut sum = 0i32;
                for step in 0..steps {
                    let (x, y) =
                        (self.tiles.data[a][row][step], self.tiles.data[b][step / 4][column + step % 4]);
                    let value =
                        |byte: u8, signed| if signed { i32::from(byte as i8) } else { i32::from(byte) };
                    sum = sum.wrapping_add(value(x, signs.a) * value(y, signs.b));
                }
                let place = &mut self.tiles.data[acc][row][column..column + 4];
                let old = i32::from_le_bytes([place[0], place[1], place[2], place[3]]);
                place.copy_from_slice(&old.wrapping_add(sum).to_le_bytes());
            }
        }
    }
}
