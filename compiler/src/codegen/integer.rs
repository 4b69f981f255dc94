//! Instruction sequences of the integer and bool functions.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, types};

use super::expr::{Kind, Val};
use super::kernel::Gen;
use super::lane::container_bits;
use crate::error::Result;
use crate::graph::DType;
use crate::scalar::{BinaryFn, UnaryFn};

impl Gen<'_, '_> {
    pub fn int_unary(&mut self, op: UnaryFn, dtype: DType, x: Value) -> Result<Value> {
        let ty = self.type_of(x);
        if dtype == DType::Bool {
            return match op {
                UnaryFn::Not if ty.is_vector() => Ok(self.b.ins().bnot(x)),
                UnaryFn::Not => {
                    let one = self.int(ty, 1);
                    Ok(self.b.ins().bxor(x, one))
                }
                _ => Err(self.no_instructions(op.name(), dtype)),
            };
        }
        if dtype.part().is_some() {
            return match op {
                UnaryFn::Swap => Ok(self.swapped(x)),
                _ => Err(self.no_instructions(op.name(), dtype)),
            };
        }
        let value = match op {
            UnaryFn::Neg => self.b.ins().ineg(x),
            UnaryFn::Abs if dtype.is_signed_int() => self.b.ins().iabs(x),
            UnaryFn::BitNot => self.b.ins().bnot(x),
            UnaryFn::Sign => {
                let one = self.int(ty, 1);
                let zero = self.int(ty, 0);
                let some = self.icmp(IntCC::NotEqual, x, zero);
                let magnitude = self.choose(some, one, zero);
                if !dtype.is_signed_int() {
                    return Ok(magnitude);
                }
                let negative = self.icmp(IntCC::SignedLessThan, x, zero);
                let minus = self.int(ty, -1);
                self.choose(negative, minus, magnitude)
            }
            UnaryFn::Abs | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc => return Ok(x),
            _ => return Err(self.no_instructions(op.name(), dtype)),
        };
        Ok(self.wrap(value, dtype))
    }

    /// The two halves of an integer exchanged.
    fn swapped(&mut self, x: Value) -> Value {
        if self.type_of(x) == types::I128 {
            let (low, high) = self.b.ins().isplit(x);
            return self.b.ins().iconcat(high, low);
        }
        let half = i64::from(self.type_of(x).bits() / 2);
        self.b.ins().rotl_imm_u(x, half)
    }

    pub fn int_binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Result<Val> {
        if let (BinaryFn::Shl | BinaryFn::Shr, Kind::Const(bits)) = (op, b.kind) {
            let mask = u64::MAX >> (64 - dtype.bits());
            let count = bits & mask;
            return self.apply(&[a], dtype, &|g, v, _| {
                let count = u32::try_from(count).ok().filter(|&count| count < dtype.bits());
                Ok(Some(g.shift_by(op, dtype, v[0], count)))
            });
        }
        self.apply(&[a, b], dtype, &|g, v, lanes| g.int_values(op, dtype, v[0], v[1], lanes))
    }

    /// [`BinaryFn::Dot`] of words.
    fn dot_words(&mut self, a: Value, b: Value) -> Value {
        let mut sum = self.int(types::I32, 0);
        for byte in 0..4 {
            let x = self.ushr(a, 8 * byte);
            let x = self.band_int(x, 0xff);
            let y = self.shl(b, 24 - 8 * byte);
            let y = self.sshr(y, 24);
            let product = self.b.ins().imul(x, y);
            sum = self.b.ins().iadd(sum, product);
        }
        sum
    }

    /// Of four words each: even and odd bytes as lanes of 16 bits, whose products are added up in pairs.
    fn dot_vectors(&mut self, a: Value, b: Value) -> Value {
        let (a, b) = (self.bitcast(types::I16X8, a), self.bitcast(types::I16X8, b));
        let even = self.band_int(a, 0xff);
        let odd = self.ushr(a, 8);
        let low = self.shl(b, 8);
        let halves = [(even, self.sshr(low, 8)), (odd, self.sshr(b, 8))];
        let sums = halves.map(|(x, y)| {
            let (x_low, y_low) = (self.b.ins().swiden_low(x), self.b.ins().swiden_low(y));
            let low = self.b.ins().imul(x_low, y_low);
            let (x_high, y_high) = (self.b.ins().swiden_high(x), self.b.ins().swiden_high(y));
            let high = self.b.ins().imul(x_high, y_high);
            self.b.ins().iadd_pairwise(low, high)
        });
        self.b.ins().iadd(sums[0], sums[1])
    }

    /// Shift by a constant less than the width; `None` for more.
    fn shift_by(&mut self, op: BinaryFn, dtype: DType, x: Value, count: Option<u32>) -> Value {
        let Some(count) = count else {
            let ty = self.type_of(x);
            return self.int(ty, 0);
        };
        let shifted = match op {
            BinaryFn::Shl => self.shl(x, count),
            _ if dtype.is_signed_int() => self.sshr(x, count),
            _ => self.ushr(x, count),
        };
        self.wrap(shifted, dtype)
    }

    fn int_values(
        &mut self,
        op: BinaryFn,
        dtype: DType,
        a: Value,
        b: Value,
        lanes: usize,
    ) -> Result<Option<Value>> {
        if dtype == DType::Bool {
            return self.bool_values(op, a, b).map(Some);
        }
        let signed = dtype.is_signed_int();
        let value = match op {
            BinaryFn::Add => self.b.ins().iadd(a, b),
            BinaryFn::Sub => self.b.ins().isub(a, b),
            // No multiplication of 8-bit lanes.
            BinaryFn::Mul if lanes == 16 => return Ok(None),
            BinaryFn::Mul => self.b.ins().imul(a, b),
            BinaryFn::BitAnd => self.b.ins().band(a, b),
            BinaryFn::BitOr => self.b.ins().bor(a, b),
            BinaryFn::BitXor => self.b.ins().bxor(a, b),
            BinaryFn::Max | BinaryFn::Min => self.int_extreme(op == BinaryFn::Max, dtype, a, b, lanes),
            BinaryFn::Dot if lanes == 4 => self.dot_vectors(a, b),
            BinaryFn::Dot if lanes == 1 => self.dot_words(a, b),
            _ if lanes > 1 => return Ok(None),
            BinaryFn::Div => self.divide_small(a, b, dtype),
            BinaryFn::Rem | BinaryFn::Mod => {
                let quotient = self.divide_small(a, b, dtype);
                let rest = self.rest(a, b, quotient);
                let rest = if op == BinaryFn::Mod && signed {
                    let adjust = self.off_floor(rest, b);
                    let other = self.b.ins().iadd(rest, b);
                    self.choose(adjust, other, rest)
                } else {
                    rest
                };
                // A zero divisor gives 0.
                let zero = self.int(self.type_of(b), 0);
                let divides = self.icmp(IntCC::NotEqual, b, zero);
                self.choose(divides, rest, zero)
            }
            BinaryFn::Shl | BinaryFn::Shr => self.shift(op, dtype, a, b),
            BinaryFn::Pow => self.power(a, b, dtype),
            _ => return Err(self.no_instructions(op.name(), dtype)),
        };
        Ok(Some(self.wrap(value, dtype)))
    }

    fn bool_values(&mut self, op: BinaryFn, a: Value, b: Value) -> Result<Value> {
        Ok(match op {
            BinaryFn::And | BinaryFn::BitAnd | BinaryFn::Min | BinaryFn::Mul => self.b.ins().band(a, b),
            BinaryFn::Or | BinaryFn::BitOr | BinaryFn::Max => self.b.ins().bor(a, b),
            BinaryFn::Xor | BinaryFn::BitXor => self.b.ins().bxor(a, b),
            _ => return Err(self.no_instructions(op.name(), DType::Bool)),
        })
    }

    fn int_extreme(&mut self, max: bool, dtype: DType, a: Value, b: Value, lanes: usize) -> Value {
        let signed = dtype.is_signed_int();
        if lanes == 2 {
            // 64-bit lanes have comparison only.
            let wide = dtype.bits() == 64;
            let cc = match (signed || !wide, max) {
                (true, true) => IntCC::SignedGreaterThan,
                (true, false) => IntCC::SignedLessThan,
                (false, true) => IntCC::UnsignedGreaterThan,
                (false, false) => IntCC::UnsignedLessThan,
            };
            let first = self.icmp(cc, a, b);
            return self.choose(first, a, b);
        }
        match (signed, max) {
            (true, true) => self.b.ins().smax(a, b),
            (true, false) => self.b.ins().smin(a, b),
            (false, true) => self.b.ins().umax(a, b),
            (false, false) => self.b.ins().umin(a, b),
        }
    }

    /// Truncated quotient of two integers of the same type: 0 for a zero divisor, and MIN / -1 is MIN.
    pub fn divide(&mut self, a: Value, b: Value, signed: bool) -> Value {
        let ty = self.type_of(a);
        let zero = self.int(ty, 0);
        let one = self.int(ty, 1);
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        if !signed {
            let safe = self.b.ins().select(is_zero, one, b);
            let quotient = self.b.ins().udiv(a, safe);
            return self.b.ins().select(is_zero, zero, quotient);
        }
        let minus = self.int(ty, -1);
        let is_minus = self.b.ins().icmp(IntCC::Equal, b, minus);
        let special = self.b.ins().bor(is_zero, is_minus);
        let safe = self.b.ins().select(special, one, b);
        let quotient = self.b.ins().sdiv(a, safe);
        let negated = self.b.ins().ineg(a);
        let quotient = self.b.ins().select(is_minus, negated, quotient);
        self.b.ins().select(is_zero, zero, quotient)
    }

    /// [`Gen::divide`] of any width: narrow divisions are made in 32 bits.
    fn divide_small(&mut self, a: Value, b: Value, dtype: DType) -> Value {
        let signed = dtype.is_signed_int();
        let ty = self.type_of(a);
        if ty.bits() >= 32 {
            return self.divide(a, b, signed);
        }
        let (a, b) = (self.resize(a, types::I32, signed), self.resize(b, types::I32, signed));
        let quotient = self.divide(a, b, signed);
        self.resize(quotient, ty, signed)
    }

    /// Shift by a scalar count; the width or more, and negative counts, give 0.
    fn shift(&mut self, op: BinaryFn, dtype: DType, a: Value, count: Value) -> Value {
        let shifted = match op {
            BinaryFn::Shl => self.b.ins().ishl(a, count),
            _ if dtype.is_signed_int() => self.b.ins().sshr(a, count),
            _ => self.b.ins().ushr(a, count),
        };
        let fits = self.icmp_int(IntCC::UnsignedLessThan, count, i64::from(dtype.bits()));
        let zero = self.int(self.type_of(a), 0);
        self.choose(fits, shifted, zero)
    }

    /// Power by squaring, modulo the width; a negative exponent gives the truncated quotient 1 / a^b.
    fn power(&mut self, a: Value, exponent: Value, dtype: DType) -> Value {
        let ty = types::I64;
        let signed = dtype.is_signed_int();
        let (base, n) = (self.resize(a, ty, signed), self.resize(exponent, ty, signed));
        let one = self.int(ty, 1);
        let (header, inside, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let [result, square, rest] = [0; 3].map(|_| self.b.append_block_param(header, ty));
        self.b.ins().jump(header, &[one, base, n].map(BlockArg::Value));
        self.b.switch_to_block(header);
        self.b.ins().brif(rest, inside, &[], after, &[]);
        self.b.switch_to_block(inside);
        self.b.seal_block(inside);
        let odd = self.band_int(rest, 1);
        let product = self.b.ins().imul(result, square);
        let next = self.b.ins().select(odd, product, result);
        let squared = self.b.ins().imul(square, square);
        // Logical, so that the loop ends for negative exponents too.
        let half = self.ushr(rest, 1);
        self.b.ins().jump(header, &[next, squared, half].map(BlockArg::Value));
        self.b.seal_block(header);
        self.b.switch_to_block(after);
        self.b.seal_block(after);
        let power = if signed { self.negative_power(base, n, result) } else { result };
        self.resize(power, super::lane::int_type(container_bits(dtype)), signed)
    }

    /// `power` for exponents from 0 on; 1 / base^n truncated for others: 1 and -1 keep their powers.
    fn negative_power(&mut self, base: Value, n: Value, power: Value) -> Value {
        let negative = self.icmp_int(IntCC::SignedLessThan, n, 0);
        let above = self.add_int(base, 1);
        // base is -1, 0 or 1; the power of 0 is 0 as n, taken as unsigned, is not 0.
        let unit = self.icmp_int(IntCC::UnsignedLessThan, above, 3);
        let zero = self.int(types::I64, 0);
        let quotient = self.b.ins().select(unit, power, zero);
        self.b.ins().select(negative, quotient, power)
    }
}
