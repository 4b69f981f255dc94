/* Functions that compute operators: one of each kind. Built into a shared library by the tests. */
#include "onnxc.h"

/* y = alpha * x + offset[0] + the last of `steps`, in parts on several threads. */
typedef struct scale_job {
    const float *x;
    float *y;
    float alpha, added;
} scale_job;

static int32_t scale_part(void *context, int64_t begin, int64_t end) {
    const scale_job *job = context;
    int64_t i;
    for (i = begin; i < end; i++) {
        job->y[i] = job->alpha * job->x[i] + job->added;
    }
    return 0;
}

int32_t test_scale(const onnxc_op *op) {
    const onnxc_tensor *offset = onnxc_op_tensor(op, "offset");
    const int64_t *steps;
    int64_t elements = onnxc_tensor_elements(&op->inputs[0]);
    size_t count;
    scale_job job;
    if (op->struct_size < sizeof(onnxc_op) || op->input_count != 2 || op->output_count != 1 || op->options == NULL) {
        return 1;
    }
    /* The second input is left out. */
    if (op->inputs[1].dtype != 0 || op->inputs[1].data != NULL || onnxc_tensor_elements(&op->inputs[1]) != 0) {
        return 2;
    }
    steps = onnxc_op_ints(op, "steps", &count);
    job.x = op->inputs[0].data;
    job.y = op->outputs[0].data;
    job.alpha = (float)onnxc_op_float(op, "alpha", 1.0);
    job.added = (float)(onnxc_op_int(op, "missing", 0) + (count > 0 ? steps[count - 1] : 0));
    if (offset != NULL) {
        job.added += ((const float *)offset->data)[0];
    }
    if (op->options->parallel_for != NULL && elements > 0) {
        return op->options->parallel_for(op->options->pool, 0, elements, scale_part, &job);
    }
    return scale_part(&job, 0, elements);
}

/* Sums of rows, and how many columns they have. */
int32_t test_row_sums(const onnxc_op *op) {
    const float *x = op->inputs[0].data;
    float *sums = op->outputs[0].data;
    int64_t *columns = op->outputs[1].data;
    int64_t i, j;
    for (i = 0; i < op->inputs[0].dims[0]; i++) {
        sums[i] = 0;
        for (j = 0; j < op->inputs[0].dims[1]; j++) {
            sums[i] += x[i * op->inputs[0].dims[1] + j];
        }
    }
    columns[0] = op->inputs[0].dims[1];
    return 0;
}

/* Elements in reverse order, through scratch of 64 bytes at least. */
int32_t test_reverse(const onnxc_op *op) {
    const float *x = op->inputs[0].data;
    float *y = op->outputs[0].data, *scratch = op->scratch;
    int64_t n = onnxc_tensor_elements(&op->inputs[0]), i;
    if (op->scratch_bytes != 64 || ((uintptr_t)scratch & 63) != 0) {
        return 3;
    }
    for (i = 0; i < n; i++) {
        scratch[i % 16] = x[n - 1 - i];
        y[i] = scratch[i % 16];
    }
    return 0;
}

/* Elements above 0: only the data decides how many. */
int32_t test_positive_shapes(onnxc_op *op) {
    const float *x = op->inputs[0].data;
    int64_t i, count = 0;
    for (i = 0; i < op->inputs[0].dims[0]; i++) {
        count += x[i] > 0;
    }
    if (op->outputs[0].data != NULL || op->outputs[0].dims[0] != -1) {
        return 4;
    }
    op->outputs[0].dims[0] = onnxc_op_int(op, "wrong", 0) ? -2 : count;
    op->scratch_bytes = (size_t)count * sizeof(float);
    return 0;
}

int32_t test_positive(const onnxc_op *op) {
    const float *x = op->inputs[0].data;
    float *kept = op->scratch;
    int64_t i, count = 0;
    for (i = 0; i < op->inputs[0].dims[0]; i++) {
        if (x[i] > 0) {
            kept[count++] = x[i];
        }
    }
    if (count != op->outputs[0].dims[0] || op->scratch_bytes != (size_t)count * sizeof(float)) {
        return 5;
    }
    if (count > 0) {
        memcpy(op->outputs[0].data, kept, (size_t)count * sizeof(float));
    }
    return 0;
}

/* Each text twice, with `between`; the new texts lie in scratch. */
int32_t test_twice_shapes(onnxc_op *op) {
    const onnxc_string *x = op->inputs[0].data;
    int64_t i;
    size_t between;
    onnxc_op_string(op, "between", &between);
    op->scratch_bytes = 0;
    for (i = 0; i < onnxc_tensor_elements(&op->inputs[0]); i++) {
        op->scratch_bytes += 2 * x[i].size + between;
    }
    return 0;
}

int32_t test_twice(const onnxc_op *op) {
    const onnxc_string *x = op->inputs[0].data;
    onnxc_string *y = op->outputs[0].data;
    char *at = op->scratch;
    int64_t i;
    size_t between;
    const char *text = onnxc_op_string(op, "between", &between);
    for (i = 0; i < onnxc_tensor_elements(&op->inputs[0]); i++) {
        y[i].data = at;
        y[i].size = 2 * x[i].size + between;
        memcpy(at, x[i].data, x[i].size);
        memcpy(at + x[i].size, text, between);
        memcpy(at + x[i].size + between, x[i].data, x[i].size);
        at += y[i].size;
    }
    return 0;
}

/* Fails as its attribute says. */
int32_t test_fail(const onnxc_op *op) {
    return (int32_t)onnxc_op_int(op, "status", 7);
}

/* A node's own work: x - 1, which no exponential is. */
int32_t test_exp_less_one(const onnxc_op *op) {
    const float *x = op->inputs[0].data;
    float *y = op->outputs[0].data;
    int64_t i;
    for (i = 0; i < onnxc_tensor_elements(&op->inputs[0]); i++) {
        y[i] = x[i] - 1;
    }
    return 0;
}

/* The texts in reverse order, those of the input themselves, and a constant for each. */
int32_t test_turn_round(const onnxc_op *op) {
    const onnxc_string *x = op->inputs[0].data;
    onnxc_string *turned = op->outputs[0].data, *constant = op->outputs[1].data;
    int64_t n = onnxc_tensor_elements(&op->inputs[0]), i;
    for (i = 0; i < n; i++) {
        turned[i] = x[n - 1 - i];
        constant[i].data = "=";
        constant[i].size = 1;
    }
    return 0;
}

/* Elements of 16 or 32 bits with the other sign. */
int32_t test_negate(const onnxc_op *op) {
    const onnxc_tensor *x = &op->inputs[0], *y = &op->outputs[0];
    int64_t n = onnxc_tensor_elements(x), i;
    if (x->dtype != y->dtype) {
        return 6;
    }
    switch (x->dtype) {
    case ONNXC_FLOAT16:
    case ONNXC_BFLOAT16:
        if (x->bytes != 2 * (size_t)n) {
            return 7;
        }
        for (i = 0; i < n; i++) {
            ((uint16_t *)y->data)[i] = (uint16_t)(((const uint16_t *)x->data)[i] ^ 0x8000);
        }
        return 0;
    case ONNXC_FLOAT:
        for (i = 0; i < n; i++) {
            ((float *)y->data)[i] = -((const float *)x->data)[i];
        }
        return 0;
    default:
        return 8;
    }
}

/* What the functions for lists give: floats, one behind the last, how many texts, the last one's size and first character, and what
 * there is of an attribute of another kind. */
int32_t test_lists(const onnxc_op *op) {
    float *y = op->outputs[0].data;
    size_t texts = onnxc_op_count(op, "texts", ONNXC_ATTRIBUTE_STRINGS), size;
    const char *last = onnxc_op_string_at(op, "texts", texts - 1, &size);
    if (op->outputs[0].dims[0] != 8) {
        return 9;
    }
    y[0] = (float)onnxc_op_float_at(op, "floats", 0);
    y[1] = (float)onnxc_op_float_at(op, "floats", 1);
    y[2] = (float)onnxc_op_float_at(op, "floats", 2);
    y[3] = (float)texts;
    y[4] = (float)size;
    y[5] = (float)last[0];
    y[6] = (float)onnxc_op_int(op, "floats", -1);
    y[7] = onnxc_op_string_at(op, "texts", texts, NULL) == NULL && onnxc_op_string(op, "texts", &size) == NULL && size == 0;
    return 0;
}

/* Sets the flag that cancels the run. */
int32_t test_cancel(const onnxc_op *op) {
    if (op->options->cancel == NULL) {
        return 10;
    }
    *(volatile int32_t *)(uintptr_t)op->options->cancel = 1;
    return test_negate(op);
}
