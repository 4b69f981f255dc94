//! The types of `onnxc.h`. Documentation of the fields is there.

use std::ffi::{CStr, c_char, c_void};

/// `ONNXC_MODEL_POINTERS`
const POINTERS: i32 = 40;

/// `ONNXC_ABI_VERSION`
pub const ABI_VERSION: u32 = 3;

/// `onnxc_status`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Status(pub i32);

impl Status {
    pub const OK: Status = Status(0);
    pub const NULL_POINTER: Status = Status(1);
    pub const BAD_COUNT: Status = Status(2);
    pub const BAD_DTYPE: Status = Status(3);
    pub const BAD_RANK: Status = Status(4);
    pub const BAD_DIM: Status = Status(5);
    pub const BAD_BYTES: Status = Status(6);
    pub const MISALIGNED: Status = Status(7);
    pub const BAD_WORKSPACE: Status = Status(8);
    pub const BAD_OPTIONS: Status = Status(9);
    pub const SIZE_OVERFLOW: Status = Status(10);
    pub const OUT_OF_RANGE: Status = Status(11);
    pub const CANCELLED: Status = Status(12);
    pub const BAD_SIZE: Status = Status(13);
    pub const NEEDS_ALLOCATOR: Status = Status(14);
    pub const OUT_OF_MEMORY: Status = Status(15);
    pub const BAD_TEXT: Status = Status(16);
    pub const BAD_STATE: Status = Status(17);
    pub const STATE_FULL: Status = Status(18);
    pub const OVERLAP: Status = Status(19);
    pub const FUNCTION_FAILED: Status = Status(20);
    pub const NEEDS_COMMUNICATOR: Status = Status(21);
    pub const WRONG_RANK: Status = Status(22);
    pub const OTHER_MODEL: Status = Status(23);
    pub const TIMEOUT: Status = Status(24);
    pub const RANK_FAILED: Status = Status(25);
    pub const EXCHANGE_FAILED: Status = Status(26);
    pub const NEEDS_WEIGHTS: Status = Status(27);
    pub const BAD_WEIGHTS: Status = Status(28);
    pub const OTHER_WEIGHTS: Status = Status(29);
    pub const NEEDS_FUNCTION: Status = Status(30);
}

/// `onnxc_tensor`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tensor {
    pub data: *mut c_void,
    pub bytes: usize,
    pub dtype: i32,
    pub rank: i32,
    pub dims: *mut i64,
}

/// `onnxc_string`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct StringView {
    pub data: *const u8,
    pub size: usize,
}

/// `onnxc_range_fn`
pub type RangeFn = unsafe extern "C" fn(job: *mut c_void, begin: i64, end: i64) -> i32;

/// `onnxc_parallel_for_fn`
pub type ParallelForFn = unsafe extern "C" fn(
    pool: *mut c_void,
    begin: i64,
    end: i64,
    body: Option<RangeFn>,
    job: *mut c_void,
) -> i32;

/// `onnxc_trace_fn`
pub type TraceFn = unsafe extern "C" fn(
    context: *mut c_void,
    event: i32,
    number: i64,
    kernel: *const c_char,
    nodes: *const c_char,
);

/// `onnxc_event`
pub mod event {
    pub const RUN_BEGIN: i32 = 0;
    pub const RUN_END: i32 = 1;
    pub const STEP: i32 = 2;
    pub const ENTER: i32 = 3;
    pub const LEAVE: i32 = 4;
}

/// `onnxc_function_fn`
pub type FunctionFn = unsafe extern "C" fn(
    function_context: *mut c_void,
    function: *const c_char,
    op: *mut crate::custom::RawOp,
) -> i32;

/// `onnxc_options`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Options {
    pub struct_size: usize,
    pub parallel_for: Option<ParallelForFn>,
    pub pool: *mut c_void,
    pub threads: i64,
    pub allocate: Option<unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void>,
    pub release: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize)>,
    pub allocator: *mut c_void,
    pub cancel: *const i32,
    pub message: *mut c_char,
    pub message_capacity: usize,
    pub step_done: Option<unsafe extern "C" fn(*mut c_void, i64)>,
    pub step_context: *mut c_void,
    pub seed: u64,
    pub communicator: *const crate::ranks::Communicator,
    pub trace: Option<TraceFn>,
    pub trace_context: *mut c_void,
    pub weights: *const c_void,
    pub weights_bytes: usize,
    pub function: Option<FunctionFn>,
    pub function_context: *mut c_void,
}

/// `ONNXC_OPTIONS_INIT`
impl Default for Options {
    fn default() -> Options {
        Options {
            struct_size: size_of::<Options>(),
            parallel_for: None,
            pool: std::ptr::null_mut(),
            threads: 0,
            allocate: None,
            release: None,
            allocator: std::ptr::null_mut(),
            cancel: std::ptr::null(),
            message: std::ptr::null_mut(),
            message_capacity: 0,
            step_done: None,
            step_context: std::ptr::null_mut(),
            seed: 0,
            communicator: std::ptr::null(),
            trace: None,
            trace_context: std::ptr::null_mut(),
            weights: std::ptr::null(),
            weights_bytes: 0,
            function: None,
            function_context: std::ptr::null_mut(),
        }
    }
}

/// `onnxc_run_fn`
pub type RunFn = unsafe extern "C" fn(
    inputs: *const Tensor,
    input_count: usize,
    outputs: *mut Tensor,
    output_count: usize,
    workspace: *mut c_void,
    workspace_bytes: usize,
    options: *const Options,
) -> Status;

/// `onnxc_workspace_fn`
pub type WorkspaceFn = unsafe extern "C" fn(symbols: *const i64, count: usize) -> i64;

/// `onnxc_state_reset_fn`
pub type StateResetFn =
    unsafe extern "C" fn(state: *mut c_void, bytes: usize, symbols: *const i64, count: usize) -> Status;

/// The type of `<name>_model`.
pub type ModelFn = unsafe extern "C" fn() -> *const Model;

/// `onnxc_model`. Only a reference that `<name>_model` gave may be used: what it describes lies behind it.
#[derive(Debug)]
#[repr(C)]
pub struct Model {
    pub abi_version: u32,
    name_at: i32,
    pub input_count: i32,
    pub output_count: i32,
    pub symbol_count: i32,
    pub metadata_count: i32,
    inputs_at: i32,
    outputs_at: i32,
    symbols_at: i32,
    metadata_at: i32,
    run_at: i32,
    workspace_at: i32,
    /// Bytes of workspace of every run, or -1 where it depends on the symbols.
    pub workspace_bytes: i64,
    pub workspace_alignment: i64,
    input_parts_at: i32,
    output_parts_at: i32,
    /// Tensors in the state block, which is the last input; 0 in a model without one.
    pub state_count: i32,
    states_at: i32,
    state_records_at: i32,
    state_bytes_at: i32,
    state_reset_at: i32,
    next_at: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct StateRecord {
    output_at: i32,
    axis: i32,
    size_symbol: i32,
    panel: i32,
}

/// A tensor in the state block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateInfo {
    /// The input that it was in the ONNX model; its dims are those of the tensor in the block.
    pub tensor: ValueInfo,
    /// The output that it was; the name of the input where it was an input alone.
    pub output: String,
    /// The axis along which runs append, and the number of the symbol whose word in the block is the number of elements; `None` for one
    /// that runs replace or only read.
    pub growth: Option<(usize, usize)>,
    /// An axis, and elements along it to a panel: in memory the panels come along the axis, and the elements of each behind all
    /// other axes. `None` where the tensor is row-major.
    pub panels: Option<(usize, usize)>,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ValueRecord {
    name_at: i32,
    dtype: i32,
    rank: i32,
    dims_at: i32,
    dim_texts_at: i32,
    dim_symbols_at: i32,
    has_default: i32,
    element_bytes: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct PartRecord {
    value_at: i32,
    part: i32,
}

/// `onnxc_dim_kind`: what decides a dim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DimKind {
    Static,
    /// It is one of the model's symbols.
    Symbol,
    /// It follows from the model's symbols.
    Formula,
    /// Only the data determines it.
    Data,
}

/// What `onnxc_value_info.symbols` has for a [`DimKind::Formula`].
const FORMULA: i32 = -2;

/// The same for an axis that an output whose rank the run decides may lack.
const OPTIONAL: i32 = -3;

/// An input or output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueInfo {
    pub name: String,
    /// Number of the element type in ONNX.
    pub dtype: i32,
    /// Sizes; `None` where symbolic. For an output whose rank the run decides, those in the highest rank.
    pub dims: Vec<Option<i64>>,
    /// The least rank, less than the number of dims where the run decides the rank.
    pub least_rank: usize,
    /// Per dimension: what decides it.
    pub kinds: Vec<DimKind>,
    /// Per dimension: number of the model's symbol that it is.
    pub symbols: Vec<Option<usize>>,
    /// Per dimension: a symbolic one as text.
    pub texts: Vec<Option<String>>,
    pub has_default: bool,
    pub element_bytes: usize,
    /// Name of the ONNX value that it belongs to.
    pub value: String,
    /// `onnxc_part`: which part of it it is.
    pub part: i32,
}

impl Model {
    /// # Safety
    /// `self` is a compiled model's descriptor and `distance` one of its fields.
    unsafe fn at<T>(&self, distance: i32) -> *const T {
        let start: *const Model = self;
        start.cast::<u8>().wrapping_offset(distance as isize).cast()
    }

    /// The function at a distance; one right behind the struct is that of a pointer to it.
    ///
    /// # Safety
    /// As [`Model::at`], and the distance is that of a function.
    unsafe fn function(&self, distance: i32) -> *const c_void {
        // SAFETY: the caller says so.
        unsafe {
            match distance - size_of::<Model>() as i32 {
                0..POINTERS => self.at::<*const c_void>(distance).read_unaligned(),
                _ => self.at(distance),
            }
        }
    }

    /// # Safety
    /// As [`Model::at`].
    unsafe fn string(&self, distance: i32) -> String {
        // SAFETY: the compiler ends every string of a descriptor with a zero.
        unsafe { CStr::from_ptr(self.at(distance)) }.to_string_lossy().into_owned()
    }

    /// # Safety
    /// As [`Model::at`], for an array of strings.
    unsafe fn string_of(&self, array: i32, index: usize) -> String {
        // SAFETY: the array has the distances of strings, and the caller an index in it; the compiler aligns it.
        unsafe { self.string(*self.at::<i32>(array).add(index)) }
    }

    /// # Safety
    /// `self` is what a compiled model's `<name>_model` returned; likewise for the functions below.
    pub unsafe fn name(&self) -> String {
        // SAFETY: the field is the distance of a string; those used below are what `onnxc_model` says of them.
        unsafe { self.string(self.name_at) }
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn inputs(&self) -> Vec<ValueInfo> {
        // SAFETY: there are `input_count` records of inputs at this distance.
        unsafe { self.values(self.inputs_at, self.input_parts_at, self.input_count) }
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn outputs(&self) -> Vec<ValueInfo> {
        // SAFETY: there are `output_count` records of outputs at this distance.
        unsafe { self.values(self.outputs_at, self.output_parts_at, self.output_count) }
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn symbols(&self) -> Vec<String> {
        // SAFETY: the array has the name of every symbol.
        (0..self.symbol_count as usize).map(|at| unsafe { self.string_of(self.symbols_at, at) }).collect()
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn metadata(&self) -> Vec<(String, String)> {
        // SAFETY: the array has a key and a value for every entry.
        let text = |at| unsafe { self.string_of(self.metadata_at, at) };
        (0..self.metadata_count as usize).map(|at| (text(2 * at), text(2 * at + 1))).collect()
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn run(&self) -> RunFn {
        // SAFETY: the field is the distance of the model's function of this type.
        unsafe { std::mem::transmute::<*const c_void, RunFn>(self.function(self.run_at)) }
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn workspace(&self) -> WorkspaceFn {
        // SAFETY: the field is the distance of the model's function of this type.
        unsafe { std::mem::transmute::<*const c_void, WorkspaceFn>(self.function(self.workspace_at)) }
    }

    /// `<name>_state_bytes`, of a model with states.
    ///
    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn state_bytes(&self) -> Option<WorkspaceFn> {
        // SAFETY: where there are states, the field is the distance of the model's function of this type.
        let function = || unsafe {
            std::mem::transmute::<*const c_void, WorkspaceFn>(self.function(self.state_bytes_at))
        };
        (self.state_count > 0).then(function)
    }

    /// `<name>_state_reset`, of a model with states.
    ///
    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn state_reset(&self) -> Option<StateResetFn> {
        // SAFETY: where there are states, the field is the distance of the model's function of this type.
        let function = || unsafe {
            std::mem::transmute::<*const c_void, StateResetFn>(self.function(self.state_reset_at))
        };
        (self.state_count > 0).then(function)
    }

    /// The next program of the object, such as the one that trains on a batch.
    ///
    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn next(&self) -> Option<&Model> {
        if self.next_at == 0 {
            return None;
        }
        // SAFETY: the field is the distance of the function of this type that describes the next program.
        let function = unsafe { std::mem::transmute::<*const c_void, ModelFn>(self.function(self.next_at)) };
        // SAFETY: the function takes nothing and gives a constant of the same object.
        unsafe { function().as_ref() }
    }

    /// # Safety
    /// See [`Model::name`].
    pub unsafe fn states(&self) -> Vec<StateInfo> {
        let count = self.state_count as usize;
        // SAFETY: there are `count` records of each kind at these distances.
        let (values, records) = unsafe {
            (
                self.array::<ValueRecord>(self.states_at, count),
                self.array::<StateRecord>(self.state_records_at, count),
            )
        };
        let state = |(value, record): (ValueRecord, StateRecord)| {
            let part = PartRecord { value_at: value.name_at, part: 0 };
            let (axis, symbol) = (usize::try_from(record.axis), usize::try_from(record.size_symbol));
            StateInfo {
                // SAFETY: the record is of this model.
                tensor: unsafe { self.value(value, part) },
                // SAFETY: the field is the distance of a string.
                output: unsafe { self.string(record.output_at) },
                growth: axis.ok().zip(symbol.ok()),
                panels: axis.ok().filter(|_| record.panel > 0).map(|axis| (axis, record.panel as usize)),
            }
        };
        values.into_iter().zip(records).map(state).collect()
    }

    /// # Safety
    /// As [`Model::at`], for an array of `count` things of type `T`.
    unsafe fn array<T: Copy>(&self, array: i32, count: usize) -> Vec<T> {
        // SAFETY: the caller says so; the compiler aligns every array to its elements.
        (0..count).map(|at| unsafe { *self.at::<T>(array).add(at) }).collect()
    }

    /// # Safety
    /// As [`Model::at`], for arrays of `count` records.
    unsafe fn values(&self, array: i32, parts: i32, count: i32) -> Vec<ValueInfo> {
        // SAFETY: the caller says so.
        let records = unsafe { self.array::<ValueRecord>(array, count as usize) };
        // SAFETY: likewise.
        let parts = unsafe { self.array::<PartRecord>(parts, count as usize) };
        // SAFETY: these are records of this model.
        records.into_iter().zip(parts).map(|(record, part)| unsafe { self.value(record, part) }).collect()
    }

    /// # Safety
    /// The records are of this model, which a compiled model's function returned.
    unsafe fn value(&self, record: ValueRecord, part: PartRecord) -> ValueInfo {
        let rank = record.rank as usize;
        // SAFETY: a record has the distances of arrays of `rank` sizes and numbers.
        let (dims, symbols) = unsafe {
            (self.array::<i64>(record.dims_at, rank), self.array::<i32>(record.dim_symbols_at, rank))
        };
        let kind = |(&dim, &symbol): (&i64, &i32)| match symbol {
            _ if dim >= 0 => DimKind::Static,
            0.. => DimKind::Symbol,
            FORMULA => DimKind::Formula,
            _ => DimKind::Data,
        };
        // SAFETY: a symbolic dim has a text.
        let text = |axis: usize| unsafe { self.string_of(record.dim_texts_at, axis) };
        ValueInfo {
            // SAFETY: the field is the distance of a string.
            name: unsafe { self.string(record.name_at) },
            dtype: record.dtype,
            kinds: dims.iter().zip(&symbols).map(kind).collect(),
            symbols: symbols.iter().map(|&symbol| usize::try_from(symbol).ok()).collect(),
            texts: (0..rank).map(|axis| (dims[axis] < 0).then(|| text(axis))).collect(),
            least_rank: symbols.iter().rposition(|&symbol| symbol != OPTIONAL).map_or(0, |last| last + 1),
            dims: dims.iter().map(|&dim| (dim >= 0).then_some(dim)).collect(),
            has_default: record.has_default != 0,
            element_bytes: record.element_bytes as usize,
            // SAFETY: the field is the distance of a string.
            value: unsafe { self.string(part.value_at) },
            part: part.part,
        }
    }
}
