//! Rules of Whisper for tokens that stand for points in time (Radford et al., "Robust Speech Recognition via Large-Scale Weak
//! Supervision", 2022; the form is that of the authors' decoder): they come in pairs, do not go back, and one is picked where
//! they are more likely together than any text.

use super::scores::{LOWEST, is_token};
use onnxc_ir::build::Builder;
use onnxc_ir::graph::DType::{F32, I32, I64};
use onnxc_ir::graph::{Op, Tensor};
use onnxc_ops::row::*;

/// How far into its audio a text begins at most, in steps between two such tokens.
const MOST_INITIAL: i64 = 50;

/// The rules, by numbers of tokens. Those from `begin` on stand for points in time.
#[derive(Clone, Copy)]
pub(super) struct Timestamps {
    begin: i64,
    eos: i64,
    /// What is never picked, and what is not picked behind the first point in time.
    hidden: [i64; 2],
    starts: [i64; 3],
    /// A bool scalar, where only the run knows whether they apply.
    pub applies: Option<ValueId>,
}

impl Timestamps {
    /// The rules, if input `at` is 1, or may be.
    pub(super) fn new(cx: &mut NodeCx<'_, '_>, at: usize) -> Result<Option<Timestamps>> {
        let Some(processor) = cx.optional(at) else { return Ok(None) };
        let processor = to_scalar(cx, processor)?;
        let applies = match cx.b.known(processor).as_deref() {
            Some([one]) if *one == Dim::ONE => None,
            Some(_) => return Ok(None),
            None => {
                let one = cx.b.constant(Tensor::scalar(1i32));
                Some(cx.b.compare(CompareFn::Eq, processor, one)?)
            }
        };
        let token = |name: &str| Ok::<i64, Error>(cx.optional_int(name)?.unwrap_or(-1));
        let begin = token("beginning_timestamp_token_id")?;
        if begin <= 0 {
            return malformed(format!(
                "beginning_timestamp_token_id is {begin}; with a logits_processor it must be above 0"
            ));
        }
        let hidden = [token("no_timestamps_token_id")?, token("start_of_lm_token_id")?];
        let tasks = [token("translate_token_id")?, token("transcribe_token_id")?];
        let starts = [cx.int("decoder_start_token_id")?, tasks[0], tasks[1]];
        Ok(Some(Timestamps { begin, eos: cx.int("eos_token_id")?, hidden, starts, applies }))
    }

    /// The rules with another condition.
    pub(super) fn applying(self, applies: Option<ValueId>) -> Timestamps {
        Timestamps { applies, ..self }
    }

    /// Scores, f32 `[rows, vocabulary]`, after `ids`, i64 `[rows, length]`.
    pub(super) fn apply(self, b: &mut Builder<'_>, scores: ValueId, ids: ValueId) -> Result<ValueId> {
        let (vocabulary, length) = (b.shape(scores)[1].clone(), b.shape(ids)[1].clone());
        let begin = b.constant(Tensor::scalar(self.begin));
        let stamp = b.compare(CompareFn::Ge, ids, begin)?;
        let some = b.reduce(ReduceFn::Or, stamp, &[1])?;
        let number = b.cast(stamp, I32)?;
        let count = b.dim_scalar(&length)?;
        let first = b.emit1(Op::ArgReduce { max: true, axis: 1, last: false }, &[number])?;
        let first = b.binary_scalar(BinaryFn::Add, first, 1.0)?;
        let first = b.select(some, first, count)?;
        let begun = b.compare(CompareFn::Lt, first, count)?;
        let starting = b.unary(UnaryFn::Not, begun)?;
        // The last token, and the one before it, if there is one.
        let no = b.scalar(DType::Bool, 0.0);
        let padded = b.pad(stamp, no, vec![Dim::ZERO, Dim::ONE], vec![Dim::ZERO; 2])?;
        let last = b.slice_axis(padded, 1, length.clone(), Dim::ONE)?;
        let before = b.slice_axis(padded, 1, length - Dim::ONE, Dim::ONE)?;
        let paired = b.binary(BinaryFn::Or, starting, before)?;
        let unpaired = b.unary(UnaryFn::Not, paired)?;
        let (closed, open) =
            (b.binary(BinaryFn::And, last, paired)?, b.binary(BinaryFn::And, last, unpaired)?);

        let token = b.iota(vec![Dim::ONE, vocabulary.clone()], 1)?;
        let is_stamp = b.compare(CompareFn::Ge, token, begin)?;
        let eos = b.constant(Tensor::scalar(self.eos));
        let is_text = b.compare(CompareFn::Lt, token, eos)?;
        let mut hidden =
            vec![b.binary(BinaryFn::And, closed, is_stamp)?, b.binary(BinaryFn::And, open, is_text)?];
        for token in self.hidden {
            hidden.push(is_token(b, &vocabulary, token)?);
        }
        for token in self.starts {
            let is_start = is_token(b, &vocabulary, token)?;
            hidden.push(b.binary(BinaryFn::And, begun, is_start)?);
        }
        // No point in time before the last one, nor that one behind a pair.
        let latest = b.emit1(Op::ArgReduce { max: true, axis: 1, last: true }, &[number])?;
        let latest = b.emit1(Op::GatherElements { axis: 1 }, &[ids, latest])?;
        let again = b.cast(open, I64)?;
        let passed = b.binary(BinaryFn::Sub, latest, again)?;
        let earlier = b.compare(CompareFn::Le, token, passed)?;
        let earlier = b.binary(BinaryFn::And, earlier, some)?;
        hidden.push(b.binary(BinaryFn::And, earlier, is_stamp)?);
        let most = b.constant(Tensor::scalar(self.begin + MOST_INITIAL));
        let late = b.compare(CompareFn::Gt, token, most)?;
        hidden.push(b.binary(BinaryFn::And, starting, late)?);
        let lowest = b.scalar(F32, LOWEST);
        let mut left = scores;
        for hidden in hidden {
            left = b.select(hidden, lowest, left)?;
        }

        let real = b.compare(CompareFn::Gt, left, lowest)?;
        let real = b.binary(BinaryFn::And, real, is_stamp)?;
        let nothing = b.scalar(F32, f64::NEG_INFINITY);
        let stamps = b.select(real, left, nothing)?;
        let most = b.reduce(ReduceFn::Max, stamps, &[1])?;
        let most = b.binary(BinaryFn::Max, most, lowest)?;
        let shifted = b.binary(BinaryFn::Sub, stamps, most)?;
        let weights = b.unary(UnaryFn::Exp, shifted)?;
        let sum = b.reduce(ReduceFn::Sum, weights, &[1])?;
        let sum = b.unary(UnaryFn::Log, sum)?;
        let together = b.binary(BinaryFn::Add, sum, most)?;
        let text = b.select(is_stamp, nothing, left)?;
        let text = b.reduce(ReduceFn::Max, text, &[1])?;
        let likelier = b.compare(CompareFn::Gt, together, text)?;
        let is_other = b.unary(UnaryFn::Not, is_stamp)?;
        let hidden = b.binary(BinaryFn::And, likelier, is_other)?;
        let left = b.select(hidden, lowest, left)?;
        match self.applies {
            Some(applies) => b.select(applies, left, scores),
            None => Ok(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onnxc_ir::graph::{Graph, Origin};
    use onnxc_ir::interp;

    /// Of 60 tokens those from 5 on are points in time, and the later ones are likelier.
    #[test]
    fn a_text_begins_within_a_second() {
        let picked = |ids: &[i64]| {
            let mut graph = Graph::default();
            let origin = graph.origins.push(Origin::new("t", "t", 0));
            let mut b = Builder::new(&mut graph, origin);
            let likelihoods: Vec<f32> = (0..60).map(|token| token as f32 / 8.0).collect();
            let scores = b.constant(Tensor::from_slice(&[1, 60], &likelihoods));
            let ids = b.constant(Tensor::from_slice(&[1, ids.len()], ids));
            let rules = Timestamps { begin: 5, eos: 4, hidden: [-1; 2], starts: [0, 1, 2], applies: None };
            let left = rules.apply(&mut b, scores, ids).unwrap();
            graph.outputs = vec![("left".to_string(), left)];
            let left = interp::run(&graph, &[]).unwrap()[0].to_f64s().unwrap();
            (0..60).max_by(|&a, &b| left[a].total_cmp(&left[b])).unwrap()
        };
        // 50 steps from the first one; behind it any may come.
        assert_eq!(picked(&[0]), 55);
        assert_eq!(picked(&[0, 7, 3]), 59);
    }
}
