//! What a tokenizer needs beside texts, as the compiler laid it out: numbers, and parts of bytes.
//!
//! All numbers are little-endian words of 4 bytes:
//!
//! | words | what |
//! |---|---|
//! | 1 | [`MAGIC`] |
//! | 1 | count of numbers |
//! | 1 | count of parts |
//! | 1 per number | the number |
//! | 2 per part | where it begins, in bytes of the whole, and how many bytes it has |
//! | rest | the parts, each at a multiple of 4 |

use crate::abi::Status;

const MAGIC: u32 = u32::from_le_bytes(*b"tok1");

/// Words that lie in bytes of any alignment.
pub(super) type Words<'t> = &'t [[u8; 4]];

pub(super) fn word(words: Words<'_>, at: usize) -> Option<u32> {
    words.get(at).map(|word| u32::from_le_bytes(*word))
}

/// The tables of a tokenizer, whose parts are checked as they are read.
#[derive(Clone, Copy)]
pub(in super::super) struct Tables<'t> {
    bytes: &'t [u8],
    numbers: Words<'t>,
    parts: Words<'t>,
}

impl<'t> Tables<'t> {
    pub(super) fn of(bytes: &'t [u8]) -> Result<Tables<'t>, Status> {
        let words = bytes.as_chunks::<4>().0;
        let read = || {
            let header = (word(words, 0)?, word(words, 1)? as usize, word(words, 2)? as usize);
            let (MAGIC, numbers, parts) = header else { return None };
            let (numbers, rest) = words.get(3..)?.split_at_checked(numbers)?;
            Some(Tables { bytes, numbers, parts: rest.get(..parts.checked_mul(2)?)? })
        };
        read().ok_or(Status::BAD_SIZE)
    }

    pub(super) fn number(&self, at: usize) -> Result<u32, Status> {
        word(self.numbers, at).ok_or(Status::BAD_SIZE)
    }

    pub(super) fn part(&self, at: usize) -> Result<&'t [u8], Status> {
        let read = || {
            let (start, size) = (word(self.parts, 2 * at)? as usize, word(self.parts, 2 * at + 1)? as usize);
            self.bytes.get(start..start.checked_add(size)?)
        };
        read().ok_or(Status::BAD_SIZE)
    }
}

/// Tables of numbers and parts, or the bytes that are too many for them.
#[cfg(feature = "compile")]
pub(super) fn tables(numbers: &[u32], parts: &[&[u8]]) -> Result<Vec<u8>, usize> {
    let header = 4 * (3 + numbers.len() + 2 * parts.len());
    let total = parts.iter().fold(header, |total, part| total + part.len().next_multiple_of(4));
    if u32::try_from(total).is_err() {
        return Err(total);
    }
    let mut bytes = Vec::with_capacity(total);
    let mut push = |value: u32| bytes.extend(value.to_le_bytes());
    [MAGIC, numbers.len() as u32, parts.len() as u32].iter().chain(numbers).for_each(|&value| push(value));
    let mut start = header;
    for part in parts {
        push(start as u32);
        push(part.len() as u32);
        start += part.len().next_multiple_of(4);
    }
    for part in parts {
        bytes.extend(*part);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    Ok(bytes)
}

/// Texts by their places, one behind the other.
#[derive(Clone, Copy)]
pub(super) struct Texts<'t> {
    ends: Words<'t>,
    texts: &'t [u8],
}

impl<'t> Texts<'t> {
    pub(super) fn of(part: &'t [u8]) -> Result<Texts<'t>, Status> {
        let read = || {
            let (count, rest) = part.split_first_chunk::<4>()?;
            let count = u32::from_le_bytes(*count) as usize;
            let (ends, texts) = rest.split_at_checked(count.checked_mul(4)?)?;
            Some(Texts { ends: ends.as_chunks().0, texts })
        };
        read().ok_or(Status::BAD_SIZE)
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn text(&self, at: usize) -> Option<&'t [u8]> {
        let start = if at == 0 { 0 } else { word(self.ends, at - 1)? };
        self.texts.get(start as usize..word(self.ends, at)? as usize)
    }
}

/// A part with these texts.
#[cfg(feature = "compile")]
pub(super) fn texts<'t>(texts: impl IntoIterator<Item = &'t [u8], IntoIter: Clone>) -> Vec<u8> {
    let texts = texts.into_iter();
    let mut bytes = (texts.clone().count() as u32).to_le_bytes().to_vec();
    let mut end = 0;
    for text in texts.clone() {
        end += text.len() as u32;
        bytes.extend(end.to_le_bytes());
    }
    texts.for_each(|text| bytes.extend(text));
    bytes
}
