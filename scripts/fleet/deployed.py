"""The images of `deploy/`, made without a registry: the bridge's, and its gateway's.

    python -m scripts.fleet.deployed      print the layers of the first, made if need be

The bridge's is what `make release PARTS='wheel deb image'` makes: a Debian with what the package
depends on, and the package's files. Its instructions are those of packaging/Containerfile. The
gateway's is the same Debian, which has nginx too. The layers are kept under `.state/image`, by what
they are made from.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scripts.fleet.images import configuration, write_archive
from scripts.image import CACHE, ROOT, locked
from scripts.package import DEBIAN, PACKAGING, install_tree, product, run

BRIDGE_IMAGE = f"localhost/mcp-code-bridge:{product()['version']}"
GATEWAY_IMAGE = "localhost/gateway:1"

PACKAGES = ("python3", "libseccomp2", "ca-certificates", "nginx-light")
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
OPTIONS = (
    *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
    '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
    '--customize-hook=chroot "$1" useradd --create-home --uid 10001 bridge',
)


def _kept(name: str, key: Iterable[bytes]) -> Path:
    digest = hashlib.sha256(f"{DEBIAN}\0{platform.machine()}\0".encode())
    for part in key:
        digest.update(hashlib.sha256(part).digest())
    return CACHE / f"{name}-{digest.hexdigest()[:16]}.tar"


def _bridge_key() -> Iterable[bytes]:
    for name in ("pyproject.toml", "requirements.lock", "scripts/package.py", "README.md"):
        yield (ROOT / name).read_bytes()
    for directory in ("bridge", "runtime_image"):
        for path in sorted((ROOT / directory).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)).encode()
                yield path.read_bytes()


def _build_debian(target: Path) -> None:
    print("Building the Debian of the bridge's image ...", file=sys.stderr, flush=True)
    made = target.with_suffix(".new")
    include = f"--include={','.join(PACKAGES)}"
    run("mmdebstrap", "--quiet", "--variant=minbase", "--format=tar", include, *OPTIONS,
        DEBIAN, made)  # fmt: skip
    made.rename(target)


def _build_bridge(target: Path) -> None:
    print("Building the bridge's part of its image ...", file=sys.stderr, flush=True)
    made = target.with_suffix(".new")
    with tempfile.TemporaryDirectory() as scratch:
        root, dist = Path(scratch) / "root", Path(scratch) / "dist"
        hatchling = Path(sys.executable).parent / "hatchling"
        run(hatchling, "build", "-t", "wheel", "-d", dist, cwd=ROOT)
        install_tree(dist / product()["wheel"], root)
        with tarfile.open(made, "w") as archive:
            for path in sorted(root.iterdir()):
                archive.add(path, path.name, filter=_of_root)
    made.rename(target)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def layers() -> tuple[Path, Path]:
    """Return the layers of the bridge's image, built where they are not kept."""
    parts = {
        "deploy-debian": ([repr((PACKAGES, OPTIONS)).encode()], _build_debian),
        "deploy-bridge": (_bridge_key(), _build_bridge),
    }
    found = []
    with locked("deploy"):
        for name, (key, build) in parts.items():
            path = _kept(name, key)
            if not path.exists():
                for old in CACHE.glob(f"{name}-*.tar"):
                    old.unlink()
                build(path)
            found.append(path)
    return found[0], found[1]


def write_images(directory: Path, debian: Path, bridge: Path) -> tuple[Path, Path]:
    """Write both images as archives; return them."""
    words = ("ENV ", "USER ", "WORKDIR ", "ENTRYPOINT ")
    recipe = (PACKAGING / "Containerfile").read_text(encoding="utf-8").splitlines()
    told = configuration(line for line in recipe if line.startswith(words))
    made = directory / "bridge.tar", directory / "gateway.tar"
    write_archive(made[0], BRIDGE_IMAGE, (debian, bridge), told)
    write_archive(made[1], GATEWAY_IMAGE, (debian,), {"Cmd": ["nginx"]})
    return made


if __name__ == "__main__":
    print(*layers())
