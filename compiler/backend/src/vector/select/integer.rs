//! The functions of integers. Results are wrapped to the element type by `arith.rs`.

use super::value::{Form, Val, ValKind};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_machine::vector::ir::{
    Binary, Class, Compare, Cond, Convert, End, Lanes, Logic, Op, Operand, Reg, Unary,
};

/// The bit that the order of unsigned integers and that of signed ones differ by.
fn sign(form: Form) -> Val {
    if form == Form::Long { Val::long(i64::MIN) } else { Val::int(i32::MIN) }
}

/// Whether values of a type fill lanes without leaving room for a sign.
pub(super) fn is_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U32 | DType::U64)
}

impl Select<'_> {
    pub fn int_unary(&mut self, op: UnaryFn, form: Form, dtype: DType, x: Val) -> Selected<Val> {
        let zero = Val::number(0, form);
        match op {
            UnaryFn::Neg => self.pair(Binary::IntSub, zero, x),
            UnaryFn::Abs if dtype.is_signed_int() => {
                let negative = self.pair(Binary::IntSub, zero, x)?;
                self.int_extreme(form, true, x, negative)
            }
            UnaryFn::Abs | UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Trunc | UnaryFn::Round => Ok(x),
            UnaryFn::BitNot => self.pair(Binary::Xor, x, Val::number(-1, form)),
            UnaryFn::Sign if is_unsigned(dtype) => {
                let is_zero = self.test(Compare::IntEq, x, zero)?;
                self.choose(form, is_zero, zero, Val::number(1, form))
            }
            UnaryFn::Sign => {
                let [one, minus] = [1, -1].map(|value| Val::number(value, form));
                let positive = self.test(Compare::IntGt, x, zero)?;
                let value = self.choose(form, positive, one, zero)?;
                let negative = self.test(Compare::IntGt, zero, x)?;
                self.choose(form, negative, minus, value)
            }
            UnaryFn::Swap if dtype == DType::C64 => self.swap_halves(x),
            _ => refuse(format!("`{op}` of {dtype}")),
        }
    }

    /// The halves of a lane exchanged, such as the parts of a complex number.
    pub fn swap_halves(&mut self, x: Val) -> Selected<Val> {
        let bits = 4 * x.width as u8;
        let (high, low) = (self.simple(Unary::Shl(bits), x)?, self.simple(Unary::Shr(bits), x)?);
        self.pair(Binary::Or, high, low)
    }

    pub fn int_binary(&mut self, op: BinaryFn, form: Form, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        match op {
            BinaryFn::Add => self.pair(Binary::IntAdd, a, b),
            BinaryFn::Sub => self.pair(Binary::IntSub, a, b),
            dot if dot.is_dot() => self.dot(dot, Val::int(0), a, b),
            BinaryFn::Mul if form == Form::Long && !self.isa.has_long_arithmetic => self.long_product(a, b),
            BinaryFn::Mul => self.pair(Binary::IntMul, a, b),
            BinaryFn::Max | BinaryFn::Min if is_unsigned(dtype) => {
                let greater = self.int_greater(dtype, a, b)?;
                let (then, otherwise) = if op == BinaryFn::Max { (a, b) } else { (b, a) };
                self.choose(form, greater, then, otherwise)
            }
            BinaryFn::Max => self.int_extreme(form, true, a, b),
            BinaryFn::Min => self.int_extreme(form, false, a, b),
            BinaryFn::BitAnd => {
                let masks = |x: Val| x.width == 4 && x.as_bits().is_some_and(|bits| bits & 0x8080_8080 == 0);
                let value = self.pair(Binary::And, a, b)?;
                Ok(Val { small_bytes: masks(a) || masks(b), ..value })
            }
            BinaryFn::BitOr => self.pair(Binary::Or, a, b),
            BinaryFn::BitXor => self.pair(Binary::Xor, a, b),
            BinaryFn::Shl | BinaryFn::Shr => self.shift(op, form, dtype, a, b),
            BinaryFn::Div => self.quotient_of(dtype, a, b),
            BinaryFn::Rem | BinaryFn::Mod => self.int_rest(op, form, dtype, a, b),
            BinaryFn::Pow => self.int_power(form, dtype, a, b),
            _ => refuse(format!("`{op}` of {dtype}")),
        }
    }

    /// Whether `a > b`.
    pub fn int_greater(&mut self, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        if !is_unsigned(dtype) {
            return self.test(Compare::IntGt, a, b);
        }
        let bit = sign(Form::of(dtype)?);
        let (a, b) = (self.pair(Binary::Xor, a, bit)?, self.pair(Binary::Xor, b, bit)?);
        self.test(Compare::IntGt, a, b)
    }

    fn int_extreme(&mut self, form: Form, greatest: bool, a: Val, b: Val) -> Selected<Val> {
        if form == Form::Long && !self.isa.has_long_arithmetic {
            let greater = self.test(Compare::IntGt, a, b)?;
            let (then, otherwise) = if greatest { (a, b) } else { (b, a) };
            return self.choose(form, greater, then, otherwise);
        }
        self.pair(if greatest { Binary::IntMax } else { Binary::IntMin }, a, b)
    }

    fn quotient_of(&mut self, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let op = if is_unsigned(dtype) { Binary::UnsignedDiv } else { Binary::IntDiv };
        self.apply(|lanes| Op::Binary(op, lanes), &[a, b])
    }

    /// Of `rem` and `mod`: 0 for a zero divisor.
    fn int_rest(&mut self, op: BinaryFn, form: Form, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let zero = Val::number(0, form);
        let quotient = self.quotient_of(dtype, a, b)?;
        let whole = self.int_binary(BinaryFn::Mul, form, dtype, quotient, b)?;
        let mut rest = self.pair(Binary::IntSub, a, whole)?;
        if op == BinaryFn::Mod && dtype.is_signed_int() {
            // A rest with the other sign than the divisor is one divisor off.
            let signs = self.pair(Binary::Xor, rest, b)?;
            let differ = self.test(Compare::IntGt, zero, signs)?;
            let none = self.test(Compare::IntEq, rest, zero)?;
            let some = self.not(none)?;
            let off = self.logic(Logic::And, differ, some)?;
            let other = self.pair(Binary::IntAdd, rest, b)?;
            rest = self.choose(form, off, other, rest)?;
        }
        let undefined = self.test(Compare::IntEq, b, zero)?;
        self.choose(form, undefined, zero, rest)
    }

    fn shift(&mut self, op: BinaryFn, form: Form, dtype: DType, a: Val, count: Val) -> Selected<Val> {
        let bits = dtype.bits();
        if let ValKind::Const(count) = count.kind {
            let unused = 64 - bits;
            let count = count << unused >> unused;
            return match (op, count < u64::from(bits)) {
                (_, false) => Ok(Val::number(0, form)),
                (BinaryFn::Shl, _) => self.simple(Unary::Shl(count as u8), a),
                _ if is_unsigned(dtype) => self.simple(Unary::Shr(count as u8), a),
                _ => self.shift_right(form, count as u8, a),
            };
        }
        let by = match op {
            BinaryFn::Shl => Binary::ShlBy,
            _ if is_unsigned(dtype) => Binary::ShrBy,
            _ => Binary::ShrArithBy,
        };
        let value = self.pair(by, a, count)?;
        // A count that is negative or too large gives 0.
        let negative = self.test(Compare::IntGt, Val::number(0, form), count)?;
        let large = self.test(Compare::IntGt, count, Val::number(bits as i8 - 1, form))?;
        let beyond = self.logic(Logic::Or, negative, large)?;
        self.choose(form, beyond, Val::number(0, form), value)
    }

    /// With the sign shifted in: AVX2 shifts lanes of 64 bits only with zeros.
    fn shift_right(&mut self, form: Form, count: u8, x: Val) -> Selected<Val> {
        if form == Form::Int || self.isa.has_long_arithmetic {
            return self.simple(Unary::ShrArith(count), x);
        }
        if count == 0 {
            return Ok(x);
        }
        let low = self.simple(Unary::Shr(count), x)?;
        let negative = self.test(Compare::IntGt, Val::long(0), x)?;
        let bits = self.apply(Op::MaskBits, &[negative])?;
        let high = self.simple(Unary::Shl(64 - count), bits)?;
        self.pair(Binary::Or, low, high)
    }

    /// The lower 64 bits of a product from those of 32 bits.
    fn long_product(&mut self, a: Val, b: Val) -> Selected<Val> {
        let low = self.pair(Binary::LowMul, a, b)?;
        let high = self.simple(Unary::Shr(32), a)?;
        let left = self.pair(Binary::LowMul, high, b)?;
        let high = self.simple(Unary::Shr(32), b)?;
        let right = self.pair(Binary::LowMul, high, a)?;
        let cross = self.pair(Binary::IntAdd, left, right)?;
        let cross = self.simple(Unary::Shl(32), cross)?;
        self.pair(Binary::IntAdd, low, cross)
    }

    /// Power by squaring, modulo the width, lane by lane in general registers; a negative exponent gives the truncated
    /// quotient 1 / a^b.
    fn int_power(&mut self, form: Form, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let vector = a.is_vector() || b.is_vector();
        let count = self.group.as_ref().filter(|_| vector).map_or(1, |group| group.lanes);
        let mut powers = Vec::new();
        for lane in 0..count {
            let (base, exponent) = (self.lane_of(a, lane)?, self.lane_of(b, lane)?);
            let (base, exponent) = (self.extended(dtype, base)?, self.extended(dtype, exponent)?);
            powers.push(self.power_of(form, dtype, base, exponent)?);
        }
        match vector {
            true => self.join(&powers, form.width()),
            false => Ok(Val::scalar(powers[0], form.width())),
        }
    }

    /// An integer in a general register: all 64 bits of it.
    fn extended(&mut self, dtype: DType, x: Reg) -> Selected<Reg> {
        let long = match Form::of(dtype)? {
            Form::Long => x,
            _ => {
                let long = self.vec(Op::Convert(Convert::Extend, Lanes::D1), vec![x]);
                match dtype {
                    DType::U32 => {
                        let mask = self.vec(Op::Splat(Lanes::D1, 0xffff_ffff), vec![]);
                        self.vec(Op::Binary(Binary::And, Lanes::D1), vec![long, mask])
                    }
                    _ => long,
                }
            }
        };
        Ok(self.int(Op::ToGeneral(Lanes::D1), vec![long]))
    }

    fn power_of(&mut self, form: Form, dtype: DType, base: Reg, exponent: Reg) -> Selected<Reg> {
        let params: [Reg; 3] = [0; 3].map(|_| self.reg(Class::Int));
        let [result, square, rest] = params;
        let header = self.new_block(params.to_vec());
        let (inside, after) = (self.new_block(vec![]), self.new_block(vec![]));
        let one = self.int(Op::Int(1), vec![]);
        self.end(End::Jump(header, vec![one, base, exponent]), header);
        let more =
            End::Branch { cond: Cond::Ne, a: rest, b: Operand::Imm(0), then: inside, otherwise: after };
        self.end(more, inside);
        // Where the lowest bit of the exponent is set the factor is the square, else 1.
        let odd = self.int(Op::ShlInt(63), vec![rest]);
        let odd = self.int(Op::ShrInt(63), vec![odd]);
        let less = self.int(Op::AddInt(-1), vec![square]);
        let factor = self.int(Op::Mul, vec![less, odd]);
        let factor = self.int(Op::AddInt(1), vec![factor]);
        let next = self.int(Op::Mul, vec![result, factor]);
        let squared = self.int(Op::Mul, vec![square, square]);
        // Logical, so that the loop ends for negative exponents too.
        let half = self.int(Op::ShrInt(1), vec![rest]);
        self.end(End::Jump(header, vec![next, squared, half]), after);

        let long = |cx: &mut Self, reg| Val::scalar(cx.vec(Op::FromGeneral(Lanes::D1), vec![reg]), 8);
        let mut power = long(self, result);
        if dtype.is_signed_int() {
            // 1 / base^n truncated: 1 and -1 keep their powers, and that of 0 is 0 as n, taken as unsigned, is not 0.
            let (base, exponent) = (long(self, base), long(self, exponent));
            let negative = self.test(Compare::IntGt, Val::long(0), exponent)?;
            let above = self.test(Compare::IntGt, base, Val::long(1))?;
            let below = self.test(Compare::IntGt, Val::long(-1), base)?;
            let large = self.logic(Logic::Or, above, below)?;
            let none = self.logic(Logic::And, negative, large)?;
            power = self.choose(Form::Long, none, Val::long(0), power)?;
        }
        let power = self.scalar(power)?;
        Ok(match form {
            Form::Long => power,
            _ => self.vec(Op::Convert(Convert::Truncate, Lanes::D1), vec![power]),
        })
    }
}
