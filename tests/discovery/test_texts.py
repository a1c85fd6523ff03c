"""Single texts: what they decode to, what their variables become, and what they start.

texts.txt has each text, as JSON behind what is done with it, and the outcome; `UPDATE_FROZEN=1`
writes the outcomes again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bridge.discovery.documents import MalformedError, decode, parse_env_file
from bridge.discovery.self_reference import starts_bridge
from bridge.discovery.variables import UnusableError, Variables, expand

GOLDEN = Path(__file__).with_name("texts.txt")
FILES = {"/conf/key.txt": "key\n", "/home/me/k": "home key", "/abs": "absolute"}
VARIABLES = Variables(
    environ={"A": "va", "EMPTY": "", "NESTED": "${A}", "_x9": "ok"},
    home="/home/me",
    workspace="/home/me/shop",
    directory="/conf",
    inputs={"api-key/2": None, "region": "eu", "blank": ""},
    read=FILES.get,
)


def outcome(what: str, kind: Any, text: Any) -> Iterator[str]:
    """Yield the lines of what comes of a text."""
    try:
        match what:
            case "decode":
                yield json.dumps(decode(text.encode("utf-8", "surrogatepass"), kind), default=str)
            case "expand":
                found = expand(text, VARIABLES, kind)
                yield json.dumps(found.text)
                yield from (f"unset: {name}, emptied: {found.emptied}" for name in found.unset)
                yield from (f"foreign: {text!r} {name!r}" for text, name in found.foreign)
            case "variables":
                yield json.dumps(parse_env_file(text))
            case _:
                yield f"the bridge: {starts_bridge(text[0], text[1:])}"
    except (MalformedError, UnusableError) as error:
        yield f"error: {error}"


def test_what_comes_of_each_text() -> None:
    written = []
    for block in GOLDEN.read_text().strip().split("\n\n"):
        case = block.partition("\n->")[0]
        what, kind, text = case.splitlines()[-1].split(" ", 2)
        lines = [f"-> {line}" for line in outcome(what, json.loads(kind), json.loads(text))]
        written.append("\n".join([case, *lines]))
    found = "\n\n".join(written) + "\n"
    if os.environ.get("UPDATE_FROZEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()
