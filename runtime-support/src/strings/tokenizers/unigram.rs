//! Unigram models of the `tokenizers` package, as onnxruntime-extensions reads them: texts are normalized, and cut into the pieces whose
//! scores have the greatest sum.

use crate::abi::Status;

use super::super::memory::List;
use super::super::table::State;
use super::Encoded;
use super::lexicon::Lexicon;
use super::normalizer::{SPACE, Trie};
use super::sentencepiece::width;
use super::tables::Tables;

/// Numbers of the tables.
mod number {
    /// The sum of [`super::flag`]s.
    pub(super) const FLAGS: usize = 0;
    pub(super) const UNKNOWN: usize = 1;
    pub(super) const START: usize = 2;
    pub(super) const END: usize = 3;
    /// Bits of the score of a character without a piece, the low ones first.
    pub(super) const UNKNOWN_SCORE: usize = 4;
    /// How many tokens stand behind each text, before its end; each follows.
    pub(super) const ENDINGS: usize = 6;
}

/// Parts of the tables.
mod part {
    pub(super) const PIECES: usize = 0;
    /// Of each number the score, 8 bytes.
    pub(super) const SCORES: usize = 1;
    /// Texts that stay as they are.
    pub(super) const ADDED: usize = 2;
    pub(super) const MAP: usize = 3;
}

pub mod flag {
    /// A token stands before texts.
    pub const START: u32 = 1;
    /// A token stands behind texts.
    pub const END: u32 = 2;
    /// One space of several, and none at the ends but the one before the text.
    pub const JOIN: u32 = 4;
    /// A space stands before texts.
    pub const DUMMY: u32 = 8;
    /// Unknown tokens are left out.
    pub const KNOWN: u32 = 16;
}

/// What tables are made of.
#[cfg(feature = "compile")]
pub struct Unigram<'t> {
    pub flags: u32,
    /// Numbers of three tokens: the unknown one, the one before each text, the one behind it.
    pub special: [u32; 3],
    /// Tokens behind each text, before its end.
    pub endings: &'t [u32],
    /// Pieces with their numbers and scores.
    pub pieces: &'t [(&'t [u8], u32, f64)],
    pub unknown_score: f64,
    pub added: &'t [&'t str],
    /// `precompiled_charsmap`.
    pub map: &'t [u8],
}

#[cfg(feature = "compile")]
impl Unigram<'_> {
    /// The tables, or how many bytes are too many for them.
    pub fn tables(&self) -> Result<Vec<u8>, usize> {
        let [unknown, start, end] = self.special;
        let bits = self.unknown_score.to_bits();
        let mut numbers = vec![self.flags, unknown, start, end, bits as u32, (bits >> 32) as u32];
        numbers.push(self.endings.len() as u32);
        numbers.extend(self.endings);
        let count = self.pieces.iter().map(|&(_, number, _)| number as usize + 1).max().unwrap_or(0);
        let mut scores = vec![0.0_f64; count];
        self.pieces.iter().for_each(|&(_, number, score)| scores[number as usize] = score);
        let scores: Vec<u8> = scores.into_iter().flat_map(f64::to_le_bytes).collect();
        super::tables::tables(
            &numbers,
            &[
                &super::lexicon::lexicon(self.pieces.iter().map(|&(text, number, _)| (text, number))),
                &scores,
                &super::lexicon::lexicon(self.added.iter().map(|text| (text.as_bytes(), 0))),
                self.map,
            ],
        )
    }
}

/// The last piece of the best way to a place.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    start: usize,
    token: u32,
}

struct Model<'t> {
    flags: u32,
    unknown: u32,
    unknown_score: f64,
    pieces: Lexicon<'t>,
    scores: &'t [[u8; 8]],
    added: Lexicon<'t>,
    map: Option<Trie<'t>>,
}

impl<'t> Model<'t> {
    fn of(tables: &Tables<'t>) -> Result<Model<'t>, Status> {
        let score = |at: usize| tables.number(number::UNKNOWN_SCORE + at).map(u64::from);
        Ok(Model {
            flags: tables.number(number::FLAGS)?,
            unknown: tables.number(number::UNKNOWN)?,
            unknown_score: f64::from_bits(score(1)? << 32 | score(0)?),
            pieces: Lexicon::of(tables.part(part::PIECES)?)?,
            scores: tables.part(part::SCORES)?.as_chunks().0,
            added: Lexicon::of(tables.part(part::ADDED)?)?,
            map: Trie::of(tables.part(part::MAP)?)?,
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Writes the normalized text, where each space is marked.
    fn normalize(&self, text: &[u8], to: &mut List<'_, u8>) -> Result<(), Status> {
        to.clear();
        let (mut rest, mut within, mut begun) = (text, false, false);
        while let [first, ..] = rest {
            let added = self.added.longest(rest).map(|(size, _)| size);
            let mapped = || self.map.and_then(|map| map.longest(rest));
            let (size, becomes) = match (added, added.is_none().then(mapped).flatten()) {
                (None, Some(mapped)) => mapped,
                (added, _) => {
                    let size = added.unwrap_or(width(*first)).min(rest.len());
                    (size, rest.get(..size).unwrap_or_default())
                }
            };
            for byte in becomes {
                let space = *byte == b' ';
                let begins = !space && !within;
                if begins && (self.has(flag::JOIN) || self.has(flag::DUMMY) && !begun) {
                    to.extend(SPACE)?;
                    begun = true;
                }
                within = !space;
                match space {
                    true if self.has(flag::JOIN) => {}
                    true => to.extend(SPACE)?,
                    false => to.push(*byte)?,
                }
            }
            rest = rest.get(size..).unwrap_or_default();
        }
        Ok(())
    }

    /// The best way through a text; of ways with equal sums the first one counts.
    fn cut(&self, text: &[u8], best: &mut List<'_, Best>) -> Result<(), Status> {
        best.clear();
        best.push(Best { score: 0.0, start: 0, token: self.unknown })?;
        for _ in 0..text.len() {
            best.push(Best { score: f64::MIN, start: 0, token: self.unknown })?;
        }
        let mut start = 0;
        while let rest @ [first, ..] = text.get(start..).unwrap_or_default() {
            let before = best.get(start).map_or(0.0, |best| best.score);
            let mut consider = |size: usize, score: f64, token: u32| {
                if let Some(best) = best.get_mut(start + size)
                    && before + score > best.score
                {
                    // Sums are kept in single precision.
                    *best = Best { score: f64::from((before + score) as f32), start, token };
                }
            };
            let letter = width(*first).min(rest.len());
            let (mut walk, mut is_piece) = (self.pieces.walk(), false);
            for (at, &byte) in rest.iter().enumerate() {
                if !walk.step(byte) {
                    break;
                }
                if let Some(token) = walk.end().and_then(|place| self.pieces.number(place)) {
                    let score =
                        self.scores.get(token as usize).map_or(0.0, |score| f64::from_le_bytes(*score));
                    consider(at + 1, score, token);
                    is_piece |= at + 1 == letter;
                }
            }
            if !is_piece {
                consider(letter, self.unknown_score, self.unknown);
            }
            start += letter;
        }
        Ok(())
    }
}

/// The tokens of each text. `BAD_TEXT` for one that is not UTF-8.
pub(super) fn encode<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let (model, memory) = (Model::of(tables)?, state.memory());
    let token = |at: usize| tables.number(at).map(i64::from);
    let (start, end) = (token(number::START)?, token(number::END)?);
    let endings = tables.number(number::ENDINGS)? as usize;
    let (mut normal, mut best) = (List::new(memory), List::new(memory));
    state.each(numbers, |&number| {
        let text = state.read(number)?;
        std::str::from_utf8(text).map_err(|_| Status::BAD_TEXT)?;
        model.normalize(text, &mut normal)?;
        if normal.is_empty() {
            return to.end_text();
        }
        model.cut(&normal, &mut best)?;
        if model.has(flag::START) {
            to.tokens.push(start)?;
        }
        let begin = to.tokens.len();
        let (mut place, mut was_unknown) = (normal.len(), false);
        while let Some(last) = best.get(place).filter(|_| place > 0) {
            let unknown = last.token == model.unknown;
            // Characters without a piece are one token where they follow each other.
            if !(unknown && (was_unknown || model.has(flag::KNOWN))) {
                to.tokens.push(i64::from(last.token))?;
            }
            (place, was_unknown) = (last.start.min(place - 1), unknown);
        }
        to.tokens.get_mut(begin..).unwrap_or_default().reverse();
        for at in 1..=endings {
            to.tokens.push(token(number::ENDINGS + at)?)?;
        }
        if model.has(flag::END) {
            to.tokens.push(end)?;
        }
        to.end_text()
    })
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::super::Table;
    use super::super::{Asked, result};
    use super::*;

    const PLAIN: Unigram<'static> = Unigram {
        flags: 0,
        special: [0, 1, 2],
        endings: &[],
        pieces: &[
            (b"<unk>", 0, 0.0),
            ("\u{2581}a".as_bytes(), 3, -2.0),
            (b"b", 4, -3.0),
            (b"bb", 5, -4.0),
            ("\u{2581}".as_bytes(), 6, -2.5),
            (b"\n", 7, 0.0),
        ],
        unknown_score: -14.0,
        added: &["\n"],
        map: &[],
    };

    fn tokens(tables: &[u8], text: &[u8]) -> Result<Vec<i64>, Status> {
        let table = Table::new(&[]);
        let (state, numbers, mut count) = (table.state(), [table.intern(text)], [0]);
        let asked = Asked::of(&numbers, tables);
        state
            .tokenize(&asked, result::COUNTS, &mut count, |tables, to| encode(state, &numbers, tables, to))?;
        let mut tokens = vec![0; count[0] as usize];
        state.tokenize(&asked, result::TOKENS, &mut tokens, |_, _| Err(Status::BAD_SIZE))?;
        Ok(tokens)
    }

    #[test]
    fn texts_are_normalized_and_cut() {
        let of =
            |flags: u32, text: &str| tokens(&Unigram { flags, ..PLAIN }.tables().unwrap(), text.as_bytes());
        assert_eq!(of(flag::JOIN | flag::DUMMY, "  abb  bbb ").unwrap(), [3, 5, 6, 4, 5]);
        assert_eq!(of(flag::DUMMY, " a").unwrap(), [6, 3]);
        assert_eq!(of(0, "bb a").unwrap(), [5, 3]);
        assert_eq!(of(0, "b\nb").unwrap(), [4, 7, 4]);
        assert_eq!(of(0, "b?\u{e9}!b").unwrap(), [4, 0, 4]);
        assert_eq!(of(flag::KNOWN, "b?\u{e9}!b").unwrap(), [4, 4]);
        assert_eq!(of(flag::START | flag::END, "b").unwrap(), [1, 4, 2]);
        assert_eq!(of(flag::START | flag::END, "").unwrap(), [0; 0]);
        let endings = Unigram { endings: &[8, 9], flags: flag::END, ..PLAIN };
        assert_eq!(tokens(&endings.tables().unwrap(), b"b").unwrap(), [4, 8, 9, 2]);
        assert_eq!(tokens(&PLAIN.tables().unwrap(), b"b\xff"), Err(Status::BAD_TEXT));
    }

    #[test]
    fn broken_tables_are_refused() {
        let whole = Unigram { map: &[0, 0, 0, 0, 0], ..PLAIN }.tables().unwrap();
        for length in 0..whole.len() {
            let found = tokens(&whole[..length], b"abb");
            assert!(
                found == Err(Status::BAD_SIZE) || length > whole.len() - 4,
                "{length} of {}",
                whole.len()
            );
        }
    }
}
