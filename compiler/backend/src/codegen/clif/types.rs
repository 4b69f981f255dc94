//! Which Cranelift type each register of the vector IR has: its lanes follow from what defines it, and whether they are floats
//! or integers from all that computes with it. Operations that only move bits pass that on, so that a load has the type of its
//! readers.

use cranelift_codegen::ir::{Type, types};
use cranelift_entity::{EntityRef, SecondaryMap};

use onnxc_machine::vector::ir::{Binary, Class, Compare, Convert, End, Func, Inst, Lanes, Op, Reg, Unary};
use onnxc_machine::vector::isa::Isa;

pub(super) struct Types {
    of: SecondaryMap<Reg, Option<Type>>,
    constants: SecondaryMap<Reg, Option<u64>>,
}

/// Type of a scalar, or of the vector of 128 bits that holds these lanes.
pub(super) fn of_lanes(lanes: Lanes, float: bool) -> Type {
    match (lanes, float) {
        (Lanes::X1, true) => types::F32,
        (Lanes::X1, false) => types::I32,
        (Lanes::D1, true) => types::F64,
        (Lanes::D1, false) => types::I64,
        (_, true) if lanes.width() == 8 => types::F64X2,
        (_, false) if lanes.width() == 8 => types::I64X2,
        (_, true) => types::F32X4,
        (_, false) => types::I32X4,
    }
}

/// Type of a mask: a bool, or integer lanes.
pub(super) fn of_mask(lanes: Lanes) -> Type {
    if lanes.is_scalar() { types::I8 } else { of_lanes(lanes, false) }
}

impl Types {
    pub(super) fn of(func: &Func, isa: Isa) -> Types {
        let (lanes, constants) = (lanes_of(func), constants_of(func));
        let floats = floats(func, &constants);
        let mut of = SecondaryMap::new();
        for (reg, &class) in &func.regs {
            of[reg] = match (class, lanes[reg]) {
                (Class::Int, _) => Some(types::I64),
                (Class::Mask, Some(_)) if !isa.has_vectors() => Some(types::I8),
                (Class::Mask, Some(lanes)) => Some(of_mask(lanes)),
                // Without vectors a pair of f64 is moved as an integer.
                (Class::Vec, Some(lanes)) if !isa.has_vectors() && !lanes.is_scalar() => Some(types::I128),
                (Class::Vec, Some(lanes)) => Some(of_lanes(lanes, floats[reg.index()])),
                (_, None) => None,
            };
        }
        Types { of, constants }
    }

    pub(super) fn of_reg(&self, reg: Reg) -> Type {
        self.of[reg].unwrap_or(types::INVALID)
    }

    /// The bits that a register has in every lane, where they are known.
    pub(super) fn constant(&self, reg: Reg) -> Option<u64> {
        self.constants[reg]
    }
}

fn constants_of(func: &Func) -> SecondaryMap<Reg, Option<u64>> {
    let mut constants = SecondaryMap::new();
    for inst in func.blocks.values().flat_map(|block| &block.insts) {
        if let (Op::Splat(_, bits), Some(dst)) = (inst.op, inst.dst) {
            constants[dst] = Some(bits);
        }
    }
    constants
}

/// Lanes of each vector and mask; those of a block's parameter are the most of what is passed.
fn lanes_of(func: &Func) -> SecondaryMap<Reg, Option<Lanes>> {
    let mut lanes = SecondaryMap::new();
    for inst in func.blocks.values().flat_map(|block| &block.insts) {
        if let Some(dst) = inst.dst {
            lanes[dst] = result_lanes(inst.op);
        }
    }
    loop {
        let mut changed = false;
        for block in func.blocks.values() {
            let End::Jump(to, args) = &block.end else { continue };
            for (&param, &arg) in func.blocks[*to].params.iter().zip(args) {
                let (old, new): (Option<Lanes>, Option<Lanes>) = (lanes[param], lanes[arg]);
                if new.map(Lanes::count) > old.map(Lanes::count) {
                    lanes[param] = new;
                    changed = true;
                }
            }
        }
        if !changed {
            return lanes;
        }
    }
}

fn result_lanes(op: Op) -> Option<Lanes> {
    match op {
        Op::Extract(_, one) => Some(one),
        // Small elements in the lower part of a vector.
        Op::Pack(..) | Op::Quantize(..) => Some(Lanes::X4),
        Op::Convert(Convert::Narrow | Convert::DoubleToInt | Convert::Truncate, lanes)
        | Op::MaskNarrow(lanes) => Some(lanes.narrow()),
        _ => op.lanes(),
    }
}

/// What an operation takes its vector operands and its result for: floats or not, where it says.
struct Reading {
    uses: Option<bool>,
    dst: Option<bool>,
}

fn reading(inst: &Inst) -> Reading {
    let both = |float| Reading { uses: Some(float), dst: Some(float) };
    let (float, int) = (both(true), both(false));
    match inst.op {
        Op::Binary(op, _) => match op {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Rem => float,
            Binary::Min | Binary::Max | Binary::Minimum | Binary::Maximum => float,
            Binary::And | Binary::Or | Binary::Xor => Reading { uses: None, dst: None },
            _ => int,
        },
        Op::Unary(Unary::ToInt | Unary::ToIntNearest, _) => Reading { uses: Some(true), dst: Some(false) },
        Op::Unary(Unary::FromInt, _) => Reading { uses: Some(false), dst: Some(true) },
        Op::Unary(Unary::Sqrt | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest, _) => float,
        Op::Unary(..) => int,
        Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) => float,
        Op::Compare(Compare::IntEq | Compare::IntGt, _) => int,
        Op::Compare(..) => float,
        Op::Convert(op, _) => match op {
            Convert::Widen | Convert::Narrow => float,
            Convert::IntToDouble | Convert::LongToDouble => Reading { uses: Some(false), dst: Some(true) },
            Convert::DoubleToInt | Convert::DoubleToLong | Convert::SaturateToLong => {
                Reading { uses: Some(true), dst: Some(false) }
            }
            Convert::Extend | Convert::Truncate => int,
        },
        Op::Load(_) | Op::Broadcast(_) | Op::Store(_) | Op::Blend(_) => Reading { uses: None, dst: None },
        Op::SplatLane(_) | Op::Extract(..) | Op::Insert(..) => Reading { uses: None, dst: None },
        _ => int,
    }
}

/// Whether bits pass from the operands to the result as they are.
fn moves(inst: &Inst, constants: &SecondaryMap<Reg, Option<u64>>) -> bool {
    match inst.op {
        Op::Blend(_) | Op::SplatLane(_) | Op::Extract(..) | Op::Insert(..) => true,
        // A float's sign is changed where it is. Other bits of a scalar are those of an integer.
        Op::Binary(Binary::And | Binary::Or | Binary::Xor, lanes) => {
            let mask = |reg: &Reg| constants[*reg].is_some_and(|bits| is_sign_mask(bits, lanes));
            !lanes.is_scalar() || inst.uses.iter().any(mask)
        }
        _ => false,
    }
}

/// Whether these are the sign of a float, or all other bits.
pub(super) fn is_sign_mask(bits: u64, lanes: Lanes) -> bool {
    match lanes.width() {
        8 => bits == 1 << 63 || bits == u64::MAX >> 1,
        _ => bits == 1 << 31 || bits == u64::from(u32::MAX >> 1),
    }
}

/// Whether each register holds floats: any operation takes it, or what it is moved from or to, for those.
fn floats(func: &Func, constants: &SecondaryMap<Reg, Option<u64>>) -> Vec<bool> {
    let mut sets = Sets((0..func.regs.len()).collect());
    let is_vector = |reg: Reg| func.regs[reg] == Class::Vec && constants[reg].is_none();
    for block in func.blocks.values() {
        for inst in block.insts.iter().filter(|inst| moves(inst, constants)) {
            for &reg in inst.uses.iter().filter(|&&reg| is_vector(reg)) {
                if let Some(dst) = inst.dst {
                    sets.join(reg, dst);
                }
            }
        }
        if let End::Jump(to, args) = &block.end {
            for (&param, &arg) in func.blocks[*to].params.iter().zip(args) {
                if is_vector(arg) {
                    sets.join(param, arg);
                }
            }
        }
    }
    let mut floats = vec![false; func.regs.len()];
    for inst in func.blocks.values().flat_map(|block| &block.insts) {
        let Reading { uses, dst } = reading(inst);
        let used = inst.uses.iter().filter(|&&reg| uses == Some(true) && is_vector(reg)).copied();
        for reg in used.chain(inst.dst.filter(|_| dst == Some(true))) {
            floats[sets.find(reg.index())] = true;
        }
    }
    (0..func.regs.len()).map(|reg| floats[sets.find(reg)]).collect()
}

/// Disjoint sets of registers, each with one that stands for it.
struct Sets(Vec<usize>);

impl Sets {
    fn find(&mut self, mut at: usize) -> usize {
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: Reg, b: Reg) {
        let (a, b) = (self.find(a.index()), self.find(b.index()));
        self.0[a] = b;
    }
}
