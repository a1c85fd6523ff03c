"""Which packages programs may import, and that they cannot change them."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import pytest

from bridge.errors import SettingsError
from bridge.model import InputFile, RunRequest
from bridge.runs import open_engine
from bridge.sandbox.process.interpreter import SYSTEM_PYTHON, find, read_packages
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.packages.rig import allowing, wheel


def environment(place: Path, version: str, line: str = "version = {}.4") -> Path:
    (place / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = /usr/bin\n{line.format(version)}\n")
    return place


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("version = {}.4", (3, 12)),
        ("version_info = {}.4.final.0", (3, 12)),
        ("version={}", (3, 12)),
    ],
)
def test_an_environments_packages_are_found(
    tmp_path: Path, line: str, version: tuple[int, int]
) -> None:
    found = read_packages(environment(tmp_path / "e", "3.12", line), as_nobody=False)
    assert found.directory == os.path.realpath(tmp_path / "e/lib/python3.12/site-packages")
    assert found.version == version


def test_a_directory_of_packages_is_taken_as_it_is(tmp_path: Path) -> None:
    """Nothing says what it was made for; backends can be given one, a setting cannot."""
    found = read_packages(tmp_path, as_nobody=False)
    assert (found.directory, found.version) == (os.path.realpath(tmp_path), None)
    with pytest.raises(SettingsError, match="is no virtual environment"):
        read_packages(tmp_path, as_nobody=False, environment=True)


def test_what_cannot_be_offered_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Asked for and silently left out would be worse."""
    made = environment(tmp_path / "e", "3.12")
    read_packages(made, as_nobody=False, environment=True)
    (made / "lib/python3.12/site-packages").rmdir()
    with pytest.raises(SettingsError, match=r"there is no .*site-packages") as caught:
        read_packages(made, as_nobody=False, environment=True)
    assert f"python3 -m venv {made}" in caught.value.remedy
    (made / "pyvenv.cfg").write_text("home = /usr/bin\n")
    with pytest.raises(SettingsError, match="does not say which Python"):
        read_packages(made, as_nobody=False, environment=True)
    tmp_path.chmod(0o700)
    with pytest.raises(SettingsError, match="nobody, who may not read") as caught:
        read_packages(tmp_path, as_nobody=True)
    assert "every user may read" in caught.value.remedy


def test_the_interpreter_is_the_one_that_the_environment_was_made_for(tmp_path: Path) -> None:
    """Else none: another could not import what is compiled."""
    own = find(as_nobody=False)
    major, minor, _ = own.version.split(".")
    fits = environment(tmp_path / "fits", f"{major}.{minor}")
    found = find(packages=fits, as_nobody=False)
    assert found.version == own.version
    assert found.packages == (os.path.realpath(fits / f"lib/python{major}.{minor}/site-packages"),)
    other = environment(tmp_path / "other", "3.7")
    with pytest.raises(SettingsError, match=r"made for Python 3\.7") as caught:
        find(packages=other, as_nobody=False)
    assert f"-m venv --clear {other}" in caught.value.remedy


PROGRAM = """
import greeting, os
with open(greeting.__file__) as file:
    text = file.read()
attempts = []
for attempt in (
    lambda: open(greeting.__file__, "a"),
    lambda: open(os.path.dirname(greeting.__file__) + "/new.py", "w"),
    lambda: os.unlink(greeting.__file__),
    lambda: os.listdir(os.path.dirname(greeting.__file__) + "/../../../bin"),
):
    try:
        attempt()
        attempts.append("ESCAPED")
    except OSError as error:
        attempts.append(type(error).__name__)
(greeting.WORD, attempts)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap and Landlock are for Linux")
@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_a_program_imports_from_the_environment_and_cannot_change_it(
    shared: Path, runtime: str
) -> None:
    """From the setting to the program, with a real environment and everything else as it is."""
    place = shared / "environment"
    await anyio.to_thread.run_sync(_make, place)
    (package,) = place.glob("lib/python*/site-packages")
    (package / "greeting.py").write_text("WORD = 'hello'\n")
    for path in (package, package / "greeting.py"):
        # As wide open as can be: what keeps a program from writing is the sandbox.
        path.chmod(0o777)
    environ = {**os.environ, "HOME": str(shared), "MCP_BRIDGE_PACKAGES": str(place)}
    flags = {"warm": "0", "runtime": runtime, "state_dir": str(shared / "state")}
    async with open_engine(load(flags, environ), finder=ListFinder()) as engine:
        result = await engine.run(RunRequest(code=PROGRAM))
    assert result.status == "success", result.error
    assert result.result[0] == "hello"
    assert "ESCAPED" not in result.result[1], result.result
    assert (package / "greeting.py").read_text() == "WORD = 'hello'\n"
    assert not (package / "new.py").exists()


async def test_a_name_in_several_places_is_what_was_asked_for_and_what_depends_on_it_fits(
    shared: Path, tmp_path: Path
) -> None:
    place, links = shared / "environment", tmp_path / "links"
    await anyio.to_thread.run_sync(_make, place)
    (site,) = place.glob("lib/python*/site-packages")
    links.mkdir()
    for version in ("1.0", "2.0"):
        wheel(links, "helper", version)
        wheel(links, "needs", version, requires=[f"helper=={version}"])
    wheel(links, "both", "1.0", files={"both.py": "PLACE = 'packages'"})
    for name in ("helper", "needs"):
        with zipfile.ZipFile(links / f"{name}-1.0-py3-none-any.whl") as archive:
            archive.extractall(site)
    (site / "both.py").write_text("PLACE = 'environment'")
    environ = {"HOME": str(shared), "MCP_BRIDGE_PACKAGES": str(place)}
    settings = load({"warm": "0", "runtime": "bubblewrap"}, environ)
    dependencies = allowing(links, "*", cache=str(shared / "cache"))
    settings = replace(settings, dependencies=dependencies, state_dir=tmp_path / "s")
    async with open_engine(settings, finder=ListFinder()) as engine:
        own = RunRequest(code="import both, needs, helper; both.PLACE, needs.VERSION")
        assert (await engine.run(own)).result == ["environment", "1.0"]
        file = InputFile(name="both.py", data=b"PLACE = 'workspace'")
        asked = replace(own, packages=("helper==2.0", "both"))
        assert (await engine.run(asked)).result == ["packages", "2.0"]
        assert (await engine.run(replace(asked, files=(file,)))).result == ["workspace", "2.0"]


async def test_a_program_finds_a_shell_and_its_commands(tmp_path: Path) -> None:
    settings = load({"warm": "0", "runtime": "bubblewrap"}, {"HOME": str(tmp_path)})
    command = "echo b a | sort | head -1; ls; command -v perl bash bwrap"
    code = f"import os; open('x', 'w'); print(os.popen({command!r}).read())"
    async with open_engine(settings, finder=ListFinder()) as engine:
        assert (await engine.run(RunRequest(code=code))).stdout.split() == ["b", "a", "out", "x"]


def _make(place: Path) -> None:
    python = SYSTEM_PYTHON if os.access(SYSTEM_PYTHON, os.X_OK) else sys.executable
    subprocess.run([python, "-m", "venv", "--without-pip", str(place)], check=True)
