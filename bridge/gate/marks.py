"""Puts secrets back in place of the marks that replaced them, for the servers that returned them.

Owns which text each mark replaced in what a server returned to one caller's programs. A mark that
cannot be replaced by exactly that text refuses the call. `bridge.gate.redaction` makes the marks.
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

from bridge.errors import CallDeniedError, InvalidRequestError
from bridge.gate.redaction import MARK, Redactor
from bridge.guest.protocol import json_text
from bridge.model import Json

Replaced = dict[str, dict[str, set[str]]]
"""The texts that each mark replaced, by server; what only reads like a mark replaced itself."""

_READ_AGAIN = (
    "Only the server that returned a secret gets it back. Read the text from that server again, or "
    "leave the secret out and let the user put it in."
)
_PASS_WHOLE = (
    "Pass each mark on whole, as plain text and with nothing joined to it, or use a tool that "
    "changes a part of the text in place."
)


_as_json = json_text.encoder(allow_nan=True)


class Marks:
    """The marks in what servers returned to one run.

    Args:
        replaced: Of all runs of the same caller; changed here.

    Attributes:
        names: Of the secrets that were taken out in this run, in their order.
    """

    def __init__(self, redactor: Redactor | None = None, replaced: Replaced | None = None) -> None:
        self._redactor = redactor or Redactor()
        self._replaced: Replaced = {} if replaced is None else replaced
        self.names: dict[str, None] = {}

    def of(self, server: str) -> Redactor:
        """Return the redactor of what a server returns; "" for what the program says itself."""
        return self._redactor.noting(partial(self._note, server))

    def _note(self, server: str, mark: str, text: str) -> None:
        if mark not in self._redactor.marks:
            return
        if text != mark:
            self.names[self._redactor.marks[mark]] = None
        texts = self._replaced.setdefault(server, {}).setdefault(mark, set())
        # Two are as uncertain as any more.
        if server and len(texts) < 2:
            texts.add(text)

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with secrets in place of marks; the same object if there are none.

        Raises:
            CallDeniedError: A mark stands for nothing that this server returned, or was changed.
            InvalidRequestError: The arguments are nested too deeply.
        """
        try:
            line = _as_json(arguments).encode("utf-8", "surrogatepass")
        except RecursionError:
            raise InvalidRequestError("The arguments are nested too deeply.") from None
        parts, kept = [], 0
        for start, end, mark in self._redactor.find_marks(line):
            shown, like = repr(line[start:end].decode()[:120]), MARK.match(line, start)
            if line[start:end] != mark:
                if like and like[0].decode() not in self._redactor.marks:
                    # Some other text: the bridge has no secret of this name.
                    continue
                raise _denied(f"An argument has a part of a mark, {shown}", _PASS_WHOLE)
            texts = self._replaced.get(server, {}).get(mark.decode(), set())
            if len(texts) != 1:
                why = "several texts" if texts else "a secret that this server did not return"
                message = f"{shown} stands for {why} in what {server!r} said to this caller"
                raise _denied(message, _PASS_WHOLE if texts else _READ_AGAIN)
            text = _as_json(*texts)[1:-1].encode("utf-8", "surrogatepass")
            parts += [line[kept:start], text]
            kept = end
        if not parts:
            return arguments
        filled = b"".join([*parts, line[kept:]])
        with suppress(ValueError):
            if self._redactor.frame(filled) == self._redactor.frame(line):
                revealed: dict[str, Json] = json.loads(filled.decode("utf-8", "surrogatepass"))
                if not any(
                    _is_json(arguments.get(key)) > _is_json(revealed[key]) for key in revealed
                ):
                    return revealed
                raise _denied("A mark stands in JSON, where its secret needs escapes", _PASS_WHOLE)
        raise _denied("A secret would not be recognised where its mark stands", _PASS_WHOLE)


def _denied(message: str, remedy: str) -> CallDeniedError:
    return CallDeniedError(f"The call was not made. {message}.", remedy=remedy)


def _is_json(text: Json) -> bool:
    with suppress(ValueError, RecursionError):
        return isinstance(text, str) and text.lstrip()[:1] in ("{", "[") and bool(json.loads(text))
    return False
