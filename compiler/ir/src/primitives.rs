//! The primitives, one after the other: the types of their results, what they need of sizes, and what the reference evaluator makes of
//! them. Each list has all of them, so that a new one does not compile until it is in each.

pub mod eval;
pub mod infer;

use crate::error::Result;
use crate::graph::claim::{Operand, Stated, V};
use crate::graph::dim::product;
use crate::graph::{Dim, MapFn, Op, Requirement, Tensor, TensorType};
use crate::winograd::KERNEL;
use infer::Types;
use infer::contract::squares_of;
use infer::requirements::Needs;

/// The types of an operation's results.
fn types(op: &Op, inputs: &[&TensorType]) -> Types {
    match op {
        Op::Map(function) => infer::elementwise::map(op, inputs, *function),
        Op::Iota { shape, axis } => infer::elementwise::iota(op, inputs, shape, *axis),
        Op::DimValues { dims } => infer::elementwise::dim_values(op, inputs, dims),
        Op::Leaves(trees) => infer::elementwise::leaves(inputs, trees),
        Op::Reduce { op: function, axes } => infer::reduce::reduce(op, inputs, *function, axes),
        Op::ArgReduce { axis, .. } => infer::reduce::arg_reduce(op, inputs, *axis),
        Op::Cumulate { axis, .. } => infer::reduce::cumulate(op, inputs, *axis),
        Op::Sort { axis, take, .. } => infer::reduce::sort(op, inputs, *axis, take),
        Op::Suppress { take } => infer::reduce::suppress(op, inputs, take),
        Op::Contract { batch, m, k, rhs } => infer::contract::contract(inputs, (*batch, *m, *k), rhs),
        Op::Pack { batch, k, nr } => infer::contract::pack(op, inputs, (*batch, *k, *nr)),
        Op::Dequantize { bits, .. } => infer::contract::dequantize(inputs, *bits),
        Op::WinogradInput { tile } => infer::contract::winograd_input(op, inputs, *tile),
        Op::WinogradFilter { tile } => infer::contract::winograd_filter(op, inputs, *tile),
        Op::WinogradOutput { tile, height, width } => {
            infer::contract::winograd_output(op, inputs, *tile, [height, width])
        }
        Op::Reshape { shape } => infer::movement::reshape(op, inputs, shape),
        Op::Transpose { perm } => infer::movement::transpose(op, inputs, perm),
        Op::Expand { shape } => infer::movement::expand(op, inputs, shape),
        Op::Slice { starts, steps, sizes } => infer::movement::slice(op, inputs, (starts, steps, sizes)),
        Op::Pad { lo, hi } | Op::ImplicitPad { lo, hi } => infer::movement::pad(op, inputs, (lo, hi)),
        Op::Concat { axis } => infer::movement::concat(inputs, *axis),
        Op::Window { first, kernel, strides, dilations } => {
            infer::movement::window(op, inputs, *first, (kernel, strides, dilations))
        }
        Op::Gather { axis } => infer::index::gather(op, inputs, *axis),
        Op::GatherElements { axis } => infer::index::gather_elements(op, inputs, *axis),
        Op::GatherNd { batch } => infer::index::gather_nd(op, inputs, *batch),
        Op::ScatterElements { axis, .. } => infer::index::scatter_elements(op, inputs, *axis),
        Op::ScatterNd { .. } => infer::index::scatter_nd(op, inputs),
        Op::Append { axis, panel, .. } => infer::index::append(op, inputs, *axis, *panel),
        Op::Scan { .. } => infer::control::scan(op, inputs),
        Op::If { bodies, shapes } => infer::control::choice(bodies, inputs, shapes),
        Op::Call(call) => call.check(inputs).map(|()| vec![call.result.clone()]),
        Op::External(external) => external.infer(inputs),
        Op::Exchange(exchange) => exchange.infer(inputs),
    }
}

/// What an operation needs of the sizes of its operands and results so that every element it reads and writes exists.
/// The ranks are those that inference has checked.
fn needs(op: &Op, inputs: &[&TensorType], results: &[TensorType]) -> Vec<Stated> {
    let mut list = Needs::default();
    match op {
        Op::Map(_) => inputs.iter().for_each(|ty| list.broadcasts(&ty.shape, &results[0].shape)),
        Op::Contract { batch, m, rhs, .. } => {
            let (a, b) = (&inputs[0].shape, &inputs[1].shape);
            list.broadcasts(&a[..*batch], &results[0].shape[..*batch]);
            list.broadcasts(&b[..*batch], &results[0].shape[..*batch]);
            list.all_equal("an inner dimension of a product", &a[batch + m..], &rhs.inner(b, *batch));
            if let Some(panels) = rhs.of_packed(b, *batch) {
                let axis = panels.axis();
                list.all_equal("the number of panels of a product", &b[axis..=axis], &[panels.count()]);
                list.all_equal("the width of a panel", &b[b.len() - 1..], &[Dim::from(panels.row())]);
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
        Op::WinogradOutput { tile, height, width } => {
            let shape = &inputs[0].shape;
            list.all_equal(
                "the number of squares of elements",
                &shape[..1],
                &[Dim::from((tile + KERNEL - 1).pow(2))],
            );
            let name = "the number of results of a convolution along an axis";
            for (squares, results) in shape[2..4].iter().zip([height, width]) {
                list.not_negative(name, results);
                let wanted = [squares_of(results, *tile)];
                list.all_equal("the number of squares along an axis", std::slice::from_ref(squares), &wanted);
            }
        }
        Op::WinogradFilter { .. } => {
            let taps = [Dim::from(KERNEL * KERNEL)];
            list.all_equal("the number of weights of a kernel", &inputs[0].shape[..1], &taps);
        }
        Op::Scan { trip, .. } => list.not_negative("the number of iterations", trip),
        Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::Pack { .. }
        | Op::Dequantize { .. }
        | Op::Transpose { .. }
        | Op::WinogradInput { .. }
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

/// An operation with one result of the (inferred) `shape`; inference has checked operands and attributes.
fn value(op: &Op, inputs: &[&Tensor], shape: &[usize], indices: &Operand) -> Result<Tensor> {
    match op {
        Op::Map(MapFn::Cast { to, .. }) if inputs[0].dtype == *to => Ok(inputs[0].clone()),
        Op::Map(function) => eval::elementwise::map(*function, inputs, shape),
        Op::Reduce { op: function, axes } => eval::reduce::reduce(*function, inputs[0], axes, shape),
        Op::ArgReduce { max, axis, last } => eval::reduce::arg_reduce(inputs[0], *max, *axis, *last, shape),
        Op::Contract { batch, m, rhs, .. } => eval::reduce::contract(inputs, *batch, *m, rhs, shape),
        Op::Dequantize { bits, bias } => eval::dequantize::dequantize(inputs, *bits, *bias, shape),
        Op::Pack { batch, nr, .. } => eval::movement::pack(inputs[0], *batch, *nr, shape),
        Op::Reshape { .. } => {
            Ok(Tensor { dtype: inputs[0].dtype, shape: shape.to_vec(), data: inputs[0].data.clone() })
        }
        Op::Transpose { perm } => eval::movement::transpose(inputs[0], perm, shape),
        Op::Expand { .. } => eval::movement::expand(inputs[0], shape),
        Op::Slice { starts, steps, .. } => {
            eval::movement::slice(inputs[0], &eval::numbers(starts, "slice starts")?, steps, shape)
        }
        Op::Pad { lo, .. } => eval::movement::pad(inputs[0], inputs[1], &eval::numbers(lo, "pads")?, shape),
        Op::ImplicitPad { lo, .. } => {
            let zero = Tensor::zeros(inputs[0].dtype, &[]);
            eval::movement::pad(inputs[0], &zero, &eval::numbers(lo, "pads")?, shape)
        }
        Op::Concat { axis } => eval::movement::concat(inputs, *axis, shape),
        Op::Append { axis, at, panel } => {
            let at = eval::numbers(std::slice::from_ref(at), "places")?[0];
            eval::movement::append(inputs[0], inputs[1], (*axis, at), *panel)
        }
        Op::Window { first, strides, dilations, .. } => {
            eval::movement::window(inputs[0], *first, strides, dilations, shape)
        }
        Op::WinogradInput { tile } => eval::winograd::input(inputs[0], *tile, shape),
        Op::WinogradFilter { tile } => eval::winograd::filter(inputs[0], *tile, shape),
        Op::WinogradOutput { tile, .. } => eval::winograd::output(inputs[0], *tile, shape),
        Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. } => eval::index::eval(op, inputs, shape, indices),
        Op::Iota { axis, .. } => eval::iota(shape, *axis),
        Op::DimValues { dims } => Ok(Tensor::from_slice(shape, &eval::numbers(dims, "dims")?)),
        Op::Cumulate { op: function, axis, exclusive, reverse } => {
            eval::reduce::cumulate(*function, inputs[0], *axis, *exclusive, *reverse)
        }
        Op::Suppress { .. } => eval::suppress::suppress(inputs, shape),
        Op::Leaves(trees) => eval::leaves::leaves(inputs, trees, shape),
        Op::Sort { .. } | Op::Scan { .. } | Op::If { .. } => {
            eval::internal(format!("{} has more than one result", op.name()))
        }
        Op::Call(_) => eval::internal("a call without a table of strings".to_string()),
        Op::External(_) => eval::internal("an external call as a value".to_string()),
        Op::Exchange(_) => eval::internal("an exchange as a value".to_string()),
    }
}
