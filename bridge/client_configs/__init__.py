"""Edits clients' configuration files: the bridge's entry, and servers that move behind it.

An edit of one entry leaves every other byte alone. A file is replaced whole or not at all, even
while its client runs. The journal can undo each change.
"""
