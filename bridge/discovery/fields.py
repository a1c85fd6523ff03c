"""Reads an entry's fields: types, variables, bounds, and hints for logins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from bridge.discovery.dialect import Dialect
from bridge.discovery.documents import MalformedError, kind
from bridge.discovery.report import ConfigWarning, shown
from bridge.discovery.variables import (
    EMPTYING,
    SPELLED,
    Variables,
    expand,
    input_variable,
    missing_inputs,
)
from bridge.model import OAuthHints, Source


@dataclass(frozen=True, kw_only=True)
class EntryContext:
    """The file, format and variables that apply to an entry's fields."""

    source: Source  # The file, without a position in it.
    dialect: Dialect
    variables: Variables
    # Takes the name and text of a project's entry. Returns whether the bridge may open the files
    # that the entry names. None for entries of the user.
    may_open_files: Callable[[str, str], bool] | None = None


@dataclass
class FieldReader:
    """Reads an entry's fields and collects warnings about them."""

    context: EntryContext
    key: str
    warnings: list[ConfigWarning] = field(default_factory=list)
    templates: dict[str, str] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        return self.context.dialect

    def warn(self, label: str, reason: str, *, reported: bool = False) -> None:
        key = ".".join(part for part in (self.key, label) if part)
        path = self.context.source.path
        self.warnings.append(ConfigWarning(path=path, key=key, reason=reason, reported=reported))

    def text(self, value: object, label: str, part: str, *, scalars: bool = False) -> str:
        """Return a string field; `part` is its name in `Dialect.expanded`."""
        if scalars and self.dialect.scalars_as_text:
            value = _scalar_text(value)
        if not isinstance(value, str):
            raise MalformedError(f"{label} must be a string, not {kind(value)}")
        expanded = self._expand(value, label, part)
        if "\0" in expanded or any("\ud800" <= char <= "\udfff" for char in expanded):
            raise MalformedError(f"{label} holds a character that cannot be passed on")
        if expanded != value and part in ("command", "args", "cwd", "url"):
            self.templates[label if part == "args" else part] = value
        return expanded

    def _expand(self, value: str, label: str, part: str) -> str:
        variables = self.context.variables
        in_project = self.context.may_open_files is not None
        if in_project and part not in ("env", "headers"):
            # A changed file would change the program without a new approval.
            variables = replace(variables, read=_refuse_file)
        syntax = self.dialect.syntax if part in self.dialect.expanded else ""
        if syntax == "posix" and ("$(" in value or "`" in value):
            raise MalformedError(
                f"{label} runs a command to get its text, which the bridge does not"
            )
        try:
            found = expand(value, variables, syntax)
        except MalformedError as error:
            raise MalformedError(f"{label} {error}") from error
        for name in found.unset:
            left = f"{SPELLED[syntax].replace('%s', shown(name))} is left as written"
            fate = "it becomes nothing" if syntax in EMPTYING else left
            self.warn(label, f"the variable {shown(name)} is not set; {fate}")
        client = self.context.source.client
        for text, name in found.foreign if part else ():
            own = SPELLED.get(syntax, "").replace("%s", name)
            advice = f"{client} writes {own}" if own else f"{client} expands no variables here"
            advice = advice if name else f"{client} does not know it"
            self.warn(label, f"{shown(text)} is left as written; {shown(advice)}")
        return found.text

    def check_inputs(self, entry: Mapping[str, object]) -> None:
        if missing := missing_inputs(entry, self.context.variables, self.dialect.syntax):
            names = " and ".join(f'"{shown(name)}"' for name in missing)
            variables = " and ".join(shown(input_variable(name)) for name in missing)
            asks = f"{self.context.source.client} asks for the input {names}"
            raise MalformedError(f"{asks}; set {variables} in the bridge's environment")

    def texts(self, value: object, label: str, part: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise MalformedError(f"{label} must be a list of strings, not {kind(value)}")
        return tuple(
            self.text(item, f"{label}[{index}]", part, scalars=True)
            for index, item in enumerate(value)
        )

    def table(self, value: object, label: str, part: str) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise MalformedError(f"{label} must be an object of strings, not {kind(value)}")
        return {
            key: self.text(item, f"{label}.{shown(key)}", part, scalars=True)
            for key, item in value.items()
        }

    def names(self, value: object, label: str) -> tuple[str, ...]:
        """Return a list of names. An invalid list is an error: it may exclude tools."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise MalformedError(f"{label} must be a list of names")
        return tuple(value)

    def seconds(self, entry: Mapping[str, object], units: Mapping[str, float]) -> float | None:
        """Return the seconds of the first usable field; None if there is none."""
        for label, unit in units.items():
            value = entry.get(label)
            if value is None:
                continue
            # Like Claude Code: a smaller number was probably meant as seconds.
            least = 1000 if unit < 1 and label == "timeout" else 0
            number = value if isinstance(value, int | float) and value is not True else 0
            if least <= number and 0 < number < math.inf:
                # Bound before the conversion: an integer may exceed any float.
                bounded = min(number, round(7 * 24 * 3600 / unit))  # One week.
                return float(bounded) if unit == 1 else float(bounded) / round(1 / unit)
            wanted = f"a number of {'milli' if unit < 1 else ''}seconds"
            limit = f"at least {least}" if least else "greater than 0"
            self.warn(label, f"ignored: it must be {wanted}, {limit}")
        return None


def _refuse_file(path: str) -> str | None:
    what = f'takes its text from "{shown(path)}"'
    raise MalformedError(f"{what}, which a project's file may only do in env and headers")


def first_used(entry: Mapping[str, object], labels: tuple[str, ...]) -> str | None:
    return next((label for label in labels if member(entry, label) is not _NOTHING), None)


_NOTHING = object()


def member(entry: Mapping[str, object], label: str) -> object:
    """Return the value of a possibly dotted field; `_NOTHING` if it is absent."""
    if "." not in label:
        return entry.get(label, _NOTHING)
    outer, inner = label.split(".", 1)
    table = entry.get(outer)
    return table.get(inner, _NOTHING) if isinstance(table, Mapping) else _NOTHING


def directory(text: str, variables: Variables, start: str) -> str:
    if text == "~" or text.startswith(("~/", "~\\")):
        return str(Path(variables.home, text[2:]))
    return str(Path(start) / text)


def _scalar_text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) < 10**18:  # Larger than any real argument.
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return value


def oauth_hints(entry: Mapping[str, object], reader: FieldReader) -> OAuthHints | None:
    tables = ("oauth", "auth", "oauthClient")
    outer = next((name for name in tables if isinstance(entry.get(name), Mapping)), "")
    if member(entry, f"{outer}.enabled") is False:
        outer = ""

    def inner(*names: str) -> tuple[str, ...]:
        return tuple(f"{outer}.{name}" for name in names if outer)

    def text(*labels: str) -> str:
        label = first_used(entry, labels)
        try:
            return reader.text(member(entry, label), label, "oauth") if label else ""
        except MalformedError as error:
            reader.warn("", f"ignored: {error}")
            return ""

    client_id = text(*inner("clientId", "client_id", "CLIENT_ID"), "oauthClientId")
    label = first_used(entry, (*inner("scopes", "scope", "oauthScopes"), "oauthScopes", "scopes"))
    words = member(entry, label) if label else ()
    words = words.split() if isinstance(words, str) else words
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        reader.warn(label or "", "ignored: it must be a text or a list of texts")
        words = ()
    if not outer and not client_id and not words:
        return None
    return OAuthHints(
        client_id=client_id,
        client_secret=text(*inner("clientSecret", "client_secret", "CLIENT_SECRET")),
        scopes=tuple(words),
        callback_port=_port(entry, outer, reader),
    )


def _port(entry: Mapping[str, object], outer: str, reader: FieldReader) -> int | None:
    table = entry.get(outer)
    if not isinstance(table, Mapping):
        return None
    value = table.get("callbackPort", table.get("callback_port"))
    if value is None and isinstance(redirect := table.get("redirectUri"), str):
        # Kiro writes host and port, other clients a URL.
        try:
            return urlsplit(redirect if "//" in redirect else f"//{redirect}").port or None
        except ValueError:
            reader.warn(f"{outer}.redirectUri", "ignored: it has no usable port")
            return None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65_536:
        reader.warn(f"{outer}.callbackPort", "ignored: it must be a port, 1 to 65535")
        return None
    return value
