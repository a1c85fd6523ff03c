"""Which Python goes in, and with what."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.interpreter import (
    SYSTEM_PYTHON,
    candidates,
    closed_file,
    describe,
    find,
)
from tests.raised import raises_code
from tests.sandbox.process.rig import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")


def test_the_systems_python_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = candidates("/opt/python")
    assert usual[:2] == [SYSTEM_PYTHON, "/opt/python/bin/python3"]
    found = candidates("/usr")
    assert found[0] == SYSTEM_PYTHON
    assert len(set(map(os.path.realpath, found))) == len(found)
    monkeypatch.setattr(sys, "platform", "darwin")
    mac = candidates("/opt/python")
    assert SYSTEM_PYTHON not in mac
    assert {*map(os.path.realpath, usual[2:])} <= {*map(os.path.realpath, mac)}
    assert mac[1:] or not Path(os.path.realpath(SYSTEM_PYTHON)).name.startswith("python3.")


def test_what_is_bound_is_the_interpreter_and_nothing_above_it() -> None:
    found = find(as_nobody=os.getuid() == 0)
    places = [bind.inside for bind in found.binds]
    assert found.executable in places
    assert any("libc.so" in place for place in places)
    for place in places:
        assert place not in ("/", "/usr", "/usr/lib", "/usr/lib64", "/etc", "/home", "/root")
        assert not any(other != place and place.startswith(f"{other}/") for other in places)
    assert not [p for p in places if p.endswith(("site-packages", "dist-packages"))]


def test_packages_beside_the_standard_library_are_hidden(tmp_path: Path) -> None:
    stdlib = tmp_path / "lib" / "python3.12"
    (stdlib / "site-packages").mkdir(parents=True)
    facts = {
        "version": [3, 12, 1],
        "executable": "/opt/bin/python3.12",
        "stdlib": str(stdlib),
        "path": [str(stdlib), str(stdlib / "lib-dynload")],
        "libraries": ["", "linux-vdso.so.1", str(stdlib / "lib-dynload" / "_x.so")],
    }
    found = describe(facts)
    assert found.hidden == (str(stdlib / "site-packages"),)
    assert str(stdlib / "lib-dynload") not in [bind.inside for bind in found.binds]
    assert ("/opt/bin/python3.12", SYSTEM_PYTHON) in found.links
    offered = describe(facts, str(stdlib / "site-packages"))
    assert offered.hidden == ()
    assert offered.packages == (str(stdlib / "site-packages"),)


def test_an_absent_interpreter_is_named() -> None:
    with raises_code("engine_not_found", match="/no/python is not there") as caught:
        find(only="/no/python", as_nobody=False)
    assert "apt install python3" in caught.value.remedy


async def test_no_installed_package_is_found_inside(backend: BubblewrapBackend) -> None:
    paths = [sysconfig.get_path("purelib"), "/usr/lib/python3/dist-packages"]
    program = f"import os\nprint([p for p in {paths!r} if os.path.isdir(p) and os.listdir(p)])"
    assert (await run(backend, program)).out == "[]\n"


def test_a_broken_python_does_not_hide_one_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    places = (str(broken), str(Path(sys.base_prefix) / "bin" / "python3"))
    monkeypatch.setattr("bridge.sandbox.process.interpreter.candidates", lambda _: places)
    assert find(as_nobody=False).executable == os.path.realpath(places[1])
    monkeypatch.setattr("bridge.sandbox.process.interpreter.candidates", lambda _: places[:1])
    with raises_code("engine_not_found", match="could not list the files"):
        find(as_nobody=False)


def test_a_python_whose_files_only_root_may_read_is_not_offered(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    library = tmp_path / "libpython.so"
    library.touch(mode=0o644)
    facts = {"version": [3, 13, 0], "executable": "/usr/bin/env", "stdlib": "/usr/lib"}
    facts |= {"path": [], "libraries": [str(library)]}
    assert closed_file(describe(facts)) == str(library)
    own = tmp_path / "python3"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    with raises_code("engine_not_found", match=r"owner only.*ordinary user.*UV_PYTHON") as told:
        find(only=str(own), as_nobody=True)
    assert "Install Python 3.9" in told.value.remedy
