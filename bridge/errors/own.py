"""The bridge could not do a part of its own: keep, find, open or fetch something."""

from __future__ import annotations

from bridge.errors.base import BridgeError


class SearchUnavailableError(BridgeError):
    """This Python has no SQLite, or one without full-text search."""

    code = "search_unavailable"
    default_remedy = (
        "Use a Python whose sqlite3 module has FTS5, as those of Debian, Homebrew, uv and "
        "python.org do; or list a server's tools instead."
    )

    def __init__(self) -> None:
        super().__init__("Tools cannot be searched: this Python's SQLite has no full-text search.")


class ArtifactStoreError(BridgeError):
    """What a run left cannot be kept: the disk is full, the directory cannot be written to."""

    code = "artifact_store"


class ArtifactQuotaError(ArtifactStoreError):
    """A run has left as much as it may, or its caller has more than a share of what there is."""

    code = "artifact_quota"


class SessionLimitError(BridgeError):
    """No further session can be opened."""

    code = "session_limit"


class OverloadedError(BridgeError):
    """As many runs as may be at once are under way, and no more may wait."""

    code = "overloaded"


class PackageUnavailableError(BridgeError):
    """A package that is allowed could not be had."""

    code = "package_unavailable"


class LibraryError(BridgeError):
    """A skill or a memory cannot be kept or read."""

    code = "library"
