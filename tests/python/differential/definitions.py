"""Results by the words of the specification, where the reference does something else. Each quotes what it goes by."""

DEFINITIONS = {}
