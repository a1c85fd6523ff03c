"""Programs are read as they are certainly meant, and those that parse are never changed."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.parsing import apply_edits, parse, read_program, rewrite_f_strings
from bridge.catalog.program.references import NameTable
from bridge.catalog.program.survey import Survey
from bridge.errors import InvalidRequestError
from bridge.model import Finding
from tests.golden_texts import programs
from tests.wrong_programs.test_wrong_programs import FORGE

PROGRAMS = programs("repaired_programs.txt")
VALID_PROGRAMS = 500


def pairs(section: str) -> list[list[str]]:
    return [program.split("\n==>\n") for program in PROGRAMS[section]]


def valid_programs() -> Iterator[str]:
    for name in sorted(module.name for module in pkgutil.iter_modules()):
        if name.startswith(("_", "idle", "turtle", "this", "anti", "test", "lib2to3", "tkinter")):
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or "lib/python3" not in spec.origin:
            continue
        if "site-packages" in spec.origin or not spec.origin.endswith(".py"):
            continue
        source = Path(spec.origin).read_text(encoding="utf-8", errors="replace")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                part = ast.get_source_segment(source, node, padded=True)
                if part is not None:
                    yield textwrap.dedent(part)


@pytest.mark.slow
def test_a_program_that_parses_is_never_changed() -> None:
    seen: dict[str, None] = {}
    for program in valid_programs():
        if not isinstance(parse(program), Finding):
            seen[program] = None
        if len(seen) == VALID_PROGRAMS:
            break
    assert len(seen) == VALID_PROGRAMS
    assert [program for program in seen if read_program(program).code != program] == []


@pytest.mark.parametrize(
    "program", [*PROGRAMS["left alone"], "\ufeffprint(1)", "print(1)\r\nprint(2)\r\n"]
)
def test_what_only_looks_like_a_slip_is_left_alone(program: str) -> None:
    read = read_program(program)
    assert (read.code, read.read_as) == (program, "")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *pairs("repaired"),
        ("if x:\n\xa0\xa0\xa0\xa0y =\u200b 1 – 2 # “”", "if x:\n    y = 1 - 2 # “”"),
        (">>> x\n1\n>>> for i in y:\n...     i\n...", "x\n\nfor i in y:\n    i\n"),
        ("In [1]: x = 1\n\nIn [2]: x\nOut[2]: 1", "x = 1\n\nx\n"),
        ("if x:\n\ta\n    b", "if x:\n    a\n    b"),
    ],
)
def test_a_slip_is_read_as_it_is_meant(given: str, meant: str) -> None:
    read = read_program(given)
    assert read.code == meant
    assert read.read_as
    assert isinstance(read.tree, ast.Module)


@pytest.mark.parametrize("given", PROGRAMS["ambiguous"])
def test_what_may_mean_something_else_is_not_repaired(given: str) -> None:
    read = read_program(given)
    assert (read.code, read.read_as) == (given, "")
    assert isinstance(read.tree, Finding)


@pytest.mark.parametrize("line", PROGRAMS["f-strings of Python 3.12"])
def test_an_older_python_reads_f_strings_with_nested_quotes(line: str) -> None:
    read = read_program(line, lambda: "3.11")
    ast.parse(read.code, feature_version=(3, 11))
    assert read.code.count("{") == line.count("{")
    if isinstance(parse(line), Finding):
        assert read_program(line, lambda: "3.13").code == line


@pytest.mark.parametrize("python", ["3.11", "3.13"])
@pytest.mark.parametrize("line", PROGRAMS["typographic quotes in f-strings"])
def test_typographic_quotes_nested_in_f_strings_mean_the_same_everywhere(
    line: str, python: str
) -> None:
    read = read_program(line, lambda: python)
    assert re.sub("[\"']", "", read.code) == re.sub("[“”‘’\"']", "", line)
    assert python == "3.13" or rewrite_f_strings(read.code) == read.code
    assert isinstance(read.tree, ast.Module)


def test_an_f_string_with_every_kind_of_quotes_is_left_alone() -> None:
    line = 'f"{d["""a"""]} \'\'\' "'
    assert rewrite_f_strings(line) == line


def test_magic_inside_a_text_stays() -> None:
    text = 'x = """\n%config y\n"""\n'
    assert read_program(f"{text}%config z\nx").code == f"{text}\nx"


@pytest.mark.parametrize("name", ["mode", "apply", "files"])
def test_arguments_that_change_a_run_are_refused_in_the_json_of_a_program(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"Pass `{name}` as an argument of its own"):
        read_program(f'{{"code": "print(1)", "{name}": "plan"}}')


@pytest.mark.parametrize("name", ["servers", "timeout", "session"])
def test_the_other_arguments_in_the_json_of_a_program_are_named(name: str) -> None:
    read = read_program(f'{{"code": "print(1)", "{name}": "a"}}')
    assert (read.code, f"without `{name}`" in read.read_as) == ("print(1)", True)


@pytest.mark.parametrize(
    ("known", "listed", "name", "path"),
    [
        (True, (), "get_me", "mcp_git_forge.get_me"),
        (False, (), "get_me", ""),
        (False, ("git-forge",), "get_me", "mcp_git_forge.get_me"),
        (False, ("git-forge", "other"), "get_me", ""),
        (False, (), "git_forge.get_me", "mcp_git_forge.get_me"),
        (False, (), "git_forge", "mcp_git_forge"),
    ],
)
def test_a_tool_s_name_alone_waits_for_the_tools_of_all_servers(
    known: bool, listed: tuple[str, ...], name: str, path: str
) -> None:
    other = ServerEntry(name="other", alias="other", known=known)
    assert NameTable([FORGE, other], listed).find(name) == path


@pytest.mark.parametrize("name", ["unicode", "true", "xrange", "get_me"])
@pytest.mark.parametrize("error", ["NameError", "Exception"])
def test_a_name_that_the_program_tries_out_gets_no_meaning(name: str, error: str) -> None:
    code = f"try:\n    {name}()\nexcept {error}:\n    x = 1\n{name}()"
    assert NameTable([FORGE]).resolve(Survey(ast.parse(code))) == {}
    assert name in NameTable([FORGE]).resolve(Survey(ast.parse(f"{name}()")))


CALL = "mcp_git_forge.get_me()"


def with_awaits(code: str, *, in_session: bool = False) -> str | None:
    tree = parse(code)
    assert isinstance(tree, ast.Module)
    edits = check_program(
        Survey(tree), [FORGE], {FORGE.name: FORGE.alias}, more_names=in_session
    ).edits
    found = apply_edits(code, edits) if edits else None
    return None if found is None else found[0]


@pytest.mark.parametrize(("given", "meant"), pairs("awaits inserted"))
def test_a_missing_await_is_inserted_where_it_is_certain(given: str, meant: str) -> None:
    assert with_awaits(given) == meant


@pytest.mark.parametrize("given", PROGRAMS["awaited later"])
def test_no_await_is_inserted_where_the_program_may_await_later(given: str) -> None:
    assert with_awaits(given) is None


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (f"r = {CALL}", None),
        (f"r = {CALL}\nprint(r)", None),
        (f"r = {CALL}\nif r == 1: print(2)", None),
        (f"r = {CALL}\nprint(r['login'])", f"r = (await {CALL})\nprint(r['login'])"),
        (f"print({CALL})", f"print((await {CALL}))"),
    ],
)
def test_in_a_session_a_global_may_be_awaited_by_a_later_program(
    given: str, meant: str | None
) -> None:
    assert with_awaits(given, in_session=True) == meant
    assert with_awaits(given) is not None


def test_a_name_that_the_program_defines_by_its_text_gets_no_meaning() -> None:
    for code in ('globals()["get_me"] = f', "import builtins\nbuiltins.get_me = f"):
        survey = Survey(ast.parse(f"def f(): ...\n{code}\nget_me()"))
        assert NameTable([FORGE]).resolve(survey) == {}
        assert check_program(survey, [FORGE], {FORGE.name: FORGE.alias}).findings == ()


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        ("%matplotlib inline", ()),
        ("%load_ext autoreload", ()),
        ("%autoreload 2", ()),
        ("%%time", ()),
        ("%%capture output", ()),
        ("!pip install pandas", ("pandas",)),
        ("!pip install -q pandas>=2,<3 scikit-learn==1.* 'x[a,b]' 2>/dev/null", None),
        ("%pip install --quiet -U openpyxl 2>&1 | tail -1", ("openpyxl",)),
        ("!{sys.executable} -m pip install a b > /dev/null 2>&1", ("a", "b")),
        ("! python -m pip install --no-cache-dir a", ("a",)),
        ("!uv pip install a", ("a",)),
        ("pip install a", ("a",)),
    ],
)
def test_a_command_of_one_meaning_is_read_as_that(
    command: str, packages: tuple[str, ...] | None
) -> None:
    read = read_program(f"{command}\nx = '%matplotlib'\nx")
    assert isinstance(read.tree, ast.Module)
    assert read.code.splitlines()[1:] == ["x = '%matplotlib'", "x"]
    assert "notebook commands" in read.read_as
    expected = ("pandas>=2,<3", "scikit-learn==1.*", "x[a,b]") if packages is None else packages
    assert read.packages == expected


@pytest.mark.parametrize("command", PROGRAMS["commands of no single meaning"])
def test_a_command_that_may_mean_more_is_not_understood(command: str) -> None:
    read = read_program(f"{command}\nx = 1")
    assert isinstance(read.tree, Finding)
    assert read.packages == ()


def test_commands_in_blocks_and_timed_lines_keep_what_they_stand_in() -> None:
    code = "try:\n    import a\nexcept ImportError:\n    !pip install a\n%time x = f(1)\nx"
    read = read_program(code)
    assert read.packages == ("a",)
    assert read.code.splitlines()[3:] == ["    pass  # packages: a", "x = f(1)", "x"]


def test_a_comment_in_a_program_that_parses_asks_for_nothing() -> None:
    assert read_program("pass  # packages: a\nx = 1").packages == ()
