//! Writing one function of a host program: values, regions, and the idioms that the lowering is made of. Operations on
//! numbers that are known are computed here.

use cranelift_entity::PrimaryMap;

use crate::host::ir::{
    Address, Binary, Checked, Compare, Condition, Function, FunctionKind, Inst, MEMCPY, Op, Operand, Place,
    Region, Type, Value,
};
use crate::host::message::{MOST_NUMBERS, V};

/// A function being written. Operations go to the innermost open region.
pub(super) struct Builder {
    function: Function,
    regions: Vec<Region>,
}

impl Builder {
    pub(super) fn new(name: String, kind: FunctionKind) -> Builder {
        let mut values = PrimaryMap::new();
        let params = kind.signature().0.iter().map(|&ty| values.push(ty)).collect();
        Builder { function: Function { name, kind, params, values, body: vec![] }, regions: vec![vec![]] }
    }

    pub(super) fn finish(mut self) -> Function {
        self.function.body = self.close();
        self.function
    }

    pub(super) fn param(&self, number: usize) -> Value {
        self.function.params[number]
    }

    pub(super) fn params(&self) -> Vec<Operand> {
        self.function.params.iter().map(|&param| param.into()).collect()
    }

    /// Begins a region, which [`Builder::close`] ends.
    pub(super) fn open(&mut self) {
        self.regions.push(vec![]);
    }

    pub(super) fn close(&mut self) -> Region {
        let mut region = self.regions.pop().unwrap_or_default();
        // Programs are kept whole, and a model of thousands of tensors has hundreds of thousands of operations.
        region.shrink_to_fit();
        region
    }

    /// A value that an operation with regions defines.
    pub(super) fn fresh(&mut self, ty: Type) -> Value {
        self.function.values.push(ty)
    }

    pub(super) fn append(&mut self, inst: Inst) {
        if let Some(region) = self.regions.last_mut() {
            region.push(inst);
        }
    }

    fn push(&mut self, results: &[Value], op: Op) {
        self.append(Inst { results: results.into(), op });
    }

    pub(super) fn effect(&mut self, op: Op) {
        self.push(&[], op);
    }

    pub(super) fn value(&mut self, ty: Type, op: Op) -> Value {
        let value = self.fresh(ty);
        self.push(&[value], op);
        value
    }

    fn type_of(&self, operand: Operand) -> Option<Type> {
        match operand {
            Operand::Value(value) => Some(self.function.values[value]),
            Operand::Int(_) => None,
        }
    }

    pub(super) fn load(&mut self, place: Place) -> Value {
        self.value(place.ty(), Op::Load(place))
    }

    pub(super) fn load_at(&mut self, ty: Type, base: Value, offset: i64) -> Value {
        self.load(Place::At { ty, base, offset })
    }

    pub(super) fn store(&mut self, place: Place, value: impl Into<Operand>) {
        self.effect(Op::Store(place, value.into()));
    }

    pub(super) fn address(&mut self, address: Address) -> Value {
        self.value(Type::Ptr, Op::Address(address))
    }

    pub(super) fn offset(&mut self, base: Value, offset: impl Into<Operand>) -> Value {
        match offset.into() {
            Operand::Int(0) => base,
            offset => self.value(Type::Ptr, Op::Offset(base, offset)),
        }
    }

    pub(super) fn binary(&mut self, binary: Binary, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        let (a, b) = (a.into(), b.into());
        match (binary, a, b) {
            (_, Operand::Int(a), Operand::Int(b)) => Operand::Int(binary.of(a, b)),
            // These are truth values.
            (Binary::And, Operand::Int(1), other) | (Binary::And, other, Operand::Int(1))
                if self.type_of(other) == Some(Type::I8) =>
            {
                other
            }
            (Binary::And, Operand::Int(0), _) | (Binary::And, _, Operand::Int(0)) => Operand::Int(0),
            (Binary::Or | Binary::Add, Operand::Int(0), other)
            | (Binary::Or | Binary::Add | Binary::Sub, other, Operand::Int(0)) => other,
            _ => {
                let ty = match self.type_of(a).or(self.type_of(b)) {
                    Some(Type::I8) => Type::I8,
                    _ => Type::I64,
                };
                self.value(ty, Op::Binary(binary, a, b)).into()
            }
        }
    }

    /// The result, and whether it is none.
    pub(super) fn checked(&mut self, checked: Checked, a: Operand, b: Operand) -> (Operand, Operand) {
        match (checked, a, b) {
            (Checked::Add, Operand::Int(0), other) | (Checked::Add, other, Operand::Int(0)) => {
                (other, Operand::Int(0))
            }
            (Checked::Mul | Checked::Div, other, Operand::Int(1))
            | (Checked::Mul, Operand::Int(1), other) => (other, Operand::Int(0)),
            _ => {
                let (result, none) = (self.fresh(Type::I64), self.fresh(Type::I8));
                self.push(&[result, none], Op::Checked(checked, a, b));
                (result.into(), none.into())
            }
        }
    }

    pub(super) fn compare(
        &mut self,
        compare: Compare,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Operand {
        let (a, b) = (a.into(), b.into());
        match (a, b) {
            (Operand::Int(a), Operand::Int(b)) => Operand::Int(i64::from(compare.holds(a, b))),
            _ => self.value(Type::I8, Op::Compare(compare, a, b)).into(),
        }
    }

    pub(super) fn select(
        &mut self,
        condition: impl Into<Operand>,
        then: impl Into<Operand>,
        otherwise: impl Into<Operand>,
    ) -> Operand {
        let (then, otherwise) = (then.into(), otherwise.into());
        match condition.into() {
            Operand::Int(0) => otherwise,
            Operand::Int(_) => then,
            Operand::Value(condition) => {
                let ty = self.type_of(then).or(self.type_of(otherwise)).unwrap_or(Type::I64);
                self.value(ty, Op::Select(condition, then, otherwise)).into()
            }
        }
    }

    /// A number as i64.
    pub(super) fn extend(&mut self, value: Value) -> Value {
        match self.function.values[value] {
            Type::I32 | Type::I8 => self.value(Type::I64, Op::Extend(value)),
            Type::I64 | Type::Ptr => value,
        }
    }

    /// Leaves with `status` where `bad` is not 0.
    pub(super) fn fail_if(&mut self, bad: Operand, status: i32, template: &str, args: &[Operand]) {
        let condition = match bad {
            Operand::Int(0) => return,
            // What fails for every input is known only to the model's user: the run says so.
            Operand::Int(_) => self.value(Type::I8, Op::Compare(Compare::Eq, 0.into(), 0.into())),
            Operand::Value(condition) => condition,
        };
        let (template, args) = with_known(template, args);
        self.effect(Op::FailIf { condition, status, template, args });
    }

    pub(super) fn if_else(&mut self, condition: Condition, then: Region, otherwise: Region) {
        self.effect(Op::If { condition, then, otherwise });
    }

    /// Copies bytes between places that do not overlap.
    pub(super) fn copy(&mut self, to: Value, from: Value, bytes: Operand) {
        self.effect(Op::Extern(&MEMCPY, vec![to.into(), from.into(), bytes]));
    }
}

/// A template that has those of its numbers which are known as text, and the others.
fn with_known(template: &str, args: &[Operand]) -> (String, Vec<Operand>) {
    let (mut text, mut left, mut args) = (String::with_capacity(template.len()), vec![], args.iter());
    for c in template.chars() {
        match (c, if c == V { args.next() } else { None }) {
            (_, Some(Operand::Int(known))) => text.push_str(&known.to_string()),
            (_, Some(&value)) if left.len() < MOST_NUMBERS => {
                text.push(V);
                left.push(value);
            }
            (V, _) => text.push('?'),
            (c, _) => text.push(c),
        }
    }
    (text, left)
}
