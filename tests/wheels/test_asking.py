"""Resolvers that find nothing, and what is said of it; and what they tell while they look."""

from __future__ import annotations

import json
import os
import ssl
import sys
from pathlib import Path

import anyio
import pytest

from bridge.errors import PackageUnavailableError
from bridge.settings.dependencies import Dependencies
from bridge.wheels import fetching, tools
from bridge.wheels.asking import Paced, Question, ask
from bridge.wheels.pins import Pin
from bridge.wheels.tools import Tool, not_found, said, surroundings
from tests.waiting import PATIENCE_SECONDS
from tests.wheels.rig import PATH, REAL, TARGET, Index, allowing, wheel


class Told(list[str]):
    """What whoever asked was told."""

    async def say(self, text: str) -> None:
        self.append(text)


async def asked(
    tool: Tool, dependencies: Dependencies, place: Path, *texts: str, limits: tuple[str, ...] = ()
) -> tuple[tuple[Pin, ...], Told]:
    told = Told()
    question = Question(texts=texts, limits=limits, target=TARGET)
    return await ask(tool, question, dependencies, PATH, place, told.say), told


@REAL
async def test_each_failure_says_what_cannot_be_met_and_what_can(
    tmp_path: Path, tool: Tool
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    wheel(links, "alpha", "1.0", requires=["beta>=9"])
    wheel(links, "beta", "1.0")
    place = tmp_path / "place"
    place.mkdir()
    expected = {"nowhere": "The index has no nowhere.", "alpha": "beta"}
    with Index(links) as index:
        for text, words in expected.items():
            with pytest.raises(PackageUnavailableError) as refusal:
                await asked(tool, allowing(index.url, "*"), place, text)
            told = str(refusal.value)
            assert words in told
            assert text in told
            assert index.url not in told
            assert str(tmp_path) not in told
        with pytest.raises(
            PackageUnavailableError, match=r"not allowed here; of it there is beta<1"
        ):
            await asked(tool, allowing(index.url, "beta<1"), place, "beta", limits=("beta<1",))
    with pytest.raises(PackageUnavailableError, match="cannot be reached"):
        await asked(tool, allowing(index.url, "*"), place, "beta")
    # Whatever came of it, nothing of a resolver is left.
    assert list(place.iterdir()) == []


async def test_what_pip_reads_is_told_while_it_reads(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    wheel(links, "alpha", "1.0", files={"a.bin": os.urandom(30_000)})
    with Index(links) as index:
        tool = tools.pip(sys.executable)
        found, told = await asked(tool, allowing(index.url, "*"), tmp_path, "alpha")
    assert [pin.name for pin in found] == ["alpha"]
    assert told == ["resolving: reading alpha-1.0-py3-none-any.whl (30 kB)"]


async def test_steps_that_come_faster_than_anybody_reads_are_left_out() -> None:
    told = Told()
    paced = Paced(told.say)
    with anyio.fail_after(PATIENCE_SECONDS):
        await paced.say("")
        for number in range(1000):
            await paced.say(str(number))
    assert told[0] == "0"
    assert len(told) < 500


def test_a_resolver_trusts_what_the_bridge_trusts() -> None:
    """The pip of today looks at none of the variables that OpenSSL does."""
    place = Path("/place")
    assert "REQUESTS_CA_BUNDLE" not in surroundings({}, place)
    variable = ssl.get_default_verify_paths().openssl_cafile_env
    assert surroundings({variable: "/own.pem"}, place)["REQUESTS_CA_BUNDLE"] == "/own.pem"
    mixed = surroundings({"SSL_CERT_DIR": "/own", "REQUESTS_CA_BUNDLE": "/other"}, place)
    assert mixed["REQUESTS_CA_BUNDLE"] == "/own"


def test_a_resolvers_words_are_told_without_advice_addresses_and_lists() -> None:
    text = """Looking in indexes: https://robot:s3cret@pypi.example.com/simple
WARNING: Retrying (Retry(total=1)) after connection broken by 'SSLError(x)': /simple/alpha/
ERROR: Could not find a version that satisfies beta>=9 (from alpha) (from versions: 1.0, 2.0)
ERROR: No matching distribution found for beta>=9 (from alpha)

To fix this you could try to:
1. loosen the range of package versions you've specified
"""
    words = said(text, allowing("https://robot:s3cret@pypi.example.com/simple", "*"), Path("/x"))
    assert words == (
        "Could not find a version that satisfies beta>=9 (from alpha) No matching distribution "
        "found for beta>=9 (from alpha) The connection to the index was broken: SSLError."
    )
    assert not_found("No matching distribution found for beta>=9 (from alpha)") == "beta>=9"
    assert not_found("No matching distribution found for beta") == "beta"
    assert not_found("something else") == ""


def test_a_resolvers_longest_word_takes_no_time_to_tell() -> None:
    """Were an address looked for from each letter to the end, this would take half a minute."""
    assert said("a" * 120_000, allowing("/wheels", "*"), Path("/x")).startswith("aaaa")


@pytest.mark.parametrize("name", ["evil-1.0", "evil_alpha-1.0", "alpha"])
def test_a_wheel_of_another_name_does_not_come_under_an_allowed_one(name: str) -> None:
    url = f"file:///x/{name}-py3-none-any.whl"
    lock = f'[[packages]]\nname = "alpha"\nversion = "1.0"\nwheels = [{{ url = "{url}" }}]\n'
    metadata = {"name": "alpha", "version": "1.0"}
    report = json.dumps({"install": [{"metadata": metadata, "download_info": {"url": url}}]})
    for tool, text in ((tools.uv("", ""), lock), (tools.pip(""), report)):
        with pytest.raises(PackageUnavailableError):
            tool.answer(text, TARGET)


async def test_of_a_large_wheel_it_is_told_how_much_has_come(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    made = wheel(links, "alpha", "1.0", files={"a.bin": os.urandom(3_000_000)})
    come: list[tuple[int, int]] = []

    async def count(size: int, whole: int) -> None:
        come.append((size, whole))

    size = made.stat().st_size
    with Index(links) as index:
        url = f"{index.url.removesuffix('/simple')}/files/{made.name}"
        pin = Pin(name="alpha", version="1.0", url=url, file=made.name)
        dependencies = allowing(index.url, "*")
        async with fetching.client(dependencies) as http:
            await fetching.fetch(pin, dependencies, tmp_path, size, http, count)
            # Where its length is told, what is too large is not even begun.
            asked = len(come)
            with pytest.raises(PackageUnavailableError, match="larger than a run's may be"):
                await fetching.fetch(pin, dependencies, tmp_path, size - 1, http, count)
    assert come[-1] == (size, size)
    assert len(come) == asked >= 3
