"""One conversation of a client, its model and the bridge, and what passed between them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.clients import SOURCE_IDS
from tests.clients.client import TESTS, Client, Setting
from tests.clients.model import Step, scripted, serving
from tests.clients.wires import Asked, Json, Received

FAKES = TESTS / "fakes" / "servers"

SERVERS: Mapping[str, Json] = {
    "workshop": {"command": sys.executable, "args": [str(FAKES / "workshop.py")]},
    "inquirer": {"command": sys.executable, "args": [str(FAKES / "inquirer.py")]},
}
"""Behind the bridge, unless others are named."""


@dataclass(frozen=True)
class Exchange:
    """What passed between them.

    Attributes:
        first: The first request that the model got with tools.
        last: The last one.
        received: What it received for each step, by the step's name.
        sent: What the bridge had answered to that call.
        hello: The bridge's answer to the client's introduction.
        call: The parameters of the client's first call of a tool.
    """

    first: Asked
    last: Asked
    received: Mapping[str, Received]
    sent: Mapping[str, Json]
    hello: Json
    call: Json


def play(
    client: Client,
    steps: Mapping[str, Step],
    directory: Path,
    servers: Mapping[str, Json] = SERVERS,
    **environ: str,
) -> Exchange:
    """Let a client's model take some steps.

    Args:
        directory: An empty one, where everything is kept.
        servers: Those behind the bridge.
        environ: More of the bridge's environment.

    Raises:
        AssertionError: It did not come to the end; the text has what the client printed.
    """
    home = directory / "home"
    with serving(list(steps.values())) as model:
        setting = Setting(home, model.url, bridge_environ(directory / "bridge", servers) | environ)
        printed = client.run(setting)
    results = scripted(model.requests[-1]) if model.requests else []
    assert len(results) == len(steps), (
        f"{client.title} took {len(results)} of {len(steps)} steps; it asked for "
        f"{model.unknown} and printed:\n{printed[-3000:]}"
    )
    told, said = (_messages(setting.tap.with_suffix(end)) for end in (".in", ".out"))
    answers = {each["id"]: each["result"] for each in said if "result" in each}
    calls = [each for each in told if each.get("method") == "tools/call"]
    # A client that gets a question as the answer to a call makes that call again.
    sent = [each for each in (answers[call["id"]] for call in calls) if "content" in each]
    hellos = (each for each in answers.values() if "serverInfo" in str(each))
    return Exchange(
        first=model.requests[0],
        last=model.requests[-1],
        received=dict(zip(steps, results, strict=True)),
        sent=dict(zip(steps, sent, strict=True)),
        hello=next(hellos),
        call=calls[0]["params"],
    )


def bridge_environ(home: Path, servers: Mapping[str, Json]) -> dict[str, str]:
    """Return the environment of a bridge with these servers and nothing of this machine's user."""
    (home / "run").mkdir(parents=True, mode=0o700)
    (home / "config.toml").touch()
    listed = home / "servers.json"
    listed.write_text(json.dumps({"mcpServers": dict(servers)}))
    return {
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "MCP_BRIDGE_CONFIG": str(home / "config.toml"),
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "MCP_BRIDGE_SOURCES": ",".join(f"-{name}" for name in SOURCE_IDS),
        "MCP_SERVERS_CONFIG": str(listed),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
        "MCP_BRIDGE_BACKGROUND": "off",
        "MCP_BRIDGE_LOG_LEVEL": "ERROR",
    }


def _messages(path: Path) -> Iterator[Json]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line:
            yield json.loads(line)
