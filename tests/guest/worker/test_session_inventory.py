"""What is told of the values that a session holds."""

from __future__ import annotations

from bridge.guest.worker.session import inventory, size_of


class Hostile:
    """Answers questions about its size."""

    def __sizeof__(self) -> int:
        return 10**15


def test_no_value_is_asked_for_its_size_and_none_is_absurd() -> None:
    """Generators and the like have no size of their own; what they are made of is known."""
    values = {"generator": (n for n in range(3)), "hostile": Hostile(), "error": ValueError("x")}
    for value in values.values():
        assert 0 < size_of(value) < 10_000
    assert {name for name, _, _ in inventory(values)[0]} == set(values)
