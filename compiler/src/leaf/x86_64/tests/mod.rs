//! Runs generated functions, and compares what they compute with models on scalars: on this processor where it has the
//! instructions, and on the emulator.

mod functions;
mod interpreted;
mod kernels;
mod operations;
mod tiles;
mod types;
mod wide;

use super::emulator::Emulator;
use super::encode;
use super::registers::registers;
use crate::leaf::alloc::allocate;
use crate::vector::ir::*;
use crate::vector::isa::Isa;
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, Mnemonic, OpKind, Register};

const AVX2: Isa = Isa::AVX2;
const AVX512: Isa = Isa::AVX512;
/// As `--vector-width 256` has it.
const AVX512_256: Isa = Isa { vector_bytes: 32, ..AVX512 };

/// What code is compiled for, and who runs it.
#[derive(Clone, Copy, Debug)]
struct Platform {
    isa: Isa,
    emulated: bool,
}

/// AVX2 on this processor comes first. The emulator has every extension, this processor perhaps some.
fn platforms() -> Vec<Platform> {
    let dot = |isa: Isa| match isa.evex() {
        true => is_x86_feature_detected!("avx512vnni"),
        false => is_x86_feature_detected!("avxvnni"),
    };
    let here = |isa: Isa| Platform {
        isa: Isa { dot: dot(isa).then_some(Signs::UNSIGNED_SIGNED), ..isa },
        emulated: false,
    };
    let evex = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let mut platforms = vec![here(AVX2)];
    for isa in [AVX2, AVX512_256, AVX512] {
        platforms.push(Platform { isa: Isa { dot: Some(Signs::UNSIGNED_SIGNED), ..isa }, emulated: true });
        if isa.evex() && evex {
            platforms.push(here(isa));
        }
    }
    platforms
}

fn widths(isa: Isa) -> impl Iterator<Item = Lanes> {
    [Lanes::X1, Lanes::X4, Lanes::X8, Lanes::X16].into_iter().filter(move |l| l.bytes() <= isa.vector_bytes)
}

fn widest(isa: Isa) -> Lanes {
    if isa.lanes(4) == 16 { Lanes::X16 } else { Lanes::X8 }
}

fn compile(func: &Func, isa: Isa) -> Result<Vec<u8>, String> {
    encode::compile(func, isa).map(|machine| machine.bytes).map_err(|failure| format!("{failure:?}"))
}

/// Builds a function block by block.
struct Build {
    func: Func,
    at: BlockId,
}

impl Build {
    /// With the four arguments.
    fn new() -> (Build, [Reg; 4]) {
        let mut func = Func::default();
        let args = [0; 4].map(|_| func.regs.push(Class::Int));
        let at = func.blocks.push(Block { params: args.to_vec(), insts: vec![], end: End::Return(0) });
        (Build { func, at }, args)
    }

    fn block(&mut self, params: &[Class]) -> (BlockId, Vec<Reg>) {
        let params: Vec<Reg> = params.iter().map(|&class| self.func.regs.push(class)).collect();
        let block = Block { params: params.clone(), insts: vec![], end: End::Return(0) };
        (self.func.blocks.push(block), params)
    }

    fn end(&mut self, end: End) {
        self.func.blocks[self.at].end = end;
    }

    fn push(&mut self, op: Op, dst: Option<Class>, uses: &[Reg], mem: Option<Mem>) -> Option<Reg> {
        let dst = dst.map(|class| self.func.regs.push(class));
        self.func.blocks[self.at].insts.push(Inst { op, dst, uses: uses.to_vec(), mem });
        dst
    }

    fn vec(&mut self, op: Op, uses: &[Reg]) -> Reg {
        self.push(op, Some(Class::Vec), uses, None).unwrap()
    }

    fn vec_mem(&mut self, op: Op, uses: &[Reg], base: Reg, disp: i32) -> Reg {
        self.push(op, Some(Class::Vec), uses, Some(Mem::at(base, disp))).unwrap()
    }

    fn int(&mut self, op: Op, uses: &[Reg]) -> Reg {
        self.push(op, Some(Class::Int), uses, None).unwrap()
    }

    fn load_int(&mut self, base: Reg, disp: i32) -> Reg {
        self.push(Op::LoadInt, Some(Class::Int), &[], Some(Mem::at(base, disp))).unwrap()
    }

    fn store(&mut self, lanes: Lanes, value: Reg, base: Reg, disp: i32) {
        self.push(Op::Store(lanes), None, &[value], Some(Mem::at(base, disp)));
    }
}

/// Compiled code that can be called.
enum Code {
    Page(memmap2::Mmap),
    Emulated(Emulator),
}

impl Code {
    fn new(func: &Func, platform: Platform) -> Code {
        let Platform { isa, emulated } = platform;
        allocate(func, isa, registers(isa)).unwrap().check().unwrap();
        let bytes = compile(func, isa).unwrap();
        assert_eq!(bytes, compile(func, isa).unwrap(), "the same code each time");
        if emulated {
            return Code::Emulated(Emulator::new(&bytes));
        }
        let mut map = memmap2::MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(&bytes);
        Code::Page(map.make_exec().unwrap())
    }

    /// Puts a canary in the registers that a function has to restore.
    fn call(&self, buffers: &[*mut u32], dims: &[i64], lo: i64, hi: i64) -> i32 {
        let page = match self {
            Code::Page(page) => page,
            Code::Emulated(code) => {
                let buffers: Vec<*mut u8> = buffers.iter().map(|buffer| buffer.cast()).collect();
                return code.call(&buffers, None, dims, (lo, hi));
            }
        };
        let result: u64;
        let [mut r12, mut r13, mut r14, mut r15] = [12u64, 13, 14, 15];
        let restored: u64;
        // SAFETY: the page holds a function of this signature, the tests size the buffers to their kernels, and all that a
        // call may change is named.
        unsafe {
            std::arch::asm!(
                "push rbx", "push rbp",
                "mov rbx, 3333", "mov rbp, rsp",
                "and rsp, -16",
                "call r8",
                "mov rsp, rbp",
                "mov r8, rbx",
                "pop rbp", "pop rbx",
                inout("r8") page.as_ptr() as u64 => restored,
                in("rdi") buffers.as_ptr(), in("rsi") dims.as_ptr(), in("rdx") lo, in("rcx") hi,
                lateout("rax") result,
                inout("r12") r12, inout("r13") r13, inout("r14") r14, inout("r15") r15,
                clobber_abi("sysv64"),
            );
        }
        assert_eq!([r12, r13, r14, r15, restored], [12, 13, 14, 15, 3333]);
        result as i32
    }
}

fn decode(bytes: &[u8]) -> Vec<Instruction> {
    let insts: Vec<Instruction> = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).iter().collect();
    assert!(!insts.is_empty() && insts.iter().all(|inst| !inst.is_invalid()));
    insts
}

fn disassemble(func: &Func, isa: Isa) -> Vec<Instruction> {
    let machine = encode::compile(func, isa).unwrap();
    decode(&machine.bytes[..machine.instructions])
}

fn text(insts: &[Instruction]) -> String {
    let mut formatter = GasFormatter::new();
    let mut text = String::new();
    for inst in insts {
        formatter.format(inst, &mut text);
        text.push('\n');
    }
    text
}

/// The instructions from the target of the last jump backwards to that jump.
fn last_loop(insts: &[Instruction]) -> &[Instruction] {
    let back = |inst: &Instruction| inst.op0_kind() == OpKind::NearBranch64;
    let jump = insts.iter().rposition(|i| back(i) && i.near_branch_target() <= i.ip()).expect("a loop");
    let start = insts.iter().position(|i| i.ip() == insts[jump].near_branch_target()).unwrap();
    &insts[start..=jump]
}

fn uses_stack(inst: &Instruction) -> bool {
    inst.memory_base() == Register::RSP
}
