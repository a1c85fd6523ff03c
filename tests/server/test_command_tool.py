"""`run_command` on the MCP surface."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import jsonschema
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from bridge.errors import InvalidRequestError
from bridge.model import CommandResult, Isolation, StageResult, Usage
from bridge.render.structured import structured_command
from bridge.render.text import compact_command
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.tools import COMMAND_OUTPUT_SCHEMA, command_result, command_tool, parse_command
from bridge.settings.commands import parse_commands
from tests.commands.command_rig import Place, place
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.record import record_of

ONE = parse_commands({"aws": {"executables": ["aws", "/opt/jq"], "workspace": "/w"}}, "c")
TWO = parse_commands(
    {name: {"executables": [name], "workspace": "/w"} for name in ("git", "aws")}, "c"
)


@pytest.fixture
def there() -> Iterator[Place]:
    with place() as made:
        yield made


@pytest.fixture
async def client(there: Place) -> AsyncIterator[Client]:
    settings = there.settings(executables=["cat", "sort"], description="Text.")
    async with (
        engine_on(FakeBackend(), settings, finder=ListFinder()) as opened,
        Client(build_server(opened)) as connected,
    ):
        yield connected


async def test_without_profiles_there_is_no_such_tool(engine: Engine) -> None:
    async with Client(build_server(engine)) as plain:
        names = [tool.name for tool in (await plain.list_tools()).tools]
        assert names == ["run_python", "search_tools"]
        with pytest.raises(MCPError) as refused:
            await plain.call_tool("run_command", {"command": "cat"})
    assert refused.value.error.code == -32602


async def test_with_profiles_the_tool_is_there_and_runs_commands(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"run_python", "search_tools", "run_command"}
    assert "Profile tool: cat, sort (no network; writes: nothing; " in (
        tools["run_command"].description or ""
    )
    came = [
        await client.call_tool("run_command", arguments)
        for arguments in (
            {"command": "cat a.txt | sort -r"},
            {"pipeline": [["cat", "missing"], ["sort"]]},
            {"command": "cat a.txt; rm a.txt"},
        )
    ]
    for result in came:
        jsonschema.validate(record_of(result), COMMAND_OUTPUT_SCHEMA)
    fine, failed, refused = map(record_of, came)
    assert [result.is_error for result in came] == [False, True, True]
    assert (fine["status"], fine["stdout"], fine["exitCode"]) == ("success", ["world", "hello"], 0)
    stages = [(stage["command"], stage["exitCode"]) for stage in fine["stages"]]
    assert stages == [("cat a.txt", 0), ("sort -r", 0)]
    assert "own-seccomp" in fine["isolation"]["layers"]
    assert "stage 1 of 2 (`cat missing`) exited with status 1" in failed["summary"]
    assert "No such file" in str(failed["stages"][0]["stderr"])
    assert refused["status"] == "validation_error"
    assert "one call for each command" in refused["error"]
    with pytest.raises(MCPError) as unknown:
        await client.call_tool("run_shell", {})
    assert "run_command" in str(unknown.value)


def test_programs_can_have_structured_content() -> None:
    made = CommandResult(run_id="r", status="success", summary="s", stdout="out\n")
    result = command_result(made, "content")
    assert command_tool(ONE, "content").output_schema == COMMAND_OUTPUT_SCHEMA
    assert command_tool(ONE).output_schema is None
    assert (result.structured_content, result.meta) == (structured_command(made), None)


def test_the_schema_takes_what_the_parser_takes() -> None:
    for profiles, required in ((ONE, []), (TWO, ["profile"])):
        schema = command_tool(profiles).input_schema
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["required"] == required
        assert schema["properties"]["profile"]["enum"] == list(profiles)


def test_the_description_says_what_each_profile_allows() -> None:
    base = {"executables": ["jq"], "workspace": "/w"}
    tables = {
        "one": {**base, "write": ["out", "/w/log.txt", "/srv/d"], "max_timeout": 60, "timeout": 5},
        "two": {**base, "write": ["."], "network": True, "description": "T."},
    }
    tool = command_tool(parse_commands(tables, "c"))
    assert (tool.description or "").splitlines()[1:] == [
        "Profile one: jq (no network; writes: out/, log.txt, /srv/d/; timeout: 5 s, at most 60 s).",
        "Profile two: jq (network; writes: the whole workspace; timeout: 120 s, at most 300 s). T.",
    ]
    assert tool.input_schema["properties"]["timeout"]["maximum"] == 300


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ({"command": "aws s3 ls | jq ."}, (("aws", "s3", "ls"), ("jq", "."))),
        ({"command": ["aws", "a|b", "$x", "*"]}, (("aws", "a|b", "$x", "*"),)),
        ({"pipeline": "aws x|jq"}, (("aws", "x"), ("jq",))),
        ({"pipeline": [["aws"], ["jq", ""]], "workdir": None}, (("aws",), ("jq", ""))),
    ],
)
def test_commands_come_as_text_or_as_words(arguments: dict[str, Any], stages: object) -> None:
    assert parse_command(arguments, ONE).stages == stages


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "either `command` or `pipeline`"),
        ({"command": "aws", "pipeline": "aws"}, "either"),
        ({"command": 1}, "command"),
        ({"command": []}, "must not be empty"),
        ({"command": ["aws", 1]}, "command[1]"),
        ({"pipeline": [["aws"], []]}, "must not be empty"),
        ({"command": "aws", "profile": "x"}, "must be 'aws'"),
        ({"command": "aws", "shell": True}, "no argument 'shell'"),
        ({"command": "aws", "stdin": 1}, "stdin must be a string"),
        ({"command": "aws", "timeout": "soon"}, "timeout must be a number"),
        ({"command": "aws", "timeout": float("nan")}, "not nan"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_command(arguments, ONE)
    assert told in str(refused.value)


def test_a_profile_must_be_named_among_several() -> None:
    with pytest.raises(InvalidRequestError):
        parse_command({"command": "aws"}, TWO)
    assert parse_command({"command": "aws", "profile": "aws"}, TWO).profile == "aws"


def test_the_text_says_what_a_model_needs_and_the_record_says_all() -> None:
    result = CommandResult(
        run_id="r",
        status="error",
        reason="crash",
        summary="stage 1 of 2 (`a`) was ended by SIGKILL.",
        error="stage 1 of 2 (`a`) was ended by SIGKILL. Try less.",
        profile="aws",
        stages=(
            StageResult(words=("a", "b c"), signal=9, stderr="oh\n", cut_short=True),
            StageResult(words=("d",), exit_code=0),
        ),
        stdout="out",
        truncated={"stdout": 7},
        timeout_seconds=5,
        isolation=Isolation(backend="bubblewrap", weaker=("no network: x",)),
        usage=Usage(wall_ms=3),
    )
    text = compact_command(result)
    assert text.splitlines() == [
        "out",
        "[stderr of stage 1]",
        "oh",
        "[truncated] 7 bytes of stdout were dropped. Filter or count in a later stage.",
        "[error] stage 1 of 2 (`a`) was ended by SIGKILL. Try less.",
    ]
    fields = structured_command(result)
    jsonschema.validate(json.loads(json.dumps(fields)), COMMAND_OUTPUT_SCHEMA)
    assert fields["stages"] == [
        {"command": "a 'b c'", "signal": "SIGKILL", "cutShort": True, "stderr": ["oh"]},
        {"command": "d", "exitCode": 0},
    ]
    quiet = CommandResult(run_id="r", status="success", summary="s", stages=result.stages[1:])
    assert compact_command(quiet) == "The command succeeded without output."
