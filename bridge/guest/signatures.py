"""The head of a tool's function: which parameters, of which kinds, types and defaults.

Owns what the host writes into stubs and the guest gives to `inspect.signature`, so that both agree.
"""

from __future__ import annotations

from bridge.guest.docstrings import Typed
from bridge.guest.parameters import default_of, read_parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Mapping, Optional

    from bridge.guest.typetext import Names

MAX_PARAMETERS = 250
"""Written out; the largest tools seen in the wild have some sixty. The rest are taken too."""


MAX_NAME_CHARS = 100
"""Of a parameter that is written out."""


class Argument:
    """One parameter of the function.

    Attributes:
        default: As text; None for one that has to be given.
        has_default: Whether `value` is its default; it is left out of the call otherwise.
        keyword_only: Whether Python's syntax allows it by keyword only. By position it is accepted
            all the same, in the order of the schema.
    """

    __slots__ = ("alias", "default", "has_default", "keyword_only", "text", "value")

    def __init__(self, alias: str, text: str, default: Optional[str]) -> None:
        self.alias = alias
        self.text = text
        self.default = default
        self.has_default = False
        self.value: Any = None
        self.keyword_only = False


class Head:
    """A tool's function as text.

    Attributes:
        parameters: All that the schema names.
        shown: Those written out, as `arguments`.
        rest: What further arguments are called; empty if there can be none.
    """

    def __init__(self, tool: Mapping[str, Any], names: Optional[Names] = None) -> None:
        """Read `tool`, data as in `Run.servers`."""
        root = tool.get("inputSchema")
        self.parameters, open_ended = read_parameters(root)
        some = self.parameters[:MAX_PARAMETERS]
        shown = [parameter for parameter in some if len(parameter.alias) <= MAX_NAME_CHARS]
        self.shown = shown
        self.typed = Typed(tool, shown, names)
        self.arguments: List[Argument] = []
        optional_seen = keyword_only = False
        for parameter, text in zip(shown, self.typed.types):  # noqa: B905 - not in 3.9
            argument = Argument(parameter.alias, text, None if parameter.required else "...")
            keyword_only = keyword_only or (parameter.required and optional_seen)
            optional_seen = optional_seen or not parameter.required
            argument.keyword_only = keyword_only
            if not parameter.required:
                known, value = default_of(parameter, root)
                if known:
                    argument.has_default, argument.value = True, value
                    argument.default = repr(value)
            self.arguments.append(argument)
        self.rest = ""
        if open_ended or len(shown) < len(self.parameters):
            self.rest = "arguments"
            while any(argument.alias == self.rest for argument in self.arguments):
                self.rest += "_"
