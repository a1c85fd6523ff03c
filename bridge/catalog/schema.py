"""Input schemas as the parameters of a signature: names, types, defaults, descriptions. Pure.

The guest reads schemas with the same code, so that what is shown and what is accepted agree.
Schemas may be wrong, cyclic, exponential or no schemas at all: every function accepts any JSON
value and returns bounded text in bounded time. Does not validate.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bridge.guest.schema.parameters import Parameter as GuestParameter
from bridge.guest.schema.parameters import default_of, read_parameters
from bridge.guest.schema.schemas import as_list, leaves
from bridge.guest.schema.signatures import description
from bridge.guest.schema.typetext import MAX_INLINE_CHARS, Names, TypeWriter
from bridge.model import Json

MAX_PARAMETERS = 256
"""Parameters read of one tool; the largest tools seen in the wild have some sixty."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a tool.

    Attributes:
        schema: Its own schema, `$ref`s unresolved.
        default: As Python text; empty without a short one.
    """

    name: str
    required: bool
    type: str = "Any"
    default: str = ""
    description: str = ""
    schema: Json = field(default=None, compare=False)


def type_text(schema: Json, *, budget: int = MAX_INLINE_CHARS) -> str:
    """Return the type of a result as text, if possible in `budget` characters."""
    return TypeWriter(schema, "", Names(inline=budget), results=True).write(schema)


def parameters(schema: Json, *, budget: int = MAX_INLINE_CHARS) -> tuple[Parameter, ...]:
    """Return the parameters of an input schema, in its order, as programs spell them."""
    writer = TypeWriter(schema, "", Names(inline=budget))
    found: list[Parameter] = []
    for one in _arguments(schema):
        known, default = default_of(one, schema)
        found.append(
            Parameter(
                name=one.alias,
                required=one.required,
                type=writer.write(one.schema),
                default=repr(default) if known else "",
                description=description(one.schema, schema, MAX_INLINE_CHARS),
                schema=one.schema,
            )
        )
    return tuple(found)


def schema_order(schema: Json) -> tuple[str, ...]:
    """Return the parameters' names in the schema's order."""
    return tuple(one.alias for one in _arguments(schema))


def is_open(schema: Json) -> bool:
    """Return whether an input schema accepts properties that it does not name."""
    return any(
        bool(part.get("patternProperties")) or part.get("additionalProperties") not in (None, False)
        for part in leaves(schema, schema)
    )


def example_value(parameter: Parameter, root: Json) -> str:
    """Return Python text of a value for `parameter` in an example call."""
    if parameter.default:
        return parameter.default
    text = TypeWriter(root, "", Names(inline=MAX_INLINE_CHARS)).write(parameter.schema)
    if text.startswith("Literal["):
        found = leaves(parameter.schema, root)
        choices = [[one["const"]] if "const" in one else as_list(one.get("enum")) for one in found]
        return next(repr(one) for some in choices for one in some if one is not None)
    for prefix, example in (("str", '"..."'), ("int", "1"), ("float", "1.0"), ("bool", "True")):
        if text.split(" | ", 1)[0] == prefix:
            return example
    if text.startswith(("list", "tuple")):
        return "[...]"
    return "{...}" if text.startswith(("dict", "{")) else "..."


def _arguments(schema: Json) -> list[GuestParameter]:
    """Return an input schema's parameters in its order, as the guest reads them."""
    return read_parameters(schema)[0][:MAX_PARAMETERS]
