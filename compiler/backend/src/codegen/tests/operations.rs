//! Every operation that a machine of Cranelift's is said to have is emitted.

use cranelift_codegen::verify_function;

use crate::codegen::clif;
use crate::codegen::isa::{Opt, isa};
use onnxc_machine::target::Target;
use onnxc_machine::vector::ir::{Block, Class, Compare, Convert, End, Func, Inst, Lanes, Mem, Op, Reg};
use onnxc_machine::vector::op::{MemUse, SPELLINGS};
use onnxc_machine::vector::verify::{check, verify};

/// A function of this operation on operands that are loaded; the last one is read from memory by the operation itself, or
/// not.
fn function_of(op: Op, in_memory: bool) -> Func {
    let (shape, lanes) = (op.shape(), op.lanes().unwrap());
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
        ("riscv64gc-unknown-linux-gnu", "generic-rv64"),
        ("riscv64gc-unknown-linux-gnu", "rv64gcv"),
        ("s390x-unknown-linux-gnu", "z14"),
        ("x86_64-unknown-linux-gnu", "x86-64"),
        ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    ] {
        let target = Target::new(triple.parse().unwrap(), Some(cpu)).unwrap();
        let (machine, isa) = (target.narrow, isa(&target, Opt::None).unwrap());
        let (mut emitted, mut missing) = (0, vec![]);
        let ops = SPELLINGS.iter().flat_map(|one| Lanes::ALL.map(|lanes| (one.op)(lanes, 0)));
        // Without vectors a pair is moved as one element, and there is nothing else that selection does with it.
        let asked = |op: Op| op.lanes().is_some_and(|lanes| lanes.is_scalar() || machine.has_vectors());
        for op in ops.filter(|&op| asked(op) && machine.has(op)) {
            let in_memory = [false, true].into_iter().take(1 + usize::from(op.shape().mem == MemUse::Last));
            for func in in_memory.map(|in_memory| function_of(op, in_memory)) {
                let found = verify(&func)
                    .and_then(|()| check(&func, machine))
                    .and_then(|()| clif::function(&func, machine, &*isa))
                    .and_then(|found| {
                        verify_function(&found, &*isa).map_err(|error| format!("{error}\n{found}"))
                    });
                match found {
                    Ok(()) => emitted += 1,
                    Err(error) => missing.push(format!("{op:?}: {error}")),
                }
            }
        }
        assert!(missing.is_empty(), "for {triple} {cpu}:\n{}", missing.join("\n"));
        assert!(emitted > 100, "{emitted} for {triple} {cpu}");
    }
}
