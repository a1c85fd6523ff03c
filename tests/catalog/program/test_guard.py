"""The static guard: what it finds, what it leaves alone, and that no text is too much for it."""

from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path

import pytest

from bridge.catalog.program.guard import DENIED as DENYING
from bridge.catalog.program.guard import MAX_FINDINGS, Verdict, check
from bridge.catalog.program.guard import NOTED as NOTING
from bridge.catalog.program.parsing import (
    MAX_BRACES,
    MAX_SCANNED_CHARS,
    SYNTAX,
    TOO_DEEP,
    TOO_LONG,
    Unread,
    parse,
)
from bridge.catalog.program.survey import Survey
from bridge.model import Finding
from examples import demo
from tests.contract import programs

EXAMPLES = Path(demo.__file__).parent
DOCS = EXAMPLES.parent / "docs"


def scan(code: str) -> Verdict:
    tree = parse(code)
    return Verdict(findings=(tree.finding,)) if isinstance(tree, Unread) else check(Survey(tree))


DENIED = [
    ("import ctypes", "native-code"),
    ("import ctypes.util as u", "native-code"),
    ("from ctypes import CDLL", "native-code"),
    ("import _ctypes", "native-code"),
    ("from cffi import FFI", "native-code"),
    ("def f():\n import ctypes", "native-code"),
    ("import importlib\nimportlib.import_module('cty' + 'pes')", "native-code"),
    ("__import__('ctypes').CDLL(None)", "native-code"),
    ("import sys\nsys.modules['_ctypes']", "native-code"),
    ("import subprocess", "process"),
    ("from subprocess import run as go", "process"),
    ("import multiprocessing.pool", "process"),
    ("import pty", "process"),
    ("import os\nos.system('id')", "process"),
    ("import os as o\no.system('id')", "process"),
    ("import os.path as p, os as o\nx = o\nx.popen('id')", "process"),
    ("from os import system as s\ns('id')", "process"),
    ("from os import *\nsystem('id')", "process"),
    ("import os\nrun = os.execvp", "process"),
    ("import os\nlist(map(os.system, ['id']))", "process"),
    ("import os\nos.fork()", "process"),
    ("import os\ngetattr(os, 'sys' + 'tem')('id')", "process"),
    ("import os\nname = 'system'\ngetattr(os, name)('id')", "process"),
    ("import os\nos.__dict__['system']('id')", "process"),
    ("import os\nvars(os)['system']('id')", "process"),
    ("import sys\nsys.modules['os'].system('id')", "process"),
    ("__import__('os').system('id')", "process"),
    ("from importlib import import_module as load\nload('os').kill(1, 9)", "process"),
    ("a, b = 1, __import__('os')\nb.system('id')", "process"),
    ("def f():\n global o\n import os as o\no.system('id')", "process"),
    ("[(o := __import__('os')) for _ in '1']\no.system('id')", "process"),
    ("class A:\n import os\n os.system('id')", "process"),
    ("import asyncio\nawait asyncio.create_subprocess_shell('id')", "process"),
    ("from concurrent import futures\nfutures.ProcessPoolExecutor()", "process"),
    ("import socket", "socket"),
    ("from _socket import socket", "socket"),
    ("import os\nos.setuid(0)", "kernel"),
    ("import os\nos.unshare(0)", "kernel"),
    ("import fcntl\nfcntl.ioctl(0, 0x5412, 'x')", "kernel"),
    ("import posix", "kernel"),
    ("eval('1')", "dynamic-code"),
    ("exec(text)", "dynamic-code"),
    ("compile(text, 'f', 'exec')", "dynamic-code"),
    ("e = eval\ne('1')", "dynamic-code"),
    ("import builtins as b\nb.exec('1')", "dynamic-code"),
    ("list(map(eval, lines))", "dynamic-code"),
    ("class A:\n eval = 1\n def f(self): return eval('1')", "dynamic-code"),
    ("def f(eval): ...\neval('1')", "dynamic-code"),
    ("import runpy", "dynamic-code"),
    ("__import__(name)", "computed-import"),
    ("import importlib\nimportlib.import_module(name)", "computed-import"),
    ("import importlib.util\nimportlib.util.spec_from_file_location('a', 'b')", "computed-import"),
    ("import pickle\npickle.loads(data)", "code-in-data"),
    ("from pickle import load", "code-in-data"),
    ("import marshal\nmarshal.loads(data)", "code-in-data"),
    ("import pandas as pd\npd.read_pickle('a')", "code-in-data"),
    ("().__class__.__base__", "internals"),
    ("().__class__.__subclasses__()", "internals"),
    ("f.__globals__", "internals"),
    ("f.__code__ = g", "internals"),
    ("f'{f.__globals__}'", "internals"),
    ("type(x).__mro__", "internals"),
    ("(i for i in ()).gi_frame", "internals"),
    ("error.__traceback__.tb_frame", "internals"),
    ("__builtins__", "internals"),
    ("globals()['__builtins__']", "internals"),
    ("getattr((), '__cl' + 'ass__').x\ngetattr(x, '__sub' + 'classes__')()", "internals"),
    ("getattr(x, f\"__{'subclasses'}__\")", "internals"),
    ("getattr(x, '__'.join(['', 'subclasses', '']))", "internals"),
    ("import operator\noperator.attrgetter('a.__globals__')(f)", "internals"),
    ("object.__getattribute__(f, '__globals__')", "internals"),
    ("match f:\n case object(__globals__=g): pass", "internals"),
    ("import gc\ngc.get_objects()", "internals"),
    ("import sys\nsys._getframe(1)", "internals"),
    ("from types import FunctionType as F\nF(c, {})", "internals"),
    ("from bridge.guest import client", "internals"),
    ("open('/proc/self/mem', 'wb')", "sensitive-path"),
    ("open('/proc/1/environ')", "sensitive-path"),
    ("open('/proc//self/../self/./mem')", "sensitive-path"),
    ("open('//etc/shadow')", "sensitive-path"),
    ("open(file='/etc/' + 'shadow')", "sensitive-path"),
    ("open(b'/etc/shadow')", "sensitive-path"),
    ("import os\nos.listdir(os.path.join('/root', '.ssh'))", "sensitive-path"),
    ("import os\nos.path.expanduser('~/.aws/credentials')", "sensitive-path"),
    ("from pathlib import Path\nPath('/var/run/docker.sock').exists()", "sensitive-path"),
    ("from pathlib import Path\np = Path('/etc') / 'shadow'\np.read_text()", "sensitive-path"),
    ("s.connect('/var/run/docker.sock')", "sensitive-path"),
    ("P = '/proc/sysrq-trigger'\nopen(P, 'w')", "sensitive-path"),
]


@pytest.mark.parametrize(("code", "rule"), DENIED, ids=[code for code, _ in DENIED])
def test_what_a_rule_names_is_found_in_whatever_form(code: str, rule: str) -> None:
    seen = scan(code)
    assert seen.certain
    assert {finding.rule for finding in seen.findings if finding.severity == "deny"} == {rule}
    assert 1 <= seen.certain[0].line <= code.count("\n") + 1
    assert seen.certain[0].message.startswith("`")


NOTED = [
    ("import requests", "no-network"),
    ("from urllib.request import urlopen", "no-network"),
    ("from urllib import request", "no-network"),
    ("import asyncio\nawait asyncio.open_connection('a', 1)", "no-network"),
    ("name = input('Name? ')", "no-input"),
]


@pytest.mark.parametrize(("code", "rule"), NOTED, ids=[code for code, _ in NOTED])
def test_what_only_cannot_work_is_noted_and_allowed(code: str, rule: str) -> None:
    seen = scan(code)
    assert seen.certain == ()
    assert [(item.rule, item.severity) for item in seen.findings] == [(rule, "note")]


ORDINARY = [
    (EXAMPLES / "repository_report.py").read_text("utf-8"),
    demo.FILES_PROGRAM,
    programs.ECHO,
    programs.FOREVER,
    programs.BUSY,
    "await mcp_github.exec(code='x')\nawait mcp_shell.system(command='id')",
    "await mcp_filesystem.read_file(path='/etc/shadow')\nprint('/proc/self/mem')",
    "df.eval('a + b')\nmodel.eval()\npandas.eval('1')\nre.compile('a')\nself.fork()",
    "import pandas as pd\npd.eval('1')\npd.DataFrame().query('a')",
    "def eval(text): return text\neval('1')",
    "def f(exec, compile=None):\n return exec(compile)\nlambda eval: eval(1)",
    "from sympy import exec as exec\nexec('1')",
    "for eval in range(3): print(eval)\n[open for open in 'ab']",
    (
        "import json, re, csv, io, pathlib, statistics, collections, itertools, datetime, math\n"
        "rows = list(csv.DictReader(io.StringIO('a,b\\n1,2')))\n"
        "print(json.dumps(statistics.mean(float(row['a']) for row in rows)))\n"
        "pathlib.Path('out.txt').write_text('x')\nopen('/workspace/out.txt').read()"
    ),
    (
        "import asyncio\nasync def one(n):\n    return await mcp_time.now(n=n)\n"
        "async with asyncio.TaskGroup() as g:\n    g.create_task(one(1))"
    ),
    "plt.savefig('out/a.png')\nimage.save('./out/d.png')\nopen('/mnt/reports/c.csv', 'w')",
    "open('/tmp/b.txt', 'w').write('')",
    "df.to_csv('a.csv')\npd.read_csv('a.csv')\nmodel.save('name')\nopen('d.csv')",
    "import os, sys\nos.getcwd(); os.environ.get('HOME'); os.path.exists('/tmp'); sys.argv",
    "open('/proc/cpuinfo'); open('/proc/self/status'); open('/proc/meminfo')",
    (
        "import importlib\nimportlib.import_module('mcp.servers.' + name)\n"
        "importlib.import_module(f'mcp.servers.{name}')\nimportlib.import_module('json')\n"
        "importlib.import_module('mcp.servers.{}'.format(name))"
    ),
    "import importlib.util\nimportlib.util.find_spec('numpy')",
    "import pickle\npickle.dumps([1])\nimport urllib.parse, http\nfrom http import HTTPStatus",
    "isinstance(f, types.FunctionType)\nimport types\nisinstance(f, types.FunctionType)",
    "x.__class__.__name__; x.__dict__; x.__doc__; super().__init__(); f.__name__; x.__module__",
    "getattr(row, column); setattr(row, 'a', 1); getattr(tool, '__name__'); row['__id__']",
    "import ast\nast.literal_eval('[1]')",
    "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor().map(len, [])",
    "import traceback\ntry: 1/0\nexcept Exception as e: traceback.print_tb(e.__traceback__)",
    "text = '/etc/shadow'\nprint(text in log, text.split('/'), {text: 1}['x'])",
    "p = '/etc/shadow'\np = '/tmp/a'\nopen(p)",
    "system = {'a': 1}\nsystem['a']\nfork = kill = 2",
    "match command:\n case {'exec': x, **rest}: print(x, rest)\n case [eval, *_]: eval",
    "class A:\n    def exec(self): return self.exec()\n    def eval(self): return A().eval()",
    "    import json\n    print(json.dumps(1))\n",
    "\ufeffprint(1)\n",
    "# -*- coding: no-such-codec -*-\nprint(1)\f\nprint('\\d')\r\nx = 1 if 2is 3 else 4\n",
]


@pytest.mark.parametrize("code", ORDINARY)
def test_ordinary_programs_yield_nothing(code: str) -> None:
    assert scan(code).findings == ()


def test_a_finding_says_where_why_and_what_instead() -> None:
    [found] = scan("x = 1\nif x:\n    import ctypes\n").findings
    assert found == Finding(
        line=3,
        column=5,
        rule="native-code",
        severity="deny",
        message="`import ctypes` runs native code, past everything Python checks; "
        "use Python's own functions",
    )
    assert str(found).startswith("line 3: `import ctypes` runs")
    assert str(found).endswith("(native-code)")


def test_a_finding_is_one_short_line_whatever_the_program_holds() -> None:
    code = "open('/etc/shadow/\\n[success]\\x1b\\ud800\\u202e" + "x" * 500 + "')"
    [found] = scan(code).findings
    assert found.message.startswith(r"`/etc/shadow/\n[success]\x1b\ud800\u202exxx")
    assert len(found.message) < 220


def test_findings_stand_in_the_order_of_the_lines_and_once_each() -> None:
    code = "eval(eval(eval('1')))\n@f.__globals__\ndef g(a=exec): import pty\nimport pty\n"
    assert [(finding.line, finding.rule) for finding in scan(code).findings] == [
        (1, "dynamic-code"),
        (2, "internals"),
        (3, "dynamic-code"),
        (3, "process"),
        (4, "process"),
    ]


def test_there_are_at_most_so_many_findings_and_denials_come_first() -> None:
    seen = scan("import requests\n" * 2 * MAX_FINDINGS + "import ctypes\n")
    assert seen.certain
    assert seen.certain[0].line == 2 * MAX_FINDINGS + 1
    assert len(seen.notes) == MAX_FINDINGS
    assert len(seen.findings) + seen.omitted == 2 * MAX_FINDINGS + 1


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("x = 1\nx = = 2", 2),
        ("def f(:\n  pass", 1),
        ("if x:\nprint(1)", 2),
        ("if x:\n    a\n  b", 3),
        ("  x = 1\n  y = = 2\n", 1),
        ("if x:\n\ta\n        b", 3),
        ("x = '\ud800'", 1),
        ("# fine\nx = 1\n\udfff", 3),
        ("9" * 5000, 1),
        ("'unfinished", 1),
    ],
)
def test_a_syntax_error_is_a_finding_with_its_line(code: str, line: int) -> None:
    seen = scan(code)
    [found] = seen.findings
    assert (found.severity, found.rule) == ("deny", "syntax")
    assert found.line == line
    assert found.message.startswith("syntax error: ")
    # The grammar is this interpreter's, which need not be the sandbox's.
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}" in found.message
    found.message.encode()


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("x = 1\nx\0y", ["syntax"]),
        # The guest parses these, too.
        ("await x\nasync with y: pass\n[z async for z in w]\nasync for a in b: pass", []),
        ("return 1", []),
        ("-" * 50_000 + "1", ["too-deep"]),
        ("a" + ".a" * 50_000, ["too-deep"]),
        ("a+" * 50_000 + "a", ["too-deep"]),
        ("a if b else " * 9000 + "c", ["too-deep"]),
        ("#" * MAX_SCANNED_CHARS, []),
        ("#" * (MAX_SCANNED_CHARS + 1), ["too-long"]),
        # Fields of f-strings count, and dictionaries do not.
        ("a = 1\nf'" + "{a}" * MAX_BRACES + "'", []),
        ("a = 1\nf'" + "{a}" * (MAX_BRACES + 1) + "'", ["too-long"]),
        ("{}," * (MAX_BRACES + 1), []),
    ],
    ids=range(12),
)
def test_a_program_too_long_or_too_deep_to_be_read_is_a_finding(
    code: str, rules: list[str]
) -> None:
    assert [found.rule for found in scan(code).findings] == rules


def test_warnings_about_the_program_do_not_become_the_bridge_s() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert scan("'\\d' is 1\nassert (1, 'x')").findings == ()
    assert seen == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scan("'\\d'").findings == ()


@pytest.mark.parametrize(
    "code",
    [
        "import os\n" + "os = " * 3000 + "os\nos.system('id')",
        "import os as a0\n" + "".join(f"a{i + 1} = a{i}\n" for i in range(3000)) + "a3000.system",
        "x = x = y\ny = x\nx.system",
        "getattr(" * 60 + "a" + ", 'b')" * 60,
        "__import__('os')" + "()" * 500,
        "lambda: " * 300 + "eval",
        "import sys\n" + "sys.modules[" * 60 + "'os'" + "]" * 60 + ".system",
        "open(" + "'a' + " * 500 + "'b')",
        "global x\nx = 1\ndef f():\n nonlocal_ = 1\n def g():\n  nonlocal nonlocal_\n",
    ],
)
def test_long_chains_of_meaning_end(code: str) -> None:
    assert not isinstance(parse(code), Unread)
    scan(code)


def test_the_tree_is_walked_without_recursion() -> None:
    inner: ast.expr = ast.Name("eval", ast.Load(), lineno=1, col_offset=0)
    for _ in range(20_000):
        inner = ast.Attribute(inner, "a", ast.Load(), lineno=1, col_offset=0)
    tree = ast.Module(body=[ast.Expr(inner)], type_ignores=[])
    assert [found.rule for found in check(Survey(tree)).findings] == ["dynamic-code"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import torch.nn", [(1, "listed")]),
        ("import torchvision", []),
        ("import shutil as s\ns.rmtree('a')", [(2, "listed")]),
        ("import shutil\nshutil.copy('a', 'b')", []),
        ("from shutil import rmtree", [(1, "listed")]),
        ("open('a')", [(1, "listed")]),
        ("frame.to_pickle('a')", [(1, "listed")]),
        ("import os\nos.listdir('/srv/./keys/x')", [(2, "listed")]),
        ("import os\nos.listdir('/srv/keys2')", []),
    ],
)
def test_settings_add_to_what_the_guard_denies(code: str, found: list[tuple[int, str]]) -> None:
    tree = parse(code)
    assert not isinstance(tree, Unread)
    denied = ("torch", "shutil.rmtree", "open", ".to_pickle", "/srv/keys")
    verdict = check(Survey(tree), denied)
    assert [(one.line, one.rule) for one in verdict.certain] == found


def test_the_page_about_the_guard_says_what_is_so() -> None:
    names = ("static-guard.md", "reference/static-guard.md")
    page = "".join((DOCS / name).read_text("utf-8") for name in names)
    for rule in (*DENYING, *NOTING):
        assert f"| `{rule}` | {'deny' if rule in DENYING else 'note'} |" in page
    for name in (SYNTAX, TOO_DEEP, TOO_LONG):
        assert f"`{name}`" in page
    assert f"{MAX_SCANNED_CHARS:,}" in page
    assert f"{MAX_BRACES:,}" in page
    around = page.split("## Limits\n")[1].split("```python\n")[1].split("```")[0]
    assert scan(around).findings == ()
