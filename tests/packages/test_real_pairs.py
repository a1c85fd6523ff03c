"""Sixty packages of PyPI, in pairs, by two bridges at once, in a cache that holds some of them."""

from __future__ import annotations

import itertools
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bridge.guest.protocol.distributions import DATA, MODULES
from tests.e2e.rig import BRIDGE
from tests.packages.rig import open_directory

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
