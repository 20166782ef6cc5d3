"""A Kubernetes of one node, with all of its parts real: etcd, API server, controllers, scheduler, kubelet."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from ...ports import held_port
from .credentials import Authority, kubeconfig
from .node import NAME, STARTS_S, Node, network
from .programs import Program, until

__all__ = ["ACCESS", "Cluster", "cluster_of"]

ACCESS = Path(__file__).parents[3] / "deploy" / "kubernetes" / "access.yaml"
ACCOUNT = "trainer"
COMMAND_S = 60
_SERVICES = "10.96.0.0/16"
_KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "cgroupDriver": "cgroupfs",
    "makeIPTablesUtilChains": False,
    "failSwapOn": False,
    "healthzPort": 0,
    "clusterDNS": ["192.0.2.53"],
    "syncFrequency": "1s",
    "oomScoreAdj": 0,
    "enforceNodeAllocatable": ["pods"],
    "authorization": {"mode": "Webhook"},
    # A disk that is nearly full is not what is tested; a Pod that is over its own limit is, soon.
    "evictionHard": {"memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100,
    "volumeStatsAggPeriod": "1s",
}


class Cluster:
    """A running cluster.

    Attributes:
        name: What its folder, its bridge and its cgroups are called.
        version: What its API server says of itself.
        node: Its only node.
        admin: The kubeconfig of somebody who may do everything.
    """

    def __init__(self, programs: Path, folder: Path, node: Node, ports: dict[str, int], kubelet_port: int):
        self._programs, self._folder, self._ports = programs, folder, ports
        self._kubelet_port = kubelet_port
        self._authority = Authority(folder)
        self._running: dict[str, Program] = {}
        self.name = folder.name
        self.node = node
        self.version = ""
        self.admin = self._client("admin", "/O=system:masters/CN=admin")

    # Its programs.

    def start(self) -> None:
        """Starts all of it, and waits until the node is ready."""
        for name, arguments in (("etcd", self._etcd()), ("kube-apiserver", self._api())):
            self._run(name, arguments)
        self.until_served()
        for name, arguments in (
            ("kube-controller-manager", self._controllers()),
            ("kube-scheduler", self._scheduler()),
        ):
            self._run(name, arguments)
        certificate, key = self._authority.sign("kubelet", "/CN=kubelet", f"IP:{self.node.address}")
        known = {"x509": {"clientCAFile": str(self._authority.certificate)}}
        kubelet = {
            **_KUBELET,
            "port": self._kubelet_port,
            "tlsCertFile": str(certificate),
            "tlsPrivateKeyFile": str(key),
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, **known},
        }
        self.node.run(kubelet, self._client("node", f"/O=system:nodes/CN=system:node:{NAME}"))
        self.until_ready()
        self._until(
            lambda: "default" in self.kubectl("get", "serviceaccounts", check=False), "there is no service account"
        )
        self.version = json.loads(self.kubectl("get", "--raw", "/version"))["gitVersion"]

    def stop(self) -> None:
        """Ends what `start` has started, in the reverse order."""
        self.node.close()
        for program in reversed(self._running.values()):
            program.end()

    def kill_api(self) -> None:
        """Ends the API server as a crash does."""
        self._running["kube-apiserver"].end(signal.SIGKILL)

    def start_api(self) -> None:
        """Starts it again, and does not wait: see `until_served`. On the main thread."""
        self._running["kube-apiserver"].start()

    def until_served(self) -> None:
        """Waits until the API server is ready."""
        self._until(self._served, "the API server does not become ready")

    def forget_history(self, key: str) -> None:
        """Has etcd delete something and remember nothing of it. While the API server is down."""
        coded = base64.b64encode(key.encode()).decode()
        deleted = self._etcd_asked("kv/deleterange", {"key": coded})
        assert deleted.get("deleted") == "1", f"etcd has no {key}"
        self._etcd_asked("kv/put", {"key": base64.b64encode(b"/tests").decode(), "value": coded})
        revision = deleted["header"]["revision"]
        self._etcd_asked("kv/compaction", {"revision": revision, "physical": True})

    def until_ready(self) -> None:
        """Waits until the node is ready.

        Raises:
            AssertionError: It does not become ready; with what the cluster and its programs say.
        """
        self._until(self._node_ready, "the node does not become ready")

    # What is asked of it.

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """What kubectl prints as admin.

        Raises:
            AssertionError: It fails, and `check` is set; with what it says.
        """
        command = [str(self._programs / "usr/bin/kubectl"), "--kubeconfig", str(self.admin), *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=COMMAND_S)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout if check else done.stdout + done.stderr

    def names(self, namespace: str, kinds: str = "pods,secrets,networkpolicies,daemonsets") -> list[str]:
        """All objects of some kinds, but for those that the cluster makes itself, as kind/name."""
        told = self.kubectl("-n", namespace, "get", kinds, "-o", "json")
        return [
            f"{each['kind']}/{each['metadata']['name']}"
            for each in json.loads(told)["items"]
            if each.get("type") != "kubernetes.io/service-account-token"
        ]

    def account(self, namespace: str) -> Path:
        """Makes a namespace with what deploy/kubernetes/access.yaml has; the kubeconfig of its ServiceAccount."""
        self.kubectl("create", "namespace", namespace)
        self.kubectl("-n", namespace, "apply", "-f", str(ACCESS))
        return self.give_token(namespace)

    def give_token(self, namespace: str) -> Path:
        """Writes a new token of its ServiceAccount to a namespace's kubeconfig."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token"
        answer = json.loads(self.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(request)))
        user = {"token": answer["status"]["token"]}
        file = self._folder / f"{namespace}.kubeconfig"
        return kubeconfig(file, self._url, self._authority.certificate, user, namespace)

    def rules(self, namespace: str) -> list[dict[str, Any]]:
        """The rights of the ServiceAccount of a namespace, as access.yaml has them."""
        objects = list(yaml.safe_load_all(ACCESS.read_text()))
        found: list[dict[str, Any]] = next(each["rules"] for each in objects if each["kind"] == "Role")
        return found

    def set_rules(self, namespace: str, rules: list[dict[str, Any]]) -> None:
        """Gives the ServiceAccount of a namespace other rights."""
        patch = json.dumps({"rules": rules})
        self.kubectl("-n", namespace, "patch", "role", "openenv-provider", "--type=merge", "-p", patch)

    # Its parts.

    @property
    def _url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def _etcd_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['etcd']}"

    def _etcd(self) -> list[str]:
        peers = f"http://127.0.0.1:{self._ports['peers']}"
        return [
            f"--data-dir={self._folder}/etcd",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        ]

    def _api(self) -> list[str]:
        names = "IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        certificate, key = self._authority.sign("api", "/CN=kube-apiserver", names)
        asking, asking_key = self._authority.sign("api-client", "/O=system:masters/CN=kube-apiserver")
        self._signing, public = self._authority.signing_key("accounts")
        return [
            f"--etcd-servers={self._etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['api']}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self._authority.certificate}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self._signing}",
            f"--service-account-key-file={public}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-cluster-ip-range={_SERVICES}",
            "--endpoint-reconciler-type=none",
            f"--kubelet-client-certificate={asking}",
            f"--kubelet-client-key={asking_key}",
            f"--kubelet-certificate-authority={self._authority.certificate}",
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controllers(self) -> list[str]:
        return [
            f"--kubeconfig={self._client('controllers', '/CN=system:kube-controller-manager')}",
            f"--root-ca-file={self._authority.certificate}",
            f"--service-account-private-key-file={self._signing}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['controllers']}",
            "--port=0",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self._client('scheduler', '/CN=system:kube-scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._ports['scheduler']}",
            "--port=0",
        ]

    def _client(self, name: str, subject: str) -> Path:
        certificate, key = self._authority.sign(f"{name}-client", subject)
        user = {"client-certificate": str(certificate), "client-key": str(key)}
        return kubeconfig(self._folder / f"{name}.kubeconfig", self._url, self._authority.certificate, user)

    def _run(self, name: str, arguments: list[str]) -> None:
        program = Program([str(self._programs / "usr/bin" / name), *arguments], self._folder / f"{name}.log")
        self._running[name] = program
        program.start()

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        try:
            until(holds, STARTS_S, what)
        except AssertionError as error:
            path = "{range .items[*].status.conditions[*]}{.type}={.status}: {.message}{'\\n'}{end}"
            told = self.kubectl("get", "nodes", "-o", f"jsonpath={path}", check=False)
            tails = {**{name: program.tail for name, program in self._running.items()}, **self.node.tails}
            logs = "".join(f"\n{name} says:\n{tail}" for name, tail in tails.items())
            raise AssertionError(f"{error}{logs}\nof the nodes is known:\n{told}") from None

    def _served(self) -> bool:
        for program in self._running.values():
            program.check()
        return self.kubectl("get", "--raw", "/readyz", check=False) == "ok"

    def _node_ready(self) -> bool:
        path = "{.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", NAME, "-o", f"jsonpath={path}", check=False) == "True"

    def _etcd_asked(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._etcd_url}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=COMMAND_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found


@contextlib.contextmanager
def cluster_of(programs: Path) -> Iterator[Cluster]:
    """A cluster of the programs of a folder; nothing is left of it after the block.

    Where it does not start, out/kubernetes has the logs.
    """
    with contextlib.ExitStack() as ends:
        folder = Path(tempfile.mkdtemp(prefix="oek8s"))
        ends.callback(shutil.rmtree, folder)
        start = ends.enter_context(network(folder.name))
        names = ("etcd", "peers", "api", "controllers", "scheduler")
        ports = {name: ends.enter_context(held_port()) for name in names}
        node = Node(programs, folder / "node", folder.name, start)
        cluster = Cluster(programs, folder, node, ports, ends.enter_context(held_port(node.address)))
        ends.callback(cluster.stop)
        try:
            cluster.start()
        except AssertionError:
            _keep_logs(folder)
            raise
        yield cluster


def _keep_logs(folder: Path) -> None:
    """Keeps what the programs said, in out/kubernetes."""
    kept = ACCESS.parents[2] / "out" / "kubernetes"
    kept.mkdir(parents=True, exist_ok=True)
    for log in folder.rglob("*.log"):
        if log.is_file() and os.access(log, os.R_OK):
            shutil.copy(log, kept / log.name)
