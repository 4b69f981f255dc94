//! Operations on vectors, scalars and masks. Cranelift's instructions are the same for scalars and vectors.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types as t};

use super::types::{is_sign_mask, of_lanes, of_mask};
use super::{Emitted, Emitter, Shift};
use onnxc_machine::vector::ir::{Binary, Compare, Convert, Inst, Lanes, Logic, Mem, Op, Small, Unary};

impl Emitter<'_> {
    /// Operations with a mask for a result.
    pub(super) fn mask(&mut self, inst: &Inst) -> Emitted<Value> {
        Ok(match inst.op {
            Op::Compare(op, lanes) => self.compare(inst, op, lanes)?,
            Op::Mask(op, lanes) => {
                let ty = self.mask_type(lanes);
                let (a, b) = (self.operand(inst, 0, ty)?, self.operand(inst, 1, ty)?);
                match op {
                    Logic::And => self.b.ins().band(a, b),
                    Logic::Or => self.b.ins().bor(a, b),
                    Logic::Xor => self.b.ins().bxor(a, b),
                }
            }
            Op::MaskNot(lanes) if self.mask_type(lanes) == t::I8 => {
                let (a, one) = (self.operand(inst, 0, t::I8)?, self.constant(t::I8, 1));
                self.b.ins().bxor(a, one)
            }
            Op::MaskNot(lanes) => {
                let a = self.operand(inst, 0, of_mask(lanes))?;
                self.b.ins().bnot(a)
            }
            Op::MaskOf(lanes) if self.mask_type(lanes) == t::I8 => {
                let ty = of_lanes(lanes.one(), false);
                let (a, zero) = (self.operand(inst, 0, ty)?, self.constant(ty, 0));
                self.b.ins().icmp(IntCC::SignedLessThan, a, zero)
            }
            Op::MaskOf(lanes) => self.operand(inst, 0, of_mask(lanes))?,
            Op::MaskWiden(Lanes::D1) | Op::MaskNarrow(Lanes::D1) => self.operand(inst, 0, t::I8)?,
            Op::MaskWiden(_) => {
                let a = self.operand(inst, 0, t::I32X4)?;
                self.b.ins().swiden_low(a)
            }
            Op::MaskNarrow(_) => {
                let a = self.operand(inst, 0, t::I64X2)?;
                self.low_halves(a)
            }
            _ => return Err("no operation on masks".into()),
        })
    }

    /// See [`of_mask`]. Without vectors the mask of a pair of f64, one element there, is a bool as well.
    fn mask_type(&self, lanes: Lanes) -> Type {
        if self.isa.has_vectors() { of_mask(lanes) } else { t::I8 }
    }

    fn compare(&mut self, inst: &Inst, op: Compare, lanes: Lanes) -> Emitted<Value> {
        let float = !matches!(op, Compare::IntEq | Compare::IntGt);
        let ty = of_lanes(lanes, float);
        let (a, b) = (self.operand(inst, 0, ty)?, self.operand(inst, 1, ty)?);
        let cc = match op {
            Compare::IntEq => return Ok(self.b.ins().icmp(IntCC::Equal, a, b)),
            Compare::IntGt => return Ok(self.b.ins().icmp(IntCC::SignedGreaterThan, a, b)),
            Compare::Eq => FloatCC::Equal,
            Compare::Ne => FloatCC::NotEqual,
            Compare::Lt => FloatCC::LessThan,
            Compare::Le => FloatCC::LessThanOrEqual,
        };
        let (a, b) = (self.in_register(a), self.in_register(b));
        Ok(self.b.ins().fcmp(cc, a, b))
    }

    /// The same vector, with nothing that Cranelift takes for a load that it may make an operand in memory: without AVX
    /// it does so in `cmpps` and `cmppd` at any address, and they fault at one that is not a multiple of 16.
    fn in_register(&mut self, value: Value) -> Value {
        let ty = self.type_of(value);
        if !ty.is_vector() {
            return value;
        }
        let bits = self.bitcast(ty.as_int(), value);
        self.bitcast(ty, bits)
    }

    /// Operations with a vector or a scalar for a result.
    pub(super) fn vector(&mut self, inst: &Inst) -> Emitted<Value> {
        let dst = inst.dst.ok_or("the result is missing")?;
        let own = self.types.of_reg(dst);
        Ok(match inst.op {
            Op::Load(lanes) => self.load_lanes(inst, lanes, own)?,
            Op::Broadcast(_) => self.broadcast(inst, own)?,
            Op::LoadSmall(small, lanes) => self.load_small(inst, small, lanes)?,
            Op::Pack(small, _) if small != Small::F16 => {
                let value = self.operand(inst, 0, t::I32X4)?;
                self.pack(value, small.bytes())
            }
            Op::Binary(op, lanes) => self.binary(inst, op, lanes, own)?,
            Op::Unary(op, lanes) => self.unary(inst, op, lanes)?,
            Op::Fma(lanes) | Op::FmaNeg(lanes) => {
                let ty = of_lanes(lanes, true);
                let (sum, a, b) =
                    (self.operand(inst, 0, ty)?, self.operand(inst, 1, ty)?, self.operand(inst, 2, ty)?);
                let a = if matches!(inst.op, Op::Fma(_)) { a } else { self.b.ins().fneg(a) };
                self.b.ins().fma(a, b, sum)
            }
            Op::MulAdd(lanes) => {
                let ty = of_lanes(lanes, true);
                let (a, b, c) =
                    (self.operand(inst, 0, ty)?, self.operand(inst, 1, ty)?, self.operand(inst, 2, ty)?);
                self.b.ins().fma(a, b, c)
            }
            Op::Blend(lanes) => {
                let mask = self.operand(inst, 0, self.mask_type(lanes))?;
                let (a, b) = (self.operand(inst, 1, own)?, self.operand(inst, 2, own)?);
                self.choose(mask, a, b)
            }
            Op::SplatLane(_) if own.is_vector() => {
                let lane = self.operand(inst, 0, own.lane_type())?;
                self.b.ins().splat(own, lane)
            }
            Op::SplatLane(_) | Op::Extract(0, _) => self.operand(inst, 0, own)?,
            Op::Extract(_, _) if !self.isa.has_vectors() => {
                let whole = self.operand(inst, 0, t::I128)?;
                let (_, high) = self.b.ins().isplit(whole);
                self.bitcast(own, high)
            }
            Op::Extract(lane, _) => {
                let whole = self.operand(inst, 0, own.by(128 / own.bits()).ok_or("no such vector")?)?;
                self.b.ins().extractlane(whole, lane)
            }
            Op::SwapBytes(lanes) => {
                let a = self.operand(inst, 0, of_lanes(lanes, false))?;
                self.swap_bytes(a)
            }
            Op::Insert(lane, _) if !self.isa.has_vectors() => {
                let (whole, one) = (self.operand(inst, 0, own)?, self.operand(inst, 1, t::I64)?);
                let (low, high) = self.b.ins().isplit(whole);
                match lane {
                    0 => self.b.ins().iconcat(one, high),
                    _ => self.b.ins().iconcat(low, one),
                }
            }
            Op::Insert(lane, _) => {
                let (whole, one) = (self.operand(inst, 0, own)?, self.operand(inst, 1, own.lane_type())?);
                self.b.ins().insertlane(whole, one, lane)
            }
            Op::FromGeneral(Lanes::D1) => self.operand(inst, 0, t::I64)?,
            Op::FromGeneral(_) => {
                let value = self.operand(inst, 0, t::I64)?;
                self.b.ins().ireduce(t::I32, value)
            }
            Op::MaskBits(lanes) if lanes.is_scalar() => {
                let bit = self.operand(inst, 0, t::I8)?;
                let bit = self.b.ins().uextend(of_lanes(lanes, false), bit);
                self.b.ins().ineg(bit)
            }
            Op::MaskBits(lanes) => self.operand(inst, 0, of_mask(lanes))?,
            Op::Convert(op, lanes) => self.convert(inst, op, lanes)?,
            _ => return Err("no operation on vectors".into()),
        })
    }

    /// `a` where the condition holds, a bool or a mask of lanes of the same width.
    pub(super) fn choose(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let ty = self.type_of(a);
        if !ty.is_vector() {
            return self.b.ins().select(condition, a, b);
        }
        let condition = self.bitcast(ty, condition);
        self.b.ins().bitselect(condition, a, b)
    }

    fn binary(&mut self, inst: &Inst, op: Binary, lanes: Lanes, own: Type) -> Emitted<Value> {
        use Binary::*;
        let (float, int) = (of_lanes(lanes, true), of_lanes(lanes, false));
        let ty = match op {
            Add | Sub | Mul | Div | Min | Max | Minimum | Maximum | Rem => float,
            And | Or | Xor if lanes.is_scalar() => return self.bits(inst, op, lanes, own),
            And | Or | Xor => own,
            DotPairs => return self.dot_pairs(inst),
            _ => int,
        };
        let (a, b) = (self.operand(inst, 0, ty)?, self.operand(inst, 1, ty)?);
        Ok(match op {
            Add => self.b.ins().fadd(a, b),
            Sub => self.b.ins().fsub(a, b),
            Mul => self.b.ins().fmul(a, b),
            Div => self.b.ins().fdiv(a, b),
            Min => {
                let first = self.b.ins().fcmp(FloatCC::LessThan, a, b);
                self.choose(first, a, b)
            }
            Max => {
                let first = self.b.ins().fcmp(FloatCC::LessThan, b, a);
                self.choose(first, a, b)
            }
            Minimum => self.b.ins().fmin(a, b),
            Maximum => self.b.ins().fmax(a, b),
            Rem => self.float_rem(a, b),
            And => self.b.ins().band(a, b),
            Or => self.b.ins().bor(a, b),
            Xor => self.b.ins().bxor(a, b),
            IntAdd => self.b.ins().iadd(a, b),
            IntSub => self.b.ins().isub(a, b),
            IntMul => self.b.ins().imul(a, b),
            // 64-bit lanes have comparison only.
            IntMin | IntMax if lanes == Lanes::D2 => {
                let cc = if op == IntMax { IntCC::SignedGreaterThan } else { IntCC::SignedLessThan };
                let first = self.b.ins().icmp(cc, a, b);
                self.choose(first, a, b)
            }
            IntMin => self.b.ins().smin(a, b),
            IntMax => self.b.ins().smax(a, b),
            IntDiv => self.divide(a, b, true),
            UnsignedDiv => self.divide(a, b, false),
            ShlBy => self.shift_by(a, b, Shift::Left),
            ShrBy => self.shift_by(a, b, Shift::Right),
            ShrArithBy => self.shift_by(a, b, Shift::Arithmetic),
            // `Isa::has` answers for each operation, and tests emit all that it has.
            _ => return Err("no such instruction".into()),
        })
    }

    /// Logic on the bits of a scalar; that of a float's sign has instructions of its own.
    fn bits(&mut self, inst: &Inst, op: Binary, lanes: Lanes, own: Type) -> Emitted<Value> {
        let (int, own_float) = (of_lanes(lanes, false), own.is_float());
        let constant = match (inst.uses.get(1), inst.mem) {
            (Some(&reg), _) => self.types.constant(reg),
            (None, Some(Mem::Constant(bits))) => Some(bits),
            _ => None,
        };
        if let Some(bits) = constant.filter(|&bits| own_float && is_sign_mask(bits, lanes)) {
            let sign = bits & 1 == 0;
            match (op, sign) {
                (Binary::And, false) => {
                    let a = self.operand(inst, 0, own)?;
                    return Ok(self.b.ins().fabs(a));
                }
                (Binary::Xor, true) => {
                    let a = self.operand(inst, 0, own)?;
                    return Ok(self.b.ins().fneg(a));
                }
                _ => {}
            }
        }
        let (a, b) = (self.operand(inst, 0, int)?, self.operand(inst, 1, int)?);
        Ok(match op {
            Binary::And => self.b.ins().band(a, b),
            Binary::Or => self.b.ins().bor(a, b),
            _ => self.b.ins().bxor(a, b),
        })
    }

    fn dot_pairs(&mut self, inst: &Inst) -> Emitted<Value> {
        let (a, b) = (self.operand(inst, 0, t::I32X4)?, self.operand(inst, 1, t::I32X4)?);
        let (a, b) = (self.bitcast(t::I16X8, a), self.bitcast(t::I16X8, b));
        let (a_low, b_low) = (self.b.ins().swiden_low(a), self.b.ins().swiden_low(b));
        let low = self.b.ins().imul(a_low, b_low);
        let (a_high, b_high) = (self.b.ins().swiden_high(a), self.b.ins().swiden_high(b));
        let high = self.b.ins().imul(a_high, b_high);
        Ok(self.b.ins().iadd_pairwise(low, high))
    }

    fn unary(&mut self, inst: &Inst, op: Unary, lanes: Lanes) -> Emitted<Value> {
        let (float, int) = (of_lanes(lanes, true), of_lanes(lanes, false));
        let bits = 8 * lanes.width() as u8;
        Ok(match op {
            Unary::Sqrt | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest => {
                let a = self.operand(inst, 0, float)?;
                match op {
                    Unary::Sqrt => self.b.ins().sqrt(a),
                    Unary::Floor => self.b.ins().floor(a),
                    Unary::Ceil => self.b.ins().ceil(a),
                    Unary::Trunc => self.b.ins().trunc(a),
                    _ => self.b.ins().nearest(a),
                }
            }
            Unary::ToInt => {
                let a = self.operand(inst, 0, float)?;
                match int.is_vector() && self.isa.has_truncating_convert {
                    true => self.b.ins().x86_cvtt2dq(int, a),
                    false => self.b.ins().fcvt_to_sint_sat(int, a),
                }
            }
            Unary::FromInt => {
                let a = self.operand(inst, 0, int)?;
                self.b.ins().fcvt_from_sint(float, a)
            }
            Unary::Shl(count) | Unary::Shr(count) if count >= bits => self.constant(int, 0),
            Unary::Shl(0) | Unary::Shr(0) | Unary::ShrArith(0) => self.operand(inst, 0, int)?,
            Unary::Shl(count) => {
                let a = self.operand(inst, 0, int)?;
                self.shifted(a, count, Shift::Left)
            }
            Unary::Shr(count) => {
                let a = self.operand(inst, 0, int)?;
                self.shifted(a, count, Shift::Right)
            }
            Unary::ShrArith(count) => {
                let a = self.operand(inst, 0, int)?;
                self.shifted(a, count.min(bits - 1), Shift::Arithmetic)
            }
            Unary::ShrArithHalves(count) => {
                let a = self.operand(inst, 0, t::I32X4)?;
                let halves = self.bitcast(t::I16X8, a);
                self.shifted(halves, count.min(15), Shift::Arithmetic)
            }
            Unary::ShrHalves(16..) => self.constant(t::I32X4, 0),
            Unary::ShrHalves(count) => {
                let a = self.operand(inst, 0, t::I32X4)?;
                let halves = self.bitcast(t::I16X8, a);
                self.shifted(halves, count, Shift::Right)
            }
            // As in `binary`.
            _ => return Err("no such instruction".into()),
        })
    }

    fn convert(&mut self, inst: &Inst, op: Convert, lanes: Lanes) -> Emitted<Value> {
        let scalar = lanes.is_scalar();
        let (from, float) = match op {
            Convert::Widen => (lanes.narrow(), true),
            Convert::IntToDouble | Convert::Extend => (lanes.narrow(), false),
            Convert::Narrow | Convert::DoubleToInt => (lanes, true),
            Convert::DoubleToLong | Convert::SaturateToLong => (lanes, true),
            Convert::Truncate | Convert::LongToDouble => (lanes, false),
        };
        let a = self.operand(inst, 0, of_lanes(from, float))?;
        Ok(match op {
            Convert::Widen if scalar => self.b.ins().fpromote(t::F64, a),
            Convert::Widen => self.b.ins().fvpromote_low(a),
            Convert::Narrow if scalar => self.b.ins().fdemote(t::F32, a),
            Convert::Narrow => self.b.ins().fvdemote(a),
            Convert::IntToDouble if scalar => self.b.ins().fcvt_from_sint(t::F64, a),
            Convert::IntToDouble => {
                let wide = self.b.ins().swiden_low(a);
                self.b.ins().fcvt_from_sint(t::F64X2, wide)
            }
            Convert::Extend if scalar => self.b.ins().sextend(t::I64, a),
            Convert::Extend => self.b.ins().swiden_low(a),
            Convert::Truncate if scalar => self.b.ins().ireduce(t::I32, a),
            Convert::Truncate => self.low_halves(a),
            Convert::DoubleToInt => self.b.ins().fcvt_to_sint_sat(t::I32, a),
            Convert::LongToDouble => self.b.ins().fcvt_from_sint(t::F64, a),
            Convert::SaturateToLong => self.b.ins().fcvt_to_sint_sat(t::I64, a),
            Convert::DoubleToLong => return Err("no such instruction".into()),
        })
    }
}
