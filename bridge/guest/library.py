"""What programs keep for later programs: skills and memories.

Owns the helpers' names and argument checks; what is kept is the host's business. All of them are
plain functions, which keep the thread waiting; `spare` has programs that await them do so.
"""

from __future__ import annotations

from bridge.guest.checks import text
from bridge.guest.values import MCPError, to_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from bridge.guest.client import Client

MEMORIES = (
    "delete_memory",
    "get_memory_info",
    "list_memories",
    "load_memory",
    "memory_exists",
    "save_memory",
    "update_memory",
)
"""Also names of every program."""

SKILLS = ("delete_skill", "list_skills", "load_skill", "save_skill", "save_tool")

MAX_TRIES = 20
"""Of one update: each time somebody else was quicker."""


class Library:
    """The helpers of `runtime` for that."""

    _client: Client

    # --- memories -------------------------------------------------------------------------------

    def save_memory(self, key: str, value: Any, metadata: Any = None) -> str:
        """Remember a value for later runs: anything that JSON can hold.

        Raises:
            MCPError: It is too large, or may not be kept.
            TypeError: JSON cannot hold it.
        """
        self._save(key, value, metadata)
        return "Memory %r saved." % key

    def load_memory(self, key: str, default: Any = None) -> Any:
        """Return what is remembered under a key, or `default`."""
        found = self._load(key)
        return default if found is None else found["value"]

    def delete_memory(self, key: str) -> str:
        """Forget what is remembered under a key."""
        there = self._ask("delete_memory", {"key": text("key", key)})
        return "Memory %r %s." % (key, "deleted" if there else "not found")

    def list_memories(self) -> List[Dict[str, Any]]:
        """Return every key, with metadata, created_at and updated_at."""
        found: List[Dict[str, Any]] = self._ask("list_memories", {})
        return found

    def update_memory(self, key: str, update_fn: Any) -> Any:
        """Remember what `update_fn` makes of what is remembered, None at first; return that.

        Should somebody else change it meanwhile, `update_fn` is called again with that.
        """
        if not callable(update_fn):
            message = "update_fn must be a function of the old value, not %s"
            raise TypeError(message % type(update_fn).__name__)
        for _ in range(MAX_TRIES):
            found = self._load(key)
            value = update_fn(None if found is None else found["value"])
            if hasattr(value, "__await__"):
                close = getattr(value, "close", None)
                if close is not None:
                    close()
                message = "update_fn must be a plain function, and not an async one"
                raise TypeError(message)
            if self._save(key, value, None, "" if found is None else found["revision"]):
                return value
        raise MCPError("memory %r was changed by others %d times" % (key, MAX_TRIES), kind="limit")

    def memory_exists(self, key: str) -> bool:
        """Return whether anything is remembered under a key."""
        return self._load(key) is not None

    def get_memory_info(self, key: str) -> Optional[Dict[str, Any]]:
        """Return key, value, metadata, created_at and updated_at; None if there is nothing."""
        found: Optional[Dict[str, Any]] = self._load(key)
        if found is not None:
            found.pop("revision", None)
        return found

    def _load(self, key: str) -> Any:
        return self._ask("load_memory", {"key": text("key", key)})

    def _save(self, key: str, value: Any, metadata: Any, revision: Optional[str] = None) -> bool:
        params: Dict[str, Any] = {
            "key": text("key", key),
            "value": to_argument(value, "the value of memory %r" % key),
        }
        if metadata is not None:
            params["metadata"] = to_argument(metadata, "the metadata of memory %r" % key)
        if revision is not None:
            params["revision"] = revision
        return bool(self._ask("save_memory", params))

    # --- skills ---------------------------------------------------------------------------------

    def save_skill(
        self, function: Any, description: Optional[str] = None, name: Optional[str] = None
    ) -> Any:
        """Keep a function for later runs, which get it by `from skills import name`.

        Args:
            function: It, or its source as text.
            description: What it is for; its docstring if left out.
            name: Its own if left out.

        Raises:
            MCPError: It may not be kept.
            TypeError: It uses what cannot be kept with it; the text says what.
        """
        from bridge.guest.skills_source import collect

        if name is not None:
            text("name", name)
        params: Dict[str, Any] = collect(function, name)
        if description is not None:
            params["description"] = text("description", description)
        return self._ask("save_skill", params)

    def save_tool(
        self, function: Any, description: Optional[str] = None, name: Optional[str] = None
    ) -> Any:
        """Do what `save_skill` does."""
        return self.save_skill(function, description, name)

    def list_skills(self) -> List[Dict[str, Any]]:
        """Return the skills there are: name, description, signature, tools, stale and so on."""
        found: List[Dict[str, Any]] = self._ask("list_skills", {})
        return found

    def load_skill(self, name: str) -> Any:
        """Return a skill's function, as `from skills import name` does."""
        from bridge.guest.skills_import import load

        return load(text("name", name))

    def delete_skill(self, name: str) -> str:
        """Have no program find a skill any more; its saved versions stay as files."""
        there = self._ask("delete_skill", {"name": text("name", name)})
        return "Skill %r %s." % (name, "deleted" if there else "not found")

    def _ask(self, method: str, params: Dict[str, Any]) -> Any:
        return self._client.call_and_wait(method, params, method)
