"""Models as C on boards of Cortex-M and RV32 that QEMU has: whether they are right, flash, RAM and instructions.

Each model with its first set of test data is compiled by `onnxc --emit c` and gcc into a program without an operating system or a C
library, which runs one inference. Flash is code and constants that the model adds to a program; RAM is workspace, inputs, outputs and the stack of
the run; instructions are those of QEMU (`-icount`), by the board's timer or its counter of instructions.

    python microcontrollers.py --onnxc ONNXC [--board NAME ...] [--emx EMX-ONNX-CGEN] MODEL.onnx ...

With `--emx` the C of that generator is measured beside it on Cortex-M, with its values on the stack: it has them on the heap otherwise.

Debian: gcc-arm-none-eabi, libnewlib-arm-none-eabi, qemu-system-arm; gcc-riscv64-unknown-elf, qemu-system-misc.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper

INCLUDE = pathlib.Path(__file__).resolve().parents[2] / "runtime-support/include"

# Processor, machine of QEMU, target, `--mcpu`, flags of gcc, where code and data lie.
BOARDS = {
    "M3": ("mps2-an385", "thumbv7m-none-eabi", "cortex-m3", ["-mcpu=cortex-m3"], (0x0, 0x20000000)),
    "M4F": ("mps2-an386", "thumbv7em-none-eabi", "cortex-m4", ["-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"], (0x0, 0x20000000)),
    "M7": ("mps2-an500", "thumbv7em-none-eabi", "cortex-m7", ["-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"], (0x0, 0x20000000)),
    "M33": ("mps2-an505", "thumbv8m.main-none-eabi", "cortex-m33", ["-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"], (0x10000000, 0x38000000)),
    "RV32": ("virt", "riscv32imac-unknown-none-elf", "generic-rv32", ["-march=rv32imac", "-mabi=ilp32"], (0x80000000, 0x80800000)),
}

# Prefix of the compiler's tools, flags of all its calls, libraries, emulator.
ARM = ("arm-none-eabi-", ["-mthumb"], ["-lm", "-lc", "-lgcc"], ["qemu-system-arm"])
RISCV = ("riscv64-unknown-elf-", ["-ffreestanding"], ["-lgcc"], ["qemu-system-riscv32", "-bios", "none"])

C_TYPES = {
    np.dtype(np.float32): "float",
    np.dtype(np.float64): "double",
    np.dtype(np.int8): "int8_t",
    np.dtype(np.uint8): "uint8_t",
    np.dtype(np.int32): "int32_t",
    np.dtype(np.int64): "int64_t",
}

LAYOUT = """
MEMORY {
    flash (rx) : ORIGIN = %#x, LENGTH = 4M
    ram (rwx) : ORIGIN = %#x, LENGTH = 2M
}
ENTRY(reset)
SECTIONS {
    .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) *(.srodata*) *(.ARM.ex*) } > flash
    .data : { *(.data*) *(.sdata*) } > ram
    .bss (NOLOAD) : { *(.bss*) *(.sbss*) *(COMMON) } > ram
    stack_end = ORIGIN(ram) + LENGTH(ram);
}
"""

# For compilers without a C library.
STRING = """
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int value, size_t bytes);
"""

# A timer of 24 bits, or a counter of instructions; each tick is the same number of instructions, which a loop of a known number finds.
MAIN = """
#include <stddef.h>
#include <stdint.h>
#include "data.h"

extern unsigned char stack_end[];
void reset(void);
static void stop(void) { for (;;) { } }

#ifdef __riscv
__attribute__((section(".vectors"), used, naked)) void start(void) {
    __asm__ volatile(".option push\\n .option norelax\\n la sp, stack_end\\n .option pop\\n j reset");
}

static int32_t host(int32_t what, const void *with) {
    register int32_t a0 __asm__("a0") = what;
    register const void *a1 __asm__("a1") = with;
    __asm__ volatile(
        ".balign 16\\n .option push\\n .option norvc\\n slli x0, x0, 0x1f\\n ebreak\\n srai x0, x0, 7\\n .option pop"
        : "+r"(a0) : "r"(a1) : "memory"
    );
    return a0;
}

static uint32_t instructions(void) {
    uint32_t now;
    __asm__ volatile(".option push\\n .option arch, +zicsr\\n csrr %0, minstret\\n .option pop" : "=r"(now) :: "memory");
    return now;
}

static uint32_t first;
static void prepare(void) { }
static void begin(void) { first = instructions(); }
static uint32_t end(void) { return instructions() - first; }

__attribute__((noinline)) static void turns(uint32_t count) {
    __asm__ volatile("1: addi %0, %0, -1\\n bnez %0, 1b" : "+r"(count));
}

void *memcpy(void *to, const void *from, size_t bytes) {
    unsigned char *at = to;
    const unsigned char *byte = from;
    while (bytes-- > 0) {
        *at++ = *byte++;
    }
    return to;
}

void *memset(void *to, int value, size_t bytes) {
    unsigned char *at = to;
    while (bytes-- > 0) {
        *at++ = (unsigned char)value;
    }
    return to;
}
#else
static volatile uint32_t rounds;
static void count(void) { rounds++; }

__attribute__((section(".vectors"), used)) static void *const vectors[16] = {
    stack_end, (void *)reset, (void *)stop, (void *)stop, (void *)stop, (void *)stop, (void *)stop,
    0, 0, 0, 0, 0, 0, 0, 0, (void *)count
};

static int32_t host(int32_t what, const void *with) {
    register int32_t r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = with;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

#define REGISTER(at) (*(volatile uint32_t *)(at))

/* All coprocessors, the unit for floats among them. */
static void prepare(void) {
    rounds = 0;
    REGISTER(0xe000ed88) = 0xf << 20;
    __asm__ volatile("dsb\\n isb" ::: "memory");
}

/* It counts down from the most that it holds, again and again. */
static void begin(void) {
    REGISTER(0xe000e010) = 0;
    REGISTER(0xe000e014) = 0xffffff;
    REGISTER(0xe000e018) = 0;
    rounds = 0;
    REGISTER(0xe000e010) = 7;
}

/* Ticks since the beginning. */
static uint32_t end(void) {
    uint32_t now, before;
    do {
        before = rounds;
        now = REGISTER(0xe000e018);
    } while (before != rounds);
    REGISTER(0xe000e010) = 0;
    return before * 0x1000000 + 0xffffff - now;
}

__attribute__((noinline)) static void turns(uint32_t count) {
    __asm__ volatile("1: subs %0, %0, #1\\n bne 1b" : "+l"(count));
}
#endif

static void print(uint32_t number) {
    char text[16];
    int at = 15;
    text[at] = 0;
    text[--at] = ' ';
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number != 0);
    host(4, text + at);
}

#define PAINTED 0x140000

void reset(void) {
    uint32_t loop, run, status = 0, used;
    volatile unsigned char *const bottom = (unsigned char *)__builtin_frame_address(0) - PAINTED;
    prepare();
    begin();
    turns(1000000);
    loop = end();
    for (used = 0; used < PAINTED - 256; used++) {
        bottom[used] = 0xa5;
    }
    begin();
#ifdef MODEL
    CALL;
#endif
    run = end();
    for (used = PAINTED; used > 0 && bottom[PAINTED - used] == 0xa5; used--) { }
    print(status);
    print(loop);
    print(run);
    print(used);
#ifdef MODEL
    for (unsigned at = 0; at < sizeof output / 4; at++) {
        print(((const uint32_t *)output)[at]);
    }
#endif
    host(0x18, (const void *)0x20026);
    stop();
}
"""


def numbers(array):
    """Elements by their bits, so that the compiler reads what numpy has."""
    flat = np.ascontiguousarray(array).ravel()
    if flat.dtype == np.float32:
        return ", ".join(float(value).hex() + "f" for value in flat)
    return ", ".join(str(value) for value in flat)


def load(path):
    """Inputs and outputs of the first set of test data, and the sizes that these have."""
    graph = onnx.load(path, load_external_data=False).graph
    constants = {tensor.name for tensor in graph.initializer}
    folder = path.parent / "test_data_set_0"

    def tensors(kind, values):
        found = []
        for at, value in enumerate(values):
            tensor = onnx.TensorProto()
            tensor.ParseFromString((folder / f"{kind}_{at}.pb").read_bytes())
            found.append((value, numpy_helper.to_array(tensor)))
        return found

    inputs = tensors("input", [value for value in graph.input if value.name not in constants])
    pins = {}
    for value, array in inputs:
        for dim, size in zip(value.type.tensor_type.shape.dim, array.shape):
            if dim.dim_param:
                pins[dim.dim_param] = size
    return [array for _, array in inputs], [array for _, array in tensors("output", graph.output)], pins


def run(command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def size(tools, program):
    """Bytes of code and constants."""
    lines = run([f"{tools}size", "-A", program]).splitlines()
    sections = {words[0]: int(words[1]) for words in map(str.split, lines) if len(words) == 3 and words[1].isdigit()}
    return sections[".text"] + sections.get(".data", 0)


def write(program, path, board, level, pins, folder):
    """C of onnxc; gives the call of the model, and the bytes of its workspace."""
    _, triple, cpu, _, _ = BOARDS[board]
    words = [f"--input-dim={name}={value}" for name, value in pins.items()]
    run([program, path.resolve(), "-q", "-O", level, "--target", triple, "--mcpu", cpu, *words, "-o", folder / "m.c"])
    workspace = int(re.search(r"M_WORKSPACE_BYTES (\d+)", (folder / "m.h").read_text())[1])
    lines = ['#include "m.h"', f"static _Alignas(64) unsigned char workspace[{max(workspace, 1)}];"]
    return lines, "status = (uint32_t)m_predict({}, workspace)", workspace


def write_emx(program, path, board, level, pins, folder):
    """C of emx-onnx-cgen, likewise."""
    words = [f"--input-dim={name}={value}" for name, value in pins.items()]
    inside = ["--large-temp-threshold", "0", "--large-weight-threshold", "0", "--fp32-accumulation-strategy", "simple"]
    run([program, "compile", path.resolve(), folder / "m.c", "--model-name", "m", *inside, *words])
    return ["void m();"], "m({})", 0


def measure(writer, program, path, board, level, folder):
    machine, triple, _, flags, origins = BOARDS[board]
    tools, own, libraries, qemu = RISCV if triple.startswith("riscv") else ARM
    inputs, outputs, pins = load(path)
    declared, call, workspace = writer(program, path, board, level, pins, folder)
    lines, arguments = ["#include <stdint.h>", "#ifdef MODEL", *declared, "#endif"], []
    for at, array in enumerate(inputs):
        lines.append(f"static const {C_TYPES[array.dtype]} input{at}[{max(array.size, 1)}] = {{{numbers(array)}}};")
        arguments.append(f"input{at}")
    if len(outputs) != 1 or outputs[0].dtype != np.float32:
        raise SystemExit(f"{path}: one output of f32 is wanted")
    lines.append(f"static float output[{outputs[0].size}];")
    lines.append(f"#define CALL {call.format(', '.join([*arguments, 'output']))}")
    (folder / "data.h").write_text("\n".join(lines) + "\n")
    (folder / "main.c").write_text(MAIN)
    (folder / "layout.ld").write_text(LAYOUT % origins)
    if tools == RISCV[0]:
        (folder / "string.h").write_text(STRING)
    common = [f"{tools}gcc", *flags, *own, "-I", folder, "-std=gnu99", "-ffunction-sections", "-fdata-sections", "-w", "-I", INCLUDE]
    speed = "-Os" if level == "s" else "-O2"
    link = ["-nostartfiles", "-Wl,--gc-sections", "-nostdlib", "-T", folder / "layout.ld", *libraries]
    run([*common, speed, "-c", folder / "m.c", "-o", folder / "m.o"])
    data = sum(array.nbytes for array in inputs)
    for name, more in (("with", ["-DMODEL", folder / "m.o"]), ("without", [])):
        run([*common, "-O1", *more, folder / "main.c", "-o", folder / name, *link])
    flash = size(tools, folder / "with") - size(tools, folder / "without") - data
    qemu = [*qemu, "-M", machine, "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0"]
    qemu += ["-chardev", "stdio,id=out", "-semihosting-config", "enable=on,target=native,chardev=out"]
    text = run([*qemu, "-kernel", folder / "with"], timeout=600)
    status, loop, ticks, stack, *bits = map(int, text.split())
    if status != 0:
        raise SystemExit(f"{path} on {board}: status {status}")
    got = np.array(bits, np.uint32).view(np.float32)
    np.testing.assert_allclose(got, outputs[0].ravel(), rtol=1e-3, atol=1e-3 * np.abs(outputs[0]).max())
    ram = workspace + data + outputs[0].nbytes + stack
    return flash, ram, workspace, stack, round(ticks * 2_000_000 / loop)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path, metavar="MODEL.onnx")
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--emx")
    parser.add_argument("--board", nargs="+", choices=BOARDS, default=list(BOARDS))
    arguments = parser.parse_args()
    writers = [("onnxc", write, arguments.onnxc)]
    if arguments.emx:
        writers.append(("emx", write_emx, arguments.emx))
    print("| model | C of | processor | -O | flash | RAM | of it workspace | of it stack | instructions |")
    print("|---|---|---|---|--:|--:|--:|--:|--:|")
    for path in arguments.models:
        for board in arguments.board:
            for name, writer, program in writers:
                if name == "emx" and board == "RV32":
                    continue
                for level in ("3", "s"):
                    with tempfile.TemporaryDirectory() as folder:
                        found = measure(writer, program, path, board, level, pathlib.Path(folder))
                    model = path.parent.name if path.stem == "model" else path.stem
                    print("| " + " | ".join([model, name, board, level, *(f"{value:,}" for value in found)]) + " |", flush=True)


main()
