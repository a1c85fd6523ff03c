"""Discovers the MCP servers in the configuration files of the user's clients.

`finder.discover` is the entry point. Owns files, formats, precedence and approvals. Starts nothing.
"""
