"""Literal types and small constants."""

from __future__ import annotations

from typing import Any, Literal

Json = Any  # A value that `json.dumps` accepts; checked where it enters, not by the type checker.

Transport = Literal["stdio", "http", "sse"]

ProtocolMode = Literal["auto", "modern", "legacy"]
"""The protocol of a server: "legacy" begins with `initialize` (up to 2025-11-25), "modern" with
`server/discover` (from 2026-07-28), and "auto" tries both."""

Share = Literal["auto", "definition", "user", "client"]
"""Which clients of a background bridge share a server's process; see `ServerSettings`."""

Status = Literal["success", "error", "timeout", "validation_error", "running"]
"""The status of a run; "running" if its client received an early answer."""

Reason = Literal[
    "exception", "exit", "oom", "crash", "timeout", "cancelled", "validation", "policy", "engine"
]

Severity = Literal["deny", "note"]

FindingSource = Literal["reader", "guard", "preflight"]

Effect = Literal["read", "write", "destructive"]
"""The effect of a call; without a trusted statement it is a write."""

Action = Literal["allow", "ask", "deny"]
"""A policy's decision on a call, from the mildest to the strictest."""

RunMode = Literal["run", "plan"]

RetriedReads = Literal["replay", "refresh"]

MEBIBYTE = 1024 * 1024

OWN_SERVER = "runtime"
"""The server name of calls to the bridge itself; no server can have it."""
