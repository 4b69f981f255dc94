"""Tensors that stay from run to run."""

import ctypes
import os
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Union

import numpy as np
import numpy.typing as npt

from . import _abi, _memory, _types, _values
from ._errors import InvalidArgument, RunError, near

Array = npt.NDArray[Any]


class State(MutableMapping[str, Array]):
    """Tensors that stay from one run to the next, such as caches of keys and values, in one block of memory.

    `Model.state` makes one from the sizes of symbols, such as `model.state(batch=1, capacity=4096)`; a symbol whose name is not a
    Python identifier is given by `**{"past.capacity": 4096}`, and one that is not given is 0.

    It is a mapping of the inputs that became state to arrays: `state["past"]` is a copy of one, as large as runs have made it, and
    `state["past"] = array` sets it. `update` sets several at once, which those that grow together need.
    """

    def __init__(self, description: _abi.Description, sizes: Mapping[str, int]) -> None:
        if not description.states:
            raise InvalidArgument(f"model `{description.name}` has no state")
        for name in sizes:
            if name not in description.symbols:
                text = f"model `{description.name}` has no symbol `{name}`; {near(name, description.symbols)}"
                raise InvalidArgument(text)
        self._description = description
        self._symbols = (ctypes.c_int64 * max(len(description.symbols), 1))(
            *[sizes.get(name, 0) for name in description.symbols]
        )
        count = description.state_bytes(self._symbols, len(description.symbols))
        if count < 0:
            raise RunError(f"model `{description.name}` has no state for the sizes {dict(sizes)}", -count)
        self._block = _memory.aligned(count)
        self.reset()

    def reset(self) -> None:
        """Makes it empty again."""
        block = self._block
        status = self._description.state_reset(
            block.ctypes.data, len(block), self._symbols, len(self._description.symbols)
        )
        if status != 0:
            raise RunError(f"the state cannot be reset: status {status}", status)

    def clear(self) -> None:
        """The same as `reset`."""
        self.reset()

    @property
    def bytes(self) -> _memory.Block:
        """The whole block as an array of bytes: a copy of it saves the state, and writing that back restores it."""
        return self._block

    def copy(self) -> "State":
        """A state that goes on by itself from here."""
        other = object.__new__(State)
        other._description = self._description
        other._symbols = self._symbols
        other._block = _memory.aligned(len(self._block))
        other._block[:] = self._block
        return other

    def restore(self, saved: "State") -> None:
        """Goes back to what `copy` kept of this state."""
        if saved._description is not self._description or len(saved._block) != len(self._block):
            raise InvalidArgument("the state is of another model, or has other sizes")
        self._block[:] = saved._block

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes all tensors by their names, as `numpy.savez` does, for `load`, `numpy.load` and `onnxc run --restore`."""
        with zipfile.ZipFile(path, "w") as archive:
            for name in self:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, self[name], allow_pickle=False)

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Sets the tensors that a `.npz` file has, of `save`, `numpy.savez` or `onnxc run --save`, and keeps the others. Nothing changes where
        one of them does not fit."""
        values: dict[str, Array] = {}
        with np.load(path, allow_pickle=False) as saved:
            for name in saved.files:
                dtype = _types.numpy_type(self._find(name)[0].port.dtype)
                value = saved[name]
                # NumPy has no names for some types in files.
                raw = value.dtype.kind == "V" and value.dtype.itemsize == dtype.itemsize
                values[name] = value.view(dtype) if raw else value
        self.update(values)

    @property
    def _words(self) -> npt.NDArray[np.int64]:
        return self._block[8 : 8 * (1 + len(self._description.symbols))].view(np.int64)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes that the runs have reached, by the names of their symbols."""
        names = self._description.symbols
        grown = sorted({state.size_symbol for state in self._description.states if state.size_symbol >= 0})
        return {names[symbol]: int(self._words[symbol]) for symbol in grown}

    def truncate(self, name: str, size: int) -> None:
        """Takes back what runs appended beyond a size of the symbol `name`."""
        if name not in self.sizes:
            raise KeyError(f"no size `{name}` that grows; {near(name, self.sizes)}")
        if not 0 <= size <= self.sizes[name]:
            raise ValueError(f"`{name}` is {self.sizes[name]}, it cannot become {size}")
        self._words[self._description.symbols.index(name)] = size

    def __len__(self) -> int:
        return len(self._description.states)

    def __iter__(self) -> Iterator[str]:
        return iter([state.port.name for state in self._description.states])

    def _find(self, name: str) -> tuple[_abi.StateTensor, int]:
        """A tensor, and where it begins in the block."""
        at = (8 * (1 + len(self._description.symbols)) + 63) // 64 * 64
        for state in self._description.states:
            if state.port.name == name:
                return state, at
            at += (self._byte_count(state) + 63) // 64 * 64
        raise KeyError(f"no state `{name}`; {near(name, self)}")

    def _room(self, state: _abi.StateTensor) -> tuple[int, ...]:
        """Its sizes, with the room for what is appended."""
        words = self._words
        return tuple(
            int(words[symbol]) if size is None else size for size, symbol in zip(state.port.dims, state.port.symbols)
        )

    def _byte_count(self, state: _abi.StateTensor) -> int:
        count = _types.numpy_type(state.port.dtype).itemsize
        for axis, size in enumerate(self._room(state)):
            if axis == state.axis and state.panel > 0:
                size = (size + state.panel - 1) // state.panel * state.panel
            count *= size
        return count

    def _view(self, state: _abi.StateTensor, at: int) -> Array:
        """The tensor in the block with all its room: the axes before the one that grows as one, that axis, those behind as one."""
        room = self._room(state)
        axis = max(state.axis, 0)
        sizes = (int(np.prod(room[:axis])), room[axis] if room else 1, int(np.prod(room[axis + 1 :])))
        data = self._block[at : at + self._byte_count(state)].view(_types.numpy_type(state.port.dtype))
        if state.panel <= 0:
            return data.reshape(sizes)
        # Panels of rows, with the elements of a panel's rows side by side.
        panels = (sizes[1] + state.panel - 1) // state.panel
        return data.reshape(sizes[0], panels, sizes[2], state.panel)

    def __getitem__(self, name: str) -> Array:
        state, at = self._find(name)
        view = self._view(state, at)
        room = list(self._room(state))
        count = self._count(state, room)
        if state.panel > 0:
            before, panels, behind, width = view.shape
            view = view.transpose(0, 1, 3, 2).reshape(before, panels * width, behind)
        if state.axis >= 0:
            room[state.axis] = count
        return view[:, :count].reshape(room).copy()

    def _count(self, state: _abi.StateTensor, room: list[int]) -> int:
        """How large it is along its axis."""
        if state.size_symbol >= 0:
            return int(self._words[state.size_symbol])
        return room[max(state.axis, 0)] if room else 1

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def __delitem__(self, name: str) -> None:
        raise TypeError("a state cannot be removed; `reset` makes all of them empty")

    def update(self, *others: Any, **values: Any) -> None:
        """Sets several tensors, from a mapping of names to arrays or tensors. Nothing changes where one of them does not fit.

        States that grow along the same symbol have one size, so that all of them have to be given to change it.
        """
        given: dict[str, Any] = dict(*others, **values)
        words = self._words
        grown: dict[int, int] = {}
        arrays = []
        for name, one in given.items():
            state, at = self._find(name)
            array = _values.array_of(state.port, one)
            room = list(self._room(state))
            size = array.shape[state.axis] if 0 <= state.axis < array.ndim else -1
            if state.size_symbol >= 0 and 0 <= size <= room[state.axis]:
                if grown.setdefault(state.size_symbol, size) != size:
                    symbol = self._description.symbols[state.size_symbol]
                    raise InvalidArgument(f"state `{name}` has {size} along `{symbol}`, others have {grown[state.size_symbol]}")
                room[state.axis] = size
            if list(array.shape) != room:
                most = f" (at most {room[state.axis]} along axis {state.axis})" if state.size_symbol >= 0 else ""
                raise InvalidArgument(f"state `{name}` has the shape {tuple(room)}{most}, not {array.shape}")
            arrays.append((state, at, array))
        for state in self._description.states:
            size = grown.get(state.size_symbol, -1)
            if size >= 0 and state.port.name not in given and size != words[state.size_symbol]:
                symbol = self._description.symbols[state.size_symbol]
                raise InvalidArgument(
                    f"`{symbol}` is {words[state.size_symbol]} and would become {size}; "
                    f"state `{state.port.name}` grows with it: `update` sets all of them at once"
                )
        for state, at, array in arrays:
            view = self._view(state, at)
            before, behind = view.shape[0], view.shape[2]
            rows = array.reshape(before, array.shape[state.axis] if state.axis >= 0 else view.shape[1], behind)
            if state.panel > 0:
                _, panels, _, width = view.shape
                padded = np.zeros((before, panels * width, behind), view.dtype)
                padded[:, : rows.shape[1]] = rows
                view[:] = padded.reshape(before, panels, width, behind).transpose(0, 1, 3, 2)
            else:
                view[:, : rows.shape[1]] = rows
        for symbol_number, size in grown.items():
            words[symbol_number] = size

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"<state of model {self._description.name}: {', '.join(self)}{'; ' if sizes else ''}{sizes}>"

    def __eq__(self, other: object) -> bool:
        # Runs change it, so that it equals nothing but itself.
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def _set_symbols(self, symbols: list[int]) -> None:
        """Gives the symbols that the state decides their values."""
        words = self._words.tolist()
        for state in self._description.states:
            for symbol in [state.size_symbol, *state.port.symbols]:
                if symbol >= 0:
                    symbols[symbol] = words[symbol]

    def _fill(self, tensor: Any, kept: list[Any]) -> None:
        dims = (ctypes.c_int64 * 1)(len(self._block))
        kept.append(dims)
        tensor.data = self._block.ctypes.data
        tensor.bytes = len(self._block)
        tensor.dtype = 2
        tensor.rank = 1
        tensor.dims = ctypes.addressof(dims)
