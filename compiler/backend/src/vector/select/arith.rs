//! The functions of floats, and comparisons. Results are rounded, or wrapped, to the element type.

use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use onnxc_machine::vector::ir::{Binary, Compare, Lanes, Logic, Op, Signs, Unary};

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
            (UnaryFn::Swap, Form::Pair) => return self.swap_pair(x),
            (_, Form::Single | Form::Double) => self.float_unary(op, form, dtype, x)?,
            (_, Form::Int | Form::Long) => self.int_unary(op, form, dtype, x)?,
            _ => return refuse(format!("`{op}` of {dtype}")),
        };
        match op {
            // Results are values of the type whenever the operand is one.
            UnaryFn::Neg
            | UnaryFn::Abs
            | UnaryFn::Floor
            | UnaryFn::Ceil
            | UnaryFn::Trunc
            | UnaryFn::Round
                // Types of 8 bits and fewer may lack a sign, or saturate infinities.
                if form.is_float() && dtype.size() > 1 =>
            {
                Ok(value)
            }
            UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf => Ok(value),
            UnaryFn::Sign if dtype.size() > 1 => Ok(value),
            _ => self.round(value, dtype),
        }
    }

    fn float_unary(&mut self, op: UnaryFn, form: Form, dtype: DType, x: Val) -> Selected<Val> {
        match op {
            UnaryFn::Neg => self.pair(Binary::Xor, x, sign(form)),
            UnaryFn::Abs => self.pair(Binary::And, x, magnitude(form)),
            UnaryFn::Sqrt => self.simple(Unary::Sqrt, x),
            UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Trunc | UnaryFn::Round => {
                let value = match op {
                    _ if !self.isa.has_rounding => self.round_by_addition(op, form, x)?,
                    UnaryFn::Floor => self.simple(Unary::Floor, x)?,
                    UnaryFn::Ceil => self.simple(Unary::Ceil, x)?,
                    UnaryFn::Trunc => self.simple(Unary::Trunc, x)?,
                    _ => self.simple(Unary::Nearest, x)?,
                };
                Ok(Val { above: x.above, below: x.below, ..value })
            }
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
            _ => refuse(format!("`{op}` of {dtype}")),
        }
    }

    /// Rounding to an integral value where no instruction does it. A magnitude that has a fraction is less than 2^23
    /// (2^52 for f64); added to that number, it is rounded to the nearest integer, ties to even. The other functions
    /// correct that result by one where it is on the wrong side.
    fn round_by_addition(&mut self, op: UnaryFn, form: Form, x: Val) -> Selected<Val> {
        let limit = match form {
            Form::Double => Val::double((1u64 << 52) as f64),
            _ => Val::single((1 << 23) as f32),
        };
        let (one, size) = (Val::number(1, form), self.pair(Binary::And, x, magnitude(form))?);
        let bit = self.pair(Binary::And, x, sign(form))?;
        let shifted = self.pair(Binary::Add, size, limit)?;
        let nearest = self.pair(Binary::Sub, shifted, limit)?;
        let rounded = match op {
            UnaryFn::Round => nearest,
            UnaryFn::Trunc => {
                let beyond = self.test(Compare::Lt, size, nearest)?;
                let less = self.pair(Binary::Sub, nearest, one)?;
                self.choose(form, beyond, less, nearest)?
            }
            _ => {
                let nearest = self.pair(Binary::Or, nearest, bit)?;
                let (beyond, next) = match op {
                    UnaryFn::Floor => {
                        (self.test(Compare::Lt, x, nearest)?, self.pair(Binary::Sub, nearest, one)?)
                    }
                    _ => (self.test(Compare::Lt, nearest, x)?, self.pair(Binary::Add, nearest, one)?),
                };
                let rounded = self.choose(form, beyond, next, nearest)?;
                self.pair(Binary::And, rounded, magnitude(form))?
            }
        };
        // Zeros keep the sign of what they were rounded from.
        let rounded = self.pair(Binary::Or, rounded, bit)?;
        let has_fraction = self.test(Compare::Lt, size, limit)?;
        self.choose(form, has_fraction, rounded, x)
    }

    /// The halves of a complex number exchanged.
    fn swap_pair(&mut self, x: Val) -> Selected<Val> {
        let reg = self.scalar(x)?;
        let low = self.vec(Op::Extract(0, Lanes::D1), vec![reg]);
        let high = self.vec(Op::Extract(1, Lanes::D1), vec![reg]);
        Ok(Val::scalar(self.vec(Op::Insert(1, Lanes::D2), vec![high, low]), 16))
    }

    pub fn binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let form = Form::of(dtype)?;
        let value = match form {
            Form::Single | Form::Double => self.float_binary(op, dtype, a, b)?,
            Form::Int | Form::Long => self.int_binary(op, form, dtype, a, b)?,
            Form::Mask => {
                return match op {
                    BinaryFn::And | BinaryFn::BitAnd | BinaryFn::Min | BinaryFn::Mul => {
                        self.logic(Logic::And, a, b)
                    }
                    BinaryFn::Or | BinaryFn::BitOr | BinaryFn::Max => self.logic(Logic::Or, a, b),
                    BinaryFn::Xor | BinaryFn::BitXor => self.logic(Logic::Xor, a, b),
                    _ => refuse(format!("`{op}` of {dtype}")),
                };
            }
            Form::Pair => {
                return match op {
                    BinaryFn::BitOr => self.apply(|lanes| Op::Binary(Binary::Or, lanes), &[a, b]),
                    _ => refuse(format!("`{op}` of {dtype}")),
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
            BinaryFn::Rem => self.apply(|lanes| Op::Binary(Binary::Rem, lanes), &[a, b]),
            BinaryFn::Mod => self.float_mod(Form::of(dtype)?, a, b),
            BinaryFn::DotBf16 => self.dot(op, Val::single(0.0), a, b),
            _ => refuse(format!("`{op}` of {dtype}")),
        }
    }

    /// `sum` plus [`BinaryFn::Dot`] of `a` and `b`, or what it is for other bytes and for pairs.
    pub fn dot(&mut self, op: BinaryFn, sum: Val, a: Val, b: Val) -> Selected<Val> {
        if op == BinaryFn::DotPairs {
            if self.isa.has(Op::AddDotPairs(self.lanes(4)?)) {
                return self.apply(Op::AddDotPairs, &[sum, a, b]);
            }
            let sums = self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[a, b])?;
            return self.pair(Binary::IntAdd, sum, sums);
        }
        if op == BinaryFn::DotBf16 {
            if self.isa.has(Op::DotBf16(self.lanes(4)?)) {
                return self.apply(Op::DotBf16, &[sum, a, b]);
            }
            // A bf16 is the higher half of the f32 of the same value. The second product first, as the instruction has it.
            let (high_a, high_b) = (self.high_half(a)?, self.high_half(b)?);
            let sum = self.fma(high_a, high_b, sum)?;
            let (low_a, low_b) = (self.simple(Unary::Shl(16), a)?, self.simple(Unary::Shl(16), b)?);
            return self.fma(low_a, low_b, sum);
        }
        let signs = Signs { a: matches!(op, BinaryFn::DotSigned | BinaryFn::DotNarrow), b: true };
        let lanes = self.lanes(4)?;
        let halves = op == BinaryFn::DotNarrow && self.isa.has(Op::Binary(Binary::DotHalves, lanes));
        if self.isa.dot != Some(signs) && halves {
            let sums = self.apply(|lanes| Op::Binary(Binary::DotHalves, lanes), &[a, b])?;
            return self.apply(|lanes| Op::Binary(Binary::AddHalves, lanes), &[sum, sums]);
        }
        if self.isa.has(Op::Dot(signs, lanes)) {
            return self.apply(|lanes| Op::Dot(signs, lanes), &[sum, a, b]);
        }
        if signs == Signs::UNSIGNED_SIGNED
            && (op == BinaryFn::DotShort || a.small_bytes)
            && self.isa.has(Op::Binary(Binary::DotBytes, lanes))
        {
            // Sums of two products of 7 bits and 8 fit 16, too.
            let sums = self.apply(|lanes| Op::Binary(Binary::DotBytes, lanes), &[a, b])?;
            let sums =
                self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[sums, Val::int(0x0001_0001)])?;
            return self.pair(Binary::IntAdd, sum, sums);
        }
        // Even and odd bytes as halves of 16 bits, whose products and sums of two need at most 17.
        let (a, b) = (self.halves(a, signs.a)?, self.halves(b, signs.b)?);
        let even = self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[a[0], b[0]])?;
        let odd = self.apply(|lanes| Op::Binary(Binary::DotPairs, lanes), &[a[1], b[1]])?;
        let sum = self.pair(Binary::IntAdd, sum, even)?;
        self.pair(Binary::IntAdd, sum, odd)
    }

    fn high_half(&mut self, x: Val) -> Selected<Val> {
        self.pair(Binary::And, x, Val::int(0xffff_0000_u32 as i32))
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
            let odd = self.simple(Unary::ShrHalves(8), x)?;
            [self.pair(Binary::And, x, Val::int(0x00ff_00ff))?, odd]
        };
        if let (Some(key), [Some(even), Some(odd)]) = (key, halves.map(|half| half.register())) {
            self.scope().halves.insert(key, [even, odd]);
        }
        Ok(halves)
    }

    /// Remainder with the sign of the divisor.
    fn float_mod(&mut self, form: Form, a: Val, b: Val) -> Selected<Val> {
        let zero = Val::number(0, form);
        let rest = self.apply(|lanes| Op::Binary(Binary::Rem, lanes), &[a, b])?;
        let below = self.test(Compare::Lt, rest, zero)?;
        let divisor_below = self.test(Compare::Lt, b, zero)?;
        let differ = self.logic(Logic::Xor, below, divisor_below)?;
        let sum = self.pair(Binary::Add, rest, b)?;
        let adjusted = self.choose(form, differ, sum, rest)?;
        let none = self.test(Compare::Eq, rest, zero)?;
        let signed_zero = self.pair(Binary::And, b, sign(form))?;
        self.choose(form, none, signed_zero, adjusted)
    }

    /// NaN if an operand is NaN. The instruction gives its second operand then, so that one which is never NaN
    /// comes first.
    fn extreme(&mut self, op: Binary, a: Val, b: Val) -> Selected<Val> {
        let (above, below) = match op {
            Binary::Max => (a.above || b.above, a.below && b.below),
            _ => (a.above && b.above, a.below || b.below),
        };
        if self.isa.has_nan_extremes {
            let op = if op == Binary::Max { Binary::Maximum } else { Binary::Minimum };
            let value = self.pair(op, a, b)?;
            return Ok(Val { above, below, not_nan: a.not_nan && b.not_nan, ..value });
        }
        let form = if a.width == 8 { Form::Double } else { Form::Single };
        let (first, second) = if b.not_nan { (b, a) } else { (a, b) };
        let value = self.pair(op, first, second)?;
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
            Form::Pair => return refuse(format!("a comparison of {dtype}")),
            Form::Mask => {
                let differ = self.logic(Logic::Xor, a, b)?;
                return match op {
                    CompareFn::Ne => Ok(differ),
                    CompareFn::Eq => self.not(differ),
                    // One is true and the other is not.
                    CompareFn::Gt => self.logic(Logic::And, differ, a),
                    CompareFn::Lt => self.logic(Logic::And, differ, b),
                    CompareFn::Le => {
                        let greater = self.logic(Logic::And, differ, a)?;
                        self.not(greater)
                    }
                    CompareFn::Ge => {
                        let less = self.logic(Logic::And, differ, b)?;
                        self.not(less)
                    }
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
            (CompareFn::Gt, false) => self.int_greater(dtype, a, b),
            (CompareFn::Lt, false) => self.int_greater(dtype, b, a),
            (CompareFn::Ne, false) => {
                let equal = self.test(Compare::IntEq, a, b)?;
                self.not(equal)
            }
            (CompareFn::Le, false) => {
                let greater = self.int_greater(dtype, a, b)?;
                self.not(greater)
            }
            (CompareFn::Ge, false) => {
                let less = self.int_greater(dtype, b, a)?;
                self.not(less)
            }
        }
    }
}
