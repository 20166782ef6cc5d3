"""A small agent program, and its adapter: each line of its input is a message, each line of its output an event."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from openenv.core.harness import (
    AgenticHarnessAdapter,
    HarnessConfig,
    HarnessEvent,
    HarnessEventType,
    HarnessNotRunningError,
    HarnessProcess,
)
from openenv.mcp.types import Tool

PROGRAM = """
import json, sys, urllib.request
def say(kind, **data):
    print(json.dumps({"type": kind, "data": data}), flush=True)
print("ready", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "hang":
        say("text_output", text="thinking")
        continue
    if word == "crash":
        say("text_output", text="about to fail")
        sys.exit("secret trouble")
    if word == "quiet":
        say("error", message="no end", recoverable=True)
        print("end", flush=True)
        continue
    say("text_output", text=word)
    say("turn_complete", response=word.upper(), done=word == "bye")
"""


class LineAgent(AgenticHarnessAdapter):
    """Runs the program above, or another one that is ready when it says so."""

    BUILTIN_TOOL_NAMES = frozenset({"bash"})

    def __init__(self, program: str = PROGRAM, **config: Any):
        command = [sys.executable, "-c", program]
        super().__init__(HarnessConfig(name="lines", command=command, working_directory="/tmp", **config))
        self.tools: list[Tool] = []
        self.bridge_url: str | None = None
        self.process = HarnessProcess(command, "/tmp", startup_timeout_s=self.config.startup_timeout_s)

    async def start(self, working_directory: str) -> None:
        await self.process.start(lambda line: line == "ready")

    async def stop(self) -> None:
        await self.process.stop()

    async def inject_tools(self, tools: list[Tool], bridge_url: str | None = None) -> None:
        self.tools, self.bridge_url = tools, bridge_url

    async def is_alive(self) -> bool:
        return self.process.is_running()

    async def send_message_streaming(self, message: str) -> AsyncIterator[HarnessEvent]:
        await self.process.write_line(message)
        while (line := await self.process.read_line()) not in (None, "end"):
            event = HarnessEvent.model_validate(json.loads(str(line)))
            yield event
            if event.type is HarnessEventType.TURN_COMPLETE:
                return
        if line is None:
            raise HarnessNotRunningError(f"the program ended: {self.process.drain_stderr()}")
