//! The writer: a function of the host program becomes Cranelift IR.
//!
//! Here are functions and regions; `leave` writes the ways to leave them, `numbers` arithmetic, `memory` finds what has a
//! name, `blocks` allocates and gives back, `kernels` calls, `trace` informs those who trace runs.

mod blocks;
mod kernels;
mod leave;
mod memory;
mod numbers;
mod trace;

use cranelift_codegen::ir::{InstBuilder, SourceLoc, StackSlot, Value, types};
use cranelift_entity::{PrimaryMap, SecondaryMap};
use cranelift_module::FuncId;

use crate::emit::func::Code;
use crate::emit::object::Unit;
use crate::host::abi::communicator;
use crate::host::ir::{
    self, Condition, Function, Inst, KernelId, Op, Operand, OptionsField, Place, Program, Region, Type,
};
use crate::host::lower::internal;
use onnxc_ir::error::Result;

pub(super) use kernels::kernel_signature;

/// The functions of each kernel's versions, and the offset of the sizes that each is called with.
pub(super) type KernelFunctions = PrimaryMap<KernelId, Vec<(FuncId, i64)>>;

/// What all functions of a program refer to.
pub(super) struct Symbols<'p> {
    pub program: &'p Program,
    pub functions: PrimaryMap<ir::FuncId, FuncId>,
    pub kernels: KernelFunctions,
    /// See `message`.
    pub message: FuncId,
    /// See `trace`; of an object that can be traced.
    pub trace: Option<FuncId>,
}

impl<'p> Symbols<'p> {
    /// Declares the functions of a program.
    pub(super) fn new(
        unit: &mut Unit,
        program: &'p Program,
        kernels: KernelFunctions,
        (message, trace): (FuncId, Option<FuncId>),
    ) -> Result<Symbols<'p>> {
        let mut functions = PrimaryMap::new();
        for function in program.functions.values() {
            let (params, result) = function.kind.signature();
            let params: Vec<_> = params.iter().map(|&ty| clif_type(ty)).collect();
            let signature = unit.signature(&params, Some(clif_type(result)));
            functions.push(unit.declare(&function.name, &signature)?);
        }
        Ok(Symbols { program, functions, kernels, message, trace })
    }

    /// Writes all functions.
    pub(super) fn write(&self, unit: &mut Unit) -> Result<()> {
        for (id, function) in &self.program.functions {
            unit.build(self.functions[id], |code| Writer::new(code, self, function).run())?;
        }
        Ok(())
    }
}

/// What Cranelift knows code of a step by.
pub(super) fn location(step: i64) -> SourceLoc {
    u32::try_from(step + 1).map_or_else(|_| SourceLoc::default(), SourceLoc::new)
}

pub(super) fn clif_type(ty: Type) -> cranelift_codegen::ir::Type {
    match ty {
        Type::I64 | Type::Ptr => types::I64,
        Type::I32 => types::I32,
        Type::I8 => types::I8,
    }
}

/// A function while it is written.
struct Writer<'c, 'a, 'p> {
    code: &'c mut Code<'a>,
    symbols: &'p Symbols<'p>,
    program: &'p Program,
    function: &'p Function,
    values: SecondaryMap<ir::Value, Option<Value>>,
    environment: memory::Environment,
    /// Addresses for a kernel; every call of the function reuses them, as it does the frame of a body and the job.
    buffers: Option<StackSlot>,
    body_frame: Option<StackSlot>,
    job: Option<StackSlot>,
    report: Option<StackSlot>,
    leaves: Vec<leave::Leave>,
    /// What a failure hands over.
    leave_slot: Option<StackSlot>,
}

impl<'c, 'a, 'p> Writer<'c, 'a, 'p> {
    fn new(code: &'c mut Code<'a>, symbols: &'p Symbols<'p>, function: &'p Function) -> Self {
        let params = code.params();
        let mut values = SecondaryMap::new();
        for (&param, &value) in function.params.iter().zip(&params) {
            values[param] = Some(value);
        }
        let environment = memory::Environment::new(code, symbols.program, function.kind, &params);
        Writer {
            code,
            symbols,
            program: symbols.program,
            function,
            values,
            environment,
            buffers: None,
            body_frame: None,
            job: None,
            report: None,
            leaves: vec![],
            leave_slot: None,
        }
    }

    fn run(mut self) -> Result<()> {
        self.push_leave();
        self.region(&self.function.body)?;
        let leave = self.pop_leave()?;
        if leave.is_used {
            self.code.b.switch_to_block(leave.block);
            let status = self.status();
            self.code.b.ins().return_(&[status]);
        }
        Ok(())
    }

    /// Writes a region; gives whether control goes on behind it.
    fn region(&mut self, region: &'p Region) -> Result<bool> {
        for inst in region {
            if !self.inst(inst)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn get(&self, value: ir::Value) -> Result<Value> {
        self.values[value].ok_or_else(|| internal(format!("{value} is not defined")))
    }

    fn set(&mut self, results: &[ir::Value], values: &[Value]) {
        for (&result, &value) in results.iter().zip(values) {
            self.values[result] = Some(value);
        }
    }

    /// An operand where the type asked for is `ty`.
    fn operand(&mut self, operand: Operand, ty: Type) -> Result<Value> {
        match operand {
            Operand::Value(value) => self.get(value),
            Operand::Int(number) => Ok(self.code.b.ins().iconst(clif_type(ty), number)),
        }
    }

    fn int(&mut self, operand: Operand) -> Result<Value> {
        self.operand(operand, Type::I64)
    }

    /// Two operands of one type.
    fn pair(&mut self, a: Operand, b: Operand) -> Result<(Value, Value)> {
        let ty = |operand| match operand {
            Operand::Value(value) => self.function.values.get(value).copied(),
            Operand::Int(_) => None,
        };
        let ty = ty(a).or(ty(b)).unwrap_or(Type::I64);
        Ok((self.operand(a, ty)?, self.operand(b, ty)?))
    }

    /// Writes an operation; gives whether control goes on behind it.
    fn inst(&mut self, inst: &'p Inst) -> Result<bool> {
        let result = match &inst.op {
            Op::Binary(binary, a, b) => self.binary(*binary, *a, *b)?,
            Op::Checked(checked, a, b) => {
                let (a, b) = (self.int(*a)?, self.int(*b)?);
                let both = self.checked(*checked, a, b);
                self.set(&inst.results, &both);
                return Ok(true);
            }
            Op::Compare(compare, a, b) => {
                let cc = numbers::condition_code(*compare);
                match (a, b) {
                    (Operand::Value(a), Operand::Int(b)) => {
                        let a = self.get(*a)?;
                        self.code.icmp_imm(cc, a, *b)
                    }
                    _ => {
                        let (a, b) = self.pair(*a, *b)?;
                        self.code.icmp(cc, a, b)
                    }
                }
            }
            Op::Select(condition, a, b) => {
                let condition = self.get(*condition)?;
                let (a, b) = self.pair(*a, *b)?;
                self.code.b.ins().select(condition, a, b)
            }
            Op::Extend(value) => {
                let value = self.get(*value)?;
                self.code.b.ins().sextend(types::I64, value)
            }
            Op::Offset(base, offset) => {
                let base = self.get(*base)?;
                match offset {
                    Operand::Int(offset) => self.code.add(base, *offset),
                    Operand::Value(offset) => {
                        let offset = self.get(*offset)?;
                        self.code.b.ins().iadd(base, offset)
                    }
                }
            }
            Op::Element { base, index, bytes } => {
                let (base, index, bytes) = (self.get(*base)?, self.int(*index)?, self.int(*bytes)?);
                let offset = self.code.b.ins().imul(index, bytes);
                self.code.b.ins().iadd(base, offset)
            }
            Op::Address(address) => self.address(*address)?,
            Op::Level => self.level(),
            Op::Load(place) => self.load(*place)?,
            Op::Extern(function, args) => {
                let mut values = vec![];
                for (&arg, &ty) in args.iter().zip(function.params) {
                    values.push(self.operand(arg, ty)?);
                }
                let id = self.code.unit.import(function)?;
                match self.code.call_extern(id, &values) {
                    Some(result) => result,
                    None => return Ok(true),
                }
            }
            Op::Exchange(function, args) => {
                let given = self.load(Place::Options(OptionsField::Communicator))?;
                let entry = communicator::FUNCTIONS.iter().find(|(name, _)| *name == function.name);
                let &(_, offset) = entry.ok_or_else(|| internal(format!("there is no {}", function.name)))?;
                let pointer = self.code.load64(given, offset);
                let mut values = vec![self.code.load64(given, communicator::CONTEXT)];
                let mut params = vec![types::I64];
                for (&arg, &ty) in args.iter().zip(function.params) {
                    values.push(self.operand(arg, ty)?);
                    params.push(clif_type(ty));
                }
                let signature = self.code.unit.signature(&params, Some(types::I32));
                let status = self.code.call_pointer(&signature, pointer, &values);
                status.ok_or_else(|| internal(format!("{} gives no status", function.name)))?
            }
            Op::External(callee, record) => {
                let record = self.get(*record)?;
                let status = match callee.late {
                    true => self.call_late(&callee.symbol, record)?,
                    false => {
                        let id = self.code.unit.import_external(&callee.symbol)?;
                        self.code.call_extern(id, &[record])
                    }
                };
                status.ok_or_else(|| internal(format!("{} gives no status", callee.symbol)))?
            }
            Op::Kernel(kernel, buffers) => self.kernel(*kernel, buffers)?,
            Op::Job { job, begin, end } => {
                let [job, begin, end] = [self.get(*job)?, self.get(*begin)?, self.get(*end)?];
                self.job(job, begin, end)?
            }
            op => return self.effect(op),
        };
        self.set(&inst.results, &[result]);
        Ok(true)
    }

    /// Calls the function of the caller's options, which is given the name.
    fn call_late(&mut self, symbol: &str, record: Value) -> Result<Option<Value>> {
        let function = self.load(Place::Options(OptionsField::Function))?;
        let context = self.load(Place::Options(OptionsField::FunctionContext))?;
        let name = self.code.unit.text(symbol);
        let texts = self.code.unit.text_symbol();
        let texts = self.code.data_addr(texts, true);
        let name = self.code.add(texts, name);
        let signature = self.code.unit.signature(&[types::I64; 3], Some(types::I32));
        Ok(self.code.call_pointer(&signature, function, &[context, name, record]))
    }

    fn effect(&mut self, op: &'p Op) -> Result<bool> {
        match op {
            Op::Store(place, value) => {
                let value = self.operand(*value, place.ty())?;
                self.store(*place, value)?;
            }
            Op::Inherit(frame) => self.inherit(*frame)?,
            Op::Clear(slot) => self.clear(*slot)?,
            Op::Allocate { slot, bytes, what } => {
                let bytes = self.int(*bytes)?;
                self.allocate(*slot, bytes, what)?;
            }
            Op::Grow { slot, used, bytes, what } => {
                let (used, bytes) = (self.int(*used)?, self.int(*bytes)?);
                self.grow(*slot, used, bytes, what)?;
            }
            Op::Release(slot) => self.release(*slot)?,
            Op::Empty(slot) => self.empty(*slot)?,
            Op::Transfer { from, to } => self.transfer(*from, *to)?,
            Op::FailIf { condition, status, template, args } => {
                let condition = self.get(*condition)?;
                let mut numbers = Vec::with_capacity(args.len());
                for &arg in args {
                    numbers.push(self.operand(arg, Type::I64)?);
                }
                self.fail_if(condition, *status, template, &numbers)?;
            }
            Op::Poll => self.poll()?,
            Op::Step { number, polls, what } => {
                self.code.b.set_srcloc(location(*number));
                match what {
                    Some(what) => self.trace_step(*number, *polls, what)?,
                    None if *polls => self.poll()?,
                    None => {}
                }
            }
            Op::Event(event, number) => self.trace_event(*event, *number)?,
            Op::Call(callee, args) => {
                let mut values = vec![];
                for (&arg, &ty) in args.iter().zip(self.program.functions[*callee].kind.signature().0) {
                    values.push(self.operand(arg, ty)?);
                }
                let status = self.code.call(self.symbols.functions[*callee], &values);
                self.leave_if(status)?;
            }
            Op::Return(result) => {
                let result = self.operand(*result, self.function.kind.signature().1)?;
                self.code.b.ins().return_(&[result]);
                return Ok(false);
            }
            Op::StepDone(step) => self.step_done(*step)?,
            Op::If { condition, then, otherwise } => return self.choice(*condition, then, otherwise),
            Op::Loop { params, init, head, condition, body, next } => {
                self.iteration((params, init), head, *condition, (body, next))?;
            }
            Op::Attempt { body, status, handler } => return self.attempt(body, *status, handler),
            op => return Err(internal(format!("{op:?} has no form here"))),
        }
        Ok(true)
    }

    fn choice(&mut self, condition: Condition, then: &'p Region, otherwise: &'p Region) -> Result<bool> {
        let condition = match condition {
            Condition::Value(value) => self.get(value)?,
            Condition::Holds(slot) => self.block(slot)?,
        };
        let next = self.code.block();
        let mut goes_on = false;
        let mut blocks = [next; 2];
        for (block, region) in blocks.iter_mut().zip([then, otherwise]) {
            if !region.is_empty() {
                let is_cold = region.iter().all(|inst| matches!(inst.op, Op::Return(_)));
                *block = if is_cold { self.code.cold_block() } else { self.code.block() };
            }
            goes_on |= region.is_empty();
        }
        self.code.branch(condition, blocks[0], blocks[1]);
        for (block, region) in blocks.into_iter().zip([then, otherwise]) {
            if block != next {
                self.code.b.switch_to_block(block);
                if self.region(region)? {
                    self.code.jump(next, &[]);
                    goes_on = true;
                }
            }
        }
        if goes_on {
            self.code.b.switch_to_block(next);
        }
        Ok(goes_on)
    }

    fn iteration(
        &mut self,
        (params, init): (&'p [ir::Value], &'p [Operand]),
        head: &'p Region,
        condition: ir::Value,
        (body, next): (&'p Region, &'p [Operand]),
    ) -> Result<()> {
        let (start, turn, done) = (self.code.block(), self.code.block(), self.code.block());
        let mut values = vec![];
        for (&param, &init) in params.iter().zip(init) {
            let ty = self.function.values[param];
            values.push(self.operand(init, ty)?);
            self.values[param] = Some(self.code.b.append_block_param(start, clif_type(ty)));
        }
        self.code.jump(start, &values);
        self.code.b.switch_to_block(start);
        self.region(head)?;
        let condition = self.get(condition)?;
        self.code.branch(condition, turn, done);
        self.code.b.switch_to_block(turn);
        if self.region(body)? {
            let mut values = vec![];
            for (&param, &next) in params.iter().zip(next) {
                values.push(self.operand(next, self.function.values[param])?);
            }
            self.code.jump(start, &values);
        }
        self.code.b.switch_to_block(done);
        Ok(())
    }

    fn attempt(&mut self, body: &'p Region, status: ir::Value, handler: &'p Region) -> Result<bool> {
        let next = self.code.block();
        self.push_leave();
        let mut goes_on = self.region(body)?;
        if goes_on {
            self.code.jump(next, &[]);
        }
        let leave = self.pop_leave()?;
        if leave.is_used {
            self.code.b.switch_to_block(leave.block);
            self.values[status] = Some(self.status());
            if self.region(handler)? {
                self.code.jump(next, &[]);
                goes_on = true;
            }
        }
        if goes_on {
            self.code.b.switch_to_block(next);
        }
        Ok(goes_on)
    }
}
