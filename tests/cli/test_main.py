"""The command line, without an engine."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from inspect import iscoroutinefunction
from pathlib import Path
from typing import NoReturn

import pytest

from bridge.cli import main as cli
from bridge.cli.app import COMMANDS, make_command, read_words
from bridge.cli.help import describe_command
from bridge.cli.line import Invocation, handler_of, simple_invocation, with_default
from bridge.cli.output import is_drawn
from bridge.cli.run import exit_status, show
from bridge.model import Finding, RunResult, Usage
from bridge.settings import SETTINGS, variable


def python(code: str) -> str:
    """Run a program in a Python of its own; return the last line that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("main", ["mcp", "docker"]),
        ("artifacts", ["mcp", "bridge.runs"]),
        # Backends are imported when one is tried, and encoders by those who ask for them.
        ("serve", ["docker", "requests", "urllib3", "toon_format", "jsonschema", "h11"]),
        ("serve", ["sqlalchemy", "bridge.sandbox.container", "bridge.cli.doctor"]),
        ("serve", ["bridge.sandbox.process.backend"]),
    ],
)
def test_a_command_imports_only_what_its_first_answer_needs(module: str, spared: list[str]) -> None:
    code = f"import sys, bridge.cli.{module}; print([n for n in {spared} if n in sys.modules])"
    assert python(code) == "[]"


def test_a_command_is_imported_with_the_collector_at_rest_which_goes_on_afterwards() -> None:
    code = """
import gc
from bridge.cli import main
before = gc.get_freeze_count()
with main._frozen_imports():
    main.handler_of("serve:serve")
print(gc.isenabled(), gc.get_freeze_count() > before)
"""
    assert python(code) == "True True"


@pytest.mark.parametrize(
    ("term", "no_color", "drawn"),
    [("xterm", "", True), ("dumb", "", False), ("xterm", "1", False)],
)
def test_help_is_drawn_on_a_terminal_unless_it_must_not(
    term: str, no_color: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", term)
    assert is_drawn(TerminalOutput()) is drawn
    assert not is_drawn(io.StringIO())


class TerminalOutput(io.StringIO):
    """Something that is written to, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["run", "--files", "data.csv", "-c", "1"], "No such option: --files"),
        (["run", "--files", "data.csv", "-c", "1"], "Did you mean --file?"),
        (["servrs"], "Did you mean 'servers'"),
        (["policy", "explan"], "Did you mean 'explain'"),
        (["image", "burn"], "No such command 'burn'"),
        (["serve", "x"], "unexpected extra argument"),
        (["--runtimes", "podman"], "Did you mean --runtime?"),
        (["--verison"], "Did you mean --version?"),
        (["login"], "Missing argument 'SERVER'"),
        (["audit", "tail", "-n", "x"], "-n"),
        (["run", "--timeout"], "'--timeout' requires an argument"),
    ],
)
def test_a_mistake_in_the_words_is_status_2_and_names_what_comes_nearest(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert said in printed.err
    assert len(printed.err.splitlines()) <= 3
    assert "--description-tokens" not in printed.err


def test_a_mistake_says_how_the_command_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["login"])
    said = capsys.readouterr().err
    assert "Usage: mcp-code-bridge login [OPTIONS] SERVER." in said
    assert "`mcp-code-bridge login --help` explains the command." in said


@pytest.mark.parametrize("path", [path for path, entry in COMMANDS.items() if entry.handler])
def test_every_command_is_a_function_that_is_found_and_takes_the_settings_flags(path: str) -> None:
    words = [*path.split(), "--log-level", "DEBUG", "--runtime=docker"]
    needed = [each.name for each in make_command(path).params if each.required]
    found = read_words([*words, *needed])
    assert isinstance(found, Invocation)
    assert found.flags == {"log_level": "DEBUG", "runtime": "docker"}
    assert iscoroutinefunction(handler_of(found.handler))


@pytest.mark.parametrize("path", [path for path, entry in COMMANDS.items() if entry.handler])
def test_a_command_has_one_summary(path: str) -> None:
    summary, _, _ = describe_command(make_command(path).callback)
    assert summary.removesuffix(".") == COMMANDS[path].summary


def test_help_of_no_command_imports_the_engine() -> None:
    code = f"""
import sys
from bridge.cli import main
for path in {[path for path, entry in COMMANDS.items() if entry.handler]}:
    assert main.main([*path.split(), "--help"]) == 0
print([name for name in ("mcp", "bridge.runs") if name in sys.modules])
"""
    assert python(code) == "[]"


@pytest.mark.parametrize("words", [["help", "run"], ["help", "audit", "tail"], ["help"]])
def test_help_explains_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert cli.main([*words[1:], "--help"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("words", [["version"], ["-V"], ["--version"]])
def test_the_version_is_printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert capsys.readouterr().out.startswith("mcp-code-bridge 0.")


def test_the_page_on_settings_has_each_variable(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "settings"]) == 0
    said = capsys.readouterr().out
    assert [name for name in SETTINGS if variable(name) not in said] == []
    assert "--memory, MCP_BRIDGE_MEMORY [default: 512m]" in said


def test_short_help_has_no_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-h"]) == 0
    assert "--memory" not in capsys.readouterr().out
    assert cli.main(["logout", "--help"]) == 0
    assert "--memory" not in capsys.readouterr().out


def test_words_that_may_be_several_are_all_taken() -> None:
    for words, name, taken in (
        (["policy", "explain", "s", "t", "a=1", "--json", "b=2"], "arguments", ["a=1", "b=2"]),
        (["run", "x.py", "--", "-a", "--json"], "argv", ["-a", "--json"]),
        (["run", "--file", "a", "--file=b", "-"], "files", ["a", "b"]),
        (["artifacts", "rm", "a", "b"], "uris", ["a", "b"]),
        (["servers", "approve", "a", "b@c"], "names", ["a", "b@c"]),
    ):
        found = read_words(words)
        assert isinstance(found, Invocation)
        assert found.arguments[name] == taken


@pytest.mark.parametrize(
    ("words", "flags", "http"),
    [
        ([], {}, None),
        (["serve"], {}, None),
        (["--runtime", "docker", "--memory=1g"], {"runtime": "docker", "memory": "1g"}, None),
        (["serve", "--http", "[::1]:80", "--sources", "-a,-b"], {"sources": "-a,-b"}, "[::1]:80"),
    ],
)
def test_both_readers_agree(words: list[str], flags: dict[str, str], http: str | None) -> None:
    """A client's configuration needs only the command, and flags alone mean `serve`."""
    simple = simple_invocation(words)
    assert simple is not None
    assert simple == read_words(with_default(words))
    assert (simple.flags, simple.arguments["http"]) == (flags, http)


@pytest.mark.parametrize(
    "words",
    [["run", "-c", "1"], ["--help"], ["serve", "--help"], ["serve", "x"], ["--memory"], ["serves"]],
)
def test_all_other_words_are_for_typer(words: list[str]) -> None:
    assert simple_invocation(words) is None


def test_serving_imports_neither_typer_nor_rich(tmp_path: Path) -> None:
    """It must answer at once: seen once it has begun, by what it says of a mistake to a client."""
    code = """
import sys
from bridge.cli import main
status = main.main(["--state-dir", sys.argv[1], "--runtime", "/no/such/podman"])
print(status, [name for name in ("typer", "rich") if name in sys.modules], file=sys.stderr)
"""
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=json.dumps(hello) + "\n",
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MCP_BRIDGE_WARM": "0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "serverInfo" in done.stdout
    assert done.stderr.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("x ser", ["serve", "servers"]),
        ("x audit s", ["show", "stats"]),
        ("x install cur", ["cursor"]),
        ("x tools --server sh", ["shop"]),
        ("x policy explain sh", ["shop"]),
        ("x audit show zz", []),
    ],
)
def test_a_shell_completes_words(words: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text('{"mcpServers": {"shop": {"command": "true"}}}')
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    asked = {
        "_MCP_CODE_BRIDGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "bridge"],
        env={**environ, **asked},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == offered


def test_a_settings_mistake_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["servers", "--memory", "lots"]) == 2
    assert capsys.readouterr().err.startswith("error: --memory: 'lots' is not a size")


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (RunResult(run_id="r", status="success", summary=""), 0),
        (RunResult(run_id="r", status="timeout", summary=""), 124),
        (RunResult(run_id="r", status="error", summary="", exit_code=3), 3),
        (RunResult(run_id="r", status="error", summary="", exit_code=None), 1),
        (RunResult(run_id="r", status="error", summary="", exit_code=0), 1),
        (RunResult(run_id="r", status="error", summary="", exit_code=-1), 255),
        (RunResult(run_id="r", status="error", summary="", exit_code=256), 1),
        (RunResult(run_id="r", status="error", summary="", reason="crash", exit_code=137), 137),
    ],
)
def test_a_run_exits_as_its_program_did(result: RunResult, status: int) -> None:
    assert exit_status(result) == status


def test_findings_of_the_guard_are_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    found = Finding(line=1, rule="process", message="`os.system` starts processes")
    result = RunResult(
        run_id="r", status="success", summary="", stdout="out", stderr="err\n", findings=(found,)
    )
    show(result, terminal=False)
    assert capsys.readouterr() == ("out", "err\n")
    show(result, terminal=True)
    said = "guard: line 1: `os.system` starts processes (process)\n"
    assert capsys.readouterr() == ("out", f"err\n{said}")


def test_a_terminal_shows_a_receipt_of_calls(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = RunResult(run_id="r", status="success", summary="")
    show(quiet, terminal=True)
    assert capsys.readouterr() == ("", "")
    called = replace(quiet, usage=Usage(tool_calls=2, tool_result_bytes=10, wall_ms=500))
    show(called, terminal=False)
    assert capsys.readouterr() == ("", "")
    show(called, terminal=True)
    assert capsys.readouterr().err == "-- 2 tool calls, 0.50 s\n"


@pytest.mark.parametrize(
    ("group", "unheard"),
    [
        (ExceptionGroup("x", [BrokenPipeError()]), True),
        (ExceptionGroup("x", [ExceptionGroup("y", [ConnectionResetError()])]), True),
        (ExceptionGroup("x", [BrokenPipeError(), ValueError()]), False),
        (ExceptionGroup("x", [OSError()]), False),
        (BaseExceptionGroup("x", [KeyboardInterrupt()]), False),
    ],
)
def test_only_a_reader_that_went_away_is_passed_over(
    group: BaseExceptionGroup[BaseException], unheard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise group

    monkeypatch.setattr(cli, "_read", fail)
    monkeypatch.setattr(cli, "_discard_output", lambda: 1)
    with nullcontext() if unheard else pytest.raises(BaseExceptionGroup):
        assert cli.main(["version"]) == 1


HELP = Path(__file__).with_name("help.txt")


def test_the_help_of_all_commands_is_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    """`UPDATE_FROZEN=1 pytest tests/frozen tests/cli tests/scripts` writes all golden files."""
    for words in ([], *(path.split() for path in COMMANDS if path not in ("help", "version"))):
        assert cli.main([*words, "--help"]) == 0
    said = capsys.readouterr().out
    if os.environ.get("UPDATE_FROZEN"):
        HELP.write_text(said, "utf-8")
    assert said == HELP.read_text("utf-8")
