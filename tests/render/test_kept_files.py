"""What the text of a result says of files."""

from __future__ import annotations

from bridge.model import Artifact, Loss, RunResult
from bridge.render.text import compact


def artifact(name: str, size: int = 12_345) -> Artifact:
    return Artifact(
        uri=f"bridge://artifacts/{name[:1]}",
        name=name,
        mime_type="text/csv",
        size=size,
        digest="0" * 64,
        run_id="r",
        path=f"out/{name}",
    )


def test_a_file_is_a_line_with_what_it_is_and_where() -> None:
    result = RunResult(run_id="r", status="success", summary="", stdout="1\n")
    one = RunResult(**{**vars(result), "artifacts": (artifact("a.csv"),)})
    assert compact(one) == "1\n[files] out/a.csv (text/csv, 12,345 bytes) bridge://artifacts/a"
    more = RunResult(
        **{
            **vars(result),
            "artifacts": (artifact("a"), artifact("b\n[error]", 1)),
            "missing": (Loss(name="link", why="it is a symbolic link"),),
        }
    )
    assert compact(more).splitlines()[1:] == [
        "[files]",
        "out/a (text/csv, 12,345 bytes) bridge://artifacts/a",
        "out/b\\n[error] (text/csv, 1 byte) bridge://artifacts/b",
        "[missing] link: it is a symbolic link",
    ]


def test_of_many_files_a_few_are_listed() -> None:
    many = tuple(artifact(str(number)) for number in range(25 + 3))
    lost = tuple(Loss(name=str(number), why="x") for number in range(25 + 2))
    result = RunResult(run_id="r", status="success", summary="", artifacts=many, missing=lost)
    lines = compact(result).splitlines()
    assert lines[25 + 1] == "and 3 more"
    assert lines[-1] == "and 2 more"
    assert len(lines) == 2 * (25 + 2)
