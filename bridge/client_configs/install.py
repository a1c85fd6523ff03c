"""Plans the change that adds the bridge to a client's file or removes it, and makes the change."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from os.path import commonprefix
from pathlib import Path
from typing import Any, Literal, cast

import anyio
from pygments.lexers import JsonLexer, TOMLLexer, YamlLexer
from pygments.token import Comment, Name

from bridge.client_configs.document import Document
from bridge.client_configs.entry import NAME, Entry, address, command_line, entry_value, is_bridge
from bridge.client_configs.formats import JsonText, TomlText, YamlText
from bridge.client_configs.journal import (
    Journal,
    MovedServers,
    MoveRecord,
    digest,
    lock_directory,
    missing_directories,
    remove_directories,
    rewrite,
)
from bridge.client_configs.writers import Target, Writer, readable
from bridge.discovery.dialect import Format
from bridge.discovery.documents import decode, size_limit
from bridge.discovery.fields import EntryContext
from bridge.discovery.files import read_regular
from bridge.discovery.locations import Machine
from bridge.discovery.moved import MovedFile
from bridge.discovery.parser import lookup, parse_document
from bridge.discovery.report import SkippedServer, printable
from bridge.discovery.user_lists import Restrictions
from bridge.discovery.variables import Variables
from bridge.errors import BridgeError, UneditableError, UsageError
from bridge.gate.redaction_shapes import names_setting
from bridge.guest.schema.schemas import as_list
from bridge.model import Source
from bridge.text import visible


@dataclass(frozen=True, kw_only=True)
class Change:
    """A planned change of one file; content is None for no file."""

    target: Target
    action: Literal["install", "uninstall", "move"]
    # `name`, `value`: the bridge's entry; an empty value means that it is removed.
    name: str = ""
    value: Mapping[str, object] = field(default_factory=dict)
    again: Callable[[bytes | None], Change]  # Plans the change again for other content of the file.
    before: bytes | None
    after: bytes | None
    notes: tuple[str, ...] = ()
    replaces: bool = False
    # Entries of the servers that move behind the bridge, by name.
    moved: Mapping[str, object] = field(default_factory=dict, repr=False)
    refused: tuple[tuple[str, str], ...] = ()  # Servers that cannot be moved, each with the reason.
    restored: tuple[str, ...] = ()  # Names of the servers that move back.
    barred: str = ""  # The reason why the client will not start the bridge; empty if it will.
    # Whether other users must not read the file, because it holds the bridge's token.
    private: bool = False
    # The client's own commands that make the change in place of an edit.
    commands: tuple[tuple[str, ...], ...] = ()
    kept: MovedServers | None = None  # The directory of moved servers; None if no server moves.
    # `file`, `store`: the file's row in that directory's manifest, and the content of the file that
    # holds the moved servers, both after the change.
    file: MovedFile | None = None
    store: bytes = field(default=b"", repr=False)

    def diff(self, *later: Change) -> str:
        after = self.after
        for each in later:
            after = each.again(after).after
        return unified_diff(str(self.target.path), self.before, after)


@dataclass(frozen=True, kw_only=True)
class InstalledEntry:
    """An existing entry of the bridge in a file: a command with arguments, or an address."""

    target: Target
    name: str
    command: tuple[str, ...]
    url: str

    @property
    def is_broken(self) -> bool:
        """Whether the command is a path without an executable file."""
        program = self.command[0] if self.command else ""
        return os.path.isabs(program) and not os.access(program, os.X_OK)  # noqa: PTH117


def read_target(target: Target) -> bytes | None:
    """Return the content of a target's file, or None if it does not exist.

    Raises a `UsageError` if it belongs to another user, leads out of the project or is unreadable.
    """
    real = Path(os.path.realpath(target.path))
    if target.root is not None and not real.is_relative_to(os.path.realpath(target.root)):
        message = f"{target.path} leads out of the project, to {real}."
        raise UsageError(message, remedy="Leave --scope out, or replace the link by a file.")
    try:
        owner = real.stat().st_uid
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{target.path} is not changed: {error.strerror}.") from error
    if owner != os.geteuid():
        message = f"{real} belongs to another user and is not changed."
        raise UsageError(message, remedy="Run this command as the file's owner.")
    raw = read_regular(real, limit=size_limit(target.location.format))
    if isinstance(raw, str):
        raise UsageError(f"{target.path} is not changed: {raw}.")
    return raw


def plan_install(
    target: Target, entry: Entry, raw: bytes | None, lists: Restrictions | None = None
) -> Change:
    document, table, dialect = open_target(target, raw), target.table, target.location.dialect
    # OpenCode's second format has one more level.
    newer = (*table, "servers")
    second = ".".join(newer) in dialect.server_keys and bool(document.entries(newer))
    table = newer if second else table
    present = document.entries(table)
    own = [name for name, value in present.items() if is_bridge(name, value, dialect)]
    name = entry.name or next(iter(own), NAME)
    if name in present and name not in own:
        message = f"{target.path} has another server named {name}."
        raise UsageError(message, remedy="Choose a name: --name NAME.")
    value = entry_value(target, entry, name, second=second)
    allowed, after = as_list(lookup(document.decoded, _allowed_at(target))), raw
    add = bool(allowed) and name not in allowed
    if present.get(name) != value or add:
        document = document.with_entry(table, name, value)
        after = (document.with_item(_allowed_at(target), name) if add else document).encode()
    others = [other for other in own if other != name]
    barred = _refusal(target, name, after, lists or Restrictions())
    notes = [f"{target.location.client} will not start it: {barred}."] if barred else []
    notes += [f"The file also has it as {', '.join(others)}."] if others else []
    if target.writer.contended and target.scope == "user" and raw is not None:
        notes.append(f"Close {target.writer.name} first: it may overwrite the file while it runs.")
    if target.root is not None:
        notes.append("The entry holds paths of this machine, so do not commit the file.")
    notes += [target.writer.note] if target.writer.note else []
    return Change(
        target=target,
        action="install",
        name=name,
        value=value,
        again=lambda now: plan_install(target, replace(entry, name=name), now, lists),
        before=raw,
        after=after,
        replaces=name in present,
        notes=tuple(notes),
        barred=barred,
        private=bool(entry.token),
    )


def plan_uninstall(target: Target, name: str, raw: bytes | None, journal: Journal) -> Change:
    """Plan to remove an entry; a file unchanged since the install gets its original bytes back."""
    record = journal.install_of(target.path, name, raw)
    document = open_target(target, raw).without(target.table, name)
    # An empty list would allow every server, so the last name stays in it.
    allowed = as_list(lookup(document.decoded, _allowed_at(target)))
    if rest := [each for each in allowed if each != name]:
        outer, _, key = _allowed_at(target).rpartition(".")
        document = document.with_entry(tuple(outer.split(".")), key, cast("Any", rest))
    after = document.encode() if record is None else record.before
    notes = ("The file has changed since the install, so only the entry is removed.",)
    return Change(
        target=target,
        action="uninstall",
        name=name,
        again=lambda now: plan_uninstall(target, name, now, journal),
        before=raw,
        after=after,
        notes=notes if record is None and after != raw else (),
    )


def apply(change: Change, journal: Journal) -> None:
    try:
        with ExitStack() as turns:
            turns.enter_context(lock_directory(journal.directory))
            if change.kept is not None:
                turns.enter_context(lock_directory(change.kept.directory))
            read_target(change.target)  # Checks again: the file may have become a link.
            _apply(change, journal)
    except OSError as error:
        message = f"{change.target.path} could not be changed: {error.strerror or error}."
        raise BridgeError(message) from error


def _apply(change: Change, journal: Journal) -> None:
    target, moves = change.target, bool(change.moved)
    new_directories = tuple(map(str, missing_directories(target.path)))
    last = journal.install_of(target.path, change.name, change.before)
    new: list[MoveRecord] = []
    latest = change

    def edit(now: bytes | None) -> bytes | None:
        nonlocal latest
        return change.again(now).after

    def keep_moved() -> None:
        if latest.kept is not None and latest.file is not None:
            latest.kept.write(latest.file, latest.store)

    def keep(before: bytes | None, after: bytes | None) -> None:
        if moves:
            # The moved servers must be on the disk before the client's file loses them.
            keep_moved()
        if change.action == "install" or moves:
            # A repeated install keeps the content before the first one for `uninstall`.
            first = last if last is not None and last.describes(before) and not moves else None
            record = MoveRecord(
                path=str(target.path),
                action="move" if moves else "install",
                name=change.name,
                before=first.before if first else before,
                after_sha256=digest(after),
                made_directories=first.made_directories if first else new_directories,
            )
            new.append(journal.add(record))

    readers = 0o700 if change.private else 0o777
    left = rewrite(target.path, edit, readers, root=target.root, before_replace=keep)
    old = new[:-1] if last is None or moves else [*new[:-1], last]
    if change.restored:
        keep_moved()
        if latest.file is not None and not latest.file.entries:
            old += [each for each in journal.records(target.path) if each.action == "move"]
    if change.action == "uninstall":
        # Old content may hold secrets, so a record goes when it can no longer be restored.
        old += journal.installs(target.path, change.name)
        if last is not None and left is None:
            remove_directories(tuple(map(Path, last.made_directories)))
    for record in old:
        journal.drop(record.id)


def installed_entries(
    machine: Machine, broken: dict[Path, tuple[Target, str]] | None = None
) -> Iterator[InstalledEntry]:
    """Yield the bridge's entries in clients' files; add unreadable files to `broken`."""
    for target in readable(machine):
        dialect = target.location.dialect
        raw = read_regular(target.path, limit=size_limit(target.location.format))
        try:
            if isinstance(raw, str):
                raise UneditableError(raw, path=str(target.path))
            document = open_target(target, raw)
        except UneditableError as error:
            if broken is not None:
                broken[target.path] = target, str(error)
            continue
        entries: list[tuple[str | None, object]] = []
        with suppress(UneditableError):  # The table may be another kind of value.
            entries = document.named_entries(target.table)
        for name, value in entries:
            if is_bridge(name or "", value, dialect):
                command, url = command_line(value, dialect), address(value, dialect)
                yield InstalledEntry(target=target, name=name or "", command=command, url=url)


def open_document(raw: bytes, format: Format, *, listed: bool = False, path: str = "") -> Document:
    kinds: Mapping[Format, type[Document]] = {"toml": TomlText, "yaml": YamlText}
    return kinds.get(format, JsonText).open(raw, format, listed=listed, path=path)


def open_target(target: Target, raw: bytes | None) -> Document:
    location = target.location
    return open_document(
        raw or b"", location.format, listed=location.dialect.listed, path=str(target.path)
    )


def _allowed_at(target: Target) -> str:
    """Return the dotted path of a file's list of allowed servers; empty if it has none."""
    return (target.location.dialect.gates or ("", ""))[0]


def _refusal(target: Target, name: str, after: bytes | None, lists: Restrictions) -> str:
    """Return the reason why the client would not start the entry; empty if it would."""
    client, path, dialect = target.location.client, str(target.path), target.location.dialect
    source = Source(client=client, scope=target.scope, path=path, key="")
    context = EntryContext(source=source, dialect=dialect, variables=Variables(environ={}))
    parsed = parse_document(decode(after or b"", target.location.format), context)
    spec = next((each for each in parsed.entries if each.name == name), None)
    if spec is None:
        raise BridgeError(f"{target.path} is not changed: discovery would not read the entry.")
    if isinstance(spec, SkippedServer):
        return spec.reason
    by = lists.off_by(spec.name, target.location.id)
    if by == f"{_allowed_at(target)} in {printable(str(target.path))}":
        by = ""  # The change adds the name.
    return f"it is switched off by {by}" if by else lists.reason(spec, target.location.id)


def with_own_commands(change: Change, machine: Machine) -> Change:
    """Add the client's own commands if the running client may overwrite its file."""
    target = change.target
    program = machine.program(target.writer.program)
    if not (target.writer.contended and target.scope == "user" and program):
        return change
    # Other users of this machine can read arguments, so the bridge's token must not be in one.
    if len(target.table) > 1 or (isinstance(change.value, dict) and "headers" in change.value):
        return change
    remove = (program, "mcp", "remove", "-s", "user", change.name)
    if change.action == "uninstall":
        return replace(change, commands=(remove,) if change.before is not None else ())
    text = json.dumps(change.value, ensure_ascii=False)
    add = (program, "mcp", "add-json", "-s", "user", change.name, text)
    return replace(change, commands=(remove, add) if change.replaces else (add,))


def listing_command(writer: Writer, machine: Machine) -> tuple[str, ...]:
    program = machine.program(writer.program)
    arguments = writer.command.split()[1:]
    return (program, *arguments) if program and arguments else ()


async def run_own(argv: tuple[str, ...], machine: Machine) -> str:
    """Run a client's command in the home directory and return its output.

    In a project, some clients would start even unapproved servers in order to list them.
    """
    environ = {**machine.context.environ, "NO_COLOR": "1", "FORCE_COLOR": "0"}
    try:
        with anyio.fail_after(60):
            done = await anyio.run_process(
                argv,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                check=False,
                env=environ,
                cwd=machine.context.home,
            )
    except TimeoutError:
        message = f"{argv[0]} did not exit within 60 seconds."
        raise BridgeError(message, remedy="Run it yourself.") from None
    except OSError as error:
        raise BridgeError(f"{argv[0]} could not be started: {error.strerror}.") from None
    output = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout.decode("utf-8", "replace"))[:20_000]
    if done.returncode:
        message = f"{' '.join(argv[:3])} failed with status {done.returncode}."
        raise BridgeError(message, host_detail=output.strip()[-1000:])
    return output


CONTEXT_LINES = 2

MAX_LINE = 200  # Characters per line.

HIDDEN = "•••"

_LEXERS = {".toml": TOMLLexer, ".yaml": YamlLexer, ".yml": YamlLexer}  # Others: JSON, comments.

_MARKS = re.compile(r"[][{}(),:=|>\s\"'-]*")
_KEY = re.compile(r'\s*"[^"]*"\s*:')  # Matches a line of JSON that begins with a key.
_NAMED = re.compile(r"""(?P<name>[\w-]+)["']?\s*[=:](?!//)\s*["']?(?P<value>[^\s"',;&?]+)""")
"""Matches a setting inside a text: an option, a variable, or a query parameter of a URL."""

_HARMLESS = re.compile(r"true|false|null")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """Return the diff of a file. JSON on one long line is shown indented."""
    old, new = _lines(path, before), _lines(path, after)
    # A file may have a hundred thousand lines, so only the differing middle is compared.
    start = len(commonprefix([old, new]))
    same = len(commonprefix([old[start:][::-1], new[start:][::-1]]))
    first, last = max(0, start - CONTEXT_LINES), max(0, same - CONTEXT_LINES)
    shown_old, shown_new = (_masked_from(path, text, first) for text in (old, new))
    old, new = old[first : len(old) - last], new[first : len(new) - last]
    body: list[str] = []
    for group in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
        body += [" …"] if body else []
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                body += [f" {line}" for line in shown_new[new_start:new_end]]
                continue
            body += [f"-{line}" for line in shown_old[old_start:old_end]]
            body += [f"+{line}" for line in shown_new[new_start:new_end]]
    names = [path if raw is not None else "(no file)" for raw in (before, after)]
    return visible("\n".join([f"--- {names[0]}", f"+++ {names[1]}", *body]) + "\n")


def _lines(path: str, raw: bytes | None) -> list[str]:
    text = (raw or b"").decode("utf-8-sig", "replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    if any(len(line) > MAX_LINE for line in lines) and not path.endswith(tuple(_LEXERS)):
        with suppress(ValueError, RecursionError):
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False).split("\n")
    return lines


def _masked_from(path: str, lines: list[str], first: int) -> list[str]:
    """Return the lines from `first` to the end, masked."""
    is_json = not path.endswith(tuple(_LEXERS))
    if is_json and not any("/*" in line for line in lines[:first]):
        # Only a comment spans lines in JSON, so lexing starts at the nearest key above.
        above = (at for at in range(min(first, len(lines) - 1), 0, -1) if _KEY.match(lines[at]))
        begin = next(above, 0)
        lines, first = lines[begin:], first - begin
    masked = "".join(_masked_tokens(path, "\n".join(lines))).split("\n")[first:]
    short = (re.sub(rf"(?:{HIDDEN})+", HIDDEN, line) for line in masked)
    return [line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…" for line in short]


def _masked_tokens(path: str, text: str) -> Iterator[str]:
    lexer = next((kind for end, kind in _LEXERS.items() if path.endswith(end)), JsonLexer)
    key, option = "", ""
    for kind, value in lexer(stripnl=False, ensurenl=False).get_tokens(text):
        bare = value.strip("\"' \n")
        if kind in {Name, Name.Tag}:
            key, option = bare, ""
            yield value
        elif _MARKS.fullmatch(value) or _HARMLESS.fullmatch(value):
            yield value
        elif kind not in Comment and (names_setting(key) or names_setting(option)):
            option = ""
            yield "\n".join(HIDDEN if line.strip() else line for line in value.split("\n"))
        else:
            option = bare if bare.startswith("-") and "=" not in bare else ""
            for match in reversed(list(_NAMED.finditer(value))):
                if names_setting(match["name"]):
                    value = f"{value[: match.start('value')]}{HIDDEN}{value[match.end() :]}"
            yield _LOGIN.sub(HIDDEN, value)
