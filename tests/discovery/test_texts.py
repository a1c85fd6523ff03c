"""Single texts: their decoding, expansion and detection as the bridge.

texts.txt has the texts as JSON; `UPDATE_FROZEN=1` writes the outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.documents import MalformedError, decode, parse_env_file
from bridge.discovery.precedence import starts_bridge
from bridge.discovery.variables import EMPTYING, Variables, expand
from tests.golden_texts import assert_outcomes

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
    try:
        match what:
            case "decode":
                yield json.dumps(decode(text.encode("utf-8", "surrogatepass"), kind), default=str)
            case "expand":
                found = expand(text, VARIABLES, kind)
                yield json.dumps(found.text)
                yield from (f"unset: {name}, emptied: {kind in EMPTYING}" for name in found.unset)
                yield from (f"foreign: {text!r} {name!r}" for text, name in found.foreign)
            case "variables":
                yield json.dumps(parse_env_file(text))
            case _:
                yield f"the bridge: {starts_bridge(text[0], text[1:])}"
    except MalformedError as error:
        yield f"error: {error}"


def outcomes(lines: list[str]) -> Iterator[str]:
    what, kind, text = lines[-1].split(" ", 2)
    return outcome(what, json.loads(kind), json.loads(text))


def test_what_comes_of_each_text() -> None:
    assert_outcomes(GOLDEN, outcomes)


def test_launchers_are_looked_through_only_so_deep() -> None:
    assert starts_bridge("nohup", ["nohup"] * 5 + ["mcp-code-bridge"])
    assert not starts_bridge("nohup", ["nohup"] * 5000 + ["mcp-code-bridge"])


WORDS = st.sampled_from(
    ["env", "-S", "sh", "-c", "python", "-m", "uv", "run", "--", "-X", "A=1", "bridge", "'", "\n"]
) | st.text(max_size=8)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_no_command_line_makes_the_check_raise(argv: list[str]) -> None:
    assert starts_bridge(argv[0], argv[1:]) in (True, False)
