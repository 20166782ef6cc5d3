"""A node whose containers are processes of this machine, each with a loopback address of its own as its Pod's."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import signal
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections import deque
from typing import Any

from .store import Store, Thing, now

__all__ = ["GPUS", "Kubelet"]

GPUS = 4
RESTART_PAUSE_S = 0.2
NETWORKS = range(88, 120)
"""Nets of addresses, 127.N.0.0/16; each process that runs Pods has one: several may run these tests at one time."""
_claims: list[tuple[int, socket.socket]] = []


def _network() -> int:
    """The net of this process. A name that the kernel gives once is the claim to it, and ends with the process."""
    if not _claims:
        for number in NETWORKS:
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0openenv-test-pods-{number}")
            except OSError:
                claim.close()
                continue
            _claims.append((number, claim))
            break
    return _claims[0][0]


class Kubelet:
    """Runs Pods.

    What an image is called says what becomes of it: "missing" cannot be pulled, "slow" takes its time; any other is
    this machine's Python, and the command says what runs.

    Attributes:
        logs: What the last container of each Pod wrote.
    """

    def __init__(self, store: Store):
        self.logs: dict[str, deque[str]] = {}
        self.processes: dict[str, Process] = {}
        self._store = store
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._count = 0

    def start(self, pod: Thing) -> None:
        """Begins to run a Pod that was just created."""
        pod["status"] = {"phase": "Pending", "conditions": []}
        self._lives[pod["metadata"]["uid"]] = asyncio.ensure_future(self._live(pod))

    def end(self, pod: Thing, grace_s: float) -> None:
        """Ends a Pod; with 0 seconds it is gone at once."""
        metadata = pod["metadata"]
        if grace_s and "deletionTimestamp" in metadata:
            return
        metadata |= {"deletionTimestamp": now(), "deletionGracePeriodSeconds": int(grace_s)}
        if grace_s and "spec" in pod:
            self._store.put(pod, metadata["namespace"])
        self._lives[metadata["uid"] + "-end"] = asyncio.ensure_future(self._die(pod, grace_s))

    async def stop(self) -> None:
        """Ends everything, at once."""
        for life in self._lives.values():
            life.cancel()
        for process in self.processes.values():
            _kill(process, signal.SIGKILL)
            await process.wait()

    async def _live(self, pod: Thing) -> None:
        spec = pod["spec"]
        homeless = _homeless(spec)
        if homeless is not None:
            self._condition(pod, "PodScheduled", "False", "Unschedulable", homeless)
            self._put(pod)
            return
        self._condition(pod, "PodScheduled", "True")
        self._waiting(pod, "ContainerCreating")
        self._count += 1
        pod["status"]["podIP"] = f"127.{_network()}.{self._count // 250 % 240}.{self._count % 250 + 1}"
        self._put(pod)
        image = spec["containers"][0]["image"]
        if "missing" in image:
            await self._fail_to_pull(pod, image)
            return
        if "slow" in image:
            await asyncio.sleep(1.0)
        restarts = 0
        while True:
            code = await self._run(pod, restarts)
            restarts += 1
            if code is None or spec["restartPolicy"] == "Never":
                return
            await asyncio.sleep(RESTART_PAUSE_S)

    async def _fail_to_pull(self, pod: Thing, image: str) -> None:
        self._waiting(pod, "ErrImagePull", f'failed to pull image "{image}": not found')
        self._put(pod)
        self._warn(pod, "Failed", f'Failed to pull image "{image}": {image}: not found')
        await asyncio.sleep(0.2)
        self._waiting(pod, "ImagePullBackOff", f'Back-off pulling image "{image}"')
        self._put(pod)

    async def _run(self, pod: Thing, restarts: int) -> int | None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        variables = self._variables(pod, container)
        if variables is None:
            self._waiting(pod, "CreateContainerConfigError", "secret not found")
            self._put(pod)
            return None
        log = self.logs[metadata["name"]] = deque(maxlen=1000)
        try:
            process = await asyncio.create_subprocess_exec(
                *container.get("command", ["image-without-a-command"]),
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._waiting(pod, "RunContainerError", f"failed to start container: {error.strerror}")
            self._put(pod)
            return None
        self.processes[metadata["uid"]] = process
        self._status(pod, {"running": {"startedAt": now()}}, restarts)
        pod["status"]["phase"] = "Running"
        self._put(pod)
        probing = asyncio.ensure_future(self._probe(pod))
        assert process.stdout is not None
        async for line in process.stdout:
            log.append(line.decode(errors="replace"))
        code = await process.wait()
        probing.cancel()
        self._ended(pod, code, restarts)
        return code

    def _ended(self, pod: Thing, code: int, restarts: int) -> None:
        code = 128 - code if code < 0 else code
        ended = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": now(),
            "finishedAt": now(),
        }
        self._condition(pod, "Ready", "False")
        if pod["spec"]["restartPolicy"] == "Never":
            self._status(pod, {"terminated": ended}, restarts)
            pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        else:
            waiting = {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}
            self._status(pod, {"waiting": waiting}, restarts + 1, {"terminated": ended})
        self._put(pod)

    async def _die(self, pod: Thing, grace_s: float) -> None:
        uid = pod["metadata"]["uid"]
        process = self.processes.get(uid)
        if process is not None:
            _kill(process, signal.SIGTERM if grace_s else signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s or 1.0):
                    await process.wait()
            _kill(process, signal.SIGKILL)
            await process.wait()
        life = self._lives.pop(uid, None)
        if life is not None:
            life.cancel()
        if grace_s and pod["metadata"].get("finalizers"):
            return
        self._store.remove(pod)

    async def _probe(self, pod: Thing) -> None:
        container = pod["spec"]["containers"][0]
        path = container["readinessProbe"]["httpGet"]["path"]
        port = container["ports"][0]["containerPort"]
        while not await _answers(pod["status"]["podIP"], port, path):  # noqa: ASYNC110 - as a kubelet does
            await asyncio.sleep(0.1)
        self._condition(pod, "Ready", "True")
        pod["status"]["containerStatuses"][0]["ready"] = True
        self._put(pod)

    def _variables(self, pod: Thing, container: Thing) -> dict[str, str] | None:
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(["src"])}
        for source in container.get("envFrom", []):
            secret = self._store.get("Secret", pod["metadata"]["namespace"], source["secretRef"]["name"])
            if secret is None:
                return None
            variables |= {name: base64.b64decode(value).decode() for name, value in secret.get("data", {}).items()}
        variables |= {each["name"]: each["value"] for each in container.get("env", [])}
        # Every Pod has all ports of its network to itself; here it has those of one address.
        return variables | {"HOST": pod["status"]["podIP"]}

    def _waiting(self, pod: Thing, reason: str, message: str = "") -> None:
        self._status(pod, {"waiting": {"reason": reason, **({"message": message} if message else {})}}, 0)

    def _status(self, pod: Thing, state: Thing, restarts: int, last: Thing | None = None) -> None:
        container = pod["spec"]["containers"][0]
        pod["status"]["containerStatuses"] = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": False,
                "restartCount": restarts,
                "state": state,
                "lastState": last or {},
            }
        ]

    def _condition(self, pod: Thing, kind: str, status: str, reason: str = "", message: str = "") -> None:
        conditions = [each for each in pod["status"]["conditions"] if each["type"] != kind]
        more = {"reason": reason, "message": message} if reason else {}
        pod["status"]["conditions"] = [*conditions, {"type": kind, "status": status, **more}]

    def _warn(self, pod: Thing, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        name = f"{metadata['name']}.{len(self._store.things):x}"
        about = {"kind": "Pod", "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about}
        self._store.put(event | {"type": "Warning", "reason": reason, "message": message}, metadata["namespace"])

    def _put(self, pod: Thing) -> None:
        if self._store.get("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]) is pod:
            self._store.put(pod, pod["metadata"]["namespace"])


def _homeless(spec: Thing) -> str | None:
    if spec.get("nodeSelector"):
        return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    gpus = spec["containers"][0].get("resources", {}).get("limits", {}).get("nvidia.com/gpu", "0")
    return "0/1 nodes are available: 1 Insufficient nvidia.com/gpu." if int(gpus) > GPUS else None


async def _answers(host: str, port: int, path: str) -> bool:
    try:
        async with asyncio.timeout(2.0):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _kill(process: Process, number: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
