//! Indices and addresses.
//!
//! Cranelift hoists nothing out of loops at the level vector loops are compiled at, so strength reduction
//! happens here: the address of an access is a chain of pointers, each adding the terms that one loop depth
//! brings. Before a loop's code, `hoist` scans its body and extends every chain by what is known so far;
//! inside remain a scaled index, which x86-64 folds into the addressing mode, and a constant offset.
//!
//! Indices are first resolved: unrolled loop variables become constants, index lets what they stand for,
//! and every other variable an *instance*, a number for one binding of it. Instances never change, so
//! caches keyed by resolved indices never go stale.

use std::collections::HashMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use cranelift_entity::EntityRef;

use super::kernel::Gen;
use crate::error::{Result, Stage};
use crate::graph::dim::{Atom, overgrown};
use crate::graph::{DType, Dim};
use crate::loops::{Buf, Index, Term, Var};

/// What a variable of the loop IR stands for at this point.
#[derive(Clone, Debug, Default)]
pub enum Binding {
    /// Its loop or let has not been entered.
    #[default]
    Unbound,
    /// An index of instances.
    Index(Index),
    /// A let of another type than i64.
    Value(super::expr::Val),
}

/// One binding of a loop variable or an i64 let.
#[derive(Clone, Debug)]
pub struct Instance {
    pub kind: InstanceKind,
    /// Number of loops around it.
    pub depth: usize,
    /// Exclusive upper bound, where the lower one is 0.
    pub extent: Option<Dim>,
}

#[derive(Clone, Copy, Debug)]
pub enum InstanceKind {
    Scalar(Value),
    /// The variable of the current vector loop.
    Lane,
    /// A let inside a vector loop: one value per lane.
    Lanes(Value),
}

/// Values that are available in the code that is being emitted and what it dominates.
#[derive(Default)]
pub struct Scope {
    pointers: HashMap<(Buf, Index), Value>,
    terms: HashMap<Term, Value>,
    products: HashMap<(Term, Dim), Value>,
    dims: HashMap<Dim, Value>,
    sums: HashMap<Index, Value>,
}

/// Where the elements of a vector are.
pub enum Place {
    /// The same for all lanes.
    Uniform(Index),
    /// Lane 0 here, the others behind it.
    Contiguous(Index),
    Lanes(Vec<Index>),
}

impl Gen<'_, '_> {
    /// Rebuilds an index with every variable replaced, in canonical form.
    fn rewrite(&self, index: &Index, replace: &mut dyn FnMut(Var) -> Option<Index>) -> Option<Index> {
        index.rewrite(replace, &|var| self.instances.get(var.index())?.extent.clone())
    }

    /// The index in terms of instances.
    pub fn resolve(&self, index: &Index) -> Result<Index> {
        self.try_resolve(index)
            .ok_or_else(|| self.internal(format!("index {index:?} has a variable that is not in scope")))
    }

    pub fn try_resolve(&self, index: &Index) -> Option<Index> {
        let mut replace = |var: Var| match &self.env[var] {
            Binding::Index(index) => Some(index.clone()),
            _ => None,
        };
        self.rewrite(index, &mut replace)
    }

    /// Binds a new instance.
    pub fn instance(&mut self, kind: InstanceKind, extent: Option<Dim>) -> Var {
        self.instances.push(Instance { kind, depth: self.depth, extent });
        Var::new(self.instances.len() - 1)
    }

    fn kind(&self, instance: Var) -> InstanceKind {
        self.instances[instance.index()].kind
    }

    pub fn any_instance(index: &Index, test: &dyn Fn(Var) -> bool) -> bool {
        index.terms.iter().any(|(term, _)| match term {
            Term::Var(var) => test(*var),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => Gen::any_instance(x, test),
        })
    }

    /// How a resolved index differs between the lanes of the current vector loop.
    pub fn place(&mut self, index: Index) -> Result<Place> {
        let Some(group) = self.group.clone() else { return Ok(Place::Uniform(index)) };
        if !Gen::any_instance(&index, &|var| !matches!(self.kind(var), InstanceKind::Scalar(_))) {
            return Ok(Place::Uniform(index));
        }
        let lets = Gen::any_instance(&index, &|var| matches!(self.kind(var), InstanceKind::Lanes(_)));
        if !lets && index.coefficient(group.lane) == Some(Dim::ONE) {
            return Ok(Place::Contiguous(self.at_lane(&index, 0)?));
        }
        let places = (0..group.lanes).map(|lane| self.at_lane(&index, lane)).collect::<Result<_>>()?;
        Ok(Place::Lanes(places))
    }

    /// A resolved index as one lane sees it.
    fn at_lane(&mut self, index: &Index, lane: usize) -> Result<Index> {
        let Some(group) = self.group.clone() else { return Ok(index.clone()) };
        let mut lets = vec![];
        Gen::collect_instances(index, &mut lets);
        let mut scalars = HashMap::new();
        for var in lets {
            if let InstanceKind::Lanes(vector) = self.kind(var)
                && !scalars.contains_key(&var)
            {
                let scalar = match self.lane_lets.get(&(var, lane)) {
                    Some(&scalar) => scalar,
                    None => {
                        let value = self.extract(vector, DType::I64, lane);
                        let scalar = self.instance(InstanceKind::Scalar(value), None);
                        self.lane_lets.insert((var, lane), scalar);
                        scalar
                    }
                };
                scalars.insert(var, scalar);
            }
        }
        let here = group.base.add_dim(&Dim::from(lane));
        let mut replace = |var: Var| {
            Some(if var == group.lane {
                here.clone()
            } else {
                Index::var(scalars.get(&var).copied().unwrap_or(var))
            })
        };
        self.rewrite(index, &mut replace).ok_or_else(|| self.internal(format!("lanes of {index:?}")))
    }

    fn collect_instances(index: &Index, into: &mut Vec<Var>) {
        for (term, _) in &index.terms {
            match term {
                Term::Var(var) => into.push(*var),
                Term::FloorDiv(x, _) | Term::Mod(x, _) => Gen::collect_instances(x, into),
            }
        }
    }

    fn find<T: Copy>(&self, get: impl Fn(&Scope) -> Option<T>) -> Option<T> {
        self.scopes.iter().rev().find_map(get)
    }

    fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    /// Value of a symbolic dim.
    pub fn dim(&mut self, dim: &Dim) -> Result<Value> {
        if let Some(value) = dim.as_const() {
            return Ok(self.b.ins().iconst(types::I64, value));
        }
        if let Some(value) = self.find(|scope| scope.dims.get(dim).copied()) {
            return Ok(value);
        }
        let mut sum = None;
        let mut constant = 0;
        for (monomial, coefficient) in dim.terms() {
            let mut product = None;
            for atom in monomial.iter() {
                let factor = self.atom(atom)?;
                product = Some(match product {
                    Some(product) => self.b.ins().imul(product, factor),
                    None => factor,
                });
            }
            let Some(product) = product else {
                constant = coefficient;
                continue;
            };
            let product = self.times(product, coefficient);
            sum = Some(match sum {
                Some(sum) => self.b.ins().iadd(sum, product),
                None => product,
            });
        }
        let value = match sum {
            Some(sum) => self.add_int(sum, constant),
            None => self.b.ins().iconst(types::I64, constant),
        };
        self.scope().dims.insert(dim.clone(), value);
        Ok(value)
    }

    fn atom(&mut self, atom: &Atom) -> Result<Value> {
        Ok(match atom {
            Atom::Sym(sym) => {
                let offset = i32::try_from(sym.index() * 8)
                    .map_err(|_| self.internal(format!("symbol number {} is too large", sym.index())))?;
                let flags = MemFlagsData::new().with_notrap().with_aligned();
                self.b.ins().load(types::I64, flags, self.dims, offset)
            }
            // Unlike a division, a shift cannot trap, and so it may be moved out of loops.
            Atom::FloorDiv(a, b) if b.as_const().is_some_and(is_power_of_two) => {
                let log = b.as_const().map_or(0, i64::trailing_zeros);
                let a = self.dim(a)?;
                let log = self.b.ins().iconst(types::I32, i64::from(log));
                self.b.ins().sshr(a, log)
            }
            Atom::Mod(a, b) if b.as_const().is_some_and(is_power_of_two) => {
                let mask = b.as_const().map_or(0, |by| by - 1);
                let a = self.dim(a)?;
                self.band_int(a, mask)
            }
            Atom::FloorDiv(a, b) => {
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                let quotient = self.divide(a, b, true);
                let rest = self.rest(a, b, quotient);
                let adjust = self.off_floor(rest, b);
                let adjust = self.b.ins().uextend(types::I64, adjust);
                self.b.ins().isub(quotient, adjust)
            }
            Atom::Mod(a, b) => {
                // With the sign of a positive divisor; a divisor of a dim is a size.
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                let quotient = self.divide(a, b, true);
                let rest = self.rest(a, b, quotient);
                let adjust = self.off_floor(rest, b);
                let other = self.b.ins().iadd(rest, b);
                self.b.ins().select(adjust, other, rest)
            }
            Atom::Min(a, b) => {
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                self.b.ins().smin(a, b)
            }
            Atom::Max(a, b) => {
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                self.b.ins().smax(a, b)
            }
            Atom::Overgrown => return Err(overgrown(Stage::Codegen, "an index of a kernel")),
        })
    }

    /// `a - quotient * b`.
    pub fn rest(&mut self, a: Value, b: Value, quotient: Value) -> Value {
        let whole = self.b.ins().imul(quotient, b);
        self.b.ins().isub(a, whole)
    }

    /// Whether a truncated quotient with this remainder is above the floor: the remainder is not zero and
    /// has the other sign than the divisor.
    pub fn off_floor(&mut self, rest: Value, divisor: Value) -> Value {
        let signs = self.b.ins().bxor(rest, divisor);
        let differ = self.icmp_int(IntCC::SignedLessThan, signs, 0);
        let some = self.icmp_int(IntCC::NotEqual, rest, 0);
        self.b.ins().band(differ, some)
    }

    fn times(&mut self, value: Value, by: i64) -> Value {
        match by {
            1 => value,
            by if by > 0 && by.count_ones() == 1 => self.shl(value, by.trailing_zeros()),
            _ => {
                let by = self.b.ins().iconst(types::I64, by);
                self.b.ins().imul(value, by)
            }
        }
    }

    /// Value of a term of a resolved index.
    fn term(&mut self, term: &Term) -> Result<Value> {
        if let Term::Var(var) = term {
            return match self.kind(*var) {
                InstanceKind::Scalar(value) => Ok(value),
                _ => Err(self.internal("a vector index where lanes may not differ".to_string())),
            };
        }
        if let Some(value) = self.find(|scope| scope.terms.get(term).copied()) {
            return Ok(value);
        }
        let (Term::FloorDiv(x, by) | Term::Mod(x, by)) = term else {
            return Err(self.internal("unknown index term".to_string()));
        };
        let is_mod = matches!(term, Term::Mod(..));
        let dividend = self.sum(x)?;
        let value = match by.as_const() {
            Some(by) if by < 1 => return Err(self.internal(format!("index divided by {by}"))),
            Some(by) if by.count_ones() == 1 && is_mod => self.band_int(dividend, by - 1),
            Some(by) => {
                let quotient = self.divide_by_constant(dividend, by);
                if is_mod {
                    let whole = self.times(quotient, by);
                    self.b.ins().isub(dividend, whole)
                } else {
                    quotient
                }
            }
            None => {
                let by = self.dim(by)?;
                let quotient = self.divide(dividend, by, false);
                if is_mod { self.rest(dividend, by, quotient) } else { quotient }
            }
        };
        self.scope().terms.insert(term.clone(), value);
        Ok(value)
    }

    /// Quotient of a value in `0..2^63` by a constant of at least 1, by the high half of a product
    /// (Granlund and Montgomery, "Division by invariant integers using multiplication").
    fn divide_by_constant(&mut self, value: Value, by: i64) -> Value {
        let log = by.trailing_zeros();
        if by.count_ones() == 1 {
            return self.ushr(value, log);
        }
        let log = 64 - (by as u64).leading_zeros();
        let magic = ((1u128 << (63 + log)) / by as u128 + 1) as u64;
        let magic = self.b.ins().iconst(types::I64, magic as i64);
        let high = self.b.ins().umulhi(value, magic);
        self.ushr(high, log - 1)
    }

    /// `term * by` for a number of bytes or elements `by`.
    fn product(&mut self, term: &Term, by: &Dim) -> Result<Value> {
        let key = (term.clone(), by.clone());
        if let Some(value) = self.find(|scope| scope.products.get(&key).copied()) {
            return Ok(value);
        }
        let value = self.term(term)?;
        let value = match by.as_const() {
            Some(by) => self.times(value, by),
            None => {
                let by = self.dim(by)?;
                self.b.ins().imul(value, by)
            }
        };
        self.scope().products.insert(key, value);
        Ok(value)
    }

    /// Value of a resolved index.
    pub fn sum(&mut self, index: &Index) -> Result<Value> {
        let (index, constant) = index.split_constant();
        if index.terms.is_empty() && index.constant == Dim::ZERO {
            return Ok(self.b.ins().iconst(types::I64, constant));
        }
        let sum = match self.find(|scope| scope.sums.get(&index).copied()) {
            Some(sum) => sum,
            None => {
                let mut sum = (index.constant != Dim::ZERO).then(|| self.dim(&index.constant)).transpose()?;
                for (term, coefficient) in &index.terms {
                    let product = self.product(term, coefficient)?;
                    sum = Some(match sum {
                        Some(sum) => self.b.ins().iadd(sum, product),
                        None => product,
                    });
                }
                let sum = match sum {
                    Some(sum) => sum,
                    None => self.b.ins().iconst(types::I64, 0),
                };
                self.scope().sums.insert(index, sum);
                sum
            }
        };
        Ok(self.add_int(sum, constant))
    }

    fn depth_of(&self, term: &Term) -> usize {
        match term {
            Term::Var(var) => self.instances[var.index()].depth,
            Term::FloorDiv(x, _) | Term::Mod(x, _) => {
                x.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0)
            }
        }
    }

    /// Address of the element at a resolved index without integer constant.
    pub fn pointer(&mut self, buf: Buf, index: Index) -> Result<Value> {
        if index.terms.is_empty() && index.constant == Dim::ZERO {
            return self.buffer(buf);
        }
        let key = (buf, index);
        if let Some(value) = self.find(|scope| scope.pointers.get(&key).copied()) {
            return Ok(value);
        }
        let (_, index) = &key;
        let size = Dim::from(self.kernel.buffers[buf].dtype.size());
        let deepest = index.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0);
        let (inner, outer): (Vec<_>, Vec<_>) =
            index.terms.iter().cloned().partition(|(term, _)| self.depth_of(term) == deepest);
        let mut pointer = if inner.is_empty() {
            let base = self.buffer(buf)?;
            let offset = self.dim(&(index.constant.clone() * size.clone()))?;
            self.b.ins().iadd(base, offset)
        } else {
            self.pointer(buf, Index { terms: outer, constant: index.constant.clone() })?
        };
        for (term, coefficient) in &inner {
            let offset = self.product(term, &(coefficient.clone() * size.clone()))?;
            pointer = self.b.ins().iadd(pointer, offset);
        }
        self.scope().pointers.insert(key, pointer);
        Ok(pointer)
    }

    /// Base and constant offset, in bytes, of the element at a resolved index.
    pub fn address(&mut self, buf: Buf, index: &Index) -> Result<(Value, i32)> {
        let (index, constant) = index.split_constant();
        let pointer = self.pointer(buf, index)?;
        let size = self.kernel.buffers[buf].dtype.size() as i64;
        let offset = constant
            .checked_mul(size)
            .ok_or_else(|| self.internal(format!("offset of element {constant} overflows")))?;
        Ok(match i32::try_from(offset) {
            // Room for the other bytes of a vector.
            Ok(offset) if offset < i32::MAX - 16 => (pointer, offset),
            _ => (self.add_int(pointer, offset), 0),
        })
    }

    pub fn is_scalar(&self, instance: Var) -> bool {
        matches!(self.kind(instance), InstanceKind::Scalar(_))
    }
}

fn is_power_of_two(by: i64) -> bool {
    by > 0 && by.count_ones() == 1
}
