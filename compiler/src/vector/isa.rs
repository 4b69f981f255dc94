//! What a back end can make of the vector IR.

use crate::vector::ir::{Binary, Convert, Lanes, Op, Small, Unary};
use crate::vector::verify::lanes;

/// How vector instructions are encoded, which decides what there is besides their width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// A VEX prefix: AVX2, FMA and F16C.
    Vex,
    /// An EVEX prefix, for all widths: AVX-512 F, DQ and VL.
    Evex,
}

/// A machine, as selection sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isa {
    /// Of the widest vector: 32 or 64.
    pub vector_bytes: usize,
    pub vector_registers: usize,
    pub encoding: Encoding,
    /// Masks have registers of their own, with a bit for each lane however wide it is. Else they are vectors.
    pub has_mask_registers: bool,
    /// An operand in memory can be one element for every lane, and no lane of it is more than a load.
    pub has_each_operands: bool,
    /// Products, extremes, arithmetic shifts and conversions to and from f64 of 64-bit integers.
    pub has_long_arithmetic: bool,
    /// f16 is converted to and from f32.
    pub has_f16c: bool,
    /// Products of four bytes are added to a lane of 32 bits: VNNI.
    pub has_dot: bool,
    /// Tiles of bytes and their products: AMX.
    pub has_tiles: bool,
}

impl Isa {
    pub const AVX2: Isa = Isa {
        vector_bytes: 32,
        vector_registers: 16,
        encoding: Encoding::Vex,
        has_mask_registers: false,
        has_each_operands: false,
        has_long_arithmetic: false,
        has_f16c: true,
        has_dot: false,
        has_tiles: false,
    };

    pub const AVX512: Isa = Isa {
        vector_bytes: 64,
        vector_registers: 32,
        encoding: Encoding::Evex,
        has_mask_registers: true,
        has_each_operands: true,
        has_long_arithmetic: true,
        has_f16c: true,
        has_dot: false,
        has_tiles: false,
    };

    pub fn evex(self) -> bool {
        self.encoding == Encoding::Evex
    }

    /// Lanes of the widest vector of elements of `width` bytes.
    pub fn lanes(self, width: usize) -> usize {
        self.vector_bytes / width
    }

    /// Whether there is an instruction, or a few that stand for one, for an operation at its width.
    pub fn has(self, op: Op) -> bool {
        let Some(lanes) = lanes(op) else {
            return match op {
                Op::TileZero(_) | Op::TileLoad(_) | Op::TileStore(_) | Op::TileDot(..) => self.has_tiles,
                _ => op != Op::BroadcastHalf || !self.evex() && self.has_f16c,
            };
        };
        let double = lanes.width() == 8;
        lanes.bytes() <= self.vector_bytes
            && match op {
                Op::Binary(Binary::IntMul | Binary::IntMin | Binary::IntMax, _)
                | Op::Unary(Unary::ShrArith(_), _) => !double || self.has_long_arithmetic,
                Op::Binary(Binary::LowMul, _) => double,
                Op::Binary(Binary::ShlBy | Binary::DotPairs, _)
                | Op::Unary(Unary::ToInt | Unary::FromInt | Unary::ShrArithHalves(_), _) => !double,
                Op::Dot(_) => !double && self.has_dot,
                Op::Convert(Convert::LongToDouble | Convert::DoubleToLong, _) => {
                    double && self.has_long_arithmetic
                }
                Op::Convert(..) | Op::MaskWiden(_) | Op::MaskNarrow(_) => double,
                Op::LoadSmall(Small::F16, _) | Op::Pack(Small::F16, _) | Op::Unpack(_) if !self.has_f16c => {
                    false
                }
                Op::LoadSmall(..) => !double && !lanes.is_scalar(),
                // One integer is packed as it is.
                Op::Pack(small, _) => !double && (small == Small::F16 || !lanes.is_scalar()),
                Op::Unpack(_) => !double,
                _ => true,
            }
    }

    /// Why an operation with an operand in memory, or a lane, is none of this machine.
    pub fn refuses(self, op: Op, each: bool) -> Option<String> {
        if let Some(lanes) = lanes(op)
            && lanes.bytes() > self.vector_bytes
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
            Op::Extract(lane, one) if usize::from(lane) >= self.lanes(one.width()) => {
                Some(format!("there is no lane {lane}"))
            }
            _ => None,
        }
    }

    /// So many lanes of elements of `width` bytes, where a vector has room for them.
    pub fn lanes_of(self, count: usize, width: usize) -> Option<Lanes> {
        Lanes::of(count, width).filter(|lanes| lanes.bytes() <= self.vector_bytes)
    }
}
