//! Symbols that data define: a size that follows from no dim of an input is an element of an i64 vector, read once the
//! vector has been computed.
//!
//! Such a symbol is used in types and operations as any other. What mentions it can only run after the vector:
//! [`Graph::needs`] lists the vectors behind a node, and all code that orders, drops or moves nodes uses it. A body
//! shares the symbols of the graphs around it but not their definitions: theirs have values when the body runs.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::graph::claim::V;
use crate::graph::dim::Sym;
use crate::graph::{Dim, Graph, NodeId, Relation, Requirement, ValueId};

/// Definition of a symbol by data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataSymbol {
    /// An i64 scalar or vector.
    pub value: ValueId,
    pub element: usize,
    /// What the element may be at most, in symbols of lower numbers; a run in which it is more, or negative, fails.
    pub bound: Option<Dim>,
    /// What such a run says.
    pub says: Option<Says>,
}

/// What a run says in which a size that data decide is negative, or more than its bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Says {
    /// Its value and its bounds. The text names it, with the node that needs it: ``node `r` (Reshape): element 1 of shape `s` ``.
    Name(Arc<str>),
    /// All that there is to say, of a size that is -1 where something else is wrong.
    Text(Arc<str>),
}

impl DataSymbol {
    /// The symbol of a size that is right by construction.
    pub fn new(value: ValueId, element: usize, bound: Option<Dim>) -> DataSymbol {
        DataSymbol { value, element, bound, says: None }
    }

    /// What a run says in which the size is wrong: [`V`] stands for the size, and then for its bound.
    pub fn sentence(&self, node: &str) -> String {
        let name = match &self.says {
            Some(Says::Text(text)) => return text.to_string(),
            Some(Says::Name(name)) => name,
            None => node,
        };
        let name = if name.is_empty() { "a size that data decide" } else { name };
        match &self.bound {
            Some(_) => format!("{name} is {V}; it must be between 0 and {V}"),
            None => format!("{name} is {V}; it must be 0 or more"),
        }
    }
}

/// Symbols that a bound may lead to, by bounds of those it mentions. Whoever asks for all symbols behind a node visits these.
const MAX_BEHIND_BOUND: usize = 16;

impl Graph {
    /// Lets data define a symbol, without its bound where that leads too far.
    pub fn define_symbol(&mut self, sym: Sym, value: ValueId, element: usize, bound: Option<Dim>) {
        let bound = bound.filter(|bound| self.data_symbols_of(bound).len() <= MAX_BEHIND_BOUND);
        self.data.insert(sym, DataSymbol::new(value, element, bound));
    }

    /// The data symbols that a node mentions in its operation, in the types of its operands and results or in a body, whose
    /// assumptions count, and those that their bounds mention; those that other results of control flow define are not among them.
    pub fn data_symbols(&self, node: NodeId) -> BTreeSet<Sym> {
        let mut found = BTreeSet::new();
        if self.data.is_empty() {
            return found;
        }
        let mut note = |dim: &Dim| {
            dim.visit_symbols(&mut |sym| {
                if self.data.contains_key(&sym) {
                    found.insert(sym);
                }
            })
        };
        let node = &self.nodes[node];
        node.inputs
            .iter()
            .chain(&node.outputs)
            .flat_map(|&output| &self.ty(output).shape)
            .for_each(&mut note);
        node.op.dims().into_iter().for_each(&mut note);
        let mut bodies: Vec<&Graph> = node.op.bodies().iter().collect();
        while let Some(body) = bodies.pop() {
            body.inputs.iter().flat_map(|input| &body.ty(input.value).shape).for_each(&mut note);
            for &inner in &body.order {
                let inner = &body.nodes[inner];
                inner.outputs.iter().flat_map(|&output| &body.ty(output).shape).for_each(&mut note);
                inner.op.dims().into_iter().for_each(&mut note);
                bodies.extend(inner.op.bodies());
            }
            body.data.values().filter_map(|symbol| symbol.bound.as_ref()).for_each(&mut note);
            body.assumptions.iter().for_each(|own| own.visit_dims(&mut note));
        }
        found.retain(|sym| !node.op.is_control() || !node.outputs.contains(&self.data[sym].value));
        self.close(found)
    }

    /// The data symbols of a dim, and those that their bounds mention.
    pub fn data_symbols_of(&self, dim: &Dim) -> BTreeSet<Sym> {
        let mut found = BTreeSet::new();
        if !self.data.is_empty() {
            dim.visit_symbols(&mut |sym| {
                if self.data.contains_key(&sym) {
                    found.insert(sym);
                }
            });
        }
        self.close(found)
    }

    fn close(&self, mut found: BTreeSet<Sym>) -> BTreeSet<Sym> {
        let mut open: Vec<Sym> = found.iter().copied().collect();
        while let Some(bound) = open.pop().and_then(|sym| self.data[&sym].bound.as_ref()) {
            bound.visit_symbols(&mut |sym| {
                if self.data.contains_key(&sym) && found.insert(sym) {
                    open.push(sym);
                }
            });
        }
        found
    }

    /// Whether a dim mentions a data symbol.
    pub fn is_data_dim(&self, dim: &Dim) -> bool {
        let mut found = false;
        dim.visit_symbols(&mut |sym| found |= self.data.contains_key(&sym));
        found
    }

    /// Values that must have been computed before a node runs, besides its operands: those that define its data
    /// symbols.
    pub fn needs(&self, node: NodeId) -> Vec<ValueId> {
        let mut values: Vec<ValueId> =
            self.data_symbols(node).iter().map(|sym| self.data[sym].value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Values that must have been computed before the outputs have shapes and all assumptions are checked.
    pub fn output_needs(&self) -> Vec<ValueId> {
        self.result_symbols().map(|sym| self.data[&sym].value).chain(self.last_token()).collect()
    }

    /// The data symbols that the types and ranks of outputs and the assumptions mention.
    fn result_symbols(&self) -> impl Iterator<Item = Sym> {
        let mut symbols = BTreeSet::new();
        if !self.data.is_empty() {
            let mut note = |dim: &Dim| symbols.extend(self.data_symbols_of(dim));
            self.outputs.iter().flat_map(|(_, value)| &self.ty(*value).shape).for_each(&mut note);
            self.any_rank.values().for_each(|own| note(&own.rank));
            self.assumptions.iter().for_each(|own| own.visit_dims(&mut note));
        }
        symbols.into_iter()
    }

    /// The data symbols that nodes, the types of outputs and the assumptions mention.
    pub fn live_data_symbols(&self) -> BTreeSet<Sym> {
        self.data_symbols_with(&self.order)
    }

    /// As [`Graph::live_data_symbols`], where only these nodes run.
    pub fn data_symbols_with(&self, nodes: &[NodeId]) -> BTreeSet<Sym> {
        if self.data.is_empty() {
            return BTreeSet::new();
        }
        let nodes = nodes.iter().flat_map(|&node| self.data_symbols(node));
        nodes.chain(self.result_symbols()).collect()
    }

    /// Whether a value's shape is known only once it is computed: other results of its node define it.
    pub fn is_late(&self, value: ValueId) -> bool {
        let Some(node) = self.producer(value).map(|node| &self.nodes[node]) else { return false };
        let mut found = false;
        let mut note = |sym: Sym| {
            found |= self.data.get(&sym).is_some_and(|symbol| node.outputs.contains(&symbol.value));
        };
        if node.op.is_control() && !self.data.is_empty() {
            self.ty(value).shape.iter().for_each(|dim| dim.visit_symbols(&mut note));
        }
        found
    }

    /// Values that define live data symbols, each once, by number.
    pub fn data_sources(&self) -> Vec<ValueId> {
        let sources: BTreeSet<ValueId> =
            self.live_data_symbols().iter().map(|sym| self.data[sym].value).collect();
        sources.into_iter().collect()
    }

    /// Redefines the symbols of replaced values by their replacements.
    pub fn replace_data_sources(&mut self, with: impl Fn(ValueId) -> Option<ValueId>) {
        for symbol in self.data.values_mut() {
            if let Some(new) = with(symbol.value) {
                symbol.value = new;
            }
        }
    }
}

/// Terms of a bound beyond which it is no longer worth having.
const MAX_TERMS: usize = 256;

/// Bytes that the workspace always holds for what data size, where they bound it.
const ALWAYS_RESERVED: i64 = 64 << 20;

/// A larger bound is reserved while it is at most this many times the largest tensor whose size follows from the inputs.
const RESERVED_PER_KNOWN: i64 = 8;

/// What symbols of the inputs are taken to be where bounds are compared: large, so that the degree of a bound counts.
const LARGE: i64 = 4096;

/// Upper bounds of dims in symbols of the inputs.
pub struct Bounds<'g> {
    graph: &'g Graph,
    symbols: BTreeMap<Sym, Option<Dim>>,
    /// Products of symbols that an assumption limits by a size in symbols of the inputs, as in the result of a reshape.
    products: Vec<(Dim, Dim)>,
    /// See [`Bounds::largest_known`].
    largest_known: OnceCell<i64>,
}

impl<'g> Bounds<'g> {
    pub fn new(graph: &'g Graph) -> Bounds<'g> {
        let (symbols, products) = (BTreeMap::new(), Vec::new());
        let mut bounds = Bounds { graph, symbols, products, largest_known: OnceCell::new() };
        // A bound mentions symbols of lower numbers only.
        for (&sym, symbol) in &graph.data {
            let bound = symbol.bound.as_ref().and_then(|bound| bounds.upper(bound));
            bounds.symbols.insert(sym, bound.filter(|bound| bound.terms().len() <= MAX_TERMS));
        }
        let limits = |own: &&Requirement| own.relation != Relation::Broadcasts && !graph.data.is_empty();
        for Requirement { left, relation, right } in graph.assumptions.requirements().filter(limits) {
            let back = (*relation == Relation::Equal).then_some((right, left));
            for (from, to) in [(left, right)].into_iter().chain(back) {
                if graph.is_data_dim(from) && !graph.is_data_dim(to) {
                    bounds.products.extend(single_term(from, to));
                }
            }
        }
        bounds
    }

    /// What a dim is at most; `None` where nothing bounds it.
    pub fn upper(&self, dim: &Dim) -> Option<Dim> {
        self.upper_within(dim, &self.products)
    }

    fn upper_within(&self, dim: &Dim, products: &[(Dim, Dim)]) -> Option<Dim> {
        if self.symbols.is_empty() {
            return Some(dim.clone());
        }
        let bound = |sym: Sym| self.symbols.get(&sym).cloned();
        let mut sum = Dim::ZERO;
        for (monomial, coefficient) in dim.terms() {
            let term = Dim::term(monomial, coefficient);
            // The whole of a product is tighter than the bounds of its factors.
            let product = |(part, whole): &(Dim, Dim)| {
                let rest = term.exact_div(part)?.upper(&bound)?;
                (coefficient > 0).then(|| rest * whole.clone())
            };
            sum = sum + products.iter().find_map(product).or_else(|| term.upper(&bound))?;
        }
        Some(sum)
    }

    /// The bytes that the workspace holds for what takes `bytes`: exactly these where they follow from the inputs, an upper bound where
    /// data decide. `None` for buffers that the run allocates once it knows the size: nothing bounds it, or the bound is out of proportion.
    /// Bounds multiply: of 10,000 candidates, pairs are 10^8 and triples 10^12, where a run
    /// may have a few.
    pub fn reserved(&self, bytes: &Dim) -> Option<Dim> {
        self.reserved_up_to(bytes, self.upper(bytes)?)
    }

    /// [`Bounds::reserved`] for a value. Of one that is late no assumption limits the bytes: it is checked once the bytes are
    /// written.
    pub fn reserved_for(&self, value: ValueId) -> Option<Dim> {
        let bytes = self.graph.ty(value).bytes();
        let products = if self.graph.is_late(value) { &[] } else { self.products.as_slice() };
        self.reserved_up_to(&bytes, self.upper_within(&bytes, products)?)
    }

    fn reserved_up_to(&self, bytes: &Dim, most: Dim) -> Option<Dim> {
        let limit = || ALWAYS_RESERVED.max(self.largest_known().saturating_mul(RESERVED_PER_KNOWN));
        let is_known = !self.graph.is_data_dim(bytes);
        (is_known || at_large(&most).is_some_and(|most| most <= limit())).then_some(most)
    }

    /// Bytes of the largest tensor of the graph whose size follows from the inputs.
    fn largest_known(&self) -> i64 {
        *self.largest_known.get_or_init(|| {
            let inputs = self.graph.inputs.iter().map(|input| input.value);
            let results = self.graph.order.iter().flat_map(|&node| &self.graph.nodes[node].outputs);
            let known = inputs.chain(results.copied()).filter_map(|value| {
                let ty = self.graph.ty(value);
                let by_data = ty.shape.iter().any(|dim| self.graph.is_data_dim(dim));
                if by_data { None } else { at_large(&ty.bytes()) }
            });
            known.max().unwrap_or(0)
        })
    }
}

/// A size where every symbol is [`LARGE`]; `None` where that exceeds 64 bits.
fn at_large(dim: &Dim) -> Option<i64> {
    dim.eval(&|_| Some(LARGE))
}

/// `from = c * product` gives the product and what it is at most: `to / c`.
fn single_term(from: &Dim, to: &Dim) -> Option<(Dim, Dim)> {
    let [(monomial, coefficient)] = <[_; 1]>::try_from(from.terms()).ok()?;
    let whole = to.floor_div(&Dim::from(coefficient)).filter(|_| coefficient > 0)?;
    let non_negative = Dim::term(monomial.clone(), 1).bounds().0.is_some_and(|low| low >= 0);
    non_negative.then(|| (Dim::term(monomial, 1), whole))
}
