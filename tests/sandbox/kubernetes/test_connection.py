"""Who the bridge is to a cluster: tokens that are renewed, plugins, certificates, contexts."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bridge.errors import SettingsError
from bridge.sandbox.kubernetes.cluster import find_config
from bridge.settings.kubernetes import Kubernetes
from tests.fakes.api_server import ApiServer
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import PATIENCE, backend_on, echo


def plugin(directory: Path, *tokens: str) -> Path:
    """Write an exec plugin that gives one token after the other."""
    script = directory / "plugin"
    script.write_text(
        "#!/bin/sh\n"
        f'cd "{directory}" && echo "$KUBERNETES_EXEC_INFO" > asked && echo x >> calls\n'
        f"set -- {' '.join(tokens)}; shift $(($(wc -l < calls) - 1))\n"
        'printf \'{"kind":"ExecCredential","status":{"token":"%s"}}\' "$1"\n'
    )
    script.chmod(0o700)
    return script


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
async def test_a_plugins_token_is_renewed_once_it_has_expired(
    server: ApiServer, tmp_path: Path, version: str
) -> None:
    server.tokens = {"first"}
    asked = f"client.authentication.k8s.io/{version}"
    command = str(plugin(tmp_path, "first", "second", "third"))
    async with backend_on(
        server, tmp_path, exec={"apiVersion": asked, "command": command}
    ) as backend:
        with anyio.fail_after(PATIENCE):
            await echo(backend)
            server.tokens = {"second"}
            await echo(backend)
            server.attach_tokens = {"third"}
            server.tokens = {"second", "third"}
            await echo(backend)
    info = json.loads((tmp_path / "asked").read_text())
    assert info["apiVersion"] == asked
    assert info["spec"] == {"interactive": False}


async def test_a_token_that_is_refused_is_an_error_with_its_own_code(
    server: ApiServer, tmp_path: Path
) -> None:
    server.tokens = {"right"}
    async with backend_on(server, tmp_path, token="wrong-one") as backend:
        with anyio.fail_after(PATIENCE), raises_code("cluster_refused") as caught:
            await echo(backend)
    assert caught.value.code == "cluster_refused"
    assert "wrong-one" not in str(caught.value)


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("ca", "server", "me")}
    now = datetime.now(UTC)
    for name, key in keys.items():
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
        usage = x509.BasicConstraints(ca=name == "ca", path_length=None)
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())
        made = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(usage, critical=True)
            .add_extension(own, critical=False)
            .add_extension(by, critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign(keys["ca"], hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (tmp_path / f"{name}.crt").write_bytes(made.public_bytes(pem))
        (tmp_path / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
    return tmp_path


@pytest.mark.parametrize("inline", [False, True], ids=["files", "inline"])
async def test_a_client_certificate_is_who_the_bridge_is(certificates: Path, inline: bool) -> None:
    names = {"client-certificate": "me.crt", "client-key": "me.key"}
    user = names
    if inline:
        user = {
            f"{key}-data": base64.b64encode((certificates / name).read_bytes()).decode()
            for key, name in names.items()
        }
    server = ApiServer()
    server.tls = tuple(str(certificates / name) for name in ("server.crt", "server.key", "ca.crt"))
    with anyio.fail_after(PATIENCE):
        async with server.serving(), backend_on(server, certificates, None, **user) as backend:
            await echo(backend)


def test_a_context_is_found_in_any_of_several_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        context = {"cluster": name, "user": name, "namespace": f"in-{name}"}
        document = {
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": f"https://{name}.invalid"}}],
            "users": [{"name": name, "user": {"token": "x"}}],
            "contexts": [{"name": name, "context": context}],
        }
        (tmp_path / name).write_text(json.dumps(document))
    environ = {"KUBECONFIG": f"{tmp_path / 'one'}:{tmp_path / 'two'}"}
    assert find_config(Kubernetes(), environ).namespace == "in-one"
    assert find_config(Kubernetes(context="two"), environ).namespace == "in-two"
    with pytest.raises(SettingsError, match="three"):
        find_config(Kubernetes(context="three"), environ)


def test_without_any_configuration_the_error_says_where_one_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        find_config(Kubernetes(kubeconfig=tmp_path / "none"), {})
    assert "kubeconfig" in caught.value.remedy
