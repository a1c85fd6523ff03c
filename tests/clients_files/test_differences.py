"""What a person sees of a change, and what nobody sees."""

from __future__ import annotations

import pytest

from bridge.clients.differences import unified

SECRET = "s3cret"


def masked(text: str, path: str) -> str:
    """Return a document as a diff shows it that removes it."""
    return "\n".join(line[1:] for line in unified(path, text.encode(), b"", []).splitlines()[2:])


JSON, TOML, YAML = "f.json", "f.toml", "f.yaml"


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        (JSON, '{"env": {"TOKEN": "s3cret"}, // s3cret', '{"env": {"TOKEN": •••}, •••'),
        (JSON, '{"a":{"args":["--token","s3cret"]}}', '{"a":{"args":[•••,•••]}}'),
        (JSON, '  "timeout": 300,', '  "timeout": 300,'),
        (JSON, "[s3cret]", "[•••]"),
        (JSON, "{/* a\ns3cret:\n[s3cret]\n*/}", "{•••\n•••\n•••\n•••}"),
        (JSON, '{"sk-live-9aZ3kQ81xVb7Lm2PqR5t": 1}', "{•••: 1}"),
        (JSON, '"s3cret', "•••"),
        (TOML, 'key = "s3cret" # s3cret', "key = ••• •••"),
        (TOML, "[mcp_servers.github]", "[mcp_servers.github]"),
        (TOML, 'a = {b = "s3cret"}', "a = {b = •••}"),
        (TOML, 't = """\ns3cret:\n[s3cret]\ns3cret=\n"""', "t = •••\n•••\n•••\n•••\n•••"),
        (TOML, "l = [\n  's3cret',\n]", "l = [\n  •••,\n]"),
        (YAML, "TOKEN=s3cret", "•••"),
        (YAML, "key: s3cret", "key: •••"),
        (YAML, "a:\n  - s3cret==", "a:\n  - •••"),
        (YAML, "a:\n    s3cret", "a:\n    •••"),
        (YAML, "a: {b: s3cret}", "a: {b: •••}"),
        (YAML, "t: |\n  s3cret:\n  [s3cret]\nu: x", "t: |\n  •••\n  •••\nu: •••"),
        (YAML, 't: "a\n  s3cret:\n  b"', "t: •••\n  •••\n  •••"),
        (YAML, "t: a\n  s3cret: b", "t: •••\n  •••: •••"),
        (YAML, "pin: 482913", "pin: •••"),
        (YAML, "key: abc,sekret482913: x", "key: •••: •••"),
        (YAML, "- 482913", "- •••"),
    ],
)
def test_keys_are_shown_and_values_are_not(path: str, text: str, shown: str) -> None:
    """By the document's tokens: a line of a text or a comment may look like a key or a table."""
    assert masked(text, path) == shown


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
