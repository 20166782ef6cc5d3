"""A sandbox of Docker: a container of an image, without a network."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, TypeVar

from .._asyncio import on_thread, run_to_completion, shielded
from .._processes import KILL
from ..errors import LaunchFailed, ProviderFailed, UsageError
from ..providers.docker_engine import docker_client, docker_errors, pull, unless_gone
from ..providers.owner import DEPLOYMENT, OWNER, PROVIDER, OwnerProcess
from .sandbox import (
    BoundedOutput,
    Command,
    CommandResult,
    Files,
    Sandbox,
    SandboxSnapshot,
    environment_of,
    packed,
    unpack,
    words_of,
)

T = TypeVar("T")
_MIB = 1024 * 1024
# Its first process waits for the end of its input, which this process holds: the container ends with it.
_WAIT = ["/bin/sh", "-c", "while read -r line; do :; done"]
_FIRST_RUN_S = 60.0


class DockerSandbox(Sandbox):
    """A container of an image, with no network but the allowed addresses, and few capabilities.

    The image needs `/bin/sh`. What a command leaves running goes on; a command over its time, or one with a
    cancelled caller, ends with every process in the container.

    Args:
        image: Name of the image. It is pulled if the engine does not have it.
        folder: As for `Sandbox`.
        network: A Docker network to use in place of the allowed addresses, for an engine on another machine: one that
            reaches nothing else.
        options: Those of `Sandbox`.
    """

    def __init__(
        self,
        image: str,
        folder: str | os.PathLike[str] | None = None,
        *,
        network: str = "none",
        **options: Any,
    ):
        super().__init__(folder, **options)
        self.image = image
        self._network_name = network
        self._engine: Any = None
        self._container: Any = None
        self._input: Any = None
        self._owner = (0, 0)

    async def start(self) -> None:
        if self._engine is not None:
            raise UsageError("the sandbox runs already: close() it first")
        self._engine = await on_thread(docker_client)
        created = await self._call("creating a container", self._create)
        if not created:
            await pull(self._engine, self.image)
            if not await self._call("creating a container", self._create):
                raise LaunchFailed(f"{self.image} was pulled, but the engine does not have it: check its platform")
        await self._resume()
        tried = await self.run("id -u; id -g", timeout_s=_FIRST_RUN_S, cwd="/")
        if tried.exit_code:
            said = (tried.stderr or tried.stdout).strip()[-500:]
            raise LaunchFailed(f"{self.image} runs no command ({said}): it needs /bin/sh and id")
        user, group, *_ = tried.stdout.split()
        self._owner = (int(user), int(group))
        await self.put(self.folder or {}, self.workdir)

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
    ) -> CommandResult:
        words, variables = words_of(command), environment_of(self.variables, env)
        await self._resume()
        outputs = [BoundedOutput(self.limits.output_bytes) for _ in range(2)]
        from docker.utils.socket import frames_iter

        frames: Any = frames_iter  # without types
        api, key = self._engine.api, self._container.id

        def execute() -> int | None:
            number = api.exec_create(key, words, environment=variables, user=user or "", workdir=cwd or self.workdir)
            stream = api.exec_start(number["Id"], socket=True)
            try:
                for kind, part in frames(stream, tty=False):
                    outputs[kind - 1].write(part)
            finally:
                _close(stream)
            code: int | None = api.exec_inspect(number["Id"])["ExitCode"]
            return code

        work = asyncio.ensure_future(self._call("running a command", execute))
        code, timed_out = None, False
        try:
            async with asyncio.timeout(timeout_s):
                code = await shielded(work)
        except TimeoutError:
            timed_out = True
        finally:
            if not work.done():
                await self.stop()  # the next command starts it again, with the files that it has
                await asyncio.wait([work])
        if code is None and not timed_out:
            raise ProviderFailed(f"the container ended during {words[0]}: {await self._why_gone()}")
        printed, complaint = (output.text() for output in outputs)
        code = 128 + KILL if code is None else code
        return CommandResult(code, printed, complaint, timed_out, any(output.truncated for output in outputs))

    async def put(self, files: Files | str | os.PathLike[str], path: str) -> None:
        container = self._running()
        owner = "{}:{}".format(*self._owner)
        words = ["/bin/sh", "-c", 'test -d "$1" || { mkdir -p "$1" && chown "$2" "$1"; }', "put", path, owner]
        made = await self.run(words, timeout_s=_FIRST_RUN_S, user="0", cwd="/")
        if made.exit_code:
            raise ProviderFailed(f"{path} cannot be made in the container: {made.stderr.strip()[-500:]}")
        # The engine writes as root, and follows links within the container alone.
        async with packed(files, *self._owner, below=path.strip("/") or ".") as archive:
            await self._call(f"writing to {path}", lambda: container.put_archive("/", archive))

    async def get(self, path: str, folder: str | os.PathLike[str]) -> bool:
        api, key, most = self._engine.api, self._running().id, self.limits.file_mb * _MIB

        def fetch(archive: IO[bytes]) -> bool:
            # Not `get_archive` of the SDK: its answer cannot be closed before its end.
            address = f"{api.base_url}/v{api.api_version}/containers/{key}/archive"
            with api.get(address, params={"path": path}, stream=True) as answer:
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    return False
                answer.raise_for_status()
                for part in answer.iter_content(_MIB):
                    archive.write(part)
                    if archive.tell() > most:
                        raise self._too_large(path)
            archive.seek(0)
            unpack(archive, Path(folder))
            return True

        with tempfile.TemporaryFile() as archive:
            return await self._call(f"reading {path}", lambda: fetch(archive))

    async def stop(self) -> None:
        from docker.errors import APIError

        container = self._running()

        def end() -> None:
            with contextlib.suppress(APIError):  # it has ended
                container.kill()
            container.wait()

        await run_to_completion(self._call("stopping the container", end))

    async def snapshot(self) -> SandboxSnapshot:
        container = self._running()
        image = await self._call("copying the container", container.commit)
        return SandboxSnapshot(type(self).__name__, image.id)

    def from_snapshot(self, snapshot: SandboxSnapshot, *, allow: Sequence[str] = ()) -> DockerSandbox:
        if snapshot.kind != type(self).__name__:
            raise UsageError(f"snapshot: {snapshot.place!r} is no image of a DockerSandbox")
        return DockerSandbox(
            snapshot.place,
            network=self._network_name if allow else "none",
            workdir=self.workdir,
            mounts=self.mounts,
            allow=allow,
            variables=self.variables,
            limits=self.limits,
        )

    async def remove_snapshot(self, snapshot: SandboxSnapshot) -> None:
        def remove() -> None:
            with contextlib.closing(docker_client()) as engine, docker_errors("removing an image", {}):
                unless_gone(lambda: engine.images.remove(snapshot.place, force=True), None)

        await run_to_completion(on_thread(remove))

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        container, self._container = self._container, None
        if engine is None:
            return

        def remove() -> None:
            try:
                self._detach()
                if container is not None:
                    with docker_errors("removing a container", {}):
                        unless_gone(lambda: container.remove(force=True, v=True), None)
            finally:
                engine.close()

        await self.network.close()
        await run_to_completion(on_thread(remove))

    def _create(self) -> bool:
        """Creates the container. Returns whether the engine has the image."""
        from docker.errors import ImageNotFound

        allowed = self._network_name == "none"
        try:
            self._container = self._engine.containers.create(
                self.image,
                _WAIT,
                entrypoint=[],
                stdin_open=True,
                network=self._network_name,
                extra_hosts=self.network.hosts if allowed else {},
                working_dir="/",
                volumes={str(mount): {"bind": str(mount), "mode": "ro"} for mount in self.mounts},
                mem_limit=self.limits.memory_mb * _MIB,
                memswap_limit=self.limits.memory_mb * _MIB,
                pids_limit=self.limits.processes,
                cap_drop=["ALL"],
                cap_add=["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
                security_opt=["no-new-privileges"],
                labels={
                    PROVIDER: "LocalDockerProvider",
                    OWNER: str(OwnerProcess.this()),
                    DEPLOYMENT: "agent-sandbox",
                },
            )
        except ImageNotFound:
            return False
        return True

    async def _resume(self) -> None:
        """Starts the container, if it does not run."""
        container = self._running()

        def begin() -> int:
            container.reload()
            if container.status == "running":
                return 0
            self._detach()
            # Closed with this process, which ends the container.
            self._input = container.attach_socket(params={"stdin": 1, "stream": 1})
            container.start()
            container.reload()
            return int(container.attrs["State"]["Pid"])

        pid = await self._call(f"starting a container of {self.image}", begin)
        if pid and self._network_name == "none":
            await self.network.close()
            await self.network.open(pid)

    async def _why_gone(self) -> str:
        container = self._running()
        await self._call("looking at the container", container.reload)
        state = container.attrs["State"]
        return "it used all of limits.memory_mb" if state.get("OOMKilled") else f"its status is {state.get('Status')}"

    def _detach(self) -> None:
        attached, self._input = self._input, None
        if attached is not None:
            _close(attached)

    def _running(self) -> Any:
        if self._container is None:
            raise UsageError("the sandbox does not run: start() it first, or use it as `async with`")
        return self._container

    async def _call(self, what: str, call: Callable[[], T]) -> T:
        def translated() -> T:
            with docker_errors(what, self.variables):
                return call()

        return await on_thread(translated)


def _close(stream: Any) -> None:
    """Closes what the SDK returns for a connection: the stream, its answer, and its socket."""
    for part in (stream._sock, stream, stream._response):
        with contextlib.suppress(OSError, ValueError):
            part.close()
