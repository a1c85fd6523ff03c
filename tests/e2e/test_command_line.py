"""The command line, as installed."""

from __future__ import annotations

import json

import pytest

from tests.e2e.rig import User, engines


@pytest.fixture
def background() -> str:
    """Only one mode: no command starts a background bridge."""
    return "off"


on_one_engine = pytest.mark.parametrize(
    "engine_name", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()[:1]]
)
"""For what runs no program, or says the same wherever it ran."""


def test_run_behaves_as_the_program_does(user: User) -> None:
    code = "import sys; print(sys.argv[1:]); print('oops', file=sys.stderr); sys.exit(3)"
    done = user.command("run", "-c", code, "--", "a", "-b")
    assert (done.stdout, done.stderr, done.returncode) == ("['a', '-b']\n", "oops\n", 3)


ON_AN_ENGINE = [
    (["run", "-c", "1/0"], 1, "ZeroDivisionError"),
    (["run", "-c", "1", "--image", "localhost/no-such-image:x"], 3, "image build"),
    (["run", "-c", "while True: pass", "--timeout", "1"], 124, "Timed out after 1 s"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status", "complaint"), ON_AN_ENGINE)
def test_exit_statuses_and_errors_are_those_of_the_contract(
    user: User, arguments: list[str], status: int, complaint: str
) -> None:
    done = user.command(*arguments)
    assert done.returncode == status, done.stderr
    assert complaint in done.stderr
    # A program's traceback says where it failed or was stopped. The bridge's never shows.
    assert "Traceback (most recent call last)" not in done.stderr or status in (1, 124)
    assert 'File "/' not in done.stderr


@on_one_engine
def test_a_server_that_cannot_be_reached_is_status_4(user: User) -> None:
    config = user.project / ".mcp.json"
    config.write_text(json.dumps({"mcpServers": {"gone": {"command": "/no/such/command"}}}))
    done = user.command("run", "-c", "await mcp_gone.x()")
    assert done.returncode == 4
    assert "/no/such/command" in done.stderr


@pytest.mark.slow
@pytest.mark.every_case
def test_doctor_tries_the_engine_and_says_what_it_found(user: User) -> None:
    document = json.loads(user.command("doctor", "--json").stdout)
    assert document["chosen"] == user.engine
    [probe] = document["backends"]
    assert probe["ok"] is True
    assert "no-network" in probe["isolation"]["verified"]
    plain = user.command("doctor")
    assert plain.returncode == 0
    assert f"Programs run in: {user.engine}" in plain.stdout
    assert "layers seen from inside: no-network" in plain.stdout


def test_doctor_fetches_no_image_and_says_what_does(user: User) -> None:
    done = user.command("doctor", "--json", "--image", "registry.invalid/own:1")
    [probe] = json.loads(done.stdout)["backends"]
    assert (done.returncode, probe["error_code"]) == (1, "image_missing")
    assert f"{user.engine} pull registry.invalid/own:1" in probe["remedy"]


def test_image_status_tells_of_the_image_in_use(user: User) -> None:
    [first, *_] = json.loads(user.command("image", "status", "--json").stdout)
    assert first["engine"] == user.engine
