"""Names in docstrings that nothing defines."""

from __future__ import annotations

import ast

from scripts.check_docstrings import problems

MODULE = '''
class Base:
    """One.

    Attributes:
        kept: Is there.
        gone: Is not.
    """

    def __init__(self, size: int) -> None:
        """Make one.

        Args:
            size: Is there.
            weight: Is not.
        """
        self.kept = size


class Derived(Base):
    """Another.

    Attributes:
        kept, lost: One is the base's.
    """


class Foreign(Elsewhere):
    """A third.

    Attributes:
        anything: May be the base's.
    """
'''


def test_a_name_that_nothing_defines_is_found_with_its_place() -> None:
    tree = ast.parse(MODULE)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = [problem.partition(": ")[2] for problem in problems("m.py", tree, classes)]
    assert sorted(found) == [
        "Base documents 'gone', which is not there",
        "Derived documents 'lost', which is not there",
        "__init__ documents 'weight', which is not there",
    ]
