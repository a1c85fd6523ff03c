"""The examples in `configs/` are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.discovery.finder import DiscoveryContext, discover
from bridge.gate.policy import CallFacts, Policy
from bridge.settings import Settings, load
from bridge.settings.commands import Credentials

CONFIGS = Path(__file__).parents[1] / "configs"


def _load(name: str) -> Settings:
    return load({}, {"HOME": "/h", "MCP_BRIDGE_CONFIG": str(CONFIGS / name)})


def test_the_example_of_servers_loads_without_a_warning(tmp_path: Path) -> None:
    context = DiscoveryContext(
        home=tmp_path,
        cwd=tmp_path,
        platform="linux",
        environ={},
        extra_config=CONFIGS / "behind-the-bridge.toml",
        system_root=tmp_path,
    )
    found = discover(context)
    assert [(each.name, each.transport) for each in found.servers] == [
        ("time", "stdio"),
        ("filesystem", "stdio"),
    ]
    assert found.warnings == ()


def test_the_example_of_settings_loads() -> None:
    settings = _load("config.toml")
    assert (settings.runtime, settings.memory, settings.output_mode) == ("podman", 1024**3, "auto")


def test_what_the_example_of_settings_leaves_out_loads_as_well(tmp_path: Path) -> None:
    text = (CONFIGS / "config.toml").read_text(encoding="utf-8")
    whole = tmp_path / "config.toml"
    text = text.replace("~", str(tmp_path))
    whole.write_text(re.sub("(?m)^#(?! )", "", text), encoding="utf-8")
    (tmp_path / "measurements").mkdir()
    environ = {"HOME": str(tmp_path), "MCP_BRIDGE_CONFIG": str(whole)}
    settings, usual = load({}, environ), load({}, {"HOME": str(tmp_path)})
    assert [(one.inside, one.writable) for one in settings.directories] == [("/mnt/data", False)]
    allowed = [entry.text for entry in settings.dependencies.allow]
    assert allowed == ["polars==1.*", "polars-runtime-*", "types-*"]
    assert settings.skills_dir == tmp_path / "skills"
    assert settings.store == tmp_path / "bridge.db"
    for name in re.findall("(?m)^#([a-z_]+) = ", text.partition("[profiles")[0]):
        if name not in ("skills_dir", "store"):
            assert getattr(settings, name) == getattr(usual, name), name


def test_the_example_of_a_command_profile_loads() -> None:
    profile = _load("aws.toml").commands["aws"]
    assert profile.network
    assert profile.executables[0] == "aws"
    assert profile.write == ("out",)
    assert profile.credentials == Credentials(kind="aws", source="both")
    assert (profile.memory_bytes, profile.processes, profile.timeout) == (512 * 1024**2, 32, 120)


@pytest.mark.parametrize(
    ("server", "tool", "arguments", "action", "rule"),
    [
        ("git", "git_push", {"force": True}, "deny", "rule 'no force pushes'"),
        ("git", "git_push", {}, "ask", "default for untrusted tools"),
        ("files", "write_file", {"path": "/srv/project/a"}, "allow", "rule 'files in the project'"),
        ("files", "write_file", {"path": "/etc/a"}, "deny", "rule 'files stay in the project'"),
        ("files", "read_file", {"path": "/etc/a"}, "allow", "default for reads"),
        ("mail", "send", {"to": ["a@example.org"]}, "allow", "rule 'mail to colleagues'"),
        ("mail", "send", {"to": ["a@example.org", "b@x"]}, "ask", "default for writes"),
        ("mail", "send", {"to": ["a@example.org"], "bcc": "b@x"}, "ask", "default for writes"),
        ("tracker", "create_issue", {}, "ask", "default for writes"),
        ("fetch", "fetch", {"url": "https://example.org"}, "allow", "default for reads"),
    ],
)
def test_the_example_of_a_policy_decides_as_its_comments_say(
    server: str, tool: str, arguments: dict[str, object], action: str, rule: str
) -> None:
    call = CallFacts(server=server, tool=tool, arguments=arguments)
    decision = Policy(_load("policy.toml").policy).decide(call)
    assert (decision.action, decision.rule) == (action, rule)


def test_every_example_is_tested() -> None:
    assert {path.name for path in CONFIGS.iterdir()} == {
        "aws.toml",
        "behind-the-bridge.toml",
        "config.toml",
        "policy.toml",
    }
