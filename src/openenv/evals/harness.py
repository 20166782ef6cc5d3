"""One interface to external evaluation programs, with Inspect AI as the first implementation."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

from ..errors import MissingExtra, ProviderFailed, UsageError
from ..types import BaseMessage


class EvalConfig(BaseMessage):
    """One evaluation.

    Attributes:
        harness_name: Name of the harness class.
        harness_version: Version of the harness.
        library_versions: Version of every library that results depend on, by name.
        dataset: Dataset, in the harness's notation.
        eval_parameters: Further arguments of the harness.
    """

    harness_name: str
    harness_version: str
    library_versions: dict[str, str]
    dataset: str
    eval_parameters: dict[str, Any]


class EvalResult(BaseMessage):
    """The scores of one evaluation, by name."""

    config: EvalConfig
    scores: dict[str, Any]


class EvalHarness(ABC):
    """Runs evaluations. Implement `run` for another program."""

    @abstractmethod
    def run(
        self, harness_version: str, library_versions: dict[str, str], dataset: str, eval_parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Runs one evaluation and returns its scores by name. For the arguments see `EvalConfig`."""

    def run_from_config(self, config: EvalConfig) -> EvalResult:
        """Runs the evaluation of a configuration."""
        scores = self.run(config.harness_version, config.library_versions, config.dataset, config.eval_parameters)
        return EvalResult(config=config, scores=scores)

    @property
    def name(self) -> str:
        """The name in configurations, which is the class name."""
        return type(self).__name__


class InspectAIHarness(EvalHarness):
    """Runs a task of Inspect AI (`pip install inspect-ai`), and returns its metrics.

    Args:
        log_dir: Folder for Inspect AI's logs; None for its default.
    """

    def __init__(self, *, log_dir: str | None = None):
        self.log_dir = log_dir

    def run(
        self, harness_version: str, library_versions: dict[str, str], dataset: str, eval_parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Runs one evaluation.

        Args:
            harness_version: Recorded with the result, otherwise unused.
            library_versions: Recorded with the result, otherwise unused.
            dataset: The task: `package/task`, a file, or any other form that `inspect_ai.eval` accepts.
            eval_parameters: `model` is required; `task` replaces the dataset, and all others are passed to
                `inspect_ai.eval`.

        Returns:
            The value of each metric by name, or by `scorer/name` if several scorers have a metric of that name.

        Raises:
            MissingExtra: Inspect AI is not installed.
            UsageError: `model` is missing.
            ProviderFailed: The evaluation failed.
        """
        try:
            inspect_ai = importlib.import_module("inspect_ai")
        except ImportError:
            raise MissingExtra("inspect-ai", None) from None
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
            reason = getattr(getattr(log, "error", None), "message", None) or "see its log"
            raise ProviderFailed(f"the evaluation of {task!r} ended with status {log.status}: {reason}")
        metrics = [
            (score.name, name, metric.value)
            for score in (log.results.scores if log.results else ())
            for name, metric in score.metrics.items()
        ]
        names = [name for _, name, _ in metrics]
        return {f"{scorer}/{name}" if names.count(name) > 1 else name: value for scorer, name, value in metrics}
