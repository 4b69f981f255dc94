//! The vector IR: what a kernel is before it has registers.
//!
//! A function is a list of blocks in SSA form: every register is defined once, and values meet in the parameters of
//! blocks. Instructions are those of a machine with vectors of up to 512 bits and three operands, but no register has a
//! name yet. Vectors hold elements of 32 or 64 bits, floats or integers as the operation has it; scalars are the first lane of
//! a vector register, whose other lanes are unspecified. Smaller elements exist in memory only: loads widen them to 32
//! bits, and they are packed before stores. Masks say yes or no for each lane. Edges are never critical: the successors of
//! a branch have no other predecessor and take no arguments.

use cranelift_entity::{PrimaryMap, entity_impl};

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(u32);
entity_impl!(Reg, "%");

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);
entity_impl!(BlockId, "block");

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

/// A function `int32_t f(void *const *buffers, const int64_t *dims, int64_t lo, int64_t hi)`; its four arguments are the
/// parameters of the first block.
#[derive(Clone, Debug, Default)]
pub struct Func {
    pub regs: PrimaryMap<Reg, Class>,
    /// The first one is the entry. In the order in which they are laid out.
    pub blocks: PrimaryMap<BlockId, Block>,
    /// Bytes of the function's own memory, which [`Op::Frame`] gives addresses in; a multiple of 64 like where it begins.
    pub frame: usize,
    /// Shapes of the tiles that the function names, by their numbers. They hold nothing when it begins.
    pub tiles: Vec<TileShape>,
}

/// A tile: rows of bytes, at most 16 of 64.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileShape {
    pub rows: u8,
    pub bytes: u8,
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

#[derive(Clone, Debug)]
pub struct Block {
    pub params: Vec<Reg>,
    pub insts: Vec<Inst>,
    pub end: End,
}

/// An operation with its operands: `uses` are the registers that the operation names, in its order, then those of `mem`.
#[derive(Clone, Debug)]
pub struct Inst {
    pub op: Op,
    pub dst: Option<Reg>,
    pub uses: Vec<Reg>,
    pub mem: Option<Mem>,
}

/// An operand in memory. It stands for the last register operand of an operation that allows it, or is what a load or
/// store reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mem {
    At(Address),
    /// The one element there, in every lane; where the machine has such operands.
    Each(Address),
    /// These bits in every lane: a constant that takes no register.
    Constant(u64),
}

impl Mem {
    pub fn at(base: Reg, disp: i32) -> Mem {
        Mem::At(Address { base, scaled: None, disp })
    }

    pub fn each(base: Reg, disp: i32) -> Mem {
        Mem::Each(Address { base, scaled: None, disp })
    }

    pub fn address(self) -> Option<Address> {
        match self {
            Mem::At(address) | Mem::Each(address) => Some(address),
            Mem::Constant(_) => None,
        }
    }

    /// The registers of the address: the base, then the one that is scaled.
    pub fn reads(self) -> impl Iterator<Item = Reg> {
        let address = self.address();
        let scaled = address.and_then(|address| address.scaled);
        address.map(|address| address.base).into_iter().chain(scaled.map(|(reg, _)| reg))
    }
}

/// `disp` bytes from a base register, and where the machine has such addresses a register times a power of two of at most 8, given by its
/// logarithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    pub base: Reg,
    pub scaled: Option<(Reg, u8)>,
    pub disp: i32,
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

/// A comparison of signed integers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cond {
    Lt,
    Ge,
    Eq,
    Ne,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    Reg(Reg),
    Imm(i32),
}

/// How a block ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Jump(BlockId, Vec<Reg>),
    Branch {
        cond: Cond,
        a: Reg,
        b: Operand,
        then: BlockId,
        otherwise: BlockId,
    },
    /// Ends the function with a code.
    Return(i32),
}
