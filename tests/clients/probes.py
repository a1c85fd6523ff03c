"""What of the bridge's answers reaches a client's model: the calls, and what is seen of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bridge.text import count_tokens
from tests.clients.client import Client
from tests.clients.exchange import SERVERS, Exchange, play
from tests.clients.model import FIND, Call, Step, program
from tests.clients.wires import Asked, Json, Received
from tests.png import write_png

SAID = "forty-two apples"
"""What a tool answers."""

HALF = "half of it is done"
"""What a program says of its progress."""

NEEDLE = "row 3000 "
"""In the middle of what is too long to be shown."""

_PICTURE = base64.b64encode(write_png(4, 4, lambda x, y: (255, 0, 0))).decode()
_SHOW = f'import base64\ndisplay(base64.b64decode("{_PICTURE}"))'

_FORM = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
_QUESTION = {"message": "Which colour?", "requestedSchema": _FORM}

_SECONDS = re.compile(r"\b\d+\.\d+ seconds\b")
_RUN = re.compile(r"\[run [0-9a-f]{8}\]")
_KEPT = re.compile(r'read_output\(\\?"(\w+)\\?"')
"""How a result says that more of it is kept."""


def _read_on(results: Sequence[Received]) -> Call:
    found = _KEPT.search(results[-1].text)
    if found is None:
        return program("print('nothing said how to read on')")
    return program(f'print(await runtime.read_output("{found[1]}", find="{NEEDLE}"))')


STEPS: Mapping[str, Step] = {
    "sum": program("print(1+1)"),
    "call": program(f'print(await mcp_workshop.say(what="{SAID}"))'),
    "cut": program("for n in range(6000): print('row', n, 'of a table that is much too long')"),
    "read on": _read_on,
    "raises": program('def first(row):\n    return row["nmae"]\n\nfirst({"name": 1})'),
    "misspelt": program("print(await mcp_workshop.ad(a=1, b=2))"),
    "picture": program(_SHOW),
    "link": program('open("out/report.csv", "w").write("a,b\\n1,2\\n")'),
    "progress": program(f'runtime.progress(1, 2, "{HALF}")\nprint("end")'),
    "question": program(
        f'print(await mcp_inquirer.ask(method="elicitation/create", params={_QUESTION}))'
    ),
}
"""What a model does, by name."""

STRUCTURED_STEPS: Mapping[str, Step] = {"sum": program("print(1+1)"), "picture": program(_SHOW)}
"""What it does where results have structured content as well."""


@dataclass(frozen=True)
class Observation:
    """What reaches the model of one client. Tokens are the bridge's own estimate.

    Attributes:
        protocol: The version that client and bridge agreed on.
        offered: Whether run_python is among the tools of the first request.
        tools_tokens: What the bridge's tools cost, in that request or once they are searched for.
        instructions: How many of the bridge's instructions stand in it: "all", "some" or "none".
        names_known: Whether it names all servers.
        sum_tokens: What `print(1+1)` costs, without what the client puts around it.
        around_tokens: What that costs.
        error_tokens: What a traceback costs with all that the client makes of it.
        text_tokens: What the bridge had sent of that as text.
        cut_told: Whether cut output says how to read on.
        picture: Whether a picture arrives as one.
        link: Whether a link arrives as more than the text tells.
        progress: Whether the client asks for it; to no model it is told.
        question: How the client answers a server's question when no one is there; empty if it
            cannot be asked.
        structured: What of a result with text and structured content arrives.
        structured_picture: Whether a picture still does then.
    """

    title: str
    version: str
    protocol: str
    offered: bool
    tools_tokens: int
    instructions: str
    names_known: bool
    sum_tokens: int
    around_tokens: int
    error_tokens: int
    text_tokens: int
    cut_told: bool
    picture: bool
    link: bool
    progress: bool
    question: str
    structured: str
    structured_picture: bool


def observe(client: Client, plain: Exchange, structured: Exchange) -> Observation:
    """Return what was seen when a client's model took `STEPS` and `STRUCTURED_STEPS`."""
    # What differs from run to run costs now a token more and now less.
    received = {
        name: _RUN.sub("[run 1a2b3c4d]", _SECONDS.sub("0.0000 seconds", each.text))
        for name, each in plain.received.items()
    }
    bare = client.unwrapped(received["sum"])
    answer = re.search(r"'action': '(\w+)'", received["question"])
    return Observation(
        title=client.title,
        version=client.version,
        protocol=protocol(plain),
        offered=bool(offered_tools(plain.first)),
        tools_tokens=tools_tokens(plain),
        instructions=_instructions(plain),
        names_known=all(told(plain, name) for name in SERVERS),
        sum_tokens=count_tokens(bare),
        around_tokens=count_tokens(received["sum"]) - count_tokens(bare),
        error_tokens=count_tokens(received["raises"]),
        text_tokens=count_tokens(_RUN.sub("[run 1a2b3c4d]", sent_text(plain, "raises"))),
        cut_told=bool(_KEPT.search(received["cut"])),
        picture=bool(plain.received["picture"].pictures),
        link=received["link"].count("bridge://") > sent_text(plain, "link").count("bridge://"),
        progress="progressToken" in plain.call.get("_meta", {}),
        question=answer[1] if answer else "",
        structured=_of_both(structured.received["sum"].text),
        structured_picture=bool(structured.received["picture"].pictures),
    )


def observed(client: Client, directory: Path) -> Observation:
    plain = play(client, STEPS, directory / "plain")
    structured = play(
        client, STRUCTURED_STEPS, directory / "structured", MCP_BRIDGE_STRUCTURED="content"
    )
    return observe(client, plain, structured)


def told(exchange: Exchange, text: str) -> bool:
    """Return whether a model has read a text before its first call."""
    tools = map(json.dumps, offered_tools(exchange.first))
    read = "\n".join([exchange.first.told, *tools])
    # Some clients indent it.
    return " ".join(text.split()) in " ".join(read.split())


def offered_tools(asked: Asked) -> list[Json]:
    ours = ("run_python", "search_tools", "run_command")
    return [tool for name, tool in asked.tools.items() if name.endswith(ours)]


def tools_tokens(exchange: Exchange) -> int:
    """Return what the bridge's tools cost a model, at once or when it has searched for them."""
    tools = offered_tools(exchange.first) or offered_tools(exchange.last)
    found = [each.text for each in exchange.last.results if each.call.startswith(FIND)]
    return sum(map(count_tokens, map(json.dumps, tools) if tools else found))


def protocol(exchange: Exchange) -> str:
    hello = exchange.hello
    return str(hello.get("protocolVersion") or hello["supportedVersions"][0])


def sent_text(exchange: Exchange, step: str) -> str:
    blocks = exchange.sent[step]["content"]
    return "\n".join(block["text"] for block in blocks if block["type"] == "text")


def _instructions(exchange: Exchange) -> str:
    text = exchange.hello["instructions"]
    begun = text[: len(text) // 3]
    return "all" if told(exchange, text) else "some" if told(exchange, begun) else "none"


def _of_both(text: str) -> str:
    record = '"runId"' in text
    alone = re.sub(r"\{.*\}", "", text, flags=re.DOTALL) if record else text
    return " and ".join(["JSON"] * record + ["text"] * bool(re.search(r"\b2\b", alone)))
