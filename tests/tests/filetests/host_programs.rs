//! Host programs as text: read, verified, printed and read again, run by the interpreter, and changed in ways that the verifier or the
//! reader must refuse. See `filetests/README.md` for the format.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use onnxc_object::host::abi::{options, status, tensor};
use onnxc_object::host::interp::{HostRun, KernelCall, Memory};
use onnxc_object::host::ir::{
    Address, Binary, Callee, Checked, Compare, Condition, Event, Extent, FrameField, FunctionKind, Op,
    Operand, OptionsField, Place, Policy, Program, Region, SlotUse, TensorField, Type,
};
use onnxc_object::host::parse::parse;
use onnxc_object::host::verify::verify;

use super::{hold, run_files};

/// Kinds of something, each with the pattern that recognizes it: the match has no default, so what is new does not compile until
/// it is here, and the test then asks for a file that has it.
macro_rules! kinds {
    ($function:ident, $all:ident, $ty:ty, { $($pattern:pat => $name:literal,)* }) => {
        const $all: &[&str] = &[$($name),*];

        fn $function(item: &$ty) -> &'static str {
            match item {
                $($pattern => $name,)*
            }
        }
    };
}

kinds!(operation, OPERATIONS, Op, {
    Op::Binary(Binary::Add, ..) => "add",
    Op::Binary(Binary::Sub, ..) => "sub",
    Op::Binary(Binary::And, ..) => "and",
    Op::Binary(Binary::Or, ..) => "or",
    Op::Binary(Binary::Min, ..) => "min",
    Op::Binary(Binary::Max, ..) => "max",
    Op::Binary(Binary::MaxUnsigned, ..) => "max_unsigned",
    Op::Checked(Checked::Add, ..) => "add_checked",
    Op::Checked(Checked::Mul, ..) => "mul_checked",
    Op::Checked(Checked::Div, ..) => "div_checked",
    Op::Checked(Checked::Mod, ..) => "mod_checked",
    Op::Compare(Compare::Eq, ..) => "eq",
    Op::Compare(Compare::Ne, ..) => "ne",
    Op::Compare(Compare::Lt, ..) => "lt",
    Op::Compare(Compare::Le, ..) => "le",
    Op::Compare(Compare::Gt, ..) => "gt",
    Op::Compare(Compare::Ge, ..) => "ge",
    Op::Compare(Compare::LtUnsigned, ..) => "lt_unsigned",
    Op::Select(..) => "select",
    Op::Extend(_) => "extend",
    Op::Offset(..) => "offset",
    Op::Element { .. } => "element",
    Op::Address(Address::Weights(_)) => "address weights",
    Op::Address(Address::Arena(Extent::Const(_))) => "address arena",
    Op::Address(Address::Arena(Extent::Size(_))) => "address arena size",
    Op::Address(Address::Workspace) => "address workspace",
    Op::Address(Address::Options) => "address options",
    Op::Address(Address::Cancel) => "address cancel",
    Op::Address(Address::Frame(_)) => "address frame",
    Op::Address(Address::Descriptor) => "address descriptor",
    Op::Address(Address::Strings) => "address strings",
    Op::Address(Address::Report) => "address report",
    Op::Level => "level",
    Op::Load(_) => "load",
    Op::Store(..) => "store",
    Op::Inherit(_) => "inherit",
    Op::Extern(..) => "extern",
    Op::External(Callee { late: false, .. }, _) => "external",
    Op::External(Callee { late: true, .. }, _) => "late",
    Op::Exchange(..) => "exchange",
    Op::Clear(_) => "clear",
    Op::Allocate { .. } => "allocate",
    Op::Grow { .. } => "grow",
    Op::Release(_) => "release",
    Op::Empty(_) => "empty",
    Op::Transfer { .. } => "transfer",
    Op::FailIf { .. } => "fail_if",
    Op::Poll => "poll",
    Op::Call(..) => "call",
    Op::Return(Operand::Value(_)) => "return value",
    Op::Return(Operand::Int(_)) => "return number",
    Op::Kernel(..) => "kernel",
    Op::Job { .. } => "job",
    Op::Step { polls: true, what: None, .. } => "step",
    Op::Step { polls: true, what: Some(_), .. } => "step, traced",
    Op::Step { polls: false, .. } => "unpolled_step",
    Op::Event(Event::RunBegin, _) => "event run_begin",
    Op::Event(Event::RunEnd, _) => "event run_end",
    Op::Event(Event::Leave, _) => "event leave",
    Op::StepDone(_) => "step_done",
    Op::If { condition: Condition::Value(_), .. } => "if",
    Op::If { condition: Condition::Holds(_), .. } => "if holds",
    Op::Loop { .. } => "loop",
    Op::Attempt { .. } => "attempt",
});

kinds!(place, PLACES, Place, {
    Place::Options(OptionsField::StructSize) => "option struct_size",
    Place::Options(OptionsField::ParallelFor) => "option parallel_for",
    Place::Options(OptionsField::Allocate) => "option allocate",
    Place::Options(OptionsField::Release) => "option release",
    Place::Options(OptionsField::Seed) => "option seed",
    Place::Options(OptionsField::Communicator) => "option communicator",
    Place::Options(OptionsField::Weights) => "option weights",
    Place::Options(OptionsField::WeightsBytes) => "option weights_bytes",
    Place::Options(OptionsField::Function) => "option callee",
    Place::Options(OptionsField::FunctionContext) => "option callee_context",
    Place::Tensor(_, TensorField::Data) => "tensor data",
    Place::Tensor(_, TensorField::Bytes) => "tensor bytes",
    Place::Tensor(_, TensorField::Dtype) => "tensor dtype",
    Place::Tensor(_, TensorField::Rank) => "tensor rank",
    Place::Tensor(_, TensorField::Dims) => "tensor dims",
    Place::Dim(..) => "dim",
    Place::Size(_) => "size",
    Place::Outputs => "outputs",
    Place::Frame(_, FrameField::Arena) => "frame arena",
    Place::Frame(_, FrameField::Weights) => "frame weights",
    Place::Frame(_, FrameField::Options) => "frame options",
    Place::Frame(_, FrameField::Sizes) => "frame sizes",
    Place::Frame(_, FrameField::Cancel) => "frame cancel",
    Place::Frame(_, FrameField::Parallel) => "frame parallel",
    Place::Frame(_, FrameField::Level) => "frame level",
    Place::Frame(None, FrameField::Input(_)) => "own frame, input",
    Place::Frame(Some(_), FrameField::Input(_)) => "frame input",
    Place::Frame(None, FrameField::Output(_)) => "own frame, output",
    Place::Frame(Some(_), FrameField::Output(_)) => "frame output",
    Place::Block(_) => "slot",
    Place::At { ty: Type::I64, .. } => "i64 at an address",
    Place::At { ty: Type::I32, .. } => "i32 at an address",
    Place::At { ty: Type::I8, .. } => "i8 at an address",
    Place::At { ty: Type::Ptr, .. } => "pointer at an address",
});

kinds!(function, FUNCTIONS, FunctionKind, {
    FunctionKind::Model => "model",
    FunctionKind::Workspace => "workspace",
    FunctionKind::StateBytes => "state_bytes",
    FunctionKind::StateReset => "state_reset",
    FunctionKind::Run => "run",
    FunctionKind::Checks => "checks",
    FunctionKind::Part => "part",
    FunctionKind::Steps(_) => "steps",
});

kinds!(policy, POLICIES, Policy, {
    Policy::Never => "one thread",
    Policy::Always => "threads",
    Policy::From { size: Extent::Size(_), .. } => "threads from a size",
    Policy::From { size: Extent::Const(_), .. } => "threads from a number",
});

kinds!(slot, SLOTS, SlotUse, {
    SlotUse::Block => "slot of a block",
    SlotUse::Output(_) => "slot of an output",
});

/// Adds the kinds that a program has.
pub(super) fn note_kinds(program: &Program, seen: &mut BTreeSet<&'static str>) {
    seen.extend(program.slots.values().map(slot));
    let versions = program.kernels.values().flat_map(|kernel| &kernel.versions);
    seen.extend(versions.map(|version| policy(&version.threads)));
    for own in program.functions.values() {
        seen.insert(function(&own.kind));
        note_region(&own.body, seen);
    }
}

fn note_region(region: &Region, seen: &mut BTreeSet<&'static str>) {
    for inst in region {
        seen.insert(operation(&inst.op));
        match &inst.op {
            Op::Load(own) | Op::Store(own, _) => drop(seen.insert(place(own))),
            Op::If { then, otherwise, .. } => {
                [then, otherwise].into_iter().for_each(|r| note_region(r, seen))
            }
            Op::Loop { head, body, .. } => [head, body].into_iter().for_each(|r| note_region(r, seen)),
            Op::Attempt { body, handler, .. } => {
                [body, handler].into_iter().for_each(|r| note_region(r, seen))
            }
            _ => {}
        }
    }
}

/// The kinds that are in none of the programs.
pub(super) fn kinds_without_a_file(seen: &BTreeSet<&'static str>) -> Vec<&'static str> {
    let all = [OPERATIONS, PLACES, FUNCTIONS, POLICIES, SLOTS].concat();
    all.into_iter().filter(|kind| !seen.contains(kind)).collect()
}

/// A file, taken apart.
struct Case {
    header: String,
    /// Calls, in order.
    calls: Vec<String>,
    /// Each text and its replacement, one at a time.
    changes: Vec<(String, String)>,
    text: String,
    expected: String,
}

fn read_case(text: &str) -> Result<Case, String> {
    let count = text.lines().take_while(|line| line.starts_with(';')).count();
    let header: Vec<&str> = text.lines().take(count).collect();
    let rest: Vec<&str> = text.lines().skip(count).collect();
    let (mut calls, mut changes) = (vec![], vec![]);
    if header.first() != Some(&"; program") {
        return Err("the first line is not `; program`".into());
    }
    for line in &header[1..] {
        let directive = line[1..].trim();
        if let Some(call) = directive.strip_prefix("call ") {
            calls.push(call.to_string());
        } else if let Some(change) = directive.strip_prefix("refused ") {
            let (from, to) = change.split_once(" => ").ok_or("a change is `OLD => NEW`")?;
            changes.push((from.to_string(), to.to_string()));
        } else {
            return Err(format!("unknown directive `{directive}`"));
        }
    }
    if calls.is_empty() && changes.is_empty() {
        return Err("neither a call nor a change".into());
    }
    let arrow = rest.iter().position(|line| *line == "=>").unwrap_or(rest.len());
    let expected = rest.get(arrow + 1..).unwrap_or_default().join("\n");
    Ok(Case { header: header.join("\n"), calls, changes, text: rest[..arrow].join("\n"), expected })
}

/// Verified, and read again from its text.
fn good(text: &str) -> Result<Program, String> {
    let program = parse(text).map_err(|error| error.to_string())?;
    verify(&program)?;
    let printed = program.to_string();
    match parse(&printed).map_err(|error| error.to_string())? == program {
        true => Ok(program),
        false => Err(format!("what is printed is read as something else:\n{printed}")),
    }
}

fn run_case(case: &Case) -> Result<(Program, String), String> {
    let program = good(&case.text)?;
    let mut text = String::new();
    for call in &case.calls {
        let result = run_call(&program, call).map_err(|error| format!("`{call}`: {error}"))?;
        writeln!(text, "{call}: {result}").map_err(|error| error.to_string())?;
    }
    for (from, to) in &case.changes {
        if case.text.matches(from.as_str()).count() != 1 {
            return Err(format!("`{from}` is not in the program, or more than once"));
        }
        match good(&case.text.replacen(from.as_str(), to, 1)) {
            Ok(_) => return Err(format!("`{to}` in place of `{from}` is accepted")),
            Err(message) => writeln!(text, "{to}: {message}").map_err(|error| error.to_string())?,
        }
    }
    Ok((program, text))
}

/// Numbers between brackets or parentheses, separated by commas.
fn numbers(text: &str) -> Result<Vec<i64>, String> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    words.map(|word| word.parse().map_err(|_| format!("`{word}` is not a number"))).collect()
}

fn words(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Constants of the program: the words 100, 101 and so on.
fn constants(program: &Program) -> Vec<u8> {
    let mut bytes = words(&(0..program.weights.div_ceil(8) as i64).map(|at| 100 + at).collect::<Vec<_>>());
    bytes.truncate(program.weights as usize);
    bytes
}

/// Stands for every kernel: adds to each element of the range of its last buffer those of the others, and ten times the number of the
/// version. One that is called `fails` gives 3.
fn kernel(program: &Program, memory: &mut Memory, call: &KernelCall<'_>) -> Result<i32, String> {
    if program.kernels[call.kernel].name == "fails" {
        return Ok(3);
    }
    let Some((&to, from)) = call.buffers.split_last() else { return Ok(0) };
    for at in call.range.0..call.range.1 {
        let mut sum = 10 * call.version as i64;
        for &buffer in from {
            sum += memory.load(Type::I64, buffer + 8 * at as u64)?;
        }
        memory.store(Type::I64, to + 8 * at as u64, sum)?;
    }
    Ok(0)
}

/// Carries out `workspace(3, 4)`, `state_bytes(3)`, `state_reset(16; 3)` or `run [1, 2] -> 2 null with ...`; gives what it returns.
fn run_call(program: &Program, call: &str) -> Result<String, String> {
    let text = |error: onnxc_ir::error::Error| error.to_string();
    let mut execute = |memory: &mut Memory, call: &KernelCall<'_>| kernel(program, memory, call);
    if let Some(call) = call.strip_prefix("run") {
        return run(program, call);
    }
    let (name, args) = call.strip_suffix(')').and_then(|call| call.split_once('(')).ok_or("no such call")?;
    let mut machine = HostRun::new(program, Memory::default(), constants(program), &mut execute);
    let (bytes, dims) = args.split_once(';').map_or((None, args), |(bytes, dims)| (Some(bytes), dims));
    let dims = numbers(dims)?;
    let array = machine.memory.with(words(&dims)) as i64;
    let count = dims.len() as i64;
    match (name, bytes) {
        ("workspace", None) => {
            Ok(machine.call(FunctionKind::Workspace, &[array, count]).map_err(text)?.to_string())
        }
        ("state_bytes", None) => {
            Ok(machine.call(FunctionKind::StateBytes, &[array, count]).map_err(text)?.to_string())
        }
        ("state_reset", Some(bytes)) => {
            let bytes = numbers(bytes)?[0];
            let block = machine.memory.with(vec![0; bytes as usize]);
            let arguments = [block as i64, bytes, array, count];
            let status = machine.call(FunctionKind::StateReset, &arguments).map_err(text)?;
            Ok(format!("{} {:?}", spelled(status)?, elements(&machine.memory, block, bytes as usize / 8)?))
        }
        _ => Err("no such call".into()),
    }
}

fn spelled(status: i64) -> Result<&'static str, String> {
    if status == i64::from(status::OK) {
        return Ok("OK");
    }
    let known = status::NAMES.iter().find(|row| i64::from(row.0) == status);
    Ok(known.ok_or(format!("{status} is not a status"))?.1)
}

fn elements(memory: &Memory, at: u64, count: usize) -> Result<Vec<i64>, String> {
    (0..count as u64).map(|word| memory.load(Type::I64, at + 8 * word)).collect()
}

/// A run on vectors of i64: ` [1, 2] [3] -> 2 null with seed=5 no_allocator`. Outputs are given by their number of elements; those that are
/// null are the program's to allocate.
fn run(program: &Program, call: &str) -> Result<String, String> {
    let (tensors, with) = call.split_once(" with ").unwrap_or((call, ""));
    let (inputs, outputs) = tensors.split_once("->").ok_or("no `->` before the outputs")?;
    let mut memory = Memory::default();
    let mut descriptors = [vec![], vec![]];
    let mut describe = |memory: &mut Memory, output: usize, data: u64, count: usize| {
        let dims = memory.with(words(&[count as i64]));
        let mut record = vec![0; tensor::SIZE as usize];
        let fields = [
            (tensor::DATA, data.to_le_bytes().to_vec()),
            (tensor::BYTES, (8 * count as u64).to_le_bytes().to_vec()),
            (tensor::DTYPE, 7i32.to_le_bytes().to_vec()),
            (tensor::RANK, 1i32.to_le_bytes().to_vec()),
            (tensor::DIMS, dims.to_le_bytes().to_vec()),
        ];
        for (at, bytes) in fields {
            record[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        descriptors[output].extend(record);
    };
    for input in inputs.split('[').skip(1) {
        let values = numbers(input.trim().strip_suffix(']').ok_or("no `]` after an input")?)?;
        let data = memory.constant(words(&values));
        describe(&mut memory, 0, data, values.len());
    }
    for output in outputs.split_whitespace() {
        match output {
            "null" => describe(&mut memory, 1, 0, 0),
            count => {
                let count = count.parse().map_err(|_| format!("`{count}` is not a number of elements"))?;
                let data = memory.block(8 * count);
                describe(&mut memory, 1, data, count);
            }
        }
    }
    let message = memory.with(vec![0; 256]);
    let mut fields = BTreeMap::from([
        (options::STRUCT_SIZE, options::SIZE),
        (options::ALLOCATE, 1),
        (options::RELEASE, 1),
        (options::STEP_DONE, 1),
        (options::TRACE, 1),
        (options::MESSAGE, message as i64),
        (options::MESSAGE_CAPACITY, 256),
    ]);
    let (mut grants, mut levels, mut workspace_bytes) = (usize::MAX, 1, 4096);
    for setting in with.split_whitespace() {
        let (name, value) = setting.split_once('=').unwrap_or((setting, "1"));
        let number: i64 = value.parse().map_err(|_| format!("`{setting}` is not a setting"))?;
        match name {
            "no_allocator" => fields.retain(|&field, _| field != options::ALLOCATE),
            "threads" => drop(fields.insert(options::PARALLEL_FOR, 1)),
            "seed" => drop(fields.insert(options::SEED, number)),
            "struct_size" => drop(fields.insert(options::STRUCT_SIZE, number)),
            "cancelled" => drop(fields.insert(options::CANCEL, memory.with(words(&[1])) as i64)),
            "weights" => {
                let file = memory.constant(words(&(0..number / 8).map(|at| 200 + at).collect::<Vec<_>>()));
                fields.extend([(options::WEIGHTS, file as i64), (options::WEIGHTS_BYTES, number)]);
            }
            "grants" => grants = number as usize,
            "levels" => levels = number,
            "workspace" => workspace_bytes = number,
            _ => return Err(format!("`{setting}` is not a setting")),
        }
    }
    let mut record = vec![0; options::SIZE as usize];
    for (at, value) in fields {
        record[at as usize..][..8].copy_from_slice(&value.to_le_bytes());
    }
    let given_options = memory.with(record) as i64;
    let workspace = memory.block(workspace_bytes as usize) as i64;
    let counts = [0, 1].map(|at| (descriptors[at].len() / tensor::SIZE as usize) as i64);
    let [inputs, outputs] = descriptors.map(|bytes| memory.with(bytes) as i64);
    let mut execute = |memory: &mut Memory, call: &KernelCall<'_>| kernel(program, memory, call);
    let mut machine = HostRun::new(program, memory, constants(program), &mut execute);
    (machine.grants, machine.levels) = (grants, levels);
    let arguments = [inputs, counts[0], outputs, counts[1], workspace, workspace_bytes, given_options];
    let status = machine.call(FunctionKind::Run, &arguments).map_err(|error| error.to_string())?;
    let mut text = spelled(status)?.to_string();
    let bytes = machine.memory.read(message, 256)?;
    let own: Vec<u8> = bytes.iter().copied().take_while(|&byte| byte != 0).collect();
    if !own.is_empty() {
        text += &format!(" {:?}", String::from_utf8_lossy(&own));
    }
    if status == i64::from(status::OK) {
        for at in 0..counts[1] {
            let field =
                |field: i64| machine.memory.load(Type::I64, (outputs + at * tensor::SIZE + field) as u64);
            let (data, dims) = (field(tensor::DATA)? as u64, field(tensor::DIMS)? as u64);
            let count = machine.memory.load(Type::I64, dims)?;
            text += &format!(" {:?}", elements(&machine.memory, data, count as usize)?);
            machine.blocks.remove(&data);
        }
    }
    let kept: usize = machine.blocks.values().sum();
    if kept > 0 {
        return Err(format!("the run keeps {kept} bytes"));
    }
    if !machine.steps_done.is_empty() {
        text += &format!(" steps {:?}", machine.steps_done);
    }
    if !machine.events.is_empty() {
        text += &format!(" events {:?}", machine.events);
    }
    Ok(text)
}

/// Runs the files of a folder; gives how many there are, how many of them have refused changes, and adds the kinds that they have.
pub(super) fn run_folder(folder: &Path, seen: &mut BTreeSet<&'static str>) -> (usize, usize) {
    let mut negative = 0;
    let all = run_files(folder, |path| {
        let case = read_case(&std::fs::read_to_string(path).map_err(|error| error.to_string())?)?;
        let (program, actual) = run_case(&case)?;
        note_kinds(&program, seen);
        negative += usize::from(!case.changes.is_empty());
        hold(path, [&case.header, &case.text, &case.expected], &actual)
    });
    (all, negative)
}

#[test]
fn malformed_programs_are_refused() {
    let refused = |text: &str, reason: &str| {
        let message = read_case(text).and_then(|case| run_case(&case).map(drop)).err().unwrap_or_default();
        assert!(message.contains(reason), "{text:?} gave {message:?}");
    };
    let program = "host \"t\" { inputs 0 outputs 0 weights 0 buffers 0 arena at 0
function \"workspace\" workspace(v0, v1) { return 64 } }";
    refused(program, "the first line is not `; program`");
    refused(&format!("; program\n{program}"), "neither a call nor a change");
    refused(&format!("; program\n; calls\n{program}"), "unknown directive");
    refused(&format!("; program\n; call resize(3)\n{program}"), "no such call");
    refused(&format!("; program\n; refused return 64\n{program}"), "a change is `OLD => NEW`");
    refused(&format!("; program\n; refused 65 => 66\n{program}"), "`65` is not in the program");
    refused(&format!("; program\n; refused 64 => 66\n{program}"), "`66` in place of `64` is accepted");
}
