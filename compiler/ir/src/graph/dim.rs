//! Symbolic dimensions: integer polynomials over named and fresh symbols.
//!
//! A [`Dim`] is kept in a canonical form (a sorted sum of products with integer coefficients), so two
//! dims that are equal as polynomials are equal as values. Other functions (floor division,
//! remainder, minimum, maximum, what two sizes broadcast to) becomes an atom of the products. Symbols stand for sizes: they are
//! never negative.
//!
//! Models decide what is computed with sizes, so dims have a budget. Expressions are shared, and each knows its hash,
//! its bounds, its depth and its weight: the number of parts that it has when it is written out, with what is shared
//! counted every time. An operation whose result would weigh more than [`MAX_WEIGHT`], or be deeper than [`MAX_DEPTH`],
//! gives [`Dim::is_overgrown`] instead, and so does every operation on such a dim. It follows that
//!
//! - a dim takes memory, and any walk over it time, linear in `MAX_WEIGHT`, and stack linear in `MAX_DEPTH`, for
//!   any model: no walk needs a memo or a stack of its own;
//! - clones and bounds take constant time; so do hashes and comparisons of unlike dims, but for the first of a dim;
//! - no product is begun that writes more than `MAX_PRODUCT` atoms.
//!
//! An overgrown dim stands for nothing that can be computed with. It never enters the type of a value, an operation or
//! the plan of memory: where one would, the model is refused, or the size is left to the run. There is no table of all
//! dims: a compilation that ends leaves nothing behind.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Add, Mul, Neg, Sub};
use std::sync::{Arc, OnceLock};

use cranelift_entity::entity_impl;

use crate::digest::digest;
use crate::error::{Error, Kind, Stage};

/// Parts of an expression, written out, beyond which it is overgrown.
pub const MAX_WEIGHT: u32 = 1 << 13;

/// Divisions, minima and maxima inside each other beyond which an expression is overgrown.
pub const MAX_DEPTH: u32 = 100;

/// Atoms that a product of two polynomials may write before equal terms are put together.
const MAX_PRODUCT: usize = 1 << 15;

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
    Poly(Arc<Poly>),
}

/// Lower and upper bound that hold for every non-negative value of the symbols; `None` where there is none.
type Range = (Option<i64>, Option<i64>);

/// A polynomial that is not a constant, with cached answers to frequent questions.
struct Poly {
    /// Sorted by monomial; never a lone constant, no zero coefficients.
    terms: Vec<(Monomial, i64)>,
    /// Of the terms; a digest of what holds dims is as wide. Made when it is asked for: most sums are terms of others, and gone.
    digest: OnceLock<[u64; 2]>,
    weight: u32,
    depth: u32,
    bounds: Range,
}

/// A product of atoms, sorted; the empty product is 1.
pub type Monomial = Arc<[Atom]>;

/// A factor that the polynomial form cannot take apart.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atom {
    Sym(Sym),
    FloorDiv(Dim, Dim),
    Mod(Dim, Dim),
    Min(Dim, Dim),
    Max(Dim, Dim),
    /// See [`Dim::broadcast`]; the lesser operand first.
    Broadcast(Dim, Dim),
    /// An expression beyond the budget; it stands alone.
    Overgrown,
}

impl Poly {
    fn new(terms: Vec<(Monomial, i64)>) -> Poly {
        let atoms = || terms.iter().flat_map(|term| term.0.iter());
        Poly {
            digest: OnceLock::new(),
            weight: atoms().map(Atom::weight).fold(terms.len() as u32, u32::saturating_add),
            depth: atoms().map(Atom::depth).max().unwrap_or(0),
            bounds: bounds(&terms),
            terms,
        }
    }

    fn digest(&self) -> &[u64; 2] {
        self.digest.get_or_init(|| digest(&self.terms))
    }
}

/// Up to this weight, terms are compared sooner than digests are made.
const LIGHT: u32 = 8;

impl PartialEq for Poly {
    fn eq(&self, other: &Poly) -> bool {
        std::ptr::eq(self, other)
            || self.weight == other.weight
                && self.bounds == other.bounds
                && (self.weight <= LIGHT || self.digest() == other.digest())
                && self.terms == other.terms
    }
}

impl Eq for Poly {}

impl Hash for Poly {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest().hash(state);
    }
}

impl Ord for Poly {
    fn cmp(&self, other: &Poly) -> Ordering {
        if self == other { Ordering::Equal } else { self.terms.cmp(&other.terms) }
    }
}

impl PartialOrd for Poly {
    fn partial_cmp(&self, other: &Poly) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The error for a size beyond the budget; `what` names it.
pub fn overgrown(stage: Stage, what: impl fmt::Display) -> Error {
    let message = format!(
        "{what} is an expression of more than {MAX_WEIGHT} parts, or nested more than {MAX_DEPTH} deep: give symbolic \
         dims sizes (--input-dim)"
    );
    Error::new(stage, Kind::Budget, message)
}

impl Dim {
    pub const ZERO: Dim = Dim(Repr::Const(0));
    pub const ONE: Dim = Dim(Repr::Const(1));

    pub fn sym(sym: Sym) -> Dim {
        Dim::atom(Atom::Sym(sym))
    }

    fn atom(atom: Atom) -> Dim {
        Dim::canonical(vec![(Arc::new([atom]), 1)])
    }

    fn overgrown() -> Dim {
        Dim(Repr::Poly(Arc::new(Poly::new(vec![(Arc::new([Atom::Overgrown]), 1)]))))
    }

    /// Whether the expression is beyond the budget, and stands for nothing.
    pub fn is_overgrown(&self) -> bool {
        matches!(&self.0, Repr::Poly(poly) if poly.weight > MAX_WEIGHT)
    }

    /// The dim of terms that are sorted, unlike and not zero.
    fn canonical(terms: Vec<(Monomial, i64)>) -> Dim {
        match terms.as_slice() {
            [] => Dim::ZERO,
            [(monomial, value)] if monomial.is_empty() => Dim(Repr::Const(*value)),
            _ => match Poly::new(terms) {
                poly if poly.weight > MAX_WEIGHT || poly.depth > MAX_DEPTH => Dim::overgrown(),
                poly => Dim(Repr::Poly(Arc::new(poly))),
            },
        }
    }

    /// The sum of terms in any order.
    fn from_terms(mut terms: Vec<(Monomial, i64)>) -> Dim {
        terms.sort_by(|a, b| a.0.cmp(&b.0));
        terms.dedup_by(|next, first| {
            let equal = next.0 == first.0;
            if equal {
                first.1 = first.1.saturating_add(next.1);
            }
            equal
        });
        terms.retain(|term| term.1 != 0);
        Dim::canonical(terms)
    }

    /// A single term of a polynomial.
    pub fn term(monomial: Monomial, coefficient: i64) -> Dim {
        Dim::from_terms(vec![(monomial, coefficient)])
    }

    /// The terms of the polynomial: (product of atoms, coefficient).
    pub fn terms(&self) -> Vec<(Monomial, i64)> {
        match &self.0 {
            Repr::Const(0) => vec![],
            Repr::Const(value) => vec![(Monomial::default(), *value)],
            Repr::Poly(poly) => poly.terms.clone(),
        }
    }

    /// The terms of a dim that is not a constant.
    fn own_terms(&self) -> &[(Monomial, i64)] {
        match &self.0 {
            Repr::Const(_) => &[],
            Repr::Poly(poly) => &poly.terms,
        }
    }

    /// Number of parts of the expression, what is shared counted every time.
    pub fn weight(&self) -> u32 {
        match &self.0 {
            Repr::Const(_) => 1,
            Repr::Poly(poly) => poly.weight,
        }
    }

    fn depth(&self) -> u32 {
        match &self.0 {
            Repr::Const(_) => 0,
            Repr::Poly(poly) => poly.depth,
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
            Repr::Poly(poly) => match poly.terms.as_slice() {
                [(monomial, 1)] => match monomial.as_ref() {
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
        Some(Dim::pair(Atom::FloorDiv, self, by))
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
        if by.as_const() == Some(0) || self.is_overgrown() || by.is_overgrown() {
            return None;
        }
        if self == by {
            return Some(Dim::ONE);
        }
        let divisor = by.terms();
        if let [single] = divisor.as_slice() {
            let terms: Option<Vec<_>> = self.terms().iter().map(|term| divided(term, single)).collect();
            return terms.map(Dim::from_terms);
        }
        // Long division by the leading term; the remainder must vanish.
        let lead = leading(&divisor)?;
        let (mut rest, mut quotient) = (self.clone(), Dim::ZERO);
        for _ in 0..64 {
            let terms = rest.terms();
            let Some(first) = leading(&terms) else { return Some(quotient) };
            let (monomial, coefficient) = divided(first, lead)?;
            let term = Dim::term(monomial, coefficient);
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
        Some(Dim::pair(Atom::Mod, self, by))
    }

    /// An atom of two dims.
    fn pair(atom: fn(Dim, Dim) -> Atom, a: &Dim, b: &Dim) -> Dim {
        match a.is_overgrown() || b.is_overgrown() {
            true => Dim::overgrown(),
            false => Dim::atom(atom(a.clone(), b.clone())),
        }
    }

    /// The size that two sizes broadcast to, if they do: the larger, or 0 where one is 0.
    pub fn broadcast(&self, other: &Dim) -> Dim {
        if *self == Dim::ONE || self == other || self.is_broadcast_to(other) {
            return other.clone();
        }
        if *other == Dim::ONE || other.is_broadcast_to(self) {
            return self.clone();
        }
        if other.is_part_of(self) {
            return self.clone();
        }
        if self.is_part_of(other) {
            return other.clone();
        }
        if [self, other].iter().all(|dim| dim.bounds().0.is_some_and(|low| low > 0)) {
            return self.max_dim(other);
        }
        Dim::pair(Atom::Broadcast, self.min(other), self.max(other))
    }

    /// Whether `other` is exactly what the dim and another one broadcast to.
    fn is_broadcast_to(&self, other: &Dim) -> bool {
        let Repr::Poly(poly) = &other.0 else { return false };
        match poly.terms.as_slice() {
            [(monomial, 1)] => {
                matches!(monomial.as_ref(), [Atom::Broadcast(a, b)] if a == self || b == self)
            }
            _ => false,
        }
    }

    /// Whether the dim is `min(whole, limit)` with a limit of 1 at least, as the size of a slice is. It broadcasts with the whole only
    /// where it is that, or 1, and then to the whole.
    fn is_part_of(&self, whole: &Dim) -> bool {
        let is_positive = |dim: &Dim| dim.bounds().0.is_some_and(|low| low > 0);
        self.extremes(false)
            .is_some_and(|(a, b)| (a == whole && is_positive(b)) || (b == whole && is_positive(a)))
    }

    /// The two operands, when the dim is exactly a minimum (`max` false) or a maximum.
    fn extremes(&self, max: bool) -> Option<(&Dim, &Dim)> {
        let Repr::Poly(poly) = &self.0 else { return None };
        match poly.terms.as_slice() {
            [(monomial, 1)] => match (monomial.as_ref(), max) {
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
            _ => Dim::pair(Atom::Min, self, other),
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
            _ => Dim::pair(Atom::Max, self, other),
        }
    }

    /// Bounds that hold for every non-negative value of the symbols; `None` where there is none.
    pub fn bounds(&self) -> (Option<i64>, Option<i64>) {
        match &self.0 {
            Repr::Const(value) => (Some(*value), Some(*value)),
            Repr::Poly(poly) => poly.bounds,
        }
    }

    /// What the dim is at most, with symbols replaced by their bounds: `bound(symbol)` is `None` for a symbol that
    /// stays, and `Some(None)` for one that nothing bounds.
    pub fn upper(&self, bound: &dyn Fn(Sym) -> Option<Option<Dim>>) -> Option<Dim> {
        if self.is_overgrown() {
            return None;
        }
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
                + match monomial.as_ref() {
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
        let mut sum = self.as_const().unwrap_or(0);
        for &(ref monomial, coefficient) in self.own_terms() {
            let mut product = coefficient;
            for atom in monomial.iter() {
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
        for (monomial, coefficient) in self.own_terms() {
            let mut product = Dim::from(*coefficient);
            for atom in monomial.iter() {
                let pair = |a: &Dim, b: &Dim| (a.substitute(value), b.substitute(value));
                let factor = match atom {
                    Atom::Sym(sym) => value(*sym),
                    Atom::FloorDiv(a, b) => {
                        let (a, b) = pair(a, b);
                        a.floor_div(&b).unwrap_or_else(|| Dim::pair(Atom::FloorDiv, &a, &b))
                    }
                    Atom::Mod(a, b) => {
                        let (a, b) = pair(a, b);
                        a.modulo(&b).unwrap_or_else(|| Dim::pair(Atom::Mod, &a, &b))
                    }
                    Atom::Min(a, b) => {
                        let (a, b) = pair(a, b);
                        a.min_dim(&b)
                    }
                    Atom::Max(a, b) => {
                        let (a, b) = pair(a, b);
                        a.max_dim(&b)
                    }
                    Atom::Broadcast(a, b) => {
                        let (a, b) = pair(a, b);
                        a.broadcast(&b)
                    }
                    Atom::Overgrown => Dim::overgrown(),
                };
                product = product * factor;
            }
            sum = sum + product;
        }
        sum
    }

    /// Calls `visit` for every symbol of the dim, with repeats.
    pub fn visit_symbols(&self, visit: &mut dyn FnMut(Sym)) {
        for (monomial, _) in self.own_terms() {
            for atom in monomial.iter() {
                match atom {
                    Atom::Sym(sym) => visit(*sym),
                    Atom::Overgrown => {}
                    pair => pair.operands().into_iter().for_each(|(a, b)| {
                        a.visit_symbols(visit);
                        b.visit_symbols(visit);
                    }),
                }
            }
        }
    }
}

impl Atom {
    fn operands(&self) -> Option<(&Dim, &Dim)> {
        match self {
            Atom::FloorDiv(a, b)
            | Atom::Mod(a, b)
            | Atom::Min(a, b)
            | Atom::Max(a, b)
            | Atom::Broadcast(a, b) => Some((a, b)),
            Atom::Sym(_) | Atom::Overgrown => None,
        }
    }

    fn weight(&self) -> u32 {
        match (self, self.operands()) {
            (Atom::Overgrown, _) => u32::MAX,
            (_, Some((a, b))) => a.weight().saturating_add(b.weight()).saturating_add(1),
            (_, None) => 1,
        }
    }

    fn depth(&self) -> u32 {
        self.operands().map_or(0, |(a, b)| a.depth().max(b.depth()) + 1)
    }

    fn bounds(&self) -> Range {
        match self {
            Atom::Sym(_) => (Some(0), None),
            Atom::Overgrown => (None, None),
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
            Atom::Broadcast(a, b) => {
                let (a, b) = (a.bounds(), b.bounds());
                // Sizes are not negative.
                let low = a.0.zip(b.0).map_or(0, |(x, y)| if x.min(y) > 0 { x.max(y) } else { 0 });
                (Some(low), a.1.zip(b.1).map(|(x, y)| x.max(y).max(0)))
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
            Atom::Max(a, b) | Atom::Broadcast(a, b) => Some(a.upper(bound)?.max_dim(&b.upper(bound)?)),
            Atom::Overgrown => None,
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
            Atom::Broadcast(a, b) => pair(a, b).map(|(a, b)| if a.min(b) <= 0 { 0 } else { a.max(b) }),
            Atom::Overgrown => None,
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
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => return Dim::from(a.saturating_add(b)),
            (Some(0), _) => return other,
            (_, Some(0)) => return self,
            _ => {}
        }
        if self.is_overgrown() || other.is_overgrown() {
            return Dim::overgrown();
        }
        // Two sorted runs are merged in linear time by the sort.
        let mut terms = self.terms();
        terms.extend(other.terms());
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
        match (self.as_const(), other.as_const()) {
            (Some(a), Some(b)) => return Dim::from(a.saturating_mul(b)),
            (Some(1), _) => return other,
            (_, Some(1)) => return self,
            _ => {}
        }
        if self.is_overgrown() || other.is_overgrown() {
            return Dim::overgrown();
        }
        let (left, right) = (self.terms(), other.terms());
        let atoms = |terms: &[(Monomial, i64)]| terms.iter().map(|term| term.0.len() + 1).sum::<usize>();
        if left.len() * atoms(&right) + right.len() * atoms(&left) > MAX_PRODUCT {
            return Dim::overgrown();
        }
        let mut terms = Vec::with_capacity(left.len() * right.len());
        for (a, by) in &left {
            terms.extend(right.iter().map(|(b, value)| (multiplied(a, b), by.saturating_mul(*value))));
        }
        Dim::from_terms(terms)
    }
}

/// The product of two monomials.
fn multiplied(a: &Monomial, b: &Monomial) -> Monomial {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b.clone(),
        (_, true) => a.clone(),
        _ => {
            let mut atoms: Vec<Atom> = a.iter().chain(b.iter()).cloned().collect();
            atoms.sort();
            atoms.into()
        }
    }
}

/// The quotient of two terms, where it is exact.
fn divided(term: &(Monomial, i64), by: &(Monomial, i64)) -> Option<(Monomial, i64)> {
    if term.1.checked_rem(by.1) != Some(0) {
        return None;
    }
    if by.0.is_empty() {
        return Some((term.0.clone(), term.1 / by.1));
    }
    let mut factors = term.0.to_vec();
    for atom in by.0.iter() {
        let at = factors.iter().position(|factor| factor == atom)?;
        factors.remove(at);
    }
    Some((factors.into(), term.1 / by.1))
}

/// See [`Dim::bounds`].
fn bounds(terms: &[(Monomial, i64)]) -> Range {
    let (mut low, mut high) = (Some(0i64), Some(0i64));
    for (monomial, coefficient) in terms {
        let (term_low, term_high) = monomial_bounds(monomial);
        let scale = |bound: Option<i64>| bound.and_then(|value| value.checked_mul(*coefficient));
        let (term_low, term_high) = if *coefficient >= 0 {
            (scale(term_low), scale(term_high))
        } else {
            (scale(term_high), scale(term_low))
        };
        low = low.zip(term_low).and_then(|(a, b)| a.checked_add(b));
        high = high.zip(term_high).and_then(|(a, b)| a.checked_add(b));
    }
    let (closer_low, closer_high) = rounded_bounds(terms);
    let closer =
        |a: Option<i64>, b: Option<i64>, of: fn(i64, i64) -> i64| a.zip(b).map(|(a, b)| of(a, b)).or(a).or(b);
    (closer(low, closer_low, i64::max), closer(high, closer_high, i64::min))
}

/// Bounds of sums with terms `by * floordiv(x, by)`: `x` rounded down to a multiple, which is `x` less 0 to `by - 1`. They know that a
/// number of whole tiles covers what it was made of. None where there are no such terms.
fn rounded_bounds(terms: &[(Monomial, i64)]) -> Range {
    let rounded = |(monomial, coefficient): &(Monomial, i64)| match &monomial[..] {
        [Atom::FloorDiv(x, by)] => {
            let by = by.as_const().filter(|&by| by > 0 && coefficient % by == 0)?;
            Some((x.clone(), coefficient / by, by - 1))
        }
        _ => None,
    };
    if terms.iter().all(|term| rounded(term).is_none()) {
        return (None, None);
    }
    let (mut exact, mut low, mut high) = (Vec::new(), Some(0i64), Some(0i64));
    for term in terms {
        let Some((x, times, most)) = rounded(term) else {
            exact.push(term.clone());
            continue;
        };
        for (monomial, own) in x.terms() {
            let Some(own) = own.checked_mul(times) else { return (None, None) };
            exact.push((monomial, own));
        }
        let taken = times.checked_mul(most);
        low = low.zip(taken).and_then(|(low, taken)| low.checked_sub(taken.max(0)));
        high = high.zip(taken).and_then(|(high, taken)| high.checked_sub(taken.min(0)));
    }
    let sum = |a: Option<i64>, b: Option<i64>| a.zip(b).and_then(|(a, b)| a.checked_add(b));
    let own = Dim::from_terms(exact).bounds();
    (sum(own.0, low), sum(own.1, high))
}

fn monomial_bounds(monomial: &Monomial) -> Range {
    if let [atom] = &monomial[..] {
        return atom.bounds();
    }
    monomial.iter().fold((Some(1), Some(1)), |(low, high), atom| {
        let (atom_low, atom_high) = atom.bounds();
        // Products keep bounds only while every factor is known to be non-negative.
        let non_negative = atom_low.is_some_and(|value| value >= 0);
        let times = |bound: Option<i64>, by: Option<i64>| {
            bound.zip(by).filter(|_| non_negative).and_then(|(a, b)| a.checked_mul(b))
        };
        (times(low, atom_low), times(high, atom_high))
    })
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

/// The number of elements of a shape, where it is known.
pub fn volume(shape: &[Dim]) -> Option<i64> {
    shape.iter().try_fold(1i64, |product, dim| product.checked_mul(dim.as_const()?))
}

/// Known sizes as dims.
pub fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&size| Dim::from(size)).collect()
}

/// Dims as sizes, if all are known.
pub fn sizes(shape: &[Dim]) -> Option<Vec<usize>> {
    shape.iter().map(|dim| dim.as_const().and_then(|size| usize::try_from(size).ok())).collect()
}

/// Row-major strides of a shape, in elements.
pub fn row_major_strides(shape: &[Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::ONE; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1].clone() * shape[axis + 1].clone();
    }
    strides
}

/// Text form: `s0*64 + 3`, atoms as `floordiv(a, b)`, `mod(a, b)`, `min(a, b)`, `max(a, b)`, `broadcast(a, b)`.
impl Dim {
    /// The text of the dim, with symbols as `name` writes them.
    pub fn text(&self, name: &dyn Fn(Sym) -> String) -> String {
        let mut out = String::new();
        for (at, (monomial, coefficient)) in self.terms().iter().enumerate() {
            out += match (at, *coefficient < 0) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            let mut factors: Vec<String> = monomial.iter().map(|atom| atom.text(name)).collect();
            let magnitude = coefficient.unsigned_abs();
            if monomial.is_empty() || magnitude != 1 {
                factors.push(magnitude.to_string());
            }
            out += &factors.join("*");
        }
        if out.is_empty() { "0".to_string() } else { out }
    }
}

impl Atom {
    fn text(&self, name: &dyn Fn(Sym) -> String) -> String {
        let call =
            |function: &str, a: &Dim, b: &Dim| format!("{function}({}, {})", a.text(name), b.text(name));
        match self {
            Atom::Sym(sym) => name(*sym),
            Atom::FloorDiv(a, b) => call("floordiv", a, b),
            Atom::Mod(a, b) => call("mod", a, b),
            Atom::Min(a, b) => call("min", a, b),
            Atom::Max(a, b) => call("max", a, b),
            Atom::Broadcast(a, b) => call("broadcast", a, b),
            Atom::Overgrown => "overgrown".to_string(),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&|sym| sym.to_string()))
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod property_tests;
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
        let half = (s(0) - Dim::ONE).floor_div(&Dim::from(2i64)).unwrap();
        assert_eq!((half.clone() + Dim::ONE).max_dim(&Dim::ZERO), half + Dim::ONE);
        let (low, high) = (s(0).min_dim(&s(1)), s(0).max_dim(&s(1)));
        assert_eq!((s(0).max_dim(&low), s(1).min_dim(&low)), (s(0), low));
        assert_eq!((high.max_dim(&s(1)), high.min_dim(&s(0))), (high, s(0)));
    }

    /// Whole tiles cover what they were counted for, and by less than a tile.
    #[test]
    fn whole_tiles_cover_a_size() {
        for tile in 1..=6i64 {
            for border in -3..=3i64 {
                let size = s(0) + Dim::from(border);
                let by = Dim::from(tile);
                let up = size.ceil_div(&by).unwrap() * by.clone() - size.clone();
                let down = size.clone() - size.floor_div(&by).unwrap() * by.clone();
                let both = up.clone() * Dim::from(3i64) - down.clone();
                for (dim, low, high) in
                    [(&up, 0, tile - 1), (&down, 0, tile - 1), (&both, 1 - tile, 3 * (tile - 1))]
                {
                    let (known_low, known_high) = dim.bounds();
                    assert_eq!((known_low, known_high), (Some(low), Some(high)), "{dim}");
                    for value in 0..40 {
                        let value = dim.eval(&|_| Some(value)).unwrap();
                        assert!((low..=high).contains(&value), "{dim} is {value}");
                    }
                }
            }
        }
        // Rounding twice, and a multiple of what is rounded.
        let twice =
            s(0).ceil_div(&Dim::from(2i64)).unwrap().ceil_div(&Dim::from(3i64)).unwrap() * Dim::from(6i64);
        assert_eq!((twice - s(0)).bounds(), (Some(0), Some(5)));
        let half = s(0).ceil_div(&Dim::from(4i64)).unwrap() * Dim::from(2i64);
        assert_eq!((half - s(0)).bounds(), (None, None));
    }

    #[test]
    fn sizes_broadcast_to_the_larger_or_to_none() {
        let both = s(0).broadcast(&s(1));
        assert_eq!(both.to_string(), "broadcast(s0, s1)");
        let at = |first: i64, second: i64| both.eval(&|sym| Some([first, second][sym.index()]));
        for (first, second, wanted) in
            [(1, 7, 7), (7, 1, 7), (5, 5, 5), (0, 1, 0), (1, 0, 0), (0, 0, 0), (1, 1, 1)]
        {
            assert_eq!(at(first, second), Some(wanted), "{first} and {second}");
            let value = |sym: Sym| Dim::from([first, second][sym.index()]);
            assert_eq!(both.substitute(&value), Dim::from(wanted), "{first} and {second}");
        }
        // Neither the order nor what is part of it already makes another size.
        assert_eq!(s(1).broadcast(&s(0)), both);
        assert_eq!((both.broadcast(&s(0)), s(1).broadcast(&both)), (both.clone(), both.clone()));
        assert_eq!(
            (s(0).broadcast(&Dim::ONE), Dim::ONE.broadcast(&s(0)), s(0).broadcast(&s(0))),
            (s(0), s(0), s(0))
        );
        // Of sizes of 1 at least it is the larger; of others it may be 0.
        let more = |index| s(index) + Dim::ONE;
        assert_eq!(more(0).broadcast(&(more(0) + Dim::ONE)), more(0) + Dim::ONE);
        assert_eq!((both.bounds(), more(0).broadcast(&more(1)).bounds()), ((Some(0), None), (Some(1), None)));
        let few = s(0).min_dim(&Dim::from(3i64));
        assert_eq!(more(0).min_dim(&Dim::from(4i64)).broadcast(&few).bounds(), (Some(0), Some(4)));
        assert_eq!(both.upper(&|_| Some(Some(Dim::from(6i64)))), Some(Dim::from(6i64)));
    }

    #[test]
    fn what_is_sliced_broadcasts_to_the_whole() {
        for limit in [1i64, 512] {
            let part = s(0).min_dim(&Dim::from(limit));
            assert_eq!((part.broadcast(&s(0)), s(0).broadcast(&part)), (s(0), s(0)));
        }
        let part = s(0).min_dim(&(s(1) + Dim::ONE));
        assert_eq!((part.broadcast(&s(0)), s(0).broadcast(&part)), (s(0), s(0)));
        // A limit that may be 0 leaves nothing of 1; another size is another size.
        for (part, whole) in [(s(0).min_dim(&s(1)), s(0)), (s(0).min_dim(&Dim::from(512i64)), s(1))] {
            assert!(part.broadcast(&whole).to_string().contains("broadcast"));
        }
    }

    #[test]
    fn expressions_beyond_the_budget_are_overgrown() {
        let half = |x: &Dim| x.floor_div(&Dim::from(2i64)).unwrap();
        // Written out, it doubles with every step.
        let mut x = s(0);
        let steps = (0..).take_while(|_| {
            x = half(&x) + x.floor_div(&Dim::from(3i64)).unwrap();
            !x.is_overgrown()
        });
        assert!((8..18).contains(&steps.count()));
        // Depth is counted by itself.
        let mut x = s(0);
        for _ in 0..MAX_DEPTH {
            assert!(!x.is_overgrown());
            x = half(&(x + Dim::ONE));
        }
        assert!(!x.is_overgrown() && half(&(x.clone() + Dim::ONE)).is_overgrown());
        // A product of sums has one term per choice of a term from each sum.
        let sums = (0..30).fold(Dim::ONE, |product, at| product * (s(at) + Dim::ONE));
        assert!(sums.is_overgrown());
        let powers = (0..40).fold(s(0) + s(1), |x, _| x.clone() * x);
        assert!(powers.is_overgrown());
    }

    #[test]
    fn what_is_overgrown_stays_so_and_equals_nothing_that_counts() {
        let x = (0..30).fold(Dim::ONE, |product, at| product * (s(at) + Dim::ONE));
        let made = [
            x.clone() - x.clone(),
            x.clone() * Dim::ZERO,
            x.floor_div(&x).unwrap(),
            x.modulo(&s(0)).unwrap(),
            x.min_dim(&s(0)),
            s(0).max_dim(&x),
            s(0).substitute(&|_| x.clone()),
        ];
        for dim in made {
            assert!(dim.is_overgrown(), "{dim}");
        }
        assert_eq!((x.exact_div(&x), x.bounds(), x.eval(&|_| Some(1))), (None, (None, None), None));
    }

    #[test]
    fn evaluates_and_substitutes() {
        let dim = s(0).floor_div(&Dim::from(2i64)).unwrap() * s(1);
        let value = |sym: Sym| Some([7, 5][sym.index()]);
        assert_eq!(dim.eval(&value), Some(15));
        assert_eq!(dim.substitute(&|sym| Dim::from(value(sym).unwrap())), Dim::from(15i64));
    }
}
