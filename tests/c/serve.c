/* Runs compiled models on a machine that the tests themselves do not run on: it is linked with objects of models and a table
 * of them, reads requests from standard input and answers on standard output. `src/remote.rs` is the other side. Numbers are 8
 * bytes, the least significant first, on machines of either order; the data of tensors are in the machine's order, and
 * strings are the number of bytes of each, then the bytes of all.
 *
 *   request  `DESCRIBE`, model         its inputs, then its outputs, from the model's descriptor
 *   request  `RUN`, model, runs, inputs, outputs
 *                                      status, message, and if the status is 0 the outputs
 *
 * Runs differ in what is around the buffers: a protected page behind each, one before each, and the threads of a loop. All
 * must leave the same bytes. */
#define _GNU_SOURCE
#include <onnxc.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#elif !defined(__wasi__)
#include <sys/mman.h>
#include <unistd.h>
#endif

typedef const onnxc_model *(*model_fn)(void);

/* Made for each program. */
extern const model_fn served_models[];

enum { DESCRIBE = 1, RUN = 2 };

/* A status beside those of the ABI: what is wrong is what the run did besides. */
enum { BROKEN_PROMISE = 1000 };

/* ---- Standard input and output ---- */

static void read_bytes(void *to, size_t bytes) {
    if (bytes > 0 && fread(to, 1, bytes, stdin) != bytes) {
        exit(0);
    }
}

static void put_number(unsigned char *to, uint64_t number) {
    int at;
    for (at = 0; at < 8; at++) {
        to[at] = (unsigned char)(number >> (8 * at));
    }
}

static uint64_t get_number(const unsigned char *from) {
    uint64_t number = 0;
    int at;
    for (at = 7; at >= 0; at--) {
        number = number << 8 | from[at];
    }
    return number;
}

static int64_t read_number(void) {
    unsigned char bytes[8];
    read_bytes(bytes, sizeof bytes);
    return (int64_t)get_number(bytes);
}

static void write_bytes(const void *from, size_t bytes) {
    if (bytes > 0 && fwrite(from, 1, bytes, stdout) != bytes) {
        exit(3);
    }
}

static void write_number(int64_t number) {
    unsigned char bytes[8];
    put_number(bytes, (uint64_t)number);
    write_bytes(bytes, sizeof bytes);
}

static void write_text(const char *text) {
    write_number((int64_t)strlen(text));
    write_bytes(text, strlen(text));
}

static void *need(void *memory) {
    if (memory == NULL) {
        fputs("no memory\n", stderr);
        exit(3);
    }
    return memory;
}

static void *room(size_t bytes) {
    return need(malloc(bytes + 1));
}

/* ---- Memory between protected pages ---- */

typedef struct block {
    unsigned char *map, *data;
    /* Of the pages between the protected ones. */
    size_t pages;
    size_t bytes;
} block;

/* How buffers lie in a run. */
typedef struct placement {
    /* At the end of their pages; else at the start. */
    int at_end;
    /* Every byte of what a run writes, before the run, and all around the buffers. */
    unsigned char poison;
    int threads;
} placement;

static const placement placements[] = { { 1, 0xfb, 0 }, { 0, 0x3e, 0 }, { 1, 0xfb, 1 } };

/* Pages of the system, at first protected from all use; the functions that give or protect them return whether they succeeded. */
#ifdef _WIN32
static size_t page_bytes(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

static unsigned char *take_pages(size_t bytes) {
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_NOACCESS);
}

static int protect_pages(unsigned char *pages, size_t bytes, int may_write) {
    DWORD before;
    return VirtualProtect(pages, bytes, may_write ? PAGE_READWRITE : PAGE_READONLY, &before);
}

static void give_pages(unsigned char *pages, size_t bytes) {
    (void)bytes;
    VirtualFree(pages, 0, MEM_RELEASE);
}
#elif defined(__wasi__)
/* Nothing protects memory here; what is written around buffers still shows. */
static size_t page_bytes(void) {
    return 4096;
}

static unsigned char *take_pages(size_t bytes) {
    return aligned_alloc(page_bytes(), bytes);
}

static int protect_pages(unsigned char *pages, size_t bytes, int may_write) {
    (void)pages;
    (void)bytes;
    (void)may_write;
    return 1;
}

static void give_pages(unsigned char *pages, size_t bytes) {
    (void)bytes;
    free(pages);
}
#else
static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static unsigned char *take_pages(size_t bytes) {
    void *pages = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

static int protect_pages(unsigned char *pages, size_t bytes, int may_write) {
    return mprotect(pages, bytes, may_write ? PROT_READ | PROT_WRITE : PROT_READ) == 0;
}

static void give_pages(unsigned char *pages, size_t bytes) {
    munmap(pages, bytes);
}
#endif

static block take(const placement *how, size_t bytes, size_t alignment) {
    size_t page = page_bytes();
    block b;
    b.bytes = bytes;
    b.pages = (bytes + page - 1) / page * page;
    b.map = take_pages(b.pages + 2 * page);
    if (b.map == NULL || (b.pages > 0 && !protect_pages(b.map + page, b.pages, 1))) {
        need(NULL);
    }
    memset(b.map + page, how->poison, b.pages);
    b.data = b.map + page + (how->at_end ? (b.pages - bytes) / alignment * alignment : 0);
    return b;
}

static void forbid_writes(const block *b) {
    if (b->pages > 0 && !protect_pages(b->map + page_bytes(), b->pages, 0)) {
        need(NULL);
    }
}

/* Whether what is around the buffer is as it was. */
static int intact(const placement *how, const block *b) {
    const unsigned char *at, *first = b->map + page_bytes(), *end = first + b->pages;
    for (at = first; at < b->data; at++) {
        if (*at != how->poison) {
            return 0;
        }
    }
    for (at = b->data + b->bytes; at < end; at++) {
        if (*at != how->poison) {
            return 0;
        }
    }
    return 1;
}

static void give(block *b) {
    if (b->map != NULL) {
        give_pages(b->map, b->pages + 2 * page_bytes());
        b->map = NULL;
    }
}

/* ---- What a run allocates ---- */

enum { MOST_BLOCKS = 4096 };

static struct {
    const placement *how;
    block blocks[MOST_BLOCKS];
    const char *fault;
} heap;

static void *heap_allocate(void *allocator, size_t bytes, size_t alignment) {
    size_t at;
    (void)allocator;
    for (at = 0; at < MOST_BLOCKS && heap.blocks[at].map != NULL; at++) {
    }
    if (at == MOST_BLOCKS) {
        return NULL;
    }
    heap.blocks[at] = take(heap.how, bytes, alignment);
    return heap.blocks[at].data;
}

static void heap_release(void *allocator, void *memory, size_t bytes, size_t alignment) {
    size_t at;
    (void)allocator;
    (void)alignment;
    for (at = 0; at < MOST_BLOCKS; at++) {
        block *b = &heap.blocks[at];
        if (b->map != NULL && b->data == memory) {
            if (b->bytes != bytes) {
                heap.fault = "a run gave memory back with another size";
            } else if (!intact(heap.how, b)) {
                heap.fault = "a run wrote outside of what it had allocated";
            }
            give(b);
            return;
        }
    }
    heap.fault = "a run gave back memory that it did not have";
}

/* ---- A loop in parts, as threads would take them: the last first, of unlike lengths ---- */

static int32_t in_parts(void *pool, int64_t begin, int64_t end, onnxc_range_fn body, void *job) {
    (void)pool;
    while (begin < end) {
        int64_t length = (end - begin + 2) / 3;
        int32_t status = body(job, end - length, end);
        if (status != 0) {
            return status;
        }
        end -= length;
    }
    return 0;
}

/* ---- Strings ---- */

/* A length as it is sent takes less than a string in memory; the texts are the same. */
enum { SENT_LENGTH = 8, MORE_IN_MEMORY = sizeof(onnxc_string) - SENT_LENGTH };

static size_t elements_of(const onnxc_tensor *tensor) {
    size_t count = 1;
    int32_t axis;
    for (axis = 0; axis < tensor->rank; axis++) {
        count *= (size_t)tensor->dims[axis];
    }
    return count;
}

/* Strings in memory, their texts behind them, from strings as they are sent. */
static void lay_strings(void *to, const unsigned char *sent, size_t count, size_t bytes) {
    onnxc_string *strings = to;
    char *text = (char *)(strings + count);
    size_t at;
    memcpy(text, sent + SENT_LENGTH * count, bytes - SENT_LENGTH * count);
    for (at = 0; at < count; at++) {
        strings[at].data = text;
        strings[at].size = (size_t)get_number(sent + SENT_LENGTH * at);
        text += strings[at].size;
    }
}

/* What is sent of an output, in memory of its own. */
static void *to_send(const onnxc_tensor *tensor, size_t *bytes) {
    const onnxc_string *strings = tensor->data;
    size_t count = elements_of(tensor), at;
    unsigned char *sent, *text;
    if (tensor->dtype != ONNXC_STRING) {
        sent = room(tensor->bytes);
        *bytes = tensor->bytes;
        if (*bytes > 0) {
            memcpy(sent, tensor->data, *bytes);
        }
        return sent;
    }
    *bytes = SENT_LENGTH * count;
    for (at = 0; at < count; at++) {
        *bytes += strings[at].size;
    }
    sent = room(*bytes);
    text = sent + SENT_LENGTH * count;
    for (at = 0; at < count; at++) {
        put_number(sent + SENT_LENGTH * at, strings[at].size);
        if (strings[at].size > 0) {
            memcpy(text, strings[at].data, strings[at].size);
        }
        text += strings[at].size;
    }
    return sent;
}

/* ---- A run ---- */

typedef struct input {
    int64_t present, dtype, rank, bytes;
    int64_t *dims;
    /* As it was sent. */
    void *data;
} input;

typedef struct output {
    int64_t has_shape, rank, bytes;
    int64_t *dims;
    /* What the first run left, as it is sent. */
    int64_t *found_dims;
    void *found;
    size_t found_bytes;
} output;

static char message[1000];

static int64_t *read_dims(int64_t rank) {
    int64_t *dims = room((size_t)rank * sizeof *dims), at;
    for (at = 0; at < rank; at++) {
        dims[at] = read_number();
    }
    return dims;
}

static void read_input(input *in) {
    memset(in, 0, sizeof *in);
    in->present = read_number();
    if (in->present) {
        in->dtype = read_number();
        in->rank = read_number();
        in->dims = read_dims(in->rank);
        in->bytes = read_number();
        in->data = room((size_t)in->bytes);
        read_bytes(in->data, (size_t)in->bytes);
    }
}

static void read_output(output *out) {
    memset(out, 0, sizeof *out);
    out->has_shape = read_number();
    if (out->has_shape) {
        out->rank = read_number();
        out->dims = read_dims(out->rank);
        out->bytes = read_number();
    }
}

static int64_t broken(const char *text, int32_t at) {
    snprintf(message, sizeof message, text, (int)at);
    return BROKEN_PROMISE;
}

/* The sizes of a value, those that are not known as 0. */
static int64_t *sizes_of(const onnxc_value_info *info) {
    int64_t *dims = room((size_t)info->rank * sizeof *dims);
    int32_t axis;
    for (axis = 0; axis < info->rank; axis++) {
        dims[axis] = info->dims[axis] < 0 ? 0 : info->dims[axis];
    }
    return dims;
}

static size_t alignment_of(const onnxc_value_info *info) {
    size_t bytes = (size_t)info->element_bytes;
    return bytes == 0 ? 1 : bytes > 8 ? 8 : bytes;
}

static int64_t run_once(const onnxc_model *model, const input *in, output *out, const placement *how, int first) {
    int32_t inputs = model->input_count, outputs = model->output_count, at;
    onnxc_tensor *given = room((size_t)inputs * sizeof *given), *made = room((size_t)outputs * sizeof *made);
    block *read = room((size_t)inputs * sizeof *read), *written = room((size_t)outputs * sizeof *written), workspace;
    int64_t *symbols = room((size_t)model->symbol_count * sizeof *symbols), bytes, status;
    onnxc_options options = ONNXC_OPTIONS_INIT;
    memset(&heap, 0, sizeof heap);
    heap.how = how;
    for (at = 0; at < model->symbol_count; at++) {
        symbols[at] = -1;
    }
    for (at = 0; at < inputs; at++) {
        onnxc_value_info info = onnxc_model_input(model, at);
        int32_t axis;
        memset(&read[at], 0, sizeof read[at]);
        given[at].data = NULL;
        given[at].bytes = 0;
        given[at].dtype = in[at].present ? (int32_t)in[at].dtype : info.dtype;
        given[at].rank = in[at].present ? (int32_t)in[at].rank : info.rank;
        given[at].dims = in[at].present ? in[at].dims : sizes_of(&info);
        if (!in[at].present) {
            continue;
        }
        if (given[at].dtype == ONNXC_STRING) {
            size_t count = elements_of(&given[at]);
            read[at] = take(how, (size_t)in[at].bytes + MORE_IN_MEMORY * count, alignment_of(&info));
            lay_strings(read[at].data, in[at].data, count, (size_t)in[at].bytes);
            given[at].bytes = sizeof(onnxc_string) * count;
        } else {
            read[at] = take(how, (size_t)in[at].bytes, alignment_of(&info));
            memcpy(read[at].data, in[at].data, (size_t)in[at].bytes);
            given[at].bytes = (size_t)in[at].bytes;
        }
        forbid_writes(&read[at]);
        given[at].data = read[at].data;
        for (axis = 0; axis < info.rank && axis < in[at].rank; axis++) {
            int32_t symbol = info.symbols[axis];
            if (info.dims[axis] < 0 && symbol >= 0 && symbols[symbol] < 0) {
                symbols[symbol] = in[at].dims[axis];
            }
        }
    }
    for (at = 0; at < outputs; at++) {
        onnxc_value_info info = onnxc_model_output(model, at);
        memset(&written[at], 0, sizeof written[at]);
        made[at].data = NULL;
        made[at].bytes = 0;
        made[at].dtype = info.dtype;
        made[at].rank = info.rank;
        made[at].dims = sizes_of(&info);
        if (out[at].has_shape) {
            if (out[at].rank != info.rank) {
                return broken("output %d has another rank", at);
            }
            memcpy(made[at].dims, out[at].dims, (size_t)info.rank * sizeof *made[at].dims);
            written[at] = take(how, (size_t)out[at].bytes, alignment_of(&info));
            made[at].data = written[at].data;
            made[at].bytes = (size_t)out[at].bytes;
        }
    }
    bytes = ((onnxc_workspace_fn)onnxc_model_function(model, model->workspace_at))(
        symbols, (size_t)model->symbol_count
    );
    if (bytes < 0) {
        return broken("the workspace function gives status %d", (int32_t)-bytes);
    }
    workspace = take(how, (size_t)bytes, 64);
    options.allocate = heap_allocate;
    options.release = heap_release;
    options.message = message;
    options.message_capacity = sizeof message;
    if (how->threads) {
        options.parallel_for = in_parts;
        options.threads = 3;
    }
    status = ((onnxc_run_fn)onnxc_model_function(model, model->run_at))(
        given, (size_t)inputs, made, (size_t)outputs, workspace.data, (size_t)bytes, &options
    );
    if (status == 0 && !intact(how, &workspace)) {
        status = broken("the run wrote outside of its workspace", 0);
    }
    for (at = 0; at < inputs; at++) {
        if (status == 0 && read[at].map != NULL && !intact(how, &read[at])) {
            status = broken("the run wrote beside input %d", at);
        }
    }
    for (at = 0; at < outputs; at++) {
        if (status == 0 && written[at].map != NULL && !intact(how, &written[at])) {
            status = broken("the run wrote beside output %d", at);
        }
        if (status == 0 && first) {
            out[at].found_dims = made[at].dims;
            out[at].rank = made[at].rank;
            out[at].found = to_send(&made[at], &out[at].found_bytes);
        } else if (status == 0) {
            size_t bytes;
            void *found = to_send(&made[at], &bytes);
            int same = memcmp(out[at].found_dims, made[at].dims, (size_t)made[at].rank * sizeof(int64_t)) == 0
                && out[at].found_bytes == bytes && memcmp(out[at].found, found, bytes) == 0;
            free(found);
            if (!same && how->threads) {
                status = broken("output %d depends on the threads of its loops", at);
            } else if (!same) {
                status = broken("output %d depends on what memory held before the run", at);
            }
        }
        if (!out[at].has_shape && made[at].data != NULL) {
            heap_release(NULL, made[at].data, made[at].bytes, 64);
        }
    }
    for (at = 0; at < MOST_BLOCKS; at++) {
        if (heap.blocks[at].map != NULL) {
            give(&heap.blocks[at]);
            heap.fault = "a run kept memory";
        }
    }
    if (status == 0 && heap.fault != NULL) {
        status = broken(heap.fault, 0);
    }
    for (at = 0; at < inputs; at++) {
        give(&read[at]);
    }
    for (at = 0; at < outputs; at++) {
        give(&written[at]);
    }
    give(&workspace);
    free(given);
    free(made);
    free(read);
    free(written);
    free(symbols);
    return status;
}

static void run(const onnxc_model *model) {
    int64_t runs = read_number(), status = 0, at;
    int32_t axis, number;
    input *in = room((size_t)model->input_count * sizeof *in);
    output *out = room((size_t)model->output_count * sizeof *out);
    for (at = 0; at < model->input_count; at++) {
        read_input(&in[at]);
    }
    for (at = 0; at < model->output_count; at++) {
        read_output(&out[at]);
    }
    message[0] = 0;
    for (at = 0; at < runs && status == 0; at++) {
        status = run_once(model, in, out, &placements[at], at == 0);
    }
    write_number(status);
    write_text(message);
    for (number = 0; number < model->output_count && status == 0; number++) {
        write_number(out[number].rank);
        for (axis = 0; axis < out[number].rank; axis++) {
            write_number(out[number].found_dims[axis]);
        }
        write_number((int64_t)out[number].found_bytes);
        write_bytes(out[number].found, out[number].found_bytes);
        free(out[number].found);
    }
    for (at = 0; at < model->input_count; at++) {
        free(in[at].data);
    }
    free(in);
    free(out);
}

static void describe_value(onnxc_value_info info) {
    int32_t axis;
    write_text(info.name);
    write_text(info.value);
    write_number(info.part);
    write_number(info.dtype);
    write_number(info.has_default);
    write_number(info.element_bytes);
    write_number(info.rank);
    for (axis = 0; axis < info.rank; axis++) {
        const char *text = onnxc_value_dim_text(&info, axis);
        write_number(info.dims[axis]);
        write_number((int64_t)onnxc_value_dim_kind(&info, axis));
        write_number(info.symbols[axis]);
        write_text(text == NULL ? "" : text);
    }
}

static void describe(const onnxc_model *model) {
    int32_t at;
    write_number(model->input_count);
    for (at = 0; at < model->input_count; at++) {
        describe_value(onnxc_model_input(model, at));
    }
    write_number(model->output_count);
    for (at = 0; at < model->output_count; at++) {
        describe_value(onnxc_model_output(model, at));
    }
}

int main(void) {
#ifdef _WIN32
    _setmode(_fileno(stdin), _O_BINARY);
    _setmode(_fileno(stdout), _O_BINARY);
#endif
    for (;;) {
        int64_t request = read_number();
        const onnxc_model *model = served_models[read_number()]();
        if (model->abi_version != ONNXC_ABI_VERSION) {
            fputs("the descriptor has another version of the ABI\n", stderr);
            return 3;
        }
        if (request == DESCRIBE) {
            describe(model);
        } else {
            run(model);
        }
        fflush(stdout);
    }
}
