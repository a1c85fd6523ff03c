"""Locates the image's packages. A backend's probe sends this file alone."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List


def package_directories() -> List[str]:
    """Return the image's package directories, as `site` would find them."""
    version = "python%d.%d" % sys.version_info[:2]
    packages = []
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, "/usr/local", "/usr")):
        packages += [
            os.path.join(prefix, "lib", version, "site-packages"),
            os.path.join(prefix, "lib", version, "dist-packages"),
            os.path.join(prefix, "local", "lib", version, "dist-packages"),
        ]
    packages.append("/usr/lib/python3/dist-packages")
    return [entry for entry in dict.fromkeys(packages) if os.path.isdir(entry)]


def distributions() -> Dict[str, str]:
    """Return the versions of packages by the names of their directories; reads no file."""
    import re

    names = []
    for directory in dict.fromkeys([*sys.path, *package_directories()]):
        try:
            names += sorted(os.listdir(directory))[:9999]
        except OSError:
            continue  # an archive, or closed to programs
    found = map(re.compile(r"([^-]{1,60})-(\d[^-]{0,29})(-py3.*)?\.(dist|egg)-info$").match, names)
    # Imports find the first one.
    return {match[1].replace("_", "-"): match[2] for match in reversed([*found]) if match}
