"""What a text costs a model: counted by a real tokenizer where there is one, else estimated.

Owns the choice between the two, made once per process, so that the same installation always gives
the same number. Neither ever touches the network: `tiktoken` fetches the table it needs when it
has none, so it is asked only if the table lies in its cache already, and is the right one.

The tokenizer is o200k_base. Other models' tokenizers differ from it by a tenth or two on such
texts; the numbers are for choosing and comparing, not for bills.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from bridge.model import Json
from bridge.settings.places import token_table_directory

ENCODING = "o200k_base"
ESTIMATE = "estimate"

_TABLE_NAME = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""What tiktoken calls the table in its cache: the SHA-1 of the address it comes from."""

_TABLE_DIGEST = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of the table. One that differs tiktoken would delete, and fetch anew."""

_TABLE_BYTES = 3_613_922
"""Size of the table; whatever is of another size need not be read."""

_PIECE = re.compile(
    r"[^\r\n0-9A-Za-z\x80-\U0010ffff]?(?:[A-Z]*[a-z]+|[A-Z]+)"
    r"|[0-9]{1,3}"
    r"|[^\x00-\x7f]+"
    r"| ?[!-/:-@\[-`{-~]+[\r\n/]*"
    r"|\s*[\r\n]+"
    r"|\s+"
    r"|."
    , re.DOTALL,
)  # fmt: skip
"""Where the tokenizer cuts a text before it looks anything up: most pieces are one token."""

_TOKENS_PER_WORD = 1.07
"""Of up to ten letters, with the mark or space before it."""

_LONG_PIECE = 10
_TOKENS_PER_FURTHER_LETTER = 0.3


class _Encoding(Protocol):
    def encode_ordinary(self, text: str) -> list[int]: ...


def count_tokens(text: str) -> int:
    """Return how many tokens `text` has.

    The estimate was fitted to the tool listings of seven servers, the descriptions made from them,
    and pages and modules of this project, 250 to 3,000 tokens each: it is between 3 % below and
    11 % above the true number there. It counts other scripts too high (Russian twice, Chinese half
    as much again), and random letters, which no server writes, too low by up to three quarters.

    The first count with a real tokenizer takes half a second, to read its table.
    """
    encoding = _encoding()
    return estimate(text) if encoding is None else len(encoding.encode_ordinary(text))


def tokenizer_name() -> str:
    """Return what counts: "o200k_base" or "estimate"."""
    return ESTIMATE if _encoding() is None else ENCODING


def definition_text(name: str, description: str, input_schema: Mapping[str, Json]) -> str:
    """Return what the model is given of a tool by a client that loads the tool itself.

    Clients write it differently, and none leaves any of it out.
    """
    definition = {"name": name, "description": description, "input_schema": input_schema}
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":"), default=str)


def estimate(text: str) -> int:
    """Return about how many tokens `text` has; see `count_tokens`."""
    total = 0.0
    for piece in _PIECE.findall(text):
        if not piece.isascii():
            total += max(1.0, sum(map(_foreign, piece)))
        elif piece[-1].isalpha():
            further = max(0, len(piece) - _LONG_PIECE)
            total += _TOKENS_PER_WORD + further * _TOKENS_PER_FURTHER_LETTER
        else:
            # Digits and spaces are one token; in rows of marks two are.
            marks = 0 if piece.isspace() or piece.isdigit() else len(piece.rstrip("\r\n"))
            total += max(1.0, (marks - 1) / 2)
    return math.ceil(total)


def _foreign(character: str) -> float:
    """Return what one character costs that is not ASCII: letters, ideographs, pictures."""
    return 0.4 if character < "\u0800" else 1.0 if character < "\U00010000" else 2.0


@lru_cache(maxsize=1)
def _encoding() -> _Encoding | None:
    """Return the real tokenizer if it is installed and complete."""
    directory = token_table_directory()
    if directory is None or not _has_table(directory / _TABLE_NAME):
        return None
    try:
        # Not a dependency; and loading it takes as long as the rest of the start.
        import tiktoken

        return tiktoken.get_encoding(ENCODING)
    except Exception:
        # Whatever is wrong with somebody's installation, there is the estimate.
        return None


def _has_table(path: Path) -> bool:
    try:
        if path.stat().st_size != _TABLE_BYTES:
            return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == _TABLE_DIGEST
    except OSError:
        return False
