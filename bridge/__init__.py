"""mcp-code-bridge: one MCP tool in front of all your MCP servers.

Start at `runs/engine.py`, the nine steps of a run. Packages, from the surface to the base: `cli`
commands; `server` the MCP surface; `runs` one run; `sessions`, `plans`, `commands` and
`saved_functions` combine runs; `inventory` the list of the user's servers; `packages` wheels for
programs; `callers` the client of a run; `discovery` reads clients' configuration files;
`client_configs` edits them; `upstream` connections to servers; `catalog` documentation, search and
program analysis; `sandbox` isolation backends; `rpc` the host's end of the channel; `gate` checks
for each call; `render` results as text; `artifacts` and `store` persistent data; `settings`;
`model` values; `guest` the code inside a sandbox.
"""

__version__ = "0.1.0"
