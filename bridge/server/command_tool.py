"""`run_command`: its schema, the parser of its arguments, and its MCP results. Pure.

The tool exists only if the configuration defines command profiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import mcp_types as types

from bridge.commands.line import parse_line
from bridge.errors import InvalidRequestError
from bridge.model import CommandRequest, CommandResult, Json
from bridge.render.structured import structured_command
from bridge.render.text import compact_command
from bridge.server.arguments import checked_arguments, field
from bridge.server.content import Kind, make_tool, output_schema, record_schema, tool_result
from bridge.settings import RecordPlace
from bridge.settings.commands import CommandProfile

COMMAND_TOOL = "run_command"

_STAGE: dict[str, Kind] = {
    **dict.fromkeys(("command", "signal"), "string"),
    "exitCode": "integer",
    **dict.fromkeys(("cutShort", "notStarted"), "boolean"),
    "stderr": ["string"],
}

COMMAND_OUTPUT_SCHEMA = record_schema(
    {
        **dict.fromkeys(("profile", "reason", "error"), "string"),
        "exitCode": "integer",
        "stages": [_STAGE],
        **dict.fromkeys(("stdout", "stderr"), ["string"]),
        "timeoutSeconds": "number",
        **dict.fromkeys(("truncated", "isolation", "usage"), "object"),
    }
)
"""The JSON Schema of a result's record, which omits empty fields."""


def command_tool(profiles: Mapping[str, CommandProfile], place: RecordPlace = "meta") -> types.Tool:
    return make_tool(
        COMMAND_TOOL,
        "Run a command in a sandbox",
        open_world=any(profile.network for profile in profiles.values()),
        description=_description(profiles),
        input_schema=_input_schema(profiles),
        output_schema=output_schema(COMMAND_OUTPUT_SCHEMA, place),
    )


def _description(profiles: Mapping[str, CommandProfile]) -> str:
    lines = [
        (
            "Runs a command, or a pipeline of commands, in a sandbox. There is no shell: quotes "
            "and | work, but nothing is expanded, redirected or chained. Paths are relative to "
            "the workspace. /tmp can be written to, and is gone after each command."
        ),
    ]
    for profile in profiles.values():
        names = [entry.rpartition("/")[2] for entry in profile.executables]
        shown = _join_names(names)
        terms = (
            "network" if profile.network else "no network",
            f"writes: {_writable(profile)}",
            f"timeout: {profile.timeout:g} s, at most {profile.max_timeout:g} s",
            *([f"`env` may set {', '.join(profile.call_env)}"] if profile.call_env else []),
        )
        about = f" {profile.description}" if profile.description else ""
        lines.append(f"Profile {profile.name}: {shown} ({'; '.join(terms)}).{about}")
    return "\n".join(lines)


def _writable(profile: CommandProfile) -> str:
    """Return the writable paths, relative to the workspace."""
    paths = []
    for entry in profile.write:
        path = PurePosixPath(entry)
        if path.is_relative_to(profile.workspace):
            path = path.relative_to(profile.workspace)
        if path == PurePosixPath():
            return "the whole workspace"
        # The file system is not read here; a path with a suffix is most likely a file.
        paths.append(str(path) if path.suffix else f"{path}/")
    return _join_names(paths) or "nothing"


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")


def _input_schema(profiles: Mapping[str, CommandProfile]) -> dict[str, Any]:
    words = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    stages = {"type": "array", "items": words, "minItems": 1}
    longest = max(profile.max_timeout for profile in profiles.values())
    may_lack = " May be left out." if len(profiles) == 1 else ""
    properties = {
        "profile": field("string", f"Which profile to run in.{may_lack}", enum=list(profiles)),
        "command": {
            "anyOf": [{"type": "string"}, words],
            "description": "The command line, or its words.",
        },
        "pipeline": {
            "anyOf": [{"type": "string"}, stages],
            "description": "Instead of `command`: stages parted by |, or the words of each.",
        },
        "workdir": field("string", "Where to run: below the workspace's root, which is also `/`."),
        "stdin": field("string", "What the first command reads."),
        "timeout": field(
            "number",
            "Seconds that all of it may take; each profile has its own maximum.",
            minimum=1,
            maximum=longest,
        ),
    }
    if any(profile.call_env for profile in profiles.values()):
        text = {"type": "string"}
        properties["env"] = field("object", "Variables to set.", additionalProperties=text)
    return {
        "type": "object",
        "properties": properties,
        "required": ["profile"] if len(profiles) > 1 else [],
        "additionalProperties": False,
    }


def parse_command(
    arguments: Mapping[str, Json] | None, profiles: Mapping[str, CommandProfile]
) -> CommandRequest:
    given = checked_arguments(COMMAND_TOOL, arguments, _input_schema(profiles), ("stdin",))
    if ("command" in given) == ("pipeline" in given):
        raise InvalidRequestError("Pass either `command` or `pipeline`.")
    line = given["command"] if "command" in given else given["pipeline"]
    if not isinstance(line, str):
        line = [line] if "command" in given else line
    env, timeout = given.get("env", {}), given.get("timeout")
    if any("\0" in text for text in env.values()):
        raise InvalidRequestError("A variable in `env` has a null character in it.")
    return CommandRequest(
        profile=given.get("profile", next(iter(profiles))),
        stages=parse_line(line) if isinstance(line, str) else tuple(map(tuple, line)),
        workdir=given.get("workdir", ""),
        stdin=given.get("stdin", ""),
        timeout=None if timeout is None else float(timeout),
        env=env,
    )


def command_result(result: CommandResult, place: RecordPlace) -> types.CallToolResult:
    return tool_result(
        [types.TextContent(text=compact_command(result))],
        structured_command(result),
        place,
        is_error=result.status != "success",
    )
