//! Products, the panels and codes of their operands, and the transforms of minimal filtering.

use super::{Types, arity, broadcast_shapes, fail, one};
use crate::error::Result;
use crate::graph::panels::rows_of;
use crate::graph::{
    DOT_DEPTH, DType, Dim, MOST_DIGITS, Op, PAIR_DEPTH, PanelLayout, RhsLayout, TensorType, codes_per_word,
};
use crate::winograd;

pub(in crate::primitives) fn contract(
    inputs: &[&TensorType],
    (batch, m, k): (usize, usize, usize),
    rhs: &RhsLayout,
) -> Types {
    let [a, b, digits @ ..] = inputs else { return fail("a contraction needs two operands") };
    let depth = rhs.depth();
    let result = match (a.dtype, b.dtype, depth) {
        (DType::U8 | DType::I8, DType::I8, 1 | DOT_DEPTH) if k > 0 => DType::I32,
        (DType::I16, DType::I16, 1 | PAIR_DEPTH) if k > 0 => DType::I32,
        (DType::F32, DType::F16 | DType::BF16, 1) => DType::F32,
        (DType::BF16, DType::BF16, PAIR_DEPTH) if k > 0 => DType::F32,
        (a, b, 1) if a == b => a,
        _ => return fail(format!("contraction of {a} with {b}, {depth} steps deep")),
    };
    if a.rank() != batch + m + k || b.rank() != rhs.rank(batch, k) {
        return fail(format!("contraction over {batch} batch, {m} row and {k} inner axes of {a} with {b}"));
    }
    let n = rhs.columns().unwrap_or(&b.shape[b.rank() - 1]).clone();
    for (x, y) in a.shape[batch + m..].iter().zip(&rhs.inner(&b.shape, batch)) {
        if x != y && x.is_const() && y.is_const() {
            return fail(format!("inner dims {x} and {y} of a product differ ({a} with {b})"));
        }
    }
    match rhs {
        RhsLayout::Ordered { short, .. } => is_order_of(digits, (a, b), *short)?,
        _ if !digits.is_empty() => is_digits_of(digits, a, (batch, k))?,
        _ => {}
    }
    let mut shape = broadcast_shapes(&[&a.shape[..batch], &b.shape[..batch]])?;
    shape.extend_from_slice(&a.shape[batch..batch + m]);
    shape.push(n);
    one(result, shape)
}

/// Whether the third input of a contraction is an order of the rows of the panels `b`, with short sums in the first `short`.
fn is_order_of(inputs: &[&TensorType], (a, b): (&TensorType, &TensorType), short: usize) -> Result<()> {
    let rows = rows_of(&b.shape);
    let steps = rows.last().and_then(Dim::as_const);
    let fits = steps.is_some_and(|steps| (short as i64..=1 << 16).contains(&steps));
    let is_order = |order: &&TensorType| order.dtype == DType::U16 && order.shape == rows;
    if a.dtype != DType::U8 || !fits || inputs.len() > 1 || !inputs.iter().all(is_order) {
        return fail(format!("{short} rows with short sums, and an order {inputs:?}, of panels {b} for {a}"));
    }
    Ok(())
}

/// Whether the further inputs of a contraction are a left-hand side as digits.
fn is_digits_of(inputs: &[&TensorType], lhs: &TensorType, (batch, k): (usize, usize)) -> Result<()> {
    let lead = &lhs.shape[..lhs.rank() - 1];
    let is_lead = |ty: &TensorType, dtype: DType| ty.dtype == dtype && ty.shape == lead;
    let fits = match inputs {
        [unit, rest @ ..] => {
            let totals = rest.iter().take_while(|ty| is_lead(ty, DType::I32)).count();
            let digits = &rest[totals..];
            is_lead(unit, DType::F32)
                && (1..=MOST_DIGITS).contains(&digits.len())
                && totals == digits.len().div_ceil(2)
                && digits.iter().all(|ty| ty.dtype == DType::I8 && ty.shape == lhs.shape)
        }
        [] => false,
    };
    match fits && (batch, k, lhs.dtype) == (0, 2, DType::F32) {
        true => Ok(()),
        false => fail(format!("{lhs} as digits {inputs:?} in a contraction over {k} inner axes")),
    }
}

pub(in crate::primitives) fn pack(
    op: &Op,
    inputs: &[&TensorType],
    (batch, k, nr): (usize, usize, usize),
) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let fits = ty.rank() == batch + k + 1 && nr > 0;
    let layout = PanelLayout::of_plain(&ty.shape, batch, batch + k, nr).filter(|_| fits);
    match layout.and_then(|layout| layout.packed()) {
        Some(packed) => one(ty.dtype, packed),
        None => fail(format!("pack of {ty} with {batch} batch and {k} inner axes")),
    }
}

pub(in crate::primitives) fn dequantize(inputs: &[&TensorType], bits: usize) -> Types {
    let [codes, parameters @ ..] = inputs else { return fail("dequantize of nothing") };
    let Some(per_word) = codes_per_word(bits, codes.dtype) else {
        return fail(format!("dequantize of {codes} as codes of {bits} bits"));
    };
    let Some((steps, lead)) = codes.rank().checked_sub(2).map(|axis| {
        (axis, codes.shape[..axis].iter().chain(&codes.shape[axis + 1..]).cloned().collect::<Vec<_>>())
    }) else {
        return fail(format!("dequantize of {codes} as codes of {bits} bits"));
    };
    let is_parameter = |(at, ty): (usize, &&TensorType)| {
        let fits = matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16);
        (fits || at == 1 && ty.dtype == DType::U8) && ty.shape == lead
    };
    if !(1..=2).contains(&parameters.len()) || !parameters.iter().enumerate().all(is_parameter) {
        return fail(format!(
            "dequantize of {codes} by {parameters:?}; scale and zero must have the shape {lead:?}"
        ));
    }
    let mut shape = codes.shape.clone();
    shape[steps] = shape[steps].clone() * Dim::from(per_word);
    one(DType::F32, shape)
}

pub(in crate::primitives) fn winograd_input(op: &Op, inputs: &[&TensorType], tile: usize) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let size = Dim::from(winograd_size(tile)?);
    let (Some(dtype), [n, h, w, c]) = (winograd::of_input(ty.dtype), &ty.shape[..]) else {
        return fail(format!("winograd_input of {ty}"));
    };
    let tiles = |extent: &Dim| (extent.clone() - Dim::from(winograd::KERNEL - 1)).exact_div(&Dim::from(tile));
    let (Some(th), Some(tw)) = (tiles(h), tiles(w)) else {
        return fail(format!("tiles of {tile} do not fill {ty}"));
    };
    one(dtype, vec![n.clone(), th, tw, size.clone() * size, c.clone()])
}

pub(in crate::primitives) fn winograd_filter(op: &Op, inputs: &[&TensorType], tile: usize) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let size = Dim::from(winograd_size(tile)?);
    let taps = Dim::from(winograd::KERNEL * winograd::KERNEL);
    match (winograd::of_filter(ty.dtype), &ty.shape[..]) {
        (Some(dtype), [own, rest @ ..]) if !own.is_const() || *own == taps => {
            one(dtype, [&[size.clone() * size], rest].concat())
        }
        _ => fail(format!("winograd_filter of {ty}")),
    }
}

pub(in crate::primitives) fn winograd_output(
    op: &Op,
    inputs: &[&TensorType],
    tile: usize,
    [height, width]: [&Dim; 2],
) -> Types {
    arity(op, inputs, 1)?;
    let ty = inputs[0];
    let size = winograd_size(tile)?;
    let (true, [squares, n, th, tw, c]) = (winograd::has_results(ty.dtype), &ty.shape[..]) else {
        return fail(format!("winograd_output of {ty}"));
    };
    let wanted = [Dim::from(size.saturating_mul(size)), squares_of(height, tile), squares_of(width, tile)];
    let differs = |(dim, wanted): (&Dim, &Dim)| dim.is_const() && wanted.is_const() && dim != wanted;
    if [squares, th, tw].into_iter().zip(&wanted).any(differs) {
        return fail(format!("{height}x{width} from tiles of {tile} in {ty}"));
    }
    one(ty.dtype, vec![n.clone(), height.clone(), width.clone(), c.clone()])
}

/// The number of tiles that cover a number of results.
pub(in crate::primitives) fn squares_of(results: &Dim, tile: usize) -> Dim {
    results.ceil_div(&Dim::from(tile.max(1))).unwrap_or(Dim::ZERO)
}

/// Rows of the squares that tiles of this size come from.
fn winograd_size(tile: usize) -> Result<usize> {
    match winograd::tiles().any(|known| known == tile) {
        true => Ok(tile + winograd::KERNEL - 1),
        false => fail(format!("Winograd tiles of {tile}")),
    }
}
