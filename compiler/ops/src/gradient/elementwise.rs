//! Rules of functions of single elements.

use super::{Rule, is_straight, of_adjoints};
use crate::circular::circular;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{MapFn, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

impl Rule<'_, '_> {
    pub(super) fn map(&mut self, function: MapFn, g: ValueId) -> Result<Vec<Option<ValueId>>> {
        let of_operands = match function {
            MapFn::Unary(function) => vec![self.unary(function, g)?],
            MapFn::Binary(function) => self.binary(function, g)?.into(),
            MapFn::Select => {
                let (condition, zero) = (self.operand(0), self.number(0.0, g));
                let then = self.b.select(condition, g, zero)?;
                vec![None, Some(then), Some(self.b.select(condition, zero, g)?)]
            }
            MapFn::MulAdd => {
                let [a, b] = self.product(g)?;
                vec![a, b, Some(g)]
            }
            MapFn::Cast { .. }
                if self.b.dtype(self.operand(0)).part().or(self.b.dtype(g).part()).is_some() =>
            {
                return self.unknown();
            }
            MapFn::Cast { .. } => {
                let to = of_adjoints(self.b.dtype(self.operand(0)));
                vec![if self.wanted[0] { Some(self.b.cast(g, to)?) } else { None }]
            }
            MapFn::Compare(_) | MapFn::Requantize { .. } | MapFn::Bitcast { .. } => return self.unknown(),
        };
        let sum = |(at, adjoint): (usize, Option<ValueId>)| match adjoint.filter(|_| self.wanted[at]) {
            Some(adjoint) => self.summed(adjoint, self.operand(at)).map(Some),
            None => Ok(None),
        };
        of_operands.into_iter().enumerate().map(sum).collect()
    }

    fn unary(&mut self, function: UnaryFn, g: ValueId) -> Result<Option<ValueId>> {
        let (x, y) = (self.operand(0), self.node.outputs[0]);
        let one = self.number(1.0, x);
        let by = |rule: &mut Self, factor: ValueId| rule.b.binary(BinaryFn::Mul, g, factor);
        let over = |rule: &mut Self, divisor: ValueId| rule.b.binary(BinaryFn::Div, g, divisor);
        let square = |rule: &mut Self, x: ValueId| rule.b.binary(BinaryFn::Mul, x, x);
        Ok(Some(match function {
            UnaryFn::Neg => self.b.unary(UnaryFn::Neg, g)?,
            UnaryFn::Abs => {
                let sign = self.b.unary(UnaryFn::Sign, x)?;
                by(self, sign)?
            }
            UnaryFn::Round if is_straight(self.b.graph, self.node) => g,
            UnaryFn::Sign | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc => {
                return Ok(None);
            }
            UnaryFn::Sqrt => {
                let half = self.b.binary_scalar(BinaryFn::Mul, g, 0.5)?;
                self.b.binary(BinaryFn::Div, half, y)?
            }
            UnaryFn::Recip => {
                let square = square(self, y)?;
                let product = by(self, square)?;
                self.b.unary(UnaryFn::Neg, product)?
            }
            UnaryFn::Exp => by(self, y)?,
            UnaryFn::Decay => {
                let none = self.number(0.0, x);
                let falls = self.b.compare(CompareFn::Le, x, none)?;
                let product = by(self, y)?;
                self.b.select(falls, product, none)?
            }
            UnaryFn::Log => over(self, x)?,
            UnaryFn::Log1p => {
                let sum = self.b.binary(BinaryFn::Add, one, x)?;
                over(self, sum)?
            }
            UnaryFn::Expm1 => {
                let sum = self.b.binary(BinaryFn::Add, y, one)?;
                by(self, sum)?
            }
            UnaryFn::Sin => {
                let cos = circular(self.b, x, UnaryFn::Cos)?;
                by(self, cos)?
            }
            UnaryFn::Cos => {
                let sin = circular(self.b, x, UnaryFn::Sin)?;
                let product = by(self, sin)?;
                self.b.unary(UnaryFn::Neg, product)?
            }
            UnaryFn::Tan => {
                let square = square(self, y)?;
                let sum = self.b.binary(BinaryFn::Add, one, square)?;
                by(self, sum)?
            }
            UnaryFn::Sinh => {
                let cosh = self.b.unary(UnaryFn::Cosh, x)?;
                by(self, cosh)?
            }
            UnaryFn::Cosh => {
                let sinh = self.b.unary(UnaryFn::Sinh, x)?;
                by(self, sinh)?
            }
            UnaryFn::Tanh => {
                let square = square(self, y)?;
                let rest = self.b.binary(BinaryFn::Sub, one, square)?;
                by(self, rest)?
            }
            UnaryFn::Sigmoid => {
                let rest = self.b.binary(BinaryFn::Sub, one, y)?;
                let slope = self.b.binary(BinaryFn::Mul, y, rest)?;
                by(self, slope)?
            }
            UnaryFn::Erf => {
                // 2 / sqrt(pi) * exp(-x^2)
                let square = square(self, x)?;
                let negative = self.b.unary(UnaryFn::Neg, square)?;
                let bell = self.b.unary(UnaryFn::Exp, negative)?;
                let slope = self.b.binary_scalar(BinaryFn::Mul, bell, std::f64::consts::FRAC_2_SQRT_PI)?;
                by(self, slope)?
            }
            UnaryFn::Asin | UnaryFn::Acos | UnaryFn::Asinh | UnaryFn::Acosh => {
                // g / sqrt(+-1 +-x^2), as a product where the difference of squares cancels.
                let inside = match function {
                    UnaryFn::Asinh => {
                        let square = square(self, x)?;
                        self.b.binary(BinaryFn::Add, square, one)?
                    }
                    UnaryFn::Acosh => {
                        let (less, more) = self.around(x, one)?;
                        self.b.binary(BinaryFn::Mul, less, more)?
                    }
                    _ => {
                        let (less, more) = self.around(one, x)?;
                        self.b.binary(BinaryFn::Mul, less, more)?
                    }
                };
                let root = self.b.unary(UnaryFn::Sqrt, inside)?;
                let quotient = over(self, root)?;
                match function {
                    UnaryFn::Acos => self.b.unary(UnaryFn::Neg, quotient)?,
                    _ => quotient,
                }
            }
            UnaryFn::Atan => {
                let square = square(self, x)?;
                let sum = self.b.binary(BinaryFn::Add, one, square)?;
                over(self, sum)?
            }
            UnaryFn::Atanh => {
                let (less, more) = self.around(one, x)?;
                let product = self.b.binary(BinaryFn::Mul, less, more)?;
                over(self, product)?
            }
            UnaryFn::Not
            | UnaryFn::BitNot
            | UnaryFn::Swap
            | UnaryFn::IsNan
            | UnaryFn::IsPosInf
            | UnaryFn::IsNegInf => return self.unknown(),
        }))
    }

    /// `a - b` and `a + b`
    fn around(&mut self, a: ValueId, b: ValueId) -> Result<(ValueId, ValueId)> {
        Ok((self.b.binary(BinaryFn::Sub, a, b)?, self.b.binary(BinaryFn::Add, a, b)?))
    }

    /// Of the product of the first two operands.
    fn product(&mut self, g: ValueId) -> Result<[Option<ValueId>; 2]> {
        let mut by = |wanted: usize, other: usize| match self.wanted[wanted] {
            true => self.b.binary(BinaryFn::Mul, g, self.node.inputs[other]).map(Some),
            false => Ok(None),
        };
        Ok([by(0, 1)?, by(1, 0)?])
    }

    fn binary(&mut self, function: BinaryFn, g: ValueId) -> Result<[Option<ValueId>; 2]> {
        let (a, b, y) = (self.operand(0), self.operand(1), self.node.outputs[0]);
        let (for_a, for_b) = (self.wanted[0], self.wanted[1]);
        Ok(match function {
            BinaryFn::Add => [Some(g), Some(g)],
            BinaryFn::Sub => [Some(g), Some(self.b.unary(UnaryFn::Neg, g)?)],
            BinaryFn::Mul => self.product(g)?,
            BinaryFn::Div => {
                let quotient = self.b.binary(BinaryFn::Div, g, b)?;
                let product = self.b.binary(BinaryFn::Mul, quotient, y)?;
                [Some(quotient), Some(self.b.unary(UnaryFn::Neg, product)?)]
            }
            // `a - b * floor(a / b)` and `a - b * trunc(a / b)`
            BinaryFn::Mod | BinaryFn::Rem => {
                let whole = if function == BinaryFn::Mod { UnaryFn::Floor } else { UnaryFn::Trunc };
                let quotient = self.b.binary(BinaryFn::Div, a, b)?;
                let quotient = self.b.unary(whole, quotient)?;
                let product = self.b.binary(BinaryFn::Mul, g, quotient)?;
                [Some(g), Some(self.b.unary(UnaryFn::Neg, product)?)]
            }
            BinaryFn::Pow => [
                if for_a { Some(self.power_by_base(g)?) } else { None },
                if for_b { Some(self.power_by_exponent(g)?) } else { None },
            ],
            BinaryFn::Max => self.extreme(CompareFn::Gt, g)?,
            BinaryFn::Min => self.extreme(CompareFn::Lt, g)?,
            BinaryFn::Atan2 => {
                let (a_square, b_square) =
                    (self.b.binary(BinaryFn::Mul, a, a)?, self.b.binary(BinaryFn::Mul, b, b)?);
                let squares = self.b.binary(BinaryFn::Add, a_square, b_square)?;
                let quotient = self.b.binary(BinaryFn::Div, g, squares)?;
                let product = self.b.binary(BinaryFn::Mul, quotient, a)?;
                let by_b = self.b.unary(UnaryFn::Neg, product)?;
                [Some(self.b.binary(BinaryFn::Mul, quotient, b)?), Some(by_b)]
            }
            // Of integers and bools, and of complex numbers.
            _ => return self.unknown(),
        })
    }

    /// `g * b * a^(b - 1)`, and 0 where `b` is 0, for any `a`.
    fn power_by_base(&mut self, g: ValueId) -> Result<ValueId> {
        let (a, b) = (self.operand(0), self.operand(1));
        let less = self.b.binary_scalar(BinaryFn::Sub, b, 1.0)?;
        let power = self.b.binary(BinaryFn::Pow, a, less)?;
        let slope = self.b.binary(BinaryFn::Mul, b, power)?;
        let zero = self.number(0.0, b);
        let is_constant = self.b.compare(CompareFn::Eq, b, zero)?;
        let slope = self.b.select(is_constant, zero, slope)?;
        self.b.binary(BinaryFn::Mul, g, slope)
    }

    /// `g * a^b * log(a)`, and 0 where `a` is 0.
    fn power_by_exponent(&mut self, g: ValueId) -> Result<ValueId> {
        let (a, y) = (self.operand(0), self.node.outputs[0]);
        let log = self.b.unary(UnaryFn::Log, a)?;
        let slope = self.b.binary(BinaryFn::Mul, y, log)?;
        let zero = self.number(0.0, a);
        let is_zero = self.b.compare(CompareFn::Eq, a, zero)?;
        let slope = self.b.select(is_zero, zero, slope)?;
        self.b.binary(BinaryFn::Mul, g, slope)
    }

    /// To the operand that is first in the order of `wins`, and half to each where they are equal.
    fn extreme(&mut self, wins: CompareFn, g: ValueId) -> Result<[Option<ValueId>; 2]> {
        let (a, b) = (self.operand(0), self.operand(1));
        let half = self.b.binary_scalar(BinaryFn::Mul, g, 0.5)?;
        let equal = self.b.compare(CompareFn::Eq, a, b)?;
        let zero = self.number(0.0, g);
        // The ends of the range that is quantized to belong to it: the bounds are the second operands.
        let shares = match is_straight(self.b.graph, self.node) {
            true => [g, zero],
            false => [half, half],
        };
        let mut part = |wanted: usize, one: ValueId, other: ValueId| {
            if !self.wanted[wanted] {
                return Ok(None);
            }
            let won = self.b.compare(wins, one, other)?;
            let shared = self.b.select(equal, shares[wanted], zero)?;
            self.b.select(won, g, shared).map(Some)
        };
        Ok([part(0, a, b)?, part(1, b, a)?])
    }
}
