"""Personal data: found, replaced by tokens, put back for those who may have it."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import CallDeniedError, InvalidRequestError, ToolCallError
from bridge.gate import privacy
from bridge.gate.privacy import MAX_SEARCHED, MAX_SECONDS, OwnerTokens, Vault, Vaults
from bridge.gate.privacy_data import (
    _CARD,
    _INTERNATIONAL,
    _IP4,
    DETECTORS,
    PORTION,
    TOKENS,
    Kind,
    _is_person,
    find,
    find_in_portions,
    iban_is_valid,
    luhn_sum,
    make_token,
    plain_token,
)
from bridge.model import Json
from bridge.settings.policy import Privacy
from tests.raised import raises_code

ALL = tuple(DETECTORS)

EMAIL, PHONE, IBAN, CARD = (
    "ann.o'neil@example.org",
    "+49 170 1234567",
    "DE89 3704 0044 0532 0130 00",
    "4111 1111 1111 1111",
)


def vault(kept: OwnerTokens | None = None, **others: Any) -> Vault:
    spec = {"detect": ALL, "servers": ("crm*",), "reveal_to": ("mail",), **others}
    return Vault(Privacy(**spec), kept)


def hide(found: Vault, text: str) -> str:
    told = found.hide("crm", text)
    assert isinstance(told, str)
    return told


digits = st.text("0123456789", min_size=14, max_size=14)
emails = st.from_regex(
    r"[a-z][a-z0-9.]{0,8}[a-z0-9]@([a-z][a-z0-9]{1,5}\.){1,2}[a-z]{2,4}", fullmatch=True
).filter(lambda mail: _is_person(mail.partition("@")[0], mail.partition("@")[2], ""))
phones = digits.map(lambda text: f"+4{text[:10]}")
cards = digits.map(lambda text: f"4{text}{-luhn_sum(f'4{text}0') % 10}")


def _iban(text: str) -> str:
    rest = f"3704{text}"
    number = int("".join(str(int(c, 36)) for c in f"{rest}DE00"))
    return f"DE{98 - number % 97:02d}{rest}"


ibans = digits.map(_iban)
data = st.one_of(emails, phones, cards, ibans)
words = st.text("abcxyz ,;:()<>\"'\n\t\\/é", max_size=20)


@given(pieces=st.lists(st.tuples(words, data), min_size=1, max_size=5), end=words)
def test_what_is_hidden_comes_back(pieces: list[tuple[str, str]], end: str) -> None:
    text = "".join(f"{word} {one} " for word, one in pieces) + end
    found = vault()
    told = hide(found, text)
    for _, one in pieces:
        assert one not in told
    assert found.reveal("mail", {"text": told}) == {"text": text}
    nested = {"list": [json.dumps({"a": told})], told: {"b": told}}
    assert found.reveal("mail", nested) == {"list": [json.dumps({"a": text})], text: {"b": text}}


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("before", ["\n", "\t", "\u2014", "\u2075 "])
def test_a_token_behind_what_json_escapes_is_one(kind: Kind, before: str) -> None:
    written = json.dumps(f"{before}{make_token(kind, 12345)}")
    match = TOKENS.search(written)
    assert match is not None
    assert plain_token(kind, match[0]) == make_token(kind, 12345)


@given(number=st.integers(min_value=0, max_value=2**128 - 1), kind=st.sampled_from(ALL))
def test_a_token_looks_like_what_it_stands_for(number: int, kind: str) -> None:
    text = make_token(kind, number)
    match = TOKENS.fullmatch(text)
    assert match is not None
    assert match.lastgroup == kind
    assert find(f"<{text}>", ALL) == []
    if kind == "iban":
        assert iban_is_valid(text)
    if kind == "card":
        assert luhn_sum(text) % 10 == 0


def test_the_same_thing_has_one_token_however_it_is_written() -> None:
    found, other = vault(), vault()
    for one, again in (
        (EMAIL, EMAIL.upper()),
        (PHONE, "0049 (170) 123-4567"),
        (IBAN, IBAN.replace(" ", "")),
        (CARD, CARD.replace(" ", "-")),
    ):
        assert hide(found, one) == hide(found, again) != hide(other, one)


def test_a_result_is_looked_through_everywhere_but_in_base64() -> None:
    """Texts, JSON in texts with and without escapes, keys, and numbers of cards."""
    blob = base64.b64encode(EMAIL.encode() * 9).decode()
    escaped = json.dumps({"mail": EMAIL}).replace("@", "\\u0040")
    found = vault()
    told = found.hide(
        "crm-1",
        {
            "content": [
                {"type": "text", "text": escaped},
                {"type": "image", "mimeType": "image/png", "data": blob},
            ],
            "structuredContent": {EMAIL: {"card": 4111111111111111, "id": 17, "ok": True}},
        },
    )
    mail = hide(found, EMAIL)
    assert json.loads(told["content"][0]["text"]) == {"mail": mail}
    assert told["content"][1]["data"] == blob
    card = told["structuredContent"][mail]["card"]
    assert luhn_sum(str(card)) % 10 == 0
    assert told["structuredContent"][mail] == {"card": card, "id": 17, "ok": True}
    assert found.reveal("mail", {"n": card}) == {"n": 4111111111111111}
    assert found.hide("other", {"a": EMAIL}) == {"a": EMAIL}


def test_a_token_is_found_however_an_address_writes_it() -> None:
    found = vault()
    mail, phone = hide(found, EMAIL), hide(found, PHONE)
    assert found.reveal("mail", {"a": mail.upper(), "b": f"mailto:{quote(mail)}"}) == {
        "a": EMAIL,
        "b": f"mailto:{quote(EMAIL, safe='')}",
    }
    assert found.reveal("mail", {"a": f"tel:{phone[1:]}"}) == {"a": f"tel:{PHONE}"}


def test_only_some_servers_get_the_data() -> None:
    found = vault()
    arguments = {"to": [hide(found, EMAIL)]}
    assert found.hide("mail", {"a": f"sent to {EMAIL}"}) == {"a": f"sent to {EMAIL}"}
    assert found.reveal("mail", arguments) == found.reveal("crm", arguments) == {"to": [EMAIL]}
    assert found.hide("mail", {"a": f"sent to {EMAIL}"}) == {"a": f"sent to {arguments['to'][0]}"}
    with pytest.raises(CallDeniedError, match=r"an email address that the server 'web'.*reveal_to"):
        found.reveal("web", arguments)


def test_no_guess_is_confirmed_by_its_token() -> None:
    kept, card = OwnerTokens(), int(CARD.replace(" ", ""))
    found = vault(kept, servers=("*",))
    guesses = {"to": [EMAIL, "bob@example.org", f"tel {PHONE}"], "card": card}
    known = found.hide("crm", {"a": [EMAIL, PHONE, card]})
    assert found.reveal("echo", guesses) == guesses
    assert found.hide("echo", guesses) == guesses
    assert found.hide("crm", {"a": [EMAIL, PHONE, card]}) == known
    # Another run has written nothing.
    assert vault(kept, servers=("*",)).hide("echo", guesses) != guesses


def test_a_token_of_somebody_else_is_refused() -> None:
    foreign = hide(vault(), EMAIL)
    with pytest.raises(InvalidRequestError, match="stands for nothing that is known here"):
        vault().reveal("mail", {"to": f"Ann <{foreign}>"})
    with pytest.raises(InvalidRequestError, match="Read the data again"):
        vault().reveal("mail", {"to": make_token("iban", 12345)})


def test_a_part_of_a_token_is_refused() -> None:
    found = vault()
    name, _, domain = hide(found, EMAIL).partition("@")
    for part in (name, f"x@{domain}", hide(found, IBAN)[:12]):
        with pytest.raises(InvalidRequestError, match="Pass the token on whole"):
            found.reveal("mail", {"to": part})


def test_without_detectors_nothing_is_touched() -> None:
    found = Vaults().of("ann", Privacy())
    arguments = {"to": make_token("email", 1)}
    assert found.reveal("mail", arguments) is arguments
    assert found.hide("crm", arguments) is arguments


def test_errors_are_hidden_too() -> None:
    error = ToolCallError(f"no {EMAIL}", server="crm", rpc_code=-1, data={"who": EMAIL})
    found = vault()
    found.hide_error("crm", error)
    mail = hide(found, EMAIL)
    assert (error.message, error.data, str(error)) == (f"no {mail}", {"who": mail}, f"no {mail}")


def test_tokens_are_forgotten_in_time_and_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    # As many as there may be take seconds to make.
    monkeypatch.setattr(privacy, "MAX_VALUES", 100)
    now = 0.0
    kept = OwnerTokens(lambda: now)
    found = vault(kept)
    first, second = hide(found, "a@example.org"), hide(found, "b@example.org")
    now = MAX_SECONDS - 1
    assert found.reveal("mail", {"x": first}) == {"x": "a@example.org"}
    now = MAX_SECONDS + 1
    assert found.reveal("mail", {"x": first}) == {"x": "a@example.org"}
    with pytest.raises(InvalidRequestError):
        found.reveal("mail", {"x": second})
    for number in range(privacy.MAX_VALUES + 10):
        kept.make_token(find(f"a{number}@example.org", ALL)[0], f"a{number}@example.org", "crm")
    assert len(kept) == privacy.MAX_VALUES


def test_owners_have_vaults_of_their_own() -> None:
    vaults = Vaults()
    spec = Privacy(detect=ALL)
    mail = hide(vaults.of("ann", spec), EMAIL)
    assert vaults.of("ann", Privacy()).reveal("x", {"a": mail}) == {"a": EMAIL}
    with pytest.raises(InvalidRequestError):
        vaults.of("bob", spec).reveal("x", {"a": mail})
    for number in range(privacy.MAX_OWNERS):
        vaults.of(str(number), spec)
    with pytest.raises(InvalidRequestError):
        vaults.of("ann", spec).reveal("x", {"a": mail})


def test_a_deep_result_is_not_passed_on() -> None:
    value: Any = EMAIL
    for _ in range(900):
        value = [value]
    assert EMAIL not in repr(vault().hide("crm", value))


def test_patterns_are_found_in_portions_as_in_one_piece() -> None:
    middle = "+49 30 1234567 x 4111 1111 1111 1111 8.8.8.8 +999" + "12345678901 241.2.3.4"
    for before in range(PORTION - len(middle), PORTION + 1, 3):
        text = "." * before + " " + middle
        for pattern in (_INTERNATIONAL, _CARD, _IP4, TOKENS):
            # Of the same text with its beginning away: all of it lies in one portion.
            whole = [found[0] for found in pattern.finditer(" " + middle)]
            assert whole
            assert [found[0] for found in find_in_portions(pattern, text)] == whole


def test_what_is_too_large_to_be_searched_is_not_passed_on() -> None:
    there = Vault(Privacy(detect=("email",)), OwnerTokens())
    large: list[Json] = [1] * (MAX_SEARCHED // 64)
    with raises_code("message_too_large", match="too large to be searched"):
        there.hide("crm", {"content": large})
    with pytest.raises(InvalidRequestError, match="too large"):
        there.reveal("crm", {"a": large})
    error = ToolCallError("ann@example.org", server="crm", rpc_code=1, data=large)
    there.hide_error("crm", error)
    assert (error.data, "ann" in str(error)) == (None, False)


PROJECT = Path(__file__).parents[2]


def _lines(name: str) -> list[str]:
    text = (PROJECT / "tests" / "testdata" / name).read_text()
    return [line.replace("\\n", "\n") for line in text.splitlines()]


@pytest.mark.parametrize("line", _lines("ordinary_lines.txt"))
def test_ordinary_text_is_left_alone(line: str) -> None:
    assert [line[one.start : one.end] for one in find(line, DETECTORS)] == []


@pytest.mark.parametrize("line", _lines("personal_lines.txt"))
def test_personal_data_is_found(line: str) -> None:
    text = re.sub("[«»]", "", line)
    found = [text[one.start : one.end] for one in find(text, DETECTORS)]
    assert found == [one for one in re.findall("«(.*?)»", line) if one]
