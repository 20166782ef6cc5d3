"""What was evaluated, and what came of it: enough to do it again."""

from __future__ import annotations

from typing import Any

from ..types import BaseMessage

__all__ = ["EvalConfig", "EvalResult"]


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
