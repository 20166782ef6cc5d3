"""Run each server as a task of a Slurm job array (`SlurmProvider`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..._asyncio import on_thread, shielded, start_task
from ..._exceptions import add_cleanup_note, undo_async_on_error
from ...errors import LaunchFailed, NotReady, ProviderFailed, UsageError
from ..base import BlockingRuntime, Leftover, StartRate
from ..deployment import Deployment, Server
from ..owner import DEPLOYMENT
from ..redaction import KEYS, TAIL_LINES, key_of, redact, with_tail
from ..spec import Capabilities, LaunchSpec
from . import job, task
from .channel import FolderChannel, ListenerChannel, TaskChannel, labels_of
from .commands import JobStates, cancel, cancel_others, cancel_tasks, certainly_refused, environ_of_jobs, run, user

# Seconds added to the time before the limit at which Slurm sends SIGTERM: Slurm checks limits only at intervals.
MARGIN_S = 5
LONGEST_GRACE_S = 65000


def slurm_time_limit(limit: str | timedelta | None) -> str | None:
    """A time limit in the format of `sbatch`. Raises `UsageError` if it is not positive."""
    if not isinstance(limit, timedelta):
        return limit
    minutes = math.ceil(limit.total_seconds() / 60)
    if minutes < 1:
        raise UsageError(f"time_limit must be more than 0, got {limit!r}")
    return str(minutes)


# Tasks of one array: clusters allow 1,001 by default (MaxArraySize).
LONGEST_ARRAY = 1000
# Seconds between two reads of the tasks' notices.
GLANCE_S = 0.1


class SlurmProvider(BlockingRuntime):
    """Runs each server as a task of a job array: `openenv serve`, or another command.

    This machine must have Slurm's commands. `launch` waits until the servers listen, so also for the queue.

    Example::

        provider = SlurmProvider(partition="cpu", time_limit="4:00:00")
        async with await provider.launch(LaunchSpec(target="echo", replicas=8)) as deployment:
            await deployment.ready()

    Args:
        target: Argument of `openenv serve`. None takes the target of each `LaunchSpec`.
        partition: Partition. This and the next options are those of `sbatch`; None takes the cluster's default.
        account: The account that is charged.
        qos: Quality of service.
        constraint: Features that nodes must have.
        nodes: The node to use (`--nodelist`).
        exclude: Nodes not to use.
        exclusive: Whether each server has its node alone.
        time_limit: Time limit of each server, in Slurm's format ("4:00:00") or as a timedelta.
        grace_s: Drain time: a server takes no new sessions in its last `grace_s` seconds before the time limit, and
            ends with its last session. Slurm may send the signal a minute earlier.
        requeue: Whether Slurm restarts a server elsewhere after the loss of its node or a preemption. Its address
            then changes: `Deployment.refresh` finds it.
        shared_folder: A folder that this machine and all nodes share; created if it does not exist. It holds
            variables, addresses and logs of servers; only its owner has access. None: ~/.openenv/slurm.
        announce: How servers report their address. "folder": in the shared folder. "connect": over TCP to this
            process, without a folder; the servers' variables are then part of Slurm's record of the job.
        reached_at: Whether clients reach servers by the "address" or the "hostname" of their node.
        trainer_host: A name or address of this machine that nodes can reach; None: its host name, or else the
            controller's. Servers listen at their address on the route to it.
        listen_port: With announce="connect", the port for reports of a deployment. 0 takes a free one.
        python: Path of Python on the nodes, with openenv installed. None for the path of this Python.
        folder: Working folder of the servers, from which they also import modules. None for the path of the current
            folder.
        setup: Lines of bash before a server starts, such as "module load cuda". No secrets.
        env_vars: Environment variables of all servers, added to those of this process that do not look like secrets.
        queue_timeout_s: Seconds for all servers of a launch to come through the queue and listen.
        ready_timeout_s: Seconds until they are ready after that.
        start_rate: How fast arrays are submitted.

    Raises:
        UsageError: An invalid argument.
    """

    capabilities: ClassVar = Capabilities(
        forms=frozenset({"target", "command"}), gpus=True, limits=frozenset({"cpus", "memory"}), options=job.OPTIONS
    )
    public = True

    def __init__(
        self,
        target: str | None = None,
        *,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        nodes: str | None = None,
        exclude: str | None = None,
        exclusive: bool = False,
        time_limit: str | timedelta | None = None,
        grace_s: float = 60.0,
        requeue: bool = True,
        shared_folder: str | Path | None = None,
        announce: Literal["folder", "connect"] = "folder",
        reached_at: Literal["address", "hostname"] = "address",
        trainer_host: str | None = None,
        listen_port: int = 0,
        python: str | None = None,
        folder: str | Path | None = None,
        setup: Sequence[str] = (),
        env_vars: Mapping[str, str] | None = None,
        queue_timeout_s: float = 600.0,
        ready_timeout_s: float = 60.0,
        start_rate: StartRate | None = None,
    ):
        if announce not in {"folder", "connect"}:
            raise UsageError(f"announce must be folder or connect, got {announce!r}")
        if not queue_timeout_s > 0:
            raise UsageError(f"queue_timeout_s must be more than 0, got {queue_timeout_s!r}")
        if reached_at not in {"address", "hostname"}:
            raise UsageError(f"reached_at must be address or hostname, got {reached_at!r}")
        if not 0 <= grace_s <= LONGEST_GRACE_S:
            raise UsageError(f"grace_s must be from 0 to {LONGEST_GRACE_S}, got {grace_s!r}")
        self._target = target
        # Options of `sbatch` by their names, as for `job.options_of`.
        self._given: dict[str, Any] = {
            "partition": partition,
            "account": account,
            "qos": qos,
            "constraint": constraint,
            "nodelist": nodes,
            "exclude": exclude,
            "exclusive": exclusive,
            "time": slurm_time_limit(time_limit),
        }
        self._grace_s = grace_s
        self._requeue = requeue
        self._reached_at = reached_at
        # Hosts that connect to the servers. Tasks try these first, then the hosts that Slurm knows.
        self._trainers = [trainer_host] if trainer_host else []
        self._python = python or sys.executable
        self._folder = Path.cwd() if folder is None else Path(folder).absolute()
        self._setup = tuple(setup)
        self._parent = Path(shared_folder or "~/.openenv/slurm").expanduser().absolute()
        if "%" in str(self._parent):
            raise UsageError(f"shared_folder must not contain '%', which Slurm replaces, got {str(self._parent)!r}")
        self._announce = announce
        self._listen_port = listen_port
        # Drain time before the time limit. Stopping a deployment does not wait for it.
        self.variables = {"OPENENV_GRACE_S": f"{grace_s:g}", **(env_vars or {})}
        # For `start`, whose callers may create their client before the server starts.
        self.api_key = key_of(self.variables) or (None if KEYS in self.variables else secrets.token_urlsafe(24))
        self.queue_timeout_s = queue_timeout_s
        self.ready_timeout_s = ready_timeout_s
        self.start_rate = start_rate or StartRate(rate=4.0, at_once=2, pause_s=1.0)
        self._queue = JobStates()

    def deployment(self, spec: LaunchSpec) -> Deployment:
        """See `Provider.deployment`. Also raises `UsageError` for invalid options of `sbatch`."""
        deployment = super().deployment(spec)
        self._sbatch_options(spec)
        job.script(self._python, self._setup, "", {})
        return deployment

    # The methods of a provider.

    async def resize(self, deployment: Deployment, replicas: int) -> None:
        if not replicas:
            channel: TaskChannel | None = deployment.handle
            if channel is not None:
                if channel.used:
                    # By name, which also finds jobs of a submission that was cancelled before its answer came.
                    await cancel(deployment.name, self.start_rate)
                self._queue.forget(_names(deployment.servers))
                await channel.close()
                deployment.handle = None
            deployment.servers.clear()
            return
        # Servers that are gone are not counted: new ones replace them.
        await self.refresh_servers(deployment)
        there = [server for server in deployment.servers if server.gone is None]
        surplus = [server for server in deployment.servers if server.gone is not None] + there[replicas:]
        await self._end(deployment, surplus)
        missing = replicas - len(deployment.servers)
        if missing > 0:
            servers = [deployment.new_server() for _ in range(missing)]
            async with undo_async_on_error(lambda: self._end(deployment, servers)):
                if deployment.handle is None:
                    deployment.handle = (
                        FolderChannel(self._parent, deployment.name)
                        if self._announce == "folder"
                        else ListenerChannel(self._listen_port)
                    )
                    await deployment.handle.open(deployment.variables, deployment.labels)
                for begin in range(0, missing, LONGEST_ARRAY):
                    part = servers[begin : begin + LONGEST_ARRAY]
                    array = await self.start_rate.start(partial(self._submit, deployment, len(part)))
                    for index, server in enumerate(part):
                        server.handle = (f"{array}_{index}", deployment.handle)
                    self._queue.watch(_names(part))
                await self._announced(deployment, servers)

    async def why_gone(self, server: Server) -> str | None:
        if server.handle is None:
            return "was stopped"
        name, channel = server.handle
        return job.end_of(await self._queue.job(name), (await channel.notices()).get(name))

    async def refresh_servers(self, deployment: Deployment) -> None:
        for server in list(deployment.servers):
            await self._look_at(server)

    async def read_log(self, server: Server, lines: int) -> str:
        if server.handle is None:
            return ""
        name, channel = server.handle
        text: str = await channel.log(name, lines)
        return text

    async def find_leftovers(self) -> list[Leftover]:
        def folders() -> list[Leftover]:
            found = []
            with contextlib.suppress(OSError):
                for path in self._parent.iterdir():
                    labels = labels_of(path)
                    if labels is not None and labels.get(DEPLOYMENT) == path.name:
                        found.append(Leftover.from_labels("folder", path.name, labels, str(path)))
            return found

        listing = await run("squeue", "--noheader", f"--user={user()}", f"--Format={job.COLUMNS['labels']}")
        jobs = job.leftovers_in(listing)
        with_jobs = {each.deployment for each in jobs}
        return jobs + [each for each in await on_thread(folders) if each.deployment not in with_jobs]

    async def remove_leftover(self, leftover: Leftover) -> None:
        folder = leftover.handle
        await cancel(leftover.deployment, self.start_rate)
        if folder is not None:
            path = Path(folder)
            # The path comes from a job's comment: remove it only if its labels are ours.
            if ((await on_thread(lambda: labels_of(path))) or {}).get(DEPLOYMENT) == leftover.deployment:
                await FolderChannel(path.parent, path.name).close()

    # Internals.

    def _sbatch_options(self, spec: LaunchSpec) -> list[str]:
        """Options that do not depend on a deployment. Raises `UsageError` for options that `sbatch` does not take."""
        chosen = job.options_of(spec, self._given)
        warning_s = math.ceil(self._grace_s) + MARGIN_S
        limit_s = job.seconds_of(str(spec.options.get("time", self._given["time"]) or ""))
        if limit_s is not None and limit_s <= warning_s:
            raise UsageError(
                f"time_limit ({limit_s} s) leaves no time before its last {warning_s} s, in which servers take no "
                "new sessions: raise it, or lower grace_s"
            )
        again = "--requeue" if self._requeue else "--no-requeue"
        return ["--nodes=1", "--ntasks=1", again, f"--signal=B:TERM@{warning_s}", *chosen]

    async def _submit(self, deployment: Deployment, count: int) -> str:
        """Submits an array of `count` servers; returns its job id. Arguments and script contain no secrets."""
        channel: TaskChannel = deployment.handle
        spec = deployment.spec
        arguments = [
            "--parsable",
            f"--array=0-{count - 1}",
            f"--job-name={deployment.name}",
            f"--comment={job.comment(deployment.labels, channel.folder)}",
            f"--output={channel.output}",
            "--open-mode=append",
            f"--chdir={self._folder}",
            "--export=ALL",
            *self._sbatch_options(spec),
        ]
        serve = [self._python, "-m", "openenv", "serve", str(spec.target), "--host", "{host}", "--port", "{port}"]
        plan = {
            "command": serve if spec.command is None else list(spec.command),
            "port": spec.port or 0 if spec.command is None else spec.port,
            "announced": self._reached_at,
            "trainers": self._trainers,
            **channel.plan,
        }
        source = await on_thread(lambda: Path(task.__file__).read_text(encoding="utf-8"))
        text = job.script(self._python, self._setup, source, plan)
        channel.used = True
        sbatch = run("sbatch", *arguments, text=text, variables=environ_of_jobs() | dict(channel.environ))
        submission = start_task(sbatch)
        try:
            return (await shielded(submission)).strip().partition(";")[0]
        except (ProviderFailed, asyncio.CancelledError) as error:
            await asyncio.wait([submission])
            if certainly_refused(error):
                channel.used = bool(_names(deployment.servers))
            else:  # the submission may still succeed
                with add_cleanup_note(error):
                    known = {name.partition("_")[0] for name in _names(deployment.servers)}
                    await cancel_others(deployment.name, known)
            raise

    async def _announced(self, deployment: Deployment, servers: Sequence[Server]) -> None:
        """Waits until each server has an address."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + self.queue_timeout_s
        while True:
            for server in servers:
                await self._look_at(server)
                if server.gone is not None:
                    raise LaunchFailed(await self._with_log(f"the server {server.gone}", deployment, server))
            waiting = [server for server in servers if server.url is None]
            if not waiting:
                return
            if loop.time() >= limit:
                jobs = [await self._queue.job(name) for name in _names(waiting)]
                counts = Counter(f"{each.state} ({each.reason})" if each.reason else each.state for each in jobs)
                begun = next((server for server, each in zip(waiting, jobs, strict=True) if each.runs), None)
                reason = (
                    f"{len(waiting)} of {len(deployment.servers)} servers of {deployment.name} did not leave the "
                    f"queue and listen within {self.queue_timeout_s:g} s (queue_timeout_s): "
                    f"{', '.join(f'{count} {state}' for state, count in counts.most_common())}"
                )
                raise NotReady(reason if begun is None else await self._with_log(reason, deployment, begun))
            await asyncio.sleep(GLANCE_S)

    async def _look_at(self, server: Server) -> None:
        server.gone = await self.why_gone(server)
        if server.handle is not None:
            name, channel = server.handle
            server.url = job.address_of(await self._queue.job(name), (await channel.notices()).get(name))

    async def _with_log(self, reason: str, deployment: Deployment, server: Server) -> str:
        log = redact(await self.read_log(server, TAIL_LINES), deployment.secrets)
        name, channel = server.handle
        if log or channel.folder is None or name in await channel.notices():
            return with_tail(reason, log)
        return f"{reason}; there is no file of it in {channel.folder}: check that all nodes share shared_folder"

    async def _end(self, deployment: Deployment, servers: Sequence[Server]) -> None:
        names = _names(servers)
        if names:
            await cancel_tasks(job.arrays_of(names), self.start_rate, lambda: self._queue.under_way(names))
            self._queue.forget(names)
        for server in servers:
            server.handle = None
            deployment.servers.remove(server)


def _names(servers: Sequence[Server]) -> list[str]:
    return [server.handle[0] for server in servers if server.handle is not None]
