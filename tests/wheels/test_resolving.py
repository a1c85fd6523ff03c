"""From what is asked for to a directory with it, by resolvers real and pretended."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.settings.dependencies import Dependencies
from bridge.wheels import fetching, tools
from bridge.wheels.pins import Pin
from bridge.wheels.requirements import parse_requirements
from bridge.wheels.resolving import Resolver
from bridge.wheels.target import Target
from bridge.wheels.tools import Tool
from tests.waiting import PATIENCE_SECONDS, until
from tests.wheels.rig import PATH, PIP, REAL, TARGET, Index, allowing, entry, wheel


class Pretended:
    """A resolver that has found what a directory's wheels are.

    Attributes:
        asked: How often.
        command: What is run in its place.
    """

    def __init__(self, *wheels: Path, command: Sequence[str] = ("/bin/true",)) -> None:
        self.wheels = wheels
        self.command = command
        self.asked = 0

    def tool(self) -> Tool:
        """Return it."""
        uv = tools.uv("", "")
        return Tool(name="pretended", order=self._order, answer=uv.answer, step=uv.step)

    def _order(self, place: Path, dependencies: Dependencies, target: Target) -> list[str]:
        self.asked += 1
        text = ""
        for path in self.wheels:
            name, version, _ = path.name.split("-", 2)
            text += f'[[packages]]\nname = "{name}"\nversion = "{version}"\n'
            text += f'wheels = [{{ url = "{path.as_uri()}" }}]\n'
        (place / tools.ANSWER).write_text(text)
        return list(self.command)


class Told(list[str]):
    """What whoever asked was told."""

    async def say(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A directory of wheels."""
    directory = tmp_path / "links"
    directory.mkdir()
    return directory


@pytest.fixture
def told() -> Told:
    """What is said."""
    return Told()


def resolver(tmp_path: Path, dependencies: Dependencies, tool: Tool | None) -> Resolver:
    return Resolver(dependencies, tmp_path / "kept", PATH, "config.toml", tool)


def below(directory: Path) -> list[str]:
    """Return the names of all files and directories in one."""
    return [path.name for path in directory.rglob("*")]


async def provided(made: Resolver, told: Told, *texts: str) -> list[str]:
    tree = await made.provide(parse_requirements(texts), TARGET, told.say)
    return [] if tree is None else sorted(path.name for path in tree.glob("*.py"))


@REAL
async def test_what_is_found_is_for_the_sandboxes_python_and_found_once(
    tmp_path: Path, links: Path, told: Told, tool: Tool
) -> None:
    # Of another Python than the bridge's: what only that one would need is not even there, and no
    # version of beta would suit both.
    theirs = ["beta<1.6; python_version < '3.10'", "gamma; python_version < '3.10'", "old"]
    ours = ["beta>=1.6; python_version >= '3.10'", "delta; python_version >= '3.10'"]
    wheel(links, "alpha", "1.0", requires=[*theirs, *ours])
    wheel(links, "alpha", "2.0", requires=["beta>=1"])
    wheel(links, "beta", "1.5", requires=["delta; implementation_version >= '3.10'"])
    wheel(links, "beta", "1.6")
    wheel(links, "beta", "1.7", tag="cp313-cp313-manylinux_2_17_x86_64")
    wheel(links, "gamma", "0.1", requires=["beta>=1.6; extra == 'more'"])
    wheel(links, "old", "0.1", requires=["gamma; sys_platform == 'linux'", "no; os_name == 'nt'"])
    dependencies = allowing(links, "alpha==1.*", "beta", "gamma", "old")
    made = resolver(tmp_path, dependencies, tool)
    found = await provided(made, told, "alpha")
    assert found == ["alpha.py", "beta.py", "gamma.py", "old.py"]
    assert told[0] == "resolving alpha"
    assert "fetching gamma 0.1" in told
    told.clear()
    # Another bridge, which has neither resolver nor index.
    shutil.rmtree(links)
    again = resolver(tmp_path, dependencies, Pretended(command=("/bin/false",)).tool())
    assert await provided(again, told, "alpha") == found
    assert await provided(made, told, "Alpha") == found
    assert told == []


@REAL
async def test_an_index_is_used_as_the_settings_name_it_and_nothing_of_the_users(
    tmp_path: Path, links: Path, told: Told, tool: Tool
) -> None:
    home = tmp_path / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:1/\n")
    (home / ".netrc").write_text("machine 127.0.0.1 login wrong password wrong\n")
    wheel(links, "alpha", "1.0", requires=["beta"])
    wheel(links, "beta", "1.0")
    evil = {
        **PATH,
        "HOME": str(home),
        "PIP_INDEX_URL": "http://127.0.0.1:1/",
        "PIP_NO_INDEX": "1",
        "UV_DEFAULT_INDEX": "http://127.0.0.1:1/",
        "NETRC": str(home / ".netrc"),
    }
    with Index(links, login="robot:s3cret") as index:
        dependencies = allowing(index.url, "*", require_hashes=True)
        made = Resolver(dependencies, tmp_path / "kept", evil, "config.toml", tool)
        assert await provided(made, told, "alpha") == ["alpha.py", "beta.py"]
        with pytest.raises(PackageUnavailableError) as refusal:
            await provided(made, told, "nothing")
        assert "The index has no nothing" in str(refusal.value) or "nothing" in str(refusal.value)
        assert "s3cret" not in str(refusal.value)
    kept = [path.read_text() for path in (tmp_path / "kept/locks").iterdir()]
    assert kept
    assert not any("s3cret" in text for text in kept)


@REAL
async def test_what_something_allowed_needs_and_may_not_be_used_is_refused_and_not_fetched(
    tmp_path: Path, links: Path, told: Told, tool: Tool
) -> None:
    wheel(links, "alpha", "1.0", requires=["beta"])
    wheel(links, "beta", "1.0")
    made = resolver(tmp_path, allowing(links, "alpha"), tool)
    with pytest.raises(PackageRefusedError, match="alpha needs beta, which is not allowed here"):
        await provided(made, told, "alpha")
    assert list((tmp_path / "kept/wheels").iterdir()) == []


@REAL
async def test_what_would_have_to_be_built_is_refused_by_name(
    tmp_path: Path, links: Path, told: Told, tool: Tool
) -> None:
    (links / "alpha-1.0.tar.gz").write_bytes(b"never opened")
    with pytest.raises(PackageUnavailableError, match=r"alpha is .* source only \(alpha-1.0.tar"):
        await provided(resolver(tmp_path, allowing(links, "*"), tool), told, "alpha")


@REAL
@pytest.mark.parametrize("what", ["beta-1.0.tar.gz", "beta-1.0-py3-none-any.whl", "git"])
async def test_what_a_wheel_wants_from_an_address_is_neither_built_nor_used(
    tmp_path: Path, links: Path, told: Told, tool: Tool, what: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    wheel(elsewhere, "beta", "1.0")
    trace = tmp_path / "built"
    script = f"open({str(trace)!r}, 'w')\nfrom setuptools import setup\nsetup(name='beta')\n"
    (elsewhere / "setup.py").write_text(script)
    with tarfile.open(elsewhere / "beta-1.0.tar.gz", "w:gz") as archive:
        archive.add(elsewhere / "setup.py", "beta-1.0/setup.py")
    address = (elsewhere / what).as_uri()
    if what == "git":
        # A transport of git that is a command.
        address = f"git+ext::sh -c touch% {trace}"
    wheel(links, "alpha", "1.0", requires=[f"beta @ {address.replace(' ', '%20')}"])
    made = resolver(tmp_path, allowing(links, "*"), tool)
    with pytest.raises((PackageRefusedError, PackageUnavailableError)):
        await provided(made, told, "alpha")
    assert not trace.exists()
    assert not list((tmp_path / "kept/wheels").iterdir())


async def test_nothing_is_looked_for_that_was_not_allowed(tmp_path: Path, told: Told) -> None:
    pretended = Pretended()
    made = resolver(tmp_path, allowing("/wheels", "polars"), pretended.tool())
    with pytest.raises(PackageRefusedError, match="Near: polars"):
        await provided(made, told, "polarz")
    assert pretended.asked == 0
    assert below(tmp_path) == []


async def test_a_requirement_for_another_python_is_left_out(tmp_path: Path, told: Told) -> None:
    pretended = Pretended()
    made = resolver(tmp_path, allowing("/wheels", "*"), pretended.tool())
    assert await provided(made, told, "tomli; python_version >= '3.11'") == []
    assert pretended.asked == 0


async def test_two_bridges_that_want_the_same_find_it_once(
    tmp_path: Path, links: Path, told: Told
) -> None:
    pretended = Pretended(wheel(links, "alpha", "1.0"))
    bridges = [resolver(tmp_path, allowing(links, "*"), pretended.tool()) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        for made in bridges:
            tasks.start_soon(provided, made, told, "alpha")
    assert pretended.asked == 1


async def test_what_was_allowed_when_it_was_found_is_judged_again(
    tmp_path: Path, links: Path, told: Told
) -> None:
    old, new = wheel(links, "alpha", "1.0"), wheel(links, "alpha", "2.0")
    first = resolver(tmp_path, allowing(links, "alpha"), Pretended(new).tool())
    await provided(first, told, "alpha")
    pretended = Pretended(old)
    narrower = resolver(tmp_path, allowing(links, "alpha<2"), pretended.tool())
    tree = await narrower.provide(parse_requirements(["alpha"]), TARGET, told.say)
    assert tree is not None
    assert "1.0" in (tree / "alpha.py").read_text()
    assert pretended.asked == 1


async def test_versions_are_looked_for_anew_when_they_are_old_and_kept_if_nobody_answers(
    tmp_path: Path, links: Path, told: Told
) -> None:
    alpha = wheel(links, "alpha", "1.0")
    await provided(resolver(tmp_path, allowing(links, "*"), Pretended(alpha).tool()), told, "alpha")
    (lock,) = (tmp_path / "kept/locks").iterdir()
    lock.write_text(lock.read_text().replace('"made": ', '"made": 1000.0, "then": '))
    text = lock.read_text().replace(', "then": ', "", 1)
    assert '"made"' in text
    fresh = Pretended(alpha)
    assert await provided(
        resolver(tmp_path, allowing(links, "*"), fresh.tool()), told, "alpha"
    ) == ["alpha.py"]
    assert fresh.asked == 0
    failing = Pretended(command=("/bin/false",))
    made = resolver(tmp_path, allowing(links, "*", lock_days=1), failing.tool())
    assert await provided(made, told, "alpha") == ["alpha.py"]
    assert failing.asked == 1


async def test_a_wheel_that_is_not_what_it_was_is_refused(
    tmp_path: Path, links: Path, told: Told
) -> None:
    alpha = wheel(links, "alpha", "1.0")
    made = resolver(tmp_path, allowing(links, "*"), Pretended(alpha).tool())
    tree = await made.provide(parse_requirements(["alpha"]), TARGET, told.say)
    assert tree is not None
    shutil.rmtree(tree)
    for path in (tmp_path / "kept/wheels").iterdir():
        path.write_bytes(b"something else")
    wheel(links, "alpha", "1.0", files={"alpha.py": "evil"})
    with pytest.raises(PackageUnavailableError, match="is not what it was said to be"):
        await provided(made, told, "alpha")
    assert not tree.exists()


async def test_a_resolver_cannot_lead_out_of_the_directory(
    tmp_path: Path, links: Path, told: Told
) -> None:
    outside = wheel(tmp_path, "alpha", "1.0")
    (links / "beta-1.0-py3-none-any.whl").symlink_to(outside)
    for path in (outside, links / "beta-1.0-py3-none-any.whl"):
        made = resolver(tmp_path, allowing(links, "*"), Pretended(path).tool())
        with pytest.raises(PackageUnavailableError, match="not the index"):
            await provided(made, told, path.name.partition("-")[0])


async def test_a_hostile_wheel_leaves_nothing(tmp_path: Path, links: Path, told: Told) -> None:
    alpha = wheel(links, "alpha", "1.0", entries=[entry("../../../evil.py")])
    made = resolver(tmp_path, allowing(links, "*"), Pretended(alpha).tool())
    with pytest.raises(PackageRefusedError, match="no name of a file"):
        await provided(made, told, "alpha")
    assert list((tmp_path / "kept/sets").iterdir()) == []
    assert not any("evil" in name for name in below(tmp_path))


async def test_packages_beyond_the_bound_are_refused_before_they_are_kept(
    tmp_path: Path, links: Path, told: Told
) -> None:
    alpha = wheel(links, "alpha", "1.0", files={"a.bin": os.urandom(1_500_000)})
    made = resolver(tmp_path, allowing(links, "*", max_bytes="1m"), Pretended(alpha).tool())
    with pytest.raises(PackageUnavailableError, match="`max_bytes`|larger than"):
        await provided(made, told, "alpha")
    assert list((tmp_path / "kept/wheels").iterdir()) == []


async def test_an_index_that_gives_no_digest_is_refused_where_one_is_demanded(
    tmp_path: Path, links: Path, told: Told
) -> None:
    wheel(links, "alpha", "1.0")
    with Index(links, hashes=False) as index:
        made = resolver(tmp_path, allowing(index.url, "*", require_hashes=True), PIP)
        with pytest.raises(PackageUnavailableError, match="gives no SHA-256"):
            await provided(made, told, "alpha")


def sleeper(place: Path) -> tuple[str, ...]:
    """Return a command that says its number and its child's, and sleeps."""
    code = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen(['sleep', '600']);"
        f"open({str(place)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n');"
        "time.sleep(600)"
    )
    return (sys.executable, "-c", code)


async def test_what_an_index_sends_packed_is_counted_and_kept_as_it_was_sent(
    tmp_path: Path, links: Path, told: Told
) -> None:
    """A few bytes of it could be anything when unpacked."""
    made = wheel(links, "alpha", "1.0")
    bomb = gzip.compress(made.read_bytes() + bytes(16 * 1024 * 1024))
    with Index(links) as index:
        packed = {"content-encoding": "gzip"}
        index.answers[f"/files/{made.name}"] = 200, packed, bomb
        root = index.url.removesuffix("/simple")
        pin = Pin(name="alpha", version="1.0", url=f"{root}/files/{made.name}", file=made.name)
        dependencies = allowing(index.url, "*")
        async with fetching.client(dependencies) as http:
            digest, size = await fetching.fetch(pin, dependencies, tmp_path, len(bomb), http)
    assert (size, digest) == (len(bomb), hashlib.sha256(bomb).hexdigest())


@pytest.mark.parametrize("place", ["http://127.0.0.1:{port}/files/x", "file:///etc/hostname"])
async def test_an_index_with_tls_leads_nowhere_without(
    tmp_path: Path, links: Path, place: str
) -> None:
    with Index(links) as index:
        port = index.url.removesuffix("/simple").rpartition(":")[2]
        pin = Pin(name="alpha", version="1.0", url=place.format(port=port), file="alpha.whl")
        dependencies = allowing("https://index.invalid/simple", "*")
        async with fetching.client(dependencies) as http:
            with pytest.raises(PackageUnavailableError, match="a place that is not the index"):
                await fetching.fetch(pin, dependencies, tmp_path, 1000, http)
        assert index.asked == []
    assert not [name for name in below(tmp_path) if name == "alpha.whl"]


async def test_a_resolver_that_nobody_waits_for_is_killed_with_all_it_started(
    tmp_path: Path, told: Told
) -> None:
    said = tmp_path / "pids"
    pretended = Pretended(command=sleeper(said))
    made = resolver(tmp_path, allowing("/wheels", "*"), pretended.tool())
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(provided, made, told, "alpha")
            await until(lambda: said.exists() and said.read_text().endswith("\n"))
            tasks.cancel_scope.cancel()
        await until(lambda: not any(map(_runs, said.read_text().split())))


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def test_a_resolver_has_a_deadline(tmp_path: Path, told: Told) -> None:
    pretended = Pretended(command=sleeper(tmp_path / "pids"))
    made = resolver(tmp_path, allowing("/wheels", "*", timeout=1), pretended.tool())
    with (
        anyio.fail_after(PATIENCE_SECONDS),
        pytest.raises(PackageUnavailableError, match="within 1 s"),
    ):
        await provided(made, told, "alpha")
