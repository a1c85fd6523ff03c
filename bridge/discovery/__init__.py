"""Finds the MCP servers in the configuration files of the user's clients.

`find.discover` is the entry point. Owns files, formats, precedence and approvals; starts nothing.
"""
