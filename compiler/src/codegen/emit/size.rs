//! Sizes at run time: dims evaluated by generated code, with overflow noticed.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value, types};

use crate::codegen::emit::func::Code;
use crate::error::{Error, Result, Stage};
use crate::graph::dim::{Atom, overgrown};
use crate::graph::{Dim, Sym};

/// Evaluates dims in one function. Values are shared by all later uses, so every evaluation must be in a block
/// that dominates what follows.
pub(super) struct Sizes {
    pub symbols: HashMap<Sym, Value>,
    known: HashMap<Dim, Value>,
    /// Not zero once some evaluation overflowed or divided by zero.
    overflow: Option<Value>,
}

impl Sizes {
    pub fn new(symbols: HashMap<Sym, Value>) -> Sizes {
        Sizes { symbols, known: HashMap::new(), overflow: None }
    }

    /// The value of `dim`, and a flag that is not zero if its evaluation, or one before it, overflowed.
    pub fn checked(&mut self, code: &mut Code<'_>, dim: &Dim) -> Result<(Value, Option<Value>)> {
        let value = self.dim(code, dim)?;
        Ok((value, self.overflow))
    }

    /// The value of a dim; it is meaningless after an overflow, which the caller has excluded.
    pub fn value(&mut self, code: &mut Code<'_>, dim: &Dim) -> Result<Value> {
        self.dim(code, dim)
    }

    fn dim(&mut self, code: &mut Code<'_>, dim: &Dim) -> Result<Value> {
        if let Some(value) = dim.as_const() {
            return Ok(code.int(value));
        }
        if let Some(&value) = self.known.get(dim) {
            return Ok(value);
        }
        let mut sum = None;
        for (monomial, coefficient) in dim.terms() {
            let mut product = None;
            for atom in monomial.iter() {
                let factor = self.atom(code, atom)?;
                product = Some(match product {
                    Some(product) => self.multiply(code, product, factor),
                    None => factor,
                });
            }
            let term = match product {
                None => code.int(coefficient),
                Some(product) if coefficient == 1 => product,
                Some(product) => {
                    let coefficient = code.int(coefficient);
                    self.multiply(code, product, coefficient)
                }
            };
            sum = Some(match sum {
                Some(sum) => self.add(code, sum, term),
                None => term,
            });
        }
        let value = match sum {
            Some(sum) => sum,
            None => code.int(0),
        };
        self.known.insert(dim.clone(), value);
        Ok(value)
    }

    fn atom(&mut self, code: &mut Code<'_>, atom: &Atom) -> Result<Value> {
        Ok(match atom {
            Atom::Sym(sym) => match self.symbols.get(sym) {
                Some(&value) => value,
                None => {
                    return Err(Error::unsupported(
                        Stage::Codegen,
                        format!("a size that no input's shape decides ({sym})"),
                    ));
                }
            },
            Atom::FloorDiv(a, b) => {
                let (a, b) = (self.dim(code, a)?, self.dim(code, b)?);
                self.divide(code, a, b).0
            }
            Atom::Mod(a, b) => {
                let (a, b) = (self.dim(code, a)?, self.dim(code, b)?);
                self.divide(code, a, b).1
            }
            Atom::Min(a, b) => {
                let (a, b) = (self.dim(code, a)?, self.dim(code, b)?);
                let less = code.icmp(IntCC::SignedLessThan, a, b);
                code.b.ins().select(less, a, b)
            }
            Atom::Max(a, b) => {
                let (a, b) = (self.dim(code, a)?, self.dim(code, b)?);
                let less = code.icmp(IntCC::SignedLessThan, a, b);
                code.b.ins().select(less, b, a)
            }
            Atom::Overgrown => return Err(overgrown(Stage::Codegen, "a size that a run checks")),
        })
    }

    fn note(&mut self, code: &mut Code<'_>, bad: Value) {
        self.overflow = Some(match self.overflow {
            Some(overflow) => code.b.ins().bor(overflow, bad),
            None => bad,
        });
    }

    fn multiply(&mut self, code: &mut Code<'_>, a: Value, b: Value) -> Value {
        let low = code.b.ins().imul(a, b);
        let high = code.b.ins().smulhi(a, b);
        let sign = code.b.ins().sshr_imm_u(low, 63);
        let bad = code.icmp(IntCC::NotEqual, high, sign);
        self.note(code, bad);
        low
    }

    fn add(&mut self, code: &mut Code<'_>, a: Value, b: Value) -> Value {
        let sum = code.b.ins().iadd(a, b);
        // Overflow: both operands have the sign that the sum has not.
        let (x, y) = (code.b.ins().bxor(a, sum), code.b.ins().bxor(b, sum));
        let both = code.b.ins().band(x, y);
        let bad = code.icmp_imm(IntCC::SignedLessThan, both, 0);
        self.note(code, bad);
        sum
    }

    /// Floor quotient and remainder by a positive divisor; another divisor counts as overflow, and never traps.
    fn divide(&mut self, code: &mut Code<'_>, a: Value, b: Value) -> (Value, Value) {
        let bad = code.icmp_imm(IntCC::SignedLessThan, b, 1);
        self.note(code, bad);
        let one = code.int(1);
        let b = code.b.ins().select(bad, one, b);
        let quotient = code.b.ins().sdiv(a, b);
        let back = code.b.ins().imul(quotient, b);
        let remainder = code.b.ins().isub(a, back);
        let negative = code.icmp_imm(IntCC::SignedLessThan, remainder, 0);
        let borrow = code.b.ins().uextend(types::I64, negative);
        let quotient = code.b.ins().isub(quotient, borrow);
        let zero = code.int(0);
        let correction = code.b.ins().select(negative, b, zero);
        (quotient, code.b.ins().iadd(remainder, correction))
    }
}
