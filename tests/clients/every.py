"""The clients that are driven."""

from __future__ import annotations

from tests.clients import claude_code, codex, copilot, gemini, opencode, qwen_code

CLIENTS = (
    claude_code.CLIENT,
    codex.CLIENT,
    gemini.CLIENT,
    qwen_code.CLIENT,
    opencode.CLIENT,
    copilot.CLIENT,
)
