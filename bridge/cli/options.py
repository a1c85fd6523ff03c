"""Options of several commands, helpers that declare options, and shell completion.

Completion reads files of this machine and starts nothing. If it fails, it offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from typer import Argument, Context, Option

from bridge.model import ServerSpec
from bridge.settings import Settings, load, store_of


def arg(word: str, text: str, completes: Callable[..., Any] | None = None) -> Any:
    return Argument(metavar=word, help=text, autocompletion=completes)


def opt(word: str, text: str, *names: str, completes: Callable[..., Any] | None = None) -> Any:
    return Option(*names, metavar=word, help=text, autocompletion=completes)


def count(text: str) -> Any:
    return Option("-n", metavar="N", min=0, help=text)


def flag(name: str, text: str, *names: str) -> Any:
    return Option(name, *names, help=text)


def _completes(
    find: Callable[[Settings, Context], Iterable[str]],
) -> Callable[[Context, str], list[str]]:
    def complete(context: Context, incomplete: str) -> list[str]:
        try:
            return [name for name in find(load(), context) if name.startswith(incomplete)]
        except Exception:
            # A shell would print the error into the line that the user types.
            return []

    return complete


@_completes
def complete_clients(settings: Settings, context: Context) -> Iterable[str]:
    from bridge.client_configs.writers import WRITERS

    return [*WRITERS, "all"]


@_completes
def complete_servers(settings: Settings, context: Context) -> Iterable[str]:
    return [spec.name for spec in _specs(settings)]


@_completes
def complete_tools(settings: Settings, context: Context) -> Iterable[str]:
    """Yield the tools of the last listings as SERVER.TOOL; as TOOL if a server is given."""
    from bridge.inventory.inventory import ToolCache

    given = context.params.get("server")
    for server, listing in ToolCache(store_of(settings)).load_all(_specs(settings)).items():
        if given in (None, server):
            head = "" if given else f"{server}."
            yield from (f"{head}{tool.name}" for tool in listing.tools)


@_completes
def complete_runs(settings: Settings, context: Context) -> Iterable[str]:
    from bridge.gate.audit.reading import last_records

    records, _ = last_records(settings.state_dir / "audit", 400)
    return dict.fromkeys(str(each["run"]) for each in reversed(records) if each.get("run"))


@_completes
def complete_sessions(settings: Settings, context: Context) -> Iterable[str]:
    from bridge.cli.run import TERMINAL
    from bridge.sessions.checkpoints import Checkpoints

    kept = Checkpoints(store_of(settings), days=settings.session_days)
    return [each.name for each in kept.all(TERMINAL)]


def _specs(settings: Settings) -> tuple[ServerSpec, ...]:
    from bridge.inventory.configuration import consents_of, context_for

    return tuple(consents_of(settings).discover(context_for(settings)).servers)


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
