"""A sandbox's first process: it starts a program, relays its frames, and outlives it."""
