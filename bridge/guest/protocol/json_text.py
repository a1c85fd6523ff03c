"""Reads and writes JSON with the C code of the `json` module, without importing that module.

`json` needs `re`, and importing both takes as long as Python's start: every sandbox would wait.
"""

from __future__ import annotations

import _json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, NoReturn

_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class _Decoder:
    """The options that the C code of `json` reads."""

    strict = True
    object_hook: Any = None
    object_pairs_hook = None
    parse_float: Any = float
    parse_int: Any = int
    parse_constant: Any = _CONSTANTS.__getitem__

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)
        self._scan = _json.make_scanner(self)  # type: ignore[arg-type]

    def decode(self, text: str) -> Any:
        text = text.strip(" \t\n\r")
        try:
            value, end = self._scan(text, 0)
        except StopIteration as error:
            raise ValueError("there is no value at character %d" % error.value) from None
        except SystemError:
            # Until Python 3.13 it takes its exception from here, and has none otherwise.
            import json.decoder  # noqa: F401

            value, end = self._scan(text, 0)
        if end != len(text):
            raise ValueError("there is more after the value, at character %d" % end)
        return value


def decoder(**options: Any) -> "Callable[[str], Any]":
    """Return a function that parses JSON and raises ValueError; options of `json.JSONDecoder`."""
    return _Decoder(**options).decode


def encoder(ascii_only: bool = False, **options: Any) -> "Callable[[Any], str]":
    """Return a function that writes compact JSON; a cycle raises RecursionError.

    It raises ValueError for numbers, and TypeError for types, that JSON does not have. Options are
    `sort_keys` and `allow_nan`, as those of `json.JSONEncoder`; both are off.
    """
    text = _json.encode_basestring_ascii if ascii_only else _json.encode_basestring
    chosen = options.get("sort_keys", False), False, options.get("allow_nan", False)
    write = _json.make_encoder(None, _refuse, text, None, ":", ",", *chosen)
    return lambda value: "".join(write(value, 0))


def _refuse(value: Any) -> "NoReturn":
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)
