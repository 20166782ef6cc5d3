"""Serve environments of the Open Reward Standard: `openenv serve ors:URL`, or `ors:MODULE:CLASS` of its SDK."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar
from uuid import uuid4

import uvicorn

from .._http import HttpReply, fetch
from ..errors import ConnectionLost, EnvironmentFailed, InvalidAction, InvalidArgument, ResetRequired, UsageError
from ..mcp.types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    McpToolResult,
    ToolError,
    ToolErrorType,
)
from ..project.target import attribute_of
from ..project.target import import_module as import_user_module
from ..types import State
from .conversation import ConversationEnvironment, ModelTool, TextObservation, TextReply, conversation_app

__all__ = ["ORSEnvironment", "ors_app", "ors_environment"]

# Seconds of silence of the server; it sends a comment every ten seconds while a tool runs.
SILENCE_S = 60.0
# Seconds in which a server sets up an episode, and between two messages that keep a session open.
SETUP_S = 600.0
PING_S = 20.0
# For routes that read none: a server that closes a connection with unread data resets it.
_NO_BODY = b""
_REASONS = {"not_found": ToolErrorType.TOOL_NOT_FOUND, "input_validation": ToolErrorType.INVALID_ARGS}


class ORSServer:
    """A server of the Open Reward Standard. Methods raise `EnvironmentFailed` if it does not answer, or refuses.

    Args:
        url: Its address.

    Attributes:
        sessions: The ids of the open sessions, which a thread keeps open.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.sessions: set[str] = set()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._pinging: threading.Thread | None = None

    def send(self, path: str, body: Any = None, session: str | None = None) -> HttpReply:
        """Sends a GET, or a POST of JSON. Waits as long as the server says that it starts the environment."""
        headers = {} if session is None else {"X-Session-ID": session}
        until = time.monotonic() + SETUP_S
        while True:
            try:
                reply = fetch(f"{self.url}{path}", headers, SILENCE_S, body)
            except ConnectionLost as error:
                raise EnvironmentFailed(f"ORS: {error.message}") from error
            wait = reply.headers.get("Retry-After", "")
            if reply.status != 503 or not wait.isdecimal() or time.monotonic() + int(wait) > until:
                break
            time.sleep(int(wait))
        if reply.status >= 400:
            said = reply.body.decode(errors="replace")[:500]
            raise EnvironmentFailed(f"ORS: {self.url}{path} answered HTTP {reply.status}: {said}")
        return reply

    def json(self, path: str, body: Any = None, session: str | None = None) -> Any:
        """The value that a request returns."""
        try:
            return self.send(path, body, session).json()
        except ValueError:
            raise EnvironmentFailed(f"ORS: {self.url}{path} did not answer with JSON: is it an ORS server?") from None

    def events(self, path: str, body: Any, session: str | None = None) -> dict[str, str]:
        """The data of the events in a stream by their names; `end` has that of the chunks before it."""
        found: dict[str, str] = {}
        for event in self.send(path, body, session).body.decode().replace("\r\n", "\n").split("\n\n"):
            lines = [line.partition(": ") for line in event.split("\n")]
            name = next((value for field, _, value in lines if field == "event"), "")
            data = "\n".join(value for field, _, value in lines if field == "data")
            found[name] = found.get(name, "") + data
        if "end" in found:
            found["end"] = found.pop("chunk", "") + found["end"]
        elif "error" not in found:
            raise EnvironmentFailed(f"ORS: the answer of {self.url}{path} has no end: the server was lost")
        return found

    def open(self, env: str, split: str, index: int) -> str:
        """Opens a session with a task. Returns its id."""
        session = self.events("/create_session", _NO_BODY)["task_id"]
        self.json("/create", {"env_name": env, "split": split, "index": index}, session)
        with self._lock:
            self.sessions.add(session)
            if self._pinging is None:
                self._closed.clear()
                self._pinging = threading.Thread(target=self._ping, daemon=True, name="openenv-ors-ping")
                self._pinging.start()
        return session

    def close(self, session: str) -> None:
        """Ends a session."""
        with self._lock:
            self.sessions.discard(session)
            pinging = self._pinging if not self.sessions else None
            if pinging is not None:
                self._pinging = None
                self._closed.set()
        if pinging is not None:
            pinging.join()
        for path in ("/delete", "/delete_session"):
            with contextlib.suppress(EnvironmentFailed):  # the server removes silent sessions
                self.send(path, _NO_BODY, session)

    def _ping(self) -> None:
        while not self._closed.wait(PING_S):
            for session in list(self.sessions):
                with contextlib.suppress(EnvironmentFailed):  # the next call reports it
                    self.send("/ping", _NO_BODY, session)


class ORSEnvironment(ConversationEnvironment):
    """Plays tasks of a server of the Open Reward Standard; serve the subclasses that `ors_environment` makes.

    A step calls a tool of the task. If the environment has a terminal tool, a text is passed to it, and ends the
    episode. Reward and end are those of the tool's output, its metadata is `metadata`. A tool that fails is
    `CallToolObservation.error`; a server that fails is `EnvironmentFailed`. Neither has a reward.
    """

    server: ClassVar[ORSServer]
    env: ClassVar[str]
    splits: ClassVar[list[dict[str, str]]]
    counts: ClassVar[dict[str, int]]

    def __init__(self) -> None:
        super().__init__()
        self._session: str | None = None
        self._terminal: dict[str, Any] | None = None
        self._playing = False

    @classmethod
    def list_splits(cls) -> list[dict[str, str]]:
        """The splits of the environment."""
        return cls.splits

    @classmethod
    def num_tasks(cls, split: str) -> int:
        """Number of tasks. Raises `InvalidArgument` for a split that does not exist."""
        names = [each["name"] for each in cls.splits]
        if split not in names:
            raise InvalidArgument(f"no split {split!r:.40}: there are {', '.join(names)}")
        if split not in cls.counts:
            cls.counts[split] = int(cls.server.json(f"/{cls.env}/num_tasks", {"split": split})["num_tasks"])
        return cls.counts[split]

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        **kwargs: Any,
    ) -> TextObservation:
        """Begins a task: the one at an index of a split, or one that the seed chooses.

        Raises:
            InvalidArgument: There is no such task.
            EnvironmentFailed: The server cannot begin it.
        """
        chosen, number = self._task_index(split, index)
        self._end()
        self._state = State(episode_id=episode_id or uuid4().hex, step_count=0)
        self._session = self.server.open(self.env, chosen, number)
        blocks = self.server.json(f"/{self.env}/prompt", session=self._session)
        listed = self.server.json(f"/{self.env}/task_tools", session=self._session)
        empty = {"input_schema": {"type": "object", "properties": {}}}
        self.tools = [
            ModelTool.model_validate(tool if tool["input_schema"] else {**tool, **empty}) for tool in listed["tools"]
        ]
        self._terminal = listed.get("terminal_tool")
        self._playing = True
        return TextObservation(**_read(blocks))

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Calls a tool, or passes a text to the terminal tool.

        Raises:
            ResetRequired: No episode is running.
            InvalidAction: A text, and the environment has no terminal tool.
            EnvironmentFailed: The server failed.
        """
        if isinstance(action, ListToolsAction):
            return self._listing()
        if not self._playing:
            raise ResetRequired("no episode is running: call reset() to begin one")
        if isinstance(action, CallToolAction):
            name, values = action.tool_name, action.arguments
        elif self._terminal is not None:
            name, argument = self._terminal["name"], self._terminal["arg"]
            values = {} if argument is None else {argument: action.text}
        else:
            raise InvalidAction(f"call a tool: {', '.join(tool.name for tool in self.tools)}")
        events = self.server.events(f"/{self.env}/call", {"name": name, "input": values}, self._session)
        called: Any = json.loads(events["end"]) if "end" in events else {"ok": False, "error": events["error"]}
        self._state.step_count += 1
        if not called["ok"]:
            kind = _REASONS.get(called.get("reason") or "", ToolErrorType.EXECUTION_ERROR)
            if isinstance(action, TextReply):
                raise EnvironmentFailed(f"ORS: the terminal tool {name} failed: {called['error']}")
            return CallToolObservation(tool_name=name, error=ToolError(error_type=kind, message=called["error"]))
        output = called["output"]
        self._playing = not output["finished"]
        ended = {"done": output["finished"], "reward": output["reward"], "metadata": output["metadata"] or {}}
        if isinstance(action, TextReply):
            return TextObservation(**_read(output["blocks"]), **ended)
        content = [{key: value for key, value in block.items() if value is not None} for block in output["blocks"]]
        return CallToolObservation(tool_name=name, result=McpToolResult(content, None, None, None), **ended)

    def close(self) -> None:
        """Ends the session of the server."""
        self._end()

    def _end(self) -> None:
        session, self._session, self._playing = self._session, None, False
        if session is not None:
            self.server.close(session)


def ors_app(source: str, env: str | None = None) -> Any:
    """The app that serves an environment of the Open Reward Standard. Arguments and errors as `ors_environment`."""
    made = ors_environment(source, env)
    return conversation_app(made, made.env)


def ors_environment(source: str, env: str | None = None) -> type[ORSEnvironment]:
    """Makes a class that serves an environment of the Open Reward Standard.

    Args:
        source: The address of a server, or `module:Class` of an environment of its Python SDK, for which this process
            starts a server of the SDK.
        env: Name of an environment of the server; None for its first.

    Raises:
        UsageError: The server does not answer, or has no such environment.
        ImportFailed: The module cannot be imported.
    """
    server = ORSServer(source if source.startswith(("http://", "https://")) else _serve(source))
    try:
        names = list(server.json("/list_environments"))
        if env is not None and env.lower() not in names:
            raise UsageError(f"{source} has no environment {env!r}: it has {', '.join(names)}")
        chosen = env or names[0]
        splits = server.json(f"/{chosen}/splits")
    except EnvironmentFailed as error:
        raise UsageError(f"{error.message}; start the server of the environment, and give its address") from error
    facts = {
        "__module__": __name__,
        "__doc__": f"{chosen}: an environment of the Open Reward Standard.",
        "server": server,
        "env": chosen,
        "splits": splits,
        "counts": {},
    }
    return type("ORSEnvironment", (ORSEnvironment,), facts)


def _read(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """The fields of an observation of text."""
    images = [f"data:{block['mimeType']};base64,{block['data']}" for block in blocks if block["type"] == "image"]
    return {"text": "\n\n".join(block["text"] for block in blocks if block["type"] == "text"), "images": images}


def _serve(source: str) -> str:
    """Starts the SDK's server of an environment class in this process. Returns its address."""
    module, colon, name = source.partition(":")
    if not colon:
        raise UsageError(f"ors:{source}: give the address of a server (http://...), or module:Class")
    environment = attribute_of(import_user_module(module, f"ors:{source}"), name, f"ors:{source}")
    bases = [base for base in getattr(environment, "__mro__", ()) if base.__name__ == "Environment"]
    if not bases:
        raise UsageError(f"ors:{source}: {name} does not derive from Environment of the Open Reward Standard's SDK")
    sdk = import_module(bases[-1].__module__.rpartition(".")[0])
    try:
        app = sdk.Server([environment]).app
    except ValueError as error:
        raise UsageError(f"ors:{source}: {error}") from error
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    asyncio.run_coroutine_threadsafe(server.serve([listener]), _servers_loop())
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@lru_cache(maxsize=1)
def _servers_loop() -> asyncio.AbstractEventLoop:
    """The event loop of all servers of the SDK in this process: its streams work on one loop of a process only."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="openenv-ors-servers").start()
    return loop
