//! Map groups: one nest over the shape of the outputs, innermost axis in vectors.

use crate::error::Result;
use crate::graph::Dim;
use crate::loops::LoopKind;
use crate::loops::lower::{Lowering, internal};
use crate::loops::nest::Nest;

/// Below this many elements a nest is fused into one loop; above, the outermost loop stays apart so that
/// threads can share it.
const PARALLEL_ELEMENTS: i64 = 1 << 15;

impl Lowering<'_> {
    pub(super) fn map(&mut self) -> Result<()> {
        let Some(&first) = self.group.outputs.first() else { return internal("a map group writes nothing") };
        let shape = self.graph.ty(first).shape.clone();
        let (mut nest, index) = Nest::over(&mut self.kernel, &shape);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let outputs = self.group.outputs.clone();
        nest.body = self.scope(|cx| {
            for &output in &outputs {
                let expr = cx.expr_at(output, &index)?;
                cx.store(output, &index, expr);
            }
            Ok(())
        })?;
        let large = self.graph.ty(first).elements().as_const().is_none_or(|count| count >= PARALLEL_ELEMENTS);
        nest.fuse_all(if large { 1 } else { 0 });
        self.nest_to_body(nest);
        Ok(())
    }

    /// Takes a nest as the kernel's body: outermost loop parallel, what does not depend on the innermost loop
    /// in front of it, the innermost loop in vectors where its accesses are contiguous.
    fn nest_to_body(&mut self, mut nest: Nest) {
        if nest.axes.len() > 1 {
            nest.axes[0].kind = LoopKind::Parallel;
        }
        self.kernel.body = nest.vectorize(&mut self.kernel, self.target);
    }
}

/// Number of elements of a shape, where it is known.
pub(super) fn volume(shape: &[Dim]) -> Option<i64> {
    shape.iter().try_fold(1i64, |product, dim| product.checked_mul(dim.as_const()?))
}
