"""Which methods take the value itself of what a placeholder stands for, and how that is called.

Data for `held`, which has them stop the program.
"""

from __future__ import annotations

BETWEEN = frozenset(("abc", "_py_abc", "typing", "_collections_abc"))
"""Modules through which `isinstance` goes."""

DICT_METHODS = frozenset(
    ("clear", "copy", "items", "keys", "pop", "popitem", "setdefault", "update", "values")
)
"""What results have as methods, so that fields of these names are items only."""

_ARITHMETIC = "sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"

LOOKS = (
    ("tests", "bool"),
    ("compares", "eq ne lt le gt ge"),
    ("uses ... as a key or in a set", "hash"),
    ("takes the length of", "len"),
    ("loops over", "iter reversed aiter"),
    ("looks into", "contains"),
    ("needs ... as a number", "int float complex index round trunc floor ceil"),
    ("needs ... as bytes", "bytes"),
    ("needs ... as a path", "fspath"),
    ("awaits", "await"),
    ("opens", "enter exit aenter aexit"),
    ("changes", "setattr delattr setitem delitem"),
    ("asks for the fields of", "dir"),
    ("calculates with", "neg pos abs invert"),
    ("calculates with", _ARITHMETIC),
    ("calculates with", "r" + _ARITHMETIC.replace(" ", " r")),
)
"""What programs do that takes the value itself, and the methods that Python calls for it."""

TEXT_LOOKS = (
    *LOOKS[1:7],
    ("calculates with", "mod rmod mul rmul"),
    ("takes a part of", "getitem"),
)

TEXT_METHODS = """
    capitalize casefold center count encode endswith expandtabs find format format_map index isalnum
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle
    isupper join ljust lower partition removeprefix removesuffix replace rfind rindex rjust
    rpartition rsplit split splitlines startswith swapcase title translate upper zfill
"""
