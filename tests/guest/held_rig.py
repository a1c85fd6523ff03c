"""Operations on a placeholder `x`, as statements, and a host that holds calls back."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import InvalidRequestError
from bridge.gate.held_calls import find_referred, mentions
from bridge.guest.api import held_results as held
from bridge.guest.api.client import HELD_RESULT
from bridge.guest.api.held_results import Placeholder, placeholder
from bridge.guest.protocol import placeholders
from bridge.guest.protocol.wire import Call

PLAN = "0123456789abcdef"

CREATED = {"plan": PLAN, "number": 1, "call": "git-hub.create-issue"}

ALLOWED = (
    "x.number",
    "x['number']",
    "x[0]",
    "x[-1].id",
    "x._links.self",
    "x.get('number')",
    "x.get('number', 0)",
    "x['items']",
    "str(x)",
    "f'{x}'",
    "f'#{x.number}: {x.title!s}'",
    "'%s' % x",
    "'%s and %s' % (x.a, x.b)",
    "'%(title)s' % x",
    "'{} {x.title}'.format(x.number, x=x)",
    "'a' + x",
    "x + 'a'",
    "'a' + str(x) + 'b'",
    "'a' + x + x.b",
    "string.Template('$a').substitute(a=x)",
    "io.StringIO().write(f'{x}')",
    "textwrap.dedent(f'  {x}')",
    "f'  a {x.a} b '.strip()",
    "', '.join([str(x), str(x.number)])",
    "str(str(x))",
    "f'{str(x)}'",
    "repr(x)",
    "f'{x!r}'",
    "str([x])",
    "[x, {'a': x.b}, (x,)]",
    "x is None",
    "x in [x]",
    "type(x)",
    "getattr(x, 'title', None)",
    "print(x, [x], file=io.StringIO())",
    "print(str(x), f'{x}', file=io.StringIO())",
    "json.dumps({'a': x}, default=str)",
    "json.dumps({'a': x}, default=str, indent=1)",
    "json.dumps({'a': str(x)})",
    "json.dumps([f'a {x}'])",
    "pprint.pformat({'a': [x]})",
    "logging.getLogger('quiet').warning('made %s', x)",
    "copy.copy(x)",
    "copy.deepcopy({'a': [x, str(x)]})",
    "dataclasses.asdict(Box(x))",
    "hasattr(x, '__array__') and 1 / 0",
    "csv.writer(io.StringIO()).writerow([x, 1])",
)

STOPPED = (
    ("if x: pass", "tests"), ("not x", "tests"), ("x or 'none'", "tests"), ("assert x", "tests"),
    ("x == 1", "compares"), ("x != 1", "compares"), ("1 == x", "compares"), ("x < 1", "compares"),
    ("1 <= x", "compares"), ("sorted([x, x.a])", "compares"), ("max(x.a, x.b)", "compares"),
    ("x in [1, 2]", "compares"), ("{x: 1}", "as a key or in a set"),
    ("{x}", "as a key or in a set"), ("x in {1, 2}", "as a key or in a set"),
    ("len(x)", "takes the length of"), ("for y in x: pass", "loops over"),
    ("[y for y in x]", "loops over"), ("tuple(y for y in x)", "loops over"),
    ("a, b = x", "loops over"), ("print(*x)", "loops over"), ("dict(**x)", "calls .keys() of"),
    ("next(iter(x))", "loops over"), ("reversed(x)", "loops over"), ("[] + x", "calculates with"),
    ("a = []; a += x", "calculates with"), ("a = ''; a += x; a += 1 + x.b", "calculates with"),
    ("x * x", "calculates with"), ("divmod(x, 2)", "calculates with"), ("'a' in x", "looks into"),
    ("int(x)", "as a number"), ("float(x)", "as a number"), ("complex(x)", "as a number"),
    ("round(x)", "as a number"), ("[1][x]", "as a number"), ("range(x)", "as a number"),
    ("'%d' % x", "as a number"), ("x + 1", "calculates with"), ("1 + x", "calculates with"),
    ("x + x", "calculates with"), ("x - 1", "calculates with"), ("2 * x", "calculates with"),
    ("'a' * x", "calculates with"), ("x % 2", "calculates with"), ("x ** 2", "calculates with"),
    ("-x", "calculates with"), ("abs(x)", "calculates with"), ("x | {'a': 1}", "calculates with"),
    ("x += 1", "calculates with"), ("sum([x, x])", "calculates with"), ("f'{x:>10}'", "as >10"),
    ("format(x, '.2f')", "as .2f"), ("'{:5}'.format(x)", "as 5"), ("bytes(x)", "as bytes"),
    ("open(x)", "as a number"), ("os.path.join('/tmp', x)", "as a path"),
    ("pathlib.Path(x)", "as a path"), ("x.a = 1", "changes"), ("del x.a", "changes"),
    ("x['a'] = 1", "changes"), ("del x['a']", "changes"),
    ("x['a':'b']", "what is no field or item"), ("x[:3]", "what is no field or item"),
    ("x[x.a]", "what is no field or item"), ("x[True]", "what is no field or item"),
    ("y = x\nwhile True: y = y.next", "what is no field or item"),
    ("x.items()", "calls .items() of"), ("x.keys()", "calls .keys() of"),
    ("x.title.lower()", "calls .lower() of"), ("x.labels.append('a')", "calls .append() of"),
    ("x()", "calls"), ("isinstance(x, dict)", "asks for the type of"),
    ("isinstance(x, (str, list))", "asks for the type of"),
    ("isinstance(x, collections.abc.Mapping)", "asks for the type of"),
    ("x.__class__", "asks for the type of"), ("dir(x)", "asks for the fields of"),
    ("with x: pass", "opens"), ("asyncio.run(wait_for(x))", "awaits"),
    ("html.escape(x)", "calls .replace() of"), ("x.title.strip()", "calls .strip() of"),
    ("x.url.split('/')[-1]", "calls .split() of"),
)  # fmt: skip

PUZZLED = (
    ("', '.join([x.state])", "expected str instance, Placeholder found"),
    ("re.search('a', x)", "expected string or bytes-like object"),
    ("x.title in 'abc'", "requires string as left operand, not Placeholder"),
    ("'abc'.startswith(x)", "not Placeholder"),
    ("'abc'.replace(x, 'b')", "not Placeholder"),
    ("json.dumps(x)", "Object of type Placeholder is not JSON serializable"),
    ("json.dumps({'a': [x]}, indent=1)", "Object of type Placeholder is not JSON serializable"),
    ("json.loads(x)", "not Placeholder"),
    ("pickle.dumps(x)", "pickles"),
)
"""What C code stops with a `TypeError` of its own, and what the message says."""

QUOTED = (
    "json.dumps({'a': str(x.a)})", "json.dumps([f'a {x.a}'], ensure_ascii=False)",
    "repr(f'a {x.a}')", "str([f'a {x.a}'])", "urllib.parse.quote(str(x.a))",
    "urllib.parse.quote(f'a/{x.a}', safe='/:')", "urllib.parse.urlencode({'q': x.a})",
    "html.escape(str(x.a))", "html.escape(f'a {x.a}', quote=False)", "shlex.quote(f'{x.a}')",
    "re.escape(f'{x.a}')", "f'a {x.a}'.upper()", "f'a {x.a}'.lower()", "f'a {x.a}'.title()",
    "f'a {x.a}'.swapcase()", "f'{x.a}'.capitalize()", "f'{x.a}'.strip()", "f'a {x.a}'.rstrip()",
    "f'{x.a} b'.lstrip()", "f'a {x.a} b'[:30]", "f'a {x.a} b'[30:]", "f'{x.url}'.split('/')[-1]",
    "f'{x.url}'.split()[0]", "f'{x.url}'.partition(':')[0]", "f'{x.a}'.replace(' ', '-')",
    "f'{x.a}'.replace('e', 'E')", "f'{x.a}'.replace('1', '2')", "f'{x.a}'.replace(\"'\", \"''\")",
    "f'{x.a}'.encode('unicode_escape').decode()", "re.sub(r'\\W+', '-', f'{x.a}')",
    "csv.writer(o := io.StringIO()).writerow([x.a, 1]) and o.getvalue()",
    "textwrap.shorten(f'a {x.a}', 20, placeholder=f'{x.a}'[:20])", "repr(x)", "str([x])",
    "f'{x.a!r}'", "json.dumps({'a': x}, default=str)", "json.dumps({'a': x}, default=repr)",
)  # fmt: skip
"""Texts that the host refuses: what would be put in would not be quoted, cut or changed."""

MATCHES = (
    ("match x:\n case {'state': 'open'}: pass", "takes the length of"),
    ("match x:\n case 'open': pass", "compares"),
    ("match x:\n case dict(): pass", "asks for the type of"),
)
"""Since Python 3.10."""

SETUP = """
import asyncio, collections.abc, copy, csv, dataclasses, datetime, html, io, json, logging, os
import pathlib, pickle, pprint, re, shlex, string, textwrap, urllib.parse
logging.getLogger('quiet').addHandler(logging.NullHandler())
logging.getLogger('quiet').propagate = False
@dataclasses.dataclass
class Box:
    value: object
async def wait_for(x):
    await x
"""


def whole(*path: str | int) -> dict[str, str]:
    return {"$heldResult": mark(*path)}


def mark(*path: str | int) -> str:
    return placeholders.write(PLAN, 1, path)


@pytest.fixture
def x(monkeypatch: pytest.MonkeyPatch) -> Placeholder:
    monkeypatch.setattr(held, "_first", "")
    return placeholder(CREATED)


def execute(code: str, x: object) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    names["x"] = x
    exec(compile(code, "<run_python>", "exec"), names)
    return names


def hold(guest: Any, call: Call) -> None:
    before = guest.__dict__.setdefault("held", [])
    arguments = call.params.get("arguments", {})
    if call.params.get("tool") == "create-issue":
        try:
            find_referred(arguments, PLAN, len(before))
        except InvalidRequestError as refused:
            error = {"kind": "usage", "message": str(refused), "code": HELD_RESULT}
            guest.reply(call.id, error=error)
            return
        before.append(call)
        name = f"{call.params['server']}.{call.params['tool']}"
        shape = {"plan": PLAN, "number": len(before), "call": name}
        guest.reply(call.id, {"held": shape})
    elif mentions(arguments, PLAN):
        message = "git-hub.echo would read something now, with what a held call will return."
        error = {"kind": "usage", "message": message, "code": HELD_RESULT, "server": "git-hub"}
        guest.reply(call.id, error=error)
    else:
        guest.reply(call.id, {"json": arguments})
