"""Skips servers whose code is in directories that programs may write to.

An argument or variable with a path in or above such a directory is code unless it is known to be
data. Files that a server reads on its own, such as a repository's hooks, are not covered.
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
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from bridge.discovery.report import SkippedServer, printable, shown
from bridge.model import Directory, ServerSpec

EXPOSED = "it is not used: programs may write to the directory that it is in"

_KNOWN: Mapping[str, Any] = tomllib.loads(
    Path(__file__).with_name("known_arguments.toml").read_text(encoding="utf-8")
)
_PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    name: row for row in reversed(_KNOWN["program"][:-1]) for name in row["names"].split()
}
# Bounded repetitions avoid quadratic time for a long text.
_ADDRESS = re.compile(r"\b(?!(?:\w{1,9}[+:])?file:)[a-z][a-z0-9+.-]{0,30}://[^/\s][^\s,;\"']*")
_SCOPED = re.compile(r"@[\w.-]+/[^/]+")  # A package in npm's registry.
_CHOSEN = re.compile(r"\$\{\w{1,99}:?[-=+]([^}]{0,200})\}")  # A shell's `${NAME:-word}`.

_TOKEN = re.compile(r"""[;&|()<>`]+|(?:\\.|"[^"]*"|'[^']*'|[^\s;&|()<>`"'])+""")
_SHELL = re.compile(r"(?:.*/)?(?:\w*sh|su|runuser|script|npx|npm)")  # Programs with `-c LINE`.
_SEPARATOR = re.compile(r"[:;,=|&<>\s\"'(){}\[\]]+")


class WritablePaths:
    def __init__(self, places: Iterable[Path]) -> None:
        self._tops = {way: each for each in places for way in (each, Path(os.path.realpath(each)))}
        # A bind mount, or another case of the name, may be the same directory.
        self._same = {_identity(top): place for top, place in self._tops.items()}
        self._found: dict[Path, Path | None] = {}

    def contains(self, path: Path) -> Path | None:
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
        *_, end = _walk(path)
        above = (place for top, place in self._tops.items() if top.is_relative_to(end))
        return self.contains(path) or next(above, None)


def _identity(path: Path) -> tuple[int, ...] | None:
    with suppress(OSError, ValueError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _walk(path: Path) -> Iterator[Path]:
    """Yield each link of a path, each directory before a "..", and last the real path.

    A program that can replace one of them controls the real path.
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
    """The programs that a server's definition starts, and its paths that may be code."""

    def __init__(
        self, spec: ServerSpec, exposed: WritablePaths, cwd: Path, environ: Mapping[str, str]
    ) -> None:
        self._spec, self._exposed, self._environ = spec, exposed, environ
        # Not resolved: a program that can replace a link controls the start directory.
        self._base = self._project = cwd / (spec.cwd or "")
        self._own = {**environ, **spec.env, "PWD": str(self._base)}  # Shells set PWD.
        self._start, self._mounts = self._base, dict[str, str]()
        self._programs: list[Mapping[str, Any]] = [_KNOWN["program"][-1]]
        self._program: Mapping[str, Any] | None = None
        self._called, self._began = "", 0
        self._reads_project = self._serves = self._opaque = self._command_next = False
        entries = (self._own.get("PATH") or os.defpath).split(os.pathsep)
        safe = [each for each in entries if not exposed.contains(self._base / each)]
        # Variables with writable directories, and their values for the server.
        self.changes = {} if safe == entries else {"PATH": os.pathsep.join(safe) or os.defpath}
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            if exposed.contains(self._base / environ.get(name, "/")):
                self.changes[name] = ""
        # `executable` is searched without writable directories.
        self.executable, found = (self._which(paths) for paths in (safe, entries))
        bare = self.executable or found
        self._command = bare if "/" not in spec.command else str(self._base / spec.command)

    def _which(self, entries: Iterable[str]) -> str:
        search = os.pathsep.join(str(self._base / each) for each in entries)
        command = self._spec.command
        return "" if "/" in command else shutil.which(command, path=search) or ""

    def parts(self) -> Iterator[tuple[str, Path]]:
        """Yield each part of the definition that may name code, and its path."""
        if self._command:
            yield "its command", Path(self._command)
        words = _words((self._spec.command, *self._spec.args))
        yield from self._of_words(tuple(islice(words, 10_000)))  # More than any real server has.
        # Resolve relative paths against the first and the last directory of the command.
        for base in dict.fromkeys((self._start, self._base)):
            self._base = base
            yield from self._of_variables(" ".join(each["reads"] for each in self._programs))
        project = self._outside(self._project)
        if self._reads_project and (place := self._exposed.contains(project)):
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
                yield from self._find_paths(each or "." * bool(always), said, always=bool(always))
            options = (each.partition("=")[0] for each in value.split() if code)
            self._reads_project |= any(_known("project_options", each) for each in options)

    def _of_words(self, words: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
        # The output of a command may become a program's name or arguments.
        self._opaque = any(word in ("|", "xargs", "parallel", "eval", "$", "`") for word in words)
        option, self._command_next = "", True
        for index, word in enumerate(words):
            if not word.strip(";&|()<>`"):
                self._program, option, self._command_next = None, "", True
                continue
            before, option, text, program = option, "", word, self._program
            if word.startswith("-"):
                before, joined, text = word.partition("=")
                reads = program and program.get("script") and before != "-m"
                reads = reads and _known("project_options", before)
                self._reads_project |= bool(reads) and not self._called.endswith("sh")
                if not joined:
                    option = word
                    yield from self._find_paths(word, f"its argument {shown(word)!r}")
                    continue
            if program and _known("subcommands", text):
                if text == "tool":
                    self._program, self._reads_project = self._note("uvx"), False
                continue
            yield from self._of_word(text, before, index)
            self._serves = self._serves or _known("filesystem_servers", text)

    def _of_word(self, text: str, before: str, index: int) -> Iterator[tuple[str, Path]]:
        program, said = self._program, f"its argument {shown(before or text)!r}"
        script = bool(program and program.get("script"))
        alone = before == "" or _known("flags", before)
        starts = self._command_next and alone and not re.match(r"\w+=", text)
        if not self._is_data(text, before, alone):
            always = alone and (script or (starts and "/" in text))
            always = always or (script and before == "-I")
            inside = script or before == "--entrypoint"
            yield from self._find_paths(text, said, always=always, inside=inside)
        kept_out = self._began == 0 and self._spec.cwd is None
        if script and (before == "-m" or (alone and re.match(r"\w+[.:]\w", text))):
            self._reads_project |= before == "-m" and not kept_out
            module = self._base / re.split("[.:]", text)[0]
            names = (module, module.with_suffix(".py"))
            yield from ((said, each) for each in names if os.path.lexists(each))
        path = self._executable(text) if starts or (alone and "/" in text) else ""
        image = program and program["names"].startswith("docker") and "/" in text
        argument = text == "." and not self._command_next
        none = image or argument or _known("data_options", before)
        other = None if none else self._note(text)
        if path:
            yield from self._of_first_line(path, said)
            other = other or self._note(os.path.realpath(path))
        if other is not None:
            self._program, self._called, self._began = other, Path(text).name, index
            first = index == 0 and kept_out and self._called == "npx"
            self._reads_project |= other.get("project", False) and not first
            self._command_next = other.get("starts", False)
        elif program is not None and program.get("starts"):
            # A number belongs to the launcher; another word may be a command.
            self._program = program if re.fullmatch(r"\w+=.*|[\d.]+\w?", text) else None
        elif program is not None:
            self._move(program, before, text)
            inner = _known("value_options", before) or _known("package_options", before)
            ends = alone or before == "-m" or _known("text_options", before)
            if ends or (script and "/" in text and not inner):
                self._program = None
        if path or (starts and "/" in text):
            self._command_next = bool(other and other.get("starts"))

    def _executable(self, word: str) -> str:
        if "/" in word:
            path = str(self._base / self._expand(word))
            return path if os.path.isfile(path) else ""  # noqa: PTH113
        return shutil.which(word, path=self.changes.get("PATH", self._own.get("PATH"))) or ""

    def _of_first_line(self, path: str, said: str) -> Iterator[tuple[str, Path]]:
        """Yield the paths of a script's interpreter, and record what it reads."""
        line = b""
        with suppress(OSError, ValueError), Path(path).open("rb") as file:
            line = file.readline(256)
        words = line[2:].decode("utf-8", "replace").split() if line[:2] == b"#!" else []
        for word in words:
            program = self._note(word)
            if program and word.endswith("sh"):  # A shell may start any program.
                self._programs += _KNOWN["program"]
            yield from self._find_paths(word, f"the first line of {said}")

    def _note(self, word: str) -> Mapping[str, Any] | None:
        """Return and record the program that a word starts, if it is known."""
        name = word.rpartition("/")[2]
        program = _PROGRAMS.get(name) or _PROGRAMS.get(name.rstrip("0123456789."))
        if program is None or word.startswith("@"):
            return None
        self._programs.append(program)
        return program

    def _move(self, program: Mapping[str, Any], option: str, text: str) -> None:
        """Follow a program's change of directory."""
        runs = program.get("project", False)
        if program["names"].startswith("docker"):
            pairs = dict(each.partition("=")[::2] for each in text.split(","))
            source, _, target = text.partition(":")
            source = pairs.get("src", pairs.get("source", source))
            target = pairs.get("dst", pairs.get("target", pairs.get("destination", target)))
            if option in ("-v", "--volume", "--mount") and target:
                self._mounts[target.partition(":")[0]] = str(self._start / self._expand(source))
            elif option in ("-w", "--workdir"):
                self._base = self._project = Path(text)
        elif self._called in ("cd", "pushd") or (runs and option in ("-C", "--directory")):
            self._base = self._project = self._base / text
        elif runs and option in ("--project", "--prefix"):
            self._project = self._base / text

    def _outside(self, path: Path) -> Path:
        for target, source in self._mounts.items():
            if path.is_relative_to(target):
                return Path(source) / path.relative_to(target)
        return path

    def _is_data(self, text: str, option: str, alone: bool) -> bool:
        program = self._program
        if program is None:
            if _known("data_options", option) or (alone and _known("data_files", text)):
                return True
            plain = alone and not self._opaque and not _known("code_files", text)
            directory = os.path.isdir(self._base / text)  # noqa: PTH112
            return plain and (self._serves or directory)
        if program["names"].startswith("docker") and _known("container_options", option):
            return True
        package = alone or _known("package_options", option)
        package = package and not program.get("script") and not program.get("starts")
        name = "/" not in text and not text.startswith((".", "~", "file:"))
        return package and (name or _SCOPED.fullmatch(text) is not None)

    def _expand(self, text: str) -> str:
        """Replace variables, with limits on their number and length."""

        def value(found: re.Match[str]) -> str:
            return self._own.get(found[1] or found[2], "")[:99_999]

        return re.sub(r"\$(?:\{(\w{1,99})[^}]{0,200}\}|(\w+))", value, text, count=64)

    def _find_paths(
        self, text: str, said: str, *, always: bool = False, inside: bool = False
    ) -> Iterator[tuple[str, Path]]:
        """Yield the paths in a text.

        `always`: the text is a path in any spelling, present or not. `inside`: it is a path in the
        container.
        """
        texts = [_ADDRESS.sub(" ", self._expand(text))]
        texts += [self._expand(_CHOSEN.sub(r"\1", text))] if "${" in text else []
        pieces = [piece for each in texts for piece in (each, *_SEPARATOR.split(unquote(each)))]
        pieces += _SEPARATOR.split(texts[0].replace("//localhost/", "/"))
        for piece in dict.fromkeys(each for each in pieces if len(each) < 4_096):  # PATH_MAX
            # Strip an option's letter before its value, and a pattern after the directory.
            fixed = re.sub(r"^(?:-[A-Za-z]|@)(?=.)", "", piece)
            fixed = re.split(r"(?<=/)[^/]*[*?\[{]|^[^/]*[*?\[{]", fixed)[0]
            if re.match("~(?:/|$)", fixed):
                fixed = self._own.get("HOME", "") + fixed[1:]
            path = self._base / re.sub("^/+", "/", os.path.expanduser(fixed))  # noqa: PTH111
            if fixed.startswith("~") and path.is_relative_to(self._base):  # `~+`, `~-`
                path = self._base
            # A text that begins with an existing name is a path, whether or not it exists.
            first = fixed and self._base / fixed.partition("/")[0]
            known = re.match(r"/|\.\.?/|~", fixed) or _known("code_files", fixed)
            if (always and piece in texts) or known or (first and os.path.lexists(first)):
                yield said, self._outside(path) if inside else path


@cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, words.split())))


def _known(table: str, word: str) -> bool:
    return _pattern(_KNOWN[table]).match(word) is not None


def _words(arguments: Iterable[str]) -> Iterator[str]:
    before, shell, arguments = "", False, tuple(arguments)
    for index, argument in enumerate(arguments):
        starts = shell and re.fullmatch(r"-\w*c", before)
        complete = starts and re.search(r"\$\{?[0-9@*]", argument)
        if complete:  # The words after a shell's line are its parameters.
            after = arguments[index + 1 :]
            values = {str(at): word[:99_999] for at, word in enumerate(after[:10])}
            values |= dict.fromkeys("@*", " ".join(after[1:])[:99_999])
            pieces = re.split(r"\$\{?([0-9@*])\}?", argument, maxsplit=64)
            pieces[1::2] = (values.get(each, "") for each in pieces[1::2])
            argument = "".join(pieces)
        yield from (";",) if starts else ()
        line = _known("text_options", before) or not argument.startswith(("-", "/", "~", "."))
        if starts or (line and re.search(r"\s", argument)):
            tokens = _TOKEN.findall(argument.replace("$(pwd)", "$PWD").replace("`pwd`", "$PWD"))
            lines = (re.sub(r"""[\\"']""", "", each) for each in tokens)
            yield from lines if tokens == [argument] else _words(lines)
        else:
            yield argument
        if complete:
            return
        before, shell = argument, shell or _SHELL.fullmatch(argument) is not None


def leave_out_writable(
    servers: Iterable[ServerSpec],
    places: Iterable[Path],
    shares: Iterable[Directory],
    cwd: Path,
    environ: Mapping[str, str],
) -> tuple[tuple[ServerSpec, ...], tuple[SkippedServer, ...]]:
    """Return the servers whose code programs can neither choose nor change, and the skipped ones.

    Programs may write to `places`, which include the writable `shares`. Servers get `environ`, and
    by default `cwd`.
    """
    kept: list[ServerSpec] = []
    skipped: list[SkippedServer] = []
    tables = {Path(each.path): each for each in shares}
    exposed_without: dict[tuple[Path, ...], WritablePaths] = {}
    for spec in servers:
        texts = (spec.command, *spec.args, *spec.env.values(), spec.cwd or "")
        if spec.transport != "stdio" or "\0" in "".join(texts):
            kept.append(spec)  # A NUL prevents any start.
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
