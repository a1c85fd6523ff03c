"""Files of a machine, and which servers a search uses or skips, and why.

searches.txt has the machines: lines with "?" have fields of the context, those with "+" a
directory, and others a file. `UPDATE_FROZEN=1` writes the outcomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from bridge.discovery.finder import Discovery, DiscoveryContext, discover
from bridge.model import ServerSpec
from tests.discovery.writing import write
from tests.golden_texts import assert_outcomes

pytestmark = pytest.mark.guarantee(
    "forbidden-servers", "names-of-the-user", "project-servers", "working-directory"
)

GOLDEN = Path(__file__).with_name("searches.txt")


def prepare(lines: list[str], root: Path) -> DiscoveryContext:
    """Write a machine's files; return its context."""
    context = DiscoveryContext(
        home=root / "home",
        cwd=root / "home" / "repo",
        platform="linux",
        environ={"TOKEN": "the-secret"},
        system_root=root / "system",
        project_servers="all",
    )
    context.cwd.mkdir(parents=True)
    for line in lines:
        kind, _, rest = line.replace("@ROOT", str(root)).partition(" ")
        if kind == "+":
            (root / rest).mkdir(parents=True, exist_ok=True)
        elif kind == "?":
            given = json.loads(rest)
            places = {key: Path(given[key]) for key in ("cwd", "extra_config") if key in given}
            context = replace(context, **{**given, **places})
        else:
            write(root / kind, json.loads(rest))
    return context


def told(found: Discovery) -> Iterator[str]:
    for spec in found.servers:
        yield f"{spec.name}: {_command_line(spec)} ({spec.source.client}, {spec.source.scope})"
        yield from (f"{spec.name} too: {each.path} ({each.key})" for each in spec.also)
        yield from (f"{spec.name} differs: {each}" for each in spec.differences)
    yield from (f"skipped: {each}" for each in found.skipped)
    yield from (f"proposed: {each}" for each in found.proposed)
    yield from (f"warning: {each}" for each in found.warnings)
    yield from (f"limit: {source} {seconds:g} s" for source, seconds in found.own_limits.items())


def _command_line(spec: ServerSpec) -> str:
    words = " ".join([spec.url or spec.command, *spec.args])
    return f"{words} with {json.dumps(spec.env)}" if spec.env else words


def test_what_a_search_finds_on_each_machine(tmp_path: Path) -> None:
    roots = (tmp_path / str(number) for number in count())

    def outcomes(lines: list[str]) -> list[str]:
        root = next(roots)
        return [
            line.replace(str(root), "@ROOT") for line in told(discover(prepare(lines[1:], root)))
        ]

    assert_outcomes(GOLDEN, outcomes)
