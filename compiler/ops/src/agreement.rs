//! Shape agreements: what the shapes of a node's inputs must have in common. Every row of the operator table states
//! them as text (`agreement/text.rs` has the grammar), and [`check`] holds a node against them before it is lowered: a conflict of
//! constants is an error here, one that depends on symbols or data becomes an assumption that the run checks before it writes anything.
//!
//! - `W[M, C, K..]`: input `W` has these dims. A name with a capital stands for a size; where it occurs again, the size is
//!   the same. `K..` stands for any number of dims, `..axis` for the number that the attribute `axis` gives, `_` for any dim.
//!   `N|1` is either of both. `[N] | [N, C]` are shapes of unlike ranks. A variadic input is each of its values.
//! - `broadcast(A, B)`: the shapes broadcast as NumPy's do; `broadcast(C -> [M, N])`: `C` broadcasts to that shape.
//! - `I <= A`, `C = G * group`: of sizes, of numbers, and, dim by dim, of runs such as `K..`.
//! - `if transA = 0: A[M, K]`: only where that holds of an attribute, or an optional input or attribute is given.
//!
//! Names in lower case are attributes. What mentions something that is not given says nothing.

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod text;

use std::collections::HashMap;

use super::{Attr, AttrDefault, NodeCx};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::graph::claim::{Stated, V, printable};
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Dim, Requirement, ValueId};
use onnxc_ir::infer::broadcast_shapes;
use text::{Agreement, Claim, Expr, Guard, Operand, Operator, Term};

/// Agreements of a row that has none: any shapes do, or those that only lowering can determine, from values, bodies or an equation.
pub const ANY: &[&str] = &[];

/// Holds a node's inputs against the agreements of its row.
pub fn check(cx: &mut NodeCx<'_, '_>) -> Result<()> {
    let mut checker = Checker { cx, dims: HashMap::new(), runs: HashMap::new() };
    for text in checker.cx.def.shapes {
        let agreement = text::parse(text).map_err(|message| Error::internal(Stage::Import, message))?;
        checker.agreement(&agreement, text)?;
    }
    Ok(())
}

/// A size that a name stands for, and where it was found: ``dimension 1 of input `X` ``.
struct Bound {
    dim: Dim,
    place: String,
}

/// Dims that a name stands for, with the place of each.
#[derive(Clone)]
struct Run {
    dims: Vec<Dim>,
    places: Vec<String>,
}

struct Checker<'c, 'a, 'g> {
    cx: &'c mut NodeCx<'a, 'g>,
    dims: HashMap<&'static str, Bound>,
    runs: HashMap<&'static str, Run>,
}

fn malformed<T>(message: String) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

impl Checker<'_, '_, '_> {
    fn agreement(&mut self, agreement: &Agreement<'static>, text: &str) -> Result<()> {
        if !agreement.guards.iter().all(|guard| self.applies(guard)) {
            return Ok(());
        }
        match &agreement.claim {
            Claim::Shape { input, shapes } => {
                for value in self.values(input) {
                    self.shape(input, value, shapes, text)?;
                }
                Ok(())
            }
            Claim::Broadcast { from, to } => self.broadcast(from, to.as_ref()),
            Claim::Relation { left, at_most, right } => self.relation(left, *at_most, right),
        }
    }

    fn applies(&self, guard: &Guard<'_>) -> bool {
        match guard {
            Guard::Given { name, wanted } => {
                let is_attribute = self.cx.def.attributes.iter().any(|attribute| attribute.name == *name);
                let given = match is_attribute {
                    true => self.cx.attributes.contains_key(*name),
                    false => !self.values(name).is_empty(),
                };
                given == *wanted
            }
            Guard::Is { name, value, wanted } => {
                let found = match (self.cx.attributes.get(*name), self.default(name)) {
                    (Some(Attr::Int(number)), _) => number.to_string(),
                    (Some(Attr::Str(text)), _) => text.clone(),
                    (None, Some(AttrDefault::Int(number))) => number.to_string(),
                    (None, Some(AttrDefault::Str(text))) => text.to_string(),
                    _ => String::new(),
                };
                (found == *value) == *wanted
            }
        }
    }

    fn default(&self, name: &str) -> Option<AttrDefault> {
        let attribute = self.cx.def.attributes.iter().find(|attribute| attribute.name == name);
        attribute.map(|attribute| attribute.default)
    }

    /// The values of an input: one, many where it is variadic, or none.
    fn values(&self, input: &str) -> Vec<ValueId> {
        let params = self.cx.def.inputs;
        let Some(at) = params.iter().position(|param| param.name == input) else { return vec![] };
        let end = if params[at].arity.is_variadic() { self.cx.inputs.len() } else { at + 1 };
        (at..end).filter_map(|at| self.cx.optional(at)).collect()
    }

    fn place(&self, input: &str, value: ValueId, axis: usize) -> String {
        match self.cx.b.graph.values[value].name.as_str() {
            "" => format!("dimension {axis} of {input}"),
            name => format!("dimension {axis} of {input} `{}`", printable(name)),
        }
    }

    /// The first of some shapes that fits the rank of an input.
    fn shape(
        &mut self,
        input: &str,
        value: ValueId,
        shapes: &[Vec<Term<'static>>],
        text: &str,
    ) -> Result<()> {
        let dims = self.cx.b.shape(value);
        let places: Vec<String> = (0..dims.len()).map(|axis| self.place(input, value, axis)).collect();
        for terms in shapes {
            let Some(lengths) = self.lengths(terms, dims.len()) else { return Ok(()) };
            if lengths.iter().sum::<usize>() != dims.len() || !self.fits(terms, &lengths) {
                continue;
            }
            let mut at = 0;
            for (term, length) in terms.iter().zip(lengths) {
                self.term(
                    term,
                    Run { dims: dims[at..at + length].to_vec(), places: places[at..at + length].to_vec() },
                )?;
                at += length;
            }
            return Ok(());
        }
        let claim = text.rsplit_once(": ").map_or(text, |(_, claim)| claim);
        let mut names = Vec::new();
        for term in shapes.iter().flatten() {
            match term {
                Term::Run { count, .. } => count.iter().for_each(|count| names_of(count, &mut names)),
                Term::Dim(sizes) => sizes.iter().for_each(|size| names_of(size, &mut names)),
                Term::Any => {}
            }
        }
        let attributes = names.into_iter().filter(|name| self.cx.has(name));
        let values = attributes.filter_map(|name| Some(format!("{name} {}", self.value(&Expr::Name(name))?)));
        let values: Vec<String> = values.collect();
        let with = if values.is_empty() { String::new() } else { format!(" with {}", values.join(", ")) };
        malformed(format!("{input} is {}, must be {claim}{with}", self.cx.b.ty(value)))
    }

    /// Whether runs that are known already have these lengths.
    fn fits(&self, terms: &[Term<'static>], lengths: &[usize]) -> bool {
        terms.iter().zip(lengths).all(|(term, length)| match term {
            Term::Run { name: Some(name), .. } => self.run(name).is_none_or(|run| run.dims.len() == *length),
            _ => true,
        })
    }

    /// How many dims each term stands for in a shape of this rank, where that is known; their sum is another rank if the
    /// shape does not fit.
    fn lengths(&self, terms: &[Term<'static>], rank: usize) -> Option<Vec<usize>> {
        let (mut lengths, mut free) = (Vec::with_capacity(terms.len()), None);
        for (at, term) in terms.iter().enumerate() {
            lengths.push(match term {
                Term::Any | Term::Dim(_) => 1,
                Term::Run { count: Some(count), .. } => self.run_length(count, rank)?,
                Term::Run { name: Some(name), count: None } if self.run(name).is_some() => {
                    self.run(name).map_or(0, |run| run.dims.len())
                }
                Term::Run { .. } => {
                    free = Some(at);
                    0
                }
            });
        }
        if let Some(at) = free {
            lengths[at] = rank.saturating_sub(lengths.iter().sum());
        }
        Some(lengths)
    }

    /// The value of a count of dims; more than the rank if it is an axis outside of it. An attribute that is an axis counts
    /// from the end of the rank where it is negative.
    fn run_length(&self, count: &Expr<'static>, rank: usize) -> Option<usize> {
        let length = self.value(count)?.as_const()?;
        let wrapped = if length < 0 { length.saturating_add(rank as i64) } else { length };
        let inside = usize::try_from(wrapped).ok().filter(|&length| length <= rank);
        Some(inside.unwrap_or(rank + 1))
    }

    /// Holds the dims that a term stands for against it.
    fn term(&mut self, term: &Term<'static>, found: Run) -> Result<()> {
        match term {
            Term::Any => Ok(()),
            Term::Run { name: None, .. } => Ok(()),
            Term::Run { name: Some(name), .. } => match self.run(name) {
                Some(known) => {
                    for (at, dim) in found.dims.iter().enumerate() {
                        let requirement = Requirement::equal(dim.clone(), known.dims[at].clone());
                        self.require(requirement, &|_, own| own.says(&found.places[at], &known.places[at]))?;
                    }
                    Ok(())
                }
                None if self.is_variable(name) => {
                    self.runs.insert(*name, found);
                    Ok(())
                }
                None => Ok(()),
            },
            Term::Dim(sizes) => match sizes.as_slice() {
                [size] => self.size(size, &found.dims[0], &found.places[0]),
                _ => self.alternatives(sizes, &found.dims[0], &found.places[0]),
            },
        }
    }

    /// A dim that is `size`; a name that stands for nothing yet then stands for the dim.
    fn size(&mut self, size: &Expr<'static>, dim: &Dim, place: &str) -> Result<()> {
        if let Some(wanted) = self.value(size) {
            let requirement = Requirement::equal(dim.clone(), wanted);
            self.require(requirement, &|cx, own| own.says(place, cx.wording(size)))?;
            // Constants are more precise than symbols.
            if let Expr::Name(name) = size
                && dim.is_const()
                && let Some(bound) = self.dims.get_mut(*name).filter(|bound| !bound.dim.is_const())
            {
                *bound = Bound { dim: dim.clone(), place: place.to_string() };
            }
            return Ok(());
        }
        match size {
            Expr::Name(name) if self.is_variable(name) => {
                self.dims.insert(*name, Bound { dim: dim.clone(), place: place.to_string() });
            }
            Expr::Binary(Operator::Mul, sides) => {
                let (name, factor) = match &**sides {
                    [Expr::Name(name), factor] if self.is_variable(name) => (name, factor),
                    [factor, Expr::Name(name)] if self.is_variable(name) => (name, factor),
                    _ => return Ok(()),
                };
                let Some(parts) = self.value(factor).filter(|parts| *parts != Dim::ZERO) else {
                    return Ok(());
                };
                self.divides(dim, &parts, place, factor)?;
                if let Some(quotient) = dim.floor_div(&parts) {
                    let place = format!("{place} by {factor}");
                    self.dims.insert(*name, Bound { dim: quotient, place });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn divides(&mut self, dim: &Dim, parts: &Dim, place: &str, factor: &Expr<'static>) -> Result<()> {
        let Some(rest) = dim.modulo(parts) else { return Ok(()) };
        self.require(Requirement::equal(rest, Dim::ZERO), &|cx, own| {
            own.stated(multiple(place, &cx.wording(factor)), &[dim, parts])
        })
    }

    /// A dim that is one of several sizes.
    fn alternatives(&mut self, sizes: &[Expr<'static>], dim: &Dim, place: &str) -> Result<()> {
        let Some(wanted) = sizes.iter().map(|size| self.value(size)).collect::<Option<Vec<Dim>>>() else {
            return Ok(());
        };
        if wanted.contains(dim) {
            return Ok(());
        }
        let requirement = match wanted.as_slice() {
            [wanted, one] if *one == Dim::ONE => Requirement::broadcasts(dim.clone(), wanted.clone()),
            _ => {
                // The product of all differences is 0.
                let differences = wanted.iter().map(|wanted| wanted.clone() - dim.clone());
                Requirement::equal(differences.fold(Dim::ONE, |product, next| product * next), Dim::ZERO)
            }
        };
        self.require(requirement, &|cx, own| {
            let words: Vec<String> = sizes.iter().map(|size| cx.wording(size)).collect();
            let values = vec![V.to_string(); wanted.len()].join(" or ");
            let text = format!("{place} is {V}; it must be {}, which is {values}", words.join(" or "));
            own.stated(text, &[dim].into_iter().chain(&wanted).collect::<Vec<_>>())
        })
    }

    fn broadcast(&mut self, from: &[Operand<'static>], to: Option<&Operand<'static>>) -> Result<()> {
        let from: Vec<Run> = from.iter().flat_map(|operand| self.operands(operand)).collect();
        let to = match to {
            Some(to) => match self.operands(to).pop() {
                Some(to) => to,
                None => return Ok(()),
            },
            None => {
                let shapes: Vec<&[Dim]> = from.iter().map(|run| run.dims.as_slice()).collect();
                let dims = broadcast_shapes(&shapes)?;
                let places = vec!["the dimension that it is broadcast to".to_string(); dims.len()];
                Run { dims, places }
            }
        };
        for run in &from {
            if run.dims.len() > to.dims.len() {
                return malformed(format!("shape {:?} does not broadcast to {:?}", run.dims, to.dims));
            }
            let lead = to.dims.len() - run.dims.len();
            for (at, dim) in run.dims.iter().enumerate() {
                let wanted = &to.dims[lead + at];
                let requirement = Requirement::broadcasts(dim.clone(), wanted.clone());
                self.require(requirement, &|_, own| own.says(&run.places[at], &to.places[lead + at]))?;
            }
        }
        Ok(())
    }

    /// The shapes that an operand of a broadcast stands for; none where something in it is not given.
    fn operands(&self, operand: &Operand<'static>) -> Vec<Run> {
        match operand {
            Operand::Name(name) => match self.runs.get(*name) {
                Some(run) => vec![run.clone()],
                None => self.values(name).into_iter().map(|value| self.whole(name, value)).collect(),
            },
            Operand::Shape(terms) => {
                let mut all = Run { dims: vec![], places: vec![] };
                for term in terms {
                    match term {
                        Term::Dim(sizes) => {
                            let Some(dim) = sizes.first().and_then(|size| self.value(size)) else {
                                return vec![];
                            };
                            all.dims.push(dim);
                            all.places.push(self.wording(&sizes[0]));
                        }
                        Term::Run { name: Some(name), .. } => {
                            let Some(run) = self.run(name) else { return vec![] };
                            all.dims.extend(run.dims);
                            all.places.extend(run.places);
                        }
                        _ => return vec![],
                    }
                }
                vec![all]
            }
        }
    }

    fn whole(&self, input: &str, value: ValueId) -> Run {
        let dims = self.cx.b.shape(value);
        Run { places: (0..dims.len()).map(|axis| self.place(input, value, axis)).collect(), dims }
    }

    fn relation(&mut self, left: &Expr<'static>, at_most: bool, right: &Expr<'static>) -> Result<()> {
        let new: fn(Dim, Dim) -> Requirement =
            if at_most { Requirement::at_most } else { Requirement::equal };
        if let (Expr::Name(few), Expr::Name(many)) = (left, right)
            && let (Some(few), Some(many)) = (self.run(few), self.run(many))
        {
            if few.dims.len() != many.dims.len() {
                return malformed(format!("shapes {:?} and {:?} differ in rank", few.dims, many.dims));
            }
            for at in 0..few.dims.len() {
                let requirement = new(few.dims[at].clone(), many.dims[at].clone());
                self.require(requirement, &|_, own| own.says(&few.places[at], &many.places[at]))?;
            }
            return Ok(());
        }
        let (Some(a), Some(b)) = (self.value(left), self.value(right)) else { return Ok(()) };
        // Of what a division leaves, both numbers say more than the rest.
        if let (Expr::Binary(Operator::Mod, sides), Expr::Number(0)) = (left, right)
            && let [whole, parts] = &**sides
            && let (Some(size), Some(count)) = (self.value(whole), self.value(parts))
        {
            return self.require(new(a, b), &|cx, own| {
                own.stated(multiple(&cx.wording(whole), &cx.wording(parts)), &[&size, &count])
            });
        }
        self.require(new(a, b), &|cx, own| own.says(cx.wording(left), cx.wording(right)))
    }

    /// `state` says it in terms of the operands.
    fn require(
        &mut self,
        requirement: Requirement,
        state: &dyn Fn(&Self, Requirement) -> Stated,
    ) -> Result<()> {
        // What constants break is this node's error, also where a node before it has broken the same.
        if requirement.verdict().unwrap_or_else(|| self.cx.b.graph.assumptions.contains(&requirement)) {
            return Ok(());
        }
        let stated = state(self, requirement);
        self.cx.b.require(stated)
    }

    fn is_variable(&self, name: &str) -> bool {
        !self.cx.has(name)
    }

    /// Dims that a name stands for, or those of an attribute that is a list.
    fn run(&self, name: &str) -> Option<Run> {
        if let Some(run) = self.runs.get(name) {
            return Some(run.clone());
        }
        let Some(Attr::Ints(sizes)) = self.cx.attributes.get(name).filter(|_| self.cx.has(name)) else {
            return None;
        };
        // Some exporters write an empty list for what is not given.
        let places = sizes.iter().map(|size| format!("{size}, as {name} says")).collect();
        let dims: Vec<Dim> = sizes.iter().map(|&size| Dim::from(size)).collect();
        (!dims.is_empty()).then_some(Run { dims, places })
    }

    /// What an expression is, where all that it mentions is given.
    fn value(&self, expr: &Expr<'_>) -> Option<Dim> {
        match expr {
            Expr::Number(number) => Some(Dim::from(*number)),
            Expr::Name(name) if self.cx.has(name) => {
                match (self.cx.attributes.get(*name), self.default(name)) {
                    (Some(Attr::Int(number)), _) => Some(Dim::from(*number)),
                    (None, Some(AttrDefault::Int(number))) => Some(Dim::from(number)),
                    _ => None,
                }
            }
            Expr::Name(name) => self.dims.get(*name).map(|bound| bound.dim.clone()),
            Expr::Rank(name) => Some(Dim::from(self.cx.b.rank(*self.values(name).first()?))),
            Expr::Count(name) => Some(product(&self.cx.b.shape(*self.values(name).first()?))),
            Expr::Len(name) => match self.cx.attributes.get(*name).filter(|_| self.cx.has(name)) {
                Some(Attr::Floats(list)) => Some(Dim::from(list.len())),
                _ => self.run(name).map(|run| Dim::from(run.dims.len())),
            },
            Expr::Prod(name) => self.run(name).map(|run| product(&run.dims)),
            Expr::Binary(operator, sides) => {
                let [left, right] = &**sides;
                let (left, right) = (self.value(left), self.value(right));
                if *operator == Operator::Else {
                    return left.or(right);
                }
                let (left, right) = (left?, right?);
                match operator {
                    Operator::Add => Some(left + right),
                    Operator::Sub => Some(left - right),
                    Operator::Mul => Some(left * right),
                    Operator::Div => left.floor_div(&right),
                    Operator::Mod => left.modulo(&right),
                    Operator::Ceil => left.ceil_div(&right),
                    Operator::Else => None,
                }
            }
        }
    }

    /// An expression in words: a lone name is where it was found.
    fn wording(&self, expr: &Expr<'_>) -> String {
        if let Expr::Name(name) = expr
            && let Some(bound) = self.dims.get(*name)
        {
            return bound.place.clone();
        }
        if let Expr::Name(name) = expr {
            return name.to_string();
        }
        let mut names = Vec::new();
        names_of(expr, &mut names);
        let meanings = names.into_iter().filter_map(|name| {
            if self.cx.has(name) {
                return self.value(&Expr::Name(name)).map(|value| format!("{name} is {value}"));
            }
            self.dims.get(name).map(|bound| format!("{name} is {}", bound.place))
        });
        let meanings: Vec<String> = meanings.collect();
        match meanings.is_empty() {
            true => expr.to_string(),
            false => format!("{expr} ({})", meanings.join(", ")),
        }
    }
}

/// That `whole` is not a multiple of `parts`.
fn multiple(whole: &str, parts: &str) -> String {
    format!("{whole} is {V}; it must be a multiple of {parts}, which is {V}")
}

/// The names that an expression mentions, each once.
fn names_of<'e>(expr: &Expr<'e>, names: &mut Vec<&'e str>) {
    match expr {
        Expr::Name(name) if !names.contains(name) => names.push(name),
        Expr::Binary(_, sides) => sides.iter().for_each(|side| names_of(side, names)),
        _ => {}
    }
}
