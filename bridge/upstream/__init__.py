"""Sessions to the user's MCP servers, kept open across runs."""
