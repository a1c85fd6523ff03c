"""The probe that every backend runs: its program, its limits, and the report when it fails.

The program examines itself as the guest does. A backend is accepted only if the report contradicts
nothing that the backend requested. The report also lists the Python and the packages that programs
find. They are stored for each set of settings that chooses a sandbox: the guide must not wait for
an engine.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from typing import Any

import anyio

from bridge.atomic_files import replace_file
from bridge.errors import BridgeError, LaunchError, SandboxError
from bridge.model import Limits
from bridge.private_files import make_directory
from bridge.sandbox.backend import Contents, LaunchSpec, Probe, Sandbox
from bridge.sandbox.bundle import INTERPRETER, guest_modules
from bridge.sandbox.layers import require_mandatory_layers, verify_isolation
from bridge.settings import Settings

logger = logging.getLogger(__name__)

PROBE_SECONDS = 60.0
"""For a sandbox to start and answer: a tenth of a second, more from a cold disk."""

_SENT = "probe"

_ANSWER = """
import json, sys

heard = sys.stdin.readline().strip()
seen = {"__name__": "probe"}
exec(compile(FACTS, "<probe>", "exec", dont_inherit=True), seen)
attempts = {layer: call for layer, call in seen["ATTEMPTS"].items() if layer not in UNTRIED}
facts = {**seen["isolation_facts"](), "denials": seen["denials"](attempts)}
facts["packages"] = seen["distributions"]()
sys.stdout.write(json.dumps({"heard": heard, "facts": facts}) + "\\n")
"""

MAX_ANSWER_BYTES = 1024 * 1024  # Most of the probe's answer; 9,999 packages are half of it.


def probe_spec(limits: Limits) -> LaunchSpec:
    """Return the launch of the program, which echoes its input and examines itself."""
    return LaunchSpec(run_id="probe", argv=probe_argv(), env={}, limits=limits)


def probe_argv(*, untried: tuple[str, ...] = ()) -> tuple[str, ...]:
    facts = guest_modules()["bridge.guest.isolation_facts"]
    return (*INTERPRETER, f"FACTS = {facts!r}\nUNTRIED = {untried!r}\n{_ANSWER}")


async def receive_facts(sandbox: Sandbox) -> Mapping[str, Any] | None:
    """Return the program's report; None if it does not answer."""
    await sandbox.send(_SENT.encode() + b"\n")
    heard = b""
    while b"\n" not in heard and len(heard) < MAX_ANSWER_BYTES:
        data = await sandbox.receive()
        if not data:
            break
        heard += data
    try:
        answer = json.loads(heard)
        facts = answer["facts"] if answer["heard"] == _SENT else None
    except (ValueError, KeyError, TypeError):
        facts = None
    return facts if isinstance(facts, dict) else None


def failed_probe(backend: str, error: BridgeError) -> Probe:
    return Probe(
        backend=backend,
        ok=False,
        summary=f"{error.message} {error.host_detail}".rstrip(),
        error_code=error.code,
        remedy=error.remedy,
    )


async def run_probe(
    name: str,
    launch: Callable[[LaunchSpec], AbstractAsyncContextManager[Sandbox]],
    describe: Callable[[Sandbox], Probe],
    limits: Limits,
    *,
    no_answer_remedy: str | None = None,
    timeout_error: Callable[[str], SandboxError] = LaunchError,
) -> Probe:
    try:
        with anyio.fail_after(PROBE_SECONDS):
            async with launch(probe_spec(limits)) as sandbox:
                facts = await receive_facts(sandbox)
                if facts is None:
                    await sandbox.kill()
                    report = await sandbox.wait()
                    said = sandbox.diagnostics() or report.detail or f"exit code {report.exit_code}"
                    message = f"The probe's program did not answer: {said[:500]}."
                    return failed_probe(name, LaunchError(message, remedy=no_answer_remedy))
                require_mandatory_layers(sandbox.isolation, facts)
                isolation = verify_isolation(sandbox.isolation, facts)
                return replace(describe(sandbox), isolation=isolation, contents=contents_of(facts))
    except BridgeError as error:
        return failed_probe(name, error)
    except TimeoutError:
        message = f"{name} did not start a sandbox within {PROBE_SECONDS:g} s."
        return failed_probe(name, timeout_error(message))
    except Exception as error:
        logger.exception("probing %s failed unexpectedly", name)
        return failed_probe(name, LaunchError(f"Probing {name} failed: {error!r}."))


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
