"""Text that every client can take.

Owns the one repair that text from elsewhere needs before it goes into JSON or onto a terminal.
"""

from __future__ import annotations


def valid_text(text: str) -> str:
    """Return `text` with each lone surrogate written out as `\\udc80`; the rest is unchanged."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # A surrogate pair is one character that was split; only what stays single is written out.
        joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return joined.encode("utf-8", "backslashreplace").decode()
    return text
