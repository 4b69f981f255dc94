//! Sequences for integers alone: what no instruction defines for every operand.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value};

use super::{Emitter, Shift};

impl Emitter<'_> {
    /// Truncated quotient: 0 for a zero divisor, and MIN / -1 is MIN.
    pub(super) fn divide(&mut self, a: Value, b: Value, signed: bool) -> Value {
        let ty = self.type_of(a);
        let (zero, one) = (self.constant(ty, 0), self.constant(ty, 1));
        let is_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        if !signed {
            let safe = self.b.ins().select(is_zero, one, b);
            let quotient = self.b.ins().udiv(a, safe);
            return self.b.ins().select(is_zero, zero, quotient);
        }
        let minus = self.constant(ty, u64::MAX);
        let is_minus = self.b.ins().icmp(IntCC::Equal, b, minus);
        let special = self.b.ins().bor(is_zero, is_minus);
        let safe = self.b.ins().select(special, one, b);
        let quotient = self.b.ins().sdiv(a, safe);
        let negated = self.b.ins().ineg(a);
        let quotient = self.b.ins().select(is_minus, negated, quotient);
        self.b.ins().select(is_zero, zero, quotient)
    }

    /// A shift by a count of any size, taken as unsigned.
    pub(super) fn shift_by(&mut self, a: Value, count: Value, shift: Shift) -> Value {
        let ty = self.type_of(a);
        let (zero, width) = (self.constant(ty, 0), self.constant(ty, u64::from(ty.bits())));
        let fits = self.b.ins().icmp(IntCC::UnsignedLessThan, count, width);
        let shifted = match shift {
            Shift::Left => self.b.ins().ishl(a, count),
            Shift::Right => self.b.ins().ushr(a, count),
            Shift::Arithmetic => {
                let most = self.constant(ty, u64::from(ty.bits() - 1));
                let count = self.b.ins().select(fits, count, most);
                return self.b.ins().sshr(a, count);
            }
        };
        self.b.ins().select(fits, shifted, zero)
    }
}
