//! Sorts that keep more than a few elements: keys become integers of 32 bits in the same order, and are dealt out by one
//! digit of eight bits after the other, from the lowest.
//!
//! An item is one i64: the key above, the element's index in its row below. Items are moved between two lists in the
//! scratch; each pass keeps the order of items with equal digits, which is that of their indices at first. So the sort is
//! stable. That costs some ten nanoseconds per element, however many are kept.

use crate::lower::Lowering;
use crate::lower::sort::SortedRow;
use crate::{Buf, Expr, Index, LoopKind, Stmt};
use onnxc_ir::error::Result;
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use onnxc_schedule::RadixSort;

/// Bits of an item that are the element's index.
const INDEX_BITS: i64 = 32;
const DIGIT_BITS: i64 = 8;

/// The part's place in the scratch.
pub(super) struct Lists {
    pub buf: Buf,
    pub start: Index,
}

fn int(value: i64) -> Expr {
    Expr::Const { dtype: DType::I64, bits: value as u64 }
}

fn shifted(op: BinaryFn, x: Expr, by: i64) -> Expr {
    Expr::binary(op, x, int(by))
}

impl Lowering<'_> {
    /// One row; `descending`: the greatest first.
    pub(super) fn radix_row(
        &mut self,
        sort: &RadixSort,
        lists: &Lists,
        row: &SortedRow,
        descending: bool,
    ) -> Result<()> {
        let [from, to] = [lists.start.clone(), lists.start.add_dim(&sort.extent)];
        let counters = to.add_dim(&sort.extent);
        let all = RadixSort::DIGITS * RadixSort::VALUES;
        self.for_each("clear", &all.into(), LoopKind::Serial, |cx, at| {
            cx.push(Stmt::Store { buf: lists.buf, index: counters.add(&at), value: int(0) });
            Ok(())
        })?;
        self.for_each("i", &sort.extent, LoopKind::Serial, |cx, i| {
            let key = cx.expr_at(row.x, &row.at(&i))?;
            let key = cx.short_key(key, descending);
            let high = shifted(BinaryFn::Shl, key, INDEX_BITS);
            let item = cx.bind("item", Expr::binary(BinaryFn::BitOr, high, Expr::Index(i.clone())));
            cx.push(Stmt::Store { buf: lists.buf, index: from.add(&i), value: item.clone() });
            for digit in 0..RadixSort::DIGITS {
                let counter = cx.counter(&item, digit, &counters);
                cx.count(lists.buf, counter);
            }
            Ok(())
        })?;
        self.first_places(lists.buf, &counters)?;
        for digit in 0..RadixSort::DIGITS {
            let (from, to) = if digit % 2 == 0 { (&from, &to) } else { (&to, &from) };
            self.for_each("i", &sort.extent, LoopKind::Serial, |cx, i| {
                let item = cx.bind("item", Expr::Load { buf: lists.buf, index: from.add(&i) });
                let counter = cx.counter(&item, digit, &counters);
                let place = cx.count(lists.buf, counter);
                let place = cx.as_index(place);
                cx.push(Stmt::Store { buf: lists.buf, index: to.add(&place), value: item });
                Ok(())
            })?;
        }
        // After an even number of passes the items are where they were at first.
        self.for_each("t", &row.take, LoopKind::Serial, |cx, t| {
            let item = cx.bind("item", Expr::Load { buf: lists.buf, index: from.add(&t) });
            let place = Expr::binary(BinaryFn::BitAnd, item, int((1 << INDEX_BITS) - 1));
            let place = cx.bind("place", place);
            let source = cx.as_index(place.clone());
            let key = cx.expr_at(row.x, &row.at(&source))?;
            cx.store(row.results[0], &row.at(&t), key);
            cx.store(row.results[1], &row.at(&t), place);
            Ok(())
        })
    }

    /// Address of the counter of an item's digit.
    fn counter(&mut self, item: &Expr, digit: i64, counters: &Index) -> Index {
        let value = shifted(BinaryFn::Shr, item.clone(), INDEX_BITS + DIGIT_BITS * digit);
        let value = Expr::binary(BinaryFn::BitAnd, value, int(RadixSort::VALUES - 1));
        let value = self.as_index(value);
        counters.add(&value).add(&Index::int(digit * RadixSort::VALUES))
    }

    /// Adds one to a counter; gives what it was.
    fn count(&mut self, buf: Buf, counter: Index) -> Expr {
        let count = self.bind("count", Expr::Load { buf, index: counter.clone() });
        let value = Expr::binary(BinaryFn::Add, count.clone(), int(1));
        self.push(Stmt::Store { buf, index: counter, value });
        count
    }

    /// Turns the numbers of items with each value of a digit into the place of the first of them.
    fn first_places(&mut self, buf: Buf, counters: &Index) -> Result<()> {
        let total = self.kernel.local("total", DType::I64, &[1], 1);
        let at = || vec![Index::zero()];
        self.for_each("digit", &RadixSort::DIGITS.into(), LoopKind::Serial, |cx, digit| {
            cx.push(Stmt::Set { local: total, at: at(), value: int(0) });
            cx.for_each("value", &RadixSort::VALUES.into(), LoopKind::Serial, |cx, value| {
                let index = counters.add(&digit.scale(&RadixSort::VALUES.into())).add(&value);
                let count = cx.bind("count", Expr::Load { buf, index: index.clone() });
                cx.push(Stmt::Store { buf, index, value: Expr::Get { local: total, at: at() } });
                cx.push(Stmt::Accumulate { local: total, at: at(), op: BinaryFn::Add, value: count });
                Ok(())
            })
        })
    }

    /// A key as an i64 of 32 bits, none of them a sign, that is in the same order, or in the opposite one. Zeros are equal,
    /// and so are NaNs, which are above all numbers.
    fn short_key(&mut self, key: Expr, descending: bool) -> Expr {
        let dtype = self.kernel.dtype(&key);
        let whole = if dtype.is_float() { self.float_key(key) } else { key };
        let signed = self.kernel.dtype(&whole) != DType::U32;
        let wide = Expr::cast(DType::I64, whole);
        let up = if signed { Expr::binary(BinaryFn::Add, wide, int(1 << 31)) } else { wide };
        if descending { Expr::binary(BinaryFn::Sub, int(u32::MAX.into()), up) } else { up }
    }

    /// A float as an i32 in the same order: the bits of positive numbers are, those of negative ones are in the opposite.
    fn float_key(&mut self, key: Expr) -> Expr {
        let key = if self.kernel.dtype(&key) == DType::F32 { key } else { Expr::cast(DType::F32, key) };
        let key = self.bind("x", key);
        let zero = Expr::constant(DType::F32, 0.0);
        let is_zero = Expr::compare(CompareFn::Eq, key.clone(), zero.clone());
        let nan = Expr::Const { dtype: DType::F32, bits: u64::from(f32::NAN.to_bits() & 0x7fff_ffff) };
        let number = Expr::select(is_zero, zero, key.clone());
        let number = Expr::select(Expr::unary(UnaryFn::IsNan, key), nan, number);
        let bits = self.bind("bits", Expr::bitcast(DType::I32, number));
        let word = |bits: u64| Expr::Const { dtype: DType::I32, bits };
        let turned = Expr::binary(BinaryFn::BitXor, bits.clone(), word(0x7fff_ffff));
        Expr::select(Expr::compare(CompareFn::Lt, bits.clone(), word(0)), turned, bits)
    }
}
