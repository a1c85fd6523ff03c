"""Files into a run and out of it, on the fake backend."""

from __future__ import annotations

import hashlib

import anyio
import pytest

from bridge.errors import InvalidRequestError
from bridge.model import InputFile, RunRequest, RunResult
from bridge.runs import Engine

COPY = """
import pathlib
for path in sorted(pathlib.Path().rglob("*")):
    if path.is_file():
        print(path, path.stat().st_size)
target = pathlib.Path("out/deep/er/copy.csv")
target.parent.mkdir(parents=True)
target.write_bytes(pathlib.Path("data/in.csv").read_bytes())
pathlib.Path("out/empty").touch()
"""


async def test_files_come_in_and_go_out_with_type_size_and_digest(engine: Engine) -> None:
    content = b"a,b\r\n1,\xc3\xa9\n" * 50_000
    request = RunRequest(code=COPY, files=(InputFile(name="data/in.csv", data=content),))
    result = await engine.run(request)
    assert result.status == "success", result.error
    assert result.stdout == f"data/in.csv {len(content)}\n"
    assert [(kept.name, kept.size) for kept in result.artifacts] == [
        ("deep/er/copy.csv", len(content)),
        ("empty", 0),
    ]
    copy = result.artifacts[0]
    assert copy.mime_type == "text/csv"
    assert copy.digest == hashlib.sha256(content).hexdigest()
    assert engine.artifacts.read("", copy.uri) == content
    assert result.missing == ()

    again = RunRequest(
        code="import hashlib\n"
        "[hashlib.sha256(open('in', 'rb').read()).hexdigest(), open('words').read()]",
        files=(
            InputFile(name="in", uri=copy.uri),
            InputFile(name="words", uri="data:text/plain;charset=utf-8,caf%C3%A9"),
        ),
    )
    assert (await engine.run(again)).result == [copy.digest, "café"]
    with pytest.raises(InvalidRequestError, match="No artifact matches"):
        await engine.run(
            RunRequest(code="1", owner="else", files=(InputFile(name="in", uri=copy.uri),))
        )


SHADOWS = ("typing", "json", "asyncio", "traceback", "numpy", "sitecustomize", "usercustomize")
"""What the guest, a program's first lines or an interpreter's start may import."""


async def test_a_file_called_like_a_module_is_not_imported_before_the_program(
    engine: Engine,
) -> None:
    shout = b"import os\nos.write(1, b'imported ' + __name__.encode() + b'\\n')"
    files = tuple(InputFile(name=f"{name}.py", data=shout) for name in SHADOWS)
    code = (
        "print('began')\nimport json, asyncio, usercustomize\nawait asyncio.sleep(0)\nprint(json)"
    )
    result = await engine.run(RunRequest(code=code, files=files))
    assert result.status == "success", result.error
    began, own, library = result.stdout.splitlines()
    assert (began, own) == ("began", "imported usercustomize")
    assert "workspace" not in library


async def test_in_a_session_files_come_before_each_run_and_changes_come_out_once(
    engine: Engine,
) -> None:
    async def run(code: str, **files: bytes) -> RunResult:
        given = tuple(InputFile(name=name, data=data) for name, data in files.items())
        request = RunRequest(code=code, session="s", files=given, principal="me", owner="me")
        with anyio.fail_after(60):
            return await engine.run(request)

    first = await run("open('out/a', 'w').write(open('x').read())", x=b"1")
    assert [one.name for one in first.artifacts] == ["a"], first
    second = await run(
        "import os\nkept = open('x').read()\nos.mkdir('sub')\nos.chdir('sub')", x=b"2"
    )
    assert second.artifacts == ()
    refused = await run("never = 1", sub=b"3")
    assert (refused.status, refused.reason) == ("error", "exception"), refused
    assert "the file 'sub' could not be put" in refused.error
    last = await run("open('../out/b', 'w').write(kept + open('../y').read())", y=b"3")
    assert last.status == "success", last
    assert [engine.artifacts.read("me", one.uri) for one in last.artifacts] == [b"23"]
    gone = await run("never")
    assert "NameError" in gone.error


async def test_what_a_plan_s_program_wrote_comes_out(engine: Engine) -> None:
    code = "open('out/a', 'w').write('x')\nawait mcp_work_shop.add(a=1, b=2)"
    result = await engine.run(RunRequest(code=code, mode="plan"))
    assert [one.name for one in result.artifacts] == ["a"], result
