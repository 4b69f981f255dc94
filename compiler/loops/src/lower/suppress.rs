//! Suppression of boxes that overlap a better one: candidates in order, each compared with those kept so far.
//!
//! The boxes that are kept lie in arrays of the scratch, one per coordinate, which end in boxes without extent: chunks of
//! them are compared in vectors. A candidate is done with at the first chunk that has a box which overlaps it too much.
//! Boxes of a chunk begin in the same band of the first axis, so that most chunks are far from a candidate; their ends show that for
//! several chunks at once.
//!
//! `common / union > limit` is decided without division for nearly all pairs: rounding keeps the order of numbers, so that
//! the rounded quotient is above `limit`, a float, only where the quotient is, and then `common`, a float, is not below
//! the rounded product of `limit` and `union`. Only chunks with such a pair divide.

use crate::lower::sort::{at, get, set};
use crate::lower::{Lowering, internal};
use crate::{Access, Buf, Buffer, Expr, Index, Local, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn};
use onnxc_schedule::KeptBoxes;

/// Lanes of a comparison: there is a branch on data after each, which only kernels with vectors of 128 bits have.
const LANES: usize = 4;

/// What the boxes of a row are compared with.
struct BoxRow {
    /// Kept boxes.
    buf: Buf,
    start: Index,
    room: Dim,
    chunks_room: Dim,
    limit: Expr,
    /// Boxes and chunks of boxes that are kept, and groups of chunks.
    count: Local,
    chunks: Local,
    groups: Local,
    /// Where a box goes.
    slot: Local,
    /// By band, where its next box goes; a whole number of chunks: into a chunk that does not exist yet.
    next: Buf,
    /// Where the bands begin, those of a unit of the axis, and the last one.
    bands: [Expr; 3],
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

fn add_one(local: Local) -> Stmt {
    Stmt::Accumulate { local, at: at(), op: BinaryFn::Add, value: int(1.0) }
}

impl BoxRow {
    /// Address of element `k` of an array of the row's boxes.
    fn address(&self, array: usize, k: &Index) -> Index {
        self.start.add(k).add_dim(&(self.room.clone() * Dim::from(array)))
    }

    /// Address of an end of chunk `k`.
    fn end(&self, array: usize, k: &Index) -> Index {
        let before = self.room.clone() * Dim::from(KeptBoxes::ARRAYS);
        self.start.add(k).add_dim(&(before + self.chunks_room.clone() * Dim::from(array)))
    }
}

impl Lowering<'_> {
    /// `inputs`: four coordinates and whether there is a candidate, `[rows.., m]` each, and the limit; see
    /// [`onnxc_ir::graph::Op::Suppress`].
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
        let [count, chunks, groups, slot] =
            ["count", "chunks", "groups", "slot"].map(|name| self.kernel.local(name, DType::I64, &[1], 1));
        let ends_of_all = ["least", "most"].map(|name| self.kernel.local(name, DType::F32, &[1], 1));
        let next = Buffer {
            name: "next".into(),
            dtype: DType::I64,
            len: Dim::from(KeptBoxes::BANDS),
            access: Access::Frame,
        };
        let next = self.kernel.buffers.push(next);
        let found = self.kernel.local("found", DType::F32, &[LANES], LANES);
        let dropped = self.kernel.local("dropped", DType::F32, &[1], 1);
        let shape = self.graph.ty(alive).shape.clone();
        let (candidates, rows) = shape.split_last().expect("inference has checked the rank");
        self.for_shared(rows, &mut |cx, index| {
            let place = Index::row_major(&index, rows);
            let limit = cx.expr_at(limit, &[])?;
            let limit = cx.bind("limit", limit);
            let (start, room) = (place.scale(&boxes.slot()), boxes.room());
            let full = |last: &Index| index.iter().cloned().chain([last.clone()]).collect::<Vec<_>>();
            cx.for_each("t", take, LoopKind::Serial, |cx, t| {
                cx.store(out, &full(&t), int(-1.0));
                Ok(())
            })?;
            let bands = cx.bands(&boxes, ends_of_all, candidates, &|cx, i| {
                Ok([cx.expr_at(alive, &full(i))?, cx.expr_at(ends[0], &full(i))?])
            })?;
            for local in [count, chunks, groups, slot] {
                cx.push(set(local, int(0.0)));
            }
            cx.for_each("band", &Dim::from(KeptBoxes::BANDS), LoopKind::Serial, |cx, band| {
                cx.push(Stmt::Store { buf: next, index: band, value: int(0.0) });
                Ok(())
            })?;
            let chunks_room = boxes.chunks.clone();
            let row = BoxRow {
                buf,
                start,
                room,
                chunks_room,
                limit,
                count,
                chunks,
                groups,
                slot,
                next,
                bands,
                found,
                dropped,
            };
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
                        cx.keep(&row, &candidate)?;
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

    /// Where bands of the first axis begin, how many a unit of it has, and the number of the last one: bands between the least
    /// and the greatest beginning of a candidate.
    fn bands(
        &mut self,
        boxes: &KeptBoxes,
        [least, most]: [Local; 2],
        candidates: &Dim,
        candidate: &dyn Fn(&mut Self, &Index) -> Result<[Expr; 2]>,
    ) -> Result<[Expr; 3]> {
        self.push(set(least, float(f64::INFINITY)));
        self.push(set(most, float(f64::NEG_INFINITY)));
        self.for_each("i", candidates, LoopKind::Serial, |cx, i| {
            let [wanted, end] = candidate(cx, &i)?;
            let end = cx.bind("end", end);
            let then = [(least, CompareFn::Lt), (most, CompareFn::Gt)]
                .map(|(local, op)| set(local, extreme(op, end.clone(), get(local))));
            cx.push(Stmt::If { condition: wanted, then: then.to_vec(), otherwise: vec![] });
            Ok(())
        })?;
        let least = self.bind("least", get(least));
        let count = Expr::cast(DType::F32, Expr::Index(Index::dim(boxes.bands.clone())));
        let count = self.bind("bands", count);
        let unit = Expr::binary(BinaryFn::Div, count.clone(), minus(get(most), least.clone()));
        let unit = self.bind("unit", unit);
        Ok([least, unit, self.bind("last", minus(count, float(1.0)))])
    }

    /// Sets `dropped` to a number that is not 0 where a kept box overlaps the candidate beyond the limit.
    fn compare_with_kept(&mut self, row: &BoxRow, candidate: &Candidate) -> Result<()> {
        self.push(set(row.dropped, float(0.0)));
        // Boxes without area overlap nothing.
        let groups = Expr::select(is_positive(&candidate.area), get(row.groups), int(0.0));
        let groups = self.as_index(groups);
        let group = self.kernel.loop_var("group");
        let open = Expr::compare(CompareFn::Eq, get(row.dropped), float(0.0));
        let body = self.scope(|cx| {
            let first = Index::var(group).scale(&Dim::from(KeptBoxes::GROUP));
            let then = cx.scope(|cx| {
                let near = cx.near(row, candidate, &first)?;
                let then = cx.scope(|cx| {
                    cx.for_each("chunk", &Dim::from(KeptBoxes::GROUP), LoopKind::Serial, |cx, chunk| {
                        cx.compare_with_chunk(row, candidate, &first.add(&chunk))
                    })
                })?;
                cx.push(Stmt::If { condition: is_positive(&near), then, otherwise: vec![] });
                Ok(())
            })?;
            cx.push(Stmt::If { condition: open.clone(), then, otherwise: vec![] });
            Ok(())
        })?;
        let lo = Index::zero();
        self.push(Stmt::For { var: group, lo, hi: groups, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    fn compare_with_chunk(&mut self, row: &BoxRow, candidate: &Candidate, chunk: &Index) -> Result<()> {
        let open = Expr::compare(CompareFn::Eq, get(row.dropped), float(0.0));
        let reaches = self.reaches(row, candidate, chunk);
        let then = self.scope(|cx| {
            let first = chunk.scale(&Dim::from(KeptBoxes::CHUNK));
            let close = cx.pairs(row, candidate, &first, false)?;
            let then = cx.scope(|cx| {
                let above = cx.pairs(row, candidate, &first, true)?;
                cx.push(set(row.dropped, above));
                Ok(())
            })?;
            cx.push(Stmt::If { condition: is_positive(&close), then, otherwise: vec![] });
            Ok(())
        })?;
        let condition = Expr::binary(BinaryFn::And, open, reaches);
        self.push(Stmt::If { condition, then, otherwise: vec![] });
        Ok(())
    }

    /// The number of chunks of a group, from `first` on, whose ends reach the candidate.
    fn near(&mut self, row: &BoxRow, candidate: &Candidate, first: &Index) -> Result<Expr> {
        let lane = self.kernel.loop_var("v");
        let body = self.scope(|cx| {
            let reaches = cx.reaches(row, candidate, &first.add(&Index::var(lane)));
            let value = Expr::select(reaches, float(1.0), float(0.0));
            cx.push(Stmt::Set { local: row.found, at: vec![Index::var(lane)], value });
            Ok(())
        })?;
        self.push_lanes(lane, LANES, body);
        Ok(self.sum_of_lanes(row))
    }

    /// Whether the ends of a chunk leave room for a common part with the candidate. Rounding keeps the order of numbers, so that
    /// what a box has in common is not more.
    fn reaches(&mut self, row: &BoxRow, candidate: &Candidate, chunk: &Index) -> Expr {
        let load = |array: usize| Expr::Load { buf: row.buf, index: row.end(array, chunk) };
        let [height, width] = [0, 2].map(|axis| {
            let lo = extreme(CompareFn::Gt, load(axis), candidate.ends[axis].clone());
            let hi = extreme(CompareFn::Lt, load(axis + 1), candidate.ends[axis + 1].clone());
            is_positive(&minus(hi, lo))
        });
        Expr::binary(BinaryFn::And, height, width)
    }

    fn sum_of_lanes(&mut self, row: &BoxRow) -> Expr {
        let lanes = (0..LANES).map(|lane| Expr::Get { local: row.found, at: vec![Index::int(lane as i64)] });
        let sum = lanes.reduce(|a, b| Expr::binary(BinaryFn::Add, a, b)).unwrap_or(float(0.0));
        self.bind("pairs", sum)
    }

    /// The number of boxes of a chunk that overlap the candidate beyond the limit or, if that is not asked `exactly`, of
    /// those which may.
    fn pairs(&mut self, row: &BoxRow, candidate: &Candidate, first: &Index, exactly: bool) -> Result<Expr> {
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
        Ok(self.sum_of_lanes(row))
    }

    fn overlaps(&mut self, row: &BoxRow, candidate: &Candidate, k: &Index, exactly: bool) -> Expr {
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

    /// Adds a box to those that are kept, in its band's last chunk or a new one.
    fn keep(&mut self, row: &BoxRow, candidate: &Candidate) -> Result<()> {
        let [least, unit, last] = row.bands.clone();
        let band = Expr::binary(BinaryFn::Mul, minus(candidate.ends[0].clone(), least), unit);
        let band = self.bind("band", band);
        // 0 for NaN: of a box that ends nowhere, or where all begin at one place.
        let band = Expr::select(is_positive(&band), band, float(0.0));
        let band = Expr::cast(DType::I64, extreme(CompareFn::Lt, band, last));
        let band = self.as_index(band);
        self.push(set(row.slot, Expr::Load { buf: row.next, index: band.clone() }));
        let then = self.scope(|cx| {
            let then = cx.scope(|cx| {
                let chunks = cx.as_index(get(row.chunks));
                cx.clear_group(row, &chunks)
            })?;
            let condition = cx.is_multiple(row.chunks, KeptBoxes::GROUP);
            cx.push(Stmt::If { condition, then, otherwise: vec![] });
            let chunk = int(KeptBoxes::CHUNK as f64);
            cx.push(set(row.slot, Expr::binary(BinaryFn::Mul, get(row.chunks), chunk)));
            cx.push(add_one(row.chunks));
            Ok(())
        })?;
        let condition = self.is_multiple(row.slot, KeptBoxes::CHUNK);
        self.push(Stmt::If { condition, then, otherwise: vec![] });
        let slot = self.as_index(get(row.slot));
        let values = candidate.ends.iter().chain([&candidate.area]);
        for (array, value) in values.enumerate() {
            self.push(Stmt::Store { buf: row.buf, index: row.address(array, &slot), value: value.clone() });
        }
        let chunk = slot.floor_div(&Dim::from(KeptBoxes::CHUNK), &self.extent_fn());
        let chunk = self.named(chunk);
        for (array, end) in candidate.ends.iter().enumerate() {
            let op = if array % 2 == 0 { CompareFn::Lt } else { CompareFn::Gt };
            let index = row.end(array, &chunk);
            let own = Expr::Load { buf: row.buf, index: index.clone() };
            self.push(Stmt::Store { buf: row.buf, index, value: extreme(op, end.clone(), own) });
        }
        let after = Expr::binary(BinaryFn::Add, get(row.slot), int(1.0));
        self.push(Stmt::Store { buf: row.next, index: band, value: after });
        self.push(add_one(row.count));
        Ok(())
    }

    fn is_multiple(&mut self, count: Local, of: i64) -> Expr {
        let count = self.as_index(get(count));
        let rest = count.modulo(&Dim::from(of), &self.extent_fn());
        Expr::compare(CompareFn::Eq, Expr::Index(rest), int(0.0))
    }

    /// A new group of chunks, from `first` on: boxes without extent, and ends that reach nothing.
    fn clear_group(&mut self, row: &BoxRow, first: &Index) -> Result<()> {
        let start = first.scale(&Dim::from(KeptBoxes::CHUNK));
        let vectors = KeptBoxes::GROUP * KeptBoxes::CHUNK / LANES as i64;
        self.for_each("vector", &Dim::from(vectors), LoopKind::Serial, |cx, vector| {
            for array in 0..KeptBoxes::ARRAYS as usize {
                let lane = cx.kernel.loop_var("v");
                let k = start.add(&vector.scale(&Dim::from(LANES))).add(&Index::var(lane));
                let index = row.address(array, &k);
                cx.push_lanes(lane, LANES, vec![Stmt::Store { buf: row.buf, index, value: float(0.0) }]);
            }
            Ok(())
        })?;
        for array in 0..KeptBoxes::ENDS as usize {
            let lane = self.kernel.loop_var("v");
            let index = row.end(array, &first.add(&Index::var(lane)));
            let value = float(if array % 2 == 0 { f64::INFINITY } else { f64::NEG_INFINITY });
            self.push_lanes(lane, LANES, vec![Stmt::Store { buf: row.buf, index, value }]);
        }
        self.push(add_one(row.groups));
        Ok(())
    }
}
