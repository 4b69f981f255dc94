//! A set of texts, each with a number: found as a whole, or byte by byte, which finds all that a text begins with.
//!
//! The texts lie one behind the other in the order of their bytes, so that those that begin alike are a range, and a byte more
//! is a search within it. That takes 8 bytes per text beside the texts, and nothing is prepared when a run begins.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | count of texts |
//! | 4 per byte value, and 4 | how many texts begin with a lower byte or are empty; all of them |
//! | 4 per text | its number |
//! | rest | the texts, as `Texts` |

use crate::abi::Status;

use super::tables::{Texts, Words, word};

const FIRST: usize = 257;

#[derive(Clone, Copy)]
pub(super) struct Lexicon<'t> {
    first: Words<'t>,
    numbers: Words<'t>,
    texts: Texts<'t>,
}

impl<'t> Lexicon<'t> {
    pub(super) fn of(part: &'t [u8]) -> Result<Lexicon<'t>, Status> {
        let words = part.as_chunks::<4>().0;
        let read = || {
            let count = word(words, 0)? as usize;
            let (first, rest) = words.get(1..)?.split_at_checked(FIRST)?;
            let numbers = rest.get(..count)?;
            Some((first, numbers, part.get(4 * (1 + FIRST + count)..)?))
        };
        let (first, numbers, texts) = read().ok_or(Status::BAD_SIZE)?;
        Ok(Lexicon { first, numbers, texts: Texts::of(texts)? })
    }

    /// Before the first byte.
    pub(super) fn walk(&self) -> Walk<'t> {
        Walk { lexicon: *self, low: 0, high: self.texts.count(), depth: 0 }
    }

    /// The longest text that `text` begins with: its bytes, and its place.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, usize)> {
        let (mut walk, mut longest) = (self.walk(), None);
        for (at, &byte) in text.iter().enumerate() {
            if !walk.step(byte) {
                break;
            }
            longest = walk.end().map(|place| (at + 1, place)).or(longest);
        }
        longest
    }

    /// The number of this text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let mut walk = self.walk();
        let place = if text.iter().all(|&byte| walk.step(byte)) { walk.end() } else { None };
        self.number(place?)
    }

    /// The text and the number at a place.
    pub(super) fn text(&self, place: usize) -> Option<&'t [u8]> {
        self.texts.text(place)
    }

    pub(super) fn number(&self, place: usize) -> Option<u32> {
        word(self.numbers, place)
    }
}

/// The texts that begin with the bytes so far.
#[derive(Clone, Copy)]
pub(super) struct Walk<'t> {
    lexicon: Lexicon<'t>,
    low: usize,
    high: usize,
    depth: usize,
}

impl Walk<'_> {
    /// Goes on by a byte; whether any text does.
    pub(super) fn step(&mut self, byte: u8) -> bool {
        let first = |at: usize| word(self.lexicon.first, at).map_or(0, |place| place as usize);
        if self.depth == 0 {
            (self.low, self.high) = (first(usize::from(byte)), first(usize::from(byte) + 1));
        } else {
            self.low = self.search(self.low, |next| next >= Some(byte));
            self.high = self.search(self.low, |next| next > Some(byte));
        }
        self.depth += 1;
        self.low < self.high
    }

    /// The first place from `from` on whose next byte, `None` behind the end of its text, is so; the range is ordered by them.
    fn search(&self, from: usize, is: impl Fn(Option<u8>) -> bool) -> usize {
        let (mut low, mut high) = (from, self.high);
        while low < high {
            let middle = low + (high - low) / 2;
            let next = self.lexicon.text(middle).and_then(|text| text.get(self.depth).copied());
            if is(next) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Where the text of just these bytes is.
    pub(super) fn end(&self) -> Option<usize> {
        let text = if self.low < self.high { self.lexicon.text(self.low) } else { None };
        (text?.len() == self.depth).then_some(self.low)
    }
}

/// A part with these texts; of equal ones the last has its number there.
#[cfg(feature = "compile")]
pub(super) fn lexicon<'e>(entries: impl IntoIterator<Item = (&'e [u8], u32)>) -> Vec<u8> {
    let mut entries: Vec<(&[u8], u32)> = entries.into_iter().collect();
    entries.sort_by_key(|&(text, _)| text);
    // Stable: the last of equal ones is the last of them here.
    let last: Vec<_> =
        entries.chunk_by(|(a, _), (b, _)| a == b).filter_map(|same| same.last().copied()).collect();
    let mut bytes = (last.len() as u32).to_le_bytes().to_vec();
    let below = |byte: u32| {
        last.partition_point(|(text, _)| text.first().is_none_or(|&first| u32::from(first) < byte)) as u32
    };
    (0..FIRST as u32).for_each(|byte| bytes.extend(below(byte).to_le_bytes()));
    last.iter().for_each(|(_, number)| bytes.extend(number.to_le_bytes()));
    bytes.extend(super::tables::texts(last.iter().map(|&(text, _)| text)));
    bytes
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_whole_and_as_beginnings() {
        let entries: [&[u8]; 8] = [b"b", b"", b"abc", b"ab", b"\xff", b"ab", b"\xff\0", b"a\0"];
        let part = lexicon(entries.iter().enumerate().map(|(at, &text)| (text, at as u32)));
        let lexicon = Lexicon::of(&part).unwrap();
        for (at, text) in entries.iter().enumerate() {
            let last = entries.iter().rposition(|other| other == text).unwrap();
            assert_eq!(lexicon.find(text), Some(last as u32), "{at}");
        }
        for text in [&b"a"[..], b"abcd", b"c", b"\0", b"\xff\x01", b"bb"] {
            assert_eq!(lexicon.find(text), None, "{text:?}");
        }
        let mut walk = lexicon.walk();
        let ends: Vec<_> = b"abcd".iter().map(|&byte| (walk.step(byte), walk.end().is_some())).collect();
        assert_eq!(ends, [(true, false), (true, true), (true, true), (false, false)]);
        assert_eq!(lexicon.longest(b"abcd").map(|(size, _)| size), Some(3));
        assert_eq!(lexicon.longest(b"a\x01").map(|(size, _)| size), None);
        for length in 0..part.len() {
            if let Ok(lexicon) = Lexicon::of(&part[..length]) {
                lexicon.find(b"abc");
            }
        }
    }
}
