"""What `doctor` and `setup` offer to do: build the runtime image, and close the state directory.

All else, such as what has to be installed, is left to the remedies that `doctor` prints.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bridge.cli.image import build_image
from bridge.cli.line import PROGRAM
from bridge.cli.output import visible, write_err
from bridge.cli.person import Person
from bridge.errors import BridgeError, ImageMissingError
from bridge.sandbox.backend import Probe
from bridge.settings import Settings


def working(probes: Sequence[Probe]) -> str:
    """Return the sandbox that programs run in; empty if none works."""
    return next((probe.backend for probe in probes if probe.ok), "")


def state_remedy(settings: Settings) -> str:
    """Return the command that gives the state directory to this user alone; empty for none."""
    place = Path(os.path.realpath(settings.state_dir))
    try:
        found = place.stat()
    except OSError:
        return ""
    if found.st_uid == os.geteuid():
        shut = found.st_mode & 0o777 == 0o700 or not place.is_dir()
        return "" if shut else f"chmod 700 {shlex.quote(str(place))}"
    usable = os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True)
    return "" if usable else f"sudo chown -R {os.geteuid()} {shlex.quote(str(place))}"


async def offer(probes: Sequence[Probe], settings: Settings) -> bool:
    """Ask a person at a terminal whether to do what is needed; return whether any was done."""
    person = Person()
    if not person.attended:
        return False
    done = False
    place, command = settings.state_dir, state_remedy(settings)
    # A directory that somebody named, such as /var, or a link leads to, may be others' too.
    own = place.name == PROGRAM and command == f"chmod 700 {shlex.quote(str(place))}"
    if own and await person.confirm(f"Do `{command}`?"):
        place.chmod(0o700)
        done = True
    codes = {probe.backend: probe.error_code for probe in probes}
    engine = next((name for name in codes if codes[name] == ImageMissingError.code), "")
    if not engine or settings.image or working(probes):
        return done
    if await person.confirm(f"Build the runtime image on {engine}, in one to three minutes?"):
        try:
            await build_image(replace(settings, runtime=engine))
            done = True
        except BridgeError as error:
            write_err(visible(f"{error}\n"))
    return done
