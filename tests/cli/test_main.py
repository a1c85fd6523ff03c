"""The command line, without an engine."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import pytest

from bridge.cli import flags
from bridge.cli import main as cli
from bridge.cli.output import table
from bridge.cli.run import exit_status, show
from bridge.model import Finding, RunResult, Usage


def test_help_and_version_do_not_import_the_sdk() -> None:
    """They must answer at once."""
    code = "import sys, bridge.cli.main as m; print('mcp' in sys.modules, 'docker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_serving_waits_for_no_import_that_its_first_answer_does_not_need() -> None:
    """Backends are imported when one is tried, and encoders by those who ask for them."""
    spared = (
        *("docker", "requests", "urllib3", "toon_format", "jsonschema"),
        *("bridge.sandbox.container", "bridge.sandbox.process.backend", "bridge.cli.doctor"),
    )
    code = f"import sys, bridge.cli.serve; print([n for n in {spared} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_command_is_imported_with_the_collector_at_rest_which_goes_on_afterwards() -> None:
    """What was imported is not looked through again."""
    code = """
import gc
from bridge.cli import main
before = gc.get_freeze_count()
main._command("bridge.cli.serve:serve")
print(gc.isenabled(), gc.get_freeze_count() > before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["run", "--help"]])
def test_help_and_version_exit_with_success(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As everywhere."""
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 0
    assert "mcp-code-bridge" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [["run", "--nonsense"], ["image", "burn"], ["serve", "x"]])
def test_a_mistake_in_the_flags_is_status_2(argv: list[str]) -> None:
    """With usage on stderr, by argparse."""
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2


def test_usage_is_about_the_command_and_help_about_settings_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A mistake must not disappear below twenty flags."""
    with pytest.raises(SystemExit):
        cli.main(["login"])
    said = capsys.readouterr().err
    assert "--no-browser" in said
    assert "--oci-runtime" not in said
    assert len(said.splitlines()) == 2
    with pytest.raises(SystemExit):
        cli.main(["login", "--help"])
    assert "--oci-runtime" in capsys.readouterr().out


def test_every_command_can_be_found() -> None:
    """They are imported by name when called."""
    for name in ("serve", "run", "servers", "tools", "doctor", "image"):
        arguments = flags.parser().parse_args([name, *(["status"] if name == "image" else [])])
        module, _, function = arguments.handler.partition(":")
        assert callable(getattr(import_module(module), function))


def test_an_unknown_option_is_told_with_its_command_s_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """There the right one stands."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--files", "data.csv", "-c", "1"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: mcp-code-bridge run ")
    assert "[--file NAME=PATH]" in said
    assert "unrecognized arguments: --files" in said


def test_flags_alone_mean_serve() -> None:
    """A client's configuration needs only the command."""
    assert flags.with_default(["--runtime", "docker"]) == ["serve", "--runtime", "docker"]
    assert flags.with_default([]) == ["serve"]
    assert flags.with_default(["run", "-c", "1"]) == ["run", "-c", "1"]


def test_a_settings_mistake_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for a typing mistake."""
    assert cli.main(["servers", "--memory", "lots"]) == 2
    assert capsys.readouterr().err.startswith("mcp-code-bridge: --memory: 'lots' is not a size")


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
    """And never with success when it failed."""
    assert exit_status(result) == status


def test_what_the_guard_found_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For a script, stdout and stderr are the program's alone."""
    found = Finding(line=1, rule="process", message="`os.system` starts processes")
    result = RunResult(
        run_id="r", status="success", summary="", stdout="out", stderr="err\n", findings=(found,)
    )
    show(result, terminal=False)
    assert capsys.readouterr() == ("out", "err\n")
    show(result, terminal=True)
    said = "guard: line 1: `os.system` starts processes (process)\n"
    assert capsys.readouterr() == ("out", f"err\n{said}")


def test_a_receipt_is_shown_on_a_terminal_only_where_something_was_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is no part of the program's output either."""
    quiet = RunResult(run_id="r", status="success", summary="")
    show(quiet, terminal=True)
    assert capsys.readouterr() == ("", "")
    called = replace(quiet, usage=Usage(tool_calls=2, tool_result_bytes=10, wall_ms=500))
    show(called, terminal=False)
    assert capsys.readouterr() == ("", "")
    show(called, terminal=True)
    assert capsys.readouterr().err.startswith("-- 2 tool calls, 10 bytes of tool results kept out")


def test_tables_line_up() -> None:
    """The last column is left open."""
    assert table(("A", "B"), [("long", "x"), ("s", "")]) == "A     B\nlong  x\ns\n"


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
    group: BaseExceptionGroup[BaseException], unheard: bool
) -> None:
    """Whatever else is in the group is a defect, and has to be seen."""
    assert cli._is_unheard(group) is unheard
