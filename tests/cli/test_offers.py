"""What `doctor` offers to do, and the commands that it leaves to the person."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.cli import offers
from bridge.cli.doctor import doctor
from bridge.cli.offers import offer, state_remedy
from bridge.errors import ImageMissingError, ImagePullError
from bridge.sandbox.backend import Probe
from bridge.settings import Settings, load
from tests.cli.desk import desk
from tests.waiting import typing_answers

MISSING = Probe(backend="podman", ok=False, summary="no", error_code=ImageMissingError.code)
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


async def test_the_state_directory_is_closed_when_agreed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert f"Do `chmod 700 {place}`?" in told[0]
    assert (place.stat().st_mode & 0o777, state_remedy(settings)) == (0o700, "")


@pytest.mark.parametrize("named", ["shared", "mcp-code-bridge"])
async def test_a_directory_that_somebody_named_is_not_offered_to_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """With /var for its state, the bridge as root would close that to the whole system."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    (tmp_path / "mcp-code-bridge").symlink_to(shared)
    settings = _settings(tmp_path, state_dir=str(tmp_path / named))
    async with _person(monkeypatch):
        assert not await offer([WORKS], settings)
    assert state_remedy(settings) == f"chmod 700 {shared}"
    assert shared.stat().st_mode & 0o777 == 0o755


def test_another_users_directory_is_left_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(tmp_path)
    settings.state_dir.mkdir(parents=True, mode=0o500)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert state_remedy(settings) == f"sudo chown -R 4000000 {settings.state_dir}"


async def test_a_missing_image_is_built_when_agreed_to_and_no_sandbox_works_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    async def build(settings: Settings) -> int:
        built.append(settings.runtime)
        if len(built) == 1:
            raise ImagePullError("no registry answers")
        return 0

    monkeypatch.setattr(offers, "build_image", build)
    async with _person(monkeypatch, "yes\n", "yes\n") as told:
        assert not await offer([MISSING, WORKS], _settings(tmp_path))
        assert not await offer([MISSING], _settings(tmp_path, image="own:1"))
        assert not await offer([MISSING], _settings(tmp_path))
        assert await offer([MISSING], _settings(tmp_path))
    assert built == ["podman", "podman"]
    assert "image build --offline" in told[0]


async def test_doctor_fails_where_nothing_can_be_kept(
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
        assert f"FAIL  state: cannot write to {settings.state_dir}: File exists.\n" in told
        assert "MCP_BRIDGE_STATE_DIR" in told
        settings.state_dir.unlink()
    status = await doctor(settings, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["state"]["problem"] == ""
    assert status == (0 if document["chosen"] else 1)
    settings.state_dir.chmod(0o755)
    await doctor(settings)
    assert f"warning: others may look into {settings.state_dir}" in capsys.readouterr().out
