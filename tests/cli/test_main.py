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

from bridge.background.front import serves
from bridge.cli import main as cli
from bridge.cli.app import (
    COMMANDS,
    SERVE,
    Invocation,
    describe_command,
    handler_of,
    make_command,
    read_words,
)
from bridge.cli.output import is_drawn
from bridge.cli.run import exit_status, show
from bridge.model import Finding, RunResult, Usage
from bridge.settings import SETTINGS, variable
from tests.cli.desk import TerminalOutput
from tests.discovery.writing import write


def python(code: str) -> str:
    """Run a program in a Python of its own; return the last line that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("main", ["mcp", "docker"]),
        ("kept", ["mcp", "bridge.runs"]),
        # Backends are imported when one is tried, and encoders by those who ask for them.
        ("serve", ["docker", "requests", "urllib3", "toon_format", "jsonschema"]),
        ("serve", ["sqlalchemy", "bridge.sandbox.container.backend", "bridge.cli.doctor"]),
        ("serve", ["bridge.sandbox.process.backend"]),
    ],
)
def test_a_command_imports_only_what_its_first_output_needs(module: str, spared: list[str]) -> None:
    code = f"import sys, bridge.cli.{module}; print([n for n in {spared} if n in sys.modules])"
    assert python(code) == "[]"


def test_garbage_collection_pauses_during_imports_only() -> None:
    code = """
import gc
from bridge.cli import main
before = gc.get_freeze_count()
with main.frozen_imports():
    main.handler_of("serve:serve")
print(gc.isenabled(), gc.get_freeze_count() > before)
"""
    assert python(code) == "True True"


def test_help_has_colours_on_a_terminal_that_allows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for term, no_color, drawn in (("xterm", "", True), ("dumb", "", False), ("xterm", "1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", term)
        assert (is_drawn(TerminalOutput()), is_drawn(io.StringIO())) == (drawn, False)


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
        (["login"], "Usage: mcp-code-bridge login [OPTIONS] SERVER."),
        (["login"], "`mcp-code-bridge login --help` explains the command."),
        (["servers", "--memory", "lots"], "error: --memory: 'lots' is not a size"),
        (["audit", "tail", "-n", "x"], "-n"),
        (["run", "--timeout"], "'--timeout' requires an argument"),
        (["run", "-c", "1", "--timeout", "soon"], "Input should be a valid number"),
    ],
)
def test_a_mistake_is_status_2_and_names_the_nearest_word(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert (out, err.partition(" ")[0]) == ("", "error:")
    assert said in err
    assert len(err.splitlines()) <= 3
    assert "--description-tokens" not in err


HANDLED = [path for path, entry in COMMANDS.items() if entry.handler]


@pytest.mark.parametrize("path", HANDLED)
def test_every_command_has_a_function_a_summary_and_the_settings_flags(path: str) -> None:
    words = [*path.split(), "--log-level", "DEBUG", "--runtime=docker"]
    command = make_command(path)
    read = read_words([*words, *(each.name for each in command.params if each.required)])
    assert isinstance(read, Invocation)
    assert read.flags == {"log_level": "DEBUG", "runtime": "docker"}
    assert iscoroutinefunction(handler_of(read.handler))
    summary, _, _ = describe_command(command.callback)
    assert summary.removesuffix(".") == COMMANDS[path].summary


def test_help_of_no_command_imports_the_engine() -> None:
    code = f"""
import sys
from bridge.cli import main
for path in {HANDLED}:
    assert main.main([*path.split(), "--help"]) == 0
print([name for name in ("mcp", "bridge.runs") if name in sys.modules])
"""
    assert python(code) == "[]"


def test_help_and_the_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "run"], ["help", "audit", "tail"], ["help"]):
        assert cli.main(words) == 0
        said = capsys.readouterr().out
        assert cli.main([*words[1:], "--help"]) == 0
        assert capsys.readouterr().out == said
    for word in ("version", "-V", "--version"):
        assert cli.main([word]) == 0
        assert capsys.readouterr().out.startswith("mcp-code-bridge 0.")


def test_settings_have_a_page_and_are_not_in_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "settings"]) == 0
    said = capsys.readouterr().out
    assert [name for name in SETTINGS if variable(name) not in said] == []
    assert "--memory, MCP_BRIDGE_MEMORY [default: 512m]" in said
    for words in (["run", "-h"], ["logout", "--help"]):
        assert cli.main(words) == 0
        assert "--memory" not in capsys.readouterr().out


def test_repeated_words_are_all_taken() -> None:
    for words, name, taken in (
        (["policy", "explain", "s", "t", "a=1", "--json", "b=2"], "arguments", ["a=1", "b=2"]),
        (["run", "x.py", "--", "-a", "--json"], "argv", ["-a", "--json"]),
        (["run", "--file", "a", "--file=b", "-"], "files", ["a", "b"]),
        (["artifacts", "rm", "a", "b"], "uris", ["a", "b"]),
        (["servers", "approve", "a", "b@c"], "names", ["a", "b@c"]),
    ):
        read = read_words(words)
        assert isinstance(read, Invocation)
        assert read.arguments[name] == taken


@pytest.mark.parametrize(
    ("words", "flags", "http"),
    [
        ([], {}, None),
        (["serve"], {}, None),
        (["--runtime", "docker", "--memory=1g"], {"runtime": "docker", "memory": "1g"}, None),
        (["serve", "--http", "[::1]:80", "--sources", "-a,-b"], {"sources": "-a,-b"}, "[::1]:80"),
    ],
)
def test_words_without_a_command_serve(
    words: list[str], flags: dict[str, str], http: str | None
) -> None:
    read = read_words(words)
    assert isinstance(read, Invocation)
    assert (read.handler, read.flags, read.arguments["http"]) == (SERVE, flags, http)


def test_only_what_serves_on_stdio_needs_the_background_bridge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.isatty", lambda _: False)
    lines = ("", "serve", "--runtime docker", "serve --memory=1g")
    others = ("run -c 1", "--help", "serve -h", "-V", "serve --http :1", "--no-token", "serves")
    assert [line for line in (*lines, *others) if serves(line.split())] == [*lines]
    monkeypatch.setenv("_MCP_CODE_BRIDGE_COMPLETE", "complete_bash")
    assert not serves([])


def test_serving_does_not_import_rich(tmp_path: Path) -> None:
    code = """
import sys
from bridge.cli import main
status = main.main(["--state-dir", sys.argv[1], "--runtime", "/no/such/podman"])
print(status, [name for name in ("rich",) if name in sys.modules], file=sys.stderr)
"""
    client = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    params = {"protocolVersion": "2025-06-18", **client}
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
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
    write(tmp_path / ".cursor" / "mcp.json", {"mcpServers": {"shop": {"command": "true"}}})
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "_MCP_CODE_BRIDGE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "bridge"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split() == offered


QUIET = RunResult(run_id="r", status="success", summary="")


def test_a_run_exits_as_its_program_did() -> None:
    assert exit_status(QUIET) == 0
    assert exit_status(replace(QUIET, status="timeout")) == 124
    error = replace(QUIET, status="error")
    for code, status in ((3, 3), (None, 1), (0, 1), (-1, 255), (256, 1)):
        assert exit_status(replace(error, exit_code=code)) == status
    assert exit_status(replace(error, reason="crash", exit_code=137)) == 137


def test_findings_of_the_guard_are_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(line=1, rule="process", message="`os.system` starts processes")
    result = replace(QUIET, stdout="out", stderr="err\n", findings=(finding,))
    show(result, terminal=False)
    assert capsys.readouterr() == ("out", "err\n")
    show(result, terminal=True)
    said = "guard: line 1: `os.system` starts processes (process)\n"
    assert capsys.readouterr() == ("out", f"err\n{said}")


def test_a_terminal_shows_a_receipt_of_calls(capsys: pytest.CaptureFixture[str]) -> None:
    called = replace(QUIET, usage=Usage(tool_calls=2, tool_result_bytes=10, wall_ms=500))
    receipt = "-- 2 tool calls, 0.50 s\n"
    for result, terminal, said in ((QUIET, True, ""), (called, False, ""), (called, True, receipt)):
        show(result, terminal=terminal)
        assert capsys.readouterr() == ("", said)


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
def test_only_a_closed_reader_is_no_error(
    group: BaseExceptionGroup[BaseException], unheard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise group

    monkeypatch.setattr(cli, "read_words", fail)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    with nullcontext() if unheard else pytest.raises(BaseExceptionGroup):
        assert cli.main(["version"]) == 1


HELP = Path(__file__).with_name("help.txt")


def test_the_help_of_all_commands_is_the_golden_file(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], *(path.split() for path in COMMANDS if path not in ("help", "version"))):
        assert cli.main([*words, "--help"]) == 0
    said = capsys.readouterr().out
    if os.environ.get("UPDATE_FROZEN"):
        HELP.write_text(said, "utf-8")
    assert said == HELP.read_text("utf-8")
