//! Which buffer of a kernel an address is in.

use std::collections::{HashMap, HashSet};

use cranelift_entity::EntityRef;

use onnxc_loops::{Access, Buf, Kernel};
use onnxc_machine::vector::ir::{End, Func, Mem, Op, Reg};

/// The buffers of the general registers that addresses are formed of, as far as they are known.
///
/// A buffer that a kernel only reads may be the memory of one that it writes, where each element is read for the last time
/// before it is written. So what is read of it is the same before and after any store of the kernel.
pub struct Buffers<'k> {
    kernel: &'k Kernel,
    of: HashMap<Reg, Buf>,
    /// Registers that were computed from elements: an index among the data.
    by_data: HashSet<Reg>,
}

impl Buffers<'_> {
    pub fn new<'k>(func: &Func, kernel: &'k Kernel) -> Buffers<'k> {
        let mut of: HashMap<Reg, Buf> = HashMap::new();
        let pointers = func.blocks.values().next().and_then(|entry| entry.params.first().copied());
        // A register is defined before it is read in the order of blocks, too, but for parameters of loops: no address is one.
        for inst in func.blocks.values().flat_map(|block| &block.insts) {
            let Some(dst) = inst.dst else { continue };
            let buffer = match (inst.op, inst.mem, inst.uses.as_slice()) {
                (Op::LoadInt, Some(Mem::At(address)), _) if Some(address.base) == pointers => {
                    let at = usize::try_from(address.disp / 8).ok();
                    at.filter(|&at| at < kernel.buffers.len()).map(Buf::new)
                }
                (Op::AddInt(_), None, &[a]) => of.get(&a).copied(),
                (Op::Add, None, &[a, b]) => of.get(&a).or(of.get(&b)).copied(),
                _ => None,
            };
            of.extend(buffer.map(|buffer| (dst, buffer)));
        }
        Buffers { kernel, of, by_data: by_data(func) }
    }

    /// Whether two operands are elements of one buffer at places that loops count, not data. A kernel stores what it computes to
    /// each such place once, or the same again: two of these stores may change places.
    pub fn counted(&self, a: Option<Mem>, b: Option<Mem>) -> bool {
        let counted =
            |mem: Option<Mem>| mem.is_some_and(|mem| mem.reads().all(|reg| !self.by_data.contains(&reg)));
        self.of(a).is_some() && self.of(a) == self.of(b) && counted(a) && counted(b)
    }

    /// The buffer of an operand in memory.
    pub fn of(&self, mem: Option<Mem>) -> Option<Buf> {
        self.of.get(&mem?.address()?.base).copied()
    }

    /// Whether an operand in memory is of a buffer that the kernel only reads.
    pub fn only_read(&self, mem: Option<Mem>) -> bool {
        self.of(mem).is_some_and(|buf| self.kernel.buffers[buf].access == Access::Read)
    }
}

/// The general registers that depend on what is loaded, other than addresses and sizes, which are arguments.
fn by_data(func: &Func) -> HashSet<Reg> {
    let arguments: HashSet<Reg> =
        func.blocks.values().take(1).flat_map(|entry| entry.params.clone()).collect();
    let mut found: HashSet<Reg> = HashSet::new();
    loop {
        let before = found.len();
        for block in func.blocks.values() {
            for inst in &block.insts {
                let is_data = match (inst.op, inst.mem.and_then(Mem::address)) {
                    (Op::LoadInt, Some(address)) => !arguments.contains(&address.base),
                    (Op::LoadInt32 | Op::LoadPart(_) | Op::ToGeneral(_), _) => true,
                    _ => inst.uses.iter().any(|reg| found.contains(reg)),
                };
                found.extend(inst.dst.filter(|_| is_data));
            }
            if let End::Jump(to, args) = &block.end {
                let params = &func.blocks[*to].params;
                for (&param, arg) in params.iter().zip(args) {
                    if found.contains(arg) {
                        found.insert(param);
                    }
                }
            }
        }
        if found.len() == before {
            return found;
        }
    }
}
