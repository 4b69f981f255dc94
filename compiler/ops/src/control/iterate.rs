//! Loops: a body whose inputs are what one iteration hands to the next, as an [`Op::Scan`].
//!
//! A body is imported with the types of the first iteration. Where it hands on something of another size, that size is
//! no longer part of the type: it becomes a symbol of the body, which a vector of sizes defines that is handed on like
//! the values themselves.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::results::{give_types, of_output, results_of};
use super::{inside, is_outer};
use crate::Body;
use crate::Subgraph;
use crate::item::{ItemType, Layout, columns};
use crate::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::op::Shapes;
use onnxc_ir::graph::{Constant, DataSymbol, Def, Input, Op, Sym, Tensor, TensorType, Value};

/// A loop about to be emitted.
pub struct Iteration {
    /// Inputs: leading ones, states, slices of what is scanned, captures. Outputs: leading ones, states, parts of what is
    /// stacked.
    pub body: Body,
    /// What the states are the columns of.
    layouts: Vec<Layout>,
    /// What the body gives for them.
    given: Vec<Layout>,
    states: Vec<ValueId>,
    lead: usize,
    scans: usize,
    /// Sizes of states that change, by state and axis.
    changing: BTreeMap<(usize, usize), Sym>,
    /// Symbols that there were before the body.
    outer: usize,
}

/// What is known of the results that gather a part from each iteration.
pub struct Stack {
    /// The leading state that counts iterations, where their number is not the trip count.
    pub count: Option<usize>,
    /// What it is at most.
    pub bound: Option<Dim>,
    /// Which of them grow at their front.
    pub first: Vec<bool>,
}

/// A state that the loop itself needs: its first value, its input in the body, and the next value.
pub type Leading = (ValueId, ValueId, ValueId);

/// Imports a body whose states keep their types.
pub fn import(
    cx: &mut NodeCx<'_, '_>,
    body: &Subgraph,
    lead: &[TensorType],
    states: &[TensorType],
    elements: &[TensorType],
) -> Result<Body> {
    let types: Vec<ItemType> = [lead, states, elements].concat().into_iter().map(ItemType::from).collect();
    let mut imported = cx.body(body, &types)?;
    require_tensors(&imported.results)?;
    if imported.iteration.is_some() {
        return unsupported("random numbers in the body of a Scan of opset 8");
    }
    for (at, state) in states.iter().enumerate() {
        let (_, value) = imported.graph.outputs[at];
        require_same(body, [lead.len() + at, at], at, state, imported.graph.ty(value))?;
        let next = inside(cx, &mut imported.graph, |b| as_type(b, value, &state.shape))?;
        imported.graph.outputs[at].1 = next;
    }
    Ok(imported)
}

/// The `next` value of loop-carried value `number` has the element type and the rank of the one that the body takes. `places` are
/// those of the two among the inputs and the outputs of the body.
fn require_same(
    body: &Subgraph,
    places: [usize; 2],
    number: usize,
    ty: &TensorType,
    next: &TensorType,
) -> Result<()> {
    let name = |names: Vec<&str>, at: usize| names.get(at).copied().unwrap_or_default().to_string();
    let (taken, given) = (name(body.input_names(), places[0]), name(body.output_names(), places[1]));
    let text = format!(
        "loop-carried value {number}: the body takes `{taken}` as {ty} and gives `{given}` for it, {next}"
    );
    if next.dtype != ty.dtype {
        return malformed(format!("{text}; its element type must stay the same"));
    }
    if next.rank() != ty.rank() {
        return unsupported(format!("{text}; its rank must stay the same (an axis may have size 1)"));
    }
    Ok(())
}

/// What a loop gathers, and its condition, are tensors.
fn require_tensors(results: &[Layout]) -> Result<()> {
    match results.iter().find(|layout| **layout != Layout::Tensor) {
        Some(other) => malformed(format!("the body gives {} where a tensor is due", other.kind())),
        None => Ok(()),
    }
}

impl Iteration {
    /// Imports the body of a loop over `states`, after leading inputs of the types `lead`, with slices of the types
    /// `elements`. One leading output, or none, goes before the states.
    pub fn new(
        cx: &mut NodeCx<'_, '_>,
        proto: &Subgraph,
        lead: &[TensorType],
        states: &[Item],
        elements: &[TensorType],
    ) -> Result<Iteration> {
        let first = usize::from(!lead.is_empty());
        let outer = cx.b.graph.symbols.len();
        let mut states = states.iter().map(|state| state.packed(cx.b)).collect::<Result<Vec<Item>>>()?;
        let mut changing = BTreeMap::new();
        let mut types: Vec<ItemType> = states.iter().map(|state| ItemType::of(cx.b, state)).collect();
        loop {
            let tensors =
                |types: &[TensorType]| types.iter().cloned().map(ItemType::from).collect::<Vec<_>>();
            let mut body = cx.body(proto, &[tensors(lead), types.clone(), tensors(elements)].concat())?;
            let results = results_of(&body);
            require_tensors(&body.results[..first])?;
            require_tensors(&body.results[(first + states.len()).min(results.len())..])?;
            // What the states are comes first: a value that can be each of what two iterations give.
            let mut joined = vec![];
            for (at, (ty, next)) in types.iter().zip(&results[first..]).enumerate() {
                joined.push(match (&ty.layout, &next.layout) {
                    (Layout::Tensor, Layout::Tensor) => ty.clone(),
                    _ => {
                        let stays = |dim: &Dim| is_outer(dim, outer);
                        ty.join(next, &stays).map_err(|error| of_output(first + at, error))?
                    }
                });
            }
            if joined.iter().zip(&types).any(|(joined, ty)| joined.layout != ty.layout) {
                for (state, to) in states.iter_mut().zip(&joined) {
                    *state = state.convert(cx.b, to)?;
                }
                types = states.iter().map(|state| ItemType::of(cx.b, state)).collect();
                changing.clear();
                continue;
            }
            let given = results[first..].iter().map(|ty| ty.layout.clone()).take(states.len()).collect();
            give_types(cx, &mut body, first, &types)?;
            let mut settled = true;
            let columns_of = types
                .iter_mut()
                .enumerate()
                .flat_map(|(state, ty)| ty.columns.iter_mut().map(move |column| (state, column)));
            for (at, (state, ty)) in columns_of.enumerate() {
                let next = body.graph.ty(body.graph.outputs[first + at].1);
                require_same(proto, [lead.len() + state, first + state], state, ty, next)?;
                for (axis, next) in next.shape.iter().enumerate() {
                    if ty.shape[axis] != *next && !changing.contains_key(&(at, axis)) {
                        let sym = cx.b.fresh_symbol();
                        changing.insert((at, axis), sym);
                        ty.shape[axis] = Dim::sym(sym);
                        settled = false;
                    }
                }
            }
            if settled {
                let (lead, scans) = (lead.len(), elements.len());
                let layouts = states.iter().map(Item::layout).collect();
                let states = columns(&states);
                return Ok(Iteration { body, layouts, given, states, lead, scans, changing, outer });
            }
        }
    }

    /// What the results of [`Iteration::emit`] are the columns of.
    pub fn layouts(&self) -> Vec<Layout> {
        let stacks = self.body.graph.outputs.len().saturating_sub(self.states.len());
        self.layouts.iter().cloned().chain(vec![Layout::Tensor; stacks]).collect()
    }

    /// What the body gives as the next states.
    pub fn given(&self) -> Vec<Layout> {
        self.given.clone()
    }

    /// Makes an input of the body a constant.
    pub fn fix(&mut self, input: ValueId, tensor: Tensor) {
        let value = &mut self.body.graph.values[input];
        value.def = Def::Const(Constant::Data(tensor));
        self.drop_input(input);
    }

    /// Removes a leading input that nothing reads, or that is something else now.
    pub fn drop_input(&mut self, input: ValueId) {
        self.body.graph.inputs.retain(|other| other.value != input);
        self.lead -= 1;
    }

    /// An input that comes before all others.
    pub fn new_input(&mut self, ty: TensorType) -> ValueId {
        let graph = &mut self.body.graph;
        let value = graph.values.push(Value { name: String::new(), ty, def: Def::Input(0), known: None });
        graph.inputs.insert(0, Input { name: String::new(), value, default: None });
        self.lead += 1;
        value
    }

    /// The leading state that counts iterations from `zero`; `number` is its input.
    pub fn count(&mut self, cx: &mut NodeCx<'_, '_>, zero: ValueId, number: ValueId) -> Result<Leading> {
        if let Some(iteration) = self.body.iteration {
            self.body.graph.data.insert(iteration, DataSymbol::new(number, 0, None));
        }
        let next = inside(cx, &mut self.body.graph, |b| b.binary_scalar(BinaryFn::Add, number, 1.0))?;
        Ok((zero, number, next))
    }

    /// Whether the body asks for the number of the iteration.
    pub fn is_numbered(&self) -> bool {
        self.body.iteration.is_some()
    }

    /// Whether the parts of some stacked result have a size that only the body determines.
    pub fn has_parts_of_own_size(&self) -> bool {
        let graph = &self.body.graph;
        let parts = &graph.outputs[graph.outputs.len().min(self.states.len())..];
        parts.iter().flat_map(|(_, value)| &graph.ty(*value).shape).any(|dim| !is_outer(dim, self.outer))
    }

    /// The loop: final states (without the leading ones), then stacked results. The first of `leading` is the condition
    /// of a `conditional` loop; the last counts iterations where there are stacked parts of their own size.
    pub fn emit(
        mut self,
        cx: &mut NodeCx<'_, '_>,
        leading: Vec<Leading>,
        trip: Dim,
        conditional: bool,
        scans: &[(ValueId, bool)],
        stack: Stack,
    ) -> Result<Vec<ValueId>> {
        let mut shapes = Shapes::new();
        let mut symbols: Vec<DataSymbolOf> = vec![];
        let inputs: Vec<ValueId> = self.body.graph.inputs.iter().map(|input| input.value).collect();
        let (carried, rest) = inputs[self.lead..].split_at(self.states.len());
        let (slices, captured) = rest.split_at(self.scans);
        let parts = self.body.graph.outputs.split_off(self.states.len());
        let next = std::mem::take(&mut self.body.graph.outputs);

        let mut initial: Vec<ValueId> = leading.iter().map(|state| state.0).collect();
        let mut taken: Vec<ValueId> = leading.iter().map(|state| state.1).collect();
        let mut given: Vec<ValueId> = leading.iter().map(|state| state.2).collect();
        let before = leading.len();
        initial.extend(&self.states);
        taken.extend(carried);
        given.extend(next.iter().map(|output| output.1));

        if !self.changing.is_empty() {
            let (sizes, input, output) = self.changing_sizes(cx, &next)?;
            for &(state, axis) in self.changing.keys() {
                let number = before + state;
                let sym = cx.b.fresh_symbol();
                let shape = shapes.entry(number).or_insert_with(|| cx.b.shape(self.states[state]));
                shape[axis] = Dim::sym(sym);
                symbols.push(DataSymbolOf { sym, state: initial.len(), element: symbols.len(), bound: None });
            }
            initial.push(sizes);
            taken.push(input);
            given.push(output);
        }
        let counter = leading.last().map(|state| state.1);
        let part_shapes: Vec<Vec<Dim>> =
            parts.iter().map(|(_, value)| self.body.graph.ty(*value).shape.clone()).collect();
        let mut own = vec![];
        for (at, shape) in part_shapes.iter().enumerate() {
            let axes = shape.iter().enumerate().filter(|(_, dim)| !is_outer(dim, self.outer));
            own.extend(axes.map(|(axis, dim)| (at, axis, dim.clone())));
        }
        let first_part = initial.len() + usize::from(!own.is_empty());
        let length = match stack.count {
            Some(state) => {
                let sym = cx.b.fresh_symbol();
                symbols.push(DataSymbolOf { sym, state, element: 0, bound: stack.bound });
                Dim::sym(sym)
            }
            None => trip.clone(),
        };
        let stacked = |part: usize| -> Vec<Dim> {
            std::iter::once(&length).chain(&part_shapes[part]).cloned().collect()
        };
        if let (false, Some(counter)) = (own.is_empty(), counter) {
            let dims: Vec<Dim> = own.iter().map(|part| part.2.clone()).collect();
            let (input, output) = inside(cx, &mut self.body.graph, |b| same_sizes(b, counter, dims))?;
            for (element, (part, axis, _)) in own.iter().enumerate() {
                let sym = cx.b.fresh_symbol();
                let shape = shapes.entry(first_part + part).or_insert_with(|| stacked(*part));
                shape[1 + axis] = Dim::sym(sym);
                symbols.push(DataSymbolOf { sym, state: initial.len(), element, bound: None });
            }
            initial.push(cx.b.i64s(&vec![0; own.len()]));
            taken.push(input);
            given.push(output);
        }
        if stack.count.is_some() {
            for part in 0..parts.len() {
                shapes.entry(first_part + part).or_insert_with(|| stacked(part));
            }
        }

        // A result that grows while it runs does so at its end.
        let mut first = stack.first;
        let own_size = |part: usize| own.iter().any(|own| own.0 == part);
        let flipped: Vec<usize> =
            (0..parts.len()).filter(|&part| own_size(part) && std::mem::take(&mut first[part])).collect();
        let graph = &mut self.body.graph;
        let count = initial.len();
        taken.extend(slices);
        taken.extend(captured);
        graph.set_inputs(&taken);
        graph.outputs = given.into_iter().map(|value| (String::new(), value)).chain(parts).collect();
        let operands: Vec<ValueId> = initial
            .into_iter()
            .chain(scans.iter().map(|scan| scan.0))
            .chain(self.body.captures.iter().copied())
            .collect();
        let op = Op::Scan {
            body: Arc::new(self.body.graph),
            trip,
            conditional,
            states: count,
            scans: scans.len(),
            reverse: scans.iter().map(|scan| scan.1).chain(first).collect(),
            shapes,
        };
        let mut results = cx.b.emit(op, &operands)?;
        for DataSymbolOf { sym, state, element, bound } in symbols {
            cx.b.graph.define_symbol(sym, results[state], element, bound);
        }
        for part in flipped {
            let result = &mut results[count + part];
            let sizes = cx.b.shape(*result);
            let mut starts = vec![Dim::ZERO; sizes.len()];
            let mut steps = vec![1; sizes.len()];
            (starts[0], steps[0]) = (sizes[0].clone() - Dim::ONE, -1);
            *result = cx.b.emit1(Op::Slice { starts, steps, sizes }, &[*result])?;
        }
        let states = results[before..before + self.states.len()].iter();
        Ok(states.chain(&results[count..]).copied().collect())
    }

    /// The vector of the sizes that change: its first value, its input in the body, and its next value.
    fn changing_sizes(
        &mut self,
        cx: &mut NodeCx<'_, '_>,
        next: &[(String, ValueId)],
    ) -> Result<(ValueId, ValueId, ValueId)> {
        let keys: Vec<(usize, usize)> = self.changing.keys().copied().collect();
        let first: Vec<Dim> =
            keys.iter().map(|&(state, axis)| cx.b.shape(self.states[state])[axis].clone()).collect();
        let first = cx.b.emit1(Op::DimValues { dims: first }, &[])?;
        let graph = &mut self.body.graph;
        let dims: Vec<Dim> =
            keys.iter().map(|&(state, axis)| graph.ty(next[state].1).shape[axis].clone()).collect();
        let (input, output) = inside(cx, graph, |b| {
            let ty = TensorType::new(DType::I64, vec![Dim::from(dims.len())]);
            Ok((b.input("", ty, None), b.emit1(Op::DimValues { dims }, &[])?))
        })?;
        for (element, &sym) in self.changing.values().enumerate() {
            self.body.graph.data.insert(sym, DataSymbol::new(input, element, None));
        }
        Ok((first, input, output))
    }
}

/// A symbol that an element of a final state defines.
struct DataSymbolOf {
    sym: Sym,
    state: usize,
    element: usize,
    bound: Option<Dim>,
}

/// A state of sizes that must be the same in every iteration: the sizes of the first one, and -1, never a size, once another one differs.
/// Gives its input and its next value.
fn same_sizes(b: &mut Builder<'_>, counter: ValueId, dims: Vec<Dim>) -> Result<(ValueId, ValueId)> {
    let state = b.input("", TensorType::new(DType::I64, vec![Dim::from(dims.len())]), None);
    let now = b.emit1(Op::DimValues { dims }, &[])?;
    let zero = b.scalar(DType::I64, 0.0);
    let counter = b.reshape(counter, vec![])?;
    let is_first = b.compare(CompareFn::Eq, counter, zero)?;
    let is_same = b.compare(CompareFn::Eq, now, state)?;
    let wrong = b.scalar(DType::I64, -1.0);
    let kept = b.select(is_same, now, wrong)?;
    Ok((state, b.select(is_first, now, kept)?))
}

/// `value` under `shape`, which must have the same rank; whether the sizes are equal shows when the model runs.
pub fn as_type(b: &mut Builder<'_>, value: ValueId, shape: &[Dim]) -> Result<ValueId> {
    let own = b.shape(value);
    if own == shape {
        return Ok(value);
    }
    let fits = own.len() == shape.len()
        && own.iter().zip(shape).all(|(a, b)| !(a.is_const() && b.is_const()) || a == b);
    if !fits {
        return malformed(format!("{} where {shape:?} is due", b.ty(value)));
    }
    for (axis, (a, wanted)) in own.iter().zip(shape).enumerate() {
        let name = format!("dimension {axis} of what an iteration gives");
        b.assume(Requirement::equal(a.clone(), wanted.clone()).says(name, "that of what it began with"));
    }
    b.reshape(value, shape.to_vec())
}
