//! Symbolic dimensions: integer polynomials over named and fresh symbols.
//!
//! A [`Dim`] is kept in a canonical form (a sorted sum of products with integer coefficients), so two
//! dims that are equal as polynomials are equal as values. What is no polynomial (floor division,
//! remainder, minimum, maximum) becomes an atom of the products. Symbols stand for sizes: they are
//! never negative.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::Arc;

use cranelift_entity::entity_impl;

/// A symbol: a dimension that is known only at run time. Its name lives in `Graph::symbols`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sym(u32);
entity_impl!(Sym, "s");

/// A size, an extent or an offset, in elements.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dim(Repr);

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Repr {
    Const(i64),
    /// Sorted by monomial; never a lone constant, no zero coefficients.
    Poly(Arc<Vec<(Monomial, i64)>>),
}

/// A product of atoms, sorted; the empty product is 1.
pub type Monomial = Vec<Atom>;

/// A factor that the polynomial form cannot take apart.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atom {
    Sym(Sym),
    FloorDiv(Dim, Dim),
    Mod(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
}

impl Dim {
    pub const ZERO: Dim = Dim(Repr::Const(0));
    pub const ONE: Dim = Dim(Repr::Const(1));

    pub fn sym(sym: Sym) -> Dim {
        Dim::atom(Atom::Sym(sym))
    }

    fn atom(atom: Atom) -> Dim {
        Dim(Repr::Poly(Arc::new(vec![(vec![atom], 1)])))
    }

    fn from_terms(terms: BTreeMap<Monomial, i64>) -> Dim {
        let terms: Vec<_> = terms.into_iter().filter(|term| term.1 != 0).collect();
        match terms.as_slice() {
            [] => Dim::ZERO,
            [(monomial, value)] if monomial.is_empty() => Dim(Repr::Const(*value)),
            _ => Dim(Repr::Poly(Arc::new(terms))),
        }
    }

    /// A single term of a polynomial.
    pub(crate) fn term(monomial: Monomial, coefficient: i64) -> Dim {
        Dim::from_terms(BTreeMap::from([(monomial, coefficient)]))
    }

    /// The terms of the polynomial: (product of atoms, coefficient).
    pub fn terms(&self) -> Vec<(Monomial, i64)> {
        match &self.0 {
            Repr::Const(0) => vec![],
            Repr::Const(value) => vec![(vec![], *value)],
            Repr::Poly(terms) => terms.to_vec(),
        }
    }

    /// The value, when it needs no symbol.
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(value) => Some(value),
            Repr::Poly(_) => None,
        }
    }

    pub fn is_const(&self) -> bool {
        self.as_const().is_some()
    }

    /// The symbol, when the dim is exactly one.
    pub fn as_sym(&self) -> Option<Sym> {
        match &self.0 {
            Repr::Poly(terms) => match terms.as_slice() {
                [(monomial, 1)] => match monomial.as_slice() {
                    [Atom::Sym(sym)] => Some(*sym),
                    _ => None,
                },
                _ => None,
            },
            Repr::Const(_) => None,
        }
    }

    /// Quotient rounded towards minus infinity; exact where each term divides. `None` for a constant
    /// zero divisor.
    pub fn floor_div(&self, by: &Dim) -> Option<Dim> {
        if by.as_const() == Some(0) {
            return None;
        }
        if let (Some(a), Some(b)) = (self.as_const(), by.as_const()) {
            let quotient = a.checked_div_euclid(b).unwrap_or(i64::MAX);
            return Some(Dim::from(quotient - i64::from(b < 0 && a.wrapping_rem_euclid(b) != 0)));
        }
        if let Some(exact) = self.exact_div(by) {
            return Some(exact);
        }
        Some(Dim::atom(Atom::FloorDiv(self.clone(), by.clone())))
    }

    /// Quotient rounded up: `floor_div(self + by - 1, by)`; `by` must be positive.
    pub fn ceil_div(&self, by: &Dim) -> Option<Dim> {
        if let Some(exact) = self.exact_div(by) {
            return Some(exact);
        }
        (self.clone() + by.clone() - Dim::ONE).floor_div(by)
    }

    /// The quotient when it is exact as a polynomial.
    pub fn exact_div(&self, by: &Dim) -> Option<Dim> {
        if by.as_const() == Some(0) {
            return None;
        }
        if self == by {
            return Some(Dim::ONE);
        }
        let divisor = by.terms();
        // Long division by the leading term; the remainder must vanish.
        let (lead, lead_coefficient) = leading(&divisor)?.clone();
        let (mut rest, mut quotient) = (self.clone(), Dim::ZERO);
        for _ in 0..64 {
            let terms = rest.terms();
            let Some((monomial, coefficient)) = leading(&terms) else { return Some(quotient) };
            if coefficient.checked_rem(lead_coefficient) != Some(0) {
                return None;
            }
            let mut factors = monomial.clone();
            for atom in &lead {
                let at = factors.iter().position(|factor| factor == atom)?;
                factors.remove(at);
            }
            let term = Dim::from_terms(BTreeMap::from([(factors, coefficient / lead_coefficient)]));
            rest = rest - term.clone() * by.clone();
            quotient = quotient + term;
        }
        None
    }

    /// Remainder with the sign of a positive divisor. `None` for a constant zero divisor.
    pub fn modulo(&self, by: &Dim) -> Option<Dim> {
        if by.as_const() == Some(0) {
            return None;
        }
        if let (Some(a), Some(b)) = (self.as_const(), by.as_const()) {
            return Some(Dim::from(a.wrapping_rem_euclid(b)));
        }
        if self.exact_div(by).is_some() {
            return Some(Dim::ZERO);
        }
        Some(Dim::atom(Atom::Mod(self.clone(), by.clone())))
    }

    /// The two operands, when the dim is exactly a minimum (`max` false) or a maximum.
    fn extremes(&self, max: bool) -> Option<(&Dim, &Dim)> {
        let Repr::Poly(terms) = &self.0 else { return None };
        match terms.as_slice() {
            [(monomial, 1)] => match (monomial.as_slice(), max) {
                ([Atom::Min(a, b)], false) | ([Atom::Max(a, b)], true) => Some((a, b)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether `min(self, ..)` or `max(self, ..)` is `other`, with `self` among its operands.
    fn is_among(&self, other: &Dim, max: bool) -> bool {
        other.extremes(max).is_some_and(|(a, b)| a == self || b == self)
    }

    pub fn min_dim(&self, other: &Dim) -> Dim {
        // No size exceeds 64 bits: such a limit, by which operators say "all", is none.
        for (limit, rest) in [(self, other), (other, self)] {
            if limit.as_const() == Some(i64::MAX) {
                return rest.clone();
            }
        }
        // A minimum is below its operands; a maximum above.
        if self.is_among(other, false) || other.is_among(self, true) {
            return other.clone();
        }
        if other.is_among(self, false) || self.is_among(other, true) {
            return self.clone();
        }
        match (self.clone() - other.clone()).bounds() {
            (_, Some(high)) if high <= 0 => self.clone(),
            (Some(low), _) if low >= 0 => other.clone(),
            _ => Dim::atom(Atom::Min(self.clone(), other.clone())),
        }
    }

    pub fn max_dim(&self, other: &Dim) -> Dim {
        if self.is_among(other, true) || other.is_among(self, false) {
            return other.clone();
        }
        if other.is_among(self, true) || self.is_among(other, false) {
            return self.clone();
        }
        match (self.clone() - other.clone()).bounds() {
            (Some(low), _) if low >= 0 => self.clone(),
            (_, Some(high)) if high <= 0 => other.clone(),
            _ => Dim::atom(Atom::Max(self.clone(), other.clone())),
        }
    }

    /// Bounds that hold for every non-negative value of the symbols; `None` where there is none.
    pub fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let (mut low, mut high) = (Some(0i64), Some(0i64));
        for (monomial, coefficient) in self.terms() {
            let (mut term_low, mut term_high) = (Some(1i64), Some(1i64));
            for atom in &monomial {
                let (atom_low, atom_high) = atom.bounds();
                // Products keep bounds only while every factor is known to be non-negative.
                let non_negative = atom_low.is_some_and(|value| value >= 0);
                term_low = if non_negative {
                    term_low.zip(atom_low).and_then(|(a, b)| a.checked_mul(b))
                } else {
                    None
                };
                term_high = if non_negative {
                    term_high.zip(atom_high).and_then(|(a, b)| a.checked_mul(b))
                } else {
                    None
                };
            }
            let scale = |bound: Option<i64>| bound.and_then(|value| value.checked_mul(coefficient));
            let (term_low, term_high) = if coefficient >= 0 {
                (scale(term_low), scale(term_high))
            } else {
                (scale(term_high), scale(term_low))
            };
            low = low.zip(term_low).and_then(|(a, b)| a.checked_add(b));
            high = high.zip(term_high).and_then(|(a, b)| a.checked_add(b));
        }
        (low, high)
    }

    /// What the dim is at most, with symbols replaced by their bounds: `bound(symbol)` is `None` for a symbol that
    /// stays, and `Some(None)` for one that nothing bounds.
    pub fn upper(&self, bound: &dyn Fn(Sym) -> Option<Option<Dim>>) -> Option<Dim> {
        let stays = |dim: &Dim| {
            let mut stays = true;
            dim.visit_symbols(&mut |sym| stays &= bound(sym).is_none());
            stays
        };
        if stays(self) {
            return Some(self.clone());
        }
        let mut sum = Dim::ZERO;
        for (monomial, coefficient) in self.terms() {
            let term = Dim::term(monomial.clone(), coefficient);
            let lows: Option<Vec<i64>> = monomial.iter().map(|atom| atom.bounds().0).collect();
            let non_negative = lows.as_ref().is_some_and(|lows| lows.iter().all(|&low| low >= 0));
            sum = sum
                + match monomial.as_slice() {
                    _ if stays(&term) => term,
                    [atom] if coefficient > 0 => atom.upper(bound)? * Dim::from(coefficient),
                    [_] => Dim::from(lows?[0].saturating_mul(coefficient)),
                    // A product of factors that are not negative is at least 0.
                    _ if non_negative && coefficient < 0 => Dim::ZERO,
                    atoms if non_negative => {
                        let mut product = Dim::from(coefficient);
                        for atom in atoms {
                            product = product * atom.upper(bound)?;
                        }
                        product
                    }
                    _ => return None,
                };
        }
        Some(sum)
    }

    /// Value under an assignment of the symbols; `None` on overflow, a zero divisor, or where `value`
    /// knows no value.
    pub fn eval(&self, value: &dyn Fn(Sym) -> Option<i64>) -> Option<i64> {
        let mut sum = 0i64;
        for (monomial, coefficient) in self.terms() {
            let mut product = coefficient;
            for atom in &monomial {
                product = product.checked_mul(atom.eval(value)?)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// The dim with every symbol replaced by `value(symbol)`.
    pub fn substitute(&self, value: &dyn Fn(Sym) -> Dim) -> Dim {
        if self.is_const() {
            return self.clone();
        }
        let mut sum = Dim::ZERO;
        for (monomial, coefficient) in self.terms() {
            let mut product = Dim::from(coefficient);
            for atom in &monomial {
                let pair = |a: &Dim, b: &Dim| (a.substitute(value), b.substitute(value));
                let factor = match atom {
                    Atom::Sym(sym) => value(*sym),
                    Atom::FloorDiv(a, b) => {
                        let (a, b) = pair(a, b);
                        a.floor_div(&b).unwrap_or_else(|| Dim::atom(Atom::FloorDiv(a, b)))
                    }
                    Atom::Mod(a, b) => {
                        let (a, b) = pair(a, b);
                        a.modulo(&b).unwrap_or_else(|| Dim::atom(Atom::Mod(a, b)))
                    }
                    Atom::Min(a, b) => {
                        let (a, b) = pair(a, b);
                        a.min_dim(&b)
                    }
                    Atom::Max(a, b) => {
                        let (a, b) = pair(a, b);
                        a.max_dim(&b)
                    }
                };
                product = product * factor;
            }
            sum = sum + product;
        }
        sum
    }

    /// Calls `visit` for every symbol of the dim, with repeats.
    pub fn visit_symbols(&self, visit: &mut dyn FnMut(Sym)) {
        for (monomial, _) in self.terms() {
            for atom in &monomial {
                match atom {
                    Atom::Sym(sym) => visit(*sym),
                    Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                        a.visit_symbols(visit);
                        b.visit_symbols(visit);
                    }
                }
            }
        }
    }
}

impl Atom {
    fn bounds(&self) -> (Option<i64>, Option<i64>) {
        match self {
            Atom::Sym(_) => (Some(0), None),
            Atom::FloorDiv(a, b) => match (a.bounds(), b.as_const()) {
                ((low, high), Some(by)) if by > 0 => {
                    (low.map(|v| v.div_euclid(by)), high.map(|v| v.div_euclid(by)))
                }
                ((Some(low), _), _) if low >= 0 && b.bounds().0.is_some_and(|v| v >= 0) => (Some(0), None),
                _ => (None, None),
            },
            Atom::Mod(_, b) => (Some(0), b.as_const().map(|by| by.saturating_abs() - 1)),
            Atom::Min(a, b) => {
                let (a, b) = (a.bounds(), b.bounds());
                (a.0.zip(b.0).map(|(x, y)| x.min(y)), [a.1, b.1].into_iter().flatten().min())
            }
            Atom::Max(a, b) => {
                let (a, b) = (a.bounds(), b.bounds());
                ([a.0, b.0].into_iter().flatten().max(), a.1.zip(b.1).map(|(x, y)| x.max(y)))
            }
        }
    }

    /// See [`Dim::upper`].
    fn upper(&self, bound: &dyn Fn(Sym) -> Option<Option<Dim>>) -> Option<Dim> {
        match self {
            Atom::Sym(sym) => bound(*sym).unwrap_or_else(|| Some(Dim::sym(*sym))),
            Atom::FloorDiv(a, b) => match b.as_const() {
                Some(by) if by > 0 => a.upper(bound)?.floor_div(b),
                // Divisors are positive.
                _ if a.bounds().0.is_some_and(|low| low >= 0) => a.upper(bound),
                _ => None,
            },
            Atom::Mod(_, b) => b.upper(bound),
            Atom::Min(a, b) => match (a.upper(bound), b.upper(bound)) {
                (Some(a), Some(b)) => Some(a.min_dim(&b)),
                (a, b) => a.or(b),
            },
            Atom::Max(a, b) => Some(a.upper(bound)?.max_dim(&b.upper(bound)?)),
        }
    }

    fn eval(&self, value: &dyn Fn(Sym) -> Option<i64>) -> Option<i64> {
        let pair = |a: &Dim, b: &Dim| Some((a.eval(value)?, b.eval(value)?));
        match self {
            Atom::Sym(sym) => value(*sym),
            Atom::FloorDiv(a, b) => {
                let (a, b) = pair(a, b)?;
                let quotient = a.checked_div_euclid(b)?;
                Some(quotient - i64::from(b < 0 && a.rem_euclid(b) != 0))
            }
            Atom::Mod(a, b) => pair(a, b).and_then(|(a, b)| a.checked_rem_euclid(b)),
            Atom::Min(a, b) => pair(a, b).map(|(a, b)| a.min(b)),
            Atom::Max(a, b) => pair(a, b).map(|(a, b)| a.max(b)),
        }
    }
}

impl Default for Dim {
    fn default() -> Dim {
        Dim::ZERO
    }
}

impl From<i64> for Dim {
    fn from(value: i64) -> Dim {
        Dim(Repr::Const(value))
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Dim {
        Dim(Repr::Const(i64::try_from(value).unwrap_or(i64::MAX)))
    }
}

impl Add for Dim {
    type Output = Dim;
    fn add(self, other: Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::from(a.saturating_add(b));
        }
        let mut terms: BTreeMap<Monomial, i64> = self.terms().into_iter().collect();
        for (monomial, coefficient) in other.terms() {
            let sum = terms.entry(monomial).or_insert(0);
            *sum = sum.saturating_add(coefficient);
        }
        Dim::from_terms(terms)
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self * Dim::from(-1i64)
    }
}

impl Sub for Dim {
    type Output = Dim;
    fn sub(self, other: Dim) -> Dim {
        self + -other
    }
}

impl Mul for Dim {
    type Output = Dim;
    fn mul(self, other: Dim) -> Dim {
        if let (Some(a), Some(b)) = (self.as_const(), other.as_const()) {
            return Dim::from(a.saturating_mul(b));
        }
        let mut terms: BTreeMap<Monomial, i64> = BTreeMap::new();
        let others = other.terms();
        for (left, a) in self.terms() {
            for (right, b) in &others {
                let mut monomial = left.clone();
                monomial.extend(right.iter().cloned());
                monomial.sort();
                let sum = terms.entry(monomial).or_insert(0);
                *sum = sum.saturating_add(a.saturating_mul(*b));
            }
        }
        Dim::from_terms(terms)
    }
}

/// The leading term: of the highest degree, then the last of those. Multiplication keeps this order, which
/// long division needs; the order that terms are stored in is not kept.
fn leading(terms: &[(Monomial, i64)]) -> Option<&(Monomial, i64)> {
    terms.iter().max_by(|a, b| (a.0.len(), &a.0).cmp(&(b.0.len(), &b.0)))
}

/// Product of all dims: the number of elements of a shape.
pub fn product(dims: &[Dim]) -> Dim {
    dims.iter().fold(Dim::ONE, |product, dim| product * dim.clone())
}

/// Row-major strides of a shape, in elements.
pub fn row_major_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::ONE; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].clone() * shape[axis + 1].clone();
    }
    strides
}

/// Text form: `s0*64 + 3`, atoms as `floordiv(a, b)`, `mod(a, b)`, `min(a, b)`, `max(a, b)`.
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.terms();
        if terms.is_empty() {
            return f.write_str("0");
        }
        for (at, (monomial, coefficient)) in terms.iter().enumerate() {
            match (at, *coefficient < 0) {
                (0, false) => {}
                (0, true) => f.write_str("-")?,
                (_, false) => f.write_str(" + ")?,
                (_, true) => f.write_str(" - ")?,
            }
            let magnitude = coefficient.unsigned_abs();
            if monomial.is_empty() {
                write!(f, "{magnitude}")?;
            } else {
                for (at, atom) in monomial.iter().enumerate() {
                    write!(f, "{}{atom}", if at == 0 { "" } else { "*" })?;
                }
                if magnitude != 1 {
                    write!(f, "*{magnitude}")?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Sym(sym) => write!(f, "{sym}"),
            Atom::FloorDiv(a, b) => write!(f, "floordiv({a}, {b})"),
            Atom::Mod(a, b) => write!(f, "mod({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;

    fn s(index: usize) -> Dim {
        Dim::sym(Sym::new(index))
    }

    #[test]
    fn canonical_form_makes_equal_polynomials_equal() {
        let a = (s(0) + Dim::from(1i64)) * (s(1) + Dim::from(2i64));
        let b = s(0) * s(1) + s(1) + s(0) * Dim::from(2i64) + Dim::from(2i64);
        assert_eq!(a, b);
        assert_eq!(a.clone() - b, Dim::ZERO);
        assert_eq!(a.to_string(), "2 + s0*2 + s0*s1 + s1");
    }

    #[test]
    fn division_is_exact_where_it_can_be() {
        let a = s(0) * s(1) * Dim::from(768i64);
        assert_eq!(a.floor_div(&(s(1) * Dim::from(64i64))), Some(s(0) * Dim::from(12i64)));
        let sum = s(0) + Dim::from(1i64);
        assert_eq!((sum.clone() * s(1)).exact_div(&sum), Some(s(1)));
        assert_eq!(s(0).floor_div(&Dim::from(2i64)).unwrap().to_string(), "floordiv(s0, 2)");
        assert_eq!(Dim::from(-3i64).floor_div(&Dim::from(2i64)), Some(Dim::from(-2i64)));
        assert_eq!(s(0).floor_div(&Dim::ZERO), None);
    }

    #[test]
    fn bounds_decide_min_and_max() {
        assert_eq!(s(0).max_dim(&Dim::ZERO), s(0));
        assert_eq!((s(0) + Dim::from(3i64)).min_dim(&s(0)), s(0));
        assert_eq!(s(0).min_dim(&Dim::from(5i64)).to_string(), "min(s0, 5)");
        let (low, high) = (s(0).min_dim(&s(1)), s(0).max_dim(&s(1)));
        assert_eq!((s(0).max_dim(&low), s(1).min_dim(&low)), (s(0), low));
        assert_eq!((high.max_dim(&s(1)), high.min_dim(&s(0))), (high, s(0)));
    }

    #[test]
    fn evaluates_and_substitutes() {
        let dim = s(0).floor_div(&Dim::from(2i64)).unwrap() * s(1);
        let value = |sym: Sym| Some([7, 5][sym.index()]);
        assert_eq!(dim.eval(&value), Some(15));
        assert_eq!(dim.substitute(&|sym| Dim::from(value(sym).unwrap())), Dim::from(15i64));
    }
}
