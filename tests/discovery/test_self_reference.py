"""Recognising an entry that would start the bridge again, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.self_reference import starts_bridge


def test_launchers_are_looked_through_only_so_deep() -> None:
    assert starts_bridge("nohup", ["nohup"] * 5 + ["mcp-code-bridge"])
    assert not starts_bridge("nohup", ["nohup"] * 5000 + ["mcp-code-bridge"])


WORDS = st.sampled_from(
    ["env", "-S", "sh", "-c", "python", "-m", "uv", "run", "--", "-X", "A=1", "bridge", "'", "\n"]
) | st.text(max_size=8)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_no_command_line_makes_the_check_raise(argv: list[str]) -> None:
    assert starts_bridge(argv[0], argv[1:]) in (True, False)
