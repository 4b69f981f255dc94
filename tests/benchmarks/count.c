/* Runs the model `m` argv[1] times on made-up inputs, its symbols taken for argv[2] or 128; prints sums of the outputs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "m.h"
static uint64_t state = 1;
static double unit(void) { state = state * 6364136223846793005ull + 1442695040888963407ull; return (double)(state >> 40) / (1 << 24); }
int main(int argc, char **argv) {
  int runs = atoi(argv[1]); int64_t sym = argc > 2 ? atoll(argv[2]) : 128;
  const onnxc_model *model = m_model();
  onnxc_tensor in[64], out[64];
  for (int side = 0; side < 2; side++) {
    int n = side ? M_OUTPUT_COUNT : M_INPUT_COUNT;
    for (int i = 0; i < n; i++) {
      onnxc_value_info v = side ? onnxc_model_output(model, i) : onnxc_model_input(model, i);
      int64_t *dims = malloc(8 * (v.rank + 1)); size_t count = 1;
      for (int d = 0; d < v.rank; d++) { dims[d] = v.dims[d] < 0 ? (d == 0 ? 1 : sym) : v.dims[d]; count *= dims[d]; }
      size_t bytes = count * v.element_bytes; void *data = aligned_alloc(64, (bytes + 127) / 64 * 64);
      for (size_t k = 0; k < count && !side; k++) {
        double u = unit();
        if (v.dtype == ONNXC_FLOAT) ((float *)data)[k] = (float)(u * 2 - 1);
        else if (v.dtype == ONNXC_INT64) ((int64_t *)data)[k] = strstr(v.name, "mask") ? 1 : (int64_t)(u * 1000);
        else memset((char *)data + k * v.element_bytes, (int)(u * 255), v.element_bytes);
      }
      (side ? out : in)[i] = onnxc_make_tensor(data, bytes, v.dtype, v.rank, dims);
    }
  }
  int64_t symbols[16]; for (int i = 0; i < 16; i++) symbols[i] = 1;
  size_t ws = 1ull << 30; void *w = aligned_alloc(64, ws);
  char message[512]; onnxc_options o; memset(&o, 0, sizeof o); o.struct_size = sizeof o; o.message = message; o.message_capacity = sizeof message;
  for (int r = 0; r < runs; r++) {
    int32_t s = m_run(in, M_INPUT_COUNT, out, M_OUTPUT_COUNT, w, ws, &o);
    if (s) { printf("%d %s\n", s, message); return 1; }
  }
  for (int i = 0; i < M_OUTPUT_COUNT && runs; i++) {
    double sum = 0, sq = 0; size_t n = out[i].bytes / 4;
    if (out[i].dtype == ONNXC_FLOAT) for (size_t k = 0; k < n; k++) { float f = ((float *)out[i].data)[k]; sum += f; sq += f * f; }
    printf("%d: %.9g %.9g\n", i, sum, sq);
  }
  return 0;
}
