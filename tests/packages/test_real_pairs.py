"""Sixty packages of PyPI, two by two, in a cache that holds a part of them."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.guest.protocol.distributions import DATA, MODULES
from bridge.model import RunRequest
from bridge.runs import open_engine
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.packages.rig import allowing, open_directory

MORE = ("attrs", "cryptography", "pymupdf", "xgboost-cpu", "markdown", "click", "tomli", "tiktoken")
NAMES = {**MODULES, "attr": "attrs", "xgboost": "xgboost-cpu"}


@pytest.mark.full
@pytest.mark.parametrize("pairs", range(4))
async def test_none_of_sixty_packages_in_pairs_is_refused(tmp_path: Path, pairs: int) -> None:
    names = [*DATA, *MORE]
    imported = {package: name for name, package in NAMES.items()}
    with open_directory() as place:
        dependencies = allowing("", "@data", *MORE, cache=str(place), cache_bytes="256m")
        environ = {**os.environ, "HOME": str(tmp_path)}
        settings = load({"warm": "0", "runtime": "bubblewrap"}, environ)
        settings = replace(settings, dependencies=dependencies, state_dir=tmp_path / "s")
        async with open_engine(settings, finder=ListFinder()) as engine:
            for pair in list(itertools.pairwise([*names, names[0]]))[pairs::4]:
                code = f"import {', '.join(imported.get(name, name) for name in pair)}"
                result = await engine.run(RunRequest(code=code, packages=pair, timeout=120))
                assert result.status == "success", (pair, result.error)
