"""What real clients list, and what is found in the same files: by name, and what is started there.

Each stands on a machine of its own, with servers in every scope, some of them off or odd. No name
is in two scopes: there the order differs on purpose, as no project takes the name of a user's.
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

import pytest
import yaml

from bridge.discovery.finder import DiscoveryContext, discover
from bridge.model.servers import ServerSpec
from tests.clients import kimi
from tests.clients.client import MORE, TESTS
from tests.discovery.writing import write

pytestmark = pytest.mark.node

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With the Node of the virtual environment first."""

OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}
"""Some clients ask their makers first."""

NOWHERE = "http://127.0.0.1:9/mcp"
DAY = "2026-11-01T00:00:00Z"
SECONDS = 120
"""After that a client hangs."""

Listed = set[tuple[str, str]]
"""Names, and command lines or addresses."""

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _started(spec: ServerSpec) -> str:
    return spec.url or " ".join([spec.command, *spec.args])


def _started_as(spec: ServerSpec) -> str:
    return f"{spec.transport} {_started(spec)}"


def _printed(command: Sequence[str], project: Path, environ: Mapping[str, str]) -> str:
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
    """How a client lists its servers.

    Attributes:
        source: The client's name in `MCP_BRIDGE_SOURCES`.
        program: With the arguments that list.
        packages: Where it is installed.
        prepare: Writes its files into a home and a project.
        read: Returns the servers in what it printed, without those that it says are off.
        shown: What it says of a server beside the name.
        ask: Lets it list in a project, with some variables.
    """

    source: str
    program: tuple[str, ...]
    packages: Path
    prepare: Callable[[Path, Path], None]
    read: Callable[[str], Iterator[tuple[str, str]]]
    shown: Callable[[ServerSpec], str] = _started
    ask: Callable[[Sequence[str], Path, Mapping[str, str]], str] = _printed


def prepare_claude_code(home: Path, project: Path) -> None:
    local = {"local": {"command": "true", "args": ["--local"]}, "off": {"command": "false"}}
    user = {"user": {"command": "true", "env": {"A": "b"}}, "web": {"type": "http", "url": NOWHERE}}
    user["untyped"] = {"url": NOWHERE}
    state = {str(project): {"mcpServers": local, "disabledMcpServers": ["off"]}}
    write(home / ".claude.json", {"mcpServers": user, "projects": state})
    write(project / ".mcp.json", {"mcpServers": {"shared": {"command": "true"}}})
    plugins = home / ".claude" / "plugins"
    market = plugins / "marketplaces" / "shop"
    names = ("alpha", "off")
    listed = [{"name": name, "source": f"./{name}"} for name in names]
    about = {"name": "shop", "owner": {"name": "o"}, "plugins": listed}
    write(market / ".claude-plugin" / "marketplace.json", about)
    source = {"source": "github", "repo": "o/shop"}
    known = {
        "source": source,
        "installLocation": str(market),
        "lastUpdated": "2026-11-01T00:00:00Z",
    }
    write(plugins / "known_marketplaces.json", {"shop": known})
    records = {}
    for name in names:
        root = plugins / "cache" / "shop" / name / "1.0.0"
        entry = {"command": "${CLAUDE_PLUGIN_ROOT}/a", "args": ["${CLAUDE_PLUGIN_DATA}"]}
        manifest = {"name": name, "version": "1.0.0", "mcpServers": {"inline": entry}}
        write(root / ".claude-plugin" / "plugin.json", manifest)
        # Claude Code leaves out a plugin's server whose address the user has written down, too.
        write(root / ".mcp.json", {"bare": {"type": "http", "url": f"{NOWHERE}/{name}"}})
        record = {"scope": "user", "installPath": str(root), "version": "1.0.0"}
        records[f"{name}@shop"] = [record | {"installedAt": DAY}]
    write(plugins / "installed_plugins.json", {"version": 2, "plugins": records})
    write(
        home / ".claude" / "settings.json",
        {"enabledPlugins": {"alpha@shop": True, "off@shop": False}},
    )


def read_claude_code(printed: str) -> Iterator[tuple[str, str]]:
    line = re.compile(r"^(\S+): (.+?)(?: \(\w+\))? - (\S)", re.MULTILINE)
    for name, target, state in line.findall(printed):
        if state != "⊘":
            yield name, target.strip()


def prepare_codex(home: Path, project: Path) -> None:
    text = f"""
[mcp_servers.user]
command = "true"
args = ["a", "$HOME"]
[mcp_servers.web]
url = "{NOWHERE}"
[mcp_servers.off]
command = "false"
enabled = false
[projects."{project}"]
trust_level = "trusted"
"""
    write(home / ".codex" / "config.toml", text)
    write(project / ".codex" / "config.toml", '[mcp_servers.shared]\ncommand = "true"\n')


def read_codex(printed: str) -> Iterator[tuple[str, str]]:
    for each in json.loads(printed[printed.index("[\n") :]):
        how = each["transport"]
        if each["enabled"]:
            yield each["name"], how.get("url") or " ".join([how["command"], *how["args"]])


def prepare_gemini(home: Path, project: Path) -> None:
    prepare_google(home, project, "gemini")
    write(home / ".gemini" / "trustedFolders.json", {str(project): "TRUST_FOLDER"})


def prepare_qwen(home: Path, project: Path) -> None:
    prepare_google(home, project, "qwen")


def prepare_google(home: Path, project: Path, client: str) -> None:
    user = {
        "user": {"command": "true", "args": ["a", "$WORD", "${WORD}", "${OTHER}"]},
        "web": {"httpUrl": NOWHERE},
        "typed": {"url": NOWHERE, "type": "http"},
        "events": {"url": NOWHERE},
    }
    if client == "gemini":  # Qwen Code lists those, too.
        user["off"] = {"command": "false"}
    write(home / f".{client}" / "settings.json", {"mcp": {"excluded": ["off"]}, "mcpServers": user})
    shared = {"shared": {"command": "true"}}
    write(project / f".{client}" / "settings.json", {"mcpServers": shared})
    extensions = home / f".{client}" / "extensions"
    for name in ("maps", "off-here"):
        entry = {"command": "node", "args": ["${extensionPath}${/}a.js", "${workspacePath}"]}
        servers = {f"{name}-server": entry, "user": {"command": "theirs"}}
        file = extensions / name / f"{client}-extension.json"
        write(file, {"name": name, "version": "1.0.0", "mcpServers": servers})
    if client == "qwen":  # Gemini CLI does not start those, but lists them.
        rules = {"off-here": {"overrides": [f"{home}/*", f"!{project}/*"]}}
        write(extensions / "extension-enablement.json", rules)


def read_google(printed: str) -> Iterator[tuple[str, str]]:
    line = re.compile(r"^(\S) (\S+)(?: \(from [^)]*\))?: (.+?) +\((\w+)\) - (.*)$", re.MULTILINE)
    for _, name, target, _, state in line.findall(printed):
        if state != "Blocked":
            yield name, target.strip()


def prepare_opencode(home: Path, project: Path) -> None:
    user = {
        "user": {"type": "local", "command": ["true", "a"]},
        "web": {"type": "remote", "url": NOWHERE},
        "off": {"type": "local", "command": ["false"], "enabled": False},
    }
    write(home / ".config" / "opencode" / "opencode.json", {"mcp": user})
    shared = {"shared": {"type": "local", "command": ["true", "b"]}}
    write(project / "opencode.json", {"mcp": shared})


def read_opencode(printed: str) -> Iterator[tuple[str, str]]:
    for block in re.split(r"^●", printed, flags=re.MULTILINE)[1:]:
        lines = [line.strip("│└ ").strip() for line in block.splitlines()]
        _, name, state = lines[0].split(maxsplit=2)
        if state != "disabled":
            yield name, [line for line in lines[1:] if line and "server(s)" not in line][-1]


def prepare_copilot(home: Path, project: Path) -> None:
    user = {
        "user": {"type": "local", "command": "true", "args": ["a"], "tools": ["*"]},
        "web": {"type": "http", "url": NOWHERE, "tools": ["*"]},
    }
    write(home / ".copilot" / "mcp-config.json", {"mcpServers": user})
    write(home / ".copilot" / "config.json", {"trusted_folders": [str(project)]})
    shared = {"shared": {"type": "local", "command": "true", "args": [], "tools": ["*"]}}
    write(project / ".github" / "mcp.json", {"mcpServers": shared})


def read_copilot(printed: str) -> Iterator[tuple[str, str]]:
    for name, entry in json.loads(printed[printed.index("{") :])["mcpServers"].items():
        if entry["enabled"]:
            yield name, entry.get("url") or " ".join([entry["command"], *entry["args"]])


def prepare_amp(home: Path, project: Path) -> None:
    user = {
        "user": {"command": "true", "args": ["a", "$WORD"]},
        "web": {"url": NOWHERE},
        "off": {"command": "false", "disabled": True},
    }
    write(home / ".config" / "amp" / "settings.json", {"amp.mcpServers": user})
    shared = {"shared": {"command": "true", "args": ["b"]}}
    write(project / ".amp" / "settings.json", {"amp.mcpServers": shared})


def read_amp(printed: str) -> Iterator[tuple[str, str]]:
    for each in json.loads(printed[printed.index("[\n") :]):
        spec = each["spec"]
        if not spec.get("disabled"):
            yield each["name"], spec.get("url") or " ".join([spec["command"], *spec["args"]])


def prepare_droid(home: Path, project: Path) -> None:
    user = {
        "user": {"command": "true"},
        "typed": {"type": "stdio", "command": "true", "args": ["a"]},
        "web": {"type": "http", "url": NOWHERE},
        "events": {"type": "sse", "url": NOWHERE},
        "off": {"type": "stdio", "command": "false", "disabled": True},
    }
    write(home / ".factory" / "mcp.json", {"mcpServers": user})
    write(project / ".factory" / "mcp.json", {"mcpServers": {"shared": {"command": "true"}}})


def read_droid(printed: str) -> Iterator[tuple[str, str]]:
    for name, kind, state in re.findall(r"^  (\S+)  (\S+)  (\w+)", printed, re.MULTILINE):
        if state != "disabled":
            yield name, kind


def prepare_goose(home: Path, project: Path) -> None:
    user = {
        "user": {"type": "stdio", "cmd": "true", "args": ["a", "$WORD"], "enabled": True},
        "other": {"type": "stdio", "cmd": "true", "args": [], "enabled": True, "timeout": 300},
        "web": {"type": "streamable_http", "uri": NOWHERE, "enabled": True},
        "off": {"type": "stdio", "cmd": "false", "args": [], "enabled": False},
    }
    named = {name: {"name": name, **entry} for name, entry in user.items()}
    write(home / ".config" / "goose" / "config.yaml", {"extensions": named})


def read_goose(printed: str) -> Iterator[tuple[str, str]]:
    settings = yaml.safe_load(printed.partition("goose Configuration:\n")[2])
    for name, each in settings["extensions"].items():
        if each["enabled"] and each["type"] in {"stdio", "streamable_http"}:
            yield name, each.get("uri") or " ".join([each["cmd"], *each["args"]])


def prepare_cline(home: Path, project: Path) -> None:
    user = {
        "user": {"command": "true"},
        "nested": {"transport": {"type": "stdio", "command": "true", "args": ["a"]}},
        "web": {"type": "streamableHttp", "url": NOWHERE},
        "untyped": {"url": NOWHERE},
        "older": {"transportType": "http", "url": NOWHERE},
        "off": {"command": "false", "disabled": True},
    }
    write(
        home / ".cline" / "data" / "settings" / "cline_mcp_settings.json",
        {"mcpServers": user},
    )


def read_cline(printed: str) -> Iterator[tuple[str, str]]:
    for each in json.loads(printed):
        if not each["disabled"]:
            yield each["name"], each["transportType"].replace("streamableHttp", "http")


def prepare_kimi(home: Path, project: Path) -> None:
    user = {
        "user": {"command": "true", "args": ["a", "$WORD", "${WORD}"]},
        "web": {"url": NOWHERE},
        "events": {"transport": "sse", "url": NOWHERE},
        "typed": {"type": "sse", "url": NOWHERE},
        "off": {"command": "false", "enabled": False},
    }
    write(home / ".kimi-code" / "mcp.json", {"mcpServers": user})
    shared = {"shared": {"command": "true"}}
    write(project / ".kimi-code" / "mcp.json", {"mcpServers": shared})


def read_kimi(printed: str) -> Iterator[tuple[str, str]]:
    for each in json.loads(printed):
        how = each["config"]
        if how.get("enabled", True):
            started = how.get("url") or " ".join([how["command"], *how.get("args", ())])
            yield each["name"], f"{how['transport']} {started}"


KIND = attrgetter("transport")
"""Of clients that say no more."""

FEW = TESTS / "node"
LISTINGS = (
    Listing("claude-code", ("claude", "mcp", "list"), FEW, prepare_claude_code, read_claude_code),
    Listing("codex", ("codex", "mcp", "list", "--json"), FEW, prepare_codex, read_codex),
    Listing("gemini", ("gemini", "mcp", "list"), MORE, prepare_gemini, read_google),
    Listing("qwen", ("qwen", "mcp", "list"), MORE, prepare_qwen, read_google),
    Listing("opencode", ("opencode", "mcp", "list"), MORE, prepare_opencode, read_opencode),
    Listing("copilot", ("copilot", "mcp", "list", "--json"), MORE, prepare_copilot, read_copilot),
    Listing("amp", ("amp", "mcp", "list", "--json"), MORE, prepare_amp, read_amp),
    Listing("droid", ("droid", "mcp", "list"), MORE, prepare_droid, read_droid, KIND),
    Listing("goose", ("goose", "info", "-v"), MORE, prepare_goose, read_goose),
    Listing("cline", ("cline", "config", "mcp", "--json"), MORE, prepare_cline, read_cline, KIND),
    Listing("kimi", ("kimi",), MORE, prepare_kimi, read_kimi, _started_as, kimi.servers),
)


def listed(each: Listing, home: Path, project: Path) -> Listed:
    """Return what the client lists."""
    program, *arguments = each.program
    path = each.packages / "node_modules" / ".bin" / program
    assert path.exists(), f"{program} is missing; `make test` or `make test-all` installs it"
    environ = {"PATH": PATH, "HOME": str(home), "NO_COLOR": "1", "WORD": "w", **OFFLINE}
    printed = each.ask([str(path), *arguments], project, environ)
    servers = set(each.read(printed))
    assert servers, printed
    return servers


def found(each: Listing, home: Path, project: Path) -> Listed:
    """Return what is found in its files."""
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
    """A home with a repository, `shop`."""
    write(tmp_path / "home" / "shop" / ".git" / "HEAD", "ref: refs/heads/main\n")
    for name in ("objects", "refs"):
        (tmp_path / "home" / "shop" / ".git" / name).mkdir()
    return tmp_path / "home"


@EACH
def test_what_a_client_lists_is_what_is_found(each: Listing, home: Path) -> None:
    project = home / "shop"
    each.prepare(home, project)
    ours = found(each, home, project)
    assert len(ours) >= 3
    assert listed(each, home, project) == ours


@pytest.mark.full
@EACH
def test_they_look_alike_in_the_directories_above(each: Listing, home: Path) -> None:
    """Below the directory with the project's file, which is below the repository's root."""
    project = home / "shop" / "part" / "below"
    project.mkdir(parents=True)
    each.prepare(home, project.parent)
    assert listed(each, home, project) == found(each, home, project)
