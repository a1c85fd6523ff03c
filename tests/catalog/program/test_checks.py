"""What the preflight may call certain, and what it must leave alone."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from pathlib import Path

import pytest

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program.advice import explain_syntax
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.guard import Verdict
from bridge.catalog.program.parsing import parse
from bridge.catalog.program.survey import Survey
from bridge.model import Finding, Tool
from tests.golden_texts import programs

ROOT = Path(__file__).parents[3]

TEXT = {"type": "string"}
HUB = ServerEntry(
    name="git-hub",
    alias="hub",
    tools=tool_entries(
        [
            Tool(
                server="git-hub",
                name="search",
                input_schema={
                    "type": "object",
                    "properties": {"query": TEXT, "limit": {"type": "integer"}},
                    "required": ["query"],
                },
            ),
            Tool(server="git-hub", name="anything", input_schema={"type": "object"}),
        ]
    ),
    known=True,
)


def _verdict(code: str, *servers: ServerEntry, more_names: bool = False, **aliases: str) -> Verdict:
    tree = parse(code)
    assert isinstance(tree, ast.Module), tree
    return check_program(Survey(tree), servers, aliases, more_names)


def _hub_verdict(code: str) -> Verdict:
    return _verdict(code, HUB, hub="hub", time="time")


@pytest.mark.parametrize(
    "code", [code for section in programs("fine_programs.txt").values() for code in section]
)
def test_what_may_well_be_meant_is_not_certain(code: str) -> None:
    assert [str(found) for found in _hub_verdict(code).certain] == []


@pytest.mark.parametrize(
    ("rules", "code"),
    [(rules, code) for rules, codes in programs("wrong_programs.txt").items() for code in codes],
)
def test_what_fails_however_it_is_run_is_certain(rules: str, code: str) -> None:
    found = ", ".join(one.rule for one in _hub_verdict(code).certain)
    assert (found or "nothing") == rules


def test_nothing_certain_is_found_in_modules_that_work() -> None:
    library, found = Path(sysconfig.get_paths()["stdlib"]), []
    every = [*sorted(library.glob("*.py")), *sorted((library / "asyncio").glob("*.py"))]
    for path in [path for path in every if path.stat().st_size < 40_000][::3]:
        tree = parse(path.read_text(encoding="utf-8", errors="replace"))
        if isinstance(tree, ast.Module):
            found += [f"{path.name}: {one}" for one in check_program(Survey(tree), [], {}).certain]
    assert found == []


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "docs").glob("**/*.md")), ROOT / "README.md"],
    ids=lambda path: path.name,
)
def test_nothing_certain_is_found_in_the_programs_of_the_documents(path: Path) -> None:
    for code in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
        tree = parse(code)
        if isinstance(tree, Finding):
            continue
        certain = check_program(Survey(tree), [], {}).certain
        names = ("undefined-name", "missing-import")
        assert [str(found) for found in certain if found.rule not in names] == [], code


def test_the_demonstrations_program_is_fine() -> None:
    code = (ROOT / "examples" / "repository_report.py").read_text(encoding="utf-8")
    assert _verdict(f"REPOSITORY = '/repository'\n{code}", git="git", time="time").certain == ()


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("r = 1\nprint(query)", "not defined in the program. Every run starts empty"),
        ("results = 1\nprint(result)", "Did you mean `results`?"),
        ("prnit(1)", "Did you mean `print`?"),
    ],
)
def test_a_name_that_is_not_there_is_likened_only_to_what_looks_like_it(
    code: str, part: str
) -> None:
    (found,) = _verdict(code, git="git", git_forge="git_forge").certain
    assert part in found.message


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def first[T](x: T) -> T: return x", "leave them out"),
        ("type Row = dict", "write `Name = ...`"),
        ("try:\n    pass\nexcept A, B:\n    pass", "`except (A, B):`"),
        ("x = me?.login", 'x.get("key")'),
        ("const me = 1;\nprint(me)", "without const or let"),
        ("!ls -la\nimport requests", "This is a shell command; write Python."),
        ("me = 1\nprint me", "`print(...)`"),
        ("for n in range(3):\nprint(n)", "Indent the block's lines"),
        ("if (me) { print(me) }", "a colon ends the line"),
        ("if x === 1:\n    pass", "Write `==`"),
        ("class Box[T]:\n    pass", ""),
        ('print(f"{d["key"]}")', ""),
        ("print(f'{x!r:{'>'}{10}}')", ""),
        ("print(f'''{\n3 + # comment\n4}''')", ""),
        ("print(t'{x}')", ""),
        ("print(f'{x}')\ntype Pair = int", ""),
        ('x = f"{a["“"]}"', ""),
        ("lazy import json", ""),
        ("print(f'''\n// {d['a']} {'b'}''')", ""),
    ],
)
def test_syntax_that_this_python_lacks_is_explained_and_never_certain(code: str, part: str) -> None:
    tree = parse(code)
    if isinstance(tree, Finding):
        (found,) = explain_syntax(code, tree).findings
        assert found.severity == "note"
        assert part in found.message


def test_messages_are_bounded_whatever_the_program_and_the_server_write() -> None:
    huge = "x" * 20_000
    tools = [
        Tool(server="s", name=f"{huge[:200]}{n}", description=huge, input_schema={"x": huge})
        for n in range(300)
    ]
    server = ServerEntry(name="s", alias="s", tools=tool_entries(tools), known=True)
    verdict = _verdict(f"await mcp_s.{huge}({huge}={huge!r})\nprint({huge}1)", server, s="s")
    assert verdict.certain
    assert len(json.dumps([found.message for found in verdict.findings])) < 5_000


def test_the_number_of_findings_is_bounded_and_the_rest_counted() -> None:
    verdict = _hub_verdict("\n".join(f"await mcp_hub.nope_{n}()" for n in range(100)))
    assert (len(verdict.findings), verdict.omitted) == (25, 75)


def test_a_program_full_of_mistakes_costs_little_more_than_one_with_some() -> None:
    tools = [Tool(server="s", name=f"tool_{n}") for n in range(1000)]
    server = ServerEntry(name="s", alias="s", tools=tool_entries(tools), known=True)
    code = "".join(f"await mcp_s.tol_{n}(tol_{n})\n" for n in range(4000))
    verdict = _verdict(code, server, s="s")
    assert (len(verdict.certain), verdict.omitted) == (25, 8000 - 25)
    assert verdict.certain[0].line == 1
    code = "import asyncio\ndef f():\n" + " await asyncio.sleep(1)\n" * 400 + "f()\n" * 400
    assert len(_verdict(code).edits) < 1000


def test_names_of_a_session_s_earlier_programs_are_no_matter_of_notes() -> None:
    code = "print(total, json.dumps(rows))"
    assert _verdict(code).findings
    assert _verdict(code, more_names=True).findings == ()
