"""The arguments of `run_python` about sessions, files and packages. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from bridge.engine.input_files import MAX_FILES
from bridge.errors import InvalidRequestError
from bridge.model import InputFile, Json

MAX_DATA_CHARS = 48 * 1024 * 1024
"""Of base64: what 32 MiB take, with ends of lines. Decoding more would only hold everybody up."""

MAX_NAME_CHARS = 1024
"""Of a file. Where it is put, less may be allowed."""

MAX_PACKAGES = 100
MAX_PACKAGE_CHARS = 500
"""Of one requirement; more is a mistake."""

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def parse_session(given: Mapping[str, Json]) -> tuple[str, bool]:
    """Return the session's name or id, empty for none, and whether it is to end.

    Raises:
        InvalidRequestError: They are unusable; the text says what to pass instead.
    """
    session, ends = given.get("session"), given.get("end_session")
    if ends is not None and not isinstance(ends, bool):
        message = "`end_session` must be true or false."
        raise InvalidRequestError(message)
    if session is None:
        if ends:
            message = "`end_session` needs `session`: the session to end."
            raise InvalidRequestError(message)
        return "", False
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        message = (
            "`session` must be a name of up to 64 letters, digits, dots, dashes and underscores, "
            f'such as "analysis", not {session!r:.80}.'
        )
        raise InvalidRequestError(message)
    return session, bool(ends)


def parse_files(value: Json) -> tuple[InputFile, ...]:
    """Return the files. Whether they can be taken, is for the engine to see.

    Raises:
        InvalidRequestError: They are unusable; the text says what to pass instead.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        message = '`files` must be a list such as [{"name": "data.csv", "text": "a,b"}]'
        message += f", not {kind_of(value)}."
        raise InvalidRequestError(message)
    if len(value) > MAX_FILES:
        message = f"There are {len(value):,} files; a run takes {MAX_FILES}."
        raise InvalidRequestError(message, remedy="Send an archive, and unpack it in the program.")
    return tuple(_file(item) for item in value)


_CONTENTS = ("text", "data", "uri")


def _file(given: Mapping[str, Json]) -> InputFile:
    unknown = sorted(given.keys() - {"name", *_CONTENTS})
    if unknown:
        message = f"A file has no {unknown[0]!r:.80}: give `name`, and `text`, `data` or `uri`."
        raise InvalidRequestError(message)
    name, kinds = given.get("name"), [key for key in _CONTENTS if given.get(key) is not None]
    if isinstance(name, str) and len(kinds) == 1 and not isinstance(given[kinds[0]], str):
        found = kind_of(given[kinds[0]])
        message = f"`{kinds[0]}` of file {name!r:.80} must be a string, not {found}."
        remedy = "Give JSON as text, as json.dumps writes it." if kinds == ["text"] else None
        raise InvalidRequestError(message, remedy=remedy)
    if not isinstance(name, str) or len(kinds) != 1:
        message = "Each of `files` needs a `name` and one of `text`, `data` (base64) and `uri`."
        raise InvalidRequestError(message)
    if len(name) > MAX_NAME_CHARS:
        message = f"The name of file {name!r:.80} has {len(name):,} characters; "
        message += f"the limit is {MAX_NAME_CHARS:,}."
        raise InvalidRequestError(message)
    content: str = given[kinds[0]]
    if kinds == ["uri"]:
        return InputFile(name=name, uri=content)
    if kinds == ["text"]:
        return InputFile(name=name, data=_encoded(name, content))
    if len(content) > MAX_DATA_CHARS:
        message = (
            f"`data` of file {name!r:.80} is more than a run takes: {len(content):,} characters."
        )
        raise InvalidRequestError(message, remedy="Have the program fetch it with tool calls.")
    try:
        return InputFile(name=name, data=_decoded(content))
    except (binascii.Error, ValueError):
        address = content.startswith("data:")
        remedy = "Give a data: address as `uri`." if address else "Give text as `text`."
        message = f"`data` of file {name!r:.80} is not base64."
        raise InvalidRequestError(message, remedy=remedy) from None


def _decoded(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        # Many tools break it into lines.
        return base64.b64decode("".join(content.split()), validate=True)


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"`text` of file {name!r:.80} is no text at character {error.start:,}."
        remedy = "Give bytes as `data`, in base64."
        raise InvalidRequestError(message, remedy=remedy) from None


def parse_packages(value: Json) -> tuple[str, ...]:
    """Return the requirements.

    Raises:
        InvalidRequestError: They are unusable; the text says what to pass instead.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        message = '`packages` must be a list of requirements such as ["polars==1.*"]'
        message += f", not {kind_of(value)}."
        raise InvalidRequestError(message)
    if len(value) > MAX_PACKAGES or any(len(item) > MAX_PACKAGE_CHARS for item in value):
        message = f"`packages` takes {MAX_PACKAGES} requirements of {MAX_PACKAGE_CHARS} characters."
        raise InvalidRequestError(message)
    return tuple(item.strip() for item in value)


def kind_of(value: Json) -> str:
    """Return what a value is, in words."""
    if isinstance(value, list):
        odd = next((item for item in value if not isinstance(item, str)), None)
        return "a list" if odd is None else f"a list with {kind_of(odd)} in it"
    names = {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), f"the number {value!r:.40}")
