"""The client of a run, and the progress that it sees.

Owns the limits on what servers may send to it: questions, waiting time, progress and messages. All
texts of a program are cut and have no control characters. Reports have the current state only, so
that a program never waits for its client. The value of a report is the time in seconds, because it
must grow; its total gives a client's bar the program's share.
"""

from __future__ import annotations

import codecs
import json
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import anyio
from opentelemetry.context import get_current

from bridge.errors import CannotAskError
from bridge.event_loop import Clock
from bridge.gate.pipeline import Tally
from bridge.gate.question import answered_by, read_answer
from bridge.gate.server_questions import ServerQuestions, may_sample
from bridge.gate.server_starts import StartApprover
from bridge.model import Json
from bridge.rpc.dispatcher import Handler
from bridge.settings.policy import Asking
from bridge.text import counted, visible
from bridge.upstream.client_features import ANSWER_SECONDS, Method

logger = logging.getLogger(__name__)

MAX_QUESTIONS = 100
"""Questions of servers in one run. The bridge's own questions have a separate limit of this size.
"""

MAX_WAIT_SECONDS = 1800.0
"""Seconds that questions may stop a run's clock in all. No question is asked after that."""

MAX_LOGS = 50
LOGS_PER_SECOND = 20.0  # Messages of servers that pass at once, and further ones each second.

MAX_TEXT = 500  # Characters of a server's progress.
MAX_TOLD = 200  # Characters of one text of a program's progress.

REPORT_SECONDS = 0.25  # Between two reports.
MAX_PIECE = 4000  # Characters of a program's output in one log message.
MAX_LOGGED = 256 * 1024  # In all messages of a run: a client keeps them in its context.

_KINDS: Mapping[str, Asking] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
}

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of messages, the least severe first."""

NOT_IDENTIFIED = (
    "No user can be asked: `serve --http` does not authenticate its callers, and an approval from "
    "a caller that is not identified does not count. Connect over stdio (`mcp-code-bridge serve`) "
    "to be asked."
)


class Client(Protocol):
    """The client that asked for a run."""

    @property
    def identity(self) -> Hashable:
        """A key that equal clients share."""

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str:
        """The least severe level that the client wants; empty for no messages."""

    @property
    def wants_output(self) -> bool:
        """Whether it wants the program's output as messages during the run."""

    @property
    def program(self) -> str:
        """Its name and version; empty for a person at a terminal."""

    @property
    def visits(self) -> bool:
        """Whether it can open a URL for its user."""

    async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
        """Report the seconds since the start, and an estimate of the total."""

    async def log(self, level: str, source: str, data: Json) -> None: ...

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Answer MCP's `elicitation/create` with an `ElicitResult`, or raise `CannotAskError`."""

    async def sample(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Answer MCP's `sampling/createMessage`, or raise `CannotAskError`."""

    async def roots(self) -> list[Json]:
        """Return its roots for servers, as in MCP's `roots/list`."""


@runtime_checkable
class OutputViewer(Protocol):
    """A client that shows all of a program's output itself, during the run."""

    def follow(self, run_progress: RunProgress) -> None:
        """Show the progress of a run that begins."""

    async def wrote(self, stream: str, data: bytes) -> None:
        """Show the program's output. The program waits meanwhile."""


class RunProgress:
    """The state of one run that its progress reports show, such as its last line of output."""

    def __init__(self) -> None:
        self.done = 0.0
        self.total = 0.0  # 0 if the program does not know it.
        self.message = ""
        self.line = ""  # The last line of output.
        self.calls = 0
        self.ended = 0
        self.changes = 0  # The number of updates.
        self.tally: Tally | None = None
        self._reported = False
        self._under_way: dict[int, str] = {}
        self._unended = ""
        self._ahead: int | None = None

    def set_queue(self, ahead: int | None) -> None:
        """Set the number of runs that start before this one; None when it may start."""
        self._ahead = ahead
        self.changes += 1

    @property
    def call(self) -> str:
        """The name of the latest running tool call; empty for none."""
        return next(reversed(self._under_way.values()), "")

    @property
    def share(self) -> float | None:
        """The done share, from 0 to 1; None if the program does not report one."""
        if not self._reported or self.total <= 0:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    def advance(self, done: float, total: float, message: str) -> None:
        self._reported = True
        self.done, self.total = (
            float(number) if math.isfinite(number) else 0.0 for number in (done, total)
        )
        self.message = told(message)
        self.changes += 1

    def wrote(self, data: bytes) -> None:
        # A progress bar rewrites its line. The last version counts.
        recent = self._unended + data[-4 * MAX_TOLD :].decode("utf-8", "replace")
        lines = recent.replace("\r", "\n").split("\n")
        self._unended = lines[-1][-4 * MAX_TOLD :]
        if last := next((line for line in reversed(lines) if line.strip()), ""):
            self.line = told(last.strip())
            self.changes += 1

    @contextmanager
    def calling(self, name: str) -> Iterator[None]:
        self.calls += 1
        number = self.calls
        self._under_way[number] = told(name)
        self.changes += 1
        try:
            yield
        finally:
            del self._under_way[number]
            self.ended += 1
            self.changes += 1

    def text(self) -> str:
        parts = [self.queue_text(), self.own_text(), self.call_text(), self.line]
        return " · ".join(filter(None, parts))

    def queue_text(self) -> str:
        """Return a text such as "waiting: 3 runs ahead of this one", or an empty string."""
        if self._ahead is None:
            return ""
        if self._ahead == 0:
            return "waiting: this run is next"
        return f"waiting: {counted(self._ahead, 'run')} ahead of this one"

    def own_text(self) -> str:
        """Return the program's report such as "3 of 10, loading", or an empty string."""
        if not self._reported:
            return ""
        count = f"{self.done:g}" if self.total <= 0 else f"{self.done:g} of {self.total:g}"
        return f"{count}, {self.message}" if self.message else count

    def call_text(self) -> str:
        """Return a text such as "calling git.log (3 of 10 done)", or an empty string."""
        if not self.call:
            return ""
        if self.calls == 1:
            return f"calling {self.call}"
        return f"calling {self.call} ({self.ended:,} of {self.calls:,} done)"


def told(text: str, most: int = MAX_TOLD) -> str:
    """Return a text on one line, cut to `most` characters, with control characters escaped."""
    # Cut first: an escape is longer than its character.
    shown = visible(text[: most + 1].replace("\n", " "), keep="")
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


class LoggedOutput:
    """A stream's output for the client's next log message, limited for each message and run."""

    def __init__(self) -> None:
        self._text = ""
        self._left_out = 0
        self._room = MAX_LOGGED
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes) -> None:
        if self._room <= 0:
            return
        # Decoding a flood takes too long.
        text = self._decoder.decode(data[: 4 * MAX_PIECE])
        room = MAX_PIECE - len(self._text)
        self._text += text[:room]
        self._left_out += max(0, len(data) - 4 * MAX_PIECE) + len(text[room:].encode())

    def take(self) -> str:
        if self._room <= 0 or not (self._text or self._left_out):
            return ""
        text, self._text = self._text[: self._room], ""
        self._room -= len(text)
        if self._room <= 0:
            return f"{text}\n[… further output is in the result only …]"
        if self._left_out:
            text = f"{text}\n[… {self._left_out:,} bytes are in the result only …]\n"
            self._left_out = 0
        return text


@dataclass(eq=False)
class ProgressReporter:
    """Reports one run to its client while `run` is active."""

    run_progress: RunProgress
    report: Callable[[], Awaitable[None]]
    log: Callable[[str, str, str], Awaitable[None]] | None
    idle_seconds: float  # Until a report is sent even if the state is unchanged.

    def __post_init__(self) -> None:
        self._logged = {"stdout": LoggedOutput(), "stderr": LoggedOutput()}
        self._told = 0
        self._news = anyio.Event()

    def wrote(self, stream: str, data: bytes) -> None:
        if stream == "stdout":
            self.run_progress.wrote(data)
        if self.log is not None:
            self._logged[stream].add(data)
        self.notice()

    def notice(self) -> None:
        self._news.set()

    async def run(self) -> None:
        while True:
            # Most runs end before the first report.
            await anyio.sleep(REPORT_SECONDS)
            with anyio.move_on_after(self.idle_seconds) as idle:
                await self._news.wait()
            self._news = anyio.Event()
            await self.send(idle=idle.cancelled_caught)

    async def conclude(self) -> None:
        """Send the last state of a run if the client received an earlier one."""
        if self._told and self._told != self.run_progress.changes:
            # The result waits for this report.
            with anyio.move_on_after(1.0):
                await self.send()

    async def send(self, *, idle: bool = False) -> None:
        if idle or self.run_progress.changes != self._told:
            self._told = self.run_progress.changes
            await self.report()
        if self.log is not None:
            for stream, logged in self._logged.items():
                if text := logged.take():
                    level = "info" if stream == "stdout" else "notice"
                    await self.log(level, "run_python", text)


Redact = Callable[[str, Json], Json]
"""Takes a server and JSON of it, and returns that without secrets or personal data."""


class RunCaller:
    """Sends questions, progress and logs to a run's client, for its servers and the bridge."""

    def __init__(self, client: Client | None, clock: Clock, *, identified: bool = False) -> None:
        # Servers' questions reach any client. The bridge's own are approvals, which only a client
        # can give that is `identified`: its user is known.
        self._client = client
        self.identified = identified
        self.clock = clock
        # Removes secrets from questions; the other also removes personal data.
        self.redact_for_person: Redact = lambda server, value: value
        self.redact_for_client: Redact = lambda server, value: value
        self.server_questions = ServerQuestions()
        self._sampled: set[str] = set()
        self.offered_logins: set[str] = set()
        self.asker: StartApprover | None = None
        self.restarted: set[str] = set()
        self._questions = 0
        self._own_questions = 0
        self._started = anyio.current_time()
        self._last = 0.0
        self._reported = float("-inf")
        self._reporting = False
        self._asking: list[str] = []
        self._logs = float(MAX_LOGS)
        self._logs_at = float("-inf")
        self._logging = 0
        self.progress = RunProgress()
        self.trace = get_current()
        asked: object = client
        self._viewer = asked if isinstance(asked, OutputViewer) else None

    @property
    def client(self) -> Hashable:
        return self if self._client is None else self._client.identity

    @property
    def wants_progress(self) -> bool:
        return self._client is not None and self._client.wants_progress

    @property
    def may_visit(self) -> bool:
        return self.identified and self._client is not None and self._client.visits

    @property
    def log_level(self) -> str:
        level = "" if self._client is None else self._client.log_level
        # Servers may refuse calls with other levels.
        return level if level in LEVELS else ""

    async def ask(self, server: str, method: Method, params: Mapping[str, Json]) -> dict[str, Json]:
        """Ask the client on behalf of a server."""
        if method == "roots/list":
            self._check(server, self._questions)
            self._questions += 1
            return {"roots": [] if self._client is None else await self._client.roots()}
        kind = _KINDS[method]
        params = self.redact_for_person(server, dict(params))
        try:
            answer = await self._ask(server, kind, params)
        except CannotAskError as error:
            await self.server_questions.record(server, kind, params, "refused", error.why)
            raise
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), suppress(CannotAskError):
                await self.server_questions.record(server, kind, params, "withdrawn")
            raise
        said = answer.get("action")
        outcome = said if said in ("accept", "decline", "cancel") else "answered"
        await self.server_questions.record(server, kind, params, outcome)
        return answer

    def note_restart(self, server: str) -> None:
        self.restarted.add(server)

    async def record_refusal(self, server: str, method: Method, why: str) -> None:
        if method in _KINDS:
            await self.server_questions.record(server, _KINDS[method], {}, "refused", why)

    async def _ask(self, server: str, kind: Asking, params: Mapping[str, Json]) -> dict[str, Json]:
        action = self.server_questions.decide(server, kind)
        client = self._asked_client(server, self._questions)
        self._questions += 1
        asked = await self.server_questions.passed_on(server, kind, params)
        if action == "ask":
            await self._check_allowed(server, params)
        self._asking.append(server)
        try:
            send = client.elicit if kind == "elicitation" else client.sample
            return dict(await send(asked))
        finally:
            self._asking.remove(server)

    async def _check_allowed(self, server: str, params: Mapping[str, Json]) -> None:
        if server in self._sampled:
            return
        decision = read_answer(
            await self.elicit(may_sample(server, params)), ("call", "run"), "call"
        )
        if decision not in ("call", "run"):
            message = "The user was asked whether the model may be asked, and did not allow it."
            raise CannotAskError(message, server=server)
        if decision == "run":
            self._sampled.add(server)

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]:
        """Ask the user a question of the bridge itself, while the run's clock stops.

        Without an answer in time, returns the action "cancel".
        """
        client = self._asked_client("", self._own_questions)
        if not self.identified:
            raise CannotAskError(NOT_IDENTIFIED)
        self._own_questions += 1
        params = self.redact_for_person("", dict(params))
        self._asking.append("a question of the bridge")
        try:
            began, answer = anyio.current_time(), dict[str, Json]()
            with self.clock.stop(), anyio.move_on_after(ANSWER_SECONDS) as limit:
                answer = dict(await client.elicit(params))
        finally:
            self._asking.remove("a question of the bridge")
        if limit.cancelled_caught:
            return {"action": "cancel"}
        answer.pop("automatic", None)  # Only the bridge may set this field.
        program, action = client.program, answer.get("action")
        answerer = answered_by(program, action, anyio.current_time() - began) if program else ""
        if answerer and action != "accept":
            message = f"No person saw the question: {answerer} answered it, with {action!r}."
            raise CannotAskError(message, automatic=True)
        # The user configured this client to accept; the audit log records it.
        return answer | {"automatic": answerer} if answerer else answer

    def _asked_client(self, server: str, asked: int) -> Client:
        self._check(server, asked)
        if self._client is None:
            raise CannotAskError("No user can be asked: the run has no client.", server=server)
        return self._client

    def _check(self, server: str, asked: int) -> None:
        did = ""
        if asked >= MAX_QUESTIONS:
            did = f"asked its client {MAX_QUESTIONS} questions"
        elif self.clock.stopped_seconds >= MAX_WAIT_SECONDS:
            did = f"waited {MAX_WAIT_SECONDS:g} s for answers"
        if did:
            raise CannotAskError(f"This run has {did}, which is enough.", server=server)

    async def report(
        self, server: str, tool: str, done: float, total: float | None, message: str
    ) -> None:
        """Report a call's progress to the client, at most once in `REPORT_SECONDS`."""
        now = anyio.current_time()
        if self._reporting or now - self._reported < REPORT_SECONDS:
            return
        self._reported = now
        self._reporting = True
        try:
            text = str(self.redact_for_client(server, message))
            text = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
            count = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            await self._progress(f"{server}.{tool}: {f'{text} ({count})' if text else count}")
        finally:
            self._reporting = False

    @cached_property
    def _following(self) -> ProgressReporter:
        log = self._log_output if self._wants_output else None
        # Clients end a silent call after 60 s.
        return ProgressReporter(self.progress, self._report_progress, log, idle_seconds=2.0)

    @property
    def is_shown(self) -> bool:
        return self._viewer is not None

    @property
    def is_followed(self) -> bool:
        return self.wants_progress or self._wants_output

    @property
    def _wants_output(self) -> bool:
        return self._client is not None and self._client.wants_output

    async def report_preparation(self, text: str) -> None:
        if self.wants_progress:
            await self._progress(text[:MAX_TEXT])

    def report_queue(self, ahead: int | None) -> None:
        """Report how many runs start before this one; None when it may start."""
        self.progress.set_queue(ahead)
        if self.is_followed:
            self._following.notice()

    async def advance(self, done: float, total: float, message: str) -> None:
        """Report the program's own progress; `total` is 0 if it is not known."""
        self.progress.advance(done, total, str(self.redact_for_client("", message[: 2 * MAX_TEXT])))
        if self.is_followed:
            self._following.notice()

    async def wrote(self, stream: str, data: bytes) -> None:
        if self._viewer is not None:
            self.progress.wrote(data)
            await self._viewer.wrote(stream, data)
        elif self.is_followed:
            self._following.wrote(stream, data)

    def report_calls(self, handler: Handler) -> Handler:
        """Return a handler that also reports tool calls to the client."""
        if not self.is_followed and not self.is_shown:
            return handler

        async def answer(method: str, params: Mapping[str, Json]) -> Any:
            if method != "call_tool":
                return await handler(method, params)
            with self.progress.calling(f"{params.get('server')}.{params.get('tool')}"):
                self._following.notice()
                return await handler(method, params)

        return answer

    async def tick(self) -> None:
        if self._viewer is not None:
            self._viewer.follow(self.progress)
        elif self.is_followed:
            await self._following.run()

    async def conclude(self) -> None:
        if self.is_followed and not self.is_shown:
            await self._following.conclude()

    async def _report_progress(self) -> None:
        text = self.progress.text()
        if self._asking:
            text = f"waiting for an answer to {self._asking[0]}"
        elif not text:
            text = f"running for {anyio.current_time() - self._started:.0f} s"
        if self.wants_progress:
            await self._progress(text[:MAX_TEXT], self.progress.share)

    async def _log_output(self, level: str, source: str, text: str) -> None:
        if self._client is not None and is_wanted(level, self._client.log_level):
            await self._client.log(level, source, text)

    async def _progress(self, text: str, share: float | None = None) -> None:
        if self._client is None:
            return
        # The protocol requires increasing values.
        self._last = max(anyio.current_time() - self._started, self._last + 0.001)
        total = self._last / share if share else None
        await self._client.progress(self._last, text, total)

    async def log(self, server: str, level: str, name: str, data: Json) -> None:
        if self._client is None or not is_wanted(level, self._client.log_level):
            return
        now = anyio.current_time()
        self._logs = min(MAX_LOGS, self._logs + (now - self._logs_at) * LOGS_PER_SECOND)
        self._logs_at = now
        if self._logs < 1 or self._logging >= 16:  # The client has not received these.
            logger.debug("a message of server %r was dropped: too many", server)
            return
        self._logs -= 1
        self._logging += 1
        try:
            # Cut after redaction, which does not recognize half a secret.
            name = str(self.redact_for_client(server, name))
            data = self.redact_for_client(server, data)
            text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
            if len(text) > 4000:
                data = f"{text[:4000]}... ({len(text) - 4000} more characters)"
            source = f"{server}/{name}" if name and name != server else server
            await self._client.log(level, source[:MAX_TEXT], data)
        finally:
            self._logging -= 1


def is_wanted(level: str, least: str) -> bool:
    if level not in LEVELS or least not in LEVELS:
        return False
    return LEVELS.index(level) >= LEVELS.index(least)
