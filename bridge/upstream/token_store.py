"""Stores the logins to remote servers, in private files and in the system's keyring.

A file belongs to this user alone, is replaced as a whole, and is locked during a renewal. If there
is a keyring, it has the secrets and the file only refers to it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio.to_thread
import httpx2
from pydantic import TypeAdapter, ValidationError

from bridge.atomic_files import replace_file
from bridge.model import ServerSpec
from bridge.private_files import make_directory, restrict

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "mcp-code-bridge"

pending: list[Future[Any]] = []
"""Operations that timed out. No other operation starts before they end, because each request to a
server could leave a thread behind."""

Result = TypeVar("Result")


class TokenStoreError(Exception):
    """A login cannot be read, used or stored. The text contains no secret."""


def _backend() -> KeyringBackend:
    # Imported late, in the thread: the import looks for backends, of which some connect to
    # a message bus. Most bridges never need it.
    import keyring
    from keyring.backends import chainer, fail, null

    backend = keyring.get_keyring()
    empty = isinstance(backend, chainer.ChainerBackend) and not list(backend.backends)
    if empty or isinstance(backend, (fail.Keyring, null.Keyring)):
        raise TokenStoreError("there is no keyring here")
    return backend


Place = Literal["file", "keyring"]


@dataclass(frozen=True, kw_only=True)
class Key:
    """Identifies a login. A server with another address or definition gets none of its tokens."""

    server: str
    address: str  # The server's URL without user name, password, query and fragment.
    definition: str  # Digest of the server's definition.

    @property
    def digest(self) -> str:
        parts = (self.server, self.address, self.definition)
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    @property
    def entry(self) -> str:
        """Its name in a keyring, as users see it."""
        return f"{self.server} {self.address} {self.definition}"


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """One login: its tokens, and the data to renew, revoke and repeat it."""

    access_token: str = field(default="", repr=False)
    refresh_token: str = field(default="", repr=False)
    # Shortly before the access token expires, in seconds since the epoch; None if that is unknown.
    renew_at: float | None = None
    scope: str = ""
    wanted: str = ""  # Scopes that the server demanded later; the next login requests them too.
    resource: str = ""  # A parameter of token requests; empty to leave it out.
    issuer: str = ""
    token_endpoint: str = ""
    revocation_endpoint: str = ""
    client_id: str = field(default="", repr=False)
    client_secret: str = field(default="", repr=False)
    auth_method: str = ""
    redirect_uri: str = ""


@dataclass(frozen=True, kw_only=True)
class _StoredLogin(Key):
    place: Place
    record: TokenRecord | None = field(default=None, repr=False)


_STORED_LOGIN = TypeAdapter(_StoredLogin)


def key_of(spec: ServerSpec) -> Key:
    address = httpx2.URL(spec.url).copy_with(userinfo=b"", query=None, fragment=None)
    # With variables put in: they may choose the account.
    definition = replace(spec, templates={}).definition
    return Key(server=spec.name, address=str(address), definition=definition)


class TokenStore:
    """Stores logins in one directory, and their secrets in a keyring if there is one."""

    def __init__(self, directory: Path, *, keyring_seconds: float = 20.0) -> None:
        self._directory = directory
        # For one operation: enough for a person to unlock the keyring.
        self._keyring_seconds = keyring_seconds

    def path(self, key: Key) -> Path:
        return self._directory / f"{key.digest}.json"

    async def load(self, key: Key) -> TokenRecord | None:
        login = await anyio.to_thread.run_sync(self._read, key)
        if login is not None and login.place == "keyring":
            text = await self._ask_holder(lambda ring: ring.get_password(SERVICE, key.entry))
            login = _parse(text.encode(), key) if text is not None else None
        return login.record if login else None

    async def save(self, key: Key, record: TokenRecord) -> tuple[Place, str]:
        """Store a login in its present place, and a new one in the keyring if possible.

        Return the place, and why it is not the keyring.
        """
        with suppress(TokenStoreError):
            # A trusted file replaces an untrusted one.
            kept = await anyio.to_thread.run_sync(self._read, key)
            if kept is not None and kept.place == "file" and kept.record is not None:
                await self._write(key, record, "file")
                return "file", ""
        return await self.save_in_keyring(key, record)

    async def save_in_keyring(self, key: Key, record: TokenRecord) -> tuple[Place, str]:
        text = _STORED_LOGIN.dump_json(_stored_login(key, "keyring", record)).decode()

        def write(backend: KeyringBackend) -> None:
            backend.set_password(SERVICE, key.entry, text)
            # Some keyrings report success and store only a part, or nothing.
            if backend.get_password(SERVICE, key.entry) != text:
                raise TokenStoreError("it did not store what it was given")

        try:
            await self._ask(write)
        except TokenStoreError as error:
            await self._write(key, record, "file")
            return "file", str(error)
        await self._write(key, None, "keyring")
        return "keyring", ""

    async def clear(self) -> None:
        """Remove all logins, from the keyring too, except unreadable ones."""
        for path in sorted(self._directory.glob("*.json")):
            with suppress(OSError, ValueError, TokenStoreError):
                await self.remove(_STORED_LOGIN.validate_json(path.read_bytes()))

    async def remove(self, key: Key) -> bool:
        path = self.path(key)
        kept = None
        with suppress(TokenStoreError):
            kept = await anyio.to_thread.run_sync(self._read, key)

        def clear(backend: KeyringBackend) -> None:
            if backend.get_password(SERVICE, key.entry) is not None:
                backend.delete_password(SERVICE, key.entry)

        if kept is not None and kept.place == "keyring":
            await self._ask_holder(clear)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise TokenStoreError(f"{path} cannot be removed: {error.strerror}") from None
        return True

    @asynccontextmanager
    async def locked(self, key: Key) -> AsyncIterator[None]:
        descriptor = await anyio.to_thread.run_sync(self._open_lock, key)
        end = anyio.current_time() + 30.0  # Longer than any renewal.
        try:
            while True:
                with suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if anyio.current_time() > end:
                    raise TokenStoreError("another process has been busy with it for 30 s")
                await anyio.sleep(0.05)  # `flock` has no notification.
            yield
        finally:
            # Closing releases the lock. The file stays: if it were removed, two processes could
            # each lock a file of their own.
            os.close(descriptor)

    async def _ask_holder(self, ask: Callable[[KeyringBackend], Result]) -> Result:
        try:
            return await self._ask(ask)
        except TokenStoreError as error:
            raise TokenStoreError(f"it is in the system's keyring, and {error}") from None

    async def _ask(self, ask: Callable[[KeyringBackend], Result]) -> Result:
        """Ask the keyring within the timeout, in a thread that cannot delay the bridge's end."""
        pending[:] = [each for each in pending if not each.done()]
        if pending:
            raise TokenStoreError("it has not finished an earlier operation")
        result: Future[Result] = Future()
        result.set_running_or_notify_cancel()

        def work() -> None:
            try:
                result.set_result(ask(_backend()))
            except BaseException as error:
                result.set_exception(error)

        Thread(target=work, daemon=True, name="keyring").start()
        try:
            with anyio.move_on_after(self._keyring_seconds):
                return await asyncio.wrap_future(result)
        except TokenStoreError:
            raise
        except Exception as error:
            # Only the type, because a backend's text may quote the secret.
            raise TokenStoreError(f"it failed ({type(error).__name__})") from None
        pending.append(result)
        raise TokenStoreError(f"it did not answer within {self._keyring_seconds:g} s")

    def _open_lock(self, key: Key) -> int:
        self._make_directory()
        path = self._directory / f"{key.digest}.lock"
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise TokenStoreError(f"{path} cannot be opened: {error.strerror}") from None

    def _make_directory(self) -> None:
        try:
            make_directory(self._directory)
            restrict(self._directory)
        except OSError as error:
            raise TokenStoreError(f"{self._directory} cannot be used: {error.strerror}") from None

    def _read(self, key: Key) -> _StoredLogin | None:
        path = self.path(key)
        try:
            # It must neither block at a pipe nor follow links.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TokenStoreError(f"{path} is not used: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise TokenStoreError(f"{path} is not used: it is no regular file")
            if found.st_uid != os.getuid():
                raise TokenStoreError(f"{path} is not used: it belongs to another user")
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise TokenStoreError(f"{path} is not used: others may read it")
            data = file.read()
        login = _parse(data, key)
        if login is None:
            raise TokenStoreError(f"{path} is not used: it is no login to this server")
        return login

    async def _write(self, key: Key, record: TokenRecord | None, place: Place) -> None:
        path, data = self.path(key), _STORED_LOGIN.dump_json(_stored_login(key, place, record))

        def write() -> None:
            self._make_directory()
            try:
                # After a power cut the file must not have a used refresh token again.
                replace_file(path, data, durable=True)
            except OSError as error:
                raise TokenStoreError(f"{path} cannot be written: {error.strerror}") from None

        await anyio.to_thread.run_sync(write)


def _parse(data: bytes, key: Key) -> _StoredLogin | None:
    """Return the login in a file's or keyring's data; None if it is not a login for `key`."""
    try:
        found = _STORED_LOGIN.validate_json(data)
    except ValidationError:
        # The error's text would quote the data, perhaps a token.
        return None
    return found if _stored_login(key, found.place, found.record) == found else None


def _stored_login(key: Key, place: Place, record: TokenRecord | None) -> _StoredLogin:
    own = {"server": key.server, "address": key.address, "definition": key.definition}
    return _StoredLogin(**own, place=place, record=record)
