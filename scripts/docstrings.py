"""Docstrings in Google form: their first paragraph, their prose, and the entries of a section."""

from __future__ import annotations

import inspect
import re


def summary(thing: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def prose(thing: object) -> str:
    """Return the paragraphs of a docstring that are before and between its sections."""
    parts = re.split(r"\n\n+", inspect.getdoc(thing) or "")
    return "\n\n".join(" ".join(part.split()) for part in parts if not _SECTION.match(part))


_SECTION = re.compile(r"[A-Z][a-z]+:\n")
_ENTRY = re.compile(r"^    ((?:[*.\w]+(?:, )?)+): ", re.MULTILINE)


def section(thing: object, title: str) -> dict[str, str]:
    """Return the entries of a docstring's section, such as "Attributes": name to text."""
    found: dict[str, str] = {}
    for part in re.split(r"\n\n+", inspect.getdoc(thing) or ""):
        if part.startswith(f"{title}:\n"):
            _, *pieces = _ENTRY.split(part)
            for names, text in zip(pieces[::2], pieces[1::2], strict=True):
                found.update(dict.fromkeys(names.split(", "), " ".join(text.split())))
    return found


def attributes(shape: type) -> dict[str, str]:
    """Return what is said of a dataclass's fields, those that it inherits included."""
    found: dict[str, str] = {}
    for each in reversed(shape.__mro__):
        found.update(section(each, "Attributes") if each.__doc__ else {})
    return found
