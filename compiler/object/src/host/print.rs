//! The text form of host programs, written. `host::parse` documents the grammar and reads it.

use std::fmt::{self, Display, Formatter, Write};

use crate::host::abi::status;
use crate::host::ir::{
    Address, Binary, Checked, Compare, Condition, Event, Extent, FrameField, Function, FunctionKind, Inst,
    Kernel, Op, Operand, OptionsField, Place, Pointers, Policy, Port, Program, Region, SlotUse, TensorField,
    Traced, Type, Value,
};

pub(super) const BINARIES: [(Binary, &str); 7] = [
    (Binary::Add, "add"),
    (Binary::Sub, "sub"),
    (Binary::And, "and"),
    (Binary::Or, "or"),
    (Binary::Min, "min"),
    (Binary::Max, "max"),
    (Binary::MaxUnsigned, "max_unsigned"),
];

pub(super) const CHECKED: [(Checked, &str); 4] = [
    (Checked::Add, "add_checked"),
    (Checked::Mul, "mul_checked"),
    (Checked::Div, "div_checked"),
    (Checked::Mod, "mod_checked"),
];

pub(super) const COMPARES: [(Compare, &str); 7] = [
    (Compare::Eq, "eq"),
    (Compare::Ne, "ne"),
    (Compare::Lt, "lt"),
    (Compare::Le, "le"),
    (Compare::Gt, "gt"),
    (Compare::Ge, "ge"),
    (Compare::LtUnsigned, "lt_unsigned"),
];

pub(super) const OPTIONS: [(OptionsField, &str); 10] = [
    (OptionsField::StructSize, "struct_size"),
    (OptionsField::ParallelFor, "parallel_for"),
    (OptionsField::Allocate, "allocate"),
    (OptionsField::Release, "release"),
    (OptionsField::Seed, "seed"),
    (OptionsField::Communicator, "communicator"),
    (OptionsField::Weights, "weights"),
    (OptionsField::WeightsBytes, "weights_bytes"),
    (OptionsField::Function, "callee"),
    (OptionsField::FunctionContext, "callee_context"),
];

pub(super) const TENSOR: [(TensorField, &str); 5] = [
    (TensorField::Data, "data"),
    (TensorField::Bytes, "bytes"),
    (TensorField::Dtype, "dtype"),
    (TensorField::Rank, "rank"),
    (TensorField::Dims, "dims"),
];

pub(super) const FRAME: [(FrameField, &str); 7] = [
    (FrameField::Arena, "arena"),
    (FrameField::Weights, "weights"),
    (FrameField::Options, "options"),
    (FrameField::Sizes, "sizes"),
    (FrameField::Cancel, "cancel"),
    (FrameField::Parallel, "parallel"),
    (FrameField::Level, "level"),
];

pub(super) const EVENTS: [(Event, &str); 3] =
    [(Event::RunBegin, "run_begin"), (Event::RunEnd, "run_end"), (Event::Leave, "leave")];

/// Whether a step has bodies.
pub(super) const TRACED: [(bool, &str); 2] = [(false, "alone"), (true, "with_bodies")];

pub(super) const KINDS: [(FunctionKind, &str); 7] = [
    (FunctionKind::Model, "model"),
    (FunctionKind::Workspace, "workspace"),
    (FunctionKind::StateBytes, "state_bytes"),
    (FunctionKind::StateReset, "state_reset"),
    (FunctionKind::Run, "run"),
    (FunctionKind::Checks, "checks"),
    (FunctionKind::Part, "part"),
];

/// The name of an item in one of these tables.
pub(super) fn name_of<T: PartialEq>(table: &'static [(T, &'static str)], item: T) -> Option<&'static str> {
    table.iter().find(|row| row.0 == item).map(|row| row.1)
}

fn spelled<T: PartialEq>(table: &'static [(T, &'static str)], item: T) -> &'static str {
    name_of(table, item).unwrap_or("?")
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Value(value) => write!(f, "{value}"),
            Operand::Int(number) => write!(f, "{number}"),
        }
    }
}

impl Display for Extent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Const(number) => write!(f, "{number}"),
            Extent::Size(at) => write!(f, "size {at}"),
        }
    }
}

impl Display for Port {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Port::Input(at) => write!(f, "input {at}"),
            Port::Output(at) => write!(f, "output {at}"),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Options(field) => write!(f, "option {}", spelled(&OPTIONS, *field)),
            Place::Tensor(port, field) => write!(f, "{port} {}", spelled(&TENSOR, *field)),
            Place::Dim(port, axis) => write!(f, "{port} dim {axis}"),
            Place::Size(at) => write!(f, "size {at}"),
            Place::Outputs => write!(f, "outputs"),
            Place::Frame(frame, field) => {
                match frame {
                    Some(frame) => write!(f, "{frame} ")?,
                    None => write!(f, "frame ")?,
                }
                match field {
                    FrameField::Input(at) => write!(f, "input {at}"),
                    FrameField::Output(at) => write!(f, "output {at}"),
                    field => write!(f, "{}", spelled(&FRAME, *field)),
                }
            }
            Place::Block(slot) => write!(f, "{slot}"),
            Place::At { ty, base, offset } => {
                write!(f, "{} [{base}", spelled(&Type::ALL, *ty))?;
                match offset {
                    0 => write!(f, "]"),
                    1.. => write!(f, " + {offset}]"),
                    _ => write!(f, " - {}]", offset.unsigned_abs()),
                }
            }
        }
    }
}

impl Display for Address {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Address::Weights(offset) => write!(f, "weights {offset}"),
            Address::Arena(offset) => write!(f, "arena {offset}"),
            Address::Workspace => write!(f, "workspace"),
            Address::Options => write!(f, "options"),
            Address::Cancel => write!(f, "cancel"),
            Address::Report => write!(f, "report"),
            Address::Frame(frame) => write!(f, "{frame}"),
            Address::Descriptor => write!(f, "descriptor"),
            Address::Strings => write!(f, "strings"),
        }
    }
}

impl Display for Pointers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)?;
        match self.at {
            Some(at) => write!(f, " at {at}"),
            None => Ok(()),
        }
    }
}

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)?;
        for version in &self.versions {
            write!(f, " level {}: {}..{}", version.level, version.lo, version.hi)?;
            match version.threads {
                Policy::Never => {}
                Policy::Always => write!(f, " threads")?,
                Policy::From { size, least } => write!(f, " threads from {size} >= {least}")?,
            }
        }
        Ok(())
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "host {:?} {{", self.name)?;
        writeln!(f, "  inputs {} outputs {} weights {}", self.inputs, self.outputs, self.weights)?;
        for (at, text) in self.sizes.iter().enumerate() {
            writeln!(f, "  size {at} {text:?}")?;
        }
        if self.keeps_outputs {
            writeln!(f, "  outputs")?;
        }
        for (slot, owner) in &self.slots {
            match owner {
                SlotUse::Block => writeln!(f, "  {slot}")?,
                SlotUse::Output(at) => writeln!(f, "  {slot} output {at}")?,
            }
        }
        for (id, frame) in &self.frames {
            writeln!(
                f,
                "  {id} inputs {} outputs {} pointers {}",
                frame.inputs, frame.outputs, frame.pointers
            )?;
        }
        writeln!(f, "  buffers {}", self.buffers)?;
        if let Some(strings) = self.strings {
            writeln!(f, "  strings at {strings}")?;
        }
        writeln!(f, "  arena at {}", self.arena)?;
        for (id, kernel) in &self.kernels {
            writeln!(f, "  {id} {kernel}")?;
        }
        for function in self.functions.values() {
            self.function(f, function)?;
        }
        writeln!(f, "}}")
    }
}

impl Program {
    fn function(&self, f: &mut Formatter<'_>, function: &Function) -> fmt::Result {
        write!(f, "\n  function {:?} ", function.name)?;
        match function.kind {
            FunctionKind::Steps(frame) => write!(f, "steps {frame}")?,
            kind => write!(f, "{}", spelled(&KINDS, kind))?,
        }
        writeln!(f, "({}) {{", list(&function.params))?;
        self.region(f, &function.body, 2)?;
        writeln!(f, "  }}")
    }

    fn region(&self, f: &mut Formatter<'_>, region: &Region, depth: usize) -> fmt::Result {
        region.iter().try_for_each(|inst| self.inst(f, inst, depth))
    }

    fn inst(&self, f: &mut Formatter<'_>, inst: &Inst, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        f.write_str(&indent)?;
        if !inst.results.is_empty() {
            write!(f, "{} = ", list(&inst.results))?;
        }
        match &inst.op {
            Op::If { condition, then, otherwise } => {
                match condition {
                    Condition::Value(value) => writeln!(f, "if {value} {{")?,
                    Condition::Holds(slot) => writeln!(f, "if holds {slot} {{")?,
                }
                self.region(f, then, depth + 1)?;
                if !otherwise.is_empty() {
                    writeln!(f, "{indent}}} else {{")?;
                    self.region(f, otherwise, depth + 1)?;
                }
                writeln!(f, "{indent}}}")
            }
            Op::Loop { params, init, head, condition, body, next } => {
                let carried = params.iter().zip(init).map(|(param, init)| format!("{param} = {init}"));
                writeln!(f, "loop ({}) {{", carried.collect::<Vec<_>>().join(", "))?;
                self.region(f, head, depth + 1)?;
                writeln!(f, "{indent}}} while {condition} {{")?;
                self.region(f, body, depth + 1)?;
                writeln!(f, "{indent}}} next ({})", list(next))
            }
            Op::Attempt { body, status, handler } => {
                writeln!(f, "attempt {{")?;
                self.region(f, body, depth + 1)?;
                writeln!(f, "{indent}}} failed {status} {{")?;
                self.region(f, handler, depth + 1)?;
                writeln!(f, "{indent}}}")
            }
            op => writeln!(f, "{}", self.plain(op)),
        }
    }

    /// An operation without regions.
    fn plain(&self, op: &Op) -> String {
        match op {
            Op::Binary(binary, a, b) => format!("{} {a}, {b}", spelled(&BINARIES, *binary)),
            Op::Checked(checked, a, b) => format!("{} {a}, {b}", spelled(&CHECKED, *checked)),
            Op::Compare(compare, a, b) => format!("{} {a}, {b}", spelled(&COMPARES, *compare)),
            Op::Select(condition, a, b) => format!("select {condition}, {a}, {b}"),
            Op::Extend(value) => format!("extend {value}"),
            Op::Offset(base, offset) => format!("offset {base}, {offset}"),
            Op::Element { base, index, bytes } => format!("element {base}, {index}, {bytes}"),
            Op::Address(address) => format!("address {address}"),
            Op::Level => "level".into(),
            Op::Load(place) => format!("load {place}"),
            Op::Store(place, value) => format!("store {place}, {value}"),
            Op::Inherit(frame) => format!("inherit {frame}"),
            Op::Extern(function, args) => format!("extern {}({})", function.name, list(args)),
            Op::External(callee, record) => {
                let word = if callee.late { "late" } else { "external" };
                format!("{word} {}({record})", callee.symbol)
            }
            Op::Exchange(function, args) => format!("exchange {}({})", function.name, list(args)),
            Op::Clear(slot) => format!("clear {slot}"),
            Op::Allocate { slot, bytes, what } => format!("allocate {slot}, {bytes}, {what:?}"),
            Op::Grow { slot, used, bytes, what } => format!("grow {slot}, {used}, {bytes}, {what:?}"),
            Op::Release(slot) => format!("release {slot}"),
            Op::Empty(slot) => format!("empty {slot}"),
            Op::Transfer { from, to } => format!("transfer {from}, {to}"),
            Op::FailIf { condition, status, template, args } => {
                let status = spelled(&status::NAMES, *status);
                let mut text = format!("fail_if {condition}, {status}, {template:?}");
                for arg in args {
                    let _ = write!(text, ", {arg}");
                }
                text
            }
            Op::Poll => "poll".into(),
            Op::Call(function, args) => {
                let name = self.functions.get(*function).map_or("?", |function| function.name.as_str());
                format!("call {name:?}({})", list(args))
            }
            Op::Return(result) => format!("return {result}"),
            Op::Kernel(kernel, buffers) => format!("kernel {kernel}({})", list(buffers)),
            Op::Job { job, begin, end } => format!("job {job}, {begin}, {end}"),
            Op::Step { number, polls, what } => {
                let mut text = format!("{} {number}", if *polls { "step" } else { "unpolled_step" });
                if let Some(Traced { has_bodies, kernel, nodes }) = what {
                    let _ = write!(text, ", {}, {kernel:?}, {nodes:?}", spelled(&TRACED, *has_bodies));
                }
                text
            }
            Op::Event(event, number) => format!("event {}, {number}", spelled(&EVENTS, *event)),
            Op::StepDone(step) => format!("step_done {step}"),
            Op::If { .. } | Op::Loop { .. } | Op::Attempt { .. } => String::new(),
        }
    }
}

fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// An operation as it is named in messages.
pub(super) fn inst_text(program: &Program, inst: &Inst) -> String {
    let text = match &inst.op {
        Op::If { .. } => "if".to_string(),
        Op::Loop { .. } => "loop".to_string(),
        Op::Attempt { .. } => "attempt".to_string(),
        op => program.plain(op),
    };
    let results: &[Value] = &inst.results;
    match results {
        [] => text,
        results => format!("{} = {text}", list(results)),
    }
}
