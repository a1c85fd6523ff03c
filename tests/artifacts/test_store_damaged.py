"""What somebody else did to the files of a store: damaged, removed or replaced by links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bridge.artifacts.store import RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.store import StoreError
from bridge.store.blobs import OpenBlob
from tests.artifacts.rig import OTHER_RUN, RUN, check, store
from tests.raised import raises_code


def test_a_damaged_content_is_refused_with_a_reason_and_put_right_by_the_next(
    tmp_path: Path,
) -> None:
    kept = store(tmp_path)
    artifact = RunArtifacts(kept, "me", RUN).add("x", b"good")
    path = tmp_path / "blobs" / artifact.digest[:2] / artifact.digest
    for damage in (b"evil", b"longer", b""):
        path.write_bytes(damage)
        with pytest.raises(ArtifactStoreError, match=f"{artifact.uri} is damaged") as refused:
            kept.read("me", artifact.uri)
        assert refused.value.code == "artifact_store"
    again = RunArtifacts(kept, "me", OTHER_RUN).add("y", b"good")
    assert kept.read("me", artifact.uri) == kept.read("me", again.uri) == b"good"


def test_a_content_that_is_gone_takes_its_entry_with_it(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifact = RunArtifacts(kept, "me", RUN).add("x", b"x")
    (tmp_path / "blobs" / artifact.digest[:2] / artifact.digest).unlink()
    with raises_code("unknown_artifact"):
        kept.read("me", artifact.uri)
    assert kept.tidy() == 1
    check(tmp_path)


def test_a_content_that_cannot_be_looked_for_keeps_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a database has no connection left: one that came meanwhile is not gone."""
    kept = store(tmp_path)
    artifact = RunArtifacts(kept, "me", RUN).add("x", b"x")

    def refuse(digest: str) -> OpenBlob:
        raise StoreError(errno.EBUSY, "all connections to the database are in use")

    with monkeypatch.context() as busy:
        busy.setattr(kept.blobs, "all", set)
        busy.setattr(kept.blobs, "open", refuse)
        with pytest.raises(ArtifactStoreError, match="are in use"):
            kept.tidy()
    assert kept.read("me", artifact.uri) == b"x"


@pytest.mark.guarantee("kept-apart")
@pytest.mark.parametrize("name", ["", "blobs", "blobs/writing", "store.db"])
def test_nothing_is_reached_through_a_link(tmp_path: Path, name: str) -> None:
    """Nor is anything made there: a planted link gets nothing written where it points."""
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere / "file" if name == "store.db" else elsewhere
    (root / name).parent.mkdir(exist_ok=True, parents=True)
    (root / name).symlink_to(target)
    kept = store(root)
    if not name:
        # The state directory itself may be wherever its user has put it.
        assert RunArtifacts(kept, "me", RUN).add("x", b"x").size == 1
        return
    with pytest.raises(ArtifactStoreError) as refused:
        RunArtifacts(kept, "me", RUN).add("x", b"x")
    assert str(root) in refused.value.host_detail
    assert str(root) not in refused.value.message
    assert list(elsewhere.iterdir()) == []


@pytest.mark.guarantee("kept-apart")
def test_a_link_in_place_of_a_content_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    kept = store(root)
    artifact = RunArtifacts(kept, "me", RUN).add("x", b"secret")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    content = root / "blobs" / artifact.digest[:2] / artifact.digest
    content.unlink()
    content.symlink_to(secret)
    with pytest.raises(ArtifactStoreError):
        kept.read("me", artifact.uri)
    # Tidying takes the links away, and nothing that they point to.
    (root / "blobs" / "writing" / "link").symlink_to(secret)
    os.mkfifo(root / "blobs" / "writing" / "fifo")
    assert kept.tidy() == 3
    assert secret.read_bytes() == b"secret"
    check(root)
