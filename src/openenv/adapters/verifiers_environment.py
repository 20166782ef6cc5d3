"""Serve an environment of verifiers 0.4: `openenv serve verifiers:NAME`. Raises `MissingExtra` without verifiers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
from contextvars import ContextVar
from importlib import import_module
from typing import Any, ClassVar
from uuid import uuid4

from .._asyncio import run_async_safely, shielded
from ..errors import EnvironmentFailed, MissingExtra, UsageError
from ..mcp.library import SdkLibrary
from ..mcp.types import ToolFault
from .conversation import ModelLoopEnvironment, conversation_app

try:
    import verifiers.v1 as vf
    from aiohttp import ClientSession, web
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.harnesses.utils.mcp import mcp_content_to_chat_content
    from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config
except ModuleNotFoundError as missing:
    raise MissingExtra("verifiers", None) from missing

__all__ = [
    "SessionHarness",
    "VerifiersEnvironment",
    "verifiers_app",
    "verifiers_environment",
]

# verifiers finds a harness by the name of a module at the top level.
_PLUGIN = "openenv_session_harness"
sys.modules[_PLUGIN] = sys.modules[__name__]
_MOST_BYTES = 64 * 2**20
_Tools = dict[str, tuple[SdkLibrary, str]]
_tools: ContextVar[_Tools] = ContextVar("tools")  # of an episode, by the names that the model reads
_trace: ContextVar[vf.Trace] = ContextVar("trace")


class SessionHarness(vf.Harness[vf.HarnessConfig]):
    """A conversation with the taskset's tools, in this process. Each of its calls of the model is a step."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_MCP = SUPPORTS_RESUME = True
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: vf.TaskData
    ) -> vf.ProgramResult:
        """Speaks until the model answers without a tool call, or verifiers ends the rollout."""
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        parts = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
        messages += [_wire(part) for part in parts]
        _trace.set(trace)
        functions = [{"name": name, "description": tool.description or "", "parameters": tool.input_schema}
                     for name, tool in (await _listed(_tools.get())).items()]  # fmt: skip
        body: dict[str, Any] = {"model": ctx.model, "messages": messages}
        if functions:
            body["tools"] = [{"type": "function", "function": function} for function in functions]
        async with ClientSession(headers={"Authorization": f"Bearer {secret}"}) as http:
            while True:
                async with http.post(f"{endpoint}/chat/completions", json=body) as response:
                    if response.status != 200:
                        return vf.ProgramResult(exit_code=1, stdout="", stderr=await response.text())
                    message = (await response.json())["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    content = await _content(call["function"]["name"], json.loads(call["function"]["arguments"]))
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


class VerifiersEnvironment(ModelLoopEnvironment):
    """Plays tasks of verifiers; serve the subclasses that `verifiers_environment` makes.

    verifiers runs the episode: its environment, simulated users, limits and rewards; its tools run in this process. A
    step answers one call of its model: a text, or one tool call. The last step has the reward, with its parts in
    `metadata["rubric"]`. An episode that failed in verifiers raises `EnvironmentFailed`, without a reward.
    """

    config: ClassVar[vf.EnvConfig]
    tasks: ClassVar[list[vf.Task]]
    _shared: ClassVar[asyncio.Task[_Tools] | None] = None

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        """A task, with its name, without its data. Raises `IndexError`, or as `num_tasks`."""
        return {**super().get_task(split, index), "name": cls.tasks[index].data.name}

    async def _play(self, index: int) -> dict[str, Any]:
        """Runs an episode of verifiers; its model is the client of this session."""

        async def complete(request: web.Request) -> web.Response:
            message = await self._complete((await request.json())["messages"])
            reason = "tool_calls" if "tool_calls" in message else "stop"
            choice = {"index": 0, "message": message, "finish_reason": reason}
            about = {"id": uuid4().hex, "object": "chat.completion", "created": 0, "model": "policy"}
            return web.json_response({**about, "choices": [choice]})

        secret = secrets.token_urlsafe()  # other users of the machine reach the port too
        app = web.Application(client_max_size=_MOST_BYTES)
        app.router.add_post(f"/{secret}/v1/chat/completions", complete)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/{secret}/v1"
            context = vf.ModelContext(model="policy", client=vf.EvalClientConfig(base_url=url, api_key_var="-"))
            env, task = load_environment(self.config), self.tasks[index]
            # The tools run here: a process for each server and episode would take seconds to start.
            shared, own = env.taskset.toolsets(self.config.taskset), task.toolsets(task.config)
            env.taskset.toolsets, task = lambda config: [], task.with_data()
            task.toolsets = lambda config: []
            async with contextlib.AsyncExitStack() as stack, env.serving():
                ready = type(self)._shared = type(self)._shared or asyncio.create_task(_set_up(shared))
                for toolset in own:
                    await stack.enter_async_context(toolset._exit_stack)
                shared = await shielded(ready)
                _tools.set({**shared, **await _set_up(own, task.data)})
                return _end_of(await env.run_episode(task, context))
        finally:
            await runner.cleanup()


def _end_of(episode: Any) -> dict[str, Any]:
    """The last observation of an episode. Raises `EnvironmentFailed` if it failed."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok:
        why = "; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode is not ok"
        raise EnvironmentFailed(f"verifiers: {why}")
    (trace,) = episode.traces
    parts = {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
    ended = trace.is_truncated or trace.is_timeout
    facts = {"rubric": parts, "stop_condition": trace.stop_condition, "truncated": ended}
    return {"text": "", "done": True, "reward": float(trace.reward), "metadata": facts}


def verifiers_app(name: str, **arguments: Any) -> Any:
    """The app that serves an environment of verifiers. Arguments and errors are those of `verifiers_environment`."""
    return conversation_app(verifiers_environment(name, **arguments), name)


def verifiers_environment(name: str, limit: int | None = None, **arguments: Any) -> type[VerifiersEnvironment]:
    """Makes a class that serves an environment of verifiers.

    Args:
        name: Name of the taskset's package.
        limit: Most tasks; None for all.
        arguments: Fields of the taskset's configuration. `split`, if it has one, names the split of the tasks.

    Raises:
        UsageError: verifiers cannot load it, it has no end and `limit` is None, or several agents play it.
    """
    try:
        roles = agent_config_fields(env_config_type(name)())
        agent = {"harness": {"id": _PLUGIN}, "runtime": {"type": "subprocess"}}
        config = resolve_env_config({"taskset": {"id": name, **arguments}, **dict.fromkeys(roles, agent)})
        taskset = load_environment(config).taskset
        if not taskset.bounded and limit is None:
            raise UsageError(f"the tasks of {name!r} have no end: write verifiers:{name}?limit=1000")
        if len(roles) != 1:
            raise UsageError(
                f"{name!r} is played by {', '.join(roles)}: only one agent can be the client of a session"
            )
        tasks = [*(taskset if limit is None else taskset.take(limit))]
        toolsets = [*taskset.toolsets(config.taskset), *taskset.task_type().toolsets(config.taskset.task)]
        for toolset in toolsets:
            if toolset.config.url or toolset.config.runtime.type != "subprocess":
                raise UsageError(
                    f"the tools {toolset.server_name!r} of {name!r} run elsewhere, not in a process here"
                )
        tools = [*run_async_safely(_listed(_tools_of(toolsets))).values()]
    except UsageError:
        raise
    except Exception as error:  # the edge to foreign code
        raise UsageError(f"verifiers cannot load {name!r}: {type(error).__name__}: {error}") from error
    facts = {
        "__module__": __name__,
        "__doc__": f"{name}: an environment of verifiers.",
        "config": config,
        "tasks": tasks,
        "tools": tools,
        "split": str(arguments.get("split", "train")),
    }
    return type("VerifiersEnvironment", (VerifiersEnvironment,), facts)


async def _set_up(toolsets: list[vf.Toolset], data: vf.TaskData | None = None) -> _Tools:
    """The tools of toolsets that are ready for a task."""
    for toolset in toolsets:
        await toolset.setup()
        if data is not None:
            await toolset.setup_task(data)
    return _tools_of(toolsets)


def _tools_of(toolsets: list[vf.Toolset]) -> _Tools:
    found = {}
    for toolset in toolsets:
        # The state is that of the episode itself, which tools change in place.
        toolset._pull_state, toolset._push_state = _state, _keep
        server = import_module("mcp.server.mcpserver").MCPServer("tools")
        toolset.register(server)
        library = SdkLibrary(server)
        prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        found.update({prefix + name: (library, name) for name in library.functions()})
    return found


async def _state() -> Any:
    return _trace.get().state


async def _keep(before: bytes) -> None:
    pass


async def _listed(tools: _Tools) -> dict[str, Any]:
    """What the model reads of tools: their names begin with the server's."""
    found = {}
    for name, (library, own) in tools.items():
        (tool,) = [each for each in await library.server.list_tools() if each.name == own]
        found[name] = tool.model_copy(update={"name": name})
    return found


async def _content(name: str, arguments: dict[str, Any]) -> Any:
    """What the model reads of a tool call."""
    if name not in _tools.get():
        return f"Unknown tool: {name}"
    library, own = _tools.get()[name]
    try:
        return mcp_content_to_chat_content((await library.call(own, arguments)).content)
    except ToolFault as fault:
        return str(fault)


def _wire(message: Any) -> dict[str, Any]:
    return message if isinstance(message, dict) else message.model_dump(mode="json", exclude_none=True)
