"""Settings from a file of the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.settings import Settings, load

LoadText = Callable[..., Settings]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.fixture
def load_text(config: Path) -> LoadText:
    """A function that loads a file with this text, for a home of its own, with variables."""

    def load_file(text: str, flags: dict[str, str] | None = None, **environ: str) -> Settings:
        config.write_text(text)
        given = {"HOME": str(config.parent / "home"), "MCP_BRIDGE_CONFIG": str(config)}
        return load(flags, {**given, **environ})

    return load_file
