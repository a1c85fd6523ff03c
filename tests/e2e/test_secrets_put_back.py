"""Files with secrets in them, edited by programs through the real filesystem and git servers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.e2e.rig import PATIENCE_SECONDS, User, engines, text_of
from tests.e2e.test_peers import NODE, PEERS

pytestmark = pytest.mark.node

CONTAINERS = engines()[:1]

TOKEN = f"ghp_{'aB3dE5' * 6}"
ENV = f"GITHUB_TOKEN={TOKEN}\nDB_PASSWORD=admin123\nUSER=admin1234\nURL=pg://me:admin123@h/db\n"
COMPOSE = f"""services:
  web:
    image: "shop:admin1234"
    environment: {{ GITHUB_TOKEN: "{TOKEN}", KEY: 'q"uo\\te+7' }}
"""

PROGRAM = """
async def text(name):
    return await mcp_files.read_text_file(path=f"{here}/{name}")

env = await text(".env")
added = env.replace("USER=", "ROLE=") + "DEBUG=1\\n"
await mcp_files.write_file(path=f"{here}/.env", content=added)
await mcp_files.write_file(path=f"{here}/copy.yml", content=await text("compose.yml"))
line = env.splitlines()[0]
edit = {"oldText": line, "newText": f"# mine\\n{line}"}
await mcp_files.edit_file(path=f"{here}/.env", edits=[edit])
diff = await mcp_git.git_diff_unstaged(repo_path=here)
patch = str(diff).partition("\\n")[2].rstrip("\\n") + "\\n"
await mcp_files.write_file(path=f"{here}/my.patch", content=patch)
entries = (await mcp_files.list_directory(path=here)).splitlines()
[folder] = [entry.partition(" ")[2] for entry in entries if "d-" in entry]
print(folder, await mcp_files.list_directory(path=f"{here}/{folder}"))
print(env, await text("compose.yml"), diff)
try:
    await mcp_time.get_current_time(timezone=line)
except Exception as error:
    print(error)
"""


@pytest.fixture(
    params=[*(pytest.param(n, marks=getattr(pytest.mark, n)) for n in CONTAINERS), "bubblewrap"]
)
def engine_name(request: pytest.FixtureRequest) -> str:
    """A container, and a sandbox without one."""
    name: str = request.param
    return name


def check_files(project: Path) -> None:
    """Hold the project's files against what the program changed, and let git apply the diff."""
    git = ["git", "-C", str(project)]
    edited = f"# mine\n{ENV}".replace("USER=", "ROLE=") + "DEBUG=1\n"
    assert (project / ".env").read_text() == edited
    assert (project / "copy.yml").read_text() == COMPOSE
    subprocess.run([*git, "checkout", "-q", ".env"], check=True)
    assert (project / ".env").read_text() == ENV
    subprocess.run([*git, "apply", "my.patch"], check=True)
    assert (project / ".env").read_text() == edited


async def test_a_program_that_edits_files_with_secrets_changes_only_what_it_changed(
    user: User,
) -> None:
    """Rewriting, copying, replacing a part, a diff that git applies, a path."""
    clients = json.loads((user.home / ".claude.json").read_text())
    files = PEERS / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    secrets = {"GITHUB_TOKEN": TOKEN, "DB_PASSWORD": "admin123", "SIGNING_KEY": 'q"uo\\te+7'}
    clients["mcpServers"]["files"] = {
        "command": str(NODE),
        "args": [str(files), str(user.project)],
        "env": secrets,
    }
    (user.home / ".claude.json").write_text(json.dumps(clients))
    (user.project / ".env").write_text(ENV)
    (user.project / "compose.yml").write_text(COMPOSE)
    (user.project / f"d-{TOKEN}").mkdir()
    (user.project / f"d-{TOKEN}" / "inside").touch()
    await anyio.run_process(["git", "-C", str(user.project), "add", ".env"])
    with anyio.fail_after(PATIENCE_SECONDS):
        async with user.client() as client:
            code = f"here = {str(user.project)!r}\n{PROGRAM}"
            result = await client.call_tool("run_python", {"code": code})
    text = text_of(result)
    assert not result.is_error, text
    assert TOKEN not in result.model_dump_json()
    check_files(user.project)
    assert "[FILE] inside" in text
    assert "stands for a secret that this server did not return" in text
    assert text.count("[secrets] masked: GITHUB_TOKEN of files, DB_PASSWORD of files") == 1
    audit = "".join(path.read_text() for path in (user.home / "state").rglob("*.jsonl"))
    assert "GITHUB_TOKEN=[redacted: GITHUB_TOKEN of files]" in audit
    assert TOKEN not in audit
