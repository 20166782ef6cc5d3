"""Evaluations by Inspect AI."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingExtra, ProviderFailed, UsageError
from .harness import EvalHarness

__all__ = ["InspectAIHarness"]


class InspectAIHarness(EvalHarness):
    """Runs a task of Inspect AI (`pip install inspect-ai`), and returns its metrics.

    Args:
        log_dir: Where Inspect AI writes its logs; None: where it does by itself.
    """

    def __init__(self, *, log_dir: str | None = None):
        self.log_dir = log_dir

    def run(
        self, harness_version: str, library_versions: dict[str, str], dataset: str, eval_parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Runs one evaluation.

        Args:
            harness_version: Kept with the result, and not used.
            library_versions: The same.
            dataset: The task: `package/task`, a file, or what else `inspect_ai.eval` takes.
            eval_parameters: `model` is required; `task` stands in for the dataset, and all else is given on to
                `inspect_ai.eval`.

        Returns:
            The value of each metric by its name; by `scorer/name` where several scorers have one of that name.

        Raises:
            MissingExtra: Inspect AI is not installed.
            UsageError: No model is named.
            ProviderFailed: The evaluation did not succeed.
        """
        inspect_ai = _inspect_ai()
        options = dict(eval_parameters)
        task = options.pop("task", None) or dataset
        if not options.get("model"):
            raise UsageError("eval_parameters name no model: give eval_parameters={'model': 'provider/name', ...}")
        if self.log_dir is not None:
            options.setdefault("log_dir", self.log_dir)
        logs = inspect_ai.eval(task, **options)
        if not logs:
            raise ProviderFailed(f"Inspect AI ran nothing for {task!r}: check the name of the task")
        (log, *_) = logs
        if log.status != "success":
            raise ProviderFailed(f"the evaluation of {task!r} ended with status {log.status}: {_reason(log)}")
        return _scores(log)


def _inspect_ai() -> Any:
    try:
        return importlib.import_module("inspect_ai")
    except ImportError:
        raise MissingExtra("inspect-ai", None) from None


def _reason(log: Any) -> str:
    return str(getattr(getattr(log, "error", None), "message", "") or "see its log")


def _scores(log: Any) -> dict[str, Any]:
    """The metrics of a log; names that several scorers share get the scorer's before them."""
    metrics = [
        (score.name, name, metric.value)
        for score in (log.results.scores if log.results else ())
        for name, metric in score.metrics.items()
    ]
    names = [name for _, name, _ in metrics]
    return {f"{scorer}/{name}" if names.count(name) > 1 else name: value for scorer, name, value in metrics}
