"""The names that every program has in a run, apart from servers and tools, as data.

A test compares the functions of `mcp.runtime` and of server objects with the guest's.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bridge.guest.protocol.helpers import GLOBAL_HELPERS, LINES, OF_SERVERS


@dataclass(frozen=True, kw_only=True)
class Helper:
    """One function that a run has.

    Attributes:
        positional: Parameters that may be given by position, in order.
        keywords: Those that may be given by name only.
        required: How many of `positional` have no default.
        open: Whether it takes any other name.
    """

    name: str
    asynchronous: bool
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    required: int = 0
    open: bool = False
    owner: str = "runtime"

    @property
    def signature(self) -> str:
        parts = list(self.positional[: self.required])
        parts += [f"{name}=..." for name in self.positional[self.required :]]
        if self.keywords:
            parts += ["*", *(f"{name}=..." for name in self.keywords)]
        if self.open:
            parts.append("**values")
        call = f"{self.owner}.{self.name}({', '.join(parts)})"
        return f"await {call}" if self.asynchronous else call


def _helper(line: str) -> Helper:
    """Read a line such as "async name(a, b=, *, c=)"; a `...` at the end takes any name."""
    head, _, rest = line.partition("(")
    before, _, after = rest.rstrip(")").partition("...")[0].partition("*")
    listed = [item.strip() for item in before.split(",") if item.strip()]
    return Helper(
        name=head.removeprefix("async "),
        asynchronous=head.startswith("async "),
        positional=tuple(item.rstrip("=") for item in listed),
        keywords=tuple(i.strip().rstrip("=") for i in after.split(",") if i.strip()),
        required=sum(not item.endswith("=") for item in listed),
        open="..." in rest,
    )


HELPERS: Mapping[str, Helper] = {one.name: one for one in map(_helper, LINES.strip().splitlines())}
"""The functions of `mcp.runtime`."""

RUNTIME_TYPES = frozenset(
    {"ArgumentsError", "Blob", "MCPError", "MissingKeyError", "Result", "UnknownNameError"}
)

BY_NAME = frozenset({"call_tool", "call_tool_raw"})
"""Helpers that take a tool's own arguments as a dict."""

SERVER_METHODS: Mapping[str, Helper] = {
    name: replace(
        HELPERS[name],
        owner="mcp_<server>",
        positional=HELPERS[name].positional[1:],
        required=min(1, len(HELPERS[name].positional[1:])),
    )
    for name in (*OF_SERVERS, "list_tools")
}
"""The methods of a server object. A tool of such a name replaces it, except `list_tools`."""

MODULE_NAMES = frozenset({"TOOLS", "TOOL_MAP"})
"""What `mcp.servers.<alias>` has besides the tools."""

OWN_GLOBALS = GLOBAL_HELPERS | {
    "Blob",
    "LOADED_MCP_SERVERS",
    "MCPError",
    "mcp",
    "mcp_servers",
    "runtime",
}

_OTHER_BUILTINS = frozenset(
    """
    BaseExceptionGroup EncodingWarning ExceptionGroup ImportCycleError PythonFinalizationError
    basestring frozendict long raw_input sentinel unichr
    """.split()  # noqa: SIM905 - as words they can be read
)
BUILTINS = frozenset(dir(builtins)) | _OTHER_BUILTINS | {"display"}
"""This interpreter's builtins, those of newer ones in the sandbox and of Python 2, which programs
name where they find out that they run on that, and the guest's own."""

STDLIB = frozenset(sys.stdlib_module_names)

DATA_BUILTINS = frozenset(
    """
    abs all any bool bytes dict enumerate float frozenset int iter len list max min next
    range reversed round set sorted sum tuple zip
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Builtins that fail on a coroutine, or treat it as true."""

SHOWING = frozenset({"ascii", "format", "print", "repr", "str"})
"""Builtins that would show the coroutine instead of its result."""

DATA_MEMBERS = frozenset(
    """
    json.dump json.dumps json.loads pprint.pformat pprint.pp pprint.pprint collections.Counter
    pandas.DataFrame re.findall re.match re.search re.split re.sub statistics.mean
    """.split()  # noqa: SIM905 - as words they can be read
)

COROUTINES = frozenset(
    {"asyncio.sleep", "asyncio.to_thread", "asyncio.wait", "asyncio.wait_for", "anyio.sleep"}
)
"""Library functions whose calls do nothing until they are awaited."""

FUTURES = frozenset({"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather"})
"""Library functions that start at once and return something to await."""

_MODULES = """
    asyncio create_task gather sleep wait_for
    collections Counter OrderedDict defaultdict deque namedtuple
    contextlib contextmanager suppress
    copy deepcopy
    dataclasses dataclass asdict field
    datetime date timedelta timezone
    decimal Decimal
    enum Enum
    functools lru_cache partial reduce wraps
    io StringIO
    itertools chain combinations groupby islice product
    json dumps loads
    math ceil floor sqrt
    pathlib Path
    statistics mean median stdev
    textwrap dedent
    typing Annotated Any Callable Dict Iterable List Literal NamedTuple Optional Tuple TypedDict
    typing Union
    uuid uuid4
    zoneinfo ZoneInfo
"""
_ROWS = [line.split() for line in _MODULES.strip().splitlines()]
MEMBERS: Mapping[str, str] = {name: module for module, *names in _ROWS for name in names}
"""Well-known names and the modules they are imported from."""

TWICE_NAMED = frozenset(
    {"bisect", "copy", "datetime", "fnmatch", "glob", "pprint", "random", "time"}
)
"""Modules with a member of their own name."""

SHORT_NAMES: Mapping[str, str] = {
    "np": "numpy as np",
    "pd": "pandas as pd",
    "plt": "matplotlib.pyplot as plt",
    "dt": "datetime as dt",
    "numpy": "numpy",
    "pandas": "pandas",
}
