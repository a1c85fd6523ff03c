"""The static guard's rules, as tables with a reason for each entry.

A rule denies what leaves Python (native code, other programs, raw sockets, the kernel), what hides
code from reading (text, data and names that become code), what reaches from an object into the
interpreter, and files that hold a machine's secrets or controls. A rule only notes what cannot
work in a sandbox, such as network clients. Ordinary data processing matches no rule.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model import Severity

MAX_PATH_CHARS = 4096
"""The longest path that a kernel accepts; a longer text names no file."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of the guard.

    Attributes:
        severity: "deny" if `enforce` refuses the program, "note" if the finding is only reported.
        why: Ends a sentence whose subject is the thing found, and says what to do instead.
    """

    name: str
    severity: Severity
    why: str


NATIVE_CODE = Rule(
    name="native-code",
    severity="deny",
    why="runs native code, past everything Python checks; use Python's own functions",
)
PROCESS = Rule(
    name="process",
    severity="deny",
    why="starts or signals processes; do the work in Python, or with a tool",
)
SOCKET = Rule(
    name="socket",
    severity="deny",
    why="opens sockets, and the sandbox has no network; call a tool",
)
KERNEL = Rule(
    name="kernel",
    severity="deny",
    why="asks the kernel for rights or devices, which no program gets here; leave it out",
)
DYNAMIC_CODE = Rule(
    name="dynamic-code",
    severity="deny",
    why="runs text as code, which cannot be read beforehand; write the code itself, and read data "
    "with json.loads or ast.literal_eval",
)
COMPUTED_IMPORT = Rule(
    name="computed-import",
    severity="deny",
    why="imports a module whose name is computed; write a plain import",
)
CODE_IN_DATA = Rule(
    name="code-in-data",
    severity="deny",
    why="can run code hidden in its data; use JSON or CSV",
)
INTERNALS = Rule(
    name="internals",
    severity="deny",
    why="reaches into the interpreter's own objects; use public attributes",
)
SENSITIVE_PATH = Rule(
    name="sensitive-path",
    severity="deny",
    why="holds a machine's secrets or controls; the sandbox has none, so leave it out",
)
NO_NETWORK = Rule(
    name="no-network",
    severity="note",
    why="needs a network, and the sandbox has none; call a tool",
)
NO_INPUT = Rule(
    name="no-input",
    severity="note",
    why="waits for input, which never comes; put the value into the program",
)

_IMPORTS: Mapping[str, Rule] = {
    # Any function of any library, and any system call.
    **dict.fromkeys(("ctypes", "_ctypes", "cffi", "_cffi_backend"), NATIVE_CODE),
    # Programs, forks, and a terminal to type into.
    **dict.fromkeys(("subprocess", "_posixsubprocess", "pty"), PROCESS),
    **dict.fromkeys(("multiprocessing", "_multiprocessing", "concurrent.futures.process"), PROCESS),
    # More families than the internet's: the host's own (vsock, netlink, local sockets).
    **dict.fromkeys(("socket", "_socket", "socketserver"), SOCKET),
    # `os` without its wrappers, and the control of terminals and devices.
    **dict.fromkeys(("posix", "nt", "termios", "tty"), KERNEL),
    # Compile or import text.
    **dict.fromkeys(("code", "codeop", "runpy"), DYNAMIC_CODE),
    **dict.fromkeys(("imp", "zipimport", "_imp"), COMPUTED_IMPORT),
    # The part of the bridge that runs in the sandbox.
    "bridge": INTERNALS,
    # Clients and servers of the network.
    **dict.fromkeys(
        (
            "aiohttp", "boto3", "docker", "ensurepip", "ftplib", "http.client", "http.server",
            "httpx", "imaplib", "paramiko", "pip", "podman", "poplib", "requests", "smtplib",
            "telnetlib", "urllib.request", "urllib3", "websocket", "websockets", "xmlrpc",
        ),
        NO_NETWORK,
    ),
}  # fmt: skip

_PROCESS_FUNCTIONS = (
    "execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe", "fork",
    "forkpty", "kill", "killpg", "pidfd_open", "popen", "posix_spawn", "posix_spawnp", "spawnl",
    "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe", "startfile",
    "system",
)  # fmt: skip
_KERNEL_FUNCTIONS = (
    "chroot", "initgroups", "memfd_create", "mknod", "openpty", "setegid", "seteuid", "setgid",
    "setgroups", "setns", "setregid", "setresgid", "setresuid", "setreuid", "setuid", "unshare",
)  # fmt: skip

_REFERENCES: Mapping[str, Rule] = {
    **{f"os.{name}": PROCESS for name in _PROCESS_FUNCTIONS},
    **{f"os.{name}": KERNEL for name in _KERNEL_FUNCTIONS},
    "fcntl.ioctl": KERNEL,
    **dict.fromkeys(
        (
            "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
            "concurrent.futures.ProcessPoolExecutor", "signal.pidfd_send_signal",
        ),
        PROCESS,
    ),
    **dict.fromkeys(("builtins.eval", "builtins.exec", "builtins.compile"), DYNAMIC_CODE),
    "builtins.__builtins__": INTERNALS,
    # Modules loaded from files and bytes without an import statement.
    **dict.fromkeys(
        (
            "importlib.machinery.ExtensionFileLoader", "importlib.machinery.SourceFileLoader",
            "importlib.machinery.SourcelessFileLoader", "importlib.util.module_from_spec",
            "importlib.util.spec_from_file_location", "importlib.util.spec_from_loader",
        ),
        COMPUTED_IMPORT,
    ),
    # Access to frames and to all objects.
    **dict.fromkeys(
        (
            "gc.get_objects", "gc.get_referents", "gc.get_referrers", "inspect.currentframe",
            "inspect.stack", "sys._current_frames", "sys._getframe", "sys.setprofile",
            "sys.settrace",
        ),
        INTERNALS,
    ),
    **dict.fromkeys(
        (
            "cloudpickle.load", "cloudpickle.loads", "dill.load", "dill.loads", "joblib.load",
            "jsonpickle.decode", "marshal.load", "marshal.loads", "pandas.read_pickle",
            "pickle.Unpickler", "pickle.load", "pickle.loads", "shelve.open", "yaml.unsafe_load",
        ),
        CODE_IN_DATA,
    ),
    **dict.fromkeys(
        (
            "asyncio.open_connection", "asyncio.open_unix_connection", "asyncio.start_server",
            "asyncio.start_unix_server",
        ),
        NO_NETWORK,
    ),
}  # fmt: skip

_CALLS: Mapping[str, Rule] = {
    # Types that `isinstance` commonly tests, and that build code when called.
    **dict.fromkeys(("types.CodeType", "types.FunctionType"), INTERNALS),
    "builtins.input": NO_INPUT,
    "getpass.getpass": NO_INPUT,
}

_ATTRIBUTES: Mapping[str, Rule] = dict.fromkeys(
    (
        # From an object to its class's relatives.
        "__base__", "__bases__", "__mro__", "__subclasses__",
        # From a function to its module, its code and its closure.
        "__builtins__", "__closure__", "__code__", "__globals__", "__self__", "func_globals",
        # From running code to its frame, and from a frame to other frames' variables.
        "ag_code", "ag_frame", "co_code", "cr_code", "cr_frame", "f_back", "f_builtins", "f_code",
        "f_globals", "f_locals", "gi_code", "gi_frame", "tb_frame",
        # To module loaders.
        "__import__", "__loader__", "load_module",
    ),
    INTERNALS,
)  # fmt: skip

_OPENERS = frozenset(
    {
        "builtins.open", "codecs.open", "glob.glob", "glob.iglob", "io.FileIO", "io.open",
        "io.open_code", "linecache.getline", "linecache.getlines", "os.access", "os.chdir",
        "os.chmod", "os.link", "os.listdir", "os.lstat", "os.open", "os.path.exists",
        "os.path.expanduser", "os.path.isdir", "os.path.isfile", "os.readlink", "os.scandir",
        "os.stat", "os.symlink", "os.truncate", "os.walk", "pathlib.Path", "pathlib.PosixPath",
        "shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree", "shutil.move",
        "sqlite3.connect", "tarfile.open", "zipfile.ZipFile",
    }
)  # fmt: skip
"""Functions whose arguments are files. Elsewhere a path is ordinary text: a program may print it,
search a log for it, or pass it to a tool, which may run on another machine."""

_PATHS = re.compile(
    # A process's memory, environment, descriptors and view of the disk; of the first process, all.
    r"/proc/(?:self|thread-self)/(?:task/[^/]+/)?"
    r"(?:attr|cwd|environ|exe|fd|fdinfo|gid_map|map_files|maps|mem|ns|oom_score_adj|pagemap|root"
    r"|setgroups|stack|syscall|uid_map)(?:/|$)"
    r"|/proc/[0-9]+(?:/|$)"
    # The kernel's memory, log, switches and release agents.
    r"|/proc/(?:kallsyms|kcore|kmsg|sysrq-trigger|timer_list|sys/kernel|sys/fs)(?:/|$)"
    r"|/dev/(?:fuse|kmem|kmsg|kvm|mem|port)$"
    r"|/sys/(?:firmware|kernel|fs/cgroup/(?:.*/)?release_agent$)"
    # The engines' sockets are root on the host.
    r"|.*/(?:docker|podman|containerd|crio|buildkitd)\.sock$"
    # Passwords and keys.
    r"|/etc/(?:g?shadow-?|sudoers|ssh)(?:/|$)"
    r"|(?:.*/)?(?:\.ssh|\.aws|\.azure|\.gnupg|\.kube|\.docker|\.config/gcloud)(?:/|$)"
    r"|(?:.*/)?(?:\.netrc|\.git-credentials|\.pgpass)$"
    r"|(?:/var)?/run/secrets(?:/|$)"
)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The tables that the guard applies.

    Attributes:
        imports: Rules by module; each covers the module's submodules.
        references: Rules by dotted name, for any mention of it.
        calls: Rules by dotted name, for calls only.
        attributes: Rules by attribute name, of any object, also where a text names the attribute.
        openers: Dotted names of functions whose arguments are paths.
        paths: Matches the start of a normalized path to a sensitive file.
    """

    imports: Mapping[str, Rule] = field(default_factory=lambda: _IMPORTS)
    references: Mapping[str, Rule] = field(default_factory=lambda: _REFERENCES)
    calls: Mapping[str, Rule] = field(default_factory=lambda: _CALLS)
    attributes: Mapping[str, Rule] = field(default_factory=lambda: _ATTRIBUTES)
    openers: frozenset[str] = _OPENERS
    paths: re.Pattern[str] = _PATHS

    def module(self, dotted: str) -> Rule | None:
        """Return the rule for a module or for a package that contains it."""
        parts = dotted.split(".")
        for count in range(1, min(len(parts), _DEEPEST_MODULE) + 1):
            rule = self.imports.get(".".join(parts[:count]))
            if rule is not None:
                return rule
        return None

    def sensitive(self, path: str) -> bool:
        """Return whether `path` names a sensitive file."""
        if not path or len(path) > MAX_PATH_CHARS:
            return False
        plain = posixpath.normpath(path)
        if plain.startswith("//"):
            # `normpath` keeps two leading slashes, as POSIX says; Linux treats them as one.
            plain = plain[1:]
        return self.paths.match(plain) is not None


_DEEPEST_MODULE = 4
"""One more than the parts of the longest module name in a table."""

DEFAULT = Rules()
