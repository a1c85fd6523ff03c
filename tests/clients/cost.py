"""What a model pays in Claude Code for the bridge and for one program's result.

python -m tests.clients.cost RUNTIME SERVERS < PROGRAM, where SERVERS is JSON
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from bridge.text import count_tokens
from tests.clients.claude_code import CLIENT
from tests.clients.exchange import play
from tests.clients.model import program
from tests.clients.probes import tools_tokens


def main() -> int:
    runtime, servers = sys.argv[1:]
    # The engine that the sandbox needs is found through it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MCP_")}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        exchange = play(
            CLIENT,
            {"program": program(sys.stdin.read(), timeout=60)},
            Path(directory),
            json.loads(servers),
            **{**environ, "MCP_BRIDGE_RUNTIME": runtime},
        )
    result = count_tokens(exchange.received["program"].text)
    print(
        f"In {CLIENT.title} {CLIENT.version} a model pays about {result} tokens for this result "
        f"and {tools_tokens(exchange):,} for the bridge's tools."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
