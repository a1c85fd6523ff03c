"""Changes of clients' configuration files: the bridge's entry, and servers that move behind it.

The edit of one entry leaves every other byte alone. A file is replaced whole or not at all, though
its client may run. A journal can undo each change.
"""
