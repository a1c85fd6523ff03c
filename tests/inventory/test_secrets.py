"""The secrets among the values of a configuration."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from bridge.inventory.inventory import ToolInventory
from bridge.inventory.secrets import Secrets
from bridge.model import OAuthHints, ServerSpec, Source, Tool
from tests.gate.popular_settings import PUBLIC, SECRET, lines

KINDS = ("x", "key", "tok", "sec", "key", "pw", "tok", "tok")

SOURCE = Source(client="Test", scope="user", path="/test.json", key="x")


def spec(**fields: Any) -> ServerSpec:
    return ServerSpec(**{"name": "shop", "transport": "stdio", "source": SOURCE, **fields})


def redact(*values: str, specs: tuple[ServerSpec, ...] = (), **environ: str) -> list[str]:
    secrets = Secrets(environ)
    secrets.configure(specs)
    return [secrets.redactor.text(value) for value in values]


def test_variables_of_a_server_are_secret_by_name_or_look() -> None:
    headers = json.dumps({"Authorization": "Bearer ntn-abc-123", "Notion-Version": "2022-06-28"})
    env = {
        "SHOP_TOKEN": "tok-1-abc",
        "LOG_LEVEL": "debug",
        "OPENAPI_HEADERS": headers,
        "DATABASE_URL": "postgres://ann:p4ss-w0rd@db.example/shop",
        "PEM": "-----BEGIN PRIVATE KEY-----\nMIIEvgIBADANBgkqhkiG9w0BAQEFAASC\n-----END",
    }
    texts = ("tok-1-abc", "debug", "ntn-abc-123", "2022-06-28", "p4ss-w0rd", "db.example")
    assert redact(*texts, "MIIEvgIBADANBgkqhkiG9w0BAQEFAASC", specs=(spec(env=env),)) == [
        "[redacted: SHOP_TOKEN of shop]",
        "debug",
        "[redacted: Authorization of shop]",
        "2022-06-28",
        "[redacted: password in DATABASE_URL of shop]",
        "db.example",
        "[redacted: PEM of shop (2)]",
    ]


def test_words_of_a_command_are_read_as_options() -> None:
    args = (
        *("-y", "@scope/server-shop@2025.4.8", "--api-key", "key-1-abc", "--token=tok-2-abc"),
        *("-e", "SHOP_SECRET=sec-3-abc", "--header", "X-Api-Key: key-4-abc", "--port", "8080"),
        "https://ann:pw-5-abc@h.example/mcp?access_token=tok-6-abc&page=tok-7-abc",
    )
    texts = [f"{word}-{n}-abc" for n, word in enumerate(KINDS)]
    kept = [
        text
        for text in redact(*texts, "8080", "@scope/server-shop@2025.4.8", specs=(spec(args=args),))
        if "[" not in text
    ]
    assert kept == ["x-0-abc", "tok-7-abc", "8080", "@scope/server-shop@2025.4.8"]


def test_headers_and_addresses_of_a_remote_server() -> None:
    pair = base64.b64encode(b"ann:pw-1-abc").decode()
    remote = spec(
        transport="http",
        url="https://h.example/s/q8Zt4LkX0bVn7RwY2mHs/mcp?api_key=key-2-abc",
        headers={"Authorization": f"Basic {pair}", "Cookie": "sid=ab-12-cd; theme=dark"},
        oauth=OAuthHints(client_secret="client-3-abc"),
    )
    texts = (f"Basic {pair}", "pw-1-abc", "key-2-abc", "client-3-abc", "ab-12-cd", "dark", "mcp")
    told = redact(*texts, "q8Zt4LkX0bVn7RwY2mHs", specs=(remote,))
    assert told[0] == "Basic [redacted: Authorization of shop]"
    assert [text for text in told if "[" not in text] == ["dark", "mcp"]


def test_what_servers_inherit_is_secret_by_name() -> None:
    texts = ("tok-1-abc", "inp-2-abc", "q8Zt4LkX0bVn7RwY2mHs", "dbp-3-abc")
    told = redact(
        *texts,
        GITHUB_TOKEN="tok-1-abc",
        MCP_BRIDGE_INPUT_KEY="inp-2-abc",
        SOME_DIGEST="q8Zt4LkX0bVn7RwY2mHs",
        MCP_BRIDGE_STORE="postgresql://me:dbp-3-abc@host/db",
    )
    assert told == [
        "[redacted: GITHUB_TOKEN of the environment]",
        "[redacted: MCP_BRIDGE_INPUT_KEY of the environment]",
        "q8Zt4LkX0bVn7RwY2mHs",
        "[redacted: password in MCP_BRIDGE_STORE of the environment]",
    ]


def test_secrets_follow_the_configuration_and_the_logins() -> None:
    secrets = Secrets()
    secrets.configure((spec(env={"SHOP_TOKEN": "tok-1-abc"}),))
    secrets.login("remote", {"OAuth access token": "access-1"})
    secrets.login("remote", {"OAuth access token": "access-2"})
    assert secrets.redactor.text("tok-1-abc access-1 access-2") == (
        "[redacted: SHOP_TOKEN of shop] "
        "[redacted: OAuth access token of remote] [redacted: OAuth access token of remote (2)]"
    )
    secrets.configure(())
    assert secrets.redactor.text("tok-1-abc access-1").startswith("tok-1-abc [")
    for number in range(100):
        secrets.login("remote", {"OAuth access token": f"access-{number + 10}"})
    assert secrets.redactor.text("access-1,") == "access-1,"


def test_tools_are_redacted_again_when_there_are_more_secrets() -> None:
    secrets = Secrets()
    known = ToolInventory(None, secrets.redactor)
    secrets.changed = known.redact_again
    known.reset({"shop": "Sells access-1"}, {})
    told = Tool(server="shop", name="buy", description="Uses access-2", input_schema={"x": "y"})
    hostile = Tool(server="shop", name="with-access-2")
    known.update("shop", (told, hostile))
    assert known.tool("shop", "buy") == told
    revision = known.revision
    secrets.login("shop", {"token": "something-else"})
    assert known.revision == revision
    secrets.login("shop", {"token": "access-1", "other": "access-2"})
    assert known.revision > revision
    assert [tool.description for tool in known.tools("shop") or ()] == [
        "Uses [redacted: other of shop]"
    ]
    assert known.entry("shop").description == "Sells [redacted: token of shop]"
    assert not known.update("shop", (told, hostile))


def test_a_login_server_cannot_have_words_and_numbers_removed() -> None:
    """A hostile server chooses its tokens, and must not remove words from other servers' texts."""
    secrets = Secrets()
    secrets.login(
        "x", {"access token": "please", "refresh token": "12345678", "id": "in the house"}
    )
    secrets.configure([spec(headers={"Authorization": "Bearer result"})])
    told = "please, 12345678 in the house: result"
    assert secrets.redactor.text(told) == told
    secrets.login("x", {"access token": "tok-12-ab", "refresh token": "123456789012345"})
    assert secrets.redactor.text("tok-12-ab 123456789012345").count("redacted") == 2


def is_masked(name: str, value: str, *names: str) -> bool:
    secrets = Secrets({}, names)
    secrets.configure((spec(env={name: value}),))
    return secrets.redactor.text(f"<{value}>") != f"<{value}>"


@pytest.mark.parametrize("masked", [True, False])
def test_popular_secrets_are_masked_and_popular_names_are_not(masked: bool) -> None:
    for name, value in lines(SECRET if masked else PUBLIC):
        assert is_masked(name, value) is masked, (name, value)


def test_a_setting_names_what_is_a_secret_and_what_is_none() -> None:
    assert is_masked("ACME_PIN", "postgres", "acme_*", "-x_token")
    assert not is_masked("X_TOKEN", f"ghp_{'aB3d' * 9}", "acme_*", "-x_token")
    assert not is_masked("X_URL", "pg://me:p4ss-w0rd@h/db", "-*_url")
