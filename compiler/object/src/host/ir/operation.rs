//! What operations on numbers give, the types of places, and the operands of all.

use super::{
    Binary, Checked, Compare, Condition, FrameField, Op, Operand, OptionsField, Place, TensorField, Type,
    Value,
};

impl Binary {
    /// The operation on two numbers.
    pub fn of(self, a: i64, b: i64) -> i64 {
        match self {
            Binary::Add => a.wrapping_add(b),
            Binary::Sub => a.wrapping_sub(b),
            Binary::And => a & b,
            Binary::Or => a | b,
            Binary::Min => a.min(b),
            Binary::Max => a.max(b),
            Binary::MaxUnsigned => (a as u64).max(b as u64) as i64,
        }
    }
}

impl Checked {
    /// The operation on two numbers; `None` where the result is none.
    pub fn of(self, a: i64, b: i64) -> Option<i64> {
        match self {
            Checked::Add => a.checked_add(b),
            Checked::Mul => a.checked_mul(b),
            Checked::Div => (b > 0).then(|| a.div_euclid(b)),
            Checked::Mod => (b > 0).then(|| a.rem_euclid(b)),
        }
    }
}

impl Compare {
    pub fn holds(self, a: i64, b: i64) -> bool {
        match self {
            Compare::Eq => a == b,
            Compare::Ne => a != b,
            Compare::Lt => a < b,
            Compare::Le => a <= b,
            Compare::Gt => a > b,
            Compare::Ge => a >= b,
            Compare::LtUnsigned => (a as u64) < b as u64,
        }
    }
}

impl Op {
    /// Calls `visit` with every operand of the operation itself, not of its regions.
    pub fn visit_operands(&self, visit: &mut dyn FnMut(Operand)) {
        let mut value = |value: &Value| visit(Operand::Value(*value));
        match self {
            Op::Extend(a) | Op::External(_, a) => value(a),
            Op::FailIf { condition, args, .. } => {
                value(condition);
                args.iter().for_each(|&arg| visit(arg));
            }
            Op::Kernel(_, buffers) => buffers.iter().for_each(value),
            Op::Job { job, begin, end } => [job, begin, end].into_iter().for_each(value),
            Op::Binary(_, a, b) | Op::Checked(_, a, b) | Op::Compare(_, a, b) => {
                [a, b].into_iter().for_each(|&operand| visit(operand));
            }
            Op::Select(condition, a, b) => {
                value(condition);
                [a, b].into_iter().for_each(|&operand| visit(operand));
            }
            Op::Offset(base, offset) => {
                value(base);
                visit(*offset);
            }
            Op::Element { base, index, bytes } => {
                value(base);
                [index, bytes].into_iter().for_each(|&operand| visit(operand));
            }
            Op::Load(place) => place.base().iter().for_each(value),
            Op::Store(place, stored) => {
                place.base().iter().for_each(value);
                visit(*stored);
            }
            Op::Extern(_, args) | Op::Exchange(_, args) | Op::Call(_, args) => {
                args.iter().for_each(|&arg| visit(arg))
            }
            Op::Allocate { bytes, .. } => visit(*bytes),
            Op::Grow { used, bytes, .. } => [used, bytes].into_iter().for_each(|&operand| visit(operand)),
            Op::Return(operand) | Op::Event(_, operand) => visit(*operand),
            Op::If { condition: Condition::Value(condition), .. } => value(condition),
            Op::Loop { init, .. } => init.iter().for_each(|&operand| visit(operand)),
            Op::If { .. } | Op::Attempt { .. } => {}
            Op::Address(_) | Op::Level | Op::Inherit(_) | Op::Poll | Op::Step { .. } | Op::StepDone(_) => {}
            Op::Clear(_) | Op::Release(_) | Op::Empty(_) | Op::Transfer { .. } => {}
        }
    }
}

impl Place {
    pub fn ty(self) -> Type {
        match self {
            Place::Options(OptionsField::StructSize | OptionsField::Seed | OptionsField::WeightsBytes)
            | Place::Tensor(_, TensorField::Bytes)
            | Place::Frame(_, FrameField::Level)
            | Place::Dim(..)
            | Place::Size(_) => Type::I64,
            Place::Tensor(_, TensorField::Dtype | TensorField::Rank) => Type::I32,
            Place::At { ty, .. } => ty,
            Place::Options(_) | Place::Tensor(..) | Place::Frame(..) | Place::Block(_) | Place::Outputs => {
                Type::Ptr
            }
        }
    }

    /// The value that an address is computed from.
    pub fn base(self) -> Option<Value> {
        match self {
            Place::At { base, .. } => Some(base),
            _ => None,
        }
    }
}
