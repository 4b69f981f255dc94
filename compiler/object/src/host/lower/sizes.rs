//! Sizes at run time: dims as checked arithmetic.

use std::collections::HashMap;

use crate::host::abi::status;
use crate::host::ir::{Binary, Checked, Compare, Condition, Op, Operand, Type, Value};
use crate::host::lower::builder::Builder;
use crate::host::lower::layout::bound_symbols;
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::dim::{Atom, overgrown};
use onnxc_ir::graph::{Dim, Graph, Sym};

/// The symbols' values that a caller gives: an array and its length.
pub(super) fn given_symbols(
    b: &mut Builder,
    graph: &Graph,
    (dims, count): (Value, Value),
    refuse: &dyn Fn(&mut Builder, Operand, i32),
) -> Sizes {
    let symbols = bound_symbols(graph);
    let miscounted = b.compare(Compare::Ne, count, symbols.len() as i64);
    refuse(b, miscounted, status::BAD_COUNT);
    if !symbols.is_empty() {
        let null = b.compare(Compare::Eq, dims, 0);
        refuse(b, null, status::NULL_POINTER);
    }
    let mut sizes = Sizes::default();
    for (at, &symbol) in symbols.iter().enumerate() {
        let value = b.load_at(Type::I64, dims, 8 * at as i64);
        let negative = b.compare(Compare::Lt, value, 0);
        refuse(b, negative, status::BAD_DIM);
        sizes.symbols.insert(symbol, value.into());
    }
    sizes
}

/// Returns `result` where `bad` is not 0.
pub(super) fn leave_if(b: &mut Builder, bad: Operand, result: i64) {
    match bad {
        Operand::Int(0) => {}
        Operand::Int(_) => b.effect(Op::Return(result.into())),
        Operand::Value(bad) => {
            b.open();
            b.effect(Op::Return(result.into()));
            let leave = b.close();
            b.if_else(Condition::Value(bad), leave, vec![]);
        }
    }
}

/// Evaluates dims in one function. Values are shared by all later uses, so every evaluation must be in a region that
/// is open wherever they are used.
#[derive(Default)]
pub(super) struct Sizes {
    pub symbols: HashMap<Sym, Operand>,
    known: HashMap<Dim, Operand>,
    /// Not 0 where an evaluation had no result and nobody has asked since.
    overflow: Option<Operand>,
}

impl Sizes {
    pub(super) fn new(symbols: HashMap<Sym, Operand>) -> Sizes {
        Sizes { symbols, ..Sizes::default() }
    }

    /// The value of `dim`, and what is not 0 if its evaluation had no result, or one since the last call of this, which
    /// the caller leaves for.
    pub(super) fn checked(&mut self, b: &mut Builder, dim: &Dim) -> Result<(Operand, Operand)> {
        let value = self.value(b, dim)?;
        Ok((value, self.overflow.take().unwrap_or(Operand::Int(0))))
    }

    /// The value of a dim, to be compared: it means nothing where the evaluation has no result.
    pub(super) fn value(&mut self, b: &mut Builder, dim: &Dim) -> Result<Operand> {
        if let Some(value) = dim.as_const() {
            return Ok(value.into());
        }
        if let Some(&value) = self.known.get(dim) {
            return Ok(value);
        }
        let mut sum = Operand::Int(0);
        for (monomial, coefficient) in dim.terms() {
            let mut product = Operand::Int(1);
            for atom in monomial.iter() {
                let factor = self.atom(b, atom)?;
                product = self.arithmetic(b, Checked::Mul, product, factor);
            }
            let term = match monomial.is_empty() {
                true => coefficient.into(),
                false => self.arithmetic(b, Checked::Mul, product, coefficient.into()),
            };
            sum = self.arithmetic(b, Checked::Add, sum, term);
        }
        self.known.insert(dim.clone(), sum);
        Ok(sum)
    }

    fn atom(&mut self, b: &mut Builder, atom: &Atom) -> Result<Operand> {
        type Combine = fn(&mut Sizes, &mut Builder, Operand, Operand) -> Operand;
        let (x, y, combine): (&Dim, &Dim, Combine) = match atom {
            Atom::Sym(sym) => {
                return self.symbols.get(sym).copied().ok_or_else(|| {
                    let message = format!("a size that no input's shape decides ({sym})");
                    Error::unsupported(Stage::Codegen, message)
                });
            }
            Atom::Overgrown => return Err(overgrown(Stage::Codegen, "a size that a run checks")),
            Atom::FloorDiv(x, y) => (x, y, |own, b, x, y| own.arithmetic(b, Checked::Div, x, y)),
            Atom::Mod(x, y) => (x, y, |own, b, x, y| own.arithmetic(b, Checked::Mod, x, y)),
            Atom::Min(x, y) => (x, y, |_, b, x, y| b.binary(Binary::Min, x, y)),
            Atom::Max(x, y) => (x, y, |_, b, x, y| b.binary(Binary::Max, x, y)),
            Atom::Broadcast(x, y) => (x, y, Sizes::broadcast),
        };
        let (x, y) = (self.value(b, x)?, self.value(b, y)?);
        Ok(combine(self, b, x, y))
    }

    /// The larger, times 1 where both are that at least, otherwise 0.
    fn broadcast(&mut self, b: &mut Builder, x: Operand, y: Operand) -> Operand {
        let (most, least) = (b.binary(Binary::Max, x, y), b.binary(Binary::Min, x, y));
        let some = b.binary(Binary::Min, least, 1);
        let some = b.binary(Binary::Max, some, 0);
        self.arithmetic(b, Checked::Mul, most, some)
    }

    fn arithmetic(&mut self, b: &mut Builder, checked: Checked, x: Operand, y: Operand) -> Operand {
        let (result, none) = b.checked(checked, x, y);
        let overflow = self.overflow.unwrap_or(Operand::Int(0));
        let overflow = b.binary(Binary::Or, overflow, none);
        self.overflow = (overflow != Operand::Int(0)).then_some(overflow);
        result
    }
}
