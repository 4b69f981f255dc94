//! Primitives with a loop nest of their own.

use onnxc_ir::error::Result;
use onnxc_ir::graph::dim::volume;
use onnxc_ir::graph::{DType, Dim, PanelLayout, ValueId};

use crate::lower::reduce::identity;
use crate::lower::{Lowering, internal};
use crate::nest::{Nest, where_any};
use crate::{Access, Expr, Index, LoopKind, Stmt};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn};
use onnxc_tuning::map as tuning;

/// What the loops of a padding need to know.
struct Padding<'a> {
    x: ValueId,
    fill: ValueId,
    lo: &'a [Dim],
    out: ValueId,
    /// Index along the axes that have loops already.
    lead: &'a [Index],
}

impl Lowering<'_> {
    /// `out[shift + i..] = element(i..)` over `shape`, innermost axis in vectors. The first axes, whose index is `lead`
    /// (of `out`), have loops already.
    fn copy_nest(
        &mut self,
        lead: &[Index],
        shape: &[Dim],
        out: ValueId,
        shift: &[Dim],
        element: &mut dyn FnMut(&mut Self, &[Index]) -> Result<Expr>,
    ) -> Result<()> {
        let (mut nest, inner) = Nest::over(&mut self.kernel, &shape[lead.len()..]);
        for axis in &nest.axes {
            self.extents.insert(axis.var, axis.extent.clone());
        }
        let own = |i: &Index, shift: &Dim| i.add_dim(&(Dim::ZERO - shift.clone()));
        let mut index: Vec<Index> = lead.iter().zip(shift).map(|(i, shift)| own(i, shift)).collect();
        index.extend(inner);
        nest.body = self.scope(|cx| {
            let expr = element(cx, &index)?;
            let to: Vec<Index> = index.iter().zip(shift).map(|(i, shift)| i.add_dim(shift)).collect();
            cx.store(out, &to, expr);
            Ok(())
        })?;
        nest.split_divisions(&mut self.kernel, self.core, &mut self.extents);
        nest.fuse_all(0);
        let stmts = nest.vectorize(&mut self.kernel, self.core, self.group.settings.goal);
        stmts.into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    /// The outermost loop over a result that several nests write, which threads share, if the result is large: over the leading axes that
    /// have enough turns, if enough is left inside. `fill` is given its index.
    fn leading_loop(
        &mut self,
        out: ValueId,
        fill: &mut dyn FnMut(&mut Self, Vec<Index>) -> Result<()>,
    ) -> Result<()> {
        let shape = self.graph.ty(out).shape.clone();
        let first = shape.iter().position(|dim| *dim != Dim::ONE);
        let loops = usize::from(first.is_some_and(|first| first + 1 < shape.len()));
        let mut pick = self.picker();
        let outer_loops = tuning::shared_loops(volume(&shape), loops, &mut pick)?;
        self.tuned(pick)?;
        match outer_loops {
            0 => fill(self, vec![]),
            _ => self.for_shared(&shape[..tuning::outer_axes(&shape)], fill),
        }
    }

    /// What `fill` produces, where `lo <= index < hi` along an axis of extent `extent`; without an index, always.
    fn within(
        &mut self,
        index: Option<&Index>,
        [lo, hi]: [&Dim; 2],
        extent: &Dim,
        fill: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let Some(index) = index else { return fill(self) };
        let mut then = self.scope(fill)?;
        let limits = [(CompareFn::Ge, lo, &Dim::ZERO), (CompareFn::Lt, hi, extent)];
        for (op, limit, trivial) in limits {
            if limit != trivial {
                let limit = Expr::Index(Index::dim(limit.clone()));
                let condition = Expr::compare(op, Expr::Index(index.clone()), limit);
                then = vec![Stmt::If { condition, then, otherwise: vec![] }];
            }
        }
        then.into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    pub(super) fn concat(&mut self, inputs: &[ValueId], axis: usize, out: ValueId) -> Result<()> {
        let extent = self.graph.ty(out).shape[axis].clone();
        self.leading_loop(out, &mut |cx, lead| {
            let mut shift = vec![Dim::ZERO; cx.graph.ty(out).rank()];
            for &input in inputs {
                let shape = cx.graph.ty(input).shape.clone();
                let end = shift[axis].clone() + shape[axis].clone();
                cx.within(lead.get(axis), [&shift[axis], &end], &extent, |cx| {
                    cx.copy_nest(&lead, &shape, out, &shift, &mut |cx, index| cx.expr_at(input, index))
                })?;
                shift[axis] = end;
            }
            Ok(())
        })
    }

    /// What is before and behind stays as it is.
    pub(super) fn append(&mut self, new: ValueId, axis: usize, at: &Dim, out: ValueId) -> Result<()> {
        let shape = self.graph.ty(new).shape.clone();
        let mut shift = vec![Dim::ZERO; shape.len()];
        shift[axis] = at.clone();
        self.copy_nest(&[], &shape, out, &shift, &mut |cx, index| cx.expr_at(new, index))
    }

    /// As [`Lowering::append`], element by element: those of a panel lie beside each other, with any other axes outside.
    pub(super) fn append_to_panels(
        &mut self,
        new: ValueId,
        (axis, at): (usize, &Dim),
        panel: usize,
        out: ValueId,
    ) -> Result<()> {
        let shape = self.graph.ty(new).shape.clone();
        let Some(layout) = PanelLayout::of_plain(&shape, axis, axis, panel) else {
            return internal("panels along no axis");
        };
        self.for_shape(&shape, LoopKind::Serial, &mut |cx, index| {
            let value = cx.expr_at(new, &index)?;
            let place = index[axis].add_dim(at);
            let mut to = index;
            let (number, lane) = layout.cut(&place, |at, by| {
                let extents = cx.extent_fn();
                (at.floor_div(by, &extents), at.modulo(by, &extents))
            });
            to[axis] = number;
            to.push(lane);
            cx.store(out, &to, value);
            Ok(())
        })
    }

    /// Border and inside are written by loops of their own.
    pub(super) fn pad(&mut self, x: ValueId, fill: ValueId, lo: &[Dim], out: ValueId) -> Result<()> {
        self.leading_loop(out, &mut |cx, lead| cx.pad_axis(&Padding { x, fill, lo, out, lead: &lead }, 0))
    }

    /// Axis by axis, the slabs before and after: inside along the axes before this one, all along those after it.
    fn pad_axis(&mut self, job: &Padding<'_>, axis: usize) -> Result<()> {
        let &Padding { x, fill, lo, out, lead } = job;
        let inner = self.graph.ty(x).shape.clone();
        let outer = self.graph.ty(out).shape.clone();
        if axis == outer.len() {
            return self.copy_nest(lead, &inner, out, lo, &mut |cx, index| cx.expr_at(x, index));
        }
        for (shape, shift) in slabs(&inner, &outer, lo, axis) {
            let to = shift[axis].clone() + shape[axis].clone();
            self.within(lead.get(axis), [&shift[axis], &to], &outer[axis], |cx| {
                cx.copy_nest(lead, &shape, out, &shift, &mut |cx, _| cx.expr_at(fill, &[]))
            })?;
        }
        let end = lo[axis].clone() + inner[axis].clone();
        self.within(lead.get(axis), [&lo[axis], &end], &outer[axis], |cx| cx.pad_axis(job, axis + 1))
    }

    /// Column panels of a right-hand side: the last panel's missing columns are zero.
    pub(super) fn pack(&mut self, x: ValueId, batch: usize, k: usize, nr: usize, out: ValueId) -> Result<()> {
        let shape = self.graph.ty(x).shape.clone();
        let Some(layout) = PanelLayout::of_plain(&shape, batch, batch + k, nr) else {
            return internal("a right-hand side without columns");
        };
        let (width, whole, rest) = (Dim::from(nr), layout.whole(), layout.rest());
        let rank = batch + 1 + k + 1;
        let all = self.graph.ty(out).shape[batch].clone();
        let read = |cx: &mut Self, index: &[Index], panel: &Index| {
            let mut at = index[..batch].to_vec();
            at.extend_from_slice(&index[batch + 1..batch + 1 + k]);
            at.push(layout.column(panel, &index[rank - 1]));
            cx.expr_at(x, &at)
        };
        let panels = |count: &Dim, columns: &Dim| layout.part(count, columns).expect("each step has a row");
        self.leading_loop(out, &mut |cx, lead| {
            let mut shift = vec![Dim::ZERO; rank];
            if whole != Dim::ZERO {
                cx.within(lead.get(batch), [&Dim::ZERO, &whole], &all, |cx| {
                    cx.copy_nest(&lead, &panels(&whole, &width), out, &shift, &mut |cx, index| {
                        let panel = index[batch].clone();
                        read(cx, index, &panel)
                    })
                })?;
            }
            if rest == Dim::ZERO {
                return Ok(());
            }
            // With an unknown number of columns there may be no last panel; then its loops must not run.
            let last = Index::dim(whole.clone());
            let count = match rest.as_const() {
                Some(_) => Dim::ONE,
                None => rest.min_dim(&Dim::ONE),
            };
            shift[batch] = whole.clone();
            let end = whole.clone() + count.clone();
            cx.within(lead.get(batch), [&whole, &end], &all, |cx| {
                cx.copy_nest(&lead, &panels(&count, &rest), out, &shift, &mut |cx, index| {
                    read(cx, index, &last)
                })?;
                shift[rank - 1] = rest.clone();
                let dtype = cx.graph.ty(x).dtype;
                let missing = width.clone() - rest.clone();
                cx.copy_nest(&lead, &panels(&count, &missing), out, &shift, &mut |_, _| {
                    Ok(Expr::constant(dtype, 0.0))
                })
            })
        })
    }

    pub(super) fn arg_reduce(
        &mut self,
        x: ValueId,
        max: bool,
        axis: usize,
        last: bool,
        out: ValueId,
    ) -> Result<()> {
        let kept = self.graph.ty(out).shape.clone();
        let extent = self.graph.ty(x).shape[axis].clone();
        let dtype = self.graph.ty(x).dtype;
        self.for_shared(&kept, &mut |cx, index| {
            let best = cx.kernel.local("best", dtype, &[1], 1);
            let place = cx.kernel.local("place", DType::I64, &[1], 1);
            let at = || vec![Index::zero()];
            cx.push(Stmt::Set { local: place, at: at(), value: Expr::constant(DType::I64, 0.0) });
            let search = cx.scope(|cx| {
                let first = cx.expr_at(x, &index)?;
                cx.push(Stmt::Set { local: best, at: at(), value: first });
                cx.for_each("i", &extent, LoopKind::Serial, |cx, i| {
                    let mut full = index.clone();
                    full[axis] = i.clone();
                    let value = cx.expr_at(x, &full)?;
                    let value = cx.bind("x", value);
                    let known = Expr::Get { local: best, at: at() };
                    let take = vec![
                        Stmt::Set { local: best, at: at(), value: value.clone() },
                        Stmt::Set { local: place, at: at(), value: Expr::Index(i) },
                    ];
                    cx.push(if_better(value, known, dtype, max, last, take));
                    Ok(())
                })
            })?;
            where_any(&extent, search).into_iter().for_each(|stmt| cx.push(stmt));
            cx.store(out, &index, Expr::Get { local: place, at: at() });
            Ok(())
        })
    }

    pub(super) fn cumulate(
        &mut self,
        x: ValueId,
        op: ReduceFn,
        axis: usize,
        exclusive: bool,
        reverse: bool,
        out: ValueId,
    ) -> Result<()> {
        let shape = self.graph.ty(x).shape.clone();
        let dtype = self.graph.ty(x).dtype;
        let mut lead = shape.clone();
        lead[axis] = Dim::ONE;
        self.for_shared(&lead, &mut |cx, index| {
            let total = cx.kernel.local("total", dtype, &[1], 1);
            let at = || vec![Index::zero()];
            cx.push(Stmt::Set { local: total, at: at(), value: identity(op, dtype)? });
            cx.for_each("i", &shape[axis], LoopKind::Serial, |cx, i| {
                let mut full = index.clone();
                full[axis] = match reverse {
                    true => i.scale(&Dim::from(-1i64)).add_dim(&(shape[axis].clone() - Dim::ONE)),
                    false => i,
                };
                let value = cx.expr_at(x, &full)?;
                let add = Stmt::Accumulate { local: total, at: at(), op: op.combine(), value };
                let known = Expr::Get { local: total, at: at() };
                if exclusive {
                    cx.store(out, &full, known);
                    cx.push(add);
                } else {
                    cx.push(add);
                    cx.store(out, &full, known);
                }
                Ok(())
            })
        })
    }

    /// `out[at] = combine(out[at], update)`.
    fn scatter_one(&mut self, out: ValueId, at: &[Index], update: Expr, combine: Option<BinaryFn>) {
        let buf = self.buffers[&out];
        self.kernel.buffers[buf].access = Access::ReadWrite;
        let value = match combine {
            None => update,
            Some(op) => {
                let index = self.address(out, at);
                Expr::binary(op, Expr::Load { buf, index }, update)
            }
        };
        self.store(out, at, value);
    }

    pub(super) fn scatter_elements(
        &mut self,
        inputs: &[ValueId],
        axis: usize,
        combine: Option<BinaryFn>,
        out: ValueId,
    ) -> Result<()> {
        let [data, indices, updates] = inputs else { return internal("a scatter takes three operands") };
        let shape = self.graph.ty(*data).shape.clone();
        let origin = vec![Dim::ZERO; shape.len()];
        self.copy_nest(&[], &shape, out, &origin, &mut |cx, index| cx.expr_at(*data, index))?;
        let places = self.graph.ty(*indices).shape.clone();
        let extent = shape[axis].clone();
        self.for_shape(&places, LoopKind::Serial, &mut |cx, index| {
            let pick = cx.expr_at(*indices, &index)?;
            let mut at = index.clone();
            at[axis] = cx.checked_index(pick, &extent);
            let update = cx.expr_at(*updates, &index)?;
            cx.scatter_one(out, &at, update, combine);
            Ok(())
        })
    }

    pub(super) fn scatter_nd(
        &mut self,
        inputs: &[ValueId],
        combine: Option<BinaryFn>,
        out: ValueId,
    ) -> Result<()> {
        let [data, indices, updates] = inputs else { return internal("a scatter takes three operands") };
        let shape = self.graph.ty(*data).shape.clone();
        let origin = vec![Dim::ZERO; shape.len()];
        self.copy_nest(&[], &shape, out, &origin, &mut |cx, index| cx.expr_at(*data, index))?;
        let places = self.graph.ty(*indices).shape.clone();
        let Some((depth, lead)) = places.split_last() else { return internal("scatter_nd by a scalar") };
        let Some(depth) = depth.as_const() else { return internal("scatter_nd of symbolic depth") };
        let depth = depth as usize;
        let tail = shape[depth..].to_vec();
        self.for_shape(lead, LoopKind::Serial, &mut |cx, index| {
            let mut to = Vec::with_capacity(shape.len());
            for (axis, extent) in shape[..depth].iter().enumerate() {
                let mut place = index.clone();
                place.push(Index::int(axis as i64));
                let pick = cx.expr_at(*indices, &place)?;
                to.push(cx.checked_index(pick, extent));
            }
            cx.for_shape(&tail, LoopKind::Serial, &mut |cx, inner| {
                let mut from = index.clone();
                from.extend_from_slice(&inner);
                let update = cx.expr_at(*updates, &from)?;
                let mut at = to.clone();
                at.extend(inner);
                cx.scatter_one(out, &at, update, combine);
                Ok(())
            })
        })
    }
}

/// Runs `take` where an element `x` is more extreme than the best of those before it, or, with `last`, as extreme. A NaN
/// is more extreme than any number.
fn if_better(x: Expr, best: Expr, dtype: DType, max: bool, last: bool, take: Vec<Stmt>) -> Stmt {
    if !dtype.is_float() {
        let op = match (max, last) {
            (true, false) => CompareFn::Gt,
            (true, true) => CompareFn::Ge,
            (false, false) => CompareFn::Lt,
            (false, true) => CompareFn::Le,
        };
        return Stmt::If { condition: Expr::compare(op, x, best), then: take, otherwise: vec![] };
    }
    // The first test fails for NaN as well, so that numbers mostly need no other.
    let worse = match (max, last) {
        (true, false) => CompareFn::Le,
        (true, true) => CompareFn::Lt,
        (false, false) => CompareFn::Ge,
        (false, true) => CompareFn::Gt,
    };
    let mut condition = Expr::compare(CompareFn::Eq, best.clone(), best.clone());
    if last {
        let is_nan = Expr::compare(CompareFn::Ne, x.clone(), x.clone());
        condition = Expr::binary(BinaryFn::Or, condition, is_nan);
    }
    let otherwise = vec![Stmt::If { condition, then: take, otherwise: vec![] }];
    Stmt::If { condition: Expr::compare(worse, x, best), then: vec![], otherwise }
}

/// What lies before and after `inner` along an axis of `outer`, which begins `lo` before it, each as its shape and where it
/// begins: the inside along the axes before this one, all along those after it.
pub(super) fn slabs(inner: &[Dim], outer: &[Dim], lo: &[Dim], axis: usize) -> Vec<(Vec<Dim>, Vec<Dim>)> {
    let end = lo[axis].clone() + inner[axis].clone();
    let ranges = [(Dim::ZERO, lo[axis].clone()), (end, outer[axis].clone())];
    ranges
        .into_iter()
        .filter(|(from, to)| from != to)
        .map(|(from, to)| {
            let mut shape = inner[..axis].to_vec();
            shape.push(to - from.clone());
            shape.extend_from_slice(&outer[axis + 1..]);
            let mut at = lo[..axis].to_vec();
            at.push(from);
            at.resize(outer.len(), Dim::ZERO);
            (shape, at)
        })
        .collect()
}
