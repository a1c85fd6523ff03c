"""The system's keyring, where there is one: asked for a bounded time, in a thread of its own.

Owns the choice of what counts as a keyring, and nothing of what is kept in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "mcp-code-bridge"

ANSWER_SECONDS = 20.0
"""For one answer. Long enough for a person to unlock it when asked to, and short enough for a
desktop session that nobody sits at."""

unanswered: list[threading.Event] = []
"""Questions whose answers did not come in time; set if they come after all. Until then nothing else
is asked: each request to each server would leave a thread behind."""

Answer = TypeVar("Answer")


class KeyringError(Exception):
    """There is no keyring, or it does not do its part. The text names no secret."""


async def get(entry: str, seconds: float) -> str | None:
    """Return what is kept under `entry`.

    Raises:
        KeyringError: That cannot be found out.
    """
    return await _bounded(lambda: _backend().get_password(SERVICE, entry), seconds)


async def put(entry: str, text: str, seconds: float) -> None:
    """Keep `text` under `entry`, and see that it is there.

    Raises:
        KeyringError: It is not.
    """

    def keep() -> None:
        backend = _backend()
        backend.set_password(SERVICE, entry, text)
        # Some take whatever they are given, and keep a part of it or nothing.
        if backend.get_password(SERVICE, entry) != text:
            msg = "it did not keep what it was given"
            raise KeyringError(msg)

    await _bounded(keep, seconds)


async def drop(entry: str, seconds: float) -> None:
    """Forget what is kept under `entry`, if anything is.

    Raises:
        KeyringError: It may still be there.
    """

    def forget() -> None:
        backend = _backend()
        if backend.get_password(SERVICE, entry) is not None:
            backend.delete_password(SERVICE, entry)

    await _bounded(forget, seconds)


def _backend() -> KeyringBackend:
    # Imported only now, in the thread: it looks for backends, and some of those talk to a bus.
    # Most bridges never need it.
    import keyring
    from keyring.backends import chainer, fail, null

    backend = keyring.get_keyring()
    empty = isinstance(backend, chainer.ChainerBackend) and not list(backend.backends)
    if empty or isinstance(backend, (fail.Keyring, null.Keyring)):
        msg = "there is no keyring here"
        raise KeyringError(msg)
    return backend


async def _bounded(ask: Callable[[], Answer], seconds: float) -> Answer:
    """Ask in a thread that nobody waits for any longer than `seconds`.

    Not one of anyio's threads: the interpreter waits for those when it ends, and a keyring that
    hangs would keep it for ever.
    """
    unanswered[:] = [question for question in unanswered if not question.is_set()]
    if unanswered:
        msg = "it has not answered what it was asked before"
        raise KeyringError(msg)
    done, over = anyio.Event(), threading.Event()
    answers: list[Answer] = []
    faults: list[BaseException] = []
    loop = anyio.lowlevel.current_token()

    def work() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            faults.append(error)
        over.set()
        try:
            anyio.from_thread.run_sync(done.set, token=loop)
        except RuntimeError:
            # The loop has ended: nobody waits.
            return

    threading.Thread(target=work, daemon=True, name="keyring").start()
    with anyio.move_on_after(seconds):
        await done.wait()
    if answers:
        return answers[0]
    if not faults:
        unanswered.append(over)
        msg = f"it did not answer within {seconds:g} s"
        raise KeyringError(msg)
    if isinstance(faults[0], KeyringError):
        raise faults[0]
    # Only the kind: a backend's own text may quote what it was given.
    msg = f"it failed ({type(faults[0]).__name__})"
    raise KeyringError(msg) from None
