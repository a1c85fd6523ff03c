"""Finds personal data in texts, and makes the tokens for it. Pure.

A token has the format of the data, since programs and servers check that. It comes from a reserved
range, so that it belongs to no person.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

Kind = str

EMAIL_PREFIX = "hidden-"
EMAIL_DOMAIN = "private.invalid"  # The last label is reserved.

PHONE_PREFIX = "999"  # The country code is not assigned.

IBAN_COUNTRY = "XP"
IBAN_BANK = "PRIV"  # The country code is for private use.

CARD_PREFIX = "9999"
"""No issuer has it: numbers that begin with 9 are for national use, and there is no country 999."""


@dataclass(frozen=True)
class DetectedData:
    """One piece of personal data in a text, at `start:end`."""

    start: int
    end: int
    kind: Kind
    same: str  # A key that all spellings of the value share.


PORTION = 64 * 1024  # Characters in one search, which blocks other threads.
_LONGEST = 256  # More than a match and its lookahead have.


def find_in_portions(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern without long matches, one portion of the text at a time."""
    least = 0
    for start in range(0, len(text), PORTION):
        stop = start + PORTION
        for found in pattern.finditer(text, max(start, least), stop + _LONGEST):
            if found.start() >= stop:
                break
            yield found
            least = found.end()


_BEFORE_AT = re.compile(r"[\w.+%'!#$&*/=?^{|}~-]{1,64}")
_AFTER_AT = re.compile(r"(?:[^\W_](?:[\w-]{0,62}[^\W_])?\.){1,8}[^\W\d_][\w-]{0,61}[^\W_]")

_FILE_ENDINGS = frozenset(
    """
    png jpg jpeg gif svg webp avif ico bmp pdf js mjs cjs jsx ts tsx css scss less json yml yaml
    toml lock xml html htm txt log cfg ini conf csv tsv sql tar gz tgz bz2 xz whl jar exe dll
    wasm ttf woff woff2 mp3 mp4 wav webm go kt php rb cpp vue service socket timer mount slice
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Last parts of the names of files and units. None is a top-level domain."""

_NO_DOMAIN = re.compile(r"v?[0-9]+\.[0-9]|[0-9]+x\.", re.IGNORECASE)
"""Matches the start of a version, or the "2x." of a picture for screens with many pixels."""


def emails(text: str) -> Iterator[DetectedData]:
    at, least = text.find("@"), 0
    while at >= 0:
        after = _AFTER_AT.match(text, at + 1) if at else None
        # The reversed text needs one look at a long word.
        before = (
            # The limit of the mail standards.
            _BEFORE_AT.match(text[max(least, at - 64) : at][::-1]) if after is not None else None
        )
        if after is not None and before is not None:
            local = before[0][::-1].lstrip(".'/=?!*{|}")
            domain, start = after[0].lower(), at - len(local)
            if domain != EMAIL_DOMAIN and _is_person(
                local, domain, text[max(0, start - 8) : start]
            ):
                yield DetectedData(start, after.end(), "email", f"{local}@{after[0]}".casefold())
                least = after.end()
        at = text.find("@", at + 1 if after is None else after.end())


def _is_person(local: str, domain: str, before: str) -> bool:
    """Return whether the parts of an address and the text before it are those of a mail address."""
    return (
        # The sign of a diff before a decorator.
        any(map(str.isalnum, local))
        and local not in {"git", "hg", "svn", "root", "ubuntu", "ec2-user", "vagrant", "www-data"}
        and domain.rpartition(".")[2] not in _FILE_ENDINGS
        and _NO_DOMAIN.match(domain) is None
        and not before.endswith(("ssh://", "sftp://"))
    )


_INTERNATIONAL = re.compile(r"(?:\+|(?<![\w.])00)[1-9](?:[ .()/-]{0,2}[0-9]){6,14}(?![0-9])")
_AMERICAN = re.compile(
    r"(?<![\w.+-])(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])"
    r"[2-9][0-9]{2}[ .-][0-9]{4}(?![\w-])"
)
_NO_DIGITS = re.compile(r"[^0-9]")
_NO_PHONE = re.compile(
    r"\+[0-9]{1,3}\.[0-9]{1,7}(?:[+-][0-9]{1,3}\.[0-9]*)?$"  # coordinates
    r"|\+(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[0-9]{4}|[0-9]{6})?$"
    r"|00[0-9]{1,9}$"  # a number with zeros before it
    r"|00.*  "  # columns
)
_BESIDE_DIGITS = re.compile(r"[0-9]\s*$"), re.compile(r"\s*[0-9]")


def phones(text: str) -> Iterator[DetectedData]:
    """Yield telephone numbers in international form, and North American ones with separators."""
    if "+" in text or "00" in text:
        is_diff = re.search(r"^(?:@@ -|diff --git )", text, flags=re.MULTILINE) is not None
        for found in find_in_portions(_INTERNATIONAL, text):
            start = found.start()
            if (start and text[start - 1].isalnum()) or _NO_PHONE.match(found[0]):
                continue
            if is_diff and found[0][0] == "+" and text[start - 1 : start] in ("", "\n"):
                continue
            digits = _NO_DIGITS.sub("", found[0])
            same = digits.removeprefix("00") if found[0][0] == "0" else digits
            if not same.startswith(PHONE_PREFIX) and 8 <= len(same) <= 15:
                yield DetectedData(start, found.end(), "phone", same)
    for found in find_in_portions(_AMERICAN, text):
        start, end = found.span()
        before, after = _BESIDE_DIGITS
        if found[0].replace(" ", "").isdigit() and (
            before.search(text, max(0, start - 9), start) or after.match(text, end, end + 9)
        ):
            continue
        same = _NO_DIGITS.sub("", found[0])[-10:]
        yield DetectedData(start, end, "phone", f"1{same}")


_IBAN_LENGTHS: Mapping[str, int] = {
    country: int(length)
    for country, length in re.findall(
        "([A-Z]{2})([0-9]{2})",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 "
        "EE20 EG29 ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 "
        "IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MR27 MT31 MU30 "
        "NL18 NO15 PK24 PL28 PS29 PT25 QA29 RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 "
        "TN24 TR26 UA29 VA22 VG24 XK20",
    )
}

_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[0-9]{2}(?=[ -]?[A-Za-z0-9]{2})")


def ibans(text: str) -> Iterator[DetectedData]:
    """Yield account numbers with a country's length and valid check digits."""
    least = 0
    for head in find_in_portions(_IBAN, text):
        length = _IBAN_LENGTHS.get(head[0][:2].upper())
        if length is None or head.start() < least:
            continue
        end = _after(text, head.start(), length)
        if end is None or text[end : end + 1].isalnum():
            continue
        same = re.sub("[ -]", "", text[head.start() : end]).upper()
        if iban_is_valid(same):
            least = end
            yield DetectedData(head.start(), end, "iban", same)


def _after(text: str, start: int, count: int) -> int | None:
    position, blank = start, False
    while count:
        character = text[position : position + 1]
        if character.isascii() and character.isalnum():
            count, blank = count - 1, False
        elif character in (" ", "-") and not blank:
            blank = True
        else:
            return None
        position += 1
    return position


def iban_is_valid(iban: str) -> bool:
    moved = iban[4:] + iban[:4]
    return moved.isascii() and moved.isalnum() and _remainder(moved) == 1


def _remainder(text: str) -> int:
    return int("".join(str(int(character, 36)) for character in text)) % 97


_CARD = re.compile(
    r"(?<![\w.,@-])[2-6](?:[0-9]{12,18}|[0-9]{3}(?:[ -][0-9]{2,6}){2,4})(?![\w@-])(?!\.[0-9])"
)
"""Matches a number in one piece, or in groups as on the card, the first with four digits."""


def cards(text: str) -> Iterator[DetectedData]:
    """Yield numbers of payment cards with a known length and issuer and a valid last digit."""
    for found in find_in_portions(_CARD, text):
        same = _NO_DIGITS.sub("", found[0])
        if 13 <= len(same) <= 19 and luhn_sum(same) % 10 == 0:
            yield DetectedData(found.start(), found.end(), "card", same)


def luhn_sum(digits: str) -> int:
    """Return the sum that the last digit completes to a multiple of ten."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit)
        if place % 2:
            value = value * 2 - 9 * (value > 4)
        total += value
    return total


_IP4 = re.compile(r"(?<![\w.-])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![\w-]|\.[0-9])")
_IP6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]*:)[0-9A-Fa-f:]{3,39}(?![\w:.]|-[0-9])")

_VERSIONED = frozenset(
    """
    assembly build core driver firmware kernel linux net release rev revision runtime sdk update
    upgrade v ver version versions
    """.split()  # noqa: SIM905 - as words they can be read
)
_COMPARED = ("==", ">=", "<=", "~=", "!=", "^", "~")
"""The words and signs before a version with four parts."""

_LAST_WORD = re.compile(r"[A-Za-z]+$")
_NAME = re.compile(r"\s*[\w.+-]+\s+")
_LISTED = re.compile(r"\s*\S+\s+[0-9]+(?:\.[0-9]+){1,2}(?![.0-9])")
"""Match the name in a line of a list of packages, and another line of the list."""


def addresses(text: str) -> Iterator[DetectedData]:
    """Yield public addresses of machines."""
    for pattern in (_IP4, _IP6):
        for found in find_in_portions(pattern, text):
            try:
                address = ipaddress.ip_address(found[0])
            except ValueError:
                continue
            if address.version == 4 and _is_version(text, *found.span()):
                continue
            # Other text is no address, such as `::` between words of code.
            if address.is_global and (address.version == 4 or address in _UNICAST):
                yield DetectedData(found.start(), found.end(), "ip", address.compressed)


_UNICAST = ipaddress.ip_network("2000::/3")


def _is_version(text: str, start: int, end: int) -> bool:
    """Return whether four numbers are a version, by the text around them."""
    head, tail = text[max(0, start - _LONGEST) : start], text[end : end + _LONGEST]
    near = head[-24:].rstrip()
    word = _LAST_WORD.search(near.rstrip(" :=.\"'(["))
    if near.endswith(_COMPARED) or (word is not None and word[0].lower() in _VERSIONED):
        return True
    *others, line = head.split("\n")
    beside = [*others[-1:], *tail.split("\n")[1:2]]
    return _NAME.fullmatch(line) is not None and any(map(_LISTED.match, beside))


DETECTORS: Mapping[Kind, Callable[[str], Iterator[DetectedData]]] = {
    # For two matches in one place, the first kind counts.
    "email": emails,
    "iban": ibans,
    "card": cards,
    "phone": phones,
    "ip": addresses,
}

SHOWN: Mapping[Kind, str] = {
    "email": "an email address",
    "iban": "an account number",
    "card": "a card number",
    "phone": "a telephone number",
    "ip": "an IP address",
}


def find(text: str, kinds: Iterable[Kind]) -> list[DetectedData]:
    """Return the personal data of some kinds in the order of the text, without overlaps."""
    wanted = frozenset(kinds)
    found: list[DetectedData] = []
    for kind, detect in DETECTORS.items():
        if kind in wanted:
            found += detect(text)
    if len(found) < 2:
        return found
    order = {kind: place for place, kind in enumerate(DETECTORS)}
    found.sort(key=lambda one: (one.start, order[one.kind]))
    kept = [found[0]]
    for one in found[1:]:
        if one.start >= kept[-1].end:
            kept.append(one)
        elif order[one.kind] < order[kept[-1].kind]:
            kept[-1] = one
    return kept


def make_token(kind: Kind, number: int) -> str:
    if kind == "email":
        return f"{EMAIL_PREFIX}{number % 16**24:024x}@{EMAIL_DOMAIN}"
    if kind == "phone":
        return f"+{PHONE_PREFIX}{number % 10**11:011d}"
    if kind == "iban":
        rest = f"{IBAN_BANK}{number % 10**18:018d}"
        return f"{IBAN_COUNTRY}{98 - _remainder(f'{rest}{IBAN_COUNTRY}00'):02d}{rest}"
    if kind == "card":
        body = f"{CARD_PREFIX}{number % 10**14:014d}"
        return f"{body}{-luhn_sum(f'{body}0') % 10}"
    first = 241 + number % 7
    return f"{first}.{number >> 3 & 255}.{number >> 11 & 255}.{number >> 19 & 255}"


_ESCAPED = r"(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})"
"""Matches behind an escape of JSON, whose letters and digits do not belong to the next word."""

TOKENS = re.compile(
    rf"(?P<email>(?i:{EMAIL_PREFIX}[0-9a-f]{{24}}(?:@|%40){re.escape(EMAIL_DOMAIN)}))"
    rf"|(?:(?<![0-9])|{_ESCAPED})(?P<phone>(?:\+|%2[Bb]|00)?{PHONE_PREFIX}[0-9]{{11}})(?![0-9])"
    rf"|(?:(?<![A-Za-z0-9])|{_ESCAPED})"
    rf"(?P<iban>(?i:{IBAN_COUNTRY}[0-9]{{2}}{IBAN_BANK}[0-9]{{18}}))"
    rf"|(?:(?<![0-9])|{_ESCAPED})(?P<card>{CARD_PREFIX}[0-9]{{15}})(?![0-9])"
    rf"|(?:(?<![\w.])|{_ESCAPED})(?P<ip>24[1-7](?:\.[0-9]{{1,3}}){{3}})(?![\w]|\.[0-9])"
)
"""Matches a token as texts, addresses and JSON within texts write it."""

REMAINS = re.compile(
    rf"(?i:{EMAIL_PREFIX}[0-9a-f]{{24}}|(?<![\w.-]){re.escape(EMAIL_DOMAIN)}"
    rf"|{IBAN_COUNTRY}[0-9]{{2}} ?{IBAN_BANK})"
)
"""Matches a part of a token that was cut."""

SIGNS = ("nvalid", "NVALID", "idden-", "IDDEN-", "999", "PRIV", "priv", "24")
"""One of these is in every text with a token, or a part of one."""


def plain_token(kind: Kind, text: str) -> str:
    """Return a token in its original spelling."""
    if kind == "email":
        return text.lower().replace("%40", "@")
    if kind == "phone":
        return f"+{text[-14:]}"
    return text.upper() if kind == "iban" else text
