"""Packages for a run, settled before there is a sandbox."""

from __future__ import annotations

import itertools
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bridge.callers.client import RunCaller
from bridge.errors import InvalidRequestError, PackageRefusedError, PackageUnavailableError
from bridge.event_loop import Clock
from bridge.guest.protocol.distributions import DATA, MODULES
from bridge.model import RunRequest
from bridge.packages.packages import INSIDE, packages_of
from bridge.settings import Settings
from tests.e2e.rig import BRIDGE
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.packages.rig import allow_from, open_directory, wheel

SCRIPT = "# /// script\n# dependencies = ['Polars==1.*']\n# requires-python = '>=3.9'\n# ///\n1"


def test_what_the_call_and_the_text_ask_for_is_one_wish() -> None:
    assert packages_of(RunRequest(code="1")) == ()
    both = RunRequest(code=SCRIPT, packages=("rich >= 13", "polars == 1.*"))
    assert packages_of(both) == ("polars==1.*", "rich>=13")
    with pytest.raises(InvalidRequestError, match="Line 2"):
        packages_of(RunRequest(code="# /// script\n# x\n# ///"))


async def test_without_settings_every_package_is_refused_with_the_text_to_add(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    settings = replace(settings, dependencies=replace(settings.dependencies, cache=cache))
    async with engine_on(backend, settings, finder=ListFinder()) as engine:
        for request in (RunRequest(code="1", packages=("polars",)), RunRequest(code=SCRIPT)):
            with pytest.raises(PackageRefusedError) as refusal:
                await engine.run(request)
            assert 'allow = ["polars"]' in refusal.value.remedy
            assert str(settings.state_dir) not in str(refusal.value)
    # Nothing was started for it.
    assert not cache.exists()


OTHER_PYTHON = "# /// script\n# requires-python = '>=3.99'\n# ///\nprint('ran')"


@pytest.mark.parametrize(
    ("profile", "request_", "why"),
    [
        ("strict", RunRequest(code="1", packages=("polars",)), "'strict' allows no packages"),
        ("default", RunRequest(code=OTHER_PYTHON), r"requires Python >=3\.99; the sandbox has"),
    ],
    ids=["profile", "python"],
)
async def test_a_program_is_refused_by_a_strict_profile_and_by_its_python(
    settings: Settings, backend: FakeBackend, profile: str, request_: RunRequest, why: str
) -> None:
    settings = replace(settings, profile=profile, dependencies=allow_from("/wheels", "polars"))
    async with engine_on(backend, settings, finder=ListFinder()) as engine:
        with pytest.raises(PackageRefusedError, match=why):
            await engine.run(request_)


async def test_a_sandbox_that_is_not_what_its_packages_are_for_is_refused(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    wheel(links, "alpha", "1.0")
    cache = tmp_path / "cache"
    settings = replace(settings, dependencies=allow_from(links, "alpha", cache=str(cache)))
    asked = RunRequest(code="import sys; '/packages' in sys.path", packages=("alpha",))
    async with engine_on(backend, settings, finder=ListFinder()) as engine:
        # The fake backend has no mounts; the program receives the same facts of them.
        result = await engine.run(asked)
        assert result.result is True, result.error
        packages = await engine.packages.resolve(asked, RunCaller(None, Clock()))
        assert [bind.inside for bind in packages.binds] == [INSIDE]
        assert packages.target is not None
        real = {**asdict(packages.target), "platform": "linux", "python": packages.target.version}
        engine.packages.check(packages, real)
        empty = {**real, "binds": {INSIDE: {"read_only": True, "empty": True}}}
        with pytest.raises(PackageUnavailableError, match="does not have the packages") as found:
            engine.packages.check(packages, empty)
        assert "podman machine" in found.value.remedy
        with pytest.raises(PackageUnavailableError, match="another Python") as found:
            engine.packages.check(packages, {**real, "python": "3.9.1"})
        assert "Run it again" in found.value.remedy


MORE = ("attrs", "cryptography", "pymupdf", "xgboost-cpu", "markdown", "click", "tomli", "tiktoken")
NAMES = {**MODULES, "attr": "attrs", "xgboost": "xgboost-cpu"}


@pytest.mark.full
def test_none_of_sixty_packages_in_pairs_is_refused() -> None:
    names = [*DATA, *MORE]
    imported = {package: name for name, package in NAMES.items()}
    with open_directory() as home:
        settings = Path(home, ".config/mcp-code-bridge/config.toml")
        settings.parent.mkdir(parents=True)
        allow = f"allow = {['@data', *MORE]}".replace("'", '"')
        settings.write_text(f'[dependencies]\n{allow}\ncache = "{home}/c"\ncache_bytes = "1g"\n')
        environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_RUNTIME": "bubblewrap"}
        pairs = list(itertools.pairwise([*names, names[0]]))

        def run(half: int) -> None:
            for pair in pairs[half::2]:
                code = f"import {', '.join(imported.get(name, name) for name in pair)}"
                asked = [word for name in pair for word in ("--package", name)]
                words = [str(BRIDGE), "run", "--timeout", "120", *asked, "-c", code]
                done = subprocess.run(words, env=environ, capture_output=True, check=False)
                assert done.returncode == 0, (pair, done.stderr.decode())

        with ThreadPoolExecutor(2) as both:
            list(both.map(run, range(2)))
