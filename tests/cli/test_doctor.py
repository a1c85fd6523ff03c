"""What `doctor` offers to do, and the commands that it leaves to the user."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.cli import doctor as doctor_module
from bridge.cli.doctor import (
    check_packages,
    check_store,
    describe_directories,
    describe_packages,
    describe_store,
    doctor,
    offer,
    state_remedy,
)
from bridge.errors import SandboxError
from bridge.model import Directory
from bridge.sandbox.backend import Probe
from bridge.settings import Settings, load
from tests.cli.desk import desk
from tests.packages.rig import allow_from, wheel
from tests.postgresql import PASSWORD, Server
from tests.waiting import typing_answers

MISSING = Probe(backend="podman", ok=False, summary="no", error_code="image_missing")
WORKS = Probe(backend="bubblewrap", ok=True, summary="yes")


def _settings(home: Path, **flags: str) -> Settings:
    return load(flags, {"HOME": str(home), "PATH": ""})


@asynccontextmanager
async def _person(monkeypatch: pytest.MonkeyPatch, *answers: str) -> AsyncIterator[list[str]]:
    with desk() as (typist, reader, writer):
        monkeypatch.setattr(sys, "stdin", reader)
        monkeypatch.setattr(sys, "stderr", writer)
        async with typing_answers(typist, *answers) as told:
            yield told


async def test_offer_closes_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings(tmp_path)
    place = settings.state_dir
    place.mkdir(parents=True, mode=0o755)
    assert state_remedy(settings) == f"chmod 700 {place}"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO("yes\n"))
        assert not await offer([WORKS], settings)
    async with _person(monkeypatch, "no\n", "yes\n") as told:
        assert not await offer([WORKS], settings)
        assert await offer([WORKS], settings)
        assert not await offer([WORKS], settings)
    assert f"Run `chmod 700 {place}`?" in told[0]
    assert (place.stat().st_mode & 0o777, state_remedy(settings)) == (0o700, "")


@pytest.mark.parametrize("named", ["shared", "mcp-code-bridge"])
async def test_doctor_does_not_offer_to_close_a_directory_that_the_user_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    # With /var as the state directory, a bridge that is root would close /var to the system.
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (tmp_path / "mcp-code-bridge").symlink_to(shared)
    settings = _settings(tmp_path, state_dir=str(tmp_path / named))
    async with _person(monkeypatch):
        assert not await offer([WORKS], settings)
    assert state_remedy(settings) == f"chmod 700 {shared}"
    assert shared.stat().st_mode & 0o777 == 0o755
    # Another user's directory needs root.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert state_remedy(settings) == f"sudo chown -R 4000000 {shared}"


async def test_offer_builds_a_missing_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    async def build(settings: Settings) -> int:
        built.append(settings.runtime)
        if len(built) == 1:
            raise SandboxError("no registry answers", code="image_pull_failed")
        return 0

    monkeypatch.setattr(doctor_module, "build_image", build)
    async with _person(monkeypatch, "yes\n", "yes\n") as told:
        assert not await offer([MISSING, WORKS], _settings(tmp_path))
        assert not await offer([MISSING], _settings(tmp_path, image="own:1"))
        assert not await offer([MISSING], _settings(tmp_path))
        assert await offer([MISSING], _settings(tmp_path))
    assert built == ["podman", "podman"]
    assert "image build --offline" in told[0]


async def test_doctor_fails_without_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = _settings(tmp_path)
    settings.state_dir.parent.mkdir(parents=True)
    for broken in ("file", "dangling link"):
        if broken == "file":
            settings.state_dir.touch()
        else:
            settings.state_dir.symlink_to(tmp_path / "nowhere")
        assert await doctor(settings, as_json=True) == 1
        state = json.loads(capsys.readouterr().out)["state"]
        assert state == {"path": str(settings.state_dir), "problem": "File exists"}
        assert await doctor(settings) == 1
        told = capsys.readouterr().out
        failure = f"FAIL  state: cannot write to {settings.state_dir}: File exists.\n"
        assert (failure in told, "MCP_BRIDGE_STATE_DIR" in told) == (True, True)
        settings.state_dir.unlink()
    status = await doctor(settings, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["state"]["problem"] == ""
    assert status == (0 if document["chosen"] else 1)
    settings.state_dir.chmod(0o755)
    await doctor(settings)
    assert "warning: other users can read the bridge's state" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "writable", "usable"),
    [(0o755, False, True), (0o750, False, False), (0o755, True, False), (0o777, True, True)],
)
def test_doctor_names_a_closed_directory(
    tmp_path: Path, mode: int, writable: bool, usable: bool
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    place.chmod(mode)
    if writable and not usable and place.stat().st_uid != 0:
        pytest.skip("only root can make a directory of root's")
    directory = Directory(name="data", path=str(place), inside="/mnt/data", writable=writable)
    settings = replace(load({}, {"HOME": str(tmp_path)}), directories=(directory,))
    told = describe_directories(settings, root=True)
    assert told.startswith(f"directory: data: {place} at /mnt/data, ")
    assert ("FAIL" in told) is not usable
    if not usable:
        # The command gives no more access than programs need.
        assert f"run `{'chown 65534' if writable else 'chmod o+rx'} {place}`" in told
    assert "FAIL" not in describe_directories(settings, root=False)


async def test_packages_are_tried_with_the_index_of_programs(tmp_path: Path) -> None:
    wheel(tmp_path, "alpha", "1.0")
    settings = load({}, {"HOME": str(tmp_path)})
    assert "none are allowed" in describe_packages(await check_packages(settings))
    told = {}
    for allow in ("alpha==1.*", "beta", "types-*"):
        dependencies = allow_from(tmp_path, "gamma-*", allow)
        check = await check_packages(replace(settings, dependencies=dependencies))
        told[allow] = describe_packages(check)
        assert f"allowed: gamma-*, {allow}\n" in told[allow]
        assert f"index: {tmp_path}\n" in told[allow]
    assert told["alpha==1.*"].startswith("packages: ok\n")
    assert told["beta"].startswith("packages: FAIL: beta cannot be resolved. uv says: ")
    assert told["types-*"].startswith("packages: ok\n")
    closed = replace(settings, profile="strict", dependencies=allow_from(tmp_path, "alpha"))
    assert "profile strict allows no packages" in describe_packages(await check_packages(closed))


def test_a_store_on_a_server_is_shown_without_password(tmp_path: Path, postgresql: Server) -> None:
    url = postgresql.url("pg_temp", host="127.0.0.1")
    environ = {"HOME": str(tmp_path), "MCP_BRIDGE_STORE": url}
    said = describe_store(check_store(load({}, environ)))
    assert said == f"store: ok: postgresql://bridge@127.0.0.1:{postgresql.port}/postgres\n"
    environ["MCP_BRIDGE_STORE"] = url.replace(str(postgresql.port), "1")
    said = describe_store(check_store(load({}, environ)))
    for part in ("store: FAIL: the database server cannot be reached", "MCP_BRIDGE_STORE"):
        assert part in said
    assert PASSWORD not in said


def test_a_damaged_store_is_reported_and_a_missing_one_is_not_made(tmp_path: Path) -> None:
    settings = load({}, {"HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")})
    assert describe_store(check_store(settings)) == f"store: ok: {tmp_path / 'state'}\n"
    assert not (tmp_path / "state").exists()
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "store.db").write_bytes(b"no database" * 100)
    assert "damaged" in describe_store(check_store(settings))
