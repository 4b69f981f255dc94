//! Register allocation: gives every virtual register of a function a place, with regalloc2.
//!
//! The allocator sees the function through `Program`, which numbers instructions in a row and says which
//! registers each of them reads and writes, and where. Its answer is read back as the steps of a block: the
//! instructions of the IR with the places of their operands, and the moves between them.

use cranelift_entity::EntityRef;
use onnxc_machine::vector::ir::{Block, BlockId, Class, End, Func, Inst, Mem, Operand, Reg};
use onnxc_machine::vector::isa::Isa;
use onnxc_machine::vector::verify::{MAX_ARGS, check, successors, verify};
use regalloc2::{
    Allocation, AllocationKind, Edit, Function, InstOrEdit, InstRange, MachineEnv, OperandConstraint,
    OperandKind, OperandPos, Output, PReg, PRegSet, RegClass, RegallocOptions, VReg,
};

/// Bytes of a spill slot.
pub(super) const SLOT_BYTES: usize = 8;

/// The registers of an architecture, by their numbers, and what its instructions want of them.
pub struct Registers {
    /// Where the arguments of a function are.
    pub args: [u8; MAX_ARGS],
    /// General registers that a function may overwrite, and those that it has to restore.
    pub caller_saved: &'static [u8],
    pub callee_saved: &'static [u8],
    /// Likewise of vectors.
    pub vectors: &'static [u8],
    pub callee_saved_vectors: &'static [u8],
    /// Registers of masks, where masks are not vectors.
    pub masks: &'static [u8],
    pub needs: fn(&Inst, Isa) -> Needs,
}

/// What an instruction wants of the places of its operands, beside that each is in a register.
#[derive(Clone, Copy, Default)]
pub struct Needs {
    /// A use, by its number, and the general register it has to be in.
    pub fixed_use: Option<(usize, u8)>,
    pub fixed_result: Option<u8>,
    /// A use that is read after the result is written.
    pub late: Option<usize>,
    /// The use in whose register the result is: where an instruction overwrites an operand, and for copies, which are
    /// then no instruction unless the original lives on.
    pub replaces: Option<usize>,
    /// The result is written before the last operand is read.
    pub early_result: bool,
    /// A general register that it overwrites.
    pub clobbers: Option<u8>,
    /// Vectors that it needs for what is in between.
    pub temps: usize,
}

/// Where a value is. Registers by their number in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    Int(u8),
    Vec(u8),
    Mask(u8),
    /// The first of its slots in the frame.
    Spill(u32),
}

/// What a block does next.
pub(super) enum Action<'a> {
    Move {
        from: Location,
        to: Location,
    },
    /// `places` are those of the uses, of the base of the operand in memory, and of the result, as far as
    /// there are any.
    Inst {
        inst: &'a Inst,
        places: Vec<Location>,
        /// Of the vectors for what is in between.
        temps: Vec<Location>,
    },
    End {
        end: &'a End,
        places: Vec<Location>,
    },
}

pub(super) struct Allocated<'a> {
    program: Program<'a>,
    output: Output,
}

pub(super) fn allocate<'a>(
    func: &'a Func,
    isa: Isa,
    registers: &'static Registers,
) -> Result<Allocated<'a>, String> {
    verify(func)?;
    check(func, isa)?;
    let program = Program::new(func, isa, registers);
    // The check for SSA form is cheap, and without it the allocator may panic.
    let options = RegallocOptions { validate_ssa: true, ..Default::default() };
    let output = regalloc2::run(&program, &machine(registers), &options)
        .map_err(|e| format!("register allocation: {e}"))?;
    Ok(Allocated { program, output })
}

impl<'a> Allocated<'a> {
    pub(super) fn steps(&self, block: BlockId) -> Result<Vec<Action<'a>>, String> {
        let block = regalloc2::Block::new(block.index());
        let mut steps = vec![];
        for item in self.output.block_insts_and_edits(&self.program, block) {
            match item {
                InstOrEdit::Edit(&Edit::Move { from, to }) => {
                    if from != to {
                        steps.push(Action::Move { from: place(from)?, to: place(to)? });
                    }
                }
                InstOrEdit::Inst(index) => {
                    let places = self.output.inst_allocs(index).iter().map(|&a| place(a));
                    let mut places = places.collect::<Result<Vec<_>, _>>()?;
                    let ProgramInst { source, needs, .. } = &self.program.insts[index.index()];
                    match *source {
                        Source::Entry => {}
                        Source::Inst(inst) => {
                            let temps = places.split_off(places.len() - needs.temps);
                            steps.push(Action::Inst { inst, places, temps });
                        }
                        Source::End(end) => steps.push(Action::End { end, places }),
                    }
                }
            }
        }
        Ok(steps)
    }

    /// How many slots the frame has. Vectors start at multiples of their size.
    pub(super) fn slots(&self) -> usize {
        self.output.num_spillslots
    }

    /// The general registers the function has to restore, in increasing order.
    pub(super) fn callee_saved(&self) -> Vec<u8> {
        self.written(self.program.registers.callee_saved, RegClass::Int)
    }

    /// The vectors the function has to restore, in increasing order.
    pub(super) fn callee_saved_vectors(&self) -> Vec<u8> {
        self.written(self.program.registers.callee_saved_vectors, RegClass::Float)
    }

    /// Those of these registers that are written.
    fn written(&self, of: &[u8], class: RegClass) -> Vec<u8> {
        let moved = self.output.edits.iter().map(|(_, Edit::Move { to, .. })| to);
        let written: PRegSet = self.output.allocs.iter().chain(moved).filter_map(|a| a.as_reg()).collect();
        of.iter().copied().filter(|&n| written.contains(PReg::new(n.into(), class))).collect()
    }

    /// Follows the values through the allocated function, and reports where a wrong one is read.
    #[cfg(test)]
    pub(super) fn check(&self) -> Result<(), String> {
        let machine = machine(self.program.registers);
        let mut checker = regalloc2::checker::Checker::new(&self.program, &machine);
        checker.prepare(&self.output);
        checker.run().map_err(|e| format!("{e:?}"))
    }
}

fn place(allocation: Allocation) -> Result<Location, String> {
    match (allocation.kind(), allocation.as_reg(), allocation.as_stack()) {
        (AllocationKind::Reg, Some(reg), _) => Ok(match (reg.class(), reg.hw_enc() as u8) {
            (RegClass::Int, number) => Location::Int(number),
            (RegClass::Float, number) => Location::Vec(number),
            (RegClass::Vector, number) => Location::Mask(number),
        }),
        (AllocationKind::Stack, _, Some(slot)) => Ok(Location::Spill(slot.index() as u32)),
        _ => Err("an operand without a place".into()),
    }
}

fn int(number: u8) -> PReg {
    PReg::new(number.into(), RegClass::Int)
}

/// The registers there are. None is set aside for moves in a cycle: the allocator finds one when it needs it.
fn machine(registers: &Registers) -> MachineEnv {
    let set = |of: &[u8], class| of.iter().map(|&n| PReg::new(n.into(), class)).collect::<PRegSet>();
    MachineEnv {
        preferred_regs_by_class: [
            set(registers.caller_saved, RegClass::Int),
            set(registers.vectors, RegClass::Float),
            set(registers.masks, RegClass::Vector),
        ],
        non_preferred_regs_by_class: [
            set(registers.callee_saved, RegClass::Int),
            set(registers.callee_saved_vectors, RegClass::Float),
            PRegSet::empty(),
        ],
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
    needs: Needs,
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
    registers: &'static Registers,
    regs: usize,
    insts: Vec<ProgramInst<'a>>,
    blocks: Vec<ProgramBlock>,
}

impl<'a> Program<'a> {
    fn new(func: &'a Func, isa: Isa, registers: &'static Registers) -> Program<'a> {
        let mut program = Program { isa, registers, regs: func.regs.len(), insts: vec![], blocks: vec![] };
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
            let args = params.drain(..).zip(self.registers.args);
            let operands = args.map(|(r, n)| regalloc2::Operand::reg_fixed_def(r, int(n))).collect();
            self.insts.push(ProgramInst { source: Source::Entry, needs: Needs::default(), operands });
        }
        for inst in &block.insts {
            let needs = (self.registers.needs)(inst, self.isa);
            let mut operands = operands(func, self.isa, inst, &needs);
            for _ in 0..needs.temps {
                operands.push(regalloc2::Operand::reg_temp(VReg::new(self.regs, RegClass::Float)));
                self.regs += 1;
            }
            self.insts.push(ProgramInst { source: Source::Inst(inst), needs, operands });
        }
        let operands = end_operands(func, self.isa, &block.end);
        self.insts.push(ProgramInst { source: Source::End(&block.end), needs: Needs::default(), operands });
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

fn operands(func: &Func, isa: Isa, inst: &Inst, needs: &Needs) -> Vec<regalloc2::Operand> {
    let vreg = |reg: Reg| vreg(func, isa, reg);
    let uses = inst.uses.iter().copied().chain(inst.mem.into_iter().flat_map(Mem::reads));
    let mut operands: Vec<_> = uses
        .enumerate()
        .map(|(at, reg)| match (needs.fixed_use, needs.late) {
            (Some((fixed, place)), _) if fixed == at => {
                regalloc2::Operand::reg_fixed_use(vreg(reg), int(place))
            }
            (_, Some(late)) if late == at => {
                let (kind, late) = (OperandKind::Use, OperandPos::Late);
                regalloc2::Operand::new(vreg(reg), OperandConstraint::Reg, kind, late)
            }
            _ => regalloc2::Operand::reg_use(vreg(reg)),
        })
        .collect();
    operands.extend(inst.dst.map(|dst| match *needs {
        Needs { fixed_result: Some(place), .. } => regalloc2::Operand::reg_fixed_def(vreg(dst), int(place)),
        Needs { replaces: Some(at), .. } => regalloc2::Operand::reg_reuse_def(vreg(dst), at),
        Needs { early_result: true, .. } => {
            let (kind, early) = (OperandKind::Def, OperandPos::Early);
            regalloc2::Operand::new(vreg(dst), OperandConstraint::Reg, kind, early)
        }
        _ => regalloc2::Operand::reg_def(vreg(dst)),
    }));
    operands
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
        self.insts[inst.index()].needs.clobbers.into_iter().map(int).collect()
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
