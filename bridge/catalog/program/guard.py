"""The static guard: finds what its tables name in a program's text. Pure.

Rules deny what leaves Python, what hides code from reading, what reaches into the interpreter, and
files with a machine's secrets. The guard is defence in depth and no security boundary: a program
can hide its intent from it, and the sandbox does not rely on it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from posixpath import normpath
from typing import Any

from bridge.catalog.program.parsing import Edit, plainly
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import IMPORTERS, SymbolResolver
from bridge.model import Finding, FindingSource, Severity
from bridge.text import clip, valid_text

MAX_FINDINGS = 25
"""Findings of each severity; a program may have any number of mistakes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The findings of the guard, or of the preflight, in the order of the lines."""

    findings: tuple[Finding, ...] = ()
    omitted: int = 0  # Number of findings left out.
    # The fixes of all that stops the program; empty if one has no known fix.
    edits: tuple[Edit, ...] = ()

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The findings that stop the program: certain mistakes, and what the guard denies."""
        return tuple(one for one in self.findings if one.severity == "deny")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.severity == "note")


NOTHING = Verdict()


class Report:
    def __init__(self, source: FindingSource = "preflight") -> None:
        self._source: FindingSource = source
        self._found: dict[tuple[int, str, str], Finding] = {}
        self._counts = {"deny": 0, "note": 0}
        self._omitted = 0
        self._tried = 0
        self._fixable = True
        self._edits: list[Edit] = []

    def add(
        self,
        node: ast.AST,
        rule: str,
        severity: Severity,
        message: str | Callable[[], str],
        edits: Sequence[Edit] = (),
    ) -> None:
        self._fixable &= bool(edits) or severity != "deny"
        self._edits += edits if severity == "deny" else ()
        self._tried += 1
        # Finding the nearest name takes a millisecond for each mistake.
        if self._tried > 4 * MAX_FINDINGS or self._counts[severity] >= MAX_FINDINGS:
            self._omitted += 1
            return
        text = message if isinstance(message, str) else message()
        finding = Finding(
            line=getattr(node, "lineno", 0),
            # The tree counts columns from 0, a finding from 1.
            column=getattr(node, "col_offset", -1) + 1,
            rule=rule,
            severity=severity,
            message=valid_text(clip(text, 1000)),
            source=self._source,
        )
        key = (finding.line, rule, finding.message)
        if key not in self._found:
            self._counts[severity] += 1
            self._found[key] = finding

    def verdict(self) -> Verdict:
        return Verdict(
            findings=tuple(sorted(self._found.values(), key=lambda one: (one.line, one.column))),
            omitted=self._omitted,
            edits=tuple(self._edits) if self._fixable else (),
        )


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
"""Rules by which `enforce` refuses the program. The text follows the name of the match, and gives
the fix."""

NOTED: Mapping[str, str] = {
    "no-network": "needs a network, and the sandbox has none; call a tool",
    "no-input": "waits for input, which never comes; put the value into the program",
}
"""Rules whose findings are only reported."""


def _by_name(table: str) -> Mapping[str, str]:
    """Read lines that have a rule and the names that it is for."""
    rows = [line.split() for line in table.splitlines() if line.strip(" #") and "# " not in line]
    return {name: rule for rule, *names in rows for name in names}


IMPORTS = _by_name(
    """
    # Any function of any library, and any system call.
    native-code ctypes _ctypes cffi _cffi_backend
    # Programs, forks, and a terminal to type into.
    process subprocess _posixsubprocess pty multiprocessing _multiprocessing
    process concurrent.futures.process
    # More families than the internet's: the host's own (vsock, netlink, local sockets).
    socket socket _socket socketserver
    # `os` without its wrappers, and the control of terminals and devices.
    kernel posix nt termios tty
    dynamic-code code codeop runpy
    computed-import imp zipimport _imp
    # The part of the bridge that runs in the sandbox.
    internals bridge
    no-network aiohttp boto3 docker ensurepip ftplib http.client http.server httpx imaplib paramiko
    no-network pip podman poplib requests smtplib telnetlib urllib.request urllib3 websocket
    no-network websockets xmlrpc
    """
)

REFERENCES = _by_name(
    """
    process os.execl os.execle os.execlp os.execlpe os.execv os.execve os.execvp os.execvpe os.fork
    process os.forkpty os.kill os.killpg os.pidfd_open os.popen os.posix_spawn os.posix_spawnp
    process os.spawnl os.spawnle os.spawnlp os.spawnlpe os.spawnv os.spawnve os.spawnvp os.spawnvpe
    process os.startfile os.system asyncio.create_subprocess_exec asyncio.create_subprocess_shell
    process concurrent.futures.ProcessPoolExecutor signal.pidfd_send_signal
    kernel os.chroot os.initgroups os.memfd_create os.mknod os.openpty os.setegid os.seteuid
    kernel os.setgid os.setgroups os.setns os.setregid os.setresgid os.setresuid os.setreuid
    kernel os.setuid os.unshare fcntl.ioctl
    dynamic-code builtins.eval builtins.exec builtins.compile
    # Access to frames and to all objects.
    internals builtins.__builtins__ gc.get_objects gc.get_referents gc.get_referrers
    internals inspect.currentframe inspect.stack sys._current_frames sys._getframe sys.setprofile
    internals sys.settrace
    # Modules loaded from files and bytes without an import statement.
    computed-import importlib.machinery.ExtensionFileLoader importlib.machinery.SourceFileLoader
    computed-import importlib.machinery.SourcelessFileLoader importlib.util.module_from_spec
    computed-import importlib.util.spec_from_file_location importlib.util.spec_from_loader
    code-in-data cloudpickle.load cloudpickle.loads dill.load dill.loads joblib.load
    code-in-data jsonpickle.decode marshal.load marshal.loads pandas.read_pickle pickle.Unpickler
    code-in-data pickle.load pickle.loads shelve.open yaml.unsafe_load
    no-network asyncio.open_connection asyncio.open_unix_connection asyncio.start_server
    no-network asyncio.start_unix_server
    """
)
"""Functions that no program may name, since it could pass them on."""

# Calls of types that `isinstance` commonly tests, and that build code when called.
CALLS = _by_name(
    """
    internals types.CodeType types.FunctionType
    no-input builtins.input getpass.getpass
    """
)

ATTRIBUTES = _by_name(
    """
    # From an object to its class's relatives.
    internals __base__ __bases__ __mro__ __subclasses__
    # From a function to its module, its code and its closure.
    internals __builtins__ __closure__ __code__ __globals__ __self__ func_globals
    # From running code to its frame, and from a frame to other frames' variables.
    internals ag_code ag_frame co_code cr_code cr_frame f_back f_builtins f_code f_globals
    internals f_locals gi_code gi_frame tb_frame
    # To module loaders.
    internals __import__ __loader__ load_module
    """
)

OPENERS = frozenset(
    """
    builtins.open codecs.open glob.glob glob.iglob io.FileIO io.open io.open_code
    linecache.getline linecache.getlines os.access os.chdir os.chmod os.link os.listdir os.lstat
    os.open os.path.exists os.path.expanduser os.path.isdir os.path.isfile os.readlink os.scandir
    os.stat os.symlink os.truncate os.walk pathlib.Path pathlib.PosixPath shutil.copy shutil.copy2
    shutil.copyfile shutil.copytree shutil.move sqlite3.connect tarfile.open zipfile.ZipFile
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Functions whose arguments are files. Any other path is plain text: a program may print it, or
pass it to a tool on another machine."""

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


_ACCESSORS = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr"})
_GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
_PATH_METHODS = frozenset(
    {"exists", "iterdir", "open", "read_bytes", "read_text", "write_bytes", "write_text"}
)
_TAILS = frozenset(name.rpartition(".")[2] for name in REFERENCES)


def check(survey: Survey, denied: Sequence[str] = ()) -> Verdict:
    """Return the guard's verdict on a program. May run in any thread.

    The settings deny the modules, functions, attributes (".name") and paths in `denied` too.
    """
    guard = _Guard(survey, denied)
    for rule, *kinds in _RULES:
        for node, context in survey.every(*kinds):
            rule(guard, node, context)
    return guard.report.verdict()


class _Guard:
    def __init__(self, survey: Survey, denied: Sequence[str]) -> None:
        self._denied = denied
        self._tails = _TAILS | {name.rpartition(".")[2] for name in denied}
        self.report = Report("guard")
        self._survey = survey
        self._symbols = SymbolResolver(survey, {})

    def _add(self, node: ast.AST, rule: str | None, subject: str) -> bool:
        if rule is not None:
            severity: Severity = "deny" if rule in DENIED else "note"
            why = DENIED.get(rule) or NOTED[rule]
            self.report.add(node, rule, severity, f"`{plainly(subject, 80)}` {why}")
        return rule is not None

    def _import(self, node: ast.Import | ast.ImportFrom, _: Context) -> None:
        module = ""
        if isinstance(node, ast.ImportFrom):
            module = "" if node.level else node.module or ""
            if not module or self._module(node, module):
                return
        for item in node.names:
            dotted = f"{module}.{item.name}" if module else item.name
            if not self._module(node, dotted):
                self._reference(node, [dotted])

    def _module(self, node: ast.AST, dotted: str) -> bool:
        parts = dotted.split(".")
        # No module in the table has more than three parts.
        packages = (".".join(parts[:count]) for count in range(1, min(len(parts), 4) + 1))
        rule = next((IMPORTS[package] for package in packages if package in IMPORTS), None)
        return self._add(node, rule or self._rule_of_settings(dotted), f"import {dotted}")

    def _rule_of_settings(self, name: str) -> str | None:
        below = (name == each or name.startswith((f"{each}.", f"{each}/")) for each in self._denied)
        return "listed" if any(below) else None

    def _reference(self, node: ast.AST, symbols: Iterable[str]) -> None:
        for dotted in symbols:
            name = dotted.removeprefix("builtins.")
            self._add(node, REFERENCES.get(dotted) or self._rule_of_settings(name), name)

    def _attribute_text(self, node: ast.AST, text: str) -> bool:
        return self._add(
            node, ATTRIBUTES.get(text) or self._rule_of_settings(f".{text}"), f".{text}"
        )

    def _name(self, node: ast.Name, context: Context) -> None:
        if not isinstance(node.ctx, ast.Load) or node.id not in self._tails:
            return
        # A name that the program binds is reported where it is bound.
        if self._survey.owner(node.id, context) is None:
            self._reference(node, self._symbols.dotted_names(node, context))

    def _attribute(self, node: ast.Attribute, context: Context) -> None:
        if not self._attribute_text(node, node.attr) and node.attr in self._tails:
            self._reference(node, self._symbols.dotted_names(node, context))

    def _match_class(self, node: ast.MatchClass, _: Context) -> None:
        for name in node.kwd_attrs:
            self._attribute_text(node, name)

    def _subscript(self, node: ast.Subscript, context: Context) -> None:
        key = self._symbols.text(node.slice, context)
        if key is None:
            return
        if key.startswith("__"):
            self._attribute_text(node, key)
        self._reference(node, self._symbols.dotted_names(node, context))
        if "sys.modules" in self._symbols.dotted_names(node.value, context):
            self._module(node, key)

    def _call(self, node: ast.Call, context: Context) -> None:
        function = node.func
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        for dotted in self._symbols.dotted_names(function, context):
            if (rule := CALLS.get(dotted)) is not None:
                self._add(node, rule, f"{dotted.removeprefix('builtins.')}()")
            elif dotted in IMPORTERS:
                self._import_call(node, context, dotted)
            elif dotted in _ACCESSORS and len(node.args) > 1:
                self._named_attributes(node, node.args[1:2], context)
                self._reference(node, self._symbols.dotted_names(node, context))
            elif dotted in _GETTERS:
                self._named_attributes(node, node.args, context)
            elif dotted in OPENERS:
                self._paths(node, arguments, context)
        if isinstance(function, ast.Attribute):
            if function.attr in ("__getattribute__", "__getattr__"):
                self._named_attributes(node, node.args, context)
            elif function.attr == "connect":
                # A socket of the host's is connected to by its path.
                self._paths(node, arguments, context)
            elif function.attr in _PATH_METHODS:
                self._paths(node, [function.value], context)

    def _import_call(self, node: ast.Call, context: Context, function: str) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        for argument in (node.args or named)[:1]:
            if (name := self._symbols.text(argument, context)) is not None:
                self._module(node, name)
            elif not self._symbols.start(argument, context).startswith("mcp."):
                # A computed name of a server's module is allowed.
                self._add(node, "computed-import", f"{function.removeprefix('builtins.')}()")

    def _named_attributes(self, node: ast.Call, given: list[ast.expr], context: Context) -> None:
        for argument in given:
            text = self._symbols.text(argument, context)
            for part in text.split(".") if text else ():
                self._attribute_text(node, part)

    def _paths(self, node: ast.Call, given: Iterable[ast.expr], context: Context) -> None:
        for argument in given:
            if (path := self._symbols.text(argument, context)) is not None:
                # `normpath` keeps two leading slashes, as POSIX says; Linux treats them as one.
                plain = normpath(path).replace("//", "/", 1) if 0 < len(path) <= 4096 else ""
                secret = "sensitive-path" if _PATHS.match(plain) else None
                self._add(node, secret or self._rule_of_settings(normpath(path)), path)


_RULES: tuple[tuple[Any, ...], ...] = (
    (_Guard._import, ast.Import, ast.ImportFrom),
    (_Guard._name, ast.Name),
    (_Guard._attribute, ast.Attribute),
    (_Guard._subscript, ast.Subscript),
    (_Guard._call, ast.Call),
    (_Guard._match_class, ast.MatchClass),
)
