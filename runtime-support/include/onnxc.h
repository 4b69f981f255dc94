/* onnxc.h: the C ABI of models compiled by onnxc. C99 and C++.
 *
 * A compiled model is an object file that exports three functions, all prefixed by the model's name,
 *
 *     const onnxc_model *<name>_model(void);
 *     int64_t <name>_workspace(const int64_t *symbols, size_t count);
 *     int32_t <name>_run(const onnxc_tensor *inputs, size_t input_count,
 *                        onnxc_tensor *outputs, size_t output_count,
 *                        void *workspace, size_t workspace_bytes, const onnxc_options *options);
 *
 * and, of a model with state, two more; see below "State":
 *
 *     int64_t <name>_state_bytes(const int64_t *symbols, size_t count);
 *     int32_t <name>_state_reset(void *state, size_t bytes, const int64_t *symbols, size_t count);
 *
 * They have no thread-local state, and no writable globals but for a word that keeps which of several versions of the
 * code the processor can run. They may be called from any number of threads at once, each call with outputs and a
 * workspace of its own. They never abort or unwind, and allocate nothing but by the caller's own function, for values
 * whose size only the data decides; decoders of images allocate from the process while they run.
 */
#ifndef ONNXC_H
#define ONNXC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of everything in this file. A model carries the version it was compiled for. */
#define ONNXC_ABI_VERSION 3

/* Alignment of a workspace, bytes. */
#define ONNXC_WORKSPACE_ALIGNMENT 64

/* Most stack that a run takes, bytes; twice that, where it decodes images. */
#define ONNXC_STACK_BYTES 65536

/* Results of a run. Those up to ONNXC_SIZE_OVERFLOW come before anything is written, unless they concern sizes that
 * the data decides. */
typedef enum onnxc_status {
    ONNXC_OK = 0,
    /* A pointer that is needed is NULL. */
    ONNXC_NULL_POINTER = 1,
    /* A number of inputs, outputs or symbols that is not the model's. */
    ONNXC_BAD_COUNT = 2,
    ONNXC_BAD_DTYPE = 3,
    ONNXC_BAD_RANK = 4,
    /* A dimension is negative, is not the model's, or disagrees with another of the same symbol. */
    ONNXC_BAD_DIM = 5,
    /* An input's length in bytes is not what its shape needs, or an output's is less. */
    ONNXC_BAD_BYTES = 6,
    /* Data is not aligned to its element, or the workspace to ONNXC_WORKSPACE_ALIGNMENT. */
    ONNXC_MISALIGNED = 7,
    /* The workspace is too small. */
    ONNXC_BAD_WORKSPACE = 8,
    /* options->struct_size is smaller than this version's struct, and is not that of an earlier one, which ended before
     * `seed`, `communicator`, `trace` or `weights`. */
    ONNXC_BAD_OPTIONS = 9,
    /* A size that these dimensions need does not fit 64 bits. */
    ONNXC_SIZE_OVERFLOW = 10,
    /* An index in the data (of Gather and its kin) is out of range. Outputs are unspecified. */
    ONNXC_OUT_OF_RANGE = 11,
    /* *options->cancel was not 0. Outputs are unspecified. */
    ONNXC_CANCELLED = 12,
    /* A size that the data decides is negative, more than it may be, or does not fit the others. Outputs are
     * unspecified, also after the two below. */
    ONNXC_BAD_SIZE = 13,
    /* Only the data decides the size of some value, and options->allocate or options->release is NULL; or an output's
     * data is. */
    ONNXC_NEEDS_ALLOCATOR = 14,
    /* options->allocate gave NULL; or an image needs more memory than there is, or than 1 GiB while it is decoded, or more
     * work than its bytes may ask for. */
    ONNXC_OUT_OF_MEMORY = 15,
    /* A text that is to be read as a number is none, or none that its type holds; or a text is not UTF-8 where it must
     * be. Outputs are unspecified. */
    ONNXC_BAD_TEXT = 16,
    /* The state block was not reset by this model, or is for other sizes. */
    ONNXC_BAD_STATE = 17,
    /* The state has no room for what the run would append. Nothing is written. */
    ONNXC_STATE_FULL = 18,
    /* Buffers that must lie apart overlap. No run looks for that: onnxc_check_overlap does. */
    ONNXC_OVERLAP = 19,
    /* A function of the program's own that computes an operator gave another status than 0, which the message has. Outputs are
     * unspecified. */
    ONNXC_FUNCTION_FAILED = 20,
    /* The model is one rank of several, and the options have no communicator. */
    ONNXC_NEEDS_COMMUNICATOR = 21,
    /* The communicator is of another rank, or of another number of ranks, than the model. */
    ONNXC_WRONG_RANK = 22,
    /* The ranks run different models, or different versions of one. Outputs are unspecified after this and those below. */
    ONNXC_OTHER_MODEL = 23,
    /* Another rank does not answer within the communicator's time. */
    ONNXC_TIMEOUT = 24,
    /* Another rank failed, or its process ended. */
    ONNXC_RANK_FAILED = 25,
    /* The communicator failed in another way. */
    ONNXC_EXCHANGE_FAILED = 26,
    /* The model was compiled with its weights apart, and the options have none. */
    ONNXC_NEEDS_WEIGHTS = 27,
    /* The weights are not a file of weights, are cut off, damaged, or cannot be read. */
    ONNXC_BAD_WEIGHTS = 28,
    /* The weights are of another model, or of another compilation with another layout. */
    ONNXC_OTHER_WEIGHTS = 29,
    /* The model was compiled to have operators computed by options->function (`late`), and the options have none. */
    ONNXC_NEEDS_FUNCTION = 30
} onnxc_status;

/* Element types: the numbers of ONNX's TensorProto.DataType. Elements smaller than a byte are packed as ONNX stores
 * them, two or four to a byte, or four to three bytes, the first in the lowest bits; bits behind the last one are ignored
 * in inputs and 0 in outputs. A bool is 0 or 1. A complex number is its real and its imaginary part. */
typedef enum onnxc_dtype {
    ONNXC_FLOAT = 1,
    ONNXC_UINT8 = 2,
    ONNXC_INT8 = 3,
    ONNXC_UINT16 = 4,
    ONNXC_INT16 = 5,
    ONNXC_INT32 = 6,
    ONNXC_INT64 = 7,
    ONNXC_STRING = 8,
    ONNXC_BOOL = 9,
    ONNXC_FLOAT16 = 10,
    ONNXC_DOUBLE = 11,
    ONNXC_UINT32 = 12,
    ONNXC_UINT64 = 13,
    ONNXC_COMPLEX64 = 14,
    ONNXC_COMPLEX128 = 15,
    ONNXC_BFLOAT16 = 16,
    ONNXC_FLOAT8E4M3FN = 17,
    ONNXC_FLOAT8E4M3FNUZ = 18,
    ONNXC_FLOAT8E5M2 = 19,
    ONNXC_FLOAT8E5M2FNUZ = 20,
    ONNXC_UINT4 = 21,
    ONNXC_INT4 = 22,
    ONNXC_FLOAT4E2M1 = 23,
    ONNXC_FLOAT8E8M0 = 24,
    ONNXC_UINT2 = 25,
    ONNXC_INT2 = 26,
    ONNXC_FLOAT6E2M3 = 27,
    ONNXC_FLOAT6E3M2 = 28
} onnxc_dtype;

/* A tensor of the caller: dense, row-major.
 *
 * Some outputs have dims that only the data decides (those of NonZero, for one): their kind is ONNXC_DIM_DATA. The run
 * writes their actual dims when it knows them. If their data is NULL it takes them from
 * options->allocate, and sets data and bytes: the caller gives them back by
 * options->release(options->allocator, data, bytes, ONNXC_WORKSPACE_ALIGNMENT). Otherwise `bytes` is the room at data; where it is too
 * little the run fails with ONNXC_BAD_BYTES, and the message has the number needed. A run that
 * fails has given back what it allocated, and left NULL and 0.
 *
 * Only the run decides the rank of some outputs, such as of one from which a choice removes an axis: it is one of
 * onnxc_value_least_rank to onnxc_value_info.rank. Their dims have room for the highest rank, and `rank` is that one when the run
 * is called. The run sets `rank` and the dims, those behind the rank to 1; before another run on the same descriptor the caller
 * sets it back. For their data what is said above holds: room for what the run needs, or NULL.
 *
 * Outputs of strings are similar: only the run knows how long the texts are. It takes 16 bytes for each element, and the
 * bytes of all texts behind them. Models with strings, and those that decode images, need options->allocate and
 * options->release in any case. */
typedef struct onnxc_tensor {
    /* Aligned to its element. May be NULL if there are no elements, for an input that has a default, and as described above. */
    void *data;
    /* Bytes at data: exactly the tensor's for an input, at least the tensor's for an output. Packed elements take
     * bytes as a whole, not row by row: five of 4 bits take 3. */
    size_t bytes;
    int32_t dtype;
    /* The model's rank; a run sets it for an output whose rank only the run decides. */
    int32_t rank;
    /* `rank` sizes; may be NULL for rank 0. An input's are only read. An output's static sizes are checked; for
     * its symbolic ones, what is there is ignored and the actual size is written. */
    int64_t *dims;
} onnxc_tensor;

/* A string, the element of tensors of ONNXC_STRING: `size` bytes of UTF-8 that may hold zeros and do not end with one.
 * data may be NULL if size is 0. Texts of inputs are read where they are while the run lasts. The texts of an output lie
 * in the same memory as its elements, behind them: giving that back frees all. */
typedef struct onnxc_string {
    const char *data;
    size_t size;
} onnxc_string;

/* Runs one part, begin <= i < end, of a parallel loop. Returns 0 or an error code. */
typedef int32_t (*onnxc_range_fn)(void *job, int64_t begin, int64_t end);

/* Runs `body` over disjoint parts that cover begin <= i < end, on any threads, and returns when all are done:
 * 0, or an error code that some part returned. Only loops that are worth several threads come here, one after the
 * other, each with begin < end. Neither the split nor which thread runs what changes a bit of a result. */
typedef int32_t (*onnxc_parallel_for_fn)(void *pool, int64_t begin, int64_t end, onnxc_range_fn body, void *job);

/* ---- Ranks: processes or threads that run one model together, each an object of its own (`onnxc --configuration NAME --rank R`). All give
 * the same inputs, and get the same outputs. ---- */

/* How an exchange combines elements. */
typedef enum onnxc_reduction {
    ONNXC_SUM = 0,
    ONNXC_PRODUCT = 1,
    /* NaN where any is NaN. */
    ONNXC_MAX = 2,
    ONNXC_MIN = 3,
    ONNXC_AND = 4,
    ONNXC_OR = 5
} onnxc_reduction;

/* What a run asks of the other ranks. The runtime library makes communicators for threads of a process (onnxc_ranks_create) and over any
 * means to send bytes (onnxc_communicator_create); libonnxc_mpi makes one over MPI.
 *
 * A group is the ranks first, first + stride, ..., count of them, the caller's among them. All of a group call the same function in the
 * same order; buffers do not overlap. Each function gives ONNXC_OK, one of the statuses from ONNXC_OTHER_MODEL on, or a
 * number of its own, which the run's message has; it never waits for ever. All ranks must get the same bits from a sum. One run at a
 * time uses a communicator. After a failure all that follows fails: make a new one. */
typedef struct onnxc_communicator {
    /* sizeof(onnxc_communicator). */
    size_t struct_size;
    /* First argument of all functions. */
    void *context;
    int64_t rank;
    int64_t size;
    /* Called when a run begins: fails on all ranks unless `model`, a digest of the model and how it is partitioned, is the same on all. */
    int32_t (*begin)(void *context, int64_t model);
    /* Combines `elements` elements of an onnxc_dtype by an onnxc_reduction: all get the result. */
    int32_t (*all_reduce)(void *context, int64_t first, int64_t stride, int64_t count, int64_t reduction, int64_t dtype,
                          const void *from, void *to, int64_t elements);
    /* Member i gives parts[i] elements of `width` bytes; all get those of all, in the order of the group. */
    int32_t (*all_gather)(void *context, int64_t first, int64_t stride, int64_t count, int64_t width, const void *from,
                          void *to, const int64_t *parts);
    /* Combines all elements; member i gets parts[i] of them. */
    int32_t (*reduce_scatter)(void *context, int64_t first, int64_t stride, int64_t count, int64_t reduction,
                              int64_t dtype, const void *from, void *to, const int64_t *parts);
    /* All get the bytes of member number `root`, itself too; `from` is NULL on the others. */
    int32_t (*broadcast)(void *context, int64_t first, int64_t stride, int64_t count, int64_t root, const void *from,
                         void *to, int64_t bytes);
    /* Member i gets sent[i] elements of `width` bytes, and gives received[i]. */
    int32_t (*all_to_all)(void *context, int64_t first, int64_t stride, int64_t count, int64_t width, const void *from,
                          const int64_t *sent, void *to, const int64_t *received);
    int32_t (*send)(void *context, int64_t to, const void *data, int64_t bytes);
    int32_t (*receive)(void *context, int64_t from, void *data, int64_t bytes);
    /* Called when a run fails: lets the others know that this rank does not go on. */
    int32_t (*abort)(void *context, int32_t status);
} onnxc_communicator;

/* What a run informs options->trace of. */
typedef enum onnxc_event {
    /* A run begins, after all checks. */
    ONNXC_RUN_BEGIN = 0,
    /* It ends, with the status `number`. */
    ONNXC_RUN_END = 1,
    /* The step `number` begins. It ends with the next event of the run. */
    ONNXC_STEP = 2,
    /* A step with bodies begins, such as a loop; the steps of its bodies follow, again for each iteration. */
    ONNXC_ENTER = 3,
    /* It ends. */
    ONNXC_LEAVE = 4
} onnxc_event;

/* `event` is an onnxc_event. `kernel` is the name of the kernel, or what the step does (copy, allocate, loop), and of a run the model; `nodes`
 * are the ONNX nodes, such as `layer1/conv (Conv), layer1/relu (Relu)`. Both are constants of the model. */
typedef void (*onnxc_trace_fn)(void *trace_context, int32_t event, int64_t number, const char *kernel, const char *nodes);

struct onnxc_op;

/* Computes an operator as the function of this name would, see onnxc_op. Where a size of a result follows from no input it is asked for
 * `<function>_shapes` before, unless the model was compiled with `shapes=`. It is called on the thread that runs the model. Texts that it gives
 * may also lie in memory that stays until the run has ended. */
typedef int32_t (*onnxc_function_fn)(void *function_context, const char *function, struct onnxc_op *op);

/* Optional services for a run. Set it up with ONNXC_OPTIONS_INIT, then fill what you have. */
typedef struct onnxc_options {
    /* sizeof(onnxc_options). */
    size_t struct_size;
    /* NULL: everything runs on the calling thread. */
    onnxc_parallel_for_fn parallel_for;
    /* First argument of parallel_for. */
    void *pool;
    /* Threads behind parallel_for, a hint; 0 if unknown. */
    int64_t threads;
    /* For sizes that only the data decides and nothing bounds: `bytes` (never 0) at a multiple of `alignment`, or NULL;
     * and its inverse. Called on the thread that runs the model. What a run allocates it gives back before it returns,
     * but for outputs. */
    void *(*allocate)(void *allocator, size_t bytes, size_t alignment);
    void (*release)(void *allocator, void *memory, size_t bytes, size_t alignment);
    void *allocator;
    /* Polled before anything is written, between kernels, between iterations, and in decoders of images; not 0 ends the
     * run with ONNXC_CANCELLED. */
    const volatile int32_t *cancel;
    /* Where a failure is described, zero-terminated and cut to message_capacity bytes. Not touched on success. */
    char *message;
    size_t message_capacity;
    /* Called after every step by models compiled for profiling. */
    void (*step_done)(void *step_context, int64_t step);
    void *step_context;
    /* For random numbers: runs with the same seed draw the same with any number of threads. Nodes with a seed of
     * their own do not ask for it. The topmost bit does not count. (A caller whose struct ends before this field has
     * the seed 0.) */
    uint64_t seed;
    /* For a model that is one rank of several; others do not ask for it. A caller whose struct ends before this field has none. */
    const onnxc_communicator *communicator;
    /* Informed of what a run does, as it does it, on the thread that runs the model; NULL: nobody, at no cost. onnxc_trace_create makes one
     * that writes a file. Models compiled with --no-trace, with -Os or for no operating system do not call it. A caller whose struct ends
     * before this field has none. */
    onnxc_trace_fn trace;
    void *trace_context;
    /* For a model that was compiled with its weights apart (`--weights-file`): the file in memory, at a multiple of 64, and its bytes. Runs
     * only read it. onnxc_weights_map maps a file, <name>_bind_weights checks one that is in memory and sets both fields. Others do not
     * ask for it. A caller whose struct ends before these fields has none. */
    const void *weights;
    size_t weights_bytes;
    /* For a model that was compiled with `--custom-op mine.Op=my_op,late`: computes its operators. Others do not ask for it. A caller whose
     * struct ends before these fields has none. */
    onnxc_function_fn function;
    void *function_context;
} onnxc_options;

/* clang-format off */
#define ONNXC_OPTIONS_INIT { sizeof(onnxc_options), NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, NULL, NULL }
/* clang-format on */

/* A call of a function of the program's own, which computes an operator that it was given when the model was compiled
 * (`--custom-op mine.Op=my_op`):
 *
 *     int32_t my_op(const onnxc_op *op);
 *
 * reads op->inputs, writes the elements of op->outputs, and returns 0; any other number ends the run with
 * ONNXC_FUNCTION_FAILED. Shapes are those that the model declares or that a function for shapes gives, and are not changed.
 * Inputs may be shared with other nodes: they are only read. A run calls it as often as it needs the results, from the
 * thread that runs the model; results must follow from inputs and attributes alone, and equal calls may be made once. A function that
 * uses several threads asks op->options->parallel_for. Elements of ONNXC_STRING are onnxc_string; texts that a function
 * gives are copied when it has returned: they lie in its scratch or are of its inputs or constants of the program.
 *
 *     int32_t my_op_shapes(onnxc_op *op);
 *
 * (`shapes=my_op_shapes`) is called before it: the data of outputs are NULL, and it sets those of their dims that are -1, none below
 * 0, and op->scratch_bytes if it needs more or less than what it finds there. */
typedef struct onnxc_op {
    /* sizeof(onnxc_op), or more in later versions. */
    size_t struct_size;
    /* Those of the ONNX node, in its order. One that is left out has the dtype 0 and NULL as data. */
    const onnxc_tensor *inputs;
    size_t input_count;
    onnxc_tensor *outputs;
    size_t output_count;
    /* Memory for the call, aligned to ONNXC_WORKSPACE_ALIGNMENT and not initialised. */
    void *scratch;
    size_t scratch_bytes;
    /* Those of the run, never NULL: without options of the caller, zeros. */
    const onnxc_options *options;
    /* The node's attributes; the functions below read them. */
    const int64_t *attributes;
    const char *texts;
} onnxc_op;

typedef int32_t (*onnxc_op_fn)(const onnxc_op *op);
typedef int32_t (*onnxc_op_shapes_fn)(onnxc_op *op);

/* Kinds of attributes: the numbers of ONNX's AttributeProto.AttributeType. */
typedef enum onnxc_attribute_kind {
    ONNXC_ATTRIBUTE_FLOAT = 1,
    ONNXC_ATTRIBUTE_INT = 2,
    ONNXC_ATTRIBUTE_STRING = 3,
    ONNXC_ATTRIBUTE_TENSOR = 4,
    ONNXC_ATTRIBUTE_FLOATS = 6,
    ONNXC_ATTRIBUTE_INTS = 7,
    ONNXC_ATTRIBUTE_STRINGS = 8
} onnxc_attribute_kind;

/* Finds an attribute by name and kind: a count (of values, or of bytes of a string), then its value. NULL if the node lacks it. */
static inline const int64_t *onnxc_op_attribute(const onnxc_op *op, const char *name, onnxc_attribute_kind kind) {
    int64_t i;
    for (i = 0; i < op->attributes[0]; i++) {
        const int64_t *entry = op->attributes + 1 + 4 * i;
        if (entry[1] == (int64_t)kind && strcmp(op->texts + entry[0], name) == 0) {
            return entry + 2;
        }
    }
    return NULL;
}

/* An integer, or `otherwise` where the node has no such attribute. */
static inline int64_t onnxc_op_int(const onnxc_op *op, const char *name, int64_t otherwise) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_INT);
    return found != NULL ? found[1] : otherwise;
}

static inline double onnxc_op_float(const onnxc_op *op, const char *name, double otherwise) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_FLOAT);
    if (found != NULL) {
        memcpy(&otherwise, found + 1, sizeof otherwise);
    }
    return otherwise;
}

/* A string that ends with a zero; `size`, unless NULL, gets its bytes. NULL and 0 if the node lacks the attribute. */
static inline const char *onnxc_op_string(const onnxc_op *op, const char *name, size_t *size) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_STRING);
    if (size != NULL) {
        *size = found != NULL ? (size_t)found[0] : 0;
    }
    return found != NULL ? op->texts + found[1] : NULL;
}

/* The number of values of a list; 0 if the node lacks the attribute. */
static inline size_t onnxc_op_count(const onnxc_op *op, const char *name, onnxc_attribute_kind kind) {
    const int64_t *found = onnxc_op_attribute(op, name, kind);
    return found != NULL ? (size_t)found[0] : 0;
}

/* A list of integers, and how many. */
static inline const int64_t *onnxc_op_ints(const onnxc_op *op, const char *name, size_t *count) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_INTS);
    *count = found != NULL ? (size_t)found[0] : 0;
    return found != NULL ? op->attributes + found[1] : NULL;
}

/* Value `index` of a list of floats; onnxc_op_count gives their number. */
static inline double onnxc_op_float_at(const onnxc_op *op, const char *name, size_t index) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_FLOATS);
    double value = 0;
    if (found != NULL && index < (size_t)found[0]) {
        memcpy(&value, op->attributes + found[1] + index, sizeof value);
    }
    return value;
}

/* Text `index` of a list of strings; onnxc_op_count gives their number. */
static inline const char *onnxc_op_string_at(const onnxc_op *op, const char *name, size_t index, size_t *size) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_STRINGS);
    const int64_t *place = NULL;
    if (found != NULL && index < (size_t)found[0]) {
        place = op->attributes + found[1] + 2 * index;
    }
    if (size != NULL) {
        *size = place != NULL ? (size_t)place[1] : 0;
    }
    return place != NULL ? op->texts + place[0] : NULL;
}

/* The tensor of an attribute; NULL if the node lacks it. */
static inline const onnxc_tensor *onnxc_op_tensor(const onnxc_op *op, const char *name) {
    const int64_t *found = onnxc_op_attribute(op, name, ONNXC_ATTRIBUTE_TENSOR);
    return found != NULL ? op->inputs + op->input_count + found[1] : NULL;
}

/* Elements of a tensor; 0 of one that is left out. */
static inline int64_t onnxc_tensor_elements(const onnxc_tensor *tensor) {
    int64_t elements = tensor->dtype != 0;
    int32_t axis;
    for (axis = 0; axis < tensor->rank; axis++) {
        elements *= tensor->dims[axis];
    }
    return elements;
}

/* Checks all it is given, then runs the model. `inputs` and `outputs` are in the model's order. Outputs must
 * not overlap inputs, each other or the workspace, nor may these overlap the workspace or the state block:
 * onnxc_check_overlap looks for that, where a program wants it. `workspace` is aligned to ONNXC_WORKSPACE_ALIGNMENT and has at
 * least the bytes that the model's workspace function returns; it needs no initialisation and holds nothing
 * between runs. `options` may be NULL. Returns an onnxc_status.
 *
 * A run takes at most ONNXC_STACK_BYTES of its thread's stack, and so does a part of a parallel loop, without what the
 * functions in `options` take. */
typedef int32_t (*onnxc_run_fn)(const onnxc_tensor *inputs, size_t input_count, onnxc_tensor *outputs,
                                size_t output_count, void *workspace, size_t workspace_bytes,
                                const onnxc_options *options);

/* Bytes of workspace of a run in which the model's symbols have these values (in the order of
 * onnxc_model_symbol), or minus an onnxc_status. */
typedef int64_t (*onnxc_workspace_fn)(const int64_t *symbols, size_t count);

/* The constant description of a model. Every `_at` field is a distance in bytes from the start of this struct, so
 * that a model needs no relocation when it is loaded; read them with the functions below. A distance to a function that is less than
 * ONNXC_MODEL_POINTERS behind the struct, as in models that were written as C, leads to a pointer to the function. */
typedef struct onnxc_model {
    uint32_t abi_version;
    int32_t name_at;
    int32_t input_count;
    int32_t output_count;
    int32_t symbol_count;
    int32_t metadata_count;
    int32_t inputs_at;
    int32_t outputs_at;
    int32_t symbols_at;
    int32_t metadata_at;
    int32_t run_at;
    int32_t workspace_at;
    /* Bytes of workspace of every run, or -1 where it depends on the symbols. */
    int64_t workspace_bytes;
    int64_t workspace_alignment;
    int32_t input_parts_at;
    int32_t output_parts_at;
    /* Tensors in the state block, 0 in a model without. */
    int32_t state_count;
    int32_t states_at;
    int32_t state_records_at;
    int32_t state_bytes_at;
    int32_t state_reset_at;
    /* The function that describes the next program of the object; 0 in the last one. */
    int32_t next_at;
} onnxc_model;

/* An input or output as onnxc_model stores it. */
typedef struct onnxc_value_record {
    int32_t name_at;
    int32_t dtype;
    int32_t rank;
    int32_t dims_at;
    int32_t dim_texts_at;
    int32_t dim_symbols_at;
    int32_t has_default;
    int32_t element_bytes;
} onnxc_value_record;

/* How a tensor in the state block changes, as onnxc_model stores it. */
typedef struct onnxc_state_record {
    int32_t output_at;
    int32_t axis;
    int32_t size_symbol;
    int32_t panel;
} onnxc_state_record;

/* The part of an ONNX value that an input or output of a model is. A value other than a dense tensor has several, one after the other:
 *
 *   sequence     `x.shapes`, int64 [n, axes]: the dims of each of its n elements; `x.data` [total]: the elements, each
 *                row-major, one behind the other. Where elements may have several ranks, -1 stands for an axis that one does
 *                not have, behind those that it has.
 *   optional     `x.present`, bool []; then its element: `x.element` of a tensor, or `x.shapes` and `x.data`. An
 *                element that is absent has sizes all the same: the model's static ones, otherwise 0; its data is
 *                undefined.
 *   map          `x.keys` [n], `x.values` [n]
 *   sequence of maps   `x.keys` [c], `x.values` [n, c]: n maps with equal keys
 *   sparse tensor      `x.values` [n], `x.indices`, int64 [n, rank]: an input only
 *
 * The last input of a model with state is the state block, which is not a value of the ONNX model. */
typedef enum onnxc_part {
    ONNXC_PART_WHOLE = 0,
    ONNXC_PART_SHAPES = 1,
    ONNXC_PART_DATA = 2,
    ONNXC_PART_PRESENT = 3,
    ONNXC_PART_ELEMENT = 4,
    ONNXC_PART_KEYS = 5,
    ONNXC_PART_VALUES = 6,
    ONNXC_PART_INDICES = 7,
    ONNXC_PART_STATE = 8
} onnxc_part;

/* The part and the value that it belongs to, as onnxc_model stores them. */
typedef struct onnxc_part_record {
    int32_t value_at;
    int32_t part;
} onnxc_part_record;

/* An input or output of a model. */
typedef struct onnxc_value_info {
    const char *name;
    /* An onnxc_dtype. */
    int32_t dtype;
    /* Of an output whose rank the run decides, the highest. */
    int32_t rank;
    /* `rank` sizes, -1 where symbolic. */
    const int64_t *dims;
    /* Per dimension: number of the model's symbol that it is, or less than 0; see onnxc_value_dim_kind. */
    const int32_t *symbols;
    /* Not 0: the input may be left out by giving NULL as data. */
    int32_t has_default;
    /* Bytes of one element, 1 where several share a byte. */
    int32_t element_bytes;
    const onnxc_model *model;
    const onnxc_value_record *record;
    /* Name of the ONNX value that it belongs to: `name` if it is the whole of it. */
    const char *value;
    /* An onnxc_part. */
    int32_t part;
} onnxc_value_info;

static inline const char *onnxc_model_at(const onnxc_model *model, int32_t distance) {
    return (const char *)model + distance;
}

/* Bytes behind the struct that hold pointers to functions, in models that have them there. */
#define ONNXC_MODEL_POINTERS 40

/* The function at a distance. */
static inline uintptr_t onnxc_model_function(const onnxc_model *model, int32_t distance) {
    uintptr_t at = (uintptr_t)model + (uintptr_t)(intptr_t)distance;
    const int32_t behind = distance - (int32_t)sizeof(onnxc_model);
    void (*function)(void);
    if (behind < 0 || behind >= ONNXC_MODEL_POINTERS) {
        return at;
    }
    memcpy(&function, (const void *)at, sizeof function);
    return (uintptr_t)function;
}

/* A string among several whose distances are stored at `array`. */
static inline const char *onnxc_model_string(const onnxc_model *model, int32_t array, int32_t index) {
    const int32_t *strings = (const int32_t *)(const void *)onnxc_model_at(model, array);
    return onnxc_model_at(model, strings[index]);
}

static inline const char *onnxc_model_name(const onnxc_model *model) {
    return onnxc_model_at(model, model->name_at);
}

/* Name of a symbol: a dimension that the inputs decide. */
static inline const char *onnxc_model_symbol(const onnxc_model *model, int32_t index) {
    return onnxc_model_string(model, model->symbols_at, index);
}

static inline const char *onnxc_model_metadata_key(const onnxc_model *model, int32_t index) {
    return onnxc_model_string(model, model->metadata_at, 2 * index);
}

static inline const char *onnxc_model_metadata_value(const onnxc_model *model, int32_t index) {
    return onnxc_model_string(model, model->metadata_at, 2 * index + 1);
}

static inline onnxc_value_info onnxc_model_value(const onnxc_model *model, int32_t array, int32_t parts, int32_t index) {
    onnxc_value_info info;
    const onnxc_part_record *part =
        (const onnxc_part_record *)(const void *)onnxc_model_at(model, parts) + index;
    const onnxc_value_record *record =
        (const onnxc_value_record *)(const void *)onnxc_model_at(model, array) + index;
    info.name = onnxc_model_at(model, record->name_at);
    info.dtype = record->dtype;
    info.rank = record->rank;
    info.dims = (const int64_t *)(const void *)onnxc_model_at(model, record->dims_at);
    info.symbols = (const int32_t *)(const void *)onnxc_model_at(model, record->dim_symbols_at);
    info.has_default = record->has_default;
    info.element_bytes = record->element_bytes;
    info.model = model;
    info.record = record;
    info.value = onnxc_model_at(model, part->value_at);
    info.part = part->part;
    return info;
}

static inline onnxc_value_info onnxc_model_input(const onnxc_model *model, int32_t index) {
    return onnxc_model_value(model, model->inputs_at, model->input_parts_at, index);
}

static inline onnxc_value_info onnxc_model_output(const onnxc_model *model, int32_t index) {
    return onnxc_model_value(model, model->outputs_at, model->output_parts_at, index);
}

/* What decides a dimension. */
typedef enum onnxc_dim_kind {
    /* The model: it is in onnxc_value_info.dims. */
    ONNXC_DIM_STATIC = 0,
    /* The inputs' shapes: it is the symbol whose number is in onnxc_value_info.symbols. */
    ONNXC_DIM_SYMBOL = 1,
    /* The inputs' shapes: it follows from symbols by the formula of its text. */
    ONNXC_DIM_FORMULA = 2,
    /* The inputs' data: it is known only when the run has written it. */
    ONNXC_DIM_DATA = 3
} onnxc_dim_kind;

static inline onnxc_dim_kind onnxc_value_dim_kind(const onnxc_value_info *info, int32_t axis) {
    if (info->dims[axis] >= 0) {
        return ONNXC_DIM_STATIC;
    }
    if (info->symbols[axis] >= 0) {
        return ONNXC_DIM_SYMBOL;
    }
    return info->symbols[axis] == -2 ? ONNXC_DIM_FORMULA : ONNXC_DIM_DATA;
}

/* The least rank that an output may have: less than onnxc_value_info.rank where the run decides it. Axes from there on are
 * ONNXC_DIM_DATA. */
static inline int32_t onnxc_value_least_rank(const onnxc_value_info *info) {
    int32_t rank = info->rank;
    while (rank > 0 && info->symbols[rank - 1] == -3) {
        rank--;
    }
    return rank;
}

/* A symbolic dimension as text, such as `batch` or `length*2`; NULL for a static one. */
static inline const char *onnxc_value_dim_text(const onnxc_value_info *info, int32_t axis) {
    if (info->dims[axis] >= 0) {
        return NULL;
    }
    return onnxc_model_string(info->model, info->record->dim_texts_at, axis);
}

/* Reads the text of a dimension: sums of products of symbols, whole numbers and calls of floordiv, mod, min, max and broadcast (the size of
 * two that are equal, or one that is 1 and any other). */
typedef struct onnxc_dim_reader {
    const onnxc_model *model;
    const int64_t *symbols;
    const char *at;
    /* Not 0: it cannot be read, divides by 0 or does not fit 64 bits. */
    int failed;
} onnxc_dim_reader;

static inline int onnxc_dim_take(onnxc_dim_reader *reader, const char *token) {
    size_t length = 0;
    while (token[length] != 0) {
        if (reader->at[length] != token[length]) {
            return 0;
        }
        length++;
    }
    reader->at += length;
    return 1;
}

static inline int64_t onnxc_dim_add(onnxc_dim_reader *reader, int64_t a, int64_t b) {
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) {
        reader->failed = 1;
        return 0;
    }
    return a + b;
}

static inline int64_t onnxc_dim_multiply(onnxc_dim_reader *reader, int64_t a, int64_t b) {
    if (a == 0 || b == 0) {
        return 0;
    }
    if (a == INT64_MIN || b == INT64_MIN || (a < 0 ? -a : a) > INT64_MAX / (b < 0 ? -b : b)) {
        reader->failed = 1;
        return 0;
    }
    return a * b;
}

static inline int64_t onnxc_dim_divide(onnxc_dim_reader *reader, int64_t a, int64_t b) {
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        reader->failed = 1;
        return 0;
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

static inline int64_t onnxc_dim_sum(onnxc_dim_reader *reader);

static inline int64_t onnxc_dim_factor(onnxc_dim_reader *reader) {
    static const char *const calls[5] = {"floordiv(", "mod(", "min(", "max(", "broadcast("};
    int64_t number = 0;
    int32_t call, symbol, longest = -1;
    size_t length = 0;
    const char *start;
    for (call = 0; call < 5; call++) {
        int64_t a, b;
        if (!onnxc_dim_take(reader, calls[call])) {
            continue;
        }
        a = onnxc_dim_sum(reader);
        reader->failed |= !onnxc_dim_take(reader, ", ");
        b = onnxc_dim_sum(reader);
        reader->failed |= !onnxc_dim_take(reader, ")");
        switch (call) {
        case 0:
            return onnxc_dim_divide(reader, a, b);
        case 1: {
            const int64_t quotient = onnxc_dim_divide(reader, a, b);
            return a - onnxc_dim_multiply(reader, quotient, b);
        }
        case 2:
            return a < b ? a : b;
        case 3:
            return a < b ? b : a;
        default:
            return a <= 0 || b <= 0 ? 0 : a < b ? b : a;
        }
    }
    /* A symbol's name may be any text: the longest that fits is taken. */
    start = reader->at;
    for (symbol = 0; symbol < reader->model->symbol_count; symbol++) {
        if (onnxc_dim_take(reader, onnxc_model_symbol(reader->model, symbol))) {
            if ((size_t)(reader->at - start) > length) {
                length = (size_t)(reader->at - start);
                longest = symbol;
            }
            reader->at = start;
        }
    }
    if (longest >= 0) {
        reader->at = start + length;
        return reader->symbols[longest];
    }
    while (*reader->at >= '0' && *reader->at <= '9') {
        number = onnxc_dim_add(reader, onnxc_dim_multiply(reader, number, 10), *reader->at - '0');
        reader->at++;
    }
    reader->failed |= reader->at == start;
    return number;
}

static inline int64_t onnxc_dim_product(onnxc_dim_reader *reader) {
    int64_t product = onnxc_dim_factor(reader);
    while (!reader->failed && onnxc_dim_take(reader, "*")) {
        product = onnxc_dim_multiply(reader, product, onnxc_dim_factor(reader));
    }
    return product;
}

static inline int64_t onnxc_dim_sum(onnxc_dim_reader *reader) {
    int64_t sum = onnxc_dim_take(reader, "-") ? -onnxc_dim_product(reader) : onnxc_dim_product(reader);
    while (!reader->failed) {
        if (onnxc_dim_take(reader, " + ")) {
            sum = onnxc_dim_add(reader, sum, onnxc_dim_product(reader));
        } else if (onnxc_dim_take(reader, " - ")) {
            sum = onnxc_dim_add(reader, sum, -onnxc_dim_product(reader));
        } else {
            return sum;
        }
    }
    return 0;
}

/* The size of a dimension where the model's symbols have these values (as from onnxc_model_workspace_for); -1 for one
 * that only the data decides, and for sizes that no run takes: negative ones, and those that do not fit 64 bits. */
static inline int64_t onnxc_value_dim(const onnxc_value_info *info, int32_t axis, const int64_t *symbols) {
    onnxc_dim_reader reader;
    int64_t size;
    switch (onnxc_value_dim_kind(info, axis)) {
    case ONNXC_DIM_STATIC:
        return info->dims[axis];
    case ONNXC_DIM_SYMBOL:
        return symbols[info->symbols[axis]];
    case ONNXC_DIM_DATA:
        return -1;
    default:
        break;
    }
    reader.model = info->model;
    reader.symbols = symbols;
    reader.at = onnxc_value_dim_text(info, axis);
    reader.failed = 0;
    size = onnxc_dim_sum(&reader);
    return reader.failed || *reader.at != 0 || size < 0 ? -1 : size;
}

static inline onnxc_run_fn onnxc_model_run(const onnxc_model *model) {
    return (onnxc_run_fn)onnxc_model_function(model, model->run_at);
}

static inline onnxc_workspace_fn onnxc_model_workspace(const onnxc_model *model) {
    return (onnxc_workspace_fn)onnxc_model_function(model, model->workspace_at);
}

/* Bytes of workspace of a run on inputs of these shapes (nothing but their rank and dims is read), or minus an
 * onnxc_status. `symbols` is scratch for model->symbol_count values; NULL if there are none. */
static inline int64_t onnxc_model_workspace_for(const onnxc_model *model, const onnxc_tensor *inputs,
                                                size_t input_count, int64_t *symbols) {
    int32_t at, axis;
    if (input_count != (size_t)model->input_count) {
        return -(int64_t)ONNXC_BAD_COUNT;
    }
    if ((inputs == NULL && input_count > 0) || (symbols == NULL && model->symbol_count > 0)) {
        return -(int64_t)ONNXC_NULL_POINTER;
    }
    for (at = 0; at < model->symbol_count; at++) {
        symbols[at] = -1;
    }
    for (at = 0; at < model->input_count; at++) {
        onnxc_value_info info = onnxc_model_input(model, at);
        if (info.has_default) {
            continue;
        }
        if (info.part == ONNXC_PART_STATE) {
            const onnxc_state_record *record =
                (const onnxc_state_record *)(const void *)onnxc_model_at(model, model->state_records_at);
            const onnxc_value_record *value =
                (const onnxc_value_record *)(const void *)onnxc_model_at(model, model->states_at);
            int32_t state;
            if (inputs[at].data == NULL) {
                return -(int64_t)ONNXC_NULL_POINTER;
            }
            for (state = 0; state < model->state_count; state++) {
                const int64_t *words = (const int64_t *)inputs[at].data + 1;
                const int32_t *dims =
                    (const int32_t *)(const void *)onnxc_model_at(model, value[state].dim_symbols_at);
                if (record[state].size_symbol >= 0) {
                    symbols[record[state].size_symbol] = words[record[state].size_symbol];
                }
                for (axis = 0; axis < value[state].rank; axis++) {
                    if (dims[axis] >= 0) {
                        symbols[dims[axis]] = words[dims[axis]];
                    }
                }
            }
            continue;
        }
        if (inputs[at].rank != info.rank) {
            return -(int64_t)ONNXC_BAD_RANK;
        }
        for (axis = 0; axis < info.rank; axis++) {
            if (info.symbols[axis] >= 0 && symbols[info.symbols[axis]] < 0) {
                symbols[info.symbols[axis]] = inputs[at].dims[axis];
            }
        }
    }
    return onnxc_model_workspace(model)(symbols, (size_t)model->symbol_count);
}

/* A tensor descriptor. `data` and `dims` of an input are only read. */
static inline onnxc_tensor onnxc_make_tensor(const void *data, size_t bytes, int32_t dtype, int32_t rank,
                                             const int64_t *dims) {
    onnxc_tensor tensor;
    tensor.data = (void *)(uintptr_t)data;
    tensor.bytes = bytes;
    tensor.dtype = dtype;
    tensor.rank = rank;
    tensor.dims = (int64_t *)(uintptr_t)dims;
    return tensor;
}

/* ---- State. Pairs of an input and an output that were compiled as one tensor (`onnxc --state`), such as a cache of keys, are not among
 * the inputs and outputs. They lie in one block of the caller, the state block, which every run gets as its last input: ONNXC_UINT8, rank
 * 1, at a multiple of ONNXC_WORKSPACE_ALIGNMENT. A run changes it: it appends to a tensor that grows and replaces any other. Exceptions are
 * those that the model gives back as they came, and inputs alone (`--state INPUT`): these are set by the caller (onnxc_state_set), such as
 * to the keys that an encoder made, and every run reads them where they lie. A caller has one block for each conversation, stream or user;
 * a block is saved, restored and forked by copying its bytes. A run that fails has changed nothing, unless it is cancelled or fails by its
 * data while it appends; then nothing that it appended counts, as the sizes and what is replaced change last.
 *
 * The block begins with a word that identifies the model, then has one word (int64) for each of the model's symbols, in their order: the
 * values that hold for the tensors, 0 for symbols that no tensor depends on. Symbols that are the size of a tensor that grows are 0 after a
 * reset, and runs add to them: to take back what the last runs appended, give the word an earlier value. At multiples of 64 bytes behind
 * the words lie the tensors, each row-major, with room for the number of elements in `<symbol>.capacity` along the axis that grows. Where
 * `panel` is not 0, elements along that axis lie in panels of `panel` elements, as the kernels read them: [before.., axis, behind..] is
 * [before.., ceil(axis / panel), behind.., panel] in memory, and a block is of no use to a model that was compiled for another kind of
 * processor, such as one of another byte order. ---- */

/* Bytes of the state block in which the model's symbols have these values, or minus an onnxc_status. */
typedef int64_t (*onnxc_state_bytes_fn)(const int64_t *symbols, size_t count);

/* Empties a block of `bytes` bytes: all elements are 0, and tensors that grow have none; of a model that is trained, what training changes
 * has the values of the initializers. Returns an onnxc_status: ONNXC_BAD_STATE where
 * `bytes` is not the size that these symbols need. */
typedef int32_t (*onnxc_state_reset_fn)(void *state, size_t bytes, const int64_t *symbols, size_t count);

/* A tensor in the state block. */
typedef struct onnxc_state_info {
    /* The input that it was; the dims are those in the block, -1 where symbolic. */
    onnxc_value_info tensor;
    /* The output that it was; the name of the input where it was an input alone. */
    const char *output;
    /* The axis along which runs append to it, or along which the panels lie of one that runs only read, else -1; and of one that
     * grows the symbol that is its size there, else -1. */
    int32_t axis;
    int32_t size_symbol;
    /* Elements to a panel; 0 where the tensor is row-major. */
    int32_t panel;
} onnxc_state_info;

/* The state number `index` of a model. */
static inline onnxc_state_info onnxc_model_state(const onnxc_model *model, int32_t index) {
    onnxc_state_info info;
    const onnxc_state_record *record =
        (const onnxc_state_record *)(const void *)onnxc_model_at(model, model->state_records_at) + index;
    const onnxc_value_record *value =
        (const onnxc_value_record *)(const void *)onnxc_model_at(model, model->states_at) + index;
    info.tensor.name = onnxc_model_at(model, value->name_at);
    info.tensor.dtype = value->dtype;
    info.tensor.rank = value->rank;
    info.tensor.dims = (const int64_t *)(const void *)onnxc_model_at(model, value->dims_at);
    info.tensor.symbols = (const int32_t *)(const void *)onnxc_model_at(model, value->dim_symbols_at);
    info.tensor.has_default = 0;
    info.tensor.element_bytes = value->element_bytes;
    info.tensor.model = model;
    info.tensor.record = value;
    info.tensor.value = info.tensor.name;
    info.tensor.part = ONNXC_PART_WHOLE;
    info.output = onnxc_model_at(model, record->output_at);
    info.axis = record->axis;
    info.size_symbol = record->size_symbol;
    info.panel = record->panel;
    return info;
}

/* ---- Training. An object that was compiled with --training has several programs on one state block: the model's own, whose
 * functions are <name>_run, <name>_model and so on, then, for each entry of the model's training_info, <name>_train_initialize
 * and <name>_train_step, each where the model has it. Of several entries each function ends in the entry's number:
 * <name>_train_step_0, <name>_train_step_1. They are called as <name>_run is, and described by <name>_train_step_model and its like.
 *
 * What is trained, and what training keeps beside it, are the tensors of the block. A reset of the block gives them the values of the
 * model's initializers. <name>_train_initialize gives those that the model binds other values, such as random ones by
 * options->seed; <name>_train_step trains on one batch; <name>_run reads what was learnt where it lies. A copy of the block's bytes is a
 * checkpoint. A step that fails or is cancelled leaves the block as it was. ---- */

typedef const struct onnxc_model *(*onnxc_model_fn)(void);

/* The next program of a model's object, NULL behind the last. The first is the model's own. */
static inline const onnxc_model *onnxc_model_next(const onnxc_model *model) {
    return model->next_at == 0 ? NULL : ((onnxc_model_fn)onnxc_model_function(model, model->next_at))();
}

static inline onnxc_state_bytes_fn onnxc_model_state_bytes(const onnxc_model *model) {
    return (onnxc_state_bytes_fn)onnxc_model_function(model, model->state_bytes_at);
}

static inline onnxc_state_reset_fn onnxc_model_state_reset(const onnxc_model *model) {
    return (onnxc_state_reset_fn)onnxc_model_function(model, model->state_reset_at);
}

/* The value of a symbol in a state block: how many elements there are, for one that is a size that grows. */
static inline int64_t onnxc_state_symbol(const void *state, int32_t symbol) {
    return ((const int64_t *)state)[1 + symbol];
}

/* Gives it another value, such as an earlier size. */
static inline void onnxc_state_set_symbol(void *state, int32_t symbol, int64_t value) {
    ((int64_t *)state)[1 + symbol] = value;
}

/* A size of a tensor in the block, with the room for what is appended. */
static inline int64_t onnxc_state_dim(const onnxc_state_info *info, const void *state, int32_t axis) {
    return info->tensor.dims[axis] >= 0 ? info->tensor.dims[axis]
                                        : onnxc_state_symbol(state, info->tensor.symbols[axis]);
}

/* Number of the state that was the input of this name, -1 where none was. */
static inline int32_t onnxc_state_index(const onnxc_model *model, const char *name) {
    int32_t index;
    for (index = 0; index < model->state_count; index++) {
        if (strcmp(onnxc_model_state(model, index).tensor.name, name) == 0) {
            return index;
        }
    }
    return -1;
}

/* Address of the tensor number `index` in a state block that has been reset, as it lies there. */
static inline void *onnxc_state_data(const onnxc_model *model, void *state, int32_t index) {
    size_t at = (8 * (1 + (size_t)model->symbol_count) + 63) / 64 * 64;
    int32_t before, axis;
    for (before = 0; before < index; before++) {
        onnxc_state_info info = onnxc_model_state(model, before);
        size_t bytes = (size_t)info.tensor.element_bytes;
        for (axis = 0; axis < info.tensor.rank; axis++) {
            size_t size = (size_t)onnxc_state_dim(&info, state, axis);
            if (axis == info.axis && info.panel > 0) {
                size = (size + (size_t)info.panel - 1) / (size_t)info.panel * (size_t)info.panel;
            }
            bytes *= size;
        }
        at += (bytes + 63) / 64 * 64;
    }
    return (char *)state + at;
}

/* Copies a tensor of a state block, as a row-major one without the room for more, to `to`, or from `from` where this is not NULL;
 * returns its bytes, or those that there would be where both are NULL. */
static inline size_t onnxc_state_move(const onnxc_model *model, const void *state, int32_t index, const void *from, void *to) {
    onnxc_state_info info = onnxc_model_state(model, index);
    char *block = (char *)onnxc_state_data(model, (void *)(uintptr_t)state, index);
    size_t before = 1, count = 1, room = 1, behind = 1, row, width = info.panel > 0 ? (size_t)info.panel : 1;
    size_t bytes = (size_t)info.tensor.element_bytes, panels;
    int32_t axis;
    for (axis = 0; axis < info.tensor.rank; axis++) {
        size_t size = (size_t)onnxc_state_dim(&info, state, axis);
        if (axis < info.axis) {
            before *= size;
        } else if (axis == info.axis) {
            room = size;
            count = info.size_symbol < 0 ? size : (size_t)onnxc_state_symbol(state, info.size_symbol);
        } else {
            behind *= size;
        }
    }
    panels = (room + width - 1) / width;
    for (row = 0; (from != NULL || to != NULL) && row < before * count; row++) {
        size_t at = row % count, column;
        char *there = block + ((row / count * panels + at / width) * behind * width + at % width) * bytes;
        size_t here = row * behind * bytes, step = width == 1 ? behind : 1;
        for (column = 0; column < behind; column += step) {
            if (from != NULL) {
                memcpy(there + column * width * bytes, (const char *)from + here + column * bytes, step * bytes);
            } else {
                memcpy((char *)to + here + column * bytes, there + column * width * bytes, step * bytes);
            }
        }
    }
    return before * count * behind * bytes;
}

/* Bytes of the present elements of a tensor in a state block. */
static inline size_t onnxc_state_tensor_bytes(const onnxc_model *model, const void *state, int32_t index) {
    return onnxc_state_move(model, state, index, NULL, NULL);
}

/* Sets a tensor in a state block that has been reset to the elements of a row-major one. One that grows has the number of elements in its
 * symbol (onnxc_state_set_symbol). */
static inline void onnxc_state_set(const onnxc_model *model, void *state, int32_t index, const void *tensor) {
    onnxc_state_move(model, state, index, tensor, NULL);
}

/* Reads a tensor in a state block into a row-major one. */
static inline void onnxc_state_get(const onnxc_model *model, const void *state, int32_t index, void *tensor) {
    onnxc_state_move(model, state, index, NULL, tensor);
}

/* ---- Sequences: the ports `x.shapes` and `x.data` of one. ---- */

/* Bits of an element of an onnxc_dtype; 0 for one that is not known. */
static inline int32_t onnxc_dtype_bits(int32_t dtype) {
    switch (dtype) {
    case ONNXC_COMPLEX128:
    case ONNXC_STRING:
        return 128;
    case ONNXC_DOUBLE:
    case ONNXC_INT64:
    case ONNXC_UINT64:
    case ONNXC_COMPLEX64:
        return 64;
    case ONNXC_FLOAT:
    case ONNXC_INT32:
    case ONNXC_UINT32:
        return 32;
    case ONNXC_FLOAT16:
    case ONNXC_BFLOAT16:
    case ONNXC_INT16:
    case ONNXC_UINT16:
        return 16;
    case ONNXC_UINT4:
    case ONNXC_INT4:
    case ONNXC_FLOAT4E2M1:
        return 4;
    case ONNXC_UINT2:
    case ONNXC_INT2:
        return 2;
    case ONNXC_FLOAT6E2M3:
    case ONNXC_FLOAT6E3M2:
        return 6;
    case ONNXC_UINT8:
    case ONNXC_INT8:
    case ONNXC_BOOL:
    case ONNXC_FLOAT8E4M3FN:
    case ONNXC_FLOAT8E4M3FNUZ:
    case ONNXC_FLOAT8E5M2:
    case ONNXC_FLOAT8E5M2FNUZ:
    case ONNXC_FLOAT8E8M0:
        return 8;
    default:
        return 0;
    }
}

/* Number of elements. */
static inline int64_t onnxc_sequence_length(const onnxc_tensor *shapes) {
    return shapes->dims[0];
}

/* A walk over the elements of a sequence: set `shapes` and `data`, and the rest to 0. */
typedef struct onnxc_sequence_walk {
    const onnxc_tensor *shapes;
    const onnxc_tensor *data;
    /* Number of the element that comes next, and of the first of its elements in `data`. */
    int64_t index;
    int64_t offset;
} onnxc_sequence_walk;

static inline onnxc_sequence_walk onnxc_sequence_begin(const onnxc_tensor *shapes, const onnxc_tensor *data) {
    onnxc_sequence_walk walk;
    walk.shapes = shapes;
    walk.data = data;
    walk.index = 0;
    walk.offset = 0;
    return walk;
}

/* The next element, as a view: its data and its dims are those of the sequence, nothing is copied. 0 behind the last one.
 * The data of an element that begins inside a byte is NULL: see onnxc_dtype about packed types. */
static inline int onnxc_sequence_next(onnxc_sequence_walk *walk, onnxc_tensor *element) {
    const int64_t axes = walk->shapes->dims[1];
    const int64_t bits = onnxc_dtype_bits(walk->data->dtype);
    int64_t count = 1, start;
    int32_t rank = 0;
    if (walk->index >= onnxc_sequence_length(walk->shapes)) {
        return 0;
    }
    element->dtype = walk->data->dtype;
    element->dims = (int64_t *)walk->shapes->data + walk->index * axes;
    while (rank < axes && element->dims[rank] >= 0) {
        count *= element->dims[rank++];
    }
    element->rank = rank;
    start = walk->offset * bits;
    element->data = start % 8 == 0 && walk->data->data != NULL ? (char *)walk->data->data + start / 8 : NULL;
    element->bytes = (size_t)((count * bits + 7) / 8);
    walk->index++;
    walk->offset += count;
    return 1;
}

/* Element number `index` of a sequence as a view; 0 if there is none. It takes time by the elements before it: walk over
 * many. */
static inline int onnxc_sequence_at(const onnxc_tensor *shapes, const onnxc_tensor *data, int64_t index,
                                    onnxc_tensor *element) {
    onnxc_sequence_walk walk = onnxc_sequence_begin(shapes, data);
    int found = index >= 0;
    while (found && walk.index <= index) {
        found = onnxc_sequence_next(&walk, element);
    }
    return found;
}

/* ---- The runtime: libonnxc_runtime_support. A model links without it, unless it has strings. A model that decodes images needs
 * libonnxc_runtime_images instead, which has the functions of both. ---- */

/* A pool of threads for options.parallel_for. A child of fork() may use and destroy the pools of its parent: they have
 * no threads there, and all loops run on the thread that calls. */
typedef struct onnxc_pool onnxc_pool;

/* A pool that runs loops on `threads` threads, the caller's included; 0 takes one per processor. NULL if the
 * system refuses. Its threads look for work for about 50 microseconds after a loop, then sleep. */
onnxc_pool *onnxc_pool_create(int64_t threads);

/* Ends the pool's threads; no loop may be running. NULL is ignored. */
void onnxc_pool_destroy(onnxc_pool *pool);

/* Threads of a pool, the caller's included. */
int64_t onnxc_pool_threads(const onnxc_pool *pool);

/* An onnxc_parallel_for_fn; `pool` is an onnxc_pool, or NULL to run all here. The range is cut into one share per
 * thread and each share into a few parts, the later the shorter; a thread that is done with its own share takes parts
 * that others have not begun. Several threads may call it: their loops run one after the other. A loop inside a loop
 * runs on its own thread. */
int32_t onnxc_pool_parallel_for(void *pool, int64_t begin, int64_t end, onnxc_range_fn body, void *job);

/* Memory of `bytes` at a multiple of `alignment` (a power of two), or NULL; `allocator` is ignored. Blocks of 4 MiB and more are
 * asked for in huge pages where the system has them: runs touch them in less time. */
void *onnxc_allocate(void *allocator, size_t bytes, size_t alignment);

/* Gives back memory of onnxc_allocate, with the same sizes. NULL is ignored. */
void onnxc_release(void *allocator, void *memory, size_t bytes, size_t alignment);

/* ---- Weights apart: of models compiled with `--weights-file`. ---- */

/* A file of weights in memory. It begins with numbers of 64 bits in the byte order of its machine, then at 128 the name of its model; the
 * weights follow at ONNXC_WEIGHTS_HEADER, as the kernels read them. Numbers, from 0 on: ONNXC_WEIGHTS_MAGIC; the version of the format, 1;
 * the bytes that a run needs; the bytes of the file; four of the SHA-256 of what the layout depends on (operations, types, packing, offsets,
 * options and version of the compiler, no value of a weight); four of the SHA-256 of the weights; offset and bytes of a text that lists
 * what the layout depends on; the first 32 bits of the layout's digest, by which messages of runs name it. */
#define ONNXC_WEIGHTS_MAGIC 0x4f4e4e5843575453
#define ONNXC_WEIGHTS_HEADER 256
#define ONNXC_WEIGHTS_ALIGNMENT 64

typedef struct onnxc_weights {
    const void *data;
    size_t bytes;
    /* Of onnxc_weights_map. */
    void *file;
} onnxc_weights;

/* Maps a file, read only and shared with all processes that map it, and checks once that it is one of the model's and not damaged
 * (which reads it). Then options.weights is weights.data, and options.weights_bytes is weights.bytes. A failure is described in
 * `message`, which may be NULL: ONNXC_BAD_WEIGHTS or ONNXC_OTHER_WEIGHTS. In the runtime library. */
int32_t onnxc_weights_map(const char *path, const onnxc_model *model, onnxc_weights *weights, char *message,
                          size_t message_capacity);

/* Ends a mapping that no run uses any more. In the runtime library. */
void onnxc_weights_unmap(onnxc_weights *weights);

/* A number of the header. */
static inline uint64_t onnxc_weights_word(const void *data, int32_t number) {
    uint64_t word;
    memcpy(&word, (const char *)data + 8 * number, sizeof word);
    return word;
}

/* Appends to the message of options. */
static inline void onnxc_weights_say(const onnxc_options *options, size_t *used, const char *text) {
    while (options != NULL && options->message != NULL && *text != 0 && *used + 1 < options->message_capacity) {
        options->message[(*used)++] = *text++;
    }
    if (options != NULL && options->message != NULL && *used < options->message_capacity) {
        options->message[*used] = 0;
    }
}

/* Checks a file in memory that lies at a multiple of ONNXC_WEIGHTS_ALIGNMENT, but not the digest of its contents, and has runs with these
 * options use it. A failure is described in options->message and leaves the options as they are. <name>_bind_weights calls this. */
static inline int32_t onnxc_weights_bind(const onnxc_model *model, const void *data, size_t bytes, onnxc_options *options) {
    static const char digits[] = "0123456789abcdef";
    const char *layout = NULL;
    const char *name = onnxc_model_at(model, model->name_at);
    char found[65];
    size_t used = 0;
    int32_t i;
    for (i = 0; i < model->metadata_count; i++) {
        if (strcmp(onnxc_model_metadata_key(model, i), "onnxc.weights.layout") == 0) {
            layout = onnxc_model_metadata_value(model, i);
        }
    }
    if (data == NULL || options == NULL) {
        onnxc_weights_say(options, &used, "the weights or the options are null");
        return ONNXC_NULL_POINTER;
    }
    if ((uintptr_t)data % ONNXC_WEIGHTS_ALIGNMENT != 0) {
        onnxc_weights_say(options, &used, "the weights are not aligned to 64 bytes");
        return ONNXC_MISALIGNED;
    }
    if (bytes < ONNXC_WEIGHTS_HEADER || onnxc_weights_word(data, 0) != ONNXC_WEIGHTS_MAGIC ||
        onnxc_weights_word(data, 1) != 1 || bytes < onnxc_weights_word(data, 2)) {
        onnxc_weights_say(options, &used, "the weights are not a file of weights of this version and this byte order, or are cut off: `");
        onnxc_weights_say(options, &used, name);
        onnxc_weights_say(options, &used, "` needs one");
        return ONNXC_BAD_WEIGHTS;
    }
    for (i = 0; i < 64; i++) {
        found[i] = digits[onnxc_weights_word(data, 4 + i / 16) >> (60 - 4 * (i % 16)) & 15];
    }
    found[64] = 0;
    if (layout == NULL || strcmp(found, layout) != 0) {
        onnxc_weights_say(options, &used, "the weights are of `");
        onnxc_weights_say(options, &used, (const char *)data + 128);
        onnxc_weights_say(options, &used, "` with the layout ");
        onnxc_weights_say(options, &used, found);
        onnxc_weights_say(options, &used, ", and `");
        onnxc_weights_say(options, &used, name);
        onnxc_weights_say(options, &used, "` takes ");
        onnxc_weights_say(options, &used, layout == NULL ? "none: it has its own" : "the layout ");
        onnxc_weights_say(options, &used, layout == NULL ? "" : layout);
        return ONNXC_OTHER_WEIGHTS;
    }
    options->weights = data;
    options->weights_bytes = bytes;
    return ONNXC_OK;
}

/* ---- Traces, in the runtime library. ---- */

/* A record of runs on a timeline, for any number of threads. */
typedef struct onnxc_trace onnxc_trace;

/* Room for `events` events, 0 for a million; those that find none are counted and left out. NULL if there is no memory. */
onnxc_trace *onnxc_trace_create(size_t events);

/* Has runs with these options recorded: sets trace and trace_context. Where the options have a parallel_for it replaces that and the pool, so
 * that each thread's parts of a kernel are recorded as well: set those first. The trace must outlive the runs. 0, or an onnxc_status. */
int32_t onnxc_trace_attach(onnxc_trace *trace, onnxc_options *options);

/* Events that are recorded, and that found no room. */
size_t onnxc_trace_events(const onnxc_trace *trace);
size_t onnxc_trace_lost(const onnxc_trace *trace);

/* Writes what is recorded as JSON of the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open; of a run that is on its
 * way, as far as it has come. The models must still be loaded. 0, or the number of the system's error. */
int32_t onnxc_trace_write(const onnxc_trace *trace, const char *path);

/* NULL is ignored. */
void onnxc_trace_destroy(onnxc_trace *trace);

/* ---- Ranks, in the runtime library. ---- */

/* Bytes for a rank, or room for bytes of a rank. */
typedef struct onnxc_message {
    int64_t rank;
    void *data;
    size_t bytes;
} onnxc_message;

/* A means to send bytes from rank to rank, from which onnxc_communicator_create makes a communicator. */
typedef struct onnxc_transport {
    /* sizeof(onnxc_transport). */
    size_t struct_size;
    void *context;
    /* Sends and receives all of these messages, at once, and returns when they are done: ONNXC_OK, ONNXC_TIMEOUT, ONNXC_RANK_FAILED,
     * ONNXC_OTHER_MODEL where a message has another length than there is room for, or another status. Messages between two ranks
     * keep their order. */
    int32_t (*exchange)(void *context, const onnxc_message *sends, size_t send_count, const onnxc_message *receives,
                        size_t receive_count);
    /* Lets the other ranks know that this one failed. */
    int32_t (*abort)(void *context, int32_t status);
} onnxc_transport;

/* The communicator of a rank over a transport, which is copied; its context must outlive the communicator. NULL where the numbers are not
 * those of a rank. */
onnxc_communicator *onnxc_communicator_create(const onnxc_transport *transport, int64_t rank, int64_t size);

/* Ends a communicator of onnxc_communicator_create. NULL is ignored. */
void onnxc_communicator_destroy(onnxc_communicator *communicator);

/* Communicators for threads of this process, one each. */
typedef struct onnxc_ranks onnxc_ranks;

/* For `size` threads; a thread that waits longer than this for another one gets ONNXC_TIMEOUT. NULL where a number is none. */
onnxc_ranks *onnxc_ranks_create(int64_t size, int64_t timeout_milliseconds);

/* The communicator of a rank, which lives as long as `ranks`. NULL where there is no such rank. */
const onnxc_communicator *onnxc_ranks_communicator(const onnxc_ranks *ranks, int64_t rank);

/* Ends them; no thread may use one. NULL is ignored. */
void onnxc_ranks_destroy(onnxc_ranks *ranks);

/* ---- Limits, for services that run models on inputs of strangers; `book/src/untrusted.md` shows them together. ---- */

/* An allocator with a limit on the bytes in use, for any number of threads. A cap that is part of another one counts there too: a
 * service has one for each run, and one for all runs. */
typedef struct onnxc_cap onnxc_cap;

/* A cap of `limit` bytes; `whole` is one that it is part of, and that outlives it, or NULL. */
onnxc_cap *onnxc_cap_create(onnxc_cap *whole, size_t limit);

/* Ends a cap of whose memory nothing is in use. NULL is ignored. */
void onnxc_cap_destroy(onnxc_cap *cap);

/* Bytes that are in use now, and that were at once at most. */
size_t onnxc_cap_used(const onnxc_cap *cap);
size_t onnxc_cap_peak(const onnxc_cap *cap);

/* For options.allocate and options.release; options.allocator is the cap. What exceeds a limit is NULL, and the run ends with
 * ONNXC_OUT_OF_MEMORY. A workspace may come from here, too. */
void *onnxc_cap_allocate(void *cap, size_t bytes, size_t alignment);
void onnxc_cap_release(void *cap, void *memory, size_t bytes, size_t alignment);

/* A thread that sets flags when the time of runs is over. One serves all runs of a process; a child of fork() makes its own. */
typedef struct onnxc_watchdog onnxc_watchdog;

/* NULL if the system refuses the thread. */
onnxc_watchdog *onnxc_watchdog_create(void);

/* Ends the thread; flags of watches that are not stopped stay as they are. NULL is ignored. */
void onnxc_watchdog_destroy(onnxc_watchdog *watchdog);

/* Sets *cancel to 1, the flag of options.cancel of a run, when this time is over. Gives the watch, to be stopped when the run has returned;
 * 0 where something is NULL or negative. */
int64_t onnxc_watchdog_start(onnxc_watchdog *watchdog, volatile int32_t *cancel, int64_t milliseconds);

/* Ends a watch, once: afterwards its flag is not touched. 1 if its time was over, else 0. */
int32_t onnxc_watchdog_stop(onnxc_watchdog *watchdog, int64_t watch);

/* The most that a symbol may be. */
typedef struct onnxc_symbol_limit {
    const char *name;
    int64_t most;
} onnxc_symbol_limit;

/* What a service allows. What is 0 has no limit; limits of symbols are 1 at least. */
typedef struct onnxc_limits {
    /* sizeof(onnxc_limits). */
    size_t struct_size;
    /* Of every dimension of an input, of the elements of an input, of the bytes of all inputs (but for texts). */
    int64_t dim;
    int64_t elements;
    int64_t bytes;
    /* Bytes of workspace. */
    int64_t workspace;
    const onnxc_symbol_limit *symbols;
    size_t symbol_count;
} onnxc_limits;

/* clang-format off */
#define ONNXC_LIMITS_INIT { sizeof(onnxc_limits), 0, 0, 0, 0, NULL, 0 }
/* clang-format on */

/* Checks ranks and dims of inputs before anything is allocated for them, and reads nothing else of them: a service fills the rest
 * when it has memory. Gives ONNXC_OK; ONNXC_BAD_DIM or ONNXC_BAD_WORKSPACE where a limit is exceeded, or the statuses of a run for
 * dims that no run takes; and describes a failure in `message`, which may be NULL. The state block is not looked at, and so
 * the workspace of a model with state is not checked. */
int32_t onnxc_limits_check(const onnxc_limits *limits, const onnxc_model *model, const onnxc_tensor *inputs,
                           size_t input_count, char *message, size_t message_capacity);

/* ONNXC_OVERLAP where buffers of a run overlap that must lie apart: outputs and inputs (and texts of inputs), outputs and each
 * other, the workspace or the state block and anything. The message names both, with addresses. The arguments are those of the
 * run. Takes time by the number of buffers, and reads none of them, but for the elements of inputs of strings. */
int32_t onnxc_check_overlap(const onnxc_model *model, const onnxc_tensor *inputs, size_t input_count,
                            const onnxc_tensor *outputs, size_t output_count, const void *workspace,
                            size_t workspace_bytes, char *message, size_t message_capacity);

#ifdef __cplusplus
}
#endif

#endif /* ONNXC_H */
