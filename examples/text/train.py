"""Trains the text classifier that ships with the examples and exports it: python train.py

Data: the descriptions of the data sets that scikit-learn ships, cut into sentences, each labelled with the data set
that it is about. Model: word counts weighted by rarity (TfidfVectorizer), then logistic regression. Output: text.onnx
beside this script, an input `line` str[n, 1], outputs `label` str[n], the name of a data set, and `probabilities`
f32[n, 6]; and lines.txt, sentences of the held-out part, each behind the class that ONNX Runtime gives it.
"""
import pathlib
import re
from importlib import resources

import numpy as np
import onnx
import onnxruntime
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

HERE = pathlib.Path(__file__).parent
SETS = ["breast_cancer", "california_housing", "digits", "iris", "twenty_newsgroups", "wine_data"]


def sentences(name):
    text = resources.files("sklearn.datasets.descr").joinpath(f"{name}.rst").read_text()
    text = re.sub(r"\s+", " ", re.sub(r"[^\x20-\x7e\n]|[*`|:=_+>-]{2,}", " ", text))
    pieces = (piece.strip() for piece in re.split(r"(?<=[.;:]) | - ", text))
    return [piece for piece in pieces if len(re.findall("[A-Za-z]{2,}", piece)) >= 4]


lines, labels = [], []
for name in SETS:
    found = sentences(name)
    lines += found
    labels += [name] * len(found)
train_x, test_x, train_y, test_y = train_test_split(
    np.array(lines, dtype=object), np.array(labels, dtype=object), test_size=0.2, random_state=0, stratify=labels)

model = make_pipeline(
    TfidfVectorizer(token_pattern="[a-zA-Z0-9_]+", sublinear_tf=False), LogisticRegression(C=30, max_iter=1000))
model.fit(train_x, train_y)
print(f"held-out accuracy {model.score(test_x, test_y):.4f} on {len(test_y)} of {len(lines)} sentences")

options = {LogisticRegression: {"zipmap": False}}
exported = to_onnx(model, initial_types=[("line", StringTensorType([None, 1]))], options=options, target_opset=17)
exported.graph.name = "text"
for node in exported.graph.node:
    if node.op_type == "StringNormalizer":
        # A locale that every system has; ONNX Runtime asks for that of the United States otherwise.
        node.attribute.append(onnx.helper.make_attribute("locale", "C.UTF-8"))
onnx.checker.check_model(exported)
(HERE / "text.onnx").write_bytes(exported.SerializeToString())
session = onnxruntime.InferenceSession(exported.SerializeToString())
classes = session.run(["label"], {"line": test_x[:, None]})[0]
rows = [f"{label}\t{line}" for line, label in zip(test_x, classes)]
(HERE / "lines.txt").write_text("\n".join(rows) + "\n")
