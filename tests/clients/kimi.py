"""Kimi Code, by Moonshot AI: it lists its servers in its own server's API alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from tests.clients.client import PATIENCE_SECONDS
from tests.ports import reserved_port


def servers(command: Sequence[str], project: Path, environ: Mapping[str, str]) -> str:
    """Return the servers that it lists in a project that it trusts, as JSON."""
    with reserved_port() as port:
        options = ("--no-open", "--dangerous-bypass-auth", "--port", str(port))
        started = subprocess.Popen(
            [*command, "web", *options],
            cwd=project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        with started:
            try:
                assert started.stdout is not None
                assert any("server ready" in line for line in started.stdout)
                place = _asked(port, "POST", "/api/v1/workspaces", {"root": str(project)})
                _asked(port, "POST", f"/api/v1/workspaces/{place['id']}/trust")
                return json.dumps(_asked(port, "GET", f"/api/v2/mcp/servers?cwd={project}"))
            finally:
                # What it starts to serve outlives it.
                os.killpg(started.pid, signal.SIGKILL)
                started.communicate(timeout=PATIENCE_SECONDS)


def _asked(port: int, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        headers = {"content-type": "application/json"} if body else {}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = json.load(connection.getresponse())
    assert answer["code"] == 0, answer
    return answer["data"]
