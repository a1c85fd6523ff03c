"""Directories of this machine that something has happened to since the settings were read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import LaunchError
from bridge.model import Directory, RunRequest
from bridge.model.runs import error_run
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend


async def test_a_directory_that_became_a_link_is_not_mounted(
    settings: Settings, backend: FakeBackend, finder: ListFinder, tmp_path: Path
) -> None:
    place = tmp_path / "data"
    place.mkdir()
    given = Directory(name="data", path=str(place), inside="/mnt/data")

    settings = replace(settings, directories=(given,))
    async with engine_on(backend, settings, finder=finder) as engine:
        place.rmdir()
        place.symlink_to("/etc")
        with pytest.raises(LaunchError, match="The directory 'data' has become a link") as error:
            await engine.run(RunRequest(code="print(1)"))
        told = error_run(error.value)
        assert str(place) not in f"{told.error} {told.summary}"
        place.unlink()
        place.mkdir()
        assert (await engine.run(RunRequest(code="print(1)"))).stdout == "1\n"
