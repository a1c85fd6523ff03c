"""A stand-in for Prometheus and its adapter: custom metrics, from what the bridges say."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fleet.deploy_rig import HOST, Deployed
from tests.fleet.rig import NAMESPACE

GROUP, VERSION = "custom.metrics.k8s.io", "v1beta1"


def _handler(deployed: Deployed, asked: set[str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers discovery, and for a metric of pods what each bridge says of it."""

        def do_GET(self) -> None:
            found = re.search(r"/pods/(?:\*|%2A)/(\w+)", self.path)
            said = _values(deployed, found[1]) if found else _resources()
            if found:
                asked.add(found[1])
            body = json.dumps({"apiVersion": f"{GROUP}/{VERSION}", **said}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


def _resources() -> dict[str, Any]:
    one = {"name": "pods/any", "singularName": "", "namespaced": True, "kind": "MetricValueList"}
    resources = [{**one, "verbs": ["get"]}]
    version = {"apiVersion": "v1", "groupVersion": f"{GROUP}/{VERSION}"}
    return {"kind": "APIResourceList", **version, "resources": resources}


def _values(deployed: Deployed, metric: str) -> dict[str, Any]:
    items = []
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for pod in deployed.bridges():
        address = f"http://{pod['status'].get('podIP', HOST)}:9090/metrics"
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                text = answer.read().decode()
        except OSError:  # it has not started yet
            continue
        (number,) = re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        name = {"kind": "Pod", "namespace": NAMESPACE, "name": pod["metadata"]["name"]}
        one = {"describedObject": {**name, "apiVersion": "/v1"}, "metricName": metric}
        items.append({**one, "timestamp": now, "value": str(round(float(number)))})
    return {"kind": "MetricValueList", "metadata": {}, "items": items}


@contextmanager
def metrics_api(deployed: Deployed, directory: Path) -> Iterator[set[str]]:
    """Serve the API through the API server; give the names of the metrics that were asked for."""
    asked = set[str]()
    pair = directory / "key.pem", directory / "certificate.pem"
    openssl = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HOST}")
    files = ("-keyout", pair[0], "-out", pair[1])
    subprocess.run([*openssl, *files], check=True, capture_output=True)
    server = ThreadingHTTPServer((HOST, 0), _handler(deployed, asked))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair[1], pair[0])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": _service(server)})
    try:
        deployed.cluster.kubectl("apply", "-f", "-", stdin=objects)
        yield asked
    finally:
        deployed.cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=objects)
        server.shutdown()
        serving.join()
        server.server_close()


def _service(server: ThreadingHTTPServer) -> list[dict[str, Any]]:
    """Return a Service without pods that leads to the server, and the API that it offers."""
    name = {"name": "metrics", "namespace": NAMESPACE}
    ports = [{"name": "https", "port": server.server_address[1]}]
    v1 = {"apiVersion": "v1", "metadata": name}
    spec = {
        "group": GROUP,
        "version": VERSION,
        "service": {**name, "port": server.server_address[1]},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    return [
        {"kind": "Service", **v1, "spec": {"ports": ports}},
        {"kind": "Endpoints", **v1, "subsets": [{"addresses": [{"ip": HOST}], "ports": ports}]},
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{VERSION}.{GROUP}"},
            "spec": spec,
        },
    ]
