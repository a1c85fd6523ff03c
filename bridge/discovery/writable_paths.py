"""Leaves out servers whose code is in directories that programs may write to.

Owns what is code and what is data in a server's definition. An argument or a variable that leads in
or above such a directory, and is not known to be data, lets a program in a sandbox choose code that
runs outside it. Files that a server reads by itself, such as a repository's hooks, are not covered.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from fnmatch import translate
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bridge.discovery.report import SkippedServer, printable, shown
from bridge.model import Directory, ServerSpec

EXPOSED = "it is not used: programs may write to the directory that it is in"

_KNOWN: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("known_arguments.toml").read_text(encoding="utf-8")
)
_ELSEWHERE = re.compile(r"(?!(?:git\+)?file:)[a-z][a-z0-9+.-]*:(?://[^/]|[^/.~]).*|@[\w.-]+/[^/]+")
"""Addresses, and packages of a registry with their scope."""

_TOKEN = re.compile(r"""[;&|()<>`]+|(?:\\.|"[^"]*"|'[^']*'|[^\s;&|()<>`"'])+""")
_SEPARATOR = re.compile(r"[:;,=\s\"'(){}\[\]]+")


class WritablePaths:
    """The directories that programs may write to."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._tops = {way: each for each in places for way in (each, Path(os.path.realpath(each)))}
        # A mount of one, or its name in other letters, is the same directory.
        self._same = {_identity(top): place for top, place in self._tops.items()}
        self._found: dict[Path, Path | None] = {}

    def contains(self, path: Path) -> Path | None:
        """Return the directory that a path is in, or that the way to it leads through."""
        if path not in self._found:
            self._found[path] = self._holder(path)
        return self._found[path]

    def _holder(self, path: Path) -> Path | None:
        *passed, end = _walk(path)
        for start in (end, *(each.parent for each in passed)):
            for each in (start, *start.parents):
                place = self._tops.get(each) or self._same.get(_identity(each) or ())
                if place is not None:
                    return place
        return None

    def touches(self, path: Path) -> Path | None:
        """Return the directory that a path is in or above; None if there is none."""
        *_, end = _walk(path)
        above = (place for top, place in self._tops.items() if top.is_relative_to(end))
        return self.contains(path) or next(above, None)


def _identity(path: Path) -> tuple[int, ...] | None:
    with suppress(OSError, ValueError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _walk(path: Path) -> Iterator[Path]:
    """Yield the links on the way to a path, where it turns back, and last where it leads.

    Whoever can replace one of them decides where that is.
    """
    at, parts, links = Path(path.anchor), [*reversed(path.parts[1:])], 0
    while parts:
        part, target = parts.pop(), None
        with suppress(OSError, ValueError):
            target = Path(os.readlink(at / part)).parts if links < 40 else None  # noqa: PTH115
        if part == "..":
            yield at
            at = at.parent
        elif target:
            yield at / part
            links += 1
            parts += reversed(target)
        else:
            at /= part
    yield at


class _Definition:
    """A server's definition: what it starts, and the paths in it that are not known to be data.

    Attributes:
        executable: Where the command is, searched for without writable directories.
        changes: Variables that would lead to them, with the values that the server gets.
    """

    def __init__(
        self, spec: ServerSpec, exposed: WritablePaths, cwd: Path, environ: Mapping[str, str]
    ) -> None:
        self._spec, self._exposed, self._environ = spec, exposed, environ
        self._base = self._project = Path(os.path.realpath(cwd / (spec.cwd or "")))
        self._own = {"PWD": str(self._base), **environ, **spec.env}
        self._programs: list[Mapping[str, Any]] = [_KNOWN["program"][-1]]
        self._reads_project = False
        entries = (self._own.get("PATH") or os.defpath).split(os.pathsep)
        safe = [each for each in entries if not exposed.contains(self._base / each)]
        self.changes = {} if safe == entries else {"PATH": os.pathsep.join(safe) or os.defpath}
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            if exposed.contains(self._base / environ.get(name, "/")):
                self.changes[name] = ""
        self.executable, found = (self._which(paths) for paths in (safe, entries))
        bare = self.executable or found
        self._command = bare if "/" not in spec.command else str(self._base / spec.command)

    def _which(self, entries: Iterable[str]) -> str:
        search = os.pathsep.join(str(self._base / each) for each in entries)
        command = self._spec.command
        return "" if "/" in command else shutil.which(command, path=search) or ""

    def parts(self) -> Iterator[tuple[str, Path]]:
        """Yield each part of the definition that code may come from, and where that leads."""
        start = self._base
        if self._command:
            yield "its command", Path(self._command)
            for word in _first_line(self._command):
                self._note(word)
                yield from self._named(word, "the first line of its command")
        yield from self._of_words(tuple(_words((self._spec.command, *self._spec.args))))
        # Relative ones count where the command starts and where its words move to.
        for base in dict.fromkeys((start, self._base)):
            self._base = base
            yield from self._of_variables(" ".join(each["reads"] for each in self._programs))
        if self._reads_project and (place := self._exposed.contains(self._project)):
            yield "its working directory", place

    def _of_variables(self, read: str) -> Iterator[tuple[str, Path]]:
        for name, value in self._own.items():
            inherited = self._environ.get(name) == value
            code = bool(_pattern(read).match(name))
            if not code if inherited else _known("data_variables", name):
                continue
            said = f"{'the inherited' if inherited else 'its'} variable {shown(name)}"
            always = code and name.endswith(("PATH", "LIB", "FILES", "BASH_ENV")) and value
            for each in value.split(os.pathsep) if always else (value,):
                yield from self._named(each or "." * bool(always), said, bool(always))
            options = (each.partition("=")[0] for each in value.split() if code)
            self._reads_project |= any(_known("project_options", each) for each in options)

    def _of_words(self, words: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
        program: Mapping[str, Any] | None = None
        serves = any(_known("filesystem_servers", word) for word in words)
        called, option, began = "", "", 0
        for index, word in enumerate(words):
            if not word.strip(";&|()<>`"):
                program, option = None, ""
                continue
            before, option, text = option, "", word
            script = bool(program and program.get("script"))
            if word.startswith("-"):
                before, joined, text = word.partition("=")
                reads = script and before != "-m" and _known("project_options", before)
                self._reads_project |= reads and not called.endswith("sh")
                if not joined:
                    option = word
                    yield from self._named(word, f"its argument {shown(word)!r}")
                    continue
            if program and _known("subcommands", text):
                if text == "tool":
                    program, self._reads_project = self._note("uvx"), False
                continue
            said = f"its argument {shown(before or text)!r}"
            alone = before == "" or _known("flags", before)
            if not self._is_data(text, before, program, alone, serves):
                yield from self._named(text, said, always=script and alone)
            kept_out = began == 0 and self._spec.cwd is None
            if script and (before == "-m" or (alone and re.match(r"\w+[.:]\w", text))):
                self._reads_project |= before == "-m" and not kept_out
                module = self._base / re.split("[.:]", text)[0]
                names = (module, module.with_suffix(".py"))
                yield from ((said, each) for each in names if os.path.lexists(each))
            other = None if _known("data_options", before) else self._note(text)
            if other is not None:
                program, called, began = other, Path(text).name, index
                first = index == 0 and kept_out and called == "npx"
                self._reads_project |= other.get("project", False) and not first
            elif program is not None:
                self._move(called, program, before, text)
                inner = _known("value_options", before) or _known("package_options", before)
                ends = alone or before == "-m" or _known("text_options", before)
                if ends or (script and "/" in text and not inner):
                    program = None

    def _note(self, word: str) -> Mapping[str, Any] | None:
        """Return the program that a word starts, if it is a known one, and note what it reads."""
        name = word.rpartition("/")[2]
        program: Mapping[str, Any]
        for program in _KNOWN["program"][:-1]:
            names = program["names"].split()
            if not word.startswith("@") and (name in names or name.rstrip("0123456789.") in names):
                self._programs.append(program)
                return program
        return None

    def _move(self, called: str, program: Mapping[str, Any], option: str, text: str) -> None:
        """Follow a program to the directory where it reads what comes next."""
        runs = program.get("project", False)
        if called in ("cd", "pushd") or (runs and option in ("-C", "--directory")):
            self._base = self._project = self._base / text
        elif runs and option in ("--project", "--prefix"):
            self._project = self._base / text

    def _is_data(
        self, text: str, option: str, program: Mapping[str, Any] | None, alone: bool, serves: bool
    ) -> bool:
        """Whether a word is known to name data, or no path."""
        if program is None:
            if _known("data_options", option) or (alone and _known("data_files", text)):
                return True
            plain = alone and not _known("code_files", text)
            return plain and (serves or os.path.isdir(self._base / text))  # noqa: PTH112
        if program["names"].startswith("docker") and _known("container_options", option):
            return True
        package = not program.get("script") and (alone or _known("package_options", option))
        return package and "/" not in text and not text.startswith((".", "~", "file:"))

    def _named(self, text: str, said: str, always: bool = False) -> Iterator[tuple[str, Path]]:
        """Yield the paths in a text.

        Args:
            always: Whether the text is a path in any spelling, and if there is no such file.
        """
        text = re.sub(r"\$\{?(\w+)\}?", lambda found: self._own.get(found[1], ""), text)
        if not text or _ELSEWHERE.fullmatch(text):
            return
        plain = f"{text} {unquote(text)}".replace("//localhost/", "/")
        for piece in dict.fromkeys((text, *_SEPARATOR.split(plain))):
            # An option's letter before its value, and a pattern after the directory.
            fixed = re.sub(r"^(?:-[A-Za-z]|@)(?=.)", "", piece)
            fixed = re.split(r"(?<=/)[^/]*[*?\[]|^[^/]*[*?\[]", fixed)[0]
            if re.match("~(?:/|$)", fixed):
                fixed = self._own.get("HOME", "") + fixed[1:]
            path = self._base / re.sub("^/+", "/", os.path.expanduser(fixed))  # noqa: PTH111
            known = re.match(r"/|\.\.?/|~", fixed) or _known("code_files", fixed)
            if (always and piece == text) or known or (fixed and os.path.lexists(path)):
                yield said, path


@cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, words.split())))


def _known(table: str, word: str) -> bool:
    return _pattern(_KNOWN[table]).match(word) is not None


def _words(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the words of arguments, and of those that are command lines themselves."""
    before = ""
    for argument in arguments:
        line = _known("text_options", before) or not argument.startswith(("-", "/", "~", "."))
        if line and re.search(r"\s", argument):
            tokens = _TOKEN.findall(argument.replace("$(pwd)", "$PWD").replace("`pwd`", "$PWD"))
            yield from _words(re.sub(r"""[\\"']""", "", each) for each in tokens)
        else:
            yield argument
        before = argument


def _first_line(command: str) -> list[str]:
    """Return the words of a script's first line, which names its interpreter."""
    with suppress(OSError, ValueError), Path(command).open("rb") as file:
        line = file.readline(256)
        return line[2:].decode("utf-8", "replace").split() if line[:2] == b"#!" else []
    return []


def leave_out_writable(
    servers: Iterable[ServerSpec],
    places: Iterable[Path],
    shares: Iterable[Directory],
    cwd: Path,
    environ: Mapping[str, str],
) -> tuple[tuple[ServerSpec, ...], tuple[SkippedServer, ...]]:
    """Return the servers whose code no program could choose or change, and the others as skipped.

    Args:
        places: Where programs may write, the writable `shares` among them.
        cwd: The bridge's working directory, also of servers without a `cwd`.
        environ: Variables that servers get besides their own.
    """
    kept: list[ServerSpec] = []
    skipped: list[SkippedServer] = []
    tables = {Path(each.path): each for each in shares}
    exposed_without: dict[tuple[Path, ...], WritablePaths] = {}
    for spec in servers:
        texts = (spec.command, *spec.args, *spec.env.values(), spec.cwd or "")
        if spec.transport != "stdio" or "\0" in "".join(texts):
            kept.append(spec)  # A NUL starts no process.
            continue
        used = tuple(place for place, each in tables.items() if spec.name in each.used_by)
        if used not in exposed_without:
            exposed_without[used] = WritablePaths(each for each in places if each not in used)
        exposed = exposed_without[used]
        start = _Definition(spec, exposed, cwd, environ)
        found = ((said, place) for said, path in start.parts() if (place := exposed.touches(path)))
        said, place = next(found, ("", None))
        if place is None:
            apart = exposed.contains(cwd) is not None
            start_ = replace(spec, executable=start.executable, changes=start.changes, apart=apart)
            kept.append(start_)
            continue
        reason = f"programs may write to {printable(str(place))}, where {said} leads"
        if place in tables:
            line = f"`used_by = [{json.dumps(spec.name)}]` to [directories.{tables[place].name}]"
            reason += f". If it may run what they write there, add {line} in config.toml"
        skipped.append(SkippedServer(name=spec.name, source=spec.source, reason=reason))
    return tuple(kept), tuple(skipped)
