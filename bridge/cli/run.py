"""`run`: runs one program from the terminal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio.to_thread

from bridge.callers.client import RunProgress
from bridge.cli.origin import path_of, stderr, stdin, stdout
from bridge.cli.output import can_move, for_person, open_engine, write_err, write_json, write_out
from bridge.cli.run_files import check_out, read_files, write_files
from bridge.cli.terminal import LiveTerminal, Terminal
from bridge.descriptor_reader import input_of
from bridge.errors import BridgeError, SandboxError, UsageError
from bridge.event_loop import background_task
from bridge.gate.question import MAX_PLAN_CHARS, MAX_PLAN_LINES, visible_lines
from bridge.model import ApplyRequest, Artifact, FindingSource, Plan, RunRequest, RunResult
from bridge.model.runs import error_run
from bridge.plans.executor import MAX_QUESTION
from bridge.render.plan import plan_text, unknown_effects
from bridge.render.structured import to_structured
from bridge.render.text import (
    files_section,
    finding_lines,
    list_calls,
    missing_section,
    receipt_line,
    session_section,
    shown_line,
)
from bridge.runs import Engine
from bridge.runs.admission import MAX_CODE_BYTES
from bridge.runs.input_files import quote
from bridge.server.arguments import parse_packages, parse_session
from bridge.settings import Settings
from bridge.text import counted

TERMINAL = "terminal"  # The principal of these runs; see `RunRequest.principal`.
CLIENT = "cli"  # The client's name in the records of these runs.


async def run_program(
    settings: Settings,
    *,
    out: str | None = None,
    force: bool = False,
    as_json: bool = False,
    **words: Any,
) -> int:
    """Run a program; its stdout, stderr and exit status become the command's own."""
    try:
        if words.get("file") is not None and words.get("code") is None:
            words["program"] = await read_program(words["file"])
        request = await anyio.to_thread.run_sync(partial(request_of, **words))
        directory = None if out is None else check_out(out)
        # No next run needs a warm sandbox.
        async with open_engine(dataclasses.replace(settings, warm=0), patient=True) as engine:
            result = await _run_live(engine, request, scripted=as_json)
            problems = await _write_outputs(engine, request, result, directory, force=force)
    except BridgeError as error:
        if not as_json:
            raise
        write_json(to_structured(error_run(error)))
        return error.exit_status
    if as_json:
        document = to_structured(result)
        if result.plan is not None and result.plan.plan_id:
            plan = document["plan"]
            del plan["id"], plan["seconds"]
            plan["note"] = (
                "A plan ends with the process that made it, so that no other can apply it. Run the "
                "program with --plan in a terminal to be asked, and to have the calls made."
            )
        write_json(document)
    else:
        written = None if problems else directory
        terminal = stderr().isatty()
        show(result, terminal=terminal, streamed=request.mode == "run", copied_to=written)
    for problem in problems:
        write_err(f"--out: {problem}\n")
    return exit_status(result) or (1 if problems else 0)


async def _run_live(engine: Engine, request: RunRequest, *, scripted: bool) -> RunResult:
    if scripted or request.mode != "run":
        # A plan's output is written at the end, when its placeholders for results have values.
        return await run_and_apply(engine, request, Terminal(stdin(), stderr()), scripted=scripted)
    viewer = LiveTerminal(
        stdin(), stderr(), shows=can_move(stderr()), out=stdout().buffer, err=stderr().buffer
    )
    try:
        async with viewer.streaming(), background_task(partial(_show_starts, engine, viewer)):
            return await run_and_apply(engine, request, viewer, scripted=scripted)
    except anyio.get_cancelled_exc_class():
        write_err(f"Interrupted. {_describe_sent_calls(viewer.run_progress)}\n")
        raise


async def _show_starts(engine: Engine, viewer: LiveTerminal) -> None:
    """Show which server is starting and its last line: it may be installing packages."""
    note = ""
    while viewer.wants_progress:
        await anyio.sleep(0.2)
        states = engine.servers.pool.states().values()
        starts = [f"starting {s.server} {s.line}" for s in states if s.state == "starting"]
        before, note = note, "; ".join(starts)
        if note != before:
            await viewer.progress(0.0, note)


async def _write_outputs(
    engine: Engine, request: RunRequest, result: RunResult, out: Path | None, *, force: bool
) -> list[str]:
    """Copy the program's files to `out`; return a line about each file that is missing there."""
    if out is None:
        return []

    def read(artifact: Artifact) -> Iterator[bytes]:
        with engine.artifacts.opened(request.owner, artifact.uri) as content:
            yield from content.pieces()

    files = [artifact for artifact in result.artifacts if artifact.kind == "file"]
    files += pictures(result)
    work = partial(write_files, files, path_of(out), read, force=force)
    written, problems = await anyio.to_thread.run_sync(work)
    if written:
        more = f" and {len(written) - 50:,} more" if len(written) > 50 else ""
        names = ", ".join(map(quote, written[:50]))
        write_err(f"--out: wrote {names}{more} to {quote(str(out))}.\n")
    return [*problems, *(f"{loss.name} is missing: {loss.why}" for loss in result.missing)]


async def run_and_apply(
    engine: Engine, request: RunRequest, client: Terminal, *, scripted: bool
) -> RunResult:
    """Run a program; if it makes a plan, show the plan, ask the user and apply it.

    A plan exists only in this process's memory, so this is the only chance to apply it.
    """
    result = await engine.run(request, client)
    plan = result.plan
    if plan is None or not plan.plan_id or scripted or not client.attended:
        return result
    # The question repeats the list, so one screen shows the list only if the question cuts it.
    show(result, terminal=True, lists_plan=not stdout().isatty() or not is_fully_shown(plan))
    who = {"principal": request.principal, "owner": request.owner, "client": request.client}
    applied = await engine.apply(ApplyRequest(plan_id=plan.plan_id, **who), client)
    write_err(f"{applied.summary}\n")
    # Applying a plan runs no program, so the files come from the run that made it.
    return dataclasses.replace(applied, artifacts=result.artifacts, missing=result.missing)


def is_fully_shown(plan: Plan) -> bool:
    whole = plan_text(plan, how=False)
    if plan.stopped or whole != plan_text(plan, how=False, characters=MAX_QUESTION):
        return False
    _, more = visible_lines(whole, MAX_PLAN_LINES, MAX_PLAN_CHARS)
    return not more


def exit_status(result: RunResult) -> int:
    if result.status == "success":
        return 0
    if result.status == "timeout":
        return 124  # The status of coreutils' `timeout`.
    if result.reason == "engine":
        return SandboxError.exit_status
    # The program's own status, in the range of a process's status.
    return (result.exit_code or 0) & 0xFF or 1


def show(
    result: RunResult,
    *,
    terminal: bool,
    lists_plan: bool = True,
    streamed: bool = False,
    copied_to: Path | None = None,
) -> None:
    """Write a result: the program's streams and, to a terminal, notes about the run."""
    if not streamed:
        write_out(result.stdout)
        write_err(result.stderr)
    if result.error:
        write_err(f"{for_person(result.error).rstrip()}\n")
    if result.plan is not None and lists_plan:
        write_out(f"{plan_text(result.plan, how=False)}\n")
        if result.plan.plan_id and not terminal:
            write_err("Run this in a terminal to be asked, and to apply the plan.\n")
        if why := unknown_effects(result.plan.calls):
            write_err(f"{why}\n")
    value = json.dumps(result.result, ensure_ascii=False) if result.has_result else ""
    value = value or result.result_repr
    for item in result.shown:
        # Shown texts are part of the program's output.
        write_out(item.text if not item.text or item.text.endswith("\n") else f"{item.text}\n")
    if value:
        # The mark separates it from the output above; a script gets the bare value.
        write_out(f"=> {value}\n" if stdout().isatty() else f"{value}\n")
    if terminal:
        for source in get_args(FindingSource):
            for line in finding_lines(result, source):
                write_err(f"{source}: {line}\n")
        for item in result.shown:
            # A text was printed above; its note says what was cut.
            if not item.text or item.note:
                write_err(f"shown: {shown_line(item, where=True)}\n")
        files = files_section(result)
        if files and copied_to is None:
            files += "\n`mcp-code-bridge artifacts get URI` fetches a file, `--out DIR` copies all."
        sections = ("" if copied_to else files, missing_section(result), session_section(result))
        for section in sections:
            write_err(f"{section}\n" if section else "")
        if result.usage.tool_calls or result.refused:
            write_err(f"-- {receipt_line(result)}\n")


def request_of(
    *,
    file: str | None = None,
    argv: Sequence[str] | None = None,
    code: str | None = None,
    servers: str | None = None,
    timeout: float | None = None,
    plan: bool = False,
    files: Sequence[str] | None = None,
    packages: Sequence[str] | None = None,
    session: str | None = None,
    end_session: bool = False,
    program: str = "",
) -> RunRequest:
    """Return the request of a command line; `program` is the text in its file. Reads `files`."""
    words, name = list(argv or ()), ""
    if code is not None:
        # With -c there is no FILE, so typer put the first ARG there.
        words = words if file is None else [file, *words]
    elif file is None and session is not None and end_session:
        code = ""
    elif end_session and session is None:
        raise UsageError("--end-session needs --session NAME: the session to end.")
    elif file is None:
        raise UsageError("Name a FILE, - for stdin, or give the program with -c.")
    else:
        code, name = program, "" if file == "-" else Path(file).name
    return RunRequest(
        code=code,
        session=parse_session(session, ends=end_session),
        end_session=end_session,
        packages=parse_packages(packages or ()),
        servers=None
        if servers is None
        else tuple(name.strip() for name in servers.split(",") if name.strip()),
        timeout=timeout,
        argv=tuple(words),
        name=name,
        principal=TERMINAL,
        # No other caller may use the terminal's sessions.
        owner=TERMINAL,
        client=CLIENT,
        mode="plan" if plan else "run",
        files=read_files(files or ()),
        ends_bridge=True,
    )


async def read_program(file: str) -> str:
    """Return the text of a program's file; "-" means stdin.

    Raises:
        UsageError: The file cannot be read, or is not UTF-8.
    """
    try:
        if file == "-":
            data = b""
            # A read in a thread could not be cancelled.
            with closing(input_of(stdin().fileno())) as reader:
                while len(data) <= MAX_CODE_BYTES and (piece := await reader.read()):
                    data += piece
        else:
            async with await anyio.open_file(path_of(file), "rb") as stream:
                data = await stream.read(MAX_CODE_BYTES + 1)
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8: {error}.") from None


def pictures(result: RunResult) -> list[Artifact]:
    return [item.artifact for item in result.shown if item.artifact and not item.text]


def _describe_sent_calls(progress: RunProgress | None) -> str:
    """Describe the calls that an interrupted run has sent: no result will report them."""
    tally = progress.tally if progress is not None else None
    if tally is None or not (sent := tally.counts("sent")):
        return "No call went out."
    unknown = tally.counts("unknown")
    more = f" Not known whether carried out: {list_calls(unknown)}." if unknown else ""
    total = counted(sum(each.count for each in sent), "call")
    return f"{total} had gone out: {list_calls(sent)}.{more}"
