//! Checks that a host program is well formed and keeps what the C ABI promises:
//!
//! - values are defined once, before their uses and where these see them, and operands have the types that operations ask
//!   for; what is named (slots, frames, sizes, kernels, functions, inputs and outputs) exists; functions do what their kind
//!   may do, end by returning, and do not call themselves (this file);
//! - a number is not used as a size, an offset or a dim before the run has left where its arithmetic overflowed (`sizes`);
//! - on every path, those that fail too, each block is given back or handed over once (`blocks`);
//! - `run` writes nothing before its last check (`order`).

mod blocks;
mod declarations;
mod order;
mod sizes;

use cranelift_entity::{EntityRef, EntitySet};

use crate::host::ir::{
    Address, Binary, Condition, Event, Extent, Frame, FrameField, Function, FunctionKind, Inst, Op, Operand,
    Place, Port, Program, Region, Slot, Type, Value,
};
use crate::host::message;
use crate::host::print::inst_text;

/// Whether a program is one; the error names function, operation and rule.
pub fn verify(program: &Program) -> Result<(), String> {
    declarations::verify(program)?;
    for function in program.functions.values() {
        let in_function = |text: String| format!("function {:?}: {text}", function.name);
        FunctionVerifier::new(program, function).run().map_err(in_function)?;
        sizes::verify(program, function).map_err(in_function)?;
        order::verify(program, function).map_err(in_function)?;
    }
    blocks::verify(program)
}

fn expect(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// The regions of an operation.
pub(super) fn regions(op: &Op) -> Vec<&Region> {
    match op {
        Op::If { then, otherwise, .. } => vec![then, otherwise],
        Op::Loop { head, body, .. } => vec![head, body],
        Op::Attempt { body, handler, .. } => vec![body, handler],
        _ => vec![],
    }
}

/// Whether control goes on behind a region.
pub(super) fn falls_through(region: &Region) -> bool {
    match region.last().map(|inst| &inst.op) {
        Some(Op::Return(_)) => false,
        Some(Op::If { then, otherwise, .. }) => falls_through(then) || falls_through(otherwise),
        Some(Op::Attempt { body, handler, .. }) => falls_through(body) || falls_through(handler),
        _ => true,
    }
}

struct FunctionVerifier<'p> {
    program: &'p Program,
    function: &'p Function,
    defined: EntitySet<Value>,
    visible: EntitySet<Value>,
    /// The frame of a body that is in use: those on the stack share their place.
    body_frame: Option<Frame>,
}

impl<'p> FunctionVerifier<'p> {
    fn new(program: &'p Program, function: &'p Function) -> Self {
        let (defined, visible) = (EntitySet::new(), EntitySet::new());
        FunctionVerifier { program, function, defined, visible, body_frame: None }
    }

    fn run(mut self) -> Result<(), String> {
        let (function, (params, _)) = (self.function, self.function.kind.signature());
        expect(function.params.len() == params.len(), || format!("must have {} parameters", params.len()))?;
        let mut scope = vec![];
        for (&param, &ty) in function.params.iter().zip(params) {
            self.define(param, ty, &mut scope)?;
        }
        if let FunctionKind::Steps(frame) = function.kind {
            self.frame(frame)?;
        }
        self.region(&function.body, scope)?;
        expect(!falls_through(&function.body), || "ends without `return`".into())
    }

    fn define(&mut self, value: Value, ty: Type, scope: &mut Vec<Value>) -> Result<(), String> {
        let own = self.function.values.get(value).copied();
        expect(own == Some(ty), || format!("{value} is of another type than its operation"))?;
        expect(self.defined.insert(value), || format!("{value} is defined twice"))?;
        self.visible.insert(value);
        scope.push(value);
        Ok(())
    }

    /// Checks a region, in which the values of `scope` can be used, and forgets what it defines.
    fn region(&mut self, region: &'p Region, mut scope: Vec<Value>) -> Result<(), String> {
        self.insts(region, &mut scope)?;
        self.forget(scope);
        Ok(())
    }

    fn forget(&mut self, scope: Vec<Value>) {
        for value in scope {
            self.visible.remove(value);
        }
    }

    fn insts(&mut self, region: &'p Region, scope: &mut Vec<Value>) -> Result<(), String> {
        for (at, inst) in region.iter().enumerate() {
            let named = |text: String| match inst.op {
                Op::If { .. } | Op::Loop { .. } | Op::Attempt { .. } => text,
                _ => format!("`{}`: {text}", inst_text(self.program, inst)),
            };
            self.inst(inst, scope).map_err(named)?;
            let ends = matches!(inst.op, Op::Return(_)) && at + 1 < region.len();
            expect(!ends, || "something follows a `return`".into())?;
        }
        Ok(())
    }

    fn use_value(&self, value: Value) -> Result<Type, String> {
        expect(self.visible.contains(value), || match self.defined.contains(value) {
            true => format!("{value} is not visible here"),
            false => format!("{value} is used before it is defined"),
        })?;
        self.function.values.get(value).copied().ok_or_else(|| format!("there is no {value}"))
    }

    fn expect_type(&self, operand: Operand, ty: Type) -> Result<(), String> {
        match operand {
            Operand::Value(value) => {
                let own = self.use_value(value)?;
                expect(own == ty, || format!("{value} is of type {own:?}, must be {ty:?}"))
            }
            Operand::Int(number) => {
                expect(ty != Type::Ptr || number == 0, || "a number as an address".into())
            }
        }
    }

    fn same_type(&self, a: Operand, b: Operand) -> Result<Type, String> {
        let ty = |operand| match operand {
            Operand::Value(value) => self.use_value(value).map(Some),
            Operand::Int(_) => Ok(None),
        };
        match (ty(a)?, ty(b)?) {
            (Some(a), Some(b)) if a != b => Err(format!("operands of types {a:?} and {b:?}")),
            (a, b) => Ok(a.or(b).unwrap_or(Type::I64)),
        }
    }

    fn inst(&mut self, inst: &'p Inst, scope: &mut Vec<Value>) -> Result<(), String> {
        self.allowed(&inst.op)?;
        let types = match &inst.op {
            Op::Binary(binary, a, b) => vec![self.binary(*binary, *a, *b)?],
            Op::Checked(_, a, b) => {
                [a, b].into_iter().try_for_each(|&operand| self.expect_type(operand, Type::I64))?;
                vec![Type::I64, Type::I8]
            }
            Op::Compare(_, a, b) => {
                self.same_type(*a, *b)?;
                vec![Type::I8]
            }
            Op::Select(condition, a, b) => {
                self.use_value(*condition)?;
                vec![self.same_type(*a, *b)?]
            }
            Op::Extend(value) => {
                let ty = self.use_value(*value)?;
                expect(matches!(ty, Type::I32 | Type::I8), || format!("{value} is of type {ty:?}"))?;
                vec![Type::I64]
            }
            Op::Offset(base, offset) => {
                self.expect_type((*base).into(), Type::Ptr)?;
                self.expect_type(*offset, Type::I64)?;
                vec![Type::Ptr]
            }
            Op::Element { base, index, bytes } => {
                self.expect_type((*base).into(), Type::Ptr)?;
                [index, bytes].into_iter().try_for_each(|&operand| self.expect_type(operand, Type::I64))?;
                vec![Type::Ptr]
            }
            Op::Address(address) => {
                self.address(*address)?;
                vec![Type::Ptr]
            }
            Op::Level => vec![Type::I64],
            Op::Load(place) => {
                self.place(*place)?;
                vec![place.ty()]
            }
            Op::Extern(function, args) => {
                let wanted = function.params.len();
                expect(args.len() == wanted, || format!("{} has {wanted} parameters", function.name))?;
                args.iter().zip(function.params).try_for_each(|(&arg, &ty)| self.expect_type(arg, ty))?;
                match inst.results.is_empty() {
                    true => vec![],
                    false => function.result.into_iter().collect(),
                }
            }
            Op::Exchange(function, args) => {
                let wanted = function.params.len();
                expect(args.len() == wanted, || format!("{} has {wanted} parameters", function.name))?;
                args.iter().zip(function.params).try_for_each(|(&arg, &ty)| self.expect_type(arg, ty))?;
                vec![Type::I32]
            }
            Op::External(_, record) => {
                self.expect_type((*record).into(), Type::Ptr)?;
                vec![Type::I32]
            }
            Op::Kernel(kernel, buffers) => {
                expect(self.program.kernels.is_valid(*kernel), || format!("there is no {kernel}"))?;
                let most = self.program.buffers.count;
                expect(buffers.len() <= most, || format!("more than {most} buffers"))?;
                buffers.iter().try_for_each(|&buffer| self.expect_type(buffer.into(), Type::Ptr))?;
                vec![Type::I32]
            }
            Op::Job { job, begin, end } => {
                self.expect_type((*job).into(), Type::Ptr)?;
                [begin, end].into_iter().try_for_each(|&n| self.expect_type(n.into(), Type::I64))?;
                vec![Type::I32]
            }
            op => {
                self.effect(op, scope)?;
                vec![]
            }
        };
        expect(inst.results.len() == types.len(), || format!("must have {} results", types.len()))?;
        inst.results.iter().zip(types).try_for_each(|(&result, ty)| self.define(result, ty, scope))
    }

    fn binary(&self, binary: Binary, a: Operand, b: Operand) -> Result<Type, String> {
        match (binary, a, b) {
            // The low bits of an address.
            (Binary::And, Operand::Value(a), Operand::Int(_)) if self.use_value(a)? == Type::Ptr => {
                Ok(Type::I64)
            }
            _ => {
                let ty = self.same_type(a, b)?;
                let logic = matches!(binary, Binary::And | Binary::Or) && ty == Type::I8;
                expect(ty == Type::I64 || logic, || format!("operands of type {ty:?}"))?;
                Ok(ty)
            }
        }
    }

    /// What functions of this kind may do.
    fn allowed(&self, op: &Op) -> Result<(), String> {
        let kind = self.function.kind;
        let allowed = match op {
            Op::Job { .. } => kind == FunctionKind::Part,
            Op::Address(Address::Descriptor) => kind == FunctionKind::Model,
            // Initial values of states.
            Op::Address(Address::Weights(_)) => kind.is_in_run() || kind == FunctionKind::StateReset,
            Op::Level | Op::Store(Place::Outputs, _) | Op::Clear(_) => kind == FunctionKind::Run,
            Op::Inherit(_)
            | Op::Kernel(..)
            | Op::Step { .. }
            | Op::StepDone(_)
            | Op::Event(Event::Leave, _)
            | Op::Load(Place::Frame(None, _)) => matches!(kind, FunctionKind::Steps(_)),
            Op::Event(..) => kind == FunctionKind::Run,
            Op::Address(_) | Op::FailIf { .. } | Op::Poll | Op::Call(..) | Op::Attempt { .. } => {
                kind.is_in_run()
            }
            Op::Allocate { .. } | Op::Grow { .. } | Op::Release(_) | Op::Empty(_) | Op::Transfer { .. } => {
                kind.is_in_run()
            }
            Op::Load(Place::At { .. }) | Op::Store(Place::At { .. }, _) => true,
            Op::Load(_) | Op::Store(..) => kind.is_in_run(),
            _ => true,
        };
        expect(allowed, || format!("not in a function of kind {kind:?}"))
    }

    fn effect(&mut self, op: &'p Op, scope: &mut Vec<Value>) -> Result<(), String> {
        match op {
            Op::Store(place, value) => {
                self.place(*place)?;
                self.expect_type(*value, place.ty())
            }
            Op::Inherit(frame) => {
                self.frame(*frame)?;
                self.body_frame = Some(*frame);
                Ok(())
            }
            Op::Clear(slot) | Op::Release(slot) | Op::Empty(slot) => self.slot(*slot),
            Op::Allocate { slot, bytes, .. } => {
                self.slot(*slot)?;
                self.expect_type(*bytes, Type::I64)
            }
            Op::Grow { slot, used, bytes, .. } => {
                self.slot(*slot)?;
                [used, bytes].into_iter().try_for_each(|&operand| self.expect_type(operand, Type::I64))
            }
            Op::Transfer { from, to } => {
                self.slot(*from)?;
                self.slot(*to)
            }
            Op::FailIf { condition, status, template, args } => {
                self.use_value(*condition)?;
                expect(*status > 0, || "a failure with the status of success".into())?;
                let numbers = message::numbers(template);
                let fits = numbers == args.len() && numbers <= message::MOST_NUMBERS;
                expect(fits, || format!("a template for {numbers} numbers"))?;
                args.iter().try_for_each(|&arg| self.expect_type(arg, Type::I64))
            }
            Op::Call(callee, args) => {
                let Some(callee) = self.program.functions.get(*callee) else {
                    return Err("there is no such function".into());
                };
                let fits = match callee.kind {
                    FunctionKind::Steps(_) => true,
                    FunctionKind::Checks => self.function.kind == FunctionKind::Run,
                    _ => false,
                };
                expect(fits, || format!("a function of kind {:?} is called", callee.kind))?;
                let params = callee.kind.signature().0;
                expect(args.len() == params.len(), || format!("must have {} arguments", params.len()))?;
                args.iter().zip(params).try_for_each(|(&arg, &ty)| self.expect_type(arg, ty))
            }
            Op::Event(_, number) => self.expect_type(*number, Type::I64),
            Op::Return(result) => self.expect_type(*result, self.function.kind.signature().1),
            Op::If { condition, then, otherwise } => {
                match condition {
                    Condition::Value(value) => drop(self.use_value(*value)?),
                    Condition::Holds(slot) => self.slot(*slot)?,
                }
                let before = self.body_frame;
                self.region(then, vec![])?;
                let after = std::mem::replace(&mut self.body_frame, before);
                self.region(otherwise, vec![])?;
                if after != self.body_frame {
                    self.body_frame = None;
                }
                Ok(())
            }
            Op::Loop { params, init, head, condition, body, next } => {
                let count = params.len();
                expect([init.len(), next.len()] == [count; 2], || format!("a loop carries {count} values"))?;
                for (&param, &init) in params.iter().zip(init) {
                    let ty = self.function.values.get(param).copied().unwrap_or(Type::I64);
                    self.expect_type(init, ty)?;
                    self.define(param, ty, scope)?;
                }
                self.insts(head, scope)?;
                self.use_value(*condition)?;
                let before = self.body_frame;
                let mut inner = vec![];
                self.insts(body, &mut inner)?;
                expect(before == self.body_frame, || "a loop puts another frame to use".into())?;
                for (&param, &next) in params.iter().zip(next) {
                    self.expect_type(next, self.function.values[param])?;
                }
                self.forget(inner);
                Ok(())
            }
            Op::Attempt { body, status, handler } => {
                self.region(body, vec![])?;
                let mut inner = vec![];
                self.define(*status, Type::I32, &mut inner)?;
                self.region(handler, inner)
            }
            _ => Ok(()),
        }
    }

    fn slot(&self, slot: Slot) -> Result<(), String> {
        expect(self.program.slots.is_valid(slot), || format!("there is no {slot}"))
    }

    fn frame(&self, frame: Frame) -> Result<(), String> {
        expect(self.program.frames.is_valid(frame), || format!("there is no {frame}"))
    }

    /// The frame of a body in a step function, or that of the model in `run`.
    fn frame_in_use(&self, frame: Frame) -> Result<(), String> {
        self.frame(frame)?;
        let used = match self.function.kind {
            FunctionKind::Steps(_) => self.body_frame,
            _ => Some(Frame::new(0)),
        };
        expect(used == Some(frame), || format!("{frame} is not the frame in use"))
    }

    fn size(&self, at: u32) -> Result<(), String> {
        expect((at as usize) < self.program.sizes.len(), || format!("there is no size {at}"))
    }

    fn port(&self, port: Port) -> Result<(), String> {
        let (at, count) = match port {
            Port::Input(at) => (at, self.program.inputs),
            Port::Output(at) => (at, self.program.outputs),
        };
        expect((at as usize) < count, || format!("there is no {port}"))
    }

    fn address(&self, address: Address) -> Result<(), String> {
        match address {
            Address::Frame(frame) => self.frame_in_use(frame),
            Address::Arena(Extent::Size(at)) => self.size(at),
            Address::Weights(at) => {
                expect(at <= self.program.weights, || format!("weights end at {}", self.program.weights))
            }
            Address::Strings => {
                expect(self.program.strings.is_some(), || "there is no table of strings".to_string())
            }
            _ => Ok(()),
        }
    }

    fn place(&self, place: Place) -> Result<(), String> {
        match place {
            Place::Tensor(port, _) | Place::Dim(port, _) => self.port(port),
            Place::Size(at) => self.size(at),
            Place::Frame(frame, field) => {
                let own = match self.function.kind {
                    FunctionKind::Steps(own) => own,
                    _ => Frame::new(0),
                };
                match frame {
                    Some(frame) => self.frame_in_use(frame)?,
                    None => self.frame(own)?,
                }
                let frame = frame.unwrap_or(own);
                let layout = &self.program.frames[frame];
                let exists = match field {
                    FrameField::Input(at) => (at as usize) < layout.inputs,
                    FrameField::Output(at) => (at as usize) < layout.outputs,
                    _ => true,
                };
                expect(exists, || format!("{frame} has no such field"))
            }
            Place::Block(slot) => self.slot(slot),
            Place::At { base, .. } => self.expect_type(base.into(), Type::Ptr),
            Place::Outputs => {
                expect(self.program.keeps_outputs, || "the program keeps no address of outputs".into())
            }
            Place::Options(_) => Ok(()),
        }
    }
}
