"""What of a result is redacted: every text that a program or a server can write."""

from __future__ import annotations

from dataclasses import replace

from bridge.gate.redaction import Redactor
from bridge.gate.result_redaction import clear_result
from bridge.model import (
    Artifact,
    CallCount,
    Finding,
    HeldCall,
    Loss,
    Plan,
    Receipt,
    RunResult,
    SessionReport,
    ShownContent,
    Variable,
)

SECRET = "hunter2-hunter2-hunter2"
REDACTOR = Redactor({SECRET: "TOKEN of shop"})
WORDS = f"before {SECRET} after"
FULL = RunResult(
    run_id="r1",
    status="error",
    summary=WORDS,
    stdout=WORDS,
    stderr=WORDS,
    has_result=True,
    result={"a": [WORDS]},
    result_repr=WORDS,
    error=WORDS,
    servers=(WORDS,),
    findings=(Finding(line=1, rule=WORDS, message=WORDS),),
    plan=Plan(
        plan_id="p1",
        seconds=1,
        stopped=WORDS,
        stale=WORDS,
        calls=(HeldCall(number=1, server=WORDS, tool=WORDS, arguments={"a": WORDS}, rule=WORDS),),
    ),
    replayed=(CallCount(server=WORDS, tool=WORDS, count=1, why=WORDS),),
    receipt=Receipt(calls={WORDS: 1}),
    shown=(ShownContent(mime_type="text/plain", text=WORDS, note=WORDS),),
    artifacts=(
        Artifact(uri="u", name=WORDS, mime_type="text/plain", size=1, digest="d", run_id="r1"),
    ),
    missing=(Loss(name=WORDS, why=WORDS),),
    session=SessionReport(
        session_id="s1",
        name=WORDS,
        run=1,
        state="kept",
        note=WORDS,
        holds=(Variable(name=WORDS, kind=WORDS),),
        lost=(Loss(name=WORDS, why=WORDS),),
    ),
)


def test_no_text_of_a_result_keeps_a_secret() -> None:
    cleared = clear_result(FULL, REDACTOR)
    assert SECRET not in repr(cleared)
    assert cleared.stdout == "before [redacted: TOKEN of shop] after"
    assert replace(cleared, run_id="r1", status="error") == cleared


def test_a_result_without_secrets_stays_the_very_same() -> None:
    plain = replace(FULL, **{})
    assert clear_result(plain, Redactor({"another-secret-of-this": "X of y"})) is plain
