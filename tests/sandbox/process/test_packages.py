"""Which packages programs may import, and that they cannot change them."""

from __future__ import annotations

import json
import marshal
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import pytest

from bridge.errors import LaunchError, SettingsError
from bridge.model import InputFile, RunRequest
from bridge.runs import open_engine
from bridge.sandbox.bundle import own_tag
from bridge.sandbox.process.host import (
    become,
    find_command,
    find_setpriv,
    in_container,
    is_mapped,
    kernel_settings,
)
from bridge.sandbox.process.interpreter import (
    SYSTEM_PYTHON,
    Interpreter,
    compile_with,
    compiled_stage,
    find,
    loader_command,
    read_packages,
    stage_payload,
    stage_text,
)
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.packages.rig import allow_from, wheel


def environment(place: Path, version: str, line: str = "version = {}.4") -> Path:
    (place / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text(f"home = /usr/bin\n{line.format(version)}\n")
    return place


@pytest.mark.parametrize("line", ["version = {}.4", "version_info = {}.4.final.0", "version={}"])
def test_packages_of_an_environment_or_a_directory_are_found(tmp_path: Path, line: str) -> None:
    found = read_packages(environment(tmp_path / "e", "3.12", line), as_nobody=False)
    assert found.directory == os.path.realpath(tmp_path / "e/lib/python3.12/site-packages")
    assert found.version == (3, 12)
    found = read_packages(tmp_path, as_nobody=False)
    assert (found.directory, found.version) == (os.path.realpath(tmp_path), None)
    with pytest.raises(SettingsError, match="is no virtual environment.*venv DIRECTORY"):
        read_packages(tmp_path, as_nobody=False, environment=True)
    file = tmp_path / "file"
    file.touch()
    for absent in (file, tmp_path / "none"):
        with pytest.raises(SettingsError, match=f"there is no {absent}.*venv {absent}"):
            read_packages(absent, as_nobody=False, environment=True)


def test_what_cannot_be_offered_is_refused_with_what_to_do(tmp_path: Path) -> None:
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
    with pytest.raises(SettingsError, match="user nobody, who may not read") as caught:
        read_packages(tmp_path, as_nobody=True)
    assert "every user may read" in caught.value.remedy


def test_the_interpreter_is_the_one_that_the_environment_was_made_for(tmp_path: Path) -> None:
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
    dependencies = allow_from(links, "*", cache=str(shared / "cache"))
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


def interpreter(tag: str) -> Interpreter:
    return Interpreter(executable=sys.executable, version="3", binds=(), links=(), tag=tag)


def said_by(words: Sequence[str], given: bytes = b"") -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as file:
        file.write(given)
        file.seek(0)
        number = file.fileno()
        return subprocess.run(
            [str(number) if word == "FD" else word for word in words],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            stdin=subprocess.DEVNULL,
            pass_fds=[number],
        )


@pytest.mark.parametrize("tag", [own_tag(), "cpython-30-1"])
def test_what_is_compiled_runs_in_the_interpreter_it_is_for(tag: str) -> None:
    stage = compiled_stage(interpreter(tag))
    # It has a plan that it cannot carry out: far enough to be the stage.
    done = said_by(loader_command(interpreter(tag), "FD"), stage_payload(stage, "{}"))
    assert "KeyError: 'status'" in done.stderr
    assert 'File "<string>", line' in done.stderr


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_descriptor_holds_finds_its_own_words_and_those_of_the_command(
    compiled: bool,
) -> None:
    text = "import sys; print(__name__, sys.argv)"
    step = marshal.dumps(compile(text, "<string>", "exec")) if compiled else text
    command = loader_command(interpreter(""), "FD", "more")
    said = said_by(command, stage_payload(step, "plan")).stdout
    assert said == "__main__ ['-c', 'plan', 'more']\n"
    assert said_by(command, stage_payload(step)).stdout == "__main__ ['-c', 'more']\n"


def test_the_command_is_short_and_says_whose_it_is() -> None:
    words = loader_command(interpreter(""), "3")
    assert words[:4] == [sys.executable, "-I", "-S", "-c"]
    assert len(" ".join(words[1:])) < 400
    assert words[4].startswith("# mcp-code-bridge starts a sandbox")


def test_an_interpreter_is_asked_for_its_kind_and_named_if_it_compiles_nothing() -> None:
    assert find(only=sys.executable, as_nobody=False).tag == own_tag()
    with pytest.raises(LaunchError, match="/bin/false cannot compile"):
        compile_with("/bin/false", ["1"], name="x")


def test_the_stage_imports_nothing_that_is_not_needed_always() -> None:
    stage = marshal.dumps(compile(stage_text(), "<string>", "exec"))
    text = f"""
import marshal, sys
exec(marshal.loads(bytes.fromhex({stage.hex()!r})), {{"__name__": "stage"}})
import json
print(json.dumps(sorted(sys.modules)))
"""
    bare, with_stage = (
        set(json.loads(said_by([sys.executable, "-I", "-S", "-c", code]).stdout))
        for code in ("import gc, os, json, sys\nprint(json.dumps(sorted(sys.modules)))", text)
    )
    added = with_stage - bare
    assert added <= {"__future__", "_ctypes", "binascii", "resource"}


def test_an_id_exists_where_it_is_mapped() -> None:
    assert is_mapped(65534, "         0          0 4294967295\n")
    assert is_mapped(65534, "         0       1000          1\n         1     100000      65536\n")
    assert not is_mapped(65534, "         0       1000          1\n")
    assert not is_mapped(65534, "")


def test_commands_are_found_by_the_bridges_path() -> None:
    assert find_command("no-such-command", {}) is None
    assert find_command("sh", {"PATH": "/no/such/directory"}) is None
    assert (find_command("sh", {}) or "").startswith("/")


@pytest.mark.skipif(sys.platform != "linux", reason="these are settings of Linux")
def test_the_kernels_settings_can_be_read() -> None:
    found = kernel_settings("/no/such/bwrap")
    assert found.max_user_namespaces is None or found.max_user_namespaces >= 0
    assert not found.setuid
    assert found.in_container == in_container()


@pytest.mark.parametrize("does", ["exit 1", "exit 0", 'shift 4; exec "$@"', None])
def test_only_a_setpriv_that_was_seen_to_do_it_is_used(tmp_path: Path, does: str | None) -> None:
    if does is not None:
        script = tmp_path / "setpriv"
        script.write_text(f"#!/bin/sh\n{does}\n")
        script.chmod(0o755)
    assert find_setpriv({"PATH": f"{tmp_path}:/usr/bin:/bin" if does else str(tmp_path)}) == ""


@pytest.mark.skipif(
    sys.platform != "linux" or os.getuid() != 0, reason="only root becomes another user"
)
@pytest.mark.parametrize("setpriv", [True, False])
def test_a_command_that_became_another_user_has_nothing_of_root(setpriv: bool) -> None:
    found = find_setpriv({}) if setpriv else ""
    if setpriv and not found:
        pytest.skip("no setpriv")
    words = become(65534, 65534, setpriv=found, python="/usr/bin/python3")
    words += ["/bin/cat", "/proc/self/status"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    shown = {words[0]: words[1:] for words in map(str.split, said.splitlines())}
    assert shown["Uid:"] == shown["Gid:"] == ["65534"] * 4
    assert shown["Groups:"] == []
    for name in ("CapEff:", "CapPrm:", "CapInh:", "CapAmb:"):
        assert shown[name] == ["0000000000000000"]
