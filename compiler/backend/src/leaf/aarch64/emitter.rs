//! Instructions of the vector IR to words of A64.

use super::inst::{self, Access, Float, Int};
use super::{Emitted, Word};
use crate::leaf::alloc::{Action, Location, SLOT_BYTES};
use onnxc_machine::vector::ir::{
    Address, Binary, Compare, Convert, End, Inst, Lanes, Logic, Mem, Op, Operand, Small, Unary,
};
use onnxc_machine::vector::isa::Isa;

/// Collects the words of a block.
pub(super) struct Emitter<'p> {
    pub words: Vec<Word>,
    pub pool: &'p mut Pool,
    /// Where the function's own memory begins, from the stack pointer on.
    pub frame: i64,
    pub isa: Isa,
}

/// Constants, in the order of their first use.
#[derive(Default)]
pub(super) struct Pool {
    pub constants: Vec<Vec<u8>>,
}

impl Pool {
    pub(super) fn index(&mut self, bytes: Vec<u8>) -> usize {
        let known = self.constants.iter().position(|own| *own == bytes);
        known.unwrap_or_else(|| {
            self.constants.push(bytes);
            self.constants.len() - 1
        })
    }
}

/// The operands of an instruction in their places.
pub(super) struct Operands<'a> {
    pub uses: &'a [Location],
    /// Registers of the address.
    base: Option<u8>,
    index: Option<u8>,
    mem: Option<Mem>,
    pub dst: Option<Location>,
    temps: &'a [Location],
}

pub(super) fn general(place: Location) -> Result<u8, String> {
    match place {
        Location::Int(n) => Ok(n),
        _ => Err(format!("{place:?} is not a general register")),
    }
}

pub(super) fn vector(place: Location) -> Result<u8, String> {
    match place {
        Location::Vec(n) => Ok(n),
        _ => Err(format!("{place:?} is not a vector register")),
    }
}

/// An address: the base, the register that is scaled with the logarithm of its scale, the displacement.
type Reached = (u8, Option<(u8, u8)>, i64);

impl<'a> Operands<'a> {
    fn new(inst: &Inst, places: &'a [Location], temps: &'a [Location]) -> Result<Operands<'a>, String> {
        let (uses, rest) = places.split_at_checked(inst.uses.len()).ok_or("operands without places")?;
        let count = inst.mem.into_iter().flat_map(Mem::reads).count();
        let address = rest.get(..count).ok_or("an address without places")?;
        let register = |at: usize| address.get(at).map(|&place| general(place)).transpose();
        let dst = inst.dst.and(rest.last().copied());
        Ok(Operands { uses, base: register(0)?, index: register(1)?, mem: inst.mem, dst, temps })
    }

    fn used(&self, at: usize) -> Result<Location, String> {
        self.uses.get(at).copied().ok_or_else(|| format!("operand {at} is missing"))
    }

    pub(super) fn vector(&self, at: usize) -> Result<u8, String> {
        vector(self.used(at)?)
    }

    pub(super) fn general(&self, at: usize) -> Result<u8, String> {
        general(self.used(at)?)
    }

    fn result(&self) -> Result<Location, String> {
        self.dst.ok_or_else(|| "the result is missing".into())
    }

    pub(super) fn dst(&self) -> Result<u8, String> {
        vector(self.result()?)
    }

    pub(super) fn temp(&self, at: usize) -> Result<u8, String> {
        self.temps.get(at).map_or(Err("there is no register for what is in between".into()), |&t| vector(t))
    }

    fn address(&self) -> Result<Reached, String> {
        let address = self.mem.and_then(Mem::address);
        let (Some(Address { scaled, disp, .. }), Some(base)) = (address, self.base) else {
            return Err("the operand in memory is missing".into());
        };
        let index = self.index.zip(scaled.map(|(_, log)| log));
        Ok((base, index, disp.into()))
    }
}

impl Emitter<'_> {
    pub(super) fn push(&mut self, word: u32) {
        self.words.push(Word::Code(word));
    }

    /// The instructions of one step, and of the next where one does both. Gives how many steps these were.
    pub(super) fn steps(&mut self, steps: &[Action]) -> Result<usize, String> {
        match steps {
            [Action::Inst { inst, places, .. }, Action::Inst { inst: next, places: beside, .. }, ..]
                if self.pair(inst, places, next, beside)? =>
            {
                Ok(2)
            }
            [Action::Move { from, to }, ..] => self.transfer(*from, *to).map(|()| 1),
            [Action::Inst { inst, places, temps }, ..] => {
                let operands = Operands::new(inst, places, temps)?;
                self.inst(inst.op, &operands).map_err(|e| format!("{:?}: {e}", inst.op))?;
                Ok(1)
            }
            [Action::End { .. }, ..] | [] => Err("a block ends before its end".into()),
        }
    }

    /// Two loads of neighbours as one, in either order.
    fn pair(
        &mut self,
        one: &Inst,
        places: &[Location],
        two: &Inst,
        others: &[Location],
    ) -> Result<bool, String> {
        let (Some(Mem::At(a)), Some(Mem::At(b))) = (one.mem, two.mem) else { return Ok(false) };
        let whole = |op: Op| matches!(op, Op::Load(lanes) if lanes.bytes() == 16);
        let apart = i64::from(b.disp) - i64::from(a.disp);
        if !whole(one.op) || !whole(two.op) || a.scaled.is_some() || b.scaled.is_some() || apart.abs() != 16 {
            return Ok(false);
        }
        let (one, two) = (Operands::new(one, places, &[])?, Operands::new(two, others, &[])?);
        if one.base != two.base {
            return Ok(false);
        }
        let (first, second) = if apart > 0 { (&one, &two) } else { (&two, &one) };
        let (base, _, disp) = first.address()?;
        let Some(word) = inst::load_pair(first.dst()?, second.dst()?, base, disp) else { return Ok(false) };
        self.push(word);
        Ok(true)
    }

    /// Between places of one class. Of vectors always the whole, as nothing here knows how much of it matters.
    fn transfer(&mut self, from: Location, to: Location) -> Emitted {
        let slot = |n: u32| i64::from(n) * SLOT_BYTES as i64;
        match (from, to) {
            _ if from == to => {}
            (Location::Int(n), Location::Int(d)) => self.push(inst::copy(d, n)),
            (Location::Vec(n), Location::Vec(d)) => self.push(inst::bits(inst::ORR, Lanes::X4, d, n, n)),
            (Location::Int(t), Location::Spill(n)) => self.access(inst::STORE_X, t, inst::SP, slot(n)),
            (Location::Spill(n), Location::Int(t)) => self.access(inst::LOAD_X, t, inst::SP, slot(n)),
            (Location::Vec(t), Location::Spill(n)) => {
                self.access(Access::vector(16, false), t, inst::SP, slot(n))
            }
            (Location::Spill(n), Location::Vec(t)) => {
                self.access(Access::vector(16, true), t, inst::SP, slot(n))
            }
            _ => return Err(format!("a move from {from:?} to {to:?}")),
        }
        Ok(())
    }

    /// A load or store at a base and any displacement.
    fn access(&mut self, access: Access, t: u8, base: u8, disp: i64) {
        if let Some(word) = access.at(t, base, disp) {
            return self.push(word);
        }
        self.add(inst::X16, base, disp);
        self.push(access.at(t, inst::X16, 0).unwrap_or(0));
    }

    fn memory(&mut self, access: Access, t: u8, operands: &Operands) -> Emitted {
        match operands.address()? {
            (base, None, disp) => self.access(access, t, base, disp),
            (base, Some((index, log)), 0) if log == 0 || 1 << log == access.bytes() => {
                self.push(access.indexed(t, base, index, log));
            }
            (base, Some((index, log)), disp) => {
                self.push(inst::fields(inst::ADD_X, inst::X16, base, index) | u32::from(log) << 10);
                self.access(access, t, inst::X16, disp);
            }
        }
        Ok(())
    }

    /// `d = n + value`; x16 may be `d`, but no other operand.
    pub(super) fn add(&mut self, d: u8, n: u8, value: i64) {
        let (op, size) =
            if value < 0 { (inst::SUB_IMM, value.wrapping_neg()) } else { (inst::ADD_IMM, value) };
        match u32::try_from(size) {
            Ok(0) if d != n => self.push(inst::immediate(inst::ADD_IMM, d, n, 0, false)),
            Ok(0) => {}
            Ok(size @ ..0x1000) => self.push(inst::immediate(op, d, n, size, false)),
            Ok(size @ ..0x0100_0000) => {
                self.push(inst::immediate(op, d, n, size >> 12, true));
                if size & 0xfff != 0 {
                    self.push(inst::immediate(op, d, d, size & 0xfff, false));
                }
            }
            _ => {
                self.words.extend(inst::constant(inst::X16, value).into_iter().map(Word::Code));
                if n == inst::SP {
                    // The stack pointer has no form with a shifted register.
                    self.push(inst::immediate(inst::ADD_IMM, inst::X17, inst::SP, 0, false));
                    self.push(inst::fields(inst::ADD_X, d, inst::X17, inst::X16));
                } else {
                    self.push(inst::fields(inst::ADD_X, d, n, inst::X16));
                }
            }
        }
    }

    /// Sets the flags for the jumps at the end of a block.
    pub(super) fn compare(&mut self, end: &End, places: &[Location]) -> Emitted {
        match (end, places) {
            (End::Branch { .. }, &[a, b]) => {
                self.push(inst::fields(inst::CMP_X, 0, general(a)?, general(b)?));
            }
            (End::Branch { b: Operand::Imm(imm), .. }, &[a]) => {
                let (a, imm) = (general(a)?, i64::from(*imm));
                match imm {
                    0..0x1000 => self.push(inst::immediate(inst::CMP_IMM, 0, a, imm as u32, false)),
                    -0xfff..0 => self.push(inst::immediate(inst::CMN_IMM, 0, a, -imm as u32, false)),
                    _ => {
                        self.words.extend(inst::constant(inst::X16, imm).into_iter().map(Word::Code));
                        self.push(inst::fields(inst::CMP_X, 0, a, inst::X16));
                    }
                }
            }
            (End::Branch { .. }, _) => return Err("a branch without operands".into()),
            _ => {}
        }
        Ok(())
    }

    fn inst(&mut self, op: Op, operands: &Operands) -> Emitted {
        match op {
            Op::Store(lanes) => {
                self.memory(Access::vector(lanes.bytes(), false), operands.vector(0)?, operands)
            }
            Op::StorePart(small) => {
                let access = Access::part(small.bytes(), false, false);
                self.memory(access, operands.general(0)?, operands)
            }
            Op::Prefetch => self.memory(inst::PREFETCH, inst::PREFETCH_L2, operands),
            _ => match operands.result()? {
                Location::Int(dst) => self.integer(op, operands, dst),
                result => self.vector(op, operands, vector(result)?),
            },
        }
    }

    fn integer(&mut self, op: Op, operands: &Operands, d: u8) -> Emitted {
        let used = |at: usize| operands.general(at);
        match op {
            Op::Int(value) => self.words.extend(inst::constant(d, value).into_iter().map(Word::Code)),
            Op::Frame(at) => self.add(d, inst::SP, self.frame + i64::from(at)),
            Op::LoadInt => return self.memory(inst::LOAD_X, d, operands),
            Op::LoadInt32 => return self.memory(inst::LOAD_SW, d, operands),
            Op::LoadPart(small) => {
                let signed = matches!(small, Small::I8 | Small::I16);
                return self.memory(Access::part(small.bytes(), true, signed), d, operands);
            }
            Op::ToGeneral(one) => {
                let op = if one.width() == 8 { inst::FMOV_X_D } else { inst::FMOV_W_S };
                self.push(inst::fields(op, d, operands.vector(0)?, 0));
            }
            Op::Add | Op::Sub | Op::Mul | Op::MulHigh | Op::DivInt => {
                let op = match op {
                    Op::Add => inst::ADD_X,
                    Op::Sub => inst::SUB_X,
                    Op::Mul => inst::MUL_X,
                    Op::MulHigh => inst::UMULH,
                    _ => inst::SDIV_X,
                };
                self.push(inst::fields(op, d, used(0)?, used(1)?));
            }
            Op::MinInt | Op::MaxInt => {
                let (a, b) = (used(0)?, used(1)?);
                self.push(inst::fields(inst::CMP_X, 0, a, b));
                self.push(inst::select(d, a, b, if op == Op::MinInt { inst::LT } else { inst::GT }));
            }
            Op::AddInt(value) => self.add(d, used(0)?, value.into()),
            Op::MulInt(value) => {
                self.words.extend(inst::constant(inst::X16, value.into()).into_iter().map(Word::Code));
                self.push(inst::fields(inst::MUL_X, d, used(0)?, inst::X16));
            }
            Op::ShlInt(count) => self.push(inst::shift_int(true, d, used(0)?, count)),
            Op::ShrInt(count) => self.push(inst::shift_int(false, d, used(0)?, count)),
            _ => return Err("not an operation on integers".into()),
        }
        Ok(())
    }

    /// A constant in every lane.
    fn constant(&mut self, lanes: Lanes, bits: u64, d: u8) {
        let bits = if lanes.width() == 8 { bits } else { bits & 0xffff_ffff };
        if let Some(word) = immediate(lanes, bits, d) {
            return self.push(word);
        }
        // A scalar is the first lane, and what is above it is not read.
        let bytes = bits.to_le_bytes()[..lanes.width()].repeat(lanes.count());
        let word = inst::load_literal(bytes.len(), d);
        let index = self.pool.index(bytes);
        self.words.push(Word::Literal(word, index));
    }

    /// The last operand, number `at`: a register, or what is loaded to a temporary one.
    fn last(&mut self, at: usize, temp: usize, lanes: Lanes, operands: &Operands) -> Result<u8, String> {
        match operands.mem {
            None => operands.vector(at),
            Some(Mem::Constant(bits)) => {
                let temp = operands.temp(temp)?;
                self.constant(lanes, bits, temp);
                Ok(temp)
            }
            Some(_) => {
                let temp = operands.temp(temp)?;
                self.memory(Access::vector(lanes.bytes(), true), temp, operands)?;
                Ok(temp)
            }
        }
    }

    fn vector(&mut self, op: Op, operands: &Operands, d: u8) -> Emitted {
        let lanes = op.lanes();
        let used = |at: usize| operands.vector(at);
        match op {
            Op::Splat(lanes, bits) => self.constant(lanes, bits, d),
            Op::Load(lanes) => return self.memory(Access::vector(lanes.bytes(), true), d, operands),
            Op::Broadcast(lanes) => return self.broadcast(lanes, d, operands),
            Op::BroadcastHalf => {
                self.memory(Access::vector(2, true), d, operands)?;
                self.push(inst::lane(inst::DUP, 2, true, d, d, 0));
            }
            Op::LoadSmall(small, lanes) => return self.load_small(small, lanes, d, operands),
            Op::LoadHalves(small, lanes) => return self.load_halves(small, lanes, d, operands),
            Op::Unpack(lanes) => self.push(inst::FCVTL.between(lanes, d, used(0)?)),
            Op::Pack(small, lanes) => self.pack(small, lanes, d, used(0)?),
            Op::Quantize(small, lanes) => {
                self.push(inst::FCVTNS.two(lanes, d, used(0)?));
                match small {
                    Small::I8 | Small::U8 => self.push(inst::SQXTN.sized(2, false, d, d, 0)),
                    Small::I16 => self.push(inst::SQXTN.sized(2, false, d, d, 0)),
                    Small::U16 => self.push(inst::SQXTUN.sized(2, false, d, d, 0)),
                    Small::F16 => return Err("floats are not quantized".into()),
                }
                match small {
                    Small::I8 => self.push(inst::SQXTN.sized(1, false, d, d, 0)),
                    Small::U8 => self.push(inst::SQXTUN.sized(1, false, d, d, 0)),
                    _ => {}
                }
            }
            Op::QuantizePair(small, adds, lanes) => {
                let other = operands.temp(0)?;
                self.push(inst::FCVTNS.two(lanes, d, used(0)?));
                self.push(inst::FCVTNS.two(lanes, other, used(1)?));
                self.push(inst::SQXTN.sized(2, false, d, d, 0));
                self.push(inst::SQXTN.sized(2, true, d, other, 0));
                if adds == 1 {
                    self.push(inst::SQADD.sized(2, true, d, d, used(2)?));
                }
                let code = if small == Small::I8 { inst::SQXTN } else { inst::SQXTUN };
                self.push(code.sized(1, false, d, d, 0));
            }
            Op::Binary(op, lanes) => return self.binary(op, lanes, d, operands),
            Op::Unary(op, lanes) => return self.unary(op, lanes, d, operands),
            Op::Compare(op, lanes) => return self.comparison(op, lanes, d, operands),
            Op::Fma(lanes) | Op::FmaNeg(lanes) => {
                let b = self.last(2, 0, lanes, operands)?;
                let code = if matches!(op, Op::Fma(_)) { inst::FMLA } else { inst::FMLS };
                self.push(code.three(lanes, d, used(1)?, b));
            }
            Op::FmaLane(lane, lanes) => {
                self.push(inst::FMLA_ELEMENT.element(lanes, d, used(1)?, (used(2)?, lane)));
            }
            Op::MulAdd(lanes) => {
                match operands.mem {
                    None => {}
                    Some(Mem::Constant(bits)) => self.constant(lanes, bits, d),
                    Some(_) => self.memory(Access::vector(lanes.bytes(), true), d, operands)?,
                }
                self.push(inst::FMLA.three(lanes, d, used(0)?, used(1)?));
            }
            Op::Dot(_, lanes) => {
                let (a, b) =
                    (used(1)?, self.last(2, super::registers::dot_temps(self.isa), lanes, operands)?);
                if self.isa.dot.is_some() {
                    self.push(inst::bits(inst::SDOT, lanes, d, a, b));
                    return Ok(());
                }
                // Products of 16 bits, sums of two and of four; the lower half comes from the lower bytes.
                let (low, high) = (operands.temp(0)?, operands.temp(1)?);
                self.push(inst::SMULL.sized(1, false, low, a, b));
                self.push(inst::SMULL.sized(1, true, high, a, b));
                self.push(inst::SADDLP.sized(2, true, low, low, 0));
                self.push(inst::SADDLP.sized(2, true, high, high, 0));
                self.push(inst::ADDP.sized(4, true, low, low, high));
                self.push(inst::ADD.three(lanes, d, d, low));
            }
            Op::DotLane(lane, _, lanes) => {
                self.push(inst::dot_element(inst::SDOT_ELEMENT, lanes, d, used(1)?, (used(2)?, lane)));
            }
            Op::MulAddHalves(part, _) => {
                self.push(inst::SMLAL.sized(2, part == 1, d, used(1)?, used(2)?));
            }
            Op::MulHalves(part, _) => {
                self.push(inst::SMULL.sized(2, part == 1, d, used(0)?, used(1)?));
            }
            Op::Blend(lanes) => self.push(inst::bits(inst::BSL, lanes, d, used(1)?, used(2)?)),
            Op::Mask(op, lanes) => {
                let code = match op {
                    Logic::And => inst::AND,
                    Logic::Or => inst::ORR,
                    Logic::Xor => inst::EOR,
                };
                self.push(inst::bits(code, lanes, d, used(0)?, used(1)?));
            }
            Op::MaskNot(lanes) => self.push(inst::bits(inst::NOT, lanes, d, used(0)?, 0)),
            // The allocator has put the result where the operand is, or has copied it there.
            Op::MaskBits(_) | Op::Extract(0, _) => {
                return self.transfer(operands.used(0)?, operands.result()?);
            }
            Op::SplatLane(lanes) if lanes.is_scalar() => {
                return self.transfer(operands.used(0)?, operands.result()?);
            }
            Op::MaskOf(lanes) => self.push(inst::CMLT_ZERO.two(lanes, d, used(0)?)),
            Op::MaskWiden(_) => self.push(inst::shift_left(inst::SSHLL, 4, false, d, used(0)?, 0)),
            Op::MaskNarrow(_) => self.push(inst::XTN.sized(4, false, d, used(0)?, 0)),
            Op::SplatLane(lanes) => {
                self.push(inst::lane(inst::DUP, lanes.width(), inst::whole(lanes), d, used(0)?, 0));
            }
            Op::Extract(lane, one) => {
                self.push(inst::lane(inst::DUP_SCALAR, one.width(), false, d, used(0)?, lane));
            }
            Op::Insert(lane, lanes) => self.push(inst::insert(lanes.width(), d, lane, used(1)?)),
            Op::FromGeneral(one) => {
                let code = if one.width() == 8 { inst::FMOV_D_X } else { inst::FMOV_S_W };
                self.push(inst::fields(code, d, operands.general(0)?, 0));
            }
            Op::Convert(op, lanes) => self.convert(op, lanes, d, used(0)?)?,
            _ => return Err(format!("there is no such operation on vectors of {lanes:?}")),
        }
        Ok(())
    }

    /// Without a displacement one instruction does it.
    fn broadcast(&mut self, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        if let (base, None, 0) = operands.address()? {
            if lanes.is_scalar() {
                self.access(Access::vector(lanes.bytes(), true), d, base, 0);
            } else {
                self.push(inst::load_each(lanes, d, base));
            }
            return Ok(());
        }
        self.memory(Access::vector(lanes.width(), true), d, operands)?;
        if !lanes.is_scalar() {
            self.push(inst::lane(inst::DUP, lanes.width(), inst::whole(lanes), d, d, 0));
        }
        Ok(())
    }

    fn load_small(&mut self, small: Small, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        self.memory(Access::vector(small.bytes() * lanes.count(), true), d, operands)?;
        let code = match small {
            Small::F16 => {
                self.push(inst::FCVTL.between(lanes, d, d));
                return Ok(());
            }
            Small::I8 | Small::I16 => inst::SSHLL,
            Small::U8 | Small::U16 => inst::USHLL,
        };
        if small.bytes() == 1 {
            self.push(inst::shift_left(code, 1, false, d, d, 0));
        }
        self.push(inst::shift_left(code, 2, false, d, d, 0));
        Ok(())
    }

    fn load_halves(&mut self, small: Small, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        self.memory(Access::vector(2 * small.bytes() * lanes.count(), true), d, operands)?;
        let code = if small == Small::I8 { inst::SSHLL } else { inst::USHLL };
        self.push(inst::shift_left(code, 1, false, d, d, 0));
        Ok(())
    }

    fn pack(&mut self, small: Small, lanes: Lanes, d: u8, n: u8) {
        if small == Small::F16 {
            return self.push(inst::FCVTN.between(lanes, d, n));
        }
        self.push(inst::XTN.sized(2, false, d, n, 0));
        if small.bytes() == 1 {
            self.push(inst::XTN.sized(1, false, d, d, 0));
        }
    }

    fn binary(&mut self, op: Binary, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        let wide = lanes.width() == 8;
        let temp_of_last = super::registers::own_temps(op);
        let (a, b) = (operands.vector(0)?, self.last(1, temp_of_last, lanes, operands)?);
        let temp = |at: usize| operands.temp(at);
        let word = match op {
            Binary::Add => inst::FADD.three(lanes, d, a, b),
            Binary::Sub => inst::FSUB.three(lanes, d, a, b),
            Binary::Mul => inst::FMUL.three(lanes, d, a, b),
            Binary::Div if lanes.is_scalar() => inst::FDIV_SCALAR.scalar(lanes, d, a, b),
            Binary::Div => inst::FDIV.three(lanes, d, a, b),
            Binary::Minimum => inst::FMIN.three(lanes, d, a, b),
            Binary::Maximum => inst::FMAX.three(lanes, d, a, b),
            Binary::And => inst::bits(inst::AND, lanes, d, a, b),
            Binary::Or => inst::bits(inst::ORR, lanes, d, a, b),
            Binary::Xor => inst::bits(inst::EOR, lanes, d, a, b),
            Binary::IntAdd => inst::ADD.three(lanes, d, a, b),
            Binary::IntSub => inst::SUB.three(lanes, d, a, b),
            Binary::IntMul if !wide => inst::MUL.three(lanes, d, a, b),
            Binary::IntMul => return self.long_product(lanes, d, a, b),
            Binary::IntMin if !wide => inst::SMIN.three(lanes, d, a, b),
            Binary::IntMax if !wide => inst::SMAX.three(lanes, d, a, b),
            // Where the first is less, or greater, it is chosen.
            Binary::Min | Binary::Max | Binary::IntMin | Binary::IntMax => {
                let (greater, less) =
                    if matches!(op, Binary::Min | Binary::IntMin) { (b, a) } else { (a, b) };
                self.push(match op {
                    Binary::Min | Binary::Max => inst::FCMGT.three(lanes, d, greater, less),
                    _ => inst::CMGT.three(lanes, d, greater, less),
                });
                inst::bits(inst::BSL, lanes, d, a, b)
            }
            Binary::LowMul => {
                let low = temp(0)?;
                self.push(inst::XTN.sized(4, false, low, a, 0));
                self.push(inst::XTN.sized(4, false, d, b, 0));
                inst::UMULL.sized(4, false, d, low, d)
            }
            Binary::DotPairs => {
                let low = temp(0)?;
                self.push(inst::SMULL.sized(2, false, low, a, b));
                self.push(inst::SMULL.sized(2, true, d, a, b));
                inst::ADDP.sized(4, true, d, low, d)
            }
            Binary::DotHalves => {
                let low = temp(0)?;
                self.push(inst::SMULL.sized(1, false, low, a, b));
                self.push(inst::SMULL.sized(1, true, d, a, b));
                inst::ADDP.sized(2, true, d, low, d)
            }
            Binary::AddHalves => inst::SADALP.sized(2, inst::whole(lanes), d, b, 0),
            Binary::ShlBy | Binary::ShrBy | Binary::ShrArithBy => {
                // The lowest byte of a lane is the count, to the right where it is negative: too large ones are one that
                // leaves nothing but zeros or the sign.
                let count = temp(0)?;
                self.push(inst::modified(count, 64, 0b0000, false, lanes));
                self.push(inst::UMIN.three(lanes, count, b, count));
                if op != Binary::ShlBy {
                    self.push(inst::NEG.two(lanes, count, count));
                }
                let code = if op == Binary::ShrArithBy { inst::SSHL } else { inst::USHL };
                code.three(lanes, d, a, count)
            }
            Binary::IntDiv | Binary::UnsignedDiv => return self.quotient(op, lanes, d, a, b),
            // `Isa::has` answers for each operation, and tests emit all that it has.
            _ => return Err("there is no such instruction".into()),
        };
        self.push(word);
        Ok(())
    }

    /// Products of 64 bits, by general registers.
    fn long_product(&mut self, lanes: Lanes, d: u8, a: u8, b: u8) -> Emitted {
        for at in 0..lanes.count() as u8 {
            self.push(inst::lane(inst::UMOV, 8, true, inst::X16, a, at));
            self.push(inst::lane(inst::UMOV, 8, true, inst::X17, b, at));
            self.push(inst::fields(inst::MUL_X, inst::X16, inst::X16, inst::X17));
            self.push(inst::lane(inst::INS_GENERAL, 8, false, d, inst::X16, at));
        }
        Ok(())
    }

    /// Of scalars. The processor gives 0 for a divisor of zero, and the least number by -1 wraps.
    fn quotient(&mut self, op: Binary, lanes: Lanes, d: u8, a: u8, b: u8) -> Emitted {
        let wide = lanes.width() == 8;
        let (out, back) = match wide {
            true => (inst::FMOV_X_D, inst::FMOV_D_X),
            false => (inst::FMOV_W_S, inst::FMOV_S_W),
        };
        let code = match (op, wide) {
            (Binary::IntDiv, true) => inst::SDIV_X,
            (Binary::IntDiv, false) => inst::SDIV_W,
            (_, true) => inst::UDIV_X,
            (_, false) => inst::UDIV_W,
        };
        self.push(inst::fields(out, inst::X16, a, 0));
        self.push(inst::fields(out, inst::X17, b, 0));
        self.push(inst::fields(code, inst::X16, inst::X16, inst::X17));
        self.push(inst::fields(back, d, inst::X16, 0));
        Ok(())
    }

    fn unary(&mut self, op: Unary, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        let n = self.last(0, 0, lanes, operands)?;
        let float = |code: Float| code.two(lanes, d, n);
        let width = lanes.width();
        let shift = |count: u8, most: usize| u32::from(count).min(most as u32);
        let word = match op {
            Unary::Sqrt if lanes.is_scalar() => inst::FSQRT_SCALAR.scalar(lanes, d, n, 0),
            Unary::Sqrt => float(inst::FSQRT),
            Unary::Floor => float(inst::FRINTM),
            Unary::Ceil => float(inst::FRINTP),
            Unary::Trunc => float(inst::FRINTZ),
            Unary::Nearest => float(inst::FRINTN),
            Unary::ToInt => float(inst::FCVTZS),
            Unary::ToIntNearest => float(inst::FCVTNS),
            Unary::FromInt => float(inst::SCVTF),
            Unary::RoundBf16 => {
                self.push(inst::fields(inst::BFCVTN, d, n, 0));
                inst::fields(inst::SHLL, d, d, 0)
            }
            Unary::Shl(count) | Unary::Shr(count) if usize::from(count) >= 8 * width => {
                inst::move_byte(d, 0, lanes)
            }
            Unary::ShrHalves(16..) => inst::move_byte(d, 0, lanes),
            Unary::Shl(count) => inst::shift_left(inst::SHL, width, true, d, n, count.into()),
            Unary::Shr(0) | Unary::ShrArith(0) | Unary::ShrArithHalves(0) | Unary::ShrHalves(0) => {
                inst::bits(inst::ORR, lanes, d, n, n)
            }
            Unary::Shr(count) => inst::shift_right(inst::USHR, width, true, d, n, count.into()),
            Unary::ShrArith(count) => {
                inst::shift_right(inst::SSHR, width, true, d, n, shift(count, 8 * width))
            }
            Unary::ShrArithHalves(count) => inst::shift_right(inst::SSHR, 2, true, d, n, shift(count, 16)),
            Unary::ShrHalves(count) => inst::shift_right(inst::USHR, 2, true, d, n, count.into()),
        };
        self.push(word);
        Ok(())
    }

    fn comparison(&mut self, op: Compare, lanes: Lanes, d: u8, operands: &Operands) -> Emitted {
        let (a, b) = (operands.vector(0)?, self.last(1, 0, lanes, operands)?);
        let float = |code: Float, a: u8, b: u8| code.three(lanes, d, a, b);
        let int = |code: Int| code.three(lanes, d, a, b);
        self.push(match op {
            Compare::Eq | Compare::Ne => float(inst::FCMEQ, a, b),
            Compare::Lt => float(inst::FCMGT, b, a),
            Compare::Le => float(inst::FCMGE, b, a),
            Compare::IntEq => int(inst::CMEQ),
            Compare::IntGt => int(inst::CMGT),
        });
        if op == Compare::Ne {
            self.push(inst::bits(inst::NOT, lanes, d, d, 0));
        }
        Ok(())
    }

    fn convert(&mut self, op: Convert, lanes: Lanes, d: u8, n: u8) -> Emitted {
        match op {
            Convert::Widen => self.push(inst::FCVTL.between(lanes, d, n)),
            Convert::Narrow => self.push(inst::FCVTN.between(lanes, d, n)),
            Convert::IntToDouble => {
                self.push(inst::shift_left(inst::SSHLL, 4, false, d, n, 0));
                self.push(inst::SCVTF.two(lanes, d, d));
            }
            Convert::DoubleToInt => {
                self.push(inst::FCVTZS.two(lanes, d, n));
                self.push(inst::SQXTN.sized(4, false, d, d, 0));
            }
            Convert::Extend => self.push(inst::shift_left(inst::SSHLL, 4, false, d, n, 0)),
            Convert::Truncate => self.push(inst::XTN.sized(4, false, d, n, 0)),
            Convert::LongToDouble => self.push(inst::SCVTF.two(lanes, d, n)),
            Convert::SaturateToLong => self.push(inst::FCVTZS.two(lanes, d, n)),
            Convert::DoubleToLong => return Err("there is no such instruction".into()),
        }
        Ok(())
    }
}

/// The instruction that makes a constant without loading it, if there is one.
fn immediate(lanes: Lanes, bits: u64, d: u8) -> Option<u32> {
    if bits == 0 {
        return Some(inst::move_byte(d, 0, lanes));
    }
    if lanes.width() == 8 {
        // A float of three bits of exponent and four of fraction.
        let byte = (bits >> 56 & 0x80) as u8 | (bits >> 48 & 0x7f) as u8;
        let exponent = bits >> 54 & 0x1ff;
        let fits = bits & 0x0000_ffff_ffff_ffff == 0 && (exponent == 0x100 || exponent == 0x0ff);
        return fits.then(|| inst::modified(d, byte, 0b1111, true, lanes));
    }
    let bits = bits as u32;
    let byte = bits as u8;
    if bits == u32::from_le_bytes([byte; 4]) {
        return Some(inst::move_byte(d, byte, lanes));
    }
    for at in 0..4 {
        let part = (bits >> (8 * at)) as u8;
        if bits == u32::from(part) << (8 * at) {
            return Some(inst::modified(d, part, 2 * at, false, lanes));
        }
        if !bits == u32::from(!part) << (8 * at) {
            return Some(inst::modified(d, !part, 2 * at, true, lanes));
        }
    }
    let byte = (bits >> 24 & 0x80) as u8 | (bits >> 19 & 0x7f) as u8;
    let exponent = bits >> 25 & 0x3f;
    let fits = bits & 0x0007_ffff == 0 && (exponent == 0x20 || exponent == 0x1f);
    fits.then(|| inst::modified(d, byte, 0b1111, false, lanes))
}
