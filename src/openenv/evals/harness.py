"""The interface of a program that evaluates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .config import EvalConfig, EvalResult

__all__ = ["EvalHarness"]


class EvalHarness(ABC):
    """Runs evaluations. Write `run` for another program."""

    @abstractmethod
    def run(
        self, harness_version: str, library_versions: dict[str, str], dataset: str, eval_parameters: dict[str, Any]
    ) -> dict[str, Any]:
        """Runs one evaluation and returns its scores by name. For the arguments see `EvalConfig`."""

    def run_from_config(self, config: EvalConfig) -> EvalResult:
        """Runs what a configuration describes."""
        scores = self.run(config.harness_version, config.library_versions, config.dataset, config.eval_parameters)
        return EvalResult(config=config, scores=scores)

    @property
    def name(self) -> str:
        """What configurations call it: its class's name."""
        return type(self).__name__
