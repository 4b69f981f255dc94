//! Type inference of the primitives: result types from operand types, and the elements of small integer
//! tensors as symbolic dims ("known values"), so that exported shape arithmetic disappears.
//!
//! This is the only place that states a primitive's shape rule in code, a family in each file. `primitives.rs` lists them, and what
//! each needs of sizes that only show at run time, so that no lowering can make it read or write what is not there. Operator rows
//! need no rule of their own: their lowering emits primitives, and each is inferred as it is emitted.

pub(super) mod contract;
pub(super) mod control;
pub(super) mod elementwise;
pub(super) mod index;
mod known;
pub(super) mod movement;
pub(super) mod reduce;
pub(super) mod requirements;
#[cfg(test)]
mod tests;

pub use known::infer_known;

use super::{needs, types};
use crate::error::{Error, Result, Stage};
use crate::graph::claim::Stated;
use crate::graph::dim::overgrown;
use crate::graph::{DType, Dim, Op, TensorType};

/// The types of an operation's results.
pub(super) type Types = Result<Vec<TensorType>>;

fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::malformed(Stage::Infer, message))
}

/// Broadcast of two dims. Symbolic dims may turn out to be equal, or one of them 1: the result is the larger or 0, see
/// [`Dim::broadcast`], or the constant where there is one. [`Inferred::requirements`] lists what must hold, which the compiled model checks
/// before it runs.
pub fn broadcast_dim(a: &Dim, b: &Dim) -> Result<Dim> {
    match (a.as_const(), b.as_const()) {
        _ if a == b => Ok(a.clone()),
        (Some(1), _) => Ok(b.clone()),
        (_, Some(1)) => Ok(a.clone()),
        (Some(x), Some(y)) => fail(format!("dims {x} and {y} do not broadcast")),
        (Some(_), None) => Ok(a.clone()),
        (None, Some(_)) => Ok(b.clone()),
        (None, None) => Ok(a.broadcast(b)),
    }
}

/// NumPy broadcast of shapes.
pub fn broadcast_shapes(shapes: &[&[Dim]]) -> Result<Vec<Dim>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut out = vec![Dim::ONE; rank];
    for shape in shapes {
        let lead = rank - shape.len();
        for (axis, dim) in shape.iter().enumerate() {
            out[lead + axis] = broadcast_dim(&out[lead + axis], dim).map_err(|error| Error {
                message: format!("{} (shapes {shapes:?})", error.message),
                ..error
            })?;
        }
    }
    Ok(out)
}

fn check_axis(axis: usize, ty: &TensorType) -> Result<()> {
    if axis < ty.rank() { Ok(()) } else { fail(format!("axis {axis} of a tensor of type {ty}")) }
}

fn arity(op: &Op, inputs: &[&TensorType], wanted: usize) -> Result<()> {
    if inputs.len() == wanted {
        Ok(())
    } else {
        fail(format!("{} takes {wanted} inputs, not {}", op.name(), inputs.len()))
    }
}

/// What inference finds of an operation.
pub struct Inferred {
    /// Types of the results.
    pub results: Vec<TensorType>,
    /// What must hold for every element that the operation reads to exist, as far as it only shows at run time.
    pub requirements: Vec<Stated>,
}

/// Errors: operands that do not fit the operation or each other, and results that no memory holds.
pub fn infer(op: &Op, inputs: &[&TensorType]) -> Result<Inferred> {
    let results = types(op, inputs)?;
    results.iter().try_for_each(|ty| ty.check_size(Stage::Infer))?;
    if op.dims().into_iter().any(Dim::is_overgrown) {
        return Err(overgrown(Stage::Infer, format!("a size of {}", op.name())));
    }
    let requirements = needs(op, inputs, &results);
    if requirements.iter().any(|own| own.requirement.is_overgrown()) {
        return Err(overgrown(Stage::Infer, format!("what sizes must be for {}", op.name())));
    }
    if let Some(broken) = requirements.iter().find(|own| own.requirement.verdict() == Some(false)) {
        let operands: Vec<String> = inputs.iter().map(|ty| ty.to_string()).collect();
        let claim = broken.claim.sentence(&Dim::to_string);
        return fail(format!("{} of {}: {claim}", op.name(), operands.join(", ")));
    }
    Ok(Inferred { results, requirements })
}

fn one(dtype: DType, shape: Vec<Dim>) -> Types {
    Ok(vec![TensorType { dtype, shape }])
}

/// All multi-indices of a shape in row-major order.
pub fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + use<> {
    let shape = shape.to_vec();
    let count: usize = shape.iter().product();
    (0..count).map(move |mut flat| {
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        index
    })
}
