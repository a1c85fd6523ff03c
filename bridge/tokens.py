"""How many tokens a text costs a model, about: the one estimate that everything here uses.

The tokenizer that it follows is o200k_base. Other models' tokenizers differ from it by a tenth or
two; the numbers are for choosing, cutting and comparing, not for bills. Pure.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_PIECE = re.compile(
    r"[^\r\n\w]?(?:[A-Z]*[^\W\d_A-Z]+|[A-Z]+)"
    r"|\d{1,3}"
    r"| ?[^\s\w]+[\r\n/]*"
    r"|_+"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
"""Where the tokenizer cuts a text before it looks anything up: most pieces are one token."""


def _kind(code: int) -> str:
    character = chr(code)
    if code > 127:
        # Most characters that begin so are marks, and most others letters.
        return "p" if code in (0xC2, 0xE2, 0xF0) else "x"
    if character.isalpha():
        return "a" if character.islower() else "A"
    if character.isspace():
        return "n" if character == "\n" else "s"
    return "0" if character.isdigit() else {'"': "q", "'": "q", "_": "x"}.get(character, "p")


_KINDS = "".join(map(_kind, range(256))).encode()
"""Lower or upper case, digit, line end, other space, quote, other mark, anything else."""

_CONTINUED = bytes(range(0x80, 0xC0))  # Bytes after the first of a character beyond ASCII.
_ALIKE = bytes.maketrans(b"Aq", b"ap")  # Letters of either case are alike, and all marks.

_MORE = (
    # A capitalised word right behind a mark, as in rows: ",Paris".
    (b"pAaaa", 1.25),
    (b"qAaaa", 1.25),
    (b"paaaa", 0.25),
    (b"AAAA", 0.5),
)
_MORE_ALIKE = (
    # Long words, rows of spaces and marks.
    (b"a" * 7, 0.12),
    (b"a" * 16, 3.0),
    (b"s" * 64, 1.0),
    (b"pppp", 0.5),
)
"""What makes a piece cost more than one token, and how much more on average."""

_MIXED = re.compile(b"aA{1,3}a?[A0]")
_MIXED_MORE = 1.6  # The same for the mixture that encoded data is.

_MORE_FOREIGN = ((0xC0, 0xE0, 0.1), (0xE0, 0xF0, 0.7), (0xF0, 0x100, 1.5))
"""The same for characters beyond ASCII, by their first bytes: letters, ideographs, pictures."""


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` has: a third of a millisecond for a thousand of them.

    `tests/testdata/tokens.json` has what the tokenizer counts. On prose, rows, digits and code the
    estimate is within a tenth of that; it may miss other languages by a fifth, and random letters.
    """
    found = float(len(_PIECE.findall(text)))
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text):
        for first, last, more in _MORE_FOREIGN:
            found += more * (len(data) - len(data.translate(None, bytes(range(first, last)))))
    classes = data.translate(_KINDS, _CONTINUED)
    found += _MIXED_MORE * len(_MIXED.findall(classes))
    for kind, most in ((classes, _MORE), (classes.translate(_ALIKE), _MORE_ALIKE)):
        for sign, more in most:
            found += more * kind.count(sign)
    return math.ceil(found)


def definition_text(name: str, description: str, input_schema: Mapping[str, Any]) -> str:
    """Return what the model is given of a tool by a client that loads the tool itself.

    Clients write it differently, and none leaves any of it out.
    """
    definition = {"name": name, "description": description, "input_schema": input_schema}
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"), default=str)
