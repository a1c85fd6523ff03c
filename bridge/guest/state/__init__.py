"""A session's state, written down for another sandbox, and restored there."""
