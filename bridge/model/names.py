"""The words of the bridge that are no more than names for a few values."""

from __future__ import annotations

from typing import Any, Literal

Json = Any  # A value that `json.dumps` accepts; checked where it enters, not by the type checker.

Transport = Literal["stdio", "http", "sse"]

ProtocolMode = Literal["auto", "modern", "legacy"]
"""Which protocol a server is spoken to in: "legacy" begins with `initialize` (up to 2025-11-25),
"modern" with `server/discover` (from 2026-07-28), "auto" finds out."""

Status = Literal["success", "error", "timeout", "validation_error", "running"]
"""How a run ended; "running" if it continues and its client does not wait for its end."""

Reason = Literal[
    "exception", "exit", "oom", "crash", "timeout", "cancelled", "validation", "policy", "engine"
]

Severity = Literal["deny", "note"]

FindingSource = Literal["reader", "guard", "preflight"]

Effect = Literal["read", "write", "destructive"]
"""What a call does to the world, as far as anybody vouches for it; a write unless somebody does."""

Action = Literal["allow", "ask", "deny"]
"""What a policy says of a call, from the mildest to the strictest."""

RunMode = Literal["run", "plan"]

RetriedReads = Literal["replay", "refresh"]

MEBIBYTE = 1024 * 1024

OWN_SERVER = "runtime"
"""In a server's place, for what programs ask of the bridge itself. No server can be called so."""
