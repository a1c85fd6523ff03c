"""macOS's profile as text. Its behaviour can be tested on macOS only."""

from __future__ import annotations

import re

import pytest

from bridge.sandbox.process.seatbelt_backend import arguments, profile
from tests.sandbox.golden import is_golden


def test_the_profile_is_this() -> None:
    """All is refused first; the last rule that fits decides: what is written is not executed."""
    assert is_golden("Seatbelt's profile", profile(2).splitlines())


def test_paths_are_parameters_and_never_text() -> None:
    """A path with a quote in it would otherwise write rules."""
    writable, readable = '/private/tmp/")(allow network*)', ['/x") (allow default) ("']
    words = arguments("/opt/python", readable, writable, ["/opt/python", "-c", "1"])
    assert words[:2] == ["/usr/bin/sandbox-exec", "-p"]
    assert words[2] == profile(1)
    assert "/x" not in words[2]
    assert words[3:] == [
        "-D",
        "EXECUTABLE=/opt/python",
        "-D",
        'WRITABLE=/private/tmp/")(allow network*)',
        "-D",
        'READ_0=/x") (allow default) ("',
        "/opt/python",
        "-c",
        "1",
    ]


def test_every_parameter_is_used_and_given_with_its_links_resolved() -> None:
    """The kernel compares resolved paths."""
    words = arguments(
        "/tmp/p",
        ["/tmp/a", "/private/tmp/a", "/b"],
        "/tmp/w",
        [],
        resolve=lambda path: path.replace("/tmp", "/private/tmp") if path[:4] == "/tmp" else path,
    )
    given = dict(word.split("=") for word in words[4::2])
    assert given == {
        "EXECUTABLE": "/private/tmp/p",
        "WRITABLE": "/private/tmp/w",
        "READ_0": "/private/tmp/a",
        "READ_1": "/b",
    }
    assert set(re.findall(r'\(param "(\w+)"\)', words[2])) == set(given)


@pytest.mark.parametrize("path", ["relative", "", "/with\0null"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no usable path"):
        arguments("/p", (), path, ["/p"])
