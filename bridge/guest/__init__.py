"""All that enters a sandbox. Standard library only, Python 3.9 and later.

The host imports `bridge.guest.protocol.wire` and nothing else from here.
"""
