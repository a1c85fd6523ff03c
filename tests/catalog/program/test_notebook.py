"""Notebook commands: left out, read as `packages`, or not understood."""

from __future__ import annotations

import ast

import pytest

from bridge.catalog.program.parsing import Unread
from bridge.catalog.program.repairs import read_program


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


@pytest.mark.parametrize(
    "command",
    [
        "!ls -la",
        "!pip install -r requirements.txt",
        "!pip install git+https://example.org/x",
        "!pip install ./wheel.whl",
        "!pip install --index-url https://example.org a",
        "!pip install a && rm b",
        "!pip install",
        "!pip uninstall a",
        "%%bash",
        "%run other.py",
    ],
)
def test_a_command_that_may_mean_more_is_not_understood(command: str) -> None:
    read = read_program(f"{command}\nx = 1")
    assert isinstance(read.tree, Unread)
    assert read.packages == ()


def test_commands_in_blocks_and_timed_lines_keep_what_they_stand_in() -> None:
    code = "try:\n    import a\nexcept ImportError:\n    !pip install a\n%time x = f(1)\nx"
    read = read_program(code)
    assert read.packages == ("a",)
    assert read.code.splitlines()[3:] == ["    pass  # packages: a", "x = f(1)", "x"]


def test_a_comment_in_a_program_that_parses_asks_for_nothing() -> None:
    assert read_program("pass  # packages: a\nx = 1").packages == ()
