"""What is watched, and what happens where the kernel does not tell."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from bridge.discovery.finder import DiscoveryContext
from bridge.inventory.config_watch import WatchPlan, watch_config, watch_plan
from tests.waiting import PATIENCE_SECONDS, until


def context_of(root: Path) -> DiscoveryContext:
    """Return where a user looks who has a home and a repository."""
    home, project = root / "home", root / "project"
    (project / ".git").mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    return DiscoveryContext(
        home=home, cwd=project, platform="linux", environ={}, system_root=root / "system"
    )


def test_the_users_and_the_projects_files_are_watched(tmp_path: Path) -> None:
    made = watch_plan(context_of(tmp_path))
    home, project = tmp_path / "home", tmp_path / "project"
    assert {str(home), str(project)} <= set(made.directories)
    assert made.concerns(str(home / ".claude.json"))
    assert made.concerns(str(project / ".mcp.json"))
    assert not made.concerns(str(home / "notes.txt"))
    assert not made.concerns(str(project / "source.py"))
    assert not made.concerns(str(project / ".git" / "index"))


def test_the_beginning_of_a_path_that_does_not_exist_concerns_us(tmp_path: Path) -> None:
    """Clients make their directory when they are first started."""
    context = context_of(tmp_path)
    cursor = context.home / ".cursor"
    before = watch_plan(context)
    assert before.concerns(str(cursor))
    assert str(cursor) not in before.directories
    cursor.mkdir()
    assert str(cursor) in watch_plan(context).directories


def test_any_file_counts_in_a_directory_of_which_any_may_define_a_server(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    servers = context.home / ".config" / "mcp" / "servers"
    servers.mkdir(parents=True)
    made = watch_plan(context)
    assert made.concerns(str(servers / "new.json"))
    assert not made.concerns(str(servers / "deeper" / "new.json"))


def test_a_link_is_watched_at_both_ends(tmp_path: Path) -> None:
    """People who keep configurations in a repository of their own edit them there."""
    context = context_of(tmp_path)
    away = tmp_path / "dotfiles"
    away.mkdir()
    (away / "mcp.json").touch()
    (context.cwd / ".mcp.json").symlink_to(away / "mcp.json")
    made = watch_plan(context)
    assert {str(away), str(context.cwd)} <= set(made.directories)
    assert made.concerns(str(away / "mcp.json"))


def test_files_that_a_configuration_names_are_watched(tmp_path: Path) -> None:
    named = tmp_path / "secrets" / ".env"
    named.parent.mkdir()
    made = watch_plan(context_of(tmp_path), (named,))
    assert str(named.parent) in made.directories
    assert made.concerns(str(named))


class Refresh:
    """Counts how often it was asked for."""

    def __init__(self) -> None:
        self.count = 0
        self._asked = anyio.Event()

    async def __call__(self) -> None:
        self.count += 1
        self._asked.set()

    async def until(self, count: int) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            while self.count < count:
                self._asked = anyio.Event()
                await self._asked.wait()


async def test_a_file_in_a_new_directory_is_noticed(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    wanted = context.home / ".cursor" / "mcp.json"
    plans: list[WatchPlan] = []

    def make() -> WatchPlan:
        plans.append(watch_plan(context))
        return plans[-1]

    refresh = Refresh()
    async with watch_config(make, refresh):
        await refresh.until(1)
        wanted.parent.mkdir()
        await until(lambda: any(str(wanted.parent) in made.directories for made in plans))
        before = refresh.count
        wanted.write_text("{}")
        await refresh.until(before + 1)


async def test_what_the_kernel_does_not_tell_of_is_noticed_by_looking(tmp_path: Path) -> None:
    made = watch_plan(context_of(tmp_path))
    refresh = Refresh()
    async with watch_config(lambda: made, refresh, check_seconds=0.05):
        await refresh.until(4)


def refuse() -> WatchPlan:
    """Stand for the kernel, whose watches may be used up."""
    message = "OS file watch limit reached"
    raise ExceptionGroup("unhandled", [RuntimeError(message)])


async def test_it_ends_at_once_and_not_at_the_next_look(tmp_path: Path) -> None:
    """A client that closed stdin waits two seconds for the bridge to tidy up, and kills it then."""
    made = watch_plan(context_of(tmp_path))
    refresh = Refresh()
    threads = anyio.to_thread.current_default_thread_limiter()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with watch_config(lambda: made, refresh, check_seconds=1.2 * PATIENCE_SECONDS):
            await refresh.until(1)
            # The library waits in a thread of its own.
            await until(lambda: threads.borrowed_tokens == 1)


async def test_without_watches_it_polls_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    refresh = Refresh()
    async with watch_config(refuse, refresh, poll_seconds=0.01):
        await refresh.until(3)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "checked every" in said[0].getMessage()


async def test_a_configuration_that_cannot_be_read_does_not_end_the_watching() -> None:
    asked = Refresh()

    async def refresh() -> None:
        await asked()
        message = "cannot be read"
        raise ValueError(message)

    async with watch_config(refuse, refresh, poll_seconds=0.01):
        await asked.until(3)


async def test_what_the_body_raises_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with watch_config(refuse, Refresh()):
            raise KeyError
