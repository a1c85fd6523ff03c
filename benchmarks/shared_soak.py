"""Three bridges on one PostgreSQL, each behind a faulty proxy, under random faults.

python -m benchmarks.shared_soak --seconds 1800 --seed 7

Twenty owners run sessions, calls, plans and artifacts at random bridges. Bridges are killed and
stopped, proxies delay, hang and refuse, the server crashes, and a lock stays held. It ends with 1
when a call is made twice, or when state is gone that a result reported kept. So it does when a plan
or an artifact is gone, when a bridge does not serve again by itself, or when anything is left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.to_thread
import psycopg
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from bridge.errors import BridgeError
from bridge.model import ApplyRequest, RunRequest, RunResult
from bridge.runs import Engine, open_engine
from bridge.settings import load
from bridge.store.postgresql import LOCK
from tests.engine_rig import ListFinder
from tests.faulty_proxy import FaultyProxy, faulty_proxy
from tests.postgresql import PASSWORD, ROLE, Server, server
from tests.recorder_rig import recorded, recorder

OWNERS = 20
PAUSE_SECONDS = 3.0  # Longest time between two requests of an owner.
GAP_SECONDS = 10.0  # Longest time between the begins of two faults.
PATIENCE_SECONDS = 60.0  # A client gives up a request after this.
SAMPLES = 4  # Of each kind of error, in the log.
RECOVERY_SECONDS = 60.0  # From the last fault until every bridge serves every kind of run.

POLICY = """
[policy.defaults]
write = "allow"
untrusted = "allow"
[policy.servers."*"]
trust = true
"""

LEFT = {
    "claims": "SELECT count(*) FROM sessions WHERE coalesce(process, '') <> ''",
    "bridges": "SELECT count(*) FROM bridges WHERE NOT process = ANY(%(killed)s)",
    "runs without an end": "SELECT count(*) FROM runs WHERE ended IS NULL"
    " AND NOT process = ANY(%(killed)s)",
}

Answer = dict[str, Any]


class GoneError(Exception):
    """A bridge ended, or did not answer in time."""


@dataclass(eq=False)
class Bridge:
    """A bridge as a process, which the soak kills and starts again."""

    name: str
    place: Path
    proxy: FaultyProxy
    process: Process | None = None
    token: str = ""
    is_due: bool = False  # It ends because the soak wants it.
    ended: anyio.Event = field(default_factory=anyio.Event)
    waiting: dict[int, tuple[anyio.Event, list[Answer]]] = field(default_factory=dict)
    changing: anyio.Lock = field(default_factory=anyio.Lock)
    numbers: count[int] = field(default_factory=count)

    async def serve(self, complain: Callable[[str], None], ready: anyio.Event) -> None:
        """Start it, and hand on its answers until it ends."""
        login = f"{ROLE}:{quote(PASSWORD, safe='')}"
        url = f"postgresql://{login}@127.0.0.1:{self.proxy.port}/postgres"
        command = [sys.executable, "-m", "benchmarks.shared_soak", "--bridge", self.name]
        with (self.place / f"{self.name}.log").open("ab") as log:
            process = await anyio.open_process([*command, str(self.place), url], stderr=log)
        self.process, self.is_due, self.ended = process, False, anyio.Event()
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            self.token = json.loads(await lines.receive_until(b"\n", 1 << 20))
            ready.set()
            while True:
                answer = json.loads(await lines.receive_until(b"\n", 1 << 24))
                event, answers = self.waiting.pop(answer["id"], (anyio.Event(), []))
                answers.append(answer)
                event.set()
        status = await process.wait()
        if not self.is_due or status not in (0, -signal.SIGKILL):
            complain(f"bridge {self.name} ended by itself with {status}")
        ready.set()
        for event, _ in self.waiting.values():
            event.set()
        self.waiting.clear()
        self.ended.set()

    async def ask(self, what: str, **fields: Any) -> Answer:
        """Send a request and return the answer.

        Raises:
            GoneError: There is no answer.
        """
        number = next(self.numbers)
        event, answers = self.waiting.setdefault(number, (anyio.Event(), []))
        line = json.dumps({"id": number, "what": what, "fields": fields}).encode() + b"\n"
        with suppress(TimeoutError, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            with anyio.fail_after(PATIENCE_SECONDS):
                assert self.process is not None
                assert self.process.stdin is not None
                await self.process.stdin.send(line)
                if self.process.returncode is None:
                    await event.wait()
        self.waiting.pop(number, None)
        if not answers:
            raise GoneError
        return answers[0]

    async def set_fault(self, fault: str) -> None:
        """Set the proxy's fault; the proxy may wait for a stopped bridge."""
        await anyio.to_thread.run_sync(setattr, self.proxy, "fault", fault)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            os.kill(self.process.pid, number)


@dataclass(eq=False)
class Owner:
    """A caller, and what its bridges promised it."""

    name: str
    random: random.Random
    kept: set[int] = field(default_factory=set)  # In the session's list, by results.
    artifacts: dict[str, str] = field(default_factory=dict)  # URI to content.
    last: deque[str] = field(default_factory=lambda: deque(maxlen=6))  # Of its session.


class Soak:
    """The owners' requests, the faults, and what must be true."""

    def __init__(self, behind: Server, bridges: list[Bridge], seed: int) -> None:
        self.behind, self.bridges, self.seed = behind, bridges, seed
        self.log = bridges[0].place / "calls"
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.done: set[str] = set()  # Titles of calls that a result reported done.
        self.killed: list[str] = []
        self.is_over = False
        self.began = time.monotonic()
        self._numbers = count(1)
        self._locks = {name: anyio.Lock() for name in ("server", "lock", *"abc")}

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} {text}", flush=True)

    def complain(self, text: str) -> None:
        self.violations.append(text)
        self.say(f"VIOLATION: {text}")

    async def run(self, seconds: float) -> None:
        self.say(f"seed {self.seed}, {seconds:g} s, in {self.log.parent}")
        async with anyio.create_task_group() as serving:
            for bridge in self.bridges:
                await serving.start(self.start, bridge, serving)
            async with anyio.create_task_group() as working:
                for number in range(OWNERS):
                    chosen = random.Random(f"{self.seed}-{number}")
                    owner = Owner(f"owner-{number}", chosen)
                    working.start_soon(self.work, owner)
                await self.faults(seconds, serving)
                healed = time.monotonic()
                for bridge in self.bridges:
                    await self.recovers(bridge, healed)
                self.say(
                    f"all bridges serve {time.monotonic() - healed:.1f} s after the last fault"
                )
                self.is_over = True
            for bridge in self.bridges:
                await self.close(bridge)
        self.check_end()

    async def start(
        self, bridge: Bridge, serving: Any, *, task_status: Any = anyio.TASK_STATUS_IGNORED
    ) -> None:
        ready = anyio.Event()
        serving.start_soon(bridge.serve, self.complain, ready)
        await ready.wait()
        task_status.started()

    async def close(self, bridge: Bridge) -> None:
        bridge.is_due = True
        assert bridge.process is not None
        assert bridge.process.stdin is not None
        await bridge.process.stdin.aclose()
        with anyio.move_on_after(PATIENCE_SECONDS):
            await bridge.process.wait()
            return
        self.complain(f"bridge {bridge.name} does not end")
        bridge.signal(signal.SIGKILL)

    # What the owners do.

    async def work(self, owner: Owner) -> None:
        kinds = (self.count, self.count, self.calls, self.plan, self.artifact, self.read)
        while not self.is_over:
            await owner.random.choice(kinds)(owner)
            await anyio.sleep(owner.random.uniform(0, PAUSE_SECONDS))
        # Whatever became of its runs, its session and its artifacts are there in the end.
        end = time.monotonic() + RECOVERY_SECONDS
        while not await self.count(owner):
            if time.monotonic() > end:
                self.complain(f"the session of {owner.name} cannot be used")
                return
        for uri in owner.artifacts:
            await self.read(owner, uri)

    async def ask(
        self, owner: Owner, what: str, bridge: Bridge | None = None, **fields: Any
    ) -> Answer:
        """Ask a random bridge; an answer has a `status`, and the rest if it is "success"."""
        bridge = bridge or owner.random.choice(self.bridges)
        try:
            answer = await bridge.ask(what, owner=owner.name, principal=owner.name, **fields)
        except GoneError:
            answer = {"status": "no answer", "text": ""}
        ended = f"{what}: {answer['status']}"
        self.counts[ended] += 1
        if answer["status"] != "success" and self.counts[ended] <= SAMPLES:
            self.say(f"{bridge.name}, {ended}: {answer['text'][:400]!r}")
        return answer

    def check(self, owner: Owner, answer: Answer, *titles: str) -> bool:
        """Return whether an answer is a success, which has made these calls."""
        if answer["status"] == "success":
            self.done.update(titles)
        return bool(answer["status"] == "success")

    async def count(self, owner: Owner) -> bool:
        """Add a number to the list in the session, and perhaps make a call."""
        number, before = next(self._numbers), set(owner.kept)
        title = f"s{number}"
        call = f"await mcp_log.create(title='{title}')\n" if owner.random.random() < 0.5 else ""
        code = f"try: seen\nexcept NameError: seen = []\n{call}seen.append({number})\nseen"
        bridge = owner.random.choice(self.bridges)
        answer = await self.ask(owner, "run", bridge, code=code, session="work")
        given = {key: value for key, value in answer.items() if key not in ("result", "artifacts")}
        owner.last.append(
            f"{time.monotonic() - self.began:.1f}: {number} at {bridge.name}: {given}"
        )
        if not self.check(owner, answer, *([title] if call else [])):
            return False
        seen, where = answer["result"], f"{owner.name}, run {answer['run']}: "
        if missing := before - set(seen):
            recent = "\n  ".join(owner.last)
            self.complain(f"{where}{sorted(missing)} were kept and are gone\n  {recent}")
        if len(set(seen)) < len(seen):
            self.complain(f"{where}a run was made twice: {seen}")
        self.counts[f"state: {answer['state']}"] += 1
        owner.kept = set(seen) if answer["state"] != "unsaved" else before & set(seen)
        return True

    async def calls(self, owner: Owner) -> None:
        """Make three calls in a run; if it fails, retry the run elsewhere."""
        titles = [f"c{next(self._numbers)}" for _ in range(3)]
        pauses = [owner.random.choice((0, 0, 1, 4)) for _ in titles]
        code = "import asyncio\n" + "\n".join(
            f"await mcp_log.create(title='{title}')\nawait asyncio.sleep({pause})"
            for title, pause in zip(titles, pauses, strict=True)
        )
        first = run_id = uuid.uuid4().hex
        fields: Answer = {}
        for _ in range(4):
            answer = await self.ask(owner, "run", code=code, run_id=run_id, **fields)
            if self.check(owner, answer, *titles):
                return
            fields, run_id = {"retry_of": first}, uuid.uuid4().hex
            await anyio.sleep(owner.random.uniform(0, 20))

    async def plan(self, owner: Owner) -> None:
        """Make a plan and apply it at two bridges, again if that failed."""
        title = f"p{next(self._numbers)}"
        code = f"await mcp_log.create(title='{title}')"
        made = await self.ask(owner, "run", code=code, mode="plan")
        if made["status"] != "success" or not made["plan"]:
            return
        applied: list[Answer] = []

        async def apply() -> None:
            applied.append(await self.ask(owner, "apply", plan_id=made["plan"]))

        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(apply)
                tasks.start_soon(apply)
            if [each for each in applied if self.check(owner, each, title)]:
                break
            await anyio.sleep(owner.random.uniform(0, 10))
        texts = [each["text"] for each in applied if each["status"] == "unknown_plan"]
        if sum(each["status"] == "success" for each in applied) > 1:
            self.complain(f"{owner.name}: plan {made['plan']} was applied twice")
        for text in texts:
            if "took it" not in text and "it was applied" not in text:
                self.complain(f"{owner.name}: plan {made['plan']} is gone: {text}")

    async def artifact(self, owner: Owner) -> None:
        text = f"{next(self._numbers)} " * owner.random.choice((1, 1000, 50_000))
        code = f"open('out/a.txt', 'w').write({text[:10]!r} * {len(text) // 10 + 1})"
        answer = await self.ask(owner, "run", code=code)
        if self.check(owner, answer):
            for uri in answer["artifacts"]:
                owner.artifacts[uri] = text[:10] * (len(text) // 10 + 1)
            self.counts["artifacts"] += len(answer["artifacts"])
            self.counts["artifacts missing"] += not answer["artifacts"]

    async def read(self, owner: Owner, uri: str = "") -> None:
        if not owner.artifacts:
            return
        uri = uri or owner.random.choice(list(owner.artifacts))
        answer = await self.ask(owner, "read", uri=uri)
        if answer["status"] == "unknown_artifact":
            self.complain(f"{owner.name}: artifact {uri} is gone: {answer['text']}")
        if answer["status"] == "success" and answer["result"] != owner.artifacts[uri]:
            self.complain(f"{owner.name}: artifact {uri} has another content")

    async def recovers(self, bridge: Bridge, healed: float) -> None:
        """Wait until a bridge serves a plain run, a session's, a call, an artifact and a plan."""
        owner = Owner(f"probe-{bridge.name}", random.Random(0))
        ask = partial(self.ask, owner, "run", bridge)
        title = f"e{bridge.name}"
        while True:
            code = f"await mcp_log.create(title='{title}{next(self._numbers)}')\nopen('out/x', 'w')"
            ended = await ask(code=f"{code}.close()")
            other = await ask(code="1", session="probe")
            planned = await ask(code=f"await mcp_log.create(title='{title}')", mode="plan")
            answers = (ended, other, planned)
            if (
                all(each["status"] == "success" for each in answers)
                and planned["plan"]
                and ended["artifacts"]
                and other["state"] != "unsaved"
            ):
                return
            if time.monotonic() - healed > RECOVERY_SECONDS:
                self.complain(f"bridge {bridge.name} does not serve: {answers}")
                return
            await anyio.sleep(0.5)

    # What goes wrong.

    async def faults(self, seconds: float, serving: Any) -> None:
        chosen, end = random.Random(self.seed), self.began + seconds
        kinds = (self.kill, self.stop, self.proxy, self.proxy, self.crash, self.lock)
        async with anyio.create_task_group() as tasks:
            while time.monotonic() < end:
                await anyio.sleep(chosen.uniform(1, GAP_SECONDS))
                each = random.Random(chosen.random())
                tasks.start_soon(chosen.choice(kinds), each, serving)

    async def kill(self, chosen: random.Random, serving: Any) -> None:
        bridge = chosen.choice(self.bridges)
        async with bridge.changing:
            self.note(f"kill {bridge.name}")
            bridge.is_due = True
            self.killed.append(bridge.token)
            bridge.signal(signal.SIGKILL)
            await bridge.ended.wait()
            await anyio.sleep(chosen.choice((0.2, 3.0, 20.0)))
            await self.start(bridge, serving)

    async def stop(self, chosen: random.Random, _: Any) -> None:
        bridge, seconds = chosen.choice(self.bridges), chosen.uniform(5, 20)
        async with bridge.changing:
            self.note(f"stop {bridge.name} for {seconds:.0f} s")
            bridge.signal(signal.SIGSTOP)
            await anyio.sleep(seconds)
            bridge.signal(signal.SIGCONT)

    async def proxy(self, chosen: random.Random, _: Any) -> None:
        several = chosen.choice((1, 1, 1, len(self.bridges)))
        bridges, seconds = chosen.sample(self.bridges, several), chosen.uniform(0.2, 20)
        fault = chosen.choice(("hang", "refuse", "cut", "late"))
        delay = chosen.choice((0.05, 0.5, 2.0))

        async def impair(bridge: Bridge) -> None:
            async with self._locks[bridge.name]:
                if fault == "late":
                    bridge.proxy.delay = delay
                else:
                    await bridge.set_fault("refuse" if fault == "cut" else fault)
                await anyio.sleep(0 if fault == "cut" else seconds)
                bridge.proxy.delay = 0.0
                await bridge.set_fault("")

        names = "".join(sorted(bridge.name for bridge in bridges))
        self.note(f"{fault} {names} for {seconds:.0f} s, {delay} s late")
        async with anyio.create_task_group() as tasks:
            for bridge in bridges:
                tasks.start_soon(impair, bridge)

    async def crash(self, chosen: random.Random, _: Any) -> None:
        async with self._locks["server"]:
            self.note("crash of the server")
            await anyio.to_thread.run_sync(self.behind.stop)
            await anyio.sleep(chosen.uniform(0, 6))
            # In this thread: the server ends with the thread that has started it.
            self.behind.start()

    async def lock(self, chosen: random.Random, _: Any) -> None:
        statement = chosen.choice(
            (
                f"SELECT pg_advisory_xact_lock({LOCK})",
                "LOCK TABLE sessions IN EXCLUSIVE MODE",
                "LOCK TABLE runs, documents IN EXCLUSIVE MODE",
            )
        )
        seconds = chosen.uniform(1, 15)

        def hold() -> None:
            with (
                suppress(psycopg.OperationalError),
                self.behind.connected() as connection,
                connection.transaction(),
            ):
                connection.execute(statement.encode())
                time.sleep(seconds)

        async with self._locks["lock"]:
            self.note(f"{statement} for {seconds:.0f} s")
            await anyio.to_thread.run_sync(hold)

    def note(self, text: str) -> None:
        self.counts[f"fault: {text.split()[0]}"] += 1
        self.say(text)

    # What must be true at the end.

    def check_end(self) -> None:
        titles = Counter(given["title"] for tool, given in recorded(self.log) if tool == "create")
        self.counts["calls made"] = sum(titles.values())
        for title, number in titles.items():
            if number > 1:
                self.complain(f"call {title} was made {number} times")
        for title in self.done - titles.keys():
            self.complain(f"call {title} was reported done, and was not made")
        with self.behind.connected() as connection:
            for name, statement in LEFT.items():
                (found,) = connection.execute(
                    statement.encode(), {"killed": self.killed}
                ).fetchone() or (0,)
                if found:
                    self.complain(f"left: {found} {name}")
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.log.parent).encode() in (words := entry.read_bytes()):
                    self.complain(f"left: process {entry.parent.name} {words[:300]!r}")

    def summary(self) -> str:
        table = "\n".join(f"  {number:7,} {name}" for name, number in sorted(self.counts.items()))
        faults = sum(number for name, number in self.counts.items() if name.startswith("fault"))
        runs = sum(number for name, number in self.counts.items() if name.startswith("run:"))
        seconds = time.monotonic() - self.began
        return (
            f"{table}\nseed {self.seed}: {seconds:,.0f} s, {faults:,} faults, {runs:,} runs, "
            f"{self.counts['calls made']:,} calls, {self.counts['apply: success']:,} plans "
            f"applied, {self.counts['artifacts']:,} artifacts, {len(self.violations)} violations"
        )


async def serve(name: str, place: Path, url: str) -> None:
    """Be a bridge: answer requests of stdin, one JSON line each."""
    home = place / name
    home.mkdir(exist_ok=True)
    (config := place / f"{name}.toml").write_text(POLICY)
    environ = {
        **os.environ,
        "HOME": str(home),
        "MCP_BRIDGE_STATE_DIR": str(home / "state"),
        "MCP_BRIDGE_CONFIG": str(config),
        "MCP_BRIDGE_STORE": url,
        "MCP_BRIDGE_REPLICA": name,
    }
    flags = {"runtime": "bubblewrap", "warm": "0", "runs": "8", "sessions": "8"}
    finder = ListFinder(recorder("log", place / "calls"))
    async with open_engine(load(flags, environ), finder=finder) as engine:
        print(json.dumps(engine.heartbeat.process), flush=True)
        async with anyio.create_task_group() as tasks:
            async for line in anyio.wrap_file(sys.stdin):
                tasks.start_soon(answer_line, engine, json.loads(line))
            tasks.cancel_scope.cancel()


async def answer_line(engine: Engine, request: Answer) -> None:
    fields = request["fields"]
    try:
        if request["what"] == "read":
            read = partial(engine.artifacts.read, fields["owner"], fields["uri"])
            data: Any = (await engine.artifacts.run(read)).decode()
            answer = {"status": "success", "result": data}
        elif request["what"] == "apply":
            answer = facts(await engine.apply(ApplyRequest(**fields)))
        else:
            answer = facts(await engine.run(RunRequest(**fields)))
    except BridgeError as error:
        answer = {"status": error.code, "text": str(error)}
    print(json.dumps({"id": request["id"], **answer}), flush=True)


def facts(result: RunResult) -> Answer:
    session = result.session
    return {
        "status": result.status if result.status == "success" else result.reason or result.status,
        "text": f"{result.summary} {result.error}",
        "result": result.result,
        "run": result.run_id,
        "state": session.state if session else "",
        "note": session.note if session else "",
        "session": (session.session_id, session.run) if session else "",
        "plan": result.plan.plan_id if result.plan else "",
        "artifacts": [artifact.uri for artifact in result.artifacts],
    }


@asynccontextmanager
async def fleet(seed: int) -> AsyncIterator[Soak]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcb-fleet-")))
        behind = stack.enter_context(server())
        proxies = {name: stack.enter_context(faulty_proxy(behind.port)) for name in "abc"}
        yield Soak(behind, [Bridge(name, place, proxies[name]) for name in proxies], seed)


async def soak(seconds: float, seed: int) -> int:
    async with fleet(seed) as made:
        await made.run(seconds)
        print(made.summary())
        return int(bool(made.violations))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--bridge", nargs=3, metavar=("NAME", "PLACE", "URL"))
    chosen = parser.parse_args()
    if chosen.bridge:
        name, place, url = chosen.bridge
        anyio.run(serve, name, Path(place), url)
        return 0
    return anyio.run(soak, chosen.seconds, chosen.seed)


if __name__ == "__main__":
    sys.exit(main())
