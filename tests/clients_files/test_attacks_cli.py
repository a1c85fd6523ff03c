"""What people and files do to the commands that write clients' files: no harm."""

from __future__ import annotations

import json

import tests.cli.test_install as cli
from tests.cli.test_install import Shell
from tests.discovery.writing import write

shell = cli.shell


def test_servers_of_each_deleted_file_of_a_client_are_restored(shell: Shell) -> None:
    user = shell.home / ".config" / "Code" / "User"
    write(user / "mcp.json", {"servers": {"a": {"command": "a"}}})
    settings = write(user / "settings.json", {"mcp": {"servers": {"b": {"command": "b"}}}})
    assert shell("install", "vscode", "--move", "all", "--yes")[0] == 0
    settings.unlink()
    assert shell("uninstall", "vscode", "--restore", "--yes")[0] == 0
    assert json.loads(settings.read_text()) == {"mcp": {"servers": {"b": {"command": "b"}}}}


def test_an_address_is_listed_without_its_password_and_token(shell: Shell) -> None:
    url = "http://u:pa55@127.0.0.1:1/mcp?token=t0ken"
    shell("install", "cursor", "--http", url, "--yes")
    for words in (("installed",), ("installed", "--json"), ("uninstall",)):
        said = shell(*words)[1]
        assert "127.0.0.1:1/mcp" in said
        assert "pa55" not in said
        assert "t0ken" not in said
