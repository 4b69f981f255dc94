//! SHA-256 (FIPS 180-4): digests of what files of weights are for and hold. It withstands forgery, so that a file that was checked once is
//! that of the model; processors with instructions for it digest more than a gigabyte per second.

/// The hash of what it is given, piece by piece.
pub struct Sha256 {
    state: [u32; 8],
    /// What does not fill a block yet.
    rest: [u8; BLOCK],
    bytes: u64,
}

const BLOCK: usize = 64;

const FIRST: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

const ROUNDS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

impl Default for Sha256 {
    fn default() -> Sha256 {
        Sha256 { state: FIRST, rest: [0; BLOCK], bytes: 0 }
    }
}

impl Sha256 {
    pub fn update(&mut self, mut data: &[u8]) {
        let filled = (self.bytes % BLOCK as u64) as usize;
        self.bytes += data.len() as u64;
        if filled > 0 {
            let taken = data.len().min(BLOCK - filled);
            self.rest[filled..filled + taken].copy_from_slice(&data[..taken]);
            data = &data[taken..];
            if filled + taken < BLOCK {
                return;
            }
            let block = self.rest;
            compress(&mut self.state, &block);
        }
        let whole = data.len() - data.len() % BLOCK;
        compress(&mut self.state, &data[..whole]);
        let rest = &data[whole..];
        self.rest[..rest.len()].copy_from_slice(rest);
    }

    pub fn finish(mut self) -> [u8; 32] {
        let bits = self.bytes.wrapping_mul(8);
        let filled = (self.bytes % BLOCK as u64) as usize;
        // A one bit, zeros, and the length in bits at the end of a block.
        let mut last = [0; 2 * BLOCK];
        last[..filled].copy_from_slice(&self.rest[..filled]);
        last[filled] = 0x80;
        let end = if filled < BLOCK - 8 { BLOCK } else { 2 * BLOCK };
        last[end - 8..end].copy_from_slice(&bits.to_be_bytes());
        compress(&mut self.state, &last[..end]);
        let mut digest = [0; 32];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        digest
    }
}

/// The digest of bytes.
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut sha = Sha256::default();
    sha.update(data);
    sha.finish()
}

/// Takes in whole blocks.
fn compress(state: &mut [u32; 8], blocks: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sha")
        && std::arch::is_x86_feature_detected!("sse4.1")
        && std::arch::is_x86_feature_detected!("ssse3")
    {
        // SAFETY: the processor has the instructions.
        return unsafe { x86::compress(state, blocks) };
    }
    blocks.chunks_exact(BLOCK).for_each(|block| compress_block(state, block));
}

fn compress_block(state: &mut [u32; 8], block: &[u8]) {
    let mut words = [0u32; 64];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..64 {
        let (a, b) = (words[at - 15], words[at - 2]);
        let a = a.rotate_right(7) ^ a.rotate_right(18) ^ (a >> 3);
        let b = b.rotate_right(17) ^ b.rotate_right(19) ^ (b >> 10);
        words[at] = words[at - 16].wrapping_add(a).wrapping_add(words[at - 7]).wrapping_add(b);
    }
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for (word, round) in words.into_iter().zip(ROUNDS) {
        let sum = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
        let choice = (e & f) ^ (!e & g);
        let first = h.wrapping_add(sum).wrapping_add(choice).wrapping_add(round).wrapping_add(word);
        let sum = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
        let most = (a & b) ^ (a & c) ^ (b & c);
        let second = sum.wrapping_add(most);
        (h, g, f, e) = (g, f, e, d.wrapping_add(first));
        (d, c, b, a) = (c, b, a, first.wrapping_add(second));
    }
    for (word, more) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *word = word.wrapping_add(more);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, ROUNDS};

    /// # Safety
    /// The processor has the features.
    #[target_feature(enable = "sha,sse4.1,ssse3,sse2")]
    pub(super) unsafe fn compress(state: &mut [u32; 8], blocks: &[u8]) {
        // SAFETY: loads and stores are of eight words of the state, of blocks of 64 bytes and of the rounds' 64 words.
        unsafe {
            let turn = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
            let low = _mm_shuffle_epi32(_mm_loadu_si128(state.as_ptr().cast()), 0xb1);
            let high = _mm_shuffle_epi32(_mm_loadu_si128(state.as_ptr().add(4).cast()), 0x1b);
            // The instructions have a, b, e, f in one register and c, d, g, h in the other.
            let mut abef = _mm_alignr_epi8(low, high, 8);
            let mut cdgh = _mm_blend_epi16(high, low, 0xf0);
            for block in blocks.chunks_exact(BLOCK) {
                let (abef_before, cdgh_before) = (abef, cdgh);
                let load =
                    |at: usize| _mm_shuffle_epi8(_mm_loadu_si128(block.as_ptr().add(16 * at).cast()), turn);
                let mut words = [load(0), load(1), load(2), load(3)];
                for four in 0..16 {
                    if four >= 4 {
                        let [first, second, third, fourth] = words;
                        let sum = _mm_sha256msg1_epu32(first, second);
                        let sum = _mm_add_epi32(sum, _mm_alignr_epi8(fourth, third, 4));
                        words = [second, third, fourth, _mm_sha256msg2_epu32(sum, fourth)];
                    }
                    let own = words[four.min(3)];
                    let keys = _mm_add_epi32(own, _mm_loadu_si128(ROUNDS.as_ptr().add(4 * four).cast()));
                    cdgh = _mm_sha256rnds2_epu32(cdgh, abef, keys);
                    abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(keys, 0x0e));
                }
                abef = _mm_add_epi32(abef, abef_before);
                cdgh = _mm_add_epi32(cdgh, cdgh_before);
            }
            let feba = _mm_shuffle_epi32(abef, 0x1b);
            let dchg = _mm_shuffle_epi32(cdgh, 0xb1);
            _mm_storeu_si128(state.as_mut_ptr().cast(), _mm_blend_epi16(feba, dchg, 0xf0));
            _mm_storeu_si128(state.as_mut_ptr().add(4).cast(), _mm_alignr_epi8(dchg, feba, 8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(digest: [u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Examples of FIPS 180-4, and a million of `a`.
    #[test]
    fn digests_are_those_of_the_standard() {
        for (text, wanted) in [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
            ),
        ] {
            assert_eq!(hex(sha256(text.as_bytes())), wanted);
        }
        let million = vec![b'a'; 1_000_000];
        let wanted = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
        assert_eq!(hex(sha256(&million)), wanted);
    }

    /// Pieces of any sizes give the digest of the whole, and the instructions of the processor that of the definition.
    #[test]
    fn pieces_and_instructions_change_nothing() {
        let data: Vec<u8> = (0..1000u32).map(|at| ((at * at) >> 3) as u8).collect();
        for length in 0..300 {
            let data = &data[..length];
            let whole = sha256(data);
            for piece in [1, 3, 63, 64, 65, 128] {
                let mut sha = Sha256::default();
                data.chunks(piece).for_each(|piece| sha.update(piece));
                assert_eq!(sha.finish(), whole, "{length} bytes by {piece}");
            }
        }
        let (mut fast, mut slow) = (FIRST, FIRST);
        compress(&mut fast, &data[..640]);
        data[..640].chunks_exact(BLOCK).for_each(|block| compress_block(&mut slow, block));
        assert_eq!(fast, slow);
    }
}
