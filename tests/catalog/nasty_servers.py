"""Servers whose names, texts and schemas are as bad as servers can make them, and a plain one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bridge.catalog.entries import ServerEntry, server_aliases, tool_entries
from bridge.model import Tool

STRING = {"type": "string"}


def a_tool(name: str, schema: Any, output: Any = None, description: str = "") -> Tool:
    return Tool(
        server="s",
        name=name,
        description=description,
        input_schema=schema if isinstance(schema, Mapping) else {"properties": {"x": schema}},
        output_schema=output,
    )


def server_entries(
    descriptions: Mapping[str, str],
    tools: Mapping[str, Sequence[Tool]],
    *,
    loaded: Collection[str] = (),
) -> tuple[ServerEntry, ...]:
    """Return an entry for every server, in the order of `descriptions`.

    Args:
        descriptions: Every discovered server's name and description. Aliases depend on the whole
            set, so pass all of them even if only some matter.
        tools: Known tools by server; of two with one name the first counts.
        loaded: Names of the servers that the current run loads.
    """
    aliases = server_aliases(tuple(descriptions))
    return tuple(
        ServerEntry(
            name=name,
            alias=aliases[name],
            description=description,
            tools=tool_entries(tools.get(name, ())),
            known=name in tools,
            loaded=name in loaded,
        )
        for name, description in descriptions.items()
    )


def a_server(*tools: Tool, name: str = "git-hub", description: str = "") -> ServerEntry:
    return server_entries({name: description}, {name: tools}, loaded=(name,))[0]


ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "repo": {"type": "string", "description": "Repository,\n as owner/name."},
        "title": {"type": "string", "minLength": 1, "maxLength": 80},
        "labels": {"type": "array", "items": STRING, "maxItems": 10, "default": []},
        "state": {"enum": ["open", "closed"], "default": "open"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 30},
        "since": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "where": {"$ref": "#/$defs/Where"},
        "x-y": {"type": "boolean"},
    },
    "required": ["repo", "title"],
    "$defs": {
        "Where": {
            "type": "object",
            "properties": {
                "field": {"type": "string", "description": "Its name."},
                "all": {"type": "array", "items": {"$ref": "#/$defs/Where"}},
            },
            "required": ["field"],
        }
    },
}
CREATED: dict[str, Any] = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "user": {"properties": {"login": STRING}}},
    "required": ["number"],
}


UGLY = "a\"\"\"b\\\n\u2028\x00\ud800'''#{} %s"
CYCLE: dict[str, Any] = {"properties": {"self": {"$ref": "#"}, "others": {"items": {"$ref": "#"}}}}
EXPONENTIAL: dict[str, Any] = {
    "properties": {"x": {"$ref": "#/$defs/a0"}},
    "$defs": {
        f"a{n}": {
            "properties": {
                "l": {"$ref": f"#/$defs/a{n + 1}"},
                "r": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]},
            }
        }
        for n in range(200)
    },
}
CHAIN: dict[str, Any] = {
    "properties": {"x": {"$ref": "#/$defs/a0"}},
    "$defs": {f"a{n}": {"anyOf": [{"$ref": f"#/$defs/a{n + 1}"}, STRING]} for n in range(3000)},
}
DEEP: Any = STRING
for _ in range(400):
    DEEP = {"type": "array", "items": {"properties": {"a": DEEP}}}

ODD: list[Any] = [
    {}, {"type": "array"}, {"properties": 5}, {"properties": {"a": 5, "b": None}},
             {"required": "a"}, {"required": [1, "b"]}, {"$ref": 7}, {"allOf": [1, None]},
             {"anyOf": {}}, {"type": {}}, {"enum": 3}, True, None, [], "x",
]  # fmt: skip
NASTY: dict[str, tuple[Tool, ...]] = {
    "plain": (a_tool("create", ISSUE, CREATED), a_tool("get", {"properties": {}}, ISSUE)),
    "hides builtins": tuple(
        a_tool(name, ISSUE, CREATED)
        for name in ("list", "str", "dict", "int", "float", "bool", "type", "tuple", "object")
    ),
    "own names": tuple(
        a_tool(name, {"properties": {"Any": STRING, "self": STRING, "_self": STRING}}, CREATED)
        for name in ("list_tools", "read_resource", "__init__", "__getitem__", "get_prompt", "_")
    ),
    "keywords": tuple(
        a_tool(name, {"properties": {"class": {}, "from": {}, "None": {}, "lambda": {}}})
        for name in ("class", "import", "async", "None", "match", "type", "def")
    ),
    "keys": (
        a_tool(
            "t",
            {"properties": {"x": {"properties": dict.fromkeys(
                ("class", "x-y", "", UGLY, "__private", "list", "str", "Any", "self", "1", "ﬁ",
                 "items", "keys", "get", "é", "a b", "NotRequired", "Literal"), STRING)}}},
            {"properties": {**dict.fromkeys(
                ("class", "x-y", "", UGLY, "__private", "list", "items", "keys", "get", "self",
                 "values", "update", "copy", "ﬁ", "_x", "__class__", "clear"), STRING),
                "me": {"$ref": "#"}, "like": {"enum": ["a'b", 'c"d', "e\\f"]}}},
        ),
    ),
    "texts": (
        a_tool(
            UGLY,
            {"properties": {"x": {"description": UGLY, "pattern": UGLY, "format": UGLY,
                                  "default": UGLY, "properties": {"a": {"description": UGLY}}},
                            UGLY: {"enum": [UGLY, '"', "\\"]},
                            "q": {"enum": ['"', "'", "\\", "\n", "%", "{}"], "default": "\\"}}},
            {"description": UGLY, "enum": [UGLY]},
            UGLY,
        ),
        a_tool("ends_in_quote", {}, None, 'so "that"'),
        a_tool("ends_in_backslash", {}, None, "so\\"),
        a_tool("long", {}, None, "word \\ " * 5000),
    ),
    "defaults": (
        a_tool(
            "t",
            {"properties": {
                "a": {"type": "string", "default": 5}, "b": {"type": "string", "default": None},
                "c": {"enum": ["x"], "default": "y"}, "d": {"type": "integer", "default": 3.0},
                "e": {"type": "number", "default": 1}, "f": {"type": "array", "default": [1]},
                "g": {"type": "object", "default": {}}, "h": {"default": float("inf")},
                "i": {"type": "integer", "default": 10**400},
                "j": {"type": "boolean", "default": 0},
                "k": {"$ref": "#/$defs/k"}, "l": {"default": True}, "m": {"default": "x" * 400},
                "n": {"anyOf": [STRING, {"type": "integer"}], "default": 2.5},
            }, "$defs": {"k": {"enum": ["x"], "default": "z"}}},
        ),
    ),
    "cycles": (a_tool("t", CYCLE, CYCLE), a_tool("odd", {"properties": {"x": {
        "properties": {"x-y": {"$ref": "#/properties/x"}, "l": {"items": {"$ref": "#"}}}}}})),
    "unions in circles": (a_tool("t", {"properties": {"x": {"$ref": "#/$defs/j"}}, "$defs": {"j": {
        "anyOf": [STRING, {"type": "array", "items": {"$ref": "#/$defs/j"}},
                  {"type": "object", "additionalProperties": {"$ref": "#/$defs/j"}}]}}}),),
    "exponential": (a_tool("t", EXPONENTIAL, EXPONENTIAL), a_tool("c", CHAIN, CHAIN)),
    "deep": (a_tool("t", {"properties": {"x": DEEP}}, DEEP),),
    "wide": (a_tool("t", {"properties": {f"p{n}": STRING for n in range(10_000)}},
                    {"properties": {f"p{n}": STRING for n in range(10_000)}}),),
    "huge enum": (a_tool("t", {"properties": {"x": {"enum": list(range(100_000))}}}),),
    "many objects": (a_tool("t", {"properties": {
        f"p{n}": {"properties": {"a": {"properties": {"b": STRING}}}} for n in range(200)}}),),
    "same after all": tuple(a_tool(name, {"properties": {"a-b": {}, "a_b": {}, "a b": {}, "é": {},
        "x": {"properties": {"y": STRING}}}}, CREATED) for name in ("a-b", "a_b", "a b", "A_B")),
    "classes collide": (
        a_tool("a", {"properties": {"b_c": {"properties": {"x": STRING}}}}),
        a_tool("a_b", {"properties": {"c": {"properties": {"y": STRING}}}}),
        a_tool("any", {"properties": {"": {"properties": {"y": STRING}}}}),
        a_tool("typed_dict", {}, {"properties": {"y": STRING}}),
        a_tool("blob", {}, {"title": "Blob"}),
    ),
    "no schemas": tuple(
        a_tool(f"t{n}", schema, schema if isinstance(schema, Mapping) else None)
        for n, schema in enumerate(ODD)
    ),
    "positions": (a_tool("t", {"properties": {"a": STRING, "b": STRING, "c": STRING,
        "arguments": STRING}, "required": ["b"], "additionalProperties": True}),),
    "numbers": (a_tool("404", {}), a_tool("", {}), a_tool("日本", {"properties": {"名": STRING}})),
    "endless": (
        a_tool("t", {"required": [f"r{n}" for n in range(200_000)]}),
        a_tool("names", {"properties": {"k" * 10**6: STRING, "x": {
            "properties": {"k" * 10**6: STRING}}}}, {"properties": {"k" * 10**6: STRING}},
            "y " * 10**6),
        a_tool("circles", {"allOf": [{"$ref": "#"}] * 5_000}),
    ),
    "no tools": (),
}  # fmt: skip


def nasty_entries() -> tuple[ServerEntry, ...]:
    return server_entries(dict.fromkeys(NASTY, UGLY) | {UGLY: ""}, {**NASTY, UGLY: NASTY["plain"]})
