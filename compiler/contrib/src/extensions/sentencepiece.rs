//! Models of sentencepiece: their tokenizer and what makes texts of tokens again.

mod proto;

use std::collections::HashMap;

use super::{I64, STRING, Tokens, base64, extension, tables};
use onnxc_ir::graph::{TensorType, call};
use onnxc_ops::row::*;
use onnxc_runtime_support::strings::tokenizers::result;
use onnxc_runtime_support::strings::tokenizers::sentencepiece::{
    Sentencepiece, flag, kind, piece, texts_tables,
};
use proto::{Algorithm, Model, Piece, PieceKind};

const BOOL: &str = "tensor(bool)";

pub const ROWS: &[OpDef] = &[
    extension("SentencepieceTokenizer", encode)
        .inputs(&[
            req("inputs", STRING),
            req("nbest_size", I64),
            req("alpha", "tensor(float)"),
            req("add_bos", BOOL),
            req("add_eos", BOOL),
            req("reverse", BOOL),
            opt("fairseq", BOOL),
        ])
        .outputs(&[
            req("tokens", "tensor(int32)"),
            req("instance_indices", I64),
            opt("token_indices", "tensor(int32)"),
        ])
        .attributes(&[required("model", Str)])
        .shapes(&[
            "nbest_size[] | [1]",
            "alpha[] | [1]",
            "add_bos[] | [1]",
            "add_eos[] | [1]",
            "reverse[] | [1]",
            "fairseq[] | [1]",
        ])
        .doc("The tokens of texts by a model of sentencepiece"),
    extension("SentencepieceDecoder", decode)
        .inputs(&[req("ids", I64), opt("fairseq", BOOL)])
        .outputs(&[req("str", STRING)])
        .attributes(&[required("model", Str)])
        .shapes(&["ids[_] | [1, _]", "fairseq[] | [1]"])
        .doc("The text of tokens of a model of sentencepiece"),
];

/// What of sentencepiece's model is not in its bytes: which number a text has.
struct Numbers<'m> {
    /// Pieces that texts have.
    normal: HashMap<&'m [u8], u32>,
    /// Others, which take precedence.
    reserved: HashMap<&'m [u8], u32>,
    unknown: u32,
    /// Of each byte, where characters without a piece become bytes.
    bytes: Vec<u32>,
}

fn wrong<T>(message: impl std::fmt::Display) -> Result<T> {
    malformed(format!("attribute model: {message}"))
}

impl<'m> Numbers<'m> {
    fn of(model: &Model<'m>) -> Result<Numbers<'m>> {
        let (mut normal, mut reserved, mut unknown) = (HashMap::new(), HashMap::new(), None);
        let mut bytes = vec![None; if model.byte_fallback { 256 } else { 0 }];
        for (piece, number) in model.pieces.iter().zip(0..) {
            let text = String::from_utf8_lossy(piece.text);
            let numbers = match piece.kind {
                PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused => &mut normal,
                PieceKind::Unknown | PieceKind::Control | PieceKind::Byte => &mut reserved,
            };
            if numbers.insert(piece.text, number).is_some() {
                return wrong(format!("the piece `{text}` is there twice"));
            }
            if piece.kind == PieceKind::Unknown && unknown.replace(number).is_some() {
                return wrong(format!("`{text}` is the second piece for what is unknown"));
            }
            if piece.kind == PieceKind::Byte {
                let byte = (0..=255_u8).find(|byte| piece.text == format!("<0x{byte:02X}>").as_bytes());
                match byte.and_then(|byte| bytes.get_mut(usize::from(byte))) {
                    Some(place) => *place = Some(number),
                    None if model.byte_fallback => return wrong(format!("the piece `{text}` is not a byte")),
                    None => {
                        return wrong(format!("the piece `{text}` is a byte, and byte_fallback is false"));
                    }
                }
            }
        }
        let Some(unknown) = unknown else { return wrong("it has no piece for what is unknown") };
        match bytes.into_iter().collect() {
            Some(bytes) => Ok(Numbers { normal, reserved, unknown, bytes }),
            None => wrong("byte_fallback is true, and it has not all 256 bytes"),
        }
    }

    fn number(&self, text: &[u8]) -> u32 {
        self.reserved.get(text).or(self.normal.get(text)).copied().unwrap_or(self.unknown)
    }
}

/// The bytes of the attribute, which may be base64.
fn model_bytes(cx: &NodeCx<'_, '_>) -> Result<Vec<u8>> {
    let bytes = cx.bytes("model")?;
    Ok(base64::decode(&bytes).unwrap_or(bytes))
}

fn read(bytes: &[u8]) -> Result<(Model<'_>, Numbers<'_>)> {
    let model = Model::of(bytes).or_else(wrong)?;
    let numbers = Numbers::of(&model)?;
    Ok((model, numbers))
}

/// Whether bytes are one character of UTF-8, or one byte that begins none.
fn is_letter(text: &[u8]) -> bool {
    text.len() == 1 || std::str::from_utf8(text).is_ok_and(|text| text.chars().count() == 1)
}

fn encoder_tables(bytes: &[u8]) -> Result<std::result::Result<Vec<u8>, usize>> {
    let (model, numbers) = read(bytes)?;
    let is_pairs = match model.algorithm {
        Algorithm::Unigram => false,
        Algorithm::Bpe | Algorithm::Characters => true,
        Algorithm::Word => return unsupported("a model of sentencepiece whose model_type is WORD"),
    };
    for Piece { text, kind, .. } in &model.pieces {
        let shown = String::from_utf8_lossy(text);
        let is_text = matches!(kind, PieceKind::Normal | PieceKind::UserDefined | PieceKind::Unused);
        if is_pairs && *kind == PieceKind::Unused {
            return unsupported(format!("the piece `{shown}` of type UNUSED in a model that joins pairs"));
        }
        if is_pairs && !is_text && (is_letter(text) || numbers.normal.contains_key(text)) {
            return unsupported(format!("the piece `{shown}`, which no text has, as a part of texts"));
        }
    }
    let special = |text: &[u8]| match model.pieces.get(numbers.number(text) as usize) {
        Some(piece) if piece.kind == PieceKind::Control => numbers.number(text) as i32,
        _ => -1,
    };
    // Only pieces that are learnt have scores that count; there may be none.
    let learnt = model.pieces.iter().filter(|piece| piece.kind == PieceKind::Normal).map(|piece| piece.score);
    let least = learnt.clone().fold(f32::MAX, f32::min);
    let greatest = learnt.fold(f32::MIN_POSITIVE, f32::max);
    let texts = || {
        model
            .pieces
            .iter()
            .zip(0..)
            .filter(|(piece, _)| matches!(piece.kind, PieceKind::Normal | PieceKind::UserDefined))
    };
    let pieces: Vec<(&[u8], u32, f32)> =
        texts().map(|(piece, number)| (piece.text, number, piece.score)).collect();
    let symbols = texts().filter(|(piece, _)| piece.kind == PieceKind::UserDefined);
    let symbols: Vec<(&[u8], u32)> = symbols.map(|(piece, number)| (piece.text, number)).collect();
    if pieces.is_empty() {
        return wrong("it has no pieces that texts have");
    }
    let flags = [
        (model.add_dummy_prefix, flag::DUMMY),
        (model.remove_extra_whitespaces, flag::JOIN),
        (model.escape_whitespaces, flag::ESCAPE),
        (model.treat_whitespace_as_suffix, flag::SUFFIX),
    ];
    check_map("model", model.map)?;
    let model = Sentencepiece {
        kind: match model.algorithm {
            Algorithm::Bpe => kind::PAIRS,
            Algorithm::Characters => kind::CHARACTERS,
            Algorithm::Unigram | Algorithm::Word => kind::SUMS,
        },
        flags: flags.into_iter().map(|(is, flag)| if is { flag } else { 0 }).sum(),
        special: [numbers.unknown as i32, special(model.start), special(model.end)],
        pieces: &pieces,
        symbols: &symbols,
        scores: [least - UNKNOWN_PENALTY, greatest],
        bytes: &numbers.bytes,
        map: model.map,
    };
    Ok(model.tables())
}

/// How much less than the least score that of a character without a piece is.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Requires that a map of characters has the size of its trie, that trie, and texts.
pub(super) fn check_map(attribute: &str, map: &[u8]) -> Result<()> {
    let Some((size, rest)) = map.split_first_chunk::<4>() else {
        return match map {
            [] => Ok(()),
            _ => malformed(format!("attribute {attribute}: precompiled_charsmap is cut off")),
        };
    };
    let size = u32::from_le_bytes(*size);
    match size as usize >= rest.len() {
        true => {
            let whole = map.len();
            malformed(format!(
                "attribute {attribute}: precompiled_charsmap has {whole} bytes, and its trie {size}"
            ))
        }
        false => Ok(()),
    }
}

/// A truth value as a byte, `[1]`; 0 where the input is not given.
fn option(cx: &mut NodeCx<'_, '_>, name: &str) -> Result<ValueId> {
    let Some(input) = cx.optional(name) else {
        return Ok(cx.b.constant(onnxc_ir::graph::Tensor::from_slice(&[1], &[0_u8])));
    };
    let byte = cx.b.cast(input, DType::U8)?;
    cx.b.reshape(byte, vec![Dim::ONE])
}

fn encode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let texts = cx.input("inputs")?;
    // Of a constant the sign is known; of others the run finds it.
    let count = size_scalar(cx, "nbest_size")?;
    let text = format!("nbest_size is {V}: tokens are the best ones, which 0 and 1 ask for; none are drawn");
    for (least, most) in [(Dim::ZERO, count.clone()), (count.clone(), Dim::ONE)] {
        cx.b.require(Requirement::at_most(least, most).stated(text.clone(), &[&count]))?;
    }
    let names = ["add_bos", "add_eos", "reverse", "fairseq"];
    let options = names.into_iter().map(|name| option(cx, name)).collect::<Result<Vec<_>>>()?;
    let options = cx.b.concat(&options, 0)?;
    let bytes = model_bytes(cx)?;
    let tables = tables(cx, encoder_tables(&bytes)?)?;
    let tokens = Tokens::with(cx, &call::SENTENCEPIECE, texts, tables, Some(options))?;
    let (total, count) = (tokens.total(cx)?, tokens.count.clone());
    let ids = tokens.result(cx, result::TOKENS, vec![total.clone()], DType::I64)?;
    let starts = tokens.result(cx, result::STARTS, vec![count + Dim::ONE], DType::I64)?;
    let mut results = vec![cx.b.cast(ids, DType::I32)?, starts];
    if cx.wants(2) {
        let places = vec![total.clone(), Dim::from(2usize)];
        let places = tokens.result(cx, result::OFFSETS, places, DType::I64)?;
        let begins = cx.b.slice_axis(places, 1, Dim::ZERO, Dim::ONE)?;
        let begins = cx.b.reshape(begins, vec![total])?;
        results.push(cx.b.cast(begins, DType::I32)?);
    }
    Ok(results)
}

fn decode(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>> {
    let ids = cx.input("ids")?;
    let bytes = model_bytes(cx)?;
    let (model, numbers) = read(&bytes)?;
    if model.has_denormalizer {
        return unsupported("a model of sentencepiece with a denormalizer_spec");
    }
    // A text has the number that tokenizing gives it.
    let is = |piece: &Piece<'_>| match model.pieces.get(numbers.number(piece.text) as usize).map(|is| is.kind)
    {
        Some(PieceKind::Control) => piece::CONTROL,
        Some(PieceKind::Unknown) => piece::UNKNOWN,
        Some(PieceKind::Byte) => piece::BYTE,
        _ => piece::TEXT,
    };
    let kinds: Vec<u8> = model.pieces.iter().map(is).collect();
    let pieces: Vec<&[u8]> = model.pieces.iter().map(|piece| piece.text).collect();
    let trims = model.add_dummy_prefix || model.remove_extra_whitespaces;
    let made = texts_tables(trims, model.unknown_surface, &pieces, &kinds);
    let (tables, table_bytes) = tables(cx, made)?;
    let count = cx.b.ty(ids).elements();
    let ids = cx.b.reshape(ids, vec![count.clone()])?;
    let fairseq = option(cx, "fairseq")?;
    let ty = TensorType::new(DType::Str, vec![Dim::ONE]);
    Ok(vec![cx.b.call(&call::SENTENCEPIECE_TEXT, &[ids, tables, fairseq], vec![count, table_bytes], ty)?])
}

#[cfg(test)]
mod tests {
    use onnxc_ops::Attr;
    use onnxc_ops::node_case::Case;

    /// A field of bytes, or of a number.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    fn number(field: u8, value: u8) -> Vec<u8> {
        // Field numbers from 16 on take two bytes.
        match field {
            0..16 => vec![field << 3, value],
            _ => vec![field << 3 | 0x80, field >> 4, value],
        }
    }

    fn piece(text: &str, score: f32, kind: u8) -> Vec<u8> {
        let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
        field(1, &[field(1, text.as_bytes()), score, number(3, kind)].concat())
    }

    fn pieces() -> Vec<u8> {
        [
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("</s>", 0.0, 3),
            piece("\u{2581}a", -1.0, 1),
            piece("b", -2.0, 1),
        ]
        .concat()
    }

    fn encoder(model: Vec<u8>, texts: &[&str]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", "SentencepieceTokenizer", 1);
        let case = case.texts(&["n"], &[texts.len()], texts).constant(&[], &[0_i64]).constant(&[], &[0_f32]);
        let case = case.input(&[1], &[true]).input(&[1], &[true]).input(&[], &[false]).missing().outputs(3);
        case.attr("model", bytes(model))
    }

    /// An attribute that is not UTF-8 has bytes.
    fn bytes(model: Vec<u8>) -> Attr<'static> {
        match String::from_utf8(model) {
            Ok(text) => Attr::Str(text),
            Err(error) => Attr::Bytes(error.into_bytes().into()),
        }
    }

    fn decoder(model: Vec<u8>, ids: &[i64]) -> Case {
        let case = crate::tests::case("ai.onnx.contrib", "SentencepieceDecoder", 1).input(&[ids.len()], ids);
        case.attr("model", bytes(model))
    }

    #[test]
    fn tokens_of_several_texts() {
        encoder(pieces(), &["a  ab", "", "?"]).gives(0, &[10], &[1., 3., 3., 4., 2., 1., 2., 1., 0., 2.]);
        encoder(pieces(), &["a  ab", "", "?"]).gives(1, &[4], &[0., 5., 7., 10.]);
        encoder(pieces(), &["a  ab"]).gives(2, &[5], &[0., 0., 1., 4., 5.]);
        encoder(pieces(), &[]).gives(1, &[1], &[0.]);
    }

    #[test]
    fn texts_of_tokens() {
        decoder(pieces(), &[1, 3, 3, 4, 2]).gives_texts(0, &[1], &["a ab"]);
        decoder(pieces(), &[0]).gives_texts(0, &[1], &[" \u{2047} "]);
        assert!(decoder(pieces(), &[5]).run().is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |more: Vec<u8>| encoder([pieces(), more].concat(), &["a"]).run().unwrap_err().to_string();
        let fails =
            |more: Vec<u8>, text: &str| assert!(error(more.clone()).contains(text), "{}", error(more));
        fails(piece("b", 0.0, 1), "the piece `b` is there twice");
        fails(piece("<0x41>", 0.0, 6), "is a byte, and byte_fallback is false");
        fails([piece("<0x41>", 0.0, 6), field(2, &number(35, 1))].concat(), "not all 256 bytes");
        fails(piece("?", 0.0, 2), "second piece for what is unknown");
        fails(piece("", 0.0, 1), "piece 5 has no text");
        fails(piece("c", f32::NAN, 1), "the score of piece 5 is not a number");
        fails(piece("c", 0.0, 7), "the type of piece 5 is 7");
        fails(vec![0x0a], "not a serialized ModelProto");
        fails(field(2, &number(3, 3)), "model_type is WORD");
        fails(field(2, &number(3, 9)), "its model_type is 9");
        fails([field(2, &number(3, 2)), piece("c", 0.0, 5)].concat(), "the piece `c` of type UNUSED");
        fails([field(2, &number(3, 2)), piece("c", 0.0, 3)].concat(), "the piece `c`, which no text has");
        fails(field(3, &field(2, &[9, 0, 0, 0, 1])), "precompiled_charsmap has 5 bytes, and its trie 9");
        let none = encoder(piece("a", 0.0, 1), &["a"]).run().unwrap_err().to_string();
        assert!(none.contains("no piece for what is unknown"), "{none}");
        let denormal = [pieces(), field(5, &field(2, b"x"))].concat();
        assert!(decoder(denormal, &[3]).run().unwrap_err().to_string().contains("denormalizer_spec"));
    }

    #[test]
    fn drawn_tokens_are_refused() {
        let of = |count: i64, constant: bool| {
            let case = crate::tests::case("ai.onnx.contrib", "SentencepieceTokenizer", 1).texts(
                &["n"],
                &[1],
                &["a"],
            );
            let case = if constant { case.constant(&[1], &[count]) } else { case.input(&[1], &[count]) };
            let case = case.constant(&[], &[0_f32]).constant(&[], &[false]).constant(&[], &[false]);
            case.constant(&[], &[false]).attr("model", bytes(pieces()))
        };
        for constant in [true, false] {
            of(1, constant).gives(0, &[1], &[3.]);
            for count in [2, -1] {
                let error = of(count, constant).run().unwrap_err().to_string();
                // An operand of these tests has no name.
                assert!(error.contains(if constant || count > 0 { "nbest_size" } else { "-1" }), "{error}");
            }
        }
    }
}
