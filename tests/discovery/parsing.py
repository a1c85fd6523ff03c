"""One file's bytes to what discovery makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.discovery.dialect import Format
from bridge.discovery.documents import MalformedError, decode
from bridge.discovery.parse import Origin, Parsed, parse_document
from bridge.discovery.report import ConfigWarning, SkippedServer
from bridge.model import ServerSpec


@dataclass(frozen=True)
class Found:
    """What a file says, servers and entries that are none apart."""

    parsed: Parsed

    @property
    def entries(self) -> tuple[ServerSpec | SkippedServer, ...]:
        return self.parsed.entries

    @property
    def servers(self) -> tuple[ServerSpec, ...]:
        return tuple(entry for entry in self.parsed.entries if isinstance(entry, ServerSpec))

    @property
    def skipped(self) -> tuple[SkippedServer, ...]:
        return tuple(entry for entry in self.parsed.entries if isinstance(entry, SkippedServer))

    @property
    def warnings(self) -> tuple[ConfigWarning, ...]:
        return self.parsed.warnings


def parse_config(raw: bytes, origin: Origin, format: Format = "json") -> Found:
    """What a file's bytes mean."""
    try:
        document = decode(raw, format)
    except MalformedError as error:
        warning = ConfigWarning(path=origin.path, key="", reason=str(error))
        return Found(Parsed(warnings=(warning,)))
    return Found(parse_document(document, origin))
