"""What may be a skill, and what its file says of it."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import InvalidRequestError
from bridge.saved_functions.source import (
    Header,
    decode_skill,
    encode_skill,
    named_skills,
    read_code,
    read_skill,
    source_digest,
)

pytestmark = pytest.mark.guarantee("skills")

GOOD = '''\
from __future__ import annotations
import json
from collections import Counter as C
"""A text."""
LIMIT: int = -3
WORDS = ["a", ("b", {"c": None})]
class Line:
    pass
def helper():
    pass
async def f(a, *b: int, c="x", **d) -> dict[str, int]:
    """Say it."""
short = f
'''


def test_a_function_with_what_it_needs_may_be_a_skill() -> None:
    code = read_code(GOOD.replace("\n", "\r\n"), "f")
    assert code.source == GOOD
    assert code.signature == "await f(a, *b: int, c='x', **d) -> dict[str, int]"
    assert code.docstring == "Say it."
    assert read_code("def only(): pass").name == "only"


@pytest.mark.parametrize(
    ("source", "name", "said"),
    [
        (GOOD, "", "defines 2 functions"),
        (GOOD, "g", "defines 'g' 0 times"),
        ("def f(): pass\ndef f(): pass", "f", "defines 'f' 2 times"),
        ("class f: pass", "f", "defines 'f' 0 times"),
        ("def f(:", "f", "cannot be read: line 1"),
        ("def f(): pass\nprint(1)", "f", "Line 2 of the skill's source, 'print(1)'"),
        ("X = open('x')\ndef f(): pass", "f", "would run whenever"),
        ("X = [y for y in z]\ndef f(): pass", "f", "would run whenever"),
        ("a.b = 1\ndef f(): pass", "f", "would run whenever"),
        ("from x import *\ndef f(): pass", "f", "would run whenever"),
        ("if 1:\n    def f(): pass", "f", "defines 'f' 0 times"),
        ("def f(): pass\nX = '" + "x" * 65536 + "'", "f", "the limit is 65,536"),
        ("def f(a):\n    return [" + "a," * 15_000 + "]", "f", "more than 15,000 syntax nodes"),
        ("def f(a):\n    return f'" + "{a}" * 10_001 + "'", "f", "10,001 times, more than 10,000"),
        ("  def f(): pass", "f", "indented as a whole"),
        ("x = " + "(" * 5000, "f", "cannot be read"),
        ("def f(): return '\ud800'", "f", "cannot be read"),
        ("def match(): pass", "match", "cannot be the name"),
        ("def os(): pass", "os", "modules of Python's library"),
        ("def ä(): pass", "ä", "cannot be the name"),
        ("def f(): pass", "../f", "cannot be the name"),
        ("def f(): pass", "f" * 65, "cannot be the name"),
    ],
)
def test_anything_else_is_refused_with_what_to_change(source: str, name: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=r".") as raised:
        read_code(source, name)
    assert said in raised.value.message


NAMES = st.text(max_size=20)


@given(
    description=st.text(max_size=60),
    version=st.integers(1, 10**6),
    tools=st.dictionaries(NAMES, st.dictionaries(NAMES, NAMES, max_size=3), max_size=3),
)
def test_the_head_of_a_file_is_read_as_it_was_written(
    description: str, version: int, tools: dict[str, dict[str, str]]
) -> None:
    source = "def f():\n    return 1\n"
    header = Header(description=description, version=version, tools=tools, digest="d", created="c")
    text = encode_skill(header, source)
    assert decode_skill(text) == (header, source)
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))


@pytest.mark.parametrize("line", ["import os", "version = 2", " # x", "", "\fimport os", '"""'])
def test_nothing_that_is_executed_is_left_out_of_what_a_person_approves(line: str) -> None:
    source = "def f(): pass\n"
    text = encode_skill(Header(version=1, digest=source_digest(source)), source)
    assert read_skill("f", text).digest == source_digest(text)
    hidden = text.replace("# ///\n", f"{line}\n# ///\n")
    skill = read_skill("f", hidden)
    assert skill.edited
    assert skill.digest != source_digest(text)
    assert skill.source == skill.text


def test_a_file_that_somebody_edited_or_wrote_is_another_version() -> None:
    source = "def f():\n    return 1\n"
    header = Header(version=3, digest=source_digest(source))
    text = encode_skill(header, source)
    skill = read_skill("f", text)
    assert (skill.version, skill.edited, skill.digest) == (3, False, source_digest(text))
    edited = read_skill("f", text.replace("return 1", "return 2"))
    assert (edited.version, edited.edited) == (4, True)
    assert edited.digest != skill.digest
    own = read_skill("f", "def f(): pass")
    assert (own.version, own.edited, own.problem) == (1, True, "")
    assert read_skill("f", text.replace('"version": 3', '"version": x')).version == 1
    broken = read_skill("f", "def f(:")
    assert broken.code is None
    assert "cannot be read" in broken.problem
    # Only the first header counts; a second one belongs to the source.
    twice = read_skill("f", text.replace("def f", "# /// mcp-code-bridge-skill\n# ///\ndef f"))
    assert (twice.version, twice.edited) == (4, True)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from skills import a, b as c", {"a", "b"}),
        ("from skills.a import x", {"a"}),
        ("import skills.a\nskills.b()", {"a", "b"}),
        ("import skills as s\ns.a(s.b, s._c)", {"a", "b"}),
        ("def f():\n    from skills import a", {"a"}),
        ("from skills import *", set()),
        ("skills = []\nskills.append(1)", set()),
        ("from .skills import a\nfrom other.skills import b", set()),
    ],
)
def test_a_program_names_skills_by_importing_them(code: str, names: set[str]) -> None:
    assert set(named_skills(ast.parse(code)) or ()) == names


def test_a_source_as_long_as_people_write_them_may_be_a_skill() -> None:
    lines = "".join(f"    found[{number}] = len(texts) + {number}\n" for number in range(900))
    assert read_code(f"def f(found, texts):\n{lines}").name == "f"
