"""`contextlib.suppress`: every sandbox would wait for 2 ms until that module is imported."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Type


class suppress:
    """Ends its block at an exception of these kinds, which goes no further."""

    def __init__(self, *kinds: "Type[BaseException]") -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: "Optional[Type[BaseException]]", *rest: object) -> bool:
        """Leave it; return whether the exception is one of these kinds."""
        return kind is not None and issubclass(kind, self._kinds)
