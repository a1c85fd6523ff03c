"""The values that cross the channel, as programs see them."""

from __future__ import annotations

import math
import os
import sys

from bridge.guest.protocol.placeholders import Unknown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, NoReturn

    _Object = Dict[str, Any]
else:
    _Object = dict

MAX_DEPTH = 256  # A program's values may nest deeper than JSON readers take.


class MCPError(RuntimeError):
    """A tool, its server or the bridge refused a call.

    Attributes:
        server, tool: The called tool; empty if the bridge refused the call.
        kind: "tool" if the tool itself failed, else the part that refused the call.
        data: The error's data, if any.
        content, meta: The blocks and the `_meta` of a tool's own error.
        code: A stable identifier of the bridge's own errors.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        tool: str = "",
        kind: str = "tool",
        data: Any = None,
        code: Any = None,
        content: Any = (),
        meta: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.server = server
        self.tool = tool
        self.kind = kind
        self.data = data
        self.code = code
        self.content = list(content)
        self.meta = meta

    def __str__(self) -> str:
        where = ".".join(part for part in (self.server, self.tool) if part)
        if not where or self.message.startswith(where):
            return self.message
        return "%s: %s" % (where, self.message)

    def __reduce__(self) -> Any:
        return type(self), (self.message,), dict(self.__dict__)


class ArgumentsError(MCPError, TypeError):
    """Wrong arguments of a call, or arguments that JSON cannot hold; nothing was sent."""

    def __str__(self) -> str:
        return self.message


class UnknownNameError(MCPError, KeyError, AttributeError):
    """An unknown server, tool or helper; the message lists the known ones."""

    __str__ = ArgumentsError.__str__


class MissingKeyError(KeyError):
    """A missing key; the message lists the existing keys."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which spoils a sentence.
        return str(self.args[0]) if self.args else ""


def list_names(names: Iterable[Any]) -> str:
    """Return at most forty names for an error message."""
    shown = [str(name) for name in names]
    text = ", ".join(shown[:40]) or "none"
    return "%s and %d more" % (text, len(shown) - 40) if shown[40:] else text


def error_text(error: BaseException) -> str:
    """Return an exception's message on one line; empty if it has none or raises."""
    try:
        return " ".join(str(error).split())
    except BaseException:
        return ""


def nearest(name: str, names: Iterable[Any]) -> str:
    """Return " Did you mean ...?" for the most similar name, or an empty text."""
    from bridge.guest.schema.names import nearest as search  # for programs with mistakes

    found = search(name, map(str, names))
    return " Did you mean %r?" % found if found else ""


class Result(_Object):
    """A dict from a tool's result, whose keys are attributes too."""

    __slots__ = ()

    def __missing__(self, key: Any) -> NoReturn:
        raise MissingKeyError(self._no_such(key))

    def __getattr__(self, name: str) -> Any:
        # Called only for names that `dict` lacks.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if name not in self:
            raise AttributeError(self._no_such(name))
        return dict.__getitem__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self:
            raise AttributeError(self._no_such(name))
        del self[name]

    def __dir__(self) -> List[str]:
        return [*dir(dict), *(key for key in self if key.isidentifier())]

    def _no_such(self, key: Any) -> str:
        hint = nearest(key, self) if isinstance(key, str) else ""
        return "no key %r in this result.%s Keys: %s." % (key, hint, list_names(self))


class Blob:
    """Binary content of a tool's result.

    Attributes:
        mime_type: Its type, such as "image/png".
        uri, name: Its origin, if the server named one.
    """

    def __init__(self, mime_type: str, data: Any, uri: str = "", name: str = "") -> None:
        self.mime_type = mime_type
        self.uri = uri
        self.name = name
        self._data = data

    @property
    def data(self) -> bytes:
        """The bytes; an MCPError if the server's data is not base64."""
        if isinstance(self._data, MCPError):
            raise self._data
        data: bytes = self._data
        return data

    def save(self, path: Any) -> str:
        """Write the bytes to a file and return its path."""
        with open(path, "wb") as file:
            file.write(self.data)
        return os.fspath(path) if not isinstance(path, int) else str(path)

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        return self.data

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blob):
            return NotImplemented
        return (self.mime_type, self.data) == (other.mime_type, other.data)

    def __hash__(self) -> int:
        return hash((self.mime_type, self.data))

    def __repr__(self) -> str:
        size = "unreadable" if isinstance(self._data, MCPError) else "%d bytes" % len(self.data)
        return "<Blob %s>" % ", ".join(filter(None, (self.mime_type, size, self.uri or self.name)))


def error_from_wire(error: Mapping[str, Any]) -> MCPError:
    texts = {"message": "the call failed", "server": "", "tool": "", "kind": "tool"}
    found: Dict[str, Any] = {key: str(error.get(key) or text) for key, text in texts.items()}
    found.update({key: error.get(key) for key in ("data", "code", "meta")})
    return MCPError(**found, content=error.get("content") or ())


def to_json(value: Any, path: str = "value", depth: int = 0) -> Any:
    """Return `value` as plain JSON data: tuples as lists, dataclasses as dicts.

    `path` names the place in the `ArgumentsError` for a value that JSON cannot hold.
    """
    kind = type(value)
    if value is None or value is True or value is False or kind is str:
        return value
    # Subclasses of plain types are sent as the plain type.
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, int):
        if value.bit_length() > 14_000:  # Readers refuse longer integers (4,300 digits).
            raise _no_json("%s is an integer too long for JSON; pass it as text" % path)
        return int(value)
    if issubclass(kind, float):
        if not math.isfinite(value):
            raise _no_json("%s is %r, which is not JSON; use None or leave it out" % (path, value))
        return float(value)
    if depth >= MAX_DEPTH:
        where = path if len(path) <= 200 else path[:200] + "..."
        raise _no_json("%s is nested more than %d deep, or contains itself" % (where, MAX_DEPTH))
    if isinstance(value, dict):
        plain: Dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                message = "%s has the key %.80r, a %s; JSON keys are strings: use str(key)"
                raise _no_json(message % (path, key, _type_name(key)))
            plain[str.__str__(key)] = to_json(item, "%s[%.80r]" % (path, key), depth + 1)
        return plain
    if isinstance(value, (list, tuple)):
        return [to_json(item, "%s[%d]" % (path, i), depth + 1) for i, item in enumerate(value)]
    if hasattr(kind, "__dataclass_fields__"):
        names = kind.__dataclass_fields__
        return {name: to_json(getattr(value, name), path + "." + name, depth + 1) for name in names}
    enums = sys.modules.get("enum")
    if enums is not None and isinstance(value, enums.Enum):
        return to_json(value.value, path, depth + 1)
    if isinstance(value, Unknown):
        from bridge.guest.api.held_results import to_reference

        return to_reference(value)
    raise _no_json("%s is a %s, which is not JSON%s" % (path, _type_name(value), _advice(value)))


def to_text(value: Any, path: str) -> str:
    """Return `value` as a prompt's argument: a text, or other values as JSON."""
    if isinstance(value, str):
        return str.__str__(value)
    import json  # few programs have one of these

    return json.dumps(to_json(value, path), ensure_ascii=False)


def _no_json(message: str) -> ArgumentsError:
    return ArgumentsError(message, kind="arguments")


_ADVICE = {
    **dict.fromkeys(("bytes", "bytearray"), "base64.b64encode(x).decode() or x.decode()"),
    "memoryview": "base64.b64encode(x).decode()",
    "Blob": "base64.b64encode(x.data).decode()",
    "timedelta": "x.total_seconds()",
    **dict.fromkeys(("Decimal", "Fraction"), "str(x) or float(x)"),
    "complex": "[x.real, x.imag]",
    "DataFrame": 'x.to_dict("records")',
    "Series": "x.tolist() or x.to_dict()",
    "dict_items": "dict(x)",
    **dict.fromkeys(("coroutine", "Task", "Future"), "await x"),
}


def _advice(value: Any) -> str:
    advice = _ADVICE.get(type(value).__name__, "")
    if not advice and isinstance(value, os.PathLike):
        advice = "str(x)"
    if not advice and callable(getattr(type(value), "tolist", None)):
        advice = "x.item()"  # All scalars of numpy have this method.
    return "; pass " + advice if advice else ""


def _type_name(value: Any) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return "%s.%s" % (kind.__module__, kind.__qualname__)
