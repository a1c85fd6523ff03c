"""Checkpoints that were cut, changed, forged or saved by an earlier version."""

from __future__ import annotations

import json

import pytest

from bridge.guest.state.checkpoint import EVERYTHING, MAGIC
from tests.guest.checkpoint_rig import opened, saved


def with_pickle(data: bytes, written: bytes, name: str = "a") -> bytes:
    line, _, rest = data.partition(b"\n")
    size = int.from_bytes(rest[:8], "big")
    header = json.loads(rest[8 : 8 + size])
    header["names"] = [[name, len(written)]]
    made = json.dumps(header).encode()
    return line + b"\n" + len(made).to_bytes(8, "big") + made + written


@pytest.mark.parametrize(
    "written", [b"", b".", b"N.", b"\x80\x05]q\0.", b"garbage", b"\x80\x05X\xff\xff\xff\x7fab"]
)
def test_broken_pickles_lose_their_names(written: bytes) -> None:
    found, lost = opened(with_pickle(saved({"a": 1})[0], written))
    assert found == {}
    assert lost


@pytest.mark.guarantee("checkpoints")
def test_a_cut_checkpoint_is_refused_wherever_it_is_cut() -> None:
    data, _ = saved({"a": [1, 2], "b": "x"})
    for size in range(len(data)):
        found, lost = opened(data[:size])
        assert found == {}, size
        assert list(lost) == [EVERYTHING], size
    assert opened(data + b"x")[1] == {
        EVERYTHING: "the checkpoint ends in the middle, or has too much"
    }


def test_another_version_is_refused_with_the_reason() -> None:
    data, _ = saved({"a": 1})
    _, lost = opened(data.replace(MAGIC + b"3\n", MAGIC + b"1\n"))
    assert lost == {EVERYTHING: "the checkpoint is of version 1; this bridge reads version 3"}
    assert opened(b"something else")[1] == {EVERYTHING: "it is no checkpoint"}
