"""The process that compiles and runs models, and what it says."""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import subprocess
import time

import numpy as np
from onnx import TensorProto, numpy_helper

import items

#: Seconds of the processor that one step, a compilation or two runs, may take: a thousand times what one takes, as machines and what
#: runs beside differ. A process that rests hangs after a longer time by the clock.
STEP_SECONDS, REST_SECONDS = 120, 45 * 60
#: Seconds between two looks at the time of the processor.
LOOK_SECONDS = 1
TICKS = os.sysconf("SC_CLK_TCK")
MOST_MEMORY = 6 << 30
#: Of Linux's prctl: the signal when the parent ends.
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def confine():
    """Limits the memory of this process, and ends it with its parent, regardless of what it computes then."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Worker:
    def __init__(self, program, **environment):
        self.program, self.environment, self.process = program, environment, None

    def start(self):
        environment = dict(os.environ, RAYON_NUM_THREADS="1", **self.environment)
        self.process = subprocess.Popen(
            [self.program, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env=environment, preexec_fn=confine)

    def stop(self):
        """Ends the process; returns how it ended."""
        process, self.process = self.process, None
        process.kill()
        _, text = process.communicate()
        return process.returncode, text.decode(errors="replace")[-300:]

    def ask(self, model, ways, sets):
        """What each way gives for the sets it names; a text if the process did not live to say so."""
        if self.process is None:
            self.start()
        tensors = [[numpy_helper.from_array(array, name).SerializeToString()
                    for name, value in one for array in items.packed(value)] for one in sets]
        header = {"model": len(model), "ways": ways, "sets": [[len(data) for data in one] for one in tensors]}
        text = json.dumps(header).encode()
        blob = model + b"".join(data for one in tensors for data in one)
        at = "being asked"
        try:
            self.process.stdin.write(struct.pack("<II", len(text), len(blob)) + text + blob)
            while True:
                reply, blob = self.frame()
                if "at" not in reply:
                    return parsed(reply, blob)
                at = reply["at"]
        except TimeoutError:
            self.stop()
            return f"hang: {at}"
        except (EOFError, BrokenPipeError):
            self.process.wait()
            code, text = self.stop()
            return f"crash: {at}: {'signal ' + str(-code) if code < 0 else 'code ' + str(code)} {text.strip()}"

    def frame(self):
        first, second = struct.unpack("<II", self.read(8))
        return json.loads(self.read(first)), self.read(second)

    def busy(self):
        """Seconds of the processor that the process and its children have had."""
        stat = open(f"/proc/{self.process.pid}/stat").read()
        # Behind the program's name: its own time and that of children that have ended, of user and system each.
        return sum(map(int, stat[stat.rindex(")") + 1:].split()[11:15])) / TICKS

    def wait(self):
        """Waits for output; fails where the process hangs."""
        start, most = time.monotonic(), self.busy() + STEP_SECONDS
        while not select.select([self.process.stdout], [], [], LOOK_SECONDS)[0]:
            if self.busy() > most or time.monotonic() - start > REST_SECONDS:
                raise TimeoutError

    def read(self, count):
        parts = []
        while count:
            self.wait()
            part = os.read(self.process.stdout.fileno(), min(count, 1 << 20))
            if not part:
                raise EOFError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def parsed(reply, blob):
    """The reply with arrays for the bytes of outputs."""
    at = 0
    for way in reply["ways"]:
        for run in way["runs"]:
            arrays = []
            for kind, dims, count in run.get("outputs", []):
                data = blob[at:at + count]
                at += count
                if kind == TensorProto.STRING:
                    arrays.append(np.array(texts(data), object).reshape(dims))
                else:
                    arrays.append(numpy_helper.to_array(TensorProto(data_type=kind, dims=dims, raw_data=data)))
            if "outputs" in run:
                run["outputs"] = arrays
    return reply["ways"]


def texts(data):
    """Texts, each behind its length."""
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        found.append(data[at + 4:at + 4 + length].decode(errors="surrogateescape"))
        at += 4 + length
    return found


def way(name, cpu, level, sets, width=None, pins=(), exact=False):
    return {"name": name, "cpu": cpu, "level": level, "exact": exact, "width": width, "pins": list(pins), "sets": sets}
