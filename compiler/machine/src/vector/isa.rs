//! Machines, as selection sees them. Which operations of the vector IR each has is said where these are defined, in `op`.

use crate::vector::ir::{Lanes, Op, Signs};

/// Rows of a tile, and bytes of a row, at most (Intel, "Advanced Matrix Extensions", palette 1).
pub const MAX_ROWS: usize = 16;
pub const MAX_ROW_BYTES: usize = 64;

/// How vector instructions are encoded, which decides what there is besides their width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// A VEX prefix: AVX2, FMA and F16C.
    Vex,
    /// An EVEX prefix, for all widths: AVX-512 F, DQ and VL.
    Evex,
    /// A64 words: NEON, with vectors of 128 bits and products by an element.
    Neon,
    /// None here: Cranelift encodes what it is given in its own IR, with vectors of 128 bits.
    Cranelift,
}

/// How functions call each other: which registers hold arguments, and which a function has to restore.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Convention {
    /// That of the architecture's own documents: System V on x86-64, AAPCS64.
    Standard,
    /// That of Windows, with records for unwinders.
    Windows,
}

/// A machine, as selection sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    /// Of the widest vector: 16, 32 or 64; 4 where there are only scalars.
    pub vector_bytes: usize,
    pub vector_registers: usize,
    pub encoding: Encoding,
    pub convention: Convention,
    /// Masks have registers of their own, with a bit for each lane however wide it is. Else they are vectors.
    pub has_mask_registers: bool,
    /// An operand in memory can be one element for every lane, and no lane of it is more than a load.
    pub has_each_operands: bool,
    /// One lane of a vector is an operand of a product for every lane.
    pub has_element_products: bool,
    /// Operations have no operands in memory, so that an element which several of them read is loaded once.
    pub loads_apart: bool,
    /// Products of signed halves of lanes are added to lanes, those of the lower part of two vectors or of the upper one.
    pub has_half_products: bool,
    /// Displacements of loads and stores are multiples of the accessed bytes, below this multiple; `None` for any number of 32 bits.
    pub reach: Option<i32>,
    /// Addresses can have a second register, times 1, 2, 4 or 8.
    pub has_scaled_addresses: bool,
    /// Products, extremes, arithmetic shifts and conversions to and from f64 of 64-bit integers.
    pub has_long_arithmetic: bool,
    /// f16 is converted to and from f32.
    pub has_f16c: bool,
    /// Which products of four bytes are added to a lane of 32 bits, if any: by VNNI, or by SDOT.
    pub dot: Option<Signs>,
    /// f32 is rounded to bf16, numbers below the normal ones, too. AVX512-BF16 takes these for zeros.
    pub has_bf16: bool,
    /// Products of pairs of bf16 are added to lanes of f32, and f32 is rounded to bf16 but for numbers below the normal ones:
    /// AVX512-BF16.
    pub has_bf16_dot: bool,
    /// Tiles of bytes and of bf16, and their products: AMX.
    pub has_tiles: bool,
    /// Multiply-adds with one rounding.
    pub has_fma: bool,
    /// Floats are rounded to integral values.
    pub has_rounding: bool,
    /// The minimum and maximum of floats are NaN when either operand is.
    pub has_nan_extremes: bool,
    /// One instruction picks any bytes of a vector.
    pub has_byte_shuffle: bool,
    /// One instruction puts the bytes of 512 bits in any order.
    pub has_byte_permute: bool,
    /// Vectors of f32 are converted to i32 as `cvttps2dq` does, which is cheaper than with saturation.
    pub has_truncating_convert: bool,
    /// The highest byte of a number comes first in memory. Lanes are in the order of memory either way.
    pub is_big_endian: bool,
}

impl Isa {
    pub const AVX2: Isa = Isa {
        vector_bytes: 32,
        vector_registers: 16,
        encoding: Encoding::Vex,
        convention: Convention::Standard,
        has_mask_registers: false,
        has_each_operands: false,
        has_element_products: false,
        loads_apart: false,
        has_half_products: false,
        reach: None,
        has_scaled_addresses: true,
        has_long_arithmetic: false,
        has_f16c: true,
        dot: None,
        has_bf16: false,
        has_bf16_dot: false,
        has_tiles: false,
        has_fma: true,
        has_rounding: true,
        has_nan_extremes: false,
        has_byte_shuffle: true,
        has_byte_permute: false,
        has_truncating_convert: true,
        is_big_endian: false,
    };

    /// Whether bytes from four places are one lane by few instructions, and there are products of such lanes.
    pub fn joins_bytes(self) -> bool {
        self.dot == Some(Signs::UNSIGNED_SIGNED) && self.has(Op::Interleave(Lanes::X16))
    }

    /// Whether one instruction multiplies pairs of 16 bits and adds them to a sum.
    pub fn adds_pair_products(self) -> bool {
        self.has(Op::AddDotPairs(Lanes::X4))
    }

    /// Whether one instruction multiplies pairs of bf16 and adds them to a sum.
    pub fn adds_bf16_products(self) -> bool {
        self.has(Op::DotBf16(Lanes::X4))
    }

    /// The same machine with tiles.
    pub fn with_tiles(self) -> Isa {
        Isa { has_tiles: true, ..self }
    }

    /// The same machine without what serves integers of 8 and 16 bits, and bf16, only.
    pub fn without_narrow_types(self) -> Isa {
        Isa {
            dot: None,
            has_tiles: false,
            has_bf16: false,
            has_bf16_dot: false,
            has_byte_permute: false,
            ..self
        }
    }

    /// Whether a machine has all that another one has. Products of bytes with different encodings are different features.
    pub fn includes(self, other: Isa) -> bool {
        let has = |own: bool, others: bool| own || !others;
        self.vector_bytes >= other.vector_bytes
            && (other.dot.is_none() || self.dot == other.dot && self.encoding == other.encoding)
            && (self.encoding == other.encoding || other.encoding == Encoding::Vex)
            && has(self.has_f16c, other.has_f16c)
            && has(self.has_bf16, other.has_bf16)
            && has(self.has_bf16_dot, other.has_bf16_dot)
            && has(self.has_tiles, other.has_tiles)
            && has(self.has_byte_permute, other.has_byte_permute)
    }

    pub const AVX512: Isa = Isa {
        vector_bytes: 64,
        vector_registers: 32,
        encoding: Encoding::Evex,
        has_mask_registers: true,
        has_each_operands: true,
        has_long_arithmetic: true,
        ..Isa::AVX2
    };

    pub const NEON: Isa = Isa {
        vector_bytes: 16,
        vector_registers: 32,
        encoding: Encoding::Neon,
        convention: Convention::Standard,
        has_mask_registers: false,
        has_each_operands: false,
        has_element_products: true,
        loads_apart: true,
        has_half_products: true,
        reach: Some(4096),
        has_scaled_addresses: false,
        has_long_arithmetic: true,
        has_f16c: true,
        dot: None,
        has_bf16: false,
        has_bf16_dot: false,
        has_tiles: false,
        has_fma: true,
        has_rounding: true,
        has_nan_extremes: true,
        has_byte_shuffle: true,
        has_byte_permute: false,
        has_truncating_convert: false,
        is_big_endian: false,
    };

    /// Cranelift's machine: 128 bits, on every architecture. What it has besides, the target adds.
    pub const CRANELIFT: Isa = Isa {
        vector_bytes: 16,
        vector_registers: 16,
        encoding: Encoding::Cranelift,
        convention: Convention::Standard,
        has_mask_registers: false,
        has_each_operands: false,
        has_element_products: false,
        loads_apart: false,
        has_half_products: false,
        reach: None,
        has_scaled_addresses: false,
        has_long_arithmetic: true,
        has_f16c: false,
        dot: None,
        has_fma: false,
        has_rounding: false,
        has_nan_extremes: false,
        has_byte_shuffle: false,
        has_byte_permute: false,
        has_truncating_convert: false,
        has_bf16: false,
        has_bf16_dot: false,
        has_tiles: false,
        is_big_endian: false,
    };

    /// Cranelift's machine where it has no vectors.
    pub const SCALAR: Isa = Isa { vector_bytes: 4, ..Isa::CRANELIFT };

    pub fn has_vectors(self) -> bool {
        self.vector_bytes > 4
    }

    /// Whether registers hold these lanes. Scalars have registers of their own, and so has a pair of f64 that is moved as one
    /// element.
    pub(super) fn holds(self, lanes: Lanes) -> bool {
        let pair = lanes == Lanes::D2 && self.encoding == Encoding::Cranelift;
        lanes.bytes() <= self.vector_bytes || lanes.is_scalar() || pair
    }

    pub fn evex(self) -> bool {
        self.encoding == Encoding::Evex
    }

    /// Whether integers of any size are packed to their low bits.
    pub fn packs_low_bits(self) -> bool {
        self.evex()
    }

    /// Lanes of the widest vector of elements of `width` bytes.
    pub fn lanes(self, width: usize) -> usize {
        (self.vector_bytes / width).max(1)
    }

    /// Why this machine cannot execute the operation with a memory or lane operand.
    pub fn refuses(self, op: Op, each: bool) -> Option<String> {
        if let Some(lanes) = op.lanes()
            && !self.holds(lanes)
        {
            return Some(format!("{} bytes of {}", lanes.bytes(), self.vector_bytes));
        }
        if !self.has(op) {
            return Some("there is no such instruction".into());
        }
        if each && !self.has_each_operands {
            return Some("an element for every lane is not possible".into());
        }
        match op {
            Op::Extract(lane, one) => {
                let lanes = self.lanes(one.width()).max(if one == Lanes::D1 { 2 } else { 1 });
                (usize::from(lane) >= lanes).then(|| format!("there is no lane {lane}"))
            }
            _ => None,
        }
    }

    /// `count` lanes of elements of `width` bytes, where a vector has room for them.
    pub fn lanes_of(self, count: usize, width: usize) -> Option<Lanes> {
        let two = matches!(self.encoding, Encoding::Cranelift | Encoding::Neon);
        Lanes::of(count, width).filter(|lanes| self.holds(*lanes) && (two || count != 2))
    }
}
