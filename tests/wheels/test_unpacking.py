"""Wheels from strangers, taken apart."""

from __future__ import annotations

import stat
import struct
import zipfile
from pathlib import Path

import pytest

from bridge.errors import PackageRefusedError
from bridge.wheels import unpacking
from bridge.wheels.unpacking import unpack
from tests.wheels.rig import entry, tree, wheel

ROOM = 10_000_000


def unpacked(tmp_path: Path, *wheels: Path, room: int = ROOM) -> Path:
    into = tmp_path / "into"
    into.mkdir(exist_ok=True)
    unpack([(path.name, path) for path in wheels], into, room)
    return into


def test_a_wheel_becomes_plain_files_of_fixed_modes(tmp_path: Path) -> None:
    odd = [entry("a/tool", stat.S_IFREG | 0o4777), entry("a/shut.py", stat.S_IFREG | 0o000)]
    made = wheel(tmp_path, "a", "1", files={"a/__init__.py": "X = 1"}, entries=odd)
    into = unpacked(tmp_path, made)
    found = tree(into)
    assert found["a/tool"] == "0o755"
    assert found["a/shut.py"] == found["a/__init__.py"] == "0o644"
    assert "a-1.dist-info/METADATA" in found
    assert stat.S_IMODE((into / "a").stat().st_mode) == 0o755


def test_of_what_a_wheel_has_beside_modules_only_modules_are_taken(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a-1.data/purelib/pure.py": "",
        "a-1.data/platlib/deep/native.so": b"\x7fELF",
        "a-1.data/scripts/run": "#!/bin/sh",
        "a-1.data/data/etc/passwd": "x",
        "a-1.data/headers/a.h": "",
    }
    found = tree(unpacked(tmp_path, wheel(tmp_path, "a", "1", files=files)))
    assert {name for name in found if "dist-info" not in name} == {"pure.py", "deep/native.so"}


def test_nothing_that_an_interpreter_would_run_by_itself_is_taken(tmp_path: Path) -> None:
    files = {
        "evil.pth": "import os",
        "a-1.data/purelib/other.PTH": "import os",
        "sitecustomize.py": "",
        "usercustomize/__init__.py": "",
        "a/fine.pth": "",
        "a/sitecustomize.py": "",
    }
    found = tree(unpacked(tmp_path, wheel(tmp_path, "a", "1", files=files)))
    assert {n for n in found if "dist-info" not in n} == {"a/fine.pth", "a/sitecustomize.py"}


@pytest.mark.parametrize(
    "name",
    [
        "../out.py",
        "a/../../out.py",
        "/etc/out.py",
        "a//b.py",
        "./a.py",
        "a\\..\\b.py",
        "a/b\n.py",
        "a\x00.py",
        "x" * 300,
        "/".join("d" * 40) + "/x",
        "a-1.data/purelib/../../../out.py",
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    made = wheel(tmp_path, "a", "1", entries=[entry(name)])
    with pytest.raises(PackageRefusedError, match=r"is refused: .* is no name of a file"):
        unpacked(tmp_path, made)
    assert {path.name for path in tmp_path.iterdir()} == {"into", made.name}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_what_is_neither_file_nor_directory_is_refused(tmp_path: Path, kind: int) -> None:
    made = wheel(tmp_path, "a", "1", entries=[entry("a/link", kind | 0o777)])
    with pytest.raises(PackageRefusedError, match="symbolic link|neither a file nor"):
        unpacked(tmp_path, made)


def test_a_bomb_is_stopped_by_what_comes_out_of_it(tmp_path: Path) -> None:
    made = wheel(tmp_path, "a", "1", files={"a.bin": b"\0" * 3_000_000})
    assert made.stat().st_size < 10_000
    with pytest.raises(PackageRefusedError, match="larger than a run's may be"):
        unpacked(tmp_path, made, room=1_000_000)


def test_the_bound_is_on_all_wheels_together(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, f"a{n}", "1", files={f"a{n}": b"x" * 600_000}) for n in range(2)]
    with pytest.raises(PackageRefusedError, match="a1-1"):
        unpacked(tmp_path, *wheels, room=1_000_000)


def test_an_archive_that_lies_about_sizes_is_refused(tmp_path: Path) -> None:
    made = wheel(tmp_path, "a", "1", files={"a.bin": b"\0" * 100_000})
    data = made.read_bytes().replace(struct.pack("<I", 100_000), struct.pack("<I", 10))
    made.write_bytes(data)
    with pytest.raises(PackageRefusedError, match="is refused"):
        unpacked(tmp_path, made)


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "MAX_ENTRIES", 20)
    made = wheel(tmp_path, "a", "1", files={f"a{n}": "" for n in range(30)})
    with pytest.raises(PackageRefusedError, match="it has 33 files"):
        unpacked(tmp_path, made)


def test_a_table_of_contents_is_bounded_before_it_is_read(tmp_path: Path) -> None:
    made = wheel(tmp_path, "a", "1")
    data = bytearray(made.read_bytes())
    data[-10:-6] = struct.pack("<I", unpacking.MAX_DIRECTORY_BYTES + 1)
    made.write_bytes(data)
    with pytest.raises(PackageRefusedError, match="it has 4 files"):
        unpacked(tmp_path, made)


@pytest.mark.parametrize("content", [b"", b"PK", b"x" * 5000, b"PK\x05\x06" + b"\0" * 18])
def test_what_is_no_archive_is_refused_or_holds_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(content)
    if len(content) == 22:
        assert tree(unpacked(tmp_path, path)) == {}
    else:
        with pytest.raises(PackageRefusedError, match="no zip archive"):
            unpacked(tmp_path, path)


def test_compressions_that_wheels_do_not_use_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.py", "x = 1")
    with pytest.raises(PackageRefusedError, match="compressed in a way"):
        unpacked(tmp_path, path)


def test_of_two_wheels_with_the_same_file_the_first_keeps_its_own(tmp_path: Path) -> None:
    one = wheel(tmp_path, "a", "1", files={"tests/__init__.py": "first"})
    two = wheel(tmp_path, "b", "1", files={"tests/__init__.py": "second"})
    into = unpacked(tmp_path, one, two)
    assert (into / "tests/__init__.py").read_text() == "first"


def test_a_file_that_is_another_wheels_directory_is_refused(tmp_path: Path) -> None:
    one = wheel(tmp_path, "a", "1", files={"x": "a file"})
    two = wheel(tmp_path, "b", "1", files={"x/y.py": "below it"})
    for number, order in enumerate(((one, two), (two, one))):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(PackageRefusedError, match="below a file|a file and a directory"):
            unpacked(place, *order)


def test_a_file_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    made = wheel(tmp_path, "a", "1", entries=[entry("a/x"), entry("a/y")])
    made.write_bytes(made.read_bytes().replace(b"a/y", b"a/x"))
    with pytest.raises(PackageRefusedError, match="twice"):
        unpacked(tmp_path, made)
