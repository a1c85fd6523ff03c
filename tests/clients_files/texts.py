"""Random configuration files, with comments and white space where the formats allow them."""

from __future__ import annotations

import json

from hypothesis import strategies as st

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
    [
        "",
        "",
        " ",
        "\n",
        "\n  ",
        "\n\n    ",
        "\t",
        " // c\n",
        "/* b */",
        "\n  // y\n  ",
        "\n/* m\n l */",
    ]
)


@st.composite
def jsonc(draw: st.DrawFn, value: object) -> str:
    """Write a value as JSON with comments and trailing commas anywhere."""

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
    """Write a client's file in JSON with comments, as no formatter would."""
    value = {
        "theme": draw(SCALARS),
        "mcpServers": draw(st.dictionaries(NAMES, ENTRIES, max_size=4)),
        "last": draw(VALUES),
    }
    kept = {key: value[key] for key in draw(st.permutations(sorted(value)))}
    text = draw(BLANKS) + draw(jsonc(kept)) + draw(BLANKS)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return (b"\xef\xbb\xbf" if draw(st.booleans()) else b"") + text.encode()
