"""Command profiles as the configuration has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.commands.confinement import grants
from bridge.commands.plan import (
    MAX_SECRET_BYTES,
    CredentialFile,
    credential_files,
    environment,
    secrets_in,
)
from bridge.errors import SettingsError
from bridge.settings.commands import CommandProfile, parse_commands
from bridge.settings.directories import refusal

AWS_CLI_PLAIN = """
AWS_CLI_AUTO_PROMPT AWS_CLI_FILE_ENCODING AWS_CLI_S3_MV_VALIDATE_SAME_S3_PATHS AWS_DATA_PATH
AWS_DEFAULT_OUTPUT AWS_DEFAULT_REGION AWS_EC2_METADATA_DISABLED AWS_ENDPOINT_URL
AWS_IGNORE_CONFIGURED_ENDPOINT_URLS AWS_MAX_ATTEMPTS AWS_METADATA_SERVICE_NUM_ATTEMPTS
AWS_METADATA_SERVICE_TIMEOUT AWS_PAGER AWS_PROFILE AWS_RETRY_MODE AWS_ROLE_ARN AWS_ROLE_SESSION_NAME
AWS_SDK_UA_APP_ID AWS_USE_DUALSTACK_ENDPOINT AWS_USE_FIPS_ENDPOINT
"""
"""Of the AWS command line's own list, those that are neither secrets nor name a file of secrets."""

LEAST: dict[str, Any] = {"executables": ["jq"], "workspace": "/srv/ws"}


def _profile(**table: Any) -> CommandProfile:
    return parse_commands({"tool": {**LEAST, **table}}, "commands")["tool"]


def test_a_profile_needs_little_and_grants_little() -> None:
    profile = _profile()
    assert (profile.network, profile.read, profile.write, profile.env) == (False, (), (), ())
    sizes = (profile.memory_bytes, profile.cpu_seconds, profile.file_bytes)
    assert sizes == (512 << 20, 60, 100 << 20)
    assert (profile.processes, profile.open_files) == (32, 256)
    assert (profile.timeout, profile.max_timeout, profile.output_bytes) == (120, 300, 256 << 10)
    assert (profile.runtime, profile.check_arguments) == ("process", True)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"executables": []}, "needs `executables`"),
        ({"executables": ["bin/jq"]}, "neither a plain name nor an absolute path"),
        ({"executables": [".."]}, "neither a plain name"),
        ({"executables": ["jq", "/opt/jq"]}, "with the same name"),
        ({"executables": 1}, "must be a text"),
        ({"workspace": "ws"}, "is relative"),
        ({"workspace": 1}, "must be a text"),
        ({"shell": True}, "unknown key"),
        ({"network": "yes"}, "true or false"),
        ({"env": ["A=b"]}, "no name of a variable"),
        ({"env": ["A"], "secrets": ["A"]}, "more than one of"),
        ({"env": ["A"], "set": {"A": "x"}}, "more than one of"),
        ({"set": {"A": 1}}, "must be a text"),
        ({"credentials": {"kind": "gcp"}}, "kind: 'gcp' is not one of aws"),
        ({"credentials": {"kind": "aws", "source": "home"}}, "source: 'home'"),
        ({"credentials": True}, "must be a table"),
        ({"memory": "1m"}, "must be from 16m"),
        ({"memory": "lots"}, "is not a size"),
        ({"timeout": 301}, "from 1 to 300"),
        ({"timeout": True}, "must be a number"),
        ({"timeout": 200, "max_timeout": 100}, "above its `max_timeout`"),
        ({"processes": 0}, "from 1"),
        ({"open_files": 1.5}, "whole number"),
        ({"runtime": "vm"}, "one of process, container"),
        ({"runtime": "container"}, "needs `image`"),
        ({"image": "x"}, "only `runtime`"),
        ({"read": [""]}, "empty"),
        ({"read": ["a\0"]}, "with a NUL"),
    ],
)
def test_a_key_that_cannot_be_is_an_error_with_its_place(table: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _profile(**table)
    assert told in str(refused.value)
    assert "commands.tool" in str(refused.value)
    for tables in ({"No Name": LEAST}, {"tool": 1}):
        with pytest.raises(SettingsError):
            parse_commands(tables, "commands")


def _grants_of(links: dict[str, str] | None = None, **table: Any) -> list[tuple[str, str, bool]]:
    found = grants(
        _profile(**table),
        realpath=lambda path: (links or {}).get(path, path),
        refusal=lambda path, _: refusal(Path(path), home=Path("/home/me"), private=()),
    )
    return [(grant.source, grant.inside, grant.writable) for grant in found]


def test_paths_are_granted_once_where_the_sandbox_has_them() -> None:
    granted = _grants_of(
        read=["/srv/data", "sub", "/srv/ws/deep"], write=["out", "out/x", "/srv/data/cache"]
    )
    assert granted == [
        ("/srv/data", "/srv/data", False),
        ("/srv/ws", "/workspace", False),
        ("/srv/ws/out", "/workspace/out", True),
        ("/srv/data/cache", "/srv/data/cache", True),
    ]
    assert _grants_of(write=["."]) == [("/srv/ws", "/workspace", True)]


@pytest.mark.parametrize(
    "table",
    [
        {"workspace": "/"},
        {"workspace": "/home/me"},
        {"workspace": "/home"},
        {"read": ["/home/me"]},
        {"read": ["/etc"]},
        {"read": ["/run/docker.sock"]},
        {"read": ["/proc/1"]},
        {"read": ["/tmp/x"]},
        {"write": ["/usr/local/share/x"]},
        {"read": ["/srv/other/../../home/me"]},
        {"write": ["link"]},
    ],
)
def test_what_must_not_be_granted_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        _grants_of({"/srv/ws/link": "/srv/secret"}, **table)


def test_nothing_of_the_environment_is_passed_on_unless_named() -> None:
    profile = _profile(env=["A", "MISSING"], secrets=["TOKEN"], set={"LANG": "C"})
    host = {"A": "1", "TOKEN": "secret-value", "OTHER": "x", "LANG": "de", "TZ": "Asia/Tokyo"}
    made = environment(profile, host, home="/inside", files={})
    assert made.variables == {
        "HOME": "/inside",
        "LANG": "C",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",
        "MALLOC_ARENA_MAX": "2",
        "TZ": "Asia/Tokyo",
        "A": "1",
        "TOKEN": "secret-value",
    }
    assert made.secrets == {"secret-value": "TOKEN"}
    assert "secret-value" not in repr(made)


def test_each_line_of_a_secret_is_one_unless_it_is_short() -> None:
    key = "first line of a key\nsecond line of a key\nshort\n"
    made = environment(_profile(secrets=["KEY"]), {"KEY": key}, home="/h", files={})
    assert made.secrets == dict.fromkeys(
        (key.strip(), "first line of a key", "second line of a key"), "KEY"
    )


def test_a_secret_too_short_or_too_long_to_be_kept_out_of_output_is_refused() -> None:
    long = "x" * (MAX_SECRET_BYTES + 1)
    for value in ("123", long):
        with pytest.raises(SettingsError, match="TOKEN"):
            environment(_profile(secrets=["TOKEN"]), {"TOKEN": value}, home="/h", files={})
    file = CredentialFile(path="/t", below=".aws/token", whole=True)
    with pytest.raises(SettingsError, match=r"\.aws/token"):
        environment(_profile(), {}, home="/h", files={file: long.encode()})


@pytest.mark.parametrize("source", ["env", "files", "both"])
def test_aws_credentials_come_from_where_the_profile_says(source: str) -> None:
    profile = _profile(credentials={"kind": "aws", "source": source})
    host = {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_CONFIG_FILE": "/elsewhere/config",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_S3": "https://s3.internal",
        "AWS_CA_BUNDLE": "/var/ca.pem",
        "AWS_LAMBDA_FUNCTION_NAME": "not the command line's",
        **dict.fromkeys(AWS_CLI_PLAIN.split(), "plain"),
    }
    files = credential_files(profile, host, "/home/me", ["a.json"])
    made = environment(profile, host, home="/in", files=dict.fromkeys(files, b"some-long-token"))
    assert made.variables["AWS_REGION"] == "eu-west-1"
    assert made.variables["AWS_ENDPOINT_URL_S3"] == "https://s3.internal"
    assert {made.variables[name] for name in AWS_CLI_PLAIN.split()} == {"plain"}
    assert "AWS_LAMBDA_FUNCTION_NAME" not in made.variables
    assert ("AWS_ACCESS_KEY_ID" in made.variables) == (source != "files")
    if source == "env":
        assert files == ()
        assert "AWS_CONFIG_FILE" not in made.variables
        return
    assert [Path(file.path) for file in files] == [
        Path("/elsewhere/config"),
        Path("/home/me/.aws/credentials"),
        Path("/var/run/token"),
        Path("/var/ca.pem"),
        Path("/home/me/.aws/sso/cache/a.json"),
    ]
    assert made.variables["AWS_CONFIG_FILE"] == "/in/.aws/config"
    assert made.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] == "/in/.aws/web-identity-token"
    assert "some-long-token" in made.secrets
    text = b'[a]\naws_secret_access_key=S3cret\nregion = x\n{"accessToken": "T0ken"}'
    assert secrets_in(files[0], text) == {"S3cret", "T0ken"}


def test_a_secret_is_found_however_the_file_writes_it() -> None:
    """Readers of such files take a colon, a value on the next line and one with blanks as well."""
    file = CredentialFile(path="/home/someone/.aws/credentials", below=".aws/credentials")
    text = b"aws_secret_access_key: S3cret\naws_session_token =\n  T0ken\na_token =\nb = c\n"
    assert secrets_in(file, text) == {"S3cret", "T0ken"}
    assert secrets_in(file, b"aws_session_token = two words \n") == {"two words"}
