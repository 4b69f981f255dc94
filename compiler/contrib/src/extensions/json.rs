//! Tokenizers of the `tokenizers` package, as it writes them: `tokenizer.json` and `tokenizer_config.json`.

use std::collections::{HashMap, HashSet};

use super::bpe::rows;
use super::sentencepiece::check_map;
use super::{I64, STRING, Tokens, base64, extension, number_of_texts, tables, vocabulary_of};
use onnxc_ir::graph::call;
use onnxc_ops::row::*;
use onnxc_runtime_support::strings::tokenizers::bpe::{self, Bpe};
use onnxc_runtime_support::strings::tokenizers::result;
use onnxc_runtime_support::strings::tokenizers::unigram::{self, Unigram};
use onnxc_runtime_support::strings::tokenizers::words::{GPT2, LLAMA, alternatives};
use serde_json::Value;

pub const ROWS: &[OpDef] = &[extension("HfJsonTokenizer", encode)
    .inputs(&[req("input_text", STRING)])
    .outputs(&[req("input_ids", I64), opt("attention_mask", I64), opt("offset_mapping", I64)])
    .attributes(&[required("tokenizer_config", Str), required("tokenizer_vocab", Str)])
    .doc("The tokens of texts by a tokenizer.json")];

/// Classes of tokenizers whose models join pairs.
const PAIRS: &[&str] = &[
    "PreTrainedTokenizer",
    "CLIPTokenizer",
    "WhisperTokenizer",
    "GemmaTokenizer",
    "InternLM2Tokenizer",
    "LlamaTokenizer",
    "Phi3Tokenizer",
    "CodeLlamaTokenizer",
    "CodeGenTokenizer",
    "GPT2Tokenizer",
    "Qwen2Tokenizer",
    "BaichuanTokenizer",
    "GPTNeoXTokenizer",
];

/// Classes whose models are unigrams. Configurations of fairseq have none.
const UNIGRAMS: &[&str] =
    &["", "T5Tokenizer", "ChatGLMTokenizer", "XLMRobertaTokenizer", "DebertaV2Tokenizer"];

/// What a configuration says.
#[derive(Default)]
struct Config {
    class: String,
    start: String,
    end: String,
    padding: String,
    add_start: bool,
    add_end: bool,
}

fn wrong<T>(attribute: &str, what: impl std::fmt::Display) -> Result<T> {
    malformed(format!("attribute {attribute}: {what}"))
}

fn parsed(cx: &NodeCx<'_, '_>, attribute: &str) -> Result<Value> {
    let text = cx.str(attribute)?;
    match serde_json::from_str(&text) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => wrong(attribute, "it is not a JSON object"),
        Err(error) => wrong(attribute, error),
    }
}

impl Config {
    fn of(value: &Value) -> Result<Config> {
        let class = value.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        if class.is_empty() {
            let (start, end) = ("<s>".to_owned(), "</s>".to_owned());
            return Ok(Config { start, end, add_start: true, add_end: true, ..Config::default() });
        }
        // A token is a text, or an object that has it.
        let token = |name: &str| {
            let token = value.get(name);
            let text = token.and_then(|token| token.get("content").or(Some(token))).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let flag = |name: &str| match value.get(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => wrong("tokenizer_config", format!("{name} is {other}, must be true or false")),
        };
        let (add_start, add_end) = match class {
            "T5Tokenizer" => (false, true),
            "ChatGLMTokenizer" => (false, false),
            _ => (flag("add_bos_token")?, flag("add_eos_token")?),
        };
        let padding = value.get("pad_token").and_then(Value::as_str).unwrap_or_default().to_owned();
        let (start, end) = (token("bos_token"), token("eos_token"));
        Ok(Config { class: class.to_owned(), start, end, padding, add_start, add_end })
    }
}

fn encode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let config = Config::of(&parsed(cx, "tokenizer_config")?)?;
    let tokenizer = parsed(cx, "tokenizer_vocab")?;
    let class = config.class.strip_suffix("Fast").unwrap_or(&config.class);
    if PAIRS.contains(&class) {
        pairs(cx, &config, &tokenizer)
    } else if UNIGRAMS.contains(&class) {
        unigrams(cx, &config, &tokenizer)
    } else {
        unsupported(format!(
            "tokenizer_class `{class}`; there are {} and {}",
            PAIRS.join(", "),
            UNIGRAMS[1..].join(", ")
        ))
    }
}

/// The field of an object, `Null` where it has none.
fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    value.get(name).unwrap_or(&Value::Null)
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    field(value, name).as_str().unwrap_or_default()
}

/// A token that is found wherever it is.
struct Added<'v> {
    content: &'v str,
    number: u32,
    strips: bool,
    special: bool,
}

/// The added tokens, each once.
fn added(tokenizer: &Value) -> Result<Vec<Added<'_>>> {
    let mut seen = HashSet::new();
    let mut tokens = vec![];
    for token in elements(field(tokenizer, "added_tokens")) {
        let content = text(token, "content");
        if content.is_empty() {
            return wrong("tokenizer_vocab", "an added token has no content");
        }
        let number = field(token, "id").as_i64().and_then(|id| i32::try_from(id).ok());
        let Some(number) = number.and_then(|id| u32::try_from(id).ok()) else {
            return wrong(
                "tokenizer_vocab",
                format!("the id of the added token `{content}` is not one from 0 to {}", i32::MAX),
            );
        };
        let is = |name: &str| field(token, name) == &Value::Bool(true);
        if seen.insert(content) {
            tokens.push(Added { content, number, strips: is("rstrip"), special: is("special") });
        }
    }
    Ok(tokens)
}

/// Tokens of models that join pairs: bytes that are letters of the vocabulary, or texts as sentencepiece has them.
fn pairs(cx: &mut NodeCx<'_, '_>, config: &Config, tokenizer: &Value) -> Result<Vec<ValueId>> {
    let name = config.class.split("Tokenizer").next().unwrap_or_default();
    let steps = || elements(field(field(tokenizer, "decoder"), "decoders"));
    let is = |step: &Value, kind: &str| text(step, "type") == kind;
    let texts =
        steps().any(|step| is(step, "Replace") && text(field(step, "pattern"), "String") == "\u{2581}");
    let dummy = steps().any(|step| is(step, "Strip") && text(step, "content") == " ");
    let model = field(tokenizer, "model");
    let Value::Object(vocabulary) = field(model, "vocab") else {
        return wrong("tokenizer_vocab", "model.vocab is not an object of texts and their numbers");
    };
    let entries = vocabulary_of("tokenizer_vocab", vocabulary)?;
    let merges = elements(field(model, "merges")).map(merge).collect::<Result<Vec<_>>>()?;
    let added = added(tokenizer)?;
    // Of equal tokens only the first of these is found, as the original has it; what is not added is 0.
    let mut around = [0; 3];
    for token in &added {
        let names = [&config.start, &config.end, &config.padding];
        if let Some(at) = names.into_iter().position(|name| name == token.content) {
            around[at] = token.number;
        }
    }
    let (mut start, mut end) = (config.add_start, config.add_end);
    if !start
        && !config.start.is_empty()
        && let Some(processor) = tokenizer.get("post_processor")
    {
        let processor = processor.to_string();
        start |= processor.contains(&config.start);
        end |= processor.contains(&config.end);
    }
    let flags = [
        (name == "CLIP" && !texts, bpe::flag::CLIP),
        (start, bpe::flag::START),
        (end && !texts, bpe::flag::END),
        (texts, bpe::flag::TEXTS),
        (texts && dummy, bpe::flag::DUMMY),
        (texts && name == "Gemma", bpe::flag::LETTERS),
    ];
    let expression = expression(tokenizer)?.unwrap_or(if name == "Llama" { LLAMA } else { GPT2 });
    let words = match alternatives(expression) {
        Ok(words) => words,
        Err(rest) => return unsupported(format!("the expression `{rest}` of pre_tokenizer")),
    };
    let stripped: Vec<&str> = added.iter().filter(|token| token.strips).map(|token| token.content).collect();
    let added: Vec<(&str, u32)> = added.iter().map(|token| (token.content, token.number)).collect();
    let model = Bpe {
        flags: flags.into_iter().map(|(is, flag)| if is { flag } else { 0 }).sum(),
        most: u32::MAX,
        around,
        vocabulary: &entries,
        merges: &merges,
        special: &[],
        added: &added,
        stripped: &stripped,
        words: &words,
    };
    let tables = tables(cx, model.tables())?;
    rows(cx, tables, None)
}

/// The two texts of a merge.
fn merge(merge: &Value) -> Result<(&str, &str)> {
    let pair = match merge {
        Value::String(line) => line.split_once(' '),
        Value::Array(pair) => match pair.as_slice() {
            [left, right] => left.as_str().zip(right.as_str()),
            _ => None,
        },
        _ => None,
    };
    match pair {
        Some(pair) => Ok(pair),
        None => wrong("tokenizer_vocab", format!("the merge {merge} is not two texts")),
    }
}

/// The expression of words, if the tokenizer has one of its own.
fn expression(tokenizer: &Value) -> Result<Option<&str>> {
    let step = field(tokenizer, "pre_tokenizer");
    if text(step, "type") == "Split" {
        return unsupported("a pre_tokenizer of type Split that is not a part of a Sequence");
    }
    let mut found = None;
    for step in elements(field(step, "pretokenizers")).filter(|step| text(step, "type") == "Split") {
        let Some(expression) = field(field(step, "pattern"), "Regex").as_str() else {
            return unsupported("a pre_tokenizer of type Split whose pattern is not a Regex");
        };
        if found.replace(expression).is_some() {
            return unsupported("several pre_tokenizers of type Split");
        }
    }
    Ok(found)
}

/// The byte that a piece such as `<0x4A>` stands for. The original looks at no more than its length and the two digits.
fn byte_of(piece: &[u8]) -> Option<u8> {
    let digits @ [high, low] = [*piece.get(3)?, *piece.get(4)?];
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'A'..=b'F').contains(&digit);
    if piece.len() != 6 || !is_digit(high) || !is_digit(low) {
        return None;
    }
    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()
}

/// What a piece of ChatGLM stands for, which has marks for spaces.
fn of_chat(piece: &str) -> Option<Vec<u8>> {
    match piece {
        "<n>" => Some(b"\n".to_vec()),
        "<|tab|>" => Some(b"\t".to_vec()),
        _ if piece.len() == 11 => {
            let count = piece.as_bytes().get(piece.find("<|blank_")? + 8)?.checked_sub(b'0')?;
            (2..=9).contains(&count).then(|| "\u{2581}".repeat(usize::from(count)).into_bytes())
        }
        _ => None,
    }
}

/// Tokens of unigram models.
fn unigrams(cx: &mut NodeCx<'_, '_>, config: &Config, tokenizer: &Value) -> Result<Vec<ValueId>> {
    if cx.wants(1) || cx.wants(2) {
        return unsupported("attention_mask or offset_mapping of a unigram model");
    }
    let chat = config.class == "ChatGLMTokenizer";
    let model = field(tokenizer, "model");
    let unknown = match model.get("unk_id") {
        None => u32::MAX,
        Some(id) => match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
            Some(id) => id,
            None => {
                return wrong("tokenizer_vocab", format!("unk_id is {id}, must be the number of a piece"));
            }
        },
    };
    let Value::Array(entries) = field(model, "vocab") else {
        return wrong("tokenizer_vocab", "model.vocab is not an array of texts and their scores");
    };
    let mut pieces: HashMap<Vec<u8>, (u32, f64)> = HashMap::new();
    let mut next = 0;
    for entry in entries {
        let pair = field_at(entry, 0).as_str().zip(field_at(entry, 1).as_f64());
        let Some((text, score)) = pair else {
            return wrong(
                "tokenizer_vocab",
                format!("the entry {entry} of model.vocab is not a text and its score"),
            );
        };
        if text.is_empty() {
            return wrong("tokenizer_vocab", "a piece of model.vocab has no text");
        }
        let of_chat = if chat { of_chat(text) } else { None };
        let piece = byte_of(text.as_bytes()).map(|byte| vec![byte]).or(of_chat);
        let piece = piece.unwrap_or_else(|| text.as_bytes().to_vec());
        // What is there twice has the later number, unless its score is 0.
        if score != 0.0 || !pieces.contains_key(&piece) {
            pieces.insert(piece, (next, score));
            next += 1;
        }
    }
    let least = pieces.values().map(|&(_, score)| score).fold(f64::MAX, f64::min);
    let added = added(tokenizer)?;
    let special: HashSet<u32> =
        added.iter().filter(|token| token.special).map(|token| token.number).collect();
    let number = |text: &str| pieces.get(text.as_bytes()).map_or(unknown, |&(number, _)| number);
    let mut dummy = true;
    for step in elements(field(field(tokenizer, "pretokenizer"), "pretokenizers")) {
        dummy = field(step, "add_prefix_space").as_bool().unwrap_or(dummy);
    }
    let flags = [
        (config.add_start, unigram::flag::START),
        (config.add_end, unigram::flag::END),
        (!chat, unigram::flag::JOIN),
        (dummy, unigram::flag::DUMMY),
        (chat, unigram::flag::KNOWN),
    ];
    let entries: Vec<(&[u8], u32, f64)> = pieces
        .iter()
        .map(|(text, &(number, score))| {
            (text.as_slice(), number, if special.contains(&number) { 0.0 } else { score })
        })
        .collect();
    let map = charsmap(tokenizer)?;
    check_map("tokenizer_vocab", &map)?;
    let added: Vec<&str> = added.iter().map(|token| token.content).collect();
    let endings = [number("[gMASK]"), number("<sop>")];
    let model = Unigram {
        flags: flags.into_iter().map(|(is, flag)| if is { flag } else { 0 }).sum(),
        special: [unknown, number(&config.start), number(&config.end)],
        endings: if chat { &endings } else { &[] },
        pieces: &entries,
        unknown_score: least - UNKNOWN_PENALTY,
        added: &added,
        map: &map,
    };
    let input = cx.input("input_text")?;
    number_of_texts(cx, input, 1..=1)?;
    let tables = tables(cx, model.tables())?;
    let tokens = Tokens::of(cx, &call::UNIGRAM, input, tables)?;
    let total = tokens.total(cx)?;
    Ok(vec![tokens.result(cx, result::TOKENS, vec![total], DType::I64)?])
}

/// How much less than the least score that of a character without a piece is.
const UNKNOWN_PENALTY: f64 = 10.0;

fn field_at(value: &Value, at: usize) -> &Value {
    value.get(at).unwrap_or(&Value::Null)
}

/// The map of characters that the normalizer has, or one of several.
fn charsmap(tokenizer: &Value) -> Result<Vec<u8>> {
    let normalizer = field(tokenizer, "normalizer");
    let several =
        || elements(field(normalizer, "normalizers")).find(|step| text(step, "type") == "Precompiled");
    let map = match normalizer.get("precompiled_charsmap") {
        Some(map) => map,
        None => several().map_or(&Value::Null, |step| field(step, "precompiled_charsmap")),
    };
    match map.as_str().map(|map| base64::decode(map.as_bytes())) {
        None => Ok(vec![]),
        Some(Some(map)) => Ok(map),
        Some(None) => wrong("tokenizer_vocab", "precompiled_charsmap is not base64"),
    }
}

#[cfg(test)]
mod tests {
    use onnxc_ops::node_case::Case;
    use serde_json::{Value, json};

    fn case(config: &Value, tokenizer: &Value, texts: &[&str]) -> Case {
        let case =
            crate::tests::case("ai.onnx.contrib", "HfJsonTokenizer", 1).texts(&["n"], &[texts.len()], texts);
        case.str("tokenizer_config", &config.to_string()).str("tokenizer_vocab", &tokenizer.to_string())
    }

    fn class(name: &str) -> Value {
        json!({"tokenizer_class": name, "bos_token": "<s>", "eos_token": {"content": "</s>"}})
    }

    fn pairs() -> Value {
        json!({
            "added_tokens": [{"id": 7, "content": "<s>"}, {"id": 8, "content": "</s>"}, {"id": 9, "content": "<x>", "rstrip": true}],
            "model": {"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}, "merges": ["a b", ["Ġ", "ab"]]},
        })
    }

    fn with(mut value: Value, name: &str, field: Value) -> Value {
        value[name] = field;
        value
    }

    #[test]
    fn pairs_of_bytes() {
        let of = |config: &Value, tokenizer: &Value| case(config, tokenizer, &["ab ab", "<x> a"]).outputs(2);
        of(&class("GPT2Tokenizer"), &pairs()).gives(0, &[2, 2], &[2., 4., 9., 0.]);
        let both = with(
            with(class("Qwen2TokenizerFast"), "add_bos_token", json!(true)),
            "add_eos_token",
            json!(true),
        );
        of(&both, &pairs()).gives(0, &[2, 4], &[7., 2., 4., 8., 7., 9., 0., 8.]);
        of(&both, &pairs()).gives(1, &[2, 4], &[1.; 8]);
        // What stands around texts may follow from a later step.
        let around = with(pairs(), "post_processor", json!({"single": [{"SpecialToken": "<s>"}]}));
        of(&class("GPT2Tokenizer"), &around).gives(0, &[2, 3], &[7., 2., 4., 7., 9., 0.]);
    }

    #[test]
    fn vocabularies_of_texts() {
        let steps = json!({"decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "Strip", "content": " "},
        ]});
        let model = json!({"vocab": {"▁": 0, "a": 1, "▁a": 2, "<0x3F>": 3}, "merges": [["▁", "a"]]});
        let texts = with(with(pairs(), "decoder", steps), "model", model);
        let config = with(class("LlamaTokenizer"), "add_bos_token", json!(true));
        case(&config, &texts, &["a a?"]).gives(0, &[1, 4], &[7., 2., 2., 3.]);
    }

    fn unigram() -> Value {
        let vocab = json!([
            ["<unk>", 0.0],
            ["<s>", 0.0],
            ["</s>", 0.0],
            ["▁a", -1.0],
            ["b", -2.0],
            ["b", -3.0],
            ["b", 0.0]
        ]);
        json!({"model": {"unk_id": 0, "vocab": vocab}})
    }

    #[test]
    fn unigrams() {
        let of = |config: &Value| case(config, &unigram(), &["ab a?"]);
        // Of equal pieces the last one with a score has its number.
        of(&class("XLMRobertaTokenizer")).gives(0, &[4], &[3., 5., 3., 0.]);
        of(&class("T5Tokenizer")).gives(0, &[5], &[3., 5., 3., 0., 2.]);
        of(&json!({})).gives(0, &[6], &[1., 3., 5., 3., 0., 2.]);
        // Unknown characters go, and what the vocabulary lacks is unknown.
        of(&class("ChatGLMTokenizer")).gives(0, &[5], &[3., 5., 3., 0., 0.]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let fails = |config: &Value, tokenizer: &Value, text: &str| {
            let error = case(config, tokenizer, &["a"]).run().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        let (gpt2, xlm) = (class("GPT2Tokenizer"), class("XLMRobertaTokenizer"));
        fails(&class("MarianTokenizer"), &unigram(), "tokenizer_class `MarianTokenizer`");
        fails(&json!([]), &pairs(), "attribute tokenizer_config: it is not a JSON object");
        fails(&with(gpt2.clone(), "add_bos_token", json!(1)), &pairs(), "add_bos_token is 1");
        fails(&gpt2, &json!({}), "model.vocab is not an object");
        fails(&gpt2, &json!({"model": {"vocab": {"a": -1}}}), "the number of `a`");
        fails(&gpt2, &json!({"model": {"vocab": {}, "merges": ["a"]}}), "the merge \"a\" is not two texts");
        fails(&gpt2, &with(pairs(), "added_tokens", json!([{"id": 1}])), "an added token has no content");
        fails(
            &gpt2,
            &with(pairs(), "added_tokens", json!([{"content": "a", "id": "b"}])),
            "the id of the added token `a`",
        );
        let split = |pattern: Value| json!({"type": "Split", "pattern": pattern});
        let steps = |steps: Vec<Value>| {
            with(pairs(), "pre_tokenizer", json!({"type": "Sequence", "pretokenizers": steps}))
        };
        fails(&gpt2, &steps(vec![split(json!({"Regex": r"\p{N}|\w+"}))]), r"the expression `\w+`");
        fails(&gpt2, &steps(vec![split(json!({"String": " "}))]), "whose pattern is not a Regex");
        fails(
            &gpt2,
            &steps(vec![split(json!({"Regex": r"\p{N}"})); 2]),
            "several pre_tokenizers of type Split",
        );
        fails(
            &gpt2,
            &with(pairs(), "pre_tokenizer", split(json!({"Regex": "a"}))),
            "not a part of a Sequence",
        );
        fails(&xlm, &pairs(), "model.vocab is not an array");
        fails(&xlm, &json!({"model": {"vocab": [["a"]]}}), "is not a text and its score");
        fails(&xlm, &json!({"model": {"vocab": [], "unk_id": null}}), "unk_id is null");
        fails(&xlm, &with(unigram(), "normalizer", json!({"precompiled_charsmap": "?"})), "is not base64");
        fails(
            &xlm,
            &with(unigram(), "normalizer", json!({"precompiled_charsmap": "CQAAAAA="})),
            "and its trie 9",
        );
        let masked = case(&xlm, &unigram(), &["a"]).outputs(2).run().unwrap_err().to_string();
        assert!(masked.contains("attention_mask or offset_mapping of a unigram model"), "{masked}");
        let two = case(&xlm, &unigram(), &["a", "b"]).run().unwrap_err().to_string();
        assert!(two.contains("2 texts, not 1"), "{two}");
    }
}
