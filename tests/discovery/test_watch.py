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
from bridge.discovery.finder import DiscoveryContext, Stamp, survey
from bridge.discovery.watch import Watch, watched_paths

LONG_AGO = 1_000_000_000
"""Seconds; what changed then has settled."""


@pytest.fixture
def context(tmp_path: Path) -> DiscoveryContext:
    """A user with one configuration file, whose project is a repository."""
    home = tmp_path / "home"
    project = home / "work" / "project"
    (project / ".git").mkdir(parents=True)
    (project / "part").mkdir()
    (home / ".config" / "mcp" / "servers").mkdir(parents=True)
    (home / ".claude.json").write_text("{}")
    context = DiscoveryContext(
        home=home,
        cwd=project / "part",
        platform="linux",
        environ={},
        system_root=tmp_path / "system",
    )
    settle(tmp_path)
    return context


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
    """A second change within the same tick of the file system's clock would not show."""
    (context.home / ".claude.json").write_text('{"a": 1}')
    watch = Watch(context)
    watch.stamp()
    watch.stamp()
    assert watch.surveys == 2


def _change_other_files(context: DiscoveryContext) -> None:
    """Change what is of no configuration, beside where one would be."""
    for place in (
        *(context.home, context.home / ".config", context.cwd, context.cwd.parent),
        *(context.cwd.parent / ".git", context.home.parent),
    ):
        other = place / "other"
        other.write_text("1")
        other.rename(place / "history")


def test_other_files_beside_a_configuration_cost_no_survey(context: DiscoveryContext) -> None:
    """Clients keep their histories in the home directory, and a project changes all day."""
    watch = Watch(context)
    before = watch.stamp()
    for _ in range(3):
        _change_other_files(context)
        assert watch.stamp() == before
    assert watch.surveys == 1


def _add_to_directory(context: DiscoveryContext) -> None:
    (context.home / ".config" / "mcp" / "servers" / "a.json").write_text("{}")


def _add_in_project(context: DiscoveryContext) -> None:
    (context.cwd / ".mcp.json").write_text("{}")


def _install_extension(context: DiscoveryContext) -> None:
    extension = context.home / ".gemini" / "extensions" / "maps"
    extension.mkdir(parents=True)
    (extension / "gemini-extension.json").write_text("{}")


def _change(context: DiscoveryContext) -> None:
    (context.home / ".claude.json").write_text('{"mcpServers": {}}')


def _rewrite_with_the_same_time_and_size(context: DiscoveryContext) -> None:
    (context.home / ".claude.json").write_text("[]")
    os.utime(context.home / ".claude.json", (LONG_AGO, LONG_AGO))


def _lose_repository(context: DiscoveryContext) -> None:
    shutil.rmtree(context.cwd.parent / ".git")


@pytest.mark.parametrize(
    "act",
    [
        _add_to_directory,
        _add_in_project,
        _install_extension,
        _change,
        _rewrite_with_the_same_time_and_size,
        _lose_repository,
    ],
)
def test_every_change_that_the_survey_sees_is_seen(
    context: DiscoveryContext, act: Callable[[DiscoveryContext], None]
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
    """Files, directories and links, in a place that counts, on the way to one, and beside it."""
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
    """Return a stamp in which it does not matter why a file is not there."""
    return [each if isinstance(each, str) or not is_absent(each) else each[0] for each in stamp]


def test_other_rights_of_a_directory_are_looked_into(context: DiscoveryContext) -> None:
    """They may open to us what was closed, and are no content, whose time therefore stays."""
    watch = Watch(context)
    watch.stamp()
    (context.home / ".config" / "mcp" / "servers").chmod(0o700)
    watch.stamp()
    assert watch.surveys == 2


def test_a_file_that_a_configuration_names_is_followed(context: DiscoveryContext) -> None:
    """`Discovery.references`: they are known only once the configuration is read."""
    named = context.home / "server.env"
    named.write_text("A=1")
    settle(context.home)
    watch = Watch(context)
    before = watch.stamp()
    watch.add_references((named,))
    followed = watch.stamp()
    assert followed[: len(before)] == before
    named.write_text("A=22")
    assert watch.stamp() != followed
    watch.add_references(())
    assert watch.stamp() == before


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
    """Who keeps configurations in a repository links to them, and edits them there."""
    dotfiles = tmp_path / "dotfiles"
    dotfiles.mkdir()
    (dotfiles / "mcp.json").write_text("{}")
    (context.home / ".cursor").mkdir()
    (context.home / ".cursor" / "mcp.json").symlink_to(dotfiles / "mcp.json")
    named = tmp_path / "named"
    named.mkdir()
    found = watched_paths(context, (named / "server.env",))
    assert {dotfiles, named, context.home / ".cursor"} <= set(found)


def test_a_source_that_is_off_is_not_watched(context: DiscoveryContext) -> None:
    (context.home / ".cursor").mkdir()
    off = replace(context, sources=("-cursor",))
    assert context.home / ".cursor" not in watched_paths(off)
