"""What this processor is, as a text: code compiled for one may not run on another."""

import functools
import os
import platform
import sys

# Lines of /proc/cpuinfo that say what a processor can do, on x86, ARM, RISC-V and s390.
_LINES = {
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "Features",
    "isa",
    "uarch",
    "features",
}


def _linux() -> str:
    found: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            name = name.strip()
            if not name and found:
                break
            if name in _LINES:
                found.setdefault(name, value.strip())
    return "\n".join(f"{name}={value}" for name, value in sorted(found.items()))


def _macos() -> str:
    import ctypes

    library = ctypes.CDLL(None)
    texts = []
    for name in (b"machdep.cpu.brand_string", b"hw.cpufamily", b"hw.cpusubfamily"):
        size = ctypes.c_size_t(256)
        buffer = ctypes.create_string_buffer(256)
        if library.sysctlbyname(name, buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            texts.append(buffer.raw[: size.value].hex())
    return " ".join(texts)


@functools.lru_cache(maxsize=None)
def identity() -> str:
    """System, architecture and features of this processor."""
    what = ""
    try:
        if sys.platform == "linux":
            what = _linux()
        elif sys.platform == "darwin":
            what = _macos()
    except OSError:
        pass
    return "\n".join([sys.platform, platform.machine(), what or os.environ.get("PROCESSOR_IDENTIFIER", platform.processor())])
