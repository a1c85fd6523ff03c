"""Which backend is chosen, and that none is chosen when none works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.sandbox.selection import candidates, engines, probe_all, select_backend
from bridge.settings import Settings, load
from bridge.settings.parsers import LADDER
from tests.raised import raises_code


def _settings(tmp_path: Path, **flags: str) -> Settings:
    """Settings on a machine that has no engine: nothing on the path, no socket."""
    environ = {
        "HOME": str(tmp_path),
        "PATH": str(tmp_path),
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
        "CONTAINER_HOST": f"unix://{tmp_path}/none.sock",
    }
    return load({"state_dir": str(tmp_path / "s"), **flags}, environ)


def test_auto_tries_engines_before_bubblewrap() -> None:
    assert candidates("auto") == LADDER == ("podman", "docker", "bubblewrap", "seatbelt")
    assert candidates("docker") == ("docker",)
    assert candidates("/usr/bin/podman") == ("/usr/bin/podman",)
    assert engines(Settings()) == ("podman", "docker")


def test_images_are_for_engines() -> None:
    """`image build` has nothing to do for the others; what says so names the place at fault."""
    for name in ("bubblewrap", "seatbelt", "landlock"):
        settings = Settings(runtime=name, places={"runtime": "c.toml:2: runtime"})
        with pytest.raises(SettingsError, match=f"c.toml:2: runtime: {name} uses no images"):
            engines(settings)


def test_the_order_can_be_set_and_what_it_leaves_out_is_not_tried() -> None:
    assert candidates("auto", ("bubblewrap", "docker")) == ("bubblewrap", "docker")
    assert candidates("podman", ("bubblewrap", "docker")) == ("podman",)


def test_the_weaker_tier_is_had_by_its_name_only() -> None:
    assert "landlock" not in LADDER
    assert candidates("landlock") == ("landlock",)


async def test_with_nothing_that_works_nothing_is_chosen(tmp_path: Path) -> None:
    with raises_code(
        "no_sandbox", match=r"nothing was run.*podman:.*docker:.*bubblewrap:(?!.*seatbelt:)"
    ):
        await select_backend(_settings(tmp_path))
    probes = await probe_all(_settings(tmp_path))
    assert [probe.ok for probe in probes] == [False] * 4
    assert all(probe.remedy for probe in probes)


async def test_an_oci_runtime_asked_for_is_not_traded_for_bubblewrap(tmp_path: Path) -> None:
    probes = await probe_all(_settings(tmp_path, oci_runtime="runsc"))
    assert [probe.backend for probe in probes] == ["podman", "docker"]
    with pytest.raises(SettingsError, match="cannot use runsc"):
        await select_backend(_settings(tmp_path, oci_runtime="runsc", runtime="bubblewrap"))
    with pytest.raises(SettingsError, match="names no engine"):
        await select_backend(_settings(tmp_path, oci_runtime="runsc", runtime_order="bubblewrap"))


async def test_an_image_asked_for_is_not_traded_for_bubblewrap(tmp_path: Path) -> None:
    (tmp_path / "bwrap").symlink_to(str(shutil.which("bwrap")))
    with raises_code("no_sandbox", match=r"nothing was run\. podman:.*docker:"):
        await select_backend(_settings(tmp_path, image="nosuch:latest"))
    with pytest.raises(SettingsError, match="--runtime-order names no engine, and --image asks"):
        await select_backend(_settings(tmp_path, image="nosuch:latest", runtime_order="bubblewrap"))


@pytest.mark.parametrize("exists", [False, True])
async def test_packages_that_are_none_are_refused_before_anything_is_tried(
    tmp_path: Path, exists: bool
) -> None:
    place = tmp_path / "environment"
    if exists:
        place.mkdir()
    for runtime in ("auto", "docker", "bubblewrap"):
        with pytest.raises(SettingsError, match="is no virtual environment") as caught:
            await select_backend(_settings(tmp_path, runtime=runtime, packages=str(place)))
        assert "-m venv" in caught.value.remedy


async def test_packages_for_another_python_are_refused_and_not_left_out(
    tmp_path: Path, shared: Path
) -> None:
    """By the first backend that would use them, with the command that makes them again."""
    (tmp_path / "bwrap").symlink_to(str(shutil.which("bwrap")))
    place = shared / "environment"
    (place / "lib" / "python3.7" / "site-packages").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.7.9\n")
    with pytest.raises(SettingsError, match=r"was made for Python 3\.7, and sandboxes") as caught:
        await select_backend(_settings(tmp_path, packages=str(place)))
    assert f"-m venv --clear {place}" in caught.value.remedy
