//! What an operation needs of the sizes of its operands and results, as far as it only shows when a model runs.

use crate::graph::claim::{Stated, V};
use crate::graph::dim::product;
use crate::graph::{Dim, Op, Requirement, TensorType};
use crate::infer::contract::squares_of;
use crate::winograd::KERNEL;

/// What an operation needs of the sizes of its operands and results so that every element it reads and writes exists.
/// The ranks are those that inference has checked.
pub(super) fn requirements(op: &Op, inputs: &[&TensorType], results: &[TensorType]) -> Vec<Stated> {
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
