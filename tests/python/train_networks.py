"""Networks whose training is measured (train_bench.py) and compared (curves.py) beside PyTorch, and their inputs."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, sizes=(784, 512, 256, 10)):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c, self.d = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.f, self.g = nn.Linear(64 * 49, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.c(x)), 2)
        x = F.max_pool2d(torch.relu(self.d(x)), 2)
        return self.g(torch.relu(self.f(x.flatten(1))))


class Inverted(nn.Module):
    """An inverted residual of MobileNetV2: wider, by channel, narrower."""

    def __init__(self, inputs, outputs, stride, wider):
        super().__init__()
        inner = inputs * wider
        self.passes = stride == 1 and inputs == outputs
        self.a, self.na = nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.b, self.nb = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner)
        self.c, self.nc = nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = F.relu6(self.na(self.a(x)))
        y = F.relu6(self.nb(self.b(y)))
        y = self.nc(self.c(y))
        return x + y if self.passes else y


class Mobile(nn.Module):
    """Like MobileNetV2: `blocks` have channels, repetitions and stride each."""

    def __init__(self, first=16, blocks=((16, 1, 1), (24, 2, 2), (32, 2, 2), (64, 2, 2)), last=256, wider=6, classes=10):
        super().__init__()
        self.stem, self.ns = nn.Conv2d(3, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first)
        layers, inputs = [], first
        for outputs, count, stride in blocks:
            for at in range(count):
                layers.append(Inverted(inputs, outputs, stride if at == 0 else 1, wider))
                inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.last, self.nl = nn.Conv2d(inputs, last, 1, bias=False), nn.BatchNorm2d(last)
        self.f = nn.Linear(last, classes)

    def forward(self, x):
        x = F.relu6(self.ns(self.stem(x)))
        x = F.relu6(self.nl(self.last(self.layers(x))))
        return self.f(x.mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self, inputs=64, hidden=128, classes=10):
        super().__init__()
        self.l, self.f = nn.LSTM(inputs, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.f(self.l(x)[0][-1])


class Block(nn.Module):
    """A layer of a transformer, with its normalizations in front."""

    def __init__(self, width, heads, causal, length):
        super().__init__()
        self.heads = heads
        self.n, self.m = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.p = (nn.Linear(width, width) for _ in range(4))
        self.u, self.w = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        hidden = torch.full((length, length), -1e9).triu(1) if causal else None
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, x):
        n = self.n(x)
        batch, length, width = n.shape
        split = lambda y: y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        q, k, v = split(self.q(n)), split(self.k(n)), split(self.v(n))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        if self.hidden is not None:
            scores = scores + self.hidden
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.p(mixed)
        return x + self.w(F.gelu(self.u(self.m(x))))


class Encoder(nn.Module):
    def __init__(self, words=1000, width=128, heads=4, layers=2, length=64, classes=10):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.layers = nn.Sequential(*(Block(width, heads, False, length) for _ in range(layers)))
        self.o = nn.Linear(width, classes)

    def forward(self, tokens):
        return self.o(self.layers(self.e(tokens)).mean(1))


class Gpt(nn.Module):
    """Gives scores of the next token at each place; tokens are the second axis, as the loss wants classes there."""

    def __init__(self, words=65, width=128, heads=4, layers=4, length=64):
        super().__init__()
        self.e, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Block(width, heads, True, length) for _ in range(layers)))
        self.n, self.o = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, tokens):
        return self.o(self.n(self.layers(self.e(tokens) + self.places))).transpose(1, 2)


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.a, self.na = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.b, self.nb = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = stride != 1 or inputs != outputs
        if self.down:
            self.d, self.nd = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x):
        y = self.nb(self.b(torch.relu(self.na(self.a(x)))))
        return torch.relu(y + (self.nd(self.d(x)) if self.down else x))


class Resnet18(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.stem, self.ns = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Basic(inputs, outputs, stride), Basic(outputs, outputs, 1)]
            inputs = outputs
        self.layers, self.f = nn.Sequential(*layers), nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.ns(self.stem(x))), 3, 2, 1)
        return self.f(self.layers(x).mean((2, 3)))


def images(channels, side):
    return lambda batch: torch.randn(batch, channels, side, side)


def tokens(words, length):
    return lambda batch: torch.randint(0, words, (batch, length))


# Network, its input for a batch, the shape of what is wanted of it, and how many classes there are.
NETWORKS = {
    "mlp": (Mlp, lambda batch: torch.randn(batch, 784), lambda batch: (batch,), 10),
    "cnn": (Cnn, images(1, 28), lambda batch: (batch,), 10),
    "mobilenetv2-like": (Mobile, images(3, 64), lambda batch: (batch,), 10),
    "lstm": (Lstm, lambda batch: torch.randn(32, batch, 64), lambda batch: (batch,), 10),
    "encoder": (Encoder, tokens(1000, 64), lambda batch: (batch,), 10),
    "gpt": (Gpt, tokens(65, 64), lambda batch: (batch, 64), 65),
    "resnet18-64": (Resnet18, images(3, 64), lambda batch: (batch,), 1000),
    "resnet18-224": (Resnet18, images(3, 224), lambda batch: (batch,), 1000),
}


def export(net, x, path):
    """Writes a network as it trains: normalizations take the statistics of the batch."""
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with warnings.catch_warnings():
        # The running statistics are not exported.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, x, path, input_names=["x"], output_names=["y"], opset_version=17, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING, dynamo=False)
    net.load_state_dict(before)
