"""Files with the results of measurements, and all that is needed to reproduce them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .batch import BatchSummary
from .machine import machine
from .steps import ClosedLoop, StepCost, mean_cost

STEPS, SCALE = "steps", "scale"
# Measurements of several systems in turns.
TURNS = ("batched", "frames")


def steps_document(
    loop: ClosedLoop,
    command: str,
    target: str | None,
    served_by: str,
    trials: Sequence[StepCost],
    floor: Sequence[StepCost] = (),
) -> dict[str, Any]:
    """The document that `openenv bench steps --json` prints: the means of all trials, then each trial.

    Args:
        loop: The load.
        command: The command line of the measurement.
        target: Target of `openenv serve`. None if unknown.
        served_by: Description of the server.
        trials: The results, at least one.
        floor: Results of an empty server under the same load.
    """
    workload = {"target": target, "sessions": loop.sessions, "vector": loop.vector, "action": dict(loop.action)}
    return {
        **_head(STEPS, command, workload, served_by),
        **asdict(mean_cost(trials)),
        "trials": [asdict(trial) for trial in trials],
        "floor": [asdict(trial) for trial in floor],
    }


def scale_document(
    summaries: Sequence[BatchSummary],
    command: str,
    target: str | None,
    served_by: str,
    load: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document that `openenv bench scale` writes to `result.json`. `load` has the options of the load."""
    workload = {"target": target, "mode": summaries[0].mode}
    batches = [{**asdict(summary), "host_spread": summary.host_spread} for summary in summaries]
    return {**_head(SCALE, command, workload, served_by), "load": load, "batches": batches}


def turns_document(
    kind: str,
    workload: Mapping[str, Any],
    command: str,
    served_by: str,
    systems: Mapping[str, Sequence[Mapping[str, Any]]],
    **further: Any,
) -> dict[str, Any]:
    """The document that `openenv bench frames --json` and `openenv bench batched --json` print.

    Args:
        kind: `frames` or `batched`.
        workload: What was measured.
        command: The command line of the measurement.
        served_by: Description of the server.
        systems: The figures of each turn, by system.
        further: Further results, by name.
    """
    return {**_head(kind, command, workload, served_by), "systems": systems, **further}


def _head(kind: str, command: str, workload: Mapping[str, Any], served_by: str) -> dict[str, Any]:
    return {"bench": kind, "command": command, "machine": machine(), "server": served_by, "workload": workload}


@dataclass(frozen=True, slots=True)
class Result:
    """The comparable part of a result file.

    Attributes:
        path: The file.
        kind: `steps`, `scale`, `frames` or `batched`.
        workload: The workload. Figures of different workloads cannot be compared.
        cases: The figures of each trial, by name of the case. `steps` has one case, with an empty name; those of
            `frames` and `batched` are systems.
    """

    path: Path
    kind: str
    workload: Mapping[str, Any]
    cases: Mapping[str, Sequence[Mapping[str, Any]]]


def read_result(path: Path) -> Result:
    """Reads a file with a document of `steps_document`, `scale_document` or `turns_document`.

    Raises:
        UsageError: The file cannot be read, or has no such document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError:
        raise _not_a_result(path) from None
    try:
        kind, workload = document["bench"], document["workload"]
        cases: dict[str, Any] = {"": document["trials"]} if kind == STEPS else {}
        if kind in TURNS:
            cases = dict(document["systems"])
        for batch in document["batches"] if kind == SCALE else ():
            name = f"{batch['num_requests']:,} sessions, {batch['wait_seconds']:g} s wait"
            cases.setdefault(name, []).append(batch)
    except (KeyError, TypeError, ValueError):
        raise _not_a_result(path) from None
    whole = all(
        isinstance(trials, list) and trials and all(isinstance(trial, dict) for trial in trials)
        for trials in cases.values()
    )
    if kind not in (STEPS, SCALE, *TURNS) or not isinstance(workload, dict) or not whole:
        raise _not_a_result(path)
    return Result(path, kind, workload, cases)


def _not_a_result(path: Path) -> UsageError:
    return UsageError(
        f"{path} is not the result of a measurement: use the output of `openenv bench steps --json` (or of frames, "
        "batched), or the result.json of `openenv bench scale`"
    )
