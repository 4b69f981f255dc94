//! Weights of few bits, as expressions: `(code - bias - zero) * scale`, see [`Op::Dequantize`].

use crate::error::Result;
use crate::graph::{DType, Dim, Node, Op, ValueId, codes_per_word};
use crate::loops::lower::{Lowering, internal};
use crate::loops::{Expr, Index};
use crate::scalar::BinaryFn;

/// A column of the codes of one part of the steps.
pub(super) struct Codes {
    bits: usize,
    bias: usize,
    /// Steps that an element of the codes holds.
    pub per_word: usize,
    codes: ValueId,
    scale: ValueId,
    zero: Option<ValueId>,
    /// Leading axes, the last of them that of the parts.
    lead: Vec<Index>,
    column: Index,
}

impl Codes {
    /// Of a node that dequantizes.
    pub fn new(node: &Node, lead: &[Index], column: &Index) -> Option<Codes> {
        let (Op::Dequantize { bits, bias }, [codes, scale, zero @ ..]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        Some(Codes {
            bits: *bits,
            bias: *bias,
            per_word: codes_per_word(*bits)?,
            codes: *codes,
            scale: *scale,
            zero: zero.first().copied(),
            lead: lead.to_vec(),
            column: column.clone(),
        })
    }

    fn at(&self, word: Option<&Index>) -> Vec<Index> {
        self.lead.iter().chain(word).chain([&self.column]).cloned().collect()
    }
}

impl Lowering<'_> {
    /// The weight of one step, `code - bias - zero` times the scale.
    pub(super) fn dequantized(&mut self, codes: &Codes, step: &Index) -> Result<Expr> {
        let per_word = Dim::from(codes.per_word);
        let (word, place) =
            (step.floor_div(&per_word, &self.extent_fn()), step.modulo(&per_word, &self.extent_fn()));
        let word = self.code_word(codes, &word)?;
        let shift = Expr::cast(DType::I32, Expr::Index(place.scale(&Dim::from(codes.bits))));
        let code = self.code_in(codes, word, shift)?;
        Ok(Expr::binary(BinaryFn::Mul, code, self.code_scale(codes)?))
    }

    /// Element number `word` of the codes.
    pub(super) fn code_word(&mut self, codes: &Codes, word: &Index) -> Result<Expr> {
        self.expr_at(codes.codes, &codes.at(Some(word)))
    }

    /// The weight at step number `place` of an element of the codes, not scaled.
    pub(super) fn code(&mut self, codes: &Codes, word: Expr, place: usize) -> Result<Expr> {
        if place >= codes.per_word {
            return internal(format!("code {place} of {} in a word", codes.per_word));
        }
        let shift = Expr::Const { dtype: DType::I32, bits: (place * codes.bits) as u64 };
        self.code_in(codes, word, shift)
    }

    fn code_in(&mut self, codes: &Codes, word: Expr, shift: Expr) -> Result<Expr> {
        let mut code = word;
        if codes.per_word > 1 {
            if !matches!(shift, Expr::Const { bits: 0, .. }) {
                code = Expr::binary(BinaryFn::Shr, code, shift);
            }
            let mask = Expr::Const { dtype: DType::I32, bits: (1 << codes.bits) - 1 };
            code = Expr::binary(BinaryFn::BitAnd, code, mask);
        }
        let mut code = Expr::cast(DType::F32, code);
        if codes.bias != 0 {
            code = Expr::binary(BinaryFn::Sub, code, Expr::constant(DType::F32, codes.bias as f64));
        }
        match codes.zero {
            Some(zero) => Ok(Expr::binary(BinaryFn::Sub, code, self.parameter(codes, zero)?)),
            None => Ok(code),
        }
    }

    /// The scale of a part's column.
    pub(super) fn code_scale(&mut self, codes: &Codes) -> Result<Expr> {
        self.parameter(codes, codes.scale)
    }

    fn parameter(&mut self, codes: &Codes, value: ValueId) -> Result<Expr> {
        let expr = self.expr_at(value, &codes.at(None))?;
        Ok(if self.kernel.dtype(&expr) == DType::F32 { expr } else { Expr::cast(DType::F32, expr) })
    }
}
