//! Expressions: scalars or vectors, of lanes as wide as the element type asks for.

use super::address::LaneIndex;
use super::narrow::is_narrow;
use super::{Select, Selected, refuse};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_ir::interp;
use onnxc_ir::scalar::{BinaryFn, UnaryFn};
use onnxc_loops::{Expr, Index};
use onnxc_machine::vector::ir::{Binary, Class, Compare, Convert, Lanes, Logic, Mem, Op, Reg, Unary};

/// How values of an element type are held in lanes: integers of less than 32 bits as i32, floats of 16 bits and less as f32,
/// bools as masks, complex numbers as their bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Single,
    Double,
    Int,
    Long,
    Mask,
    /// 128 bits: two lanes of 64 for one element.
    Pair,
}

impl Form {
    pub fn of(dtype: DType) -> Selected<Form> {
        Ok(match dtype {
            DType::F64 => Form::Double,
            _ if dtype.is_float() => Form::Single,
            DType::I64 | DType::U64 | DType::C64 => Form::Long,
            _ if dtype.is_int() => Form::Int,
            DType::Bool => Form::Mask,
            DType::C128 => Form::Pair,
            _ => return refuse(format!("values of {dtype}")),
        })
    }

    /// Bytes of a lane. A mask may have either width.
    pub fn width(self) -> usize {
        match self {
            Form::Single | Form::Int | Form::Mask => 4,
            Form::Double | Form::Long => 8,
            Form::Pair => 16,
        }
    }

    /// The lanes of one element.
    pub fn one(self) -> Lanes {
        one(self.width())
    }

    pub fn is_float(self) -> bool {
        matches!(self, Form::Single | Form::Double)
    }
}

/// The lanes of one element of `width` bytes.
fn one(width: usize) -> Lanes {
    match width {
        16 => Lanes::D2,
        8 => Lanes::D1,
        _ => Lanes::X1,
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Val {
    pub kind: ValKind,
    /// Bytes of a lane.
    pub width: usize,
    /// Known to be no NaN.
    pub not_nan: bool,
    /// What is known of the range of a float other than NaN: not below the least i32, not above the greatest.
    pub above: bool,
    pub below: bool,
    /// No byte of an integer of 32 bits has its highest bit set.
    pub small_bytes: bool,
    /// The same as it is stored: f16 in the lower part of a vector where the machine converts those, else codes of a narrow
    /// float in lanes of 32 bits.
    pub packed: Option<Reg>,
}

#[derive(Clone, Copy, Debug)]
pub enum ValKind {
    /// Bits of the lane; of a bool 0 or 1.
    Const(u64),
    /// The same in all lanes.
    Scalar(Reg),
    Vector(Reg),
}

/// What a vector with equal lanes is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    Const(u64),
    Scalar(Reg),
}

impl Val {
    fn new(kind: ValKind, width: usize) -> Val {
        Val { kind, width, not_nan: false, above: false, below: false, small_bytes: false, packed: None }
    }

    pub fn scalar(reg: Reg, width: usize) -> Val {
        Val::new(ValKind::Scalar(reg), width)
    }

    pub fn vector(reg: Reg, width: usize) -> Val {
        Val::new(ValKind::Vector(reg), width)
    }

    pub fn of(reg: Reg, lanes: Lanes) -> Val {
        if lanes.is_scalar() { Val::scalar(reg, lanes.width()) } else { Val::vector(reg, lanes.width()) }
    }

    /// The bits of an integer or a float in a lane.
    pub fn bits(bits: u64, form: Form) -> Val {
        let value = match form {
            Form::Single => f64::from(f32::from_bits(bits as u32)),
            Form::Double => f64::from_bits(bits),
            Form::Int | Form::Long | Form::Mask | Form::Pair => 0.0,
        };
        let mut constant = Val::new(ValKind::Const(bits), form.width());
        constant.not_nan = !value.is_nan();
        // The greatest f32 that is an i32.
        (constant.above, constant.below) = (value >= -2_147_483_648.0, value <= 2_147_483_520.0);
        constant
    }

    pub fn int(value: i32) -> Val {
        Val::bits(u64::from(value as u32), Form::Int)
    }

    pub fn long(value: i64) -> Val {
        Val::bits(value as u64, Form::Long)
    }

    pub fn single(value: f32) -> Val {
        Val::bits(u64::from(value.to_bits()), Form::Single)
    }

    pub fn double(value: f64) -> Val {
        Val::bits(value.to_bits(), Form::Double)
    }

    /// A small number in lanes of this form.
    pub fn number(value: i8, form: Form) -> Val {
        match form {
            Form::Single => Val::single(value.into()),
            Form::Double => Val::double(value.into()),
            Form::Long => Val::long(value.into()),
            Form::Int | Form::Mask | Form::Pair => Val::int(value.into()),
        }
    }

    /// A constant of the loop IR.
    pub fn of_constant(dtype: DType, bits: u64) -> Selected<Val> {
        let unused = 64 - dtype.bits().min(64);
        let lane = match dtype {
            DType::Bool => u64::from(bits & 0xff != 0),
            _ if is_narrow(dtype) => float_bits(dtype, bits),
            _ if dtype.is_signed_int() && dtype.size() < 8 => {
                u64::from((((bits << unused) as i64) >> unused) as i32 as u32)
            }
            _ => bits << unused >> unused,
        };
        Ok(Val::bits(lane, Form::of(dtype)?))
    }

    /// The bits of a constant.
    pub fn as_bits(&self) -> Option<u64> {
        match self.kind {
            ValKind::Const(bits) => Some(bits),
            _ => None,
        }
    }

    pub fn is_constant(&self) -> bool {
        matches!(self.kind, ValKind::Const(_))
    }

    pub fn register(&self) -> Option<Reg> {
        match self.kind {
            ValKind::Const(_) => None,
            ValKind::Scalar(reg) | ValKind::Vector(reg) => Some(reg),
        }
    }

    pub fn is_vector(&self) -> bool {
        matches!(self.kind, ValKind::Vector(_))
    }
}

/// The f32 of a narrow float.
fn float_bits(dtype: DType, bits: u64) -> u64 {
    let data = bytes::Bytes::copy_from_slice(&bits.to_le_bytes()[..dtype.size()]);
    let wide = interp::cast(&Tensor::new(dtype, vec![], data), DType::F32, true);
    let mut lane = [0; 8];
    lane[..4].copy_from_slice(&wide.data[..4]);
    u64::from_le_bytes(lane)
}

impl Select<'_> {
    pub fn eval(&mut self, expr: &Expr) -> Selected<Val> {
        if let Some(value) = self.from_table(expr)? {
            return Ok(value);
        }
        match expr {
            Expr::Const { dtype, bits } => Val::of_constant(*dtype, *bits),
            Expr::Index(index) => self.index_value(index),
            Expr::Var(var) => match self.lets.get(var) {
                Some(&value) => Ok(value),
                None => self.index_value(&Index::var(*var)),
            },
            Expr::Load { buf, index } => self.load(*buf, index),
            Expr::Word { buf, index } => self.load_word(*buf, index),
            Expr::Quad { bytes } => self.quad(bytes),
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
                let dtype = self.kernel.dtype(a);
                if !Form::of(dtype)?.is_float() {
                    let (a, b, c) = (self.eval(a)?, self.eval(b)?, self.eval(c)?);
                    let product = self.binary(BinaryFn::Mul, dtype, a, b)?;
                    return self.binary(BinaryFn::Add, dtype, product, c);
                }
                let value = if let Expr::Unary { op: UnaryFn::Neg, x } = &**a {
                    let (x, b, c) = (self.eval(x)?, self.eval(b)?, self.eval(c)?);
                    match self.isa.has_fma {
                        true => {
                            let c = self.fresh(c, x)?;
                            self.apply_constant(Op::FmaNeg, &[c, x, b])?
                        }
                        false => {
                            let product = self.pair(Binary::Mul, x, b)?;
                            self.pair(Binary::Sub, c, product)?
                        }
                    }
                } else {
                    let (a, b, c) = (self.eval(a)?, self.eval(b)?, self.eval(c)?);
                    self.fma(a, b, c)?
                };
                self.round(value, dtype)
            }
            Expr::Compare { op, a, b } => {
                let dtype = self.kernel.dtype(a);
                let (a, b) = (self.eval(a)?, self.eval(b)?);
                self.compare(*op, dtype, a, b)
            }
            Expr::Select { condition, then, otherwise } => {
                let form = Form::of(self.kernel.dtype(then))?;
                let condition = self.eval(condition)?;
                let (then, otherwise) = (self.eval(then)?, self.eval(otherwise)?);
                self.choose(form, condition, then, otherwise)
            }
            Expr::Cast { to, saturate, x } => {
                if let Some(value) = self.nearest_int(x, *to, *saturate)? {
                    return Ok(value);
                }
                let from = self.kernel.dtype(x);
                let x = self.eval(x)?;
                self.cast(from, *to, *saturate, x)
            }
            Expr::Bitcast { to, x } => {
                let from = self.kernel.dtype(x);
                let value = self.eval(x)?;
                self.bits_as(from, *to, value)
            }
        }
    }

    /// The same bits as another type of that size.
    fn bits_as(&mut self, from: DType, to: DType, x: Val) -> Selected<Val> {
        if from == to {
            return Ok(x);
        }
        let (before, after) = (Form::of(from)?, Form::of(to)?);
        let integer = match before {
            Form::Mask => self.choose(Form::Int, x, Val::int(1), Val::int(0))?,
            _ if is_narrow(from) => self.encode_exact(x, from)?,
            _ => Val::new(x.kind, x.width),
        };
        match after {
            Form::Mask => {
                let zero = self.test(Compare::IntEq, integer, Val::int(0))?;
                self.not(zero)
            }
            _ if is_narrow(to) => {
                let code = self.pair(Binary::And, integer, Val::int((1 << (8 * to.size())) - 1))?;
                self.decode(code, to)
            }
            Form::Int => self.round(integer, to),
            _ => Ok(integer),
        }
    }

    /// An index as an i64.
    fn index_value(&mut self, index: &Index) -> Selected<Val> {
        let value = |cx: &mut Self, index: &Index| {
            let sum = cx.sum(index)?;
            Ok(cx.shared(Op::FromGeneral(Lanes::D1), vec![sum]))
        };
        let lanes = match self.place_of(index, 1)? {
            LaneIndex::Uniform(index) => {
                return match index.as_int() {
                    Some(constant) => Ok(Val::long(constant)),
                    None => Ok(Val::scalar(value(self, &index)?, 8)),
                };
            }
            LaneIndex::Contiguous(first) => {
                let count = self.group.as_ref().map_or(1, |group| group.lanes);
                (0..count).map(|lane| first.add(&Index::int(lane as i64))).collect()
            }
            LaneIndex::Lanes(lanes) => lanes,
        };
        let scalars = lanes.iter().map(|index| value(self, index)).collect::<Selected<Vec<_>>>()?;
        self.join(&scalars, 8)
    }

    /// A value that is the same in all lanes, in the first one.
    pub fn scalar(&mut self, value: Val) -> Selected<Reg> {
        match value.kind {
            ValKind::Vector(_) => refuse("a vector where a scalar is wanted"),
            _ => Ok(self.spread(value, one(value.width))),
        }
    }

    /// A value in all lanes. Masks take the width of the lanes.
    pub fn spread(&mut self, value: Val, lanes: Lanes) -> Reg {
        match value.kind {
            ValKind::Vector(reg) => self.fit(reg, value.width, lanes),
            ValKind::Scalar(reg) if value.width == 16 => reg,
            ValKind::Scalar(reg) => {
                let reg = self.fit(reg, value.width, lanes.one());
                if lanes.is_scalar() { reg } else { self.splat(Key::Scalar(reg), lanes) }
            }
            ValKind::Const(bits @ 1..) if value.width == 16 => {
                let (zero, low) = (self.splat(Key::Const(0), lanes), self.splat(Key::Const(bits), Lanes::D1));
                self.vec(Op::Insert(0, lanes), vec![zero, low])
            }
            ValKind::Const(bits) => self.splat(Key::Const(bits), lanes),
        }
    }

    /// A mask for lanes of another width.
    fn fit(&mut self, reg: Reg, width: usize, lanes: Lanes) -> Reg {
        if width == lanes.width() || self.isa.has_mask_registers || self.func.regs[reg] != Class::Mask {
            return reg;
        }
        match lanes.width() {
            8 => self.inst(Op::MaskWiden(lanes), Class::Mask, vec![reg], None),
            _ => {
                let wide = Lanes::of(lanes.count(), 8).unwrap_or(lanes);
                self.inst(Op::MaskNarrow(wide), Class::Mask, vec![reg], None)
            }
        }
    }

    fn splat(&mut self, key: Key, lanes: Lanes) -> Reg {
        if let Some(reg) = self.find(|scope| scope.splats.get(&(key, lanes))) {
            return reg;
        }
        let reg = match key {
            Key::Const(bits) => self.vec(Op::Splat(lanes, bits), vec![]),
            Key::Scalar(reg) if self.func.regs[reg] == Class::Mask => {
                let bits = self.vec(Op::MaskBits(lanes.one()), vec![reg]);
                let all = self.vec(Op::SplatLane(lanes), vec![bits]);
                self.inst(Op::MaskOf(lanes), Class::Mask, vec![all], None)
            }
            Key::Scalar(reg) => self.vec(Op::SplatLane(lanes), vec![reg]),
        };
        self.scope().splats.insert((key, lanes), reg);
        reg
    }

    fn is_mask(&self, value: &Val) -> bool {
        match value.kind {
            ValKind::Const(_) => false,
            ValKind::Scalar(reg) | ValKind::Vector(reg) => self.func.regs[reg] == Class::Mask,
        }
    }

    /// The lanes of an operation: vectors if an operand is one, as wide as the operands that are not masks.
    fn lanes_of(&self, operands: &[Val]) -> Selected<Lanes> {
        let width = |masks: bool| {
            operands.iter().filter(|value| self.is_mask(value) == masks).map(|value| value.width).max()
        };
        let width = width(false).or(width(true)).unwrap_or(4);
        match operands.iter().any(Val::is_vector) {
            true => self.lanes(width),
            false => Ok(one(width)),
        }
    }

    /// An operation on vectors if an operand is one, else on scalars. What the machine has for scalars only is done lane by
    /// lane.
    pub fn apply(&mut self, op: impl Fn(Lanes) -> Op, operands: &[Val]) -> Selected<Val> {
        let lanes = self.lanes_of(operands)?;
        let (whole, single) = (op(lanes), op(lanes.one()));
        let vector = operands.iter().any(Val::is_vector);
        if self.isa.has(whole) {
            let uses = operands.iter().map(|&operand| self.spread(operand, lanes)).collect();
            let reg = self.shared(whole, uses);
            return Ok(match vector {
                true => Val::vector(reg, lanes.width()),
                false => Val::scalar(reg, if lanes.is_scalar() { lanes.width() } else { lanes.bytes() }),
            });
        }
        if !vector || !self.isa.has(single) {
            return refuse(format!("{single:?}"));
        }
        self.lane_by_lane(single, operands, lanes.width())
    }

    /// The result of an operation, which is selected once for several readers if it is a conversion: windows that overlap
    /// read an element several times.
    fn shared(&mut self, op: Op, uses: Vec<Reg>) -> Reg {
        let key = match (op, uses.as_slice()) {
            (Op::Unary(Unary::ToInt | Unary::ToIntNearest | Unary::FromInt, _), &[x])
            | (Op::Convert(..) | Op::FromGeneral(_), &[x]) => (op, x),
            _ => return self.inst(op, result_class(op), uses, None),
        };
        if let Some(reg) = self.find(|scope| scope.conversions.get(&key)) {
            return reg;
        }
        let reg = self.inst(op, result_class(op), uses, None);
        self.scope().conversions.insert(key, reg);
        reg
    }

    fn lane_by_lane(&mut self, single: Op, operands: &[Val], width: usize) -> Selected<Val> {
        let mut scalars = Vec::new();
        for lane in 0..self.group.as_ref().map_or(1, |group| group.lanes) {
            let uses = operands.iter().map(|&operand| self.lane_of(operand, lane));
            let uses = uses.collect::<Selected<Vec<_>>>()?;
            scalars.push(self.vec(single, uses));
        }
        self.join(&scalars, width)
    }

    /// A value whose lanes change their width.
    pub fn convert(&mut self, op: Convert, x: Val) -> Selected<Val> {
        let wide = match x.is_vector() {
            true => self.lanes(8)?,
            false => Lanes::D1,
        };
        let from = match op {
            Convert::Widen | Convert::IntToDouble | Convert::Extend => wide.narrow(),
            _ => wide,
        };
        let to = match op {
            Convert::Narrow | Convert::DoubleToInt | Convert::Truncate => wide.narrow(),
            _ => wide,
        };
        if !self.isa.has(Op::Convert(op, wide)) {
            return self.lane_by_lane(Op::Convert(op, Lanes::D1), &[x], to.width());
        }
        let x = self.spread(x, from);
        Ok(Val::of(self.shared(Op::Convert(op, wide), vec![x]), to))
    }

    /// The same for an operation whose last operand may be in memory, which is where a constant is best: it takes no
    /// register there.
    pub fn apply_constant(&mut self, op: impl Fn(Lanes) -> Op, operands: &[Val]) -> Selected<Val> {
        if let [others @ .., Val { kind: ValKind::Const(bits @ 1..), .. }] = operands
            && others.iter().any(Val::is_vector)
        {
            let lanes = self.lanes_of(operands)?;
            if !self.isa.has(op(lanes)) {
                return self.apply(op, operands);
            }
            let uses = others.iter().map(|&operand| self.spread(operand, lanes)).collect();
            let op = op(lanes);
            let reg = self.inst(op, result_class(op), uses, Some(Mem::Constant(*bits)));
            return Ok(Val::of(reg, lanes));
        }
        self.apply(op, operands)
    }

    pub fn pair(&mut self, op: Binary, a: Val, b: Val) -> Selected<Val> {
        let commutes = matches!(
            op,
            Binary::Add
                | Binary::Mul
                | Binary::And
                | Binary::Or
                | Binary::Xor
                | Binary::IntAdd
                | Binary::IntMul
                | Binary::LowMul
        );
        let (a, b) = if commutes && a.is_constant() { (b, a) } else { (a, b) };
        self.apply_constant(|lanes| Op::Binary(op, lanes), &[a, b])
    }

    pub fn test(&mut self, op: Compare, a: Val, b: Val) -> Selected<Val> {
        let commutes = matches!(op, Compare::Eq | Compare::Ne | Compare::IntEq);
        let (a, b) = if commutes && a.is_constant() { (b, a) } else { (a, b) };
        self.apply_constant(|lanes| Op::Compare(op, lanes), &[a, b])
    }

    pub fn not(&mut self, mask: Val) -> Selected<Val> {
        match mask.kind {
            ValKind::Const(bits) => Ok(Val::bits(bits ^ 1, Form::Mask)),
            _ => self.apply(Op::MaskNot, &[mask]),
        }
    }

    pub fn logic(&mut self, op: Logic, a: Val, b: Val) -> Selected<Val> {
        let (a, b) = if a.is_constant() { (b, a) } else { (a, b) };
        match (op, b.kind) {
            (Logic::And, ValKind::Const(0)) | (Logic::Or, ValKind::Const(1)) => Ok(b),
            (Logic::And, ValKind::Const(_)) | (Logic::Or | Logic::Xor, ValKind::Const(0)) => Ok(a),
            (Logic::Xor, ValKind::Const(_)) => self.not(a),
            _ => self.apply(|lanes| Op::Mask(op, lanes), &[a, b]),
        }
    }

    /// `a * b + c`. A constant is an operand in memory, which decides what the result replaces.
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Selected<Val> {
        if !self.isa.has_fma {
            let product = self.pair(Binary::Mul, a, b)?;
            return self.pair(Binary::Add, product, c);
        }
        let (a, b) = if a.is_constant() { (b, a) } else { (a, b) };
        match c.is_constant() {
            true if b.is_constant() => {
                let b = self.fresh(b, a)?;
                self.apply_constant(Op::MulAdd, &[b, a, c])
            }
            true => self.apply_constant(Op::MulAdd, &[a, b, c]),
            false => self.apply_constant(Op::Fma, &[c, a, b]),
        }
    }

    /// A constant operand that an operation replaces: a load of its own, where a shared one would have to be copied
    /// first. `beside` is another operand.
    fn fresh(&mut self, value: Val, beside: Val) -> Selected<Val> {
        Ok(match value.kind {
            ValKind::Const(bits) if beside.is_vector() => {
                let lanes = self.lanes(value.width)?;
                Val { kind: ValKind::Vector(self.vec(Op::Splat(lanes, bits), vec![])), ..value }
            }
            _ => value,
        })
    }

    /// `then` where the condition holds.
    pub fn choose(&mut self, form: Form, condition: Val, then: Val, otherwise: Val) -> Selected<Val> {
        if let ValKind::Const(mask) = condition.kind {
            return Ok(if mask == 0 { otherwise } else { then });
        }
        if form == Form::Mask {
            let then = self.logic(Logic::And, condition, then)?;
            let condition = self.not(condition)?;
            let otherwise = self.logic(Logic::And, condition, otherwise)?;
            return self.logic(Logic::Or, then, otherwise);
        }
        let mut value = self.apply(Op::Blend, &[condition, then, otherwise])?;
        value.not_nan = then.not_nan && otherwise.not_nan;
        value.above = then.above && otherwise.above;
        value.below = then.below && otherwise.below;
        Ok(value)
    }
}

fn result_class(op: Op) -> Class {
    op.shape().dst.unwrap_or(Class::Vec)
}
