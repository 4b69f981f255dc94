//! Expressions. What does not differ between the lanes of a vector loop is computed once, as a scalar, and
//! spread where it meets vectors; what has no vector instructions is computed lane by lane.

use bytes::Bytes;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Type, Value};

use super::index::{Binding, Place};
use super::kernel::Gen;
use super::lane::{int_type, is_f32, is_narrow_float, rep_type, scalar_type, vector_type};
use super::memory::bits_dtype;
use crate::error::Result;
use crate::graph::{DType, Dim, Tensor};
use crate::interp;
use crate::loops::{Buf, Expr, Index};
use crate::scalar::{BinaryFn, UnaryFn};

/// A value of an expression.
#[derive(Clone, Copy, Debug)]
pub struct Val {
    pub dtype: DType,
    pub kind: Kind,
    /// Known to be no NaN.
    pub not_nan: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Bits of the element.
    Const(u64),
    /// The same in all lanes.
    Scalar(Value),
    Vector(Value),
}

impl Val {
    pub fn scalar(dtype: DType, value: Value) -> Val {
        Val { dtype, kind: Kind::Scalar(value), not_nan: !dtype.is_float() }
    }

    pub fn vector(dtype: DType, value: Value) -> Val {
        Val { dtype, kind: Kind::Vector(value), not_nan: !dtype.is_float() }
    }

    fn is_vector(&self) -> bool {
        matches!(self.kind, Kind::Vector(_))
    }
}

/// A sequence of instructions on operands of this many lanes (1 for scalars); `None` where vectors have none.
pub type Emit<'e> = &'e dyn Fn(&mut Gen, &[Value], usize) -> Result<Option<Value>>;

/// Value of a constant of a float dtype.
fn float_value(dtype: DType, bits: u64) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => {
            let data = Bytes::copy_from_slice(&bits.to_le_bytes()[..dtype.size()]);
            let wide = interp::cast(&Tensor::new(dtype, vec![], data), DType::F32, true);
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&wide.data[..4]);
            f64::from(f32::from_bits(u32::from_le_bytes(bytes)))
        }
    }
}

/// Value of a constant of an integer dtype or bool.
fn int_value(dtype: DType, bits: u64) -> i64 {
    let unused = 64 - dtype.bits().min(64);
    match dtype {
        DType::Bool => i64::from(bits & 0xff != 0),
        _ if dtype.is_signed_int() => ((bits << unused) as i64) >> unused,
        _ => (bits << unused >> unused) as i64,
    }
}

impl Gen<'_, '_> {
    pub fn eval(&mut self, expr: &Expr) -> Result<Val> {
        match expr {
            Expr::Const { dtype, bits } => {
                self.supported(*dtype)?;
                Ok(self.constant(*dtype, *bits))
            }
            Expr::Index(index) => {
                let index = self.resolve(index)?;
                self.index_value(index)
            }
            Expr::Var(var) => match self.env[*var].clone() {
                Binding::Value(value) => Ok(value),
                Binding::Index(index) => self.index_value(index),
                Binding::Unbound => Err(self.internal(format!("variable {var:?} is not in scope"))),
            },
            Expr::Load { buf, index } => self.load(*buf, index, false),
            Expr::Word { buf, index } => self.load_word(*buf, index),
            Expr::Get { local, at } => self.get(*local, at),
            Expr::Unary { op, x } => {
                let x = self.eval(x)?;
                self.unary(*op, x)
            }
            Expr::Binary { op, a, b } => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.binary(*op, a, b)
            }
            Expr::Fma { a, b, c } => {
                let (a, b) = self.factors(a, b)?;
                let c = self.eval(c)?;
                self.fma(a, b, c)
            }
            Expr::Compare { op, a, b } => {
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                let (op, dtype) = (*op, self.same_dtype(a, b, op.name())?);
                self.apply(&[a, b], DType::Bool, &|g, v, lanes| {
                    Ok(Some(g.compare(op, dtype, v[0], v[1], lanes)))
                })
            }
            Expr::Select { condition, then, otherwise } => {
                let condition = self.eval(condition)?;
                let (a, b) = (self.eval(then)?, self.eval(otherwise)?);
                self.select(condition, a, b)
            }
            Expr::Cast { to, saturate, x } => {
                self.supported(*to)?;
                let x = self.eval(x)?;
                self.cast(x, *to, *saturate)
            }
            Expr::Bitcast { to, x } => {
                self.supported(*to)?;
                let x = self.eval(x)?;
                let (from, to) = (x.dtype, *to);
                if from.size() != to.size() {
                    return Err(self.internal(format!("bitcast of {from} to {to}")));
                }
                self.apply(&[x], to, &|g, v, lanes| g.reinterpret(v[0], from, to, lanes).map(Some))
            }
        }
    }

    /// Evaluates an expression that only moves elements of a narrow float type, as their bits.
    pub fn eval_bits(&mut self, expr: &Expr) -> Result<Val> {
        match expr {
            Expr::Load { buf, index } => self.load(*buf, index, true),
            Expr::Const { dtype, bits } => Ok(self.constant(bits_dtype(*dtype), *bits)),
            Expr::Select { condition, then, otherwise } => {
                let condition = self.eval(condition)?;
                let (a, b) = (self.eval_bits(then)?, self.eval_bits(otherwise)?);
                self.select(condition, a, b)
            }
            _ => Err(self.internal("an expression that moves no bits".to_string())),
        }
    }

    fn constant(&mut self, dtype: DType, bits: u64) -> Val {
        let not_nan = !dtype.is_float() || !float_value(dtype, bits).is_nan();
        Val { dtype, kind: Kind::Const(bits), not_nan }
    }

    fn index_value(&mut self, index: Index) -> Result<Val> {
        if let Some(value) = index.as_int() {
            return Ok(Val { dtype: DType::I64, kind: Kind::Const(value as u64), not_nan: true });
        }
        let lanes = match self.place(index)? {
            Place::Uniform(index) => return Ok(Val::scalar(DType::I64, self.sum(&index)?)),
            Place::Contiguous(first) => {
                let count = self.lanes();
                (0..count).map(|lane| first.add_dim(&Dim::from(lane))).collect()
            }
            Place::Lanes(lanes) => lanes,
        };
        let scalars = lanes.iter().map(|index| self.sum(index)).collect::<Result<Vec<_>>>()?;
        Ok(Val::vector(DType::I64, self.join_lanes(&scalars, DType::I64)))
    }

    /// A value that is the same in all lanes, as a scalar. Of a vector, its first lane.
    pub fn scalar(&mut self, value: Val) -> Value {
        match value.kind {
            Kind::Scalar(scalar) => scalar,
            Kind::Vector(vector) => self.extract(vector, value.dtype, 0),
            Kind::Const(bits) => self.constant_of(scalar_type(value.dtype), value.dtype, bits),
        }
    }

    fn constant_of(&mut self, ty: Type, dtype: DType, bits: u64) -> Value {
        if dtype.is_float() {
            // The bits of an f32 or f64 constant are kept, NaNs included.
            let (float, bits) = match dtype {
                DType::F64 => (ty, bits as i64),
                DType::F32 => (ty, bits as i64),
                _ => (ty, i64::from((float_value(dtype, bits) as f32).to_bits())),
            };
            if ty.is_vector() || float_value(dtype, bits as u64).is_nan() {
                let ints = ty.as_int();
                let bits = self.int(ints, bits);
                return self.bitcast(float, bits);
            }
            let value = match dtype {
                DType::F64 => f64::from_bits(bits as u64),
                _ => f64::from(f32::from_bits(bits as u32)),
            };
            return self.float(ty, value);
        }
        let value = int_value(dtype, bits);
        self.int(ty, if dtype == DType::Bool && ty.is_vector() { -value } else { value })
    }

    /// A value in all lanes of the current vector loop.
    pub fn vector_of(&mut self, value: Val) -> Value {
        let lanes = self.lanes();
        match value.kind {
            Kind::Vector(vector) => vector,
            _ if lanes == 1 => self.scalar(value),
            Kind::Const(bits) => self.constant_of(vector_type(value.dtype, lanes), value.dtype, bits),
            Kind::Scalar(scalar) => {
                let key = (scalar, value.dtype, lanes);
                if let Some(&vector) = self.splats.get(&key) {
                    return vector;
                }
                let vector = self.splat(scalar, value.dtype, lanes);
                self.splats.insert(key, vector);
                vector
            }
        }
    }

    /// One lane of a value.
    pub fn lane_of(&mut self, value: Val, lane: usize) -> Value {
        match value.kind {
            Kind::Vector(vector) => self.extract(vector, value.dtype, lane),
            _ => self.scalar(value),
        }
    }

    pub fn same_dtype(&self, a: Val, b: Val, what: &str) -> Result<DType> {
        if a.dtype != b.dtype {
            return Err(self.internal(format!("{what} of {} and {}", a.dtype, b.dtype)));
        }
        Ok(a.dtype)
    }

    /// Emits a function of the operands for scalars, vectors, or each lane.
    pub fn apply(&mut self, operands: &[Val], out: DType, emit: Emit) -> Result<Val> {
        if !operands.iter().any(Val::is_vector) {
            let scalars: Vec<Value> = operands.iter().map(|&operand| self.scalar(operand)).collect();
            let value = emit(self, &scalars, 1)?
                .ok_or_else(|| self.internal(format!("a function to {out} has no scalar form")))?;
            return Ok(Val::scalar(out, value));
        }
        let lanes = self.lanes();
        let vectors: Vec<Value> = operands.iter().map(|&operand| self.vector_of(operand)).collect();
        if let Some(vector) = emit(self, &vectors, lanes)? {
            return Ok(Val::vector(out, vector));
        }
        let dtypes: Vec<DType> = operands.iter().map(|operand| operand.dtype).collect();
        Ok(Val::vector(out, self.per_lane(&vectors, &dtypes, out, lanes, emit)?))
    }

    /// Applies the scalar form to each lane.
    pub fn per_lane(
        &mut self,
        vectors: &[Value],
        dtypes: &[DType],
        out: DType,
        lanes: usize,
        emit: Emit,
    ) -> Result<Value> {
        let mut results = vec![];
        for lane in 0..lanes {
            let scalars: Vec<Value> = vectors
                .iter()
                .zip(dtypes)
                .map(|(&vector, &dtype)| self.extract(vector, dtype, lane))
                .collect();
            let value = emit(self, &scalars, 1)?
                .ok_or_else(|| self.internal(format!("a function to {out} has no scalar form")))?;
            results.push(value);
        }
        Ok(self.join_lanes(&results, out))
    }

    pub fn unary(&mut self, op: UnaryFn, x: Val) -> Result<Val> {
        let dtype = x.dtype;
        let is_test = matches!(op, UnaryFn::IsNan | UnaryFn::IsPosInf | UnaryFn::IsNegInf);
        let out = if is_test { DType::Bool } else { dtype };
        self.apply(&[x], out, &|g, v, lanes| {
            if dtype.is_float() {
                let value = g.float_unary(op, dtype, v[0], lanes)?;
                // Types of 8 bits and fewer may lack a sign, or saturate infinities.
                let exact = is_test || matches!(op, UnaryFn::Neg | UnaryFn::Abs) && dtype.size() > 1;
                return if exact { Ok(Some(value)) } else { g.round_to(value, dtype).map(Some) };
            }
            g.int_unary(op, dtype, v[0]).map(Some)
        })
    }

    pub fn binary(&mut self, op: BinaryFn, a: Val, b: Val) -> Result<Val> {
        let dtype = self.same_dtype(a, b, op.name())?;
        if !dtype.is_float() {
            return self.int_binary(op, dtype, a, b);
        }
        let clean = (a.not_nan, b.not_nan);
        let mut value = self.apply(&[a, b], dtype, &|g, v, lanes| match g
            .float_binary(op, dtype, v[0], v[1], clean, lanes)?
        {
            Some(value) => g.round_to(value, dtype).map(Some),
            None => Ok(None),
        })?;
        value.not_nan = matches!(op, BinaryFn::Max | BinaryFn::Min) && clean == (true, true);
        Ok(value)
    }

    /// `a * b + c`.
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Result<Val> {
        let dtype = self.same_dtype(a, b, "fma")?;
        self.same_dtype(a, c, "fma")?;
        if !dtype.is_float() {
            let product = self.binary(BinaryFn::Mul, a, b)?;
            return self.binary(BinaryFn::Add, product, c);
        }
        self.apply(&[a, b, c], dtype, &|g, v, _| {
            let value = if g.target.has_fma {
                g.b.ins().fma(v[0], v[1], v[2])
            } else {
                let product = g.b.ins().fmul(v[0], v[1]);
                g.b.ins().fadd(product, v[2])
            };
            g.round_to(value, dtype).map(Some)
        })
    }

    /// Evaluates the factors of a fused multiply-add, in the order that spares a move.
    ///
    /// Where the instruction overwrites its first factor, a broadcast element serves best as one that is used
    /// once: loading it again for each use is cheaper than keeping and copying it, and leaves its register
    /// to the accumulators.
    pub fn factors(&mut self, a: &Expr, b: &Expr) -> Result<(Val, Val)> {
        if !self.target.fma_overwrites_factor || self.lanes() == 1 {
            return Ok((self.eval(a)?, self.eval(b)?));
        }
        if let Some(uniform) = self.uniform_element(a)? {
            let other = self.eval(b)?;
            return Ok((self.broadcast_load(uniform, other)?, other));
        }
        if let Some(uniform) = self.uniform_element(b)? {
            let other = self.eval(a)?;
            return Ok((self.broadcast_load(uniform, other)?, other));
        }
        Ok((self.eval(a)?, self.eval(b)?))
    }

    /// Buffer and resolved index of a native float that is the same in all lanes and not loaded before for
    /// another purpose.
    fn uniform_element(&mut self, expr: &Expr) -> Result<Option<(Buf, Index)>> {
        let Expr::Load { buf, index } = expr else { return Ok(None) };
        if !matches!(self.kernel.buffers[*buf].dtype, DType::F32 | DType::F64) {
            return Ok(None);
        }
        let index = self.resolve(index)?;
        Ok(match self.place(index)? {
            Place::Uniform(index) => Some((*buf, index)),
            _ => None,
        })
    }

    /// The element in all lanes if the other factor differs between lanes.
    fn broadcast_load(&mut self, (buf, index): (Buf, Index), other: Val) -> Result<Val> {
        let dtype = self.kernel.buffers[buf].dtype;
        if !other.is_vector() {
            return Ok(Val::scalar(dtype, self.load_scalar(buf, &index, false)?));
        }
        let scalar = self.load_element(buf, &index, false)?;
        Ok(Val::vector(dtype, self.splat(scalar, dtype, self.lanes())))
    }

    fn select(&mut self, condition: Val, a: Val, b: Val) -> Result<Val> {
        let dtype = self.same_dtype(a, b, "select")?;
        if condition.dtype != DType::Bool {
            return Err(self.internal(format!("select by {}", condition.dtype)));
        }
        let not_nan = a.not_nan && b.not_nan;
        let mut value = match condition.kind {
            Kind::Const(bits) => return Ok(if bits & 0xff != 0 { a } else { b }),
            // One condition for all lanes: a select of whole registers would branch, so it becomes a mask.
            _ => self.apply(&[condition, a, b], dtype, &|g, v, lanes| {
                let mask = if lanes > 1 { g.mask_for(v[0], dtype, lanes) } else { v[0] };
                Ok(Some(g.choose(mask, v[1], v[2])))
            })?,
        };
        value.not_nan = not_nan;
        Ok(value)
    }

    /// The same bits as another dtype of the same size.
    fn reinterpret(&mut self, value: Value, from: DType, to: DType, lanes: usize) -> Result<Value> {
        if from == to {
            return Ok(value);
        }
        let integer = if is_narrow_float(from) {
            let bits = self.encode_exact(value, from)?;
            self.bits_to_lanes(bits, from, to, lanes)
        } else if from.is_float() {
            let bits = self.bitcast(self.type_of(value).as_int(), value);
            if is_f32(from) { self.bits_to_lanes(bits, from, to, lanes) } else { bits }
        } else {
            value
        };
        if to == DType::Bool {
            return Ok(self.icmp_int(IntCC::NotEqual, integer, 0));
        }
        if !to.is_float() && from == DType::Bool {
            return Ok(self.band_int(integer, 1));
        }
        if !to.is_float() {
            // Lanes wider than the dtype hold its range, which its sign decides.
            return Ok(self.wrap(integer, to));
        }
        if to == DType::F64 {
            return Ok(self.bitcast(rep_type(to, lanes), integer));
        }
        let bits = if lanes == 1 {
            self.resize(integer, int_type(32), false)
        } else if lanes == 2 {
            self.low_halves(integer)
        } else {
            integer
        };
        if is_narrow_float(to) {
            let bits = self.band_int(bits, (1i64 << (8 * to.size())) - 1);
            return self.decode(bits, to);
        }
        Ok(self.bitcast(rep_type(to, lanes), bits))
    }

    /// 32-bit lanes that hold the bits of a float, as an integer dtype's lanes.
    fn bits_to_lanes(&mut self, bits: Value, from: DType, to: DType, lanes: usize) -> Value {
        match lanes {
            1 => self.resize(bits, int_type(8 * from.size() as u32), false),
            2 if to.is_signed_int() => self.b.ins().swiden_low(bits),
            2 => self.b.ins().uwiden_low(bits),
            _ => bits,
        }
    }
}
