"""A model of some gigabytes as several ranks, each under a limit of its memory: compiles it under another limit, and compares the text with
NumPy's: python large_ranks.py --onnxc ONNXC --runtime LIBONNXC_RUNTIME_SUPPORT.a FOLDER

The model is a decoder with caches and random weights, which are external data. FOLDER takes twice the bytes of the model and is left empty.
"""
import argparse
import pathlib
import re
import resource
import subprocess

import numpy as np
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WIDE, HEADS, INNER = 2048, 16, 8192
# Random numbers that all weights are pieces of: drawing each anew takes longer than the rest.
POOL = np.random.default_rng(7).standard_normal(1 << 24, dtype=np.float32)


def limit(kilobytes):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (kilobytes * 1024, kilobytes * 1024))


def run(command, kilobytes=None, **more):
    result = subprocess.run([str(word) for word in command], preexec_fn=kilobytes and limit(kilobytes),
                            capture_output=True, text=True, check=False, **more)
    if result.returncode != 0:
        raise SystemExit(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result


class Weights:
    """Tensors in a file, and where each is."""

    def __init__(self, path):
        self.path, self.file, self.places, self.protos = path, open(path, "wb"), {}, []

    def add(self, name, rows, columns):
        start = self.file.tell()
        at, left = (start // 4 * 31) % (len(POOL) // 2), rows * columns
        scale = np.float32(0.7 / rows ** 0.5)
        while left > 0:
            piece = POOL[at:at + left]
            (piece * scale).tofile(self.file)
            left -= len(piece)
            at = 0
        self.places[name] = (start, rows, columns)
        proto = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[rows, columns], data_location=TensorProto.EXTERNAL)
        for key, value in [("location", self.path.name), ("offset", start), ("length", rows * columns * 4)]:
            proto.external_data.add(key=key, value=str(value))
        self.protos.append(proto)

    def get(self, name):
        start, rows, columns = self.places[name]
        return np.memmap(self.path, np.float32, "r", start, (rows, columns))


def make(folder, layers, vocabulary):
    weights = Weights(folder / "weights.bin")
    weights.add("table", vocabulary, WIDE)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x0"], "embed")]
    caches, presents = [], []
    cache = lambda name, length: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, HEADS, length, WIDE // HEADS])
    for layer in range(layers):
        own = lambda name: f"{name}{layer}"
        for name in "qkv":
            weights.add(own("w" + name), WIDE, WIDE)
            nodes += [
                helper.make_node("MatMul", [own("x"), own("w" + name)], [own(name + "_p")], own(name + "_product")),
                helper.make_node("Reshape", [own(name + "_p"), "split"], [own(name + "_s")]),
                helper.make_node("Transpose", [own(name + "_s")], [own(name)], perm=[0, 2, 1, 3]),
            ]
        for kind, name in [("key", "k"), ("value", "v")]:
            past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
            nodes.append(helper.make_node("Concat", [past, own(name)], [present], axis=2))
            caches.append(cache(past, "past"))
            presents.append(cache(present, "all"))
        weights.add(own("wo"), WIDE, WIDE)
        weights.add(own("w1"), WIDE, INNER)
        weights.add(own("w2"), INNER, WIDE)
        nodes += [
            helper.make_node("Transpose", [f"present.{layer}.key"], [own("columns")], perm=[0, 1, 3, 2]),
            helper.make_node("MatMul", [own("q"), own("columns")], [own("scores")]),
            helper.make_node("Mul", [own("scores"), "scale"], [own("scaled")]),
            helper.make_node("Softmax", [own("scaled")], [own("shares")], axis=-1),
            helper.make_node("MatMul", [own("shares"), f"present.{layer}.value"], [own("mixed")]),
            helper.make_node("Transpose", [own("mixed")], [own("back")], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [own("back"), "join"], [own("joined")]),
            helper.make_node("MatMul", [own("joined"), own("wo")], [own("o")], own("o_product")),
            helper.make_node("Add", [own("x"), own("o")], [own("r")]),
            helper.make_node("MatMul", [own("r"), own("w1")], [own("h_p")], own("h_product")),
            helper.make_node("Relu", [own("h_p")], [own("h")]),
            helper.make_node("MatMul", [own("h"), own("w2")], [own("m")], own("m_product")),
            helper.make_node("Add", [own("r"), own("m")], [f"s{layer}"]),
            # Keeps numbers near 1 without a layer of weights.
            helper.make_node("Tanh", [f"s{layer}"], [f"x{layer + 1}"]),
        ]
    weights.add("head", WIDE, vocabulary)
    nodes.append(helper.make_node("MatMul", [f"x{layers}", "head"], ["logits"], "head_product"))
    weights.file.close()
    small = [
        helper.make_tensor("split", TensorProto.INT64, [4], [0, 0, HEADS, WIDE // HEADS]),
        helper.make_tensor("join", TensorProto.INT64, [3], [0, 0, WIDE]),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [(WIDE // HEADS) ** -0.5]),
    ]
    graph = helper.make_graph(
        nodes, "large", [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "new"])] + caches,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "new", vocabulary])] + presents,
        small + weights.protos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=11)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return weights


class Reference:
    """The decoder in NumPy, with caches as a program has them."""

    def __init__(self, weights, layers):
        self.weights, self.layers = weights, layers
        self.caches = [[np.zeros((HEADS, 0, WIDE // HEADS), np.float32)] * 2 for _ in range(layers)]

    def feed(self, tokens):
        get = self.weights.get
        x = get("table")[tokens]
        heads = lambda value: value.reshape(len(tokens), HEADS, -1).transpose(1, 0, 2)
        for layer in range(self.layers):
            q, k, v = [heads(x @ get(f"w{name}{layer}")) for name in "qkv"]
            cache = self.caches[layer]
            cache = self.caches[layer] = [np.concatenate(pair, 1) for pair in zip(cache, (k, v))]
            scores = q @ cache[0].transpose(0, 2, 1) * np.float32((WIDE // HEADS) ** -0.5)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            joined = (shares @ cache[1]).transpose(1, 0, 2).reshape(len(tokens), WIDE)
            r = x + joined @ get(f"wo{layer}")
            x = np.tanh(r + np.maximum(r @ get(f"w1{layer}"), 0) @ get(f"w2{layer}"))
        return int(np.argmax(x[-1] @ get("head")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--rank-limit", type=int, default=1300000, help="of a rank, kilobytes of address space")
    parser.add_argument("--compile-limit", type=int, default=6000000, help="of the compiler, kilobytes")
    parser.add_argument("--mpicc", default="mpicc")
    parser.add_argument("--mpirun", default="mpirun --allow-run-as-root --oversubscribe")
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    made = []
    place = lambda name: made.append(args.folder / name) or made[-1]
    try:
        weights = make(args.folder, args.layers, args.vocabulary)
        made += [args.folder / "model.onnx", weights.path]
        size = weights.path.stat().st_size
        print(f"model: {size} bytes of weights")
        sharded = place("sharded.onnx")
        print(run([args.onnxc, "shard", args.folder / "model.onnx", "--tensor-parallel", args.ranks, "-o", sharded],
                  args.compile_limit).stdout.splitlines()[0])
        text = run([args.onnxc, "inspect", sharded, "--configuration", "ranks", "--state", "auto"], args.compile_limit).stdout
        lines = [line for line in text.splitlines() if line.startswith(("rank", "whole", "configuration"))]
        print("\n".join(lines))
        replicated = sum(int(number) for number in re.findall(r"^whole on several ranks: (\d+) bytes", text, re.M))
        for rank in range(args.ranks):
            held = int(re.search(rf"^rank {rank}: (\d+) bytes of weights", text, re.M)[1])
            most = 1.05 / args.ranks * size + replicated
            print(f"rank {rank}: {held} bytes of weights, {held * args.ranks / size:.4f} of a share; most {most:.0f}")
            assert held <= most
        for rank in range(args.ranks):
            library = place(f"rank{rank}.so")
            made.append(library.with_suffix(".h"))
            run([args.onnxc, sharded, "--configuration", "ranks", "--rank", rank, "--state", "auto", "--name", "net", "--mcpu",
                 "native", "-o", library], args.compile_limit)
            print(f"rank {rank}: compiled under {args.compile_limit} kB, {library.stat().st_size} bytes")
        program = place("program")
        support = ROOT / "runtime-support"
        run([args.mpicc, "-std=c11", "-D_GNU_SOURCE", "-O1", "-I", support / "include", "-I", support / "mpi", "-I", HERE.parent / "c",
             HERE.parent / "c" / "ranks_large.c", support / "mpi" / "onnxc_mpi.c", args.runtime, "-lpthread", "-ldl", "-lm", "-o",
             program])
        prompt, more = [5, 77, 1234], 6
        script = f'ulimit -v {args.rank_limit}; exec "$0" "$@"'
        result = run(args.mpirun.split() + ["-n", args.ranks, "sh", "-c", script, program, args.folder, more] + prompt)
        print(result.stderr.strip())
        found = [int(word) for word in result.stdout.split()]
        reference, tokens, fed = Reference(weights, args.layers), list(prompt), 0
        for _ in range(more):
            token = reference.feed(tokens[fed:])
            fed = len(tokens)
            tokens.append(token)
        print("ranks:", found, "NumPy:", tokens)
        assert found == tokens
    finally:
        for path in made:
            path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
