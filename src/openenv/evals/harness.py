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
        harness_name: Name of the class of the harness.
        harness_version: Its version.
        library_versions: Version of every library that results depend on, by name.
        dataset: What it runs on, in the harness's own words.
        eval_parameters: What else the harness takes.
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
    """Runs evaluations. Write `run` for another program."""

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
        """Its name in configurations: the name of its class."""
        return type(self).__name__


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
        return _scores(log)


def _scores(log: Any) -> dict[str, Any]:
    """The metrics of a log; names that several scorers share get the scorer's before them."""
    metrics = [
        (score.name, name, metric.value)
        for score in (log.results.scores if log.results else ())
        for name, metric in score.metrics.items()
    ]
    names = [name for _, name, _ in metrics]
    return {f"{scorer}/{name}" if names.count(name) > 1 else name: value for scorer, name, value in metrics}
