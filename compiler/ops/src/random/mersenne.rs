//! The Mersenne Twister MT19937 (Matsumoto and Nishimura, "Mersenne Twister: A 623-Dimensionally Equidistributed Uniform
//! Pseudo-Random Number Generator", 1998), as NumPy's `RandomState` seeds and reads it. The official tests of Dropout with a seed
//! use it to decide which elements are dropped.
//!
//! A block of 624 words makes the next one: a loop gives all blocks, and what is made of their words is computed for all at once.

use std::sync::Arc;

use super::*;
use crate::inner::Inner;

/// Words of a block.
const BLOCK: usize = 624;
/// How far before a word the one lies that it is combined with.
const NEAR: usize = 227;

/// The first block, which no number is read from, as `init_genrand` makes it.
fn seeded(seed: u32) -> Vec<i64> {
    let first = (seed, 0u32);
    let next = |&(word, at): &(u32, u32)| {
        Some(((word ^ (word >> 30)).wrapping_mul(1_812_433_253).wrapping_add(at + 1), at + 1))
    };
    std::iter::successors(Some(first), next).take(BLOCK).map(|(word, _)| i64::from(word)).collect()
}

/// `x ^ ((x shifted by count) & mask)`.
fn mixed(b: &mut Builder<'_>, x: ValueId, shift: BinaryFn, count: i64, mask: i64) -> Result<ValueId> {
    let count = b.constant(Data::scalar(count));
    let moved = b.binary(shift, x, count)?;
    let moved = masked(b, moved, mask)?;
    b.binary(BinaryFn::BitXor, x, moved)
}

/// The block behind one.
fn following(b: &mut Builder<'_>, block: ValueId) -> Result<ValueId> {
    // Words from `at` on, of the words there, those behind them, and others.
    let twisted = |b: &mut Builder<'_>, at: usize, behind: ValueId, other: ValueId| {
        let count = b.shape(other)[0].clone();
        let here = b.slice_axis(block, 0, Dim::from(at), count)?;
        let (upper, lower) = (masked(b, here, 0x8000_0000)?, masked(b, behind, 0x7fff_ffff)?);
        let joined = b.binary(BinaryFn::BitOr, upper, lower)?;
        let half = shifted(b, joined, 1)?;
        let odd = masked(b, lower, 1)?;
        let matrix = b.constant(Data::scalar(0x9908_b0df_i64));
        let matrix = b.binary(BinaryFn::Mul, odd, matrix)?;
        let word = b.binary(BinaryFn::BitXor, half, matrix)?;
        b.binary(BinaryFn::BitXor, word, other)
    };
    let part = |b: &mut Builder<'_>, x: ValueId, from: usize, to: usize| {
        b.slice_axis(x, 0, Dim::from(from), Dim::from(to - from))
    };
    let mut words = vec![];
    let (mut at, mut other) = (0, part(b, block, BLOCK - NEAR, BLOCK)?);
    while at + 1 < BLOCK {
        let count = NEAR.min(BLOCK - 1 - at);
        other = part(b, other, 0, count)?;
        let behind = part(b, block, at + 1, at + 1 + count)?;
        other = twisted(b, at, behind, other)?;
        words.push(other);
        at += count;
    }
    // The first of the new words is behind the last one.
    let behind = part(b, words[0], 0, 1)?;
    let last = at - NEAR;
    let before = part(b, words[last / NEAR], last % NEAR, last % NEAR + 1)?;
    words.push(twisted(b, at, behind, before)?);
    b.concat(&words, 0)
}

/// `count` numbers below 1 in f64, of 53 bits, each of two words.
pub(super) fn below_one(b: &mut Builder<'_>, seed: u32, count: Dim) -> Result<ValueId> {
    let blocks = (count.clone() + count.clone()).ceil_div(&Dim::from(BLOCK));
    let Some(trip) = blocks else { return malformed(format!("random numbers for {count} elements")) };
    let start = b.i64s(&seeded(seed));
    let mut inner = Inner::new(b);
    let ty = b.ty(start).clone();
    let input = inner.builder().input("", ty, None);
    let next = following(&mut inner.builder(), input)?;
    inner.graph.outputs = vec![(String::new(), next); 2];
    let items = [Item::Tensor(next), Item::Tensor(next)];
    let body = inner.finish(&[input], &items);
    let op = Op::Scan {
        body: Arc::new(body.graph),
        trip: trip.clone(),
        conditional: false,
        states: 1,
        scans: 0,
        reverse: vec![false],
        shapes: Default::default(),
    };
    let words = b.emit(op, &[start])?[1];
    let words = mixed(b, words, BinaryFn::Shr, 11, WORD)?;
    let words = mixed(b, words, BinaryFn::Shl, 7, 0x9d2c_5680)?;
    let words = mixed(b, words, BinaryFn::Shl, 15, 0xefc6_0000)?;
    let words = mixed(b, words, BinaryFn::Shr, 18, WORD)?;
    let pairs = b.reshape(words, vec![trip * Dim::from(BLOCK / 2), Dim::from(2usize)])?;
    let pairs = b.slice_axis(pairs, 0, Dim::ZERO, count)?;
    // 27 bits of the first word, and 26 of the second.
    let mut bits = |at: usize, drop: i64| {
        let word = b.slice_axis(pairs, 1, Dim::from(at), Dim::ONE)?;
        let word = shifted(b, word, drop)?;
        b.cast(word, DType::F64)
    };
    let (upper, lower) = (bits(0, 5)?, bits(1, 6)?);
    let upper = b.binary_scalar(BinaryFn::Mul, upper, 2f64.powi(26))?;
    let number = b.binary(BinaryFn::Add, upper, lower)?;
    let number = b.binary_scalar(BinaryFn::Mul, number, 2f64.powi(-53))?;
    b.squeeze(number, &[1])
}
