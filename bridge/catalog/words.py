"""Splits tools' names and queries into words.

Owns the splitting of identifiers, the stop words of queries, synonyms among servers, abbreviations,
and the correction of mistyped words. Ranking is in `bridge.catalog.search`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from bridge.text import valid_text

MAX_WORD_CHARS = 40

_RUN = re.compile(r"[^\W_]+")
_JOINED = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Synonyms, as servers and people use them. A word may be in several groups.
_SAME = """\
create add new make insert start open / delete remove destroy drop erase forget clear
get read fetch show view retrieve see load inspect / search find query lookup look locate
update edit modify change set patch / send post publish tell / sum add total plus
memory remember memorize recall / observation fact / list enumerate browse
run execute invoke / write save store / commit save / navigate visit open / fill type enter
wait sleep pause delay / extract scrape parse pull / performance speed slow fast
current now / download fetch / upload push attach / rename move / move transition
copy fork duplicate clone / convert transform translate turn / toggle turn / checkout switch
undo revert rollback reset / merge accept combine join / approve review
check verify validate test / install deploy / scale increase decrease / press click tap
watch monitor notify observe track alert tell / capture screenshot snapshot
connect link relate relation / history log / reply answer respond comment
stop end cancel kill terminate / compare diff difference / multiple several many batch bulk
repository repo / directory folder dir / database db / environment env
configuration config setting / documentation doc / document doc file / message msg
image picture photo media / video recording screencast / issue ticket bug / task todo
filesystem disk drive / news headline / aggregate group sum / schema field column structure
organization org company / comment remark note / user member people person colleague account
web internet website site url / dialog popup alert / paper article / size space big large
cost price spend charge / calculate compute evaluate / local location place near nearby
spreadsheet worksheet sheet workbook excel / presentation slide deck / javascript js
kubernetes k8s / package library"""

# Stop words: left out of a query as long as another word remains.
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        """
        a about all am an and any anything are as at be been being but by called can could did do
        does everyone everything exist exists for from give had has have he her here his how i if in
        inside into is it its just kind let may me might more most much must my need no not of off
        on once one only or other our out over please she should so some somebody someone something
        such take than that
        the their them then there these they thing things this those to too tool tools up us use
        used using want was we were what whatever when where whether which while who whom whose
        why will with within would you your
        """,
    )
)

_SHORT_FOR: Mapping[str, tuple[str, ...]] = {
    "pr": ("pull", "request"),
    "prs": ("pull", "request"),
    "mr": ("merge", "request"),
    "mrs": ("merge", "request"),
    # A server that remembers also has tools that forget.
    "remember": ("remember", "add"),
}


def runs(text: str) -> list[str]:
    """Return the unbroken runs of letters and digits in `text`."""
    return _RUN.findall(text)


def parts(run: str) -> list[str]:
    """Return the words of a run of letters, which may be joined by case; in lower case."""
    if not run.isascii():
        return [run.lower()[:MAX_WORD_CHARS]]
    return [match[0].lower()[:MAX_WORD_CHARS] for match in _PART.finditer(run)]


def words(text: str) -> list[str]:
    """Return the words of `text`, which may be joined by case or underscores; in lower case."""
    return [part for run in runs(text) for part in _parts(run)]


def indexed(text: str) -> str:
    """Return `text` with the words added that are joined in it by case: "GitHub" as "git hub"."""
    if _JOINED.search(text):
        apart = (_apart(run) for run in runs(text))
        text = f"{text} {' '.join(part for found in apart for part in found)}"
    return valid_text(text)


def asked(query: str) -> list[str]:
    """Return a query's runs without stop words, abbreviations expanded; all if none remains."""
    found = runs(query)
    telling = [run for run in found if run.lower() not in _FILLERS]
    return [long for run in telling or found for long in _SHORT_FOR.get(run.lower(), (run,))]


def same(given: Iterable[str]) -> list[str]:
    """Return the synonyms of the given words, each once."""
    return list(dict.fromkeys(other for word in given for other in _OTHERS.get(word, ())))


def mended(word: str, known: Container[str]) -> list[str]:
    """Return the known words that are one edit away from `word`, in alphabetical order."""
    if len(word) < 4 or not word.isascii():  # Shorter words are one edit away from too many others.
        return []
    word = word[:MAX_WORD_CHARS]
    ends = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = {head + tail[1:] for head, tail in ends if tail}
    found.update(head + tail[1] + tail[0] + tail[2:] for head, tail in ends if len(tail) > 1)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        found.update(head + letter + tail[1:] for head, tail in ends if tail)
        found.update(head + letter + tail for head, tail in ends)
    return sorted(other for other in found if other in known)


@lru_cache(maxsize=8_192)  # a few megabytes
def _parts(run: str) -> tuple[str, ...]:
    return tuple(parts(run))


def _apart(run: str) -> tuple[str, ...]:
    found = _parts(run[: 2 * MAX_WORD_CHARS])  # Longer runs are encoded data rather than names.
    return found if len(found) > 1 else ()


def _forms(word: str) -> Iterable[str]:
    stem = word.removesuffix("e")
    yield from (word, f"{word}s", f"{stem}ing", f"{stem}ed", f"{stem}es")
    if word.endswith("y"):
        yield f"{word[:-1]}ies"


def _others() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for line in re.split(r" / |\n", _SAME):
        group = line.split()
        for word in group:
            for form in _forms(word):
                others = found.setdefault(form, {})
                others.update(dict.fromkeys(other for other in group if other != word))
    return {word: tuple(others) for word, others in found.items()}


_OTHERS = _others()
