"""Any JSON that a server may send as a schema."""

from __future__ import annotations

from hypothesis import strategies as st

KEYWORDS = (
    "$ref", "$defs", "a", "b", "type", "properties", "required", "items", "prefixItems", "anyOf",
    "oneOf", "allOf", "enum", "const", "default", "nullable", "description", "not", "format",
    "additionalProperties", "pattern", "patternProperties", "minimum", "multipleOf", "maxLength",
    "uniqueItems",
)  # fmt: skip
WORDS = ("string", "object", "array", "null", "integer", "#", "#/$defs/a", "#/properties/a", "a")

ANY_SCHEMA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYWORDS) | st.text(max_size=6), inner, max_size=6)
    ),
    max_leaves=40,
)
