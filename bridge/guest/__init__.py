"""The code that runs in a sandbox. Standard library only, Python 3.9 and later.

The host imports `bridge.guest.protocol` and `bridge.guest.schema` only.
"""
