"""Memory of runs: aligned blocks, texts, and an allocator for sizes that only the data decides. All of it is NumPy's."""

import ctypes
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from . import _abi

Block = npt.NDArray[np.uint8]

# `onnxc_string`: address and length.
_TEXT = np.dtype([("data", np.uintp), ("size", np.uintp)])


def aligned(count: int, alignment: int = _abi.ALIGNMENT) -> Block:
    """`count` bytes at a multiple of `alignment`, with any contents."""
    memory = np.empty(count + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return memory[start : start + count]


class _Heap:
    """`allocate` and `release` of the options of all runs: address to array."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self.allocate = _abi.ALLOCATE(self._allocate)
        self.release = _abi.RELEASE(self._release)

    def _allocate(self, _allocator: int, count: int, alignment: int) -> Optional[int]:
        try:
            block = aligned(count, alignment)
        except MemoryError:
            return None
        address = block.ctypes.data
        self._blocks[address] = block
        return address

    def _release(self, _allocator: int, memory: int, _count: int, _alignment: int) -> None:
        self._blocks.pop(memory, None)

    def block_with(self, address: int) -> Optional[Block]:
        """The block that an address lies in, if one does."""
        for block in list(self._blocks.values()):
            if 0 <= address - block.ctypes.data < len(block):
                return block
        return None

    def take(self, address: int) -> Block:
        """What a run left at an address; no bytes where it left nothing."""
        return self._blocks.pop(address, NOTHING)


NOTHING = np.empty(0, np.uint8)
HEAP = _Heap()


def texts_in(array: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Block]:
    """The elements of an array of texts as the C ABI has them, and what keeps their bytes.

    Raises TypeError for an element that is not a text.
    """
    pieces: list[bytes] = []
    for text in array.reshape(-1).tolist():
        if isinstance(text, str):
            pieces.append(text.encode("utf-8"))
        elif isinstance(text, bytes):
            pieces.append(text)
        else:
            raise TypeError(f"{text!r} is not a text")
    joined = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
    records = np.zeros(len(pieces), _TEXT)
    sizes = np.fromiter(map(len, pieces), np.uintp, len(pieces))
    records["size"] = sizes
    records["data"] = joined.ctypes.data + (np.cumsum(sizes) - sizes)
    return records, joined


def texts_out(address: int, shape: Sequence[int]) -> npt.NDArray[np.object_]:
    """An array of `str` of this shape from elements of the C ABI at an address."""
    count = int(np.prod(shape, dtype=np.int64))
    array = np.empty(count, object)
    if count:
        raw = memoryview((ctypes.c_uint8 * (count * _TEXT.itemsize)).from_address(address))
        for at, (data, size) in enumerate(np.frombuffer(raw, _TEXT).tolist()):
            array[at] = ctypes.string_at(data, size).decode("utf-8", "replace") if size else ""
    return array.reshape(shape)
