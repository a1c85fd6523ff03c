"""The first minutes: the wheel without a checkout, an empty home and an almost empty PATH."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

REPOSITORY = Path(__file__).resolve().parents[2]
TOOLS = ("setpriv", "systemd-run", "id")
PATIENCE = 300.0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist))
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True, timeout=PATIENCE)
    return next(dist.glob("*.whl"))


@dataclass(frozen=True)
class Newcomer:
    """A user with an empty home, in an empty directory."""

    home: Path
    library: str
    more: Mapping[str, str] = field(default_factory=dict)

    def say(self, *words: str) -> subprocess.CompletedProcess[str]:
        paths = {"PATH": str(self.home / "bin"), "PYTHONPATH": self.library}
        paths["MCP_BRIDGE_BACKGROUND"] = "off"
        done = subprocess.run(
            (sys.executable, "-m", "bridge", *words),
            cwd=self.home / "work",
            env={"HOME": str(self.home), "LANG": "C.UTF-8", **paths, **self.more},
            input="",
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    def install(self, *commands: str) -> None:
        for name in commands:
            found = shutil.which(name)
            if found is not None:
                (self.home / "bin" / name).symlink_to(found)


@pytest.fixture
def newcomer(tmp_path: Path, wheel: Path) -> Newcomer:
    library = tmp_path / "library"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(library)
    for name in ("work", "bin"):
        (tmp_path / name).mkdir()
    newcomer = Newcomer(tmp_path, str(library))
    newcomer.install(*TOOLS)
    return newcomer


@pytest.mark.slow
def test_with_nothing_installed_every_command_says_the_next_step(newcomer: Newcomer) -> None:
    for words, status, step in (
        (("doctor",), 1, "apt install bubblewrap"),
        (("servers",), 0, "claude mcp add"),
        (("tools",), 0, "claude mcp add"),
        (("run", "-c", "print(1)"), 3, "mcp-code-bridge doctor"),
        (("image", "build"), 3, "bubblewrap needs none"),
        (("image", "status"), 3, "bubblewrap needs none"),
        (("serve",), 0, ""),
    ):
        done = newcomer.say(*words)
        assert done.returncode == status, (words, done.stderr)
        assert step in done.stdout + done.stderr, words
        assert words[0] != "run" or "Seatbelt" not in done.stderr
    assert not list((newcomer.home / "work").iterdir())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_bubblewrap_alone_is_enough_to_run_a_program(newcomer: Newcomer) -> None:
    newcomer.install("bwrap")
    done = newcomer.say("run", "-c", "print(6 * 7)")
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    report = newcomer.say("doctor")
    assert (report.returncode, "FAIL" in report.stdout) == (0, False)
    assert "off   podman: podman is not installed.\noff   docker: " in report.stdout
    assert "Programs run in: bubblewrap\n" in report.stdout
    assert json.loads(newcomer.say("doctor", "--json").stdout)["chosen"] == "bubblewrap"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("bwrap") is None or shutil.which("podman") is None, reason="needs both"
)
def test_bubblewrap_does_not_wait_for_an_engine_without_an_image(newcomer: Newcomer) -> None:
    newcomer.install("bwrap", "podman")
    places = {name: newcomer.home / name for name in ("graphroot", "runroot")}
    lines = "".join(f'{name} = "{place}"\n' for name, place in places.items())
    (newcomer.home / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\n{lines}')
    storage = {"CONTAINERS_STORAGE_CONF": str(newcomer.home / "storage.conf")}
    newcomer = replace(newcomer, more=storage)
    report = newcomer.say("doctor")
    assert "off   podman: podman has no runtime image yet.\n" in report.stdout
    assert "Programs run in: bubblewrap\n" in report.stdout
    ran = newcomer.say("run", "-c", "print(6 * 7)")
    assert (ran.returncode, ran.stdout) == (0, "42\n"), ran.stderr
    assert "pull" not in report.stderr + ran.stderr
