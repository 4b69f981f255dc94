//! Products: in which arithmetic of a target they are computed, and how their right-hand sides lie. Passes choose by it while they rewrite
//! a graph, as both are part of it; what a kernel does with its loops is chosen later (`contract.rs`).

mod panels;
mod rates;

use onnxc_ir::graph::{DType, Dim};
use onnxc_machine::target::Target;

use panels::{ANY, BYTES, CODES, HALVES, INTS, ONE_ROW};
pub use panels::{PackRule, Product};
pub use rates::Rates;

/// Bytes of a row of a right-hand side up to which its panels are read where they are: the rows of a panel are then near
/// enough to each other that they do not meet in the same few lines of a cache.
pub const NEAR_ROWS: i64 = 512;

/// What a target's kernels make of products. Panel widths are data: the first rule that holds decides.
#[derive(Clone, Copy, Debug)]
pub struct PackPolicy {
    pub rules: &'static [PackRule],
    /// Where no rule holds.
    pub nr: usize,
    /// Multiplications of small integers in the time of one of floats.
    pub rates: Rates,
    /// Whether kernels that add up four products of bytes by several instructions need fewer where sums of two fit 16 bits.
    pub short_sums: bool,
    /// The same for some kernels only: rows with sums that fit stay in their places, so that others read them as they would without.
    pub short_sums_in_place: bool,
    /// Whether the left-hand side of a product of bytes is signed, as its right-hand side is.
    pub signed_bytes: bool,
    /// Whether kernels add up products of 16 bits, so that short sums of small integers stay integers rather than become floats.
    pub half_products: bool,
    /// Whether kernels add up products of bytes from four places at once.
    pub joined_bytes: bool,
    /// Whether kernels add up products of pairs of bf16.
    pub bf16_pairs: bool,
    /// Digits of a left-hand side whose products with codes of few bits are sums of bytes; 0 where products of floats are
    /// faster.
    pub digits: usize,
    /// Bytes that transformed weights of convolutions may add, for each byte of the model's weights of f32 and of narrower ones;
    /// without, any number. Where code is few bytes of the model's, they may add what code leaves of [`FOR_CODE`], too.
    pub transformed: Option<[f64; 2]>,
    /// Whether runs may transform weights of convolutions themselves, in memory of their own.
    pub transforms: bool,
    /// Whether integers are scaled by a multiplication of 64 bits and a shift rather than as floats.
    pub integer_scales: bool,
    /// Bytes as f32 above which values of 16 bits that windows read are kept in 16 bits.
    pub kept_above: i64,
}

/// Terms of the last inner axis from which on filling it up to a multiple of [`DOT_DEPTH`](onnxc_ir::graph::DOT_DEPTH) is worth it.
const LEAST_STEPS: i64 = 3;

/// Digits of a left-hand side: with three, its elements have an error of 2^-23 of the largest one that shares their unit, about
/// that of f32.
const DIGITS: usize = 3;

/// Where vectors are converted by an instruction. Half of a second-level cache of 2 MiB: of Emerald Rapids, mobilenet_v2_f16 takes
/// 0.92 of the time with values above this in 16 bits, 0.95 with those above 512 or 200 KiB.
const KEPT_ABOVE: i64 = 1 << 20;

/// In objects for several processors: with their code, these stay within 1.25 and 1.15 times the model's bytes.
const TRANSFORMED: [f64; 2] = [0.2, 0.1];

/// Bytes of code that such objects have room for besides, for each byte of the model's weights.
pub const FOR_CODE: f64 = 0.05;

impl PackPolicy {
    /// For vectors of 128 bits: one vector per row, and one row per register.
    pub const NARROW: PackPolicy = PackPolicy {
        rules: &[PackRule { dtypes: CODES, nr: 8, ..ANY }, ONE_ROW, ANY],
        nr: 4,
        rates: Rates::NONE,
        short_sums: false,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: 0,
        transformed: None,
        transforms: true,
        integer_scales: false,
        kept_above: i64::MAX,
    };

    /// For leaf kernels of 256 bits: two vectors per row, three where that wastes fewer columns.
    pub const WIDE: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: HALVES, nr: 16, ..ANY },
            PackRule { dtypes: CODES, nr: 16, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 8, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 16, ..ANY },
            ONE_ROW,
            PackRule { fewer_than: Some(16), nr: 24, ..ANY },
            PackRule { nr: 16, ..ANY },
        ],
        nr: 4,
        rates: Rates::AVX2,
        short_sums: true,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: DIGITS,
        transformed: None,
        transforms: true,
        integer_scales: false,
        kept_above: KEPT_ABOVE,
    };

    /// For leaf kernels of 512 bits: the same with vectors of twice the length.
    pub const WIDEST: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: HALVES, nr: 32, ..ANY },
            PackRule { dtypes: BYTES, min_columns: Some(64), nr: 64, ..ANY },
            PackRule { dtypes: CODES, nr: 32, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 16, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 32, ..ANY },
            PackRule { min_columns: Some(64), nr: 64, ..ONE_ROW },
            ONE_ROW,
            PackRule { fewer_than: Some(32), nr: 48, ..ANY },
            PackRule { nr: 32, ..ANY },
        ],
        nr: 4,
        rates: Rates::AVX512,
        short_sums: true,
        short_sums_in_place: false,
        signed_bytes: false,
        half_products: false,
        joined_bytes: false,
        bf16_pairs: false,
        digits: DIGITS,
        transformed: None,
        transforms: true,
        integer_scales: false,
        kept_above: KEPT_ABOVE,
    };

    /// For leaf kernels of 128 bits with 32 registers.
    pub const NEON: PackPolicy = PackPolicy {
        digits: 0,
        rates: Rates::NONE,
        short_sums: false,
        half_products: true,
        ..PackPolicy::WIDE
    };

    /// For leaf kernels of 128 bits with 16 registers: the same as with 256 bits, with vectors of half the length. With 32
    /// registers, tiles of panels for 256 bits are high enough.
    pub const SHORT: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: INTS, nr: 16, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 8, ..ANY },
            PackRule { nr: 16, ..ONE_ROW },
            PackRule { fewer_than: Some(8), nr: 12, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 4, ..ANY },
            PackRule { dtypes: &[], nr: 8, ..ANY },
        ],
        ..PackPolicy::WIDE
    };

    /// Without vectors: a tile of four columns leaves registers for several rows, and one row has sums enough in sixteen.
    pub const SCALAR: PackPolicy = PackPolicy {
        rules: &[PackRule { dtypes: CODES, nr: 8, ..ANY }, PackRule { nr: 16, ..ONE_ROW }, ANY],
        ..PackPolicy::NARROW
    };

    /// The same in C for microcontrollers: their integers are as fast as floats or much faster, and their memory is small.
    pub const SOURCE: PackPolicy = PackPolicy {
        rates: Rates { bytes: 1.0, ..Rates::NONE },
        transforms: false,
        integer_scales: true,
        ..PackPolicy::SCALAR
    };

    /// For leaf kernels of 512 bits and of 256, from the same panels: what is widened is in panels that are taken whole.
    pub const MIXED: PackPolicy = PackPolicy {
        rules: &[
            PackRule { dtypes: &[DType::F16], nr: 32, ..ANY },
            PackRule { dtypes: &[DType::BF16], nr: 16, ..ANY },
            PackRule { dtypes: CODES, nr: 16, ..ANY },
            PackRule { dtypes: &[DType::F64], nr: 16, ..ANY },
            PackRule { dtypes: INTS, ..ONE_ROW },
            PackRule { dtypes: INTS, nr: 32, ..ANY },
            PackRule { min_columns: Some(64), nr: 64, ..ONE_ROW },
            ONE_ROW,
            PackRule { fewer_than: Some(32), nr: 48, ..ANY },
            PackRule { nr: 32, ..ANY },
        ],
        ..PackPolicy::WIDEST
    };

    /// For the leaf kernels of a target, of its upgrades where those alone have them, or else for all of its kernels.
    pub fn for_target(target: &Target) -> PackPolicy {
        let policy = match target.panel_isa() {
            None if target.narrow.has_vectors() => return PackPolicy::NARROW,
            None if target.is_source => return PackPolicy::SOURCE,
            None => return PackPolicy::SCALAR,
            Some(isa) if isa.has_half_products => PackPolicy::NEON,
            Some(isa) => match (isa.vector_bytes, isa.vector_registers) {
                (64.., _) if target.whole_panel_isa() != target.panel_isa() => PackPolicy::MIXED,
                (64.., _) => PackPolicy::WIDEST,
                (..32, ..32) => PackPolicy::SHORT,
                _ => PackPolicy::WIDE,
            },
        };
        let dot = target.dot();
        let by_instructions = match dot {
            None => policy.rates,
            Some(_) if target.multiplies_pairs() => Rates::VNNI,
            Some(_) => Rates::DOT,
        };
        // How many multiplications take the time of a byte depends on the length of vectors.
        let rates = Rates { memory_byte: policy.rates.memory_byte, ..by_instructions };
        let short_sums = policy.short_sums && dot.is_none();
        let short_sums_in_place = policy.short_sums && target.is_for_many();
        let joined_bytes = target.joins_bytes_everywhere();
        PackPolicy {
            rates,
            short_sums,
            short_sums_in_place,
            joined_bytes,
            bf16_pairs: target.multiplies_bf16(),
            signed_bytes: dot.is_some_and(|signs| signs.a),
            transformed: if target.is_for_many() { Some(TRANSFORMED) } else { None },
            ..policy
        }
    }

    /// Whether a product with these inner axes is one of bytes, if its operands are. Axes of one element have no say: words are
    /// made along the last of the others.
    pub fn in_bytes(&self, inner: &[Dim]) -> bool {
        let last = inner.iter().rev().find(|dim| **dim != Dim::ONE);
        let long = last.and_then(Dim::as_const).is_some_and(|steps| steps >= LEAST_STEPS);
        self.rates.bytes > 0.0 && long && inner.iter().all(Dim::is_const)
    }

    /// Columns per panel of a right-hand side.
    pub fn nr(&self, wanted: Product) -> usize {
        panels::width(self.rules, self.nr, wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_no_wider_than_the_columns() {
        let product = |dtype, rows, columns| Product { dtype, rows, columns };
        let narrow = |dtype, rows, columns| PackPolicy::NARROW.nr(product(dtype, rows, columns));
        assert_eq!(narrow(DType::F32, Some(64), Some(100)), 4);
        assert_eq!(narrow(DType::F32, Some(1), Some(100)), 32);
        assert_eq!(narrow(DType::F32, None, Some(100)), 4);
        assert_eq!(narrow(DType::F32, Some(64), Some(3)), 4);
        assert_eq!(narrow(DType::F32, Some(64), Some(1)), 1);
        assert_eq!(narrow(DType::I32, Some(64), None), 4);
        let wide = |columns| PackPolicy::WIDE.nr(product(DType::F32, Some(64), Some(columns)));
        assert_eq!([1, 5, 16, 24, 48, 72, 100].map(wide), [1, 8, 16, 24, 16, 24, 16]);
        let ints = |rows| PackPolicy::WIDE.nr(product(DType::I32, Some(rows), Some(100)));
        assert_eq!([1, 64].map(ints), [32, 16]);
        let widest = |rows, columns| PackPolicy::WIDEST.nr(product(DType::F32, Some(rows), Some(columns)));
        assert_eq!([1, 5, 16, 24, 48, 96, 144, 100].map(|n| widest(64, n)), [1, 8, 16, 32, 48, 32, 48, 32]);
        assert_eq!([20, 40, 1000].map(|n| widest(1, n)), [32, 32, 64]);
        // Panels of three vectors where they have fewer columns in all: 24 for 20, not twice 24 for 40, which three of 16 are.
        assert_eq!([17, 20, 40, 68].map(wide), [24, 24, 16, 24]);
        // 48 for 40, not three of 48 for 112.
        assert_eq!([33, 40, 80, 112, 136].map(|n| widest(64, n)), [48, 48, 32, 32, 48]);
    }
}
