"""The tools next to `run_python`: their schemas, the parsers of their arguments, and their results.

The description of `search_tools` does not depend on the configuration, so clients can cache it.
`run_command` exists only if the configuration defines command profiles. Its command line is split
into stages of words by the quoting rules of POSIX `sh`. Every other character that a shell would
act on is refused with an alternative, because the author expects its effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import mcp_types as types

from bridge.catalog.docs import Detail
from bridge.catalog.search import DEFAULT_LIMIT, MAX_LIMIT
from bridge.errors import BridgeError, InvalidRequestError
from bridge.inventory.configuration import waiting_line
from bridge.inventory.guide import has_match, starting_line
from bridge.model import CommandRequest, CommandResult, Json
from bridge.render.structured import structured_command
from bridge.render.text import compact_command
from bridge.runs import Engine
from bridge.server.arguments import checked_arguments, field
from bridge.server.content import make_tool, record_schema, result_or_error, tool_result
from bridge.settings import RecordPlace
from bridge.settings.commands import CommandProfile
from bridge.text import clip, paragraphs

SEARCH_TOOL = "search_tools"

MAX_TEXT_CHARS = 60_000  # Of a result: servers may describe fifty hits at any length.


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    query: str
    limit: int = DEFAULT_LIMIT
    server: str | None = None
    detail: Detail = "summary"


def search_tool() -> types.Tool:
    return make_tool(
        SEARCH_TOOL,
        "Search the tools of all MCP servers",
        reads=True,
        _meta={
            "anthropic/searchHint": "find tools of the user's MCP servers, to call with run_python"
        },
        description=(
            "Find tools of the user's MCP servers by what they do. Returns signatures that "
            "run_python programs can call, best first."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "query": field("string", 'In a few words: "create issue".'),
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_LIMIT,
                    "default": DEFAULT_LIMIT,
                },
                "server": field("string", "Only this server's tools."),
                "detail": field(
                    "string",
                    '"full" adds schemas and examples.',
                    enum=["summary", "full"],
                    default="summary",
                ),
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )


async def search_result(
    engine: Engine, arguments: Mapping[str, Json] | None, principal: str
) -> types.CallToolResult:
    """Return the result of a search, or of its failure; without a principal, no skills."""
    return await result_or_error("search", _search(engine, arguments, principal), _error_result)


def parse_search(arguments: Mapping[str, Json] | None) -> SearchRequest:
    given = checked_arguments(SEARCH_TOOL, arguments, search_tool().input_schema, ("query",))
    if not given["query"].strip():
        message = f"{SEARCH_TOOL} needs `query`: what the tool should do, in a few words."
        raise InvalidRequestError(message, remedy='For example "create issue".')
    # Some clients write whole numbers with a point.
    return SearchRequest(**{**given, "limit": int(given.get("limit", DEFAULT_LIMIT))})


async def _search(
    engine: Engine, arguments: Mapping[str, Json] | None, principal: str
) -> types.CallToolResult:
    request = parse_search(arguments)
    servers = engine.servers
    await servers.refresh()
    only = None if request.server is None else servers.resolve(request.server)
    names = servers.names() if only is None else (only,)
    skills = only is None and engine.skills.may_list(principal)
    found, errors = await engine.guide.search_servers(
        names, request.query, request.limit, request.detail, server=only, skills=skills
    )
    starting = servers.starting_servers(errors)
    left_out = {
        name: clip((error.message.splitlines() or [error.code])[0], 160)
        for name, error in errors.items()
    }
    document: dict[str, Any] = {"tools": found}
    if left_out:
        document["leftOut"] = left_out
    text = _text(request, found, left_out, names, starting)
    if only is None and servers.discovery.proposed:
        document["notApproved"] = [entry.name for entry in servers.discovery.proposed[:MAX_LIMIT]]
        if not has_match(found):
            # One of them may have a matching tool.
            text = f"{text}\n{waiting_line(servers.discovery.proposed)}"
    return tool_result([types.TextContent(text=text)], document, engine.settings.structured)


def _text(
    request: SearchRequest,
    found: Sequence[Mapping[str, Any]],
    left_out: Mapping[str, str],
    names: Sequence[str],
    starting: Sequence[str],
) -> str:
    lines = [starting_line(starting, names)] if starting else []
    failed = [name for name in left_out if name not in starting]
    if has_match(found):
        lines += ["Best first. Call them in run_python, each with `await`:", *_hits(found)]
    elif found and not starting:
        other = "such as a verb and what it acts on, or the name of a server."
        lines += ["Perhaps:", *_hits(found), f"Otherwise try other words, {other}"]
    elif not starting:
        lines.append(_no_hits_text(request, names))
    lines += [f"Not searched: {name}: {left_out[name]}" for name in failed[:5]]
    if len(failed) > 5:
        lines.append(f"Not searched either: {len(failed) - 5} more servers.")
    return "\n".join(lines)


def _hits(found: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    room = MAX_TEXT_CHARS
    for number, docs in enumerate(found):
        text = "\n".join(hit_lines(docs))
        room -= len(text)
        if room < 0 and number:
            lines.append(f"{len(found) - number} more did not fit; lower `limit` or `detail`.")
            break
        lines.append(text[:MAX_TEXT_CHARS])
    return lines


def hit_lines(docs: Mapping[str, Any]) -> list[str]:
    """Return a hit's text for the model; all lines but the signature are indented."""
    lines = [docs["signature"]]
    if docs.get("description"):
        # Every line is indented: at the margin it would look like the bridge's text.
        lines += [f"    {line}" for line in paragraphs(docs["description"].strip())]
    if docs.get("also"):
        lines.append(f"    The same: {', '.join(docs['also'])}")
    for key in ("inputSchema", "outputSchema"):
        if key in docs:
            schema = json.dumps(docs[key], ensure_ascii=False, separators=(",", ":"))
            lines.append(f"    {key}: {' '.join(paragraphs(schema))}")
    if docs.get("example"):
        lines.append(f"    {docs['example']}")
    return lines


def _no_hits_text(request: SearchRequest, names: Sequence[str]) -> str:
    if not names:
        return "No MCP servers are configured, so there are no tools to find."
    if request.server is not None:
        return (
            f"No tool of {names[0]} fits {request.query!r:.100}. Try other words, leave out "
            f"`server`, or list its tools: print(await runtime.list_tools({names[0]!r}))."
        )
    return (
        f"No tool fits {request.query!r:.100}. Try other or fewer words, such as a verb and what "
        'it acts on ("create issue"), or the name of a server.'
    )


def _error_result(error: BridgeError) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)


COMMAND_TOOL = "run_command"

COMMAND_OUTPUT_SCHEMA = record_schema(
    {
        **dict.fromkeys(("profile", "reason", "error"), "string"),
        "exitCode": "integer",
        "stages": [
            {
                **dict.fromkeys(("command", "signal"), "string"),
                "exitCode": "integer",
                **dict.fromkeys(("cutShort", "notStarted"), "boolean"),
                "stderr": ["string"],
            }
        ],
        **dict.fromkeys(("stdout", "stderr"), ["string"]),
        "timeoutSeconds": "number",
        **dict.fromkeys(("truncated", "isolation", "usage"), "object"),
    }
)


def command_tool(profiles: Mapping[str, CommandProfile], place: RecordPlace = "meta") -> types.Tool:
    return make_tool(
        COMMAND_TOOL,
        "Run a command in a sandbox",
        open_world=any(profile.network for profile in profiles.values()),
        description=_description(profiles),
        input_schema=_input_schema(profiles),
        # A client with a schema refuses results without structured content.
        output_schema=COMMAND_OUTPUT_SCHEMA if place == "content" else None,
    )


def _description(profiles: Mapping[str, CommandProfile]) -> str:
    text = (
        "Runs a command, or a pipeline of commands, in a sandbox. There is no shell: quotes and | "
        "work, but nothing is expanded, redirected or chained. Paths are relative to the "
        "workspace. /tmp can be written to, and is gone after each command."
    )
    for profile in profiles.values():
        names = _join_names([entry.rpartition("/")[2] for entry in profile.executables])
        terms = (
            "network" if profile.network else "no network",
            f"writes: {_writable(profile)}",
            f"timeout: {profile.timeout:g} s, at most {profile.max_timeout:g} s",
            *([f"`env` may set {', '.join(profile.call_env)}"] if profile.call_env else []),
        )
        about = f" {profile.description}" if profile.description else ""
        text += f"\nProfile {profile.name}: {names} ({'; '.join(terms)}).{about}"
    return text


def _writable(profile: CommandProfile) -> str:
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


_REFUSED = {
    ";": ("separates commands", "Make one call for each command."),
    "&": ("separates commands or runs one in the background", "Make one call for each command."),
    "||": ("runs a command if the one before fails", "Make one call for each command."),
    "|&": ("passes stderr on, too", "Each stage's stderr is returned."),
    "<": ("reads from a file", "Pass the text as `stdin`, or name the file as an argument."),
    ">": ("writes to a file", "Output is returned; to keep it, use an option of the command."),
    "(": ("starts a subshell", "Make one call for each command."),
    ")": ("ends a subshell", "Make one call for each command."),
    "`": ("substitutes a command's output", "Run that command first, then use what it printed."),
    "$": ("expands a variable or a command", "Write the value itself."),
    **dict.fromkeys("*?[", ("matches file names", "Name each file.")),
    **dict.fromkeys("{}", ("expands to several words", "Write each word.")),
    **dict.fromkeys("\n\r", ("is a line break", "Make one call for each command, on one line.")),
    "#": ("starts a comment", "Leave it out."),
}
"""What a shell would do, and what to do instead."""

_TOKEN = re.compile(
    r"(?P<blank>[ \t]+|\\\n)|(?P<bar>\|[|&]?)|'(?P<single>[^']*)'"
    r'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<text>[\w./:=,@%+-]+)|(?P<plain>.)',
    re.DOTALL,
)
_IN_DOUBLE = re.compile(r'\\(?P<escaped>[$`"\\\n])|(?P<expanded>`|\$(?=[\w{(@*#?$!-]))')


def parse_line(text: str) -> tuple[tuple[str, ...], ...]:
    line = text.strip(" \t\r\n")
    if not line:
        raise InvalidRequestError("The command line is empty.")
    stages: list[list[str]] = [[]]
    within_word = False
    for token in _TOKEN.finditer(line):
        if token[0] == "\\\n":
            continue  # the line continues
        if token["bar"]:
            if token[0] in _REFUSED:
                raise _shell_error(token[0])
            stages.append([])
        elif not token["blank"]:
            if not within_word:
                stages[-1].append("")
            stages[-1][-1] += _resolve_token(token, begins=not within_word)
        within_word = not (token["bar"] or token["blank"])
    if not all(stages):
        raise InvalidRequestError("There is no command on one side of a |.")
    return tuple(map(tuple, stages))


def _resolve_token(token: re.Match[str], *, begins: bool) -> str:
    kind = str(token.lastgroup)
    text = token[kind]
    if kind == "double":
        return _IN_DOUBLE.sub(_unescape, text)
    if kind != "plain":
        return text
    # Quotes and backslashes remain alone if their token has no end.
    if text == "\\":
        raise InvalidRequestError("The command line ends in a backslash with nothing after it.")
    if text in "'\"":
        which = "single" if text == "'" else "double"
        raise InvalidRequestError(f"A {which} quote is opened and never closed.")
    if text in _REFUSED and (begins or text != "#"):
        raise _shell_error(text)
    return text


def _unescape(match: re.Match[str]) -> str:
    if match["expanded"]:
        raise _shell_error(match["expanded"], " within double quotes")
    return match["escaped"].removeprefix("\n")


def _shell_error(text: str, where: str = "") -> InvalidRequestError:
    meaning, instead = _REFUSED[text]
    name = text if text.isprintable() else repr(text)
    message = f"{name}{where} {meaning} in a shell, and there is no shell here. {instead}"
    quote = "If it is meant as plain text, put it in single quotes."
    return InvalidRequestError(f"{message} {quote}")
