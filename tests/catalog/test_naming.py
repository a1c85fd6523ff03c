from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.entries import (
    MAX_ALIAS_CHARS,
    RESERVED_SERVER_ALIASES,
    RESERVED_TOOL_ALIASES,
    server_aliases,
    tool_aliases,
)
from bridge.guest.api.proxies import Server, ServerModule, usable

Aliases = Callable[[Sequence[str]], dict[str, str]]

# Names that meet each other often, beside names that are anything at all.
CLOSE = st.text(alphabet="aA_-2 3.é", max_size=6)
HOSTILE = st.sampled_from(
    ["class", "match", "_", "__import__", "", "servers", "list_tools", "🙂", "1password", "\ud800"]
)
NAMES = st.lists(st.one_of(CLOSE, HOSTILE, st.text(max_size=90)), max_size=24)
BOTH = pytest.mark.parametrize("aliases", [server_aliases, tool_aliases])


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("github", "github"),
        ("git-hub", "git_hub"),
        ("Git Hub (work)", "git_hub_work"),
        ("Café", "cafe"),
        ("io.example/tools", "io_example_tools"),
        ("createIssue", "createissue"),
        ("1password", "_1password"),
        ("__import__", "import_"),
        ("class", "class_"),
        ("Type", "type_"),
        ("_private", "private"),
        ("a__b", "a__b"),
        ("日本", "server"),
        ("", "server"),
        ("servers", "servers_"),
        ("x" * 100, "x" * MAX_ALIAS_CHARS),
    ],
)
def test_a_server_name_becomes_an_identifier(name: str, alias: str) -> None:
    assert server_aliases([name]) == {name: alias}


def test_the_name_spelled_like_its_base_keeps_it_in_a_collision() -> None:
    """A suffix takes no name that another server has."""
    assert server_aliases(["A", "a", "a-", "b"]) == {"A": "a_2", "a": "a", "a-": "a_3", "b": "b"}
    assert server_aliases(["a", "A", "a_2", "a"]) == {"a": "a", "A": "a_3", "a_2": "a_2"}
    assert tool_aliases(["list_tools", "日本"]) == {"list_tools": "list_tools_", "日本": "tool"}


@BOTH
@given(names=NAMES)
def test_every_alias_is_a_plain_unreserved_identifier_of_one_name(
    aliases: Aliases, names: list[str]
) -> None:
    made = aliases(names)
    assert list(made) == list(dict.fromkeys(names))
    for alias in made.values():
        assert re.fullmatch(r"[a-z0-9_]+", alias)
        assert alias.isidentifier()
        assert not keyword.iskeyword(alias)
        assert not keyword.issoftkeyword(alias)
        assert not alias.startswith("__")
    reserved = RESERVED_SERVER_ALIASES if aliases is server_aliases else RESERVED_TOOL_ALIASES
    assert reserved.isdisjoint(made.values())
    assert len(set(made.values())) == len(made)


@BOTH
@given(names=NAMES, random=st.randoms())
def test_the_order_of_names_makes_no_difference(
    aliases: Aliases, names: list[str], random: Random
) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)
    assert aliases(shuffled) == aliases(names)


def test_thousands_of_colliding_names_are_settled() -> None:
    names = ["-" * count + "a" for count in range(3_000)]
    assert len(set(server_aliases(names).values())) == 3_000


def test_no_alias_hides_behind_an_attribute_of_the_guests_objects() -> None:
    own = [name for kind in (Server, ServerModule) for name in dir(kind)]
    own += ["_tools", "TOOLS", "TOOL_MAP"]
    aliases = [*tool_aliases(own).values(), *server_aliases(["class", "1x", "", "é"]).values()]
    assert set(aliases).isdisjoint(own)
    assert all(map(usable, aliases))
