"""A model that calls random tools: a baseline, and a way to try an environment without an endpoint."""

from __future__ import annotations

import json
from random import Random

from ..errors import ModelFailed
from ..testing.schemas import NoValue, SchemaValues
from .model import Completion, ModelRequest


class RandomModel:
    """Calls a random one of the tools, with random arguments that its schema allows.

    The same key of a request repeats the same answer.

    Attributes:
        name: `random`.
    """

    name = "random"
    takes_ids = False

    async def complete(self, request: ModelRequest) -> Completion:
        """Chooses a tool call.

        Raises:
            ModelFailed: There are no tools: the environment takes its actions from text.
        """
        if not request.tools:
            raise ModelFailed("the model `random` calls tools, but this environment takes actions from text")
        random = Random(request.key)  # noqa: S311 - no secrets
        function = random.choice(request.tools)["function"]
        try:
            arguments = SchemaValues(function.get("parameters") or {"type": "object"}, random.getrandbits(32)).value()
        except NoValue as reason:
            raise ModelFailed(f"random cannot make up arguments of {function['name']}: {reason}") from None
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        calls = [{"id": f"call-{random.getrandbits(32):08x}", "type": "function", "function": call}]
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        return Completion(message=message, finish_reason="tool_calls", model=self.name)

    async def aclose(self) -> None:
        """Does nothing: there are no connections."""
