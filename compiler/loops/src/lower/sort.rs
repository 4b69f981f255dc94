//! Sorts: a heap of the elements to keep, which lives in the results themselves.
//!
//! The root is the last of the kept elements in the wanted order. Every further element that comes before it takes
//! its place; at the end the heap is taken apart from its root, which fills the results from their end. That costs
//! `n + m log k` steps for `k` of `n` elements if `m` enter the heap (of shuffled elements some `k log(n / k)`), and needs no memory
//! besides the results. Elements are compared by key and then by index, so no
//! two are equal and the result is that of a stable sort.

use crate::lower::Lowering;
use crate::lower::contract::walk::RangePart;
use crate::lower::expr::INDEX_OUT_OF_RANGE;
use crate::lower::radix::Lists;
use crate::{Access, Buf, Buffer, Expr, Index, Local, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DType, Dim, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, ReduceFn, UnaryFn};
use onnxc_schedule::RadixSort;
use onnxc_tuning::reduce::Partials;
use onnxc_tuning::single::Sort;

/// Levels of a heap of any size that memory holds.
const MAX_LEVELS: i64 = 48;

/// A row of the operand, and of the results.
pub(super) struct SortedRow {
    pub x: ValueId,
    /// Keys, and their indices.
    pub results: [ValueId; 2],
    pub axis: usize,
    /// Index of the row, 0 along the axis.
    pub index: Vec<Index>,
    pub take: Dim,
    pub extent: Dim,
    pub tuning: Sort,
}

impl SortedRow {
    /// Index of an element of the row.
    pub(super) fn at(&self, i: &Index) -> Vec<Index> {
        let mut index = self.index.clone();
        index[self.axis] = i.clone();
        index
    }

    /// Whether the sizes of this run make it worth to count digits; see [`RadixSort`].
    fn is_for_radix(&self) -> Expr {
        let share = self.take.clone() * Dim::from(RadixSort::SHARE) + Dim::ONE;
        let least = Index::int(RadixSort::LEAST - 1);
        let extent = Index::dim(self.extent.clone());
        and(below(&extent, &Index::dim(share)), below(&least, &extent))
    }
}

/// A heap along one row of the results.
struct Heap {
    /// The results: keys, and their indices.
    bufs: [Buf; 2],
    /// Address of the first element of the row, and from one element to the next.
    start: Index,
    stride: Dim,
    descending: bool,
    /// Whether a key may be NaN.
    is_float: bool,
    /// More levels than the heap has.
    levels: Index,
    /// Where an item that sinks may come to rest, and from where it goes on, or past the end.
    hole: Local,
    walk: Local,
}

/// A key and its index.
#[derive(Clone)]
struct Item {
    key: Expr,
    place: Expr,
}

/// The only element of a local, what it holds, and a new value for it.
pub(super) fn at() -> Vec<Index> {
    vec![Index::zero()]
}

pub(super) fn get(local: Local) -> Expr {
    Expr::Get { local, at: at() }
}

pub(super) fn set(local: Local, value: Expr) -> Stmt {
    Stmt::Set { local, at: at(), value }
}

fn and(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::And, a, b)
}

fn or(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::Or, a, b)
}

fn below(a: &Index, b: &Index) -> Expr {
    Expr::compare(CompareFn::Lt, Expr::Index(a.clone()), Expr::Index(b.clone()))
}

impl Lowering<'_> {
    pub(super) fn sort(
        &mut self,
        x: ValueId,
        results: [ValueId; 2],
        axis: usize,
        descending: bool,
        take: &Dim,
    ) -> Result<()> {
        let extent = self.graph.ty(x).shape[axis].clone();
        let mut rows = self.graph.ty(x).shape.clone();
        rows[axis] = Dim::ONE;
        let bufs = results.map(|result| self.buffers[&result]);
        for buf in bufs {
            self.kernel.buffers[buf].access = Access::ReadWrite;
        }
        let mut pick = self.picker();
        let tuning = Sort::choose(&mut pick)?;
        self.tuned(pick)?;
        let row =
            |index| SortedRow { x, results, axis, index, take: take.clone(), extent: extent.clone(), tuning };
        let Some(sort) = RadixSort::of(self.graph, self.group.anchor) else {
            let locals = self.heap_locals();
            return self.for_shared(&rows, &mut |cx, index| cx.heap_row(&row(index), descending, locals));
        };
        let (name, len) = ("scratch".into(), sort.elements());
        let buffer = Buffer { name, dtype: DType::I64, len, access: Access::ReadWrite };
        let buf = self.kernel.buffers.push(buffer);
        let locals = (!sort.certain).then(|| self.heap_locals());
        self.for_each("part", &sort.parts.clone(), LoopKind::Parallel, |cx, part| {
            let lists = Lists { buf, start: part.scale(&sort.slot()) };
            let part = RangePart { number: part, count: sort.parts.clone() };
            cx.for_part(&rows, &part, &mut |cx, index| {
                let row = row(index);
                let Some(locals) = locals else { return cx.radix_row(&sort, &lists, &row, descending) };
                let then = cx.scope(|cx| cx.radix_row(&sort, &lists, &row, descending))?;
                let otherwise = cx.scope(|cx| cx.heap_row(&row, descending, locals))?;
                cx.push(Stmt::If { condition: row.is_for_radix(), then, otherwise });
                Ok(())
            })
        })
    }

    fn heap_locals(&mut self) -> [Local; 2] {
        ["hole", "walk"].map(|name| self.kernel.local(name, DType::I64, &[1], 1))
    }

    /// One row, by a heap.
    fn heap_row(&mut self, row: &SortedRow, descending: bool, [hole, walk]: [Local; 2]) -> Result<()> {
        let (take, extent) = (&row.take, &row.extent);
        if (extent.clone() - take.clone()).bounds().0.is_none_or(|room| room < 0) {
            let fits = below(&Index::dim(take.clone()), &Index::dim(extent.clone() + Dim::ONE));
            self.push(Stmt::Check { condition: fits, code: INDEX_OUT_OF_RANGE });
        }
        let start = self.address(row.results[0], &row.index);
        let levels = self.heap_levels(take);
        let strides = onnxc_ir::graph::dim::row_major_strides(&self.graph.ty(row.results[0]).shape);
        let stride = strides[row.axis].clone();
        let bufs = row.results.map(|result| self.buffers[&result]);
        let is_float = self.graph.ty(row.x).dtype.is_float();
        let heap = Heap { bufs, start, stride, descending, is_float, levels, hole, walk };
        let element = |cx: &mut Self, i: &Index| {
            let key = cx.expr_at(row.x, &row.at(i))?;
            Ok(Item { key: cx.bind("x", key), place: Expr::Index(i.clone()) })
        };
        self.for_each("i", take, LoopKind::Serial, |cx, i| {
            let item = element(cx, &i)?;
            heap.put(cx, &i, item);
            Ok(())
        })?;
        let Some(last) = non_empty(take) else { return Ok(()) };
        heap.build(self, take)?;
        self.rest_of_row(&heap, row, &last, &element)?;
        heap.take_apart(self, take)
    }

    /// Elements after the first `take`: each that comes before the root replaces it.
    fn rest_of_row(
        &mut self,
        heap: &Heap,
        row: &SortedRow,
        some: &Option<Expr>,
        element: &dyn Fn(&mut Self, &Index) -> Result<Item>,
    ) -> Result<()> {
        let (take, extent) = (&row.take, &row.extent);
        if take == extent {
            return Ok(());
        }
        let worst = self.kernel.local("worst", self.graph.ty(row.x).dtype, &[1], 1);
        let mut body = self.scope(|cx| {
            let root = heap.get(cx, &Index::zero());
            cx.push(set(worst, root.key));
            let blocks = cx.blocks(row);
            let mut from = Index::dim(take.clone());
            if blocks > 0 {
                let size = Dim::from(row.tuning.block);
                cx.for_each("block", &Dim::from(blocks), LoopKind::Serial, |cx, block| {
                    let start = block.scale(&size).add_dim(take);
                    let condition = cx.block_has_any(heap, row, &start, worst)?;
                    let end = start.add_dim(&size);
                    let then = cx.scope(|cx| cx.offer(heap, row, [start, end], worst, element))?;
                    cx.push(Stmt::If { condition, then, otherwise: vec![] });
                    Ok(())
                })?;
                from = from.add_dim(&Dim::from(blocks * row.tuning.block));
            }
            cx.offer(heap, row, [from, Index::dim(extent.clone())], worst, element)
        })?;
        if let Some(condition) = some {
            body = vec![Stmt::If { condition: condition.clone(), then: body, otherwise: vec![] }];
        }
        body.into_iter().for_each(|stmt| self.push(stmt));
        Ok(())
    }

    /// Elements of a range, one by one; `worst` is the root's key.
    fn offer(
        &mut self,
        heap: &Heap,
        row: &SortedRow,
        [lo, hi]: [Index; 2],
        worst: Local,
        element: &dyn Fn(&mut Self, &Index) -> Result<Item>,
    ) -> Result<()> {
        let i = self.kernel.loop_var("i");
        let body = self.scope(|cx| {
            let item = element(cx, &Index::var(i))?;
            let root = cx.bind("root", get(worst));
            // Of equal keys the one in the heap has the lower index and stays.
            let condition = heap.before(&item.key, &root);
            let then = cx.scope(|cx| {
                heap.sink(cx, &Index::zero(), item, &Index::dim(row.take.clone()))?;
                let root = heap.get(cx, &Index::zero());
                cx.push(set(worst, root.key));
                Ok(())
            })?;
            cx.push(Stmt::If { condition, then, otherwise: vec![] });
            Ok(())
        })?;
        self.push(Stmt::For { var: i, lo, hi, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// Blocks after the first `take` elements whose extreme is worth a look before their elements: where few elements
    /// of a long contiguous buffer enter the heap.
    fn blocks(&self, row: &SortedRow) -> i64 {
        let ordered = self.graph.ty(row.x).dtype != DType::Bool;
        let contiguous = ordered && self.inputs.contains(&row.x) && row.axis + 1 == row.index.len();
        match (row.take.as_const(), row.extent.as_const()) {
            (Some(take), Some(extent)) if contiguous && extent / row.tuning.sparse >= take => {
                (extent - take) / row.tuning.block
            }
            _ => 0,
        }
    }

    /// Whether an element of the block at `start` comes before `worst`.
    fn block_has_any(&mut self, heap: &Heap, row: &SortedRow, start: &Index, worst: Local) -> Result<Expr> {
        let function = if heap.descending { ReduceFn::Max } else { ReduceFn::Min };
        let best = self.reduction(
            function,
            row.x,
            &[Dim::from(row.tuning.block)],
            Partials::CHOSEN,
            None,
            &mut |_, inner| row.at(&start.add(&inner[0])),
        )?;
        let best = self.bind("best", best);
        let any = heap.before(&best, &get(worst));
        // A NaN hides the rest of its block, which it follows in ascending order.
        Ok(match heap.is_float && !heap.descending {
            true => or(any, Expr::compare(CompareFn::Ne, best.clone(), best)),
            false => any,
        })
    }

    /// A number of levels that a heap of `size` elements does not exceed.
    fn heap_levels(&mut self, size: &Dim) -> Index {
        if let Some(size) = size.as_const() {
            return Index::int(i64::from(64 - size.max(1).leading_zeros()));
        }
        let count = self.kernel.local("levels", DType::I64, &[1], 1);
        self.push(set(count, Expr::constant(DType::I64, 0.0)));
        let level = self.kernel.loop_var("level");
        let power =
            Expr::binary(BinaryFn::Shl, Expr::constant(DType::I64, 1.0), Expr::Index(Index::var(level)));
        let needed = Expr::compare(CompareFn::Le, power, Expr::Index(Index::dim(size.clone())));
        let more = set(count, Expr::Index(Index::var(level).add_dim(&Dim::ONE)));
        self.push(Stmt::For {
            var: level,
            lo: Index::zero(),
            hi: Index::int(MAX_LEVELS),
            step: 1,
            kind: LoopKind::Serial,
            body: vec![Stmt::If { condition: needed, then: vec![more], otherwise: vec![] }],
        });
        let levels = self.bind("depth", get(count));
        self.as_index(levels)
    }
}

/// What holds where there is an element to take: nothing to test for a known count, a test for another. `None` where
/// there is none for certain.
fn non_empty(take: &Dim) -> Option<Option<Expr>> {
    match take.as_const() {
        Some(0) => None,
        Some(_) => Some(None),
        None => Some(Some(below(&Index::zero(), &Index::dim(take.clone())))),
    }
}

impl Heap {
    fn address(&self, index: &Index) -> Index {
        self.start.add(&index.scale(&self.stride))
    }

    fn get(&self, cx: &mut Lowering<'_>, index: &Index) -> Item {
        let [keys, places] = self.bufs;
        let index = self.address(index);
        let key = cx.bind("key", Expr::Load { buf: keys, index: index.clone() });
        let place = cx.bind("place", Expr::Load { buf: places, index });
        Item { key, place }
    }

    fn put(&self, cx: &mut Lowering<'_>, index: &Index, item: Item) {
        let [keys, places] = self.bufs;
        let index = self.address(index);
        cx.push(Stmt::Store { buf: keys, index: index.clone(), value: item.key });
        cx.push(Stmt::Store { buf: places, index, value: item.place });
    }

    /// Whether key `a` comes before key `b` wherever they stand.
    fn before(&self, a: &Expr, b: &Expr) -> Expr {
        let (low, high) = if self.descending { (b, a) } else { (a, b) };
        let less = Expr::compare(CompareFn::Lt, low.clone(), high.clone());
        if !self.is_float {
            return less;
        }
        let is_nan = |expr: &Expr| Expr::compare(CompareFn::Ne, expr.clone(), expr.clone());
        let is_number = Expr::compare(CompareFn::Eq, low.clone(), low.clone());
        or(less, and(is_nan(high), is_number))
    }

    /// Whether `a` comes after `b`.
    fn after(&self, a: &Item, b: &Item) -> Expr {
        let tie = and(
            Expr::unary(UnaryFn::Not, self.before(&a.key, &b.key)),
            Expr::compare(CompareFn::Gt, a.place.clone(), b.place.clone()),
        );
        or(self.before(&b.key, &a.key), tie)
    }

    /// Makes a heap of the first `size` elements.
    fn build(&self, cx: &mut Lowering<'_>, size: &Dim) -> Result<()> {
        let half = size.floor_div(&Dim::from(2usize)).unwrap_or(Dim::ZERO);
        cx.for_each("s", &half.clone(), LoopKind::Serial, |cx, step| {
            let from = step.scale(&Dim::from(-1i64)).add_dim(&(half - Dim::ONE));
            let item = self.get(cx, &from);
            self.sink(cx, &from, item, &Index::dim(size.clone()))
        })
    }

    /// Takes one root after the other off the heap, to where the heap then ends.
    fn take_apart(&self, cx: &mut Lowering<'_>, size: &Dim) -> Result<()> {
        let turns = (size.clone() - Dim::ONE).max_dim(&Dim::ZERO);
        if turns == Dim::ZERO {
            return Ok(());
        }
        cx.for_each("s", &turns, LoopKind::Serial, |cx, step| {
            let end = step.scale(&Dim::from(-1i64)).add_dim(&(size.clone() - Dim::ONE));
            let item = self.get(cx, &end);
            let root = self.get(cx, &Index::zero());
            self.put(cx, &end, root);
            self.sink(cx, &Index::zero(), item, &end)
        })
    }

    /// Puts an item where position `from` is free, or below it: the later child moves up while it comes after the item.
    fn sink(&self, cx: &mut Lowering<'_>, from: &Index, item: Item, size: &Index) -> Result<()> {
        cx.push(set(self.hole, Expr::Index(from.clone())));
        cx.push(set(self.walk, Expr::Index(from.clone())));
        let level = cx.kernel.loop_var("level");
        let body = cx.scope(|cx| {
            let here = cx.bind("here", get(self.walk));
            let here = cx.as_index(here);
            let left = here.scale(&Dim::from(2usize)).add_dim(&Dim::ONE);
            let condition = below(&left, size);
            let then = cx.scope(|cx| self.descend(cx, &here, &left, &item, size))?;
            cx.push(Stmt::If { condition, then, otherwise: vec![] });
            Ok(())
        })?;
        let (lo, hi) = (Index::zero(), self.levels.clone());
        cx.push(Stmt::For { var: level, lo, hi, step: 1, kind: LoopKind::Serial, body });
        let hole = cx.bind("rest", get(self.hole));
        let hole = cx.as_index(hole);
        self.put(cx, &hole, item);
        Ok(())
    }

    /// One level down from `here`, whose first child exists.
    fn descend(
        &self,
        cx: &mut Lowering<'_>,
        here: &Index,
        left: &Index,
        item: &Item,
        size: &Index,
    ) -> Result<()> {
        let right = left.add_dim(&Dim::ONE);
        let both = below(&right, size);
        let right = Expr::select(both, Expr::Index(right), Expr::Index(left.clone()));
        let right = cx.bind("right", right);
        let right = cx.as_index(right);
        let (a, b) = (self.get(cx, left), self.get(cx, &right));
        let later = cx.bind("later", self.after(&b, &a));
        let mut pick = |name: &str, a: Expr, b: Expr| {
            let value = Expr::select(later.clone(), b, a);
            cx.bind(name, value)
        };
        let child = pick("child", Expr::Index(left.clone()), Expr::Index(right.clone()));
        let key = pick("key", a.key.clone(), b.key.clone());
        let place = pick("place", a.place.clone(), b.place.clone());
        let child = cx.as_index(child);
        let candidate = Item { key, place };
        let condition = self.after(&candidate, item);
        let then = cx.scope(|cx| {
            self.put(cx, here, candidate);
            cx.push(set(self.hole, Expr::Index(child.clone())));
            cx.push(set(self.walk, Expr::Index(child)));
            Ok(())
        })?;
        let otherwise = vec![set(self.walk, Expr::Index(size.clone()))];
        cx.push(Stmt::If { condition, then, otherwise });
        Ok(())
    }
}
