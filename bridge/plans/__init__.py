"""Plans applied: the held calls of a run, made after a person has approved of exactly those."""
