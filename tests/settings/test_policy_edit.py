"""A rule written into a policy file: the rest stays, byte for byte."""

from __future__ import annotations

import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.atomic_files import exclusive_lock
from bridge.errors import SettingsError
from bridge.model import Json
from bridge.settings import load
from bridge.settings.policy import PolicySpec, Rule, parse_policy
from bridge.settings.policy_edit import NewRule, add_rule, append_policy, toml_value, with_rule

DIGEST = f"sha256:{'0' * 64}"

NEW = NewRule(
    name="git.push allowed 2026-11-21",
    server="git",
    tool="push",
    digest=DIGEST,
    comment="2026-11-21: allowed by a person when asked (rule 'pushes').",
)

WRITTEN = f"""# 2026-11-21: allowed by a person when asked (rule 'pushes').
[[policy.rules]]
name = "git.push allowed 2026-11-21"
server = "git"
tool = "push"
action = "allow"
digest = "{DIGEST}"
"""

FILE = """\
# Mine.
timeout = 5.0   # seconds

[policy]  # no nonsense
pin = true

# History is shared.
[[policy.rules]]
name = "no force"
tool = "push"
when = { force = true }
action = "deny"

# Pushes are looked at
#   by somebody.
[[policy.rules]]
name = "pushes"
tool = "push"
action = "ask"

[policy.servers.git]
trust = true
"""


def _spec(text: str) -> PolicySpec:
    return parse_policy(tomllib.loads(text)["policy"], "here")


def _rule(text: str, name: str) -> Rule:
    [found] = [rule for rule in _spec(text).rules if rule.name == name]
    return found


def test_a_rule_goes_in_front_of_the_one_that_asked_and_of_its_comment() -> None:
    changed = with_rule(FILE, NEW, before=_rule(FILE, "pushes"))
    head, tail = FILE.split("# Pushes are", 1)
    assert changed == f"{head}{WRITTEN}\n# Pushes are{tail}"
    assert [rule.name for rule in _spec(changed).rules] == ["no force", NEW.name, "pushes"]


def test_a_rule_against_a_default_goes_to_the_end() -> None:
    assert with_rule(FILE, NEW) == f"{FILE}\n{WRITTEN}"
    assert with_rule(FILE.rstrip("\n"), NEW) == f"{FILE}\n{WRITTEN}"
    bare = "[policy]"
    assert with_rule(bare, NEW) == f"[policy]\n\n{WRITTEN}"


def test_a_rule_is_about_no_more_than_the_one_that_asked() -> None:
    text = (
        '[policy]\n[[policy.rules]]\nname = "main"\neffect = ["write"]\naction = "ask"\n'
        'when = { "a.b" = { in = ["x", 2, true] }, "c*" = { not = { under = "/srv" } } }\n'
    )
    asked = _rule(text, "main")
    changed = with_rule(text, NEW, before=asked)
    new, old = _spec(changed).rules
    assert old == asked
    assert (new.when, new.effects, new.action) == (asked.when, asked.effects, "allow")
    assert (new.servers, new.tools, new.digest) == (("git",), ("push",), DIGEST)


def test_a_name_is_no_glob_and_gets_a_number_if_it_is_taken() -> None:
    odd = NewRule(name="x", server='g"*', tool="p\n?\u202e\U0001f600", digest=DIGEST)
    [rule] = _spec(with_rule("[policy]\n", odd)).rules
    assert (rule.servers, rule.tools) == (('g"\\*',), ("p\n\\?\u202e\U0001f600",))
    twice = with_rule(with_rule("[policy]\n", NEW), NEW)
    assert [rule.name for rule in _spec(twice).rules] == [NEW.name, f"{NEW.name} (2)"]


def test_the_files_own_line_ends_are_used() -> None:
    odd = NewRule(name="x", server="s", tool="t", digest=DIGEST, comment="a\r\n[policy]\x00\u2028")
    changed = with_rule("[policy]\r\npin = true\r\n", odd)
    assert "\n" not in changed.replace("\r\n", "")
    assert "# a\\u000d\\u000a[policy]\\u0000\\u2028\r\n[[policy.rules]]\r\n" in changed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[policy]\nrules = [{ name = "a", action = "ask" }]\n', "leave none"),
        ('policy = { rules = [{ name = "a", action = "ask" }] }\n', "leave none"),
        ("timeout = 5\n", "no policy any more"),
        ("[policy\n", "could not be read"),
        ("[policy]\nx = nan\n", "leave none"),
        ("[policy]\npin = 3\n", "pin"),
    ],
)
def test_what_cannot_be_written_into_is_left_alone(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        with_rule(text, NEW, place="config.toml")


def test_a_rule_that_is_gone_is_not_written_in_front_of() -> None:
    gone = _rule(FILE, "pushes")
    with pytest.raises(SettingsError, match="'pushes' any more"):
        with_rule(FILE.replace('action = "ask"', 'action = "deny"'), NEW, before=gone)


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_LINES = st.sampled_from(
    ["", "   ", "# a comment", "\t# [[policy.rules]]", "# [[policy.rules]] '''"]
)
_PARTS = st.sampled_from(
    [
        '[policy.servers."a.b"]\ntrust = true',
        "[policy.servers.c]\ntrust = false\n[policy.servers.c.tools.x]\neffect = 'read'",
        '[[policy.flow]]\nname = "f"\nafter_servers = ["a"]\nto_servers = ["b"]\naction = "ask"',
        "[other]\ntext = '''\n[[policy.rules]]\nname = 'no'\n'''",
        '[other2]\ntext = """\\\n# x\n[[policy.rules]]\n"""\nlist = [\n  1, # [[policy.rules]]\n]',
        "[[other3]]\nwhen = 2020-01-01\n[[other3]]\nx = inf",
    ]
)
_HEADERS = st.sampled_from(
    [
        "[[policy.rules]]",
        "  [[ policy . rules ]]  # here",
        "[[\"policy\".'rules']]",
        "[[policy.rules]]#x",
    ]
)


@st.composite
def _rules(draw: st.DrawFn, number: int) -> str:
    lines = [draw(_HEADERS), f'name = "rule {number}"', 'action = "ask"']
    if draw(st.booleans()):
        lines.append(f"reason = {toml_value(draw(_TEXTS.filter(_can_be_shown)))}")
    if draw(st.booleans()):
        lines.append(f"when = {{ x = {toml_value(draw(_TEXTS))} }}")
    if draw(st.booleans()):
        lines.append("[policy.rules.when]\ny = 1" if "when" not in lines[-1] else draw(_LINES))
    return "\n".join(lines)


def _can_be_shown(text: str) -> bool:
    return bool(text.strip()) and text.strip().isprintable()


@st.composite
def _files(draw: st.DrawFn) -> str:
    blocks = draw(st.lists(_PARTS, unique=True, max_size=4))
    count = draw(st.integers(0, 4))
    for number in range(count):
        # Among the others, but in their own order.
        after = max(
            (index for index, block in enumerate(blocks) if f"rule {number - 1}" in block),
            default=-1,
        )
        blocks.insert(draw(st.integers(after + 1, len(blocks))), draw(_rules(number)))
    lines = ["[policy]", "pin = false"]
    for block in blocks:
        lines += [*draw(st.lists(_LINES, max_size=3)), block]
    return "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n# the end", "\n\n"]))


@given(_files(), st.sampled_from(["\n", "\r\n"]), st.data())
def test_of_any_file_everything_stays(text: str, end: str, data: st.DataObject) -> None:
    text = text.replace("\n", end)
    document = tomllib.loads(text)
    rules = document["policy"].get("rules", [])
    spec = parse_policy(document["policy"], "here")
    index = data.draw(st.integers(0, len(rules)))
    before = spec.rules[index] if index < len(rules) else None
    changed = with_rule(text, NEW, before=before)
    # Taken out again, the file is what it was.
    added = len(changed) - len(text)
    at = next(
        (i for i, pair in enumerate(zip(text, changed, strict=False)) if pair[0] != pair[1]), None
    )
    starts = range(len(text) + 1) if at is None else range(at + 1)
    assert any(text[:start] + changed[start + added :] == text for start in starts)
    now = tomllib.loads(changed)
    new = now["policy"]["rules"].pop(index)
    assert (new["name"], new["action"], new["digest"]) == (NEW.name, "allow", DIGEST)
    assert now["policy"].pop("rules") == document["policy"].pop("rules", [])
    assert now == document


_JSON = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), _JSON, max_size=3))
def test_any_value_is_read_as_it_was_written(value: Mapping[str, Json]) -> None:
    written = toml_value(dict(value))
    assert written.isprintable() or re.search(r"[^\S ]", written)
    assert "\n" not in written
    assert tomllib.loads(f"x = {written}")["x"] == value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(FILE)
    return path


def test_two_bridges_do_not_lose_each_others_rules(file: Path) -> None:
    with (
        exclusive_lock(file.with_name(".config.toml.lock")),
        pytest.raises(SettingsError, match="another bridge"),
    ):
        add_rule(file, NEW)
    assert file.read_text() == FILE
    add_rule(file, NEW)
    assert file.read_text() == f"{FILE}\n{WRITTEN}"
    add_rule(file, NEW)
    assert len(_spec(file.read_text()).rules) == 4


def test_a_file_that_cannot_be_written_stays_as_it_is(tmp_path: Path, file: Path) -> None:
    with pytest.raises(SettingsError, match="could not be changed: No such file"):
        add_rule(tmp_path / "none.toml", NEW)
    with pytest.raises(SettingsError, match="no regular file"):
        add_rule(tmp_path, NEW)
    file.write_bytes(b"[policy]\n# \xff\n")
    with pytest.raises(SettingsError, match="could not be changed: 'utf-8'"):
        add_rule(file, NEW)


POLICY = '[policy]\npin = false\n\n[policy.defaults]\nwrite = "deny"\n'


def test_a_file_is_made_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "config.toml"
    append_policy(path, POLICY)
    assert path.read_text() == POLICY
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("before", ['memory = "1g"', 'memory = "1g"\n# mine\n\n[profiles.a]\n'])
def test_what_stands_in_the_file_stays_and_so_do_its_rights(tmp_path: Path, before: str) -> None:
    real = tmp_path / "dotfiles.toml"
    real.write_text(before)
    real.chmod(0o644)
    link = tmp_path / "config.toml"
    link.symlink_to(real)
    append_policy(link, POLICY)
    text = real.read_text()
    assert (text[: len(before)], text[-len(POLICY) :]) == (before, POLICY)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o644
    assert load({}, {"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(link)}).policy.present


@pytest.mark.parametrize(
    ("before", "policy", "said"),
    [
        ("[policy]\npin = true\n", POLICY, "Cannot declare"),
        ("", "[policy]\npin = 3\n", "pin"),
        ("memory = ", POLICY, "Invalid value"),
    ],
)
def test_nothing_is_written_that_would_not_parse(
    tmp_path: Path, before: str, policy: str, said: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before)
    with pytest.raises(SettingsError, match=said):
        append_policy(path, policy)
    assert path.read_text() == before
    with pytest.raises(SettingsError, match="--print"):
        append_policy(path / "config.toml", POLICY)
