"""What programs ask about outputs: those of earlier runs, and how far they are themselves."""

from __future__ import annotations

from time import monotonic

from bridge.guest.checks import text as _text
from bridge.guest.values import MCPError
from bridge.guest.wire import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Tuple

    from bridge.guest.client import Client

REPORT_SECONDS = 0.1
"""Between reports that are sent. A loop may report each of a million turns."""

MAX_MESSAGE = 200
"""Characters of a report's message; what is longer is cut."""

_MOST = 1e300
"""Of a number in a report, so that none is infinite and none too large for the channel."""

_RUNS = "bridge://runs/"


class _Pace:
    """When the next report is due, and the last one that was not sent."""

    due = 0.0
    unsent: Optional[Tuple[float, float, Any]] = None


class Outputs:
    """The helpers of `runtime` for that."""

    _client: Client

    async def read_output(
        self,
        run_id: str,
        stream: str = "stdout",
        *,
        offset: int = 0,
        length: Optional[int] = None,
        lines: Any = None,
        find: Any = None,
        limit: int = 100,
    ) -> Any:
        """Return what an earlier run wrote, as text: what its result said is kept as a whole.

        Args:
            run_id: The run's id, or the `bridge://runs/...` address of its output.
            stream: "stdout" or "stderr".
            offset, length: A part, in bytes; a negative offset counts from the end.
            lines: First and last line, from 1: `lines=(100, 200)`.
            find: Return the lines with this text instead, each as (number, line), first ones first.
            limit: The most lines that `find` returns.

        Raises:
            MCPError: Nothing is kept of that run.
        """
        run_id = _text("run_id", run_id)
        if run_id.startswith(_RUNS):
            run_id, _, named = run_id[len(_RUNS) :].partition("?")[0].partition("/")
            stream = named or stream
        params: Dict[str, Any] = {"run_id": run_id, "stream": _text("stream", stream)}
        if find is not None:
            # A space is a text, too.
            if not (isinstance(find, str) and find):
                raise TypeError("find must be a text that is not empty, not %r" % (find,))
            params["find"] = find
            params["limit"] = _whole("limit", limit, 1)
        if lines is not None:
            if not isinstance(lines, (list, tuple)) or len(lines) != 2:
                message = "lines must be the first and the last line, such as (100, 200), not %r"
                raise TypeError(message % (lines,))
            first, last = (_whole("lines", line, None) for line in lines)
            if first < 1 or last < 1:
                message = "lines are counted from 1, not %r; offset=-1000 is the end, in bytes"
                raise ValueError(message % (tuple(lines),))
            if last < first:
                message = "lines %r: the first line comes first: (%d, %d)"
                raise ValueError(message % (tuple(lines), last, first))
            params["lines"] = [first, last]
        params["offset"] = _whole("offset", offset, None)
        if length is not None:
            params["length"] = _whole("length", length, 0)
        found = await self._client.call("read_output", params, "read_output")
        return [(number, line) for number, line in found] if find is not None else found

    def progress(self, done: float, total: float = 0, message: str = "") -> None:
        """Tell whoever waits how far the program is: `progress(3, 10, "loading")`.

        It may be called as often as one likes: some ten a second are passed on, and the last.

        Args:
            total: What `done` will be at the end; 0 if that is not known.
        """
        if not (_is_number(done) and _is_number(total)):
            message = (
                "done and total must be finite numbers, not %.40s and %.40s; write "
                'runtime.progress(3, 10, "loading")'
            )
            raise TypeError(message % (repr(done), repr(total)))
        now = monotonic()
        if now < _Pace.due:
            _Pace.unsent = (done, total, message)
            return
        _Pace.due = now + REPORT_SECONDS
        _Pace.unsent = None
        _send(self._client, done, total, message)


def conclude(client: Client) -> None:
    """Send the last report, if it has not been sent."""
    unsent, _Pace.unsent = _Pace.unsent, None
    if unsent is not None:
        _send(client, *unsent)


def _send(client: Client, done: float, total: float, message: Any) -> None:
    try:
        client.tell(Progress(float(done), float(total), str(message)[:MAX_MESSAGE]))
    except MCPError:
        # Nobody waits any more, which the next call will say.
        return


def _is_number(value: Any) -> bool:
    try:
        # By far most are; other kinds, such as numpy's, are asked for a number.
        number = value if type(value) is int or type(value) is float else float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, str) and -_MOST < number < _MOST


def _whole(name: str, value: Any, least: Optional[int]) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError("%s must be a whole number, not %s" % (name, type(value).__name__))
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError("%s must be at least %d, not %d" % (name, least, number))
    if abs(number) >= 2**53:
        raise ValueError("%s is too large: %d" % (name, number))
    return number
