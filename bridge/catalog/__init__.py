"""What the user's servers can do, as values and texts. No I/O.

Owns aliases (`naming`), entries of servers and tools (`entries`), signatures and stubs (`stubs`),
the model-facing texts (`docs`, `disclosure`, `offers`), search (`search`, `words`), result shapes
(`shapes`), a proposed policy (`policy_proposal`), and reading programs (`program`).
"""
