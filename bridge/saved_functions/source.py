"""A skill as text: the rules for its source, and the header of its file. Pure.

These rules cover only the form. The sandbox, the gate and the reviewer judge a skill's effects.
"""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter

from bridge.catalog.program.parsing import parse
from bridge.errors import InvalidRequestError
from bridge.model import Finding, Provenance
from bridge.saved_functions.documents import MAX_VALUE_BYTES
from bridge.text import valid_text

# A program can save any text.
MAX_NODES = 15_000  # Syntax nodes; Python's own modules of 64 KiB have fewer than 10,000.

MAX_DESCRIPTION_CHARS = 500

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
"""A valid name of a file on every system."""

Tools = Mapping[str, Mapping[str, str]]  # Server, tool, digest of the tool's definition.

PACKAGE = "skills"  # Programs import skills from this package.

_LIBRARY = sys.stdlib_module_names

_OPEN = "# /// mcp-code-bridge-skill\n"
_CLOSE = "# ///\n"

_SMALLER = "Split it, or leave out data."

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_LITERALS = (
    ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.operator,
    ast.unaryop, ast.expr_context,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SkillCode:
    """The code of a skill. The signature starts with `await` if the function is async."""

    name: str
    source: str = field(repr=False)
    tree: ast.Module = field(compare=False, repr=False)
    signature: str = ""
    docstring: str = ""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The head of a skill's file. Times are in ISO 8601, in UTC."""

    description: str = ""
    version: Annotated[int, Field(gt=0, lt=10**9, validate_default=True)] = 0
    created: str = ""
    updated: str = ""
    digest: str = ""
    tools: Tools = field(default_factory=dict)
    # None if that of the saving run was not recorded.
    provenance: Annotated[
        Provenance | None,
        PlainValidator(Provenance.of),
        PlainSerializer(Provenance.document, when_used="unless-none"),
    ] = None

    @property
    def tool_names(self) -> list[str]:
        return [f"{server}.{tool}" for server, tools in self.tools.items() for tool in tools]


_HEADER = TypeAdapter(Header)


@dataclass(frozen=True, kw_only=True)
class Skill:
    """A skill that was read from its file."""

    name: str
    text: str = field(repr=False)  # The whole file; tracebacks show its lines.
    source: str = field(repr=False)
    header: Header
    version: int  # One more than the saved one if the file was edited.
    edited: bool = False
    code: SkillCode | None = field(default=None, repr=False)
    problem: str = ""  # Why it cannot be used; empty if it is valid.

    @property
    def digest(self) -> str:
        """The digest of the whole text, which a person approves."""
        return source_digest(self.text)

    @property
    def description(self) -> str:
        text = self.header.description or (self.code.docstring if self.code else "")
        return " ".join(text.split())[:MAX_DESCRIPTION_CHARS]

    @property
    def signature(self) -> str:
        return self.code.signature if self.code else f"{self.name}(...)"


def source_digest(source: str) -> str:
    return f"sha256:{hashlib.sha256(source.encode('utf-8', 'surrogatepass')).hexdigest()}"


def text_digest(text: str) -> str:
    """Return `Skill.digest` for the text of a file."""
    return source_digest(_lines(text))


def read_code(source: str, name: str = "") -> SkillCode:
    """Check a source against the rules for skills; without a name, take the only function."""
    source = _lines(source)
    size = len(source.encode("utf-8", "surrogatepass"))
    if size > MAX_VALUE_BYTES:
        message = f"The skill's source takes {size:,} bytes; the limit is {MAX_VALUE_BYTES:,}."
        raise InvalidRequestError(message, remedy=_SMALLER)
    tree = parse(source)
    if isinstance(tree, Finding) or source[0] in " \t":
        why = tree if isinstance(tree, Finding) else "it is indented as a whole"
        raise InvalidRequestError(f"The skill's source cannot be read: {why}.", remedy=_SMALLER)
    if sum(1 for _ in islice(ast.walk(tree), MAX_NODES + 1)) > MAX_NODES:
        message = f"The skill's source has more than {MAX_NODES:,} syntax nodes."
        remedy = f"Each name, number, call and operator is one. {_SMALLER}"
        raise InvalidRequestError(message, remedy=remedy)
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    if not name and len(functions) == 1:
        name = functions[0].name
    if not name:
        message = f"The source defines {len(functions)} functions at its top level."
        remedy = "Pass the name of the skill's function as `name`."
        raise InvalidRequestError(message, remedy=remedy)
    taken = keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in _LIBRARY
    if taken or not NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{name!r:.80} cannot be the name of a skill. A name has up to 64 English letters, "
            "digits and underscores, and starts with a letter. Keywords and modules of Python's "
            "library are not allowed."
        )
    own = [node for node in functions if node.name == name]
    if len(own) != 1:
        message = f"The source defines {name!r} {len(own)} times at its top level."
        raise InvalidRequestError(message, remedy="Define it once, as a function.")
    _check_top_level(tree)
    return SkillCode(
        name=name,
        source=source,
        tree=tree,
        signature=_signature(own[0]),
        docstring=valid_text(ast.get_docstring(own[0]) or ""),
    )


def _lines(source: str) -> str:
    source = source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    return f"{source}\n"


def _check_top_level(tree: ast.Module) -> None:
    defined: set[str] = set()
    for node in tree.body:
        if not _is_definition(node, defined):
            text = ast.unparse(node).splitlines()[0][:60]
            message = (
                f"Line {node.lineno} of the skill's source, {text!r}, would run whenever the skill "
                "is imported. Only imports, constants, functions and classes are allowed outside "
                "functions."
            )
            raise InvalidRequestError(message, remedy="Move it into the function.")
        if isinstance(node, _DEFINITIONS):
            defined.add(node.name)


def _is_definition(node: ast.stmt, defined: set[str]) -> bool:
    if isinstance(node, ast.ImportFrom):
        return not any(item.name == "*" for item in node.names)
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return isinstance(node, (*_DEFINITIONS, ast.Import, ast.Pass))
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not all(isinstance(target, ast.Name) for target in targets):
        return False
    value = node.value
    if value is None or (isinstance(value, ast.Name) and value.id in defined):
        return True
    return all(isinstance(part, _LITERALS) for part in ast.walk(value))


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    call = f"{node.name}({ast.unparse(node.args)})"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"await {call}"
    if node.returns is not None:
        call = f"{call} -> {ast.unparse(node.returns)}"
    call = valid_text(" ".join(call.split()))
    return call if len(call) <= 300 else f"{call[:300]}…"


def encode_skill(header: Header, source: str) -> str:
    header = replace(header, description=valid_text(header.description[:MAX_DESCRIPTION_CHARS]))
    head = _HEADER.dump_python(header, exclude_none=True)
    lines = json.dumps(head, indent=1, ensure_ascii=False).split("\n")
    return "".join((_OPEN, *(f"# {line}\n" for line in lines), _CLOSE, source))


def decode_skill(text: str) -> tuple[Header | None, str]:
    """Return a file's header, if it can be read, and the source below it."""
    text = _lines(text)
    if not text.startswith(_OPEN):
        return None, text
    head, mark, source = text.removeprefix(_OPEN).partition(_CLOSE)
    if not mark:
        return None, text
    lines = head.removesuffix("\n").split("\n")
    if not all(line.startswith("#") for line in lines):
        # Python executes a line without `#`, so it belongs to the reviewed source.
        return None, text
    try:
        return _HEADER.validate_python(json.loads("\n".join(line[1:] for line in lines))), source
    except (ValueError, RecursionError):
        return None, source


def version_of(header: Header | None, source: str) -> tuple[int, bool]:
    """Return a file's version, and whether the file was edited."""
    if header is None:
        return 1, True
    if header.digest == source_digest(source):
        return header.version, False
    return header.version + 1, True


def read_skill(name: str, text: str) -> Skill:
    """Read a skill from the text of its file. Call it in the event loop's thread, like `parse`."""
    header, source = decode_skill(text)
    version, edited = version_of(header, source)
    code, problem = None, ""
    # A damaged header may hide any provenance.
    damaged = Provenance(anything=True) if _lines(text).startswith(_OPEN) else None
    try:
        code = read_code(source, name)
    except InvalidRequestError as error:
        problem = error.message
    return Skill(
        name=name,
        text=_lines(text),
        source=source,
        header=header or Header(provenance=damaged),
        version=version,
        edited=edited,
        code=code,
        problem=problem,
    )


def named_skills(tree: ast.Module) -> tuple[str, ...] | None:
    """Return the skills that a program names; None if it does not import the package."""
    nodes = list(ast.walk(tree))
    names: dict[str, None] = {}
    modules: set[str] = set()
    imports = False
    for node in nodes:
        if isinstance(node, ast.Import):
            paths = [(item.name.split("."), item.asname) for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            paths = [([*node.module.split("."), item.name], "-") for item in node.names]
        else:
            continue
        for (top, *rest), asname in paths:
            imports |= top == PACKAGE
            if top == PACKAGE and rest and rest[0] != "*":
                names[rest[0]] = None
            if top == PACKAGE and (not rest or not asname):
                modules.add(asname or PACKAGE)
    for node in nodes:
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
            and not node.attr.startswith("_")
        ):
            names[node.attr] = None
    # The guest requests further skills during the run.
    return tuple(names)[:50] if imports else None
