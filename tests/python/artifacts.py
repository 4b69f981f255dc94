"""Training artifacts of ONNX Runtime's own tool, and what ONNX Runtime trains with them: the models of tests/artifacts.

artifacts.py FOLDER: writes FOLDER/<network>/training_model.onnx and FOLDER/<network>/run.json, with the parameters that training
begins with, the batches, the options of the optimizer and the losses of 50 steps. Needs torch, onnx and onnxruntime-training.
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime.training import api, artifacts

STEPS = 50


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.n = torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        self.d, self.f = torch.nn.Conv2d(4, 8, 3, stride=2, padding=1), torch.nn.Linear(32, 4)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.n(self.c(x))), 2)
        return self.f(torch.relu(self.d(x)).flatten(1))


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


def write(folder, net, draw, loss, optimizer):
    names = [name for name, _ in net.named_parameters()]
    file = io.BytesIO()
    torch.onnx.export(
        net, draw()[0], file, input_names=["input"], output_names=["output"], opset_version=14, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING, dynamic_axes={"input": {0: "batch"}, "output": {0: "batch"}},
    )
    model = onnx.load_model_from_string(file.getvalue())
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.generate_artifacts(
        model, optimizer=optimizer, loss=loss, requires_grad=names, artifact_directory=str(folder))
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state)
    step = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    step.set_learning_rate(0.01)
    parameters = {
        name: {"shape": list(value.data.shape), "values": value.data.ravel().tolist()} for name, value in state.parameters
    }
    batches = [[tensor.numpy() for tensor in draw()] for _ in range(5)]
    losses = []
    module.train()
    for at in range(STEPS):
        losses.append(float(module(*batches[at % len(batches)])))
        step.step()
        module.lazy_reset_grad()
    optimizer_model = onnx.load(folder / "optimizer_model.onnx")
    node = optimizer_model.graph.node[0]
    run = {
        "optimizer": node.op_type,
        "attributes": {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
        "learning_rate": step.get_learning_rate(),
        "parameters": parameters,
        "batches": [
            [{"shape": list(t.shape), "type": str(t.dtype), "values": t.ravel().tolist()} for t in batch] for batch in batches
        ],
        "losses": losses,
    }
    (folder / "run.json").write_text(json.dumps(run))
    for other in ["checkpoint", "eval_model.onnx", "optimizer_model.onnx"]:
        (folder / other).unlink()
    print(folder.name, losses[0], losses[-1])


def main():
    torch.manual_seed(0)
    root = Path(sys.argv[1])
    classes = lambda: torch.randint(0, 4, (5,))
    kinds, rules = artifacts.LossType, artifacts.OptimType
    write(root / "mlp", Mlp(), lambda: (torch.randn(5, 8), classes()), kinds.CrossEntropyLoss, rules.AdamW)
    write(root / "cnn", Cnn(), lambda: (torch.randn(5, 1, 8, 8), classes()), kinds.CrossEntropyLoss, rules.SGD)
    write(root / "encoder", Encoder(), lambda: (torch.randint(0, 11, (5, 6)), torch.randn(5, 4)), kinds.MSELoss, rules.AdamW)
    write(root / "bce", Mlp(), lambda: (torch.randn(5, 8), torch.rand(5, 4)), kinds.BCEWithLogitsLoss, rules.AdamW)


if __name__ == "__main__":
    main()
