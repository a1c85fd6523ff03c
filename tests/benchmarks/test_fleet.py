"""Where the test cluster is measured, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fleet
from benchmarks.bench import BenchmarkError
from benchmarks.results import Results, dumped
from tests.benchmarks.samples import results, warm


def run_instead(monkeypatch: pytest.MonkeyPatch, directory: Path, text: str) -> None:
    script = directory / "run"
    script.write_text(f"#!/bin/bash\nset -eu\n{text}\n")
    script.chmod(0o700)
    monkeypatch.setattr(fleet, "RUN", script)


def test_the_cluster_is_measured_unasked_where_its_programs_were_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not fleet.is_built()
    programs = tmp_path / "mcp-code-bridge" / "kubernetes-1.20.2-1"
    programs.mkdir(parents=True)
    assert not fleet.is_built()
    (programs / "kubelet").touch()
    assert fleet.is_built()


def test_what_was_measured_in_the_clusters_namespaces_comes_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    there: Results = results(warm(), quick=True)
    (tmp_path / "made").write_text(dumped(there))
    asked = tmp_path / "asked"
    copied = f'echo "$@" > {asked}; echo a table; cp {tmp_path}/made {tmp_path}/kubernetes.json'
    run_instead(monkeypatch, tmp_path, copied)
    assert fleet.measured(tmp_path, quick=True, only=["warm", "cold"]) == there
    words = asked.read_text().split()
    assert words[1:5] == ["-m", "benchmarks", "--engine", "kubernetes"]
    assert words[-5:] == ["--quick", "--only", "warm", "--only", "cold"]


def test_a_cluster_that_cannot_be_had_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = "fleet: no test cluster here: it needs root"
    run_instead(monkeypatch, tmp_path, f'echo first >&2; echo "{said}" >&2; exit 75')
    with pytest.raises(BenchmarkError, match="no test cluster here: it needs root"):
        fleet.measured(tmp_path, quick=False, only=None)
    assert "first" in capfd.readouterr().err
