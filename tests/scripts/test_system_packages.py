"""What `make install` says of packages, in a sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_texts import assert_golden_text

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "system-packages"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("bwrap") is None, reason="needs bubblewrap"
)

PRESENT = " ".join(
    re.search(r"^required=\(([^)]*)\)", SCRIPT.read_text(encoding="utf-8"), re.M)[1].split()  # type: ignore[index]
)

GOLDEN = Path(__file__).with_name("demo-packages.txt")

LATER = "crun runsc slirp4netns fuse-overlayfs catatonit tini"


def install(place: Path, *, have: str, in_release: str) -> str:
    """Return what the script says to root, with fake package tools."""
    (place / "scripts").mkdir(exist_ok=True)
    shutil.copy(SCRIPT, place / "scripts")
    tools = {
        "find-python": "exit 0",
        "dpkg-query": f'for name in {have}; do echo "$name installed"; done',
        "apt-cache": f'case " {in_release} " in *" $2 "*) echo "  Candidate: 1.0";; esac',
        "apt-get": 'echo "$0 $*" >&2',
    }
    for name, script in tools.items():
        tool = place / "scripts" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    box = [*("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-user")]
    box += ["--uid", "0", "--gid", "0", "--setenv", "PATH", f"{place / 'scripts'}:/usr/bin:/bin"]
    box += ["--tmpfs", "/run", "--tmpfs", "/usr/sbin", "--bind", str(place), str(place)]
    done = subprocess.run(
        (*box, str(place / "scripts" / "system-packages")),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_what_a_release_does_not_have_is_not_announced_as_installed(tmp_path: Path) -> None:
    told = install(tmp_path, have=f"{PRESENT} {LATER}", in_release="")
    assert "system-packages: not in this release, and not needed: docker-cli\n" in told
    assert "system-packages: installing" not in told
    assert install(tmp_path, have=f"{PRESENT} {LATER}", in_release="") == ""


def test_what_is_installed_is_named_once_it_is_known_to_be_there(tmp_path: Path) -> None:
    told = install(tmp_path, have=f"{PRESENT.replace('git ', '')} {LATER}", in_release="docker-cli")
    assert "system-packages: installing git docker-cli\n" in told
    assert "not in this release" not in told


def test_the_demonstration_installs_what_the_golden_file_lists() -> None:
    argv = [str(SCRIPT), "--list", "demo"]
    listed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert_golden_text(GOLDEN, listed)
