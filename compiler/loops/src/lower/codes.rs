//! Weights of few bits, as expressions: `(code - bias - zero) * scale`, see [`Op::Dequantize`].

use crate::lower::{Lowering, internal};
use crate::{Expr, Index};
use onnxc_ir::error::Result;
use onnxc_ir::graph::{DOT_DEPTH, DType, Dim, Graph, Node, Op, ValueId, code_shift, codes_per_word};
use onnxc_ir::scalar::BinaryFn;

/// A column of the codes of one part of the steps.
pub(super) struct Codes {
    pub bits: usize,
    pub bias: usize,
    /// Steps that an element of the codes holds.
    pub per_word: usize,
    pub codes: ValueId,
    pub scale: ValueId,
    pub zero: Option<ValueId>,
    /// Leading axes, the last of them that of the parts.
    lead: Vec<Index>,
    column: Index,
}

impl Codes {
    /// Of a node that dequantizes.
    pub(super) fn new(graph: &Graph, node: &Node, lead: &[Index], column: &Index) -> Option<Codes> {
        let (Op::Dequantize { bits, bias }, [codes, scale, zero @ ..]) = (&node.op, &node.inputs[..]) else {
            return None;
        };
        Some(Codes {
            bits: *bits,
            bias: *bias,
            per_word: codes_per_word(*bits, graph.ty(*codes).dtype)?,
            codes: *codes,
            scale: *scale,
            zero: zero.first().copied(),
            lead: lead.to_vec(),
            column: column.clone(),
        })
    }

    /// Whether columns have zeros of their own.
    pub(super) fn has_zero(&self) -> bool {
        self.zero.is_some()
    }

    /// The index of an element of the codes, or of what a part has for a column.
    pub(super) fn at(&self, word: Option<&Index>) -> Vec<Index> {
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
        let depth = Dim::from(DOT_DEPTH);
        let byte = place.modulo(&depth, &self.extent_fn()).scale(&Dim::from(8usize));
        let shift = place.floor_div(&depth, &self.extent_fn()).scale(&Dim::from(codes.bits)).add(&byte);
        let shift = Expr::cast(DType::I32, Expr::Index(shift));
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
        let shift = Expr::Const { dtype: DType::I32, bits: code_shift(codes.bits, place) as u64 };
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

    /// The codes of [`DOT_DEPTH`] steps, group number `group` in an element of the codes, as the bytes of a word.
    pub(super) fn code_bytes(&mut self, codes: &Codes, word: Expr, group: usize) -> Expr {
        let int = |bits: u64| Expr::Const { dtype: DType::I32, bits };
        let word = match group {
            0 => word,
            _ => Expr::binary(BinaryFn::Shr, word, int((group * codes.bits) as u64)),
        };
        let mask = u64::from(u32::from_le_bytes([((1u32 << codes.bits) - 1) as u8; DOT_DEPTH]));
        if codes.bits == 8 { word } else { Expr::binary(BinaryFn::BitAnd, word, int(mask)) }
    }

    /// The integer that is subtracted from the codes of a part's column, i32.
    pub(super) fn code_zero(&mut self, codes: &Codes) -> Result<Expr> {
        let bias = Expr::Const { dtype: DType::I32, bits: codes.bias as u64 };
        let Some(zero) = codes.zero else { return Ok(bias) };
        let zero = self.expr_at(zero, &codes.at(None))?;
        let zero = Expr::cast(DType::I32, zero);
        Ok(if codes.bias == 0 { zero } else { Expr::binary(BinaryFn::Add, zero, bias) })
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
