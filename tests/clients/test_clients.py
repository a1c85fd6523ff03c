"""What reaches the models of real clients, with a stand-in for the models' APIs on loopback."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.client import MORE, Client
from tests.clients.every import CLIENTS
from tests.clients.exchange import SERVERS, Exchange, play
from tests.clients.model import program
from tests.clients.probes import NEEDLE, SAID, STEPS, STRUCTURED_STEPS, observe, told
from tests.clients.table import PAGE, row, rows
from tests.clients.wires import Received

pytestmark = pytest.mark.node

MAX_SUM_TOKENS = 14
"""What `print(1+1)` may cost, without what the client puts around it."""


@dataclass(frozen=True)
class Seen:
    """A client's two conversations."""

    client: Client
    plain: Exchange
    structured: Exchange

    def received(self, step: str) -> Received:
        return self.plain.received[step]

    def read(self, step: str) -> str:
        return self.client.unwrapped(self.received(step).text)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            client, id=client.program, marks=[pytest.mark.full] * (client.packages == MORE)
        )
        for client in CLIENTS
    ],
)
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Each client, started once for the steps and once more for structured content."""
    client: Client = request.param
    assert client.path.exists(), (
        f"{client.title} is missing; `make test` or `make test-all` installs it"
    )
    directory = tmp_path_factory.mktemp(client.program)
    return Seen(
        client,
        play(client, STEPS, directory / "plain"),
        play(client, STRUCTURED_STEPS, directory / "structured", MCP_BRIDGE_STRUCTURED="content"),
    )


@pytest.mark.slow
def test_a_sum_costs_the_model_at_most_fourteen_tokens(seen: Seen) -> None:
    assert "2" in seen.read("sum")
    assert observe(seen.client, seen.plain, seen.structured).sum_tokens <= MAX_SUM_TOKENS


def test_a_call_s_output_is_what_was_printed(seen: Seen) -> None:
    assert re.fullmatch(rf"{SAID}\s+\[run [0-9a-f]{{8}}\]", seen.read("call").strip())


def test_cut_output_says_how_to_read_on_and_it_works(seen: Seen) -> None:
    assert "read_output(" in seen.read("cut")
    assert NEEDLE in seen.read("read on")


def test_an_error_is_complete(seen: Seen) -> None:
    text = seen.received("raises").text
    for part in ("Traceback", "line 2, in first", "KeyError: 'nmae'"):
        assert part in text
    assert "mcp_workshop.add" in seen.received("misspelt").text


def test_the_servers_names_are_known_before_the_first_call(seen: Seen) -> None:
    assert [name for name in SERVERS if not told(seen.plain, name)] == []


def test_a_picture_arrives_where_the_client_can_show_one(seen: Seen) -> None:
    assert seen.received("picture").pictures == ("image/png",) * seen.client.pictures


@pytest.mark.slow
def test_an_answer_without_a_person_names_the_rule_that_would_decide(
    seen: Seen, tmp_path: Path
) -> None:
    policy = tmp_path / "config.toml"
    policy.write_text('[policy.defaults]\nuntrusted = "ask"\n')
    steps = {"ask": program("print(await mcp_workshop.say(what='x'))")}
    asked = play(seen.client, steps, tmp_path / "ask", MCP_BRIDGE_CONFIG=str(policy))
    text = asked.received["ask"].text
    assert "No person saw the question" in text or "offers no way to ask its user" in text
    assert "[[policy.rules]]" in text


def test_the_published_row_is_what_is_measured(seen: Seen) -> None:
    measured = row(observe(seen.client, seen.plain, seen.structured))
    assert rows(PAGE.read_text(encoding="utf-8")).get(seen.client.title) == measured
