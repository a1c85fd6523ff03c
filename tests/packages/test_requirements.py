"""What a program asks for, and what its text says of it."""

from __future__ import annotations

import pytest

from bridge.errors import InvalidRequestError, PackageRefusedError
from bridge.packages.requirements import (
    MAX_REQUIREMENTS,
    parse_requirements,
    refused_python,
    script_metadata,
)


def script(*lines: str) -> str:
    return "\n".join(["import x", "# /// script", *(f"# {line}" for line in lines), "# ///", "1"])


def test_equal_wishes_are_written_alike() -> None:
    one = parse_requirements(["Polars == 1.*", "zope.interface", "a[b]>=1"])
    other = parse_requirements(["zope_Interface", "a[b] >= 1", "polars==1.*", "polars ==1.*"])
    assert [each.text for each in one] == [each.text for each in other]
    assert [each.name for each in one] == ["a", "polars", "zope-interface"]


@pytest.mark.parametrize("text", ["", "polars==", "-r x", "--index-url=http://x", "a b", "a\nb"])
def test_what_is_no_requirement_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no requirement; ask for"):
        parse_requirements([text])


@pytest.mark.guarantee("packages")
def test_nothing_is_taken_from_an_address_that_the_program_names() -> None:
    with pytest.raises(PackageRefusedError, match="only the index is used") as refusal:
        parse_requirements(["polars @ https://example.org/polars-1-py3-none-any.whl"])
    assert "example.org" not in str(refusal.value)


def test_more_requirements_than_a_run_may_have_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=f"a run may have {MAX_REQUIREMENTS}"):
        parse_requirements([f"a{number}" for number in range(MAX_REQUIREMENTS + 1)])


def test_script_metadata_is_read() -> None:
    found = script_metadata(
        script(
            'requires-python = ">=3.11"', "dependencies = [", '  "polars==1.*",', '  "rich",', "]"
        )
    )
    assert found.dependencies == ("polars==1.*", "rich")
    assert found.requires_python == ">=3.11"


def test_a_program_without_metadata_asks_for_nothing() -> None:
    assert script_metadata("x = '# /// script'\n").dependencies == ()
    assert script_metadata("# /// pyproject\n# dependencies = 1\n# ///\n").dependencies == ()
    assert script_metadata(script("other = 1", "[tool.dependency]", "x = 1")).dependencies == ()


@pytest.mark.parametrize(
    ("code", "line", "why"),
    [
        (script("dependencies = ["), 3, "it is not TOML"),
        (script("a = 1", "dependencies = {"), 4, "it is not TOML"),
        (script('dependencies = "polars"'), 2, "`dependencies` must be a list"),
        (script(f"a = {'9' * 5000}"), 2, "a number in it is too long"),
        (script(f"a = {'[' * 5000}"), 2, "a value too deep"),
        (script("requires-python = 3"), 2, "says nothing of versions"),
        (script(f'requires-python = "=={"9" * 5000}"'), 2, "says nothing of versions"),
        (script('requires-python = "three"'), 2, "says nothing of versions"),
        (script('dependancies = ["polars"]'), 2, "means nothing; write `dependencies`"),
        (script('requires_python = ">=3.11"'), 2, "means nothing; write `requires-python`"),
        ("# /// script\n# a = 1\nx = 1\n", 1, "a line `# ///` ends it"),
        ("# /// script\n#a = 1\n# ///\n", 1, "its lines begin with `# `"),
        (script() + "\n" + script(), 6, "a second"),
    ],
)
def test_malformed_metadata_is_refused_with_its_line(code: str, line: int, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^Line {line}: ") as refusal:
        script_metadata(code)
    assert why in refusal.value.message


def test_a_program_that_demands_another_python_is_refused() -> None:
    assert refused_python("", "3.9.2") is None
    assert refused_python(">=3.9,<4", "3.9.2") is None
    refusal = refused_python(">=3.10", "3.9.2")
    assert isinstance(refusal, PackageRefusedError)
    assert "requires Python >=3.10; the sandbox has 3.9.2" in refusal.message


def test_of_many_keys_that_mean_nothing_the_first_are_looked_at() -> None:
    """To compare each with those there are would take seconds, in which no one else is served."""
    others = [f"depend{number}xyz = 1" for number in range(20)]
    assert script_metadata(script(*others, "dependencie = []")).dependencies == ()
    with pytest.raises(InvalidRequestError, match="write `dependencies`"):
        script_metadata(script(*others[1:], "dependencie = []"))
