"""The Python and the packages that programs find, as a backend's probe lists them.

Stored for each set of settings that chooses a sandbox: the guide must not wait for an engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bridge.atomic_files import replace_file
from bridge.private_files import make_directory
from bridge.settings import Settings

logger = logging.getLogger(__name__)

_NAMES = """
numpy pandas matplotlib scipy scikit-learn polars pyarrow seaborn statsmodels openpyxl xlsxwriter
pillow requests httpx beautifulsoup4 lxml jinja2 tabulate pypdf pdfplumber pymupdf reportlab
python-docx python-pptx sympy networkx plotly duckdb sqlalchemy pydantic pyyaml torch tensorflow
"""
_RANK = {name: number for number, name in enumerate(_NAMES.split())}
"""The best known packages, in the order of the guide."""

_PARTS = """
appdirs attrs beniget brotli certifi charset-normalizer contourpy cycler decorator et-xmlfile
filelock fonttools fs gast idna jdcal joblib kiwisolver lz4 markupsafe mpmath packaging pip ply
pyparsing python-dateutil pytz setuptools six soupsieve threadpoolctl typing-extensions tzdata
unicodedata2 urllib3 wheel
"""
"""Dependencies of other packages, which the guide omits."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """The Python and the packages that programs find.

    Attributes:
        python: The version, such as "3.11"; empty if unknown.
        packages: Names and versions, the best known first.
    """

    python: str = ""
    packages: tuple[tuple[str, str], ...] = ()


def contents_of(facts: Mapping[str, Any]) -> Contents:
    """Parse the probe's list; models read it, so only valid names and versions pass."""
    listed: dict[str, tuple[str, str]] = {}
    packages = facts.get("packages")
    for name, version in packages.items() if isinstance(packages, dict) else ():
        if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,59} \d[\w.+!]{0,29}", f"{name} {version}", re.A):
            listed[name.lower()] = name, version
    names = sorted(listed.keys() - _PARTS.split(), key=lambda name: (_RANK.get(name, 99), name))
    python = re.match(r"3\.\d{1,2}(?=\.)", str(facts.get("python", "")))
    found = tuple(listed[name] for name in names[:1000])
    return Contents(python=python[0] if python else "", packages=found)


def recall(settings: Settings) -> Contents:
    """Return the contents of the last sandbox that these settings chose; empty if unknown."""
    try:
        kept = json.loads((settings.state_dir / _name(settings)).read_text(encoding="utf-8"))
        return Contents(python=kept["python"], packages=tuple(map(tuple, kept["packages"])))
    except (OSError, ValueError, KeyError, TypeError):
        return Contents()


def remember(settings: Settings, contents: Contents) -> None:
    """Store the contents of the sandbox that these settings choose."""
    if recall(settings) == contents:
        return
    try:
        make_directory(settings.state_dir)
        replace_file(settings.state_dir / _name(settings), json.dumps(asdict(contents)).encode())
    except OSError as error:
        logger.warning("cannot store the contents of the sandbox: %s", error)


def _name(settings: Settings) -> str:
    parts = (settings.runtime, settings.runtime_order, settings.image, settings.packages)
    key = hashlib.sha256(repr((*parts, settings.kubernetes)).encode()).hexdigest()
    return f"sandbox-{key[:16]}.json"
