"""`[dependencies]`: which packages programs may ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.guest.protocol.distributions import normalize_name
from bridge.settings import load, packages_dir
from bridge.settings.dependencies import Dependencies
from bridge.settings.fields import fill
from bridge.settings.state import ROOT_PACKAGES_DIR
from tests.settings.conftest import LoadText

PLACE = "config.toml: dependencies"


def test_without_a_table_nothing_is_allowed_and_no_index_is_named() -> None:
    found = fill(Dependencies, None, PLACE)
    assert found.allow == ()
    assert found.index == ""


def test_entries_are_a_name_and_the_versions_it_may_have() -> None:
    table = {"allow": ["Polars", "pandas == 2.*", "types_*", "a.b>=1,<2"], "index": "~/wheels"}
    found = fill(Dependencies, table, PLACE)
    assert [(each.name, each.versions) for each in found.allow] == [
        ("polars", ""),
        ("pandas", "== 2.*"),
        ("types-*", ""),
        ("a-b", ">=1,<2"),
    ]
    assert found.directory == Path("~/wheels").expanduser()
    assert normalize_name("Zope__Interface") == "zope-interface"


def test_an_index_is_no_directory_and_its_password_is_not_shown() -> None:
    table = {"allow": ["polars"], "index": "https://me:s3cret@example.org/simple"}
    found = fill(Dependencies, table, PLACE)
    assert found.directory is None
    assert "s3cret" not in repr(found)


CONFIG = """
[dependencies]
allow = ["polars"]
index = "/wheels"
[directories.data]
path = "{data}"
[profiles.loose]
extends = "strict"
allow_packages = true
allow_directories = true
"""


@pytest.mark.parametrize(
    ("flags", "variables", "allowed"),
    [
        ({}, {}, True),
        ({}, {"MCP_BRIDGE_ALLOW_PACKAGES": "0"}, False),
        ({"profile": "strict"}, {}, False),
        ({"profile": "strict"}, {"MCP_BRIDGE_ALLOW_PACKAGES": "1"}, False),
        ({"profile": "loose"}, {}, True),
        ({"profile": "loose"}, {"MCP_BRIDGE_ALLOW_PACKAGES": "0"}, False),
    ],
)
def test_a_strict_profile_has_packages_only_where_it_says_so_itself(
    tmp_path: Path,
    load_text: LoadText,
    flags: dict[str, str],
    variables: dict[str, str],
    allowed: bool,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    same = {name.replace("PACKAGES", "DIRECTORIES"): value for name, value in variables.items()}
    settings = load_text(CONFIG.format(data=data), flags, **variables, **same)
    assert settings.packages_allowed is allowed
    assert [each.name for each in settings.offered_directories] == ["data"] * allowed
    assert settings.dependencies.allow[0].name == "polars"


def test_root_keeps_packages_where_its_programs_may_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({}, {"HOME": str(tmp_path)})
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert packages_dir(settings) == settings.state_dir / "packages"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert packages_dir(settings) == ROOT_PACKAGES_DIR
    named = replace(settings, dependencies=fill(Dependencies, {"cache": "/srv/packages"}, PLACE))
    assert packages_dir(named) == Path("/srv/packages")
