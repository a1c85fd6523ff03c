"""The host's end of the channel to a sandbox.

Owns framing and its bounds (`channel`), serving a guest's calls (`dispatcher`), the values that
tool results become (`values`), and the bounds on output (`output`). Knows no servers, policy or
sandbox backends. The guest's end is `bridge.guest`; both share `bridge.guest.protocol`.

Enforces: each frame's length, number of values and shape, before anything acts on it; bounds on
calls under way and on replies. `tests/fuzz` and `tests/attacks` send hostile frames.
"""
