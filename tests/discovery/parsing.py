"""One file's bytes to what discovery makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from bridge.discovery.dialect import Dialect, Format
from bridge.discovery.documents import MalformedError, decode
from bridge.discovery.fields import EntryContext
from bridge.discovery.parser import Parsed, parse_document
from bridge.discovery.report import ConfigWarning, SkippedServer
from bridge.discovery.variables import Variables
from bridge.model import ServerSpec, Source


@dataclass(frozen=True, kw_only=True)
class Origin:
    client: str
    scope: str
    path: str
    dialect: Dialect
    environ: Mapping[str, str]
    home: str
    workspace: str = ""
    read: Callable[[str], str | None] = lambda _: None
    projects: tuple[str, ...] = ()

    def entry_context(self) -> EntryContext:
        variables = Variables(
            environ=self.environ,
            home=self.home,
            workspace=self.workspace,
            directory=str(PurePath(self.path).parent),
            read=self.read,
        )
        source = Source(client=self.client, scope=self.scope, path=self.path, key="")
        return EntryContext(source=source, dialect=self.dialect, variables=variables)


class Found(Parsed):
    @property
    def servers(self) -> tuple[ServerSpec, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, ServerSpec))

    @property
    def skipped(self) -> tuple[SkippedServer, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, SkippedServer))


def parse_config(raw: bytes, origin: Origin, format: Format = "json") -> Found:
    try:
        document = decode(raw, format)
    except MalformedError as error:
        warning = ConfigWarning(path=origin.path, key="", reason=str(error))
        return Found(warnings=(warning,))
    parsed = parse_document(document, origin.entry_context(), origin.projects)
    return Found(entries=parsed.entries, warnings=parsed.warnings)
