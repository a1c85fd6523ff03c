"""What a program asks for, and what its text says of it."""

from __future__ import annotations

import sysconfig
from typing import Any

import pytest

from bridge.errors import InvalidRequestError, PackageRefusedError, PackageUnavailableError
from bridge.packages.requirements import (
    MAX_REQUIREMENTS,
    check_python,
    check_resolved,
    check_wanted,
    parse_requirements,
    script_metadata,
)
from bridge.packages.target import PackageTarget, target_of
from tests.packages.rig import TARGET, allow_from


def script(*lines: str) -> str:
    return "\n".join(["import x", "# /// script", *(f"# {line}" for line in lines), "# ///", "1"])


def test_equal_wishes_are_written_alike() -> None:
    one = parse_requirements(["Polars == 1.*", "zope.interface", "a[b]>=1"])
    other = parse_requirements(["zope_Interface", "a[b] >= 1", "polars==1.*", "polars ==1.*"])
    assert [each.text for each in one] == [each.text for each in other]
    assert [each.name for each in one] == ["a", "polars", "zope-interface"]


@pytest.mark.parametrize("text", ["", "polars==", "-r x", "--index-url=http://x", "a b", "a\nb"])
def test_what_is_no_requirement_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="is no requirement; request"):
        parse_requirements([text])


@pytest.mark.guarantee("packages")
def test_nothing_from_an_address_and_no_more_than_a_run_may_have_is_taken() -> None:
    with pytest.raises(PackageRefusedError, match="only the index is used") as refusal:
        parse_requirements(["polars @ https://example.org/polars-1-py3-none-any.whl"])
    assert "example.org" not in str(refusal.value)
    with pytest.raises(InvalidRequestError, match=f"a run may have {MAX_REQUIREMENTS}"):
        parse_requirements([f"a{number}" for number in range(MAX_REQUIREMENTS + 1)])


def test_script_metadata_is_read() -> None:
    lines = ('requires-python = ">=3.11"', "dependencies = [", '  "polars==1.*",', '  "rich",', "]")
    assert script_metadata(script(*lines)) == (("polars==1.*", "rich"), ">=3.11")
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
        (script("requires-python = 3"), 2, "is no version specifier"),
        (script(f'requires-python = "=={"9" * 5000}"'), 2, "is no version specifier"),
        (script('requires-python = "three"'), 2, "is no version specifier"),
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
    check_python("", "3.9.2")
    check_python(">=3.9,<4", "3.9.2")
    with pytest.raises(PackageRefusedError, match="requires Python >=3.10; the sandbox has 3.9.2"):
        check_python(">=3.10", "3.9.2")


def test_of_many_keys_that_mean_nothing_the_first_are_looked_at() -> None:
    """To compare each with those there are would take seconds, in which no one else is served."""
    others = [f"depend{number}xyz = 1" for number in range(20)]
    assert script_metadata(script(*others, "dependencie = []")).dependencies == ()
    with pytest.raises(InvalidRequestError, match="write `dependencies`"):
        script_metadata(script(*others[1:], "dependencie = []"))


ALLOW = allow_from("/wheels", "polars", "pandas==2.*", "types-*", "Zope.Interface").allow


def test_what_is_not_listed_is_refused_with_what_is_near_and_the_line_to_add() -> None:
    check_wanted(parse_requirements(["Polars", "types_requests", "zope_interface"]), ALLOW)
    with pytest.raises(PackageRefusedError) as refusal:
        check_wanted(parse_requirements(["polar", "requests", "pandas"]), ALLOW)
    assert refusal.value.message.startswith("polar, requests are not allowed here. Near: polars.")
    assert "pandas==2.*" in refusal.value.message
    assert 'add "polar", "requests" to `allow`' in refusal.value.remedy
    with pytest.raises(PackageRefusedError, match="No packages are allowed here") as refusal:
        check_wanted(parse_requirements(["polars"]), ())
    assert '[dependencies] with allow = ["polars"].' in refusal.value.remedy


def test_a_version_outside_of_its_entry_is_refused_and_what_is_needed_has_none() -> None:
    check_resolved({"pandas": "2.2.3", "numpy": "2.0"}, ALLOW)
    with pytest.raises(PackageRefusedError, match=r"pandas 3\.0 is not allowed .* pandas==2"):
        check_resolved({"pandas": "3.0"}, ALLOW)


def test_one_word_allows_the_usual_packages_for_data_work() -> None:
    allow = allow_from("/wheels", "@data", "attrs").allow
    check_wanted(parse_requirements(["pandas", "Scikit_Learn", "attrs", "Pillow"]), allow)
    assert len(allow) > 40
    with pytest.raises(PackageRefusedError, match="torch is not allowed here"):
        check_wanted(parse_requirements(["torch"]), allow)


FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

FACTS: dict[str, Any] = {
    "platform": "linux",
    "implementation": "cpython",
    "python": "3.9.2",
    "free_threaded": False,
    "machine": "x86_64",
    "libc": "glibc 2.31",
}


def made(**changes: Any) -> PackageTarget:
    return target_of({**FACTS, **changes})


def test_it_is_what_the_guest_tells() -> None:
    assert target_of(FACTS) == TARGET
    assert made(python="3.13.1", free_threaded=True).abi == "cp313t"
    assert made(implementation="pypy").abi == ""
    assert made(machine="arm64").machine == "aarch64"


@pytest.mark.parametrize(
    "lie",
    [
        {"python": "3.9.2\n--extra-index-url x"},
        {"python": 3},
        {"machine": "x86_64; rm"},
        {"machine": "../.."},
        {"libc": "glibc 2.99999"},
        {"implementation": ""},
        {"platform": "darwin"},
    ],
)
def test_what_no_python_can_be_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(PackageUnavailableError):
        made(**lie)


def test_uv_is_told_about_the_sandboxes_c_library_or_the_next_older_that_it_knows() -> None:
    assert TARGET.uv_platform == "x86_64-manylinux_2_31"
    assert made(libc="glibc 2.30").uv_platform == "x86_64-manylinux_2_28"
    assert made(libc="glibc 2.99").uv_platform == "x86_64-manylinux_2_40"
    assert made(libc="musl", machine="arm64").uv_platform == "aarch64-unknown-linux-musl"


@pytest.mark.parametrize(
    "kind", [{"implementation": "pypy"}, {"free_threaded": not FREE}, {"libc": ""}]
)
def test_a_python_of_a_kind_that_uv_cannot_be_told_about_is_refused(kind: dict[str, Any]) -> None:
    with pytest.raises(PackageUnavailableError, match="that kind of Python") as refusal:
        _ = made(**kind).uv_platform
    assert "MCP_BRIDGE_IMAGE" in refusal.value.remedy


def test_targets_that_take_other_wheels_have_other_digests() -> None:
    assert len({TARGET.digest, made(libc="musl").digest, made(python="3.9.3").digest}) == 3
