"""What goes wrong, as exceptions, and words that may have been meant."""

from collections.abc import Iterable


class RunError(Exception):
    """A run failed. `status` is the `onnxc_status` of `onnxc.h`; the message names the tensor and the dimension."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    def __reduce__(self) -> "tuple[type[RunError], tuple[str, int]]":
        return (type(self), (str(self), self.status))


class InvalidArgument(RunError, ValueError, TypeError):
    """An input, output or option of a session is not what the model takes; nothing has run.

    It is a ValueError and a TypeError, so that handlers written for either catch it.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, status)


class UnsupportedOption(ValueError, TypeError, AttributeError):
    """An option that this package does not have, or a value of one that it does not take."""


def near(word: str, known: Iterable[str]) -> str:
    """What to add to a message about an unknown word: the known ones, first the one that may have been meant."""
    import difflib

    words = list(known)
    if not words:
        return "there are none"
    close = difflib.get_close_matches(word, words, 1)
    if not close:
        folded = {one.casefold(): one for one in words}
        close = difflib.get_close_matches(word.casefold(), list(folded), 1)
        close = [folded[one] for one in close]
    listed = ", ".join(f"`{one}`" for one in words[:20]) + (f" and {len(words) - 20} more" if len(words) > 20 else "")
    return f"did you mean `{close[0]}`? There are {listed}" if close else f"there are {listed}"
