//! Loads and stores of elements. Those of less than 32 bits are widened and packed on the way; one alone goes through a
//! general register.

use super::address::Place;
use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use crate::graph::DType;
use crate::loops::{Buf, Expr, Index};
use crate::vector::ir::{Binary, Class, Compare, Inst, Lanes, Mem, Op, Reg, Small, Unary};

/// The small element that a type is in memory.
fn small(dtype: DType) -> Option<Small> {
    match dtype {
        DType::I8 => Some(Small::I8),
        DType::U8 | DType::Bool => Some(Small::U8),
        DType::I16 => Some(Small::I16),
        DType::U16 | DType::BF16 => Some(Small::U16),
        DType::F16 => Some(Small::F16),
        _ => None,
    }
}

impl Select<'_> {
    pub fn load(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        let dtype = self.kernel.buffers[buf].dtype;
        let lanes = self.lanes(Form::of(dtype)?.width())?;
        let place = self.place_of(index, 1)?;
        let contiguous = matches!(place, Place::Contiguous(_));
        let (Place::Contiguous(index) | Place::Uniform(index)) = place;
        let mem = self.mem(buf, &index)?;
        let Some(small) = small(dtype) else {
            let op = if contiguous || lanes.is_scalar() { Op::Load(lanes) } else { Op::Broadcast(lanes) };
            return Ok(Val::of(self.inst(op, Class::Vec, vec![], Some(mem)), lanes));
        };
        let value = if contiguous && !lanes.is_scalar() {
            Val::of(self.inst(Op::LoadSmall(small, lanes), Class::Vec, vec![], Some(mem)), lanes)
        } else if small == Small::F16 && !lanes.is_scalar() && self.isa.has(Op::BroadcastHalf) {
            let half = self.inst(Op::BroadcastHalf, Class::Vec, vec![], Some(mem));
            Val::of(self.vec(Op::Unpack(lanes), vec![half]), lanes)
        } else {
            let general = self.inst(Op::LoadPart(small), Class::Int, vec![], Some(mem));
            let scalar = self.vec(Op::FromGeneral, vec![general]);
            match small {
                Small::F16 => Val::of(self.vec(Op::Unpack(Lanes::X1), vec![scalar]), Lanes::X1),
                _ => Val::of(scalar, Lanes::X1),
            }
        };
        match dtype {
            DType::BF16 => self.simple(Unary::Shl(16), value),
            DType::Bool => self.test(Compare::IntGt, value, Val::int(0)),
            _ => Ok(value),
        }
    }

    /// Four elements of 8 bits as one lane of 32 bits.
    pub fn load_word(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        let lanes = self.lanes(4)?;
        let (op, index) = match self.place_of(index, 4)? {
            Place::Contiguous(index) => (Op::Load(lanes), index),
            Place::Uniform(index) if lanes.is_scalar() => (Op::Load(lanes), index),
            Place::Uniform(index) => (Op::Broadcast(lanes), index),
        };
        let mem = self.mem(buf, &index)?;
        Ok(Val::of(self.inst(op, Class::Vec, vec![], Some(mem)), lanes))
    }

    pub fn store_element(&mut self, buf: Buf, index: &Index, value: &Expr) -> Selected<()> {
        let dtype = self.kernel.buffers[buf].dtype;
        let width = Form::of(dtype)?.width();
        let value = match value {
            // Any integer will do for what does not fit, and packing takes any.
            Expr::Cast { to: DType::U8, saturate: false, x }
                if dtype == DType::U8 && self.kernel.dtype(x) == DType::F32 =>
            {
                let x = self.eval(x)?;
                self.cast(DType::F32, DType::I32, false, x)?
            }
            value => self.eval(value)?,
        };
        let (lanes, index) = match self.place_of(index, 1)? {
            Place::Contiguous(index) => (self.lanes(width)?, index),
            Place::Uniform(index) if self.group.is_none() => (self.lanes(width)?, index),
            Place::Uniform(_) => return refuse("all lanes to one element"),
        };
        if lanes.is_scalar() && value.is_vector() {
            return refuse("a vector where a scalar is wanted");
        }
        match small(dtype) {
            None => {
                let value = self.spread(value, lanes);
                let mem = self.mem(buf, &index)?;
                self.store(lanes, value, mem);
            }
            Some(small) => {
                let value = self.lanes_in_memory(dtype, small, value, lanes)?;
                let mem = self.mem(buf, &index)?;
                self.store_small(small, lanes, value, mem)?;
            }
        }
        Ok(())
    }

    /// A value as it is in memory: packed, if there are several lanes.
    fn lanes_in_memory(&mut self, dtype: DType, small: Small, value: Val, lanes: Lanes) -> Selected<Reg> {
        if let (DType::F16, Some(packed), true) =
            (dtype, value.packed, value.is_vector() || lanes.is_scalar())
        {
            return Ok(packed);
        }
        let value = match dtype {
            DType::Bool if !value.is_constant() => {
                let mask = self.narrow_mask(value)?;
                let bits = self.apply(Op::MaskBits, &[mask])?;
                self.pair(Binary::And, bits, Val::int(1))?
            }
            DType::BF16 => self.simple(Unary::Shr(16), value)?,
            _ => value,
        };
        let value = self.spread(value, lanes);
        Ok(match lanes.is_scalar() && small != Small::F16 {
            true => value,
            false => self.vec(Op::Pack(small, lanes), vec![value]),
        })
    }

    fn narrow_mask(&mut self, mask: Val) -> Selected<Val> {
        let lanes = if mask.is_vector() { self.lanes(4)? } else { Lanes::X1 };
        Ok(Val::of(self.spread(mask, lanes), lanes))
    }

    fn store_small(&mut self, small: Small, lanes: Lanes, value: Reg, mem: Mem) -> Selected<()> {
        if lanes.is_scalar() {
            let general = self.int(Op::ToGeneral, vec![value]);
            self.push(Inst { op: Op::StorePart(small), dst: None, uses: vec![general], mem: Some(mem) });
            return Ok(());
        }
        let packed = match small.bytes() * lanes.count() {
            4 => Lanes::X1,
            8 => Lanes::D1,
            16 => Lanes::X4,
            32 => Lanes::X8,
            bytes => return refuse(format!("a store of {bytes} bytes")),
        };
        self.store(packed, value, mem);
        Ok(())
    }
}
