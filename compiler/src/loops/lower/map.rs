//! Map groups: one nest over the shape of the outputs, innermost axis in vectors.

use crate::error::Result;
use crate::graph::Dim;
use crate::loops::lower::{Lowering, internal};
use crate::loops::nest::{Axis, Nest, hoist, split_vector, vector_lanes};
use crate::loops::{Kernel, LoopKind, Stmt, Var};
use crate::target::Target;

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
        let Some(inner) = nest.axes.pop() else {
            self.kernel.body = nest.body;
            return;
        };
        let (mut outer, body) = hoist(&mut self.kernel, inner.var, std::mem::take(&mut nest.body));
        let kernel = &mut self.kernel;
        outer.extend(vector_loop(kernel, self.target, inner.var, &inner.extent, body));
        nest.body = outer;
        self.kernel.body = nest.into_stmts();
    }
}

/// A loop over `0..extent` in vectors where its accesses are contiguous and its types have vectors.
pub(super) fn vector_loop(
    kernel: &mut Kernel,
    target: &Target,
    var: Var,
    extent: &Dim,
    body: Vec<Stmt>,
) -> Vec<Stmt> {
    let lanes = vector_lanes(kernel, target, var, &body);
    let wide = extent.as_const().is_none_or(|extent| extent >= lanes as i64);
    if lanes > 1 && wide {
        split_vector(kernel, var, extent, lanes, lanes, &body)
    } else {
        let nest = Nest { axes: vec![Axis { var, extent: extent.clone(), kind: LoopKind::Serial }], body };
        nest.into_stmts()
    }
}

/// Number of elements of a shape, where it is known.
pub(super) fn volume(shape: &[Dim]) -> Option<i64> {
    shape.iter().try_fold(1i64, |product, dim| product.checked_mul(dim.as_const()?))
}
