"""Runs what an agent wrote: each time in a new sandbox, with a snapshot of its files."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from openenv.agents import CommandResult, ProcessSandbox, SandboxLimits
from openenv.errors import ProviderFailed, StepFailed

__all__ = ["answers", "run"]

# The program of this Python, for which its folder is mounted if it is not in /usr.
PYTHON = os.path.realpath(sys.executable)
MOUNTS = [] if PYTHON.startswith("/usr/") else [os.path.realpath(sys.base_prefix)]
VARIABLES = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PATH": f"{Path(PYTHON).parent}:/usr/bin:/bin"}
LIMITS = SandboxLimits(memory_mb=512, processes=32, file_mb=16, output_bytes=16 * 1024)
# Calls the functions, and prints an answer in each line. It keeps its output from what the functions print.
CALLS = """
import importlib, json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
sys.path.insert(0, "")
for number, (module, function, argument) in enumerate(json.loads(sys.argv[1])):
    try:
        answer = getattr(importlib.import_module(module), function)(argument)
        line = json.dumps([number, answer])
    except Exception:
        continue
    print(line, file=out, flush=True)
"""


async def run(files: Mapping[str, str], command: str | Sequence[str], seconds: float) -> CommandResult:
    """Runs a command in a new sandbox, with a copy of the files, without a network. What it changes is dropped.

    Args:
        files: The text of each file, by relative path.
        command: A text for the shell, or a program and its arguments.
        seconds: Time limit.

    Raises:
        StepFailed: The sandbox failed, or cannot be started here; the message says what to do.
    """
    with tempfile.TemporaryDirectory(prefix="repo-repair-") as folder:
        await asyncio.to_thread(_write, files, Path(folder))
        try:
            async with ProcessSandbox(folder, mounts=MOUNTS, variables=VARIABLES, limits=LIMITS) as sandbox:
                return await sandbox.run(command, timeout_s=seconds)
        except ProviderFailed as error:
            raise StepFailed(f"repo_repair: the sandbox failed: {error.message}") from error


def _write(files: Mapping[str, str], folder: Path) -> None:
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


async def answers(files: Mapping[str, str], calls: Sequence[tuple[str, str, Any]], seconds: float) -> dict[int, Any]:
    """The answers of functions, by the number of their call; without those that raised, or came too late.

    The right answers are not in the sandbox, and the code in it can forge nothing but answers.

    Raises:
        StepFailed: As for `run`.
    """
    done = await run(files, [PYTHON, "-c", CALLS, json.dumps(calls)], seconds)
    found: dict[int, Any] = {}
    for line in done.stdout.splitlines():
        try:
            number, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if type(number) is int:
            found.setdefault(number, answer)
    return found
