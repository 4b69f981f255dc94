"""Learning curves beside PyTorch's: the same networks from the same start, on one batch.

curves.py --onnxc ONNXC [--steps 200]: for an MLP, a small CNN, an LSTM and a transformer encoder, with SGD, Momentum, Adam and AdamW:
`onnxc train-graph` writes what trains into the exported network, `onnxc run --train` does the steps, one for each epoch, and
PyTorch does them as well. Prints the largest relative difference of the losses in the first 50 steps and in all, and fails where
that of the first 50 is above 1e-3. Needs torch, onnx and numpy.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

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


# Network, its input. The sequences of the LSTM come first, the batch second.
NETWORKS = {
    "mlp": (Mlp, lambda: torch.randn(16, 8)),
    "cnn": (Cnn, lambda: torch.randn(16, 1, 8, 8)),
    "lstm": (Lstm, lambda: torch.randn(7, 16, 6)),
    "encoder": (Encoder, lambda: torch.randint(0, 11, (16, 6))),
}

# Options of train-graph, and PyTorch's optimizer.
OPTIMIZERS = {
    "sgd": (["--learning-rate", "0.05"], lambda p: torch.optim.SGD(p, 0.05)),
    "momentum": (["--learning-rate", "0.02"], lambda p: torch.optim.SGD(p, 0.02, momentum=0.9)),
    "adam": (["--learning-rate", "0.002"], lambda p: torch.optim.Adam(p, 0.002)),
    "adamw": (["--learning-rate", "0.002"], lambda p: torch.optim.AdamW(p, 0.002, weight_decay=0.01)),
}


def curves(onnxc, folder, name, optimizer, steps):
    torch.manual_seed(3)
    make, draw = NETWORKS[name]
    options, rule = OPTIMIZERS[optimizer]
    net, x = make(), draw()
    batch = x.shape[1] if name == "lstm" else x.shape[0]
    labels = torch.randint(0, 4, (batch,))
    torch.onnx.export(
        net, x, folder / "net.onnx", input_names=["x"], output_names=["y"], opset_version=13, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING)
    run = lambda *arguments: subprocess.run([onnxc, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
    run("train-graph", "net.onnx", "--loss", "cross-entropy", "--optimizer", optimizer, *options, "-o", "learner.onnx")
    data = folder / "data" / "0"
    data.mkdir(parents=True, exist_ok=True)
    from onnx import numpy_helper

    for at, tensor in enumerate([x, labels]):
        (data / f"input_{at}.pb").write_bytes(numpy_helper.from_array(tensor.numpy()).SerializeToString())
    text = run("run", "learner.onnx", "--train", "--data", "data", "--epochs", str(steps))
    ours = [float(found) for found in re.findall(r"loss[ :=]+([-+.0-9e]+)", text)]
    theirs, step = [], rule(net.parameters())
    for _ in range(steps):
        step.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        theirs.append(float(loss))
        loss.backward()
        step.step()
    if len(ours) != steps:
        sys.exit(f"{name}, {optimizer}: {len(ours)} losses for {steps} steps:\n{text[:500]}")
    return np.array(ours), np.array(theirs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--onnxc", required=True)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    worst = 0.0
    for name in NETWORKS:
        for optimizer in OPTIMIZERS:
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs = curves(arguments.onnxc, Path(folder), name, optimizer, arguments.steps)
            differences = np.abs(ours - theirs) / np.abs(theirs)
            worst = max(worst, differences[:FIRST].max())
            print(
                f"{name:8} {optimizer:9} {theirs[0]:.4f} -> {theirs[-1]:.4f}  first {FIRST}: "
                f"{differences[:FIRST].max():.1e}  all: {differences.max():.1e}", flush=True)
    sys.exit(int(worst > TOLERANCE))


if __name__ == "__main__":
    main()
