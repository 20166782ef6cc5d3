"""CartPole next to Gymnasium's own vector environments, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]
SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_all_three_are_measured_in_one_run():
    command = [sys.executable, str(SCRIPTS / "bench_cartpole.py"), "--envs", "4", "--workers", "1"]
    command += ["--rounds", "1", "--duration", "0.2"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    rates = {name: rate for name, (rate,) in found["steps_per_second"].items()}
    assert list(rates) == ["ours", "async", "sync"]
    assert all(rate > 0 for rate in rates.values())
    assert found["ratios"] == {name: pytest.approx(rates["ours"] / rates[name]) for name in ("async", "sync")}
    assert (found["envs"], found["workers"], "--envs 4" in found["command"]) == (4, 1, True)
    assert found["machine"]["cores"]
    assert "AsyncVectorEnv" in result.stdout
