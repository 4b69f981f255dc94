//! Arithmetic.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};

use super::Writer;
use crate::host::ir::{Binary, Checked, Compare, Operand};
use onnxc_ir::error::Result;

impl Writer<'_, '_, '_> {
    pub(super) fn binary(&mut self, binary: Binary, a: Operand, b: Operand) -> Result<Value> {
        if let (Operand::Value(a), Operand::Int(b), Binary::Add | Binary::And) = (a, b, binary) {
            let a = self.get(a)?;
            return Ok(match binary {
                Binary::Add => self.code.add(a, b),
                _ => self.code.b.ins().band_imm_u(a, b),
            });
        }
        let (a, b) = self.pair(a, b)?;
        let ins = self.code.b.ins();
        Ok(match binary {
            Binary::Add => ins.iadd(a, b),
            Binary::Sub => ins.isub(a, b),
            Binary::And => ins.band(a, b),
            Binary::Or => ins.bor(a, b),
            Binary::Min | Binary::Max => {
                let less = self.code.icmp(IntCC::SignedLessThan, a, b);
                let (then, otherwise) = if binary == Binary::Min { (a, b) } else { (b, a) };
                self.code.b.ins().select(less, then, otherwise)
            }
            Binary::MaxUnsigned => ins.umax(a, b),
        })
    }

    /// The result, and whether it is none.
    pub(super) fn checked(&mut self, checked: Checked, a: Value, b: Value) -> [Value; 2] {
        match checked {
            Checked::Add => {
                let sum = self.code.b.ins().iadd(a, b);
                // Overflow: both operands have the sign that the sum has not.
                let (x, y) = (self.code.b.ins().bxor(a, sum), self.code.b.ins().bxor(b, sum));
                let both = self.code.b.ins().band(x, y);
                [sum, self.code.icmp_imm(IntCC::SignedLessThan, both, 0)]
            }
            Checked::Mul => {
                let low = self.code.b.ins().imul(a, b);
                let high = self.code.b.ins().smulhi(a, b);
                let sign = self.code.b.ins().sshr_imm_u(low, 63);
                [low, self.code.icmp(IntCC::NotEqual, high, sign)]
            }
            Checked::Div | Checked::Mod => self.divide(checked, a, b),
        }
    }

    /// Floor quotient or remainder by a positive divisor; another divisor never traps.
    fn divide(&mut self, checked: Checked, a: Value, b: Value) -> [Value; 2] {
        let bad = self.code.icmp_imm(IntCC::SignedLessThan, b, 1);
        let one = self.code.int(1);
        let b = self.code.b.ins().select(bad, one, b);
        let quotient = self.code.b.ins().sdiv(a, b);
        let back = self.code.b.ins().imul(quotient, b);
        let remainder = self.code.b.ins().isub(a, back);
        let negative = self.code.icmp_imm(IntCC::SignedLessThan, remainder, 0);
        if checked == Checked::Div {
            let borrow = self.code.b.ins().uextend(types::I64, negative);
            return [self.code.b.ins().isub(quotient, borrow), bad];
        }
        let zero = self.code.int(0);
        let correction = self.code.b.ins().select(negative, b, zero);
        [self.code.b.ins().iadd(remainder, correction), bad]
    }
}

pub(super) fn condition_code(compare: Compare) -> IntCC {
    match compare {
        Compare::Eq => IntCC::Equal,
        Compare::Ne => IntCC::NotEqual,
        Compare::Lt => IntCC::SignedLessThan,
        Compare::Le => IntCC::SignedLessThanOrEqual,
        Compare::Gt => IntCC::SignedGreaterThan,
        Compare::Ge => IntCC::SignedGreaterThanOrEqual,
        Compare::LtUnsigned => IntCC::UnsignedLessThan,
    }
}
