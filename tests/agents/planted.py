"""A planted fault, its tests, a scripted model that fixes it through the tool of any agent, and a small agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openenv.agents import AgentProgram
from tests.model_server import ModelReply

# What mini-swe-agent wants to be printed at the end.
SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
FIX = "sed -i 's/a - b/a + b/' calc.py"
TESTS = {"check.py": "import sys\nsys.path.insert(0, '/workspace')\nfrom calc import add\nassert add(2, 3) == 5\n"}

# An agent in a few lines: it asks the model for a command and runs it, until there is none.
AGENT = r"""
import json, os, subprocess, sys, urllib.request
messages = [{"role": "user", "content": os.environ["INSTRUCTION"]}]
parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tools = [{"type": "function", "function": {"name": "bash", "parameters": parameters}}]
while True:
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": tools}).encode()
    headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    message = json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        break
    for call in message["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
"""
VARIABLES = {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "{key}", "MODEL": "{model}"}
PROGRAM = AgentProgram('python3 "$HOME/agent.py"', VARIABLES, {"agent.py": AGENT})


def planted(folder: Path) -> Path:
    """The folder of a task: `add` subtracts."""
    made = folder / "planted"
    made.mkdir(exist_ok=True)
    (made / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return made


def sum_fault(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Calls the tool for commands once, then says that it is done."""
    command = FIX
    if any(message["role"] == "tool" for message in messages):
        if SUBMIT not in json.dumps(messages):
            return ModelReply("Done.")
        command = f"echo {SUBMIT}"
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") or function.get("input_schema") or {}
        properties = schema.get("properties", {})
        for name in ("command", "cmd"):
            if name in properties:
                words = ["bash", "-c", command] if properties[name].get("type") == "array" else command
                arguments = dict.fromkeys(schema.get("required", ()), "Fixes the sum.")
                return ModelReply(calls=[(function["name"], json.dumps({**arguments, name: words}))])
    return ModelReply("There is no tool for commands.")
