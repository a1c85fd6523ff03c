"""Reads the servers of Claude Code's plugins and of Gemini CLI's and Qwen Code's extensions.

The user's own files record which ones are installed: a project can disable a plugin, never enable
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath

from bridge.discovery.files import FileReader
from bridge.discovery.locations import Machine, Project, fill
from bridge.discovery.user_lists import (
    ENABLEMENT_FILE,
    MANAGED_SETTINGS,
    PROJECT_SETTINGS,
    USER_SETTINGS,
)
from bridge.guest.schema.schemas import as_list, as_mapping

MANIFEST = ".claude-plugin/plugin.json"
SERVERS_FILE = ".mcp.json"
ENABLED_KEY = "enabledPlugins"


def plugin_servers(
    index: Mapping[str, object], directory: Path, reader: FileReader, machine: Machine
) -> Iterator[tuple[Path, Mapping[str, object]]]:
    """Yield each file of the project's plugins, with its servers in a client's format."""
    installed = _find_installed(index, machine.project)
    states = _states(reader, machine) if installed else {}
    for id, (scope, root) in installed.items():
        said = states.get(id, [])
        decided = (state for kind, state in said if kind == "managed" or not state)
        # A project's settings can enable plugins that the user installed for the project.
        usual = any(kind == "user" or scope != "user" for kind, _ in said)
        if not next(decided, usual):
            continue
        name = id.partition("@")[0]
        data = directory / "data" / "".join(c if c.isalnum() or c in "-_" else "-" for c in id)
        values = {"CLAUDE_PLUGIN_ROOT": str(root), "CLAUDE_PLUGIN_DATA": str(data)}
        for path, table in _tables(root, reader):
            found = {
                f"plugin:{name}:{key}": _with_env(_fill_in(value, values), values)
                for key, value in table.items()
            }
            yield path, {"mcpServers": found}


def extension_servers(
    document: Mapping[str, object], path: Path, reader: FileReader, *, cwd: Path, separator: str
) -> Mapping[str, object]:
    """Return an extension's file with its variables replaced; empty if it is disabled here."""
    directory = path.parent
    name = document.get("name")
    enablement = reader.document(directory.parent / ENABLEMENT_FILE) or {}
    if not isinstance(name, str) or not _is_enabled(enablement.get(name), cwd):
        return {}
    values = {
        "extensionPath": str(directory),
        "workspacePath": str(cwd),
        "pathSeparator": separator,
        "/": separator,
    }
    return {"mcpServers": _fill_in(document.get("mcpServers", {}), values)}


def _find_installed(index: Mapping[str, object], project: Project) -> dict[str, tuple[str, Path]]:
    found: dict[str, tuple[str, Path]] = {}
    for id, records in as_mapping(index.get("plugins")).items():
        for record in map(as_mapping, as_list(records) or [records]):
            root = record.get("installPath")
            if not isinstance(root, str) or not PurePath(root).is_absolute():
                continue
            scope = str(record.get("scope", "user"))
            if scope == "user" or record.get("projectPath") in project.keys:
                found[id] = (scope, Path(root))
    return found


def _states(reader: FileReader, machine: Machine) -> dict[str, list[tuple[str, bool]]]:
    templates = [("managed", each) for each in MANAGED_SETTINGS]
    templates += [("project", each) for each in PROJECT_SETTINGS] + [("user", USER_SETTINGS)]
    files = [(kind, path) for kind, each in templates for path in fill(each, machine.places)]
    found: dict[str, list[tuple[str, bool]]] = {}
    for kind, path in files:
        document = as_mapping(reader.document(path, in_project=kind == "project"))
        for id, state in as_mapping(document.get(ENABLED_KEY)).items():
            if isinstance(state, bool):
                found.setdefault(id, []).append((kind, state))
    return found


def _tables(root: Path, reader: FileReader) -> Iterator[tuple[Path, Mapping[str, object]]]:
    listed = _read(root / MANIFEST, reader).get("mcpServers")
    for each in listed if isinstance(listed, list) else [listed]:
        if isinstance(each, Mapping):
            yield root / MANIFEST, each
        elif isinstance(each, str) and each.endswith(".json") and ".." not in PurePath(each).parts:
            path = root / each
            if path.is_relative_to(root) and path != root / SERVERS_FILE:
                yield path, _read_table(path, reader)
    yield root / SERVERS_FILE, _read_table(root / SERVERS_FILE, reader)


def _read(path: Path, reader: FileReader) -> Mapping[str, object]:
    reader.noted[path] = None  # Watch it for changes.
    return reader.document(path) or {}


def _read_table(path: Path, reader: FileReader) -> Mapping[str, object]:
    document = _read(path, reader)
    return as_mapping(document.get("mcpServers", document))


def _with_env(value: object, values: Mapping[str, str]) -> object:
    if not isinstance(value, Mapping) or "command" not in value:
        return value
    env = value.get("env", {})
    return {**value, "env": {**values, **env}} if isinstance(env, Mapping) else value


def _fill_in(value: object, values: Mapping[str, str], depth: int = 0) -> object:
    if isinstance(value, str):
        for name, text in values.items() if "${" in value else ():
            value = value.replace(f"${{{name}}}", text)
        return value
    if depth == 16:  # Deeper than any definition of a server.
        return None
    if isinstance(value, Mapping):
        return {key: _fill_in(item, values, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill_in(item, values, depth + 1) for item in value]
    return value


def _is_enabled(state: object, cwd: Path) -> bool:
    here = f"/{str(cwd).replace(chr(92), '/').strip('/')}/"
    enabled = True
    for rule in as_list(as_mapping(state).get("overrides")):
        if not isinstance(rule, str):
            continue
        place = rule.removeprefix("!")
        if here.startswith(place[:-1]) if place.endswith("*") else here == place:
            enabled = not rule.startswith("!")
    return enabled
