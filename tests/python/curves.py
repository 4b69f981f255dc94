"""Learning curves beside PyTorch's: the same networks from the same start, on one batch.

curves.py --onnxc ONNXC [--steps 200] [NETWORK ...]: for an MLP, a small CNN, one like MobileNetV2, an LSTM, a transformer encoder and a
tiny GPT, with SGD, Momentum, Adam and AdamW: `onnxc train-graph` writes what trains into the exported network, `onnxc run --train` does the
steps, one for each epoch, and PyTorch does them as well. Prints the largest relative difference of the losses in the first 50 steps and in
all, and the share of the batch that is right in the last step, and fails where the difference in the first 50 is above 1e-3. Needs torch,
onnx and numpy.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import train_networks

FIRST = 50
TOLERANCE = 1e-3


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 32), torch.nn.Linear(32, 4)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.d = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.f = torch.nn.Linear(32, 4)

    def forward(self, x):
        x = torch.nn.functional.avg_pool2d(torch.relu(self.c(x)), 2)
        return self.f(torch.relu(self.d(x)).flatten(1))


class Lstm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.f = torch.nn.LSTM(6, 12, bidirectional=True), torch.nn.Linear(24, 4)

    def forward(self, x):
        return self.f(self.l(x)[0][-1])


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.n = torch.nn.Embedding(11, 8), torch.nn.LayerNorm(8)
        self.q, self.k, self.v = (torch.nn.Linear(8, 8) for _ in range(3))
        self.u, self.w, self.o = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)

    def forward(self, tokens):
        x = self.e(tokens)
        n = self.n(x)
        x = x + torch.softmax(self.q(n) @ self.k(n).transpose(1, 2) / 8**0.5, -1) @ self.v(n)
        x = x + self.w(torch.nn.functional.gelu(self.u(x)))
        return self.o(x.mean(1))


def mobile():
    return train_networks.Mobile(first=4, blocks=((4, 1, 1), (6, 2, 2)), last=16, wider=2, classes=4)


def gpt():
    return train_networks.Gpt(words=11, width=16, heads=2, layers=2, length=8)


# Network, its input. The sequences of the LSTM come first, the batch second.
NETWORKS = {
    "mlp": (Mlp, lambda: torch.randn(16, 8)),
    "cnn": (Cnn, lambda: torch.randn(16, 1, 8, 8)),
    "lstm": (Lstm, lambda: torch.randn(7, 16, 6)),
    "encoder": (Encoder, lambda: torch.randint(0, 11, (16, 6))),
    "mobile": (mobile, lambda: torch.randn(16, 3, 16, 16)),
    "gpt": (gpt, lambda: torch.randint(0, 11, (8, 8))),
}

# ONNX's Adam adds epsilon before it corrects the root's bias, PyTorch behind: with 1e-8 gradients near 0, as those under a normalization of
# a batch, make 4e-3 of the loss within 50 steps.
EPSILON = 1e-12

# Options of train-graph, and PyTorch's optimizer.
OPTIMIZERS = {
    "sgd": (["--learning-rate", "0.05"], lambda p: torch.optim.SGD(p, 0.05)),
    "momentum": (["--learning-rate", "0.02"], lambda p: torch.optim.SGD(p, 0.02, momentum=0.9)),
    "adam": (["--learning-rate", "0.002", "--epsilon", str(EPSILON)], lambda p: torch.optim.Adam(p, 0.002, eps=EPSILON)),
    "adamw": (["--learning-rate", "0.002", "--epsilon", str(EPSILON)],
              lambda p: torch.optim.AdamW(p, 0.002, weight_decay=0.01, eps=EPSILON)),
}


def with_accuracy(path):
    """Has the step give the share of classes that are right before it."""
    model = onnx.load(path)
    algorithm = model.training_info[0].algorithm
    target = next(value.name for value in algorithm.input if value.type.tensor_type.elem_type == TensorProto.INT64)
    algorithm.node.extend([
        helper.make_node("ArgMax", ["y"], ["found"], axis=1, keepdims=0),
        helper.make_node("Equal", ["found", target], ["right"]),
        helper.make_node("Cast", ["right"], ["share"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["share"], ["accuracy"], keepdims=0),
    ])
    algorithm.output.append(helper.make_tensor_value_info("accuracy", TensorProto.FLOAT, []))
    onnx.save(model, path)


def curves(onnxc, folder, name, optimizer, steps):
    torch.manual_seed(3)
    make, draw = NETWORKS[name]
    options, rule = OPTIMIZERS[optimizer]
    net, x = make(), draw()
    with torch.no_grad():
        scores = net.eval()(x)
    labels = torch.randint(0, scores.shape[1], (scores.shape[0], *scores.shape[2:]))
    train_networks.export(net, x, folder / "net.onnx")
    run = lambda *arguments: subprocess.run([onnxc, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
    run("train-graph", "net.onnx", "--loss", "cross-entropy", "--optimizer", optimizer, *options, "-o", "learner.onnx")
    with_accuracy(folder / "learner.onnx")
    data = folder / "data" / "0"
    data.mkdir(parents=True, exist_ok=True)
    for at, tensor in enumerate([x, labels]):
        (data / f"input_{at}.pb").write_bytes(numpy_helper.from_array(tensor.numpy()).SerializeToString())
    text = run("run", "learner.onnx", "--train", "--data", "data", "--epochs", str(steps))
    read = lambda what: [float(found) for found in re.findall(what + r"[ :=]+([-+.0-9e]+)", text)]
    ours, right = read("loss"), read("accuracy")
    theirs, step = [], rule(net.parameters())
    for _ in range(steps):
        step.zero_grad()
        scores = net(x)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        theirs.append(loss.item())
        loss.backward()
        step.step()
    if len(ours) != steps:
        sys.exit(f"{name}, {optimizer}: {len(ours)} losses for {steps} steps:\n{text[:500]}")
    return np.array(ours), np.array(theirs), right[-1], float((scores.argmax(1) == labels).float().mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    # Networks this small are slower on several threads, and much slower on a busy machine.
    torch.set_num_threads(1)
    worst = 0.0
    for name in arguments.networks or NETWORKS:
        for optimizer in OPTIMIZERS:
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs, *accuracies = curves(arguments.onnxc, Path(folder), name, optimizer, arguments.steps)
            differences = np.abs(ours - theirs) / np.abs(theirs)
            worst = max(worst, differences[:FIRST].max())
            print(
                f"{name:8} {optimizer:9} {theirs[0]:.4f} -> {theirs[-1]:.4f}  first {FIRST}: "
                f"{differences[:FIRST].max():.1e}  all: {differences.max():.1e}  "
                f"right: {accuracies[0]:.3f}, PyTorch {accuracies[1]:.3f}", flush=True)
    sys.exit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
