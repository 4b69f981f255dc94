//! Tokenizers that join pairs of bytes: of GPT-2, RoBERTa and CLIP.

use super::{I64, STRING, Tokens, extension, json_vocabulary, tables};
use onnxc_ir::graph::{TensorType, call};
use onnxc_ops::row::*;
use onnxc_ops::strings::most;
use onnxc_runtime_support::strings::tokenizers::bpe::{Bpe, flag};
use onnxc_runtime_support::strings::tokenizers::words::{GPT2 as WORDS_OF_GPT2, alternatives};
use onnxc_runtime_support::strings::tokenizers::{Bytes, bytes_flag, result};

const INPUTS: &[Param] = &[req("input_text", STRING), opt("add_special_tokens", "tensor(bool)")];
const OUTPUTS: &[Param] = &[req("input_ids", I64), opt("attention_mask", I64), opt("offset_mapping", I64)];
const ATTRIBUTES: &[AttrDef] = &[
    required("vocab", Str),
    required("merges", Str),
    int("padding_length", -1),
    optional("model_name", Str),
    string("added_token", ""),
];
const SHAPES: &[&str] = &["add_special_tokens[] | [1]"];

pub const ROWS: &[OpDef] = &[
    extension("GPT2Tokenizer", |cx| encode(cx, &GPT2))
        .inputs(INPUTS)
        .outputs(OUTPUTS)
        .attributes(ATTRIBUTES)
        .shapes(SHAPES)
        .doc("The tokens of texts for GPT-2: pairs of bytes"),
    extension("RobertaTokenizer", |cx| encode(cx, &ROBERTA))
        .inputs(INPUTS)
        .outputs(OUTPUTS)
        .attributes(ATTRIBUTES)
        .shapes(SHAPES)
        .doc("The tokens of texts for RoBERTa: pairs of bytes"),
    extension("CLIPTokenizer", |cx| encode(cx, &CLIP))
        .inputs(INPUTS)
        .outputs(OUTPUTS)
        .attributes(ATTRIBUTES)
        .shapes(SHAPES)
        .doc("The tokens of texts for CLIP: pairs of bytes of words in small letters"),
    extension("BpeDecoder", decode)
        .inputs(&[req("ids", I64)])
        .outputs(&[req("str", STRING)])
        .attributes(&[
            required("id_vocab", Str),
            required("byte_decoder", Str),
            string("added_tokens", ""),
            string("all_special_ids", ""),
            int("en_normalization", 0),
            int("skip_special_tokens", 0),
            int("whitespace_token", 0),
            optional("bos_token", Str),
            optional("eos_token", Str),
            string("unk_token", "<|endoftext|>"),
        ])
        .doc("Texts of tokens that are pairs of bytes"),
];

/// What a tokenizer has beside its vocabulary.
struct Tokenizer {
    name: &'static str,
    unknown: &'static str,
    start: &'static str,
    end: &'static str,
    padding: Option<&'static str>,
}

const GPT2: Tokenizer = Tokenizer {
    name: "GPT2",
    unknown: "<|endoftext|>",
    start: "<|endoftext|>",
    end: "<|endoftext|>",
    padding: None,
};
const ROBERTA: Tokenizer =
    Tokenizer { name: "Roberta", unknown: "<unk>", start: "<s>", end: "</s>", padding: Some("<pad>") };
const CLIP: Tokenizer = Tokenizer {
    name: "CLIP",
    unknown: "<|endoftext|>",
    start: "<|startoftext|>",
    end: "<|endoftext|>",
    padding: Some("<|endoftext|>"),
};

impl Tokenizer {
    /// Texts that are tokens wherever they are, each once, in the order in which they are looked for.
    fn special(&self) -> Vec<&'static str> {
        let mut special = vec![self.unknown];
        for text in [self.start, self.end].into_iter().chain(self.padding) {
            // What is a part of another is left out, as the original has it.
            if !special.join("\n").contains(text) {
                special.push(text);
            }
        }
        special
    }
}

/// A token that the vocabulary has not.
const NONE: u32 = u32::MAX;

/// Whether tokens stand around texts: `None` where the model's name decides.
fn with_special_tokens(cx: &NodeCx<'_, '_>) -> Result<Option<bool>> {
    let Some(input) = cx.optional(1) else { return Ok(None) };
    match cx.b.graph.constant_data(input) {
        Some(given) => Ok(Some(given.data.first() != Some(&0))),
        None => unsupported("add_special_tokens that is not constant"),
    }
}

/// The pairs of a list of merges, one a line.
fn pairs(merges: &str) -> Result<Vec<(&str, &str)>> {
    let mut pairs = vec![];
    for line in merges.split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() || (line.starts_with('#') && pairs.is_empty()) {
            continue;
        }
        if line.contains('\r') {
            return malformed(format!("attribute merges: the line {line:?} has an end of a line within"));
        }
        match line.split_once(' ') {
            Some(pair) => pairs.push(pair),
            None => return malformed(format!("attribute merges: the line `{line}` has no space")),
        }
    }
    Ok(pairs)
}

/// Tokens that are added, one a line: a text, `=`, and its number.
fn added(text: &str) -> Result<Vec<(&str, u32)>> {
    let lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    let token = |line| {
        let Some((text, number)) = str::rsplit_once(line, '=') else {
            return malformed(format!("attribute added_token: the line `{line}` has no `=`"));
        };
        match number.parse() {
            _ if text.is_empty() => {
                malformed(format!("attribute added_token: the line `{line}` has no token"))
            }
            Ok(number) => Ok((text, number)),
            Err(_) => malformed(format!("attribute added_token: `{number}` is not the number of a token")),
        }
    };
    lines.filter(|line| !line.is_empty()).map(token).collect()
}

fn encode(cx: &mut NodeCx<'_, '_>, kind: &Tokenizer) -> Result<Vec<ValueId>> {
    let name = match cx.attributes.contains_key("model_name") {
        true => Some(cx.str("model_name")?).filter(|name| !name.is_empty()),
        false => None,
    };
    let name = name.as_deref().unwrap_or(kind.name);
    let around = match name {
        "GPT2" | "CodeGen" => false,
        "Roberta" | "CLIP" | "PreTrained" => true,
        _ => {
            return unsupported(format!(
                "model_name `{name}`; there are GPT2, CodeGen, Roberta, CLIP and PreTrained"
            ));
        }
    };
    let around = with_special_tokens(cx)?.unwrap_or(true) && around;
    let mut vocabulary = json_vocabulary("vocab", &cx.str("vocab")?)?;
    let merges = cx.str("merges")?;
    let merges = pairs(&merges)?;
    if vocabulary.is_empty() || merges.is_empty() {
        return malformed("vocab or merges is empty");
    }
    let number = |vocabulary: &[(String, u32)], text: &str| {
        vocabulary.iter().find(|(other, _)| other == text).map(|&(_, number)| number)
    };
    // What is missing has the next number, and is a part of the vocabulary from then on.
    let mut special = vec![];
    for text in kind.special() {
        let found = number(&vocabulary, text);
        let token = found.unwrap_or(vocabulary.len() as u32);
        if found.is_none() {
            vocabulary.push((text.to_string(), token));
        }
        special.push((text, token));
    }
    let token = |text: &str| number(&vocabulary, text).unwrap_or(NONE);
    let length = cx.int("padding_length")?;
    if length != -1 && length <= 0 {
        return malformed(format!("padding_length is {length}; it must be 1 or more, or -1"));
    }
    let added_text = cx.str("added_token")?;
    let entries: Vec<(&str, u32)> =
        vocabulary.iter().map(|(text, number)| (text.as_str(), *number)).collect();
    let model = Bpe {
        flags: if name == "CLIP" { flag::CLIP } else { 0 } | if around { flag::START | flag::END } else { 0 },
        most: u32::try_from(length).unwrap_or(u32::MAX),
        around: [token(kind.start), token(kind.end), kind.padding.map_or(0, token)],
        vocabulary: &entries,
        merges: &merges,
        special: &special,
        added: &added(&added_text)?,
        stripped: &[],
        words: &alternatives(WORDS_OF_GPT2).unwrap_or_default(),
    };
    let tables = tables(cx, model.tables())?;
    rows(cx, tables, (length > 0).then_some(length))
}

/// The numbers, mask and offsets of the tokens of the first input's texts, a row each, of `length` or as long as the longest.
pub(super) fn rows(
    cx: &mut NodeCx<'_, '_>,
    tables: (ValueId, Dim),
    length: Option<i64>,
) -> Result<Vec<ValueId>> {
    let text = cx.input(0)?;
    let shape = cx.b.shape(text);
    let tokens = Tokens::of(cx, &call::BPE, text, tables)?;
    let width = match length {
        Some(length) => Dim::from(length),
        None => most(cx, tokens.counts)?,
    };
    let rows: Vec<Dim> = shape.into_iter().chain([width]).collect();
    let mut results = vec![tokens.result(cx, result::ROWS, rows.clone(), DType::I64)?];
    if cx.wants(1) || cx.wants(2) {
        results.push(tokens.result(cx, result::MASK, rows.clone(), DType::I64)?);
    }
    if cx.wants(2) {
        let pairs = rows.into_iter().chain([Dim::from(2usize)]).collect();
        results.push(tokens.result(cx, result::OFFSETS, pairs, DType::I64)?);
    }
    Ok(results)
}

/// Lines of a number, and what follows behind a tab.
fn numbered<'t>(attribute: &str, text: &'t str) -> Result<Vec<(u32, &'t str)>> {
    let lines = text.strip_suffix('\n').unwrap_or(text).split('\n');
    let entry = |line: &'t str| {
        let (number, text) = line.split_once('\t').unwrap_or((line, ""));
        match number.trim().parse() {
            Ok(number) => Ok((number, text)),
            Err(_) => malformed(format!("attribute {attribute}: the line `{line}` begins with no number")),
        }
    };
    if text.is_empty() { Ok(vec![]) } else { lines.map(entry).collect() }
}

fn decode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let ids = cx.input("ids")?;
    let vocabulary = cx.str("id_vocab")?;
    let (letters, added, special) =
        (cx.str("byte_decoder")?, cx.str("added_tokens")?, cx.str("all_special_ids")?);
    if vocabulary.is_empty() || letters.is_empty() {
        return malformed("id_vocab or byte_decoder is empty");
    }
    let letters: Vec<(u32, u8)> = numbered("byte_decoder", &letters)?
        .into_iter()
        .map(|(letter, byte)| match byte.trim().parse() {
            Ok(byte) => Ok((letter, byte)),
            Err(_) => malformed(format!("attribute byte_decoder: `{byte}` of {letter} is not a byte")),
        })
        .collect::<Result<_>>()?;
    let special: Vec<u32> =
        numbered("all_special_ids", &special)?.into_iter().map(|(token, _)| token).collect();
    let flag_if = |name: &str, bit: u32| Ok::<u32, Error>(if cx.int(name)? != 0 { bit } else { 0 });
    let is_texts = letters.iter().any(|&(letter, _)| letter == 0x2581);
    let flags = flag_if("skip_special_tokens", bytes_flag::SKIP)?
        | flag_if("whitespace_token", bytes_flag::SPACES)?
        | if is_texts { bytes_flag::TEXTS } else { 0 };
    // Each line is a token, the empty ones as well.
    let vocabulary: Vec<&str> = vocabulary.strip_suffix('\n').unwrap_or(&vocabulary).split('\n').collect();
    let model = Bytes {
        flags,
        unknown: &cx.str("unk_token")?,
        vocabulary: &vocabulary,
        letters: &letters,
        added: &numbered("added_tokens", &added)?,
        special: &special,
    };
    let (tables, bytes) = tables(cx, model.tables())?;
    let shape = cx.b.shape(ids);
    let Some((length, rows)) = shape.split_last() else { return malformed("ids is a scalar") };
    let out = if rows.is_empty() { vec![Dim::ONE] } else { rows.to_vec() };
    let ty = TensorType::new(DType::Str, out);
    let count = ty.elements();
    // Each row is a text.
    let from = cx.b.iota(vec![count.clone(), Dim::ONE], 0)?;
    let length = dim(cx, length)?;
    let from = cx.b.binary(BinaryFn::Mul, from, length)?;
    let to = cx.b.binary(BinaryFn::Add, from, length)?;
    let spans = cx.b.concat(&[from, to], 1)?;
    let numbers = vec![count, cx.b.ty(ids).elements(), bytes];
    Ok(vec![cx.b.call(&call::BPE_TEXTS, &[spans, ids, tables], numbers, ty)?])
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;

    const WORDS: &str = r#"{"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4, "abab": 5, "c</w>": 6, "a</w>": 7, "<s>": 8, "</s>": 9}"#;
    const MERGES: &str = "#version: 0.2\na b\r\nĠ ab\n\nab ab\n";

    fn case(name: &'static str, texts: &[&str]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", name, 1).texts(&["n"], &[texts.len()], texts);
        case.str("vocab", WORDS).str("merges", MERGES)
    }

    #[test]
    fn pairs_are_joined_in_their_order() {
        let of = |texts: &[&str]| case("GPT2Tokenizer", texts).missing().outputs(3);
        of(&["ab ab"]).gives(0, &[1, 2], &[2., 4.]);
        of(&["ababab aa"]).gives(0, &[1, 5], &[5., 2., 3., 0., 0.]);
        // Rows are filled up with 0, and a byte without a token has the greatest number.
        of(&["ab", "b?"]).gives(0, &[2, 2], &[2., 0., 1., f64::from(u32::MAX)]);
        of(&["ab", "b?"]).gives(1, &[2, 2], &[1., 0., 1., 1.]);
        of(&["ab ab"]).gives(2, &[1, 2, 2], &[0., 2., 3., 5.]);
        of(&[]).gives(0, &[0, 0], &[]);
        of(&[""]).gives(1, &[1, 0], &[]);
        of(&["ab ab a"]).int("padding_length", 2).gives(0, &[1, 2], &[2., 4.]);
    }

    /// What the vocabulary has not, has the next numbers: `<unk>` 10, `<pad>` 11.
    #[test]
    fn special_texts_are_tokens() {
        let roberta = |texts: &[&str]| case("RobertaTokenizer", texts);
        roberta(&["a<unk>b<pad></s>"]).gives(0, &[1, 7], &[8., 0., 10., 1., 11., 9., 9.]);
        roberta(&["a", ""]).gives(0, &[2, 3], &[8., 0., 9., 8., 9., 11.]);
        let without = roberta(&["a"]).constant(&[], &[false]);
        without.gives(0, &[1, 1], &[0.]);
        let added = case("GPT2Tokenizer", &["abc xab"]).str("added_token", "b=70\nbc=71\r\n");
        let none = f64::from(u32::MAX);
        added.gives(0, &[1, 6], &[0., 71., 3., none, 0., 70.]);
    }

    #[test]
    fn words_of_clip_have_ends() {
        let clip = |texts: &[&str]| case("CLIPTokenizer", texts);
        clip(&[" AC\n"]).gives(0, &[1, 4], &[11., 0., 6., 10.]);
        clip(&["\t \n"]).gives(0, &[1, 2], &[11., 10.]);
    }

    #[test]
    fn texts_of_tokens() {
        let of = |shape: &[usize], ids: &[i64]| {
            let case = crate::tests::case("ai.onnx.contrib", "BpeDecoder", 1).input(shape, ids);
            case.str("id_vocab", "a\nĠb\n\n漢\nd").str("byte_decoder", "288\t32\n97\t65\n")
        };
        of(&[3], &[0, 1, 4]).gives_texts(0, &[1], &["A bd"]);
        of(&[2, 2], &[0, 2, 3, 9]).gives_texts(0, &[2], &["A", "<|endoftext|><|endoftext|>"]);
        let skips = of(&[4], &[0, 3, 9, 1]).str("all_special_ids", "0\n").int("skip_special_tokens", 1);
        skips.gives_texts(0, &[1], &[" b"]);
        let spaces = of(&[3], &[4, 0, 4]).str("all_special_ids", "0").int("whitespace_token", 1);
        spaces.gives_texts(0, &[1], &["d A d"]);
        of(&[2], &[0, 7]).str("added_tokens", "7\tx\ty").gives_texts(0, &[1], &["Ax\ty"]);
        of(&[0], &[]).gives_texts(0, &[1], &[""]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |case: Case| case.run().unwrap_err().message;
        let of = || case("GPT2Tokenizer", &["a"]);
        assert!(error(of().str("merges", "ab")).contains("the line `ab` has no space"));
        assert!(error(of().str("merges", "#")).contains("is empty"));
        assert!(error(of().str("model_name", "Llama")).contains("model_name `Llama`"));
        assert!(error(of().int("padding_length", 0)).contains("padding_length is 0"));
        assert!(error(of().str("added_token", "x")).contains("has no `=`"));
        assert!(error(of().str("added_token", "x=y")).contains("`y` is not the number"));
        let ids = crate::tests::case("ai.onnx.contrib", "BpeDecoder", 1).input(&[1], &[0i64]);
        assert!(
            error(ids.str("id_vocab", "a").str("byte_decoder", "97\tx")).contains("`x` of 97 is not a byte")
        );
    }
}
