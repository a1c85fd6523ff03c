"""`policy explain`, `check`, `init` and `add`, with a real server."""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.main import main
from bridge.cli.policy import add, check, explain, init
from bridge.errors import SettingsError, UpstreamError, UsageError
from bridge.gate.pins import Pins
from bridge.gate.policy import CallFacts, Policy
from bridge.inventory.configuration import ConfigFinder, consents_of, context_for
from bridge.model import Tool
from bridge.settings import Settings, load
from bridge.settings.policy import parse_policy
from bridge.store import Store
from tests.discovery.writing import write
from tests.recorder_rig import recorder_entry

POLICY = """
[[policy.rules]]
name = "git is closed"
server = "git*"
action = "deny"

[[policy.rules]]
name = "not to strangers"
tool = "send"
when = { to = { not = { glob = "*@example.org" } } }
action = "deny"
reason = "mail stays in the house"

[policy.servers.mail]
trust = true
labels = ["private-data", "untrusted-input"]
"""


class Home:
    """A home with a server, and the commands as `main` calls them."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.said = capsys.readouterr
        self.config = path / ".config" / "mcp-code-bridge" / "config.toml"
        servers = {"mail": recorder_entry(path / "log"), "gone": {"command": "/no/such/command"}}
        write(path / ".claude.json", {"mcpServers": servers})

    def configure(self, text: str) -> None:
        write(self.config, text)

    def settings(self) -> Settings:
        return load({"state_dir": str(self.path / "state")}, {**os.environ, "HOME": str(self.path)})

    async def explain(self, server: str, tool: str, *given: str, as_json: bool = False) -> int:
        return await explain(
            self.settings(), server=server, tool=tool, arguments=list(given), as_json=as_json
        )

    async def check(
        self, code: str | None = None, file: str | None = None, *, as_json: bool = False
    ) -> int:
        return await check(self.settings(), file=file, code=code, as_json=as_json)

    async def init(self, *, to_stdout: bool = False) -> int:
        return await init(self.settings(), printed=to_stdout)


@pytest.fixture
def home(home: Path, capsys: pytest.CaptureFixture[str]) -> Home:
    return Home(home, capsys)


async def test_explain_shows_the_rules_and_how_to_change_the_decision(home: Home) -> None:
    home.configure(POLICY)
    assert await home.explain("mail", "send", "to=a@example.com", "text=hello") == 0
    shown = home.said().out
    for line in (
        'mail.send(to="a@example.com", text="hello") -> deny',
        "decided by:  rule 'not to strangers'",
        "because:     mail stays in the house",
        "write: the server's annotations say so, and it is trusted",
        "private-data (the policy, of servers 'mail')",
        "exfiltration (the server's openWorldHint, which is believed)",
        "'git is closed' (deny) does not match: it is about servers git*",
        "'not to strangers' (deny) decides:",
        "'lethal-combination' (ask) decides once a run has read from",
        "To allow this call, add to config.toml before the rule 'not to strangers':",
    ):
        assert line in shown


async def test_the_proposed_lines_change_the_decision(home: Home) -> None:
    home.configure(POLICY)
    await home.explain("mail", "delete_note", "topic=a")
    shown = home.said().out
    assert "-> ask" in shown
    lines = shown.partition("To allow this call, add to config.toml:\n")[2]
    home.configure(f"{lines}\n{POLICY}")
    await home.explain("mail", "delete_note", "topic=a")
    assert "-> allow" in home.said().out


async def test_arguments_are_a_json_object_or_key_value_words(home: Home) -> None:
    home.configure(
        "[[policy.rules]]\nname = 'much'\nwhen = { amount = { gt = 5 } }\naction = 'deny'"
    )
    for words, action in (
        (["to=a", "amount=6"], "deny"),
        (['{"to": "a", "amount": 6}'], "deny"),
        (["to=a", "amount=5"], "ask"),
    ):
        await home.explain("mail", "transfer", *words, as_json=True)
        assert json.loads(home.said().out)["action"] == action
    for words in (["amount"], ["{not json"]):
        with pytest.raises(UsageError, match="ARGS"):
            await home.explain("mail", "transfer", *words)


async def test_a_tool_that_changed_since_it_was_allowed_is_reported(home: Home) -> None:
    home.configure(POLICY)
    settings = home.settings()
    settings.state_dir.mkdir()
    before = Tool(server="mail", name="read_note", output_schema={})
    context = context_for(settings, str(home.path), sys.platform)
    found = ConfigFinder(context, consents_of(settings)).find()
    [mail] = [spec for spec in found.servers if spec.name == "mail"]
    await Pins(Store(settings.state_dir)).keep(before, mail.definition)
    await home.explain("mail", "read_note")
    shown = home.said().out
    for part in ("-> ask", "decided by:  changed tool", "changed since it was allowed:"):
        assert part in shown


@pytest.mark.parametrize(
    ("policy", "words", "said"),
    [
        (POLICY, "mail resources/read uri=note:///a", ["-> allow", "read: the protocol says so"]),
        (
            POLICY,
            "gone anything",
            ["default for untrusted tools", "the server could not be asked", "warning: gone:"],
        ),
        ("", "mail send", ["-> allow", "policy init"]),
    ],
)
async def test_requests_silent_servers_and_no_policy_are_explained(
    home: Home, policy: str, words: str, said: list[str]
) -> None:
    home.configure(policy)
    assert await home.explain(*words.split()) == 0
    shown = "".join(home.said())
    assert [part for part in said if part not in shown] == []
    with pytest.raises(UsageError, match="read_note"):
        await home.explain("mail", "raed_note")


async def test_check_accepts_a_policy_or_names_its_mistake(home: Home) -> None:
    assert await home.check() == 0
    assert "There is no policy" in home.said().out
    home.configure(POLICY)
    assert await home.check() == 0
    captured = home.said()
    assert "policy OK: 2 rules, 1 server, 1 flow rule" in captured.out
    warning = "the rule 'git is closed' names unknown server 'git*'."
    assert captured.err == f"warning: {warning}\n"
    assert await home.check(as_json=True) == 0
    assert json.loads(home.said().out)["idle"] == [warning]
    home.configure("[[policy.rules]]\nname = 'x'\naction = 'alow'\n")
    with pytest.raises(SettingsError, match=r"policy\.rules.*alow"):
        home.settings()


def test_the_command_names_the_mistake(home: Home) -> None:
    home.configure("[policy]\npni = true\n")
    assert main(["policy", "check"]) == 2
    said = home.said().err
    assert ("pni" in said, str(home.config) in said) == (True, True)


PROGRAM = """\
note = await mcp_mail.read_note(topic="a")
await mcp_mail.send(to=note, text="t")
await mcp_mail.send(to="me@example.com", text="t")
for server in [mcp_mail]:
    await server.fetch("https://example.org")
"""


async def test_a_program_is_shown_with_the_decision_on_each_call(home: Home) -> None:
    home.configure(POLICY)
    assert await home.check(PROGRAM) == 1
    assert home.said().out.splitlines() == [
        "line 1: mail.read_note -> allow (default for reads)",
        "line 2: mail.send -> ask (default for writes)",
        "    or deny (rule 'not to strangers'), by to: not seen here",
        "    ask (flow rule 'lethal-combination') if made after mail.read_note",
        "line 3: mail.send -> deny (rule 'not to strangers')",
        "line 4: any tool of mail, known only when it runs: the server is used as a whole",
    ]


async def test_a_program_fails_the_check_only_for_a_denied_call(home: Home) -> None:
    home.configure(POLICY)
    program = write(home.path / "program.py", "await mcp_mail.read_note(topic='a')\n")
    assert await home.check(file=str(program)) == 0
    assert await home.check("print('nothing')") == 0
    assert "No call of a tool is seen" in home.said().out
    assert await home.check("await runtime.call_tool('mail', 'nope', {})") == 1
    assert home.said().out == "line 1: mail.nope -> deny (unlisted tool)\n"


async def test_json_has_the_decision_on_each_call(home: Home) -> None:
    home.configure(POLICY)
    assert await home.check(f"{PROGRAM}await mcp_gone.do(x=1)", as_json=True) == 1
    document = json.loads(home.said().out)
    first, second, third, fourth = document["calls"]
    assert (first["line"], first["action"], first["effect"]) == (1, "allow", "read")
    assert second["unseen"] == ["to"]
    assert second["possible"][0]["on"] == ["to"]
    assert second["flow"]["led"] == ["mail.read_note"]
    assert (third["action"], third["flow"]) == ("deny", None)
    assert (fourth["server"], fourth["rule"]) == ("gone", "default for untrusted tools")
    assert document["open"][0]["server"] == "mail"
    assert (document["denied"], list(document["unreachable"])) == (1, ["gone"])


@pytest.mark.parametrize(
    ("code", "said"), [("await mcp_nail.send()", "mcp_nail"), ("def (", "line 1")]
)
async def test_a_program_that_cannot_be_checked_says_why(home: Home, code: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        await home.check(code)
    with pytest.raises(UsageError, match="not both"):
        await home.check(code, "file.py")


async def test_a_proposed_policy_is_written_once_and_decides_as_it_says(home: Home) -> None:
    assert await home.init() == 0
    assert "Review it" in home.said().err
    assert stat.S_IMODE(home.config.stat().st_mode) == 0o600
    text = home.config.read_text()
    assert "# gone is left out, as it did not say which tools it has:" in text
    policy = Policy(parse_policy(tomllib.loads(text)["policy"], "policy"))
    effects = {
        tool: policy.decide(CallFacts(server="mail", tool=tool)).effect
        for tool in ("read_note", "send", "delete_note", "plain")
    }
    assert effects == {
        "read_note": "read",
        "send": "write",
        "delete_note": "destructive",
        "plain": "write",
    }
    reading = policy.decide(CallFacts(server="mail", tool="resources/read"), "read")
    assert reading.labels == {"untrusted-input", "private-data"}
    with pytest.raises(UsageError, match="--print"):
        await home.init()
    assert home.config.read_text() == text
    assert await home.init(to_stdout=True) == 0
    assert home.said().out in text


async def test_add_proposes_rules(home: Home) -> None:
    with pytest.raises(UsageError, match="no policy to add to"):
        await add(home.settings(), server="mail", yes=True)
    home.configure('[policy.defaults]\nread = "allow"\nuntrusted = "ask"\n')
    before = home.config.read_text()
    with pytest.raises(UsageError, match="no terminal to ask on"):
        await add(home.settings(), server="mail")
    assert home.config.read_text() == before
    assert await add(home.settings(), server="mail", yes=True) == 0
    text = home.config.read_text()
    assert text.startswith(before)
    policy = Policy(parse_policy(tomllib.loads(text)["policy"], "policy"))
    actions = [policy.decide(CallFacts(server="mail", tool=t)).action for t in ("read_note", "new")]
    assert actions == ["allow", "ask"]
    with pytest.raises(UsageError, match="already has a table .* for mail"):
        await add(home.settings(), server="mail", yes=True)
    with pytest.raises(UpstreamError, match="gone"):
        await add(home.settings(), server="gone", yes=True)


async def test_init_keeps_the_other_settings(home: Home) -> None:
    home.configure('memory = "1g"')
    await home.init()
    settings: Any = home.settings()
    assert settings.policy.present
    assert settings.memory == 1024**3
