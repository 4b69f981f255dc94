//! Addresses: affine indices as sums of registers, each part computed in the outermost loop that allows it.

use std::collections::HashMap;

use cranelift_entity::EntityRef;

use super::{LaneRange, Select, Selected, Value, refuse};
use crate::vector::OVERGROWN;
use onnxc_ir::graph::Dim;
use onnxc_ir::graph::dim::{Atom, Monomial};
use onnxc_loops::expr::Reads;
use onnxc_loops::{Buf, Index, Stmt, Term, Var, visit};
use onnxc_machine::vector::ir::{Lanes, Mem, Op, Operand, Reg};

/// Values computed in a loop's body or a branch, which hold until its end.
#[derive(Default)]
pub struct Scope {
    /// Address of an index without its constant.
    pointers: HashMap<(Buf, Index), Reg>,
    sums: HashMap<Index, Reg>,
    terms: HashMap<Term, Reg>,
    products: HashMap<(Term, Dim), Reg>,
    /// One lane of a variable that differs between them.
    lanes: HashMap<(Var, usize), Var>,
    /// Constants and scalars in all lanes.
    pub splats: HashMap<(super::value::Key, Lanes), Reg>,
    /// Conversions of what a register holds.
    pub conversions: HashMap<(Op, Reg), Reg>,
    /// Even and odd bytes of words, as halves of lanes.
    pub halves: HashMap<(Reg, bool), [Reg; 2]>,
}

/// How an index differs between the lanes of a vector loop.
pub enum LaneIndex {
    Uniform(Index),
    /// Lane by lane one step further, from this index on.
    Contiguous(Index),
    /// One for each lane.
    Lanes(Vec<Index>),
}

/// Of a sum of more terms than this, a factor of all of them is left for the end.
const LONG_SUM: usize = 8;

/// Appends an instruction somewhere.
type Emit<'e> = &'e mut dyn FnMut(&mut Select<'_>, Op, Vec<Reg>) -> Reg;

/// The operation that multiplies by a constant, if one instruction does.
fn times(by: i64) -> Option<Op> {
    match by > 0 && by.count_ones() == 1 {
        true => Some(Op::ShlInt(by.trailing_zeros() as u8)),
        false => i32::try_from(by).ok().map(Op::MulInt),
    }
}

/// The variables of an index.
fn variables(index: &Index, into: &mut Vec<Var>) {
    for (term, _) in &index.terms {
        match term {
            Term::Var(var) => into.push(*var),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => variables(x, into),
        }
    }
}

impl Select<'_> {
    /// The index in terms of instances.
    pub fn resolve(&self, index: &Index) -> Selected<Index> {
        let extents = |var: Var| self.instances.get(var)?.extent.clone();
        match index.rewrite(&mut |var| self.env.get(&var).cloned(), &extents) {
            Some(index) => Ok(index),
            None => refuse("an index of a variable that is not in scope"),
        }
    }

    /// How an index differs between lanes that are `step` elements apart.
    pub fn place_of(&mut self, index: &Index, step: i64) -> Selected<LaneIndex> {
        let index = self.resolve(index)?;
        let Some(group) = self.group.clone().filter(|_| self.varies(&index)) else {
            return Ok(LaneIndex::Uniform(index));
        };
        let one = index.coefficient(group.lane) == Some(Dim::from(step));
        if one && !self.mentions(&index, &|value| matches!(value, Value::Lanes(_))) {
            return Ok(LaneIndex::Contiguous(index.substitute(group.lane, &group.base)));
        }
        (0..group.lanes)
            .map(|lane| self.at_lane(&index, &group, lane))
            .collect::<Selected<_>>()
            .map(LaneIndex::Lanes)
    }

    /// Whether a resolved index differs between lanes.
    pub fn varies(&self, index: &Index) -> bool {
        self.mentions(index, &|value| matches!(value, Value::Lane | Value::Lanes(_)))
    }

    fn mentions(&self, index: &Index, test: &dyn Fn(Value) -> bool) -> bool {
        index.terms.iter().any(|(term, _)| match term {
            Term::Var(var) => self.instances.get(*var).is_some_and(|instance| test(instance.value)),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => self.mentions(x, test),
        })
    }

    /// A resolved index as one lane sees it.
    fn at_lane(&mut self, index: &Index, group: &LaneRange, lane: usize) -> Selected<Index> {
        let here = group.base.add_dim(&Dim::from(lane));
        let mut vars = Vec::new();
        variables(index, &mut vars);
        let mut scalars = HashMap::new();
        for var in vars {
            if let Some(Value::Lanes(reg)) = self.instances.get(var).map(|instance| instance.value) {
                let scalar = match self.find(|scope| scope.lanes.get(&(var, lane))) {
                    Some(scalar) => scalar,
                    None => {
                        let reg = self.vec(Op::Extract(lane as u8, Lanes::D1), vec![reg]);
                        let scalar = self.instance(Value::Scalar(reg), None);
                        self.scope().lanes.insert((var, lane), scalar);
                        scalar
                    }
                };
                scalars.insert(var, scalar);
            }
        }
        let mut replace = |var: Var| {
            Some(match var == group.lane {
                true => here.clone(),
                false => Index::var(scalars.get(&var).copied().unwrap_or(var)),
            })
        };
        let extents = |var: Var| self.instances.get(var)?.extent.clone();
        index.rewrite(&mut replace, &extents).map_or_else(|| refuse("lanes of an index"), Ok)
    }

    /// What an open scope holds, the innermost first.
    pub fn find<T: Copy>(&self, get: impl Fn(&Scope) -> Option<&T>) -> Option<T> {
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
        let (varying, constant) = index.split_constant();
        let mut sum = match varying.constant == Dim::ZERO {
            true => None,
            false => Some(self.dim(&varying.constant)?),
        };
        for (term, coefficient) in &varying.terms {
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
    fn product(&mut self, term: &Term, by: &Dim) -> Selected<Reg> {
        let key = (term.clone(), by.clone());
        if let Some(product) = self.find(|scope| scope.products.get(&key)) {
            return Ok(product);
        }
        let value = self.term(term)?;
        let product = match by.as_const() {
            Some(1) => value,
            Some(by) => match times(by) {
                Some(op) => self.int(op, vec![value]),
                None => {
                    let by = self.int(Op::Int(by), vec![]);
                    self.int(Op::Mul, vec![value, by])
                }
            },
            None => {
                let by = self.dim(by)?;
                self.int(Op::Mul, vec![value, by])
            }
        };
        self.scope().products.insert(key, product);
        Ok(product)
    }

    fn term(&mut self, term: &Term) -> Selected<Reg> {
        if let Some(value) = self.find(|scope| scope.terms.get(term)) {
            return Ok(value);
        }
        let value = match term {
            Term::Var(var) => match self.instances.get(*var).map(|instance| instance.value) {
                Some(Value::Int(reg)) => return Ok(reg),
                Some(Value::Scalar(reg)) => self.int(Op::ToGeneral(Lanes::D1), vec![reg]),
                _ => return refuse("a lane where lanes may not differ"),
            },
            Term::FloorDiv(x, by) => {
                let dividend = self.sum(x)?;
                match by.as_const() {
                    Some(by) => self.quotient(dividend, by, &mut |cx, op, uses| cx.int(op, uses))?,
                    None => {
                        let by = self.divisor(by)?;
                        self.int(Op::DivInt, vec![dividend, by])
                    }
                }
            }
            Term::Mod(x, by) => {
                let quotient = self.term(&Term::FloorDiv(x.clone(), by.clone()))?;
                let by = self.operand(&Index::dim(by.clone()))?;
                let whole = match by {
                    Operand::Imm(by) => self.int(Op::MulInt(by), vec![quotient]),
                    Operand::Reg(by) => self.int(Op::Mul, vec![quotient, by]),
                };
                let dividend = self.sum(x)?;
                self.int(Op::Sub, vec![dividend, whole])
            }
        };
        self.scope().terms.insert(term.clone(), value);
        Ok(value)
    }

    /// Quotient of a value in `0..2^63` by a constant, by the high half of a product (Granlund and Montgomery,
    /// "Division by invariant integers using multiplication").
    fn quotient(&mut self, value: Reg, by: i64, emit: Emit<'_>) -> Selected<Reg> {
        if by < 1 {
            return refuse(format!("a division by {by}"));
        }
        if by.count_ones() == 1 {
            return Ok(emit(self, Op::ShrInt(by.trailing_zeros() as u8), vec![value]));
        }
        let log = 64 - (by as u64).leading_zeros();
        let magic = ((1u128 << (63 + log)) / by as u128 + 1) as u64;
        let magic = emit(self, Op::Int(magic as i64), vec![]);
        let high = emit(self, Op::MulHigh, vec![value, magic]);
        Ok(emit(self, Op::ShrInt(log as u8 - 1), vec![high]))
    }

    /// Value of a symbolic dim, computed in the first block.
    pub fn dim(&mut self, dim: &Dim) -> Selected<Reg> {
        if let Some(&value) = self.dims.get(dim) {
            return Ok(value);
        }
        let terms = dim.terms();
        // Offsets of bytes share what those of elements have computed.
        let first = terms.first().map_or(1, |(_, coefficient)| *coefficient);
        let is_common = terms.len() > LONG_SUM && terms.iter().all(|(_, coefficient)| *coefficient == first);
        let common = if is_common { first } else { 1 };
        let mut sum = None;
        for (monomial, coefficient) in &terms {
            sum = Some(self.add_term(sum, monomial, coefficient / common)?);
        }
        let sum = sum.unwrap_or_else(|| self.first(Op::Int(0), vec![], None));
        let value = if common == 1 { sum } else { self.times_first(sum, common) };
        self.dims.insert(dim.clone(), value);
        Ok(value)
    }

    /// A sum with one more term. Offsets of the parts of a long concatenation are sums that begin alike: a part adds its own size to
    /// what is there.
    fn add_term(&mut self, sum: Option<Reg>, monomial: &Monomial, coefficient: i64) -> Selected<Reg> {
        let key = (sum, monomial.clone(), coefficient);
        if let Some(&value) = self.sums.get(&key) {
            return Ok(value);
        }
        let value = match sum {
            Some(sum) => {
                let product = self.add_term(None, monomial, coefficient)?;
                self.first(Op::Add, vec![sum, product], None)
            }
            None => {
                let mut product = None;
                for atom in monomial.iter() {
                    let factor = self.atom(atom)?;
                    product = Some(match product {
                        Some(product) => self.first(Op::Mul, vec![product, factor], None),
                        None => factor,
                    });
                }
                match product {
                    Some(product) if coefficient == 1 => product,
                    Some(product) => self.times_first(product, coefficient),
                    None => self.first(Op::Int(coefficient), vec![], None),
                }
            }
        };
        self.sums.insert(key, value);
        Ok(value)
    }

    fn times_first(&mut self, value: Reg, by: i64) -> Reg {
        let by = self.first(Op::Int(by), vec![], None);
        self.first(Op::Mul, vec![value, by], None)
    }

    fn atom(&mut self, atom: &Atom) -> Selected<Reg> {
        Ok(match atom {
            Atom::Sym(sym) => {
                let Some(disp) = i32::try_from(sym.index()).ok().and_then(|at| at.checked_mul(8)) else {
                    return refuse("a symbol with a large number");
                };
                self.first(Op::LoadInt, vec![], Some(Mem::at(self.symbols, disp)))
            }
            Atom::FloorDiv(a, b) => self.floor_div(a, b)?,
            Atom::Mod(a, b) => {
                let quotient = self.floor_div(a, b)?;
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                let whole = self.first(Op::Mul, vec![quotient, b], None);
                self.first(Op::Sub, vec![a, whole], None)
            }
            Atom::Min(a, b) | Atom::Max(a, b) => {
                let op = if matches!(atom, Atom::Min(..)) { Op::MinInt } else { Op::MaxInt };
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                self.first(op, vec![a, b], None)
            }
            Atom::Broadcast(a, b) => {
                // The larger, times 1 where both are that at least, otherwise 0.
                let (a, b) = (self.dim(a)?, self.dim(b)?);
                let (most, least) =
                    (self.first(Op::MaxInt, vec![a, b], None), self.first(Op::MinInt, vec![a, b], None));
                let [none, one] = [0, 1].map(|bound| self.first(Op::Int(bound), vec![], None));
                let some = self.first(Op::MinInt, vec![least, one], None);
                let some = self.first(Op::MaxInt, vec![some, none], None);
                self.first(Op::Mul, vec![most, some], None)
            }
            Atom::Overgrown => return refuse(OVERGROWN),
        })
    }

    /// Quotient of dims, rounded down; a divisor is positive.
    fn floor_div(&mut self, a: &Dim, by: &Dim) -> Selected<Reg> {
        let dividend = self.dim(a)?;
        if let (Some(by), (Some(0..), _)) = (by.as_const(), a.bounds()) {
            return self.quotient(dividend, by, &mut |cx, op, uses| cx.first(op, uses, None));
        }
        let by = self.divisor(by)?;
        let quotient = self.first(Op::DivInt, vec![dividend, by], None);
        // One less where a negative dividend leaves a rest.
        let whole = self.first(Op::Mul, vec![quotient, by], None);
        let rest = self.first(Op::Sub, vec![dividend, whole], None);
        let bounds = [(Op::MinInt, 0), (Op::MaxInt, -1)];
        let less = bounds.into_iter().fold(rest, |value, (op, bound)| {
            let bound = self.first(Op::Int(bound), vec![], None);
            self.first(op, vec![value, bound], None)
        });
        Ok(self.first(Op::Add, vec![quotient, less], None))
    }

    /// A dim to divide by. Where it is 0 there are no elements, and the quotient does not matter.
    fn divisor(&mut self, by: &Dim) -> Selected<Reg> {
        let by = self.dim(by)?;
        let one = self.first(Op::Int(1), vec![], None);
        Ok(self.first(Op::MaxInt, vec![by, one], None))
    }

    fn depth_of(&self, term: &Term) -> usize {
        match term {
            Term::Var(var) => self.instances.get(*var).map_or(0, |instance| instance.depth),
            Term::FloorDiv(x, _) | Term::Mod(x, _) => {
                x.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0)
            }
        }
    }

    /// Address of a resolved index without integer constant: what the innermost loop adds is added to the address of
    /// the rest, which the outer loops have computed.
    fn pointer(&mut self, buf: Buf, index: Index) -> Selected<Reg> {
        if index.terms.is_empty() && index.constant == Dim::ZERO {
            return Ok(self.bases[&buf]);
        }
        let key = (buf, index);
        if let Some(pointer) = self.find(|scope| scope.pointers.get(&key)) {
            return Ok(pointer);
        }
        let (_, index) = &key;
        let size = Dim::from(self.kernel.buffers[buf].dtype.size());
        let deepest = index.terms.iter().map(|(term, _)| self.depth_of(term)).max().unwrap_or(0);
        let (inner, outer): (Vec<_>, Vec<_>) =
            index.terms.iter().cloned().partition(|(term, _)| self.depth_of(term) == deepest);
        let mut pointer = match inner.is_empty() {
            true => {
                let offset = self.dim(&(index.constant.clone() * size.clone()))?;
                self.int(Op::Add, vec![self.bases[&buf], offset])
            }
            false => self.pointer(buf, Index { terms: outer, constant: index.constant.clone() })?,
        };
        for (term, coefficient) in &inner {
            let offset = self.product(term, &(coefficient.clone() * size.clone()))?;
            pointer = self.int(Op::Add, vec![pointer, offset]);
        }
        self.scope().pointers.insert(key, pointer);
        Ok(pointer)
    }

    /// The element at a resolved index.
    pub fn mem(&mut self, buf: Buf, index: &Index) -> Selected<Mem> {
        let size = self.kernel.buffers[buf].dtype.size() as i64;
        let (index, constant) = index.split_constant();
        let base = self.pointer(buf, index)?;
        let Some(bytes) = constant.checked_mul(size) else { return refuse("an offset beyond 64 bits") };
        match i32::try_from(bytes) {
            // Room for the other bytes of a vector.
            Ok(disp) if disp < i32::MAX - 64 => Ok(Mem::at(base, disp)),
            _ => {
                let bytes = self.int(Op::Int(bytes), vec![]);
                Ok(Mem::at(self.int(Op::Add, vec![base, bytes]), 0))
            }
        }
    }

    /// Computes ahead of a loop what its addresses have in common.
    pub fn hoist(&mut self, body: &[Stmt]) -> Selected<()> {
        let mut places = Vec::new();
        visit::exprs(body, &mut |expr| {
            if let Some(Reads { buf, index, .. }) = expr.reads() {
                places.push((buf, index.clone()));
            }
        });
        visit::stmts(body, &mut |stmt| match stmt {
            Stmt::Store { buf, index, .. } | Stmt::Prefetch { buf, index } => {
                places.push((*buf, index.clone()))
            }
            Stmt::Tile(stmt) => places.extend(stmt.place().map(|(buf, index)| (buf, index.clone()))),
            _ => {}
        });
        for (buf, index) in places {
            let bound = |term: &&(Term, Dim)| {
                let alone = Index { terms: vec![(*term).clone()], constant: Dim::ZERO };
                self.resolve(&alone).is_ok_and(|index| !self.varies(&index))
            };
            let terms: Vec<_> = index.terms.iter().filter(bound).cloned().collect();
            let (outer, _) =
                self.resolve(&Index { terms, constant: index.constant.clone() })?.split_constant();
            self.pointer(buf, outer)?;
        }
        Ok(())
    }
}
