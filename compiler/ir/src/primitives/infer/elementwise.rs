//! Elementwise functions, elements that are made of indices, and trees.

use super::{Types, arity, broadcast_shapes, fail, one};
use crate::error::Result;
use crate::graph::{DType, Dim, MapFn, Op, TensorType, Trees, trees};
use crate::scalar::UnaryFn;

pub(in crate::primitives) fn map(op: &Op, inputs: &[&TensorType], function: MapFn) -> Types {
    let shapes: Vec<&[Dim]> = inputs.iter().map(|ty| ty.shape.as_slice()).collect();
    one(map_dtype(op, function, inputs)?, broadcast_shapes(&shapes)?)
}

fn map_dtype(op: &Op, function: MapFn, inputs: &[&TensorType]) -> Result<DType> {
    let same = |from: usize| -> Result<DType> {
        let dtype = inputs[from].dtype;
        match inputs[from..].iter().find(|ty| ty.dtype != dtype) {
            None => Ok(dtype),
            Some(other) => fail(format!("{} of {} and {other}", op.name(), inputs[from])),
        }
    };
    match function {
        MapFn::Unary(UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf) => {
            arity(op, inputs, 1)?;
            Ok(DType::Bool)
        }
        MapFn::Unary(_) => {
            arity(op, inputs, 1)?;
            same(0)
        }
        MapFn::Binary(_) => {
            arity(op, inputs, 2)?;
            same(0)
        }
        MapFn::Compare(_) => {
            arity(op, inputs, 2)?;
            same(0)?;
            Ok(DType::Bool)
        }
        MapFn::Select => {
            arity(op, inputs, 3)?;
            if inputs[0].dtype != DType::Bool {
                return fail(format!("select by {}", inputs[0]));
            }
            same(1)
        }
        MapFn::MulAdd => {
            arity(op, inputs, 3)?;
            match inputs[0].dtype.is_float() {
                true => same(0),
                false => fail(format!("mul_add of {}", inputs[0])),
            }
        }
        MapFn::Requantize { shift } => {
            arity(op, inputs, 3)?;
            let dtypes = [inputs[0].dtype, inputs[1].dtype, inputs[2].dtype];
            if dtypes != [DType::I32, DType::I32, DType::I64] || !(1..=62).contains(&shift) {
                return fail(format!("requantize of {inputs:?} by {shift} bits"));
            }
            Ok(DType::I32)
        }
        MapFn::Cast { to, .. } => {
            arity(op, inputs, 1)?;
            Ok(to)
        }
        MapFn::Bitcast { to } => {
            arity(op, inputs, 1)?;
            // No integer has 6 bits: the codes of such floats are bytes.
            let from = inputs[0].dtype;
            let code = |code: DType, float: DType| code == DType::U8 && float.bits() == 6;
            if to.bits() != from.bits() && !code(to, from) && !code(from, to) {
                return fail(format!("bitcast of {} to {to}", inputs[0]));
            }
            Ok(to)
        }
    }
}

pub(in crate::primitives) fn iota(op: &Op, inputs: &[&TensorType], shape: &[Dim], axis: usize) -> Types {
    arity(op, inputs, 0)?;
    if axis >= shape.len() {
        return fail(format!("iota along axis {axis} of {shape:?}"));
    }
    one(DType::I64, shape.to_vec())
}

pub(in crate::primitives) fn dim_values(op: &Op, inputs: &[&TensorType], dims: &[Dim]) -> Types {
    arity(op, inputs, 0)?;
    one(DType::I64, vec![Dim::from(dims.len())])
}

pub(in crate::primitives) fn leaves(inputs: &[&TensorType], trees: &Trees) -> Types {
    match trees.operands(inputs) {
        Some(operands) if are_trees(trees, &operands) => {
            one(DType::I32, vec![operands.x.shape[0].clone(), operands.roots.shape[0].clone()])
        }
        _ => fail(format!("leaves of {inputs:?}")),
    }
}

/// Whether the tables of [`Op::Leaves`] fit together.
fn are_trees(trees: &Trees, operands: &trees::Operands<&TensorType>) -> bool {
    let trees::Operands {
        x,
        columns,
        limits,
        roots,
        levels,
        leaves,
        places,
        next,
        lows,
        highs,
        starts,
        masks,
    } = operands;
    let is = |ty: &TensorType, dtype: DType| ty.dtype == dtype && ty.rank() == 1;
    let lists = |of: &[&TensorType]| of.iter().all(|ty| is(ty, DType::I32));
    let one_more = |ty: &TensorType, than: &TensorType| ty.shape[0] == than.shape[0].clone() + Dim::ONE;
    let count = |ty: &TensorType| ty.shape[0].as_const().unwrap_or(0) as usize;
    x.rank() == 2
        && matches!(x.dtype, DType::F32 | DType::F64)
        && lists(&[columns, limits, roots, levels, leaves, places, next])
        && count(limits) == trees.categories
        && trees.plain + trees.categories <= count(columns)
        && roots.shape == levels.shape
        && leaves.shape == places.shape
        && places.shape == next.shape
        && is(lows, x.dtype)
        && highs.is_none_or(|highs| highs == *lows)
        && starts.map_or(&lows.shape, |starts| &starts.shape) == &next.shape
        && starts.is_none_or(|starts| is(starts, DType::I32))
        && masks.as_ref().is_none_or(|masks| {
            lists(&[masks.trees, masks.words, masks.bases, masks.order, masks.places, masks.bits])
                && is(masks.lows, x.dtype)
                && masks.highs.is_none_or(|highs| highs == masks.lows)
                && masks.bits == masks.places
                && masks.lows.shape == masks.places.shape
                && one_more(masks.trees, roots)
                && one_more(masks.words, masks.bases)
        })
}
