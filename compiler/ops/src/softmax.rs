//! Softmax and its kin. Before version 13 the operand is taken as a matrix: rows are the axes before `axis`.

use super::AttrDefault::Int;
use super::types::*;
use super::{NodeCx, OpDef, attr, normalize_axis, op, req};
use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::product;
use onnxc_ir::graph::{Op, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};

pub const ROWS: &[OpDef] = &[
    SOFTMAX,
    SOFTMAX.since(11),
    SOFTMAX.since(13).attributes(&[attr("axis", Int(-1))]).types(&[("T", FLOATS)]),
    LOG_SOFTMAX,
    LOG_SOFTMAX.since(11),
    LOG_SOFTMAX.since(13).attributes(&[attr("axis", Int(-1))]).types(&[("T", FLOATS)]),
    HARDMAX,
    HARDMAX.since(11),
    HARDMAX.since(13).attributes(&[attr("axis", Int(-1))]).types(&[("T", FLOATS)]),
];

const SOFTMAX: OpDef = op("Softmax", 1, softmax)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("axis", Int(1))])
    .types(&[("T", FLOATS_F16)])
    .doc("exp(x) / sum(exp(x))");

const LOG_SOFTMAX: OpDef = op("LogSoftmax", 1, log_softmax)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("axis", Int(1))])
    .types(&[("T", FLOATS_F16)])
    .doc("log(softmax(x))");

const HARDMAX: OpDef = op("Hardmax", 1, hardmax)
    .inputs(&[req("input", "T")])
    .outputs(&[req("output", "T")])
    .attributes(&[attr("axis", Int(1))])
    .types(&[("T", FLOATS_F16)])
    .doc("1 at the first maximum, 0 elsewhere");

/// Applies `along(x, axis)` to the operand, coerced to a matrix in the old versions.
fn on_rows(
    cx: &mut NodeCx<'_, '_>,
    along: fn(&mut Builder<'_>, ValueId, usize) -> Result<ValueId>,
) -> Result<Vec<ValueId>> {
    let x = cx.input("input")?;
    let axis = cx.int("axis")?;
    Ok(vec![on_rows_of(cx.b, x, axis, cx.def.since < 13, along)?])
}

/// `along(x, axis)`; where `coerced`, of `x` as a matrix whose rows are the axes before `axis`.
pub fn on_rows_of(
    b: &mut Builder<'_>,
    x: ValueId,
    axis: i64,
    coerced: bool,
    along: fn(&mut Builder<'_>, ValueId, usize) -> Result<ValueId>,
) -> Result<ValueId> {
    let shape = b.shape(x);
    let axis =
        if coerced && axis == shape.len() as i64 { shape.len() } else { normalize_axis(axis, shape.len())? };
    if !coerced || axis + 1 == shape.len() {
        return along(b, x, axis);
    }
    let matrix = b.reshape(x, vec![product(&shape[..axis]), product(&shape[axis..])])?;
    let y = along(b, matrix, 1)?;
    b.reshape(y, shape)
}

/// `x - max(x)` along `axis`, so that exponentials do not overflow; half-precision operands as f32.
fn shifted(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let x = b.widened(x)?;
    let max = b.reduce(ReduceFn::Max, x, &[axis])?;
    b.binary(BinaryFn::Sub, x, max)
}

/// Softmax along one axis, in the operand's dtype.
pub fn softmax_along(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let shifted = shifted(b, x, axis)?;
    let exp = b.unary(UnaryFn::Exp, shifted)?;
    let sum = b.reduce(ReduceFn::Sum, exp, &[axis])?;
    let y = b.binary(BinaryFn::Div, exp, sum)?;
    b.cast(y, dtype)
}

/// Logarithm of the softmax along one axis, in the operand's dtype.
pub fn log_softmax_along(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let shifted = shifted(b, x, axis)?;
    let exp = b.unary(UnaryFn::Exp, shifted)?;
    let sum = b.reduce(ReduceFn::Sum, exp, &[axis])?;
    let log = b.unary(UnaryFn::Log, sum)?;
    let y = b.binary(BinaryFn::Sub, shifted, log)?;
    b.cast(y, dtype)
}

fn hardmax_along(b: &mut Builder<'_>, x: ValueId, axis: usize) -> Result<ValueId> {
    let best = b.emit1(Op::ArgReduce { max: true, axis, last: false }, &[x])?;
    let index = b.iota(b.shape(x), axis)?;
    let is_best = b.compare(CompareFn::Eq, index, best)?;
    b.cast(is_best, b.dtype(x))
}

fn softmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    on_rows(cx, softmax_along)
}

fn log_softmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    on_rows(cx, log_softmax_along)
}

fn hardmax(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    on_rows(cx, hardmax_along)
}

#[cfg(test)]
mod tests {
    use crate::node_case::{Case, ramp};

    #[test]
    fn one_axis_since_13_and_rows_of_a_matrix_before() {
        let case = Case::new("Softmax", 11).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                0.063368, 0.364658, 0.13415, 0.049351, 0.283996, 0.104476, 0.063368, 0.364658, 0.13415,
                0.049351, 0.283996, 0.104476,
            ],
        );
        let case = Case::new("Softmax", 13).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                0.562177, 0.562177, 0.562177, 0.437824, 0.437824, 0.437824, 0.562177, 0.562177, 0.562177,
                0.437824, 0.437824, 0.437824,
            ],
        );
        let case = Case::new("LogSoftmax", 11).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                -2.758795, -1.008795, -2.008795, -3.008795, -1.258795, -2.258795, -2.758795, -1.008795,
                -2.008795, -3.008795, -1.258795, -2.258795,
            ],
        );
        let case = Case::new("LogSoftmax", 13).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(
            0,
            &[2, 2, 3],
            &[
                -0.575939, -0.575939, -0.575939, -0.825939, -0.825939, -0.825939, -0.575939, -0.575939,
                -0.575939, -0.825939, -0.825939, -0.825939,
            ],
        );
        let case = Case::new("Hardmax", 11).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(0, &[2, 2, 3], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        let case = Case::new("Hardmax", 13).ramp(&[2, 2, 3], 1).int("axis", 1);
        case.gives(0, &[2, 2, 3], &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
        let case = Case::new("Softmax", 13).symbolic(&["n", "c"], &[1, 2], &ramp(2, 5));
        case.gives(0, &[1, 2], &[0.731059, 0.268941]);
    }
}
