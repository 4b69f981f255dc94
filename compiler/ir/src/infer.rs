//! Type inference of the primitives: result types from operand types, and the elements of small integer
//! tensors as symbolic dims ("known values"), so that exported shape arithmetic disappears.
//!
//! This is the only place that states a primitive's shape rule in code, and what it needs of sizes that only show at run
//! time, so that no lowering can make it read or write what is not there. Operator rows need no rule of their
//! own: their lowering emits primitives, and each is inferred as it is emitted.

mod control;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::error::{Error, Result, Stage};
use crate::graph::claim::{Stated, V};
use crate::graph::dim::{overgrown, product};
use crate::graph::{
    DOT_DEPTH, DType, Dim, MAX_KNOWN, MOST_DIGITS, MapFn, Op, PAIR_DEPTH, Requirement, RhsLayout, TensorType,
    Trees, codes_per_word, trees,
};
use crate::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use crate::winograd;

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

/// Whether the third input of a contraction is an order of the rows of the panels `b`, with short sums in the first `short`.
fn is_order_of(inputs: &[&TensorType], (a, b): (&TensorType, &TensorType), short: usize) -> Result<()> {
    let rows = &b.shape[..b.rank() - 1];
    let steps = rows.last().and_then(Dim::as_const);
    let fits = steps.is_some_and(|steps| (short as i64..=1 << 16).contains(&steps));
    let is_order = |order: &&TensorType| order.dtype == DType::U16 && order.shape == rows;
    if a.dtype != DType::U8 || !fits || inputs.len() > 1 || !inputs.iter().all(is_order) {
        return fail(format!("{short} rows with short sums, and an order {inputs:?}, of panels {b} for {a}"));
    }
    Ok(())
}

/// What an operation needs of the sizes of its operands and results so that every element it reads and writes exists.
/// The ranks are those that inference has checked.
fn requirements(op: &Op, inputs: &[&TensorType], results: &[TensorType]) -> Vec<Stated> {
    let mut list = Needs::default();
    match op {
        Op::Map(_) => inputs.iter().for_each(|ty| list.broadcasts(&ty.shape, &results[0].shape)),
        Op::Contract { batch, m, k, rhs } => {
            let (a, b) = (&inputs[0].shape, &inputs[1].shape);
            list.broadcasts(&a[..*batch], &results[0].shape[..*batch]);
            list.broadcasts(&b[..*batch], &results[0].shape[..*batch]);
            let skip = usize::from(*rhs != RhsLayout::Plain);
            let mut inner = b[batch + skip..batch + skip + k].to_vec();
            if let (Some((_, depth, _)), Some(last)) = (rhs.panels(), inner.last_mut()) {
                *last = last.clone() * Dim::from(depth);
            }
            list.all_equal("an inner dimension of a product", &a[batch + m..], &inner);
            if let Some((nr, depth, n)) = rhs.panels() {
                let panels = n.ceil_div(&Dim::from(nr.max(1))).unwrap_or(Dim::ZERO);
                list.all_equal("the number of panels of a product", &b[*batch..=*batch], &[panels]);
                list.all_equal("the width of a panel", &b[b.len() - 1..], &[Dim::from(nr * depth)]);
            }
        }
        Op::Expand { shape } => list.broadcasts(&inputs[0].shape, shape),
        Op::Reshape { shape } => {
            let (elements, wanted) = (inputs[0].elements(), product(shape));
            let text = || format!("{V} elements do not fit a shape of {V} elements");
            let requirement = Requirement::equal(elements.clone(), wanted.clone());
            list.add(requirement, |own| own.stated(text(), &[&elements, &wanted]));
        }
        Op::Slice { starts, steps, sizes } => {
            for (axis, extent) in inputs[0].shape.iter().enumerate() {
                list.inside(axis, [&starts[axis], &sizes[axis], extent], steps[axis]);
            }
        }
        Op::Pad { lo, hi } | Op::ImplicitPad { lo, hi } => {
            lo.iter().chain(hi).for_each(|pad| list.not_negative("the number of elements to pad with", pad));
        }
        Op::Concat { axis } => {
            let name = "a dimension of tensors to join, other than that along which they are joined,";
            for ty in &inputs[1..] {
                list.all_equal(name, &inputs[0].shape[..*axis], &ty.shape[..*axis]);
                list.all_equal(name, &inputs[0].shape[axis + 1..], &ty.shape[axis + 1..]);
            }
        }
        // Fewer elements than a window reaches over make no window.
        Op::Window { .. } => {
            let name = "the number of positions of a window, which the input must be large enough for,";
            results[0].shape.iter().for_each(|dim| list.not_negative(name, dim));
        }
        Op::GatherElements { axis } => {
            list.all_at_most("a dimension of indices", &inputs[1].shape, &inputs[0].shape, *axis);
        }
        Op::GatherNd { batch } => {
            let name = "a batch dimension of indices";
            list.all_equal(name, &inputs[1].shape[..*batch], &inputs[0].shape[..*batch]);
        }
        Op::ScatterElements { axis, .. } => {
            list.all_equal("a dimension of updates", &inputs[2].shape, &inputs[1].shape);
            list.all_at_most("a dimension of indices", &inputs[1].shape, &inputs[0].shape, *axis);
        }
        Op::ScatterNd { .. } => {
            let (data, indices, updates) = (&inputs[0].shape, &inputs[1].shape, &inputs[2].shape);
            let (lead, name) = (indices.len() - 1, "a dimension of updates");
            list.all_equal(name, &updates[..lead], &indices[..lead]);
            list.all_equal(name, &updates[lead..], &data[data.len() + lead - updates.len()..]);
        }
        Op::Sort { axis, take, .. } => {
            let (name, extent) = ("the number of elements to take", inputs[0].shape[*axis].clone());
            list.not_negative(name, take);
            let requirement = Requirement::at_most(take.clone(), extent);
            list.add(requirement, |own| own.says(name, format!("dimension {axis}")));
        }
        Op::Append { axis, at, panel } => {
            let (state, new) = (&inputs[0].shape, &inputs[1].shape);
            list.not_negative("the place to append at", at);
            let room = state[*axis].clone() * Dim::from(panel.unwrap_or(1));
            let full = Requirement::at_most(at.clone() + new[*axis].clone(), room);
            list.add(full, |own| own.says("the size of a state", "its capacity"));
            list.all_equal("a dimension of a state", &state[..*axis], &new[..*axis]);
            list.all_equal("a dimension of a state", &state[axis + 1..new.len()], &new[axis + 1..]);
        }
        Op::Suppress { take } => {
            list.not_negative("the number of boxes to keep", take);
            let name = "a dimension of boxes";
            inputs[..4].iter().for_each(|ty| list.all_equal(name, &ty.shape, &inputs[4].shape));
        }
        Op::Leaves(trees) => {
            let requirement = Requirement::at_most(Dim::from(trees.features), inputs[0].shape[1].clone());
            list.add(requirement, |own| own.says_at_least("the number of features", trees.features));
        }
        Op::Scan { trip, .. } => list.not_negative("the number of iterations", trip),
        Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Pack { .. }
        | Op::Dequantize { .. }
        | Op::Transpose { .. }
        | Op::WinogradInput { .. }
        | Op::WinogradOutput { .. }
        | Op::Gather { .. }
        | Op::Iota { .. }
        | Op::DimValues { .. }
        | Op::Cumulate { .. }
        | Op::If { .. }
        | Op::Call(_)
        | Op::External(_)
        | Op::Exchange(_) => {}
    }
    list.0
}

/// What an operation needs, in general terms: rows of the operator table say before what it means for their operands.
#[derive(Default)]
struct Needs(Vec<Stated>);

impl Needs {
    /// `state` says a requirement that does not hold in every run.
    fn add(&mut self, requirement: Requirement, state: impl FnOnce(Requirement) -> Stated) {
        if requirement.verdict() != Some(true) {
            self.0.push(state(requirement));
        }
    }

    fn not_negative(&mut self, name: &str, dim: &Dim) {
        self.add(Requirement::at_most(Dim::ZERO, dim.clone()), |own| own.says_at_least(name, 0));
    }

    /// Each dim of `from` is that of `to`, or 1, from their ends on.
    fn broadcasts(&mut self, from: &[Dim], to: &[Dim]) {
        let pairs = from.iter().rev().zip(to.iter().rev()).filter(|(from, to)| from != to);
        for (from, to) in pairs {
            let requirement = Requirement::broadcasts(from.clone(), to.clone());
            self.add(requirement, |own| {
                own.says("a dimension of an operand", "that which it is broadcast to")
            });
        }
    }

    fn all_equal(&mut self, name: &str, a: &[Dim], b: &[Dim]) {
        let pairs = a.iter().zip(b).filter(|(a, b)| a != b);
        let text = || format!("{name} is {V} in one operand and {V} in another; it must be the same in both");
        for (a, b) in pairs {
            self.add(Requirement::equal(a.clone(), b.clone()), |own| own.stated(text(), &[a, b]));
        }
    }

    /// Each dim of `few` is at most that of `many`, but for one axis.
    fn all_at_most(&mut self, name: &str, few: &[Dim], many: &[Dim], but: usize) {
        let axes = few.iter().zip(many).enumerate().filter(|(axis, _)| *axis != but);
        for (axis, (few, many)) in axes {
            let requirement = Requirement::at_most(few.clone(), many.clone());
            self.add(requirement, |own| own.says(name, format!("dimension {axis} of data")));
        }
    }

    /// `size` elements along an axis from `start` on, each `step` further, lie in `extent`. No elements lie anywhere.
    fn inside(&mut self, axis: usize, [start, size, extent]: [&Dim; 3], step: i64) {
        self.not_negative(&format!("the number of elements to take along axis {axis}"), size);
        if size.as_const() == Some(0) {
            return;
        }
        let last = start.clone() + (size.clone() - Dim::ONE) * Dim::from(step);
        let (lowest, highest) = if step < 0 { (last, start.clone()) } else { (start.clone(), last) };
        self.not_negative(&format!("the first element to take along axis {axis}"), &lowest);
        let within = Requirement::at_most(highest.clone() + Dim::ONE, extent.clone());
        let requirement = match size.bounds().0 {
            // Of an axis of nothing no element is read, but it starts at one, walking backwards.
            Some(1..) => within,
            _ if step > 0 || within.verdict() == Some(true) => within,
            _ => Requirement::at_most((highest.clone() + Dim::ONE) * size.min_dim(&Dim::ONE), extent.clone()),
        };
        let text = || format!("element {V} is taken along axis {axis}, which has {V} elements");
        self.add(requirement, |own| own.stated(text(), &[&highest, extent]));
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
    let results = result_types(op, inputs)?;
    results.iter().try_for_each(|ty| ty.check_size(Stage::Infer))?;
    if op.dims().into_iter().any(Dim::is_overgrown) {
        return Err(overgrown(Stage::Infer, format!("a size of {}", op.name())));
    }
    let requirements = requirements(op, inputs, &results);
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

fn result_types(op: &Op, inputs: &[&TensorType]) -> Result<Vec<TensorType>> {
    let one = |dtype: DType, shape: Vec<Dim>| Ok(vec![TensorType { dtype, shape }]);
    match op {
        Op::Map(function) => {
            let shapes: Vec<&[Dim]> = inputs.iter().map(|ty| ty.shape.as_slice()).collect();
            one(infer_map(op, *function, inputs)?, broadcast_shapes(&shapes)?)
        }
        Op::Reduce { op: function, axes } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            if matches!(function, ReduceFn::And | ReduceFn::Or) != (ty.dtype == DType::Bool) {
                return fail(format!("reduce {function} of {ty}"));
            }
            let mut shape = ty.shape.clone();
            for &axis in axes {
                check_axis(axis, ty)?;
                shape[axis] = Dim::ONE;
            }
            one(ty.dtype, shape)
        }
        Op::ArgReduce { axis, .. } => {
            arity(op, inputs, 1)?;
            check_axis(*axis, inputs[0])?;
            let mut shape = inputs[0].shape.clone();
            shape[*axis] = Dim::ONE;
            one(DType::I64, shape)
        }
        Op::Contract { batch, m, k, rhs } => {
            let [a, b, digits @ ..] = inputs else { return fail("a contraction needs two operands") };
            let depth = rhs.panels().map_or(1, |(_, depth, _)| depth);
            let result = match (a.dtype, b.dtype, depth) {
                (DType::U8 | DType::I8, DType::I8, 1 | DOT_DEPTH) if *k > 0 => DType::I32,
                (DType::I16, DType::I16, 1 | PAIR_DEPTH) if *k > 0 => DType::I32,
                (DType::F32, DType::F16 | DType::BF16, 1) => DType::F32,
                (DType::BF16, DType::BF16, PAIR_DEPTH) if *k > 0 => DType::F32,
                (a, b, 1) if a == b => a,
                _ => return fail(format!("contraction of {a} with {b}, {depth} steps deep")),
            };
            let skip = usize::from(*rhs != RhsLayout::Plain);
            let b_rank = batch + k + 1 + skip;
            if a.rank() != batch + m + k || b.rank() != b_rank {
                return fail(format!(
                    "contraction over {batch} batch, {m} row and {k} inner axes of {a} with {b}"
                ));
            }
            let n = rhs.panels().map_or_else(|| b.shape[batch + k].clone(), |(.., n)| n.clone());
            let mut b_inner = b.shape[batch + skip..batch + skip + k].to_vec();
            if let Some(last) = b_inner.last_mut() {
                *last = last.clone() * Dim::from(depth);
            }
            for (x, y) in a.shape[batch + m..].iter().zip(&b_inner) {
                if x != y && x.is_const() && y.is_const() {
                    return fail(format!("inner dims {x} and {y} of a product differ ({a} with {b})"));
                }
            }
            match rhs {
                RhsLayout::Ordered { short, .. } => is_order_of(digits, (a, b), *short)?,
                _ if !digits.is_empty() => is_digits_of(digits, a, (*batch, *k))?,
                _ => {}
            }
            let mut shape = broadcast_shapes(&[&a.shape[..*batch], &b.shape[..*batch]])?;
            shape.extend_from_slice(&a.shape[*batch..batch + m]);
            shape.push(n);
            one(result, shape)
        }
        Op::Pack { batch, k, nr } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            if ty.rank() != batch + k + 1 || *nr == 0 {
                return fail(format!("pack of {ty} with {batch} batch and {k} inner axes"));
            }
            let mut shape = ty.shape[..*batch].to_vec();
            shape.push(ty.shape[batch + k].ceil_div(&Dim::from(*nr)).expect("nr is not zero"));
            shape.extend_from_slice(&ty.shape[*batch..batch + k]);
            shape.push(Dim::from(*nr));
            one(ty.dtype, shape)
        }
        Op::Dequantize { bits, .. } => {
            let [codes, parameters @ ..] = inputs else { return fail("dequantize of nothing") };
            let Some(per_word) = codes_per_word(*bits, codes.dtype) else {
                return fail(format!("dequantize of {codes} as codes of {bits} bits"));
            };
            let Some((steps, lead)) = codes.rank().checked_sub(2).map(|axis| {
                (
                    axis,
                    codes.shape[..axis].iter().chain(&codes.shape[axis + 1..]).cloned().collect::<Vec<_>>(),
                )
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
        Op::Reshape { shape } => {
            arity(op, inputs, 1)?;
            let (from, to) = (inputs[0].elements(), product(shape));
            if let (Some(a), Some(b)) = (from.as_const(), to.as_const())
                && a != b
            {
                return fail(format!("reshape of {} ({a} elements) to {shape:?} ({b} elements)", inputs[0]));
            }
            one(inputs[0].dtype, shape.clone())
        }
        Op::Transpose { perm } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted != (0..ty.rank()).collect::<Vec<_>>() {
                return fail(format!("permutation {perm:?} of the axes of {ty}"));
            }
            one(ty.dtype, perm.iter().map(|&axis| ty.shape[axis].clone()).collect())
        }
        Op::Expand { shape } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            let fits = ty.rank() <= shape.len()
                && ty.shape.iter().rev().zip(shape.iter().rev()).all(|(from, to)| {
                    from == to || from.as_const() == Some(1) || !(from.is_const() && to.is_const())
                });
            if !fits {
                return fail(format!("{ty} does not broadcast to {shape:?}"));
            }
            one(ty.dtype, shape.clone())
        }
        Op::Slice { starts, steps, sizes } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            if [starts.len(), steps.len(), sizes.len()] != [ty.rank(); 3] {
                return fail(format!("slice of {ty} needs one entry per axis"));
            }
            for axis in 0..ty.rank() {
                if let (Some(start), Some(size), Some(extent)) =
                    (starts[axis].as_const(), sizes[axis].as_const(), ty.shape[axis].as_const())
                {
                    let last = start.saturating_add(size.saturating_sub(1).saturating_mul(steps[axis]));
                    let inside = |index: i64| (0..extent).contains(&index);
                    if size < 0 || (size > 0 && !(inside(start) && inside(last))) {
                        return fail(format!("slice of axis {axis} of {ty}: {size} elements from {start}"));
                    }
                }
            }
            one(ty.dtype, sizes.clone())
        }
        Op::Pad { lo, hi } | Op::ImplicitPad { lo, hi } => {
            arity(op, inputs, if matches!(op, Op::Pad { .. }) { 2 } else { 1 })?;
            let (ty, fill) = (inputs[0], inputs.get(1));
            if lo.len() != ty.rank()
                || hi.len() != ty.rank()
                || fill.is_some_and(|fill| fill.dtype != ty.dtype || fill.rank() != 0)
            {
                let fill = fill.map_or("zeros".to_string(), |fill| fill.to_string());
                return fail(format!("pad of {ty} by {lo:?} and {hi:?} with {fill}"));
            }
            if lo.iter().chain(hi).any(|pad| pad.as_const().is_some_and(|value| value < 0)) {
                return fail(format!("negative pads {lo:?}, {hi:?}"));
            }
            let shape = ty
                .shape
                .iter()
                .zip(lo.iter().zip(hi))
                .map(|(dim, (lo, hi))| dim.clone() + lo.clone() + hi.clone());
            one(ty.dtype, shape.collect())
        }
        Op::Concat { axis } => {
            let Some(first) = inputs.first() else { return fail("concatenation of nothing") };
            check_axis(*axis, first)?;
            let mut shape = first.shape.clone();
            for ty in &inputs[1..] {
                if ty.dtype != first.dtype || ty.rank() != first.rank() {
                    return fail(format!("concatenation of {first} and {ty}"));
                }
                for (at, dim) in ty.shape.iter().enumerate() {
                    if at == *axis {
                        shape[at] = shape[at].clone() + dim.clone();
                    } else if shape[at] != *dim {
                        if shape[at].is_const() && dim.is_const() {
                            return fail(format!("concatenation along axis {axis} of {first} and {ty}"));
                        } else if dim.is_const() {
                            shape[at] = dim.clone();
                        }
                    }
                }
            }
            one(first.dtype, shape)
        }
        Op::Window { first, kernel, strides, dilations } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            let rank = kernel.len();
            if first + rank > ty.rank() || strides.len() != rank || dilations.len() != rank {
                return fail(format!("window {kernel:?} over {ty}"));
            }
            let mut shape = ty.shape[..*first].to_vec();
            for at in 0..rank {
                if strides[at] == 0 || kernel[at] == 0 || dilations[at] == 0 {
                    return fail("a window's kernel, strides and dilations must be positive");
                }
                let reach = (kernel[at] - 1).saturating_mul(dilations[at]).saturating_add(1);
                let room = ty.shape[first + at].clone() - Dim::from(reach);
                let steps = room.floor_div(&Dim::from(strides[at])).expect("strides are positive");
                let places = steps + Dim::ONE;
                // By less than a stride too wide, it has no place.
                if places.as_const().is_some_and(|places| places < 0) {
                    return fail(format!("a window of {reach} does not fit axis {} of {ty}", first + at));
                }
                shape.push(places);
            }
            shape.extend(kernel.iter().map(|&size| Dim::from(size)));
            shape.extend_from_slice(&ty.shape[first + rank..]);
            one(ty.dtype, shape)
        }
        Op::WinogradInput { tile } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            let size = Dim::from(winograd_size(*tile)?);
            let (Some(dtype), [n, h, w, c]) = (winograd::of_input(ty.dtype), &ty.shape[..]) else {
                return fail(format!("winograd_input of {ty}"));
            };
            let tiles = |extent: &Dim| {
                (extent.clone() - Dim::from(winograd::KERNEL - 1)).exact_div(&Dim::from(*tile))
            };
            let (Some(th), Some(tw)) = (tiles(h), tiles(w)) else {
                return fail(format!("tiles of {tile} do not fill {ty}"));
            };
            one(dtype, vec![n.clone(), th, tw, size.clone() * size, c.clone()])
        }
        Op::WinogradOutput { tile, height, width } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            let size = winograd_size(*tile)?;
            let (true, [squares, n, th, tw, c]) = (winograd::has_results(ty.dtype), &ty.shape[..]) else {
                return fail(format!("winograd_output of {ty}"));
            };
            let counts = [
                (squares, size.saturating_mul(size)),
                (th, height.div_ceil(*tile)),
                (tw, width.div_ceil(*tile)),
            ];
            if counts.iter().any(|(dim, wanted)| dim.as_const().is_some_and(|count| count != *wanted as i64))
            {
                return fail(format!("{height}x{width} from tiles of {tile} in {ty}"));
            }
            one(ty.dtype, vec![n.clone(), Dim::from(*height), Dim::from(*width), c.clone()])
        }
        Op::Gather { axis } => {
            arity(op, inputs, 2)?;
            check_axis(*axis, inputs[0])?;
            if inputs[1].dtype != DType::U8 {
                check_indices(inputs[1])?;
            }
            let mut shape = inputs[0].shape[..*axis].to_vec();
            shape.extend_from_slice(&inputs[1].shape);
            shape.extend_from_slice(&inputs[0].shape[axis + 1..]);
            one(inputs[0].dtype, shape)
        }
        Op::GatherElements { axis } => {
            arity(op, inputs, 2)?;
            check_axis(*axis, inputs[0])?;
            check_indices(inputs[1])?;
            if inputs[0].rank() != inputs[1].rank() {
                return fail(format!("gather_elements of {} by {}", inputs[0], inputs[1]));
            }
            one(inputs[0].dtype, inputs[1].shape.clone())
        }
        Op::GatherNd { batch } => {
            arity(op, inputs, 2)?;
            check_indices(inputs[1])?;
            let (data, indices) = (inputs[0], inputs[1]);
            let Some(depth) = indices.shape.last().and_then(Dim::as_const) else {
                return Err(Error::unsupported(Stage::Infer, format!("gather_nd with indices {indices}")));
            };
            let depth = depth as usize;
            if *batch >= indices.rank() || batch + depth > data.rank() {
                return fail(format!("gather_nd of {data} by {indices} with {batch} batch axes"));
            }
            let mut shape = indices.shape[..indices.rank() - 1].to_vec();
            shape.extend_from_slice(&data.shape[batch + depth..]);
            one(data.dtype, shape)
        }
        Op::ScatterElements { axis, .. } => {
            arity(op, inputs, 3)?;
            check_axis(*axis, inputs[0])?;
            check_indices(inputs[1])?;
            let (indices, updates) = (&inputs[1].shape, &inputs[2].shape);
            let differ = |(a, b): (&Dim, &Dim)| a.is_const() && b.is_const() && a != b;
            if indices.len() != inputs[0].rank()
                || indices.len() != updates.len()
                || indices.iter().zip(updates).any(differ)
            {
                return fail(format!(
                    "scatter_elements of {} into {} at {}",
                    inputs[2], inputs[0], inputs[1]
                ));
            }
            one(inputs[0].dtype, inputs[0].shape.clone())
        }
        Op::ScatterNd { .. } => {
            arity(op, inputs, 3)?;
            check_indices(inputs[1])?;
            let depth = inputs[1].shape.last().and_then(Dim::as_const);
            let fits = |depth: i64| {
                depth as usize <= inputs[0].rank()
                    && inputs[2].rank() + 1 + depth as usize == inputs[1].rank() + inputs[0].rank()
            };
            match depth {
                Some(depth) if fits(depth) => {}
                None if inputs[1].rank() > 0 => {
                    let message = format!("scatter_nd with indices {}", inputs[1]);
                    return Err(Error::unsupported(Stage::Infer, message));
                }
                _ => {
                    let (data, indices, updates) = (inputs[0], inputs[1], inputs[2]);
                    return fail(format!("scatter_nd of {updates} into {data} at {indices}"));
                }
            }
            one(inputs[0].dtype, inputs[0].shape.clone())
        }
        Op::Iota { shape, axis } => {
            arity(op, inputs, 0)?;
            if *axis >= shape.len() {
                return fail(format!("iota along axis {axis} of {shape:?}"));
            }
            one(DType::I64, shape.clone())
        }
        Op::DimValues { dims } => {
            arity(op, inputs, 0)?;
            one(DType::I64, vec![Dim::from(dims.len())])
        }
        Op::Cumulate { axis, .. } => {
            arity(op, inputs, 1)?;
            check_axis(*axis, inputs[0])?;
            one(inputs[0].dtype, inputs[0].shape.clone())
        }
        Op::Sort { axis, take, .. } => {
            arity(op, inputs, 1)?;
            let ty = inputs[0];
            check_axis(*axis, ty)?;
            let room = ty.shape[*axis].clone() - take.clone();
            if take.as_const().is_some_and(|count| count < 0) || room.as_const().is_some_and(|room| room < 0)
            {
                return fail(format!("the first {take} elements along axis {axis} of {ty}"));
            }
            let mut shape = ty.shape.clone();
            shape[*axis] = take.clone();
            Ok(vec![TensorType::new(ty.dtype, shape.clone()), TensorType::new(DType::I64, shape)])
        }
        Op::Append { axis, panel, .. } => {
            arity(op, inputs, 2)?;
            let (state, new) = (inputs[0], inputs[1]);
            check_axis(*axis, new)?;
            let rank = new.rank() + usize::from(panel.is_some());
            let columns = panel.map(Dim::from);
            if new.dtype != state.dtype
                || state.rank() != rank
                || columns.is_some_and(|columns| state.shape.last() != Some(&columns) || columns == Dim::ZERO)
            {
                return fail(format!("{new} appended to {state}"));
            }
            one(state.dtype, state.shape.clone())
        }
        Op::Suppress { take } => {
            arity(op, inputs, 6)?;
            let [boxes @ .., candidate, limit] = inputs else { unreachable!("the arity is checked") };
            let wanted = |ty: &TensorType, dtype| ty.dtype == dtype && ty.rank() == candidate.rank();
            let fits = candidate.rank() > 0
                && boxes.iter().all(|ty| wanted(ty, DType::F32))
                && wanted(candidate, DType::Bool)
                && limit.dtype == DType::F32
                && limit.rank() == 0
                && take.as_const().is_none_or(|take| take >= 0);
            if !fits {
                return fail(format!("suppression of {inputs:?}, {take} kept"));
            }
            let mut shape = candidate.shape.clone();
            *shape.last_mut().expect("the rank is checked") = take.clone();
            one(DType::I64, shape)
        }
        Op::Leaves(trees) => match trees.operands(inputs) {
            Some(operands) if are_trees(trees, &operands) => {
                one(DType::I32, vec![operands.x.shape[0].clone(), operands.roots.shape[0].clone()])
            }
            _ => fail(format!("leaves of {inputs:?}")),
        },
        Op::Scan { .. } => control::scan(op, inputs),
        Op::If { bodies, shapes } => control::choice(bodies, inputs, shapes),
        Op::Call(call) => call.check(inputs).map(|()| vec![call.result.clone()]),
        Op::External(external) => external.infer(inputs),
        Op::Exchange(exchange) => exchange.infer(inputs),
    }
}

fn check_indices(ty: &TensorType) -> Result<()> {
    match ty.dtype {
        DType::I32 | DType::I64 => Ok(()),
        _ => fail(format!("indices of type {ty}")),
    }
}

fn infer_map(op: &Op, function: MapFn, inputs: &[&TensorType]) -> Result<DType> {
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

/// Elements of the (single) result, where they follow from the operands' elements. `known[i]` belongs to `inputs[i]`;
/// `result` is the inferred type.
pub fn infer_known(
    op: &Op,
    inputs: &[&TensorType],
    known: &[Option<Arc<[Dim]>>],
    result: &TensorType,
) -> Option<Arc<[Dim]>> {
    if let Op::DimValues { dims } = op {
        return Some(dims.as_slice().into());
    }
    if result.dtype.is_float() && !matches!(result.dtype, DType::F32 | DType::F64) {
        return None;
    }
    let shape = result.static_shape()?;
    let count = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
    if count > MAX_KNOWN {
        return None;
    }
    if let Op::Iota { axis, .. } = op {
        return Some(indices(&shape).map(|index| Dim::from(index[*axis])).collect());
    }
    let known: Option<Vec<&[Dim]>> = known.iter().map(|elements| elements.as_deref()).collect();
    let known = known?;
    let shapes: Option<Vec<Vec<usize>>> = inputs.iter().map(|ty| ty.static_shape()).collect();
    let shapes = shapes?;
    let at = |input: usize, index: &[usize]| -> Dim {
        // NumPy broadcast: align trailing axes, size-1 axes repeat.
        let lead = index.len() - shapes[input].len();
        let offset = shapes[input]
            .iter()
            .enumerate()
            .fold(0, |offset, (axis, &size)| offset * size + if size == 1 { 0 } else { index[lead + axis] });
        known[input][offset].clone()
    };
    let small = |dim: &Dim| dim.as_const().and_then(|value| usize::try_from(value).ok());
    match op {
        Op::Map(function) => indices(&shape)
            .map(|index| {
                let arguments: Vec<Dim> = (0..inputs.len()).map(|input| at(input, &index)).collect();
                known_scalar(*function, &arguments, inputs[0].dtype)
            })
            .collect::<Option<Vec<_>>>()
            .map(Into::into),
        Op::Reshape { .. } => Some(known[0].into()),
        Op::Expand { .. } => Some(indices(&shape).map(|index| at(0, &index)).collect()),
        Op::Transpose { perm } => Some(
            indices(&shape)
                .map(|index| {
                    let mut source = vec![0; perm.len()];
                    perm.iter().enumerate().for_each(|(to, &from)| source[from] = index[to]);
                    at(0, &source)
                })
                .collect(),
        ),
        Op::Slice { starts, steps, .. } => {
            let starts: Option<Vec<i64>> = starts.iter().map(Dim::as_const).collect();
            let starts = starts?;
            Some(
                indices(&shape)
                    .map(|index| {
                        let source: Vec<usize> = (0..index.len())
                            .map(|a| (starts[a] + index[a] as i64 * steps[a]) as usize)
                            .collect();
                        let offset = source
                            .iter()
                            .zip(&shapes[0])
                            .fold(0, |offset, (index, size)| offset * size + index);
                        known[0][offset].clone()
                    })
                    .collect(),
            )
        }
        Op::Concat { axis } => Some(
            indices(&shape)
                .map(|mut index| {
                    let mut input = 0;
                    while index[*axis] >= shapes[input][*axis] {
                        index[*axis] -= shapes[input][*axis];
                        input += 1;
                    }
                    let offset = index
                        .iter()
                        .zip(&shapes[input])
                        .fold(0, |offset, (index, size)| offset * size + index);
                    known[input][offset].clone()
                })
                .collect(),
        ),
        Op::Gather { axis } => {
            let size = shapes[0][*axis];
            let picks: Option<Vec<usize>> = known[1]
                .iter()
                .map(|dim| {
                    let index = dim.as_const()?;
                    let index = if index < 0 { index + size as i64 } else { index };
                    usize::try_from(index).ok().filter(|&index| index < size)
                })
                .collect();
            let picks = picks?;
            let (rank, tail) = (shapes[1].len(), shapes[0].len() - axis - 1);
            Some(
                indices(&shape)
                    .map(|index| {
                        let pick = index[*axis..axis + rank]
                            .iter()
                            .zip(&shapes[1])
                            .fold(0, |offset, (index, size)| offset * size + index);
                        let mut source = index[..*axis].to_vec();
                        source.push(picks[pick]);
                        source.extend_from_slice(&index[index.len() - tail..]);
                        let offset = source
                            .iter()
                            .zip(&shapes[0])
                            .fold(0, |offset, (index, size)| offset * size + index);
                        known[0][offset].clone()
                    })
                    .collect(),
            )
        }
        Op::Pad { lo, .. } => {
            let lo: Option<Vec<usize>> = lo.iter().map(small).collect();
            let lo = lo?;
            Some(
                indices(&shape)
                    .map(|index| {
                        let mut offset = 0;
                        for axis in 0..index.len() {
                            match index[axis].checked_sub(lo[axis]) {
                                Some(inner) if inner < shapes[0][axis] => {
                                    offset = offset * shapes[0][axis] + inner
                                }
                                _ => return known[1][0].clone(),
                            }
                        }
                        known[0][offset].clone()
                    })
                    .collect(),
            )
        }
        Op::Reduce { op: function, axes } => {
            let mut out: Vec<Option<Dim>> = vec![None; count];
            for (flat, index) in indices(&shapes[0]).enumerate() {
                let to = (0..index.len()).fold(0, |offset, axis| {
                    offset * shape[axis] + if axes.contains(&axis) { 0 } else { index[axis] }
                });
                let element = known[0][flat].clone();
                out[to] = Some(match out[to].take() {
                    None => element,
                    Some(sum) => {
                        known_scalar(MapFn::Binary(function.combine()), &[sum, element], inputs[0].dtype)?
                    }
                });
            }
            let identity = match function {
                ReduceFn::Sum => Some(Dim::ZERO),
                ReduceFn::Prod => Some(Dim::ONE),
                _ => None,
            };
            out.into_iter()
                .map(|element| element.or_else(|| identity.clone()))
                .collect::<Option<Vec<_>>>()
                .map(Into::into)
        }
        _ => None,
    }
}

/// Whether a function of floats may be -0 or NaN where that of the integers that they hold is 0 or another constant.
fn is_other_zero(function: MapFn, arguments: &[Dim], result: &Dim) -> bool {
    let least = |at: usize| arguments[at].bounds().0;
    match function {
        MapFn::Unary(UnaryFn::Neg) => *result == Dim::ZERO,
        MapFn::Binary(BinaryFn::Mul) => {
            *result == Dim::ZERO && (0..2).any(|at| least(at).is_none_or(|least| least < 0))
        }
        // 0 divided by 0 is NaN, by a negative number -0.
        MapFn::Binary(BinaryFn::Div) => result.is_const() && least(1).is_none_or(|least| least < 1),
        _ => false,
    }
}

/// A scalar function of dims. Float operands hold integers; a result that might not be one gives `None`.
fn known_scalar(function: MapFn, arguments: &[Dim], dtype: DType) -> Option<Dim> {
    let result = known_integer(function, arguments, dtype)?;
    let is_other = dtype.is_float() && is_other_zero(function, arguments, &result);
    (!is_other).then_some(result)
}

/// The same of integers.
fn known_integer(function: MapFn, arguments: &[Dim], dtype: DType) -> Option<Dim> {
    let constant = |at: usize| arguments[at].as_const();
    let (first, second) = (&arguments[0], arguments.get(1));
    match function {
        MapFn::Cast { to, .. } => match to {
            DType::Bool => first.as_const().map(|value| Dim::from(i64::from(value != 0))),
            DType::I64 | DType::F64 | DType::F32 => Some(first.clone()),
            DType::I32 => match first.as_const() {
                Some(value) => i32::try_from(value).ok().map(|_| first.clone()),
                None => Some(first.clone()),
            },
            _ => None,
        },
        MapFn::Unary(UnaryFn::Neg) => Some(-first.clone()),
        MapFn::Unary(UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round | UnaryFn::Trunc) => Some(first.clone()),
        MapFn::Unary(UnaryFn::Abs) => match first.bounds() {
            (Some(low), _) if low >= 0 => Some(first.clone()),
            _ => constant(0).map(|value| Dim::from(value.saturating_abs())),
        },
        MapFn::Unary(UnaryFn::Not) => constant(0).map(|value| Dim::from(1 - value)),
        MapFn::Binary(function) => {
            let second = second?;
            match function {
                BinaryFn::Add => Some(first.clone() + second.clone()),
                BinaryFn::Sub => Some(first.clone() - second.clone()),
                BinaryFn::Mul => Some(first.clone() * second.clone()),
                BinaryFn::Min => Some(first.min_dim(second)),
                BinaryFn::Max => Some(first.max_dim(second)),
                BinaryFn::Div if dtype.is_float() => first.exact_div(second),
                // Truncation equals flooring while neither side is negative.
                BinaryFn::Div if first.bounds().0? >= 0 && second.bounds().0? >= 0 => first.floor_div(second),
                BinaryFn::Div => match (constant(0)?, constant(1)?) {
                    (_, 0) => None,
                    (a, b) => Some(Dim::from(a.wrapping_div(b))),
                },
                BinaryFn::Mod if second.bounds().0? > 0 => first.modulo(second),
                BinaryFn::And => Some(Dim::from(i64::from(constant(0)? != 0 && constant(1)? != 0))),
                BinaryFn::Or => Some(Dim::from(i64::from(constant(0)? != 0 || constant(1)? != 0))),
                _ => None,
            }
        }
        MapFn::Compare(function) => {
            let difference = (first.clone() - second?.clone()).bounds();
            let (below, above) =
                (difference.1.is_some_and(|high| high < 0), difference.0.is_some_and(|low| low > 0));
            let equal = first == second?;
            let truth = match function {
                CompareFn::Eq if equal => true,
                CompareFn::Eq if below || above => false,
                CompareFn::Ne if equal => false,
                CompareFn::Ne if below || above => true,
                CompareFn::Lt if below => true,
                CompareFn::Lt if equal || above => false,
                CompareFn::Le if below || equal => true,
                CompareFn::Le if above => false,
                CompareFn::Gt if above => true,
                CompareFn::Gt if equal || below => false,
                CompareFn::Ge if above || equal => true,
                CompareFn::Ge if below => false,
                _ => return None,
            };
            Some(Dim::from(i64::from(truth)))
        }
        MapFn::Select => match constant(0)? {
            0 => arguments.get(2).cloned(),
            _ => second.cloned(),
        },
        _ => None,
    }
}

/// Rows of the squares that tiles of this size come from.
fn winograd_size(tile: usize) -> Result<usize> {
    match winograd::tiles().any(|known| known == tile) {
        true => Ok(tile + winograd::KERNEL - 1),
        false => fail(format!("Winograd tiles of {tile}")),
    }
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
