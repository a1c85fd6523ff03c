"""Which files a run takes, by name, size and address."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.errors import InvalidRequestError
from bridge.guest.protocol.wire import MAX_FRAME_BYTES
from bridge.model import MEBIBYTE, InputFile, Limits, RunRequest
from bridge.runs.input_files import (
    MAX_BYTES,
    MAX_FILES,
    MAX_SESSION_BYTES,
    allowed_bytes,
    check_names,
    frame_files,
    name_problem,
    quote,
    resolve_files,
)
from bridge.store import Store

RUN = "0123456789abcdef"


def files(*names: str) -> list[InputFile]:
    return [InputFile(name=name, data=b"x") for name in names]


def test_names_of_every_language_and_any_depth_are_taken() -> None:
    check_names(
        files(
            "a",
            "data/ä b.csv",
            "नमस्ते.txt",
            "👩\N{ZERO WIDTH JOINER}🔬.png",
            "..a",
            ".hidden",
            "outer/x",
        )
    )
    check_names(files(*(f"d/{n}" for n in range(MAX_FILES))))


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["/etc/x"], "slash"),
        (["a/../x"], "part"),
        (["a\\x"], "backslash"),
        (["a\nx"], "control"),
        (["a\0"], "control"),
        (["\ud800"], "no text"),
        (["a/"], "empty"),
        ([""], "is empty"),
        (["x" * 300], "255"),
        (["a/" * 20 + "x"], "parts"),
        (["a", "a"], "two files named `a`"),
        (["a/b", "a"], "`a` is a file, and also the directory"),
        (["a", "a/b/c"], "`a` is a file, and also the directory"),
        (["out"], "what comes back"),
        (["out/x"], "what comes back"),
        ([str(n) for n in range(MAX_FILES + 1)], "a run takes 100"),
    ],
)
def test_other_names_are_refused_with_what_is_wrong(names: list[str], why: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_names(files(*names))
    assert why in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_shown_name_is_short_and_does_nothing_to_a_terminal() -> None:
    assert quote("a\n\x1b[2J\u202eb") == "`a\\n\\x1b[2J\\u202eb`"
    assert len(quote("x" * 5000)) < 250
    assert name_problem("x") == ""


def test_files_fit_into_a_frame_beside_all_else() -> None:
    state = 32 * MEBIBYTE
    others = 2 * MEBIBYTE
    assert MAX_BYTES * 4 // 3 + others < MAX_FRAME_BYTES
    assert (MAX_SESSION_BYTES + state) * 4 // 3 + others < MAX_FRAME_BYTES
    assert allowed_bytes(Limits()) == MAX_BYTES
    small = Limits(memory_bytes=128 * MEBIBYTE, workspace_bytes=32 * MEBIBYTE)
    assert allowed_bytes(small) == 8 * MEBIBYTE
    assert allowed_bytes(Limits(), in_session=True) == MAX_SESSION_BYTES


async def test_an_address_is_what_the_bridge_keeps_for_the_caller_or_the_data(
    tmp_path: Path,
) -> None:
    store = ArtifactStore(Store(tmp_path), total_bytes=MEBIBYTE, run_bytes=MEBIBYTE, days=1)
    kept = RunArtifacts(store, "me", RUN).add("a.bin", b"\0\xff" * 10)
    RunArtifacts(store, "me", RUN).add("stdout", b"whole\n", kind="stdout")
    request = RunRequest(
        code="",
        owner="me",
        files=(
            InputFile(name="1", data=b"given"),
            InputFile(name="2", uri=kept.uri),
            InputFile(name="3", uri=f"bridge://runs/{RUN}/stdout"),
            InputFile(name="4", uri="data:,a%20b"),
            InputFile(name="5", uri="DATA:text/plain;BASE64,AAE="),
        ),
    )
    found = await resolve_files(request, Limits(), store)
    assert [file.data for file in found.files] == [
        *(b"given", b"\0\xff" * 10, b"whole\n", b"a b", b"\0\x01")
    ]
    assert frame_files(found.files)[0] == {"name": "1", "data": base64.b64encode(b"given").decode()}
    assert await resolve_files(RunRequest(code=""), Limits(), store) == RunRequest(code="")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("file:///etc/passwd", "read_resource"),
        ("https://127.0.0.1/x", "could not be read from `https://127.0.0.1/x`"),
        ("/etc/passwd", "bridge://artifacts/"),
        ("", "bridge://artifacts/"),
        ("bridge://artifacts/0000", "No artifact matches"),
        ("bridge://runs/../../../etc/passwd", "No artifact matches"),
        ("bridge://skills/x", "No artifact matches"),
        ("bridge://runs/4f2c/stdout?lines=1-3", "Leave out `?lines=1-3`"),
        ("data:text/plain", "comma"),
        ("data:;base64,?", "not base64"),
        ("data:,\ud800", "is no text"),
    ],
)
async def test_any_other_address_is_refused_with_what_works(
    tmp_path: Path, uri: str, why: str
) -> None:
    store = ArtifactStore(Store(tmp_path), total_bytes=1000, run_bytes=1000, days=1)
    request = RunRequest(code="", files=(InputFile(name="named", uri=uri),))
    with pytest.raises(InvalidRequestError) as caught:
        await resolve_files(request, Limits(), store)
    assert why in str(caught.value)
    assert "`named`" in str(caught.value)


async def test_too_much_is_refused_with_the_file_and_what_there_is_room_for(tmp_path: Path) -> None:
    store = ArtifactStore(Store(tmp_path), total_bytes=1 << 20, run_bytes=1 << 20, days=1)
    kept = RunArtifacts(store, "", RUN).add("big", bytes(600))
    limits = Limits(workspace_bytes=2000)
    for last in (
        InputFile(name="last", data=bytes(600)),
        InputFile(name="last", uri=kept.uri),
        InputFile(name="last", uri="data:," + "x" * 600),
    ):
        request = RunRequest(code="", files=(InputFile(name="first", data=bytes(500)), last))
        with pytest.raises(InvalidRequestError) as caught:
            await resolve_files(request, limits, store)
        assert "1,000 bytes in all, and 500 of them were left for `last`, which has 600" in str(
            caught.value
        )
