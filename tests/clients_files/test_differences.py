"""What a person sees of a change, and what nobody sees."""

from __future__ import annotations

import pytest

from bridge.clients.differences import masked, unified

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('  "env": {"TOKEN": "s3cret"}, // s3cret', '  "env": {"TOKEN": •••}, •••'),
        ('{"a":{"args":["--token","s3cret"]}}', '{"a":{"args":[•••,•••]}}'),
        ('  "timeout": 300,', '  "timeout": 300,'),
        ('key = "s3cret" # s3cret', "key = ••• •••"),
        ("[mcp_servers.github]", "[mcp_servers.github]"),
        ('a = {b = "s3cret"}', "a = {b = •••}"),
        ("TOKEN=s3cret", "•••=•••"),
        ("key: s3cret", "key: •••"),
        ("  - s3cret==", "  - •••=="),
        ("    s3cret", "    •••"),
        ("a: {b: s3cret}", "a: {b: •••}"),
        ('"s3cret', "•••"),
    ],
)
def test_keys_are_shown_and_values_are_not(line: str, shown: str) -> None:
    assert masked(line) == shown


def test_only_the_lines_of_the_entry_show_their_values() -> None:
    before = b'{\n  "a": {"token": "s3cret"}\n}\n'
    after = b'{\n  "a": {"token": "s3cret"},\n  "ours": {"command": "/bin/x"}\n}\n'
    shown = unified("/f", before, after, ['"ours": {"command": "/bin/x"}'])
    assert shown.splitlines() == [
        "--- /f",
        "+++ /f",
        " {",
        '-  "a": {"token": •••}',
        '+  "a": {"token": •••},',
        '+  "ours": {"command": "/bin/x"}',
        " }",
    ]


def test_a_file_without_line_breaks_is_shown_cut() -> None:
    before = b"[" + b"1," * 100_000 + b"1]"
    assert len(unified("/f", before, before + b" ", [])) < 1000


def test_a_file_that_is_new_or_gone_is_called_that() -> None:
    assert unified("/f", None, b"x\n", []).startswith("--- (no file)\n+++ /f\n")
    assert unified("/f", b"x\n", None, []).startswith("--- /f\n+++ (no file)\n")
