"""What is kept of the logins to remote servers, and where.

Owns the files: one per login, readable by nobody else, replaced as a whole, and locked while a
login is renewed. Where there is a keyring the file only says so, and the keyring has the secret;
so a server that nobody ever logged in to never costs a question to a keyring. A keyring is asked
for a bounded time, in a thread of its own. What the secrets are for is `oauth.py`'s.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import httpx2
from pydantic import TypeAdapter, ValidationError

from bridge.atomic_files import replace_file
from bridge.model import ServerSpec

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

logger = logging.getLogger(__name__)


SERVICE = "mcp-code-bridge"

KEYRING_SECONDS = 20.0
"""For one answer. Long enough for a person to unlock it when asked to, and short enough for a
desktop session that nobody sits at."""

pending: list[threading.Event] = []
"""Questions whose answers did not come in time; set if they come after all. Until then nothing else
is asked: each request to each server would leave a thread behind."""

Result = TypeVar("Result")


class KeyringError(Exception):
    """There is no keyring, or it does not do its part. The text names no secret."""


async def read_keyring(entry: str, seconds: float) -> str | None:
    """Return what is kept under `entry`.

    Raises:
        KeyringError: That cannot be found out.
    """
    return await _run_in_thread(lambda: _backend().get_password(SERVICE, entry), seconds)


async def write_keyring(entry: str, text: str, seconds: float) -> None:
    """Keep `text` under `entry`, and see that it is there.

    Raises:
        KeyringError: It is not.
    """

    def keep() -> None:
        backend = _backend()
        backend.set_password(SERVICE, entry, text)
        # Some take whatever they are given, and keep a part of it or nothing.
        if backend.get_password(SERVICE, entry) != text:
            raise KeyringError("it did not keep what it was given")

    await _run_in_thread(keep, seconds)


async def clear_keyring(entry: str, seconds: float) -> None:
    """Forget what is kept under `entry`, if anything is.

    Raises:
        KeyringError: It may still be there.
    """

    def forget() -> None:
        backend = _backend()
        if backend.get_password(SERVICE, entry) is not None:
            backend.delete_password(SERVICE, entry)

    await _run_in_thread(forget, seconds)


def _backend() -> KeyringBackend:
    # Imported only now, in the thread: it looks for backends, and some of those talk to a bus.
    # Most bridges never need it.
    import keyring
    from keyring.backends import chainer, fail, null

    backend = keyring.get_keyring()
    empty = isinstance(backend, chainer.ChainerBackend) and not list(backend.backends)
    if empty or isinstance(backend, (fail.Keyring, null.Keyring)):
        raise KeyringError("there is no keyring here")
    return backend


async def _run_in_thread(ask: Callable[[], Result], seconds: float) -> Result:
    """Ask in a thread that nobody waits for any longer than `seconds`.

    Not one of anyio's threads: the interpreter waits for those when it ends, and a keyring that
    hangs would keep it for ever.
    """
    pending[:] = [question for question in pending if not question.is_set()]
    if pending:
        raise KeyringError("it has not answered what it was asked before")
    done, over = anyio.Event(), threading.Event()
    answers: list[Result] = []
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
        pending.append(over)
        raise KeyringError(f"it did not answer within {seconds:g} s")
    if isinstance(faults[0], KeyringError):
        raise faults[0]
    # Only the kind: a backend's own text may quote what it was given.
    raise KeyringError(f"it failed ({type(faults[0]).__name__})") from None


MAX_FILE_BYTES = 1024 * 1024
"""Of one login. Tokens have a few thousand bytes, and the documents they come in a quarter of
this at most."""

LOCK_SECONDS = 30.0
"""How long another process may take over the same login; longer than renewing it does."""

LOCK_POLL_SECONDS = 0.05
"""How often it is looked whether that process is done: the lock announces itself to nobody."""

Place = Literal["file", "keyring"]


class StoreError(Exception):
    """A login is kept, but cannot be used, or cannot be kept. The text names no secret."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """Which login is meant: an entry's name, the address that the tokens are for, the definition.

    Neither another server nor the same entry with another address or definition finds it.

    Attributes:
        address: Origin and path of the server, without what may be secret in a URL.
        definition: Digest of the server's definition.
    """

    server: str
    address: str
    definition: str

    @property
    def digest(self) -> str:
        """A file name for it."""
        parts = (self.server, self.address, self.definition)
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One login: the tokens, and what is needed to renew, to revoke and to repeat it.

    Attributes:
        renew_at: When the access token is to be renewed, in seconds of the epoch, shortly before
            it ends; None if that is unknown.
        scope: What was granted, in words separated by spaces.
        wanted: What the server asked for since and the next login is to ask for too.
        resource: What the tokens are for; empty if the authorization server is not told.
        client_id, client_secret, auth_method, redirect_uri: The bridge as that server knows it.
    """

    access_token: str = field(default="", repr=False)
    refresh_token: str = field(default="", repr=False)
    renew_at: float | None = None
    scope: str = ""
    wanted: str = ""
    resource: str = ""
    issuer: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str = ""
    client_id: str = field(default="", repr=False)
    client_secret: str = field(default="", repr=False)
    auth_method: str = ""
    redirect_uri: str = ""


@dataclass(frozen=True, kw_only=True)
class _StoredLogin:
    """A file's content. `record` is None where the keyring has it."""

    server: str
    address: str
    place: Place
    definition: str = ""
    record: Record | None = field(default=None, repr=False)


_STORED_LOGIN = TypeAdapter(_StoredLogin)


def key_of(spec: ServerSpec) -> Key:
    """Return the key of a server's login."""
    parsed = httpx2.URL(spec.url)
    address = parsed.copy_with(userinfo=b"", query=None, fragment=None)
    return Key(server=spec.name, address=str(address), definition=spec.definition)


class TokenStore:
    """Keeps logins in one directory, and their secrets in a keyring where there is one.

    Args:
        directory: Made when something is kept.
        keyring_seconds: How long a keyring may take to answer.
    """

    def __init__(self, directory: Path, *, keyring_seconds: float = KEYRING_SECONDS) -> None:
        self._directory = directory
        self._keyring_seconds = keyring_seconds

    def path(self, key: Key) -> Path:
        """Return the file of a login."""
        return self._directory / f"{key.digest}.json"

    async def load(self, key: Key) -> Record | None:
        """Return what is kept, if anything is.

        Raises:
            StoreError: Something is, but cannot be read or must not be trusted.
        """
        kept = await anyio.to_thread.run_sync(self._read, key)
        if kept is None or kept.place == "file":
            return kept.record if kept else None
        try:
            text = await read_keyring(_keyring_entry(key), self._keyring_seconds)
        except KeyringError as error:
            raise StoreError(f"it is in the system's keyring, and {error}") from None
        found = _parse(text.encode(), key) if text is not None else None
        return found.record if found else None

    async def save(self, key: Key, record: Record) -> tuple[Place, str]:
        """Keep a login: where it is already, for a new one in the keyring if possible.

        Returns:
            Where it is, and why not in the keyring.

        Raises:
            StoreError: It cannot be kept.
        """
        with suppress(StoreError):
            # What must not be trusted is replaced by what may be.
            kept = await anyio.to_thread.run_sync(self._read, key)
            if kept is not None and kept.place == "file" and kept.record is not None:
                await self._write(key, record, "file")
                return "file", ""
        return await self.save_in_keyring(key, record)

    async def save_in_keyring(self, key: Key, record: Record) -> tuple[Place, str]:
        """Keep a login in the keyring if possible, wherever it was.

        Raises:
            StoreError: It cannot be kept.
        """
        whole = _stored_login(key, "keyring", record)
        text = _STORED_LOGIN.dump_json(whole).decode()
        try:
            await write_keyring(_keyring_entry(key), text, self._keyring_seconds)
        except KeyringError as error:
            await self._write(key, record, "file")
            return "file", str(error)
        await self._write(key, None, "keyring")
        return "keyring", ""

    async def remove(self, key: Key) -> bool:
        """Forget a login; return whether there was one.

        Raises:
            StoreError: It is still there.
        """
        path = self.path(key)
        kept = None
        with suppress(StoreError):
            kept = await anyio.to_thread.run_sync(self._read, key)
        if kept is not None and kept.place == "keyring":
            try:
                await clear_keyring(_keyring_entry(key), self._keyring_seconds)
            except KeyringError as error:
                raise StoreError(f"it is in the system's keyring, and {error}") from None
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"{path} cannot be removed: {error.strerror}") from None
        return True

    @asynccontextmanager
    async def locked(self, key: Key) -> AsyncIterator[None]:
        """Keep every other task and process from renewing this login meanwhile.

        Raises:
            StoreError: Somebody else holds it for too long, or it cannot be made.
        """
        descriptor = await anyio.to_thread.run_sync(self._open_lock, key)
        try:
            with anyio.move_on_after(LOCK_SECONDS) as scope:
                while not _try_lock(descriptor):  # noqa: ASYNC110 - another process lets go of it
                    await anyio.sleep(LOCK_POLL_SECONDS)
            if scope.cancelled_caught:
                raise StoreError(f"another process has been busy with it for {LOCK_SECONDS:g} s")
            yield
        finally:
            # Closing lets go of it. The file stays: removed, two could hold a lock on two files.
            os.close(descriptor)

    def _open_lock(self, key: Key) -> int:
        self._make_directory()
        path = self._directory / f"{key.digest}.lock"
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror}") from None

    def _make_directory(self) -> None:
        """Have the directory, ours and closed to others.

        Raises:
            StoreError: That cannot be had.
        """
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._directory.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise StoreError(f"{self._directory} is not a directory of this user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                self._directory.chmod(0o700)
        except OSError as error:
            raise StoreError(f"{self._directory} cannot be made: {error.strerror}") from None

    def _read(self, key: Key) -> _StoredLogin | None:
        path = self.path(key)
        try:
            # Not waiting for a pipe's other end, and not following anybody's link.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{path} is not used: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if problem := _file_problem(os.fstat(file.fileno())):
                raise StoreError(f"{path} is not used: {problem}")
            data = file.read(MAX_FILE_BYTES + 1)
        found = _parse(data, key)
        if found is None:
            raise StoreError(f"{path} is not used: it is no login to this server")
        return found

    async def _write(self, key: Key, record: Record | None, place: Place) -> None:
        whole = _stored_login(key, place, record)
        await anyio.to_thread.run_sync(
            self._replace, self.path(key), _STORED_LOGIN.dump_json(whole)
        )

    def _replace(self, path: Path, data: bytes) -> None:
        self._make_directory()
        try:
            # A refresh token that was used up must not come back after a power cut.
            replace_file(path, data, durable=True)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None


def _file_problem(found: os.stat_result) -> str:
    """Return why a file must not be used, if it must not."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid != os.getuid():
        return "it belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return "others may read it"
    return ""


def _parse(data: bytes, key: Key) -> _StoredLogin | None:
    """Return a login that is really for `key`, however it came to be found."""
    if len(data) > MAX_FILE_BYTES:
        return None
    try:
        found = _STORED_LOGIN.validate_json(data)
    except ValidationError:
        # Its text would quote what it found, which may be a token.
        return None
    return found if _stored_login(key, found.place, found.record) == found else None


def _stored_login(key: Key, place: Place, record: Record | None) -> _StoredLogin:
    return _StoredLogin(
        server=key.server,
        address=key.address,
        definition=key.definition,
        place=place,
        record=record,
    )


def _keyring_entry(key: Key) -> str:
    """Return the name under which a keyring has a login; people see it there."""
    return f"{key.server} {key.address} {key.definition}".rstrip()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
