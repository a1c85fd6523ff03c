"""Hooks that run when a module is imported."""

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
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    yield tmp_path / f"{NAME}.py"
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


@pytest.fixture
def seen(file: Path) -> list[object]:
    values: list[object] = []
    OnImport(NAME, lambda: values.append(sys.modules[NAME].value))
    return values


def test_each_hook_runs_once_when_the_module_is_loaded(seen: list[object]) -> None:
    OnImport(NAME, lambda: seen.append("second"))
    assert seen == []
    module = importlib.import_module(NAME)
    importlib.reload(module)
    assert seen == [1, "second"]
    assert isinstance(module.__loader__, importlib.machinery.SourceFileLoader)
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    OnImport(NAME, lambda: seen.append("loaded before"))
    assert seen[2:] == ["loaded before"]


def test_an_import_that_fails_is_no_load(file: Path, seen: list[object]) -> None:
    file.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    assert seen == []
    file.write_text("value = 22\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert seen == [22]


def test_neither_a_spec_nor_a_private_copy_is_a_load(seen: list[object]) -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_source(NAME) == "value = 1\n"  # type: ignore[attr-defined]
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert (copy.value, seen) == (1, [])
    assert importlib.import_module(NAME) is not copy
    assert seen == [1]
