"""The servers whose tools are counted: real ones from the registries, and a made-up crowd.

Those from npm are what `scripts/bench-servers` installs, and the two that the tests have as
well; none is given a real token, none is called, and what one would send home is turned off.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bridge.discovery.finder import Discovery
from bridge.model import ServerSpec, Source, Tool

REPOSITORY = Path(__file__).parents[1]
BIN = REPOSITORY / ".venv" / "bin"
TEST_PACKAGES = REPOSITORY / "tests" / "node" / "node_modules"
PACKAGES = REPOSITORY / "benchmarks" / "servers" / "node_modules"

CROWD_SERVERS = 100
CROWD_TOOLS = 50
"""Of each: 5,000 in all."""

_SEED = 5
_PSEUDO_WORDS = 2_000
_THINGS_SHARE = 0.1
_SKEW = 0.5
"""Of how often words come: of Pareto's distribution."""

_TOKEN = "not-a-token"

_VERBS = (
    "archive assign close copy create delete export find get import list lock merge move open "
    "pause publish rename restore search send share sync tag update validate"
)
_THINGS = (
    "account alert article backup board branch bucket build calendar campaign card cart channel "
    "cluster comment commit contact contract coupon customer dashboard dataset deployment device "
    "document domain employee event experiment feature folder form group image incident invoice "
    "issue job key label lead list message metric milestone model note notification order page "
    "payment permission pipeline policy product project query queue record region release report "
    "repository reservation review role room route rule schedule secret segment sensor session "
    "shipment snapshot subscription survey table task team template ticket token transcript user "
    "vendor version volume webhook workflow workspace"
)
_WORDS = (
    "active all already any available before belongs by current default each every existing "
    "filtered fully given historical include internal last latest matching new only optional "
    "order owner paginated pending previous public recent related requested required returned "
    "scheduled shared single sorted specific status temporary total unique updated valid visible"
)


class Given:
    """Finds what it is given."""

    def __init__(self, specs: tuple[ServerSpec, ...]) -> None:
        self._specs = specs

    def stamp(self) -> object:
        """Return the same every time."""
        return 0

    def find(self) -> Discovery:
        """Return the servers."""
        return Discovery(servers=self._specs, skipped=(), warnings=(), stamp=())


def spec(name: str, command: Path | str, *args: str, **env: str) -> ServerSpec:
    """Return a server's definition."""
    source = Source(client="benchmark", scope="user", path="benchmarks", key=name)
    return ServerSpec(
        name=name, transport="stdio", source=source, command=str(command), args=args, env=env
    )


def servers_at_hand(directory: Path) -> tuple[ServerSpec, ...]:
    """Return the real servers that the tests have at hand; their data lies in `directory`."""
    repository = directory / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    everything = _script(TEST_PACKAGES, "@modelcontextprotocol/server-everything")
    files = _script(TEST_PACKAGES, "@modelcontextprotocol/server-filesystem")
    return (
        spec("everything", BIN / "node", everything),
        spec("filesystem", BIN / "node", files, str(directory)),
        spec("git", BIN / "mcp-server-git", "--repository", str(repository)),
        spec("time", BIN / "mcp-server-time", "--local-timezone", "UTC"),
        spec("fetch", BIN / "mcp-server-fetch"),
    )


def real_servers(directory: Path) -> tuple[ServerSpec, ...]:
    """Return all real servers."""

    def node(name: str, package: str, *args: str, **env: str) -> ServerSpec:
        return spec(name, BIN / "node", _script(PACKAGES, package), *args, **env)

    memory = str(directory / "memory.jsonl")
    return (
        *servers_at_hand(directory),
        node("memory", "@modelcontextprotocol/server-memory", MEMORY_FILE_PATH=memory),
        node("thinking", "@modelcontextprotocol/server-sequential-thinking"),
        node("github", "@modelcontextprotocol/server-github", GITHUB_PERSONAL_ACCESS_TOKEN=_TOKEN),
        node("gitlab", "@modelcontextprotocol/server-gitlab", GITLAB_PERSONAL_ACCESS_TOKEN=_TOKEN),
        node(
            "slack", "@modelcontextprotocol/server-slack", SLACK_BOT_TOKEN=_TOKEN, SLACK_TEAM_ID="T"
        ),
        node("notion", "@notionhq/notion-mcp-server", NOTION_TOKEN=_TOKEN),
        node("playwright", "@playwright/mcp"),
        node("context7", "@upstash/context7-mcp"),
        node("devtools", "chrome-devtools-mcp", "--no-usage-statistics"),
        node("firecrawl", "firecrawl-mcp", FIRECRAWL_API_KEY=_TOKEN),
    )


def packages() -> dict[str, str]:
    """Return the versions of the npm packages among them."""
    found: dict[str, str] = {}
    for place in (TEST_PACKAGES.parent, PACKAGES.parent):
        document = json.loads((place / "package.json").read_text(encoding="utf-8"))
        found.update(document["dependencies"])
    return found


def crowd() -> dict[str, tuple[Tool, ...]]:
    """Return made-up servers with made-up tools, the same every time."""
    chance = random.Random(_SEED)
    verbs, things = _VERBS.split(), _THINGS.split()
    # As in real prose: a few words everywhere, and most of them seldom.
    words = [*_WORDS.split(), *(_pseudo_word(chance) for _ in range(_PSEUDO_WORDS))]
    servers: dict[str, tuple[Tool, ...]] = {}
    for number in range(CROWD_SERVERS):
        server = f"{chance.choice(things)}-service-{number}"
        names = set[str]()
        while len(names) < CROWD_TOOLS:
            ending = chance.choice(
                ("", "", f"_by_{chance.choice(things)}", f"_{chance.choice(things)}s")
            )
            names.add(f"{chance.choice(verbs)}_{chance.choice(things)}{ending}")
        servers[server] = tuple(
            _made_up(chance, server, name, things, words) for name in sorted(names)
        )
    return servers


def _made_up(
    chance: random.Random, server: str, name: str, things: list[str], words: list[str]
) -> Tool:
    def prose(most: int) -> str:
        picked = (
            chance.choice(things)
            if chance.random() < _THINGS_SHARE
            else words[min(int(chance.paretovariate(_SKEW)) - 1, len(words) - 1)]
            for _ in range(chance.randint(4, most))
        )
        return " ".join(picked)

    verb, _, rest = name.partition("_")
    parameters = chance.sample(things, chance.randint(1, 6))
    properties = {
        f"{thing}_id": {"type": chance.choice(("string", "integer")), "description": prose(10)}
        for thing in parameters
    }
    return Tool(
        server=server,
        name=name,
        description=f"{verb.capitalize()} a {rest.replace('_', ' ')}. {prose(40)}.",
        input_schema={
            "type": "object",
            "properties": properties,
            "required": [f"{parameters[0]}_id"],
        },
    )


def _pseudo_word(chance: random.Random) -> str:
    return "".join(
        chance.choice("bcdfglmnprstv") + chance.choice("aeiou") for _ in range(chance.randint(2, 4))
    )


def _script(place: Path, package: str) -> str:
    """Return the file that npm would start for a package."""
    home = place / package
    described = json.loads((home / "package.json").read_text(encoding="utf-8"))
    return str(home / next(_scripts(described, package)))


def _scripts(described: dict[str, object], package: str) -> Iterator[str]:
    scripts = described["bin"]
    if isinstance(scripts, str):
        yield scripts
    elif isinstance(scripts, dict):
        # Of several, the one that is named as the package is.
        yield from (str(path) for name, path in scripts.items() if package.endswith(name))
        yield from map(str, scripts.values())
