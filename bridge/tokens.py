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

_MORE = (
    # A capitalised word right behind a mark, as in rows: ",Paris".
    (re.compile(r"[^\w\s][A-Z][a-z]{3}"), 1.25),
    (re.compile(r"[^\w\s'\"][a-z]{4}"), 0.25),
    # Long words, rows of spaces and marks, capitals, and the mixture that encoded data is.
    (re.compile(r"[A-Za-z]{7}"), 0.12),
    (re.compile(r"[A-Za-z]{16}"), 3.0),
    (re.compile(r"[^\S\n]{64}"), 1.0),
    (re.compile(r"[^\s\w]{4}"), 0.5),
    (re.compile(r"[A-Z]{4}"), 0.5),
    (re.compile(r"[a-z][A-Z]{1,3}[a-z]?[A-Z0-9]"), 1.6),
)
"""What makes a piece cost more than one token, and how much more on average."""

_MORE_FOREIGN = (
    (re.compile(r"[\u0080-\u07ff]"), 0.1),
    (re.compile(r"[\u0800-\uffff]"), 0.7),
    (re.compile(r"[^\u0000-\uffff]"), 1.5),
)
"""The same for characters beyond ASCII: letters, ideographs, pictures."""


def count_tokens(text: str) -> int:
    """Return about how many tokens `text` has: half a millisecond for a thousand of them.

    `tests/testdata/tokens.json` has what the tokenizer counts. On prose, rows, digits and code the
    estimate is within a tenth of that; it may miss other languages by a fifth, and random letters.
    """
    found = float(len(_PIECE.findall(text)))
    for pattern, more in _MORE if text.isascii() else _MORE + _MORE_FOREIGN:
        found += more * len(pattern.findall(text))
    return math.ceil(found)


def definition_text(name: str, description: str, input_schema: Mapping[str, Any]) -> str:
    """Return what the model is given of a tool by a client that loads the tool itself.

    Clients write it differently, and none leaves any of it out.
    """
    definition = {"name": name, "description": description, "input_schema": input_schema}
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"), default=str)
