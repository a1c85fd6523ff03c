"""The bridge as an MCP server: its tools, resources, notices and transports.

No logic of its own. What is known of the user's servers is `bridge.inventory`', the connections to
them are `bridge.upstream`'s.
"""
