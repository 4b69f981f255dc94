//! What each operation of the vector IR is: its meaning, its operands, its lanes, how it is written, and which machines have it. A new
//! one is defined here; then the interpreter runs it, and machines that have it emit it.

use crate::vector::isa::{Encoding, Isa};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Class {
    /// 64 bits: addresses, counters.
    Int,
    /// Up to 512 bits.
    Vec,
    /// One bit for each lane of a vector. Where the machine has no registers for these, they are vectors in which all
    /// bits of a lane are the same.
    Mask,
}

/// How many lanes an operation works on, and how wide they are: `X` of 32 bits, `D` of 64. A scalar operation leaves the
/// other lanes of its result unspecified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lanes {
    X1,
    X2,
    X4,
    X8,
    X16,
    D1,
    D2,
    D4,
    D8,
}

impl Lanes {
    pub const ALL: [Lanes; 9] =
        [Lanes::X1, Lanes::X2, Lanes::X4, Lanes::X8, Lanes::X16, Lanes::D1, Lanes::D2, Lanes::D4, Lanes::D8];

    /// The lanes of a store of `bytes` bytes.
    pub fn stored(bytes: usize) -> Option<Lanes> {
        match bytes {
            4 => Some(Lanes::X1),
            8 => Some(Lanes::D1),
            16 => Some(Lanes::X4),
            32 => Some(Lanes::X8),
            _ => None,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Lanes::X1 | Lanes::D1 => 1,
            Lanes::X2 | Lanes::D2 => 2,
            Lanes::X4 | Lanes::D4 => 4,
            Lanes::X8 | Lanes::D8 => 8,
            Lanes::X16 => 16,
        }
    }

    /// Bytes of an element.
    pub fn width(self) -> usize {
        match self {
            Lanes::X1 | Lanes::X2 | Lanes::X4 | Lanes::X8 | Lanes::X16 => 4,
            Lanes::D1 | Lanes::D2 | Lanes::D4 | Lanes::D8 => 8,
        }
    }

    /// Bytes of all elements.
    pub fn bytes(self) -> usize {
        self.count() * self.width()
    }

    pub fn is_scalar(self) -> bool {
        self.count() == 1
    }

    /// `count` elements of `width` bytes.
    pub fn of(count: usize, width: usize) -> Option<Lanes> {
        Lanes::ALL.into_iter().find(|lanes| (lanes.count(), lanes.width()) == (count, width))
    }

    /// One element of this width.
    pub fn one(self) -> Lanes {
        if self.width() == 8 { Lanes::D1 } else { Lanes::X1 }
    }

    /// The same number of elements of 32 bits.
    pub fn narrow(self) -> Lanes {
        match self {
            Lanes::D1 => Lanes::X1,
            Lanes::D2 => Lanes::X2,
            Lanes::D4 => Lanes::X4,
            Lanes::D8 => Lanes::X8,
            lanes => lanes,
        }
    }
}

/// An element of less than 32 bits in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Small {
    I8,
    U8,
    I16,
    U16,
    /// A float of 16 bits, converted to f32.
    F16,
}

impl Small {
    pub fn is_byte(self) -> bool {
        matches!(self, Small::I8 | Small::U8)
    }

    pub fn bytes(self) -> usize {
        match self {
            Small::I8 | Small::U8 => 1,
            Small::I16 | Small::U16 | Small::F16 => 2,
        }
    }
}

/// Changes the width of elements, between lanes of 32 bits and the same number of lanes of 64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Convert {
    /// f32 to f64.
    Widen,
    /// f64 to f32, to nearest.
    Narrow,
    /// i32 to f64.
    IntToDouble,
    /// f64 to i32, toward zero; what does not fit as of [`Unary::ToInt`].
    DoubleToInt,
    /// i32 to i64.
    Extend,
    /// The lower halves of 64 bits.
    Truncate,
    /// i64 to f64, to nearest.
    LongToDouble,
    /// f64 to i64, toward zero; `i64::MIN` for what does not fit.
    DoubleToLong,
    /// f64 to i64, toward zero; the nearest for what does not fit, 0 for NaN.
    SaturateToLong,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    // Vectors.
    /// These bits in every lane.
    Splat(Lanes, u64),
    /// f32: the number with these bits in the first lane, and in each other one 1 more than in the lane before.
    Ramp(Lanes, u64),
    /// Elements from `mem`, which need no alignment.
    Load(Lanes),
    /// One element from `mem` in every lane.
    Broadcast(Lanes),
    /// `uses[0]` to `mem`.
    Store(Lanes),
    /// Small elements from `mem`, widened to lanes of 32 bits. Not of one lane.
    LoadSmall(Small, Lanes),
    /// Two integers of a byte per lane, from `mem`, widened to the halves of lanes.
    LoadHalves(Small, Lanes),
    /// An f16 from `mem` in all lanes of 16 bits of 128 bits; needs VEX.
    BroadcastHalf,
    /// `uses[0]` with the 128 bits at `mem` as one of its quarters.
    InsertQuarter(u8, Lanes),
    /// The bytes of each lane are one of each quarter of `uses[0]`: those of the first lane the first bytes of the quarters.
    Interleave(Lanes),
    /// Floats of the f16 in the lower part of `uses[0]`.
    Unpack(Lanes),
    /// The lanes of `uses[0]` as small elements in the lower part of the result. Integers fit, but that u8 may be made of
    /// `i32::MIN`, which is what NaN is converted to: it gives 0.
    Pack(Small, Lanes),
    /// The floats of `uses[0]`, rounded to the nearest, ties to even, as bf16 in the lower part of the result; numbers below the
    /// normal ones become zeros. Not of one lane.
    PackBf16(Lanes),
    /// The floats of `uses[0]`, rounded to the nearest, ties to even, as small integers in the lower part of the result: the
    /// nearest there is for what does not fit. NaN becomes 0, or any i8. Not to f16, and not of one lane.
    Quantize(Small, Lanes),
    /// The lanes of `uses[0]`, integers with the sign of the small type, as small elements in the lower part of the result: the
    /// nearest there is for what does not fit.
    Saturate(Small, Lanes),
    /// The floats of `uses = [a, b]`, rounded to the nearest, ties to even, as small integers of a byte in the lower part of the
    /// result, those of `a` first: the nearest there is for what does not fit. NaN becomes 0, or any i8. Where `.1` is 1,
    /// `uses = [a, b, zero]`: the halves of `zero` are added before clamping, and NaN becomes any byte.
    QuantizePair(Small, u8, Lanes),
    /// Brings the cache line of `mem` to the second level, if that address is one.
    Prefetch,
    /// `uses = [a, b]`, or `[a]` and `mem`.
    Binary(Binary, Lanes),
    /// `uses = [a]`, or `mem`.
    Unary(Unary, Lanes),
    /// `a * b + acc` with one rounding; `uses = [acc, a, b]`, or `[acc, a]` and `mem`. The result replaces `acc`.
    Fma(Lanes),
    /// `acc - a * b`, likewise.
    FmaNeg(Lanes),
    /// `a * b + c` with one rounding; `uses = [a, b, c]`, or `[a, b]` and `mem`. The result replaces `a`.
    MulAdd(Lanes),
    /// `a * b + acc` of each lane of `a` and lane number `.0` of `b`, of 128 bits, with one rounding; `uses = [acc, a, b]`.
    FmaLane(u8, Lanes),
    /// `acc` plus the products of the four bytes of each lane, which have such signs;
    /// `uses = [acc, a, b]`, or `[acc, a]` and `mem`. The result replaces `acc`.
    Dot(Signs, Lanes),
    /// `acc` plus the products of the two halves of each lane, which have signs; operands and result as of [`Op::Dot`].
    AddDotPairs(Lanes),
    /// `acc` plus the products of the two bf16 of each lane, that of the higher halves first. Numbers below the normal ones are
    /// taken for zeros and become zeros; operands and result as of [`Op::Dot`].
    DotBf16(Lanes),
    /// As [`Op::Dot`] with the bytes of lane number `.0` of `b`, of 128 bits; `uses = [acc, a, b]`.
    DotLane(u8, Signs, Lanes),
    /// `acc` plus products of signed halves of lanes, those of the lower part of `a` and `b` where `.0` is 0, of the upper part where
    /// it is 1; `uses = [acc, a, b]`. The result replaces `acc`.
    MulAddHalves(u8, Lanes),
    /// The products alone, likewise; `uses = [a, b]`.
    MulHalves(u8, Lanes),
    /// Per lane that lane of `b` which the lowest bits of the lane of `a` number; `uses = [a, b]`, or `[a]` and `mem`.
    Permute(Lanes),
    /// Per lane `then` where the mask says yes; `uses = [mask, then, otherwise]`.
    Blend(Lanes),
    /// The bytes of each lane of 32 bits in the other order.
    SwapBytes(Lanes),
    /// The first lane of `uses[0]` in every lane.
    SplatLane(Lanes),
    /// The upper half of the lanes of `uses[0]`; `.0` are the lanes of that half.
    UpperHalf(Lanes),
    /// Lane number `.0` of `uses[0]` as a scalar; `.1` is one lane of its width.
    Extract(u8, Lanes),
    /// `uses[0]` with the scalar `uses[1]` in lane number `.0`.
    Insert(u8, Lanes),
    /// The lanes are those of 64 bits.
    Convert(Convert, Lanes),
    /// The lower bits of `uses[0]`, an integer, as a scalar: one lane of either width.
    FromGeneral(Lanes),

    // Masks.
    /// `uses = [a, b]`, or `[a]` and `mem`.
    Compare(Compare, Lanes),
    /// `uses = [a, b]`
    Mask(Logic, Lanes),
    /// `uses = [a]`
    MaskNot(Lanes),
    /// A mask as a vector: all bits of a lane, or none.
    MaskBits(Lanes),
    /// The mask of a vector of such lanes.
    MaskOf(Lanes),
    /// A mask of 32-bit lanes as one of 64-bit lanes, `.0`.
    MaskWiden(Lanes),
    /// A mask of 64-bit lanes, `.0`, as one of 32-bit lanes.
    MaskNarrow(Lanes),

    // Tiles, which are named by number. The rows of one are `uses[0]` bytes apart in memory, the first at `mem`.
    TileZero(u8),
    TileLoad(u8),
    TileStore(u8),
    /// `[acc, a, b]`: to each lane of 32 bits of the first, the products of the quads of bytes of a row of `a` with those of
    /// a column of `b`; sums wrap.
    TileDot(Signs, [u8; 3]),
    /// Likewise, to each f32 of the first, the products of the pairs of bf16 of a row of `a` with those of a column of `b`. The
    /// products of the lower halves have a sum for themselves, in the order of the row, and so have those of the higher halves;
    /// numbers below the normal ones are zeros.
    TileDotBf16([u8; 3]),

    // Integers of 64 bits.
    /// The address of this byte of the function's own memory.
    Frame(i32),
    Int(i64),
    /// 64 bits from `mem`.
    LoadInt,
    /// 32 bits from `mem`, extended by their sign.
    LoadInt32,
    /// A small element from `mem`, extended by its sign if it has one.
    LoadPart(Small),
    /// The low bytes of `uses[0]`, the size of a small element, to `mem`.
    StorePart(Small),
    /// The first lane of `uses[0]`, a vector; zeros are above one of 32 bits.
    ToGeneral(Lanes),
    /// `uses = [a, b]`
    Add,
    Sub,
    Mul,
    /// The higher 64 of the 128 bits of a product, unsigned.
    MulHigh,
    /// The quotient of signed numbers, toward zero. The divisor is neither 0 nor -1.
    DivInt,
    /// Signed.
    MinInt,
    MaxInt,
    /// `uses[0] + .0`
    AddInt(i32),
    /// `uses[0] * .0`
    MulInt(i32),
    /// `uses[0] << .0`
    ShlInt(u8),
    /// `uses[0] >> .0`, zeros shifted in.
    ShrInt(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// `a < b ? a : b`: `b` if either is NaN or both are zeros.
    Min,
    /// `a > b ? a : b`, likewise.
    Max,
    /// NaN if either is NaN.
    Minimum,
    Maximum,
    /// Remainder of floats with the sign of the dividend, exact: C's `fmod`.
    Rem,
    And,
    Or,
    Xor,
    /// Integers, wrapping.
    IntAdd,
    IntSub,
    IntMul,
    /// Signed integers. Of 64 bits they need EVEX, as the product does.
    IntMin,
    IntMax,
    /// Products of the lower halves of 64-bit lanes, unsigned.
    LowMul,
    /// Quotients toward zero, of signed and of unsigned integers; a zero divisor gives 0, and the least integer by -1 itself.
    IntDiv,
    UnsignedDiv,
    /// Shifts of each lane by a lane; a count of the width or more, which is unsigned, gives 0, or the sign.
    ShlBy,
    ShrBy,
    ShrArithBy,
    /// The sum of the products of the lower and of the upper halves of 32-bit lanes, all signed.
    DotPairs,
    /// In each half of 32-bit lanes the sum of the products of its two bytes, unsigned in the first operand and signed in the second; it
    /// saturates at 16 bits.
    DotBytes,
    /// In each half of 32-bit lanes the sum of the products of its two bytes, all signed, which wraps at 16 bits.
    DotHalves,
    /// `a` plus both halves of each 32-bit lane of `b`, which are signed. The result replaces `a`.
    AddHalves,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compare {
    /// Of floats. Only `Ne` holds for NaN.
    Eq,
    Ne,
    Lt,
    Le,
    /// Of signed integers.
    IntEq,
    IntGt,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unary {
    Sqrt,
    Floor,
    Ceil,
    Trunc,
    /// To the nearest, ties to even.
    Nearest,
    /// f32 to i32, toward zero; `i32::MIN` for what does not fit; Cranelift may give another integer.
    ToInt,
    /// f32 to i32, to the nearest, ties to even, as the control register has it for all arithmetic; else as [`Unary::ToInt`].
    ToIntNearest,
    /// i32 to f32.
    FromInt,
    /// f32 to the nearest that bf16 has, ties to even; a NaN to a quiet one with the highest bits that it had.
    RoundBf16,
    /// Shifts of each lane by a constant; one of the width or more leaves zeros, or the sign.
    Shl(u8),
    /// Of 64 bits it needs EVEX.
    ShrArith(u8),
    /// Zeros shifted in.
    Shr(u8),
    /// Both halves of 32-bit lanes, each with its sign shifted in.
    ShrArithHalves(u8),
    /// Likewise with zeros.
    ShrHalves(u8),
}

/// Which bytes of a product are signed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Signs {
    pub a: bool,
    pub b: bool,
}

impl Signs {
    pub const UNSIGNED_SIGNED: Signs = Signs { a: false, b: true };
    pub const SIGNED: Signs = Signs { a: true, b: true };
}

/// Where an operation can have an operand in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MemUse {
    Never,
    Always,
    /// In place of the last register operand.
    Last,
}

/// The operands of an operation.
pub struct Shape {
    pub uses: &'static [Class],
    pub dst: Option<Class>,
    pub mem: MemUse,
}

/// Integers of 64 bits and addresses, which all machines have.
macro_rules! integers {
    () => {
        Op::Prefetch
            | Op::Frame(_)
            | Op::Int(_)
            | Op::LoadInt
            | Op::LoadInt32
            | Op::LoadPart(_)
            | Op::StorePart(_)
            | Op::Add
            | Op::Sub
            | Op::Mul
            | Op::MulHigh
            | Op::DivInt
            | Op::MinInt
            | Op::MaxInt
            | Op::AddInt(_)
            | Op::MulInt(_)
            | Op::ShlInt(_)
            | Op::ShrInt(_)
    };
}

/// What has no lanes.
macro_rules! without_lanes {
    () => {
        Op::Extract(..)
            | Op::BroadcastHalf
            | Op::TileZero(_)
            | Op::TileLoad(_)
            | Op::TileStore(_)
            | Op::TileDot(..)
            | Op::TileDotBf16(_)
            | integers!()
    };
}

impl Op {
    /// How many lanes it works on, where it works on vectors.
    pub fn lanes(self) -> Option<Lanes> {
        match self {
            Op::Ramp(lanes, _) | Op::Permute(lanes) | Op::SwapBytes(lanes) => Some(lanes),
            Op::Splat(lanes, _) | Op::Load(lanes) | Op::Broadcast(lanes) | Op::Store(lanes) => Some(lanes),
            Op::Binary(_, lanes) | Op::Unary(_, lanes) | Op::Compare(_, lanes) | Op::Mask(_, lanes) => {
                Some(lanes)
            }
            Op::Fma(lanes) | Op::FmaNeg(lanes) | Op::MulAdd(lanes) | Op::Dot(_, lanes) | Op::Blend(lanes) => {
                Some(lanes)
            }
            Op::FmaLane(_, lanes) | Op::DotLane(_, _, lanes) | Op::MulAddHalves(_, lanes) => Some(lanes),
            Op::AddDotPairs(lanes) | Op::DotBf16(lanes) => Some(lanes),
            Op::SplatLane(lanes) | Op::MaskNot(lanes) | Op::MaskBits(lanes) | Op::MaskOf(lanes) => {
                Some(lanes)
            }
            Op::MaskWiden(lanes) | Op::MaskNarrow(lanes) | Op::Convert(_, lanes) => Some(lanes),
            Op::LoadHalves(_, lanes) | Op::MulHalves(_, lanes) | Op::QuantizePair(_, _, lanes) => Some(lanes),
            Op::LoadSmall(_, lanes) | Op::Pack(_, lanes) | Op::Quantize(_, lanes) | Op::Unpack(lanes) => {
                Some(lanes)
            }
            Op::PackBf16(lanes) => Some(lanes),
            Op::Saturate(_, lanes) | Op::InsertQuarter(_, lanes) | Op::Interleave(lanes) => Some(lanes),
            Op::Insert(_, lanes) | Op::UpperHalf(lanes) | Op::FromGeneral(lanes) | Op::ToGeneral(lanes) => {
                Some(lanes)
            }
            without_lanes!() => None,
        }
    }

    /// Whether its last register operand can be in memory instead.
    pub fn reads_mem(self) -> bool {
        self.shape().mem == MemUse::Last
    }

    /// What it reads and gives.
    pub fn shape(self) -> Shape {
        use Class::{Int, Mask, Vec};
        use MemUse::{Always, Last, Never};
        let (uses, dst, mem): (&'static [Class], _, _) = match self {
            Op::Splat(..) | Op::Ramp(..) => (&[], Some(Vec), Never),
            Op::Permute(_) => (&[Vec, Vec], Some(Vec), Last),
            Op::Load(_) | Op::Broadcast(_) | Op::LoadSmall(..) | Op::LoadHalves(..) | Op::BroadcastHalf => {
                (&[], Some(Vec), Always)
            }
            Op::Unpack(_) | Op::Pack(..) | Op::PackBf16(_) | Op::Quantize(..) | Op::Saturate(..) => {
                (&[Vec], Some(Vec), Never)
            }
            Op::InsertQuarter(..) => (&[Vec], Some(Vec), Always),
            Op::Convert(..) | Op::SwapBytes(_) | Op::Interleave(_) => (&[Vec], Some(Vec), Never),
            Op::QuantizePair(_, 1, _) => (&[Vec, Vec, Vec], Some(Vec), Never),
            Op::MulHalves(..) | Op::QuantizePair(..) => (&[Vec, Vec], Some(Vec), Never),
            Op::MaskWiden(_) | Op::MaskNarrow(_) => (&[Mask], Some(Mask), Never),
            Op::Insert(..) => (&[Vec, Vec], Some(Vec), Never),
            Op::FromGeneral(_) => (&[Int], Some(Vec), Never),
            Op::ToGeneral(_) => (&[Vec], Some(Int), Never),
            Op::LoadPart(_) => (&[], Some(Int), Always),
            Op::StorePart(_) => (&[Int], None, Always),
            Op::Store(_) => (&[Vec], None, Always),
            Op::Prefetch => (&[], None, Always),
            Op::TileZero(_) | Op::TileDot(..) | Op::TileDotBf16(_) => (&[], None, Never),
            Op::TileLoad(_) | Op::TileStore(_) => (&[Int], None, Always),
            Op::Frame(_) => (&[], Some(Int), Never),
            Op::Binary(op, lanes) => (&[Vec, Vec], Some(Vec), last_if(binary_reads_mem(op, lanes))),
            Op::Unary(op, lanes) => (&[Vec], Some(Vec), last_if(unary_reads_mem(op, lanes))),
            Op::Dot(_, lanes) | Op::AddDotPairs(lanes) | Op::DotBf16(lanes) => {
                (&[Vec, Vec, Vec], Some(Vec), last_if(!lanes.is_scalar()))
            }
            Op::FmaLane(..) | Op::DotLane(..) | Op::MulAddHalves(..) => (&[Vec, Vec, Vec], Some(Vec), Never),
            Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) => (&[Vec, Vec, Vec], Some(Vec), Last),
            Op::Blend(_) => (&[Mask, Vec, Vec], Some(Vec), Never),
            Op::Compare(op, lanes) => (&[Vec, Vec], Some(Mask), last_if(compare_reads_mem(op, lanes))),
            Op::Mask(..) => (&[Mask, Mask], Some(Mask), Never),
            Op::MaskNot(_) => (&[Mask], Some(Mask), Never),
            Op::MaskBits(_) => (&[Mask], Some(Vec), Never),
            Op::MaskOf(_) => (&[Vec], Some(Mask), Never),
            Op::SplatLane(_) | Op::UpperHalf(_) | Op::Extract(..) => (&[Vec], Some(Vec), Never),
            Op::Int(_) => (&[], Some(Int), Never),
            Op::LoadInt | Op::LoadInt32 => (&[], Some(Int), Always),
            Op::Add | Op::Sub | Op::Mul | Op::MulHigh | Op::DivInt | Op::MinInt | Op::MaxInt => {
                (&[Int, Int], Some(Int), Never)
            }
            Op::AddInt(_) | Op::MulInt(_) | Op::ShlInt(_) | Op::ShrInt(_) => (&[Int], Some(Int), Never),
        };
        Shape { uses, dst, mem }
    }

    /// The number in it.
    pub fn number(self) -> Option<u64> {
        match self {
            Op::Splat(_, bits) | Op::Ramp(_, bits) => Some(bits),
            Op::Extract(lane, _) | Op::Insert(lane, _) | Op::FmaLane(lane, _) | Op::DotLane(lane, ..) => {
                Some(lane.into())
            }
            Op::MulAddHalves(part, _) | Op::MulHalves(part, _) | Op::InsertQuarter(part, _) => {
                Some(part.into())
            }
            Op::QuantizePair(_, adds, _) => Some(adds.into()),
            Op::Unary(
                Unary::Shl(count)
                | Unary::Shr(count)
                | Unary::ShrArith(count)
                | Unary::ShrArithHalves(count)
                | Unary::ShrHalves(count),
                _,
            ) => Some(count.into()),
            Op::TileZero(tile) | Op::TileLoad(tile) | Op::TileStore(tile) => Some(tile.into()),
            Op::TileDot(_, tiles) | Op::TileDotBf16(tiles) => {
                Some(tiles.iter().fold(0, |number, &tile| 10 * number + u64::from(tile)))
            }
            Op::Frame(at) => Some(at as u64),
            Op::Int(value) => Some(value as u64),
            Op::AddInt(value) | Op::MulInt(value) => Some(i64::from(value) as u64),
            Op::ShlInt(count) | Op::ShrInt(count) => Some(count.into()),
            _ => None,
        }
    }

    /// What is wrong with the number in it.
    pub fn check_number(self) -> Result<(), String> {
        match self {
            Op::Extract(_, one) | Op::FromGeneral(one) | Op::ToGeneral(one) if !one.is_scalar() => {
                Err(format!("{} lanes at once", one.count()))
            }
            Op::Insert(lane, lanes) if usize::from(lane) >= lanes.count() => {
                Err(format!("there is no lane {lane}"))
            }
            Op::FmaLane(lane, lanes) | Op::DotLane(lane, _, lanes)
                if usize::from(lane) * lanes.width() >= 16 =>
            {
                Err(format!("there is no lane {lane} in 128 bits"))
            }
            Op::MulAddHalves(part @ 2.., _) | Op::MulHalves(part @ 2.., _) => {
                Err(format!("there is no part {part} of halves"))
            }
            Op::InsertQuarter(at @ 4.., _) => Err(format!("there is no quarter {at}")),
            Op::LoadHalves(Small::I16 | Small::U16 | Small::F16, _) => {
                Err("halves are widened from bytes".into())
            }
            Op::QuantizePair(small, adds, _) if small.bytes() != 1 || adds > 1 => {
                Err(format!("a pair of {small:?}, {adds}"))
            }
            Op::ShlInt(count) | Op::ShrInt(count) if count >= 64 => Err(format!("a shift by {count}")),
            _ => Ok(()),
        }
    }

    /// The lanes that it is written with, where it has any.
    pub fn written_lanes(self) -> Lanes {
        match self {
            Op::Extract(_, one) => one,
            _ => self.lanes().unwrap_or(Lanes::X1),
        }
    }

    /// How it is written. Every operation is in the table: a test asks for each.
    pub fn spelling(self) -> Option<&'static Spelling> {
        let (lanes, number) = (self.written_lanes(), self.number());
        let is = |one: &&Spelling| {
            one.number == number.is_some() && (one.op)(lanes, number.unwrap_or_default()) == self
        };
        SPELLINGS.iter().find(is)
    }
}

// A machine answers for each operation: a new one does not compile until it is in the list of each machine or in one of these.

/// What all machines have at each width that their registers hold.
macro_rules! everywhere {
    () => {
        Op::Splat(..)
            | Op::Load(_)
            | Op::Broadcast(_)
            | Op::Store(_)
            | Op::Blend(_)
            | Op::SplatLane(_)
            | Op::Compare(..)
            | Op::Mask(..)
            | Op::MaskNot(_)
            | Op::MaskBits(_)
            | Op::MaskOf(_)
            | Op::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, _)
            | Op::Binary(Binary::Min | Binary::Max, _)
            | Op::Binary(Binary::And | Binary::Or | Binary::Xor, _)
            | Op::Binary(Binary::IntAdd | Binary::IntSub, _)
            | Op::Unary(Unary::Sqrt | Unary::Shl(_) | Unary::Shr(_), _)
    };
}

/// What has lanes: the machines answer for it.
macro_rules! with_lanes {
    () => {
        Op::Binary(..)
            | Op::Unary(..)
            | Op::Ramp(..)
            | Op::LoadSmall(..)
            | Op::LoadHalves(..)
            | Op::InsertQuarter(..)
            | Op::Interleave(_)
            | Op::Unpack(_)
            | Op::Pack(..)
            | Op::PackBf16(_)
            | Op::Quantize(..)
            | Op::Saturate(..)
            | Op::QuantizePair(..)
            | Op::Fma(_)
            | Op::FmaNeg(_)
            | Op::MulAdd(_)
            | Op::FmaLane(..)
            | Op::Dot(..)
            | Op::AddDotPairs(_)
            | Op::DotBf16(_)
            | Op::DotLane(..)
            | Op::MulAddHalves(..)
            | Op::MulHalves(..)
            | Op::Permute(_)
            | Op::SwapBytes(_)
            | Op::UpperHalf(_)
            | Op::Insert(..)
            | Op::Convert(..)
            | Op::FromGeneral(_)
            | Op::ToGeneral(_)
            | Op::MaskWiden(_)
            | Op::MaskNarrow(_)
            | Op::Splat(..)
            | Op::Load(_)
            | Op::Broadcast(_)
            | Op::Store(_)
            | Op::Blend(_)
            | Op::SplatLane(_)
            | Op::Compare(..)
            | Op::Mask(..)
            | Op::MaskNot(_)
            | Op::MaskBits(_)
            | Op::MaskOf(_)
    };
}

impl Isa {
    /// Whether there is an instruction, or a few that stand for one, for an operation at its width.
    pub fn has(self, op: Op) -> bool {
        let Some(lanes) = op.lanes() else {
            return match op {
                Op::TileZero(_)
                | Op::TileLoad(_)
                | Op::TileStore(_)
                | Op::TileDot(..)
                | Op::TileDotBf16(_) => self.has_tiles,
                Op::BroadcastHalf => self.encoding != Encoding::Evex && self.has_f16c,
                Op::Extract(..) | integers!() => true,
                with_lanes!() => false,
            };
        };
        if !self.holds(lanes) {
            return false;
        }
        match self.encoding {
            Encoding::Cranelift => self.cranelift_has(op, lanes),
            Encoding::Vex | Encoding::Evex => self.x86_has(op, lanes),
            Encoding::Neon => self.neon_has(op, lanes),
        }
    }

    /// What has no vector form here is selected lane by lane.
    fn cranelift_has(self, op: Op, lanes: Lanes) -> bool {
        let (double, scalar) = (lanes.width() == 8, lanes.is_scalar());
        match op {
            Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) => self.has_fma,
            Op::Binary(Binary::Minimum | Binary::Maximum, _) => self.has_nan_extremes,
            Op::Binary(Binary::Rem | Binary::IntDiv | Binary::UnsignedDiv, _)
            | Op::Binary(Binary::ShlBy | Binary::ShrBy | Binary::ShrArithBy, _) => scalar,
            Op::Unary(Unary::ToInt | Unary::FromInt, _) => !double,
            Op::Binary(Binary::DotPairs, _)
            | Op::Unary(Unary::ShrArithHalves(_) | Unary::ShrHalves(_), _)
            | Op::SwapBytes(_) => !double && self.has_vectors(),
            Op::Unary(Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest, _) => self.has_rounding,
            Op::Binary(Binary::LowMul | Binary::DotBytes, _) | Op::Unpack(_) => false,
            Op::Binary(Binary::DotHalves | Binary::AddHalves, _) => false,
            Op::Dot(..) | Op::AddDotPairs(_) | Op::DotBf16(_) | Op::FmaLane(..) | Op::DotLane(..) => false,
            Op::Quantize(..) | Op::Saturate(..) | Op::PackBf16(_) => false,
            Op::LoadHalves(..) | Op::MulAddHalves(..) | Op::MulHalves(..) | Op::QuantizePair(..) => false,
            Op::Unary(Unary::ToIntNearest | Unary::RoundBf16, _) => false,
            Op::Ramp(..) | Op::Permute(_) | Op::UpperHalf(_) => false,
            Op::InsertQuarter(..) | Op::Interleave(_) => false,
            Op::Insert(..) => !scalar,
            Op::FromGeneral(_) | Op::ToGeneral(_) => scalar,
            Op::Convert(Convert::DoubleToLong, _) => false,
            Op::Convert(Convert::LongToDouble | Convert::SaturateToLong | Convert::DoubleToInt, _) => {
                double && scalar
            }
            Op::Convert(..) | Op::MaskWiden(_) | Op::MaskNarrow(_) => double,
            Op::LoadSmall(small, _) | Op::Pack(small, _) => small != Small::F16 && !double && !scalar,
            Op::Binary(Binary::IntMul | Binary::IntMin | Binary::IntMax, _)
            | Op::Unary(Unary::ShrArith(_), _)
            | everywhere!() => true,
            without_lanes!() => false,
        }
    }

    fn x86_has(self, op: Op, lanes: Lanes) -> bool {
        let double = lanes.width() == 8;
        lanes.count() != 2
            && match op {
                Op::Binary(Binary::Minimum | Binary::Maximum | Binary::Rem, _)
                | Op::Binary(Binary::IntDiv | Binary::UnsignedDiv, _)
                | Op::Binary(Binary::ShrBy | Binary::ShrArithBy, _)
                | Op::Binary(Binary::DotHalves | Binary::AddHalves, _) => false,
                Op::Convert(Convert::SaturateToLong, _) => false,
                Op::Insert(..) => !self.evex() && !lanes.is_scalar(),
                Op::Binary(Binary::IntMul | Binary::IntMin | Binary::IntMax, _)
                | Op::Unary(Unary::ShrArith(_), _) => !double || self.has_long_arithmetic,
                Op::SwapBytes(_) | Op::Unary(Unary::RoundBf16, _) => false,
                Op::Binary(Binary::LowMul, _) => double,
                Op::Binary(Binary::ShlBy | Binary::DotPairs | Binary::DotBytes, _)
                | Op::Unary(
                    Unary::ToInt
                    | Unary::ToIntNearest
                    | Unary::FromInt
                    | Unary::ShrArithHalves(_)
                    | Unary::ShrHalves(_),
                    _,
                ) => !double,
                Op::Dot(signs, _) => !double && self.dot == Some(signs),
                // VNNI has both.
                Op::AddDotPairs(_) => !double && self.dot.is_some(),
                Op::DotBf16(_) => !double && self.has_bf16_dot,
                Op::PackBf16(_) => !double && !lanes.is_scalar() && self.has_bf16_dot,
                Op::FmaLane(..) | Op::DotLane(..) => false,
                Op::Quantize(small, _) => small.is_byte() && !double && !lanes.is_scalar(),
                Op::Saturate(small, _) => self.evex() && small.is_byte() && !double && !lanes.is_scalar(),
                Op::QuantizePair(small, ..) => !self.evex() && small.is_byte() && lanes == Lanes::X8,
                Op::LoadHalves(..) | Op::MulAddHalves(..) | Op::MulHalves(..) => false,
                Op::Ramp(..) | Op::Permute(_) => self.evex() && lanes == Lanes::X16,
                Op::InsertQuarter(..) | Op::Interleave(_) => self.has_byte_permute && lanes == Lanes::X16,
                Op::UpperHalf(_) => !lanes.is_scalar() && 2 * lanes.bytes() <= self.vector_bytes,
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
                Op::Unary(Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest, _)
                | Op::Fma(_)
                | Op::FmaNeg(_)
                | Op::MulAdd(_)
                | Op::FromGeneral(_)
                | Op::ToGeneral(_)
                | everywhere!() => true,
                without_lanes!() => false,
            }
    }

    fn neon_has(self, op: Op, lanes: Lanes) -> bool {
        let double = lanes.width() == 8;
        match op {
            Op::Binary(Binary::Rem | Binary::DotBytes, _) | Op::Ramp(..) | Op::Permute(_) => false,
            Op::SwapBytes(_) | Op::AddDotPairs(_) | Op::DotBf16(_) | Op::UpperHalf(_) => false,
            Op::Binary(Binary::IntDiv | Binary::UnsignedDiv, _) => lanes.is_scalar(),
            Op::Binary(Binary::ShlBy | Binary::ShrBy | Binary::ShrArithBy | Binary::DotPairs, _)
            | Op::Binary(Binary::DotHalves | Binary::AddHalves, _) => !double,
            Op::Binary(Binary::LowMul, _) => double,
            Op::Unary(Unary::ToInt | Unary::ToIntNearest | Unary::FromInt, _)
            | Op::Unary(Unary::ShrArithHalves(_) | Unary::ShrHalves(_), _) => !double,
            Op::Unary(Unary::RoundBf16, _) => !double && self.has_bf16,
            // Processors without dot products compute it by several instructions.
            Op::Dot(signs, _) => !double && signs == Signs::SIGNED,
            Op::DotLane(_, signs, _) => !double && self.dot == Some(signs),
            Op::Convert(Convert::DoubleToLong, _) => false,
            Op::Convert(..) | Op::MaskWiden(_) | Op::MaskNarrow(_) => double,
            Op::LoadSmall(..) => !double && !lanes.is_scalar(),
            // One integer is packed as it is.
            Op::Pack(small, _) => !double && (small == Small::F16 || !lanes.is_scalar()),
            Op::Unpack(_) => !double,
            Op::Quantize(small, _) => !double && small != Small::F16 && !lanes.is_scalar(),
            Op::Saturate(..) | Op::InsertQuarter(..) | Op::Interleave(_) | Op::PackBf16(_) => false,
            Op::LoadHalves(small, _) => lanes == Lanes::X4 && small.bytes() == 1,
            Op::MulAddHalves(..) | Op::MulHalves(..) => lanes == Lanes::X4,
            Op::QuantizePair(small, ..) => lanes == Lanes::X4 && small.bytes() == 1,
            Op::Binary(Binary::Minimum | Binary::Maximum, _)
            | Op::Binary(Binary::IntMul | Binary::IntMin | Binary::IntMax, _)
            | Op::Unary(Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest, _)
            | Op::Unary(Unary::ShrArith(_), _)
            | Op::Fma(_)
            | Op::FmaNeg(_)
            | Op::MulAdd(_)
            | Op::FmaLane(..)
            | Op::Insert(..)
            | Op::FromGeneral(_)
            | Op::ToGeneral(_)
            | everywhere!() => true,
            without_lanes!() => false,
        }
    }
}

fn last_if(possible: bool) -> MemUse {
    if possible { MemUse::Last } else { MemUse::Never }
}

/// An operation without a scalar form works on 128 bits, and would read past a scalar in memory.
fn binary_reads_mem(op: Binary, lanes: Lanes) -> bool {
    use Binary::*;
    // With an EVEX prefix it reads whole vectors only, not an element for every lane.
    if matches!(op, DotPairs | DotBytes | DotHalves | AddHalves | Rem | IntDiv | UnsignedDiv) {
        return false;
    }
    !lanes.is_scalar() || matches!(op, Add | Sub | Mul | Div | Min | Max | Minimum | Maximum)
}

fn compare_reads_mem(op: Compare, lanes: Lanes) -> bool {
    !lanes.is_scalar() || !matches!(op, Compare::IntEq | Compare::IntGt)
}

fn unary_reads_mem(op: Unary, lanes: Lanes) -> bool {
    match op {
        Unary::Sqrt | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest => true,
        Unary::ToInt | Unary::ToIntNearest | Unary::FromInt => !lanes.is_scalar(),
        // AVX2 shifts by a constant only what is in a register.
        Unary::Shl(_)
        | Unary::ShrArith(_)
        | Unary::Shr(_)
        | Unary::ShrArithHalves(_)
        | Unary::ShrHalves(_)
        | Unary::RoundBf16 => false,
    }
}

/// What an operation takes its lanes for. It gives the letter of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    Float,
    Int,
    /// Bits without a type.
    Bits,
    Mask,
    /// A general register: no lanes.
    General,
}

/// How an operation is written: its name, the kind of its lanes, whether a number follows its type, and which operation it
/// is, with such lanes and that number.
pub struct Spelling {
    pub name: &'static str,
    pub kind: LaneKind,
    pub number: bool,
    pub op: fn(Lanes, u64) -> Op,
}

const fn plain(name: &'static str, kind: LaneKind, op: fn(Lanes, u64) -> Op) -> Spelling {
    Spelling { name, kind, number: false, op }
}

const fn numbered(name: &'static str, kind: LaneKind, op: fn(Lanes, u64) -> Op) -> Spelling {
    Spelling { name, kind, number: true, op }
}

use LaneKind::{Bits, Float, General, Int, Mask};

/// Every operation. Those that change the width of lanes are named with the type that has the wider ones.
pub const SPELLINGS: &[Spelling] = &[
    numbered("splat", Bits, Op::Splat),
    numbered("ramp", Float, Op::Ramp),
    plain("load", Bits, |lanes, _| Op::Load(lanes)),
    plain("broadcast", Bits, |lanes, _| Op::Broadcast(lanes)),
    plain("store", Bits, |lanes, _| Op::Store(lanes)),
    plain("load_i8", Int, |lanes, _| Op::LoadSmall(Small::I8, lanes)),
    plain("load_u8", Int, |lanes, _| Op::LoadSmall(Small::U8, lanes)),
    plain("load_i16", Int, |lanes, _| Op::LoadSmall(Small::I16, lanes)),
    plain("load_u16", Int, |lanes, _| Op::LoadSmall(Small::U16, lanes)),
    plain("load_f16", Float, |lanes, _| Op::LoadSmall(Small::F16, lanes)),
    plain("load_halves_i8", Int, |lanes, _| Op::LoadHalves(Small::I8, lanes)),
    plain("load_halves_u8", Int, |lanes, _| Op::LoadHalves(Small::U8, lanes)),
    plain("broadcast_f16", General, |_, _| Op::BroadcastHalf),
    plain("unpack_f16", Float, |lanes, _| Op::Unpack(lanes)),
    plain("pack_i8", Int, |lanes, _| Op::Pack(Small::I8, lanes)),
    plain("pack_u8", Int, |lanes, _| Op::Pack(Small::U8, lanes)),
    plain("pack_i16", Int, |lanes, _| Op::Pack(Small::I16, lanes)),
    plain("pack_u16", Int, |lanes, _| Op::Pack(Small::U16, lanes)),
    plain("quantize_i8", Float, |lanes, _| Op::Quantize(Small::I8, lanes)),
    plain("quantize_u8", Float, |lanes, _| Op::Quantize(Small::U8, lanes)),
    plain("quantize_i16", Float, |lanes, _| Op::Quantize(Small::I16, lanes)),
    plain("quantize_u16", Float, |lanes, _| Op::Quantize(Small::U16, lanes)),
    numbered("insert_quarter", Bits, |lanes, at| Op::InsertQuarter(at as u8, lanes)),
    plain("interleave", Bits, |lanes, _| Op::Interleave(lanes)),
    plain("saturate_i8", Int, |lanes, _| Op::Saturate(Small::I8, lanes)),
    plain("saturate_u8", Int, |lanes, _| Op::Saturate(Small::U8, lanes)),
    numbered("quantize_pair_i8", Float, |lanes, adds| Op::QuantizePair(Small::I8, adds as u8, lanes)),
    numbered("quantize_pair_u8", Float, |lanes, adds| Op::QuantizePair(Small::U8, adds as u8, lanes)),
    plain("pack_bf16", Float, |lanes, _| Op::PackBf16(lanes)),
    plain("pack_f16", Float, |lanes, _| Op::Pack(Small::F16, lanes)),
    plain("prefetch", General, |_, _| Op::Prefetch),
    plain("add", Float, |lanes, _| Op::Binary(Binary::Add, lanes)),
    plain("sub", Float, |lanes, _| Op::Binary(Binary::Sub, lanes)),
    plain("mul", Float, |lanes, _| Op::Binary(Binary::Mul, lanes)),
    plain("div", Float, |lanes, _| Op::Binary(Binary::Div, lanes)),
    plain("min", Float, |lanes, _| Op::Binary(Binary::Min, lanes)),
    plain("max", Float, |lanes, _| Op::Binary(Binary::Max, lanes)),
    plain("minimum", Float, |lanes, _| Op::Binary(Binary::Minimum, lanes)),
    plain("maximum", Float, |lanes, _| Op::Binary(Binary::Maximum, lanes)),
    plain("rem", Float, |lanes, _| Op::Binary(Binary::Rem, lanes)),
    plain("and", Bits, |lanes, _| Op::Binary(Binary::And, lanes)),
    plain("or", Bits, |lanes, _| Op::Binary(Binary::Or, lanes)),
    plain("xor", Bits, |lanes, _| Op::Binary(Binary::Xor, lanes)),
    plain("add", Int, |lanes, _| Op::Binary(Binary::IntAdd, lanes)),
    plain("sub", Int, |lanes, _| Op::Binary(Binary::IntSub, lanes)),
    plain("mul", Int, |lanes, _| Op::Binary(Binary::IntMul, lanes)),
    plain("min", Int, |lanes, _| Op::Binary(Binary::IntMin, lanes)),
    plain("max", Int, |lanes, _| Op::Binary(Binary::IntMax, lanes)),
    plain("mul_low", Int, |lanes, _| Op::Binary(Binary::LowMul, lanes)),
    plain("div", Int, |lanes, _| Op::Binary(Binary::IntDiv, lanes)),
    plain("div_unsigned", Int, |lanes, _| Op::Binary(Binary::UnsignedDiv, lanes)),
    plain("shl", Int, |lanes, _| Op::Binary(Binary::ShlBy, lanes)),
    plain("shr", Int, |lanes, _| Op::Binary(Binary::ShrBy, lanes)),
    plain("shr_arith", Int, |lanes, _| Op::Binary(Binary::ShrArithBy, lanes)),
    plain("dot_pairs", Int, |lanes, _| Op::Binary(Binary::DotPairs, lanes)),
    plain("dot_bytes", Int, |lanes, _| Op::Binary(Binary::DotBytes, lanes)),
    plain("dot_halves", Int, |lanes, _| Op::Binary(Binary::DotHalves, lanes)),
    plain("add_halves", Int, |lanes, _| Op::Binary(Binary::AddHalves, lanes)),
    plain("sqrt", Float, |lanes, _| Op::Unary(Unary::Sqrt, lanes)),
    plain("floor", Float, |lanes, _| Op::Unary(Unary::Floor, lanes)),
    plain("ceil", Float, |lanes, _| Op::Unary(Unary::Ceil, lanes)),
    plain("trunc", Float, |lanes, _| Op::Unary(Unary::Trunc, lanes)),
    plain("nearest", Float, |lanes, _| Op::Unary(Unary::Nearest, lanes)),
    plain("to_i32", Float, |lanes, _| match lanes.width() {
        8 => Op::Convert(Convert::DoubleToInt, lanes),
        _ => Op::Unary(Unary::ToInt, lanes),
    }),
    plain("to_nearest_i32", Float, |lanes, _| Op::Unary(Unary::ToIntNearest, lanes)),
    plain("from_i32", Float, |lanes, _| match lanes.width() {
        8 => Op::Convert(Convert::IntToDouble, lanes),
        _ => Op::Unary(Unary::FromInt, lanes),
    }),
    plain("round_bf16", Float, |lanes, _| Op::Unary(Unary::RoundBf16, lanes)),
    plain("to_i64", Float, |lanes, _| Op::Convert(Convert::DoubleToLong, lanes)),
    plain("saturate_i64", Float, |lanes, _| Op::Convert(Convert::SaturateToLong, lanes)),
    plain("from_i64", Float, |lanes, _| Op::Convert(Convert::LongToDouble, lanes)),
    plain("widen", Float, |lanes, _| Op::Convert(Convert::Widen, lanes)),
    plain("narrow", Float, |lanes, _| Op::Convert(Convert::Narrow, lanes)),
    plain("extend", Int, |lanes, _| Op::Convert(Convert::Extend, lanes)),
    plain("truncate", Int, |lanes, _| Op::Convert(Convert::Truncate, lanes)),
    numbered("shl", Int, |lanes, count| Op::Unary(Unary::Shl(count as u8), lanes)),
    numbered("shr", Int, |lanes, count| Op::Unary(Unary::Shr(count as u8), lanes)),
    numbered("shr_arith", Int, |lanes, count| Op::Unary(Unary::ShrArith(count as u8), lanes)),
    numbered("shr_halves", Int, |lanes, count| Op::Unary(Unary::ShrHalves(count as u8), lanes)),
    numbered("shr_arith_halves", Int, |lanes, count| Op::Unary(Unary::ShrArithHalves(count as u8), lanes)),
    plain("fma", Float, |lanes, _| Op::Fma(lanes)),
    plain("fma_neg", Float, |lanes, _| Op::FmaNeg(lanes)),
    plain("mul_add", Float, |lanes, _| Op::MulAdd(lanes)),
    numbered("fma_lane", Float, |lanes, lane| Op::FmaLane(lane as u8, lanes)),
    plain("dot", Int, |lanes, _| Op::Dot(Signs::UNSIGNED_SIGNED, lanes)),
    plain("dot_signed", Int, |lanes, _| Op::Dot(Signs::SIGNED, lanes)),
    plain("add_dot_pairs", Int, |lanes, _| Op::AddDotPairs(lanes)),
    plain("dot_bf16", Float, |lanes, _| Op::DotBf16(lanes)),
    numbered("dot_lane", Int, |lanes, lane| Op::DotLane(lane as u8, Signs::UNSIGNED_SIGNED, lanes)),
    numbered("dot_lane_signed", Int, |lanes, lane| Op::DotLane(lane as u8, Signs::SIGNED, lanes)),
    numbered("mul_add_halves", Int, |lanes, part| Op::MulAddHalves(part as u8, lanes)),
    numbered("mul_halves", Int, |lanes, part| Op::MulHalves(part as u8, lanes)),
    plain("permute", Bits, |lanes, _| Op::Permute(lanes)),
    plain("blend", Bits, |lanes, _| Op::Blend(lanes)),
    plain("swap_bytes", Bits, |lanes, _| Op::SwapBytes(lanes)),
    plain("splat_lane", Bits, |lanes, _| Op::SplatLane(lanes)),
    plain("upper_half", Bits, |lanes, _| Op::UpperHalf(lanes)),
    numbered("extract", Bits, |lanes, lane| Op::Extract(lane as u8, lanes)),
    numbered("insert", Bits, |lanes, lane| Op::Insert(lane as u8, lanes)),
    plain("eq", Float, |lanes, _| Op::Compare(Compare::Eq, lanes)),
    plain("ne", Float, |lanes, _| Op::Compare(Compare::Ne, lanes)),
    plain("lt", Float, |lanes, _| Op::Compare(Compare::Lt, lanes)),
    plain("le", Float, |lanes, _| Op::Compare(Compare::Le, lanes)),
    plain("eq", Int, |lanes, _| Op::Compare(Compare::IntEq, lanes)),
    plain("gt", Int, |lanes, _| Op::Compare(Compare::IntGt, lanes)),
    plain("and", Mask, |lanes, _| Op::Mask(Logic::And, lanes)),
    plain("or", Mask, |lanes, _| Op::Mask(Logic::Or, lanes)),
    plain("xor", Mask, |lanes, _| Op::Mask(Logic::Xor, lanes)),
    plain("not", Mask, |lanes, _| Op::MaskNot(lanes)),
    plain("bits", Mask, |lanes, _| Op::MaskBits(lanes)),
    plain("mask", Bits, |lanes, _| Op::MaskOf(lanes)),
    plain("widen", Mask, |lanes, _| Op::MaskWiden(lanes)),
    plain("narrow", Mask, |lanes, _| Op::MaskNarrow(lanes)),
    plain("from_general", Int, |lanes, _| Op::FromGeneral(lanes)),
    plain("to_general", Int, |lanes, _| Op::ToGeneral(lanes)),
    numbered("tile_zero", General, |_, tile| Op::TileZero(tile as u8)),
    numbered("tile_load", General, |_, tile| Op::TileLoad(tile as u8)),
    numbered("tile_store", General, |_, tile| Op::TileStore(tile as u8)),
    numbered("tile_dot_u8_u8", General, |_, tiles| dot_of(false, false, tiles)),
    numbered("tile_dot_u8_i8", General, |_, tiles| dot_of(false, true, tiles)),
    numbered("tile_dot_i8_u8", General, |_, tiles| dot_of(true, false, tiles)),
    numbered("tile_dot_i8_i8", General, |_, tiles| dot_of(true, true, tiles)),
    numbered("tile_dot_bf16", General, |_, tiles| Op::TileDotBf16(digits(tiles))),
    numbered("frame", General, |_, at| Op::Frame(at as i32)),
    numbered("const", General, |_, value| Op::Int(value as i64)),
    plain("load", General, |_, _| Op::LoadInt),
    plain("load_i32", General, |_, _| Op::LoadInt32),
    plain("load_i8", General, |_, _| Op::LoadPart(Small::I8)),
    plain("load_u8", General, |_, _| Op::LoadPart(Small::U8)),
    plain("load_i16", General, |_, _| Op::LoadPart(Small::I16)),
    plain("load_u16", General, |_, _| Op::LoadPart(Small::U16)),
    plain("load_f16", General, |_, _| Op::LoadPart(Small::F16)),
    plain("store_i8", General, |_, _| Op::StorePart(Small::I8)),
    plain("store_u8", General, |_, _| Op::StorePart(Small::U8)),
    plain("store_i16", General, |_, _| Op::StorePart(Small::I16)),
    plain("store_u16", General, |_, _| Op::StorePart(Small::U16)),
    plain("store_f16", General, |_, _| Op::StorePart(Small::F16)),
    plain("add", General, |_, _| Op::Add),
    plain("sub", General, |_, _| Op::Sub),
    plain("mul", General, |_, _| Op::Mul),
    plain("mul_high", General, |_, _| Op::MulHigh),
    plain("div", General, |_, _| Op::DivInt),
    plain("min", General, |_, _| Op::MinInt),
    plain("max", General, |_, _| Op::MaxInt),
    numbered("add", General, |_, value| Op::AddInt(value as i32)),
    numbered("mul", General, |_, value| Op::MulInt(value as i32)),
    numbered("shl", General, |_, count| Op::ShlInt(count as u8)),
    numbered("shr", General, |_, count| Op::ShrInt(count as u8)),
];

/// Tiles of a product as one number, with a digit for each: the accumulator's comes first.
fn dot_of(a: bool, b: bool, tiles: u64) -> Op {
    Op::TileDot(Signs { a, b }, digits(tiles))
}

fn digits(tiles: u64) -> [u8; 3] {
    [100, 10, 1].map(|by| (tiles / by % 10) as u8)
}
