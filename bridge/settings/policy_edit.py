"""Adds a rule, or a first policy, to the settings file without other changes.

The edit is textual. The edited file must parse to the old content plus the rule; otherwise the file
stays unchanged.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path

from bridge.atomic_files import exclusive_lock, replace_file
from bridge.errors import SettingsError
from bridge.model import Action, Json
from bridge.settings.policy import Rule, literal, parse_policy

_HEADER = re.compile(
    r"""^[ \t]*\[\[[ \t]*(?:policy|"policy"|'policy')[ \t]*\.[ \t]*(?:rules|"rules"|'rules')"""
    r"""[ \t]*\]\][ \t]*(?:\#.*)?\r?$""",
    re.MULTILINE,
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@dataclass(frozen=True, kw_only=True)
class NewRule:
    """A rule that allows one tool by its digest. A duplicate name gets a number."""

    name: str
    server: str
    tool: str
    digest: str
    comment: str = ""


def add_rule(path: Path, rule: NewRule, *, before: Rule | None = None) -> None:
    """Add a rule that allows a tool to a policy file. Blocks: use in threads.

    `before` is the rule that decides these calls now. The new rule precedes it and takes over its
    effects and conditions, so that it allows nothing else. Raises a `SettingsError` if the file
    cannot be edited; it is unchanged.
    """
    _change(path, partial(with_rule, rule=rule, before=before, place=str(path)), required=True)


def append_policy(path: Path, policy: str) -> None:
    """Append a policy to a settings file, or create the file. Blocks: use in threads.

    Raises a `SettingsError` if the file would be invalid or cannot be written; it is unchanged.
    """

    def append(text: str) -> str:
        joint = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        whole = f"{text}{joint}{policy}"
        parse_policy(_parse(whole, str(path)).get("policy"), f"{path}: policy")
        return whole

    _change(path, append, required=False)


def _change(path: Path, edit: Callable[[str], str], *, required: bool) -> None:
    try:
        if not required:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Write the target of a link, so that the link stays.
        target = path.resolve(strict=required)
        with exclusive_lock(target.with_name(f".{target.name}.lock")):
            found = None if not required and not target.exists() else target.stat()
            text = ""
            if found is not None:
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
                    raise SettingsError(f"{path} is no regular file of this user's.")
                text = target.read_bytes().decode("utf-8")
            whole = edit(text)
            if found is not None and _state(target.stat()) != _state(found):
                raise SettingsError(f"{path} is being changed by another program.")
            mode = 0o600 if found is None else stat.S_IMODE(found.st_mode)
            replace_file(target, whole.encode(), durable=True, mode=mode)
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = "" if required else "`policy init --print` prints it instead."
        raise SettingsError(f"{path} could not be changed: {reason}.", remedy=remedy) from None


def _state(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def with_rule(text: str, rule: NewRule, *, before: Rule | None = None, place: str = "") -> str:
    document = _parse(text, place)
    rules = _rules(document, place)
    index = len(rules) if before is None else _index(document, before, place)
    taken = {each.get("name") for each in rules}
    names = chain([rule.name], (f"{rule.name} ({number})" for number in count(2)))
    wanted: dict[str, Json] = {
        "name": next(name for name in names if name not in taken),
        "server": literal(rule.server),
        "tool": literal(rule.tool),
    }
    if before is not None:
        wanted.update((key, rules[index][key]) for key in ("effect", "when") if key in rules[index])
    wanted.update(action="allow", digest=rule.digest)
    listed = [*rules[:index], wanted, *rules[index:]]
    expected = {**document, "policy": {**document["policy"], "rules": listed}}
    for position in _places(text, None if before is None else index):
        changed = _insert(text, position, rule_lines(wanted, rule.comment))
        if _says(changed, expected):
            # The table is valid TOML; check that it is a valid policy, too.
            parse_policy(expected["policy"], f"{place}: policy")
            return changed
    raise SettingsError(
        f"{place} could not be changed: there is no place in it for another [[policy.rules]]. "
        "Rules that are written as a list (rules = [...]) leave none."
    )


def _parse(text: str, place: str) -> dict[str, Json]:
    try:
        # `read_text` in the loader translates line ends, too.
        return tomllib.loads(text.replace("\r\n", "\n").replace("\r", "\n"))
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{place} could not be read: {error}.") from None


def _says(text: str, expected: Mapping[str, Json]) -> bool:
    try:
        # NaN is not equal to itself, so a file that contains it stays unchanged.
        return _parse(text, "") == expected
    except SettingsError:
        return False


def _rules(document: Mapping[str, Json], place: str) -> list[dict[str, Json]]:
    policy = document.get("policy")
    rules = policy.get("rules", []) if isinstance(policy, dict) else None
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise SettingsError(f"{place} has no policy any more that a rule could be added to.")
    return rules


def _index(document: Mapping[str, Json], wanted: Rule, place: str) -> int:
    spec = parse_policy(document["policy"], f"{place}: policy")
    for index, rule in enumerate(spec.rules):
        if rule == wanted:
            return index
    raise SettingsError(f"{place} does not have the rule {wanted.name!r} any more.")


def _places(text: str, index: int | None) -> Iterator[int]:
    if index is None:
        yield len(text)
        return
    headers = [found.start() for found in _HEADER.finditer(text)]
    # A multi-line text may contain headers, too, so the right header may come later in the list.
    # The caller tries each position by parsing the whole file.
    for start in headers[index : index + 5]:
        above = _above(text, start)
        if above != start:
            yield above
        yield start


def _above(text: str, start: int) -> int:
    while start > 0:
        line = text.rfind("\n", 0, start - 1) + 1
        if not text[line:start].lstrip(" \t").startswith("#"):
            break
        start = line
    return start


def _insert(text: str, position: int, lines: Sequence[str]) -> str:
    end = "\r\n" if "\r\n" in text else "\n"
    block = end.join(lines) + end
    head, tail = text[:position], text[position:]
    if tail:
        return f"{head}{block}{end}{tail}"
    if head and not head.endswith("\n"):
        head += end
    return f"{head}{end}{block}" if head else block


def rule_for(name: str, server: str, tool: str, action: Action) -> list[str]:
    rule = {"name": name, "server": literal(server), "tool": literal(tool), "action": action}
    return rule_lines(rule)


def rule_lines(rule: Mapping[str, Json], comment: str = "") -> list[str]:
    above = [f"# {_escape(comment)}"] if comment else []
    fields = (f"{toml_key(key)} = {toml_value(value)}" for key, value in rule.items())
    return [*above, "[[policy.rules]]", *fields]


def _escape(text: str) -> str:
    codes = {ord(each) for each in text if unicodedata.category(each) in _HIDDEN}
    return text.translate({n: f"\\u{n:04x}" if n <= 0xFFFF else f"\\U{n:08x}" for n in codes})


def toml_key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_value(key)


def toml_value(value: Json) -> str:
    """Return a value as TOML on one line. Raises `SettingsError` if it has no such form."""
    if isinstance(value, str):
        return _escape(json.dumps(value, ensure_ascii=False))
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        pairs = [f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items()]
        return f"{{ {', '.join(pairs)} }}" if pairs else "{}"
    raise SettingsError(f"A rule's {type(value).__name__} cannot be written.")
