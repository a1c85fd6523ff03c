"""Where logins are kept: in files for one user alone, and in a keyring where there is one."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import keyring
import pytest
from keyring.backends import null

from bridge.model import ServerSpec, Source
from bridge.upstream.token_store import (
    Key,
    TokenRecord,
    TokenStore,
    TokenStoreError,
    key_of,
    pending,
)
from tests.fakes.ring import Ring
from tests.waiting import PATIENCE_SECONDS

KEYRING_SECONDS = 2.0


def _key(name: str, url: str, **fields: Any) -> Key:
    source = Source(client="Test", scope="user", path="/test.json", key=name)
    return key_of(ServerSpec(name=name, transport="http", source=source, url=url, **fields))


KEY = _key("git hub", "https://user:word@H.example.test:443/mcp?key=1#f")
RECORD = TokenRecord(
    access_token="at-secret", refresh_token="rt-secret", scope="a b", renew_at=12.5
)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state" / "logins")


def test_a_key_is_the_name_the_origin_the_path_and_the_definition() -> None:
    assert (KEY.server, KEY.address) == ("git hub", "https://h.example.test/mcp")
    others = [
        _key("git hub", "https://h.example.test/mcp2"),
        _key("git hub", "http://h.example.test/mcp"),
        _key("git hub", "https://h.example.test:444/mcp"),
        _key("git", "https://h.example.test/mcp"),
        _key("git hub", "https://h.example.test/mcp", headers={"X-Other": "1"}),
    ]
    assert len({KEY.digest, *(key.digest for key in others)}) == 6
    one = _key("git", "https://h.example.test/mcp", headers={"X-Key": "1"})
    assert one == _key("git", "https://h.example.test/mcp", headers={"X-Key": "2"})


async def test_without_a_keyring_a_file_for_this_user_alone_has_it(store: TokenStore) -> None:
    store.path(KEY).parent.mkdir(parents=True, mode=0o755)
    place, notice = await store.save(KEY, RECORD)
    assert (place, notice) == ("file", "there is no keyring here")
    assert await store.load(KEY) == RECORD
    assert stat.S_IMODE(store.path(KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path(KEY).parent.stat().st_mode) == 0o700
    assert [p.name for p in store.path(KEY).parent.iterdir()] == [store.path(KEY).name]
    assert await store.remove(KEY)
    assert not await store.remove(KEY)
    assert await store.load(KEY) is None
    # The keyring that discards everything does not count either.
    keyring.set_keyring(null.Keyring())  # type: ignore[no-untyped-call]
    assert (await store.save(KEY, RECORD))[0] == "file"


async def test_with_a_keyring_the_file_has_no_secret(store: TokenStore, ring: Ring) -> None:
    assert await store.save(KEY, RECORD) == ("keyring", "")
    entry = f"git hub https://h.example.test/mcp {KEY.definition}"
    assert list(ring.kept) == [("mcp-code-bridge", entry)]
    assert "secret" not in store.path(KEY).read_text()
    assert await store.load(KEY) == RECORD
    assert await store.remove(KEY)
    assert ring.kept == {}
    assert await store.load(KEY) is None


@pytest.mark.parametrize(
    ("mood", "why"),
    [
        ("hangs", f"within {KEYRING_SECONDS:g} s"),
        ("raises", "ValueError"),
        ("forgets", "did not store"),
    ],
)
async def test_a_bad_keyring_is_not_used(tmp_path: Path, ring: Ring, mood: str, why: str) -> None:
    ring.mood = mood
    store = TokenStore(tmp_path, keyring_seconds=KEYRING_SECONDS)
    place, notice = await store.save(KEY, RECORD)
    assert place == "file"
    assert why in notice
    assert "secret" not in notice
    assert await store.load(KEY) == RECORD


async def test_a_keyring_that_hangs_is_asked_once(tmp_path: Path, ring: Ring) -> None:
    """Each request to each server asks, and would leave a thread behind."""
    store = TokenStore(tmp_path, keyring_seconds=KEYRING_SECONDS)
    await store.save(KEY, RECORD)
    ring.mood = "hangs"
    with pytest.raises(TokenStoreError, match="keyring, and it did not answer"):
        await store.load(KEY)
    with pytest.raises(TokenStoreError, match="keyring, and it has not finished"):
        await store.remove(KEY)
    for _ in range(20):
        with pytest.raises(TokenStoreError, match="keyring"):
            await store.load(KEY)
    assert len(pending) == 1
    ring.release.set()
    pending[0].exception(PATIENCE_SECONDS)
    assert await store.load(KEY) == RECORD


async def test_a_renewed_login_stays_where_it_was(store: TokenStore) -> None:
    """A bridge without the desktop's keyring would not find it there."""
    await store.save(KEY, RECORD)
    made = Ring()
    keyring.set_keyring(made)
    assert await store.save(KEY, RECORD) == ("file", "")
    assert made.kept == {}
    assert await store.save_in_keyring(KEY, RECORD) == ("keyring", "")
    assert "secret" not in store.path(KEY).read_text()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


SPOILS: dict[str, Callable[[Path], object]] = {
    "readable": lambda path: path.chmod(0o640),
    "a link": lambda path: path.symlink_to(path.rename(path.with_suffix(".real"))),
    "a pipe": replace_by_pipe,
    "foreign": lambda path: os.chown(path, 65534, -1),
    "renamed": lambda path: path.write_text(path.read_text().replace("git hub", "another")),
    "torn": lambda path: path.write_text(path.read_text()[:-9]),
}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_an_unsafe_file_is_not_used(store: TokenStore, spoil: str) -> None:
    if spoil == "foreign" and os.getuid() != 0:
        pytest.skip("only root can give files away")
    await store.save(KEY, RECORD)
    SPOILS[spoil](store.path(KEY))
    with anyio.fail_after(PATIENCE_SECONDS):
        with pytest.raises(TokenStoreError, match="is not used") as caught:
            await store.load(KEY)
    assert "secret" not in str(caught.value)
    await store.save(KEY, RECORD)
    assert await store.load(KEY) == RECORD
    assert not store.path(KEY).is_symlink()


async def test_a_directory_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "logins").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenStoreError, match="is a link or no directory"):
        await TokenStore(tmp_path / "logins").save(KEY, RECORD)


async def test_a_lock_keeps_everybody_else_out(store: TokenStore) -> None:
    order: list[str] = []
    entered = anyio.Event()

    async def second() -> None:
        await entered.wait()
        async with store.locked(KEY):
            order.append("second")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second)
        async with store.locked(KEY):
            entered.set()
            with anyio.move_on_after(0.15):
                await anyio.sleep_forever()
            order.append("first")
    assert order == ["first", "second"]
