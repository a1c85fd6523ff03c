"""That a module which is changed as it is loaded is the same to everybody who looks at it."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.guest.imports import OnImport

NAME = "announced_in_tests"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1\n")
    yield file
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


def test_it_acts_once_when_the_module_is_loaded(place: Path) -> None:
    seen: list[object] = []
    OnImport(NAME, lambda: seen.append(sys.modules[NAME].value))
    assert seen == []
    module = importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [1]
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__


def test_it_acts_at_once_on_what_is_loaded(place: Path) -> None:
    importlib.import_module(NAME)
    seen: list[str] = []
    OnImport(NAME, lambda: seen.append("now"))
    assert seen == ["now"]


def test_to_ask_where_the_module_is_changes_nothing(place: Path) -> None:
    seen: list[str] = []
    OnImport(NAME, lambda: seen.append("loaded"))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader.get_source(NAME) == "value = 1\n"  # type: ignore[union-attr]
    assert seen == []
    importlib.import_module(NAME)
    assert seen == ["loaded"]


def test_an_import_that_fails_is_no_load(place: Path) -> None:
    place.write_text("1 / 0\n")
    seen: list[str] = []
    OnImport(NAME, lambda: seen.append("loaded"))
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    assert seen == []
    place.write_text("value = 22\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == ["loaded"]


def test_a_copy_that_nobody_else_sees_is_no_load(place: Path) -> None:
    seen: list[str] = []
    OnImport(NAME, lambda: seen.append("loaded"))
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.value == 1
    assert seen == []
    assert importlib.import_module(NAME) is not copy
    assert seen == ["loaded"]


def test_two_may_wait_for_one_module(place: Path) -> None:
    seen: list[int] = []
    OnImport(NAME, lambda: seen.append(1))
    OnImport(NAME, lambda: seen.append(2))
    importlib.import_module(NAME)
    assert seen == [1, 2]
