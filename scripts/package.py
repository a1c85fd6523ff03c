"""Write the files of every package from one description, and build a release of all of them.

    package.py write              the checked-in files, from packaging/product.toml
    package.py release [PART...]  these parts, or all of them, into dist/, and check them

Nothing is published: docs/publishing.md says how that is done.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema

from scripts.locked import locked

ROOT = Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
SCRIPTS = Path(sys.executable).parent
MCPB = PACKAGING / "node" / "node_modules" / ".bin" / "mcpb"
CLAUDE = ROOT / "tests" / "node" / "node_modules" / ".bin" / "claude"
SERVER_SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

DEBIAN = platform.freedesktop_os_release().get("VERSION_CODENAME", "")

PYTHON = "/usr/bin/python3"
Json = Any


def product(version: str = "") -> dict[str, Json]:
    """Return the description of the product, with what pyproject.toml says of the project."""
    described = tomllib.loads((PACKAGING / "product.toml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = version or project["version"]
    return {
        **described,
        "version": version,
        "license": project["license"],
        "python": project["requires-python"],
        "registry_name": f"{described['namespace']}/{described['name']}",
        "wheel": f"{described['name'].replace('-', '_')}-{version}-py3-none-any.whl",
        "bundle": f"{described['name']}-{version}.mcpb",
        "manifest": {
            "name": described["name"],
            "version": version,
            "description": described["summary"],
            "author": {"name": described["author"]},
            "license": project["license"],
            "keywords": described["keywords"],
        },
    }


def server_json(of: Mapping[str, Json]) -> Json:
    """Return the entry of the MCP registry."""
    variables = [
        {
            "name": option["variable"],
            "description": option["help"],
            **({"choices": option["choices"]} if "choices" in option else {"format": "filepath"}),
        }
        for option in of["options"]
        if "only" not in option
    ]
    return {
        "$schema": SERVER_SCHEMA,
        "name": of["registry_name"],
        "title": of["title"],
        "description": of["summary"],
        "version": of["version"],
        "packages": [
            {
                "registryType": "pypi",
                "identifier": of["name"],
                "version": of["version"],
                "runtimeHint": "uvx",
                "transport": {"type": "stdio"},
                "environmentVariables": variables,
            }
        ],
    }


def bundle_manifest(of: Mapping[str, Json]) -> Json:
    """Return the manifest of the MCPB bundle."""
    options = {
        option["key"]: {
            "type": option.get("type", "string"),
            "title": option["title"],
            "description": option["help"]
            + (f" One of: {', '.join(option['choices'])}." if "choices" in option else ""),
            "required": False,
            **({"default": option["choices"][0]} if "choices" in option else {}),
        }
        for option in of["options"]
    }
    environ = {each["variable"]: f"${{user_config.{each['key']}}}" for each in of["options"]}
    main = "server/mcp_code_bridge.py"  # a name by which a bridge knows itself
    return {
        "manifest_version": "0.4",
        **of["manifest"],
        "display_name": of["title"],
        "server": {
            "type": "uv",
            "entry_point": main,
            "mcp_config": {
                "command": "uv",
                # Not --directory: the bridge looks for a project where the client started it.
                "args": ["run", "--quiet", "--project", "${__dirname}", f"${{__dirname}}/{main}"],
                "env": environ,
            },
        },
        "tools": [{"name": name, "description": text} for name, text in of["tools"].items()],
        "compatibility": {"platforms": of["platforms"], "runtimes": {"python": of["python"]}},
        "user_config": options,
    }


def bundle_project(of: Mapping[str, Json]) -> str:
    """Return the bundle's pyproject.toml. The server installs what it needs, by the lock."""
    return (
        f'[project]\nname = "{of["name"]}-bundle"\nversion = "{of["version"]}"\n'
        f'requires-python = "{of["python"]}"\ndependencies = []\n\n'
        f"[tool.uv]\npackage = false\n"
    )


def plugin_files(of: Mapping[str, Json]) -> dict[str, Json]:
    """Return the manifests of the Claude plugin and of the marketplace that has it."""
    command = {"command": "uvx", "args": [f"{of['name']}@{of['version']}"]}
    return {
        "packaging/plugin/.claude-plugin/plugin.json": of["manifest"],
        "packaging/plugin/.mcp.json": {"mcpServers": {of["server"]: command}},
        ".claude-plugin/marketplace.json": {
            "name": of["name"],
            "description": of["summary"],
            "owner": {"name": of["author"]},
            "plugins": [{**of["manifest"], "source": "./packaging/plugin"}],
        },
    }


def containerfile(of: Mapping[str, Json]) -> str:
    """Return the recipe of the image, with its labels."""
    labels = {
        "io.modelcontextprotocol.server.name": of["registry_name"],
        "org.opencontainers.image.title": of["title"],
        "org.opencontainers.image.description": of["summary"],
        "org.opencontainers.image.version": of["version"],
        "org.opencontainers.image.licenses": of["license"],
    }
    template = (PACKAGING / "Containerfile.in").read_text(encoding="utf-8")
    lines = "".join(f"LABEL {name}={json.dumps(text)}\n" for name, text in labels.items())
    return template.replace("@LABELS@\n", lines)


def outputs(of: Mapping[str, Json]) -> dict[str, str]:
    """Return the text of every checked-in file that follows from a description."""
    documents = {
        "packaging/server.json": server_json(of),
        "packaging/mcpb/manifest.json": bundle_manifest(of),
        **plugin_files(of),
    }
    return {
        **{name: json.dumps(each, indent=2) + "\n" for name, each in documents.items()},
        "packaging/mcpb/pyproject.toml": bundle_project(of),
        "packaging/Containerfile": containerfile(of),
        "bridge/__init__.py": _stamped(
            "bridge/__init__.py", r'__version__ = "(.*)"', of["version"]
        ),
        "README.md": _stamped("README.md", r"<!-- mcp-name: (.*) -->", of["registry_name"]),
    }


def _stamped(name: str, pattern: str, value: str) -> str:
    """Return a file of ours with one place of it set."""
    text = (ROOT / name).read_text(encoding="utf-8")
    [found] = re.finditer(pattern, text)
    return text[: found.start(1)] + value + text[found.end(1) :]


def stale(of: Mapping[str, Json]) -> list[str]:
    """Return the names of the checked-in files that do not follow from a description."""
    return [
        name
        for name, text in outputs(of).items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]


def write() -> None:
    """Write those files."""
    of = product()
    texts = outputs(of)
    for name in stale(of):
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(texts[name], encoding="utf-8")
        print(f"written: {name}")


def run(*command: str | Path, **more: Any) -> str:
    """Run a command; return what it printed, or end with that if it fails."""
    environ = {**os.environ, "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        check=False,
        **more,
    )
    if done.returncode:
        raise SystemExit(f"package: {command[0]} failed:\n{done.stdout}")
    return done.stdout


def build_wheel(dist: Path) -> None:
    """Build the sdist and the wheel, next to a lock; the sdist must give the same wheel."""
    of = product()
    run(SCRIPTS / "hatchling", "build", "-d", dist, cwd=ROOT)
    wheel = dist / of["wheel"]
    [sdist] = dist.glob(f"*-{of['version']}.tar.gz")
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        [source] = Path(scratch).iterdir()
        run(SCRIPTS / "hatchling", "build", "-t", "wheel", "-d", Path(scratch), cwd=source)
        if (Path(scratch) / wheel.name).read_bytes() != wheel.read_bytes():
            raise SystemExit(f"package: {sdist.name} does not build the same {wheel.name}")
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = run("git", "-C", ROOT, "ls-files", "bridge", "runtime_image")
    tracked = re.sub("^runtime_image/", "bridge/_runtime_image/", tracked, flags=re.MULTILINE)
    if missing := [name for name in tracked.splitlines() if name not in names]:
        raise SystemExit(f"package: {wheel.name} lacks {missing}")
    lock = locked(product()["name"], "kubernetes", "postgresql")
    (dist / "requirements.lock").write_text(lock, encoding="utf-8")


def build_bundle(dist: Path) -> None:
    """Validate and pack the MCPB bundle, with the wheel inside."""
    of = product()
    wheel = dist / of["wheel"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "bundle"
        shutil.copytree(PACKAGING / "mcpb", folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (wheel, ROOT / "LICENSE", ROOT / "README.md"):
            shutil.copy(file, folder)
        (folder / "requirements.lock").write_text(locked(of["name"]), encoding="utf-8")
        run(MCPB, "validate", folder / "manifest.json")
        run(MCPB, "pack", folder, dist / of["bundle"])


def check_plugin(_: Path) -> None:
    """Have the real client validate the plugin and the marketplace."""
    with tempfile.TemporaryDirectory() as home:
        for folder in (PACKAGING / "plugin", ROOT):
            run("env", f"HOME={home}", CLAUDE, "plugin", "validate", "--strict", folder)


def build_entry(dist: Path) -> None:
    """Write the registry's entry with all that is published, and hold it against the schema."""
    of = product()
    entry = server_json(of)
    published, transport = of["published"], {"type": "stdio"}
    if published["downloads"]:
        entry["packages"].append(
            {
                "registryType": "mcpb",
                "identifier": f"{published['downloads']}/{of['bundle']}",
                "fileSha256": _sha256(dist / of["bundle"]),
                "transport": transport,
            }
        )
    if published["image"]:
        image = f"{published['image']}:{of['version']}"
        entry["packages"] += [{"registryType": "oci", "identifier": image, "transport": transport}]
    jsonschema.validate(entry, json.loads((PACKAGING / "server.schema.json").read_text()))
    (dist / "server.json").write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


def install_tree(wheel: Path, root: Path) -> None:
    """Put the command and its library, with the locked dependencies, below a directory.

    With what Kubernetes and several bridges need, so that one image serves everywhere.
    """
    name = product()["name"]
    library = root / "usr" / "lib" / name
    lock = root.parent / "requirements.lock"
    lock.write_text(locked(product()["name"], "kubernetes", "postgresql"), encoding="utf-8")
    into = ("--no-deps", "--quiet", "--no-config", "--python", PYTHON, "--compile-bytecode",
            "--link-mode", "copy", "--target", library, "--only-binary", ":all:")  # fmt: skip
    run(SCRIPTS / "uv", "pip", "install", "--require-hashes", "--requirement", lock, *into)
    run(SCRIPTS / "uv", "pip", "install", "--no-index", wheel, *into)
    shutil.rmtree(library / "bin", ignore_errors=True)
    start = root / "usr" / "bin" / name
    start.parent.mkdir()
    start.write_text(
        "#!/usr/bin/python3 -I\nimport sys\n\n"
        f'sys.path.insert(0, "/usr/lib/{name}")\n'
        "from bridge.cli.main import main\n\nsys.exit(main())\n"
    )
    start.chmod(0o755)


def build_deb(dist: Path) -> None:
    """Build a Debian package for the Python of this Debian, with the locked dependencies inside."""
    of = product()
    minor = run(PYTHON, "-c", "import sys; print(sys.version_info.minor)").strip()
    architecture = run("dpkg", "--print-architecture").strip()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / of["name"]
        install_tree(dist / of["wheel"], root)
        notice = root / "usr" / "share" / "doc" / of["name"] / "copyright"
        notice.parent.mkdir(parents=True)
        shutil.copy(ROOT / "LICENSE", notice)
        control = root / "DEBIAN" / "control"
        control.parent.mkdir()
        control.write_text(
            f"Package: {of['name']}\nVersion: {of['version']}\nArchitecture: {architecture}\n"
            f"Maintainer: {of['author']} <{of['name']}@localhost>\nSection: utils\n"
            f"Depends: python3 (>= 3.{minor}), python3 (<< 3.{int(minor) + 1}~), "
            "bubblewrap, libseccomp2, ca-certificates\nRecommends: podman\n"
            f"Description: {of['summary']}\n"
        )
        run("dpkg-deb", "--build", "--root-owner-group", root,
            dist / f"{of['name']}_{of['version']}_{architecture}.deb")  # fmt: skip


def build_image(dist: Path) -> None:
    """Build the image on a Debian made here, without a registry, and keep it as an archive."""
    of = product()
    [deb] = dist.glob(f"{of['name']}_{of['version']}_*.deb")
    base, image = "localhost/debian-for-bridge:latest", f"localhost/{of['name']}:{of['version']}"
    with tempfile.TemporaryDirectory(dir=dist) as scratch:
        root = Path(scratch) / "root.tar"
        depends = run("dpkg-deb", "--field", deb, "Depends")
        names = ",".join(sorted({each.split()[0] for each in depends.split(",")}))
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={names}", DEBIAN, root)
        run("podman", "import", "--quiet", root, base)
        shutil.copy(deb, Path(scratch) / f"{of['name']}.deb")
        run("podman", "build", "--quiet", "--network", "none", "--build-arg", f"BASE={base}",
            "--file", PACKAGING / "Containerfile", "--tag", image, scratch)  # fmt: skip
    archive = dist / f"{of['name']}-{of['version']}-image.tar"
    archive.unlink(missing_ok=True)
    run("podman", "save", "--quiet", "--format", "oci-archive", "--output", archive, image)
    run("podman", "image", "rm", "--force", base)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


PARTS: Mapping[str, Callable[[Path], None]] = {
    "wheel": build_wheel,
    "bundle": build_bundle,
    "plugin": check_plugin,
    "registry": build_entry,
    "deb": build_deb,
    "image": build_image,
}
"""What a release consists of, in the order in which it is built."""


def release(names: Sequence[str], dist: Path) -> None:
    """Build and check these parts of a release, or all of them."""
    if names_stale := stale(product()):
        raise SystemExit(f"package: {', '.join(names_stale)} stale; run: make package")
    dist.mkdir(exist_ok=True)
    for name, build in PARTS.items():
        if not names or name in names:
            print(f"{name} ...", flush=True)
            build(dist)
    of_this = (f"*{product()['version']}*", "server.json")
    files = sorted(path for pattern in of_this for path in dist.glob(pattern))
    sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in files)
    (dist / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(sums, end="")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=["write", "release"])
    parser.add_argument("part", nargs="*", choices=[[], *PARTS], help="of a release; all if none")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    if given.action == "write":
        write()
    else:
        release(given.part, given.dist.resolve())


if __name__ == "__main__":
    main()
