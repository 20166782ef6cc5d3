from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from openenv.errors import MissingExtra, ProviderFailed, UsageError
from openenv.evals import EvalConfig, EvalHarness, EvalResult, InspectAIHarness

CONFIG = EvalConfig(
    harness_name="Counting", harness_version="1", library_versions={}, dataset="words", eval_parameters={"most": 3}
)


class Counting(EvalHarness):
    def run(self, harness_version, library_versions, dataset, eval_parameters):
        return {"length": len(dataset), "most": eval_parameters["most"]}


def test_a_harness_runs_what_a_configuration_describes():
    harness = Counting()
    assert harness.name == "Counting"
    assert harness.run_from_config(CONFIG) == EvalResult(config=CONFIG, scores={"length": 5, "most": 3})


def test_a_harness_must_say_how_it_runs():
    with pytest.raises(TypeError, match="run"):
        EvalHarness()


def test_a_configuration_is_complete_and_has_nothing_else():
    with pytest.raises(ValidationError):
        EvalConfig(harness_name="x")
    with pytest.raises(ValidationError):
        EvalConfig(**CONFIG.model_dump(), more=1)


def test_a_configuration_goes_through_json():
    assert EvalConfig.model_validate_json(CONFIG.model_dump_json()) == CONFIG


def test_without_inspect_ai_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(ImportError, match="pip install inspect-ai") as caught:
        InspectAIHarness().run("1", {}, "task", {"model": "none/none"})
    assert isinstance(caught.value, MissingExtra)


@pytest.fixture
def inspect_ai(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for the library, which is large: answers as its documentation says, and keeps what it was asked."""
    library = ModuleType("inspect_ai")
    library.asked = []
    library.logs = []

    def evaluate(tasks, **options):
        library.asked.append((tasks, options))
        return library.logs

    library.eval = evaluate
    monkeypatch.setitem(sys.modules, "inspect_ai", library)
    return library


def log_of(*scores: tuple[str, dict[str, float]], status: str = "success") -> Any:
    results = SimpleNamespace(
        scores=[
            SimpleNamespace(
                name=name, metrics={metric: SimpleNamespace(value=value) for metric, value in values.items()}
            )
            for name, values in scores
        ]
    )
    return SimpleNamespace(status=status, results=results, error=None)


def test_metrics_are_scores_and_parameters_are_given_on(inspect_ai):
    inspect_ai.logs = [log_of(("match", {"accuracy": 0.5, "stderr": 0.1}))]
    harness = InspectAIHarness(log_dir="logs")
    assert harness.run("1", {}, "my/task", {"model": "m", "limit": 3}) == {"accuracy": 0.5, "stderr": 0.1}
    assert inspect_ai.asked == [("my/task", {"model": "m", "limit": 3, "log_dir": "logs"})]


def test_metrics_of_one_name_are_told_apart_by_their_scorers(inspect_ai):
    inspect_ai.logs = [log_of(("match", {"accuracy": 0.5}), ("judge", {"accuracy": 0.7, "mean": 1.0}))]
    scores = InspectAIHarness().run("1", {}, "t", {"model": "m", "task": "other"})
    assert scores == {"match/accuracy": 0.5, "judge/accuracy": 0.7, "mean": 1.0}
    assert inspect_ai.asked[0][0] == "other"


def test_an_evaluation_that_failed_has_no_scores(inspect_ai):
    inspect_ai.logs = [log_of(status="error")]
    with pytest.raises(ProviderFailed, match="status error"):
        InspectAIHarness().run("1", {}, "t", {"model": "m"})
    inspect_ai.logs = []
    with pytest.raises(ProviderFailed, match="check the name"):
        InspectAIHarness().run("1", {}, "t", {"model": "m"})


def test_a_model_must_be_named(inspect_ai):
    with pytest.raises(UsageError, match="model"):
        InspectAIHarness().run("1", {}, "t", {})
    assert inspect_ai.asked == []


def test_the_bridge_says_which_extra_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    monkeypatch.delitem(sys.modules, "openenv.evals.inspect_bridge", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'openenv\[inspect\]'"):
        importlib.import_module("openenv.evals.inspect_bridge")


def test_the_package_loads_no_client_and_no_server():
    code = "import sys, openenv.evals.sampler\nprint(*{'fastapi', 'mcp', 'inspect_ai'} & sys.modules.keys())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == []
