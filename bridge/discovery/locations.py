"""Resolves `{places}` of path templates for a machine, user and working directory."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridge.discovery.consents import Consents
from bridge.discovery.dialect import Platform
from bridge.discovery.files import read_regular
from bridge.model import Directory
from bridge.settings.values import ProjectServers

_PLACE = re.compile(r"\{([a-z_]+)\}")

Places = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, kw_only=True)
class DiscoveryContext:
    """The user, directory and settings of a search for servers."""

    home: Path
    cwd: Path
    platform: Platform
    environ: Mapping[str, str] = field(repr=False)
    # The file from `MCP_SERVERS_CONFIG`; may be relative or start with `~`.
    extra_config: Path | None = None
    allow_self: bool = False  # Whether entries that start this bridge are used.
    project_servers: ProjectServers = "approved"
    consents: Consents = field(default_factory=Consents)
    system_root: Path = Path("/")  # The root of the system's configuration directories.
    sources: tuple[str, ...] = ()  # Names of `clients.SOURCE_IDS`, or names with a "-" to omit.
    sources_place: str = "MCP_BRIDGE_SOURCES"
    # Directories that programs may write to: their files define no server, and no server starts
    # from them.
    exposed: tuple[Path, ...] = ()
    # The exposed directories that the settings name, with the servers that may use them.
    directories: tuple[Directory, ...] = ()
    moved: Path | None = None  # Directory of entries that were moved out of clients' files.


@dataclass(frozen=True, kw_only=True)
class Project:
    """The working directory, as Claude Code sees it."""

    cwd: Path
    root: Path | None  # The repository's root at or above it; None outside a repository.
    main: Path | None  # The main repository's root if `root` is a worktree, else `root`.
    keys: tuple[str, ...]  # Its possible keys in Claude Code's state, most current first.


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A context with its project and the values of `{places}`."""

    context: DiscoveryContext
    project: Project
    places: Places

    @property
    def root(self) -> Path:
        return self.project.root or self.project.cwd

    def program(self, name: str) -> str:
        """Return the path of a command; empty if there is none.

        Ignores commands in the working directory, which another user may have written.
        """
        path = shutil.which(name, path=self.context.environ.get("PATH", "")) if name else None
        return path if path and Path(path).is_absolute() else ""


def machine_of(context: DiscoveryContext) -> Machine:
    project = find_project(context.cwd)
    return Machine(context=context, project=project, places=path_variables(context, project))


def find_project(cwd: Path) -> Project:
    root = next((place for place in (cwd, *cwd.parents) if _is_repository(place, cwd)), None)
    main = None if root is None else _main_repository(root)
    keys = [path for path in (main, root, cwd) if path is not None]
    # Claude Code sees the directory with its symbolic links resolved.
    spelled = [text for key in keys for text in (os.path.realpath(key), str(key))]
    return Project(cwd=cwd, root=root, main=main, keys=tuple(dict.fromkeys(spelled)))


def path_variables(context: DiscoveryContext, project: Project) -> Places:
    platform, home, environ = context.platform, context.home, context.environ
    extra = context.extra_config
    claude = environ.get("CLAUDE_CONFIG_DIR", "")
    cwd = project.cwd
    config = _absolute(environ.get("XDG_CONFIG_HOME", "")) or home / ".config"
    library = home / "Library" / "Application Support"
    appdata = Path(environ.get("APPDATA", "") or home / "AppData" / "Roaming")
    data = _absolute(environ.get("XDG_DATA_HOME", "")) or home / ".local" / "share"
    windows = platform == "win32"
    # The directory of machine-specific data; macOS uses the same as Linux.
    local = Path(environ.get("LOCALAPPDATA", "") or home / "AppData/Local") if windows else config
    data = local if windows else data
    base = {"linux": config, "darwin": library, "win32": appdata}[platform]
    found: dict[str, tuple[Path, ...]] = {
        "home": (home,),
        "cwd": (cwd,),
        "system": (context.system_root,),
        "library": (library,),
        "config": (config,),
        "appdata": (appdata,),
        "programs": (Path(environ.get("ProgramFiles", "") or "C:/Program Files"),) * windows,
        "claude_state": (cwd / claude,) if claude else (home,),
        "claude_settings": (cwd / claude,) if claude else (home / ".claude",),
        "extra": () if extra is None else (_from_cwd(extra, home=home, cwd=cwd),),
        # Claude Code walks to the root of the file system. Above home, or above a repository
        # outside home, other users could write files with commands.
        "upwards": _up_to(cwd, home, Path(os.path.realpath(home)), project.root),
        "within": _up_to(cwd, project.root),
        "workspace": tuple(dict.fromkeys((cwd, project.root or cwd))),
        "project": tuple(dict.fromkeys((cwd, project.root or cwd, project.main or cwd))),
        "vscode": (base / "Code" / "User", base / "Code - Insiders" / "User"),
        "zed": (appdata / "Zed" if windows else config / "zed",),
        "goose": (appdata / "Block/goose/config" if windows else config / "goose",),
        "devin": (appdata / "devin" if windows else home / ".config" / "devin",),
        "trae": (base / "Trae" / "User", base / "Trae CN" / "User"),
        "intellij": (local / "github-copilot" / "intellij",),
        "packages": (local / "Packages",),
        "opencode_app": (library / "OpenCode",),
    }
    found |= _movable(environ, home=home, cwd=cwd, config=config, data=data)
    return found | _system_places(platform, context.system_root, environ)


def _movable(
    environ: Mapping[str, str], *, home: Path, cwd: Path, config: Path, data: Path
) -> dict[str, tuple[Path, ...]]:
    def place(variable: str, default: Path) -> Path:
        named = environ.get(variable, "").strip()
        return _from_cwd(Path(named), home=home, cwd=cwd) if named else default

    cline = place("CLINE_DATA_DIR", place("CLINE_DIR", home / ".cline") / "data")
    settings = cline / "settings" / "cline_mcp_settings.json"
    gemini = place("GEMINI_CLI_HOME", home) / ".gemini"
    opencode_file = environ.get("OPENCODE_CONFIG", "").strip()
    opencode_extra = environ.get("OPENCODE_CONFIG_DIR", "").strip()
    return {
        "codex": (place("CODEX_HOME", home / ".codex"),),
        "gemini": (gemini,),
        "gemini_trust": (place("GEMINI_CLI_TRUSTED_FOLDERS_PATH", gemini / "trustedFolders.json"),),
        "continue": (place("CONTINUE_GLOBAL_DIR", home / ".continue"),),
        "copilot": (place("COPILOT_HOME", home / ".copilot"),),
        "qwen": (place("QWEN_HOME", home / ".qwen"),),
        "kimi": (place("KIMI_CODE_HOME", home / ".kimi-code"),),
        "kimi_cli": (place("KIMI_SHARE_DIR", home / ".kimi"),),
        "vibe": (place("VIBE_HOME", home / ".vibe"),),
        "crush": (place("CRUSH_GLOBAL_CONFIG", config / "crush"),),
        "crush_data": (place("CRUSH_GLOBAL_DATA", data / "crush"),),
        "cline_settings": (place("CLINE_MCP_SETTINGS_PATH", settings),),
        "opencode": tuple(dict.fromkeys((config / "opencode", home / ".opencode"))),
        "opencode_file": (cwd / opencode_file,) if opencode_file else (),
        "opencode_extra": (cwd / opencode_extra,) if opencode_extra else (),
    }


def _system_places(
    platform: Platform, root: Path, environ: Mapping[str, str]
) -> dict[str, tuple[Path, ...]]:
    data = Path(environ.get("ProgramData", "") or "C:/ProgramData")
    codex = str(root / "etc" / "codex")
    mac = root / "Library" / "Application Support"
    base, named = {
        "linux": (root / "etc", ("codex", "gemini-cli", "opencode", "qwen-code", "ampcode")),
        "darwin": (mac, (codex, "GeminiCli", "opencode", "QwenCode", "ampcode")),
        "win32": (data, ("OpenAI/Codex", "gemini-cli", "opencode", "qwen-code", "ampcode")),
    }[platform]
    clients = ("codex", "gemini", "opencode", "qwen", "amp")
    return {f"{client}_system": (base / name,) for client, name in zip(clients, named, strict=True)}


def fill(template: str, places: Places) -> tuple[Path, ...]:
    return tuple(path for path, _ in fill_with_origin(template, places))


def fill_with_origin(template: str, places: Places) -> tuple[tuple[Path, Path], ...]:
    """Return all paths of a template, each with the place that it starts from."""
    match = _PLACE.match(template)
    if match is None:
        return ((Path(template), Path(template).parent),)
    rest = template[match.end() :].lstrip("/")
    return tuple((place / rest if rest else place, place) for place in places[match[1]])


def _up_to(cwd: Path, *roots: Path | None) -> tuple[Path, ...]:
    chain = (cwd, *cwd.parents)
    last = next((root for root in roots if root in chain), cwd)
    return chain[: chain.index(last) + 1]


def _from_cwd(path: Path, *, home: Path, cwd: Path) -> Path:
    if path.parts[:1] == ("~",):
        return home.joinpath(*path.parts[1:])
    return cwd / path


def _absolute(text: str) -> Path | None:
    # The XDG specification requires programs to ignore relative paths.
    path = Path(text)
    return path if path.is_absolute() else None


def _main_repository(root: Path) -> Path:
    raw = read_regular(root / ".git", limit=64 * 1024)
    if isinstance(raw, str):
        return root
    line = os.fsdecode(raw).strip()
    if not line.startswith("gitdir:") or "\0" in line:
        return root
    git_dir = root / line.removeprefix("gitdir:").strip()
    if git_dir.parent.name != "worktrees" or git_dir.parent.parent.name != ".git":
        return root
    # An unpacked archive may claim to be a worktree of a project with approved servers. Git also
    # records a real worktree in the main repository.
    back = read_regular(git_dir / "gitdir", limit=64 * 1024)
    if isinstance(back, str) or b"\0" in back:
        return root
    named = git_dir / os.fsdecode(back).strip()
    # Compare the directory: this `.git` may be a link to a real worktree's.
    same = named.name == ".git" and os.path.realpath(named.parent) == os.path.realpath(root)
    return git_dir.parent.parent.parent if same else root


def _is_repository(place: Path, cwd: Path) -> bool:
    """Return whether a directory is the root of a trusted repository.

    Anyone can create `.git` in a directory like `/tmp`, and so a project of everything below. It
    must belong to the owner of the working directory, to this user or to root.
    """
    try:
        found = (place / ".git").stat()
        if stat.S_IFMT(found.st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
            return False
        return place == cwd or found.st_uid in (cwd.stat().st_uid, os.getuid(), 0)
    except (OSError, ValueError):
        return False
