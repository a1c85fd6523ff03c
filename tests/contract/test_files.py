"""Files into a run and out of it, on every engine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bridge.model import InputFile, RunRequest
from tests.contract.rig import Rig
from tests.engine_rig import ListFinder, engine_on, settings_in

ROUND = """
import os, pathlib
found = sorted(str(path) for path in pathlib.Path().rglob("*"))
given = pathlib.Path("data/in.bin").read_bytes()
target = pathlib.Path("out/deep/copy.bin")
target.parent.mkdir()
target.write_bytes(given[::-1])
pathlib.Path("out/empty").touch()
for name, to in {"link": "/etc/passwd", "self": "/proc/self/maps", "all": "/"}.items():
    os.symlink(to, "out/" + name)
os.mkfifo("out/pipe")
with open("out/sparse", "wb") as file:
    file.truncate(100 << 20)
found
"""

LATE = "open('out/part', 'w').write('so far')\nwhile True: pass"


@pytest.mark.guarantee("files-out")
async def test_files_make_the_round_and_nothing_else_does(rig: Rig, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8 * 1024
    settings = settings_in(tmp_path)
    async with engine_on(rig.backend, settings, finder=ListFinder()) as engine:
        given = (InputFile(name="data/in.bin", data=data),)
        result = await engine.run(RunRequest(code=ROUND, files=given, timeout=60))
        assert result.status == "success", result
        assert result.result == ["data", "data/in.bin", "out"]
        kept = {one.name: one for one in result.artifacts}
        assert sorted(kept) == ["deep/copy.bin", "empty"]
        copy = kept["deep/copy.bin"]
        assert copy.digest == hashlib.sha256(data[::-1]).hexdigest()
        assert engine.artifacts.read("", copy.uri) == data[::-1]
        missing = sorted(loss.name for loss in result.missing)
        assert missing == ["all", "link", "pipe", "self", "sparse"], result.missing

        late = await engine.run(RunRequest(code=LATE, timeout=1))
        assert late.status == "timeout", late
        assert [one.name for one in late.artifacts] == ["part"]
