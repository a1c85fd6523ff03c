"""The stream to a pod, at the other end of which no one reads any more."""

from __future__ import annotations

import anyio
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from bridge.errors import ChannelClosedError
from bridge.sandbox.kubernetes.backend import PodStream
from tests.waiting import until

TOO_MUCH = bytes(64 * 1024 * 1024)
"""More than the sockets of both ends hold."""


async def test_a_stream_whose_peer_takes_nothing_more_is_closed_all_the_same() -> None:
    over = anyio.Event()

    async def take_nothing(connection: ServerConnection) -> None:
        connection.transport.pause_reading()
        await over.wait()
        connection.transport.abort()

    async with serve(take_nothing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}", compression=None) as socket:
            stream = PodStream(socket)

            async def write() -> None:
                with pytest.raises(ChannelClosedError):
                    await stream.send(TOO_MUCH)

            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(write)
                    await until(lambda: socket.transport.get_write_buffer_size() > 0)
                    await stream.close()
                assert socket.transport.is_closing()
            finally:
                over.set()
