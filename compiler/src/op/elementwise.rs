//! Elementwise operators: one element of the result from one element of each (broadcast) operand.

use super::types::*;
use super::{NodeCx, OpDef, req};
use crate::error::Result;
use crate::graph::ValueId;
use crate::scalar::BinaryFn;

pub const ROWS: &[OpDef] = &[OpDef {
    domain: "",
    name: "Relu",
    since: 14,
    inputs: &[req("X", "T")],
    outputs: &[req("Y", "T")],
    attributes: &[],
    types: &[("T", NUMERIC)],
    lower: relu,
    doc: "max(x, 0)",
}];

fn relu(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input(0)?;
    Ok(vec![cx.b.binary_scalar(BinaryFn::Max, x, 0.0)?])
}
