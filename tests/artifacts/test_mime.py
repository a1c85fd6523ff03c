"""What something is, is told by its content first and by its name second."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.artifacts.content import HEAD, is_text, mime_type

PNG = b"\x89PNG\r\n\x1a\n\0\0"


@pytest.mark.parametrize(
    ("name", "head", "claimed", "told"),
    [
        ("plot.png", PNG, "", "image/png"),
        ("data", PNG, "", "image/png"),
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
        ("x.html", b"<p>", "", "text/html"),
        ("table.xlsx", b"PK\x03\x04", "", None),
        ("x.docx", b"PK\x03\x04", "", None),
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
