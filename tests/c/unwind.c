/* Steps through runs of a model on Windows, instruction by instruction, and unwinds the stack from each address that it meets
 * for the first time: up to the caller, whose registers must come back as they were. The same model is there for several
 * processors, so that the functions of both back ends are met. Prints how many addresses were tried for each. */
#define _WIN32_WINNT 0x0601
#include <windows.h>

/* The model for the least processor, one with AVX2, one with AVX-512. */
#include "avx2.h"
#include "avx512.h"
#include "least.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t (*predict_fn)(const float *, float *, void *);

/* Calls a function with the numbers below in the registers that are the caller's, and the processor's trap flag set. */
int32_t stepped(predict_fn function, const float *image, float *probabilities, void *workspace);
extern const char stepped_start[], stepped_return[];
/* The stack pointer at the call. */
uint64_t stepped_stack;

__asm__(
    ".text\n"
    ".globl stepped\n.globl stepped_start\n.globl stepped_return\n"
    "stepped:\n"
    "stepped_start:\n"
    " push %rbx\n push %rbp\n push %rsi\n push %rdi\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " sub $0xc8, %rsp\n"
    " movups %xmm6, 0x20(%rsp)\n movups %xmm7, 0x30(%rsp)\n movups %xmm8, 0x40(%rsp)\n"
    " movups %xmm9, 0x50(%rsp)\n movups %xmm10, 0x60(%rsp)\n movups %xmm11, 0x70(%rsp)\n"
    " movups %xmm12, 0x80(%rsp)\n movups %xmm13, 0x90(%rsp)\n movups %xmm14, 0xa0(%rsp)\n"
    " movups %xmm15, 0xb0(%rsp)\n"
    " mov %rsp, stepped_stack(%rip)\n"
    " mov %rcx, %rax\n mov %rdx, %rcx\n mov %r8, %rdx\n mov %r9, %r8\n"
    " mov $1003, %rbx\n mov $1005, %rbp\n mov $1006, %rsi\n mov $1007, %rdi\n"
    " mov $1012, %r12\n mov $1013, %r13\n mov $1014, %r14\n mov $1015, %r15\n"
    " movq %rbx, %xmm6\n movq %rbp, %xmm7\n movq %rsi, %xmm8\n movq %rdi, %xmm9\n movq %r12, %xmm10\n"
    " movq %r13, %xmm11\n movq %r14, %xmm12\n movq %r15, %xmm13\n movq %rbx, %xmm14\n movq %rbp, %xmm15\n"
    " pushfq\n orl $0x100, (%rsp)\n popfq\n"
    " call *%rax\n"
    "stepped_return:\n"
    " movups 0x20(%rsp), %xmm6\n movups 0x30(%rsp), %xmm7\n movups 0x40(%rsp), %xmm8\n"
    " movups 0x50(%rsp), %xmm9\n movups 0x60(%rsp), %xmm10\n movups 0x70(%rsp), %xmm11\n"
    " movups 0x80(%rsp), %xmm12\n movups 0x90(%rsp), %xmm13\n movups 0xa0(%rsp), %xmm14\n"
    " movups 0xb0(%rsp), %xmm15\n"
    " add $0xc8, %rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rdi\n pop %rsi\n pop %rbp\n pop %rbx\n"
    " ret\n");

/* A bit for each byte of the program, from its start on. */
#define SEEN_BYTES (16 << 20)
static unsigned char seen[SEEN_BYTES / 8];
static char *base;
static long tried, without_record;

static void fail(const char *what, uint64_t rip, uint64_t found, uint64_t wanted) {
    printf("at %#llx: %s is %#llx, not %#llx\n", (unsigned long long)(rip - (uint64_t)base), what,
           (unsigned long long)found, (unsigned long long)wanted);
    ExitProcess(1);
}

static void unwind(CONTEXT context) {
    uint64_t rip = context.Rip;
    int depth, at;
    for (depth = 0; context.Rip != (uint64_t)stepped_return; depth++) {
        DWORD64 image, frame;
        void *data;
        RUNTIME_FUNCTION *function = RtlLookupFunctionEntry(context.Rip, &image, NULL);
        if (depth == 16) {
            fail("the return address of the sixteenth caller", rip, context.Rip, (uint64_t)stepped_return);
        }
        if (function == NULL) {
            /* A function that leaves the stack as it is. */
            without_record += depth == 0;
            context.Rip = *(uint64_t *)context.Rsp;
            context.Rsp += 8;
        } else {
            RtlVirtualUnwind(UNW_FLAG_NHANDLER, image, context.Rip, function, &context, &data, &frame, NULL);
        }
    }
    const uint64_t general[][2] = {
        { context.Rbx, 1003 }, { context.Rbp, 1005 }, { context.Rsi, 1006 }, { context.Rdi, 1007 },
        { context.R12, 1012 }, { context.R13, 1013 }, { context.R14, 1014 }, { context.R15, 1015 },
    };
    const M128A vectors[] = { context.Xmm6,  context.Xmm7,  context.Xmm8,  context.Xmm9,  context.Xmm10,
                              context.Xmm11, context.Xmm12, context.Xmm13, context.Xmm14, context.Xmm15 };
    if (context.Rsp != stepped_stack) {
        fail("the caller's stack pointer", rip, context.Rsp, stepped_stack);
    }
    /* Cranelift's functions end with `add $bytes, %rsp; mov %rbp, %rsp; pop %rbp; ret`. At the second one, which cannot fail, what
     * the function saved lies below the stack pointer, and handling this very exception has overwritten it. */
    if (memcmp((const void *)rip, "\x48\x89\xec\x5d\xc3", 5) == 0) {
        return;
    }
    for (at = 0; at < 8; at++) {
        if (general[at][0] != general[at][1]) {
            fail("a register of the caller", rip, general[at][0], general[at][1]);
        }
    }
    for (at = 0; at < 10; at++) {
        if (vectors[at].Low != general[at % 8][1] || vectors[at].High != 0) {
            fail("a vector of the caller", rip, vectors[at].Low, general[at % 8][1]);
        }
    }
}

static LONG CALLBACK step(EXCEPTION_POINTERS *exception) {
    CONTEXT *context = exception->ContextRecord;
    uint64_t at = context->Rip - (uint64_t)base;
    if (exception->ExceptionRecord->ExceptionCode != EXCEPTION_SINGLE_STEP) {
        return EXCEPTION_CONTINUE_SEARCH;
    }
    if (context->Rip == (uint64_t)stepped_return) {
        context->EFlags &= ~0x100u;
        return EXCEPTION_CONTINUE_EXECUTION;
    }
    context->EFlags |= 0x100;
    if (context->Rip >= (uint64_t)stepped_start && context->Rip < (uint64_t)stepped_return) {
        return EXCEPTION_CONTINUE_EXECUTION;
    }
    /* Elsewhere is the C library. */
    if (at < SEEN_BYTES && !(seen[at / 8] >> at % 8 & 1)) {
        seen[at / 8] |= (unsigned char)(1 << at % 8);
        tried++;
        unwind(*context);
    }
    return EXCEPTION_CONTINUE_EXECUTION;
}

int main(void) {
    static float image[64], probabilities[10];
    static unsigned char memory[(1 << 20) + 64];
    const struct {
        const char *name;
        predict_fn predict;
        int there;
    } versions[] = {
        { "least", least_predict, 1 },
        { "avx2", avx2_predict, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") },
        { "avx512", avx512_predict, __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") },
    };
    size_t at;
    /* Unbuffered, so that the output before a crash is seen. */
    setvbuf(stdout, NULL, _IONBF, 0);
    base = (char *)GetModuleHandle(NULL);
    AddVectoredExceptionHandler(1, step);
    for (at = 0; at < sizeof versions / sizeof *versions; at++) {
        void *workspace = (void *)(((uintptr_t)memory + 63) / 64 * 64);
        int32_t status;
        if (!versions[at].there) {
            continue;
        }
        tried = without_record = 0;
        status = stepped(versions[at].predict, image, probabilities, workspace);
        if (status != 0) {
            printf("%s: status %d\n", versions[at].name, (int)status);
            return 1;
        }
        printf("%s %ld %ld\n", versions[at].name, tried, without_record);
    }
    return 0;
}
