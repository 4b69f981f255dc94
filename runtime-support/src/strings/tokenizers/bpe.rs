//! Pairs of bytes: words of GPT-2's kind, whose bytes are joined pair by pair in the order that a list of merges gives.

use crate::abi::Status;

use super::super::memory::List;
use super::super::table::State;
use super::Encoded;
use super::classes::{Class, class};
use super::heap::{pop, push};
use super::letters::{decode, each_byte, encode as encode_letter};
use super::lexicon::Lexicon;
use super::tables::{Tables, Texts, Words, word};
use super::words::word_length;

/// Numbers of the tables.
mod number {
    /// The sum of [`super::flag`]s.
    pub(super) const FLAGS: usize = 0;
    /// The most tokens of a text, but for the one behind it.
    pub(super) const MOST: usize = 1;
    pub(super) const START: usize = 2;
    pub(super) const END: usize = 3;
    /// What fills up rows.
    pub(super) const PADDING: usize = 4;
}

/// Parts of the tables.
mod part {
    /// The vocabulary, as bytes.
    pub(super) const VOCABULARY: usize = 0;
    /// The number of each byte, and with [`super::flag::CLIP`] of each at the end of a word.
    pub(super) const BYTES: usize = 1;
    /// Merges, 4 words each, in the order of the first two: left, right, how many come before it, the result.
    pub(super) const MERGES: usize = 2;
    /// Texts that are found wherever they are, and their tokens.
    pub(super) const SPECIAL: usize = 3;
    pub(super) const SPECIAL_TOKENS: usize = 4;
    /// Texts that are found before those, with their tokens.
    pub(super) const ADDED: usize = 5;
    /// Those of them behind which spaces go.
    pub(super) const STRIPPED: usize = 6;
    /// The alternatives of words, one byte each.
    pub(super) const WORDS: usize = 7;
}

pub mod flag {
    /// Texts are as CLIP has them: in small letters, without spaces on either side, and words end with a mark.
    pub const CLIP: u32 = 1;
    /// A token stands before texts.
    pub const START: u32 = 2;
    /// A token stands behind texts.
    pub const END: u32 = 4;
    /// The vocabulary has texts with a mark for spaces, and bytes in hexadecimal, as models of sentencepiece have.
    pub const TEXTS: u32 = 8;
    /// A space stands before such texts.
    pub const DUMMY: u32 = 16;
    /// They are cut into letters, not words.
    pub const LETTERS: u32 = 32;
}

/// A token without a number.
#[cfg(feature = "compile")]
const NONE: u32 = u32::MAX;

/// What words end with that CLIP has.
const WORD_END: &[u8] = b"</w>";

/// What tables are made of.
#[cfg(feature = "compile")]
pub struct Bpe<'t> {
    pub flags: u32,
    pub most: u32,
    /// Numbers of what stands before texts and behind them, and of what fills up rows.
    pub around: [u32; 3],
    pub vocabulary: &'t [(&'t str, u32)],
    /// Pairs in the order in which they are joined.
    pub merges: &'t [(&'t str, &'t str)],
    pub special: &'t [(&'t str, u32)],
    pub added: &'t [(&'t str, u32)],
    /// Those added behind which spaces go.
    pub stripped: &'t [&'t str],
    /// How texts are cut into words, as [`super::words::alternatives`] has it.
    pub words: &'t [u8],
}

/// The character that stands for a byte in vocabularies.
#[cfg(feature = "compile")]
pub fn letter_of(byte: u8) -> char {
    let shown = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let before = (0..byte).filter(|&byte| !shown(byte)).count() as u32;
    let code = if shown(byte) { u32::from(byte) } else { 256 + before };
    char::from_u32(code).unwrap_or_default()
}

#[cfg(feature = "compile")]
impl Bpe<'_> {
    /// The tables, or how many bytes are too many for them.
    pub fn tables(&self) -> Result<Vec<u8>, usize> {
        use std::collections::HashMap;

        let texts = self.flags & flag::TEXTS != 0;
        let ascii: Vec<String> = (0..0x80).map(|byte| char::from(byte).to_string()).collect();
        let mut numbers: HashMap<&str, u32> = self.vocabulary.iter().copied().collect();
        // In a vocabulary of texts letters that it lacks are bytes.
        let hexadecimal = |numbers: &HashMap<&str, u32>, byte: usize| {
            numbers.get(format!("<0x{byte:02X}>").as_str()).copied()
        };
        for (byte, letter) in ascii.iter().enumerate().filter(|_| texts) {
            if let (None, Some(number)) = (numbers.get(letter.as_str()), hexadecimal(&numbers, byte)) {
                numbers.insert(letter, number);
            }
        }
        let number = |text: &str| numbers.get(text).copied().unwrap_or(NONE);
        let bytes: HashMap<char, u8> = (0..=255).map(|byte| (letter_of(byte), byte)).collect();
        // What has other characters is never looked for.
        let raw = |text: &str| match texts {
            true => Some(text.as_bytes().to_vec()),
            false => text.chars().map(|letter| bytes.get(&letter).copied()).collect::<Option<Vec<u8>>>(),
        };
        let entries: Vec<(Vec<u8>, u32)> =
            numbers.iter().filter_map(|(text, number)| Some((raw(text)?, *number))).collect();
        let vocabulary = super::lexicon::lexicon(entries.iter().map(|(text, number)| (&**text, *number)));
        let alone = (0..=255_u8).map(|byte| match (texts, ascii.get(usize::from(byte))) {
            (false, _) => number(&letter_of(byte).to_string()),
            (true, Some(letter)) => number(letter),
            (true, None) => hexadecimal(&numbers, usize::from(byte)).unwrap_or(NONE),
        });
        let end = String::from_utf8_lossy(WORD_END);
        let last = (0..=255).map(|byte| number(&format!("{}{end}", letter_of(byte))));
        let clip = self.flags & flag::CLIP != 0;
        let letters = words(alone.chain(last.filter(|_| clip)));
        // Of equal pairs the last is one.
        let merges: HashMap<(u32, u32), (u32, u32)> = (0..)
            .zip(self.merges)
            .map(|(at, &(left, right))| {
                ((number(left), number(right)), (at, number(&format!("{left}{right}"))))
            })
            .collect();
        let mut merges: Vec<_> = merges.into_iter().collect();
        merges.sort_unstable();
        let merges =
            words(merges.into_iter().flat_map(|((left, right), (at, merged))| [left, right, at, merged]));
        let special = super::tables::texts(self.special.iter().map(|(text, _)| text.as_bytes()));
        let special_tokens = words(self.special.iter().map(|&(_, token)| token));
        let added = super::lexicon::lexicon(self.added.iter().map(|&(text, token)| (text.as_bytes(), token)));
        let stripped = super::lexicon::lexicon(self.stripped.iter().map(|text| (text.as_bytes(), 0)));
        let [start, end, padding] = self.around;
        super::tables::tables(
            &[self.flags, self.most, start, end, padding],
            &[&vocabulary, &letters, &merges, &special, &special_tokens, &added, &stripped, self.words],
        )
    }
}

#[cfg(feature = "compile")]
fn words(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.flat_map(u32::to_le_bytes).collect()
}

/// A token within a word: its number, and how many bytes of the word's spelling in the vocabulary it takes.
#[derive(Clone, Copy, Default)]
struct Piece {
    token: u32,
    size: u32,
    /// The places of the pieces before and behind it, plus one; 0 is none.
    before: u32,
    behind: u32,
    /// Whether it is a part of another.
    gone: bool,
}

struct Model<'t> {
    flags: u32,
    most: usize,
    start: i64,
    end: i64,
    vocabulary: Lexicon<'t>,
    bytes: Words<'t>,
    merges: &'t [[u8; 16]],
    special: Texts<'t>,
    special_tokens: Words<'t>,
    added: Lexicon<'t>,
    stripped: Lexicon<'t>,
    words: &'t [u8],
}

/// Memory that is used again and again.
struct Scratch<'m> {
    bytes: List<'m, u8>,
    pieces: List<'m, Piece>,
    /// Pairs that may be joined, as a heap: the rank, and the place of the left one.
    pairs: List<'m, u64>,
    /// Places of pairs of one rank.
    same: List<'m, u32>,
}

impl<'t> Model<'t> {
    fn of(tables: &Tables<'t>) -> Result<Model<'t>, Status> {
        let token = |at: usize| tables.number(at).map(i64::from);
        Ok(Model {
            flags: tables.number(number::FLAGS)?,
            most: tables.number(number::MOST)? as usize,
            start: token(number::START)?,
            end: token(number::END)?,
            vocabulary: Lexicon::of(tables.part(part::VOCABULARY)?)?,
            bytes: tables.part(part::BYTES)?.as_chunks().0,
            merges: tables.part(part::MERGES)?.as_chunks().0,
            special: Texts::of(tables.part(part::SPECIAL)?)?,
            special_tokens: tables.part(part::SPECIAL_TOKENS)?.as_chunks().0,
            added: Lexicon::of(tables.part(part::ADDED)?)?,
            stripped: Lexicon::of(tables.part(part::STRIPPED)?)?,
            words: tables.part(part::WORDS)?,
        })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn is_clip(&self) -> bool {
        self.has(flag::CLIP)
    }

    /// The rank of a merge, and its result.
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let words = |at: usize| self.merges.get(at).map(|merge| merge.as_chunks::<4>().0);
        let at = self.merges.partition_point(|merge| {
            let pair = merge.as_chunks::<4>().0;
            (word(pair, 0), word(pair, 1)) < (Some(left), Some(right))
        });
        let found = words(at)?;
        let same = (word(found, 0)?, word(found, 1)?) == (left, right);
        if same { word(found, 2).zip(word(found, 3)) } else { None }
    }
}

pub(super) fn encode<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let model = Model::of(tables)?;
    to.padding = i64::from(tables.number(number::PADDING)?);
    let memory = state.memory();
    let mut scratch = Scratch {
        bytes: List::new(memory),
        pieces: List::new(memory),
        pairs: List::new(memory),
        same: List::new(memory),
    };
    let mut letters = List::new(memory);
    state.each(numbers, |&number| {
        letters.clear();
        decode(state.read(number)?, &mut letters)?;
        let begin = to.tokens.len();
        if model.is_clip() {
            tidy(&mut letters);
            if letters.iter().all(|&letter| is_space(letter)) {
                to.tokens.extend(&[model.start, model.end])?;
                return to.end_text();
            }
            let before = letters.len();
            for at in 0..before {
                let letter = letters.get(at).copied().unwrap_or_default();
                small(letter, &mut letters)?;
            }
            letters.drop_front(before);
        }
        if model.has(flag::START) {
            to.tokens.push(model.start)?;
        }
        let mut text = Text { model: &model, begin, to: &mut *to, scratch: &mut scratch };
        text.split_added(&letters)?;
        if model.has(flag::END) {
            to.tokens.push(model.end)?;
        }
        to.end_text()
    })
}

/// White space as Python has it.
fn is_space(letter: u32) -> bool {
    matches!(letter, 9..=13 | 28..=32 | 0x85 | 0xa0 | 0x1680 | 0x2000..=0x200a | 0x2028 | 0x2029 | 0x202f | 0x205f | 0x3000)
}

/// One space of several, none on either side, and no ends of lines.
fn tidy(letters: &mut List<'_, u32>) {
    let mut kept = 0;
    let mut spaces = false;
    for at in 0..letters.len() {
        let letter = letters.get(at).copied().unwrap_or_default();
        let space = is_space(letter);
        if !(space && spaces)
            && let Some(to) = letters.get_mut(kept)
        {
            *to = letter;
            kept += 1;
        }
        spaces = space;
    }
    letters.truncate(kept);
    if letters.first().is_some_and(|&letter| is_space(letter)) {
        letters.drop_front(1);
    }
    if letters.last().is_some_and(|&letter| is_space(letter)) {
        letters.truncate(letters.len() - 1);
    }
    let mut kept = 0;
    for at in 0..letters.len() {
        let letter = letters.get(at).copied().unwrap_or_default();
        if !matches!(letter, 10 | 13)
            && let Some(to) = letters.get_mut(kept)
        {
            *to = letter;
            kept += 1;
        }
    }
    letters.truncate(kept);
}

/// Appends a letter as a small one, in the mapping of Unicode 13 from one to one.
fn small(letter: u32, to: &mut List<'_, u32>) -> Result<(), Status> {
    // What is a letter later was none then. Numbers and a few signs have small forms as well.
    let known =
        (class(letter).is_letter() || class(letter) == Class::Number) || matches!(letter, 0x24b6..=0x24cf);
    match char::from_u32(letter) {
        Some(letter) if known => letter.to_lowercase().try_for_each(|letter| to.push(u32::from(letter))),
        _ => to.push(letter),
    }
}

/// A text, and where its tokens go.
struct Text<'r, 't, 's> {
    model: &'r Model<'t>,
    /// How many tokens there were before.
    begin: usize,
    to: &'r mut Encoded<'s>,
    scratch: &'r mut Scratch<'s>,
}

impl Text<'_, '_, '_> {
    fn is_full(&self) -> bool {
        self.to.tokens.len() - self.begin >= self.model.most
    }

    fn push(&mut self, token: u32) -> Result<(), Status> {
        if self.is_full() { Ok(()) } else { self.to.tokens.push(i64::from(token)) }
    }

    /// Cuts at added tokens, just as the original does: a text that ends within what begins like one is not searched again.
    fn split_added(&mut self, letters: &[u32]) -> Result<(), Status> {
        let (mut from, mut at) = (0, 0);
        // Whether spaces go that a part begins with.
        let mut strips = false;
        while at < letters.len() {
            let (mut walk, mut behind, mut found) = (self.model.added.walk(), at, None);
            for (length, &letter) in letters.iter().skip(at).enumerate() {
                // No zero is written, so such a token has none.
                if letter == 0 || !each_byte(letter, |byte| walk.step(byte)) {
                    break;
                }
                behind = at + length + 1;
                found = walk.end().map(|place| (behind, place)).or(found);
            }
            let token = found.and_then(|(end, place)| Some((end, place, self.model.added.number(place)?)));
            let Some((end, place, token)) = token else {
                if behind + 1 >= letters.len() {
                    break;
                }
                at += 1;
                continue;
            };
            if at > from {
                self.part(letters.get(from..at).unwrap_or_default(), strips)?;
            }
            self.push(token)?;
            let text = self.model.added.text(place).unwrap_or_default();
            strips = self.model.stripped.find(text).is_some();
            (from, at) = (end, end);
        }
        match letters.get(from..) {
            None | Some([]) => Ok(()),
            Some(rest) => self.part(rest, strips),
        }
    }

    /// What lies between added tokens.
    fn part(&mut self, letters: &[u32], strips: bool) -> Result<(), Status> {
        if !strips {
            return self.split_special(letters, 0);
        }
        let spaces = letters.iter().take_while(|&&letter| matches!(letter, 9 | 10 | 13 | 32)).count();
        match letters.get(spaces..).unwrap_or_default() {
            // Nothing is left, and it counts as a part of the text.
            [] => self.segment(&[]),
            rest => self.split_special(rest, 0),
        }
    }

    /// Cuts at the special text of a place, and between these at those behind it.
    fn split_special(&mut self, letters: &[u32], place: usize) -> Result<(), Status> {
        if letters.is_empty() {
            return Ok(());
        }
        let Some(text) = self.model.special.text(place) else { return self.segment(letters) };
        let token = word(self.model.special_tokens, place).ok_or(Status::BAD_SIZE)?;
        let mut special = List::new(self.to.counts.memory());
        decode(text, &mut special)?;
        let mut rest = letters;
        while let Some(at) = rest.windows(special.len().max(1)).position(|part| part == &*special) {
            let (before, found) = rest.split_at_checked(at).unwrap_or_default();
            self.split_special(before, place + 1)?;
            self.push(token)?;
            rest = found.get(special.len()..).unwrap_or_default();
        }
        self.split_special(rest, place + 1)
    }

    /// The words of what has no special texts.
    fn segment(&mut self, letters: &[u32]) -> Result<(), Status> {
        if self.is_full() {
            return Ok(());
        }
        if self.model.has(flag::START) {
            self.to.offsets.push([0; 2])?;
        }
        if self.model.has(flag::TEXTS) {
            return self.texts(letters);
        }
        let (mut rest, mut offset) = (letters, 0);
        while !rest.is_empty() && !self.is_full() {
            let length = word_length(self.model.words, rest);
            let (word, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = behind;
            self.word(word, &mut offset)?;
        }
        if self.model.has(flag::END) {
            self.to.offsets.push([0; 2])?;
        }
        Ok(())
    }

    /// The words of a text where the vocabulary has texts.
    fn texts(&mut self, letters: &[u32]) -> Result<(), Status> {
        let mut own = List::new(self.to.counts.memory());
        let dummy = self.model.has(flag::DUMMY) && !letters.is_empty();
        if dummy {
            own.push(MARK)?;
        }
        own.extend(letters)?;
        let mut offset = 0;
        // Behind a space the original has no words.
        if self.model.has(flag::LETTERS) || dummy && letters.first() == Some(&0x20) {
            return self.letters(&own, &mut offset);
        }
        let mut rest: &[u32] = &own;
        while !rest.is_empty() && !self.is_full() {
            let length = word_length(self.model.words, rest);
            let (word, behind) = rest.split_at_checked(length).unwrap_or((rest, &[]));
            rest = behind;
            self.scratch.pieces.clear();
            let bytes = &mut self.scratch.bytes;
            bytes.clear();
            word.iter().try_for_each(|&letter| push_letter(marked(letter), bytes))?;
            let size = bytes.len() as u32;
            if let Some(token) = self.model.vocabulary.find(bytes) {
                self.scratch.piece(token, size)?;
            } else {
                word.iter().try_for_each(|&letter| self.letter(letter, 1))?;
                self.join()?;
            }
            self.give(&mut offset, 0)?;
        }
        Ok(())
    }

    /// Letters, joined as far as that goes, up to where a word begins and some are there, or very many.
    fn letters(&mut self, letters: &[u32], offset: &mut i64) -> Result<(), Status> {
        let ends = |letter: u32| matches!(letter, 0x20 | 10 | 13 | MARK);
        let mut before = 0;
        self.scratch.pieces.clear();
        for &letter in letters {
            let count = self.scratch.pieces.len();
            if count > 10 && !ends(before) && ends(letter) || count > 100 {
                self.join()?;
                self.give(offset, 0)?;
                self.scratch.pieces.clear();
            }
            let (_, size) = encode_letter(marked(letter));
            self.letter(letter, size as u32)?;
            before = letter;
        }
        self.join()?;
        self.give(offset, 0)
    }

    /// A letter as a piece of this size, or its bytes.
    fn letter(&mut self, letter: u32, size: u32) -> Result<(), Status> {
        let (bytes, count) = encode_letter(marked(letter));
        let bytes = bytes.get(..count).unwrap_or_default();
        if count > 1
            && let Some(token) = self.model.vocabulary.find(bytes)
        {
            return self.scratch.piece(token, size);
        }
        bytes.iter().try_for_each(|&byte| {
            let token = word(self.model.bytes, usize::from(byte)).ok_or(Status::BAD_SIZE)?;
            self.scratch.piece(token, 1)
        })
    }

    fn word(&mut self, letters: &[u32], offset: &mut i64) -> Result<(), Status> {
        let clip = self.model.is_clip();
        let bytes = &mut self.scratch.bytes;
        bytes.clear();
        letters.iter().try_for_each(|&letter| push_letter(letter, bytes))?;
        if bytes.is_empty() {
            return Ok(());
        }
        // A space before a word counts as one place, and belongs to no token.
        let mut less = 0;
        if bytes.first() == Some(&b' ') {
            *offset += 1;
            less = 1;
        }
        if clip {
            let mut kept = 0;
            for at in 0..bytes.len() {
                let byte = bytes.get(at).copied().unwrap_or_default();
                if byte != b' '
                    && let Some(to) = bytes.get_mut(kept)
                {
                    *to = byte;
                    kept += 1;
                }
            }
            bytes.truncate(kept);
            less = 0;
            if bytes.is_empty() {
                return Ok(());
            }
        }
        let mut walk = self.model.vocabulary.walk();
        let end = if clip { WORD_END } else { &[] };
        let whole = bytes.iter().chain(end).all(|&byte| walk.step(byte));
        let whole = if whole { walk.end() } else { None };
        self.scratch.pieces.clear();
        if let Some(token) = whole.and_then(|place| self.model.vocabulary.number(place)) {
            let size = self.scratch.bytes.len() as u32;
            self.scratch.piece(token, size)?;
        } else {
            self.split_bytes()?;
            self.join()?;
        }
        self.give(offset, less)
    }

    /// Appends the tokens of a word, whose first byte may belong to none.
    fn give(&mut self, offset: &mut i64, less: i64) -> Result<(), Status> {
        let mut place = 1;
        while let Some(piece) = self.scratch.pieces.get(place - 1).copied() {
            if self.is_full() {
                break;
            }
            self.to.tokens.push(i64::from(piece.token))?;
            let to = *offset + i64::from(piece.size) - less;
            self.to.offsets.push([*offset, to])?;
            *offset = to;
            place = piece.behind as usize;
            if place == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Each byte of the word as a piece.
    fn split_bytes(&mut self) -> Result<(), Status> {
        let count = self.scratch.bytes.len();
        for at in 0..count {
            let byte = self.scratch.bytes.get(at).copied().unwrap_or_default();
            let last = self.model.is_clip() && at + 1 == count;
            let token = word(self.model.bytes, usize::from(byte) + if last { 256 } else { 0 });
            let token = token.ok_or(Status::BAD_SIZE)?;
            // In a vocabulary other bytes than those of ASCII that are seen take two.
            let shown = matches!(byte, 33..=126);
            let size = 2 - u32::from(shown) + if last { WORD_END.len() as u32 } else { 0 };
            self.scratch.piece(token, size)?;
        }
        Ok(())
    }

    /// Joins pairs of pieces: of those that can be, all equal to the one that comes first in the list of merges, from the left to the
    /// right; then again.
    fn join(&mut self) -> Result<(), Status> {
        let (model, scratch) = (self.model, &mut *self.scratch);
        scratch.pairs.clear();
        for at in 0..scratch.pieces.len() as u32 {
            scratch.consider(model, at)?;
        }
        while let Some(&first) = scratch.pairs.first() {
            let rank = first >> 32;
            scratch.same.clear();
            while let Some(&pair) = scratch.pairs.first()
                && pair >> 32 == rank
            {
                pop(&mut scratch.pairs);
                scratch.same.push(pair as u32)?;
            }
            for place in 0..scratch.same.len() {
                let at = scratch.same.get(place).copied().unwrap_or_default();
                // What it makes may be joined with the next in the same way.
                let mut changed = false;
                while let Some((left, right)) = scratch.pair(at)
                    && let Some((own, merged)) = model.merge(left.token, right.token)
                    && u64::from(own) == rank
                {
                    let next = right.behind;
                    let joined = Piece { token: merged, size: left.size + right.size, behind: next, ..left };
                    let place = left.behind as usize;
                    let pieces = &mut scratch.pieces;
                    for (place, value) in [(at as usize + 1, joined), (place, Piece { gone: true, ..right })]
                    {
                        if let Some(piece) = pieces.get_mut(place - 1) {
                            *piece = value;
                        }
                    }
                    if let Some(piece) = (next as usize).checked_sub(1).and_then(|next| pieces.get_mut(next))
                    {
                        piece.before = at + 1;
                    }
                    changed = true;
                }
                if changed {
                    scratch.consider(model, at)?;
                    let before = scratch.pieces.get(at as usize).map_or(0, |piece| piece.before);
                    if let Some(before) = before.checked_sub(1) {
                        scratch.consider(model, before)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// What stands for a space in vocabularies of texts.
const MARK: u32 = 0x2581;

fn marked(letter: u32) -> u32 {
    if letter == 0x20 { MARK } else { letter }
}

/// Appends the bytes of a letter.
fn push_letter(letter: u32, to: &mut List<'_, u8>) -> Result<(), Status> {
    let (bytes, count) = encode_letter(letter);
    to.extend(bytes.get(..count).unwrap_or_default())
}

impl Scratch<'_> {
    /// Appends a piece of a word.
    fn piece(&mut self, token: u32, size: u32) -> Result<(), Status> {
        let before = self.pieces.len() as u32;
        if let Some(last) = self.pieces.last_mut() {
            last.behind = before + 1;
        }
        self.pieces.push(Piece { token, size, before, behind: 0, gone: false })
    }

    /// The piece at a place and the one behind it, if both are there.
    fn pair(&self, at: u32) -> Option<(Piece, Piece)> {
        let left = self.pieces.get(at as usize).filter(|piece| !piece.gone)?;
        let right = self.pieces.get((left.behind as usize).checked_sub(1)?)?;
        Some((*left, *right))
    }

    /// Notes the pair at a place, if it can be joined.
    fn consider(&mut self, model: &Model<'_>, at: u32) -> Result<(), Status> {
        let merge = self.pair(at).and_then(|(left, right)| model.merge(left.token, right.token));
        let Some((rank, _)) = merge else { return Ok(()) };
        push(&mut self.pairs, u64::from(rank) << 32 | u64::from(at))
    }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::super::Table;
    use super::super::words::{GPT2, LLAMA, alternatives};
    use super::super::{Asked, result};
    use super::*;

    const PLAIN: Bpe<'static> = Bpe {
        flags: 0,
        most: u32::MAX,
        around: [0; 3],
        vocabulary: &[],
        merges: &[],
        special: &[],
        added: &[],
        stripped: &[],
        words: &[],
    };

    fn gpt2() -> Vec<u8> {
        alternatives(GPT2).unwrap()
    }

    fn model(merges: &[(&str, &str)], vocabulary: &[(&str, u32)]) -> Vec<u8> {
        Bpe { vocabulary, merges, words: &gpt2(), ..PLAIN }.tables().unwrap()
    }

    fn tokens(tables: &[u8], text: &str) -> Vec<i64> {
        let table = Table::new(&[]);
        let (state, numbers) = (table.state(), [table.intern(text.as_bytes())]);
        let mut count = [0];
        let counts =
            state.tokenize(&Asked::of(&numbers, tables), result::COUNTS, &mut count, |tables, to| {
                encode(state, &numbers, tables, to)
            });
        assert_eq!(counts, Ok(()));
        let mut tokens = vec![0; count[0] as usize];
        // What is kept serves; the tables are not asked again.
        let found = state.tokenize(&Asked::of(&numbers, tables), result::TOKENS, &mut tokens, |_, _| {
            Err(Status::BAD_SIZE)
        });
        assert_eq!(found, Ok(()));
        tokens
    }

    /// The pieces of a word by the definition: again and again all pairs equal to the one whose merge comes first.
    fn defined(merges: &[(&str, &str)], word: &str) -> Vec<String> {
        let mut pieces: Vec<String> = word.chars().map(String::from).collect();
        loop {
            let rank = |at: usize| {
                let pair = (pieces[at].as_str(), pieces[at + 1].as_str());
                merges.iter().rposition(|&merge| merge == pair)
            };
            let Some(first) = (0..pieces.len().saturating_sub(1)).filter_map(rank).min() else {
                return pieces;
            };
            let (left, right) = merges[first];
            let mut at = 0;
            while at + 1 < pieces.len() {
                if pieces[at] == left && pieces[at + 1] == right {
                    pieces[at] = format!("{left}{right}");
                    pieces.remove(at + 1);
                } else {
                    at += 1;
                }
            }
        }
    }

    #[test]
    fn pairs_are_joined_as_defined() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let mut words: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
            let mut pairs = vec![];
            for _ in 0..random.usize(1..12) {
                let pair = (random.usize(..words.len()), random.usize(..words.len()));
                let joined = format!("{}{}", words[pair.0], words[pair.1]);
                pairs.push(pair);
                if !words.contains(&joined) {
                    words.push(joined);
                }
            }
            // In any order: what is joined late may be of pairs that come early.
            random.shuffle(&mut pairs);
            let merges: Vec<(&str, &str)> =
                pairs.iter().map(|&(left, right)| (words[left].as_str(), words[right].as_str())).collect();
            let vocabulary: Vec<(&str, u32)> = words.iter().map(String::as_str).zip(0..).collect();
            let tables = model(&merges, &vocabulary);
            for _ in 0..20 {
                let text: String =
                    (0..random.usize(1..40)).map(|_| random.choice(['a', 'b', 'c']).unwrap()).collect();
                if words.contains(&text) {
                    continue;
                }
                let number = |piece: &String| words.iter().position(|word| word == piece).unwrap() as i64;
                let wanted: Vec<i64> = defined(&merges, &text).iter().map(number).collect();
                assert_eq!(tokens(&tables, &text), wanted, "{text} by {merges:?}");
            }
        }
    }

    /// A word takes time by its length, not the square of it.
    #[test]
    fn a_long_word_ends() {
        let tables = model(&[("a", "a"), ("aa", "aa")], &[("a", 0), ("aa", 1), ("aaaa", 2)]);
        assert_eq!(tokens(&tables, &"a".repeat(200_001)).len(), 50_001);
    }

    /// Texts with marks for spaces, whose letters may be bytes.
    #[test]
    fn vocabularies_of_texts() {
        let vocabulary = [
            ("\u{2581}", 1),
            ("a", 2),
            ("\u{2581}a", 3),
            ("b", 4),
            ("aa", 5),
            ("<0xC3>", 6),
            ("<0xA9>", 7),
            ("<0x3F>", 8),
        ];
        let merges = [("\u{2581}", "a"), ("a", "a")];
        let words = alternatives(LLAMA).unwrap();
        let of = |flags: u32| Bpe {
            flags: flag::TEXTS | flags,
            vocabulary: &vocabulary,
            merges: &merges,
            words: &words,
            ..PLAIN
        };
        let none = i64::from(u32::MAX);
        let tables = of(flag::DUMMY).tables().unwrap();
        assert_eq!(tokens(&tables, "a ab"), [3, 3, 4]);
        assert_eq!(tokens(&tables, "\u{e9}?!"), [1, 6, 7, 8, none]);
        // Words begin with spaces, and a text that begins with one has no words.
        assert_eq!(tokens(&of(0).tables().unwrap(), " aa"), [3, 2]);
        assert_eq!(tokens(&tables, " a"), [1, 3]);
        let letters = of(flag::LETTERS).tables().unwrap();
        assert_eq!(tokens(&letters, "aa a"), [5, 3]);
        // Some letters are enough where a word ends.
        assert_eq!(tokens(&letters, "bbbbbbbbbbb aaa"), [vec![4; 11], vec![3, 5]].concat());
    }

    /// Spaces behind a token go.
    #[test]
    fn spaces_behind_added_tokens() {
        let vocabulary = [("a", 2), ("\u{120}", 3), ("\u{120}a", 4)];
        let (added, words) = ([("<x>", 8), ("<y>", 9)], gpt2());
        let model =
            Bpe { vocabulary: &vocabulary, added: &added, stripped: &["<x>"], words: &words, ..PLAIN };
        let tables = model.tables().unwrap();
        assert_eq!(tokens(&tables, "<x> \n a<x>a<y> a<x>  "), [8, 2, 8, 2, 9, 4, 8]);
        assert_eq!(tokens(&tables, "<x> <y>"), [8, 9]);
    }

    #[test]
    fn broken_tables_are_refused_or_read_within() {
        let whole = model(&[("a", "b")], &[("a", 0), ("b", 1), ("ab", 2)]);
        let table = Table::new(&[b"abab a"]);
        for length in 0..whole.len() {
            let tables = &whole[..length];
            let mut count = [0];
            let found =
                table.state().tokenize(&Asked::of(&[0], tables), result::COUNTS, &mut count, |tables, to| {
                    encode(table.state(), &[0], tables, to)
                });
            assert!(
                found == Err(Status::BAD_SIZE) || length > whole.len() - 12,
                "{length} of {}",
                whole.len()
            );
        }
    }
}
