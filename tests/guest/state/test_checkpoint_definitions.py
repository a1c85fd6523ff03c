"""A session continues in another process with what it defined, on every Python."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.guest.checkpoint_rig import session

DEFINES = """
import math, json, collections, enum, dataclasses, functools, datetime, decimal, pathlib
import uuid, re, abc, contextlib, typing
from math import sqrt as root
from typing import Optional, List, NamedTuple
from collections import Counter, OrderedDict, defaultdict, deque
x = 1; y = [1,2]; z = y; d = {"y": y}; cyc = []; cyc.append(cyc)
def add(a, b: int = 2, *, c: Optional[int] = None) -> "int":
    "Adds."
    return a + b + (c or 0) + x
def counter():
    n = 0
    def inc():
        nonlocal n
        n += 1
        return n
    def get(): return n
    return inc, get
inc, get = counter(); inc(); inc()
sq = lambda v: v * v
@functools.lru_cache(maxsize=32)
def fib(n): return n if n < 2 else fib(n-1) + fib(n-2)
fib(10)
@contextlib.contextmanager
def ctx(v):
    yield v
@dataclasses.dataclass(order=True)
class P:
    x: int
    y: int = 0
    tags: list = dataclasses.field(default_factory=list)
    count: typing.ClassVar[int] = 0
    def norm(self): return math.hypot(self.x, self.y)
p = P(3, 4); P.count = 7
class Color(enum.Enum):
    RED = 1
    BLUE = "b"
col = Color.RED
class F(enum.Flag):
    A = 1
    B = 2
class Planet(enum.Enum):
    EARTH = (5, 6)
    TERRA = (5, 6)
    def __init__(self, mass, radius): self.mass = mass
planet = Planet.TERRA
class Made:
    def __init__(self, x): self.x = x
    def __setattr__(self, name, value): self.__dict__[name] = value * 2
thing = Made(4)
fl = F.A | F.B
class Base(abc.ABC):
    made = []
    @abc.abstractmethod
    def go(self): ...
class Child(Base):
    def __init__(self, v): super().__init__(); self.v = v; self.made.append(self)
    def go(self): return self.v
    @property
    def twice(self): return self.v * 2
    @staticmethod
    def st(): return "st"
    @classmethod
    def cl(cls): return cls.__name__
    @functools.cached_property
    def cp(self): return self.v + 100
ch = Child(5); m = ch.go; ch.cp
class Slots:
    __slots__ = ("a", "__b")
    def __init__(self): self.a = 1; self.__b = 2
    def b(self): return self.__b
sl = Slots()
class NT(NamedTuple):
    a: int
    b: str = "q"
    def both(self): return (self.a, self.b)
nt = NT(1)
Nt2 = collections.namedtuple("Nt2", "u v", defaults=[9]); nt2 = Nt2(1)
class MyDict(dict):
    def total(self): return sum(self.values())
md = MyDict(a=1); md.extra = 3
class Err(Exception):
    def __init__(self, text, code=0): super().__init__(text); self.code = code
err = Err("boom", 4)
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, v): self.v = v
bx = Box(3)
things = [datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc),
    decimal.Decimal("1.5"), pathlib.Path("a/b"), uuid.UUID(int=5), re.compile("a+"),
    range(3), slice(1,2), 3+4j, {1,2}, frozenset([3]), bytearray(b"x"), Counter("aab"),
    OrderedDict(a=1), defaultdict(list, a=[1]), deque([1], 3), ..., NotImplemented, int,
    len, str.upper, math.sqrt, collections.abc.Mapping, type(None), json.dumps,
    Optional[int], list[int]]
gen = (i for i in y)
fh = open("/dev/null")
import threading, sqlite3, socket
lock = threading.Lock()
con = sqlite3.connect(":memory:")
mixed = {"a": y, "f": fh}
after = d
exec("def nosrc(): return 8")
def outer():
    class Local:
        def hi(self): return "hi"
    return Local
L = outer(); lo = L()
import os
from os import path as osp, getcwd
import types
ns = types.SimpleNamespace(a=1)
part = functools.partial(add, 1)
bound_append = y.append
it = iter(y)
class Meta(type):
    def hello(cls): return "hello"
class WithMeta(metaclass=Meta):
    k = 3
wm = WithMeta()
class GS:
    def __init__(self): self.a = 1; self.f = fh
    def __getstate__(self): return {"a": self.a}
    def __setstate__(self, s): self.__dict__.update(s); self.f = None
gs = GS()
class Tree:
    def __init__(self): self.kids = []; self.parent = None
t1 = Tree(); t2 = Tree(); t1.kids.append(t2); t2.parent = t1
class TD(typing.TypedDict):
    a: int
td: TD = {"a": 1}
async def co(): return 5
"""

CHECKS = """
assert add(1) == 4 and add(1, c=5) == 9 and add.__doc__ == "Adds.", add(1)
assert y is z is d["y"] is after["y"] and cyc[0] is cyc
assert inc() == 3 and get() == 3
assert sq(4) == 16 and fib(20) == 6765
with ctx(3) as v: assert v == 3
assert p == P(3, 4) and p.norm() == 5 and P.count == 7 and P(1,2) < P(2,1), P.count
assert col is Color.RED and Color("b") is Color.BLUE and fl == F.A|F.B and isinstance(fl, F)
assert planet is Planet.EARTH is Planet["TERRA"] and planet.mass == 5 and Planet((5, 6)) is planet
assert thing.x == 8
assert ch.go() == 5 == m() and m.__self__ is ch and ch.twice == 10
assert Child.st() == "st" and Child.cl() == "Child" and ch.cp == 105
assert Base.made == [ch] and Base.made[0] is ch
try: Base()
except TypeError: pass
else: raise AssertionError
Child(3); assert len(Base.made) == 2
assert sl.a == 1 and sl.b() == 2 and nosrc() == 8
try: sl.other = 1
except AttributeError: pass
else: raise AssertionError
assert nt.both() == (1, "q") and nt2 == (1, 9) and isinstance(nt2, Nt2)
assert dict(md) == {"a": 1} and md.extra == 3 and md.total() == 1
assert err.code == 4 and str(err) == "boom"
assert bx.v == 3 and Box[int]
assert lo.hi() == "hi" and type(lo) is L
assert root(4) == 2 and math.pi and osp.join and getcwd
assert ns.a == 1 and part() == 4
bound_append(7); assert y[-1] == 7
assert WithMeta.hello() == "hello" and wm.k == 3
assert gs.a == 1 and gs.f is None
assert t1.kids[0].parent is t1
assert things[20] is math.sqrt, things
assert TD.__annotations__
import inspect; assert "return a + b" in inspect.getsource(add), inspect.getsource(add)
import asyncio; assert asyncio.run(co()) == 5
assert "gen" not in globals() and "fh" not in globals()
"""

NOT_KEPT = {
    "gen": "it is a generator",
    "fh": "it is an open file",
    "lock": "it is or holds a _thread.lock, which Python cannot write down",
    "con": "it is or holds a sqlite3.Connection, which Python cannot write down",
    "mixed": "it is or holds an open file",
    "it": "it is an iterator (list_iterator)",
}


def test_definitions_and_data_come_back_with_what_they_share(
    every_python: str, tmp_path: Path
) -> None:
    first = session(tmp_path / "a", DEFINES, python=every_python)
    assert first.lost == NOT_KEPT
    second = session(tmp_path / "b", CHECKS, state=first.data, python=every_python, first=2)
    assert second.restored == {}
    # Once more: what was restored can be saved as well.
    check = "assert add(1) == 4 and p.norm() == 5 and ch.go() == 5 and inc() == 4"
    third = session(tmp_path / "c", check, state=second.data, python=every_python, first=3)
    assert (second.lost, third.restored) == ({}, {})


def test_another_python_has_the_data_and_says_which_definitions_are_not_its_own(
    every_python: str, tmp_path: Path
) -> None:
    defines = "def f(): return 1\nclass C:\n    def m(self): return 2\n"
    defines += "c, x = C(), [1]\ny = {'x': x}"
    first = session(tmp_path / "a", defines)
    checks = "import sys; assert y['x'] is x; same = 'f' in globals() and f() == 1 and c.m() == 2"
    checks += f"\nassert same == (sys.version_info[:2] == {sys.version_info[:2]})"
    second = session(tmp_path / "b", checks, state=first.data, python=every_python)
    if second.restored:
        reason = "functions come back in the same version of Python only: Python "
        assert second.restored.pop("f").startswith(reason)
        assert second.restored.pop("C").startswith(reason)
        assert second.restored == {"c": "it shares something with a name that could not be read"}
