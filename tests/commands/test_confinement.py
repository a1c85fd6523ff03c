"""Which words a stage may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.confinement import (
    MAX_COMMAND_BYTES,
    MAX_STAGES,
    View,
    check_stages,
)
from bridge.errors import InvalidRequestError
from bridge.sandbox.backend import Bind

LINKS = {
    "/host/ws/out": "/etc",
    "/host/ws/up": "../other",
    "/host/ws/fine": "sub/file",
    "/host/ws/absolute": "/workspace/sub",
    "/host/ws/loop": "loop",
    "/host/data/back": "../ws/secret",
}
GRANTED = (
    Bind(source="/host/ws", inside="/workspace", writable=False),
    Bind(source="/host/data", inside="/srv/data", writable=True),
)
VIEW = View(GRANTED, LINKS.get)


def _explain(word: str, workdir: str = "/workspace", *, exists: bool = True) -> str:
    return VIEW.explain_failure(workdir, ["aws", word], lambda path: exists)


@pytest.mark.parametrize(
    "word",
    [
        "/etc/passwd",
        "../x",
        "sub/../../x",
        "~/x",
        "~root/.ssh",
        "file:///etc/passwd",
        "--cli-input-json=file:///etc/passwd",
        "--opt=/etc/passwd",
        "--opt=../x",
        "--opt=~/x",
        "@/etc/passwd",
        "--data=@../x",
        "-d@/etc/passwd",
        "-f/etc/passwd",
        "-C../x",
        "if=/dev/mem",
        "a,b=/etc/x",
        "/workspace/../etc/passwd",
        "/workspacex",
        "/srv/data/../../etc",
        "out",
        "out/passwd",
        "./out/passwd",
        "up",
        "fine/../../../x",
        "/srv/data/back",
        "sub;/etc/passwd",
        '{"a":"/etc/passwd"}',
        "https://host/x,/etc/passwd",
    ],
)
def test_an_argument_of_a_failed_command_that_leads_out_is_named(word: str) -> None:
    """By absolute path, by .., by ~, by a URL, within an option or through a link."""
    assert repr(word) in _explain(word)


@pytest.mark.parametrize(
    "word",
    [
        "/f/{print}",
        "/a/,/b/",
        "/aws/lambda/x",
        "s3://b/../key",
        "file://sub/x",
        "https://a.com/../x?x=/y",
    ],
)
def test_a_pattern_that_is_no_path_of_the_host_is_not_blamed(word: str) -> None:
    assert _explain(word, exists=False) == ""


@pytest.mark.parametrize(
    "word",
    [
        "a.txt",
        "sub/../a.txt",
        "/workspace/a",
        "/srv/data/x",
        "--opt=/srv/data/x",
        "@sub/x",
        "file:///workspace/x",
        "fine",
        "absolute/x",
        "HEAD~1..HEAD",
        "~",
        "~5",
        "my-c/dir",
        "...",
        "-",
        "--",
        "-la",
        "Reservations[].Id",
        "",
    ],
)
def test_an_argument_that_stays_inside_is_not_blamed(word: str) -> None:
    """The control of the test above: most words are no paths, and most paths stay."""
    assert _explain(word) == ""


GRANTS = "outside of what this profile grants (/workspace, /srv/data, /tmp, /dev/null)."


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("/etc/passwd", f"'/etc/passwd' is {GRANTS}"),
        ("../x", f"'../x' is {GRANTS}"),
        ("--opt=/etc/x", f"'--opt=/etc/x': '/etc/x' is {GRANTS}"),
        ("out", f"'out' leads by a link to /etc, which is {GRANTS}"),
        ("out/passwd", f"'out/passwd' leads by a link to /etc/passwd, which is {GRANTS}"),
        ("/host/ws/d.json", "that is /workspace/d.json here."),
        ("~/x", "nothing here expands ~; give a path below the workspace."),
    ],
)
def test_the_answer_says_how_an_argument_leads_out(word: str, told: str) -> None:
    """By itself, or by a link, and to where; a path of the host is told in the sandbox's words."""
    assert told in _explain(word)


def test_relative_paths_start_from_the_working_directory() -> None:
    assert _explain("../a", workdir="/workspace/sub") == ""
    assert "'../../a' is outside" in _explain("../../a", workdir="/workspace/sub")


@given(st.lists(st.sampled_from(["..", "sub", ".", "a", "out", "up", "absolute", "/"]), min_size=1))
def test_no_path_that_is_not_blamed_resolves_to_outside(parts: list[str]) -> None:
    word = "/".join(parts)
    if _explain(word):
        return
    real = VIEW.resolve("/workspace/" + word if not word.startswith("/") else word)
    assert real in ("/", "/workspace") or real.startswith(("/workspace/", "/srv/data"))


@pytest.mark.parametrize("workdir", ["..", "sub/../..", "/..", "~", "out", "up", "a\0b"])
def test_a_working_directory_out_of_the_workspace_is_refused(workdir: str) -> None:
    with pytest.raises(InvalidRequestError):
        VIEW.workdir(workdir)


@pytest.mark.parametrize(
    ("workdir", "inside"),
    [
        *(("", "/workspace"), ("sub/../x", "/workspace/x"), ("absolute", "/workspace/sub")),
        *(("/", "/workspace"), ("/sub", "/workspace/sub"), ("/workspace/sub", "/workspace/sub")),
    ],
)
def test_a_working_directory_is_relative_to_the_workspace(workdir: str, inside: str) -> None:
    assert VIEW.workdir(workdir) == inside


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([["cat"]], "not among the executables"),
        ([["aws"], ["bash"]], "'bash'"),
        ([["/usr/bin/aws"]], "without a path"),
        ([["./aws"]], "without a path"),
        ([["AWS_PROFILE=x", "aws"]], "sets no variables"),
        ([[""]], "not among"),
        ([["aws", "a\0b"]], "NUL"),
        ([["aws", "\udc80"]], "no valid text"),
        ([["aws", "x" * MAX_COMMAND_BYTES]], "bytes"),
        ([["aws"]] * (MAX_STAGES + 1), "stages"),
        ([[]], "no words"),
        ([], "no command"),
    ],
)
def test_a_stage_that_may_not_run_is_refused_by_name_or_size(
    stages: list[list[str]], told: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        check_stages(stages, ("aws", "jq"))
    assert told in str(refused.value)
