"""A sandbox's first process: starts workers, relays frames, reports how a run ended."""
