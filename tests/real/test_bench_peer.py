"""The comparison with another system, whose part this one takes here: uvicorn serves it, as it would the other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real
SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(*arguments):
    command = [sys.executable, str(SCRIPTS / "bench_peer.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_both_are_measured_by_the_same_rule():
    result = run(
        *("--peer-python", sys.executable, "--forms", "inline", "--rounds", 1, "--duration", 0.3),
        *("--scale-grid", 8, "--workers", 1, "--processes", 1, "--vector-sessions", 16, "--idle-sessions", 128),
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    cost, memory, storms = found["us_per_step"], found["kb_per_idle_session"], found["scale"]
    assert list(cost) == ["inline"]
    for values in (cost["inline"], found["us_per_step_both_sides"], memory):
        assert values["ratio"] == pytest.approx(values["ours"] / values["peer"])
        assert values["ratio_tuned"] == pytest.approx(values["ours"] / values["tuned"])
        assert values["peer"] > 0
    assert {name: storm["success"] for name, storm in storms["8"].items()} == dict.fromkeys(
        ("peer", "tuned", "ours"), 1.0
    )
    assert found["machine"]["cores"]
    assert all(storm["p99_s"] >= 1.0 for storm in storms["8"].values())
    assert "inline, ours:" in result.stderr


def test_without_a_peer_it_says_how_to_get_one():
    result = run("--peer-python", "/no/such/python")
    assert result.returncode == 1
    assert "make bench-peer" in result.stderr
