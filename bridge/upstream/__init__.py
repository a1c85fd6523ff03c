"""The MCP client side: sessions to the user's servers, kept open across runs, behind `Pool`."""
