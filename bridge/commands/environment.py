"""The environment of a command, and which of its values are secret. Nothing is inherited. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from bridge.errors import SettingsError
from bridge.settings.commands import CommandProfile
from bridge.settings.time_zone import time_zone

SHORTEST_SECRET = 4
"""Characters. A shorter value would be found in everything, so it cannot be kept out of output."""

MAX_SECRET_BYTES = 16 * 1024  # Of one value; as much of a command's output is held back at most.

AWS_SECRETS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)
AWS_PLAIN = frozenset("AWS_" + name for name in """
ACCOUNT_ID ACCOUNT_ID_ENDPOINT_MODE CA_BUNDLE CLI_AUTO_PROMPT CLI_FILE_ENCODING CLI_HISTORY_FILE
CLI_OUTPUT_ENCODING CLI_S3_MV_VALIDATE_SAME_S3_PATHS DATA_PATH DEFAULT_OUTPUT DEFAULT_PROFILE
DEFAULT_REGION DISABLE_REQUEST_COMPRESSION EC2_METADATA_DISABLED ENDPOINT_URL
IGNORE_CONFIGURED_ENDPOINT_URLS MAX_ATTEMPTS METADATA_SERVICE_NUM_ATTEMPTS METADATA_SERVICE_TIMEOUT
PAGER PROFILE REGION REQUEST_CHECKSUM_CALCULATION REQUEST_MIN_COMPRESSION_SIZE_BYTES
RESPONSE_CHECKSUM_VALIDATION RETRY_MODE ROLE_ARN ROLE_SESSION_NAME SDK_UA_APP_ID
SIGV4A_SIGNING_REGION_SET STS_REGIONAL_ENDPOINTS USE_DUALSTACK_ENDPOINT USE_FIPS_ENDPOINT
""".split())  # fmt: skip  # noqa: SIM905
"""What the AWS command line reads, but for secrets and files; each service has an endpoint too."""

_SECRET_LINE = re.compile(
    r"^[ \t]*\w*(?:secret|token|access_key_id)\w*[ \t]*[=:][ \t]*(?:\n[ \t]+)?(\S.*?)[ \t]*$",
    re.I | re.M,
)
_SECRET_MEMBER = re.compile(r'"\w*(?:token|secret)\w*"\s*:\s*"([^"]+)"', re.I)


@dataclass(frozen=True, kw_only=True)
class CredentialFile:
    """A file of the host that holds credentials.

    Attributes:
        below: Where it is put, below the home inside.
        variable: What names it to the command, if anything.
        whole: Whether all of it is one secret.
    """

    path: str
    below: str
    variable: str = ""
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What a command finds; `secrets` are not shown, each with the name of where it was found."""

    variables: Mapping[str, str] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)


def credential_files(
    profile: CommandProfile, environ: Mapping[str, str], home: str, cached: Iterable[str]
) -> tuple[CredentialFile, ...]:
    """Return where credentials may be found; `cached` are file names in ~/.aws/sso/cache."""
    if profile.credentials is None or profile.credentials.source == "env":
        return ()
    aws = PurePosixPath(home) / ".aws"
    named = (
        ("AWS_CONFIG_FILE", "config", str(aws / "config"), False),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", str(aws / "credentials"), False),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "web-identity-token", "", True),
        ("AWS_CA_BUNDLE", "ca-bundle.pem", "", False),
    )
    found = [
        CredentialFile(path=path, below=f".aws/{name}", variable=variable, whole=whole)
        for variable, name, usual, whole in named
        if (path := environ.get(variable) or usual)
    ]
    for name in cached:
        path = str(aws / "sso" / "cache" / name)
        found.append(CredentialFile(path=path, below=f".aws/sso/cache/{name}"))
    return tuple(found)


def secrets_in(file: CredentialFile, data: bytes) -> frozenset[str]:
    text = data.decode("utf-8", "replace")
    if file.whole:
        return frozenset({text.strip()})
    return frozenset((*_SECRET_LINE.findall(text), *_SECRET_MEMBER.findall(text)))


def environment(
    profile: CommandProfile,
    environ: Mapping[str, str],
    *,
    home: str,
    files: Mapping[CredentialFile, bytes],
) -> Environment:
    """Return a command's environment; refuse a secret that cannot be kept out of the output.

    `home` is the home inside the sandbox; `files` are the credentials that were found.
    """
    plain, secret = list(profile.env), list(profile.secrets)
    if profile.credentials is not None:
        plain += AWS_PLAIN | {each for each in environ if each.startswith("AWS_ENDPOINT_URL_")}
        if profile.credentials.source != "files":
            secret += AWS_SECRETS
    values = {name: environ[name] for name in secret if environ.get(name)}
    found = list(values.items())
    for file, data in files.items():
        texts = secrets_in(file, data)
        found += [(file.below, text) for text in texts if len(text) >= SHORTEST_SECRET]
    hidden: dict[str, str] = {}
    for name, value in found:
        size = len(value.encode(errors="surrogatepass"))
        if len(value) < SHORTEST_SECRET or size > MAX_SECRET_BYTES:
            message = (
                f"{profile.place}: the value of the secret {name} has {len(value)} characters, so "
                "it cannot be kept out of output."
            )
            remedy = "Name it in `env` if it is no secret." if name in values else ""
            raise SettingsError(message, remedy=remedy)
        whole = value.strip("\n")
        lines = [line for line in whole.splitlines() if len(line) >= 2 * SHORTEST_SECRET]
        for text in (whole, *lines):
            hidden.setdefault(text, name)
    variables = {
        "HOME": home,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TMPDIR": "/tmp",
        "MALLOC_ARENA_MAX": "2",
        "TZ": time_zone(environ),
        **{name: environ[name] for name in plain if name in environ},
        **values,
        **{file.variable: f"{home}/{file.below}" for file in files if file.variable},
        **profile.fixed,
    }
    return Environment(variables=variables, secrets=hidden)
