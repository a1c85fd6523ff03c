"""Saves a session's state and restores it in another sandbox."""
