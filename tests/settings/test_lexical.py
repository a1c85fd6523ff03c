"""Paths compared as texts: their normal form, and what is not told."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.settings.parsers import MAX_PATH_CHARS, holds_path, normal_path, normal_root

_STEPS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "data"]), max_size=8)


@given(_STEPS)
def test_absolute_paths_are_made_normal_as_posix_does(steps: list[str]) -> None:
    path = "/" + "/".join(steps)
    assert normal_path(path) == posixpath.normpath("/" + path.lstrip("/"))


@given(_STEPS)
def test_no_relative_path_leads_out_of_where_it_begins(steps: list[str]) -> None:
    path = "/".join(steps)
    expected = posixpath.normpath(path)
    if not path or path.startswith("/"):
        return
    depth, lowest = 0, 0
    for step in steps:
        depth += {"..": -1, ".": 0, "": 0}.get(step, 1)
        lowest = min(lowest, depth)
    found = normal_path(path)
    assert (found is None) is (lowest < 0)
    assert found is None or found == ("" if expected == "." else expected)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "~/x",
        "~root",
        "..",
        "a/../..",
        "a\\..\\b",
        "/srv/\0",
        "http://host/srv/data",
        "C:/srv",
        "file:/srv/data",
        "file://host/srv/data",
        "file:///srv/data/%2e%2e/x",
        "file:///srv/data?x",
        "FILE:///srv/data",
        "/" + "a" * MAX_PATH_CHARS,
    ],
)
def test_what_servers_read_in_different_ways_is_not_judged(path: str) -> None:
    assert normal_path(path) is None


@pytest.mark.parametrize(
    ("path", "directory", "expected"),
    [
        ("/srv/data", "/srv/data", True),
        ("/srv/data/x", "/srv/data", True),
        ("/srv/database", "/srv/data", False),
        ("/srv", "/srv/data", False),
        ("/x", "/", True),
        ("docs/x", "docs", True),
        ("docs/x", "", True),
        ("src/x", "docs", False),
        ("docs/x", "/docs", None),
        ("/docs/x", "docs", None),
        ("/SRV/Data/x", "/srv/data", None),
        ("/srv/cafe\u0301/x", "/srv/caf\u00e9", None),
    ],
)
def test_a_directory_holds_itself_and_what_is_below(
    path: str, directory: str, *, expected: bool | None
) -> None:
    assert holds_path(directory, path) is expected


def test_a_directory_of_the_file_is_made_normal() -> None:
    assert normal_root("/srv//data/") == "/srv/data"
    assert normal_path("file:///srv//data/./x") == "/srv/data/x"
    assert normal_root(".") == ""
    assert normal_root("~/x").endswith("/x")
    assert normal_root("~/x").startswith("/")
    for text in ("../x", "", "a\\b", "http://x"):
        with pytest.raises(ValueError, match="cannot be compared"):
            normal_root(text)
