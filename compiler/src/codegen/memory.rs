//! Loads and stores of elements, one or a vector at a time.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};

use super::expr::{Kind, Val};
use super::index::Place;
use super::kernel::Gen;
use super::lane::{int_type, int_vector, is_f32, is_narrow_float, vector_type};
use crate::error::Result;
use crate::graph::DType;
use crate::loops::{Buf, Index};

/// What was loaded: buffer, first element, lanes, whether as bits.
pub type LoadKey = (Buf, Index, usize, bool);

/// Buffers are valid by the calling convention. Vectors may lie at any element's address.
fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

/// The integer dtype that moves the bits of a narrow float.
pub fn bits_dtype(dtype: DType) -> DType {
    if dtype.size() == 2 { DType::U16 } else { DType::U8 }
}

impl Gen<'_, '_> {
    /// Loads an element, or one for each lane; `raw` gives the bits of a narrow float as an unsigned integer.
    pub fn load(&mut self, buf: Buf, index: &Index, raw: bool) -> Result<Val> {
        let dtype = self.element_dtype(buf, raw);
        let index = self.resolve(index)?;
        match self.place(index)? {
            Place::Uniform(index) => Ok(Val::scalar(dtype, self.load_scalar(buf, &index, raw)?)),
            Place::Contiguous(first) => {
                let lanes = self.lanes();
                let key = (buf, first, lanes, raw);
                if let Some(&value) = self.loads.get(&key) {
                    return Ok(Val::vector(dtype, value));
                }
                let (base, offset) = self.address(buf, &key.1)?;
                let value = self.load_vector(base, offset, dtype, lanes)?;
                self.loads.insert(key, value);
                Ok(Val::vector(dtype, value))
            }
            Place::Lanes(elements) => {
                let scalars = elements
                    .iter()
                    .map(|index| self.load_scalar(buf, index, raw))
                    .collect::<Result<Vec<_>>>()?;
                Ok(Val::vector(dtype, self.join_lanes(&scalars, dtype)))
            }
        }
    }

    /// Four elements of 8 bits as the bytes of an i32; lanes are words one after the other.
    pub fn load_word(&mut self, buf: Buf, index: &Index) -> Result<Val> {
        let index = self.resolve(index)?;
        let word = |cx: &mut Self, index: &Index| {
            let (base, offset) = cx.address(buf, index)?;
            Ok(cx.b.ins().load(types::I32, flags(), base, offset))
        };
        let lanes = match self.place(index)? {
            Place::Uniform(index) => return Ok(Val::scalar(DType::I32, word(self, &index)?)),
            Place::Lanes(lanes) => lanes,
            Place::Contiguous(_) => return Err(self.internal("words that overlap".to_string())),
        };
        let next = |pair: &[Index]| pair[1] == pair[0].add(&Index::int(4));
        let value = if lanes.len() == 4 && lanes.windows(2).all(next) {
            let (base, offset) = self.address(buf, &lanes[0])?;
            self.b.ins().load(types::I32X4, flags(), base, offset)
        } else {
            let words = lanes.iter().map(|index| word(self, index)).collect::<Result<Vec<_>>>()?;
            self.join_lanes(&words, DType::I32)
        };
        Ok(Val::vector(DType::I32, value))
    }

    fn element_dtype(&self, buf: Buf, raw: bool) -> DType {
        let dtype = self.kernel.buffers[buf].dtype;
        if raw { bits_dtype(dtype) } else { dtype }
    }

    pub fn load_scalar(&mut self, buf: Buf, index: &Index, raw: bool) -> Result<Value> {
        let key = (buf, index.clone(), 1, raw);
        if let Some(&value) = self.loads.get(&key) {
            return Ok(value);
        }
        let value = self.load_element(buf, index, raw)?;
        self.loads.insert(key, value);
        Ok(value)
    }

    /// Loads an element whether or not it was loaded before.
    pub fn load_element(&mut self, buf: Buf, index: &Index, raw: bool) -> Result<Value> {
        let dtype = self.element_dtype(buf, raw);
        let (base, offset) = self.address(buf, index)?;
        Ok(match dtype {
            DType::F32 => self.b.ins().load(types::F32, flags(), base, offset),
            DType::F64 => self.b.ins().load(types::F64, flags(), base, offset),
            _ if is_f32(dtype) => {
                let bits = if dtype.size() == 2 {
                    self.b.ins().uload16(types::I32, flags(), base, offset)
                } else {
                    self.b.ins().uload8(types::I32, flags(), base, offset)
                };
                self.decode(bits, dtype)?
            }
            _ => {
                let ty = int_type(8 * dtype.size() as u32);
                let value = self.b.ins().load(ty, flags(), base, offset);
                self.loaded(value, dtype)
            }
        })
    }

    /// Brings an integer or bool from memory into its form in registers.
    fn loaded(&mut self, value: Value, dtype: DType) -> Value {
        match dtype {
            DType::Bool => self.icmp_int(IntCC::NotEqual, value, 0),
            _ if dtype.is_packed() => self.wrap(value, dtype),
            _ => value,
        }
    }

    fn load_vector(&mut self, base: Value, offset: i32, dtype: DType, lanes: usize) -> Result<Value> {
        let size = dtype.size();
        let width = if is_f32(dtype) { 4 } else { 16 / lanes };
        let packed = match (size * lanes, dtype) {
            (16, DType::F32 | DType::F64) => {
                return Ok(self.b.ins().load(vector_type(dtype, lanes), flags(), base, offset));
            }
            (16, _) => self.b.ins().load(int_vector(16 / size), flags(), base, offset),
            (8, _) => {
                let low = self.b.ins().load(types::F64, flags(), base, offset);
                self.b.ins().scalar_to_vector(types::F64X2, low)
            }
            (4, _) => {
                let low = self.b.ins().load(types::F32, flags(), base, offset);
                self.b.ins().scalar_to_vector(types::F32X4, low)
            }
            _ => {
                let low = self.b.ins().uload16(types::I32, flags(), base, offset);
                self.b.ins().scalar_to_vector(types::I32X4, low)
            }
        };
        if dtype == DType::F32 {
            return Ok(self.bitcast(types::F32X4, packed));
        }
        let mut value = packed;
        let mut bytes = size;
        while bytes < width {
            value = self.bitcast(int_vector(16 / bytes), value);
            value = if dtype.is_signed_int() {
                self.b.ins().swiden_low(value)
            } else {
                self.b.ins().uwiden_low(value)
            };
            bytes *= 2;
        }
        value = self.bitcast(int_vector(16 / width), value);
        if is_narrow_float(dtype) { self.decode(value, dtype) } else { Ok(self.loaded(value, dtype)) }
    }

    /// Stores an element, or one for each lane; `raw` says that the value is the bits of a narrow float.
    pub fn store(&mut self, buf: Buf, index: &Index, value: Val, raw: bool) -> Result<()> {
        let dtype = self.element_dtype(buf, raw);
        self.stores(value, dtype)?;
        let index = self.resolve(index)?;
        match self.place(index)? {
            Place::Uniform(index) => {
                if matches!(value.kind, Kind::Vector(_)) {
                    return Err(self.internal(format!("all lanes store to element {index:?}")));
                }
                let value = self.scalar(value);
                self.store_scalar(buf, &index, value, dtype)?;
            }
            Place::Contiguous(first) => {
                let value = self.vector_of(value);
                let (base, offset) = self.address(buf, &first)?;
                self.store_vector(base, offset, value, dtype)?;
            }
            Place::Lanes(elements) => {
                for (lane, index) in elements.iter().enumerate() {
                    let scalar = self.lane_of(value, lane);
                    self.store_scalar(buf, index, scalar, dtype)?;
                }
            }
        }
        // Buffers that share memory are those of elementwise kernels in place, which load an element before
        // they store it.
        self.loads.retain(|key, _| key.0 != buf);
        Ok(())
    }

    fn store_scalar(&mut self, buf: Buf, index: &Index, value: Value, dtype: DType) -> Result<()> {
        let (base, offset) = self.address(buf, index)?;
        if is_narrow_float(dtype) {
            let bits = self.encode_exact(value, dtype)?;
            if dtype.size() == 2 {
                self.b.ins().istore16(flags(), bits, base, offset);
            } else {
                self.b.ins().istore8(flags(), bits, base, offset);
            }
        } else {
            self.b.ins().store(flags(), value, base, offset);
        }
        Ok(())
    }

    fn store_vector(&mut self, base: Value, offset: i32, value: Value, dtype: DType) -> Result<()> {
        let lanes = self.lanes();
        let size = dtype.size();
        let mut value = value;
        if is_narrow_float(dtype) {
            value = self.encode_exact(value, dtype)?;
        } else if dtype == DType::Bool {
            value = self.band_int(value, 1);
        }
        let width = self.type_of(value).lane_bits() as usize / 8;
        if size < width {
            value = self.pick_bytes(value, width, size, types::I8X16);
        }
        match size * lanes {
            16 => self.b.ins().store(flags(), value, base, offset),
            8 => {
                let value = self.bitcast(types::F64X2, value);
                let low = self.b.ins().extractlane(value, 0);
                self.b.ins().store(flags(), low, base, offset)
            }
            4 => {
                let value = self.bitcast(types::F32X4, value);
                let low = self.b.ins().extractlane(value, 0);
                self.b.ins().store(flags(), low, base, offset)
            }
            _ => {
                let value = self.bitcast(types::I16X8, value);
                let low = self.b.ins().extractlane(value, 0);
                self.b.ins().store(flags(), low, base, offset)
            }
        };
        Ok(())
    }

    /// Lanes of the current vector loop.
    pub fn lanes(&self) -> usize {
        self.group.as_ref().map_or(1, |group| group.lanes)
    }
}
