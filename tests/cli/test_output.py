"""Text from configuration files and servers at a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path

import pytest

from bridge.cli import output
from bridge.cli.output import (
    MAX_LINES,
    MAX_MESSAGE,
    WINDOW_SECONDS,
    JsonLines,
    RepeatedLines,
    TerminalHandler,
    hold_logs,
    table,
    visible,
    write_diff,
    write_err,
    write_error,
    write_json,
    write_out,
    write_prose,
)
from bridge.errors import UsageError
from bridge.event_loop import logged_as
from tests.audit_rig import FakeClock
from tests.background.rig import Person
from tests.cli.desk import TerminalOutput, desk, read_until
from tests.discovery.writing import write

pytestmark = pytest.mark.guarantee("terminal-escapes", "terminal-questions")

COMMANDS = Path(output.__file__).parent

SERVER = r"""
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "x", "version": "1"},
        },
        "tools/list": {
            "tools": [{
                "name": "add",
                "description": "Adds\u001b[2J\u202e numbers.",
                "inputSchema": {"type": "object"},
            }],
        },
    }.get(message["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


def test_neither_a_cell_nor_a_log_line_controls_the_terminal() -> None:
    assert table(("A", "B"), [("x\ny", "1"), ("\x1b", "2")]) == "A     B\nx\\ny  1\n\\x1b  2\n"
    record = logging.LogRecord("x", logging.WARNING, "", 1, "server %s", ("\x1b[2J",), None)
    handler = TerminalHandler()
    handler.setFormatter(logging.Formatter("%(level)s: %(message)s"))
    assert handler.format(record) == "warning: server \\x1b[2J"


def bridge(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a home whose servers have hostile names."""
    servers = {
        "evil\x1b]0;title\x07": {"command": 7},
        "odd\x1b[2J": {"command": "x"},
        "gone": {"command": "/no/such\x1b[8mcommand"},
        "fine": {"command": sys.executable, "args": ["-c", SERVER]},
    }
    write(home / ".claude.json", {"mcpServers": servers})
    variables = {"MCP_BRIDGE_BACKGROUND": "off", "MCP_BRIDGE_RUNTIME": "/no/such/podman"}
    return Person(home, variables).command(*arguments)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["servers"], "evil\\x1b]0;title\\x07"),
        (["servers", "--check"], "/no/such\\x1b[8mcommand"),
        (["tools", "--server", "fine"], "mcp_fine.add()"),
        (["tools"], "/no/such\\x1b[8mcommand"),
        (["tools", "--server", "\x1b[1mno"], "\\x1b[1mno"),
        (["doctor", "--memory", "\x1b[1m"], "\\x1b[1m"),
    ],
)
def test_no_command_prints_control_characters(
    tmp_path: Path, arguments: list[str], shown: str
) -> None:
    done = bridge(tmp_path, *arguments)
    printed = done.stdout + done.stderr
    assert shown in printed
    assert visible(printed) == printed


HOSTILE = "\x1b[2J\x9b\x7f\u202e\u200b\u2028\U000e0041"


def test_every_writer_makes_text_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    with desk() as (typist, _, stream):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        write_out(f"out {HOSTILE}\rover\n")
        write_err(f"err {HOSTILE}\n")
        write_json({"value": HOSTILE})
        monkeypatch.undo()
        shown = read_until(typist, b"}\r\n").decode().replace("\r\n", "\n")
    assert visible(shown) == shown
    written = "\\x1b[2J\\x9b\\x7f\\u202e\\u200b\\u2028\\U000e0041"
    out, over, err, document = shown.splitlines()
    assert (out, over, err) == (f"out {written}", "over", f"err {written}")
    assert json.loads(document) == {"value": HOSTILE}


def test_prose_is_broken_between_words_for_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"  {'word ' * 20}[bold]x[/] {HOSTILE}\nnext\n"
    write_prose(said)
    assert capsys.readouterr().out == said
    with desk() as (typist, _, stream):
        write_prose(said, stream)
        *lines, last = read_until(typist, b"next\r\n").decode().splitlines()
    assert (last, len(lines) > 2) == ("next", True)
    assert all(each.startswith("  ") and len(each) <= 40 for each in lines)
    assert visible("".join(lines)) == "".join(lines)
    assert "[bold]x[/]" in " ".join(lines)


def test_json_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": [HOSTILE, "größer 日本", "new\nline"], "b\u202e": 1}
    for indent in (None, 2):
        write_json(value, indent=indent)
        printed = capsys.readouterr().out
        assert visible(printed) == printed
        assert "größer 日本" in printed
        assert json.loads(printed) == value


def test_a_pipe_gets_unchanged_text(capsys: pytest.CaptureFixture[str]) -> None:
    write_out(HOSTILE)
    write_err(f"{HOSTILE}\r")
    assert tuple(capsys.readouterr()) == (HOSTILE, f"{HOSTILE}\r")


def test_all_commands_print_through_one_module() -> None:
    printing = re.compile(r"\bprint\(|\bstd(out|err)(\(\))?\.write|json\.dumps\(.*\bwrite_out")
    texts = {path.name: path.read_text("utf-8") for path in COMMANDS.glob("*.py")}
    # app.py has an example of a program; serve.py prints its own address.
    printers = {name for name, text in texts.items() if printing.search(text)}
    assert printers == {"app.py", "output.py", "serve.py"}


def test_a_log_line_as_json_names_its_run_as_long_as_the_run_lasts() -> None:
    text = io.StringIO()
    handler = TerminalHandler(text)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("bridge.x")
    logger.addHandler(handler)
    with logged_as(bridge="a"):
        with logged_as(run="r1", owner="0f"):
            # A task that the run starts, and that outlives it.
            later = copy_context()
            try:
                raise ValueError("\x1b[2J")
            except ValueError:
                logger.exception("server %s\nfailed", "\u202ex")
        later.run(logger.warning, "later")
    first, second = map(json.loads, text.getvalue().splitlines())
    assert "ValueError: \x1b[2J" in first.pop("exception")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    assert first == {
        **{"level": "ERROR", "logger": "bridge.x", "message": "server \u202ex\nfailed"},
        **{"bridge": "a", "run": "r1", "owner": "0f"},
    }
    assert (second["message"], second["bridge"], "run" in second) == ("later", "a", False)


def test_log_lines_wait_until_a_question_is_answered(caplog: pytest.LogCaptureFixture) -> None:
    with hold_logs():
        logging.getLogger("tests.cli.output").warning("a line")
        assert caplog.messages == []
    assert caplog.messages == ["a line"]


@pytest.mark.parametrize("colours", [True, False])
def test_an_error_and_its_hint_are_two_lines(
    colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", out := TerminalOutput())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "" if colours else "1")
    remedy = "Nothing was changed. Ask the user how to proceed."
    message = "The client was asked whether to apply the plan, and declined."
    write_error(UsageError(f"{message} \x1b[2J", remedy=remedy))
    error, hint = out.getvalue().splitlines()
    plain = re.sub(r"\x1b\[[\d;]*m", "", f"{error}\n{hint}")
    assert plain == "error: Plan declined. \\x1b[2J\nhint: Nothing was changed."
    assert ("\x1b[31merror:\x1b[0m" in error, "\x1b[36mhint:\x1b[0m" in hint) == (colours,) * 2


def test_a_diff_is_coloured_by_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", out := TerminalOutput())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    write_diff("@@ 1\n-old\n+new\n same\n")
    coloured = "\x1b[36m@@ 1\x1b[0m\n\x1b[31m-old\x1b[0m\n\x1b[32m+new\x1b[0m\n same\n"
    assert out.getvalue() == coloured


Written = tuple[logging.Logger, io.StringIO, FakeClock]


@pytest.fixture
def written() -> Iterator[Written]:
    clock, text = FakeClock(0.0), io.StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(RepeatedLines(clock))
    logger = logging.Logger("flooded")
    logger.addHandler(handler)
    yield logger, text, clock
    handler.close()


def _flood(logger: logging.Logger, times: int) -> None:
    for number in range(times):
        logger.warning("server %r asked: %s", f"s{number}", number)


@pytest.mark.guarantee("log-floods")
def test_a_flood_from_one_place_is_counted_however_its_lines_differ(written: Written) -> None:
    logger, text, clock = written
    _flood(logger, 12_345)
    logger.warning("something else")
    lines = text.getvalue().splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-2].endswith("[more of these in the next 10 s are only counted]")
    assert lines[-1] == "something else"
    clock.now += WINDOW_SECONDS
    _flood(logger, 1)
    last = text.getvalue().splitlines()[-1]
    assert last == f"server 's0' asked: 0 [repeated {12_345 - MAX_LINES:,} times before]"


def test_rare_lines_are_written_whole_up_to_a_bound(written: Written) -> None:
    logger, text, clock = written
    for _ in range(200):
        _flood(logger, 1)
        clock.now += 1
    assert text.getvalue() == "server 's0' asked: 0\n" * 200
    text.truncate(text.seek(0))
    logger.warning("%s", "x" * 1_000_000)
    assert len(text.getvalue()) < MAX_MESSAGE + 100
    assert text.getvalue().endswith("(1,000,000 characters)\n")
