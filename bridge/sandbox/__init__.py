"""Isolated processes on this machine or on a container engine.

Owns the `Backend` and `Sandbox` Protocols (`backend`), the backends (`process` without an engine,
`container` on docker and podman), the choice among them, the warm pool, the run queue, and the
classification of how a run ended. Knows nothing of frames, tools or policy: a sandbox is two byte
streams and an exit report.

Security reviewers start with `layers` (each layer, which ones are mandatory, how each is checked
from inside) and `syscalls` (the system call allow-list). Then `process.command`, `process.stage`
and `process.landlock` hold bubblewrap's layers, `process.landlock_backend` and
`process.seatbelt_backend` the weaker tiers', `container.hardening` the engines'.
"""
