"""All that is attempted against the kernel, the network and the host's files."""

from __future__ import annotations

from collections.abc import Mapping

from tests.security import host_probes, kernel_probes
from tests.security.probing import Probe

PROBES: Mapping[str, Probe] = {
    name: probe for group in (*kernel_probes.GROUPS, *host_probes.GROUPS) for name, probe in group()
}
