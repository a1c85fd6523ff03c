"""The files that are watched, with and without notifications of the kernel."""

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
    home, project = root / "home", root / "project"
    (project / ".git").mkdir(parents=True, exist_ok=True)
    home.mkdir(exist_ok=True)
    return DiscoveryContext(
        home=home, cwd=project, platform="linux", environ={}, system_root=root / "system"
    )


def test_files_of_the_user_of_the_project_and_of_their_entries_are_watched(tmp_path: Path) -> None:
    named = tmp_path / "secrets" / ".env"
    named.parent.mkdir()
    home, project = tmp_path / "home", tmp_path / "project"
    servers = home / ".config" / "mcp" / "servers"
    servers.mkdir(parents=True)
    made = watch_plan(context_of(tmp_path), (named,))
    assert {str(home), str(project), str(named.parent)} <= set(made.directories)
    assert made.concerns(str(named))
    assert made.concerns(str(servers / "new.json"))
    assert not made.concerns(str(servers / "deeper" / "new.json"))
    assert made.concerns(str(home / ".claude.json"))
    assert made.concerns(str(project / ".mcp.json"))
    assert not made.concerns(str(home / "notes.txt"))
    assert not made.concerns(str(project / "source.py"))
    assert not made.concerns(str(project / ".git" / "index"))


def test_the_beginning_of_a_path_that_does_not_exist_concerns_us(tmp_path: Path) -> None:
    """A client creates its directory when it first starts."""
    context = context_of(tmp_path)
    cursor = context.home / ".cursor"
    before = watch_plan(context)
    assert before.concerns(str(cursor))
    assert str(cursor) not in before.directories
    cursor.mkdir()
    assert str(cursor) in watch_plan(context).directories


def test_a_link_is_watched_at_both_ends(tmp_path: Path) -> None:
    """Users who keep their configurations in a repository edit them there."""
    context = context_of(tmp_path)
    away = tmp_path / "dotfiles"
    away.mkdir()
    (away / "mcp.json").touch()
    (context.cwd / ".mcp.json").symlink_to(away / "mcp.json")
    made = watch_plan(context)
    assert {str(away), str(context.cwd)} <= set(made.directories)
    assert made.concerns(str(away / "mcp.json"))


class Refresh:
    """Counts its calls."""

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


async def test_changes_without_a_notification_are_found_by_regular_checks(tmp_path: Path) -> None:
    made = watch_plan(context_of(tmp_path))
    refresh = Refresh()
    async with watch_config(lambda: made, refresh, check_seconds=0.05):
        await refresh.until(4)


def refuse() -> WatchPlan:
    """Fail as the library does when the kernel's watches are used up."""
    message = "OS file watch limit reached"
    raise ExceptionGroup("unhandled", [RuntimeError(message)])


async def test_it_ends_at_once_and_not_at_the_next_check(tmp_path: Path) -> None:
    """A client that closed stdin kills the bridge two seconds later."""
    made = watch_plan(context_of(tmp_path))
    refresh = Refresh()
    threads = anyio.to_thread.current_default_thread_limiter()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with watch_config(lambda: made, refresh, check_seconds=1.2 * PATIENCE_SECONDS):
            await refresh.until(1)
            # The library waits in a thread of its own.
            await until(lambda: threads.borrowed_tokens == 1)


async def test_without_watches_it_polls_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    counter = Refresh()

    async def refresh() -> None:
        await counter()
        message = "cannot be read"
        raise ValueError(message)

    async with watch_config(refuse, refresh, poll_seconds=0.01):
        await counter.until(3)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("checked every" in record.getMessage() for record in said) == 1
    with pytest.raises(KeyError):
        async with watch_config(refuse, Refresh()):
            raise KeyError
