//! Sums of adjoints. What readers of neighbouring slices of a value give is joined: a sum of pieces between zeros would look at every
//! element once for each piece.

use onnxc_ir::build::Builder;
use onnxc_ir::error::Result;
use onnxc_ir::graph::{Dim, Op, ValueId};
use onnxc_ir::scalar::BinaryFn;

use crate::quantize::is_zero;

/// A piece of an adjoint along an axis, with zeros in front and behind.
struct Piece {
    x: ValueId,
    axis: usize,
    lo: Dim,
    hi: Dim,
}

impl Piece {
    fn of(b: &Builder<'_>, adjoint: ValueId) -> Option<Piece> {
        let node = &b.graph.nodes[b.graph.producer(adjoint)?];
        let (Op::Pad { lo, hi }, &[x, fill]) = (&node.op, &node.inputs[..]) else { return None };
        let mut padded = (0..lo.len()).filter(|&axis| lo[axis] != Dim::ZERO || hi[axis] != Dim::ZERO);
        let (axis, None) = (padded.next()?, padded.next()) else { return None };
        is_zero(b, fill).then(|| Piece { x, axis, lo: lo[axis].clone(), hi: hi[axis].clone() })
    }

    /// Where the next one begins.
    fn end(&self, b: &Builder<'_>) -> Dim {
        self.lo.clone() + b.shape(self.x)[self.axis].clone()
    }
}

/// The sum of what the readers of a value give, `None` without any.
pub(super) fn total(b: &mut Builder<'_>, adjoints: &[ValueId]) -> Result<Option<ValueId>> {
    let mut pieces: Vec<Piece> = vec![];
    let mut sum: Option<ValueId> = None;
    let add = |b: &mut Builder<'_>, sum: &mut Option<ValueId>, adjoint: ValueId| {
        *sum = Some(match *sum {
            Some(sum) => b.binary(BinaryFn::Add, sum, adjoint)?,
            None => adjoint,
        });
        Ok(())
    };
    for &adjoint in adjoints {
        match Piece::of(b, adjoint).filter(|_| adjoints.len() > 1) {
            Some(piece) => pieces.push(piece),
            None => add(b, &mut sum, adjoint)?,
        }
    }
    while !pieces.is_empty() {
        // One that none of the others ends at.
        let first = (0..pieces.len()).find(|&at| {
            let ends_there = |piece: &Piece| piece.axis == pieces[at].axis && piece.end(b) == pieces[at].lo;
            !pieces.iter().enumerate().any(|(other, piece)| other != at && ends_there(piece))
        });
        let piece = pieces.remove(first.unwrap_or(0));
        let mut end = piece.end(b);
        let Piece { x, axis, lo, hi: mut behind } = piece;
        let mut joined = vec![x];
        while let Some(at) = pieces.iter().position(|piece| piece.axis == axis && piece.lo == end) {
            let next = pieces.remove(at);
            end = next.end(b);
            joined.push(next.x);
            behind = next.hi;
        }
        let mut adjoint = if joined.len() > 1 { b.concat(&joined, axis)? } else { x };
        if lo != Dim::ZERO || behind != Dim::ZERO {
            let rank = b.rank(adjoint);
            let along = |amount: Dim| {
                let mut amounts = vec![Dim::ZERO; rank];
                amounts[axis] = amount;
                amounts
            };
            let zero = b.scalar(b.dtype(adjoint), 0.0);
            adjoint = b.pad(adjoint, zero, along(lo), along(behind))?;
        }
        add(b, &mut sum, adjoint)?;
    }
    Ok(sum)
}
