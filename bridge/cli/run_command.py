"""The words of `run`. The engine is imported when a program runs, not for help."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from bridge.cli import completion
from bridge.cli.options import Code, arg, flag, opt
from bridge.settings import Settings


async def run(
    settings: Settings,
    *,
    file: Annotated[str | None, arg("FILE", "a file, or - for stdin")] = None,
    argv: Annotated[list[str] | None, arg("ARG", "after --: the program's sys.argv")] = None,
    code: Code = None,
    servers: Annotated[str | None, opt("A,B", "servers to load")] = None,
    timeout: Annotated[
        float | None,
        opt("SECONDS", "time limit of the program [MCP_BRIDGE_TIMEOUT, default: 30]"),
    ] = None,
    plan: Annotated[
        bool, flag("--plan", "list writes instead of making them, then ask whether to apply them")
    ] = False,
    files: Annotated[
        list[str] | None,
        opt("NAME=PATH", "copy a file into the program's directory; may be repeated", "--file"),
    ] = None,
    packages: Annotated[
        list[str] | None,
        opt("REQUIREMENT", "a package that your settings allow; may be repeated", "--package"),
    ] = None,
    session: Annotated[
        str | None,
        opt("NAME", "keep variables, imports and files", completes=completion.sessions),
    ] = None,
    end_session: Annotated[
        bool, flag("--end-session", "end the session after the run; without a program, just end it")
    ] = False,
    out: Annotated[str | None, opt("DIR", "copy the program's files in out/ to DIR")] = None,
    force: Annotated[bool, flag("--force", "with --out: replace files that exist")] = False,
    as_json: Annotated[bool, flag("--json", "print the structured result")] = False,
) -> int:
    """Run one program and exit with its status.

    stdout, stderr and the exit status are the program's own. 124 means that its time limit ended
    it, 130 that you did.

    Examples:
        run -c 'print(await mcp_github.list_issues(repo="o/r"))'
        run report.py --servers github --out results -- 2026
    """
    from bridge.cli.run import request_of, run_program

    request = partial(
        request_of,
        file=file,
        argv=argv,
        code=code,
        servers=servers,
        timeout=timeout,
        plan=plan,
        files=files,
        packages=packages,
        session=session,
        end_session=end_session,
    )
    return await run_program(settings, request, out=out, force=force, as_json=as_json)
