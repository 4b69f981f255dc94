//! Loads and stores of elements. Those of less than 32 bits are widened and packed on the way; one alone goes through a
//! general register.

use super::address::LaneIndex;
use super::narrow::is_narrow;
use super::value::{Form, Val};
use super::{Select, Selected, refuse};
use onnxc_ir::graph::DType;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_loops::{Buf, Expr, Index};
use onnxc_machine::vector::ir::{Binary, Class, Compare, Inst, Lanes, Mem, Op, Reg, Small, Unary};

/// The small element that a type is in memory; of a narrow float its code, unless the machine converts it.
fn small(dtype: DType, converts: bool) -> Option<Small> {
    match dtype {
        DType::I8 => Some(Small::I8),
        DType::I16 => Some(Small::I16),
        _ if converts => Some(Small::F16),
        _ => match dtype.size() {
            1 => Some(Small::U8),
            2 => Some(Small::U16),
            _ => None,
        },
    }
}

/// Whether an expression only moves elements of a narrow float type, so that their bits can be moved instead.
fn moves_bits(expr: &Expr) -> bool {
    match expr {
        Expr::Load { .. } | Expr::Const { .. } => true,
        Expr::Select { then, otherwise, .. } => moves_bits(then) && moves_bits(otherwise),
        _ => false,
    }
}

impl Select<'_> {
    pub fn load(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        let dtype = self.kernel.buffers[buf].dtype;
        let small = small(dtype, self.converts(dtype));
        let value = self.load_bits(buf, small, index)?;
        match dtype {
            DType::Bool => self.test(Compare::IntGt, value, Val::int(0)),
            _ if is_narrow(dtype) && small == Some(Small::F16) => Ok(value),
            _ if is_narrow(dtype) => self.decode(value, dtype),
            _ if dtype.is_packed() => self.round(value, dtype),
            DType::C64 => self.complex(value),
            _ => Ok(value),
        }
    }

    /// A complex number of 64 bits as it is in memory, where its real part comes first, from a lane, whose lower half that part
    /// is, or the other way.
    fn complex(&mut self, value: Val) -> Selected<Val> {
        if self.isa.is_big_endian { self.swap_halves(value) } else { Ok(value) }
    }

    /// Loads an element, or one for each lane, as it is in memory, widened to a lane.
    fn load_bits(&mut self, buf: Buf, small: Option<Small>, index: &Index) -> Selected<Val> {
        let width = self.element_width(buf);
        match self.place_of(index, 1)? {
            LaneIndex::Uniform(index) => self.load_uniform(buf, small, width, &index),
            LaneIndex::Contiguous(index) => {
                let (lanes, mem) = (self.lanes(width)?, self.mem(buf, &index)?);
                let op = small.map_or(Op::Load(lanes), |small| Op::LoadSmall(small, lanes));
                Ok(Val::of(self.inst(op, Class::Vec, vec![], Some(mem)), lanes))
            }
            LaneIndex::Lanes(places) => {
                let scalars = places.iter().map(|index| self.load_scalar(buf, small, width, index));
                let scalars = scalars.collect::<Selected<Vec<_>>>()?;
                self.join(&scalars, width)
            }
        }
    }

    /// Bytes of the lane of an element.
    fn element_width(&self, buf: Buf) -> usize {
        self.kernel.buffers[buf].dtype.size().max(4)
    }

    /// An element that all lanes have: a vector where it can be loaded as one.
    fn load_uniform(&mut self, buf: Buf, small: Option<Small>, width: usize, index: &Index) -> Selected<Val> {
        // An i64 may be what an index is made of; what becomes wider than all that differs between lanes is for scalars,
        // too, as is what no lane holds.
        let widens = self.group.as_ref().is_some_and(|group| group.widens);
        let index_or_wide = self.kernel.buffers[buf].dtype == DType::I64 || widens;
        let lanes = self.lanes(width).ok().filter(|lanes| !lanes.is_scalar() && !index_or_wide);
        let (Some(lanes), None | Some(Small::F16)) = (lanes, small) else {
            return Ok(Val::scalar(self.load_scalar(buf, small, width, index)?, width));
        };
        if small.is_none() {
            let mem = self.mem(buf, index)?;
            return Ok(Val::vector(self.inst(Op::Broadcast(lanes), Class::Vec, vec![], Some(mem)), width));
        }
        if !self.isa.has(Op::BroadcastHalf) {
            return Ok(Val::scalar(self.load_scalar(buf, small, width, index)?, width));
        }
        let mem = self.mem(buf, index)?;
        let half = self.inst(Op::BroadcastHalf, Class::Vec, vec![], Some(mem));
        Ok(Val::vector(self.vec(Op::Unpack(lanes), vec![half]), width))
    }

    fn load_scalar(&mut self, buf: Buf, small: Option<Small>, width: usize, index: &Index) -> Selected<Reg> {
        let mem = self.mem(buf, index)?;
        let Some(small) = small else {
            let one = Lanes::of(width.div_ceil(8), width.min(8)).unwrap_or(Lanes::X1);
            return Ok(self.inst(Op::Load(one), Class::Vec, vec![], Some(mem)));
        };
        let general = self.inst(Op::LoadPart(small), Class::Int, vec![], Some(mem));
        let scalar = self.vec(Op::FromGeneral(Lanes::X1), vec![general]);
        Ok(match small {
            Small::F16 => self.vec(Op::Unpack(Lanes::X1), vec![scalar]),
            _ => scalar,
        })
    }

    /// Four elements of 8 bits, or two of 16, as one lane of 32 bits, the first in its lowest ones.
    pub fn load_word(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        let word = self.load_word_as_number(buf, index)?;
        match self.kernel.buffers[buf].dtype.size() {
            _ if !self.isa.is_big_endian => Ok(word),
            1 => self.apply(Op::SwapBytes, &[word]),
            _ => self.swap_halves(word),
        }
    }

    /// Four bytes as one lane of 32 bits.
    pub fn quad(&mut self, bytes: &[Expr; 4]) -> Selected<Val> {
        if let Some(whole) = self.quad_of_quarters(bytes)? {
            return Ok(whole);
        }
        let mut whole = Val::int(0);
        for (at, byte) in bytes.iter().enumerate() {
            let byte = self.eval(byte)?;
            let low = self.pair(Binary::And, byte, Val::int(0xff))?;
            let part = if at == 0 { low } else { self.simple(Unary::Shl(8 * at as u8), low)? };
            whole = self.pair(Binary::Or, whole, part)?;
        }
        Ok(whole)
    }

    /// Bytes that lie side by side for all lanes: each of the four runs is a quarter of a vector, whose bytes are interleaved.
    fn quad_of_quarters(&mut self, bytes: &[Expr; 4]) -> Selected<Option<Val>> {
        let lanes = self.lanes(4)?;
        if !self.isa.has(Op::Interleave(lanes)) {
            return Ok(None);
        }
        let mut runs = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                Expr::Load { buf, index } => match self.place_of(index, 1)? {
                    LaneIndex::Contiguous(index) => runs.push((at, *buf, index)),
                    _ => return Ok(None),
                },
                Expr::Const { bits: 0, .. } => {}
                _ => return Ok(None),
            }
        }
        // Where all quarters are written, the first one needs no vector to be inserted into.
        let (mut whole, all) = (None, runs.len() == bytes.len());
        for (at, buf, index) in runs {
            let mem = self.mem(buf, &index)?;
            whole = Some(match whole {
                None if all => self.inst(Op::Load(Lanes::X4), Class::Vec, vec![], Some(mem)),
                before => {
                    let before = before.unwrap_or_else(|| self.vec(Op::Splat(lanes, 0), vec![]));
                    self.inst(Op::InsertQuarter(at as u8, lanes), Class::Vec, vec![before], Some(mem))
                }
            });
        }
        let Some(whole) = whole else { return Ok(Some(Val::int(0))) };
        Ok(Some(Val::vector(self.vec(Op::Interleave(lanes), vec![whole]), 4)))
    }

    fn load_word_as_number(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        let lanes = self.lanes(4)?;
        let elements = 4 / self.kernel.buffers[buf].dtype.size() as i64;
        let (op, index) = match self.place_of(index, elements)? {
            LaneIndex::Contiguous(index) => (Op::Load(lanes), index),
            LaneIndex::Uniform(index) if lanes.is_scalar() => (Op::Load(lanes), index),
            LaneIndex::Uniform(index) => (Op::Broadcast(lanes), index),
            LaneIndex::Lanes(places) => {
                let scalars = places.iter().map(|index| self.load_scalar(buf, None, 4, index));
                let scalars = scalars.collect::<Selected<Vec<_>>>()?;
                return self.join(&scalars, 4);
            }
        };
        let mem = self.mem(buf, &index)?;
        Ok(Val::of(self.inst(op, Class::Vec, vec![], Some(mem)), lanes))
    }

    pub fn store_element(&mut self, buf: Buf, index: &Index, value: &Expr) -> Selected<()> {
        let dtype = self.kernel.buffers[buf].dtype;
        let (width, mut small) = (self.element_width(buf), small(dtype, self.converts(dtype)));
        if let Some(small) = small
            && let Some(x) = self.quantized(dtype, value)
            && let LaneIndex::Contiguous(index) = self.place_of(index, 1)?
        {
            let lanes = self.lanes(width)?;
            if self.isa.has(Op::Saturate(small, lanes))
                && let Some((x, zero)) = shifted(x)
            {
                let reg = self.quantize_shifted(small, lanes, x, zero)?;
                let mem = self.mem(buf, &index)?;
                return self.store_lanes(Some(small), lanes, reg, mem);
            }
            if self.isa.has(Op::Quantize(small, lanes)) {
                let x = self.eval(x)?;
                let x = self.spread(x, lanes);
                let reg = self.vec(Op::Quantize(small, lanes), vec![x]);
                let mem = self.mem(buf, &index)?;
                return self.store_lanes(Some(small), lanes, reg, mem);
            }
        }
        if dtype == DType::BF16
            && let Expr::Cast { to: DType::BF16, saturate: false, x } = value
            && self.kernel.dtype(x) == DType::F32
            && let Ok(lanes) = self.lanes(width)
            && self.isa.has(Op::PackBf16(lanes))
            && let LaneIndex::Contiguous(index) = self.place_of(index, 1)?
        {
            let x = self.eval(x)?;
            let x = self.spread(x, lanes);
            let reg = self.vec(Op::PackBf16(lanes), vec![x]);
            let mem = self.mem(buf, &index)?;
            return self.store_lanes(Some(Small::U16), lanes, reg, mem);
        }
        let value = match value {
            // Any integer will do for what does not fit, and packing takes any.
            Expr::Cast { to, saturate: false, x }
                if dtype == *to
                    && (dtype == DType::U8 || dtype == DType::I8 && self.isa.packs_low_bits())
                    && self.kernel.dtype(x) == DType::F32 =>
            {
                match self.nearest_int(x, DType::I32, false)? {
                    Some(value) => value,
                    None => {
                        let x = self.eval(x)?;
                        self.cast(DType::F32, DType::I32, false, x)?
                    }
                }
            }
            value if is_narrow(dtype) && moves_bits(value) => {
                small = if dtype.size() == 1 { Some(Small::U8) } else { Some(Small::U16) };
                self.moved_bits(value)?
            }
            value => {
                let value = self.eval(value)?;
                self.as_stored(dtype, small, value)?
            }
        };
        match self.place_of(index, 1)? {
            LaneIndex::Uniform(_) if value.is_vector() => refuse("all lanes to one element"),
            LaneIndex::Uniform(index) => {
                let reg = self.scalar_as_stored(small, value)?;
                self.store_scalar(buf, small, width, &index, reg)
            }
            LaneIndex::Contiguous(index) => {
                let lanes = self.lanes(width)?;
                let reg = self.packed(small, value, lanes);
                let mem = self.mem(buf, &index)?;
                self.store_lanes(small, lanes, reg, mem)
            }
            LaneIndex::Lanes(places) => {
                for (lane, index) in places.iter().enumerate() {
                    let reg = self.lane_of(value, lane)?;
                    let reg = self.scalar_as_stored(small, Val::scalar(reg, value.width))?;
                    self.store_scalar(buf, small, width, index, reg)?;
                }
                Ok(())
            }
        }
    }

    /// The bits of narrow floats that an expression moves.
    fn moved_bits(&mut self, expr: &Expr) -> Selected<Val> {
        match expr {
            Expr::Load { buf, index } => {
                let small = if self.kernel.buffers[*buf].dtype.size() == 1 { Small::U8 } else { Small::U16 };
                self.load_bits(*buf, Some(small), index)
            }
            Expr::Const { bits, .. } => Ok(Val::int(*bits as i32)),
            Expr::Select { condition, then, otherwise } => {
                let condition = self.eval(condition)?;
                let (then, otherwise) = (self.moved_bits(then)?, self.moved_bits(otherwise)?);
                self.choose(Form::Int, condition, then, otherwise)
            }
            _ => refuse("an expression that moves no bits"),
        }
    }

    /// A value in lanes of what is in memory: a bool as 0 or 1, a narrow float as its code unless the machine converts it.
    fn as_stored(&mut self, dtype: DType, small: Option<Small>, value: Val) -> Selected<Val> {
        match dtype {
            DType::Bool if value.is_constant() => Ok(value),
            DType::Bool => {
                let bits = self.mask_as_bits(value)?;
                self.pair(Binary::And, bits, Val::int(1))
            }
            _ if is_narrow(dtype) && small != Some(Small::F16) => match value.packed {
                Some(code) => Ok(match value.is_vector() {
                    true => Val::vector(code, 4),
                    false => Val::scalar(code, 4),
                }),
                None => self.encode_exact(value, dtype),
            },
            DType::C64 => self.complex(value),
            _ => Ok(value),
        }
    }

    /// A scalar as it is in memory, but for its width.
    fn scalar_as_stored(&mut self, small: Option<Small>, value: Val) -> Selected<Reg> {
        match (small, value.packed) {
            (Some(Small::F16), Some(packed)) => Ok(packed),
            (Some(Small::F16), None) => {
                let reg = self.scalar(value)?;
                Ok(self.vec(Op::Pack(Small::F16, Lanes::X1), vec![reg]))
            }
            _ => self.scalar(value),
        }
    }

    /// The lanes of a value as small elements.
    fn packed(&mut self, small: Option<Small>, value: Val, lanes: Lanes) -> Reg {
        match (small, value.packed) {
            (Some(Small::F16), Some(packed)) if value.is_vector() => packed,
            (Some(small), _) => {
                let reg = self.spread(value, lanes);
                self.vec(Op::Pack(small, lanes), vec![reg])
            }
            (None, _) => self.spread(value, lanes),
        }
    }

    /// The float that is stored as an integer of this type, rounded to the nearest, where it may be clamped to what the type
    /// holds before.
    fn quantized<'e>(&self, dtype: DType, value: &'e Expr) -> Option<&'e Expr> {
        let Expr::Cast { to, saturate: false, x } = value else { return None };
        let (least, most) = match dtype {
            DType::I8 => (i8::MIN.into(), i8::MAX.into()),
            DType::U8 => (0.0, u8::MAX.into()),
            DType::I16 => (i16::MIN.into(), i16::MAX.into()),
            DType::U16 => (0.0, u16::MAX.into()),
            _ => return None,
        };
        let number = |expr: &Expr| match *expr {
            Expr::Const { dtype: DType::F32, bits } => Some(f32::from_bits(bits as u32)),
            _ => None,
        };
        let mut x = (*to == dtype && self.kernel.dtype(x) == DType::F32).then_some(&**x)?;
        while let Expr::Binary { op, a, b } = x
            && [(BinaryFn::Min, Some(most)), (BinaryFn::Max, Some(least))].contains(&(*op, number(b)))
        {
            x = a;
        }
        // With a number added after it was rounded, it is an integer already.
        match x {
            Expr::Unary { op: UnaryFn::Round, x } => Some(x),
            Expr::Binary { op: BinaryFn::Add, a, b }
                if matches!(**a, Expr::Unary { op: UnaryFn::Round, .. }) =>
            {
                number(b).is_some_and(|zero| zero.fract() == 0.0).then_some(x)
            }
            _ => None,
        }
    }

    /// Bytes of a float that is rounded to an integer, which `zero` is added to. What no i32 holds becomes `i32::MIN`: as an
    /// unsigned number it is great, and so it stays when a small number is added; as a signed one it must not wrap.
    fn quantize_shifted(&mut self, small: Small, lanes: Lanes, x: &Expr, zero: i32) -> Selected<Reg> {
        let mut value = self.eval(x)?;
        let (least, most) = if small == Small::I8 { (-128, 127) } else { (0, 255) };
        if small == Small::I8 {
            value = self.pair(Binary::Min, value, Val::single((most - zero) as f32))?;
        }
        if small == Small::U8 || zero < 0 {
            value = self.pair(Binary::Max, value, Val::single((least - zero) as f32))?;
        }
        let value = self.simple(Unary::ToIntNearest, value)?;
        let value = self.pair(Binary::IntAdd, value, Val::int(zero))?;
        let value = self.spread(value, lanes);
        Ok(self.vec(Op::Saturate(small, lanes), vec![value]))
    }

    fn store_scalar(
        &mut self,
        buf: Buf,
        small: Option<Small>,
        width: usize,
        index: &Index,
        value: Reg,
    ) -> Selected<()> {
        let mem = self.mem(buf, index)?;
        let Some(small) = small else {
            let one = Lanes::of(width.div_ceil(8), width.min(8)).unwrap_or(Lanes::X1);
            self.store(one, value, mem);
            return Ok(());
        };
        let general = self.int(Op::ToGeneral(Lanes::X1), vec![value]);
        self.push(Inst { op: Op::StorePart(small), dst: None, uses: vec![general], mem: Some(mem) });
        Ok(())
    }

    fn store_lanes(&mut self, small: Option<Small>, lanes: Lanes, value: Reg, mem: Mem) -> Selected<()> {
        let lanes = match small.map(|small| small.bytes() * lanes.count()) {
            None => lanes,
            Some(2) => {
                let mut general = self.int(Op::ToGeneral(Lanes::X1), vec![value]);
                if self.isa.is_big_endian {
                    // The first bytes of a lane are its highest.
                    general = self.int(Op::ShrInt(16), vec![general]);
                }
                let op = Op::StorePart(Small::U16);
                self.push(Inst { op, dst: None, uses: vec![general], mem: Some(mem) });
                return Ok(());
            }
            Some(bytes) => match Lanes::stored(bytes) {
                Some(lanes) => lanes,
                None => return refuse(format!("a store of {bytes} bytes")),
            },
        };
        self.store(lanes, value, mem);
        Ok(())
    }
}

/// A float that is rounded before a small integer is added to it, and that integer.
fn shifted(x: &Expr) -> Option<(&Expr, i32)> {
    let Expr::Binary { op: BinaryFn::Add, a, b } = x else { return None };
    let (Expr::Unary { op: UnaryFn::Round, x }, &Expr::Const { dtype: DType::F32, bits }) = (&**a, &**b)
    else {
        return None;
    };
    let zero = f32::from_bits(bits as u32);
    (zero.abs() <= 255.0 && zero.fract() == 0.0).then_some((x, zero as i32))
}
