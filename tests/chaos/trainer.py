"""A program that plays rollouts, for faults that befall them: `python -m tests.chaos.trainer PLAN`, a JSON object.

Its folder has what came of it. It prints the error that ended the run, if one did.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from openenv.errors import OpenEnvError
from openenv.rollouts import OpenAIModel, RolloutBudget, rollouts


async def play(plan: dict[str, Any]) -> str | None:
    """Plays the rollouts of a plan. Returns the class of the error that ended the run."""
    model = OpenAIModel("tool", plan["model"], **plan["model_options"])
    try:
        async for _ in rollouts(
            plan["env"],
            model,
            range(plan["count"]),
            sessions=plan["sessions"],
            requests=plan["sessions"],
            budget=RolloutBudget(turns=plan["turns"]),
            folder=Path(plan["folder"]),
            connections=4,
            **plan["options"],
        ):
            pass
    except OpenEnvError as error:
        print(error, file=sys.stderr)
        return type(error).__name__
    finally:
        await model.aclose()
    return None


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan["most_bytes"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (plan["most_bytes"], resource.RLIM_INFINITY))
    print(json.dumps({"error": asyncio.run(play(plan))}))


if __name__ == "__main__":
    main()
