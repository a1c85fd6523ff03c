"""JSON without the `json` module: what that module reads and writes, and it is not imported."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.guest.protocol import json_text

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)

LEAN = (
    "import sys; sys.path.insert(0, sys.argv[1])\n"
    "from bridge.guest.protocol import json_text\n"
    "read = json_text.decoder()\n"
    "assert read('[1, {\"a\": 2.5}]') == [1, {'a': 2.5}]\n"
    "assert not {'json', 're'} & set(sys.modules)\n"
    "for text in sys.argv[2:]:\n"
    "    try:\n"
    "        read(text)\n"
    "    except ValueError:\n"
    "        continue\n"
    "    raise SystemExit('it reads ' + text)\n"
)
BROKEN = ("", " ", "{", '{"a"', '{"a": 1,}', "[1 2]", '"\\x"', '"\n"', "1 1", "tru", "[" * 5 + "]")


@given(VALUES)
def test_it_writes_what_json_writes_and_reads_it_again(value: Any) -> None:
    text = json_text.encoder(ascii_only=True)(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert json_text.decoder()(f" {text}\n") == json.loads(text)
    plain = json_text.encoder()(value)
    assert plain == json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    ordered = json_text.encoder(sort_keys=True, allow_nan=True)([value, math.inf])
    assert ordered == json.dumps(
        [value, math.inf], separators=(",", ":"), ensure_ascii=False, sort_keys=True
    )


@pytest.mark.parametrize("text", BROKEN)
def test_what_json_refuses_is_refused_with_a_value_error(text: str) -> None:
    for read in (json.loads, json_text.decoder()):
        with pytest.raises(ValueError, match="char"):
            read(text)


def test_it_does_not_import_json_and_refuses_the_same_without_it() -> None:
    source = json_text.__file__.partition("/bridge/")[0]
    command = [sys.executable, "-I", "-S", "-c", LEAN, source, *BROKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("value", "kind"), [(float("nan"), ValueError), (object(), TypeError), ({1j: 1}, TypeError)]
)
def test_what_json_does_not_have_is_not_written(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        json_text.encoder()(value)


def test_a_cycle_is_not_written() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(RecursionError):
        json_text.encoder()(cycle)
