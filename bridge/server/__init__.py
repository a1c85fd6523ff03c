"""The bridge as an MCP server: its tools, resources, notices and transports.

It has no logic of its own. `bridge.inventory` owns the user's servers and their tools, and
`bridge.upstream` the connections to them.
"""
