"""`IPython.display` for programs that were learned from notebooks, where there is no IPython.

Owns stand-ins for what notebooks import from it: each shows what it was given, as `display` does.
Imported by programs that mention IPython; a real one, where the image or a package has it, is found
first. Nothing else of IPython is here, and no shell.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Optional
else:
    # What `importlib.machinery` calls so, without importing that.
    ModuleSpec = type(sys.__spec__)

MAX_PATH = 255
"""Characters of a text that may be a file's name."""

MODULES = ("IPython", "IPython.display", "IPython.core", "IPython.core.display")


class Form:
    """Something to be shown: given as it is, or as a file."""

    reads_paths = False

    def __init__(
        self, data: Any = None, url: Any = None, filename: Any = None, **options: Any
    ) -> None:
        if url is not None:
            message = "%s(url=...): the sandbox has no network; give the data, or a file"
            raise ValueError(message % type(self).__name__)
        if filename is None and self.reads_paths and _is_path(data):
            filename = data
        if filename is not None:
            with open(filename, "rb") as file:
                data = file.read()
        self.data = data

    def _text(self) -> str:
        data = self.data
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)


class Image(Form):
    """A picture."""

    reads_paths = True

    def _repr_png_(self) -> Any:
        return self.data


class HTML(Form):
    """A page, or a part of one."""

    def _repr_html_(self) -> str:
        return self._text()


class Markdown(Form):
    """A text with marks."""

    def _repr_markdown_(self) -> str:
        return self._text()


class SVG(Form):
    """A drawing."""

    reads_paths = True

    def _repr_svg_(self) -> str:
        return self._text()


class Pretty(Form):
    """A text that is printed."""

    def __repr__(self) -> str:
        return self._text()


class JSON(Form):
    """A value that is printed as JSON."""

    def __repr__(self) -> str:
        import json

        return json.dumps(self.data, indent=2, default=str)


def display(*values: Any, **options: Any) -> None:
    """Show values; what a notebook would do with the options is nobody's concern here."""
    from bridge.guest.surroundings import display as show

    show(*values)


def clear_output(wait: bool = False) -> None:
    """Leave what was shown as it is: nobody watches a screen."""


def get_ipython() -> None:
    """Say that there is no shell."""


_NAMES = {
    **{kind.__name__: kind for kind in (Image, HTML, Markdown, SVG, Pretty, JSON)},
    "Latex": Markdown,
    "Math": Markdown,
    "Code": Pretty,
    "display": display,
    "clear_output": clear_output,
    "get_ipython": get_ipython,
    "version_info": (8, 0, 0),
}


class Finder:
    """Finds the modules where nobody else does."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Find one of them."""
        if fullname not in MODULES:
            return None
        spec = ModuleSpec(fullname, self, origin="<%s>" % fullname)  # type: ignore[arg-type]
        if "%s.display" % fullname in MODULES:
            spec.submodule_search_locations = []
        return spec

    def create_module(self, spec: Any) -> None:
        """Have the usual kind made."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Put the names in."""
        names = dict(_NAMES)
        if "%s.display" % module.__name__ in MODULES:
            # There it is the module.
            del names["display"]
        module.__dict__.update(names)


_finder = Finder()


def offer() -> None:
    """Have the modules be found, after all others."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def _is_path(data: Any) -> Optional[bool]:
    if isinstance(data, str):
        return len(data) <= MAX_PATH and "<" not in data and "\n" not in data
    return hasattr(data, "__fspath__")
