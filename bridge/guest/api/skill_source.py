"""Collects a function's source and its dependencies into a module that defines it.

Dependencies are imports, constants that JSON can hold, and functions and classes with a source. Any
other dependency is an error that names it. Imported by programs that save a skill.
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

from bridge.guest.api.program_files import SKILL_HEAD, is_program
from bridge.guest.protocol.helpers import OWN_GLOBALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, Optional, Set

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def collect(function: Any, name: Optional[str] = None) -> Dict[str, Any]:
    """Return the name and the source of a skill; `function` is a function or a source as text."""
    if isinstance(function, str) and function.isidentifier():
        raise TypeError(
            "a skill is a function, or its source, not the text %.80r; the function comes first: "
            'save_skill(function, description="...")' % function
        )
    if name is not None and not name.isidentifier():
        message = "a skill's name has English letters, digits and underscores, not %.80r"
        raise ValueError(message % name)
    if isinstance(function, str):
        return {"source": textwrap.dedent(function), **({} if name is None else {"name": name})}
    inner = inspect.unwrap(function) if callable(function) else function
    if not isinstance(inner, types.FunctionType) or inner.__name__ == "<lambda>":
        kind = "a lambda" if inspect.isfunction(inner) else "a %s" % type(function).__name__
        message = "a skill is a function made with `def` or `async def`, or its source, not %s"
        raise TypeError(message % kind)
    source = _Collector(inner).source(name or inner.__name__)
    return {"name": name or inner.__name__, "source": source}


class _Collector:
    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._imports: Dict[str, None] = {}
        self._constants: Dict[str, str] = {}
        self._definitions: List[str] = []
        self._seen: Set[str] = set()
        self._problems: List[str] = []

    def source(self, name: str) -> str:
        """Return the module's source, in which the function is called `name`."""
        own = self._function.__name__
        self._seen.add(own)
        segment = _function_source(self._function)
        if segment is None:
            message = "the source of %r is not known: define it in the program, or give its source"
            raise TypeError(message % own)
        free = [each for each in self._function.__code__.co_freevars if each != "__class__"]
        # Reported below: they are not the program's names.
        self._seen.update(free)
        self._needs(segment, self._function.__globals__, self._function.__code__.co_filename)
        about = "`%s` of the function around it: make it an argument"
        self._problems += [about % each for each in free]
        if self._problems:
            raise TypeError("%s cannot be kept; it uses %s" % (own, "; ".join(self._problems)))
        if name != own:
            segment = _rename(segment, own, name)
        head = list(self._imports)
        if self._function.__code__.co_flags & __future__.annotations.compiler_flag:
            head.insert(0, "from __future__ import annotations")
        constants = ["%s = %s" % item for item in self._constants.items()]
        lines = "\n".join([*head, *constants])
        return "\n\n\n".join(filter(None, [lines, *self._definitions, segment])) + "\n"

    def _needs(self, segment: str, names: Dict[str, Any], file: str) -> None:
        for name in sorted(_free_names(segment)):
            if name in self._seen:
                continue
            self._seen.add(name)
            is_given = name in OWN_GLOBALS or name.startswith("mcp_")
            if name in names:
                if not is_given or _is_own(names[name]):
                    self._take(name, names[name], file)
            elif not is_given and name not in vars(builtins):
                self._problems.append("`%s`, which is defined nowhere" % name)

    def _take(self, name: str, value: Any, file: str) -> None:
        # Definitions in the same file as a skill's function are dependencies.
        beside = getattr(getattr(value, "__code__", None), "co_filename", None) == file
        own = beside or _is_own(value)
        imported = [] if own else _imports_of(name, value, file)
        if imported:
            self._imports.update(dict.fromkeys(imported))
        elif own:
            self._define(name, value, file)
        elif value is None or isinstance(value, (bool, int, float, str, list, tuple, dict)):
            self._constant(name, value)
        else:
            self._refuse(name, value)

    def _define(self, name: str, value: Any, file: str) -> None:
        names = self._function.__globals__
        if isinstance(value, type):
            classes = (
                (node, each) for each in _programs(file) for node in _nodes(each, ast.ClassDef)
            )
            found = {each: node for node, each in classes if node.name == value.__name__}
            segment = next((_segment(node, each) for each, node in found.items()), None)
        else:
            value = inspect.unwrap(value)
            names, file = value.__globals__, value.__code__.co_filename
            segment = None if value.__code__.co_freevars else _function_source(value)
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
            text = repr(_literal(value))
            same = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, RecursionError):
            self._refuse(name, value)
            return
        if len(text) > 16 * 1024 or same != value:  # Data belongs in a memory, or in arguments.
            message = "`%s`, which takes %d characters: keep it with save_memory, or pass it"
            self._problems.append(message % (name, len(text)))
            return
        self._constants[name] = text

    def _refuse(self, name: str, value: Any) -> None:
        message = "`%s` (%s): make it an argument, or make it inside the function"
        self._problems.append(message % (name, type(value).__name__))


def _literal(value: Any) -> Any:
    if isinstance(value, dict):
        return {_literal(key): _literal(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(map(_literal, value))
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(value)


def _is_own(value: Any) -> bool:
    if isinstance(value, type):
        return value.__module__ == "__main__"
    inner = inspect.unwrap(value) if callable(value) else value
    if not isinstance(inner, types.FunctionType):
        return False
    file = inner.__code__.co_filename
    return is_program(file) and not file.startswith(SKILL_HEAD)


def _free_names(segment: str) -> Set[str]:
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


def _programs(file: str) -> Iterator[str]:
    yield file
    yield from [each for each in reversed(list(linecache.cache)) if is_program(each)]


def _nodes(file: str, kinds: Any) -> List[Any]:
    text = "".join(linecache.getlines(file))
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: Any = compile(text, file, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def _function_source(function: types.FunctionType) -> Optional[str]:
    code = function.__code__
    for node in _nodes(code.co_filename, _FUNCTIONS):
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if node.name == code.co_name and first == code.co_firstlineno:
            return _segment(node, code.co_filename)
    return None


def _imports_of(name: str, value: Any, file: str) -> List[str]:
    for each in _programs(file):
        found = []
        for node in _nodes(each, (ast.Import, ast.ImportFrom)):
            for item in node.names:
                bound = item.asname or item.name
                if isinstance(node, ast.ImportFrom):
                    there = getattr(sys.modules.get(str(node.module)), item.name, value)
                    if bound == name and not node.level and there is value:
                        line = ast.ImportFrom(module=node.module, names=[item], level=0)
                        found = [ast.unparse(line)]
                elif isinstance(value, types.ModuleType) and (
                    bound == name or (not item.asname and bound.partition(".")[0] == name)
                ):
                    # Several statements may import submodules of one package.
                    found.append(ast.unparse(ast.Import(names=[item])))
        if found:
            return found
    return []


def _segment(node: Any, file: str) -> str:
    lines = linecache.getlines(file)
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    text = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()
    try:
        [same] = ast.parse(text).body
        if ast.dump(same) == ast.dump(node):
            return text
    except (SyntaxError, ValueError):
        pass
    # It contains a multi-line string, or other code follows on its last line.
    return ast.unparse(node)


def _rename(segment: str, old: str, new: str) -> str:
    [node] = ast.parse(segment).body
    assert isinstance(node, _FUNCTIONS)
    lines = segment.split("\n")
    before, _, after = lines[node.lineno - 1].partition("def ")
    lines[node.lineno - 1] = "%sdef %s" % (before, after.replace(old, new, 1))
    uses = any(isinstance(each, ast.Name) and each.id == old for each in ast.walk(node))
    return "\n".join(lines) + ("\n\n\n%s = %s" % (old, new) if uses else "")
