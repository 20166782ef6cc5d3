"""From an empty folder to a served environment, as a newcomer gets there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openenv.providers.process import free_port
from tests.infra.parts.dockerd import dockerd
from tests.infra.parts.image import CHECKOUT, base_of, own_wheel, wheels

pytestmark = pytest.mark.real

# The script has a limit of its own; this is for one that hangs.
PATIENCE_S = 600.0


def test_a_newcomer_gets_there_in_five_commands_and_five_minutes(tmp_path: Path) -> None:
    pytest.importorskip("docker")
    with dockerd() as daemon:
        engine = daemon.client()
        base = base_of(engine, "echo")
        words: list[object] = [CHECKOUT / "scripts" / "newcomer", "--package", own_wheel(tmp_path)]
        # No registry of images and no package index is reached from within the engine.
        words += ["--wheels", wheels(), "--base-image", base, "--build-arg", "PIP_NO_INDEX=1"]
        variables = {**os.environ, "DOCKER_HOST": daemon.host, "PORT": str(free_port()), "PYTHON": sys.executable}
        outcome = subprocess.run(
            list(map(str, words)), env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        said = outcome.stdout + outcome.stderr
        assert outcome.returncode == 0, said
        commands = re.findall(r"^\d\$ (\w+ \w+)", outcome.stdout, re.MULTILINE)
        assert commands == ["pip install", "openenv init", "openenv validate", "openenv build", "docker run"], said
        assert "reset:" in outcome.stdout
        assert "step:" in outcome.stdout
        last = outcome.stdout.splitlines()[-1]
        done = "installed, created, checked, built, served at .* and played"
        assert re.fullmatch(rf"5 commands, [\d.]+ s: {done}", last)
        assert engine.containers.list(all=True) == []
        engine.close()
