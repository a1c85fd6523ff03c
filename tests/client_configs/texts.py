"""Random configuration files, and the properties of every document."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from bridge.client_configs.document import Document, Table
from bridge.client_configs.install import open_document

NAMES = st.sampled_from(["a", "b", "time", "with space", 'a "quote"', "ü", "a.b", "x/y"])

SCALARS = st.sampled_from([1, -2.5, True, "text", "// no comment", "# nor this", "a\nb", "ü\t", ""])

VALUES: st.SearchStrategy[object] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=5,
)

ENTRIES = st.dictionaries(
    st.sampled_from(["command", "args", "env", "url", "x y"]), VALUES, max_size=3
)

BLANKS = st.sampled_from(
    ["", "", " ", "\n", "\n  ", "\n\n    ", "\t"]
    + [" // c\n", "/* b */", "\n  // y\n  ", "\n/* m\n l */"]
)


@st.composite
def encoded(draw: st.DrawFn, text: str) -> bytes:
    text = text.replace("\n", "\r\n") if draw(st.booleans()) else text
    return (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode()


@st.composite
def jsonc(draw: st.DrawFn, value: object) -> str:
    """Draw JSON with comments and trailing commas anywhere."""

    def blank() -> str:
        return draw(BLANKS)

    if isinstance(value, dict):
        parts = [
            f"{blank()}{json.dumps(key)}{blank()}:{blank()}{draw(jsonc(item))}{blank()}"
            for key, item in value.items()
        ]
        opening, closing = "{}"
    elif isinstance(value, list):
        parts = [f"{blank()}{draw(jsonc(item))}{blank()}" for item in value]
        opening, closing = "[]"
    else:
        return json.dumps(value)
    last = draw(st.sampled_from([",", ""])) if parts else ""
    return opening + blank() + ",".join(parts) + last + blank() + closing


@st.composite
def jsonc_files(draw: st.DrawFn) -> bytes:
    value = {
        "theme": draw(SCALARS),
        "mcpServers": draw(st.dictionaries(NAMES, ENTRIES, max_size=4)),
        "last": draw(VALUES),
    }
    shuffled = {key: value[key] for key in draw(st.permutations(sorted(value)))}
    return draw(encoded(draw(BLANKS) + draw(jsonc(shuffled)) + draw(BLANKS)))


TOML_BLANKS = st.sampled_from(["", "", "", "\n", "# c\n", "\n# c\n", "# c\n\n", "  \n"])


@st.composite
def toml_files(draw: st.DrawFn) -> bytes:
    """Draw a TOML file with servers in any form among other sections."""

    def line(text: str) -> str:
        return draw(TOML_BLANKS) + text + draw(st.sampled_from(["", " # why"])) + "\n"

    def inline(value: object) -> str:
        if isinstance(value, dict):
            pairs = (f"{json.dumps(key)} = {inline(item)}" for key, item in value.items())
            return "{" + ", ".join(pairs) + "}"
        if isinstance(value, list):
            gap = draw(st.sampled_from(["", "\n", " # ]\n"]))
            return f"[{gap}" + ",".join(inline(item) + gap for item in value) + "]"
        if isinstance(value, str) and value.isprintable() and "'" not in value:
            quoted = [f"'{value}'", f"'''\n{value}'''", f'"""{json.dumps(value)[1:-1]}"""']
            return draw(st.sampled_from([*quoted, json.dumps(value, ensure_ascii=False)]))
        return json.dumps(value, ensure_ascii=False)

    def entry(name: str, value: dict[str, object], path: str = "mcp_servers") -> None:
        key = json.dumps(name, ensure_ascii=False)
        form = draw(st.sampled_from(["sections", "sections", "inline", "dotted"]))
        if form == "sections" or (form == "dotted" and not value):
            flat = {k: v for k, v in value.items() if not isinstance(v, dict)}
            text = line(f"[{path}.{key}]") + "".join(
                line(f"{json.dumps(k)} = {inline(v)}") for k, v in flat.items()
            )
            for k, v in value.items():
                if isinstance(v, dict):
                    text += line(f"[{path}.{key}.{json.dumps(k)}]")
                    text += "".join(line(f"{json.dumps(a)} = {inline(b)}") for a, b in v.items())
            sections.append(text)
        elif form == "inline":
            keys.append(line(f"{key} = {inline(value)}"))
        else:
            keys.extend(line(f"{key}.{json.dumps(k)} = {inline(v)}") for k, v in value.items())

    sections: list[str] = []
    keys: list[str] = []
    for name, value in draw(st.dictionaries(NAMES, ENTRIES, max_size=4)).items():
        entry(name, value)
    text = "".join(line(f"k{number} = 1") for number in range(draw(st.integers(0, 2))))
    text += line("[before]") + line("x = 1")
    if keys:
        text += line("[mcp_servers]") + "".join(keys)
    for number, section in enumerate(sections):
        text += section
        if draw(st.booleans()):
            text += line(f"[s{number}]") + line(f"x = {number}")
    return draw(encoded(text + draw(TOML_BLANKS)))


YAML_BLANKS = st.sampled_from(["", "", "", "\n", "# c\n", "    # deep\n", "\n# c\n", "# c\n\n"])


@st.composite
def yaml_files(draw: st.DrawFn, listed: bool) -> bytes:
    """Draw a YAML file with servers as a mapping or a list."""

    def scalar(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def block(value: dict[str, object], column: int) -> str:
        pad, text = " " * column, ""
        for key, item in value.items():
            text += draw(YAML_BLANKS) + f"{pad}{scalar(key)}:"
            style = draw(st.sampled_from(["flow", "block"]))
            if isinstance(item, dict) and item and style == "block":
                text += "\n" + block(item, column + draw(st.integers(1, 4)))
            elif isinstance(item, list) and item and style == "block":
                dash = pad + draw(st.sampled_from(["", "  "])) + "- "
                text += " # why\n" + "".join(f"{dash}{scalar(one)}\n" for one in item)
            elif isinstance(item, str) and item.isprintable() and item and style == "block":
                text += f" |-\n{pad}  {item}\n\n{pad}  # no comment\n"
            else:
                gap = draw(st.sampled_from([" ", f"\n{pad}    "]))
                text += gap + scalar(item) + draw(st.sampled_from(["", " # why"])) + "\n"
        return text

    servers = draw(st.dictionaries(NAMES, ENTRIES, max_size=4))
    text = draw(YAML_BLANKS) + block(draw(st.dictionaries(st.just("first"), VALUES)), 0)
    if not servers:
        text += draw(st.sampled_from(["servers:", "servers: []" if listed else "servers: {}"]))
        text += draw(st.sampled_from(["", " # none"])) + "\n"
    elif listed:
        text += "servers:\n"
        column = draw(st.integers(0, 4))
        for name, value in servers.items():
            lines = block({"name": name, **value}, column + 2).removeprefix("\n")
            key = lines.index('"name"')
            text += lines[: key - column - 2] + " " * column + "- " + lines[key:]
    else:
        text += "servers: # all\n" + block(dict(servers), draw(st.integers(1, 4)))
    text += block(draw(st.dictionaries(st.just("last"), VALUES)), 0) + draw(YAML_BLANKS)
    return draw(encoded(text.rstrip("\n") if draw(st.booleans()) else text))


ENTRY = {"command": "/bin/bridge", "args": ["serve", "-y"], "env": {"A": "b: # c"}}


def check_each_change(document: Document, table: Table) -> None:
    """Move each entry out and back, replace it and add one; check the value after each edit."""
    names = list(document.entries(table))
    for index, name in enumerate(names):
        entry = document.entry(table, name)
        assert entry is not None
        without = document.without(table, name)
        assert set(without.entries(table)) == set(names) - {name}
        back = without.with_text(table, entry, index=index)
        assert back.decoded == document.decoded
        assert back.without(table, name).decoded == without.decoded
        stored = open_document(b"", document.format, listed=document.listed)
        assert stored.with_text(table, entry).entries(table) == {name: entry.value}
        replaced = document.with_entry(table, name, ENTRY).entries(table)[name]
        assert isinstance(replaced, dict)
        assert replaced == ({"name": name, **ENTRY} if document.listed else ENTRY)
    made = document.with_entry(table, "bridge", ENTRY)
    assert made.without(table, "bridge").entries(table) == document.entries(table)
    others = {key: item for key, item in document.decoded.items() if key != table[0]}
    assert {key: item for key, item in made.decoded.items() if key != table[0]} == others
