"""What the command line refuses, and the small decisions around measuring."""

from __future__ import annotations

import pytest
from mcp.types import CallToolResult, TextContent

from benchmarks.bench import without_bridge_settings
from benchmarks.engines import DEFAULT_IMAGE, image_of, run_command
from benchmarks.machine import cpu_model
from benchmarks.options import parsed
from benchmarks.peer import quoted
from benchmarks.runner import reason


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--peer", "x", "--tool", "run"], "--peer needs --arg"),
        (["--peer", "x"], "--peer needs --tool and --arg"),
        (["--tool", "run"], "name its command too"),
        (["--peer", "x", "--tool", "run", "--arg", "code", "--only", "warm"], "without them"),
        (["--only", "nothing"], "invalid choice: 'nothing'"),
        (["--engine", "lxc"], "invalid choice: 'lxc'"),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_engines_and_rows_may_be_given_again() -> None:
    options = parsed(["--engine", "podman", "--engine", "docker", "--only", "warm"])
    assert (options.engine, options.only) == (["podman", "docker"], ["warm"])


def test_the_image_is_the_users_else_the_one_for_tests_else_the_built_one() -> None:
    environ = {"MCP_BRIDGE_IMAGE": "own", "MCP_TEST_IMAGE_DOCKER": "test"}
    assert image_of("docker", environ) == "own"
    assert image_of("docker", {"MCP_TEST_IMAGE_DOCKER": "test"}) == "test"
    assert image_of("docker", {}) == DEFAULT_IMAGE


def test_an_engines_own_run_has_no_network_and_leaves_nothing() -> None:
    assert run_command("podman", "image", "/usr/bin/python3") == (
        *("podman", "run", "--rm", "--network", "none", "image", "python3", "-c", "1"),
    )
    assert run_command("bubblewrap", "", "/usr/bin/python3")[-3:] == ("/usr/bin/python3", "-c", "1")


def test_settings_of_the_bridge_are_left_out_of_what_is_inherited() -> None:
    kept = {"PATH": "/bin", "DOCKER_HOST": "y"}
    environ = {**kept, "MCP_BRIDGE_WARM": "9", "MCP_SERVERS_CONFIG": "x"}
    assert without_bridge_settings(environ) == kept


def test_the_reason_of_a_failure_is_dug_out_and_put_on_one_line() -> None:
    inner = OSError("it broke\n  in two")
    assert reason(BaseExceptionGroup("", [BaseExceptionGroup("", [inner])])) == "it broke in two"
    assert reason(KeyError()) == "KeyError"


def test_what_a_server_said_is_quoted_on_one_line() -> None:
    said = CallToolResult(content=[TextContent(text="no\nway"), TextContent(text="x" * 500)])
    assert quoted(said).startswith("no way xxx")
    assert len(quoted(said)) == 200
    assert quoted(CallToolResult(content=[])) == "it says nothing"


def test_the_processor_is_read_from_what_the_kernel_says() -> None:
    assert cpu_model("processor\t: 0\nmodel name\t: Some   Processor @ 2 GHz\n") == (
        "Some Processor @ 2 GHz"
    )
