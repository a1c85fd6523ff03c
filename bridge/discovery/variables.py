"""Expands variables in configurations, in each client's own syntax: pure.

Another client's syntax is plain text, and reported. Inserted values are not expanded again. As in
Claude Code 2.1, an empty variable counts as set where an unset one stays as written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridge.discovery.dialect import Syntax
from bridge.discovery.documents import MalformedError
from bridge.discovery.report import shown

INPUT_PREFIX = "MCP_BRIDGE_INPUT_"
"""Prefix of the variable with an input's value; the id in capitals follows. Servers do not inherit
variables that start with MCP_BRIDGE_.
"""

MAX_INSERTED_CHARS = 1024 * 1024
"""Limit of text that variables and files insert into a table of servers. A repository's file may
repeat one value in every field to exhaust memory.
"""

_ENV = r"\$\{env:(?P<env>[^{}]+)\}"
_PLACE = r"\$\{(?P<place>userHome|workspaceFolder(?:Basename)?|cwd|pathSeparator|/)\}"

_SHELL = (
    r"\$(?:(?P<env>[A-Za-z_][A-Za-z0-9_]*)"
    r"|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})"
)

# Each alternative fills one named group.
_PATTERNS: Mapping[Syntax, re.Pattern[str]] = {
    "claude": re.compile(r"\$\{(?P<env>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}"),
    "shell": re.compile(_SHELL),
    "posix": re.compile(_SHELL),
    "qwen": re.compile(r"\$(?:(?P<env>\w+)|\{(?P<braced>[^}]+)\})"),
    "vscode": re.compile(rf"{_ENV}|{_PLACE}|\$\{{input:(?P<input>[^{{}}]+)\}}"),
    "cursor": re.compile(rf"{_ENV}|{_PLACE}"),
    "roo": re.compile(rf"{_ENV}|{_PLACE}"),
    "env": re.compile(_ENV),
    "windsurf": re.compile(rf"{_ENV}|\$\{{file:(?P<file>[^{{}}]+)\}}"),
    "opencode": re.compile(r"\{env:(?P<env>[^{}]+)\}|\{file:(?P<file>[^{}]+)\}"),
    "braces": re.compile(r"\$\{(?P<env>[A-Za-z_][A-Za-z0-9_]*)\}"),
    "secrets": re.compile(r"\$\{\{\s*secrets\.(?P<env>[A-Za-z_][A-Za-z0-9_]*)\s*\}\}"),
}

_EDITOR_ONLY = re.compile(
    r"\$\{(?:(?:command|config|extensionInstallFolder|workspaceFolder):[^{}]*"
    r"|file\w*|relativeFile\w*|selectedText|lineNumber|execPath"
    r"|userHome|workspaceFolder\w*|cwd|pathSeparator)\}"
)
"""Variables that only VS Code can resolve."""

_ANY = re.compile(
    r"\$\{\{\s*secrets\.(?P<secret>\w+)\s*\}\}|(?<!\$)\{env:(?P<brace>\w+)\}"
    r"|\$\{(?:\w{1,20}:)?(?P<name>[A-Za-z_][\w.]{0,99})(?::-[^{}]{0,200})?\}"
)

SPELLED: Mapping[Syntax, str] = {
    **dict.fromkeys(("claude", "shell", "posix", "qwen", "braces"), "${%s}"),
    **dict.fromkeys(("vscode", "cursor", "roo", "env", "windsurf"), "${env:%s}"),
    "opencode": "{env:%s}",
    "secrets": "${{ secrets.%s }}",
}
"""Each syntax's notation of an environment variable."""

EMPTYING = frozenset({"vscode", "cursor", "opencode", "posix"})
"""Syntaxes in which an unset variable becomes empty rather than staying as written."""

_BARE = re.compile(r"\$(?P<env>[A-Za-z_][A-Za-z0-9_]*)")
_NONE = re.compile(r"(?!)")


@dataclass
class InsertBudget:
    left: int = MAX_INSERTED_CHARS

    def take(self, text: str) -> str:
        """Count the text and return it. Raises `MalformedError` above the limit."""
        self.left -= len(text)
        if self.left < 0:
            raise MalformedError(
                f"makes variables and files insert more than {MAX_INSERTED_CHARS} characters"
            )
        return text


def no_file(path: str) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The values of variables."""

    environ: Mapping[str, str] = field(repr=False)
    home: str = ""
    workspace: str = ""
    directory: str = ""  # The file's directory, the base of relative file names.
    # Ids of inputs and their defaults; None for no default.
    inputs: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    read: Callable[[str], str | None] = no_file  # Returns a file's text; None if it cannot be read.
    separator: str = "/"
    budget: InsertBudget = field(default_factory=InsertBudget, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class Expanded:
    """A text with its variables expanded."""

    text: str = field(repr=False)
    unset: tuple[str, ...] = ()  # Names of unset variables without a default.
    # Variables in another client's syntax, and their names if known.
    foreign: tuple[tuple[str, str], ...] = ()


def expand(text: str, variables: Variables, syntax: Syntax = "claude") -> Expanded:
    """Return the text with its variables expanded.

    Raises `MalformedError` if a file is missing, only the client knows a value, or the text is too
    long.
    """
    if "$" not in text and "{" not in text:
        return Expanded(text=text)
    pattern = _PATTERNS.get(syntax, _NONE)
    unset: dict[str, None] = {}
    places = {
        "userHome": variables.home,
        "workspaceFolderBasename": Path(variables.workspace).name,
        **dict.fromkeys(("pathSeparator", "/"), variables.separator),
    }

    def value(match: re.Match[str]) -> str:
        groups = match.groupdict()
        if place := groups.get("place"):
            return places.get(place, variables.workspace)
        if name := groups.get("input"):
            return _input_value(name, variables) or ""
        if name := groups.get("file"):
            path = Path(variables.home, name[2:]) if name.startswith("~/") else Path(name)
            content = variables.read(str(Path(variables.directory) / path))
            if content is None:
                raise MalformedError(f'takes its text from "{shown(name)}", which cannot be read')
            return content.strip()
        name = groups.get("env") or groups.get("braced") or ""
        default = groups.get("default")
        if name in variables.environ and not (
            syntax == "posix" and default is not None and not variables.environ[name]
        ):
            return variables.environ[name]
        if default is not None:
            return str(default)
        unset[name] = None
        return "" if syntax in EMPTYING else match[0]

    def insert(match: re.Match[str]) -> str:
        return variables.budget.take(value(match))

    # After the last brace only `$X` can match; a search for other forms could take quadratic time.
    end = text.rfind("}") + 1
    rest = pattern.sub("", text[:end])
    if syntax == "vscode" and (only := _EDITOR_ONLY.search(rest)):
        what = f"holds {shown(only[0])}, whose value only its client knows"
        raise MalformedError(f"{what}; write the value itself")
    foreign = {
        # The default may be a secret.
        re.sub("(?s):-.*", ":-…}", match[0]): (
            "" if _EDITOR_ONLY.match(match[0]) else match[match.lastgroup or 0]
        )
        for match in _ANY.finditer(rest)
    }
    found = pattern.sub(insert, text[:end])
    found += _BARE.sub(insert, text[end:]) if syntax in {"shell", "posix", "qwen"} else text[end:]
    return Expanded(text=found, unset=tuple(unset), foreign=tuple(foreign.items()))


def missing_inputs(
    value: object, variables: Variables, syntax: Syntax, depth: int = 8
) -> tuple[str, ...]:
    if isinstance(value, Mapping | list):
        items = list(value.values() if isinstance(value, Mapping) else value) if depth else []
        found = [n for item in items for n in missing_inputs(item, variables, syntax, depth - 1)]
        return tuple(dict.fromkeys(found))
    pattern = _PATTERNS.get(syntax, _NONE)
    if not isinstance(value, str) or "input" not in pattern.groupindex:
        return ()
    names = (match["input"] for match in pattern.finditer(value))
    return tuple(name for name in names if name and _input_value(name, variables) is None)


def input_variable(name: str) -> str:
    return INPUT_PREFIX + re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")


def _input_value(name: str, variables: Variables) -> str | None:
    return variables.environ.get(input_variable(name)) or variables.inputs.get(name)
