"""An engine at the other end of a network, with certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from tests.certificates import certify
from tests.contract.programs import ECHO, on, read_exactly, spec
from tests.contract.rig import EngineSet


class Relay:
    """Makes a local engine look like a remote one with TLS."""

    def __init__(self, target: str, context: ssl.SSLContext) -> None:
        self._target = target
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as far, near:
            far.connect(self._target)
            with self._context.wrap_socket(near, server_side=True) as wrapped:
                _relay(wrapped, far)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def _relay(near: socket.socket, far: socket.socket) -> None:
    """Copy both ways, by turns: one thread, since a TLS connection bears no two."""
    near.setblocking(False)
    far.setblocking(False)
    pending = {near: b"", far: b""}
    wait = threading.Event()
    while True:
        moved = False
        for source, sink in ((near, far), (far, near)):
            with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if not pending[sink]:
                    data = source.recv(65536)
                    if not data:
                        return
                    pending[sink] = data
                    moved = True
            with suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if pending[sink]:
                    pending[sink] = pending[sink][sink.send(pending[sink]) :]
                    moved = True
        if not moved:
            wait.wait(0.002)


@pytest.mark.docker
async def test_a_remote_engine_works_too(engines: EngineSet, tmp_path: Path) -> None:
    engine = engines.get("docker")
    relay = Relay(engine.url.removeprefix("unix://"), _certificates(tmp_path))
    environ = {"DOCKER_HOST": f"tcp://127.0.0.1:{relay.port}", "HOME": str(tmp_path)}
    environ |= {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(tmp_path)}
    data = bytes(range(256)) * 8192
    try:
        async with on(replace(engine, environ=environ), tmp_path / "run") as backend:
            async with backend.launch(spec(ECHO)) as sandbox, anyio.create_task_group() as group:
                group.start_soon(sandbox.send, data)
                received = await read_exactly(sandbox, len(data))
            assert received == data
    finally:
        relay.close()


def _certificates(directory: Path) -> ssl.SSLContext:
    certificate, key = certify(directory, "127.0.0.1", "IP:127.0.0.1")
    certificate.with_name("ca.pem").write_bytes(certificate.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(directory / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context
