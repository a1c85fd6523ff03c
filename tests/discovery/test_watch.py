"""That the shortcut says what the survey says, and that it is one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from bridge.discovery.files import is_absent
from bridge.discovery.finder import DiscoveryContext, Stamp, Watch, survey, watched_paths
from tests.discovery.writing import write

LONG_AGO = 1_000_000_000


@pytest.fixture
def context(context: DiscoveryContext, tmp_path: Path) -> DiscoveryContext:
    project = context.home / "work" / "project"
    (project / ".git").mkdir(parents=True)
    (project / "part").mkdir()
    (context.home / ".config" / "mcp" / "servers").mkdir(parents=True)
    (context.home / ".claude.json").write_text("{}")
    settle(tmp_path)
    return replace(context, cwd=project / "part")


def settle(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for path in (directory, *(os.path.join(directory, name) for name in names)):  # noqa: PTH118
            if not Path(path).is_symlink():
                os.utime(path, (LONG_AGO, LONG_AGO))


def test_nothing_is_surveyed_while_nothing_changes(context: DiscoveryContext) -> None:
    watch = Watch(context)
    stamps = {watch.stamp() for _ in range(5)}
    assert watch.surveys == 1
    assert stamps == {survey(context).stamp()}


def test_what_changed_just_now_is_surveyed_again(context: DiscoveryContext) -> None:
    """A second change within one tick of the file system's clock would not show."""
    (context.home / ".claude.json").write_text('{"a": 1}')
    watch = Watch(context)
    watch.stamp()
    watch.stamp()
    assert watch.surveys == 2


def _change_other_files(context: DiscoveryContext) -> None:
    for place in (
        *(context.home, context.home / ".config", context.cwd, context.cwd.parent),
        *(context.cwd.parent / ".git", context.home.parent),
    ):
        other = place / "other"
        other.write_text("1")
        other.rename(place / "history")


def test_other_files_beside_a_configuration_change_no_stamp(context: DiscoveryContext) -> None:
    """Clients keep their histories in the home directory."""
    watch = Watch(context)
    before = watch.stamp()
    for _ in range(3):
        _change_other_files(context)
        assert watch.stamp() == before


def _install_extension(context: DiscoveryContext) -> None:
    write(context.home / ".gemini" / "extensions" / "maps" / "gemini-extension.json", "{}")


def _rewrite_with_the_same_time_and_size(context: DiscoveryContext) -> None:
    (context.home / ".claude.json").write_text("[]")
    os.utime(context.home / ".claude.json", (LONG_AGO, LONG_AGO))


@pytest.mark.parametrize(
    "act",
    [
        lambda context: write(context.home / ".config" / "mcp" / "servers" / "a.json", "{}"),
        lambda context: write(context.cwd / ".mcp.json", "{}"),
        lambda context: write(context.home / ".claude.json", '{"mcpServers": {}}'),
        lambda context: shutil.rmtree(context.cwd.parent / ".git"),
        _install_extension,
        _rewrite_with_the_same_time_and_size,
    ],
)
def test_every_change_that_the_survey_sees_is_seen(
    context: DiscoveryContext, act: Callable[[DiscoveryContext], object]
) -> None:
    watch = Watch(context)
    before = watch.stamp()
    act(context)
    after = watch.stamp()
    assert after != before
    assert after == survey(context).stamp()


def test_one_more_extension_beside_another_is_seen(context: DiscoveryContext) -> None:
    _install_extension(context)
    extensions = context.home / ".gemini" / "extensions"
    settle(context.home)
    watch = Watch(context)
    stamps = [watch.stamp()]
    (extensions / "news").mkdir()
    stamps.append(watch.stamp())
    (extensions / "news" / "gemini-extension.json").write_text("{}")
    stamps.append(watch.stamp())
    (extensions / "maps" / "gemini-extension.json").write_text('{"name": "maps"}')
    stamps.append(watch.stamp())
    assert len(set(stamps)) == len(stamps)
    assert stamps[-1] == survey(context).stamp()
    assert {extensions, extensions / "maps", extensions / "news"} <= set(watched_paths(context))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_same_whatever_comes_and_goes(context: DiscoveryContext, seed: int) -> None:
    random = Random(seed)
    places = [
        *(context.home / name for name in (".cursor", ".cursor/mcp.json", "MCPs", "MCPs/a.json")),
        *(context.home / name for name in (".claude.json", ".config", ".codex/config.toml")),
        *(context.cwd / name for name in (".mcp.json", ".vscode", ".vscode/mcp.json", ".git")),
        *(context.cwd.parent / name for name in (".git", ".mcp.json", "other")),
    ]
    watch = Watch(context)
    for _ in range(40):
        place = random.choice(places)
        with suppress(OSError):
            if os.path.lexists(place) and random.random() < 0.6:
                place.rename(context.home / f"gone-{random.random()}")
            elif random.random() < 0.4:
                place.mkdir(parents=True)
            elif random.random() < 0.3:
                place.symlink_to(random.choice(places))
            else:
                place.write_text("[]" * random.randrange(3))
        if random.random() < 0.3:
            settle(context.home)
        assert _known(watch.stamp()) == _known(survey(context).stamp())


def _known(stamp: Stamp) -> list[object]:
    """Return a stamp without the reason why a file is missing."""
    return [each if isinstance(each, str) or not is_absent(each) else each[0] for each in stamp]


def test_other_rights_of_a_directory_are_looked_into(context: DiscoveryContext) -> None:
    watch = Watch(context)
    watch.stamp()
    (context.home / ".config" / "mcp" / "servers").chmod(0o700)
    watch.stamp()
    assert watch.surveys == 2


def test_a_file_that_a_configuration_names_is_followed(context: DiscoveryContext) -> None:
    named = context.home / "server.env"
    named.write_text("A=1")
    settle(context.home)
    watch = Watch(context)
    before = watch.stamp()
    watch.add_references((named,))
    assert watch.stamp() == before
    named.write_text("A=22")
    assert watch.stamp() != before
    watch.add_references(())
    assert watch.stamp() == before
    # It may have changed after it was read.
    watch.add_references((named,))
    assert watch.stamp() != before


def test_every_place_where_a_file_may_appear_is_watched_or_the_nearest_that_exists(
    context: DiscoveryContext,
) -> None:
    (context.home / ".cursor").mkdir()
    found = watched_paths(context)
    assert all(path.is_dir() for path in found)
    assert len(set(found)) == len(found)
    for place in (
        context.home,
        context.home / ".cursor",
        context.home / ".config",
        context.home / ".config" / "mcp" / "servers",
        context.cwd,
        context.cwd.parent,
    ):
        assert place in found


def test_what_a_link_leads_to_is_watched_too(context: DiscoveryContext, tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    (context.home / ".cursor").mkdir()
    (context.home / ".cursor" / "mcp.json").symlink_to(write(dotfiles / "mcp.json", "{}"))
    named = tmp_path / "named"
    named.mkdir()
    found = watched_paths(context, (named / "server.env",))
    assert {dotfiles, named, context.home / ".cursor"} <= set(found)
