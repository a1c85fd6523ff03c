"""Command lines that answer without a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.sandbox.container.command_runner import CompletedCommand, SystemRunner


class Scripted(SystemRunner):
    """Answers command lines."""

    def __init__(self, result: CompletedCommand) -> None:
        super().__init__()
        self.result = result
        self.asked: list[list[str]] = []

    async def __call__(self, argv: Sequence[str], **options: Any) -> CompletedCommand:
        self.asked.append(list(argv))
        return self.result
