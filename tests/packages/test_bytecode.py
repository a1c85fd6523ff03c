"""Bytecode of packages: compiled in a sandbox, and nothing of a package runs anywhere for it."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.guest.state.installed import bytecode, distributions
from bridge.model import RunRequest
from bridge.packages.sets import add_bytecode, add_fonts, compile_set
from bridge.runs import open_engine
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.packages.rig import allow_from, open_directory, tree, wheel
from tests.waiting import until

TAG = str(sys.implementation.cache_tag)
MOST = 10_000_000


def unpack(place: Path, files: Mapping[str, str]) -> Path:
    for name, text in {**files, "alpha-1.dist-info/METADATA": "Name: alpha"}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def pack(*pairs: tuple[str, bytes]) -> bytes:
    parts = [part for name, data in pairs for part in (name.encode(), data)]
    return zlib.compress(b"".join(len(part).to_bytes(4, "big") + part for part in parts))


def test_what_compiles_is_compiled_once_and_works_wherever_it_is(tmp_path: Path) -> None:
    files = {"alpha.py": "X = 1", "b/__init__.py": "", "b/tests/t.py": "", "b/py2.py": "print 1"}
    place = unpack(tmp_path, files)
    assert add_bytecode(place, bytecode(str(place), 60), TAG, MOST) == 2
    made = [name for name in tree(place) if name.endswith(".pyc")]
    assert made == [f"__pycache__/alpha.{TAG}.pyc", f"b/__pycache__/__init__.{TAG}.pyc"]
    assert bytecode(str(place), 60) == b""


@pytest.mark.guarantee("packages")
def test_a_sandbox_can_return_bytecode_for_sources_of_its_own_wheel_only(tmp_path: Path) -> None:
    place = unpack(tmp_path / "wheel", {"alpha.py": ""})
    evil = [(name, b"evil") for name in ("../../evil.py", "/tmp/evil.py", "other.py", "alpha.pyc")]
    assert add_bytecode(place, pack(*evil, ("alpha.py", b"x")), TAG, MOST) == 1
    assert not list(tmp_path.rglob("*evil*"))
    assert not list(tmp_path.rglob("*other*"))
    # What is malformed, cut off or a bomb adds nothing, or what is before that.
    for data in (b"no zlib", pack(("alpha.py", b"x"))[:-8], zlib.compress(b"\xff" * MOST)):
        assert add_bytecode(place, data, TAG, MOST) == 0


async def test_a_wheel_is_compiled_for_all_sets_and_a_sandbox_that_fails_is_not_asked_again(
    tmp_path: Path,
) -> None:
    place = unpack(tmp_path / "wheel", {"alpha.py": "X = 1"})
    asked: list[Path] = []

    async def compile_wheel(wheel: Path) -> bytes | None:
        asked.append(wheel)
        return bytecode(str(wheel), 60) if len(asked) == 1 else None

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        await compile_set(tmp_path / name, [place], TAG, MOST, compile_wheel)
        assert f"__pycache__/alpha.{TAG}.pyc" in tree(tmp_path / name)
    assert len(asked) == 2


def test_distributions_are_told_as_imports_find_them(tmp_path: Path) -> None:
    for name, version in (("first", "1"), ("second", "2")):
        info = unpack(tmp_path / name, {}) / "alpha-1.dist-info/METADATA"
        info.write_text(
            f"Name: Al_pha\nVersion: {version}\nRequires-Dist: numpy>=1\n"
            "Requires-Dist: x; extra == 'more'\n"
        )
    found = distributions([str(tmp_path / "first"), str(tmp_path / "second")])
    assert found == [["Al_pha", "1", ["numpy"]]]


@pytest.mark.guarantee("packages")
async def test_a_hostile_wheel_is_compiled_in_a_sandbox_and_its_code_runs_nowhere_for_that(
    tmp_path: Path,
) -> None:
    trace = tmp_path / "ran"
    evil = f"import pathlib, sys; pathlib.Path({str(trace)!r}).touch(); sys.exit(3)\n"
    files = {
        "alpha.py": "X = 1\n",
        **dict.fromkeys(("evil.py", "codecs.py", "json/__init__.py", "sitecustomize.py"), evil),
        "evil.pth": evil,
        "encodings/__init__.py": evil,
        "coded.py": "# coding: evil\n",
        "deep.py": "(" * 100_000,
        "large.py": "X = 9 ** 9 ** 9 if 0 else [0] * 10 ** 12\n",
    }
    with open_directory() as place:
        wheel(place, "alpha", "1.0", files=files)
        cache = place / "cache"
        dependencies = allow_from(place, "alpha", cache=str(cache))
        settings = load({"warm": "0", "runtime": "bubblewrap"}, {"HOME": str(tmp_path)})
        settings = replace(settings, dependencies=dependencies, state_dir=tmp_path / "s")
        code = "import alpha, os; os.path.exists(alpha.__cached__)"
        async with open_engine(settings, finder=ListFinder()) as engine:
            request = RunRequest(code=code, packages=("alpha",))
            first = await engine.run(request)
            assert first.result is False, first.error
            await until(lambda: any(cache.glob("sets/*/*.dist-info/COMPILED.*")))
            again = await engine.run(request)
        assert again.result is True, again.error
        made = {path.name.partition(".")[0] for path in cache.glob("sets/*/**/*.pyc")}
        assert {"alpha", "evil", "codecs"} <= made
        assert not {"deep", "coded"} & made
    assert not trace.exists()


async def test_a_set_with_matplotlib_gets_its_list_of_fonts_and_no_other_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "matplotlib").mkdir()
    answers = [None, b"../x.py\nX", b"fontlist-v1/../x.json\nX", b"sitecustomize.py\nX"]

    async def list_fonts(tree: Path) -> bytes | None:
        return answers.pop(0)

    while answers:
        await add_fonts(tmp_path, list_fonts)
    assert not tree(tmp_path)
    answers.append(b"fontlist-v3.11.0.json\n{}")
    await add_fonts(tmp_path, list_fonts)
    assert (tmp_path / ".matplotlib/fontlist-v3.11.0.json").read_bytes() == b"{}"
