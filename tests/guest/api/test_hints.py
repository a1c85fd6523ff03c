"""What is said to programs that were written for other tools."""

from __future__ import annotations

import ast
import asyncio
import errno
import socket
import sys
import urllib.error
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest

from bridge.guest.api.hints import hint
from bridge.guest.api.values import Result


def missing_hint(path: str) -> str:
    return hint(FileNotFoundError(2, "No such file or directory", path))


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "Sales.csv").write_text("a")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "path", ["/mnt/data/Sales.csv", "sales.csv", "/workspace/sales.CSV", "/home/me/Sales.csv"]
)
def test_a_file_that_is_elsewhere_is_pointed_at(workspace: Path, path: str) -> None:
    assert missing_hint(path) == "'data/Sales.csv' exists in the working directory."


def test_where_files_are_is_said_for_paths_of_other_tools(workspace: Path) -> None:
    assert "written to 'out/'" in missing_hint("/mnt/data/plot.png")
    assert "none of the user's files" in missing_hint("/home/me/notes.txt")
    assert missing_hint("notes.txt") == missing_hint("") == ""
    told = missing_hint("bridge://runs/4f2c/stdout")
    assert 'await runtime.read_output("bridge://runs/4f2c/stdout")' in told
    assert "files=[{" in missing_hint("bridge://artifacts/5f0c")
    assert "read_output" not in missing_hint("bridge://artifacts/5f0c")
    assert missing_hint("/out/a.csv") == "out/ is in the working directory: 'out/a.csv'."
    assert "write to 'out/'" in hint(OSError(errno.EROFS, "Read-only file system", "/data.csv"))


@pytest.mark.parametrize(
    ("name", "packages", "told"),
    [
        ("skimage.io", [], "`mcp-code-bridge image build --package scikit-image`"),
        ("seaborn", ["pandas"], "nothing can be installed here"),
        ("sklearn.linear_model", ["scikit-*"], 'run_python(packages=["scikit-learn"])'),
        ("pandas", ["pandas"], 'run_python(packages=["pandas"])'),
        ("scikit_learn", ["*"], "the package scikit-learn is imported as sklearn"),
        ("tkinter", ["*"], "leave out matplotlib.use"),
        ("IPython.display", ["*"], "`display(x)` needs no import"),
        ("runtime.mcp_client", ["*"], "needs no client"),
        ("mcp_runtime", ["*"], "needs no client"),
    ],
)
def test_a_missing_module_is_asked_for_where_that_is_allowed(
    name: str, packages: list[str], told: str
) -> None:
    assert told in hint(ModuleNotFoundError("x", name=name), packages)
    assert hint(ModuleNotFoundError("the bridge's own words, without a name"), packages) == ""


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("`Import tabulate` failed.  Use conda to install the tabulate package.", "tabulate"),
        ("Missing optional dependency 'Jinja2'. DataFrame.style requires jinja2.", "Jinja2"),
        ("Unable to find an engine.\nA suitable version of pyarrow or fastparquet is", "pyarrow"),
        ("Pandas requires version '2.0.1' or newer of 'xlrd' (version '1.0' installed).", "xlrd"),
        ("matplotlib is required for plotting when the default backend is", "matplotlib"),
        ("'numexpr' is not installed or an unsupported version.", "numexpr"),
        ("lxml not found, please install or use the etree parser.", "lxml"),
        ("Using a URI string requires 'sqlalchemy' version '2.0.42' or newer.", "sqlalchemy"),
        ("Plotly Express requires numpy to be installed. You can install numpy", "numpy"),
        ('Image export needs kaleido:\n$ pip install -U "kaleido"', "kaleido"),
        ("The '.style' accessor requires jinja2", "jinja2"),
        ("cannot import name 'x' from 'y'", ""),
    ],
)
def test_a_library_that_names_the_package_it_misses_gets_the_hint(message: str, name: str) -> None:
    told = hint(ImportError(message), packages=["*"])
    assert told.endswith(f'run_python(packages=["{name}"]).' if name else "")
    if "accessor requires" in message:
        assert hint(AttributeError(message), packages=["*"]) == told


def test_who_starts_pip_is_told_about_packages() -> None:
    for command in (["python3", "-m", "pip", "install", "-q", "polars"], "pip install polars"):
        told = hint(CalledProcessError(1, command), packages=["*"])
        assert 'run_python(packages=["polars"])' in told
    assert hint(CalledProcessError(1, ["apt", "install", "curl"]), packages=["*"]) == ""
    assert "libgomp.so.1" in hint(OSError("libgomp.so.1: cannot open shared object file: No"))


def test_a_task_without_a_loop_is_told_about_top_level_await() -> None:
    assert "`await" in hint(RuntimeError("no running event loop"))
    assert hint(RuntimeError("dictionary changed size during iteration")) == ""


def test_a_library_that_the_image_does_not_have_is_named() -> None:
    missing = "libstdc++.so.6: cannot open shared object file: No such file or directory"
    for text in (missing, f"Importing it failed.\n\nOriginal error was: {missing}\n"):
        assert "image has no libstdc++.so.6, which" in hint(ImportError(text))
    assert hint(ImportError("cannot import name 'x' from 'y'")) == ""
    assert hint(ImportError(": cannot open shared object file")) == ""


def test_a_sentence_with_a_type_s_name_is_no_misuse_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests may have been in a plan.
    monkeypatch.delitem(sys.modules, "bridge.guest.api.held_results", raising=False)
    assert hint(TypeError("'builtin_function_or_method' object is not subscriptable"))
    assert not hint(TypeError("a skill is a function, not a builtin_function_or_method"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("json.loads(tree)", "The result has the keys: 'content'."),
        ("[x['name'] for x in tree]", "tree has the keys: 'content'."),
        ("[x.name for x in tree]", "tree has the keys: 'content'."),
        ("'Files: ' + tree", "tree has the keys: 'content'."),
        ("other['name'].name", "this is text"),
    ],
)
def test_who_takes_a_result_for_what_is_in_it_is_told_its_keys(line: str, told: str) -> None:
    names = {"tree": Result(content='[{"name": "a"}]'), "other": {"name": "a"}}
    with pytest.raises((TypeError, AttributeError)) as caught:
        exec(compile("import json\n" + line, "<run_python>", "exec"), names)
    said = hint(caught.value)
    assert told in said
    assert ("keys:" in said) == ("tree" in line)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("list()['sha']", "take an item"),
        ("[].sha", "take an item"),
        ("(c := call())['login']", "only after `await`"),
        ("[i for i in {}.items]", 'x["items"]'),
        ("sum(await call() for _ in 'ab')", "[await f(x) for x in xs]"),
    ],
)
def test_a_misuse_of_a_value_names_what_is_meant(line: str, told: str) -> None:
    code = compile(line, "<run_python>", "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def call() -> None: ...

    names: dict[str, Any] = {"call": call}
    with pytest.raises((TypeError, AttributeError)) as caught:
        asyncio.run(eval(code, names)) if "await" in line else eval(code, names)
    if "c" in names:
        names["c"].close()
    assert told in hint(caught.value)


def test_an_error_that_wraps_the_lack_of_a_network_is_told_about_it() -> None:
    unresolved = socket.gaierror(-3, "x")
    for error in (unresolved, urllib.error.URLError(unresolved), OSError(errno.ENETUNREACH, "x")):
        assert "the sandbox has no network" in hint(error)
    assert hint(OSError(errno.EPIPE, "x")) == ""
