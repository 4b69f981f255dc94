//! Tokenizers of onnxruntime-extensions: texts to the numbers or texts of their tokens, and back.
//!
//! A family is one function of the C ABI, and what is not texts lies in tables that the compiler makes. The function is called first for
//! how many tokens each text has, from which the sizes of results follow, then for each result. What the first call found is kept
//! for the others.

pub mod bert;
pub mod bpe;
mod classes;
mod decoder;
mod delimiters;
mod heap;
mod letters;
mod lexicon;
mod normalizer;
pub mod sentencepiece;
mod tables;
pub mod unigram;
pub mod words;

use crate::abi::Status;

use super::arguments::{input, open, output, status};
use super::memory::{List, Memory};
use super::table::State;
use tables::Tables;

#[cfg(feature = "compile")]
pub use decoder::{Bytes, bytes_flag, words_tables};
#[cfg(feature = "compile")]
pub use delimiters::delimiters_tables;

/// What a call asks for.
pub mod result {
    /// How many tokens each text has.
    pub const COUNTS: i64 = 0;
    /// All tokens.
    pub const TOKENS: i64 = 1;
    /// Of each token the place of its text.
    pub const TEXTS: i64 = 2;
    /// Where tokens lie in their texts: from, to.
    pub const OFFSETS: i64 = 3;
    /// The tokens of each text in a row of its own, filled up.
    pub const ROWS: i64 = 4;
    /// How many tokens lie before each text, and behind the last.
    pub const STARTS: i64 = 6;
    /// 1 for each token there, 0 for what fills up.
    pub const MASK: i64 = 5;
}

/// The tokens of texts.
struct Encoded<'m> {
    /// How many of each text.
    counts: List<'m, i64>,
    /// Their numbers, or those of their texts.
    tokens: List<'m, i64>,
    offsets: List<'m, [i64; 2]>,
    /// What fills up rows.
    padding: i64,
}

impl<'m> Encoded<'m> {
    fn new(memory: &'m Memory) -> Encoded<'m> {
        let (counts, tokens, offsets) = (List::new(memory), List::new(memory), List::new(memory));
        Encoded { counts, tokens, offsets, padding: 0 }
    }

    /// Ends a text: what was found since the one before is its.
    fn end_text(&mut self) -> Result<(), Status> {
        let before = self.counts.iter().sum::<i64>();
        self.counts.push(self.tokens.len() as i64 - before)
    }
}

/// What a tokenizer is asked: the numbers of texts, its tables, and what it does in another way than they say, or 0.
#[derive(Clone, Copy)]
struct Asked<'c> {
    numbers: &'c [i64],
    tables: &'c [u8],
    options: usize,
}

impl<'c> Asked<'c> {
    fn of(numbers: &'c [i64], tables: &'c [u8]) -> Asked<'c> {
        Asked { numbers, tables, options: 0 }
    }
}

type Number = [u8; 8];

/// What was found, as it is kept: where the tables lie and how long they are, what the call asks beside them, counts of texts, tokens
/// and offsets, the padding; then the numbers of the texts, the counts, the tokens, the offsets.
#[derive(Clone, Copy)]
struct Found<'w> {
    texts: &'w [Number],
    counts: &'w [Number],
    tokens: &'w [Number],
    offsets: &'w [Number],
    padding: i64,
}

const HEADER: usize = 7;

fn header(asked: &Asked<'_>, encoded: [usize; 2], padding: i64) -> [Number; HEADER] {
    let Asked { numbers, tables, options } = asked;
    let place = [tables.as_ptr() as usize, tables.len(), *options, numbers.len(), encoded[0], encoded[1]];
    let mut header = [[0; 8]; HEADER];
    let values = place.into_iter().map(|value| value as i64).chain([padding]);
    header.iter_mut().zip(values).for_each(|(to, value)| *to = value.to_ne_bytes());
    header
}

impl<'w> Found<'w> {
    /// What is kept, if that is what is asked for.
    fn of(words: &'w [Number], asked: &Asked<'_>) -> Option<Found<'w>> {
        let numbers = asked.numbers;
        let (start, rest) = words.split_at_checked(HEADER)?;
        let size = |at: usize| start.get(at).map(|word| i64::from_ne_bytes(*word) as usize);
        let padding = i64::from_ne_bytes(*start.get(6)?);
        let (tokens, offsets) = (size(4)?, size(5)?);
        if start != header(asked, [tokens, offsets], padding) {
            return None;
        }
        let (texts, rest) = rest.split_at_checked(numbers.len())?;
        let (counts, rest) = rest.split_at_checked(numbers.len())?;
        let (tokens, offsets) = rest.split_at_checked(tokens)?;
        let same = texts.iter().zip(numbers).all(|(text, number)| *text == number.to_ne_bytes());
        same.then_some(Found { texts, counts, tokens, offsets, padding })
    }

    fn give(&self, what: i64, out: &mut [i64]) -> Result<(), Status> {
        let copy = |from: &[Number], out: &mut [i64]| {
            out.iter_mut().zip(from).for_each(|(out, number)| *out = i64::from_ne_bytes(*number));
        };
        let of_size = |size: usize| if out.len() == size { Ok(()) } else { Err(Status::BAD_SIZE) };
        match what {
            result::COUNTS => {
                of_size(self.counts.len())?;
                copy(self.counts, out);
            }
            result::TOKENS => {
                of_size(self.tokens.len())?;
                copy(self.tokens, out);
            }
            result::STARTS => {
                of_size(self.counts.len() + 1)?;
                let mut start = 0;
                for (out, count) in out.iter_mut().zip(self.counts.iter().chain([&[0; 8]])) {
                    *out = start;
                    start += i64::from_ne_bytes(*count);
                }
            }
            // There may be more, of what was cut off.
            result::OFFSETS => {
                out.fill(0);
                copy(self.offsets, out);
            }
            result::TEXTS => {
                of_size(self.tokens.len())?;
                let mut rest = out;
                for (text, count) in self.counts.iter().enumerate() {
                    let count = i64::from_ne_bytes(*count) as usize;
                    let (own, behind) = rest.split_at_mut_checked(count).ok_or(Status::BAD_SIZE)?;
                    own.fill(text as i64);
                    rest = behind;
                }
            }
            result::ROWS | result::MASK => {
                let width = out.len().checked_div(self.texts.len()).unwrap_or(0);
                of_size(width * self.texts.len())?;
                let mut tokens = self.tokens;
                for (text, count) in self.counts.iter().enumerate() {
                    let count = i64::from_ne_bytes(*count) as usize;
                    let (own, behind) = tokens.split_at_checked(count).ok_or(Status::BAD_SIZE)?;
                    tokens = behind;
                    let row = out.get_mut(text * width..(text + 1) * width).ok_or(Status::BAD_SIZE)?;
                    // A row may be shorter than what the text has.
                    let (there, filled) = row.split_at_mut(count.min(width));
                    if what == result::MASK {
                        there.fill(1);
                        filled.fill(0);
                    } else {
                        copy(own, there);
                        filled.fill(self.padding);
                    }
                }
            }
            _ => return Err(Status::BAD_SIZE),
        }
        Ok(())
    }
}

impl State {
    /// A result of a tokenizer, `encode`, which notes the element that it fails at.
    fn tokenize<'s>(
        &'s self,
        asked: &Asked<'_>,
        what: i64,
        out: &mut [i64],
        encode: impl FnOnce(&Tables<'_>, &mut Encoded<'s>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if what != result::COUNTS {
            let mut given = None;
            self.kept(|bytes| {
                let found = Found::of(bytes.as_chunks().0, asked);
                given = found.map(|found| found.give(what, out));
                false
            });
            if let Some(given) = given {
                return given;
            }
        }
        let mut encoded = Encoded::new(self.memory());
        encode(&Tables::of(asked.tables)?, &mut encoded)?;
        let Encoded { counts, tokens, offsets, padding } = encoded;
        let sizes = [tokens.len(), 2 * offsets.len()];
        let mut words = List::new(self.memory());
        words.extend(&header(asked, sizes, padding))?;
        let values = asked.numbers.iter().chain(&*counts).chain(&*tokens).chain(offsets.as_flattened());
        values.map(|value| value.to_ne_bytes()).try_for_each(|word| words.push(word))?;
        let found = Found::of(&words, asked).ok_or(Status::BAD_SIZE)?;
        found.give(what, out)?;
        if what == result::COUNTS {
            let bytes = words.as_flattened();
            self.keep(bytes.len(), |kept| kept.copy_from_slice(bytes))?;
        }
        Ok(())
    }
}

/// Functions of one signature, each for a tokenizer.
macro_rules! tokenizers {
    ($($(#[$doc:meta])* $function:ident, $encode:path;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $function(
            state: *mut State,
            numbers: *const i64,
            tables: *const u8,
            out: *mut i64,
            n: i64,
            table_bytes: i64,
            what: i64,
            size: i64,
        ) -> Status {
            // SAFETY: the caller says so.
            status((|| unsafe {
                let (state, numbers, tables) = (open(state)?, input(numbers, n)?, input(tables, table_bytes)?);
                let encode = |tables: &Tables<'_>, to: &mut Encoded<'_>| $encode(state, numbers, tables, to);
                state.tokenize(&Asked::of(numbers, tables), what, output(out, size)?, encode)
            })())
        }
    )*};
}

tokenizers! {
    /// Words and pieces of words, as BERT's models have them: `numbers` `[n]`, `tables` `[table_bytes]`, which the compiler makes,
    /// `out` `[size]`, the result that `what` asks for.
    ///
    /// # Safety
    /// All pointers are as the module of these functions describes; likewise below.
    onnxc_strings_bert, bert::encode;

    /// Pairs of bytes, as GPT-2, RoBERTa and CLIP have them: as [`onnxc_strings_bert`].
    ///
    /// # Safety
    /// As above.
    onnxc_strings_bpe, bpe::encode;

    /// Parts of texts between what matches a regular expression: as [`onnxc_strings_bert`].
    ///
    /// # Safety
    /// As above.
    onnxc_strings_delimited, delimiters::encode;

    /// Unigram models of the `tokenizers` package: as [`onnxc_strings_bert`]. `BAD_TEXT` for a text that is not UTF-8.
    ///
    /// # Safety
    /// As above.
    onnxc_strings_unigram, unigram::encode;
}

/// Texts of tokens of such models: as [`onnxc_strings_bert_texts`].
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_bpe_texts(
    state: *mut State,
    spans: *const i64,
    tokens: *const i64,
    tables: *const u8,
    out: *mut i64,
    k: i64,
    n: i64,
    table_bytes: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, tables) = (open(state)?, Tables::of(input(tables, table_bytes)?)?);
        let spans = input(spans, k.checked_mul(2).ok_or(Status::BAD_SIZE)?)?;
        let write = decoder::bytes(&tables)?;
        state.texts_of(spans.as_chunks().0, input(tokens, n)?, output(out, k)?, write)
    })())
}

/// Texts of tokens that BERT's models give: `spans` `[k, 2]`, from and to in `tokens` `[n]`, `tables` `[table_bytes]`, `out` `[k]`.
/// `BAD_TEXT` for a span that is not within the tokens.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_bert_texts(
    state: *mut State,
    spans: *const i64,
    tokens: *const i64,
    tables: *const u8,
    out: *mut i64,
    k: i64,
    n: i64,
    table_bytes: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, tables) = (open(state)?, Tables::of(input(tables, table_bytes)?)?);
        let spans = input(spans, k.checked_mul(2).ok_or(Status::BAD_SIZE)?)?;
        let write = decoder::words(&tables)?;
        state.texts_of(spans.as_chunks().0, input(tokens, n)?, output(out, k)?, write)
    })())
}

/// Models of sentencepiece: as [`onnxc_strings_bert`], with `options` [`sentencepiece::option::COUNT`], each 0 or 1.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_sentencepiece(
    state: *mut State,
    numbers: *const i64,
    tables: *const u8,
    options: *const u8,
    out: *mut i64,
    n: i64,
    table_bytes: i64,
    what: i64,
    size: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, numbers, tables) = (open(state)?, input(numbers, n)?, input(tables, table_bytes)?);
        let options = input(options, sentencepiece::option::COUNT as i64)?;
        let is = std::array::from_fn(|at| options.get(at).is_some_and(|&option| option != 0));
        let bits = is.iter().fold(0, |bits, &is| bits << 1 | usize::from(is));
        let encode =
            |tables: &Tables<'_>, to: &mut Encoded<'_>| sentencepiece::encode(state, numbers, tables, is, to);
        let asked = Asked { options: bits, ..Asked::of(numbers, tables) };
        state.tokenize(&asked, what, output(out, size)?, encode)
    })())
}

/// The text of tokens of a model of sentencepiece: `tokens` `[n]`, `tables` `[table_bytes]`, `fairseq` `[1]`, whether they are of
/// fairseq's vocabulary, `out` `[1]`. `BAD_TEXT` for a token that the model has not.
///
/// # Safety
/// As above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn onnxc_strings_sentencepiece_text(
    state: *mut State,
    tokens: *const i64,
    tables: *const u8,
    fairseq: *const u8,
    out: *mut i64,
    n: i64,
    table_bytes: i64,
) -> Status {
    // SAFETY: the caller says so.
    status((|| unsafe {
        let (state, tables) = (open(state)?, Tables::of(input(tables, table_bytes)?)?);
        let fairseq = input(fairseq, 1)? != [0];
        output(out, 1)?.fill(sentencepiece::text_of(state, input(tokens, n)?, &tables, fairseq)?);
        Ok(())
    })())
}
