//! The scalar functions and comparisons. Results are rounded, or wrapped, to the element type.

use super::value::{Form, Kind, Val};
use super::{Select, Selected, refuse};
use crate::graph::DType;
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};
use crate::vector::ir::{Binary, Compare, Logic, Op, Unary};

/// The sign of a float.
fn sign(form: Form) -> Val {
    match form {
        Form::Double | Form::Long => Val::long(i64::MIN),
        _ => Val::int(i32::MIN),
    }
}

/// All bits but the sign.
fn magnitude(form: Form) -> Val {
    match form {
        Form::Double | Form::Long => Val::long(i64::MAX),
        _ => Val::int(i32::MAX),
    }
}

fn infinity(form: Form, value: f32) -> Val {
    match form {
        Form::Double => Val::double(value.into()),
        _ => Val::single(value),
    }
}

impl Select<'_> {
    pub fn simple(&mut self, op: Unary, x: Val) -> Selected<Val> {
        self.apply(|lanes| Op::Unary(op, lanes), &[x])
    }

    pub fn unary(&mut self, op: UnaryFn, dtype: DType, x: Val) -> Selected<Val> {
        let form = Form::of(dtype)?;
        let value = match (op, form) {
            (UnaryFn::Not, Form::Mask) => return self.not(x),
            (_, Form::Single | Form::Double) => self.float_unary(op, form, dtype, x)?,
            (_, Form::Int | Form::Long) => self.int_unary(op, form, dtype, x)?,
            _ => return refuse(format!("{op} of {dtype}")),
        };
        match op {
            // Results are values of the type whenever the operand is one.
            UnaryFn::Neg
            | UnaryFn::Abs
            | UnaryFn::Floor
            | UnaryFn::Ceil
            | UnaryFn::Trunc
            | UnaryFn::Round
                if form.is_float() =>
            {
                Ok(value)
            }
            UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf | UnaryFn::Sign => Ok(value),
            _ => self.round(value, dtype),
        }
    }

    fn float_unary(&mut self, op: UnaryFn, form: Form, dtype: DType, x: Val) -> Selected<Val> {
        let whole = |value: Val| Val { above: x.above, below: x.below, ..value };
        match op {
            UnaryFn::Neg => self.pair(Binary::Xor, x, sign(form)),
            UnaryFn::Abs => self.pair(Binary::And, x, magnitude(form)),
            UnaryFn::Sqrt => self.simple(Unary::Sqrt, x),
            UnaryFn::Floor => Ok(whole(self.simple(Unary::Floor, x)?)),
            UnaryFn::Ceil => Ok(whole(self.simple(Unary::Ceil, x)?)),
            UnaryFn::Trunc => Ok(whole(self.simple(Unary::Trunc, x)?)),
            UnaryFn::Round => Ok(whole(self.simple(Unary::Nearest, x)?)),
            UnaryFn::Recip => self.pair(Binary::Div, Val::number(1, form), x),
            UnaryFn::IsNan => self.test(Compare::Ne, x, x),
            UnaryFn::IsPosInf => self.test(Compare::Eq, x, infinity(form, f32::INFINITY)),
            UnaryFn::IsNegInf => self.test(Compare::Eq, x, infinity(form, f32::NEG_INFINITY)),
            UnaryFn::Sign => {
                let [zero, one, minus] = [0, 1, -1].map(|value| Val::number(value, form));
                let positive = self.test(Compare::Lt, zero, x)?;
                let value = self.choose(form, positive, one, zero)?;
                let negative = self.test(Compare::Lt, x, zero)?;
                let value = self.choose(form, negative, minus, value)?;
                let nan = self.test(Compare::Ne, x, x)?;
                self.choose(form, nan, x, value)
            }
            _ => refuse(format!("{op} of {dtype}")),
        }
    }

    fn int_unary(&mut self, op: UnaryFn, form: Form, dtype: DType, x: Val) -> Selected<Val> {
        let zero = Val::number(0, form);
        match op {
            UnaryFn::Neg => self.pair(Binary::IntSub, zero, x),
            UnaryFn::Abs if dtype.is_signed_int() => {
                let negative = self.pair(Binary::IntSub, zero, x)?;
                self.int_extreme(form, true, x, negative)
            }
            UnaryFn::Abs | UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Trunc | UnaryFn::Round => Ok(x),
            UnaryFn::BitNot => self.pair(Binary::Xor, x, Val::number(-1, form)),
            UnaryFn::Sign => {
                let [one, minus] = [1, -1].map(|value| Val::number(value, form));
                let positive = self.test(Compare::IntGt, x, zero)?;
                let value = self.choose(form, positive, one, zero)?;
                let negative = self.test(Compare::IntGt, zero, x)?;
                self.choose(form, negative, minus, value)
            }
            _ => refuse(format!("{op} of {dtype}")),
        }
    }

    pub fn binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let form = Form::of(dtype)?;
        let value = match form {
            Form::Single | Form::Double => self.float_binary(op, dtype, a, b)?,
            Form::Int | Form::Long => self.int_binary(op, form, dtype, a, b)?,
            Form::Mask => {
                return match op {
                    BinaryFn::And => self.logic(Logic::And, a, b),
                    BinaryFn::Or => self.logic(Logic::Or, a, b),
                    BinaryFn::Xor => self.logic(Logic::Xor, a, b),
                    _ => refuse(format!("{op} of {dtype}")),
                };
            }
        };
        match op {
            BinaryFn::Max | BinaryFn::Min | BinaryFn::BitAnd | BinaryFn::BitOr | BinaryFn::BitXor => {
                Ok(value)
            }
            _ => self.round(value, dtype),
        }
    }

    fn float_binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        match op {
            BinaryFn::Add => self.pair(Binary::Add, a, b),
            BinaryFn::Sub => self.pair(Binary::Sub, a, b),
            BinaryFn::Mul => self.pair(Binary::Mul, a, b),
            BinaryFn::Div => self.pair(Binary::Div, a, b),
            BinaryFn::Max => self.extreme(Binary::Max, a, b),
            BinaryFn::Min => self.extreme(Binary::Min, a, b),
            _ => refuse(format!("{op} of {dtype}")),
        }
    }

    /// `sum` plus [`BinaryFn::Dot`] of `a` and `b`.
    pub fn dot(&mut self, sum: Val, a: Val, b: Val) -> Selected<Val> {
        if self.isa.has_dot {
            return self.apply(Op::Dot, &[sum, a, b]);
        }
        // Even and odd bytes as halves of 16 bits, whose products and sums of two need at most 17.
        let (a, b) = (self.halves(a, false)?, self.halves(b, true)?);
        let even = self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[a[0], b[0]])?;
        let odd = self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[a[1], b[1]])?;
        let sum = self.pair(Binary::IntAdd, sum, even)?;
        self.pair(Binary::IntAdd, sum, odd)
    }

    /// The even and the odd bytes of words, widened to halves of 16 bits.
    fn halves(&mut self, x: Val, signed: bool) -> Selected<[Val; 2]> {
        let key = x.register().map(|reg| (reg, signed));
        if let Some(key) = key
            && let Some(halves) = self.find(|scope| scope.halves.get(&key))
        {
            let whole = |reg| if x.is_vector() { Val::vector(reg, 4) } else { Val::scalar(reg, 4) };
            return Ok(halves.map(whole));
        }
        let halves = if signed {
            let low = self.simple(Unary::Shl(8), x)?;
            let even = self.simple(Unary::ShrArithHalves(8), low)?;
            [even, self.simple(Unary::ShrArithHalves(8), x)?]
        } else {
            let (mask, high) = (Val::int(0x00ff_00ff), self.simple(Unary::Shr(8), x)?);
            [self.pair(Binary::And, x, mask)?, self.pair(Binary::And, high, mask)?]
        };
        if let (Some(key), [Some(even), Some(odd)]) = (key, halves.map(|half| half.register())) {
            self.scope().halves.insert(key, [even, odd]);
        }
        Ok(halves)
    }

    fn int_binary(&mut self, op: BinaryFn, form: Form, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        match op {
            BinaryFn::Add => self.pair(Binary::IntAdd, a, b),
            BinaryFn::Sub => self.pair(Binary::IntSub, a, b),
            BinaryFn::Dot => self.dot(Val::int(0), a, b),
            BinaryFn::Mul if form == Form::Long && !self.isa.has_long_arithmetic => self.long_product(a, b),
            BinaryFn::Mul => self.pair(Binary::IntMul, a, b),
            BinaryFn::Max => self.int_extreme(form, true, a, b),
            BinaryFn::Min => self.int_extreme(form, false, a, b),
            BinaryFn::BitAnd => self.pair(Binary::And, a, b),
            BinaryFn::BitOr => self.pair(Binary::Or, a, b),
            BinaryFn::BitXor => self.pair(Binary::Xor, a, b),
            BinaryFn::Shl | BinaryFn::Shr => {
                let unused = 64 - dtype.bits();
                match b.kind {
                    Kind::Const(bits) if bits << unused >> unused < u64::from(dtype.bits()) => {
                        let count = (bits << unused >> unused) as u8;
                        match op {
                            BinaryFn::Shl => self.simple(Unary::Shl(count), a),
                            _ => self.shift_right(form, count, a),
                        }
                    }
                    _ => refuse("a shift by a variable count"),
                }
            }
            _ => refuse(format!("{op} of {dtype}")),
        }
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

    fn int_extreme(&mut self, form: Form, greatest: bool, a: Val, b: Val) -> Selected<Val> {
        if form == Form::Long && !self.isa.has_long_arithmetic {
            let greater = self.test(Compare::IntGt, a, b)?;
            let (then, otherwise) = if greatest { (a, b) } else { (b, a) };
            return self.choose(form, greater, then, otherwise);
        }
        self.pair(if greatest { Binary::IntMax } else { Binary::IntMin }, a, b)
    }

    /// NaN if an operand is NaN. The instruction gives its second operand then, so that one which is never NaN
    /// comes first.
    fn extreme(&mut self, op: Binary, a: Val, b: Val) -> Selected<Val> {
        let form = if a.width == 8 { Form::Double } else { Form::Single };
        let (first, second) = if b.not_nan { (b, a) } else { (a, b) };
        let value = self.pair(op, first, second)?;
        let (above, below) = match op {
            Binary::Max => (a.above || b.above, a.below && b.below),
            _ => (a.above && b.above, a.below || b.below),
        };
        let value = Val { above, below, ..value };
        if a.not_nan || b.not_nan {
            return Ok(Val { not_nan: a.not_nan && b.not_nan, ..value });
        }
        let nan = self.test(Compare::Ne, a, a)?;
        let chosen = self.choose(form, nan, a, value)?;
        Ok(Val { above, below, not_nan: false, ..chosen })
    }

    pub fn compare(&mut self, op: CompareFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let float = match Form::of(dtype)? {
            Form::Single | Form::Double => true,
            Form::Int | Form::Long => false,
            Form::Mask => {
                let differ = self.logic(Logic::Xor, a, b)?;
                return match op {
                    CompareFn::Ne => Ok(differ),
                    CompareFn::Eq => self.not(differ),
                    _ => refuse(format!("a comparison of {dtype}")),
                };
            }
        };
        match (op, float) {
            (CompareFn::Eq, true) => self.test(Compare::Eq, a, b),
            (CompareFn::Ne, true) => self.test(Compare::Ne, a, b),
            (CompareFn::Lt, true) => self.test(Compare::Lt, a, b),
            (CompareFn::Le, true) => self.test(Compare::Le, a, b),
            (CompareFn::Gt, true) => self.test(Compare::Lt, b, a),
            (CompareFn::Ge, true) => self.test(Compare::Le, b, a),
            (CompareFn::Eq, false) => self.test(Compare::IntEq, a, b),
            (CompareFn::Gt, false) => self.test(Compare::IntGt, a, b),
            (CompareFn::Lt, false) => self.test(Compare::IntGt, b, a),
            (CompareFn::Ne, false) => {
                let equal = self.test(Compare::IntEq, a, b)?;
                self.not(equal)
            }
            (CompareFn::Le, false) => {
                let greater = self.test(Compare::IntGt, a, b)?;
                self.not(greater)
            }
            (CompareFn::Ge, false) => {
                let less = self.test(Compare::IntGt, b, a)?;
                self.not(less)
            }
        }
    }
}
