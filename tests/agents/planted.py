"""A planted fault, its tests, and a scripted model that fixes it through any agent's tool for commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.model_server import ModelReply

FIX = "sed -i 's/a - b/a + b/' calc.py"
TESTS = {"check.py": "import sys\nsys.path.insert(0, '/workspace')\nfrom calc import add\nassert add(2, 3) == 5\n"}


def planted(folder: Path) -> Path:
    """The folder of a task: `add` subtracts."""
    made = folder / "planted"
    made.mkdir(exist_ok=True)
    (made / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return made


def sum_fault(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> ModelReply:
    """Calls the tool for commands once, then says that it is done."""
    if any(message["role"] == "tool" for message in messages):
        return ModelReply("Done.")
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") or function.get("input_schema") or {}
        properties = schema.get("properties", {})
        for name in ("command", "cmd"):
            if name in properties:
                words = ["bash", "-c", FIX] if properties[name].get("type") == "array" else FIX
                arguments = dict.fromkeys(schema.get("required", ()), "Fixes the sum.")
                return ModelReply(calls=[(function["name"], json.dumps({**arguments, name: words}))])
    return ModelReply("There is no tool for commands.")
