//! The constant strings of a model: a read-only blob in its object, with a hash table that the compiler filled.
//!
//! All numbers in it are little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 8 | bytes of the blob |
//! | 4 | count of texts |
//! | 4 | slots: a power of two, or 0 where there are no texts |
//! | 8 per slot | hash table, see `probe.rs` |
//! | 8 per text | where it ends, counted from the first text's start; it begins where the one before ends |
//! | rest | the texts |

use crate::abi::Status;

use super::probe::{Probe, hash, probe, slot};

const MAGIC: [u8; 8] = *b"onnxcst1";
const HEADER: usize = 24;

fn word(bytes: &[u8], index: usize) -> Option<u64> {
    bytes.as_chunks::<8>().0.get(index).map(|word| u64::from_le_bytes(*word))
}

/// A blob whose header was checked. What lies behind the header is checked as it is read.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Constants {
    blob: *const u8,
    bytes: usize,
    count: u32,
    slots: u32,
}

impl Constants {
    pub(super) const NONE: Constants = Constants { blob: std::ptr::null(), bytes: 0, count: 0, slots: 0 };

    /// # Safety
    /// `blob` is null or points to a blob, whose bytes neither move nor change while this value is used. If there is no
    /// blob, there are at least 16 bytes, and where these begin like one, the number that they state.
    pub(super) unsafe fn of(blob: *const u8) -> Result<Constants, Status> {
        if blob.is_null() {
            return Ok(Constants::NONE);
        }
        // SAFETY: the caller guarantees 16 bytes.
        let start = unsafe { std::slice::from_raw_parts(blob, 16) };
        let bytes = match word(start, 1).map(usize::try_from) {
            Some(Ok(bytes)) if start.starts_with(&MAGIC) && bytes <= isize::MAX as usize => bytes,
            _ => return Err(Status::BAD_SIZE),
        };
        // SAFETY: as above.
        let header = unsafe { std::slice::from_raw_parts(blob, bytes) };
        let sizes = word(header, 2).ok_or(Status::BAD_SIZE)?;
        let (count, slots) = (sizes as u32, (sizes >> 32) as u32);
        let tables = 8 * (u64::from(count) + u64::from(slots));
        if (slots != 0 && !slots.is_power_of_two()) || tables > (bytes - HEADER) as u64 {
            return Err(Status::BAD_SIZE);
        }
        Ok(Constants { blob, bytes, count, slots })
    }

    pub(super) fn count(&self) -> usize {
        self.count as usize
    }

    /// The slots, the ends of the texts, and the texts.
    fn parts(&self) -> (&[u8], &[u8], &[u8]) {
        if self.blob.is_null() {
            return (&[], &[], &[]);
        }
        // SAFETY: the blob has `self.bytes` bytes, as `Constants::of` read.
        let blob = unsafe { std::slice::from_raw_parts(self.blob, self.bytes) };
        let ends = HEADER + 8 * self.slots as usize;
        let texts = ends + 8 * self.count();
        match (blob.get(HEADER..ends), blob.get(ends..texts), blob.get(texts..)) {
            (Some(slots), Some(ends), Some(texts)) => (slots, ends, texts),
            _ => (&[], &[], &[]),
        }
    }

    pub(super) fn text(&self, index: usize) -> Option<&[u8]> {
        let (_, ends, texts) = self.parts();
        let start = if index == 0 { 0 } else { word(ends, index - 1)? };
        texts.get(usize::try_from(start).ok()?..usize::try_from(word(ends, index)?).ok()?)
    }

    /// The index of a text with this hash.
    pub(super) fn find(&self, hash: u32, text: &[u8]) -> Option<u32> {
        let (slots, ..) = self.parts();
        // A slot that is not there is as good as an empty one.
        let slot = |at| word(slots, at).unwrap_or(0);
        match probe(hash, slots.len() / 8, slot, |index| self.text(index as usize) == Some(text)) {
            Probe::Found(index) => Some(index),
            Probe::Vacant(_) | Probe::Full => None,
        }
    }
}

/// The blob of a model's constant strings: the text at an index has this number in all runs. The texts are distinct;
/// of equal ones all but the first would have numbers that nothing else gives.
///
/// # Panics
/// With 2^30 texts or more, which take more memory than a model's budget.
pub fn constants(texts: &[&[u8]]) -> Vec<u8> {
    assert!(texts.len() < 1 << 30, "{} constant strings", texts.len());
    // At most half full.
    let slots = if texts.is_empty() { 0 } else { (2 * texts.len()).next_power_of_two() };
    let mut table = vec![0_u64; slots];
    for (index, &text) in texts.iter().enumerate() {
        let hash = hash(text);
        if let Probe::Vacant(at) =
            probe(hash, slots, |at| table[at], |other| texts.get(other as usize) == Some(&text))
        {
            table[at] = slot(hash, index as u32);
        }
    }
    let mut end = 0;
    let ends = texts.iter().map(|text| {
        end += text.len() as u64;
        end
    });
    let words = table.iter().copied().chain(ends).flat_map(u64::to_le_bytes).collect::<Vec<u8>>();
    let texts_bytes = texts.iter().map(|text| text.len()).sum::<usize>();
    let bytes = HEADER + words.len() + texts_bytes;
    let mut blob = Vec::with_capacity(bytes);
    blob.extend(MAGIC);
    blob.extend((bytes as u64).to_le_bytes());
    blob.extend((texts.len() as u32).to_le_bytes());
    blob.extend((slots as u32).to_le_bytes());
    blob.extend(words);
    texts.iter().for_each(|text| blob.extend(*text));
    blob
}
