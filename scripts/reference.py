"""Write docs/reference/ from the code: settings, the tools, errors, what programs find, commands.

Every text about a single item is read from the code: from help texts, docstrings, defaults and
schemas. Of the result it is read as well which fields there are: a result with everything in it is
made and rendered. The pages are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import bridge.errors as faults
import bridge.settings as package
from bridge.cli.app import COMMANDS, PROGRAM, SETTINGS_PANEL, describe_command, make_command, row_of
from bridge.guest.api import runtime as mcp_api
from bridge.guest.api import values
from bridge.guest.worker import environment
from bridge.model import CommandResult, Directory, Limits, RunResult, ServerSettings
from bridge.render import structured as rendered
from bridge.sandbox.backend import limits_for
from bridge.server.arguments import OUTPUT_SCHEMA, input_schema
from bridge.server.content import RECORD_KEY
from bridge.server.tools import COMMAND_OUTPUT_SCHEMA, COMMAND_TOOL, command_tool, search_tool
from bridge.settings import (
    FLAGS,
    OTHER_VARIABLES,
    PROFILE_KEYS,
    SETTINGS,
    ProfileSpec,
    Settings,
    dependencies,
    directories,
    kubernetes,
    parsers,
    policy,
    variable,
)
from bridge.settings import fields as declared
from bridge.settings.commands import CommandProfile
from scripts import guarantees
from scripts.docstrings import attributes, prose, section, summary
from scripts.samples import nested, sample

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"

NOTICE = "<!-- Written by `make reference` from the code. Change the code, and run it again. -->"

Row = Sequence[str]


# --- Markdown -------------------------------------------------------------------------------------


def table(head: Row, rows: Iterable[Row]) -> list[str]:
    """Return the lines of a table, with a blank one behind."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return [*lines, ""]


def _row(cells: Row) -> str:
    inner = " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells)
    return f"| {inner} |"


def code(text: str) -> str:
    """Return a text in the type of code; nothing for nothing."""
    return f"`{text}`" if text else ""


def page(title: str, about: str, *parts: Iterable[str]) -> str:
    """Return a whole page."""
    body = "\n".join(line for part in parts for line in part)
    return f"{NOTICE}\n\n# {title}\n\n{about}\n\n{body.rstrip()}\n"


# --- settings -------------------------------------------------------------------------------------


def kind_of(parse: Callable[..., Any]) -> str:
    """Return which values a parser takes: what its docstring says it returns, and its bounds."""
    given = inspect.getclosurevars(inspect.unwrap(parse)).nonlocals
    if item := given.get("item"):
        return f"{kind_of(item)}, or a list of such"
    if words := given.get("options"):
        return ", ".join(map(code, words))
    text = summary(parse).removeprefix("Return ").rstrip(".")
    text += f" of {given['what']}" if "what" in given else ""
    written = parsers.size_text if _is_size(parse) else "{:,}".format
    bounds = [f"{word} {written(given[word])}" for word in ("least", "most") if word in given]
    return (
        f"{text}, {' and '.join(bounds)}".replace("least", "at least").replace("most", "at most")
        if bounds
        else text
    )


def default_text(value: object, parse: Callable[..., Any] | None = None) -> str:
    """Return a default as it would be written; nothing where there is none."""
    if value in (None, (), "", Path(), frozenset(), {}) or dataclasses.is_dataclass(value):
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple):
        return ", ".join(default_text(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(code(f"{key} = {each}") for key, each in value.items())
    if isinstance(value, int) and parse is not None and _is_size(parse):
        return code(parsers.size_text(value))
    return code(f"{value:g}" if isinstance(value, float) else str(value))


def _is_size(parse: Callable[..., Any]) -> bool:
    return parse is parsers.parse_size or "size.<locals>" in parse.__qualname__


def settings_page() -> str:
    """Return the page on settings."""
    return page(
        "Settings",
        f"{summary(package)} Sizes are in bytes, or with a unit: `512m`, `1g`.",
        _settings(),
        _other_variables(),
        ["## Tables of `config.toml`", ""],
        _profiles(),
        _policy(),
        _keys("[dependencies]", *_declared(dependencies.Dependencies)),
        _keys("[kubernetes]", *_declared(kubernetes.Kubernetes)),
        _keys("[directories.NAME]", directories.KEYS, Directory, {"mode": "writable"}),
        _keys("[commands.NAME]", *_declared(CommandProfile)),
        _servers_table(),
        _limits(),
    )


def _settings() -> Iterator[str]:
    texts, defaults = attributes(Settings), Settings()
    yield "## Keys, variables and flags"
    yield ""
    rows = []
    for name, each in SETTINGS.items():
        names = [code(name), code(variable(name))]
        names += [code(f"--{name.replace('_', '-')}")] if name in FLAGS else []
        default = default_text(getattr(defaults, name), each["parse"])
        rows.append(["<br>".join(names), default, kind_of(each["parse"]), texts[name]])
    yield from table(["key, variable, flag", "default", "value", "what it does"], rows)


def _other_variables() -> Iterator[str]:
    yield "Other variables:"
    yield ""
    rows = (
        [code(f"{name}*" if name.endswith("_") else name), text]
        for name, text in OTHER_VARIABLES.items()
    )
    yield from table(["variable", "what it says"], rows)


def _profiles() -> Iterator[str]:
    yield from ["### `[profiles.NAME]`", ""]
    yield prose(ProfileSpec).partition("\n\n")[2]
    yield ""
    rows = [[code(name), text] for name, text in section(ProfileSpec, "Keys").items()]
    strict, standard = Settings(profile="strict"), Settings()
    changed = [
        code(f"{name} = {default_text(getattr(strict, name)).strip('`')}")
        for name in SETTINGS
        if name != "profile" and getattr(strict, name) != getattr(standard, name)
    ]
    yield f"Strict always has {', '.join(changed)}, and the [limits](#limits-of-a-run) below."
    yield ""
    names = ", ".join(map(code, sorted(PROFILE_KEYS)))
    yield from table(["key", "what it says"], [*rows, [names, "as above"]])


def _keys(
    title: str,
    keys: Mapping[str, Callable[..., Any]],
    shape: type,
    called: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the section on a table, whose keys fill a dataclass; `called` has fields by keys."""
    texts, found = attributes(shape), {each.name: each for each in dataclasses.fields(shape)}
    yield from [f"### `{title}`", ""]
    rows = []
    for key, parse in keys.items():
        each = found[(called or {}).get(key, key)]
        needed = each.default is each.default_factory is dataclasses.MISSING
        default = "needed" if needed else default_text(_default(each), parse)
        # Of one that is called otherwise, the default may be written otherwise.
        default = "" if isinstance(each.default, bool) and each.name != key else default
        rows.append([code(key), default, kind_of(parse), _unset(texts[each.name])])
    yield from table(["key", "default", "value", "what it says"], rows)


def _declared(shape: type) -> tuple[dict[str, Callable[..., Any]], type, dict[str, str]]:
    """Return the parsers of a dataclass's keys, itself, and its fields by their keys."""
    found = declared.keys(shape)
    parsers_of = {key: each.metadata["parse"] for key, each in found.items()}
    return parsers_of, shape, {key: each.name for key, each in found.items()}


def _unset(text: str) -> str:
    """Return a text in which a value that is not there is called as the file has it."""
    return re.sub(r"\bNone\b", "not set", text)


def _servers_table() -> Iterator[str]:
    yield from ["### `[servers.NAME]`", ""]
    texts = section(ServerSettings, "Attributes")
    rows = ([code(key), kind_of(parse), texts[key]] for key, parse in package.SERVER_KEYS.items())
    yield from table(["key", "value", "what it says"], rows)


def _policy() -> Iterator[str]:
    """Yield the sections on the policy, and on the tables in it."""
    waiting: list[tuple[str, type]] = [("policy", policy.PolicySpec)]
    while waiting:
        title, shape = waiting.pop(0)
        inner: list[tuple[str, type]] = []
        yield from _policy_table(title, shape, inner)
        waiting = inner + waiting


def _policy_table(title: str, shape: type, inner: list[tuple[str, type]]) -> Iterator[str]:
    """Yield a section, and put the tables in it, with their titles, into `inner`."""
    texts, hints = attributes(shape), typing.get_type_hints(shape)
    many = dataclasses.is_dataclass(shape) and title.endswith("[]")
    title = title.removesuffix("[]")
    yield from [f"### `{f'[[{title}]]' if many else f'[{title}]'}`", "", _unset(summary(shape)), ""]
    rows = []
    for each in dataclasses.fields(shape):
        if not each.metadata:
            continue
        parse, key = each.metadata["parse"], each.metadata["key"] or each.name
        below = nested(hints[each.name])
        required = each.default is each.default_factory is dataclasses.MISSING
        default = "needed" if required else default_text(_default(each), parse)
        text = _unset(texts[each.name])
        if below is not None and parse.__doc__ is None:
            name, named = f"{title}.{key}", "glob" in texts[each.name].partition(" ")[0].lower()
            tables = hints[each.name] is not below
            inner.append((f"{name}.GLOB" if named else f"{name}[]" if tables else name, below))
            rows.append([code(key), "", "tables" if tables else "a table", text])
        else:
            rows.append([code(key), default, kind_of(parse), text])
    yield from table(["key", "default", "value", "what it says"], rows)


def _default(each: dataclasses.Field[Any]) -> object:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return each.default


def _limits() -> Iterator[str]:
    """Yield the limits of a run with the defaults, and what the strict profile makes of them."""
    yield from [
        "## Limits of a run",
        "",
        "With the default settings, and in the strict profile:",
        "",
    ]
    settings, texts = (Settings(), Settings(profile="strict")), attributes(Limits)
    rows = []
    for each in dataclasses.fields(Limits):
        both = [getattr(limits_for(one), each.name) for one in settings]
        if each.name.endswith("_bytes"):
            both = [parsers.size_text(value) for value in both]
        rows.append([code(each.name), *map(default_text, both), _unset(texts[each.name])])
    yield from table(["limit", "standard", "strict", "what it says"], rows)


# --- tools ----------------------------------------------------------------------------------------


def tool_page() -> str:
    """Return the page on the tools, their arguments and results."""
    defaults = Settings()
    profile = CommandProfile(name="NAME", workspace=Path("/"), executables=("true",))
    both = {name: dataclasses.replace(profile, name=name) for name in ("NAME", "OTHER")}
    run = rendered.to_structured(sample(RunResult))
    command = rendered.structured_command(sample(CommandResult))
    found: dict[type, _Object] = {}
    return page(
        "Tools",
        "What clients call, and what they get. The text of a result is for the model. Its record, "
        f"for programs, is in `_meta` under `{RECORD_KEY}`, or with the setting `structured` at "
        "`content` in `structuredContent`. Fields that would be empty are left out.",
        _arguments("run_python", input_schema(defaults.max_timeout, defaults.timeout)),
        _result("run_python", _Object(RunResult, run, OUTPUT_SCHEMA, [""]), found),
        _arguments(COMMAND_TOOL, command_tool(both).input_schema),
        _result(COMMAND_TOOL, _Object(CommandResult, command, COMMAND_OUTPUT_SCHEMA, [""]), found),
        _arguments(search_tool().name, search_tool().input_schema),
    )


def _arguments(tool: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield from [f"## Arguments of `{tool}`", ""]
    rows = []
    for name, each in schema["properties"].items():
        default = "needed" if name in schema.get("required", ()) else ""
        if "default" in each:
            default = default_text(each["default"])
        # Which profiles there are depends on the configuration.
        kind = "string" if name == "profile" else schema_kind(each)
        rows.append([code(name), kind, default, each.get("description", "")])
    yield from table(["argument", "type", "default", "what it says"], rows)


def schema_kind(schema: Mapping[str, Any]) -> str:
    """Return the type that a JSON Schema has, in words."""
    if "anyOf" in schema:
        return " or ".join(map(schema_kind, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(map(code, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {schema_kind(schema.get('items', {}))}"
    kind = str(schema.get("type", "any"))
    if "properties" in schema:
        return f"{kind} of {', '.join(map(code, schema['properties']))}"
    bounds = [
        f"{word} {schema[key]:g}"
        for key, word in (("minimum", "at least"), ("maximum", "at most"))
        if key in schema
    ]
    return f"{kind}, {' and '.join(bounds)}" if bounds else kind


@dataclasses.dataclass
class _Object:
    """A kind of object in a record: the dataclass it is of, a sample of it, and its schema."""

    shape: type
    sample: Mapping[str, Any]
    schema: Mapping[str, Any]
    paths: list[str]


def _result(tool: str, result: _Object, found: dict[type, _Object]) -> Iterator[str]:
    """Yield the sections on a tool's result and on the kinds of objects in it that are new."""
    before = set(found)
    _collect(result, found)
    for shape, each in found.items():
        if shape not in before:
            named = f"### {', '.join(map(code, each.paths))}"
            title = f"## Result of `{tool}`" if each is result else named
            yield from [title, "", summary(shape), "", *_fields(each)]


def _collect(one: _Object, found: dict[type, _Object]) -> None:
    if one.shape in found:
        found[one.shape].paths.extend(one.paths)
        return
    found[one.shape] = one
    hints = typing.get_type_hints(one.shape)
    for key, value in one.sample.items():
        shape = nested(hints.get(snake(key)))
        inner = value[-1] if isinstance(value, list) and value else value
        if shape is not None and isinstance(inner, dict):
            schema = one.schema.get("properties", {}).get(key, {})
            schema = schema.get("items", schema)
            _collect(_Object(shape, inner, schema, [_below(one.paths[0], key)]), found)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _fields(one: _Object) -> list[str]:
    known, hints = one.schema.get("properties", {}), typing.get_type_hints(one.shape)
    required = one.schema.get("required", ())
    rows = []
    for key in [*one.sample, *(each for each in known if each not in one.sample)]:
        value = one.sample.get(key)
        words = _words(hints.get(snake(key)))
        kind = ", ".join(map(code, words)) or json_kind(value, known.get(key))
        text = described(one.shape, _below(one.paths[0], key), value)
        text = re.sub(r"\bNone\b", "absent", text)
        rows.append([code(key), kind, f"{text} Always there." if key in required else text])
    return table(["field", "type", "what it says"], rows)


def _words(hint: Any) -> tuple[str, ...]:
    for each in (hint, *typing.get_args(hint)):
        if typing.get_origin(each) is Literal:
            return typing.get_args(each)
    return ()


def json_kind(value: Any, schema: Mapping[str, Any] | None) -> str:
    """Return the type of a field of a record, by its schema or else by a sample."""
    if schema is not None:
        kind = schema_kind({key: each for key, each in schema.items() if key != "properties"})
        return "list of object" if kind.startswith("list of object") else kind
    if isinstance(value, list):
        return f"list of {json_kind(value[0], None)}"
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
    return names[type(value)]


def snake(key: str) -> str:
    """Return a field's name in Python."""
    return re.sub("(?=[A-Z])", "_", key).lower()


def described(shape: type, path: str, value: Any) -> str:
    """Return what the code says of a field of a record: what renders it, else the dataclass."""
    for function in (rendered.to_structured, rendered.structured_command):
        if path in (said := section(function, "Keys")):
            return said[path]
    # A sample's texts are the names of the fields that they are from.
    texts, name = attributes(shape), snake(path.rpartition(".")[2])
    return texts[name] if name in texts else texts[value]


# --- errors, programs, commands -------------------------------------------------------------------


def errors_page() -> str:
    """Return the page on errors."""
    classes = [
        each
        for each in vars(faults).values()
        if isinstance(each, type) and issubclass(each, faults.BridgeError) and "code" in vars(each)
    ]
    rows = [[code(each.code), str(each.exit_status), *_split(each)] for each in classes]
    rows += (
        [
            code(name),
            str(kind.family.exit_status),
            kind.meaning,
            kind.remedy or kind.advice or kind.family.default_remedy,
        ]
        for name, kind in faults.CODES.items()
    )
    base = attributes(faults.BridgeError)
    return page(
        "Errors",
        f"{prose(faults)}",
        table(["an error has", ""], ([code(name), text] for name, text in base.items())),
        ["## Codes", ""],
        table(["code", "exit status", "what it means", "what to do"], rows),
    )


def _split(error: type[faults.BridgeError]) -> tuple[str, str]:
    """Return what an error means, and what to do; a remedy of its own goes first."""
    meaning, _, advice = summary(error).partition(". ")
    return f"{meaning.rstrip('.')}.", error.default_remedy or advice


def guest_page() -> str:
    """Return the page on what programs find."""
    names = section(mcp_api.build, "Names")
    return page(
        "What a program has",
        "The names that a program of `run_python` finds without an import, and what `runtime` has.",
        ["## Names", ""],
        table(["name", "what it is"], ([code(name), text] for name, text in names.items())),
        _function("display", environment.display),
        _function("help", environment.show_help),
        ["## Functions of `runtime`", ""],
        *(
            _function(f"runtime.{name}", getattr(mcp_api.Runtime, name))
            for name in mcp_api.PUBLIC
            if inspect.isfunction(getattr(mcp_api.Runtime, name))
        ),
        ["## Classes", ""],
        *(
            _class(each)
            for each in (
                *(values.Result, values.Blob, values.MCPError),
                *(values.ArgumentsError, values.MissingKeyError, values.UnknownNameError),
            )
        ),
    )


def _function(title: str, function: Callable[..., Any]) -> Iterator[str]:
    waits = "await " if inspect.iscoroutinefunction(function) else ""
    yield from [f"### `{waits}{title}{_signature(function)}`", "", prose(function), ""]
    yield from _listed(section(function, "Args"))
    yield from _listed(section(function, "Raises"), "raises ")


def _signature(function: Callable[..., Any]) -> str:
    """Return a function's signature without types."""
    given = inspect.signature(function).parameters.values()
    empty = inspect.Parameter.empty
    return str(
        inspect.Signature([each.replace(annotation=empty) for each in given if each.name != "self"])
    )


def _class(shape: type) -> Iterator[str]:
    bases = ", ".join(each.__name__ for each in shape.__bases__ if each is not object)
    yield from [f"### `{shape.__name__}{f'({bases})' if bases else ''}`", "", prose(shape), ""]
    yield from _listed(section(shape, "Attributes") if shape.__doc__ else {})
    for name, method in vars(shape).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            yield from [f"- `.{name}{_signature(method)}`: {summary(method)}", ""]


def _listed(entries: Mapping[str, str], before: str = "") -> list[str]:
    lines = [f"- {before}`{name}`: {text}" for name, text in entries.items()]
    return [*lines, ""] if lines else []


def commands_page() -> str:
    """Return the page on the command line."""
    panels: dict[str, list[str]] = {}
    for path, entry in COMMANDS.items():
        if entry.handler:
            panel = COMMANDS[path.partition(" ")[0]].panel
            panels.setdefault(panel, []).extend(_command(path))
    flags = (
        [code(f"--{name.replace('_', '-')}"), code(variable(name)), text]
        for name, text in FLAGS.items()
    )
    return page(
        "Commands",
        f"Without a command, `{PROGRAM}` serves MCP over stdio. `{PROGRAM} help COMMAND` shows the "
        "text of this page, and the settings that the command uses. `-h` is shorter.",
        *([f"## {panel}", "", *lines] for panel, lines in panels.items()),
        [
            f"## {SETTINGS_PANEL}",
            "",
            "Every command takes these flags; see [settings](settings.md).",
            "",
        ],
        table(["Flag", "Variable", "Description"], flags),
    )


def _command(path: str) -> Iterator[str]:
    command = make_command(path)
    summary, prose_text, examples = describe_command(command.callback)
    rows, words = [], [path]
    for each in command.params:
        word, text = row_of(each)
        if each.param_type_name == "argument":
            word = f"{word}..." if each.nargs == -1 else word
            words.append(word if each.required else f"[{word}]")
        if each.rich_help_panel != SETTINGS_PANEL and word not in ("-h", "--help"):
            rows.append([code(word), text])
    yield from [f"### `{' '.join(words)}`", "", summary, ""]
    yield from [" ".join(prose_text.split()), ""] if prose_text else ()
    yield from table(["", "Description"], rows) if rows else ()
    if examples:
        yield from ["```console", *(f"{PROGRAM} {example}" for example in examples), "```", ""]


# --- writing --------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return every page's text by its name."""
    return {
        "settings.md": settings_page(),
        "tool.md": tool_page(),
        "errors.md": errors_page(),
        "guest.md": guest_page(),
        "commands.md": commands_page(),
    }


def main() -> None:
    """Write the pages, and the promises in SECURITY.md."""
    PAGES.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
    guarantees.main()


if __name__ == "__main__":
    main()
