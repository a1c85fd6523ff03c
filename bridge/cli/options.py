"""Options that several commands take, short ways to declare one, and what a shell completes.

Completion reads what is on this machine, and starts nothing. One that fails offers nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option

from bridge.model import ServerSpec
from bridge.settings import Settings, load, store_of


def arg(word: str, text: str, completes: Callable[..., Any] | None = None) -> Any:
    return Argument(metavar=word, help=text, autocompletion=completes)


def opt(word: str, text: str, *names: str, completes: Callable[..., Any] | None = None) -> Any:
    return Option(*names, metavar=word, help=text, autocompletion=completes)


def count(text: str) -> Any:
    """Return `-n`, an option for how many of what `text` says."""
    return Option("-n", metavar="N", min=0, help=text)


def flag(name: str, text: str, *names: str) -> Any:
    return Option(name, *names, help=text)


def complete_clients(incomplete: str) -> list[str]:
    from bridge.client_configs.writers import WRITERS

    return _match(incomplete, lambda _: [*WRITERS, "all"])


def complete_servers(incomplete: str) -> list[str]:
    return _match(incomplete, lambda settings: [spec.name for spec in _specs(settings)])


def complete_tools(context: Context, incomplete: str) -> list[str]:
    """Return tools as their servers listed them last: SERVER.TOOL, or those of a given server."""
    from bridge.inventory.tool_cache import ToolCache

    def found(settings: Settings) -> Iterable[str]:
        listings = ToolCache(store_of(settings)).load_all(_specs(settings))
        given = context.params.get("server")
        for server, listing in listings.items():
            if given in (None, server):
                head = "" if given else f"{server}."
                yield from (f"{head}{tool.name}" for tool in listing.tools)

    return _match(incomplete, found)


def complete_runs(incomplete: str) -> list[str]:
    from bridge.gate.audit.reading import last_records

    def found(settings: Settings) -> Iterable[str]:
        records, _ = last_records(settings.state_dir / "audit", 400)
        return dict.fromkeys(str(each["run"]) for each in reversed(records) if each.get("run"))

    return _match(incomplete, found)


def complete_sessions(incomplete: str) -> list[str]:
    def found(settings: Settings) -> Iterable[str]:
        from bridge.cli.run import TERMINAL
        from bridge.sessions.checkpoints import Checkpoints

        kept = Checkpoints(store_of(settings), days=settings.session_days)
        return [each.name for each in kept.all(TERMINAL)]

    return _match(incomplete, found)


def _specs(settings: Settings) -> tuple[ServerSpec, ...]:
    from bridge.inventory.configuration import context_for
    from bridge.inventory.consents import consents_of

    context = context_for(settings, str(Path.cwd()), sys.platform)
    return tuple(consents_of(settings).discover(context).servers)


def _match(incomplete: str, find: Callable[[Settings], Iterable[str]]) -> list[str]:
    try:
        return [name for name in find(load()) if name.startswith(incomplete)]
    except Exception:
        # A shell shows an error in the middle of the line that a person types.
        return []


AsJson = Annotated[bool, flag("--json", "print JSON")]
AsJsonLines = Annotated[bool, flag("--json", "print JSON lines")]
Code = Annotated[str | None, opt("CODE", "program passed as a string", "-c")]
Server = Annotated[str, arg("SERVER", "its name or alias", complete_servers)]
Clients = Annotated[
    list[str] | None, arg("CLIENT", "or all; without one, they are listed", complete_clients)
]
InScope = Annotated[
    Literal["user", "project"], opt("<user|project>", "your own files, or the project's")
]
DryRun = Annotated[bool, flag("--dry-run", "only show what would change")]
Yes = Annotated[bool, flag("--yes", "apply without asking", "-y")]
