"""Build the offline runtime image once and import it into any engine.

    image.py tarball [FLAVOUR]        print the path of the root filesystem, built if need be
    image.py load ENGINE [FLAVOUR] [--tag TAG]
                                      import it into podman, docker or rootless, unless it is
                                      there; with a TAG of its own no bridge takes it unasked

The root filesystem is cached under `.state/image` by the hash of everything it is made from, and an
imported image carries that hash as a label, so neither step is repeated without a reason. Owns the
cache and the imports of the development set-up; how the file system is made belongs to
`runtime_image/build-rootfs.sh`.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from bridge.sandbox.bundle import guest_digest, write_guest_tree
from bridge.sandbox.container.image import LABEL_GUEST

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "runtime_image"
CACHE = ROOT / ".state" / "image"
FLAVOURS = ("slim", "data")
KEY_LABEL = "org.mcp-code-bridge.image.key"
# podman puts what it imports under `localhost/`. Docker gets that name too: the bridge looks
# for one and the same in both.
NAMES = {
    "docker": "mcp-code-bridge-runtime",
    "podman": "localhost/mcp-code-bridge-runtime",
    "rootless": "localhost/mcp-code-bridge-runtime",
}
COMMANDS = {"podman": ["podman"], "rootless": [str(ROOT / "scripts" / "as-rootless"), "podman"]}
# An import of 200 MB into a slow storage driver on a busy machine.
DOCKER_TIMEOUT_SECONDS = 600


def recipe_key(flavour: str) -> str:
    """Return the hash of all that decides what the root filesystem of a flavour contains."""
    digest = hashlib.sha256()
    for path in sorted(RECIPE.iterdir()):
        if path.is_file() and path.name != "Containerfile":
            digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    digest.update(f"{flavour}\0{release}\0{platform.machine()}".encode())
    return digest.hexdigest()[:16]


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time build or import."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def image_key(flavour: str) -> str:
    """Return what identifies an image: its recipe and the guest package inside."""
    return f"{recipe_key(flavour)}-{guest_digest()[:16]}"


def build(flavour: str) -> Path:
    """Return the cached root filesystem, building what of it is missing.

    The packages are kept apart from the guest, which changes more often and is quickly put in.
    """
    script = str(RECIPE / "build-rootfs.sh")
    base = CACHE / f"{flavour}-{recipe_key(flavour)}.tar"
    finished = CACHE / f"{flavour}-{image_key(flavour)}.tar"
    with locked("build"):
        for old in CACHE.glob(f"{flavour}-*.tar"):
            if old not in (base, finished):
                old.unlink()
        if not base.exists():
            print(f"Building the {flavour} root filesystem ...", file=sys.stderr, flush=True)
            subprocess.run([script, flavour, str(base)], check=True)
        if not finished.exists():
            with tempfile.TemporaryDirectory() as guest:
                write_guest_tree(Path(guest))
                options = ["--base", str(base), "--guest-bundle", guest]
                subprocess.run([script, *options, flavour, str(finished)], check=True)
    return finished


def changes(flavour: str, key: str) -> list[str]:
    """Return the Dockerfile instructions that an import applies."""
    command = [str(RECIPE / "build-rootfs.sh"), "--changes", flavour]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    labels = [f"LABEL {KEY_LABEL}={key}", f"LABEL {LABEL_GUEST}={guest_digest()}"]
    return [*output.splitlines(), *labels]


def load_docker(tarball: Path, key: str, flavour: str, tag: str) -> None:
    """Import into the Docker Engine that DOCKER_HOST names."""
    client = docker.from_env(timeout=DOCKER_TIMEOUT_SECONDS)
    name = f"{NAMES['docker']}:{tag}"
    try:
        image = client.images.get(name)
        if image.labels.get(KEY_LABEL) == key:
            image.tag(NAMES["podman"], tag)
            return
    except docker.errors.ImageNotFound:
        pass
    print(f"Importing {name} into docker ...", file=sys.stderr, flush=True)
    client.api.import_image(
        src=str(tarball), repository=NAMES["docker"], tag=tag, changes=changes(flavour, key)
    )
    client.images.get(name).tag(NAMES["podman"], tag)


def load_podman(tarball: Path, key: str, flavour: str, tag: str, engine: str) -> None:
    """Import into podman, of this user or of the test user."""
    podman = COMMANDS[engine]
    name = f"{NAMES[engine]}:{tag}"
    template = f'{{{{index .Labels "{KEY_LABEL}"}}}}'
    inspect = [*podman, "image", "inspect", "--format", template, name]
    known = subprocess.run(inspect, check=False, capture_output=True, text=True)
    if known.returncode == 0 and known.stdout.strip() == key:
        return
    print(f"Importing {name} into {engine} ...", file=sys.stderr, flush=True)
    options = [word for change in changes(flavour, key) for word in ("--change", change)]
    # By stdin: the test user cannot read this directory.
    with tarball.open("rb") as file:
        command = [*podman, "import", "--quiet", *options, "-", name]
        subprocess.run(command, check=True, stdin=file, stdout=subprocess.DEVNULL)


def main() -> None:
    """Run the command line described in the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    tarball_command = commands.add_parser("tarball")
    load_command = commands.add_parser("load")
    load_command.add_argument("engine", choices=sorted(NAMES))
    for command in (tarball_command, load_command):
        command.add_argument("flavour", nargs="?", choices=FLAVOURS, default="slim")
    load_command.add_argument("--tag")
    arguments = parser.parse_args()

    flavour = arguments.flavour
    tarball = build(flavour)
    if arguments.command == "tarball":
        print(tarball)
        return
    key, tag = image_key(flavour), arguments.tag or flavour
    with locked(f"import-{arguments.engine}-{os.getuid()}"):
        if arguments.engine == "docker":
            load_docker(tarball, key, flavour, tag)
        else:
            load_podman(tarball, key, flavour, tag, arguments.engine)


if __name__ == "__main__":
    main()
