//! Instructions on lanes of 64 bits, and those that change the width of lanes.

use super::{Processor, Vector, all, bits, general, mask, vector};
use iced_x86::{Instruction, Mnemonic, OpKind};
use onnxc_ir::scalar::bf16_of;

type Wide = [u64; 8];

const QUIET: u64 = 1 << 51;
/// What an invalid operation gives.
const INDEFINITE: u64 = 0xfff8_0000_0000_0000;

fn join(vector: &Vector) -> Wide {
    std::array::from_fn(|lane| u64::from(vector[2 * lane]) | u64::from(vector[2 * lane + 1]) << 32)
}

fn split(wide: &Wide) -> Vector {
    std::array::from_fn(|lane| (wide[lane / 2] >> (32 * (lane % 2))) as u32)
}

impl Processor<'_> {
    /// Of an operand with this many lanes of 64 bits.
    fn wide(&self, inst: &Instruction, operand: u32, lanes: usize) -> Wide {
        if inst.op_kind(operand) == OpKind::Memory && inst.is_broadcast() {
            return [u64::from_le_bytes(self.read(inst)); 8];
        }
        join(&self.lanes(inst, operand, 2 * lanes))
    }

    /// The first bytes of an operand.
    fn bytes(&self, inst: &Instruction, operand: u32, count: usize) -> Vec<u8> {
        if inst.op_kind(operand) == OpKind::Memory {
            let from = self.reachable(inst, count);
            // SAFETY: as in `read`.
            return (0..count).map(|at| unsafe { from.add(at).read() }).collect();
        }
        let value = self.lanes(inst, operand, 16);
        value.iter().flat_map(|lane| lane.to_le_bytes()).take(count).collect()
    }

    fn words(&self, inst: &Instruction, operand: u32, count: usize) -> Vec<u16> {
        let bytes = self.bytes(inst, operand, 2 * count);
        bytes.chunks(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    pub(super) fn widths(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        let lanes_of = |operand: u32| vector(inst.op_register(operand)).map_or(0, |(_, lanes)| lanes);
        let (to, from) = (lanes_of(0), lanes_of(1));
        let value: Vector = match inst.mnemonic() {
            Vpmovzxbd => spread(self.bytes(inst, 1, to).into_iter().map(u32::from)),
            Vpmovsxbd => spread(self.bytes(inst, 1, to).into_iter().map(|x| x as i8 as i32 as u32)),
            Vpmovzxwd => spread(self.words(inst, 1, to).into_iter().map(u32::from)),
            Vpmovsxwd => spread(self.words(inst, 1, to).into_iter().map(|x| x as i16 as i32 as u32)),
            Vpbroadcastw => {
                let word = u16::from_le_bytes(self.read(inst));
                [u32::from(word) * 0x1_0001; 16]
            }
            Vcvtph2ps => spread(self.words(inst, 1, to).into_iter().map(half_to_single)),
            Vcvtps2ph => {
                assert_eq!(inst.immediate(2), 0);
                let value = self.lanes(inst, 1, from);
                gather(&value[..from].iter().map(|&x| single_to_half(x)).collect::<Vec<_>>())
            }
            Vcvtneps2bf16 => {
                let value = self.lanes(inst, 1, from);
                gather(&value[..from].iter().map(|&x| bf16_of(f32::from_bits(x))).collect::<Vec<_>>())
            }
            Vpmovdw => {
                let value = self.lanes(inst, 1, from);
                gather(&value[..from].iter().map(|&x| x as u16).collect::<Vec<_>>())
            }
            Vpmovdb => {
                let value = self.lanes(inst, 1, from);
                gather_bytes(&value[..from].iter().map(|&x| x as u8).collect::<Vec<_>>())
            }
            Vpmovusdb => {
                let value = self.lanes(inst, 1, from);
                gather_bytes(&value[..from].iter().map(|&x| x.min(255) as u8).collect::<Vec<_>>())
            }
            Vpmovsdb => {
                let value = self.lanes(inst, 1, from);
                let cut = |x: u32| (x as i32).clamp(i8::MIN.into(), i8::MAX.into()) as u8;
                gather_bytes(&value[..from].iter().map(|&x| cut(x)).collect::<Vec<_>>())
            }
            Vpackssdw | Vpackusdw => {
                let (a, b) = (self.lanes(inst, 1, to), self.lanes(inst, 2, to));
                let pack = |x: u32| match inst.mnemonic() {
                    Vpackssdw => (x as i32).clamp(-0x8000, 0x7fff) as u16,
                    _ => (x as i32).clamp(0, 0xffff) as u16,
                };
                let words = (0..to / 4).flat_map(|half| {
                    let part = 4 * half..4 * half + 4;
                    a[part.clone()].iter().chain(&b[part]).map(|&x| pack(x)).collect::<Vec<_>>()
                });
                gather(&words.collect::<Vec<_>>())
            }
            Vpacksswb | Vpackuswb => {
                let (a, b) = (self.words(inst, 1, 2 * to), self.words(inst, 2, 2 * to));
                let both = a.chunks(8).zip(b.chunks(8)).flat_map(|(a, b)| [a, b].concat());
                let pack = |x: u16| match inst.mnemonic() {
                    Vpacksswb => (x as i16).clamp(-0x80, 0x7f) as u8,
                    _ => (x as i16).clamp(0, 0xff) as u8,
                };
                gather_bytes(&both.map(pack).collect::<Vec<_>>())
            }
            Vshufps => {
                let (a, b, order) = (self.lanes(inst, 1, to), self.lanes(inst, 2, to), inst.immediate(3));
                std::array::from_fn(|lane| {
                    let from = if lane % 4 < 2 { &a } else { &b };
                    from[lane / 4 * 4 + (order >> (2 * (lane % 4)) & 3) as usize]
                })
            }
            Vpermq => {
                assert_eq!(to, 8);
                let (value, order) = (self.wide(inst, 1, 4), inst.immediate(2));
                split(&std::array::from_fn(|lane| value[(order >> (2 * (lane % 4)) & 3) as usize]))
            }
            Vpmovsxdq => {
                let value = self.lanes(inst, 1, to / 2);
                split(&std::array::from_fn(|lane| value[lane] as i32 as i64 as u64))
            }
            Vpmovqd => narrow(&self.wide(inst, 1, from / 2), |x| x as u32),
            Vcvtps2pd => {
                let value = self.lanes(inst, 1, to / 2);
                split(&std::array::from_fn(|lane| single_to_double(value[lane])))
            }
            Vcvtpd2ps => narrow(&self.wide(inst, 1, from / 2), double_to_single),
            Vcvtdq2pd => {
                let value = self.lanes(inst, 1, to / 2);
                split(&std::array::from_fn(|lane| f64::from(value[lane] as i32).to_bits()))
            }
            Vcvttpd2dq => narrow(&self.wide(inst, 1, from / 2), |x| match f(x).trunc() {
                x if (-2147483648.0..2147483648.0).contains(&x) => x as i32 as u32,
                _ => i32::MIN as u32,
            }),
            Vcvtqq2pd => split(&self.wide(inst, 1, to / 2).map(|x| (x as i64 as f64).to_bits())),
            Vcvttpd2qq => split(&self.wide(inst, 1, to / 2).map(|x| match f(x) {
                x if (-9223372036854775808.0..9223372036854775808.0).contains(&x) => x as i64 as u64,
                _ => i64::MIN as u64,
            })),
            _ => return self.wide_moves(inst) || self.wide_arithmetic(inst),
        };
        // A conversion to half the bits clears the upper bits.
        let written = match inst.mnemonic() {
            Vpmovqd | Vcvtpd2ps | Vcvttpd2dq => from / 2,
            Vcvtps2ph | Vpmovdw => from / 2,
            Vpmovdb | Vpmovusdb | Vpmovsdb => from / 4,
            _ => to,
        };
        self.set_lanes(inst.op0_register(), written.max(1), &value);
        true
    }

    fn wide_moves(&mut self, inst: &Instruction) -> bool {
        use Mnemonic::*;
        let (_, width) = vector(inst.op0_register()).unwrap_or((0, 0));
        let value = match inst.mnemonic() {
            Vmovsd if inst.op0_kind() == OpKind::Memory => {
                let bytes = self.bytes(inst, 1, 8);
                self.write(inst, &bytes);
                return true;
            }
            Vmovsd => {
                assert_eq!(inst.op_count(), 2);
                let mut value = [0; 8];
                value[0] = u64::from_le_bytes(self.read(inst));
                value
            }
            Vmovq if general(inst.op0_register()).is_some() => {
                let value = self.wide(inst, 1, 2)[0];
                self.set_int(inst, value);
                return true;
            }
            Vmovq => {
                let mut value = [0; 8];
                value[0] = self.int(inst, 1);
                value
            }
            Vblendpd => {
                let (a, b) = (self.wide(inst, 1, width / 2), self.wide(inst, 2, width / 2));
                std::array::from_fn(|lane| if inst.immediate(3) >> lane & 1 == 1 { b[lane] } else { a[lane] })
            }
            Vbroadcastsd if inst.op1_kind() == OpKind::Memory => [u64::from_le_bytes(self.read(inst)); 8],
            Vbroadcastsd => [self.wide(inst, 1, 2)[0]; 8],
            Vblendvpd | Vblendmpd => {
                let (a, b) = (self.wide(inst, 1, width / 2), self.wide(inst, 2, width / 2));
                let second: Vec<bool> = match mask(inst.op_mask()) {
                    Some(k) => (0..8).map(|lane| self.masks[k] >> lane & 1 == 1).collect(),
                    None => self.wide(inst, 3, width / 2).iter().map(|lane| lane >> 63 == 1).collect(),
                };
                std::array::from_fn(|lane| if second[lane] { b[lane] } else { a[lane] })
            }
            _ => return false,
        };
        self.set_lanes(inst.op0_register(), width, &split(&value));
        true
    }

    /// Lane by lane.
    fn wide_arithmetic(&mut self, inst: &Instruction) -> bool {
        let dst = inst.op0_register();
        let last = inst.op_count() - 1;
        let immediate = inst.op_kind(last) == OpKind::Immediate8;
        let (sources, imm) = if immediate { (last, inst.immediate(last) as u8) } else { (last + 1, 0) };
        let (one, several) = (unary(inst.mnemonic(), imm), function(inst.mnemonic(), imm));
        if one.is_none() && several.is_none() {
            return false;
        }
        let scalar = is_scalar(inst.mnemonic());
        let width = vector(dst).or(vector(inst.op1_register())).expect("a vector register").1;
        let mut x = [[0; 8]; 3];
        for operand in 1..sources {
            let in_memory = inst.op_kind(operand) == OpKind::Memory;
            let lanes = if scalar && in_memory { 1 } else { width / 2 };
            x[operand as usize - 1] = self.wide(inst, operand, lanes);
        }
        let old = vector(dst).map_or([0; 8], |(n, _)| join(&self.vectors[n]));
        let mut result: Wide = match (one, several, sources) {
            (Some(f), _, 2) => x[0].map(f),
            (Some(f), ..) => x[1].map(f),
            (_, Some(f), _) => std::array::from_fn(|lane| f([old[lane], x[0][lane], x[1][lane]])),
            _ => unreachable!("one of them is there"),
        };
        if let Some(k) = mask(dst) {
            let lanes = if scalar { 1 } else { width / 2 };
            self.masks[k] = bits(lanes, |lane| result[lane] >> 63 == 1);
            return true;
        }
        if scalar {
            // The lane above comes from the first source, or stays in a fused operation.
            let fused = format!("{:?}", inst.mnemonic()).starts_with("Vf");
            result[1] = if fused { old[1] } else { x[0][1] };
        }
        self.set_lanes(dst, width, &split(&result));
        true
    }
}

fn spread(values: impl Iterator<Item = u32>) -> Vector {
    let mut vector = [0; 16];
    vector.iter_mut().zip(values).for_each(|(lane, value)| *lane = value);
    vector
}

fn gather(words: &[u16]) -> Vector {
    gather_bytes(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())
}

fn gather_bytes(bytes: &[u8]) -> Vector {
    let lane = |chunk: &[u8]| chunk.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
    spread(bytes.chunks(4).map(lane))
}

fn narrow(wide: &Wide, f: impl Fn(u64) -> u32) -> Vector {
    spread(wide.iter().map(|&lane| f(lane)))
}

fn half_to_single(x: u16) -> u32 {
    let value = half::f16::from_bits(x);
    match value.is_nan() {
        true => u32::from(x & 0x8000) << 16 | 0x7fc0_0000 | u32::from(x & 0x3ff) << 13,
        false => value.to_f32().to_bits(),
    }
}

fn single_to_half(x: u32) -> u16 {
    let value = f32::from_bits(x);
    match value.is_nan() {
        true => (x >> 16) as u16 & 0x8000 | 0x7e00 | (x >> 13) as u16 & 0x3ff,
        false => half::f16::from_f32(value).to_bits(),
    }
}

fn single_to_double(x: u32) -> u64 {
    let value = f32::from_bits(x);
    match value.is_nan() {
        true => u64::from(x >> 31) << 63 | 0x7ff8_0000_0000_0000 | u64::from(x & 0x7f_ffff) << 29,
        false => f64::from(value).to_bits(),
    }
}

fn double_to_single(x: u64) -> u32 {
    match f(x).is_nan() {
        true => (x >> 32) as u32 & 0x8000_0000 | 0x7fc0_0000 | (x >> 29) as u32 & 0x7f_ffff,
        false => (f(x) as f32).to_bits(),
    }
}

fn f(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// A result, or the first operand that is NaN, made quiet.
fn float(operands: &[u64], result: f64) -> u64 {
    match operands.iter().find(|&&operand| f(operand).is_nan()) {
        Some(nan) => nan | QUIET,
        None if result.is_nan() => INDEFINITE,
        None => result.to_bits(),
    }
}

fn every(condition: bool) -> u64 {
    u64::from(all(condition)) * 0x1_0000_0001
}

fn is_scalar(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(mnemonic, Vaddsd | Vsubsd | Vmulsd | Vdivsd | Vminsd | Vmaxsd | Vcmpsd | Vsqrtsd | Vroundsd)
        || matches!(mnemonic, Vrndscalesd | Vfmadd231sd | Vfmadd213sd | Vfnmadd231sd)
}

fn unary(mnemonic: Mnemonic, imm: u8) -> Option<Box<dyn Fn(u64) -> u64>> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vsqrtpd | Vsqrtsd => Box::new(|a| float(&[a], f(a).sqrt())),
        Vroundpd | Vroundsd | Vrndscalepd | Vrndscalesd => {
            let round: fn(f64) -> f64 = match imm {
                8 => f64::round_ties_even,
                9 => f64::floor,
                10 => f64::ceil,
                11 => f64::trunc,
                _ => panic!("{mnemonic:?} {imm}"),
            };
            Box::new(move |a| float(&[a], round(f(a))))
        }
        Vpsllq => Box::new(move |a| a.checked_shl(imm.into()).unwrap_or(0)),
        Vpsrlq => Box::new(move |a| a.checked_shr(imm.into()).unwrap_or(0)),
        Vpsraq => Box::new(move |a| ((a as i64) >> imm.min(63)) as u64),
        _ => return None,
    })
}

/// Of the destination before, and the sources.
fn function(mnemonic: Mnemonic, imm: u8) -> Option<Box<dyn Fn([u64; 3]) -> u64>> {
    use Mnemonic::*;
    let fixed: fn([u64; 3]) -> u64 = match mnemonic {
        Vaddpd | Vaddsd => |[_, a, b]| float(&[a, b], f(a) + f(b)),
        Vsubpd | Vsubsd => |[_, a, b]| float(&[a, b], f(a) - f(b)),
        Vmulpd | Vmulsd => |[_, a, b]| float(&[a, b], f(a) * f(b)),
        Vdivpd | Vdivsd => |[_, a, b]| float(&[a, b], f(a) / f(b)),
        Vminpd | Vminsd => |[_, a, b]| if f(a) < f(b) { a } else { b },
        Vmaxpd | Vmaxsd => |[_, a, b]| if f(a) > f(b) { a } else { b },
        Vandpd => |[_, a, b]| a & b,
        Vorpd => |[_, a, b]| a | b,
        Vxorpd => |[_, a, b]| a ^ b,
        Vpaddq => |[_, a, b]| a.wrapping_add(b),
        Vpsubq => |[_, a, b]| a.wrapping_sub(b),
        Vpmullq => |[_, a, b]| a.wrapping_mul(b),
        Vpmuludq => |[_, a, b]| (a & 0xffff_ffff) * (b & 0xffff_ffff),
        Vpminsq => |[_, a, b]| (a as i64).min(b as i64) as u64,
        Vpmaxsq => |[_, a, b]| (a as i64).max(b as i64) as u64,
        Vpcmpeqq => |[_, a, b]| every(a == b),
        Vpcmpgtq => |[_, a, b]| every(a as i64 > b as i64),
        // NaNs in the order of the manual: the factors, then the summand.
        Vfmadd231pd | Vfmadd231sd => |[c, a, b]| float(&[a, b, c], f(a).mul_add(f(b), f(c))),
        Vfnmadd231pd | Vfnmadd231sd => |[c, a, b]| float(&[a, b, c], (-f(a)).mul_add(f(b), f(c))),
        Vfmadd213pd | Vfmadd213sd => |[a, b, c]| float(&[b, a, c], f(b).mul_add(f(a), f(c))),
        Vcmppd | Vcmpsd => {
            let holds: fn(f64, f64) -> bool = match imm {
                0 => |x, y| x == y,
                4 => |x, y| x != y,
                17 => |x, y| x < y,
                18 => |x, y| x <= y,
                _ => panic!("{mnemonic:?} {imm}"),
            };
            return Some(Box::new(move |[_, a, b]| every(holds(f(a), f(b)))));
        }
        _ => return None,
    };
    Some(Box::new(fixed))
}
