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
use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction, Mnemonic, OpKind, Register};
use onnxc_machine::vector::ir::*;
use onnxc_machine::vector::isa::{Convention, Isa};

const AVX2: Isa = Isa::AVX2;
const AVX512: Isa = Isa::AVX512;
/// As `--vector-width 256` has it.
const AVX512_256: Isa = Isa { vector_bytes: 32, ..AVX512 };
/// As `--vector-width 128` has them.
const AVX2_128: Isa = Isa { vector_bytes: 16, ..AVX2 };
const AVX512_128: Isa = Isa { vector_bytes: 16, ..AVX512 };

/// What code is compiled for, and who runs it.
#[derive(Clone, Copy, Debug)]
struct Platform {
    isa: Isa,
    emulated: bool,
}

/// Whether this processor has the instructions of x86-64-v4 that kernels use.
fn has_evex() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

/// AVX2 on this processor comes first. The emulator has every extension, this processor perhaps some; it runs code with
/// either calling convention.
fn platforms() -> Vec<Platform> {
    let dot = |isa: Isa| match isa.evex() {
        true => is_x86_feature_detected!("avx512vnni"),
        false => is_x86_feature_detected!("avxvnni"),
    };
    let here = |isa: Isa| Platform {
        isa: Isa {
            dot: dot(isa).then_some(Signs::UNSIGNED_SIGNED),
            has_byte_permute: isa.evex() && is_x86_feature_detected!("avx512vbmi"),
            has_bf16_dot: isa.evex() && is_x86_feature_detected!("avx512bf16"),
            ..isa
        },
        emulated: false,
    };
    let evex = has_evex();
    let windows = |isa: Isa| here(Isa { convention: Convention::Windows, ..isa });
    let mut platforms = vec![here(AVX2), windows(AVX2), here(AVX2_128), windows(AVX2_128)];
    for isa in [AVX2_128, AVX2, AVX512_128, AVX512_256, AVX512] {
        let dot = Some(Signs::UNSIGNED_SIGNED);
        let (has_byte_permute, has_bf16_dot) = (isa.evex(), isa.evex());
        platforms.push(Platform { isa: Isa { dot, has_byte_permute, has_bf16_dot, ..isa }, emulated: true });
        if isa.evex() && evex {
            platforms.extend([here(isa), windows(isa)]);
        }
    }
    platforms
}

fn widths(isa: Isa) -> impl Iterator<Item = Lanes> {
    [Lanes::X1, Lanes::X4, Lanes::X8, Lanes::X16].into_iter().filter(move |l| l.bytes() <= isa.vector_bytes)
}

fn widest(isa: Isa) -> Lanes {
    Lanes::of(isa.lanes(4), 4).unwrap()
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
    Page(memmap2::Mmap, Convention),
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
        Code::Page(map.make_exec().unwrap(), isa.convention)
    }

    /// Puts a canary in the registers that a function has to restore.
    fn call(&self, buffers: &[*mut u32], dims: &[i64], lo: i64, hi: i64) -> i32 {
        match self {
            Code::Emulated(code) => {
                let buffers: Vec<*mut u8> = buffers.iter().map(|buffer| buffer.cast()).collect();
                code.call(&buffers, None, dims, (lo, hi))
            }
            Code::Page(page, Convention::Standard) => call_standard(page, buffers, dims, lo, hi),
            Code::Page(page, Convention::Windows) => call_windows(page, buffers, dims, lo, hi),
        }
    }
}

fn call_standard(page: &memmap2::Mmap, buffers: &[*mut u32], dims: &[i64], lo: i64, hi: i64) -> i32 {
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

/// Windows gives more registers to the caller.
fn call_windows(page: &memmap2::Mmap, buffers: &[*mut u32], dims: &[i64], lo: i64, hi: i64) -> i32 {
    /// What goes to a call, and what is in registers after it.
    #[repr(C)]
    struct Registers {
        entry: u64,
        args: [u64; 4],
        general: [u64; 7],
        vectors: [u128; 10],
    }
    let general = [3, 6, 7, 12, 13, 14, 15].map(|n| 1111 * n);
    let vectors = std::array::from_fn(|n| (n as u128 + 6) << 64 | 0x7777);
    let args = [buffers.as_ptr() as u64, dims.as_ptr() as u64, lo as u64, hi as u64];
    let mut registers = Registers { entry: page.as_ptr() as u64, args, general, vectors };
    let result: u64;
    // SAFETY: the page holds a function of this signature, the tests size the buffers to their kernels, and all that a
    // call may change is named. Below the frame are the 32 bytes that the convention gives to a callee.
    unsafe {
        std::arch::asm!(
            "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
            "mov rbp, rsp",
            "and rsp, -16", "sub rsp, 48",
            "mov [rsp + 32], rax",
            "mov rcx, [rax + 8]", "mov rdx, [rax + 16]", "mov r8, [rax + 24]", "mov r9, [rax + 32]",
            "mov rbx, [rax + 40]", "mov rsi, [rax + 48]", "mov rdi, [rax + 56]", "mov r12, [rax + 64]",
            "mov r13, [rax + 72]", "mov r14, [rax + 80]", "mov r15, [rax + 88]",
            "movups xmm6, [rax + 96]", "movups xmm7, [rax + 112]", "movups xmm8, [rax + 128]",
            "movups xmm9, [rax + 144]", "movups xmm10, [rax + 160]", "movups xmm11, [rax + 176]",
            "movups xmm12, [rax + 192]", "movups xmm13, [rax + 208]", "movups xmm14, [rax + 224]",
            "movups xmm15, [rax + 240]",
            "call [rax]",
            "mov r10, [rsp + 32]",
            "mov [r10 + 40], rbx", "mov [r10 + 48], rsi", "mov [r10 + 56], rdi", "mov [r10 + 64], r12",
            "mov [r10 + 72], r13", "mov [r10 + 80], r14", "mov [r10 + 88], r15",
            "movups [r10 + 96], xmm6", "movups [r10 + 112], xmm7", "movups [r10 + 128], xmm8",
            "movups [r10 + 144], xmm9", "movups [r10 + 160], xmm10", "movups [r10 + 176], xmm11",
            "movups [r10 + 192], xmm12", "movups [r10 + 208], xmm13", "movups [r10 + 224], xmm14",
            "movups [r10 + 240], xmm15",
            "mov rsp, rbp",
            "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
            inout("rax") &raw mut registers => result,
            clobber_abi("sysv64"),
        );
    }
    assert_eq!((registers.general, registers.vectors), (general, vectors));
    result as i32
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
