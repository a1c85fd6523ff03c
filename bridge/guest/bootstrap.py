"""The program that `python3 -I -S -c` is given inside a sandbox.

Owns the way from an interpreter with nothing to a running guest: read the bundle from stdin, make
its modules importable, start the supervisor. Its whole text is the command line, so it imports no
other guest module before the bundle is in; and nothing else that is not in memory already, since
every sandbox waits for it.

The bundle is an 8-byte big-endian length and that many bytes of what `marshal` makes, in its second
version, of {"digest", "sources", "code": {tag: {name: compiled}}}. Code is used if it is of this
interpreter's kind; else an image may carry the same modules, compiled, in a directory named after
the digest; else the sources are compiled here: {name: source}, marshalled and compressed, for most
sandboxes never look at them, and each has to take them in.
"""

from __future__ import annotations

import gc
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Collection, Dict, NoReturn, Optional
else:
    ModuleSpec = type(sys.__spec__)

MAX_BUNDLE_BYTES = 8 * 1024 * 1024
"""Longest bundle accepted; the guest's sources are a fiftieth of it."""

TREE = "/usr/local/lib/mcp-code-bridge/guest"
"""Where an image keeps precompiled guests, each in a directory named after its digest."""


class SourceFinder:
    """Imports the `bridge` namespace: from a directory if there is one, else from memory."""

    def __init__(
        self,
        packed: bytes,
        directory: Optional[str] = None,
        compiled: Optional[Dict[str, bytes]] = None,
    ) -> None:
        self._packed = packed
        self._directory = directory
        self._compiled = compiled or {}
        self._sources: Dict[str, str] = {}
        if not compiled and directory is None:
            self._unpack()
        self._names: Collection[str] = self._compiled or self._sources

    def _unpack(self) -> None:
        import zlib  # most guests never need it

        self._sources = marshal.loads(zlib.decompress(self._packed))

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> Optional[ModuleSpec]:
        """Return the spec of a module that this finder has."""
        if name == "bridge":
            spec = ModuleSpec(name, None, is_package=True)
            if self._directory is not None:
                # The ordinary machinery finds the rest below, compiled files included.
                spec.submodule_search_locations = [os.path.join(self._directory, "bridge")]
            return spec
        if self._directory is not None or name not in self._names:
            return None
        is_package = any(other.startswith(name + ".") for other in self._names)
        origin = "mcp-code-bridge/" + name.replace(".", "/") + ".py"
        spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the making of the module to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code in it."""
        spec = module.__spec__
        assert spec is not None
        compiled = self._compiled.get(spec.name)
        if compiled is not None:
            code = marshal.loads(compiled)
        else:
            code = compile(self._sources[spec.name], str(spec.origin), "exec", dont_inherit=True)
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str:
        """Return a module's source, for tracebacks."""
        if not self._sources:
            self._unpack()
        return self._sources[name]


def read_exactly(fd: int, size: int) -> bytes:
    """Return the next `size` bytes of `fd` and not one more: what follows is the channel."""
    parts = []
    while size:
        data = os.read(fd, min(size, 1 << 20))
        if not data:
            message = "stdin ended inside the guest's bundle"
            raise EOFError(message)
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def tag() -> str:
    """Return what code must have been compiled for to run here: the kind, then its version."""
    # The module has another name until something imports `importlib`.
    loader = sys.modules["_frozen_importlib_external"]
    magic = int.from_bytes(loader.MAGIC_NUMBER, "little")
    return "%s-%x" % (sys.implementation.cache_tag, magic)


def main() -> NoReturn:
    """Read the bundle and become the supervisor."""
    # While modules are loaded nothing becomes garbage; to look for it takes a third of the time.
    gc.disable()
    size = int.from_bytes(read_exactly(0, 8), "big")
    if size > MAX_BUNDLE_BYTES:
        message = "the guest's bundle is longer than %d bytes" % MAX_BUNDLE_BYTES
        raise ValueError(message)
    bundle = marshal.loads(read_exactly(0, size))
    compiled = bundle["code"].get(tag())
    directory = None
    if compiled is None:
        tree = os.path.join(TREE, os.path.basename(bundle["digest"]))
        directory = tree if os.path.isdir(tree) else None
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, SourceFinder(bundle["sources"], directory, compiled))
    from bridge.guest import supervisor

    supervisor.main(bundle["digest"], bool(compiled or directory))


if __name__ == "__main__":
    main()
