//! Executes the machine code of leaf kernels, so that tests run code for processors that the machine at hand is not.
//!
//! It decodes the bytes and knows the instructions that `encode` writes, no others, with the semantics of the processor
//! down to the bits of NaNs; tests hold it against the processor where that has the instructions. Addresses are those of
//! the process. It panics where code does what no kernel may: jump on stale flags, change registers that are the
//! caller's, leave upper halves of vector registers dirty, or reach memory outside of its buffers where their lengths are known.

mod tiles;
mod wide;

use std::cell::RefCell;
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use onnxc_ir::scalar::{add_bf16_product, bf16_pair};

const STACK_WORDS: usize = 1 << 18;
const RETURN: u64 = u64::MAX;
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;
const CALLEE_SAVED: [usize; 6] = [3, 5, 12, 13, 14, 15];

/// Code that can be called.
pub struct Emulator {
    code: Vec<u8>,
    insts: Vec<Instruction>,
    /// Number of the instruction at an offset.
    at: Vec<usize>,
    stack: RefCell<Vec<u64>>,
}

type Vector = [u32; 16];

struct Processor<'e> {
    code: &'e [u8],
    /// Addresses that may be reached; all where there are none.
    regions: &'e [Range<u64>],
    general: [u64; 16],
    vectors: [Vector; 32],
    masks: [u16; 8],
    tiles: tiles::Tiles,
    /// Operands of the last comparison, while the flags are those of it.
    compared: Option<(i64, i64)>,
}

enum Next {
    Following,
    Offset(u64),
    Return,
}

impl Emulator {
    pub fn new(code: &[u8]) -> Emulator {
        let mut insts: Vec<Instruction> = Vec::new();
        let mut at = vec![usize::MAX; code.len()];
        for inst in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
            // Constants follow the last return; some are instructions by chance.
            at[inst.ip() as usize] = insts.len();
            insts.push(inst);
        }
        Emulator { code: code.to_vec(), insts, at, stack: RefCell::new(vec![0; STACK_WORDS]) }
    }

    /// A kernel's call with these buffers; with their lengths in bytes, nothing else may be reached.
    pub fn call(
        &self,
        buffers: &[*mut u8],
        lengths: Option<&[usize]>,
        dims: &[i64],
        range: (i64, i64),
    ) -> i32 {
        let mut stack = self.stack.borrow_mut();
        let span = |from: u64, bytes: usize| from..from + bytes as u64;
        let regions = lengths.map_or(vec![], |lengths| {
            let mut regions: Vec<_> =
                buffers.iter().zip(lengths).map(|(&at, &bytes)| span(at as u64, bytes)).collect();
            regions.push(span(buffers.as_ptr() as u64, 8 * buffers.len()));
            regions.push(span(dims.as_ptr() as u64, 8 * dims.len()));
            regions.push(span(stack.as_ptr() as u64, 8 * STACK_WORDS));
            regions.push(span(self.code.as_ptr() as u64, self.code.len()));
            regions
        });
        // After a call the stack is 8 bytes off a multiple of 16.
        let base = stack.as_ptr() as u64;
        let word = STACK_WORDS - 2 - usize::from(base.is_multiple_of(16));
        stack[word] = RETURN;
        let mut machine = Processor {
            code: &self.code,
            regions: &regions,
            general: std::array::from_fn(|n| 0x1111_1111 * n as u64),
            vectors: [[0x7fc0_dead; 16]; 32],
            masks: [0xdead; 8],
            tiles: tiles::Tiles::default(),
            compared: None,
        };
        machine.vectors[..16].iter_mut().for_each(|vector| vector[4..].fill(0));
        machine.general[RDI] = buffers.as_ptr() as u64;
        machine.general[RSI] = dims.as_ptr() as u64;
        machine.general[RDX] = range.0 as u64;
        machine.general[RCX] = range.1 as u64;
        machine.general[RSP] = base + 8 * word as u64;
        machine.run(&self.insts, &self.at);
        for n in CALLEE_SAVED {
            assert_eq!(machine.general[n], 0x1111_1111 * n as u64, "register {n} is the caller's");
        }
        assert_eq!(machine.general[RSP], base + 8 * (word as u64 + 1), "the stack is as it was");
        let clean = machine.vectors[..16].iter().all(|vector| vector[4..].iter().all(|&lane| lane == 0));
        assert!(clean, "upper halves are dirty on return");
        assert!(machine.tiles.are_released(), "the tiles are in use on return");
        machine.general[RAX] as i32
    }
}

/// Number of a general register, and whether all of it is meant.
fn general(reg: Register) -> Option<(usize, bool)> {
    let number = |first: Register| (reg as usize).checked_sub(first as usize).filter(|&n| n < 16);
    number(Register::RAX).map(|n| (n, true)).or(number(Register::EAX).map(|n| (n, false)))
}

/// Number of the general register that this is the low end of, and the bytes of that.
fn part(reg: Register) -> Option<(usize, usize)> {
    let number =
        |first: Register, count: usize| (reg as usize).checked_sub(first as usize).filter(|&n| n < count);
    let byte = number(Register::AL, 4).or(number(Register::SPL, 12).map(|n| n + 4));
    byte.map(|n| (n, 1)).or(number(Register::AX, 16).map(|n| (n, 2)))
}

/// Number of a vector register, and its lanes.
fn vector(reg: Register) -> Option<(usize, usize)> {
    [(Register::XMM0, 4), (Register::YMM0, 8), (Register::ZMM0, 16)].into_iter().find_map(|(first, lanes)| {
        let n = (reg as usize).checked_sub(first as usize)?;
        (n < 32).then_some((n, lanes))
    })
}

fn mask(reg: Register) -> Option<usize> {
    (reg as usize).checked_sub(Register::K0 as usize).filter(|&n| n < 8)
}

impl Processor<'_> {
    fn run(&mut self, insts: &[Instruction], at: &[usize]) {
        let mut index = 0;
        loop {
            let inst = insts.get(index).expect("an instruction");
            match self.step(inst) {
                Next::Following => index += 1,
                Next::Offset(offset) => index = at[offset as usize],
                Next::Return => return,
            }
        }
    }

    fn address(&self, inst: &Instruction) -> u64 {
        let displacement = inst.memory_displacement64();
        if inst.memory_base() == Register::RIP {
            return self.code.as_ptr() as u64 + displacement;
        }
        let base = general(inst.memory_base()).map_or(0, |(n, _)| self.general[n]);
        let index = general(inst.memory_index()).map_or(0, |(n, _)| self.general[n]);
        let scaled = index.wrapping_mul(inst.memory_index_scale().into());
        base.wrapping_add(scaled).wrapping_add(displacement)
    }

    fn reachable(&self, inst: &Instruction, bytes: usize) -> *mut u8 {
        self.reachable_at(inst, self.address(inst), bytes)
    }

    fn reachable_at(&self, inst: &Instruction, at: u64, bytes: usize) -> *mut u8 {
        let inside = |region: &Range<u64>| region.start <= at && at + bytes as u64 <= region.end;
        assert!(
            self.regions.is_empty() || self.regions.iter().any(inside),
            "{:?} at {:x} reaches {bytes} bytes at {at:x}: {:x?}",
            inst.code(),
            inst.ip(),
            self.regions
        );
        at as *mut u8
    }

    fn read<const N: usize>(&self, inst: &Instruction) -> [u8; N] {
        // SAFETY: inside of a region, or where the test promises that kernels stay inside of their buffers.
        unsafe { self.reachable(inst, N).cast::<[u8; N]>().read_unaligned() }
    }

    fn write(&mut self, inst: &Instruction, bytes: &[u8]) {
        // SAFETY: as in `read`.
        unsafe { self.reachable(inst, bytes.len()).copy_from(bytes.as_ptr(), bytes.len()) }
    }

    fn int(&self, inst: &Instruction, operand: u32) -> u64 {
        match inst.op_kind(operand) {
            OpKind::Register => match general(inst.op_register(operand)) {
                Some((n, true)) => self.general[n],
                Some((n, false)) => u64::from(self.general[n] as u32),
                None => panic!("{:?}: not a general register", inst.code()),
            },
            OpKind::Memory => u64::from_le_bytes(self.read(inst)),
            _ => inst.immediate(operand),
        }
    }

    fn set_int(&mut self, inst: &Instruction, value: u64) {
        match inst.op0_kind() {
            OpKind::Register => match general(inst.op0_register()) {
                Some((n, true)) => self.general[n] = value,
                Some((n, false)) => self.general[n] = u64::from(value as u32),
                None => panic!("{:?}: not a general register", inst.code()),
            },
            _ => self.write(inst, &value.to_le_bytes()),
        }
    }

    /// Of an operand with this many lanes.
    fn lanes(&self, inst: &Instruction, operand: u32, lanes: usize) -> Vector {
        if inst.op_kind(operand) == OpKind::Register {
            let (n, _) = vector(inst.op_register(operand)).expect("a vector register");
            return self.vectors[n];
        }
        let mut value = [0; 16];
        if inst.is_broadcast() || lanes == 1 {
            value[..lanes].fill(u32::from_le_bytes(self.read(inst)));
            return value;
        }
        let from = self.reachable(inst, 4 * lanes).cast::<u32>();
        for (lane, value) in value[..lanes].iter_mut().enumerate() {
            // SAFETY: as in `read`.
            *value = unsafe { from.add(lane).read_unaligned() };
        }
        value
    }

    /// Clears what is above the lanes, as all instructions with a VEX or EVEX prefix do.
    fn set_lanes(&mut self, reg: Register, lanes: usize, value: &Vector) {
        let (n, _) = vector(reg).expect("a vector register");
        self.vectors[n] = [0; 16];
        self.vectors[n][..lanes].copy_from_slice(&value[..lanes]);
    }

    fn step(&mut self, inst: &Instruction) -> Next {
        assert!(!inst.zeroing_masking() && !inst.is_invalid(), "{:?} at {:x}", inst.code(), inst.ip());
        let blends = matches!(inst.mnemonic(), Mnemonic::Vblendmps | Mnemonic::Vblendmpd);
        assert_eq!(inst.op_mask() != Register::None, blends, "{:?}", inst.code());
        if let Some(next) = self.control(inst) {
            return next;
        }
        if !(self.tile_step(inst)
            || self.parts(inst)
            || self.integer(inst)
            || self.masks(inst)
            || self.moves(inst)
            || self.widths(inst))
        {
            self.arithmetic(inst);
        }
        Next::Following
    }

    fn control(&mut self, inst: &Instruction) -> Option<Next> {
        use Mnemonic::*;
        let taken = match inst.mnemonic() {
            Jmp => true,
            Ret => {
                self.general[RSP] += 8;
                return Some(Next::Return);
            }
            Jl | Jge | Je | Jne => {
                let (a, b) = self.compared.expect("a jump on flags that a comparison has set");
                match inst.mnemonic() {
                    Jl => a < b,
                    Jge => a >= b,
                    Je => a == b,
                    _ => a != b,
                }
            }
            _ => return None,
        };
        Some(if taken { Next::Offset(inst.near_branch_target()) } else { Next::Following })
    }

    /// Moves of less than 64 bits, and to more.
    fn parts(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        let value = match inst.mnemonic() {
            Movzx | Movsx => match (inst.memory_size().size(), inst.mnemonic()) {
                (1, Movzx) => u32::from(u8::from_le_bytes(self.read(inst))),
                (1, _) => i32::from(i8::from_le_bytes(self.read(inst))) as u32,
                (_, Movzx) => u32::from(u16::from_le_bytes(self.read(inst))),
                _ => i32::from(i16::from_le_bytes(self.read(inst))) as u32,
            },
            Vmovd => match (general(inst.op0_register()), vector(inst.op0_register())) {
                (Some(_), _) => self.lanes(inst, 1, 4)[0],
                (_, Some(_)) => {
                    let mut value = [0; 16];
                    value[0] = self.int(inst, 1) as u32;
                    self.set_lanes(inst.op0_register(), 4, &value);
                    return true;
                }
                _ => panic!("{:?}: no register", inst.code()),
            },
            Movsxd => {
                let value = i64::from(i32::from_le_bytes(self.read(inst)));
                self.set_int(inst, value as u64);
                return true;
            }
            Mov if part(inst.op1_register()).is_some() => {
                let (n, bytes) = part(inst.op1_register()).expect("it was just there");
                let value = self.general[n].to_le_bytes();
                self.write(inst, &value[..bytes]);
                return true;
            }
            _ => return false,
        };
        self.set_int(inst, value.into());
        true
    }

    fn integer(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        // A hint: it reads nothing, and its address may be none.
        if inst.mnemonic() == Prefetcht1 {
            assert_eq!(inst.op0_kind(), OpKind::Memory);
            return true;
        }
        let keeps_flags = matches!(inst.mnemonic(), Mov | Lea | Mulx | Cqo | Push | Pop | Cmovg | Cmovl);
        let a = |cx: &Self| cx.int(inst, 0);
        let b = |cx: &Self| cx.int(inst, 1);
        let value = match inst.mnemonic() {
            Mov => b(self),
            Lea => self.address(inst),
            Add => a(self).wrapping_add(b(self)),
            Sub => a(self).wrapping_sub(b(self)),
            And => a(self) & b(self),
            Xor => a(self) ^ b(self),
            Shl => a(self) << b(self),
            Shr => a(self) >> b(self),
            Imul if inst.op_count() == 3 => b(self).wrapping_mul(self.int(inst, 2)),
            Imul => a(self).wrapping_mul(b(self)),
            Mulx => {
                assert_eq!(inst.op0_register(), inst.op1_register());
                ((u128::from(self.general[RDX]) * u128::from(self.int(inst, 2))) >> 64) as u64
            }
            Cmovg | Cmovl => {
                let (x, y) = self.compared.expect("a move on flags that a comparison has set");
                let moves = if inst.mnemonic() == Cmovg { x > y } else { x < y };
                if moves { b(self) } else { a(self) }
            }
            Cmp | Test => {
                let (a, b) = (a(self), b(self));
                assert!(inst.mnemonic() == Cmp || inst.op0_kind() == OpKind::Memory || a == b);
                self.compared =
                    Some(if inst.mnemonic() == Cmp { (a as i64, b as i64) } else { (a as i64, 0) });
                return true;
            }
            Cqo => {
                self.general[RDX] = ((self.general[RAX] as i64) >> 63) as u64;
                return true;
            }
            Idiv => {
                let high = u128::from(self.general[RDX]) << 64;
                let (dividend, by) = ((high | u128::from(self.general[RAX])) as i128, a(self) as i64 as i128);
                self.general[RAX] = i64::try_from(dividend / by).expect("a quotient of 64 bits") as u64;
                self.general[RDX] = (dividend % by) as u64;
                self.compared = None;
                return true;
            }
            Push => {
                let value = a(self);
                self.general[RSP] -= 8;
                // SAFETY: the stack is that of the emulator, and larger than any frame.
                unsafe { (self.general[RSP] as *mut u64).write(value) };
                return true;
            }
            Pop => {
                // SAFETY: as for `Push`.
                let value = unsafe { (self.general[RSP] as *const u64).read() };
                self.general[RSP] += 8;
                self.set_int(inst, value);
                return true;
            }
            _ => return false,
        };
        if !keeps_flags {
            self.compared = None;
        }
        self.set_int(inst, value);
        true
    }

    /// What reads or writes mask registers, other than comparisons.
    fn masks(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        let k = |operand: u32| mask(inst.op_register(operand));
        let of = |cx: &Self, operand: u32| cx.masks[k(operand).expect("a mask register")];
        let value = match inst.mnemonic() {
            Kmovw if inst.op0_kind() == OpKind::Memory => {
                self.write(inst, &of(self, 1).to_le_bytes());
                return true;
            }
            Kmovw if inst.op1_kind() == OpKind::Memory => u16::from_le_bytes(self.read(inst)),
            Kmovw => of(self, 1),
            Kandw => of(self, 1) & of(self, 2),
            Korw => of(self, 1) | of(self, 2),
            Kxorw => of(self, 1) ^ of(self, 2),
            Knotw => !of(self, 1),
            Vpmovd2m => {
                let (n, lanes) = vector(inst.op1_register()).expect("a vector register");
                bits(lanes, |lane| self.vectors[n][lane] >> 31 == 1)
            }
            Vpmovq2m => {
                let (n, lanes) = vector(inst.op1_register()).expect("a vector register");
                bits(lanes / 2, |lane| self.vectors[n][2 * lane + 1] >> 31 == 1)
            }
            Vpmovm2q => {
                let (_, lanes) = vector(inst.op0_register()).expect("a vector register");
                let mask = of(self, 1);
                let value = std::array::from_fn(|lane| all(mask >> (lane / 2) & 1 == 1));
                self.set_lanes(inst.op0_register(), lanes, &value);
                return true;
            }
            Vpmovm2d => {
                let (_, lanes) = vector(inst.op0_register()).expect("a vector register");
                let mask = of(self, 1);
                let value = std::array::from_fn(|lane| all(mask >> lane & 1 == 1));
                self.set_lanes(inst.op0_register(), lanes, &value);
                return true;
            }
            _ => return false,
        };
        self.masks[k(0).expect("a mask register")] = value;
        true
    }

    /// Loads, stores, shuffles and selections.
    fn moves(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        if inst.mnemonic() == Vzeroupper {
            self.vectors[..16].iter_mut().for_each(|vector| vector[4..].fill(0));
            return true;
        }
        let dst = inst.op0_register();
        let width = |operand: u32| vector(inst.op_register(operand)).map_or(0, |(_, lanes)| lanes);
        let stores = inst.op0_kind() == OpKind::Memory;
        let value: Vector = match inst.mnemonic() {
            Vmovups | Vmovupd | Vmovaps | Vmovss if stores => {
                let lanes = if inst.mnemonic() == Vmovss { 1 } else { width(1) };
                let bytes: Vec<u8> =
                    self.lanes(inst, 1, lanes)[..lanes].iter().flat_map(|lane| lane.to_le_bytes()).collect();
                self.write(inst, &bytes);
                return true;
            }
            Vmovups | Vmovupd | Vmovaps => self.lanes(inst, 1, width(0)),
            Vmovss => {
                assert_eq!(inst.op_count(), 2);
                self.lanes(inst, 1, 1)
            }
            Vpermps => {
                let (index, table) = (self.lanes(inst, 1, width(0)), self.lanes(inst, 2, width(0)));
                std::array::from_fn(|lane| table[index[lane] as usize % width(0)])
            }
            Vpermb => {
                let byte = |from: &Vector, at: usize| (from[at / 4] >> (8 * (at % 4))) as u8;
                let (order, from) = (self.lanes(inst, 1, width(0)), self.lanes(inst, 2, width(0)));
                let bytes = 4 * width(0);
                std::array::from_fn(|lane| {
                    let picked = |at: usize| byte(&from, usize::from(byte(&order, 4 * lane + at)) % bytes);
                    u32::from_le_bytes(std::array::from_fn(picked))
                })
            }
            Vinsertf32x4 => {
                let (mut value, quarter) = (self.lanes(inst, 1, width(0)), self.lanes(inst, 2, 4));
                let first = 4 * (inst.immediate(3) as usize % (width(0) / 4));
                value[first..first + 4].copy_from_slice(&quarter[..4]);
                value
            }
            Vbroadcastss => [self.lanes(inst, 1, 1)[0]; 16],
            Vblendps => {
                let (a, b) = (self.lanes(inst, 1, width(0)), self.lanes(inst, 2, width(0)));
                std::array::from_fn(|lane| if inst.immediate(3) >> lane & 1 == 1 { b[lane] } else { a[lane] })
            }
            Vextractf128 | Vextractf32x4 | Vextractf64x4 => {
                let (n, lanes) = vector(inst.op1_register()).expect("a vector register");
                let count = if inst.mnemonic() == Vextractf64x4 { 8 } else { 4 };
                let first = count * (inst.immediate(2) as usize % (lanes / count));
                let mut value = [0; 16];
                value[..count].copy_from_slice(&self.vectors[n][first..first + count]);
                value
            }
            Vpermilps => {
                assert_eq!((width(0), inst.op2_kind()), (4, OpKind::Immediate8));
                let (from, order) = (self.lanes(inst, 1, 4), inst.immediate(2) as usize);
                std::array::from_fn(|lane| from[order >> (2 * (lane % 4)) & 3])
            }
            Vblendvps | Vblendmps => {
                let (a, b) = (self.lanes(inst, 1, width(0)), self.lanes(inst, 2, width(0)));
                let second: Vec<bool> = match mask(inst.op_mask()) {
                    Some(k) => (0..16).map(|lane| self.masks[k] >> lane & 1 == 1).collect(),
                    None => self.lanes(inst, 3, width(0)).iter().map(|lane| lane >> 31 == 1).collect(),
                };
                std::array::from_fn(|lane| if second[lane] { b[lane] } else { a[lane] })
            }
            _ => return false,
        };
        self.set_lanes(dst, width(0), &value);
        true
    }

    /// Lane by lane.
    fn arithmetic(&mut self, inst: &Instruction) {
        let dst = inst.op0_register();
        let scalar = is_scalar(inst.mnemonic());
        let wide = vector(dst).or(vector(inst.op1_register())).expect("a vector register").1;
        let lanes = if scalar { 1 } else { wide };
        let last = inst.op_count() - 1;
        let immediate = inst.op_kind(last) == OpKind::Immediate8;
        let (sources, imm) = if immediate { (last, inst.immediate(last) as u8) } else { (last + 1, 0) };
        let mut x = [[0; 16]; 3];
        for operand in 1..sources {
            let lanes = if scalar && operand == sources - 1 { 1 } else { wide };
            x[operand as usize - 1] = self.lanes(inst, operand, lanes);
        }
        let old = vector(dst).map_or([0; 16], |(n, _)| self.vectors[n]);
        let result: Vector = match (unary(inst.mnemonic(), imm), sources) {
            (Some(f), 2) => std::array::from_fn(|lane| f(x[0][lane])),
            (Some(f), _) => std::array::from_fn(|lane| f(x[1][lane])),
            (None, _) => {
                let f = function(inst.mnemonic(), imm);
                std::array::from_fn(|lane| f([old[lane], x[0][lane], x[1][lane]]))
            }
        };
        if let Some(k) = mask(dst) {
            self.masks[k] = bits(lanes, |lane| result[lane] >> 31 == 1);
            return;
        }
        let mut value = result;
        if scalar {
            // The lanes above come from the first source, or stay in a fused operation.
            let upper = if is_fused(inst.mnemonic()) { old } else { x[0] };
            value[1..4].copy_from_slice(&upper[1..4]);
        }
        self.set_lanes(dst, wide, &value);
    }
}

fn bits(lanes: usize, holds: impl Fn(usize) -> bool) -> u16 {
    (0..lanes).fold(0, |sum, lane| sum | u16::from(holds(lane)) << lane)
}

fn all(condition: bool) -> u32 {
    if condition { u32::MAX } else { 0 }
}

fn is_scalar(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Vaddss
            | Vsubss
            | Vmulss
            | Vdivss
            | Vminss
            | Vmaxss
            | Vcmpss
            | Vsqrtss
            | Vroundss
            | Vrndscaless
            | Vfmadd231ss
            | Vfmadd213ss
            | Vfnmadd231ss
    )
}

fn is_fused(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Vfmadd231ss | Vfmadd213ss | Vfnmadd231ss)
}

const QUIET: u32 = 1 << 22;
/// What an invalid operation gives.
const INDEFINITE: u32 = 0xffc0_0000;

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

/// A result, or the first operand that is NaN, made quiet.
fn float(operands: &[u32], result: f32) -> u32 {
    match operands.iter().find(|&&operand| f(operand).is_nan()) {
        Some(nan) => nan | QUIET,
        None if result.is_nan() => INDEFINITE,
        None => result.to_bits(),
    }
}

fn unary(mnemonic: Mnemonic, imm: u8) -> Option<Box<dyn Fn(u32) -> u32>> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vsqrtps | Vsqrtss => Box::new(|a| float(&[a], f(a).sqrt())),
        Vroundps | Vroundss | Vrndscaleps | Vrndscaless => {
            let round: fn(f32) -> f32 = match imm {
                8 => f32::round_ties_even,
                9 => f32::floor,
                10 => f32::ceil,
                11 => f32::trunc,
                _ => panic!("{mnemonic:?} {imm}"),
            };
            Box::new(move |a| float(&[a], round(f(a))))
        }
        Vcvttps2dq => Box::new(|a| match f(a) {
            x if (-2147483648.0..2147483648.0).contains(&x) => x as i32 as u32,
            _ => i32::MIN as u32,
        }),
        Vcvtps2dq => Box::new(|a| match f(a).round_ties_even() {
            x if (-2147483648.0..2147483648.0).contains(&x) => x as i32 as u32,
            _ => i32::MIN as u32,
        }),
        Vcvtdq2ps => Box::new(|a| (a as i32 as f32).to_bits()),
        Vpslld => Box::new(move |a| a.checked_shl(imm.into()).unwrap_or(0)),
        Vpsrld => Box::new(move |a| a.checked_shr(imm.into()).unwrap_or(0)),
        Vpsraw => Box::new(move |a| {
            let half = |shift: u32| u32::from(((a >> shift) as i16 >> imm.min(15)) as u16);
            half(0) | half(16) << 16
        }),
        Vpsrlw => Box::new(move |a| {
            let half = |bits: u32| (bits & 0xffff).checked_shr(imm.into()).unwrap_or(0);
            half(a) | half(a >> 16) << 16
        }),
        Vpsrad => Box::new(move |a| ((a as i32) >> imm.min(31)) as u32),
        _ => return None,
    })
}

/// Of the destination before, and the sources.
fn function(mnemonic: Mnemonic, imm: u8) -> Box<dyn Fn([u32; 3]) -> u32> {
    use Mnemonic::*;
    let fixed: fn([u32; 3]) -> u32 = match mnemonic {
        Vaddps | Vaddss => |[_, a, b]| float(&[a, b], f(a) + f(b)),
        Vsubps | Vsubss => |[_, a, b]| float(&[a, b], f(a) - f(b)),
        Vmulps | Vmulss => |[_, a, b]| float(&[a, b], f(a) * f(b)),
        Vdivps | Vdivss => |[_, a, b]| float(&[a, b], f(a) / f(b)),
        Vminps | Vminss => |[_, a, b]| if f(a) < f(b) { a } else { b },
        Vmaxps | Vmaxss => |[_, a, b]| if f(a) > f(b) { a } else { b },
        Vandps => |[_, a, b]| a & b,
        Vorps => |[_, a, b]| a | b,
        Vxorps => |[_, a, b]| a ^ b,
        Vpaddd => |[_, a, b]| a.wrapping_add(b),
        Vpsubd => |[_, a, b]| a.wrapping_sub(b),
        Vpmulld => |[_, a, b]| a.wrapping_mul(b),
        Vpmaddwd => |[_, a, b]| {
            let product = |shift: u32| i32::from((a >> shift) as i16) * i32::from((b >> shift) as i16);
            product(0).wrapping_add(product(16)) as u32
        },
        Vpaddsw => |[_, a, b]| {
            let half = |shift: u32| ((a >> shift) as i16).saturating_add((b >> shift) as i16) as u16;
            u32::from(half(0)) | u32::from(half(16)) << 16
        },
        Vpmaddubsw => |[_, a, b]| {
            let ([a0, a1, a2, a3], b) = (a.to_le_bytes().map(i32::from), b.to_le_bytes());
            let [b0, b1, b2, b3] = b.map(|byte| i32::from(byte as i8));
            let half = |sum: i32| sum.clamp(i16::MIN.into(), i16::MAX.into()) as u16;
            u32::from(half(a0 * b0 + a1 * b1)) | u32::from(half(a2 * b2 + a3 * b3)) << 16
        },
        Vpdpbusd => |[c, a, b]| {
            let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            products.fold(c, |sum, (a, b)| sum.wrapping_add((i32::from(a) * i32::from(b as i8)) as u32))
        },
        Vpdpwssd => |[c, a, b]| {
            let halves = |word: u32| [word as i16, (word >> 16) as i16].map(i32::from);
            let products = halves(a).into_iter().zip(halves(b));
            products.fold(c, |sum, (a, b)| sum.wrapping_add((a * b) as u32))
        },
        Vdpbf16ps => |[c, a, b]| {
            let ([a0, a1], [b0, b1]) = (bf16_pair(a), bf16_pair(b));
            add_bf16_product(add_bf16_product(f(c), a1, b1), a0, b0).to_bits()
        },
        Vpsllvd => |[_, a, b]| a.checked_shl(b).unwrap_or(0),
        Vpminsd => |[_, a, b]| (a as i32).min(b as i32) as u32,
        Vpmaxsd => |[_, a, b]| (a as i32).max(b as i32) as u32,
        Vpcmpeqd => |[_, a, b]| all(a == b),
        Vpcmpgtd => |[_, a, b]| all(a as i32 > b as i32),
        // NaNs in the order of the manual: the factors, then the summand.
        Vfmadd231ps | Vfmadd231ss => |[c, a, b]| float(&[a, b, c], f(a).mul_add(f(b), f(c))),
        Vfnmadd231ps | Vfnmadd231ss => |[c, a, b]| float(&[a, b, c], (-f(a)).mul_add(f(b), f(c))),
        Vfmadd213ps | Vfmadd213ss => |[a, b, c]| float(&[b, a, c], f(b).mul_add(f(a), f(c))),
        Vcmpps | Vcmpss => {
            let holds: fn(f32, f32) -> bool = match imm {
                0 => |x, y| x == y,
                4 => |x, y| x != y,
                17 => |x, y| x < y,
                18 => |x, y| x <= y,
                _ => panic!("{mnemonic:?} {imm}"),
            };
            return Box::new(move |[_, a, b]| all(holds(f(a), f(b))));
        }
        _ => panic!("{mnemonic:?} is not an instruction of a leaf kernel"),
    };
    Box::new(fixed)
}
