//! The tokenizers of BERT: words between spaces and punctuation, then pieces of words, each the longest that a vocabulary has.

use crate::abi::Status;

use super::super::memory::List;
use super::super::table::State;
use super::Encoded;
use super::letters::{
    decode, each_byte, is_accent, is_cjk, is_control, is_punctuation, is_space, lower, without_accent, write,
};
use super::lexicon::{Lexicon, Walk};
use super::tables::Tables;

/// Numbers of the tables.
mod number {
    /// What the tokenizer is.
    pub(super) const KIND: usize = 0;
    /// The sum of [`super::flag`]s.
    pub(super) const FLAGS: usize = 1;
    /// The most characters of a word.
    pub(super) const WORD: usize = 2;
    /// The most tokens of a text that is alone; 0 is any number.
    pub(super) const TOKENS: usize = 3;
    pub(super) const UNKNOWN: usize = 4;
    pub(super) const START: usize = 5;
    pub(super) const END: usize = 6;
}

/// Parts of the tables.
mod part {
    /// What stands for a word that is not made of pieces.
    pub(super) const UNKNOWN: usize = 0;
    /// What pieces begin with that do not begin a word.
    pub(super) const SUFFIX: usize = 1;
    pub(super) const VOCABULARY: usize = 2;
}

pub mod kind {
    /// Words are the result.
    pub const WORDS: u32 = 0;
    /// Numbers of pieces, with those of what stands around texts.
    pub const BERT: u32 = 1;
    /// Pieces of what lies between spaces.
    pub const PIECES: u32 = 2;
}

pub mod flag {
    pub const LOWER: u32 = 1;
    pub const CJK: u32 = 2;
    pub const ACCENTS: u32 = 4;
    pub const PUNCTUATION: u32 = 8;
    pub const CONTROL: u32 = 16;
    /// Texts are cut at spaces and punctuation, not at spaces alone.
    pub const BASIC: u32 = 32;
}

/// What tables are made of.
#[cfg(feature = "compile")]
pub struct Bert<'t> {
    pub kind: u32,
    pub flags: u32,
    /// The most characters of a word.
    pub word: u32,
    /// The most tokens of a text that is alone; 0 is any number.
    pub tokens: u32,
    /// Numbers of what stands for unknown words, before texts and behind them.
    pub special: [u32; 3],
    pub unknown: &'t str,
    pub suffix: &'t str,
    /// The pieces with their numbers.
    pub vocabulary: &'t [(&'t [u8], u32)],
}

#[cfg(feature = "compile")]
impl Bert<'_> {
    /// The tables, or how many bytes are too many for them.
    pub fn tables(&self) -> Result<Vec<u8>, usize> {
        let [unknown, start, end] = self.special;
        let numbers = [self.kind, self.flags, self.word, self.tokens, unknown, start, end];
        let vocabulary = super::lexicon::lexicon(self.vocabulary.iter().copied());
        super::tables::tables(&numbers, &[self.unknown.as_bytes(), self.suffix.as_bytes(), &vocabulary])
    }
}

pub(super) fn encode<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    match tables.number(number::KIND)? {
        kind::WORDS => words(state, numbers, tables.number(number::FLAGS)?, to),
        kind::BERT => bert(state, numbers, tables, to),
        kind::PIECES => pieces(state, numbers, tables, to),
        _ => Err(Status::BAD_SIZE),
    }
}

/// The words of a text as BERT's basic tokenizer cuts it; `letters` are changed.
fn basic<'m>(
    letters: &mut [u32],
    flags: u32,
    word: &mut List<'m, u32>,
    mut found: impl FnMut(&[u32]) -> Result<(), Status>,
) -> Result<(), Status> {
    let has = |flag: u32| flags & flag != 0;
    word.clear();
    for letter in letters {
        if has(flag::ACCENTS) {
            *letter = without_accent(*letter);
        }
        if has(flag::LOWER) {
            *letter = lower(*letter);
        }
        let letter = *letter;
        let alone = has(flag::CJK) && is_cjk(letter);
        if !alone && has(flag::ACCENTS) && is_accent(letter) {
            continue;
        }
        let alone = alone || (has(flag::PUNCTUATION) && is_punctuation(letter));
        let ends = alone || is_space(letter);
        if ends && !word.is_empty() {
            found(word)?;
            word.clear();
        }
        if alone {
            found(&[letter])?;
        } else if !(ends || has(flag::CONTROL) && is_control(letter)) {
            word.push(letter)?;
        }
    }
    if word.is_empty() { Ok(()) } else { found(word) }
}

fn words<'s>(state: &'s State, numbers: &[i64], flags: u32, to: &mut Encoded<'s>) -> Result<(), Status> {
    let (mut letters, mut word) = (List::new(state.memory()), List::new(state.memory()));
    state.each(numbers, |&number| {
        letters.clear();
        decode(state.read(number)?, &mut letters)?;
        basic(&mut letters, flags, &mut word, |word| {
            let mut draft = state.draft();
            write(word, &mut draft)?;
            to.tokens.push(state.finish(draft)?)
        })?;
        to.end_text()
    })
}

/// The vocabulary of pieces.
struct Pieces<'t> {
    lexicon: Lexicon<'t>,
    /// Behind what pieces within a word begin with.
    within: Option<Walk<'t>>,
    /// The most characters of a word.
    most: usize,
    /// Whether zeros count, which texts of numbers have not.
    zeros: bool,
}

impl<'t> Pieces<'t> {
    fn of(tables: &Tables<'t>) -> Result<Pieces<'t>, Status> {
        let lexicon = Lexicon::of(tables.part(part::VOCABULARY)?)?;
        let mut walk = lexicon.walk();
        let suffix = tables.part(part::SUFFIX)?;
        let within = suffix.iter().all(|&byte| walk.step(byte)).then_some(walk);
        let zeros = tables.number(number::KIND)? == kind::PIECES;
        Ok(Pieces { lexicon, within, most: tables.number(number::WORD)? as usize, zeros })
    }

    /// Calls `found` with the place of each piece of a word, and with `None` where the rest is not made of any.
    fn cut(
        &self,
        word: &[u32],
        mut found: impl FnMut(Option<usize>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if word.len() > self.most {
            return found(None);
        }
        let mut rest = word;
        while !rest.is_empty() {
            let begins = rest.len() == word.len();
            let walk = if begins { Some(self.lexicon.walk()) } else { self.within };
            let Some((length, place)) = walk.and_then(|walk| self.longest(walk, rest)) else {
                return found(None);
            };
            found(Some(place))?;
            rest = rest.get(length..).unwrap_or_default();
        }
        Ok(())
    }

    /// How many letters the longest piece takes, and its place.
    fn longest(&self, mut walk: Walk<'_>, letters: &[u32]) -> Option<(usize, usize)> {
        let mut longest = None;
        for (at, &letter) in letters.iter().enumerate() {
            let goes_on = match letter {
                0 if self.zeros => walk.step(0),
                _ => each_byte(letter, |byte| walk.step(byte)),
            };
            if !goes_on {
                break;
            }
            longest = walk.end().map(|place| (at + 1, place)).or(longest);
        }
        longest
    }
}

fn bert<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let pieces = Pieces::of(tables)?;
    let (flags, unknown_text) = (tables.number(number::FLAGS)?, tables.part(part::UNKNOWN)?);
    let token = |at: usize| tables.number(at).map(i64::from);
    let (unknown, start, end) = (token(number::UNKNOWN)?, token(number::START)?, token(number::END)?);
    let most = tables.number(number::TOKENS)? as usize;
    let (mut letters, mut word) = (List::new(state.memory()), List::new(state.memory()));
    state.each(numbers.iter().enumerate(), |(at, &number)| {
        letters.clear();
        decode(state.read(number)?, &mut letters)?;
        if at == 0 {
            to.tokens.push(start)?;
        }
        let begin = to.tokens.len();
        to.offsets.push([0; 2])?;
        // Counted as if there were a space behind each word, in wrapping numbers.
        let mut offset = 0_i64;
        let mut add = |place: Option<usize>| {
            let known = place.and_then(|place| pieces.lexicon.number(place));
            to.tokens.push(known.map_or(unknown, i64::from))?;
            let text = place.and_then(|place| pieces.lexicon.text(place)).unwrap_or(unknown_text);
            let marks = text.iter().take_while(|&&byte| byte == b'#').count() as i64;
            let size = match marks {
                0 if text == b"[UNK]" => 1,
                0 => text.len() as i64,
                _ => {
                    offset = offset.wrapping_sub(1);
                    text.len() as i64 - marks
                }
            };
            to.offsets.push([offset, offset.wrapping_add(size)])?;
            offset = offset.wrapping_add(size + 1);
            Ok(())
        };
        if flags & flag::BASIC != 0 {
            basic(&mut letters, flags, &mut word, |word| pieces.cut(word, &mut add))?;
        } else {
            // A space that follows none begins a word, as the original has it.
            word.clear();
            for &letter in &*letters {
                if letter == 0x20 && !word.is_empty() {
                    pieces.cut(&word, &mut add)?;
                    word.clear();
                } else {
                    word.push(letter)?;
                }
            }
            pieces.cut(&word, &mut add)?;
        }
        to.offsets.push([0; 2])?;
        if numbers.len() == 1 && most != 0 {
            to.tokens.truncate(begin + most);
        }
        to.tokens.push(end)?;
        to.end_text()
    })
}

fn pieces<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let pieces = Pieces::of(tables)?;
    let unknown = tables.part(part::UNKNOWN)?;
    let mut letters = List::new(state.memory());
    state.each(numbers, |&number| {
        letters.clear();
        decode(state.read(number)?, &mut letters)?;
        for word in letters.split(|&letter| letter == 0x20) {
            pieces.cut(word, |place| {
                let text = place.and_then(|place| pieces.lexicon.text(place)).unwrap_or(unknown);
                to.tokens.push(state.intern(text)?)
            })?;
        }
        to.end_text()
    })
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::super::Table;
    use super::super::{Asked, result};
    use super::*;

    fn vocabulary() -> Vec<(&'static [u8], u32)> {
        let texts: [&[u8]; 7] = [b"ab", b"a", b"##b", b"##", b"c", b"?", b"a\0b"];
        texts.into_iter().zip(10..).collect()
    }

    fn tables(kind: u32, flags: u32, tokens: u32) -> Vec<u8> {
        let vocabulary = vocabulary();
        let model = Bert {
            kind,
            flags,
            word: 4,
            tokens,
            special: [15, 1, 2],
            unknown: "?",
            suffix: "##",
            vocabulary: &vocabulary,
        };
        model.tables().unwrap()
    }

    /// Tokens of each text, and what they are in the table.
    fn run(tables: &[u8], texts: &[&[u8]]) -> (Table, Vec<i64>, Vec<i64>) {
        let table = Table::new(&[]);
        let numbers: Vec<i64> = texts.iter().map(|text| table.intern(text)).collect();
        let call = |what: i64, size: usize| {
            let mut out = vec![-1; size];
            let to: &mut [i64] = &mut out;
            table
                .state()
                .tokenize(&Asked::of(&numbers, tables), what, to, |tables, to| {
                    encode(table.state(), &numbers, tables, to)
                })
                .map(|()| out)
        };
        let counts = call(result::COUNTS, numbers.len()).unwrap();
        let total = counts.iter().sum::<i64>() as usize;
        let tokens = call(result::TOKENS, total).unwrap();
        assert_eq!(call(result::TOKENS, total + 1), Err(Status::BAD_SIZE));
        let width = counts.iter().max().map_or(0, |&most| most as usize) + 1;
        let rows = call(result::ROWS, width * numbers.len()).unwrap();
        let mask = call(result::MASK, width * numbers.len()).unwrap();
        let kept: Vec<i64> =
            rows.iter().zip(&mask).filter(|(_, mask)| **mask == 1).map(|(token, _)| *token).collect();
        assert_eq!(kept, tokens);
        (table, counts, tokens)
    }

    #[test]
    fn pieces_are_the_longest() {
        let tables = tables(kind::BERT, flag::BASIC, 0);
        assert_eq!(run(&tables, &[b"ab abb  cab"]).2, [1, 10, 10, 12, 14, 15, 2]);
        // Two texts, and one without any word.
        let (_, counts, tokens) = run(&tables, &[b"c", b" "]);
        assert_eq!((counts, tokens), (vec![3, 1], vec![1, 14, 2, 2]));
        // Too long, and none at all.
        assert_eq!(run(&tables, &[b"ababa"]).2, [1, 15, 2]);
        assert_eq!(run(&tables, &[]).2, [0; 0]);
    }

    #[test]
    fn a_text_that_is_alone_is_cut() {
        let tables = tables(kind::BERT, flag::BASIC, 2);
        assert_eq!(run(&tables, &[b"a a a"]).2, [1, 11, 11, 2]);
        assert_eq!(run(&tables, &[b"a a a", b"c"]).2, [1, 11, 11, 11, 2, 14, 2]);
    }

    /// As onnxruntime-extensions 0.15 has it, which writes no zeros: the words of "a\0b c" are "ab" and "c".
    #[test]
    fn zeros_are_not_written() {
        let (table, _, words) = run(&tables(kind::WORDS, 0, 0), &[b"a\0b c"]);
        assert_eq!(
            words.iter().map(|&word| table.text(word).unwrap()).collect::<Vec<_>>(),
            [&b"ab"[..], b"c"]
        );
        assert_eq!(run(&tables(kind::BERT, flag::BASIC, 0), &[b"a\0b"]).2, [1, 10, 2]);
        let (table, _, pieces) = run(&tables(kind::PIECES, 0, 0), &[b"a\0b a\0"]);
        let pieces: Vec<_> = pieces.iter().map(|&piece| table.text(piece).unwrap()).collect();
        assert_eq!(pieces, [&b"a\0b"[..], b"a", b"?"]);
    }

    #[test]
    fn broken_tables_are_refused() {
        let whole = tables(kind::BERT, flag::BASIC, 0);
        let table = Table::new(&[b"ab"]);
        for length in 0..whole.len() {
            let tables = &whole[..length];
            // The texts come last: without some of them others are found still.
            let found =
                table.state().tokenize(&Asked::of(&[0], tables), result::COUNTS, &mut [0], |tables, to| {
                    encode(table.state(), &[0], tables, to)
                });
            assert!(
                found == Err(Status::BAD_SIZE) || length > whole.len() - 24,
                "{length} of {}",
                whole.len()
            );
        }
    }
}
