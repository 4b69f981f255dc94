//! Instructions that change the width of elements: between lanes of 32 and of 64 bits, and between lanes and small
//! elements in memory.

use super::super::codes;
use super::super::small;
use super::emitter::{Emitted, Emitter};
use super::operand::{Operands, Source, general, lower, vector};
use crate::leaf::alloc::Location;
use iced_x86::{Code, Instruction, Register};
use onnxc_machine::vector::ir::{Convert, Lanes, Op, Small};

/// Rounding of `vcvtps2ph`: to nearest, regardless of the control register.
const NEAREST: u32 = 0;
/// Of a shuffle of 32-bit lanes: the even ones, twice.
const EVEN: u32 = 0b10_00_10_00;
/// Of a permutation of 64-bit lanes: the first of each half of 256 bits, in the lower half.
const FIRST_OF_HALVES: u32 = 0b10_00;
/// The quarters 0 and 2, then 1 and 3.
const OUTER_THEN_INNER: u32 = 0b11_01_10_00;
/// What the greatest integer of 16 bits is made of.
const MOST_WORD: f32 = i16::MAX as f32;

impl Emitter<'_> {
    pub(super) fn load_small(&mut self, op: Op, operands: &Operands, result: Location) -> Emitted {
        let (code, lanes) = match op {
            Op::LoadSmall(small, lanes) => (small::load(small, self.isa, lanes), lanes),
            _ => (Code::VEX_Vpbroadcastw_xmm_xmmm16, Lanes::X4),
        };
        self.push(Instruction::with2(code, vector(result, lanes)?, operands.memory()?))
    }

    pub(super) fn load_part(&mut self, small: Small, dst: Register, operands: &Operands) -> Emitted {
        let code = match small {
            Small::I8 => Code::Movsx_r32_rm8,
            Small::U8 => Code::Movzx_r32_rm8,
            Small::I16 => Code::Movsx_r32_rm16,
            Small::U16 | Small::F16 => Code::Movzx_r32_rm16,
        };
        self.push(Instruction::with2(code, lower(dst), operands.memory()?))
    }

    pub(super) fn store_part(&mut self, small: Small, operands: &Operands) -> Emitted {
        let value = operands.general(0)?;
        let number = value as u32 - Register::RAX as u32;
        let (code, part) = match (small.bytes(), number) {
            (1, 0..4) => (Code::Mov_rm8_r8, Register::AL + number),
            // Past the higher bytes of the first four.
            (1, _) => (Code::Mov_rm8_r8, Register::SPL + (number - 4)),
            _ => (Code::Mov_rm16_r16, Register::AX + number),
        };
        self.push(Instruction::with2(code, operands.memory()?, part))
    }

    pub(super) fn move_to_general(&mut self, one: Lanes, operands: &Operands) -> Emitted {
        let (dst, from) = (general(operands.result()?)?, operands.vector(0, one)?);
        let (code, dst) = match (one.width(), self.isa.evex()) {
            (8, true) => (Code::EVEX_Vmovq_rm64_xmm, dst),
            (8, false) => (Code::VEX_Vmovq_rm64_xmm, dst),
            (_, true) => (Code::EVEX_Vmovd_rm32_xmm, lower(dst)),
            (_, false) => (Code::VEX_Vmovd_rm32_xmm, lower(dst)),
        };
        self.push(Instruction::with2(code, dst, from))
    }

    pub(super) fn change_width(&mut self, op: Op, operands: &Operands) -> Emitted {
        let (isa, result) = (self.isa, operands.result()?);
        match op {
            Op::Unpack(lanes) => {
                let (code, from) = (small::half_to_single(isa, lanes), packed(Small::F16, lanes));
                self.two((code, None), vector(result, lanes)?, operands.source(0, from)?)
            }
            Op::Pack(small, lanes) => self.pack(small, lanes, result, operands),
            Op::PackBf16(lanes) => {
                let (dst, from) = (vector(result, packed(Small::U16, lanes))?, operands.vector(0, lanes)?);
                self.two((small::single_to_bf16(lanes), None), dst, Source::Reg(from))
            }
            Op::Quantize(small, lanes) => self.quantize(small, lanes, result, operands),
            Op::Saturate(small, lanes) => {
                let from = operands.vector(0, lanes)?;
                self.two(
                    (small::cut_to_byte(small, lanes), None),
                    vector(result, Lanes::X4)?,
                    Source::Reg(from),
                )
            }
            Op::QuantizePair(small, adds, lanes) => self.quantize_pair(small, adds, lanes, operands),
            // The allocator has put the result where the operand is, or has copied it there.
            Op::MaskWiden(_) | Op::MaskNarrow(_) if isa.evex() => self.transfer(operands.used(0)?, result),
            Op::Convert(Convert::Truncate, Lanes::D1) | Op::MaskNarrow(Lanes::D1) => {
                self.transfer(operands.used(0)?, result)
            }
            Op::Convert(Convert::Truncate, lanes) | Op::MaskNarrow(lanes) if !isa.evex() => {
                let (dst, from) = (vector(result, lanes)?, operands.vector(0, lanes)?);
                let code = Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8;
                self.three((code, Some(EVEN)), dst, from, Source::Reg(from))?;
                self.two((Code::VEX_Vpermq_ymm_ymmm256_imm8, Some(FIRST_OF_HALVES)), dst, Source::Reg(dst))
            }
            Op::MaskWiden(lanes) => self.convert(Convert::Extend, lanes, result, operands),
            Op::Convert(convert, lanes) => self.convert(convert, lanes, result, operands),
            _ => Err("not a change of width".into()),
        }
    }

    fn convert(&mut self, convert: Convert, lanes: Lanes, result: Location, operands: &Operands) -> Emitted {
        let (code, from, to) = codes::convert(convert, self.isa, lanes);
        self.two((code, None), vector(result, to)?, operands.source(0, from)?)
    }

    fn pack(&mut self, small: Small, lanes: Lanes, result: Location, operands: &Operands) -> Emitted {
        let from = operands.vector(0, lanes)?;
        if small == Small::F16 {
            let dst = vector(result, packed(small, lanes))?;
            return self.two((small::single_to_half(self.isa, lanes), Some(NEAREST)), dst, Source::Reg(from));
        }
        if self.isa.evex() {
            let dst = vector(result, packed(small, lanes))?;
            return self.two((small::truncate(small, lanes), None), dst, Source::Reg(from));
        }
        self.pack_words(small, lanes, result, from)
    }

    fn pack_words(&mut self, small: Small, lanes: Lanes, result: Location, from: Register) -> Emitted {
        let dst = vector(result, lanes)?;
        self.three((small::to_words(small, lanes), None), dst, from, Source::Reg(from))?;
        if lanes == Lanes::X8 {
            let code = Code::VEX_Vpermq_ymm_ymmm256_imm8;
            self.two((code, Some(FIRST_OF_HALVES)), dst, Source::Reg(dst))?;
        }
        if small.bytes() == 1 {
            let low = vector(result, Lanes::X4)?;
            self.three((small::to_bytes(small), None), low, low, Source::Reg(low))?;
        }
        Ok(())
    }

    /// To u8 or i8. With EVEX packing cuts one end, where the conversion makes `i32::MIN` of what no i32 holds: that is a large
    /// integer without a sign, and the least one with a sign.
    fn quantize(&mut self, small: Small, lanes: Lanes, result: Location, operands: &Operands) -> Emitted {
        let (isa, dst) = (self.isa, vector(result, lanes)?);
        let (least, most) = if small == Small::I8 { (-128f32, 127f32) } else { (0f32, 255f32) };
        let mut from = operands.vector(0, lanes)?;
        let (max, min) = (codes::MAX.pick(isa, lanes), codes::MIN.pick(isa, lanes));
        for (code, bound, by_packing) in [(max, least, small == Small::I8), (min, most, small == Small::U8)] {
            if !(by_packing && isa.evex()) {
                let bound = Source::Mem(self.pool.operand(bound.to_bits().into(), isa, lanes));
                self.three((code, None), dst, from, bound)?;
                from = dst;
            }
        }
        self.two((codes::TO_INT_NEAREST.pick(isa, lanes), None), dst, Source::Reg(from))?;
        match isa.evex() {
            true => {
                let cut = (small::cut_to_byte(small, lanes), None);
                self.two(cut, vector(result, Lanes::X4)?, Source::Reg(dst))
            }
            false => self.pack_words(small, lanes, result, dst),
        }
    }

    /// Two vectors to bytes. What no i32 holds becomes `i32::MIN`, so that only what is great is cut before.
    fn quantize_pair(&mut self, small: Small, adds: u8, lanes: Lanes, operands: &Operands) -> Emitted {
        let isa = self.isa;
        let (dst, other) = (vector(operands.result()?, lanes)?, vector(operands.temp(0)?, lanes)?);
        for (at, to) in [(0, dst), (1, other)] {
            // With the number in front, NaN stays NaN, which becomes `i32::MIN` as well.
            let most = Source::Mem(self.pool.operand(MOST_WORD.to_bits().into(), isa, lanes));
            self.two((codes::LOAD.pick(isa, lanes), None), to, most)?;
            let from = Source::Reg(operands.vector(at, lanes)?);
            self.three((codes::MIN.pick(isa, lanes), None), to, to, from)?;
            self.two((codes::TO_INT_NEAREST.pick(isa, lanes), None), to, Source::Reg(to))?;
        }
        self.three((small::to_words(small, lanes), None), dst, dst, Source::Reg(other))?;
        // Both vectors' first halves are in the first half.
        let permute = |order| (Code::VEX_Vpermq_ymm_ymmm256_imm8, Some(order));
        self.two(permute(OUTER_THEN_INNER), dst, Source::Reg(dst))?;
        if adds == 1 {
            let zero = Source::Reg(operands.vector(2, lanes)?);
            self.three((Code::VEX_Vpaddsw_ymm_ymm_ymmm256, None), dst, dst, zero)?;
        }
        let to_bytes = match small {
            Small::I8 => Code::VEX_Vpacksswb_ymm_ymm_ymmm256,
            _ => Code::VEX_Vpackuswb_ymm_ymm_ymmm256,
        };
        self.three((to_bytes, None), dst, dst, Source::Reg(dst))?;
        self.two(permute(FIRST_OF_HALVES), dst, Source::Reg(dst))
    }
}

/// Lanes of the register that packed elements are in.
fn packed(small: Small, lanes: Lanes) -> Lanes {
    if lanes == Lanes::X16 && small.bytes() == 2 { Lanes::X8 } else { Lanes::X4 }
}
