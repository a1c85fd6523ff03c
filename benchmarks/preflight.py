"""What it costs to check a program before it runs: `python -m benchmarks.preflight`.

A program of 200 lines, as models write them, against ten servers with fifty tools each. The best of
many rounds counts, since whatever else the machine does only adds to it.
"""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Callable
from typing import Any

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.guard import check
from bridge.catalog.program.parsing import parse
from bridge.catalog.program.survey import Survey
from bridge.model import Tool

ROUNDS = 60
SERVERS = 10
TOOLS = 50

_STEP = """
    # Step {step}: what the server knows of the topic.
    found_{step} = await mcp_s{server}.tool_{step}(
        query=f"{{topic}} {step}",
        limit={step},
    )
    for item in found_{step}["items"]:
        if item.get("state") == "open":
            total += int(item["count"])
            rows.append(item["title"])
"""


def program() -> str:
    """Return the program."""
    steps = "".join(_STEP.format(step=step, server=step % SERVERS) for step in range(19))
    return (
        "import json\n\n\nasync def main(topic):\n    total = 0\n    rows = []\n"
        f"{steps}    return total, rows\n\n\nprint(json.dumps(await main('release')))\n"
    )


def servers() -> list[ServerEntry]:
    """Return the servers."""
    text, number = {"type": "string"}, {"type": "integer"}
    properties = {"query": text, "limit": number, "state": text, "page": number}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["query"]}
    return [
        ServerEntry(
            name=f"s{index}",
            alias=f"s{index}",
            tools=tool_entries(
                [
                    Tool(server=f"s{index}", name=f"tool_{n}", input_schema=schema)
                    for n in range(TOOLS)
                ]
            ),
            known=True,
        )
        for index in range(SERVERS)
    ]


def best(action: Callable[[], object]) -> float:
    """Return the shortest of many rounds, in milliseconds."""
    shortest = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        action()
        shortest = min(shortest, time.perf_counter() - started)
    return shortest * 1000


def main() -> int:
    """Measure and print."""
    known = servers()
    aliases = {server.name: server.alias for server in known}
    right = program()
    wrong = right.replace("mcp_s3.tool_3(", "mcp_s3.tol_3(").replace("limit=7", "limits=7")
    trees = [parse(right), parse(wrong)]
    lines, parsing = right.count("\n"), best(lambda: parse(right))
    print(f"{lines} lines, {SERVERS * TOOLS} tools, {ROUNDS} rounds, the best of each")
    print(f"  parsing (done once, for all who read)  {parsing:6.2f} ms")
    for label, tree in zip(("a program without mistakes", "with two of them"), trees, strict=True):
        assert isinstance(tree, ast.Module)
        verdict = check_program(Survey(tree), known, aliases)
        spent = best(lambda tree=tree: check_program(Survey(tree), known, aliases))  # type: ignore[misc]
        found = len(verdict.certain)
        print(
            f"  preflight, {label:27} {spent:6.2f} ms = {spent / parsing:.2f} x parsing; {found=}"
        )
    assert isinstance(trees[0], ast.Module)
    survey = Survey(trees[0])
    guard = best(lambda: check(survey))
    ratio = guard / parsing
    print(f"  the guard, for comparison              {guard:6.2f} ms = {ratio:.2f} x parsing")
    return 0


if __name__ == "__main__":
    sys.exit(main())
