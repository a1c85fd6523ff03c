"""URI templates as programs fill them in."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bridge.guest.api.uri_templates import expand

VALUES: dict[str, Any] = {
    "var": "value",
    "hello": "Hello World!",
    "path": "/foo/bar",
    "empty": "",
    "x": 1024,
    "y": 768,
    "half": "50%",
    "list": ["red", "green", "blue"],
    "keys": {"semi": ";", "dot": ".", "comma": ","},
    "yes": True,
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{var}", "value"),
        ("a{hello}b", "aHello%20World%21b"),
        ("{half}", "50%25"),
        ("{+hello}", "Hello%20World!"),
        ("{+half}", "50%25"),
        ("{+path}/here", "/foo/bar/here"),
        ("here?ref={+path}", "here?ref=/foo/bar"),
        ("map?{x,y}", "map?1024,768"),
        ("{#x,hello}", "#1024,Hello%20World!"),
        ("X{.x,y}", "X.1024.768"),
        ("{/var,x}/here", "/value/1024/here"),
        ("{;x,y,empty}", ";x=1024;y=768;empty"),
        ("{?x,y,empty}", "?x=1024&y=768&empty="),
        ("?fixed=yes{&x}", "?fixed=yes&x=1024"),
        ("{var:3}", "val"),
        ("{list}", "red,green,blue"),
        ("{list*}", "red,green,blue"),
        ("{/list*}", "/red/green/blue"),
        ("{?list*}", "?list=red&list=green&list=blue"),
        ("{keys}", "semi,%3B,dot,.,comma,%2C"),
        ("{keys*}", "semi=%3B,dot=.,comma=%2C"),
        ("{+keys*}", "semi=;,dot=.,comma=,"),
        ("{?keys*}", "?semi=%3B&dot=.&comma=%2C"),
        ("{yes}", "true"),
    ],
)
def test_every_operator_of_the_standard_is_understood(template: str, expected: str) -> None:
    used = re.findall(r"[a-z]+", " ".join(re.findall(r"\{(.*?)\}", template)))
    assert expand(template, {name: VALUES[name] for name in used}) == expected


def test_what_is_escaped_already_stays_so_where_it_may() -> None:
    assert expand("{+path}", {"path": "/a%20b c%"}) == "/a%20b%20c%25"
    assert expand("{path}", {"path": "ü/a%20b"}) == "%C3%BC%2Fa%2520b"


def test_a_query_may_be_left_out_and_nothing_else() -> None:
    assert expand("db://{table}{?limit,page}", {"table": "a"}) == "db://a"
    assert expand("db://{table}{?limit,page}", {"table": "a", "page": 2}) == "db://a?page=2"
    with pytest.raises(TypeError, match="is a template; give table, row as keyword arguments"):
        expand("db://{table}/{row}{?limit}", {"limit": 1})


@pytest.mark.parametrize(
    ("template", "values", "error", "message"),
    [
        ("a{ident}", {"idnt": 1}, TypeError, r"'idnt'\. Did you mean 'ident'\? Variables: ident"),
        ("a{id}", {"id": 1, "idd": 1}, TypeError, r"no variable 'idd'\. Did you mean 'id'\?"),
        ("a", {"id": 1}, TypeError, r"no variable 'id'\. Variables: none"),
        ("a{id}", {"id": b"x"}, TypeError, "'id' .* must be a text or a number, not a bytes"),
        ("a{id", {"id": 1}, ValueError, "is no URI template"),
        ("a{}", {}, ValueError, r"\{\} in a URI template cannot be understood"),
        ("a{=id}", {"id": 1}, ValueError, "cannot be understood"),
        ("{a}" * 101, {"a": 1}, ValueError, "is no URI template"),
    ],
)
def test_a_mistake_is_told_with_what_fits(
    template: str, values: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        expand(template, values)
