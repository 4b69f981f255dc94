"""Trains the digit classifier that ships with the examples and exports it: python train.py

Data: the 8x8 handwritten digits of scikit-learn (1,797 images, grey levels 0..16). Output: digits.onnx beside this
script, an input `image` f32[1, 1, 8, 8] with grey levels divided by 16, an output `probabilities` f32[1, 10]; and
sample.h / sample.json, one image of the held-out part with its label.
"""
import json
import pathlib

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = pathlib.Path(__file__).parent
torch.manual_seed(0)

digits = load_digits()
images = (digits.images / 16.0).astype(np.float32)[:, None]
train_x, test_x, train_y, test_y = train_test_split(images, digits.target, test_size=0.25, random_state=0)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
    nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10), nn.Softmax(-1))

optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
x, y = torch.from_numpy(train_x), torch.from_numpy(train_y)
for epoch in range(40):
    for batch in torch.randperm(len(x)).split(64):
        optimizer.zero_grad()
        nn.functional.nll_loss(torch.log(model(x[batch]) + 1e-9), y[batch]).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    right = (model(torch.from_numpy(test_x)).argmax(1).numpy() == test_y).mean()
print(f"held-out accuracy {right:.4f} on {len(test_y)} images")

path = HERE / "digits.onnx"
torch.onnx.export(model, (torch.zeros(1, 1, 8, 8),), str(path), input_names=["image"],
                  output_names=["probabilities"], opset_version=17, dynamo=False, verbose=False)
onnx.checker.check_model(onnx.load(path))

sample, label = test_x[7, 0], int(test_y[7])
rows = ",\n    ".join(", ".join(f"{v:.4f}f" for v in row) for row in sample)
(HERE / "sample.h").write_text(
    "/* One held-out image of the digits data set, written by train.py. */\n"
    f"static const float sample_image[64] = {{\n    {rows}}};\nstatic const int sample_label = {label};\n")
(HERE / "sample.json").write_text(json.dumps({"label": label, "image": [float(f"{v:.4f}") for v in sample.ravel()]}))
