"""A plot from a real server's data, drawn in the `data` image, as it reaches a client."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import anyio
import pytest
from mcp.types import ImageContent, TextContent

from tests.e2e.rig import PATIENCE_SECONDS, User, document_of, text_of
from tests.png import read_png

AUTHORS = {"ann": 6, "ben": 3, "cyn": 2}

ROOM = 128 * 1024
"""For pictures, as base64: enough for plots, and too little for noise."""

RED, BLUE, GREEN, WHITE = (204, 0, 0), (0, 0, 204), (0, 153, 0), (255, 255, 255)

PLOT = """
import re
import matplotlib.pyplot as plt
import pandas as pd
log = await mcp_git.git_log(repo_path={path!r}, max_count=50)
names = re.findall("Author: .*?'?(ann|ben|cyn)", str(log))
counts = pd.Series(names, name="author").value_counts().sort_index()
frame = counts.rename("commits").rename_axis("author").reset_index()
display(frame)
figure = plt.figure(figsize=(4, 3), dpi=50)
axes = figure.add_axes((0, 0, 1, 1))
axes.set_axis_off()
axes.set_xlim(0, 4)
axes.set_ylim(0, 6)
axes.bar([0.5, 1.5, 2.5], frame["commits"], width=1, color=["#cc0000", "#0000cc", "#009900"])
"""


@pytest.fixture
def analyst(tmp_path: Path) -> User:
    for name in ("home", "project"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "run").mkdir(mode=0o700)
    somebody = User(home=tmp_path / "home", project=tmp_path / "project", engine="podman")
    somebody.configure()
    git = ["git", "-C", str(somebody.project), "-c", "user.email=t@example.org"]
    for author, count in AUTHORS.items():
        for number in range(count):
            commit = ["-c", f"user.name={author}", "commit", "-q", "--allow-empty"]
            subprocess.run([*git, *commit, "-m", f"{author} {number}"], check=True)
    return somebody


@pytest.mark.full
@pytest.mark.podman
async def test_a_plot_of_a_server_s_data_is_what_it_shows(analyst: User, data_image: str) -> None:
    """In size and in the areas of its colours; and nothing complains of fonts or displays."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with analyst.client(
            MCP_BRIDGE_IMAGE=data_image, MCP_BRIDGE_SHOWN_BYTES=str(ROOM)
        ) as client:
            code = PLOT.format(path=str(analyst.project))
            result = await client.call_tool("run_python", {"code": code, "timeout": 60})
            text, table, picture = result.content[:3]
            document = document_of(result)
            assert document["status"] == "success", text_of(result)
            assert "stderr" not in document
            assert isinstance(table, TextContent)
            lines = table.text.splitlines()
            assert lines[0].split() == ["author", "commits"]
            assert [line.split()[1:] for line in lines[1:]] == [
                [author, str(count)] for author, count in AUTHORS.items()
            ]
            assert isinstance(picture, ImageContent)
            pixels = read_png(base64.b64decode(picture.data))
            assert (pixels.width, pixels.height) == (200, 150)
            shown = document["shown"][1]
            assert (shown["width"], shown["height"]) == (200, 150)
            # A quarter of the width each, and as high as there are commits.
            for colour, count in zip((RED, BLUE, GREEN), AUTHORS.values(), strict=True):
                assert pixels.count(colour, near=2) == pytest.approx(50 * 25 * count, rel=0.03)
            assert pixels.rows[149][25] == RED
            assert pixels.rows[149][175] == pixels.rows[0][75] == WHITE
