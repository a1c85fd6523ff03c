"""Turns one entry of a configuration into a `ServerSpec`, or a reason to skip it: pure.

Fields have Claude Code's meaning in the spelling of the file's dialect. `cwd` may begin with `~`.
`disabled: true` or `enabled: false` turns a server off. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge.discovery.dialect import ALL_FIELDS, SPELLINGS, Dialect
from bridge.discovery.documents import MalformedError, kind, parse_env_file
from bridge.discovery.fields import (
    EntryContext,
    FieldReader,
    directory,
    first_used,
    member,
    oauth_hints,
)
from bridge.discovery.report import ConfigWarning, SkippedServer, dotted_key, shown
from bridge.guest.schema.schemas import as_list, as_mapping
from bridge.model import OWN_SERVER, ServerSpec, Source, ToolFilter, Transport

MAX_NAME_CHARS = 200  # A repository may choose the name, which listings and aliases contain.

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories of invisible characters, which can break lines or disguise a name."""

ONLY_CLIENT = "only its own client can start it"

_UNSUPPORTED: Mapping[str, str] = {
    **dict.fromkeys(
        ("headersHelper", "headers_helper", "http_headers_helper"),
        "the program it names is not run, so the headers it would add are missing",
    ),
    "sandboxEnabled": "VS Code's sandbox is not applied; the server runs with the user's rights",
    "authProviderType": "this way to log in is not supported",
}
"""Unsupported fields that affect what a server may do or see."""


def read_entry(
    name: str, value: object, *, key: str, context: EntryContext, off: str = ""
) -> tuple[ServerSpec | SkippedServer, tuple[ConfigWarning, ...]]:
    """Return an entry's server or why it is skipped, and warnings; `off` is why it is off."""
    unread = unread_entry(name, value, key, context)
    source = unread.source
    reader = FieldReader(context=context, key=key)
    entry = without_nulls(value)
    hints = tuple(_foreign_spellings(as_mapping(entry), context.dialect))
    try:
        if isinstance(entry, Mapping) and _is_foreign(entry, context.dialect):
            return unread, ()
        _check_name(name)
        if not isinstance(entry, Mapping) or not isinstance(value, Mapping):
            raise MalformedError(_wrong_kind(name, value, context, key))
        if reason := _disabled_reason(entry) or off:
            disabled = SkippedServer(name=name, source=source, reason=reason, holds_name=True)
            return disabled, tuple(reader.warnings)
        written = _as_text(value, context) if context.may_open_files is not None else ""
        if context.may_open_files is not None and not context.may_open_files(name, written):
            # The bridge opens no file that an unapproved entry names.
            variables = replace(context.variables, read=lambda path: "")
            reader.context = replace(context, variables=variables)
        reader.check_inputs(entry)
        _advise(entry, reader)
        spec = _read_fields(name, normalize(entry, context.dialect), source, reader)
        spec = replace(spec, templates=reader.templates, written=written)
        for label, own in hints:
            reader.warn(label, f"{context.source.client} does not read it; write {own}")
    except MalformedError as error:
        reason = str(error)
        for label, own in hints:
            reason += f"; {label}: {context.source.client} does not read it, write {own}"
        reader.warn("", f"skipped: {reason}", reported=True)
        return SkippedServer(name=name, source=source, reason=reason), tuple(reader.warnings)
    return spec, tuple(reader.warnings)


def unread_entry(name: str, value: object, key: str, context: EntryContext) -> SkippedServer:
    """Return an entry that this client does not start, or that only this client can start."""
    names: list[str] = []
    for label, item in as_mapping(value).items():
        names += [dotted_key(label, member) for member in as_mapping(item)] or [dotted_key(label)]
    source = replace(context.source, key=key, fields=tuple(names))
    return SkippedServer(name=name, source=source, reason=ONLY_CLIENT, foreign=True)


def without_nulls(value: object, depth: int = 8) -> object:
    """Return a value without null members of objects, which count as absent."""
    if not isinstance(value, Mapping) or not depth:
        return value
    members = ((key, item) for key, item in value.items() if item is not None)
    return {key: without_nulls(item, depth - 1) for key, item in members}


def looks_like_server(value: object) -> bool:
    known = (*SPELLINGS["command_keys"], *SPELLINGS["url_keys"])
    return first_used(as_mapping(value), known) is not None


def _foreign_spellings(entry: Mapping[str, Any], dialect: Dialect) -> Iterator[tuple[str, str]]:
    for attribute, known in SPELLINGS.items():
        own = getattr(dialect, attribute)
        label = None if first_used(entry, own) else first_used(entry, known)
        if label is None or attribute == "server_keys":
            continue
        if attribute != "type_keys":
            yield label, f'"{own[0]}"'
        elif isinstance(entry[label], Mapping):
            if label != dialect.nested:
                yield label, "its fields into the entry itself"
        elif first_used(entry, SPELLINGS["url_keys"]):
            yield label, f'"{own[0]}"'


def _wrong_kind(name: str, value: object, context: EntryContext, key: str) -> str:
    reason = f"must be an object, not {kind(value)}"
    if name not in ALL_FIELDS and name not in SPELLINGS["type_keys"]:
        return reason
    place = f"{key.rpartition('.')[0]}.NAME"
    place = f"[{place}]" if context.source.path.endswith(".toml") else place
    return f"{reason}; it is a field of a server, which needs a name of its own: {place}"


def _advise(entry: Mapping[str, object], reader: FieldReader) -> None:
    """Warn about a command that its client cannot start as written."""
    dialect, client = reader.dialect, reader.context.source.client
    label = first_used(entry, dialect.command_keys)
    command = entry.get(label) if label else None
    if label is None or not isinstance(command, str) or dialect.command_words:
        return
    program, *others = command.split() or [""]
    if program.startswith("~"):
        home = reader.context.variables.home
        reader.warn(label, f"no shell expands the ~; write {shown(home + program[1:])}")
    if dialect.command_list:
        texts = "one text for each word" if others else "a list"
        reader.warn(label, f'{client} takes a list; write ["{shown(program)}", …] with {texts}')
    elif others and not entry.get("args") and not _is_path(program, others):
        reader.warn(
            label,
            f'{client} takes it as the name of one program; write "{shown(program)}" here and the '
            'other words as a list in "args"',
        )


def _is_path(program: str, others: Sequence[str]) -> bool:
    slashes = [bool(set(word) & set("/\\")) for word in (program, *others)]
    return slashes[0] and slashes[-1] and not any(word.startswith("-") for word in others)


def _as_text(value: Mapping[str, object], context: EntryContext) -> str:
    """Return a project's definition as text, with invisible characters escaped.

    Variables are not expanded, so that only the reference to a variable is part of the definition.
    """
    given: dict[str, object] = {"server": value}
    if context.variables.inputs:
        given["inputs"] = context.variables.inputs
    try:
        return json.dumps(given, indent=2, default=str)
    except (ValueError, TypeError, RecursionError) as error:
        raise MalformedError("it cannot be written out for an approval") from error


def _read_fields(
    name: str, entry: Mapping[str, object], source: Source, reader: FieldReader
) -> ServerSpec:
    transport = _transport(entry, reader.dialect)
    common: dict[str, Any] = {
        "name": name,
        "transport": transport,
        "source": source,
        "description": _description(entry, reader),
        "start_timeout": reader.seconds(entry, reader.dialect.start_timeouts),
        "call_timeout": reader.seconds(entry, reader.dialect.call_timeouts),
        "tools": _tools(entry, reader),
    }
    for label, sentence in _UNSUPPORTED.items():
        if entry.get(label):
            reader.warn(label, sentence)
    if transport != "stdio":
        return ServerSpec(
            url=_url(entry, reader),
            headers=_headers(entry, reader),
            oauth=oauth_hints(entry, reader),
            **common,
        )
    label = first_used(entry, reader.dialect.command_keys) or reader.dialect.command_keys[0]
    command = reader.text(entry.get(label), label, "command")
    if not command.strip():
        raise MalformedError(f"{label} is empty")
    return ServerSpec(
        command=command,
        args=reader.texts(entry["args"], "args", "args") if "args" in entry else (),
        env=_env(entry, reader),
        cwd=_cwd(entry, reader),
        **common,
    )


def _check_name(name: str) -> None:
    if not name.strip():
        raise MalformedError("its name is empty")
    if len(name) > MAX_NAME_CHARS:
        raise MalformedError(f"its name is longer than {MAX_NAME_CHARS} characters")
    if any(unicodedata.category(char) in _HIDDEN for char in name):
        raise MalformedError("its name holds control or invisible characters")
    if name == OWN_SERVER:
        # Rules, records and journals use this name for the bridge itself.
        msg = f"{OWN_SERVER!r} is the name of the bridge's own helpers; give it another name"
        raise MalformedError(msg)


def _is_foreign(entry: Mapping[str, object], dialect: Dialect) -> bool:
    for label, values in dialect.foreign.items():
        named = entry.get(label)
        if isinstance(named, str) and named in values:
            return True
    return bool(dialect.foreign_fields & entry.keys()) and not (
        first_used(entry, dialect.command_keys) or first_used(entry, dialect.url_keys)
    )


def normalize(entry: Mapping[str, object], dialect: Dialect) -> Mapping[str, object]:
    """Return an entry with usual command and transport fields. Raises `MalformedError`."""
    inner = entry.get(dialect.nested) if dialect.nested else None
    if isinstance(inner, Mapping):
        entry = {**{key: value for key, value in entry.items() if key != dialect.nested}, **inner}
    command = entry.get("command")
    if dialect.command_object and isinstance(command, Mapping):
        moved = {key: command[key] for key in ("args", "env") if command.get(key) is not None}
        return {**entry, "command": command.get("path"), **moved}
    if dialect.command_words and isinstance(command, str):
        try:
            command = shlex.split(command)
        except ValueError as error:
            raise MalformedError(f"command cannot be split into words: {error}") from error
    if dialect.command_list and isinstance(command, list):
        listed = entry.get("args") if dialect.command_words else None
        args = [*command[1:], *as_list(listed)]
        return {**entry, "command": command[0] if command else "", "args": args}
    return entry


def _disabled_reason(entry: Mapping[str, object]) -> str:
    for name, off in (("disabled", True), ("enabled", False)):
        if name not in entry:
            continue
        value = entry[name]
        if not isinstance(value, bool):
            raise MalformedError(f"{name} must be true or false, not {kind(value)}")
        if value is off:
            return f'turned off by "{name}": {str(off).lower()}'
    return ""


def _transport(entry: Mapping[str, object], dialect: Dialect) -> Transport:
    label = first_used(entry, dialect.type_keys)
    url = first_used(entry, dialect.url_keys)
    if label is not None:
        named = entry[label]
        if not isinstance(named, str):
            raise MalformedError(f"{label} must be a string, not {kind(named)}")
        transport = dialect.transports.get(named)
        if transport is None:
            known = ", ".join(dialect.transports)
            raise MalformedError(
                f'{label} "{shown(named)}" is not supported; supported are {known}'
            )
        wanted, other, right = dialect.url_keys, dialect.command_keys, "stdio"
        if transport == "stdio":
            wanted, other, right = other, wanted, "http"
        if first_used(entry, wanted) is None:
            change = f'; for its {other[0]} write "{right}"' if first_used(entry, other) else ""
            raise MalformedError(f'its {label} "{shown(named)}" needs a {wanted[0]}{change}')
        return transport
    if url in dialect.url_transports:
        return dialect.url_transports[str(url)]
    if first_used(entry, dialect.command_keys) is not None:
        return "stdio"
    if url is not None:
        if dialect.untyped_url is None:
            msg = 'it has a url but no type; add "type": "http" (or "sse"), as its client asks'
            raise MalformedError(msg)
        return dialect.untyped_url
    raise MalformedError("it has neither command nor url")


def _url(entry: Mapping[str, object], reader: FieldReader) -> str:
    label = first_used(entry, reader.dialect.url_keys)
    assert label is not None  # `_transport` requires it.
    url = reader.text(entry[label], label, "url")
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        good = parts.scheme in ("http", "https") and bool(host)
    except ValueError:
        good, host = False, ""
    if url.startswith(("unix:", "pipe:")):
        msg = f"{label} names a local socket or pipe, over which the bridge cannot reach servers"
        raise MalformedError(msg)
    if not good or any(char.isspace() or not char.isprintable() for char in url):
        # The message omits the url, which may contain a token.
        raise MalformedError(f"{label} must be http:// or https:// and a host, without spaces")
    if not host.isascii():
        # HTTP clients convert it to punycode, so lists of addresses would not match it.
        raise MalformedError(f"{label} has a host that is not ASCII; write it in punycode")
    return url


def _headers(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    label = first_used(entry, reader.dialect.header_keys)
    headers = {} if label is None else reader.table(member(entry, label), label, "headers")
    written = {name.lower() for name in headers}
    for name, value in _other_headers(entry, reader).items():
        if name.lower() not in written:
            headers[name] = value
    for name, value in headers.items():
        if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            msg = f'{label} has a member named "{shown(name)}", which is no header name'
            raise MalformedError(msg)
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
            raise MalformedError(f"{label}.{shown(name)} holds a line break or control character")
    return headers


def _other_headers(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    dialect, environ = reader.dialect, reader.context.variables.environ
    found: dict[str, str] = {}
    if dialect.bearer_env and "bearer_token" in entry:
        msg = f"bearer_token must be left out; {dialect.bearer_env} names a variable that holds it"
        raise MalformedError(msg)
    if dialect.env_headers and entry.get(dialect.env_headers) is not None:
        named = reader.table(entry[dialect.env_headers], dialect.env_headers, "")
        for header, variable in named.items():
            if environ.get(variable):
                found[header] = environ[variable]
            else:
                label = f"{dialect.env_headers}.{shown(header)}"
                reader.warn(label, _unset_message(variable, "the header is left out"))
    if dialect.bearer_env:
        found |= _token_header(entry, reader)
    if dialect.api_key and entry.get(dialect.api_key):
        token = reader.text(entry[dialect.api_key], dialect.api_key, "headers")
        found["Authorization"] = f"Bearer {token}"
    return found


def _token_header(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    """Return the header with the token from a variable; Vibe may name header and format."""
    label = reader.dialect.bearer_env
    auth = entry.get("auth")
    if reader.dialect.command_words and isinstance(auth, Mapping):
        entry = auth
    if entry.get(label) is None:
        return {}
    variable = reader.text(entry[label], label, "")
    token = reader.context.variables.environ.get(variable)
    if not token:
        reader.warn(label, _unset_message(variable, "no token is sent"))
        return {}
    header, shape = (
        written if isinstance(written := entry.get(f"api_key_{part}"), str) and written else usual
        for part, usual in (("header", "Authorization"), ("format", "Bearer {token}"))
    )
    return {header: shape.replace("{token}", token)}


def _env(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    label = first_used(entry, reader.dialect.env_keys)
    env = {} if label is None else reader.table(entry[label], label, "env")
    for name in env:
        if not name or "=" in name or any(unicodedata.category(c) in _HIDDEN for c in name):
            msg = f'{label} has a member named "{shown(name)}", which no variable can be called'
            raise MalformedError(msg)
    return {**_env_from_file(entry, reader), **_inherited_env(entry, reader), **env}


def _env_from_file(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    label = reader.dialect.env_file
    if not label or not entry.get(label):
        return {}
    variables = reader.context.variables
    written = reader.text(entry[label], label, "env")
    text = variables.read(directory(written, variables, variables.workspace))
    if text is None:
        reader.warn(label, "the file it names cannot be read, so its variables are missing")
        return {}
    try:
        found = parse_env_file(variables.budget.take(text))
    except MalformedError as error:
        raise MalformedError(f"{label} {error}") from error
    if any("\0" in value for value in found.values()):
        msg = f"the file that {label} names holds a character that cannot be passed on"
        raise MalformedError(msg)
    return found


def _inherited_env(entry: Mapping[str, object], reader: FieldReader) -> dict[str, str]:
    label = reader.dialect.env_names
    listed = entry.get(label) if label else None
    if listed is None:
        return {}
    if isinstance(listed, list):
        # Codex may name a variable's source; the bridge only has local variables.
        listed = [item.get("name") if isinstance(item, Mapping) else item for item in listed]
    environ = reader.context.variables.environ
    found: dict[str, str] = {}
    for name in reader.names(listed, label):
        if name in environ:
            found[name] = environ[name]
        else:
            reader.warn(label, _unset_message(name, "it is not handed on"))
    return found


def _unset_message(variable: str, effect: str) -> str:
    return f"the variable {shown(variable)} is not set, so {effect}"


def _cwd(entry: Mapping[str, object], reader: FieldReader) -> str | None:
    if entry.get("cwd") is None:
        return None
    cwd = reader.text(entry["cwd"], "cwd", "cwd")
    if not cwd.strip():
        return None
    variables = reader.context.variables
    at_file = reader.dialect.cwd_at == "file" or not variables.workspace
    source = reader.context.source
    start = str(Path(source.moved_from or source.path).parent) if at_file else variables.workspace
    return directory(cwd, variables, start)


def _description(entry: Mapping[str, object], reader: FieldReader) -> str:
    value = entry.get("description")
    if value is None:
        return ""
    if not isinstance(value, str):
        reader.warn("description", f"ignored: it must be a string, not {kind(value)}")
        return ""
    return value.encode("utf-8", "replace").decode("utf-8").strip()[:2000]


def _tools(entry: Mapping[str, object], reader: FieldReader) -> ToolFilter:
    """Return the entry's filter of tools; `*` means all, as in Copilot."""
    dialect = reader.dialect
    only, without = (
        frozenset(reader.names(entry[label], label)) if label and label in entry else None
        for label in (dialect.only_key, dialect.without_key)
    )
    if only is not None and ("*" in only or not (only or dialect.empty_only)):
        only = None
    return ToolFilter(only=only, without=without or frozenset())
