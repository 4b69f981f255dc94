//! Every operation that a machine of Cranelift's is said to have is emitted.

use cranelift_codegen::verify_function;

use crate::codegen::clif;
use crate::target::{Opt, Target};
use crate::vector::ir::{Block, Class, Compare, Convert, End, Func, Inst, Lanes, Mem, Op, Reg};
use crate::vector::print::SPELLINGS;
use crate::vector::verify::{MemUse, check, lanes, shape, verify};

/// A function of this operation on operands that are loaded; the last one is read from memory by the operation itself, or
/// not.
fn function_of(op: Op, in_memory: bool) -> Func {
    let (shape, lanes) = (shape(op), lanes(op).unwrap());
    let mut func = Func::default();
    let base = func.regs.push(Class::Int);
    let mut insts = vec![];
    let mut push = |op: Op, class: Option<Class>, uses: Vec<Reg>, mem: Option<Mem>| {
        let dst = class.map(|class| func.regs.push(class));
        insts.push(Inst { op, dst, uses, mem });
        dst
    };
    // Those that make lanes wider take narrow ones.
    let lanes = match op {
        Op::Convert(Convert::IntToDouble | Convert::Widen | Convert::Extend, _) | Op::MaskWiden(_) => {
            lanes.narrow()
        }
        _ => lanes,
    };
    let load = Op::Load(lanes);
    let mut uses = vec![];
    for &class in &shape.uses[..shape.uses.len() - usize::from(in_memory)] {
        let mut loaded = || push(load, Some(Class::Vec), vec![], Some(Mem::at(base, 0))).unwrap();
        uses.push(match class {
            Class::Int => base,
            Class::Vec => loaded(),
            Class::Mask => {
                let pair = vec![loaded(), loaded()];
                push(Op::Compare(Compare::IntEq, lanes), Some(Class::Mask), pair, None).unwrap()
            }
        });
    }
    let mem = (in_memory || shape.mem == MemUse::Always).then(|| Mem::at(base, 0));
    push(op, shape.dst, uses, mem);
    func.blocks.push(Block { params: vec![base], insts, end: End::Return(0) });
    func
}

#[test]
fn what_a_machine_has_is_emitted() {
    for (triple, cpu) in [
        ("aarch64-unknown-linux-gnu", "generic"),
        ("riscv64gc-unknown-linux-gnu", "rv64gc"),
        ("riscv64gc-unknown-linux-gnu", "rv64gcv"),
        ("s390x-unknown-linux-gnu", "z14"),
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    ] {
        let target = Target::new(triple.parse().unwrap(), Some(cpu)).unwrap();
        let (machine, isa) = (target.narrow, target.isa(Opt::None).unwrap());
        let mut emitted = 0;
        for op in SPELLINGS.iter().flat_map(|one| Lanes::ALL.map(|lanes| (one.op)(lanes, 0))) {
            if lanes(op).is_none() || !machine.has(op) {
                continue;
            }
            for in_memory in [false, true] {
                if in_memory && shape(op).mem != MemUse::Last {
                    continue;
                }
                let func = function_of(op, in_memory);
                verify(&func).and_then(|()| check(&func, machine)).unwrap_or_else(|e| panic!("{op:?}: {e}"));
                let found = clif::function(&func, machine, &*isa);
                let found =
                    found.unwrap_or_else(|error| panic!("{op:?} for {triple} {cpu}: {error}\n{func}"));
                let verified = verify_function(&found, &*isa);
                assert!(verified.is_ok(), "{op:?} for {triple} {cpu}: {verified:?}\n{found}");
                emitted += 1;
            }
        }
        assert!(emitted > 60, "{emitted} for {triple} {cpu}");
    }
}
