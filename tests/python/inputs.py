"""Seeded inputs of an ONNX Runtime session."""
import numpy as np


def seeded(session, seed, size):
    """Ones for masks, small non-negative integers for ids, normal values else. `size(value, axis, dim)` gives a symbolic
    dim its size."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else size(value, axis, dim) for axis, dim in enumerate(value.shape)]
        if "int" in value.type:
            kind = np.int32 if "int32" in value.type else np.int64
            ids = rng.integers(0, 60, size=shape).astype(kind)
            feeds[value.name] = np.ones(shape, kind) if "mask" in value.name else ids
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds
