//! Digests: 128 bits of values, by which equal ones are known again where they are not kept, 64 bits that objects and dumps have, and
//! the SHA-1 that the specification of ONNX has for files.

use std::hash::{Hash, Hasher};

use siphasher::sip128::{Hash128, Hasher128, SipHasher13};

/// The SipHash-1-3 of a value, in 128 bits: nobody can make two models' kernels have one digest in less than 2^64 steps. The value is
/// walked once, and hashed in one piece: of small parts, each would take a call.
pub fn digest(value: &impl Hash) -> [u64; 2] {
    let mut parts = Collected(vec![]);
    value.hash(&mut parts);
    let mut hasher = SipHasher13::new();
    hasher.write(&parts.0);
    let Hash128 { h1, h2 } = hasher.finish128();
    [h1, h2]
}

/// What a value gives to be hashed.
struct Collected(Vec<u8>);

impl Hasher for Collected {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Nobody asks for it.
    fn finish(&self) -> u64 {
        0
    }
}

/// The FNV-1a hash: the same on all machines and in all versions, for what objects and dumps have of it.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// SHA-1 (FIPS 180-4). The specification of ONNX names it for checksums of external data: against damage, not against forgery.
pub fn sha1(bytes: &[u8]) -> [u8; 20] {
    let mut state = [0x67452301u32, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0];
    let mut blocks = bytes.chunks_exact(64);
    blocks.by_ref().for_each(|block| compress(&mut state, block));
    // The rest, a one bit, zeros and the length in bits: one block or two.
    let rest = blocks.remainder();
    let mut last = [0u8; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    last[end - 8..end].copy_from_slice(&(bytes.len() as u64).wrapping_mul(8).to_be_bytes());
    last[..end].chunks_exact(64).for_each(|block| compress(&mut state, block));
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

/// Takes in a block of 64 bytes.
fn compress(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..80 {
        words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (at, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match at {
            0..20 => ((b & c) | (!b & d), 0x5a827999),
            20..40 => (b ^ c ^ d, 0x6ed9eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1bbcdc),
            _ => (b ^ c ^ d, 0xca62c1d6u32),
        };
        let next =
            a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is hashed in one piece has the hash of what is hashed part by part.
    #[test]
    fn a_digest_is_the_hash_of_the_parts() {
        let value = ("text", vec![Some(1u16), None], [7i64; 3], true);
        let mut hasher = SipHasher13::new();
        value.hash(&mut hasher);
        let hash = hasher.finish128();
        assert_eq!(digest(&value), [hash.h1, hash.h2]);
        assert_ne!(digest(&("text", vec![Some(1u16), None], [7i64; 3], false)), [hash.h1, hash.h2]);
    }

    /// The examples of the standard, and the lengths at which the padding takes another block (by coreutils' sha1sum).
    #[test]
    fn sha1_is_that_of_the_standard() {
        let hex = |bytes: &[u8]| sha1(bytes).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        let two = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        assert_eq!(hex(two), "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
        assert_eq!(hex(&[b'a'; 1_000_000]), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
        assert_eq!(hex(&[b'x'; 55]), "cef734ba81a024479e09eb5a75b6ddae62e6abf1");
        assert_eq!(hex(&[b'x'; 64]), "bb2fa3ee7afb9f54c6dfb5d021f14b1ffe40c163");
    }
}
