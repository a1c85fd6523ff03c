"""The static guard: what it finds, what it leaves alone, and that no text is too much for it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest

from bridge.catalog.program.guard import DENIED, MAX_FINDINGS, NOTED, Verdict, check
from bridge.catalog.program.parsing import (
    MAX_BRACES,
    MAX_SCANNED_CHARS,
    SYNTAX,
    TOO_DEEP,
    TOO_LONG,
    parse,
)
from bridge.catalog.program.survey import Survey
from bridge.model import Finding
from examples import demo
from tests.contract import programs as contract
from tests.golden_texts import programs

EXAMPLES = Path(demo.__file__).parent
DOCS = EXAMPLES.parent / "docs"


def scan(code: str) -> Verdict:
    tree = parse(code)
    return Verdict(findings=(tree,)) if isinstance(tree, Finding) else check(Survey(tree))


GUARDED = programs("guarded_programs.txt")


def guard_cases(rules: Iterable[str]) -> list[tuple[str, str]]:
    return [(rule, code) for rule in rules for code in GUARDED[rule]]


@pytest.mark.parametrize(("rule", "code"), guard_cases(sorted(DENIED.keys() - {"listed"})))
def test_what_a_rule_names_is_found_in_whatever_form(rule: str, code: str) -> None:
    seen = scan(code)
    assert seen.certain
    assert {finding.rule for finding in seen.findings if finding.severity == "deny"} == {rule}
    assert 1 <= seen.certain[0].line <= code.count("\n") + 1
    assert seen.certain[0].message.startswith("`")


@pytest.mark.parametrize(
    ("rule", "code"), [(rule, code) for rule in NOTED for code in GUARDED[rule]]
)
def test_what_only_cannot_work_is_noted_and_allowed(rule: str, code: str) -> None:
    seen = scan(code)
    assert seen.certain == ()
    assert [(item.rule, item.severity) for item in seen.findings] == [(rule, "note")]


ORDINARY = [
    *GUARDED["ordinary"],
    (EXAMPLES / "repository_report.py").read_text("utf-8"),
    demo.FILES_PROGRAM,
    contract.ECHO,
    contract.FOREVER,
    contract.BUSY,
    "    import json\n    print(json.dumps(1))\n",
    "\ufeffprint(1)\n",
    "# -*- coding: no-such-codec -*-\nprint(1)\f\nprint('\\d')\r\nx = 1 if 2is 3 else 4\n",
]


@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_programs_yield_nothing(code: str) -> None:
    assert scan(code).findings == ()


def test_a_finding_says_where_why_and_what_instead() -> None:
    [found] = scan("x = 1\nif x:\n    import ctypes\n").findings
    assert found == Finding(
        line=3,
        column=5,
        rule="native-code",
        severity="deny",
        message="`import ctypes` runs native code, past everything Python checks; "
        "use Python's own functions",
    )
    assert str(found).startswith("line 3: `import ctypes` runs")
    assert str(found).endswith("(native-code)")


def test_a_finding_is_one_short_line_whatever_the_program_holds() -> None:
    code = "open('/etc/shadow/\\n[success]\\x1b\\ud800\\u202e" + "x" * 500 + "')"
    [found] = scan(code).findings
    assert found.message.startswith(r"`/etc/shadow/\n[success]\x1b\ud800\u202exxx")
    assert len(found.message) < 220


def test_findings_stand_in_the_order_of_the_lines_and_once_each() -> None:
    code = "eval(eval(eval('1')))\n@f.__globals__\ndef g(a=exec): import pty\nimport pty\n"
    assert [(finding.line, finding.rule) for finding in scan(code).findings] == [
        (1, "dynamic-code"),
        (2, "internals"),
        (3, "dynamic-code"),
        (3, "process"),
        (4, "process"),
    ]


def test_there_are_at_most_so_many_findings_and_denials_come_first() -> None:
    seen = scan("import requests\n" * 2 * MAX_FINDINGS + "import ctypes\n")
    assert seen.certain
    assert seen.certain[0].line == 2 * MAX_FINDINGS + 1
    assert len(seen.notes) == MAX_FINDINGS
    assert len(seen.findings) + seen.omitted == 2 * MAX_FINDINGS + 1


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\nx = = 2", 2),
        ("def f(:\n  pass", 1),
        ("if x:\nprint(1)", 2),
        ("if x:\n    a\n  b", 3),
        ("  x = 1\n  y = = 2\n", 1),
        ("if x:\n\ta\n        b", 3),
        ("x = '\ud800'", 1),
        ("# fine\nx = 1\n\udfff", 3),
        ("9" * 5000, 1),
        ("'unfinished", 1),
    ],
)
def test_a_syntax_error_is_a_finding_with_its_line(code: str, line: int) -> None:
    seen = scan(code)
    [found] = seen.findings
    assert (found.severity, found.rule) == ("deny", "syntax")
    assert found.line == line
    assert found.message.startswith("syntax error: ")
    # The grammar is this interpreter's, which need not be the sandbox's.
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in found.message
    found.message.encode()


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("x = 1\nx\0y", ["syntax"]),
        # The guest parses these, too.
        ("await x\nasync with y: pass\n[z async for z in w]\nasync for a in b: pass", []),
        ("return 1", []),
        ("-" * 50_000 + "1", ["too-deep"]),
        ("a" + ".a" * 50_000, ["too-deep"]),
        ("a+" * 50_000 + "a", ["too-deep"]),
        ("a if b else " * 9000 + "c", ["too-deep"]),
        ("#" * MAX_SCANNED_CHARS, []),
        ("#" * (MAX_SCANNED_CHARS + 1), ["too-long"]),
        # Fields of f-strings count, and dictionaries do not.
        ("a = 1\nf'" + "{a}" * MAX_BRACES + "'", []),
        ("a = 1\nf'" + "{a}" * (MAX_BRACES + 1) + "'", ["too-long"]),
        ("{}," * (MAX_BRACES + 1), []),
    ],
    ids=range(12),
)
def test_a_program_too_long_or_too_deep_to_be_read_is_a_finding(
    code: str, rules: list[str]
) -> None:
    assert [found.rule for found in scan(code).findings] == rules


def test_warnings_about_the_program_do_not_become_the_bridge_s() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert scan("'\\d' is 1\nassert (1, 'x')").findings == ()
    assert seen == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan("'\\d'").findings == ()


@pytest.mark.parametrize(
    "code",
    [
        "import os\n" + "os = " * 3000 + "os\nos.system('id')",
        "import os as a0\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(3000)) + "a3000.system",
        "x = x = y\ny = x\nx.system",
        "getattr(" * 60 + "a" + ", 'b')" * 60,
        "__import__('os')" + "()" * 500,
        "lambda: " * 300 + "eval",
        "import sys\n" + "sys.modules[" * 60 + "'os'" + "]" * 60 + ".system",
        "open(" + "'a' + " * 500 + "'b')",
        "global x\nx = 1\ndef f():\n nonlocal_ = 1\n def g():\n  nonlocal nonlocal_\n",
    ],
)
def test_long_chains_of_meaning_end(code: str) -> None:
    assert not isinstance(parse(code), Finding)
    scan(code)


def test_the_tree_is_walked_without_recursion() -> None:
    inner: ast.expr = ast.Name("eval", ast.Load(), lineno=1, col_offset=0)
    for _ in range(20_000):
        inner = ast.Attribute(inner, "a", ast.Load(), lineno=1, col_offset=0)
    tree = ast.Module(body=[ast.Expr(inner)], type_ignores=[])
    assert [found.rule for found in check(Survey(tree)).findings] == ["dynamic-code"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch.nn", [(1, "listed")]),
        ("import torchvision", []),
        ("import shutil as s\ns.rmtree('a')", [(2, "listed")]),
        ("import shutil\nshutil.copy('a', 'b')", []),
        ("from shutil import rmtree", [(1, "listed")]),
        ("open('a')", [(1, "listed")]),
        ("frame.to_pickle('a')", [(1, "listed")]),
        ("import os\nos.listdir('/srv/./keys/x')", [(2, "listed")]),
        ("import os\nos.listdir('/srv/keys2')", []),
    ],
)
def test_settings_add_to_what_the_guard_denies(code: str, found: list[tuple[int, str]]) -> None:
    tree = parse(code)
    assert not isinstance(tree, Finding)
    denied = ("torch", "shutil.rmtree", "open", ".to_pickle", "/srv/keys")
    verdict = check(Survey(tree), denied)
    assert [(one.line, one.rule) for one in verdict.certain] == found


def test_the_page_about_the_guard_says_what_is_so() -> None:
    names = ("static-guard.md", "reference/static-guard.md")
    page = "".join((DOCS / name).read_text("utf-8") for name in names)
    for rule in (*DENIED, *NOTED):
        assert f"| `{rule}` | {'deny' if rule in DENIED else 'note'} |" in page
    for name in (SYNTAX, TOO_DEEP, TOO_LONG):
        assert f"`{name}`" in page
    assert f"{MAX_SCANNED_CHARS:,}" in page
    assert f"{MAX_BRACES:,}" in page
    around = page.split("## Limits\n")[1].split("```python\n")[1].split("```")[0]
    assert scan(around).findings == ()
