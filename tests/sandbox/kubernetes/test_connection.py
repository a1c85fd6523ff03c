"""Who the bridge is to a cluster: tokens that are renewed, plugins, certificates, contexts."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from bridge.errors import SettingsError
from bridge.sandbox.kubernetes.cluster import find_config
from bridge.settings.kubernetes import Kubernetes
from tests.certificates import certify
from tests.fakes.api_server import ApiServer
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import backend_on, echo


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
        with raises_code("cluster_refused") as caught:
            await echo(backend)
    assert "wrong-one" not in str(caught.value)


@pytest.mark.parametrize("inline", [False, True], ids=["files", "inline"])
async def test_a_client_certificate_is_who_the_bridge_is(tmp_path: Path, inline: bool) -> None:
    server = ApiServer()
    certificate, key = certify(tmp_path, "server", "IP:127.0.0.1")
    server.tls = (str(certificate), str(key), str(certificate))
    user = {"client-certificate": certificate.name, "client-key": key.name}
    if inline:
        user = {
            f"{use}-data": base64.b64encode((tmp_path / name).read_bytes()).decode()
            for use, name in user.items()
        }
    async with server.serving(), backend_on(server, tmp_path, None, **user) as backend:
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
