"""The description of `run_python` over a session."""

from __future__ import annotations

from dataclasses import replace

from bridge.inventory.guide import BRIEF_TOKENS
from bridge.model import RunRequest
from bridge.runs import Engine
from bridge.sandbox.contents import Contents, remember
from bridge.settings import PreflightMode, Settings
from bridge.tokens import count_tokens
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.fakes.backend import FakeBackend


async def test_it_changes_once_while_servers_are_first_used_and_not_with_every_one(
    engine: Engine, finder: ListFinder
) -> None:
    """A client that is shown another description pays for its whole conversation again."""
    finder.specs = (workshop("first"), workshop("second"))
    await engine.servers.refresh()
    before = await engine.guide.tool_description()
    brief = await engine.guide.tool_description(brief=True)
    assert count_tokens(brief) <= BRIEF_TOKENS
    assert "mcp_" in brief
    assert "search_tools" in brief
    await engine.run(RunRequest(code="await mcp_first.add(a=1, b=2)"))
    assert engine.servers.inventory.tools("first")
    assert await engine.guide.tool_description() == before
    await engine.run(RunRequest(code="await mcp_second.add(a=1, b=2)"))
    after = await engine.guide.tool_description()
    assert after.count(".add(a: float, b: float)") == 1
    assert "(same tools as mcp_first)" in after


async def test_it_changes_at_once_with_the_configuration(
    engine: Engine, finder: ListFinder
) -> None:
    assert "mcp_second" not in await engine.guide.tool_description()
    finder.specs = (workshop(), workshop("second"))
    await engine.servers.refresh()
    assert "mcp_second" in await engine.guide.tool_description()
    # Both wait to be asked, so this one is known only when the other is.
    await engine.run(RunRequest(code="await mcp_second.add(a=1, b=2)"))
    finder.specs = (workshop("second"),)
    await engine.servers.refresh()
    assert "mcp_work_shop" not in await engine.guide.tool_description()
    assert ".add(a: float, b: float)" in await engine.guide.tool_description()


async def test_it_keeps_to_the_budget_of_the_settings(
    settings: Settings, finder: ListFinder, backend: FakeBackend
) -> None:
    """And says that programs are checked only if they are."""

    finder.specs = tuple(workshop(f"shop-{number}") for number in range(60))
    modes: tuple[tuple[int, PreflightMode], ...] = ((500, "check"), (900, "off"))
    for tokens, preflight in modes:
        set_so = replace(settings, description_tokens=tokens, preflight=preflight)
        async with engine_on(backend, set_so, finder=finder) as opened:
            made = await opened.guide.tool_description()
        assert tokens * 0.7 < count_tokens(made) <= tokens
        assert ("refused before anything runs" in made) is (preflight == "check")


async def test_the_packages_of_the_last_sandbox_are_told_for_the_settings_that_chose_it(
    settings: Settings, finder: ListFinder, backend: FakeBackend
) -> None:
    """A bridge tells of itself before it knows its engine, so the one before left word of it."""
    contents = Contents(python="3.12", packages=(("numpy", "2.1.0"), ("polars", "1.9")))
    remember(replace(settings, image="mine:1"), contents)
    remember(replace(settings, image="mine:2"), Contents(python="3.9"))
    known = (("mine:1", "of Python 3.12, numpy 2.1.0, polars."), ("mine:2", "of Python 3.9. "))
    for image, told in (*known, ("mine:3", "the standard library. ")):
        async with engine_on(backend, replace(settings, image=image), finder=finder) as opened:
            assert told in await opened.guide.tool_description()
            assert ("polars 1.9" in opened.guide.capabilities()) is (image == "mine:1")


async def test_a_server_of_which_the_configuration_says_nothing_introduces_itself(
    engine: Engine, finder: ListFinder
) -> None:
    """In its own words, to be remembered for the next session; the user's words come first."""
    finder.specs = (replace(workshop("silent"), description=""), workshop("described"))
    await engine.servers.refresh()
    engine.servers.inventory.describe("silent", {"about": "It makes things."})
    engine.servers.inventory.describe("described", {"about": "It makes things."})
    entries = engine.servers.inventory.initial_entries()
    assert [entry.description for entry in entries] == ["It makes things.", "A workshop"]
