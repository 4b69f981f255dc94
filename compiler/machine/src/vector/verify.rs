//! Checks that a function is well formed, so that emitters and the interpreter need not: the shape of instructions, the
//! classes of registers, the edges between blocks, that a register is defined once and that its definition comes before
//! its uses on every path. [`check`] asks whether a machine has the instructions.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::vector::ir::{
    Binary, Block, BlockId, Class, Compare, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, Small, TileShape,
    Unary,
};
use crate::vector::isa::Isa;

/// The integer arguments of a function that come in registers and that the encoder knows.
pub const MAX_ARGS: usize = 4;

/// Tiles of a machine that has any.
const MAX_TILES: u8 = 8;

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

/// Whether a function is valid on any machine.
pub fn verify(func: &Func) -> Result<(), String> {
    let entry = func.blocks.values().next().ok_or("the function has no blocks")?;
    if entry.params.len() > MAX_ARGS {
        return Err(format!("{} arguments, at most {MAX_ARGS} are possible", entry.params.len()));
    }
    for &param in &entry.params {
        expect_class(func, param, Class::Int)?;
    }
    for (id, block) in &func.blocks {
        verify_block(func, block).map_err(|e| format!("{id}: {e}"))?;
    }
    verify_shapes(func)?;
    verify_edges(func)?;
    verify_definitions(func)
}

/// Whether a machine has all instructions of a function.
pub fn check(func: &Func, isa: Isa) -> Result<(), String> {
    for (id, block) in &func.blocks {
        for inst in &block.insts {
            if let Some(reason) = isa.refuses(inst.op, matches!(inst.mem, Some(Mem::Each(_)))) {
                return Err(format!("{id}: {:?}: {reason}", inst.op));
            }
        }
    }
    Ok(())
}

/// The blocks that may run after this one.
pub fn successors(block: &Block) -> Vec<BlockId> {
    match &block.end {
        End::Jump(to, _) => vec![*to],
        End::Branch { then, otherwise, .. } => vec![*then, *otherwise],
        End::Return(_) => vec![],
    }
}

fn verify_block(func: &Func, block: &Block) -> Result<(), String> {
    for &param in &block.params {
        class_of(func, param)?;
    }
    for inst in &block.insts {
        verify_inst(func, inst).map_err(|e| format!("{:?}: {e}", inst.op))?;
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

fn verify_inst(func: &Func, inst: &Inst) -> Result<(), String> {
    verify_immediate(inst.op)?;
    verify_tiles(func, inst.op)?;
    for reg in inst.mem.into_iter().flat_map(Mem::reads) {
        expect_class(func, reg, Class::Int)?;
    }
    if let Some((_, log)) = inst.mem.and_then(Mem::address).and_then(|address| address.scaled)
        && (log > 3 || matches!(inst.op, Op::TileLoad(_) | Op::TileStore(_)))
    {
        return Err("an address that no instruction has".into());
    }
    let shape = shape(inst.op);
    let uses = match (shape.mem, inst.mem) {
        (MemUse::Never, Some(_)) => return Err("an operand in memory is not possible".into()),
        (MemUse::Always, Some(Mem::Constant(_) | Mem::Each(_))) => {
            return Err("the operand is not a place for a vector".into());
        }
        (_, Some(Mem::Each(_))) if lanes(inst.op).is_some_and(Lanes::is_scalar) => {
            return Err("an element for every lane of one".into());
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

fn verify_immediate(op: Op) -> Result<(), String> {
    match op {
        Op::Extract(_, one) | Op::FromGeneral(one) | Op::ToGeneral(one) if !one.is_scalar() => {
            Err(format!("{} lanes at once", one.count()))
        }
        Op::Insert(lane, lanes) if usize::from(lane) >= lanes.count() => {
            Err(format!("there is no lane {lane}"))
        }
        Op::FmaLane(lane, lanes) | Op::DotLane(lane, _, lanes) if usize::from(lane) * lanes.width() >= 16 => {
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

/// Tiles have shapes, which match in products; addresses are those of memory that the function has.
fn verify_tiles(func: &Func, op: Op) -> Result<(), String> {
    let shape = |tile: u8| match func.tiles.get(usize::from(tile)) {
        Some(shape) if tile < MAX_TILES => Ok(*shape),
        _ => Err(format!("there is no tile {tile}")),
    };
    match op {
        Op::TileZero(tile) | Op::TileLoad(tile) | Op::TileStore(tile) => shape(tile).map(|_| ()),
        Op::TileDot(_, [acc, a, b]) | Op::TileDotBf16([acc, a, b]) => {
            let (acc, a, b) = (shape(acc)?, shape(a)?, shape(b)?);
            match acc.rows == a.rows && a.bytes == 4 * b.rows && acc.bytes == b.bytes {
                true => Ok(()),
                false => Err(format!("{acc:?} of {a:?} and {b:?}")),
            }
        }
        Op::Frame(at) if usize::try_from(at).is_ok_and(|at| at < func.frame) => Ok(()),
        Op::Frame(at) => Err(format!("byte {at} of {} of the frame", func.frame)),
        _ => Ok(()),
    }
}

fn verify_shapes(func: &Func) -> Result<(), String> {
    let fits = |shape: &TileShape| {
        (1..=16).contains(&shape.rows) && (4..=64).contains(&shape.bytes) && shape.bytes.is_multiple_of(4)
    };
    match func.tiles.iter().find(|shape| !fits(shape)) {
        Some(shape) => Err(format!("{shape:?}")),
        None => Ok(()),
    }
}

/// How many lanes an operation on vectors works on.
pub fn lanes(op: Op) -> Option<Lanes> {
    match op {
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
        Op::SplatLane(lanes) | Op::MaskNot(lanes) | Op::MaskBits(lanes) | Op::MaskOf(lanes) => Some(lanes),
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
        Op::Extract(..)
        | Op::BroadcastHalf
        | Op::LoadPart(_)
        | Op::StorePart(_)
        | Op::Prefetch
        | Op::TileZero(_)
        | Op::TileLoad(_)
        | Op::TileStore(_)
        | Op::TileDot(..)
        | Op::TileDotBf16(_)
        | Op::Frame(_)
        | Op::Int(_)
        | Op::LoadInt
        | Op::LoadInt32
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

/// What an operation reads and gives.
pub fn shape(op: Op) -> Shape {
    use Class::{Int, Mask, Vec};
    use MemUse::{Always, Last, Never};
    let (uses, dst, mem): (&'static [Class], _, _) = match op {
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

/// The registers that an instruction reads.
pub fn reads(inst: &Inst) -> impl Iterator<Item = Reg> + '_ {
    inst.uses.iter().copied().chain(inst.mem.into_iter().flat_map(Mem::reads))
}

/// The registers that the end of a block reads.
pub fn end_reads(end: &End) -> Vec<Reg> {
    match end {
        End::Jump(_, args) => args.clone(),
        End::Branch { a, b: Operand::Reg(b), .. } => vec![*a, *b],
        End::Branch { a, .. } => vec![*a],
        End::Return(_) => vec![],
    }
}

/// Every register that is read has one definition, which dominates its uses.
fn verify_definitions(func: &Func) -> Result<(), String> {
    // Where a register is defined: its block, and its place there; parameters come first.
    let mut defined: SecondaryMap<Reg, Option<(BlockId, usize)>> = SecondaryMap::new();
    for (id, block) in &func.blocks {
        let params = block.params.iter().map(|&param| (param, 0));
        let results = block.insts.iter().enumerate().filter_map(|(at, inst)| Some((inst.dst?, at + 1)));
        for (reg, at) in params.chain(results) {
            if let Some((other, _)) = defined[reg].replace((id, at)) {
                return Err(format!("{reg} is defined in {other} and again in {id}"));
            }
        }
    }
    let dominators = dominators(func);
    let dominates = |of: BlockId, mut block: BlockId| {
        while block != of && block.index() != 0 {
            block = dominators[block.index()];
        }
        block == of
    };
    for (id, block) in &func.blocks {
        let reads =
            block.insts.iter().enumerate().flat_map(|(at, inst)| reads(inst).map(move |reg| (reg, at)));
        let end = end_reads(&block.end).into_iter().map(|reg| (reg, block.insts.len()));
        for (reg, at) in reads.chain(end) {
            match defined[reg] {
                Some((of, place)) if of == id && place <= at => {}
                Some((of, _)) if of != id && dominates(of, id) => {}
                _ => return Err(format!("{id}: {reg} may be read before it is defined")),
            }
        }
    }
    Ok(())
}

/// The immediate dominator of each block, the entry's being the entry (Cooper, Harvey and Kennedy, "A simple, fast
/// dominance algorithm"). All blocks are reached.
fn dominators(func: &Func) -> Vec<BlockId> {
    let entry = BlockId::new(0);
    let (mut order, mut state) = (Vec::new(), vec![0; func.blocks.len()]);
    let mut open = vec![entry];
    state[0] = 1;
    // Blocks behind all that they lead to, but for edges backwards.
    while let Some(&id) = open.last() {
        let next = successors(&func.blocks[id]).into_iter().find(|to| state[to.index()] == 0);
        match next {
            Some(to) => {
                state[to.index()] = 1;
                open.push(to);
            }
            None => {
                order.push(id);
                open.pop();
            }
        }
    }
    let mut place = vec![0; func.blocks.len()];
    order.iter().enumerate().for_each(|(at, id)| place[id.index()] = at);
    let mut predecessors = vec![Vec::new(); func.blocks.len()];
    for (id, block) in &func.blocks {
        successors(block).into_iter().for_each(|to| predecessors[to.index()].push(id));
    }
    let mut found: Vec<Option<BlockId>> = vec![None; func.blocks.len()];
    found[0] = Some(entry);
    loop {
        let mut changed = false;
        for &id in order.iter().rev().skip(1) {
            let mut meeting: Option<BlockId> = None;
            for &from in predecessors[id.index()].iter().filter(|from| found[from.index()].is_some()) {
                meeting = Some(match meeting {
                    None => from,
                    Some(mut other) => {
                        let mut from = from;
                        while from != other {
                            let behind = if place[from.index()] < place[other.index()] {
                                &mut from
                            } else {
                                &mut other
                            };
                            *behind = found[behind.index()].unwrap_or(entry);
                        }
                        from
                    }
                });
            }
            changed |= found[id.index()] != meeting;
            found[id.index()] = meeting;
        }
        if !changed {
            return found.into_iter().map(|found| found.unwrap_or(entry)).collect();
        }
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
