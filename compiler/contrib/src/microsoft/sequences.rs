//! Sequences of unlike lengths that lie one behind the other along the first axis, as servers pack the requests of a batch.

use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::I64;
use onnxc_ir::graph::{Op, Requirement};
use onnxc_ops::row::*;

/// Sequences `0..count` of `tokens` tokens in all; the numbers are i64.
pub(super) struct Sequences {
    pub count: Dim,
    pub tokens: Dim,
    /// The first token of each, `[count]`.
    pub starts: ValueId,
    /// How many tokens each has, `[count]`; there may be none.
    pub lengths: ValueId,
    /// The first token behind each, `[count]`.
    ends: ValueId,
}

impl Sequences {
    /// `bounds`, the input `name`, has `[count + 1]` numbers: where each sequence begins, and where the last one ends. A run in
    /// which they do not begin with 0, do not end with `tokens`, or a sequence has fewer than `least` tokens, fails.
    pub(super) fn new(
        b: &mut Builder<'_>,
        bounds: ValueId,
        name: &str,
        tokens: &Dim,
        least: u8,
    ) -> Result<Sequences> {
        let length = match b.shape(bounds).as_slice() {
            [length] => length.clone(),
            _ => return malformed(format!("{name} is {}; it must have one axis", b.ty(bounds))),
        };
        let requirement = Requirement::at_most(Dim::ONE, length.clone());
        b.require(requirement.says_at_least(format!("the number of elements of {name}"), 1))?;
        let count = length - Dim::ONE;
        let bounds = b.cast(bounds, I64)?;
        let starts = b.slice_axis(bounds, 0, Dim::ZERO, count.clone())?;
        let ends = b.slice_axis(bounds, 0, Dim::ONE, count.clone())?;
        let lengths = b.binary(BinaryFn::Sub, ends, starts)?;
        let first = b.slice_axis(bounds, 0, Dim::ZERO, Dim::ONE)?;
        let last = b.slice_axis(bounds, 0, count.clone(), Dim::ONE)?;
        // What the shortest lacks.
        let lack = b.unary(UnaryFn::Neg, lengths)?;
        let lack = b.binary_scalar(BinaryFn::Add, lack, f64::from(least))?;
        let lack = b.reduce(ReduceFn::Max, lack, &[0])?;
        let lack = b.binary_scalar(BinaryFn::Max, lack, 0.0)?;
        let found = b.scalar_sizes(&[first, lack, last], &|_| None)?;
        let [first, lack, last] = found.as_slice() else { return malformed("three sizes") };
        let equal = |dim: &Dim, wanted: &Dim| Requirement::equal(dim.clone(), wanted.clone());
        b.require(equal(first, &Dim::ZERO).says(format!("the first element of {name}"), 0))?;
        let text = format!(
            "an element of {name} is {V} too small; it must be at least {least} above the one before"
        );
        b.require(equal(lack, &Dim::ZERO).stated(text, &[lack]))?;
        let name = format!("the last element of {name}");
        b.require(equal(last, tokens).says(name, "the number of tokens"))?;
        Ok(Sequences { count, tokens: tokens.clone(), starts, lengths, ends })
    }

    /// The same, with a size known from elsewhere.
    pub(super) fn counted(&mut self, b: &mut Builder<'_>, count: Dim) -> Result<()> {
        for value in [&mut self.starts, &mut self.lengths, &mut self.ends] {
            *value = b.reshape(*value, vec![count.clone()])?;
        }
        self.count = count;
        Ok(())
    }

    /// How many tokens the longest has.
    pub(super) fn longest(&self, b: &mut Builder<'_>) -> Result<Dim> {
        let most = b.reduce(ReduceFn::Max, self.lengths, &[0])?;
        let most = b.binary_scalar(BinaryFn::Max, most, 0.0)?;
        Ok(b.scalar_sizes(&[most], &|_| Some(self.tokens.clone()))?.remove(0))
    }

    /// The sequence of each token, `[tokens]`: the number of sequences that end before it.
    pub(super) fn of_tokens(&self, b: &mut Builder<'_>) -> Result<ValueId> {
        let token = b.iota(vec![self.tokens.clone(), Dim::ONE], 0)?;
        let ended = b.compare(CompareFn::Le, self.ends, token)?;
        let ended = b.cast(ended, I64)?;
        let ended = b.reduce(ReduceFn::Sum, ended, &[1])?;
        b.squeeze(ended, &[1])
    }

    /// The place of each token in its sequence, `[tokens]`, where `sequence` is that of each.
    pub(super) fn places(&self, b: &mut Builder<'_>, sequence: ValueId) -> Result<ValueId> {
        let token = b.iota(vec![self.tokens.clone()], 0)?;
        let start = b.emit1(Op::Gather { axis: 0 }, &[self.starts, sequence])?;
        b.binary(BinaryFn::Sub, token, start)
    }

    /// Which of the first `slots` tokens of each sequence there are and `counts`, `[count]`, asks for; bool `[count, slots]`.
    pub(super) fn asked(&self, b: &mut Builder<'_>, counts: ValueId, slots: &Dim) -> Result<ValueId> {
        let counts = b.cast(counts, I64)?;
        let most = b.binary(BinaryFn::Min, counts, self.lengths)?;
        let most = b.unsqueeze(most, &[1])?;
        let slot = b.iota(vec![Dim::ONE, slots.clone()], 1)?;
        b.compare(CompareFn::Lt, slot, most)
    }
}

/// Tokens with those that came before them in each sequence: rows of all states, `[count * behind]`, then of the tokens.
pub(super) struct Carried<'s> {
    pub sequences: &'s Sequences,
    /// How many tokens a state has.
    pub behind: Dim,
}

impl Carried<'_> {
    /// The row of the token at `place` of the `sequence` that begins with token `start`: one of its state where the place is
    /// negative.
    pub(super) fn row(
        &self,
        b: &mut Builder<'_>,
        sequence: ValueId,
        start: ValueId,
        place: ValueId,
    ) -> Result<ValueId> {
        let behind = b.dim_scalar(&self.behind)?;
        let states = b.dim_scalar(&(self.sequences.count.clone() * self.behind.clone()))?;
        let first = b.binary(BinaryFn::Add, states, start)?;
        let token = b.binary(BinaryFn::Add, first, place)?;
        let end = b.binary(BinaryFn::Mul, sequence, behind)?;
        let end = b.binary(BinaryFn::Add, end, behind)?;
        let before = b.binary(BinaryFn::Add, end, place)?;
        let zero = b.scalar(I64, 0.0);
        let is_token = b.compare(CompareFn::Le, zero, place)?;
        b.select(is_token, token, before)
    }

    /// The rows of the last tokens of each sequence, the number that a state has: `[count, behind]`.
    pub(super) fn last(&self, b: &mut Builder<'_>) -> Result<ValueId> {
        let (number, starts) = self.numbers(b)?;
        let lengths = b.unsqueeze(self.sequences.lengths, &[1])?;
        let behind = b.dim_scalar(&self.behind)?;
        let slot = b.iota(vec![Dim::ONE, self.behind.clone()], 1)?;
        let place = b.binary(BinaryFn::Sub, lengths, behind)?;
        let place = b.binary(BinaryFn::Add, place, slot)?;
        self.row(b, number, starts, place)
    }

    /// The number of each sequence and its first token, `[count, 1]` both.
    pub(super) fn numbers(&self, b: &mut Builder<'_>) -> Result<(ValueId, ValueId)> {
        let number = b.iota(vec![self.sequences.count.clone(), Dim::ONE], 0)?;
        Ok((number, b.unsqueeze(self.sequences.starts, &[1])?))
    }
}
