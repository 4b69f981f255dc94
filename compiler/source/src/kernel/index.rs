//! Indices and sizes as C.

use crate::kernel::value::Val;
use crate::kernel::{Bound, Formed, Lane, Printer};
use onnxc_ir::graph::dim::Atom;
use onnxc_ir::graph::{DType, Dim};
use onnxc_loops::{Index, Term};

/// A number as C, of the size of a pointer.
pub(crate) struct Text {
    pub text: String,
    /// Whether it is a factor as it is, not a sum.
    pub is_factor: bool,
}

impl Text {
    fn factor(&self) -> String {
        if self.is_factor { self.text.clone() } else { format!("({})", self.text) }
    }
}

/// A sum of products with coefficients, written as C has it.
struct Sum(String);

impl Sum {
    /// Adds a coefficient times a product; an empty product is 1.
    fn add(&mut self, coefficient: i64, product: &str) {
        let size = coefficient.unsigned_abs();
        let term = match (size, product) {
            (0, _) => return,
            (_, "") => size.to_string(),
            (1, _) => product.to_string(),
            _ => format!("{size} * {product}"),
        };
        match (self.0.is_empty(), coefficient < 0) {
            (true, false) => self.0 = term,
            (true, true) => self.0 = format!("-{term}"),
            (false, false) => self.0 += &format!(" + {term}"),
            (false, true) => self.0 += &format!(" - {term}"),
        }
    }

    fn finish(self) -> Text {
        if self.0.is_empty() {
            return Text { text: "0".into(), is_factor: true };
        }
        let is_factor = self.0.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        Text { text: self.0, is_factor }
    }
}

impl Printer<'_> {
    /// The type of sizes and indices.
    pub(crate) fn index_type(&self) -> &'static str {
        if self.is_wide { "int64_t" } else { "ptrdiff_t" }
    }

    /// A function on sizes.
    fn size_function(&mut self, name: &str) -> String {
        self.helpers.sizes(self.is_wide);
        format!("{}_{name}", if self.is_wide { "ox_long" } else { "ox_size" })
    }

    pub(crate) fn dim(&mut self, dim: &Dim) -> Text {
        let mut sum = Sum(String::new());
        for (monomial, coefficient) in dim.terms() {
            let atoms: Vec<String> = monomial.iter().map(|atom| self.atom(atom)).collect();
            sum.add(coefficient, &atoms.join(" * "));
        }
        sum.finish()
    }

    fn atom(&mut self, atom: &Atom) -> String {
        let (function, a, b) = match atom {
            Atom::Sym(sym) => {
                self.symbols.insert(*sym);
                return format!("s{}", sym.as_u32());
            }
            Atom::FloorDiv(a, b) => ("div", a, b),
            Atom::Mod(a, b) => ("mod", a, b),
            Atom::Min(a, b) => ("min", a, b),
            Atom::Max(a, b) => ("max", a, b),
            Atom::Broadcast(a, b) => ("broadcast", a, b),
            Atom::Overgrown => return "0".into(),
        };
        let function = self.size_function(function);
        let (a, b) = (self.dim(a), self.dim(b));
        format!("{function}({}, {})", a.text, b.text)
    }

    /// The value of an index where all in it is known.
    pub(crate) fn constant(&self, index: &Index) -> Option<i64> {
        let mut sum = index.constant.as_const()?;
        for (term, coefficient) in &index.terms {
            let value = match term {
                Term::Var(var) => match self.bound.get(var)? {
                    Bound::Const(value) => *value,
                    _ => return None,
                },
                Term::FloorDiv(x, by) => self.constant(x)?.checked_div_euclid(by.as_const()?)?,
                Term::Mod(x, by) => self.constant(x)?.checked_rem_euclid(by.as_const()?)?,
            };
            sum += value * coefficient.as_const()?;
        }
        Some(sum)
    }

    /// An index without the number of a lane: one for all of them.
    pub(crate) fn index(&mut self, index: &Index) -> Formed<Text> {
        let mut sum = Sum(String::new());
        let mut constant = index.constant.clone();
        for (term, coefficient) in &index.terms {
            let factor = match term {
                Term::Var(var) => match self.bound.get(var).cloned() {
                    Some(Bound::Const(value)) => {
                        constant = constant + Dim::from(value) * coefficient.clone();
                        continue;
                    }
                    Some(Bound::Named(name)) if name.lanes == 1 => name.text,
                    Some(Bound::OneLane(base, lane)) => {
                        let base = self.index(&base)?;
                        match base.text.as_str() {
                            "0" => lane,
                            base => format!("({base} + {lane})"),
                        }
                    }
                    Some(_) => return Err(format!("{index} differs by lanes")),
                    None => return Err(format!("{var} is not bound")),
                },
                Term::FloorDiv(x, by) | Term::Mod(x, by) => {
                    if let Some(value) = self.constant(&Index::term(term.clone())) {
                        constant = constant + Dim::from(value) * coefficient.clone();
                        continue;
                    }
                    let operator = if matches!(term, Term::Mod(..)) { "%" } else { "/" };
                    let x = self.index(x)?;
                    let unsigned = if self.is_wide { "uint64_t" } else { "size_t" };
                    // No dividend is negative.
                    let by = match by.as_const() {
                        Some(by) => by.max(1).to_string(),
                        None => {
                            let max = self.size_function("max");
                            format!("({unsigned}){max}({}, 1)", self.dim(by).text)
                        }
                    };
                    format!("({})(({unsigned}){} {operator} {by})", self.index_type(), x.factor())
                }
            };
            match coefficient.as_const() {
                Some(coefficient) => sum.add(coefficient, &factor),
                None => {
                    let by = self.dim(coefficient);
                    sum.add(1, &format!("{} * {factor}", by.factor()));
                }
            }
        }
        match constant.as_const() {
            Some(constant) => sum.add(constant, ""),
            None => {
                let constant = self.dim(&constant);
                sum.add(1, &constant.text);
            }
        }
        Ok(sum.finish())
    }

    /// Whether the lanes of the vector loop around differ in an index.
    pub(crate) fn differs(&self, index: &Index) -> bool {
        let Some((var, _)) = self.group else { return false };
        index.mentions(var) || index.terms.iter().any(|(term, _)| self.term_differs(term))
    }

    fn term_differs(&self, term: &Term) -> bool {
        match term {
            Term::Var(var) => match self.bound.get(var) {
                Some(Bound::Lane(_)) => true,
                Some(Bound::Named(name)) => name.lanes > 1,
                _ => false,
            },
            Term::FloorDiv(x, _) | Term::Mod(x, _) => x.terms.iter().any(|(term, _)| self.term_differs(term)),
        }
    }

    /// The index, where all lanes have the same.
    pub(crate) fn uniform(&self, index: &Index) -> Option<Index> {
        (!self.differs(index)).then(|| index.clone())
    }

    /// An index of the lane of this number.
    pub(crate) fn at_lane(&self, index: &Index, lane: usize) -> Formed<Index> {
        let Some((var, _)) = self.group else { return Ok(index.clone()) };
        let Some(Bound::Lane(base)) = self.bound.get(&var) else { return Err("no lanes".into()) };
        let index = index.substitute(var, &base.add(&Index::int(lane as i64)));
        match self.differs(&index) {
            true => Err(format!("{index} has no lanes")),
            false => Ok(index),
        }
    }

    /// Where the elements of all lanes begin, if they are neighbours.
    pub(crate) fn contiguous(&self, index: &Index) -> Option<Index> {
        let (var, _) = self.group?;
        (index.coefficient(var)? == Dim::ONE).then(|| self.at_lane(index, 0).ok())?
    }

    /// The last index of a register, without lanes, and what it says of these.
    pub(crate) fn last_index(&mut self, index: &Index) -> Formed<(Index, Option<Lane>)> {
        if let Some((var, lanes)) = self.group {
            return match index.coefficient(var) {
                Some(one) if one == Dim::ONE => Ok((self.at_lane(index, 0)?, Some(Lane::All(lanes)))),
                Some(zero) if zero == Dim::ZERO && !self.differs(index) => Ok((index.clone(), None)),
                _ => Err(format!("registers at {index}")),
            };
        }
        for (term, coefficient) in &index.terms {
            if let Term::Var(var) = term
                && let Some(Bound::OneLane(base, name)) = self.bound.get(var)
            {
                if *coefficient != Dim::ONE {
                    return Err(format!("registers at {index}"));
                }
                return Ok((index.substitute(*var, base), Some(Lane::One(name.clone()))));
            }
        }
        Ok((index.clone(), None))
    }

    /// An index as a value.
    pub(crate) fn index_value(&mut self, index: &Index) -> Formed<Val> {
        if let Some(index) = self.uniform(index) {
            let at = self.index(&index)?;
            return Ok(Val::new(format!("(int64_t){}", at.factor()), DType::I64, 1));
        }
        let (_, lanes) = self.group.ok_or("no lanes")?;
        let vector = self.vector_of(DType::I64, lanes);
        let mut all = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            let index = self.at_lane(index, lane)?;
            all.push(self.index(&index)?.text);
        }
        Ok(Val::new(format!("({vector}){{{}}}", all.join(", ")), DType::I64, lanes))
    }
}
