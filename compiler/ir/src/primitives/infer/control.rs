//! Result types of loops and choices, and what their bodies must have in common.

use super::fail;
use crate::error::Result;
use crate::graph::op::Shapes;
use crate::graph::{DType, Graph, Op, TensorType};

/// Results of an [`Op::Scan`]: final states, then stacked outputs.
pub(in crate::primitives) fn scan(op: &Op, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
    let Op::Scan { body, trip, conditional, states, scans, reverse, shapes } = op else {
        return fail("a scan is needed");
    };
    let fed = states.saturating_add(*scans);
    if inputs.len() != body.inputs.len() || inputs.len() < fed || body.outputs.len() < *states {
        return fail(format!("scan of {} inputs over a body of {}", inputs.len(), body.inputs.len()));
    }
    if reverse.len() != scans + body.outputs.len() - states {
        return fail("scan: one direction per scanned input and stacked output");
    }
    if *conditional {
        let straight = *scans == 0 && !reverse.contains(&true);
        if !straight || *states == 0 || !is_condition(inputs[0]) {
            return fail("scan: a condition that is not a state, or that does not fit scanned inputs");
        }
    }
    for (at, input) in body.inputs.iter().enumerate() {
        let mut wanted = body.ty(input.value).clone();
        if (*states..states + scans).contains(&at) {
            wanted.shape.insert(0, trip.clone());
        }
        let changes = at < *states && shapes.contains_key(&at);
        let fits = if changes { same_form(inputs[at], &wanted) } else { *inputs[at] == wanted };
        if !fits {
            return fail(format!("scan input {at} is {}, its body takes {wanted}", inputs[at]));
        }
    }
    let mut results = Vec::new();
    for (at, (_, value)) in body.outputs.iter().enumerate() {
        let mut ty = body.ty(*value).clone();
        if at < *states {
            if ty != *inputs[at] && !(shapes.contains_key(&at) && same_form(&ty, inputs[at])) {
                return fail(format!("scan state {at} changes from {} to {ty}", inputs[at]));
            }
        } else {
            if *conditional && !shapes.contains_key(&at) {
                return fail(format!("scan: result {at} is of no known length"));
            }
            ty.shape.insert(0, trip.clone());
        }
        results.push(ty);
    }
    with_shapes(results, shapes)
}

/// Results of an [`Op::If`] of two bodies.
pub(in crate::primitives) fn choice(
    bodies: &[Graph; 2],
    inputs: &[&TensorType],
    shapes: &Shapes,
) -> Result<Vec<TensorType>> {
    let Some((condition, captures)) = inputs.split_first() else { return fail("if without condition") };
    if !is_condition(condition) {
        return fail(format!("if of the condition {condition}"));
    }
    for body in bodies.iter() {
        let taken: Vec<&TensorType> = body.inputs.iter().map(|input| body.ty(input.value)).collect();
        if taken != captures {
            return fail(format!("if of {captures:?} over a body of {taken:?}"));
        }
    }
    let types = |body: &Graph| -> Vec<TensorType> {
        body.outputs.iter().map(|(_, value)| body.ty(*value).clone()).collect()
    };
    let (then, otherwise) = (types(&bodies[0]), types(&bodies[1]));
    if then.len() != otherwise.len() {
        return fail(format!("if: bodies of {} and of {} results", then.len(), otherwise.len()));
    }
    for (at, (a, b)) in then.iter().zip(&otherwise).enumerate() {
        if a != b && !(shapes.contains_key(&at) && same_form(a, b)) {
            return fail(format!("if: result {at} is {a} or {b}"));
        }
    }
    with_shapes(then, shapes)
}

fn is_condition(ty: &TensorType) -> bool {
    ty.dtype == DType::Bool && ty.elements().as_const() == Some(1)
}

/// Whether two types differ in their dims alone.
fn same_form(a: &TensorType, b: &TensorType) -> bool {
    a.dtype == b.dtype && a.rank() == b.rank()
}

/// Result shapes that cannot be inferred from the bodies come from `shapes`.
fn with_shapes(mut results: Vec<TensorType>, shapes: &Shapes) -> Result<Vec<TensorType>> {
    for (&at, shape) in shapes {
        match results.get_mut(at) {
            Some(ty) if ty.rank() == shape.len() => ty.shape = shape.clone(),
            _ => return fail(format!("result {at} has the shape {shape:?}")),
        }
    }
    Ok(results)
}
