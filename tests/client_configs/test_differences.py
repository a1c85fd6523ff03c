"""The diff of a change, without secrets."""

from __future__ import annotations

import pytest

from bridge.client_configs.install import unified_diff


def mask(text: str, path: str) -> str:
    return "\n".join(line[1:] for line in unified_diff(path, text.encode(), b"").splitlines()[2:])


JSON, TOML, YAML = "f.json", "f.toml", "f.yaml"


@pytest.mark.parametrize(
    ("path", "text", "shown"),
    [
        (
            JSON,
            '{"env": {"TOKEN": "s3cret", "A": "b"}, // s3cret',
            '{"env": {"TOKEN": •••, "A": "b"}, // s3cret',
        ),
        (JSON, "// TOKEN=s3cret x", "// TOKEN=••• x"),
        (JSON, '{"a":["--token","s3cret","x"]}', '{"a":["--token",•••,"x"]}'),
        (JSON, '["--api-key=s3cret", "x"]', '["--api-key=•••", "x"]'),
        (JSON, '["https://u:s3cret@h/?token=s3cret&a=b"]', '["https://•••@h/?token=•••&a=b"]'),
        (
            JSON,
            '{"headers": {"Authorization": "Bearer s3cret"}, "n": 1}',
            '{"headers": {"Authorization": •••}, "n": 1}',
        ),
        (JSON, '{"passwords": ["s3cret", "s3cret"], "n": 1}', '{"passwords": [•••, •••], "n": 1}'),
        (JSON, '  "timeout": 300,', '  "timeout": 300,'),
        (TOML, 'key = "s3cret" # key: s3cret', 'key = "•••" # key: •••'),
        (TOML, '[mcp_servers.github]\ncommand = "npx"', '[mcp_servers.github]\ncommand = "npx"'),
        (TOML, 'env = {b_token = "s3cret", a = "b"}', 'env = {b_token = "•••", a = "b"}'),
        (TOML, 'secret = """\ns3cret:\n[s3cret]\ns3cret=\n"""', 'secret = """\n•••\n•••\n•••\n"""'),
        (TOML, "l = [\n  '--token',\n  's3cret',\n]", "l = [\n  '--token',\n  '•••,\n]"),
        (YAML, "TOKEN=s3cret", "TOKEN=•••"),
        (YAML, "token: s3cret\na: b", "token: •••\na: b"),
        (YAML, "a:\n  - --token\n  - s3cret==", "a:\n  - --token\n  - •••"),
        (YAML, "secret: |\n  s3cret:\n  [s3cret]\nu: x", "secret: |\n  •••\n  •••\nu: x"),
        (YAML, 'password: "a\n  s3cret:\n  b"\nn: 1', 'password: "•••\n  •••\n  •••"\nn: 1'),
    ],
)
def test_only_secrets_are_masked_by_their_keys(path: str, text: str, shown: str) -> None:
    assert mask(text, path) == shown


def test_a_list_of_secrets_that_the_diff_begins_in_is_masked() -> None:
    lines = [f'    "s3cret{number}",' for number in range(9)]
    before = "\n".join(["{", '  "tokens": [', *lines, '    "z"', "  ]", "}"]).encode()
    shown = unified_diff("/f.json", before, before.replace(b'"z"', b'"y"'))
    assert "s3cret" not in shown
    assert "\n-    •••\n+    •••\n" in shown


def test_only_what_changes_is_shown_with_two_lines_around_it() -> None:
    before = b'{\n  "a": {"command": "npx"}\n}\n'
    after = b'{\n  "a": {"command": "npx"},\n  "ours": {"command": "/bin/x"}\n}\n'
    assert unified_diff("/f", before, after).splitlines() == [
        "--- /f",
        "+++ /f",
        " {",
        '-  "a": {"command": "npx"}',
        '+  "a": {"command": "npx"},',
        '+  "ours": {"command": "/bin/x"}',
        " }",
    ]


def test_json_on_one_line_is_shown_indented_and_other_long_lines_are_cut() -> None:
    before = b'{"other": "' + b"x" * 999 + b'", "mcpServers": {}}'
    after = before.replace(b"{}", b'{"a": {"command": "npx", "env": {"TOKEN": "s3cret"}}}')
    shown = unified_diff("/f", before, after)
    assert '+      "command": "npx",\n' in shown
    assert '+        "TOKEN": •••\n' in shown
    broken = b"[" + b"1," * 100_000 + b"1"
    assert len(unified_diff("/f", broken, broken + b" x")) < 1000
    assert unified_diff("/f", None, b"x\n").startswith("--- (no file)\n+++ /f\n")
    assert unified_diff("/f", b"x\n", None).startswith("--- /f\n+++ (no file)\n")
