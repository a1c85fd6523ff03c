"""Imports that a run cannot have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection

from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.report import Report, quoted
from bridge.catalog.checking.survey import Survey
from bridge.catalog.checking.tables import STDLIB

RULE = "unknown-module"

_COMMON = tuple(
    sorted(
        """
        argparse array ast asyncio base64 bisect calendar cmath collections concurrent contextlib
        copy csv dataclasses datetime decimal difflib email enum fractions functools glob gzip
        hashlib heapq html inspect io itertools json logging math mimetypes operator os pathlib
        pickle pprint random re secrets shutil sqlite3 statistics string struct subprocess sys
        tempfile textwrap threading time traceback types typing unicodedata urllib uuid xml zipfile
        zlib zoneinfo
        """.split()  # noqa: SIM905 - as words they can be read
    )
)
"""What programs import; a module that is spelled nearly so was meant to be one of these."""


def check_modules(
    survey: Survey, certainty: Certainty, report: Report, servers: Collection[str]
) -> None:
    """Report imports of what is there already, and of what is spelled wrong."""
    for node, place in survey.each(ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        else:
            assert isinstance(node, ast.ImportFrom)
            names = [] if node.level else [node.module or ""]
        for dotted in names:
            top, _, rest = dotted.partition(".")
            severity = certainty.raises(place, "ModuleNotFoundError")
            alias = top.removeprefix("mcp_")
            if top.startswith("mcp_") and alias in servers:
                other = f"from mcp.servers import {alias}"
                if isinstance(node, ast.ImportFrom):
                    other = f"from mcp.servers.{alias} import ..."
                message = (
                    f"{quoted(top)} needs no import: it is there already; leave the line out, or "
                    f"write `{other}`"
                )
                report.add(node, RULE, severity, message)
            elif isinstance(node, ast.Import) and top == "mcp" and rest:
                if rest.partition(".")[0] not in ("runtime", "servers"):
                    message = (
                        f"{quoted('import ' + dotted)} is the MCP SDK's, which is neither here nor "
                        "needed: call tools as `await mcp_<server>.<tool>(...)`"
                    )
                    report.add(node, RULE, severity, message)
            elif top not in STDLIB and top not in ("mcp", "skills"):
                close = difflib.get_close_matches(top, _COMMON, n=1, cutoff=0.75)
                if close:
                    message = f"no module is called {quoted(top)} here, unless the image has one; "
                    message += f"did you mean {quoted(close[0])}?"
                    report.add(node, RULE, "note", message)
