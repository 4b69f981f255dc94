//! Map groups: one nest over the shape of the outputs, innermost axis in vectors.

use crate::error::Result;
use crate::graph::Dim;
use crate::loops::LoopKind;
use crate::loops::lower::{Lowering, internal};
use crate::loops::nest::{Axis, Nest};

/// Below this many elements a nest is fused into one loop; above, the outermost loop stays apart so that
/// threads can share it.
pub(super) const PARALLEL_ELEMENTS: i64 = 1 << 15;

/// Iterations of a loop that threads would not share evenly.
const FEW: i64 = 8;

/// Elements per iteration that threads share of a loop without an inner one: from the first to the second.
const BLOCK: [i64; 2] = [1 << 9, 1 << 13];

impl Lowering<'_> {
    pub(super) fn map(&mut self) -> Result<()> {
        let Some(&first) = self.group.outputs.first() else { return internal("a map group writes nothing") };
        let shape = self.graph.ty(first).shape.clone();
        let (mut nest, index) = Nest::over(&mut self.kernel, &shape);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let outputs = self.group.outputs.clone();
        nest.body = self
            .scope(|cx| cx.store_all(outputs.into_iter().map(|output| (output, index.clone())).collect()))?;
        let large = self.graph.ty(first).elements().as_const().is_none_or(|count| count >= PARALLEL_ELEMENTS);
        nest.fuse_all(if large { 1 } else { 0 });
        if large {
            self.share(&mut nest);
        }
        if nest.axes.len() > 1 {
            nest.axes[0].kind = LoopKind::Parallel;
        }
        self.kernel.body = nest.vectorize(&mut self.kernel, self.target);
        Ok(())
    }

    /// Has the outermost loop of a large nest be one that threads can share.
    fn share(&mut self, nest: &mut Nest) {
        let few = |axis: &Axis| axis.extent.as_const().is_some_and(|extent| extent < FEW);
        if nest.axes.first().is_some_and(few) {
            nest.fuse_all(0);
        }
        if let [axis] = nest.axes.as_slice()
            && let Some(block) = axis.extent.as_const().and_then(block_of)
        {
            nest.split(&mut self.kernel, 0, block);
        }
    }
}

/// Elements of a block of a loop: the largest divisor of its extent that is not too large or too small.
fn block_of(extent: i64) -> Option<usize> {
    (BLOCK[0]..=BLOCK[1])
        .rev()
        .find(|block| extent % block == 0 && block % 16 == 0)
        .map(|block| block as usize)
}

/// Number of elements of a shape, where it is known.
pub(super) fn volume(shape: &[Dim]) -> Option<i64> {
    shape.iter().try_fold(1i64, |product, dim| product.checked_mul(dim.as_const()?))
}
