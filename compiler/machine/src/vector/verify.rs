//! Checks that a function is well formed, so that emitters and the interpreter need not: the shape of instructions, the
//! classes of registers, the edges between blocks, that a register is defined once and that its definition comes before
//! its uses on every path. [`check`] asks whether a machine has the instructions.

use cranelift_entity::{EntityRef, SecondaryMap};

use crate::vector::ir::{Block, BlockId, Class, End, Func, Inst, Lanes, Mem, Op, Operand, Reg, TileShape};
use crate::vector::isa::Isa;
use crate::vector::op::MemUse;

/// The integer arguments of a function that come in registers and that the encoder knows.
pub const MAX_ARGS: usize = 4;

/// Tiles of a machine that has any.
const MAX_TILES: u8 = 8;

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
    inst.op.check_number()?;
    verify_tiles(func, inst.op)?;
    for reg in inst.mem.into_iter().flat_map(Mem::reads) {
        expect_class(func, reg, Class::Int)?;
    }
    if let Some((_, log)) = inst.mem.and_then(Mem::address).and_then(|address| address.scaled)
        && (log > 3 || matches!(inst.op, Op::TileLoad(_) | Op::TileStore(_)))
    {
        return Err("an address that no instruction has".into());
    }
    let shape = inst.op.shape();
    let uses = match (shape.mem, inst.mem) {
        (MemUse::Never, Some(_)) => return Err("an operand in memory is not possible".into()),
        (MemUse::Always, Some(Mem::Constant(_) | Mem::Each(_))) => {
            return Err("the operand is not a place for a vector".into());
        }
        (_, Some(Mem::Each(_))) if inst.op.lanes().is_some_and(Lanes::is_scalar) => {
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
