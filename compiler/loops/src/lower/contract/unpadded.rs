//! Windows over an image whose padding has no memory.
//!
//! Along each axis the positions fall into few parts, where all windows of a part read the image with the same taps. The rows of a
//! product of such parts, a rectangle of an image, are alike then: tiles go along all of them, and leave out the other taps. Only a run
//! knows the number of rows of a rectangle.

use super::walk::RangePart;
use super::{Job, Tile};
use crate::lower::Lowering;
use crate::lower::expr::{pick, pick_index};
use crate::{Expr, Index, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::Dim;
use onnxc_ir::graph::dim::product;
use onnxc_ir::scalar::{BinaryFn, CompareFn};

/// What is done for a tile: its number, and its rows by their index along each axis of a rectangle.
type TileFn<'f, L> = &'f mut dyn FnMut(&mut L, Index, Vec<Vec<Index>>) -> Result<()>;

/// A rectangle of the last row axes.
struct Rectangle<'a> {
    /// Its first row along each of them, and its extents.
    first: Vec<Index>,
    extents: Vec<Expr>,
    /// Which part it is along each axis, and the extents of all parts.
    at: &'a [Index],
    all: &'a [Vec<Dim>],
}

impl Lowering<'_> {
    /// A part of the rows of one panel, see [`Self::register_panel`].
    pub(super) fn unpadded_panel(
        &mut self,
        job: &Job,
        batch: &[Index],
        panel: &Index,
        part: &RangePart,
    ) -> Result<()> {
        let row_axes = job.row_axes(&self.graph.ty(job.out).shape);
        let (outer, axes) = row_axes.split_at(job.tile.row_loops);
        let ends = job.left_out.ends(outer.len(), axes)?;
        let extents = ends.iter().map(|ends| {
            let extents = ends.windows(2).map(|ends| ends[1].clone() - ends[0].clone());
            extents.collect::<Vec<Dim>>()
        });
        let extents: Vec<Vec<Dim>> = extents.collect();
        let parts: Vec<Dim> = extents.iter().map(|extents| Dim::from(extents.len())).collect();
        let ahead = self.ahead(job, batch, panel, &product(axes))?;
        self.for_shape(outer, LoopKind::Serial, &mut |cx, lead| {
            cx.for_shape(&parts, LoopKind::Serial, &mut |cx, at| {
                let mut rectangle = Rectangle { first: vec![], extents: vec![], at: &at, all: &extents };
                for ((ends, extents), part) in ends.iter().zip(&extents).zip(&at) {
                    let (first, extent) = (pick(ends, part), pick(extents, part));
                    let first = cx.bind("first", first);
                    rectangle.first.push(cx.as_index(first));
                    rectangle.extents.push(cx.bind("extent", extent));
                }
                cx.for_rectangle(job, &rectangle, part, &mut |cx, tile, rows| {
                    let rows: Vec<Vec<Index>> =
                        rows.into_iter().map(|row| [lead.clone(), row].concat()).collect();
                    let ahead = ahead.clone().map(|ahead| ahead.of_tile(tile));
                    cx.for_parts_of_columns(job, rows.len(), ahead, &mut |cx, first, ahead| {
                        let (batch, rows, panel) = (batch.to_vec(), rows.clone(), panel.clone());
                        cx.tile(job, &Tile { batch, rows, panel, widened: None, first, ahead })
                    })
                })
            })
        })
    }

    /// Loops over a part of the tiles of a rectangle: `fill` makes the statements of one.
    fn for_rectangle(
        &mut self,
        job: &Job,
        rectangle: &Rectangle,
        part: &RangePart,
        fill: TileFn<'_, Self>,
    ) -> Result<()> {
        let rows =
            rectangle.extents.iter().cloned().reduce(|all, extent| Expr::binary(BinaryFn::Mul, all, extent));
        let mut left = match rows {
            Some(rows) => self.as_index(rows),
            None => Index::int(1),
        };
        let mut from = Index::zero();
        for size in sizes(job.tile.rows) {
            let count = left.floor_div(&Dim::from(size), &self.extent_fn());
            let count = self.named(count);
            self.for_own_tiles(&count, part, &mut |cx, tile| {
                let first = from.add(&tile.scale(&Dim::from(size)));
                let rows = cx.rows_of(rectangle, first, size);
                fill(cx, tile, rows)
            })?;
            let taken = count.scale(&Dim::from(size));
            from = from.add(&taken);
            left = left.add(&taken.scale(&Dim::from(-1i64)));
        }
        Ok(())
    }

    /// A loop over the tiles that are a part's.
    fn for_own_tiles(
        &mut self,
        count: &Index,
        part: &RangePart,
        fill: &mut dyn FnMut(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        let mut end = |number: Index| {
            let all = Expr::binary(BinaryFn::Mul, Expr::Index(number), Expr::Index(count.clone()));
            let end = self.as_index(all).floor_div(&part.count, &self.extent_fn());
            self.named(end)
        };
        let (lo, hi) = match part.count == Dim::ONE {
            true => (Index::zero(), count.clone()),
            false => (end(part.number.clone()), end(part.number.add(&Index::int(1)))),
        };
        let var = self.kernel.loop_var("t");
        let body = self.scope(|cx| fill(cx, Index::var(var)))?;
        self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// Rows that follow each other in a rectangle, from number `first` on.
    fn rows_of(&mut self, rectangle: &Rectangle, first: Index, count: usize) -> Vec<Vec<Index>> {
        if let [start] = &rectangle.first[..] {
            // At one stride.
            let first = first.add(start);
            return (0..count).map(|row| vec![first.add(&Index::int(row as i64))]).collect();
        }
        let mut rest = self.bind("row", Expr::Index(first));
        let mut place: Vec<Expr> = vec![];
        for axis in (1..rectangle.extents.len()).rev() {
            // An axis has an extent of a dim for each of its parts: those can be divided by.
            let number = self.as_index(rest.clone());
            let by = rectangle.all[axis]
                .iter()
                .map(|extent| number.floor_div(&extent.max_dim(&Dim::ONE), &self.extent_fn()));
            let quotient = pick_index(&by.collect::<Vec<_>>(), &rectangle.at[axis]);
            let outer = self.bind("row", quotient);
            let whole = Expr::binary(BinaryFn::Mul, outer.clone(), rectangle.extents[axis].clone());
            place.push(self.bind("row", Expr::binary(BinaryFn::Sub, rest, whole)));
            rest = outer;
        }
        place.push(rest);
        place.reverse();
        let mut rows = Vec::with_capacity(count);
        for row in 0..count {
            if row > 0 {
                self.step_on(&mut place, &rectangle.extents);
            }
            let at = place.iter().zip(&rectangle.first);
            rows.push(at.map(|(place, first)| self.as_index(place.clone()).add(first)).collect());
        }
        rows
    }

    /// The next place in row-major order.
    fn step_on(&mut self, place: &mut [Expr], extents: &[Expr]) {
        let mut steps = number(1);
        for (axis, place) in place.iter_mut().enumerate().rev() {
            let next = self.bind("row", Expr::binary(BinaryFn::Add, place.clone(), steps));
            if axis == 0 {
                *place = next;
                return;
            }
            let wraps = Expr::compare(CompareFn::Eq, next.clone(), extents[axis].clone());
            let wraps = self.bind("wraps", wraps);
            *place = self.bind("row", Expr::select(wraps.clone(), number(0), next));
            steps = Expr::select(wraps, number(1), number(0));
        }
    }
}

/// Rows of the tiles that a rectangle is split into, the larger sizes first.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(most), |size| (*size > 1).then_some(size / 2))
}

fn number(value: i64) -> Expr {
    Expr::Index(Index::int(value))
}
