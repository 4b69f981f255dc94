//! Open addressing, shared by the table of a run and the one that the compiler makes of a model's constants.
//!
//! A slot is a word: the hash of a text in its upper half, and the index of the text plus one in its lower half. A word
//! of 0 is an empty slot. A text is looked for from the slot of its hash on until it is found or a slot is empty, so
//! most texts that differ are distinguished without a look at them, and a table grows without a look at any.

/// The hash of a text. It is part of the format of constants, so the same on all machines.
///
/// Eight bytes at a time go through a product of twice their width whose halves are folded: each bit of a text moves
/// about half of the bits of the result, so that texts which differ in one letter or by a counter do not cluster.
pub(super) fn hash(text: &[u8]) -> u32 {
    const START: u64 = 0x9e37_79b9_7f4a_7c15;
    const STEP: u64 = 0xd6e8_feb8_6659_fd93;
    const END: u64 = 0xa076_1d64_78bd_642f;
    let fold = |state: u64, factor: u64| {
        let product = u128::from(state) * u128::from(factor);
        (product >> 64) as u64 ^ product as u64
    };
    let (words, rest) = text.as_chunks::<8>();
    // The length distinguishes texts that end with zeros.
    let mut state = START ^ (text.len() as u64).wrapping_mul(STEP);
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), STEP).wrapping_add(START);
    }
    let last = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    state = fold(state ^ last, END).wrapping_add(START);
    state = fold(state, STEP);
    (state >> 32) as u32 ^ state as u32
}

/// The word of the text at `index`.
pub(super) fn slot(hash: u32, index: u32) -> u64 {
    u64::from(hash) << 32 | (u64::from(index) + 1)
}

/// Where a text is, or where it belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Probe {
    /// The index of the text.
    Found(u32),
    /// This slot is empty, and the text has none.
    Vacant(usize),
    /// No slot is empty, which only happens in tables that are broken or have no slots.
    Full,
}

/// Looks for a text in `slots` slots, a power of two or 0, which `slot` reads; `is` compares it with the text of an index.
pub(super) fn probe(hash: u32, slots: usize, slot: impl Fn(usize) -> u64, is: impl Fn(u32) -> bool) -> Probe {
    for distance in 0..slots {
        let at = (hash as usize).wrapping_add(distance) & (slots - 1);
        let word = slot(at);
        if word == 0 {
            return Probe::Vacant(at);
        }
        // A word of a broken table may have a lower half of 0.
        if (word >> 32) as u32 == hash
            && let Some(index) = (word as u32).checked_sub(1)
            && is(index)
        {
            return Probe::Found(index);
        }
    }
    Probe::Full
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Texts that differ by little: counters, single bits, lengths, and the same bytes elsewhere.
    fn similar() -> Vec<Vec<u8>> {
        let mut texts: Vec<Vec<u8>> = (0..100_000).map(|number| format!("{number}").into_bytes()).collect();
        texts.extend((0..50_000).map(|number| format!("a common start of names {number:08}").into_bytes()));
        texts.extend((1..50_001_u64).map(|number| [number.to_le_bytes(), [0; 8]].concat()));
        texts.extend((0..2000).map(|size| vec![0; size]));
        texts.extend((0..8 * 300).map(|bit| {
            let mut text = vec![b'x'; 300];
            text[bit / 8] ^= 1 << (bit % 8);
            text
        }));
        texts
    }

    #[test]
    fn similar_texts_do_not_cluster() {
        let texts = similar();
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), texts.len());
        let hashes: HashSet<u32> = texts.iter().map(|text| hash(text)).collect();
        // Among this number of random numbers of 32 bits, about 5 are equal.
        assert!(texts.len() - hashes.len() < 20, "{} are equal", texts.len() - hashes.len());
        // The walks that find all texts, in a table that is 0.78 full: about 1.8 slots beyond the first with random
        // numbers.
        let mut table = vec![0; 1 << 18];
        let mut distance = 0;
        for &hash in &hashes {
            let Probe::Vacant(at) = probe(hash, table.len(), |at| table[at], |_| false) else {
                panic!("full")
            };
            table[at] = slot(hash, 0);
            distance += at.wrapping_sub(hash as usize) & (table.len() - 1);
        }
        let mean = distance as f64 / hashes.len() as f64;
        assert!(mean < 2.2, "{mean}");
    }

    #[test]
    fn hashes_are_part_of_a_format() {
        assert_eq!(
            [hash(b""), hash(b"a"), hash(b"a text of several words")],
            [2275260638, 2195191840, 651243695]
        );
    }

    #[test]
    fn broken_tables_end_walks() {
        assert_eq!(probe(5, 4, |_| 5 << 32, |_| true), Probe::Full);
        assert_eq!(probe(5, 0, |_| 1, |_| true), Probe::Full);
    }
}
