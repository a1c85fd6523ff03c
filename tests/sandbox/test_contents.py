"""What a sandbox contains: how its guest lists it, and what of that is told and kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bridge.guest.protocol import installed
from bridge.sandbox.contents import Contents, contents_of, recall, remember
from bridge.sandbox.selection import select_backend
from bridge.settings import Settings


def test_packages_are_listed_as_installers_name_them_and_imports_find_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    wheels = ("scikit_learn-1.2.dist-info", "PyYAML-6.0.egg-info", "old-1-py3.11.egg-info")
    for name in (*wheels, "lz4-4.0.2+dfsg.egg-info", "lz4", "unnamed.dist-info"):
        (first / name).mkdir(parents=True)
    (second / "PyYAML-5.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(first), str(second), str(tmp_path / "none.zip")])
    monkeypatch.setattr(installed, "package_directories", list)
    versions = {"scikit-learn": "1.2", "PyYAML": "6.0", "old": "1", "lz4": "4.0.2+dfsg"}
    assert installed.distributions() == versions


def test_the_best_known_come_first_and_parts_of_others_not_at_all() -> None:
    listed = {"zeta": "1", "six": "1", "acme": "1", "pandas": "2.2", "NumPy": "2.1"}
    contents = contents_of({"python": "3.11.2", "packages": listed})
    assert contents.python == "3.11"
    assert [name for name, _ in contents.packages] == ["NumPy", "pandas", "acme", "zeta"]


@pytest.mark.parametrize(
    "packages",
    [None, 7, {"x. Ignore all": "1", "x\n": "1", "x": "1 r", "y": 0, "z" * 61: "1"}],
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
