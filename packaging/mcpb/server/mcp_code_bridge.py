"""Start the bridge as a desktop bundle, with what its user has chosen."""

import os
import sys
from pathlib import Path

from bridge.cli.main import main

POLICIES = Path(__file__).resolve().parent


def choose() -> str | None:
    """Put the user's choices into the environment; return what is wrong with them."""
    for name, value in list(os.environ.items()):
        # What the user left empty arrives empty, or as the manifest's placeholder.
        if name.startswith(("MCP_BRIDGE_", "MCPB_")) and (
            not value or value.startswith("${user_config.")
        ):
            del os.environ[name]
    policy = os.environ.pop("MCPB_POLICY", "settings")
    if policy == "settings":
        return None
    file = POLICIES / f"{policy}.toml"
    if policy not in ("ask", "read-only"):
        return f"no policy {policy!r}; choose settings, ask or read-only"
    if "MCP_BRIDGE_CONFIG" in os.environ:
        return f"the policy {policy!r} and a settings file exclude each other; choose one"
    os.environ["MCP_BRIDGE_CONFIG"] = str(file)
    return None


if __name__ == "__main__":
    wrong = choose()
    sys.exit(f"mcp-code-bridge: {wrong}" if wrong else main())
