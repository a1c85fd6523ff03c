"""A place on the host for each test's commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.commands.command_rig import Place, place


@pytest.fixture
def there() -> Iterator[Place]:
    with place() as made:
        yield made
