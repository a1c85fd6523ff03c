"""A machine for golden inputs, and the golden form of its servers."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.dialect import Location, Platform
from bridge.discovery.finder import Discovery, DiscoveryContext
from bridge.model import ServerSpec
from tests.discovery.golden_cases import GOLDEN, Case


def location_of(case: Case) -> Location:
    return next(
        location
        for location in LOCATIONS
        if (location.template, location.dialect.per_project) == (case.template, case.per_project)
    )


def expected_file(case: Case) -> Path:
    location = location_of(case)
    client, name = case.given.split("/")
    scope = "project" if location.in_project else location.scope
    return GOLDEN / "expected" / client / f"{name}.{scope}.json"


def machine(root: Path, platform: Platform) -> DiscoveryContext:
    """Return a user with a home, a project and every variable that moves a directory."""
    (root / "home" / "shop").mkdir(parents=True)
    (root / "home" / "shop" / ".env").write_text(
        'export FROM_FILE="yes"\n# no\nNOTES_TOKEN=weaker\n'
    )
    (root / "home" / "token.txt").write_text("from a file\n")
    return context_of(root, platform)


def context_of(root: Path, platform: Platform) -> DiscoveryContext:
    return DiscoveryContext(
        home=root / "home",
        cwd=root / "home" / "shop",
        platform=platform,
        environ={
            "TOKEN": "the-secret",
            "EMPTY": "",
            "MCP_BRIDGE_INPUT_GIVEN_KEY": "given",
            "XDG_CONFIG_HOME": str(root / "xdg"),
            "APPDATA": str(root / "appdata"),
            "LOCALAPPDATA": str(root / "local"),
            "ProgramFiles": str(root / "programs"),
            "ProgramData": str(root / "data"),
            "OPENCODE_CONFIG": str(root / "opencode-named.json"),
            "OPENCODE_CONFIG_DIR": str(root / "opencode-directory"),
        },
        system_root=root / "system",
        project_servers="all",
    )


def put(root: Path, case: Case, platform: Platform = "linux") -> Path:
    target = root / case.place(platform)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = (GOLDEN / case.given).read_text()
    target.write_text(
        text.replace("@CWD@", str(root / "home" / "shop")).replace("@ROOT@", str(root))
    )
    if case.given.startswith("opencode/"):
        (target.parent / "key.txt").write_text("key from a file\n")
    if case.given.endswith("installed_plugins.json"):
        plugin = target.parent / "cache" / "shop" / "alpha" / "1.0.0"
        (plugin / ".claude-plugin").mkdir(parents=True)
        shutil.copy(GOLDEN / "claude-code" / "dot-mcp.json", plugin / ".mcp.json")
        shutil.copy(GOLDEN / "claude-code" / "plugin.json", plugin / ".claude-plugin")
        (root / "home" / ".claude" / "settings.json").write_text(
            '{"enabledPlugins": {"alpha@shop": true, "other@shop": true}}'
        )
    return target


SHOWN = {
    *("name", "transport", "command", "args", "env", "cwd", "url", "headers", "description"),
    *("start_timeout", "call_timeout", "oauth"),
}


def _shown(spec: ServerSpec) -> dict[str, object]:
    values = {key: value for key, value in asdict(spec).items() if key in SHOWN and value}
    values["found"] = f"{spec.source.client}, {spec.source.scope}, {spec.source.key}"
    values["path"] = spec.source.path
    if spec.tools.without:
        values["without"] = sorted(spec.tools.without)
    return values if spec.tools.only is None else {**values, "only": sorted(spec.tools.only)}


def render(found: Discovery, root: Path, file: Path) -> object:
    document = {
        "servers": list(map(_shown, found.servers)),
        "skipped": [str(skipped) for skipped in found.skipped],
        "warnings": [str(warning) for warning in found.warnings],
    }
    text = json.dumps(document).replace(str(file), "@FILE@")
    text = text.replace(str(root / "home" / "shop"), "@SHOP@").replace(str(file.parent), "@BESIDE@")
    return json.loads(text.replace(str(root), "@ROOT@"))
