//! If, Loop and Scan: bodies that see the values around them.

pub mod iterate;
mod results;
pub mod written;

use std::collections::HashMap;
use std::sync::Arc;

use self::iterate::{Iteration, Stack, as_type};
use self::results::{has_declared_ranks, may_differ_in_rank, same_layouts, same_ranks};
use super::dynamic::dims_vector;
use super::item::from_columns;
use super::optional::element_of;
use super::row::*;
use super::{AttrKind, Body, Fork};
use crate::Subgraph;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::op::Shapes;
use onnxc_ir::graph::{Bounds, Def, Graph, Op, Requirement, Sym, Tensor, TensorType, Value};

const CONDITION: Param = req("cond", "B");
const BRANCHES: &[AttrDef] =
    &[required("else_branch", AttrKind::Graph), required("then_branch", AttrKind::Graph)];
const V_INITIAL: Param = var("v_initial", "V");
const V_FINAL: Param = var("v_final_and_scan_outputs", "V");
const BODY: &[AttrDef] = &[required("body", AttrKind::Graph)];
const SCAN_INPUTS: &[Param] = &[var("initial_state_and_scan_inputs", "V")];
const SCAN_OUTPUTS: &[Param] = &[var("final_state_and_scan_outputs", "V")];
const SCAN: &[AttrDef] = &[
    optional("scan_input_axes", AttrKind::Ints),
    optional("scan_output_axes", AttrKind::Ints),
    optional("scan_output_directions", AttrKind::Ints),
    optional("scan_input_directions", AttrKind::Ints),
    required("num_scan_inputs", AttrKind::Int),
    required("body", AttrKind::Graph),
];

/// The parameters of a version of If, and of Loop, by the kinds that they may be of.
macro_rules! params {
    ($kinds:expr) => {
        (
            &[var("outputs", "V").of($kinds)],
            &[opt("M", "I"), opt("cond", "B"), V_INITIAL.of($kinds)],
            &[V_FINAL.of($kinds)],
        )
    };
}

type Params = (&'static [Param], &'static [Param], &'static [Param]);

const fn params(since: u32) -> Params {
    const TENSORS: Params = params!(&[ItemKind::Tensor]);
    const WITH_SEQUENCES: Params = params!(SEQUENCES);
    const ALL: Params = params!(ALL_KINDS);
    match since {
        0..13 => TENSORS,
        13..16 => WITH_SEQUENCES,
        _ => ALL,
    }
}

const fn if_row(since: u32, types: &'static [(&'static str, &'static [DType])]) -> OpDef {
    op("If", since, choose)
        .inputs(&[CONDITION])
        .outputs(params(since).0)
        .attributes(BRANCHES)
        .types(types)
        .shapes(&["count(cond) = 1"])
        .doc("The results of one of two bodies")
}

const fn loop_row(since: u32, types: &'static [(&'static str, &'static [DType])]) -> OpDef {
    op("Loop", since, repeat)
        .inputs(params(since).1)
        .outputs(params(since).2)
        .attributes(BODY)
        .types(types)
        .shapes(&["count(M) = 1", "count(cond) = 1"])
        .doc("A body again and again, while a condition holds")
}

const fn scan_row(since: u32, types: &'static [(&'static str, &'static [DType])]) -> OpDef {
    op("Scan", since, scan)
        .inputs(SCAN_INPUTS)
        .outputs(SCAN_OUTPUTS)
        .attributes(SCAN)
        .types(types)
        .doc("A body for each slice of its inputs")
}

pub const ROWS: &[OpDef] = &[
    if_row(1, &[("V", ALL), ("B", BOOL)]),
    if_row(11, &[("V", ALL), ("B", BOOL)]),
    if_row(13, &[("V", ALL), ("B", BOOL)]),
    if_row(16, &[("V", ALL_BF16), ("B", BOOL)]),
    if_row(19, &[("V", ALL_19), ("B", BOOL)]),
    if_row(21, &[("V", ALL_21), ("B", BOOL)]),
    if_row(23, &[("V", ALL_23), ("B", BOOL)]),
    if_row(24, &[("V", ALL_24), ("B", BOOL)]),
    if_row(25, &[("V", ALL_25), ("B", BOOL)]),
    loop_row(1, &[("V", ALL), ("I", I64S), ("B", BOOL)]),
    loop_row(11, &[("V", ALL), ("I", I64S), ("B", BOOL)]),
    loop_row(13, &[("V", ALL), ("I", I64S), ("B", BOOL)]),
    loop_row(16, &[("V", ALL_BF16), ("I", I64S), ("B", BOOL)]),
    loop_row(19, &[("V", ALL_19), ("I", I64S), ("B", BOOL)]),
    loop_row(21, &[("V", ALL_21), ("I", I64S), ("B", BOOL)]),
    loop_row(23, &[("V", ALL_23), ("I", I64S), ("B", BOOL)]),
    loop_row(24, &[("V", ALL_24), ("I", I64S), ("B", BOOL)]),
    loop_row(25, &[("V", ALL_25), ("I", I64S), ("B", BOOL)]),
    op("Scan", 8, scan_of_batches)
        .inputs(&[opt("sequence_lens", "I"), var("initial_state_and_scan_inputs", "V")])
        .outputs(SCAN_OUTPUTS)
        .attributes(&[
            optional("directions", AttrKind::Ints),
            required("num_scan_inputs", AttrKind::Int),
            required("body", AttrKind::Graph),
        ])
        .types(&[("I", I64S), ("V", ALL)])
        .doc("A body for each slice of its inputs, of each sequence of a batch"),
    scan_row(9, &[("V", ALL)]),
    scan_row(11, &[("V", ALL)]),
    scan_row(16, &[("V", ALL_BF16)]),
    scan_row(19, &[("V", ALL_19)]),
    scan_row(21, &[("V", ALL_21)]),
    scan_row(23, &[("V", ALL_23)]),
    scan_row(24, &[("V", ALL_24)]),
    scan_row(25, &[("V", ALL_25)]),
];

fn choose(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let condition = cx.input(0)?;
    let (then, otherwise) = (cx.graph("then_branch")?, cx.graph("else_branch")?);
    for branch in [&then, &otherwise] {
        if branch.inputs() > 0 || branch.outputs() != cx.outputs {
            let (inputs, outputs) = (branch.inputs(), branch.outputs());
            return malformed(format!(
                "a branch with {inputs} inputs and {outputs} outputs; it must have none, and {}",
                cx.outputs
            ));
        }
    }
    let condition = to_scalar(cx, condition)?;
    if let Some(known) = cx.b.graph.constant_data(condition) {
        let taken = if known.data.first() == Some(&0) { otherwise } else { then };
        let results = cx.bodies.inline_branch(cx.b, &taken)?;
        return cx.give(results);
    }
    let outer = cx.b.graph.symbols.len();
    let bodies = match (cx.bodies.branch(cx.b, &then), cx.bodies.branch(cx.b, &otherwise)) {
        (Ok(then), Ok(otherwise)) => [then, otherwise],
        // What follows may have a meaning for the rank of one body only: then that is the body to run.
        (Ok(_), Err(_)) if otherwise.continues() => return only(cx, condition, &then, true),
        (Err(_), Ok(_)) if then.continues() => return only(cx, condition, &otherwise, false),
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    if then.continues() {
        // Where the run may not determine a rank, the body takes the rank that the model declares.
        let is_open = !then.knows_unit() && may_differ_in_rank(cx, &bodies);
        match [0, 1].map(|which: usize| has_declared_ranks(cx, &bodies[which])) {
            [true, false] if !is_open => return only(cx, condition, &then, true),
            [false, true] if !is_open => return only(cx, condition, &otherwise, false),
            // A result has one rank: that where a symbolic dim is not 1, as it does not vary else.
            _ if then.knows_unit() && !same_ranks(&bodies) => return only(cx, condition, &then, true),
            _ => {}
        }
    }
    let mut bodies = bodies;
    let layouts = same_layouts(cx, &mut bodies, outer)?;
    let (mut bodies, captures) = same_captures(cx.b.graph, bodies);
    let Merged { shapes, late } = merge(cx, condition, &mut bodies, outer)?;
    let inputs: Vec<ValueId> = std::iter::once(condition).chain(captures).collect();
    let mut results = cx.b.emit(Op::If { bodies: Arc::new(bodies), shapes }, &inputs)?;
    if !late.is_empty() {
        let value = results.pop().unwrap_or(condition);
        for (element, (sym, bound)) in late.into_iter().enumerate() {
            cx.b.graph.define_symbol(sym, value, element, bound);
        }
    }
    cx.give(from_columns(&layouts, &results))
}

/// The results of one body; a run in which the condition is not `wanted` fails.
fn only(cx: &mut NodeCx<'_, '_>, condition: ValueId, body: &Subgraph, wanted: bool) -> Result<Vec<ValueId>> {
    let mut results = cx.bodies.inline_branch(cx.b, body)?;
    let Some((at, first)) =
        results.iter().enumerate().find_map(|(at, item)| Some((at, *item.columns().first()?)))
    else {
        return cx.give(results);
    };
    // The start of the one element that is read: 0 where all is well, otherwise 1, behind it.
    let other = if wanted { cx.b.unary(UnaryFn::Not, condition)? } else { condition };
    let other = cx.b.cast(other, DType::I64)?;
    let start = cx.b.sizes(other, &|_| Some(Dim::ONE))?;
    let text = match (body.knows_unit(), wanted) {
        (true, true) => "ranks are fixed: a symbolic axis has size 1, and would be removed",
        (true, false) => "ranks are fixed: an axis has not the size 1, which what follows takes it to have",
        (false, true) => "cond is false, and what follows takes the rank of `then_branch`",
        (false, false) => "cond is true, and what follows takes the rank of `else_branch`",
    };
    for own in &start {
        cx.b.require(Requirement::equal(own.clone(), Dim::ZERO).stated(text, &[]))?;
    }
    let shape = cx.b.shape(first);
    let whole = cx.b.unsqueeze(first, &[0])?;
    let sizes: Vec<Dim> = std::iter::once(Dim::ONE).chain(shape.iter().cloned()).collect();
    let starts = start.into_iter().chain(shape.iter().map(|_| Dim::ZERO)).collect();
    let checked = cx.b.emit1(Op::Slice { starts, steps: vec![1; sizes.len()], sizes }, &[whole])?;
    let checked = cx.b.reshape(checked, shape)?;
    results[at] = results[at].map(|column| if column == first { checked } else { column });
    cx.give(results)
}

/// Lets bodies take the same captures of the graph around them, in one order.
fn same_captures(outer: &Graph, bodies: [Body; 2]) -> ([Graph; 2], Vec<ValueId>) {
    let mut captures: Vec<ValueId> = vec![];
    for &capture in bodies.iter().flat_map(|body| &body.captures) {
        if !captures.contains(&capture) {
            captures.push(capture);
        }
    }
    let graphs = bodies.map(|Body { mut graph, captures: own, .. }| {
        let inside: HashMap<ValueId, ValueId> =
            own.into_iter().zip(graph.inputs.iter().map(|input| input.value)).collect();
        let inputs: Vec<ValueId> = captures
            .iter()
            .map(|capture| match inside.get(capture) {
                Some(&value) => value,
                None => {
                    let (ty, def) = (outer.ty(*capture).clone(), Def::Input(0));
                    graph.values.push(Value { name: String::new(), ty, def, known: None })
                }
            })
            .collect();
        graph.set_inputs(&inputs);
        graph
    });
    (graphs, captures)
}

/// A size that two bodies give output `at` along `axis`.
struct Sizes {
    at: usize,
    axis: usize,
    dims: [Dim; 2],
}

/// What one of the bodies gives.
fn of_body(sizes: &[Sizes], which: usize) -> Vec<Dim> {
    sizes.iter().map(|size| size.dims[which].clone()).collect()
}

/// Shapes of the results of two bodies.
struct Merged {
    shapes: Shapes,
    /// Symbols that one more result of the bodies defines, with bounds.
    late: Vec<(Sym, Option<Dim>)>,
}

/// Sizes that differ: where dims around the bodies determine both, the condition selects one before a body runs. The others are
/// known afterwards, from one more result.
fn merge(
    cx: &mut NodeCx<'_, '_>,
    condition: ValueId,
    bodies: &mut [Graph; 2],
    outer: usize,
) -> Result<Merged> {
    let mut merged = Merged { shapes: Shapes::new(), late: vec![] };
    let (mut early, mut late) = (vec![], vec![]);
    for at in 0..bodies[0].outputs.len() {
        let [a, b] = [0, 1].map(|which| {
            let body: &Graph = &bodies[which];
            body.ty(body.outputs[at].1).clone()
        });
        if a.dtype != b.dtype {
            return malformed(format!("output {at} is {a} in one branch and {b} in the other"));
        }
        if a.rank() != b.rank() {
            cx.bodies.fork(Fork::Bodies);
            return unsupported(format!(
                "output {at} is {a} in one branch and {b} in the other; where a loop or a call of a function goes on with it, its \
                 rank must be the same in both"
            ));
        }
        let mut differs = false;
        for (axis, (one, other)) in a.shape.iter().zip(&b.shape).enumerate() {
            let sizes = Sizes { at, axis, dims: [one.clone(), other.clone()] };
            match is_outer(one, outer) && is_outer(other, outer) {
                true if one == other => continue,
                true => early.push(sizes),
                false => late.push(sizes),
            }
            differs = true;
        }
        if differs {
            merged.shapes.insert(at, a.shape);
        }
    }
    if !early.is_empty() {
        let then = dims_vector(cx, &of_body(&early, 0))?;
        let otherwise = dims_vector(cx, &of_body(&early, 1))?;
        let sizes = cx.b.select(condition, then, otherwise)?;
        let sizes = cx.b.sizes(sizes, &|at| Some(early[at].dims[0].max_dim(&early[at].dims[1])))?;
        for (Sizes { at, axis, .. }, size) in early.into_iter().zip(sizes) {
            merged.shapes.entry(at).and_modify(|shape| shape[axis] = size);
        }
    }
    if late.is_empty() {
        return Ok(merged);
    }
    for Sizes { at, axis, dims } in &late {
        let bounds = [0, 1].map(|which| {
            let most = Bounds::new(&bodies[which]).upper(&dims[which]);
            most.filter(|most| is_outer(most, outer))
        });
        let bound = match bounds {
            [Some(a), Some(b)] => Some(a.max_dim(&b)),
            _ => None,
        };
        let sym = cx.b.fresh_symbol();
        merged.late.push((sym, bound));
        merged.shapes.entry(*at).and_modify(|shape| shape[*axis] = Dim::sym(sym));
    }
    for (which, body) in bodies.iter_mut().enumerate() {
        let dims = of_body(&late, which);
        let value = inside(cx, body, |b| b.emit1(Op::DimValues { dims }, &[]))?;
        body.outputs.push((String::new(), value));
    }
    Ok(merged)
}

/// Whether a dim mentions only the first `symbols` symbols, those that there were before a body.
fn is_outer(dim: &Dim, symbols: usize) -> bool {
    let mut outer = true;
    dim.visit_symbols(&mut |sym| outer &= (sym.as_u32() as usize) < symbols);
    outer
}

/// Emits into a body nodes that come from the node itself. Symbols that this makes are symbols around, too.
fn inside<T>(
    cx: &mut NodeCx<'_, '_>,
    body: &mut Graph,
    emit: impl FnOnce(&mut Builder<'_>) -> Result<T>,
) -> Result<T> {
    let origin = body.origins.push(cx.b.source());
    body.adopt_symbols(cx.b.graph);
    let result = emit(&mut Builder::new(body, origin))?;
    cx.b.graph.adopt_symbols(body);
    Ok(result)
}

/// A Loop. Without a condition among its inputs, and with a number of iterations, what its body says of going on is
/// ignored, as the specification has it.
fn repeat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let body = cx.graph("body")?;
    let states = (2..cx.inputs.len()).map(|at| cx.item(at)).collect::<Result<Vec<_>>>()?;
    let Some(stacks) = body.outputs().checked_sub(1 + states.len()) else {
        let (outputs, count) = (body.outputs(), states.len());
        return malformed(format!(
            "a body of {outputs} outputs for a condition and {count} loop-carried values"
        ));
    };
    check_results(cx, states.len(), stacks)?;
    let (most, condition) = (cx.optional(0), cx.optional(1));
    let start = match condition {
        Some(condition) => condition,
        None => cx.b.constant(Tensor::scalar(true)),
    };
    let form = |rank: Option<usize>| if rank == Some(1) { vec![Dim::ONE] } else { vec![] };
    let (turn, holds) = (form(body.input_rank(0)), form(body.input_rank(1)));
    let start = cx.b.reshape(start, holds.clone())?;
    let zero = cx.b.scalar(DType::I64, 0.0);
    let zero = cx.b.reshape(zero, turn.clone())?;
    let lead = [TensorType::new(DType::I64, turn.clone()), TensorType::new(DType::Bool, holds.clone())];
    let mut iteration = Iteration::new(cx, &body, &lead, &states, &[])?;

    let always = |value: ValueId, graph: &Graph| {
        graph.constant_data(value).is_some_and(|data| data.data.first() == Some(&1))
    };
    let graph = &iteration.body.graph;
    let next = graph.outputs[0].1;
    let keeps = next == graph.inputs[1].value;
    let goes_on = match most {
        // The condition says whether there are iterations, and not how many.
        Some(_) => condition.is_none() || keeps || always(start, cx.b.graph) && always(next, graph),
        None => always(start, cx.b.graph) && (keeps || always(next, graph)),
    };
    let conditional = !goes_on;
    let (trip, bound) = match most {
        Some(most) => {
            let runs = (goes_on && condition.is_some() && !always(start, cx.b.graph)).then_some(start);
            iterations(cx, most, runs)?
        }
        None => (Dim::from(i64::MAX), None),
    };
    let graph = &iteration.body.graph;
    let counts = conditional && stacks > 0;
    let (number, asked) = (graph.inputs[0].value, graph.inputs[1].value);
    let numbered = counts || graph.use_counts()[number] > 0;

    let (_, next) = iteration.body.graph.outputs.remove(0);
    let mut leading = vec![];
    if conditional {
        let next = inside(cx, &mut iteration.body.graph, |b| b.reshape(next, holds))?;
        leading.push((start, asked, next));
    } else {
        iteration.fix(asked, Tensor::from_slice(&[1][..holds.len()], &[true]));
    }
    let iterations = leading.len();
    if numbered || iteration.is_numbered() || iteration.has_parts_of_own_size() {
        leading.push(iteration.count(cx, zero, number)?);
    } else {
        iteration.drop_input(number);
    }
    let stack = Stack { count: counts.then_some(iterations), bound, first: vec![false; stacks] };
    let given = iteration.given();
    let layouts = iteration.layouts();
    let mut results = from_columns(&layouts, &iteration.emit(cx, leading, trip, conditional, &[], stack)?);
    // Where the body takes an optional and gives a value, so does the loop.
    for (result, given) in results.iter_mut().zip(given) {
        if given.kind() != result.kind() {
            *result = element_of(cx.b, result)?;
        }
    }
    cx.give(results)
}

/// Iterations beyond which memory for all of them is not set aside.
const FEW: i64 = 1024;

/// How often a loop runs at most, and the same as a bound for memory, where that makes sense. It does not run at all
/// where `runs` does not hold.
fn iterations(cx: &mut NodeCx<'_, '_>, most: ValueId, runs: Option<ValueId>) -> Result<(Dim, Option<Dim>)> {
    let known = cx.b.known(most).and_then(|known| known.first().cloned());
    if let (Some(known), None) = (known, runs) {
        let trip = known.max_dim(&Dim::ZERO);
        let bound = (!cx.b.graph.is_data_dim(&trip) && trip.as_const().is_none_or(|trip| trip <= FEW))
            .then(|| trip.clone());
        return Ok((trip, bound));
    }
    let most = to_scalar(cx, most)?;
    let mut most = cx.b.binary_scalar(BinaryFn::Max, most, 0.0)?;
    if let Some(runs) = runs {
        let (runs, zero) = (to_scalar(cx, runs)?, cx.b.scalar(DType::I64, 0.0));
        most = cx.b.select(runs, most, zero)?;
    }
    Ok((cx.b.sizes(most, &|_| None)?.remove(0), None))
}

/// A Scan since opset 9.
fn scan(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let body = cx.graph("body")?;
    let (states, scanned) = states_and_scanned(cx, 0)?;
    let stacks = stacks(cx, &body, states.len())?;
    let flags = |cx: &NodeCx<'_, '_>, name: &str, count: usize| directions(cx, name, count);
    let mut reverse = flags(cx, "scan_input_directions", scanned.len())?;
    reverse.extend(flags(cx, "scan_output_directions", stacks)?);
    let axes = list(cx, "scan_input_axes", scanned.len())?;
    let mut moved: Vec<ValueId> = vec![];
    let mut trip: Option<Dim> = None;
    for (&value, axis) in scanned.iter().zip(axes) {
        let rank = cx.b.rank(value);
        let axis = normalize_axis(axis, rank)?;
        let perm: Vec<usize> = std::iter::once(axis).chain((0..rank).filter(|&at| at != axis)).collect();
        let value = cx.b.transpose(value, &perm)?;
        let length = trip.get_or_insert_with(|| cx.b.shape(value)[0].clone()).clone();
        moved.push(same_length(cx.b, value, 0, &length)?);
    }
    let Some(trip) = trip else { return malformed("no scan inputs") };
    let elements: Vec<TensorType> = moved.iter().map(|&value| element_type(cx.b.ty(value), 1)).collect();
    let items: Vec<Item> = states.iter().copied().map(Item::Tensor).collect();
    let mut iteration = Iteration::new(cx, &body, &[], &items, &elements)?;
    let mut leading = vec![];
    if iteration.is_numbered() || iteration.has_parts_of_own_size() {
        let zero = cx.b.scalar(DType::I64, 0.0);
        let number = iteration.new_input(TensorType::new(DType::I64, vec![]));
        leading.push(iteration.count(cx, zero, number)?);
    }
    let first = reverse.split_off(scanned.len());
    let stack = Stack { count: None, bound: None, first };
    let scans: Vec<(ValueId, bool)> = moved.into_iter().zip(reverse).collect();
    let mut results = iteration.emit(cx, leading, trip, false, &scans, stack)?;
    let axes = list(cx, "scan_output_axes", stacks)?;
    for (result, axis) in results.iter_mut().skip(states.len()).zip(axes) {
        let rank = cx.b.rank(*result);
        let axis = normalize_axis(axis, rank)?;
        let mut perm: Vec<usize> = (1..rank).collect();
        perm.insert(axis, 0);
        *result = cx.b.transpose(*result, &perm)?;
    }
    Ok(results)
}

/// The Scan of opset 8: a loop over the sequences of a batch around one over their slices.
fn scan_of_batches(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let body = cx.graph("body")?;
    let (states, scanned) = states_and_scanned(cx, 1)?;
    let stacks = stacks(cx, &body, states.len())?;
    let reverse = directions(cx, "directions", scanned.len())?;
    let Some(first) = scanned.first().filter(|&&value| cx.b.rank(value) >= 2) else {
        return malformed("no scan inputs of a batch of sequences");
    };
    let [batch, length] = [0, 1].map(|axis| cx.b.shape(*first)[axis].clone());
    let mut operands = vec![];
    for &value in &states {
        operands.push(same_length(cx.b, value, 0, &batch)?);
    }
    for &value in &scanned {
        let value = same_length(cx.b, value, 0, &batch)?;
        operands.push(same_length(cx.b, value, 1, &length)?);
    }
    let lengths =
        cx.optional("sequence_lens").map(|lengths| same_length(cx.b, lengths, 0, &batch)).transpose()?;
    operands.extend(lengths);
    let types: Vec<TensorType> = operands.iter().map(|&value| element_type(cx.b.ty(value), 1)).collect();
    let elements: Vec<TensorType> =
        types[states.len()..states.len() + scanned.len()].iter().map(|ty| element_type(ty, 1)).collect();

    // One sequence, in a graph of its own.
    let (mut graph, origin) = cx.b.body();
    let mut inner = Builder::new(&mut graph, origin);
    let inputs: Vec<ValueId> = types.iter().map(|ty| inner.input("", ty.clone(), None)).collect();
    let state_types = &types[..states.len()];
    let outer = cx.b.graph.symbols.len();
    let imported = iterate::import(cx, &body, &[], state_types, &elements)?;
    for (_, value) in imported.graph.outputs.iter().skip(states.len()) {
        let ty = imported.graph.ty(*value);
        if !ty.shape.iter().all(|dim| is_outer(dim, outer)) {
            return unsupported(format!("a scan output {ty} of each sequence, whose size the body decides"));
        }
    }
    let captured: Vec<TensorType> = imported.captures.iter().map(|&value| cx.b.ty(value).clone()).collect();
    graph.adopt_symbols(cx.b.graph);
    let captures = imported.captures;
    let mut b = Builder::new(&mut graph, origin);
    let inside: Vec<ValueId> = captured.iter().map(|ty| b.input("", ty.clone(), None)).collect();
    let trip = match lengths {
        Some(_) => {
            let own = inputs[inputs.len() - 1];
            b.sizes(own, &|_| Some(length.clone()))?.remove(0)
        }
        None => length.clone(),
    };
    let mut sequence = inputs[..states.len()].to_vec();
    for &value in &inputs[states.len()..states.len() + scanned.len()] {
        sequence.push(b.slice_axis(value, 0, Dim::ZERO, trip.clone())?);
    }
    sequence.extend(&inside);
    let directions = [reverse, vec![false; stacks]].concat();
    let op = Op::scan(imported.graph, trip.clone(), states.len(), scanned.len(), directions);
    let mut results = b.emit(op, &sequence)?;
    for result in results.iter_mut().skip(states.len()).filter(|_| lengths.is_some()) {
        let ty = b.ty(*result).clone();
        let mut hi = vec![Dim::ZERO; ty.rank()];
        hi[0] = length.clone() - trip.clone();
        let zero = b.constant(Tensor::zeros(ty.dtype, &[]));
        let padded = b.pad(*result, zero, vec![Dim::ZERO; ty.rank()], hi)?;
        let mut shape = ty.shape.clone();
        shape[0] = length.clone();
        *result = as_type(&mut b, padded, &shape)?;
    }
    graph.outputs = results.into_iter().map(|value| (String::new(), value)).collect();
    cx.b.graph.adopt_symbols(&graph);
    let directions = vec![false; operands.len() + graph.outputs.len()];
    let count = operands.len();
    let op = Op::scan(graph, batch, 0, count, directions);
    cx.b.emit(op, &[operands, captures].concat())
}

/// The inputs from number `first` on: states, then what is scanned.
fn states_and_scanned(cx: &NodeCx<'_, '_>, first: usize) -> Result<(Vec<ValueId>, Vec<ValueId>)> {
    let count = cx.int("num_scan_inputs")?;
    let given = (first..cx.inputs.len()).map(|at| cx.input(at)).collect::<Result<Vec<_>>>()?;
    match usize::try_from(count)
        .ok()
        .filter(|&count| count >= 1)
        .and_then(|count| given.len().checked_sub(count))
    {
        Some(states) => Ok((given[..states].to_vec(), given[states..].to_vec())),
        None => malformed(format!("num_scan_inputs {count} of {} inputs", given.len())),
    }
}

/// Outputs of a body beside the states.
fn stacks(cx: &NodeCx<'_, '_>, body: &Subgraph, states: usize) -> Result<usize> {
    let Some(stacks) = body.outputs().checked_sub(states) else {
        return malformed(format!("a body of {} outputs for {states} states", body.outputs()));
    };
    check_results(cx, states, stacks)?;
    Ok(stacks)
}

/// A node may name fewer outputs than its body gives, and not more.
fn check_results(cx: &NodeCx<'_, '_>, states: usize, stacks: usize) -> Result<()> {
    let named = cx.wanted.len();
    match named <= states + stacks {
        true => Ok(()),
        false => malformed(format!(
            "{named} outputs are named; the body gives {}: states {states}, scan outputs {stacks}",
            states + stacks
        )),
    }
}

/// A list of numbers, one for each of `count`; zeros where it is absent.
fn list(cx: &NodeCx<'_, '_>, name: &str, count: usize) -> Result<Vec<i64>> {
    let Some(values) = cx.ints(name)? else { return Ok(vec![0; count]) };
    match values.len() == count {
        true => Ok(values),
        false => malformed(format!("{name} is {values:?}; it must have {count} entries")),
    }
}

fn directions(cx: &NodeCx<'_, '_>, name: &str, count: usize) -> Result<Vec<bool>> {
    let values = list(cx, name, count)?;
    match values.iter().all(|value| (0..=1).contains(value)) {
        true => Ok(values.iter().map(|&value| value == 1).collect()),
        false => malformed(format!("{name} is {values:?}; each must be 0 (forward) or 1 (backward)")),
    }
}

/// `value` with `length` as its size along an axis; whether it has that shows when the model runs.
fn same_length(b: &mut Builder<'_>, value: ValueId, axis: usize, length: &Dim) -> Result<ValueId> {
    let mut shape = b.shape(value);
    match shape.get_mut(axis) {
        Some(size) => *size = length.clone(),
        None => return malformed(format!("{} has no axis {axis} to scan", b.ty(value))),
    }
    as_type(b, value, &shape)
}

/// The type of a part of a tensor along its first `axes` axes.
fn element_type(ty: &TensorType, axes: usize) -> TensorType {
    TensorType::new(ty.dtype, ty.shape.iter().skip(axes).cloned().collect())
}
