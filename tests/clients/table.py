"""The table in docs/clients.md: a row for each client, made of what was observed."""

from __future__ import annotations

from pathlib import Path

from tests.clients.probes import Observation

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"

BEGIN = "<!-- begin: written by `make clients` -->"
END = "<!-- end: written by `make clients` -->"

EXACT = 100
"""Tokens up to which a number is told as it is; of a larger one the hundreds are."""

HEAD = (
    "client",
    "version",
    "protocol",
    "`run_python`",
    "instructions",
    "servers' names",
    "`print(1+1)`",
    "a traceback",
    "how to read on",
    "picture",
    "link",
    "progress",
    "a question",
    "of text and structured content",
)


def row(seen: Observation) -> str:
    structured_picture = "" if seen.structured_picture or not seen.picture else ", no picture"
    around = f" + {seen.around_tokens}" if seen.around_tokens else ""
    cells = (
        seen.title,
        seen.version,
        seen.protocol,
        f"{'shown' if seen.offered else 'held back'}, {_tokens(seen.tools_tokens)}",
        seen.instructions,
        "told" if seen.names_known else "no",
        f"{seen.sum_tokens}{around}",
        f"{_tokens(seen.error_tokens)} for {seen.text_tokens}",
        "told" if seen.cut_told else "no",
        "shown" if seen.picture else "no",
        "told" if seen.link else "no",
        "asked for" if seen.progress else "no",
        seen.question or "cannot be asked",
        f"{seen.structured}{structured_picture}",
    )
    return _line(*cells)


def rows(page: str) -> dict[str, str]:
    _, _, rest = page.partition(BEGIN)
    lines = rest.partition(END)[0].strip().splitlines()[2:]
    return {line.split("|")[1].strip(): line for line in lines}


def replaced(page: str, new: dict[str, str]) -> str:
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    lines = [_line(*HEAD), _line(*["---"] * len(HEAD)), *({**rows(page), **new}).values()]
    return "\n".join([f"{head}{BEGIN}", "", *lines, "", f"{END}{tail}"])


def _tokens(count: int) -> str:
    return str(count) if count < EXACT else f"{round(count, -2):,}"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
