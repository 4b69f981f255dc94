"""Versions of operators that the reference does not implement, by the words of their schemas: most as a newer version of
the same operator on inputs and attributes rewritten to it."""

DEFINITIONS = {}
