"""A function's source together with what it needs, as a module that defines it.

Owns which of a program's other names go along: imports, constants that JSON can hold, functions and
classes that have a source themselves. Anything else stays behind, and saving says so. Imported by
programs that save a skill.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
import types

from bridge.guest.tracebacks import is_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

MAX_CONSTANT_CHARS = 16 * 1024
"""Of one constant. Data belongs in a memory, or in arguments."""

MAX_DEPTH = 50
"""Levels of one constant."""

MAX_DEFINITIONS = 100
"""Functions and classes that go along."""

_GIVEN = frozenset(
    (
        "Blob",
        "LOADED_MCP_SERVERS",
        "MCPError",
        "delete_memory",
        "display",
        "get_memory_info",
        "list_memories",
        "load_memory",
        "mcp",
        "mcp_servers",
        "memory_exists",
        "runtime",
        "save_memory",
        "save_skill",
        "save_tool",
        "update_memory",
    )
)
"""What every module of a skill has."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def collect(function: Any, name: Optional[str] = None) -> Dict[str, Any]:
    """Return the name and the source of a skill.

    Args:
        function: A function, or a source as text.

    Raises:
        TypeError: It is none, or uses what cannot be kept.
        ValueError: It cannot be called so.
        SyntaxError: It is text, and no Python.
    """
    if isinstance(function, str) and function.isidentifier():
        message = (
            "a skill is a function, or its source, not the text %.80r; the function comes first: "
            'save_skill(function, description="...")'
        )
        raise TypeError(message % function)
    if name is not None and not name.isidentifier():
        message = "a skill's name has English letters, digits and underscores, not %.80r"
        raise ValueError(message % name)
    if isinstance(function, str):
        source = textwrap.dedent(function)
        compile(source, "<skill>", "exec", dont_inherit=True)
        return {"source": source, **({} if name is None else {"name": name})}
    inner = inspect.unwrap(function) if callable(function) else function
    if not isinstance(inner, types.FunctionType) or inner.__name__ == "<lambda>":
        kind = "a lambda" if inspect.isfunction(inner) else "a %s" % type(function).__name__
        message = "a skill is a function made with `def` or `async def`, or its source, not %s"
        raise TypeError(message % kind)
    source = _Collector(inner).source(name or inner.__name__)
    return {"name": name or inner.__name__, "source": source}


class _Collector:
    """Puts together the module for one function."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._imports: Dict[str, None] = {}
        self._constants: Dict[str, str] = {}
        self._definitions: List[str] = []
        self._seen: Set[str] = set()
        self._problems: List[str] = []

    def source(self, name: str) -> str:
        """Return the module's source, in which the function goes by `name`."""
        own = self._function.__name__
        self._seen.add(own)
        segment = self._function_source(self._function)
        if segment is None:
            message = "the source of %r is not known: define it in the program, or give its source"
            raise TypeError(message % own)
        free = [each for each in self._function.__code__.co_freevars if each != "__class__"]
        # Told of below; they are no names of the program's.
        self._seen.update(free)
        self._needs(segment, self._function.__globals__, self._function.__code__.co_filename)
        self._problems += [
            "`%s` of the function around it: make it an argument" % each for each in free
        ]
        if self._problems:
            raise TypeError("%s cannot be kept; it uses %s" % (own, "; ".join(self._problems)))
        if name != own:
            segment = _renamed(segment, own, name)
        head = list(self._imports)
        if self._function.__code__.co_flags & __future__.annotations.compiler_flag:
            head.insert(0, "from __future__ import annotations")
        constants = ["%s = %s" % item for item in self._constants.items()]
        blocks = ["\n".join(head), "\n".join(constants)]
        parts = ["\n".join(filter(None, blocks))] if any(blocks) else []
        return "\n\n\n".join([*parts, *self._definitions, segment]) + "\n"

    # --- what it uses ---------------------------------------------------------------------------

    def _needs(self, segment: str, names: Dict[str, Any], file: str) -> None:
        """Take along what a piece of source refers to."""
        for name in sorted(_free_names(segment)):
            if name in self._seen:
                continue
            self._seen.add(name)
            if name not in names:
                there = name in _GIVEN or name.startswith("mcp_") or name in vars(builtins)
                if not there:
                    self._problems.append("`%s`, which is defined nowhere" % name)
                continue
            value = names[name]
            if (name in _GIVEN or name.startswith("mcp_")) and not _is_own(value):
                continue
            self._take(name, value, segment, file)

    def _take(self, name: str, value: Any, segment: str, file: str) -> None:
        imported = _import_of(name, value, file)
        if imported:
            self._imports[imported] = None
        elif isinstance(value, types.ModuleType):
            for line in _module_imports(name, value, segment):
                self._imports[line] = None
        elif _is_own(value):
            self._define(name, value)
        elif value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)):
            self._constant(name, value)
        else:
            home = _home(value)
            if home:
                self._imports[_import_line(home[0], home[1], name)] = None
            else:
                self._refuse(name, value)

    def _define(self, name: str, value: Any) -> None:
        if len(self._definitions) >= MAX_DEFINITIONS:
            self._problems.append("more than %d functions and classes" % MAX_DEFINITIONS)
            return
        if isinstance(value, type):
            found = _class_source(value)
            names: Dict[str, Any] = vars(sys.modules.get("__main__", types))
            file = "" if found is None else found[1]
            segment = None if found is None else found[0]
        else:
            value = inspect.unwrap(value)
            names, file = value.__globals__, value.__code__.co_filename
            segment = self._function_source(value)
            if value.__code__.co_freevars:
                segment = None
        if segment is None or value.__name__ == "<lambda>":
            self._refuse(name, value)
            return
        self._seen.add(value.__name__)
        self._needs(segment, names, file)
        self._definitions.append(segment)
        if value.__name__ != name:
            self._definitions.append("%s = %s" % (name, value.__name__))

    def _constant(self, name: str, value: Any) -> None:
        try:
            text = repr(_literal(value, 0))
            same = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError):
            self._refuse(name, value)
            return
        if len(text) > MAX_CONSTANT_CHARS or same != value:
            message = "`%s`, which takes %d characters: keep it with save_memory, or pass it"
            self._problems.append(message % (name, len(text)))
            return
        self._constants[name] = text

    def _refuse(self, name: str, value: Any) -> None:
        message = "`%s` (%s): make it an argument, or make it inside the function"
        self._problems.append(message % (name, type(value).__name__))

    def _function_source(self, function: types.FunctionType) -> Optional[str]:
        code = function.__code__
        for node in _nodes(code.co_filename, _FUNCTIONS):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                return _segment(node, code.co_filename)
        return None


def _literal(value: Any, depth: int) -> Any:
    """Return a value as it is written, of plain types only."""
    if depth > MAX_DEPTH:
        raise ValueError(depth)
    if isinstance(value, dict):
        return {_literal(key, depth + 1): _literal(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        return kind(_literal(item, depth + 1) for item in value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(value)


def _is_own(value: Any) -> bool:
    """Whether the program defines it."""
    if isinstance(value, type):
        return value.__module__ == "__main__"
    inner = inspect.unwrap(value) if callable(value) else value
    return isinstance(inner, types.FunctionType) and is_program(inner.__code__.co_filename)


def _free_names(segment: str) -> Set[str]:
    """Return the names that a piece of source takes from around it."""
    found: Set[str] = set()
    tables = [symtable.symtable(segment, "<skill>", "exec")]
    while tables:
        table = tables.pop()
        outside = str(table.get_type()) == "module"
        for symbol in table.get_symbols():
            if outside:
                if symbol.is_referenced() and not symbol.is_assigned():
                    found.add(symbol.get_name())
            elif symbol.is_global():
                found.add(symbol.get_name())
        tables += table.get_children()
    return found


# --- sources ---------------------------------------------------------------------------------


def _nodes(file: str, kinds: Tuple[Any, ...]) -> Iterator[Any]:
    text = "".join(linecache.getlines(file))
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(text, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    assert isinstance(tree, ast.AST)
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield node


def _segment(node: Any, file: str) -> str:
    """Return a definition's lines, from its first decorator on."""
    lines = linecache.getlines(file)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    text = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    try:
        [same] = ast.parse(text).body
        if ast.dump(same) == ast.dump(node):
            return text
    except (SyntaxError, ValueError):
        pass
    # Texts of several lines may stand in it, or something else on its last line.
    return ast.unparse(node)


def _class_source(kind: type) -> Optional[Tuple[str, str]]:
    """Return a class's source and its file, by its methods or, without any, by its name."""
    codes = [inspect.unwrap(each) for each in vars(kind).values() if callable(each)]
    files = [each.__code__.co_filename for each in codes if isinstance(each, types.FunctionType)]
    files = [each for each in files if is_program(each)]
    for file in [*files, *reversed([each for each in linecache.cache if is_program(each)])]:
        found = [node for node in _nodes(file, (ast.ClassDef,)) if node.name == kind.__name__]
        if found:
            return _segment(found[-1], file), file
    return None


def _renamed(segment: str, old: str, new: str) -> str:
    """Return a function's source under another name; by its old one it still knows itself."""
    tree = ast.parse(segment)
    [node] = tree.body
    assert isinstance(node, _FUNCTIONS)
    lines = segment.split("\n")
    head = lines[node.lineno - 1]
    before, _, after = head.partition("def ")
    lines[node.lineno - 1] = "%sdef %s" % (before, after.replace(old, new, 1))
    uses = any(isinstance(each, ast.Name) and each.id == old for each in ast.walk(node))
    return "\n".join(lines) + ("\n\n\n%s = %s" % (old, new) if uses else "")


# --- imports ---------------------------------------------------------------------------------


def _import_of(name: str, value: Any, file: str) -> str:
    """Return the import statement of the program that a name is from, if there is one."""
    found = ""
    for node in _nodes(file, (ast.Import, ast.ImportFrom)):
        for item in node.names:
            if (item.asname or item.name) != name:
                continue
            if isinstance(node, ast.Import):
                if sys.modules.get(item.name) is value:
                    found = _plain_import(item.name, name)
            elif node.module and not node.level:
                top = node.module.partition(".")[0]
                there = getattr(sys.modules.get(node.module), item.name, None)
                if top in ("mcp", "skills") or there is value:
                    found = _import_line(node.module, item.name, name)
    return found


def _plain_import(module: str, name: str) -> str:
    return "import %s" % module if module == name else "import %s as %s" % (module, name)


def _import_line(module: str, item: str, name: str) -> str:
    line = "from %s import %s" % (module, item)
    return line if item == name else "%s as %s" % (line, name)


def _module_imports(name: str, module: types.ModuleType, segment: str) -> Iterator[str]:
    """Yield the imports of a module, and of those in it that are reached by attribute."""
    yield _plain_import(module.__name__, name)
    for node in ast.walk(ast.parse(segment)):
        parts: List[str] = []
        each: Any = node
        while isinstance(each, ast.Attribute):
            parts.append(each.attr)
            each = each.value
        if not parts or not isinstance(each, ast.Name) or each.id != name:
            continue
        dotted = module.__name__
        for part in reversed(parts):
            if "%s.%s" % (dotted, part) not in sys.modules:
                break
            dotted = "%s.%s" % (dotted, part)
        if dotted != module.__name__:
            yield "import %s" % dotted


def _home(value: Any) -> Optional[Tuple[str, str]]:
    """Return the module and the name by which a value can be imported."""
    name = getattr(value, "__qualname__", None) or getattr(value, "_name", None)
    module = getattr(value, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str) or not name.isidentifier():
        return None
    if module.startswith("skills."):
        own = module.partition(".")[2]
        return ("skills", name) if name == own else (module, name)
    # Where it is made may be private, and not there in another version.
    for home in dict.fromkeys((module.partition(".")[0], module.lstrip("_"), module)):
        there = None if home == "__main__" else sys.modules.get(home)
        if there is not None and getattr(there, name, None) is value:
            return home, name
    return None
