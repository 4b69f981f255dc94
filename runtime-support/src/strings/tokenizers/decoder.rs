//! From tokens back to texts.

use crate::abi::Status;

use super::super::chunks::Draft;
use super::super::memory::List;
use super::super::table::State;
use super::letters::{decode, is_punctuation};
use super::tables::{Tables, Texts, Words, word};

/// What writes the text of tokens.
pub(super) trait Spell<'s>: FnMut(&'s State, &[i64], &mut Draft<'s>) -> Result<(), Status> {}

impl<'s, F: FnMut(&'s State, &[i64], &mut Draft<'s>) -> Result<(), Status>> Spell<'s> for F {}

impl State {
    /// The text of each span of tokens.
    pub(super) fn texts_of<'s>(
        &'s self,
        spans: &[[i64; 2]],
        tokens: &[i64],
        out: &mut [i64],
        mut write: impl Spell<'s>,
    ) -> Result<(), Status> {
        self.each(spans.iter().zip(out), |(&[from, to], out)| {
            let span = usize::try_from(from).ok().zip(usize::try_from(to).ok());
            let tokens = span.and_then(|(from, to)| tokens.get(from..to)).ok_or(Status::BAD_TEXT)?;
            let mut draft = self.draft();
            write(self, tokens, &mut draft)?;
            *out = self.finish(draft)?;
            Ok(())
        })
    }
}

/// Numbers of the tables of a decoder of BERT.
mod number {
    /// 1: tokens that stand around texts are passed over. 2: there is no space beside some punctuation.
    pub(super) const FLAGS: usize = 0;
    /// How many tokens are passed over; each follows.
    pub(super) const SPECIAL: usize = 1;
}

/// Parts of these tables.
mod part {
    pub(super) const UNKNOWN: usize = 0;
    pub(super) const SUFFIX: usize = 1;
    pub(super) const VOCABULARY: usize = 2;
}

/// Tables of a decoder of BERT: the tokens that are passed over, if any are; whether there is no space beside some punctuation; what
/// stands for unknown tokens, what pieces begin with that do not begin a word, and the pieces by their numbers. Or how many bytes are
/// too many.
#[cfg(feature = "compile")]
pub fn words_tables<'t>(
    special: Option<&[i32]>,
    joins: bool,
    [unknown, suffix]: [&str; 2],
    vocabulary: impl IntoIterator<Item = &'t [u8], IntoIter: Clone>,
) -> Result<Vec<u8>, usize> {
    let flags = u32::from(special.is_some()) + 2 * u32::from(joins);
    let special = special.unwrap_or_default();
    let header = [flags, special.len() as u32];
    let numbers: Vec<u32> = header.into_iter().chain(special.iter().map(|&token| token as u32)).collect();
    let vocabulary = super::tables::texts(vocabulary);
    super::tables::tables(&numbers, &[unknown.as_bytes(), suffix.as_bytes(), &vocabulary])
}

/// Words of pieces.
pub(super) fn words<'t, 's>(tables: &Tables<'t>) -> Result<impl Spell<'s> + use<'t, 's>, Status> {
    let vocabulary = Texts::of(tables.part(part::VOCABULARY)?)?;
    let (unknown, suffix) = (tables.part(part::UNKNOWN)?, tables.part(part::SUFFIX)?);
    let (flags, special) = (tables.number(number::FLAGS)?, tables.number(number::SPECIAL)? as usize);
    let tables = *tables;
    Ok(move |state: &'s State, tokens: &[i64], draft: &mut Draft<'s>| {
        let mut letters = List::new(state.memory());
        // The last letter of the token before, once there is one.
        let mut before = None;
        for &token in tokens {
            let passed = (1..=special).any(|at| {
                tables.number(number::SPECIAL + at).is_ok_and(|special| i64::from(special as i32) == token)
            });
            if flags & 1 != 0 && passed {
                continue;
            }
            let empty = draft.written().is_empty();
            let Some(text) = usize::try_from(token).ok().and_then(|token| vocabulary.text(token)) else {
                if !empty {
                    draft.push(b" ")?;
                }
                draft.push(unknown)?;
                continue;
            };
            let within = text.strip_prefix(suffix);
            if empty && within.is_some() {
                continue;
            }
            let text = within.unwrap_or(text);
            letters.clear();
            decode(text, &mut letters)?;
            let first = letters.first().copied().unwrap_or(0);
            let joined = flags & 2 != 0 && before.is_none_or(|before| joins(before, first));
            if !empty && within.is_none() && !joined {
                draft.push(b" ")?;
            }
            draft.push(text)?;
            before = Some(letters.last().copied().unwrap_or(0));
        }
        Ok(())
    })
}

/// Whether no space is between these letters, the last and the first of tokens.
fn joins(before: u32, first: u32) -> bool {
    let is = |letter: u32, these: &[u8]| u8::try_from(letter).is_ok_and(|letter| these.contains(&letter));
    let both = b"-'\"/@\\";
    is(first, b"!.?,~:}]>)")
        || is(before, b"{[<($")
        || is(before, both)
        || is(first, both)
        || [before, first].into_iter().any(|letter| letter > 128 && is_punctuation(letter))
}

mod bytes {
    /// Numbers of the tables of a decoder of pairs of bytes: the sum of [`flag`]s.
    pub(super) const FLAGS: usize = 0;

    /// Parts of these tables.
    pub(super) const UNKNOWN: usize = 0;
    pub(super) const VOCABULARY: usize = 1;
    /// Characters of the vocabulary and the bytes that they stand for, ascending: two words each.
    pub(super) const LETTERS: usize = 2;
    /// Added tokens, ascending, as words.
    pub(super) const ADDED: usize = 3;
    /// Their texts.
    pub(super) const ADDED_TEXTS: usize = 4;
    /// Special tokens, ascending, as words.
    pub(super) const SPECIAL: usize = 5;
}

pub mod bytes_flag {
    /// Special and unknown tokens are passed over.
    pub const SKIP: u32 = 1;
    /// Special tokens have spaces on either side.
    pub const SPACES: u32 = 2;
    /// Tokens are texts with a mark for spaces, or bytes in hexadecimal.
    pub const TEXTS: u32 = 4;
}

/// What tables of a decoder of pairs of bytes are made of.
#[cfg(feature = "compile")]
pub struct Bytes<'t> {
    pub flags: u32,
    pub unknown: &'t str,
    /// Tokens by their numbers.
    pub vocabulary: &'t [&'t str],
    /// What characters stand for; of equal ones the first is one.
    pub letters: &'t [(u32, u8)],
    pub added: &'t [(u32, &'t str)],
    pub special: &'t [u32],
}

#[cfg(feature = "compile")]
impl Bytes<'_> {
    /// The tables, or how many bytes are too many for them.
    pub fn tables(&self) -> Result<Vec<u8>, usize> {
        use std::collections::{BTreeMap, BTreeSet};

        let (mut letters, mut added) = (BTreeMap::new(), BTreeMap::new());
        for &(letter, byte) in self.letters {
            letters.entry(letter).or_insert(u32::from(byte));
        }
        for &(token, text) in self.added {
            added.entry(token).or_insert(text);
        }
        let special: BTreeSet<u32> = self.special.iter().copied().collect();
        let words = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        super::tables::tables(
            &[self.flags],
            &[
                self.unknown.as_bytes(),
                &super::tables::texts(self.vocabulary.iter().map(|text| text.as_bytes())),
                &words(letters.into_iter().flat_map(|(letter, byte)| [letter, byte]).collect()),
                &words(added.keys().copied().collect()),
                &super::tables::texts(added.values().map(|text| text.as_bytes())),
                &words(special.into_iter().collect()),
            ],
        )
    }
}

/// Where a word is among ascending ones.
fn place(words: Words<'_>, wanted: i64) -> Option<usize> {
    let at = words.partition_point(|word| i64::from(u32::from_le_bytes(*word)) < wanted);
    (word(words, at).map(i64::from) == Some(wanted)).then_some(at)
}

/// What stands for a space in vocabularies of texts.
const SPACE: &[u8] = "\u{2581}".as_bytes();

/// Texts of tokens that are pairs of bytes.
pub(super) fn bytes<'t, 's>(tables: &Tables<'t>) -> Result<impl Spell<'s> + use<'t, 's>, Status> {
    let flags = tables.number(bytes::FLAGS)?;
    let unknown = tables.part(bytes::UNKNOWN)?;
    let vocabulary = Texts::of(tables.part(bytes::VOCABULARY)?)?;
    let letters: &[[u8; 8]] = tables.part(bytes::LETTERS)?.as_chunks().0;
    let added: Words<'_> = tables.part(bytes::ADDED)?.as_chunks().0;
    let added_texts = Texts::of(tables.part(bytes::ADDED_TEXTS)?)?;
    let special: Words<'_> = tables.part(bytes::SPECIAL)?.as_chunks().0;
    let has = move |flag: u32| flags & flag != 0;
    let byte_of = move |letter: u32| {
        let pair =
            |pair: &[u8; 8]| pair.as_chunks::<4>().0.first().map_or(0, |word| u32::from_le_bytes(*word));
        let found = letters.get(letters.partition_point(|other| pair(other) < letter))?;
        (pair(found) == letter).then(|| found.get(4).copied())?
    };
    Ok(move |state: &'s State, tokens: &[i64], draft: &mut Draft<'s>| {
        let (mut characters, mut text) = (List::new(state.memory()), List::new(state.memory()));
        let mut was_special = false;
        for (at, &token) in tokens.iter().enumerate() {
            let is_special = place(special, token).is_some();
            if has(bytes_flag::SKIP) && is_special {
                was_special = true;
                continue;
            }
            text.clear();
            let known = usize::try_from(token).ok().and_then(|token| vocabulary.text(token));
            match (place(added, token).and_then(|place| added_texts.text(place)), known) {
                (Some(added), _) => text.extend(added)?,
                (None, Some(piece)) if has(bytes_flag::TEXTS) => match hexadecimal(piece) {
                    Some(byte) => text.push(byte)?,
                    None => {
                        let mut rest = piece;
                        while let [first, behind @ ..] = rest {
                            rest = match rest.strip_prefix(SPACE) {
                                Some(behind) => {
                                    text.push(b' ')?;
                                    behind
                                }
                                None => {
                                    text.push(*first)?;
                                    behind
                                }
                            };
                        }
                    }
                },
                (None, Some(piece)) => {
                    characters.clear();
                    decode(piece, &mut characters)?;
                    for &letter in &*characters {
                        match byte_of(letter).or(u8::try_from(letter).ok()) {
                            Some(byte) => text.push(byte)?,
                            None if has(bytes_flag::SKIP) => {}
                            None => {
                                text.clear();
                                text.extend(unknown)?;
                                break;
                            }
                        }
                    }
                }
                (None, None) if has(bytes_flag::SKIP) => continue,
                (None, None) => text.extend(unknown)?,
            }
            let spaces = has(bytes_flag::SPACES) && is_special;
            if spaces && at > 0 && !was_special {
                draft.push(b" ")?;
            }
            draft.push(&text)?;
            if spaces && at + 1 != tokens.len() {
                draft.push(b" ")?;
            }
            was_special = is_special;
        }
        Ok(())
    })
}

/// The byte that `<0x4A>` is, as C reads it: of two digits those that are some, up to the first that is none.
fn hexadecimal(piece: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high, low, b'>'] = piece else { return None };
    let digit = |letter: &u8| char::from(*letter).to_digit(16).map(|digit| digit as u8);
    Some(match (digit(high), digit(low)) {
        (Some(high), Some(low)) => high << 4 | low,
        (Some(high), None) => high,
        (None, _) => 0,
    })
}
