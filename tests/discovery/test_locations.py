"""Every row of the table of locations, with a file as its client writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.clients import LOCATIONS, SOURCE_IDS
from bridge.discovery.dialect import PLATFORMS, Platform
from bridge.discovery.finder import discover
from bridge.discovery.user_lists import APPROVAL_FILES
from tests.discovery.golden_cases import CASES, GOLDEN, Case
from tests.discovery.golden_machine import expected_file, location_of, machine, put, render
from tests.golden_texts import assert_golden_text


def cases_and_platforms() -> Iterator[tuple[Case, Platform]]:
    for case in CASES:
        for platform in location_of(case).platforms:
            yield case, platform


@pytest.mark.parametrize(
    ("case", "platform"),
    [pytest.param(c, p, id=f"{c.given}-{c.place(p)}-{p}") for c, p in cases_and_platforms()],
)
def test_a_client_s_file_is_read_as_the_golden_output_says(
    case: Case, platform: Platform, tmp_path: Path
) -> None:
    context = machine(tmp_path, platform)
    if case.template == "{extra}":
        context = replace(context, extra_config=tmp_path / case.place(platform))
    file = put(tmp_path, case, platform)
    found = discover(context)
    read, golden = render(found, tmp_path, file), expected_file(case)
    if os.environ.get("UPDATE_FROZEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps(read, indent=2, ensure_ascii=False) + "\n")
    assert read == json.loads(golden.read_text())
    mine = location_of(case)
    sources = [s.source for s in found.servers] + [s.source for s in found.skipped]
    assert any((s.client, s.scope) == (mine.client, mine.scope) for s in sources)


def elsewhere() -> Iterator[tuple[Case, str, Platform]]:
    for case in CASES:
        location = location_of(case)
        mine = {case.place(platform): platform for platform in location.platforms}
        for place in mine:
            for platform in PLATFORMS:
                if platform not in location.platforms or case.place(platform) != place:
                    yield case, place, platform


@pytest.mark.parametrize("platform", PLATFORMS)
def test_no_file_of_another_platform_is_read(platform: Platform, tmp_path: Path) -> None:
    context = machine(tmp_path, platform)
    files = [put(tmp_path, replace(c, at=place)) for c, place, p in elsewhere() if p == platform]
    assert len(files) > 20
    assert discover(context).servers == ()


def test_the_table_of_locations_is_as_it_was() -> None:
    """Users' settings contain the names of sources. `UPDATE_FROZEN=1` writes the file again."""
    lines = [
        f"{row.id}, {row.client}, {row.scope}: {row.template} "
        f"({row.format}; {', '.join(row.platforms)})\n"
        for row in LOCATIONS
    ]
    assert_golden_text(GOLDEN.parent / "locations.txt", "".join(lines))


def test_every_source_has_a_directory_of_golden_inputs() -> None:
    directories = {path.name for path in GOLDEN.iterdir() if path.is_dir()}
    assert directories == {*SOURCE_IDS, "extra", "expected"}


def test_every_golden_output_is_of_an_input() -> None:
    kept = {path for path in (GOLDEN / "expected").rglob("*") if path.is_file()}
    assert kept == {expected_file(case) for case in CASES}


def test_templates_use_forward_slashes_and_start_with_a_place() -> None:
    templates = [location.template for location in LOCATIONS]
    for template in (*templates, *APPROVAL_FILES):
        assert template.startswith("{")
        assert "\\" not in template


def test_default_directories_are_used_when_no_variable_moves_them(tmp_path: Path) -> None:
    defaults: dict[Platform, str] = {
        "linux": "home/.config/Claude/claude_desktop_config.json",
        "win32": "home/AppData/Roaming/Claude/claude_desktop_config.json",
    }
    for platform, at in defaults.items():
        root = tmp_path / platform
        context = replace(machine(root, platform), environ={"XDG_CONFIG_HOME": "relative"})
        put(root, Case("", "claude-desktop/claude_desktop_config.json", at))
        assert [spec.name for spec in discover(context).servers] == ["filesystem", "remote"]


def test_claude_config_dir_moves_claude_s_state_and_settings(tmp_path: Path) -> None:
    context = machine(tmp_path, "linux")
    put(tmp_path, Case("", "claude-code/claude-code-state.json", "home/.claude.json"))
    put(tmp_path, Case("", "claude-code/claude_code_config.json", "alt/.claude.json"))
    put(tmp_path, Case("", "claude-code/dot-mcp.json", "home/shop/.mcp.json"))
    (tmp_path / "alt" / "settings.json").write_text('{"disabledMcpjsonServers": ["lint"]}')
    moved = replace(context, environ={"CLAUDE_CONFIG_DIR": str(tmp_path / "alt")})
    found = discover(moved)
    assert [spec.name for spec in found.servers] == ["time", "build"]
    assert "lint" in {skipped.name for skipped in found.skipped}
