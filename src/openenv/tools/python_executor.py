"""Python code in the interpreter of smolagents, for environments whose actions are code."""

from __future__ import annotations

import importlib
import json
import traceback
from typing import Any

from ..errors import MissingExtra
from ..types import CodeExecResult

__all__ = ["PyExecutor"]


class PyExecutor:
    """Runs code in one `smolagents.LocalPythonExecutor`; variables stay from one run to the next.

    The interpreter refuses imports that are not allowed, but it runs in this process and is no sandbox: for code that
    is not trusted, give sessions a process and a sandbox of their own (`execution = "process"`).

    Code may call `format_exc()` and `safe_json_dumps(value)`.

    Args:
        additional_imports: Modules that code may import besides those that smolagents allows.

    Raises:
        MissingExtra: smolagents is not installed.
    """

    def __init__(self, additional_imports: list[str] | None = None):
        try:
            smolagents = importlib.import_module("smolagents")
        except ModuleNotFoundError:
            raise MissingExtra("smolagents", None) from None
        self._executor = smolagents.LocalPythonExecutor(additional_authorized_imports=list(additional_imports or ()))
        self._executor.send_tools({"format_exc": traceback.format_exc, "safe_json_dumps": _dumped})

    def run(self, code: str) -> CodeExecResult:
        """Runs code to its end.

        Returns:
            `stdout` is what the code printed, then the value of its last expression as JSON, or as `repr` where JSON
            cannot say it. Code that raises is no error here: `exit_code` is then 1, and `stderr` is the traceback.
        """
        try:
            outcome = self._executor(code)
        except Exception:  # noqa: BLE001 - the code may raise anything
            return CodeExecResult(stdout="", stderr=traceback.format_exc(), exit_code=1)
        said = [] if not outcome.logs else [str(outcome.logs)]
        if outcome.output is not None:
            said.append(_as_json(outcome.output))
        return CodeExecResult(stdout="\n".join(said), stderr="", exit_code=0)


def _as_json(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, default=repr)
