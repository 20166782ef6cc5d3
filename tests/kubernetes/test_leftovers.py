"""What a killed owner left on a real cluster, and `openenv providers gc`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Space
from .parts.servers import READY_S, at_length, plays, serving

pytestmark = pytest.mark.real

_CHECKOUT = Path(__file__).parents[2]
_TRAINER = """
import asyncio, sys
from openenv.providers import KubernetesProvider
from tests.kubernetes.parts.servers import serving

async def main():
    provider = KubernetesProvider(kubeconfig=sys.argv[1], reach="forward")
    deployment = await provider.launch(serving(replicas=2, name="forgotten", options={"prepull": True}))
    print(deployment.name, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def gc(space: Space, *more: str) -> str:
    command = [sys.executable, "-m", "openenv", "providers", "gc", "--provider", "kubernetes", *more]
    here = {**os.environ, "KUBECONFIG": str(space.kubeconfig)}
    done = subprocess.run(command, env=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@at_length
async def test_what_a_killed_owner_left_is_removed_and_nothing_of_the_living(space: Space) -> None:
    async with await space.provider().launch(serving(name="living")) as living:
        await living.ready(READY_S)
        trainer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _TRAINER, str(space.kubeconfig), stdout=subprocess.PIPE, cwd=_CHECKOUT
        )
        assert trainer.stdout is not None
        name = (await trainer.stdout.readline()).decode().strip()
        trainer.kill()
        await trainer.wait()
        left = [each for each in space.names if name in each]
        assert {each.partition("/")[0] for each in left} == {"DaemonSet", "NetworkPolicy", "Pod", "Secret"}
        told = await asyncio.to_thread(gc, space)
        # The Pod of a DaemonSet has no label of ours: the cluster removes it with its DaemonSet.
        ours = [each for each in left if not each.startswith(f"Pod/{name}-image-")]
        assert [each for each in ours if each.partition("/")[2] not in told] == []
        assert living.name not in told
        await asyncio.to_thread(space.until_without, name)
        await plays(living)
