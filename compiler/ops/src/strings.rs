//! Strings: joined, split, normalized, matched, and found among constants. Calls of the runtime do what looks into texts; the rest
//! are operations on numbers, which strings become.

use std::collections::HashMap;

use super::dynamic::true_positions;
use super::row::*;
use onnxc_ir::build::Builder;
use onnxc_ir::graph::{Op, Tensor as Data, TensorType, call};
use onnxc_ir::infer::broadcast_shapes;
use onnxc_runtime_support::strings::regex;

const STRING: &[DType] = &[DType::Str];
const ONE_ROW: &[&str] = &["X[_] | [1, _]"];

pub const ROWS: &[OpDef] = &[
    op("StringConcat", 20, concat)
        .inputs(&[req("X", "T"), req("Y", "T")])
        .outputs(&[req("Z", "T")])
        .types(&[("T", STRING)])
        .shapes(&["broadcast(X, Y)"])
        .doc("Two texts joined"),
    op("StringSplit", 20, split)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2"), req("Z", "T3")])
        .attributes(&[optional("delimiter", Str), optional("maxsplit", Int)])
        .types(&[("T1", STRING), ("T2", STRING), ("T3", I64S)])
        .doc("The parts of texts between delimiters, and their number"),
    op("StringNormalizer", 10, normalize)
        .inputs(&[req("X", "tensor(string)")])
        .outputs(&[req("Y", "tensor(string)")])
        .attributes(&[
            string("case_change_action", "NONE"),
            int("is_case_sensitive", 0),
            optional("locale", Str),
            optional("stopwords", Strs),
        ])
        .shapes(ONE_ROW)
        .doc("Texts without stop words, in small or capital letters"),
    op("RegexFullMatch", 20, full_match)
        .inputs(&[req("X", "T1")])
        .outputs(&[req("Y", "T2")])
        .attributes(&[optional("pattern", Str)])
        .types(&[("T1", STRING), ("T2", BOOL)])
        .doc("Whether a regular expression matches the whole of a text"),
];

/// One text per element of `like`.
fn strings_like(b: &Builder<'_>, like: ValueId) -> TensorType {
    TensorType::new(DType::Str, b.shape(like))
}

fn concat(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (x, y) = (cx.input("X")?, cx.input(1)?);
    let shape = broadcast_shapes(&[&cx.b.shape(x), &cx.b.shape(y)])?;
    let (x, y) = (cx.b.expand(x, shape.clone())?, cx.b.expand(y, shape)?);
    let (count, result) = (cx.b.ty(x).elements(), strings_like(cx.b, x));
    Ok(vec![cx.b.call(&call::CONCAT, &[x, y], vec![count], result)?])
}

/// Texts of constants.
pub fn constant(cx: &mut NodeCx<'_, '_>, texts: &[impl AsRef<[u8]>]) -> ValueId {
    cx.b.constant(Data::from_texts(&[texts.len()], texts))
}

/// Each row of `Y` is as long as the longest one.
fn split(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let delimiter = constant(cx, &[cx.str("delimiter").unwrap_or_default()]);
    // Any number of splits is more than any text has.
    let splits = cx.optional_int("maxsplit")?.filter(|&splits| splits >= 0).unwrap_or(i64::MAX);
    let (count, shape) = (cx.b.ty(x).elements(), cx.b.shape(x));
    let numbers = vec![count.clone(), Dim::from(splits)];
    let counts = TensorType::new(DType::I64, shape.clone());
    let counts = cx.b.call(&call::SPLIT_COUNTS, &[x, delimiter], numbers.clone(), counts)?;
    let width = most(cx, counts)?;
    let result = TensorType::new(DType::Str, shape.into_iter().chain([width.clone()]).collect());
    let parts = cx.b.call(&call::SPLIT, &[x, delimiter], [numbers, vec![width]].concat(), result)?;
    Ok(vec![parts, counts])
}

/// The greatest of counts, as a size that data decide; 0 where there are none.
pub fn most(cx: &mut NodeCx<'_, '_>, counts: ValueId) -> Result<Dim> {
    let axes: Vec<usize> = (0..cx.b.rank(counts)).collect();
    let most = cx.b.reduce(ReduceFn::Max, counts, &axes)?;
    let most = cx.b.binary_scalar(BinaryFn::Max, most, 0.0)?;
    let most = to_scalar(cx, most)?;
    Ok(cx.b.sizes(most, &|_| None)?.remove(0))
}

/// Of an empty result one empty text is left.
fn normalize(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let action = cx.str("case_change_action")?;
    let change = match action.as_str() {
        "NONE" => None,
        "LOWER" => Some(1i64),
        "UPPER" => Some(2),
        _ => return not_one_of("case_change_action", action, "LOWER, UPPER, NONE"),
    };
    let (rank, count) = (cx.b.rank(x), cx.b.ty(x).elements());
    let x = cx.b.reshape(x, vec![count.clone()])?;
    let in_case = |cx: &mut NodeCx<'_, '_>, x: ValueId, how: i64| {
        let (count, result) = (cx.b.ty(x).elements(), strings_like(cx.b, x));
        cx.b.call(&call::CHANGE_CASE, &[x], vec![count, Dim::from(how)], result)
    };
    let mut y = x;
    let stopwords = cx.strs("stopwords")?.unwrap_or_default();
    if !stopwords.is_empty() {
        // Without regard to case, all are compared in small letters.
        let mut words = constant(cx, &stopwords);
        let mut compared = x;
        if cx.int("is_case_sensitive")? == 0 {
            (words, compared) = (in_case(cx, words, 1)?, in_case(cx, x, 1)?);
        }
        let place = find(cx.b, compared, words)?;
        let zero = cx.b.scalar(DType::I64, 0.0);
        let keeps = cx.b.compare(CompareFn::Lt, place, zero)?;
        let kept = true_positions(cx, keeps)?;
        y = cx.b.emit1(Op::Gather { axis: 0 }, &[x, kept])?;
    }
    if let Some(how) = change {
        y = in_case(cx, y, how)?;
    }
    let length = cx.b.ty(y).elements();
    if length.as_const().is_none_or(|length| length == 0) {
        let empty = constant(cx, &[""]);
        let missing = Dim::ONE - length.clone().min_dim(&Dim::ONE);
        let filler = cx.b.slice_axis(empty, 0, Dim::ZERO, missing)?;
        y = cx.b.concat(&[y, filler], 0)?;
    }
    let length = cx.b.ty(y).elements();
    let shape = if rank == 2 { vec![Dim::ONE, length] } else { vec![length] };
    Ok(vec![cx.b.reshape(y, shape)?])
}

fn full_match(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let x = cx.input("X")?;
    let Ok(pattern) = cx.str("pattern") else { return malformed("attribute pattern is missing") };
    let (automaton, bytes) = automaton(cx, "pattern", &pattern)?;
    let (count, result) = (cx.b.ty(x).elements(), TensorType::new(DType::Bool, cx.b.shape(x)));
    Ok(vec![cx.b.call(&call::MATCHES, &[x, automaton], vec![count, bytes], result)?])
}

/// The automaton of a pattern in RE2's syntax, as the runtime walks it, and its bytes. `what` the pattern is, for an error.
pub fn automaton(cx: &mut NodeCx<'_, '_>, what: &str, pattern: &str) -> Result<(ValueId, Dim)> {
    match regex::compile(pattern) {
        Ok(automaton) => {
            let bytes = automaton.len();
            Ok((cx.b.constant(Data::from_slice(&[bytes], &automaton)), Dim::from(bytes)))
        }
        Err(message) => malformed(format!("{what} `{pattern}`: {message}")),
    }
}

/// Each of the texts once, in the order in which they come first, and the place of every text among these.
pub fn distinct(texts: &[String]) -> (Vec<&str>, Vec<i64>) {
    let (mut keys, mut places) = (vec![], HashMap::new());
    let numbers = texts.iter().map(|text| {
        *places.entry(text.as_str()).or_insert_with(|| {
            keys.push(text.as_str());
            keys.len() as i64 - 1
        })
    });
    let numbers = numbers.collect();
    (keys, numbers)
}

/// Where among `keys`, a vector of strings that differ, each text of `x` is; -1 for those that are not there.
pub fn find(b: &mut Builder<'_>, x: ValueId, keys: ValueId) -> Result<ValueId> {
    let numbers = vec![b.ty(keys).elements(), b.ty(x).elements()];
    let result = TensorType::new(DType::I64, b.shape(x));
    b.call(&call::FIND, &[keys, x], numbers, result)
}

/// For each text of `x` its rank among all that differ, in the order of their bytes.
pub fn ranks(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let result = TensorType::new(DType::I64, b.shape(x));
    b.call(&call::ORDER, &[x], vec![b.ty(x).elements()], result)
}

/// Numbers as texts.
pub fn format(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let x = match b.dtype(x) {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 | DType::Bool => x,
        dtype if dtype.is_int() && dtype.bits() >= 8 => x,
        dtype if dtype.is_int() => b.cast(x, DType::I8)?,
        dtype if dtype.is_float() => b.cast(x, DType::F32)?,
        dtype => return unsupported(format!("{dtype} as text")),
    };
    let dtype = Dim::from(i64::from(b.dtype(x).to_onnx()));
    let (count, result) = (b.ty(x).elements(), strings_like(b, x));
    b.call(&call::FORMAT, &[x], vec![count, dtype], result)
}

/// Texts as numbers; a run in which one is none fails.
pub fn parse(b: &mut Builder<'_>, x: ValueId, to: DType) -> Result<ValueId> {
    let parsed = match to {
        DType::F32 | DType::F64 | DType::F16 | DType::BF16 | DType::Bool => to,
        to if to.is_int() && to.bits() >= 8 => to,
        to if to.is_int() => DType::I64,
        to if to.is_float() => DType::F32,
        to => return unsupported(format!("texts as {to}")),
    };
    let numbers = vec![b.ty(x).elements(), Dim::from(i64::from(parsed.to_onnx()))];
    let result = TensorType::new(parsed, b.shape(x));
    let parsed = b.call(&call::PARSE, &[x], numbers, result)?;
    b.cast(parsed, to)
}

#[cfg(test)]
mod tests;
