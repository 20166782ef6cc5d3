"""Environments of other libraries that a language model plays by texts and tool calls: what their adapters share."""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Literal
from uuid import uuid4

from pydantic import BaseModel, Field

from ..chat import Chat, RegexAnswer
from ..errors import EnvironmentFailed, InvalidArgument, ResetRequired, UsageError
from ..mcp.environment import MCPEnvironment
from ..mcp.types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    McpToolResult,
    Tool,
)
from ..server.app import create_app
from ..types import Action, Observation, State

__all__ = [
    "ConversationEnvironment",
    "ModelLoopEnvironment",
    "ModelTool",
    "TextObservation",
    "TextReply",
    "conversation_app",
]


class TextReply(Action):
    """An answer in text."""

    type: Literal["reply"] = "reply"
    text: str


class TextObservation(Observation):
    """What the model reads next.

    Attributes:
        text: The new messages of the conversation.
        images: Images among them, as `data:` URLs.
    """

    text: str = ""
    images: list[str] = Field(default_factory=list)


class ModelTool(BaseModel):
    """A tool that the model may call.

    Attributes:
        name, description: As the model reads them.
        input_schema: JSON Schema of its arguments.
    """

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(serialization_alias="inputSchema")  # its name in MCP


class ConversationEnvironment(MCPEnvironment):
    """An environment with numbered tasks; its actions are texts and tool calls.

    Attributes:
        tools: Its tools: `ModelTool`, or tools of an MCP SDK.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    tool_timeout_s = None
    chat = Chat(answer=RegexAnswer(pattern=r"(?s)\A(?P<text>.*)\Z"), system="")

    tools: Sequence[Any] = ()

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(list_tools=self._list_tools, call_tool=self._call_tool, tool=None.__class__))
        self._state = State()

    @classmethod
    @abstractmethod
    def list_splits(cls) -> list[dict[str, str]]:
        """The splits, each with `name` and `type`."""

    @classmethod
    @abstractmethod
    def num_tasks(cls, split: str) -> int:
        """Number of tasks. Raises `InvalidArgument` for a split that does not exist."""

    @classmethod
    def get_task(cls, split: str, index: int) -> dict[str, Any]:
        """A task, without its data, which may have the solution. Raises `IndexError`, or as `num_tasks`."""
        if not 0 <= index < cls.num_tasks(split):
            raise IndexError(index)
        return {"id": f"{split}/{index}", "split": split, "index": index}

    @property
    def state(self) -> State:
        return self._state

    def _task_index(self, split: str | None, index: int | None) -> tuple[str, int]:
        """The split and index of a reset: the given ones, the first split, an index from the seed."""
        split = self.list_splits()[0]["name"] if split is None else split
        count = self.num_tasks(split)
        number = self.rng.randrange(count) if index is None else index
        if not 0 <= number < count:
            raise InvalidArgument(f"index={index}: there are {count} tasks in {split}, from 0 to {count - 1}")
        return split, number

    def _listing(self) -> ListToolsObservation:
        return ListToolsObservation(
            tools=[
                Tool(name=each.name, description=each.description or "", input_schema=each.input_schema)
                for each in self.tools
            ]
        )

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise UsageError("episodes run on an event loop: use reset_async and step_async, or a client")

    async def _list_tools(self) -> Sequence[Any]:
        return self.tools

    async def _call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        return (await self.step_async(CallToolAction(tool_name=name, arguments=arguments))).result


class ModelLoopEnvironment(ConversationEnvironment):
    """An environment of a library that runs the whole episode and calls a model: each such call is a step.

    A subclass implements `_play`, which runs an episode and asks for the model's messages by `_complete`.

    Attributes:
        tasks: Its tasks.
        split: The name of their only split.
    """

    tasks: ClassVar[Sequence[Any]] = ()
    split: ClassVar[str] = "test"

    def __init__(self) -> None:
        super().__init__()
        self._playing: asyncio.Task[None] | None = None
        self._news: asyncio.Queue[Any] = asyncio.Queue()
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._read: list[dict[str, Any]] = []

    @classmethod
    def list_splits(cls) -> list[dict[str, str]]:
        """The only split."""
        return [{"name": cls.split, "type": "train" if cls.split == "train" else "test"}]

    @classmethod
    def num_tasks(cls, split: str) -> int:
        """Number of tasks. Raises `InvalidArgument` for another split."""
        if split != cls.split:
            raise InvalidArgument(f"no split {split!r:.40}: there is {cls.split}")
        return len(cls.tasks)

    @abstractmethod
    async def _play(self, index: int) -> dict[str, Any]:
        """Plays a task. Returns the fields of the last observation; what it raises fails the episode."""

    def reset(self, seed: int | None = None, **kwargs: Any) -> TextObservation:
        """Raises `UsageError`: episodes run on an event loop, with `reset_async` and `step_async`."""
        raise UsageError("episodes run on an event loop: use reset_async and step_async, or a client")

    async def reset_async(
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
            EnvironmentFailed: The library cannot begin it.
        """
        _, number = self._task_index(split, index)
        self.close()
        if self._playing is not None:
            await asyncio.wait([self._playing])
        self._state = State(episode_id=episode_id or uuid4().hex, step_count=0)
        self._news, self._answer, self._read = asyncio.Queue(), None, []
        self._playing = asyncio.create_task(self._run(number, self._news))
        return TextObservation.model_validate(await self._next())

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Answers the library's call of its model. Returns what the model reads next.

        Raises:
            ResetRequired: There is no episode.
            EnvironmentFailed: The episode failed in the library.
        """
        if isinstance(action, ListToolsAction):
            return self._listing()
        message: dict[str, Any] = {"role": "assistant", "content": getattr(action, "text", None)}
        if isinstance(action, CallToolAction):
            function = {"name": action.tool_name, "arguments": json.dumps(action.arguments)}
            message["tool_calls"] = [{"id": f"call_{len(self._read)}", "type": "function", "function": function}]
        if self._answer is None:
            raise ResetRequired("no episode is played: call reset")
        answer, self._answer = self._answer, None
        if not answer.done():  # the library has given up the call, as at a time limit
            answer.set_result(message)
        self._state.step_count += 1
        read = await self._next()
        if not isinstance(action, CallToolAction):
            return TextObservation.model_validate(read)
        blocks: list[dict[str, Any]] = [{"type": "text", "text": read.pop("text")}]
        for head, _, data in (url.partition(",") for url in read.pop("images", ())):
            blocks.append({"type": "image", "data": data, "mimeType": head.removeprefix("data:").partition(";")[0]})
        result = McpToolResult(blocks, None, None, None)
        return CallToolObservation(tool_name=action.tool_name, result=result, **read)

    def close(self) -> None:
        """Ends the episode."""
        if self._playing is not None:
            self._playing.get_loop().call_soon_threadsafe(self._playing.cancel)

    async def _complete(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """The message of the model, which is the client of this session.

        Args:
            messages: The conversation, in the form of OpenAI's chat completions.
        """
        self._answer = asyncio.get_running_loop().create_future()
        self._news.put_nowait(messages)
        return await self._answer

    async def _run(self, index: int, news: asyncio.Queue[Any]) -> None:
        try:
            news.put_nowait(await self._play(index))
        except Exception as error:  # noqa: BLE001 - the edge to foreign code
            news.put_nowait(error)

    async def _next(self) -> dict[str, Any]:
        """The next observation: the messages since the last answer, or the end."""
        news = await self._news.get()
        if isinstance(news, EnvironmentFailed):
            raise news
        if isinstance(news, Exception):
            raise EnvironmentFailed(f"{type(news).__name__}: {news}") from news
        if isinstance(news, dict):
            return news
        known = len(self._read)
        # After the known messages stands the answer; a library may also begin another conversation.
        new = news[known + bool(known) :] if news[:known] == self._read else news
        self._read = news
        contents = [message.get("content") or "" for message in new]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        images = [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
        return {"text": "\n\n".join(map(_text_of, contents)), "images": images}


def conversation_app(cls: type[ConversationEnvironment], name: str) -> Any:
    """The app that serves such an environment."""
    return create_app(
        cls,
        action=TextReply | CallToolAction | ListToolsAction,
        observation=TextObservation | CallToolObservation | ListToolsObservation,
        name=name,
    )


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        texts = (part.get("text") or f"({part.get('type')})" for part in content if part.get("type") != "image_url")
        content = "\n".join(map(str, texts))
    return str(content)
