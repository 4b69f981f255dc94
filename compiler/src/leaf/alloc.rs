//! Register allocation: gives every virtual register of a function a place, with regalloc2.
//!
//! The allocator sees the function through `Program`, which numbers instructions in a row and says which
//! registers each of them reads and writes, and where. Its answer is read back as the steps of a block: the
//! instructions of the IR with the places of their operands, and the moves between them.

use crate::vector::ir::{Block, BlockId, Class, Convert, End, Func, Inst, Lanes, Mem, Op, Operand, Reg};
use crate::vector::isa::Isa;
use crate::vector::verify::{MAX_ARGS, check, successors, verify};
use cranelift_entity::EntityRef;
use regalloc2::{
    Allocation, AllocationKind, Edit, Function, InstOrEdit, InstRange, MachineEnv, OperandConstraint,
    OperandKind, OperandPos, Output, PReg, PRegSet, RegClass, RegallocOptions, VReg,
};

/// Bytes of a spill slot.
pub const SLOT_BYTES: usize = 8;

const RDI: usize = 7;
const RSI: usize = 6;
const RAX: usize = 0;
const RDX: usize = 2;
const RCX: usize = 1;
const ARGS: [usize; MAX_ARGS] = [RDI, RSI, RDX, RCX];
/// rax, rcx, rdx, rsi, rdi, r8 to r11: those a function may overwrite.
const CALLER_SAVED: [usize; 9] = [RAX, RCX, RDX, RSI, RDI, 8, 9, 10, 11];
/// rbx, rbp, r12 to r15: those a function has to restore.
const CALLEE_SAVED: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// Where a value is. Registers by their number in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Int(u8),
    Vec(u8),
    Mask(u8),
    /// The first of its slots in the frame.
    Spill(u32),
}

/// What a block does next.
pub enum Step<'a> {
    Move {
        from: Place,
        to: Place,
    },
    /// `places` are those of the uses, of the base of the operand in memory, and of the result, as far as
    /// there are any.
    Inst {
        inst: &'a Inst,
        places: Vec<Place>,
    },
    End {
        end: &'a End,
        places: Vec<Place>,
    },
}

pub struct Allocated<'a> {
    program: Program<'a>,
    output: Output,
}

pub fn allocate(func: &Func, isa: Isa) -> Result<Allocated<'_>, String> {
    verify(func)?;
    check(func, isa)?;
    let program = Program::new(func, isa);
    // The check for SSA form is cheap, and without it the allocator may panic.
    let options = RegallocOptions { validate_ssa: true, ..Default::default() };
    let output =
        regalloc2::run(&program, &machine(isa), &options).map_err(|e| format!("register allocation: {e}"))?;
    Ok(Allocated { program, output })
}

impl<'a> Allocated<'a> {
    pub fn steps(&self, block: BlockId) -> Result<Vec<Step<'a>>, String> {
        let block = regalloc2::Block::new(block.index());
        let mut steps = vec![];
        for item in self.output.block_insts_and_edits(&self.program, block) {
            match item {
                InstOrEdit::Edit(&Edit::Move { from, to }) => {
                    if from != to {
                        steps.push(Step::Move { from: place(from)?, to: place(to)? });
                    }
                }
                InstOrEdit::Inst(index) => {
                    let places = self.output.inst_allocs(index).iter().map(|&a| place(a));
                    let places = places.collect::<Result<_, _>>()?;
                    match self.program.insts[index.index()].source {
                        Source::Entry => {}
                        Source::Inst(inst) => steps.push(Step::Inst { inst, places }),
                        Source::End(end) => steps.push(Step::End { end, places }),
                    }
                }
            }
        }
        Ok(steps)
    }

    /// How many slots the frame has. Vectors start at multiples of their size.
    pub fn slots(&self) -> usize {
        self.output.num_spillslots
    }

    /// The registers the function has to restore, in increasing order.
    pub fn callee_saved(&self) -> Vec<u8> {
        let moved = self.output.edits.iter().map(|(_, Edit::Move { to, .. })| to);
        let written: PRegSet = self.output.allocs.iter().chain(moved).filter_map(|a| a.as_reg()).collect();
        CALLEE_SAVED.into_iter().filter(|&n| written.contains(int(n))).map(|n| n as u8).collect()
    }

    /// Follows the values through the allocated function, and tells where a wrong one is read.
    #[cfg(test)]
    pub fn check(&self) -> Result<(), String> {
        let machine = machine(self.program.isa);
        let mut checker = regalloc2::checker::Checker::new(&self.program, &machine);
        checker.prepare(&self.output);
        checker.run().map_err(|e| format!("{e:?}"))
    }
}

fn place(allocation: Allocation) -> Result<Place, String> {
    match (allocation.kind(), allocation.as_reg(), allocation.as_stack()) {
        (AllocationKind::Reg, Some(reg), _) => Ok(match (reg.class(), reg.hw_enc() as u8) {
            (RegClass::Int, number) => Place::Int(number),
            (RegClass::Float, number) => Place::Vec(number),
            (RegClass::Vector, number) => Place::Mask(number),
        }),
        (AllocationKind::Stack, _, Some(slot)) => Ok(Place::Spill(slot.index() as u32)),
        _ => Err("an operand without a place".into()),
    }
}

fn int(number: usize) -> PReg {
    PReg::new(number, RegClass::Int)
}

/// The registers there are. None is set aside for moves in a cycle: the allocator finds one when it needs it.
fn machine(isa: Isa) -> MachineEnv {
    let caller_saved = CALLER_SAVED.into_iter().map(int).collect();
    let callee_saved = CALLEE_SAVED.into_iter().map(int).collect();
    let vectors = (0..isa.vector_registers).map(|n| PReg::new(n, RegClass::Float)).collect();
    // In place of k0, instructions that obey a mask obey none.
    let masks = (1..8).filter(|_| isa.evex()).map(|n| PReg::new(n, RegClass::Vector)).collect();
    MachineEnv {
        preferred_regs_by_class: [caller_saved, vectors, masks],
        non_preferred_regs_by_class: [callee_saved, PRegSet::empty(), PRegSet::empty()],
        scratch_by_class: [None; 3],
        fixed_stack_slots: vec![],
    }
}

/// What an instruction of the allocator stands for.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// Defines the arguments of the function, as the entry may have no parameters.
    Entry,
    Inst(&'a Inst),
    End(&'a End),
}

struct ProgramInst<'a> {
    source: Source<'a>,
    operands: Vec<regalloc2::Operand>,
}

#[derive(Default)]
struct ProgramBlock {
    first: usize,
    end: usize,
    params: Vec<VReg>,
    /// To the parameters of the one successor.
    args: Vec<VReg>,
    succs: Vec<regalloc2::Block>,
    preds: Vec<regalloc2::Block>,
}

/// A function as the allocator sees it.
struct Program<'a> {
    isa: Isa,
    regs: usize,
    insts: Vec<ProgramInst<'a>>,
    blocks: Vec<ProgramBlock>,
}

impl<'a> Program<'a> {
    fn new(func: &'a Func, isa: Isa) -> Program<'a> {
        let mut program = Program { isa, regs: func.regs.len(), insts: vec![], blocks: vec![] };
        for block in func.blocks.values() {
            program.add_block(func, block);
        }
        for index in 0..program.blocks.len() {
            for succ in program.blocks[index].succs.clone() {
                program.blocks[succ.index()].preds.push(regalloc2::Block::new(index));
            }
        }
        program
    }

    fn add_block(&mut self, func: &'a Func, block: &'a Block) {
        let first = self.insts.len();
        let mut params: Vec<VReg> = block.params.iter().map(|&r| vreg(func, self.isa, r)).collect();
        if self.blocks.is_empty() {
            let args = params.drain(..).zip(ARGS);
            let operands = args.map(|(r, n)| regalloc2::Operand::reg_fixed_def(r, int(n))).collect();
            self.insts.push(ProgramInst { source: Source::Entry, operands });
        }
        for inst in &block.insts {
            let operands = operands(func, self.isa, inst);
            self.insts.push(ProgramInst { source: Source::Inst(inst), operands });
        }
        let operands = end_operands(func, self.isa, &block.end);
        self.insts.push(ProgramInst { source: Source::End(&block.end), operands });
        let args = match &block.end {
            End::Jump(_, args) => args.iter().map(|&r| vreg(func, self.isa, r)).collect(),
            _ => vec![],
        };
        let succs = successors(block).into_iter().map(|to| regalloc2::Block::new(to.index())).collect();
        self.blocks.push(ProgramBlock { first, end: self.insts.len(), params, args, succs, preds: vec![] });
    }
}

fn vreg(func: &Func, isa: Isa, reg: Reg) -> VReg {
    let class = match func.regs[reg] {
        Class::Int => RegClass::Int,
        Class::Mask if isa.evex() => RegClass::Vector,
        Class::Vec | Class::Mask => RegClass::Float,
    };
    VReg::new(reg.index(), class)
}

fn operands(func: &Func, isa: Isa, inst: &Inst) -> Vec<regalloc2::Operand> {
    let vreg = |reg: Reg| vreg(func, isa, reg);
    let uses = inst.uses.iter().copied().chain(inst.mem.into_iter().flat_map(Mem::reads));
    let mut operands: Vec<_> = uses.map(|r| regalloc2::Operand::reg_use(vreg(r))).collect();
    match (inst.op, inst.uses.as_slice(), inst.dst) {
        (Op::MulHigh, &[a, _], _) => {
            operands[0] = regalloc2::Operand::reg_fixed_use(vreg(a), int(RDX));
        }
        // The vector is read after the result is written.
        (Op::Insert(..), &[a, _], _) => {
            operands[0] =
                regalloc2::Operand::new(vreg(a), OperandConstraint::Reg, OperandKind::Use, OperandPos::Late);
        }
        (Op::DivInt, &[a, b], Some(dst)) => {
            // The divisor is read after rdx, the dividend's upper half, is overwritten.
            let (kind, late) = (OperandKind::Use, OperandPos::Late);
            return vec![
                regalloc2::Operand::reg_fixed_use(vreg(a), int(RAX)),
                regalloc2::Operand::new(vreg(b), OperandConstraint::Reg, kind, late),
                regalloc2::Operand::reg_fixed_def(vreg(dst), int(RAX)),
            ];
        }
        _ => {}
    }
    operands.extend(inst.dst.map(|dst| match replaces_first_use(inst.op, isa) {
        true => regalloc2::Operand::reg_reuse_def(vreg(dst), 0),
        false => regalloc2::Operand::reg_def(vreg(dst)),
    }));
    operands
}

/// Whether the result is in the register of the first operand: where the machine has two operands only, and
/// for copies, which are then no instruction unless the original lives on.
fn replaces_first_use(op: Op, isa: Isa) -> bool {
    match op {
        Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) | Op::Dot(_) => true,
        Op::Sub | Op::Mul | Op::MinInt | Op::MaxInt => true,
        Op::ShrInt(_) | Op::Extract(0, _) => true,
        Op::SplatLane(lanes) => lanes.is_scalar(),
        Op::Convert(Convert::Truncate, Lanes::D1) => true,
        Op::MaskBits(_) | Op::MaskOf(_) => !isa.evex(),
        Op::MaskWiden(_) => isa.evex(),
        Op::MaskNarrow(lanes) => isa.evex() || lanes.is_scalar(),
        // For the small ones there is `lea`.
        Op::ShlInt(count) => !(1..=3).contains(&count),
        _ => false,
    }
}

fn end_operands(func: &Func, isa: Isa, end: &End) -> Vec<regalloc2::Operand> {
    let uses = match *end {
        End::Branch { a, b: Operand::Reg(b), .. } => vec![a, b],
        End::Branch { a, .. } => vec![a],
        End::Jump(..) | End::Return(_) => vec![],
    };
    uses.into_iter().map(|r| regalloc2::Operand::reg_use(vreg(func, isa, r))).collect()
}

impl Function for Program<'_> {
    fn num_insts(&self) -> usize {
        self.insts.len()
    }

    fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn entry_block(&self) -> regalloc2::Block {
        regalloc2::Block::new(0)
    }

    fn block_insns(&self, block: regalloc2::Block) -> InstRange {
        let block = &self.blocks[block.index()];
        InstRange::new(regalloc2::Inst::new(block.first), regalloc2::Inst::new(block.end))
    }

    fn block_succs(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        &self.blocks[block.index()].succs
    }

    fn block_preds(&self, block: regalloc2::Block) -> &[regalloc2::Block] {
        &self.blocks[block.index()].preds
    }

    fn block_params(&self, block: regalloc2::Block) -> &[VReg] {
        &self.blocks[block.index()].params
    }

    fn is_ret(&self, inst: regalloc2::Inst) -> bool {
        matches!(self.insts[inst.index()].source, Source::End(End::Return(_)))
    }

    fn is_branch(&self, inst: regalloc2::Inst) -> bool {
        matches!(self.insts[inst.index()].source, Source::End(End::Jump(..) | End::Branch { .. }))
    }

    fn branch_blockparams(&self, block: regalloc2::Block, _: regalloc2::Inst, _: usize) -> &[VReg] {
        &self.blocks[block.index()].args
    }

    fn inst_operands(&self, inst: regalloc2::Inst) -> &[regalloc2::Operand] {
        &self.insts[inst.index()].operands
    }

    fn inst_clobbers(&self, inst: regalloc2::Inst) -> PRegSet {
        match self.insts[inst.index()].source {
            Source::Inst(Inst { op: Op::DivInt, .. }) => PRegSet::empty().with(int(RDX)),
            _ => PRegSet::empty(),
        }
    }

    fn num_vregs(&self) -> usize {
        self.regs
    }

    fn spillslot_size(&self, class: RegClass) -> usize {
        match class {
            RegClass::Int | RegClass::Vector => 1,
            RegClass::Float => self.isa.vector_bytes / SLOT_BYTES,
        }
    }
}
