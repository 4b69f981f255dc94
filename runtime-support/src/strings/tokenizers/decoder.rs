//! From tokens back to texts.

use crate::abi::Status;

use super::super::chunks::Draft;
use super::super::memory::List;
use super::super::table::State;
use super::letters::{decode, is_punctuation};
use super::tables::{Tables, Texts};

impl State {
    /// The text of each span of tokens.
    pub(super) fn texts_of<'s>(
        &'s self,
        spans: &[[i64; 2]],
        tokens: &[i64],
        out: &mut [i64],
        mut write: impl FnMut(&'s State, &[i64], &mut Draft<'s>) -> Result<(), Status>,
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
    pub const FLAGS: usize = 0;
    /// How many tokens are passed over; each follows.
    pub const SPECIAL: usize = 1;
}

/// Parts of these tables.
mod part {
    pub const UNKNOWN: usize = 0;
    pub const SUFFIX: usize = 1;
    pub const VOCABULARY: usize = 2;
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
pub(super) fn words<'t, 's>(
    tables: &Tables<'t>,
) -> Result<impl FnMut(&'s State, &[i64], &mut Draft<'s>) -> Result<(), Status> + use<'t, 's>, Status> {
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
