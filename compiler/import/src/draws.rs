//! Numbers of random streams: of the nodes that draw, and of the iterations around them.

use std::collections::HashMap;

use onnxc_ir::build::Builder;
use onnxc_ir::graph::Sym;
use onnxc_ops::Stream;

/// Which streams the nodes so far draw from.
#[derive(Default)]
pub(super) struct Draws {
    /// Loops around the current node, the innermost one last: the number of the iteration, once something asks for it.
    pub loops: Vec<Option<Sym>>,
    /// The first output of the current node.
    pub result: String,
    /// Whether nodes are imported that others are copies of; see [`onnxc_ops::BodyImporter::recompute`].
    pub recomputes: bool,
    /// Nodes so far that draw random numbers, and the number of each by its first output.
    count: u32,
    numbers: HashMap<String, u32>,
}

impl Draws {
    /// The stream of the current node, which draws. A copy draws what the node itself does.
    pub(super) fn stream(&mut self, b: &mut Builder<'_>) -> Stream {
        let known = self.numbers.get(&self.result).copied().filter(|_| self.recomputes);
        let own = known.unwrap_or_else(|| {
            self.count += 1;
            self.numbers.insert(self.result.clone(), self.count);
            self.count
        });
        let mut number = |known: &mut Option<Sym>| *known.get_or_insert_with(|| b.fresh_symbol());
        let iterations = self.loops.iter_mut().map(&mut number).collect();
        Stream { number: own, iterations }
    }
}
