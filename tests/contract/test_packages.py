"""Packages and directories of the host in real sandboxes, on every engine."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import InvalidRequestError, PackageRefusedError
from bridge.model import Directory, RunRequest, RunResult
from bridge.runs import Engine
from bridge.settings import Settings, state
from tests.contract.rig import Engine as EngineUnderTest
from tests.contract.rig import EngineSet, on_engines, rig_on
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.packages.rig import Index, allow_from, open_directory, wheel

ENGINES = on_engines("bubblewrap", "podman", "docker")

LOOK = """
# /// script
# dependencies = ["helper"]
# ///
import errno, json, os, socket, subprocess, sys
import rpds, helper
found = {
    "native": dict(rpds.HashTrieMap({"a": 1}).insert("b", 2)),
    "files": [rpds.__file__, helper.__file__],
    "order": sys.path.index("/workspace") < sys.path.index("/packages"),
    "ran": sorted({"evil_pth", "sitecustomize"} & set(sys.modules)) + os.listdir("/workspace/out"),
    "read": open("/mnt/data/in.txt").read(),
    "refused": {},
}
open("/mnt/out/made.txt", "w").write("by the program")
for place in ("/packages/x", "/packages/helper.py", "/mnt/data/x", "/mnt/data/in.txt"):
    try:
        open(place, "w")
        found["refused"][place] = "ESCAPED"
    except OSError as error:
        found["refused"][place] = errno.errorcode[error.errno]
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=5)
    found["network"] = "ESCAPED"
except OSError as error:
    found["network"] = "none"
child = subprocess.run([sys.executable, "-c", "import os; print(os.path.exists('/packages'))"],
                       capture_output=True, text=True)
found["child"] = child.stdout.strip()
print(json.dumps(found))
"""


def native_wheel(directory: Path) -> None:
    distribution = metadata.distribution("rpds-py")
    files = {
        str(file): Path(str(distribution.locate_file(file))).read_bytes()
        for file in distribution.files or ()
        if file.parts[0] == "rpds" and "__pycache__" not in file.parts
    }
    assert any(name.endswith(".so") for name in files)
    abi = f"cp{sysconfig.get_config_var('py_version_nodot')}"
    machine = os.uname().machine
    tag = f"{abi}-{abi}-manylinux_2_17_{machine}"
    wheel(directory, "rpds_py", distribution.version, files=files, tag=tag)


@asynccontextmanager
async def opened(found: EngineUnderTest, settings: Settings) -> AsyncIterator[Engine]:
    async with (
        rig_on(found, settings.state_dir / "run") as rig,
        engine_on(rig.backend, settings, finder=ListFinder()) as engine,
    ):
        yield engine


def settings_with(place: Path, index: Index, settings: Settings) -> Settings:
    return replace(
        settings,
        dependencies=allow_from(
            index.url, "rpds-py", "helper", "third", cache=str(place / "cache")
        ),
        directories=tuple(
            Directory(
                name=each, path=str(place / each), inside=f"/mnt/{each}", writable=each == "out"
            )
            for each in ("data", "out")
        ),
    )


async def run(engine: Engine, code: str, *packages: str, **more: Any) -> RunResult:
    request = RunRequest(code=code, packages=packages, owner="me", **more)
    return await engine.run(request)


async def follow_session(engine: Engine) -> None:
    # A session keeps what its runs asked for, and what it holds when it gets more.
    first = await run(engine, "import rpds; x = [1]", "rpds-py", session="s")
    assert first.status == "success", first.error
    there = f"rpds-py=={metadata.version('rpds-py')}"
    for texts in ([], ["rpds-py"], [there]):
        later = await run(engine, "import rpds; x", *texts, session="s")
        assert later.result == [1], later.error
        assert later.session is not None
        assert later.session.state == "kept"
    more = await run(engine, "import helper, rpds; x, helper.X", "helper", session="s")
    assert more.result == [[1], 1], more.error
    assert more.session is not None
    assert (more.session.state, more.session.lost) == ("restored", ())
    with pytest.raises(PackageRefusedError, match="other is not allowed"):
        await run(engine, "1", "other", session="s")
    # What could not be restored is named first.
    held = await run(engine, "import threading; t = threading.Lock()", session="s")
    assert held.status == "success", held.error
    with pytest.raises(PackageRefusedError, match=r"would not be restored there: t \(") as refusal:
        await run(engine, "import third", "third", session="s")
    assert '"lose_state": true' in refusal.value.remedy
    third = await run(engine, "import third; x", "third", session="s", loses_state=True)
    assert third.result == [1], third.error


@pytest.mark.guarantee("packages", "directories")
@ENGINES
async def test_packages_and_directories_are_there_and_nothing_else_is(
    name: str, engines: EngineSet, tmp_path: Path
) -> None:
    found = engines.get(name)
    with open_directory() as place, Index(place / "links") as index:
        for directory in ("links", "data", "out"):
            (place / directory).mkdir()
        (place / "out").chmod(0o777)
        (place / "data/in.txt").write_text("of the host")
        native_wheel(place / "links")
        evil = {
            "helper.py": "X = 1",
            "evil.pth": "import sys; sys.modules['evil_pth'] = sys",
            "sitecustomize.py": "open('/workspace/out/ran', 'w')",
        }
        wheel(place / "links", "helper", "1.0", files=evil)
        wheel(place / "links", "third", "1.0")
        settings = settings_with(place, index, settings_in(tmp_path))
        async with opened(found, settings) as engine:
            port = index.url.rpartition(":")[2].partition("/")[0]
            result = await run(engine, LOOK.replace("PORT", port), "rpds-py")
            assert result.status == "success", result.error
            seen = json.loads(result.stdout)
            assert seen["native"] == {"a": 1, "b": 2}
            assert all(path.startswith("/packages/") for path in seen["files"])
            assert seen["order"]
            assert seen["ran"] == []
            assert seen["read"] == "of the host"
            assert set(seen["refused"].values()) == {"EROFS"}
            assert seen["network"] == "none"
            assert (place / "out/made.txt").read_text() == "by the program"
            # Seen from inside, before the program.
            assert result.isolation is not None
            assert {"read-only:/packages", "read-only:/mnt/data"} <= set(result.isolation.verified)
            assert "no-network" in result.isolation.verified
            assert any("directory out: " in text for text in result.isolation.weaker)
            # What was found is used again, without a look at the index.
            asked = len(index.asked)
            again = await run(engine, "import helper; helper.X", "helper", "rpds-py")
            assert again.result == 1, again.error
            assert len(index.asked) == asked

            await follow_session(engine)

            # Another run has none of it.
            alone = await run(engine, "import os; print(os.path.exists('/packages'))")
            assert alone.stdout == "False\n"
            with pytest.raises(InvalidRequestError, match="^Line 1: the script metadata"):
                await run(engine, "# /// script\n# dependencies = 1\n# ///\n")


async def test_with_default_settings_programs_may_read_packages_whichever_user_the_bridge_is(
    engines: EngineSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = engines.get("bubblewrap")
    wheel(tmp_path, "helper", "1.0")
    with open_directory() as place, Index(tmp_path) as index:
        monkeypatch.setattr(state, "ROOT_PACKAGES_DIR", place / "kept")
        # Whatever root's mask is.
        before = os.umask(0o077)
        try:
            settings = settings_in(tmp_path)
            environ = {**settings.environ, "UV_DEFAULT_INDEX": index.url}
            dependencies = allow_from("", "helper")
            settings = replace(settings, dependencies=dependencies, environ=environ)
            async with opened(found, settings) as engine:
                result = await run(engine, "import helper; helper.__file__", "helper")
        finally:
            os.umask(before)
    assert result.result == "/packages/helper.py", result.error
