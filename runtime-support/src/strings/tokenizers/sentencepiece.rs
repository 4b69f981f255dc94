//! Models of sentencepiece: normalized texts, cut into the pieces whose scores have the greatest sum, or joined pair by pair from
//! characters, the pair with the greatest score first. As version 0.1.96 of the library has it, which onnxruntime-extensions builds in.

use crate::abi::Status;

use super::super::chunks::Draft;
use super::super::memory::List;
use super::super::table::State;
use super::Encoded;
use super::heap::{pop, push};
use super::lexicon::Lexicon;
use super::normalizer::{Normal, Normalizer, REPLACEMENT, SPACE, character};
use super::tables::{Tables, Texts, Words, word};

pub use super::normalizer::flag;

/// Numbers of the tables.
mod number {
    pub(super) const KIND: usize = 0;
    /// The sum of [`super::flag`]s.
    pub(super) const FLAGS: usize = 1;
    pub(super) const UNKNOWN: usize = 2;
    pub(super) const START: usize = 3;
    pub(super) const END: usize = 4;
    /// Bits of the score of a character without a piece.
    pub(super) const UNKNOWN_SCORE: usize = 5;
    /// Bits of the score that each byte of a symbol of the user has, who takes precedence.
    pub(super) const SYMBOL_SCORE: usize = 6;
}

/// Parts of the tables.
mod part {
    pub(super) const PIECES: usize = 0;
    /// Of each number the bits of its score, or with pairs its place among all scores from the greatest on.
    pub(super) const SCORES: usize = 1;
    /// Symbols of the user, with their numbers.
    pub(super) const SYMBOLS: usize = 2;
    /// Numbers of what stands for the bytes of characters without a piece, or nothing.
    pub(super) const BYTES: usize = 3;
    pub(super) const MAP: usize = 4;
}

pub mod kind {
    /// Pieces whose scores have the greatest sum.
    pub const SUMS: u32 = 0;
    /// Pairs that are joined.
    pub const PAIRS: u32 = 1;
    /// Characters.
    pub const CHARACTERS: u32 = 2;
}

/// What a call asks for, one byte each: whether it is so.
pub mod option {
    pub const START: usize = 0;
    pub const END: usize = 1;
    pub const REVERSE: usize = 2;
    /// Numbers are those of fairseq's vocabularies.
    pub const FAIRSEQ: usize = 3;
    pub const COUNT: usize = 4;
}

/// What tables are made of.
#[cfg(feature = "compile")]
pub struct Sentencepiece<'t> {
    pub kind: u32,
    pub flags: u32,
    /// Numbers of three tokens: the unknown one, the one before each text, the one behind it. -1 where the model has none.
    pub special: [i32; 3],
    /// Pieces with their numbers and scores.
    pub pieces: &'t [(&'t [u8], u32, f32)],
    pub symbols: &'t [(&'t [u8], u32)],
    /// The score of a character without a piece, and that of each byte of a symbol.
    pub scores: [f32; 2],
    /// The numbers of the 256 bytes, or none.
    pub bytes: &'t [u32],
    /// `precompiled_charsmap`.
    pub map: &'t [u8],
}

#[cfg(feature = "compile")]
impl Sentencepiece<'_> {
    /// The tables, or how many bytes are too many for them.
    pub fn tables(&self) -> Result<Vec<u8>, usize> {
        let [unknown, start, end] = self.special.map(|token| token as u32);
        let [unknown_score, symbol_score] = self.scores.map(f32::to_bits);
        let count = self.pieces.iter().map(|&(_, number, _)| number as usize + 1).max().unwrap_or(0);
        let mut greatest: Vec<f32> = self.pieces.iter().map(|&(_, _, score)| score).collect();
        greatest.sort_by(|a, b| b.total_cmp(a));
        greatest.dedup();
        let mut scores = vec![0; count];
        for &(_, number, score) in self.pieces {
            scores[number as usize] = match self.kind {
                kind::PAIRS => greatest.partition_point(|&greater| greater > score) as u32,
                _ => score.to_bits(),
            };
        }
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        super::tables::tables(
            &[self.kind, self.flags, unknown, start, end, unknown_score, symbol_score],
            &[
                &super::lexicon::lexicon(self.pieces.iter().map(|&(text, number, _)| (text, number))),
                &words(&scores),
                &super::lexicon::lexicon(self.symbols.iter().copied()),
                &words(self.bytes),
                self.map,
            ],
        )
    }
}

/// Bytes of the character that begins with this one, where nothing is checked.
pub(super) fn width(byte: u8) -> usize {
    match byte {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}

/// The last piece of the best way to a place.
#[derive(Clone, Copy, Default)]
struct Best {
    score: f32,
    /// Where it begins, plus one; 0 where no way is known.
    start: u32,
    token: u32,
}

/// A part of a text that may be joined with its neighbours.
#[derive(Clone, Copy, Default)]
struct Part {
    start: u32,
    /// 0: it is a part of another.
    size: u32,
    /// The places of the parts before and behind it, plus one; 0 is none.
    before: u32,
    behind: u32,
    /// A symbol of the user, which is joined with nothing.
    symbol: bool,
}

/// Two parts that can be joined, in the order in which they are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    rank: u32,
    left: u32,
    right: u32,
    size: u32,
}

/// Memory that is used again and again.
struct Scratch<'m> {
    normal: Normal<'m>,
    best: List<'m, Best>,
    parts: List<'m, Part>,
    pairs: List<'m, Pair>,
    /// Where pieces end, and their numbers.
    found: List<'m, (u32, u32)>,
}

struct Model<'t> {
    kind: u32,
    normalizer: Normalizer<'t>,
    unknown: u32,
    around: [i64; 2],
    unknown_score: f32,
    symbol_score: f32,
    pieces: Lexicon<'t>,
    scores: Words<'t>,
    symbols: Lexicon<'t>,
    bytes: Words<'t>,
}

impl<'t> Model<'t> {
    fn of(tables: &Tables<'t>) -> Result<Model<'t>, Status> {
        let token = |at: usize| tables.number(at).map(|token| i64::from(token as i32));
        let symbols = Lexicon::of(tables.part(part::SYMBOLS)?)?;
        Ok(Model {
            kind: tables.number(number::KIND)?,
            normalizer: Normalizer::of(tables.number(number::FLAGS)?, tables.part(part::MAP)?, symbols)?,
            unknown: tables.number(number::UNKNOWN)?,
            around: [token(number::START)?, token(number::END)?],
            unknown_score: f32::from_bits(tables.number(number::UNKNOWN_SCORE)?),
            symbol_score: f32::from_bits(tables.number(number::SYMBOL_SCORE)?),
            pieces: Lexicon::of(tables.part(part::PIECES)?)?,
            scores: tables.part(part::SCORES)?.as_chunks().0,
            symbols,
            bytes: tables.part(part::BYTES)?.as_chunks().0,
        })
    }

    /// Cuts a text into the pieces whose scores have the greatest sum; of equal sums the first one counts.
    fn cut(&self, text: &[u8], scratch: &mut Scratch<'_>) -> Result<(), Status> {
        let best = &mut scratch.best;
        best.clear();
        for _ in 0..=text.len() {
            best.push(Best::default())?;
        }
        let mut start = 0;
        while let rest @ [first, ..] = text.get(start..).unwrap_or_default() {
            let before = best.get(start).map_or(0.0, |best| best.score);
            // Sums are rounded where they are kept, and compared before that.
            let mut consider = |size: usize, score: f64, token: u32| {
                if let Some(best) = best.get_mut(start + size)
                    && (best.start == 0 || score > f64::from(best.score))
                {
                    *best = Best { score: score as f32, start: start as u32 + 1, token };
                }
            };
            let mut walk = self.pieces.walk();
            let letter = width(*first).min(rest.len());
            let mut is_piece = false;
            for (at, &byte) in rest.iter().enumerate() {
                if !walk.step(byte) {
                    break;
                }
                let Some(token) = walk.end().and_then(|place| self.pieces.number(place)) else { continue };
                let size = at + 1;
                let score = match self.symbols.find(rest.get(..size).unwrap_or_default()) {
                    Some(_) => f64::from(size as f32 * self.symbol_score) - 0.1,
                    None => f64::from(f32::from_bits(word(self.scores, token as usize).unwrap_or(0))),
                };
                consider(size, score + f64::from(before), token);
                is_piece |= size == letter;
            }
            if !is_piece {
                consider(letter, f64::from(self.unknown_score + before), self.unknown);
            }
            start += letter;
        }
        let mut end = text.len();
        scratch.found.clear();
        while let Some(best) = best.get(end).filter(|best| best.start != 0) {
            scratch.found.push((end as u32, best.token))?;
            end = (best.start as usize - 1).min(end.saturating_sub(1));
        }
        scratch.found.reverse();
        Ok(())
    }

    /// Joins characters to pieces, if pairs are joined at all: again and again the pair with the greatest score, of several the first.
    fn join(&self, text: &[u8], scratch: &mut Scratch<'_>) -> Result<(), Status> {
        let parts = &mut scratch.parts;
        parts.clear();
        let mut start = 0;
        while let rest @ [first, ..] = text.get(start..).unwrap_or_default() {
            let symbol = self.symbols.longest(rest).map(|(size, _)| size);
            let size = symbol.unwrap_or(width(*first)).min(rest.len());
            let (before, start_of) = (parts.len() as u32, start as u32);
            start += size;
            let behind = if start < text.len() { before + 2 } else { 0 };
            let (size, symbol) = (size as u32, symbol.is_some());
            parts.push(Part { start: start_of, size, before, behind, symbol })?;
        }
        scratch.pairs.clear();
        if self.kind == kind::PAIRS {
            for at in 0..scratch.parts.len() as u32 {
                self.consider(text, at, scratch)?;
            }
        }
        while let Some(&pair) = scratch.pairs.first() {
            pop(&mut scratch.pairs);
            let part = |at: u32| scratch.parts.get(at as usize).copied().unwrap_or_default();
            let (left, right) = (part(pair.left), part(pair.right));
            if left.size == 0 || right.size == 0 || left.size + right.size != pair.size {
                continue;
            }
            let joined = Part { size: pair.size, behind: right.behind, ..left };
            for (at, value) in [(pair.left, joined), (pair.right, Part { size: 0, ..right })] {
                if let Some(part) = scratch.parts.get_mut(at as usize) {
                    *part = value;
                }
            }
            if let Some(next) = right.behind.checked_sub(1)
                && let Some(next) = scratch.parts.get_mut(next as usize)
            {
                next.before = pair.left + 1;
            }
            if let Some(before) = joined.before.checked_sub(1) {
                self.consider(text, before, scratch)?;
            }
            self.consider(text, pair.left, scratch)?;
        }
        scratch.found.clear();
        let mut place = 1;
        while let Some(part) = (place as usize).checked_sub(1).and_then(|at| scratch.parts.get(at)) {
            let (from, to) = (part.start as usize, (part.start + part.size) as usize);
            let token = self.pieces.find(text.get(from..to).unwrap_or_default()).unwrap_or(self.unknown);
            scratch.found.push((to as u32, token))?;
            place = part.behind;
        }
        Ok(())
    }

    /// Notes the part at a place and the one behind it, if they can be joined.
    fn consider(&self, text: &[u8], left: u32, scratch: &mut Scratch<'_>) -> Result<(), Status> {
        let pair = || {
            let first = scratch.parts.get(left as usize)?;
            let right = first.behind.checked_sub(1)?;
            let second = scratch.parts.get(right as usize)?;
            if first.symbol || second.symbol {
                return None;
            }
            let size = first.size + second.size;
            let token = self.pieces.find(text.get(first.start as usize..(first.start + size) as usize)?)?;
            Some(Pair { rank: word(self.scores, token as usize)?, left, right, size })
        };
        match pair() {
            Some(pair) => push(&mut scratch.pairs, pair),
            None => Ok(()),
        }
    }

    /// Appends the tokens of the text that was cut, and where they lie in the original.
    fn tokens(&self, scratch: &Scratch<'_>, to: &mut Encoded<'_>) -> Result<(), Status> {
        let origin = |at: u32| scratch.normal.origins.get(at as usize).map_or(0, |&origin| i64::from(origin));
        let (mut start, mut was_unknown) = (0, false);
        for &(end, token) in &*scratch.found {
            let unknown = token == self.unknown;
            let place = [origin(start), origin(end)];
            if unknown && !self.bytes.is_empty() {
                let bytes = scratch.normal.text.get(start as usize..end as usize).unwrap_or_default();
                for (at, &byte) in bytes.iter().enumerate() {
                    let token = word(self.bytes, usize::from(byte)).ok_or(Status::BAD_SIZE)?;
                    to.tokens.push(i64::from(token))?;
                    to.offsets.push(if at + 1 == bytes.len() { place } else { [place[0]; 2] })?;
                }
            } else if unknown && was_unknown {
                // Characters without a piece are one token where they follow each other.
                if let Some(last) = to.offsets.last_mut() {
                    last[1] = place[1];
                }
            } else {
                to.tokens.push(i64::from(token))?;
                to.offsets.push(place)?;
            }
            (start, was_unknown) = (end, unknown);
        }
        Ok(())
    }
}

/// The number in fairseq's vocabulary, which has `<s>`, `<pad>`, `</s>` and `<unk>` first.
fn to_fairseq(token: i64) -> i64 {
    match token {
        0 => 3,
        1 => 0,
        2 => 2,
        _ => token + 1,
    }
}

fn from_fairseq(token: i64) -> i64 {
    match token {
        3 => 0,
        0 => 1,
        2 => 2,
        _ => token.wrapping_sub(1),
    }
}

pub(super) fn encode<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    options: [bool; option::COUNT],
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let (model, memory) = (Model::of(tables)?, state.memory());
    let mut scratch = Scratch {
        normal: Normal::new(memory),
        best: List::new(memory),
        parts: List::new(memory),
        pairs: List::new(memory),
        found: List::new(memory),
    };
    let [start, end, reverse, fairseq] = options;
    state.each(numbers, |&number| {
        let original = state.read(number)?;
        model.normalizer.normalize(original, &mut scratch.normal)?;
        let text = std::mem::replace(&mut scratch.normal.text, List::new(memory));
        match model.kind {
            kind::SUMS => model.cut(&text, &mut scratch)?,
            _ => model.join(&text, &mut scratch)?,
        }
        scratch.normal.text = text;
        let begin = to.tokens.len();
        let (first, last) = ([0; 2], [original.len() as i64; 2]);
        let special = |to: &mut Encoded<'_>, is: bool, at: usize, place: [i64; 2]| match model.around.get(at)
        {
            Some(&token) if is => to.tokens.push(token).and_then(|()| to.offsets.push(place)),
            _ => Ok(()),
        };
        // What is reversed has its ends in their places.
        if reverse {
            special(to, end, 1, last)?;
        } else {
            special(to, start, 0, first)?;
        }
        let behind = to.tokens.len();
        model.tokens(&scratch, to)?;
        if reverse {
            to.tokens.get_mut(behind..).unwrap_or_default().reverse();
            to.offsets.get_mut(behind..).unwrap_or_default().reverse();
            special(to, start, 0, first)?;
        } else {
            special(to, end, 1, last)?;
            let own = to.tokens.get_mut(begin..).unwrap_or_default();
            own.iter_mut().filter(|_| fairseq).for_each(|token| *token = to_fairseq(*token));
        }
        to.end_text()
    })
}

/// Parts of the tables of a decoder.
mod text_part {
    /// What stands for the token of unknown characters.
    pub(super) const UNKNOWN: usize = 0;
    pub(super) const PIECES: usize = 1;
    /// Of each piece what it is, one byte.
    pub(super) const KINDS: usize = 2;
}

/// What a piece is.
pub mod piece {
    pub const TEXT: u8 = 0;
    /// Not a part of texts.
    pub const CONTROL: u8 = 1;
    pub const UNKNOWN: u8 = 2;
    /// A byte, whose text is `<0x41>`.
    pub const BYTE: u8 = 3;
}

/// Tables of a decoder: whether a space at the begin of texts goes, what stands for unknown characters, the pieces and what they are. Or
/// how many bytes are too many.
#[cfg(feature = "compile")]
pub fn texts_tables(trims: bool, unknown: &[u8], pieces: &[&[u8]], kinds: &[u8]) -> Result<Vec<u8>, usize> {
    let pieces = super::tables::texts(pieces.iter().copied());
    super::tables::tables(&[u32::from(trims)], &[unknown, &pieces, kinds])
}

/// The byte that `<0x4A>` is.
fn byte_of(piece: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', digits @ .., b'>'] = piece else { return None };
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Appends bytes as text. One that begins no character is marked.
fn push_bytes(bytes: &mut List<'_, u8>, draft: &mut Draft<'_>) -> Result<(), Status> {
    let mut rest: &[u8] = bytes;
    while !rest.is_empty() {
        let size = character(rest);
        let (letter, behind) = rest.split_at_checked(size.unwrap_or(1)).unwrap_or_default();
        draft.push(if size.is_some() { letter } else { REPLACEMENT })?;
        rest = behind;
    }
    bytes.clear();
    Ok(())
}

/// The text of tokens. `BAD_TEXT` for one that the vocabulary lacks.
pub(super) fn text_of(
    state: &State,
    tokens: &[i64],
    tables: &Tables<'_>,
    fairseq: bool,
) -> Result<i64, Status> {
    let trims = tables.number(0)? != 0;
    let unknown = tables.part(text_part::UNKNOWN)?;
    let pieces = Texts::of(tables.part(text_part::PIECES)?)?;
    let kinds = tables.part(text_part::KINDS)?;
    let mut draft = state.draft();
    let mut bytes = List::new(state.memory());
    state.each(tokens, |&token| {
        let token = if fairseq { from_fairseq(token) } else { token };
        let place = usize::try_from(token).ok();
        let text = place.and_then(|place| pieces.text(place)).ok_or(Status::BAD_TEXT)?;
        let kind = place.and_then(|place| kinds.get(place).copied()).ok_or(Status::BAD_SIZE)?;
        if kind == piece::BYTE {
            return bytes.push(byte_of(text).ok_or(Status::BAD_SIZE)?);
        }
        push_bytes(&mut bytes, &mut draft)?;
        match kind {
            piece::CONTROL => Ok(()),
            piece::UNKNOWN => draft.push(unknown),
            _ => {
                let begins = trims && draft.written().is_empty();
                let mut rest = if begins { text.strip_prefix(SPACE).unwrap_or(text) } else { text };
                while let [first, behind @ ..] = rest {
                    let space = rest.strip_prefix(SPACE);
                    draft.push(if space.is_some() { b" " } else { std::slice::from_ref(first) })?;
                    rest = space.unwrap_or(behind);
                }
                Ok(())
            }
        }
    })?;
    push_bytes(&mut bytes, &mut draft)?;
    state.finish(draft)
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::super::Table;
    use super::super::{Asked, result};
    use super::*;

    const PLAIN: Sentencepiece<'static> = Sentencepiece {
        kind: kind::SUMS,
        flags: 0,
        special: [0, 1, 2],
        pieces: &[],
        symbols: &[],
        scores: [-20.0, 0.0],
        bytes: &[],
        map: &[],
    };

    /// Tokens of a text, and where they are.
    fn run(tables: &[u8], text: &[u8], options: [bool; option::COUNT]) -> (Vec<i64>, Vec<i64>) {
        let table = Table::new(&[]);
        let (state, numbers) = (table.state(), [table.intern(text)]);
        let asked = Asked::of(&numbers, tables);
        let call = |what: i64, out: &mut [i64]| {
            state
                .tokenize(&asked, what, out, |tables, to| encode(state, &numbers, tables, options, to))
                .unwrap();
        };
        let mut count = [0];
        call(result::COUNTS, &mut count);
        let (mut tokens, mut places) = (vec![0; count[0] as usize], vec![0; 2 * count[0] as usize]);
        call(result::TOKENS, &mut tokens);
        call(result::OFFSETS, &mut places);
        (tokens, places)
    }

    fn tokens(tables: &[u8], text: &str) -> Vec<i64> {
        run(tables, text.as_bytes(), [false; option::COUNT]).0
    }

    fn drawn(random: &mut fastrand::Rng, most: usize) -> String {
        (0..random.usize(1..most)).map(|_| random.choice(['a', 'b', 'c']).unwrap()).collect()
    }

    /// Vocabularies of whole scores, whose sums are exact: no way has a greater sum than the one that is taken.
    #[test]
    fn sums_are_the_greatest() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let mut words: Vec<String> = ["a", "b"].map(String::from).to_vec();
            for _ in 0..random.usize(1..9) {
                let word = drawn(&mut random, 5);
                if !words.contains(&word) && word != "c" {
                    words.push(word);
                }
            }
            let pieces: Vec<(&[u8], u32, f32)> = words
                .iter()
                .zip(1..)
                .map(|(word, number)| (word.as_bytes(), number, -(random.usize(0..9) as f32)))
                .collect();
            let tables = Sentencepiece { pieces: &pieces, ..PLAIN }.tables().unwrap();
            for _ in 0..20 {
                let text = drawn(&mut random, 14);
                // The greatest sum of each beginning.
                let mut best = vec![f32::NEG_INFINITY; text.len() + 1];
                best[0] = 0.0;
                for start in 0..text.len() {
                    let letter = (&text.as_bytes()[start..=start], 0, -20.0);
                    for (piece, _, score) in pieces.iter().copied().chain([letter]) {
                        if text.as_bytes()[start..].starts_with(piece) {
                            let end = start + piece.len();
                            best[end] = best[end].max(best[start] + score);
                        }
                    }
                }
                let (found, places) = run(&tables, text.as_bytes(), [false; option::COUNT]);
                let (mut sum, mut spelled) = (0.0, String::new());
                for (&token, place) in found.iter().zip(places.as_chunks::<2>().0) {
                    let part = &text[place[0] as usize..place[1] as usize];
                    spelled += part;
                    sum += match (token as usize).checked_sub(1) {
                        Some(at) => pieces[at].2,
                        None => -20.0 * part.len() as f32,
                    };
                    assert!(token == 0 || part == words[token as usize - 1]);
                }
                assert_eq!((spelled, sum), (text.clone(), best[text.len()]), "{found:?} of {words:?}");
            }
        }
    }

    /// Pairs by the definition: again and again the pair whose text has the greatest score, of several the first.
    #[test]
    fn pairs_are_joined_as_defined() {
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..300 {
            let mut words: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
            for _ in 0..random.usize(1..12) {
                let joined = words[random.usize(..words.len())].clone() + &words[random.usize(..words.len())];
                if !words.contains(&joined) {
                    words.push(joined);
                }
            }
            let scores: Vec<f32> = words.iter().map(|_| -(random.usize(0..7) as f32)).collect();
            let pieces: Vec<(&[u8], u32, f32)> = words
                .iter()
                .zip(&scores)
                .zip(3..)
                .map(|((word, &score), at)| (word.as_bytes(), at, score))
                .collect();
            let tables = Sentencepiece { kind: kind::PAIRS, pieces: &pieces, ..PLAIN }.tables().unwrap();
            for _ in 0..20 {
                let text = drawn(&mut random, 30);
                let mut parts: Vec<String> = text.chars().map(String::from).collect();
                let number = |part: &String| words.iter().position(|word| word == part);
                loop {
                    let pairs = (0..parts.len().saturating_sub(1))
                        .filter_map(|at| Some((number(&(parts[at].clone() + &parts[at + 1]))?, at)));
                    let Some((_, at)) = pairs.min_by_key(|&(pair, at)| (-scores[pair] as i64, at)) else {
                        break;
                    };
                    let right = parts.remove(at + 1);
                    parts[at] += &right;
                }
                let wanted: Vec<i64> = parts.iter().map(|part| number(part).unwrap() as i64 + 3).collect();
                assert_eq!(tokens(&tables, &text), wanted, "{text} by {words:?} with {scores:?}");
            }
        }
    }

    /// A text takes time by its length, not the square of it.
    #[test]
    fn a_long_text_ends() {
        let pieces: [(&[u8], u32, f32); 3] = [(b"a", 3, -3.0), (b"aa", 4, -1.0), (b"aaaa", 5, -2.0)];
        for kind in [kind::PAIRS, kind::SUMS] {
            let tables = Sentencepiece { kind, pieces: &pieces, ..PLAIN }.tables().unwrap();
            assert_eq!(tokens(&tables, &"a".repeat(200_001)).len(), 50_001, "{kind}");
        }
    }

    #[test]
    fn symbols_bytes_and_what_is_unknown() {
        let pieces: [(&[u8], u32, f32); 4] =
            [(b"a", 3, -1.0), (b"b", 4, -1.0), (b"ab", 5, -5.0), (b"ba", 6, -9.0)];
        let model = Sentencepiece { pieces: &pieces, symbols: &[(b"ba", 6)], ..PLAIN };
        assert_eq!(tokens(&model.tables().unwrap(), "abab"), [3, 6, 4]);
        assert_eq!(tokens(&model.tables().unwrap(), "a??\u{e9}b"), [3, 0, 4]);
        let numbers: Vec<u32> = (100..356).collect();
        let bytes = Sentencepiece { bytes: &numbers, ..model };
        assert_eq!(tokens(&bytes.tables().unwrap(), "a\u{e9}b"), [3, 100 + 0xc3, 100 + 0xa9, 4]);
        let pairs = Sentencepiece { kind: kind::PAIRS, ..bytes };
        assert_eq!(tokens(&pairs.tables().unwrap(), "abab?"), [3, 6, 4, 163]);
        let letters = Sentencepiece { kind: kind::CHARACTERS, ..pairs };
        assert_eq!(tokens(&letters.tables().unwrap(), "abba"), [3, 4, 6]);
    }

    #[test]
    fn options_of_a_call() {
        let pieces: [(&[u8], u32, f32); 2] = [("\u{2581}a".as_bytes(), 3, -1.0), (b"b", 4, -1.0)];
        let flags = flag::DUMMY | flag::JOIN | flag::ESCAPE;
        let tables = Sentencepiece { flags, pieces: &pieces, ..PLAIN }.tables().unwrap();
        let of = |options| run(&tables, b"  ab ?", options);
        assert_eq!(of([true, true, false, false]).0, [1, 3, 4, 0, 2]);
        // With the byte where each begins; the space before the unknown sign is unknown as well.
        assert_eq!(of([true, true, false, false]).1, [0, 0, 2, 3, 3, 4, 4, 6, 6, 6]);
        assert_eq!(of([true, true, true, true]).0, [2, 0, 4, 3, 1]);
        assert_eq!(of([true, true, false, true]).0, [0, 4, 5, 3, 2]);
        // Without a beginning, -1 is in its place.
        let tables = Sentencepiece { special: [0, -1, 2], pieces: &pieces, ..PLAIN }.tables().unwrap();
        assert_eq!(run(&tables, b"", [true, false, false, false]).0, [-1]);
    }

    /// What is kept of a call serves none with other options.
    #[test]
    fn calls_with_other_options() {
        let tables = Sentencepiece { pieces: &[(b"a", 3, -1.0)], ..PLAIN }.tables().unwrap();
        let table = Table::new(&[b"a"]);
        let state = table.state();
        let call = |what: i64, size: usize, options: usize| {
            let mut out = vec![0; size];
            let asked = Asked { options, ..Asked::of(&[0], &tables) };
            let start = [options == 1, false, false, false];
            let found =
                state.tokenize(&asked, what, &mut out, |tables, to| encode(state, &[0], tables, start, to));
            found.map(|()| out)
        };
        assert_eq!(call(result::COUNTS, 1, 0), Ok(vec![1]));
        assert_eq!(call(result::TOKENS, 2, 1), Ok(vec![1, 3]));
        assert_eq!(call(result::TOKENS, 1, 0), Ok(vec![3]));
    }

    #[test]
    fn texts_of_tokens() {
        let pieces: [&[u8]; 6] =
            [b"<unk>", b"<s>", "\u{2581}a\u{2581}".as_bytes(), b"<0xC3>", b"<0xA9>", b"b"];
        let kinds = [piece::UNKNOWN, piece::CONTROL, piece::TEXT, piece::BYTE, piece::BYTE, piece::TEXT];
        let of = |trims: bool, fairseq: bool, tokens: &[i64]| {
            let tables = texts_tables(trims, b"?", &pieces, &kinds).unwrap();
            let table = Table::new(&[]);
            let number = text_of(table.state(), tokens, &Tables::of(&tables).unwrap(), fairseq)?;
            Ok::<_, Status>(String::from_utf8(table.text(number).unwrap().to_vec()).unwrap())
        };
        assert_eq!(of(true, false, &[1, 2, 2, 5]).unwrap(), "a  a b");
        assert_eq!(of(false, false, &[2, 0]).unwrap(), " a ?");
        assert_eq!(of(true, false, &[3, 4, 4, 5, 3]).unwrap(), "\u{e9}\u{fffd}b\u{fffd}");
        assert_eq!(of(true, true, &[0, 3, 6]).unwrap(), "?b");
        assert_eq!(of(true, false, &[]).unwrap(), "");
        for token in [-1, 6, i64::MIN] {
            assert_eq!(of(true, false, &[2, token]), Err(Status::BAD_TEXT));
        }
        for token in [-1, 7, i64::MIN] {
            assert_eq!(of(true, true, &[2, token]), Err(Status::BAD_TEXT));
        }
    }

    #[test]
    fn broken_tables_are_refused_or_read_within() {
        let pieces: [(&[u8], u32, f32); 3] = [(b"a", 3, -1.0), (b"b", 4, -1.0), (b"ab", 5, -0.5)];
        let numbers: Vec<u32> = (100..356).collect();
        for kind in [kind::SUMS, kind::PAIRS] {
            let model =
                Sentencepiece { kind, pieces: &pieces, bytes: &numbers, map: &[0, 0, 0, 0, 0], ..PLAIN };
            let whole = model.tables().unwrap();
            let table = Table::new(&["ab\u{e9}a".as_bytes()]);
            let state = table.state();
            for length in 0..whole.len() {
                let asked = Asked::of(&[0], &whole[..length]);
                let found = state.tokenize(&asked, result::COUNTS, &mut [0], |tables, to| {
                    encode(state, &[0], tables, [true; option::COUNT], to)
                });
                // All but the padding of the map, which comes last.
                assert!(
                    found == Err(Status::BAD_SIZE) || length > whole.len() - 4,
                    "{length} of {}",
                    whole.len()
                );
            }
        }
    }
}
