"""Options that several commands take, and short ways to declare one."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Argument, Option

from bridge.clients.writers import Scope


def arg(word: str, text: str) -> Any:
    """Return an argument that help shows as `word`."""
    return Argument(metavar=word, help=text)


def opt(word: str, text: str, *names: str) -> Any:
    """Return an option with a value that help shows as `word`."""
    return Option(*names, metavar=word, help=text)


def flag(name: str, text: str, *names: str) -> Any:
    return Option(name, *names, help=text)


AsJson = Annotated[bool, flag("--json", "print JSON")]
AsJsonLines = Annotated[bool, flag("--json", "print JSON lines")]
Code = Annotated[str | None, opt("CODE", "program passed as a string", "-c")]
Server = Annotated[str, arg("SERVER", "its name or alias")]
Clients = Annotated[list[str] | None, arg("CLIENT", "or all; without one, they are listed")]
InScope = Annotated[Scope, opt("<user|project>", "your own files, or the project's")]
DryRun = Annotated[bool, flag("--dry-run", "only show what would change")]
Yes = Annotated[bool, flag("--yes", "apply without asking", "-y")]
