"""A client that runs can ask, which answers as it is told to. Keeps the contract of `Client`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping

from bridge.model import Json

Answer = Callable[[Mapping[str, Json]], Awaitable[Mapping[str, Json]]]


async def decline(params: Mapping[str, Json]) -> Mapping[str, Json]:
    """Say no."""
    return {"action": "decline"}


class FakeClient:
    """Records what it is told and asked.

    Attributes:
        told: Progress: seconds and sentence.
        totals: What those seconds were said to come to.
        logged: Messages: level, source and data.
        asked: Questions.
    """

    def __init__(
        self,
        identity: Hashable = "fake",
        *,
        answer: Answer = decline,
        wants_progress: bool = True,
        log_level: str = "info",
        wants_output: bool = False,
        visits: bool = False,
        program: str = "",
    ) -> None:
        self.program = program
        self.visits = visits
        self.told: list[tuple[float, str]] = []
        self.totals: list[float | None] = []
        self.logged: list[tuple[str, str, Json]] = []
        self.asked: list[Mapping[str, Json]] = []
        self._identity = identity
        self._answer = answer
        self._wants_progress = wants_progress
        self._log_level = log_level
        self._wants_output = wants_output

    @property
    def identity(self) -> Hashable:
        return self._identity

    @property
    def wants_progress(self) -> bool:
        return self._wants_progress

    @property
    def log_level(self) -> str:
        return self._log_level

    @property
    def wants_output(self) -> bool:
        return self._wants_output

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        self.told.append((seconds, message))
        self.totals.append(total)

    async def log(self, level: str, source: str, data: Json) -> None:
        self.logged.append((level, source, data))

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        self.asked.append(params)
        return await self._answer(params)

    async def sample(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        self.asked.append(params)
        return await self._answer(params)

    async def roots(self) -> list[Json]:
        return []


def deciding(decision: str) -> FakeClient:
    """Return a client whose person decides like this on whatever is asked."""

    async def answer(params: Mapping[str, Json]) -> Mapping[str, Json]:
        return {"action": "accept", "content": {"decision": decision}}

    return FakeClient(answer=answer)
