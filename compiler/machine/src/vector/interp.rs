//! Runs functions of the vector IR, every access checked: the oracle between selection and machine code. A kernel that is
//! right as loops and wrong here was selected wrongly; one that is right here and wrong in machine code was emitted wrongly.
//!
//! What an operation leaves unspecified, such as the lanes above a scalar, holds a pattern that no result may show.

mod tiles;

use cranelift_entity::{EntityRef, SecondaryMap};
use half::{bf16, f16};

use crate::vector::ir::{
    Address, Binary, BlockId, Class, Compare, Cond, Convert, End, Func, Inst, Lanes, Logic, Mem, Op, Operand,
    Reg, Small, Unary,
};
use onnxc_ir::error::{Error, Result, Stage};
use onnxc_ir::scalar;

/// Bytes of the widest vector.
const VECTOR: usize = 64;
const UNSPECIFIED: u8 = 0xd5;

/// Where the table of buffers, the dims, the frame and each buffer begin: so far apart that no offset leads from one to another.
const SPACING: u64 = 1 << 44;
const TABLE: u64 = SPACING;
const DIMS: u64 = 2 * SPACING;
const FRAME: u64 = 3 * SPACING;
const BUFFERS: u64 = 4 * SPACING;

#[derive(Clone, Copy)]
enum Value {
    Int(i64),
    Vector([u8; VECTOR]),
    /// A bit for each lane.
    Mask(u64),
}

/// Runs a verified function on its buffers; `dims` are the run-time values of the graph's symbols, and `lo..hi` is the
/// part of the parallel range to run. Gives the function's code. An access outside its buffer is an internal error.
pub fn run(func: &Func, buffers: &mut [Vec<u8>], dims: &[i64], (lo, hi): (i64, i64)) -> Result<i32> {
    let (frame, tiles) = (vec![UNSPECIFIED; func.frame], [[[UNSPECIFIED; 64]; 16]; 8]);
    let mut machine = FuncRun { func, buffers, dims, regs: SecondaryMap::with_default(None), frame, tiles };
    let arguments = [TABLE as i64, DIMS as i64, lo, hi].map(Value::Int);
    machine.enter(BlockId::new(0), &arguments);
    let mut block = BlockId::new(0);
    loop {
        let code = &func.blocks[block];
        for inst in &code.insts {
            machine
                .inst(inst)
                .map_err(|text| Error::internal(Stage::Codegen, format!("{block}: {:?}: {text}", inst.op)))?;
        }
        let ended = |text: String| Error::internal(Stage::Codegen, format!("{block}: {text}"));
        match &code.end {
            End::Return(code) => return Ok(*code),
            End::Jump(to, args) => {
                let values =
                    args.iter().map(|&arg| machine.get(arg)).collect::<std::result::Result<Vec<_>, _>>();
                machine.enter(*to, &values.map_err(ended)?);
                block = *to;
            }
            End::Branch { cond, a, b, then, otherwise } => {
                let b = match b {
                    Operand::Reg(b) => machine.int(*b),
                    Operand::Imm(b) => Ok((*b).into()),
                };
                let (a, b) = (machine.int(*a).map_err(ended)?, b.map_err(ended)?);
                let holds = match cond {
                    Cond::Lt => a < b,
                    Cond::Ge => a >= b,
                    Cond::Eq => a == b,
                    Cond::Ne => a != b,
                };
                block = if holds { *then } else { *otherwise };
            }
        }
    }
}

type Ran<T> = std::result::Result<T, String>;

struct FuncRun<'a> {
    func: &'a Func,
    buffers: &'a mut [Vec<u8>],
    dims: &'a [i64],
    regs: SecondaryMap<Reg, Option<Value>>,
    frame: Vec<u8>,
    tiles: [tiles::TileData; 8],
}

fn lane(vector: &[u8; VECTOR], at: usize, width: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&vector[at * width..(at + 1) * width]);
    u64::from_le_bytes(bytes)
}

/// A vector of such lanes; what is above them is unspecified.
fn vector(lanes: Lanes, element: impl FnMut(usize) -> u64) -> Value {
    packed(lanes.count(), lanes.width(), element)
}

fn packed(count: usize, width: usize, mut element: impl FnMut(usize) -> u64) -> Value {
    let mut bytes = [UNSPECIFIED; VECTOR];
    for at in 0..count {
        bytes[at * width..(at + 1) * width].copy_from_slice(&element(at).to_le_bytes()[..width]);
    }
    Value::Vector(bytes)
}

fn single(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn of_single(value: f32) -> u64 {
    value.to_bits().into()
}

/// A small element as 32 bits.
fn widened(small: Small, bits: u64) -> u64 {
    match small {
        Small::I8 => u64::from(i32::from(bits as i8) as u32),
        Small::U8 => bits & 0xff,
        Small::I16 => u64::from(i32::from(bits as i16) as u32),
        Small::U16 => bits & 0xffff,
        Small::F16 => of_single(f16::from_bits(bits as u16).to_f32()),
    }
}

impl FuncRun<'_> {
    fn enter(&mut self, block: BlockId, values: &[Value]) {
        for (&param, &value) in self.func.blocks[block].params.iter().zip(values) {
            self.regs[param] = Some(value);
        }
    }

    fn get(&self, reg: Reg) -> Ran<Value> {
        self.regs[reg].ok_or_else(|| format!("{reg} is read before it is defined"))
    }

    fn int(&self, reg: Reg) -> Ran<i64> {
        match self.get(reg)? {
            Value::Int(value) => Ok(value),
            _ => Err(format!("{reg} is not a general register")),
        }
    }

    fn vector(&self, reg: Reg) -> Ran<[u8; VECTOR]> {
        match self.get(reg)? {
            Value::Vector(bytes) => Ok(bytes),
            _ => Err(format!("{reg} is not a vector")),
        }
    }

    fn mask(&self, reg: Reg) -> Ran<u64> {
        match self.get(reg)? {
            Value::Mask(bits) => Ok(bits),
            _ => Err(format!("{reg} is not a mask")),
        }
    }

    /// `bytes` bytes at an address, and the buffer they are in.
    fn place(&self, address: u64, bytes: usize) -> Ran<(usize, usize)> {
        let (number, offset) = ((address / SPACING).wrapping_sub(BUFFERS / SPACING), address % SPACING);
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        match self.buffers.get(number) {
            Some(buffer) if offset + bytes as u64 <= buffer.len() as u64 => Ok((number, offset as usize)),
            Some(buffer) => {
                Err(format!("{bytes} bytes at {offset} of buffer {number}, which has {} bytes", buffer.len()))
            }
            None => Err(format!("{bytes} bytes at the address {address:#x}, where no buffer is")),
        }
    }

    fn in_frame(&self, address: u64, bytes: usize) -> Ran<usize> {
        let at = (address - FRAME) as usize;
        match at + bytes <= self.frame.len() {
            true => Ok(at),
            false => Err(format!("{bytes} bytes at {at} of {} of the frame", self.frame.len())),
        }
    }

    fn address(&self, mem: Option<Mem>) -> Ran<u64> {
        match mem {
            Some(Mem::At(Address { base, scaled, disp }) | Mem::Each(Address { base, scaled, disp })) => {
                let scaled = match scaled {
                    Some((reg, log)) => self.int(reg)?.wrapping_shl(log.into()),
                    None => 0,
                };
                Ok(self.int(base)?.wrapping_add(scaled).wrapping_add(disp.into()) as u64)
            }
            _ => Err("an operand in memory is missing".into()),
        }
    }

    /// The little-endian number of `bytes` bytes at an address.
    fn read(&self, address: u64, bytes: usize) -> Ran<u64> {
        let word = |at: u64, count: usize, what: &str| match at.is_multiple_of(8) && bytes == 8 {
            true if at / 8 < count as u64 => Ok((at / 8) as usize),
            _ => Err(format!("{bytes} bytes at {at} of {count} {what}")),
        };
        match address / SPACING * SPACING {
            TABLE => {
                let at = word(address - TABLE, self.buffers.len(), "pointers")?;
                Ok(BUFFERS + at as u64 * SPACING)
            }
            DIMS => Ok(self.dims[word(address - DIMS, self.dims.len(), "dims")?] as u64),
            FRAME => {
                let at = self.in_frame(address, bytes)?;
                let mut value = [0; 8];
                value[..bytes].copy_from_slice(&self.frame[at..at + bytes]);
                Ok(u64::from_le_bytes(value))
            }
            _ => {
                let (number, offset) = self.place(address, bytes)?;
                let mut value = [0; 8];
                value[..bytes].copy_from_slice(&self.buffers[number][offset..offset + bytes]);
                Ok(u64::from_le_bytes(value))
            }
        }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Ran<()> {
        if address / SPACING * SPACING == FRAME {
            let at = self.in_frame(address, bytes.len())?;
            self.frame[at..at + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let (number, offset) = self.place(address, bytes.len())?;
        self.buffers[number][offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Operand `at` of an operation on such lanes, which is in memory if it is the last and no register.
    fn operand(&self, inst: &Inst, at: usize, lanes: Lanes) -> Ran<[u8; VECTOR]> {
        if let Some(&reg) = inst.uses.get(at) {
            return self.vector(reg);
        }
        let width = lanes.width();
        let value = match inst.mem {
            Some(Mem::Constant(bits)) => vector(lanes, |_| bits),
            Some(Mem::Each(_)) => {
                let element = self.read(self.address(inst.mem)?, width)?;
                vector(lanes, |_| element)
            }
            _ => {
                let address = self.address(inst.mem)?;
                let elements = (0..lanes.count()).map(|at| self.read(address + (at * width) as u64, width));
                let elements = elements.collect::<Ran<Vec<_>>>()?;
                vector(lanes, |at| elements[at])
            }
        };
        match value {
            Value::Vector(bytes) => Ok(bytes),
            _ => Err("no vector".into()),
        }
    }

    fn inst(&mut self, inst: &Inst) -> Ran<()> {
        let value = match inst.op {
            Op::Store(lanes) => {
                let bytes = self.vector(inst.uses[0])?;
                return self.write(self.address(inst.mem)?, &bytes[..lanes.bytes()]);
            }
            Op::StorePart(small) => {
                let value = self.int(inst.uses[0])?;
                return self.write(self.address(inst.mem)?, &value.to_le_bytes()[..small.bytes()]);
            }
            Op::Prefetch => return Ok(()),
            Op::TileZero(_) | Op::TileLoad(_) | Op::TileStore(_) | Op::TileDot(..) | Op::TileDotBf16(_) => {
                return self.tile_op(inst);
            }
            // A bit stands for a lane of any width.
            Op::MaskWiden(_) | Op::MaskNarrow(_) => self.get(inst.uses[0])?,
            op => match op.shape().dst {
                Some(Class::Int) => Value::Int(self.general(inst)?),
                Some(Class::Mask) => Value::Mask(self.new_mask(inst)?),
                Some(Class::Vec) => self.new_vector(inst)?,
                None => return Err("no result".into()),
            },
        };
        let dst = inst.dst.ok_or("the result is missing")?;
        self.regs[dst] = Some(value);
        Ok(())
    }

    fn general(&self, inst: &Inst) -> Ran<i64> {
        let used =
            |at: usize| inst.uses.get(at).map_or(Err("an operand is missing".into()), |&reg| self.int(reg));
        Ok(match inst.op {
            Op::Int(value) => value,
            Op::Frame(at) => FRAME as i64 + i64::from(at),
            Op::LoadInt => self.read(self.address(inst.mem)?, 8)? as i64,
            Op::LoadInt32 => self.read(self.address(inst.mem)?, 4)? as i32 as i64,
            Op::LoadPart(small) => {
                let bits = self.read(self.address(inst.mem)?, small.bytes())?;
                // The bits of a float stay as they are.
                let bits = if small == Small::F16 { bits } else { widened(small, bits) };
                bits as i64
            }
            Op::ToGeneral(one) => lane(&self.vector(inst.uses[0])?, 0, one.width()) as i64,
            Op::Add => used(0)?.wrapping_add(used(1)?),
            Op::Sub => used(0)?.wrapping_sub(used(1)?),
            Op::Mul => used(0)?.wrapping_mul(used(1)?),
            Op::MulHigh => ((u128::from(used(0)? as u64) * u128::from(used(1)? as u64)) >> 64) as i64,
            Op::DivInt => match (used(0)?, used(1)?) {
                (_, by @ (0 | -1)) => return Err(format!("a division by {by}")),
                (value, by) => value / by,
            },
            Op::MinInt => used(0)?.min(used(1)?),
            Op::MaxInt => used(0)?.max(used(1)?),
            Op::AddInt(by) => used(0)?.wrapping_add(by.into()),
            Op::MulInt(by) => used(0)?.wrapping_mul(by.into()),
            Op::ShlInt(count) => used(0)? << count,
            Op::ShrInt(count) => (used(0)? as u64 >> count) as i64,
            _ => return Err("no operation on general registers".into()),
        })
    }

    fn new_mask(&self, inst: &Inst) -> Ran<u64> {
        let Some(lanes) = inst.op.lanes() else { return Err("no lanes".into()) };
        let (count, width) = (lanes.count(), lanes.width());
        let bits = |test: &dyn Fn(usize) -> bool| (0..count).map(|at| u64::from(test(at)) << at).sum();
        Ok(match inst.op {
            Op::Compare(op, _) => {
                let (a, b) = (self.operand(inst, 0, lanes)?, self.operand(inst, 1, lanes)?);
                bits(&|at| compare(op, lane(&a, at, width), lane(&b, at, width), width))
            }
            Op::Mask(op, _) => {
                let (a, b) = (self.mask(inst.uses[0])?, self.mask(inst.uses[1])?);
                match op {
                    Logic::And => a & b,
                    Logic::Or => a | b,
                    Logic::Xor => a ^ b,
                }
            }
            Op::MaskNot(_) => {
                let a = self.mask(inst.uses[0])?;
                bits(&|at| a >> at & 1 == 0)
            }
            Op::MaskOf(_) => {
                let a = self.vector(inst.uses[0])?;
                bits(&|at| lane(&a, at, width) >> (8 * width - 1) & 1 == 1)
            }
            _ => return Err("no operation on masks".into()),
        })
    }

    fn new_vector(&self, inst: &Inst) -> Ran<Value> {
        if let Op::Extract(at, one) = inst.op {
            let a = self.vector(inst.uses[0])?;
            return Ok(vector(one, |_| lane(&a, at.into(), one.width())));
        }
        if inst.op == Op::BroadcastHalf {
            let bits = self.read(self.address(inst.mem)?, 2)?;
            return Ok(packed(8, 2, |_| bits));
        }
        if let Op::FromGeneral(one) = inst.op {
            let bits = self.int(inst.uses[0])? as u64;
            return Ok(vector(one, |_| bits));
        }
        let Some(lanes) = inst.op.lanes() else { return Err("no lanes".into()) };
        for of_kind in [Self::arranged, Self::resized, Self::computed] {
            if let Some(value) = of_kind(self, inst, lanes)? {
                return Ok(value);
            }
        }
        Err("no operation on vectors".into())
    }

    /// Operations that give constants, or elements of memory and of other vectors as they are.
    fn arranged(&self, inst: &Inst, lanes: Lanes) -> Ran<Option<Value>> {
        let (count, width) = (lanes.count(), lanes.width());
        let used = |at: usize| self.operand(inst, at, lanes);
        Ok(Some(match inst.op {
            Op::Splat(_, bits) => vector(lanes, |_| bits),
            Op::Ramp(_, first) => {
                vector(lanes, |at| (f32::from_bits(first as u32) + at as f32).to_bits().into())
            }
            Op::Permute(_) => {
                let (a, b) = (used(0)?, used(1)?);
                vector(lanes, |at| lane(&b, lane(&a, at, width) as usize % count, width))
            }
            Op::UpperHalf(_) => {
                let a = self.vector(inst.uses[0])?;
                vector(lanes, |at| lane(&a, count + at, width))
            }
            Op::SwapBytes(_) => {
                let a = used(0)?;
                vector(lanes, |at| (lane(&a, at, width) as u32).swap_bytes().into())
            }
            Op::Load(_) => Value::Vector(used(0)?),
            Op::Broadcast(_) => {
                let bits = self.read(self.address(inst.mem)?, width)?;
                vector(lanes, |_| bits)
            }
            Op::InsertQuarter(at, _) => {
                let (mut whole, address) = (used(0)?, self.address(inst.mem)?);
                for byte in 0..16 {
                    whole[16 * usize::from(at) + byte] = self.read(address + byte as u64, 1)? as u8;
                }
                Value::Vector(whole)
            }
            Op::Interleave(_) => {
                let a = used(0)?;
                let byte =
                    |lane: usize, quarter: usize| u64::from(a[count * quarter + lane]) << (8 * quarter);
                vector(lanes, |lane| (0..4).map(|quarter| byte(lane, quarter)).sum())
            }
            Op::Blend(_) => {
                let mask = self.mask(inst.uses[0])?;
                let (then, otherwise) = (self.vector(inst.uses[1])?, self.vector(inst.uses[2])?);
                vector(lanes, |at| lane(if mask >> at & 1 == 1 { &then } else { &otherwise }, at, width))
            }
            Op::Insert(to, _) => {
                let (a, scalar) = (self.vector(inst.uses[0])?, self.vector(inst.uses[1])?);
                let to = usize::from(to);
                vector(lanes, |at| if at == to { lane(&scalar, 0, width) } else { lane(&a, at, width) })
            }
            Op::SplatLane(_) => {
                let a = self.vector(inst.uses[0])?;
                vector(lanes, |_| lane(&a, 0, width))
            }
            Op::MaskBits(_) => {
                let mask = self.mask(inst.uses[0])?;
                vector(lanes, |at| if mask >> at & 1 == 1 { u64::MAX } else { 0 })
            }
            _ => return Ok(None),
        }))
    }

    /// Operations that give elements another width.
    fn resized(&self, inst: &Inst, lanes: Lanes) -> Ran<Option<Value>> {
        let count = lanes.count();
        let used = |at: usize| self.operand(inst, at, lanes);
        Ok(Some(match inst.op {
            Op::LoadSmall(small, _) => {
                let (address, bytes) = (self.address(inst.mem)?, small.bytes());
                let elements = (0..count).map(|at| self.read(address + (at * bytes) as u64, bytes));
                let elements = elements.collect::<Ran<Vec<_>>>()?;
                vector(lanes, |at| widened(small, elements[at]))
            }
            Op::LoadHalves(small, _) => {
                let address = self.address(inst.mem)?;
                let elements = (0..2 * count).map(|at| self.read(address + at as u64, 1));
                let elements = elements.collect::<Ran<Vec<_>>>()?;
                packed(2 * count, 2, |at| widened(small, elements[at]))
            }
            Op::Unpack(_) => {
                let a = self.vector(inst.uses[0])?;
                vector(lanes, |at| widened(Small::F16, lane(&a, at, 2)))
            }
            Op::Pack(small, _) => {
                let a = used(0)?;
                packed(count, small.bytes(), |at| match small {
                    Small::F16 => f16::from_f32(single(lane(&a, at, 4))).to_bits().into(),
                    _ => lane(&a, at, 4),
                })
            }
            Op::PackBf16(_) => {
                let a = used(0)?;
                packed(count, 2, |at| scalar::bf16_of(single(lane(&a, at, 4))).into())
            }
            Op::Quantize(small, _) => {
                let a = used(0)?;
                packed(count, small.bytes(), |at| {
                    // Conversions of Rust saturate, too.
                    let x = single(lane(&a, at, 4)).round_ties_even();
                    match small {
                        Small::I8 => x as i8 as u64,
                        Small::U8 => x as u8 as u64,
                        Small::I16 => x as i16 as u64,
                        Small::U16 | Small::F16 => x as u16 as u64,
                    }
                })
            }
            Op::Saturate(small, _) => {
                let a = used(0)?;
                packed(count, small.bytes(), |at| match (small, lane(&a, at, 4) as u32) {
                    (Small::I8, x) => (x as i32).clamp(-128, 127) as u64,
                    (Small::I16, x) => (x as i32).clamp(-32768, 32767) as u64,
                    (Small::U8, x) => x.min(255).into(),
                    (Small::U16 | Small::F16, x) => x.min(65535).into(),
                })
            }
            Op::QuantizePair(small, adds, _) => {
                let (a, b) = (used(0)?, used(1)?);
                let zero = if adds == 1 { used(2)? } else { [0; VECTOR] };
                packed(2 * count, 1, |at| {
                    let x = single(lane(if at < count { &a } else { &b }, at % count, 4));
                    let whole = (x.round_ties_even() as i16).saturating_add(lane(&zero, at, 2) as i16);
                    match small {
                        Small::I8 => whole.clamp(-128, 127) as u64,
                        _ => whole.clamp(0, 255) as u64,
                    }
                })
            }
            Op::Convert(op, _) => {
                let a = self.vector(inst.uses[0])?;
                let (from, to) = match op {
                    Convert::Widen | Convert::IntToDouble | Convert::Extend => (4, 8),
                    Convert::Narrow | Convert::DoubleToInt | Convert::Truncate => (8, 4),
                    Convert::LongToDouble | Convert::DoubleToLong | Convert::SaturateToLong => (8, 8),
                };
                packed(count, to, |at| convert(op, lane(&a, at, from)))
            }
            _ => return Ok(None),
        }))
    }

    /// Operations that compute each element of those in its lane.
    fn computed(&self, inst: &Inst, lanes: Lanes) -> Ran<Option<Value>> {
        let (count, width) = (lanes.count(), lanes.width());
        let used = |at: usize| self.operand(inst, at, lanes);
        Ok(Some(match inst.op {
            Op::Binary(op, _) => {
                let (a, b) = (used(0)?, used(1)?);
                vector(lanes, |at| binary(op, lane(&a, at, width), lane(&b, at, width), width))
            }
            Op::Unary(op, _) => {
                let a = used(0)?;
                vector(lanes, |at| unary(op, lane(&a, at, width), width))
            }
            Op::Fma(_) | Op::FmaNeg(_) => {
                let (sum, a, b) = (used(0)?, used(1)?, used(2)?);
                let negative = matches!(inst.op, Op::FmaNeg(_));
                vector(lanes, |at| {
                    let at = |vector: &[u8; VECTOR]| lane(vector, at, width);
                    fma(at(&a), at(&b), at(&sum), negative, width)
                })
            }
            Op::FmaLane(by, _) => {
                let (sum, a, b) = (used(0)?, used(1)?, self.vector(inst.uses[2])?);
                let b = lane(&b, by.into(), width);
                vector(lanes, |at| fma(lane(&a, at, width), b, lane(&sum, at, width), false, width))
            }
            Op::Dot(signs, _) => {
                let (sum, a, b) = (used(0)?, used(1)?, used(2)?);
                vector(lanes, |at| signs.dot(lane(&sum, at, 4), lane(&a, at, 4), lane(&b, at, 4)))
            }
            Op::AddDotPairs(_) => {
                let (sum, a, b) = (used(0)?, used(1)?, used(2)?);
                vector(lanes, |at| {
                    let products = scalar::dot_pairs(lane(&a, at, 4) as i32, lane(&b, at, 4) as i32);
                    (lane(&sum, at, 4) as i32).wrapping_add(products) as u32 as u64
                })
            }
            Op::DotBf16(_) => {
                let (sum, a, b) = (used(0)?, used(1)?, used(2)?);
                vector(lanes, |at| {
                    let pair = |value| scalar::bf16_pair(lane(value, at, 4) as u32);
                    let ([a0, a1], [b0, b1]) = (pair(&a), pair(&b));
                    let high = scalar::add_bf16_product(f32::from_bits(lane(&sum, at, 4) as u32), a1, b1);
                    u64::from(scalar::add_bf16_product(high, a0, b0).to_bits())
                })
            }
            Op::DotLane(by, signs, _) => {
                let (sum, a, b) = (used(0)?, used(1)?, self.vector(inst.uses[2])?);
                let b = lane(&b, by.into(), 4);
                vector(lanes, |at| signs.dot(lane(&sum, at, 4), lane(&a, at, 4), b))
            }
            Op::MulAddHalves(part, _) | Op::MulHalves(part, _) => {
                let last = inst.uses.len() - 1;
                let (a, b) = (used(last - 1)?, used(last)?);
                let sum = if last == 2 { used(0)? } else { [0; VECTOR] };
                vector(lanes, |at| {
                    let half = |vector| lane(vector, at + usize::from(part) * count, 2) as i16;
                    let product = i32::from(half(&a)) * i32::from(half(&b));
                    (lane(&sum, at, 4) as i32).wrapping_add(product) as u64
                })
            }
            Op::MulAdd(_) => {
                let (a, b, c) = (used(0)?, used(1)?, used(2)?);
                vector(lanes, |at| {
                    fma(lane(&a, at, width), lane(&b, at, width), lane(&c, at, width), false, width)
                })
            }
            _ => return Ok(None),
        }))
    }
}

fn compare(op: Compare, a: u64, b: u64, width: usize) -> bool {
    let float = |bits: u64| if width == 8 { f64::from_bits(bits) } else { single(bits).into() };
    let int = |bits: u64| if width == 8 { bits as i64 } else { (bits as i32).into() };
    match op {
        Compare::Eq => float(a) == float(b),
        Compare::Ne => float(a) != float(b),
        Compare::Lt => float(a) < float(b),
        Compare::Le => float(a) <= float(b),
        Compare::IntEq => int(a) == int(b),
        Compare::IntGt => int(a) > int(b),
    }
}

fn fma(a: u64, b: u64, c: u64, negative: bool, width: usize) -> u64 {
    if width == 8 {
        let [a, b, c] = [a, b, c].map(f64::from_bits);
        return (if negative { -a } else { a }).mul_add(b, c).to_bits();
    }
    let [a, b, c] = [a, b, c].map(single);
    of_single((if negative { -a } else { a }).mul_add(b, c))
}

fn binary(op: Binary, a: u64, b: u64, width: usize) -> u64 {
    macro_rules! float {
        ($a:expr, $b:expr, $bits:expr) => {{
            let (a, b) = ($a, $b);
            $bits(match op {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                Binary::Min if a < b => a,
                Binary::Max if a > b => a,
                Binary::Minimum | Binary::Maximum if a.is_nan() => a,
                Binary::Minimum if a < b => a,
                Binary::Maximum if a > b => a,
                Binary::Rem => a % b,
                // The second operand, where the first is not chosen.
                _ => b,
            })
        }};
    }
    let [x, y] = [a, b].map(|bits| if width == 8 { bits as i64 } else { i64::from(bits as i32) });
    match op {
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::IntAdd => x.wrapping_add(y) as u64,
        Binary::IntSub => x.wrapping_sub(y) as u64,
        Binary::IntMul => x.wrapping_mul(y) as u64,
        Binary::IntMin => x.min(y) as u64,
        Binary::IntMax => x.max(y) as u64,
        Binary::DotPairs => u64::from(scalar::dot_pairs(a as i32, b as i32) as u32),
        Binary::DotBytes => {
            let product = |at: u32| i32::from((a >> at) as u8) * i32::from((b >> at) as i8);
            let half = |at: u32| (product(at) + product(at + 8)).clamp(i16::MIN.into(), i16::MAX.into());
            u64::from((half(0) & 0xffff | half(16) << 16) as u32)
        }
        Binary::DotHalves => {
            let product = |at: u32| i32::from((a >> at) as i8) * i32::from((b >> at) as i8);
            let half = |at: u32| product(at) + product(at + 8);
            u64::from((half(0) & 0xffff | half(16) << 16) as u32)
        }
        Binary::AddHalves => {
            let halves = i32::from(b as i16) + i32::from((b >> 16) as i16);
            u64::from((a as i32).wrapping_add(halves) as u32)
        }
        Binary::LowMul => u64::from(a as u32) * u64::from(b as u32),
        Binary::IntDiv if y == 0 => 0,
        Binary::IntDiv => x.wrapping_div(y) as u64,
        Binary::UnsignedDiv => a.checked_div(b).unwrap_or(0),
        Binary::ShlBy if b < 8 * width as u64 => a << b,
        Binary::ShrBy if b < 8 * width as u64 => a >> b,
        Binary::ShlBy | Binary::ShrBy => 0,
        Binary::ShrArithBy => (x >> b.min(8 * width as u64 - 1)) as u64,
        Binary::Add
        | Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::Min
        | Binary::Max
        | Binary::Minimum
        | Binary::Maximum
        | Binary::Rem => match width {
            8 => float!(f64::from_bits(a), f64::from_bits(b), f64::to_bits),
            _ => float!(single(a), single(b), of_single),
        },
    }
}

fn unary(op: Unary, a: u64, width: usize) -> u64 {
    macro_rules! float {
        ($a:expr, $bits:expr) => {{
            let a = $a;
            $bits(match op {
                Unary::Sqrt => a.sqrt(),
                Unary::Floor => a.floor(),
                Unary::Ceil => a.ceil(),
                Unary::Trunc => a.trunc(),
                _ => a.round_ties_even(),
            })
        }};
    }
    match op {
        Unary::ToInt => u64::from(to_int(single(a).into()) as u32),
        Unary::ToIntNearest => u64::from(to_int(f64::from(single(a)).round_ties_even()) as u32),
        Unary::FromInt => of_single(a as i32 as f32),
        Unary::RoundBf16 => u64::from(bf16::from_f32(single(a)).to_bits()) << 16,
        Unary::Shl(count) | Unary::Shr(count) if usize::from(count) >= 8 * width => 0,
        Unary::Shl(count) => a << count,
        Unary::Shr(count) => a >> count,
        Unary::ShrArith(count) if width == 8 => (a as i64 >> count.min(63)) as u64,
        Unary::ShrArith(count) => u64::from((a as i32 >> count.min(31)) as u32),
        Unary::ShrHalves(count) => {
            let half = |bits: u64| (bits & 0xffff).checked_shr(count.into()).unwrap_or(0);
            half(a) | half(a >> 16) << 16
        }
        Unary::ShrArithHalves(count) => {
            let half = |shift: u32| u64::from(((a >> shift) as i16 >> count.min(15)) as u16);
            half(0) | half(16) << 16
        }
        Unary::Sqrt | Unary::Floor | Unary::Ceil | Unary::Trunc | Unary::Nearest => match width {
            8 => float!(f64::from_bits(a), f64::to_bits),
            _ => float!(single(a), of_single),
        },
    }
}

/// Toward zero; `i32::MIN` for what does not fit.
fn to_int(value: f64) -> i32 {
    let whole = value.trunc();
    if whole >= f64::from(i32::MIN) && whole <= f64::from(i32::MAX) { whole as i32 } else { i32::MIN }
}

fn convert(op: Convert, a: u64) -> u64 {
    match op {
        Convert::Widen => f64::from(single(a)).to_bits(),
        Convert::Narrow => of_single(f64::from_bits(a) as f32),
        Convert::IntToDouble => f64::from(a as i32).to_bits(),
        Convert::DoubleToInt => u64::from(to_int(f64::from_bits(a)) as u32),
        Convert::Extend => i64::from(a as i32) as u64,
        Convert::Truncate => a & 0xffff_ffff,
        Convert::LongToDouble => (a as i64 as f64).to_bits(),
        Convert::SaturateToLong => f64::from_bits(a) as i64 as u64,
        Convert::DoubleToLong => {
            let whole = f64::from_bits(a).trunc();
            let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&whole);
            if fits { whole as i64 as u64 } else { i64::MIN as u64 }
        }
    }
}
