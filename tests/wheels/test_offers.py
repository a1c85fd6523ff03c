"""What an index has of a package, and why nothing of it fits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from bridge.wheels.fetching import client
from bridge.wheels.offers import File, Offer, files_of, lacking, offer
from tests.wheels.rig import TARGET, Index, allowing, wheel

NATIVE = "manylinux_2_17_x86_64"


def offered(*names: str, python: str = "") -> Offer:
    return Offer(files=tuple(File(name=name, python=python) for name in names))


def why(text: str, found: Offer, *allow: str) -> tuple[str, str]:
    entries = allowing("/wheels", *allow).allow if allow else ()
    return lacking(Requirement(text), found, TARGET, entries)


def test_what_is_there_and_fits_lacks_nothing() -> None:
    found = offered("alpha-1.0-py3-none-any.whl", f"alpha-2.0-cp39-cp39-{NATIVE}.whl")
    for text in ("alpha", "alpha==1.*", "alpha>=2"):
        assert why(text, found) == ("", "")


PURE = "alpha-1.0-py3-none-any.whl"
LACKS = [
    ("alpha", offered(), "The index has no alpha.", "spelt"),
    ("alpha==9.*", offered(PURE), "no alpha ==9.*; the newest are 1.0", "such as 1.0."),
    (
        "alpha<2",
        offered(f"alpha-1.0-cp38-cp38-{NATIVE}.whl", "alpha-2.0-py3-none-any.whl"),
        "no wheel for cpython 3.9.2 on x86_64 (glibc 2.31); there are some for cp38 on manylinux",
        "such as 2.0.",
    ),
    ("alpha", offered("alpha-1.0-cp39-cp39-win32.whl"), "for cp39 on win32", "Do without it"),
    ("alpha", offered(PURE, python=">=3.12"), "for Python >=3.12; the sandbox has", "Do without"),
    ("alpha", offered("alpha-1.0.tar.gz"), "source only (alpha-1.0.tar.gz)", "Do without"),
    ("alpha", Offer(problem="it answered 503"), "what it has of alpha: it answered", "Try again"),
]


@pytest.mark.parametrize(("text", "found", "told", "remedy"), LACKS)
def test_it_says_what_of_a_wish_cannot_be_met_and_what_can(
    text: str, found: Offer, told: str, remedy: str
) -> None:
    said, done = why(text, found)
    assert told in said
    assert remedy in done


def test_versions_that_are_there_and_not_allowed_are_told_apart_from_those_that_are_not() -> None:
    found = offered("alpha-1.0-py3-none-any.whl", "alpha-3.0-py3-none-any.whl")
    assert "not allowed here; of it there is alpha<2" in why("alpha>=3", found, "alpha<2")[0]
    assert why("alpha", found, "alpha<2") == ("", "")


def test_both_forms_of_a_page_tell_the_same() -> None:
    digest = "a" * 64
    name = "alpha-1.0-py3-none-any.whl"
    expected = [File(name=name, sha256=digest, python=">=3.9,<4")]
    page = f"<a href='../x/{name}#sha256={digest}' data-requires-python='>=3.9,&lt;4'>{name}</a>"
    assert files_of(page, "text/html") == expected
    item = {"filename": name, "hashes": {"sha256": digest}, "requires-python": ">=3.9,<4"}
    assert files_of(json.dumps({"files": [item, 1, {}]}), "application/x+json") == expected


@pytest.mark.parametrize("page", ["<a " * 100_000, '<a x="' * 100_000, "<a '" + "x'" * 100_000])
def test_a_page_that_is_none_holds_nothing(page: str) -> None:
    """Were each link looked for to the end of the page, this would take minutes."""
    assert files_of(page, "text/html") == []


@pytest.mark.parametrize("page", ["<a " + "x" * 2_000_000, "<a " + '"x"' * 600_000])
def test_a_page_takes_no_more_memory_than_a_few_times_its_length(page: str) -> None:
    """In a process of its own: of what a regular expression takes Python itself says nothing."""
    measure = """
import resource, sys
from bridge.wheels.offers import files_of
page = sys.stdin.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
files_of(page, "text/html")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    words = [sys.executable, "-c", measure]
    told = subprocess.run(words, input=page, capture_output=True, text=True, check=True)
    assert int(told.stdout) * 1024 < 10 * len(page)


NO_FILES = [
    # Nobody can say which address that is.
    "<a href='http://[alpha-1.0-py3-none-any.whl'>",
    # Python reads no number of so many digits.
    f"<a href='alpha-{'1' * 5000}-py3-none-any.whl'>",
    f"<a href='alpha-{'1' * 5000}.tar.gz'>",
    # Each of the first with each of the others: a quarter of a million tags.
    f"<a href='alpha-1.0-{'.'.join(['p'] * 63)}-{'.'.join('a' * 63)}-{'.'.join('b' * 63)}.whl'>",
]


@pytest.mark.parametrize("page", NO_FILES)
async def test_names_that_only_cost_time_to_read_are_of_no_file(tmp_path: Path, page: str) -> None:
    with Index(tmp_path) as index:
        index.answers["/simple/alpha/"] = 200, {"content-type": "text/html"}, page.encode()
        dependencies = allowing(index.url, "*")
        async with client(dependencies) as http:
            assert await offer("alpha", dependencies, http) == Offer()


def test_what_a_file_says_of_pythons_may_be_no_specifier() -> None:
    for python in ("any", f"=={'9' * 5000}"):
        assert why("alpha", offered(PURE, python=python)) == ("", "")


async def test_nothing_is_believed_that_came_in_the_clear_where_the_index_uses_tls() -> None:
    """A digest that is demanded would be whoever's who sits on the line."""
    page = b"<a href='alpha-1.0-py3-none-any.whl#sha256=" + b"a" * 64 + b"'>"

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "index.invalid":
            return httpx2.Response(302, headers={"location": f"{scheme}://other.invalid/alpha/"})
        return httpx2.Response(200, stream=httpx2.ByteStream(page))

    dependencies = allowing("https://index.invalid/simple", "*")
    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(transport=transport, follow_redirects=True) as http:
        scheme = "https"
        assert (await offer("alpha", dependencies, http)).files
        scheme = "http"
        found = await offer("alpha", dependencies, http)
    assert found == Offer(problem="it sends elsewhere, and not over TLS")


async def test_an_index_that_does_not_answer_is_told_apart_from_one_without_the_package(
    tmp_path: Path,
) -> None:
    wheel(tmp_path, "alpha", "1.0")
    with Index(tmp_path) as index:
        dependencies = allowing(index.url, "*")
        index.answers["/simple/shut/"] = 403, {}, b""
        async with client(dependencies) as http:
            assert [file.name for file in (await offer("alpha", dependencies, http)).files]
            assert await offer("beta", dependencies, http) == Offer()
            assert "answered 403: `index` of" in (await offer("shut", dependencies, http)).problem
            index.answers["/simple/away/"] = 302, {"location": "http://127.0.0.1:70000/"}, b""
            assert "cannot be reached" in (await offer("away", dependencies, http)).problem
    async with client(dependencies) as http:
        assert "cannot be reached" in (await offer("alpha", dependencies, http)).problem
    nowhere = allowing(tmp_path / "nowhere", "*")
    async with client(nowhere) as http:
        assert "cannot be read" in (await offer("alpha", nowhere, http)).problem
