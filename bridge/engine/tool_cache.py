"""What servers' tools were when last asked, kept between bridges.

Owns one small file per server definition in the state directory. With it the description of
`run_python` names every tool in the first message of a session, although no server has been
started. It is only ever a preview: a run asks the server itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bridge.model import ServerSpec, Tool

logger = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
"""Of one server's tools. Hundreds of tools with large schemas take a tenth of it."""

_TOOLS = TypeAdapter(tuple[Tool, ...])


class ToolCache:
    """Reads and writes the files; what cannot be read or written is as if it were not there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self, spec: ServerSpec) -> tuple[Tool, ...] | None:
        """Return the tools that this definition had last time, if that is known."""
        path = self._path(spec)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                return None
            tools = _TOOLS.validate_json(data)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            logger.debug("ignoring %s: %s", path, error)
            return None
        # A file made for another name would put its tools under the wrong server.
        return tools if all(tool.server == spec.name for tool in tools) else None

    def save(self, spec: ServerSpec, tools: Sequence[Tool]) -> None:
        """Keep the tools for the next bridge."""
        data = _TOOLS.dump_json(tuple(tools))
        if len(data) > MAX_BYTES:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Renamed into place, so that no reader sees half of it.
            descriptor, name = tempfile.mkstemp(dir=self._directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).replace(self._path(spec))
        except OSError as error:
            logger.debug("tools of %s are not kept: %s", spec.name, error)

    def _path(self, spec: ServerSpec) -> Path:
        # Values of variables and headers stay out: they are secrets, and rarely change the tools.
        identity = [
            spec.name,
            spec.transport,
            spec.command,
            spec.args,
            spec.cwd,
            spec.url,
            sorted(spec.env),
            sorted(spec.headers),
        ]
        digest = hashlib.sha256(json.dumps(identity).encode("utf-8", "surrogatepass"))
        return self._directory / f"{digest.hexdigest()[:32]}.json"
