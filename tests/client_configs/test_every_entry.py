"""Any client's file: each entry is used or has a reason, and the original bytes return."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.cli.install import plan
from bridge.cli.moving import with_moves, with_restores
from bridge.client_configs.entry import Entry
from bridge.client_configs.install import (
    Change,
    apply,
    installed_entries,
    plan_uninstall,
    read_target,
)
from bridge.client_configs.journal import Journal
from bridge.client_configs.writers import WRITERS, Target, targets, writer_for
from bridge.discovery.dialect import SPELLINGS
from bridge.discovery.entries import without_nulls
from bridge.discovery.finder import discover
from bridge.discovery.locations import Machine, machine_of
from bridge.inventory.configuration import context_for
from bridge.settings import Settings, load
from tests.client_configs.test_documents import sections
from tests.client_configs.texts import NAMES

ENTRY = Entry(command="/opt/bin/mcp-code-bridge", args=("serve",), env={"PATH": "/usr/bin"})
CLIENTS = [client for client, writer in WRITERS.items() if writer.files]

FIELDS = [
    *(key for name, keys in SPELLINGS.items() if name != "server_keys" for key in keys),
    *("args", "cwd", "timeout", "disabled", "enabled", "oauth", "x y", "name"),
]
VALUES = st.sampled_from(
    [None, True, 5, "", "x", "npx -y x", "~/x", "${X}", "{env:X}", "${input:a}", "${config:b}"]
    + ["https://h/mcp", "stdio", "http", [], ["x", "-y"], {}, {"A": "b"}, {"A": None}]
)
ODD = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)
COMMENTS = {"toml": "# c", "yaml": "# c", "jsonc": "// c", "json with comments": "// c"}


@st.composite
def entries(draw: st.DrawFn, target: Target) -> dict[str, Any]:
    """Draw servers with the client's fields and with any field of any client."""
    dialect = target.location.dialect
    command: Any = ["x", "-y"] if dialect.command_list else "x"
    good = {dialect.command_keys[0]: command}
    drawn = st.dictionaries(NAMES, ODD.map(lambda odd: good | odd) | ODD, max_size=4)
    return draw(drawn)


@st.composite
def files(draw: st.DrawFn, target: Target) -> tuple[dict[str, Any], bytes]:
    """Draw a client's servers and its file, with comments, CRLF and a byte-order mark."""
    location = target.location
    servers: Any = draw(entries(target))
    if location.format == "toml":
        servers = without_nulls(servers)
    listed = [{**value, "name": name} for name, value in servers.items()]
    table: Any = listed if location.dialect.listed else servers
    for key in reversed(target.table):
        table = {key: table}
    value: dict[str, Any] = {"theme": "ü // no comment", **table, "unknown": {"key": [1, "# x"]}}
    if location.dialect.gates and draw(st.booleans()):
        value["mcp"] = {"allowed": draw(st.lists(NAMES, max_size=2))}
    if location.format == "yaml":
        # Copied, because YAML writes a repeated object as an alias.
        text = yaml.safe_dump(json.loads(json.dumps(value)), sort_keys=False, allow_unicode=True)
    elif location.dialect.listed:
        heads = [f"[[{target.table[0]}]]\n" + "\n".join(fields(row)) for row in listed]
        text = "\n".join(["theme = 'x'", *heads, ""])
    elif location.format == "toml":
        text = "\n".join(["theme = 'x'", *sections(value)])
    else:
        indents: list[int | str] = [2, 4, "\t"]
        text = json.dumps(value, indent=draw(st.sampled_from(indents)), ensure_ascii=False)
    if comment := COMMENTS.get(location.format):
        lines = text.split("\n")
        for at in sorted(draw(st.sets(st.integers(0, len(lines)), max_size=4)), reverse=True):
            lines.insert(at, comment)
        text = "\n".join(lines)
    text = text.replace("\n", "\r\n") if draw(st.booleans()) else text
    return servers, (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode()


def fields(entry: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of an entry in TOML, objects as inline tables."""

    def inline(value: object) -> str:
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + "}"
        return json.dumps(value, ensure_ascii=False)

    yield from (f"{json.dumps(key)} = {inline(value)}" for key, value in entry.items())


def install(client: str, configured: Settings, machine: Machine, move: str) -> None:
    planned = plan([client], "user", ENTRY, machine)
    if move:
        planned = anyio.run(with_moves, planned, move, configured, machine)
    for change in planned:
        apply(change, Journal(configured.state_dir / "clients"))


def uninstall(client: str, configured: Settings, machine: Machine) -> None:
    journal = Journal(configured.state_dir / "clients")
    planned: list[Change] = []
    for each in installed_entries(machine):
        raw = read_target(each.target)
        planned.append(plan_uninstall(each.target, each.name, raw, journal))
    for change in with_restores(planned, [client], "user", configured, machine):
        apply(change, journal)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
@pytest.mark.parametrize("client", CLIENTS)
def test_every_entry_has_a_use_or_a_reason_and_returns(client: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as home:
        project = Path(home, "project", ".git")
        project.mkdir(parents=True)
        environ = {"HOME": home, "PATH": "/nowhere", "MCP_BRIDGE_STATE_DIR": f"{home}/state"}
        configured = load({}, environ)
        machine = machine_of(context_for(configured, str(project.parent), "linux"))
        target = targets(writer_for(client), "user", machine)[0]
        servers, raw = data.draw(files(target))
        target.path.parent.mkdir(parents=True, exist_ok=True)
        target.path.write_bytes(raw)

        found = discover(machine.context)
        used = {spec.name for spec in found.servers if spec.source.path == str(target.path)}
        left_out = {each.name: each.reason for each in found.skipped}
        assert used | left_out.keys() == set(servers), found.warnings
        assert all(left_out.values())
        assert not used & left_out.keys()

        for move in ("", "all"):
            install(client, configured, machine, move)
            assert target.path.read_bytes() != raw
            uninstall(client, configured, machine)
            assert target.path.read_bytes() == raw
