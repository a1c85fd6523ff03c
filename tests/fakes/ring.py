"""A keyring in memory, chosen through keyring's own interface."""

from __future__ import annotations

import threading

from keyring.backend import KeyringBackend
from keyring.compat import properties


class Ring(KeyringBackend):
    """A keyring in memory.

    Attributes:
        mood: "well", "hangs", "raises" or "forgets".
    """

    @properties.classproperty
    def priority(cls) -> float:
        """Fail, which is how a backend says that it is not to be found."""
        msg = "only a test chooses this"
        raise RuntimeError(msg)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[tuple[str, str], str] = {}
        self.mood = "well"
        self.release = threading.Event()

    def _behave(self) -> None:
        if self.mood == "hangs":
            self.release.wait()
        if self.mood == "raises":
            msg = "at-secret is too long"
            raise ValueError(msg)

    def get_password(self, service: str, username: str) -> str | None:
        self._behave()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._behave()
        if self.mood != "forgets":
            self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._behave()
        del self.kept[service, username]
