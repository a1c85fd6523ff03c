"""Secrets in a text that comes in pieces, however those are cut."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.gate import redaction
from bridge.gate.redaction import Redactor

KEY = "-----BEGIN KEY-----\nQUJD/REVG+0hJ\n-----END KEY-----"
SECRETS = {"hunter2-hunter2": "A", "hunter2-hunter2-longer": "B", "xyzzyxyzzy": "C", KEY: "D"}
REDACTOR = Redactor(SECRETS)


def streamed(pieces: list[bytes], redactor: Redactor = REDACTOR) -> bytes:
    stream = redactor.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.finish()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


forms = st.sampled_from(
    [form for secret in SECRETS for form in (secret, json.dumps(secret)[1:-1], secret[:7])]
    + [base64.b64encode(secret.encode()).decode() for secret in SECRETS]
)
texts = st.lists(st.one_of(forms, st.text(alphabet="hxyz-\n é", max_size=12)), max_size=8)


@example(["hunter2-hunter2-longer"], [16])
@example(["xyzzyxyzzyxyzzy"], [5, 9, 10, 11])
@given(texts, st.lists(st.integers(0, 2000), max_size=12))
def test_no_secret_survives_wherever_a_text_is_cut(parts: list[str], places: list[int]) -> None:
    data = "".join(parts).encode()
    assert streamed(cut(data, places)) == REDACTOR.encoded(data)
    assert streamed([bytes([byte]) for byte in data]) == REDACTOR.encoded(data)


def test_a_line_is_told_when_it_is_written() -> None:
    stream = REDACTOR.stream()
    assert stream.feed(b"step 1\n") == b"step 1\n"
    assert stream.feed(b"step 2: hunt") == b"step 2: "
    assert stream.feed(b"er's lodge\n") == b"hunter's lodge\n"


def test_a_redactor_that_learns_meanwhile_looks_for_what_it_learned() -> None:
    redactor = Redactor({})
    stream = redactor.stream()
    assert stream.feed(b"hunter2-") == b"hunter2-"
    redactor.learn({"swordfish99": "E"})
    assert stream.feed(b"sword") == b""
    redactor.learn({})
    assert stream.finish() == b"sword"


def test_what_is_held_back_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_SECRET_CHARS", 512)
    stream = Redactor({"aaaaaaaa": "F"}).stream()
    told = b""
    for _ in range(12):
        told += stream.feed(b"a" * 1024)
        assert len(stream._held) <= 8 * 512 + 1024
    assert b"a" * 8 not in told + stream.finish()


@given(st.lists(st.integers(0, 2000), max_size=60))
def test_secrets_that_begin_or_overlap_each_other_leave_no_rest(places: list[int]) -> None:
    known = dict.fromkeys(("hunter2", "hunter2-production", "duction-and-more"), "K")
    text = b"a hunter2 b hunter2-production c hunter2-production-and-more hunter"
    shown = b"a [redacted: K] b [redacted: K] c [redacted: K] hunter"
    assert streamed(cut(text, places), Redactor(known)) == shown


def test_a_secret_that_is_no_text_is_found_as_well() -> None:
    secret = b"\xffnot-utf-8".decode("utf-8", "surrogateescape")
    found = streamed([b"<\xffnot-", b"utf-8> %FFnot-utf-8"], Redactor({secret: "K"}))
    assert found == b"<[redacted: K]> [redacted: K]"
