//! What multiplications of small integers cost against those of floats.

/// Multiplications of bytes and of pairs of 16 bits, each added up in 32, in the time of one of floats; 0 where they are not
/// faster. And those of floats in the time in which a byte of weights comes from memory.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub bytes: f64,
    pub pairs: f64,
    pub memory_byte: f64,
}

impl Rates {
    pub const NONE: Rates = Rates { bytes: 0.0, pairs: 0.0, memory_byte: 3.5 };

    /// By several instructions of AVX2: those of bytes as short sums allow them.
    pub const AVX2: Rates = Rates { bytes: 1.5, pairs: 1.6, ..Rates::NONE };

    /// By several instructions of 512 bits. Of weights that come between products, Zen 5 reads 17 GB/s in the time of 144e9
    /// multiplications of floats, Emerald Rapids 13 GB/s in that of 106e9.
    pub const AVX512: Rates = Rates { memory_byte: 7.0, ..Rates::AVX2 };

    /// By an instruction each.
    pub const VNNI: Rates = Rates { bytes: 4.0, pairs: 2.0, ..Rates::NONE };

    /// By an instruction for bytes only: SDOT, and the processor's tiles.
    pub const DOT: Rates = Rates { bytes: 4.0, ..Rates::NONE };
}
