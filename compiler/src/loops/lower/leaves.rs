//! Decision trees: from the root to a leaf, as many steps as the longest path of a tree has. Leaves follow themselves.

use crate::error::Result;
use crate::graph::{DType, ValueId};
use crate::loops::lower::sort::{get, set};
use crate::loops::lower::{Lowering, internal};
use crate::loops::{Expr, Index, LoopKind, Stmt};
use crate::scalar::{BinaryFn, CompareFn};

impl Lowering<'_> {
    /// See [`crate::graph::Op::Leaves`].
    pub(super) fn leaves(&mut self, inputs: &[ValueId], two_sided: bool, out: ValueId) -> Result<()> {
        let &[x, roots, levels, features, next, high, ..] = inputs else {
            return internal("leaves without trees");
        };
        let low = inputs.get(6).copied().filter(|_| two_sided);
        let node = self.kernel.local("node", DType::I64, &[1], 1);
        let shape = self.graph.ty(out).shape.clone();
        let wide = |x: Expr| Expr::cast(DType::I64, x);
        self.for_shape(&shape, LoopKind::Parallel, &mut |cx, at| {
            let [row, tree] = at.as_slice() else { return internal("leaves of other than rows and trees") };
            let root = cx.expr_at(roots, std::slice::from_ref(tree))?;
            cx.push(set(node, wide(root)));
            let levels = cx.expr_at(levels, std::slice::from_ref(tree))?;
            let levels = cx.bind("levels", wide(levels));
            let levels = cx.as_index(levels);
            let level = cx.kernel.loop_var("level");
            let body = cx.scope(|cx| {
                let here = cx.bind("node", get(node));
                let here = cx.as_index(here);
                let feature = cx.expr_at(features, std::slice::from_ref(&here))?;
                let feature = cx.bind("feature", wide(feature));
                let feature = cx.as_index(feature);
                let value = cx.expr_at(x, &[row.clone(), feature])?;
                let value = cx.bind("x", value);
                let bound = cx.expr_at(high, std::slice::from_ref(&here))?;
                let mut inside = Expr::compare(CompareFn::Le, value.clone(), bound);
                if let Some(low) = low {
                    let bound = cx.expr_at(low, std::slice::from_ref(&here))?;
                    inside = Expr::binary(BinaryFn::And, inside, Expr::compare(CompareFn::Ge, value, bound));
                }
                let first = cx.expr_at(next, &[here.clone(), Index::zero()])?;
                let second = cx.expr_at(next, &[here, Index::int(1)])?;
                cx.push(set(node, wide(Expr::select(inside, first, second))));
                Ok(())
            })?;
            let lo = Index::zero();
            cx.push(Stmt::For { var: level, lo, hi: levels, step: 1, kind: LoopKind::Serial, body });
            cx.store(out, &at, Expr::cast(DType::I32, get(node)));
            Ok(())
        })
    }
}
