"""mcp-code-bridge: one MCP tool in front of all your MCP servers.

Start at `runs/runner.py`, the nine steps of a run. From the surface to the base, by package:
`cli` commands; `server` the MCP surface; `runs` one run; `sessions`, `plans`, `commands`, `skills`
what runs compose; `servers` the inventory of the user's servers; `packages` wheels for programs;
`callers` who asked; `discovery` clients' configuration files; `upstream` connections to servers;
`catalog` documentation, search and the reader of programs; `sandbox` where programs run; `rpc` the
host's end of the channel; `gate` what each call passes; `render` results as text; `artifacts` and
`store` what is kept; `settings`; `model` values; `guest` what enters a sandbox.
"""

__version__ = "0.1.0"
