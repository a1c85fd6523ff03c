"""Which backend is chosen, and that none is chosen when none works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.errors import NoSandboxError, SettingsError
from bridge.sandbox.choose import LADDER, candidates, choose, engines, survey
from bridge.settings import Settings, load


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
    """A container engine's image is known; the host's interpreter is whatever there is."""
    assert candidates("auto") == LADDER == ("podman", "docker", "bubblewrap")
    assert candidates("docker") == ("docker",)
    assert candidates("/usr/bin/podman") == ("/usr/bin/podman",)
    assert engines("auto") == ("podman", "docker")


@pytest.mark.parametrize("runtime", ["seatbelt", "none", "lxc", ""])
def test_a_name_that_is_no_backend_is_refused(runtime: str) -> None:
    """There is no name for running without a sandbox."""
    with pytest.raises(SettingsError, match="MCP_BRIDGE_RUNTIME"):
        candidates(runtime)


def test_images_are_for_engines() -> None:
    """`image build` has nothing to do for bubblewrap."""
    with pytest.raises(SettingsError, match="uses no images"):
        engines("bubblewrap")


async def test_with_nothing_that_works_nothing_is_chosen(tmp_path: Path) -> None:
    """And each backend's reason is told."""
    with pytest.raises(NoSandboxError, match=r"nothing was run.*podman:.*docker:.*bubblewrap:"):
        await choose(_settings(tmp_path))
    probes = await survey(_settings(tmp_path))
    assert [probe.ok for probe in probes] == [False, False, False]
    assert all(probe.remedy for probe in probes)


async def test_an_oci_runtime_asked_for_is_not_traded_for_bubblewrap(tmp_path: Path) -> None:
    """Whoever asks for gVisor does not get namespaces without a word."""
    probes = await survey(_settings(tmp_path, oci_runtime="runsc"))
    assert [probe.backend for probe in probes] == ["podman", "docker"]
    with pytest.raises(SettingsError, match="cannot use runsc"):
        await choose(_settings(tmp_path, oci_runtime="runsc", runtime="bubblewrap"))


async def test_without_an_engine_bubblewrap_runs_the_code(tmp_path: Path) -> None:
    """No daemon and no image are needed."""
    settings = _settings(tmp_path)
    path = {**settings.environ, "PATH": os.environ["PATH"]}
    auto = load({"state_dir": str(tmp_path / "s"), "runtime": "bubblewrap"}, path)
    backend = await choose(auto)
    try:
        assert backend.name == "bubblewrap"
    finally:
        await backend.aclose()
