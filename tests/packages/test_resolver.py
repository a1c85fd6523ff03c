"""From what is asked for to a directory with it, by uv and a real index."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.packages import sets, uv
from bridge.packages.requirements import parse_requirements
from bridge.packages.target import Installed
from bridge.packages.uv import Resolver
from bridge.settings.dependencies import Dependencies
from bridge.store import Store
from tests.packages.rig import PATH, TARGET, Index, allow_from, entry, tree, wheel
from tests.sandbox.process.rig import exists
from tests.waiting import until

pytestmark = pytest.mark.guarantee("packages")


@dataclass
class Bench:
    path: Path
    links: Path
    told: list[str]

    async def say(self, text: str) -> None:
        self.told.append(text)

    def resolver(
        self, dependencies: Dependencies, executable: str = "", environ: Mapping[str, str] = PATH
    ) -> Resolver:
        store = Store(self.path / "state")
        return Resolver(dependencies, self.path / "kept", store, environ, executable)

    def allow_all(self) -> Resolver:
        return self.resolver(allow_from(self.links, "*"))

    async def provide(self, made: Resolver, *texts: str) -> list[str]:
        place, _ = await made.provide(parse_requirements(texts), TARGET, self.say)
        return [] if place is None else sorted(path.name for path in place.glob("*.py"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "links").mkdir()
    return Bench(tmp_path, tmp_path / "links", [])


def script(tmp_path: Path, code: str) -> str:
    path = tmp_path / "standing-in"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)
    return str(path)


def installed_sets(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "kept").glob("sets/*"))


async def test_what_is_found_is_for_the_sandboxes_python_and_found_once(bench: Bench) -> None:
    # Of another Python than the bridge's: what only that one would need is not even there, and no
    # version of beta would suit both.
    theirs = ["beta<1.6; python_version < '3.10'", "gamma; python_version < '3.10'", "old"]
    ours = ["beta>=1.6; python_version >= '3.10'", "delta; python_version >= '3.10'"]
    wheel(bench.links, "alpha", "1.0", requires=[*theirs, *ours])
    wheel(bench.links, "alpha", "2.0", requires=["beta>=1"])
    wheel(bench.links, "beta", "1.5", requires=["delta; implementation_version >= '3.10'"])
    wheel(bench.links, "beta", "1.6")
    wheel(bench.links, "beta", "1.7", tag="cp313-cp313-manylinux_2_17_x86_64")
    wheel(bench.links, "gamma", "0.1", requires=["beta>=1.6; extra == 'more'"])
    wheel(
        bench.links,
        "old",
        "0.1",
        requires=["gamma; sys_platform == 'linux'", "no; os_name == 'nt'"],
    )
    dependencies = allow_from(bench.links, "alpha==1.*", "beta", "gamma", "old")
    made = bench.resolver(dependencies)
    found = await bench.provide(made, "alpha")
    assert found == ["alpha.py", "beta.py", "gamma.py", "old.py"]
    assert bench.told == ["resolving alpha", "installing alpha, beta, gamma, old"]
    bench.told.clear()
    # Another bridge, which has neither uv nor index.
    shutil.rmtree(bench.links)
    again = bench.resolver(dependencies, "/bin/false")
    assert await bench.provide(again, "alpha") == found
    assert await bench.provide(made, "Alpha") == found
    assert bench.told == []


async def test_an_index_is_used_as_the_settings_name_it_and_nothing_of_the_users(
    bench: Bench,
) -> None:
    home = bench.path / "home"
    (home / ".config/uv").mkdir(parents=True)
    (home / ".config/uv/uv.toml").write_text("no-index = true\n")
    (home / ".netrc").write_text("machine 127.0.0.1 login wrong password wrong\n")
    wheel(bench.links, "alpha", "1.0", requires=["beta"])
    wheel(bench.links, "beta", "1.0")
    evil = {
        **PATH,
        "HOME": str(home),
        "UV_CONFIG_FILE": str(home / ".config/uv/uv.toml"),
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/",
        "UV_KEYRING_PROVIDER": "subprocess",
        "NETRC": str(home / ".netrc"),
    }
    with Index(bench.links, login="robot:s3cret") as index:
        made = bench.resolver(allow_from(index.url, "*"), environ=evil)
        assert await bench.provide(made, "alpha") == ["alpha.py", "beta.py"]
        with pytest.raises(PackageUnavailableError, match="nothing was not found") as refusal:
            await bench.provide(made, "nothing")
        assert "s3cret" not in str(refusal.value)
        assert str(index.url) not in str(refusal.value)
    kept = [path.read_bytes() for path in bench.path.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"s3cret" in data for data in kept)


@pytest.mark.parametrize("where", ["environment", "file"])
async def test_without_an_index_uvs_own_configuration_says_where_packages_come_from(
    bench: Bench, where: str
) -> None:
    wheel(bench.links, "alpha", "1.0")
    keyring = bench.path / "bin/keyring"
    keyring.parent.mkdir()
    keyring.write_text(f"#!/bin/sh\ntouch {bench.path}/ran\n")
    keyring.chmod(0o755)
    with Index(bench.links) as index:
        environ = {"PATH": f"{keyring.parent}:{PATH['PATH']}", "HOME": str(bench.path)}
        if where == "environment":
            environ |= {"UV_DEFAULT_INDEX": index.url, "UV_KEYRING_PROVIDER": "subprocess"}
        else:
            (bench.path / ".config/uv").mkdir(parents=True)
            text = f'keyring-provider = "subprocess"\n[[index]]\nurl = "{index.url}"\n'
            (bench.path / ".config/uv/uv.toml").write_text(f"{text}default = true\n")
        made = bench.resolver(allow_from("", "*"), environ=environ)
        assert await bench.provide(made, "alpha") == ["alpha.py"]
        index.login = "someone:else"
        with pytest.raises(PackageUnavailableError):
            await bench.provide(made, "beta")
    # A program that may hold a login is never started.
    assert not (bench.path / "ran").exists()


async def test_what_something_allowed_needs_is_allowed_within_the_versions_that_are_listed(
    bench: Bench,
) -> None:
    wheel(bench.links, "alpha", "1.0", requires=["beta"])
    wheel(bench.links, "beta", "1.0")
    wheel(bench.links, "beta", "2.0")
    made = bench.resolver(allow_from(bench.links, "alpha"))
    assert await bench.provide(made, "alpha") == ["alpha.py", "beta.py"]
    with pytest.raises(PackageRefusedError, match="beta is not allowed here"):
        await bench.provide(made, "beta")
    narrow = bench.resolver(allow_from(bench.links, "alpha", "beta<2"))
    place, lock = await narrow.provide(parse_requirements(["alpha"]), TARGET, bench.say)
    assert [package.version for package in lock.packages] == ["1.0", "1.0"]


async def test_what_would_have_to_be_built_is_refused_by_name(bench: Bench) -> None:
    (bench.links / "alpha-1.0.tar.gz").write_bytes(b"never opened")
    with pytest.raises(PackageUnavailableError, match=r"alpha==1\.0 has no usable wheels"):
        await bench.provide(bench.allow_all(), "alpha")


@pytest.mark.parametrize("what", ["beta-1.0.tar.gz", "beta-1.0-py3-none-any.whl", "git"])
@pytest.mark.parametrize("where", ["wheel", "configuration"])
async def test_what_is_wanted_from_an_address_is_neither_built_nor_used(
    bench: Bench, what: str, where: str
) -> None:
    elsewhere = bench.path / "elsewhere"
    elsewhere.mkdir()
    wheel(elsewhere, "beta", "1.0")
    trace = bench.path / "built"
    setup = f"open({str(trace)!r}, 'w')\nfrom setuptools import setup\nsetup(name='beta')\n"
    (elsewhere / "setup.py").write_text(setup)
    with tarfile.open(elsewhere / "beta-1.0.tar.gz", "w:gz") as archive:
        archive.add(elsewhere / "setup.py", "beta-1.0/setup.py")
    address = (elsewhere / what).as_uri()
    if what == "git":
        # A transport of git that is a command.
        address = f"git+ext::sh -c touch% {trace}"
    wanted = f"beta @ {address.replace(' ', '%20')}"
    wheel(bench.links, "alpha", "1.0", requires=[wanted if where == "wheel" else "beta"])
    dependencies, environ = allow_from(bench.links, "*"), PATH
    if where == "configuration":
        text = f'no-index = true\nfind-links = ["{bench.links}"]\n'
        (bench.path / "uv.toml").write_text(f'{text}override-dependencies = ["{wanted}"]\n')
        dependencies = allow_from("", "*")
        environ = {**PATH, "HOME": str(bench.path), "UV_CONFIG_FILE": str(bench.path / "uv.toml")}
    made = bench.resolver(dependencies, environ=environ)
    with pytest.raises((PackageRefusedError, PackageUnavailableError)):
        await bench.provide(made, "alpha")
    assert not trace.exists()
    assert installed_sets(bench.path) == []


async def test_nothing_is_looked_for_that_was_not_allowed(bench: Bench) -> None:
    made = bench.resolver(allow_from("/wheels", "polars"))
    with pytest.raises(PackageRefusedError, match="Near: polars"):
        await bench.provide(made, "polarz")
    assert [*bench.path.rglob("*")] == [bench.links]


async def test_a_requirement_for_another_python_is_left_out(bench: Bench) -> None:
    assert await bench.provide(bench.allow_all(), "tomli; python_version >= '3.11'") == []
    assert installed_sets(bench.path) == []


async def test_runs_that_want_the_same_find_it_once_and_bridges_do_not_disturb_each_other(
    bench: Bench,
) -> None:
    wheel(bench.links, "alpha", "1.0")
    bridges = [bench.allow_all() for _ in range(2)]
    async with anyio.create_task_group() as tasks:
        for made in (*bridges, *bridges):
            tasks.start_soon(bench.provide, made, "alpha")
    assert sorted(bench.told) == ["installing alpha"] * 2 + ["resolving alpha"] * 2
    assert len(installed_sets(bench.path)) == 1
    assert await bench.provide(bench.allow_all(), "alpha") == ["alpha.py"]


async def test_what_was_allowed_when_it_was_found_is_judged_again(bench: Bench) -> None:
    wheel(bench.links, "alpha", "1.0")
    wheel(bench.links, "alpha", "2.0")
    asked = parse_requirements(["alpha"])
    for allow, version in (("alpha", "2.0"), ("alpha<2", "1.0")):
        made = bench.resolver(allow_from(bench.links, allow))
        place, _ = await made.provide(asked, TARGET, bench.say)
        assert place is not None
        assert version in (place / "alpha.py").read_text()


async def test_versions_are_looked_for_again_when_they_are_old_and_kept_if_no_one_answers(
    bench: Bench,
) -> None:
    wheel(bench.links, "alpha", "1.0")
    await bench.provide(bench.allow_all(), "alpha")
    with Store(bench.path / "state").writing() as kept:
        ((name, data),) = kept.all("packages", "")
        kept.put("packages", "", name, json.dumps({**json.loads(data), "made": 1000.0}).encode())
    bench.told.clear()
    for days, said in ((0, []), (1, ["resolving alpha"])):
        made = bench.resolver(allow_from(bench.links, "*", lock_days=days), "/bin/false")
        assert await bench.provide(made, "alpha") == ["alpha.py"]
        assert bench.told == said
    wheel(bench.links, "alpha", "2.0")
    made = bench.resolver(allow_from(bench.links, "*", lock_days=1))
    place, _ = await made.provide(parse_requirements(["alpha"]), TARGET, bench.say)
    assert place is not None
    assert "2.0" in (place / "alpha.py").read_text()


async def test_a_full_cache_refuses_nothing_and_two_bridges_share_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "KEPT_SECONDS", 0.0)
    names = [f"p{number}" for number in range(10)]
    for name in names:
        wheel(
            bench.links, name, "1.0", files={f"{name}.py": "", f"{name}.bin": os.urandom(300_000)}
        )
    dependencies = allow_from(bench.links, "*", cache_bytes="1m")
    bridges = [bench.resolver(dependencies) for _ in range(2)]

    async def in_pairs(made: Resolver, order: list[str]) -> None:
        for pair in itertools.pairwise(order):
            place, _ = await made.provide(parse_requirements(pair), TARGET, bench.say)
            assert place is not None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(in_pairs, bridges[0], names)
        tasks.start_soon(in_pairs, bridges[1], names[::-1])
    await bench.provide(bench.resolver(dependencies), "p0", "p6")
    stored = [path for path in (bench.path / "kept/wheels").rglob("*") if path.suffix == ".bin"]
    assert len(stored) <= 3


async def test_the_second_set_with_a_package_fetches_nothing_of_it(bench: Bench) -> None:
    wheel(bench.links, "alpha", "1.0", requires=["beta"])
    wheel(bench.links, "beta", "1.0")
    with Index(bench.links) as index:
        made = bench.resolver(allow_from(index.url, "*"))
        assert await bench.provide(made, "alpha") == ["alpha.py", "beta.py"]
        assert await bench.provide(made, "beta") == ["beta.py"]
    # Nor does it need an index at all.
    assert await bench.provide(made, "beta==1.*") == ["beta.py"]
    assert "installing beta" not in bench.told


async def test_packages_join_an_environment_as_one_resolution(bench: Bench) -> None:
    for version in ("1.0", "2.0"):
        wheel(bench.links, "base", version)
        wheel(bench.links, "user", version, requires=[f"base=={version}"])
        wheel(bench.links, "other", version)
    wheel(bench.links, "fits", "1.0", requires=["base"])
    wheel(bench.links, "strict", "1.0", requires=["base>=2"])
    there = [
        Installed(name="base", version="1.0"),
        Installed(name="other", version="1.0"),
        Installed(name="user", version="1.0", requires=("base",)),
    ]
    made = bench.allow_all()
    for text, names in {
        "fits": {"fits": "1.0"},
        "base": {},
        "base==2.0": {"base": "2.0", "user": "2.0"},
        "strict": {"strict": "1.0", "base": "2.0", "user": "2.0"},
    }.items():
        asked = parse_requirements([text])
        _, lock = await made.provide(asked, TARGET, bench.say, installed=there)
        assert {each.name: each.version for each in lock.packages} == names, text
    # One that is on no index stays as it is.
    alien = Installed(name="debian", version="1.0", requires=("base",))
    asked = parse_requirements(["base==2.0"])
    _, lock = await made.provide(asked, TARGET, bench.say, installed=[there[0], alien])
    assert {each.name: each.version for each in lock.packages} == {"base": "2.0"}


async def test_what_is_too_large_is_told_before_a_download_and_remembered(bench: Bench) -> None:
    wheel(bench.links, "xgboost", "1.0", files={"a.bin": os.urandom(2_000_000)})
    made = bench.resolver(allow_from(bench.links, "*", max_bytes="1m"))
    for _ in range(2):
        with pytest.raises(PackageRefusedError, match="`max_bytes`: 1 MiB") as refusal:
            await bench.provide(made, "xgboost")
        assert 'Ask for xgboost "xgboost-cpu"' in refusal.value.remedy
    assert bench.told.count("resolving xgboost") == 1


@pytest.mark.parametrize(
    ("wrong", "right"), [("sklearn", '"scikit-learn"'), ("pandsa", '"pandas"'), ("json", "eave")]
)
async def test_a_wrong_name_is_answered_with_the_right_one(
    bench: Bench, wrong: str, right: str
) -> None:
    with pytest.raises(PackageUnavailableError) as refusal:
        await bench.provide(bench.allow_all(), wrong)
    assert right in refusal.value.remedy


@pytest.mark.parametrize("hashes", [True, False])
async def test_a_wheel_that_is_not_what_it_was_is_refused(bench: Bench, hashes: bool) -> None:
    wheel(bench.links, "alpha", "1.0")
    with Index(bench.links, hashes=hashes) as index:
        dependencies = allow_from(index.url, "*")
        made = bench.resolver(dependencies)
        assert await bench.provide(made, "alpha") == ["alpha.py"]
        for kept in ("sets", "wheels"):
            shutil.rmtree(bench.path / "kept" / kept)
        wheel(bench.links, "alpha", "1.0", files={"alpha.py": "evil"})
        for again in (made, bench.resolver(dependencies)):
            with pytest.raises(PackageUnavailableError, match="Hash mismatch for `alpha==1.0`"):
                await bench.provide(again, "alpha")
    assert installed_sets(bench.path) == []


async def test_a_wheel_of_another_name_does_not_come_under_an_allowed_one(bench: Bench) -> None:
    evil = wheel(bench.links, "evil", "1.0")
    with Index(bench.links) as index:
        page = f'<a href="/files/{evil.name}">{evil.name}</a>'.encode()
        index.answers["/simple/alpha/"] = 200, {"content-type": "text/html"}, page
        made = bench.resolver(allow_from(index.url, "alpha"))
        with pytest.raises(PackageUnavailableError):
            await bench.provide(made, "alpha")
        assert f"/files/{evil.name}" not in index.asked


@pytest.mark.parametrize(
    "name",
    [
        "../evil.py",
        "a/../../../../../evil.py",
        "/{here}/evil.py",
        "alpha-1.0.data/purelib/../../../../../evil.py",
        "alpha-1.0.data/scripts/../../../../../evil.py",
        "alpha-1.0.dist-info/../../evil.py",
    ],
)
async def test_a_hostile_wheel_leaves_nothing(bench: Bench, name: str) -> None:
    place = entry(name.format(here=bench.path))
    wheel(bench.links, "alpha", "1.0", entries=[place, entry("alpha/link", 0o120777)])
    await bench.provide(bench.allow_all(), "alpha")
    (into,) = installed_sets(bench.path)
    found = [path for path in bench.path.rglob("*") if into not in path.parents]
    assert not any("evil" in path.name for path in found)
    assert not any(path.is_symlink() for path in into.rglob("*"))


async def test_nothing_that_an_interpreter_would_run_by_itself_is_installed(bench: Bench) -> None:
    trace = bench.path / "ran"
    evil = f"import pathlib; pathlib.Path({str(trace)!r}).touch()"
    files = {
        "alpha.py": "",
        "evil.pth": evil,
        "alpha-1.0.data/purelib/other.pth": evil,
        "alpha-1.0.data/data/third.pth": evil,
        "big.PTH": evil,
        "sitecustomize.py": evil,
        "SiteCustomize.so": evil,
        "usercustomize/__init__.py": evil,
        "a/fine.pth": "",
    }
    wheel(bench.links, "alpha", "1.0", files=files)
    await bench.provide(bench.allow_all(), "alpha")
    (place,) = installed_sets(bench.path)
    names = [name for name in tree(place) if "dist-info" not in name]
    assert names == ["a/fine.pth", "alpha.py"]
    assert not trace.exists()


async def test_packages_beyond_the_bound_are_refused_before_they_are_kept(bench: Bench) -> None:
    wheel(bench.links, "alpha", "1.0", requires=["beta"], files={"a.bin": os.urandom(600_000)})
    wheel(bench.links, "beta", "1.0", files={"b.bin": b"\0" * 600_000})
    made = bench.resolver(allow_from(bench.links, "*", max_bytes="1m"))
    with pytest.raises(PackageRefusedError, match="`max_bytes`"):
        await bench.provide(made, "alpha")
    assert installed_sets(bench.path) == []


async def test_a_bomb_is_stopped_by_what_comes_out_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "READ_BYTES", 200_000)
    code = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[sys.argv.index("--cache-dir") + 1])
place.mkdir()
for number in range(10_000_000):
    with open(place / f"{number // 2}", "ab") as file:
        file.write(b"x" * 100_000)
    time.sleep(0.001)
"""
    made = bench.resolver(allow_from("/wheels", "*", max_bytes="1m"), script(bench.path, code))
    with pytest.raises(PackageRefusedError, match="larger"):
        await bench.provide(made, "alpha")
    assert not list((bench.path / "kept").rglob("work-*"))


async def test_each_failure_says_what_cannot_be_met_and_what_can(bench: Bench) -> None:
    wheel(bench.links, "alpha", "1.0", requires=["beta>=9"])
    wheel(bench.links, "beta", "1.0")
    wheel(bench.links, "beta", "0.5")
    wheel(bench.links, "native", "2.0", tag="cp38-cp38-manylinux_2_17_x86_64")
    expected = {
        "nowhere": "nowhere was not found in the package registry",
        "alpha": "all versions of alpha depend on beta>=9",
        "beta==7.*": "The newest that fit this sandbox: beta 1.0.",
        "native": "we only found wheels for `native` (v2.0) with the following Python ABI tag",
    }
    with Index(bench.links) as index:
        made = bench.resolver(allow_from(index.url, "*"))
        for text, words in expected.items():
            with pytest.raises(PackageUnavailableError) as refusal:
                await bench.provide(made, text)
            assert str(refusal.value).startswith(f"{text} cannot be resolved. uv says: ")
            assert "warning" not in str(refusal.value)
            assert words in str(refusal.value)
            for secret in (index.url, str(bench.path)):
                assert secret not in str(refusal.value)
        narrow = bench.resolver(allow_from(index.url, "beta<1"))
        with pytest.raises(PackageUnavailableError, match="Versions are limited here to beta<1"):
            await bench.provide(narrow, "beta>=1")
    made = bench.resolver(allow_from("http://me:s3cret@127.0.0.1:1/simple", "*"))
    with pytest.raises(PackageUnavailableError, match="Connection refused") as refusal:
        await bench.provide(made, "beta")
    assert "Try again" in refusal.value.remedy
    assert "127.0.0.1" not in str(refusal.value)
    # Whatever came of it, nothing of uv's is left.
    assert not list((bench.path / "kept").rglob("work-*"))


async def test_of_a_large_wheel_it_is_told_that_it_comes(bench: Bench) -> None:
    wheel(bench.links, "alpha", "1.0", files={"alpha.py": "", "a.bin": os.urandom(3_000_000)})
    with Index(bench.links) as index:
        await bench.provide(bench.resolver(allow_from(index.url, "*")), "alpha")
    assert bench.told == ["resolving alpha", "installing alpha", "fetching alpha (2.9MiB)"]


async def test_without_uv_it_is_told_how_to_get_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    made = bench.resolver(allow_from("/wheels", "*"), environ={"PATH": str(bench.path)})
    with pytest.raises(PackageUnavailableError, match="Packages need uv") as refusal:
        await bench.provide(made, "alpha")
    assert "mcp-code-bridge[packages]" in refusal.value.remedy


SLEEPER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open({place!r}, "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}\\n")
time.sleep(600)
"""


async def test_a_uv_that_no_one_waits_for_is_killed_with_all_it_started(bench: Bench) -> None:
    said = bench.path / "pids"
    sleeper = script(bench.path, SLEEPER.format(place=str(said)))
    made = bench.resolver(allow_from("/wheels", "*"), sleeper)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.provide, made, "alpha")
        await until(lambda: said.exists() and said.read_text().endswith("\n"))
        tasks.cancel_scope.cancel()
    await until(lambda: not any(map(exists, map(int, said.read_text().split()))))


async def test_uv_has_a_deadline(bench: Bench) -> None:
    sleeper = script(bench.path, SLEEPER.format(place=str(bench.path / "pids")))
    made = bench.resolver(allow_from("/wheels", "*", timeout=1), sleeper)
    with pytest.raises(PackageUnavailableError, match="within 1 s"):
        await bench.provide(made, "alpha")
