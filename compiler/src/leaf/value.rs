//! Expressions: floats and integers of 32 bits, scalars or vectors. Bools are masks.

use super::address::Place;
use super::ir::{Binary, Class, Compare, Lanes, Logic, Mem, Op, Reg, Unary};
use super::select::{Select, Selected, refuse};
use crate::graph::DType;
use crate::loops::{Buf, Expr, Index};
use crate::scalar::{BinaryFn, CompareFn, UnaryFn};

#[derive(Clone, Copy, Debug)]
pub struct Val {
    kind: Kind,
    /// Known to be no NaN.
    not_nan: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Bits of the element; of a bool 0 or 1.
    Const(u32),
    /// The same in all lanes.
    Scalar(Reg),
    Vector(Reg),
}

/// What a vector with equal lanes is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    Const(u32),
    Scalar(Reg),
}

const SIGN: u32 = 1 << 31;

impl Val {
    pub fn scalar(reg: Reg) -> Val {
        Val { kind: Kind::Scalar(reg), not_nan: false }
    }

    pub fn vector(reg: Reg) -> Val {
        Val { kind: Kind::Vector(reg), not_nan: false }
    }

    fn constant(bits: u32) -> Val {
        Val { kind: Kind::Const(bits), not_nan: !f32::from_bits(bits).is_nan() }
    }

    fn float(value: f32) -> Val {
        Val::constant(value.to_bits())
    }

    fn is_constant(&self) -> bool {
        matches!(self.kind, Kind::Const(_))
    }

    fn is_vector(&self) -> bool {
        matches!(self.kind, Kind::Vector(_))
    }
}

impl Select<'_> {
    pub fn eval(&mut self, expr: &Expr) -> Selected<Val> {
        match expr {
            Expr::Const { dtype: DType::F32 | DType::I32, bits } => Ok(Val::constant(*bits as u32)),
            Expr::Const { dtype: DType::Bool, bits } => Ok(Val::constant(u32::from(*bits != 0))),
            Expr::Const { dtype, .. } => refuse(format!("a constant of {dtype}")),
            Expr::Index(_) => refuse("an index as a value"),
            Expr::Var(var) => match self.lets.get(var) {
                Some(&value) => Ok(value),
                None => refuse("an index as a value"),
            },
            Expr::Load { buf, index } => self.load(*buf, index),
            Expr::Get { local, at } => self.get(*local, at),
            Expr::Unary { op, x } => {
                let dtype = self.kernel.dtype(x);
                let x = self.eval(x)?;
                self.unary(*op, dtype, x)
            }
            Expr::Binary { op, a, b } => {
                let dtype = self.kernel.dtype(a);
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.binary(*op, dtype, a, b)
            }
            Expr::Fma { a, b, c } => {
                if self.kernel.dtype(a) != DType::F32 {
                    return refuse("a fused multiply-add of integers");
                }
                if let Expr::Unary { op: UnaryFn::Neg, x } = &**a {
                    let (x, b, c) = (self.eval(x)?, self.eval(b)?, self.eval(c)?);
                    let c = self.fresh(c, x);
                    return self.apply_constant(Op::FmaNeg, &[c, x, b]);
                }
                let (a, b, c) = (self.eval(a)?, self.eval(b)?, self.eval(c)?);
                self.fma(a, b, c)
            }
            Expr::Compare { op, a, b } => {
                let dtype = self.kernel.dtype(a);
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.compare(*op, dtype, a, b)
            }
            Expr::Select { condition, then, otherwise } => {
                let condition = self.eval(condition)?;
                let (then, otherwise) = (self.eval(then)?, self.eval(otherwise)?);
                if let Kind::Const(mask) = condition.kind {
                    return Ok(if mask == 0 { otherwise } else { then });
                }
                let mut value = self.apply(Op::Blend, &[condition, then, otherwise])?;
                value.not_nan = then.not_nan && otherwise.not_nan;
                Ok(value)
            }
            Expr::Cast { to, saturate, x } => {
                let from = self.kernel.dtype(x);
                let x = self.eval(x)?;
                match (from, *to, *saturate) {
                    (DType::I32, DType::F32, _) => self.apply(|l| Op::Unary(Unary::FromInt, l), &[x]),
                    (DType::F32, DType::I32, false) => self.apply(|l| Op::Unary(Unary::ToInt, l), &[x]),
                    _ => refuse(format!("a cast of {from} to {to}")),
                }
            }
            Expr::Bitcast { to: DType::F32 | DType::I32, x } => {
                let dtype = self.kernel.dtype(x);
                let value = self.eval(x)?;
                match dtype {
                    DType::F32 | DType::I32 => Ok(Val { not_nan: false, ..value }),
                    _ => refuse(format!("the bits of {dtype}")),
                }
            }
            Expr::Bitcast { to, .. } => refuse(format!("bits as {to}")),
        }
    }

    fn load(&mut self, buf: Buf, index: &Index) -> Selected<Val> {
        if !matches!(self.kernel.buffers[buf].dtype, DType::F32 | DType::I32) {
            return refuse(format!("a load of {}", self.kernel.buffers[buf].dtype));
        }
        let lanes = self.lanes();
        Ok(match self.place_of(index)? {
            Place::Contiguous(index) => {
                let mem = self.mem(buf, &index)?;
                Val::vector(self.inst(Op::Load(lanes), Class::Vec, vec![], Some(mem)))
            }
            Place::Uniform(index) => {
                let mem = self.mem(buf, &index)?;
                match lanes {
                    Lanes::X1 => Val::scalar(self.inst(Op::Load(lanes), Class::Vec, vec![], Some(mem))),
                    _ => Val::vector(self.inst(Op::Broadcast(lanes), Class::Vec, vec![], Some(mem))),
                }
            }
        })
    }

    pub fn store_element(&mut self, buf: Buf, index: &Index, value: &Expr) -> Selected<()> {
        if !matches!(self.kernel.buffers[buf].dtype, DType::F32 | DType::I32) {
            return refuse(format!("a store of {}", self.kernel.buffers[buf].dtype));
        }
        let value = self.eval(value)?;
        let (lanes, index) = match self.place_of(index)? {
            Place::Contiguous(index) => (self.lanes(), index),
            Place::Uniform(index) if self.group.is_none() => (Lanes::X1, index),
            Place::Uniform(_) => return refuse("all lanes to one element"),
        };
        let value = match lanes {
            Lanes::X1 => self.scalar(value)?,
            _ => self.spread(value, lanes),
        };
        let mem = self.mem(buf, &index)?;
        self.store(lanes, value, mem);
        Ok(())
    }

    /// A value that is the same in all lanes, in the first one.
    pub fn scalar(&mut self, value: Val) -> Selected<Reg> {
        match value.kind {
            Kind::Const(bits) => Ok(self.splat(Key::Const(bits), Lanes::X1)),
            Kind::Scalar(reg) => Ok(reg),
            Kind::Vector(_) => refuse("a vector where a scalar is wanted"),
        }
    }

    /// A value in all lanes.
    pub fn spread(&mut self, value: Val, lanes: Lanes) -> Reg {
        match value.kind {
            Kind::Vector(reg) => reg,
            Kind::Scalar(reg) if lanes == Lanes::X1 => reg,
            Kind::Scalar(reg) => self.splat(Key::Scalar(reg), lanes),
            Kind::Const(bits) => self.splat(Key::Const(bits), lanes),
        }
    }

    fn splat(&mut self, key: Key, lanes: Lanes) -> Reg {
        if let Some(reg) = self.find(|scope| scope.splats.get(&(key, lanes))) {
            return reg;
        }
        let reg = match key {
            Key::Const(bits) => self.vec(Op::Splat(lanes, bits), vec![]),
            Key::Scalar(reg) if self.func.regs[reg] == Class::Mask => {
                let bits = self.vec(Op::MaskBits(Lanes::X1), vec![reg]);
                let all = self.vec(Op::SplatLane(lanes), vec![bits]);
                self.inst(Op::MaskOf(lanes), Class::Mask, vec![all], None)
            }
            Key::Scalar(reg) => self.vec(Op::SplatLane(lanes), vec![reg]),
        };
        self.scope().splats.insert((key, lanes), reg);
        reg
    }

    /// An operation on vectors if an operand is one, else on scalars.
    fn apply(&mut self, op: impl Fn(Lanes) -> Op, operands: &[Val]) -> Selected<Val> {
        let lanes = if operands.iter().any(Val::is_vector) { self.lanes() } else { Lanes::X1 };
        let uses = operands.iter().map(|&operand| self.spread(operand, lanes)).collect();
        let op = op(lanes);
        let reg = self.inst(op, result_class(op), uses, None);
        Ok(if lanes == Lanes::X1 { Val::scalar(reg) } else { Val::vector(reg) })
    }

    /// The same for an operation whose last operand may be in memory, which is where a constant is best: it takes no
    /// register there.
    fn apply_constant(&mut self, op: impl Fn(Lanes) -> Op, operands: &[Val]) -> Selected<Val> {
        if let [others @ .., Val { kind: Kind::Const(bits @ 1..), .. }] = operands
            && others.iter().any(Val::is_vector)
        {
            let lanes = self.lanes();
            let uses = others.iter().map(|&operand| self.spread(operand, lanes)).collect();
            let op = op(lanes);
            return Ok(Val::vector(self.inst(op, result_class(op), uses, Some(Mem::Constant(*bits)))));
        }
        self.apply(op, operands)
    }

    fn pair(&mut self, op: Binary, a: Val, b: Val) -> Selected<Val> {
        let commutes = matches!(
            op,
            Binary::Add
                | Binary::Mul
                | Binary::And
                | Binary::Or
                | Binary::Xor
                | Binary::IntAdd
                | Binary::IntMul
        );
        let (a, b) = if commutes && a.is_constant() { (b, a) } else { (a, b) };
        self.apply_constant(|lanes| Op::Binary(op, lanes), &[a, b])
    }

    fn test(&mut self, op: Compare, a: Val, b: Val) -> Selected<Val> {
        let commutes = matches!(op, Compare::Eq | Compare::Ne | Compare::IntEq);
        let (a, b) = if commutes && a.is_constant() { (b, a) } else { (a, b) };
        self.apply_constant(|lanes| Op::Compare(op, lanes), &[a, b])
    }

    fn not(&mut self, mask: Val) -> Selected<Val> {
        match mask.kind {
            Kind::Const(bits) => Ok(Val::constant(bits ^ 1)),
            _ => self.apply(Op::MaskNot, &[mask]),
        }
    }

    fn logic(&mut self, op: Logic, a: Val, b: Val) -> Selected<Val> {
        let (a, b) = if a.is_constant() { (b, a) } else { (a, b) };
        match (op, b.kind) {
            (Logic::And, Kind::Const(0)) | (Logic::Or, Kind::Const(1)) => Ok(b),
            (Logic::And, Kind::Const(_)) | (Logic::Or | Logic::Xor, Kind::Const(0)) => Ok(a),
            (Logic::Xor, Kind::Const(_)) => self.not(a),
            _ => self.apply(|lanes| Op::Mask(op, lanes), &[a, b]),
        }
    }

    /// `a * b + c`. A constant is an operand in memory, which decides what the result replaces.
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Selected<Val> {
        let (a, b) = if a.is_constant() { (b, a) } else { (a, b) };
        match c.is_constant() {
            true if b.is_constant() => {
                let b = self.fresh(b, a);
                self.apply_constant(Op::MulAdd, &[b, a, c])
            }
            true => self.apply_constant(Op::MulAdd, &[a, b, c]),
            false => self.apply_constant(Op::Fma, &[c, a, b]),
        }
    }

    /// A constant operand that an operation replaces: a load of its own, where a shared one would have to be copied
    /// first. `beside` is another operand.
    fn fresh(&mut self, value: Val, beside: Val) -> Val {
        match value.kind {
            Kind::Const(bits) if beside.is_vector() => {
                Val { kind: Kind::Vector(self.vec(Op::Splat(self.lanes(), bits), vec![])), ..value }
            }
            _ => value,
        }
    }

    fn unary(&mut self, op: UnaryFn, dtype: DType, x: Val) -> Selected<Val> {
        let simple = |op: Unary| move |lanes: Lanes| Op::Unary(op, lanes);
        match (op, dtype) {
            (UnaryFn::Neg, DType::F32) => self.pair(Binary::Xor, x, Val::constant(SIGN)),
            (UnaryFn::Abs, DType::F32) => self.pair(Binary::And, x, Val::constant(!SIGN)),
            (UnaryFn::Sqrt, DType::F32) => self.apply(simple(Unary::Sqrt), &[x]),
            (UnaryFn::Floor, DType::F32) => self.apply(simple(Unary::Floor), &[x]),
            (UnaryFn::Ceil, DType::F32) => self.apply(simple(Unary::Ceil), &[x]),
            (UnaryFn::Trunc, DType::F32) => self.apply(simple(Unary::Trunc), &[x]),
            (UnaryFn::Round, DType::F32) => self.apply(simple(Unary::Nearest), &[x]),
            (UnaryFn::Recip, DType::F32) => self.pair(Binary::Div, Val::float(1.0), x),
            (UnaryFn::IsNan, DType::F32) => self.test(Compare::Ne, x, x),
            (UnaryFn::IsPosInf, DType::F32) => self.test(Compare::Eq, x, Val::float(f32::INFINITY)),
            (UnaryFn::IsNegInf, DType::F32) => self.test(Compare::Eq, x, Val::float(f32::NEG_INFINITY)),
            (UnaryFn::Neg, DType::I32) => self.pair(Binary::IntSub, Val::constant(0), x),
            (UnaryFn::Not, DType::Bool) => self.not(x),
            _ => refuse(format!("{op} of {dtype}")),
        }
    }

    pub fn binary(&mut self, op: BinaryFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        match (op, dtype) {
            (BinaryFn::Add, DType::F32) => self.pair(Binary::Add, a, b),
            (BinaryFn::Sub, DType::F32) => self.pair(Binary::Sub, a, b),
            (BinaryFn::Mul, DType::F32) => self.pair(Binary::Mul, a, b),
            (BinaryFn::Div, DType::F32) => self.pair(Binary::Div, a, b),
            (BinaryFn::Max, DType::F32) => self.extreme(Binary::Max, a, b),
            (BinaryFn::Min, DType::F32) => self.extreme(Binary::Min, a, b),
            (BinaryFn::Add, DType::I32) => self.pair(Binary::IntAdd, a, b),
            (BinaryFn::Sub, DType::I32) => self.pair(Binary::IntSub, a, b),
            (BinaryFn::Mul, DType::I32) => self.pair(Binary::IntMul, a, b),
            (BinaryFn::Max, DType::I32) => self.pair(Binary::IntMax, a, b),
            (BinaryFn::Min, DType::I32) => self.pair(Binary::IntMin, a, b),
            (BinaryFn::BitAnd, DType::I32) => self.pair(Binary::And, a, b),
            (BinaryFn::And, DType::Bool) => self.logic(Logic::And, a, b),
            (BinaryFn::BitOr, DType::I32) => self.pair(Binary::Or, a, b),
            (BinaryFn::Or, DType::Bool) => self.logic(Logic::Or, a, b),
            (BinaryFn::BitXor, DType::I32) => self.pair(Binary::Xor, a, b),
            (BinaryFn::Xor, DType::Bool) => self.logic(Logic::Xor, a, b),
            (BinaryFn::Shl | BinaryFn::Shr, DType::I32) => match b.kind {
                Kind::Const(count @ 0..32) => {
                    let count = count as u8;
                    let shift = if op == BinaryFn::Shl { Unary::Shl(count) } else { Unary::ShrArith(count) };
                    self.apply(|lanes| Op::Unary(shift, lanes), &[a])
                }
                _ => refuse("a shift by a variable count"),
            },
            _ => refuse(format!("{op} of {dtype}")),
        }
    }

    /// NaN if an operand is NaN. The instruction gives its second operand then, so that one which is never NaN
    /// comes first.
    fn extreme(&mut self, op: Binary, a: Val, b: Val) -> Selected<Val> {
        let (first, second) = if b.not_nan { (b, a) } else { (a, b) };
        let value = self.pair(op, first, second)?;
        if a.not_nan || b.not_nan {
            return Ok(Val { not_nan: a.not_nan && b.not_nan, ..value });
        }
        let nan = self.test(Compare::Ne, a, a)?;
        self.apply(Op::Blend, &[nan, a, value])
    }

    fn compare(&mut self, op: CompareFn, dtype: DType, a: Val, b: Val) -> Selected<Val> {
        let float = match dtype {
            DType::F32 => true,
            DType::I32 => false,
            _ => return refuse(format!("a comparison of {dtype}")),
        };
        match (op, float) {
            (CompareFn::Eq, true) => self.test(Compare::Eq, a, b),
            (CompareFn::Ne, true) => self.test(Compare::Ne, a, b),
            (CompareFn::Lt, true) => self.test(Compare::Lt, a, b),
            (CompareFn::Le, true) => self.test(Compare::Le, a, b),
            (CompareFn::Gt, true) => self.test(Compare::Lt, b, a),
            (CompareFn::Ge, true) => self.test(Compare::Le, b, a),
            (CompareFn::Eq, false) => self.test(Compare::IntEq, a, b),
            (CompareFn::Gt, false) => self.test(Compare::IntGt, a, b),
            (CompareFn::Lt, false) => self.test(Compare::IntGt, b, a),
            (CompareFn::Ne, false) => {
                let equal = self.test(Compare::IntEq, a, b)?;
                self.not(equal)
            }
            (CompareFn::Le, false) => {
                let greater = self.test(Compare::IntGt, a, b)?;
                self.not(greater)
            }
            (CompareFn::Ge, false) => {
                let less = self.test(Compare::IntGt, b, a)?;
                self.not(less)
            }
        }
    }
}

fn result_class(op: Op) -> Class {
    match op {
        Op::Compare(..) | Op::Mask(..) | Op::MaskNot(_) => Class::Mask,
        _ => Class::Vec,
    }
}
