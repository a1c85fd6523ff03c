"""Work on the event loop: a run's clock, background tasks, large values for threads, and metrics.

All time limits of a run use its clock, so that they stop together while the user answers.
"""

from __future__ import annotations

import asyncio
import math
from collections import ChainMap, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TypeVar

import anyio.lowlevel
import anyio.to_thread
from anyio.abc import TaskGroup


def current_time() -> float:
    """Return `anyio.current_time()`, in a tenth of its time. Each call needs it ten times."""
    return asyncio.get_running_loop().time()


def utc_text(seconds: float) -> str:
    """Return a Unix time in UTC with milliseconds, as records have it."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class Clock:
    """A stoppable clock, which starts when it is created."""

    def __init__(self) -> None:
        self._holds = 0
        self._stopped_at: float | None = None
        self._lost = 0.0
        self._limits: dict[anyio.CancelScope, float] = {}

    @property
    def running(self) -> bool:
        return self._stopped_at is None

    @property
    def stopped_seconds(self) -> float:
        since = 0.0 if self._stopped_at is None else current_time() - self._stopped_at
        return self._lost + since

    def now(self) -> float:
        """Return the seconds since a fixed point, without stopped time."""
        now = current_time() if self._stopped_at is None else self._stopped_at
        return now - self._lost

    @contextmanager
    def stop(self) -> Iterator[None]:
        """Stop the clock within the context. Nested stops end with the last context."""
        self._holds += 1
        if self._holds == 1:
            self._stopped_at = current_time()
            self._notify()
        try:
            yield
        finally:
            self._holds -= 1
            if self._holds == 0:
                self._lost = self.stopped_seconds
                self._stopped_at = None
                self._notify()

    @contextmanager
    def limit(self, seconds: float) -> Iterator[anyio.CancelScope]:
        with anyio.CancelScope() as scope:
            self.move_limit(scope, seconds)
            try:
                yield scope
            finally:
                self._limits.pop(scope, None)

    def move_limit(self, scope: anyio.CancelScope, seconds: float) -> None:
        """Set an open limit to end in `seconds`."""
        self._limits[scope] = self.now() + seconds
        self._set_deadline(scope)

    def _notify(self) -> None:
        for scope in self._limits:
            self._set_deadline(scope)

    def _set_deadline(self, scope: anyio.CancelScope) -> None:
        scope.deadline = self._limits[scope] + self._lost if self.running else math.inf


@asynccontextmanager
async def background_tasks() -> AsyncIterator[TaskGroup]:
    """Yield a task group that is cancelled when the context ends.

    An exception of the body is raised as it is, not in an exception group.
    """
    stack = AsyncExitStack()
    tasks = await stack.enter_async_context(anyio.create_task_group())
    try:
        yield tasks
    finally:
        tasks.cancel_scope.cancel()
        await stack.aclose()


@asynccontextmanager
async def background_task(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    async with background_tasks() as tasks:
        tasks.start_soon(work)
        yield


class LargeText:
    """A large text of a tool result as UTF-8, in pieces of whole characters.

    Not a `str`, so that code must ask for the whole text with `str()`.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __sizeof__(self) -> int:
        return self._size

    def __str__(self) -> str:
        return b"".join(self.pieces).decode()


def with_plain_text(result: dict[str, Any]) -> dict[str, Any]:
    """Return a tool result with each `LargeText` of its content as a `str`."""
    content = result.get("content")
    if not isinstance(content, list) or not any(map(_is_large, content)):
        return result
    plain = [
        {**block, "text": str(block["text"])} if _is_large(block) else block for block in content
    ]
    return {**result, "content": plain}


def _is_large(block: Any) -> bool:
    return isinstance(block, Mapping) and isinstance(block.get("text"), LargeText)


LARGE = 128 * 1024
"""The size above which work moves to a thread: characters, plus `VALUE` for each object."""

VALUE = 64
"""The weight of an object: visiting one takes as long as reading this many characters."""

_PLAIN = frozenset({int, float, bool, type(None)})  # Objects without content.

Result = TypeVar("Result")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("offload")


def estimated_size(value: Any, limit: float = math.inf) -> int:
    """Return a value's size for `LARGE`. Stops when the size exceeds `limit`."""
    size = VALUE
    left: list[Any] = [value]
    while left and size <= limit:
        one = left.pop()
        kind = type(one)
        # Exact types first: `isinstance(one, Mapping)` is slow, and each call's arguments and
        # result pass here several times.
        if kind is str or kind is bytes or kind is LargeText:
            size += len(one)
        elif kind in _PLAIN:
            continue
        elif kind is dict or isinstance(one, Mapping):
            size += 2 * VALUE * len(one)
            if size <= limit:
                size += _add_items(one, left) + _add_items(one.values(), left)
        elif isinstance(one, (list, tuple)):
            size += VALUE * len(one)
            if size <= limit:
                size += _add_items(one, left)
    return size


def _add_items(items: Iterable[Any], left: list[Any]) -> int:
    size = 0
    for one in items:
        kind = type(one)
        if kind is str:
            size += len(one)
        elif kind not in _PLAIN:
            left.append(one)
    return size


async def offload(value: Any, work: Callable[[], Result]) -> Result:
    """Return the result of `work` on `value`, in a thread if the value is large.

    The work must be Python code: a single long call of a C function would still hold the
    interpreter lock. A cancelled caller waits for the thread, which still reads the value.
    """
    if estimated_size(value, LARGE) <= LARGE:
        return work()
    try:
        limiter = _limiter.get()
    except LookupError:
        # The event loop competes with each thread for the interpreter lock.
        limiter = anyio.CapacityLimiter(2)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


METRICS: dict[str, tuple[str, tuple[float, ...]]] = {
    "runs_total": ("Ended runs and applied plans.", ()),
    "run_seconds": ("Time of a run.", (0.1, 0.5, 1, 5, 30, 120, 600)),
    "queue_seconds": ("Wait for a run's slot.", (0.1, 1, 5, 15, 30, 60)),
    "sandbox_start_seconds": ("Start of a sandbox.", (0.1, 0.3, 1, 3, 10, 30)),
    "calls_total": ("Calls of programs to servers.", ()),
    "store_seconds": ("Wait for an answer of a shared store.", (0.005, 0.02, 0.1, 0.5, 2, 10)),
}
"""Counters, and histograms with the bounds of their buckets."""

_samples: dict[str, dict[str, float]] = {name: defaultdict(float) for name in METRICS}
_lock = Lock()  # The store counts in threads.
_ESCAPES = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}


def count_metric(name: str, amount: float = 1.0, **labels: str) -> None:
    """Add an amount to a counter, or one observation to a histogram; labels have few values."""
    pairs = [f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items()]
    bounds, samples, braced = METRICS[name][1], _samples[name], f"{{{','.join(pairs)}}}"
    with _lock:
        for bound in (*map(str, bounds), "+Inf") if bounds else ():
            label = ",".join([*pairs, f'le="{bound}"'])
            samples[f"{name}_bucket{{{label}}}"] += amount <= float(bound)
        if bounds:
            samples[f"{name}_count{braced}"] += 1
        samples[f"{name}_sum{braced}" if bounds else name + braced] += amount


# Prometheus sees no increase from nothing to one.
count_metric("runs_total", 0.0, status="error", reason="engine")


def exposition(gauges: Mapping[str, tuple[str, float]]) -> str:
    """Return all metrics as text; gauges have a description and a value."""
    told = [(name, "gauge", text, {name: value}) for name, (text, value) in gauges.items()]
    with _lock:
        for name, (text, bounds) in METRICS.items():
            told.append((name, "histogram" if bounds else "counter", text, {**_samples[name]}))
    lines = []
    for name, kind, text, samples in told:
        lines += [f"# HELP mcp_code_bridge_{name} {text}", f"# TYPE mcp_code_bridge_{name} {kind}"]
        lines += [f"mcp_code_bridge_{sample} {value}" for sample, value in samples.items()]
    return "\n".join([*lines, ""])


LOG_FACTS: ContextVar[ChainMap[str, str]] = ContextVar("facts", default=ChainMap())  # noqa: B039


@contextmanager
def logged_as(**facts: str) -> Iterator[None]:
    """Give the log lines of this context these facts too."""
    token = LOG_FACTS.set(LOG_FACTS.get().new_child(facts))
    try:
        yield
    finally:
        # A server or sandbox that a run starts has a copy of the context, and outlives the run.
        facts.clear()
        LOG_FACTS.reset(token)
