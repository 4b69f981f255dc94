//! Runs host programs, every access to memory checked: the oracle between a schedule and machine code. A run that is
//! right here and wrong in machine code was written wrongly by [`emit`](crate::emit); one that is wrong here was lowered
//! wrongly. [`model`] runs whole models; kernels are somebody else's.

mod calls;
mod externs;
mod memory;
pub mod model;

use std::collections::BTreeMap;

use cranelift_entity::{EntityRef, SecondaryMap};

pub use memory::Memory;

use crate::host::abi::{frame, options, status, tensor};
use crate::host::ir::{
    Address, Condition, Extent, Frame, FuncId, Function, FunctionKind, Inst, KernelId, Op, Operand, Place,
    Port, Program, Region, TensorField, Type, Value,
};
use crate::host::message::rendered;
use crate::host::print::inst_text;
use onnxc_ir::error::{Error, Result as CompilerResult, Stage};
use onnxc_loops::lower::explain::REPORT_WORDS;

/// Operations after which a run counts as one that does not end.
const MAX_OPERATIONS: u64 = 1 << 32;

/// A call of a kernel, of one of its versions.
#[derive(Debug)]
pub struct KernelCall<'c> {
    pub kernel: KernelId,
    /// Number among the kernel's versions.
    pub version: usize,
    /// Addresses of its buffers.
    pub buffers: &'c [u64],
    /// Address of the words of the sizes.
    pub sizes: u64,
    pub range: (i64, i64),
}

/// Runs a kernel on the buffers in memory; gives its code.
pub type Execute<'k> = &'k mut dyn FnMut(&mut Memory, &KernelCall<'_>) -> Result<i32, String>;

/// A program with its memory.
pub struct HostRun<'p, 'k> {
    program: &'p Program,
    pub memory: Memory,
    kernels: Execute<'k>,
    /// The levels that the processor is good for, a bit each.
    pub levels: i64,
    /// How many allocations the caller grants.
    pub grants: usize,
    /// The blocks that the run has and their bytes.
    pub blocks: BTreeMap<u64, usize>,
    /// Numbers of the steps that are done, where the caller asks for them.
    pub steps_done: Vec<i64>,
    /// Events of `onnxc_event` with their numbers, where the caller traces the run.
    pub events: Vec<(i64, i64)>,
    weights: u64,
    zeros: u64,
    descriptor: u64,
    /// What functions have on their stack: frames, the buffers of a kernel, a job.
    frames: SecondaryMap<Frame, u64>,
    buffers: u64,
    job: u64,
    report: u64,
    /// The table of strings, while it is open.
    table: Option<externs::Table>,
    operations: u64,
}

/// What a function finds its memory by.
#[derive(Clone, Copy, Default)]
struct Environment {
    /// Start of its own frame; `run` and the functions that it calls for checks have none.
    frame: Option<u64>,
    options: u64,
    workspace: u64,
    inputs: u64,
    outputs: u64,
}

/// A function that runs.
struct Activation<'p> {
    function: &'p Function,
    values: Vec<i64>,
    environment: Environment,
}

/// How a region ends.
enum End {
    Next,
    Returned(i64),
    /// With a status.
    Left(i32),
}

type Outcome<T> = Result<T, String>;

impl<'p, 'k> HostRun<'p, 'k> {
    /// A machine for a verified program, with the caller's memory and the contents of the weights.
    pub fn new(
        program: &'p Program,
        mut memory: Memory,
        weights: Vec<u8>,
        kernels: Execute<'k>,
    ) -> HostRun<'p, 'k> {
        let mut frames = SecondaryMap::new();
        for (id, layout) in &program.frames {
            if layout.pointers.at.is_none() {
                frames[id] = memory.block(8 * layout.pointers.count);
            }
        }
        HostRun {
            program,
            kernels,
            levels: 1,
            grants: usize::MAX,
            blocks: BTreeMap::new(),
            steps_done: vec![],
            events: vec![],
            weights: memory.constant(weights),
            zeros: memory.constant(vec![0; options::SIZE as usize]),
            descriptor: memory.constant(vec![0; 64]),
            frames,
            buffers: memory.block(8 * program.buffers.count),
            job: memory.block(24),
            report: memory.block(8 * REPORT_WORDS),
            table: None,
            memory,
            operations: 0,
        }
    }

    /// Calls a function by its kind, with its parameters as the C ABI has them; gives what it returns. An access outside
    /// of memory is an internal error.
    pub fn call(&mut self, kind: FunctionKind, args: &[i64]) -> CompilerResult<i64> {
        let internal = |text: String| Error::internal(Stage::Run, text);
        let function = self.program.function_of(kind);
        let function = function.ok_or_else(|| internal(format!("there is no function of kind {kind:?}")))?;
        match self.enter(function, args, Environment::default()) {
            Ok(result) => Ok(result),
            Err(text) => Err(internal(text)),
        }
    }

    fn enter(&mut self, id: FuncId, args: &[i64], outer: Environment) -> Outcome<i64> {
        let function = &self.program.functions[id];
        let mut values = vec![0; function.values.len()];
        for (param, &arg) in function.params.iter().zip(args) {
            values[param.index()] = arg;
        }
        let environment = self.environment(function.kind, args, outer)?;
        let mut activation = Activation { function, values, environment };
        match self.region(&mut activation, &function.body)? {
            End::Returned(result) => Ok(result),
            End::Left(status) => Ok(status.into()),
            End::Next => Err(format!("function {:?} ends without `return`", function.name)),
        }
    }

    fn environment(&self, kind: FunctionKind, args: &[i64], outer: Environment) -> Outcome<Environment> {
        Ok(match (kind, args) {
            (FunctionKind::Run | FunctionKind::Checks, &[inputs, _, outputs, _, workspace, _, options]) => {
                let options = if options == 0 { self.zeros } else { options as u64 };
                let [workspace, inputs, outputs] = [workspace, inputs, outputs].map(|at| at as u64);
                Environment { frame: None, options, workspace, inputs, outputs }
            }
            (FunctionKind::Steps(_), &[frame_at]) => {
                let frame_at = frame_at as u64;
                let field = |offset: i64| self.memory.load(Type::Ptr, frame_at + offset as u64);
                let (options, workspace) = (field(frame::OPTIONS)? as u64, field(frame::DIMS)? as u64);
                let outputs = match self.program.keeps_outputs {
                    true => self.memory.load(Type::Ptr, workspace + self.program.outputs_at() as u64)? as u64,
                    false => 0,
                };
                Environment { frame: Some(frame_at), options, workspace, inputs: outer.inputs, outputs }
            }
            _ => outer,
        })
    }

    fn region(&mut self, a: &mut Activation<'p>, region: &'p Region) -> Outcome<End> {
        for inst in region {
            self.operations += 1;
            if self.operations > MAX_OPERATIONS {
                return Err("the run does not end".into());
            }
            let named = |text: String| match inst.op {
                Op::If { .. } | Op::Loop { .. } | Op::Attempt { .. } | Op::Call(..) => text,
                _ => format!("function {:?}: `{}`: {text}", a.function.name, inst_text(self.program, inst)),
            };
            let end = self.inst(a, inst);
            match end.map_err(named)? {
                End::Next => {}
                end => return Ok(end),
            }
        }
        Ok(End::Next)
    }

    fn inst(&mut self, a: &mut Activation<'p>, inst: &'p Inst) -> Outcome<End> {
        let results = match &inst.op {
            Op::Binary(binary, x, y) => [binary.of(a.get(*x), a.get(*y)), 0],
            Op::Checked(checked, x, y) => {
                let result = checked.of(a.get(*x), a.get(*y));
                // A value that nobody may use where there is none.
                [result.unwrap_or(-0x5a5a_5a5a_5a5a), i64::from(result.is_none())]
            }
            Op::Compare(compare, x, y) => [i64::from(compare.holds(a.get(*x), a.get(*y))), 0],
            Op::Select(condition, x, y) => [a.get(if a.value(*condition) != 0 { *x } else { *y }), 0],
            Op::Extend(value) => [a.value(*value), 0],
            Op::Offset(base, offset) => [a.value(*base).wrapping_add(a.get(*offset)), 0],
            Op::Element { base, index, bytes } => {
                let offset = a.get(*index).wrapping_mul(a.get(*bytes));
                [a.value(*base).wrapping_add(offset), 0]
            }
            Op::Address(address) => [self.address(a, *address)? as i64, 0],
            Op::Level => [self.levels, 0],
            Op::Load(place) => {
                let at = self.place(a, *place)?;
                [self.memory.load(place.ty(), at)?, 0]
            }
            Op::Extern(function, args) => {
                let args: Vec<i64> = args.iter().map(|&arg| a.get(arg)).collect();
                [self.call_extern(function, &args)?, 0]
            }
            Op::External(callee, record) => [self.call_external(&callee.symbol, a.value(*record) as u64)?, 0],
            Op::Exchange(function, _) => {
                return Err(format!("`{}` is of other ranks, outside of this interpreter", function.name));
            }
            Op::Kernel(kernel, buffers) => {
                let buffers: Vec<u64> = buffers.iter().map(|&buffer| a.value(buffer) as u64).collect();
                [i64::from(self.kernel(a, *kernel, &buffers)?), 0]
            }
            Op::Job { job, begin, end } => {
                [i64::from(self.part_of_job(a.value(*job) as u64, (a.value(*begin), a.value(*end)))?), 0]
            }
            op => return self.effect(a, op),
        };
        for (&result, value) in inst.results.iter().zip(results) {
            a.values[result.index()] = value;
        }
        Ok(End::Next)
    }

    fn effect(&mut self, a: &mut Activation<'p>, op: &'p Op) -> Outcome<End> {
        match op {
            Op::Store(place, value) => {
                let at = self.place(a, *place)?;
                self.memory.store(place.ty(), at, a.get(*value))?;
            }
            Op::Inherit(inner) => {
                let (to, from) = (self.frame_at(a, *inner), a.frame()?);
                for offset in (frame::ARENA + 8..frame::IO).step_by(8) {
                    let value = self.memory.load(Type::I64, from + offset as u64)?;
                    self.memory.store(Type::I64, to + offset as u64, value)?;
                }
            }
            Op::Clear(slot) => self.set_slot(a, *slot, 0, None)?,
            Op::Allocate { slot, bytes, what } => {
                if self.held(a, *slot)? != 0 {
                    return Err("the slot holds a block".into());
                }
                return self.allocate(a, *slot, a.get(*bytes), what);
            }
            Op::Grow { slot, used, bytes, what } => return self.grow(a, *slot, (*used, *bytes), what),
            Op::Release(slot) => {
                if self.held(a, *slot)? == 0 {
                    return Err("the slot is empty".into());
                }
                self.release(a, *slot)?;
            }
            Op::Empty(slot) => {
                if self.held(a, *slot)? != 0 {
                    self.release(a, *slot)?;
                }
            }
            Op::Transfer { from, to } => {
                let (block, bytes) = self.slot(a, *from)?;
                if block == 0 || self.held(a, *to)? != 0 {
                    return Err("nothing to hand over, or a block in the way".into());
                }
                self.set_slot(a, *to, block, Some(bytes))?;
                self.set_slot(a, *from, 0, None)?;
            }
            Op::FailIf { condition, status, template, args } => {
                if a.value(*condition) != 0 {
                    let numbers: Vec<i64> = args.iter().map(|&arg| a.get(arg)).collect();
                    return self.fail(a, *status, template, &numbers);
                }
            }
            Op::Poll | Op::Step { .. } => {
                if !matches!(op, Op::Step { polls: false, .. }) {
                    let cancel = self.address(a, Address::Cancel)?;
                    if self.memory.load(Type::I32, cancel)? != 0 {
                        return self.fail(a, status::CANCELLED, "cancelled by the caller", &[]);
                    }
                }
                if let Op::Step { number, what: Some(what), .. } = op {
                    self.trace(a, (what.event(), *number))?;
                }
            }
            Op::Event(event, number) => self.trace(a, (event.number(), a.get(*number)))?,
            Op::Call(callee, args) => {
                let args: Vec<i64> = args.iter().map(|&arg| a.get(arg)).collect();
                let status = self.enter(*callee, &args, a.environment)?;
                if status != 0 {
                    return Ok(End::Left(status as i32));
                }
            }
            Op::Return(result) => return Ok(End::Returned(a.get(*result))),
            Op::StepDone(step) => {
                let callback =
                    self.memory.load(Type::Ptr, a.environment.options + options::STEP_DONE as u64)?;
                if callback != 0 {
                    self.steps_done.push(*step);
                }
            }
            Op::If { condition, then, otherwise } => {
                let holds = match condition {
                    Condition::Value(value) => a.value(*value) != 0,
                    Condition::Holds(slot) => self.held(a, *slot)? != 0,
                };
                return self.region(a, if holds { then } else { otherwise });
            }
            Op::Loop { params, init, head, condition, body, next } => {
                let mut carried: Vec<i64> = init.iter().map(|&init| a.get(init)).collect();
                loop {
                    for (param, &value) in params.iter().zip(&carried) {
                        a.values[param.index()] = value;
                    }
                    match self.region(a, head)? {
                        End::Next if a.value(*condition) == 0 => return Ok(End::Next),
                        End::Next => {}
                        end => return Ok(end),
                    }
                    match self.region(a, body)? {
                        End::Next => carried = next.iter().map(|&next| a.get(next)).collect(),
                        end => return Ok(end),
                    }
                }
            }
            Op::Attempt { body, status, handler } => match self.region(a, body)? {
                End::Left(code) => {
                    a.values[status.index()] = code.into();
                    return self.region(a, handler);
                }
                end => return Ok(end),
            },
            op => return Err(format!("{op:?} is not an operation")),
        }
        Ok(End::Next)
    }

    /// Informs the trace of a caller that has one.
    fn trace(&mut self, a: &Activation<'_>, event: (i64, i64)) -> Outcome<()> {
        let field = |offset: i64| self.memory.load(Type::I64, a.environment.options + offset as u64);
        if field(options::STRUCT_SIZE)? >= options::FOURTH_SIZE && field(options::TRACE)? != 0 {
            self.events.push(event);
        }
        Ok(())
    }

    /// Leaves with a status; an empty template leaves the caller's message as it is.
    fn fail(&mut self, a: &Activation<'_>, status: i32, template: &str, numbers: &[i64]) -> Outcome<End> {
        if !template.is_empty() {
            let field = |offset: i64| self.memory.load(Type::Ptr, a.environment.options + offset as u64);
            let (buffer, capacity) = (field(options::MESSAGE)? as u64, field(options::MESSAGE_CAPACITY)?);
            if buffer != 0 && capacity != 0 {
                let mut text = rendered(template, numbers).into_bytes();
                text.truncate(capacity as usize - 1);
                text.push(0);
                self.memory.write(buffer, &text)?;
            }
        }
        Ok(End::Left(status))
    }

    fn frame_at(&self, a: &Activation<'_>, id: Frame) -> u64 {
        match self.program.frames[id].pointers.at {
            Some(at) => a.environment.workspace + at as u64,
            None => self.frames[id],
        }
    }

    fn extent(&self, a: &Activation<'_>, extent: Extent) -> Outcome<i64> {
        match extent {
            Extent::Const(value) => Ok(value),
            Extent::Size(at) => self.memory.load(Type::I64, a.environment.workspace + 8 * u64::from(at)),
        }
    }

    fn address(&self, a: &Activation<'_>, address: Address) -> Outcome<u64> {
        let environment = &a.environment;
        Ok(match address {
            Address::Weights(offset) => self.weights + offset,
            Address::Arena(offset) => {
                let start = match environment.frame {
                    Some(own) => self.memory.load(Type::Ptr, own + frame::ARENA as u64)? as u64,
                    None => environment.workspace + self.program.arena as u64,
                };
                start.wrapping_add_signed(self.extent(a, offset)?)
            }
            Address::Workspace => environment.workspace,
            Address::Options => environment.options,
            Address::Cancel => match environment.frame {
                Some(own) => self.memory.load(Type::Ptr, own + frame::CANCEL as u64)? as u64,
                None => {
                    let flag = self.memory.load(Type::Ptr, environment.options + options::CANCEL as u64)?;
                    if flag == 0 { self.zeros } else { flag as u64 }
                }
            },
            Address::Report => self.report,
            Address::Frame(id) => self.frame_at(a, id),
            Address::Descriptor => self.descriptor,
            Address::Strings => {
                let at = self.program.strings.ok_or("there is no table of strings")?;
                environment.workspace + at as u64
            }
        })
    }

    fn place(&self, a: &Activation<'_>, place: Place) -> Outcome<u64> {
        let environment = &a.environment;
        let descriptor = |port: Port| match port {
            Port::Input(at) => environment.inputs + u64::from(at) * tensor::SIZE as u64,
            Port::Output(at) => environment.outputs + u64::from(at) * tensor::SIZE as u64,
        };
        Ok(match place {
            Place::Options(field) => environment.options + field.offset() as u64,
            Place::Tensor(port, field) => descriptor(port) + field.offset() as u64,
            Place::Dim(port, axis) => {
                let dims =
                    self.memory.load(Type::Ptr, descriptor(port) + TensorField::Dims.offset() as u64)?;
                dims as u64 + 8 * u64::from(axis)
            }
            Place::Size(at) => environment.workspace + 8 * u64::from(at),
            Place::Outputs => environment.workspace + self.program.outputs_at() as u64,
            Place::Frame(frame, field) => {
                let (id, start) = match (frame, a.function.kind) {
                    (Some(id), _) => (id, self.frame_at(a, id)),
                    (None, FunctionKind::Steps(id)) => (id, a.frame()?),
                    (None, _) => return Err("there is no frame".into()),
                };
                start + field.offset(self.program.frames[id].inputs) as u64
            }
            Place::Block(slot) => environment.workspace + self.program.slot_at(slot) as u64,
            Place::At { base, offset, .. } => (a.value(base) as u64).wrapping_add_signed(offset),
        })
    }
}

impl Activation<'_> {
    fn value(&self, value: Value) -> i64 {
        self.values[value.index()]
    }

    fn get(&self, operand: Operand) -> i64 {
        match operand {
            Operand::Value(value) => self.value(value),
            Operand::Int(number) => number,
        }
    }

    fn frame(&self) -> Outcome<u64> {
        self.environment.frame.ok_or_else(|| "there is no frame".to_string())
    }
}
