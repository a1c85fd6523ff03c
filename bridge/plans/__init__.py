"""Plans: the held calls of a run, which are made once a person has approved exactly those.

Owns kept plans and their execution. Holding calls back, and placeholders, are
`bridge.gate.held_calls`'.
"""
