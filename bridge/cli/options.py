"""Options that several commands take, and short ways to declare one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from typer import Argument, Option

from bridge.cli import completion


def arg(word: str, text: str, completes: Callable[..., Any] | None = None) -> Any:
    return Argument(metavar=word, help=text, autocompletion=completes)


def opt(word: str, text: str, *names: str, completes: Callable[..., Any] | None = None) -> Any:
    return Option(*names, metavar=word, help=text, autocompletion=completes)


def count(text: str) -> Any:
    """Return `-n`, an option for how many of what `text` says."""
    return Option("-n", metavar="N", min=0, help=text)


def flag(name: str, text: str, *names: str) -> Any:
    return Option(name, *names, help=text)


AsJson = Annotated[bool, flag("--json", "print JSON")]
AsJsonLines = Annotated[bool, flag("--json", "print JSON lines")]
Code = Annotated[str | None, opt("CODE", "program passed as a string", "-c")]
Server = Annotated[str, arg("SERVER", "its name or alias", completion.servers)]
Clients = Annotated[
    list[str] | None, arg("CLIENT", "or all; without one, they are listed", completion.clients)
]
InScope = Annotated[
    Literal["user", "project"], opt("<user|project>", "your own files, or the project's")
]
DryRun = Annotated[bool, flag("--dry-run", "only show what would change")]
Yes = Annotated[bool, flag("--yes", "apply without asking", "-y")]
