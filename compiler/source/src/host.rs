//! The host program as C: what a model does outside of its kernels.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use cranelift_entity::EntityRef;

use onnxc_ir::error::{Error, Result, Stage};
use onnxc_loops::lower::explain::REPORT_WORDS;
use onnxc_object::host::abi::{frame, options, status};
use onnxc_object::host::ir::{
    Address, Binary, Checked, Compare, Condition, Event, Extent, Extern, Frame, FrameField, Function,
    FunctionKind, Inst, KernelId, MEMCPY, Op, Operand, OptionsField, Place, Policy, Port, Program, Region,
    Slot, TensorField, Type, Value, Version,
};
use onnxc_object::host::message::{V, numbers};

/// What all functions of a file refer to.
pub(crate) struct Unit<'u> {
    /// Prefix of what all programs share.
    pub model: &'u str,
    pub has_weights: bool,
    /// Functions outside of the file, by their names.
    pub externs: BTreeMap<&'static str, &'static Extern>,
    /// Functions of the user's own.
    pub externals: HashSet<String>,
    /// Functions that the caller's options compute.
    pub late: HashSet<String>,
    /// Functions of a communicator are called.
    pub exchanges: bool,
    /// The functions of this file are used: the message, the allocator.
    pub uses_message: bool,
}

/// The functions of one program.
pub(crate) struct Functions<'p> {
    pub program: &'p Program,
    pub public: &'p HashMap<FunctionKind, String>,
    /// C names of the kernels.
    pub kernels: &'p [String],
}

impl Functions<'_> {
    pub(crate) fn name(&self, function: &Function) -> String {
        match self.public.get(&function.kind) {
            Some(name) => name.clone(),
            None => format!("{}_{}", self.program.name, plain(&function.name)),
        }
    }

    fn signature(&self, function: &Function) -> String {
        let name = self.name(function);
        let kind = if self.public.contains_key(&function.kind) { "" } else { "static OX_UNUSED " };
        match function.kind {
            FunctionKind::Model => format!("{kind}const onnxc_model *{name}(void)"),
            FunctionKind::Workspace | FunctionKind::StateBytes => {
                format!("{kind}int64_t {name}(const int64_t *symbols, size_t count)")
            }
            FunctionKind::StateReset => {
                format!(
                    "{kind}int32_t {name}(void *state, size_t bytes, const int64_t *symbols, size_t count)"
                )
            }
            FunctionKind::Run | FunctionKind::Checks => format!(
                "{kind}int32_t {name}(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs, size_t output_count,\n    \
                 void *workspace, size_t workspace_bytes, const onnxc_options *options)"
            ),
            FunctionKind::Part => format!("{kind}int32_t {name}(void *job, int64_t begin, int64_t end)"),
            FunctionKind::Steps(_) => format!("{kind}int32_t {name}(ox_pointer *frame)"),
        }
    }

    /// Prototypes of the functions that only this file has.
    pub(crate) fn prototypes(&self) -> String {
        let own =
            self.program.functions.values().filter(|function| !self.public.contains_key(&function.kind));
        own.map(|function| format!("{};\n", self.signature(function))).collect()
    }

    pub(crate) fn text(&self, function: &Function, unit: &mut Unit<'_>) -> Result<String> {
        let mut writer = Writer {
            functions: self,
            function,
            unit,
            out: String::new(),
            depth: 1,
            read: read(&function.body),
            ahead: HashSet::new(),
            leaves: vec![],
            labels: 0,
            uses: Uses::default(),
        };
        writer.region(&function.body)?;
        let Writer { out, uses, .. } = writer;
        let mut text = format!("{} {{\n", self.signature(function));
        let params = parameters(function.kind);
        for (&(name, ty), &value) in params.iter().zip(&function.params) {
            if uses.values.contains(&value) {
                let _ = writeln!(text, "    const {} {value} = ({}){name};", c_type(ty), c_type(ty));
            }
        }
        let in_run = matches!(function.kind, FunctionKind::Run | FunctionKind::Checks);
        let in_steps = matches!(function.kind, FunctionKind::Steps(_));
        if in_run && uses.options {
            let _ = writeln!(
                text,
                "    const onnxc_options *const given = options != NULL ? options : &{}_no_options;",
                self.program_model(uses.model.as_deref())
            );
        }
        if in_steps {
            if uses.options {
                text.push_str(
                    "    const onnxc_options *const given = (const onnxc_options *)frame[FRAME_OPTIONS];\n",
                );
            }
            if uses.workspace {
                text.push_str("    unsigned char *const workspace = (unsigned char *)frame[FRAME_SIZES];\n");
            }
            if uses.outputs {
                let _ = writeln!(
                    text,
                    "    onnxc_tensor *const outputs = (onnxc_tensor *)(uintptr_t)OX_WORD(workspace, {});",
                    self.program.outputs_at()
                );
            }
        }
        if uses.buffers {
            let _ = writeln!(text, "    void *buffers[{}];", self.program.buffers.count.max(1));
        }
        if uses.frame_words > 0 {
            let _ = writeln!(text, "    ox_pointer inner[{}];", uses.frame_words);
        }
        if uses.job {
            text.push_str("    ox_job shared;\n");
        }
        if uses.report {
            let _ = writeln!(text, "    ox_i64 report[{REPORT_WORDS}] = {{0}};");
        }
        for (&(name, _), &value) in params.iter().zip(&function.params) {
            // That a message or a string has the name says nothing of the parameter.
            if !(uses.values.contains(&value) || name == "options" && uses.options) {
                let _ = writeln!(text, "    (void){name};");
            }
        }
        text.push_str(&out);
        text.push_str("}\n");
        Ok(text)
    }

    fn program_model(&self, model: Option<&str>) -> String {
        model.unwrap_or(&self.program.name).to_string()
    }
}

/// Names and types of the parameters in C.
fn parameters(kind: FunctionKind) -> &'static [(&'static str, Type)] {
    use Type::{I64, Ptr};
    match kind {
        FunctionKind::Model => &[],
        FunctionKind::Workspace | FunctionKind::StateBytes => &[("symbols", Ptr), ("count", I64)],
        FunctionKind::StateReset => &[("state", Ptr), ("bytes", I64), ("symbols", Ptr), ("count", I64)],
        FunctionKind::Run | FunctionKind::Checks => &[
            ("inputs", Ptr),
            ("input_count", I64),
            ("outputs", Ptr),
            ("output_count", I64),
            ("workspace", Ptr),
            ("workspace_bytes", I64),
            ("options", Ptr),
        ],
        FunctionKind::Part => &[("job", Ptr), ("begin", I64), ("end", I64)],
        FunctionKind::Steps(_) => &[("frame", Ptr)],
    }
}

/// What a parameter of a function of the file is in C.
fn argument_type(kind: FunctionKind, at: usize) -> &'static str {
    match (kind, at) {
        (FunctionKind::Run | FunctionKind::Checks, 0) => "const onnxc_tensor *",
        (FunctionKind::Run | FunctionKind::Checks, 2) => "onnxc_tensor *",
        (FunctionKind::Run | FunctionKind::Checks, 4) => "void *",
        (FunctionKind::Run | FunctionKind::Checks, 6) => "const onnxc_options *",
        (FunctionKind::Run | FunctionKind::Checks, _) => "size_t",
        (FunctionKind::Steps(_), _) => "ox_pointer *",
        (FunctionKind::StateReset, 0) => "void *",
        (FunctionKind::StateReset, 2) | (FunctionKind::Workspace | FunctionKind::StateBytes, 0) => {
            "const int64_t *"
        }
        (FunctionKind::Part, 0) => "void *",
        (FunctionKind::Part, _) => "int64_t",
        _ => "size_t",
    }
}

pub(crate) fn c_type(ty: Type) -> &'static str {
    match ty {
        Type::I64 => "int64_t",
        Type::I32 => "int32_t",
        Type::I8 => "int8_t",
        Type::Ptr => "uintptr_t",
    }
}

/// Prototype of a function outside of the file.
pub(crate) fn prototype(function: &Extern) -> String {
    let ty = |ty: &Type| match ty {
        Type::Ptr => "void *",
        ty => c_type(*ty),
    };
    let params: Vec<&str> = function.params.iter().map(ty).collect();
    let result = function.result.as_ref().map_or("void", ty);
    let params = if params.is_empty() { "void".to_string() } else { params.join(", ") };
    format!("{result} {}({params});\n", function.name)
}

pub(crate) fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn internal(message: impl Into<String>) -> Error {
    Error::internal(Stage::Emit, message)
}

/// The values that operations read.
fn read(region: &Region) -> HashSet<Value> {
    let mut found = HashSet::new();
    let mut open = vec![region];
    while let Some(region) = open.pop() {
        for inst in region {
            inst.op.visit_operands(&mut |operand| {
                if let Operand::Value(value) = operand {
                    found.insert(value);
                }
            });
            match &inst.op {
                Op::If { then, otherwise, .. } => open.extend([then, otherwise]),
                Op::Loop { head, condition, body, next, .. } => {
                    open.extend([head, body]);
                    found.insert(*condition);
                    found.extend(next.iter().filter_map(|operand| match operand {
                        Operand::Value(value) => Some(*value),
                        Operand::Int(_) => None,
                    }));
                }
                Op::Attempt { body, handler, .. } => open.extend([body, handler]),
                _ => {}
            }
        }
    }
    found
}

/// What a function needs in front of its first statement.
#[derive(Default)]
struct Uses {
    values: HashSet<Value>,
    options: bool,
    workspace: bool,
    outputs: bool,
    buffers: bool,
    job: bool,
    report: bool,
    /// Words of the largest frame on the stack.
    frame_words: usize,
    model: Option<String>,
}

/// Where a failure leads to.
struct Leave {
    label: String,
    status: Value,
    is_used: bool,
}

struct Writer<'w, 'p, 'u, 'm> {
    functions: &'w Functions<'p>,
    function: &'p Function,
    unit: &'u mut Unit<'m>,
    out: String,
    depth: usize,
    /// Values that something reads.
    read: HashSet<Value>,
    /// Values that are declared already.
    ahead: HashSet<Value>,
    leaves: Vec<Leave>,
    labels: usize,
    uses: Uses,
}

impl Writer<'_, '_, '_, '_> {
    fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn region(&mut self, region: &Region) -> Result<()> {
        region.iter().try_for_each(|inst| self.inst(inst))
    }

    fn nested(&mut self, region: &Region) -> Result<()> {
        self.depth += 1;
        self.region(region)?;
        self.depth -= 1;
        Ok(())
    }

    fn program(&self) -> &Program {
        self.functions.program
    }

    fn get(&mut self, value: Value) -> String {
        self.uses.values.insert(value);
        value.to_string()
    }

    fn operand(&mut self, operand: Operand) -> String {
        match operand {
            Operand::Value(value) => self.get(value),
            Operand::Int(i64::MIN) => "INT64_MIN".into(),
            Operand::Int(number) if i32::try_from(number).is_ok() => number.to_string(),
            Operand::Int(number) => format!("INT64_C({number})"),
        }
    }

    /// An operand as a signed number of 64 bits.
    fn long(&mut self, operand: Operand) -> String {
        let text = self.operand(operand);
        match operand {
            Operand::Value(value) if self.function.values[value] == Type::Ptr => format!("(int64_t){text}"),
            _ => text,
        }
    }

    /// Gives a result its value.
    fn define(&mut self, result: Value, text: &str) {
        if !self.read.contains(&result) {
            self.line(&format!("(void)({text});"));
            return;
        }
        let ty = c_type(self.function.values[result]);
        // What is true or false is an int of C.
        let narrowed = format!("({ty})({text})");
        let text = if self.function.values[result] == Type::I8 { &narrowed } else { text };
        if self.ahead.contains(&result) {
            self.line(&format!("{result} = {text};"));
        } else {
            self.line(&format!("const {ty} {result} = {text};"));
        }
    }

    fn options(&mut self) -> &'static str {
        self.uses.options = true;
        self.uses.model = Some(self.unit.model.to_string());
        "given"
    }

    fn workspace(&mut self) -> &'static str {
        self.uses.workspace = true;
        "workspace"
    }

    fn extent(&mut self, extent: Extent) -> String {
        match extent {
            Extent::Const(value) => self.operand(Operand::Int(value)),
            Extent::Size(at) => self.place(Place::Size(at)),
        }
    }

    fn is_in_steps(&self) -> bool {
        matches!(self.function.kind, FunctionKind::Steps(_))
    }

    /// A place as an lvalue of its type in C.
    fn place(&mut self, place: Place) -> String {
        match place {
            Place::Options(field) => {
                let options = self.options();
                let name = match field {
                    OptionsField::StructSize => "struct_size",
                    OptionsField::ParallelFor => "parallel_for",
                    OptionsField::Allocate => "allocate",
                    OptionsField::Release => "release",
                    OptionsField::Seed => "seed",
                    OptionsField::Communicator => "communicator",
                    OptionsField::Weights => "weights",
                    OptionsField::WeightsBytes => "weights_bytes",
                    OptionsField::Function => "function",
                    OptionsField::FunctionContext => "function_context",
                };
                format!("{options}->{name}")
            }
            Place::Tensor(port, field) => {
                let name = match field {
                    TensorField::Data => "data",
                    TensorField::Bytes => "bytes",
                    TensorField::Dtype => "dtype",
                    TensorField::Rank => "rank",
                    TensorField::Dims => "dims",
                };
                format!("{}.{name}", self.port(port))
            }
            Place::Dim(port, axis) => format!("{}.dims[{axis}]", self.port(port)),
            Place::Size(at) => format!("OX_WORD({}, {})", self.workspace(), 8 * u64::from(at)),
            Place::Outputs => {
                format!("OX_WORD({}, {})", self.workspace(), self.program().outputs_at())
            }
            Place::Frame(frame, field) => {
                let (start, inputs) = match (frame, self.function.kind) {
                    (Some(id), _) => (self.frame(id), self.program().frames[id].inputs),
                    (None, FunctionKind::Steps(own)) => {
                        ("frame".to_string(), self.program().frames[own].inputs)
                    }
                    (None, _) => ("frame".to_string(), 0),
                };
                let name = match field {
                    FrameField::Arena => "FRAME_ARENA".to_string(),
                    FrameField::Weights => "FRAME_WEIGHTS".into(),
                    FrameField::Options => "FRAME_OPTIONS".into(),
                    FrameField::Sizes => "FRAME_SIZES".into(),
                    FrameField::Cancel => "FRAME_CANCEL".into(),
                    FrameField::Parallel => "FRAME_PARALLEL".into(),
                    FrameField::Level => "FRAME_LEVEL".into(),
                    FrameField::Input(_) | FrameField::Output(_) => {
                        format!("FRAME_TENSORS + {}", (field.offset(inputs) - frame::IO) / 8)
                    }
                };
                format!("{start}[{name}]")
            }
            Place::Block(slot) => self.slot(slot, 0),
            Place::At { ty, base, offset } => {
                let memory = match ty {
                    Type::I64 => "ox_i64",
                    Type::I32 => "ox_i32",
                    Type::I8 => "ox_i8",
                    Type::Ptr => "ox_pointer",
                };
                let base = self.get(base);
                match offset {
                    0 => format!("*({memory} *){base}"),
                    _ => format!("*({memory} *)({base} + {offset})"),
                }
            }
        }
    }

    /// A word of a slot: the address, or 8 bytes behind it the bytes.
    fn slot(&mut self, slot: Slot, word: i64) -> String {
        let at = self.program().slot_at(slot) + word;
        format!("OX_WORD({}, {at})", self.workspace())
    }

    fn port(&mut self, port: Port) -> String {
        match port {
            Port::Input(at) => format!("inputs[{at}]"),
            Port::Output(at) => {
                if self.is_in_steps() {
                    self.workspace();
                    self.uses.outputs = true;
                }
                format!("outputs[{at}]")
            }
        }
    }

    fn frame(&mut self, frame: Frame) -> String {
        let pointers = self.program().frames[frame].pointers;
        match pointers.at {
            Some(at) => format!("((ox_pointer *)((unsigned char *){} + {at}))", self.workspace()),
            None => {
                self.uses.frame_words = self.uses.frame_words.max(pointers.count);
                "inner".into()
            }
        }
    }

    fn load(&mut self, place: Place) -> String {
        if place == Place::Options(OptionsField::StructSize) {
            return format!("ox_struct_size({})", self.options());
        }
        let text = self.place(place);
        let ty = match place {
            Place::Options(OptionsField::StructSize | OptionsField::Seed | OptionsField::WeightsBytes)
            | Place::Tensor(_, TensorField::Bytes)
            | Place::Frame(_, FrameField::Level) => "(int64_t)",
            Place::Size(_) | Place::Dim(..) | Place::At { .. } => "",
            Place::Tensor(_, TensorField::Dtype | TensorField::Rank) => "",
            Place::Frame(..) => "",
            Place::Outputs | Place::Block(_) | Place::Options(_) | Place::Tensor(..) => "(uintptr_t)",
        };
        format!("{ty}{text}")
    }

    fn address(&mut self, address: Address) -> String {
        match address {
            Address::Weights(offset) => {
                let start = match (self.is_in_steps(), self.unit.has_weights) {
                    (true, _) => "frame[FRAME_WEIGHTS]".to_string(),
                    (false, true) => format!("(uintptr_t)&{}_weights", self.unit.model),
                    (false, false) => "(uintptr_t)0".into(),
                };
                if offset == 0 { start } else { format!("{start} + {offset}") }
            }
            Address::Arena(offset) => {
                let start = match self.is_in_steps() {
                    true => "frame[FRAME_ARENA]".to_string(),
                    false => format!("(uintptr_t){} + {}", self.workspace(), self.program().arena),
                };
                match offset {
                    Extent::Const(0) => start,
                    Extent::Const(offset) => format!("{start} + {offset}"),
                    offset => {
                        let offset = self.extent(offset);
                        format!("{start} + (uintptr_t){offset}")
                    }
                }
            }
            Address::Workspace => format!("(uintptr_t){}", self.workspace()),
            Address::Options => format!("(uintptr_t){}", self.options()),
            Address::Cancel => self.cancel(),
            Address::Report => {
                self.uses.report = true;
                "(uintptr_t)report".into()
            }
            Address::Frame(frame) => format!("(uintptr_t){}", self.frame(frame)),
            Address::Descriptor => format!("(uintptr_t)&{}_description", self.program().name),
            Address::Strings => {
                let at = self.program().strings.unwrap_or_default();
                format!("(uintptr_t){} + {at}", self.workspace())
            }
        }
    }

    /// The address of the caller's flag, or of a zero.
    fn cancel(&mut self) -> String {
        if self.is_in_steps() {
            return "frame[FRAME_CANCEL]".into();
        }
        let options = self.options();
        if self.program().is_traced() {
            return format!("(uintptr_t)ox_flag({options}, &{}_not_cancelled)", self.unit.model);
        }
        format!(
            "(uintptr_t)({options}->cancel != NULL ? (const void *){options}->cancel : &{}_not_cancelled)",
            self.unit.model
        )
    }

    /// Where the flag is set: informs a caller that traces the run of an event, and goes on.
    fn inform(&mut self, event: &str) {
        let (options, cancel) = (self.options(), self.cancel());
        self.line(&format!("if (*(const volatile int32_t *){} != 0) {{", paren(&cancel)));
        self.line(&format!("    (void)ox_trace({options}, {event});"));
        self.line("}");
    }

    /// Where the flag is set: informs a caller that traces the run of an event, and leaves if the run is cancelled.
    fn look(&mut self, event: &str) -> Result<()> {
        self.unit.uses_message = true;
        let (options, cancel) = (self.options(), self.cancel());
        self.labels += 1;
        let status = format!("status_{}", self.labels);
        self.line(&format!("if (*(const volatile int32_t *){} != 0) {{", paren(&cancel)));
        self.depth += 1;
        self.line(&format!("const int32_t {status} = ox_trace({options}, {event});"));
        self.line(&format!("if ({status} != 0) {{"));
        self.depth += 1;
        self.leave(&status);
        self.depth -= 1;
        self.line("}");
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn inst(&mut self, inst: &Inst) -> Result<()> {
        let text = match &inst.op {
            Op::Binary(binary, a, b) => self.binary(*binary, *a, *b, inst.results.first().copied()),
            Op::Checked(checked, a, b) => {
                let name = match checked {
                    Checked::Add => "add",
                    Checked::Mul => "mul",
                    Checked::Div => "div",
                    Checked::Mod => "mod",
                };
                let (a, b) = (self.long(*a), self.long(*b));
                let [value, bad] = [0, 1].map(|at| inst.results[at]);
                // The second result says whether the first is none.
                let ty = c_type(self.function.values[bad]);
                if !self.ahead.contains(&value) {
                    self.line(&format!("int64_t {value};"));
                }
                let declared = if self.ahead.contains(&bad) { String::new() } else { format!("const {ty} ") };
                let call = format!("({ty})ox_checked_{name}({a}, {b}, &{value})");
                match self.read.contains(&bad) {
                    true => self.line(&format!("{declared}{bad} = {call};")),
                    false => self.line(&format!("(void){call};")),
                }
                if !self.read.contains(&value) {
                    self.line(&format!("(void){value};"));
                }
                return Ok(());
            }
            Op::Compare(compare, a, b) => {
                let unsigned = *compare == Compare::LtUnsigned;
                // Compilers warn of what never holds.
                let never = unsigned && *b == Operand::Int(0);
                let operator = match compare {
                    Compare::Eq => "==",
                    Compare::Ne => "!=",
                    Compare::Lt | Compare::LtUnsigned => "<",
                    Compare::Le => "<=",
                    Compare::Gt => ">",
                    Compare::Ge => ">=",
                };
                let (a, b) = (self.long(*a), self.long(*b));
                match unsigned {
                    _ if never => "0".to_string(),
                    true => format!("(uint64_t){a} {operator} (uint64_t){b}"),
                    false => format!("{a} {operator} {b}"),
                }
            }
            Op::Select(condition, a, b) => {
                let condition = self.get(*condition);
                let (a, b) = (self.operand(*a), self.operand(*b));
                format!("{condition} ? {a} : {b}")
            }
            Op::Extend(value) => format!("(int64_t){}", self.get(*value)),
            Op::Offset(base, offset) => {
                let (base, offset) = (self.get(*base), self.operand(*offset));
                format!("{base} + (uintptr_t){offset}")
            }
            Op::Element { base, index, bytes } => {
                let (base, index, bytes) = (self.get(*base), self.operand(*index), self.operand(*bytes));
                format!("{base} + (uintptr_t){index} * (uintptr_t){bytes}")
            }
            Op::Address(address) => self.address(*address),
            Op::Level => "1".into(),
            Op::Load(place) => self.load(*place),
            Op::Extern(function, args) => match self.call_extern(function, args) {
                Some(text) if inst.results.is_empty() => {
                    self.line(&format!("{text};"));
                    return Ok(());
                }
                Some(text) => text,
                None => return Ok(()),
            },
            Op::Exchange(function, args) => {
                self.unit.exchanges = true;
                let communicator = format!("{}->communicator", self.options());
                let args = self.arguments(function, args).join(", ");
                format!("{communicator}->{}({communicator}->context, {args})", function.name)
            }
            Op::External(callee, record) => {
                let symbol = &callee.symbol;
                let record = self.get(*record);
                if callee.late {
                    self.unit.late.insert(symbol.to_string());
                    let options = self.options();
                    format!(
                        "{options}->function({options}->function_context, \"{symbol}\", (onnxc_op *){record})"
                    )
                } else {
                    self.unit.externals.insert(symbol.to_string());
                    format!("{symbol}((onnxc_op *){record})")
                }
            }
            Op::Kernel(kernel, buffers) => return self.kernel(*kernel, buffers, inst),
            Op::Job { job, begin, end } => {
                let (job, begin, end) = (self.get(*job), self.get(*begin), self.get(*end));
                format!(
                    "((const ox_job *){job})->kernel(((const ox_job *){job})->buffers, ((const ox_job *){job})->sizes, {begin}, {end})"
                )
            }
            op => return self.effect(op),
        };
        match inst.results.first() {
            Some(&result) => self.define(result, &text),
            None => self.line(&format!("(void)({text});")),
        }
        Ok(())
    }

    fn binary(&mut self, binary: Binary, a: Operand, b: Operand, result: Option<Value>) -> String {
        let ty = result.map_or(Type::I64, |result| self.function.values[result]);
        let (a, b) = (self.operand(a), self.operand(b));
        let (name, unsigned) = match ty {
            Type::Ptr => ("uintptr_t", "uintptr_t"),
            Type::I32 => ("int32_t", "uint32_t"),
            Type::I8 => ("int8_t", "uint32_t"),
            Type::I64 => ("int64_t", "uint64_t"),
        };
        match binary {
            Binary::Add => format!("({name})(({unsigned}){a} + ({unsigned}){b})"),
            Binary::Sub => format!("({name})(({unsigned}){a} - ({unsigned}){b})"),
            Binary::And => format!("({name})({a} & {b})"),
            Binary::Or => format!("({name})({a} | {b})"),
            Binary::Min => format!("({name}){a} < ({name}){b} ? ({name}){a} : ({name}){b}"),
            Binary::Max => format!("({name}){a} > ({name}){b} ? ({name}){a} : ({name}){b}"),
            Binary::MaxUnsigned => {
                format!("({name})(({unsigned}){a} > ({unsigned}){b} ? ({unsigned}){a} : ({unsigned}){b})")
            }
        }
    }

    /// A call of a function outside of the file.
    /// Arguments of a call, in the types of its parameters.
    fn arguments(&mut self, function: &Extern, args: &[Operand]) -> Vec<String> {
        let typed = |(&arg, ty): (&Operand, &Type)| {
            let text = self.operand(arg);
            match ty {
                Type::Ptr => format!("(void *)(uintptr_t){text}"),
                ty => format!("({}){text}", c_type(*ty)),
            }
        };
        args.iter().zip(function.params).map(typed).collect()
    }

    fn call_extern(&mut self, function: &'static Extern, args: &[Operand]) -> Option<String> {
        let texts = self.arguments(function, args);
        if *function == MEMCPY {
            let (to, from, bytes) = (&texts[0], &texts[1], &texts[2]);
            let bytes = bytes.replacen("(int64_t)", "(size_t)", 1);
            self.line(&format!("if ({bytes} != 0) {{"));
            self.line(&format!("    memcpy({to}, {from}, {bytes});"));
            self.line("}");
            return None;
        }
        self.unit.externs.insert(function.name, function);
        let call = format!("{}({})", function.name, texts.join(", "));
        Some(match function.result {
            Some(Type::Ptr) => format!("(uintptr_t){call}"),
            _ => call,
        })
    }

    fn kernel(&mut self, kernel: KernelId, buffers: &[Value], inst: &Inst) -> Result<()> {
        let array = match self.program().buffers.at {
            Some(at) => {
                let workspace = self.workspace();
                format!("((void **)((unsigned char *){workspace} + {at}))")
            }
            None => {
                self.uses.buffers = true;
                "buffers".to_string()
            }
        };
        for (at, &buffer) in buffers.iter().enumerate() {
            let buffer = self.get(buffer);
            self.line(&format!("{array}[{at}] = (void *){buffer};"));
        }
        let name = self.functions.kernels[kernel.index()].clone();
        let Some(Version { lo, hi, threads, .. }) = self.program().kernels[kernel].versions.first() else {
            return Err(internal(format!("{kernel} has no versions")));
        };
        let (lo, hi, threads) = (*lo, *hi, *threads);
        let (lo, hi) = (self.extent(lo), self.extent(hi));
        let sizes = format!("(const int64_t *){}", self.workspace());
        let alone = format!("{name}({array}, {sizes}, {lo}, {hi})");
        let enough = match threads {
            Policy::Never => None,
            Policy::Always => Some(String::new()),
            Policy::From { size, least } => {
                let size = self.extent(size);
                Some(format!(" && {size} >= {least}"))
            }
        };
        let text = match enough {
            None => alone,
            Some(enough) => {
                self.uses.job = true;
                let options = self.options();
                let part = self.program().functions.values().find(|f| f.kind == FunctionKind::Part);
                let part = part.map(|part| self.functions.name(part));
                let part = part.ok_or_else(|| internal("there is no function for parts"))?;
                format!(
                    "frame[FRAME_PARALLEL] != 0 && {hi} - {lo} > 1{enough}\n{0}    ? (shared.kernel = {name}, shared.buffers = {array}, shared.sizes = {sizes},\n{0}       \
                     ((onnxc_parallel_for_fn)frame[FRAME_PARALLEL])({options}->pool, {lo}, {hi}, {part}, &shared))\n{0}    : {alone}",
                    "    ".repeat(self.depth)
                )
            }
        };
        match inst.results.first() {
            Some(&result) => self.define(result, &text),
            None => self.line(&format!("(void)({text});")),
        }
        Ok(())
    }

    fn effect(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Store(place, value) => {
                let value = self.operand(*value);
                let to = self.place(*place);
                let text = match place {
                    Place::Tensor(_, TensorField::Data) => format!("{to} = (void *)(uintptr_t){value};"),
                    Place::Tensor(_, TensorField::Bytes) => format!("{to} = (size_t){value};"),
                    Place::Tensor(_, TensorField::Dims) => format!("{to} = (int64_t *)(uintptr_t){value};"),
                    Place::Outputs | Place::Block(_) => format!("{to} = (int64_t){value};"),
                    Place::Frame(..) => format!("{to} = (uintptr_t){value};"),
                    Place::At { ty, .. } => format!("{to} = ({}){value};", c_type(*ty)),
                    _ => format!("{to} = {value};"),
                };
                self.line(&text);
            }
            Op::Inherit(frame) => {
                let inner = self.frame(*frame);
                self.line(&format!(
                    "memcpy({inner} + FRAME_WEIGHTS, frame + FRAME_WEIGHTS, (FRAME_TENSORS - FRAME_WEIGHTS) * sizeof *frame);"
                ));
            }
            Op::Clear(slot) => {
                let word = self.slot(*slot, 0);
                self.line(&format!("{word} = 0;"));
            }
            Op::Allocate { slot, bytes, what } => {
                let bytes = self.operand(*bytes);
                self.allocate(*slot, &bytes, what);
            }
            Op::Grow { slot, used, bytes, what } => {
                let (used, bytes) = (self.operand(*used), self.operand(*bytes));
                self.grow(*slot, &used, &bytes, what);
            }
            Op::Release(slot) => {
                let options = self.options();
                let (data, bytes) = (self.slot(*slot, 0), self.slot(*slot, 8));
                self.line(&format!("ox_release({options}, (uintptr_t){data}, {bytes});"));
                self.line(&format!("{data} = 0;"));
            }
            Op::Empty(slot) => {
                let options = self.options();
                let (data, bytes) = (self.slot(*slot, 0), self.slot(*slot, 8));
                self.line(&format!("if ({data} != 0) {{"));
                self.line(&format!("    ox_release({options}, (uintptr_t){data}, {bytes});"));
                self.line(&format!("    {data} = 0;"));
                self.line("}");
            }
            Op::Transfer { from, to } => {
                for word in [0, 8] {
                    let (from, to) = (self.slot(*from, word), self.slot(*to, word));
                    self.line(&format!("{to} = {from};"));
                }
                let data = self.slot(*from, 0);
                self.line(&format!("{data} = 0;"));
            }
            Op::FailIf { condition, status, template, args } => {
                let condition = self.get(*condition);
                let mut numbers = vec![];
                for &arg in args {
                    numbers.push(self.long(arg));
                }
                self.fail_if(&condition, *status, template, &numbers);
            }
            Op::Step { number, polls, what: Some(what) } => {
                let texts = format!("{number}, {}, {}", string(&what.kernel), string(&what.nodes));
                match polls {
                    true => self.look(&format!("{}, {texts}", what.event()))?,
                    false => self.inform(&format!("{} | OX_UNPOLLED, {texts}", what.event())),
                }
            }
            Op::Step { polls: false, .. } => {}
            Op::Poll if self.program().is_traced() => self.look("OX_NO_EVENT, 0, NULL, NULL")?,
            Op::Event(event, number) => {
                let number = self.long(*number);
                let name =
                    if *event == Event::Leave { "\"\"".to_string() } else { string(&self.program().name) };
                self.inform(&format!("{}, {number}, {name}, \"\"", event.number()));
            }
            Op::Poll | Op::Step { .. } => {
                let cancel = self.cancel();
                self.fail_if(
                    &format!("*(const volatile int32_t *){}", paren(&cancel)),
                    status::CANCELLED,
                    "cancelled by the caller",
                    &[],
                );
            }
            Op::Call(callee, args) => {
                let callee = &self.functions.program.functions[*callee];
                let mut texts = vec![];
                for (at, &arg) in args.iter().enumerate() {
                    let text = self.operand(arg);
                    texts.push(format!("({}){text}", argument_type(callee.kind, at)));
                }
                let name = self.functions.name(callee);
                self.labels += 1;
                let status = format!("status_{}", self.labels);
                self.line(&format!("const int32_t {status} = {name}({});", texts.join(", ")));
                self.line(&format!("if ({status} != 0) {{"));
                self.depth += 1;
                self.leave(&status);
                self.depth -= 1;
                self.line("}");
            }
            Op::Return(result) => {
                let text = match self.function.kind {
                    FunctionKind::Model => {
                        format!("(const onnxc_model *){}", self.operand(*result))
                    }
                    _ => self.operand(*result),
                };
                self.line(&format!("return {text};"));
            }
            Op::StepDone(step) => {
                let options = self.options();
                self.line(&format!("if ({options}->step_done != NULL) {{"));
                self.line(&format!("    {options}->step_done({options}->step_context, {step});"));
                self.line("}");
            }
            Op::If { condition, then, otherwise } => {
                let condition = match condition {
                    Condition::Value(value) => self.get(*value),
                    Condition::Holds(slot) => format!("{} != 0", self.slot(*slot, 0)),
                };
                self.line(&format!("if ({condition}) {{"));
                self.nested(then)?;
                if !otherwise.is_empty() {
                    self.line("} else {");
                    self.nested(otherwise)?;
                }
                self.line("}");
            }
            Op::Loop { params, init, head, condition, body, next } => {
                self.repeat((params, init), head, *condition, (body, next))?;
            }
            Op::Attempt { body, status, handler } => self.attempt(body, *status, handler)?,
            op => return Err(internal(format!("{op:?} has no form in C"))),
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        (params, init): (&[Value], &[Operand]),
        head: &Region,
        condition: Value,
        (body, next): (&Region, &[Operand]),
    ) -> Result<()> {
        for (&param, &init) in params.iter().zip(init) {
            let ty = c_type(self.function.values[param]);
            let init = self.operand(init);
            self.line(&format!("{ty} {param} = ({ty}){init};"));
        }
        // What the head computes is used behind the loop, too.
        for result in head.iter().flat_map(|inst| &inst.results) {
            if self.ahead.insert(*result) {
                let ty = c_type(self.function.values[*result]);
                self.line(&format!("{ty} {result};"));
            }
        }
        self.line("for (;;) {");
        self.nested(head)?;
        self.depth += 1;
        let condition = self.get(condition);
        self.line(&format!("if (!{condition}) {{"));
        self.line("    break;");
        self.line("}");
        self.line("{");
        self.nested(body)?;
        self.depth += 1;
        let ends = matches!(body.last(), Some(Inst { op: Op::Return(_), .. }));
        let several = params.len() > 1;
        for (&param, &next) in params.iter().zip(next).filter(|_| !ends) {
            let (ty, next) = (c_type(self.function.values[param]), self.operand(next));
            match several {
                true => self.line(&format!("const {ty} next_{param} = ({ty}){next};")),
                false => self.line(&format!("{param} = ({ty}){next};")),
            }
        }
        for param in params.iter().filter(|_| several && !ends) {
            self.line(&format!("{param} = next_{param};"));
        }
        self.depth -= 1;
        self.line("}");
        self.depth -= 1;
        self.line("}");
        Ok(())
    }

    fn attempt(&mut self, body: &Region, status: Value, handler: &Region) -> Result<()> {
        self.labels += 1;
        let label = format!("failed_{}", self.labels);
        self.line(&format!("int32_t {status} = 0;"));
        self.leaves.push(Leave { label: label.clone(), status, is_used: false });
        self.line("{");
        self.nested(body)?;
        self.line("}");
        let leave = self.leaves.pop().ok_or_else(|| internal("nothing to leave"))?;
        if leave.is_used {
            self.line(&format!("{label}:"));
            self.line(&format!("if ({status} != 0) {{"));
            self.nested(handler)?;
            self.line("}");
        } else {
            self.line(&format!("(void){status};"));
        }
        Ok(())
    }

    /// Leaves with a status, which is not 0.
    fn leave(&mut self, status: &str) {
        match self.leaves.last_mut() {
            Some(leave) => {
                leave.is_used = true;
                let (to, label) = (leave.status, leave.label.clone());
                self.line(&format!("{to} = {status};"));
                self.line(&format!("goto {label};"));
            }
            None => self.line(&format!("return {status};")),
        }
    }

    fn fail_if(&mut self, condition: &str, status: i32, template: &str, args: &[String]) {
        self.line(&format!("if ({condition}) {{"));
        self.depth += 1;
        self.fail(status, template, args);
        self.depth -= 1;
        self.line("}");
    }

    fn fail(&mut self, status: i32, template: &str, args: &[String]) {
        if !template.is_empty() {
            self.unit.uses_message = true;
            let options = self.options();
            let count = numbers(template);
            let list = match count {
                0 => "NULL".to_string(),
                _ => format!("(const int64_t[]){{{}}}", args.join(", ")),
            };
            let text = string(template);
            self.line(&format!("ox_message({options}, {text}, {list});"));
        }
        self.leave(&status.to_string());
    }

    fn allocate(&mut self, slot: Slot, bytes: &str, what: &str) {
        let options = self.options();
        let (data, held) = (self.slot(slot, 0), self.slot(slot, 8));
        self.line(&format!("{data} = (int64_t)ox_allocate({options}, {bytes});"));
        let template = format!("{what}: the allocator has no {V} bytes");
        self.fail_if(&format!("{data} == 0"), status::OUT_OF_MEMORY, &template, &[bytes.to_string()]);
        self.line(&format!("{held} = {bytes};"));
    }

    fn grow(&mut self, slot: Slot, used: &str, bytes: &str, what: &str) {
        let options = self.options();
        let (data, held) = (self.slot(slot, 0), self.slot(slot, 8));
        self.labels += 1;
        let (old, had, wanted, new) = (
            format!("old_{}", self.labels),
            format!("had_{}", self.labels),
            format!("wanted_{}", self.labels),
            format!("new_{}", self.labels),
        );
        self.line("{");
        self.depth += 1;
        self.line(&format!("const uintptr_t {old} = (uintptr_t){data};"));
        self.line(&format!("const uint64_t {had} = {old} != 0 ? (uint64_t){held} : 0;"));
        self.line(&format!("if (ox_grows({had}, (uint64_t){bytes})) {{"));
        self.depth += 1;
        self.line(&format!("const int64_t {wanted} = ox_grown({had}, (uint64_t){bytes});"));
        self.line(&format!("const uintptr_t {new} = ox_allocate({options}, {wanted});"));
        let template = format!("{what}: the allocator has no {V} bytes");
        self.fail_if(&format!("{new} == 0"), status::OUT_OF_MEMORY, &template, std::slice::from_ref(&wanted));
        self.line(&format!("{data} = (int64_t){new};"));
        self.line(&format!("{held} = {wanted};"));
        self.line(&format!("if ({had} != 0) {{"));
        self.line(&format!("    memcpy((void *){new}, (const void *){old}, (size_t){used});"));
        self.line(&format!("    ox_release({options}, {old}, (int64_t){had});"));
        self.line("}");
        self.depth -= 1;
        self.line("}");
        self.depth -= 1;
        self.line("}");
    }
}

fn paren(text: &str) -> String {
    format!("({text})")
}

/// A string of C. Numbers stand where the byte 1 does.
pub(crate) fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            // Not the beginning of a trigraph.
            b'?' => out.push_str("\\?"),
            0x20..0x7f => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('"');
    out
}

/// What host programs use: words of the workspace, arithmetic of sizes, messages, the caller's allocator.
pub(crate) fn support(model: &str) -> String {
    SUPPORT
        .replace("MODEL", model)
        .replace("OPTIONS_SIZE", &options::SIZE.to_string())
        .replace("OPTIONS_FOURTH", &options::FOURTH_SIZE.to_string())
        .replace("OPTIONS_FIFTH", &options::FIFTH_SIZE.to_string())
        .replace("OPTIONS_THIRD", &options::THIRD_SIZE.to_string())
        .replace("OPTIONS_SECOND", &options::SECOND_SIZE.to_string())
        .replace("OPTIONS_FIRST", &options::FIRST_SIZE.to_string())
}

const SUPPORT: &str = r#"/* A word of the workspace. */
#define OX_WORD(workspace, at) (*(ox_i64 *)((unsigned char *)(workspace) + (at)))

/* Where a frame, with which functions of steps are called, has its fields; behind them are the tensors. */
enum {
    FRAME_ARENA = 0,
    FRAME_WEIGHTS = 1,
    FRAME_OPTIONS = 2,
    FRAME_SIZES = 3,
    FRAME_CANCEL = 4,
    FRAME_PARALLEL = 5,
    FRAME_LEVEL = 6,
    FRAME_TENSORS = 7
};

/* A kernel that several threads share. */
typedef struct ox_job {
    int32_t (*kernel)(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end);
    void *const *buffers;
    const int64_t *sizes;
} ox_job;

/* What a caller without options has. */
static OX_UNUSED const onnxc_options MODEL_no_options;
static OX_UNUSED const int32_t MODEL_not_cancelled;

/* The size of a caller's options as it is where pointers have 64 bits. */
static inline OX_UNUSED int64_t ox_struct_size(const onnxc_options *options) {
    const size_t size = options->struct_size;
    if (size == offsetof(onnxc_options, communicator)) {
        return OPTIONS_SECOND;
    }
    if (size == offsetof(onnxc_options, trace)) {
        return OPTIONS_THIRD;
    }
    if (size == offsetof(onnxc_options, weights)) {
        return OPTIONS_FOURTH;
    }
    if (size == offsetof(onnxc_options, function)) {
        return OPTIONS_FIFTH;
    }
    return size >= sizeof(onnxc_options) ? OPTIONS_SIZE : size == offsetof(onnxc_options, seed) ? OPTIONS_FIRST : 0;
}

/* Arithmetic of sizes: not 0 where the result does not fit 64 bits, or the divisor is not positive. */
static inline OX_UNUSED int ox_checked_add(int64_t a, int64_t b, int64_t *result) {
    *result = (int64_t)((uint64_t)a + (uint64_t)b);
    return ((a ^ *result) & (b ^ *result)) < 0;
}

static inline OX_UNUSED int ox_checked_mul(int64_t a, int64_t b, int64_t *result) {
    *result = (int64_t)((uint64_t)a * (uint64_t)b);
#if defined(__SIZEOF_INT128__)
    return (__extension__ (__int128)a * b) != *result;
#else
    if ((a == -1 && b == INT64_MIN) || (b == -1 && a == INT64_MIN)) {
        return 1;
    }
    return a != 0 && a != -1 && *result / a != b;
#endif
}

static inline OX_UNUSED int ox_checked_div(int64_t a, int64_t b, int64_t *result) {
    const int64_t by = b < 1 ? 1 : b;
    *result = a / by - (a % by < 0);
    return b < 1;
}

static inline OX_UNUSED int ox_checked_mod(int64_t a, int64_t b, int64_t *result) {
    const int64_t by = b < 1 ? 1 : b;
    *result = a % by + (a % by < 0 ? by : 0);
    return b < 1;
}

/* Writes a message into the caller's buffer, cut where that ends. In the text the byte 1 stands for the next number. */
static OX_UNUSED void ox_message(const onnxc_options *options, const char *text, const int64_t *numbers) {
    char *at = options->message, digits[24];
    size_t room = options->message_capacity;
    if (at == NULL || room == 0) {
        return;
    }
    for (; *text != 0 && room > 1; text++) {
        if (*text == 1 && numbers != NULL) {
            const int64_t number = *numbers++;
            uint64_t rest = number < 0 ? 0u - (uint64_t)number : (uint64_t)number;
            size_t count = 0;
            do {
                digits[count++] = (char)('0' + rest % 10);
                rest /= 10;
            } while (rest != 0);
            if (number < 0) {
                digits[count++] = '-';
            }
            for (; count > 0 && room > 1; room--) {
                *at++ = digits[--count];
            }
        } else {
            *at++ = *text;
            room--;
        }
    }
    *at = 0;
}

/* The event of a poll, which no trace is informed of. */
#define OX_NO_EVENT (-1)

/* Beside an event at which the run does not end, though it is cancelled. */
#define OX_UNPOLLED 8

/* Whether the caller traces the run. */
static inline OX_UNUSED int ox_is_traced(const onnxc_options *options) {
    return options->struct_size >= offsetof(onnxc_options, weights) && options->trace != NULL;
}

/* The flag that a run looks at: the caller's, or one that is set, so that ox_trace is called, where the caller traces the run. */
static inline OX_UNUSED const void *ox_flag(const onnxc_options *options, const int32_t *not_cancelled) {
    static const int32_t set = 1;
    if (ox_is_traced(options)) {
        return &set;
    }
    return options->cancel != NULL ? (const void *)options->cancel : not_cancelled;
}

/* Fails where the run is cancelled and the event is one at which it may end, else informs a caller that traces it. */
static OX_UNUSED int32_t ox_trace(const onnxc_options *options, int32_t event, int64_t number, const char *kernel, const char *nodes) {
    const int32_t kind = event == OX_NO_EVENT ? event : event & ~OX_UNPOLLED;
    const int may_end = event == OX_NO_EVENT || event == ONNXC_STEP || event == ONNXC_ENTER;
    if (may_end && options->cancel != NULL && *options->cancel != 0) {
        ox_message(options, "cancelled by the caller", NULL);
        return ONNXC_CANCELLED;
    }
    if (event != OX_NO_EVENT && ox_is_traced(options)) {
        options->trace(options->trace_context, kind, number, kernel, nodes);
    }
    return 0;
}

/* Memory of the caller's allocator; 0 where it has none. */
static inline OX_UNUSED uintptr_t ox_allocate(const onnxc_options *options, int64_t bytes) {
    if ((uint64_t)bytes > SIZE_MAX) {
        return 0;
    }
    return (uintptr_t)options->allocate(options->allocator, (size_t)bytes, ONNXC_WORKSPACE_ALIGNMENT);
}

static inline OX_UNUSED void ox_release(const onnxc_options *options, uintptr_t data, int64_t bytes) {
    options->release(options->allocator, (void *)data, (size_t)bytes, ONNXC_WORKSPACE_ALIGNMENT);
}

/* Whether a block has to grow; an empty slot is filled even for no bytes. */
static inline OX_UNUSED int ox_grows(uint64_t had, uint64_t wanted) {
    return had == 0 || had < wanted;
}

/* Bytes of a block that grows: at least twice what it had. */
static inline OX_UNUSED int64_t ox_grown(uint64_t had, uint64_t wanted) {
    const uint64_t twice = had + had, most = twice > wanted ? twice : wanted;
    return (int64_t)(most > 64 ? most : 64);
}
"#;
