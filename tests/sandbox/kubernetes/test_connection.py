"""Who the bridge is to a cluster: tokens that are renewed, plugins, certificates, contexts."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import anyio
import pytest

from bridge.errors import SettingsError
from bridge.sandbox.kubernetes.cluster import find_config
from bridge.settings.kubernetes import Kubernetes
from tests.certificates import certify
from tests.contract.programs import ECHO, read_exactly, spec
from tests.fakes.api_server import ApiServer
from tests.raised import raises_code
from tests.sandbox.kubernetes.rig import backend_on, echo, kubeconfig


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


@pytest.mark.parametrize("kind", ["kubeconfig", "token file"])
async def test_a_token_that_was_replaced_is_read_again_and_no_request_is_lost(
    server: ApiServer, tmp_path: Path, kind: str
) -> None:
    def rotate(token: str) -> dict[str, str]:
        server.tokens = {token}
        (tmp_path / "token").write_text(token)
        user = {"tokenFile": str(tmp_path / "token")} if kind == "token file" else {"token": token}
        kubeconfig(server, tmp_path, **user)
        return user

    async with backend_on(server, tmp_path, None, **rotate("first")) as backend:
        await echo(backend)
        rotate("second")
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(echo, backend)
        async with backend.launch(spec(ECHO)) as sandbox:
            rotate("third")
            await sandbox.send(b"here")
            assert await read_exactly(sandbox, 4) == b"here"
        server.attach_tokens = {"third"}
        await echo(backend)
    assert server.leases == []


async def test_a_client_certificate_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    pairs = {}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pairs[name] = [path.read_text() for path in certify(tmp_path / name, name, "IP:127.0.0.1")]
    (tmp_path / "authorities.pem").write_text("".join(pair[0] for pair in pairs.values()))
    server = ApiServer()
    served = tmp_path / "first"
    server.tls = tuple(map(str, (*sorted(served.iterdir()), tmp_path / "authorities.pem")))

    def rotate(name: str) -> None:
        server.names = {name}
        for file, content in zip(("cert.pem", "key.pem"), pairs[name], strict=True):
            (tmp_path / file).write_text(content)

    rotate("first")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    async with server.serving(), backend_on(server, tmp_path, None, **user) as backend:
        await echo(backend)
        rotate("second")
        await echo(backend)


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
