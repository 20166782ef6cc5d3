"""The documents of measurements, read again; and those of measurements in turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openenv.bench.machine import document_head
from openenv.errors import UsageError

# Measurements of several systems in turns.
TURNS = ("batched", "frames")


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
    return {**document_head(kind, command, workload, served_by), "systems": systems, **further}


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
        cases: dict[str, Any] = {"": document["trials"]} if kind == "steps" else {}
        if kind in TURNS:
            cases = dict(document["systems"])
        for batch in document["batches"] if kind == "scale" else ():
            name = f"{batch['num_requests']:,} sessions, {batch['wait_seconds']:g} s wait"
            cases.setdefault(name, []).append(batch)
    except (KeyError, TypeError, ValueError):
        raise _not_a_result(path) from None
    whole = all(
        isinstance(trials, list) and trials and all(isinstance(trial, dict) for trial in trials)
        for trials in cases.values()
    )
    if kind not in ("steps", "scale", *TURNS) or not isinstance(workload, dict) or not whole:
        raise _not_a_result(path)
    return Result(path, kind, workload, cases)


def _not_a_result(path: Path) -> UsageError:
    return UsageError(
        f"{path} is not the result of a measurement: use the output of `openenv bench steps --json` (or of frames, "
        "batched), or the result.json of `openenv bench scale`"
    )
