"""`ChatView`: an environment as a conversation, and a model's answers as actions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

import msgspec

from ..chat import Chat, JsonAnswer, in_tag
from ..errors import InvalidAction, UsageError
from ..images import RenderedImage
from .content import ModelContent, content_of, refusal_of
from .function_tools import (
    FunctionTool,
    action_function_tools,
    constants_of,
    inlined,
    mcp_function_tools,
    tool_name,
    unique,
    uses_tools,
    variants_of,
)
from .records import ChatMessage
from .server_facts import server_facts

__all__ = ["ChatCall", "ChatView"]

# A deeper action meets the recursion limit where it is sent.
_DEEPEST = 100
# Most characters of a reason that a model reads.
_LONGEST_REASON = 2000
_BEGIN = "Begin."
_OVER = "The episode is over."
_NOTHING = "(empty)"
_NO_VIEW = (
    "the environment declares no `chat`, and its action schema names no fields that a model could fill: "
    "declare `chat = Chat(answer=JsonAnswer(), system=...)` on the environment, or give `chat=`"
)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One action in a model's answer, or a mistake in place of one.

    Attributes:
        action: The action, as JSON; None for a mistake.
        call_id: Id of the tool call; None for an action in text.
        tool: Name of the tool as the model called it.
        error: The mistake, for the model; None for an action.
    """

    action: dict[str, Any] | None
    call_id: str | None = None
    tool: str | None = None
    error: str | None = None


class ChatView:
    """The conversation of a model with an environment. It has no state, so many episodes can share it.

        view = await ChatView.from_server(client)
        messages = view.begin((await client.reset()).observation)
        while not result.done:
            completion = await model.complete(ModelRequest(messages=messages, tools=view.tools))
            messages.append(completion.message)
            for call in view.actions(completion.message):
                ...  # an error: append view.invalid(call); else step, and append view.result(call, observation, done)

    Attributes:
        chat: What the author declared.
        system: The system prompt; empty for none.
        tools: Function tools in OpenAI's form; empty if actions are in the text.
        environment, contract: Name of the environment and hash of its contract; empty and None if unknown.
        fields: The fields of an action that a text chooses; empty if the model calls tools.
    """

    environment: str = ""
    contract: str | None = None

    def __init__(self, chat: Chat, system: str, tools: Mapping[str, FunctionTool], variants: list[dict[str, Any]]):
        self.chat = chat
        self.system = system
        self.tools = [tool.spec for tool in tools.values()]
        self._functions = dict(tools)
        self._schemas = {name: part for each in variants for name, part in each["properties"].items()}
        self._constants = constants_of(variants[0]) if len(variants) == 1 else {}
        self.fields = [name for name in self._schemas if name not in self._constants and name != "metadata"]

    @classmethod
    def of(
        cls,
        chat: Chat | None,
        action_schema: Mapping[str, Any],
        tools: Iterable[Mapping[str, Any]] = (),
        description: str = "",
    ) -> Self:
        """The view for what a server publishes.

        Args:
            chat: What the author declared; None makes function tools of the actions.
            action_schema: JSON Schema of an action.
            tools: Tools of an MCP environment, each with `name`, `description` and `input_schema`. If `chat` reads
                actions from the text, the model may call these tools or answer with a text.
            description: The environment's description, for a chat without a system prompt.

        Raises:
            UsageError: The model must call tools, and neither the tools nor the action schema give any.
        """
        declared = chat or Chat()
        functions = mcp_function_tools(tools)
        variants: list[dict[str, Any]] = []
        if declared.answer == "tools":
            functions += action_function_tools(action_schema)
            if not functions:
                raise UsageError(_NO_VIEW)
        else:
            objects = [each for each in variants_of(action_schema) if not uses_tools(each)]
            variants = [inlined(each, action_schema) for each in objects]
        view = cls(declared, description if declared.system is None else declared.system, unique(functions), variants)
        if declared.system is None and declared.answer != "tools":
            view.system = f"{description}\n\nEnd each answer with {view._form}.".strip()
        return view

    @classmethod
    async def from_server(cls, client: Any, chat: Chat | None = None) -> Self:
        """The view of a client's environment, by HTTP or in process. Needs no session of the client.

        Args:
            client: An `EnvClient` or `VectorEnvClient`, or its synchronous form. Servers of the released package have
                no chat and no descriptions of it, so defaults hold.
            chat: In place of what the author declared.

        Raises:
            UsageError: As for `of`.
            ProtocolViolation: The server describes itself in an unknown form.
            ConnectionLost, CapacityError, Unauthorized: The server could not be asked.
        """
        facts = await server_facts(client)
        view = cls.of(chat or facts.chat, facts.action_schema, facts.tools, facts.description)
        view.environment, view.contract = facts.name, facts.contract
        return view

    @property
    def max_invalid(self) -> int | None:
        """Number of invalid actions that ends an episode; None for no limit."""
        return self.chat.max_invalid

    def begin(self, observation: Any) -> list[ChatMessage]:
        """The first messages: the system prompt, if any, and the first observation.

        Raises:
            StepFailed: The observation does not fit `chat`.
        """
        user = {"role": "user", "content": _written(content_of(observation, self.chat), _BEGIN)}
        return [{"role": "system", "content": self.system}, user] if self.system else [user]

    def actions(self, message: ChatMessage) -> list[ChatCall]:
        """The actions in a model's message, at least one; mistakes are calls with an `error`. Never raises.

        It also repairs the message in place, so that endpoints accept it in the next request: each tool call has an
        id of its own, a valid name, and a JSON object as arguments. Invalid arguments become
        `{"invalid": "the text"}`.

        Args:
            message: The assistant message in the form of OpenAI's chat completions.
        """
        given = message.get("tool_calls")
        entries = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        if not entries:
            message.pop("tool_calls", None)
            if not message.get("content"):
                message["content"] = ""
            return [self._in_text(message["content"])]
        calls, ids = [], set[str]()
        for number, entry in enumerate(entries):
            call_id = entry.get("id")
            if not isinstance(call_id, str) or not call_id or call_id in ids:
                call_id = next(made for each in count(number) if (made := f"call_{each}") not in ids)
            ids.add(call_id)
            calls.append(self._of_entry(entry, call_id))
        message["tool_calls"] = entries
        return calls

    def result(self, call: ChatCall, observation: Any, done: bool) -> ChatMessage:
        """The message with the observation of a call's step: of role `tool` for a tool call, else `user`.

        Raises:
            StepFailed: The observation does not fit `chat`.
            ConnectionLost: The environment could not reach its tool.
        """
        refusal = refusal_of(observation)
        content = content_of(observation, self.chat) if refusal is None else ModelContent(f"Error: {refusal}", [])
        return _reply(call, _written(content, _OVER if done else _NOTHING))

    def invalid(self, call: ChatCall, error: object = None) -> ChatMessage:
        """The message that answers a mistake.

        Args:
            call: The call.
            error: The reason: the `InvalidAction` with which the server refused the action, or a text. None for the
                call's own.
        """
        reason = str(call.error if error is None else error)
        return _reply(call, self.chat.invalid.format(error=reason[:_LONGEST_REASON]))

    @property
    def _form(self) -> str:
        assert self.chat.answer != "tools"
        fields = ", ".join(self.fields)
        return f"{self.chat.answer.form} with {fields}" if fields and len(self.fields) > 1 else self.chat.answer.form

    def _of_entry(self, entry: dict[str, Any], call_id: str) -> ChatCall:
        """The call of an entry of `tool_calls`, which is repaired."""
        function = entry.get("function")
        function = dict(function) if isinstance(function, dict) else {}
        name, given = function.get("name"), function.get("arguments")
        error = None
        try:
            arguments = _arguments(given)
        except InvalidAction as mistake:
            error, arguments = mistake.message, {"invalid": str(given)}
            function["arguments"] = json.dumps(arguments)
        if not isinstance(given, str) or not given.strip():
            function["arguments"] = json.dumps(arguments)
        name = name if isinstance(name, str) else ""
        function["name"] = tool_name(name)
        entry |= {"id": call_id, "type": "function", "function": function}
        tool = self._functions.get(name)
        if tool is None:
            there = f"there are {', '.join(self._functions)}" if self._functions else f"answer with {self._form}"
            error = f"there is no tool {name!r:.100}: {there}"
        if tool is None or error is not None:
            return ChatCall(None, call_id, name, error)
        return _encodable(ChatCall(tool.action(arguments), call_id, name))

    def _in_text(self, content: Any) -> ChatCall:
        if self.chat.answer == "tools":
            return ChatCall(None, error=f"call one of the tools: {', '.join(self._functions)}")
        # Reasoning that the endpoint left in the text ends here; actions in it are drafts.
        if isinstance(content, list):  # parts
            content = "\n".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        text = (content if isinstance(content, str) else "").rpartition("</think>")[2]
        try:
            read = self.chat.answer.read(text)
            fields = read if isinstance(read, dict) else self._fields_in(read)
            if not isinstance(self.chat.answer, JsonAnswer):
                fields = {name: self._typed(name, value) for name, value in fields.items()}
        except InvalidAction as mistake:
            return ChatCall(None, error=mistake.message)
        return _encodable(ChatCall({**fields, **self._constants}))

    def _fields_in(self, text: str) -> dict[str, Any]:
        """The fields of an action in the text of a tag."""
        if len(self.fields) == 1:
            return {self.fields[0]: text}
        found = {name: in_tag(name, text) for name in self.fields}
        fields = {name: value for name, value in found.items() if value is not None}
        return fields or JsonAnswer().read(text)

    def _typed(self, name: str, value: Any) -> Any:
        """A text as the type of the field; values that are no text already have theirs."""
        types = _types_of(self._schemas.get(name, {}))
        if not isinstance(value, str) or not types or "string" in types:
            return value
        try:
            return _json(value)
        except ValueError:
            raise InvalidAction(f"{name} must be {' or '.join(types)}, not {value!r:.100}") from None


def _arguments(given: Any) -> dict[str, Any]:
    """The arguments of a call. Some endpoints send an object in place of its text, and nothing for no arguments."""
    if isinstance(given, str):
        try:
            given = _json(given) if given.strip() else {}
        except ValueError as error:
            raise InvalidAction(f"the arguments are not valid JSON: {error}") from None
    given = {} if given is None else given
    if not isinstance(given, dict):
        raise InvalidAction(f"the arguments must be a JSON object, not {given!r:.100}")
    return given


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _encodable(call: ChatCall) -> ChatCall:
    """The call, if a client can send its action: no number is too large, no text is broken, and it is not deep."""
    try:
        msgspec.msgpack.encode(call.action)
        if _is_deeper(call.action, _DEEPEST):
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        return ChatCall(None, call.call_id, call.tool, f"the action cannot be sent: {error}")
    return call


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def _types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types of JSON that a schema names; empty if any."""
    if "anyOf" in schema:
        return [each for part in schema["anyOf"] for each in _types_of(part) or ["string"]]
    if "enum" in schema and "type" not in schema:
        return ["string" if isinstance(value, str) else "a value" for value in schema["enum"]]
    found = schema.get("type", [])
    return [found] if isinstance(found, str) else list(found)


def _written(content: ModelContent, otherwise: str) -> str | list[dict[str, Any]]:
    """Content as a text, or as parts if it has images. `otherwise` stands for no content."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": RenderedImage.of(image).data_url()}} for image in content.images
    ]
    if not parts:
        return content.text or otherwise
    return [*parts, {"type": "text", "text": content.text}] if content.text else parts


def _reply(call: ChatCall, content: str | list[dict[str, Any]]) -> ChatMessage:
    if call.call_id is None:
        return {"role": "user", "content": content}
    return {"role": "tool", "tool_call_id": call.call_id, "content": content}
