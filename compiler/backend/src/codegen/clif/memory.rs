//! Loads and stores.

use cranelift_codegen::ir::{ConstantData, InstBuilder, MemFlagsData, Type, Value, types};

use super::types::of_lanes;
use super::{Emitted, Emitter, Shift};
use onnxc_machine::vector::ir::{Address, Inst, Lanes, Mem, Small};

/// Buffers are valid by the calling convention. Vectors may lie at any element's address.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

impl Emitter<'_> {
    fn address(&mut self, inst: &Inst) -> Emitted<(Value, i32)> {
        match inst.mem {
            Some(Mem::At(Address { base, scaled: None, disp })) => Ok((self.int(base)?, disp)),
            Some(_) => Err("an address that Cranelift makes by itself".into()),
            None => Err("the operand in memory is missing".into()),
        }
    }

    pub(super) fn load(&mut self, inst: &Inst, ty: Type) -> Emitted<Value> {
        let (base, disp) = self.address(inst)?;
        Ok(self.b.ins().load(ty, flags(), base, disp))
    }

    pub(super) fn load_lanes(&mut self, inst: &Inst, lanes: Lanes, ty: Type) -> Emitted<Value> {
        match lanes {
            Lanes::X2 => self.load(inst, types::F64),
            _ => self.load(inst, ty),
        }
    }

    pub(super) fn broadcast(&mut self, inst: &Inst, ty: Type) -> Emitted<Value> {
        if !ty.is_vector() {
            return self.load(inst, ty);
        }
        let element = self.load(inst, ty.lane_type())?;
        Ok(self.b.ins().splat(ty, element))
    }

    pub(super) fn store(&mut self, inst: &Inst, lanes: Lanes) -> Emitted {
        let (base, disp) = self.address(inst)?;
        let own = self.types.of_reg(inst.uses[0]);
        let ty = match lanes {
            Lanes::X2 => types::F64,
            // A constant, or the lower part of a vector, as what moves it best.
            _ if lanes.is_scalar() && own.is_vector() => of_lanes(lanes, true),
            _ if own.is_vector() || own.bits() as usize == 8 * lanes.bytes() => own,
            _ => of_lanes(lanes, false),
        };
        let value = match (lanes, self.types.constant(inst.uses[0])) {
            // Both lanes are one number here.
            (Lanes::X2, Some(bits)) => {
                let lane = bits & u64::from(u32::MAX);
                self.constant(ty, lane << 32 | lane)
            }
            _ => self.used_as(inst.uses[0], ty)?,
        };
        self.b.ins().store(flags(), value, base, disp);
        Ok(())
    }

    /// Small elements, widened to lanes of 32 bits.
    pub(super) fn load_small(&mut self, inst: &Inst, small: Small, lanes: Lanes) -> Emitted<Value> {
        let (base, disp) = self.address(inst)?;
        let packed = match small.bytes() * lanes.count() {
            2 => {
                let mut bits = self.b.ins().uload16(types::I32, flags(), base, disp);
                if self.isa.is_big_endian {
                    // The first bytes of a lane are its highest.
                    bits = self.shifted(bits, 16, Shift::Left);
                }
                self.cast(bits, types::I32X4)?
            }
            4 => {
                let bits = self.b.ins().load(types::F32, flags(), base, disp);
                self.cast(bits, types::F32X4)?
            }
            8 => {
                let bits = self.b.ins().load(types::F64, flags(), base, disp);
                self.cast(bits, types::F64X2)?
            }
            bytes => return Err(format!("{bytes} bytes of small elements")),
        };
        let signed = matches!(small, Small::I8 | Small::I16);
        let mut widen = |value, from| {
            let value = self.bitcast(from, value);
            if signed { self.b.ins().swiden_low(value) } else { self.b.ins().uwiden_low(value) }
        };
        let halves = if small.bytes() == 1 { widen(packed, types::I8X16) } else { packed };
        Ok(widen(halves, types::I16X8))
    }

    pub(super) fn load_part(&mut self, inst: &Inst, small: Small) -> Emitted<Value> {
        let (base, disp) = self.address(inst)?;
        Ok(match small {
            Small::I8 => self.b.ins().sload8(types::I64, flags(), base, disp),
            Small::U8 => self.b.ins().uload8(types::I64, flags(), base, disp),
            Small::I16 => self.b.ins().sload16(types::I64, flags(), base, disp),
            Small::U16 | Small::F16 => self.b.ins().uload16(types::I64, flags(), base, disp),
        })
    }

    pub(super) fn store_part(&mut self, inst: &Inst, small: Small) -> Emitted {
        let (base, disp) = self.address(inst)?;
        let value = self.int(inst.uses[0])?;
        match small.bytes() {
            1 => self.b.ins().istore8(flags(), value, base, disp),
            _ => self.b.ins().istore16(flags(), value, base, disp),
        };
        Ok(())
    }

    /// Packs the low `to` bytes of every 32-bit lane into the low end of the register.
    pub(super) fn pack(&mut self, value: Value, to: usize) -> Value {
        if self.isa.has_byte_shuffle {
            return self.pick(value, 4, to);
        }
        // By instructions that halve lanes with saturation: lanes are first brought into the range that they keep.
        let high = self.shifted(value, 16, Shift::Left);
        let lanes = self.shifted(high, 16, Shift::Arithmetic);
        let halves = self.b.ins().snarrow(lanes, lanes);
        if to == 2 {
            return halves;
        }
        let mask = self.constant(types::I16X8, 0xff);
        let low = self.b.ins().band(halves, mask);
        self.b.ins().unarrow(low, low)
    }

    /// The low 32 bits of both 64-bit lanes.
    pub(super) fn low_halves(&mut self, value: Value) -> Value {
        self.pick(value, 8, 4)
    }

    /// The low `to` bytes of every lane of `from` bytes.
    fn pick(&mut self, value: Value, from: usize, to: usize) -> Value {
        let lanes = 16 / from;
        let low = if self.isa.is_big_endian { from - to } else { 0 };
        self.shuffle(value, |at| (at / to % lanes) * from + low + at % to)
    }

    /// The bytes of lanes of 32 bits in the other order.
    pub(super) fn swap_bytes(&mut self, value: Value) -> Value {
        if !self.type_of(value).is_vector() {
            return self.b.ins().bswap(value);
        }
        let bytes = self.shuffle(value, |at| at ^ 3);
        self.bitcast(types::I32X4, bytes)
    }

    /// The bytes of a vector that `source` numbers.
    fn shuffle(&mut self, value: Value, source: impl Fn(usize) -> usize) -> Value {
        let mask: Vec<u8> = (0..16).map(|at| source(at) as u8).collect();
        let value = self.bitcast(types::I8X16, value);
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(mask.as_slice()));
        self.b.ins().shuffle(value, value, mask)
    }
}
