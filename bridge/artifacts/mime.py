"""What kind of content something is, by its first bytes and its name. Pure.

Owns the rule that the content counts for more than a claim: a type that has a signature is given
only to content with that signature, and executable content never gets another type.
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
"""Types that nothing without their signature is."""

_ACTIVE = frozenset({
    "application/java-archive", "application/javascript", "application/x-bat", "application/x-csh",
    "application/x-sh", "application/xhtml+xml", "image/svg+xml", "text/html", "text/javascript",
})  # fmt: skip
"""Types whose content is run or obeyed by what opens it: for the name to tell, not for a claim."""

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


def type_by_name(name: str) -> str:
    """Return the type for a name's suffix; empty if there is none."""
    end = name[name.rfind(".") :].lower() if "." in name else ""
    if end in _MORE:
        return _MORE[end]
    # Without what stands before the name: it might be read as the scheme of an address.
    found, encoding = _by_name.guess_type("file" + end)
    if encoding is not None:
        return ""
    return found or ""


def mime_type(name: str, head: bytes, claimed: str = "") -> str:
    """Return the type of content that begins with `head`, of `HEAD` bytes."""
    head = head[:HEAD]
    named = type_by_name(name)
    signed = _signed(head)
    if signed == "application/zip" and _ZIPPED.fullmatch(named):
        return named
    if signed and signed != "text/x-script":
        return signed
    claimed = claimed.lower()
    if not _CLAIM.fullmatch(claimed) or claimed in _ACTIVE:
        claimed = ""
    guesses = [guess for guess in (claimed, named) if guess and guess not in _SIGNED]
    if not looks_like_text(head):
        return next((guess for guess in guesses if not is_text(guess)), "application/octet-stream")
    if signed:
        return named if named.startswith("text/x-") else signed
    if _looks_like_svg(head):
        return "image/svg+xml"
    return next((guess for guess in guesses if is_text(guess) and guess != "image/svg+xml"), TEXT)


def _signed(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES if head.startswith(start)), "")


def looks_like_text(head: bytes) -> bool:
    """Return whether content begins as UTF-8 text; empty content is text."""
    if b"\0" in head:
        return False
    try:
        # Without an end: the last character may have been cut.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def _looks_like_svg(head: bytes) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1024].lower()
    if start.startswith(b"<svg"):
        return True
    return start.startswith((b"<?xml", b"<!doctype svg", b"<!--")) and b"<svg" in start
