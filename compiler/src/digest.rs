//! Digests of values: 128 bits, by which equal values are known again where they are not kept.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Two hashes of a value.
pub fn digest(value: &impl Hash) -> [u64; 2] {
    [0u8, 1].map(|salt| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        hasher.finish()
    })
}
