//! Numbers of the C ABI: they repeat `onnxc.h`, and the C ABI tests compare the two. Offsets of the fields that host
//! programs name.

use crate::host::ir::{Event, FrameField, OptionsField, TensorField, Traced};
use onnxc_ir::graph::TensorType;

/// `ONNXC_ABI_VERSION`.
pub const ABI_VERSION: u32 = 3;

/// `onnxc_status`.
pub mod status {
    pub const OK: i32 = 0;
    pub const NULL_POINTER: i32 = 1;
    pub const BAD_COUNT: i32 = 2;
    pub const BAD_DTYPE: i32 = 3;
    pub const BAD_RANK: i32 = 4;
    pub const BAD_DIM: i32 = 5;
    pub const BAD_BYTES: i32 = 6;
    pub const MISALIGNED: i32 = 7;
    pub const BAD_WORKSPACE: i32 = 8;
    pub const BAD_OPTIONS: i32 = 9;
    pub const SIZE_OVERFLOW: i32 = 10;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const CANCELLED: i32 = 12;
    pub const BAD_SIZE: i32 = 13;
    pub const NEEDS_ALLOCATOR: i32 = 14;
    pub const OUT_OF_MEMORY: i32 = 15;
    pub const BAD_TEXT: i32 = 16;
    pub const BAD_STATE: i32 = 17;
    pub const STATE_FULL: i32 = 18;
    pub const FUNCTION_FAILED: i32 = 20;
    pub const NEEDS_COMMUNICATOR: i32 = 21;
    pub const WRONG_RANK: i32 = 22;
    pub const OTHER_MODEL: i32 = 23;
    pub const TIMEOUT: i32 = 24;
    pub const RANK_FAILED: i32 = 25;
    pub const EXCHANGE_FAILED: i32 = 26;
    pub const NEEDS_WEIGHTS: i32 = 27;
    pub const BAD_WEIGHTS: i32 = 28;
    pub const OTHER_WEIGHTS: i32 = 29;
    pub const NEEDS_FUNCTION: i32 = 30;

    /// Names in the text form of host programs: those of `onnxc.h` without the prefix.
    pub const NAMES: [(i32, &str); 30] = [
        (OK, "OK"),
        (NULL_POINTER, "NULL_POINTER"),
        (BAD_COUNT, "BAD_COUNT"),
        (BAD_DTYPE, "BAD_DTYPE"),
        (BAD_RANK, "BAD_RANK"),
        (BAD_DIM, "BAD_DIM"),
        (BAD_BYTES, "BAD_BYTES"),
        (MISALIGNED, "MISALIGNED"),
        (BAD_WORKSPACE, "BAD_WORKSPACE"),
        (BAD_OPTIONS, "BAD_OPTIONS"),
        (SIZE_OVERFLOW, "SIZE_OVERFLOW"),
        (OUT_OF_RANGE, "OUT_OF_RANGE"),
        (CANCELLED, "CANCELLED"),
        (BAD_SIZE, "BAD_SIZE"),
        (NEEDS_ALLOCATOR, "NEEDS_ALLOCATOR"),
        (OUT_OF_MEMORY, "OUT_OF_MEMORY"),
        (BAD_TEXT, "BAD_TEXT"),
        (BAD_STATE, "BAD_STATE"),
        (STATE_FULL, "STATE_FULL"),
        (FUNCTION_FAILED, "FUNCTION_FAILED"),
        (NEEDS_COMMUNICATOR, "NEEDS_COMMUNICATOR"),
        (WRONG_RANK, "WRONG_RANK"),
        (OTHER_MODEL, "OTHER_MODEL"),
        (TIMEOUT, "TIMEOUT"),
        (RANK_FAILED, "RANK_FAILED"),
        (EXCHANGE_FAILED, "EXCHANGE_FAILED"),
        (NEEDS_WEIGHTS, "NEEDS_WEIGHTS"),
        (BAD_WEIGHTS, "BAD_WEIGHTS"),
        (OTHER_WEIGHTS, "OTHER_WEIGHTS"),
        (NEEDS_FUNCTION, "NEEDS_FUNCTION"),
    ];
}

/// Offsets in `onnxc_tensor`.
pub mod tensor {
    pub const DATA: i64 = 0;
    pub const BYTES: i64 = 8;
    pub const DTYPE: i64 = 16;
    pub const RANK: i64 = 20;
    pub const DIMS: i64 = 24;
    pub const SIZE: i64 = 32;
}

/// Offsets in `onnxc_options`.
pub mod options {
    pub const STRUCT_SIZE: i64 = 0;
    pub const PARALLEL_FOR: i64 = 8;
    pub const POOL: i64 = 16;
    pub const ALLOCATE: i64 = 32;
    pub const RELEASE: i64 = 40;
    pub const ALLOCATOR: i64 = 48;
    pub const CANCEL: i64 = 56;
    pub const MESSAGE: i64 = 64;
    pub const MESSAGE_CAPACITY: i64 = 72;
    pub const STEP_DONE: i64 = 80;
    pub const STEP_CONTEXT: i64 = 88;
    pub const SEED: i64 = 96;
    pub const COMMUNICATOR: i64 = 104;
    pub const TRACE: i64 = 112;
    pub const TRACE_CONTEXT: i64 = 120;
    pub const WEIGHTS: i64 = 128;
    pub const WEIGHTS_BYTES: i64 = 136;
    pub const FUNCTION: i64 = 144;
    pub const FUNCTION_CONTEXT: i64 = 152;
    pub const SIZE: i64 = 160;
    /// Size of the struct's first version, without the fields from the seed on.
    pub const FIRST_SIZE: i64 = 96;
    /// The same of the second version, without the fields from the communicator on.
    pub const SECOND_SIZE: i64 = 104;
    /// The same of the third version, without the fields from the trace on.
    pub const THIRD_SIZE: i64 = 112;
    /// The same of the fourth version, without the weights.
    pub const FOURTH_SIZE: i64 = 128;
    /// The same of the fifth version, without the function.
    pub const FIFTH_SIZE: i64 = 144;
}

/// `onnxc_event`.
pub mod event {
    pub const RUN_BEGIN: i64 = 0;
    pub const RUN_END: i64 = 1;
    pub const STEP: i64 = 2;
    pub const ENTER: i64 = 3;
    pub const LEAVE: i64 = 4;
}

/// Offsets in `onnxc_communicator`.
pub mod communicator {
    pub const STRUCT_SIZE: i64 = 0;
    pub const CONTEXT: i64 = 8;
    pub const RANK: i64 = 16;
    pub const RANKS: i64 = 24;
    pub const SIZE: i64 = 104;
    /// Its functions.
    pub const FUNCTIONS: [(&str, i64); 9] = [
        ("begin", 32),
        ("all_reduce", 40),
        ("all_gather", 48),
        ("reduce_scatter", 56),
        ("broadcast", 64),
        ("all_to_all", 72),
        ("send", 80),
        ("receive", 88),
        ("abort", 96),
    ];
}

/// The frame that `run` hands to the functions of the steps: pointers that do not change during a run,
/// then one pointer per input and one per output.
pub mod frame {
    /// Start of the arena of the (body) program.
    pub const ARENA: i64 = 0;
    pub const WEIGHTS: i64 = 8;
    /// The caller's options, or zeros; never null.
    pub const OPTIONS: i64 = 16;
    /// Start of the workspace: run-time values of the symbols by number, followed by the table of sizes and by the slots
    /// of blocks.
    pub const DIMS: i64 = 24;
    /// The caller's cancel flag, or a zero; never null.
    pub const CANCEL: i64 = 32;
    /// The caller's parallel-for function, or null.
    pub const PARALLEL: i64 = 40;
    /// The levels of the target that the processor is good for, a bit each; 1 in an object without upgrades.
    pub const LEVEL: i64 = 48;
    pub const IO: i64 = 56;
}

/// Alignment that a tensor's data needs, bytes: that of its element, or of an element's parts.
pub fn alignment(ty: &TensorType) -> i64 {
    (ty.dtype.size() as i64).min(8)
}

impl Event {
    pub fn number(self) -> i64 {
        match self {
            Event::RunBegin => event::RUN_BEGIN,
            Event::RunEnd => event::RUN_END,
            Event::Leave => event::LEAVE,
        }
    }
}

impl Traced {
    /// The event that begins the step.
    pub fn event(&self) -> i64 {
        if self.has_bodies { event::ENTER } else { event::STEP }
    }
}

impl OptionsField {
    pub fn offset(self) -> i64 {
        match self {
            OptionsField::StructSize => options::STRUCT_SIZE,
            OptionsField::ParallelFor => options::PARALLEL_FOR,
            OptionsField::Allocate => options::ALLOCATE,
            OptionsField::Release => options::RELEASE,
            OptionsField::Seed => options::SEED,
            OptionsField::Communicator => options::COMMUNICATOR,
            OptionsField::Weights => options::WEIGHTS,
            OptionsField::WeightsBytes => options::WEIGHTS_BYTES,
            OptionsField::Function => options::FUNCTION,
            OptionsField::FunctionContext => options::FUNCTION_CONTEXT,
        }
    }
}

impl TensorField {
    pub fn offset(self) -> i64 {
        match self {
            TensorField::Data => tensor::DATA,
            TensorField::Bytes => tensor::BYTES,
            TensorField::Dtype => tensor::DTYPE,
            TensorField::Rank => tensor::RANK,
            TensorField::Dims => tensor::DIMS,
        }
    }
}

impl FrameField {
    /// In a frame with `inputs` inputs.
    pub fn offset(self, inputs: usize) -> i64 {
        match self {
            FrameField::Arena => frame::ARENA,
            FrameField::Weights => frame::WEIGHTS,
            FrameField::Options => frame::OPTIONS,
            FrameField::Sizes => frame::DIMS,
            FrameField::Cancel => frame::CANCEL,
            FrameField::Parallel => frame::PARALLEL,
            FrameField::Level => frame::LEVEL,
            FrameField::Input(at) => frame::IO + 8 * i64::from(at),
            FrameField::Output(at) => frame::IO + 8 * (inputs as i64 + i64::from(at)),
        }
    }
}
