"""Calls and answers of runs in memory, so that a retry does not repeat them; digests of calls.

The retry of a run gets the recorded answers of equal calls in their order: same server, tool and
arguments, where 1, 1.0 and true differ. The gate sends a refused call again, and a call of unknown
outcome only if it reads. A retry takes over all records. Only one chain of retries may continue a
run, since two would each make the remaining calls.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Literal

from bridge.errors import (
    CannotAskError,
    InvalidRequestError,
    RefusedError,
    ToolCallError,
    UnknownError,
    UpstreamError,
    UsageError,
)
from bridge.event_loop import LARGE, estimated_size
from bridge.gate.policy import CallFacts, FlowState
from bridge.guest.protocol import json_text
from bridge.model import OWN_SERVER, CallCount, Effect, Json, RetriedReads

MAX_RESULT_BYTES = 4 * 1024 * 1024  # Of a server's result; the journal does not keep larger ones.

ENTRY_BYTES = 1024  # Of an entry without its result.

OWN = OWN_SERVER
"""The server's name in requests to the bridge itself. A retry never refreshes their reads, because
an update depends on the value that was read."""

_canonical = json_text.encoder(sort_keys=True, allow_nan=True)

_GONE = (
    "Nothing was run and nothing repeated. `mcp-code-bridge audit show RUN` tells the user what "
    "that run did; leave that out of the program and run it without `retry_of`."
)

_LEAVE_OUT = "Leave this call out, or get what you need of its result with a call that reads."

_REFUSALS = {
    "redefined": (
        "was made to another definition of its server, whose configuration has changed since.",
        (
            "Find out with a call that reads whether this server has what the call did, and run "
            "what is left in a program of its own without `retry_of`."
        ),
    ),
    "uncertain": (
        "was sent without an answer, so it may or may not have happened.",
        (
            "Find out with a call that reads. If it happened, leave this call out and retry; if "
            "not, run what is left in a program of its own without `retry_of`."
        ),
    ),
    "lost": ("did happen, and its result was too large to keep.", _LEAVE_OUT),
    "elsewhere": ("did happen, and this bridge does not have its result.", _LEAVE_OUT),
}
"""Why a recorded call is neither answered nor made again, and what to do."""


Outcome = Literal["ok", "tool-error", "refused", "not-sent", "unknown"]
"""Answered; failed in the tool; refused by the server at protocol level; never sent; or sent
without an answer."""

REFUSALS = frozenset({-32600, -32601, -32602, -32020, -32021, -32022, -32042})
"""Codes of requests that the server did not act on: malformed, unknown method, wrong parameters,
headers, capability or version, and an address that the user has to visit first."""


def outcome_of(result: Mapping[str, Json]) -> Outcome:
    return "tool-error" if result.get("isError") is True else "ok"


def outcome_after(error: BaseException) -> Outcome:
    """Return the outcome of a call that raised an error; "unknown" for unexpected ones."""
    if isinstance(error, UsageError | RefusedError):
        # An error of the bridge, before the call.
        return "not-sent"
    if not isinstance(error, UpstreamError) or error.doubtful:
        return "unknown"
    if isinstance(error, ToolCallError):
        return "refused" if error.rpc_code in REFUSALS else "tool-error"
    if isinstance(error, CannotAskError):
        # The server asked a question instead.
        return "refused"
    return "not-sent"


@dataclass(eq=False, slots=True)
class JournalEntry:
    """A call. `result` is None without a result, or if it was too large."""

    server: str
    tool: str
    key: bytes
    effect: Effect
    number: int = 0
    outcome: Outcome = "unknown"
    result: dict[str, Json] | None = None
    run_id: str = ""
    size: int = ENTRY_BYTES
    server_definition: str = ""
    fate: str = ""  # That of its run, if another bridge made it.


def key_of(server: str, tool: str, arguments: Mapping[str, Json]) -> bytes:
    """Return a key that only equal calls share."""
    try:
        text = _canonical([server, tool, arguments])
    except (RecursionError, TypeError, ValueError):
        # All arguments that are nested too deeply count as one call, without a result. The retry
        # refuses it rather than repeat it.
        return b""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(eq=False, slots=True)
class RetryChain:
    """A run and its retries."""

    head: str  # The last retry that made a changing call.
    stored: str  # The last of them with a row in a shared store.


class RunJournal:
    """The calls of one run, and the unused records of an earlier run."""

    def __init__(
        self,
        run_id: str = "",
        reserve: Callable[[int], bool] = lambda _: True,  # Takes bytes of memory; False if full.
        earlier: Replay | None = None,  # The run that this one retries, or whose plan it applies.
        *,
        planned_by: str = "",  # The run whose plan it applies: its calls come first.
        calls: Sequence[JournalEntry] = (),
        record: Mapping[str, Json] | None = None,  # What a row of another bridge says.
    ) -> None:
        self.record = record or {}
        self.run_id = run_id
        self.under_way = False
        chain = RetryChain(run_id, planned_by or run_id)
        self.chain: RetryChain = chain if earlier is None else earlier.chain
        self.head = self.chain.head
        self._reserve = reserve
        self._earlier = earlier
        self._after = bool(planned_by)
        self._entries = list(calls)
        self._size = 0
        self.flow = FlowState()
        if earlier is not None:
            self.flow.absorb(earlier.flow)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.under_way = True
        try:
            yield
        finally:
            self.under_way = False

    def check(self) -> None:
        """Raise `InvalidRequestError` if this bridge cannot retry the run yet."""
        why = "it still runs, and what it calls is not known yet" if self.under_way else ""
        if self.record.get("status") in ("running", "long"):
            why = f"{self.record['fate']}"
        if why:
            remedy = "Retry it at its bridge, once it ended; elsewhere if that was silent for 15 s."
            message = f"Run {self.run_id} cannot be retried here yet: {why}."
            raise InvalidRequestError(message, remedy=remedy)

    def sent(self, call: CallFacts, effect: Effect, number: int = 0) -> JournalEntry:
        """Record a call that the gate sends next. Its outcome is unknown until `settle`."""
        entry = JournalEntry(
            # A program invents names, which only messages need.
            call.server[:200],
            call.tool[:200],
            key_of(call.server, call.tool, call.arguments),
            effect,
            number,
            run_id=self.run_id,
            server_definition=call.server_definition,
        )
        # The journal keeps every call. Their number is limited, and older runs make room.
        self._reserve(ENTRY_BYTES)
        self._size += ENTRY_BYTES
        self._entries.append(entry)
        return entry

    def settle(self, entry: JournalEntry, outcome: Outcome, result: dict[str, Json] | None) -> None:
        entry.outcome = outcome
        if outcome != "ok" or result is None or not entry.key:
            return
        size = estimated_size(result, MAX_RESULT_BYTES)
        if size <= MAX_RESULT_BYTES and self._reserve(size):
            entry.result = result
            entry.size += size
            self._size += size

    def entries(self) -> Iterator[JournalEntry]:
        """Return the run's calls in order, and those it took over."""
        left = () if self._earlier is None else self._earlier.left()
        return itertools.chain(*((left, self._entries) if self._after else (self._entries, left)))

    @property
    def size(self) -> int:
        """Bytes of the run's calls and of unused calls of the earlier run."""
        return self._size + (0 if self._earlier is None else self._earlier.size)


class Replay:
    """Answers a retry from the journal of an earlier run, one record for each call."""

    def __init__(
        self,
        journal: RunJournal,
        reads: RetriedReads = "replay",
        *,
        run_id: str = "",
        mask: Callable[[Json], Json] = lambda value: value,
    ) -> None:
        self._reads = reads
        self._run_id = run_id
        self._mask = mask
        self.chain: RetryChain = journal.chain
        self.head = journal.chain.head
        self.flow: FlowState = journal.flow
        self._answered: dict[bytes, deque[JournalEntry]] = {}
        self._unknown: dict[bytes, JournalEntry] = {}
        for entry in journal.entries():
            if entry.outcome == "ok":
                self._answered.setdefault(entry.key, deque()).append(entry)
            elif entry.outcome == "unknown":
                # One unknown call of a kind refuses all.
                self._unknown.setdefault(entry.key, entry)
        self.size: int = sum(entry.size for entry in self.left())

    def answer(self, call: CallFacts, effect: Effect) -> dict[str, Json] | None:
        """Return the recorded result of an equal call; None if the gate has to make the call.

        Raises `RefusedError` if the result is unknown, another retry continued the run, or the
        server had another definition. The call stays recorded, so that another try fails too.
        """
        arguments, key = call.arguments, key_of(call.server, call.tool, call.arguments)
        reads = effect == "read"
        answered = self._answered.get(key)
        earlier = answered[0] if answered else self._unknown.get(key)
        if earlier is not None and earlier.server_definition != call.server_definition:
            if reads:
                return None
            raise self._refusal("redefined", earlier, arguments)
        if answered:
            if answered[0].result is None and not reads:
                why = "elsewhere" if answered[0].fate else "lost"
                raise self._refusal(why, answered[0], arguments)
            entry = answered.popleft()
            self.size -= entry.size
            # A refreshed read still consumes its recorded entry.
            fresh = reads and self._reads == "refresh" and call.server != OWN
            return None if fresh else entry.result
        if reads:
            return None
        if key in self._unknown:
            raise self._refusal("uncertain", self._unknown[key], arguments)
        self.claim_retry(f"{call.server[:200]}.{call.tool[:200]}")
        return None

    def left(self) -> Iterator[JournalEntry]:
        return itertools.chain(*self._answered.values(), self._unknown.values())

    def count_unused(self) -> tuple[CallCount, ...]:
        entries = itertools.chain(*self._answered.values())
        changing = (entry for entry in entries if entry.effect != "read")
        counts = Counter((entry.server, entry.tool) for entry in changing)
        return tuple(CallCount(server=s, tool=t, count=n) for (s, t), n in counts.items())

    def claim_retry(self, call: str) -> None:
        chain = self.chain
        if chain.head == self._run_id:
            return
        if chain.head != self.head:
            raise another_retry(call, chain.head)
        chain.head = self._run_id

    def _refusal(
        self, why: str, entry: JournalEntry, arguments: Mapping[str, Json]
    ) -> RefusedError:
        try:
            shown = json.dumps(self._mask(dict(arguments)), ensure_ascii=False)
        except (RecursionError, TypeError, ValueError):
            shown = "…"
        if len(shown) > 500:
            shown = f"{shown[:500]}…"
        became, remedy = _REFUSALS[why]
        call = f"{entry.server}.{entry.tool}({shown}), call {entry.number} of run {entry.run_id},"
        message = f"{call} {became} It is not made again."
        if entry.fate:
            message += f" Of that run is known: {entry.fate}."
        return RefusedError(message, remedy=remedy, code="outcome_unknown")


def another_retry(call: str, run_id: str) -> RefusedError:
    message = (
        f"{call} is not made: another retry of the same run, {run_id}, makes calls of "
        "its own, perhaps this one."
    )
    remedy = f"Wait for that run, then retry it: retry_of={run_id!r}."
    return RefusedError(message, remedy=remedy, code="outcome_unknown")


class Journals:
    """The journals of recent runs, by run and owner.

    Callers and servers fill them, so that the limits hold for all together. The oldest make room.
    """

    def __init__(self, *, max_runs: int = 200, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_runs = max_runs
        self._max_bytes = max_bytes
        self._runs: OrderedDict[str, tuple[str, RunJournal]] = OrderedDict()
        # An upper bound: freed bytes count until the next recount.
        self._used = 0

    @property
    def used(self) -> int:
        return sum(journal.size for _, journal in self._runs.values())

    def begin(
        self, run_id: str, owner: str, earlier: Replay | None = None, *, planned_by: str = ""
    ) -> RunJournal:
        """Return the journal of a new run, which may retry an earlier one, or apply its plan."""
        journal = RunJournal(run_id, self._reserve, earlier, planned_by=planned_by)
        while len(self._runs) >= self._max_runs and self._evict():
            pass
        self._reserve(journal.size)
        self._runs[run_id] = (owner, journal)
        return journal

    def knows(self, run_id: str, owner: str) -> bool:
        return run_id in self._runs and self._runs[run_id][0] == owner

    def find(self, run_id: str, owner: str) -> RunJournal:
        """Return the journal of a run, or of the retry that continued it."""
        if not self.knows(run_id, owner):
            message = (
                f"There is no journal of a run {run_id!r:.80}: they are kept for the caller of the "
                f"run, for about {self._max_runs} runs, and end with the bridge that made it."
            )
            raise UnknownError(message, remedy=_GONE, code="unknown_run")
        journal = self._runs[run_id][1]
        last = run_id if journal.head == journal.chain.head else journal.chain.head
        if last not in self._runs:
            message = f"Run {run_id} was retried by {last}, whose journal is gone."
            raise UnknownError(message, remedy=_GONE, code="unknown_run")
        journal = self._runs[last][1]
        journal.check()
        self._runs.move_to_end(last)
        return journal

    def _reserve(self, size: int) -> bool:
        """Take memory, from the oldest runs if needed, and return whether there is enough."""
        self._used += size
        if self._used > self._max_bytes:
            self._used = self.used + size
        while self._used > self._max_bytes:
            if not self._evict():
                return False
            self._used = self.used + size
        return True

    def _evict(self) -> bool:
        for run_id, (_, journal) in self._runs.items():
            if not journal.under_way:
                del self._runs[run_id]
                return True
        return False


_encoded = json_text.encoder(ascii_only=True, sort_keys=True)

_PIECES = json.JSONEncoder(
    allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
)
"""Writes the JSON of `_encoded` in pieces."""


def canonical(value: Json) -> str:
    """Return a value as canonical JSON. Numbers that JSON does not have become texts."""
    try:
        return _encoded(value)
    except ValueError:
        return _encoded(_finite(value))


def _finite(value: Json, depth: int = 0) -> Json:
    if depth > 100:
        raise RecursionError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # Python does not write much larger integers as digits.
    if type(value) is int and value.bit_length() > 8192:
        return hex(value)
    if isinstance(value, Mapping):
        return {key: _finite(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, depth + 1) for item in value]
    return value


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def arguments_digest(arguments: Mapping[str, Json]) -> str:
    """Return the digest of a call's arguments; empty if they are nested too deeply."""
    value = dict(arguments)
    with suppress(RecursionError):
        if estimated_size(value, LARGE) <= LARGE:
            return digest(canonical(value).encode("ascii"))
        try:
            return _digest_pieces(value)
        except ValueError:
            return _digest_pieces(_finite(value))
    return ""


def _digest_pieces(value: Json) -> str:
    # Encoding a large value at once blocks the event loop.
    whole = sha256()
    for piece in _PIECES.iterencode(value):
        whole.update(piece.encode("ascii"))
    return f"sha256:{whole.hexdigest()}"
