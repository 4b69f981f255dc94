/* A plugin of qemu-aarch64 (7.2) that counts the instructions of a program by class; aarch64.md describes how it is used. The
 * declarations are those of qemu-plugin.h, which Debian's packages lack. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <inttypes.h>
#include <stdbool.h>
typedef uint64_t qemu_plugin_id_t;
typedef struct qemu_info_t qemu_info_t;
struct qemu_plugin_tb; struct qemu_plugin_insn;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_CB_R_REGS, QEMU_PLUGIN_CB_RW_REGS };
typedef void (*tb_cb)(qemu_plugin_id_t, struct qemu_plugin_tb *);
typedef void (*udata_cb)(qemu_plugin_id_t, void *);
__attribute__((visibility("default"))) int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, tb_cb);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, udata_cb, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, enum qemu_plugin_op, void *, uint64_t);
enum { FMA, DOT, LOADV, LOADPAIR, STOREV, VEC, ADDR, BRANCH, OTHER, N };
static const char *names[N] = {"fma", "dot", "load_vector", "load_pair", "store_vector", "other_vector", "integer", "branch", "other"};
static uint64_t counts[N];
static int class_of(uint32_t w) {
  if ((w & 0xbfa0fc00) == 0x0e20cc00 || (w & 0xbf80f400) == 0x0f801000 || (w & 0xbf80f400) == 0x0f805000 || (w & 0xbfa0fc00) == 0x0ea0cc00) return FMA;
  if ((w & 0x9fe0fc00) == 0x0e809400 || (w & 0x9fc0f400) == 0x0f80e000) return DOT;
  if ((w & 0xfe000000) == 0xac000000) return (w >> 22 & 1) ? LOADPAIR : STOREV;
  if ((w & 0x3f000000) == 0x3d000000 || (w & 0x3f000000) == 0x3c000000) return (w >> 22 & 1) ? LOADV : STOREV;
  if ((w & 0xbf000000) == 0x0d000000 || (w & 0xbf000000) == 0x1c000000) return LOADV;
  if ((w & 0x0e000000) == 0x0e000000) return VEC;
  if ((w & 0x1c000000) == 0x14000000) return BRANCH;
  if ((w & 0x1c000000) == 0x10000000 || (w & 0x0e000000) == 0x0a000000) return ADDR;
  return OTHER;
}
static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
    struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
    uint32_t word; memcpy(&word, qemu_plugin_insn_data(insn), 4);
    qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64, &counts[class_of(word)], 1);
  }
}
static void at_exit(qemu_plugin_id_t id, void *data) {
  uint64_t all = 0;
  for (int i = 0; i < N; i++) all += counts[i];
  fprintf(stderr, "{\"all\": %" PRIu64, all);
  for (int i = 0; i < N; i++) fprintf(stderr, ", \"%s\": %" PRIu64, names[i], counts[i]);
  fprintf(stderr, "}\n");
}
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
