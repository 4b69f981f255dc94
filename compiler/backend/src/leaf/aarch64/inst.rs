//! Words of A64 instructions (Arm Architecture Reference Manual, C4.1): fields that an operation fills in over the bits that
//! name it.

use onnxc_machine::vector::ir::Lanes;

pub(super) const XZR: u8 = 31;
pub(super) const SP: u8 = 31;
pub(super) const FP: u8 = 29;
pub(super) const LR: u8 = 30;
/// Registers between calls of functions, which no value lives in: for addresses and constants in between.
pub(super) const X16: u8 = 16;
pub(super) const X17: u8 = 17;

/// An operation on vectors of floats; bit 22 distinguishes f32 from f64.
#[derive(Clone, Copy)]
pub(super) struct Float(pub u32);

/// An operation on vectors of integers, whose width is in bits 23 and 22.
#[derive(Clone, Copy)]
pub(super) struct Int(pub u32);

pub(super) const FADD: Float = Float(0x0e20_d400);
pub(super) const FSUB: Float = Float(0x0ea0_d400);
pub(super) const FMUL: Float = Float(0x2e20_dc00);
pub(super) const FDIV: Float = Float(0x2e20_fc00);
pub(super) const FMLA: Float = Float(0x0e20_cc00);
pub(super) const FMLS: Float = Float(0x0ea0_cc00);
pub(super) const FMAX: Float = Float(0x0e20_f400);
pub(super) const FMIN: Float = Float(0x0ea0_f400);
pub(super) const FCMEQ: Float = Float(0x0e20_e400);
pub(super) const FCMGE: Float = Float(0x2e20_e400);
pub(super) const FCMGT: Float = Float(0x2ea0_e400);
pub(super) const FSQRT: Float = Float(0x2ea1_f800);
pub(super) const FRINTM: Float = Float(0x0e21_9800);
pub(super) const FRINTP: Float = Float(0x0ea1_8800);
pub(super) const FRINTZ: Float = Float(0x0ea1_9800);
pub(super) const FRINTN: Float = Float(0x0e21_8800);
pub(super) const FCVTZS: Float = Float(0x0ea1_b800);
pub(super) const FCVTNS: Float = Float(0x0e21_a800);
pub(super) const SCVTF: Float = Float(0x0e21_d800);
/// To twice the width, and back; bit 22 distinguishes f64 from f32.
pub(super) const FCVTL: Float = Float(0x0e21_7800);
pub(super) const FCVTN: Float = Float(0x0e21_6800);
/// f32 to bf16, of half the width, and integers to twice the width with zeros below them.
pub(super) const BFCVTN: u32 = 0x0ea1_6800;
pub(super) const SHLL: u32 = 0x2e61_3800;
/// By one element.
pub(super) const FMLA_ELEMENT: Float = Float(0x0f80_1000);

/// Of scalars: a division and a root take as long as their lanes are many.
pub(super) const FDIV_SCALAR: Float = Float(0x1e20_1800);
pub(super) const FSQRT_SCALAR: Float = Float(0x1e21_c000);

pub(super) const ADD: Int = Int(0x0e20_8400);
pub(super) const SUB: Int = Int(0x2e20_8400);
pub(super) const MUL: Int = Int(0x0e20_9c00);
pub(super) const SMIN: Int = Int(0x0e20_6c00);
pub(super) const SMAX: Int = Int(0x0e20_6400);
pub(super) const UMIN: Int = Int(0x2e20_6c00);
pub(super) const CMEQ: Int = Int(0x2e20_8c00);
pub(super) const CMGT: Int = Int(0x0e20_3400);
pub(super) const SSHL: Int = Int(0x0e20_4400);
pub(super) const USHL: Int = Int(0x2e20_4400);
pub(super) const ADDP: Int = Int(0x0e20_bc00);
pub(super) const NEG: Int = Int(0x2e20_b800);
/// Less than zero.
pub(super) const CMLT_ZERO: Int = Int(0x0e20_a800);
/// To half the width, the lower bits of each.
pub(super) const XTN: Int = Int(0x0e21_2800);
/// Likewise, the nearest of what does not fit, signed.
pub(super) const SQXTN: Int = Int(0x0e21_4800);
/// The nearest of what does not fit, unsigned, of signed ones.
pub(super) const SQXTUN: Int = Int(0x2e21_2800);
/// Sums, the nearest of what does not fit, signed.
pub(super) const SQADD: Int = Int(0x0e20_0c00);
/// Products of twice the width, of signed halves and of unsigned ones.
pub(super) const SMULL: Int = Int(0x0e20_c000);
pub(super) const UMULL: Int = Int(0x2e20_c000);
/// Likewise, added to elements of twice the width.
pub(super) const SMLAL: Int = Int(0x0e20_8000);
/// Sums of neighbours, signed, of twice the width; added to elements of that.
pub(super) const SADDLP: Int = Int(0x0e20_2800);
pub(super) const SADALP: Int = Int(0x0e20_6800);

/// Of all bits; they have no width.
pub(super) const AND: u32 = 0x0e20_1c00;
pub(super) const ORR: u32 = 0x0ea0_1c00;
pub(super) const EOR: u32 = 0x2e20_1c00;
pub(super) const BSL: u32 = 0x2e60_1c00;
pub(super) const NOT: u32 = 0x2e20_5800;
/// Products of four bytes, added to 32 bits: vectors, and one element for all lanes.
pub(super) const SDOT: u32 = 0x0e80_9400;
pub(super) const SDOT_ELEMENT: u32 = 0x0f80_e000;

/// Shifts by a constant.
pub(super) const SHL: u32 = 0x0f00_5400;
pub(super) const SSHR: u32 = 0x0f00_0400;
pub(super) const USHR: u32 = 0x2f00_0400;
/// To twice the width.
pub(super) const SSHLL: u32 = 0x0f00_a400;
pub(super) const USHLL: u32 = 0x2f00_a400;

/// Of lanes, by number: in all lanes, in the lane of another vector, as a scalar, in a general register and from it.
pub(super) const DUP: u32 = 0x0e00_0400;
pub(super) const INS: u32 = 0x6e00_0400;
pub(super) const DUP_SCALAR: u32 = 0x5e00_0400;
pub(super) const UMOV: u32 = 0x0e00_3c00;
pub(super) const INS_GENERAL: u32 = 0x4e00_1c00;

pub(super) const FMOV_W_S: u32 = 0x1e26_0000;
pub(super) const FMOV_X_D: u32 = 0x9e66_0000;
pub(super) const FMOV_S_W: u32 = 0x1e27_0000;
pub(super) const FMOV_D_X: u32 = 0x9e67_0000;

/// Of general registers of 64 bits.
pub(super) const ADD_X: u32 = 0x8b00_0000;
pub(super) const SUB_X: u32 = 0xcb00_0000;
pub(super) const MUL_X: u32 = 0x9b00_7c00;
pub(super) const UMULH: u32 = 0x9bc0_7c00;
pub(super) const SDIV_X: u32 = 0x9ac0_0c00;
pub(super) const SDIV_W: u32 = 0x1ac0_0c00;
pub(super) const UDIV_X: u32 = 0x9ac0_0800;
pub(super) const UDIV_W: u32 = 0x1ac0_0800;
pub(super) const CMP_X: u32 = 0xeb00_001f;
pub(super) const ORR_X: u32 = 0xaa00_0000;
pub(super) const ADD_IMM: u32 = 0x9100_0000;
pub(super) const SUB_IMM: u32 = 0xd100_0000;
pub(super) const CMP_IMM: u32 = 0xf100_001f;
pub(super) const CMN_IMM: u32 = 0xb100_001f;
pub(super) const JUMP: u32 = 0x1400_0000;
pub(super) const JUMP_IF: u32 = 0x5400_0000;
pub(super) const RET: u32 = 0xd65f_03c0;

/// Whether an instruction on these lanes is one on 128 bits, not on 64. One lane of 64 bits has no form among vectors.
pub(super) fn whole(lanes: Lanes) -> bool {
    lanes.bytes() > 8 || lanes.width() == 8
}

fn q(whole: bool) -> u32 {
    u32::from(whole) << 30
}

/// The logarithm of the bytes of an element.
pub(super) fn log(width: usize) -> u32 {
    width.trailing_zeros()
}

impl Float {
    fn of(self, lanes: Lanes) -> u32 {
        self.0 | u32::from(lanes.width() == 8) << 22
    }

    pub(super) fn two(self, lanes: Lanes, d: u8, n: u8) -> u32 {
        fields(self.of(lanes) | q(whole(lanes)), d, n, 0)
    }

    pub(super) fn three(self, lanes: Lanes, d: u8, n: u8, m: u8) -> u32 {
        fields(self.of(lanes) | q(whole(lanes)), d, n, m)
    }

    /// By lane number `lane` of `m`.
    pub(super) fn element(self, lanes: Lanes, d: u8, n: u8, (m, lane): (u8, u8)) -> u32 {
        let lane = u32::from(lane);
        let index = match lanes.width() {
            8 => lane << 11,
            _ => (lane & 1) << 21 | (lane >> 1) << 11,
        };
        self.three(lanes, d, n, m) | index
    }

    /// The form of a scalar.
    pub(super) fn scalar(self, lanes: Lanes, d: u8, n: u8, m: u8) -> u32 {
        fields(self.of(lanes), d, n, m)
    }

    /// Between f16 and f32 or f32 and f64; `lanes` are those of the wider type.
    pub(super) fn between(self, lanes: Lanes, d: u8, n: u8) -> u32 {
        fields(self.of(lanes), d, n, 0)
    }
}

impl Int {
    pub(super) fn two(self, lanes: Lanes, d: u8, n: u8) -> u32 {
        self.three(lanes, d, n, 0)
    }

    pub(super) fn three(self, lanes: Lanes, d: u8, n: u8, m: u8) -> u32 {
        self.sized(lanes.width(), whole(lanes), d, n, m)
    }

    /// Of elements of `width` bytes.
    pub(super) fn sized(self, width: usize, whole: bool, d: u8, n: u8, m: u8) -> u32 {
        fields(self.0 | log(width) << 22 | q(whole), d, n, m)
    }
}

/// Of all bits of these lanes.
pub(super) fn bits(op: u32, lanes: Lanes, d: u8, n: u8, m: u8) -> u32 {
    fields(op | q(whole(lanes)), d, n, m)
}

/// A product of bytes by the four that are lane number `lane` of `m`.
pub(super) fn dot_element(op: u32, lanes: Lanes, d: u8, n: u8, (m, lane): (u8, u8)) -> u32 {
    let lane = u32::from(lane);
    bits(op, lanes, d, n, m) | (lane & 1) << 21 | (lane >> 1) << 11
}

/// Shifts to the left, of elements of `width` bytes; with a longer result, `whole` is that of the upper half.
pub(super) fn shift_left(op: u32, width: usize, whole: bool, d: u8, n: u8, count: u32) -> u32 {
    fields(op | q(whole) | (8 * width as u32 + count) << 16, d, n, 0)
}

/// Shifts to the right by 1 to the width.
pub(super) fn shift_right(op: u32, width: usize, whole: bool, d: u8, n: u8, count: u32) -> u32 {
    fields(op | q(whole) | (16 * width as u32 - count) << 16, d, n, 0)
}

/// The number of a lane beside its width, where an instruction names one.
fn numbered(width: usize, lane: u8) -> u32 {
    (u32::from(lane) << 1 | 1) << log(width)
}

/// Lane number `lane` of `n`, by [`DUP`], [`DUP_SCALAR`], [`UMOV`] or [`INS_GENERAL`].
pub(super) fn lane(op: u32, width: usize, whole: bool, d: u8, n: u8, lane: u8) -> u32 {
    fields(op | q(whole) | numbered(width, lane) << 16, d, n, 0)
}

/// The first lane of `n` to lane number `lane` of `d`.
pub(super) fn insert(width: usize, d: u8, lane: u8, n: u8) -> u32 {
    fields(INS | numbered(width, lane) << 16, d, n, 0)
}

/// `MOVI` of a byte in all bytes, zero if that is 0.
pub(super) fn move_byte(d: u8, byte: u8, lanes: Lanes) -> u32 {
    modified(d, byte, 0b1110, false, lanes)
}

/// A constant of eight bits and what `cmode` and `op` make of them.
pub(super) fn modified(d: u8, byte: u8, cmode: u32, op: bool, lanes: Lanes) -> u32 {
    let byte = u32::from(byte);
    0x0f00_0400
        | q(whole(lanes))
        | u32::from(op) << 29
        | cmode << 12
        | (byte >> 5) << 16
        | (byte & 0x1f) << 5
        | u32::from(d)
}

/// Registers in the places that nearly all instructions have them.
pub(super) fn fields(op: u32, d: u8, n: u8, m: u8) -> u32 {
    op | u32::from(m) << 16 | u32::from(n) << 5 | u32::from(d)
}

/// `d = n` of general registers.
pub(super) fn copy(d: u8, n: u8) -> u32 {
    fields(ORR_X, d, XZR, n)
}

/// `n << count` and `n >> count`, zeros shifted in.
pub(super) fn shift_int(left: bool, d: u8, n: u8, count: u8) -> u32 {
    let count = u32::from(count);
    let (rotate, last) = if left { ((64 - count) % 64, 63 - count) } else { (count, 63) };
    fields(0xd340_0000 | rotate << 16 | last << 10, d, n, 0)
}

/// The first of `n` and `m` if the condition holds.
pub(super) fn select(d: u8, n: u8, m: u8, condition: u32) -> u32 {
    fields(0x9a80_0000 | condition << 12, d, n, m)
}

/// `op` with an immediate of 12 bits, which is shifted by 12 or not.
pub(super) fn immediate(op: u32, d: u8, n: u8, value: u32, shifted: bool) -> u32 {
    fields(op | u32::from(shifted) << 22 | value << 10, d, n, 0)
}

/// `d = n` with the lowest six bits cleared.
pub(super) fn aligned_64(d: u8, n: u8) -> u32 {
    fields(0x927a_e400, d, n, 0)
}

/// The instructions that give a constant.
pub(super) fn constant(d: u8, value: i64) -> Vec<u32> {
    let part = |value: i64, at: u32| (value as u64 >> (16 * at) & 0xffff) as u32;
    let word = |op: u32, value: u32, at: u32| op | at << 21 | value << 5 | u32::from(d);
    const MOVZ: u32 = 0xd280_0000;
    const MOVN: u32 = 0x9280_0000;
    const MOVK: u32 = 0xf280_0000;
    // From all zeros or all ones: the one that leaves fewer parts to set.
    let count = |value: i64, of: u32| (0..4).filter(|&at| part(value, at) == of).count();
    let (op, rest, flip) = match count(value, 0xffff) > count(value, 0) {
        true => (MOVN, 0xffff, 0xffff),
        false => (MOVZ, 0, 0),
    };
    let mut parts: Vec<u32> = (0..4).filter(|&at| part(value, at) != rest).collect();
    if parts.is_empty() {
        parts.push(0);
    }
    let first = word(op, part(value, parts[0]) ^ flip, parts[0]);
    let others = parts[1..].iter().map(|&at| word(MOVK, part(value, at), at));
    std::iter::once(first).chain(others).collect()
}

/// A kind of load or store: its size's logarithm, whether it is of a vector register, and what it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Access {
    log: u32,
    vector: bool,
    /// 0 stores, 1 loads; 2 and 3 load and extend the sign to 64 bits and to 32.
    kind: u32,
}

pub(super) const LOAD_X: Access = Access { log: 3, vector: false, kind: 1 };
pub(super) const STORE_X: Access = Access { log: 3, vector: false, kind: 0 };
pub(super) const LOAD_W: Access = Access { log: 2, vector: false, kind: 1 };
pub(super) const LOAD_SW: Access = Access { log: 2, vector: false, kind: 2 };

/// What brings a line to the second-level cache.
pub(super) const PREFETCH: Access = Access { log: 3, vector: false, kind: 2 };
/// The operation of [`PREFETCH`] in place of a register: to load, second level, kept.
pub(super) const PREFETCH_L2: u8 = 0b00010;

impl Access {
    /// A vector register's lowest bytes.
    pub(super) fn vector(bytes: usize, load: bool) -> Access {
        Access { log: log(bytes), vector: true, kind: load.into() }
    }

    /// A general register's, with the sign extended to 32 bits.
    pub(super) fn part(bytes: usize, load: bool, signed: bool) -> Access {
        Access { log: log(bytes), vector: false, kind: if load && signed { 3 } else { load.into() } }
    }

    pub(super) fn bytes(self) -> i64 {
        1 << self.log
    }

    fn word(self) -> u32 {
        // The log of 16 bytes is in the kind.
        let (log, kind) = if self.log == 4 { (0, self.kind | 2) } else { (self.log, self.kind) };
        log << 30 | 0x3800_0000 | u32::from(self.vector) << 26 | kind << 22
    }

    /// At `n` and a displacement, if there is such an instruction.
    pub(super) fn at(self, t: u8, n: u8, disp: i64) -> Option<u32> {
        let scaled = disp >> self.log;
        if disp & (self.bytes() - 1) == 0 && (0..4096).contains(&scaled) {
            return Some(fields(self.word() | 1 << 24 | (scaled as u32) << 10, t, n, 0));
        }
        let unscaled = (-256..256).contains(&disp);
        unscaled.then(|| fields(self.word() | (disp as u32 & 0x1ff) << 12, t, n, 0))
    }

    /// At `n + m`, `m` shifted to the left by `shift`, which is 0 or [`Access::log`].
    pub(super) fn indexed(self, t: u8, n: u8, m: u8, shift: u8) -> u32 {
        fields(self.word() | 0x0020_6800 | u32::from(shift != 0) << 12, t, n, m)
    }
}

/// Two vectors of 128 bits beside each other, if the displacement is one that there is.
pub(super) fn load_pair(t: u8, t2: u8, n: u8, disp: i64) -> Option<u32> {
    let scaled = disp >> 4;
    let fits = disp & 15 == 0 && (-64..64).contains(&scaled);
    fits.then(|| fields(0xad40_0000 | (scaled as u32 & 0x7f) << 15 | u32::from(t2) << 10, t, n, 0))
}

/// Pairs of 64 bits to and from the stack, general registers or the lower halves of vectors.
pub(super) fn stack_pair(load: bool, vector: bool, t: u8, t2: u8, disp: u32) -> u32 {
    let op = if vector { 0x6d00_0000 } else { 0xa900_0000 };
    fields(op | u32::from(load) << 22 | (disp / 8) << 15 | u32::from(t2) << 10, t, SP, 0)
}

/// The pair of frame pointer and address to return to, below the stack pointer, which is moved down, and back.
pub(super) fn push_frame(bytes: u32) -> u32 {
    fields(0xa980_0000 | (bytes / 8).wrapping_neg() << 15 & 0x003f_8000 | u32::from(LR) << 10, FP, SP, 0)
}

pub(super) fn pop_frame(bytes: u32) -> u32 {
    fields(0xa8c0_0000 | (bytes / 8) << 15 | u32::from(LR) << 10, FP, SP, 0)
}

/// One element in all lanes, from the address in `n`.
pub(super) fn load_each(lanes: Lanes, t: u8, n: u8) -> u32 {
    fields(0x0d40_c000 | q(whole(lanes)) | log(lanes.width()) << 10, t, n, 0)
}

/// A constant of `bytes` bytes at a distance that is filled in later.
pub(super) fn load_literal(bytes: usize, t: u8) -> u32 {
    (log(bytes) - 2) << 30 | 0x1c00_0000 | u32::from(t)
}

/// A jump if a general register is zero, or if it is not.
pub(super) fn compare_zero(zero: bool, register: u8) -> u32 {
    if zero { 0xb400_0000 | u32::from(register) } else { 0xb500_0000 | u32::from(register) }
}

/// Conditions, after a comparison of signed integers. The lowest bit negates.
pub(super) const EQ: u32 = 0;
pub(super) const NE: u32 = 1;
pub(super) const GE: u32 = 10;
pub(super) const LT: u32 = 11;
pub(super) const GT: u32 = 12;

/// A distance in instructions in the bits of an instruction, if it fits.
pub(super) fn with_distance(word: u32, distance: i64, bits: u32, at: u32) -> Option<u32> {
    let most = 1i64 << (bits - 1);
    let mask = (1u32 << bits) - 1;
    (-most..most).contains(&distance).then(|| word | (distance as u32 & mask) << at)
}
