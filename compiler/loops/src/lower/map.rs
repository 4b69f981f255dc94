//! Map groups: one nest over the shape of the outputs, innermost axis in vectors.

use crate::LoopKind;
use crate::lower::{Lowering, internal};
use crate::nest::Nest;
use onnxc_ir::error::Result;
use onnxc_ir::graph::Dim;
use onnxc_tuning::map as tuning;

impl Lowering<'_> {
    pub(super) fn map(&mut self) -> Result<()> {
        let Some(&first) = self.group.outputs.first() else { return internal("a map group writes nothing") };
        let shape = self.graph.ty(first).shape.clone();
        let (mut nest, index) = Nest::over(&mut self.kernel, &shape);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let outputs = self.group.outputs.clone();
        // Others may be made of an output: it is computed once.
        for &output in outputs.iter().filter(|_| outputs.len() > 1) {
            *self.uses.entry(output).or_insert(0) += 1;
        }
        nest.body = self
            .scope(|cx| cx.store_all(outputs.into_iter().map(|output| (output, index.clone())).collect()))?;
        nest.split_divisions(&mut self.kernel, self.core, &mut self.extents);
        let elements = self.graph.ty(first).elements().as_const();
        let extents: Vec<Dim> = nest.axes.iter().map(|axis| axis.extent.clone()).collect();
        let mut pick = self.picker();
        let shared = tuning::outer_loops(elements, &extents, &mut pick)?;
        nest.flatten(&mut self.kernel, shared, &mut self.extents);
        nest.fuse_all(shared.min(1));
        // One loop is cut into blocks, so that threads can share it.
        if let [axis] = nest.axes.as_slice()
            && let Some(extent) = axis.extent.as_const()
            && let Some(block) = tuning::block(elements, extent, &mut pick)?
        {
            nest.split(&mut self.kernel, 0, block);
        }
        self.tuned(pick)?;
        if nest.axes.len() > 1 {
            nest.axes[0].kind = LoopKind::Parallel;
        }
        self.kernel.body = nest.vectorize(&mut self.kernel, self.core, self.group.settings.goal);
        Ok(())
    }
}
