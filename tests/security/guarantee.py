"""What one promise of the sandbox consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One promise.

    Attributes:
        id: A short name, for tests and for those who write about them.
        promise: What holds, in one sentence.
        attacks: The attacks it answers; none where it is about what the list does not know.
        not_applicable: Why the attack cannot be made in this version; its tests then prove that
            there is nothing to attack.
        tests: Each "file::function"; together they fail when any part of the promise is broken.
    """

    id: str
    promise: str
    attacks: tuple[int, ...]
    tests: tuple[str, ...]
    not_applicable: str = ""
