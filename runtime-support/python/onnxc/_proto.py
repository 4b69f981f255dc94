"""What an ONNX file says of itself, read from its bytes: the fields around the graph, which are few."""

from collections.abc import Iterator
from typing import Union

Content = Union[bytes, memoryview]


def _number(data: Content, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number does not end")


def _fields(data: Content) -> Iterator[tuple[int, Union[int, Content]]]:
    """Number and value of each field of a message."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _number(data, at)
            yield tag >> 3, value
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = _number(data, at)
            if size > end - at:
                raise ValueError("a field does not end")
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError("a field of an unknown kind")


def _text(value: Union[int, Content]) -> str:
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


class Description:
    """The fields of `onnx.ModelProto` around the code."""

    def __init__(self, data: Content) -> None:
        self.producer_name = self.producer_version = self.domain = self.doc_string = ""
        self.graph_name = self.graph_doc_string = ""
        self.model_version = 0
        self.properties: dict[str, str] = {}
        try:
            self._read(memoryview(data))
        except (IndexError, ValueError):
            # The compiler took the file, and yet a part of it is odd: what was read before stays.
            pass

    def _read(self, data: memoryview) -> None:
        for number, value in _fields(data):
            if number == 2:
                self.producer_name = _text(value)
            elif number == 3:
                self.producer_version = _text(value)
            elif number == 4:
                self.domain = _text(value)
            elif number == 5 and isinstance(value, int):
                self.model_version = value - (1 << 64) if value >= 1 << 63 else value
            elif number == 6:
                self.doc_string = _text(value)
            elif number == 14 and not isinstance(value, int):
                pair = {key: _text(text) for key, text in _fields(value)}
                self.properties[pair.get(1, "")] = pair.get(2, "")
            elif number == 7 and not isinstance(value, int):
                for inner, text in _fields(value):
                    if inner == 2:
                        self.graph_name = _text(text)
                    elif inner == 10:
                        self.graph_doc_string = _text(text)
