"""The code of functions, told by where it stands in a source that is known.

Owns the way from a code object to a reference and back. A function comes back by compiling the
source it is from and taking its code out of that: nothing of the source is run. What was compiled
is compared with what the function has, so that no function comes back with another's code.
"""

from __future__ import annotations

import _ast
import io
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterator, List, NoReturn, Optional, Tuple

    # File of the session or module; whether it is a module; name, first line, which of those.
    Reference = Tuple[str, bool, str, int, int]

MAX_CODES = 20_000
"""Code objects looked at in one source or module: more than any source of a megabyte has."""

_FLAGS = _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class NotKept(Exception):
    """A value cannot be kept, or not be had back; the message says why."""


def refuse(reason: str) -> NoReturn:
    """Say that a value cannot be kept, or not be had back."""
    raise NotKept(reason) from None


class Sources:
    """The sources that functions and classes of a session come from.

    Attributes:
        used: File name to text, of those that a reference was made into.
    """

    def __init__(self) -> None:
        self.used: Dict[str, str] = {}
        self._texts: Dict[str, Optional[str]] = {}
        self._codes: Dict[Tuple[str, bool], Dict[Tuple[str, int], List[types.CodeType]]] = {}

    def reference(self, code: types.CodeType, module: str = "") -> Reference:
        """Return where a code object is found again.

        Args:
            module: That the function belongs to; empty for the session's own.

        Raises:
            NotKept: Its source is not known, or is another than it was.
        """
        file = module or code.co_filename
        key = (code.co_name, code.co_firstlineno)
        for number, other in enumerate(self._found(file, bool(module)).get(key, ())):
            if other is code or (not module and other == code):
                if not module:
                    self.used[file] = self.text(file) or ""
                return (file, bool(module), key[0], key[1], number)
        refuse("its source is not known")

    def code(self, reference: Reference) -> types.CodeType:
        """Return the code object that a reference stands for.

        Raises:
            NotKept: There is none.
        """
        file, is_module, name, line, number = reference
        found = self._found(file, is_module).get((name, line), ())
        if number >= len(found):
            raise NotKept("its code is not in %s any more" % file)
        return found[number]

    def text(self, file: str) -> Optional[str]:
        """Return a source of the session; None if it is not known."""
        if file not in self._texts:
            import linecache  # whoever has a traceback has it, and few keep functions

            entry = linecache.cache.get(file)
            # Only what was registered: the others are files, which may have changed.
            known = entry is not None and len(entry) == 4 and entry[1] is None
            self._texts[file] = "".join(entry[2]) if known else None  # type: ignore[index,misc]
        return self._texts[file]

    def files(self) -> List[str]:
        """Return the names of the session's sources, the newest last."""
        import linecache

        return [file for file in linecache.cache if file.startswith("<")]

    def put(self, file: str, text: str) -> None:
        """Make a source known, to tracebacks and to the next checkpoint too."""
        import linecache

        # Lines end where Python says so: str.splitlines knows ends that are none.
        lines = io.StringIO(text, newline=None).readlines()
        linecache.cache[file] = (len(text), None, lines, file)
        self._texts[file] = text

    def _found(self, file: str, is_module: bool) -> Dict[Tuple[str, int], List[types.CodeType]]:
        known = self._codes.get((file, is_module))
        if known is None:
            known = self._codes[(file, is_module)] = {}
            for code in _of_module(file) if is_module else self._of_source(file):
                known.setdefault((code.co_name, code.co_firstlineno), []).append(code)
        return known

    def _of_source(self, file: str) -> Iterator[types.CodeType]:
        text = self.text(file)
        if text is None:
            return
        try:
            whole = compile(text, file, "exec", _FLAGS, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        yield from _inside(whole)


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    queue, seen = [code], 0
    while queue and seen < MAX_CODES:
        current = queue.pop()
        seen += 1
        yield current
        queue.extend(c for c in reversed(current.co_consts) if type(c) is types.CodeType)


def _of_module(name: str) -> Iterator[types.CodeType]:
    """Yield the code of a module's functions, and of those inside them."""
    module = sys.modules.get(name)
    own: Dict[str, Any] = getattr(module, "__dict__", {})
    values = list(own.values())
    for value in list(own.values()):
        if type(value) is type and value.__module__ == name:
            values += value.__dict__.values()
    for value in values:
        function = getattr(value, "__func__", value)
        if type(function) is types.FunctionType and function.__globals__ is own:
            yield from _inside(function.__code__)
