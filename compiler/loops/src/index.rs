//! Arithmetic of [`Index`]: canonical affine forms, with division and remainder where a reshape needs them.
//!
//! Indices are trees, and an axis that a reshape merges gives each index of the operand all those of the result: the
//! schedule inlines no more views than leave them small (see `schedule::inline`), which bounds every recursion here.

use crate::{Index, Term, Var};
use onnxc_ir::graph::Dim;
use onnxc_ir::graph::dim::row_major_strides;
use onnxc_ir::graph::panels::Column;

/// An index as `number * size + step` with `step < size`, and how many blocks of that size a divisor has.
struct Blocks {
    number: Index,
    step: Index,
    size: Dim,
    by: Dim,
}

impl Column for Index {
    fn scaled(&self, by: &Dim) -> Index {
        self.scale(by)
    }

    fn plus(&self, other: &Index) -> Index {
        self.add(other)
    }
}

impl Index {
    pub fn zero() -> Index {
        Index::dim(Dim::ZERO)
    }

    pub fn dim(constant: Dim) -> Index {
        Index { terms: vec![], constant }
    }

    pub fn int(value: i64) -> Index {
        Index::dim(Dim::from(value))
    }

    pub fn var(var: Var) -> Index {
        Index::term(Term::Var(var))
    }

    /// One term; a division of a constant, where it is known, is a constant.
    pub fn term(term: Term) -> Index {
        let known = match &term {
            Term::Var(_) => None,
            Term::FloorDiv(x, by) => x.as_dim().and_then(|x| x.floor_div(by)),
            Term::Mod(x, by) => x.as_dim().and_then(|x| x.modulo(by)),
        };
        match known {
            Some(dim) => Index::dim(dim),
            None => Index { terms: vec![(term, Dim::ONE)], constant: Dim::ZERO },
        }
    }

    pub fn as_dim(&self) -> Option<&Dim> {
        self.terms.is_empty().then_some(&self.constant)
    }

    pub fn as_int(&self) -> Option<i64> {
        self.as_dim()?.as_const()
    }

    /// The index without its integer constant, and that constant.
    pub fn split_constant(&self) -> (Index, i64) {
        let constant = match self.constant.as_const() {
            Some(value) => value,
            None => {
                let terms = self.constant.terms();
                terms.iter().find(|(monomial, _)| monomial.is_empty()).map_or(0, |(_, value)| *value)
            }
        };
        (self.add_dim(&Dim::from(-constant)), constant)
    }

    /// The sum; divisions and remainders of one index by one divisor are put back together.
    pub fn add(&self, other: &Index) -> Index {
        self.plus(other).rejoin()
    }

    /// The sum, term by term.
    pub fn plus(&self, other: &Index) -> Index {
        let mut terms = self.terms.clone();
        for (term, coefficient) in &other.terms {
            match terms.iter_mut().find(|(mine, _)| mine == term) {
                Some((_, mine)) => *mine = mine.clone() + coefficient.clone(),
                None => terms.push((term.clone(), coefficient.clone())),
            }
        }
        terms.retain(|(_, coefficient)| *coefficient != Dim::ZERO);
        terms.sort();
        Index { terms, constant: self.constant.clone() + other.constant.clone() }
    }

    /// Puts `floordiv(x, d) * (c*d) + mod(x, d) * c` back together as `x * c`.
    fn rejoin(mut self) -> Index {
        loop {
            let pair = self.terms.iter().enumerate().find_map(|(at, (term, c))| {
                let Term::Mod(x, d) = term else { return None };
                let whole = Term::FloorDiv(x.clone(), d.clone());
                let wanted = c.clone() * d.clone();
                let other = self.terms.iter().position(|(term, c)| *term == whole && *c == wanted)?;
                Some((at, other, x.scale(c)))
            });
            let Some((a, b, joined)) = pair else { return self };
            self.terms.remove(a.max(b));
            self.terms.remove(a.min(b));
            // Joining leaves fewer divisions, so this recursion is as deep as divisions are nested.
            self = self.add(&joined);
        }
    }

    /// The number of an element of a shape, in row-major order, from its index along every axis.
    pub fn row_major(at: &[Index], shape: &[Dim]) -> Index {
        let strides = row_major_strides(shape);
        at.iter().zip(&strides).fold(Index::zero(), |sum, (i, stride)| sum.add(&i.scale(stride)))
    }

    pub fn add_dim(&self, dim: &Dim) -> Index {
        Index { terms: self.terms.clone(), constant: self.constant.clone() + dim.clone() }
    }

    pub fn scale(&self, by: &Dim) -> Index {
        if *by == Dim::ZERO {
            return Index::zero();
        }
        Index {
            terms: self.terms.iter().map(|(term, c)| (term.clone(), c.clone() * by.clone())).collect(),
            constant: self.constant.clone() * by.clone(),
        }
    }

    /// `floor(self / by)` for a positive divisor and an index that is never negative; terms whose coefficient
    /// the divisor divides leave the division when the rest cannot reach it (`rest_below`: the rest's
    /// exclusive upper bound, where it is known).
    pub fn floor_div(&self, by: &Dim, extents: &dyn Fn(Var) -> Option<Dim>) -> Index {
        if *by == Dim::ONE {
            return self.clone();
        }
        let (whole, rest) = self.split(by, extents);
        if rest.below(by, extents) {
            return whole;
        }
        let (rest, by) = match rest.blocks(by, extents) {
            Some(Blocks { number, by, .. }) => (number, by),
            None => (rest, by.clone()),
        };
        whole.add(&Index::term(Term::FloorDiv(Box::new(rest), by)))
    }

    /// Remainder of [`Index::floor_div`].
    pub fn modulo(&self, by: &Dim, extents: &dyn Fn(Var) -> Option<Dim>) -> Index {
        if *by == Dim::ONE {
            return Index::zero();
        }
        let (_, rest) = self.split(by, extents);
        if rest.below(by, extents) {
            return rest;
        }
        if let Some(Blocks { number, step, size, by }) = rest.blocks(by, extents) {
            return Index::term(Term::Mod(Box::new(number), by)).scale(&size).add(&step);
        }
        Index::term(Term::Mod(Box::new(rest), by.clone()))
    }

    /// The index in blocks that `by` is a whole number of: the number of the block alone is divided then.
    fn blocks(&self, by: &Dim, extents: &dyn Fn(Var) -> Option<Dim>) -> Option<Blocks> {
        self.terms.iter().filter(|(_, size)| *size != Dim::ONE).find_map(|(_, size)| {
            let by = by.exact_div(size)?;
            let (number, step) = self.split(size, extents);
            step.below(size, extents).then(|| Blocks { number, step, size: size.clone(), by })
        })
    }

    /// `(q, r)` with `self = q * by + r`, taking every exactly divisible part into `q`, unless that may leave an `r` below
    /// zero: divisions of indices are those of numbers without sign.
    fn split(&self, by: &Dim, extents: &dyn Fn(Var) -> Option<Dim>) -> (Index, Index) {
        let (mut whole, mut rest) = (Index::zero(), Index::zero());
        for (term, coefficient) in &self.terms {
            match coefficient.exact_div(by) {
                Some(quotient) => whole.terms.push((term.clone(), quotient)),
                None => rest.terms.push((term.clone(), coefficient.clone())),
            }
        }
        match self.constant.exact_div(by) {
            Some(quotient) => whole.constant = quotient,
            None => {
                for (monomial, coefficient) in self.constant.terms() {
                    let part = Dim::term(monomial, coefficient);
                    match part.exact_div(by) {
                        Some(quotient) => whole.constant = whole.constant + quotient,
                        None => rest.constant = rest.constant + part,
                    }
                }
            }
        }
        match rest.never_negative(extents) {
            true => (whole, rest),
            false => (Index::zero(), self.clone()),
        }
    }

    /// Whether `0 <= self` follows from the extents of the variables.
    fn never_negative(&self, extents: &dyn Fn(Var) -> Option<Dim>) -> bool {
        let mut least = self.constant.clone();
        for (term, coefficient) in &self.terms {
            match (coefficient.bounds(), term) {
                ((Some(0..), _), _) => {}
                ((_, Some(..=0)), Term::Var(var)) => match extents(*var) {
                    Some(extent) => least = least + coefficient.clone() * (extent - Dim::ONE),
                    None => return false,
                },
                ((_, Some(..=0)), Term::Mod(_, by)) => {
                    least = least + coefficient.clone() * (by.clone() - Dim::ONE);
                }
                _ => return false,
            }
        }
        least.bounds().0.is_some_and(|low| low >= 0)
    }

    /// Whether `0 <= self < bound` follows from the extents of the variables (each in `0..extent`).
    pub fn below(&self, bound: &Dim, extents: &dyn Fn(Var) -> Option<Dim>) -> bool {
        // Largest value: every variable at its extent - 1 (coefficients must not be negative).
        let mut largest = self.constant.clone();
        if self.constant.bounds().0.is_none_or(|low| low < 0) {
            return false;
        }
        for (term, coefficient) in &self.terms {
            if coefficient.bounds().0.is_none_or(|low| low < 0) {
                return false;
            }
            let extent = match term {
                Term::Var(var) => match extents(*var) {
                    Some(extent) => extent,
                    None => return false,
                },
                Term::Mod(_, by) => by.clone(),
                Term::FloorDiv(..) => return false,
            };
            largest = largest + coefficient.clone() * (extent - Dim::ONE);
        }
        // Symbols may be 0, but then the loops over them do not run: any extent here is at least 1.
        (bound.clone() - Dim::ONE - largest).bounds().0.is_some_and(|low| low >= 0)
    }

    /// Replaces a variable by an index.
    pub fn substitute(&self, var: Var, by: &Index) -> Index {
        let mut out = Index::dim(self.constant.clone());
        for (term, coefficient) in &self.terms {
            let factor = match term {
                Term::Var(own) if *own == var => by.clone(),
                Term::Var(_) => Index::term(term.clone()),
                Term::FloorDiv(x, d) => {
                    Index::term(Term::FloorDiv(Box::new(x.substitute(var, by)), d.clone()))
                }
                Term::Mod(x, d) => Index::term(Term::Mod(Box::new(x.substitute(var, by)), d.clone())),
            };
            out = out.add(&factor.scale(coefficient));
        }
        out
    }

    /// The index with other indices in place of its variables; divisions simplify by the `extents` of theirs. `None` where
    /// a variable has none.
    pub fn rewrite(
        &self,
        replace: &mut dyn FnMut(Var) -> Option<Index>,
        extents: &dyn Fn(Var) -> Option<Dim>,
    ) -> Option<Index> {
        let mut out = Index::dim(self.constant.clone());
        for (term, coefficient) in &self.terms {
            let factor = match term {
                Term::Var(var) => replace(*var)?,
                Term::FloorDiv(x, by) => x.rewrite(replace, extents)?.floor_div(by, extents),
                Term::Mod(x, by) => x.rewrite(replace, extents)?.modulo(by, extents),
            };
            out = out.add(&factor.scale(coefficient));
        }
        Some(out)
    }

    /// Whether it takes a division.
    pub fn divides(&self) -> bool {
        self.terms.iter().any(|(term, _)| !matches!(term, Term::Var(_)))
    }

    /// Whether a variable occurs.
    pub fn mentions(&self, var: Var) -> bool {
        self.terms.iter().any(|(term, _)| match term {
            Term::Var(own) => *own == var,
            Term::FloorDiv(x, _) | Term::Mod(x, _) => x.mentions(var),
        })
    }

    /// Coefficient of a variable where it occurs outside division only; `None` if it occurs inside one.
    pub fn coefficient(&self, var: Var) -> Option<Dim> {
        let mut found = Dim::ZERO;
        for (term, coefficient) in &self.terms {
            match term {
                Term::Var(own) if *own == var => found = coefficient.clone(),
                Term::Var(_) => {}
                Term::FloorDiv(x, _) | Term::Mod(x, _) => {
                    if x.mentions(var) {
                        return None;
                    }
                }
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    /// Of blocks that a divisor has a whole number of, the block alone is divided.
    #[test]
    fn divisions_of_blocks_leave_the_step_out() {
        let extents = |var: Var| Some(Dim::from(if var == Var::new(0) { 6i64 } else { 16 }));
        let (block, step) = (Index::var(Var::new(0)), Index::var(Var::new(1)));
        let at = block.scale(&Dim::from(16i64)).add(&step);
        let by = Dim::from(48i64);
        let (whole, rest) = (at.floor_div(&by, &extents), at.modulo(&by, &extents));
        assert_eq!(whole, Index::term(Term::FloorDiv(Box::new(block.clone()), Dim::from(3i64))));
        let turn = Index::term(Term::Mod(Box::new(block), Dim::from(3i64)));
        assert_eq!(rest, turn.scale(&Dim::from(16i64)).add(&step));
        assert_eq!(whole.scale(&by).add(&rest), at);
        // Steps that go beyond a block stay.
        let long = at.add_dim(&Dim::from(1i64));
        assert_eq!(long.floor_div(&by, &extents), Index::term(Term::FloorDiv(Box::new(long.clone()), by)));
    }

    #[test]
    fn delinearised_indices_rejoin() {
        let extents = |_: Var| Some(Dim::from(56i64 * 56));
        let p = Index::var(Var::new(0));
        let width = Dim::from(56i64);
        let (row, column) = (p.floor_div(&width, &extents), p.modulo(&width, &extents));
        assert_eq!(row.terms.len(), 1);
        assert_eq!(row.scale(&width).add(&column), p);
        let strided = row.scale(&Dim::from(58i64)).add(&column);
        assert_eq!(strided.terms.len(), 2);
    }

    #[test]
    fn division_takes_out_what_divides() {
        let extents = |var: Var| Some(Dim::from([12i64, 64][var.index()]));
        let index = Index::var(Var::new(0)).scale(&Dim::from(64i64)).add(&Index::var(Var::new(1)));
        assert_eq!(index.floor_div(&Dim::from(64i64), &extents), Index::var(Var::new(0)));
        assert_eq!(index.modulo(&Dim::from(64i64), &extents), Index::var(Var::new(1)));
    }

    #[test]
    fn division_leaves_nothing_below_zero() {
        let extents = |var: Var| Some(Dim::from([12i64, 64][var.index()]));
        let width = Dim::from(64i64);
        let [row, column] = [0, 1].map(|var| Index::var(Var::new(var)));
        let quotient = |index: &Index, by: &Dim| index.floor_div(by, &extents).to_string();
        // From the end of a row: no less than 0, as the extent says.
        let flipped = row.scale(&width).add(&column.scale(&Dim::from(-1i64))).add_dim(&Dim::from(63i64));
        assert!(quotient(&flipped, &width).starts_with("i0"), "{}", quotient(&flipped, &width));
        // A column from the fifth on: the rest alone may be -5.
        let shifted = row.scale(&width).add(&column).add_dim(&Dim::from(-5i64));
        assert!(quotient(&shifted, &width).starts_with("floordiv("), "{}", quotient(&shifted, &width));
        // Rows of a size known only at run time: they are taken out one by one.
        let [size, from, to, start] = [0, 1, 2, 3].map(|sym| Dim::sym(onnxc_ir::graph::Sym::new(sym)));
        let rows = size.clone() * from.clone() - size.clone() * to.clone();
        let cut = row.scale(&size).add(&column).add_dim(&(rows + start.clone()));
        let whole = row.add_dim(&(from - to));
        let rest = Term::FloorDiv(Box::new(column.add_dim(&start)), size.clone());
        assert_eq!(cut.floor_div(&size, &extents), whole.add(&Index::term(rest)));
    }
}

#[cfg(test)]
mod property_tests;
