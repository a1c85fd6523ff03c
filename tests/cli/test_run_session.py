"""`run --session`: each command is a bridge of its own and continues the session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.audit_rig import records
from tests.cli.desk import Cli
from tests.session_rig import saved_sessions


def test_a_session_continues_in_the_next_command_until_it_is_ended(home: Path, cli: Cli) -> None:
    def run(*words: str) -> tuple[int, dict[str, Any]]:
        options = ("--runtime", "bubblewrap", "--json", "--session", "work")
        status, out, _ = cli("run", *options, *words)
        return status, json.loads(out)

    status, first = run("-c", "x = 41\nopen('.a.txt', 'w').write('kept')")
    assert (status, first["session"]["state"]) == (0, "new")
    status, second = run("-c", "[x + 1, open('.a.txt').read()]")
    assert (status, second["result"]) == (0, [42, "kept"])
    assert (second["session"]["state"], second["session"]["run"]) == ("restored", 2)
    assert saved_sessions(home / "state") == 1
    status, ended = run("--end-session")
    assert (status, ended["session"]["state"]) == (0, "ended")
    assert saved_sessions(home / "state") == 0
    began = [each for each in records(home / "state" / "audit") if each["kind"] == "run"]
    assert {(each["principal"], each["clientSays"]) for each in began} == {("terminal", "cli")}
    status, unknown = run("--end-session")
    assert status == 2
    assert "unknown_session" in unknown["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--end-session", "-c", "1"], "`end_session` needs `session`"),
        (["--end-session"], "--end-session needs --session NAME"),
        (["--session", "no spaces", "-c", "1"], "`session` must be a name"),
        (["--session", "work"], "Name a FILE"),
    ],
)
def test_a_wrong_session_option_is_explained(cli: Cli, arguments: list[str], message: str) -> None:
    status, _, err = cli("run", *arguments)
    assert (status, message in err) == (2, True)
