//! Misuse of the C ABI: every way to call a model wrongly that `onnxc.h` gives a status for, as a table. Each row is
//! tried on a model that runs: the status must be the documented one, with a message; nothing may be written, nothing
//! leaked, and the model must run as before afterwards. A signal ends the process, so run this in one of its own.

use std::cell::Cell;
use std::ffi::{c_char, c_void};

use onnxc::native::{Arguments, Call, Memory, Model, Prepared};
use onnxc_ir::graph::{DType, Tensor};
use onnxc_runtime_support::abi::{self, DimKind};
use onnxc_runtime_support::{Options, Status, ValueInfo};

use crate::interpreted::Interpreted;

/// One kind of misuse.
pub struct Kind {
    pub name: &'static str,
    apply: Apply,
    /// Whether it is found before anything is written.
    early: bool,
}

/// Changes the arguments of a good call. Gives the statuses that are right, or `None` if the model has nothing to misuse
/// in this way.
type Apply = fn(&mut Attack<'_>) -> Option<&'static [Status]>;

const fn early(name: &'static str, apply: Apply) -> Kind {
    Kind { name, apply, early: true }
}

const fn late(name: &'static str, apply: Apply) -> Kind {
    Kind { name, apply, early: false }
}

/// The arguments of a call, to be spoilt.
struct Attack<'m> {
    inputs_info: &'m [ValueInfo],
    outputs_info: &'m [ValueInfo],
    /// Number of allocations of a good run.
    allocations: usize,
    arguments: Arguments,
    /// What is passed as counts, and whether arrays and options are passed at all.
    input_count: usize,
    output_count: usize,
    no_inputs: bool,
    no_outputs: bool,
    cancel: i32,
    /// Dims were changed, which are the [`Prepared`]'s own.
    changed_dims: bool,
}

impl<'m> Attack<'m> {
    fn new(prepared: &mut Prepared<'_>, model: &'m Described<'_>) -> Attack<'m> {
        let arguments = prepared.arguments(&Call::default());
        Attack {
            inputs_info: &model.inputs,
            outputs_info: &model.outputs,
            allocations: model.allocations,
            input_count: arguments.inputs.len(),
            output_count: arguments.outputs.len(),
            no_inputs: false,
            no_outputs: false,
            cancel: 0,
            changed_dims: false,
            arguments,
        }
    }

    /// The last input that `fits`.
    fn input(&mut self, fits: impl Fn(&abi::Tensor, &ValueInfo) -> bool) -> Option<&mut abi::Tensor> {
        let inputs = self.arguments.inputs.iter_mut().zip(self.inputs_info);
        inputs.rev().find(|(tensor, info)| fits(tensor, info)).map(|(tensor, _)| tensor)
    }

    /// The state block, which is the last input.
    fn state(&mut self) -> Option<&mut abi::Tensor> {
        self.inputs_info.last().filter(|info| info.part == STATE_PART)?;
        self.arguments.inputs.last_mut()
    }

    /// The last output that `fits`.
    fn output(&mut self, fits: impl Fn(&abi::Tensor, &ValueInfo) -> bool) -> Option<&mut abi::Tensor> {
        let outputs = self.arguments.outputs.iter_mut().zip(self.outputs_info);
        outputs.rev().find(|(tensor, info)| fits(tensor, info)).map(|(tensor, _)| tensor)
    }

    /// Changes the last dim of this kind of the inputs.
    fn set_input_dim(&mut self, kind: fn(&DimKind) -> bool, value: impl Fn(i64) -> i64) -> Option<()> {
        let axis = |info: &ValueInfo| info.kinds.iter().rposition(kind);
        let infos = self.inputs_info;
        let inputs = &self.arguments.inputs;
        // Without elements, any number of rows has no bytes.
        let fits = |at: &usize| axis(&infos[*at]).is_some() && needed(&infos[*at]) && inputs[*at].bytes > 0;
        let at = (0..infos.len()).rfind(fits)?;
        let dims = inputs[at].dims;
        self.changed_dims = true;
        // SAFETY: the descriptor has the dims of the model's input, in memory of this process alone.
        let dim = unsafe { &mut *dims.add(axis(&infos[at])?) };
        *dim = value(*dim);
        Some(())
    }

    /// Calls the model; gives its status and message.
    fn call(&mut self, run: abi::RunFn, message: &mut [u8]) -> Status {
        self.arguments.options.message = message.as_mut_ptr().cast::<c_char>();
        self.arguments.options.message_capacity = message.len();
        self.arguments.options.cancel = &raw const self.cancel;
        self.call_as_is(run)
    }

    fn call_as_is(&mut self, run: abi::RunFn) -> Status {
        let Arguments { inputs, outputs, workspace, workspace_bytes, options } = &mut self.arguments;
        let inputs = if self.no_inputs { std::ptr::null() } else { inputs.as_ptr() };
        let outputs = if self.no_outputs { std::ptr::null_mut() } else { outputs.as_mut_ptr() };
        // SAFETY: what is wrong with these arguments is what the model says it checks before it uses them.
        unsafe {
            run(inputs, self.input_count, outputs, self.output_count, *workspace, *workspace_bytes, options)
        }
    }
}

/// Whether only data decides some dim of a value, or the length of its texts.
fn is_late(info: &ValueInfo) -> bool {
    info.kinds.contains(&DimKind::Data) || info.dtype == DType::Str.to_onnx()
}

fn needed(info: &ValueInfo) -> bool {
    !info.has_default && info.part != STATE_PART
}

fn aligned(info: &ValueInfo) -> bool {
    info.element_bytes > 1
}

/// Kinds of misuse of the state block, in a model that has one.
const STATE_KINDS: &[Kind] = &[
    early("no state block", |attack| {
        attack.state()?.data = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
    early("state block that is not aligned", |attack| {
        let block = attack.state()?;
        block.data = block.data.wrapping_byte_add(8);
        Some(&[Status::MISALIGNED])
    }),
    early("state block of one byte less", |attack| {
        attack.state()?.bytes -= 1;
        Some(&[Status::BAD_STATE])
    }),
    early("state block of no bytes", |attack| {
        attack.state()?.bytes = 0;
        Some(&[Status::BAD_STATE])
    }),
    early("state block of another element type", |attack| {
        attack.state()?.dtype = DType::F32.to_onnx();
        Some(&[Status::BAD_DTYPE])
    }),
    early("state block of another rank", |attack| {
        attack.state()?.rank = 2;
        Some(&[Status::BAD_RANK])
    }),
    early("state block without dims", |attack| {
        attack.state()?.dims = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
];

/// All kinds of misuse of `<name>_run`.
pub const KINDS: &[Kind] = &[
    early("options of no size", |attack| {
        attack.arguments.options.struct_size = 0;
        Some(&[Status::BAD_OPTIONS])
    }),
    early("options of an older version", |attack| {
        attack.arguments.options.struct_size -= 1;
        Some(&[Status::BAD_OPTIONS])
    }),
    early("one input too few", |attack| {
        attack.input_count = attack.input_count.checked_sub(1)?;
        Some(&[Status::BAD_COUNT])
    }),
    early("one input too many", |attack| {
        attack.input_count += 1;
        Some(&[Status::BAD_COUNT])
    }),
    early("the greatest number of inputs", |attack| {
        attack.input_count = usize::MAX;
        Some(&[Status::BAD_COUNT])
    }),
    early("one output too few", |attack| {
        attack.output_count = attack.output_count.checked_sub(1)?;
        Some(&[Status::BAD_COUNT])
    }),
    early("one output too many", |attack| {
        attack.output_count += 1;
        Some(&[Status::BAD_COUNT])
    }),
    early("2^32 outputs more", |attack| {
        attack.output_count += 1 << 32;
        Some(&[Status::BAD_COUNT])
    }),
    early("no array of inputs", |attack| {
        attack.no_inputs = true;
        (attack.input_count > 0).then_some(&[Status::NULL_POINTER])
    }),
    early("no array of outputs", |attack| {
        attack.no_outputs = true;
        (attack.output_count > 0).then_some(&[Status::NULL_POINTER])
    }),
    early("input of another element type", |attack| {
        attack.input(|_, info| needed(info))?.dtype ^= 1;
        Some(&[Status::BAD_DTYPE])
    }),
    early("input of no element type", |attack| {
        attack.input(|_, info| needed(info))?.dtype = i32::MIN;
        Some(&[Status::BAD_DTYPE])
    }),
    early("input of a higher rank", |attack| {
        attack.input(|_, info| needed(info))?.rank += 1;
        Some(&[Status::BAD_RANK])
    }),
    early("input of a negative rank", |attack| {
        attack.input(|_, info| needed(info))?.rank = -1;
        Some(&[Status::BAD_RANK])
    }),
    early("input without dims", |attack| {
        attack.input(|_, info| needed(info) && !info.dims.is_empty())?.dims = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
    early("input of another static dim", |attack| {
        attack.set_input_dim(|kind| *kind == DimKind::Static, |size| size + 1)?;
        Some(&[Status::BAD_DIM])
    }),
    early("input of a negative dim", |attack| {
        attack.set_input_dim(|_| true, |_| -1)?;
        Some(&[Status::BAD_DIM])
    }),
    early("input of the least dim", |attack| {
        attack.set_input_dim(|_| true, |_| i64::MIN)?;
        Some(&[Status::BAD_DIM])
    }),
    // What is wrong first may be that the size does not fit another input's, the bytes, or a number.
    early("input of a symbolic dim that no memory holds", |attack| {
        attack.set_input_dim(|kind| *kind != DimKind::Static, |_| i64::MAX)?;
        Some(&[Status::BAD_DIM, Status::BAD_BYTES, Status::SIZE_OVERFLOW])
    }),
    early("inputs that disagree about a symbol", |attack| {
        let infos = attack.inputs_info;
        let mut places = Vec::new();
        for (at, info) in infos.iter().enumerate().filter(|(_, info)| needed(info)) {
            for (axis, symbol) in info.symbols.iter().enumerate() {
                places.extend(symbol.map(|symbol| (symbol, at, axis)));
            }
        }
        let repeated = |&&(symbol, ..): &&(usize, usize, usize)| {
            places.iter().filter(|(other, ..)| *other == symbol).count() > 1
        };
        let &(_, at, axis) = places.iter().rev().find(repeated)?;
        // SAFETY: as in `set_input_dim`.
        unsafe { *attack.arguments.inputs[at].dims.add(axis) += 1 };
        attack.changed_dims = true;
        Some(&[Status::BAD_DIM])
    }),
    early("input of one byte less", |attack| {
        attack.input(|tensor, info| needed(info) && tensor.bytes > 0)?.bytes -= 1;
        Some(&[Status::BAD_BYTES])
    }),
    early("input of one byte more", |attack| {
        attack.input(|_, info| needed(info))?.bytes += 1;
        Some(&[Status::BAD_BYTES])
    }),
    early("input of all bytes there are", |attack| {
        attack.input(|_, info| needed(info))?.bytes = usize::MAX;
        Some(&[Status::BAD_BYTES])
    }),
    early("input without data", |attack| {
        attack.input(|tensor, info| needed(info) && tensor.bytes > 0)?.data = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
    early("input that is not aligned", |attack| {
        let input = attack.input(|tensor, info| needed(info) && tensor.bytes > 0 && aligned(info))?;
        input.data = input.data.wrapping_byte_add(1);
        Some(&[Status::MISALIGNED])
    }),
    early("default that is replaced by another element type", |attack| {
        attack.input(|tensor, info| info.has_default && !tensor.data.is_null())?.dtype ^= 1;
        Some(&[Status::BAD_DTYPE])
    }),
    early("output of another element type", |attack| {
        attack.output(|_, _| true)?.dtype ^= 1;
        Some(&[Status::BAD_DTYPE])
    }),
    early("output of another rank", |attack| {
        attack.output(|_, _| true)?.rank -= 1;
        Some(&[Status::BAD_RANK])
    }),
    early("output of a rank that the run may decide, without room for the highest", |attack| {
        let infos = attack.outputs_info;
        let at = infos.iter().rposition(|info| info.least_rank < info.dims.len())?;
        attack.arguments.outputs[at].rank = infos[at].least_rank as i32;
        Some(&[Status::BAD_RANK])
    }),
    early("output of a rank above the highest", |attack| {
        attack.output(|_, info| info.least_rank < info.dims.len())?.rank += 1;
        Some(&[Status::BAD_RANK])
    }),
    early("output without dims", |attack| {
        attack.output(|_, info| !info.dims.is_empty())?.dims = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
    early("output of another static dim", |attack| {
        let is_static = |info: &ValueInfo| info.kinds.iter().position(|kind| *kind == DimKind::Static);
        let at = attack.outputs_info.iter().rposition(|info| is_static(info).is_some())?;
        let axis = is_static(&attack.outputs_info[at])?;
        // SAFETY: as in `set_input_dim`.
        unsafe { *attack.arguments.outputs[at].dims.add(axis) ^= 1 };
        attack.changed_dims = true;
        Some(&[Status::BAD_DIM])
    }),
    early("output of one byte less", |attack| {
        attack.output(|tensor, info| !is_late(info) && tensor.bytes > 0)?.bytes -= 1;
        Some(&[Status::BAD_BYTES])
    }),
    early("output without data", |attack| {
        attack.output(|tensor, info| !is_late(info) && tensor.bytes > 0)?.data = std::ptr::null_mut();
        Some(&[Status::NULL_POINTER])
    }),
    early("output that is not aligned", |attack| {
        let output = attack.output(|tensor, info| !tensor.data.is_null() && aligned(info))?;
        output.data = output.data.wrapping_byte_add(1);
        Some(&[Status::MISALIGNED])
    }),
    late("output of one byte less than data decides", |attack| {
        attack.output(|tensor, info| is_late(info) && tensor.bytes > 0)?.bytes -= 1;
        Some(&[Status::BAD_BYTES])
    }),
    early("no workspace", |attack| {
        attack.arguments.workspace = std::ptr::null_mut();
        (attack.arguments.workspace_bytes > 0).then_some(&[Status::NULL_POINTER])
    }),
    early("workspace of one byte less", |attack| {
        attack.arguments.workspace_bytes = attack.arguments.workspace_bytes.checked_sub(1)?;
        Some(&[Status::BAD_WORKSPACE])
    }),
    early("workspace of no bytes", |attack| {
        (std::mem::take(&mut attack.arguments.workspace_bytes) > 0).then_some(&[Status::BAD_WORKSPACE])
    }),
    early("workspace that is aligned to half", |attack| {
        attack.arguments.workspace = attack.arguments.workspace.wrapping_byte_add(32);
        (attack.arguments.workspace_bytes > 0).then_some(&[Status::MISALIGNED])
    }),
    early("workspace that is not aligned", |attack| {
        attack.arguments.workspace = attack.arguments.workspace.wrapping_byte_add(1);
        (attack.arguments.workspace_bytes > 0).then_some(&[Status::MISALIGNED])
    }),
    early("cancelled before it starts", |attack| {
        attack.cancel = 1;
        Some(&[Status::CANCELLED])
    }),
    early("no allocator", |attack| {
        attack.arguments.options.allocate = None;
        (attack.allocations > 0).then_some(&[Status::NEEDS_ALLOCATOR])
    }),
    early("no way to give memory back", |attack| {
        attack.arguments.options.release = None;
        (attack.allocations > 0).then_some(&[Status::NEEDS_ALLOCATOR])
    }),
];

/// A model, and what a good run of it does.
struct Described<'l> {
    model: Model<'l>,
    inputs: Vec<ValueInfo>,
    outputs: Vec<ValueInfo>,
    allocations: usize,
}

/// Tries everything on a model that runs on these inputs. Gives the number of calls that were refused as they must be;
/// fails with the first that was not.
pub fn check(
    model: &Model<'_>,
    inputs: &[Option<Tensor>],
    output_shapes: &[Option<Vec<usize>>],
) -> Result<usize, String> {
    let prepare = |shapes: &[Option<Vec<usize>>]| {
        let prepared = model.prepare_in(Memory::GUARDED[0], inputs, shapes);
        prepared.map_err(|error| error.to_string())
    };
    let outputs = model.outputs();
    let mut described =
        Described { model: *model, inputs: model.inputs(), outputs: outputs.clone(), allocations: 0 };
    // The run allocates the outputs that it may.
    let late: Vec<Option<Vec<usize>>> = output_shapes
        .iter()
        .zip(&outputs)
        .map(|(shape, info)| shape.clone().filter(|_| !is_late(info)))
        .chain(output_shapes.iter().skip(outputs.len()).cloned())
        .collect();
    described.allocations = allocations(&described, &mut prepare(output_shapes)?)?;
    let mut refused = 0;
    let mut prepared = prepare(output_shapes)?;
    for kind in KINDS.iter().chain(STATE_KINDS) {
        let Some(fit) = attack(kind, &described, &mut prepared)? else { continue };
        refused += 1;
        if fit == FitFor::Nothing {
            prepared = prepare(output_shapes)?;
        }
    }
    refused += overlaps(&described, &mut prepare(output_shapes)?)?;
    refused += cut_messages(&described, &mut prepared)?;
    refused += symbols(&described)?;
    refused += failing_allocations(&described, &late, &prepare)?;
    Ok(refused)
}

/// Buffers of a good call lie apart; every one that a run writes is put where another one is, and the check names both.
fn overlaps(model: &Described<'_>, prepared: &mut Prepared<'_>) -> Result<usize, String> {
    let good = prepared.arguments(&Call::default());
    let found = |arguments: &Arguments| model.model.check_overlap(arguments);
    found(&good).map_err(|refusal| format!("a good call: {refusal}"))?;
    let has_bytes = |tensor: &abi::Tensor| !tensor.data.is_null() && tensor.bytes > 0;
    let name = |kind: &str, at: usize, infos: &[ValueInfo]| match &infos[at] {
        info if info.part == STATE_PART => "the state block".to_string(),
        info => format!("{kind} {at} `{}`", info.name),
    };
    let mut spoilt: Vec<(Arguments, [String; 2])> = vec![];
    let with = |change: &dyn Fn(&mut Arguments)| {
        let mut arguments = good.clone();
        change(&mut arguments);
        arguments
    };
    for (at, output) in good.outputs.iter().enumerate().filter(|(_, output)| has_bytes(output)) {
        let own = name("output", at, &model.outputs);
        for (other, input) in good.inputs.iter().enumerate().filter(|(_, input)| has_bytes(input)) {
            // At its last byte.
            let end = input.data.wrapping_byte_add(input.bytes - 1);
            let other = name("input", other, &model.inputs);
            spoilt.push((with(&|arguments| arguments.outputs[at].data = end), [own.clone(), other]));
        }
        for (other, _) in good.outputs.iter().enumerate().take(at).filter(|(_, other)| has_bytes(other)) {
            let other_name = name("output", other, &model.outputs);
            spoilt.push((
                with(&|arguments| arguments.outputs[other].data = output.data),
                [own.clone(), other_name],
            ));
        }
        if good.workspace_bytes > 0 {
            let change = |arguments: &mut Arguments| arguments.workspace = output.data;
            spoilt.push((with(&change), [own, "the workspace".into()]));
        }
    }
    for (at, input) in good.inputs.iter().enumerate().filter(|(_, input)| has_bytes(input)) {
        if good.workspace_bytes > 0 {
            let change = |arguments: &mut Arguments| arguments.workspace = input.data;
            spoilt.push((with(&change), [name("input", at, &model.inputs), "the workspace".into()]));
        }
    }
    for (arguments, names) in &spoilt {
        match found(arguments) {
            // What is put in one place may lie upon a third buffer as well.
            Err(refusal) if refusal.status == Status::OVERLAP => {
                let named = names.iter().filter(|name| refusal.message.contains(name.as_str())).count();
                if named == 0 {
                    return Err(format!("{names:?} overlap: {refusal}"));
                }
            }
            other => return Err(format!("{names:?} overlap: {other:?}")),
        }
    }
    Ok(spoilt.len())
}

/// `onnxc_part` of the state block.
const STATE_PART: i32 = 8;

/// What buffers are good for after a wrong call.
#[derive(PartialEq)]
enum FitFor {
    AnotherCall,
    Nothing,
}

/// Calls a model in one wrong way, unless it cannot be called so.
fn attack(kind: &Kind, model: &Described<'_>, prepared: &mut Prepared<'_>) -> Result<Option<FitFor>, String> {
    let mut attack = Attack::new(prepared, model);
    let Some(wanted) = (kind.apply)(&mut attack) else { return Ok(None) };
    let before: Vec<(usize, usize)> = outputs_of(&attack);
    let mut message = [0x55u8; 512];
    let status = attack.call(model.model.run_function(), &mut message);
    let failed = |what: String| Err(format!("misuse `{}`: {what}", kind.name));
    if !wanted.contains(&status) {
        return failed(format!("{status:?}, must be one of {wanted:?}: {}", text(&message)));
    }
    // Options that are too small may not have the fields of the message.
    let described = !text(&message).is_empty() && message[0] != 0x55;
    if described == (status == Status::BAD_OPTIONS) {
        return failed(format!("the message is `{}`", text(&message)));
    }
    if outputs_of(&attack) != before {
        return failed("a descriptor of an output was changed".into());
    }
    if kind.early && !prepared.is_untouched() {
        return failed("an output or the workspace was written".into());
    }
    prepared.check_memory().map_err(|error| format!("misuse `{}`: {error}", kind.name))?;
    let unchanged = kind.early && !attack.changed_dims;
    Ok(Some(if unchanged { FitFor::AnotherCall } else { FitFor::Nothing }))
}

/// Data and bytes of the outputs' descriptors.
fn outputs_of(attack: &Attack<'_>) -> Vec<(usize, usize)> {
    attack.arguments.outputs.iter().map(|tensor| (tensor.data.addr(), tensor.bytes)).collect()
}

/// A message up to its zero, which must be there.
fn text(message: &[u8]) -> String {
    let end = message.iter().position(|&byte| byte == 0).unwrap_or(message.len());
    String::from_utf8_lossy(&message[..end]).into_owned()
}

/// A refusal is described as far as there is room, and not at all where there is none.
fn cut_messages(model: &Described<'_>, prepared: &mut Prepared<'_>) -> Result<usize, String> {
    let run = model.model.run_function();
    let mut whole = [0u8; 512];
    let mut attack = Attack::new(prepared, model);
    attack.input_count += 1;
    attack.call(run, &mut whole);
    for room in [0, 1, 2, 5] {
        let mut message = [0x55u8; 16];
        let status = attack.call(run, &mut message[..room]);
        let cut = room.saturating_sub(1);
        let right = message[..cut] == whole[..cut]
            && (room == 0 || message[cut] == 0)
            && message[room..].iter().all(|&byte| byte == 0x55);
        if status != Status::BAD_COUNT || !right {
            return Err(format!("a message of {room} bytes: {status:?}, {message:?}"));
        }
    }
    attack.arguments.options.message = std::ptr::null_mut();
    attack.arguments.options.message_capacity = 100;
    match attack.call_as_is(run) {
        Status::BAD_COUNT => Ok(5),
        status => Err(format!("without room for a message: {status:?}")),
    }
}

/// Misuse of `<name>_workspace`.
fn symbols(model: &Described<'_>) -> Result<usize, String> {
    let workspace = model.model.workspace_function();
    let count = model.model.symbols().len();
    let zeros = vec![0i64; count + 1];
    let mut tried = 0;
    let mut refused = |what: &str, symbols: *const i64, given: usize, wanted: Status| {
        // SAFETY: `symbols` is null or has `count + 1` values, and the function reads no more than `count`.
        let found = unsafe { workspace(symbols, given) };
        tried += 1;
        match found == -i64::from(wanted.0) {
            true => Ok(()),
            false => Err(format!("workspace of {what}: {found}, must be minus {wanted:?}")),
        }
    };
    refused("a symbol too many", zeros.as_ptr(), count + 1, Status::BAD_COUNT)?;
    refused("the greatest number of symbols", zeros.as_ptr(), usize::MAX, Status::BAD_COUNT)?;
    if count > 0 {
        refused("a symbol too few", zeros.as_ptr(), count - 1, Status::BAD_COUNT)?;
        refused("no symbols", std::ptr::null(), count, Status::NULL_POINTER)?;
    }
    for at in 0..count {
        let mut symbols = zeros.clone();
        symbols[at] = -1;
        refused("a negative symbol", symbols.as_ptr(), count, Status::BAD_DIM)?;
    }
    Ok(tried)
}

/// The allocator of a [`Prepared`], counted, which fails once.
struct Failing {
    inner: Options,
    calls: Cell<usize>,
    fail_at: usize,
}

impl Failing {
    fn new(inner: Options, fail_at: usize) -> Failing {
        Failing { inner, calls: Cell::new(0), fail_at }
    }

    /// Options with this allocator.
    fn options(&self) -> Options {
        Options {
            allocate: Some(allocate),
            release: Some(release),
            allocator: std::ptr::from_ref(self).cast_mut().cast(),
            ..self.inner
        }
    }
}

unsafe extern "C" fn allocate(failing: *mut c_void, bytes: usize, alignment: usize) -> *mut c_void {
    // SAFETY: the options have a reference that outlives the run, which allocates on the thread that called it.
    let failing = unsafe { &*failing.cast::<Failing>() };
    failing.calls.set(failing.calls.get() + 1);
    match failing.inner.allocate {
        // SAFETY: this is the allocator's own argument.
        Some(allocate) if failing.calls.get() != failing.fail_at => unsafe {
            allocate(failing.inner.allocator, bytes, alignment)
        },
        _ => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn release(failing: *mut c_void, memory: *mut c_void, bytes: usize, alignment: usize) {
    // SAFETY: as above.
    let failing = unsafe { &*failing.cast::<Failing>() };
    if let Some(release) = failing.inner.release {
        // SAFETY: as above.
        unsafe { release(failing.inner.allocator, memory, bytes, alignment) };
    }
}

/// Runs a model whose allocation number `fail_at` fails; gives the status, the message, and how often it allocated.
fn run_failing(
    model: &Described<'_>,
    prepared: &mut Prepared<'_>,
    fail_at: usize,
) -> (Status, String, usize, Arguments) {
    let mut attack = Attack::new(prepared, model);
    let failing = Failing::new(attack.arguments.options, fail_at);
    attack.arguments.options = failing.options();
    let mut message = [0u8; 512];
    let status = attack.call(model.model.run_function(), &mut message);
    attack.arguments.options = failing.inner;
    (status, text(&message), failing.calls.get(), attack.arguments)
}

/// Allocations of a good run.
fn allocations(model: &Described<'_>, prepared: &mut Prepared<'_>) -> Result<usize, String> {
    match run_failing(model, prepared, 0) {
        (Status::OK, _, calls, _) => Ok(calls),
        (status, message, ..) => Err(format!("a good call: {status:?}, {message}")),
    }
}

/// Makes the arguments of a good call whose outputs have these shapes; those without one are allocated by the run.
type Prepare<'p, 'l> = &'p dyn Fn(&[Option<Vec<usize>>]) -> Result<Prepared<'l>, String>;

/// Allocations of a run fail, one in each call, those that [`failures`] picks: the run says so and keeps nothing.
fn failing_allocations<'l>(
    model: &Described<'_>,
    late: &[Option<Vec<usize>>],
    prepare: Prepare<'_, 'l>,
) -> Result<usize, String> {
    let mut prepared = prepare(late)?;
    let (status, message, calls, arguments) = run_failing(model, &mut prepared, 0);
    if status != Status::OK {
        return Err(format!("with outputs that the run allocates: {status:?}, {message}"));
    }
    for (tensor, shape) in arguments.outputs.iter().zip(late) {
        if let (None, Some(release), false) = (shape, arguments.options.release, tensor.data.is_null()) {
            // SAFETY: the run that succeeded allocated this output with the same allocator.
            unsafe { release(arguments.options.allocator, tensor.data, tensor.bytes, 64) };
        }
    }
    prepared.check_memory().map_err(|error| error.to_string())?;
    let picked = failures(calls);
    for &at in &picked {
        let (status, message, _, arguments) = run_failing(model, &mut prepared, at);
        let failed = |what: String| Err(format!("allocation {at} of {calls} fails: {what}"));
        if status != Status::OUT_OF_MEMORY || message.is_empty() {
            return failed(format!("{status:?}, `{message}`"));
        }
        let given_back = |tensor: &abi::Tensor| tensor.data.is_null() && tensor.bytes == 0;
        if arguments.outputs.iter().zip(late).any(|(tensor, shape)| shape.is_none() && !given_back(tensor)) {
            return failed("an output is left".into());
        }
        prepared.check_memory().map_err(|error| format!("allocation {at} of {calls} fails: {error}"))?;
    }
    Ok(picked.len())
}

/// Which of `calls` allocations fail, by number from 1: all of a few. Of many, which loops of the model repeat, those at the start, those
/// at the end, and some between, at a distance that is prime so that they fall on every place of a loop's body.
fn failures(calls: usize) -> Vec<usize> {
    const START: usize = 32;
    const DISTANCE: usize = 37;
    const END: usize = 16;
    (1..=calls).filter(|at| *at <= START || *at + END > calls || at % DISTANCE == 0).collect()
}

/// Tries everything on a model and on its interpreted host program: status, message, outputs and descriptors must be the same.
/// Gives the number of calls.
pub fn compare(
    model: &Model<'_>,
    interpreted: &Interpreted<'_>,
    inputs: &[Option<Tensor>],
    output_shapes: &[Option<Vec<usize>>],
) -> Result<usize, String> {
    let text_of = |error: onnxc_ir::error::Error| error.to_string();
    let outputs = model.outputs();
    let mut described = Described { model: *model, inputs: model.inputs(), outputs, allocations: 0 };
    let prepare = || model.prepare_in(Memory::GUARDED[0], inputs, output_shapes).map_err(text_of);
    described.allocations = allocations(&described, &mut prepare()?)?;
    let mut calls = 0;
    for kind in KINDS {
        let mut prepared = prepare()?;
        let good = prepared.arguments(&Call::default());
        let mut attack = Attack::new(&mut prepared, &described);
        if (kind.apply)(&mut attack).is_none() {
            continue;
        }
        let arguments = interpreted.model.arguments(inputs, output_shapes).map_err(text_of)?;
        let arguments = translated(arguments, &good, &attack)?;
        let mut message = [0u8; 512];
        let status = attack.call(model.run_function(), &mut message);
        let outcome = interpreted.call(arguments).map_err(text_of)?;
        let native = (status.0, text(&message));
        if (outcome.status, outcome.message.clone()) != native {
            return Err(format!("misuse `{}`: {native:?}, interpreted {outcome:?}", kind.name));
        }
        calls += 1;
    }
    // Out of memory.
    for at in failures(described.allocations) {
        let grants = at - 1;
        let mut arguments = interpreted.model.arguments(inputs, output_shapes).map_err(text_of)?;
        arguments.grants = grants;
        let outcome = interpreted.call(arguments).map_err(text_of)?;
        if outcome.status != Status::OUT_OF_MEMORY.0 {
            return Err(format!("{grants} allocations are granted: {outcome:?}"));
        }
        calls += 1;
    }
    Ok(calls)
}

/// What an attack has made of good arguments, made of those of the interpreter.
fn translated(
    mut arguments: onnxc_object::host::interp::model::Arguments,
    good: &Arguments,
    attack: &Attack<'_>,
) -> Result<onnxc_object::host::interp::model::Arguments, String> {
    use onnxc_object::host::abi::options;
    let moved = |address: u64, good: *const c_void, spoilt: *const c_void| match spoilt.is_null() {
        true => 0,
        false => address.wrapping_add(spoilt.addr() as u64).wrapping_sub(good.addr() as u64),
    };
    let spoilt = &attack.arguments;
    let tensors = [
        (&mut arguments.inputs, &good.inputs, &spoilt.inputs, attack.inputs_info),
        (&mut arguments.outputs, &good.outputs, &spoilt.outputs, attack.outputs_info),
    ];
    for (given, good, spoilt, infos) in tensors {
        for (((given, good), spoilt), info) in given.iter_mut().zip(good).zip(spoilt).zip(infos) {
            given.data = moved(given.data, good.data, spoilt.data);
            (given.bytes, given.dtype, given.rank) = (spoilt.bytes as u64, spoilt.dtype, spoilt.rank);
            match spoilt.dims.is_null() {
                true => given.dims = 0,
                false => {
                    for axis in 0..info.dims.len() {
                        // SAFETY: the dims are those of a tensor of the model's rank.
                        let dim = unsafe { *spoilt.dims.add(axis) };
                        arguments.memory.write(given.dims + 8 * axis as u64, &dim.to_le_bytes())?;
                    }
                }
            }
        }
    }
    arguments.arrays = [!attack.no_inputs, !attack.no_outputs];
    arguments.counts = [attack.input_count as i64, attack.output_count as i64];
    arguments.workspace = moved(arguments.workspace, good.workspace, spoilt.workspace);
    arguments.workspace_bytes = spoilt.workspace_bytes as i64;
    let cancel = arguments.memory.with(attack.cancel.to_le_bytes().to_vec());
    if let Some(fields) = &mut arguments.options {
        fields.insert(options::STRUCT_SIZE, spoilt.options.struct_size as i64);
        fields.insert(options::CANCEL, cancel as i64);
        for (field, is_given) in [
            (options::ALLOCATE, spoilt.options.allocate.is_some()),
            (options::RELEASE, spoilt.options.release.is_some()),
        ] {
            if !is_given {
                fields.insert(field, 0);
            }
        }
    }
    Ok(arguments)
}
