//! What an operation needs of the sizes of its operands and results, as far as it only shows when a model runs.

use crate::graph::claim::{Stated, V};
use crate::graph::{Dim, Requirement};

/// What an operation needs, in general terms: rows of the operator table say before what it means for their operands.
#[derive(Default)]
pub(in crate::primitives) struct Needs(pub(in crate::primitives) Vec<Stated>);

impl Needs {
    /// `state` says a requirement that does not hold in every run.
    pub(in crate::primitives) fn add(
        &mut self,
        requirement: Requirement,
        state: impl FnOnce(Requirement) -> Stated,
    ) {
        if requirement.verdict() != Some(true) {
            self.0.push(state(requirement));
        }
    }

    pub(in crate::primitives) fn not_negative(&mut self, name: &str, dim: &Dim) {
        self.add(Requirement::at_most(Dim::ZERO, dim.clone()), |own| own.says_at_least(name, 0));
    }

    /// Each dim of `from` is that of `to`, or 1, from their ends on.
    pub(in crate::primitives) fn broadcasts(&mut self, from: &[Dim], to: &[Dim]) {
        let pairs = from.iter().rev().zip(to.iter().rev()).filter(|(from, to)| from != to);
        for (from, to) in pairs {
            let requirement = Requirement::broadcasts(from.clone(), to.clone());
            self.add(requirement, |own| {
                own.says("a dimension of an operand", "that which it is broadcast to")
            });
        }
    }

    pub(in crate::primitives) fn all_equal(&mut self, name: &str, a: &[Dim], b: &[Dim]) {
        let pairs = a.iter().zip(b).filter(|(a, b)| a != b);
        let text = || format!("{name} is {V} in one operand and {V} in another; it must be the same in both");
        for (a, b) in pairs {
            self.add(Requirement::equal(a.clone(), b.clone()), |own| own.stated(text(), &[a, b]));
        }
    }

    /// Each dim of `few` is at most that of `many`, but for one axis.
    pub(in crate::primitives) fn all_at_most(&mut self, name: &str, few: &[Dim], many: &[Dim], but: usize) {
        let axes = few.iter().zip(many).enumerate().filter(|(axis, _)| *axis != but);
        for (axis, (few, many)) in axes {
            let requirement = Requirement::at_most(few.clone(), many.clone());
            self.add(requirement, |own| own.says(name, format!("dimension {axis} of data")));
        }
    }

    /// `size` elements along an axis from `start` on, each `step` further, lie in `extent`. No elements lie anywhere.
    pub(in crate::primitives) fn inside(&mut self, axis: usize, [start, size, extent]: [&Dim; 3], step: i64) {
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
