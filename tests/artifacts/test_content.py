"""Parts of what is kept: every byte and line is reached, and none twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.artifacts.content import (
    HEAD,
    MAX_ANSWER,
    SPARE,
    Part,
    PartialContent,
    is_text,
    line_span,
    mime_type,
    parse_part,
    read_part,
    text_answer,
)
from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.errors import ArtifactStoreError, InvalidRequestError
from tests.artifacts.rig import RUN, store

PNG = b"\x89PNG\r\n\x1a\n\0\0"


@pytest.mark.parametrize(
    ("name", "head", "claimed", "told"),
    [
        ("plot.png", PNG, "", "image/png"),
        ("x.txt", PNG, "text/plain", "image/png"),
        ("x.jpg", b"\xff\xd8\xff\xe0", "", "image/jpeg"),
        ("x", b"GIF89a", "", "image/gif"),
        ("x", b"RIFF\0\0\0\0WEBPVP8 ", "", "image/webp"),
        ("x", b"%PDF-1.7", "", "application/pdf"),
        ("x", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "", "image/svg+xml"),
        ("x.svg", b"\xef\xbb\xbf<?xml version='1.0'?>\n<svg/>", "", "image/svg+xml"),
        ("x.csv", b"a,b\n", "", "text/csv"),
        ("notes.md", b"# One", "", "text/markdown"),
        ("x.json", b"{}", "", "application/json"),
        ("x.JSONL", b"{}", "", "application/x-ndjson"),
        ("x.py", b"print()", "", "text/x-python"),
        ("table.xlsx", b"PK\x03\x04", "", None),
        ("x.zip", b"PK\x03\x04", "", "application/zip"),
        ("x.parquet", b"PAR1", "", "application/vnd.apache.parquet"),
        ("x", b"plain", "", "text/plain"),
        ("x", b"", "", "text/plain"),
        ("x", b"\x00\x01", "", "application/octet-stream"),
        ("x.tar.gz", b"\x1f\x8b", "", "application/gzip"),
        # A claim counts where nothing speaks against it.
        ("x", b"a,b", "text/csv", "text/csv"),
        ("x", b"a,b", "TEXT/CSV", "text/csv"),
        ("x", b"\x00\x01", "audio/wav", "audio/wav"),
        # And nowhere else.
        ("photo.png", b"plain", "image/png", "text/plain"),
        ("photo.png", b"\x00\x01", "image/png", "application/octet-stream"),
        ("photo.svg", b"plain", "image/svg+xml", "text/plain"),
        ("x.txt", b"\x00\x01", "text/plain", "application/octet-stream"),
        ("x.csv", b"a,b", "audio/wav", "text/csv"),
        ("x", b"<script>", "text/html", "text/plain"),
        ("x", b"alert()", "application/javascript", "text/plain"),
        ("x", b"a", "text/plain\r\nX: y", "text/plain"),
        ("x", b"a", "a" * 200 + "/b", "text/plain"),
        # What a system would run is called so, whatever else is said of it.
        ("photo.png", b"\x7fELF\x02", "image/png", "application/x-executable"),
        ("photo.jpg", b"MZ\x90\x00", "image/jpeg", "application/x-msdownload"),
        ("notes.txt", b"#!/bin/sh\n", "text/plain", "text/x-script"),
        ("tool.py", b"#!/usr/bin/env python3\n", "", "text/x-python"),
    ],
)
def test_what_something_is(name: str, head: bytes, claimed: str, told: str | None) -> None:
    found = mime_type(name, head, claimed)
    if told is None:
        assert found.startswith("application/vnd.openxmlformats-officedocument.")
    else:
        assert found == told


@given(st.text(max_size=20), st.binary(max_size=40), st.text(max_size=20))
def test_anything_has_a_type_and_what_is_called_text_has_no_null(
    name: str, head: bytes, claimed: str
) -> None:
    found = mime_type(name, head, claimed)
    assert 3 <= len(found) <= 100
    assert found.isprintable()
    if is_text(found):
        assert b"\0" not in head


def test_a_character_that_is_cut_where_looking_ends_does_not_make_a_text_binary() -> None:
    assert mime_type("x", b"a" * (HEAD - 1) + "€".encode()) == "text/plain"


TEXTS = st.text(alphabet=st.sampled_from("ab\n€𝄞é"), max_size=60)


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("", Part()),
        ("offset=5", Part(offset=5)),
        ("length=0&offset=7", Part(offset=7, length=0)),
        ("lines=3", Part(first=3, last=3)),
        ("lines=100-200", Part(first=100, last=200)),
        ("lines=100-", Part(first=100)),
        ("lines=-50", Part(first=-50)),
    ],
)
def test_a_query_says_which_part(query: str, part: Part) -> None:
    assert parse_part(query) == part


@pytest.mark.parametrize(
    "query",
    [
        "offset",
        "offset=",
        "offset=-1",
        "offset=1&offset=2",
        "offset=1e3",
        "offset=\u0663",
        "offset=" + "9" * 16,
        "lines=",
        "lines=-",
        "lines=0",
        "lines=-0",
        "lines=0-5",
        "lines=5-4",
        "lines=1-2-3",
        "lines=1-2&offset=3",
        "start=1",
        "&",
    ],
)
def test_any_other_query_is_refused_with_what_would_do(query: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"\?lines=100-200"):
        parse_part(query)


@given(text=TEXTS, size=st.integers(1, 7), first=st.integers(1, 70), count=st.integers(0, 70))
def test_lines_are_where_a_text_says_whatever_the_pieces(
    text: str, size: int, first: int, count: int
) -> None:
    data = text.encode()
    lines = data.splitlines(keepends=True) if b"\r" not in data else []
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    span = line_span(lambda: pieces, first, first + count)
    assert data[span.start : span.end] == b"".join(lines[first - 1 : first + count])
    assert span.total == len(lines)
    assert span.last == min(first + count, len(lines))
    rest = line_span(lambda: pieces, first, None)
    assert data[rest.start : rest.end] == b"".join(lines[first - 1 :])
    end = line_span(lambda: pieces, -first, None)
    assert data[end.start : end.end] == b"".join(lines[-first:])
    assert end.first == max(len(lines) - first + 1, 1)


@given(text=TEXTS, start=st.integers(0, 80), wanted=st.integers(1, 30))
def test_a_text_is_cut_between_characters_and_always_advances(
    text: str, start: int, wanted: int
) -> None:
    data = text.encode()
    start = min(start, len(data))
    begin, end, found = text_answer(data[start : start + wanted + SPARE], start, wanted, len(data))
    assert found is not None
    assert data[begin:end].decode() == found
    assert start <= begin < start + 4
    assert start < end or start == len(data)
    assert end <= start + max(wanted, 7)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> ArtifactStore:
    return store(tmp_path_factory.mktemp("ranges"), total=10**8, run=10**8)


def read(kept: ArtifactStore, uri: str, query: str) -> PartialContent:
    with kept.opened("me", uri) as content:
        return read_part(content, parse_part(query))


def follow(kept: ArtifactStore, uri: str, query: str) -> tuple[bytes, int]:
    data, count = b"", 0
    while True:
        found = read(kept, uri, query)
        data += found.data if found.text is None else found.text.encode()
        count += 1
        if not found.more:
            return data, count
        assert found.describe(uri).endswith(f"Read on with {uri}?{found.more}")
        query = found.more


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXTS, length=st.integers(1, 9), lines=st.integers(1, 4))
def test_following_the_answers_gives_the_whole_in_bytes_and_in_lines(
    kept: ArtifactStore, text: str, length: int, lines: int
) -> None:
    data = text.encode()
    artifact = RunArtifacts(kept, "me", f"run{abs(hash(text))}").add("x.txt", data)
    assert follow(kept, artifact.uri, f"length={length}")[0] == data
    assert follow(kept, artifact.uri, f"lines=1-{lines}")[0] == data
    found = read(kept, artifact.uri, "")
    assert (found.text, found.whole, found.more) == (text, True, "")


def test_one_answer_is_bounded_and_tells_how_to_read_on(kept: ArtifactStore) -> None:
    line = ("é" * 49 + "x\n").encode()
    data = line * 30_000
    artifact = RunArtifacts(kept, "me", RUN).add("x.log", data)
    found = read(kept, artifact.uri, "")
    assert found.text is not None
    assert found.end == len(found.text.encode())
    assert MAX_ANSWER - 4 < found.end <= MAX_ANSWER
    assert found.describe("URI") == (
        f"These are bytes 0-{found.end:,} of 3,000,000. Read on with URI?offset={found.end}"
    )
    for query in ("", "length=99999999", "lines=1-", "lines=1-30000"):
        assert follow(kept, artifact.uri, query) == (data, 3)
    some = read(kept, artifact.uri, "lines=100-200")
    assert some.text == line.decode() * 101
    assert (
        some.describe("URI") == "These are lines 100-200 of 30,000. Read on with URI?lines=201-301"
    )
    last = read(kept, artifact.uri, "lines=-2")
    assert (last.text, last.first, last.last, last.more) == (line.decode() * 2, 29_999, 30_000, "")
    none = read(kept, artifact.uri, "lines=40000-")
    assert (none.text, none.describe("URI")) == ("", "These are no lines: there are 30,000.")


def test_a_line_that_is_longer_than_an_answer_continues_in_bytes(kept: ArtifactStore) -> None:
    data = b"short\n" + "€".encode() * 700_000 + b"\nlast\n"
    artifact = RunArtifacts(kept, "me", RUN).add("x.log", data)
    found = read(kept, artifact.uri, "lines=2-3")
    assert found.text is not None
    assert set(found.text) == {"€"}
    assert re.fullmatch(r"offset=\d+", found.more)
    rest, _ = follow(kept, artifact.uri, found.more)
    assert b"short\n" + found.text.encode() + rest == data


def test_bytes_that_are_no_text_come_as_they_are(kept: ArtifactStore) -> None:
    data = bytes(range(256)) * 5000
    artifact = RunArtifacts(kept, "me", RUN).add("x.bin", data)
    assert read(kept, artifact.uri, "offset=10&length=3").data == b"\x0a\x0b\x0c"
    assert follow(kept, artifact.uri, "") == (data, 2)
    with pytest.raises(InvalidRequestError, match="offset=BYTES"):
        read(kept, artifact.uri, "lines=1-2")
    # Nor is a text that is in another encoding from somewhere on.
    odd = RunArtifacts(kept, "me", RUN).add("x.txt", b"a" * 5000 + b"\xff" * 5000)
    assert read(kept, odd.uri, "").data == b"a" * 5000 + b"\xff" * 5000
    assert follow(kept, odd.uri, "length=999")[0] == b"a" * 5000 + b"\xff" * 5000
    assert read(kept, odd.uri, "offset=20000").end == 10_000


def test_the_whole_is_checked_against_its_digest(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifact = RunArtifacts(kept, "me", RUN).add("x.txt", b"good")
    (tmp_path / "blobs" / artifact.digest[:2] / artifact.digest).write_bytes(b"evil")
    with pytest.raises(ArtifactStoreError, match="damaged"):
        read(kept, artifact.uri, "")
