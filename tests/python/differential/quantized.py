"""Recipes of quantization."""

import numpy as np

import values
from case import Skip
from elementwise import recipe
from shapes import number


def parameters(n, x):
    """Shape of scale and zero point: for all, per axis, or per block."""
    kind = n.integer(0, 2)
    axis = n.axis(x.ndim) if x.ndim and n.has("axis") else None
    if axis is None or kind == 0:
        return ()
    n.attr("axis", axis)
    if kind == 1 or not n.has("block_size"):
        return (x.shape[axis],)
    block = n.integer(1, x.shape[axis])
    n.attr("block_size", block)
    dims = list(x.shape)
    dims[axis] = -(-dims[axis] // block)
    # A block that the axis does not fill is allowed only where the counts say which it is.
    if -(-x.shape[axis] // dims[axis]) != block or x.shape[axis] % block:
        raise Skip("blocks")
    return tuple(dims)


def scales(n, at, dims):
    if n.type(at) == "int32":
        return n.add(n.rng.integers(1, 4, dims).astype(np.int32))
    if n.type(at) == "float8e8m0":
        # What NaN becomes as an integer is open.
        return n.data(dims, 0.1, 3.0, at=at, edge=0)
    return n.add(np.asarray(n.rng.uniform(0.05, 0.7, dims)).astype(n.dtype(at)))


@recipe("QuantizeLinear")
def quantize(n):
    dims = n.shape(1, 3, zeros=False)
    target = n.out_type()
    if n.has("precision"):
        n.maybe("precision", 1, 0.2)
    x = n.shaped(dims, low=-20, high=20, edge=0)
    scales(n, 1, parameters(n, x))
    dims = n.inputs[1][0].shape
    if target == "uint8" and n.chance(0.3) and "output_dtype" not in n.attributes:
        pass
    elif n.has("output_dtype") and n.chance(0.4):
        n.attr("output_dtype", number(target))
    else:
        zero_point(n, 2, dims)
    if target.startswith(("float8", "float6")):
        n.maybe("saturate", n.integer(0, 1))
    n.ulps = 0


def zero_point(n, at, dims):
    name = n.type(at)
    if name in values.INTEGERS:
        return n.data(dims, -5, 5, at=at)
    return n.add(np.zeros(dims).astype(n.dtype(at)))


@recipe("DequantizeLinear")
def dequantize(n):
    x = n.shaped(n.shape(1, 3, zeros=False), low=-200, high=200)
    scales(n, 1, parameters(n, x))
    dims = n.inputs[1][0].shape
    if n.chance(0.6) and n.type() != "int32":
        zero_point(n, 2, dims)
    if n.has("output_dtype") and (n.chance(0.4) or n.out_type() != n.type(1)):
        n.attr("output_dtype", number(n.out_type()))
    elif n.out_type() != n.type(1):
        raise Skip("types")


@recipe("DynamicQuantizeLinear")
def dynamic_quantize(n):
    n.main(zeros=False, edge=0)
    n.outputs, n.ulps = 3, 4


@recipe("QLinearMatMul")
def quantized_matmul(n):
    n.edge, n.ulps = 0.0, 1
    rows, depth, columns = n.integer(1, 5), n.integer(1, 20), n.integer(1, 9)
    lead = n.shape(0, 1, zeros=False)
    scale = lambda at, most: n.add(np.asarray(n.rng.uniform(0.01, most)).astype(n.dtype(at)))
    n.shaped(lead + (rows, depth), low=-200, high=200)
    scale(1, 0.1)
    zero_point(n, 2, ())
    n.data(lead + (depth, columns), -200, 200, at=3)
    scale(4, 0.1)
    zero_point(n, 5, ())
    scale(6, 1.0)
    zero_point(n, 7, ())
