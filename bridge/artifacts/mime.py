"""The type of content, by its first bytes and its name. Pure.

Content counts for more than a claim: only content with a signature gets that signature's type, and
executable content never gets another type.
"""

from __future__ import annotations

import codecs
import mimetypes
import re

HEAD = 4096  # Bytes that are looked at.

TEXT = "text/plain"

_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"PK\x05\x06", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"PAR1", "application/vnd.apache.parquet"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"\x7fELF", "application/x-executable"),
    (b"MZ", "application/x-msdownload"),
    (b"\xfe\xed\xfa\xce", "application/x-mach-binary"),
    (b"\xfe\xed\xfa\xcf", "application/x-mach-binary"),
    (b"\xce\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xcf\xfa\xed\xfe", "application/x-mach-binary"),
    (b"\xca\xfe\xba\xbe", "application/x-mach-binary"),
    (b"#!", "text/x-script"),
)

_SIGNED = frozenset(kind for _, kind in _SIGNATURES) | {"image/webp"}
"""Types that only content with their signature gets."""

_ACTIVE = frozenset({
    "application/java-archive", "application/javascript", "application/x-bat", "application/x-csh",
    "application/x-sh", "application/xhtml+xml", "image/svg+xml", "text/html", "text/javascript",
})  # fmt: skip
"""Types whose content may run when it is opened: given by the name, and not by a claim."""

_TEXTS = re.compile(
    r"text/.*|application/(.*\+)?(json|xml|yaml|toml|sql|javascript|x-ndjson|x-sh|x-csh|x-bat|x-tex)"
    r"|application/x-python(-code)?|image/svg\+xml"
)

_MORE = {
    ".csv": "text/csv", ".geojson": "application/geo+json", ".ipynb": "application/x-ipynb+json",
    ".jsonl": "application/x-ndjson", ".log": TEXT, ".md": "text/markdown",
    ".ndjson": "application/x-ndjson", ".parquet": "application/vnd.apache.parquet",
    ".sql": "application/sql", ".toml": "application/toml", ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".yaml": "application/yaml", ".yml": "application/yaml",
}  # fmt: skip

_ZIPPED = re.compile(
    r"application/(vnd\.openxmlformats-officedocument\..+|vnd\.oasis\.opendocument\..+"
    r"|epub\+zip|zip)"
)

# With none of the system's own tables: the same name has the same type on every machine.
_by_name = mimetypes.MimeTypes(filenames=())

_CLAIM = re.compile(r"[a-z0-9][a-z0-9.+-]{0,48}/[a-z0-9][a-z0-9.+-]{0,48}")


def is_text(mime_type: str) -> bool:
    return _TEXTS.fullmatch(mime_type) is not None


def _type_by_name(name: str) -> str:
    end = name[name.rfind(".") :].lower() if "." in name else ""
    # Only the suffix: the beginning might be read as the scheme of an address.
    found, encoding = _by_name.guess_type("file" + end)
    return _MORE.get(end) or (found if found and encoding is None else "")


def mime_type(name: str, head: bytes, claimed: str = "") -> str:
    """Return the type of content that begins with `head`, of `HEAD` bytes."""
    head = head[:HEAD]
    named = _type_by_name(name)
    signed = next((kind for start, kind in _SIGNATURES if head.startswith(start)), "")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        signed = "image/webp"
    if signed == "application/zip" and _ZIPPED.fullmatch(named):
        return named
    if signed and signed != "text/x-script":
        return signed
    claimed = claimed.lower()
    if not _CLAIM.fullmatch(claimed) or claimed in _ACTIVE:
        claimed = ""
    guesses = [guess for guess in (claimed, named) if guess and guess not in _SIGNED]
    if not _looks_like_text(head):
        return next((guess for guess in guesses if not is_text(guess)), "application/octet-stream")
    if signed:
        return named if named.startswith("text/x-") else signed
    if _looks_like_svg(head):
        return "image/svg+xml"
    return next((guess for guess in guesses if is_text(guess) and guess != "image/svg+xml"), TEXT)


def _looks_like_text(head: bytes) -> bool:
    try:
        # Without an end: the last character may have been cut.
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False


def _looks_like_svg(head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1024].lower()
    if start.startswith(b"<svg"):
        return True
    return start.startswith((b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in start
