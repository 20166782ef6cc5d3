"""A stand-in of Modal, which the modal SDK (1.6) drives: gRPC by the messages and services of `modal_proto`.

It serves the calls for apps, images, sandboxes of the second version, their tunnels with TLS, and commands in them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpclib import GRPCError, Status
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from ..cli.certificates import certificate
from .clouds import Box, Cloud
from .standin import Fault, Refused

TOKEN_ID = "ak-stand-in"
APP = "ap-stand-in"
_CLAIMS = base64.urlsafe_b64encode(b'{"exp": 4102444800}').decode().rstrip("=")
_JWT = f"e30.{_CLAIMS}.e30"
_STATUSES = {
    400: Status.INVALID_ARGUMENT,
    401: Status.UNAUTHENTICATED,
    402: Status.RESOURCE_EXHAUSTED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    409: Status.FAILED_PRECONDITION,
    429: Status.RESOURCE_EXHAUSTED,
    500: Status.INTERNAL,
    503: Status.UNAVAILABLE,
}


class _Grpc(Server):
    """Remembers its connections: those that a client is about to close would stay."""

    def __init__(self, services: Any) -> None:
        super().__init__(services)
        self.connections: list[asyncio.Transport] = []

    def _protocol_factory(self) -> H2Protocol:
        made, remember = super()._protocol_factory(), self.connections.append
        begin = made.connection_made
        vars(made)["connection_made"] = lambda transport: (remember(transport), begin(transport))
        return made


class Modal(Cloud):
    id_prefix = "sb-"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._folder = tempfile.TemporaryDirectory()
        self._certificate = certificate(Path(self._folder.name))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(*self._certificate)
        self._answers: dict[Any, tuple[Any, Fault | None]] = {}
        self._done: dict[str, tuple[int, bytes]] = {}
        self._tunnels: dict[str, asyncio.Server] = {}
        self._loop = asyncio.new_event_loop()
        self._grpc_thread = threading.Thread(target=self._loop.run_forever, name="modal", daemon=True)
        self._grpc_thread.start()
        self._grpc, self._grpc_port = self._run(self._begin())

    def settings(self) -> dict[str, str]:
        return {
            "MODAL_SERVER_URL": f"http://127.0.0.1:{self._grpc_port}",
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": self.key,
            "SSL_CERT_FILE": str(self._certificate.chain),
        }

    def _run(self, call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _begin(self) -> tuple[_Grpc, int]:
        async def unimplemented(_: Any, stream: Stream[Any, Any]) -> None:
            raise GRPCError(Status.UNIMPLEMENTED, "the stand-in does not have this call")

        calls = {name: self._served(name) for name in vars(Modal) if name[0].isupper()}
        services = [
            type(
                base.__name__, (base,), {name: calls.get(name, unimplemented) for name in base.__abstractmethods__}
            )()
            for base in (ModalClientBase, TaskCommandRouterBase)
        ]
        server = _Grpc(services)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            await server.start(sock=listener.dup())
            return server, listener.getsockname()[1]

    def close(self) -> None:
        import modal

        with contextlib.suppress(modal.exception.AuthError):
            modal.Client.from_env().close()
        super().close()

        async def end() -> None:
            self._grpc.close()
            await self._grpc.wait_closed()
            for connection in self._grpc.connections:
                connection.abort()
            for tunnel in self._tunnels.values():
                tunnel.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for _ in range(3):  # connections end when the loop runs again
                await asyncio.sleep(0)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._grpc_thread.join()
        self._loop.close()
        self._folder.cleanup()

    def _served(self, name: str) -> Callable[..., Any]:
        answer = getattr(self, name)

        async def serve(_: Any, stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            asked = f"POST /{name}"
            self.requests.append(asked)
            shown = dict(stream.metadata or {})
            key = shown.get("x-modal-token-id"), shown.get("x-modal-token-secret")
            if key != (TOKEN_ID, self.key) and shown.get("authorization") != f"Bearer {_JWT}":
                raise GRPCError(Status.UNAUTHENTICATED, "Token is invalid or has expired.")
            again = shown.get("x-idempotency-key") or object()  # the SDK repeats calls, which are served once
            try:
                if again not in self._answers:
                    fault = self.next_fault(asked)
                    told = None if fault is not None and not fault.after else await asyncio.to_thread(answer, request)
                    self._answers[again] = told, fault
                told, fault = self._answers[again]
                if fault is not None:
                    raise Refused(fault.status or 503, fault.message)
            except Refused as refusal:
                raise GRPCError(_STATUSES[refusal.status], str(refusal)) from None
            if told is not None:  # else a stream without parts
                await stream.send_message(told)

        return serve

    # The calls.

    def ClientHello(self, _: Any) -> Any:
        return api_pb2.ClientHelloResponse()

    def AuthTokenGet(self, _: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=_JWT)

    def AppGetOrCreate(self, request: Any) -> Any:
        metadata = api_pb2.AppHandleMetadata(app_id=APP, description=request.app_name)
        return api_pb2.AppGetOrCreateResponse(app_id=APP, handle_metadata=metadata)

    def EnvironmentGetOrCreate(self, _: Any) -> Any:
        settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
        return api_pb2.EnvironmentGetOrCreateResponse(
            environment_id="en-1", metadata=api_pb2.EnvironmentMetadata(name="main", settings=settings)
        )

    def ImageGetOrCreate(self, request: Any) -> Any:
        assert request.image.dockerfile_commands
        built = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
        return api_pb2.ImageGetOrCreateResponse(image_id="im-1", result=built, metadata=api_pb2.ImageMetadata())

    def SandboxCreateV2(self, request: Any) -> Any:
        wanted = request.definition
        if [each.port for each in wanted.open_ports.ports] != [8000]:
            raise Refused(400, f"open ports: {wanted.open_ports}")
        variables: dict[str, str] = {}
        for source in request.secret_sources:
            variables |= dict(source.env.contents)
        box = self.start(variables, {tag.tag_name: tag.tag_value for tag in request.tags})
        metadata = api_pb2.SandboxHandleMetadata(app_id=APP)
        return api_pb2.SandboxCreateV2Response(sandbox_id=box.id, task_id=f"ta-{box.id}", metadata=metadata)

    def SandboxGetTunnelsV2(self, request: Any) -> Any:
        box, answer = self.box(request.sandbox_id), api_pb2.SandboxGetTunnelsResponse
        if self.stage(box) == "booting":
            return answer(result=api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT))
        if box.id not in self._tunnels:
            listening = asyncio.start_server(lambda *pair: self._relay(box, *pair), "127.0.0.1", 0, ssl=self._tls)
            self._tunnels[box.id] = self._run(listening)
        port = self._tunnels[box.id].sockets[0].getsockname()[1]
        return answer(tunnels=[api_pb2.TunnelData(host="127.0.0.1", port=port, container_port=8000)])

    def SandboxGetCommandRouterAccess(self, _: Any) -> Any:
        return api_pb2.SandboxGetCommandRouterAccessResponse(url=f"http://127.0.0.1:{self._grpc_port}", jwt=_JWT)

    def SandboxWaitV2(self, request: Any) -> Any:
        kinds, stage = api_pb2.GenericResult, self.stage(self.box(request.sandbox_id))
        ended = {"stopped": kinds(status=kinds.GENERIC_STATUS_TIMEOUT)}
        return api_pb2.SandboxWaitResponse(result=ended.get(stage, kinds()))

    def SandboxTerminateV2(self, request: Any) -> Any:
        self.delete(self.box(request.sandbox_id))
        return api_pb2.SandboxTerminateResponse()

    def SandboxListV2(self, request: Any) -> Any:
        labels = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [] if request.before_timestamp else self.listed(labels)  # one page
        about = api_pb2.SandboxHandleMetadata(app_id=APP)
        return api_pb2.SandboxListResponse(
            sandboxes=[api_pb2.SandboxInfo(id=box.id, created_at=1.0, app_id=APP, metadata=about) for box in found]
        )

    def SandboxTagsGetV2(self, request: Any) -> Any:
        labels = self.box(request.sandbox_id).labels
        tags = [api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in labels.items()]
        return api_pb2.SandboxTagsGetResponse(tags=tags)

    def SandboxGetTaskIdV2(self, request: Any) -> Any:
        return api_pb2.SandboxGetTaskIdResponse(task_id=f"ta-{self.box(request.sandbox_id).id}")

    def TaskExecStart(self, request: Any) -> Any:
        machine = self.running(request.task_id.removeprefix("ta-"))
        shell, flag, command = request.command_args
        assert (shell, flag) == ("sh", "-c")
        done = machine.run(command, request.timeout_secs)
        self._done[request.exec_id] = done.returncode, done.stdout.encode()
        return router.TaskExecStartResponse()

    def TaskExecStdioRead(self, request: Any) -> Any:
        data = self._done[request.exec_id][1][request.offset :]
        return router.TaskExecStdioReadResponse(data=data) if data else None

    def TaskExecWait(self, request: Any) -> Any:
        return router.TaskExecWaitResponse(code=self._done[request.exec_id][0])

    async def _relay(self, box: Box, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, inward = await asyncio.open_connection("127.0.0.1", self.port_of(box))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, inward), _pump(there, writer), return_exceptions=True)


async def _pump(source: asyncio.StreamReader, goal: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(262144):
            goal.write(part)
            await goal.drain()
    finally:
        goal.transport.abort()
