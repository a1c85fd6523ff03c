"""What the user's servers can do, as values and texts. No I/O.

Owns aliases (`naming`), entries of servers and tools (`entries`), signatures and stubs (`schema`,
`stubs`, `typed`), the model-facing texts (`docs`, `disclosure`, `offers`), search (`search`,
`words`), shapes of results (`shapes`), the proposed policy (`proposal`), and the reader of programs
(`program`). Asking servers is `bridge.servers`'.
"""
