//! Decision trees. A row is walked through several trees side by side, for the steps of their longest path, since leaves follow themselves:
//! steps of one tree wait for each other, those of several do not. A vector of rows, which are its lanes, takes
//! all tests of a tree and keeps in words of bits which leaves are left; the first one of these is the one.

use crate::lower::{Lowering, internal};
use crate::{Access, Buf, Buffer, Expr, Index, Local, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::trees::{Masks, Operands};
use onnxc_ir::graph::{DType, Dim, Trees, ValueId};
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use onnxc_tuning::single::{Forest, Leaves};

/// The tables, and where the columns of a row stand if they are not those of `x`.
struct Walk {
    trees: Trees,
    of: Operands<ValueId>,
    columns: Option<Buf>,
    /// Numbers of categories, 0 of other columns.
    numbers: Option<Buf>,
    /// Nodes of trees side by side.
    nodes: Local,
}

/// Tests of a block of rows: some vectors of them.
struct Tests {
    of: Masks<ValueId>,
    lanes: usize,
    vectors: usize,
    /// Columns of the block, one after the other.
    block: Buf,
    /// Where the rows of the block end, in the order of leaves.
    found: Buf,
    cleared: Local,
    leaf: Local,
}

/// Which part of the columns one is in.
#[derive(Clone, Copy, PartialEq)]
enum ColumnKind {
    Plain,
    Opposite,
    Category,
}

fn wide(x: Expr) -> Expr {
    Expr::cast(DType::I64, x)
}

fn int(value: i32) -> Expr {
    Expr::constant(DType::I32, f64::from(value))
}

fn both(a: Expr, b: Expr) -> Expr {
    Expr::binary(BinaryFn::And, a, b)
}

impl Lowering<'_> {
    /// See [`onnxc_ir::graph::Op::Leaves`].
    pub(super) fn leaves(&mut self, trees: &Trees, inputs: &[ValueId], out: ValueId) -> Result<()> {
        let Some(of) = trees.operands(inputs) else { return internal("leaves without trees") };
        let shape = self.graph.ty(out).shape.clone();
        let [rows, _] = shape.as_slice() else { return internal("leaves of other than rows and trees") };
        let dtype = self.graph.ty(of.x).dtype;
        let lanes = self.core.lanes_of(dtype);
        let vectors = match &of.masks {
            Some(masks) => self.vectors_of_rows(trees, &of, masks, lanes)?,
            None => 0,
        };
        let walk = self.walk_of(trees, of);
        let masks = walk.of.masks.clone().filter(|_| vectors > 0);
        let Some(masks) = masks else {
            return self.for_each("row", rows, LoopKind::Parallel, |cx, row| cx.walk_row(&walk, &row, out));
        };
        let tests = self.tests(&walk, &masks, lanes, vectors);
        let narrow = if vectors > 1 { Some(self.tests(&walk, &masks, lanes, 1)) } else { None };
        let width = Dim::from(lanes * vectors);
        let (Some(whole), Some(blocks)) = (rows.floor_div(&width), rows.ceil_div(&width)) else {
            return internal("blocks of no rows");
        };
        self.for_each("block", &blocks, LoopKind::Parallel, |cx, block| {
            let first = block.scale(&width);
            // A block has all its rows, or those that are left at the end.
            let index = |value: i64| Expr::Index(Index::int(value));
            let full =
                Expr::compare(CompareFn::Lt, Expr::Index(block), Expr::Index(Index::dim(whole.clone())));
            let full = cx.bind("full", full);
            let once = cx.as_index(Expr::select(full.clone(), index(1), index(0)));
            cx.range("once", Index::zero(), once, |cx, _| cx.block(&walk, &tests, &first, out))?;
            let left = Expr::Index(Index::dim(rows.clone() - whole * width.clone()));
            let left = cx.as_index(Expr::select(full, index(0), left));
            let mut from = Index::zero();
            if let Some(narrow) = &narrow {
                let lanes = Dim::from(lanes);
                let parts = left.floor_div(&lanes, &|_| None);
                let parts = cx.as_index(Expr::Index(parts));
                cx.range("part", Index::zero(), parts.clone(), |cx, part| {
                    cx.block(&walk, narrow, &first.add(&part.scale(&lanes)), out)
                })?;
                from = parts.scale(&lanes);
            }
            cx.range("row", from, left, |cx, row| cx.walk_row(&walk, &first.add(&row), out))
        })
    }

    /// Vectors of rows that take all tests at once; 0 where rows are walked.
    fn vectors_of_rows(
        &mut self,
        trees: &Trees,
        of: &Operands<ValueId>,
        masks: &Masks<ValueId>,
        lanes: usize,
    ) -> Result<usize> {
        let count = |list: ValueId| self.graph.ty(list).shape[0].as_const().unwrap_or(0) as u64;
        let forest = Forest {
            trees: count(of.roots),
            steps: trees.steps as u64,
            tests: count(masks.places),
            intervals: masks.highs.is_some(),
            columns: count(of.columns),
        };
        let mut pick = self.picker();
        let vectors = Leaves::choose(&forest, lanes, &mut pick)?.vectors;
        self.tuned(pick)?;
        Ok(vectors)
    }

    /// A serial loop whose bounds data may give.
    fn range(
        &mut self,
        name: &str,
        lo: Index,
        hi: Index,
        fill: impl FnOnce(&mut Self, Index) -> Result<()>,
    ) -> Result<()> {
        let var = self.kernel.loop_var(name);
        let body = self.scope(|cx| fill(cx, Index::var(var)))?;
        self.push(Stmt::For { var, lo, hi, step: 1, kind: LoopKind::Serial, body });
        Ok(())
    }

    /// An element of a list of i32, as an index.
    fn listed(&mut self, list: ValueId, at: &Index) -> Result<Index> {
        let element = self.expr_at(list, std::slice::from_ref(at))?;
        Ok(self.as_index(wide(element)))
    }

    fn frame(&mut self, name: &str, dtype: DType, len: Dim) -> Buf {
        self.kernel.buffers.push(Buffer { name: name.into(), dtype, len, access: Access::Frame })
    }

    fn walk_of(&mut self, trees: &Trees, of: Operands<ValueId>) -> Walk {
        let count = self.graph.ty(of.columns).shape[0].clone();
        let dtype = self.graph.ty(of.x).dtype;
        let columns = trees.copied.then(|| self.frame("columns", dtype, count.clone()));
        let numbers = (trees.categories > 0).then(|| self.frame("numbers", DType::I32, count));
        let nodes = self.kernel.local("nodes", DType::I64, &[Trees::SIDE_BY_SIDE], 1);
        Walk { trees: *trees, of, columns, numbers, nodes }
    }

    /// Runs over the columns, those of each kind by themselves.
    fn for_features(
        &mut self,
        walk: &Walk,
        mut fill: impl FnMut(&mut Self, ColumnKind, Index) -> Result<()>,
    ) -> Result<()> {
        let count = self.graph.ty(walk.of.columns).shape[0].as_const().unwrap_or(0);
        let (plain, end) = (walk.trees.plain as i64, count - walk.trees.categories as i64);
        let parts = [
            (0, plain, ColumnKind::Plain),
            (plain, end, ColumnKind::Opposite),
            (end, count, ColumnKind::Category),
        ];
        for (lo, hi, kind) in parts.into_iter().filter(|(lo, hi, _)| lo < hi) {
            self.range("column", Index::int(lo), Index::int(hi), |cx, column| fill(cx, kind, column))?;
        }
        Ok(())
    }

    /// The number of the category that a column has.
    fn category(&mut self, walk: &Walk, x: Expr, column: &Index) -> Result<Expr> {
        let before =
            self.graph.ty(walk.of.columns).shape[0].as_const().unwrap_or(0) - walk.trees.categories as i64;
        let limit = self.expr_at(walk.of.limits, &[column.add(&Index::int(-before))])?;
        let limit = self.bind("limit", limit);
        let dtype = self.kernel.dtype(&x);
        let float = |x: Expr| Expr::cast(dtype, x);
        let x = self.bind("x", x);
        let whole = self.bind("whole", Expr::cast(DType::I32, x.clone()));
        let positive = Expr::compare(CompareFn::Ge, x.clone(), Expr::constant(dtype, 0.0));
        let below = Expr::compare(CompareFn::Lt, x.clone(), float(limit.clone()));
        let equal = Expr::compare(CompareFn::Eq, float(whole.clone()), x.clone());
        let other = Expr::select(both(both(positive, below), equal), whole, limit.clone());
        let nan = Expr::compare(CompareFn::Ne, x.clone(), x);
        Ok(Expr::select(nan, Expr::binary(BinaryFn::Add, limit, int(1)), other))
    }

    /// A row through all trees.
    fn walk_row(&mut self, walk: &Walk, row: &Index, out: ValueId) -> Result<()> {
        if let Some(columns) = walk.columns {
            let dtype = self.graph.ty(walk.of.x).dtype;
            self.for_features(walk, |cx, kind, column| {
                let feature = cx.listed(walk.of.columns, &column)?;
                let x = cx.expr_at(walk.of.x, &[row.clone(), feature])?;
                let (value, number) = match kind {
                    ColumnKind::Plain => (x, int(0)),
                    ColumnKind::Opposite => (Expr::unary(UnaryFn::Neg, x), int(0)),
                    ColumnKind::Category => (Expr::constant(dtype, 0.0), cx.category(walk, x, &column)?),
                };
                cx.push(Stmt::Store { buf: columns, index: column.clone(), value });
                if let Some(numbers) = walk.numbers {
                    cx.push(Stmt::Store { buf: numbers, index: column, value: number });
                }
                Ok(())
            })?;
        }
        let trees = self.graph.ty(walk.of.roots).shape[0].as_const().unwrap_or(0);
        let side = Trees::SIDE_BY_SIDE as i64;
        let groups = trees / side;
        if groups > 0 {
            self.for_each("group", &Dim::from(groups as usize), LoopKind::Serial, |cx, group| {
                cx.walk_trees(walk, row, &group.scale(&Dim::from(side as usize)), side as usize, out)
            })?;
        }
        match (trees % side) as usize {
            0 => Ok(()),
            left => self.walk_trees(walk, row, &Index::int(groups * side), left, out),
        }
    }

    /// A row through some trees side by side, which have the same number of levels in the list.
    fn walk_trees(
        &mut self,
        walk: &Walk,
        row: &Index,
        first: &Index,
        count: usize,
        out: ValueId,
    ) -> Result<()> {
        let tree = |k: usize| first.add(&Index::int(k as i64));
        let node = |k: usize| vec![Index::int(k as i64)];
        for k in 0..count {
            let root = self.expr_at(walk.of.roots, &[tree(k)])?;
            self.push(Stmt::Set { local: walk.nodes, at: node(k), value: wide(root) });
        }
        let levels = self.listed(walk.of.levels, first)?;
        self.range("level", Index::zero(), levels, |cx, _| {
            for k in 0..count {
                let here = cx.as_index(Expr::Get { local: walk.nodes, at: node(k) });
                let place = cx.listed(walk.of.places, &here)?;
                let value = match walk.columns {
                    Some(buf) => Expr::Load { buf, index: place.clone() },
                    None => cx.expr_at(walk.of.x, &[row.clone(), place.clone()])?,
                };
                let bound = match (walk.of.starts, walk.numbers) {
                    (Some(starts), Some(buf)) => {
                        let start = cx.listed(starts, &here)?;
                        start.add(&cx.as_index(wide(Expr::Load { buf, index: place })))
                    }
                    _ => here.clone(),
                };
                let bound = std::slice::from_ref(&bound);
                let low = cx.expr_at(walk.of.lows, bound)?;
                let value = if walk.of.highs.is_some() { cx.bind("x", value) } else { value };
                let mut right = Expr::compare(CompareFn::Ge, value.clone(), low);
                if let Some(highs) = walk.of.highs {
                    let high = cx.expr_at(highs, bound)?;
                    right = both(right, Expr::compare(CompareFn::Le, value, high));
                }
                let next = cx.expr_at(walk.of.next, &[here])?;
                let value = Expr::binary(BinaryFn::Add, wide(next), wide(right));
                cx.push(Stmt::Set { local: walk.nodes, at: node(k), value });
            }
            Ok(())
        })?;
        for k in 0..count {
            let end = self.as_index(Expr::Get { local: walk.nodes, at: node(k) });
            let leaf = self.expr_at(walk.of.leaves, &[end])?;
            self.store(out, &[row.clone(), tree(k)], leaf);
        }
        Ok(())
    }

    fn tests(&mut self, walk: &Walk, masks: &Masks<ValueId>, lanes: usize, vectors: usize) -> Tests {
        let rows = lanes * vectors;
        let count = self.graph.ty(walk.of.columns).shape[0].clone();
        let block = self.frame("block", self.graph.ty(walk.of.x).dtype, count * Dim::from(rows));
        let found = self.frame("found", DType::I32, Dim::from(rows));
        let [cleared, leaf] =
            ["cleared", "leaf"].map(|name| self.kernel.local(name, DType::I32, &[rows], lanes));
        Tests { of: masks.clone(), lanes, vectors, block, found, cleared, leaf }
    }

    /// The leaves of a block of rows in every tree.
    fn block(&mut self, walk: &Walk, tests: &Tests, first: &Index, out: ValueId) -> Result<()> {
        let rows = tests.lanes * tests.vectors;
        let (width, dtype) = (Dim::from(rows), self.graph.ty(walk.of.x).dtype);
        self.for_features(walk, |cx, kind, column| {
            let feature = cx.listed(walk.of.columns, &column)?;
            for lane in 0..rows {
                let row = first.add(&Index::int(lane as i64));
                let x = cx.expr_at(walk.of.x, &[row, feature.clone()])?;
                let value = match kind {
                    ColumnKind::Plain => x,
                    ColumnKind::Opposite => Expr::unary(UnaryFn::Neg, x),
                    ColumnKind::Category => Expr::cast(dtype, cx.category(walk, x, &column)?),
                };
                let index = column.scale(&width).add(&Index::int(lane as i64));
                cx.push(Stmt::Store { buf: tests.block, index, value });
            }
            Ok(())
        })?;
        let trees = self.graph.ty(walk.of.roots).shape[0].clone();
        self.for_each("tree", &trees, LoopKind::Serial, |cx, tree| {
            cx.lanes_of_block(tests, |_, lane| {
                Ok(Stmt::Set { local: tests.leaf, at: vec![lane], value: int(0) })
            })?;
            let lo = cx.listed(tests.of.trees, &tree)?;
            let hi = cx.listed(tests.of.trees, &tree.add(&Index::int(1)))?;
            cx.range("word", lo, hi, |cx, word| cx.word_of_leaves(tests, &word))?;
            cx.lanes_of_block(tests, |_, lane| {
                let value = Expr::Get { local: tests.leaf, at: vec![lane.clone()] };
                Ok(Stmt::Store { buf: tests.found, index: lane, value })
            })?;
            for lane in 0..rows {
                let found = Expr::Load { buf: tests.found, index: Index::int(lane as i64) };
                let found = cx.as_index(wide(found));
                let leaf = cx.expr_at(tests.of.order, &[found])?;
                cx.store(out, &[first.add(&Index::int(lane as i64)), tree.clone()], leaf);
            }
            Ok(())
        })
    }

    /// A vector loop over the rows of each vector of a block, numbered from the block's first, which ends in what `fill` gives.
    fn lanes_of_block(
        &mut self,
        tests: &Tests,
        mut fill: impl FnMut(&mut Self, Index) -> Result<Stmt>,
    ) -> Result<()> {
        for vector in 0..tests.vectors {
            let lane = self.kernel.loop_var("v");
            let body = self.scope(|cx| {
                let last = fill(cx, Index::int((vector * tests.lanes) as i64).add(&Index::var(lane)))?;
                cx.push(last);
                Ok(())
            })?;
            self.push_lanes(lane, tests.lanes, body);
        }
        Ok(())
    }

    /// The tests of a word of leaves; the first leaf that is left in it, if there is one, is in `leaf` then.
    fn word_of_leaves(&mut self, tests: &Tests, word: &Index) -> Result<()> {
        let width = Dim::from(tests.lanes * tests.vectors);
        self.lanes_of_block(tests, |_, lane| {
            Ok(Stmt::Set { local: tests.cleared, at: vec![lane], value: int(0) })
        })?;
        let lo = self.listed(tests.of.words, word)?;
        let hi = self.listed(tests.of.words, &word.add(&Index::int(1)))?;
        self.range("test", lo, hi, |cx, test| {
            let column = cx.listed(tests.of.places, &test)?.scale(&width);
            let at = std::slice::from_ref(&test);
            let (low, bits) = (cx.expr_at(tests.of.lows, at)?, cx.expr_at(tests.of.bits, at)?);
            let high = tests.of.highs.map(|highs| cx.expr_at(highs, at)).transpose()?;
            cx.lanes_of_block(tests, |cx, lane| {
                let x = Expr::Load { buf: tests.block, index: column.add(&lane) };
                let x = if high.is_some() { cx.bind("x", x) } else { x };
                let mut clears = Expr::compare(CompareFn::Ge, x.clone(), low.clone());
                if let Some(high) = high.clone() {
                    clears = both(clears, Expr::compare(CompareFn::Le, x, high));
                }
                let value = Expr::select(clears, bits.clone(), int(0));
                Ok(Stmt::Accumulate { local: tests.cleared, at: vec![lane], op: BinaryFn::BitOr, value })
            })
        })?;
        let base = self.expr_at(tests.of.bases, std::slice::from_ref(word))?;
        let base = self.bind("base", base);
        self.lanes_of_block(tests, |cx, lane| {
            let cleared = Expr::Get { local: tests.cleared, at: vec![lane.clone()] };
            let left = cx.bind("left", Expr::binary(BinaryFn::BitXor, cleared, int(-1)));
            let opposite = Expr::binary(BinaryFn::Sub, int(0), left.clone());
            let lowest = Expr::binary(BinaryFn::BitAnd, left.clone(), opposite);
            // A power of two, or its opposite, as a float has its logarithm for an exponent.
            let float = Expr::bitcast(DType::I32, Expr::cast(DType::F32, lowest));
            let exponent = Expr::binary(BinaryFn::Shr, float, int(23));
            let exponent = Expr::binary(BinaryFn::BitAnd, exponent, int(0xff));
            let bit = Expr::binary(BinaryFn::Sub, exponent, int(127));
            let leaf = Expr::binary(BinaryFn::Add, bit, base.clone());
            let some = Expr::compare(CompareFn::Ne, left, int(0));
            let before = Expr::Get { local: tests.leaf, at: vec![lane.clone()] };
            Ok(Stmt::Set { local: tests.leaf, at: vec![lane], value: Expr::select(some, leaf, before) })
        })
    }
}
