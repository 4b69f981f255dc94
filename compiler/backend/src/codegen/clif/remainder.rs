//! Float remainders. `fmod` is exact: the dividend's mantissa is reduced bit by bit, as musl's does.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value};

use super::{Emitter, Shift};

impl Emitter<'_> {
    /// Remainder with the sign of the dividend: C's `fmod`, of f32 or f64 scalars.
    pub(super) fn float_rem(&mut self, a: Value, b: Value) -> Value {
        let ty = self.type_of(a);
        let ints = ty.as_int();
        let mantissa = if ty.bits() == 32 { 23 } else { 52 };
        let magnitude = i64::MAX >> (64 - ty.bits());
        let infinity = magnitude >> mantissa << mantissa;

        let bits = self.bitcast(ints, a);
        let dividend = self.band_int(bits, magnitude);
        let sign = self.b.ins().bxor(bits, dividend);
        let divisor = self.bitcast(ints, b);
        let divisor = self.band_int(divisor, magnitude);

        // NaN for an infinite or NaN dividend, a zero or NaN divisor: what (a * b) / (a * b) gives.
        let a_finite = self.icmp_int(IntCC::UnsignedLessThan, dividend, infinity);
        let b_nan = self.icmp_int(IntCC::UnsignedGreaterThan, divisor, infinity);
        let b_zero = self.icmp_int(IntCC::Equal, divisor, 0);
        let b_bad = self.b.ins().bor(b_nan, b_zero);
        let smaller = self.b.ins().icmp(IntCC::UnsignedLessThan, dividend, divisor);
        let defined = self.not_and(b_bad, a_finite);
        let done = self.after_reduction(dividend, divisor, mantissa, defined, smaller);
        let done = self.b.ins().bor(done, sign);
        let done = self.bitcast(ty, done);
        let product = self.b.ins().fmul(a, b);
        let nan = self.b.ins().fdiv(product, product);
        let rest = self.b.ins().select(smaller, a, done);
        self.b.ins().select(defined, rest, nan)
    }

    fn not_and(&mut self, not: Value, and: Value) -> Value {
        let one = self.int_constant(self.type_of(not), 1);
        let other = self.b.ins().bxor(not, one);
        self.b.ins().band(other, and)
    }

    /// Bits of the remainder of two finite magnitudes, the divisor not zero and not above the dividend;
    /// unspecified where not `defined` or `smaller`.
    fn after_reduction(
        &mut self,
        dividend: Value,
        divisor: Value,
        mantissa: u32,
        defined: Value,
        smaller: Value,
    ) -> Value {
        let ints = self.type_of(dividend);
        let reduces = self.not_and(smaller, defined);
        let (x, x_exponent) = self.split_float(dividend, mantissa);
        let (y, y_exponent) = self.split_float(divisor, mantissa);
        let zero = self.int_constant(ints, 0);
        let distance = self.b.ins().isub(x_exponent, y_exponent);
        let steps = self.b.ins().select(reduces, distance, zero);

        // One bit of the quotient per step: x = 2 * (x mod y).
        let (header, inside, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let [rest, left] = [0; 2].map(|_| self.b.append_block_param(header, ints));
        self.b.ins().jump(header, &[x, steps].map(BlockArg::Value));
        self.b.switch_to_block(header);
        let less = self.b.ins().isub(rest, y);
        let fits = self.icmp_int(IntCC::SignedGreaterThanOrEqual, less, 0);
        let reduced = self.b.ins().select(fits, less, rest);
        let more = self.icmp_int(IntCC::SignedGreaterThan, left, 0);
        self.b.ins().brif(more, inside, &[], after, &[]);
        self.b.switch_to_block(inside);
        let doubled = self.shifted(reduced, 1, Shift::Left);
        let next = self.add_int(left, -1);
        self.b.ins().jump(header, &[doubled, next].map(BlockArg::Value));
        self.b.switch_to_block(after);
        self.join_float(reduced, y_exponent, mantissa)
    }

    /// Mantissa with its hidden bit at `mantissa`, and the exponent field (less than 1 for subnormals).
    fn split_float(&mut self, bits: Value, mantissa: u32) -> (Value, Value) {
        let ints = self.type_of(bits);
        let field = self.shifted(bits, mantissa as u8, Shift::Right);
        let fraction = self.band_int(bits, (1 << mantissa) - 1);
        let normal = self.bor_int(fraction, 1 << mantissa);
        let zeros = self.b.ins().clz(fraction);
        let shift = self.add_int(zeros, i64::from(mantissa) + 1 - i64::from(ints.bits()));
        let shifted = self.b.ins().ishl(fraction, shift);
        let one = self.int_constant(ints, 1);
        let below = self.b.ins().isub(one, shift);
        let is_normal = self.icmp_int(IntCC::NotEqual, field, 0);
        (self.b.ins().select(is_normal, normal, shifted), self.b.ins().select(is_normal, field, below))
    }

    /// Inverse of [`Emitter::split_float`], for a mantissa of any size up to the hidden bit.
    fn join_float(&mut self, value: Value, exponent: Value, mantissa: u32) -> Value {
        let ints = self.type_of(value);
        let zeros = self.b.ins().clz(value);
        let shift = self.add_int(zeros, i64::from(mantissa) + 1 - i64::from(ints.bits()));
        let normalized = self.b.ins().ishl(value, shift);
        let exponent = self.b.ins().isub(exponent, shift);
        // Normal: the hidden bit adds 1 to the exponent field.
        let field = self.add_int(exponent, -1);
        let field = self.shifted(field, mantissa as u8, Shift::Left);
        let normal = self.b.ins().iadd(normalized, field);
        // Subnormal: shifted down by 1 - exponent.
        let one = self.int_constant(ints, 1);
        let down = self.b.ins().isub(one, exponent);
        let subnormal = self.b.ins().ushr(normalized, down);
        let is_normal = self.icmp_int(IntCC::SignedGreaterThan, exponent, 0);
        let joined = self.b.ins().select(is_normal, normal, subnormal);
        let is_zero = self.icmp_int(IntCC::Equal, value, 0);
        let zero = self.int_constant(ints, 0);
        self.b.ins().select(is_zero, zero, joined)
    }

    fn int_constant(&mut self, ty: Type, value: i64) -> Value {
        self.constant(ty, value as u64)
    }

    fn icmp_int(&mut self, cc: IntCC, a: Value, b: i64) -> Value {
        let b = self.int_constant(self.type_of(a), b);
        self.b.ins().icmp(cc, a, b)
    }

    fn band_int(&mut self, a: Value, b: i64) -> Value {
        let b = self.int_constant(self.type_of(a), b);
        self.b.ins().band(a, b)
    }

    fn bor_int(&mut self, a: Value, b: i64) -> Value {
        let b = self.int_constant(self.type_of(a), b);
        self.b.ins().bor(a, b)
    }

    fn add_int(&mut self, a: Value, b: i64) -> Value {
        let b = self.int_constant(self.type_of(a), b);
        self.b.ins().iadd(a, b)
    }
}
