"""Dims that follow from symbols, such as `batch*2 + floordiv(length, 4)`: their text evaluated.

The grammar is that of the compiler: sums of products of symbols, whole numbers and calls of `floordiv`, `mod`, `min`, `max`
and `broadcast` (the size of two that are equal, or the other one if one is 1) of two dims. A symbol's name may be any text, so the
longest name that fits is taken.
"""

from collections.abc import Callable, Mapping

_CALLS: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": lambda a, b: min(a, b),
    "max": lambda a, b: max(a, b),
    "broadcast": lambda a, b: 0 if min(a, b) <= 0 else max(a, b),
}


class _Reader:
    def __init__(self, text: str, values: Mapping[str, int]) -> None:
        self.text = text
        self.at = 0
        self.values = values
        self.names = sorted(values, key=len, reverse=True)

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def sum(self) -> int:
        total = -self.product() if self.take("-") else self.product()
        while True:
            if self.take(" + "):
                total += self.product()
            elif self.take(" - "):
                total -= self.product()
            else:
                return total

    def product(self) -> int:
        product = self.factor()
        while self.take("*"):
            product *= self.factor()
        return product

    def factor(self) -> int:
        for name, function in _CALLS.items():
            if self.take(name + "("):
                a = self.sum()
                self.expect(", ")
                b = self.sum()
                self.expect(")")
                return function(a, b)
        for name in self.names:
            if name and self.take(name):
                return self.values[name]
        end = self.at
        while end < len(self.text) and self.text[end].isdigit():
            end += 1
        if end == self.at:
            raise ValueError(f"the dim `{self.text}` cannot be read at character {self.at}")
        number = int(self.text[self.at : end])
        self.at = end
        return number

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise ValueError(f"the dim `{self.text}` cannot be read at character {self.at}: no `{token}`")


def evaluate(text: str, values: Mapping[str, int]) -> int:
    """The size that `text` has for these values of the symbols (name to int).

    Raises ValueError where the text cannot be read, and ZeroDivisionError.
    """
    reader = _Reader(text, values)
    size = reader.sum()
    if reader.at != len(text):
        raise ValueError(f"the dim `{text}` cannot be read at character {reader.at}")
    return size
