"""The host's end of the channel to a sandbox."""
