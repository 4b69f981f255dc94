//! The bytes of a function: its instructions, with the places that they were allocated, as x86-64 machine
//! code.
//!
//! A function has the System V calling convention. Its code can be put anywhere: what it refers to outside of
//! the buffers are constants, which follow the code and are reached relative to it.

use super::alloc::{Allocated, Place, SLOT_BYTES, Step, allocate};
use super::codes;
use super::forms::{self, Form, UnaryForm};
use super::ir::{BlockId, Cond, End, Func, Inst, Lanes, Mem, Op};
use super::isa::Isa;
use super::verify::lanes;
use cranelift_entity::EntityRef;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, IcedError, Instruction, InstructionBlock, MemoryOperand,
    Register,
};

/// What is to be jumped to or loaded has a made-up address until the block encoder has placed it.
const BLOCK_ADDRESS: u64 = 1 << 32;
const POOL_ADDRESS: u64 = 1 << 33;

const PAGE: i32 = 4096;

/// Of a function and of its constants, in bytes: that of the widest constant.
pub const ALIGN: u32 = 32;
const INT3: u8 = 0xcc;
const MAX_FRAME: usize = 1 << 20;

/// Machine code of a function.
pub struct Machine {
    /// Instructions, then the constants they refer to.
    pub bytes: Vec<u8>,
    /// Bytes of the instructions.
    pub instructions: usize,
}

/// Machine code for a function.
pub fn compile(func: &Func, isa: Isa) -> Result<Machine, String> {
    let allocated = allocate(func, isa)?;
    let mut pool = Pool::default();
    let blocks = func.blocks.iter().map(|(id, block)| {
        let mut code = Emitter { isa, insts: vec![], pool: &mut pool };
        for step in allocated.steps(id)? {
            code.step(step).map_err(|e| format!("{id}: {e}"))?;
        }
        Ok(BlockCode { insts: code.insts, end: &block.end })
    });
    let blocks = blocks.collect::<Result<Vec<_>, String>>()?;
    let mut insts = lay_out(&blocks, &Frame::new(isa, &allocated, &blocks)?)?;
    let constants = pool.insts()?;
    let pool_bytes = pool.bytes();
    let code = insts.len();
    insts.extend(constants);
    let unaligned = encode(&insts)?;
    let instructions = unaligned.len().saturating_sub(pool_bytes);
    let padding = instructions.next_multiple_of(ALIGN as usize) - instructions;
    if pool_bytes == 0 || padding == 0 {
        return Ok(Machine { bytes: unaligned, instructions });
    }
    // Padding moves the constants, and with them what refers to them; jumps keep their lengths.
    let fill = (0..padding).map(|_| Instruction::with_declare_byte_1(INT3));
    insts.splice(code..code, fill);
    Ok(Machine { bytes: encode(&insts)?, instructions })
}

fn encode(insts: &[Instruction]) -> Result<Vec<u8>, String> {
    let block = InstructionBlock::new(insts, 0);
    let encoded = BlockEncoder::encode(64, block, BlockEncoderOptions::NONE).map_err(text)?;
    Ok(encoded.code_buffer)
}

fn text(error: IcedError) -> String {
    error.to_string()
}

/// The instructions of a block without the jumps at its end.
struct BlockCode<'a> {
    insts: Vec<Instruction>,
    end: &'a End,
}

/// Puts the blocks in a row and joins them with jumps.
fn lay_out(blocks: &[BlockCode], frame: &Frame) -> Result<Vec<Instruction>, String> {
    let targets =
        (0..blocks.len()).map(|n| target(blocks, BlockId::new(n))).collect::<Result<Vec<_>, _>>()?;
    // Blocks that only jump on are jumped over.
    let kept: Vec<usize> = (0..blocks.len()).filter(|&n| n == 0 || targets[n].index() == n).collect();
    let mut insts = frame.prologue()?;
    for (position, &index) in kept.iter().enumerate() {
        let next = kept.get(position + 1).map(|&n| BlockId::new(n));
        let start = insts.len();
        insts.extend(&blocks[index].insts);
        match *blocks[index].end {
            End::Jump(to, _) => jump(&mut insts, targets[to.index()], next)?,
            End::Branch { cond, then, otherwise, .. } => {
                let (then, otherwise) = (targets[then.index()], targets[otherwise.index()]);
                match Some(then) == next {
                    true => insts.push(branch(jump_unless(cond), otherwise)?),
                    false => {
                        insts.push(branch(jump_if(cond), then)?);
                        jump(&mut insts, otherwise, next)?;
                    }
                }
            }
            End::Return(code) => insts.extend(frame.epilogue(code)?),
        }
        if index != 0 {
            insts[start].set_ip(BLOCK_ADDRESS + index as u64);
        }
    }
    Ok(insts)
}

/// Where a jump to a block ends up: past blocks in which nothing is left but a jump.
fn target(blocks: &[BlockCode], from: BlockId) -> Result<BlockId, String> {
    let mut block = from;
    for _ in 0..=blocks.len() {
        match &blocks[block.index()] {
            BlockCode { insts, end: End::Jump(to, _) } if insts.is_empty() => block = *to,
            _ => return Ok(block),
        }
    }
    Err(format!("an endless loop from {from}"))
}

fn jump(insts: &mut Vec<Instruction>, to: BlockId, next: Option<BlockId>) -> Result<(), String> {
    if Some(to) != next {
        insts.push(branch(Code::Jmp_rel32_64, to)?);
    }
    Ok(())
}

fn branch(code: Code, to: BlockId) -> Result<Instruction, String> {
    Instruction::with_branch(code, BLOCK_ADDRESS + to.index() as u64).map_err(text)
}

fn jump_if(cond: Cond) -> Code {
    match cond {
        Cond::Lt => Code::Jl_rel32_64,
        Cond::Ge => Code::Jge_rel32_64,
        Cond::Eq => Code::Je_rel32_64,
        Cond::Ne => Code::Jne_rel32_64,
    }
}

fn jump_unless(cond: Cond) -> Code {
    jump_if(match cond {
        Cond::Lt => Cond::Ge,
        Cond::Ge => Cond::Lt,
        Cond::Eq => Cond::Ne,
        Cond::Ne => Cond::Eq,
    })
}

/// What a function does to the stack, and what it leaves behind.
struct Frame {
    saved: Vec<Register>,
    /// Bytes of spill slots; above them is the stack pointer as it was before.
    slots: i32,
    /// Of the slots, so that vectors do not cross cache lines.
    align: i32,
    /// Whether the upper halves of vector registers were written, which slows down code without VEX after it.
    wide: bool,
}

impl Frame {
    fn new(isa: Isa, allocated: &Allocated, blocks: &[BlockCode]) -> Result<Frame, String> {
        let slots = allocated.slots() * SLOT_BYTES;
        if slots > MAX_FRAME {
            return Err(format!("{slots} bytes of spilled values"));
        }
        let wide = blocks.iter().flat_map(|block| &block.insts).any(writes_wide);
        let saved = allocated.callee_saved().into_iter().map(|n| Register::RAX + u32::from(n)).collect();
        Ok(Frame { saved, slots: slots as i32, align: isa.vector_bytes as i32, wide })
    }

    fn prologue(&self) -> Result<Vec<Instruction>, String> {
        let mut insts = vec![];
        for &reg in &self.saved {
            insts.push(Instruction::with1(Code::Push_r64, reg));
        }
        if self.slots > 0 {
            let size = self.slots + SLOT_BYTES as i32;
            // No argument is in rax. Every page is touched, so that none is jumped over that guards the
            // stack.
            for page in 1..=(size + self.align) / PAGE {
                let touched = MemoryOperand::with_base_displ(Register::RSP, (-page * PAGE).into());
                insts.push(Instruction::with2(Code::Test_rm64_r64, touched, Register::RAX));
            }
            insts.push(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::RSP));
            insts.push(Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, size));
            insts.push(Instruction::with2(Code::And_rm64_imm8, Register::RSP, -self.align));
            insts.push(Instruction::with2(Code::Mov_rm64_r64, self.saved_stack_pointer(), Register::RAX));
        }
        insts.into_iter().map(|inst| inst.map_err(text)).collect()
    }

    fn epilogue(&self, code: i32) -> Result<Vec<Instruction>, String> {
        let mut insts = vec![];
        if self.slots > 0 {
            insts.push(Instruction::with2(Code::Mov_r64_rm64, Register::RSP, self.saved_stack_pointer()));
        }
        for &reg in self.saved.iter().rev() {
            insts.push(Instruction::with1(Code::Pop_r64, reg));
        }
        if self.wide {
            insts.push(Ok(Instruction::with(Code::VEX_Vzeroupper)));
        }
        insts.push(match code {
            0 => Instruction::with2(Code::Xor_r32_rm32, Register::EAX, Register::EAX),
            _ => Instruction::with2(Code::Mov_r32_imm32, Register::EAX, code),
        });
        insts.push(Ok(Instruction::with(Code::Retnq)));
        insts.into_iter().map(|inst| inst.map_err(text)).collect()
    }

    fn saved_stack_pointer(&self) -> MemoryOperand {
        MemoryOperand::with_base_displ(Register::RSP, self.slots.into())
    }
}

fn writes_wide(inst: &Instruction) -> bool {
    (0..inst.op_count()).any(|n| (Register::YMM0..=Register::ZMM31).contains(&inst.op_register(n)))
}

/// Constants, in the order of their first use.
#[derive(Default)]
struct Pool {
    /// Bits, and how many times they follow each other.
    constants: Vec<(u32, Lanes)>,
}

impl Pool {
    /// A constant as an operand of so many lanes.
    fn operand(&mut self, bits: u32, isa: Isa, lanes: Lanes) -> MemoryOperand {
        let each = isa.evex && lanes != Lanes::X1;
        let address = self.address(bits, if each { Lanes::X1 } else { lanes });
        MemoryOperand::new(Register::RIP, Register::None, 1, address, 1, each, Register::None)
    }

    /// Where a constant is, so many times in a row.
    fn address(&mut self, bits: u32, lanes: Lanes) -> i64 {
        let known = self.constants.iter().position(|&c| c == (bits, lanes));
        let index = known.unwrap_or_else(|| {
            self.constants.push((bits, lanes));
            self.constants.len() - 1
        });
        (POOL_ADDRESS + index as u64) as i64
    }

    fn bytes(&self) -> usize {
        self.constants.iter().map(|&(_, lanes)| 4 * lanes.count()).sum()
    }

    /// The constants, widest first: with the pool, each is then aligned to its own size.
    fn insts(&self) -> Result<Vec<Instruction>, String> {
        let mut order: Vec<usize> = (0..self.constants.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(self.constants[index].1.count()));
        let mut insts = Vec::new();
        for index in order {
            let (bits, lanes) = self.constants[index];
            // One declaration holds four.
            for part in 0..lanes.count().div_ceil(4) {
                let declared = vec![bits; lanes.count().min(4)];
                let mut inst = Instruction::with_declare_dword(&declared).map_err(text)?;
                if part == 0 {
                    inst.set_ip(POOL_ADDRESS + index as u64);
                }
                insts.push(inst);
            }
        }
        Ok(insts)
    }
}

/// A last operand, which can be in memory.
#[derive(Clone, Copy)]
enum Source {
    Reg(Register),
    Mem(MemoryOperand),
}

/// The operands of an instruction in their places.
struct Operands<'a> {
    uses: &'a [Place],
    mem: Option<MemoryOperand>,
    dst: Option<Place>,
}

impl<'a> Operands<'a> {
    fn new(inst: &Inst, places: &'a [Place], isa: Isa, pool: &mut Pool) -> Result<Operands<'a>, String> {
        let (uses, rest) = places.split_at_checked(inst.uses.len()).ok_or("operands without places")?;
        let mem = match (inst.mem, rest.first()) {
            (Some(Mem::At { disp, .. }), Some(&base)) => Some(address(general(base)?, disp)),
            (Some(Mem::Each { disp, .. }), Some(&base)) => {
                let base = general(base)?;
                Some(MemoryOperand::new(base, Register::None, 1, disp.into(), 1, true, Register::None))
            }
            (Some(Mem::Constant(bits)), _) => {
                Some(pool.operand(bits, isa, lanes(inst.op).unwrap_or(Lanes::X1)))
            }
            _ => None,
        };
        Ok(Operands { uses, mem, dst: inst.dst.and(rest.last().copied()) })
    }

    fn used(&self, index: usize) -> Result<Place, String> {
        self.uses.get(index).copied().ok_or_else(|| format!("operand {index} is missing"))
    }

    fn vector(&self, index: usize, lanes: Lanes) -> Result<Register, String> {
        vector(self.used(index)?, lanes)
    }

    fn general(&self, index: usize) -> Result<Register, String> {
        general(self.used(index)?)
    }

    fn memory(&self) -> Result<MemoryOperand, String> {
        self.mem.ok_or_else(|| "the operand in memory is missing".into())
    }

    /// What is in memory if anything is, else the register with this index.
    fn source(&self, index: usize, lanes: Lanes) -> Result<Source, String> {
        match self.mem {
            Some(mem) => Ok(Source::Mem(mem)),
            None => Ok(Source::Reg(self.vector(index, lanes)?)),
        }
    }

    fn result(&self) -> Result<Place, String> {
        self.dst.ok_or_else(|| "the result is missing".into())
    }
}

fn address(base: Register, disp: i32) -> MemoryOperand {
    match disp {
        0 => MemoryOperand::with_base(base),
        _ => MemoryOperand::with_base_displ(base, disp.into()),
    }
}

fn slot(index: u32) -> MemoryOperand {
    address(Register::RSP, index as i32 * SLOT_BYTES as i32)
}

fn general(place: Place) -> Result<Register, String> {
    match place {
        Place::Int(n) if n < 16 => Ok(Register::RAX + u32::from(n)),
        _ => Err(format!("{place:?} is not a general register")),
    }
}

/// The register of a vector or a mask.
fn vector(place: Place, lanes: Lanes) -> Result<Register, String> {
    let (first, n) = match (place, lanes) {
        (Place::Vec(n), Lanes::X16) if n < 32 => (Register::ZMM0, n),
        (Place::Vec(n), Lanes::X8) if n < 32 => (Register::YMM0, n),
        (Place::Vec(n), Lanes::X4 | Lanes::X1) if n < 32 => (Register::XMM0, n),
        (Place::Mask(n), _) if n < 8 => (Register::K0, n),
        _ => return Err(format!("{place:?} is not a vector register")),
    };
    Ok(first + u32::from(n))
}

/// Collects the instructions of a block.
struct Emitter<'a> {
    isa: Isa,
    insts: Vec<Instruction>,
    pool: &'a mut Pool,
}

type Emitted = Result<(), String>;

impl Emitter<'_> {
    fn push(&mut self, inst: Result<Instruction, IcedError>) -> Emitted {
        self.insts.push(inst.map_err(text)?);
        Ok(())
    }

    fn step(&mut self, step: Step) -> Emitted {
        match step {
            Step::Move { from, to } => self.transfer(from, to),
            Step::Inst { inst, places } => {
                let operands = Operands::new(inst, &places, self.isa, self.pool)?;
                self.inst(inst.op, &operands).map_err(|e| format!("{:?}: {e}", inst.op))
            }
            Step::End { end, places } => self.compare(end, &places),
        }
    }

    /// Between places of one class. Of vectors always the whole, as nothing here knows how much of it
    /// matters.
    fn transfer(&mut self, from: Place, to: Place) -> Emitted {
        use Code::*;
        let whole = if self.isa.lanes() > 8 { Lanes::X16 } else { Lanes::X8 };
        match (from, to) {
            _ if from == to => Ok(()),
            (Place::Int(_), Place::Int(_)) => {
                self.push(Instruction::with2(Mov_r64_rm64, general(to)?, general(from)?))
            }
            (Place::Int(_), Place::Spill(n)) => {
                self.push(Instruction::with2(Mov_rm64_r64, slot(n), general(from)?))
            }
            (Place::Spill(n), Place::Int(_)) => {
                self.push(Instruction::with2(Mov_r64_rm64, general(to)?, slot(n)))
            }
            (Place::Vec(_), Place::Vec(_)) => {
                let code = codes::MOVE.pick(self.isa, whole);
                self.push(Instruction::with2(code, vector(to, whole)?, vector(from, whole)?))
            }
            (Place::Vec(_), Place::Spill(n)) => {
                let code = codes::STORE.pick(self.isa, whole);
                self.push(Instruction::with2(code, slot(n), vector(from, whole)?))
            }
            (Place::Spill(n), Place::Vec(_)) => {
                let code = codes::LOAD.pick(self.isa, whole);
                self.push(Instruction::with2(code, vector(to, whole)?, slot(n)))
            }
            (Place::Mask(_), Place::Mask(_)) => {
                self.push(Instruction::with2(VEX_Kmovw_kr_km16, vector(to, whole)?, vector(from, whole)?))
            }
            (Place::Mask(_), Place::Spill(n)) => {
                self.push(Instruction::with2(VEX_Kmovw_m16_kr, slot(n), vector(from, whole)?))
            }
            (Place::Spill(n), Place::Mask(_)) => {
                self.push(Instruction::with2(VEX_Kmovw_kr_km16, vector(to, whole)?, slot(n)))
            }
            _ => Err(format!("a move from {from:?} to {to:?}")),
        }
    }

    /// Sets the flags for the jumps at the end of a block.
    fn compare(&mut self, end: &End, places: &[Place]) -> Emitted {
        match (end, places) {
            (End::Branch { .. }, &[a, b]) => {
                self.push(Instruction::with2(Code::Cmp_r64_rm64, general(a)?, general(b)?))
            }
            (End::Branch { b: super::ir::Operand::Imm(0), .. }, &[a]) => {
                self.push(Instruction::with2(Code::Test_rm64_r64, general(a)?, general(a)?))
            }
            (End::Branch { b: super::ir::Operand::Imm(imm), .. }, &[a]) => {
                let code = short(*imm, Code::Cmp_rm64_imm8, Code::Cmp_rm64_imm32);
                self.push(Instruction::with2(code, general(a)?, *imm))
            }
            (End::Branch { .. }, _) => Err("a branch without operands".into()),
            _ => Ok(()),
        }
    }

    fn inst(&mut self, op: Op, operands: &Operands) -> Emitted {
        match op {
            // The allocator has put the result where the operand is, or has copied it there.
            Op::Extract(0) | Op::SplatLane(Lanes::X1) => self.transfer(operands.used(0)?, operands.result()?),
            Op::MaskBits(_) | Op::MaskOf(_) if !self.isa.evex => {
                self.transfer(operands.used(0)?, operands.result()?)
            }
            Op::Store(lanes) => {
                let value = operands.vector(0, lanes)?;
                self.push(Instruction::with2(codes::STORE.pick(self.isa, lanes), operands.memory()?, value))
            }
            Op::Prefetch => self.push(Instruction::with1(Code::Prefetcht1_m8, operands.memory()?)),
            _ => match operands.result()? {
                result @ Place::Int(_) => self.integer(op, operands, general(result)?),
                result => self.vector(op, operands, result),
            },
        }
    }

    fn vector(&mut self, op: Op, operands: &Operands, result: Place) -> Emitted {
        let isa = self.isa;
        match op {
            Op::Splat(lanes, bits) => self.splat(lanes, bits, result),
            Op::Load(lanes) => {
                let code = codes::LOAD.pick(isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Broadcast(lanes) => {
                let code = codes::BROADCAST.pick(isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Binary(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(forms::binary(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::Compare(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(forms::compare(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::Mask(op, lanes) => {
                let (a, b) = (operands.vector(0, lanes)?, operands.source(1, lanes)?);
                self.three(forms::logic(op, isa, lanes), vector(result, lanes)?, a, b)
            }
            Op::MaskNot(lanes) => self.mask_not(lanes, vector(result, lanes)?, operands.vector(0, lanes)?),
            Op::MaskBits(lanes) => {
                self.two((forms::mask_bits(lanes), None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::MaskOf(lanes) => {
                self.two((forms::mask_of(lanes), None), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Unary(op, lanes) => {
                self.unary(forms::unary(op, isa, lanes), vector(result, lanes)?, operands.source(0, lanes)?)
            }
            Op::Fma(lanes) | Op::FmaNeg(lanes) => {
                let codes = if op == Op::Fma(lanes) { codes::FMA } else { codes::FMA_NEG };
                let (a, b) = (operands.vector(1, lanes)?, operands.source(2, lanes)?);
                self.three((codes.pick(isa, lanes), None), vector(result, lanes)?, a, b)
            }
            Op::MulAdd(lanes) => {
                let (b, c) = (operands.vector(1, lanes)?, operands.source(2, lanes)?);
                self.three((codes::MUL_ADD.pick(isa, lanes), None), vector(result, lanes)?, b, c)
            }
            Op::Blend(lanes) => {
                let [mask, then, otherwise] = [0, 1, 2].map(|n| operands.vector(n, lanes));
                let (code, dst) = (codes::BLEND.pick(isa, lanes), vector(result, lanes)?);
                if !isa.evex {
                    return self.push(Instruction::with4(code, dst, otherwise?, then?, mask?));
                }
                let mut inst = Instruction::with3(code, dst, otherwise?, then?).map_err(text)?;
                inst.set_op_mask(mask?);
                self.push(Ok(inst))
            }
            Op::SplatLane(lanes) => {
                let code = codes::SPLAT_LANE.pick(isa, lanes);
                self.two((code, None), vector(result, lanes)?, operands.source(0, Lanes::X1)?)
            }
            Op::Extract(lane) => self.extract(lane.into(), vector(result, Lanes::X1)?, operands.used(0)?),
            _ => Err("not an operation on vectors".into()),
        }
    }

    fn two(&mut self, (code, imm): Form, dst: Register, a: Source) -> Emitted {
        self.push(match (a, imm) {
            (Source::Reg(a), None) => Instruction::with2(code, dst, a),
            (Source::Mem(a), None) => Instruction::with2(code, dst, a),
            (Source::Reg(a), Some(imm)) => Instruction::with3(code, dst, a, imm),
            (Source::Mem(a), Some(imm)) => Instruction::with3(code, dst, a, imm),
        })
    }

    fn three(&mut self, (code, imm): Form, dst: Register, a: Register, b: Source) -> Emitted {
        self.push(match (b, imm) {
            (Source::Reg(b), None) => Instruction::with3(code, dst, a, b),
            (Source::Mem(b), None) => Instruction::with3(code, dst, a, b),
            (Source::Reg(b), Some(imm)) => Instruction::with4(code, dst, a, b, imm),
            (Source::Mem(b), Some(imm)) => Instruction::with4(code, dst, a, b, imm),
        })
    }

    fn splat(&mut self, lanes: Lanes, bits: u32, result: Place) -> Emitted {
        if bits == 0 {
            // Clears the upper half, too.
            let (code, dst) = (codes::XOR.pick(self.isa, Lanes::X4), vector(result, Lanes::X4)?);
            return self.three((code, None), dst, dst, Source::Reg(dst));
        }
        let constant = Source::Mem(self.pool.operand(bits, self.isa, Lanes::X1));
        self.two((codes::BROADCAST.pick(self.isa, lanes), None), vector(result, lanes)?, constant)
    }

    fn mask_not(&mut self, lanes: Lanes, dst: Register, a: Register) -> Emitted {
        if self.isa.evex {
            return self.push(Instruction::with2(Code::VEX_Knotw_kr_kr, dst, a));
        }
        // Without a scalar form, 128 bits are read.
        let lanes = if lanes == Lanes::X1 { Lanes::X4 } else { lanes };
        let ones = Source::Mem(self.pool.operand(u32::MAX, self.isa, lanes));
        self.three((codes::XOR.pick(self.isa, lanes), None), dst, a, ones)
    }

    fn unary(&mut self, form: UnaryForm, dst: Register, a: Source) -> Emitted {
        match (form, a) {
            (UnaryForm::Two(form), a) => self.two(form, dst, a),
            // With the operand in both places the result depends on nothing else.
            (UnaryForm::Scalar(form), Source::Reg(a)) => self.three(form, dst, a, Source::Reg(a)),
            (UnaryForm::Scalar(form), Source::Mem(_)) => {
                self.two((codes::LOAD.pick(self.isa, Lanes::X1), None), dst, a)?;
                self.three(form, dst, dst, Source::Reg(dst))
            }
            (UnaryForm::Shift(code, count), a) => self.two((code, Some(count)), dst, a),
        }
    }

    /// A lane other than the first, which is where it is already.
    fn extract(&mut self, lane: u32, dst: Register, from: Place) -> Emitted {
        use Code::*;
        let mut quarter = vector(from, Lanes::X4)?;
        if lane >= 4 {
            let (code, whole) = match (self.isa.evex, self.isa.lanes()) {
                (false, _) => (VEX_Vextractf128_xmmm128_ymm_imm8, Lanes::X8),
                (true, 16) => (EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8, Lanes::X16),
                (true, _) => (EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8, Lanes::X8),
            };
            self.push(Instruction::with3(code, dst, vector(from, whole)?, lane / 4))?;
            quarter = dst;
        }
        let permute = match self.isa.evex {
            true => EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8,
            false => VEX_Vpermilps_xmm_xmmm128_imm8,
        };
        match lane % 4 {
            0 => Ok(()),
            lane => self.two((permute, Some(lane)), dst, Source::Reg(quarter)),
        }
    }

    fn integer(&mut self, op: Op, operands: &Operands, dst: Register) -> Emitted {
        use Code::*;
        match op {
            Op::Int(value) => self.constant(value, dst),
            Op::LoadInt => self.push(Instruction::with2(Mov_r64_rm64, dst, operands.memory()?)),
            Op::Add => {
                let (a, b) = (operands.general(0)?, operands.general(1)?);
                match dst {
                    _ if dst == a => self.push(Instruction::with2(Add_r64_rm64, dst, b)),
                    _ if dst == b => self.push(Instruction::with2(Add_r64_rm64, dst, a)),
                    _ => self.lea(dst, MemoryOperand::with_base_index(a, b)),
                }
            }
            Op::Sub => self.push(Instruction::with2(Sub_r64_rm64, dst, operands.general(1)?)),
            Op::Mul => self.push(Instruction::with2(Imul_r64_rm64, dst, operands.general(1)?)),
            Op::MulHigh => {
                self.push(Instruction::with3(VEX_Mulx_r64_r64_rm64, dst, dst, operands.general(1)?))
            }
            Op::DivInt => {
                self.push(Ok(Instruction::with(Cqo)))?;
                self.push(Instruction::with1(Idiv_rm64, operands.general(1)?))
            }
            Op::MinInt | Op::MaxInt => {
                let b = operands.general(1)?;
                let replace = if op == Op::MinInt { Cmovg_r64_rm64 } else { Cmovl_r64_rm64 };
                self.push(Instruction::with2(Cmp_r64_rm64, dst, b))?;
                self.push(Instruction::with2(replace, dst, b))
            }
            Op::AddInt(value) => {
                let a = operands.general(0)?;
                match dst == a {
                    true if value == 0 => Ok(()),
                    true => {
                        self.push(Instruction::with2(short(value, Add_rm64_imm8, Add_rm64_imm32), dst, value))
                    }
                    false if value == 0 => self.push(Instruction::with2(Mov_r64_rm64, dst, a)),
                    false => self.lea(dst, address(a, value)),
                }
            }
            Op::MulInt(value) => {
                let code = short(value, Imul_r64_rm64_imm8, Imul_r64_rm64_imm32);
                self.push(Instruction::with3(code, dst, operands.general(0)?, value))
            }
            Op::ShlInt(count) => self.shift(dst, operands.general(0)?, count),
            Op::ShrInt(0) => Ok(()),
            Op::ShrInt(count) => self.push(Instruction::with2(Shr_rm64_imm8, dst, u32::from(count))),
            _ => Err("not an operation on integers".into()),
        }
    }

    fn constant(&mut self, value: i64, dst: Register) -> Emitted {
        // Writing the lower half of a register clears the upper one.
        let lower = Register::EAX + (dst as u32 - Register::RAX as u32);
        self.push(if value == 0 {
            Instruction::with2(Code::Xor_r32_rm32, lower, lower)
        } else if let Ok(value) = u32::try_from(value) {
            Instruction::with2(Code::Mov_r32_imm32, lower, value)
        } else if let Ok(value) = i32::try_from(value) {
            Instruction::with2(Code::Mov_rm64_imm32, dst, value)
        } else {
            Instruction::with2(Code::Mov_r64_imm64, dst, value)
        })
    }

    fn shift(&mut self, dst: Register, a: Register, count: u8) -> Emitted {
        match count {
            0 => Ok(()),
            _ if dst == a => self.push(Instruction::with2(Code::Shl_rm64_imm8, dst, u32::from(count))),
            // Without a base register an address takes four bytes more.
            1 => self.lea(dst, MemoryOperand::with_base_index(a, a)),
            _ => self.lea(dst, scaled(a, 1 << count)),
        }
    }

    fn lea(&mut self, dst: Register, address: MemoryOperand) -> Emitted {
        self.push(Instruction::with2(Code::Lea_r64_m, dst, address))
    }
}

fn scaled(index: Register, scale: u32) -> MemoryOperand {
    MemoryOperand::new(Register::None, index, scale, 0, 0, false, Register::None)
}

/// The form with an immediate of one byte, where that is enough.
fn short(value: i32, byte: Code, full: Code) -> Code {
    if i8::try_from(value).is_ok() { byte } else { full }
}
