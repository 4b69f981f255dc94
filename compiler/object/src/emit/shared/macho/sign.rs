//! The signature of a library without an identity, as linkers make it: hashes of its pages.

use std::ops::Range;

use onnxc_runtime_support::sha256::sha256;
use rayon::prelude::*;

use super::File;

/// Bytes that one hash is of.
const PAGE: u64 = 0x1000;

const HASH_BYTES: u64 = 32;

/// A blob of blobs, and the number of the one that says what the code is.
const SUPER_BLOB: u32 = 0xfade_0cc0;
const CODE_DIRECTORY: u32 = 0xfade_0c02;
const DIRECTORY_SLOT: u32 = 0;

const SUPER_BYTES: u64 = 24;
const DIRECTORY_BYTES: u64 = 88;

/// The version that says where code lies.
const VERSION: u32 = 0x2_0400;
/// Without an identity, and made by a linker, so that tools may replace it.
const FLAGS: u32 = 0x2_0002;
const SHA_256: u8 = 2;

type Hash = [u8; HASH_BYTES as usize];

/// The signature of the first `signed` bytes of a library.
pub(super) struct Signature<'n> {
    name: &'n str,
    signed: u64,
}

impl<'n> Signature<'n> {
    pub(super) fn new(name: &'n str, signed: u64) -> Signature<'n> {
        Signature { name, signed }
    }

    fn hashes_at(&self) -> u64 {
        (DIRECTORY_BYTES + self.name.len() as u64 + 1).next_multiple_of(16)
    }

    fn directory_bytes(&self) -> u64 {
        self.hashes_at() + HASH_BYTES * self.signed.div_ceil(PAGE)
    }

    pub(super) fn bytes(&self) -> u64 {
        (SUPER_BYTES + self.directory_bytes()).next_multiple_of(16)
    }

    /// `text`: bytes of the segment of code, which begins the file.
    pub(super) fn write(&self, hashes: &[Hash], text: u64) -> Vec<u8> {
        let mut bytes = vec![];
        // All numbers have their greatest byte first.
        let mut put = |words: &[u64]| {
            words.iter().for_each(|&word| bytes.extend((word as u32).to_be_bytes()));
        };
        put(&[u64::from(SUPER_BLOB), SUPER_BYTES + self.directory_bytes(), 1]);
        put(&[u64::from(DIRECTORY_SLOT), SUPER_BYTES, 0]);
        put(&[u64::from(CODE_DIRECTORY), self.directory_bytes(), u64::from(VERSION), u64::from(FLAGS)]);
        put(&[self.hashes_at(), DIRECTORY_BYTES, 0, hashes.len() as u64, self.signed]);
        bytes.extend([HASH_BYTES as u8, SHA_256, 0, PAGE.trailing_zeros() as u8]);
        // No scattered code and no team; then the size in 64 bits, of larger files, and where code is.
        bytes.extend([0; 4 * 4]);
        for word in [0, 0, text, 0] {
            bytes.extend(u64::to_be_bytes(word));
        }
        bytes.extend(self.name.bytes());
        bytes.resize((SUPER_BYTES + self.hashes_at()) as usize, 0);
        hashes.iter().for_each(|hash| bytes.extend(hash));
        bytes.resize(self.bytes() as usize, 0);
        bytes
    }
}

fn hash(file: &File<'_>, signed: u64, page: u64) -> Hash {
    let from = page * PAGE;
    sha256(&file.bytes(from, signed.min(from + PAGE)))
}

/// The hashes of the pages of the first `signed` bytes.
pub(super) fn hashes(file: &File<'_>, signed: u64) -> Vec<Hash> {
    (0..signed.div_ceil(PAGE)).into_par_iter().map(|page| hash(file, signed, page)).collect()
}

/// Hashes the pages again in which bytes have changed.
pub(super) fn rehash(file: &File<'_>, signed: u64, changed: Range<u64>, hashes: &mut [Hash]) {
    for page in changed.start / PAGE..changed.end.div_ceil(PAGE) {
        if let Some(of_page) = hashes.get_mut(page as usize) {
            *of_page = hash(file, signed, page);
        }
    }
}

/// A name of the library from its content, in the form of a UUID.
pub(super) fn identity(hashes: &[Hash]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&sha256(hashes.as_flattened())[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}
