"""The guest as it travels: complete, standard-library only, and the same from memory or a tree."""

from __future__ import annotations

import ast
import json
import marshal
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from bridge.guest import bootstrap
from bridge.sandbox import bundle


def test_the_bundle_is_its_length_and_every_module() -> None:
    data = bundle.bundle_bytes()
    size = int.from_bytes(data[:8], "big")
    document = marshal.loads(data[8:])
    assert size == len(data) - 8
    assert document["digest"] == bundle.guest_digest()
    modules = marshal.loads(zlib.decompress(document["sources"]))
    assert set(modules) == set(bundle.guest_modules())
    assert {"bridge.guest", "bridge.guest.supervisor.supervisor"} <= set(modules)


def test_a_guest_that_runs_compiled_code_has_its_sources_all_the_same() -> None:
    document = marshal.loads(bundle.bundle_bytes()[8:])
    (code,) = document["code"].values()
    finder = bootstrap.SourceFinder(document["sources"], None, code)
    name = "bridge.guest.protocol.wire"
    assert finder.find_spec(name) is not None
    assert finder.get_source(name) == bundle.guest_modules()[name]
    assert len(document["sources"]) * 3 < sum(map(len, bundle.guest_modules().values()))


def test_the_command_is_short_and_says_whose_it_is() -> None:
    assert bundle.BOOTSTRAP_ARGV[:4] == ("python3", "-I", "-S", "-c")
    assert sum(map(len, bundle.BOOTSTRAP_ARGV)) < 700
    assert bundle.LOADER.startswith("# mcp-code-bridge runs a program in this sandbox")


def test_guest_modules_import_the_standard_library_and_each_other_only() -> None:
    for name, source in bundle.guest_modules().items():
        targets: list[str] = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                targets += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                targets.append("." * node.level + (node.module or ""))
        others = {target for target in targets if not target.startswith("bridge.guest")}
        assert {target.partition(".")[0] for target in others} <= sys.stdlib_module_names, name


def test_what_is_borrowed_is_what_is_installed_and_not_imported_for_that() -> None:
    code = (
        "import pathlib, sys; from bridge.sandbox import bundle; bundle.bundle_bytes();"
        "assert 'cloudpickle' not in sys.modules; import cloudpickle.cloudpickle as installed;"
        "text = pathlib.Path(installed.__file__).read_bytes().decode();"
        "assert bundle.guest_modules()['bridge.guest.state.cloudpickle'] == text"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(bundle.__file__).parents[2])


def test_the_copied_folder_imports_in_an_isolated_interpreter(
    tmp_path: Path, every_python: str
) -> None:
    root = bundle.write_guest_tree(tmp_path)
    assert root == tmp_path / bundle.guest_digest()
    names = sorted(bundle.guest_modules())
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
    )
    command = [every_python, "-I", "-S", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path)
    assert done.stderr == b""


def test_a_tree_in_the_image_is_used_and_said_so(tmp_path: Path) -> None:
    bundle.write_guest_tree(tmp_path / "image")
    hello = hello_with_tree(tmp_path / "image")
    assert hello["facts"]["precompiled"] is True
    assert hello["digest"] == bundle.guest_digest()
    (tmp_path / "other" / ("0" * 64)).mkdir(parents=True)
    assert hello_with_tree(tmp_path / "other")["facts"]["precompiled"] is False


def start(data: bytes, python: str = sys.executable, loader: str = bundle.LOADER) -> bytes:
    command = [python, *bundle.INTERPRETER[1:], loader]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def test_code_is_used_by_the_python_that_it_was_compiled_for(every_python: str) -> None:
    hello = json.loads(start(bundle.bundle_bytes(), every_python).splitlines()[0])
    own = ".".join(map(str, sys.version_info[:2]))
    assert hello["facts"]["precompiled"] is hello["python"].startswith(f"{own}.")


def test_no_start_waits_for_modules_that_are_slow_to_import(every_python: str) -> None:
    loader = bundle.LOADER.replace("main(bundle, code)", WITHOUT)
    assert start(bundle.bundle_bytes(), every_python, loader) == b""


def test_code_tells_no_path_of_the_host() -> None:
    places = (os.fsencode(Path(bundle.__file__).parents[2]), os.fsencode(sys.prefix))
    for name, code in bundle.guest_code().items():
        assert not any(place in code for place in places), name


def for_another_python(data: bytes, tree: Path) -> bytes:
    document = marshal.loads(data[8:])
    document["bootstrap"] = document["bootstrap"].replace(bootstrap.TREE, str(tree))
    document["code"] = {"other-1": document["code"].popitem()[1]}
    body = marshal.dumps(document, 2)
    return len(body).to_bytes(8, "big") + body


def hello_with_tree(tree: Path) -> Any:
    output = start(for_another_python(bundle.bundle_bytes(), tree))
    return json.loads(output.splitlines()[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "EOFError"),
        (b"\0" * 7, "EOFError"),
        (bundle.bundle_bytes()[:1000], "EOFError"),
        ((9).to_bytes(8, "big") + b"not  json", "bad marshal data"),
    ],
)
def test_a_broken_bundle_is_refused_audibly(data: bytes, message: str) -> None:
    process = subprocess.run(
        [sys.executable, *bundle.BOOTSTRAP_ARGV[1:]], input=data, capture_output=True, check=False
    )
    assert process.returncode != 0
    assert message in process.stderr.decode()
    assert process.stdout == b""


def test_exactly_the_bundle_is_read_from_stdin() -> None:
    code = {bundle.own_tag(): {"bridge.guest.bootstrap": marshal.dumps(compile(ECHO, "e", "exec"))}}
    for document in ({"code": code}, {"code": {}, "bootstrap": ECHO}):
        body = marshal.dumps(document, 2)
        assert start(len(body).to_bytes(8, "big") + body + b"rest") == b"rest"


ECHO = "import os\ndef main(bundle, code): os.write(1, os.read(0, 100))"

WITHOUT = """
import os
sys.meta_path.insert(0, SourceFinder(bundle["sources"], None, code))
from bridge.guest import imports
from bridge.guest.supervisor import supervisor
list(imports.steps(imports.OWN))
slow = "asyncio ctypes enum inspect json re signal typing"
os.write(1, " ".join(set(slow.split()) & set(sys.modules)).encode())
"""
"""Imports the modules of every sandbox, and prints the slow modules among them."""
