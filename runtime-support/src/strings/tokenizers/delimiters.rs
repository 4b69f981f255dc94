//! Texts cut at what matches a regular expression, as the operator of TensorFlow Text does it.

use crate::abi::Status;

use super::super::dfa;
use super::super::nfa::{Program, Search};
use super::super::table::State;
use super::Encoded;
use super::tables::Tables;

/// Parts of the tables.
mod part {
    /// The program of the delimiters, whose first group is one.
    pub(super) const DELIMITERS: usize = 0;
    /// The program of those that are parts themselves, or nothing.
    pub(super) const KEPT: usize = 1;
}

/// Tables of an expression's search and of the program of the delimiters that are parts themselves, which may be empty. Or how many
/// bytes are too many.
#[cfg(feature = "compile")]
pub fn delimiters_tables(delimiters: &[u8], kept: &[u8]) -> Result<Vec<u8>, usize> {
    super::tables::tables(&[], &[delimiters, kept])
}

pub(super) fn encode<'s>(
    state: &'s State,
    numbers: &[i64],
    tables: &Tables<'_>,
    to: &mut Encoded<'s>,
) -> Result<(), Status> {
    let program = Program::of(tables.part(part::DELIMITERS)?).ok_or(Status::BAD_SIZE)?;
    let kept = match tables.part(part::KEPT)? {
        [] => None,
        kept => Some(dfa::Program::of(kept).ok_or(Status::BAD_SIZE)?),
    };
    let mut search = Search::of(program, state.memory())?;
    state.each(numbers, |&number| {
        let text = state.read(number)?;
        let add = |to: &mut Encoded<'s>, from: usize, end: usize| {
            let part = text.get(from..end).unwrap_or_default();
            // SAFETY: a part of a text of this table, whose texts neither move nor change before it is closed.
            let number = unsafe { state.refer(part)? };
            to.tokens.push(number)?;
            to.offsets.push([from as i64, end as i64])
        };
        let mut begin = 0;
        // Each search sees what is left as a text of its own.
        while let rest @ [_, ..] = text.get(begin..).unwrap_or_default()
            && search.find(rest, 0)?
        {
            let whole = search.group(0).ok_or(Status::BAD_SIZE)?;
            // Where the group took no part, the whole match is the delimiter.
            let (from, end) = search.group(1).unwrap_or(whole);
            if from > 0 {
                add(to, begin, begin + from)?;
            }
            let delimiter = rest.get(from..end).unwrap_or_default();
            if let Some(kept) = &kept
                && kept.matches(delimiter).ok_or(Status::BAD_SIZE)?
            {
                add(to, begin + from, begin + end)?;
            }
            if whole.1 == 0 {
                return Err(Status::BAD_SIZE);
            }
            begin += whole.1;
        }
        if begin < text.len() {
            add(to, begin, text.len())?;
        }
        to.end_text()
    })
}
