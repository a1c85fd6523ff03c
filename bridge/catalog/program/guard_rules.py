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

DENIED: Mapping[str, str] = {
    "native-code": "runs native code, past everything Python checks; use Python's own functions",
    "process": "starts or signals processes; do the work in Python, or with a tool",
    "socket": "opens sockets, and the sandbox has no network; call a tool",
    "kernel": "asks the kernel for rights or devices, which no program gets here; leave it out",
    "dynamic-code": "runs text as code, which cannot be read beforehand; write the code itself, "
    "and read data with json.loads or ast.literal_eval",
    "computed-import": "imports a module whose name is computed; write a plain import",
    "code-in-data": "can run code hidden in its data; use JSON or CSV",
    "internals": "reaches into the interpreter's own objects; use public attributes",
    "sensitive-path": "holds a machine's secrets or controls; the sandbox has none, "
    "so leave it out",
    "listed": "is denied by the user's settings (guard_denies); do without it",
}
"""Rules for which `enforce` refuses the program. Each ends a sentence whose subject is the thing
found, and says what to do instead."""

NOTED: Mapping[str, str] = {
    "no-network": "needs a network, and the sandbox has none; call a tool",
    "no-input": "waits for input, which never comes; put the value into the program",
}
"""Rules whose findings are only reported."""

IMPORTS: Mapping[str, str] = {
    # Any function of any library, and any system call.
    **dict.fromkeys(("ctypes", "_ctypes", "cffi", "_cffi_backend"), "native-code"),
    # Programs, forks, and a terminal to type into.
    **dict.fromkeys(("subprocess", "_posixsubprocess", "pty", "multiprocessing"), "process"),
    **dict.fromkeys(("_multiprocessing", "concurrent.futures.process"), "process"),
    # More families than the internet's: the host's own (vsock, netlink, local sockets).
    **dict.fromkeys(("socket", "_socket", "socketserver"), "socket"),
    # `os` without its wrappers, and the control of terminals and devices.
    **dict.fromkeys(("posix", "nt", "termios", "tty"), "kernel"),
    # Compile or import text.
    **dict.fromkeys(("code", "codeop", "runpy"), "dynamic-code"),
    **dict.fromkeys(("imp", "zipimport", "_imp"), "computed-import"),
    # The part of the bridge that runs in the sandbox.
    "bridge": "internals",
    # Clients and servers of the network.
    **dict.fromkeys(
        (
            "aiohttp", "boto3", "docker", "ensurepip", "ftplib", "http.client", "http.server",
            "httpx", "imaplib", "paramiko", "pip", "podman", "poplib", "requests", "smtplib",
            "telnetlib", "urllib.request", "urllib3", "websocket", "websockets", "xmlrpc",
        ),
        "no-network",
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

REFERENCES: Mapping[str, str] = {
    **{f"os.{name}": "process" for name in _PROCESS_FUNCTIONS},
    **{f"os.{name}": "kernel" for name in _KERNEL_FUNCTIONS},
    "fcntl.ioctl": "kernel",
    **dict.fromkeys(
        (
            "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
            "concurrent.futures.ProcessPoolExecutor", "signal.pidfd_send_signal",
        ),
        "process",
    ),
    **dict.fromkeys(("builtins.eval", "builtins.exec", "builtins.compile"), "dynamic-code"),
    "builtins.__builtins__": "internals",
    # Modules loaded from files and bytes without an import statement.
    **dict.fromkeys(
        (
            "importlib.machinery.ExtensionFileLoader", "importlib.machinery.SourceFileLoader",
            "importlib.machinery.SourcelessFileLoader", "importlib.util.module_from_spec",
            "importlib.util.spec_from_file_location", "importlib.util.spec_from_loader",
        ),
        "computed-import",
    ),
    # Access to frames and to all objects.
    **dict.fromkeys(
        (
            "gc.get_objects", "gc.get_referents", "gc.get_referrers", "inspect.currentframe",
            "inspect.stack", "sys._current_frames", "sys._getframe", "sys.setprofile",
            "sys.settrace",
        ),
        "internals",
    ),
    **dict.fromkeys(
        (
            "cloudpickle.load", "cloudpickle.loads", "dill.load", "dill.loads", "joblib.load",
            "jsonpickle.decode", "marshal.load", "marshal.loads", "pandas.read_pickle",
            "pickle.Unpickler", "pickle.load", "pickle.loads", "shelve.open", "yaml.unsafe_load",
        ),
        "code-in-data",
    ),
    **dict.fromkeys(
        (
            "asyncio.open_connection", "asyncio.open_unix_connection", "asyncio.start_server",
            "asyncio.start_unix_server",
        ),
        "no-network",
    ),
}  # fmt: skip

CALLS: Mapping[str, str] = {
    # Types that `isinstance` commonly tests, and that build code when called.
    **dict.fromkeys(("types.CodeType", "types.FunctionType"), "internals"),
    "builtins.input": "no-input",
    "getpass.getpass": "no-input",
}

ATTRIBUTES: Mapping[str, str] = dict.fromkeys(
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
    "internals",
)  # fmt: skip

OPENERS = frozenset(
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


def rule_of_module(dotted: str) -> str | None:
    """Return the rule for a module, or for a package that contains it."""
    parts = dotted.split(".")
    # No module in the table has more than three parts.
    packages = (".".join(parts[:count]) for count in range(1, min(len(parts), 4) + 1))
    return next((IMPORTS[package] for package in packages if package in IMPORTS), None)


def is_sensitive(path: str) -> bool:
    if not path or len(path) > 4096:
        return False
    plain = posixpath.normpath(path)
    if plain.startswith("//"):
        # `normpath` keeps two leading slashes, as POSIX says; Linux treats them as one.
        plain = plain[1:]
    return _PATHS.match(plain) is not None
