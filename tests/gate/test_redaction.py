"""Secrets taken out of texts, values and frames."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.gate import redaction
from bridge.gate.redaction import Redactor, _begins_a_character
from bridge.gate.redaction_shapes import mask, mask_secrets, names_secret
from bridge.text import distinct_key

SECRET = "s3cr3t-Value/42"
MARK = "[redacted: TOKEN of shop]"

secrets = st.text(
    # Enough variety, and what a mark or its surroundings cannot make by chance.
    st.characters(codec="utf-8", exclude_characters="[]* ", exclude_categories=["Cs"]),
    min_size=9,
    max_size=60,
)
around = st.text(max_size=30)


def redactor(*known: str) -> Redactor:
    return Redactor(dict.fromkeys(known or (SECRET,), "TOKEN of shop"))


def encode_at(encode: Callable[[bytes], bytes], before: int) -> Callable[[str], str]:
    def form(secret: str) -> str:
        return encode(b"x" * before + secret.encode() + b"yz").decode()

    return form


FORMS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "percent": lambda secret: quote(secret, safe=""),
    "path": quote,
    "plus": quote_plus,
    "json": json.dumps,
    "wide json": lambda secret: json.dumps({"a": [secret]}, ensure_ascii=False),
    "json twice": lambda secret: json.dumps(json.dumps(secret)),
    "slashes": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "hex": lambda secret: secret.encode().hex(),
    **{f"base64 at {n}": encode_at(base64.b64encode, n) for n in range(3)},
    **{f"url base64 at {n}": encode_at(base64.urlsafe_b64encode, n) for n in range(3)},
}


def survivors(secret: str, text: str) -> list[str]:
    """Return the forms in which the secret is still there, whatever stands around it."""
    found = [name for name, form in FORMS.items() if "base64" not in name and form(secret) in text]
    data = secret.encode()
    for before, lost in ((0, 0), (1, 2), (2, 3)):
        inner = base64.b64encode(bytes(before) + data)[lost : (before + len(data)) * 8 // 6]
        for form in (inner, inner.replace(b"+", b"-").replace(b"/", b"_")):
            found += ["base64"] if form.decode() in text else []
    return found


@pytest.mark.parametrize("form", FORMS)
@given(secret=secrets, before=around, after=around)
def test_a_secret_survives_in_no_form(form: str, secret: str, before: str, after: str) -> None:
    told = f"{before} {FORMS[form](secret)} {after}"
    value = {"a": [1, told, {told: None}], "b": 2.5}
    found = redactor(secret)
    assert survivors(secret, found.text(told)) == []
    cleared = found.value(value)
    assert survivors(secret, cleared["a"][1]) == []
    assert all(survivors(secret, key) == [] for key in cleared["a"][2])
    for ascii_only in (True, False):
        line = json.dumps(value, ensure_ascii=ascii_only).encode()
        read = json.loads(found.frame(line))
        assert survivors(secret, read["a"][1]) == []
        assert (len(read["a"]), read["b"]) == (3, 2.5)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(
    others=st.lists(secrets, max_size=3),
    secret=secrets,
    before=st.integers(0, 9000),
    after=st.integers(0, 9000),
)
def test_in_a_large_text_it_is_found_wherever_it_stands(
    others: list[str], secret: str, before: int, after: int
) -> None:
    known = redactor(*others, secret)
    for form in (secret, encode_at(base64.b64encode, 1)(secret), secret.encode().hex()):
        text = "~" * before + form + "~" * after
        cleared = known.text(text)
        assert cleared != text
        assert survivors(secret, cleared) == []


@given(value=values, secret=st.text('\\u0e9nt"/ab1', min_size=6, max_size=12))
def test_a_frame_stays_json_of_the_same_shape(value: Any, secret: str) -> None:
    if not secret.strip():
        return
    line = json.dumps(["é\n\t\\u00e9" + secret[1:], value]).encode()
    assert shape(json.loads(redactor(secret).frame(line))) == shape(json.loads(line))


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [shape(item) for item in value.values()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value)


@given(value=values)
def test_what_holds_no_secret_is_passed_on_as_it_is(value: Any) -> None:
    found = redactor()
    assert found.value(value) is value
    line = json.dumps(value).encode()
    assert found.frame(line) is line


def test_an_escape_before_the_rest_of_a_secret_is_not_cut() -> None:
    """`\\n` and `abcdef` are not the secret `nabcdef`."""
    line = json.dumps({"text": "\nabcdef12 é" + "bcdef12345"}).encode()
    assert redactor("nabcdef12", "9bcdef12345").frame(line) is line
    assert json.loads(redactor("nabcdef12").frame(b'"\\\\nabcdef12"')) == f"\\{MARK}"


def test_what_follows_in_base64_decodes_as_before() -> None:
    for before in range(4):
        file = b"k" * before + SECRET.encode() + b"\x00rest of it"
        text = redactor().text(base64.b64encode(file).decode())
        decoded = base64.b64decode(text)
        assert len(decoded) == len(file)
        assert decoded.endswith(b"\x00rest of it")
        assert SECRET[1:-1].encode() not in decoded


def test_many_secrets_of_all_lengths_are_found_at_every_place() -> None:
    known = [f"{n}Qw{n * 7919:x}".ljust(length, "z") for n, length in enumerate(range(6, 90))]
    found = redactor(*known)
    for shift in range(70):
        text = "." * shift + "|".join(known)
        assert found.text(text) == "." * shift + "|".join([MARK] * len(known))


def test_a_redactor_that_learns_looks_for_nothing_else() -> None:
    found = redactor()
    before = found.revision
    found.learn({SECRET: "TOKEN of shop"})
    assert found.revision == before
    found.learn({"another-secret": "X of y"})
    assert found.revision != before
    assert found.text(f"{SECRET} another-secret") == f"{SECRET} [redacted: X of y]"


def test_a_name_cannot_break_out_of_a_mark() -> None:
    line = Redactor({SECRET: '"}\\\n é of x'}).frame(json.dumps([SECRET]).encode())
    assert json.loads(line) == ["[redacted: ?}?? ? of x]"]


def test_arguments_are_masked_where_the_schema_names_secrets() -> None:
    below = {"type": "object", "properties": {"token": {}, "q": {}}}
    schema = {
        "properties": {
            **dict.fromkeys(("apiKey", "private-key", "password"), {}),
            "list": {"items": {"$ref": "#/$defs/B"}},
        },
        "$defs": {"B": below},
    }
    plain: dict[str, Any] = {
        "repo": "o/r",
        "token": "in the schema it is not",
        "apiKey": ["a", "b"],
    }
    plain |= {"private-key": "drop everything; now", "max_tokens": 100, "author": "Ann"}
    shown = redactor(SECRET, "hunter2-7").arguments(
        {
            **plain,
            "password": "hunter2-7",
            "list": [{"token": "abc-1", "q": "abc-1"}],
            "body": f"Use {SECRET} or ghp_{'a1B2' * 6}.",
            "header": "Bearer abcDEF1234567890",
            "said": "[redacted: TOKEN of shop]",
        },
        schema,
    )
    assert shown == {
        **plain,
        "password": MARK,
        "list": [{"token": mask("abc-1"), "q": "abc-1"}],
        "body": f"Use {MARK} or ghp_{mask('a1B2' * 6)}.",
        "header": f"Bearer {mask('abcDEF1234567890')}",
        "said": "[the text: redacted: TOKEN of shop]",
    }
    assert mask("a1B2" * 6) == "[redacted: a1B2…B2, 24 characters, sha256 1aa6df2f]"


def test_arguments_may_be_nested_without_an_end() -> None:
    value: Any = SECRET
    for _ in range(5000):
        value = [value]
    shown = redactor().arguments(value)
    for _ in range(100):
        shown = shown[0]
    assert shown == "[nested too deeply to be shown]"


def test_names_are_read_by_their_words() -> None:
    secret = "password userPassword API_KEY x-api-key clientSecret Authorization SSHPrivateKey"
    other = "author compass page_token nextPageToken max_tokens token_count primary_key secret_name"
    assert [name for name in secret.split() if not names_secret(name)] == []
    assert [name for name in other.split() if names_secret(name)] == []


def test_formats_are_searched_in_linear_time() -> None:
    """Each of these would take minutes if a search began again at each place."""
    for text in ("sk-", "eyJ", "eyJ.", "://", "-----BEGIN PRIVATE KEY-----", "Bearer ", "AKIA"):
        mask_secrets(text * 40_000)


_PIECES = st.sampled_from(
    [
        *(SECRET, SECRET[:6], SECRET[6:], "ghp_" + "a1" * 12, "ghp_", "a1" * 12, "\n", "x", "@"),
        *("://u:p@h", "AKIA" + "Z9" * 8, "Bearer ", "aB3dE5gH7jK9mN1p", "\ud800"),
        "-----BEGIN PRIVATE KEY-----",
    ]
)
_TEXTS = st.lists(_PIECES, max_size=4).map("".join)
_KEYS = _TEXTS.filter(lambda key: not names_secret(key))


@given(
    value=st.recursive(
        _TEXTS | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner)
    )
)
def test_texts_searched_together_hide_what_each_hides_by_itself(value: Any) -> None:
    """And what only seems to be one where two texts meet is left alone."""
    known = redactor()

    def each(value: Any) -> Any:
        if isinstance(value, str):
            return known.shown(value)
        if isinstance(value, dict):
            found: dict[str, Any] = {}
            for key, item in value.items():
                found[distinct_key(known.shown(key), found)] = each(item)
            return found
        return [each(item) for item in value] if isinstance(value, list) else value

    assert known.arguments(value) == each(value)


def test_keys_that_are_hidden_hide_no_values() -> None:
    first, second = (f"ghp_{letter * 36}" for letter in ("aB3", "cD4"))
    found = Redactor().arguments({"m": {first[:40]: "seen", second[:40]: "too"}})
    assert sorted(found["m"].values()) == ["seen", "too"]


@pytest.mark.parametrize("secret", ["1234567", "null}}", "},{}", "[1,2,3", "p4ssaabb1"])
def test_a_frame_stays_json_whatever_a_secret_looks_like(secret: str) -> None:
    number = int(secret.encode().hex()) if secret.encode().hex().isdigit() else 1234567
    value = {"id": number, "a": [{}, {}, [1, 2, 3], None], "told": f"<{secret}>", "x": {"y": None}}
    line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    line = line.replace(b'"x"', json.dumps(secret).encode())
    cleared = Redactor({secret: "KEY"}).frame(line)
    kept = {key: item for key, item in value.items() if key != "x"}
    told = {"told": "<[redacted: KEY]>", "[redacted: KEY]": value["x"]}
    assert json.loads(cleared) == {**kept, **told}
    assert cleared.endswith(b"\n")


def test_a_long_row_of_backslashes_is_not_looked_at_one_by_one() -> None:
    class Counted(bytes):
        looked = 0

        def __getitem__(self, key: Any) -> Any:
            Counted.looked += 1
            return bytes.__getitem__(self, key)

    row = Counted(b"\\" * 1_000_000)
    assert _begins_a_character(row, 1_000_000)
    assert not _begins_a_character(row, 999_999)
    assert Counted.looked < 2000


KEY = "-----BEGIN KEY-----\nQUJD/REVG+0hJ\n-----END KEY-----"
SECRETS = {"hunter2-hunter2": "A", "hunter2-hunter2-longer": "B", "xyzzyxyzzy": "C", KEY: "D"}
REDACTOR = Redactor(SECRETS)


def stream_pieces(pieces: list[bytes], redactor: Redactor = REDACTOR) -> bytes:
    stream = redactor.stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.finish()])


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]


forms = st.sampled_from(
    [form for secret in SECRETS for form in (secret, json.dumps(secret)[1:-1], secret[:7])]
    + [base64.b64encode(secret.encode()).decode() for secret in SECRETS]
)
texts = st.lists(st.one_of(forms, st.text(alphabet="hxyz-\n é", max_size=12)), max_size=8)


@example(["hunter2-hunter2-longer"], [16])
@example(["xyzzyxyzzyxyzzy"], [5, 9, 10, 11])
@given(texts, st.lists(st.integers(0, 2000), max_size=12))
def test_no_secret_survives_wherever_a_text_is_cut(parts: list[str], places: list[int]) -> None:
    data = "".join(parts).encode()
    assert stream_pieces(cut(data, places)) == REDACTOR.redact_bytes(data)
    assert stream_pieces([bytes([byte]) for byte in data]) == REDACTOR.redact_bytes(data)


def test_a_line_is_told_when_it_is_written() -> None:
    stream = REDACTOR.stream()
    assert stream.feed(b"step 1\n") == b"step 1\n"
    assert stream.feed(b"step 2: hunt") == b"step 2: "
    assert stream.feed(b"er's lodge\n") == b"hunter's lodge\n"


def test_a_redactor_that_learns_meanwhile_looks_for_what_it_learned() -> None:
    redactor = Redactor({})
    stream = redactor.stream()
    assert stream.feed(b"hunter2-") == b"hunter2-"
    redactor.learn({"swordfish99": "E"})
    assert stream.feed(b"sword") == b""
    redactor.learn({})
    assert stream.finish() == b"sword"


def test_what_is_held_back_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "MAX_SECRET_CHARS", 512)
    stream = Redactor({"aaaaaaaa": "F"}).stream()
    told = b""
    for _ in range(12):
        told += stream.feed(b"a" * 1024)
        assert len(stream._held) <= 8 * 512 + 1024
    assert b"a" * 8 not in told + stream.finish()


@given(st.lists(st.integers(0, 2000), max_size=60))
def test_secrets_that_begin_or_overlap_each_other_leave_no_rest(places: list[int]) -> None:
    known = dict.fromkeys(("hunter2", "hunter2-production", "duction-and-more"), "K")
    text = b"a hunter2 b hunter2-production c hunter2-production-and-more hunter"
    shown = b"a [redacted: K] b [redacted: K] c [redacted: K] hunter"
    assert stream_pieces(cut(text, places), Redactor(known)) == shown


def test_a_secret_that_is_no_text_is_found_as_well() -> None:
    secret = b"\xffnot-utf-8".decode("utf-8", "surrogateescape")
    found = stream_pieces([b"<\xffnot-", b"utf-8> %FFnot-utf-8"], Redactor({secret: "K"}))
    assert found == b"<[redacted: K]> [redacted: K]"
