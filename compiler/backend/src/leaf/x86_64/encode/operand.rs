//! The operands of an instruction as the machine names them.

use super::Pool;
use crate::leaf::alloc::{Location, SLOT_BYTES};
use iced_x86::{MemoryOperand, Register};
use onnxc_machine::vector::ir::{Address, Inst, Lanes, Mem};
use onnxc_machine::vector::isa::Isa;

/// A last operand, which can be in memory.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Reg(Register),
    Mem(MemoryOperand),
}

/// The operands of an instruction in their places.
pub(super) struct Operands<'a> {
    uses: &'a [Location],
    pub mem: Option<MemoryOperand>,
    dst: Option<Location>,
    temps: &'a [Location],
}

impl<'a> Operands<'a> {
    pub(super) fn new(
        inst: &Inst,
        (places, temps): (&'a [Location], &'a [Location]),
        isa: Isa,
        pool: &mut Pool,
    ) -> Result<Operands<'a>, String> {
        let (uses, rest) = places.split_at_checked(inst.uses.len()).ok_or("operands without places")?;
        let mem = match inst.mem {
            Some(Mem::At(address)) => Some(in_memory(address, rest, false)?),
            Some(Mem::Each(address)) => Some(in_memory(address, rest, true)?),
            Some(Mem::Constant(bits)) => Some(pool.operand(bits, isa, inst.op.lanes().unwrap_or(Lanes::X1))),
            None => None,
        };
        Ok(Operands { uses, mem, dst: inst.dst.and(rest.last().copied()), temps })
    }

    /// A register for what is in between.
    pub(super) fn temp(&self, index: usize) -> Result<Location, String> {
        self.temps.get(index).copied().ok_or_else(|| format!("temporary register {index} is missing"))
    }

    pub(super) fn used(&self, index: usize) -> Result<Location, String> {
        self.uses.get(index).copied().ok_or_else(|| format!("operand {index} is missing"))
    }

    pub(super) fn vector(&self, index: usize, lanes: Lanes) -> Result<Register, String> {
        vector(self.used(index)?, lanes)
    }

    pub(super) fn general(&self, index: usize) -> Result<Register, String> {
        general(self.used(index)?)
    }

    pub(super) fn memory(&self) -> Result<MemoryOperand, String> {
        self.mem.ok_or_else(|| "the operand in memory is missing".into())
    }

    /// What is in memory if anything is, else the register with this index.
    pub(super) fn source(&self, index: usize, lanes: Lanes) -> Result<Source, String> {
        match self.mem {
            Some(mem) => Ok(Source::Mem(mem)),
            None => Ok(Source::Reg(self.vector(index, lanes)?)),
        }
    }

    pub(super) fn result(&self) -> Result<Location, String> {
        self.dst.ok_or_else(|| "the result is missing".into())
    }
}

/// An operand whose registers have the first of these places, in every lane or not.
fn in_memory(address: Address, places: &[Location], each: bool) -> Result<MemoryOperand, String> {
    let mut places = places.iter();
    let mut next = || places.next().ok_or("an address without places").map(|&place| general(place));
    let base = next()??;
    let (index, scale) = match address.scaled {
        Some((_, log)) => (next()??, 1 << log),
        None => (Register::None, 1),
    };
    // A displacement of a whole number of operands takes a byte; the encoder finds that out.
    let size = if address.disp == 0 && !each { 0 } else { 1 };
    Ok(MemoryOperand::new(base, index, scale, address.disp.into(), size, each, Register::None))
}

pub(super) fn address(base: Register, disp: i32) -> MemoryOperand {
    match disp {
        0 => MemoryOperand::with_base(base),
        _ => MemoryOperand::with_base_displ(base, disp.into()),
    }
}

pub(super) fn slot(index: u32) -> MemoryOperand {
    address(Register::RSP, index as i32 * SLOT_BYTES as i32)
}

pub(super) fn general(place: Location) -> Result<Register, String> {
    match place {
        Location::Int(n) if n < 16 => Ok(Register::RAX + u32::from(n)),
        _ => Err(format!("{place:?} is not a general register")),
    }
}

/// The lower half of a general register.
pub(super) fn lower(reg: Register) -> Register {
    Register::EAX + (reg as u32 - Register::RAX as u32)
}

/// The register of a vector or a mask.
pub(super) fn vector(place: Location, lanes: Lanes) -> Result<Register, String> {
    let (first, n) = match (place, lanes) {
        (Location::Vec(n), Lanes::X16 | Lanes::D8) if n < 32 => (Register::ZMM0, n),
        (Location::Vec(n), Lanes::X8 | Lanes::D4) if n < 32 => (Register::YMM0, n),
        (Location::Vec(n), Lanes::X4 | Lanes::X1 | Lanes::D1) if n < 32 => (Register::XMM0, n),
        (Location::Mask(n), _) if n < 8 => (Register::K0, n),
        _ => return Err(format!("{place:?} is not a vector register")),
    };
    Ok(first + u32::from(n))
}
