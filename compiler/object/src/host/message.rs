//! Messages of failures. A template is text in which the character [`V`] stands for signed numbers, each for the next one.

pub use onnxc_ir::graph::claim::{V, printable, rendered};

/// Most numbers of a template.
pub const MOST_NUMBERS: usize = 32;

/// How many numbers a template takes.
pub fn numbers(template: &str) -> usize {
    template.matches(V).count()
}
