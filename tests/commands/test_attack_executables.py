"""Executables and granted paths that a command could put something else into the place of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.commands.runner import Commands
from bridge.errors import SettingsError
from bridge.model import Directory
from bridge.settings.commands import parse_commands
from tests.commands.command_rig import SYSTEM_PYTHON, Place, run

pytestmark = pytest.mark.guarantee("command-executables", "command-grants")


@pytest.mark.parametrize("hops", [1, 2])
async def test_a_link_that_a_command_could_turn_elsewhere_names_no_executable(
    there: Place, hops: int
) -> None:
    """The bridge that starts next would follow it to any program, a Python for one."""
    entry = there.workspace / "out" / "tool"
    entry.symlink_to(SYSTEM_PYTHON)
    if hops == 2:
        second = there.root / "tool"
        second.symlink_to(entry)
        entry = second
    settings = there.settings(executables=[str(entry)], write=["out"])
    with pytest.raises(SettingsError, match="lies where the profile may write"):
        await run(settings, ["tool", "--version"])


async def test_what_one_profile_may_write_no_other_executes(there: Place) -> None:
    """Otherwise a command could have its own program run with what the other profile grants."""
    tool = there.workspace / "out" / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    editing = {"executables": ["peek"], "workspace": str(there.workspace), "write": ["out"]}
    broken = {**editing, "write": ["/usr"]}
    settings = there.settings(executables=[str(tool)])
    others = parse_commands({"editing": editing, "broken": broken}, "commands")
    async with Commands(replace(settings, commands={**settings.commands, **others})) as commands:
        with pytest.raises(SettingsError, match=r"lies where commands.editing may write"):
            await run(commands, ["tool"])


async def test_what_a_command_could_turn_into_a_link_is_not_granted(there: Place) -> None:
    """To another profile it would then grant anything, or to the next call of its own."""
    editing = {"executables": ["peek"], "workspace": str(there.workspace), "write": ["."]}
    below = there.workspace / "out"
    own: dict[str, Any] = {"workspace": str(below), "write": [str(there.workspace)]}
    apart = str(there.peek.parent)
    tables: tuple[dict[str, Any], ...] = (
        {"workspace": str(below)},
        {"workspace": apart, "read": [str(below)]},
    )
    for table in tables:
        settings = there.settings(**table)
        others = parse_commands({"editing": editing}, "commands")
        commands = {**settings.commands, **others}
        with pytest.raises(SettingsError, match=r"where commands.editing may write"):
            await run(replace(settings, commands=commands), ["peek"], stdin="{}")
    with pytest.raises(SettingsError, match=r"where the profile may write"):
        await run(there.settings(**own), ["peek"], stdin="{}")
    given = Directory(name="d", path=str(there.workspace), inside="/mnt/d", writable=True)
    exposed = replace(there.settings(workspace=str(below)), directories=(given,))
    with pytest.raises(SettingsError, match=r"where \[directories\] may write"):
        await run(exposed, ["peek"], stdin="{}")
    same = {**editing, "write": []}
    both = parse_commands({"tool": same, "editing": editing}, "commands")
    result = await run(replace(there.settings(), commands=both), ["peek"], stdin="{}")
    assert result.status == "success", result.error
