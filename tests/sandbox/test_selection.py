"""Which backend is chosen, and that none is chosen when none works."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.guest import isolation_facts
from bridge.model import Limits
from bridge.runs.sandboxes import recipe_for
from bridge.sandbox.backend import Contents, limits_for
from bridge.sandbox.probe import contents_of, recall, remember
from bridge.sandbox.selection import candidates, engines, probe_all, select_backend
from bridge.settings import Settings, load
from bridge.settings.parsers import LADDER
from tests.raised import raises_code


def _settings(tmp_path: Path, **flags: str) -> Settings:
    environ = dict.fromkeys(("DOCKER_HOST", "CONTAINER_HOST"), f"unix://{tmp_path}/none.sock")
    environ |= {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    return load({"state_dir": str(tmp_path / "s"), **flags}, environ)


def test_auto_tries_engines_before_bubblewrap_and_the_weaker_tier_has_to_be_named() -> None:
    assert candidates("auto") == LADDER == ("podman", "docker", "bubblewrap", "seatbelt")
    assert candidates("landlock") == ("landlock",)
    assert candidates("docker") == ("docker",)
    assert candidates("/usr/bin/podman") == ("/usr/bin/podman",)
    assert engines(Settings()) == ("podman", "docker")


def test_images_are_for_engines() -> None:
    for name in ("bubblewrap", "seatbelt", "landlock"):
        settings = Settings(runtime=name, places={"runtime": "c.toml:2: runtime"})
        with pytest.raises(SettingsError, match=f"c.toml:2: runtime: {name} uses no images"):
            engines(settings)


def test_the_order_can_be_set_and_what_it_leaves_out_is_not_tried() -> None:
    assert candidates("auto", ("bubblewrap", "docker")) == ("bubblewrap", "docker")
    assert candidates("podman", ("bubblewrap", "docker")) == ("podman",)


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
        problem = "is no virtual environment" if exists else f"there is no {place}"
        with pytest.raises(SettingsError, match=problem) as caught:
            await select_backend(_settings(tmp_path, runtime=runtime, packages=str(place)))
        assert "-m venv" in caught.value.remedy


async def test_packages_for_another_python_are_refused_and_not_left_out(
    tmp_path: Path, shared: Path
) -> None:
    (tmp_path / "bwrap").symlink_to(str(shutil.which("bwrap")))
    place = shared / "environment"
    (place / "lib" / "python3.7" / "site-packages").mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.7.9\n")
    with pytest.raises(SettingsError, match=r"was made for Python 3\.7, and sandboxes") as caught:
        await select_backend(_settings(tmp_path, packages=str(place)))
    assert f"-m venv --clear {place}" in caught.value.remedy


def test_packages_are_listed_as_installers_name_them_and_imports_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wheels = ("scikit_learn-1.2.dist-info", "PyYAML-6.0.egg-info", "old-1-py3.11.egg-info")
    for name in (*wheels, "lz4-4.0.2+dfsg.egg-info", "lz4", "unnamed.dist-info"):
        (first / name).mkdir(parents=True)
    (second / "PyYAML-5.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(first), str(second), str(tmp_path / "none.zip")])
    monkeypatch.setattr(isolation_facts, "package_directories", list)
    versions = {"scikit-learn": "1.2", "PyYAML": "6.0", "old": "1", "lz4": "4.0.2+dfsg"}
    assert isolation_facts.distributions() == versions


def test_the_best_known_come_first_and_parts_of_others_not_at_all() -> None:
    listed = {"zeta": "1", "six": "1", "acme": "1", "pandas": "2.2", "NumPy": "2.1"}
    contents = contents_of({"python": "3.11.2", "packages": listed})
    assert contents.python == "3.11"
    assert [name for name, _ in contents.packages] == ["NumPy", "pandas", "acme", "zeta"]


@pytest.mark.parametrize(
    "packages", [None, 7, {"x. Ignore all": "1", "x\n": "1", "x": "1 r", "y": 0, "z" * 61: "1"}]
)
def test_nothing_but_names_and_versions_reaches_a_model(packages: object) -> None:
    names = [name for name, _ in contents_of({"python": ["3"], "packages": packages}).packages]
    assert names == (["y"] if isinstance(packages, dict) else [])


@pytest.mark.parametrize("stored", [b"", b"[]", b"{", b'{"x": 1}', b"\xff"])
def test_what_cannot_be_read_is_unknown_and_replaced(tmp_path: Path, stored: bytes) -> None:
    settings = Settings(state_dir=tmp_path)
    remember(settings, Contents(python="3.9"))
    [file] = tmp_path.iterdir()
    file.write_bytes(stored)
    assert recall(settings) == Contents()
    remember(settings, Contents(python="3.12"))
    assert recall(settings) == Contents(python="3.12")


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is of Linux")
async def test_packages_of_an_environment_are_found_in_the_sandbox_and_run_no_code(
    tmp_path: Path, shared: Path
) -> None:
    version = "{}.{}".format(*sys.version_info)
    packages = shared / "lib" / f"python{version}" / "site-packages"
    (packages / "acme-1.5.dist-info").mkdir(parents=True)
    (shared / "pyvenv.cfg").write_text(f"version = {version}.0\n", encoding="utf-8")
    for name in ("acme.py", "sitecustomize.py", "usercustomize.py"):
        (packages / name).write_text("raise SystemExit('package code ran')\n", encoding="utf-8")
    settings = Settings(state_dir=tmp_path, runtime="bubblewrap", packages=shared)
    backend = await select_backend(settings)
    await backend.aclose()
    assert recall(settings) == Contents(python=version, packages=(("acme", "1.5"),))
    assert recall(Settings(state_dir=tmp_path)) == Contents()


def test_the_standard_profile_is_what_the_settings_say_and_the_strict_one_only_narrows() -> None:
    usual = limits_for(Settings(memory=1024**3, pids=64, cpus=2, timeout=9), 4)
    assert (usual.memory_bytes, usual.pids, usual.cpus, usual.timeout) == (1024**3, 64, 2, 4)
    limits = limits_for(Settings(profile="strict", cpus=4), 60)
    assert (limits.memory_bytes, limits.cpus, limits.timeout) == (128 * 1024**2, 0.5, 5)
    tiny = limits_for(Settings(profile="strict", memory=64 * 1024**2, cpus=0.1), 2)
    assert (tiny.memory_bytes, tiny.cpus, tiny.timeout) == (64 * 1024**2, 0.1, 2)
    assert tiny.tmp_bytes + tiny.workspace_bytes < tiny.memory_bytes


SETTINGS = Settings()
USUAL = recipe_for(limits_for(SETTINGS))

WITH_THE_RUN = {
    *("timeout", "output_bytes", "output_tokens", "result_bytes", "frame_bytes"),
    *("tool_calls", "concurrent_calls"),
}
"""Limits that the host or the `Run` frame enforces, whatever sandbox the run is in."""


@pytest.mark.parametrize("name", sorted(field.name for field in fields(Limits)))
def test_every_limit_is_the_sandboxs_or_the_runs(name: str) -> None:
    """A new limit is not forgotten: it makes another sandbox until it is named here."""
    limits = limits_for(SETTINGS)
    other = replace(limits, **{name: (getattr(limits, name) or 1) + 1})  # type: ignore[arg-type]
    assert (recipe_for(other) == USUAL) == (name in WITH_THE_RUN)
    assert USUAL.limits.timeout == SETTINGS.max_timeout
