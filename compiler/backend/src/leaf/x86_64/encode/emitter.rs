//! Instructions of the vector IR to instructions of the machine.

use super::super::codes::{self, CodeForm, UnaryForm, code};
use super::operand::{Operands, Source, address, general, lower, slot, vector};
use super::{Pool, text};
use crate::leaf::alloc::{Action, Location};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use onnxc_machine::vector::ir::{End, Lanes, Op, Operand};
use onnxc_machine::vector::isa::Isa;

/// Collects the instructions of a block.
pub(super) struct Emitter<'a> {
    pub isa: Isa,
    pub insts: Vec<Instruction>,
    pub pool: &'a mut Pool,
    /// Where the function's own memory begins, from the stack pointer on.
    pub frame: i32,
}

pub(super) type Emitted = Result<(), String>;

impl<'a> Emitter<'a> {
    pub(super) fn new(isa: Isa, pool: &'a mut Pool, frame: i32) -> Emitter<'a> {
        Emitter { isa, insts: vec![], pool, frame }
    }

    pub(super) fn push(&mut self, inst: Result<Instruction, IcedError>) -> Emitted {
        self.insts.push(inst.map_err(text)?);
        Ok(())
    }

    pub(super) fn step(&mut self, step: Action) -> Emitted {
        match step {
            Action::Move { from, to } => self.transfer(from, to),
            Action::Inst { inst, places, temps } => {
                let operands = Operands::new(inst, (&places, &temps), self.isa, self.pool)?;
                self.inst(inst.op, &operands).map_err(|e| format!("{:?}: {e}", inst.op))
            }
            Action::End { end, places } => self.compare(end, &places),
        }
    }

    /// Between places of one class. Of vectors always the whole, as nothing here knows how much of it
    /// matters.
    pub(super) fn transfer(&mut self, from: Location, to: Location) -> Emitted {
        use Code::*;
        let whole = Lanes::of(self.isa.lanes(4), 4).ok_or("no such lanes")?;
        match (from, to) {
            _ if from == to => Ok(()),
            (Location::Int(_), Location::Int(_)) => {
                self.push(Instruction::with2(Mov_r64_rm64, general(to)?, general(from)?))
            }
            (Location::Int(_), Location::Spill(n)) => {
                self.push(Instruction::with2(Mov_rm64_r64, slot(n), general(from)?))
            }
            (Location::Spill(n), Location::Int(_)) => {
                self.push(Instruction::with2(Mov_r64_rm64, general(to)?, slot(n)))
            }
            (Location::Vec(_), Location::Vec(_)) => {
                let code = codes::MOVE.pick(self.isa, whole);
                self.push(Instruction::with2(code, vector(to, whole)?, vector(from, whole)?))
            }
            (Location::Vec(_), Location::Spill(n)) => {
                let code = codes::STORE.pick(self.isa, whole);
                self.push(Instruction::with2(code, slot(n), vector(from, whole)?))
            }
            (Location::Spill(n), Location::Vec(_)) => {
                let code = codes::LOAD.pick(self.isa, whole);
                self.push(Instruction::with2(code, vector(to, whole)?, slot(n)))
            }
            (Location::Mask(_), Location::Mask(_)) => {
                self.push(Instruction::with2(VEX_Kmovw_kr_km16, vector(to, whole)?, vector(from, whole)?))
            }
            (Location::Mask(_), Location::Spill(n)) => {
                self.push(Instruction::with2(VEX_Kmovw_m16_kr, slot(n), vector(from, whole)?))
            }
            (Location::Spill(n), Location::Mask(_)) => {
                self.push(Instruction::with2(VEX_Kmovw_kr_km16, vector(to, whole)?, slot(n)))
            }
            _ => Err(format!("a move from {from:?} to {to:?}")),
        }
    }

    /// Sets the flags for the jumps at the end of a block.
    fn compare(&mut self, end: &End, places: &[Location]) -> Emitted {
        match (end, places) {
            (End::Branch { .. }, &[a, b]) => {
                self.push(Instruction::with2(Code::Cmp_r64_rm64, general(a)?, general(b)?))
            }
            (End::Branch { b: Operand::Imm(0), .. }, &[a]) => {
                self.push(Instruction::with2(Code::Test_rm64_r64, general(a)?, general(a)?))
            }
            (End::Branch { b: Operand::Imm(imm), .. }, &[a]) => {
                let code = short(*imm, Code::Cmp_rm64_imm8, Code::Cmp_rm64_imm32);
                self.push(Instruction::with2(code, general(a)?, *imm))
            }
            (End::Branch { .. }, _) => Err("a branch without operands".into()),
            _ => Ok(()),
        }
    }

    fn inst(&mut self, op: Op, operands: &Operands) -> Emitted {
        match op {
            // The allocator has put the result where the operand is, or has copied it there.
            Op::Extract(0, _) | Op::SplatLane(Lanes::X1 | Lanes::D1) => {
                self.transfer(operands.used(0)?, operands.result()?)
            }
            Op::MaskBits(_) | Op::MaskOf(_) if !self.isa.evex() => {
                self.transfer(operands.used(0)?, operands.result()?)
            }
            Op::Store(lanes) => {
                let value = operands.vector(0, lanes)?;
                self.push(Instruction::with2(code!(STORE, self.isa, lanes), operands.memory()?, value))
            }
            Op::StorePart(small) => self.store_part(small, operands),
            Op::ToGeneral(one) => self.move_to_general(one, operands),
            Op::PackBf16(_) => self.change_width(op, operands),
            Op::Unpack(_) | Op::Pack(..) | Op::Quantize(..) | Op::Saturate(..) | Op::QuantizePair(..) => {
                self.change_width(op, operands)
            }
            Op::Convert(..) | Op::MaskWiden(_) | Op::MaskNarrow(_) => self.change_width(op, operands),
            Op::TileZero(_) | Op::TileLoad(_) | Op::TileStore(_) | Op::TileDot(..) | Op::TileDotBf16(_) => {
                self.tile_op(op, operands)
            }
            Op::Frame(at) => self.frame_address(at, operands.result()?),
            Op::Prefetch => self.push(Instruction::with1(Code::Prefetcht1_m8, operands.memory()?)),
            _ => match operands.result()? {
                result @ Location::Int(_) => self.integer(op, operands, general(result)?),
                result => self.vector(op, operands, result),
            },
        }
    }

    fn vector(&mut self, op: Op, operands: &Operands, result: Location) -> Emitted {
        let isa = self.isa;
        match op {
            Op::Splat(lanes, bits) => self.splat(lanes, bits, result),
            Op::Ramp(lanes, first) => {
                let ramp = Source::Mem(self.pool.ramp(first, lanes));
                self.two((code!(LOAD, isa, lanes), None), vector(result, lanes)?, ramp)
            }
            Op::Permute(lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three((codes::PERMUTE.pick(isa, lanes), None), vector(result, lanes)?, a, b)
            }
            Op::InsertQuarter(at, lanes) => {
                let (a, quarter) = (operands.vector(0, lanes)?, Source::Mem(operands.memory()?));
                self.three((codes::INSERT_QUARTER, Some(at.into())), vector(result, lanes)?, a, quarter)
            }
            Op::Interleave(lanes) => {
                let (dst, order) = (vector(result, lanes)?, Source::Mem(self.pool.interleaved(lanes)));
                self.two((code!(LOAD, isa, lanes), None), dst, order)?;
                self.three((codes::PERMUTE_BYTES, None), dst, dst, Source::Reg(operands.vector(0, lanes)?))
            }
            Op::Load(lanes) => {
                let code = code!(LOAD, isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Broadcast(lanes) => {
                let code = code!(BROADCAST, isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Binary(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(codes::binary(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::Compare(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(codes::compare(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::Mask(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(codes::logic(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::MaskNot(lanes) => self.mask_not(lanes, vector(result, lanes)?, operands.vector(0, lanes)?),
            Op::MaskBits(lanes) => {
                self.two((codes::mask_bits(lanes), None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::MaskOf(lanes) => {
                self.two((codes::mask_of(lanes), None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Unary(op, lanes) => {
                let (form, a) = (codes::unary(op, isa, lanes), operands.source(0, lanes)?);
                self.unary(form, lanes, vector(result, lanes)?, a)
            }
            Op::Fma(lanes) | Op::FmaNeg(lanes) => {
                let code = match op {
                    Op::Fma(_) => code!(FMA, isa, lanes),
                    _ => code!(FMA_NEG, isa, lanes),
                };
                let (a, b) = (operands.vector(1, lanes)?, operands.source(2, lanes)?);
                self.three((code, None), vector(result, lanes)?, a, b)
            }
            Op::MulAdd(lanes) => {
                let (b, c) = (operands.vector(1, lanes)?, operands.source(2, lanes)?);
                self.three((code!(MUL_ADD, isa, lanes), None), vector(result, lanes)?, b, c)
            }
            Op::Dot(_, lanes) | Op::AddDotPairs(lanes) | Op::DotBf16(lanes) => {
                let codes = match op {
                    Op::Dot(..) => codes::DOT,
                    Op::AddDotPairs(_) => codes::ADD_DOT_PAIRS,
                    _ => codes::DOT_BF16,
                };
                let (a, b) = (operands.vector(1, lanes)?, operands.source(2, lanes)?);
                self.three((codes.pick(isa, lanes), None), vector(result, lanes)?, a, b)
            }
            Op::Blend(lanes) => {
                let [mask, then, otherwise] = [0, 1, 2].map(|n| operands.vector(n, lanes));
                let (code, dst) = (code!(BLEND, isa, lanes), vector(result, lanes)?);
                if !isa.evex() {
                    return self.push(Instruction::with4(code, dst, otherwise?, then?, mask?));
                }
                let mut inst = Instruction::with3(code, dst, otherwise?, then?).map_err(text)?;
                inst.set_op_mask(mask?);
                self.push(Ok(inst))
            }
            Op::SplatLane(lanes) => {
                let code = code!(SPLAT_LANE, isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, Lanes::X1)?)
            }
            Op::UpperHalf(lanes) => self.upper_half(lanes, result, operands.used(0)?),
            Op::Extract(lane, one) => {
                let (lane, order) = match one.width() {
                    8 => (2 * u32::from(lane), 0b1110),
                    _ => (lane.into(), u32::from(lane) % 4),
                };
                self.extract(lane, order, vector(result, Lanes::X1)?, operands.used(0)?)
            }
            Op::LoadSmall(..) | Op::BroadcastHalf => self.load_small(op, operands, result),
            Op::Insert(lane, lanes) => self.insert(lane, lanes, result, operands),
            Op::FromGeneral(one) => {
                let from = operands.general(0)?;
                let (code, from) = match (one.width(), isa.evex()) {
                    (8, true) => (Code::EVEX_Vmovq_xmm_rm64, from),
                    (8, false) => (Code::VEX_Vmovq_xmm_rm64, from),
                    (_, true) => (Code::EVEX_Vmovd_xmm_rm32, lower(from)),
                    (_, false) => (Code::VEX_Vmovd_xmm_rm32, lower(from)),
                };
                self.push(Instruction::with2(code, vector(result, one)?, from))
            }
            _ => Err("not an operation on vectors".into()),
        }
    }

    pub(super) fn two(&mut self, (code, imm): CodeForm, dst: Register, a: Source) -> Emitted {
        self.push(match (a, imm) {
            (Source::Reg(a), None) => Instruction::with2(code, dst, a),
            (Source::Mem(a), None) => Instruction::with2(code, dst, a),
            (Source::Reg(a), Some(imm)) => Instruction::with3(code, dst, a, imm),
            (Source::Mem(a), Some(imm)) => Instruction::with3(code, dst, a, imm),
        })
    }

    pub(super) fn three(&mut self, (code, imm): CodeForm, dst: Register, a: Register, b: Source) -> Emitted {
        self.push(match (b, imm) {
            (Source::Reg(b), None) => Instruction::with3(code, dst, a, b),
            (Source::Mem(b), None) => Instruction::with3(code, dst, a, b),
            (Source::Reg(b), Some(imm)) => Instruction::with4(code, dst, a, b, imm),
            (Source::Mem(b), Some(imm)) => Instruction::with4(code, dst, a, b, imm),
        })
    }

    fn splat(&mut self, lanes: Lanes, bits: u64, result: Location) -> Emitted {
        if bits == 0 {
            // Clears the upper half, too.
            let (code, dst) = (codes::XOR.pick(self.isa, Lanes::X4), vector(result, Lanes::X4)?);
            return self.three((code, None), dst, dst, Source::Reg(dst));
        }
        let constant = Source::Mem(self.pool.operand(bits, self.isa, lanes.one()));
        self.two((code!(BROADCAST, self.isa, lanes), None), vector(result, lanes)?, constant)
    }

    fn mask_not(&mut self, lanes: Lanes, dst: Register, a: Register) -> Emitted {
        if self.isa.evex() {
            return self.push(Instruction::with2(Code::VEX_Knotw_kr_kr, dst, a));
        }
        // Without a scalar form, 128 bits are read.
        let lanes = if lanes.is_scalar() { Lanes::X4 } else { lanes };
        let all = if lanes.width() == 8 { u64::MAX } else { u32::MAX.into() };
        let ones = Source::Mem(self.pool.operand(all, self.isa, lanes));
        self.three((code!(XOR, self.isa, lanes), None), dst, a, ones)
    }

    fn unary(&mut self, form: UnaryForm, lanes: Lanes, dst: Register, a: Source) -> Emitted {
        match (form, a) {
            (UnaryForm::Two(form), a) => self.two(form, dst, a),
            // With the operand in both places the result depends on nothing else.
            (UnaryForm::Scalar(form), Source::Reg(a)) => self.three(form, dst, a, Source::Reg(a)),
            (UnaryForm::Scalar(form), Source::Mem(_)) => {
                self.two((code!(LOAD, self.isa, lanes), None), dst, a)?;
                self.three(form, dst, dst, Source::Reg(dst))
            }
            (UnaryForm::Shift(code, count), a) => self.two((code, Some(count)), dst, a),
        }
    }

    fn upper_half(&mut self, lanes: Lanes, result: Location, from: Location) -> Emitted {
        use Code::*;
        let (code, whole) = match (lanes.bytes(), self.isa.evex()) {
            (16, false) => (VEX_Vextractf128_xmmm128_ymm_imm8, Lanes::X8),
            (16, true) => (EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8, Lanes::X8),
            _ => (EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, Lanes::X16),
        };
        self.push(Instruction::with3(code, vector(result, lanes)?, vector(from, whole)?, 1))
    }

    /// What is at a 32-bit lane other than the first, which is where it is already; `order` brings it to the front of its
    /// 128 bits.
    fn extract(&mut self, lane: u32, order: u32, dst: Register, from: Location) -> Emitted {
        use Code::*;
        let mut quarter = vector(from, Lanes::X4)?;
        if lane >= 4 {
            let (code, whole) = match (self.isa.evex(), self.isa.lanes(4)) {
                (false, _) => (VEX_Vextractf128_xmmm128_ymm_imm8, Lanes::X8),
                (true, 16) => (EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8, Lanes::X16),
                (true, _) => (EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8, Lanes::X8),
            };
            self.push(Instruction::with3(code, dst, vector(from, whole)?, lane / 4))?;
            quarter = dst;
        }
        let permute = match self.isa.evex() {
            true => EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8,
            false => VEX_Vpermilps_xmm_xmmm128_imm8,
        };
        match lane % 4 {
            0 => Ok(()),
            _ => self.two((permute, Some(order)), dst, Source::Reg(quarter)),
        }
    }

    /// The scalar in all lanes of the result; one of them is kept. The allocator has put the vector elsewhere.
    fn insert(&mut self, lane: u8, lanes: Lanes, result: Location, operands: &Operands) -> Emitted {
        use Code::*;
        let (dst, scalar) = (vector(result, lanes)?, operands.vector(1, Lanes::X1)?);
        let (broadcast, blend) = match lanes {
            Lanes::X4 => (VEX_Vbroadcastss_xmm_xmm, VEX_Vblendps_xmm_xmm_xmmm128_imm8),
            Lanes::X8 => (VEX_Vbroadcastss_ymm_xmm, VEX_Vblendps_ymm_ymm_ymmm256_imm8),
            Lanes::D4 => (VEX_Vbroadcastsd_ymm_xmm, VEX_Vblendpd_ymm_ymm_ymmm256_imm8),
            _ => return Err("no such lanes".into()),
        };
        self.two((broadcast, None), dst, Source::Reg(scalar))?;
        self.three((blend, Some(1 << lane)), dst, operands.vector(0, lanes)?, Source::Reg(dst))
    }

    fn integer(&mut self, op: Op, operands: &Operands, dst: Register) -> Emitted {
        use Code::*;
        match op {
            Op::Int(value) => self.constant(value, dst),
            Op::LoadInt => self.push(Instruction::with2(Mov_r64_rm64, dst, operands.memory()?)),
            Op::LoadInt32 => self.push(Instruction::with2(Movsxd_r64_rm32, dst, operands.memory()?)),
            Op::LoadPart(small) => self.load_part(small, dst, operands),
            Op::Add => {
                let (a, b) = (operands.general(0)?, operands.general(1)?);
                match dst {
                    _ if dst == a => self.push(Instruction::with2(Add_r64_rm64, dst, b)),
                    _ if dst == b => self.push(Instruction::with2(Add_r64_rm64, dst, a)),
                    _ => self.lea(dst, MemoryOperand::with_base_index(a, b)),
                }
            }
            Op::Sub => self.push(Instruction::with2(Sub_r64_rm64, dst, operands.general(1)?)),
            Op::Mul => self.push(Instruction::with2(Imul_r64_rm64, dst, operands.general(1)?)),
            Op::MulHigh => {
                self.push(Instruction::with3(VEX_Mulx_r64_r64_rm64, dst, dst, operands.general(1)?))
            }
            Op::DivInt => {
                self.push(Ok(Instruction::with(Cqo)))?;
                self.push(Instruction::with1(Idiv_rm64, operands.general(1)?))
            }
            Op::MinInt | Op::MaxInt => {
                let b = operands.general(1)?;
                let replace = if op == Op::MinInt { Cmovg_r64_rm64 } else { Cmovl_r64_rm64 };
                self.push(Instruction::with2(Cmp_r64_rm64, dst, b))?;
                self.push(Instruction::with2(replace, dst, b))
            }
            Op::AddInt(value) => {
                let a = operands.general(0)?;
                match dst == a {
                    true if value == 0 => Ok(()),
                    true => {
                        self.push(Instruction::with2(short(value, Add_rm64_imm8, Add_rm64_imm32), dst, value))
                    }
                    false if value == 0 => self.push(Instruction::with2(Mov_r64_rm64, dst, a)),
                    false => self.lea(dst, address(a, value)),
                }
            }
            Op::MulInt(value) => {
                let code = short(value, Imul_r64_rm64_imm8, Imul_r64_rm64_imm32);
                self.push(Instruction::with3(code, dst, operands.general(0)?, value))
            }
            Op::ShlInt(count) => self.shift(dst, operands.general(0)?, count),
            Op::ShrInt(0) => Ok(()),
            Op::ShrInt(count) => self.push(Instruction::with2(Shr_rm64_imm8, dst, u32::from(count))),
            _ => Err("not an operation on integers".into()),
        }
    }

    fn constant(&mut self, value: i64, dst: Register) -> Emitted {
        // Writing the lower half of a register clears the upper one.
        let lower = lower(dst);
        self.push(if value == 0 {
            Instruction::with2(Code::Xor_r32_rm32, lower, lower)
        } else if let Ok(value) = u32::try_from(value) {
            Instruction::with2(Code::Mov_r32_imm32, lower, value)
        } else if let Ok(value) = i32::try_from(value) {
            Instruction::with2(Code::Mov_rm64_imm32, dst, value)
        } else {
            Instruction::with2(Code::Mov_r64_imm64, dst, value)
        })
    }

    fn shift(&mut self, dst: Register, a: Register, count: u8) -> Emitted {
        match count {
            0 => Ok(()),
            _ if dst == a => self.push(Instruction::with2(Code::Shl_rm64_imm8, dst, u32::from(count))),
            // Without a base register an address takes four bytes more.
            1 => self.lea(dst, MemoryOperand::with_base_index(a, a)),
            _ => self.lea(dst, scaled(a, 1 << count)),
        }
    }

    fn lea(&mut self, dst: Register, address: MemoryOperand) -> Emitted {
        self.push(Instruction::with2(Code::Lea_r64_m, dst, address))
    }
}

fn scaled(index: Register, scale: u32) -> MemoryOperand {
    MemoryOperand::new(Register::None, index, scale, 0, 0, false, Register::None)
}

/// The form with an immediate of one byte, where that is enough.
fn short(value: i32, byte: Code, full: Code) -> Code {
    if i8::try_from(value).is_ok() { byte } else { full }
}
