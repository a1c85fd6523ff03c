"""Pods as sandboxes, on a cluster of this process's own that speaks each attach protocol.

The contract that every backend keeps is in `tests/contract`; here is what is Kubernetes' own.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import LaunchError
from bridge.sandbox.backend import Bind
from bridge.sandbox.kubernetes.backend import KubernetesBackend
from tests.contract.programs import ECHO, spec


async def test_the_probe_sees_what_is_in_force(backend: KubernetesBackend) -> None:
    probe = await backend.probe()
    assert probe.ok, (probe.summary, probe.remedy)
    assert probe.isolation is not None
    assert {
        "network-calls-refused",
        "own-seccomp",
        "seccomp",
        "read-only-root",
        "no-capabilities",
        "no-new-privileges",
        "unprivileged-user",
    } <= set(probe.isolation.verified)
    assert [text.partition(":")[0] for text in probe.isolation.weaker][:3] == [
        "sized-tmpfs-noexec",
        "pids limit",
        "logs",
    ]


async def test_another_interpreter_and_directories_of_this_machine_are_refused_by_name(
    backend: KubernetesBackend, tmp_path: Path
) -> None:
    bind = Bind(source=str(tmp_path), inside="/mnt/here")
    for asked, said in (
        (replace(spec(""), argv=("no-such-command",)), "no-such-command"),
        (replace(spec(ECHO), binds=(bind,)), "/mnt/here"),
    ):
        with pytest.raises(LaunchError, match=said):
            async with backend.launch(asked):
                pass
