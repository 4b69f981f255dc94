// Package onnxc runs models that were compiled by onnxc, over the C ABI of onnxc.h, by cgo.
//
// The program includes the model's own header and links its object:
//
//	// #cgo pkg-config: onnxc
//	// #cgo LDFLAGS: ${SRCDIR}/minilm.o -lm
//	// #include "minilm.h"
//	import "C"
//
//	model, err := onnxc.New(unsafe.Pointer(C.minilm_model()))
//	outputs, err := model.Run(onnxc.Of(ids, 1, length), onnxc.Of(mask, 1, length))
//	states := onnxc.Slice[float32](outputs[0])
package onnxc

// #cgo pkg-config: onnxc
// #cgo CFLAGS: -std=c99 -D_POSIX_C_SOURCE=200112L
// #include <stdlib.h>
// #include "onnxc.h"
//
// static void *allocate(void *allocator, size_t bytes, size_t alignment) {
//     void *memory = NULL;
//     (void)allocator;
//     return posix_memalign(&memory, alignment, bytes > 0 ? bytes : 1) == 0 ? memory : NULL;
// }
//
// static void release(void *allocator, void *memory, size_t bytes, size_t alignment) {
//     (void)allocator, (void)bytes, (void)alignment;
//     free(memory);
// }
//
// static void *aligned(size_t bytes) {
//     return allocate(NULL, bytes, ONNXC_WORKSPACE_ALIGNMENT);
// }
//
// static int32_t run(const onnxc_model *model, const onnxc_tensor *inputs, onnxc_tensor *outputs, void *workspace,
//                    size_t bytes, uint64_t seed, onnxc_pool *pool, int64_t threads, onnxc_trace *trace,
//                    const onnxc_weights *weights, char *message, size_t capacity) {
//     onnxc_options options = ONNXC_OPTIONS_INIT;
//     options.allocate = allocate;
//     options.release = release;
//     options.seed = seed;
//     options.message = message;
//     options.message_capacity = capacity;
//     if (pool != NULL) {
//         options.parallel_for = onnxc_pool_parallel_for;
//         options.pool = pool;
//         options.threads = threads;
//     }
//     options.weights = weights->data;
//     options.weights_bytes = weights->bytes;
//     if (trace != NULL) {
//         onnxc_trace_attach(trace, &options);
//     }
//     return onnxc_model_run(model)(inputs, (size_t)model->input_count, outputs, (size_t)model->output_count, workspace,
//                                   bytes, &options);
// }
//
// static int64_t state_bytes(const onnxc_model *model, const int64_t *symbols, size_t count) {
//     return onnxc_model_state_bytes(model)(symbols, count);
// }
//
// static int32_t state_reset(const onnxc_model *model, void *state, size_t bytes, const int64_t *symbols, size_t count) {
//     return onnxc_model_state_reset(model)(state, bytes, symbols, count);
// }
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// An Element is a type of numbers that Go and ONNX have both. Others, such as 16-bit floats, are handed over as Raw bytes.
type Element interface {
	bool | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | complex64 | complex128
}

// A Tensor is dense and row-major: numbers as the bytes that hold them, or texts.
type Tensor struct {
	// An onnxc_dtype, the number of ONNX's TensorProto.DataType.
	DType int
	Dims  []int64
	Raw   []byte
	// The elements of a tensor of strings.
	Texts []string
}

// An Error is what a run failed with; its text names the tensor and the dimension.
type Error struct {
	// An onnxc_status.
	Status  int
	Message string
}

func (e *Error) Error() string { return e.Message }

func dtypeOf[T Element]() int {
	var zero T
	switch any(zero).(type) {
	case bool:
		return int(C.ONNXC_BOOL)
	case int8:
		return int(C.ONNXC_INT8)
	case int16:
		return int(C.ONNXC_INT16)
	case int32:
		return int(C.ONNXC_INT32)
	case int64:
		return int(C.ONNXC_INT64)
	case uint8:
		return int(C.ONNXC_UINT8)
	case uint16:
		return int(C.ONNXC_UINT16)
	case uint32:
		return int(C.ONNXC_UINT32)
	case uint64:
		return int(C.ONNXC_UINT64)
	case float32:
		return int(C.ONNXC_FLOAT)
	case float64:
		return int(C.ONNXC_DOUBLE)
	case complex64:
		return int(C.ONNXC_COMPLEX64)
	default:
		return int(C.ONNXC_COMPLEX128)
	}
}

// Of is a tensor of these elements, which it reads where they are when a run begins.
func Of[T Element](elements []T, dims ...int64) Tensor {
	tensor := Tensor{DType: dtypeOf[T](), Dims: dims}
	if len(elements) > 0 {
		size := int(unsafe.Sizeof(elements[0]))
		tensor.Raw = unsafe.Slice((*byte)(unsafe.Pointer(&elements[0])), len(elements)*size)
	}
	return tensor
}

// Texts is a tensor of strings.
func Texts(texts []string, dims ...int64) Tensor {
	return Tensor{DType: int(C.ONNXC_STRING), Dims: dims, Texts: texts}
}

// Slice gives the elements of a tensor in its own memory; nil where they are of another type.
func Slice[T Element](tensor Tensor) []T {
	var zero T
	if tensor.DType != dtypeOf[T]() || len(tensor.Raw) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&tensor.Raw[0])), len(tensor.Raw)/int(unsafe.Sizeof(zero)))
}

// A Model is a compiled model with the scratch memory of its runs. One goroutine may use it at a time.
type Model struct {
	// For random numbers: runs with the same seed draw the same.
	Seed uint64

	model     *C.onnxc_model
	workspace unsafe.Pointer
	bytes     C.size_t
	pool      *C.onnxc_pool
	trace     *C.onnxc_trace
	weights   *C.onnxc_weights
}

// New takes what the model's function <name>_model gives.
func New(model unsafe.Pointer) (*Model, error) {
	if model == nil {
		return nil, errors.New("no model")
	}
	made := &Model{model: (*C.onnxc_model)(model)}
	if version := made.model.abi_version; version != C.ONNXC_ABI_VERSION {
		return nil, fmt.Errorf("the model has version %d of the C ABI, not %d", version, int(C.ONNXC_ABI_VERSION))
	}
	made.weights = (*C.onnxc_weights)(C.calloc(1, C.sizeof_onnxc_weights))
	runtime.SetFinalizer(made, (*Model).free)
	return made, nil
}

// Threads sets the number of threads for the loops of later runs, 0 for one per processor.
func (m *Model) Threads(threads int) error {
	C.onnxc_pool_destroy(m.pool)
	m.pool = C.onnxc_pool_create(C.int64_t(threads))
	if m.pool == nil {
		return errors.New("the system refuses a pool of threads")
	}
	return nil
}

// Weights maps a file of weights, which later runs use, of a model that has them apart. It replaces an earlier one.
func (m *Model) Weights(path string) error {
	defer runtime.KeepAlive(m)
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	const capacity = 512
	message := (*C.char)(C.calloc(1, capacity))
	defer C.free(unsafe.Pointer(message))
	var mapped C.onnxc_weights
	if status := C.onnxc_weights_map(name, m.model, &mapped, message, capacity); status != C.ONNXC_OK {
		return &Error{int(status), C.GoString(message)}
	}
	C.onnxc_weights_unmap(m.weights)
	*m.weights = mapped
	return nil
}

// Trace has later runs recorded on a timeline, which WriteTrace writes.
func (m *Model) Trace() error {
	if m.trace == nil {
		m.trace = C.onnxc_trace_create(0)
	}
	if m.trace == nil {
		return errors.New("no memory for a trace")
	}
	return nil
}

// WriteTrace writes the runs since Trace as JSON for https://ui.perfetto.dev.
func (m *Model) WriteTrace(path string) error {
	defer runtime.KeepAlive(m)
	if m.trace == nil {
		return errors.New("no run is recorded: Trace begins to")
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if number := C.onnxc_trace_write(m.trace, name); number != 0 {
		return &os.PathError{Op: "write", Path: path, Err: syscall.Errno(number)}
	}
	return nil
}

func (m *Model) free() {
	C.free(m.workspace)
	C.onnxc_pool_destroy(m.pool)
	C.onnxc_trace_destroy(m.trace)
	C.onnxc_weights_unmap(m.weights)
	C.free(unsafe.Pointer(m.weights))
}

// Outputs are the names of the outputs in their order; of a value other than a tensor, one for each part.
func (m *Model) Outputs() []string {
	var names []string
	for at := C.int32_t(0); at < m.model.output_count; at++ {
		names = append(names, C.GoString(C.onnxc_model_output(m.model, at).name))
	}
	return names
}

// memory is what the C side of one run is made of: Go's memory holds no pointers that C reads.
type memory struct{ blocks []unsafe.Pointer }

func (m *memory) take(bytes C.size_t) unsafe.Pointer {
	block := C.aligned(bytes)
	if block == nil {
		panic(&Error{int(C.ONNXC_OUT_OF_MEMORY), fmt.Sprintf("no memory for %d bytes", bytes)})
	}
	m.blocks = append(m.blocks, block)
	return block
}

func (m *memory) free() {
	for _, block := range m.blocks {
		C.free(block)
	}
}

func (m *memory) dims(dims []int64) *C.int64_t {
	block := (*C.int64_t)(m.take(C.size_t(8 * len(dims))))
	copy(unsafe.Slice((*int64)(unsafe.Pointer(block)), len(dims)), dims)
	return block
}

func (m *memory) input(tensor Tensor) C.onnxc_tensor {
	raw := C.onnxc_tensor{dtype: C.int32_t(tensor.DType), rank: C.int32_t(len(tensor.Dims)), dims: m.dims(tensor.Dims)}
	if tensor.DType == int(C.ONNXC_STRING) {
		raw.bytes = C.size_t(len(tensor.Texts)) * C.size_t(unsafe.Sizeof(C.onnxc_string{}))
		raw.data = m.take(raw.bytes)
		for at, text := range tensor.Texts {
			data := m.take(C.size_t(len(text)))
			copy(unsafe.Slice((*byte)(data), len(text)), text)
			element := (*C.onnxc_string)(unsafe.Add(raw.data, uintptr(at)*unsafe.Sizeof(C.onnxc_string{})))
			element.data, element.size = (*C.char)(data), C.size_t(len(text))
		}
		return raw
	}
	raw.bytes = C.size_t(len(tensor.Raw))
	raw.data = m.take(raw.bytes)
	copy(unsafe.Slice((*byte)(raw.data), len(tensor.Raw)), tensor.Raw)
	return raw
}

// A State holds the tensors that stay from one run to the next: caches, or what a model learns. All functions of a model that is
// trained work on one. One goroutine may use it at a time.
type State struct {
	model   *C.onnxc_model
	symbols []int64
	block   unsafe.Pointer
	bytes   C.size_t
}

// State makes a state with its initial values, for these values of the model's symbols; nil where no state depends on any.
func (m *Model) State(sizes map[string]int64) (*State, error) {
	defer runtime.KeepAlive(m)
	if m.model.state_count == 0 {
		return nil, &Error{int(C.ONNXC_BAD_STATE), "the model has no state"}
	}
	// One more, so that there is a first one.
	state := &State{model: m.model, symbols: make([]int64, int(m.model.symbol_count)+1)}
	found := 0
	for at := C.int32_t(0); at < m.model.symbol_count; at++ {
		if size, given := sizes[C.GoString(C.onnxc_model_symbol(m.model, at))]; given {
			state.symbols[at] = size
			found++
		}
	}
	if found != len(sizes) {
		return nil, fmt.Errorf("the model has not all symbols of %v", sizes)
	}
	bytes := C.state_bytes(m.model, (*C.int64_t)(&state.symbols[0]), C.size_t(m.model.symbol_count))
	if bytes < 0 {
		return nil, &Error{int(-bytes), "there is no state for these values of the symbols"}
	}
	state.bytes = C.size_t(bytes)
	if state.block = C.aligned(state.bytes); state.block == nil {
		return nil, &Error{int(C.ONNXC_OUT_OF_MEMORY), fmt.Sprintf("no memory for a state of %d bytes", bytes)}
	}
	runtime.SetFinalizer(state, func(state *State) { C.free(state.block) })
	return state, state.Reset()
}

// Reset gives all tensors their initial values.
func (s *State) Reset() error {
	defer runtime.KeepAlive(s)
	count := C.size_t(s.model.symbol_count)
	if status := C.state_reset(s.model, s.block, s.bytes, (*C.int64_t)(&s.symbols[0]), count); status != C.ONNXC_OK {
		return &Error{int(status), "the state cannot be reset"}
	}
	return nil
}

// Bytes are a checkpoint: a copy of the block, which Restore takes, also in another process.
func (s *State) Bytes() []byte {
	defer runtime.KeepAlive(s)
	saved := make([]byte, int(s.bytes))
	copy(saved, unsafe.Slice((*byte)(s.block), int(s.bytes)))
	return saved
}

// Restore goes on from what Bytes gave of a state of the same object and sizes.
func (s *State) Restore(saved []byte) error {
	defer runtime.KeepAlive(s)
	if len(saved) != int(s.bytes) {
		return &Error{int(C.ONNXC_BAD_STATE), fmt.Sprintf("the state has %d bytes, and %d are restored", int(s.bytes), len(saved))}
	}
	copy(unsafe.Slice((*byte)(s.block), int(s.bytes)), saved)
	return nil
}

// Run runs the model on inputs in their order. The error of a run that fails is an *Error.
func (m *Model) Run(inputs ...Tensor) (outputs []Tensor, err error) {
	return m.run(nil, inputs)
}

// RunOn runs a model that has a state on one, such as a step of training, which changes it.
func (m *Model) RunOn(state *State, inputs ...Tensor) (outputs []Tensor, err error) {
	if state == nil {
		return nil, &Error{int(C.ONNXC_NULL_POINTER), "no state"}
	}
	return m.run(state, inputs)
}

func (m *Model) run(state *State, inputs []Tensor) (outputs []Tensor, err error) {
	defer runtime.KeepAlive(m)
	defer runtime.KeepAlive(state)
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case *Error:
			outputs, err = nil, failure
		default:
			panic(failure)
		}
	}()
	given := len(inputs)
	if state != nil {
		given++
	}
	if given != int(m.model.input_count) {
		return nil, &Error{int(C.ONNXC_BAD_COUNT), fmt.Sprintf("%d inputs given, the model has %d", given, m.model.input_count)}
	}
	var own memory
	defer own.free()
	size := C.size_t(unsafe.Sizeof(C.onnxc_tensor{}))
	count := int(m.model.output_count)
	in := (*C.onnxc_tensor)(own.take(size * C.size_t(given)))
	for at, input := range inputs {
		unsafe.Slice(in, given)[at] = own.input(input)
	}
	if state != nil {
		dims := own.dims([]int64{int64(state.bytes)})
		unsafe.Slice(in, given)[len(inputs)] = C.onnxc_tensor{dtype: C.ONNXC_UINT8, rank: 1, dims: dims, data: state.block, bytes: state.bytes}
	}
	symbols := (*C.int64_t)(own.take(C.size_t(8 * m.model.symbol_count)))
	if bytes := C.onnxc_model_workspace_for(m.model, in, C.size_t(given), symbols); m.workspace == nil || bytes > C.int64_t(m.bytes) {
		// Sizes that there is no workspace for are refused by the run, which says why.
		if bytes < 0 {
			bytes = 0
		}
		C.free(m.workspace)
		m.workspace, m.bytes = C.aligned(C.size_t(bytes)), C.size_t(bytes)
		if m.workspace == nil {
			return nil, &Error{int(C.ONNXC_OUT_OF_MEMORY), fmt.Sprintf("no memory for a workspace of %d bytes", bytes)}
		}
	}
	out := unsafe.Slice((*C.onnxc_tensor)(own.take(size*C.size_t(count))), count)
	late := make([]bool, count)
	for at := range out {
		out[at], late[at] = m.output(at, symbols, &own)
	}
	const capacity = 512
	message := (*C.char)(own.take(capacity))
	*message = 0
	var threads C.int64_t
	if m.pool != nil {
		threads = C.onnxc_pool_threads(m.pool)
	}
	var first *C.onnxc_tensor
	if count > 0 {
		first = &out[0]
	}
	status := C.run(m.model, in, first, m.workspace, m.bytes, C.uint64_t(m.Seed), m.pool, threads, m.trace, m.weights, message, capacity)
	if status != C.ONNXC_OK {
		return nil, &Error{int(status), C.GoString(message)}
	}
	outputs = make([]Tensor, count)
	for at := range out {
		outputs[at] = result(out[at])
		if late[at] {
			C.free(out[at].data)
		}
	}
	return outputs, nil
}

// output has memory where the sizes follow from the inputs, and is allocated by the run (true) where they do not.
func (m *Model) output(at int, symbols *C.int64_t, own *memory) (C.onnxc_tensor, bool) {
	info := C.onnxc_model_output(m.model, C.int32_t(at))
	dims := make([]int64, int(info.rank))
	late := info.dtype == C.ONNXC_STRING
	for axis := range dims {
		dims[axis] = int64(C.onnxc_value_dim(&info, C.int32_t(axis), symbols))
		if dims[axis] < 0 {
			dims[axis] = 0
		}
		late = late || C.onnxc_value_dim_kind(&info, C.int32_t(axis)) == C.ONNXC_DIM_DATA
	}
	raw := C.onnxc_tensor{dtype: info.dtype, rank: info.rank, dims: own.dims(dims)}
	if !late {
		raw.bytes = byteCount(int(info.dtype), dims)
		raw.data = own.take(raw.bytes)
	}
	return raw, late
}

// byteCount is that of a tensor, 0 where it does not fit: a run refuses such sizes, and says which.
func byteCount(dtype int, dims []int64) C.size_t {
	bits := uint64(C.onnxc_dtype_bits(C.int32_t(dtype)))
	for _, size := range dims {
		if size > 0 && bits > (1<<62)/uint64(size) {
			return 0
		}
		bits *= uint64(size)
	}
	return C.size_t((bits + 7) / 8)
}

// result copies what a run wrote into memory of Go.
func result(raw C.onnxc_tensor) Tensor {
	tensor := Tensor{DType: int(raw.dtype), Dims: make([]int64, int(raw.rank))}
	copy(tensor.Dims, unsafe.Slice((*int64)(unsafe.Pointer(raw.dims)), len(tensor.Dims)))
	bytes := byteCount(tensor.DType, tensor.Dims)
	if raw.dtype == C.ONNXC_STRING {
		elements := bytes / C.size_t(unsafe.Sizeof(C.onnxc_string{}))
		for _, text := range unsafe.Slice((*C.onnxc_string)(raw.data), int(elements)) {
			tensor.Texts = append(tensor.Texts, C.GoStringN(text.data, C.int(text.size)))
		}
		return tensor
	}
	// Words, so that elements of every type are aligned.
	words := make([]uint64, (bytes+7)/8+1)
	tensor.Raw = unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), int(bytes))
	copy(tensor.Raw, unsafe.Slice((*byte)(raw.data), int(bytes)))
	return tensor
}
