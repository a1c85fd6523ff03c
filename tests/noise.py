"""Runs a second, noisy bridge on the same engines while tests run, which must not notice it.

    python -m tests.noise CMD [ARG...]

While CMD runs, there are containers of a live and of a dead bridge, and images in the runtime
image's repository. Processes, control groups and temporary files look like a bridge's.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import docker

from bridge.sandbox.container.image import REPOSITORY, local_name
from bridge.sandbox.ownership import RUN_LABEL, Owner, current_owner

IMAGE = local_name("slim")
ROUND_SECONDS = 1.0
"""The time until all of them are replaced."""


def main() -> int:
    """Run the command with noise; return its exit status."""
    me = current_owner()
    gone = subprocess.Popen(["true"])
    gone.wait()
    owners = (me, replace(me, pid=gone.pid, start="1"))
    with subprocess.Popen(sys.argv[1:]) as command:
        while command.poll() is None:
            with ExitStack() as stack:
                for noise in (_docker, *map(_podman, PODMANS), _processes, _places):
                    stack.enter_context(noise(owners))
                time.sleep(ROUND_SECONDS)
    return command.returncode


def _labels(owner: Owner) -> dict[str, str]:
    return {**owner.labels(), RUN_LABEL: secrets.token_hex(16)}


@contextmanager
def _docker(owners: Sequence[Owner]) -> Iterator[None]:
    client = docker.from_env()
    name = f"{REPOSITORY}:noise-{secrets.token_hex(4)}"
    made = [client.api.create_container(IMAGE, "python3", labels=_labels(each)) for each in owners]
    client.images.get(IMAGE).tag(name)
    try:
        yield
    finally:
        client.images.remove(name)
        for container in made:
            # A bridge may be removing the dead one's container, as it should.
            with suppress(docker.errors.APIError):
                client.api.remove_container(container["Id"], force=True)
        client.close()


PODMANS = (("podman",), (os.environ.get("MCP_TEST_ROOTLESS_RUN", "env"), "podman"))
"""The commands for podman as this user and as an ordinary one."""


def _podman(podman: Sequence[str]) -> Callable[[Sequence[Owner]], AbstractContextManager[None]]:
    def call(*words: str) -> str:
        done = subprocess.run([*podman, *words], check=False, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip()

    @contextmanager
    def noise(owners: Sequence[Owner]) -> Iterator[None]:
        name = f"{REPOSITORY}:noise-{secrets.token_hex(4)}"
        made = []
        for owner in owners:
            labels = [f"--label={key}={value}" for key, value in _labels(owner).items()]
            made.append(call("create", "--network=none", *labels, IMAGE, "python3"))
        call("tag", IMAGE, name)
        try:
            yield
        finally:
            call("untag", name, name)
            call("rm", "--force", "--ignore", *made)

    return noise


@contextmanager
def _processes(owners: Sequence[Owner]) -> Iterator[None]:
    looks = "import time; time.sleep(3600)", "mcp-code-bridge/podman-1-a/", "workshop.py"
    become = [[], PODMANS[1][:1]]
    started = [subprocess.Popen([*words, "python3", "-c", *looks]) for words in become]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextmanager
def _places(owners: Sequence[Owner]) -> Iterator[None]:
    with ExitStack() as stack:
        for parent in ("/tmp", "/var/tmp"):
            for prefix in ("mcp-code-bridge-", "mcb-"):
                stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=parent))
        groups = []
        for kind in ("pids", "memory", "."):
            group = Path("/sys/fs/cgroup", kind, f"mcp-code-bridge_{os.getpid()}_noise")
            with suppress(OSError):
                group.mkdir()
                groups.append(group)
        try:
            yield
        finally:
            for group in groups:
                group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
