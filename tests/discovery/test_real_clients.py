"""Compares the servers that real clients list with those of discovery, by name and command.

Each client has its own machine, with servers in every scope. No name is in two scopes: no project
takes the name of a user's server, unlike in clients.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.discovery.finder import DiscoveryContext, discover
from bridge.model.servers import ServerSpec
from tests.clients import kimi
from tests.clients.client import MORE, TESTS
from tests.discovery.writing import write

pytestmark = pytest.mark.node

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""The virtual environment's Node comes first."""

OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""Some clients contact their makers first."""

FILES = Path(__file__).parents[1] / "testdata" / "real_clients"
SECONDS = 120

Listed = set[tuple[str, str]]

Read = Iterator[tuple[str, str]]

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _command_line(spec: ServerSpec) -> str:
    return spec.url or " ".join([spec.command, *spec.args])


def _started_as(spec: ServerSpec) -> str:
    return f"{spec.transport} {_command_line(spec)}"


def _print(command: Sequence[str], project: Path, environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=project,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return _COLOURS.sub("", done.stdout)


@dataclass(frozen=True)
class Listing:
    """A client, the command that lists its servers, and the parser of the output."""

    source: str
    program: tuple[str, ...]
    packages: Path
    read: Callable[[str], Read]
    shown: Callable[[ServerSpec], str] = _command_line
    ask: Callable[[Sequence[str], Path, Mapping[str, str]], str] = _print


def _start(entry: Mapping[str, Any], command: str = "command", url: str = "url") -> str:
    return entry.get(url) or " ".join([entry[command], *entry.get("args", ())])


def read_claude_code(printed: str) -> Read:
    line = re.compile(r"^(\S+): (.+?)(?: \(\w+\))? - (\S)", re.MULTILINE)
    for name, target, state in line.findall(printed):
        if state != "⊘":
            yield name, target.strip()


def read_codex(printed: str) -> Read:
    for each in json.loads(printed[printed.index("[\n") :]):
        if each["enabled"]:
            yield each["name"], _start(each["transport"])


def read_google(printed: str) -> Read:
    line = re.compile(r"^(\S) (\S+)(?: \(from [^)]*\))?: (.+?) +\((\w+)\) - (.*)$", re.MULTILINE)
    for _, name, target, _, state in line.findall(printed):
        if state != "Blocked":
            yield name, target.strip()


def read_opencode(printed: str) -> Read:
    for block in re.split(r"^●", printed, flags=re.MULTILINE)[1:]:
        lines = [line.strip("│└ ").strip() for line in block.splitlines()]
        _, name, state = lines[0].split(maxsplit=2)
        if state != "disabled":
            yield name, [line for line in lines[1:] if line and "server(s)" not in line][-1]


def read_copilot(printed: str) -> Read:
    for name, entry in json.loads(printed[printed.index("{") :])["mcpServers"].items():
        if entry["enabled"]:
            yield name, _start(entry)


def read_amp(printed: str) -> Read:
    for each in json.loads(printed[printed.index("[\n") :]):
        if not each["spec"].get("disabled"):
            yield each["name"], _start(each["spec"])


def read_droid(printed: str) -> Read:
    for name, kind, state in re.findall(r"^  (\S+)  (\S+)  (\w+)", printed, re.MULTILINE):
        if state != "disabled":
            yield name, kind


def read_goose(printed: str) -> Read:
    settings = yaml.safe_load(printed.partition("goose Configuration:\n")[2])
    for name, each in settings["extensions"].items():
        if each["enabled"] and each["type"] in {"stdio", "streamable_http"}:
            yield name, _start(each, "cmd", "uri")


def read_cline(printed: str) -> Read:
    for each in json.loads(printed):
        if not each["disabled"]:
            yield each["name"], each["transportType"].replace("streamableHttp", "http")


def read_kimi(printed: str) -> Read:
    for each in json.loads(printed):
        how = each["config"]
        if how.get("enabled", True):
            yield each["name"], f"{how['transport']} {_start(how)}"


KIND = attrgetter("transport")
"""The text of clients that only show the transport."""

FEW = TESTS / "node"
LISTINGS = (
    Listing("claude-code", ("claude", "mcp", "list"), FEW, read_claude_code),
    Listing("codex", ("codex", "mcp", "list", "--json"), FEW, read_codex),
    Listing("gemini", ("gemini", "mcp", "list"), MORE, read_google),
    Listing("qwen", ("qwen", "mcp", "list"), MORE, read_google),
    Listing("opencode", ("opencode", "mcp", "list"), MORE, read_opencode),
    Listing("copilot", ("copilot", "mcp", "list", "--json"), MORE, read_copilot),
    Listing("amp", ("amp", "mcp", "list", "--json"), MORE, read_amp),
    Listing("droid", ("droid", "mcp", "list"), MORE, read_droid, KIND),
    Listing("goose", ("goose", "info", "-v"), MORE, read_goose),
    Listing("cline", ("cline", "config", "mcp", "--json"), MORE, read_cline, KIND),
    Listing("kimi", ("kimi",), MORE, read_kimi, _started_as, kimi.servers),
)


def prepare(each: Listing, home: Path, project: Path) -> None:
    for name, place in (("home", home), ("project", project)):
        for file in (FILES / each.source / name).rglob("*"):
            if file.is_file():
                text = file.read_text().replace("@HOME@", str(home))
                relative = file.relative_to(FILES / each.source / name)
                write(place / relative, text.replace("@PROJECT@", str(project)))


def list_servers(each: Listing, home: Path, project: Path) -> Listed:
    program, *arguments = each.program
    path = each.packages / "node_modules" / ".bin" / program
    assert path.exists(), f"{program} is missing; `make test` or `make test-all` installs it"
    environ = {"PATH": PATH, "HOME": str(home), "NO_COLOR": "1", "WORD": "w", **OFFLINE}
    printed = each.ask([str(path), *arguments], project, environ)
    servers = set(each.read(printed))
    assert servers, printed
    return servers


def found(each: Listing, home: Path, project: Path) -> Listed:
    context = DiscoveryContext(
        home=home,
        cwd=project,
        platform="linux",
        environ={"WORD": "w"},
        system_root=home / "system",
        project_servers="all",
        sources=(each.source,),
    )
    servers = discover(context).servers
    return {(spec.name, each.shown(spec)) for spec in servers}


EACH = pytest.mark.parametrize(
    "each",
    [
        pytest.param(each, id=each.source, marks=[pytest.mark.full] * (each.packages == MORE))
        for each in LISTINGS
    ],
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path / "home" / "shop" / ".git" / "HEAD", "ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (tmp_path / "home" / "shop" / ".git" / name).mkdir()
    return tmp_path / "home"


@EACH
def test_what_a_client_lists_is_what_is_found(each: Listing, home: Path) -> None:
    project = home / "shop"
    prepare(each, home, project)
    ours = found(each, home, project)
    assert len(ours) >= 3
    assert list_servers(each, home, project) == ours


@pytest.mark.full
@EACH
def test_they_look_alike_in_the_directories_above(each: Listing, home: Path) -> None:
    project = home / "shop" / "part" / "below"
    project.mkdir(parents=True)
    prepare(each, home, project.parent)
    assert list_servers(each, home, project) == found(each, home, project)
