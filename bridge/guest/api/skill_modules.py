"""`from skills import name`: saved skills as modules of a package without files.

A skill's globals equal those of every program. Sources come with the run, or from the host when a
program imports an unexpected skill.
"""

from __future__ import annotations

import sys
import types

from bridge.guest.api.program_files import strip_await
from bridge.guest.api.proxies import ModuleSpec, Server, Tools
from bridge.guest.api.tracebacks import register_source
from bridge.guest.api.values import MCPError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional

    from bridge.guest.api.client import ChannelClient
    from bridge.guest.protocol.wire import Run

PACKAGE = "skills"
UNKNOWN = "unknown_skill"  # The host's error code for an unknown skill.


class SkillFinder:
    _client: ChannelClient

    def __init__(self) -> None:
        self._namespace: Dict[str, Any] = {}
        self._given: Dict[str, Mapping[str, Any]] = {}
        self._loaded: Dict[str, str] = {}
        self._missing: Dict[str, str] = {}

    def register(self, run: Run, client: ChannelClient, namespace: Mapping[str, Any]) -> None:
        """Register a run's skills and globals; in a session, unload skills that have changed."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._client, self._namespace = client, dict(namespace)
        self._missing.clear()
        self._given.update((skill["name"], skill) for skill in run.skills)
        package = sys.modules.get(PACKAGE)
        for name, source in list(self._loaded.items()):
            fullname = "%s.%s" % (PACKAGE, name)
            if self._given.get(name, {}).get("source", source) != source:
                # An earlier run of the session imported another version.
                sys.modules.pop(fullname, None)
            if fullname in sys.modules:
                sys.modules[fullname].__dict__.update(self._namespace)
                continue
            del self._loaded[name]
            if package is not None:
                package.__dict__.pop(name, None)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        package, _, name = fullname.partition(".")
        if package != PACKAGE:
            return None
        if not name:
            spec = ModuleSpec(PACKAGE, self, origin="<skills>")  # type: ignore[arg-type]
            spec.submodule_search_locations = []
            return spec
        if "." in name or self._find(name) is None:
            if name in self._missing:
                # `from skills import` would discard the message of a ModuleNotFoundError.
                raise ImportError(self._missing[name], name=fullname)
            return None
        return ModuleSpec(fullname, self, origin=file_of(name))  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        """Return the package's module, which imports skills on access; None for a skill."""
        return _Package(PACKAGE, "The user's saved skills.") if spec.name == PACKAGE else None

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__.partition(".")[2]
        if not name:
            return
        skill = self._given[name]
        if skill.get("warning"):
            print("warning: skill %s: %s" % (name, skill["warning"]), file=sys.stderr)
        source = skill["source"]
        own = module.__dict__
        own.update(self._namespace)
        # The `Runtime` object: the helpers are its bound methods.
        runtime = self._namespace["runtime"].call_tool.__self__
        for server in skill.get("servers") or ():
            own.setdefault("mcp_%s" % server["alias"], Server(Tools(runtime, server)))
        register_source(source, file_of(name))
        tree = compile(source, file_of(name), "exec", _ONLY_AST, dont_inherit=True)
        strip_await(tree)
        exec(compile(tree, file_of(name), "exec", dont_inherit=True), own)
        self._loaded[name] = source

    def names(self) -> List[str]:
        found = self._client.call_and_wait("list_skills", {}, "list_skills")
        return [skill["name"] for skill in found]

    def _find(self, name: str) -> Optional[Mapping[str, Any]]:
        skill = self._given.get(name)
        if skill is None and name.isidentifier() and not name.startswith("_"):
            try:
                skill = self._client.call_and_wait("load_skill", {"name": name}, "skills." + name)
            except MCPError as error:
                if error.code == UNKNOWN:
                    self._missing[name] = str(error)
                    return None
                raise ImportError(str(error), name="%s.%s" % (PACKAGE, name)) from None
            self._given[name] = skill
        return skill


_ONLY_AST = 0x0400  # `ast.PyCF_ONLY_AST`, without importing that.


class _Package(types.ModuleType):
    """`skills`: its attributes are the skills' functions, imported on access."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            if name == "__all__":
                return finder.names()
            raise AttributeError("module 'skills' has no attribute %r" % name)
        try:
            found = self.__dict__[name] = load(name)
        except ImportError as error:
            if error.name != "%s.%s" % (PACKAGE, name):
                raise
            raise AttributeError(str(error)) from None
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        # An import sets the submodule here; the function of the same name belongs here instead.
        if not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> List[str]:
        return sorted(finder.names())


finder = SkillFinder()


def file_of(name: str) -> str:
    return "<skill %s>" % name


def load(name: str) -> Any:
    """Return a skill's function, or raise an `ImportError`."""
    fullname = "%s.%s" % (PACKAGE, name)
    __import__(fullname)
    return sys.modules[fullname].__dict__[name]
