"""Writes clients' configuration files: the bridge's own entry, and servers that move behind it.

Owns changes of these files: the edit of one entry that leaves every other byte alone, the file's
replacement while its client may write it too, and the record from which a change is undone. What a
client's files are, and what they mean, `bridge.discovery` owns, which never writes.
"""
