"""What is kept of a session's values, and what is not and why."""

from __future__ import annotations

import json
import os
import pickle
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.guest.state import checkpoint, checkpoint_saving
from bridge.guest.state.checkpoint import EVERYTHING, MAGIC, restore
from bridge.guest.state.checkpoint_saving import PART_BYTES, save
from tests.guest.checkpoint_rig import LIMIT, Calls, restore_names, save_names, session


@pytest.fixture(autouse=True)
def _own_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the directory: checkpoints contain the files of the workspace."""
    monkeypatch.chdir(tmp_path)


def round_trip(names: dict[str, Any]) -> dict[str, Any]:
    data, lost = save_names(names)
    assert lost == {}
    found, lost = restore_names(data)
    assert lost == {}
    return found


SCALARS = (
    *(st.none, st.booleans, st.integers, st.text, st.binary, st.fractions, st.uuids),
    *(st.datetimes, st.timedeltas, st.dates, st.times),
)
NUMBERS = (st.floats, st.complex_numbers, st.decimals)
PLAIN = st.recursive(
    st.one_of(*(kind() for kind in SCALARS), *(kind(allow_nan=False) for kind in NUMBERS)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
        | st.frozensets(st.integers(), max_size=4)
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,6}", fullmatch=True), PLAIN, max_size=6))
def test_data_comes_back_as_it_was(names: dict[str, Any]) -> None:
    names = {"x" + name: value for name, value in names.items()}
    found = round_trip(names)
    assert found == names
    assert list(found) == list(names)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=6, max_size=6),
    st.sets(st.integers(0, 5)),
)
def test_what_names_share_stays_shared_and_bad_ones_go_alone(
    edges: list[list[int]], bad: set[int]
) -> None:
    nodes: list[list[Any]] = [[number] for number in range(6)]
    for node, targets in zip(nodes, edges, strict=True):
        node.append([nodes[target] for target in targets])
    for number in bad:
        nodes[number].append(iter(()))
    reached = {number: {number} for number in range(6)}
    for _ in range(6):
        for number, targets in enumerate(edges):
            reached[number].update(*(reached[target] for target in targets))
    doomed = {number for number in range(6) if reached[number] & bad}
    data, lost = save_names({f"n{number}": node for number, node in enumerate(nodes)})
    assert set(lost) == {f"n{number}" for number in doomed}
    found, lost = restore_names(data)
    assert lost == {}
    for number in set(range(6)) - doomed:
        node = found[f"n{number}"]
        assert node[0] == number
        assert len(node[1]) == len(edges[number])
        assert all(a is found[f"n{b}"] for a, b in zip(node[1], edges[number], strict=True))


def test_a_small_state_is_one_part_and_a_large_one_several() -> None:
    small = list(save({"a": 1}, str(Path.cwd()), LIMIT))
    assert len(small) == 1
    large = list(save({"a": bytes(3 * PART_BYTES)}, str(Path.cwd()), LIMIT))
    assert len(large) == 4
    assert [len(frame.data) for frame in large[:3]] == [512 * 1024] * 3
    assert not any(frame.lost for frame in large)


def test_of_too_much_the_largest_go_first_and_are_told_about() -> None:
    sizes = {"a": 40_000, "b": 115_000, "c": 50_000, "d": 9_000, "e": 9_000, "f": 900_000}
    names = {name: os.urandom(size) for name, size in sizes.items()}
    data, lost = save_names({"one": 1, "os": os, **names}, limit=60_000)
    # A module first, as values may need it.
    assert list(restore_names(data)[0]) == ["os", "one", "d", "e", "a"]
    assert set(lost) == {"b", "c", "f"}
    assert lost["b"].startswith("there is no room for it")


def test_what_fits_once_it_is_compressed_is_kept() -> None:
    names = {"a": "row " * 10_000, "b": bytes(50_000), "c": 1, "module": iter([])}
    data, lost = save_names(names, limit=60_000)
    assert len(data) < 10_000
    assert list(lost) == ["module"]
    names.pop("module")
    assert restore_names(data)[0] == names
    random = os.urandom(50_000)
    _, lost = save_names({"a": random, "b": random[:1] + random}, limit=60_000)
    assert list(lost) == ["b"]


def test_what_is_shared_counts_once_as_long_as_all_of_it_fits() -> None:
    shared = bytes(40_000)
    data, lost = save_names({"a": [shared], "b": [shared]}, limit=60_000)
    assert lost == {}
    found, _ = restore_names(data)
    assert found["a"][0] is found["b"][0]


def test_what_the_guest_gives_is_neither_kept_nor_lost() -> None:
    from bridge.guest.api.proxies import Server, Tools
    from bridge.guest.api.values import Blob, MCPError

    server = Server(Tools(None, {"name": "git", "alias": "git", "tools": []}))  # type: ignore[arg-type]
    given_names = {
        "runtime": types.ModuleType("mcp.runtime"),
        "mcp": types.ModuleType("mcp"),
        "mcp_git": server,
        "LOADED_MCP_SERVERS": ("git",),
        "MCPError": MCPError,
        "Blob": Blob,
        "__name__": "__main__",
        "__builtins__": {},
    }
    data, lost = save_names({**given_names, "x": 1})
    assert lost == {}
    assert restore_names(data)[0] == {"x": 1}
    # A program's own values of those names are its own.
    assert round_trip({"mcp_notes": [1], "runtime": 5}) == {"mcp_notes": [1], "runtime": 5}


def test_servers_and_tools_come_back_if_they_are_loaded() -> None:
    from bridge.guest.api.proxies import Server, ServerProxies, Tools

    tool = {"name": "echo", "alias": "echo", "inputSchema": {}}
    made = Server(Tools(None, {"name": "git", "alias": "git", "tools": [tool]}))  # type: ignore[arg-type]
    data, lost = save_names({"g": made, "say": {"it": made.echo}})
    assert lost == {}
    names: dict[str, Any] = {"mcp_servers": ServerProxies({"git": made}, {}, {"git": made})}
    assert restore(names, str(Path.cwd()), data) == []
    assert names["g"] is made
    assert names["say"]["it"] is made.echo
    found, lost = restore_names(data)
    assert found == {}
    assert lost == dict.fromkeys(("g", "say"), "the server 'git' is not loaded")


class Hostile:
    """Runs code of a program's while it is written down."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("no\nway"), "keeping it raised ValueError: no way"),
        (SystemExit(3), "keeping it raised SystemExit: 3"),
        (GeneratorExit(), "keeping it raised GeneratorExit"),
        (RecursionError(), "it is nested too deeply"),
        (MemoryError(), "there is not enough memory to write it down"),
    ],
)
def test_whatever_a_value_raises_costs_its_name_alone(error: BaseException, why: str) -> None:
    shared = [1]
    data, lost = save_names({"a": shared, "bad": [shared, {"x": Hostile(error)}], "b": [shared]})
    assert lost == {"bad": why}
    found, lost = restore_names(data)
    assert found["b"][0] is found["a"]
    assert lost == {}


def test_an_interrupt_ends_the_save_and_the_next_leaves_that_value_out() -> None:
    names = {"a": 1, "slow": Hostile(KeyboardInterrupt())}
    with pytest.raises(KeyboardInterrupt):
        save_names(names)
    data, lost = save_names(names)
    assert lost == {"slow": "keeping it took too long the last time"}
    assert restore_names(data)[0] == {"a": 1}
    checkpoint_saving._hung.clear()


def test_deep_nesting_is_lost_and_not_the_process() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    data, lost = save_names({"deep": deep, "a": 1})
    assert lost == {"deep": "it is nested too deeply"}
    assert restore_names(data)[0] == {"a": 1}
    while deep:
        deep = deep[0]


def test_a_name_that_cannot_be_read_goes_alone_with_what_it_shares(tmp_path: Path) -> None:
    programs = (
        "import colorsys as cs, json\n"
        "one = {'k': [1]}\n"
        "bad = [one, ['own'], cs.rgb_to_hls]\n"
        "shares, other = [bad[1]], [one]\n"
        "text = 'x' * 300\n"
    )
    data = session(tmp_path / "w", programs).data
    # A module that is not there any more, as with another image.
    data = data.replace(b"colorsys", b"colorsyz")
    found, lost = restore_names(data)
    assert lost.pop("bad").startswith("restoring it raised ModuleNotFoundError")
    assert lost.pop("cs").startswith("restoring it raised ModuleNotFoundError")
    assert lost == {"shares": "it shares something with a name that could not be read"}
    assert set(found) == {"json", "one", "other", "text"}
    assert found["other"][0] is found["one"]


@pytest.mark.guarantee("checkpoints")
def test_restoring_runs_no_constructor_decorator_or_default(tmp_path: Path) -> None:
    first = session(
        tmp_path / "a",
        "ran = []\n"
        "def deco(x):\n    ran.append('deco')\n    return x\n"
        "class A:\n"
        "    ran.append('body')\n"
        "    def __init__(self):\n        ran.append('init')\n        self.x = 1\n"
        "    def __setattr__(self, k, v):\n        ran.append('setattr')\n"
        "        object.__setattr__(self, k, v)\n"
        "    def __del__(self): pass\n"
        "a = A()\n"
        "@deco\ndef f(x=ran.append('default')): return x\n"
        "print('top level')\n"
        "ran.clear()\n",
    )
    assert first.lost == {}
    check = "assert ran == [] and a.x == 1 and f(2) == 2"
    assert session(tmp_path / "b", check, state=first.data).restored == {}


CONTINUED = {
    "a redefined class and its former one": """
import dataclasses, enum
@dataclasses.dataclass
class P:
    x: int
class K(enum.Enum):
    A = 1
old, k = P(1), K.A
---
@dataclasses.dataclass
class P:
    y: str
class K(enum.Enum):
    B = 1
new = P('s')
---
assert old.x == 1 and new.y == 's' and type(new) is P is not type(old)
assert k.name == 'A' and K.B
""",
    "modules of the workspace": r"""
open('helper.py', 'w').write('class T:\n    def __init__(self, v): self.v = v\n'
    'def twice(x): return 2 * x')
---
import helper
from helper import twice
t = helper.T(3)
---
assert twice(4) == 8 and t.v == 3 and type(t) is helper.T
""",
}


@pytest.mark.parametrize("programs", CONTINUED.values(), ids=CONTINUED)
def test_a_session_continues_in_another_process(tmp_path: Path, programs: str) -> None:
    first, second, check = programs.split("---\n")
    ended = session(tmp_path / "a", first, second)
    assert ended.lost == {}
    assert session(tmp_path / "b", check, state=ended.data, first=3).restored == {}


def test_a_setstate_that_raises_loses_its_name_alone(tmp_path: Path) -> None:
    first = session(
        tmp_path / "a",
        "class S:\n    def __getstate__(self): return {'a': 1}\n"
        "    def __setstate__(self, state): raise RuntimeError('not today')\n"
        "s, other = S(), [1]",
    )
    second = session(tmp_path / "b", "assert other == [1] and S", state=first.data)
    assert second.restored == {"s": "restoring it raised RuntimeError: not today"}


def test_what_is_handed_over_in_place_is_kept() -> None:
    content = bytes(range(256)) * 1000
    data, lost = save_names({"a": Calls(bytearray, pickle.PickleBuffer(content)), "b": 1})
    assert lost == {}
    assert restore_names(data)[0] == {"a": bytearray(content), "b": 1}


def test_arrays_and_frames_come_back_where_they_are_installed() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"a": [1, 2], "t": ["x", None], "d": pandas.to_datetime(["2020-01-01"] * 2)}
    )
    found = round_trip({"frame": frame, "series": frame["a"], "array": frame["a"].to_numpy()})
    assert found["frame"].equals(frame)
    assert found["array"].tolist() == [1, 2]


def forge(data: bytes, body: bytes, **fields: Any) -> bytes:
    line, _, rest = data.partition(b"\n")
    header = json.loads(rest[8 : 8 + int.from_bytes(rest[:8], "big")])
    made = json.dumps({**header, **fields}).encode()
    return line + b"\n" + len(made).to_bytes(8, "big") + made + body


@pytest.mark.parametrize(
    "written", [b"", b".", b"N.", b"\x80\x05]q\0.", b"garbage", b"\x80\x05X\xff\xff\xff\x7fab"]
)
def test_broken_pickles_lose_their_names(written: bytes) -> None:
    names, lost = restore_names(
        forge(save_names({"a": 1})[0], written, names=[["a", len(written)]])
    )
    assert names == {}
    assert lost


@pytest.mark.guarantee("checkpoints")
def test_a_cut_checkpoint_is_refused_wherever_it_is_cut() -> None:
    data, _ = save_names({"a": [1, 2], "b": "x"})
    for size in range(len(data)):
        found, lost = restore_names(data[:size])
        assert found == {}, size
        assert list(lost) == [EVERYTHING], size
    assert restore_names(data + b"x")[1] == {
        EVERYTHING: "the checkpoint is damaged: a part is missing, or there is too much"
    }


def test_another_version_is_refused_with_the_reason() -> None:
    data, _ = save_names({"a": 1})
    _, lost = restore_names(data.replace(MAGIC + b"3\n", MAGIC + b"1\n"))
    assert lost == {EVERYTHING: "the checkpoint is of version 1; this bridge reads version 3"}
    assert restore_names(b"something else")[1] == {EVERYTHING: "it is no checkpoint"}


@pytest.mark.guarantee("checkpoints")
def test_files_come_back_and_nothing_through_links(tmp_path: Path) -> None:
    space, other = tmp_path / "space", tmp_path / "other"
    aside = tmp_path / "aside"
    for path in (space / "sub/deep", space / "out", space / "__pycache__", other, aside):
        path.mkdir(parents=True)
    (space / "a.txt").write_text("a")
    (space / "sub/deep/b").write_bytes(bytes(1000))
    (space / "sub/deep/b").chmod(0o4640)
    (space / "out/left").write_text("handed over already")
    (space / "__pycache__/x.pyc").write_text("x")
    (aside / "secret").write_text("not ours")
    (space / "link").symlink_to(aside / "secret")
    (space / "linked").symlink_to(aside)
    os.mkfifo(space / "pipe")
    os.chdir(space / "sub")
    data, lost = save_names({}, workspace=str(space))
    assert lost == {
        "file link": "it is a link",
        "file linked": "it is a link",
        "file pipe": "it is no file",
    }
    assert b"not ours" not in data
    (other / "a.txt").write_text("newer")
    assert restore_names(data, str(other)) == ({}, {})
    assert sorted(str(p.relative_to(other)) for p in other.rglob("*") if p.is_file()) == [
        "a.txt",
        "sub/deep/b",
    ]
    assert (other / "a.txt").read_text() == "newer"
    assert (other / "sub/deep/b").stat().st_mode & 0o7777 == 0o640
    assert Path.cwd() == other / "sub"


@pytest.mark.guarantee("checkpoints")
def test_what_replaces_a_checked_file_is_neither_read_nor_written(tmp_path: Path) -> None:
    for kind, target in (("saved", "secret"), ("restored", "aside")):
        (tmp_path / kind).symlink_to(tmp_path / target)
    (tmp_path / "secret").write_text("not ours")
    with pytest.raises(OSError, match="symbolic links"):
        checkpoint_saving._content(str(tmp_path / "saved"), 8, 8)
    with pytest.raises(checkpoint.NotKept, match="it changed"):
        checkpoint_saving._content(str(tmp_path / "secret"), 7, 8)
    with pytest.raises(FileExistsError):
        os.open(tmp_path / "restored", checkpoint._WRITE)
    assert not (tmp_path / "aside").exists()


def test_files_have_a_share_of_the_limit_and_the_largest_go_first(tmp_path: Path) -> None:
    for name, size in (("small", 10), ("medium", 20_000), ("large", 40_000)):
        (tmp_path / name).write_bytes(bytes(size))
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    data, lost = save_names({"a": bytes(30_000)}, limit=60_000)
    assert set(lost) == {"file large", "file sparse"}
    assert len(data) < 60_000
    other = tmp_path / "other"
    other.mkdir()
    found, _ = restore_names(data, str(other))
    assert found == {"a": bytes(30_000)}
    assert sorted(p.name for p in other.iterdir()) == ["medium", "small"]


@pytest.mark.guarantee("checkpoints")
@pytest.mark.parametrize("path", ["../x", "/x", "a/../../x", "", ".", "a//b", "link/x", "a\0b"])
def test_a_changed_checkpoint_writes_nothing_outside_of_the_workspace(
    tmp_path: Path, path: str
) -> None:
    space, aside = tmp_path / "space", tmp_path / "aside"
    space.mkdir()
    aside.mkdir()
    (space / "link").symlink_to(aside)
    files = [[path, 0o644, 1]]
    changed = forge(save_names({})[0], b"x", names=[], files=files, directory="../aside")
    _, lost = restore_names(changed, str(space))
    assert f"file {path}" in lost
    assert lost["working directory"] == "it is outside of the workspace"
    assert list(aside.iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["aside", "space"]
    _, lost = save_names({}, workspace=str(space))
    assert lost["working directory"] == "it is outside of the workspace"
