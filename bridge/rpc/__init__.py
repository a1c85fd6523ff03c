"""The host's end of the channel to a sandbox; `bridge.guest` has the other end.

Bounds each frame's length, number of values and shape before anything acts on it, the calls under
way and their replies. Knows no servers, policy or backends.
"""
