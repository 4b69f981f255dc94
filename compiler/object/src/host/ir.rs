//! The host program IR: everything that a model does outside of its kernels.
//!
//! A [`Program`] is a list of functions over typed values in SSA form, inside structured regions: an `if`, a `loop` with
//! carried values, an `attempt` whose handler runs where something in it fails. Memory is reached by name: a field of the
//! caller's options or tensors, of a frame, a word of the table of sizes, the slot of a block. Raw addresses occur where
//! the model's own data lies.
//!
//! A function may leave at any `fail_if`, `poll`, `call`, `allocate` and `grow`: with a status, to the handler of the
//! innermost `attempt` around it, or out of the function. A region defines values for itself and the regions in it; what
//! the head of a loop defines can be used after the loop as well.
//!
//! A model with strings has a table of them, which `run` opens before the first step and closes after the last one or where one
//! fails; functions of the runtime are called with its address.

mod operation;

use std::sync::Arc;

use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;

use onnxc_ir::graph::call::FUNCTIONS;
pub use onnxc_ir::graph::call::{Extern, Type};

/// A value of a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(u32);
entity_impl!(Value, "v");

/// A function of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncId(u32);
entity_impl!(FuncId, "function");

/// A kernel that a program calls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(u32);
entity_impl!(KernelId, "k");

/// Two words of the workspace that own a block which a run allocated: its address, or null, and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(u32);
entity_impl!(Slot, "slot");

/// The frame of the model (number 0) or of a body: what its step functions are called with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame(u32);
entity_impl!(Frame, "frame");

/// What a model does around its kernels, and the layout of the memory that it does this in. A model with states has one input
/// more than tensors: the state block.
///
/// The workspace of a run begins with the words of the sizes. Where there are slots or sizes that data decide, the address of the
/// caller's outputs follows, and the slots; then the arrays of pointers that are too many for the stack; at `arena` the
/// arena of the model.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Program {
    pub name: String,
    pub inputs: usize,
    pub outputs: usize,
    /// Bytes of constants.
    pub weights: u64,
    /// The symbols, then the distinct formulas that steps use: what each word stands for.
    pub sizes: Vec<String>,
    /// What each slot is for.
    pub slots: PrimaryMap<Slot, SlotUse>,
    /// Whether the workspace has the word with the address of the caller's outputs.
    pub keeps_outputs: bool,
    pub frames: PrimaryMap<Frame, FrameLayout>,
    /// Addresses that a kernel is called with: one array for all, as one kernel is called at a time.
    pub buffers: Pointers,
    /// Offset of the table of strings in the workspace, if there is one.
    pub strings: Option<i64>,
    /// Offset of the arena in the workspace, bytes.
    pub arena: i64,
    pub kernels: PrimaryMap<KernelId, Kernel>,
    pub functions: PrimaryMap<FuncId, Function>,
}

/// Who a slot belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SlotUse {
    /// A block of the program: empty again when a run ends.
    Block,
    /// The data of this output, where the caller gives none: his when a run succeeds.
    Output(usize),
}

/// How many pointers an array has, and its offset in the workspace unless it is on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pointers {
    pub count: usize,
    pub at: Option<i64>,
}

/// Inputs and outputs of a model or a body; `pointers` has the fixed fields of a frame, then the addresses of these.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameLayout {
    pub inputs: usize,
    pub outputs: usize,
    pub pointers: Pointers,
}

/// A kernel, with its code for each level of processors that has one of its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// Name of its symbols, without the level.
    pub name: String,
    /// The first is of level 0. Of those that a processor is good for, the last one runs.
    pub versions: Vec<Version>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Version {
    pub level: usize,
    /// The range of the parallel loop.
    pub lo: Extent,
    pub hi: Extent,
    pub threads: Policy,
}

/// A number that is known when a kernel is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extent {
    Const(i64),
    /// A word of the sizes.
    Size(u32),
}

/// When several threads share the range of a kernel. They never do where the caller has no function for it, or the range
/// has less than two parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    Never,
    Always,
    From { size: Extent, least: i64 },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Function {
    pub name: String,
    pub kind: FunctionKind,
    pub params: Vec<Value>,
    pub values: PrimaryMap<Value, Type>,
    pub body: Region,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FunctionKind {
    /// `const onnxc_model *model(void)`
    Model,
    /// `int64_t workspace(const int64_t *dims, size_t count)`: bytes, or minus a status.
    Workspace,
    /// `int64_t state_bytes(const int64_t *dims, size_t count)`: bytes of the state block, or minus a status.
    StateBytes,
    /// `int32_t state_reset(void *block, size_t bytes, const int64_t *dims, size_t count)`: a status.
    StateReset,
    /// `int32_t run(inputs, n, outputs, m, workspace, bytes, options)`
    Run,
    /// Part of the checks of `run`, with its parameters.
    Checks,
    /// `int32_t part(void *job, int64_t begin, int64_t end)`: what a parallel-for is given to call.
    Part,
    /// `int32_t steps(frame)`: steps of the model or of a body.
    Steps(Frame),
}

impl FunctionKind {
    /// The types of parameters and result.
    pub fn signature(self) -> (&'static [Type], Type) {
        use Type::{I32, I64, Ptr};
        match self {
            FunctionKind::Model => (&[], Ptr),
            FunctionKind::Workspace | FunctionKind::StateBytes => (&[Ptr, I64], I64),
            FunctionKind::StateReset => (&[Ptr, I64, Ptr, I64], I32),
            FunctionKind::Run | FunctionKind::Checks => (&[Ptr, I64, Ptr, I64, Ptr, I64, Ptr], I32),
            FunctionKind::Part => (&[Ptr, I64, I64], I32),
            FunctionKind::Steps(_) => (&[Ptr], I32),
        }
    }

    /// Whether a function is part of a run, and so reaches options, workspace and tensors by name.
    pub fn is_in_run(self) -> bool {
        matches!(self, FunctionKind::Run | FunctionKind::Checks | FunctionKind::Steps(_))
    }
}

pub type Region = Vec<Inst>;

#[derive(Clone, PartialEq, Debug)]
pub struct Inst {
    /// One or two, or none, of most operations.
    pub results: SmallVec<[Value; 2]>,
    pub op: Op,
}

/// A value, or a number of the type that its place asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operand {
    Value(Value),
    Int(i64),
}

impl From<Value> for Operand {
    fn from(value: Value) -> Operand {
        Operand::Value(value)
    }
}

impl From<i64> for Operand {
    fn from(value: i64) -> Operand {
        Operand::Int(value)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Binary {
    /// These two wrap: for counters. Their results are not sizes.
    Add,
    Sub,
    And,
    Or,
    /// Of signed numbers.
    Min,
    Max,
    /// The greater of two numbers of bytes.
    MaxUnsigned,
}

/// Arithmetic of sizes. The second result is not 0 where the first is none: the sum or product exceeds 64 bits, the divisor
/// is not positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    Add,
    Mul,
    /// Rounded toward minus infinity.
    Div,
    Mod,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    LtUnsigned,
}

/// Memory that has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    Weights(u64),
    /// This far behind the start of the arena, of the function's own frame.
    Arena(Extent),
    Workspace,
    /// The caller's options, or zeros.
    Options,
    /// The caller's flag, or a zero.
    Cancel,
    Frame(Frame),
    Descriptor,
    /// The table of strings.
    Strings,
    /// Words of the function's own, [`onnxc_loops::lower::explain::REPORT_WORDS`] of them, for the code that explains a failure.
    Report,
}

/// An input or an output of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    Input(u32),
    Output(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionsField {
    StructSize,
    ParallelFor,
    Allocate,
    Release,
    Seed,
    Communicator,
    /// A file of weights, of a model that has them apart.
    Weights,
    WeightsBytes,
    /// What computes operators that the caller has functions for.
    Function,
    FunctionContext,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorField {
    Data,
    Bytes,
    Dtype,
    Rank,
    Dims,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameField {
    Arena,
    Weights,
    Options,
    Sizes,
    Cancel,
    Parallel,
    Level,
    Input(u32),
    Output(u32),
}

/// What is loaded or stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Options(OptionsField),
    /// Of the caller's descriptor.
    Tensor(Port, TensorField),
    /// A dim of the caller's tensor.
    Dim(Port, u32),
    /// A word of the sizes.
    Size(u32),
    /// The word of the workspace with the address of the caller's outputs.
    Outputs,
    /// Of the function's own frame, or of that of a body which it runs; `run` stores the fields of the model's.
    Frame(Option<Frame>, FrameField),
    /// The address of the block in a slot.
    Block(Slot),
    /// At this number of bytes behind an address.
    At {
        ty: Type,
        base: Value,
        offset: i64,
    },
}

/// C `memcpy`: to, from, bytes. The only symbol that a dense model may leave for the linker.
pub static MEMCPY: Extern =
    Extern { name: "memcpy", params: &[Type::Ptr, Type::Ptr, Type::I64], result: Some(Type::Ptr) };

/// Opens a table of strings: the table, the caller's options, the constant strings.
pub static OPEN_STRINGS: Extern = Extern {
    name: "onnxc_strings_open",
    params: &[Type::Ptr, Type::Ptr, Type::Ptr],
    result: Some(Type::I32),
};

/// Gives back all that a table of strings has allocated.
pub static CLOSE_STRINGS: Extern = Extern { name: "onnxc_strings_close", params: &[Type::Ptr], result: None };

/// Which element of its input made a call on texts fail: that element's number in all, or -1.
pub static FAULT_OF_STRINGS: Extern =
    Extern { name: "onnxc_strings_fault", params: &[Type::Ptr], result: Some(Type::I64) };

const I: Type = Type::I64;
const P: Type = Type::Ptr;

/// A function of the communicator, without the context.
const fn of_communicator(name: &'static str, params: &'static [Type]) -> Extern {
    Extern { name, params, result: Some(Type::I32) }
}

/// Makes sure that all ranks run the same model: its digest.
pub static BEGIN_RANKS: Extern = of_communicator("begin", &[I]);

/// Lets the others know that this rank does not go on: why.
pub static ABORT_RANKS: Extern = of_communicator("abort", &[Type::I32]);

/// Exchanges. Those of a group begin with its first rank, stride and count.
static EXCHANGES: [Extern; 7] = [
    // Reduction, element type; from, to, elements.
    of_communicator("all_reduce", &[I, I, I, I, I, P, P, I]),
    // Bytes of an element; from, to, the elements of each member.
    of_communicator("all_gather", &[I, I, I, I, P, P, P]),
    // Reduction, element type; from, to, the elements of each member.
    of_communicator("reduce_scatter", &[I, I, I, I, I, P, P, P]),
    // Which member gives it; from, to, bytes.
    of_communicator("broadcast", &[I, I, I, I, P, P, I]),
    // Bytes of an element; from, the elements for each member; to, the elements of each member.
    of_communicator("all_to_all", &[I, I, I, I, P, P, P, P]),
    // A rank; from, bytes.
    of_communicator("send", &[I, P, I]),
    // A rank; to, bytes.
    of_communicator("receive", &[I, P, I]),
];

/// The function of the communicator with this name.
pub fn exchange_function(name: &str) -> Option<&'static Extern> {
    let all = [&BEGIN_RANKS, &ABORT_RANKS].into_iter().chain(&EXCHANGES);
    all.into_iter().find(|function| function.name == name)
}

/// Every function that a program may call by name: these, and those that graphs call.
pub fn extern_named(name: &str) -> Option<&'static Extern> {
    let own = [&MEMCPY, &OPEN_STRINGS, &CLOSE_STRINGS, &FAULT_OF_STRINGS];
    let called = FUNCTIONS.iter().map(|function| &function.symbol);
    own.into_iter().chain(called).find(|function| function.name == name)
}

/// A function of the user's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Callee {
    pub symbol: Arc<str>,
    /// Whether the caller's options compute it, which are given the name.
    pub late: bool,
}

/// What an `if` asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    /// Whether a value is not 0.
    Value(Value),
    /// Whether a slot has a block.
    Holds(Slot),
}

/// What a trace knows of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Traced {
    /// Whether the steps of its bodies follow; then [`Event::Leave`] ends it, and the next event any other.
    pub has_bodies: bool,
    pub kernel: String,
    /// Its ONNX nodes.
    pub nodes: String,
}

/// What a trace is informed of, beside steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    RunBegin,
    /// With the status.
    RunEnd,
    /// A step with bodies ends: its number.
    Leave,
}

/// An operation. Its results are those of its [`Inst`]: one where the comment names a value, otherwise none.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A value.
    Binary(Binary, Operand, Operand),
    /// Two values: see [`Checked`].
    Checked(Checked, Operand, Operand),
    /// A truth value.
    Compare(Compare, Operand, Operand),
    /// The second operand where the first is not 0, else the third.
    Select(Value, Operand, Operand),
    /// An i64 of an i32 or an i8.
    Extend(Value),
    /// The address this number of bytes behind another.
    Offset(Value, Operand),
    /// The address of part number `index` of those of `bytes` each at `base`.
    Element {
        base: Value,
        index: Operand,
        bytes: Operand,
    },
    /// An address.
    Address(Address),
    /// The levels of processors that this one is good for, a bit each; the baseline has the lowest.
    Level,
    /// A value.
    Load(Place),
    Store(Place, Operand),
    /// Gives the frame of a body what does not change: all fields but the arena and the addresses.
    Inherit(Frame),
    /// A function outside of the object; its result, if it is wanted.
    Extern(&'static Extern, Vec<Operand>),
    /// A function of the user's own, of the address of its record: its status, an i32.
    External(Callee, Value),
    /// A function of the caller's communicator, without its context: its status, an i32, if it is wanted.
    Exchange(&'static Extern, Vec<Operand>),

    /// Makes a slot empty that held anything at all.
    Clear(Slot),
    /// Allocates this number of bytes by the caller's function for a slot, which is empty; fails if it cannot.
    Allocate {
        slot: Slot,
        bytes: Operand,
        what: String,
    },
    /// Lets a slot hold at least `bytes`, keeping the first `used`; at least twice what it held where that is too
    /// little, so that growing by small steps costs little. An empty slot is filled even for no bytes.
    Grow {
        slot: Slot,
        used: Operand,
        bytes: Operand,
        what: String,
    },
    /// Gives the block of a slot back, which has one.
    Release(Slot),
    /// Gives the block of a slot back, if it has one.
    Empty(Slot),
    /// Hands a block over to an empty slot.
    Transfer {
        from: Slot,
        to: Slot,
    },

    /// Leaves with a status where `condition` is not 0. In the template stands a [`crate::host::message::V`] for each of the
    /// arguments; an empty one leaves the caller's message as it is.
    FailIf {
        condition: Value,
        status: i32,
        template: String,
        args: Vec<Operand>,
    },
    /// Leaves where the caller's flag says so.
    Poll,
    /// Calls a function of the program; leaves with its status unless that is 0.
    Call(FuncId, Vec<Operand>),
    Return(Operand),

    /// A kernel on these buffers; the result is its code.
    Kernel(KernelId, Vec<Value>),
    /// Part of a job: of a kernel that several threads share; the result is its code.
    Job {
        job: Value,
        begin: Value,
        end: Value,
    },
    /// A step of this number begins. Before it, where `polls`, the run leaves where the caller's flag says so.
    Step {
        number: i64,
        polls: bool,
        what: Option<Traced>,
    },
    /// Informs a caller that traces its runs, with the number that goes with it.
    Event(Event, Operand),
    /// Informs the caller that a step is done.
    StepDone(i64),

    If {
        condition: Condition,
        then: Region,
        otherwise: Region,
    },
    /// While `condition`, which `head` computes: runs `body` and goes on with `next` as the carried values.
    Loop {
        params: Vec<Value>,
        init: Vec<Operand>,
        head: Region,
        condition: Value,
        body: Region,
        next: Vec<Operand>,
    },
    /// Where something in `body` leaves with a status, `handler` goes on with it.
    Attempt {
        body: Region,
        status: Value,
        handler: Region,
    },
}

impl Program {
    /// Offset in the workspace of the word with the address of the caller's outputs.
    pub fn outputs_at(&self) -> i64 {
        8 * self.sizes.len() as i64
    }

    /// Offset of a slot in the workspace.
    pub fn slot_at(&self, slot: Slot) -> i64 {
        self.outputs_at() + 8 + 16 * i64::from(slot.as_u32())
    }

    /// Words of the workspace before arrays of pointers and arena.
    pub fn words(&self) -> usize {
        self.sizes.len() + if self.keeps_outputs { 1 + 2 * self.slots.len() } else { 0 }
    }

    /// Whether runs inform a caller that traces them.
    pub fn is_traced(&self) -> bool {
        let own = self.function_of(FunctionKind::Run).map(|id| &self.functions[id].body);
        let mut open: Vec<&Region> = own.into_iter().collect();
        while let Some(region) = open.pop() {
            for inst in region {
                match &inst.op {
                    Op::Event(..) => return true,
                    Op::Attempt { body, .. } => open.push(body),
                    _ => {}
                }
            }
        }
        false
    }

    /// The function of this kind; those that there is one of.
    pub fn function_of(&self, kind: FunctionKind) -> Option<FuncId> {
        self.functions.iter().find(|(_, function)| function.kind == kind).map(|(id, _)| id)
    }
}
