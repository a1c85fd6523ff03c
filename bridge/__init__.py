"""mcp-code-bridge: one MCP tool in front of all your MCP servers."""

__version__ = "0.1.0"
