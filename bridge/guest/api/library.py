"""The helpers of `runtime` for skills, memories, earlier output and progress.

Helpers for skills and memories are plain functions that block the thread. The guest removes an
`await` before them (see `strip_await`).
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from bridge.guest.api.values import MCPError, to_json
from bridge.guest.protocol.placeholders import Unknown
from bridge.guest.protocol.wire import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Tuple

    from bridge.guest.api.client import ChannelClient

_RUNS = "bridge://runs/"


class _Pace:
    """The time of the next progress report, and the last report that was not sent."""

    due = 0.0
    unsent: Optional[Tuple[float, float, Any]] = None


class Library:
    _client: ChannelClient

    def save_memory(self, key: str, value: Any, metadata: Any = None) -> str:
        """Store a JSON value under a key for later runs."""
        self._save(key, value, metadata)
        return "Memory %r saved." % key

    def load_memory(self, key: str, default: Any = None) -> Any:
        """Return the stored value of a key, or `default`."""
        found = self._load(key)
        return default if found is None else found["value"]

    def delete_memory(self, key: str) -> str:
        """Delete a key and its value."""
        there = self._ask("delete_memory", {"key": text("key", key)})
        return "Memory %r %s." % (key, "deleted" if there else "not found")

    def list_memories(self) -> List[Dict[str, Any]]:
        """Return every key, with metadata, created_at and updated_at."""
        found: List[Dict[str, Any]] = self._ask("list_memories", {})
        return found

    def update_memory(self, key: str, update_fn: Any) -> Any:
        """Store and return `update_fn(value)`, where `value` is the stored one or None.

        If another run changes the value meanwhile, `update_fn` is called again with the new value.
        """
        if not callable(update_fn):
            message = "update_fn must be a function of the old value, not %s"
            raise TypeError(message % type(update_fn).__name__)
        for _ in range(20):
            found = self._load(key)
            value = update_fn(None if found is None else found["value"])
            if hasattr(value, "__await__"):
                getattr(value, "close", bool)()
                raise TypeError("update_fn must be a plain function, and not an async one")
            if self._save(key, value, None, "" if found is None else found["revision"]):
                return value
        raise MCPError("memory %r was changed by others 20 times" % key, kind="limit")

    def memory_exists(self, key: str) -> bool:
        """Return whether a key has a stored value."""
        return self._load(key) is not None

    def get_memory_info(self, key: str) -> Optional[Dict[str, Any]]:
        """Return key, value, metadata, created_at and updated_at; None for an unknown key."""
        found: Optional[Dict[str, Any]] = self._load(key)
        if found is not None:
            found.pop("revision", None)
        return found

    def _load(self, key: str) -> Any:
        return self._ask("load_memory", {"key": text("key", key)})

    def _save(self, key: str, value: Any, metadata: Any, revision: Optional[str] = None) -> bool:
        params: Dict[str, Any] = {
            "key": text("key", key),
            "value": to_json(value, "the value of memory %r" % key),
        }
        if metadata is not None:
            params["metadata"] = to_json(metadata, "the metadata of memory %r" % key)
        if revision is not None:
            params["revision"] = revision
        return bool(self._ask("save_memory", params))

    def save_skill(
        self, function: Any, description: Optional[str] = None, name: Optional[str] = None
    ) -> Any:
        """Save a function for later runs, which import it with `from skills import name`.

        Args:
            function: A function, or its source as text.
            description: Its purpose; the docstring by default.
            name: The function's own name by default.

        Raises:
            MCPError: The bridge refused the skill.
            TypeError: It uses a value that cannot be saved; the message names the value.
        """
        from bridge.guest.api.skill_source import collect

        if name is not None:
            text("name", name)
        params: Dict[str, Any] = collect(function, name)
        if description is not None:
            params["description"] = text("description", description)
        return self._ask("save_skill", params)

    save_tool = save_skill

    def list_skills(self) -> List[Dict[str, Any]]:
        """Return the saved skills: name, description, signature, tools, stale and so on."""
        found: List[Dict[str, Any]] = self._ask("list_skills", {})
        return found

    def load_skill(self, name: str) -> Any:
        """Return a skill's function, as `from skills import name` does."""
        from bridge.guest.api.skill_modules import load

        return load(text("name", name))

    def delete_skill(self, name: str) -> str:
        """Remove a skill; its saved versions stay as files."""
        there = self._ask("delete_skill", {"name": text("name", name)})
        return "Skill %r %s." % (name, "deleted" if there else "not found")

    def _ask(self, method: str, params: Dict[str, Any]) -> Any:
        return self._client.call_and_wait(method, params, method)

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
        """Return output of an earlier run as text, including the part that its result left out.

        Args:
            run_id: The run's id, or the `bridge://runs/...` address of its output.
            stream: "stdout", "stderr", or "result" for a value that was not delivered.
            offset, length: A part, in bytes; a negative offset counts from the end.
            lines: First and last line, from 1: `lines=(100, 200)`.
            find: Return the lines that contain this text, as (number, line).
            limit: The most lines that `find` returns.
        """
        run_id = text("run_id", run_id)
        if run_id.startswith(_RUNS):
            run_id, _, named = run_id[len(_RUNS) :].partition("?")[0].partition("/")
            stream = named or stream
        params: Dict[str, Any] = {"run_id": run_id, "stream": text("stream", stream)}
        params.update(offset=offset, length=length, lines=lines, find=find, limit=limit)
        params = to_json(params, "read_output")
        found = await self._client.call("read_output", params, "read_output")
        return [(number, line) for number, line in found] if find is not None else found

    def progress(self, done: float, total: float = 0, message: str = "") -> None:
        """Report progress: `progress(3, 10, "loading")`.

        At most ten reports a second are sent, and the last one always is.

        Args:
            total: The final value of `done`; 0 if unknown.
        """
        if not (_is_number(done) and _is_number(total)):
            raise TypeError(
                "done and total must be finite numbers, not %.40s and %.40s; write "
                'runtime.progress(3, 10, "loading")' % (repr(done), repr(total))
            )
        now = monotonic()
        if now < _Pace.due:
            _Pace.unsent = (done, total, message)
            return
        _Pace.due = now + 0.1
        _Pace.unsent = None
        _send(self._client, done, total, message)


def conclude(client: ChannelClient) -> None:
    """Send the last report if it is unsent."""
    unsent, _Pace.unsent = _Pace.unsent, None
    if unsent is not None:
        _send(client, *unsent)


def _send(client: ChannelClient, done: float, total: float, message: Any) -> None:
    # If the host is gone, the next call raises.
    with suppress(MCPError):
        client.tell(Progress(float(done), float(total), str(message)[:200]))


def _is_number(value: Any) -> bool:
    try:
        # Other kinds, such as numpy's, are converted.
        number = value if type(value) is int or type(value) is float else float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return not isinstance(value, str) and -1e300 < number < 1e300


def text(name: str, value: Any) -> str:
    """Return `value` if it is a non-blank string, else raise."""
    if isinstance(value, Unknown):
        from bridge.guest.api.held_results import stop

        stop(value, "names what it asks for (%s) by" % name)
    if not isinstance(value, str):
        raise TypeError("%s must be a string, not %s" % (name, type(value).__name__))
    if not value.strip():
        raise ValueError("%s is empty" % name)
    return value
