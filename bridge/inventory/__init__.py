"""The user's servers as runs see them: which exist, their tools, and what changes.

Owns the current configuration (`servers`, `config_watch`), the tools of each server (`inventory`,
`refresher`, `tool_cache`), the shapes of results (`learned_shapes`, `shape_store`), the approval of
a project's servers (`proposals`, `proposed`, `consents`), the values to redact (`secrets`), and the
texts on servers (`guide`). Not the finding of definitions, sessions, or the wording of the texts.
"""
