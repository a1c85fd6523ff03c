"""Secrets put back in place of their marks, or the call refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge.errors import CallDeniedError
from bridge.gate.privacy import Marks, Replaced, clear_result
from bridge.gate.redaction import Redactor
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

TOKEN, PASSWORD, KEY = f"ghp_{'aB3dE5' * 6}", "admin123", 'k"ey\\wörd/4+2=?'
KNOWN = {TOKEN: "GITHUB_TOKEN of git", PASSWORD: "DB_PASSWORD of git", KEY: "KEY of git"}
MARK = "[redacted: GITHUB_TOKEN of git]"


def redactor() -> Redactor:
    return Redactor(KNOWN, words=frozenset({PASSWORD}))


def read(marks: Marks, text: str) -> str:
    frame = marks.of("fs").frame(json.dumps({"content": text}).encode())
    shown: str = json.loads(frame)["content"]
    return shown


FORMS: tuple[Callable[[str], str], ...] = (
    str,
    str,
    str,
    lambda secret: json.dumps(secret)[1:-1],
    lambda secret: quote(secret, safe=""),
    lambda secret: base64.b64encode(f"me:{secret}".encode()).decode(),
    lambda secret: secret.encode().hex(),
)
secrets = st.builds(
    lambda form, secret: form(secret), st.sampled_from(FORMS), st.sampled_from(list(KNOWN))
)
pieces = st.one_of(
    secrets,
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=8),
    st.sampled_from(
        [MARK, MARK[:20], "[redacted: X of y]", "admin1234", "=", " ", '"', "%", "\\n"]
    ),
)
files = st.lists(st.lists(pieces, max_size=5).map("".join), min_size=1, max_size=6)


@given(
    file=files, place=st.integers(0, 5), line=st.text(max_size=12) | st.none(), copies=st.booleans()
)
def test_a_program_that_edits_a_file_changes_only_what_it_changed(
    file: list[str], place: int, line: str | None, copies: bool
) -> None:
    marks = Marks(redactor())
    shown = read(marks, "\n".join(file)).split("\n")
    assert not any(secret in "\n".join(shown) for secret in (TOKEN, KEY))
    assume(len(shown) == len(file))

    def edit(lines: list[str]) -> str:
        changed = list(lines)
        changed[place % len(lines)] = lines[0] if copies else line or ""
        return "\n".join(changed)

    try:
        written = marks.reveal("fs", {"path": "x", "content": edit(shown)})
    except CallDeniedError:
        return
    assert written["content"] == edit(file)


@given(
    file=st.lists(st.sampled_from([*KNOWN, "a", "é\n", "=", " ", "admin1234 "]).map("<{}>".format)),
    cut=st.integers(0, 300),
)
def test_only_whole_marks_are_revealed(file: list[str], cut: int) -> None:
    marks, text = Marks(redactor()), "".join(file)
    shown = read(marks, text)
    arguments: dict[str, Any] = {"edits": [{"oldText": shown, shown: 1}], "n": 2.5}
    assert marks.reveal("fs", arguments) == {"edits": [{"oldText": text, text: 1}], "n": 2.5}
    refused, written = 0, ""
    for part in (shown[:cut], shown[cut:]):
        try:
            written += str(marks.reveal("fs", {"content": part})["content"])
        except CallDeniedError:
            refused += 1
    assert refused or written == text


def refuse(marks: Marks, text: str, server: str = "fs") -> str:
    with pytest.raises(CallDeniedError) as caught:
        marks.reveal(server, {"text": text})
    assert TOKEN not in str(caught.value)
    return f"{caught.value.message} {caught.value.remedy}"


def test_a_secret_goes_back_to_no_server_but_the_one_that_returned_it_to_this_caller() -> None:
    mine: Replaced = {}
    first = Marks(redactor(), mine)
    assert "did not return" in refuse(first, MARK)
    assert read(first, f"a {TOKEN}") == f"a {MARK}"
    assert Marks(redactor(), mine).reveal("fs", {"t": MARK}) == {"t": TOKEN}
    assert "Read the text from that server again" in refuse(first, MARK, "evil")
    assert "did not return" in refuse(Marks(redactor(), {}), MARK)
    assert "did not return" in refuse(first, "[redacted: DB_PASSWORD of git]")


def test_a_text_that_only_reads_like_a_mark_is_left_alone() -> None:
    marks = Marks(redactor())
    for text in ("[redacted: phone number]", "[redacted: X of y] and [redacted: ", "of git]"):
        assert marks.reveal("fs", {"text": text}) == {"text": text}
    document = f"`{MARK}` stands for a secret"
    assert read(marks, document) == document
    assert marks.reveal("fs", {"text": document}) == {"text": document}
    read(marks, TOKEN)
    assert "several texts" in refuse(marks, document)


@pytest.mark.parametrize(
    "text",
    [
        MARK[1:-1],
        f"x {MARK[:16]}",
        MARK[-13:],
        quote(MARK),
        base64.b64encode(f"x{MARK}".encode()).decode(),
        MARK.encode().hex(),
        f"{MARK}*********",
    ],
)
def test_a_mark_that_was_changed_is_refused(text: str) -> None:
    marks = Marks(redactor())
    read(marks, TOKEN)
    assert "Pass each mark on whole" in refuse(marks, text)


def test_a_secret_is_put_only_where_it_would_be_taken_out_again() -> None:
    """Else a question or a log would show it; and a document of JSON stays one."""
    marks = Marks(redactor())
    shown = read(marks, f"{PASSWORD} {KEY}")
    password, key = shown.split("] ")[0] + "]", shown.split("] ")[1]
    assert "not be recognised" in refuse(marks, f"{password}4")
    assert "needs escapes" in refuse(marks, json.dumps({"key": key}))
    assert marks.reveal("fs", {"text": f"key: {key}"}) == {"text": f"key: {KEY}"}


def test_a_secret_that_has_changed_is_not_put_back() -> None:
    found = redactor()
    marks = Marks(found)
    read(marks, TOKEN)
    found.learn({f"{TOKEN}x": KNOWN[TOKEN]})
    assert "not be recognised" in refuse(marks, MARK)


@pytest.mark.parametrize(
    "around", ["{}", "x={}&", '"\\n{}"', "u%3A{}%40h", "\x1b[31m{}\x1b[0m", "é{}é"]
)
def test_a_short_secret_is_found_as_a_whole_word(around: str) -> None:
    found, text = redactor(), around.format(PASSWORD)
    shown = around.format("[redacted: DB_PASSWORD of git]")
    assert found.text(text) == shown
    assert json.loads(found.frame(json.dumps(text).encode())) == shown
    for glued in (f"{PASSWORD}4", f"x{PASSWORD}", f"my{PASSWORD}s"):
        assert found.text(glued) is glued


@given(
    st.lists(st.sampled_from([PASSWORD, "admin", "123", "4", "x", " ", "%3A", TOKEN]), max_size=9)
)
def test_whole_words_are_the_same_wherever_a_text_is_cut(parts: list[str]) -> None:
    stream, data = redactor().stream(), "".join(parts).encode()
    told = b"".join([*(stream.feed(bytes([byte])) for byte in data), stream.finish()])
    assert told == redactor().redact_bytes(data)


SECRET = "hunter2-hunter2-hunter2"
REDACTOR = Redactor({SECRET: "TOKEN of shop"})
WORDS = f"before {SECRET} after"
FULL = RunResult(
    run_id="r1",
    status="error",
    has_result=True,
    result={"a": [WORDS]},
    summary=WORDS,
    stdout=WORDS,
    stderr=WORDS,
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
    assert clear_result(FULL, Redactor({"another-secret-of-this": "X of y"})) is FULL
