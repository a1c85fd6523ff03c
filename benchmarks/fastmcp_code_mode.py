"""FastMCP's code mode in front of one stdio server, for --peer. Needs `fastmcp[code-mode]`.

python benchmarks/fastmcp_code_mode.py COMMAND [ARG...]
"""

from __future__ import annotations

import sys
from importlib import import_module

command, *arguments = sys.argv[1:]
code_mode = import_module("fastmcp.experimental.transforms.code_mode")
proxy = import_module("fastmcp.server").create_proxy(
    {"mcpServers": {"tools": {"command": command, "args": arguments}}},
    name="code-mode",
    transforms=[code_mode.CodeMode()],
)
proxy.run(show_banner=False)
