"""Every row of the table of locations, with a file as its client writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bridge.discovery.clients import APPROVAL_FILES, LOCATIONS, PLATFORMS, Location, Platform
from bridge.discovery.find import Discovery, DiscoveryContext, discover

GOLDEN = Path(__file__).parents[1] / "testdata" / "discovery"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A golden input, and where on the machine of the test it stands.

    Attributes:
        template: The row's own.
        per_project: Tells apart two rows that read one file.
        given: The input's name in the test data.
        at: Where it is put, below the test's root.
    """

    template: str
    given: str
    at: str
    per_project: bool = False


SUPPORT = "home/Library/Application Support"

CASES = (
    Case(template="{extra}", given="extra.json", at="home/extra.json"),
    Case(template="{extra}", given="extra.toml", at="home/extra.toml"),
    Case(
        template="{system}/etc/claude-code/managed-mcp.json",
        given="managed-mcp.json",
        at="system/etc/claude-code/managed-mcp.json",
    ),
    Case(
        template="{system}/Library/Application Support/ClaudeCode/managed-mcp.json",
        given="managed-mcp.json",
        at="system/Library/Application Support/ClaudeCode/managed-mcp.json",
    ),
    Case(
        template="{programs}/ClaudeCode/managed-mcp.json",
        given="managed-mcp.json",
        at="programs/ClaudeCode/managed-mcp.json",
    ),
    Case(
        template="{claude_state}/.claude.json",
        given="claude-code-state.json",
        at="home/.claude.json",
        per_project=True,
    ),
    Case(
        template="{claude_state}/.claude.json",
        given="claude-code-state.json",
        at="home/.claude.json",
    ),
    Case(template="{upwards}/.mcp.json", given="dot-mcp.json", at="home/shop/.mcp.json"),
    Case(
        template="{home}/.config/mcp/servers/*.json",
        given="bare-server.json",
        at="home/.config/mcp/servers/calendar.json",
    ),
    Case(template="{home}/MCPs/*.json", given="several-servers.json", at="home/MCPs/several.json"),
    Case(
        template="{config}/Claude/claude_desktop_config.json",
        given="claude_desktop_config.json",
        at="xdg/Claude/claude_desktop_config.json",
    ),
    Case(
        template="{library}/Claude/claude_desktop_config.json",
        given="claude_desktop_config.json",
        at=f"{SUPPORT}/Claude/claude_desktop_config.json",
    ),
    Case(
        template="{appdata}/Claude/claude_desktop_config.json",
        given="claude_desktop_config.json",
        at="appdata/Claude/claude_desktop_config.json",
    ),
    Case(
        template="{library}/Claude Code/mcp/servers/*.json",
        given="bare-server.json",
        at=f"{SUPPORT}/Claude Code/mcp/servers/calendar.json",
    ),
    Case(
        template="{library}/Claude/mcp/servers/*.json",
        given="several-servers.json",
        at=f"{SUPPORT}/Claude/mcp/servers/several.json",
    ),
    Case(
        template="{library}/Claude Code/claude_code_config.json",
        given="claude_code_config.json",
        at=f"{SUPPORT}/Claude Code/claude_code_config.json",
    ),
    Case(
        template="{library}/Claude/claude_code_config.json",
        given="claude_code_config.json",
        at=f"{SUPPORT}/Claude/claude_code_config.json",
    ),
    Case(
        template="{cwd}/mcp-servers/*.json",
        given="bare-server.json",
        at="home/shop/mcp-servers/calendar.json",
    ),
    Case(
        template="{cwd}/claude_code_config.json",
        given="claude_code_config.json",
        at="home/shop/claude_code_config.json",
    ),
    Case(
        template="{cwd}/claude_desktop_config.json",
        given="claude_desktop_config.json",
        at="home/shop/claude_desktop_config.json",
    ),
)


def location_of(case: Case) -> Location:
    return next(
        location
        for location in LOCATIONS
        if (location.template, location.dialect.per_project) == (case.template, case.per_project)
    )


def slug(case: Case) -> str:
    """The golden output's name."""
    return case.at.replace("/", "+").replace(" ", "_")


def machine(root: Path, platform: Platform) -> DiscoveryContext:
    """A user with a home, a project and every variable that moves a directory."""
    (root / "home" / "shop").mkdir(parents=True)
    return DiscoveryContext(
        home=root / "home",
        cwd=root / "home" / "shop",
        platform=platform,
        environ={
            "TOKEN": "the-secret",
            "XDG_CONFIG_HOME": str(root / "xdg"),
            "APPDATA": str(root / "appdata"),
            "ProgramFiles": str(root / "programs"),
        },
        system_root=root / "system",
    )


def put(root: Path, case: Case) -> None:
    target = root / case.at
    target.parent.mkdir(parents=True, exist_ok=True)
    text = (GOLDEN / case.given).read_text().replace("@CWD@", str(root / "home" / "shop"))
    target.write_text(text)


def rendered(found: Discovery, root: Path) -> object:
    """All that was found, with the test's own directory taken out."""
    document = {
        "servers": [
            {
                key: value
                for key, value in {
                    "name": spec.name,
                    "transport": spec.transport,
                    "found": f"{spec.source.client}, {spec.source.scope}, {spec.source.key}",
                    "path": spec.source.path,
                    "command": spec.command,
                    "args": list(spec.args),
                    "env": dict(spec.env),
                    "cwd": spec.cwd,
                    "url": spec.url,
                    "headers": dict(spec.headers),
                    "description": spec.description,
                    "start_timeout": spec.start_timeout,
                    "call_timeout": spec.call_timeout,
                }.items()
                if value
            }
            for spec in found.servers
        ],
        "skipped": [str(skipped) for skipped in found.skipped],
        "warnings": [str(warning) for warning in found.warnings],
    }
    return json.loads(json.dumps(document).replace(str(root), "@ROOT@"))


def cases_and_platforms() -> Iterator[tuple[Case, Platform]]:
    for case in CASES:
        for platform in location_of(case).platforms:
            yield case, platform


@pytest.mark.parametrize(
    ("case", "platform"),
    [pytest.param(c, p, id=f"{c.given}-{c.at}-{p}") for c, p in cases_and_platforms()],
)
def test_a_client_s_file_is_read_as_the_golden_output_says(
    case: Case, platform: Platform, tmp_path: Path
) -> None:
    context = machine(tmp_path, platform)
    if case.template == "{extra}":
        context = replace(context, extra_config=tmp_path / case.at)
    put(tmp_path, case)
    found = discover(context)
    expected = json.loads((GOLDEN / "expected" / f"{slug(case)}.json").read_text())
    assert rendered(found, tmp_path) == expected
    mine = location_of(case)
    assert any(
        (s.source.client, s.source.scope) == (mine.client, mine.scope) for s in found.servers
    )


@pytest.mark.parametrize(
    ("case", "platform"),
    [
        pytest.param(case, platform, id=f"{case.at}-{platform}")
        for case in CASES
        for platform in PLATFORMS
        if platform not in location_of(case).platforms
    ],
)
def test_a_file_of_another_platform_is_not_read(
    case: Case, platform: Platform, tmp_path: Path
) -> None:
    context = machine(tmp_path, platform)
    put(tmp_path, case)
    assert discover(context).servers == ()


def test_every_location_of_the_table_has_a_golden_input() -> None:
    table = {(location.template, location.dialect.per_project) for location in LOCATIONS}
    assert {(case.template, case.per_project) for case in CASES} == table
    assert len(table) == len(LOCATIONS)


def test_templates_use_forward_slashes_and_start_with_a_place() -> None:
    templates = [location.template for location in LOCATIONS]
    templates += [file.template for file in APPROVAL_FILES]
    for template in templates:
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
        put(root, Case(template="", given="claude_desktop_config.json", at=at))
        assert [spec.name for spec in discover(context).servers] == ["filesystem", "remote"]


def test_claude_config_dir_moves_claude_s_state_and_settings(tmp_path: Path) -> None:
    context = machine(tmp_path, "linux")
    put(tmp_path, Case(template="", given="claude-code-state.json", at="home/.claude.json"))
    put(tmp_path, Case(template="", given="claude_code_config.json", at="alt/.claude.json"))
    put(tmp_path, Case(template="", given="dot-mcp.json", at="home/shop/.mcp.json"))
    (tmp_path / "alt" / "settings.json").write_text('{"disabledMcpjsonServers": ["lint"]}')
    moved = replace(context, environ={"CLAUDE_CONFIG_DIR": str(tmp_path / "alt")})
    found = discover(moved)
    assert [spec.name for spec in found.servers] == ["build", "time"]
    assert "lint" in {skipped.name for skipped in found.skipped}
