//! Tiles as AMX has them: their configuration, and the operations on them.

use super::emitter::{Emitted, Emitter};
use super::operand::{Operands, general};
use crate::leaf::alloc::Location;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use onnxc_machine::vector::ir::{Op, Signs, TileShape};

/// Bytes of a configuration.
pub(super) const CONFIG_BYTES: i32 = 64;

/// Configures the tiles; changes rax. The configuration is pushed word by word, from its end: palette 1 in the first byte,
/// bytes of a row from byte 16 on as 16 bits each, rows from byte 48 on (Intel SDM, volume 1, chapter 18.4).
pub(super) fn configure(tiles: &[TileShape]) -> Vec<Result<Instruction, IcedError>> {
    let mut config = [0u8; CONFIG_BYTES as usize];
    config[0] = 1;
    for (at, shape) in tiles.iter().enumerate() {
        config[16 + 2 * at] = shape.bytes;
        config[48 + at] = shape.rows;
    }
    let (words, _) = config.as_chunks::<8>();
    let mut insts = vec![];
    for word in words.iter().rev() {
        insts.push(Instruction::with2(Code::Mov_r64_imm64, Register::RAX, u64::from_le_bytes(*word)));
        insts.push(Instruction::with1(Code::Push_r64, Register::RAX));
    }
    let place = MemoryOperand::with_base(Register::RSP);
    insts.push(Instruction::with1(Code::VEX_Ldtilecfg_m512, place));
    insts.push(Instruction::with2(Code::Add_rm64_imm8, Register::RSP, CONFIG_BYTES));
    insts
}

/// Gives the tiles back: what they hold need not be saved any more.
pub(super) fn release() -> Instruction {
    Instruction::with(Code::VEX_Tilerelease)
}

fn tile(number: u8) -> Register {
    Register::TMM0 + u32::from(number)
}

impl Emitter<'_> {
    pub(super) fn tile_op(&mut self, op: Op, operands: &Operands) -> Emitted {
        let inst = match op {
            Op::TileZero(number) => Instruction::with1(Code::VEX_Tilezero_tmm, tile(number)),
            Op::TileLoad(number) => {
                Instruction::with2(Code::VEX_Tileloadd_tmm_sibmem, tile(number), rows(operands)?)
            }
            Op::TileStore(number) => {
                Instruction::with2(Code::VEX_Tilestored_sibmem_tmm, rows(operands)?, tile(number))
            }
            Op::TileDot(Signs { a, b }, tiles) => {
                let code = match (a, b) {
                    (false, false) => Code::VEX_Tdpbuud_tmm_tmm_tmm,
                    (false, true) => Code::VEX_Tdpbusd_tmm_tmm_tmm,
                    (true, false) => Code::VEX_Tdpbsud_tmm_tmm_tmm,
                    (true, true) => Code::VEX_Tdpbssd_tmm_tmm_tmm,
                };
                let [acc, a, b] = tiles.map(tile);
                Instruction::with3(code, acc, a, b)
            }
            Op::TileDotBf16(tiles) => {
                let [acc, a, b] = tiles.map(tile);
                Instruction::with3(Code::VEX_Tdpbf16ps_tmm_tmm_tmm, acc, a, b)
            }
            _ => return Err("not an operation on tiles".into()),
        };
        self.push(inst)
    }

    /// The address of a byte of the function's own memory.
    pub(super) fn frame_address(&mut self, at: i32, result: Location) -> Emitted {
        let place = MemoryOperand::with_base_displ(Register::RSP, i64::from(self.frame + at));
        self.push(Instruction::with2(Code::Lea_r64_m, general(result)?, place))
    }
}

/// Rows in memory: the first at the operand there, the distance in a register that is its index.
fn rows(operands: &Operands) -> Result<MemoryOperand, String> {
    let first = operands.memory()?;
    Ok(MemoryOperand { index: operands.general(0)?, scale: 1, ..first })
}
