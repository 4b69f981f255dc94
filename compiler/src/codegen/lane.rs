//! What scalar and vector code share: how elements of each dtype are held in registers, and instructions
//! that work on both.
//!
//! A vector of `lanes` elements fills one 128-bit register, each lane `128 / lanes` bits wide: integers are
//! extended to that width and kept in the range of their dtype, bools are masks of it. f32 is the
//! exception: two lanes of it are the low half of an `f32x4`. Floats narrower than 32 bits are held as the
//! f32 of the same value. Complex numbers are moved, taken apart and put together, as the integers that have their bits.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::immediates::{Ieee32, Ieee64};
use cranelift_codegen::ir::{ConstantData, Endianness, InstBuilder, MemFlagsData, Type, Value, types};

use super::kernel::Gen;
use crate::graph::DType;

/// Bits of the integer register that holds a scalar of an integer dtype or bool.
pub fn container_bits(dtype: DType) -> u32 {
    dtype.bits().max(8)
}

/// Whether values of this dtype are held as f32.
pub fn is_f32(dtype: DType) -> bool {
    dtype.is_float() && dtype != DType::F64
}

/// Whether elements differ from their value in registers.
pub fn is_narrow_float(dtype: DType) -> bool {
    is_f32(dtype) && dtype != DType::F32
}

pub fn int_type(bits: u32) -> Type {
    match bits {
        8 => types::I8,
        16 => types::I16,
        32 => types::I32,
        64 => types::I64,
        _ => types::I128,
    }
}

pub fn scalar_type(dtype: DType) -> Type {
    match dtype {
        DType::F64 => types::F64,
        _ if dtype.is_float() => types::F32,
        _ => int_type(container_bits(dtype)),
    }
}

/// Type of a vector of 2, 4, 8 or 16 lanes.
pub fn vector_type(dtype: DType, lanes: usize) -> Type {
    match dtype {
        DType::F64 => types::F64X2,
        _ if dtype.is_float() => types::F32X4,
        _ => int_vector(lanes),
    }
}

pub fn int_vector(lanes: usize) -> Type {
    match lanes {
        2 => types::I64X2,
        4 => types::I32X4,
        8 => types::I16X8,
        _ => types::I8X16,
    }
}

pub fn rep_type(dtype: DType, lanes: usize) -> Type {
    if lanes == 1 { scalar_type(dtype) } else { vector_type(dtype, lanes) }
}

impl Gen<'_, '_> {
    pub fn type_of(&self, value: Value) -> Type {
        self.b.func.dfg.value_type(value)
    }

    /// An integer constant; in all lanes for a vector type.
    pub fn int(&mut self, ty: Type, value: i64) -> Value {
        if ty.is_vector() {
            let size = ty.lane_bits() as usize / 8;
            return self.bytes(ty, &value.to_le_bytes()[..size]);
        }
        let unused = 64 - ty.bits();
        self.b.ins().iconst(ty, ((value as u64) << unused >> unused) as i64)
    }

    /// A float constant; in all lanes for a vector type.
    pub fn float(&mut self, ty: Type, value: f64) -> Value {
        match ty {
            types::F32 => self.b.ins().f32const(Ieee32::with_float(value as f32)),
            types::F64 => self.b.ins().f64const(Ieee64::with_float(value)),
            types::F64X2 => self.bytes(ty, &value.to_le_bytes()),
            _ => self.bytes(ty, &(value as f32).to_le_bytes()),
        }
    }

    /// A vector constant that repeats one lane's bytes.
    fn bytes(&mut self, ty: Type, lane: &[u8]) -> Value {
        let data: Vec<u8> = lane.iter().copied().cycle().take(16).collect();
        let constant = self.b.func.dfg.constants.insert(ConstantData::from(data.as_slice()));
        self.b.ins().vconst(ty, constant)
    }

    pub fn bitcast(&mut self, ty: Type, value: Value) -> Value {
        if self.type_of(value) == ty {
            return value;
        }
        let flags = MemFlagsData::new().with_endianness(Endianness::Little);
        self.b.ins().bitcast(ty, flags, value)
    }

    pub fn shl(&mut self, value: Value, count: u32) -> Value {
        if count == 0 {
            return value;
        }
        let count = self.b.ins().iconst(types::I32, i64::from(count));
        self.b.ins().ishl(value, count)
    }

    pub fn ushr(&mut self, value: Value, count: u32) -> Value {
        if count == 0 {
            return value;
        }
        let count = self.b.ins().iconst(types::I32, i64::from(count));
        self.b.ins().ushr(value, count)
    }

    pub fn sshr(&mut self, value: Value, count: u32) -> Value {
        if count == 0 {
            return value;
        }
        let count = self.b.ins().iconst(types::I32, i64::from(count));
        self.b.ins().sshr(value, count)
    }

    pub fn band_int(&mut self, value: Value, mask: i64) -> Value {
        let mask = self.int(self.type_of(value), mask);
        self.b.ins().band(value, mask)
    }

    pub fn bor_int(&mut self, value: Value, mask: i64) -> Value {
        let mask = self.int(self.type_of(value), mask);
        self.b.ins().bor(value, mask)
    }

    pub fn add_int(&mut self, value: Value, other: i64) -> Value {
        if other == 0 {
            return value;
        }
        let other = self.int(self.type_of(value), other);
        self.b.ins().iadd(value, other)
    }

    /// Lanes of `a` where the condition (a bool, or a mask of lanes of the same width) holds, else of `b`.
    pub fn choose(&mut self, condition: Value, a: Value, b: Value) -> Value {
        let ty = self.type_of(a);
        if ty.is_vector() {
            let condition = self.bitcast(ty, condition);
            self.b.ins().bitselect(condition, a, b)
        } else {
            self.b.ins().select(condition, a, b)
        }
    }

    /// Integer comparison: a bool, or a mask.
    pub fn icmp(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        if self.type_of(a) == types::I64X2 {
            // There is no unsigned comparison of 64-bit lanes on x86-64.
            return self.icmp_64x2(cc, a, b);
        }
        self.b.ins().icmp(cc, a, b)
    }

    fn icmp_64x2(&mut self, cc: IntCC, a: Value, b: Value) -> Value {
        let signed = match cc {
            IntCC::UnsignedLessThan => IntCC::SignedLessThan,
            IntCC::UnsignedLessThanOrEqual => IntCC::SignedLessThanOrEqual,
            IntCC::UnsignedGreaterThan => IntCC::SignedGreaterThan,
            IntCC::UnsignedGreaterThanOrEqual => IntCC::SignedGreaterThanOrEqual,
            other => return self.b.ins().icmp(other, a, b),
        };
        let sign = self.int(types::I64X2, i64::MIN);
        let (a, b) = (self.b.ins().bxor(a, sign), self.b.ins().bxor(b, sign));
        self.b.ins().icmp(signed, a, b)
    }

    pub fn icmp_int(&mut self, cc: IntCC, a: Value, b: i64) -> Value {
        let b = self.int(self.type_of(a), b);
        self.icmp(cc, a, b)
    }

    /// Mask of `f32x4` comparisons as a mask of `lanes` lanes.
    pub fn widen_mask(&mut self, mask: Value, lanes: usize) -> Value {
        if lanes == 2 && self.type_of(mask) == types::I32X4 { self.b.ins().swiden_low(mask) } else { mask }
    }

    /// The mask of `lanes` lanes in the width of `dtype`'s lanes.
    pub fn mask_for(&mut self, mask: Value, dtype: DType, lanes: usize) -> Value {
        if lanes == 2 && is_f32(dtype) { self.low_halves(mask) } else { mask }
    }

    /// Low 32 bits of both lanes of an `i64x2`, in the low half of an `i32x4`.
    pub fn low_halves(&mut self, value: Value) -> Value {
        self.pick_bytes(value, 8, 4, types::I32X4)
    }

    /// Packs the low `to` bytes of every `from`-byte lane into the low end of the register.
    pub fn pick_bytes(&mut self, value: Value, from: usize, to: usize, ty: Type) -> Value {
        // Doublewords are picked by an instruction that all have.
        if !self.target.has_byte_shuffle && to < 4 {
            return self.pick_by_halving(value, from, to, ty);
        }
        let lanes = 16 / from;
        let mask: Vec<u8> = (0..16).map(|at| ((at / to % lanes) * from + at % to) as u8).collect();
        let value = self.bitcast(types::I8X16, value);
        let mask = self.b.func.dfg.immediates.push(ConstantData::from(mask.as_slice()));
        let packed = self.b.ins().shuffle(value, value, mask);
        self.bitcast(ty, packed)
    }

    /// [`Gen::pick_bytes`] by instructions that halve lanes with saturation: lanes are first brought into the range
    /// that they keep.
    fn pick_by_halving(&mut self, value: Value, from: usize, to: usize, ty: Type) -> Value {
        let (mut value, mut width) = (value, from);
        if width == 8 {
            (value, width) = (self.pick_bytes(value, 8, 4, types::I32X4), 4);
        }
        if width == 4 {
            let lanes = self.bitcast(types::I32X4, value);
            let high = self.shl(lanes, 16);
            let lanes = self.sshr(high, 16);
            (value, width) = (self.b.ins().snarrow(lanes, lanes), 2);
        }
        if width > to {
            let lanes = self.bitcast(types::I16X8, value);
            let low = self.band_int(lanes, 0xff);
            value = self.b.ins().unarrow(low, low);
        }
        self.bitcast(ty, value)
    }

    /// Comparison of floats: a bool, or a mask of `lanes` lanes.
    pub fn fcmp(&mut self, cc: FloatCC, a: Value, b: Value, lanes: usize) -> Value {
        let (a, b) = (self.in_register(a), self.in_register(b));
        let mask = self.b.ins().fcmp(cc, a, b);
        self.widen_mask(mask, lanes)
    }

    /// A vector of floats that a comparison does not load by itself: without AVX, `cmpps` wants 16-byte alignment of what
    /// it loads, which Cranelift's x64 back end does not heed.
    fn in_register(&mut self, vector: Value) -> Value {
        let ty = self.type_of(vector);
        if !ty.is_vector() {
            return vector;
        }
        let bits = self.bitcast(int_vector(ty.lane_count() as usize), vector);
        self.bitcast(ty, bits)
    }

    /// One lane as a scalar.
    pub fn extract(&mut self, vector: Value, dtype: DType, lane: usize) -> Value {
        let element = self.b.ins().extractlane(vector, lane as u8);
        if dtype.is_float() {
            return element;
        }
        let element = self.resize(element, scalar_type(dtype), false);
        if dtype == DType::Bool { self.band_int(element, 1) } else { element }
    }

    /// A scalar in the width of a lane.
    fn widen_scalar(&mut self, scalar: Value, dtype: DType, lanes: usize) -> Value {
        if dtype.is_float() {
            return scalar;
        }
        let wide = self.resize(scalar, int_type(128 / lanes as u32), dtype.is_signed_int());
        if dtype == DType::Bool { self.b.ins().ineg(wide) } else { wide }
    }

    pub fn insert(&mut self, vector: Value, scalar: Value, dtype: DType, lane: usize, lanes: usize) -> Value {
        let wide = self.widen_scalar(scalar, dtype, lanes);
        self.b.ins().insertlane(vector, wide, lane as u8)
    }

    /// A scalar in all lanes.
    pub fn splat(&mut self, scalar: Value, dtype: DType, lanes: usize) -> Value {
        let wide = self.widen_scalar(scalar, dtype, lanes);
        self.b.ins().splat(vector_type(dtype, lanes), wide)
    }

    /// The vector of these scalars.
    pub fn join_lanes(&mut self, scalars: &[Value], dtype: DType) -> Value {
        let lanes = scalars.len();
        let ty = vector_type(dtype, lanes);
        let first = self.widen_scalar(scalars[0], dtype, lanes);
        let mut vector = if ty.lane_bits() >= 32 {
            self.b.ins().scalar_to_vector(ty, first)
        } else {
            self.b.ins().splat(ty, first)
        };
        for (lane, &scalar) in scalars.iter().enumerate().skip(1) {
            vector = self.insert(vector, scalar, dtype, lane, lanes);
        }
        vector
    }

    /// An integer scalar extended or cut to another width.
    pub fn resize(&mut self, value: Value, to: Type, signed: bool) -> Value {
        let from = self.type_of(value);
        if from.bits() == to.bits() {
            value
        } else if from.bits() > to.bits() {
            self.b.ins().ireduce(to, value)
        } else if signed {
            self.b.ins().sextend(to, value)
        } else {
            self.b.ins().uextend(to, value)
        }
    }

    /// Brings lanes or a scalar back into the range of an integer dtype, after arithmetic modulo the
    /// register's width.
    pub fn wrap(&mut self, value: Value, dtype: DType) -> Value {
        let width = self.type_of(value).lane_bits();
        let bits = dtype.bits();
        if dtype == DType::Bool || bits >= width {
            value
        } else if dtype.is_signed_int() {
            let high = self.shl(value, width - bits);
            self.sshr(high, width - bits)
        } else {
            self.band_int(value, (1i64 << bits) - 1)
        }
    }
}
