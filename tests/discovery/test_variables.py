"""Variables in entries: each client's own spelling, and the cost of odd ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.dialect import Syntax
from bridge.discovery.variables import (
    MAX_INSERTED_CHARS,
    Expanded,
    UnusableError,
    Variables,
    expand,
    input_variable,
    missing_inputs,
)

ENVIRON = {"A": "va", "EMPTY": "", "NESTED": "${A}", "_x9": "ok"}


@pytest.mark.parametrize(
    ("text", "expanded", "unset"),
    [
        ("${A}", "va", ()),
        ("x${A}y${A}", "xvayva", ()),
        ("${B:-dflt}", "dflt", ()),
        ("${B:-}", "", ()),
        ("${A:-dflt}", "va", ()),
        ("${EMPTY}", "", ()),
        ("${EMPTY:-d2}", "", ()),
        ("${UNSET}", "${UNSET}", ("UNSET",)),
        ("${UNSET}${UNSET}${OTHER}", "${UNSET}${UNSET}${OTHER}", ("UNSET", "OTHER")),
        ("$A", "$A", ()),
        ("${X-A}", "${X-A}", ()),
        ("${A:=z}", "${A:=z}", ()),
        ("${}", "${}", ()),
        ("${9A}", "${9A}", ()),
        ("${_x9}", "ok", ()),
        ("${NESTED}", "${A}", ()),
        ("${B:-${A}}", "${A}", ()),
        ("%A%", "%A%", ()),
        ("${A", "${A", ()),
    ],
)
def test_references_expand_as_claude_code_expands_them(
    text: str, expanded: str, unset: tuple[str, ...]
) -> None:
    assert expand(text, Variables(environ=ENVIRON)) == Expanded(text=expanded, unset=unset)


def test_what_variables_and_files_bring_in_is_bounded_over_all_texts() -> None:
    """A small file may name a large one in every field, and many times in each."""
    part = "x" * (MAX_INSERTED_CHARS // 4)
    variables = Variables(environ={"A": part}, read=lambda _: part)
    assert len(expand("{file:f}{env:A}", variables, "opencode").text) == MAX_INSERTED_CHARS // 2
    expand("${A}${A}", variables)
    with pytest.raises(UnusableError, match="beyond"):
        expand("$A", variables, "shell")


def test_unclosed_references_without_number_end_in_linear_time() -> None:
    text = "${A:-" * 200_000
    assert expand(text, Variables(environ=ENVIRON)).text == text


@settings(deadline=None)
@given(st.text(alphabet="${}:-AB_x "))
def test_text_without_references_is_left_alone_and_nothing_raises(text: str) -> None:
    found = expand(text, Variables(environ={}))
    assert all(name in text for name in found.unset)
    if "${" not in text:
        assert found.text == text


def variables() -> Variables:
    files = {"/conf/key.txt": "key\n", "/home/me/k": "home key", "/abs": "absolute"}
    return Variables(
        environ={"A": "va", "EMPTY": "", "MCP_BRIDGE_INPUT_API_KEY_2": "given"},
        home="/home/me",
        workspace="/home/me/shop",
        directory="/conf",
        inputs={"api-key/2": None, "region": "eu", "blank": ""},
        read=files.get,
    )


SPELLINGS = (
    "$A ${A} ${A:-d} ${env:A} {env:A} ${{ secrets.A }} ${userHome} ${input:region} {file:/abs}"
)


@pytest.mark.parametrize(
    ("syntax", "expanded"),
    [
        ("", SPELLINGS),
        ("claude", SPELLINGS.replace("${A} ${A:-d}", "va va")),
        ("shell", SPELLINGS.replace("$A ${A} ${A:-d}", "va va va")),
        ("braces", SPELLINGS.replace("${A} ", "va ")),
        ("env", SPELLINGS.replace("${env:A}", "va")),
        ("windsurf", SPELLINGS.replace("${env:A}", "va")),
        ("cursor", SPELLINGS.replace("${env:A}", "va").replace("${userHome}", "/home/me")),
        (
            "vscode",
            SPELLINGS.replace("${env:A}", "va")
            .replace("${userHome}", "/home/me")
            .replace("${input:region}", "eu"),
        ),
        (
            "opencode",
            # It looks for braces only, so it sees its own in another's spelling, too.
            SPELLINGS.replace("${env:A}", "$va")
            .replace("{env:A}", "va")
            .replace("{file:/abs}", "absolute"),
        ),
        ("secrets", SPELLINGS.replace("${{ secrets.A }}", "va")),
    ],
)
def test_each_syntax_knows_its_own_spelling_and_no_other(syntax: Syntax, expanded: str) -> None:
    found = expand(SPELLINGS, variables(), syntax)
    assert found.text == expanded
    # To some, another's place looks like a variable that is not set.
    assert set(found.unset) <= {"userHome"}


@pytest.mark.parametrize(
    ("syntax", "text", "expanded", "emptied"),
    [
        ("vscode", "x${env:NO}y", "xy", True),
        ("cursor", "x${env:NO}y", "xy", True),
        ("opencode", "x{env:NO}y", "xy", True),
        ("windsurf", "x${env:NO}y", "x${env:NO}y", False),
        ("env", "x${env:NO}y", "x${env:NO}y", False),
        ("shell", "$NO ${NO} ${NO:-d}", "$NO ${NO} d", False),
        ("braces", "${NO}", "${NO}", False),
        ("secrets", "${{secrets.NO}}", "${{secrets.NO}}", False),
    ],
)
def test_an_unset_variable_becomes_what_it_becomes_in_the_client(
    syntax: Syntax, text: str, expanded: str, emptied: bool
) -> None:
    assert expand(text, variables(), syntax) == Expanded(
        text=expanded, unset=("NO",), emptied=emptied
    )


def test_an_input_has_the_environment_s_value_else_its_default_else_none() -> None:
    """Defined by docs/discovery.md, since VS Code asks its user."""
    assert expand("${input:api-key/2}", variables(), "vscode").text == "given"
    assert expand("${input:region}${input:blank}", variables(), "vscode").text == "eu"
    written = {"url": "${input:region}${input:other}", "args": ["${input:more}${input:other}"]}
    assert missing_inputs(written, variables(), "vscode") == ("other", "more")
    assert missing_inputs(written, variables(), "cursor") == ()
    assert input_variable("api-key/2") == "MCP_BRIDGE_INPUT_API_KEY_2"


def test_files_are_named_from_the_configuration_s_directory_or_home() -> None:
    assert expand("{file:./key.txt}", variables(), "opencode").text == "key"
    assert expand("{file:~/k}", variables(), "opencode").text == "home key"
    assert expand("${file:/abs}", variables(), "windsurf").text == "absolute"
    with pytest.raises(UnusableError):
        expand("{file:nothing}", variables(), "opencode")


def test_places_are_those_of_the_workspace() -> None:
    text = "${workspaceFolder} ${workspaceFolderBasename} ${cwd} ${pathSeparator}${/}"
    assert expand(text, variables(), "vscode").text == "/home/me/shop shop /home/me/shop //"


@pytest.mark.parametrize("syntax", ["vscode", "shell", "windsurf", "opencode", "braces", "secrets"])
@pytest.mark.parametrize("piece", ["${env:", "${A:-", "{file:", "${{ secrets.", "${{  ", "$", "${"])
def test_no_syntax_takes_longer_than_its_text(syntax: Syntax, piece: str) -> None:
    text = piece * 50_000
    assert expand(text, variables(), syntax).text == text
    assert expand(text + "}", variables(), "claude").text


def test_no_value_shows_in_a_repr() -> None:
    """Values are where people keep secrets."""
    assert "va" not in repr(variables())
    assert "va" not in repr(expand("${A}", variables()))
