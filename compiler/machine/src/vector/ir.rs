//! The vector IR: what a kernel is before it has registers.
//!
//! A function is a list of blocks in SSA form: every register is defined once, and values meet in the parameters of
//! blocks. Instructions are those of a machine with vectors of up to 512 bits and three operands, but no register has a
//! name yet. Vectors hold elements of 32 or 64 bits, floats or integers as the operation has it; scalars are the first lane of
//! a vector register, whose other lanes are unspecified. Smaller elements exist in memory only: loads widen them to 32
//! bits, and they are packed before stores. Masks say yes or no for each lane. Edges are never critical: the successors of
//! a branch have no other predecessor and take no arguments.

use cranelift_entity::{PrimaryMap, entity_impl};

pub use crate::vector::op::{Binary, Class, Compare, Convert, Lanes, Logic, Op, Signs, Small, Unary};

/// A virtual register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(u32);
entity_impl!(Reg, "%");

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);
entity_impl!(BlockId, "block");

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
