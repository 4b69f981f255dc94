/* Steps through runs of a model, instruction by instruction, and walks the stack from each address that it meets for the first time, as
 * debuggers, crash handlers and profilers do: up to the caller of the model, whose frame must be where it is. The same model is there for
 * several processors, so that the functions of both back ends are met. Prints the number of addresses of each, and of those in
 * epilogues, which have no rules. */
#define _GNU_SOURCE
#include "avx2.h"
#include "avx512.h"
#include "least.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

typedef int32_t (*predict_fn)(const float *, float *, void *);

extern const unsigned char __executable_start[], etext[];
/* A bit for each byte of the program. */
static unsigned char seen[4 << 20];
static long tried, in_epilogues, lost;
/* Whether steps are taken, and the frame of who calls the model. */
static volatile sig_atomic_t stepping;
static uintptr_t caller_frame;

static int32_t call(predict_fn predict, const float *image, float *probabilities, void *workspace)
    __attribute__((noinline, noclone));

struct walk {
    int depth, in_call, found;
};

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *data) {
    struct walk *walk = data;
    /* The frame of a function is known once its caller is found. */
    if (walk->in_call) {
        walk->found = _Unwind_GetCFA(context) == caller_frame;
        return _URC_END_OF_STACK;
    }
    walk->in_call = _Unwind_GetRegionStart(context) == (uintptr_t)call;
    return ++walk->depth == 32 ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* Whether only registers are popped before the function returns. */
static int is_epilogue(const unsigned char *at) {
    for (;;) {
        at += at[0] == 0x41;
        if (at[0] == 0xc3) {
            return 1;
        }
        if (at[0] < 0x58 || at[0] > 0x5f) {
            return 0;
        }
        at++;
    }
}

static void step(int number, siginfo_t *info, void *data) {
    ucontext_t *context = data;
    const unsigned char *at = (const unsigned char *)context->uc_mcontext.gregs[REG_RIP];
    size_t place = (size_t)(at - __executable_start);
    struct walk walk = { 0, 0, 0 };
    (void)number, (void)info;
    if (!stepping) {
        context->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
        return;
    }
    /* Elsewhere is the C library. */
    if (at < __executable_start || at >= etext || (seen[place / 8] >> place % 8 & 1)) {
        return;
    }
    seen[place / 8] |= (unsigned char)(1 << place % 8);
    tried++;
    if (is_epilogue(at)) {
        in_epilogues++;
        return;
    }
    _Unwind_Backtrace(frame, &walk);
    if (!walk.found) {
        lost++;
        printf("lost at %#zx: %02x %02x %02x %02x\n", place, at[0], at[1], at[2], at[3]);
    }
}

static int32_t call(predict_fn predict, const float *image, float *probabilities, void *workspace) {
    int32_t status;
    caller_frame = (uintptr_t)__builtin_dwarf_cfa();
    stepping = 1;
    __asm__ volatile("pushfq\n orl $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    status = predict(image, probabilities, workspace);
    stepping = 0;
    __asm__ volatile("" ::: "memory");
    return status;
}

int main(void) {
    static float image[64], probabilities[10];
    static unsigned char memory[(1 << 20) + 64];
    static unsigned char stack[1 << 18];
    const struct {
        const char *name;
        predict_fn predict;
        int there;
    } versions[] = {
        { "least", least_predict, 1 },
        { "avx2", avx2_predict, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") },
        { "avx512", avx512_predict, __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") },
    };
    struct sigaction action = { 0 };
    stack_t other = { 0 };
    struct walk walk = { 0, 0, 0 };
    size_t version;
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, NULL);
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGTRAP, &action, NULL);
    if ((size_t)(etext - __executable_start) / 8 >= sizeof seen) {
        puts("the program is too large");
        return 1;
    }
    /* The first walk loads what the others use. */
    _Unwind_Backtrace(frame, &walk);
    for (version = 0; version < sizeof versions / sizeof *versions; version++) {
        void *workspace = (void *)(((uintptr_t)memory + 63) / 64 * 64);
        int32_t status;
        if (!versions[version].there) {
            continue;
        }
        tried = in_epilogues = 0;
        status = call(versions[version].predict, image, probabilities, workspace);
        if (status != 0) {
            printf("%s: status %d\n", versions[version].name, (int)status);
            return 1;
        }
        printf("%s %ld %ld\n", versions[version].name, tried, in_epilogues);
    }
    return lost != 0;
}
