//! Checks that a function is well formed, so that the register allocator and the encoder need not.
//!
//! What is checked here is the shape of instructions, the classes of registers and the edges between blocks.
//! That definitions are single and dominate their uses is left to the allocator, which has the dominator
//! tree.

use super::ir::{
    Binary, Block, BlockId, Class, Compare, Convert, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, Small,
    Unary,
};
use super::isa::Isa;
use cranelift_entity::EntityRef;

/// The integer arguments of a function that come in registers and that the encoder knows.
pub const MAX_ARGS: usize = 4;

/// Where an operation can have an operand in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemUse {
    Never,
    Always,
    /// In place of the last register operand.
    Last,
}

struct Shape {
    uses: &'static [Class],
    dst: Option<Class>,
    mem: MemUse,
}

pub fn verify(func: &Func, isa: Isa) -> Result<(), String> {
    let entry = func.blocks.values().next().ok_or("the function has no blocks")?;
    if entry.params.len() > MAX_ARGS {
        return Err(format!("{} arguments, at most {MAX_ARGS} are possible", entry.params.len()));
    }
    for &param in &entry.params {
        expect_class(func, param, Class::Int)?;
    }
    for (id, block) in &func.blocks {
        verify_block(func, block, isa).map_err(|e| format!("{id}: {e}"))?;
    }
    verify_edges(func)
}

/// The blocks that may run after this one.
pub fn successors(block: &Block) -> Vec<BlockId> {
    match &block.end {
        End::Jump(to, _) => vec![*to],
        End::Branch { then, otherwise, .. } => vec![*then, *otherwise],
        End::Return(_) => vec![],
    }
}

fn verify_block(func: &Func, block: &Block, isa: Isa) -> Result<(), String> {
    for &param in &block.params {
        class_of(func, param)?;
    }
    for inst in &block.insts {
        verify_inst(func, inst, isa).map_err(|e| format!("{:?}: {e}", inst.op))?;
    }
    for to in successors(block) {
        func.blocks.get(to).ok_or_else(|| format!("{to} does not exist"))?;
    }
    match &block.end {
        End::Jump(to, args) => verify_args(func, &func.blocks[*to].params, args),
        End::Branch { a, b, then, otherwise, .. } => {
            expect_class(func, *a, Class::Int)?;
            if let Operand::Reg(b) = b {
                expect_class(func, *b, Class::Int)?;
            }
            verify_args(func, &func.blocks[*then].params, &[])?;
            verify_args(func, &func.blocks[*otherwise].params, &[])
        }
        End::Return(_) => Ok(()),
    }
}

fn verify_args(func: &Func, params: &[Reg], args: &[Reg]) -> Result<(), String> {
    if params.len() != args.len() {
        return Err(format!("{} arguments for {} parameters", args.len(), params.len()));
    }
    for (&param, &arg) in params.iter().zip(args) {
        expect_class(func, arg, class_of(func, param)?)?;
    }
    Ok(())
}

fn verify_inst(func: &Func, inst: &Inst, isa: Isa) -> Result<(), String> {
    verify_immediate(inst.op, isa)?;
    if let Some(lanes) = lanes(inst.op)
        && lanes.bytes() > isa.vector_bytes
    {
        return Err(format!("{} bytes of {}", lanes.bytes(), isa.vector_bytes));
    }
    if !exists(inst.op, isa) {
        return Err("there is no such instruction".into());
    }
    if let Some(base) = inst.mem.and_then(Mem::base) {
        expect_class(func, base, Class::Int)?;
    }
    let shape = shape(inst.op);
    let uses = match (shape.mem, inst.mem) {
        (MemUse::Never, Some(_)) => return Err("an operand in memory is not possible".into()),
        (MemUse::Always, Some(Mem::Constant(_) | Mem::Each { .. })) => {
            return Err("the operand is no place for a vector".into());
        }
        (_, Some(Mem::Each { .. })) if !isa.evex || lanes(inst.op).is_some_and(Lanes::is_scalar) => {
            return Err("an element for every lane is not possible".into());
        }
        (MemUse::Always, None) => return Err("the operand in memory is missing".into()),
        (MemUse::Last, Some(_)) => &shape.uses[..shape.uses.len() - 1],
        _ => shape.uses,
    };
    if inst.uses.len() != uses.len() {
        return Err(format!("{} register operands, expected {}", inst.uses.len(), uses.len()));
    }
    for (&reg, &class) in inst.uses.iter().zip(uses) {
        expect_class(func, reg, class)?;
    }
    match (inst.dst, shape.dst) {
        (Some(dst), Some(class)) => expect_class(func, dst, class),
        (None, None) => Ok(()),
        (Some(_), None) => Err("has no result".into()),
        (None, Some(_)) => Err("the result is missing".into()),
    }
}

fn verify_immediate(op: Op, isa: Isa) -> Result<(), String> {
    match op {
        Op::Extract(_, one) if !one.is_scalar() => Err(format!("{} lanes at once", one.count())),
        Op::Extract(lane, one) if usize::from(lane) >= isa.lanes(one.width()) => {
            Err(format!("there is no lane {lane}"))
        }
        Op::ShlInt(count) | Op::ShrInt(count) if count >= 64 => Err(format!("a shift by {count}")),
        _ => Ok(()),
    }
}

/// Whether the machine has an operation at its width.
pub fn exists(op: Op, isa: Isa) -> bool {
    let Some(lanes) = lanes(op) else { return op != Op::BroadcastHalf || !isa.evex && isa.has_f16c };
    let double = lanes.width() == 8;
    match op {
        Op::Binary(Binary::IntMul | Binary::IntMin | Binary::IntMax, _) => !double || isa.evex,
        Op::Binary(Binary::LowMul, _) => double,
        Op::Binary(Binary::ShlBy, _) | Op::Unary(Unary::ToInt | Unary::FromInt, _) => !double,
        Op::Unary(Unary::ShrArith(_), _) => !double || isa.evex,
        Op::Convert(Convert::LongToDouble | Convert::DoubleToLong, _) => double && isa.evex,
        Op::Convert(..) | Op::MaskWiden(_) | Op::MaskNarrow(_) => double,
        Op::LoadSmall(Small::F16, _) | Op::Pack(Small::F16, _) | Op::Unpack(_) if !isa.has_f16c => false,
        Op::LoadSmall(..) => !double && !lanes.is_scalar(),
        // One integer is packed as it is.
        Op::Pack(small, _) => !double && (small == Small::F16 || !lanes.is_scalar()),
        Op::Unpack(_) => !double,
        _ => true,
    }
}

/// How many lanes an operation on vectors works on.
pub fn lanes(op: Op) -> Option<Lanes> {
    match op {
        Op::Splat(lanes, _) | Op::Load(lanes) | Op::Broadcast(lanes) | Op::Store(lanes) => Some(lanes),
        Op::Binary(_, lanes) | Op::Unary(_, lanes) | Op::Compare(_, lanes) | Op::Mask(_, lanes) => {
            Some(lanes)
        }
        Op::Fma(lanes) | Op::FmaNeg(lanes) | Op::MulAdd(lanes) | Op::Blend(lanes) => Some(lanes),
        Op::SplatLane(lanes) | Op::MaskNot(lanes) | Op::MaskBits(lanes) | Op::MaskOf(lanes) => Some(lanes),
        Op::MaskWiden(lanes) | Op::MaskNarrow(lanes) | Op::Convert(_, lanes) => Some(lanes),
        Op::LoadSmall(_, lanes) | Op::Pack(_, lanes) | Op::Unpack(lanes) => Some(lanes),
        Op::Extract(..)
        | Op::BroadcastHalf
        | Op::FromGeneral
        | Op::ToGeneral
        | Op::LoadPart(_)
        | Op::StorePart(_)
        | Op::Prefetch
        | Op::Int(_)
        | Op::LoadInt
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
        | Op::ShrInt(_) => None,
    }
}

/// Whether the last register operand of an operation can be in memory instead.
pub fn reads_mem(op: Op) -> bool {
    shape(op).mem == MemUse::Last
}

/// The operands of an operation.
fn shape(op: Op) -> Shape {
    use Class::{Int, Mask, Vec};
    use MemUse::{Always, Last, Never};
    let (uses, dst, mem): (&'static [Class], _, _) = match op {
        Op::Splat(..) => (&[], Some(Vec), Never),
        Op::Load(_) | Op::Broadcast(_) | Op::LoadSmall(..) | Op::BroadcastHalf => (&[], Some(Vec), Always),
        Op::Unpack(_) | Op::Pack(..) | Op::Convert(..) => (&[Vec], Some(Vec), Never),
        Op::MaskWiden(_) | Op::MaskNarrow(_) => (&[Mask], Some(Mask), Never),
        Op::FromGeneral => (&[Int], Some(Vec), Never),
        Op::ToGeneral => (&[Vec], Some(Int), Never),
        Op::LoadPart(_) => (&[], Some(Int), Always),
        Op::StorePart(_) => (&[Int], None, Always),
        Op::Store(_) => (&[Vec], None, Always),
        Op::Prefetch => (&[], None, Always),
        Op::Binary(op, lanes) => (&[Vec, Vec], Some(Vec), last_if(binary_reads_mem(op, lanes))),
        Op::Unary(op, lanes) => (&[Vec], Some(Vec), last_if(unary_reads_mem(op, lanes))),
        Op::Fma(_) | Op::FmaNeg(_) | Op::MulAdd(_) => (&[Vec, Vec, Vec], Some(Vec), Last),
        Op::Blend(_) => (&[Mask, Vec, Vec], Some(Vec), Never),
        Op::Compare(op, lanes) => (&[Vec, Vec], Some(Mask), last_if(compare_reads_mem(op, lanes))),
        Op::Mask(..) => (&[Mask, Mask], Some(Mask), Never),
        Op::MaskNot(_) => (&[Mask], Some(Mask), Never),
        Op::MaskBits(_) => (&[Mask], Some(Vec), Never),
        Op::MaskOf(_) => (&[Vec], Some(Mask), Never),
        Op::SplatLane(_) | Op::Extract(..) => (&[Vec], Some(Vec), Never),
        Op::Int(_) => (&[], Some(Int), Never),
        Op::LoadInt => (&[], Some(Int), Always),
        Op::Add | Op::Sub | Op::Mul | Op::MulHigh | Op::DivInt | Op::MinInt | Op::MaxInt => {
            (&[Int, Int], Some(Int), Never)
        }
        Op::AddInt(_) | Op::MulInt(_) | Op::ShlInt(_) | Op::ShrInt(_) => (&[Int], Some(Int), Never),
    };
    Shape { uses, dst, mem }
}

fn last_if(possible: bool) -> MemUse {
    if possible { MemUse::Last } else { MemUse::Never }
}

/// An operation without a scalar form works on 128 bits, and would read past a scalar in memory.
fn binary_reads_mem(op: Binary, lanes: Lanes) -> bool {
    use Binary::*;
    !lanes.is_scalar() || matches!(op, Add | Sub | Mul | Div | Min | Max)
}

fn compare_reads_mem(op: Compare, lanes: Lanes) -> bool {
    !lanes.is_scalar() || !matches!(op, Compare::IntEq | Compare::IntGt)
}

fn unary_reads_mem(op: Unary, lanes: Lanes) -> bool {
    match op {
        Unary::Sqrt | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest => true,
        Unary::ToInt | Unary::FromInt => !lanes.is_scalar(),
        // AVX2 shifts by a constant only what is in a register.
        Unary::Shl(_) | Unary::ShrArith(_) | Unary::Shr(_) => false,
    }
}

/// No edge goes back to the entry, none is critical, and every block is reached.
fn verify_edges(func: &Func) -> Result<(), String> {
    let mut predecessors = vec![0; func.blocks.len()];
    for to in func.blocks.values().flat_map(successors) {
        predecessors[to.index()] += 1;
    }
    if predecessors[0] > 0 {
        return Err("a jump to the entry".into());
    }
    for (id, block) in &func.blocks {
        let successors = successors(block);
        if let Some(to) = successors.iter().find(|to| successors.len() > 1 && predecessors[to.index()] > 1) {
            return Err(format!("the edge from {id} to {to} is critical"));
        }
    }
    let mut reached = vec![false; func.blocks.len()];
    let mut pending = vec![BlockId::new(0)];
    while let Some(id) = pending.pop() {
        if !std::mem::replace(&mut reached[id.index()], true) {
            pending.extend(successors(&func.blocks[id]));
        }
    }
    match reached.iter().position(|reached| !reached) {
        Some(block) => Err(format!("{} is never reached", BlockId::new(block))),
        None => Ok(()),
    }
}

fn class_of(func: &Func, reg: Reg) -> Result<Class, String> {
    func.regs.get(reg).copied().ok_or_else(|| format!("{reg} does not exist"))
}

fn expect_class(func: &Func, reg: Reg, class: Class) -> Result<(), String> {
    match class_of(func, reg)? {
        found if found == class => Ok(()),
        found => Err(format!("{reg} is {found:?}, expected {class:?}")),
    }
}
