//! Addresses: affine indices as sums of registers, each part computed in the outermost loop that allows it.

use std::collections::HashMap;

use super::ir::{Class, Mem, Op, Operand, Reg};
use super::select::{Select, Selected, refuse};
use crate::graph::Dim;
use crate::loops::{Buf, Expr, Index, Stmt, Term, Var, visit};

/// Values computed in a loop's body or a branch, which hold until its end.
#[derive(Default)]
pub struct Scope {
    /// Address of an index without its constant.
    pointers: HashMap<(Buf, Index), Reg>,
    sums: HashMap<Index, Reg>,
    terms: HashMap<Term, Reg>,
    products: HashMap<(Term, i64), Reg>,
    /// Constants and scalars in all lanes.
    pub splats: HashMap<(super::value::Key, super::ir::Lanes), Reg>,
}

/// How an index differs between the lanes of a vector loop.
pub enum Place {
    Uniform(Index),
    /// Lane by lane one element further, from this index on.
    Contiguous(Index),
}

/// Indices below this are divided by way of a product of 64 bits.
const MAX_DIVIDEND: i64 = 1 << 31;

impl Select<'_> {
    /// The index in terms of instances.
    pub fn resolve(&self, index: &Index) -> Selected<Index> {
        let unknown = |var: Var| refuse(format!("an index by {var:?}, which is computed from data"));
        self.rewrite(index, &|var| self.env.get(&var).cloned().map_or_else(|| unknown(var), Ok))
    }

    fn rewrite(&self, index: &Index, replace: &dyn Fn(Var) -> Selected<Index>) -> Selected<Index> {
        let mut out = Index::dim(index.constant.clone());
        let extents = |var: Var| self.instances.get(var)?.most.map(|most| Dim::from(most + 1));
        for (term, coefficient) in &index.terms {
            let factor = match term {
                Term::Var(var) => replace(*var)?,
                Term::FloorDiv(x, by) => self.rewrite(x, replace)?.floor_div(by, &extents),
                Term::Mod(x, by) => self.rewrite(x, replace)?.modulo(by, &extents),
            };
            out = out.add(&factor.scale(coefficient));
        }
        Ok(out)
    }

    pub fn place_of(&self, index: &Index) -> Selected<Place> {
        let index = self.resolve(index)?;
        let Some(group) = self.group.filter(|group| index.mentions(group.lane)) else {
            return Ok(Place::Uniform(index));
        };
        if index.coefficient(group.lane) != Some(Dim::ONE) {
            return refuse("lanes that are not neighbours in memory");
        }
        Ok(Place::Contiguous(index.substitute(group.lane, &Index::int(group.base))))
    }

    /// Upper bound of a resolved index whose terms are never negative.
    pub fn most(&self, index: &Index) -> Option<i64> {
        let mut most = index.constant.as_const()?;
        for (term, coefficient) in &index.terms {
            let coefficient = coefficient.as_const()?;
            if coefficient > 0 {
                most = most.checked_add(self.most_of_term(term)?.checked_mul(coefficient)?)?;
            }
        }
        Some(most)
    }

    fn most_of_term(&self, term: &Term) -> Option<i64> {
        match term {
            Term::Var(var) => self.instances.get(*var)?.most,
            Term::FloorDiv(x, by) => {
                by.as_const().filter(|by| *by > 0).and_then(|by| Some(self.most(x)? / by))
            }
            Term::Mod(_, by) => by.as_const().filter(|by| *by > 0).map(|by| by - 1),
        }
    }

    fn find<T: Copy>(&self, get: impl Fn(&Scope) -> Option<&T>) -> Option<T> {
        self.scopes.iter().rev().find_map(get).copied()
    }

    pub fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("the outermost scope is never closed")
    }

    /// A resolved index as an operand.
    pub fn operand(&mut self, index: &Index) -> Selected<Operand> {
        match index.as_int().and_then(|value| i32::try_from(value).ok()) {
            Some(value) => Ok(Operand::Imm(value)),
            None => Ok(Operand::Reg(self.sum(index)?)),
        }
    }

    /// Value of a resolved index.
    pub fn sum(&mut self, index: &Index) -> Selected<Reg> {
        if let Some(sum) = self.find(|scope| scope.sums.get(index)) {
            return Ok(sum);
        }
        let Some(constant) = index.constant.as_const() else { return refuse("a symbolic dim") };
        let mut sum = None;
        for (term, coefficient) in &index.terms {
            let Some(coefficient) = coefficient.as_const() else { return refuse("a symbolic dim") };
            let product = self.product(term, coefficient)?;
            sum = Some(match sum {
                Some(sum) => self.int(Op::Add, vec![sum, product]),
                None => product,
            });
        }
        let sum = match (sum, i32::try_from(constant)) {
            (None, _) => self.int(Op::Int(constant), vec![]),
            (Some(sum), Ok(0)) => sum,
            (Some(sum), Ok(constant)) => self.int(Op::AddInt(constant), vec![sum]),
            (Some(sum), Err(_)) => {
                let constant = self.int(Op::Int(constant), vec![]);
                self.int(Op::Add, vec![sum, constant])
            }
        };
        self.scope().sums.insert(index.clone(), sum);
        Ok(sum)
    }

    /// `term * by`.
    fn product(&mut self, term: &Term, by: i64) -> Selected<Reg> {
        let key = (term.clone(), by);
        if let Some(product) = self.find(|scope| scope.products.get(&key)) {
            return Ok(product);
        }
        let value = self.term(term)?;
        let product = match by {
            1 => value,
            _ if by > 0 && by.count_ones() == 1 => {
                self.int(Op::ShlInt(by.trailing_zeros() as u8), vec![value])
            }
            _ => match i32::try_from(by) {
                Ok(by) => self.int(Op::MulInt(by), vec![value]),
                Err(_) => return refuse("a stride beyond 32 bits"),
            },
        };
        self.scope().products.insert(key, product);
        Ok(product)
    }

    fn term(&mut self, term: &Term) -> Selected<Reg> {
        if let Some(value) = self.find(|scope| scope.terms.get(term)) {
            return Ok(value);
        }
        let value = match term {
            Term::Var(var) => {
                let reg = self.instances.get(*var).and_then(|instance| instance.reg);
                return reg.map_or_else(|| refuse("a lane where lanes may not differ"), Ok);
            }
            Term::FloorDiv(x, by) => self.quotient(x, by)?,
            Term::Mod(x, by) => {
                let by_value = by.as_const().and_then(|by| i32::try_from(by).ok());
                let Some(by_value) = by_value else { return refuse("a symbolic dim") };
                let quotient = self.term(&Term::FloorDiv(x.clone(), by.clone()))?;
                let whole = self.int(Op::MulInt(by_value), vec![quotient]);
                let dividend = self.sum(x)?;
                self.int(Op::Sub, vec![dividend, whole])
            }
        };
        self.scope().terms.insert(term.clone(), value);
        Ok(value)
    }

    /// Quotient by a constant: with `x < 2^31` and `l = ceil(log2 d)`, `x / d` is `x * ceil(2^(31+l) / d) >> 31+l`, whose
    /// product has less than 64 bits (Granlund and Montgomery, "Division by invariant integers using multiplication").
    fn quotient(&mut self, x: &Index, by: &Dim) -> Selected<Reg> {
        let Some(by) = by.as_const().filter(|by| (1..MAX_DIVIDEND).contains(by)) else {
            return refuse("a symbolic dim");
        };
        if self.most(x).is_none_or(|most| most >= MAX_DIVIDEND) {
            return refuse("a division of an index beyond 32 bits");
        }
        let dividend = self.sum(x)?;
        if by.count_ones() == 1 {
            return Ok(self.int(Op::ShrInt(by.trailing_zeros() as u8), vec![dividend]));
        }
        let shift = 31 + (64 - (by as u64 - 1).leading_zeros());
        let magic = (1i64 << shift) / by + 1;
        let magic = self.int(Op::Int(magic), vec![]);
        let product = self.int(Op::Mul, vec![dividend, magic]);
        Ok(self.int(Op::ShrInt(shift as u8), vec![product]))
    }

    fn depth_of(&self, term: &Term) -> usize {
        match term {
            Term::Var(var) => self.instances.get(*var).map_or(0, |instance| instance.depth),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => {
                x.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0)
            }
        }
    }

    /// Address of a resolved index without constant: what the innermost loop adds is added to the address of the
    /// rest, which the outer loops have computed.
    fn pointer(&mut self, buf: Buf, index: Index) -> Selected<Reg> {
        if index.terms.is_empty() {
            return Ok(self.bases[&buf]);
        }
        let key = (buf, index);
        if let Some(pointer) = self.find(|scope| scope.pointers.get(&key)) {
            return Ok(pointer);
        }
        let (_, index) = &key;
        let size = self.kernel.buffers[buf].dtype.size() as i64;
        let deepest = index.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0);
        let (inner, outer): (Vec<_>, Vec<_>) =
            index.terms.iter().cloned().partition(|(term, _)| self.depth_of(term) == deepest);
        let mut pointer = self.pointer(buf, Index { terms: outer, constant: Dim::ZERO })?;
        for (term, coefficient) in &inner {
            let bytes = coefficient.as_const().and_then(|coefficient| coefficient.checked_mul(size));
            let Some(bytes) = bytes else { return refuse("a symbolic dim") };
            let offset = self.product(term, bytes)?;
            pointer = self.int(Op::Add, vec![pointer, offset]);
        }
        self.scope().pointers.insert(key, pointer);
        Ok(pointer)
    }

    /// The element at a resolved index.
    pub fn mem(&mut self, buf: Buf, index: &Index) -> Selected<Mem> {
        let size = self.kernel.buffers[buf].dtype.size() as i64;
        let Some(constant) = index.constant.as_const() else { return refuse("a symbolic dim") };
        let base = self.pointer(buf, Index { terms: index.terms.clone(), constant: Dim::ZERO })?;
        match constant.checked_mul(size).and_then(|bytes| i32::try_from(bytes).ok()) {
            // Room for the other bytes of a vector.
            Some(disp) if disp < i32::MAX - 32 => Ok(Mem { base, disp }),
            _ => match constant.checked_mul(size) {
                Some(bytes) => {
                    let bytes = self.int(Op::Int(bytes), vec![]);
                    let base = self.inst(Op::Add, Class::Int, vec![base, bytes], None);
                    Ok(Mem { base, disp: 0 })
                }
                None => refuse("an offset beyond 64 bits"),
            },
        }
    }

    /// Computes ahead of a loop what its addresses have in common.
    pub fn hoist(&mut self, body: &[Stmt]) -> Selected<()> {
        let mut places = Vec::new();
        visit::exprs(body, &mut |expr| {
            if let Expr::Load { buf, index } = expr {
                places.push((*buf, index.clone()));
            }
        });
        visit::stmts(body, &mut |stmt| {
            if let Stmt::Store { buf, index, .. } = stmt {
                places.push((*buf, index.clone()));
            }
        });
        for (buf, index) in places {
            let bound = |term: &&(Term, Dim)| {
                let alone = Index { terms: vec![(*term).clone()], constant: Dim::ZERO };
                self.resolve(&alone).is_ok()
            };
            let terms: Vec<_> = index.terms.iter().filter(bound).cloned().collect();
            let outer = self.resolve(&Index { terms, constant: Dim::ZERO })?;
            self.pointer(buf, Index { terms: outer.terms, constant: Dim::ZERO })?;
        }
        Ok(())
    }
}
