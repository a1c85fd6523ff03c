"""Resources and prompts in a real sandbox, and what results teach across two runs."""

from __future__ import annotations

import json
import sys

from tests.e2e.rig import REPOSITORY, User

LIBRARY = REPOSITORY / "tests" / "fakes" / "servers" / "library.py"

PROGRAM = """
print(await mcp_library.read_resource("books://{title}/pages{?to}", title="a b", to=3))
print((await mcp_library.read_resource("books://cover")).mime_type)
print((await runtime.get_prompt("library", "review", {"title": "Emma"})).messages[1].content)
await mcp_library.asked()
print((await runtime.query_tool_docs("library", "asked", detail="full")).observedSchema)
"""


def test_a_program_in_a_sandbox_reads_resources_and_teaches_what_tools_return(user: User) -> None:
    """The helpers that few programs use are in the sandbox too, and the host keeps no value."""
    entry = {"command": sys.executable, "args": [str(LIBRARY), "stdio"]}
    (user.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"library": entry}}))
    done = user.command("run", "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "books://a%20b/pages?to=3",
        "image/png",
        '{"not": "parsed"}',
        "{'type': 'string'}",
    ]
    docs = 'd = await runtime.query_tool_docs("library", "asked")\nprint(d.signature)'
    assert user.command("run", "-c", docs).stdout == "mcp_library.asked() -> str\n"
