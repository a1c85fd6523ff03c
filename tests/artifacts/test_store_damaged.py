"""What somebody else did to the files of a store: damaged, removed or replaced by links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bridge.errors import ArtifactStoreError, UnknownArtifactError
from tests.artifacts.rig import (
    OTHER_RUN,
    RUN,
    check,
    store,
)


def test_a_damaged_content_is_refused_with_a_reason_and_put_right_by_the_next(
    tmp_path: Path,
) -> None:
    kept = store(tmp_path)
    artifact = kept.of_run("me", RUN).add("x", b"good")
    path = tmp_path / "blobs" / artifact.digest[:2] / artifact.digest
    for damage in (b"evil", b"longer", b""):
        path.write_bytes(damage)
        with pytest.raises(ArtifactStoreError, match=f"{artifact.uri} is damaged") as refused:
            kept.read("me", artifact.uri)
        assert refused.value.code == "artifact_store"
    again = kept.of_run("me", OTHER_RUN).add("y", b"good")
    assert kept.read("me", artifact.uri) == kept.read("me", again.uri) == b"good"


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"name": 1, "type": "", "size": 0}', b"[" * 16_000]
)
def test_an_entry_that_cannot_be_read_is_left_out_and_hinders_nothing(
    tmp_path: Path, text: bytes
) -> None:
    kept = store(tmp_path)
    bad, good = (kept.of_run("me", RUN).add(name, name.encode()) for name in ("bad", "good"))
    (entry,) = (tmp_path / "owners").glob(f"*/*{bad.digest}")
    entry.write_bytes(text)
    assert kept.listed("me") == (good,)
    with pytest.raises(UnknownArtifactError):
        kept.find("me", bad.uri)
    assert kept.tidy() == 0


def test_a_content_that_is_gone_takes_its_entry_with_it(tmp_path: Path) -> None:
    kept = store(tmp_path)
    artifact = kept.of_run("me", RUN).add("x", b"x")
    (tmp_path / "blobs" / artifact.digest[:2] / artifact.digest).unlink()
    with pytest.raises(UnknownArtifactError):
        kept.read("me", artifact.uri)
    assert kept.tidy() == 1
    check(tmp_path)


def test_everything_is_this_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "new" / "artifacts"
    kept = store(root)
    before = os.umask(0)
    try:
        kept.of_run("me", RUN).add("x", b"x")
        kept.tidy()
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    # Had it been open to others, it is not any more.
    root.chmod(0o755)
    assert len(kept.listed("me")) == 1
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["", "owners", "blobs", "writing", "lock", "totals"])
def test_nothing_is_reached_through_a_link(tmp_path: Path, name: str) -> None:
    """Nor made there: whoever plants one gets nothing written where it points."""
    root, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere if name in ("", "owners", "blobs", "writing") else elsewhere / "file"
    if name:
        root.mkdir()
        (root / name).symlink_to(target)
    else:
        root.symlink_to(target)
    kept = store(root)
    with pytest.raises(ArtifactStoreError) as refused:
        kept.of_run("me", RUN).add("x", b"x")
    assert str(root) in refused.value.host_detail
    assert str(root) not in refused.value.message
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_a_content_or_an_entry_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    kept = store(root)
    artifact = kept.of_run("me", RUN).add("x", b"secret")
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    content = root / "blobs" / artifact.digest[:2] / artifact.digest
    content.unlink()
    content.symlink_to(secret)
    with pytest.raises(ArtifactStoreError):
        kept.read("me", artifact.uri)
    (entry,) = (root / "owners").glob("*/*")
    description = entry.read_bytes()
    entry.unlink()
    (tmp_path / "entry").write_bytes(description)
    entry.symlink_to(tmp_path / "entry")
    assert kept.listed("me") == ()
    # Tidying takes the links away, and nothing that they point to.
    (root / "writing" / "link").symlink_to(secret)
    os.mkfifo(root / "writing" / "fifo")
    assert kept.tidy() == 3
    assert secret.read_bytes() == b"secret"
    assert (tmp_path / "entry").exists()
    check(root)
