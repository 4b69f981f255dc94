//! Tokenizers of BERT's models.

use super::{I64, STRING, Tokens, extension, flag, json_vocabulary, number_of_texts, tables};
use onnxc_ir::graph::{Op, TensorType, call};
use onnxc_ops::row::*;
use onnxc_runtime_support::strings::tokenizers::bert::{Bert, flag as has, kind};
use onnxc_runtime_support::strings::tokenizers::{result, words_tables};

const BERT: &[AttrDef] = &[
    required("vocab_file", Str),
    int("do_lower_case", 1),
    int("do_basic_tokenize", 1),
    string("unk_token", "[UNK]"),
    string("sep_token", "[SEP]"),
    string("pad_token", "[PAD]"),
    string("cls_token", "[CLS]"),
    string("mask_token", "[MASK]"),
    int("tokenize_chinese_chars", 1),
    int("strip_accents", 0),
    string("suffix_indicator", "##"),
    string("truncation_strategy_name", "longest_first"),
    int("max_length", -1),
];

pub const ROWS: &[OpDef] = &[
    extension("BasicTokenizer", basic)
        .inputs(&[req("text", STRING)])
        .outputs(&[req("tokens", STRING)])
        .attributes(&[
            int("do_lower_case", 1),
            int("tokenize_chinese_chars", 1),
            int("strip_accents", 0),
            int("tokenize_punctuation", 0),
            int("remove_control_chars", 1),
        ])
        .doc("The words of a text as BERT's basic tokenizer cuts it"),
    extension("BertTokenizer", one_or_two)
        .inputs(&[req("text", STRING)])
        .outputs(&[
            req("input_ids", I64),
            req("token_type_ids", I64),
            req("attention_mask", I64),
            opt("offset_mapping", I64),
        ])
        .attributes(BERT)
        .doc("The tokens of one text, or of two, for BERT's models"),
    extension("HfBertTokenizer", two)
        .inputs(&[req("text", STRING)])
        .outputs(&[
            req("input_ids", I64),
            req("attention_mask", I64),
            opt("token_type_ids", I64),
            opt("offset_mapping", I64),
        ])
        .attributes(BERT)
        .doc("The tokens of two texts, for BERT's models"),
    extension("BertTokenizerDecoder", decode)
        .inputs(&[req("ids", I64), req("position", I64)])
        .outputs(&[req("str", STRING)])
        .attributes(&[
            required("vocab_file", Str),
            string("unk_token", "[UNK]"),
            string("sep_token", "[SEP]"),
            string("pad_token", "[PAD]"),
            string("cls_token", "[CLS]"),
            string("mask_token", "[MASK]"),
            string("suffix_indicator", "##"),
            int("use_indices", 0),
            int("skip_special_tokens", 0),
            int("clean_up_tokenization_spaces", 1),
        ])
        .shapes(&["ids[_] | [1, _]"])
        .doc("Texts of tokens of BERT's models"),
    extension("WordpieceTokenizer", wordpiece)
        .inputs(&[req("text", STRING), req("row_indices", I64)])
        .outputs(&[
            req("tokens", STRING),
            req("row_lengths", I64),
            req("row_begin", I64),
            req("row_limit", I64),
        ])
        .attributes(&[
            required("vocab", Str),
            required("suffix_indicator", Str),
            required("unknown_token", Str),
            int("max_input_chars_per_word", 200),
        ])
        .shapes(&["row_indices[_]"])
        .doc("The pieces of words between spaces, and where those of rows of words are"),
];

/// The sum of the flags whose attributes are set.
fn flags(cx: &NodeCx<'_, '_>, of: &[(&str, u32)]) -> Result<u32> {
    of.iter().map(|&(name, bit)| Ok(if flag(cx, name)? { bit } else { 0 })).sum()
}

fn basic(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let flags = flags(
        cx,
        &[
            ("do_lower_case", has::LOWER),
            ("tokenize_chinese_chars", has::CJK),
            ("strip_accents", has::ACCENTS),
            ("tokenize_punctuation", has::PUNCTUATION),
            ("remove_control_chars", has::CONTROL),
        ],
    )?;
    let model = Bert {
        kind: kind::WORDS,
        flags,
        word: 0,
        tokens: 0,
        special: [0; 3],
        unknown: "",
        suffix: "",
        vocabulary: &[],
    };
    let (text, tables) = (cx.input("text")?, tables(cx, model.tables())?);
    number_of_texts(cx, text, 1..=1)?;
    let tokens = Tokens::of(cx, &call::BERT, text, tables)?;
    let total = tokens.total(cx)?;
    Ok(vec![tokens.result(cx, result::TOKENS, vec![total], DType::Str)?])
}

/// What is between any of these separators, but for nothing at all, in order.
fn lines<'t>(text: &'t str, separators: &'static [char]) -> impl Iterator<Item = &'t [u8]> + Clone {
    text.split(separators).filter(|line| !line.is_empty()).map(str::as_bytes)
}

fn bert(cx: &mut NodeCx<'_, '_>, counts: std::ops::RangeInclusive<i64>) -> Result<Tokens> {
    let (text, file) = (cx.input("text")?, cx.str("vocab_file")?);
    number_of_texts(cx, text, counts)?;
    let vocabulary: Vec<(&[u8], u32)> = lines(&file, &['\r', '\n']).zip(0..).collect();
    let number = |name: &str| {
        let token = cx.str(name)?;
        match vocabulary.iter().rev().find(|(text, _)| *text == token.as_bytes()) {
            Some(&(_, number)) => Ok(number),
            None => malformed(format!("vocab_file has no `{token}`, which is {name}")),
        }
    };
    let special = [number("unk_token")?, number("cls_token")?, number("sep_token")?];
    // They need to be there, and nothing gives them.
    number("pad_token")?;
    number("mask_token")?;
    let basic = match flag(cx, "do_basic_tokenize")? {
        true => has::BASIC | has::PUNCTUATION | has::CONTROL,
        false => 0,
    };
    let flags = basic
        | flags(
            cx,
            &[
                ("do_lower_case", has::LOWER),
                ("tokenize_chinese_chars", has::CJK),
                ("strip_accents", has::ACCENTS),
            ],
        )?;
    // Two of them stand around the text. With less than that, as with more than i32 has, nothing is cut off.
    let most = u32::try_from(cx.int("max_length")? as i32).unwrap_or(0).saturating_sub(2);
    let (unknown, suffix) = (cx.str("unk_token")?, cx.str("suffix_indicator")?);
    let model = Bert {
        kind: kind::BERT,
        flags,
        word: 100,
        tokens: most,
        special,
        unknown: &unknown,
        suffix: &suffix,
        vocabulary: &vocabulary,
    };
    let tables = tables(cx, model.tables())?;
    Tokens::of(cx, &call::BERT, text, tables)
}

/// Offsets of `total` tokens, where they are asked for.
fn offsets(cx: &mut NodeCx<'_, '_>, tokens: &Tokens, total: Dim) -> Result<Option<ValueId>> {
    if !cx.wants(3) {
        return Ok(None);
    }
    if !flag(cx, "do_basic_tokenize")? {
        return unsupported("offset_mapping where do_basic_tokenize is 0: the operator does not define it");
    }
    Ok(Some(tokens.result(cx, result::OFFSETS, vec![total, Dim::from(2usize)], DType::I64)?))
}

fn ones(cx: &mut NodeCx<'_, '_>, total: &Dim) -> Result<ValueId> {
    let one = cx.b.i64s(&[1]);
    cx.b.expand(one, vec![total.clone()])
}

fn one_or_two(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tokens = bert(cx, 1..=2)?;
    let total = tokens.total(cx)?;
    let row = vec![total.clone()];
    let ids = tokens.result(cx, result::TOKENS, row.clone(), DType::I64)?;
    let types = tokens.result(cx, result::TEXTS, row, DType::I64)?;
    let mask = ones(cx, &total)?;
    let offsets = offsets(cx, &tokens, total)?;
    Ok([ids, types, mask].into_iter().chain(offsets).collect())
}

fn two(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let tokens = bert(cx, 2..=2)?;
    let total = tokens.total(cx)?;
    let row = vec![Dim::ONE, total.clone()];
    let ids = tokens.result(cx, result::TOKENS, row.clone(), DType::I64)?;
    let mask = ones(cx, &total)?;
    let mask = cx.b.reshape(mask, row.clone())?;
    let types = tokens.result(cx, result::TEXTS, row, DType::I64)?;
    let offsets = offsets(cx, &tokens, total)?;
    Ok([ids, mask, types].into_iter().chain(offsets).collect())
}

fn decode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (ids, file) = (cx.input("ids")?, cx.str("vocab_file")?);
    let number = |names: &[&str]| {
        let tokens = names.iter().map(|name| cx.str(name)).collect::<Result<Vec<_>>>()?;
        let is = |text: &[u8]| tokens.iter().any(|token| token.as_bytes() == text);
        Ok::<_, Error>(
            lines(&file, &['\n']).zip(0i32..).filter(|(text, _)| is(text)).last().map(|(_, at)| at),
        )
    };
    // As the original has it: padding counts as a separator, and -1 is passed over.
    let found = [number(&["sep_token", "pad_token"])?, number(&["cls_token"])?, number(&["mask_token"])?];
    let special: Vec<i32> = found.into_iter().flatten().chain([-1]).collect();
    let (unknown, suffix) = (cx.str("unk_token")?, cx.str("suffix_indicator")?);
    let special = flag(cx, "skip_special_tokens")?.then_some(&*special);
    let joins = flag(cx, "clean_up_tokenization_spaces")?;
    let made = words_tables(special, joins, [&unknown, &suffix], lines(&file, &['\n']));
    let (tables, bytes) = tables(cx, made)?;
    let count = cx.b.ty(ids).elements();
    let spans = if flag(cx, "use_indices")? { positions(cx)? } else { whole(cx, &count)? };
    let spans_count = cx.b.shape(spans)[0].clone();
    let ty = TensorType::new(DType::Str, vec![spans_count.clone()]);
    let numbers = vec![spans_count, count, bytes];
    Ok(vec![cx.b.call(&call::BERT_TEXTS, &[spans, ids, tables], numbers, ty)?])
}

/// One span, of all tokens.
fn whole(cx: &mut NodeCx<'_, '_>, count: &Dim) -> Result<ValueId> {
    let (from, to) = (cx.b.i64s(&[0]), dim(cx, count)?);
    let to = cx.b.reshape(to, vec![Dim::ONE])?;
    let span = cx.b.concat(&[from, to], 0)?;
    cx.b.reshape(span, vec![Dim::ONE, Dim::from(2usize)])
}

/// The spans that an input gives.
fn positions(cx: &mut NodeCx<'_, '_>) -> Result<ValueId> {
    let spans = cx.input("position")?;
    let shape = cx.b.shape(spans);
    if cx.b.ty(spans).elements().as_const() == Some(0) {
        return cx.b.reshape(spans, vec![Dim::ZERO, Dim::from(2usize)]);
    }
    let [_, pair] = shape.as_slice() else {
        return malformed(format!("{} has {} axes, not 2", cx.operand_name("position"), shape.len()));
    };
    let name = format!("dimension 1 of {}", cx.operand_name("position"));
    cx.b.require(Requirement::equal(pair.clone(), Dim::from(2usize)).says(name, 2))?;
    cx.b.reshape(spans, vec![shape[0].clone(), Dim::from(2usize)])
}

/// Rows of texts begin where `row_indices` says, or all of them where there are none.
fn wordpiece(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let (text, rows) = (cx.input("text")?, cx.input("row_indices")?);
    let entries = json_vocabulary("vocab", &cx.str("vocab")?)?;
    let vocabulary: Vec<(&[u8], u32)> =
        entries.iter().map(|(text, number)| (text.as_bytes(), *number)).collect();
    let most = cx.int("max_input_chars_per_word")?;
    let model = Bert {
        kind: kind::PIECES,
        flags: 0,
        word: most.clamp(0, i64::from(u32::MAX)) as u32,
        tokens: 0,
        special: [0; 3],
        unknown: &cx.str("unknown_token")?,
        suffix: &cx.str("suffix_indicator")?,
        vocabulary: &vocabulary,
    };
    let tables = tables(cx, model.tables())?;
    let tokens = Tokens::of(cx, &call::BERT, text, tables)?;
    let (total, count) = (tokens.total(cx)?, tokens.count.clone());
    let pieces = tokens.result(cx, result::TOKENS, vec![total], DType::Str)?;
    let starts = tokens.result(cx, result::STARTS, vec![count.clone() + Dim::ONE], DType::I64)?;
    let given = cx.b.ty(rows).elements();
    let all = cx.b.iota(vec![count.clone()], 0)?;
    let begins = match given.as_const() {
        Some(0) => all,
        _ => {
            let rows = cx.b.reshape(rows, vec![given.clone()])?;
            let none = Dim::ONE - given.min_dim(&Dim::ONE);
            let all = cx.b.slice_axis(all, 0, Dim::ZERO, none * count.clone())?;
            let rows = cx.b.concat(&[rows, all], 0)?;
            leading(cx, rows, &count)?
        }
    };
    let begins = cx.b.emit1(Op::Gather { axis: 0 }, &[starts, begins])?;
    let last = cx.b.slice_axis(starts, 0, count, Dim::ONE)?;
    let lengths = cx.b.concat(&[begins, last], 0)?;
    let number = cx.b.shape(begins)[0].clone();
    let limits = cx.b.slice_axis(lengths, 0, Dim::ONE, number)?;
    Ok(vec![pieces, lengths, begins, limits])
}

/// Those of `rows` before the first that is not above the one before it, or no text of `count`.
fn leading(cx: &mut NodeCx<'_, '_>, rows: ValueId, count: &Dim) -> Result<ValueId> {
    let size = cx.b.shape(rows)[0].clone();
    let before = cx.b.i64s(&[-1]);
    let shifted = cx.b.concat(&[before, rows], 0)?;
    let before = cx.b.slice_axis(shifted, 0, Dim::ZERO, size.clone())?;
    let ascends = cx.b.compare(CompareFn::Lt, before, rows)?;
    let most = dim(cx, count)?;
    let within = cx.b.compare(CompareFn::Lt, rows, most)?;
    let valid = cx.b.binary(BinaryFn::And, ascends, within)?;
    let (index, end) = (cx.b.iota(vec![size.clone()], 0)?, dim(cx, &size)?);
    let ends = cx.b.select(valid, end, index)?;
    let end = cx.b.reshape(end, vec![Dim::ONE])?;
    let ends = cx.b.concat(&[ends, end], 0)?;
    let first = cx.b.reduce(ReduceFn::Min, ends, &[0])?;
    let kept = cx.b.sizes(first, &|_| Some(size.clone()))?.remove(0);
    cx.b.slice_axis(rows, 0, Dim::ZERO, kept)
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    const FILE: &str = "[PAD]\n[UNK]\n\n[CLS]\r\n[SEP]\n[MASK]\nab\n##c\n";

    fn case(name: &'static str, texts: &[&str]) -> Case {
        crate::tests::case("ai.onnx.contrib", name, 1).texts(&["n"], &[texts.len()], texts)
    }

    /// Lines without anything have no number.
    #[test]
    fn tokens_of_one_text_or_two() {
        let of = |texts: &[&str]| case("BertTokenizer", texts).str("vocab_file", FILE).outputs(4);
        of(&["ABC x"]).gives(0, &[5], &[2., 5., 6., 1., 3.]);
        of(&["ABC x"]).gives(3, &[5, 2], &[0., 0., 0., 2., 2., 3., 4., 5., 0., 0.]);
        of(&["ab", "ab ab"]).gives(1, &[6], &[0., 0., 0., 1., 1., 1.]);
        of(&["ab", "ab ab"]).gives(2, &[6], &[1.; 6]);
        of(&[""]).gives(0, &[2], &[2., 3.]);
        let cut = |most: i64| of(&["ab ab ab"]).int("max_length", most);
        cut(4).gives(0, &[4], &[2., 5., 5., 3.]);
        cut(2).gives(0, &[5], &[2., 5., 5., 5., 3.]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |case: &Case| case.run().unwrap_err().message;
        let of = |texts: &[&str]| case("BertTokenizer", texts).str("vocab_file", FILE).outputs(3);
        assert_eq!(
            error(&of(&["ab"]).str("cls_token", "<s>")),
            "vocab_file has no `<s>`, which is cls_token"
        );
        assert!(error(&of(&["a", "b", "c"])).contains("has 3 texts, not 1 or 2"));
        assert!(
            error(&case("HfBertTokenizer", &["a"]).str("vocab_file", FILE)).contains("has 1 texts, not 2")
        );
        let plain = of(&["ab"]).int("do_basic_tokenize", 0).outputs(4);
        assert!(error(&plain).contains("offset_mapping where do_basic_tokenize is 0"));
        let pieces = |vocabulary: &str| {
            let case = case("WordpieceTokenizer", &["ab"]).input(&[0], &[0i64; 0]).outputs(4);
            case.str("suffix_indicator", "##").str("unknown_token", "?").str("vocab", vocabulary)
        };
        assert!(error(&pieces("[]")).contains("it is not a JSON object"));
        assert!(error(&pieces("{\"a\": -1}")).contains("the number of `a` is not one from 0"));
        assert!(error(&pieces("{")).contains("attribute vocab: EOF"));
        pieces("{\"a\": 7}").gives_texts(0, &[2], &["a", "?"]);
    }

    #[test]
    fn rows_of_words() {
        let of = |rows: &[i64]| {
            let case = case("WordpieceTokenizer", &["a a", "", "b", "a"])
                .symbolic(&["k"], &[rows.len()], rows)
                .outputs(4);
            case.str("suffix_indicator", "##").str("unknown_token", "?").str("vocab", "{\"a\": 0}")
        };
        of(&[]).gives(1, &[5], &[0., 2., 2., 3., 4.]);
        of(&[0, 2, 4]).gives(1, &[3], &[0., 2., 4.]);
        of(&[0, 2, 4]).gives(3, &[2], &[2., 4.]);
        of(&[1, 1, 3]).gives(2, &[1], &[2.]);
        of(&[4]).gives(1, &[1], &[4.]);
    }

    #[test]
    fn texts_of_tokens() {
        let of = |ids: &[i64], spans: &[i64]| {
            let case = crate::tests::case("ai.onnx.contrib", "BertTokenizerDecoder", 1)
                .str("vocab_file", FILE.trim_end());
            case.symbolic(&["n"], &[ids.len()], ids).symbolic(&["k", "l"], &[spans.len() / 2, 2], spans)
        };
        // The line end stays a part of its token here.
        of(&[2, 5, 6, 99, 5], &[]).gives_texts(0, &[1], &["[CLS]\r abc [UNK] ab"]);
        let spans = of(&[5, 6, 5], &[0, 2, 1, 3, 3, 3]).int("use_indices", 1);
        spans.gives_texts(0, &[3], &["abc", "ab", ""]);
        of(&[5], &[]).int("use_indices", 1).gives_texts(0, &[0], &[]);
        let error = of(&[5], &[0, 2]).int("use_indices", 1).run().unwrap_err();
        assert!(error.message.contains("a text is not what is needed here"), "{}", error.message);
    }
}
