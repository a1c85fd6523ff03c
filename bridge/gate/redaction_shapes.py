"""Finds texts that look like secrets, without a list of them. Pure.

Each search is linear in the text. A program must not hide text from a reader behind a mask. So a
mask covers only characters of tokens, and has their ends, length and digest.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from bridge.text import words_in

MASK_BEGINS = "[redacted: "  # The start of each mask. A text that has it is marked as text.

LEAST_NAMED = 6
"""Minimum characters of a value that is a secret for its name. Shorter ones are in every text."""

LEAST_SHAPED = 20  # Minimum length of random text. Known formats are longer.

LEAST_WORDS = 15
"""Minimum letters of a value without digits that is a secret for its name: "postgres" is none,
and a pass phrase is."""

MAX_MASKED = 16 * 1024  # Characters of one mask. A longer text is no token, and is shown.


_ALWAYS = words_in(
    "password passwords passwd passphrase pwd secret secrets token tokens apikey apitoken "
    "authtoken accesstoken refreshtoken clientsecret privatekey secretkey accesskey authorization "
    "credential credentials cookie cookies jwt bearer pat"
)
"""A name with one of these words is a secret's, unless it ends with a word of `_ABOUT`."""

_PAIRS = frozenset(
    (first, "key")
    for first in words_in(
        "api access secret private auth encryption signing service account master admin deploy "
        "license subscription shared ssh app application server client webhook session storage "
        "consumer hmac"
    )
) | frozenset({("pass", "phrase"), ("auth", "code"), ("connection", "string"), ("session", "id")})
# Packed copies of variables that a shell's hook has set.
_PAIRS |= {("direnv", "diff"), ("mise", "diff")}

_LAST = words_in("auth pass key dsn signature session")
"""A name that ends with one of these is a secret's, unless the value is a name ("pass": always)."""

_NO_KEYS = words_in("project partition primary public publishable sort cache row shard routing")
"""Words before "key" in names of public values: `SONAR_PROJECT_KEY`, `PARTITION_KEY`."""

_ABOUT = words_in(
    "name names file files path paths dir url uri endpoint host port type kind id ids count limit "
    "limits max min length size ttl expiry expires expiration timeout enabled required policy "
    "format version header prefix region usage budget index"
)
"""Last words of names of values that describe a secret: `TOKEN_FILE`, `max_tokens_limit`."""

_NUMBERS = words_in("max min num n total count prompt completion input output next page")
"""First words of names ending in "token" or "tokens" whose values are counts or list positions."""

_PUBLIC = words_in(
    "id ids sha sha256 digest hash commit revision version model region host hostname url uri "
    "endpoint path dir file home image tag branch name user username email page pages database "
    "workspace project org organization team channel folder board list bucket account"
)
"""Last words of names whose values may look random and are no secrets."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_JOINED = re.compile(
    r"(?i)(?<=[a-z])(password|passwd|passphrase|secret|apikey|(?<!com|tra)(?<!by)pass)(?![a-z])"
)
"""Matches the end of a joined word: `PGPASSWORD`, `SMTPPASS`."""


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case, whatever its style."""
    return tuple(word.lower() for word in _WORD.findall(_JOINED.sub(r"_\1", name[:200])))


@lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Return whether the value of this argument is a secret."""
    words = words_of(name)
    if not words or words[-1] in _ABOUT - {"id"}:
        return False
    if any(pair in _PAIRS for pair in zip(words, words[1:], strict=False)):
        return words[-1] != "id" or words[-2] == "session"
    if words[-1] == "id":
        return False
    if words[-1] in ("token", "tokens") and words[0] in _NUMBERS:
        return False
    return not _ALWAYS.isdisjoint(words)


@lru_cache(maxsize=4096)
def names_setting(name: str) -> bool:
    """Return whether a variable, header or option of this name holds a secret."""
    words = words_of(name)
    return names_secret(name) or (bool(words) and words[-1] in _LAST)


_FORMATS: tuple[tuple[str, str], ...] = (
    *((f"gh{kind}_", r"[A-Za-z0-9]{20,}") for kind in "pousr"),
    *((begins, r"[A-Za-z0-9]{20,}") for begins in ("hf_", "ntn_", "gsk_")),
    *((begins, r"[A-Za-z0-9_-]{20,}") for begins in ("sk-", "figd_")),
    *((begins, r"[A-Za-z0-9]{16,}") for begins in ("sk_live_", "sk_test_", "rk_live_")),
    *((begins, r"[A-Za-z0-9-]{10,}") for begins in ("xoxb-", "xoxp-", "xoxa-", "xoxe-", "xapp-")),
    *((begins, r"[A-Z0-9]{16}(?![A-Za-z0-9])") for begins in ("AKIA", "ASIA")),
    *((begins, r"[A-Za-z0-9]{30,}") for begins in ("npm_", "secret_")),
    ("github_pat_", r"[A-Za-z0-9_]{20,}"),
    ("glpat-", r"[A-Za-z0-9_-]{16,}"),
    ("whsec_", r"[A-Za-z0-9+/=]{16,}"),
    ("AIza", r"[A-Za-z0-9_-]{30,}"),
    ("ya29.", r"(?:[A-Za-z0-9]{1,4}\.)?[A-Za-z0-9_-]{20,}"),
    ("pypi-", r"[A-Za-z0-9_-]{30,}"),
    ("lin_api_", r"[A-Za-z0-9]{20,}"),
    ("dop_v1_", r"[a-f0-9]{30,}"),
    ("shpat_", r"[A-Fa-f0-9]{20,}"),
    ("SG.", r"[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
    ("tvly-", r"[A-Za-z0-9-]{20,}"),
    ("eyJ", r"[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*){0,2}\.[A-Za-z0-9_-]{20,}"),
    ("hooks.slack.com/services/", r"[A-Za-z0-9/]{20,}"),
    ("discord.com/api/webhooks/", r"[0-9]+/[A-Za-z0-9_-]{20,}"),
)
"""The starts of well-known tokens, with patterns of the rest. None matches the end of a host name,
since the last of several parts is longer than any top-level domain."""

_COMPILED = tuple(
    # Only at the start of a word, so that a long run takes linear time.
    (begins, re.compile(rf"(?<![A-Za-z0-9_-]){re.escape(begins)}{rest}").match)
    for begins, rest in _FORMATS
)


_DIGIT = re.compile("[0-9]")
_SCHEMES = re.compile(
    r"\b(?:Bearer|Basic|Token) +([A-Za-z0-9+/=_~-]{8,}(?:\.[A-Za-z0-9_-]{20,})?)", re.IGNORECASE
)

_SCHEME_WORDS = ("earer ", "asic ", "oken ", "EARER ", "ASIC ", "OKEN ")

_USER = re.compile(r"([^\s/?#@:\"'<>\\]{0,512}:)?([A-Za-z0-9_.~+=%-]{1,512})@")

_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")

_PEM_LINES = re.compile(r"[A-Za-z0-9+/=]{40,}(?:(?:\s|\\[rn]){1,4}[A-Za-z0-9+/=]{40,})*")
"""Matches the lines of a key, also in a JSON text. A shorter line, such as the last, is shown."""

_TOKEN = re.compile(r"[A-Za-z0-9_.~+=@%!-]+")


def mask_secrets(text: str) -> str:
    if len(text) < 14:
        return text
    spans = sorted(_spans(text))
    if not spans:
        return text
    parts, kept = [], 0
    for start, end in spans:
        if start >= kept:
            parts += [text[kept:start], mask(text[start:end])]
            kept = end
    return "".join([*parts, text[kept:]])


def mask(secret: str) -> str:
    """Return the mask of a value: its ends if it is long, its length and a digest."""
    size = len(secret)
    # Too little of a shorter value would stay secret.
    ends = f"{secret[:4]}…{secret[-2:]}, " if size >= 20 else ""
    digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{MASK_BEGINS}{ends}{size:,} characters, sha256 {digest}]"


def could_be_password(text: str) -> bool:
    """Return whether a text can be a secret that its parameter names.

    Text with spaces or with characters that a shell or an address obeys is none, unless random.
    """
    if not 0 < len(text) <= 512:
        return False
    return bool(_TOKEN.fullmatch(text)) or looks_random(text)


def _spans(text: str) -> Iterator[tuple[int, int]]:
    # Each has a digit, unlike words.
    for begins, match in _COMPILED if _DIGIT.search(text) else ():
        at = text.find(begins)
        while at >= 0:
            found = match(text, at)
            if found is not None:
                start, end = at + len(begins), found.end()
                if end - start <= MAX_MASKED and _DIGIT.search(text, start, end):
                    yield start, end
            at = text.find(begins, at + len(begins) if found is None else found.end())
    for word in _SCHEME_WORDS:
        at = text.find(word)
        while at >= 0:
            found = _SCHEMES.match(text, at - 1) if at else None
            at = text.find(word, at + len(word) if found is None else found.end())
            if found and len(found[1]) <= MAX_MASKED and looks_random(found[1], least=8):
                yield found.span(1)
    at = text.find("://")
    while at >= 0:
        found = _USER.match(text, at + 3)
        # A user's name stays visible, unless it is a token without a password.
        if found is not None and (found[1] or looks_random(found[2])):
            yield found.span(2)
        at = text.find("://", at + 3 if found is None else found.end())
    if "PRIVATE KEY" in text:
        yield from _keys(text)


def _keys(text: str) -> Iterator[tuple[int, int]]:
    """Yield the lines of private keys. A key without an end is none."""
    start = _PEM_BEGIN.search(text)
    while start is not None:
        end = _PEM_END.search(text, start.end())
        if end is None:
            return
        if end.start() - start.end() <= MAX_MASKED:
            for lines in _PEM_LINES.finditer(text, start.end(), end.start()):
                if all(map(looks_random, re.findall(r"[A-Za-z0-9+/=]{40,}", lines[0]))):
                    yield lines.span()
        start = _PEM_BEGIN.search(text, end.end())


def has_known_format(value: str) -> bool:
    """Return whether a value is a token of a known format, or a private key."""
    if _PEM_BEGIN.match(value.lstrip()):
        return True
    return any(
        value.startswith(begins)
        and (found := match(value, 0)) is not None
        # Signs at the end do not matter.
        and found.end() >= len(value) - 2
        for begins, match in _COMPILED
    )


_WEAK = re.compile(r"[A-Za-z]+[0-9]{0,4}(?:[ ._:/-]+(?:[A-Za-z]+[0-9]{0,4}|[0-9]{1,4}))*")
"""Words and small numbers: a name, such as those of projects, images and sessions."""

_PLACEHOLDER = re.compile(
    r"<.*>|\{\{.*\}\}|(?:sk-)?[x*.-]+"
    r"|(?:sk-)?(?:no|not)[-_ ](?:(?:api|key|token)[-_ ])*(?:required|needed|necessary|used)"
    r"|(?:your|insert|enter)[-_ ](?:[a-z]+[-_ ])*(?:key|token|secret|password)(?:[-_ ]here)?"
    r"|(?:sk-)?(?:placeholder|dummy|fake|unused|none|empty|change[-_]?me|ollama|lm-studio|local)"
    r"(?:[-_ ](?:api|key|token|secret|password))*",
    re.IGNORECASE,
)
"""Matches a placeholder for a key that the user does not have: "sk-no-key-required"."""

_PLAIN = re.compile(
    r"[+-]?[0-9][0-9_,.:eE+-]*[a-zA-Z%]{0,3}"  # numbers, sizes, times, dates, versions
    r"|[A-Za-z][A-Za-z ._-]*(?::[0-9]{2,5})?"  # words, hosts with a port
)
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\]|[\w.-]+(?:/[\w.@ -]+)+\Z|\$")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,30}://")


def is_secret(value: str, name: str) -> bool:
    """Return whether the configuration's value under `name` is a secret.

    Known formats are. Otherwise the name must speak of a secret, and the value must not be a word,
    number, path or address. A random value is one unless the name speaks of public things.
    """
    if has_known_format(value) or _PLACEHOLDER.fullmatch(value):
        return not _PLACEHOLDER.fullmatch(value)
    words = words_of(name)
    if words[-1:] == ("key",) and not _NO_KEYS.isdisjoint(words[-2:-1]):
        return False
    if names_setting(name):
        strong = names_secret(name) or words[-1] == "pass" or not _WEAK.fullmatch(value)
        return strong and could_be_secret(value)
    return not (words and words[-1] in _PUBLIC) and looks_random(value)


def could_be_secret(value: str) -> bool:
    """Return whether the value of a secret's name is specific enough to search for."""
    if len(value) < LEAST_NAMED or _URL.match(value) or _PLACEHOLDER.fullmatch(value):
        return False
    # Bits. Repeated characters, such as "xxxxxxxx", have less.
    if entropy(value) * len(value) < 15:
        return False
    if _PATH.match(value) and not looks_random(value.replace("/", "")):
        return False
    if _PLAIN.fullmatch(value):
        letters = sum(map(str.isalpha, value))
        return letters >= LEAST_WORDS and letters * 2 > len(value)
    return True


_RANDOM = re.compile(r"[A-Za-z0-9_+/=.~-]+")
_PIECE = re.compile(r"[A-Za-z0-9+/]+")
_HEX = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")


def looks_random(value: str, *, least: int = LEAST_SHAPED) -> bool:
    """Return whether a value is one long piece of mixed letters and digits.

    Names of models, packages and dates have short pieces; a path has words.
    """
    value = value[: 16 * 1024]
    if len(value) < least or not _RANDOM.fullmatch(value):
        return False
    for piece in _PIECE.findall(value):
        if len(piece) < least:
            continue
        if _HEX.fullmatch(piece):
            return True
        kinds = (
            any(map(str.islower, piece)),
            any(map(str.isupper, piece)),
            any(map(str.isdigit, piece)),
        )
        bits = 3.5 if len(piece) >= LEAST_SHAPED else 0.75 * math.log2(len(piece))
        if all(kinds) and entropy(piece) >= bits:
            return True
    return False


def entropy(text: str) -> float:
    """Return the bits of information of a character, by the counts of all characters."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())
