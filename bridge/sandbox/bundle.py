"""The guest package as bytes: sent to sandboxes, and compiled into images.

Reads the sources as package resources and imports nothing of the guest. Code is compiled for this
interpreter's version only; a guest of another version finds it in its image, or compiles it.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
import zlib
from functools import cache
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from types import CodeType

_PACKAGE = "bridge.guest"

SUBPACKAGES = ("api", "protocol", "schema", "state", "supervisor", "worker")
"""The guest's packages in the bundle."""

BORROWED = {f"{_PACKAGE}.state.cloudpickle": "cloudpickle"}
"""Guest modules whose source is an installed package's, which imports only the standard library.
The guest's name for it keeps programs free to import the package under its own."""

_LENGTH_BYTES = 8

MARSHAL_VERSION = 2
"""A version that every Python 3 reads, for marshalled str, bytes, lists and dicts."""

INTERPRETER = ("python3", "-I", "-S", "-c")
"""Isolated and without `site`: no code of the image's environment or packages runs first."""

LOADER = f'''\
# mcp-code-bridge runs a program in this sandbox: its modules come on stdin, their length ahead.
import gc, io, marshal, sys
gc.disable()
stdin = io.BufferedReader(io.FileIO(0, closefd=False), 1)
bundle = marshal.loads(stdin.read(int.from_bytes(stdin.read(8), "big")))
magic = int.from_bytes(sys.modules["_frozen_importlib_external"].MAGIC_NUMBER, "little")
code = bundle["code"].get("%s-%x" % (sys.implementation.cache_tag, magic), {{}})
exec(marshal.loads(code["{_PACKAGE}.bootstrap"]) if code else bundle["bootstrap"])
main(bundle, code)
'''
"""A sandbox's command line. Short, since people and endpoint scanners read it. It reads exactly the
bundle (with a buffer of one byte), since the channel follows. Loading modules makes no garbage, so
the collector is off; it would take a third of the time."""


@cache
def guest_modules() -> dict[str, str]:
    """Return every guest module's name and source, in the order of their names."""
    found: dict[str, str] = {}
    for package in (_PACKAGE, *(f"{_PACKAGE}.{name}" for name in SUBPACKAGES)):
        for entry in resources.files(package).iterdir():
            if not entry.name.endswith(".py"):
                continue
            stem = entry.name[: -len(".py")]
            name = package if stem == "__init__" else f"{package}.{stem}"
            # read_text would translate newlines; the digest is over what is there.
            data = entry.read_bytes()
            if name in BORROWED:
                loader = _loader(name)
                if loader is None:
                    raise ImportError(f"The package {BORROWED[name]} is not installed as files.")
                data = loader.get_data(loader.path)
            found[name] = data.decode("utf-8")
    return dict(sorted(found.items()))


@cache
def guest_digest() -> str:
    """Return the guest's version: hexadecimal SHA-256 of its modules."""
    digest = hashlib.sha256()
    for name, source in guest_modules().items():
        for part in (name.encode(), source.encode()):
            digest.update(len(part).to_bytes(_LENGTH_BYTES, "big"))
            digest.update(part)
    return digest.hexdigest()


@cache
def guest_code() -> dict[str, bytes]:
    return {name: marshal.dumps(_code_of(name)) for name in guest_modules()}


def _code_of(name: str) -> CodeType:
    """Return a module's code, from the bytecode cache if there is one."""
    origin = f"mcp-code-bridge/{name.replace('.', '/')}.py"
    loader = _loader(name)
    if loader is not None:
        code = loader.get_code(loader.name)
        if code is not None:
            return _elsewhere(code, origin)
    return compile(guest_modules()[name], origin, "exec", dont_inherit=True)


def _loader(name: str) -> SourceFileLoader | None:
    # Only the package is located: locating a module inside it would import it.
    spec = find_spec(BORROWED.get(name, name))
    if name in BORROWED and spec is not None and spec.origin is not None:
        file = Path(spec.origin).with_name(f"{spec.name}.py")
        return SourceFileLoader(f"{spec.name}.{spec.name}", str(file))
    found = None if spec is None else spec.loader
    return found if isinstance(found, SourceFileLoader) else None


def _elsewhere(code: CodeType, filename: str) -> CodeType:
    """Return code with another `filename`, so that no host path enters a sandbox."""
    constants = tuple(
        _elsewhere(constant, filename) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    )
    return code.replace(co_filename=filename, co_consts=constants)


def own_tag() -> str:
    """Return this interpreter's bytecode tag, the key of its code in the bundle."""
    return f"{sys.implementation.cache_tag}-{int.from_bytes(MAGIC_NUMBER, 'little'):x}"


@cache
def bundle_bytes() -> bytes:
    """Return what is written to a sandbox's stdin before any frame: length and bundle."""
    document = {
        "digest": guest_digest(),
        "bootstrap": guest_modules()[f"{_PACKAGE}.bootstrap"],
        "sources": zlib.compress(marshal.dumps(guest_modules(), MARSHAL_VERSION)),
        "code": {own_tag(): guest_code()},
    }
    body = marshal.dumps(document, MARSHAL_VERSION)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


BOOTSTRAP_ARGV: tuple[str, ...] = (*INTERPRETER, LOADER)
"""The command that a sandbox starts; it waits for `bundle_bytes` on its stdin."""


def write_guest_tree(directory: Path) -> Path:
    """Write the guest's sources below `directory`; return their directory, named by the digest."""
    root = directory / guest_digest()
    packages = {_PACKAGE, *(f"{_PACKAGE}.{name}" for name in SUBPACKAGES)}
    for name, source in guest_modules().items():
        path = root.joinpath(*(f"{name}.__init__" if name in packages else name).split("."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.py").write_bytes(source.encode("utf-8"))
    return root
