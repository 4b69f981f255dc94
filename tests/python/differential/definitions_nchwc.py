"""What operators of com.microsoft.nchwc give: the standard's operators, on channels taken out of their blocks of 16."""

import numpy as np

from definitions_fused import by_channel, conv_activated, convolved, max_pooled, pool_plan
from definitions_microsoft import taps
from reference import modern
from vendor import arrays, attribute, definition, wide

BLOCK = 16


def nchwc(*names):
    return definition(*names, domain="com.microsoft.nchwc")


def plain(x):
    n, c, h, w = x.shape
    return wide(x).reshape(n, c // BLOCK, h, w, BLOCK).transpose(0, 1, 4, 2, 3).reshape(x.shape)


def blocked(y):
    n, c, h, w = y.shape
    return [y.reshape(n, c // BLOCK, BLOCK, h, w).transpose(0, 1, 3, 4, 2).reshape(y.shape).astype(np.float32)]


@nchwc("ReorderInput")
def reorder_input(node):
    x = arrays(node)[0]
    x = np.moveaxis(x, -1, 1) if attribute(node, "channels_last", 0) else x
    return blocked(np.pad(x, [(0, 0), (0, -x.shape[1] % BLOCK), (0, 0), (0, 0)]))


@nchwc("ReorderOutput")
def reorder_output(node):
    y = plain(arrays(node)[0])[:, :attribute(node, "channels")].astype(np.float32)
    return [np.moveaxis(y, 1, -1) if attribute(node, "channels_last", 0) else y]


@nchwc("Conv")
def conv(node):
    x, w, bias, addend = arrays(node)
    filters, each, height, width = w.shape
    groups = attribute(node, "group", 1)
    whole = each >= BLOCK
    if whole:
        parts = wide(w).reshape(filters // BLOCK, each // BLOCK, height, width, BLOCK, BLOCK).transpose(0, 5, 1, 4, 2, 3)
    else:
        parts = wide(w).reshape(filters // BLOCK, each, height, width, BLOCK).transpose(0, 4, 1, 2, 3)
    y = convolved(node, plain(x) if whole or groups > 1 else wide(x), parts.reshape(w.shape), groups)
    if bias is not None:
        y = y + by_channel(bias, 4)
    if addend is not None:
        y = y + plain(addend)
    return blocked(conv_activated(node, y))


@nchwc("MaxPool")
def max_pool(node):
    return blocked(max_pooled(node, plain(arrays(node)[0])))


@nchwc("AveragePool")
def average_pool(node):
    x = plain(arrays(node)[0])
    kernel, strides, dilations, around, out = pool_plan(node, x.shape[2:])
    whole = [(0, 0), (0, 0), *around]
    ones = np.pad(np.ones_like(x), whole, constant_values=attribute(node, "count_include_pad", 0))
    sums, counts = (taps(array, kernel, strides, dilations, out).sum((-1, -2)) for array in (np.pad(x, whole), ones))
    return blocked(sums / counts)


@nchwc("GlobalMaxPool", "GlobalAveragePool")
def global_pool(node):
    x = plain(arrays(node)[0])
    return blocked(x.max((2, 3), keepdims=True) if node.op == "GlobalMaxPool" else x.mean((2, 3), keepdims=True))


@nchwc("Upsample")
def upsample(node):
    x, scales = plain(arrays(node)[0]), attribute(node, "scales")
    if attribute(node, "mode", "nearest") == "nearest":
        return blocked(x.repeat(scales[2], 2).repeat(scales[3], 3))
    how = attribute(node, "coordinate_transformation_mode", "asymmetric")
    sizes = np.array([*x.shape[:2], x.shape[2] * scales[2], x.shape[3] * scales[3]], np.int64)
    given = [x, None, None, sizes]
    return blocked(modern("Resize", given, opset=19, mode="linear", coordinate_transformation_mode=how)[0])
