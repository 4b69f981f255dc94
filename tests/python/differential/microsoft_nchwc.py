"""Recipes of the domain com.microsoft.nchwc, whose values have their channels in blocks of 16."""

from microsoft_fused import begin, conv_activation
from microsoft import windows
from vendor import floats, recipe

NCHWC = "com.microsoft.nchwc"
BLOCK = 16


def nchwc(*names):
    return recipe(*names, domain=NCHWC)


@nchwc("ReorderInput")
def reorder_input(n):
    begin(n, 0)
    is_last = n.maybe("channels_last", n.integer(0, 1))
    batch, channels, height, width = n.integer(1, 2), 4 * n.integer(1, 10), n.integer(1, 5), n.integer(1, 5)
    floats(n, (batch, height, width, channels) if is_last else (batch, channels, height, width))


@nchwc("ReorderOutput")
def reorder_output(n):
    begin(n, 0)
    n.maybe("channels_last", n.integer(0, 1))
    blocks = n.integer(1, 3)
    n.attr("channels", BLOCK * blocks - n.pick(0, 0, 4, 8, 12, n.integer(0, 15)))
    floats(n, (n.integer(1, 2), BLOCK * blocks, n.integer(1, 5), n.integer(1, 5)))


@nchwc("Conv")
def conv(n):
    begin(n, 64)
    kernel, sizes = windows(n, 2, True)
    batch, filters = n.integer(1, 2), BLOCK * n.integer(1, 2)
    kind = n.pick("dense", "dense", "few", "depthwise", "groups")
    groups, each = 1, BLOCK * n.integer(1, 2)
    if kind == "few":
        each = n.integer(1, 7)
    elif kind == "depthwise":
        groups, each = filters, 1
    elif kind == "groups":
        groups = 2
        filters *= 2
    if groups > 1 or n.chance(0.2):
        n.attr("group", groups)
    n.maybe("kernel_shape", kernel, 0.5)
    floats(n, (batch, groups * each, *sizes), -1, 1)
    floats(n, (filters, each, *kernel), -1, 1, constant=0.8)
    adds = n.chance(0.4)
    if n.chance(0.6):
        floats(n, (filters,), -1, 1, constant=0.8)
    elif adds:
        n.omit()
    conv_activation(n, 0.6)
    if adds:
        from definitions_fused import conv_shape
        floats(n, (batch, filters, *conv_shape(n, sizes, kernel)), -1, 1)


@nchwc("MaxPool", "AveragePool")
def pool(n):
    begin(n, 8)
    kernel, sizes = windows(n, 2, True)
    n.attr("kernel_shape", kernel)
    if n.op == "AveragePool":
        n.maybe("count_include_pad", n.integer(0, 1))
    floats(n, (n.integer(1, 2), BLOCK * n.integer(1, 2), *sizes))


@nchwc("GlobalMaxPool", "GlobalAveragePool")
def global_pool(n):
    begin(n, 8)
    floats(n, (n.integer(1, 2), BLOCK * n.integer(1, 2), n.integer(1, 6), n.integer(1, 6)))


@nchwc("Upsample")
def upsample(n):
    begin(n, 32)
    n.attr("scales", [1, 1, n.integer(1, 3), n.integer(1, 3)])
    if n.chance(0.5):
        n.attr("mode", "linear")
        n.maybe("coordinate_transformation_mode", n.pick("asymmetric", "align_corners", "half_pixel"))
    floats(n, (n.integer(1, 2), BLOCK * n.integer(1, 2), n.integer(2, 5), n.integer(2, 5)))
