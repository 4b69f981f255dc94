//! Texts as models of sentencepiece normalize them: characters by a compiled map, spaces joined and marked.
//!
//! The map is that of the model (`precompiled_charsmap`), as it is: the bytes of a trie in the format of darts-clone, then the texts
//! that its values point to, each with a zero behind it.

use crate::abi::Status;

use super::super::memory::{List, Memory};
use super::lexicon::Lexicon;
use super::tables::{Words, word};

pub mod flag {
    /// A space stands before the text, or with [`SUFFIX`] behind it.
    pub const DUMMY: u32 = 1;
    /// No spaces at the ends, and one of several within.
    pub const JOIN: u32 = 2;
    /// Spaces become [`super::SPACE`].
    pub const ESCAPE: u32 = 4;
    pub const SUFFIX: u32 = 8;
}

/// What stands for a space in vocabularies.
pub(super) const SPACE: &[u8] = "\u{2581}".as_bytes();

/// What a byte becomes that begins no character.
pub(super) const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

/// Bytes of the character that a text begins with, if it begins with a whole one.
pub(super) fn character(text: &[u8]) -> Option<usize> {
    let size = match text.first()? {
        0..0x80 => 1,
        0xc2..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0..0xf5 => 4,
        _ => return None,
    };
    std::str::from_utf8(text.get(..size)?).is_ok().then_some(size)
}

/// The trie of a map.
#[derive(Clone, Copy)]
pub(super) struct Trie<'t> {
    units: Words<'t>,
    texts: &'t [u8],
}

impl<'t> Trie<'t> {
    pub(super) fn of(map: &'t [u8]) -> Result<Option<Trie<'t>>, Status> {
        if map.is_empty() {
            return Ok(None);
        }
        let read = || {
            let (size, rest) = map.split_first_chunk::<4>()?;
            let (units, texts) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
            Some(Trie { units: units.as_chunks().0, texts })
        };
        read().map(Some).ok_or(Status::BAD_SIZE)
    }

    /// The longest text of the map that `text` begins with: its bytes, and what it becomes.
    pub(super) fn longest(&self, text: &[u8]) -> Option<(usize, &'t [u8])> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize;
        let mut place = offset(word(self.units, 0)?);
        let mut longest = None;
        for (at, &byte) in text.iter().enumerate() {
            place ^= usize::from(byte);
            let Some(unit) = word(self.units, place) else { break };
            if unit & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            place ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let value = word(self.units, place).map(|leaf| (leaf & !(1 << 31)) as usize);
                longest = value.map(|value| (at + 1, value)).or(longest);
            }
        }
        let (size, value) = longest?;
        let behind = self.texts.get(value..).unwrap_or_default();
        let end = behind.iter().position(|&byte| byte == 0).unwrap_or(behind.len());
        Some((size, behind.get(..end).unwrap_or_default()))
    }
}

pub(super) struct Normalizer<'t> {
    flags: u32,
    trie: Option<Trie<'t>>,
    /// Texts that stay as they are.
    kept: Lexicon<'t>,
}

/// A normalized text.
pub(super) struct Normal<'m> {
    pub(super) text: List<'m, u8>,
    /// Of each byte, and of the end, the place in the original; nothing where that has only spaces.
    pub(super) origins: List<'m, u32>,
}

impl<'m> Normal<'m> {
    pub(super) fn new(memory: &'m Memory) -> Normal<'m> {
        Normal { text: List::new(memory), origins: List::new(memory) }
    }

    fn push(&mut self, text: &[u8], origin: usize) -> Result<(), Status> {
        self.text.extend(text)?;
        text.iter().try_for_each(|_| self.origins.push(origin as u32))
    }
}

impl<'t> Normalizer<'t> {
    pub(super) fn of(flags: u32, map: &'t [u8], kept: Lexicon<'t>) -> Result<Normalizer<'t>, Status> {
        Ok(Normalizer { flags, trie: Trie::of(map)?, kept })
    }

    /// How many bytes the first part of a text has, one at least, and what it becomes.
    fn first<'a>(&self, text: &'a [u8]) -> (usize, &'a [u8])
    where
        't: 'a,
    {
        let kept = self.kept.longest(text).map(|(size, _)| (size, text.get(..size).unwrap_or_default()));
        let mapped = || self.trie.and_then(|trie| trie.longest(text));
        kept.or_else(mapped).unwrap_or_else(|| match character(text) {
            Some(size) => (size, text.get(..size).unwrap_or_default()),
            None => (1, REPLACEMENT),
        })
    }

    /// Writes the normalized text to `to`, which is cleared.
    pub(super) fn normalize(&self, original: &[u8], to: &mut Normal<'_>) -> Result<(), Status> {
        to.text.clear();
        to.origins.clear();
        u32::try_from(original.len()).map_err(|_| Status::SIZE_OVERFLOW)?;
        let has = |flag: u32| self.flags & flag != 0;
        let space = if has(flag::ESCAPE) { SPACE } else { b" " };
        let mut at = 0;
        let rest = |at: usize| original.get(at..).unwrap_or_default();
        while has(flag::JOIN) && at < original.len() {
            let (size, text) = self.first(rest(at));
            if text != b" " {
                break;
            }
            at += size;
        }
        if at == original.len() {
            return Ok(());
        }
        if has(flag::DUMMY) && !has(flag::SUFFIX) {
            to.push(space, at)?;
        }
        let mut behind_space = has(flag::JOIN);
        while at < original.len() {
            let (size, mut text) = self.first(rest(at));
            while behind_space && let Some(less) = text.strip_prefix(b" ") {
                text = less;
            }
            for byte in text {
                to.push(if *byte == b' ' { space } else { std::slice::from_ref(byte) }, at)?;
            }
            if let Some(last) = text.last() {
                behind_space = *last == b' ' && has(flag::JOIN);
            }
            at += size;
        }
        // Where the last letter that stays ends.
        let mut end = at;
        while has(flag::JOIN) && to.text.ends_with(space) {
            let size = to.text.len() - space.len();
            end = to.origins.get(size).map_or(end, |&origin| origin as usize);
            to.text.truncate(size);
            to.origins.truncate(size);
        }
        if has(flag::DUMMY) && has(flag::SUFFIX) {
            to.push(space, end)?;
        }
        to.origins.push(end as u32)
    }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::super::super::Table;
    use super::super::lexicon::lexicon;
    use super::*;

    fn normal(flags: u32, map: &[u8], text: &[u8]) -> (String, Vec<u32>) {
        let table = Table::new(&[]);
        let kept = lexicon([(&b"k  k"[..], 0)]);
        let normalizer = Normalizer::of(flags, map, Lexicon::of(&kept).unwrap()).unwrap();
        let mut to = Normal::new(table.state().memory());
        normalizer.normalize(text, &mut to).unwrap();
        (String::from_utf8_lossy(&to.text).into_owned(), to.origins.to_vec())
    }

    #[test]
    fn spaces_are_joined_and_marked() {
        let of = |flags: u32, text: &str| normal(flags, &[], text.as_bytes()).0;
        assert_eq!(of(flag::DUMMY | flag::JOIN | flag::ESCAPE, "  a  b "), "\u{2581}a\u{2581}b");
        assert_eq!(of(flag::DUMMY | flag::JOIN | flag::SUFFIX, "  a  b "), "a b ");
        assert_eq!(of(flag::DUMMY, "  a "), "   a ");
        assert_eq!(of(flag::DUMMY | flag::JOIN, "  "), "");
        assert_eq!(of(flag::JOIN, "a k  k  k"), "a k  k k");
        assert_eq!(normal(flag::JOIN | flag::ESCAPE, &[], b" a  b ").1, [1, 2, 2, 2, 4, 5]);
        assert_eq!(normal(0, &[], b"\xff\xc3\xa9").0, "\u{fffd}\u{e9}");
    }

    /// A trie by hand: "a" becomes "xy", and "ab" nothing.
    #[test]
    fn the_longest_text_of_the_map_counts() {
        let unit =
            |offset: u32, leaf: bool, label: u8| offset << 10 | u32::from(leaf) << 8 | u32::from(label);
        let mut units = vec![1 << 31 | 0xff; 0x400];
        let (root, a, b) = (0x100, 0x200, 0x300);
        units[0] = unit(root, false, 0);
        let first = root ^ u32::from(b'a');
        units[first as usize] = unit(first ^ a, true, b'a');
        units[a as usize] = 1 << 31;
        let second = a ^ u32::from(b'b');
        units[second as usize] = unit(second ^ b, true, b'b');
        units[b as usize] = 1 << 31 | 3;
        let mut map = (4 * units.len() as u32).to_le_bytes().to_vec();
        units.iter().for_each(|unit| map.extend(unit.to_le_bytes()));
        map.extend(b"xy\0\0");
        assert_eq!(normal(0, &map, b"aabc"), ("xyc".into(), vec![0, 0, 3, 4]));
        for length in 1..map.len() {
            let kept = lexicon([]);
            if let Ok(normalizer) = Normalizer::of(0, &map[..length], Lexicon::of(&kept).unwrap()) {
                normalizer.first(b"ab");
            }
        }
    }
}
