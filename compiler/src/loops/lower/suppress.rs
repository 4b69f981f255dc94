//! Suppression of boxes that overlap a better one: candidates in order, each compared with those kept so far.
//!
//! The boxes that are kept lie in arrays of the scratch, one per coordinate, which end in boxes without extent: chunks of
//! them are compared in vectors. A candidate is done with at the first chunk that has a box which overlaps it too much.
//!
//! `common / union > limit` is told without division for nearly all pairs: rounding keeps the order of numbers, so that
//! the rounded quotient is above `limit`, a float, only where the quotient is, and then `common`, a float, is not below
//! the rounded product of `limit` and `union`. Only chunks with such a pair divide.

use crate::error::Result;
use crate::graph::{DType, Dim, ValueId};
use crate::loops::lower::sort::{at, get, set};
use crate::loops::lower::{Lowering, internal};
use crate::loops::{Access, Buf, Buffer, Expr, Index, Local, LoopKind, Stmt};
use crate::scalar::{BinaryFn, CompareFn};
use crate::schedule::KeptBoxes;

/// Lanes of a comparison: there is a branch on data after each, which only kernels with vectors of 128 bits have.
const LANES: usize = 4;

/// What the boxes of a row are compared with.
struct Row {
    /// Kept boxes.
    buf: Buf,
    start: Index,
    room: Dim,
    limit: Expr,
    /// Boxes and chunks of boxes that are kept.
    count: Local,
    chunks: Local,
    /// Pairs found in the lanes, and whether the candidate is dropped.
    found: Local,
    dropped: Local,
}

/// Coordinates of a candidate, in the order of the arrays, and its area.
struct Candidate {
    ends: [Expr; 4],
    area: Expr,
}

fn float(value: f64) -> Expr {
    Expr::constant(DType::F32, value)
}

fn int(value: f64) -> Expr {
    Expr::constant(DType::I64, value)
}

fn is_positive(x: &Expr) -> Expr {
    Expr::compare(CompareFn::Gt, x.clone(), float(0.0))
}

/// The greater or the less of two numbers; which one if there is a NaN does not matter, as areas are NaN then.
fn extreme(op: CompareFn, a: Expr, b: Expr) -> Expr {
    Expr::select(Expr::compare(op, a.clone(), b.clone()), a, b)
}

fn minus(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Sub, a, b)
}

impl Row {
    /// Address of element `k` of an array of the row.
    fn address(&self, array: usize, k: &Index) -> Index {
        self.start.add(k).add_dim(&(self.room.clone() * Dim::from(array)))
    }
}

impl Lowering<'_> {
    /// `inputs`: four coordinates and whether there is a candidate, `[rows.., m]` each, and the limit; see
    /// [`crate::graph::Op::Suppress`].
    pub(super) fn suppress(&mut self, inputs: &[ValueId], take: &Dim, out: ValueId) -> Result<()> {
        let (&[.., alive, limit], Some(ends)) = (inputs, inputs.first_chunk::<4>()) else {
            return internal("a suppression without boxes");
        };
        let boxes = KeptBoxes::of(self.graph, self.group.anchor);
        let buffer = Buffer {
            name: "scratch".into(),
            dtype: DType::F32,
            len: boxes.elements(),
            access: Access::ReadWrite,
        };
        let buf = self.kernel.buffers.push(buffer);
        let [count, chunks] = ["count", "chunks"].map(|name| self.kernel.local(name, DType::I64, &[1], 1));
        let found = self.kernel.local("found", DType::F32, &[LANES], LANES);
        let dropped = self.kernel.local("dropped", DType::F32, &[1], 1);
        let shape = self.graph.ty(alive).shape.clone();
        let (candidates, rows) = shape.split_last().expect("inference has checked the rank");
        let strides = crate::graph::dim::row_major_strides(rows);
        self.for_shape(rows, LoopKind::Parallel, &mut |cx, index| {
            let place =
                index.iter().zip(&strides).fold(Index::zero(), |sum, (i, stride)| sum.add(&i.scale(stride)));
            let limit = cx.expr_at(limit, &[])?;
            let limit = cx.bind("limit", limit);
            let (start, room) = (place.scale(&boxes.slot()), boxes.room.clone());
            let row = Row { buf, start, room, limit, count, chunks, found, dropped };
            let full = |last: &Index| index.iter().cloned().chain([last.clone()]).collect::<Vec<_>>();
            cx.for_each("t", take, LoopKind::Serial, |cx, t| {
                cx.store(out, &full(&t), int(-1.0));
                Ok(())
            })?;
            cx.push(set(count, int(0.0)));
            cx.push(set(chunks, int(0.0)));
            cx.for_each("i", candidates, LoopKind::Serial, |cx, i| {
                let alive = cx.expr_at(alive, &full(&i))?;
                let wanted = Expr::Index(Index::dim(take.clone()));
                let more = Expr::compare(CompareFn::Lt, get(count), wanted);
                let then = cx.scope(|cx| {
                    let candidate = cx.candidate(ends, &full(&i))?;
                    cx.compare_with_kept(&row, &candidate)?;
                    let condition = Expr::compare(CompareFn::Eq, get(dropped), float(0.0));
                    let then = cx.scope(|cx| {
                        let kept = cx.bind("kept", get(count));
                        let kept = cx.as_index(kept);
                        cx.keep(&row, &candidate, &kept)?;
                        cx.store(out, &full(&kept), Expr::Index(i.clone()));
                        Ok(())
                    })?;
                    cx.push(Stmt::If { condition, then, otherwise: vec![] });
                    Ok(())
                })?;
                let condition = Expr::binary(BinaryFn::And, alive, more);
                cx.push(Stmt::If { condition, then, otherwise: vec![] });
                Ok(())
            })
        })
    }

    fn candidate(&mut self, ends: &[ValueId; 4], index: &[Index]) -> Result<Candidate> {
        let mut values = Vec::with_capacity(4);
        for &end in ends {
            let value = self.expr_at(end, index)?;
            values.push(self.bind("end", value));
        }
        let Ok(ends) = <[Expr; 4]>::try_from(values) else { return internal("four values are four") };
        let [y_lo, y_hi, x_lo, x_hi] = ends.clone();
        let area = Expr::binary(BinaryFn::Mul, minus(y_hi, y_lo), minus(x_hi, x_lo));
        let area = self.bind("area", area);
        Ok(Candidate { ends, area })
    }

    /// Sets `dropped` to a number that is not 0 where a kept box overlaps the candidate beyond the limit.
    fn compare_with_kept(&mut self, row: &Row, candidate: &Candidate) -> Result<()> {
        self.push(set(row.dropped, float(0.0)));
        // Boxes without area overlap nothing.
        let chunks = Expr::select(is_positive(&candidate.area), get(row.chunks), int(0.0));
        let chunks = self.as_index(chunks);
        let chunk = self.kernel.loop_var("chunk");
        let body = self.scope(|cx| {
            let first = Index::var(chunk).scale(&Dim::from(KeptBoxes::CHUNK));
            let then = cx.scope(|cx| {
                let close = cx.pairs(row, candidate, &first, false)?;
                let then = cx.scope(|cx| {
                    let above = cx.pairs(row, candidate, &first, true)?;
                    cx.push(set(row.dropped, above));
                    Ok(())
                })?;
                cx.push(Stmt::If { condition: is_positive(&close), then, otherwise: vec![] });
                Ok(())
            })?;
            let condition = Expr::compare(CompareFn::Eq, get(row.dropped), float(0.0));
            cx.push(Stmt::If { condition, then, otherwise: vec![] });
            Ok(())
        })?;
        let lo = Index::zero();
        self.push(Stmt::For { var: chunk, lo, hi: chunks, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// The number of boxes of a chunk that overlap the candidate beyond the limit or, if that is not asked `exactly`, of
    /// those which may.
    fn pairs(&mut self, row: &Row, candidate: &Candidate, first: &Index, exactly: bool) -> Result<Expr> {
        let lane = self.kernel.loop_var("v");
        let clear = vec![Stmt::Set { local: row.found, at: vec![Index::var(lane)], value: float(0.0) }];
        self.push_lanes(lane, LANES, clear);
        for vector in (0..KeptBoxes::CHUNK).step_by(LANES) {
            let lane = self.kernel.loop_var("v");
            let body = self.scope(|cx| {
                let k = first.add(&Index::int(vector)).add(&Index::var(lane));
                let overlaps = cx.overlaps(row, candidate, &k, exactly);
                let value = Expr::select(overlaps, float(1.0), float(0.0));
                let at = vec![Index::var(lane)];
                cx.push(Stmt::Accumulate { local: row.found, at, op: BinaryFn::Add, value });
                Ok(())
            })?;
            self.push_lanes(lane, LANES, body);
        }
        let lanes = (0..LANES).map(|lane| Expr::Get { local: row.found, at: vec![Index::int(lane as i64)] });
        let sum = lanes.reduce(|a, b| Expr::binary(BinaryFn::Add, a, b)).unwrap_or(float(0.0));
        Ok(self.bind("pairs", sum))
    }

    fn overlaps(&mut self, row: &Row, candidate: &Candidate, k: &Index, exactly: bool) -> Expr {
        let load = |array: usize| Expr::Load { buf: row.buf, index: row.address(array, k) };
        let mut extents = [0, 2].map(|axis| {
            let lo = extreme(CompareFn::Gt, load(axis), candidate.ends[axis].clone());
            let hi = extreme(CompareFn::Lt, load(axis + 1), candidate.ends[axis + 1].clone());
            minus(hi, lo)
        });
        for extent in &mut extents {
            *extent = self.bind("extent", extent.clone());
        }
        let [height, width] = extents;
        let height = Expr::select(is_positive(&height), height, float(0.0));
        let common = self.bind("common", Expr::binary(BinaryFn::Mul, height, width));
        let area = self.bind("area", load(4));
        let both = Expr::binary(BinaryFn::Add, candidate.area.clone(), area.clone());
        let union = self.bind("union", minus(both, common.clone()));
        let overlap = is_positive(&common);
        if !exactly {
            let least = Expr::binary(BinaryFn::Mul, row.limit.clone(), union);
            let close = Expr::compare(CompareFn::Ge, common, least);
            return Expr::binary(BinaryFn::And, overlap, close);
        }
        let ratio = Expr::binary(BinaryFn::Div, common, union.clone());
        let above = Expr::compare(CompareFn::Gt, ratio, row.limit.clone());
        [is_positive(&area), is_positive(&union), above]
            .into_iter()
            .fold(overlap, |all, more| Expr::binary(BinaryFn::And, all, more))
    }

    /// Appends a box, number `k`, to those that are kept.
    fn keep(&mut self, row: &Row, candidate: &Candidate, k: &Index) -> Result<()> {
        let chunk = KeptBoxes::CHUNK;
        let end = self.bind("end", Expr::binary(BinaryFn::Mul, get(row.chunks), int(chunk as f64)));
        let then = self.scope(|cx| {
            for array in 0..KeptBoxes::ARRAYS as usize {
                for vector in (0..chunk).step_by(LANES) {
                    let lane = cx.kernel.loop_var("v");
                    let index = row.address(array, &k.add(&Index::int(vector)).add(&Index::var(lane)));
                    cx.push_lanes(lane, LANES, vec![Stmt::Store { buf: row.buf, index, value: float(0.0) }]);
                }
            }
            cx.push(Stmt::Accumulate { local: row.chunks, at: at(), op: BinaryFn::Add, value: int(1.0) });
            Ok(())
        })?;
        let condition = Expr::compare(CompareFn::Eq, get(row.count), end);
        self.push(Stmt::If { condition, then, otherwise: vec![] });
        let values = candidate.ends.iter().chain([&candidate.area]);
        for (array, value) in values.enumerate() {
            self.push(Stmt::Store { buf: row.buf, index: row.address(array, k), value: value.clone() });
        }
        self.push(Stmt::Accumulate { local: row.count, at: at(), op: BinaryFn::Add, value: int(1.0) });
        Ok(())
    }
}
