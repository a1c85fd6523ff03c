"""A Kubernetes of two nodes: etcd, control plane, and a kubelet with a containerd for each node.

Runs inside `scripts/fleet/inside`, whose namespaces hold all that it changes. Owns starting the
processes, ending them, and stopping or killing single ones, as tests of failures do. Nothing here
knows of the bridge; `scripts/fleet/build` makes the programs.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

API = "https://127.0.0.1:443"
SERVICES = "10.96.0.0/24"
API_SERVICE = "10.96.0.1"
"""Where pods look for the API server. Nothing forwards to services: it listens there itself."""

ETCD = "http://127.0.0.1:2379"
ETCD_PEERS = "http://127.0.0.1:2380"
ISSUER = "https://kubernetes.default.svc"
PAUSE_IMAGE = "localhost/fleet-pause:1"

START_SECONDS = 120.0
"""For anything to become ready, on a machine that does other things too."""

HEALTH_PORT = 10248
"""Of each kubelet, on its own address."""

TAIL_LINES = 8
"""Of a process's log, in the error that says that it ended."""

STOP_SECONDS = 10.0
"""For a process to end after it was asked to."""

NODE_GRACE_SECONDS = 12
"""Without a sign of life for so long, a node counts as gone; 40 unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: its name, which is its address, and its directory.

    Names that are loopback addresses, because a kubelet takes its address from its name, and
    refuses a loopback address that is given to it.
    """

    name: str
    directory: Path

    @property
    def socket(self) -> Path:
        """Return where its containerd answers."""
        return self.directory / "containerd.sock"


class Cluster:
    """The processes of a cluster.

    Attributes:
        admin: A kubeconfig that may do everything.
        logs: The directory of the processes' logs.
        nodes: Its nodes.
    """

    def __init__(self, programs: Path, directory: Path, *, nodes: int = 2) -> None:
        self._programs = programs
        self._directory = directory
        self.logs = directory / "logs"
        self._certificates = directory / "certificates"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._token = secrets.token_hex(16)
        self.admin = directory / "admin.kubeconfig"
        self.nodes = tuple(
            Node(name=f"127.0.0.{number}", directory=directory / f"node{number}")
            for number in range(1, nodes + 1)
        )

    # --- the whole ------------------------------------------------------------------------------

    def start(self, images: Iterable[Path]) -> None:
        """Start everything and import images on each node; return when the nodes are ready.

        Raises:
            RuntimeError: Something ended, or did not become ready.
        """
        archives = [*images]
        for path in (self.logs, self._certificates):
            path.mkdir(parents=True)
        tokens = self._directory / "tokens.csv"
        tokens.write_text(f'{self._token},admin,admin,"system:masters"\n')
        key = self._directory / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        for node in self.nodes:
            self.start_containerd(node)
        address = ("ip", "address", "replace", f"{API_SERVICE}/32", "dev", "lo")
        subprocess.run(address, check=True)
        self._start_etcd()
        self.start_api_server()
        self._write_kubeconfig(self.admin, self._token)
        self._start_controllers()
        for node in self.nodes:
            self.import_images(node, archives)
            self.start_kubelet(node)
        self.wait_for_nodes(len(self.nodes))

    def stop(self) -> None:
        """End every process; whatever still runs dies with its namespaces."""
        for name in (*self._processes,):
            self.kill(name)

    def __repr__(self) -> str:
        alive = [name for name, process in self._processes.items() if process.poll() is None]
        return f"Cluster(alive={alive})"

    # --- single processes -----------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Kill one process at once, and collect it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(STOP_SECONDS)

    def pause(self, name: str) -> None:
        """Stop one process, which keeps its connections open and answers nothing."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a stopped process go on."""
        self._processes[name].send_signal(signal.SIGCONT)

    def log(self, name: str) -> str:
        """Return what a process has logged."""
        return (self.logs / name).read_text(errors="replace")

    def _spawn(self, name: str, *argv: str | Path) -> None:
        # Appended to: a process that is started again continues with its log.
        with (self.logs / name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env={"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": "/nonexistent"},
            )

    def _wait(self, names: Iterable[str], what: str, is_ready: Callable[[], bool]) -> None:
        """Wait for something that takes these processes."""
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            ended = [name for name in names if self._processes[name].poll() is not None]
            if ended or time.monotonic() > deadline:
                fault = "ended" if ended else f"not so in {START_SECONDS:.0f} s"
                tails = (f"{name}: {line}" for name in ended or names for line in self._tail(name))
                message = "\n".join((f"{what}: {fault}; the ends of the logs:", *tails))
                raise RuntimeError(message)
            time.sleep(0.1)

    def _tail(self, name: str) -> list[str]:
        """Return the last lines of a process's log, of errors if it has some."""
        lines = self.log(name).splitlines()
        return ([line for line in lines if line.startswith(("E", "F"))] or lines)[-TAIL_LINES:]

    # --- the control plane ----------------------------------------------------------------------

    def _start_etcd(self) -> None:
        self._spawn(
            "etcd",
            *("etcd", "--data-dir", self._directory / "etcd", "--unsafe-no-fsync"),
            *("--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
            *("--listen-peer-urls", ETCD_PEERS, "--initial-advertise-peer-urls", ETCD_PEERS),
            *("--initial-cluster", f"default={ETCD_PEERS}"),
        )

    def start_api_server(self) -> None:
        """Start the API server, and return when it is ready."""
        key = self._directory / "service-accounts.key"
        self._spawn(
            "kube-apiserver",
            self._programs / "kube-apiserver",
            *(f"--etcd-servers={ETCD}", "--bind-address=0.0.0.0", "--secure-port=443"),
            *("--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
            *(f"--cert-dir={self._certificates}", "--authorization-mode=RBAC"),
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *(f"--service-account-issuer={ISSUER}", f"--service-cluster-ip-range={SERVICES}"),
            *("--kubelet-preferred-address-types=InternalIP", "--enable-aggregator-routing=true"),
            # Pods leave a node that is gone after this; five minutes unless told otherwise.
            *(f"--default-{state}-toleration-seconds=5" for state in ("not-ready", "unreachable")),
        )
        self._wait(("kube-apiserver", "etcd"), "the API server is ready", self._api_is_ready)

    def _api_is_ready(self) -> bool:
        if not (self._certificates / "apiserver.crt").exists():
            return False
        try:
            return self.request("GET", "/readyz") == b"ok"
        except OSError:
            return False

    def _start_controllers(self) -> None:
        key = self._directory / "service-accounts.key"
        common = (f"--kubeconfig={self.admin}", "--bind-address=127.0.0.1", "--leader-elect=false")
        self._spawn(
            "kube-controller-manager",
            *(self._programs / "kube-controller-manager", *common, "--port=0"),
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self._certificates / 'apiserver.crt'}",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
            *("--node-monitor-period=2s", "--horizontal-pod-autoscaler-sync-period=2s"),
        )
        self._spawn("kube-scheduler", self._programs / "kube-scheduler", *common, "--port=0")

    # --- nodes ----------------------------------------------------------------------------------

    def start_containerd(self, node: Node) -> None:
        """Start a node's containerd, and return when it answers."""
        networks = node.directory / "networks"
        networks.mkdir(parents=True, exist_ok=True)
        node.socket.unlink(missing_ok=True)
        number = node.name.rpartition(".")[2]
        (networks / "10-pods.conflist").write_text(json.dumps(pod_network(node, number)))
        configuration = node.directory / "containerd.toml"
        configuration.write_text(containerd_configuration(node, networks))
        name = f"containerd-{node.name}"
        self._spawn(name, "containerd", "--config", configuration)
        self._wait((name,), f"containerd of {node.name} answers", node.socket.exists)

    def import_images(self, node: Node, archives: Iterable[Path]) -> None:
        """Give a node images, from archives.

        Raises:
            RuntimeError: One is none that containerd takes.
        """
        for archive in archives:
            ctr = ("ctr", "--address", node.socket, "--namespace", "k8s.io", "images", "import")
            done = subprocess.run([*ctr, archive], check=False, capture_output=True, text=True)
            if done.returncode != 0:
                message = f"{archive.name} cannot be imported: {done.stderr.strip()}"
                raise RuntimeError(message)

    def start_kubelet(self, node: Node) -> None:
        """Start a node's kubelet; `wait_for_nodes` tells when the cluster takes it for ready."""
        configuration = node.directory / "kubelet.json"
        configuration.write_text(json.dumps(kubelet_configuration(node)))
        socket, name = f"unix://{node.socket}", f"kubelet-{node.name}"
        argv = (
            *(self._programs / "kubelet", f"--config={configuration}"),
            *(f"--kubeconfig={self.admin}", f"--hostname-override={node.name}"),
            *(f"--root-dir={node.directory / 'kubelet'}", f"--cert-dir={node.directory / 'pki'}"),
            *("--container-runtime=remote", f"--container-runtime-endpoint={socket}"),
            *(f"--image-service-endpoint={socket}", "--runtime-cgroups=/", "--kubelet-cgroups=/"),
        )

        def is_healthy() -> bool:
            # It ends when containerd answers and is not ready for it yet; elsewhere systemd starts
            # it again.
            if name not in self._processes or self._processes[name].poll() is not None:
                self._spawn(name, *argv)
            try:
                with urllib.request.urlopen(f"http://{node.name}:{HEALTH_PORT}/healthz") as answer:
                    return bool(answer.read() == b"ok")
            except OSError:
                return False

        self._wait((), f"the kubelet of {node.name} is healthy", is_healthy)

    def wait_for_nodes(self, count: int) -> None:
        """Wait until exactly so many nodes are ready."""

        def ready() -> bool:
            try:
                return len(self.ready_nodes()) == count
            except OSError:
                return False

        self._wait((*self._processes,), f"{count} nodes are ready", ready)

    def ready_nodes(self) -> list[str]:
        """Return the names of the nodes that the cluster takes for ready."""
        found = json.loads(self.request("GET", "/api/v1/nodes"))["items"]
        return [
            node["metadata"]["name"]
            for node in found
            if any(
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in node["status"].get("conditions", ())
            )
        ]

    # --- clients --------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """Make a request to the API server with all rights.

        Raises:
            OSError: It failed, or was refused (`urllib.error.HTTPError`).
        """
        context = ssl.create_default_context(cafile=str(self._certificates / "apiserver.crt"))
        request = urllib.request.Request(
            API + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30, context=context) as response:
            return bytes(response.read())

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run kubectl with all rights and return its output.

        Raises:
            RuntimeError: It failed; the message has its stderr.
        """
        done = subprocess.run(
            [str(self._programs / "kubectl"), f"--kubeconfig={self.admin}", *map(str, arguments)],
            input=stdin,
            check=False,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )
        if done.returncode != 0:
            message = f"kubectl {' '.join(map(str, arguments))}: {done.stderr.strip()}"
            raise RuntimeError(message)
        return done.stdout

    def service_account_kubeconfig(self, namespace: str, account: str) -> Path:
        """Return a kubeconfig with which a client is that service account, in that namespace."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = json.loads(self.request("POST", path, asked))["status"]["token"]
        target = self._directory / f"{namespace}.{account}.kubeconfig"
        self._write_kubeconfig(target, token, namespace)
        return target

    def _write_kubeconfig(self, target: Path, token: str, namespace: str = "default") -> None:
        authority = (self._certificates / "apiserver.crt").read_bytes()
        cluster = {
            "server": API,
            "certificate-authority-data": base64.b64encode(authority).decode(),
        }
        context = {"cluster": "fleet", "user": "fleet", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fleet", "cluster": cluster}],
            "users": [{"name": "fleet", "user": {"token": token}}],
            "contexts": [{"name": "fleet", "context": context}],
            "current-context": "fleet",
        }
        target.touch(mode=0o600)
        target.write_text(json.dumps(document))


def pod_network(node: Node, number: str) -> dict[str, Any]:
    """Return the network of a node's pods: they reach each other, and this machine."""
    addresses = {
        "type": "host-local",
        "dataDir": str(node.directory / "addresses"),
        "ranges": [[{"subnet": f"10.241.{number}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "bridge", "bridge": f"pods{number}", "isGateway": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": f"pods{number}", "plugins": [plugin]}


RUNTIME = """
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}.options]
    BinaryName = "/usr/sbin/runc"
    SystemdCgroup = false
"""


def containerd_configuration(node: Node, networks: Path) -> str:
    """Return the configuration of a node's containerd.

    `second` is one more handler, so that a RuntimeClass has something to name.
    """
    return f"""version = 2
root = "{node.directory / "containerd"}"
state = "{node.directory / "containerd-state"}"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  disable_tcp_service = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{networks}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
{RUNTIME.format(name="runc")}
{RUNTIME.format(name="second")}
"""


def kubelet_configuration(node: Node) -> dict[str, Any]:
    """Return the configuration of a node's kubelet.

    It neither manages cgroups of its own nor writes rules of iptables, and thinks that there is
    room on any disk: this machine is shared.
    """
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.name,
        "healthzBindAddress": node.name,
        "healthzPort": HEALTH_PORT,
        "readOnlyPort": 0,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "nodeStatusUpdateFrequency": "3s",
        "nodeStatusReportFrequency": "3s",
        "syncFrequency": "10s",
        "maxPods": 200,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "1Mi",
            "imagefs.available": "1Mi",
            "nodefs.inodesFree": "1",
        },
    }
