//! Runs loops and choices: their bodies are graphs that share the symbols of the graphs around.

use super::run::{Constants, Symbols, check_assumptions, run_graph, usage};
use super::{constant, movement, type_of};
use crate::error::{Error, Kind, Result, Stage};
use crate::graph::exchange::Alone;
use crate::graph::{MAX_NESTING, Op, Tensor, TensorType};

/// Control flow outside of any graph: its symbols, if any, come from the operands.
pub(super) fn control(op: &Op, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    run_in(op, inputs, &Symbols::new(), 0)
}

pub(super) fn run_in(op: &Op, inputs: &[&Tensor], symbols: &Symbols, depth: usize) -> Result<Vec<Tensor>> {
    if depth >= MAX_NESTING {
        let message = format!("bodies nest deeper than {MAX_NESTING}");
        return Err(Error::new(Stage::Run, Kind::Budget, message));
    }
    let mut constants = Constants::new();
    if let Op::Scan { body, .. } = op {
        for value in body.order.iter().flat_map(|&id| &body.nodes[id].inputs) {
            if body.is_constant(*value) && constants[*value].is_none() {
                constants[*value] = Some(constant(body, *value)?);
            }
        }
    }
    let bodies = op.bodies();
    run_bodies(op, inputs, symbols, &mut |number, inputs, symbols| {
        let mut symbols = symbols.clone();
        let graph = &bodies[number];
        run_graph(graph, inputs, &mut symbols, (Some(&constants), &mut Alone), depth + 1, &mut |_, _| {})
    })
}

/// Runs a body, given its number, its inputs and the symbols around it.
pub(super) type RunBody<'r> = &'r mut dyn FnMut(usize, Vec<Tensor>, &Symbols) -> Result<Vec<Tensor>>;

/// Control flow whose bodies `run_body` runs.
pub fn run_bodies(
    op: &Op,
    inputs: &[&Tensor],
    symbols: &Symbols,
    run_body: RunBody<'_>,
) -> Result<Vec<Tensor>> {
    match op {
        Op::Scan { .. } => scan(op, inputs, symbols, run_body),
        Op::If { bodies, .. } => {
            let Some((condition, captures)) = inputs.split_first() else {
                return Err(Error::internal(Stage::Run, "if without condition"));
            };
            let taken = usize::from(condition.data.first() == Some(&0));
            // What the body that runs takes to hold, and only that.
            check_assumptions(&bodies[taken], symbols, &|_| true)?;
            run_body(taken, captures.iter().map(|&tensor| tensor.clone()).collect(), symbols)
        }
        _ => Err(Error::internal(Stage::Run, format!("{} is not control flow", op.name()))),
    }
}

fn scan(op: &Op, inputs: &[&Tensor], symbols: &Symbols, run_body: RunBody<'_>) -> Result<Vec<Tensor>> {
    let Op::Scan { body, trip, conditional, states, scans, reverse, shapes } = op else {
        return Err(Error::internal(Stage::Run, format!("{} is not a scan", op.name())));
    };
    let trips = match trip.eval(&|sym| symbols[sym]).map(usize::try_from) {
        Some(Ok(trips)) => trips,
        _ => return usage(format!("a scan's trip count {trip} has no value")),
    };
    check_scan(op, inputs, trips, symbols)?;
    let mut carried: Vec<Tensor> = inputs[..*states].iter().map(|&tensor| tensor.clone()).collect();
    let captures = &inputs[states + scans..];
    let mut stacked: Vec<Vec<Tensor>> = vec![vec![]; body.outputs.len() - states];
    let goes_on = |carried: &[Tensor]| !conditional || carried[0].data.first() != Some(&0);
    let mut turn = 0;
    while turn < trips && goes_on(&carried) {
        if turn == 0 {
            check_assumptions(body, symbols, &|_| true)?;
        }
        let mut arguments = carried;
        for at in 0..*scans {
            arguments.push(element(inputs[states + at], if reverse[at] { trips - 1 - turn } else { turn }));
        }
        arguments.extend(captures.iter().map(|&tensor| tensor.clone()));
        let mut results = run_body(0, arguments, symbols)?;
        for (parts, result) in stacked.iter_mut().zip(results.drain(*states..)) {
            parts.push(result);
        }
        carried = results;
        turn += 1;
    }
    for (at, mut parts) in stacked.into_iter().enumerate() {
        if reverse[scans + at] {
            parts.reverse();
        }
        let ty = body.ty(body.outputs[states + at].1);
        carried.push(stack(parts, ty, symbols, shapes.contains_key(&(states + at)))?);
    }
    Ok(carried)
}

/// Rechecks what `infer` says of a scan, now that sizes are known.
fn check_scan(op: &Op, inputs: &[&Tensor], trips: usize, symbols: &Symbols) -> Result<()> {
    let Op::Scan { body, states, scans, reverse, shapes, .. } = op else { return Ok(()) };
    let (states, scans, directions) = (*states, *scans, reverse.len());
    let counts_fit = inputs.len() == body.inputs.len()
        && states.checked_add(scans).is_some_and(|count| count <= inputs.len())
        && states <= body.outputs.len()
        && directions == scans + body.outputs.len() - states;
    if !counts_fit {
        return Err(Error::internal(Stage::Run, "a scan and its body disagree on inputs or outputs"));
    }
    for (at, (tensor, input)) in inputs.iter().zip(&body.inputs).enumerate() {
        let ty = body.ty(input.value);
        let scanned = (states..states + scans).contains(&at);
        let shape = match tensor.shape.split_first() {
            Some((&first, rest)) if scanned && first == trips => rest,
            _ if scanned => {
                return usage(format!("scan input {at} is {}, not {trips} long", type_of(tensor)));
            }
            _ => &tensor.shape[..],
        };
        let fits = ty.dtype == tensor.dtype
            && ty.rank() == shape.len()
            && (shapes.contains_key(&at) && at < states
                || ty.shape.iter().zip(shape).all(|(dim, &size)| {
                    dim.eval(&|sym| symbols[sym]).is_none_or(|wanted| wanted == size as i64)
                }));
        if !fits {
            return usage(format!("scan input {at} is {}, its body takes {ty}", type_of(tensor)));
        }
    }
    Ok(())
}

/// Element number `at` along the first axis, which `at` does not exceed. Shares the data.
fn element(tensor: &Tensor, at: usize) -> Tensor {
    let shape = tensor.shape[1..].to_vec();
    let bytes = shape.iter().product::<usize>() * tensor.dtype.size();
    Tensor { dtype: tensor.dtype, shape, data: tensor.data.slice(at * bytes..(at + 1) * bytes) }
}

/// Tensors of one shape under a new first axis; `ty` is their type, for when there are none; then
/// sizes unknown without a step are 0 where `late`.
fn stack(parts: Vec<Tensor>, ty: &TensorType, symbols: &Symbols, late: bool) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        let sizes = ty.shape.iter().map(|dim| {
            let known = dim.eval(&|sym| symbols[sym]).and_then(|size| usize::try_from(size).ok());
            known.or(late.then_some(0)).ok_or_else(|| {
                Error::new(
                    Stage::Run,
                    Kind::Usage,
                    format!("a scan of no steps cannot determine the size {dim}"),
                )
            })
        });
        let shape = std::iter::once(Ok(0)).chain(sizes).collect::<Result<Vec<usize>>>()?;
        return Ok(Tensor { dtype: ty.dtype, shape, data: Default::default() });
    };
    let expanded: Vec<Tensor> = parts
        .iter()
        .map(|part| {
            let mut shape = vec![1];
            shape.extend_from_slice(&part.shape);
            Tensor { dtype: part.dtype, shape, data: part.data.clone() }
        })
        .collect();
    if let Some(other) = parts.iter().find(|part| type_of(part) != type_of(first)) {
        return usage(format!("a scan's steps give {} and {}", type_of(first), type_of(other)));
    }
    let mut shape = vec![parts.len()];
    shape.extend_from_slice(&first.shape);
    movement::concat(&expanded.iter().collect::<Vec<_>>(), 0, &shape)
}
