"""The documents are a site without broken links, which needs no network to be read."""

from __future__ import annotations

import re
import shutil
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


def test_markdown_is_read_as_git_hosts_read_it(built: Path) -> None:
    """Fences and lists that only some readers of Markdown recognise stay visible as marks."""
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
    assert len(README.read_text("utf-8").splitlines()) < 150
