//! Instruction sequences of the float functions and of comparisons. Operands are scalars or vectors: the
//! instructions are the same.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value};

use super::kernel::Gen;
use crate::error::Result;
use crate::graph::DType;
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

impl Gen<'_, '_> {
    pub fn float_unary(&mut self, op: UnaryFn, dtype: DType, x: Value, lanes: usize) -> Result<Value> {
        let ty = self.type_of(x);
        let rounds = matches!(op, UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc);
        if rounds && !self.target.has_rounding {
            return Ok(self.round_by_addition(op, x));
        }
        Ok(match op {
            UnaryFn::Neg => self.b.ins().fneg(x),
            UnaryFn::Abs => self.b.ins().fabs(x),
            UnaryFn::Ceil => self.b.ins().ceil(x),
            UnaryFn::Floor => self.b.ins().floor(x),
            UnaryFn::Round => self.b.ins().nearest(x),
            UnaryFn::Trunc => self.b.ins().trunc(x),
            UnaryFn::Sqrt => self.b.ins().sqrt(x),
            UnaryFn::Recip => {
                let one = self.float(ty, 1.0);
                self.b.ins().fdiv(one, x)
            }
            UnaryFn::Sign => {
                let (zero, one, minus) = (self.float(ty, 0.0), self.float(ty, 1.0), self.float(ty, -1.0));
                let positive = self.b.ins().fcmp(FloatCC::GreaterThan, x, zero);
                let sign = self.choose(positive, one, zero);
                let negative = self.b.ins().fcmp(FloatCC::LessThan, x, zero);
                let sign = self.choose(negative, minus, sign);
                let nan = self.b.ins().fcmp(FloatCC::Unordered, x, x);
                self.choose(nan, x, sign)
            }
            UnaryFn::IsNan => self.fcmp(FloatCC::Unordered, x, x, lanes),
            UnaryFn::IsPosInf => {
                let infinity = self.float(ty, f64::INFINITY);
                self.fcmp(FloatCC::Equal, x, infinity, lanes)
            }
            UnaryFn::IsNegInf => {
                let infinity = self.float(ty, f64::NEG_INFINITY);
                self.fcmp(FloatCC::Equal, x, infinity, lanes)
            }
            _ => return Err(self.no_instructions(op.name(), dtype)),
        })
    }

    /// Rounding to an integral value where no instruction does it. A magnitude that has a fraction is less than 2^23
    /// (2^52 for f64); added to that number, it is rounded to the nearest integer, ties to even. The other functions
    /// correct that result by one where it is on the wrong side.
    fn round_by_addition(&mut self, op: UnaryFn, x: Value) -> Value {
        let ty = self.type_of(x);
        let limit = self.float(ty, if ty.lane_bits() == 64 { (1u64 << 52) as f64 } else { (1 << 23) as f64 });
        let magnitude = self.b.ins().fabs(x);
        let shifted = self.b.ins().fadd(magnitude, limit);
        let nearest = self.b.ins().fsub(shifted, limit);
        let one = self.float(ty, 1.0);
        let rounded = match op {
            UnaryFn::Round => nearest,
            UnaryFn::Trunc => {
                let beyond = self.b.ins().fcmp(FloatCC::GreaterThan, nearest, magnitude);
                let less = self.b.ins().fsub(nearest, one);
                self.choose(beyond, less, nearest)
            }
            _ => {
                let (nearest, down) = (self.with_sign_of(nearest, x), op == UnaryFn::Floor);
                let cc = if down { FloatCC::GreaterThan } else { FloatCC::LessThan };
                let beyond = self.b.ins().fcmp(cc, nearest, x);
                let next =
                    if down { self.b.ins().fsub(nearest, one) } else { self.b.ins().fadd(nearest, one) };
                self.choose(beyond, next, nearest)
            }
        };
        // Zeros keep the sign of what they were rounded from.
        let rounded = self.with_sign_of(rounded, x);
        let has_fraction = self.b.ins().fcmp(FloatCC::LessThan, magnitude, limit);
        self.choose(has_fraction, rounded, x)
    }

    fn with_sign_of(&mut self, magnitude: Value, sign: Value) -> Value {
        let ty = self.type_of(sign);
        if !ty.is_vector() {
            return self.b.ins().fcopysign(magnitude, sign);
        }
        let mask = self.float(ty, -0.0);
        self.b.ins().bitselect(mask, sign, magnitude)
    }

    pub fn no_instructions(&self, function: &str, dtype: DType) -> crate::error::Error {
        self.internal(format!("no instructions for `{function}` of {dtype}; it is expanded before"))
    }

    /// `clean` says which operands are known to be no NaN. `None` where vectors have no instructions.
    pub fn float_binary(
        &mut self,
        op: BinaryFn,
        dtype: DType,
        a: Value,
        b: Value,
        clean: (bool, bool),
        lanes: usize,
    ) -> Result<Option<Value>> {
        Ok(Some(match op {
            BinaryFn::Add => self.b.ins().fadd(a, b),
            BinaryFn::Sub => self.b.ins().fsub(a, b),
            BinaryFn::Mul => self.b.ins().fmul(a, b),
            BinaryFn::Div => self.b.ins().fdiv(a, b),
            BinaryFn::Max => self.float_extreme(true, a, b, clean),
            BinaryFn::Min => self.float_extreme(false, a, b, clean),
            BinaryFn::Rem | BinaryFn::Mod if lanes > 1 => return Ok(None),
            BinaryFn::Rem => self.float_rem(a, b),
            BinaryFn::Mod => self.float_mod(a, b),
            _ => return Err(self.no_instructions(op.name(), dtype)),
        }))
    }

    /// Maximum or minimum; NaN if either operand is NaN.
    fn float_extreme(&mut self, max: bool, a: Value, b: Value, clean: (bool, bool)) -> Value {
        if self.target.has_nan_minmax {
            return if max { self.b.ins().fmax(a, b) } else { self.b.ins().fmin(a, b) };
        }
        match clean {
            (true, _) => self.pseudo_extreme(max, a, b),
            (_, true) => self.pseudo_extreme(max, b, a),
            _ => {
                let extreme = self.pseudo_extreme(max, a, b);
                let nan = self.b.ins().fcmp(FloatCC::Unordered, a, a);
                self.choose(nan, a, extreme)
            }
        }
    }

    /// `maxps` and `minps`: the second operand if either is NaN.
    fn pseudo_extreme(&mut self, max: bool, a: Value, b: Value) -> Value {
        let (low, high) = if max { (b, a) } else { (a, b) };
        let first = self.b.ins().fcmp(FloatCC::LessThan, low, high);
        self.choose(first, a, b)
    }

    /// Comparison: a bool, or a mask of `lanes` lanes.
    pub fn compare(&mut self, op: CompareFn, dtype: DType, a: Value, b: Value, lanes: usize) -> Value {
        if dtype.is_float() {
            let cc = match op {
                CompareFn::Eq => FloatCC::Equal,
                CompareFn::Ne => FloatCC::NotEqual,
                CompareFn::Lt => FloatCC::LessThan,
                CompareFn::Le => FloatCC::LessThanOrEqual,
                CompareFn::Gt => FloatCC::GreaterThan,
                CompareFn::Ge => FloatCC::GreaterThanOrEqual,
            };
            return self.fcmp(cc, a, b, lanes);
        }
        let signed = match op {
            CompareFn::Eq => IntCC::Equal,
            CompareFn::Ne => IntCC::NotEqual,
            CompareFn::Lt => IntCC::SignedLessThan,
            CompareFn::Le => IntCC::SignedLessThanOrEqual,
            CompareFn::Gt => IntCC::SignedGreaterThan,
            CompareFn::Ge => IntCC::SignedGreaterThanOrEqual,
        };
        // Values that leave their sign bit free compare alike either way, and signed comparison is one
        // instruction more often.
        let spare = dtype != DType::Bool && dtype.bits() < self.type_of(a).lane_bits();
        let cc = if dtype.is_signed_int() || spare { signed } else { signed.unsigned() };
        self.icmp(cc, a, b)
    }
}
