//! Elements of integer tensors as dims: constants and dims where they are known when the graph is built, else
//! symbols that data define.

use std::sync::Arc;

use crate::build::Builder;
use crate::error::{Error, Result, Stage};
use crate::graph::claim::{Operand, V};
use crate::graph::data::Says;
use crate::graph::dim::overgrown;
use crate::graph::{DType, DataSymbol, Dim, MAX_KNOWN, MapFn, Op, Requirement, TensorType, ValueId};
use crate::scalar::{BinaryFn, UnaryFn};

/// Operations of movement that an element is followed through.
const MAX_TRACE: usize = 256;

/// Elements that decide sizes are read clamped to this magnitude, so that sums of a few never overflow. No size comes
/// near it.
const FAR: i64 = 1 << 61;

/// The error for a tensor of `ty` that has an element for each of an unknown number of axes.
pub fn unknown_count(ty: &TensorType) -> Error {
    let message = format!(
        "{ty} decides a shape: its number of elements must be known; pin the dim that it follows from (--input-dim), or \
         declare the rank of the result"
    );
    Error::unsupported(Stage::Infer, message)
}

/// What an element of an integer tensor is.
enum Element {
    Known(Dim),
    /// Element of an i64 value.
    Data(ValueId, usize),
}

impl Builder<'_> {
    /// Elements of an integer tensor as sizes. One known only at run time becomes a symbol, the same for the same element; the run fails if
    /// it is negative or above its `bound`. Elements known here are given as they are. Errors: the number of elements is unknown.
    pub fn sizes(&mut self, value: ValueId, bound: &dyn Fn(usize) -> Option<Dim>) -> Result<Vec<Dim>> {
        let (vector, count) = self.integer_elements(value)?;
        (0..count)
            .map(|at| match self.element(vector, at) {
                Element::Known(dim) => Ok(dim),
                Element::Data(source, element) => {
                    let says = self.says_of_element(value, at);
                    self.bind((source, element), bound(at), says)
                }
            })
            .collect()
    }

    /// Lets the sizes that `make` defines by data say this where they are negative or beyond their bound, after the name of
    /// the node. Without it they are named by the operand whose elements they are.
    pub fn saying<T>(&mut self, says: Says, make: impl FnOnce(&mut Self) -> T) -> T {
        let node = self.node_text();
        let placed = |text: Arc<str>| if node.is_empty() { text } else { format!("{node}: {text}").into() };
        let says = match says {
            Says::Name(name) => Says::Name(placed(name)),
            Says::Text(text) => Says::Text(placed(text)),
        };
        let before = self.says.replace(says);
        let made = make(self);
        self.says = before;
        made
    }

    /// What messages call an operand of the ONNX node: the value itself, or one that it has the elements of.
    pub fn operand_text(&self, value: ValueId) -> Option<Arc<str>> {
        self.operand(value).map(|operand| operand.name.clone())
    }

    /// See [`Builder::operand_text`].
    pub fn operand(&self, value: ValueId) -> Option<&Operand> {
        let mut value = value;
        for _ in 0..MAX_TRACE {
            if let Some((_, found)) = self.operands.iter().find(|(operand, _)| *operand == value) {
                return Some(found);
            }
            let node = &self.graph.nodes[self.graph.producer(value)?];
            value = match &node.op {
                Op::Reshape { .. } | Op::Map(MapFn::Cast { .. }) => node.inputs[0],
                _ => return None,
            };
        }
        None
    }

    /// The name of an element of a tensor of integers, of an operand of the ONNX node or of what was moved out of one.
    pub fn element_text(&self, mut value: ValueId, mut at: usize) -> Option<String> {
        for _ in 0..MAX_TRACE {
            if let Some((_, Operand { name, .. })) =
                self.operands.iter().find(|(operand, _)| *operand == value)
            {
                let is_one = self.ty(value).elements() == Dim::ONE;
                return Some(if is_one { name.to_string() } else { format!("element {at} of {name}") });
            }
            (value, at) = self.moved_from(value, at)?;
        }
        None
    }

    fn says_of_element(&self, value: ValueId, at: usize) -> Option<Says> {
        if self.says.is_some() {
            return self.says.clone();
        }
        let (node, name) = (self.node_text(), self.element_text(value, at));
        let name = name.unwrap_or_else(|| "a size that the data of its operands decide".to_string());
        (!node.is_empty()).then(|| Says::Name(format!("{node}: {name}").into()))
    }

    /// Elements of an integer tensor, as far as they are known now.
    pub fn known_elements(&mut self, value: ValueId) -> Result<Vec<Option<Dim>>> {
        let (value, count) = self.integer_elements(value)?;
        let known = |at: usize| match self.element(value, at) {
            Element::Known(dim) => Some(dim),
            Element::Data(..) => None,
        };
        Ok((0..count).map(known).collect())
    }

    /// Elements of an integer tensor, of either sign: one known only at run time is the difference of two symbols, and one of the two is 0.
    pub fn integers(&mut self, value: ValueId) -> Result<Vec<Dim>> {
        let (value, count) = self.integer_elements(value)?;
        let mut parts = None;
        let mut dims = Vec::with_capacity(count);
        for at in 0..count {
            let dim = match self.element(value, at) {
                Element::Known(dim) => dim,
                Element::Data(source, element) => match self.bound_symbol(source, element) {
                    Some(dim) => dim,
                    None => {
                        let (positive, negative) = match parts {
                            Some(parts) => parts,
                            None => *parts.insert(self.signed_parts(value)?),
                        };
                        self.bind((positive, at), None, None)? - self.bind((negative, at), None, None)?
                    }
                },
            };
            dims.push(dim);
        }
        Ok(dims)
    }

    /// Dims as symbols of their own where they mention several symbols of data: later arithmetic stays short. Dim `at`
    /// must not be negative, and at most `bound(at)`; a run in which it is not so fails.
    pub fn named(&mut self, dims: &[Dim], bound: &dyn Fn(usize) -> Option<Dim>) -> Result<Vec<Dim>> {
        let is_formula = |dim: &Dim| dim.as_sym().is_none() && self.graph.is_data_dim(dim);
        let formulas: Vec<Dim> = dims.iter().filter(|dim| is_formula(dim)).cloned().collect();
        if formulas.is_empty() {
            return Ok(dims.to_vec());
        }
        let keep: Vec<bool> = dims.iter().map(|dim| !is_formula(dim)).collect();
        let vector = self.emit1(Op::DimValues { dims: formulas }, &[])?;
        let mut next = 0..;
        let mut name = |at: usize, dim: &Dim| match keep[at] {
            true => Ok(dim.clone()),
            false => {
                let says = self.says_of_element(vector, at);
                self.bind((vector, next.next().unwrap_or_default()), bound(at), says)
            }
        };
        dims.iter().enumerate().map(|(at, dim)| name(at, dim)).collect()
    }

    /// i64 scalars as sizes; see [`Builder::sizes`].
    pub fn scalar_sizes(
        &mut self,
        scalars: &[ValueId],
        bound: &dyn Fn(usize) -> Option<Dim>,
    ) -> Result<Vec<Dim>> {
        let rows = scalars.iter().map(|&scalar| self.reshape(scalar, vec![Dim::ONE]));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        match rows.is_empty() {
            true => Ok(vec![]),
            false => {
                let vector = self.concat(&rows, 0)?;
                self.sizes(vector, bound)
            }
        }
    }

    /// A tensor as an i64 scalar or vector, and the number of its elements.
    fn integer_elements(&mut self, value: ValueId) -> Result<(ValueId, usize)> {
        let ty = self.ty(value).clone();
        let count = ty.static_shape().map(|shape| shape.iter().product::<usize>());
        let Some(count) = count.filter(|&count| count <= MAX_KNOWN) else {
            return Err(unknown_count(&ty));
        };
        let value = self.cast(value, DType::I64)?;
        let value = match self.rank(value) {
            0 | 1 => value,
            _ => self.reshape(value, vec![Dim::from(count)])?,
        };
        Ok((value, count))
    }

    /// Follows an element through movement to something known, or as far as it is an element of an i64 scalar or
    /// vector.
    fn element(&self, mut value: ValueId, mut at: usize) -> Element {
        let mut last = (value, at);
        for _ in 0..MAX_TRACE {
            if let Some(known) = self.known(value) {
                return known
                    .get(at)
                    .map_or(Element::Data(last.0, last.1), |dim| Element::Known(dim.clone()));
            }
            let is_vector = self.rank(value) <= 1 && self.ty(value).elements().is_const();
            if self.dtype(value) == DType::I64 && is_vector {
                last = (value, at);
            }
            match self.moved_from(value, at) {
                Some(source) => (value, at) = source,
                None => break,
            }
        }
        Element::Data(last.0, last.1)
    }

    /// The operand's element that an element of a moved value is, by flat position.
    fn moved_from(&self, value: ValueId, at: usize) -> Option<(ValueId, usize)> {
        let node = &self.graph.nodes[self.graph.producer(value)?];
        let shape = self.ty(value).static_shape()?;
        let source = *node.inputs.first()?;
        match &node.op {
            Op::Reshape { .. } => Some((source, at)),
            Op::Map(MapFn::Cast { .. }) => {
                let from = self.dtype(source);
                let widens = from.is_int() && from != DType::U64 && self.dtype(value) == DType::I64;
                widens.then_some((source, at))
            }
            Op::Concat { axis: 0 } if shape.len() == 1 => {
                let mut left = at;
                for &input in &node.inputs {
                    let length = self.ty(input).shape[0].as_const()? as usize;
                    match left.checked_sub(length) {
                        Some(rest) => left = rest,
                        None => return Some((input, left)),
                    }
                }
                None
            }
            Op::Slice { starts, steps, .. } if shape.len() == 1 => {
                let position = starts[0].as_const()?.checked_add((at as i64).checked_mul(steps[0])?)?;
                Some((source, usize::try_from(position).ok()?))
            }
            Op::Gather { axis: 0 } if self.rank(source) == 1 => {
                let size = self.ty(source).shape[0].as_const()?;
                let pick = self.known(node.inputs[1])?.get(at)?.as_const()?;
                let pick = if pick < 0 { pick + size } else { pick };
                usize::try_from(pick).ok().filter(|&pick| (pick as i64) < size).map(|pick| (source, pick))
            }
            _ => None,
        }
    }

    fn bound_symbol(&self, value: ValueId, element: usize) -> Option<Dim> {
        let same = |symbol: &DataSymbol| symbol.value == value && symbol.element == element;
        self.graph.data.iter().find(|(_, symbol)| same(symbol)).map(|(&sym, _)| Dim::sym(sym))
    }

    /// The symbol of an element of an i64 scalar or vector.
    fn bind(
        &mut self,
        (value, element): (ValueId, usize),
        bound: Option<Dim>,
        says: Option<Says>,
    ) -> Result<Dim> {
        if let Some(dim) = self.bound_symbol(value, element) {
            if let Some(bound) = bound {
                let requirement = Requirement::at_most(dim.clone(), bound.clone());
                let name = self.element_text(value, element);
                let name = name.unwrap_or_else(|| "a size that the data of its operands decide".to_string());
                let text = format!("{name} is {V}; it must be between 0 and {V}");
                self.assume(requirement.stated(text, &[&dim, &bound]));
            }
            return Ok(dim);
        }
        if bound.as_ref().is_some_and(Dim::is_overgrown) {
            return Err(overgrown(Stage::Infer, "the bound of a size that data decides"));
        }
        let sym = self.fresh_symbol();
        self.graph.define_symbol(sym, value, element, bound);
        if let Some(symbol) = self.graph.data.get_mut(&sym) {
            symbol.says = says;
        }
        Ok(Dim::sym(sym))
    }

    /// `max(x, 0)` and `max(-x, 0)`.
    fn signed_parts(&mut self, x: ValueId) -> Result<(ValueId, ValueId)> {
        let near = self.binary_scalar(BinaryFn::Min, x, FAR as f64)?;
        let near = self.binary_scalar(BinaryFn::Max, near, -FAR as f64)?;
        let positive = self.binary_scalar(BinaryFn::Max, near, 0.0)?;
        let negated = self.unary(UnaryFn::Neg, near)?;
        Ok((positive, self.binary_scalar(BinaryFn::Max, negated, 0.0)?))
    }
}
