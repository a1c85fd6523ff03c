"""The user's servers as runs see them: which exist, their tools, and what changes."""
