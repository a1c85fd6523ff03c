"""The bridge as an MCP server. No logic of its own."""
