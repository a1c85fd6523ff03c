"""The values that programs get for tool results.

A value is a plain dict, list, text or number, or a `Blob`. The parts of its result are attributes
and items: `.content`, `.text`, `.structuredContent`, `.isError` and `.meta`; a key that the server
sent takes precedence. `in`, `len`, iteration, `==` and JSON see the plain value only. None and
booleans have no parts.
"""

from __future__ import annotations

import operator
import sys
from itertools import islice

from bridge.guest.api.client import parse_json
from bridge.guest.api.values import Blob, MCPError, MissingKeyError, Result
from bridge.guest.protocol import results as protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping

    from bridge.guest.protocol.results import Parts

    _List = List[Any]
else:
    _List = list


_OF_BLOCK = {key: key for key in ("uri", "name", "mimeType", "annotations")}
_OF_BLOCK["mime_type"] = "mimeType"  # Fields of a block that a value of one block has too.

_TEXT_METHODS = frozenset(
    """splitlines split rsplit partition rpartition strip lstrip rstrip startswith endswith
    removeprefix removesuffix replace lower upper casefold find rfind encode""".split()  # noqa: SIM905
)
"""Methods that only a text has, answered by the source text; no likely field names, such as
`title`."""


class Block(Result):
    """One block of a result; attributes also read the resource embedded in it."""

    __slots__ = ()

    def __missing__(self, key: Any) -> Any:
        inner = protocol.resource_of(self)
        if inner is not self and key in ("text", "uri", "mimeType", "blob", "data"):
            found = inner.get("blob" if key == "data" else key)
            if found is not None:
                return found
        return super().__missing__(key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self["mimeType" if name == "mime_type" else name]
        except KeyError:
            return super().__getattr__(name)


_PARTS: Mapping[str, Callable[[Parts], Any]] = {
    # Programs read the text under this name, unless the server has such a key.
    "content": lambda wire: with_parts([Block(block) for block in protocol.blocks_of(wire)], wire),
    "text": protocol.source_text,
    **dict.fromkeys(
        ("structuredContent", "structured_content"),
        lambda wire: Result(s) if type(s := protocol.structure_of(wire)) is dict else s,
    ),
    # An error is raised.
    **dict.fromkeys(("isError", "is_error"), lambda wire: False),
    **dict.fromkeys(("meta", "_meta"), lambda wire: wire.get("meta")),
}


def _part(wire: Parts, name: str, with_block: bool = True) -> List[Any]:
    """Return a value's part of that name in a list; an empty list if it has none."""
    if name in _PARTS:
        return [_PARTS[name](wire)]
    blocks, key = protocol.blocks_of(wire), _OF_BLOCK.get(name)
    if with_block and key is not None and len(blocks) == 1:
        found = protocol.resource_of(blocks[0]).get(key, blocks[0].get(key))
        if found is not None:
            return [found]
    text = protocol.source_text(wire) if name in _TEXT_METHODS else ""
    return [getattr(text, name)] if text else []


def more_lines(value: Any) -> List[str]:
    """Return, one per line, the content that a structure does not repeat."""
    parted = isinstance(value, (_Parted, DictResult, BlobResult))
    wire: Parts = (getattr(value, "_parts", None) if parted else None) or {}
    lines = []
    for block in protocol.blocks_of(wire) if "value" in wire else ():
        text = protocol.text_of(block)
        if text is None:
            binary = isinstance(protocol.binary_data(block), str)
            lines.append(repr(_blob(block, "") if binary else block))
        elif not _is_repeated(text, wire["value"]):
            lines.append(text)
    return lines


class _Parted:
    """A value with its parts, as a mix-in for plain types."""

    __slots__ = ()

    _parts: Parts

    _item: Any = None  # The plain type's own `__getitem__`, if it has one.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_parts":
            raise AttributeError(name)
        found = _part(self._parts, name)
        if found:
            return found[0]
        raise AttributeError("%r object has no attribute %r" % (_plain(self).__name__, name))

    def __getitem__(self, key: Any) -> Any:
        if type(key) is str and key in _PARTS:
            return _PARTS[key](self._parts)
        if self._item is None:
            raise TypeError("%r object is not subscriptable" % _plain(self).__name__)
        return self._item(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the part of that name, or raise: a default would hide the value."""
        if key in _PARTS:
            return _PARTS[key](self._parts)
        what = "text: use it as it is, or read it with `re`"
        if isinstance(self, list):
            what = "a list of %d items: loop over it, or take one, as in x[0]" % len(self)
        elif not isinstance(self, str):
            what = "%s: use it as it is" % _plain(self).__name__
        raise MissingKeyError("no key %r: this result is %s" % (key, what))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (type(self), _plain(self)(self), dict(self._parts))


def _plain(value: _Parted) -> Any:
    return type(value).__mro__[2]


class TextResult(_Parted, str):
    _item = str.__getitem__


class IntegerResult(_Parted, int): ...


class NumberResult(_Parted, float): ...


class ListResult(_Parted, _List):
    _item = _List.__getitem__

    def __str__(self) -> str:
        return "\n".join((list.__repr__(self), *more_lines(self)))

    def __add__(self, other: Any) -> Any:
        return (
            protocol.source_text(self._parts) + other
            if isinstance(other, str)
            else list(self) + other
        )


class BlobResult(Blob):
    _parts: Parts

    __getattr__ = _Parted.__getattr__
    __getitem__ = _Parted.__getitem__
    get = _Parted.get
    _item = None


class DictResult(Result):
    """A dict with its parts; its own keys take precedence."""

    __slots__ = ("_parts",)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is slice and (text := protocol.source_text(self._parts)):
            return text[key]
        return dict.__getitem__(self, key)

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, str) and key in _PARTS:
            return _PARTS[key](self._parts)
        return super().__missing__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return dict.__getitem__(self, name)
        found = _part(self._parts, name, with_block="value" not in self._parts)
        return found[0] if found else super().__getattr__(name)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the item or the part of that name, else `default`."""
        if key in self or not isinstance(key, str) or key not in _PARTS:
            return dict.get(self, key, default)
        return _PARTS[key](self._parts)

    def __str__(self) -> str:
        return "\n".join((dict.__repr__(self), *more_lines(self)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restore, (type(self), dict(self), dict(self._parts))


_PLAIN = frozenset({str, bool, int, float, type(None)})

_NAMES_OF = {
    int: ("anything", "integer", "number"),
    float: ("anything", "number"),
    list: ("anything", "array"),
    dict: ("anything", "object"),
}
"""What a schema names that takes such a value itself."""

_WITH_PARTS = {
    str: TextResult, int: IntegerResult, float: NumberResult, list: ListResult, dict: DictResult,
    Result: DictResult,
}  # fmt: skip


def _restore(kind: Any, plain: Any, wire: Any) -> Any:
    value = kind(plain)
    object.__setattr__(value, "_parts", wire)
    return value


def with_parts(value: Any, wire: Parts) -> Any:
    """Return a plain value with its parts; None and booleans unchanged."""
    kind = _WITH_PARTS.get(type(value))
    return value if kind is None else _restore(kind, value, wire)


def from_wire(shape: Any, raw: bool = False, subject: str = "") -> Any:
    """Return the value of a reply, whose objects are already `Result`."""
    if not isinstance(shape, dict) or len(shape) != 1:
        return shape
    if "parts" in shape:
        return value_of(shape["parts"], subject)
    if "json" in shape:
        return shape["json"]
    if "blocks" in shape:
        return [from_wire(block) for block in shape["blocks"]]
    if "held" in shape:
        from bridge.guest.api.held_results import placeholder

        return placeholder(shape["held"], raw)
    return shape


def with_source_texts(value: Any, schema: Any, root: Any, depth: int = 0) -> Any:
    """Return an argument with source texts where the schema takes text but not the value.

    So a file that a program reads and writes back is unchanged, although its text was parsed.
    """
    # Imported here: few programs pass such values on.
    from bridge.guest.schema.schemas import MAX_DEPTH, as_mapping, leaves, wanted_types

    if type(value) in _PLAIN or depth > MAX_DEPTH:
        return value
    found = leaves(schema, root)
    if isinstance(value, (_Parted, DictResult)) and not isinstance(value, str):
        wanted, kind = wanted_types(found), dict if isinstance(value, dict) else _plain(value)
        if "string" in wanted and wanted.isdisjoint(_NAMES_OF[kind]):
            return protocol.source_text(value._parts) or value
    if isinstance(value, dict):
        known: Dict[str, Any] = {}
        for leaf in found:
            known.update(as_mapping(leaf.get("properties")))
        named = [key for key in known if key in value]
        new = {key: with_source_texts(value[key], known[key], root, depth + 1) for key in named}
        return value if all(new[key] is value[key] for key in new) else {**value, **new}
    if isinstance(value, (list, tuple)):
        items = next((leaf["items"] for leaf in found if "items" in leaf), True)
        texts = [with_source_texts(item, items, root, depth + 1) for item in value]
        return value if all(map(operator.is_, texts, value)) else texts
    return value


def value_of(wire: Parts, subject: str = "") -> Any:
    if "note" in wire:
        sys.stderr.write("Note: %s\n" % wire["note"])
    if "value" in wire:
        return with_parts(wire["value"], wire)
    text = protocol.repeated_text(wire)
    if text is not None:
        return with_parts(text, wire)
    blocks = protocol.blocks_of(wire)
    if protocol.is_single(wire):
        return _value_of_block(blocks[0], wire, subject)
    items = [_value_of_block(block, {"content": [block]}, subject) for block in blocks]
    return with_parts(items, wire)


def _value_of_block(block: Mapping[str, Any], wire: Parts, subject: str) -> Any:
    if not isinstance(protocol.binary_data(block), str):
        return with_parts(protocol.block_value(block, parse_json), wire)
    blob = _blob(block, subject)
    blob._parts = wire
    return blob


def _blob(block: Mapping[str, Any], subject: str) -> BlobResult:
    holder = protocol.resource_of(block)
    return BlobResult(
        holder.get("mimeType") or "application/octet-stream",
        decode_base64(protocol.binary_data(block), subject),
        uri=holder.get("uri") or "",
        name=holder.get("name") or "",
    )


def decode_base64(text: str, subject: str) -> Any:
    """Return the bytes of base64 text, or the `MCPError` that reading `.data` raises.

    A data URL, the URL alphabet and missing padding are accepted.
    """
    import base64

    head, comma, rest = text.partition(",")
    plain = rest if comma and head[:5].lower() == "data:" else text
    try:
        data = "".join(plain.split()).rstrip("=").replace("-", "+").replace("_", "/")
        return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)
    except ValueError as error:
        what = "%s sent binary content that is not base64 (%s)" % (subject or "a server", error)
        return MCPError(what + "; `.content` has it as it was sent.")


def _is_repeated(text: str, value: Any) -> bool:
    stripped = text.strip()
    if not stripped:
        return True
    try:
        parsed = parse_json(stripped)
    except (ValueError, RecursionError):
        parsed = None
    whole = _without_nulls(parsed)
    queue = [value]
    for part in islice(queue, 1_000):
        if isinstance(part, str):
            same = part == parsed or part.strip() == stripped
        else:
            same = str(part) == stripped if parsed is None else _without_nulls(part) == whole
        if same:
            return True
        if isinstance(part, (dict, list)):
            queue += part.values() if isinstance(part, dict) else part
    return False


def _without_nulls(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict) and depth < 32:
        items = value.items()
        return {key: _without_nulls(item, depth + 1) for key, item in items if item is not None}
    if isinstance(value, list) and depth < 32:
        return [_without_nulls(item, depth + 1) for item in value]
    return value
