"""The documents are a site without broken links, which needs no network to be read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import site

README = site.ROOT / "README.md"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    process = site.build(target)
    assert process.returncode == 0, process.stderr
    return target


def test_every_link_leads_to_a_file_and_a_heading_that_exist(built: Path) -> None:
    assert (built / "index.html").is_file()


def test_a_page_loads_nothing_from_the_network(built: Path) -> None:
    loaded = re.compile(r"""(?:src=|<link[^>]*href=|url\()\s*["']?(?:https?:)?//""")
    pages = [*built.rglob("*.html"), *built.rglob("*.css")]
    assert [path.name for path in pages if loaded.search(path.read_text("utf-8"))] == []


@pytest.mark.full
def test_a_page_on_disk_finds_pages_by_their_words(built: Path, tmp_path: Path) -> None:
    """Browsers start no worker and fetch no index for a page on disk."""
    chromium = ("chromium", "--headless", "--no-sandbox", f"--user-data-dir={tmp_path}")
    page = f"{(built / 'docs' / 'install.html').as_uri()}?q=landlock"
    command = [*chromium, "--virtual-time-budget=20000", "--dump-dom", page]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    hits = re.findall(r'href="([^"?]*)[^"]*" class="md-search-result__link"', shown)
    assert any(hit.startswith(built.as_uri()) for hit in hits), shown[-2000:]


def test_markdown_is_read_as_git_hosts_read_it(built: Path) -> None:
    paragraph = re.compile(r"<p>(.*?)</p>", re.DOTALL)
    mark = re.compile(r"^(?:```|- |\* |\d+\. |\|).*", re.MULTILINE)
    left = [
        (path.name, line)
        for path in built.rglob("*.html")
        for text in paragraph.findall(path.read_text("utf-8"))
        for line in mark.findall(text)
    ]
    assert left == []


@pytest.mark.parametrize("link", ["docs/absent.md", "docs/policy.md#absent", "examples/absent.py"])
def test_a_broken_link_is_an_error_that_names_it(tmp_path: Path, link: str) -> None:
    copy = tmp_path / "repository"
    for name in (*site.DIRECTORIES, *site.PAGES, "mkdocs.yml"):
        if (site.ROOT / name).is_dir():
            shutil.copytree(site.ROOT / name, copy / name)
        else:
            copy.mkdir(exist_ok=True)
            shutil.copy(site.ROOT / name, copy)
    with (copy / "README.md").open("a") as readme:
        readme.write(f"\n[broken]({link})\n")
    process = site.build(tmp_path / "site", root=copy)
    assert process.returncode != 0
    assert link in process.stderr


def test_the_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text("utf-8").splitlines()) <= 100


def _numbers(row: str, column: int) -> list[float]:
    """Return a column of a row in the published table, a number for each engine."""
    lines = (site.ROOT / "docs" / "performance.md").read_text("utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {row}"))
    cells = [line.split("|") for line in lines[first : first + 3]]
    return [float(each[column].split()[0].replace(",", "")) for each in cells]


def test_the_readme_has_the_costs_that_were_measured() -> None:
    readme = " ".join(README.read_text("utf-8").split())
    run, call = (_numbers("run_python(1+1) through client", 4), _numbers("tool call from", 6))
    memory = _numbers("idle with 4 warm sandboxes: memory", 4)
    assert f"takes {min(run):.1f} to {max(run):.1f} ms from the client and back" in readme
    assert f"takes {min(call):.1f} to {max(call):.1f} times as long" in readme
    assert f"with four sandboxes ready {min(memory):.0f} to {max(memory):.0f} MB" in readme
    disclosure = (site.ROOT / "docs" / "disclosure.md").read_text("utf-8")
    total = next(line for line in disclosure.splitlines() if "**all of these**" in line)
    tools, _, direct, behind = re.findall(r"\*\*([\d,]+)\*\*", total)
    assert (
        f"with {tools} tools cost a model {direct} tokens when loaded directly, {behind}" in readme
    )
