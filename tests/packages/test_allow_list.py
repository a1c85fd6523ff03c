"""Which packages may be used."""

from __future__ import annotations

import pytest

from bridge.errors import PackageRefusedError
from bridge.packages.requirements import (
    check_resolved,
    check_wanted,
    constraints,
    nothing_allowed,
    parse_requirements,
)
from tests.packages.rig import allowing

ALLOW = allowing("/wheels", "polars", "pandas==2.*", "types-*", "Zope.Interface").allow


def test_what_is_listed_may_be_asked_for_whatever_way_it_is_written() -> None:
    check_wanted(parse_requirements(["Polars", "types_requests", "zope_interface"]), ALLOW, "c")


def test_what_is_not_listed_is_refused_with_what_is_near_and_the_line_to_add() -> None:
    with pytest.raises(PackageRefusedError) as refusal:
        check_wanted(parse_requirements(["polar", "requests", "pandas"]), ALLOW, "config.toml")
    assert refusal.value.message.startswith("polar, requests are not allowed here. Near: polars.")
    assert "pandas==2.*" in refusal.value.message
    assert 'add "polar", "requests" to `allow`' in refusal.value.remedy


def test_a_version_outside_of_its_entry_is_refused_and_what_is_needed_has_none() -> None:
    check_resolved({"pandas": "2.2.3", "numpy": "2.0"}, ALLOW)
    with pytest.raises(PackageRefusedError, match=r"pandas 3\.0 is not allowed .* pandas==2"):
        check_resolved({"pandas": "3.0"}, ALLOW)


def test_one_word_allows_the_usual_packages_for_data_work() -> None:
    allow = allowing("/wheels", "@data", "attrs").allow
    check_wanted(parse_requirements(["pandas", "Scikit_Learn", "attrs", "Pillow"]), allow, "c")
    assert len(allow) > 40
    with pytest.raises(PackageRefusedError, match="torch is not allowed here"):
        check_wanted(parse_requirements(["torch"]), allow, "c")


def test_a_resolver_is_told_what_versions_are_left() -> None:
    assert constraints(["polars"], ALLOW) == ("pandas==2.*",)
    several = allowing("/wheels", "a==1.*", "a==2.*", "b*<3").allow
    assert constraints(["a", "bee"], several) == ("bee<3",)


def test_where_nothing_is_allowed_the_text_to_add_is_told() -> None:
    error = nothing_allowed(["polars"], "config.toml")
    assert '[dependencies] with allow = ["polars"].' in error.remedy
