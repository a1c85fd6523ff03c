"""The inventory: which servers are known, their tools, what changes, and what was learned."""
