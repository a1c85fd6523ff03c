"""Which words a stage may have."""

from __future__ import annotations

import shlex
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.confinement import MAX_COMMAND_BYTES, MAX_STAGES, View, check_stages
from bridge.commands.runner import CommandOutput, judge
from bridge.errors import InvalidRequestError
from bridge.gate.redaction import Redactor
from bridge.model import StageResult
from bridge.sandbox.backend import Bind
from bridge.server.tools import parse_line
from bridge.settings.commands import parse_commands

_WORDS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1)


@given(_WORDS)
def test_what_shlex_joins_is_parsed_back_to_the_same_words(words: list[str]) -> None:
    assert parse_line(shlex.join(words)) == (tuple(words),)


@given(st.lists(_WORDS, min_size=1, max_size=4))
def test_an_unquoted_bar_parts_stages_and_a_quoted_one_does_not(stages: list[list[str]]) -> None:
    line = " | ".join(shlex.join(words) for words in stages)
    assert parse_line(line) == tuple(map(tuple, stages))


@given(st.text(st.sampled_from("ab '\"\\|;&$`<>()*?[]{}#~\n\t")))
def test_no_line_does_anything_but_parse_or_be_refused(line: str) -> None:
    try:
        stages = parse_line(line)
    except InvalidRequestError:
        return
    assert all(stages)
    if "|" not in line and "\\\n" not in line:
        assert [word for stage in stages for word in stage] == shlex.split(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("a'b'\"c\"\\d", ["abcd"]),
        ("a '' \"\"", ["a", "", ""]),
        (r'"a\"b\\c\d\$e"', [r'a"b\c\d$e']),
        ("a\\\n b", ["a", "b"]),
        ("'$HOME' '`x`' '*' ';' '>' '{a,b}'", ["$HOME", "`x`", "*", ";", ">", "{a,b}"]),
        ('"; && > * costs 5$ $"', ["; && > * costs 5$ $"]),
        ("a#b x=y HEAD~1 a!b", ["a#b", "x=y", "HEAD~1", "a!b"]),
        ("\n  a b \n", ["a", "b"]),
    ],
)
def test_quotes_and_backslashes_mean_what_they_mean_in_sh(line: str, words: list[str]) -> None:
    assert parse_line(line) == (tuple(words),)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a; b", "one call for each command"),
        ("a || b", "one call for each command"),
        ("a & b", "one call for each command"),
        ("a |& b", "stderr is returned"),
        ("a > f", "writes to a file"),
        ("a < f", "`stdin`"),
        ("a 2>&1", "writes to a file"),
        ("a $(b)", "expands a variable or a command"),
        ("a `b`", "substitutes"),
        ("a $HOME", "Write the value itself"),
        ('a "$HOME"', "single quotes"),
        ('a "`b`"', "single quotes"),
        ("a *.txt", "Name each file"),
        ("a ?", "Name each file"),
        ("a [x]", "Name each file"),
        ("a {x,y}", "Write each word"),
        ("a\nb", "line break"),
        ("a\r\nb", "on one line"),
        ("(a)", "subshell"),
        ("a # b", "comment"),
        ("a 'b", "single quote is opened"),
        ('a "b', "double quote is opened"),
        ("a \\", "backslash"),
        ("", "empty"),
        ("a |", "one side of a |"),
        ("| a", "one side of a |"),
        ("a | | b", "one side of a |"),
    ],
)
def test_what_only_a_shell_does_is_refused_with_what_to_do_instead(line: str, told: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        parse_line(line)
    assert told in str(refused.value)


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
        "~root/.ssh",
        "file:///etc/passwd",
        "--cli-input-json=file:///etc/passwd",
        "@/etc/passwd",
        "--data=@../x",
        "-d@/etc/passwd",
        "-f/etc/passwd",
        "-C../x",
        "if=/dev/mem",
        "a,b=/etc/x",
        "/workspace/../etc/passwd",
        "/workspacex",
        "fine/../../../x",
        "/srv/data/back",
        "sub;/etc/passwd",
        '{"a":"/etc/passwd"}',
        "https://host/x,/etc/passwd",
    ],
)
def test_an_argument_of_a_failed_command_that_leads_out_is_named(word: str) -> None:
    assert repr(word) in _explain(word)


PATTERNS = (
    *("/f/{print}", "/a/,/b/", "/aws/lambda/x", "s3://b/../key", "file://sub/x"),
    "https://a.com/../x?x=/y",
)
"""These are no paths of the host."""


@pytest.mark.parametrize(
    "word",
    [
        *PATTERNS,
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
def test_a_pattern_and_an_argument_that_stays_inside_are_not_blamed(word: str) -> None:
    assert _explain(word, exists=word not in PATTERNS) == ""


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
    assert told in _explain(word)


def test_a_working_directory_is_where_relative_paths_start() -> None:
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
        ([["AWS_PROFILE=x", "aws"]], "Variables go into `env`"),
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


PROFILE = parse_commands({"p": {"executables": ["a"], "workspace": "/w"}}, "c")["p"]


def _stage(code: int | None = 0, *, killed: int | None = None, cut: bool = False) -> StageResult:
    return StageResult(words=("a", "b c"), exit_code=code, signal=killed, cut_short=cut)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([_stage()], ""),
        ([_stage(3)], "`a 'b c'` exited with status 3."),
        ([_stage(), _stage(2), _stage(1)], "stage 2 of 3 (`a 'b c'`) exited with status 2."),
        ([_stage(None, killed=signal.SIGPIPE), _stage()], ""),
        ([_stage(1, cut=True), _stage()], ""),
        ([_stage(1, cut=True), _stage(5)], "stage 2 of 2 (`a 'b c'`) exited with status 5."),
        ([_stage(None, killed=signal.SIGPIPE)], "`a 'b c'` was ended by SIGPIPE."),
        ([_stage(1), _stage()], "stage 1 of 2 (`a 'b c'`) exited with status 1."),
        (
            [_stage(None, killed=signal.SIGXCPU)],
            "`a 'b c'` was ended by SIGXCPU (its limit of 60 s of CPU time).",
        ),
        ([_stage(None)], "`a 'b c'` was lost: its end is unknown."),
    ],
)
def test_the_first_stage_that_did_not_succeed_is_named(
    stages: list[StageResult], told: str
) -> None:
    """One that could not write on, because its reader had ended, did succeed; the last cannot."""
    verdict = judge(stages, PROFILE)
    assert verdict.status == ("error" if told else "success")
    assert verdict.summary == (told or verdict.summary)


def test_memory_is_no_success_even_with_status_0_and_a_deadline_names_what_still_ran() -> None:
    stage = StageResult(words=("a",), exit_code=0, oom_killed=True)
    verdict = judge([stage, _stage()], PROFILE)
    assert (verdict.status, verdict.reason) == ("error", "oom")
    assert "512 MiB" in verdict.summary
    verdict = judge([_stage(), _stage(None)], PROFILE, passed=2)
    assert (verdict.status, verdict.reason) == ("timeout", "timeout")
    assert "stage 2 of 2" in verdict.summary
    assert "stage 1" not in verdict.summary
    assert "at most 300" in verdict.error


SECRET = "wJalrXUt/nFEMI+K7MDENG"


@given(st.binary(max_size=3000), st.lists(st.integers(0, 700), max_size=20))
def test_no_more_than_the_limit_is_kept_and_the_rest_is_counted(
    data: bytes, sizes: list[int]
) -> None:
    capture = CommandOutput(1000, Redactor())
    rest = data
    for size in sizes:
        capture.add(rest[:size])
        rest = rest[size:]
    capture.add(rest)
    capture.finish()
    assert capture.dropped == max(0, len(data) - 1000)
    if not capture.dropped:
        assert capture.text() == data.decode("utf-8", "backslashreplace")


def test_a_cut_stream_shows_its_ends_and_says_what_is_missing() -> None:
    capture = CommandOutput(10, Redactor())
    capture.add(b"0123456789")
    capture.add(b"abcdefghij")
    assert capture.text() == "01234\n[... 10 bytes dropped ...]\nfghij"


def test_a_secret_that_the_cut_goes_through_does_not_show_in_part() -> None:
    capture = CommandOutput(40, Redactor({SECRET: "KEY"}))
    capture.add(b"x" * 10 + SECRET.encode() + b"y" * 100 + SECRET.encode()[:7])
    capture.add(SECRET.encode()[7:])
    capture.finish()
    assert not any(part in capture.text() for part in (SECRET[:4], SECRET[-4:]))
