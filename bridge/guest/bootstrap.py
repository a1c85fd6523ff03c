"""The first module of the bundle in a sandbox: imports the other modules from memory.

Every sandbox waits for it, so it imports no other guest module at first. The loader reads the
bundle ({"digest", "bootstrap", "sources", "code": {tag: {name: compiled}}}). Modules come from the
first available source: code compiled for this Python version, compiled modules in a directory of
the image named after the digest, or the packed sources.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Collection, Dict, NoReturn, Optional
else:
    ModuleSpec = type(sys.__spec__)

TREE = "/usr/local/lib/mcp-code-bridge/guest"
"""Where an image keeps precompiled guests, each in a directory named after its digest."""


class SourceFinder:
    """Imports the `bridge` namespace from a directory if given, else from memory."""

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
        if name == "bridge":
            spec = ModuleSpec(name, None, is_package=True)
            if self._directory is not None:
                # The ordinary import machinery finds the modules below it.
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
        """Return None: the import system creates the module."""

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        compiled = self._compiled.get(spec.name)
        if compiled is not None:
            code = marshal.loads(compiled)
        else:
            code = compile(self._sources[spec.name], str(spec.origin), "exec", dont_inherit=True)
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str:
        if not self._sources:
            self._unpack()
        return self._sources[name]


def main(bundle: Dict[str, Any], compiled: Dict[str, bytes]) -> NoReturn:
    """Become the supervisor; `compiled` is the bundle's code for this Python, or empty."""
    directory = None
    if not compiled:
        tree = os.path.join(TREE, os.path.basename(bundle["digest"]))
        directory = tree if os.path.isdir(tree) else None
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, SourceFinder(bundle["sources"], directory, compiled))
    from bridge.guest.supervisor import supervisor

    supervisor.main(bundle["digest"], bool(compiled or directory))
