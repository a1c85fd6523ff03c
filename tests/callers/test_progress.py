"""Progress reports of a run: their content and how often a client gets them."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from bridge.callers.client import (
    MAX_LOGGED,
    MAX_PIECE,
    MAX_TOLD,
    LoggedOutput,
    ProgressReporter,
    RunCaller,
    RunProgress,
)
from bridge.errors import ApprovalRefusedError
from bridge.event_loop import Clock
from bridge.gate import question as automatic
from bridge.gate.approval import Approval, Approver
from bridge.gate.policy import CallFacts, Decision
from bridge.gate.question import HEADLESS_SECONDS, answered_by
from bridge.model import HeldCall, Json, Plan
from tests.fakes.client import FakeClient
from tests.raised import raises_code
from tests.waiting import PATIENCE_SECONDS


def test_a_line_says_what_the_program_said_calls_and_wrote() -> None:
    run_progress = RunProgress()
    assert run_progress.text() == ""
    run_progress.advance(3, 10, "loading")
    assert run_progress.text() == "3 of 10, loading"
    with run_progress.calling("git.log"):
        assert run_progress.call_text() == "calling git.log"
        with run_progress.calling("git.show"):
            run_progress.wrote(b"one\ntwo\n")
            assert run_progress.text() == (
                "3 of 10, loading · calling git.show (0 of 2 done) · two"
            )
        assert run_progress.call_text() == "calling git.log (1 of 2 done)"
    assert run_progress.text() == "3 of 10, loading · two"


@pytest.mark.parametrize(
    ("done", "total", "share"),
    [(3, 10, 0.3), (0, 0, None), (5, 0, None), (11, 10, 1.0), (-1, 10, 0.0), (1e300, 1e300, 1.0)],
)
def test_the_share_is_one_of_a_whole(done: float, total: float, share: float | None) -> None:
    run_progress = RunProgress()
    assert run_progress.share is None
    run_progress.advance(done, total, "")
    assert run_progress.share == share


@pytest.mark.parametrize(
    ("pieces", "line"),
    [
        ([b"50%\r60%\r"], "60%"),
        ([b"\r 5%", b"\r 6%"], "6%"),
        ([b"half of a li", b"ne\n"], "half of a line"),
        ([b"done\n\n   \n"], "done"),
        ([b"\x1b[31mred\x1b[0m\n"], "\\x1b[31mred\\x1b[0m"),
        ([b"a\xffb\n"], "a\ufffdb"),
        ([b"x" * 100_000], "x" * (MAX_TOLD - 1) + "…"),
    ],
)
def test_the_last_line_is_what_a_reader_would_see(pieces: list[bytes], line: str) -> None:
    run_progress = RunProgress()
    for piece in pieces:
        run_progress.wrote(piece)
    assert run_progress.line == line


def test_logged_output_is_cut_and_counted() -> None:
    logged = LoggedOutput()
    logged.add(b"hello ")
    logged.add(b"world\n")
    assert logged.take() == "hello world\n"
    assert logged.take() == ""
    logged.add(b"x" * 1_000_000)
    piece = logged.take()
    assert piece.startswith("x" * MAX_PIECE)
    assert "996,000 bytes are in the result only" in piece
    pieces: list[str] = []
    while not pieces or pieces[-1]:
        logged.add(b"y" * 10_000)
        pieces.append(logged.take())
    assert sum(map(len, pieces)) < MAX_LOGGED + 100 * len(pieces)
    assert "in the result only" in pieces[-2]


async def test_a_report_tells_only_what_stands_and_only_what_is_new() -> None:
    run_progress = RunProgress()
    reports: list[str] = []

    async def report() -> None:
        reports.append(run_progress.text())

    following = ProgressReporter(run_progress, report, None, 60)
    for number in range(1000):
        run_progress.advance(number, 1000, "")
        following.notice()
    await following.send()
    await following.send()
    assert reports == ["999 of 1000"]
    following.wrote("stderr", b"not told in a line\n")
    await following.send()
    following.wrote("stdout", b"told\n")
    await following.send()
    assert reports[1:] == ["999 of 1000 · told"]
    await following.send(idle=True)
    assert len(reports) == 3


async def test_output_goes_into_messages_only_for_a_client_that_wants_them() -> None:
    messages: list[tuple[str, str, str]] = []

    async def log(level: str, source: str, text: str) -> None:
        messages.append((level, source, text))

    async def report() -> None:
        """Say nothing."""

    following = ProgressReporter(RunProgress(), report, log, 60)
    following.wrote("stdout", b"a\n")
    following.wrote("stderr", b"b\n")
    following.wrote("stdout", b"c\n")
    await following.send()
    assert messages == [("info", "run_python", "a\nc\n"), ("notice", "run_python", "b\n")]


async def test_progress_grows_and_its_total_keeps_the_programs_share() -> None:
    client = FakeClient()
    run = RunCaller(client, Clock())
    for done in (1.0, 5.0, 2.0, 10.0, 0.0):
        await run.advance(done, 10, "")
        await run._report_progress()
    seconds = [value for value, _ in client.told]
    assert seconds == sorted(set(seconds))
    shares = [
        None if total is None else round(second / total, 6)
        for second, total in zip(seconds, client.totals, strict=True)
    ]
    assert shares == [0.1, 0.5, 0.2, 1.0, None]
    assert client.told[0][1] == "1 of 10"


async def test_calls_are_counted_for_those_who_follow() -> None:
    async def handler(method: str, params: Mapping[str, Json]) -> Json:
        return run.progress.call_text()

    run = RunCaller(FakeClient(), Clock())
    answer = await run.report_calls(handler)("call_tool", {"server": "git", "tool": "log"})
    assert answer == "calling git.log"
    assert await run.report_calls(handler)("list_servers", {}) == ""
    quiet = RunCaller(FakeClient(wants_progress=False), Clock())
    assert quiet.report_calls(handler) is handler


async def test_a_client_that_takes_nothing_keeps_no_program_waiting() -> None:
    class Stuck(FakeClient):
        async def progress(self, seconds: float, message: str, total: float | None = None) -> None:
            await anyio.sleep_forever()

    run = RunCaller(Stuck(), Clock())
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.tick)
            for number in range(1000):
                await run.wrote("stdout", b"line\n")
                await run.advance(number, 1000, "")
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    assert run.progress.line == "line"


CODEX = "codex-mcp-client 0.169.0"
CALL = CallFacts(server="git", tool="push", arguments={"branch": "main"})
ASK = Decision(action="ask", rule="default for writes")


@pytest.mark.parametrize(
    ("client", "action", "seconds", "answerer"),
    [
        (CODEX, "decline", 0.0, "`codex exec`"),
        (CODEX, "decline", HEADLESS_SECONDS - 0.1, "`codex exec`"),
        (CODEX, "decline", HEADLESS_SECONDS, ""),
        (CODEX, "accept", 0.5, ""),
        ("codex-mcp-client 0.9", "decline", 0.5, ""),
        ("claude-code 2.1.329", "cancel", 0.5, "`claude -p`"),
        ("claude-code 2.1.329", "decline", 0.5, ""),
        ("other 1.0", "decline", 0.1, "the client other 1.0"),
        ("other", "accept", 0.1, "the client other"),
        ("other", "decline", 0.15, ""),
        ("other", "decline", 60.0, ""),
    ],
)
def test_fast_answers_and_those_of_headless_clients_are_automatic(
    monkeypatch: pytest.MonkeyPatch, client: str, action: str, seconds: float, answerer: str
) -> None:
    monkeypatch.setattr(automatic, "AUTOMATIC_SECONDS", 0.15)
    assert answered_by(client, action, seconds) == answerer


def _approver(program: str, action: str) -> Approver:
    async def answer(params: Mapping[str, Json]) -> Mapping[str, Json]:
        return {**({"action": action} if action else {}), "automatic": "a person"}

    client = FakeClient(answer=answer, program=program)
    return Approver(RunCaller(client, Clock(), identified=True).elicit, owner="me")


async def test_automatic_declines_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(automatic, "HEADLESS_SECONDS", 1e9)
    monkeypatch.setattr(automatic, "AUTOMATIC_SECONDS", 1e9)
    with raises_code("answered_automatically", match="answered it, with None"):
        await _approver("other 1.0", "").approve(CALL, [ASK])
    with raises_code("answered_automatically") as caught:
        await _approver(CODEX, "decline").approve(CALL, [ASK])
    assert caught.value.code == "answered_automatically"
    assert caught.value.message == (
        "git.push needs a person's approval (default for writes). No person saw the question: "
        "`codex exec` answered it, with 'decline'. It was not called."
    )
    assert '[[policy.rules]]\nname = "allow git.push"' in caught.value.remedy
    held = HeldCall(number=1, server="git", tool="push", arguments={})
    for action in ("ask", "allow"):
        call = HeldCall(**{**vars(held), "action": action})
        plan = Plan(plan_id="a" * 16, seconds=60, calls=(call,))
        with raises_code("answered_automatically", match="`codex exec` answered it"):
            await _approver(CODEX, "decline").approve_plan(plan, "", [1])
    approval = await _approver("other 1.0", "accept").approve(CALL, [ASK])
    assert approval == Approval(note="automatic: the client other 1.0 accepted it")


@pytest.mark.parametrize("program", [CODEX, ""])
async def test_a_decline_is_a_refusal(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(automatic, "HEADLESS_SECONDS", 0.0)
    with pytest.raises(ApprovalRefusedError, match="declined"):
        await _approver(program, "decline").approve(CALL, [ASK])
